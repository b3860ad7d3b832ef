//! `karmada webhook`: the admission rules as a webhook server, for control planes on kube-apiserver.
//!
//! Serves every path of the table of rules, `/convert` for the two versions of bindings, and health. Names, paths,
//! ports and flags are those of karmada-webhook.

mod certificates;
mod configuration;
mod listen;
mod review;

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use api::features::Features;
use clap::Args;
use tokio_util::sync::CancellationToken;

use crate::signals::Signals;
use crate::surroundings::Surroundings;

/// Run Karmada's admission rules as a webhook server, for a control plane on kube-apiserver.
///
/// A certificate is taken from the certificate directory, or made there with an authority of its own. To have the API
/// server call it: karmada webhook --print-configuration | kubectl apply -f -
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Address to serve HTTPS on.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    bind_address: IpAddr,
    /// Port to serve HTTPS on; 0 picks a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    secure_port: u16,
    /// Directory of the serving certificate and the authority that signed it (ca.crt).
    #[arg(long, value_name = "DIR", default_value = "karmada-webhook-certs")]
    cert_dir: PathBuf,
    /// File of the certificate in the certificate directory.
    #[arg(long, value_name = "FILE", default_value = "tls.crt")]
    tls_cert_file_name: String,
    /// File of the key in the certificate directory.
    #[arg(long, value_name = "FILE", default_value = "tls.key")]
    tls_private_key_file_name: String,
    /// Further names and addresses that a certificate made here is valid for.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    cert_extra_sans: Vec<String>,
    /// Oldest version of TLS that is spoken.
    #[arg(long, value_name = "VERSION", default_value = "1.3", value_parser = ["1.2", "1.3"])]
    tls_min_version: String,
    /// Address for health probes without TLS; 0 for none.
    #[arg(long, value_name = "ADDRESS", default_value = ":8000")]
    health_probe_bind_address: String,
    /// The control plane's kubeconfig, for rules that look at other objects; by default KUBECONFIG or the file in the
    /// home directory.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Features to switch on or off, as `Name=true,Other=false`.
    #[arg(long, value_name = "LIST", default_value = "", value_parser = crate::server::features)]
    feature_gates: Features,
    /// Let ClusterTaintPolicies set taints that drive workloads away.
    #[arg(long)]
    allow_no_execute_taint_policy: bool,
    /// Print the objects that make an API server call this webhook server, and end.
    #[arg(long)]
    print_configuration: bool,
    /// Where the API server finds this webhook server, for --print-configuration.
    #[arg(long, value_name = "URL", default_value = "https://karmada-webhook.karmada-system.svc:443")]
    url: String,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let certificates = certificates::load_or_create(
        &arguments.cert_dir,
        &arguments.tls_cert_file_name,
        &arguments.tls_private_key_file_name,
        &arguments.cert_extra_sans,
    )?;
    if arguments.print_configuration {
        let mut out = std::io::stdout().lock();
        for object in configuration::objects(&arguments.url, &certificates.authority) {
            writeln!(out, "---\n{object:#}")?;
        }
        return Ok(());
    }
    let surroundings = Arc::new(Surroundings::default());
    match client(&arguments).await {
        Ok(client) => surroundings.connect(client),
        Err(error) if arguments.kubeconfig.is_some() => return Err(error),
        Err(error) => {
            tracing::warn!("rules that look at other objects will not answer: {error:#}");
        }
    }
    let reviewer = Arc::new(review::Reviewer {
        settings: admission::Settings {
            features: arguments.feature_gates,
            allow_no_execute_taint_policy: arguments.allow_no_execute_taint_policy,
        },
        surroundings,
    });
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let address = SocketAddr::new(arguments.bind_address, arguments.secure_port);
    let tls = certificates.server(&arguments.tls_min_version)?;
    let (bound, serving) = listen::https(address, tls, reviewer, stop.clone()).await?;
    if let Some(address) = probe_address(&arguments.health_probe_bind_address)? {
        listen::health(address, stop.clone()).await?;
    }
    tracing::info!(address = %bound, certificates = %arguments.cert_dir.display(), "ready");
    let signal = signals.next().await;
    tracing::info!("stopping: {signal}");
    stop.cancel();
    serving.await.context("the listener failed")?;
    Ok(())
}

async fn client(arguments: &Arguments) -> anyhow::Result<kube::Client> {
    let config = match &arguments.kubeconfig {
        Some(path) => cli::config(Some(path), None).await?,
        None => kube::Config::infer().await.context("no kubeconfig is given and none is found")?,
    };
    kube::Client::try_from(config).context("cannot make a client from the kubeconfig")
}

/// Reads `host:port`, `:port`, or `0` for nothing.
fn probe_address(text: &str) -> anyhow::Result<Option<SocketAddr>> {
    if matches!(text, "" | "0") {
        return Ok(None);
    }
    let whole = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    let address = whole.parse().with_context(|| format!("{text:?} is no address with a port"))?;
    Ok(Some(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_may_be_switched_off() {
        assert_eq!(probe_address("0").unwrap(), None);
        assert_eq!(probe_address(":8000").unwrap(), Some("0.0.0.0:8000".parse().unwrap()));
        assert!(probe_address("somewhere").is_err());
    }
}
