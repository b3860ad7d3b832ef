//! Servers that the control plane asks and that answer with malice. What one does is in the path it is asked for, so the
//! same one is a member cluster, an aggregated API server and a webhook.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};
use testkit::tls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const GROUP: &str = "things.example.com";
/// As much as an endless answer has at most, so that a test ends.
const ENDLESS: usize = 3 << 30;

type Stream = tokio_rustls::server::TlsStream<TcpStream>;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) head: String,
}

impl Seen {
    /// Returns all values of a header.
    pub(crate) fn header(&self, wanted: &str) -> Vec<String> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields
            .filter(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.trim().to_owned())
            .collect()
    }
}

impl Seen {
    /// What the caller is told that was heard.
    fn told(&self) -> Value {
        json!({"kind": "Told", "path": self.path, "users": self.header("x-remote-user"), "groups": self.header("x-remote-group")})
    }
}

pub(crate) struct Hostile {
    pub(crate) address: SocketAddr,
    /// Its certificate, as `caBundle` takes it.
    pub(crate) bundle: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// What came on connections whose upgrade was refused.
    tunnelled: Arc<Mutex<Vec<u8>>>,
}

impl Hostile {
    pub(crate) async fn start() -> Self {
        let listener = tls::Listener::bind(&["localhost"], &[]).await;
        let (address, certificate) = (listener.address, listener.certificate.clone());
        let (seen, tunnelled) = (Arc::default(), Arc::default());
        let served = Served { address, seen: Arc::clone(&seen), tunnelled: Arc::clone(&tunnelled) };
        listener.serve(move |stream| {
            let served = served.clone();
            async move {
                let _ = served.answer(stream).await;
            }
        });
        let bundle = base64::engine::general_purpose::STANDARD.encode(certificate);
        Self { address, bundle, seen, tunnelled }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}/{path}", self.address.port())
    }

    /// Returns a webhook's `clientConfig`.
    pub(crate) fn hook(&self, path: &str) -> Value {
        json!({"url": self.url(path), "caBundle": self.bundle})
    }

    /// Returns the requests so far whose path contains some text.
    pub(crate) fn seen(&self, part: &str) -> Vec<Seen> {
        let seen = self.seen.lock().expect("requests");
        seen.iter().filter(|seen| seen.path.contains(part)).cloned().collect()
    }

    pub(crate) fn tunnelled(&self) -> String {
        String::from_utf8_lossy(&self.tunnelled.lock().expect("bytes")).into_owned()
    }
}

#[derive(Clone)]
struct Served {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    tunnelled: Arc<Mutex<Vec<u8>>>,
}

impl Served {
    async fn answer(&self, mut stream: Stream) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        let head = loop {
            if let Some(split) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&bytes[..split]).into_owned();
                bytes.drain(..split + 4);
                break head;
            }
            let mut piece = [0; 16 * 1024];
            match stream.read(&mut piece).await? {
                0 => return Ok(()),
                read => bytes.extend_from_slice(&piece[..read]),
            }
        };
        let path = head.split(' ').nth(1).unwrap_or("").to_owned();
        let seen = Seen { path: path.clone(), head: head.clone() };
        let length: usize =
            seen.header("content-length").first().and_then(|text| text.parse().ok()).unwrap_or(0);
        while bytes.len() < length {
            let mut piece = vec![0; 64 * 1024];
            match stream.read(&mut piece).await? {
                0 => break,
                read => bytes.extend_from_slice(&piece[..read]),
            }
        }
        self.seen.lock().expect("requests").push(seen.clone());
        let bare = path.split('?').next().unwrap_or("").to_owned();
        let is = |part: &str| bare.split('/').any(|segment| segment == part);
        if is("readyz") || is("healthz") || is("livez") {
            return reply(&mut stream, "200 OK", "text/plain", b"ok").await;
        }
        if is("version") {
            let version = json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
            return reply(&mut stream, "200 OK", "application/json", version.to_string().as_bytes()).await;
        }
        if is("redirect") {
            let head = format!(
                "HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:{}/stolen\r\nContent-Length: 6\r\nConnection: close\r\n\r\nstolen",
                self.address.port()
            );
            return stream.write_all(head.as_bytes()).await;
        }
        if is("silent") {
            tokio::time::sleep(Duration::from_secs(600)).await;
            return Ok(());
        }
        if is("endless") {
            return endless(stream).await;
        }
        if is("zeros") {
            return reply(&mut stream, "200 OK", "application/json", &zeros()).await;
        }
        if is("dense") {
            return reply(&mut stream, "200 OK", "application/json", &dense()).await;
        }
        if is("long") {
            return reply(&mut stream, "200 OK", "application/json", &long()).await;
        }
        if is("parts") {
            return reply(&mut stream, "200 OK", "application/json", &parts()).await;
        }
        if is("elsewhere") {
            // To the client's own server, by all that it can tell.
            let head = "HTTP/1.1 302 Found\r\nLocation: /api/v1/pods/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            return stream.write_all(head.as_bytes()).await;
        }
        if is("cut") {
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"kind\":";
            stream.write_all(head.as_bytes()).await?;
            return stream.flush().await;
        }
        if is("bomb") {
            let body = gzip_bomb();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all(head.as_bytes()).await?;
            return stream.write_all(&body).await;
        }
        if is("deep") {
            let body =
                format!("{{\"kind\":\"List\",\"items\":{}{}}}", "[".repeat(400_000), "]".repeat(400_000));
            return reply(&mut stream, "200 OK", "application/json", body.as_bytes()).await;
        }
        if is("refuses") {
            let head = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n";
            stream.write_all(head.as_bytes()).await?;
            stream.flush().await?;
            let mut piece = [0; 4096];
            while let Ok(Ok(read)) =
                tokio::time::timeout(Duration::from_secs(5), stream.read(&mut piece)).await
            {
                if read == 0 {
                    break;
                }
                self.tunnelled.lock().expect("bytes").extend_from_slice(&piece[..read]);
                // An honest server may use the connection again for another request of its own.
                let head = String::from_utf8_lossy(&piece[..read]).into_owned();
                let next = Seen { path: head.split(' ').nth(1).unwrap_or("").to_owned(), head };
                let told = next.told().to_string();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                    told.len()
                );
                stream.write_all((head + &told).as_bytes()).await?;
                stream.flush().await?;
            }
            return Ok(());
        }
        if bare == "/apis" || bare == format!("/apis/{GROUP}/v1") {
            let resources = json!([{"name": "things", "singularName": "thing", "namespaced": false, "kind": "Thing", "verbs": ["get", "list"]}]);
            let document = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"), "resources": resources});
            let code = if bare == "/apis" { "404 Not Found" } else { "200 OK" };
            return reply(&mut stream, code, "application/json", document.to_string().as_bytes()).await;
        }
        if let Some(part) = bare.strip_prefix("/hook/") {
            let review: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let answer = review_answer(part, &review);
            return reply(&mut stream, "200 OK", "application/json", answer.to_string().as_bytes()).await;
        }
        let told = seen.told();
        reply(&mut stream, "200 OK", "application/json", told.to_string().as_bytes()).await
    }
}

async fn reply(stream: &mut Stream, code: &str, media: &str, body: &[u8]) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: {media}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await?;
    stream.flush().await?;
    stream.shutdown().await
}

/// A list of 30 MiB that is 15 million items.
fn zeros() -> Vec<u8> {
    let items = "0,".repeat(15 << 20);
    format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{}},"items":[{items}0]}}"#).into_bytes()
}

/// A list of 27 MiB: an object with five million owners of fields, and 700,000 objects without content.
fn parts() -> Vec<u8> {
    let owners = "{},".repeat(5 << 20);
    let empty = r#",{"metadata":{}}"#.repeat(700_000);
    let object =
        format!(r#"{{"metadata":{{"name":"n","resourceVersion":"1","managedFields":[{owners}{{}}]}}}}"#);
    format!(r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{{"resourceVersion":"1"}},"items":[{object}{empty}]}}"#)
        .into_bytes()
}

/// A document of 15 MiB that is two million objects, which would take 1.5 GB.
fn dense() -> Vec<u8> {
    let objects = r#"{"":0},"#.repeat((15 << 20) / 7);
    format!(r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","resources":[{objects}0]}}"#)
        .into_bytes()
}

/// A discovery document of 15 MiB that has almost a million resources.
fn long() -> Vec<u8> {
    let resources: Vec<String> = (0..880_000).map(|number| format!(r#"{{"name":"{number}"}}"#)).collect();
    let resources = resources.join(",");
    format!(
        r#"{{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"long/v1","resources":[{resources}]}}"#
    )
    .into_bytes()
}

/// A list that begins well and does not end.
async fn endless(mut stream: Stream) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let begin = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":["#;
    stream.write_all(format!("{:x}\r\n{begin}\r\n", begin.len()).as_bytes()).await?;
    let item = format!("{{\"metadata\":{{\"name\":\"n\",\"labels\":{{\"l\":\"{}\"}}}}}},", "x".repeat(200))
        .repeat(250);
    let chunk = format!("{:x}\r\n{item}\r\n", item.len());
    let mut sent = 0;
    while sent < ENDLESS {
        stream.write_all(chunk.as_bytes()).await?;
        sent += item.len();
    }
    Ok(())
}

/// Answers an AdmissionReview or a ConversionReview with malice.
fn review_answer(part: &str, review: &Value) -> Value {
    let request = &review["request"];
    let mut response = json!({"uid": request["uid"], "allowed": true});
    let patch = |operations: Value| base64::engine::general_purpose::STANDARD.encode(operations.to_string());
    match part {
        "patch-depth" => {
            response["patchType"] = json!("JSONPatch");
            response["patch"] =
                json!(base64::engine::general_purpose::STANDARD.encode(depth_patch("/metadata/annotations")));
        }
        "patch-copies" => {
            response["patchType"] = json!("JSONPatch");
            response["patch"] =
                json!(base64::engine::general_purpose::STANDARD.encode(doubling_patch("/data", 40)));
        }
        "other-name" => {
            response["patchType"] = json!("JSONPatch");
            response["patch"] =
                json!(patch(json!([{"op": "replace", "path": "/metadata/namespace", "value": "other"}])));
        }
        "other-uid" => response["uid"] = json!("00000000-0000-0000-0000-000000000000"),
        "many-warnings" => response["warnings"] = json!(vec!["w".repeat(4096); 2000]),
        "renames" => {
            let mut objects = request["objects"].as_array().cloned().unwrap_or_default();
            for object in &mut objects {
                object["apiVersion"] = request["desiredAPIVersion"].clone();
                object["metadata"]["name"] = json!("somebody-else");
                object["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
            }
            return json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview",
                "response": {"uid": request["uid"], "convertedObjects": objects, "result": {"status": "Success"}}});
        }
        _ => {}
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

/// A JSON patch that puts 500 nested arrays below `path` and copies them eight times into their own innermost one.
pub(crate) fn depth_patch(path: &str) -> String {
    let nested = format!("{}{}", "[".repeat(500), "]".repeat(500));
    let mut operations = vec![format!(r#"{{"op":"add","path":"{path}","value":{nested}}}"#)];
    let mut depth = 500;
    for _ in 0..8 {
        let inner = format!("{path}{}", "/0".repeat(depth - 1));
        operations.push(format!(r#"{{"op":"copy","from":"{path}","path":"{inner}/-"}}"#));
        depth *= 2;
    }
    format!("[{}]", operations.join(","))
}

/// A JSON patch that doubles what is below `path` again and again.
pub(crate) fn doubling_patch(path: &str, times: usize) -> String {
    let mut operations =
        vec![format!(r#"{{"op":"add","path":"{path}","value":{{"a":"{}"}}}}"#, "x".repeat(1000))];
    for number in 0..times {
        let from = if number == 0 { path.to_owned() } else { format!("{path}/k{}", number - 1) };
        operations.push(format!(r#"{{"op":"copy","from":"{from}","path":"{path}/k{number}"}}"#));
        operations.push(format!(r#"{{"op":"copy","from":"{path}","path":"{path}/l{number}"}}"#));
    }
    format!("[{}]", operations.join(","))
}

/// Returns a gzip file of some megabytes that unpacks to more than a gigabyte: one letter, then repetitions of it.
pub(crate) fn gzip_bomb() -> Vec<u8> {
    let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let (mut buffer, mut filled) = (0u8, 0u32);
    let mut bit = |bytes: &mut Vec<u8>, value: bool| {
        buffer |= u8::from(value) << filled;
        filled += 1;
        if filled == 8 {
            bytes.push(buffer);
            (buffer, filled) = (0, 0);
        }
    };
    // The last block, with the fixed codes.
    for value in [true, true, false] {
        bit(&mut bytes, value);
    }
    let mut code = |bytes: &mut Vec<u8>, value: u32, width: u32| {
        for shift in (0..width).rev() {
            bit(bytes, value >> shift & 1 == 1);
        }
    };
    code(&mut bytes, 0x30 + u32::from(b' '), 8);
    for _ in 0..4_000_000 {
        code(&mut bytes, 0xc5, 8); // 258 bytes
        code(&mut bytes, 0, 5); // from one byte back
    }
    code(&mut bytes, 0, 7);
    code(&mut bytes, 0, 7);
    bytes.extend_from_slice(&[0; 8]);
    bytes
}
