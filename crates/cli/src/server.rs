//! One API server, as commands use it: the control plane, or a member behind the control plane's cluster proxy.
//!
//! In: a kubeconfig. Out: JSON. A member is always reached in the caller's name: with the caller's credentials, through
//! `clusters/NAME/proxy`. Discovery is requested once per command.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, anyhow};
use clap::Args;
use futures::AsyncBufRead;
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::{Client, Config};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::clients;
use crate::discovery::Discovery;
use crate::failure::Refusal;

/// The control plane's name in the column of clusters.
pub(crate) const CONTROL_PLANE: &str = "Karmada";

/// From this verbosity on, requests are printed to stderr, as in kubectl.
static VERBOSITY: AtomicU8 = AtomicU8::new(0);

/// How the control plane is reached.
#[derive(Debug, Clone, Default, Args)]
pub struct Connection {
    /// Path to the kubeconfig file to use for CLI requests.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The name of the kubeconfig context to use.
    #[arg(long, value_name = "CONTEXT")]
    pub karmada_context: Option<String>,
    /// Number for the log level verbosity.
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 0, hide = true)]
    pub verbosity: u8,
}

/// How the control plane is reached, and the namespace meant.
#[derive(Debug, Clone, Default, Args)]
pub struct Namespaced {
    #[command(flatten)]
    pub connection: Connection,
    /// If present, the namespace scope for this CLI request.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
}

/// The control plane, and the routes to its members.
pub(crate) struct Plane {
    pub(crate) server: Server,
    /// The explicit one, or the context's.
    pub(crate) namespace: String,
    /// Whether the caller named it.
    pub(crate) namespace_asked: bool,
}

impl Connection {
    pub(crate) async fn plane(&self) -> anyhow::Result<Plane> {
        VERBOSITY.store(self.verbosity, Ordering::Relaxed);
        // One provider for all TLS in this process; an earlier caller may have set it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = self.config().await?;
        let namespace = config.default_namespace.clone();
        let server = Server::new(CONTROL_PLANE, config)?;
        Ok(Plane { server, namespace, namespace_asked: false })
    }

    pub(crate) async fn config(&self) -> anyhow::Result<Config> {
        let file = self.kubeconfig.clone().filter(|file| !file.as_os_str().is_empty());
        let context = self.karmada_context.as_deref().filter(|context| !context.is_empty());
        clients::config(file.as_deref(), context).await
    }
}

impl Namespaced {
    pub(crate) async fn plane(&self) -> anyhow::Result<Plane> {
        let mut plane = self.connection.plane().await?;
        if let Some(namespace) = self.namespace.clone().filter(|namespace| !namespace.is_empty()) {
            plane.namespace = namespace;
            plane.namespace_asked = true;
        }
        Ok(plane)
    }
}

/// Parses `--operation-scope`; each command decides which scopes it supports.
pub(crate) fn scope(text: &str) -> Result<String, String> {
    match text {
        "" | "karmada" | "members" | "all" => Ok(text.to_owned()),
        other => Err(format!("not support OperationScope: {other}")),
    }
}

/// A server and the route to it.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) name: String,
    /// One for all servers of a command: members share its connection.
    client: Client,
    address: String,
    /// The path prefix of a member; empty for the control plane.
    prefix: String,
    discovery: std::sync::Arc<OnceCell<Discovery>>,
}

impl Server {
    pub(crate) fn new(name: &str, mut config: Config) -> anyhow::Result<Self> {
        // Watches and logs may stay open for any time.
        config.read_timeout = None;
        let address = config.cluster_url.to_string();
        let client =
            crate::retries::client(config).with_context(|| format!("cannot make a client for {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            client,
            address,
            prefix: String::new(),
            discovery: Default::default(),
        })
    }

    /// Returns a server that is reached through this one.
    pub(crate) fn behind(&self, name: &str, prefix: &str) -> Self {
        Self {
            name: name.to_owned(),
            prefix: prefix.to_owned(),
            discovery: Default::default(),
            ..self.clone()
        }
    }

    pub(crate) fn is_control_plane(&self) -> bool {
        self.name == CONTROL_PLANE
    }

    pub(crate) async fn discovery(&self) -> anyhow::Result<&Discovery> {
        self.discovery.get_or_try_init(|| Discovery::fetch(self)).await
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, "application/json", None).await
    }

    /// Sends a request with an `Accept` header other than plain JSON.
    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, accept, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::POST, path, "application/json", Some(("application/json", body))).await
    }

    pub(crate) async fn patch(&self, path: &str, kind: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::PATCH, path, "application/json", Some((kind, body))).await
    }

    pub(crate) async fn delete(&self, path: &str, options: &Value) -> anyhow::Result<Value> {
        self.call(Method::DELETE, path, "application/json", Some(("application/json", options))).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<(&str, &Value)>,
    ) -> anyhow::Result<Value> {
        let text = self.text(method, path, accept, body).await?;
        serde_json::from_str(&text).with_context(|| format!("{path}: the server's answer is no JSON"))
    }

    /// Returns the answer's text.
    pub(crate) async fn text(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<(&str, &Value)>,
    ) -> anyhow::Result<String> {
        let mut request = Request::builder()
            .method(method.clone())
            .uri(format!("{}{path}", self.prefix))
            .header("accept", accept);
        let mut bytes = Vec::new();
        if let Some((kind, body)) = body {
            request = request.header("content-type", kind);
            bytes = serde_json::to_vec(body).context("cannot write JSON")?;
        }
        let request =
            request.body(Body::from(bytes)).with_context(|| format!("{path:?} is not an address"))?;
        let answer = self.client.send(request).await.map_err(|error| self.unreachable(error))?;
        let code = answer.status();
        if VERBOSITY.load(Ordering::Relaxed) >= 6 {
            crate::output::warn(&format!(
                "{method} {}{}{path} {code}",
                self.address.trim_end_matches('/'),
                self.prefix
            ));
        }
        for warning in answer.headers().get_all("warning") {
            if let Some(text) = warning.to_str().ok().and_then(|text| text.splitn(3, ' ').nth(2)) {
                crate::output::warn(&format!("Warning: {}", text.trim_matches('"').replace("\\\"", "\"")));
            }
        }
        let body = answer.into_body().collect().await.map_err(|error| anyhow!(error))?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        if !code.is_success() {
            return Err(Refusal::new(code.as_u16(), &text).into());
        }
        Ok(text)
    }

    /// Returns a streaming answer: a watch, a log.
    pub(crate) async fn stream(&self, path: &str, accept: &str) -> anyhow::Result<impl AsyncBufRead + use<>> {
        let request = Request::builder().uri(format!("{}{path}", self.prefix)).header("accept", accept);
        let request = request.body(Vec::new())?;
        self.client.request_stream(request).await.map_err(|error| self.refused(error))
    }

    /// Opens a connection with messages in both directions, which the server forwards to a container.
    pub(crate) async fn connect(&self, path: &str) -> anyhow::Result<kube::client::Connection> {
        let request = Request::builder().uri(format!("{}{path}", self.prefix)).body(Vec::new())?;
        self.client.connect(request).await.map_err(|error| self.refused(error))
    }

    fn refused(&self, error: kube::Error) -> anyhow::Error {
        match error {
            kube::Error::Api(status) => {
                let code = status.code;
                let mut body = serde_json::to_value(&*status).unwrap_or_default();
                body["kind"] = "Status".into();
                Refusal::new(code, &body.to_string()).into()
            }
            other => self.unreachable(other),
        }
    }

    fn unreachable(&self, error: kube::Error) -> anyhow::Error {
        let error = anyhow::Error::from(error);
        let address = self.address.trim_end_matches('/');
        if crate::failure::is_refused_connection(&error) {
            let host = address.split("://").last().unwrap_or(address);
            return crate::failure::refused_connection(host);
        }
        anyhow!("cannot reach {address}: {}", error.root_cause())
    }
}

/// Escapes one segment of a path.
pub(crate) fn segment(text: &str) -> String {
    escape(text, |c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b'~' | b':'))
}

/// Escapes a value of a query.
pub(crate) fn query(text: &str) -> String {
    escape(text, |c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_' | b'~'))
}

fn escape(text: &str, fits: impl Fn(u8) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if fits(byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Returns the word that is at most two typos away, the nearest first.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|each| (distance(word, each), each))
        .filter(|(mistakes, _)| *mistakes <= 2)
        .min()
        .map(|(_, each)| each)
}

/// Returns how many characters must be inserted, removed or changed to turn one word into the other.
pub(crate) fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (above + 1).min(row[j] + 1).min(diagonal + usize::from(a != *b));
            diagonal = above;
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_at_most_two_mistakes_away() {
        let known = ["member1", "member2", "prod"];
        assert_eq!(nearest("membre1", known.into_iter()), Some("member1"));
        assert_eq!(nearest("prd", known.into_iter()), Some("prod"));
        assert_eq!(nearest("elsewhere", known.into_iter()), None);
    }

    #[test]
    fn paths_and_queries_are_escaped() {
        assert_eq!(segment("system:a/b"), "system:a%2Fb");
        assert_eq!(query("a=b,c in (d)"), "a%3Db%2Cc%20in%20%28d%29");
    }
}
