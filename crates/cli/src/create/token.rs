//! `create token`: requests a token of a service account.

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::Name;
use crate::clients::duration;
use crate::output;
use crate::print::Output;
use crate::server::{Namespaced, segment};

/// Request a service account token.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # A token of service account robot for ten minutes
  karmadactl create token robot --duration=10m")]
pub struct Token {
    #[command(flatten)]
    pub name: Name,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub output: Output,
    /// Audience of the requested token; may be repeated.
    #[arg(long, value_name = "AUDIENCE")]
    pub audience: Vec<String>,
    /// Requested lifetime of the issued token; 0 leaves it to the server.
    #[arg(long, value_name = "DURATION", default_value = "0s", allow_hyphen_values = true, value_parser = crate::clients::duration_text)]
    pub duration: String,
    /// Kind of an object to bind the token to: Node, Pod or Secret.
    #[arg(long, value_name = "KIND", default_value = "")]
    pub bound_object_kind: String,
    /// Name of an object to bind the token to.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub bound_object_name: String,
    /// UID of an object to bind the token to.
    #[arg(long, value_name = "UID", default_value = "")]
    pub bound_object_uid: String,
}

impl Token {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let name = self.name.get("token")?;
        let request = self.request()?;
        let format = self.output.format()?;
        let plane = self.place.plane().await?;
        let path = format!(
            "/api/v1/namespaces/{}/serviceaccounts/{}/token",
            segment(&plane.namespace),
            segment(name)
        );
        let answer = match plane.server.post(&path, &request).await {
            Ok(answer) => answer,
            Err(error) if error.is::<crate::failure::Refusal>() => bail!("failed to create token: {error}"),
            Err(error) => return Err(error),
        };
        match format {
            Some(format) => output::print(&format.print(&answer, self.output.show_managed_fields)?),
            None => match answer["status"]["token"].as_str() {
                Some(token) if !token.is_empty() => output::line(token),
                _ => bail!("failed to create token: no token in server response"),
            },
        }
        Ok(())
    }

    fn request(&self) -> anyhow::Result<serde_json::Value> {
        let mut spec = json!({"audiences": self.audience});
        if self.duration.starts_with('-') {
            bail!("--duration must be greater than or equal to 0");
        }
        let seconds = duration(&self.duration)?;
        if seconds.subsec_nanos() != 0 {
            bail!("--duration cannot be expressed in whole seconds");
        }
        if !seconds.is_zero() {
            spec["expirationSeconds"] = seconds.as_secs().into();
        }
        match self.bound_object_kind.as_str() {
            "" if !self.bound_object_name.is_empty() => {
                bail!("--bound-object-name can only be set if --bound-object-kind is provided")
            }
            "" if !self.bound_object_uid.is_empty() => {
                bail!("--bound-object-uid can only be set if --bound-object-kind is provided")
            }
            "" => {}
            kind @ ("Node" | "Pod" | "Secret") => {
                if self.bound_object_name.is_empty() {
                    bail!("--bound-object-name is required if --bound-object-kind is provided");
                }
                spec["boundObjectRef"] = json!({
                    "apiVersion": "v1", "kind": kind, "name": self.bound_object_name, "uid": self.bound_object_uid,
                });
            }
            _ => bail!("supported --bound-object-kind values are Node, Pod, Secret"),
        }
        Ok(json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}))
    }
}
