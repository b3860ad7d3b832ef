//! Whom an outgoing TLS connection trusts, as Go decides it, and Go's words for a refusal.
//!
//! In: the authorities that a configuration names. Out: what rustls asks about the certificate of the other side. It makes no
//! connections. The API server calls admission webhooks and aggregated servers with it, the controllers interpreter webhooks.

use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, RootCertStore};

/// The algorithms of a connection.
pub type Provider = Arc<rustls::crypto::CryptoProvider>;

/// The methods by which a verifier of rustls, of servers or of clients, checks that the other side holds the key of its
/// certificate: with the algorithms of the verifier's field `provider`.
#[macro_export]
macro_rules! signatures_by_provider {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &::rustls::pki_types::CertificateDer<'_>,
            signature: &::rustls::DigitallySignedStruct,
        ) -> Result<::rustls::client::danger::HandshakeSignatureValid, ::rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            ::rustls::crypto::verify_tls12_signature(message, cert, signature, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &::rustls::pki_types::CertificateDer<'_>,
            signature: &::rustls::DigitallySignedStruct,
        ) -> Result<::rustls::client::danger::HandshakeSignatureValid, ::rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            ::rustls::crypto::verify_tls13_signature(message, cert, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<::rustls::SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

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

    /// Returns whether anybody can prove anything: a bundle may have no certificate in it.
    pub fn is_usable(&self) -> bool {
        match self {
            Self::Bundle(pem) => {
                certificates(pem).into_iter().any(|cert| RootCertStore::empty().add(cert).is_ok())
            }
            Self::System | Self::Anyone => true,
        }
    }
}

/// Returns who checks the certificate of the other side.
///
/// # Errors
/// If rustls cannot use the authorities.
pub fn verifier(trust: &Trust, provider: Provider) -> Result<Arc<dyn ServerCertVerifier>, rustls::Error> {
    match trust {
        Trust::Anyone => Ok(Arc::new(Credulous { provider })),
        Trust::System => of_authorities(system_roots().clone(), provider),
        Trust::Bundle(pem) => of_authorities(certificates(pem), provider),
    }
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).flatten().collect()
}

fn system_roots() -> &'static Vec<CertificateDer<'static>> {
    static ROOTS: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
    ROOTS.get_or_init(|| rustls_native_certs::load_native_certs().certs)
}

fn of_authorities(
    trusted: Vec<CertificateDer<'static>>,
    provider: Provider,
) -> Result<Arc<dyn ServerCertVerifier>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for cert in &trusted {
        // One that cannot be used must not spoil the others, as in Go.
        let _ = roots.add(cert.clone());
    }
    if roots.is_empty() {
        return Ok(Arc::new(Nobody { provider }));
    }
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    Ok(Arc::new(Pinned { inner, trusted, provider }))
}

/// Trusts authorities, and also a certificate that stands in the bundle itself: self-signed webhooks are common, Go
/// takes them, and webpki would not.
#[derive(Debug)]
struct Pinned {
    inner: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
    provider: Provider,
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

    signatures_by_provider!();
}

/// Checks signatures but not who signed: `insecureSkipTLSVerify`. And its opposite, for a bundle without a usable
/// certificate.
macro_rules! fixed_verdict {
    ($name:ident, $verdict:expr) => {
        #[derive(Debug)]
        struct $name {
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

            signatures_by_provider!();
        }
    };
}

fixed_verdict!(Credulous, Ok(ServerCertVerified::assertion()));
fixed_verdict!(Nobody, Err(CertificateError::UnknownIssuer.into()));

/// Says in Go's words why a handshake failed.
pub fn go_words(error: &std::io::Error, name: &ServerName<'_>) -> String {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A serving certificate that is its own authority, as `openssl req -x509` makes it.
    fn self_signed(name: &str) -> rcgen::Certificate {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        params.self_signed(&key).expect("a certificate")
    }

    #[test]
    fn a_certificate_in_the_bundle_is_trusted_as_long_as_it_is_valid_and_for_its_name() {
        let (hook, other) = (self_signed("hook.default.svc"), self_signed("hook.default.svc"));
        let in_2025 = UnixTime::since_unix_epoch(Duration::from_secs(1_750_000_000));
        let in_2035 = UnixTime::since_unix_epoch(Duration::from_secs(2_060_000_000));
        let cases = [
            ("its own authority", &hook, hook.pem(), "hook.default.svc", in_2025, true),
            (
                "one of several",
                &hook,
                format!("{}{}", other.pem(), hook.pem()),
                "hook.default.svc",
                in_2025,
                true,
            ),
            ("another certificate of that name", &hook, other.pem(), "hook.default.svc", in_2025, false),
            ("another name", &hook, hook.pem(), "other.default.svc", in_2025, false),
            ("too late", &hook, hook.pem(), "hook.default.svc", in_2035, false),
            ("an empty bundle", &hook, "x".to_owned(), "hook.default.svc", in_2025, false),
        ];
        for (case, presented, bundle, name, now, expected) in cases {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let trust = Trust::from_bundle(Some(bundle.into_bytes()));
            let verifier = verifier(&trust, provider).expect("a verifier");
            let name = ServerName::try_from(name).expect("a name");
            let verified = verifier.verify_server_cert(presented.der(), &[], &name, &[], now);
            assert_eq!(verified.is_ok(), expected, "{case}: {verified:?}");
        }
    }

    #[test]
    fn a_bundle_without_a_certificate_is_of_no_use() {
        assert!(Trust::from_bundle(Some(self_signed("a").pem().into_bytes())).is_usable());
        assert!(!Trust::from_bundle(Some(b"x".to_vec())).is_usable());
        assert!(Trust::from_bundle(None).is_usable());
    }
}
