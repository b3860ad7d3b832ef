//! Laws of the wire format: whatever the schema allows survives decoding and encoding.
//!
//! Objects are generated from the schemas themselves, so that every field of every kind takes part.

use std::sync::LazyLock;

use api::Kind;
use api::schema::Schema;
use proptest::prelude::*;
use proptest::test_runner::TestRng;
use serde_json::{Map, Value, json};

/// A kind with its schema and the way through its Rust type.
struct Case {
    name: String,
    api_version: &'static str,
    schema: Schema,
    through_type: fn(Value) -> serde_json::Result<Value>,
}

fn case<K: Kind + serde::Serialize + serde::de::DeserializeOwned>() -> Case {
    Case {
        name: K::KIND.to_owned(),
        api_version: K::API_VERSION,
        schema: K::root_schema(),
        through_type: |value| serde_json::to_value(serde_json::from_value::<K>(value)?),
    }
}

/// Built once: the schemas are large, and the laws go through them many times.
static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    use api::{apps, autoscaling, cluster, config, multicluster, networking, policy, remedy, search, work};
    vec![
        case::<policy::PropagationPolicy>(),
        case::<policy::ClusterPropagationPolicy>(),
        case::<policy::OverridePolicy>(),
        case::<policy::ClusterOverridePolicy>(),
        case::<policy::FederatedResourceQuota>(),
        case::<policy::ClusterTaintPolicy>(),
        case::<work::ResourceBinding>(),
        case::<work::ClusterResourceBinding>(),
        case::<work::v1alpha1::ResourceBinding>(),
        case::<work::v1alpha1::ClusterResourceBinding>(),
        case::<work::Work>(),
        case::<config::ResourceInterpreterCustomization>(),
        case::<config::ResourceInterpreterWebhookConfiguration>(),
        case::<networking::MultiClusterIngress>(),
        case::<networking::MultiClusterService>(),
        case::<autoscaling::FederatedHPA>(),
        case::<autoscaling::CronFederatedHPA>(),
        case::<remedy::Remedy>(),
        case::<apps::WorkloadRebalancer>(),
        case::<multicluster::ServiceExport>(),
        case::<multicluster::ServiceImport>(),
        case::<cluster::Cluster>(),
        case::<search::ResourceRegistry>(),
    ]
});

/// How many optional fields a generated object has.
#[derive(Clone, Copy)]
enum Fill {
    Everything,
    RequiredOnly,
    Half,
}

fn generate(schema: &Schema, fill: Fill, rng: &mut TestRng) -> Value {
    let constraint = |name: &str| schema.constraints.get(name);
    if let Some(Value::Array(values)) = constraint("enum") {
        return values[rng.random_range(0..values.len())].clone();
    }
    if constraint("x-kubernetes-int-or-string").is_some() {
        let texts = ["1", "250m", "4Gi", "0"];
        return json!(texts[rng.random_range(0..texts.len())]);
    }
    if constraint("x-kubernetes-preserve-unknown-fields").is_some() {
        return json!({ "kind": "Sample", "deep": { "list": [1, "two", null, { "x": 1.5 }] } });
    }
    match constraint("type").and_then(Value::as_str) {
        Some("string") => match constraint("format").and_then(Value::as_str) {
            Some("date-time") => json!("2024-05-06T07:08:09Z"),
            Some("byte") => json!("Q0E="),
            _ => json!(format!("text{}", rng.random_range(0..1000))),
        },
        Some("integer") => json!(rng.random_range(1..30)),
        // Go omits false, so only true must survive.
        Some("boolean") => json!(true),
        Some("array") => {
            let items = schema.items.as_deref().expect("lists have items");
            (0..rng.random_range(1..3)).map(|_| generate(items, fill, rng)).collect()
        }
        Some("object") => match &schema.values {
            Some(values) => {
                let mut out = Map::new();
                for _ in 0..rng.random_range(1..3) {
                    out.insert(format!("key{}", rng.random_range(0..100)), generate(values, fill, rng));
                }
                out.into()
            }
            None => {
                let mut out = Map::new();
                for property in &schema.properties {
                    let wanted = match fill {
                        Fill::Everything => true,
                        Fill::RequiredOnly => false,
                        Fill::Half => rng.next_u32().is_multiple_of(2),
                    };
                    if property.required || wanted {
                        out.insert(property.name.to_owned(), generate(&property.schema, fill, rng));
                    }
                }
                out.into()
            }
        },
        other => panic!("cannot generate {other:?}"),
    }
}

fn object(case: &Case, fill: Fill, rng: &mut TestRng) -> Value {
    let mut object = generate(&case.schema, fill, rng);
    object["apiVersion"] = case.api_version.into();
    object["kind"] = case.name.as_str().into();
    object["metadata"] = json!({ "name": "sample", "labels": { "a": "b" } });
    object
}

/// Says where something of the left is missing or different on the right.
fn lost(path: &str, before: &Value, after: &Value) -> Option<String> {
    match (before, after) {
        (Value::Object(left), Value::Object(right)) => left.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            match right.get(key) {
                Some(found) => lost(&path, value, found),
                None => Some(path),
            }
        }),
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            left.iter().zip(right).enumerate().find_map(|(i, (l, r))| lost(&format!("{path}[{i}]"), l, r))
        }
        _ if before == after => None,
        _ => Some(format!("{path}: {before} became {after}")),
    }
}

fn check(fill: Fill, rng: &mut TestRng) {
    for case in CASES.iter() {
        let before = object(case, fill, rng);
        let after = (case.through_type)(before.clone())
            .unwrap_or_else(|error| panic!("{} does not read {before:#}: {error}", case.name));
        assert_eq!(lost(&case.name, &before, &after), None, "something got lost in {}", case.name);
        let again = (case.through_type)(after.clone()).unwrap();
        assert_eq!(again, after, "{} changes when read and written again", case.name);
        assert_eq!(after["apiVersion"], case.api_version);
        assert_eq!(after["kind"], case.name.as_str());
    }
}

#[test]
fn an_object_with_every_field_keeps_every_field() {
    check(Fill::Everything, &mut TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha));
}

#[test]
fn an_object_with_the_required_fields_keeps_them() {
    check(Fill::RequiredOnly, &mut TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha));
}

#[test]
fn an_empty_object_of_any_kind_can_be_read() {
    for case in CASES.iter() {
        let read = (case.through_type)(json!({})).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert_eq!(read["kind"], case.name.as_str());
    }
}

#[test]
fn null_means_absent_in_every_field() {
    fn nulled(schema: &Schema) -> Value {
        schema
            .properties
            .iter()
            .map(|property| (property.name.to_owned(), Value::Null))
            .collect::<Map<_, _>>()
            .into()
    }
    for case in CASES.iter() {
        let bare = (case.through_type)(json!({})).unwrap();
        assert_eq!((case.through_type)(nulled(&case.schema)).unwrap(), bare, "{}", case.name);
        for part in ["spec", "status"] {
            if let Some(property) = case.schema.property(part) {
                let object = json!({ part: nulled(&property.schema) });
                assert_eq!((case.through_type)(object).unwrap(), bare, "{} {part}", case.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_object_the_schema_allows_survives(seed in any::<[u8; 32]>()) {
        let mut rng = TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &seed);
        check(Fill::Half, &mut rng);
    }

    #[test]
    fn work_names_stay_valid_for_valid_input(
        name in "[a-z]([-a-z0-9.:]{0,40}[a-z0-9])?",
        namespace in "([a-z][a-z0-9-]{0,10})?",
        kind in "[A-Z][A-Za-z]{0,20}",
    ) {
        let work = api::names::work(&kind, &name, &namespace);
        prop_assert!(work.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.'));
        prop_assert_eq!(&work, &api::names::work(&kind.to_lowercase(), &name, &namespace));
        let prefix = format!("{}-", name.replace(':', "."));
        prop_assert!(work.starts_with(&prefix));
    }

    #[test]
    fn a_cluster_is_found_again_from_its_namespace(cluster in "[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?") {
        let namespace = api::names::execution_space(&cluster);
        prop_assert_eq!(api::names::cluster_of_execution_space(&namespace), Some(cluster.as_str()));
    }
}
