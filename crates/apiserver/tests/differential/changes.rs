//! MutatingAdmissionPolicies at work, further: parameters, rounds, whom they concern, patches of all sorts.

use serde_json::{Value, json};

use crate::batch::{Case, MERGE, Sort, Stage, labelled, rule};
use crate::suite::Suite;
use crate::support::Call;
use crate::support::webhook::Webhook;

const SCENE: &str = "changes";
const MAPS: &str = "api/v1/namespaces/changes/configmaps";
/// The parameters are of a kind that no other scene uses: what kube-apiserver has once watched for a policy, and then stopped to
/// watch, it never reads again.
const SECRETS: &str = "api/v1/namespaces/changes/secrets";

pub(crate) async fn run(suite: &mut Suite) {
    if !suite.wants(SCENE) {
        return;
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SCENE, "labels": {"team": "a"}}});
    let map = |name: &str, labels: Value, data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": data});
    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": {"params": "some"}}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    for (path, object) in [
        ("api/v1/namespaces", namespace),
        (SECRETS, secret("one")),
        (SECRETS, secret("two")),
        (MAPS, map("stored", json!({"case": "stored"}), json!({"a": "1"}))),
        ("apis/apps/v1/namespaces/changes/deployments", deployment),
    ] {
        suite.both(&Call::new("POST", path).json(&object)).await;
    }
    let server = Webhook::start().await;
    let mut stage = Stage { suite, scene: SCENE, sort: Sort::Mutating };
    let mut cases = parameters();
    cases.extend(patches());
    cases.extend(concerned());
    stage.play(cases).await;
    rounds(&mut stage, &server).await;
}

fn apply(source: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": source}})
}

fn patch(source: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": source}})
}

fn one(mutation: Value) -> Value {
    json!({"mutations": [mutation]})
}

fn parameters() -> Vec<Case> {
    let secrets = json!({"apiVersion": "v1", "kind": "Secret"});
    let with = |kind: &Value| json!({"paramKind": kind, "mutations": [apply("Object{data: {params.metadata.name: params.kind}}")]});
    let by = |reference: Value| json!({"paramRef": reference});
    let nobody = json!({"apiVersion": "v1", "kind": "Nobody"});
    let mut ignoring = with(&nobody);
    ignoring["failurePolicy"] = json!("Ignore");
    vec![
        Case::new("params", with(&secrets), by(json!({"name": "one", "parameterNotFoundAction": "Deny"}))),
        Case::new(
            "params two",
            with(&secrets),
            by(json!({"selector": {"matchLabels": {"params": "some"}}, "parameterNotFoundAction": "Deny"})),
        ),
        Case::new(
            "params missing",
            with(&secrets),
            by(json!({"name": "none", "parameterNotFoundAction": "Deny"})),
        ),
        Case::new(
            "params missing and allowed",
            with(&secrets),
            by(json!({"name": "none", "parameterNotFoundAction": "Allow"})),
        ),
        Case::new(
            "params of no kind",
            with(&nobody),
            by(json!({"name": "one", "parameterNotFoundAction": "Deny"})),
        ),
        Case::new(
            "params of no kind open",
            ignoring,
            by(json!({"name": "one", "parameterNotFoundAction": "Deny"})),
        ),
        Case::new("params not given", with(&secrets), json!({})),
    ]
}

fn patches() -> Vec<Case> {
    let several = json!({"mutations": [apply("Object{data: {'x': object.data.missing}}"), apply("Object{data: {'y': 'made'}}"), patch("[JSONPatch{op: 'add', path: '/data/z', value: object.data.y}]")]});
    let mut open = several.clone();
    open["failurePolicy"] = json!("Ignore");
    vec![
        Case::new(
            "unknown field",
            one(patch("[JSONPatch{op: 'add', path: '/nonsense', value: 'x'}]")),
            json!({}),
        ),
        Case::new("wrong type", one(patch("[JSONPatch{op: 'add', path: '/data', value: 'x'}]")), json!({})),
        Case::new(
            "replace",
            one(patch("[JSONPatch{op: 'replace', path: '/data/a', value: string(int(object.data.n) + 1)}]")),
            json!({}),
        ),
        Case::new(
            "copy and move",
            one(patch(
                "[JSONPatch{op: 'copy', from: '/data/a', path: '/data/b'}, JSONPatch{op: 'move', from: '/data/n', path: '/data/m'}]",
            )),
            json!({}),
        ),
        Case::new(
            "map value",
            one(patch(
                "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'k': 'v', 'w': request.name}}]",
            )),
            json!({}),
        ),
        Case::new(
            "object value",
            one(patch(
                "[JSONPatch{op: 'replace', path: '/metadata/labels', value: Object.metadata.labels{by: 'policy'}}]",
            )),
            json!({}),
        ),
        Case::new(
            "test holds",
            one(patch(
                "[JSONPatch{op: 'test', path: '/data/a', value: '1'}, JSONPatch{op: 'add', path: '/data/t', value: 'held'}]",
            )),
            json!({}),
        ),
        Case::new(
            "chosen",
            one(patch(
                "request.operation == 'CREATE' ? [JSONPatch{op: 'add', path: '/data/c', value: 'created'}] : []",
            )),
            json!({}),
        ),
        Case::new(
            "removes",
            one(patch("[JSONPatch{op: 'remove', path: '/metadata/labels/case'}]")),
            json!({}),
        ),
        Case::new("odd operation", one(patch("[JSONPatch{op: 'shuffle', path: '/data'}]")), json!({})),
        Case::new("several", several, json!({})),
        Case::new("several open", open, json!({})),
        Case::new(
            "rights",
            one(apply("Object{data: {'may': string(authorizer.requestResource.check('get').allowed())}}")),
            json!({}),
        ),
        Case::new(
            "namespace",
            one(apply(
                "Object{data: {'team': namespaceObject.metadata.labels.team, 'op': request.operation}}",
            )),
            json!({}),
        ),
        Case::new(
            "variable fails",
            json!({"variables": [{"name": "v", "expression": "object.data.none"}], "mutations": [apply("Object{data: {'v': variables.v}}")]}),
            json!({}),
        ),
        Case::new("name changed", one(apply("Object{metadata: Object.metadata{name: 'other'}}")), json!({})),
        Case::new(
            "invalid made",
            one(apply("Object{metadata: Object.metadata{labels: {'a b': 'c'}}}")),
            json!({}),
        ),
    ]
}

fn concerned() -> Vec<Case> {
    let label = || apply("Object{metadata: Object.metadata{annotations: {'seen': 'yes'}}}");
    let conditions = |list: Value, policy: &str| json!({"failurePolicy": policy, "matchConditions": list, "mutations": [label()]});
    let broken = json!([{"name": "broken", "expression": "object.data.none == ''"}]);
    let about = |constraints: Value| json!({"matchConstraints": constraints, "mutations": [label()]});
    let mut excluding = about(json!({"resourceRules": [rule("", "v1", "configmaps")]}));
    excluding["matchConstraints"]["excludeResourceRules"] = json!([rule("", "v1", "configmaps")]);
    let scale = json!({"objectSelector": {}, "resourceRules": [rule("apps", "v1", "deployments/scale")]});
    let scaled = Call::new("PATCH", "apis/apps/v1/namespaces/changes/deployments/d/scale?dryRun=All")
        .json(&json!({"spec": {"replicas": 2}}))
        .content_type(MERGE);
    let stored =
        |body: Value| Call::new("PATCH", format!("{MAPS}/stored?dryRun=All")).json(&body).content_type(MERGE);
    vec![
        Case::new("condition fails", conditions(broken.clone(), "Fail"), json!({})),
        Case::new("condition fails open", conditions(broken, "Ignore"), json!({})),
        Case::new("condition without namespace", conditions(json!([{"name": "none", "expression": "namespaceObject == null"}]), "Fail"), json!({})),
        Case::new("excluded", excluding, json!({})),
        Case::new("binding narrower", one(label()), json!({"matchResources": {"namespaceSelector": {"matchLabels": {"team": "b"}}}})),
        Case::new("namespace selected", one(label()), json!({"matchResources": {"namespaceSelector": {"matchLabels": {"team": "a"}}}})),
        Case::new("scale", json!({"matchConstraints": scale, "mutations": [apply("Object{spec: Object.spec{replicas: object.spec.replicas + 1}}")]}), json!({}))
            .send("patch", scaled),
        Case::new("stored", one(apply("Object{data: {'was': oldObject == null ? 'none' : oldObject.data.a}}")), json!({}))
            .send("patch", stored(json!({"data": {"a": "2"}})))
            .send("label goes", stored(json!({"metadata": {"labels": {"case": null}}})))
            .send("nothing", stored(json!({}))),
    ]
}

/// Policies that run again when something has changed after them; each has a batch of its own, since upstream has no order among policies.
async fn rounds(stage: &mut Stage<'_>, server: &Webhook) {
    let count = "[JSONPatch{op: 'add', path: '/data/count', value: (has(object.data.count) ? object.data.count : '') + 'I'}]";
    let counting = |policy: &str| json!({"reinvocationPolicy": policy, "mutations": [patch(count)]});
    stage
        .play(vec![
            Case::new("once", counting("Never"), json!({})),
            Case::new("again", counting("IfNeeded"), json!({})),
            Case::new(
                "again unchanged",
                json!({"reinvocationPolicy": "IfNeeded", "mutations": [apply("Object{data: {'a': '1'}}")]}),
                json!({}),
            ),
        ])
        .await;
    let hook = json!({"name": "once.example.com", "clientConfig": server.client("/once"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SCENE}},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]});
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "changes"}, "webhooks": [hook]});
    let path = "apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    stage.suite.both(&Call::new("POST", path).json(&configuration)).await;
    let probe = labelled("none", MAPS);
    stage.suite.until(&probe, |answer| answer.text().contains("\"once\":\"1\"")).await;
    stage
        .play(vec![
            Case::new("once with hook", counting("Never"), json!({})),
            Case::new("again with hook", counting("IfNeeded"), json!({})),
        ])
        .await;
    stage.suite.both(&Call::new("DELETE", format!("{path}/changes"))).await;
    stage.suite.until(&probe, |answer| !answer.text().contains("\"once\"")).await;
}
