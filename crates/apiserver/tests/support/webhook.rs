//! A webhook server for tests: what it answers is in the path that a configuration names.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use testkit::tls;

/// The names its certificate is valid for, besides 127.0.0.1.
pub(crate) const NAMES: [&str; 2] = ["hook.hooks.svc", "localhost"];

pub(crate) struct Webhook {
    pub(crate) address: SocketAddr,
    /// Its certificate, as `caBundle` takes it.
    pub(crate) bundle: String,
    /// How many requests came.
    pub(crate) calls: Arc<AtomicUsize>,
}

impl Webhook {
    pub(crate) async fn start() -> Self {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = calls.clone();
        let (address, pem) = https(move |request| answer(request, counter.clone())).await;
        Self { address, bundle: base64::engine::general_purpose::STANDARD.encode(pem), calls }
    }

    /// Returns a `clientConfig` by URL.
    pub(crate) fn client(&self, path: &str) -> Value {
        json!({"url": format!("https://127.0.0.1:{}{path}", self.address.port()), "caBundle": self.bundle})
    }
}

/// Serves HTTPS on a free port of this machine; returns where, and the certificate that clients have to trust.
pub(crate) async fn https<F>(
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
) -> (SocketAddr, String)
where
    F: Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send + 'static,
{
    let listener = tls::Listener::bind(&NAMES, &["h2", "http/1.1"]).await;
    let (address, certificate) = (listener.address, listener.certificate.clone());
    listener.serve(move |stream| {
        let answer = answer.clone();
        async move {
            let connection = auto::Builder::new(TokioExecutor::new());
            let _ = connection.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        }
    });
    (address, certificate)
}

async fn answer(
    request: Request<Incoming>,
    calls: Arc<AtomicUsize>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    calls.fetch_add(1, Ordering::SeqCst);
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let request = &review["request"];
    if request.get("objects").is_some() {
        return Ok(reply(200, &convert(&review, &path)));
    }
    let mut response = json!({"uid": request["uid"], "allowed": true});
    match path.as_str() {
        "/allow" => {}
        "/warn" => {
            response["warnings"] = json!(["mind the gap", "mind the gap", "and the \"door\""]);
            response["auditAnnotations"] = json!({"seen": "yes"});
        }
        "/deny" => {
            response["allowed"] = json!(false);
            response["status"] = json!({"message": "not today"});
        }
        "/deny-silently" => response["allowed"] = json!(false),
        "/deny-fully" => {
            response["allowed"] = json!(false);
            response["status"] = json!({"code": 418, "reason": "Teapot", "message": "short and stout",
                "details": {"name": "pot", "kind": "teapots", "causes": [{"reason": "FieldValueInvalid", "message": "no", "field": "spec.x"}]}});
        }
        "/deny-reason" => {
            response["allowed"] = json!(false);
            response["status"] = json!({"code": 403, "reason": "Forbidden"});
        }
        // Tells what it was asked, without what differs between any two servers.
        "/echo" => {
            response["allowed"] = json!(false);
            response["status"] = json!({"message": shown(request).to_string()});
        }
        "/label" => {
            patch(&mut response, &json!([{"op": "add", "path": "/metadata/labels", "value": {"by": "hook"}}]))
        }
        // Counts its calls in the object.
        "/count" => {
            let count = request["object"]["data"]["count"].as_str().unwrap_or("").to_owned() + "I";
            patch(&mut response, &json!([{"op": "add", "path": "/data/count", "value": count}]));
        }
        "/once" if request["object"]["data"]["once"].is_null() => {
            patch(&mut response, &json!([{"op": "add", "path": "/data/once", "value": "1"}]));
        }
        "/once" => {}
        "/disown" => {
            patch(&mut response, &json!([{"op": "remove", "path": "/metadata/managedFields/0/fieldsType"}]))
        }
        "/nothing" => patch(&mut response, &json!([])),
        "/unapplicable" => patch(&mut response, &json!([{"op": "remove", "path": "/data/nowhere"}])),
        "/ruin" => patch(&mut response, &json!([{"op": "add", "path": "/data", "value": 5}])),
        "/invalid" => {
            patch(&mut response, &json!([{"op": "add", "path": "/metadata/labels", "value": {"a b": "c"}}]))
        }
        "/replicas" => {
            patch(&mut response, &json!([{"op": "replace", "path": "/spec/replicas", "value": 4}]))
        }
        "/no-type" => response["patch"] = json!("W10="),
        "/wrong-uid" => response["uid"] = json!("other"),
        "/absent" => {
            return Ok(reply(200, &json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"})));
        }
        "/wrong-kind" => {
            return Ok(reply(200, &json!({"apiVersion": "v1", "kind": "Pod", "response": response})));
        }
        "/garbage" => return Ok(text(200, "{\"a\":")),
        "/500" => return Ok(text(500, "broken")),
        "/503" => return Ok(text(503, "later")),
        "/slow" => std::future::pending().await,
        _ => return Ok(text(404, "no such hook")),
    }
    let document =
        json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response});
    Ok(reply(200, &document))
}

fn patch(response: &mut Value, operations: &Value) {
    response["patchType"] = json!("JSONPatch");
    response["patch"] = json!(base64::engine::general_purpose::STANDARD.encode(operations.to_string()));
}

fn shown(request: &Value) -> Value {
    let mut request = request.clone();
    request["uid"] = json!("UID");
    request["userInfo"] = json!("USER");
    for object in ["object", "oldObject"] {
        if let Some(metadata) =
            request.pointer_mut(&format!("/{object}/metadata")).and_then(Value::as_object_mut)
        {
            for field in ["uid", "resourceVersion", "creationTimestamp"] {
                if metadata.contains_key(field) {
                    metadata.insert(field.to_owned(), json!("SET"));
                }
            }
            if let Some(entries) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
                entries.iter_mut().filter_map(Value::as_object_mut).for_each(|entry| {
                    entry.remove("time");
                });
            }
        }
    }
    request
}

/// Converts by moving a field: `spec.old` in v1 is `spec.new` in v2.
fn convert(review: &Value, path: &str) -> Value {
    let request = &review["request"];
    let wanted = request["desiredAPIVersion"].as_str().unwrap_or("");
    let mut objects = request["objects"].as_array().cloned().unwrap_or_default();
    for object in &mut objects {
        object["apiVersion"] = json!(wanted);
        let (from, to) = if wanted.ends_with("v2") { ("old", "new") } else { ("new", "old") };
        if let Some(spec) = object["spec"].as_object_mut()
            && let Some(value) = spec.remove(from)
        {
            spec.insert(to.to_owned(), value);
        }
        match path {
            "/convert-badly" => object["metadata"]["name"] = json!("renamed"),
            "/convert-elsewhere" => object["apiVersion"] = json!("example.com/v7"),
            "/convert-kind" => object["kind"] = json!("Other"),
            "/convert-labels" => object["metadata"]["labels"] = json!({"a": 1}),
            _ => {}
        }
    }
    if path == "/convert-fewer" {
        objects.pop();
    }
    let result = match path {
        "/convert-refused" => json!({"status": "Failure", "message": "cannot convert that"}),
        "/convert-silently" => json!({"status": "Failure"}),
        _ => json!({"status": "Success"}),
    };
    json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview",
        "response": {"uid": request["uid"], "convertedObjects": objects, "result": result}})
}

fn reply(code: u16, document: &Value) -> Response<Full<Bytes>> {
    let mut response = text(code, &document.to_string());
    response.headers_mut().insert("content-type", "application/json".parse().expect("a media type"));
    response
}

fn text(code: u16, body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_owned())));
    *response.status_mut() = code.try_into().expect("a valid code");
    response
}
