//! What Go makes of objects, and what we make of them: for every kind a minimal object, one with every field set, one
//! with every field at its zero value, one with nulls, and mutations of the full one. `gen/samples.go` wrote the data.

use apimachinery::gvk::Gvk;
use base64::Engine as _;
use native::{proto, shape};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Samples {
    group: String,
    version: String,
    kind: String,
    samples: BTreeMap<String, Sample>,
    #[serde(default)]
    mutations: Vec<Mutation>,
}

#[derive(Deserialize)]
struct Sample {
    #[serde(rename = "in")]
    input: Value,
    out: Value,
    #[serde(default)]
    proto: String,
}

#[derive(Deserialize)]
struct Mutation {
    path: Vec<Value>,
    value: Value,
    #[serde(default)]
    error: String,
    #[serde(default)]
    unknown: Vec<String>,
    #[serde(default)]
    out: Value,
}

impl Samples {
    fn gvk(&self) -> Gvk {
        Gvk::new(&*self.group, &*self.version, &*self.kind)
    }
}

fn samples() -> Vec<Samples> {
    let packed = include_bytes!("../testdata/samples.json.zst");
    let bytes = zstd::stream::decode_all(&packed[..]).expect("test data is intact");
    let mut samples: Vec<Samples> = serde_json::from_slice(&bytes).expect("test data has its type");
    // The samples show Go's encoders alone; this is what the server's conversion adds.
    let set = samples.iter_mut().find(|kind| kind.kind == "StatefulSet").expect("a served kind");
    let outputs = set.samples.values_mut().map(|sample| &mut sample.out);
    for out in outputs.chain(set.mutations.iter_mut().map(|mutation| &mut mutation.out)) {
        let templates = out.pointer_mut("/spec/volumeClaimTemplates").and_then(Value::as_array_mut);
        for template in templates.into_iter().flatten() {
            template["apiVersion"] = "v1".into();
            template["kind"] = "PersistentVolumeClaim".into();
        }
    }
    samples
}

/// Collects the differences of all samples, so that one run shows them all.
fn report(problems: &[String]) {
    let shown: Vec<_> = problems.iter().take(30).map(String::as_str).collect();
    assert!(problems.is_empty(), "{} differ:\n{}", problems.len(), shown.join("\n"));
}

/// Returns the first place where two trees differ.
fn difference(ours: &Value, theirs: &Value, path: &str) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            keys.into_iter().find_map(|key| match (a.get(key), b.get(key)) {
                (Some(a), Some(b)) => difference(a, b, &format!("{path}.{key}")),
                (a, b) => Some(format!("{path}.{key}: ours {a:?}, Go {b:?}")),
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().find_map(|(at, (a, b))| difference(a, b, &format!("{path}[{at}]")))
        }
        (a, b) if a == b => None,
        (a, b) => Some(format!("{path}: ours {a}, Go {b}")),
    }
}

#[test]
fn canonical_objects_are_what_go_prints() {
    let mut problems = Vec::new();
    for kind in samples() {
        for (name, sample) in &kind.samples {
            let mut value = sample.input.clone();
            match shape::canonicalise(&kind.gvk(), &mut value) {
                Ok(unknown) if !unknown.is_empty() => {
                    problems.push(format!("{} {name}: unknown {unknown:?}", kind.kind))
                }
                Ok(_) => problems.extend(
                    difference(&value, &sample.out, "").map(|text| format!("{} {name} {text}", kind.kind)),
                ),
                Err(error) => problems.push(format!("{} {name}: {error}", kind.kind)),
            }
        }
    }
    report(&problems);
}

#[test]
fn canonicalising_twice_changes_nothing() {
    let mut problems = Vec::new();
    for kind in samples() {
        for (name, sample) in &kind.samples {
            let mut value = sample.out.clone();
            shape::canonicalise(&kind.gvk(), &mut value).expect("Go's output decodes");
            problems.extend(
                difference(&value, &sample.out, "").map(|text| format!("{} {name} {text}", kind.kind)),
            );
        }
    }
    report(&problems);
}

#[test]
fn broken_objects_are_refused_in_gos_words_and_unknown_fields_named() {
    let mut problems = Vec::new();
    let mut count = 0;
    for kind in samples() {
        for mutation in &kind.mutations {
            count += 1;
            let mut value = kind.samples["full"].input.clone();
            put(&mut value, &mutation.path, mutation.value.clone());
            let place = format!("{} {:?} = {}", kind.kind, mutation.path, mutation.value);
            match shape::canonicalise(&kind.gvk(), &mut value) {
                Ok(_) if !mutation.error.is_empty() => {
                    problems.push(format!("{place}: accepted, Go: {}", mutation.error))
                }
                Ok(unknown) if unknown != mutation.unknown => {
                    problems.push(format!("{place}: unknown {unknown:?}, Go {:?}", mutation.unknown));
                }
                Ok(_) => problems
                    .extend(difference(&value, &mutation.out, "").map(|text| format!("{place}: {text}"))),
                Err(error) if error.to_string() != mutation.error => {
                    problems.push(format!("{place}: {error}, Go: {}", mutation.error));
                }
                Err(_) => {}
            }
        }
    }
    assert!(count > 500, "only {count} mutations");
    report(&problems);
}

fn put(node: &mut Value, path: &[Value], value: Value) {
    match path {
        [] => *node = value,
        [Value::String(key), rest @ ..] => {
            put(node.as_object_mut().expect("an object").entry(key).or_insert(Value::Null), rest, value);
        }
        [at, rest @ ..] => {
            let at = usize::try_from(at.as_u64().expect("an index")).expect("small");
            put(&mut node.as_array_mut().expect("an array")[at], rest, value);
        }
    }
}

fn with_protobuf() -> impl Iterator<Item = (Gvk, String, Sample, Vec<u8>)> {
    samples().into_iter().flat_map(|kind| {
        let gvk = kind.gvk();
        kind.samples.into_iter().filter(|(_, sample)| !sample.proto.is_empty()).map(move |(name, sample)| {
            let bytes =
                base64::engine::general_purpose::STANDARD.decode(&sample.proto).expect("test data is base64");
            (gvk.clone(), name, sample, bytes)
        })
    })
}

/// Drops what JSON keeps and protobuf cannot, in the two groups that are stored as JSON: empty lists, inner types.
fn through_protobuf(gvk: &Gvk, value: &mut Value) {
    if !matches!(&*gvk.group, "apiextensions.k8s.io" | "apiregistration.k8s.io") {
        return;
    }
    match value {
        Value::Object(entries) => {
            if let Some(Value::Object(result)) = entries.get_mut("result") {
                result.remove("apiVersion");
                result.remove("kind");
            }
            for (_, item) in entries.iter_mut() {
                through_protobuf(gvk, item);
                if item.as_array().is_some_and(Vec::is_empty) {
                    *item = Value::Null;
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| through_protobuf(gvk, item)),
        _ => {}
    }
}

#[test]
fn protobuf_decodes_to_what_go_prints() {
    let mut problems = Vec::new();
    let mut count = 0;
    for (gvk, name, mut sample, bytes) in with_protobuf() {
        count += 1;
        through_protobuf(&gvk, &mut sample.out);
        match proto::decode(&bytes) {
            Ok((_, value)) => {
                problems.extend(
                    difference(&value, &sample.out, "").map(|text| format!("{} {name} {text}", gvk.kind)),
                );
            }
            Err(error) => problems.push(format!("{} {name}: {error}", gvk.kind)),
        }
    }
    assert!(count > 300, "only {count} messages");
    report(&problems);
}

#[test]
fn protobuf_is_encoded_byte_for_byte_as_go_does() {
    let mut problems = Vec::new();
    for (gvk, name, sample, bytes) in with_protobuf() {
        let named = proto::peek(&bytes).expect("Go wrote an envelope");
        match proto::encode(&named, &sample.out) {
            Ok(ours) if ours == bytes => {}
            // Go writes an empty byte slice, which JSON cannot tell from none.
            Ok(ours) if name == "zeros" && proto::decode(&ours) == proto::decode(&bytes) => {}
            Ok(ours) => {
                let at =
                    ours.iter().zip(&bytes).position(|(a, b)| a != b).unwrap_or(ours.len().min(bytes.len()));
                let from = at.saturating_sub(30);
                let text = |bytes: &[u8]| {
                    String::from_utf8_lossy(&bytes[from..bytes.len().min(at + 20)]).into_owned()
                };
                problems.push(format!(
                    "{} {name} at {at}: ours {:?}, Go {:?}",
                    gvk.kind,
                    text(&ours),
                    text(&bytes)
                ));
            }
            Err(error) => problems.push(format!("{} {name}: {error}", gvk.kind)),
        }
    }
    report(&problems);
}
