//! Objects with several versions, seen by policies and webhooks that are about another one than the client used.

use serde_json::{Value, json};

use crate::batch::{Case, MERGE, Sort, Stage, rule, slug};
use crate::suite::Suite;
use crate::support::Call;
use crate::support::webhook::Webhook;

const SCENE: &str = "versions";
const DEFINITIONS: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUP: &str = "versions.example.com";
const CONFIGURATIONS: &str = "apis/admissionregistration.k8s.io/v1";

pub(crate) async fn run(suite: &mut Suite) {
    if !suite.wants(SCENE) {
        return;
    }
    let server = Webhook::start().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SCENE}});
    suite.both(&Call::new("POST", "api/v1/namespaces").json(&namespace)).await;
    let refusing = by(&server.client("/convert-refused"));
    for (name, conversion) in [
        ("plain", json!({"strategy": "None"})),
        ("turned", by(&server.client("/convert"))),
        ("stuck", refusing),
    ] {
        suite.both(&Call::new("POST", DEFINITIONS).json(&definition(name, &conversion))).await;
        suite.wait(&path("v1", name)).await;
        suite.wait(&path("v2", name)).await;
    }
    let parameter = |name: &str, field: &str| json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind(name), "metadata": {"name": "limit"}, "spec": {field: "five"}});
    for name in ["plain", "turned", "stuck"] {
        suite.both(&Call::new("POST", path("v1", name)).json(&parameter(name, "old"))).await;
    }
    let mut stage = Stage { suite, scene: SCENE, sort: Sort::Validating };
    stage.play(validating()).await;
    stage.sort = Sort::Mutating;
    stage.play(mutating()).await;
    webhooks(suite, &server).await;
    for name in ["plain", "turned", "stuck"] {
        suite.both(&Call::new("DELETE", format!("{}/limit", path("v1", name)))).await;
        suite.both(&Call::new("DELETE", format!("{DEFINITIONS}/{name}s.{GROUP}"))).await;
    }
    suite.until(&Call::new("GET", format!("apis/{GROUP}")), |answer| answer.code == 404).await;
    suite.until(&Call::new("GET", "apis"), |answer| !answer.text().contains(GROUP)).await;
}

fn by(client: &Value) -> Value {
    json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client}})
}

fn kind(name: &str) -> String {
    format!("{}{}", name[..1].to_uppercase(), &name[1..])
}

fn path(version: &str, name: &str) -> String {
    format!("apis/{GROUP}/{version}/namespaces/{SCENE}/{name}s")
}

/// Three versions, of which the first is stored; the last is listed before the second.
fn definition(name: &str, conversion: &Value) -> Value {
    let version = |version: &str, fields: &[&str], stored: bool| {
        let fields: serde_json::Map<String, Value> =
            fields.iter().map(|field| ((*field).to_owned(), json!({"type": "string"}))).collect();
        json!({"name": version, "served": true, "storage": stored, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": fields}, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{name}s.{GROUP}")},
        "spec": {"group": GROUP, "scope": "Namespaced", "conversion": conversion,
            "versions": [version("v1", &["old", "kept"], true), version("v3", &["old", "new", "kept"], false), version("v2", &["new", "kept"], false)],
            "names": {"plural": format!("{name}s"), "singular": name, "kind": kind(name), "listKind": format!("{}List", kind(name))}}})
}

/// An object in one version, with the label of a case.
fn object(version: &str, name: &str, case: &str) -> Value {
    let field = if version == "v1" { "old" } else { "new" };
    json!({"apiVersion": format!("{GROUP}/{version}"), "kind": kind(name),
        "metadata": {"name": "o", "labels": {"case": slug(case)}}, "spec": {field: "x", "kept": "k"}})
}

fn create(version: &str, name: &str, case: &str) -> Call {
    Call::new("POST", format!("{}?dryRun=All", path(version, name))).json(&object(version, name, case))
}

fn scaler(version: &str, case: &str) -> Call {
    let mut spec = json!({"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}});
    if version == "v1" {
        spec["targetCPUUtilizationPercentage"] = json!(50);
    } else {
        spec["metrics"] = json!([{"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 70}}}]);
    }
    let object = json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h", "labels": {"case": slug(case)}}, "spec": spec});
    Call::new(
        "POST",
        format!("apis/autoscaling/{version}/namespaces/{SCENE}/horizontalpodautoscalers?dryRun=All"),
    )
    .json(&object)
}

/// A policy about one resource, which tells what expressions come to.
fn telling(rules: Value, expressions: &[&str]) -> Value {
    let told = expressions.iter().map(|source| json!({"expression": "false", "messageExpression": source}));
    json!({"matchConstraints": {"resourceRules": rules}, "validations": told.collect::<Vec<_>>()})
}

const SEEN: [&str; 4] = [
    "'seen as ' + object.apiVersion + ' ' + object.kind",
    "'kind ' + request.kind.version + ' of ' + request.requestKind.version",
    "'resource ' + request.resource.version + ' of ' + request.requestResource.version",
    "'fields' + (has(object.spec.old) ? ' old' : '') + (has(object.spec.new) ? ' new' : '') + (has(object.spec.metrics) ? ' metrics' : '')",
];

fn validating() -> Vec<Case> {
    let warn = || json!({"validationActions": ["Warn"]});
    let deny = || json!({"validationActions": ["Deny"]});
    let scalers = |version: &str| json!([rule("autoscaling", version, "horizontalpodautoscalers")]);
    let customs = |version: &str, plural: &str| json!([rule(GROUP, version, plural)]);
    let told = |rules: Value| telling(rules, &SEEN);
    let mut exact = told(scalers("v2"));
    exact["matchConstraints"]["matchPolicy"] = json!("Exact");
    let mut conditions = told(customs("v2", "turneds"));
    conditions["matchConditions"] = json!([{"name": "converted", "expression": "has(object.spec.new) && request.kind.version == 'v2'"},
        {"name": "asked", "expression": "request.resource.version == 'v1'"}]);
    let mut ignoring = told(customs("v2", "stucks"));
    ignoring["failurePolicy"] = json!("Ignore");
    let mut all = told(json!([rule(GROUP, "*", "turneds")]));
    all["matchConstraints"]["excludeResourceRules"] = json!([rule(GROUP, "v2", "turneds")]);
    let parameters = |version: &str, name: &str| {
        json!({"paramKind": {"apiVersion": format!("{GROUP}/{version}"), "kind": kind(name)}, "validations": [
            {"expression": "false", "messageExpression": "params.apiVersion + (has(params.spec.old) ? ' old' : '') + (has(params.spec.new) ? ' new' : '')"}]})
    };
    let with = |action: &str| json!({"validationActions": ["Warn"], "paramRef": {"name": "limit", "parameterNotFoundAction": action}});
    vec![
        Case::new("first for second", told(scalers("v2")), warn())
            .send("sent", scaler("v1", "first for second"))
            .send("own", scaler("v2", "first for second")),
        Case::new("second for first", told(scalers("v1")), warn()).send("sent", scaler("v2", "second for first")),
        Case::new("either", told(json!([rule("autoscaling", "*", "horizontalpodautoscalers")])), warn())
            .send("sent", scaler("v1", "either")),
        Case::new("exact", exact, deny()).send("sent", scaler("v1", "exact")),
        Case::new("plain", told(customs("v2", "plains")), warn())
            .send("sent", create("v1", "plain", "plain"))
            .send("own", create("v2", "plain", "plain")),
        Case::new("plain in order", told(json!([rule("other.example.com", "v1", "plains"), {"apiGroups": [GROUP], "apiVersions": ["v2", "v3"], "operations": ["*"], "resources": ["plains"]}])), warn())
            .send("sent", create("v1", "plain", "plain in order")),
        Case::new("turned", told(customs("v2", "turneds")), warn())
            .send("sent", create("v1", "turned", "turned"))
            .send("own", create("v2", "turned", "turned")),
        Case::new("turned back", told(customs("v1", "turneds")), warn())
            .send("sent", create("v2", "turned", "turned back")),
        Case::new("turned for conditions", conditions, warn())
            .send("sent", create("v1", "turned", "turned for conditions")),
        Case::new("turned excluded", all, warn()).send("sent", create("v1", "turned", "turned excluded")),
        Case::new("stuck", told(customs("v2", "stucks")), warn()).send("sent", create("v1", "stuck", "stuck")),
        Case::new("stuck open", ignoring, warn()).send("sent", create("v1", "stuck", "stuck open")),
        Case::new("stuck unseen", told(customs("v1", "stucks")), warn())
            .send("sent", create("v1", "stuck", "stuck unseen")),
        Case::new("params plain", parameters("v2", "plain"), with("Deny")).of_new_kind(),
        Case::new("params turned", parameters("v2", "turned"), with("Deny")).of_new_kind(),
        Case::new("params as stored", parameters("v1", "turned"), with("Deny")).of_new_kind(),
    ]
}

fn mutating() -> Vec<Case> {
    let customs = |version: &str, plural: &str| json!({"resourceRules": [rule(GROUP, version, plural)]});
    let apply = |source: &str| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": source}});
    let patch = |source: &str| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": source}});
    let policy = |constraints: Value, mutations: Value| json!({"matchConstraints": constraints, "mutations": mutations});
    let scalers =
        |version: &str| json!({"resourceRules": [rule("autoscaling", version, "horizontalpodautoscalers")]});
    vec![
        Case::new(
            "changed turned",
            policy(
                customs("v2", "turneds"),
                json!([apply("Object{spec: Object.spec{new: object.spec.new + '!'}}")]),
            ),
            json!({}),
        )
        .send("sent", create("v1", "turned", "changed turned")),
        Case::new(
            "patched turned",
            policy(
                customs("v2", "turneds"),
                json!([patch("[JSONPatch{op: 'replace', path: '/spec/new', value: object.apiVersion}]")]),
            ),
            json!({}),
        )
        .send("sent", create("v1", "turned", "patched turned")),
        Case::new(
            "changed plain",
            policy(
                customs("v3", "plains"),
                json!([apply("Object{spec: Object.spec{kept: object.apiVersion}}")]),
            ),
            json!({}),
        )
        .send("sent", create("v1", "plain", "changed plain")),
        Case::new(
            "changed stuck",
            policy(customs("v2", "stucks"), json!([apply("Object{spec: Object.spec{new: 'y'}}")])),
            json!({}),
        )
        .send("sent", create("v1", "stuck", "changed stuck")),
        Case::new(
            "changed second",
            policy(scalers("v2"), json!([apply("Object{spec: Object.spec{minReplicas: 2}}")])),
            json!({}),
        )
        .send("sent", scaler("v1", "changed second")),
        Case::new(
            "changed first",
            policy(scalers("v1"), json!([apply("Object{spec: Object.spec{minReplicas: 2}}")])),
            json!({}),
        )
        .send("sent", scaler("v2", "changed first")),
    ]
}

/// The same for webhooks, which refuse with what they were asked or change what they got.
async fn webhooks(suite: &mut Suite, server: &Webhook) {
    let hook = |name: &str, case: &str, path: &str, plural: &str, version: &str| {
        json!({"name": format!("{name}.example.com"), "clientConfig": server.client(path), "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "objectSelector": {"matchLabels": {"case": slug(case)}},
            "rules": [{"operations": ["*"], "apiGroups": [GROUP], "apiVersions": [version], "resources": [plural, format!("{plural}/status")]}]})
    };
    let mut conditional = hook("c", "hook conditional", "/deny", "turneds", "v2");
    conditional["matchConditions"] = json!([{"name": "turned", "expression": "has(object.spec.new) && request.resource.version == 'v1' && namespaceObject == null"}]);
    let mut ignoring = hook("i", "hook stuck open", "/deny", "stucks", "v2");
    ignoring["failurePolicy"] = json!("Ignore");
    let mut exact = hook("e", "hook exact", "/echo", "turneds", "v2");
    exact["matchPolicy"] = json!("Exact");
    let marker = |kind: &str| {
        json!({"name": "marker.example.com", "clientConfig": server.client("/deny"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "objectSelector": {"matchLabels": {"marker": kind}}, "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]})
    };
    let validating = [
        hook("a", "hook turned", "/echo", "turneds", "v2"),
        hook("b", "hook plain", "/echo", "plains", "v2"),
        conditional,
        hook("d", "hook stuck", "/deny", "stucks", "v2"),
        ignoring,
        exact,
        marker("validating"),
    ];
    let mutating = [
        hook("f", "hook changes", "/label", "turneds", "v2"),
        hook("g", "hook sees", "/echo", "turneds", "v2"),
        hook("h", "hook changes stuck", "/label", "stucks", "v2"),
        marker("mutating"),
    ];
    for (sort, hooks) in [("validating", json!(validating)), ("mutating", json!(mutating))] {
        let kind = format!("{}{}WebhookConfiguration", sort[..1].to_uppercase(), &sort[1..]);
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "versions"}, "webhooks": hooks});
        let collection = format!("{CONFIGURATIONS}/{sort}webhookconfigurations");
        suite.both(&Call::new("POST", &collection).json(&configuration)).await;
        let probe = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe", "labels": {"marker": sort}}});
        let probe =
            Call::new("POST", format!("api/v1/namespaces/{SCENE}/configmaps?dryRun=All")).json(&probe);
        suite.until(&probe, |answer| answer.text().contains("not today")).await;
    }
    let stored = object("v1", "turned", "none");
    suite.both(&Call::new("POST", path("v1", "turned")).json(&stored)).await;
    let update = json!({"metadata": {"labels": {"case": "hook-turned"}}, "spec": {"old": "y"}});
    let status = json!({"metadata": {"labels": {"case": "hook-turned"}}, "status": {"a": "b"}});
    for (case, call) in [
        ("hook turned", create("v1", "turned", "hook turned")),
        ("hook turned own", create("v2", "turned", "hook turned")),
        ("hook turned third", create("v3", "turned", "hook turned")),
        (
            "hook turned update",
            Call::new("PATCH", format!("{}/o", path("v1", "turned"))).json(&update).content_type(MERGE),
        ),
        (
            "hook turned status",
            Call::new("PATCH", format!("{}/o/status", path("v1", "turned")))
                .json(&status)
                .content_type(MERGE),
        ),
        ("hook plain", create("v1", "plain", "hook plain")),
        ("hook conditional", create("v1", "turned", "hook conditional")),
        ("hook stuck", create("v1", "stuck", "hook stuck")),
        ("hook stuck open", create("v1", "stuck", "hook stuck open")),
        ("hook exact", create("v1", "turned", "hook exact")),
        ("hook changes", create("v1", "turned", "hook changes")),
        ("hook sees", create("v1", "turned", "hook sees")),
        ("hook changes stuck", create("v1", "stuck", "hook changes stuck")),
    ] {
        suite.compare(&format!("versions {case}"), &call).await;
    }
    for sort in ["validating", "mutating"] {
        let path = format!("{CONFIGURATIONS}/{sort}webhookconfigurations/versions");
        suite.both(&Call::new("DELETE", path)).await;
    }
    let probe = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe", "labels": {"marker": "mutating"}}});
    let probe = Call::new("POST", format!("api/v1/namespaces/{SCENE}/configmaps?dryRun=All")).json(&probe);
    suite.until(&probe, |answer| answer.code == 201).await;
    suite.both(&Call::new("DELETE", format!("{}/o", path("v1", "turned")))).await;
}
