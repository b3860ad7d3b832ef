//! Users that somebody else vouches for: an OpenID Connect issuer, a proxy in front of the server.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use apiserver::Options;
use apiserver::auth::jwt;
use apiserver::auth::oidc::Settings;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::tls;

use crate::start_with;
use crate::support::{Api, Call};

const REVIEWS: &str = "apis/authentication.k8s.io/v1/selfsubjectreviews";

fn review() -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
}

/// An issuer: one key at a time, and how often its keys were read.
struct Issuer {
    url: String,
    authority: String,
    keys: Arc<Mutex<Vec<(String, rcgen::KeyPair)>>>,
    reads: Arc<AtomicUsize>,
}

impl Issuer {
    async fn start() -> Self {
        let listener = tls::Listener::bind(&[], &[]).await;
        let url = format!("https://127.0.0.1:{}", listener.address.port());
        let keys: Arc<Mutex<Vec<(String, rcgen::KeyPair)>>> = Arc::default();
        let reads = Arc::new(AtomicUsize::new(0));
        let authority = listener.certificate.clone();
        let issuer = Self { url: url.clone(), authority, keys: keys.clone(), reads: reads.clone() };
        issuer.turn("first");
        listener.serve(move |stream| {
            let (url, keys, reads) = (url.clone(), keys.clone(), reads.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = match request.uri().path() {
                    "/keys" => {
                        reads.fetch_add(1, Ordering::SeqCst);
                        key_set(&keys.lock())
                    }
                    _ => json!({"issuer": url, "jwks_uri": format!("{url}/keys")}),
                };
                async move { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(answer.to_string())))) }
            });
            async move {
                let connection = hyper::server::conn::http1::Builder::new();
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            }
        });
        issuer
    }

    /// Replaces the key by a new one.
    fn turn(&self, id: &str) {
        let key = rcgen::KeyPair::generate().expect("a key");
        *self.keys.lock() = vec![(id.to_owned(), key)];
    }

    fn sign(&self, claims: &Value) -> String {
        let keys = self.keys.lock();
        let (id, key) = keys.first().expect("a key");
        let signer = jwt::Signer::new(&key.serialize_pem(), id).expect("a key");
        signer.sign(claims).expect("a token")
    }

    fn claims(&self) -> Value {
        let now = jiff::Timestamp::now().as_second();
        json!({"iss": self.url, "aud": ["karmada"], "sub": "jane", "exp": now + 600, "groups": ["dev"], "jti": "one"})
    }
}

fn key_set(keys: &[(String, rcgen::KeyPair)]) -> Value {
    let list: Vec<Value> = keys
        .iter()
        .map(|(id, key)| {
            use rcgen::PublicKeyData;
            let point = key.der_bytes();
            let (x, y) = (&point[1..33], &point[33..65]);
            json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": id,
                "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y)})
        })
        .collect();
    json!({"keys": list})
}

async fn holder(url: &str, ca: &str, token: &str) -> Api {
    Api::from_kubeconfig(&format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nclusters: [{{name: a, cluster: {{server: '{url}', certificate-authority-data: {}}}}}]\nusers: [{{name: a, user: {{token: {token}}}}}]\n",
        STANDARD.encode(ca)
    ))
    .await
}

#[tokio::test]
async fn tokens_of_a_trusted_issuer_name_their_user_and_others_are_refused() {
    let issuer = Issuer::start().await;
    let dir = tempfile::tempdir().expect("a folder");
    let ca_file = dir.path().join("issuer.crt");
    std::fs::write(&ca_file, &issuer.authority).expect("the file is written");
    let oidc = Settings {
        issuer: issuer.url.clone(),
        client_id: "karmada".to_owned(),
        username_claim: "sub".to_owned(),
        username_prefix: Some("oidc:".to_owned()),
        groups_claim: Some("groups".to_owned()),
        groups_prefix: "oidc:".to_owned(),
        ca_file: Some(ca_file),
        required_claims: BTreeMap::new(),
        signing_algorithms: vec!["ES256".to_owned()],
    };
    let (handle, admin) = start_with(Options { oidc: Some(oidc), ..Options::default() }).await;
    let ask = async |token: String| {
        holder(&handle.url, &handle.pki.ca.cert, &token).await.post(REVIEWS, &review()).await
    };

    let seen = ask(issuer.sign(&issuer.claims())).await.expect(201);
    assert_eq!(seen.at("/status/userInfo/username"), "oidc:jane");
    assert!(seen.at("/status/userInfo/groups").contains("oidc:dev"), "{}", seen.text());
    assert!(seen.text().contains("JTI=one"), "{}", seen.text());

    // A token review says the same.
    let token = issuer.sign(&issuer.claims());
    let asked =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let answer = admin.post("apis/authentication.k8s.io/v1/tokenreviews", &asked).await.expect(201);
    assert_eq!(answer.at("/status/user/username"), "oidc:jane");

    let mut bad = Vec::new();
    for (key, value) in [
        ("aud", json!(["somebody else"])),
        ("exp", json!(jiff::Timestamp::now().as_second() - 10)),
        ("nbf", json!(jiff::Timestamp::now().as_second() + 600)),
        ("iss", json!("https://elsewhere.example.com")),
        ("sub", json!("")),
    ] {
        let mut claims = issuer.claims();
        claims[key] = value;
        bad.push((key, issuer.sign(&claims)));
    }
    let good = issuer.sign(&issuer.claims());
    bad.push(("signature", format!("{}AAAA", &good[..good.len() - 4])));
    let reads = issuer.reads.load(Ordering::SeqCst);
    for (what, token) in bad {
        assert_eq!(ask(token).await.code, 401, "{what}");
    }
    assert_eq!(issuer.reads.load(Ordering::SeqCst), reads, "the issuer is not asked about a bad token");
    handle.stop().await;
}

#[tokio::test]
async fn a_front_proxy_speaks_for_others_and_nobody_else_does() {
    let (handle, _) = start_with(Options::default()).await;
    let asked = |user: &str| {
        let mut call = Call::new("POST", REVIEWS).json(&review());
        call.headers = vec![
            ("x-remote-user".to_owned(), user.to_owned()),
            ("x-remote-group".to_owned(), "dev".to_owned()),
            ("x-remote-extra-team".to_owned(), "a".to_owned()),
        ];
        call
    };
    let with = async |pair: &apiserver::auth::pki::Pair| {
        let text = apiserver::auth::pki::kubeconfig(&handle.url, "proxy", &handle.pki.ca.cert, pair);
        Api::from_kubeconfig(&text).await
    };
    let proxy = with(&handle.pki.front_proxy_client).await;
    let seen = proxy.send(&asked("jane")).await.expect(201);
    assert_eq!(seen.at("/status/userInfo/username"), "jane");
    assert!(seen.at("/status/userInfo/groups").contains("dev"));
    assert_eq!(seen.at("/status/userInfo/extra/team/0"), "a");
    // It is nobody by itself.
    assert_eq!(proxy.post(REVIEWS, &review()).await.code, 401);
    // The headers of anybody else mean nothing.
    let admin = Api::from_kubeconfig(&handle.kubeconfig).await;
    let seen = admin.send(&asked("jane")).await.expect(201);
    assert_ne!(seen.at("/status/userInfo/username"), "jane");
    handle.stop().await;
}
