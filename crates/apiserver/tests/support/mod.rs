//! A plain HTTP client for the tests: it sends exactly what it is told and hands back exactly what came.
//!
//! It sits below `kube::Api` on purpose: these tests are about codes, headers, bodies and streams, which typed
//! clients hide.

#![allow(dead_code, reason = "every test program uses a part of it")]

pub(crate) mod backend;
pub(crate) mod webhook;

use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::AuthInfo;
use serde_json::Value;

pub(crate) use testkit::DEADLINE;

/// One server, as one user sees it.
#[derive(Clone)]
pub(crate) struct Api {
    client: kube::Client,
}

/// What a server answered.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// A request before it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: String,
    /// Without the leading slash.
    pub(crate) path: String,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) content_type: String,
    pub(crate) accept: String,
    pub(crate) headers: Vec<(String, String)>,
    /// A token to be shown. Its sender must not have a certificate, which would count first.
    pub(crate) bearer: Option<String>,
}

impl Call {
    pub(crate) fn new(method: &str, path: impl Into<String>) -> Self {
        Self {
            method: method.to_owned(),
            path: path.into(),
            body: None,
            content_type: "application/json".to_owned(),
            accept: "application/json".to_owned(),
            headers: Vec::new(),
            bearer: None,
        }
    }

    pub(crate) fn json(mut self, body: &Value) -> Self {
        self.body = Some(body.to_string().into_bytes());
        self
    }

    pub(crate) fn raw(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    pub(crate) fn content_type(mut self, content_type: &str) -> Self {
        content_type.clone_into(&mut self.content_type);
        self
    }

    pub(crate) fn accept(mut self, accept: &str) -> Self {
        accept.clone_into(&mut self.accept);
        self
    }

    fn request(&self) -> Request<Body> {
        let mut request = Request::builder()
            .method(self.method.as_str())
            .uri(format!("/{}", self.path))
            .header("user-agent", "differ/1");
        if !self.accept.is_empty() {
            request = request.header("accept", &self.accept);
        }
        if self.body.is_some() && !self.content_type.is_empty() {
            request = request.header("content-type", &self.content_type);
        }
        for (name, value) in &self.headers {
            // Bytes, since a name may be any UTF-8.
            request = request.header(name, value.as_bytes());
        }
        if let Some(token) = &self.bearer {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = self.body.clone().map_or_else(Body::empty, Body::from);
        request.body(body).expect("method, path and headers of a test are well formed")
    }
}

impl Api {
    pub(crate) async fn from_kubeconfig(text: &str) -> Self {
        Self::from_config(testkit::config(text).await)
    }

    /// As [`Api::from_kubeconfig`], for who wants to see the refusals that clients are told to try again.
    pub(crate) async fn without_retries(kubeconfig: &str) -> Self {
        let mut config = testkit::config(kubeconfig).await;
        config.default_retry = false;
        Self::from_config(config)
    }

    /// Knows the server, but shows no credential by itself.
    pub(crate) async fn stranger(kubeconfig: &str) -> Self {
        let mut config = testkit::config(kubeconfig).await;
        config.auth_info = AuthInfo::default();
        Self::from_config(config)
    }

    pub(crate) fn from_config(mut config: kube::Config) -> Self {
        config.read_timeout = None;
        // What came back counts, not what would come later.
        config.default_retry = false;
        Self { client: kube::Client::try_from(config).expect("a usable client configuration") }
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn send(&self, call: &Call) -> Answer {
        tokio::time::timeout(DEADLINE, self.try_send(call))
            .await
            .unwrap_or_else(|_| panic!("no answer within the deadline: {} {}", call.method, call.path))
            .unwrap_or_else(|error| panic!("{} {}: {error:?}", call.method, call.path))
    }

    pub(crate) async fn try_send(&self, call: &Call) -> Result<Answer, kube::Error> {
        let response = self.client.send(call.request()).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes().to_vec();
        Ok(Answer { code: parts.status.as_u16(), headers: parts.headers, body })
    }

    /// Opens a stream of lines: a watch.
    pub(crate) async fn open(&self, path: &str) -> Lines {
        let response = self.client.send(Call::new("GET", path).request()).await.expect("a watch opens");
        Lines { code: response.status().as_u16(), body: response.into_body(), buffer: Vec::new() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(&Call::new("GET", path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(&Call::new("POST", path).json(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(&Call::new("PUT", path).json(body)).await
    }

    pub(crate) async fn merge(&self, path: &str, body: &Value) -> Answer {
        let call = Call::new("PATCH", path).json(body).content_type("application/merge-patch+json");
        self.send(&call).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(&Call::new("DELETE", path)).await
    }

    /// Asks again and again until the answer is as wanted.
    pub(crate) async fn until(&self, path: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
        testkit::eventually(format!("{path} is as wanted"), async || {
            let answer = self.get(path).await;
            if wanted(&answer) { Ok(answer) } else { Err(format!("{answer:?}")) }
        })
        .await
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the answer if it has this code, and says what came instead if not.
    #[track_caller]
    pub(crate) fn expect(self, code: u16) -> Self {
        assert_eq!(self.code, code, "{}", self.text());
        self
    }

    /// Returns the text at a JSON pointer, empty when there is none.
    pub(crate) fn at(&self, pointer: &str) -> String {
        match self.json().pointer(pointer) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        }
    }
}

/// The events of a watch, one JSON document per line.
pub(crate) struct Lines {
    pub(crate) code: u16,
    body: Body,
    buffer: Vec<u8>,
}

impl Lines {
    /// Returns the next event, or `None` when the server ended the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        tokio::time::timeout(DEADLINE, self.read()).await.expect("an event, or the end, within the deadline")
    }

    /// Returns type and name of the next event.
    pub(crate) async fn step(&mut self) -> (String, String) {
        let event = self.next().await.expect("the watch goes on");
        let text =
            |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        (text("/type"), text("/object/metadata/name"))
    }

    async fn read(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(
                    serde_json::from_slice(&line).expect("every line of a watch is a JSON document"),
                );
            }
            let frame = self.body.frame().await?.expect("the stream does not break");
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}
