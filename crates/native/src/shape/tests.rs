//! What canonicalisation does to objects and says about broken ones. The bulk is in `tests/go.rs`; these are the cases
//! that a reader should see, with texts as a stock server answers them.

use apimachinery::depth::TooDeep;
use apimachinery::gvk::Gvk;
use serde_json::{Value, json};

use super::*;

fn check(api_version: &str, kind: &str, mut given: Value, expected: Value) {
    let unknown = canonicalise(&Gvk::from_api_version(api_version, kind), &mut given).expect("decodes");
    assert_eq!(unknown, Vec::<String>::new());
    assert_eq!(given, expected);
}

fn refused(api_version: &str, kind: &str, mut given: Value) -> String {
    let gvk = Gvk::from_api_version(api_version, kind);
    canonicalise(&gvk, &mut given).expect_err("is broken").for_request(&gvk)
}

#[test]
fn structs_that_go_always_prints_appear() {
    check(
        "apps/v1",
        "Deployment",
        json!({"metadata": {"name": "d"}, "spec": {"selector": null, "template": {"spec": {"containers": [{"name": "c"}]}}}}),
        json!({
            "metadata": {"name": "d"},
            "spec": {
                "selector": null,
                "strategy": {},
                "template": {"metadata": {}, "spec": {"containers": [{"name": "c", "resources": {}}]}},
            },
            "status": {},
        }),
    );
}

#[test]
fn zero_values_vanish_but_pointers_to_zero_stay() {
    check(
        "apps/v1",
        "ReplicaSet",
        json!({"metadata": {"generateName": "", "labels": {}, "finalizers": []}, "spec": {"replicas": 0, "minReadySeconds": 0, "selector": {}}}),
        json!({
            "metadata": {},
            "spec": {"replicas": 0, "selector": {}, "template": {"metadata": {}, "spec": {"containers": null}}},
            "status": {"replicas": 0},
        }),
    );
}

#[test]
fn empty_lists_without_omitempty_print_as_null_except_where_storage_is_json() {
    check(
        "rbac.authorization.k8s.io/v1",
        "Role",
        json!({"metadata": {}, "rules": []}),
        json!({"metadata": {}, "rules": null}),
    );
    let mut crd = json!({"status": {"conditions": [], "storedVersions": []}});
    let gvk = Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    canonicalise(&gvk, &mut crd).expect("decodes");
    assert_eq!(crd["status"]["storedVersions"], json!([]));
}

#[test]
fn quantities_are_canonical_and_resource_lists_round_up_to_milli() {
    check(
        "v1",
        "ResourceQuota",
        json!({"metadata": {}, "spec": {"hard": {"cpu": "1.0005", "memory": "1024Mi", "pods": 0.5, "tiny": "100n"}}}),
        json!({
            "metadata": {},
            "spec": {"hard": {"cpu": "1001m", "memory": "1Gi", "pods": "500m", "tiny": "1m"}},
            "status": {},
        }),
    );
}

#[test]
fn times_are_printed_in_utc_seconds_and_micro_times_with_six_digits() {
    check(
        "coordination.k8s.io/v1",
        "Lease",
        json!({
            "metadata": {"creationTimestamp": "2024-02-29T23:30:00.999+02:00", "deletionTimestamp": null},
            "spec": {"renewTime": "2024-01-01T00:00:00.000001-01:00"},
        }),
        json!({
            "metadata": {"creationTimestamp": "2024-02-29T21:30:00Z"},
            "spec": {"renewTime": "2024-01-01T01:00:00.000001Z"},
        }),
    );
}

#[test]
fn base64_loses_its_line_breaks_and_null_bytes_become_empty() {
    check(
        "v1",
        "Secret",
        json!({"metadata": {}, "data": {"a": "aGVs\nbG8=", "b": null, "c": ""}}),
        json!({"metadata": {}, "data": {"a": "aGVsbG8=", "b": "", "c": ""}}),
    );
}

#[test]
fn floats_without_fraction_print_as_integers() {
    let schema = json!({"openAPIV3Schema": {"type": "number", "maximum": 10.0, "minimum": 0.5}});
    let mut crd = json!({"spec": {"versions": [{"name": "v1", "schema": schema}]}});
    canonicalise(&Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition"), &mut crd)
        .expect("decodes");
    let printed = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert_eq!(printed.to_string(), r#"{"maximum":10,"minimum":0.5,"type":"number"}"#);
}

#[test]
fn unknown_fields_are_named_by_their_paths() {
    let mut pod = json!({"bar": 1, "metadata": {"foo": 1}, "spec": {"containers": [{"name": "a"}, {"name": "b", "Image": "i"}]}});
    let unknown = canonicalise(&Gvk::new("", "v1", "Pod"), &mut pod).expect("decodes");
    assert_eq!(unknown, ["metadata.foo", "spec.containers[1].Image", "bar"]);
    assert_eq!(pod["spec"]["containers"][1], json!({"name": "b", "resources": {}}));
}

#[test]
fn unknown_fields_below_a_long_key_do_not_become_as_many_long_paths() {
    let fields: Map<String, Value> = (0..100).map(|number| (format!("f{number}"), json!(0))).collect();
    let properties = json!({"k".repeat(1 << 20): fields});
    let mut given =
        json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"properties": properties}}}]}});
    let gvk = Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let unknown = canonicalise(&gvk, &mut given).expect("decodes");
    assert!(!unknown.is_empty() && unknown.len() < 10, "{} paths of a megabyte", unknown.len());
}

#[test]
fn unknown_fields_inside_schema_unions_are_dropped_in_silence() {
    let schema =
        json!({"openAPIV3Schema": {"additionalProperties": {"type": "string", "bogus": 1}, "bogus": 2}});
    let mut crd = json!({"spec": {"versions": [{"name": "v1", "schema": schema}]}});
    let gvk = Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let unknown = canonicalise(&gvk, &mut crd).expect("decodes");
    assert_eq!(unknown, ["spec.versions[0].schema.openAPIV3Schema.bogus"]);
}

#[test]
fn a_value_of_the_wrong_type_is_refused_as_by_a_stock_server() {
    let cases = [
        (
            json!({"data": "x"}),
            "ConfigMap",
            r#"json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string"#,
        ),
        (
            json!({"data": {"x": 1}}),
            "ConfigMap",
            r#"json: cannot unmarshal number into Go struct field ConfigMap.data of type string"#,
        ),
        (
            json!({"metadata": {"creationTimestamp": "yesterday"}}),
            "ConfigMap",
            r#"parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006""#,
        ),
        (json!({"binaryData": {"x": "%%%"}}), "ConfigMap", "illegal base64 data at input byte 0"),
        (json!({"binaryData": {"x": "YWJ"}}), "ConfigMap", "illegal base64 data at input byte 0"),
        (
            json!({"spec": {"ports": [{"port": "80"}]}}),
            "Service",
            "json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32",
        ),
        (
            json!({"spec": {"ports": {"port": 80}}}),
            "Service",
            "json: cannot unmarshal object into Go struct field ServiceSpec.spec.ports of type []v1.ServicePort",
        ),
        (
            json!({"spec": {"ports": [{"port": 80, "targetPort": true}]}}),
            "Service",
            "json: cannot unmarshal bool into Go struct field ServicePort.spec.ports.targetPort of type int32",
        ),
        (
            json!({"spec": {"hard": {"pods": "abc"}}}),
            "ResourceQuota",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ];
    for (object, kind, text) in cases {
        let expected = format!("{kind} in version \"v1\" cannot be handled as a {kind}: {text}");
        assert_eq!(refused("v1", kind, object), expected);
    }
}

#[test]
fn a_micro_time_without_its_six_digits_is_refused() {
    let text =
        refused("coordination.k8s.io/v1", "Lease", json!({"spec": {"renewTime": "2024-01-01T00:00:00Z"}}));
    let expected = r#"Lease in version "v1" cannot be handled as a Lease: parsing time "2024-01-01T00:00:00Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#;
    assert_eq!(text, expected);
}

#[test]
fn a_kind_without_a_table_is_not_guessed() {
    let gvk = Gvk::new("example.com", "v1", "Foo");
    assert_eq!(canonicalise(&gvk, &mut json!({})), Err(DecodeError::UnknownKind(gvk)));
}

#[test]
fn schemas_nested_beyond_reason_are_refused_before_the_stack_ends() {
    let mut schema = json!({"type": "object"});
    for _ in 0..2_000 {
        schema = json!({"not": schema});
    }
    let mut crd = json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}});
    let gvk = Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    assert_eq!(canonicalise(&gvk, &mut crd), Err(DecodeError::Mismatch(TooDeep.to_string())));
}

#[test]
fn times_out_of_range_are_refused_in_gos_words() {
    let refused = |text: &str| time::canonical_seconds(text).expect_err("is broken");
    assert_eq!(refused("2024-13-01T00:00:00Z"), r#"parsing time "2024-13-01T00:00:00Z": month out of range"#);
    assert_eq!(refused("2023-02-29T00:00:00Z"), r#"parsing time "2023-02-29T00:00:00Z": day out of range"#);
    assert_eq!(refused("2024-01-01T24:00:00Z"), r#"parsing time "2024-01-01T24:00:00Z": hour out of range"#);
    assert_eq!(
        refused("2024-01-01T00:00:00Zjunk"),
        r#"parsing time "2024-01-01T00:00:00Zjunk": extra text: "junk""#
    );
    assert_eq!(
        refused("2024-01-01 00:00:00Z"),
        r#"parsing time "2024-01-01 00:00:00Z" as "2006-01-02T15:04:05Z07:00": cannot parse " 00:00:00Z" as "T""#
    );
    assert_eq!(time::canonical_seconds("0001-01-01T00:00:00Z"), Ok(Value::Null), "Go's zero time");
}
