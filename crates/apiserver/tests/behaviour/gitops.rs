//! Loops that apply the same objects for ever, as Flux and Argo CD do: they come to rest, and nothing is written from
//! then on.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::start;
use crate::support::{Api, Call};

const APPLY: &str = "application/apply-patch+yaml";
const ROUNDS: usize = 100;

/// What a loop wants, by path.
type Wanted = BTreeMap<String, Value>;

fn deployment(replicas: Option<i64>, image: &str, labels: Value) -> Value {
    let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "labels": labels},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": image, "ports": [{"containerPort": 80}],
                "resources": {"requests": {"cpu": "0.5", "memory": "128Mi"}}}]}}}});
    if let Some(replicas) = replicas {
        object["spec"]["replicas"] = json!(replicas);
    }
    object
}

fn first() -> Wanted {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 80, "name": "http"}]}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "namespace": "default"},
        "data": {"a": "1", "b": ""}});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "web", "namespace": "default"},
        "stringData": {"k": "v"}});
    let custom = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"list": [{"k": "a"}], "set": ["x"]}});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "web", "namespace": "default"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    Wanted::from([
        (
            "apis/apps/v1/namespaces/default/deployments/web".to_owned(),
            deployment(None, "nginx:1", json!({"by": "flux"})),
        ),
        ("api/v1/namespaces/default/services/web".to_owned(), service),
        ("api/v1/namespaces/default/configmaps/web".to_owned(), map),
        ("api/v1/namespaces/default/secrets/web".to_owned(), secret),
        ("apis/example.com/v1/namespaces/default/things/web".to_owned(), custom),
        ("apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/web".to_owned(), role),
    ])
}

/// The other one owns other fields of the same objects.
fn second() -> Wanted {
    let tracked = json!({"argocd.argoproj.io/tracking-id": "app:apps/Deployment:default/web"});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "annotations": tracked},
        "spec": {"template": {"spec": {"containers": [{"name": "web", "env": [{"name": "A", "value": "1"}]}]}}}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "namespace": "default"},
        "data": {"c": "3"}});
    let custom = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"list": [{"k": "b", "v": 2}], "set": ["y"]}});
    Wanted::from([
        ("apis/apps/v1/namespaces/default/deployments/web".to_owned(), deployment),
        ("api/v1/namespaces/default/configmaps/web".to_owned(), map),
        ("apis/example.com/v1/namespaces/default/things/web".to_owned(), custom),
    ])
}

async fn apply(api: &Api, path: &str, object: &Value, query: &str) -> Value {
    let call = Call::new("PATCH", format!("{path}?{query}")).json(object).content_type(APPLY);
    let answer = api.send(&call).await;
    assert!(answer.code < 300, "{path}: {}", answer.text());
    answer.json()
}

/// Like Flux: a forced dry run first, then the same for real if that shows a difference.
async fn flux(api: &Api, wanted: &Wanted) -> usize {
    let mut written = 0;
    for (path, object) in wanted {
        let live = api.get(path).await;
        let query = "fieldManager=kustomize-controller&force=true";
        let dry = apply(api, path, object, &format!("{query}&dryRun=All")).await;
        if live.code != 200 || without_bookkeeping(live.json()) != without_bookkeeping(dry) {
            apply(api, path, object, query).await;
            written += 1;
        }
    }
    written
}

/// Like Argo CD with server-side diff: compares a dry run with what is there, and applies for real in any case.
async fn argo(api: &Api, wanted: &Wanted) -> usize {
    let mut differing = 0;
    for (path, object) in wanted {
        let live = api.get(path).await;
        let query = "fieldManager=argocd-controller&force=true";
        let dry = apply(api, path, object, &format!("{query}&dryRun=All")).await;
        if live.code != 200 || without_bookkeeping(live.json()) != without_bookkeeping(dry) {
            differing += 1;
        }
        apply(api, path, object, query).await;
    }
    differing
}

fn without_bookkeeping(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"] {
            metadata.remove(field);
        }
    }
    object
}

async fn define(api: &Api) {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer", "default": 1}}}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}}});
    api.post("apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
    api.until("apis/example.com/v1/things", |answer| answer.code == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_loops_on_the_same_objects_come_to_rest_and_write_nothing_more() {
    let (handle, api) = start().await;
    define(&api).await;
    let (one, other) = (first(), second());
    assert_eq!(flux(&api, &one).await, one.len());
    argo(&api, &other).await;
    // An autoscaler has its say in between, which is nobody's business but its own.
    let scale = json!({"spec": {"replicas": 4}});
    api.merge("apis/apps/v1/namespaces/default/deployments/web/scale", &scale).await.expect(200);
    assert_eq!(flux(&api, &one).await, 0, "what the other one owns does not differ for the first");
    assert_eq!(argo(&api, &other).await, 0);

    let objects = async || {
        let mut all = Vec::new();
        for path in one.keys() {
            all.push(api.get(path).await.expect(200).json());
        }
        all
    };
    let (before, revision) = (objects().await, handle.server.store.revision());
    for _ in 0..ROUNDS {
        assert_eq!(flux(&api, &one).await + argo(&api, &other).await, 0);
    }
    assert_eq!(objects().await, before);
    let after = handle.server.store.revision();
    let changed =
        before.iter().map(|object| object["metadata"]["resourceVersion"].clone()).collect::<Vec<_>>();
    assert_eq!(after, revision, "something was written; the objects are at {changed:?}");

    // A field that one gives up and nobody else owns goes; the other's stay.
    let mut less = one.clone();
    less.insert(
        "api/v1/namespaces/default/configmaps/web".to_owned(),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "namespace": "default"}, "data": {"a": "1"}}),
    );
    assert_eq!(flux(&api, &less).await, 1);
    assert_eq!(argo(&api, &other).await, 0);
    let map = api.get("api/v1/namespaces/default/configmaps/web").await.expect(200).json();
    assert_eq!(map["data"], json!({"a": "1", "c": "3"}));
    handle.stop().await;
}
