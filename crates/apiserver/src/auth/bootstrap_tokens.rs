//! Bootstrap tokens: short-lived secrets with which a machine requests a certificate, kept as Secrets in `kube-system`.

use base64::Engine;
use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};
use store::Store;

use super::User;
use crate::head::Head;

pub(crate) const PREFIX: &str = "kube-system/bootstrap-token-";
const KIND: &str = "bootstrap.kubernetes.io/token";

/// A token, as read from its Secret.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) id: String,
    secret: String,
    expires: Option<Timestamp>,
    authenticates: bool,
    pub(crate) signs: bool,
    groups: Vec<String>,
}

impl Token {
    /// Reads a Secret; `None` if it is not a bootstrap token.
    pub(crate) fn read(name: &str, body: &[u8]) -> Option<Self> {
        let secret: Value = serde_json::from_slice(body).ok()?;
        if secret.get("type").and_then(Value::as_str) != Some(KIND) {
            return None;
        }
        let text = |key: &str| {
            let encoded = secret.get("data")?.get(key)?.as_str()?;
            let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).ok()?;
            String::from_utf8(bytes).ok()
        };
        let id = text("token-id")?;
        if name != format!("{PREFIX}{id}") {
            return None;
        }
        // An unreadable time counts as expired.
        let expires = text("expiration").map(|time| time.parse().unwrap_or(Timestamp::UNIX_EPOCH));
        Some(Self {
            id,
            secret: text("token-secret")?,
            expires,
            authenticates: text("usage-bootstrap-authentication").as_deref() == Some("true"),
            signs: text("usage-bootstrap-signing").as_deref() == Some("true"),
            groups: text("auth-extra-groups")
                .unwrap_or_default()
                .split(',')
                .filter(|group| group.starts_with("system:bootstrappers:"))
                .map(str::to_owned)
                .collect(),
        })
    }

    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    pub(crate) fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    /// Returns the detached JSON web signature of a document, `header..signature`.
    pub(crate) fn sign(&self, document: &str) -> String {
        let url = base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let header = url.encode(format!("{{\"alg\":\"HS256\",\"kid\":\"{}\"}}", self.id));
        let signed = format!("{header}.{}", url.encode(document));
        let signature = url.encode(hmac(self.secret.as_bytes(), signed.as_bytes()));
        format!("{header}..{signature}")
    }
}

/// Returns the identity of a `<id>.<secret>`.
pub(crate) fn identify(store: &Store<Head>, token: &str, now: Timestamp) -> Option<User> {
    let (id, secret) = token.split_once('.')?;
    let plain = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    if !plain(id, 6) || !plain(secret, 16) {
        return None;
    }
    let name = format!("{PREFIX}{id}");
    let entry = store.get("secrets", &name).filter(|entry| !entry.head.deleting)?;
    let known = Token::read(&name, &entry.value)?;
    // Digests are compared, so that the time of the comparison reveals nothing.
    let same = Sha256::digest(known.secret.as_bytes()) == Sha256::digest(secret.as_bytes());
    if !same || known.is_expired(now) || !known.authenticates {
        return None;
    }
    let mut groups = vec!["system:bootstrappers".to_owned()];
    groups.extend(known.groups);
    Some(User { name: format!("system:bootstrap:{id}"), groups, ..User::default() }.authenticated())
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut block = [0u8; 64];
    let digest = Sha256::digest(key);
    let short: &[u8] = if key.len() > block.len() { &digest } else { key };
    for (place, byte) in block.iter_mut().zip(short) {
        *place = *byte;
    }
    let with = |pad: u8| block.map(|byte| byte ^ pad);
    let inner = Sha256::new().chain_update(with(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(with(0x5c)).chain_update(inner).finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_the_standard() {
        // The second test case of RFC 4231.
        assert_eq!(
            hex::encode(hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn a_secret_under_another_name_is_no_token() {
        let body = br#"{"type":"bootstrap.kubernetes.io/token","data":{"token-id":"YWJjZGVm","token-secret":"MDEyMzQ1Njc4OWFiY2RlZg=="}}"#;
        assert!(Token::read("kube-system/bootstrap-token-abcdef", body).is_some());
        assert!(Token::read("kube-system/bootstrap-token-other", body).is_none());
    }
}
