//! Takes out of an answer what may differ between any two servers: uids, versions, times, generated names, the order
//! of managed fields, the administrator's name, Go type names and the key order inside quoted objects.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

/// Returns a body for comparison: JSON as such, a stream of JSON lines as a list, anything else as text.
pub(crate) fn body(bytes: &[u8]) -> Value {
    if let Ok(value) = serde_json::from_slice(bytes) {
        return normal(value, "");
    }
    let text = String::from_utf8_lossy(bytes);
    let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    match lines {
        Ok(lines) if lines.len() > 1 => lines.into_iter().map(|line| normal(line, "")).collect(),
        _ if bytes.starts_with(b"k8s\0") => Value::String("protobuf".to_owned()),
        _ => Value::String(plain(&text)),
    }
}

fn normal(value: Value, key: &str) -> Value {
    match value {
        Value::Object(fields) => {
            let is_column = key == "columnDefinitions";
            fields
                .into_iter()
                .filter(|(name, _)| !(is_column && name == "description"))
                .map(|(name, value)| {
                    let value = field(&name, value);
                    (name, value)
                })
                .collect::<Map<_, _>>()
                .into()
        }
        Value::Array(items) => items.into_iter().map(|item| normal(item, key)).collect(),
        Value::String(text) if key == "cells" && AGE.is_match(&text) => "AGE".into(),
        Value::String(text) if text == "kubernetes-admin" || text == "system:admin" => "ADMINISTRATOR".into(),
        Value::String(text) => plain(&text).into(),
        other => other,
    }
}

fn field(name: &str, value: Value) -> Value {
    let filled = matches!(&value, Value::String(text) if !text.is_empty());
    match name {
        "managedFields" => managed_fields(value),
        "resourceRules" | "nonResourceRules" => {
            // kube-apiserver tells a user's rules in no particular order.
            let Value::Array(mut rules) = normal(value, name) else { return Value::Null };
            rules.sort_by_cached_key(Value::to_string);
            rules.into()
        }
        "resourceVersion" if filled => "RV".into(),
        "clusterIP" if filled && value != "None" => "ADDRESS".into(),
        "clusterIPs" if value != serde_json::json!(["None"]) => "ADDRESSES".into(),
        "serverAddress" => "ADDRESS".into(),
        "continue" if filled => "CONTINUE".into(),
        "lastTransitionTime" | "lastPhaseTransitionTime" if filled => "TIME".into(),
        _ if filled && name.to_ascii_lowercase().ends_with("timestamp") => "TIME".into(),
        _ => normal(value, name),
    }
}

/// Managers are a set; each is written as text, so that a difference shows as one line.
fn managed_fields(value: Value) -> Value {
    let Value::Array(entries) = value else { return value };
    let mut texts: Vec<String> = entries
        .into_iter()
        .map(|mut entry| {
            if let Some(entry) = entry.as_object_mut() {
                entry.remove("time");
            }
            plain(&entry.to_string())
        })
        .collect();
    texts.sort();
    texts.into_iter().map(Value::String).collect()
}

static AGE: LazyLock<Regex> = LazyLock::new(|| regex(r"^(\d+[dhms])+$|^<invalid>$"));
static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
        (r#"resourceVersion\\*":\\*"\d+"#, "resourceVersion:RV"),
        (r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
        // Names that generateName completed: the suite's prefixes end in "gen-".
        (r"\b(gen-|Gen_)[a-z0-9]{5}\b", "gen-NAME"),
        (r"ResourceVersion in record \(\d+\)", "ResourceVersion in record (RV)"),
        // Where kube-apiserver keeps an object in its store.
        (r"Key: /[^,]+,", "Key: KEY,"),
        (r"(?s)in scheme .*$", "in scheme"),
        (r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", "TOKEN"),
        (r"X509SHA256=[0-9a-f]{64}", "X509SHA256=DIGEST"),
        // A quoted object: Go prints maps in random order, and types we do not have.
        (r#"(?s)is invalid: patch: Invalid value: .*": "#, "is invalid: patch: Invalid value: OBJECT: "),
        (r#"(?s)^Invalid value: "\{.*": "#, "Invalid value: OBJECT: "),
    ]
    .into_iter()
    .map(|(pattern, text)| (regex(pattern), text))
    .collect()
});

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

fn plain(text: &str) -> String {
    RULES.iter().fold(text.to_owned(), |text, (rule, with)| rule.replace_all(&text, *with).into_owned())
}

#[test]
fn differences_between_any_two_servers_are_removed() {
    let first = br#"{"metadata":{"uid":"0b0e4f39-5c5b-4b43-9b0c-0c6e8d0f3a11","resourceVersion":"7","name":"gen-abcde"}}"#;
    let second = br#"{"metadata":{"name":"gen-zzzzz","resourceVersion":"9","uid":"1b0e4f39-5c5b-4b43-9b0c-0c6e8d0f3a12"}}"#;
    assert_eq!(body(first), body(second));
}

#[test]
fn other_differences_are_kept() {
    assert_ne!(body(br#"{"code":404}"#), body(br#"{"code":409}"#));
    assert_ne!(
        body(br#"{"metadata":{"resourceVersion":""}}"#),
        body(br#"{"metadata":{"resourceVersion":"1"}}"#)
    );
    assert_ne!(body(b"{\"a\":1}\n{\"a\":2}\n"), body(b"{\"a\":2}\n{\"a\":1}\n"));
}
