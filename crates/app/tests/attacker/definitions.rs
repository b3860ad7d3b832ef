//! Somebody who may define kinds and policies: schemas, patterns, expressions and defaults that cost more than they look.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::stage::{Stage, Verdict};
use crate::wire::{Answer, patience};

const DEFINITIONS: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The name that the last of the costly policies refuses.
const CANARY: &str = "canary";
const POLICIES: &str = "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

pub(crate) fn definition(plural: &str, spec: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.attack.example.com")},
        "spec": {"group": "attack.example.com", "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}],
            "names": {"plural": plural, "singular": plural, "kind": plural, "listKind": format!("{plural}list")}}})
}

async fn define(stage: &Stage, plural: &str, spec: Value) -> Answer {
    stage.plane.door.post_patiently("definer", DEFINITIONS, &definition(plural, spec)).await
}

fn objects(plural: &str) -> String {
    format!("apis/attack.example.com/v1/namespaces/tenant/{plural}")
}

/// Defines a kind, if it may be, and posts an object of it; any answer but a failure will do.
async fn use_it(stage: &Stage, plural: &str, schema: Value, spec: Value) -> Verdict {
    let made = define(stage, plural, schema).await;
    if made.code != 201 {
        return made.refused();
    }
    stage.plane.calm.until("root", &objects(plural), |answer| answer.code == 200).await;
    let object = json!({"apiVersion": "attack.example.com/v1", "kind": plural, "metadata": {"name": "x"}, "spec": spec});
    let answer = stage.plane.door.post_costly("definer", &objects(plural), &object).await;
    remove(stage, plural).await;
    if answer.code == 0 || answer.code >= 500 {
        Err(format!("answered {}", answer.brief()))
    } else {
        Ok(answer.brief())
    }
}

pub(crate) async fn wide_schema(stage: &Stage) -> Verdict {
    let properties: serde_json::Map<String, Value> =
        (0..20_000).map(|n| (format!("f{n}"), json!({"type": "string"}))).collect();
    use_it(stage, "wides", json!({"type": "object", "properties": properties}), json!({"f1": "x"})).await
}

pub(crate) async fn deep_schema(stage: &Stage) -> Verdict {
    let depth = 20_000;
    let nested = format!(
        "{}{{\"type\":\"string\"}}{}",
        "{\"type\":\"object\",\"properties\":{\"a\":".repeat(depth),
        "}}".repeat(depth)
    );
    let text = definition("deeps", json!("HERE")).to_string().replace("\"HERE\"", &nested);
    stage.plane.door.send("definer", "POST", DEFINITIONS, text).await.refused()?;
    // As deep as is accepted, with an object to match.
    let mut schema = json!({"type": "integer"});
    let mut spec = json!(1);
    for _ in 0..100 {
        schema = json!({"type": "object", "properties": {"a": schema}});
        spec = json!({"a": spec});
    }
    use_it(stage, "deeps", schema, spec).await
}

pub(crate) async fn patterns(stage: &Stage) -> Verdict {
    let text = "a".repeat(20_000) + "!";
    for (number, pattern) in [
        "(a+)+$",
        "^(a|a)*$",
        "(a|aa)+$",
        "((a*)*)*$",
        "a{1000}{1000}{1000}",
        "(?:a?){5000}a{5000}",
        "[\\p{L}]{900}{900}",
        "((((((a{9}){9}){9}){9}){9}){9}){9}",
    ]
    .into_iter()
    .enumerate()
    {
        let plural = format!("patterns{number}");
        let schema = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}});
        use_it(stage, &plural, schema, json!({"a": text}))
            .await
            .map_err(|seen| format!("{pattern}: {seen}"))?;
    }
    Ok("answered each".to_owned())
}

/// A small definition whose defaults make large objects.
pub(crate) async fn defaults(stage: &Stage) -> Verdict {
    let big = "x".repeat(100_000);
    let schema = json!({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "object",
        "properties": {"a": {"type": "string", "default": big}}}}}});
    let items = vec![json!({}); 20_000];
    use_it(stage, "defaulting", schema, json!({"list": items})).await
}

/// Sends writes of an object of a kind of ours at once; what is too large to be stored may be told so.
async fn written_at_once(stage: &Stage, method: &str, path: &str, object: &Value) -> Verdict {
    let send = || stage.plane.door.send("definer", method, path, object);
    let answers = futures::future::join_all((0..4).map(|_| send())).await;
    let odd = answers
        .iter()
        .find(|answer| answer.code == 0 || answer.code >= 500 && !answer.text().contains("too large"));
    match odd {
        Some(odd) => Err(format!("answered {}", odd.brief())),
        None => Ok(answers.first().map(Answer::brief).unwrap_or_default()),
    }
}

/// A path repeats all keys above: one for each field would take hundreds of gigabytes.
pub(crate) async fn long_key(stage: &Stage) -> Verdict {
    let numbers = json!({"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}});
    let schema = json!({"type": "object", "additionalProperties": numbers});
    let made = define(stage, "longkeys", schema).await;
    if made.code != 201 {
        return made.refused();
    }
    stage.plane.calm.until("root", &objects("longkeys"), |answer| answer.code == 200).await;
    let mut seen = Ok(String::new());
    for number in [1, -1] {
        let fields: serde_json::Map<String, Value> =
            (0..100_000).map(|field| (format!("f{field}"), json!(number))).collect();
        let object = json!({"apiVersion": "attack.example.com/v1", "kind": "longkeys", "metadata": {"name": "x"},
            "spec": {"k".repeat(1_200_000): fields}});
        let path = format!("{}?dryRun=All", objects("longkeys"));
        seen = written_at_once(stage, "POST", &path, &object).await;
        if seen.is_err() {
            break;
        }
    }
    remove(stage, "longkeys").await;
    seen
}

/// As for the fields of an object, with the properties of a schema, good ones and bad ones.
pub(crate) async fn long_property(stage: &Stage) -> Verdict {
    let mut seen = Ok(String::new());
    for kind in ["integer", "odd"] {
        let fields: serde_json::Map<String, Value> =
            (0..20_000).map(|field| (format!("f{field}"), json!({"type": kind}))).collect();
        let inside = json!({"type": "object", "properties": fields});
        let schema = json!({"type": "object", "properties": {"k".repeat(400_000): inside}});
        let path = format!("{DEFINITIONS}?dryRun=All");
        seen = written_at_once(stage, "POST", &path, &definition("longproperties", schema)).await;
        if seen.is_err() {
            break;
        }
    }
    seen
}

/// Items of a map list that are looked for in the stored list.
pub(crate) async fn long_list(stage: &Stage) -> Verdict {
    let item = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"},
        "v": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= 0"}]}}});
    let schema = json!({"type": "array", "maxItems": 30_000, "items": item,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]});
    let made = define(stage, "longlists", schema).await;
    if made.code != 201 {
        return made.refused();
    }
    stage.plane.calm.until("root", &objects("longlists"), |answer| answer.code == 200).await;
    let list: Vec<Value> = (0..12_000).map(|number| json!({"k": number.to_string(), "v": 1})).collect();
    let mut object = json!({"apiVersion": "attack.example.com/v1", "kind": "longlists", "metadata": {"name": "x"}, "spec": list});
    let stored = stage.plane.door.post_costly("definer", &objects("longlists"), &object).await;
    let seen = if stored.code == 201 {
        let turned: Vec<Value> = list.iter().rev().map(|item| json!({"k": item["k"], "v": 2})).collect();
        object["spec"] = json!(turned);
        object["metadata"]["resourceVersion"] = json!(stored.at("/metadata/resourceVersion"));
        let path = format!("{}/x?dryRun=All", objects("longlists"));
        written_at_once(stage, "PUT", &path, &object).await
    } else {
        stored.one_of(&[201])
    };
    remove(stage, "longlists").await;
    seen
}

async fn remove(stage: &Stage, plural: &str) {
    let path = format!("{DEFINITIONS}/{plural}.attack.example.com");
    stage.plane.calm.send("root", "DELETE", &path, String::new()).await;
}

pub(crate) async fn columns(stage: &Stage) -> Verdict {
    let mut object =
        definition("columned", json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    let paths = [
        ".spec..*..*..*..*",
        ".spec[*][*][*][*][*]",
        ".spec.a[?(@.b==@.b)]",
        ".spec[0:99999999:1]",
        "..",
        ".spec[-9223372036854775808]",
    ];
    let columns: Vec<Value> = paths
        .iter()
        .enumerate()
        .map(|(n, path)| json!({"name": format!("c{n}"), "type": "string", "jsonPath": path}))
        .collect();
    object["spec"]["versions"][0]["additionalPrinterColumns"] = json!(columns);
    let made = stage.plane.door.post_patiently("definer", DEFINITIONS, &object).await;
    if made.code != 201 {
        return made.refused();
    }
    stage.plane.calm.until("root", &objects("columned"), |answer| answer.code == 200).await;
    let mut spec = json!([1, 2]);
    for _ in 0..14 {
        spec = json!([spec, spec]);
    }
    let item = json!({"apiVersion": "attack.example.com/v1", "kind": "columned", "metadata": {"name": "x"}, "spec": spec});
    stage.plane.door.post("definer", &objects("columned"), &item).await;
    let table = [("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let answer = stage.plane.door.get_with("definer", &objects("columned"), &table).await;
    let size = answer.body.len();
    stage
        .plane
        .calm
        .send("root", "DELETE", &format!("{DEFINITIONS}/columned.attack.example.com"), String::new())
        .await;
    if answer.code == 200 && size < 16 << 20 {
        Ok(format!("a table of {size} bytes"))
    } else {
        Err(format!("{} with {size} bytes", answer.brief()))
    }
}

/// A kind that would hide one of the server's own.
pub(crate) async fn takeover(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    for group in ["", "apps", "rbac.authorization.k8s.io", "work.karmada.io", "x.k8s.io"] {
        let mut object = definition("secrets", json!({"type": "object"}));
        object["metadata"]["name"] = json!(format!("secrets.{group}"));
        object["spec"]["group"] = json!(group);
        object["spec"]["names"] =
            json!({"plural": "secrets", "singular": "secret", "kind": "Secret", "listKind": "SecretList"});
        let made = door.post("definer", DEFINITIONS, &object).await;
        if made.code == 201 && !group.contains("karmada") && group != "apps" {
            return Err(format!("a definition in group {group:?}: {}", made.brief()));
        }
        stage
            .plane
            .calm
            .send("root", "DELETE", &format!("{DEFINITIONS}/secrets.{group}"), String::new())
            .await;
    }
    for name in ["v1.", "v1.apps", "v1.rbac.authorization.k8s.io"] {
        let group = name.trim_start_matches("v1.").to_owned();
        let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name},
            "spec": {"group": group, "version": "v1", "insecureSkipTLSVerify": true, "groupPriorityMinimum": 20000, "versionPriority": 100,
                "service": {"name": "x", "namespace": "tenant"}}});
        door.post("definer", "apis/apiregistration.k8s.io/v1/apiservices", &service)
            .await
            .one_of(&[409, 422, 403])?;
    }
    stage.plane.calm.get("root", "api/v1/namespaces/other/secrets/treasure").await.one_of(&[200])
}

fn policy(name: &str, expression: &str) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {"failurePolicy": "Ignore", "matchConstraints": {"resourceRules": [{"apiGroups": ["attack.example.com"], "apiVersions": ["v1"],
            "operations": ["CREATE"], "resources": ["*"]}]},
            "validations": [{"expression": expression}]}})
}

/// Waits until the policy that refuses the canary does so.
async fn in_effect(stage: &Stage, plural: &str) -> Verdict {
    let canary = json!({"apiVersion": "attack.example.com/v1", "kind": plural, "metadata": {"name": CANARY}});
    let began = Instant::now();
    loop {
        let answer = stage.plane.calm.post("root", &objects(plural), &canary).await;
        if answer.code == 422 {
            return Ok(answer.brief());
        }
        if began.elapsed() > patience() {
            return Err(format!("the policies do not take effect: {}", answer.brief()));
        }
        let path = format!("{}/{CANARY}", objects(plural));
        stage.plane.calm.send("root", "DELETE", &path, String::new()).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Expressions that nest without end.
pub(crate) async fn deep_expressions(stage: &Stage) -> Verdict {
    let depth = 100_000;
    for (number, expression) in [
        "(".repeat(depth) + "true" + &")".repeat(depth),
        "!".repeat(depth) + "true",
        "-".repeat(depth) + "1 == 1",
        "[".repeat(depth) + &"]".repeat(depth) + " == []",
        "object".to_owned() + &".a".repeat(depth) + " == 1",
        "true".to_owned() + &" ? true : true".repeat(depth / 10),
        "1".to_owned() + &" + 1".repeat(depth) + " > 0",
        "true".to_owned() + &" && true".repeat(depth),
        "{'a': ".repeat(depth) + "1" + &"}".repeat(depth) + " == 1",
        "[1].exists(a, ".repeat(5_000) + "true" + &")".repeat(5_000),
    ]
    .into_iter()
    .enumerate()
    {
        let answer =
            stage.plane.door.post("definer", POLICIES, &policy(&format!("deep-{number}"), &expression)).await;
        if answer.code == 0 || answer.code >= 500 {
            return Err(format!("{}…: {}", &expression[..10], answer.brief()));
        }
        stage.plane.calm.send("root", "DELETE", &format!("{POLICIES}/deep-{number}"), String::new()).await;
    }
    Ok("answered each".to_owned())
}

/// Rules that cost more than the budget are refused when they are written.
pub(crate) async fn costly_rules(stage: &Stage) -> Verdict {
    let list = |rule: &str| {
        json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string"}}},
            "x-kubernetes-validations": [{"rule": rule}]})
    };
    for (number, rule) in [
        "self.l.all(a, self.l.all(b, self.l.all(c, self.l.all(d, a + b + c + d != ''))))",
        "self.l.map(a, self.l.map(b, self.l.map(c, self.l))).size() > 0",
        "self.l.all(x, x.matches('(a+)+$'))",
        "self.l.all(x, self.l.exists(y, x.replace('a', y).contains(y)))",
    ]
    .into_iter()
    .enumerate()
    {
        let made = define(stage, &format!("costly{number}"), list(rule)).await;
        made.one_of(&[422]).map_err(|seen| format!("{rule}: {seen}"))?;
    }
    Ok("422 each".to_owned())
}

/// Expressions that are cheap to write and costly to run, where nothing bounds the size before.
pub(crate) async fn costly_policies(stage: &Stage) -> Verdict {
    let plural = "costs";
    let made =
        define(stage, plural, json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})).await;
    made.one_of(&[201])?;
    stage.plane.calm.until("root", &objects(plural), |answer| answer.code == 200).await;
    let doubling = {
        let mut text = "object.spec.s".to_owned();
        for _ in 0..12 {
            text = format!("({text}).replace('a', 'aaaaaaaa')");
        }
        text + ".size() > 0"
    };
    let expressions = [
        "object.spec.l.all(a, object.spec.l.all(b, object.spec.l.all(c, object.spec.l.all(d, a + b + c + d >= 0))))".to_owned(),
        "object.spec.l.map(a, object.spec.l.map(b, object.spec.l.map(c, object.spec.l))).size() >= 0".to_owned(),
        "object.spec.s.matches('(a+)+b$') || true".to_owned(),
        doubling,
    ];
    // The last one can be seen to take effect, and policies take effect in the order in which they were made.
    let visible = format!("object.metadata.name != '{CANARY}'");
    let all: Vec<&String> = expressions.iter().chain([&visible]).collect();
    for (number, expression) in all.iter().enumerate() {
        let name = format!("costly-{number}");
        let made = stage.plane.calm.post("root", POLICIES, &policy(&name, expression)).await;
        if made.code != 201 {
            continue;
        }
        let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
        stage
            .plane
            .make("apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", &binding)
            .await;
    }
    in_effect(stage, plural).await?;
    let numbers: Vec<u32> = (0..2_000).collect();
    let object = json!({"apiVersion": "attack.example.com/v1", "kind": plural, "metadata": {"name": "x"},
        "spec": {"l": numbers, "s": "a".repeat(2_000)}});
    let answer = stage.plane.door.post("definer", &objects(plural), &object).await;
    for number in 0..all.len() {
        for resource in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
            let path = format!("apis/admissionregistration.k8s.io/v1/{resource}/costly-{number}");
            stage.plane.calm.send("root", "DELETE", &path, String::new()).await;
        }
    }
    stage
        .plane
        .calm
        .send("root", "DELETE", &format!("{DEFINITIONS}/{plural}.attack.example.com"), String::new())
        .await;
    if answer.code == 0 { Err(format!("answered {}", answer.brief())) } else { Ok(answer.brief()) }
}

/// Quantities that are numbers with a million digits, or with such exponents.
pub(crate) async fn quantities(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    for quantity in [
        "1e1000000000".to_owned(),
        "9".repeat(1_000_000),
        "1e-1000000000".to_owned(),
        "0.".to_owned() + &"0".repeat(500_000) + "1",
        "99999999999999999999999999E".to_owned(),
        "-9223372036854775809Ei".to_owned(),
    ] {
        let quota = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "FederatedResourceQuota", "metadata": {"name": "q"},
            "spec": {"overall": {"cpu": quantity}}});
        let answer = door
            .post(
                "tenant",
                "apis/policy.karmada.io/v1alpha1/namespaces/tenant/federatedresourcequotas",
                &quota,
            )
            .await;
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": quantity}}}]}});
        let second = door.post("editor", "api/v1/namespaces/tenant/pods", &pod).await;
        let short: String = quantity.chars().take(20).collect();
        for answer in [answer, second] {
            if answer.code == 0 || answer.code >= 500 {
                return Err(format!("{short}: {}", answer.brief()));
            }
        }
        stage
            .plane
            .calm
            .send(
                "root",
                "DELETE",
                "apis/policy.karmada.io/v1alpha1/namespaces/tenant/federatedresourcequotas/q",
                String::new(),
            )
            .await;
        stage.plane.calm.send("root", "DELETE", "api/v1/namespaces/tenant/pods/p", String::new()).await;
    }
    Ok("answered each".to_owned())
}
