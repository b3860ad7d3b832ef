//! Clients of the control plane and of members, from kubeconfig files, as kubectl finds them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// The longest name of a cluster.
const LONGEST_NAME: usize = api::constants::CLUSTER_NAME_MAX_LENGTH;

/// How the control plane is reached.
#[derive(Debug, Clone, Args)]
pub struct ControlArguments {
    /// Path to the control plane's kubeconfig file.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of the context in the control plane's kubeconfig file.
    #[arg(long, value_name = "CONTEXT")]
    pub karmada_context: Option<String>,
    /// User to act as towards the control plane.
    #[arg(long, value_name = "USER")]
    pub karmada_as: Option<String>,
    /// Group to act as towards the control plane; may be repeated.
    #[arg(long, value_name = "GROUP")]
    pub karmada_as_group: Vec<String>,
    /// UID to act as towards the control plane.
    #[arg(long, value_name = "UID")]
    pub karmada_as_uid: Option<String>,
}

impl ControlArguments {
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let mut config = config(self.kubeconfig.as_deref(), self.karmada_context.as_deref()).await?;
        config.auth_info.impersonate = self.karmada_as.clone();
        config.auth_info.impersonate_uid = self.karmada_as_uid.clone();
        if !self.karmada_as_group.is_empty() {
            config.auth_info.impersonate_groups = Some(self.karmada_as_group.clone());
        }
        Client::try_from(config).context("cannot make a client for the control plane")
    }
}

/// Reads a kubeconfig file, or what kubectl would read without one.
pub async fn config(file: Option<&Path>, context: Option<&str>) -> anyhow::Result<Config> {
    let kubeconfig = match file {
        Some(file) => Kubeconfig::read_from(file).map_err(|error| {
            // What lies between says the same twice.
            let error = anyhow::Error::from(error);
            anyhow!("cannot read kubeconfig {}: {}", file.display(), error.root_cause())
        })?,
        None => match Kubeconfig::read() {
            Ok(kubeconfig) => kubeconfig,
            // Inside a pod, its own account will do.
            Err(_) if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => {
                return Config::incluster().context("cannot use the account of this pod");
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                return Err(error.context("cannot read the kubeconfig; hint: name one with --kubeconfig"));
            }
        },
    };
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .with_context(|| format!("cannot use context {:?} of the kubeconfig", context.unwrap_or("<current>")))
}

/// Reads a duration in Go's way: `30s`, `1m30s`, `24h0m0s`, `0`.
pub(crate) fn duration(text: &str) -> anyhow::Result<Duration> {
    let wrong = || anyhow!("invalid duration {text:?}; write it like 30s, 5m or 1h30m");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut sum = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..end].parse().map_err(|_| wrong())?;
        rest = &rest[end..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        sum += number
            * match &rest[..unit] {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return Err(wrong()),
            };
        rest = &rest[unit..];
    }
    if text.is_empty() {
        return Err(wrong());
    }
    Duration::try_from_secs_f64(sum).map_err(|_| wrong())
}

/// Checks a cluster's name: a DNS label of at most 48 characters.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.is_empty() {
        bail!("cluster name is required");
    }
    if name.len() > LONGEST_NAME {
        bail!("invalid cluster name({name}): must be no more than {LONGEST_NAME} characters");
    }
    if !name.starts_with(fits) || !name.ends_with(fits) || !name.chars().all(|c| fits(c) || c == '-') {
        bail!(
            "invalid cluster name({name}): must consist of lower case letters, digits and '-', and begin and end with \
             a letter or digit"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, seconds) in [
            ("30s", 30.0),
            ("1m30s", 90.0),
            ("24h0m0s", 86400.0),
            ("0", 0.0),
            ("1.5h", 5400.0),
            ("20ms", 0.02),
        ] {
            assert_eq!(duration(text).expect(text).as_secs_f64(), seconds, "{text}");
        }
        for bad in ["", "5", "soon", "5x", "-3s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_cluster_name_is_a_dns_label_of_at_most_48_characters() {
        for good in ["m1", "a", "member-1", &"a".repeat(48)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", &"a".repeat(49)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
