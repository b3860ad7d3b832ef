//! Client certificates: CN is the user, O are the groups.
//!
//! The handshake accepts any certificate whose key the client holds. Whether we trust it is decided for each request, so that an
//! untrusted one gets a proper 401 instead of a broken connection.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DistinguishedName, RootCertStore};
use sha2::{Digest, Sha256};

use super::subject::Subject;
use super::{User, front_proxy};

/// Accepts every certificate in the handshake; it is verified later.
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

    trust::signatures_by_provider!();
}

/// The identity in a client's certificate. Verified once for each connection, since checking a signature is expensive.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// The certificate's owner.
    pub user: Option<Arc<User>>,
    /// The client is a front proxy: it names users in headers.
    pub front_proxy: bool,
    /// The client showed a certificate, trusted or not.
    pub shown: bool,
    /// When the certificate expires, in seconds.
    expires: i64,
}

impl Verdict {
    /// Returns the verdict if the certificate is still valid; otherwise that of an untrusted one.
    pub fn now(&self) -> Self {
        if !self.shown || jiff::Timestamp::now().as_second() <= self.expires {
            return self.clone();
        }
        Self { user: None, front_proxy: false, ..self.clone() }
    }
}

/// Verifies client certificates against two authorities: that of clients and that of front proxies.
#[derive(Debug, Clone)]
pub struct Judge {
    clients: Authority,
    front_proxies: Authority,
}

impl Judge {
    pub fn new(
        client_ca: &str,
        front_proxy_ca: &str,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            clients: Authority::new(client_ca, provider.clone())?,
            front_proxies: Authority::new(front_proxy_ca, provider.clone())?,
        })
    }

    pub fn judge(&self, chain: &[CertificateDer<'_>]) -> Verdict {
        let Some(leaf) = chain.first() else { return Verdict::default() };
        let expires = x509_parser::parse_x509_certificate(leaf)
            .map_or(i64::MIN, |(_, cert)| cert.validity().not_after.timestamp());
        let proxy = self.front_proxies.identify(chain);
        Verdict {
            user: self.clients.identify(chain).map(Arc::new),
            front_proxy: proxy.is_some_and(|proxy| front_proxy::ALLOWED_NAMES.contains(&proxy.name.as_str())),
            shown: true,
            expires,
        }
    }
}

/// Certificates of one authority.
#[derive(Debug, Clone)]
pub struct Authority {
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Authority {
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

    /// Returns the identity in the certificate, if we trust it now.
    pub fn identify(&self, chain: &[CertificateDer<'_>]) -> Option<User> {
        let (leaf, intermediates) = chain.split_first()?;
        self.verifier.verify_client_cert(leaf, intermediates, UnixTime::now()).ok()?;
        let (_, cert) = x509_parser::parse_x509_certificate(leaf).ok()?;
        // A subject that cannot be read completely is not used partially.
        let subject = Subject::read(cert.subject()).ok().filter(|subject| !subject.common_name.is_empty())?;
        let mut user = User { name: subject.common_name, groups: subject.organizations, ..User::default() };
        user.extra.insert(
            "authentication.kubernetes.io/credential-id".to_owned(),
            vec![format!("X509SHA256={}", hex::encode(Sha256::digest(leaf)))],
        );
        Some(user.authenticated())
    }
}
