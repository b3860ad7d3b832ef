//! How outgoing connections are set up.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use trust::Trust;

use crate::auth::pki::Pair;

/// Returns how connections are set up; `http2` offers it to the other side.
pub(super) fn config(
    trust: &Trust,
    identity: Option<&Pair>,
    http2: bool,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = trust::verifier(trust, provider.clone())?;
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
