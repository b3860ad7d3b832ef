//! Whom an outgoing connection trusts.

use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::auth::pki::Pair;

/// How the other side proves who it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Trust {
    /// By a certificate of one of these authorities, PEM.
    Bundle(Vec<u8>),
    /// By a certificate of an authority that this machine trusts.
    System,
    /// Not at all.
    Anyone,
}

impl Trust {
    /// Returns the trust that a `caBundle` stands for; none means the machine's own authorities.
    pub fn from_bundle(bundle: Option<Vec<u8>>) -> Self {
        match bundle {
            Some(pem) if !pem.is_empty() => Self::Bundle(pem),
            _ => Self::System,
        }
    }
}

/// Returns how connections are set up; `http2` offers it to the other side.
pub(super) fn config(
    trust: &Trust,
    identity: Option<&Pair>,
    http2: bool,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Anyone => Arc::new(Credulous { schemes: schemes(&provider), provider: provider.clone() }),
        Trust::System => verifier(system_roots().clone(), provider.clone())?,
        Trust::Bundle(pem) => {
            let certs = CertificateDer::pem_slice_iter(pem).flatten().collect();
            verifier(certs, provider.clone())?
        }
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let bad = |error: rustls::pki_types::pem::Error| rustls::Error::General(error.to_string());
            let certs = CertificateDer::pem_slice_iter(pair.cert.as_bytes())
                .collect::<Result<_, _>>()
                .map_err(bad)?;
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(bad)?;
            builder.with_client_auth_cert(certs, key)?
        }
    };
    config.alpn_protocols.extend(http2.then(|| b"h2".to_vec()));
    config.alpn_protocols.push(b"http/1.1".to_vec());
    Ok(Arc::new(config))
}

fn system_roots() -> &'static Vec<CertificateDer<'static>> {
    static ROOTS: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
    ROOTS.get_or_init(|| rustls_native_certs::load_native_certs().certs)
}

type Provider = Arc<rustls::crypto::CryptoProvider>;

fn schemes(provider: &Provider) -> Vec<SignatureScheme> {
    provider.signature_verification_algorithms.supported_schemes()
}

fn verifier(
    trusted: Vec<CertificateDer<'static>>,
    provider: Provider,
) -> Result<Arc<dyn ServerCertVerifier>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for cert in &trusted {
        // One that cannot be used must not spoil the others, as in Go.
        let _ = roots.add(cert.clone());
    }
    if roots.is_empty() {
        return Ok(Arc::new(Nobody { schemes: schemes(&provider), provider }));
    }
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    Ok(Arc::new(Pinned { inner, trusted }))
}

/// Trusts authorities, and also a certificate that stands in the bundle itself: self-signed webhooks are common, Go
/// takes them, and webpki would not.
#[derive(Debug)]
struct Pinned {
    inner: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.inner.verify_server_cert(leaf, intermediates, name, ocsp, now);
        if verified.is_ok() || !self.trusted.iter().any(|known| known.as_ref() == leaf.as_ref()) {
            return verified;
        }
        let parsed = rustls::server::ParsedCertificate::try_from(leaf)?;
        rustls::client::verify_server_name(&parsed, name)?;
        let bad = || rustls::Error::InvalidCertificate(CertificateError::BadEncoding);
        let (_, cert) = x509_parser::parse_x509_certificate(leaf).map_err(|_| bad())?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let validity = cert.validity();
        if now < validity.not_before.timestamp() || now > validity.not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Checks signatures but not who signed: `insecureSkipTLSVerify`. And its opposite, for a bundle without a usable
/// certificate.
macro_rules! fixed_verdict {
    ($name:ident, $verdict:expr) => {
        #[derive(Debug)]
        struct $name {
            schemes: Vec<SignatureScheme>,
            provider: Provider,
        }

        impl ServerCertVerifier for $name {
            fn verify_server_cert(
                &self,
                _: &CertificateDer<'_>,
                _: &[CertificateDer<'_>],
                _: &ServerName<'_>,
                _: &[u8],
                _: UnixTime,
            ) -> Result<ServerCertVerified, rustls::Error> {
                $verdict
            }

            fn verify_tls12_signature(
                &self,
                message: &[u8],
                cert: &CertificateDer<'_>,
                signature: &DigitallySignedStruct,
            ) -> Result<HandshakeSignatureValid, rustls::Error> {
                let algorithms = &self.provider.signature_verification_algorithms;
                rustls::crypto::verify_tls12_signature(message, cert, signature, algorithms)
            }

            fn verify_tls13_signature(
                &self,
                message: &[u8],
                cert: &CertificateDer<'_>,
                signature: &DigitallySignedStruct,
            ) -> Result<HandshakeSignatureValid, rustls::Error> {
                let algorithms = &self.provider.signature_verification_algorithms;
                rustls::crypto::verify_tls13_signature(message, cert, signature, algorithms)
            }

            fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
                self.schemes.clone()
            }
        }
    };
}

fixed_verdict!(Credulous, Ok(ServerCertVerified::assertion()));
fixed_verdict!(Nobody, Err(CertificateError::UnknownIssuer.into()));

/// Says in Go's words why a handshake failed.
pub(super) fn go_words(error: &std::io::Error, name: &ServerName<'_>) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let failed = "tls: failed to verify certificate: x509:";
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => match why {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("{failed} certificate signed by unknown authority")
            }
            CertificateError::NotValidForNameContext { expected: _, presented } => {
                let plain = |text: &String| {
                    let inner = text.split_once('(').map_or(text.as_str(), |(_, rest)| rest);
                    inner.trim_end_matches(')').trim_matches('"').to_owned()
                };
                let valid: Vec<String> = presented.iter().map(plain).collect();
                match name {
                    ServerName::IpAddress(_) if valid.is_empty() => format!(
                        "{failed} cannot validate certificate for {} because it doesn't contain any IP SANs",
                        name.to_str()
                    ),
                    _ => {
                        format!(
                            "{failed} certificate is valid for {}, not {}",
                            valid.join(", "),
                            name.to_str()
                        )
                    }
                }
            }
            CertificateError::NotValidForName => {
                format!("{failed} certificate is not valid for {}", name.to_str())
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                format!("{failed} certificate has expired or is not yet valid")
            }
            other => format!("{failed} {other:?}"),
        },
        Some(rustls::Error::InvalidMessage(_)) => {
            "tls: first record does not look like a TLS handshake".to_owned()
        }
        Some(other) => format!("tls: {other}"),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None if error.kind() == std::io::ErrorKind::ConnectionReset => {
            "read: connection reset by peer".to_owned()
        }
        None => error.to_string(),
    }
}
