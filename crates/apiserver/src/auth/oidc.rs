//! OpenID Connect: tokens that another party signs.
//!
//! In: a token that names the configured issuer. Out: the user in its claims. The issuer's keys are found by discovery and
//! cached. They are read again when a token has an unknown key, but at most every few seconds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::{Request, StatusCode, Uri};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::User;
use super::jwt::{Algorithm, Jwk, PublicKey, Token};
use crate::outbound::reply::Limits;
use crate::outbound::{self, Address, Endpoint, Trust};
use crate::server::Server;

/// The minimum time between two requests to the issuer.
const PAUSE: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(10);

/// Which tokens are accepted, and what their claims mean; as kube-apiserver's `--oidc-…` flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub issuer: String,
    pub client_id: String,
    pub username_claim: String,
    /// The prefix of the user name; `-` for none. By default the issuer, unless the claim is `email`.
    pub username_prefix: Option<String>,
    pub groups_claim: Option<String>,
    pub groups_prefix: String,
    /// The authorities for the connection to the issuer; by default those of the machine.
    pub ca_file: Option<PathBuf>,
    pub required_claims: BTreeMap<String, String>,
    pub signing_algorithms: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the OIDC issuer {0:?} must be an https URL without query or fragment")]
    Issuer(String),
    #[error("OIDC tokens need a client id (--oidc-client-id)")]
    ClientId,
    #[error("cannot read the OIDC authority {path}")]
    Authority { path: PathBuf, source: std::io::Error },
    #[error(
        "the OIDC signing algorithm {0:?} is not known; use RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA"
    )]
    Algorithm(String),
}

/// Authenticates the tokens of one issuer.
pub struct Oidc {
    settings: Settings,
    algorithms: Vec<Algorithm>,
    trust: Trust,
    keys: ArcSwapOption<Vec<Key>>,
    /// When the issuer was last asked; locked while a request is in progress.
    asked: Mutex<Option<Instant>>,
}

/// A key of the issuer.
#[derive(Debug, Clone)]
struct Key {
    id: Option<String>,
    key: PublicKey,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl std::fmt::Debug for Oidc {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Oidc").field("issuer", &self.settings.issuer).finish_non_exhaustive()
    }
}

impl Oidc {
    pub fn new(settings: Settings) -> Result<Self, Error> {
        let uri: Option<Uri> = settings.issuer.parse().ok();
        let usable = uri.is_some_and(|uri| {
            uri.scheme_str() == Some("https") && uri.host().is_some() && uri.query().is_none()
        });
        if !usable || settings.issuer.contains('#') {
            return Err(Error::Issuer(settings.issuer));
        }
        if settings.client_id.is_empty() {
            return Err(Error::ClientId);
        }
        let algorithms = settings
            .signing_algorithms
            .iter()
            // Algorithms with a shared secret are excluded: whoever can check such a signature can also create one.
            .map(|name| name.parse().map_err(|()| Error::Algorithm(name.clone())))
            .collect::<Result<Vec<_>, _>>()?;
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| Error::Authority { path: path.to_owned(), source })
        };
        let trust = Trust::from_bundle(settings.ca_file.as_deref().map(read).transpose()?);
        Ok(Self { settings, algorithms, trust, keys: ArcSwapOption::empty(), asked: Mutex::default() })
    }

    /// Returns the user of a token, and its audience; `None` if it is not trusted.
    pub async fn identify(&self, server: &Server, token: &str) -> Option<User> {
        let token = Token::parse(token)?;
        // Reads the claimed issuer before the signature is checked.
        if token.unverified::<Map<String, Value>>()?.get("iss")?.as_str()? != self.settings.issuer {
            return None;
        }
        let claims = self.verify(server, &token).await?;
        let user = valid_now(&self.settings, &claims, Timestamp::now())
            .and_then(|()| user_of(&self.settings, &claims));
        user.inspect_err(|reason| tracing::debug!(reason, "an OIDC token is refused")).ok()
    }

    async fn verify(&self, server: &Server, token: &Token<'_>) -> Option<Map<String, Value>> {
        if !self.algorithms.contains(&token.algorithm) {
            tracing::debug!(
                algorithm = ?token.algorithm,
                "an OIDC token is signed in a way that is not allowed"
            );
            return None;
        }
        let known = self.keys.load_full();
        if let Some(claims) = known.as_deref().and_then(|keys| verify_with(keys, token)) {
            return Some(claims);
        }
        // If the key is unknown, the issuer may have new keys. Otherwise the token is simply invalid.
        let has_key =
            |keys: &Vec<Key>| token.key_id.is_some() && keys.iter().any(|key| key.id == token.key_id);
        if known.as_deref().is_some_and(has_key) {
            return None;
        }
        self.refresh(server).await;
        verify_with(self.keys.load_full().as_deref()?, token)
    }

    /// Reads the issuer's keys, unless that was tried a moment ago.
    async fn refresh(&self, server: &Server) {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        *asked = Some(Instant::now());
        match tokio::time::timeout(TIMEOUT, self.discover(server)).await {
            Ok(Ok(keys)) => self.keys.store(Some(keys.into())),
            Ok(Err(error)) => {
                tracing::warn!(issuer = self.settings.issuer, error, "cannot read the OIDC keys")
            }
            Err(_) => tracing::warn!(issuer = self.settings.issuer, "the OIDC issuer does not answer"),
        }
    }

    async fn discover(&self, server: &Server) -> Result<Vec<Key>, String> {
        let issuer = &self.settings.issuer;
        let place = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let document = self.fetch(server, &place).await?;
        let text = |field: &str| document.get(field).and_then(Value::as_str);
        if text("issuer") != Some(issuer) {
            return Err(format!("{place} is of the issuer {:?}, not {issuer}", text("issuer")));
        }
        let keys = text("jwks_uri").ok_or_else(|| format!("{place} names no jwks_uri"))?;
        let set = self.fetch(server, keys).await?;
        usable_keys(set).map_err(|error| format!("{keys} has no usable keys: {error}"))
    }

    async fn fetch(&self, server: &Server, url: &str) -> Result<Value, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url} is no URL: {error}"))?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("https"));
        let host = host.ok_or_else(|| format!("{url} is not an https URL"))?.to_owned();
        let address = Address::Host { host, port: uri.port_u16().unwrap_or(443) };
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let request = Request::get(path)
            .header(http::header::HOST, address.authority())
            .header(http::header::ACCEPT, "application/json")
            .body(outbound::full(""))
            .map_err(|error| error.to_string())?;
        let endpoint = Endpoint { address, trust: self.trust.clone(), as_front_proxy: false };
        let failed = |error: outbound::Error| format!("{url}: {error}");
        let exchange = server.outbound.exchange(server, &endpoint, request, Limits::default());
        let reply = exchange.await.map_err(failed)?;
        let code = StatusCode::from_u16(reply.code).unwrap_or_default();
        if !code.is_success() {
            return Err(format!("{url} answers {code}"));
        }
        serde_json::from_slice(&reply.body).map_err(|error| format!("{url} is no JSON: {error}"))
    }
}

/// Returns the keys that we support; an issuer may have others.
fn usable_keys(set: Value) -> Result<Vec<Key>, serde_json::Error> {
    let set: KeySet = serde_json::from_value(set)?;
    let read = |value: Value| {
        let key: Jwk = serde_json::from_value(value).ok()?;
        Some(Key { key: key.public_key()?, id: key.kid })
    };
    Ok(set.keys.into_iter().filter_map(read).collect())
}

/// Returns the claims of a token that one of the keys has signed.
fn verify_with(keys: &[Key], token: &Token<'_>) -> Option<Map<String, Value>> {
    let candidates = keys.iter().filter(|key| match (&token.key_id, &key.id) {
        (Some(wanted), Some(id)) => wanted == id,
        _ => true,
    });
    candidates.into_iter().find_map(|key| token.verified(&key.key))
}

/// Checks that the claims are from the issuer, for us, and valid at this time.
fn valid_now(settings: &Settings, claims: &Map<String, Value>, now: Timestamp) -> Result<(), String> {
    let wrong = |what: &str| Err(what.to_owned());
    if claims.get("iss").and_then(Value::as_str) != Some(&settings.issuer) {
        return wrong("the issuer is another");
    }
    let is_for_us = match claims.get("aud") {
        Some(Value::String(one)) => *one == settings.client_id,
        Some(Value::Array(many)) => many.iter().any(|each| each == settings.client_id.as_str()),
        _ => false,
    };
    if !is_for_us {
        return wrong("it is not for this server");
    }
    // A number of seconds, not necessarily an integer.
    let now = now.as_second() as f64;
    match claims.get("exp").map(Value::as_f64) {
        Some(Some(expires)) if expires > now => {}
        Some(Some(_)) => return wrong("it has expired"),
        _ => return wrong("it does not say when it expires"),
    }
    match claims.get("nbf").map(Value::as_f64) {
        None => Ok(()),
        Some(Some(from)) if from <= now => Ok(()),
        Some(Some(_)) => wrong("it is not valid yet"),
        Some(None) => wrong("the time from which it is valid is not a number"),
    }
}

/// Returns the user in verified claims, or why there is none.
fn user_of(settings: &Settings, claims: &Map<String, Value>) -> Result<User, String> {
    let claim = &settings.username_claim;
    let name = claims.get(claim).and_then(Value::as_str).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| format!("claim {claim:?} is missing or no text"))?;
    if claim == "email" && claims.get("email_verified").is_some_and(|verified| *verified != true) {
        return Err("the email address is not verified".to_owned());
    }
    let prefix = match settings.username_prefix.as_deref() {
        Some("-") => String::new(),
        Some(prefix) => prefix.to_owned(),
        None if claim == "email" => String::new(),
        None => format!("{}#", settings.issuer),
    };
    for (key, wanted) in &settings.required_claims {
        if claims.get(key).and_then(Value::as_str) != Some(wanted) {
            return Err(format!("claim {key:?} is not {wanted:?}"));
        }
    }
    let groups = match settings.groups_claim.as_ref().and_then(|claim| claims.get(claim)) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(many)) => many
            .iter()
            .map(|group| group.as_str().ok_or_else(|| "a group is not a text".to_owned()))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err("the claim with the groups is neither text nor a list".to_owned()),
    };
    let groups = groups.into_iter().map(|group| format!("{}{group}", settings.groups_prefix)).collect();
    let mut user = User { name: format!("{prefix}{name}"), groups, ..User::default() };
    if let Some(id) = claims.get("jti").and_then(Value::as_str) {
        user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={id}")]);
    }
    Ok(user.authenticated())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings() -> Settings {
        Settings {
            issuer: "https://issuer.example.com".to_owned(),
            client_id: "karmada".to_owned(),
            username_claim: "sub".to_owned(),
            username_prefix: None,
            groups_claim: Some("groups".to_owned()),
            groups_prefix: "oidc:".to_owned(),
            ca_file: None,
            required_claims: BTreeMap::new(),
            signing_algorithms: vec!["RS256".to_owned()],
        }
    }

    fn user(settings: &Settings, claims: Value) -> Result<User, String> {
        user_of(settings, claims.as_object().expect("an object"))
    }

    #[test]
    fn names_are_prefixed_so_that_nobody_can_pose_as_a_user_of_ours() {
        let found = user(&settings(), json!({"sub": "jane", "groups": ["dev", "ops"]})).unwrap();
        assert_eq!(found.name, "https://issuer.example.com#jane");
        assert_eq!(found.groups, ["oidc:dev", "oidc:ops", "system:authenticated"]);
        let plain = Settings { username_prefix: Some("-".to_owned()), ..settings() };
        assert_eq!(user(&plain, json!({"sub": "jane", "groups": "dev"})).unwrap().name, "jane");
    }

    #[test]
    fn an_email_address_counts_unless_it_is_known_to_be_unverified() {
        let mail = Settings { username_claim: "email".to_owned(), ..settings() };
        assert_eq!(user(&mail, json!({"email": "j@example.com"})).unwrap().name, "j@example.com");
        assert!(user(&mail, json!({"email": "j@example.com", "email_verified": true})).is_ok());
        assert!(user(&mail, json!({"email": "j@example.com", "email_verified": false})).is_err());
    }

    #[test]
    fn required_claims_are_required() {
        let strict = Settings {
            required_claims: BTreeMap::from([("tenant".to_owned(), "a".to_owned())]),
            ..settings()
        };
        assert!(user(&strict, json!({"sub": "jane", "tenant": "a"})).is_ok());
        assert!(user(&strict, json!({"sub": "jane", "tenant": "b"})).is_err());
        assert!(user(&strict, json!({"sub": "jane"})).is_err());
        assert!(user(&settings(), json!({"groups": []})).is_err(), "nobody without a name");
    }

    #[test]
    fn a_token_counts_for_us_while_it_is_valid() {
        let now = Timestamp::from_second(1_000).unwrap();
        let check = |change: Value| {
            let mut claims =
                json!({"iss": "https://issuer.example.com", "aud": "karmada", "exp": 2000, "nbf": 900.5});
            for (key, value) in change.as_object().unwrap() {
                claims[key] = value.clone();
            }
            valid_now(&settings(), claims.as_object().unwrap(), now).is_ok()
        };
        assert!(check(json!({})));
        assert!(check(json!({"aud": ["a", "karmada"], "exp": 1e300})));
        for bad in [
            json!({"iss": "https://elsewhere.example.com"}),
            json!({"aud": "karmad"}),
            json!({"aud": null}),
            json!({"exp": 1000}),
            json!({"exp": "2000"}),
            json!({"exp": null}),
            json!({"nbf": 1001}),
            json!({"nbf": "never"}),
        ] {
            assert!(!check(bad.clone()), "{bad}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let refused = |change: fn(&mut Settings)| {
            let mut settings = settings();
            change(&mut settings);
            Oidc::new(settings).unwrap_err().to_string()
        };
        assert!(refused(|s| s.issuer = "http://issuer.example.com".to_owned()).contains("https URL"));
        assert!(refused(|s| s.client_id.clear()).contains("--oidc-client-id"));
        assert!(refused(|s| s.signing_algorithms = vec!["HS256".to_owned()]).contains("HS256"));
    }
}
