//! An aggregated API server for tests: one kind, a stream, a connection that is upgraded, and what it was told of the
//! caller.

use std::convert::Infallible;
use std::net::SocketAddr;

use futures::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use testkit::tls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) const GROUP: &str = "things.example.com";

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Starts the server; it ends with the test.
pub(crate) async fn start() -> SocketAddr {
    let listener = tls::Listener::bind(&["localhost"], &[]).await;
    let address = listener.address;
    listener.serve(async |stream| {
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(answer))
            .with_upgrades()
            .await;
    });
    address
}

/// The Service and the APIService that make `address` a part of a server.
pub(crate) fn registration(address: SocketAddr) -> (Value, Value) {
    let port = address.port();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "things"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}});
    let registration = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": format!("v1.{GROUP}")},
        "spec": {"group": GROUP, "version": "v1", "insecureSkipTLSVerify": true, "groupPriorityMinimum": 1500,
            "versionPriority": 20, "service": {"name": "things", "namespace": "default", "port": port}}});
    (service, registration)
}

fn resources() -> Value {
    json!([{"resource": "things", "responseKind": {"group": GROUP, "version": "v1", "kind": "Thing"}, "scope": "Cluster",
        "singularResource": "thing", "verbs": ["get", "list"]}])
}

async fn answer(mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let header = |name: &str| -> Vec<String> {
        let values = request.headers().get_all(name).iter();
        values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    };
    let base = format!("/apis/{GROUP}/v1");
    let path = request.uri().path().to_owned();
    if path == "/apis" {
        let document = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
            "items": [{"metadata": {"name": GROUP}, "versions": [{"version": "v1", "resources": resources(), "freshness": "Current"}]}]});
        let mut response = plain(200, &document.to_string());
        let media = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        response.headers_mut().insert("content-type", media.parse().expect("a media type"));
        return Ok(response);
    }
    if path == base {
        let document = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"),
            "resources": [{"name": "things", "singularName": "thing", "namespaced": false, "kind": "Thing", "verbs": ["get", "list"]}]});
        return Ok(json_reply(200, &document));
    }
    if path == format!("{base}/things/stream") {
        let pieces = futures::stream::iter(
            (0..3).map(|n| Ok(Frame::data(Bytes::from(format!("{{\"piece\":{n}}}\n"))))),
        );
        return Ok(Response::new(StreamBody::new(pieces).boxed_unsync()));
    }
    if path == format!("{base}/things/x/portforward") {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let Ok(upgraded) = upgrade.await else { return };
            let mut io = TokioIo::new(upgraded);
            let mut word = [0; 5];
            if io.read_exact(&mut word).await.is_ok() {
                word.reverse();
                let _ = io.write_all(&word).await;
                let _ = io.shutdown().await;
            }
        });
        let mut response = plain(101, "");
        response.headers_mut().insert("connection", "Upgrade".parse().expect("a header"));
        response.headers_mut().insert("upgrade", "SPDY/3.1".parse().expect("a header"));
        return Ok(response);
    }
    if path == format!("{base}/things/broken") {
        let half = futures::stream::iter([Ok(Frame::data(Bytes::from_static(b"half of ")))]);
        let end = futures::stream::once(async {
            // What came before leaves meanwhile.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            Err(std::io::Error::other("the power went"))
        });
        return Ok(Response::new(StreamBody::new(half.chain(end)).boxed_unsync()));
    }
    if path == format!("{base}/things/never") {
        return std::future::pending().await;
    }
    if path == format!("{base}/things/elsewhere") {
        let mut response = plain(302, "");
        response.headers_mut().insert("location", "https://evil.example.com/".parse().expect("a header"));
        return Ok(response);
    }
    if path == format!("{base}/things/teapot") {
        return Ok(json_reply(
            418,
            &json!({"kind": "Status", "status": "Failure", "code": 418, "message": "short and stout"}),
        ));
    }
    let seen = json!({"kind": "Thing", "apiVersion": format!("{GROUP}/v1"), "metadata": {"name": "seen"},
        "method": request.method().as_str(), "path": path, "query": request.uri().query(),
        "credentials": header("authorization").len() + header("impersonate-user").len(),
        "accept": header("accept"), "users": header("x-remote-user").len(), "forged": header("x-remote-user").contains(&"mallory".to_owned()),
        "groups": header("x-remote-group"), "extra": header("x-remote-extra-team")});
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut seen = seen;
    seen["body"] = json!(String::from_utf8_lossy(&body));
    Ok(json_reply(200, &seen))
}

fn json_reply(code: u16, document: &Value) -> Response<Body> {
    let mut response = plain(code, &document.to_string());
    response.headers_mut().insert("content-type", "application/json".parse().expect("a media type"));
    response
}

fn plain(code: u16, text: &str) -> Response<Body> {
    let mut response =
        Response::new(Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = code.try_into().expect("a valid code");
    response
}
