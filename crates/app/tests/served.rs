//! What clients are told about Karmada's kinds: discovery, OpenAPI and table columns of the running server, against the
//! definitions, which `api/tests` compare with an independent table.

use serde_json::{Map, Value, json};

struct Server {
    client: kube::Client,
    _process: testkit::Server,
}

impl Server {
    async fn start() -> Self {
        let process = testkit::Server::start(env!("CARGO_BIN_EXE_karmada"), &["--controllers", ""]);
        Self { client: process.client().await, _process: process }
    }

    async fn get(&self, path: &str, accept: &str) -> Value {
        let request = http::Request::get(path).header("accept", accept).body(Vec::new()).expect("a request");
        self.client.request(request).await.unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

fn definitions() -> impl Iterator<Item = Value> {
    api::crd::all().into_iter().chain(api::crd::aggregated())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_schema_is_published_as_it_is_defined() {
    let server = Server::start().await;
    let mut differences = Vec::new();
    for definition in definitions() {
        let (group, kind) = (text(&definition["spec"]["group"]), text(&definition["spec"]["names"]["kind"]));
        for version in definition["spec"]["versions"].as_array().expect("versions") {
            let name = text(&version["name"]);
            let document = server.get(&format!("/openapi/v3/apis/{group}/{name}"), "application/json").await;
            let published = document["components"]["schemas"]
                .as_object()
                .and_then(|schemas| schemas.values().find(|schema| is_of(schema, group, name, kind)))
                .unwrap_or_else(|| panic!("{group}/{name} {kind} is not published"));
            let defined = &version["schema"]["openAPIV3Schema"];
            for field in ["required", "description", "type"] {
                if published.get(field) != defined.get(field) {
                    differences.push(format!("{kind} {name}: {field}"));
                }
            }
            let properties = |schema: &Value| -> Map<String, Value> {
                let mut properties = schema["properties"].as_object().cloned().unwrap_or_default();
                // Of these three the server says more than a definition may.
                for implied in ["apiVersion", "kind", "metadata"] {
                    properties.remove(implied);
                }
                properties
            };
            compare(
                &format!("{kind} {name}"),
                &properties(defined).into(),
                &properties(published).into(),
                &mut differences,
            );
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

fn is_of(schema: &Value, group: &str, version: &str, kind: &str) -> bool {
    schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|kinds| {
        kinds.iter().any(|each| each["group"] == group && each["version"] == version && each["kind"] == kind)
    })
}

fn compare(path: &str, defined: &Value, published: &Value, differences: &mut Vec<String>) {
    match (defined, published) {
        (Value::Object(one), Value::Object(other)) => {
            for key in one.keys().chain(other.keys().filter(|key| !one.contains_key(*key))) {
                let (one, other) =
                    (one.get(key).unwrap_or(&Value::Null), other.get(key).unwrap_or(&Value::Null));
                compare(&format!("{path}.{key}"), one, other, differences);
            }
        }
        (one, other) if one == other => {}
        (one, other) => differences.push(format!("{path}: defined {one}, published {other}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_names_every_kind_as_it_is_defined() {
    let server = Server::start().await;
    for definition in definitions() {
        let (group, names) = (text(&definition["spec"]["group"]), &definition["spec"]["names"]);
        for version in definition["spec"]["versions"].as_array().expect("versions") {
            let list =
                server.get(&format!("/apis/{group}/{}", text(&version["name"])), "application/json").await;
            let resources = list["resources"].as_array().cloned().unwrap_or_default();
            let find = |name: &str| resources.iter().find(|each| each["name"] == name);
            let plural = text(&names["plural"]);
            let found = find(plural).unwrap_or_else(|| panic!("{plural} is not in discovery"));
            for (field, wanted) in [
                ("kind", &names["kind"]),
                ("singularName", &names["singular"]),
                ("shortNames", &names["shortNames"]),
                ("categories", &names["categories"]),
                ("namespaced", &json!(definition["spec"]["scope"] == "Namespaced")),
            ] {
                assert_eq!(found.get(field).unwrap_or(&Value::Null), wanted, "{plural}: {field}");
            }
            let has_status = !version["subresources"]["status"].is_null();
            assert_eq!(find(&format!("{plural}/status")).is_some(), has_status, "{plural}/status");
            assert!(find(&format!("{plural}/scale")).is_none(), "{plural} cannot be scaled");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_have_the_columns_that_are_defined() {
    let server = Server::start().await;
    for definition in definitions() {
        let (group, names) = (text(&definition["spec"]["group"]), &definition["spec"]["names"]);
        for version in definition["spec"]["versions"].as_array().expect("versions") {
            let path = format!("/apis/{group}/{}/{}", text(&version["name"]), text(&names["plural"]));
            let table = server.get(&path, "application/json;as=Table;v=v1;g=meta.k8s.io").await;
            let shown: Vec<String> = table["columnDefinitions"]
                .as_array()
                .expect("columns")
                .iter()
                .map(|column| format!("{} {}", text(&column["name"]), column["priority"]))
                .collect();
            let mut wanted = vec!["Name 0".to_owned()];
            match version["additionalPrinterColumns"].as_array() {
                None => wanted.push("Age 0".to_owned()),
                Some(columns) => wanted.extend(columns.iter().map(|column| {
                    format!("{} {}", text(&column["name"]), column["priority"].as_i64().unwrap_or(0))
                })),
            }
            assert_eq!(shown, wanted, "{path}");
        }
    }
}
