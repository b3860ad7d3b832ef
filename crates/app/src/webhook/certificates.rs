//! The certificate of the webhook server, and the authority that API servers must trust.
//!
//! Existing files in the directory are used. If there are none, an authority and a certificate are created; to replace both,
//! delete the directory.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use apiserver::auth::pki::write_private;
use apiserver::auth::x509::Lenient;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;

const NAMES: [&str; 7] = [
    "localhost",
    "127.0.0.1",
    "::1",
    "karmada-webhook",
    "karmada-webhook.karmada-system",
    "karmada-webhook.karmada-system.svc",
    "karmada-webhook.karmada-system.svc.cluster.local",
];

/// A certificate with its key and its authority, as PEM.
pub(crate) struct Certificates {
    pub(crate) authority: String,
    certificate: String,
    key: String,
}

pub(crate) fn load_or_create(
    dir: &Path,
    certificate_file: &str,
    key_file: &str,
    names: &[String],
) -> anyhow::Result<Certificates> {
    let (certificate_path, key_path) = (dir.join(certificate_file), dir.join(key_file));
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    };
    match (certificate_path.exists(), key_path.exists()) {
        (true, true) => {
            let certificate = read(&certificate_path)?;
            // A certificate without a separate authority is self-signed, or ends with its authority.
            let authority = read(&dir.join("ca.crt")).unwrap_or_else(|_| certificate.clone());
            Ok(Certificates { authority, certificate, key: read(&key_path)? })
        }
        (false, false) => {
            let made = make(names)?;
            std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
            write_private(&dir.join("ca.crt"), made.authority.as_bytes())?;
            write_private(&key_path, made.key.as_bytes())?;
            write_private(&certificate_path, made.certificate.as_bytes())?;
            Ok(made)
        }
        _ => bail!(
            "{} and {} belong together, but only one of them exists",
            certificate_path.display(),
            key_path.display()
        ),
    }
}

fn make(names: &[String]) -> anyhow::Result<Certificates> {
    let names: Vec<String> =
        NAMES.iter().map(|name| (*name).to_owned()).chain(names.iter().cloned()).collect();
    let cli::serving::Serving { authority, certificate, key } =
        cli::serving::make("karmada-webhook", &names)?;
    Ok(Certificates { authority, certificate, key })
}

/// Returns a TLS verifier that requests certificates without requiring them: they are checked for each request.
pub(crate) fn lenient() -> Arc<dyn ClientCertVerifier> {
    Arc::new(Lenient::new(Arc::new(rustls::crypto::ring::default_provider())))
}

impl Certificates {
    /// Returns the TLS configuration. Callers are asked for certificates if there is an authority to check them.
    pub(crate) fn server(
        &self,
        oldest: &str,
        clients: Option<Arc<dyn ClientCertVerifier>>,
    ) -> anyhow::Result<Arc<rustls::ServerConfig>> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<_, _>>()
            .context("the serving certificate is no PEM")?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).context("the serving key is no PEM")?;
        let versions: &[&rustls::SupportedProtocolVersion] = if oldest == "1.2" {
            &[&rustls::version::TLS13, &rustls::version::TLS12]
        } else {
            &[&rustls::version::TLS13]
        };
        let builder = rustls::ServerConfig::builder_with_protocol_versions(versions);
        let builder = match clients {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config =
            builder.with_single_cert(chain, key).context("certificate and key do not fit together")?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_certificates_are_used_again() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("certs");
        let first = load_or_create(&dir, "tls.crt", "tls.key", &["host.example.com".to_owned()]).unwrap();
        let second = load_or_create(&dir, "tls.crt", "tls.key", &[]).unwrap();
        assert_eq!(first.certificate, second.certificate);
        assert_eq!(first.authority, second.authority);
        second.server("1.3", None).unwrap();
        std::fs::remove_file(dir.join("tls.key")).unwrap();
        assert!(load_or_create(&dir, "tls.crt", "tls.key", &[]).is_err());
    }
}
