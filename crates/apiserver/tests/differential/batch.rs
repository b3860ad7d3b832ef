//! Many policies at once: kube-apiserver takes a second to notice one, and as long for a hundred.
//!
//! Every case has a policy and a binding of its own, which see only objects with the case's label unless the case says otherwise.
//! A marker comes last: when it bites on both sides, those before it do too.

use serde_json::{Value, json};

use crate::suite::Suite;
use crate::support::{Answer, Call};

pub(crate) const ADMISSION: &str = "apis/admissionregistration.k8s.io/v1";
pub(crate) const MERGE: &str = "application/merge-patch+json";

/// A policy, its binding, and what is sent while they are in force.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Of the policy; `matchConstraints` may be left out.
    pub(crate) spec: Value,
    /// Of the binding; the policy's name may be left out.
    pub(crate) binding: Value,
    /// What is sent; without any, a ConfigMap with the case's label is.
    pub(crate) calls: Vec<(&'static str, Call)>,
    /// It takes kube-apiserver up to half a minute to find the kind of the parameters, which is waited for.
    pub(crate) new_kind: bool,
}

impl Case {
    pub(crate) fn new(name: &'static str, spec: Value, binding: Value) -> Self {
        Self { name, spec, binding, calls: Vec::new(), new_kind: false }
    }

    pub(crate) fn of_new_kind(mut self) -> Self {
        self.new_kind = true;
        self
    }

    pub(crate) fn send(mut self, what: &'static str, call: Call) -> Self {
        self.calls.push((what, call));
        self
    }
}

/// Which sort of policies a batch has.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Sort {
    Validating,
    Mutating,
}

impl Sort {
    fn kind(self) -> &'static str {
        match self {
            Self::Validating => "ValidatingAdmissionPolicy",
            Self::Mutating => "MutatingAdmissionPolicy",
        }
    }

    fn path(self) -> String {
        let plural = self.kind().to_lowercase().replace("policy", "policies");
        format!("{ADMISSION}/{plural}")
    }

    fn bindings(self) -> String {
        format!("{ADMISSION}/{}bindings", self.kind().to_lowercase())
    }
}

/// Where a batch takes place.
pub(crate) struct Stage<'a> {
    pub(crate) suite: &'a mut Suite,
    /// First part of the cases' names, and the name of the namespace.
    pub(crate) scene: &'static str,
    pub(crate) sort: Sort,
}

impl Stage<'_> {
    /// Returns the path of a resource of the core group in the scene's namespace.
    pub(crate) fn core(&self, resource: &str) -> String {
        format!("api/v1/namespaces/{}/{resource}", self.scene)
    }

    /// Binds all policies, sends what the cases send, and takes the policies away again.
    pub(crate) async fn play(&mut self, cases: Vec<Case>) {
        let mut obeyed = Vec::new();
        for case in &cases {
            obeyed.push(self.bind(case).await);
        }
        let marked = self.mark().await;
        for (case, obeyed) in cases.iter().zip(&obeyed) {
            if !obeyed {
                continue;
            }
            let plain = [("", labelled(case.name, &self.core("configmaps")))];
            let calls = if case.calls.is_empty() { &plain[..] } else { &case.calls };
            for (what, call) in calls {
                if case.new_kind {
                    let found = |answer: &Answer| !answer.text().contains("failed to find resource");
                    self.suite.until(call, found).await;
                }
                let name = format!("{} {} {what}", self.scene, case.name);
                self.suite.compare(name.trim(), call).await;
            }
        }
        for name in cases.iter().map(|case| case.name).chain(["marker"]) {
            let name = format!("{}-{}", self.scene, slug(name));
            self.suite.both(&Call::new("DELETE", format!("{}/{name}", self.sort.bindings()))).await;
            self.suite.both(&Call::new("DELETE", format!("{}/{name}", self.sort.path()))).await;
        }
        self.suite.until(&marked, |answer| answer.code == 201 && !answer.text().contains("marked")).await;
    }

    /// Returns whether both have taken the policy and its binding.
    async fn bind(&mut self, case: &Case) -> bool {
        let name = format!("{}-{}", self.scene, slug(case.name));
        let mut spec = case.spec.clone();
        if spec["matchConstraints"].is_null() {
            spec["matchConstraints"] = json!({"resourceRules": [rule("", "v1", "configmaps")]});
        }
        if spec["matchConstraints"]["objectSelector"].is_null() {
            spec["matchConstraints"]["objectSelector"] = json!({"matchLabels": {"case": slug(case.name)}});
        }
        if self.sort == Sort::Mutating && spec["reinvocationPolicy"].is_null() {
            spec["reinvocationPolicy"] = json!("Never");
        }
        let policy = self.object(self.sort.kind(), &name, spec);
        let mut binding = case.binding.clone();
        if binding["policyName"].is_null() {
            binding["policyName"] = json!(name);
        }
        let binding = self.object(&format!("{}Binding", self.sort.kind()), &name, binding);
        let mut taken = true;
        for (what, path, object) in
            [("policy", self.sort.path(), policy), ("binding", self.sort.bindings(), binding)]
        {
            let tried = Call::new("POST", format!("{path}?dryRun=All")).json(&object);
            self.suite.compare(&format!("{} {} {what}", self.scene, case.name), &tried).await;
            let (theirs, ours) = self.suite.both(&Call::new("POST", path).json(&object)).await;
            taken &= theirs.code == 201 && ours.code == 201;
        }
        taken
    }

    fn object(&self, kind: &str, name: &str, spec: Value) -> Value {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
    }

    /// Binds the last policy and waits until it is obeyed; returns what shows that.
    async fn mark(&mut self) -> Call {
        let name = format!("{}-marker", self.scene);
        let mut spec = json!({"matchConstraints": {"resourceRules": [rule("", "v1", "configmaps")],
            "objectSelector": {"matchLabels": {"marker": self.scene}}}});
        let mut binding = json!({"policyName": name});
        match self.sort {
            Sort::Validating => {
                spec["validations"] = json!([{"expression": "false", "message": "marked"}]);
                binding["validationActions"] = json!(["Deny"]);
            }
            Sort::Mutating => {
                spec["reinvocationPolicy"] = json!("Never");
                spec["mutations"] = json!([{"patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": "Object{data: {'is': 'marked'}}"}}]);
            }
        }
        let policy = self.object(self.sort.kind(), &name, spec);
        let binding = self.object(&format!("{}Binding", self.sort.kind()), &name, binding);
        self.suite.both(&Call::new("POST", self.sort.path()).json(&policy)).await;
        self.suite.both(&Call::new("POST", self.sort.bindings()).json(&binding)).await;
        let probe = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "probe", "labels": {"marker": self.scene}}, "data": {"a": "1"}});
        let probe = Call::new("POST", format!("{}?dryRun=All", self.core("configmaps"))).json(&probe);
        self.suite.until(&probe, |answer| answer.text().contains("marked")).await;
        probe
    }
}

/// A rule about all operations on a resource.
pub(crate) fn rule(group: &str, version: &str, resource: &str) -> Value {
    json!({"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE", "UPDATE"], "resources": [resource]})
}

/// A ConfigMap with the label of a case, which is not stored.
pub(crate) fn labelled(case: &str, maps: &str) -> Call {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "o", "labels": {"case": slug(case)}}, "data": {"a": "1", "n": "12"}});
    Call::new("POST", format!("{maps}?dryRun=All")).json(&map)
}

/// Returns the name of a case as objects and labels can have it.
pub(crate) fn slug(case: &str) -> String {
    case.replace(' ', "-")
}
