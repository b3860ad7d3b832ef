//! Clients of the control plane and of members, from kubeconfig files that are found as kubectl finds them.

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
        crate::retries::client(config).context("cannot make a client for the control plane")
    }
}

/// Reads a kubeconfig file, or what kubectl would read without one.
pub async fn config(file: Option<&Path>, context: Option<&str>) -> anyhow::Result<Config> {
    // The variable may name several files; the reader handles that.
    let file = file.filter(|file| std::env::var_os("KUBECONFIG").as_deref() != Some(file.as_os_str()));
    let kubeconfig = match file {
        Some(file) => Kubeconfig::read_from(file).map_err(|error| {
            // The errors in between repeat the same message.
            let error = anyhow::Error::from(error);
            if !file.exists() {
                return anyhow!("stat {}: no such file or directory", file.display());
            }
            anyhow!("cannot read kubeconfig {}: {}", file.display(), error.root_cause())
        })?,
        None => match Kubeconfig::read() {
            Ok(kubeconfig) => kubeconfig,
            // Inside a pod, its own account is used.
            Err(_) if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => {
                return Config::incluster().context("cannot use the account of this pod");
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                bail!("cannot read the kubeconfig{}: {}; {}", usual(), error.root_cause(), where_else());
            }
        },
    };
    check_context(&kubeconfig, context)?;
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .with_context(|| format!("cannot use context {:?} of the kubeconfig", context.unwrap_or("<current>")))
}

/// Where a kubeconfig is searched if none is named.
fn usual() -> String {
    let named = std::env::var("KUBECONFIG").ok().filter(|paths| !paths.is_empty());
    let home = || Some(format!("{}/.kube/config", std::env::var("HOME").ok()?));
    named.or_else(home).map(|path| format!(" {path}")).unwrap_or_default()
}

/// The hint for users without a kubeconfig: `up` and `server` write one to their directory.
fn where_else() -> String {
    const HERE: &str = "karmada-data/karmada.kubeconfig";
    let hint = if Path::new(HERE).exists() { HERE } else { "FILE" };
    format!("hint: name one with --kubeconfig {hint}, or with KUBECONFIG")
}

/// Returns what is missing in a kubeconfig for the context to be usable.
fn check_context(kubeconfig: &Kubeconfig, asked: Option<&str>) -> anyhow::Result<()> {
    let current = kubeconfig.current_context.as_deref().filter(|name| !name.is_empty());
    let Some(name) = asked.filter(|name| !name.is_empty()).or(current) else {
        let names: Vec<&str> = kubeconfig.contexts.iter().map(|each| each.name.as_str()).collect();
        let hint = if names.is_empty() {
            "it has none at all".to_owned()
        } else {
            format!("hint: --karmada-context takes one of {}", names.join(", "))
        };
        bail!("the kubeconfig has no current context; {hint}");
    };
    let Some(context) = kubeconfig.contexts.iter().find(|each| each.name == name) else {
        let text = format!("Error in configuration: context was not found for specified context: {name}");
        return Err(crate::failure::Plain(text).into());
    };
    let Some(context) = &context.context else { bail!("context {name:?} of the kubeconfig is empty") };
    if !kubeconfig.clusters.iter().any(|each| each.name == context.cluster) {
        bail!(
            "context {name:?} of the kubeconfig names the cluster {:?}, and the kubeconfig has no such cluster",
            context.cluster
        );
    }
    Ok(())
}

/// Checks a duration on the command line, in Go's words; its value is parsed later.
pub(crate) fn duration_text(text: &str) -> Result<String, String> {
    apimachinery::duration::nanos(text).map(|_| text.to_owned())
}

/// Parses a duration in Go's way: `30s`, `1m30s`, `24h0m0s`, `0`. It is limited so that the clock can represent its end.
pub(crate) fn duration(text: &str) -> anyhow::Result<Duration> {
    apimachinery::duration::parse(text).map_err(|why| anyhow!("{why}; write it like 30s, 5m or 1h30m"))
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
            "invalid cluster name({name}): a lowercase RFC 1123 label must consist of lower case alphanumeric characters or \
             '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for \
             validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, nanos) in [
            ("30s", 30_000_000_000),
            ("1m30s", 90_000_000_000),
            ("24h0m0s", 86_400_000_000_000),
            ("0", 0),
            ("1h.5m", 3_630_000_000_000),
            ("20ms", 20_000_000),
            ("100us", 100_000),
            ("5ns", 5),
        ] {
            assert_eq!(duration(text).expect(text).as_nanos(), nanos, "{text}");
        }
        for bad in ["", "5", "soon", "5x", "-3s", "4000000000000000h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        let longest = duration("9223372036854775807ns").expect("292 years");
        assert!(tokio::time::Instant::now().checked_add(longest).is_some());
        for (text, complaint) in [
            ("soon", "time: invalid duration \"soon\""),
            ("5", "time: missing unit in duration \"5\""),
            ("5x3s", "time: unknown unit \"x\" in duration \"5x3s\""),
        ] {
            assert_eq!(duration_text(text).expect_err(text), complaint);
        }
        assert_eq!(duration_text("-3s").as_deref(), Ok("-3s"));
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
