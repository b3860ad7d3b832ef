//! Policies that change objects, and what may be written into policies at all.

use serde_json::{Value, json};

use crate::suite::Suite;
use crate::support::Call;

const ADMISSION: &str = "apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "api/v1/namespaces/mutations/configmaps";
const PODS: &str = "api/v1/namespaces/mutations/pods";

pub(crate) async fn run(suite: &mut Suite) {
    if !suite.wants("mutations") {
        return;
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mutations"}});
    suite.both(&Call::new("POST", "api/v1/namespaces").json(&namespace)).await;
    written(suite).await;
    changes(suite).await;
}

fn policy(kind: &str, name: &str, spec: Value) -> Value {
    let mut spec = spec;
    if spec["matchConstraints"].is_null() {
        spec["matchConstraints"] = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["CREATE"], "resources": ["configmaps", "pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "mutations"}}});
    }
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

/// Policies as they are written: what is missing, and expressions that do not compile.
async fn written(suite: &mut Suite) {
    let validating = [
        ("good", json!({"validations": [{"expression": "object.data.size() > 2"}]})),
        ("nothing", json!({})),
        ("empty expression", json!({"validations": [{"expression": ""}]})),
        ("syntax", json!({"validations": [{"expression": "object."}]})),
        ("unknown name", json!({"validations": [{"expression": "objekt.x == 1"}]})),
        ("no params", json!({"validations": [{"expression": "params.x == 1"}]})),
        ("not bool", json!({"validations": [{"expression": "1 + 1"}]})),
        ("types", json!({"validations": [{"expression": "1 + 'a' == 2"}]})),
        ("message", json!({"validations": [{"expression": "true", "messageExpression": "1"}]})),
        ("reason", json!({"validations": [{"expression": "true", "reason": "Because"}]})),
        ("two lines", json!({"validations": [{"expression": "true", "message": "a\nb"}]})),
        ("failure policy", json!({"failurePolicy": "Perhaps", "validations": [{"expression": "true"}]})),
        (
            "variable name",
            json!({"variables": [{"name": "a-b", "expression": "1"}], "validations": [{"expression": "true"}]}),
        ),
    ];
    for (case, spec) in validating {
        let call = Call::new("POST", format!("{ADMISSION}/validatingadmissionpolicies?dryRun=All"))
            .json(&policy("ValidatingAdmissionPolicy", "written", spec));
        suite.compare(&format!("mutations written validating {case}"), &call).await;
    }
    let good = "Object{metadata: Object.metadata{labels: {'a': 'b'}}}";
    let mutating = [
        ("good", json!({"reinvocationPolicy": "Never", "mutations": [apply(good)]})),
        ("nothing", json!({"reinvocationPolicy": "Never"})),
        ("no reinvocation", json!({"mutations": [apply(good)]})),
        ("odd type", json!({"reinvocationPolicy": "Never", "mutations": [{"patchType": "Magic"}]})),
        ("no type", json!({"reinvocationPolicy": "Never", "mutations": [{}]})),
        ("no expression", json!({"reinvocationPolicy": "Never", "mutations": [{"patchType": "JSONPatch"}]})),
        ("not an object", json!({"reinvocationPolicy": "Never", "mutations": [apply("true")]})),
        ("not a list", json!({"reinvocationPolicy": "Never", "mutations": [patch("true")]})),
        ("unknown name", json!({"reinvocationPolicy": "Never", "mutations": [apply("Object{x: nobody}")]})),
    ];
    for (case, spec) in mutating {
        let call = Call::new("POST", format!("{ADMISSION}/mutatingadmissionpolicies?dryRun=All"))
            .json(&policy("MutatingAdmissionPolicy", "written", spec));
        suite.compare(&format!("mutations written mutating {case}"), &call).await;
    }
    for (case, spec) in [
        ("good", json!({"policyName": "p", "validationActions": ["Deny"]})),
        ("no policy", json!({"validationActions": ["Deny"]})),
        ("no actions", json!({"policyName": "p"})),
        ("odd action", json!({"policyName": "p", "validationActions": ["Shout"]})),
        ("deny and warn", json!({"policyName": "p", "validationActions": ["Deny", "Warn"]})),
        ("params nothing", json!({"policyName": "p", "validationActions": ["Deny"], "paramRef": {}})),
    ] {
        let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "written"}, "spec": spec});
        let call = Call::new("POST", format!("{ADMISSION}/validatingadmissionpolicybindings?dryRun=All"))
            .json(&binding);
        suite.compare(&format!("mutations written binding {case}"), &call).await;
    }
}

/// What policies make of objects.
async fn changes(suite: &mut Suite) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "o", "labels": {"own": "1"}}, "data": {"a": "1"}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let label = "Object{metadata: Object.metadata{labels: {'added': 'yes'}}}";
    let cases = [
        ("label", json!({"mutations": [apply(label)]}), &map),
        ("data", json!({"mutations": [apply("Object{data: {'b': object.data.a + '2'}}")]}), &map),
        ("patch", json!({"mutations": [patch("[JSONPatch{op: 'add', path: '/data/z', value: '9'}]")]}), &map),
        (
            "patch test",
            json!({"mutations": [patch("[JSONPatch{op: 'test', path: '/data/a', value: '7'}, JSONPatch{op: 'remove', path: '/data/a'}]")]}),
            &map,
        ),
        ("patch fails", json!({"mutations": [patch("[JSONPatch{op: 'remove', path: '/data/none'}]")]}), &map),
        (
            "patch key",
            json!({"mutations": [patch("[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b'), value: 'x'}]")]}),
            &map,
        ),
        ("fails", json!({"mutations": [apply("Object{data: {'b': object.data.missing}}")]}), &map),
        (
            "fails open",
            json!({"failurePolicy": "Ignore", "mutations": [apply("Object{data: {'b': object.data.missing}}")]}),
            &map,
        ),
        (
            "misplaced",
            json!({"mutations": [apply("Object{metadata: Object.spec{labels: {'a': 'b'}}}")]}),
            &map,
        ),
        (
            "variables",
            json!({"variables": [{"name": "n", "expression": "object.metadata.name"}],
                "mutations": [apply("Object{data: {'name': variables.n}}")]}),
            &map,
        ),
        (
            "condition",
            json!({"matchConditions": [{"name": "other", "expression": "object.metadata.name != 'o'"}], "mutations": [apply(label)]}),
            &map,
        ),
        (
            "in order",
            json!({"mutations": [apply("Object{data: {'one': '1'}}"), apply("Object{data: {'two': object.data.one + '2'}}")]}),
            &map,
        ),
        (
            "container",
            json!({"mutations": [apply("Object{spec: Object.spec{containers: [Object.spec.containers{name: 'side', image: 'car'}]}}")]}),
            &pod,
        ),
        (
            "every container",
            json!({"mutations": [apply("Object{spec: Object.spec{containers: object.spec.containers.map(c, Object.spec.containers{name: c.name, imagePullPolicy: 'Never'})}}")]}),
            &pod,
        ),
        (
            "atomic",
            json!({"mutations": [apply("Object{spec: Object.spec{nodeSelector: {'a': 'b'}}}")]}),
            &pod,
        ),
        ("unknown field", json!({"mutations": [apply("Object{spec: Object.spec{nonsense: 1}}")]}), &pod),
    ];
    for (index, (case, mut spec, object)) in cases.into_iter().enumerate() {
        let mark = format!("m{index}");
        spec["reinvocationPolicy"] = json!("Never");
        let marking =
            apply(&format!("Object{{metadata: Object.metadata{{annotations: {{'mark': '{mark}'}}}}}}"));
        spec["mutations"].as_array_mut().expect("a list").insert(0, marking);
        let tried = Call::new("POST", format!("{ADMISSION}/mutatingadmissionpolicies?dryRun=All"))
            .json(&policy("MutatingAdmissionPolicy", "differ", spec.clone()));
        suite.compare(&format!("mutations policy {case}"), &tried).await;
        if bind(suite, &spec, &mark).await {
            let path = if object["kind"] == "Pod" { PODS } else { MAPS };
            let call = Call::new("POST", format!("{path}?dryRun=All")).json(object);
            suite.compare(&format!("mutations change {case}"), &call).await;
        }
        unbind(suite).await;
    }
}

/// Every policy leaves a mark on what it sees; the probe has what all of them need.
fn probe() -> Call {
    let probe = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe", "labels": {"own": "1"}},
        "data": {"a": "1", "missing": "1", "none": "1"}});
    Call::new("POST", format!("{MAPS}?dryRun=All")).json(&probe)
}

/// Returns whether both have taken the policy.
async fn bind(suite: &Suite, spec: &Value, mark: &str) -> bool {
    let policy = policy("MutatingAdmissionPolicy", "differ", spec.clone());
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "differ"}, "spec": {"policyName": "differ"}});
    let create = Call::new("POST", format!("{ADMISSION}/mutatingadmissionpolicies")).json(&policy);
    let (theirs, ours) = suite.both(&create).await;
    if theirs.code != 201 || ours.code != 201 {
        return false;
    }
    suite
        .both(&Call::new("POST", format!("{ADMISSION}/mutatingadmissionpolicybindings")).json(&binding))
        .await;
    // A policy that cannot work on the probe refuses it, which shows as well that it is obeyed.
    suite.until(&probe(), |answer| answer.code != 201 || answer.text().contains(mark)).await;
    true
}

async fn unbind(suite: &Suite) {
    suite.both(&Call::new("DELETE", format!("{ADMISSION}/mutatingadmissionpolicybindings/differ"))).await;
    suite.both(&Call::new("DELETE", format!("{ADMISSION}/mutatingadmissionpolicies/differ"))).await;
    suite.until(&probe(), |answer| answer.code == 201 && !answer.text().contains("mark")).await;
}
