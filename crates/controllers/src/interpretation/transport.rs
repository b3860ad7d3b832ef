//! Sends requests to webhooks: HTTPS to a URL or to a Service of the control plane, with the error messages
//! of Go's client.
//!
//! A Service is asked by its name (`<name>.<namespace>.svc`), which its certificate is checked against, at
//! the address of that Service in the control plane. The size of answers is limited, and so is what they become once they are parsed.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::config::{WebhookClientConfig, WebhookServiceReference};
use apimachinery::{names, pointer};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use trust::Trust;

/// How much of a refusing answer is shown.
const REFUSAL_LIMIT: usize = 1 << 10;
/// Longer refusals are not parsed: only their message would be shown.
const REFUSAL_PARSED: usize = 16 << 10;
/// As Go's default transport.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Idle connections that are kept for each address.
const KEEP: usize = 8;

/// Why there is no answer.
pub(super) enum Failure {
    /// The configuration names no usable address.
    Client(String),
    Call(String),
}

impl Failure {
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Client(why) => format!("could not get REST client: {why}"),
            Self::Call(why) => format!("failed to call webhook: {why}"),
        }
    }
}

type Sender = SendRequest<Full<Bytes>>;

pub(super) struct Transport {
    client: Client,
    /// Idle connections.
    idle: Mutex<HashMap<Destination, Vec<Sender>>>,
}

/// Whom to ask, where, and whom to trust.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Destination {
    host: String,
    port: u16,
    /// The Service in the control plane that tells the address.
    service: Option<(String, String)>,
    authorities: Option<Vec<u8>>,
}

impl Destination {
    /// Returns where a configuration leads, and the path there.
    fn of(config: &WebhookClientConfig) -> Result<(Self, String), String> {
        let authorities = config.ca_bundle.as_ref().map(|bundle| bundle.0.clone());
        if let Some(service) = &config.service {
            let WebhookServiceReference { namespace, name, path, port } = service;
            let port = u16::try_from(port.unwrap_or(443)).map_err(|_| "the port is not valid".to_owned())?;
            let destination = Self {
                host: format!("{name}.{namespace}.svc"),
                port,
                service: Some((namespace.clone(), name.clone())),
                authorities,
            };
            let path = path.as_deref().unwrap_or("/");
            return Ok((destination, format!("/{}", path.trim_start_matches('/'))));
        }
        let Some(url) = &config.url else {
            return Err("webhook configuration must have either service or URL".to_owned());
        };
        let uri: http::Uri = url.parse().map_err(|error| format!("Unparsable URL: {error}"))?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("https"));
        let host = host.ok_or_else(|| format!("Unparsable URL: {url:?} is not https://host[/path]"))?;
        let destination =
            Self { host: host.to_owned(), port: uri.port_u16().unwrap_or(443), service: None, authorities };
        Ok((destination, uri.path().to_owned()))
    }

    fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Returns the name that the certificate must carry.
    fn name(&self) -> Result<ServerName<'static>, String> {
        let host = self.host.trim_matches(['[', ']']).to_owned();
        ServerName::try_from(host.clone()).map_err(|_| format!("tls: invalid server name {host:?}"))
    }

    fn tls(&self) -> Result<TlsConnector, String> {
        let trust = Trust::from_bundle(self.authorities.clone());
        if !trust.is_usable() {
            return Err("unable to load root certificates: unable to parse bytes as PEM block".to_owned());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = trust::verifier(&trust, provider.clone()).map_err(|error| error.to_string())?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

impl Transport {
    pub(super) fn new(client: Client) -> Self {
        Self { client, idle: Mutex::default() }
    }

    /// Closes the connections that are kept: they may lead to hooks that are gone.
    pub(super) fn forget(&self) {
        self.idle.lock().clear();
    }

    /// Sends a request and returns the answer. `timeout` is sent to the other side, `longest` is not.
    pub(super) async fn post(
        &self,
        config: &WebhookClientConfig,
        timeout: Option<Duration>,
        longest: Duration,
        body: Bytes,
    ) -> Result<Value, Failure> {
        let (destination, mut path) = Destination::of(config).map_err(Failure::Client)?;
        if let Some(timeout) = timeout {
            path = format!("{path}?timeout={}s", timeout.as_secs());
        }
        let url = format!("https://{}{path}", destination.authority());
        let told = |why: String| Failure::Call(format!("Post \"{url}\": {why}"));
        let answer = self.send(&destination, &path, body);
        let (status, body) = tokio::time::timeout(timeout.unwrap_or(longest), answer)
            .await
            .map_err(|_| told("context deadline exceeded".to_owned()))?
            .map_err(told)?;
        if !(200..=206).contains(&status.as_u16()) {
            return Err(Failure::Call(refusal(status, &body)));
        }
        match apimachinery::json::read(&body) {
            Ok(read) if read.value.is_object() => Ok(read.value),
            Ok(_) => Err(Failure::Call("the answer is not a JSON object".to_owned())),
            Err(error) => Err(Failure::Call(format!("couldn't get version/kind; json parse error: {error}"))),
        }
    }

    async fn send(
        &self,
        destination: &Destination,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        let (mut sender, response) = loop {
            let kept = self.kept(destination);
            let fresh = kept.is_none();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.connect(destination).await?,
            };
            if sender.ready().await.is_err() {
                if fresh {
                    return Err("EOF".to_owned());
                }
                continue;
            }
            let request = Request::post(path)
                .header(header::HOST, destination.authority())
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json, */*")
                .body(Full::new(body.clone()))
                .map_err(|error| error.to_string())?;
            match sender.try_send_request(request).await {
                Ok(response) => break (sender, response),
                Err(mut failed) => {
                    // An idle connection was closed before the request was sent: it is sent on a new one.
                    let unsent = failed.take_message().is_some();
                    if fresh || !unsent {
                        return Err(go_words(&failed.into_error()));
                    }
                }
            }
        };
        let status = response.status();
        let body = member::answer::read(response.into_body()).await.map_err(|error| error.to_string())?;
        if sender.ready().await.is_ok() {
            let mut idle = self.idle.lock();
            let kept = idle.entry(destination.clone()).or_default();
            if kept.len() < KEEP {
                kept.push(sender);
            }
        }
        Ok((status, body))
    }

    fn kept(&self, destination: &Destination) -> Option<Sender> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(destination)?;
        kept.retain(|sender| !sender.is_closed());
        kept.pop()
    }

    async fn connect(&self, destination: &Destination) -> Result<Sender, String> {
        let (address, name, tls) =
            (self.address(destination).await?, destination.name()?, destination.tls()?);
        let stream = TcpStream::connect(&address).await.map_err(|error| dial_words(&address, &error))?;
        let _ = stream.set_nodelay(true);
        let stream = tokio::time::timeout(HANDSHAKE, tls.connect(name.clone(), stream))
            .await
            .map_err(|_| "net/http: TLS handshake timeout".to_owned())?
            .map_err(|error| trust::go_words(&error, &name))?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| go_words(&error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to an interpreter webhook ended");
            }
        });
        Ok(sender)
    }

    /// Returns the address to connect to.
    async fn address(&self, destination: &Destination) -> Result<String, String> {
        let Some((namespace, name)) = &destination.service else { return Ok(destination.authority()) };
        // The client writes both into a path as they are. There is no Service with such a name.
        if !names::is_path_segment(namespace) || !names::is_path_segment(name) {
            return Ok(destination.authority());
        }
        let api: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        let service = api.get_opt(name).await.map_err(|error| error.to_string())?;
        match service.and_then(|service| service.spec) {
            None => Ok(destination.authority()),
            Some(spec) => route(&spec, name, destination.port),
        }
    }
}

/// Returns the address that a Service tells.
fn route(spec: &k8s_openapi::api::core::v1::ServiceSpec, name: &str, port: u16) -> Result<String, String> {
    match spec.type_.as_deref().unwrap_or("ClusterIP") {
        "ExternalName" => Ok(format!("{}:{port}", spec.external_name.as_deref().unwrap_or_default())),
        "ClusterIP" if spec.cluster_ip.as_deref() == Some("None") => {
            Err("cannot route to service with ClusterIP \"None\"".to_owned())
        }
        "ClusterIP" | "NodePort" | "LoadBalancer" => {
            if !spec.ports.iter().flatten().any(|each| each.port == i32::from(port)) {
                return Err(format!("no service port {port} found for service {name:?}"));
            }
            let address = spec.cluster_ip.as_deref().unwrap_or_default();
            Ok(if address.contains(':') {
                format!("[{address}]:{port}")
            } else {
                format!("{address}:{port}")
            })
        }
        other => Err(format!("unsupported service type {other:?}")),
    }
}

fn dial_words(address: &str, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => {
            format!("dial tcp {address}: connect: connection refused")
        }
        std::io::ErrorKind::HostUnreachable => format!("dial tcp {address}: connect: no route to host"),
        _ if error.to_string().contains("lookup") => {
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            format!("dial tcp: lookup {host}: no such host")
        }
        _ => format!("dial tcp {address}: {error}"),
    }
}

fn go_words(error: &hyper::Error) -> String {
    if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        return "EOF".to_owned();
    }
    error.to_string()
}

/// Returns the error for an answer that is not a success.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    if body.len() <= REFUSAL_PARSED
        && let Ok(said) = serde_json::from_slice::<Value>(body)
        && pointer::text(&said, "/kind") == "Status"
        && let Some(message) = said.get("message").and_then(Value::as_str)
    {
        return message.chars().take(REFUSAL_LIMIT).collect();
    }
    if status == StatusCode::NOT_FOUND {
        return "the server could not find the requested resource".to_owned();
    }
    let text = String::from_utf8_lossy(body.get(..REFUSAL_LIMIT).unwrap_or(body));
    let said = if text.trim().is_empty() { "unknown" } else { text.trim() };
    if status.is_server_error() {
        return format!("an error on the server ({said:?}) has prevented the request from succeeding");
    }
    format!("the server responded with the status code {} and said {said:?}", status.as_u16())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::read;
    use crate::world::World;

    #[tokio::test]
    async fn finding_25_a_service_whose_name_is_more_than_a_name_is_not_read() {
        let world = World::new().await;
        let transport = Transport::new(world.environment.client().clone());
        world.writes();
        let odd = [("n", "s/../../secrets/x"), ("n/secrets", "s"), ("n", "s?watch=true"), ("n#", "s")];
        for (namespace, name) in odd {
            let config = json!({ "service": { "namespace": namespace, "name": name } });
            let (destination, _) = Destination::of(&read(config)).expect("a destination");
            let expected = format!("{name}.{namespace}.svc:443");
            assert_eq!(transport.address(&destination).await, Ok(expected), "as where there is no Service");
        }
        assert_eq!(world.reads(), Vec::<String>::new());
        world.supervisor.stop().await;
    }

    #[test]
    fn where_a_configuration_leads() {
        let refused = |config: Value| {
            Destination::of(&read(config)).map(|(to, path)| (to.authority(), to.service.is_some(), path))
        };
        let cases = [
            (json!({ "url": "https://h/p" }), Ok(("h:443", false, "/p"))),
            (json!({ "url": "https://h:8443/p?x=1" }), Ok(("h:8443", false, "/p"))),
            (json!({ "url": "https://[::1]:8443" }), Ok(("[::1]:8443", false, "/"))),
            (
                json!({ "url": "http://h/p" }),
                Err("Unparsable URL: \"http://h/p\" is not https://host[/path]"),
            ),
            (json!({}), Err("webhook configuration must have either service or URL")),
            (json!({ "service": { "namespace": "n", "name": "s" } }), Ok(("s.n.svc:443", true, "/"))),
            (
                json!({ "service": { "namespace": "n", "name": "s", "port": 8443, "path": "p/q" } }),
                Ok(("s.n.svc:8443", true, "/p/q")),
            ),
            // As upstream, the Service goes before the URL.
            (
                json!({ "url": "https://h/p", "service": { "namespace": "n", "name": "s" } }),
                Ok(("s.n.svc:443", true, "/")),
            ),
        ];
        for (config, expected) in cases {
            let expected = expected
                .map(|(authority, service, path): (&str, bool, &str)| {
                    (authority.to_owned(), service, path.to_owned())
                })
                .map_err(str::to_owned);
            assert_eq!(refused(config.clone()), expected, "{config}");
        }
    }

    #[test]
    fn what_address_a_service_tells() {
        let ports = json!([{ "port": 443 }]);
        let cases = [
            (json!({ "type": "ExternalName", "externalName": "e.example.com" }), Ok("e.example.com:443")),
            (json!({ "clusterIP": "10.0.0.1", "ports": ports }), Ok("10.0.0.1:443")),
            (json!({ "type": "NodePort", "clusterIP": "fd00::1", "ports": ports }), Ok("[fd00::1]:443")),
            (
                json!({ "type": "LoadBalancer", "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] }),
                Err("no service port 443 found for service \"s\""),
            ),
            (json!({ "clusterIP": "None" }), Err("cannot route to service with ClusterIP \"None\"")),
            (json!({ "type": "Odd" }), Err("unsupported service type \"Odd\"")),
        ];
        for (spec, expected) in cases {
            let found = route(&read(spec.clone()), "s", 443);
            assert_eq!(found, expected.map(str::to_owned).map_err(str::to_owned), "{spec}");
        }
    }

    #[test]
    fn what_a_refusal_says() {
        let said =
            |code: u16, body: &str| refusal(StatusCode::from_u16(code).expect("a code"), body.as_bytes());
        assert_eq!(said(403, r#"{"kind":"Status","message":"no"}"#), "no");
        assert_eq!(said(404, "x"), "the server could not find the requested resource");
        assert_eq!(
            said(500, ""),
            "an error on the server (\"unknown\") has prevented the request from succeeding"
        );
        let long = format!(r#"{{"kind":"Status","message":"no","x":[{}0]}}"#, "0,".repeat(REFUSAL_PARSED));
        let shown = said(403, &long);
        assert!(
            shown.starts_with("the server responded with the status code 403 and said") && shown.len() < 2048,
            "it is not parsed: {} bytes",
            shown.len()
        );
        assert_eq!(said(418, "tea"), "the server responded with the status code 418 and said \"tea\"");
    }
}
