//! Laws of the codecs: hostile bytes never panic, canonicalising is idempotent, protobuf loses nothing.

use apimachinery::depth::TooDeep;
use apimachinery::gvk::Gvk;
use native::{proto, shape};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Any JSON, with keys that often hit fields of a pod.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        Just(json!("")),
        Just(json!("2024-01-01T00:00:00Z")),
        "[a-z0-9]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 5, |inner| {
        let keys = prop::sample::select(vec![
            "metadata",
            "spec",
            "status",
            "containers",
            "name",
            "labels",
            "volumes",
            "emptyDir",
            "resources",
            "limits",
            "ports",
            "containerPort",
            "annotations",
            "creationTimestamp",
            "livenessProbe",
            "httpGet",
            "port",
            "x",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(keys, inner, 0..6).prop_map(|map| Value::Object(
                map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            )),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn whatever_decodes_is_canonical_afterwards_and_survives_protobuf(given in any_json()) {
        let gvk = Gvk::new("", "v1", "Pod");
        let mut once = given;
        if shape::canonicalise(&gvk, &mut once).is_ok() {
            let mut twice = once.clone();
            prop_assert_eq!(shape::canonicalise(&gvk, &mut twice), Ok(vec![]));
            prop_assert_eq!(&twice, &once);
            let (_, mut back) = proto::decode(&proto::encode(&gvk, &once).expect("canonical")).expect("just written");
            for name in ["apiVersion", "kind"] {
                back.as_object_mut().expect("an object").remove(name);
            }
            prop_assert_eq!(back, once);
        }
    }

    #[test]
    fn hostile_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut enveloped = proto::MAGIC.to_vec();
        enveloped.extend(&bytes);
        let _ = proto::decode(&enveloped);
        let _ = proto::decode_as(&enveloped, Some(&Gvk::new("", "v1", "Pod")));
        let _ = proto::decode(&bytes);
    }

    #[test]
    fn damaged_messages_are_refused_without_a_panic(at in 0_usize..400, byte in any::<u8>(), cut in 0_usize..400) {
        let gvk = Gvk::new("apps", "v1", "Deployment");
        let object = json!({"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}},
            "template": {"spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}}]}}}});
        let mut bytes = proto::encode(&gvk, &object).expect("good");
        let length = bytes.len();
        bytes[at % length] = byte;
        bytes.truncate(length - cut % length);
        let _ = proto::decode(&bytes);
    }
}

#[test]
fn a_watch_frame_is_a_length_and_an_event_around_the_enveloped_object() {
    assert_eq!(proto::watch_frame("ADDED", b"k8s\0x"), b"\0\0\0\x10\n\x05ADDED\x12\x07\n\x05k8s\0x");
}

#[test]
fn bytes_without_the_magic_are_no_object() {
    assert_eq!(proto::decode(b"{}"), Err(proto::Error::NoEnvelope));
    assert_eq!(proto::decode(b"k8s"), Err(proto::Error::NoEnvelope));
}

#[test]
fn a_type_left_out_of_the_envelope_is_the_endpoints() {
    let gvk = Gvk::new("", "v1", "ConfigMap");
    let bytes = b"k8s\0\x12\x07\n\x05\n\x01x\x12\x00";
    assert!(proto::decode(bytes).is_err());
    let (found, value) = proto::decode_as(bytes, Some(&gvk)).expect("has a default");
    assert_eq!((found, &value["metadata"]["name"]), (gvk, &json!("x")));
}

#[test]
fn messages_nested_beyond_reason_are_refused() {
    // not = 27 in JSONSchemaProps, each level around the last.
    let mut schema: Vec<u8> = Vec::new();
    let wrap = |number: u8, inner: &[u8]| {
        let mut out = Vec::new();
        let tag = u32::from(number) << 3 | 2;
        let mut put = |mut value: usize| {
            while value >= 0x80 {
                out.push((value as u8) | 0x80);
                value >>= 7;
            }
            out.push(value as u8);
        };
        put(tag as usize);
        put(inner.len());
        out.extend_from_slice(inner);
        out
    };
    for _ in 0..2_000 {
        schema = wrap(28, &schema);
    }
    let crd = wrap(2, &wrap(7, &wrap(4, &wrap(1, &schema))));
    let mut bytes = b"k8s\0\n\x34\n\x17apiextensions.k8s.io/v1\x12\x18CustomResourceDefinition".to_vec();
    bytes[5] = u8::try_from(bytes.len() - 6).expect("short");
    bytes.extend(wrap(2, &crd));
    assert_eq!(proto::decode(&bytes), Err(proto::Error::Depth(TooDeep)));
}

#[test]
fn finding_1_envelopes_inside_of_each_other_are_refused() {
    // data = 2 in ControllerRevision is raw bytes (1), which may be an envelope again.
    let wrap = |number: u8, inner: &[u8]| {
        let mut out = vec![number << 3 | 2];
        let mut length = inner.len();
        while length >= 0x80 {
            out.push((length as u8) | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
        out.extend_from_slice(inner);
        out
    };
    let envelope = |inner: &[u8]| {
        let mut out = b"k8s\0".to_vec();
        let named = [wrap(1, b"apps/v1"), wrap(2, b"ControllerRevision")].concat();
        out.extend(wrap(1, &named));
        out.extend(wrap(2, inner));
        out
    };
    let mut bytes = envelope(&[]);
    for _ in 0..10_000 {
        bytes = envelope(&wrap(2, &wrap(1, &bytes)));
    }
    assert_eq!(proto::decode(&bytes), Err(proto::Error::Depth(TooDeep)));
}
