//! Conversion webhooks: one server of ours converts for both API servers.
//!
//! Every way to be answered has a definition of its own: kube-apiserver takes its time to notice that one has changed.

use serde_json::{Value, json};

use crate::suite::Suite;
use crate::support::Call;
use crate::support::webhook::Webhook;

const DEFINITIONS: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

pub(crate) async fn run(suite: &mut Suite) {
    if !suite.wants("conversion") {
        return;
    }
    let server = Webhook::start().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "conversion"}});
    suite.both(&Call::new("POST", "api/v1/namespaces").json(&namespace)).await;
    let hooks = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hooks"}});
    suite.both(&Call::new("POST", "api/v1/namespaces").json(&hooks)).await;
    let port = server.address.port();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}});
    suite.both(&Call::new("POST", "api/v1/namespaces/hooks/services").json(&service)).await;
    definitions(suite, &server).await;
    good(suite, &server).await;
    bad(suite, &server).await;
    // Definitions go in their own time, and others look at what is served.
    suite.until(&Call::new("GET", "apis/turn.example.com"), |answer| answer.code == 404).await;
    suite.until(&Call::new("GET", "apis"), |answer| !answer.text().contains("turn.example.com")).await;
}

fn version(name: &str, field: &str, stored: bool) -> Value {
    json!({"name": name, "served": true, "storage": stored,
        "additionalPrinterColumns": [{"name": "Field", "type": "string", "jsonPath": format!(".spec.{field}")}],
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
            field: {"type": "string"}, "kept": {"type": "integer"}, "filled": {"type": "string", "default": name}}}}}}})
}

fn definition(name: &str, conversion: &Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{name}s.turn.example.com")},
        "spec": {"group": "turn.example.com", "scope": "Namespaced", "conversion": conversion,
            "versions": [version("v1", "old", true), version("v2", "new", false)],
            "names": {"plural": format!("{name}s"), "singular": name, "kind": name.to_uppercase(),
                "listKind": format!("{}List", name.to_uppercase())}}})
}

fn by(client: &Value, versions: &Value) -> Value {
    json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": versions, "clientConfig": client}})
}

fn path(version: &str, name: &str) -> String {
    format!("apis/turn.example.com/{version}/namespaces/conversion/{name}s")
}

fn object(version: &str, name: &str, field: &str) -> Value {
    json!({"apiVersion": format!("turn.example.com/{version}"), "kind": name.to_uppercase(),
        "metadata": {"name": "a", "labels": {"l": "1"}}, "spec": {field: "x", "kept": 1}})
}

/// What a definition may say about conversion.
async fn definitions(suite: &mut Suite, server: &Webhook) {
    let client = server.client("/convert");
    let cases = [
        ("no strategy", json!({})),
        ("odd strategy", json!({"strategy": "Guess"})),
        ("nothing to call", json!({"strategy": "Webhook"})),
        (
            "none with webhook",
            json!({"strategy": "None", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client}}),
        ),
        ("no versions", by(&client, &json!([]))),
        ("odd versions", by(&client, &json!(["v9"]))),
        ("bad versions", by(&client, &json!(["V 1"]))),
        ("repeated versions", by(&client, &json!(["v1", "v1"]))),
        ("no client", by(&json!({}), &json!(["v1"]))),
        ("plain http", by(&json!({"url": "http://127.0.0.1/"}), &json!(["v1"]))),
        ("url with user", by(&json!({"url": "https://a@127.0.0.1/"}), &json!(["v1"]))),
        ("url with query", by(&json!({"url": "https://127.0.0.1/?a=b"}), &json!(["v1"]))),
        (
            "both",
            by(
                &json!({"url": "https://127.0.0.1/", "service": {"name": "a", "namespace": "b"}}),
                &json!(["v1"]),
            ),
        ),
        ("service without name", by(&json!({"service": {"namespace": "b"}}), &json!(["v1"]))),
        ("service", by(&json!({"service": {"name": "a", "namespace": "b", "path": "/x"}}), &json!(["v1"]))),
        (
            "service bad port",
            by(&json!({"service": {"name": "a", "namespace": "b", "port": 0}}), &json!(["v1"])),
        ),
        (
            "service bad path",
            by(&json!({"service": {"name": "a", "namespace": "b", "path": "x//y"}}), &json!(["v1"])),
        ),
        (
            "bundle of garbage",
            by(&json!({"url": "https://127.0.0.1/", "caBundle": "aGVsbG8="}), &json!(["v1"])),
        ),
    ];
    for (case, conversion) in cases {
        let call =
            Call::new("POST", format!("{DEFINITIONS}?dryRun=All")).json(&definition("try", &conversion));
        suite.compare(&format!("conversion definition {case}"), &call).await;
    }
}

async fn define(suite: &mut Suite, name: &str, conversion: &Value) {
    let call = Call::new("POST", DEFINITIONS).json(&definition(name, conversion));
    let code = suite.compare(&format!("conversion define {name}"), &call).await;
    assert_eq!(code, 201, "{name} is not accepted");
    suite.wait(&path("v1", name)).await;
}

/// Everything that can be done with objects that are converted as they should be.
async fn good(suite: &mut Suite, server: &Webhook) {
    let port = server.address.port();
    let by_service = json!({"service": {"name": "hook", "namespace": "hooks", "port": port, "path": "/convert"},
        "caBundle": server.bundle});
    for (name, conversion) in [
        ("url", by(&server.client("/convert"), &json!(["v1"]))),
        ("svc", by(&by_service, &json!(["v2", "v1beta1", "v1"]))),
    ] {
        define(suite, name, &conversion).await;
        let (v1, v2) = (path("v1", name), path("v2", name));
        let steps = [
            ("create", Call::new("POST", &v1).json(&object("v1", name, "old"))),
            ("get", Call::new("GET", format!("{v2}/a"))),
            ("get table", Call::new("GET", format!("{v2}/a")).accept(TABLE)),
            ("list", Call::new("GET", &v2)),
            ("list table", Call::new("GET", &v2).accept(TABLE)),
            (
                "merge",
                Call::new("PATCH", format!("{v2}/a"))
                    .json(&json!({"spec": {"new": "y"}}))
                    .content_type(MERGE),
            ),
            ("merge nothing", Call::new("PATCH", format!("{v2}/a")).json(&json!({})).content_type(MERGE)),
            ("seen as first", Call::new("GET", format!("{v1}/a"))),
            (
                "unknown field",
                Call::new("PATCH", format!("{v2}/a?fieldValidation=Strict"))
                    .json(&json!({"spec": {"old": "y"}}))
                    .content_type(MERGE),
            ),
            (
                "wrong type",
                Call::new("PATCH", format!("{v2}/a")).json(&json!({"spec": {"new": 1}})).content_type(MERGE),
            ),
            (
                "apply",
                Call::new("PATCH", format!("{v2}/b?fieldManager=m"))
                    .json(&json!({"apiVersion": "turn.example.com/v2",
                "kind": name.to_uppercase(), "metadata": {"name": "b"}, "spec": {"new": "1"}}))
                    .content_type(APPLY),
            ),
            (
                "apply in first",
                Call::new("PATCH", format!("{v1}/b?fieldManager=n"))
                    .json(&json!({"apiVersion": "turn.example.com/v1",
                "kind": name.to_uppercase(), "metadata": {"name": "b"}, "spec": {"old": "2"}}))
                    .content_type(APPLY),
            ),
            (
                "apply in first forced",
                Call::new("PATCH", format!("{v1}/b?fieldManager=n&force=true"))
                    .json(&json!({"apiVersion": "turn.example.com/v1",
                "kind": name.to_uppercase(), "metadata": {"name": "b"}, "spec": {"old": "2"}}))
                    .content_type(APPLY),
            ),
            ("after apply", Call::new("GET", format!("{v2}/b"))),
            (
                "dry create",
                Call::new("POST", format!("{v2}?dryRun=All"))
                    .json(&json!({"apiVersion": "turn.example.com/v2",
                "kind": name.to_uppercase(), "metadata": {"name": "c"}, "spec": {"new": "1"}})),
            ),
            ("delete", Call::new("DELETE", format!("{v2}/a"))),
            ("delete all", Call::new("DELETE", &v2)),
        ];
        for (case, call) in steps {
            suite.compare(&format!("conversion {name} {case}"), &call).await;
        }
        suite.both(&Call::new("DELETE", format!("{DEFINITIONS}/{name}s.turn.example.com"))).await;
    }
}

/// Webhooks that answer wrongly, or not at all.
async fn bad(suite: &mut Suite, server: &Webhook) {
    let port = server.address.port();
    let bundle = &server.bundle;
    let clients = [
        ("refused", server.client("/convert-refused")),
        ("badly", server.client("/convert-badly")),
        ("fewer", server.client("/convert-fewer")),
        ("silent", server.client("/convert-silently")),
        ("other", server.client("/convert-elsewhere")),
        ("kind", server.client("/convert-kind")),
        ("meta", server.client("/convert-labels")),
        ("untrusted", json!({"url": format!("https://127.0.0.1:{port}/convert")})),
        ("closed", json!({"url": "https://127.0.0.1:1/convert", "caBundle": bundle})),
        (
            "nobody",
            json!({"service": {"name": "nobody", "namespace": "hooks", "path": "/convert"}, "caBundle": bundle}),
        ),
    ];
    for (name, client) in clients {
        define(suite, name, &by(&client, &json!(["v1"]))).await;
        let (v1, v2) = (path("v1", name), path("v2", name));
        let steps = [
            ("create", Call::new("POST", &v1).json(&object("v1", name, "old"))),
            ("get", Call::new("GET", format!("{v2}/a"))),
            ("create in other", Call::new("POST", &v2).json(&object("v2", name, "new"))),
            (
                "patch",
                Call::new("PATCH", format!("{v2}/a"))
                    .json(&json!({"spec": {"new": "y"}}))
                    .content_type(MERGE),
            ),
            ("delete", Call::new("DELETE", format!("{v2}/a"))),
            ("get first", Call::new("GET", format!("{v1}/a"))),
        ];
        for (case, call) in steps {
            suite.compare(&format!("conversion {name} {case}"), &call).await;
        }
        suite.both(&Call::new("DELETE", format!("{v1}/a"))).await;
        suite.both(&Call::new("DELETE", format!("{DEFINITIONS}/{name}s.turn.example.com"))).await;
    }
}
