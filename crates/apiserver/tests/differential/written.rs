//! Policies, bindings and webhooks as they are written: what is refused, in which words.

use serde_json::{Value, json};

use crate::batch::{ADMISSION, MERGE};
use crate::suite::Suite;
use crate::support::Call;

pub(crate) async fn run(suite: &mut Suite) {
    if !suite.wants("written") {
        return;
    }
    expressions(suite).await;
    constraints(suite).await;
    bindings(suite).await;
    mutating(suite).await;
    webhooks(suite).await;
    updates(suite).await;
    readers(suite).await;
}

fn object(kind: &str, spec: &Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "written"}, "spec": spec})
}

fn rules() -> Value {
    json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]})
}

/// Sends a policy that is not stored; constraints are added where there are none.
async fn policy(suite: &mut Suite, case: &str, mut spec: Value) {
    if spec["matchConstraints"].is_null() {
        spec["matchConstraints"] = rules();
    }
    let call = Call::new("POST", format!("{ADMISSION}/validatingadmissionpolicies?dryRun=All"))
        .json(&object("ValidatingAdmissionPolicy", &spec));
    suite.compare(&format!("written {case}"), &call).await;
}

/// What expressions may and may not use.
async fn expressions(suite: &mut Suite) {
    for (case, source) in [
        ("request field", "request.user == 'x'"),
        ("request deep field", "request.userInfo.name == 'x'"),
        ("request type", "request.userInfo.groups == 'x'"),
        ("request dry", "request.dryRun"),
        ("request options", "request.options.fieldManager == 'x'"),
        ("request object", "request.object == null"),
        ("request uid", "request.uid == ''"),
        ("namespace field", "namespaceObject.metadata.ownerReferences.size() == 0"),
        ("namespace uid", "namespaceObject.metadata.uid == ''"),
        ("namespace label", "namespaceObject.metadata.labels['a'] == 1"),
        ("namespace time", "namespaceObject.metadata.creationTimestamp > timestamp('2020-01-01T00:00:00Z')"),
        ("namespace condition", "namespaceObject.status.conditions.exists(c, c.type == 'x' && c.odd == 'y')"),
        ("anything", "object.spec.flag"),
        ("anything or not", "object.spec.flag || false"),
        ("anything chosen", "object.spec.flag ? object.spec.one : true"),
        ("number", "object.metadata.name.size()"),
        ("null", "null"),
        ("list", "[object]"),
        ("variables of none", "variables.x == 1"),
        ("authorizer compared", "authorizer == null"),
        ("authorizer field", "authorizer.something == null"),
        ("authorizer path", "authorizer.path('/x').namespace('y').check('get').allowed()"),
        ("authorizer reason", "authorizer.path('/x').check('get').reason()"),
        (
            "authorizer selector",
            "authorizer.group('').resource('a').fieldSelector('x').labelSelector('y').check('get').errored()",
        ),
        ("mutation", "Object{} == null"),
        ("old object", "oldObject.spec == object.spec"),
        ("spaces", "   true   "),
    ] {
        policy(suite, &format!("expression {case}"), json!({"validations": [{"expression": source}]})).await;
    }
    for (case, source) in [
        ("anything", "object.metadata.name"),
        ("text", "string(object.metadata.name)"),
        ("null", "null"),
        ("authorizer", "authorizer.path('/x').check('get').reason()"),
        ("spaces", "  "),
        ("request", "request.name + request.nmae"),
        ("broken", "'a' +"),
    ] {
        let spec = json!({"validations": [{"expression": "true", "messageExpression": source}]});
        policy(suite, &format!("message {case}"), spec).await;
    }
    for (case, annotations) in [
        ("anything", json!([{"key": "k", "valueExpression": "object.metadata.name"}])),
        ("number", json!([{"key": "k", "valueExpression": "1"}])),
        ("null", json!([{"key": "k", "valueExpression": "null"}])),
        ("text or null", json!([{"key": "k", "valueExpression": "request.dryRun ? 'a' : null"}])),
        ("no key", json!([{"valueExpression": "'a'"}])),
        ("bad key", json!([{"key": "a b", "valueExpression": "'a'"}])),
        ("empty", json!([{"key": "k", "valueExpression": " "}])),
        ("twice", json!([{"key": "k", "valueExpression": "'a'"}, {"key": "k", "valueExpression": "'b'"}])),
        ("long", json!([{"key": "k", "valueExpression": format!("'{}'", "x".repeat(5 * 1024))}])),
        ("many", (0..21).map(|n| json!({"key": format!("k{n}"), "valueExpression": "'a'"})).collect()),
    ] {
        let spec = json!({"auditAnnotations": annotations});
        policy(suite, &format!("annotation {case}"), spec).await;
    }
    for (case, variables, source) in [
        ("types", json!([{"name": "n", "expression": "1"}]), "variables.n == 'x'"),
        ("unknown", json!([{"name": "n", "expression": "1"}]), "variables.m == 1"),
        (
            "order",
            json!([{"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "1"}]),
            "variables.a == 1",
        ),
        ("list", json!([{"name": "l", "expression": "['a']"}]), "variables.l.all(x, x > 1)"),
        ("map", json!([{"name": "m", "expression": "{'a': 1}"}]), "variables.m.a == 'b'"),
        ("object", json!([{"name": "o", "expression": "request"}]), "variables.o.anything == 1"),
        ("objects", json!([{"name": "o", "expression": "[request]"}]), "variables.o[0].anything == 1"),
        (
            "twice",
            json!([{"name": "n", "expression": "1"}, {"name": "n", "expression": "'a'"}]),
            "variables.n == 'x'",
        ),
        ("reserved", json!([{"name": "in", "expression": "1"}]), "true"),
        ("no name", json!([{"expression": "1"}]), "true"),
        ("empty", json!([{"name": "n", "expression": ""}]), "true"),
        (
            "broken",
            json!([{"name": "n", "expression": "nobody"}, {"name": "m", "expression": "variables.n + 1"}]),
            "variables.n == 1",
        ),
        ("patch", json!([{"name": "n", "expression": "Object{}"}]), "true"),
    ] {
        let spec = json!({"variables": variables, "validations": [{"expression": source}]});
        policy(suite, &format!("variable {case}"), spec).await;
    }
    for (case, conditions) in [
        ("anything", json!([{"name": "c", "expression": "object.spec.flag"}])),
        ("variables", json!([{"name": "c", "expression": "variables.n == 1"}])),
        ("params", json!([{"name": "c", "expression": "params == null"}])),
        (
            "authorizer",
            json!([{"name": "c", "expression": "authorizer.requestResource.check('get').allowed()"}]),
        ),
        (
            "names",
            json!([{"name": "a b", "expression": "true"}, {"expression": "true"}, {"name": "c", "expression": ""}, {"name": "c", "expression": " true "}]),
        ),
    ] {
        let spec = json!({"variables": [{"name": "n", "expression": "1"}], "matchConditions": conditions, "validations": [{"expression": "true"}]});
        policy(suite, &format!("condition {case}"), spec).await;
    }
    for (case, kind) in [
        ("good", json!({"apiVersion": "v1", "kind": "ConfigMap"})),
        ("nothing", json!({})),
        ("three parts", json!({"apiVersion": "a/b/c", "kind": "ConfigMap"})),
        ("bad group", json!({"apiVersion": "A_B/v1", "kind": "ConfigMap"})),
        ("bad version", json!({"apiVersion": "example.com/V 1", "kind": "ConfigMap"})),
        ("no version", json!({"apiVersion": "example.com/", "kind": "ConfigMap"})),
        ("bad kind", json!({"apiVersion": "v1", "kind": "Config_Map"})),
    ] {
        let spec = json!({"paramKind": kind, "validations": [{"expression": "params == null", "messageExpression": "params.x"}]});
        policy(suite, &format!("params {case}"), spec).await;
    }
}

/// What a policy is about.
async fn constraints(suite: &mut Suite) {
    let with = |rule: Value| json!({"resourceRules": [rule]});
    let base = || json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let changed = |field: &str, value: Value| {
        let mut rule = base();
        rule[field] = value;
        with(rule)
    };
    for (case, constraints) in [
        ("none", json!({})),
        ("no operations", changed("operations", json!([]))),
        ("odd operation", changed("operations", json!(["CREATE", "READ"]))),
        ("star and operation", changed("operations", json!(["*", "CREATE"]))),
        ("no groups", changed("apiGroups", json!([]))),
        ("star and group", changed("apiGroups", json!(["*", "apps"]))),
        ("empty version", changed("apiVersions", json!([""]))),
        ("star and version", changed("apiVersions", json!(["*", "v1"]))),
        ("no resources", changed("resources", json!([]))),
        ("empty resource", changed("resources", json!(["pods", ""]))),
        ("star and resource", changed("resources", json!(["*", "pods"]))),
        ("star and subresource", changed("resources", json!(["*", "pods/status"]))),
        ("stars and resource", changed("resources", json!(["*/*", "pods"]))),
        ("all of one", changed("resources", json!(["pods/*", "pods/status"]))),
        ("one of all", changed("resources", json!(["*/status", "pods/status"]))),
        ("odd scope", changed("scope", json!("Somewhere"))),
        ("names twice", changed("resourceNames", json!(["a", "a"]))),
        ("names bad", changed("resourceNames", json!(["a/b", "..", "ok"]))),
        ("odd policy", json!({"matchPolicy": "Loose", "resourceRules": [base()]})),
        (
            "bad selector",
            json!({"namespaceSelector": {"matchLabels": {"a b": "c"}}, "objectSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}, "resourceRules": [base()]}),
        ),
        (
            "bad exclusion",
            json!({"resourceRules": [base()], "excludeResourceRules": [{"operations": ["DELETE"]}]}),
        ),
    ] {
        let spec = json!({"matchConstraints": constraints, "validations": [{"expression": "true"}]});
        policy(suite, &format!("constraints {case}"), spec).await;
    }
}

async fn bindings(suite: &mut Suite) {
    let by =
        |reference: Value| json!({"policyName": "p", "validationActions": ["Deny"], "paramRef": reference});
    for (case, spec) in [
        ("bad policy", json!({"policyName": "A B", "validationActions": ["Deny"]})),
        ("action twice", json!({"policyName": "p", "validationActions": ["Deny", "Audit", "Deny"]})),
        ("params by both", by(json!({"name": "a", "selector": {}, "parameterNotFoundAction": "Deny"}))),
        ("params without action", by(json!({"name": "a"}))),
        ("params with odd action", by(json!({"name": "a", "parameterNotFoundAction": "Shrug"}))),
        ("params by bad name", by(json!({"name": "a/b", "parameterNotFoundAction": "Deny"}))),
        (
            "params by bad selector",
            by(json!({"selector": {"matchLabels": {"a b": "c"}}, "parameterNotFoundAction": "Allow"})),
        ),
        (
            "params by selector",
            by(json!({"selector": {}, "namespace": "n", "parameterNotFoundAction": "Allow"})),
        ),
        (
            "narrower",
            json!({"policyName": "p", "validationActions": ["Warn"], "matchResources": {"resourceRules": [{"operations": ["CREATE"]}]}}),
        ),
        (
            "narrower by nothing",
            json!({"policyName": "p", "validationActions": ["Warn"], "matchResources": {}}),
        ),
    ] {
        let call = Call::new("POST", format!("{ADMISSION}/validatingadmissionpolicybindings?dryRun=All"))
            .json(&object("ValidatingAdmissionPolicyBinding", &spec));
        suite.compare(&format!("written binding {case}"), &call).await;
    }
    for (case, spec) in [
        ("good", json!({"policyName": "p"})),
        ("nothing", json!({})),
        (
            "deletes",
            json!({"policyName": "p", "matchResources": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}]}}),
        ),
    ] {
        let call = Call::new("POST", format!("{ADMISSION}/mutatingadmissionpolicybindings?dryRun=All"))
            .json(&object("MutatingAdmissionPolicyBinding", &spec));
        suite.compare(&format!("written mutating binding {case}"), &call).await;
    }
}

async fn mutating(suite: &mut Suite) {
    let apply = |source: &str| json!([{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": source}}]);
    let patch = |source: &str| json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": source}}]);
    let deletes = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "DELETE"], "resources": ["pods"]}]});
    for (case, spec) in [
        ("empty", json!({"mutations": apply(" ")})),
        ("empty patch", json!({"mutations": patch("")})),
        ("anything", json!({"mutations": apply("object")})),
        ("anything patched", json!({"mutations": patch("object.spec.patches")})),
        ("wrong object", json!({"mutations": apply("Object.spec{a: 1}")})),
        ("wrong items", json!({"mutations": patch("['a']")})),
        (
            "chosen",
            json!({"mutations": patch("request.dryRun ? [JSONPatch{op: 'add', path: '/a', value: 1}] : []")}),
        ),
        ("spaces", json!({"mutations": apply("  Object{}  ")})),
        ("request field", json!({"mutations": apply("Object{x: request.user}")})),
        (
            "both",
            json!({"mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{}]"}, "applyConfiguration": {"expression": "Object{}"}}]}),
        ),
        ("deletes", json!({"matchConstraints": deletes, "mutations": apply("Object{}")})),
        (
            "variables",
            json!({"variables": [{"name": "n", "expression": "1"}], "mutations": apply("Object{x: variables.m}")}),
        ),
        ("variables of none", json!({"mutations": apply("Object{x: variables.m}")})),
        (
            "condition",
            json!({"matchConditions": [{"name": "c", "expression": "Object{} == null"}], "mutations": apply("Object{}")}),
        ),
    ] {
        let mut spec = spec;
        spec["reinvocationPolicy"] = json!("Never");
        if spec["matchConstraints"].is_null() {
            spec["matchConstraints"] = rules();
        }
        let call = Call::new("POST", format!("{ADMISSION}/mutatingadmissionpolicies?dryRun=All"))
            .json(&object("MutatingAdmissionPolicy", &spec));
        suite.compare(&format!("written mutating {case}"), &call).await;
    }
}

async fn webhooks(suite: &mut Suite) {
    let hook = |changes: Value| {
        let mut hook = json!({"name": "a.example.com", "clientConfig": {"url": "https://127.0.0.1/"}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
        for (field, value) in changes.as_object().expect("changes are fields") {
            hook[field] = value.clone();
        }
        hook
    };
    let condition = |source: &str| hook(json!({"matchConditions": [{"name": "c", "expression": source}]}));
    for (case, hook) in [
        ("condition", condition("request.userInfo.username != 'x' && namespaceObject == null")),
        ("condition request", condition("request.user == 'x'")),
        ("condition anything", condition("object.spec.flag")),
        ("condition variables", condition("variables.x")),
        ("condition params", condition("params.x == 1")),
        ("condition rights", condition("authorizer.requestResource.check('x').allowed()")),
        ("versions twice", hook(json!({"admissionReviewVersions": ["v1", "v1"]}))),
        ("versions bad", hook(json!({"admissionReviewVersions": ["v1", "V 1"]}))),
        ("versions odd", hook(json!({"admissionReviewVersions": ["v9"]}))),
        (
            "resources",
            hook(
                json!({"rules": [{"operations": ["*", "CREATE"], "apiGroups": ["*", "a"], "apiVersions": ["*", "b"], "resources": ["*/*", "pods"]}]}),
            ),
        ),
        (
            "resources of one",
            hook(
                json!({"rules": [{"operations": ["READ"], "apiGroups": ["a"], "apiVersions": ["b"], "resources": ["pods/*", "pods/status", "*", "x"]}]}),
            ),
        ),
        ("side effects", hook(json!({"sideEffects": "Some"}))),
        ("timeout", hook(json!({"timeoutSeconds": 31}))),
    ] {
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "written"}, "webhooks": [hook]});
        let call = Call::new("POST", format!("{ADMISSION}/validatingwebhookconfigurations?dryRun=All"))
            .json(&configuration);
        suite.compare(&format!("written webhook {case}"), &call).await;
    }
}

/// What stood there before is judged again, but for conditions.
async fn updates(suite: &mut Suite) {
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "matchConstraints": rules(),
        "matchConditions": [{"name": "c", "expression": "params != null"}], "validations": [{"expression": "params.data.a == 'x'"}]});
    let path = format!("{ADMISSION}/validatingadmissionpolicies");
    suite.both(&Call::new("POST", &path).json(&object("ValidatingAdmissionPolicy", &spec))).await;
    for (case, patch) in [
        ("params go", json!({"spec": {"paramKind": null}})),
        (
            "variables come",
            json!({"spec": {"variables": [{"name": "n", "expression": "1"}], "validations": [{"expression": "variables.n == 1"}]}}),
        ),
        ("condition stays", json!({"spec": {"failurePolicy": "Ignore"}})),
        (
            "condition changes",
            json!({"spec": {"matchConditions": [{"name": "c", "expression": "variables.n == 1"}]}}),
        ),
        ("generation", json!({"spec": {"validations": [{"expression": "true"}]}})),
    ] {
        let call = Call::new("PATCH", format!("{path}/written?dryRun=All")).json(&patch).content_type(MERGE);
        suite.compare(&format!("written update {case}"), &call).await;
    }
    suite.both(&Call::new("DELETE", format!("{path}/written"))).await;
    let suffixed = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "a.static.k8s.io"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    let call = Call::new("POST", format!("{ADMISSION}/validatingadmissionpolicybindings?dryRun=All"))
        .json(&suffixed);
    suite.compare("written reserved name", &call).await;
}

/// The writer of a policy has to be allowed to read the parameters it names.
async fn readers(suite: &mut Suite) {
    let rbac = "apis/rbac.authorization.k8s.io/v1";
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "author"}});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "author"}, "rules": [
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]});
    let grant = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "author"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "author"},
        "subjects": [{"kind": "ServiceAccount", "name": "author", "namespace": "default"}]});
    suite.both(&Call::new("POST", "api/v1/namespaces/default/serviceaccounts").json(&account)).await;
    suite.both(&Call::new("POST", format!("{rbac}/clusterroles")).json(&role)).await;
    suite.both(&Call::new("POST", format!("{rbac}/clusterrolebindings")).json(&grant)).await;
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let call = Call::new("POST", "api/v1/namespaces/default/serviceaccounts/author/token").json(&request);
    let keep = [("author".to_owned(), "/status/token".to_owned())].into();
    suite.compare_and_keep("written token", &call, &keep).await;
    let by_author = |mut call: Call| {
        call.bearer = Some("${author}".to_owned());
        call
    };
    let plain = json!({"matchConstraints": rules(), "validations": [{"expression": "true"}]});
    let first = by_author(
        Call::new("POST", format!("{ADMISSION}/validatingadmissionpolicies?dryRun=All"))
            .json(&object("ValidatingAdmissionPolicy", &plain)),
    );
    // Both know the author's rights when both take what needs no more of them.
    suite.until(&first, |answer| answer.code == 201).await;
    for (case, kind) in [
        ("readable", json!({"apiVersion": "v1", "kind": "Secret"})),
        ("unreadable", json!({"apiVersion": "v1", "kind": "ConfigMap"})),
        ("unknown", json!({"apiVersion": "nowhere.example.com/v1", "kind": "Nobody"})),
    ] {
        let mut spec = plain.clone();
        spec["paramKind"] = kind;
        let policy = object("ValidatingAdmissionPolicy", &spec);
        let path = format!("{ADMISSION}/validatingadmissionpolicies");
        let tried = by_author(Call::new("POST", format!("{path}?dryRun=All")).json(&policy));
        suite.compare(&format!("written by author {case}"), &tried).await;
        suite.both(&Call::new("POST", &path).json(&policy)).await;
        for (way, reference) in [
            ("name", json!({"name": "a", "namespace": "default", "parameterNotFoundAction": "Allow"})),
            ("selector", json!({"selector": {}, "parameterNotFoundAction": "Allow"})),
        ] {
            let spec = json!({"policyName": "written", "validationActions": ["Deny"], "paramRef": reference});
            let tried = by_author(
                Call::new("POST", format!("{ADMISSION}/validatingadmissionpolicybindings?dryRun=All"))
                    .json(&object("ValidatingAdmissionPolicyBinding", &spec)),
            );
            suite.compare(&format!("written binding by author {case} by {way}"), &tried).await;
        }
        suite.both(&Call::new("DELETE", format!("{path}/written"))).await;
    }
    for name in ["validating", "mutating"] {
        let kind = format!("{}{}AdmissionPolicyBinding", name[..1].to_uppercase(), &name[1..]);
        let mut spec =
            json!({"policyName": "nobody", "paramRef": {"name": "a", "parameterNotFoundAction": "Allow"}});
        if name == "validating" {
            spec["validationActions"] = json!(["Deny"]);
        }
        let tried = by_author(
            Call::new("POST", format!("{ADMISSION}/{name}admissionpolicybindings?dryRun=All"))
                .json(&object(&kind, &spec)),
        );
        suite.compare(&format!("written {name} binding by author of nobody"), &tried).await;
    }
    suite.both(&Call::new("DELETE", format!("{rbac}/clusterrolebindings/author"))).await;
    suite.both(&Call::new("DELETE", format!("{rbac}/clusterroles/author"))).await;
    suite.both(&Call::new("DELETE", "api/v1/namespaces/default/serviceaccounts/author")).await;
}
