//! Rules that come when objects are already there: what stays as it was is only warned of, what changes is refused.

use serde_json::{Value, json};

use crate::batch::MERGE;
use crate::suite::Suite;
use crate::support::Call;

const DEFINITIONS: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUP: &str = "ratchet.example.com";
const OBJECTS: &str = "apis/ratchet.example.com/v1/namespaces/ratchet/keepers";

pub(crate) async fn run(suite: &mut Suite) {
    if !suite.wants("ratchet") {
        return;
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ratchet"}});
    suite.both(&Call::new("POST", "api/v1/namespaces").json(&namespace)).await;
    suite.both(&Call::new("POST", DEFINITIONS).json(&definition("Keeper", &schema(false)))).await;
    suite.wait(OBJECTS).await;
    for (name, spec) in [("worn", worn()), ("fresh", json!({"fixed": "a", "grows": 1}))] {
        let object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Keeper", "metadata": {"name": name}, "spec": spec});
        suite.both(&Call::new("POST", OBJECTS).json(&object)).await;
    }
    let path = format!("{DEFINITIONS}/keepers.{GROUP}");
    let ruled = json!({"spec": {"versions": definition("Keeper", &schema(true))["spec"]["versions"]}});
    let call = Call::new("PATCH", &path).json(&ruled).content_type(MERGE);
    let (theirs, ours) = suite.both(&Call { path: format!("{path}?dryRun=All"), ..call.clone() }).await;
    assert!(theirs.code == 200 && ours.code == 200, "{}\n{}", theirs.text(), ours.text());
    suite.both(&call).await;
    // Both obey the new rules when both refuse what breaks one.
    suite.until(&create(&json!({"scalar": "x"})), |answer| answer.code == 422).await;
    updates(suite).await;
    creations(suite).await;
    written(suite).await;
    suite.both(&Call::new("DELETE", &path)).await;
    suite.until(&Call::new("GET", format!("apis/{GROUP}")), |answer| answer.code == 404).await;
    suite.until(&Call::new("GET", "apis"), |answer| !answer.text().contains(GROUP)).await;
}

fn definition(kind: &str, schema: &Value) -> Value {
    let plural = kind.to_lowercase() + "s";
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {"group": GROUP, "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]}})
}

/// The schema, with or without rules.
fn schema(ruled: bool) -> Value {
    let rules = |rules: Value| if ruled { rules } else { json!([]) };
    let rule = |source: &str| rules(json!([{"rule": source}]));
    let text =
        |source: &str| json!({"type": "string", "maxLength": 20, "x-kubernetes-validations": rule(source)});
    let number = |source: &str| json!({"type": "integer", "x-kubernetes-validations": rule(source)});
    let entry = json!({"type": "object", "required": ["k"], "x-kubernetes-validations": rule("!has(self.v) || self.v < 10"),
        "properties": {"k": {"type": "string", "maxLength": 5}, "v": number("self % 2 == 0"), "t": text("self == oldSelf")}});
    let items = |list_type: Value, items: Value| {
        let mut list = json!({"type": "array", "maxItems": 5, "items": items});
        if let Some(fields) = list_type.as_object() {
            fields.iter().for_each(|(name, value)| list[name] = value.clone());
        }
        list
    };
    let mut spec = json!({"type": "object", "x-kubernetes-validations": rules(json!([
        {"rule": "!has(self.scalar) || self.scalar != 'bad'", "message": "not bad", "fieldPath": ".scalar"},
        {"rule": "!has(self.nested) || !has(self.nested.a) || self.nested.a > 0", "reason": "FieldValueRequired", "fieldPath": ".nested.a", "messageExpression": "'a is ' + (self.nested.a < -5 ? 'far ' : '') + 'too small'"},
        {"rule": "!has(self.labels) || !('x' in self.labels)", "reason": "FieldValueForbidden", "fieldPath": ".labels['x']"}])),
    "properties": {
        "scalar": text("self.startsWith('a')"),
        "fixed": text("self == oldSelf"),
        "grows": {"type": "integer", "x-kubernetes-validations": rules(json!([
            {"rule": "oldSelf.hasValue() ? self >= oldSelf.value() : self < 10", "optionalOldSelf": true, "message": "grows from below 10"}]))},
        "nested": {"type": "object", "x-kubernetes-validations": rule("!has(self.b) || self.b == 'b'"),
            "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 5}, "c": number("self > 100")}},
        "fails": {"type": "object", "x-kubernetes-validations": rule("self.there == 1"), "properties": {"there": {"type": "integer"}, "other": {"type": "integer"}}},
        "keyed": items(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}), entry),
        "plain": items(json!({}), text("self.startsWith('p')")),
        "set": items(json!({"x-kubernetes-list-type": "set"}), text("self.startsWith('s')")),
        "labels": {"type": "object", "maxProperties": 5, "additionalProperties": text("self.size() < 4")},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-validations": rule("!has(self.known) || self.known > 5"), "properties": {"known": {"type": "integer"}}},
        "both": {"type": "integer", "x-kubernetes-validations": rule("self > 0")},
        "word": {"type": "string"},
        "either": {"x-kubernetes-int-or-string": true, "x-kubernetes-validations": rule("type(self) == int")},
        "twice": {"type": "string", "maxLength": 9, "x-kubernetes-validations": rules(json!([{"rule": "self != 'two'", "reason": "FieldValueDuplicate"}]))},
    }});
    if ruled {
        spec["allOf"] = json!([{"properties": {"both": {"maximum": 10}}}]);
        spec["properties"]["word"] = json!({"type": "string", "enum": ["yes", "no"]});
    }
    json!({"type": "object", "x-kubernetes-validations": rule("self.metadata.name != 'wrong'"),
        "properties": {"spec": spec, "status": {"type": "object", "x-kubernetes-validations": rule("!has(self.n) || self.n < 5"), "properties": {"n": {"type": "integer"}, "m": {"type": "integer"}}}}})
}

/// Breaks every rule that can be broken, but those that cannot be evaluated.
fn worn() -> Value {
    json!({"scalar": "bad", "grows": 20, "nested": {"a": -7, "b": "x", "c": 1}, "fixed": "a",
        "keyed": [{"k": "a", "v": 11, "t": "x"}, {"k": "b", "v": 2}], "plain": ["x", "y"], "set": ["a", "b"],
        "labels": {"x": "12345", "y": "1"}, "open": {"known": 1}, "both": 50, "word": "perhaps", "either": "text", "twice": "two"})
}

fn create(spec: &Value) -> Call {
    let object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Keeper", "metadata": {"name": "new"}, "spec": spec});
    Call::new("POST", format!("{OBJECTS}?dryRun=All")).json(&object)
}

async fn updates(suite: &mut Suite) {
    let cases = [
        ("untouched", json!({"metadata": {"labels": {"a": "b"}}})),
        ("nothing", json!({})),
        ("scalar", json!({"spec": {"scalar": "worse"}})),
        ("scalar mended", json!({"spec": {"scalar": "all right"}})),
        ("removed", json!({"spec": {"scalar": null, "twice": null}})),
        ("nested beside", json!({"spec": {"nested": {"b": "y"}}})),
        ("nested inside", json!({"spec": {"nested": {"c": 2}}})),
        ("nested mended", json!({"spec": {"nested": {"a": 1, "b": "b"}}})),
        ("keyed turned", json!({"spec": {"keyed": [{"k": "b", "v": 2}, {"k": "a", "v": 11, "t": "x"}]}})),
        (
            "keyed added",
            json!({"spec": {"keyed": [{"k": "a", "v": 11, "t": "x"}, {"k": "b", "v": 2}, {"k": "c", "v": 13}]}}),
        ),
        ("keyed beside", json!({"spec": {"keyed": [{"k": "a", "v": 11, "t": "x"}, {"k": "b", "v": 4}]}})),
        ("keyed changed", json!({"spec": {"keyed": [{"k": "a", "v": 13, "t": "x"}, {"k": "b", "v": 2}]}})),
        ("keyed less", json!({"spec": {"keyed": [{"k": "a", "v": 11, "t": "x"}]}})),
        ("plain added", json!({"spec": {"plain": ["x", "y", "p"]}})),
        ("plain turned", json!({"spec": {"plain": ["y", "x"]}})),
        ("set added", json!({"spec": {"set": ["a", "b", "s"]}})),
        ("labels added", json!({"spec": {"labels": {"z": "1"}}})),
        ("labels changed", json!({"spec": {"labels": {"x": "54321"}}})),
        ("open beside", json!({"spec": {"open": {"unknown": 1}}})),
        ("both", json!({"spec": {"both": 51}})),
        ("word", json!({"spec": {"word": "maybe"}})),
        ("either", json!({"spec": {"either": "other"}})),
        ("twice", json!({"spec": {"twice": "two "}})),
        ("fixed", json!({"spec": {"fixed": "b"}})),
        ("grows", json!({"spec": {"grows": 21}})),
        ("shrinks", json!({"spec": {"grows": 19}})),
        ("fails comes", json!({"spec": {"fails": {"other": 1}}})),
    ];
    for (case, patch) in cases {
        let call = Call::new("PATCH", format!("{OBJECTS}/worn?dryRun=All")).json(&patch).content_type(MERGE);
        suite.compare(&format!("ratchet update {case}"), &call).await;
    }
    for (case, name, status) in [
        ("good", "worn", json!({"status": {"n": 1}})),
        ("bad", "worn", json!({"status": {"n": 9}})),
        ("fresh", "fresh", json!({"status": {"m": 9}})),
    ] {
        let call = Call::new("PATCH", format!("{OBJECTS}/{name}/status?dryRun=All"))
            .json(&status)
            .content_type(MERGE);
        suite.compare(&format!("ratchet status {case}"), &call).await;
    }
}

async fn creations(suite: &mut Suite) {
    for (case, spec) in [
        ("good", json!({"scalar": "a", "grows": 9, "keyed": [{"k": "a", "v": 2, "t": "x"}], "either": 1})),
        ("grows", json!({"grows": 10})),
        ("nested", json!({"nested": {"a": -1}})),
        ("far", json!({"nested": {"a": -9}})),
        ("key", json!({"labels": {"x": "1"}})),
        ("fails", json!({"fails": {"other": 1}})),
        ("both", json!({"both": 11})),
        ("both more", json!({"both": 101})),
        ("either", json!({"either": "x"})),
        ("twice", json!({"twice": "two"})),
        ("item", json!({"keyed": [{"k": "a", "v": 3}]})),
        ("shape first", json!({"scalar": 5, "both": 11})),
        ("enum first", json!({"word": "perhaps", "both": 11})),
        ("length first", json!({"scalar": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxx"})),
    ] {
        suite.compare(&format!("ratchet create {case}"), &create(&spec)).await;
    }
    let wrong = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Keeper", "metadata": {"name": "wrong"}});
    suite
        .compare("ratchet create by name", &Call::new("POST", format!("{OBJECTS}?dryRun=All")).json(&wrong))
        .await;
}

/// Rules as they are written.
async fn written(suite: &mut Suite) {
    let spec = |rule: Value, properties: Value| json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule], "properties": properties}}});
    let properties = json!({"a": {"type": "string", "maxLength": 9}, "any": {"x-kubernetes-int-or-string": true},
        "map": {"type": "object", "maxProperties": 3, "additionalProperties": {"type": "string", "maxLength": 9}}});
    for (case, rule) in [
        ("dyn", json!({"rule": "self.any"})),
        ("dyn compared", json!({"rule": "self.any == 1"})),
        ("message dyn", json!({"rule": "true", "messageExpression": "self.any"})),
        ("message number", json!({"rule": "true", "messageExpression": "1"})),
        ("message broken", json!({"rule": "true", "messageExpression": "self.nothing"})),
        ("message spaces", json!({"rule": "true", "messageExpression": "  "})),
        ("message empty", json!({"rule": "true", "message": " "})),
        ("message of two lines", json!({"rule": "true", "message": "a\nb"})),
        ("rule of two lines", json!({"rule": "true ||\nfalse"})),
        ("odd reason", json!({"rule": "true", "reason": "Because"})),
        ("good path", json!({"rule": "true", "fieldPath": ".map.x"})),
        ("path of no field", json!({"rule": "true", "fieldPath": ".b"})),
        ("path of spaces", json!({"rule": "true", "fieldPath": " "})),
        ("path without dot", json!({"rule": "true", "fieldPath": "a"})),
        ("optional unused", json!({"rule": "true", "optionalOldSelf": true})),
        ("optional used", json!({"rule": "oldSelf.orValue(self) == self", "optionalOldSelf": true})),
        ("optional unwrapped", json!({"rule": "oldSelf.a == self.a", "optionalOldSelf": true})),
        ("request", json!({"rule": "request == null"})),
        ("authorizer", json!({"rule": "authorizer.path('/x').check('get').allowed()"})),
    ] {
        let call = Call::new("POST", format!("{DEFINITIONS}?dryRun=All"))
            .json(&definition("Try", &spec(rule, properties.clone())));
        suite.compare(&format!("ratchet written {case}"), &call).await;
    }
    let mut other = definition("Try", &spec(json!({"rule": "self.b == 1"}), properties));
    other["metadata"]["name"] = json!("other.example.com");
    suite
        .compare(
            "ratchet written with name",
            &Call::new("POST", format!("{DEFINITIONS}?dryRun=All")).json(&other),
        )
        .await;
    let path = format!("{DEFINITIONS}/keepers.{GROUP}?dryRun=All");
    let field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/scalar";
    for (case, operations) in [
        ("field goes", json!([{"op": "remove", "path": field}])),
        (
            "type changes",
            json!([{"op": "replace", "path": format!("{field}/type"), "value": "integer"}, {"op": "remove", "path": format!("{field}/maxLength")}]),
        ),
    ] {
        let call = Call::new("PATCH", &path).json(&operations).content_type("application/json-patch+json");
        suite.compare(&format!("ratchet changed {case}"), &call).await;
    }
}
