//! Servers over TLS that tests play themselves: a free port, and a certificate that signs itself.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A server that has not begun to answer.
pub struct Listener {
    pub address: SocketAddr,
    /// What clients have to trust, as PEM.
    pub certificate: String,
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener {
    /// Listens on a free port. The certificate is valid for 127.0.0.1 and for these names.
    pub async fn bind(names: &[&str], protocols: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).expect("valid names");
        params.subject_alt_names.push(rcgen::SanType::IpAddress([127, 0, 0, 1].into()));
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("usual protocol versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate")],
                PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("a key"),
            )
            .expect("a certificate with its key");
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        Self { address, certificate, listener, acceptor: TlsAcceptor::from(Arc::new(config)) }
    }

    /// Answers every connection in this way, until the test ends.
    pub fn serve<F>(self, answer: impl Fn(TlsStream<TcpStream>) -> F + Clone + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { listener, acceptor, .. } = self;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer(stream).await;
                    }
                });
            }
        });
    }
}
