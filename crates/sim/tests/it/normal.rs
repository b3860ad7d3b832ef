//! Objects without what may differ from run to run: identities, times, addresses, generated names, places.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

static PATTERNS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
        (r"\b(10|127|172|192)\.\d+\.\d+\.\d+\b", "IP"),
        (r"kube-api-access-[a-z0-9]{5}", "kube-api-access-RANDOM"),
        (r"member1-node-\d", "NODE"),
        (r"region-1-[abc]", "ZONE"),
    ]
    .into_iter()
    .map(|(pattern, name)| (Regex::new(pattern).expect("a pattern"), name))
    .collect()
});

/// Returns all objects of a namespace by `Kind/name`; those that only chance tells apart come as a sorted list.
pub(crate) fn normalise(namespace: &str, objects: Vec<Value>) -> Map<String, Value> {
    let hashes = hashes(&objects);
    let mut all: Map<String, Value> = Map::new();
    let mut sorted: Vec<(String, Value)> = objects
        .into_iter()
        .map(|mut object| {
            strip(&mut object);
            let generated =
                object.pointer("/metadata/generateName").and_then(Value::as_str).map(str::to_owned);
            let kind = object["kind"].as_str().unwrap_or("").to_owned();
            let own = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let mut text = object.to_string();
            if let Some(generated) = generated.filter(|_| !own.is_empty() && kind != "StatefulSet") {
                // Ordinals of a StatefulSet stay; what chance made has five characters, sometimes digits alone.
                let is_ordinal = |end: &str| end.len() < 5 && end.parse::<u32>().is_ok();
                let fixed = kind == "Pod" && own.rsplit('-').next().is_some_and(is_ordinal);
                if !fixed {
                    text = text.replace(&own, &format!("{generated}RANDOM"));
                }
            }
            text = replace(&text, namespace, &hashes);
            let mut object: Value = serde_json::from_str(&text).expect("still JSON");
            sort(&mut object);
            let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
            (format!("{kind}/{name}"), object)
        })
        .collect();
    // Names of generated objects inside others, such as the targets of endpoints.
    sorted.sort_by_cached_key(|(key, object)| (key.clone(), object.to_string()));
    for (key, object) in sorted {
        match all.get_mut(&key) {
            Some(Value::Array(same)) => same.push(object),
            _ => {
                all.insert(key, Value::Array(vec![object]));
            }
        }
    }
    all
}

fn replace(text: &str, namespace: &str, hashes: &[String]) -> String {
    let mut text = text.replace(namespace, "NAMESPACE");
    for hash in hashes {
        text = text.replace(hash, "HASH");
    }
    for (pattern, name) in PATTERNS.iter() {
        text = pattern.replace_all(&text, *name).into_owned();
    }
    static TARGET: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"("name":"[a-z0-9-]*?HASH)-[a-z0-9]{5}""#).expect("a pattern"));
    TARGET.replace_all(&text, r#"$1-RANDOM""#).into_owned()
}

fn hashes(objects: &[Value]) -> Vec<String> {
    let labels = ["pod-template-hash", "controller-revision-hash", "controller.kubernetes.io/hash"];
    let mut found: Vec<String> = objects
        .iter()
        .flat_map(|object| labels.iter().filter_map(|label| object["metadata"]["labels"][*label].as_str()))
        .map(|hash| hash.rsplit('-').next().unwrap_or(hash).to_owned())
        .filter(|hash| hash.len() > 5)
        .collect();
    found.sort();
    found.dedup();
    found
}

fn strip(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
            metadata.remove(field);
        }
    }
    if object["kind"] == "EndpointSlice" {
        // Counts how often it changed, which depends on how pods happened to come.
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("generation"));
    }
}

/// Puts lists whose order follows addresses or names, which are given by chance, into an order of their own.
fn sort(object: &mut Value) {
    for list in ["/endpoints", "/subsets/0/addresses", "/subsets/0/notReadyAddresses"] {
        if let Some(items) = object.pointer_mut(list).and_then(Value::as_array_mut) {
            items.sort_by_cached_key(Value::to_string);
        }
    }
}

/// Returns every place where two values differ: pointer, left, right. Numbers in pointers become `*`.
pub(crate) fn differences(left: &Value, right: &Value) -> Vec<(String, Value, Value)> {
    let mut found = Vec::new();
    walk(String::new(), left, right, &mut found);
    found
}

fn walk(at: String, left: &Value, right: &Value, found: &mut Vec<(String, Value, Value)>) {
    match (left, right) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let path = format!("{at}/{}", key.replace('/', "~1"));
                let absent = Value::String("ABSENT".to_owned());
                walk(path, a.get(key).unwrap_or(&absent), b.get(key).unwrap_or(&absent), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (one, other) in a.iter().zip(b) {
                walk(format!("{at}/*"), one, other, found);
            }
        }
        _ if left == right => {}
        _ => found.push((at, left.clone(), right.clone())),
    }
}
