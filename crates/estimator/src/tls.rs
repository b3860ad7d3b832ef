//! How the way to an estimator is secured: plain text without a CA, as upstream, else TLS with an optional client
//! certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

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
    #[error("cannot set up TLS to estimators")]
    Setup(#[from] rustls::Error),
}

impl Tls {
    /// Returns the configuration of connections; none for plain text.
    pub fn client_config(&self) -> Result<Option<Arc<ClientConfig>>, Error> {
        if self.ca.is_none() && !self.skip_verification {
            return Ok(None);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = if self.skip_verification {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAll(provider)))
        } else {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(self.ca.as_deref())? {
                roots.add(certificate)?;
            }
            builder.with_root_certificates(roots)
        };
        let mut config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let read = PrivateKeyDer::from_pem_file(key);
                let key = read.map_err(|source| Error::File { path: key.clone(), source })?;
                builder.with_client_auth_cert(certificates(Some(certificate))?, key)?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Some(Arc::new(config)))
    }
}

fn certificates(path: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, Error> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let failed = |source| Error::File { path: path.to_owned(), source };
    CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)
}

/// Takes whoever answers for the estimator; only on the user's explicit wish. Signatures are checked all the same.
#[derive(Debug)]
struct AcceptAll(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
