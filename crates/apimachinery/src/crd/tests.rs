//! Definitions in, messages and conditions out.

use serde_json::json;

use super::*;

fn definition() -> Value {
    let mut crd = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "size": {"type": "integer"}, "color": {"type": "string"},
                }}}}},
            }],
        },
    });
    default(&mut crd);
    prepare_create(&mut crd);
    crd
}

fn messages(errors: &Errors) -> Vec<String> {
    // Values such as whole version lists are long and not what these tests are about.
    errors.iter().map(|error| format!("{}|{:?}|{}", error.field, error.kind, error.detail)).collect()
}

/// Changes a part of a valid definition and returns the complaints.
fn complaints(pointer: &str, value: Value) -> Vec<String> {
    let mut crd = definition();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    crd.pointer_mut(parent).unwrap_or_else(|| panic!("{parent}"))[name] = value;
    messages(&validate(&crd))
}

#[test]
fn a_plain_definition_is_defaulted_and_valid() {
    let crd = definition();
    assert_eq!(validate(&crd), []);
    assert_eq!(
        crd["spec"]["names"],
        json!({"plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList"})
    );
    assert_eq!(crd["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(
        crd["status"],
        json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": ["v1"]})
    );
}

#[test]
fn problems_are_reported_where_upstream_reports_them() {
    let root = "/spec/versions/0/schema/openAPIV3Schema";
    for (pointer, value, message) in [
        (
            "/metadata/name",
            json!("x.example.com"),
            "metadata.name|Invalid|must be spec.names.plural+\".\"+spec.group",
        ),
        (
            "/spec/scope",
            json!("Everywhere"),
            "spec.scope|NotSupported|supported values: \"Cluster\", \"Namespaced\"",
        ),
        ("/spec/scope", json!(""), "spec.scope|Required|"),
        (
            "/spec/versions/0/storage",
            json!(false),
            "spec.versions|Invalid|must have exactly one version marked as storage version",
        ),
        (
            "/spec/preserveUnknownFields",
            json!(true),
            "spec.preserveUnknownFields|Invalid|cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ),
        (
            &format!("{root}/type"),
            json!("string"),
            "spec.validation.openAPIV3Schema.type|Invalid|must be object at the root",
        ),
        (
            &format!("{root}/properties/spec/type"),
            json!(""),
            "spec.validation.openAPIV3Schema.properties[spec].type|Required|must not be empty for specified object fields",
        ),
        (
            &format!("{root}/properties/spec/uniqueItems"),
            json!(true),
            "spec.validation.openAPIV3Schema.properties[spec].uniqueItems|Forbidden|uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            &format!("{root}/properties/spec/$ref"),
            json!("#/x"),
            "spec.validation.openAPIV3Schema.properties[spec].$ref|Forbidden|$ref is not supported",
        ),
        (
            &format!("{root}/properties/spec/additionalProperties"),
            json!({"type": "string"}),
            "spec.validation.openAPIV3Schema.properties[spec].additionalProperties|Forbidden|additionalProperties and properties are mutual exclusive",
        ),
        (
            &format!("{root}/properties/spec/properties/size/default"),
            json!("x"),
            "spec.validation.openAPIV3Schema.properties[spec].properties[size].default|TypeInvalid| in body must be of type integer: \"string\"",
        ),
        (
            &format!("{root}/properties/spec/default"),
            json!({"nope": 1}),
            "spec.validation.openAPIV3Schema.properties[spec].default|Invalid|must not have unknown fields",
        ),
        (
            &format!("{root}/nullable"),
            json!(true),
            "spec.validation.openAPIV3Schema.nullable|Forbidden|nullable cannot be true at the root",
        ),
        (
            "/spec/versions/0/subresources",
            json!({"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": ".status.r"}}),
            "spec.subresources.scale.specReplicasPath|Invalid|should be a json path under .spec",
        ),
        (
            "/spec/versions/0/subresources",
            json!({"scale": {"specReplicasPath": "spec.x", "statusReplicasPath": ".status.r"}}),
            "spec.subresources.scale.specReplicasPath|Invalid|must be a simple json path starting with .",
        ),
        (
            "/spec/versions/0/additionalPrinterColumns",
            json!([{"name": "A", "type": "text", "jsonPath": ".a"}]),
            "spec.additionalPrinterColumns[0].type|Invalid|must be one of boolean,date,integer,number,string",
        ),
        (
            "/spec/versions/0/additionalPrinterColumns",
            json!([{"name": "A", "type": "string", "jsonPath": "a"}]),
            "spec.additionalPrinterColumns[0].JSONPath|Invalid|must be a simple json path starting with .",
        ),
        (
            "/spec/versions/0/selectableFields",
            json!([{"jsonPath": ".spec"}]),
            "spec.selectableFields[0].jsonPath|Invalid|must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
        ),
        (
            "/spec/versions/0/selectableFields",
            json!([{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.color"}]),
            "spec.selectableFields[1].jsonPath|Duplicate|",
        ),
        (
            "/spec/conversion",
            json!({"strategy": "Webhook"}),
            "spec.conversion.webhookClientConfig|Required|required when strategy is set to Webhook",
        ),
        (
            "/spec/versions/0/deprecationWarning",
            json!("x"),
            "spec.versions[0].deprecationWarning|Invalid|can only be set for deprecated versions",
        ),
        (
            "/status/storedVersions",
            json!(["v1", "v0"]),
            "status.storedVersions[1]|Invalid|missing from spec.versions; v0 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v0 and removes v0 from status.storedVersions",
        ),
    ] {
        let found = complaints(pointer, value.clone());
        assert!(found.contains(&message.to_owned()), "{pointer} = {value}: {found:#?}");
    }
}

#[test]
fn selectable_scalar_fields_are_fine() {
    assert!(complaints("/spec/versions/0/selectableFields", json!([{"jsonPath": ".spec.color"}])).is_empty());
}

#[test]
fn map_lists_need_usable_keys() {
    let list = |keys: Value, key: Value| {
        json!({
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
            "items": {"type": "object", "properties": {"k": key}},
        })
    };
    let at = "/spec/versions/0/schema/openAPIV3Schema/properties/list";
    let prefix = "spec.validation.openAPIV3Schema.properties[list]";
    assert!(complaints(at, list(json!(["k"]), json!({"type": "string", "default": "x"}))).is_empty());
    assert_eq!(
        complaints(at, list(json!(["k"]), json!({"type": "string"}))),
        [format!(
            "{prefix}.items.properties[k].default|Required|this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
        )]
    );
    assert_eq!(
        complaints(at, list(json!(["z"]), json!({"type": "string"}))),
        [format!("{prefix}.x-kubernetes-list-map-keys|Invalid|entries must all be names of item properties")]
    );
    assert_eq!(
        complaints(at, list(json!([]), json!({"type": "string"}))),
        [format!(
            "{prefix}.x-kubernetes-list-map-keys|Required|must not be empty if x-kubernetes-list-type is map"
        )]
    );
}

#[test]
fn versions_with_different_schemas_are_reported_by_index() {
    let mut crd = definition();
    let mut second = crd["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    second["schema"]["openAPIV3Schema"]["type"] = json!("string");
    crd["spec"]["versions"].as_array_mut().unwrap().push(second);
    assert_eq!(
        messages(&validate(&crd)),
        ["spec.versions[1].schema.openAPIV3Schema.type|Invalid|must be object at the root"]
    );
}

#[test]
fn kubernetes_groups_need_an_approval() {
    let mut crd = definition();
    crd["spec"]["group"] = json!("x.k8s.io");
    crd["metadata"]["name"] = json!("widgets.x.k8s.io");
    assert_eq!(validate(&crd)[0].field, "metadata.annotations[api-approved.kubernetes.io]");
    crd["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "https://example.com/review"});
    assert_eq!(validate(&crd), []);
    crd["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, testing"});
    assert_eq!(validate(&crd), []);
}

#[test]
fn the_identity_of_a_definition_cannot_change() {
    let old = definition();
    let mut new = old.clone();
    new["spec"]["group"] = json!("other.com");
    assert_eq!(messages(&validate_update(&new, &old)), ["spec.group|Invalid|field is immutable"]);
    let mut new = old.clone();
    new["spec"]["scope"] = json!("Cluster");
    assert_eq!(validate_update(&new, &old), []);
    let mut established = old.clone();
    established["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    assert_eq!(messages(&validate_update(&new, &established)), ["spec.scope|Invalid|field is immutable"]);
}

#[test]
fn a_new_storage_version_is_recorded_once() {
    let mut crd = definition();
    crd["spec"]["versions"][0]["name"] = json!("v2");
    record_storage_version(&mut crd);
    record_storage_version(&mut crd);
    assert_eq!(crd["status"]["storedVersions"], json!(["v1", "v2"]));
}

#[test]
fn names_go_to_the_first_who_asks() {
    let first = {
        let mut crd = definition();
        crd["spec"]["names"]["shortNames"] = json!(["w"]);
        let naming = decide_names(&crd, |_, _| false);
        assert_eq!(naming.conditions[0].reason, "NoConflicts");
        assert_eq!(naming.conditions[1].reason, "Installing");
        crd["status"]["acceptedNames"] = naming.accepted;
        crd
    };
    assert_eq!(first["status"]["acceptedNames"], first["spec"]["names"]);
    let mut second = definition();
    second["spec"]["names"] = json!({"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList", "shortNames": ["w"]});
    let naming = decide_names(&second, |space, name| accepted_names(&first).contains(&(space, name)));
    assert_eq!(naming.conditions[0].status, "False");
    assert_eq!(naming.conditions[0].reason, "ShortNamesConflict");
    assert_eq!(naming.conditions[0].message, "\"w\" is already in use");
    assert_eq!(naming.conditions[1].reason, "NotAccepted");
    assert_eq!(naming.accepted["plural"], "gadgets");
    assert_eq!(naming.accepted.get("shortNames"), None);
    let kind = decide_names(&second, |space, name| (space, name) == (Space::Kinds, "Gadget"));
    assert_eq!(kind.conditions[0].reason, "KindConflict");
    let own = decide_names(&first, |space, name| (space, name) == (Space::Resources, "w"));
    assert_eq!(own.conditions[0].status, "True");
}

/// Whoever may define kinds sends lists of any length: each with each would take hours, and to show the list in each error hundreds
/// of gigabytes.
#[test]
fn finding_25_long_lists_of_a_definition_are_looked_at_in_linear_time() {
    const MANY: usize = 200_000;
    let texts = |prefix: &str| (0..MANY).map(|number| json!(format!("{prefix}{number}"))).collect::<Vec<_>>();
    let mut crd = definition();
    crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": texts("v"), "clientConfig": {"url": "https://a.example.com"}}});
    crd["spec"]["versions"][0]["selectableFields"] =
        texts(".spec.f").into_iter().map(|path| json!({"jsonPath": path})).collect();
    let fields: Map<String, Value> =
        (0..MANY).map(|number| (format!("f{number}"), json!({"type": "string"}))).collect();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] =
        json!(fields);
    assert_eq!(messages(&validate(&crd)), ["spec.selectableFields|TooMany|must have at most 8 items"]);

    let mut crd = definition();
    let version = crd["spec"]["versions"][0].clone();
    let versions = (0..MANY).map(|number| {
        let mut version = version.clone();
        version["name"] = json!(format!("v{number}"));
        version
    });
    crd["spec"]["versions"] = versions.collect();
    crd["status"]["storedVersions"] = texts("w").into();
    let errors = validate(&crd);
    assert_eq!(errors.len(), crate::status::MOST_ERRORS);
    let showing = errors.iter().filter(|error| error.detail.starts_with("must have the storage version"));
    assert_eq!(showing.count(), MOST_SHOWING_A_LIST);

    crd["status"]["acceptedNames"] = json!({"shortNames": texts("s")});
    crd["spec"]["names"]["shortNames"] = texts("s").into();
    let naming = decide_names(&crd, |_, name| name.starts_with('s'));
    assert_eq!(naming.accepted["shortNames"], crd["spec"]["names"]["shortNames"], "they are its own already");
}

#[test]
fn finding_25_keys_of_a_list_are_few_and_their_errors_do_not_each_show_them_all() {
    let with_keys = |keys: Vec<String>| {
        let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
            "items": {"type": "object"}});
        let mut crd = definition();
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = list;
        messages(&validate(&crd))
    };
    let keys = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-list-map-keys";
    let many = (0..300_000).map(|number| format!("k{number}")).collect();
    assert_eq!(with_keys(many), [format!("{keys}|TooMany|must have at most 16 items")]);
    let unknown = format!("{keys}|Invalid|entries must all be names of item properties");
    assert_eq!(
        with_keys((0..16).map(|number| format!("k{number}")).collect()),
        vec![unknown; MOST_SHOWING_A_LIST]
    );
}

/// A path repeats all keys above. With one for each property, a definition of 3 MiB would take hundreds of gigabytes.
#[test]
fn finding_25_a_long_name_of_a_property_is_not_repeated_for_each_below_it() {
    const MANY: usize = 50_000;
    let with_properties = |property: Value| {
        let fields: Map<String, Value> =
            (0..MANY).map(|number| (format!("f{number}"), property.clone())).collect();
        let mut crd = definition();
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({"type": "object", "properties": {"k".repeat(1 << 20): {"type": "object", "properties": fields}}});
        let errors = validate(&crd);
        let size: usize = errors.iter().map(|error| error.field.len() + error.detail.len()).sum();
        assert!(size < 20 << 20, "{size} bytes");
        if errors.is_empty() {
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            Schema::compile(schema).expect("a schema").prune_defaults();
        }
        errors.len()
    };
    assert_eq!(with_properties(json!({"type": "string", "default": "x"})), 0);
    let most = crate::status::MOST_ERRORS;
    assert_eq!(with_properties(json!({"type": "string", "default": 1})), most, "what a default may not be");
    assert_eq!(with_properties(json!({"type": "odd", "nullable": true, "uniqueItems": true})), most);
    assert_eq!(with_properties(json!({"allOf": [{"properties": {"x": {"type": "odd"}}}]})), most);
}
