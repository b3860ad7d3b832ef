//! Expressions: rules of definitions, admission policies, conditions of webhooks.

use serde_json::{Value, json};

use crate::suite::Suite;
use crate::support::{Answer, Call};

const DEFINITIONS: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const RULED: &str = "apis/cel.example.com/v1/namespaces/expressions/ruleds";
const ADMISSION: &str = "apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "api/v1/namespaces/expressions/configmaps";
const MERGE: &str = "application/merge-patch+json";

pub(crate) async fn run(suite: &mut Suite) {
    if !suite.wants("expressions") {
        return;
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "expressions", "labels": {"team": "a"}}});
    suite.both(&Call::new("POST", "api/v1/namespaces").json(&namespace)).await;
    let mut cases = Cases { suite, count: 0 };
    cases.definitions().await;
    cases.dear_message().await;
    cases.objects().await;
    cases.policies().await;
}

struct Cases<'a> {
    suite: &'a mut Suite,
    count: usize,
}

fn definition(name: &str, spec: &Value) -> Value {
    let plural = name.to_lowercase() + "s";
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.cel.example.com")},
        "spec": {"group": "cel.example.com", "scope": "Namespaced",
            "names": {"plural": plural, "singular": name.to_lowercase(), "kind": name, "listKind": format!("{name}List")},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}]}})
}

impl Cases<'_> {
    async fn send(&mut self, case: &str, call: Call) -> u16 {
        self.suite.compare(&format!("expressions {case}"), &call).await
    }

    /// Rules that compile and rules that do not; only the code and where the fault is are compared in detail by the suite.
    async fn definitions(&mut self) {
        for (case, rule) in [
            ("unknown variable", "nobody == 1"),
            ("unknown function", "self.name.shout()"),
            ("undefined field", "self.nmae == ''"),
            ("syntax", "self.name =="),
            ("empty", ""),
            ("wrong types", "self.name == 1"),
            ("not bool", "self.name"),
            ("dear", "self.many.all(a, self.many.all(b, a == b))"),
            ("dear text", "self.free.contains(self.free)"),
        ] {
            let spec = json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}],
                "properties": {"name": {"type": "string", "maxLength": 10}, "free": {"type": "string"},
                    "many": {"type": "array", "items": {"type": "string"}}}});
            let call =
                Call::new("POST", format!("{DEFINITIONS}?dryRun=All")).json(&definition("Broken", &spec));
            self.send(&format!("definition {case}"), call).await;
        }
    }

    /// A message that may get longer than anybody can tell.
    async fn dear_message(&mut self) {
        let spec = json!({"type": "object", "properties": {"ratio": {"type": "number"}}, "x-kubernetes-validations": [
            {"rule": "self.ratio < 1.0", "messageExpression": "'ratio is ' + string(self.ratio)"}]});
        let call = Call::new("POST", format!("{DEFINITIONS}?dryRun=All")).json(&definition("Broken", &spec));
        self.send("definition dear message", call).await;
    }

    async fn objects(&mut self) {
        let spec = json!({"type": "object",
        "x-kubernetes-validations": [
            {"rule": "!has(self.min) || !has(self.max) || self.min <= self.max", "message": "min must not exceed max"},
            {"rule": "!has(self.names) || self.names.all(n, n.startsWith('a'))"},
            {"rule": "!has(self.ratio) || self.ratio < 1.0", "messageExpression": "'ratio is ' + (self.ratio > 2.0 ? 'far ' : '') + 'too large'"},
            {"rule": "!has(self.a__dash__b) || self.a__dash__b != 'bad'", "reason": "FieldValueForbidden", "fieldPath": ".min", "message": "no"},
            {"rule": "!has(self.__namespace__) || self.__namespace__.matches('^[a-z]+$')"},
            {"rule": "!has(self.amount) || quantity(self.amount).isLessThan(quantity('2Gi'))"},
            {"rule": "!has(self.wait) || self.wait > duration('1s')"},
            {"rule": "!has(self.when) || self.when.getFullYear() > 2000"},
            {"rule": "!has(self.any) || (type(self.any) == int ? self.any > 0 : self.any == 'x')"},
            {"rule": "!has(self.labels) || self.labels.all(k, self.labels[k].size() < 4)"},
            {"rule": "self.?max.orValue(1) != 13"},
            {"rule": "!has(oldSelf.fixed) || has(self.fixed)", "message": "fixed may not be removed"},
        ],
        "properties": {
            "min": {"type": "integer"}, "max": {"type": "integer"}, "ratio": {"type": "number"},
            "names": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 10}},
            "a-b": {"type": "string", "maxLength": 10}, "namespace": {"type": "string", "maxLength": 20},
            "amount": {"type": "string", "maxLength": 10}, "wait": {"type": "string", "format": "duration"},
            "when": {"type": "string", "format": "date-time"}, "any": {"x-kubernetes-int-or-string": true},
            "labels": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "string", "maxLength": 20,
                "x-kubernetes-validations": [{"rule": "self != 'no'", "message": "not no"}]}},
            "fixed": {"type": "string", "maxLength": 10, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed is immutable"}]},
            "items": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {
                "type": "object", "required": ["k"], "properties": {"k": {"type": "string", "maxLength": 5}, "v": {"type": "integer",
                    "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "v may not shrink"}, {"rule": "self < 100"}]}}}},
        }});
        let call = Call::new("POST", DEFINITIONS).json(&definition("Ruled", &spec));
        if self.send("definition of all", call).await >= 300 {
            // kube-apiserver estimates what a rule may cost, and refuses what could cost too much.
            return;
        }
        let made = Call::new("GET", format!("{DEFINITIONS}/ruleds.cel.example.com"));
        if self.suite.both(&made).await.1.code != 200 {
            // Ours has refused it, which the comparison has noted.
            return;
        }
        self.suite.wait(RULED).await;
        let object = |spec: Value| json!({"apiVersion": "cel.example.com/v1", "kind": "Ruled", "metadata": {"name": "r"}, "spec": spec});
        for (case, spec) in [
            (
                "good",
                json!({"min": 1, "max": 2, "names": ["a", "ab"], "ratio": 0.5, "amount": "1Gi", "wait": "5s", "any": 3}),
            ),
            ("order", json!({"min": 3, "max": 2})),
            ("list", json!({"names": ["a", "b"]})),
            ("message", json!({"ratio": 1.5})),
            ("reason", json!({"a-b": "bad"})),
            ("escaped", json!({"namespace": "N1"})),
            ("quantity", json!({"amount": "3Gi"})),
            ("quantity broken", json!({"amount": "x"})),
            ("duration", json!({"wait": "1ms"})),
            ("time", json!({"when": "1999-01-01T00:00:00Z"})),
            ("either", json!({"any": 0})),
            ("either text", json!({"any": "y"})),
            ("map", json!({"labels": {"k": "12345"}})),
            ("map value", json!({"labels": {"k": "no"}})),
            ("optional", json!({"max": 13})),
            ("scalar", json!({"items": [{"k": "a", "v": 100}]})),
            ("two at once", json!({"min": 3, "max": 2, "ratio": 1.5})),
            ("schema first", json!({"min": "x", "ratio": 1.5})),
        ] {
            self.send(
                &format!("object {case}"),
                Call::new("POST", format!("{RULED}?dryRun=All")).json(&object(spec)),
            )
            .await;
        }
        let stored = object(
            json!({"fixed": "a", "items": [{"k": "x", "v": 5}, {"k": "y", "v": 6}], "min": 1, "max": 2}),
        );
        self.send("prepare object", Call::new("POST", RULED).json(&stored)).await;
        for (case, patch) in [
            ("changed", json!({"spec": {"fixed": "b"}})),
            ("removed", json!({"spec": {"fixed": null}})),
            ("item shrinks", json!({"spec": {"items": [{"k": "y", "v": 6}, {"k": "x", "v": 4}]}})),
            ("item grows", json!({"spec": {"items": [{"k": "y", "v": 7}, {"k": "x", "v": 5}]}})),
            ("item comes", json!({"spec": {"items": [{"k": "z", "v": 1}]}})),
            ("untouched", json!({"metadata": {"labels": {"a": "b"}}})),
        ] {
            let call = Call::new("PATCH", format!("{RULED}/r?dryRun=All")).json(&patch).content_type(MERGE);
            self.send(&format!("update {case}"), call).await;
        }
    }

    /// Binds a policy and waits until it is obeyed: it always refuses objects with a label of its own.
    async fn with_policy(&mut self, mut spec: Value, mut binding: Value) {
        self.count += 1;
        let marker = format!("p{}", self.count);
        let marking = json!({"expression": format!("!has(object.metadata.labels) || !('marker' in object.metadata.labels) || object.metadata.labels.marker != '{marker}'"), "message": "marked"});
        spec["validations"].as_array_mut().expect("a list of validations").insert(0, marking);
        spec["matchConstraints"] = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "expressions"}}});
        let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "differ"}, "spec": spec});
        binding["policyName"] = json!("differ");
        let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "differ"}, "spec": binding});
        self.suite
            .both(&Call::new("POST", format!("{ADMISSION}/validatingadmissionpolicies")).json(&policy))
            .await;
        self.suite
            .both(&Call::new("POST", format!("{ADMISSION}/validatingadmissionpolicybindings")).json(&binding))
            .await;
        self.suite
            .until(&self.probe(), |answer| {
                answer.text().contains("marked")
                    || answer
                        .headers
                        .get("warning")
                        .is_some_and(|value| String::from_utf8_lossy(value.as_bytes()).contains("marked"))
            })
            .await;
    }

    fn probe(&self) -> Call {
        let probe = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe", "labels": {"marker": format!("p{}", self.count)}}});
        Call::new("POST", format!("{MAPS}?dryRun=All")).json(&probe)
    }

    async fn without_policy(&mut self) {
        self.suite
            .both(&Call::new("DELETE", format!("{ADMISSION}/validatingadmissionpolicybindings/differ")))
            .await;
        self.suite
            .both(&Call::new("DELETE", format!("{ADMISSION}/validatingadmissionpolicies/differ")))
            .await;
        self.suite
            .until(&self.probe(), |answer: &Answer| {
                answer.code == 201 && answer.headers.get("warning").is_none()
            })
            .await;
    }

    async fn policies(&mut self) {
        let deny = json!({"validationActions": ["Deny"]});
        let one = |validation: Value| json!({"validations": [validation]});
        let cases = [
            ("plain", one(json!({"expression": "object.data.size() > 2"})), deny.clone()),
            (
                "message",
                one(json!({"expression": "object.data.size() > 2", "message": "too little"})),
                deny.clone(),
            ),
            (
                "message made",
                one(
                    json!({"expression": "false", "messageExpression": "object.metadata.name + ' in ' + request.namespace"}),
                ),
                deny.clone(),
            ),
            ("reason", one(json!({"expression": "false", "reason": "Forbidden"})), deny.clone()),
            (
                "allowed",
                one(json!({"expression": "request.operation == 'CREATE' && oldObject == null"})),
                deny.clone(),
            ),
            (
                "namespace",
                one(json!({"expression": "namespaceObject.metadata.labels.team == 'b'"})),
                deny.clone(),
            ),
            ("fails", one(json!({"expression": "object.data.missing == 'x'"})), deny.clone()),
            (
                "fails open",
                json!({"failurePolicy": "Ignore", "validations": [{"expression": "object.data.missing == 'x'"}]}),
                deny.clone(),
            ),
            (
                "variables",
                json!({"variables": [{"name": "n", "expression": "object.data.size()"}, {"name": "twice", "expression": "variables.n * 2"}],
                "validations": [{"expression": "variables.twice > 4", "messageExpression": "'twice is ' + string(variables.twice)"}]}),
                deny.clone(),
            ),
            (
                "condition",
                json!({"matchConditions": [{"name": "named", "expression": "object.metadata.name != 'o'"}], "validations": [{"expression": "false"}]}),
                deny.clone(),
            ),
            (
                "warns",
                one(json!({"expression": "false", "message": "careful"})),
                json!({"validationActions": ["Warn"]}),
            ),
            (
                "authorizer",
                one(
                    json!({"expression": "authorizer.group('').resource('pods').namespace('x').check('get').allowed()"}),
                ),
                deny.clone(),
            ),
        ];
        for (case, spec, binding) in cases {
            self.with_policy(spec, binding).await;
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "o"}, "data": {"a": "1"}});
            self.send(
                &format!("policy {case}"),
                Call::new("POST", format!("{MAPS}?dryRun=All")).json(&object),
            )
            .await;
            self.without_policy().await;
        }
    }
}
