//! Custom kinds in the OpenAPI documents: their schemas, and enough of their paths for clients to find out how they are patched
//! and validated.

use apimachinery::gvk::Gvk;
use apimachinery::pointer;
use serde_json::{Map, Value, json};

use crate::registry::Custom;
use crate::registry::custom::Version;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";

fn reference(name: &str, v3: bool) -> Value {
    if v3 {
        json!({"allOf": [{"$ref": format!("#/components/schemas/{name}")}], "default": {}})
    } else {
        json!({"$ref": format!("#/definitions/{name}")})
    }
}

fn plain_reference(name: &str, v3: bool) -> Value {
    let prefix = if v3 { "#/components/schemas/" } else { "#/definitions/" };
    json!({"$ref": format!("{prefix}{name}")})
}

fn gvk_extension(custom: &Custom, version: &Version, kind: &str) -> Value {
    json!([{"group": custom.group, "version": version.name, "kind": kind}])
}

/// Returns the schema of objects of a version.
pub(crate) fn object_schema(custom: &Custom, version: &Version, v3: bool) -> Value {
    let gvk = gvk_extension(custom, version, &custom.names.kind);
    // With properties, kubectl would refuse every other field, so there are none where unknown fields are allowed.
    let mut schema = if !v3 && preserves(&version.document) {
        json!({"type": "object"})
    } else {
        let mut schema = version.document.clone();
        if !v3 {
            simplify(&mut schema);
        }
        embed(&mut schema, v3);
        type_meta(&mut schema, v3);
        schema
    };
    pointer::set(&mut schema, "x-kubernetes-group-version-kind", gvk);
    if !version.selectable.is_empty() {
        let fields = version.selectable.iter().map(|path| json!({"fieldPath": path}));
        pointer::set(&mut schema, "x-kubernetes-selectable-fields", fields.collect());
    }
    schema
}

fn preserves(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// Adds the fields that every object has.
fn type_meta(schema: &mut Value, v3: bool) {
    let properties = pointer::object_at(schema, "properties");
    let api_version = json!({"type": "string",
        "description": "APIVersion defines the schema that this object is written in. Servers turn it into the latest one they know and may refuse unknown ones."});
    pointer::set(properties, "apiVersion", api_version);
    let kind = json!({"type": "string",
        "description": "Kind says what this object is. Servers may infer it from the endpoint a client writes to; it cannot be changed."});
    pointer::set(properties, "kind", kind);
    let mut metadata = reference(META, v3);
    pointer::set(
        &mut metadata,
        "description",
        json!("Standard object's metadata: name, labels, annotations, owners."),
    );
    pointer::set(properties, "metadata", metadata);
}

/// Adds the same fields to embedded objects.
fn embed(schema: &mut Value, v3: bool) {
    let Some(fields) = schema.as_object_mut() else { return };
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(|below| embed(below, v3));
    }
    for field in ["items", "additionalProperties"] {
        if let Some(below) = fields.get_mut(field) {
            embed(below, v3);
        }
    }
    if schema["x-kubernetes-embedded-resource"] != true || (!v3 && preserves(schema)) {
        return;
    }
    type_meta(schema, v3);
    let mut required = schema["required"].as_array().cloned().unwrap_or_default();
    for field in ["kind", "apiVersion"] {
        if !required.iter().any(|own| own == field) {
            required.push(json!(field));
        }
    }
    schema["required"] = required.into();
}

/// Removes what swagger 2.0 cannot express, and what kubectl cannot handle there.
fn simplify(schema: &mut Value) {
    let preserves = preserves(schema);
    let Some(fields) = schema.as_object_mut() else { return };
    for field in ["oneOf", "anyOf", "allOf", "not", "default"] {
        fields.remove(field);
    }
    let nullable = fields.remove("nullable") == Some(Value::Bool(true));
    if nullable {
        fields.remove("type");
    }
    if nullable || preserves {
        fields.remove("items");
        fields.remove("properties");
    }
    let untyped = match fields.get("type").and_then(Value::as_str) {
        Some("array") => !fields.contains_key("items"),
        Some("object") => preserves,
        _ => false,
    };
    if untyped {
        fields.remove("type");
    }
    let is_nullable = |schema: &Value| schema["nullable"] == true;
    let optional: Vec<String> = fields
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, below)| is_nullable(below))
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(Value::Array(required)) = fields.get_mut("required") {
        required.retain(|name| !optional.iter().any(|own| name == own));
    }
    if fields.get("required").and_then(Value::as_array).is_some_and(Vec::is_empty)
        || fields.get("additionalProperties").is_some_and(is_nullable)
    {
        fields.remove("required");
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(simplify);
    }
    for field in ["items", "additionalProperties"] {
        if let Some(below) = fields.get_mut(field) {
            simplify(below);
        }
    }
}

/// Returns the schema of lists of a version.
pub(crate) fn list_schema(custom: &Custom, version: &Version, item: &str, v3: bool) -> Value {
    json!({
        "type": "object",
        "description": format!("A list of {}.", custom.names.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": plain_reference(LIST_META, v3),
            "items": {"type": "array", "items": plain_reference(item, v3)},
        },
        "x-kubernetes-group-version-kind": gvk_extension(custom, version, &custom.names.list_kind),
    })
}

/// Returns whether the document of a version needs a shared schema: that of metadata, to which every document refers, and that of
/// scales if there are any.
pub(crate) fn is_common_schema(version: &Version, name: &str) -> bool {
    let is_scale = version.scale.is_some() && name.starts_with(SCALE);
    is_scale || name.starts_with("io.k8s.apimachinery.pkg.apis.meta.v1.")
}

struct Endpoint {
    path: String,
    /// Method, action, whether it takes a body.
    operations: &'static [(&'static str, &'static str)],
    namespaced: bool,
    named: bool,
    list: bool,
    scale: bool,
}

fn endpoints(custom: &Custom, version: &Version) -> Vec<Endpoint> {
    let base = format!("/apis/{}/{}", custom.group, version.name);
    let plural = &custom.names.plural;
    let here = if custom.namespaced {
        format!("{base}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("{base}/{plural}")
    };
    const COLLECTION: &[(&str, &str)] = &[("get", "list"), ("post", "post"), ("delete", "deletecollection")];
    const ITEM: &[(&str, &str)] = &[("get", "get"), ("put", "put"), ("patch", "patch"), ("delete", "delete")];
    const PART: &[(&str, &str)] = &[("get", "get"), ("put", "put"), ("patch", "patch")];
    let make = |path: String, operations, named, list| Endpoint {
        path,
        operations,
        namespaced: custom.namespaced,
        named,
        list,
        scale: false,
    };
    let mut endpoints = vec![
        make(here.clone(), COLLECTION, false, true),
        make(format!("{here}/{{name}}"), ITEM, true, false),
    ];
    if version.status {
        endpoints.push(make(format!("{here}/{{name}}/status"), PART, true, false));
    }
    if version.scale.is_some() {
        let scale = make(format!("{here}/{{name}}/scale"), PART, true, false);
        endpoints.push(Endpoint { scale: true, ..scale });
    }
    if custom.namespaced {
        let mut everywhere = make(format!("{base}/{plural}"), &[("get", "list")], false, true);
        everywhere.namespaced = false;
        endpoints.push(everywhere);
    }
    endpoints
}

const PATCHES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

fn operation_id(custom: &Custom, version: &Version, action: &str, endpoint: &Endpoint) -> String {
    let camel = |text: &str| -> String {
        text.split(['.', '-', '/'])
            .map(|word| {
                let mut letters = word.chars();
                letters
                    .next()
                    .map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
                    .unwrap_or_default()
            })
            .collect()
    };
    let scope = if endpoint.namespaced { "Namespaced" } else { "" };
    let suffix = endpoint.path.rsplit('}').next().unwrap_or("");
    let suffix = if endpoint.named { camel(suffix) } else { String::new() };
    let verb = match action {
        "get" => "read",
        "post" => "create",
        "put" => "replace",
        "deletecollection" => "deleteCollection",
        other => other,
    };
    let everywhere =
        if endpoint.list && custom.namespaced && !endpoint.namespaced { "ForAllNamespaces" } else { "" };
    format!(
        "{verb}{}{}{scope}{}{suffix}{everywhere}",
        camel(&custom.group),
        camel(&version.name),
        custom.names.kind
    )
}

fn query(name: &str, kind: &str, v3: bool) -> Value {
    let descriptions = match name {
        "fieldValidation" => "What to do about unknown and repeated fields: Ignore, Warn or Strict.",
        "fieldManager" => "Who makes this change.",
        "dryRun" => "With `All`, everything is checked and nothing is stored.",
        "pretty" => "Print the answer indented.",
        "force" => "Take over fields that others own.",
        _ => "",
    };
    let mut parameter = json!({"name": name, "in": "query", "description": descriptions});
    if v3 {
        pointer::set(&mut parameter, "schema", json!({"type": kind, "uniqueItems": true}));
    } else {
        pointer::set(&mut parameter, "type", json!(kind));
        pointer::set(&mut parameter, "uniqueItems", json!(true));
    }
    parameter
}

fn path_parameters(endpoint: &Endpoint, v3: bool) -> Vec<Value> {
    let mut names = Vec::new();
    if endpoint.named {
        names.push(("name", "The object's name."));
    }
    if endpoint.namespaced {
        names.push(("namespace", "The object's namespace."));
    }
    let mut parameters: Vec<Value> = names
        .into_iter()
        .map(|(name, description)| {
            let mut parameter =
                json!({"name": name, "in": "path", "required": true, "description": description});
            if v3 {
                pointer::set(&mut parameter, "schema", json!({"type": "string", "uniqueItems": true}));
            } else {
                pointer::set(&mut parameter, "type", json!("string"));
                pointer::set(&mut parameter, "uniqueItems", json!(true));
            }
            parameter
        })
        .collect();
    parameters.push(query("pretty", "string", v3));
    parameters
}

fn operation(
    custom: &Custom,
    version: &Version,
    endpoint: &Endpoint,
    action: &str,
    item: &str,
    v3: bool,
) -> Value {
    let (gvk, item) = if endpoint.scale {
        (crate::handlers::scale::gvk(), SCALE)
    } else {
        (Gvk::new(&custom.group, &version.name, &custom.names.kind), item)
    };
    let answer = if endpoint.list && action == "list" { format!("{item}List") } else { item.to_owned() };
    let answer = if matches!(action, "delete" | "deletecollection") {
        "io.k8s.apimachinery.pkg.apis.meta.v1.Status".to_owned()
    } else {
        answer
    };
    let response = |description: &str| {
        if v3 {
            json!({"description": description, "content": {
                "application/json": {"schema": plain_reference(&answer, true)},
                "application/yaml": {"schema": plain_reference(&answer, true)}}})
        } else {
            json!({"description": description, "schema": plain_reference(&answer, false)})
        }
    };
    let tag = format!("{}_{}", camel_lower(&custom.group), version.name);
    let mut operation = json!({
        "tags": [tag],
        "operationId": operation_id(custom, version, action, endpoint),
        "responses": {"200": response("OK"), "401": {"description": "Unauthorized"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": gvk.group, "version": gvk.version, "kind": gvk.kind},
    });
    let mut parameters = Vec::new();
    if matches!(action, "post" | "put" | "patch") {
        for name in ["dryRun", "fieldManager", "fieldValidation"] {
            parameters.push(query(name, "string", v3));
        }
        if action != "patch" {
            pointer::set(pointer::object_at(&mut operation, "responses"), "201", response("Created"));
        }
    }
    if action == "patch" {
        parameters.push(query("force", "boolean", v3));
    }
    if matches!(action, "post" | "put" | "patch") {
        let patch = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
        let body = if action == "patch" { plain_reference(patch, v3) } else { plain_reference(item, v3) };
        let types: &[&str] =
            if action == "patch" { &PATCHES } else { &["application/json", "application/yaml"] };
        if v3 {
            let content: Map<String, Value> =
                types.iter().map(|kind| ((*kind).to_owned(), json!({"schema": body}))).collect();
            pointer::set(&mut operation, "requestBody", json!({"content": content, "required": true}));
        } else {
            pointer::set(&mut operation, "consumes", json!(types));
            parameters.push(json!({"name": "body", "in": "body", "required": true, "schema": body}));
        }
    }
    if !v3 {
        pointer::set(&mut operation, "produces", json!(["application/json", "application/yaml"]));
        pointer::set(&mut operation, "schemes", json!(["https"]));
    }
    if !parameters.is_empty() {
        pointer::set(&mut operation, "parameters", parameters.into());
    }
    operation
}

fn camel_lower(text: &str) -> String {
    let words: Vec<&str> = text.split(['.', '-']).collect();
    let mut out = String::new();
    for (index, word) in words.iter().enumerate() {
        let mut letters = word.chars();
        match letters.next() {
            Some(first) if index > 0 => {
                out.extend(first.to_uppercase());
                out.push_str(letters.as_str());
            }
            Some(first) => {
                out.push(first);
                out.push_str(letters.as_str());
            }
            None => {}
        }
    }
    out
}

fn paths(custom: &Custom, version: &Version, item: &str, v3: bool) -> Vec<(String, Value)> {
    endpoints(custom, version)
        .into_iter()
        .map(|endpoint| {
            let mut operations = json!({"parameters": path_parameters(&endpoint, v3)});
            for (method, action) in endpoint.operations {
                pointer::set(
                    &mut operations,
                    method,
                    operation(custom, version, &endpoint, action, item, v3),
                );
            }
            (endpoint.path.clone(), operations)
        })
        .collect()
}

pub(crate) fn v3_paths(custom: &Custom, version: &Version, item: &str) -> Vec<(String, Value)> {
    paths(custom, version, item, true)
}

pub(crate) fn v2_paths(custom: &Custom, version: &Version, item: &str) -> Vec<(String, Value)> {
    paths(custom, version, item, false)
}
