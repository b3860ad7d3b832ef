//! HTTP by hand over TLS: a client that sends what no library would let it send, and says whether an answer was complete.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

pub(crate) type Stream = tokio_rustls::client::TlsStream<TcpStream>;

/// The attackers' address. Everybody else comes from 127.0.0.1, so that a cap per address is seen to work.
pub(crate) const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// More than any honest answer here has.
const MOST_READ: usize = 64 << 20;

/// Generous: the machine may be busy with everything else.
pub(crate) fn patience() -> Duration {
    testkit::slowed(Duration::from_secs(30))
}

/// A client certificate with its key, as PEM.
#[derive(Clone)]
pub(crate) struct Certificate {
    pub(crate) chain: String,
    pub(crate) key: String,
}

/// Where a server is and whom to trust.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    roots: Arc<rustls::RootCertStore>,
    source: Ipv4Addr,
    certificate: Option<Certificate>,
}

impl Door {
    pub(crate) fn new(address: SocketAddr, authority: &Path) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        let pem = CertificateDer::from_pem_file(authority).expect("the authority");
        roots.add(pem).expect("a usable authority");
        Self { address, roots: Arc::new(roots), source: HOSTILE, certificate: None }
    }

    pub(crate) fn from(mut self, source: Ipv4Addr) -> Self {
        self.source = source;
        self
    }

    pub(crate) fn with(mut self, certificate: Certificate) -> Self {
        self.certificate = Some(certificate);
        self
    }

    pub(crate) async fn tcp(&self) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.source, 0).into())?;
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Opens a TLS connection that speaks `protocol`.
    pub(crate) async fn tls(&self, protocol: &str) -> std::io::Result<Stream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("usual protocol versions")
            .with_root_certificates(self.roots.clone());
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some(certificate) => {
                let chain = CertificateDer::from_pem_slice(certificate.chain.as_bytes()).expect("PEM");
                let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(vec![chain], key).expect("a certificate with its key")
            }
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let opened = async {
            let stream = self.tcp().await?;
            tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
        };
        let late = || std::io::Error::new(std::io::ErrorKind::TimedOut, "no handshake in time");
        tokio::time::timeout(patience(), opened).await.map_err(|_| late())?
    }

    /// Sends bytes and reads until the other side ends, or until time runs out.
    pub(crate) async fn raw(&self, sent: Vec<u8>) -> Answer {
        self.raw_within(sent, patience()).await
    }

    pub(crate) async fn raw_within(&self, sent: Vec<u8>, patience: Duration) -> Answer {
        self.answered(sent, patience, false).await
    }

    /// Sends bytes and reads until the answer has begun, for one that need not end.
    pub(crate) async fn begun(&self, sent: Vec<u8>) -> Answer {
        self.answered(sent, patience(), true).await
    }

    async fn answered(&self, sent: Vec<u8>, patience: Duration, only_head: bool) -> Answer {
        let stream = match self.tls("http/1.1").await {
            Ok(stream) => stream,
            Err(error) => return Answer::none(format!("no connection: {error}")),
        };
        let (mut from, mut to) = tokio::io::split(stream);
        // A server may refuse before it has read everything.
        let sending = tokio::spawn(async move {
            let _ = to.write_all(&sent).await;
            let _ = to.flush().await;
            to
        });
        let mut seen = Vec::new();
        let reading = async {
            let mut piece = vec![0; 64 * 1024];
            while seen.len() < MOST_READ {
                if only_head && seen.windows(4).any(|end| end == b"\r\n\r\n") {
                    return "begun";
                }
                match from.read(&mut piece).await {
                    Ok(0) => return "ended",
                    Ok(read) => seen.extend_from_slice(&piece[..read]),
                    Err(_) => return "cut",
                }
            }
            "too long"
        };
        let end = tokio::time::timeout(patience, reading).await.unwrap_or("late");
        sending.abort();
        Answer::parse(&seen, end)
    }

    /// Sends one request and reads its answer; `who` is a bearer token, empty for nobody.
    pub(crate) async fn send(&self, who: &str, method: &str, path: &str, body: impl Into<Sent>) -> Answer {
        let body = body.into();
        self.raw(request(who, method, path, &[("content-type", body.media)], &body.bytes)).await
    }

    pub(crate) async fn get(&self, who: &str, path: &str) -> Answer {
        self.raw(request(who, "GET", path, &[], b"")).await
    }

    pub(crate) async fn get_with(&self, who: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.raw(request(who, "GET", path, headers, b"")).await
    }

    pub(crate) async fn post(&self, who: &str, path: &str, object: &Value) -> Answer {
        self.send(who, "POST", path, object).await
    }

    /// Posts what costs the server seconds of computing on a slow machine.
    pub(crate) async fn post_costly(&self, who: &str, path: &str, object: &Value) -> Answer {
        let sent = Sent::from(object);
        let bytes = request(who, "POST", path, &[("content-type", sent.media)], &sent.bytes);
        self.raw_within(bytes, 4 * patience()).await
    }

    /// Posts again while the server says that it is too much at once: a throttled request is not a refused one.
    pub(crate) async fn post_patiently(&self, who: &str, path: &str, object: &Value) -> Answer {
        let began = std::time::Instant::now();
        loop {
            let answer = self.post_costly(who, path, object).await;
            if answer.code != 429 || began.elapsed() > patience() {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Sends a patch of a type: `json`, `merge`, `strategic-merge` or `apply`.
    pub(crate) async fn patch(&self, who: &str, path: &str, kind: &str, patch: impl Into<Vec<u8>>) -> Answer {
        let media = match kind {
            "apply" => "application/apply-patch+yaml".to_owned(),
            other => format!("application/{other}-patch+json"),
        };
        self.raw(request(who, "PATCH", path, &[("content-type", &media)], &patch.into())).await
    }

    /// Asks until the answer is as wanted; returns the last one after all patience.
    pub(crate) async fn until(&self, who: &str, path: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
        let began = std::time::Instant::now();
        loop {
            let answer = self.get(who, path).await;
            if wanted(&answer) || began.elapsed() > patience() {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A body and its media type.
pub(crate) struct Sent {
    media: &'static str,
    bytes: Vec<u8>,
}

impl Sent {
    pub(crate) fn of(media: &'static str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { media, bytes: bytes.into() }
    }
}

impl From<&Value> for Sent {
    fn from(value: &Value) -> Self {
        Self::of("application/json", value.to_string())
    }
}

impl From<String> for Sent {
    fn from(text: String) -> Self {
        Self::of("application/json", text)
    }
}

/// Writes a request of HTTP/1.1 that asks for the end of the connection.
pub(crate) fn request(who: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} /{} HTTP/1.1\r\nHost: 127.0.0.1\r\n", path.trim_start_matches('/'));
    if !who.is_empty() {
        head += &format!("Authorization: Bearer {who}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("connection")) {
        head += "Connection: close\r\n";
    }
    if !body.is_empty() || method != "GET" {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    let mut bytes = (head + "\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// What came back. Code 0 means that nothing did that looks like HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Whether the whole body came, as far as its head or its framing says.
    pub(crate) complete: bool,
    end: String,
}

impl Answer {
    fn none(end: String) -> Self {
        Self { code: 0, head: String::new(), body: Vec::new(), complete: false, end }
    }

    fn parse(seen: &[u8], end: &str) -> Self {
        let Some(split) = seen.windows(4).position(|end| end == b"\r\n\r\n") else {
            return Self::none(format!("{end} after {} bytes", seen.len()));
        };
        let head = String::from_utf8_lossy(&seen[..split]).into_owned();
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let header = |wanted: &str| {
            head.lines().filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
                name.eq_ignore_ascii_case(wanted).then(|| value.trim().to_ascii_lowercase())
            })
        };
        let rest = &seen[split + 4..];
        let (body, complete) = if header("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
            dechunk(rest)
        } else if let Some(length) = header("content-length").and_then(|text| text.parse::<usize>().ok()) {
            (rest[..rest.len().min(length)].to_vec(), rest.len() >= length)
        } else {
            (rest.to_vec(), end == "ended")
        };
        Self { code, head, body, complete, end: end.to_owned() }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(crate) fn at(&self, pointer: &str) -> String {
        let value = self.json().pointer(pointer).cloned().unwrap_or_default();
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    }

    pub(crate) fn header(&self, wanted: &str) -> Option<String> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find_map(|(name, value)| name.eq_ignore_ascii_case(wanted).then(|| value.trim().to_owned()))
    }

    /// The code and the beginning of the body, for a line of the table.
    pub(crate) fn brief(&self) -> String {
        let text = self.json()["message"].as_str().map_or_else(|| self.text(), str::to_owned);
        let short: String = text.chars().take(110).collect();
        match self.code {
            0 => self.end.clone(),
            code => format!("{code} {}", short.replace(['\n', '\r'], " ").trim()),
        }
    }

    /// Wants one of these codes.
    pub(crate) fn one_of(&self, codes: &[u16]) -> Result<String, String> {
        if codes.contains(&self.code) { Ok(self.brief()) } else { Err(format!("answered {}", self.brief())) }
    }

    /// Wants a refusal: an error of the client, or a connection that the server ends.
    pub(crate) fn refused(&self) -> Result<String, String> {
        let ended = self.code == 0 && self.end != "late" && !self.end.starts_with("late");
        if ended || (400..500).contains(&self.code) {
            Ok(self.brief())
        } else {
            Err(format!("answered {}", self.brief()))
        }
    }
}

fn dechunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|end| end == b"\r\n") {
        let text = String::from_utf8_lossy(&rest[..line]).into_owned();
        let Ok(size) = usize::from_str_radix(text.split(';').next().unwrap_or("").trim(), 16) else { break };
        if size == 0 {
            return (body, true);
        }
        let piece = &rest[line + 2..];
        if piece.len() < size + 2 {
            body.extend_from_slice(piece);
            break;
        }
        body.extend_from_slice(&piece[..size]);
        rest = &piece[size + 2..];
    }
    (body, false)
}
