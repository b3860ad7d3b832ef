//! ValidatingAdmissionPolicies at work: what they see, whom they concern, what their bindings do with objections.

use serde_json::{Value, json};

use crate::batch::{Case, MERGE, Sort, Stage, labelled, rule};
use crate::suite::Suite;
use crate::support::Call;

const SCENE: &str = "policies";
const MAPS: &str = "api/v1/namespaces/policies/configmaps";

pub(crate) async fn run(suite: &mut Suite) {
    if !suite.wants(SCENE) {
        return;
    }
    prepare(suite).await;
    let mut stage = Stage { suite, scene: SCENE, sort: Sort::Validating };
    let mut cases = told();
    cases.extend(rights());
    cases.extend(failures());
    cases.extend(words());
    stage.play(cases).await;
    let mut cases = concerned();
    cases.extend(params());
    cases.extend(operations());
    stage.play(cases).await;
}

/// The namespace, objects that exist, parameters, somebody with few rights.
async fn prepare(suite: &Suite) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": SCENE, "labels": {"team": "a"}, "annotations": {"note": "n"}}});
    let map = |name: &str, labels: Value, data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": data});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"case": "scale"}},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let rbac = "apis/rbac.authorization.k8s.io/v1/namespaces/policies";
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]});
    let grant = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": SCENE}]});
    for (path, object) in [
        ("api/v1/namespaces", namespace),
        (MAPS, map("stored", json!({"case": "stored"}), json!({"a": "1"}))),
        (MAPS, map("going", json!({"case": "going"}), json!({}))),
        (MAPS, map("gone", json!({"case": "going", "all": "going"}), json!({}))),
        (MAPS, map("one", json!({"params": "some"}), json!({"limit": "1", "name": "one"}))),
        (MAPS, map("two", json!({"params": "some"}), json!({"limit": "2", "name": "two"}))),
        ("apis/apps/v1/namespaces/policies/deployments", deployment),
        (&format!("{rbac}/roles"), role),
        (&format!("{rbac}/rolebindings"), grant),
    ] {
        suite.both(&Call::new("POST", path).json(&object)).await;
    }
}

fn deny() -> Value {
    json!({"validationActions": ["Deny"]})
}

fn warn() -> Value {
    json!({"validationActions": ["Warn"]})
}

/// Validations that tell what expressions come to, each in a warning.
fn telling(expressions: &[&str]) -> Value {
    let told = expressions.iter().map(|source| json!({"expression": "false", "messageExpression": source}));
    json!({"validations": told.collect::<Vec<_>>()})
}

/// Validations that warn, each with its own text, where they do not hold.
fn holding(expressions: &[&str]) -> Value {
    let listed = expressions.iter().map(|source| json!({"expression": source}));
    json!({"validations": listed.collect::<Vec<_>>()})
}

fn patch(path: &str, body: &Value) -> Call {
    Call::new("PATCH", path).json(body).content_type(MERGE)
}

/// What expressions are told of a write.
fn told() -> Vec<Case> {
    let request = telling(&[
        "'operation ' + request.operation",
        "'kind ' + request.kind.group + '/' + request.kind.version + '/' + request.kind.kind",
        "'resource ' + request.resource.group + '/' + request.resource.version + '/' + request.resource.resource",
        "'asked ' + request.requestKind.kind + ' ' + request.requestResource.resource",
        "'sub ' + string(has(request.subResource)) + string(has(request.requestSubResource))",
        "'name ' + (has(request.name) ? request.name : 'none')",
        "'namespace ' + request.namespace",
        "'dry ' + string(request.dryRun)",
        "'options ' + request.options.kind + ' ' + request.options.apiVersion + string(has(request.options.fieldManager))",
        "'groups ' + string(request.userInfo.groups.exists(g, g == 'system:masters'))",
        "'extra ' + string(has(request.userInfo.extra))",
        "'old ' + string(oldObject == null)",
        "'object ' + object.apiVersion + ' ' + object.kind",
    ]);
    let namespace = telling(&[
        "'name ' + namespaceObject.metadata.name",
        "'team ' + namespaceObject.metadata.labels.team",
        "'note ' + namespaceObject.metadata.annotations.note",
        "'phase ' + namespaceObject.status.phase",
        "'finalizer ' + namespaceObject.spec.finalizers[0]",
        "'generated ' + string(has(namespaceObject.metadata.generateName))",
        "'conditions ' + string(has(namespaceObject.status.conditions))",
        "'going ' + string(has(namespaceObject.metadata.deletionTimestamp))",
        "'generation ' + string(namespaceObject.metadata.generation)",
        "'uid ' + namespaceObject.metadata.UID",
    ]);
    let generated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "gen-", "labels": {"case": "generated"}}});
    vec![
        Case::new("request", request, warn())
            .send("create", labelled("request", MAPS))
            .send(
                "with options",
                Call::new("POST", format!("{MAPS}?dryRun=All&fieldManager=m&fieldValidation=Strict"))
                    .json(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p", "labels": {"case": "request"}}})),
            ),
        Case::new("namespace", namespace, warn()),
        Case::new(
            "conditions see no namespace",
            json!({"matchConditions": [{"name": "none", "expression": "namespaceObject == null"}], "validations": [{"expression": "false", "message": "seen"}]}),
            deny(),
        ),
        Case::new(
            "generated",
            telling(&["'name ' + string(has(request.name))", "'object ' + string(has(object.metadata.name))"]),
            warn(),
        )
        .send("create", Call::new("POST", format!("{MAPS}?dryRun=All")).json(&generated)),
        Case::new(
            "variables",
            json!({"variables": [
                {"name": "n", "expression": "int(object.data.n)"},
                {"name": "twice", "expression": "variables.n * 2"},
                {"name": "many", "expression": "[1, 2, 3].map(i, i * variables.n)"},
                {"name": "whole", "expression": "object"},
                {"name": "broken", "expression": "object.data.missing"},
                {"name": "right", "expression": "authorizer.group('').resource('pods').check('get').allowed()"}],
                "validations": [
                    {"expression": "variables.twice == 24 && variables.many.sum() == 72"},
                    {"expression": "variables.whole.data.a == '2'", "messageExpression": "'n is ' + string(variables.n)"},
                    {"expression": "has(variables.n) && variables.right"},
                    {"expression": "false", "messageExpression": "'right ' + string(variables.right)"},
                    {"expression": "false", "messageExpression": "'many ' + string(variables.many[2])"},
                    {"expression": "variables.broken == ''"}]}),
            warn(),
        ),
    ]
}

/// Questions about rights.
fn rights() -> Vec<Case> {
    let robot = "authorizer.serviceAccount('policies', 'robot')";
    let reads = format!("{robot}.group('').resource('configmaps').namespace('policies').check('get')");
    let listed: Vec<String> = vec![
        "authorizer.group('').resource('pods').namespace('x').check('get').allowed()".to_owned(),
        "authorizer.requestResource.check('create').allowed()".to_owned(),
        "authorizer.requestResource.name('x').subresource('y').namespace('z').check('get').reason() == ''"
            .to_owned(),
        "authorizer.path('/healthz').check('get').allowed()".to_owned(),
        format!("{robot}.path('/healthz').check('get').allowed()"),
        format!("{robot}.path('/secret').check('get').allowed()"),
        format!("{reads}.allowed()"),
        format!("{reads}.reason() == ''"),
        format!(
            "{reads}.reason() == 'RBAC: allowed by RoleBinding \"reader/policies\" of Role \"reader\" to ServiceAccount \"robot/policies\"'"
        ),
        format!("{reads}.errored()"),
        format!("{reads}.error() == ''"),
        format!("{robot}.group('').resource('configmaps').namespace('policies').check('update').allowed()"),
        format!(
            "{robot}.group('').resource('configmaps').namespace('policies').check('update').reason() == ''"
        ),
        format!("{robot}.group('').resource('configmaps').namespace('other').check('get').allowed()"),
        format!(
            "{robot}.group('').resource('configmaps').subresource('x').namespace('policies').check('get').allowed()"
        ),
        format!("{robot}.group('apps').resource('configmaps').namespace('policies').check('get').allowed()"),
        format!(
            "{robot}.group('').resource('configmaps').namespace('policies').name('n').fieldSelector('a=b').labelSelector('c in (d)').check('get').allowed()"
        ),
        format!(
            "{robot}.group('').resource('configmaps').namespace('policies').labelSelector('??').check('get').errored()"
        ),
        "authorizer.path(' ').check('get').allowed()".to_owned(),
        "authorizer.group('').resource('').check('get').allowed()".to_owned(),
        "authorizer.serviceAccount('policies', 'A B').path('/x').check('get').allowed()".to_owned(),
        "authorizer.serviceAccount('A B', 'robot').path('/x').check('get').allowed()".to_owned(),
    ];
    let listed: Vec<&str> = listed.iter().map(String::as_str).collect();
    let one = |source: &str| json!({"validations": [{"expression": source}]});
    vec![
        Case::new("rights", holding(&listed), warn()),
        Case::new("rights without group", one("authorizer.resource('pods').check('get').allowed()"), deny()),
        Case::new("rights without check", one("authorizer.group('').resource('pods').allowed()"), deny()),
        Case::new("rights of a group", one("authorizer.group('').check('get').allowed()"), deny()),
        Case::new(
            "rights with a number",
            one("authorizer.group(1).resource('pods').check('get').allowed()"),
            deny(),
        ),
        Case::new("rights unasked", one("authorizer.requestResource.check('get')"), deny()),
        Case::new(
            "rights in annotation",
            json!({"validations": [{"expression": "true"}],
                "auditAnnotations": [{"key": "k", "valueExpression": "authorizer.requestResource.check('get').reason()"}]}),
            warn(),
        ),
    ]
}

/// What cannot be evaluated.
fn failures() -> Vec<Case> {
    let missing = "object.data.missing == 'x'";
    let with = |policy: &str| json!({"failurePolicy": policy, "validations": [{"expression": missing}, {"expression": "false", "message": "second"}]});
    let conditions = |policy: &str, list: Value| json!({"failurePolicy": policy, "matchConditions": list, "validations": [{"expression": "false", "message": "no"}]});
    let broken = json!({"name": "broken", "expression": missing});
    let untrue = json!({"name": "untrue", "expression": "false"});
    let other = json!({"name": "other", "expression": "object.data.none == ''"});
    let annotated = |policy: &str, source: &str| {
        json!({"failurePolicy": policy, "validations": [{"expression": "true"}],
            "auditAnnotations": [{"key": "k", "valueExpression": source}]})
    };
    vec![
        Case::new("fails", with("Fail"), deny()),
        Case::new("fails open", with("Ignore"), deny()),
        Case::new("fails and warns", with("Fail"), warn()),
        Case::new("fails and audits", with("Fail"), json!({"validationActions": ["Audit"]})),
        Case::new("condition fails", conditions("Fail", json!([broken])), deny()),
        Case::new("condition fails and warns", conditions("Fail", json!([broken])), warn()),
        Case::new("condition fails open", conditions("Ignore", json!([broken])), deny()),
        Case::new("conditions fail", conditions("Fail", json!([broken, other])), deny()),
        Case::new("condition untrue", conditions("Fail", json!([broken, untrue])), deny()),
        Case::new("annotation fails", annotated("Fail", "string(object.data.missing)"), warn()),
        Case::new("annotation fails open", annotated("Ignore", "string(object.data.missing)"), warn()),
        Case::new("annotation", annotated("Fail", "'x' + object.data.a"), deny()),
        Case::new("annotation null", annotated("Fail", "null"), deny()),
        Case::new(
            "annotation of a condition",
            annotated("Fail", "object.data.a == '1' ? 'yes' : 'no'"),
            deny(),
        ),
        Case::new(
            "dear",
            json!({"variables": [{"name": "list", "expression": "[0,1,2,3,4,5,6,7,8,9]"}], "validations": [{"expression":
                "variables.list.all(a, variables.list.all(b, variables.list.all(c, variables.list.all(d, variables.list.all(e, variables.list.all(f, a+b+c+d+e+f >= 0))))))"}]}),
            deny(),
        ),
    ]
}

/// What is said about an objection.
fn words() -> Vec<Case> {
    let one = |validation: Value| json!({"validations": [validation]});
    let long = format!("'{}'", "x".repeat(5121));
    let just = format!("'{}'", "x".repeat(5120));
    vec![
        Case::new("message trimmed", one(json!({"expression": "  false ", "message": "  spaced  "})), deny()),
        Case::new("expression trimmed", one(json!({"expression": "  false "})), deny()),
        Case::new(
            "message made of two lines",
            one(json!({"expression": "false", "message": "plain", "messageExpression": "'a\\nb'"})),
            deny(),
        ),
        Case::new(
            "message made of spaces",
            one(json!({"expression": "false", "message": "plain", "messageExpression": "'  '"})),
            deny(),
        ),
        Case::new(
            "message made too long",
            one(json!({"expression": "false", "messageExpression": long})),
            deny(),
        ),
        Case::new(
            "message made long",
            one(json!({"expression": "false", "messageExpression": just})),
            deny(),
        ),
        Case::new(
            "message fails",
            one(
                json!({"expression": "false", "message": "plain", "messageExpression": "string(object.data.missing)"}),
            ),
            deny(),
        ),
        Case::new(
            "message of anything",
            one(json!({"expression": "false", "messageExpression": "object.data.a"})),
            deny(),
        ),
        Case::new(
            "message asks",
            one(
                json!({"expression": "false", "messageExpression": "authorizer.path('/x').check('get').reason()"}),
            ),
            deny(),
        ),
        Case::new("reason invalid", one(json!({"expression": "false", "reason": "Invalid"})), deny()),
        Case::new(
            "reason large",
            one(json!({"expression": "false", "reason": "RequestEntityTooLarge"})),
            deny(),
        ),
        Case::new(
            "reason unauthorized",
            one(json!({"expression": "false", "reason": "Unauthorized"})),
            deny(),
        ),
        Case::new(
            "several",
            json!({"validations": [{"expression": "true"}, {"expression": "false", "message": "first"}, {"expression": "false", "message": "second", "reason": "Forbidden"}]}),
            deny(),
        ),
        Case::new(
            "several warn",
            json!({"validations": [{"expression": "false", "message": "first"}, {"expression": "false", "message": "second"}, {"expression": "false", "message": "first"}]}),
            warn(),
        ),
        Case::new(
            "warns and audits",
            one(json!({"expression": "false", "message": "both"})),
            json!({"validationActions": ["Warn", "Audit"]}),
        ),
        Case::new(
            "audits",
            one(json!({"expression": "false", "message": "quiet"})),
            json!({"validationActions": ["Audit"]}),
        ),
    ]
}

/// Whom a policy concerns.
fn concerned() -> Vec<Case> {
    let seen = |constraints: Value| json!({"matchConstraints": constraints, "validations": [{"expression": "false", "message": "seen"}]});
    let maps = || rule("", "v1", "configmaps");
    let named = |name: &str, labels: Value| {
        Call::new("POST", format!("{MAPS}?dryRun=All")).json(
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}),
        )
    };
    let mut only = maps();
    only["resourceNames"] = json!(["just", "that"]);
    let mut cluster = maps();
    cluster["scope"] = json!("Cluster");
    let excluding = |excluded: Value| json!({"resourceRules": [maps()], "excludeResourceRules": [excluded]});
    let narrowed = |resources: Value| json!({"validationActions": ["Deny"], "matchResources": resources});
    let plain = || seen(json!({"resourceRules": [maps()]}));
    vec![
        Case::new(
            "namespace selected",
            seen(json!({"resourceRules": [maps()], "namespaceSelector": {"matchLabels": {"team": "a"}}})),
            deny(),
        ),
        Case::new(
            "namespace not selected",
            seen(
                json!({"resourceRules": [maps()], "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}}),
            ),
            deny(),
        ),
        Case::new("names", seen(json!({"resourceRules": [only]})), deny())
            .send("listed", named("that", json!({"case": "names"})))
            .send("not listed", named("other", json!({"case": "names"}))),
        Case::new("scope", seen(json!({"resourceRules": [cluster]})), deny()),
        Case::new("excluded", seen(excluding(maps())), deny()),
        Case::new("excluded otherwise", seen(excluding(rule("", "v1", "secrets"))), deny()),
        Case::new("exact", seen(json!({"resourceRules": [maps()], "matchPolicy": "Exact"})), deny()),
        Case::new(
            "binding narrower",
            plain(),
            narrowed(json!({"namespaceSelector": {"matchLabels": {"team": "b"}}})),
        ),
        Case::new(
            "binding as wide",
            plain(),
            narrowed(json!({"namespaceSelector": {"matchLabels": {"team": "a"}}})),
        ),
        Case::new(
            "binding for others",
            plain(),
            narrowed(json!({"resourceRules": [rule("", "v1", "secrets")]})),
        ),
        Case::new("binding excludes", plain(), narrowed(json!({"excludeResourceRules": [maps()]}))),
        Case::new(
            "binding by label",
            plain(),
            narrowed(json!({"objectSelector": {"matchLabels": {"more": "yes"}}})),
        )
        .send("with", named("x", json!({"case": "binding-by-label", "more": "yes"})))
        .send("without", named("x", json!({"case": "binding-by-label"}))),
        Case::new("other policy", plain(), json!({"policyName": "nobody", "validationActions": ["Deny"]})),
        Case::new("stored", plain(), deny())
            .send(
                "label goes",
                patch(&format!("{MAPS}/stored?dryRun=All"), &json!({"metadata": {"labels": {"case": null}}})),
            )
            .send("untouched", patch(&format!("{MAPS}/stored?dryRun=All"), &json!({}))),
    ]
}

/// Which parameters a policy gets.
fn params() -> Vec<Case> {
    let kind = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind});
    let maps = || kind("v1", "ConfigMap");
    let spec = |kind: Value| {
        json!({"paramKind": kind, "validations": [{"expression": "params == null", "messageExpression":
            "params.kind + ' ' + params.apiVersion + ' ' + params.metadata.name + ' ' + (has(params.data) ? params.data.limit : '')"}]})
    };
    let by = |reference: Value| json!({"validationActions": ["Warn"], "paramRef": reference});
    let named = |name: &str, action: &str| json!({"name": name, "parameterNotFoundAction": action});
    let chosen = |labels: Value, action: &str| json!({"selector": {"matchLabels": labels}, "parameterNotFoundAction": action});
    let mut elsewhere = named("one", "Deny");
    elsewhere["namespace"] = json!("default");
    let mut here = named("one", "Deny");
    here["namespace"] = json!(SCENE);
    let mut placed = named("policies", "Deny");
    placed["namespace"] = json!(SCENE);
    let conditions = json!({"paramKind": maps(), "matchConditions": [{"name": "limited", "expression": "params.data.limit == '1'"}],
        "validations": [{"expression": "false", "messageExpression": "'limited by ' + params.metadata.name"}]});
    vec![
        Case::new("params", spec(maps()), by(named("one", "Deny"))),
        Case::new("params here", spec(maps()), by(here)),
        Case::new("params elsewhere", spec(maps()), by(elsewhere)),
        Case::new("params missing", spec(maps()), by(named("nobody", "Deny"))),
        Case::new("params missing and allowed", spec(maps()), by(named("nobody", "Allow"))),
        Case::new("params selected", spec(maps()), by(chosen(json!({"params": "some"}), "Deny"))),
        Case::new("params selected none", spec(maps()), by(chosen(json!({"params": "none"}), "Deny"))),
        Case::new(
            "params selected none and allowed",
            spec(maps()),
            by(chosen(json!({"params": "none"}), "Allow")),
        ),
        Case::new("params not given", spec(maps()), warn()),
        Case::new(
            "params not wanted",
            json!({"validations": [{"expression": "false", "message": "no params"}]}),
            by(named("nobody", "Deny")),
        ),
        Case::new("params of the cluster", spec(kind("v1", "Namespace")), by(named("policies", "Deny"))),
        Case::new("params of the cluster with namespace", spec(kind("v1", "Namespace")), by(placed)),
        Case::new("params of no kind", spec(kind("v1", "Nonsense")), by(named("one", "Deny"))),
        Case::new(
            "params of no group",
            spec(kind("nowhere.example.com/v1", "Nonsense")),
            by(named("one", "Allow")),
        ),
        Case::new("params in conditions", conditions, by(chosen(json!({"params": "some"}), "Deny"))),
    ]
}

/// Updates, deletions, subresources, what has no namespace.
fn operations() -> Vec<Case> {
    let all = |group: &str, version: &str, resources: Value| json!({"apiGroups": [group], "apiVersions": [version], "operations": ["*"], "resources": resources});
    let told = |constraints: Value| {
        let mut spec = telling(&[
            "request.operation + ' ' + request.kind.kind + ' ' + (has(request.subResource) ? request.subResource : '-')",
            "'object ' + string(object == null) + ' old ' + string(oldObject == null)",
            "'name ' + (has(request.name) ? request.name : 'none') + ' namespace ' + (has(request.namespace) ? request.namespace : 'none')",
            "'namespace seen ' + string(namespaceObject == null)",
            "'options ' + request.options.kind",
        ]);
        spec["matchConstraints"] = constraints;
        spec
    };
    let deployment = "apis/apps/v1/namespaces/policies/deployments/d";
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r", "labels": {"case": "cluster"}}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    let namespaces = json!({"resourceRules": [all("", "v1", json!(["namespaces"]))], "objectSelector": {"matchLabels": {"team": "a"}}});
    let needy = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": [{"expression": "false"}],
        "matchConstraints": {"resourceRules": [all("rbac.authorization.k8s.io", "v1", json!(["clusterroles"]))]}});
    let mut other = role.clone();
    other["metadata"]["labels"]["case"] = json!("cluster-params");
    let roles = "apis/rbac.authorization.k8s.io/v1/clusterroles?dryRun=All";
    vec![
        Case::new("going", told(json!({"resourceRules": [all("", "v1", json!(["configmaps"]))]})), warn())
            .send("patch", patch(&format!("{MAPS}/going?dryRun=All"), &json!({"data": {"x": "y"}})))
            .send("delete", Call::new("DELETE", format!("{MAPS}/going?dryRun=All")))
            .send("delete with options", Call::new("DELETE", format!("{MAPS}/going?dryRun=All")).json(&json!({"propagationPolicy": "Background"})))
            .send("delete all", Call::new("DELETE", format!("{MAPS}?labelSelector=all%3Dgoing"))),
        Case::new("scale", told(json!({"objectSelector": {}, "resourceRules": [all("apps", "v1", json!(["deployments/scale", "deployments/status"]))]})), warn())
            .send("scale", patch(&format!("{deployment}/scale?dryRun=All"), &json!({"spec": {"replicas": 2}})))
            .send("status", patch(&format!("{deployment}/status?dryRun=All"), &json!({"status": {"replicas": 1}})))
            .send("neither", patch(&format!("{deployment}?dryRun=All"), &json!({"spec": {"replicas": 2}}))),
        Case::new("cluster", told(json!({"resourceRules": [all("rbac.authorization.k8s.io", "v1", json!(["clusterroles"]))]})), warn())
            .send("create", Call::new("POST", roles).json(&role)),
        Case::new("cluster params", needy, json!({"validationActions": ["Warn"], "paramRef": {"name": "one", "parameterNotFoundAction": "Allow"}}))
            .send("create", Call::new("POST", roles).json(&other)),
        Case::new("of namespaces", told(namespaces), warn())
            .send("patch", patch("api/v1/namespaces/policies?dryRun=All", &json!({"metadata": {"annotations": {"x": "y"}}})))
            .send(
                "create",
                Call::new("POST", "api/v1/namespaces?dryRun=All")
                    .json(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fresh", "labels": {"team": "a"}}})),
            ),
    ]
}
