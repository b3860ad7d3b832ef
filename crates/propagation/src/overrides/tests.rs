//! What one policy may cost, tell and change. The cases of what overriders do are in `testdata/overrides`.

use serde_json::json;

use super::*;

fn cluster() -> Cluster {
    serde_json::from_value(json!({"metadata": {"name": "m1"}})).expect("a cluster")
}

fn overriders(value: Value) -> Overriders {
    serde_json::from_value(value).expect("overriders")
}

/// Applies a policy of the object's namespace, or of the whole control plane, with these rules.
fn apply_rules(object: Value, namespace: &str, rules: Vec<Value>) -> Result<Value, Error> {
    let rules: Vec<Value> = rules.into_iter().map(|overriders| json!({"overriders": overriders})).collect();
    let metadata = json!({"name": "p", "namespace": namespace});
    let policy = json!({"metadata": metadata, "spec": {"overrideRules": rules}});
    let mut overrides = Overrides::default();
    if namespace.is_empty() {
        overrides.insert_cluster(Arc::new(serde_json::from_value(policy).expect("a policy")));
    } else {
        overrides.insert(Arc::new(serde_json::from_value(policy).expect("a policy")));
    }
    let mut object = object;
    match overrides.apply(&mut object, &cluster()) {
        Ok(_) => Ok(object),
        Err(failure) => Err(failure.error),
    }
}

fn config_map(text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "shop"}, "data": {"x": text},
    })
}

fn field(format: &str, path: &str, value: &str) -> Value {
    json!({"fieldPath": "/data/x", format: [{"subPath": path, "operator": "add", "value": value}]})
}

#[test]
fn finding_25_many_field_overriders_read_and_print_their_field_once() {
    for format in ["json", "yaml"] {
        let text = format!("{{\"k\":\"{}\"}}", "v".repeat(100_000));
        let entries: Vec<Value> =
            (0..MAX_ENTRIES).map(|index| field(format, &format!("/a{index}"), "v")).collect();
        let mut budget = Budget::default();
        let mut object = config_map(&text);
        let rule = overriders(json!({"fieldOverrider": entries}));
        apply_within(&mut object, &rule, &mut budget).expect("it applies");
        let after = object["data"]["x"].as_str().expect("a text");
        assert_eq!(budget.spent_bytes(), text.len() + after.len(), "{format}");
        let read: Value = apimachinery::yaml::read(after).expect("YAML, as JSON is").value;
        assert_eq!(read.as_object().map(serde_json::Map::len), Some(MAX_ENTRIES + 1), "{format}");
    }
}

#[test]
fn overriders_of_a_field_are_done_in_their_order() {
    let rule = json!({"fieldOverrider": [
        field("yaml", "/a", "1"),
        {"fieldPath": "/data/y", "json": [{"subPath": "/a", "operator": "add", "value": 5}]},
        field("yaml", "/a", "2"),
        field("json", "/b", "3"),
        field("yaml", "/a", "4"),
    ]});
    let mut object = config_map("{\"a\": \"0\"}");
    object["data"]["y"] = json!("{}");
    // The first two make YAML of it, which is no JSON.
    let error = apply_rules(object, "shop", vec![rule]).expect_err("YAML is not JSON");
    assert!(matches!(error, Error::Embedded { .. }), "{error}");
    // Another field changes by its own overriders, and is missed when it is not there.
    let two_fields = json!({"fieldOverrider": [
        field("yaml", "/a", "1"),
        {"fieldPath": "/data/y", "json": [{"subPath": "/a", "operator": "add", "value": 5}]},
        field("yaml", "/a", "2"),
    ]});
    let mut object = config_map("{}");
    let error = apply_rules(object.clone(), "shop", vec![two_fields.clone()]).expect_err("it has no /data/y");
    assert!(matches!(error, Error::FieldPath { .. }), "{error}");
    object["data"]["y"] = json!("{}");
    let object = apply_rules(object, "shop", vec![two_fields]).expect("it applies");
    let read = |field: &str| {
        apimachinery::yaml::read(object["data"][field].as_str().expect("a text")).expect("YAML").value
    };
    assert_eq!((read("x"), read("y")), (json!({"a": "2"}), json!({"a": 5})));
    let cleared = json!({"fieldOverrider": [
        field("yaml", "/a", "1"), {"fieldPath": "/data/x"}, field("json", "/b", "3"),
    ]});
    let object = apply_rules(config_map("{}"), "shop", vec![cleared]).expect("it applies");
    assert_eq!(object["data"]["x"], "", "an empty text has no JSON to patch");
}

#[test]
fn finding_25_overrides_of_an_object_have_limits() {
    let label = |index: usize| json!({"operator": "add", "value": {format!("l{index}"): "v"}});
    let rules = |count: usize| -> Vec<Value> { vec![json!({}); count] };
    apply_rules(config_map(""), "shop", rules(MAX_RULES)).expect("so many rules may be");
    let error = apply_rules(config_map(""), "shop", rules(MAX_RULES + 1)).expect_err("too many rules");
    assert_eq!(error, Error::TooManyRules);
    assert!(error.to_string().starts_with("more than 1000 rules of override policies apply"), "{error}");

    // However they are spread over rules.
    let labels =
        |from: usize, to: usize| json!({"labelsOverrider": (from..to).map(label).collect::<Vec<Value>>()});
    let halves = |total: usize| vec![labels(0, total / 2), labels(total / 2, total)];
    apply_rules(config_map(""), "shop", halves(MAX_ENTRIES)).expect("so many overriders may be");
    let error =
        apply_rules(config_map(""), "shop", halves(MAX_ENTRIES + 1)).expect_err("too many overriders");
    assert_eq!(error, Error::TooManyEntries);

    // A large text is read again for each rule.
    let text = format!("{{\"k\":\"{}\"}}", "v".repeat(1 << 20));
    let again = |count: usize| -> Vec<Value> {
        (0..count)
            .map(|index| json!({"fieldOverrider": [field("json", &format!("/a{index}"), "v")]}))
            .collect()
    };
    apply_rules(config_map(&text), "shop", again(15)).expect("it is read and printed fifteen times");
    let error = apply_rules(config_map(&text), "shop", again(20)).expect_err("too many bytes");
    assert_eq!(error, Error::TooMuchWork);

    // Plain patches go over the whole object.
    let annotate = |index: usize| json!({"plaintext": [{"path": format!("/data/p{index}"), "operator": "add", "value": "v"}]});
    let error = apply_rules(config_map(&text), "shop", (0..40).map(annotate).collect());
    assert_eq!(error.expect_err("too many bytes"), Error::TooMuchWork);
}

#[test]
fn finding_25_containers_times_overriders_have_a_limit() {
    let containers: Vec<Value> =
        (0..20_000).map(|index| json!({"name": format!("c{index}"), "image": "a"})).collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "shop"},
        "spec": {"containers": containers},
    });
    let image = json!({"component": "Tag", "operator": "replace", "value": "v1"});
    let command = json!({"containerName": "c1", "operator": "add", "value": ["a"]});
    for rule in [json!({"imageOverrider": vec![image; 100]}), json!({"commandOverrider": vec![command; 100]})]
    {
        let error = apply_rules(pod.clone(), "shop", vec![rule]).expect_err("too much work");
        assert_eq!(error, Error::TooMuchWork);
    }
    // Of any number of arguments, each is looked up.
    let values: Vec<String> = (0..200_000).map(|index| format!("--a{index}")).collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "shop"},
        "spec": {"containers": [{"name": "c", "args": values}]},
    });
    let rule = json!({"argsOverrider": [{"containerName": "c", "operator": "remove", "value": values}]});
    let object = apply_rules(pod, "shop", vec![rule]).expect("it applies");
    assert_eq!(object["spec"]["containers"][0]["args"], json!([]));
}

#[test]
fn finding_25_patches_of_an_object_share_their_limits() {
    // Each rule alone is within the limit of one patch.
    let list: Vec<u8> = vec![0; 100_000];
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "shop"}, "list": list,
    });
    let shift = json!({"path": "/list/0", "operator": "remove"});
    let rule = json!({"plaintext": vec![shift; 90]});
    apply_rules(object.clone(), "shop", vec![rule.clone(); 5]).expect("45 million places");
    let error = apply_rules(object, "shop", vec![rule; 10]).expect_err("90 million places");
    assert!(error.to_string().contains("the shifting of list items exceeds the limit"), "{error}");

    // Members of a document keep their order, so that the ones behind a removed one are shifted.
    let members: Vec<String> = (0..100_000).map(|index| format!("\"k{index}\":0")).collect();
    let removed: Vec<Value> =
        (0..900).map(|index| json!({"subPath": format!("/k{index}"), "operator": "remove"})).collect();
    let rule = json!({"fieldOverrider": [{"fieldPath": "/data/x", "json": removed}]});
    let error = apply_rules(config_map(&format!("{{{}}}", members.join(","))), "shop", vec![rule]);
    let error = error.expect_err("90 million places").to_string();
    assert!(error.contains("the shifting of members exceeds the limit"), "{error}");
}

#[test]
fn finding_25_no_error_tells_a_value_of_a_secret() {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "shop"},
        "data": {"password": "SUPER==", "text": "*hunter2"},
    });
    let image =
        json!({"predicate": {"path": "/data/password"}, "component": "Tag", "operator": "add", "value": "x"});
    let yaml = json!({"fieldPath": "/data/text", "yaml": [{"subPath": "/a", "operator": "remove"}]});
    for (rule, value) in [
        (json!({"imageOverrider": [image.clone()]}), "SUPER"),
        (json!({"fieldOverrider": [yaml]}), "hunter2"),
    ] {
        for namespace in ["shop", ""] {
            let error =
                apply_rules(secret.clone(), namespace, vec![rule.clone()]).expect_err("it does not apply");
            assert!(!error.to_string().contains(value), "{error}");
            assert!(error.to_string().contains("the object is a Secret"), "{error}");
        }
    }
    // Other kinds show their value, but not all of it.
    let mut object = config_map("");
    object["data"]["password"] = "A".repeat(100_000).into();
    let error = apply_rules(object, "shop", vec![json!({"imageOverrider": [image]})]).expect_err("no image");
    assert!(error.to_string().starts_with("failed to parse image value(AAA"), "{error}");
    assert!(error.to_string().len() < 1000, "{error}");
}

#[test]
fn finding_25_a_policy_of_a_namespace_does_not_change_what_rbac_objects_grant() {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "a", "namespace": "shop"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "a", "namespace": "shop"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"},
        "subjects": [{"kind": "ServiceAccount", "name": "a"}],
    });
    let cases = [
        (&role, "/rules/0/verbs/0", json!("*"), "rules"),
        (&binding, "/roleRef/kind", json!("ClusterRole"), "roleRef"),
        (&binding, "/subjects/0/name", json!("b"), "subjects"),
    ];
    for (object, path, value, field) in cases {
        let rule = json!({"plaintext": [{"path": path, "operator": "replace", "value": value}]});
        let error = apply_rules(object.clone(), "shop", vec![rule.clone()]).expect_err("it grants rights");
        assert_eq!(
            error.to_string(),
            format!(
                "spec.overrideRules[0] changes {field}, which grants rights and cannot be overridden by an OverridePolicy: \
                 use a ClusterOverridePolicy"
            )
        );
        let changed = apply_rules(object.clone(), "", vec![rule]).expect("administrators may");
        assert_eq!(changed.pointer(path), Some(&value));
        let label = json!({"labelsOverrider": [{"operator": "add", "value": {"l": "v"}}]});
        apply_rules(object.clone(), "shop", vec![label]).expect("everything else may change");
    }
    // Fields of these names mean nothing elsewhere.
    let mut ingress = config_map("");
    ingress["rules"] = json!([1]);
    let rule = json!({"plaintext": [{"path": "/rules/0", "operator": "replace", "value": 2}]});
    apply_rules(ingress, "shop", vec![rule]).expect("it is not an object of RBAC");
}
