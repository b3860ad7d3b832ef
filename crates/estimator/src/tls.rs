//! How the way to an estimator is secured: plain text without a CA, as upstream, else TLS with an optional client
//! certificate. The client's certificates are read and checked as those of the control plane are: by `kube`. The service has
//! its own configuration: TLS 1.3, and callers that have to show a certificate where an authority for them is given.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kube::client::ConfigExt as _;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Files, by upstream's flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// `--scheduler-estimator-ca-file`
    pub ca: Option<PathBuf>,
    /// `--scheduler-estimator-cert-file`
    pub certificate: Option<PathBuf>,
    /// `--scheduler-estimator-key-file`
    pub key: Option<PathBuf>,
    /// `--insecure-skip-estimator-verify`
    pub skip_verification: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}", path.display())]
    File { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("{} contains no certificate", .0.display())]
    NoCertificate(PathBuf),
    #[error("cannot set up TLS to estimators")]
    Setup(#[source] Box<kube::Error>),
    #[error("cannot set up TLS of the estimator: {0}")]
    Server(String),
}

impl Tls {
    /// Returns the configuration of connections; none for plain text.
    pub fn client_config(&self) -> Result<Option<Arc<ClientConfig>>, Error> {
        if self.ca.is_none() && !self.skip_verification {
            return Ok(None);
        }
        // Only what concerns TLS is taken from it; the address means nothing.
        let mut config = kube::Config::new(http::Uri::from_static("https://estimator"));
        config.accept_invalid_certs = self.skip_verification;
        config.root_cert = Some(self.authorities()?);
        if let (Some(certificate), Some(key)) = (&self.certificate, &self.key) {
            config.auth_info.client_certificate = Some(certificate.to_string_lossy().into_owned());
            config.auth_info.client_key = Some(key.to_string_lossy().into_owned());
        }
        let mut config = config.rustls_client_config().map_err(|error| Error::Setup(Box::new(error)))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Some(Arc::new(config)))
    }

    fn authorities(&self) -> Result<Vec<Vec<u8>>, Error> {
        let Some(path) = &self.ca else { return Ok(Vec::new()) };
        let all = certificates(path)?;
        Ok(all.iter().map(|certificate| certificate.to_vec()).collect())
    }
}

/// Files of the service, by upstream's flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerTls {
    /// `--grpc-auth-cert-file`
    pub certificate: Option<PathBuf>,
    /// `--grpc-auth-key-file`
    pub key: Option<PathBuf>,
    /// `--grpc-client-ca-file`
    pub client_ca: Option<PathBuf>,
    /// `--insecure-skip-grpc-client-verify`
    pub skip_client_verification: bool,
}

impl ServerTls {
    /// Returns the configuration of the service; none for plain text. Callers have to show a certificate of the authority, if
    /// there is one and it is not to be skipped. Versions before TLS 1.3 are not spoken, as upstream.
    ///
    /// # Errors
    /// If a file cannot be read, or certificate and key do not belong together.
    pub fn server_config(&self) -> Result<Option<Arc<ServerConfig>>, Error> {
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else { return Ok(None) };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let failed = |error: rustls::Error| Error::Server(error.to_string());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed)?;
        let builder = match self.client_ca.as_ref().filter(|_| !self.skip_client_verification) {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(failed)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| Error::Server(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let key =
            PrivateKeyDer::from_pem_file(key).map_err(|source| Error::File { path: key.clone(), source })?;
        let mut config = builder.with_single_cert(certificates(certificate)?, key).map_err(failed)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Some(Arc::new(config)))
    }
}

/// Reads the certificates of a file; there has to be one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let read = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let all: Vec<CertificateDer<'static>> = read.collect::<Result<_, _>>().map_err(failed)?;
    if all.is_empty() { Err(Error::NoCertificate(path.to_owned())) } else { Ok(all) }
}
