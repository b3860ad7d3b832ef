//! `karmada estimator`: tells a scheduler how many replicas a member can still hold.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use api::features::Features;
use clap::Args;
use estimator::server::Estimator;
use estimator::tls::ServerTls;
use runtime::Supervisor;

use crate::observability::{self, Topic};
use crate::signals::Signals;
use crate::unneeded;

/// Tell a scheduler how many replicas a member cluster can still hold: Karmada's scheduler estimator.
///
/// One process serves one member. In the control plane, a Service of the type ExternalName leads to it; schedulers with
/// --enable-scheduler-estimator find it by the name karmada-scheduler-estimator-CLUSTER.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The member's kubeconfig; by default KUBECONFIG or the file in the home directory.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The address of the member's API server, if it is not the one in the kubeconfig.
    #[arg(long, value_name = "URL")]
    master: Option<http::Uri>,
    /// The member's name in the control plane.
    #[arg(long, value_name = "NAME")]
    cluster_name: String,
    /// Address to answer on.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    bind_address: std::net::IpAddr,
    /// Port to answer on.
    #[arg(long, value_name = "PORT", default_value_t = 10352)]
    server_port: u16,
    /// Certificate to show to schedulers; without it, connections are not encrypted.
    #[arg(long, value_name = "FILE", requires = "grpc_auth_key_file")]
    grpc_auth_cert_file: Option<PathBuf>,
    /// Key of that certificate.
    #[arg(long, value_name = "FILE", requires = "grpc_auth_cert_file")]
    grpc_auth_key_file: Option<PathBuf>,
    /// Authority that signed the schedulers' certificates; with it, they have to show one.
    #[arg(long, value_name = "FILE", requires = "grpc_auth_cert_file")]
    grpc_client_ca_file: Option<PathBuf>,
    /// Do not ask schedulers for certificates.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    insecure_skip_grpc_client_verify: bool,
    /// Features to switch on or off, as in `ResourceQuotaEstimate=true`.
    #[arg(long, value_name = "LIST", default_value = "")]
    feature_gates: String,
    /// Address to serve /metrics on, without credentials; `:8080` is all interfaces, `0` is nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    metrics_bind_address: String,
    /// Address to serve /healthz on, without credentials; `:10351` is all interfaces, `0` is nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    health_probe_bind_address: String,
    // Upstream's flag has no effect: its value changes no answer.
    #[arg(long, hide = true, default_value = "0")]
    parallelism: String,
    #[command(flatten)]
    _unneeded: unneeded::Everywhere,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let features =
        Features::parse(&arguments.feature_gates).context("--feature-gates cannot be understood")?;
    let address = |flag: &str, text: &str| {
        observability::address(text).map_err(|error| anyhow::anyhow!("--{flag}: {error}"))
    };
    let metrics = address("metrics-bind-address", &arguments.metrics_bind_address)?;
    let health = address("health-probe-bind-address", &arguments.health_probe_bind_address)?;
    let tls = ServerTls {
        certificate: arguments.grpc_auth_cert_file,
        key: arguments.grpc_auth_key_file,
        client_ca: arguments.grpc_client_ca_file,
        skip_client_verification: arguments.insecure_skip_grpc_client_verify,
    };
    let tls = tls.server_config().context("the certificates cannot be used")?;
    let mut config = match &arguments.kubeconfig {
        Some(path) => cli::config(Some(path), None).await?,
        None => kube::Config::infer()
            .await
            .context("no kubeconfig is given and none is found; use --kubeconfig")?,
    };
    if let Some(master) = arguments.master {
        config.cluster_url = master;
    }
    let client = cli::client(config).context("cannot make a client from the kubeconfig")?;
    let version = client.apiserver_version().await.context("the member does not answer")?;
    let mut signals = Signals::listen()?;
    let supervisor = Supervisor::default();
    observability::serve(&[(Topic::Metrics, metrics), (Topic::Health, health)], supervisor.token()).await?;
    let bind = SocketAddr::new(arguments.bind_address, arguments.server_port);
    let listener =
        tokio::net::TcpListener::bind(bind).await.with_context(|| format!("cannot listen on {bind}"))?;
    let bound = listener.local_addr().context("the listener has no address")?;
    let estimator = Estimator::new(&arguments.cluster_name, client, features, &supervisor);
    tokio::select! {
        () = estimator.complete() => {}
        _ = signals.next() => return Ok(()),
    }
    let encrypted = tls.is_some();
    let name = arguments.cluster_name;
    tracing::info!(cluster = name, address = %bound, encrypted, version = version.git_version, "estimator answers");
    let serving = estimator.serve(listener, tls, supervisor.token().clone());
    tokio::select! {
        result = serving => result.context("the estimator cannot go on")?,
        signal = signals.next() => tracing::info!("stopping: {signal}"),
    }
    signals.end(supervisor.stop()).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn upstreams_flags_are_taken() {
        let line = "estimator --kubeconfig=/etc/k --cluster-name=m1 --master=https://m1:6443 --server-port=10352 \
                    --grpc-auth-cert-file=c --grpc-auth-key-file=k --grpc-client-ca-file=a --insecure-skip-grpc-client-verify=false \
                    --kube-api-qps=20 --kube-api-burst=30 --parallelism=16 --metrics-bind-address=:8080 \
                    --health-probe-bind-address=:10351 --feature-gates=ResourceQuotaEstimate=true --enable-pprof \
                    --profiling-bind-address=:6060 --v=4 --logging-format=json";
        let read = Command::try_parse_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            read.arguments.master.and_then(|url| url.host().map(str::to_owned)),
            Some("m1".to_owned())
        );
        assert!(Command::try_parse_from(["estimator", "--cluster-name=m1", "-v", "4"]).is_ok());
    }
}
