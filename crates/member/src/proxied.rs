//! Clients that connect through a proxy, for cases that the client library does not support: headers for the
//! proxy (`spec.proxyHeader` of a Cluster) and a minimum version of TLS.
//!
//! The headers are sent to the proxy with each request for a connection, never to the member. A value is a list, separated by
//! commas, and every part becomes a separate header, as upstream. A SOCKS proxy has no headers, so they are ignored there.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::{Layer, ServiceBuilder};

use crate::lasting;
use crate::limit::LimitLayer;
use crate::tls::OldestTls;

/// Makes a client that connects through a proxy.
pub(crate) fn client(
    config: &Config,
    proxy: Uri,
    headers: &BTreeMap<String, String>,
    limits: Option<&LimitLayer>,
    oldest: OldestTls,
) -> Result<Client, kube::Error> {
    let mut plain = lasting::connector();
    plain.set_connect_timeout(config.connect_timeout);
    if proxy.scheme_str() == Some("socks5") {
        let way = SocksV5::new(proxy, plain);
        return stack(config, oldest.of(config.rustls_https_connector_with_connector(way)?), limits);
    }
    let mut told = read(headers);
    if let Some(credentials) = credentials(&proxy) {
        told.entry(http::header::PROXY_AUTHORIZATION).or_insert(credentials);
    }
    if proxy.scheme_str() == Some("https") {
        let to_proxy = config.rustls_https_connector_with_connector(plain)?;
        let tunnel = Tunnel::new(proxy, to_proxy).with_headers(told);
        stack(config, oldest.of(config.rustls_https_connector_with_connector(tunnel)?), limits)
    } else {
        let tunnel = Tunnel::new(proxy, plain).with_headers(told);
        stack(config, oldest.of(config.rustls_https_connector_with_connector(tunnel)?), limits)
    }
}

/// Adds to a connector what every client needs: the address of the member, and our token.
pub(crate) fn stack<C>(
    config: &Config,
    connector: C,
    limits: Option<&LimitLayer>,
) -> Result<Client, kube::Error>
where
    C: hyper_util::client::legacy::connect::Connect + Clone + Send + Sync + 'static,
{
    let connections = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(tower::BoxError::from)
        .service(connections.build::<_, Body>(connector));
    let namespace = config.default_namespace.clone();
    Ok(match limits {
        Some(limits) => Client::new(limits.layer(service), namespace),
        None => Client::new(service, namespace),
    })
}

/// Invalid headers are left out: the API server has accepted them, and the others may still work.
fn read(given: &BTreeMap<String, String>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, values) in given {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
        for value in values.split(',') {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.append(name.clone(), value);
            }
        }
    }
    headers
}

/// Returns the user name and password in the address of a proxy.
fn credentials(proxy: &Uri) -> Option<HeaderValue> {
    let (user, _) = proxy.authority()?.as_str().rsplit_once('@')?;
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(unescaped(user)))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Unescapes a part of an address.
fn unescaped(text: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, after @ ..] = rest {
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let escaped = match (first, after) {
            (b'%', [high, low, after @ ..]) => digit(high).zip(digit(low)).map(|pair| (pair, after)),
            _ => None,
        };
        let (byte, after) = escaped.map_or((*first, after), |((high, low), after)| (high << 4 | low, after));
        out.push(byte);
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_value_is_a_header_of_its_own() {
        let given = [("X-Tenant", "a,b"), ("bad name", "c"), ("X-Bad", "a\nb")];
        let headers = read(&given.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        assert_eq!(headers.get_all("x-tenant").iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(headers.len(), 2);
    }

    #[test]
    fn a_name_in_the_address_is_shown_to_the_proxy() {
        let value = credentials(&Uri::from_static("http://user:secret@proxy:3128")).unwrap();
        assert_eq!(value, "Basic dXNlcjpzZWNyZXQ=");
        let escaped = credentials(&Uri::from_static("http://user:a%40b%3%zz@proxy:3128")).unwrap();
        assert_eq!(escaped, format!("Basic {}", STANDARD.encode("user:a@b%3%zz")));
        assert!(credentials(&Uri::from_static("http://proxy:3128")).is_none());
    }

    /// Accepts one connection and returns the request to the proxy on it.
    async fn asked(listener: tokio::net::TcpListener) -> String {
        use tokio::io::{AsyncReadExt, BufReader};
        let (stream, _) = listener.accept().await.unwrap();
        let (mut stream, mut text) = (BufReader::new(stream), Vec::new());
        while !text.ends_with(b"\r\n\r\n") {
            text.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(text).unwrap().to_ascii_lowercase()
    }

    #[tokio::test]
    async fn the_proxy_hears_the_headers_with_the_wish_for_a_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let config = Config::new(Uri::from_static("http://member:6443"));
        let headers = BTreeMap::from([("X-Tenant".to_owned(), "a,b".to_owned())]);
        let client = client(&config, proxy, &headers, None, OldestTls::V1_3).unwrap();
        let asking = tokio::spawn(async move { client.apiserver_version().await });
        let text = asked(listener).await;
        assert!(text.starts_with("connect member:6443 http/1.1\r\n"), "{text}");
        assert!(text.contains("x-tenant: a\r\n") && text.contains("x-tenant: b\r\n"), "{text}");
        // The proxy closes the connection without an answer, and so does the client.
        assert!(asking.await.unwrap().is_err());
    }
}
