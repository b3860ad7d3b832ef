//! Bearer tokens: static ones from a file, and service account tokens that we signed.

use std::collections::HashMap;
use std::path::Path;

use apimachinery::object::Object;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use store::Store;

use super::User;
use super::jwt::{self, Algorithm, PublicKey, Token};
use crate::head::Head;
use crate::object::{self, Entry};

/// A token stays valid this long after the deletion of the object to which it is bound was requested.
const LEEWAY: SignedDuration = SignedDuration::from_secs(60);
/// Marks a Secret whose token is no longer valid.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const INVALIDATED: &str = "service account token has been invalidated";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the token file {path}")]
    Read { path: String, source: std::io::Error },
    #[error("line {line} of the token file {path} is not `token,user,uid[,\"groups\"]`")]
    Line { path: String, line: usize },
    #[error("the service account key cannot be used")]
    Key(#[source] jwt::Error),
    #[error("cannot sign a token")]
    Sign(#[source] jwt::Error),
}

/// The claims of a service account token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Claims {
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub aud: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exp: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iat: Option<i64>,
    pub iss: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
    #[serde(rename = "kubernetes.io", skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<Kubernetes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nbf: Option<i64>,
    pub sub: String,
    // Tokens in Secrets name their account in separate claims.
    #[serde(rename = "kubernetes.io/serviceaccount/namespace", skip_serializing_if = "Option::is_none")]
    pub legacy_namespace: Option<String>,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name", skip_serializing_if = "Option::is_none")]
    pub legacy_secret: Option<String>,
    #[serde(
        rename = "kubernetes.io/serviceaccount/service-account.name",
        skip_serializing_if = "Option::is_none"
    )]
    pub legacy_name: Option<String>,
    #[serde(
        rename = "kubernetes.io/serviceaccount/service-account.uid",
        skip_serializing_if = "Option::is_none"
    )]
    pub legacy_uid: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Kubernetes {
    pub namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    pub serviceaccount: Reference,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    pub uid: String,
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    })
}

/// Signs and verifies tokens.
pub struct Tokens {
    fixed: HashMap<[u8; 32], User>,
    signer: jwt::Signer,
    key: PublicKey,
    pub issuer: String,
    pub public_key_pem: String,
    public_point: Vec<u8>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Tokens").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl Tokens {
    pub fn new(key_pem: &str, issuer: &str, token_file: Option<&Path>) -> Result<Self, Error> {
        use rcgen::PublicKeyData;
        let pair = rcgen::KeyPair::from_pem(key_pem).map_err(|_| Error::Key(jwt::Error::Key))?;
        let key_id = URL_SAFE_NO_PAD.encode(Sha256::digest(pair.subject_public_key_info()));
        let signer = jwt::Signer::new(key_pem, &key_id).map_err(Error::Key)?;
        let fixed = match token_file {
            Some(path) => read_static(path)?,
            None => HashMap::new(),
        };
        Ok(Self {
            fixed,
            key: signer.public_key(),
            signer,
            issuer: issuer.to_owned(),
            public_key_pem: pair.public_key_pem(),
            public_point: pair.public_key_raw().to_vec(),
        })
    }

    /// Returns the public key as an uncompressed point.
    pub fn public_point(&self) -> &[u8] {
        &self.public_point
    }

    pub fn key_id(&self) -> &str {
        self.signer.key_id()
    }

    /// Signs a token.
    pub fn sign(&self, claims: &Claims) -> Result<String, Error> {
        self.signer.sign(claims).map_err(Error::Sign)
    }

    /// Creates a token that lives in a Secret and does not expire.
    pub fn sign_legacy(
        &self,
        namespace: &str,
        account: &str,
        uid: &str,
        secret: &str,
    ) -> Result<String, Error> {
        self.sign(&Claims {
            aud: Vec::new(),
            exp: None,
            iat: None,
            iss: LEGACY_ISSUER.to_owned(),
            jti: None,
            kubernetes: None,
            nbf: None,
            sub: format!("system:serviceaccount:{namespace}:{account}"),
            legacy_namespace: Some(namespace.to_owned()),
            legacy_secret: Some(secret.to_owned()),
            legacy_name: Some(account.to_owned()),
            legacy_uid: Some(uid.to_owned()),
        })
    }

    /// Returns the owner of a token and which of the audiences it is for, or why it is not valid.
    pub fn identify(
        &self,
        store: &Store<Head>,
        token: &str,
        audiences: &[String],
    ) -> Result<(User, Vec<String>), Distrust> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        if let Some(user) = self.fixed.get(&digest) {
            return Ok((user.clone(), audiences.to_vec()));
        }
        let parsed = Token::parse(token).filter(|token| token.algorithm == Algorithm::Es256);
        let claims: Claims = parsed.and_then(|token| token.verified(&self.key)).ok_or(Distrust::Unknown)?;
        match &claims.kubernetes {
            Some(bound) => self.identify_bound(store, &claims, bound, audiences, Timestamp::now()),
            None if claims.iss == LEGACY_ISSUER => {
                identify_legacy(store, &claims, token).map(|user| (user, audiences.to_vec()))
            }
            None => Err(Distrust::Unknown),
        }
    }

    fn identify_bound(
        &self,
        store: &Store<Head>,
        claims: &Claims,
        bound: &Kubernetes,
        audiences: &[String],
        now: Timestamp,
    ) -> Result<(User, Vec<String>), Distrust> {
        let (Some(expires), true) = (claims.exp, claims.iss == self.issuer) else {
            return Err(Distrust::Unknown);
        };
        let shared: Vec<String> = audiences.iter().filter(|aud| claims.aud.contains(aud)).cloned().collect();
        if shared.is_empty() {
            return Err(Distrust::Foreign { audiences: claims.aud.clone(), wanted: audiences.to_vec() });
        }
        if expires <= now.as_second() {
            return Err(Distrust::Refused("service account token has expired".to_owned()));
        }
        if claims.nbf.is_some_and(|from| from > now.as_second()) {
            return Err(Distrust::Refused("service account token is not valid yet".to_owned()));
        }
        let refused = |why: String| Err(Distrust::Refused(why));
        let account = &bound.serviceaccount;
        let key = object::join_key(&bound.namespace, &account.name);
        match store.get("serviceaccounts", &key) {
            None => return refused(format!("serviceaccounts {:?} not found", account.name)),
            Some(entry) if *entry.head.uid != *account.uid => {
                let (found, claimed) = (&entry.head.uid, &account.uid);
                return refused(format!("service account UID ({found}) does not match claim ({claimed})"));
            }
            Some(entry) if is_gone(&entry, now) => {
                let (namespace, name) = (&bound.namespace, &account.name);
                return refused(format!("service account {namespace}/{name} has been deleted"));
            }
            Some(_) => {}
        }
        let alive = |what: &str, collection: &str, namespace: &str, reference: &Reference| match store
            .get(collection, &object::join_key(namespace, &reference.name))
        {
            Some(entry) if *entry.head.uid != *reference.uid => Err(Distrust::Refused(format!(
                "{what} UID ({}) does not match service account {what} ref claim ({})",
                entry.head.uid, reference.uid
            ))),
            Some(entry) if !is_gone(&entry, now) => Ok(()),
            _ => Err(Distrust::Refused(INVALIDATED.to_owned())),
        };
        let (pod, secret) = (bound.pod.as_ref(), bound.secret.as_ref());
        // The node of a pod is copied from the claims, not looked up.
        let node = bound.node.as_ref().filter(|_| pod.is_none());
        secret.map_or(Ok(()), |secret| alive("secret", "secrets", &bound.namespace, secret))?;
        pod.map_or(Ok(()), |pod| alive("pod", "pods", &bound.namespace, pod))?;
        node.map_or(Ok(()), |node| alive("node", "minions", "", node))?;
        let mut user = User::for_service_account(&bound.namespace, &account.name, &account.uid);
        let mut note = |name: &str, value: &str| {
            user.extra.insert(format!("authentication.kubernetes.io/{name}"), vec![value.to_owned()]);
        };
        if let Some(id) = &claims.jti {
            note("credential-id", &format!("JTI={id}"));
        }
        if let Some(pod) = pod {
            note("pod-name", &pod.name);
            note("pod-uid", &pod.uid);
        }
        if let Some(node) = &bound.node {
            note("node-name", &node.name);
            if !node.uid.is_empty() {
                note("node-uid", &node.uid);
            }
        }
        Ok((user, shared))
    }
}

/// The issuer of tokens that live in Secrets.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

/// Returns the owner of a token from a Secret. The Secret must still contain this very token: a Secret that was created again
/// under the same name contains another one.
fn identify_legacy(store: &Store<Head>, claims: &Claims, token: &str) -> Result<User, Distrust> {
    let refused = |why: String| Err(Distrust::Refused(why));
    let given = |claim: &Option<String>| claim.clone().filter(|text| !text.is_empty());
    let (Some(namespace), Some(secret_name), Some(name), Some(uid)) = (
        given(&claims.legacy_namespace),
        given(&claims.legacy_secret),
        given(&claims.legacy_name),
        given(&claims.legacy_uid),
    ) else {
        return Err(Distrust::Unknown);
    };
    if claims.sub != format!("system:serviceaccount:{namespace}:{name}") {
        return refused("sub claim is invalid".to_owned());
    }
    let secret = store.get("secrets", &object::join_key(&namespace, &secret_name));
    let Some(secret) = secret.filter(|secret| !secret.head.deleting) else {
        return refused("Token has been invalidated".to_owned());
    };
    let body: Value = serde_json::from_slice(&secret.value).unwrap_or_default();
    let stored = body.pointer("/data/token").and_then(Value::as_str);
    let stored = stored.and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
    if Sha256::digest(stored) != Sha256::digest(token) {
        return refused("Token does not match server's copy".to_owned());
    }
    match store.get("serviceaccounts", &object::join_key(&namespace, &name)) {
        None => return refused(format!("serviceaccounts {name:?} not found")),
        Some(account) if account.head.deleting => {
            return refused(format!("ServiceAccount {namespace}/{name} has been deleted"));
        }
        Some(account) if *account.head.uid != *uid => {
            let found = &account.head.uid;
            return refused(format!("ServiceAccount UID ({found}) does not match claim ({uid})"));
        }
        Some(_) => {}
    }
    if secret.head.label(INVALID_SINCE).is_some_and(|since| !since.is_empty()) {
        return refused(format!(
            "the token in secret {namespace}/{secret_name} for service account {namespace}/{name} has been marked invalid. \
             Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '{INVALID_SINCE}' \
             label from the secret to temporarily allow use of this token"
        ));
    }
    Ok(User::for_service_account(&namespace, &name, &uid))
}

/// Returns whether the deletion of an object was due so long ago that its tokens must not be accepted any more.
fn is_gone(entry: &Entry, now: Timestamp) -> bool {
    if !entry.head.deleting {
        return false;
    }
    let body: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
    let deleted = body.meta("deletionTimestamp").parse::<Timestamp>();
    deleted.map_or(true, |deleted| deleted < now.saturating_sub(LEEWAY).unwrap_or(now))
}

/// Why a token is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Distrust {
    /// The token is unknown.
    Unknown,
    /// It is for another audience.
    Foreign { audiences: Vec<String>, wanted: Vec<String> },
    /// It has expired, or is not valid yet.
    Refused(String),
}

/// In upstream's words, which a TokenReview shows.
impl std::fmt::Display for Distrust {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |names: &[String]| {
            let quoted: Vec<String> = names.iter().map(|name| apimachinery::go::quote(name)).collect();
            format!("[{}]", quoted.join(" "))
        };
        // Upstream asks two authenticators; the first one knows only the token of the server itself.
        match self {
            Self::Unknown => out.write_str("invalid bearer token"),
            Self::Foreign { audiences, wanted } => write!(
                out,
                "[invalid bearer token, token audiences {} is invalid for the target audiences {}]",
                list(audiences),
                list(wanted)
            ),
            Self::Refused(why) => write!(out, "[invalid bearer token, {why}]"),
        }
    }
}

/// Reads `token,user,uid,"group1,group2"` lines. Only digests of the tokens are kept.
fn read_static(path: &Path) -> Result<HashMap<[u8; 32], User>, Error> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: shown.clone(), source })?;
    let mut tokens = HashMap::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let mut parts = text.splitn(4, ',').map(|part| part.trim().trim_matches('"'));
        let (Some(token), Some(name), Some(uid)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(Error::Line { path: shown, line });
        };
        let groups = parts.next().unwrap_or("").split(',').map(str::trim).filter(|group| !group.is_empty());
        let user = User {
            name: name.to_owned(),
            uid: uid.to_owned(),
            groups: groups.map(str::to_owned).collect(),
            ..User::default()
        };
        tokens.insert(Sha256::digest(token).into(), user.authenticated());
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn put(store: &Store<Head>, collection: &str, name: &str, object: &Value) {
        let value = object.to_string().into_bytes();
        let write = store::Write {
            collection: collection.into(),
            name: name.into(),
            expect: store::Expect::Any,
            change: store::Change::Put {
                head: store::Head::parse(collection, name, &value),
                value: value.into(),
            },
            durability: store::Durability::Buffered,
            ttl: None,
        };
        store.commit(write).await.expect("a write to memory");
    }

    fn tokens() -> Tokens {
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        Tokens::new(&key, "https://issuer", None).unwrap()
    }

    fn secret(token: &str) -> Value {
        json!({"metadata": {"uid": "s"}, "data": {"token": STANDARD.encode(token)}})
    }

    #[tokio::test]
    async fn finding_10_a_revoked_token_does_not_come_back_with_a_secret_of_the_same_name() {
        let store = Store::open(store::Options::memory()).unwrap();
        let tokens = tokens();
        put(&store, "serviceaccounts", "default/robot", &json!({"metadata": {"uid": "1"}})).await;
        let first = tokens.sign_legacy("default", "robot", "1", "token").unwrap();
        let second = tokens.sign_legacy("default", "robot", "1", "token").unwrap();
        assert_ne!(first, second, "no token is made twice");
        let refusal = |token: &str| tokens.identify(&store, token, &[]).map_err(|why| why.to_string());
        put(&store, "secrets", "default/token", &secret(&first)).await;
        assert_eq!(refusal(&first).unwrap().0.name, "system:serviceaccount:default:robot");
        put(&store, "secrets", "default/token", &secret(&second)).await;
        assert!(refusal(&first).unwrap_err().contains("Token does not match server's copy"));
        assert!(refusal(&second).is_ok());
        let mut marked = secret(&second);
        marked["metadata"]["labels"] = json!({INVALID_SINCE: "2026-01-01"});
        put(&store, "secrets", "default/token", &marked).await;
        assert!(refusal(&second).unwrap_err().contains("has been marked invalid"));
        let mut deleted = secret(&second);
        deleted["metadata"]["deletionTimestamp"] = json!(Timestamp::now().to_string());
        put(&store, "secrets", "default/token", &deleted).await;
        assert!(refusal(&second).unwrap_err().contains("Token has been invalidated"));
        store.close().await;
    }

    #[tokio::test]
    async fn finding_25_a_bound_token_is_believed_for_a_minute_after_the_deletion_of_what_it_is_bound_to() {
        let store = Store::open(store::Options::memory()).unwrap();
        let tokens = tokens();
        let reference = |name: &str| Reference { name: name.to_owned(), uid: format!("uid-{name}") };
        let now = Timestamp::now();
        let object = |name: &str, deleted: Option<i64>| {
            let mut object = json!({"metadata": {"uid": format!("uid-{name}")}});
            if let Some(seconds) = deleted {
                let when = now - SignedDuration::from_secs(seconds);
                object["metadata"]["deletionTimestamp"] = json!(when.to_string());
            }
            object
        };
        let everything = [
            ("serviceaccounts", "default/robot", "robot"),
            ("secrets", "default/s", "s"),
            ("pods", "default/p", "p"),
            ("minions", "n", "n"),
        ];
        let claims = |bound: &str| Claims {
            aud: vec!["here".to_owned()],
            exp: Some(i64::MAX),
            iat: None,
            iss: "https://issuer".to_owned(),
            jti: None,
            kubernetes: Some(Kubernetes {
                namespace: "default".to_owned(),
                serviceaccount: reference("robot"),
                secret: (bound == "secrets").then(|| reference("s")),
                pod: (bound == "pods").then(|| reference("p")),
                node: (bound == "minions").then(|| reference("n")),
            }),
            nbf: None,
            sub: "system:serviceaccount:default:robot".to_owned(),
            legacy_namespace: None,
            legacy_secret: None,
            legacy_name: None,
            legacy_uid: None,
        };
        for (collection, key, name) in everything {
            let token = tokens.sign(&claims(collection)).unwrap();
            let is_believed = || tokens.identify(&store, &token, &["here".to_owned()]).is_ok();
            for (collection, key, name) in everything {
                put(&store, collection, key, &object(name, None)).await;
            }
            assert!(is_believed(), "{collection}");
            put(&store, collection, key, &object(name, Some(20))).await;
            assert!(is_believed(), "{collection} that is just going");
            put(&store, collection, key, &object(name, Some(120))).await;
            assert!(!is_believed(), "{collection} that should have gone two minutes ago");
        }
        store.close().await;
    }
}
