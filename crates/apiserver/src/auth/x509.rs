//! Client certificates: CN is the user, O are the groups.
//!
//! The handshake takes any certificate whose key the client holds; whether we trust it is decided per request, so
//! that a bad one gets a proper 401 instead of a broken connection.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};

use super::User;

/// Accepts every certificate in the handshake and judges it later.
#[derive(Debug)]
pub struct Lenient {
    provider: Arc<CryptoProvider>,
}

impl Lenient {
    pub fn new(provider: Arc<CryptoProvider>) -> Self {
        Self { provider }
    }
}

impl ClientCertVerifier for Lenient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
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
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Judges client certificates against a CA.
#[derive(Debug, Clone)]
pub struct Judge {
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Judge {
    pub fn new(ca_pem: &str, provider: Arc<CryptoProvider>) -> Result<Self, rustls::Error> {
        use rustls::pki_types::pem::PemObject;
        let mut roots = RootCertStore::empty();
        for cert in CertificateDer::pem_slice_iter(ca_pem.as_bytes()).flatten() {
            roots.add(cert)?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(Self { verifier })
    }

    /// Returns who the certificate names, if we trust it now.
    pub fn identify(&self, chain: &[CertificateDer<'_>]) -> Option<User> {
        let (leaf, intermediates) = chain.split_first()?;
        self.verifier.verify_client_cert(leaf, intermediates, UnixTime::now()).ok()?;
        let (_, cert) = x509_parser::parse_x509_certificate(leaf).ok()?;
        let name = cert.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = cert
            .subject()
            .iter_organization()
            .filter_map(|group| group.as_str().ok())
            .map(str::to_owned)
            .collect();
        let mut user = User { name, groups, ..User::default() };
        user.extra.insert(
            "authentication.kubernetes.io/credential-id".to_owned(),
            vec![format!("X509SHA256={}", hex::encode(Sha256::digest(leaf)))],
        );
        Some(user.authenticated())
    }
}
