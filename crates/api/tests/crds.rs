//! The manifests: names, columns and versions against a table, golden files, and the rules for structural schemas.
//!
//! `UPDATE_GOLDEN=1 cargo test -p api` rewrites the files under `testdata/crds/`.

mod golden;

use std::sync::LazyLock;

use serde_json::{Value, json};

/// Group, version, kind, plural, short name, category, scope, status subresource.
const INVENTORY: &str = "
policy.karmada.io v1alpha1 PropagationPolicy propagationpolicies pp karmada-io Namespaced no
policy.karmada.io v1alpha1 ClusterPropagationPolicy clusterpropagationpolicies cpp karmada-io Cluster no
policy.karmada.io v1alpha1 OverridePolicy overridepolicies op karmada-io Namespaced no
policy.karmada.io v1alpha1 ClusterOverridePolicy clusteroverridepolicies cop karmada-io Cluster no
policy.karmada.io v1alpha1 FederatedResourceQuota federatedresourcequotas - karmada-io Namespaced yes
policy.karmada.io v1alpha1 ClusterTaintPolicy clustertaintpolicies - - Cluster no
work.karmada.io v1alpha1,v1alpha2 ResourceBinding resourcebindings rb karmada-io Namespaced yes
work.karmada.io v1alpha1,v1alpha2 ClusterResourceBinding clusterresourcebindings crb karmada-io Cluster yes
work.karmada.io v1alpha1 Work works wk karmada-io Namespaced yes
config.karmada.io v1alpha1 ResourceInterpreterCustomization resourceinterpretercustomizations ric karmada-io Cluster no
config.karmada.io v1alpha1 ResourceInterpreterWebhookConfiguration resourceinterpreterwebhookconfigurations - karmada-io Cluster no
networking.karmada.io v1alpha1 MultiClusterIngress multiclusteringresses mci karmada-io Namespaced yes
networking.karmada.io v1alpha1 MultiClusterService multiclusterservices mcs karmada-io Namespaced yes
autoscaling.karmada.io v1alpha1 FederatedHPA federatedhpas fhpa karmada-io Namespaced yes
autoscaling.karmada.io v1alpha1 CronFederatedHPA cronfederatedhpas cronfhpa karmada-io Namespaced yes
remedy.karmada.io v1alpha1 Remedy remedies - karmada-io Cluster no
apps.karmada.io v1alpha1 WorkloadRebalancer workloadrebalancers - - Cluster yes
multicluster.x-k8s.io v1alpha1 ServiceExport serviceexports svcex - Namespaced yes
multicluster.x-k8s.io v1alpha1 ServiceImport serviceimports svcim - Namespaced yes
cluster.karmada.io v1alpha1 Cluster clusters - - Cluster yes
search.karmada.io v1alpha1 ResourceRegistry resourceregistries - - Cluster yes
";

/// Kind and version, then the columns as `name type path`, separated by semicolons.
const COLUMNS: &str = r#"
PropagationPolicy/v1alpha1: CONFLICT-RESOLUTION string .spec.conflictResolution; PRIORITY string .spec.priority; AGE date .metadata.creationTimestamp
ClusterPropagationPolicy/v1alpha1: CONFLICT-RESOLUTION string .spec.conflictResolution; PRIORITY string .spec.priority; AGE date .metadata.creationTimestamp
FederatedResourceQuota/v1alpha1: OVERALL string .status.overall; OVERALL_USED string .status.overallUsed
ResourceBinding/v1alpha2: SCHEDULED string .status.conditions[?(@.type=="Scheduled")].status; FULLYAPPLIED string .status.conditions[?(@.type=="FullyApplied")].status; AGE date .metadata.creationTimestamp
ClusterResourceBinding/v1alpha2: SCHEDULED string .status.conditions[?(@.type=="Scheduled")].status; FULLYAPPLIED string .status.conditions[?(@.type=="FullyApplied")].status; AGE date .metadata.creationTimestamp
Work/v1alpha1: WORKLOAD-KIND string .spec.workload.manifests[*].kind; APPLIED string .status.conditions[?(@.type=="Applied")].status; AGE date .metadata.creationTimestamp
ResourceInterpreterCustomization/v1alpha1: TARGET-API-VERSION string .spec.target.apiVersion; TARGET-KIND string .spec.target.kind; AGE date .metadata.creationTimestamp
FederatedHPA/v1alpha1: REFERENCE-KIND string .spec.scaleTargetRef.kind; REFERENCE-NAME string .spec.scaleTargetRef.name; MINPODS integer .spec.minReplicas; MAXPODS integer .spec.maxReplicas; REPLICAS integer .status.currentReplicas; AGE date .metadata.creationTimestamp
CronFederatedHPA/v1alpha1: REFERENCE-KIND string .spec.scaleTargetRef.kind; REFERENCE-NAME string .spec.scaleTargetRef.name; AGE date .metadata.creationTimestamp
ServiceImport/v1alpha1: Type string .spec.type; IP string .spec.ips; Age date .metadata.creationTimestamp
ServiceExport/v1alpha1: Age date .metadata.creationTimestamp
Cluster/v1alpha1: VERSION string .status.kubernetesVersion; MODE string .spec.syncMode; READY string .status.conditions[?(@.type=="Ready")].status; AGE date .metadata.creationTimestamp; ZONES string .spec.zones; REGION string .spec.region; PROVIDER string .spec.provider; API-ENDPOINT string .spec.apiEndpoint; PROXY-URL string .spec.proxyURL
ResourceRegistry/v1alpha1: Created At date .metadata.creationTimestamp
"#;

static MANIFESTS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let mut all = api::crd::all();
    all.extend(api::crd::aggregated());
    all
});

fn manifests() -> impl Iterator<Item = &'static Value> {
    MANIFESTS.iter()
}

fn manifest(kind: &str) -> &'static Value {
    manifests()
        .find(|manifest| manifest["spec"]["names"]["kind"] == kind)
        .unwrap_or_else(|| panic!("no manifest for {kind}"))
}

fn list(text: &str) -> Value {
    match text {
        "-" => Value::Null,
        text => text.split(',').collect(),
    }
}

#[test]
fn names_scopes_and_subresources_are_as_in_karmada() {
    let mut expected = 0;
    for line in INVENTORY.lines().filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        let [group, versions, kind, plural, short, category, scope, status] = words[..] else {
            panic!("bad line {line}")
        };
        expected += 1;
        let manifest = manifest(kind);
        let spec = &manifest["spec"];
        assert_eq!(manifest["metadata"]["name"], format!("{plural}.{group}"));
        assert_eq!(spec["group"], group);
        assert_eq!(spec["scope"], scope, "{kind}");
        assert_eq!(spec["names"]["plural"], plural);
        assert_eq!(spec["names"]["singular"], kind.to_lowercase());
        assert_eq!(spec["names"]["listKind"], format!("{kind}List"));
        assert_eq!(spec["names"]["shortNames"], list(short), "{kind}");
        assert_eq!(spec["names"]["categories"], list(category), "{kind}");
        let served: Vec<_> = spec["versions"].as_array().unwrap().iter().map(|v| v["name"].clone()).collect();
        assert_eq!(json!(served), list(versions), "{kind}");
        let newest = versions.split(',').next_back().unwrap();
        for version in spec["versions"].as_array().unwrap() {
            assert_eq!(version["served"], true);
            assert_eq!(version["storage"], version["name"] == newest, "{kind}");
            assert_eq!(version["subresources"]["status"].is_object(), status == "yes", "{kind}");
            assert!(version["subresources"].get("scale").is_none());
        }
    }
    assert_eq!(manifests().count(), expected);
    assert_eq!(api::crd::all().len(), 19);
    assert_eq!(api::crd::aggregated().len(), 2);
}

#[test]
fn columns_are_as_in_karmada() {
    let mut seen = 0;
    for manifest in manifests() {
        let kind = manifest["spec"]["names"]["kind"].as_str().unwrap().to_owned();
        for version in manifest["spec"]["versions"].as_array().unwrap() {
            let key = format!("{kind}/{}", version["name"].as_str().unwrap());
            let columns: Vec<String> = version["additionalPrinterColumns"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|c| {
                    let text = |field: &str| c[field].as_str().unwrap().to_owned();
                    format!("{} {} {}", text("name"), text("type"), text("jsonPath"))
                })
                .collect();
            let expected = COLUMNS
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{key}: ")))
                .inspect(|_| seen += 1)
                .map(|line| line.split("; ").map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(columns, expected.unwrap_or_default(), "{key}");
        }
    }
    assert_eq!(seen, COLUMNS.lines().filter(|line| !line.is_empty()).count());
}

#[test]
fn five_columns_of_a_cluster_are_shown_on_request_only() {
    let columns = &manifest("Cluster")["spec"]["versions"][0]["additionalPrinterColumns"];
    let wide: Vec<_> = columns
        .as_array()
        .unwrap()
        .iter()
        .filter(|c| c["priority"] == 1)
        .map(|c| c["name"].clone())
        .collect();
    assert_eq!(json!(wide), json!(["ZONES", "REGION", "PROVIDER", "API-ENDPOINT", "PROXY-URL"]));
}

#[test]
fn empty_subresources_and_the_generator_annotation_stand_where_upstream_has_them() {
    for manifest in api::crd::all() {
        let kind = manifest["spec"]["names"]["kind"].as_str().unwrap();
        let by_hand = matches!(kind, "ServiceExport" | "ServiceImport");
        assert_eq!(manifest["metadata"].get("annotations").is_none(), by_hand, "{kind}");
        let version = &manifest["spec"]["versions"][0];
        let empty = matches!(
            kind,
            "PropagationPolicy" | "ClusterPropagationPolicy" | "ResourceInterpreterCustomization"
        );
        assert_eq!(version.get("subresources") == Some(&json!({})), empty, "{kind}");
    }
}

#[test]
fn manifests_are_as_in_the_golden_files() {
    for manifest in manifests() {
        let name = manifest["metadata"]["name"].as_str().unwrap();
        let path = format!("testdata/crds/{name}.yaml");
        golden::check(&path, &golden::to_yaml(manifest));
    }
}

#[test]
fn golden_files_exist_for_kinds_only() {
    let names: Vec<String> = manifests()
        .map(|manifest| format!("{}.yaml", manifest["metadata"]["name"].as_str().unwrap()))
        .collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/crds");
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        assert!(names.contains(&file), "{file} belongs to no kind");
    }
}

#[test]
fn golden_files_are_the_manifests_when_read_as_yaml() {
    for manifest in manifests() {
        let text = golden::to_yaml(manifest);
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(&read, manifest);
    }
}

#[test]
fn every_field_has_a_description() {
    fn walk(path: &str, schema: &Value, missing: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            // API servers refuse a definition that says anything about the metadata of its objects.
            let is_metadata = name == "metadata" && path.matches('.').count() == 1;
            if !is_metadata
                && field["description"].as_str().is_none_or(|text| text.len() < 6 || !text.ends_with('.'))
            {
                missing.push(path.clone());
            }
            walk(&path, field, missing);
            walk(&path, &field["items"], missing);
            walk(&path, &field["additionalProperties"], missing);
        }
    }
    let mut missing = Vec::new();
    for manifest in manifests() {
        for version in manifest["spec"]["versions"].as_array().unwrap() {
            let kind = manifest["spec"]["names"]["kind"].as_str().unwrap();
            walk(kind, &version["schema"]["openAPIV3Schema"], &mut missing);
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The rules for structural schemas, as far as these schemas can break them.
fn structural(path: &str, schema: &Value, root: bool, out: &mut Vec<String>) {
    const KNOWN: [&str; 24] = [
        "additionalProperties",
        "anyOf",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
        "nullable",
        "x-kubernetes-embedded-resource",
    ];
    let Value::Object(fields) = schema else {
        out.push(format!("{path} is not an object"));
        return;
    };
    for key in fields.keys().filter(|key| !KNOWN.contains(&key.as_str())) {
        out.push(format!("{path} has the unknown key {key}"));
    }
    let flag = |key: &str| fields.get(key) == Some(&json!(true));
    let type_ = fields.get("type").and_then(Value::as_str);
    if type_.is_none() && !flag("x-kubernetes-int-or-string") && !flag("x-kubernetes-preserve-unknown-fields")
    {
        out.push(format!("{path} has no type"));
    }
    if flag("x-kubernetes-int-or-string") && type_.is_some() {
        out.push(format!("{path} is int-or-string and has a type"));
    }
    if root && type_ != Some("object") {
        out.push(format!("{path} is not an object at the root"));
    }
    if fields.contains_key("anyOf") && fields["anyOf"] != json!([{ "type": "integer" }, { "type": "string" }])
    {
        out.push(format!("{path} uses anyOf beyond int-or-string"));
    }
    if fields.contains_key("properties") && fields.contains_key("additionalProperties") {
        out.push(format!("{path} has both properties and additionalProperties"));
    }
    if (fields.contains_key("properties") || fields.contains_key("additionalProperties"))
        && type_ != Some("object")
    {
        out.push(format!("{path} has fields but is {type_:?}"));
    }
    if (type_ == Some("array")) != fields.contains_key("items") {
        out.push(format!("{path}: arrays have items and nothing else has"));
    }
    for name in fields.get("required").and_then(Value::as_array).into_iter().flatten() {
        let known = name.as_str().is_some_and(|name| fields["properties"].get(name).is_some());
        if !known {
            out.push(format!("{path} requires {name}, which it does not have"));
        }
    }
    match fields.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("map") => {
            let keys = fields.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
            for key in keys.into_iter().flatten() {
                let item = &fields["items"];
                let key = key.as_str().unwrap();
                let required = item["required"].as_array().is_some_and(|r| r.contains(&json!(key)));
                let defaulted = item["properties"][key].get("default").is_some();
                if !required && !defaulted {
                    out.push(format!("{path} is keyed by {key}, which may be absent"));
                }
            }
            if keys.is_none_or(Vec::is_empty) {
                out.push(format!("{path} is a list map without keys"));
            }
        }
        Some("atomic" | "set") | None => {
            if fields.contains_key("x-kubernetes-list-map-keys") {
                out.push(format!("{path} has keys but is not a list map"));
            }
        }
        Some(other) => out.push(format!("{path} has the list type {other}")),
    }
    if let (Some(value), Some(type_)) = (fields.get("default"), type_) {
        let fits = match type_ {
            "string" => {
                value.is_string()
                    && fields.get("enum").and_then(Value::as_array).is_none_or(|all| all.contains(value))
            }
            "integer" => value.is_i64(),
            "boolean" => value.is_boolean(),
            _ => false,
        };
        if !fits {
            out.push(format!("{path} has the default {value}, which it would refuse"));
        }
    }
    for (name, child) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
        if root && name == "metadata" && child.get("properties").is_some() {
            out.push(format!("{path} restricts metadata"));
        }
        structural(&format!("{path}.{name}"), child, false, out);
    }
    for child in ["items", "additionalProperties"] {
        if let Some(schema) = fields.get(child) {
            structural(&format!("{path}[]"), schema, false, out);
        }
    }
}

#[test]
fn every_schema_is_structural() {
    let mut problems = Vec::new();
    for manifest in manifests() {
        for version in manifest["spec"]["versions"].as_array().unwrap() {
            let kind = manifest["spec"]["names"]["kind"].as_str().unwrap();
            structural(kind, &version["schema"]["openAPIV3Schema"], true, &mut problems);
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn the_structural_check_notices_what_is_wrong() {
    for (schema, complaint) in [
        (json!({ "type": "string" }), "not an object at the root"),
        (json!({ "type": "object", "properties": { "a": {} } }), "has no type"),
        (
            json!({ "type": "object", "required": ["a"], "properties": { "b": { "type": "string" } } }),
            "requires",
        ),
        (json!({ "type": "object", "properties": { "a": { "type": "array" } } }), "arrays have items"),
        (
            json!({ "type": "object", "properties": { "a": {
                "type": "array", "items": { "type": "object", "properties": { "k": { "type": "string" } } },
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            } } }),
            "which may be absent",
        ),
        (
            json!({ "type": "object", "properties": { "a": { "type": "string", "enum": ["x"], "default": "y" } } }),
            "would refuse",
        ),
    ] {
        let mut problems = Vec::new();
        structural("Sample", &schema, true, &mut problems);
        assert!(problems.iter().any(|p| p.contains(complaint)), "{complaint}: {problems:?}");
    }
}
