//! Reviews are answered only for callers with a certificate of the API server.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use apiserver::auth::x509::{Authority, Lenient};
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;

/// The accepted callers.
#[derive(Debug)]
pub(super) struct Clients {
    authority: Authority,
    /// Common names; empty if every certificate of the authority is accepted.
    names: Vec<String>,
}

impl Clients {
    /// Reads the certificates of the authority from a file.
    pub(super) fn load(file: &Path, names: &[String]) -> anyhow::Result<Self> {
        let shown = file.display();
        let authority =
            std::fs::read_to_string(file).with_context(|| format!("cannot read --client-ca-file {shown}"))?;
        let authority = Authority::new(&authority, Arc::new(rustls::crypto::ring::default_provider()))
            .with_context(|| format!("--client-ca-file {shown} holds no certificate of an authority"))?;
        Ok(Self { authority, names: names.to_vec() })
    }

    /// Returns a TLS verifier that requests certificates without requiring them, since health probes and conversions have none.
    /// They are checked for each request.
    pub(super) fn verifier() -> Arc<dyn ClientCertVerifier> {
        Arc::new(Lenient::new(Arc::new(rustls::crypto::ring::default_provider())))
    }

    /// Returns whether a certificate is from an accepted caller, now.
    pub(super) fn know(&self, chain: &[CertificateDer<'_>]) -> bool {
        let allowed = |name: &String| self.names.is_empty() || self.names.contains(name);
        self.authority.identify(chain).is_some_and(|user| allowed(&user.name))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };

    use super::*;

    /// An authority, and the certificates that it signs.
    pub(crate) struct Made {
        pub(crate) ca: String,
        issuer: Issuer<'static, KeyPair>,
    }

    impl Made {
        pub(crate) fn authority() -> Self {
            let mut params = CertificateParams::new(Vec::new()).expect("no names");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, "clients");
            let key = KeyPair::generate().expect("a key");
            let ca = params.self_signed(&key).expect("a certificate").pem();
            let issuer = Issuer::from_ca_cert_pem(&ca, key).expect("an issuer");
            Self { ca, issuer }
        }

        /// Returns a certificate and its key.
        pub(crate) fn client(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
            let mut params = CertificateParams::new(Vec::new()).expect("no names");
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().expect("a key");
            (params.signed_by(&key, &self.issuer).expect("a certificate"), key)
        }
    }

    #[test]
    fn only_the_names_of_the_authority_that_are_allowed_are_known() {
        let (made, other) = (Made::authority(), Made::authority());
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("ca.crt");
        std::fs::write(&file, &made.ca).expect("written");
        let all = Clients::load(&file, &[]).expect("an authority");
        let one = Clients::load(&file, &["kube-apiserver".to_owned()]).expect("an authority");
        let shown = |by: &Made, name: &str| vec![by.client(name).0.der().clone()];
        assert!(all.know(&shown(&made, "anybody")) && all.know(&shown(&made, "kube-apiserver")));
        assert!(one.know(&shown(&made, "kube-apiserver")) && !one.know(&shown(&made, "anybody")));
        assert!(!all.know(&shown(&other, "kube-apiserver")) && !all.know(&[]));
        std::fs::write(&file, "").expect("written");
        let error = format!("{:#}", Clients::load(&file, &[]).expect_err("no authority"));
        assert!(error.contains("holds no certificate of an authority"), "{error}");
    }
}
