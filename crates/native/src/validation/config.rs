//! ConfigMaps and Secrets.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::{json, names};
use base64::Engine as _;
use serde_json::Value;

use super::check::complaints;
use super::node::{Node, same};

/// What etcd takes comfortably; upstream's limit for both kinds.
const MAX_BYTES: usize = 1024 * 1024;

fn decoded(value: Node<'_>) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(value.text()).unwrap_or_default()
}

fn decoded_len(value: Node<'_>) -> usize {
    let text = value.text();
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4).saturating_mul(3).saturating_sub(padding)
}

pub(super) fn config_map(errors: &mut Errors, root: Node<'_>) {
    let mut bytes = 0_usize;
    for (key, value) in root.at("data").entries() {
        let path = Path::new("data").key(key);
        complaints(errors, &path, key, names::config_key(key));
        if root.at("binaryData").at(key).exists() {
            errors.push(Error::invalid(&path, key, "duplicate of key present in binaryData"));
        }
        bytes = bytes.saturating_add(value.len());
    }
    for (key, value) in root.at("binaryData").entries() {
        complaints(errors, &Path::new("binaryData").key(key), key, names::config_key(key));
        bytes = bytes.saturating_add(decoded_len(value));
    }
    if bytes > MAX_BYTES {
        // An empty path prints as brackets: the error is about the whole object.
        errors.push(Error::too_long(&Path::new("[]"), MAX_BYTES));
    }
}

pub(super) fn secret(errors: &mut Errors, root: Node<'_>) {
    let (data, path) = (root.at("data"), Path::new("data"));
    let mut bytes = 0_usize;
    for (key, value) in data.entries() {
        complaints(errors, &path.key(key), key, names::config_key(key));
        bytes = bytes.saturating_add(decoded_len(value));
    }
    if bytes > MAX_BYTES {
        errors.push(Error::too_long(&path, MAX_BYTES));
    }
    let mut require = |keys: &[&str]| {
        errors.extend(
            keys.iter().filter(|key| !data.at(key).exists()).map(|key| Error::required(&path.key(key), "")),
        );
    };
    match root.at("type").text() {
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            if root.dig(&["metadata", "annotations", key]).is_empty() {
                let at = Path::new("metadata").child("annotations").key(key);
                errors.push(Error::required(&at, ""));
            }
        }
        "kubernetes.io/tls" => require(&["tls.crt", "tls.key"]),
        "kubernetes.io/dockercfg" => json_entry(errors, data, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => json_entry(errors, data, ".dockerconfigjson"),
        "kubernetes.io/basic-auth" if !data.at("username").exists() && !data.at("password").exists() => {
            require(&["username", "password"]);
        }
        "kubernetes.io/ssh-auth" if decoded_len(data.at("ssh-privatekey")) == 0 => {
            errors.push(Error::required(&path.key("ssh-privatekey"), ""));
        }
        _ => {}
    }
}

/// The value is never shown, it holds credentials.
fn json_entry(errors: &mut Errors, data: Node<'_>, key: &str) {
    let path = Path::new("data").key(key);
    if !data.at(key).exists() {
        errors.push(Error::required(&path, ""));
        return;
    }
    let text = match json::read_value(&decoded(data.at(key))) {
        Ok(Value::Object(_) | Value::Null) => return,
        Ok(value) => {
            let found = match value {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                _ => "number",
            };
            format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}")
        }
        Err(error) => error.to_string(),
    };
    errors.push(Error::invalid(&path, "<secret contents redacted>", text));
}

/// Once `immutable` is true, only metadata may change.
pub(super) fn immutable_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    if !old.at("immutable").flag() {
        return;
    }
    let text = "field is immutable when `immutable` is set";
    if !new.at("immutable").flag() {
        errors.push(Error::forbidden(&Path::new("immutable"), text));
    }
    for field in ["data", "binaryData"] {
        if !same(new.at(field), old.at(field)) {
            errors.push(Error::forbidden(&Path::new(field), text));
        }
    }
}
