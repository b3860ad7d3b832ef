//! The minimum version of TLS for connections to members.
//!
//! The client library makes the connections and accepts TLS 1.2. If a newer version is required, each new
//! connection is checked and closed if its version is older; by then nothing has been sent on it, neither a
//! token nor a request.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Uri;
use hyper_rustls::MaybeHttpsStream;
use rustls::ProtocolVersion;
use tower::{BoxError, Service};

/// The minimum version of TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OldestTls {
    #[default]
    V1_2,
    V1_3,
}

impl std::str::FromStr for OldestTls {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1.2" => Ok(Self::V1_2),
            "1.3" => Ok(Self::V1_3),
            _ => Err("it must be 1.2 or 1.3".to_owned()),
        }
    }
}

/// A member supports only an older version.
#[derive(Debug, thiserror::Error)]
#[error("the member does not speak TLS 1.3")]
pub struct TooOld;

impl OldestTls {
    /// Returns a connector whose connections are new enough.
    pub(crate) fn of<C>(self, inner: C) -> NewEnough<C> {
        NewEnough { inner, oldest: self }
    }

    fn check<T>(self, stream: &MaybeHttpsStream<T>) -> Result<(), TooOld> {
        let MaybeHttpsStream::Https(stream) = stream else { return Ok(()) };
        let (_, session) = stream.inner().get_ref();
        match self {
            Self::V1_3 if session.protocol_version() != Some(ProtocolVersion::TLSv1_3) => Err(TooOld),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct NewEnough<C> {
    inner: C,
    oldest: OldestTls,
}

impl<C, T> Service<Uri> for NewEnough<C>
where
    C: Service<Uri, Response = MaybeHttpsStream<T>, Error = BoxError>,
    C::Future: Send + 'static,
    T: Send + 'static,
{
    type Response = MaybeHttpsStream<T>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let (connecting, oldest) = (self.inner.call(address), self.oldest);
        Box::pin(async move {
            let stream = connecting.await?;
            oldest.check(&stream)?;
            Ok(stream)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::Config;
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::lasting;

    /// Serves one connection in a version of TLS; returns the address, and how many bytes of a request arrived.
    async fn serve(
        version: &'static rustls::SupportedProtocolVersion,
    ) -> (Uri, tokio::task::JoinHandle<usize>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = rustls::ServerConfig::builder_with_protocol_versions(&[version])
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
            let Ok(mut stream) = acceptor.accept(stream).await else { return 0 };
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).await.unwrap_or(0);
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            let _ = stream.write_all(answer.as_bytes()).await;
            read
        });
        (address, serving)
    }

    #[tokio::test]
    async fn a_member_that_speaks_an_older_version_is_told_nothing() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (older, newer) = (&rustls::version::TLS12, &rustls::version::TLS13);
        for (oldest, version, works) in [
            (OldestTls::V1_2, older, true),
            (OldestTls::V1_2, newer, true),
            (OldestTls::V1_3, newer, true),
            (OldestTls::V1_3, older, false),
        ] {
            let (address, serving) = serve(version).await;
            let mut config = Config::new(address);
            config.accept_invalid_certs = true;
            let client = lasting::client(&config, None, oldest).unwrap();
            let request = http::Request::get("/version").body(kube::client::Body::empty()).unwrap();
            let answer = client.send(request).await;
            assert_eq!(answer.is_ok(), works, "{oldest:?} {version:?}: {answer:?}");
            drop((answer, client));
            assert_eq!(serving.await.unwrap() > 0, works, "{oldest:?} {version:?}");
        }
    }
}
