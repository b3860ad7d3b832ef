//! Somebody who may look at the fleet, a little: what that may cost others.

use std::time::Duration;

use futures::future::join_all;
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::{Value, json};
use testkit::Kind;
use tokio::io::AsyncWriteExt;

use crate::frames::{ask, open};
use crate::stage::{Stage, Verdict};

const SEARCH: &str = "apis/search.karmada.io/v1alpha1";
const PROXY: &str = "apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";
/// How many large objects the member has, and of which size.
const LARGE: (usize, usize) = (16, 500_000);

/// Has the member's ConfigMaps copied, and lets the walker see them.
async fn furnish(stage: &Stage) -> Result<(), String> {
    let member = stage.member().await;
    let rules = json!([
        {"apiGroups": ["search.karmada.io"], "resources": ["proxying/proxy"], "verbs": ["*"]},
        {"apiGroups": ["search.karmada.io"], "resources": ["query"], "verbs": ["list"]},
        {"apiGroups": ["metrics.k8s.io"], "resources": ["nodes", "pods"], "verbs": ["get", "list"]}]);
    stage.plane.grant("walker", None, "searches", Some(rules)).await;
    let make = async |kind: Kind, namespace: &str, object: Value| {
        let api: Api<DynamicObject> = kind.api(member.client.clone(), namespace);
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    };
    let rbac = "rbac.authorization.k8s.io";
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "walker"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]});
    make(Kind::cluster(rbac, "v1", "ClusterRole", "clusterroles"), "", role).await?;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "walker"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "walker"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "walker"}]});
    make(Kind::cluster(rbac, "v1", "ClusterRoleBinding", "clusterrolebindings"), "", binding).await?;
    for number in 0..LARGE.0 {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("large-{number}")},
            "data": {"x": "x".repeat(LARGE.1)}});
        make(Kind::namespaced("", "v1", "ConfigMap", "configmaps"), "default", map).await?;
    }
    let registry = json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry", "metadata": {"name": "maps"},
        "spec": {"targetCluster": {"clusterNames": ["m1"]}, "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap"}]}});
    stage.plane.make(&format!("{SEARCH}/resourceregistries"), &registry).await;
    let list = format!("{PROXY}/api/v1/namespaces/default/configmaps");
    let all = |answer: &crate::wire::Answer| {
        answer.json()["items"].as_array().is_some_and(|items| items.len() >= LARGE.0)
    };
    let answer = stage.plane.calm.until("walker", &list, all).await;
    if all(&answer) { Ok(()) } else { Err(format!("the walker does not see the copies: {}", answer.brief())) }
}

/// A thousand watches of the fleet that nobody reads.
pub(crate) async fn unread_watches(stage: &Stage) -> Verdict {
    furnish(stage).await?;
    stage.plane.victim.forget_peak();
    let mut kept = Vec::new();
    for _ in 0..5 {
        let mut stream = open(&stage.plane.door, &[(4, 0)]).await.map_err(|error| error.to_string())?;
        for number in 0..200 {
            let path = format!("/{PROXY}/api/v1/configmaps?watch=true");
            let asked = ask(number * 2 + 1, "walker", &path);
            stream.write_all(&asked).await.map_err(|error| error.to_string())?;
        }
        let _ = stream.flush().await;
        kept.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    Ok(format!("{} watches", kept.len() * 200))
}

/// Asks for the same many times at once; returns how often which code came.
async fn at_once(stage: &Stage, times: usize, paths: &[String], codes: &[u16]) -> Verdict {
    let asked = (0..times).map(|number| stage.plane.door.get("walker", &paths[number % paths.len()]));
    let answers = join_all(asked).await;
    let mut refused = 0;
    for answer in &answers {
        answer.one_of(codes)?;
        refused += usize::from(answer.code == 429);
    }
    Ok(format!("{times} at once, {refused} were told to come back"))
}

/// Queries and selectors that have everything looked at, and parsed.
pub(crate) async fn costly_queries(stage: &Stage) -> Verdict {
    furnish(stage).await?;
    let paths = [
        format!("{SEARCH}/query?q=name:*l*a*r*g*e*-*-*-*x&sort=age&limit=10000"),
        format!("{SEARCH}/query?q=kind:cm&sort=status&limit=10000&objects=true"),
        format!("{PROXY}/api/v1/configmaps?fieldSelector=metadata.namespace!%3Dx"),
    ];
    at_once(stage, 90, &paths, &[200, 429]).await
}

/// Metrics of all members, by the hundred.
pub(crate) async fn metrics_of_all(stage: &Stage) -> Verdict {
    furnish(stage).await?;
    at_once(stage, 100, &["apis/metrics.k8s.io/v1beta1/nodes".to_owned()], &[200, 429]).await
}

/// A registry that names thousands of namespaces, each of which would be a watch in every member.
pub(crate) async fn endless_registry(stage: &Stage) -> Verdict {
    stage.member().await;
    let rules =
        json!([{"apiGroups": ["search.karmada.io"], "resources": ["resourceregistries"], "verbs": ["*"]}]);
    stage.plane.grant("registrar", None, "copies", Some(rules)).await;
    let selectors: Vec<Value> = (0..5000)
        .map(
            |number| json!({"apiVersion": "v1", "kind": "ServiceAccount", "namespace": format!("n{number}")}),
        )
        .collect();
    let registry = json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry", "metadata": {"name": "endless"},
        "spec": {"targetCluster": {}, "resourceSelectors": selectors}});
    let path = format!("{SEARCH}/resourceregistries");
    stage.plane.door.post("registrar", &path, &registry).await.one_of(&[201])?;
    let one = format!("{path}/endless");
    let told = |answer: &crate::wire::Answer| {
        let text = answer.at("/status/conditions/0/message");
        text.contains("5000 selectors are too many") && text.contains("more than 64 single namespaces")
    };
    let answer = stage.plane.calm.until("root", &one, told).await;
    stage.plane.calm.send("root", "DELETE", &one, String::new()).await;
    if told(&answer) { Ok("256 selectors and 64 namespaces count".to_owned()) } else { Err(answer.brief()) }
}
