//! Finds and authenticates the control plane with only a bootstrap token, in kubeadm's way.
//!
//! The server at the address returns `kube-public/cluster-info`, signed with the token's secret: only a control plane that knows
//! the token can do that. A hash of its certificate authority, given in advance, guarantees this even if the token has leaked.
//! From then on, only that authority is trusted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::config::Kubeconfig;
use kube::{Client, Config};
use serde_json::Value;
use sha2::{Digest, Sha256};
use x509_parser::pem::Pem;

use crate::output;
use crate::token::{is_token, key_hash};

const INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
/// The pause between two attempts.
const AGAIN: Duration = Duration::from_secs(2);
/// A control plane that answers signs its information within moments; after this time, it does not know the token.
const SIGNING: Duration = Duration::from_secs(10);
/// The information is a few kilobytes.
const LONGEST: usize = 1 << 20;
/// Certificates are valid from some minutes before now; a clock with a larger difference is reported immediately.
const CLOCK_TOLERANCE_SECONDS: i64 = 4 * 60;

/// How to find the control plane.
#[derive(Debug)]
pub(super) struct Discovery {
    url: String,
    token: String,
    hashes: Vec<String>,
    file: Option<PathBuf>,
    patience: Duration,
}

/// A control plane that was found.
#[derive(Debug)]
pub(super) struct Discovered {
    pub(super) url: String,
    /// The certificate authority, as PEM.
    pub(super) authority: Vec<u8>,
    pub(super) token: String,
}

/// Why there is no answer yet.
#[derive(Debug)]
enum Wait {
    Unreachable(anyhow::Error),
    Unsigned,
    /// Waiting does not help.
    Wrong(anyhow::Error),
}

impl Discovery {
    pub(super) fn new(
        endpoint: &str,
        token: &str,
        hashes: &[String],
        file: Option<&Path>,
        patience: Duration,
    ) -> anyhow::Result<Self> {
        let endpoint = endpoint.trim_start_matches("https://").trim_end_matches('/');
        let url = format!("https://{endpoint}");
        if !is_address(&url) {
            bail!("{endpoint:?} is not an address; write it as HOST:PORT");
        }
        if !is_token(token) {
            bail!("--token is not a bootstrap token; hint: it looks like abcdef.0123456789abcdef");
        }
        for hash in hashes {
            let digits = hash.strip_prefix("sha256:").unwrap_or("");
            if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                bail!(
                    "--discovery-token-ca-cert-hash {hash:?} is not a hash; hint: it looks like sha256: and 64 digits, and \
                     `karmada token create --print-register-command` prints it"
                );
            }
        }
        let hashes = hashes.iter().map(|hash| hash.to_lowercase()).collect();
        Ok(Self { url, token: token.to_owned(), hashes, file: file.map(Path::to_owned), patience })
    }

    /// Returns the location of the control plane.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Finds the control plane.
    pub(super) async fn discover(&self) -> anyhow::Result<Discovered> {
        let authority = match &self.file {
            Some(file) => authority_of_file(file)?,
            None => self.ask().await?,
        };
        Ok(Discovered { url: self.url.clone(), authority, token: self.token.clone() })
    }

    async fn ask(&self) -> anyhow::Result<Vec<u8>> {
        let mut open = Config::new(self.url.parse().context("the address is malformed")?);
        open.accept_invalid_certs = true;
        let open = crate::retries::client(open).context("cannot make a client for the control plane")?;
        let first = self.patiently(&open).await?;
        let authority = authority_of(&first)?;
        if self.hashes.is_empty() {
            return Ok(authority);
        }
        check_hash(&authority, &self.hashes)?;
        // Requested again, now that the authority is known: the first answer may have come from anyone in between.
        let mut closed = Config::new(self.url.parse().context("the address is malformed")?);
        closed.root_cert = Some(certificates(&authority)?);
        let closed = crate::retries::client(closed).context("cannot make a client for the control plane")?;
        let second = match self.look(&closed).await {
            Ok(second) => second,
            Err(Wait::Unreachable(error)) => return Err(explain_trust(&error, &self.url)),
            Err(Wait::Wrong(error)) => return Err(error),
            Err(Wait::Unsigned) => bail!("the control plane at {} contradicts itself", self.url),
        };
        if first != second {
            bail!(
                "the control plane at {} shows other information once it is verified; hint: somebody may be in between",
                self.url
            );
        }
        Ok(authority)
    }

    /// Waits for the signed information.
    async fn patiently(&self, client: &Client) -> anyhow::Result<String> {
        let (begun, mut answered) = (tokio::time::Instant::now(), None);
        let mut told = false;
        loop {
            match self.look(client).await {
                Ok(text) => return Ok(text),
                Err(Wait::Wrong(error)) => return Err(error),
                Err(Wait::Unreachable(error)) => {
                    if begun.elapsed() >= self.patience {
                        return Err(error.context(format!(
                            "cannot reach the control plane at {} within {} s; hint: check address, port and firewall",
                            self.url,
                            self.patience.as_secs()
                        )));
                    }
                    if !std::mem::replace(&mut told, true) {
                        output::warn(&format!("no answer from {} yet ({error:#}); trying again", self.url));
                    }
                }
                Err(Wait::Unsigned) => {
                    let since = *answered.get_or_insert_with(tokio::time::Instant::now);
                    if since.elapsed() >= SIGNING.min(self.patience) {
                        let id = self.token.split('.').next().unwrap_or("");
                        bail!(
                            "the control plane at {} does not know a token with the id {id:?}; hint: it is wrong or has \
                             expired, `karmada token create` makes a new one",
                            self.url
                        );
                    }
                }
            }
            tokio::time::sleep(AGAIN.min(self.patience)).await;
        }
    }

    /// Returns the information if it is there and signed with the token.
    async fn look(&self, client: &Client) -> Result<String, Wait> {
        let unreachable = |error: anyhow::Error| Wait::Unreachable(error);
        let request = http::Request::get(INFO).body(kube::client::Body::empty());
        let request = request.map_err(|error| unreachable(error.into()))?;
        let response = client.send(request).await.map_err(|error| unreachable(error.into()))?;
        let (head, body) = response.into_parts();
        let body = http_body_util::Limited::new(body, LONGEST).collect().await;
        let body = body.map_err(|error| unreachable(anyhow::anyhow!("{error}")))?.to_bytes();
        read(&head, &body, &self.token, Timestamp::now())
    }
}

/// Parses the answer to the request for the information.
fn read(head: &http::response::Parts, body: &[u8], token: &str, now: Timestamp) -> Result<String, Wait> {
    // Reported immediately: the clock will not be corrected while a command waits.
    if let Some(problem) = clock_problem(&head.headers, now) {
        return Err(Wait::Wrong(anyhow::anyhow!(problem)));
    }
    if !head.status.is_success() {
        let text = String::from_utf8_lossy(body);
        return Err(Wait::Unreachable(anyhow::anyhow!("{INFO} is answered with {}: {text}", head.status)));
    }
    let map: Value = serde_json::from_slice(body).map_err(|error| Wait::Unreachable(error.into()))?;
    signed(&map, token).ok_or(Wait::Unsigned)
}

/// Returns whether a URL has a host, and a port if it has a colon. The default port is 443: kubeconfigs may omit it, and so does
/// `token create --print-register-command`.
fn is_address(url: &str) -> bool {
    let Ok(parsed) = url.parse::<http::Uri>() else { return false };
    parsed.authority().is_some_and(|authority| {
        let port = authority.as_str().strip_prefix(authority.host());
        !authority.host().is_empty()
            && port.is_some_and(|port| {
                port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
            })
    })
}

/// Returns what is wrong with the clock of this machine, compared with that of the server.
fn clock_problem(headers: &http::HeaderMap, now: Timestamp) -> Option<String> {
    let date = headers.get(http::header::DATE)?.to_str().ok()?;
    let theirs = jiff::fmt::rfc2822::parse(date).ok()?.timestamp();
    let off = now.duration_since(theirs).as_secs();
    (off.abs() > CLOCK_TOLERANCE_SECONDS).then(|| {
        let way = if off > 0 { "ahead of" } else { "behind" };
        format!(
            "the clock of this machine is {} s {way} that of the control plane; hint: set it right, for example with NTP",
            off.abs()
        )
    })
}

/// Returns the kubeconfig of a `cluster-info` if it is signed with this token.
fn signed(map: &Value, token: &str) -> Option<String> {
    let (id, secret) = token.split_once('.')?;
    let text = map["data"]["kubeconfig"].as_str()?;
    let signature = map["data"][format!("jws-kubeconfig-{id}")].as_str()?;
    let (header, rest) = signature.split_once("..")?;
    let read: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
    if read["alg"] != "HS256" || read["kid"] != id {
        return None;
    }
    let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(text));
    let wanted = hmac(secret.as_bytes(), message.as_bytes());
    let given = URL_SAFE_NO_PAD.decode(rest).ok()?;
    // Digests are compared, so that the time of the comparison reveals nothing.
    (Sha256::digest(&wanted) == Sha256::digest(&given)).then(|| text.to_owned())
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut block = [0u8; 64];
    for (place, byte) in block.iter_mut().zip(key) {
        *place = *byte;
    }
    let with = |pad: u8| block.map(|byte| byte ^ pad);
    let inner = Sha256::new().chain_update(with(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(with(0x5c)).chain_update(inner).finalize().to_vec()
}

/// Returns the certificate authority of a kubeconfig with exactly one cluster.
fn authority_of(text: &str) -> anyhow::Result<Vec<u8>> {
    let kubeconfig =
        Kubeconfig::from_yaml(text).context("the information about the control plane is malformed")?;
    let [cluster] = kubeconfig.clusters.as_slice() else {
        bail!(
            "the information about the control plane is of {} clusters, not of one",
            kubeconfig.clusters.len()
        );
    };
    let encoded = cluster.cluster.as_ref().and_then(|cluster| cluster.certificate_authority_data.clone());
    let decoded = encoded.and_then(|encoded| STANDARD.decode(encoded).ok());
    decoded.context("the information about the control plane has no certificate authority")
}

fn authority_of_file(file: &Path) -> anyhow::Result<Vec<u8>> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read --discovery-file {}", file.display()))?;
    authority_of(&text).with_context(|| format!("cannot use --discovery-file {}", file.display()))
}

fn check_hash(authority: &[u8], hashes: &[String]) -> anyhow::Result<()> {
    let found: Vec<String> =
        certificates(authority)?.iter().map(|der| key_hash(der)).collect::<Result<_, _>>()?;
    if found.iter().any(|hash| hashes.contains(hash)) {
        return Ok(());
    }
    bail!(
        "cluster CA found in cluster-info is not the expected one: it has the hash {}, not {}; hint: the hash is of another \
         control plane, or somebody is in between; `karmada token create --print-register-command` prints the right one",
        found.join(", "),
        hashes.join(", ")
    )
}

/// Returns the certificates of a PEM file.
pub(super) fn certificates(pem: &[u8]) -> anyhow::Result<Vec<Vec<u8>>> {
    let blocks = Pem::iter_from_buffer(pem).map(|block| block.map(|block| block.contents));
    blocks.collect::<Result<_, _>>().context("the certificate authority is malformed")
}

/// Explains why a control plane with the right authority cannot be verified.
fn explain_trust(error: &anyhow::Error, url: &str) -> anyhow::Error {
    let text = format!("{error:#}");
    let clock = ["NotValidYet", "not valid yet", "Expired", "expired"].iter().any(|sign| text.contains(sign));
    let hint = if clock {
        "the clock of this machine or of the control plane is wrong; set it right, for example with NTP"
    } else {
        "the certificate is not for this address, or somebody is in between; --cert-extra-sans of the server adds addresses"
    };
    anyhow::anyhow!("cannot verify the control plane at {url}: {text}; hint: {hint}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    fn map(text: &str, secret: &str, header: &str) -> Value {
        let header = URL_SAFE_NO_PAD.encode(header);
        let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(text));
        let signature = URL_SAFE_NO_PAD.encode(hmac(secret.as_bytes(), message.as_bytes()));
        json!({ "data": { "kubeconfig": text, "jws-kubeconfig-abcdef": format!("{header}..{signature}") } })
    }

    #[test]
    fn an_address_is_what_a_kubeconfig_has_behind_https() {
        let url = |endpoint: &str| {
            Discovery::new(endpoint, TOKEN, &[], None, AGAIN)
                .map(|known| known.url)
                .map_err(|e| e.to_string())
        };
        for (endpoint, expected) in [
            ("192.0.2.1:5443", "https://192.0.2.1:5443"),
            ("https://karmada.example.com/", "https://karmada.example.com"),
            ("karmada.example.com", "https://karmada.example.com"),
            ("[2001:db8::1]:5443", "https://[2001:db8::1]:5443"),
            ("[2001:db8::1]", "https://[2001:db8::1]"),
            ("rancher.example.com/k8s/clusters/c-1", "https://rancher.example.com/k8s/clusters/c-1"),
        ] {
            assert_eq!(url(endpoint).as_deref(), Ok(expected));
        }
        for bad in ["", "h:", "h:port", "h:70000", ":5443", "a b:1", "user@h:1", "http://h:1"] {
            assert!(url(bad).is_err_and(|error| error.contains("write it as HOST:PORT")), "{bad}");
        }
    }

    #[test]
    fn only_what_is_signed_with_the_token_is_believed() {
        let good = r#"{"alg":"HS256","kid":"abcdef"}"#;
        assert_eq!(signed(&map("info", "0123456789abcdef", good), TOKEN).as_deref(), Some("info"));
        assert_eq!(signed(&map("info", "another", good), TOKEN), None);
        assert_eq!(signed(&map("info", "0123456789abcdef", r#"{"alg":"none","kid":"abcdef"}"#), TOKEN), None);
        assert_eq!(signed(&map("info", "0123456789abcdef", r#"{"alg":"HS256","kid":"other"}"#), TOKEN), None);
        let mut changed = map("info", "0123456789abcdef", good);
        changed["data"]["kubeconfig"] = "other".into();
        assert_eq!(signed(&changed, TOKEN), None);
        assert_eq!(signed(&json!({}), TOKEN), None);
    }

    #[test]
    fn the_authority_has_the_hash_that_was_told() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let made = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate");
        let hash = key_hash(made.der()).expect("a hash");
        assert!(check_hash(made.pem().as_bytes(), &["sha256:00".to_owned(), hash]).is_ok());
        let error = check_hash(made.pem().as_bytes(), &["sha256:00".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("is not the expected one") && error.contains("hint:"), "{error}");
    }

    #[test]
    fn a_clock_that_is_off_is_told() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let problem = |date: &str| {
            let mut headers = http::HeaderMap::new();
            headers.insert(http::header::DATE, date.parse().expect("a header"));
            clock_problem(&headers, now)
        };
        assert_eq!(problem("Thu, 01 Jan 2026 00:03:00 GMT"), None);
        assert!(problem("Thu, 01 Jan 2026 01:00:00 GMT").expect("off").contains("3600 s behind"));
        assert!(problem("Wed, 31 Dec 2025 23:00:00 GMT").expect("off").contains("3600 s ahead of"));
        assert_eq!(problem("soon"), None);
    }

    #[test]
    fn a_clock_that_is_off_is_told_at_once_and_the_rest_is_waited_for() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let answer = |code: u16, date: &str, body: &Value| {
            let answer = http::Response::builder().status(code).header(http::header::DATE, date).body(());
            let (head, ()) = answer.expect("an answer").into_parts();
            read(&head, body.to_string().as_bytes(), TOKEN, now)
        };
        let (right, late) = ("Thu, 01 Jan 2026 00:00:00 GMT", "Thu, 01 Jan 2026 01:00:00 GMT");
        let good = map("info", "0123456789abcdef", r#"{"alg":"HS256","kid":"abcdef"}"#);
        assert!(matches!(answer(200, right, &good), Ok(text) if text == "info"));
        assert!(matches!(answer(200, right, &json!({})), Err(Wait::Unsigned)));
        assert!(matches!(answer(503, right, &json!({})), Err(Wait::Unreachable(_))));
        for code in [200, 503] {
            let Err(Wait::Wrong(error)) = answer(code, late, &good) else { panic!("it is waited for") };
            assert!(error.to_string().contains("3600 s behind"), "{error}");
        }
    }
}
