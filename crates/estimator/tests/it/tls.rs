//! The same over TLS: who is trusted, who has to show a certificate, and what happens when they do not match.

use std::path::PathBuf;

use estimator::tls::{self, Tls};
use estimator::{Client, Error, Options};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::client::{half_a_core, question};
use crate::service::{Estimator, control_plane, serve};

/// An authority with its certificate in a file.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Signs a certificate for this name; returns it with its key, both PEM.
    pub(crate) fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// The same as files, for a client.
    pub(crate) fn issue_files(&self, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = self.issue(name);
        let files = ["cert", "key"].map(|file| self.dir.path().join(format!("{name}-{file}.pem")));
        std::fs::write(&files[0], certificate).unwrap();
        std::fs::write(&files[1], key).unwrap();
        files.into()
    }

    /// How an estimator serves that this authority vouches for.
    fn server(&self, name: &str) -> ServerTlsConfig {
        let (certificate, key) = self.issue(name);
        ServerTlsConfig::new().identity(Identity::from_pem(certificate, key))
    }
}

/// Asks an estimator that serves like this; whoever cannot be connected to or does not answer is an error.
async fn ask(server: ServerTlsConfig, tls: Tls) -> Result<i32, Error> {
    let port = serve(Estimator::default(), Some(server)).await;
    let options = Options { tls: tls.client_config().unwrap(), ..Options::default() };
    let client = Client::new(options, control_plane(port));
    client.connect("m7").await?;
    Ok(client.max_available(&question(&["m7"], half_a_core())).await?["m7"])
}

#[tokio::test]
async fn an_estimator_of_the_trusted_authority_is_asked() {
    let authority = Authority::new();
    let tls = Tls { ca: Some(authority.file()), ..Tls::default() };
    assert_eq!(ask(authority.server("127.0.0.1"), tls).await.unwrap(), 7);
}

#[tokio::test]
async fn both_sides_can_ask_for_a_certificate() {
    let authority = Authority::new();
    let server = || {
        let clients = Certificate::from_pem(authority.issuer.pem());
        authority.server("127.0.0.1").client_ca_root(clients)
    };
    let (certificate, key) = authority.issue_files("karmada-scheduler");
    let with = Tls {
        ca: Some(authority.file()),
        certificate: Some(certificate),
        key: Some(key),
        skip_verification: false,
    };
    let without = Tls { ca: Some(authority.file()), ..Tls::default() };
    assert_eq!(ask(server(), with).await.unwrap(), 7);
    ask(server(), without).await.unwrap_err();
    let stranger = Authority::new();
    let (certificate, key) = stranger.issue_files("karmada-scheduler");
    let forged = Tls {
        ca: Some(authority.file()),
        certificate: Some(certificate),
        key: Some(key),
        skip_verification: false,
    };
    ask(server(), forged).await.unwrap_err();
}

#[tokio::test]
async fn an_estimator_of_another_authority_or_name_is_not_asked() {
    let (authority, other) = (Authority::new(), Authority::new());
    let tls = || Tls { ca: Some(authority.file()), ..Tls::default() };
    assert!(matches!(ask(other.server("127.0.0.1"), tls()).await, Err(Error::Dial { .. })));
    assert!(matches!(ask(authority.server("elsewhere.example"), tls()).await, Err(Error::Dial { .. })));
}

#[tokio::test]
async fn on_explicit_wish_anybody_is_asked() {
    let tls = Tls { skip_verification: true, ..Tls::default() };
    assert_eq!(ask(Authority::new().server("elsewhere.example"), tls).await.unwrap(), 7);
}

#[test]
fn without_an_authority_nothing_is_secured_and_a_bad_file_is_named() {
    assert!(Tls::default().client_config().unwrap().is_none());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.pem");
    let tls = Tls { ca: Some(file.clone()), ..Tls::default() };
    assert!(matches!(tls.client_config(), Err(tls::Error::File { .. })));
    std::fs::write(&file, "nothing of use").unwrap();
    assert!(matches!(tls.client_config(), Err(tls::Error::NoCertificate(path)) if path == file));
}
