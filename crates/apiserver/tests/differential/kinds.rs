//! Requests that make sense for every kind, derived from one valid object each.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::suite::Suite;
use crate::support::Call;

const NAMESPACE: &str = "kinds";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    /// The group and version's part of the path.
    path: String,
    resource: String,
    #[serde(default)]
    namespaced: bool,
    object: Value,
}

/// Runs all kinds, one after the other.
pub(crate) async fn run(suite: &mut Suite) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    suite.both(&Call::new("POST", "api/v1/namespaces").json(&namespace)).await;
    // A bare kube-apiserver has nobody who makes the account that pods need; ours makes it by itself.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let accounts = format!("api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    suite.both(&Call::new("POST", accounts).json(&account)).await;

    let text = crate::testdata("kinds.yaml").replace("NAMESPACE", NAMESPACE);
    let kinds: Vec<Kind> = serde_saphyr::from_str(&text).expect("kinds.yaml is a list of kinds");
    for kind in kinds {
        if suite.wants(&kind.resource) {
            Cases { suite, kind: &kind }.run().await;
        }
    }
}

struct Cases<'a> {
    suite: &'a mut Suite,
    kind: &'a Kind,
}

impl Cases<'_> {
    async fn run(&mut self) {
        self.creating().await;
        self.reading().await;
        self.patching().await;
        self.replacing().await;
        self.creating_badly().await;
        self.subresources().await;
        self.deleting().await;
    }

    fn base(&self) -> String {
        let Kind { path, resource, .. } = self.kind;
        if self.kind.namespaced {
            format!("{path}/namespaces/{NAMESPACE}/{resource}")
        } else {
            format!("{path}/{resource}")
        }
    }

    fn name(&self) -> &str {
        self.kind.object["metadata"]["name"].as_str().expect("objects of the table have names")
    }

    fn item(&self) -> String {
        format!("{}/{}", self.base(), self.name())
    }

    /// Returns the object with other metadata.
    fn with(&self, metadata: Value) -> Value {
        let mut object = self.kind.object.clone();
        object["metadata"] = metadata;
        object
    }

    async fn case(&mut self, case: &str, call: Call) {
        let full = format!("{} {case}", self.kind.resource);
        let code = self.suite.compare(&full, &call).await;
        // Two servers that refuse the object for the same mistake in the table would agree on everything that follows.
        assert!(case != "create" || code == 201, "{full}: the table's object is refused with {code}");
    }

    async fn get(&mut self, case: &str, path: String) {
        self.case(case, Call::new("GET", path)).await;
    }

    async fn post(&mut self, case: &str, query: &str, body: Value) {
        let path = format!("{}{query}", self.base());
        self.case(case, Call::new("POST", path).json(&body)).await;
    }

    async fn patch(&mut self, case: &str, after: &str, content_type: &str, body: Value) {
        let path = format!("{}{after}", self.item());
        self.case(case, Call::new("PATCH", path).json(&body).content_type(content_type)).await;
    }

    async fn creating(&mut self) {
        let object = self.kind.object.clone();
        self.post("create dry", "?dryRun=All", object.clone()).await;
        self.post("create", "", object.clone()).await;
        self.post("create again", "", object).await;
    }

    async fn reading(&mut self) {
        let (base, item) = (self.base(), self.item());
        let one = format!("{base}?fieldSelector=metadata.name%3D{}", self.name());
        self.get("get", item.clone()).await;
        self.case("get table", Call::new("GET", &item).accept(TABLE)).await;
        self.case("get metadata", Call::new("GET", &item).accept(METADATA)).await;
        self.get("get missing", format!("{base}/missing")).await;
        self.get("list", one.clone()).await;
        self.case("list table", Call::new("GET", one).accept(TABLE)).await;
        self.get("list bad selector", format!("{base}?fieldSelector=spec.nope%3Dx")).await;
        self.get("list labels none", format!("{base}?labelSelector=no%3Dsuch")).await;
    }

    async fn patching(&mut self) {
        self.patch("label merge", "", MERGE, json!({"metadata": {"labels": {"l": "1"}}})).await;
        self.patch("annotate strategic", "", STRATEGIC, json!({"metadata": {"annotations": {"a": "1"}}}))
            .await;
        self.patch(
            "json patch",
            "",
            JSON,
            json!([{"op": "add", "path": "/metadata/labels/j", "value": "2"}]),
        )
        .await;
        self.patch("json patch fails", "", JSON, json!([{"op": "remove", "path": "/metadata/nope"}])).await;
        self.patch("merge bad type", "", MERGE, json!({"metadata": {"labels": 5}})).await;
        self.patch("patch nothing", "", MERGE, json!({"metadata": {"labels": {"l": "1"}}})).await;
        self.patch("patch unknown strict", "?fieldValidation=Strict", MERGE, json!({"nope": 1})).await;
        let object = &self.kind.object;
        let applied = json!({
            "apiVersion": object["apiVersion"],
            "kind": object["kind"],
            "metadata": {"name": self.name(), "labels": {"s": "1"}},
        });
        self.patch("apply", "?fieldManager=ssa", APPLY, applied).await;
        let missing = Call::new("PATCH", format!("{}/missing", self.base()));
        self.case("patch missing", missing.json(&json!({"metadata": {}})).content_type(MERGE)).await;
    }

    async fn replacing(&mut self) {
        let (base, item) = (self.base(), self.item());
        let stale = self.with(json!({"name": self.name(), "resourceVersion": "1"}));
        self.case("put stale", Call::new("PUT", &item).json(&stale)).await;
        let object = self.kind.object.clone();
        self.case("put without version", Call::new("PUT", &item).json(&object)).await;
        let other = self.with(json!({"name": "other"}));
        self.case("put wrong name", Call::new("PUT", &item).json(&other)).await;
        let missing = self.with(json!({"name": "missing"}));
        self.case("put missing", Call::new("PUT", format!("{base}/missing?dryRun=All")).json(&missing)).await;
    }

    async fn creating_badly(&mut self) {
        let dry = "?dryRun=All";
        let mut unknown = self.with(json!({"name": "y"}));
        unknown["nope"] = 1.into();
        self.post("create unknown warn", dry, unknown.clone()).await;
        unknown["metadata"]["foo"] = 1.into();
        self.post("create unknown strict", "?dryRun=All&fieldValidation=Strict", unknown).await;
        self.post("create bad name", dry, self.with(json!({"name": "Bad_Name!"}))).await;
        self.post("create no name", dry, self.with(json!({}))).await;
        self.post("create bad labels", dry, self.with(json!({"name": "y", "labels": {"a b": "c d"}}))).await;
        self.post("create label type", dry, self.with(json!({"name": "y", "labels": {"a": 5}}))).await;
        let mut wrong = self.kind.object.clone();
        wrong["kind"] = "Foo".into();
        self.post("create wrong kind", "", wrong).await;
        let mut wrong = self.kind.object.clone();
        wrong["apiVersion"] = "foo/v9".into();
        self.post("create wrong version", "", wrong).await;
        let object = &self.kind.object;
        let empty =
            json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": "y"}});
        self.post("create empty", dry, empty).await;
        let base = self.base();
        self.case("create malformed", Call::new("POST", base).raw("{\"a\":")).await;
    }

    async fn subresources(&mut self) {
        let item = self.item();
        self.get("status get", format!("{item}/status")).await;
        self.patch("status patch", "/status", MERGE, json!({"metadata": {"annotations": {"st": "1"}}})).await;
        self.get("scale get", format!("{item}/scale")).await;
        self.get("bad subresource", format!("{item}/nope")).await;
    }

    async fn deleting(&mut self) {
        let (base, item) = (self.base(), self.item());
        self.case("delete missing", Call::new("DELETE", format!("{base}/missing"))).await;
        let other = json!({"preconditions": {"uid": "nope"}});
        self.case("delete precondition", Call::new("DELETE", &item).json(&other)).await;
        self.case(
            "delete bad policy",
            Call::new("DELETE", &item).json(&json!({"propagationPolicy": "Nope"})),
        )
        .await;
        let options = json!({"propagationPolicy": "Background", "gracePeriodSeconds": 0});
        self.case("delete", Call::new("DELETE", &item).json(&options)).await;
        self.get("get deleted", item).await;
    }
}
