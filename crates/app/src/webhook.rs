//! `karmada webhook`: the admission rules as a webhook server, for control planes on kube-apiserver.
//!
//! Serves every path of the table of rules, `/convert` for the two versions of bindings, and health. Names, paths,
//! ports and flags are those of karmada-webhook.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub(crate) mod certificates;
mod clients;
mod listen;
mod metrics;
mod password;
mod review;
mod room;

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use api::features::Features;
use clap::Args;
use cli::registration::{self, Place};
use tokio_util::sync::CancellationToken;

use self::review::Callers;
use crate::environment::Environment;
use crate::observability::{self, Topic};
use crate::signals::Signals;

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
    /// Certificates of the authority that signed the API server's client certificate. With it, reviews are answered only
    /// to callers with such a certificate. Without it, reviews that ask the control plane are answered only at the paths that
    /// --print-configuration prints, which end with a password, and nothing that a review writes can be switched on.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Common names of client certificates that are answered; by default all that the authority signed.
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "client_ca_file")]
    client_allowed_names: Vec<String>,
    /// Oldest version of TLS that is spoken.
    #[arg(long, value_name = "VERSION", default_value = "1.3", value_parser = ["1.2", "1.3"])]
    tls_min_version: String,
    /// Address for health probes without TLS; 0 for none.
    #[arg(long, value_name = "ADDRESS", default_value = ":8000")]
    health_probe_bind_address: String,
    /// Address to serve /metrics on, without credentials; `:8080` is all interfaces, `0` is nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    metrics_bind_address: String,
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
        let password = match arguments.client_ca_file {
            Some(_) => None,
            None => Some(password::load_or_create(&arguments.cert_dir)?),
        };
        let mut out = std::io::stdout().lock();
        let place = Place::Url(&arguments.url);
        for object in registration::webhooks(place, &certificates.authority, password.as_deref()) {
            writeln!(out, "---\n{object:#}")?;
        }
        return Ok(());
    }
    let environment = Arc::new(Environment::default());
    match client(&arguments).await {
        Ok(client) => environment.connect(client),
        Err(error) if arguments.kubeconfig.is_some() => return Err(error),
        Err(error) => {
            tracing::warn!("rules that look at other objects will not answer: {error:#}");
        }
    }
    let callers = match &arguments.client_ca_file {
        Some(file) => Callers::Certified(clients::Clients::load(file, &arguments.client_allowed_names)?),
        None => Callers::Password(password::load_or_create(&arguments.cert_dir)?),
    };
    let settings = admission::Settings {
        features: arguments.feature_gates,
        allow_no_execute_taint_policy: arguments.allow_no_execute_taint_policy,
    };
    let reviewer = Arc::new(review::Reviewer::new(settings, environment, callers)?);
    let metrics_address = observability::address(&arguments.metrics_bind_address)
        .map_err(|error| anyhow::anyhow!("--metrics-bind-address: {error}"))?;
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let address = SocketAddr::new(arguments.bind_address, arguments.secure_port);
    let verifier = reviewer.asks_certificates().then(clients::Clients::verifier);
    let tls = certificates.server(&arguments.tls_min_version, verifier)?;
    let (bound, serving) = listen::https(address, tls, reviewer, stop.clone()).await?;
    if let Some(address) = probe_address(&arguments.health_probe_bind_address)? {
        listen::health(address, stop.clone()).await?;
    }
    runtime::metrics::introduce();
    metrics::introduce();
    observability::serve(&[(Topic::Metrics, metrics_address)], &stop).await?;
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
    cli::client(config).context("cannot make a client from the kubeconfig")
}

/// Reads `host:port`, `:port`, or `0` for nothing.
fn probe_address(text: &str) -> anyhow::Result<Option<SocketAddr>> {
    if matches!(text, "" | "0") {
        return Ok(None);
    }
    let whole = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    let address = whole.parse().with_context(|| format!("{text:?} is not an address with a port"))?;
    Ok(Some(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Posts over TLS, with or without a certificate; returns the first line of the answer.
    async fn post(to: SocketAddr, path: &str, shown: Option<(rcgen::Certificate, rcgen::KeyPair)>) -> String {
        use rustls::pki_types::{PrivateKeyDer, ServerName};
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let builder =
            rustls::ClientConfig::builder().dangerous().with_custom_certificate_verifier(Arc::new(Anyone));
        let config = match shown {
            Some((certificate, key)) => {
                let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
                builder.with_client_auth_cert(vec![certificate.der().clone()], key).expect("a pair")
            }
            None => builder.with_no_client_auth(),
        };
        let stream = tokio::net::TcpStream::connect(to).await.expect("it listens");
        let name = ServerName::try_from("localhost").expect("a name");
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(name, stream).await.expect("a handshake");
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        // A server that closes the connection abruptly may still have answered.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    }

    /// Trusts any server.
    #[derive(Debug)]
    struct Anyone;

    impl rustls::client::danger::ServerCertVerifier for Anyone {
        fn verify_server_cert(
            &self,
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &[rustls::pki_types::CertificateDer<'_>],
            _: &rustls::pki_types::ServerName<'_>,
            _: &[u8],
            _: rustls::pki_types::UnixTime,
        ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
            Ok(rustls::client::danger::ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
        }
    }

    #[tokio::test]
    async fn finding_17_reviews_are_for_callers_with_a_certificate_of_the_api_server() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let (made, other) = (clients::tests::Made::authority(), clients::tests::Made::authority());
        let file = dir.path().join("clients.crt");
        std::fs::write(&file, &made.ca).unwrap();
        let known = clients::Clients::load(&file, &[]).unwrap();
        let gates = Features::default().with(api::features::FEDERATED_QUOTA_ENFORCEMENT, true);
        let settings = admission::Settings { features: gates, ..admission::Settings::default() };
        let reviewer = review::Reviewer::new(settings, Arc::default(), Callers::Certified(known)).unwrap();
        let certificates =
            certificates::load_or_create(&dir.path().join("certs"), "tls.crt", "tls.key", &[]).unwrap();
        let tls = certificates.server("1.3", Some(clients::Clients::verifier())).unwrap();
        let stop = CancellationToken::new();
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let (address, serving) = listen::https(local, tls, Arc::new(reviewer), stop.clone()).await.unwrap();

        let path = "/validate-resourcebinding";
        assert_eq!(post(address, path, None).await, "HTTP/1.1 401 Unauthorized");
        let strange = Some(other.client("kube-apiserver"));
        assert_eq!(post(address, path, strange).await, "HTTP/1.1 401 Unauthorized");
        let known = Some(made.client("kube-apiserver"));
        assert_eq!(post(address, path, known).await, "HTTP/1.1 200 OK");
        assert_eq!(
            post(address, "/convert", None).await,
            "HTTP/1.1 200 OK",
            "kube-apiserver shows none here"
        );
        let counted = runtime::metrics::render();
        for (code, count) in [(401, 2), (200, 1)] {
            let line = format!(
                r#"controller_runtime_webhook_requests_total{{webhook="{path}",code="{code}"}} {count}"#
            );
            assert!(counted.contains(&line), "{line}");
        }
        stop.cancel();
        serving.await.unwrap();
    }

    #[test]
    fn health_may_be_switched_off() {
        assert_eq!(probe_address("0").unwrap(), None);
        assert_eq!(probe_address(":8000").unwrap(), Some("0.0.0.0:8000".parse().unwrap()));
        assert!(probe_address("somewhere").is_err());
    }
}
