//! Bearer tokens: static ones from a file, service account tokens signed by us.

use std::collections::HashMap;
use std::path::Path;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use store::Store;

use super::User;
use crate::head::Head;
use crate::object;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the token file {path}")]
    Read { path: String, source: std::io::Error },
    #[error("line {line} of the token file {path} is not `token,user,uid[,\"groups\"]`")]
    Line { path: String, line: usize },
    #[error("the service account key cannot be used")]
    Key(#[source] Box<jsonwebtoken::errors::Error>),
    #[error("cannot sign a token")]
    Sign(#[source] Box<jsonwebtoken::errors::Error>),
}

/// What a service account token says.
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
    // Tokens kept in Secrets name their account in claims of their own.
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

/// Signs and recognises tokens.
pub struct Tokens {
    fixed: HashMap<[u8; 32], User>,
    encoding: EncodingKey,
    decoding: DecodingKey,
    key_id: String,
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
        let bad_key = |error| Error::Key(Box::new(error));
        let encoding = EncodingKey::from_ec_pem(key_pem.as_bytes()).map_err(bad_key)?;
        let pair = rcgen::KeyPair::from_pem(key_pem)
            .map_err(|_| bad_key(jsonwebtoken::errors::ErrorKind::InvalidEcdsaKey.into()))?;
        let public_key_pem = pair.public_key_pem();
        let decoding = DecodingKey::from_ec_pem(public_key_pem.as_bytes()).map_err(bad_key)?;
        let fixed = match token_file {
            Some(path) => read_static(path)?,
            None => HashMap::new(),
        };
        use rcgen::PublicKeyData;
        let digest = Sha256::digest(pair.subject_public_key_info());
        let key_id = {
            use base64::Engine;
            base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(digest)
        };
        let public_point = pair.public_key_raw().to_vec();
        Ok(Self {
            fixed,
            encoding,
            decoding,
            key_id,
            issuer: issuer.to_owned(),
            public_key_pem,
            public_point,
        })
    }

    /// Returns the public key as an uncompressed point.
    pub fn public_point(&self) -> &[u8] {
        &self.public_point
    }

    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Signs a token.
    pub fn sign(&self, claims: &Claims) -> Result<String, Error> {
        let mut header = Header::new(Algorithm::ES256);
        header.typ = None;
        header.kid = Some(self.key_id.clone());
        jsonwebtoken::encode(&header, claims, &self.encoding).map_err(|error| Error::Sign(Box::new(error)))
    }

    /// Makes a token that lives in a Secret and does not expire.
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
            iss: "kubernetes/serviceaccount".to_owned(),
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

    /// Returns who a token belongs to and which of the audiences it is for; or why it is not to be trusted.
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
        let mut validation = Validation::new(Algorithm::ES256);
        validation.validate_aud = false;
        validation.validate_exp = false;
        validation.required_spec_claims.clear();
        let claims = jsonwebtoken::decode::<Claims>(token, &self.decoding, &validation)
            .map_err(|_| Distrust::Unknown)?
            .claims;
        let now = jiff::Timestamp::now().as_second();
        match &claims.kubernetes {
            Some(bound) => self.identify_bound(store, &claims, bound, audiences, now),
            None => self
                .identify_legacy(store, &claims)
                .map(|user| (user, audiences.to_vec()))
                .ok_or(Distrust::Unknown),
        }
    }

    fn identify_bound(
        &self,
        store: &Store<Head>,
        claims: &Claims,
        bound: &Kubernetes,
        audiences: &[String],
        now: i64,
    ) -> Result<(User, Vec<String>), Distrust> {
        let (Some(expires), true) = (claims.exp, claims.iss == self.issuer) else {
            return Err(Distrust::Unknown);
        };
        let common: Vec<String> = audiences.iter().filter(|aud| claims.aud.contains(aud)).cloned().collect();
        if common.is_empty() {
            return Err(Distrust::Foreign { of: claims.aud.clone(), wanted: audiences.to_vec() });
        }
        if expires <= now {
            return Err(Distrust::Refused("service account token has expired".to_owned()));
        }
        if claims.nbf.is_some_and(|from| from > now) {
            return Err(Distrust::Refused("service account token is not valid yet".to_owned()));
        }
        let account = &bound.serviceaccount;
        let key = object::join_key(&bound.namespace, &account.name);
        match store.get("serviceaccounts", &key) {
            None => {
                return Err(Distrust::Refused(format!("serviceaccounts {:?} not found", account.name)));
            }
            Some(entry) if *entry.head.uid != *account.uid => {
                let (found, claimed) = (&entry.head.uid, &account.uid);
                return Err(Distrust::Refused(format!(
                    "service account UID ({found}) does not match claim ({claimed})"
                )));
            }
            Some(_) => {}
        }
        let alive = |collection: &str, namespace: &str, reference: &Reference| {
            let key = object::join_key(namespace, &reference.name);
            store.get(collection, &key).is_some_and(|entry| *entry.head.uid == *reference.uid)
        };
        let (pod, secret) = (bound.pod.as_ref(), bound.secret.as_ref());
        // The node of a pod is told, not asked for.
        let node = bound.node.as_ref().filter(|_| pod.is_none());
        if pod.is_some_and(|pod| !alive("pods", &bound.namespace, pod))
            || secret.is_some_and(|secret| !alive("secrets", &bound.namespace, secret))
            || node.is_some_and(|node| !alive("minions", "", node))
        {
            return Err(Distrust::Refused("service account token has been invalidated".to_owned()));
        }
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
        Ok((user, common))
    }

    fn identify_legacy(&self, store: &Store<Head>, claims: &Claims) -> Option<User> {
        if claims.iss != "kubernetes/serviceaccount" {
            return None;
        }
        let namespace = claims.legacy_namespace.as_deref()?;
        let (name, uid) = (claims.legacy_name.as_deref()?, claims.legacy_uid.as_deref()?);
        let account = store.get("serviceaccounts", &object::join_key(namespace, name))?;
        let secret = store.get("secrets", &object::join_key(namespace, claims.legacy_secret.as_deref()?))?;
        if *account.head.uid != *uid || account.head.deleting || secret.head.deleting {
            return None;
        }
        Some(User::for_service_account(namespace, name, uid))
    }
}

/// Why a token is not believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Distrust {
    /// Nobody knows it.
    Unknown,
    /// It is for somebody else.
    Foreign { of: Vec<String>, wanted: Vec<String> },
    /// It was good once, or will be.
    Refused(String),
}

/// In upstream's words, which a TokenReview shows.
impl std::fmt::Display for Distrust {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |names: &[String]| {
            let quoted: Vec<String> = names.iter().map(|name| apimachinery::go::quote(name)).collect();
            format!("[{}]", quoted.join(" "))
        };
        // Upstream asks two authenticators; the first knows the token of the server itself only.
        match self {
            Self::Unknown => out.write_str("invalid bearer token"),
            Self::Foreign { of, wanted } => write!(
                out,
                "[invalid bearer token, token audiences {} is invalid for the target audiences {}]",
                list(of),
                list(wanted)
            ),
            Self::Refused(why) => write!(out, "[invalid bearer token, {why}]"),
        }
    }
}

/// Reads `token,user,uid,"group1,group2"` lines. Tokens are kept as digests only.
fn read_static(path: &Path) -> Result<HashMap<[u8; 32], User>, Error> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: shown.clone(), source })?;
    let mut tokens = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut parts = line.splitn(4, ',').map(|part| part.trim().trim_matches('"'));
        let (Some(token), Some(name), Some(uid)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(Error::Line { path: shown, line: index + 1 });
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
