//! How the way to an estimator is secured: plain text without a CA, as upstream, else TLS with an optional client
//! certificate.
//!
//! Certificates are read and checked as those of the control plane are: by `kube`.

use std::path::PathBuf;
use std::sync::Arc;

use kube::client::ConfigExt as _;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

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
        let failed = |source| Error::File { path: path.clone(), source };
        let read = CertificateDer::pem_file_iter(path).map_err(failed)?;
        let all: Vec<CertificateDer<'_>> = read.collect::<Result<_, _>>().map_err(failed)?;
        if all.is_empty() {
            return Err(Error::NoCertificate(path.clone()));
        }
        Ok(all.iter().map(|certificate| certificate.to_vec()).collect())
    }
}
