//! A tenant with policies: what may reach members, and what it costs to work that out.

use std::time::{Duration, Instant};

use kube::Api;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::stage::{Stage, Verdict};

const POLICY: &str = "apis/policy.karmada.io/v1alpha1/namespaces/tenant";
const WORK: &str = "apis/work.karmada.io/v1alpha2";
const MAPS: &str = "api/v1/namespaces/tenant/configmaps";

fn api(
    stage_client: &kube::Client,
    group: &str,
    version: &str,
    kind: &str,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(stage_client.clone(), namespace, &resource),
        None => Api::all_with(stage_client.clone(), &resource),
    }
}

async fn arrives(api: &Api<DynamicObject>, name: &str) -> bool {
    let began = Instant::now();
    while began.elapsed() < crate::wire::patience() {
        if api.get_opt(name).await.ok().flatten().is_some() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}

/// Sends a ConfigMap on its way with these overriders; returns once another one behind it has arrived.
async fn send_overridden(stage: &Stage, name: &str, data: Value, overriders: Value) -> Result<(), String> {
    let door = &stage.plane.door;
    let selectors = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": name}]);
    let rule = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "OverridePolicy", "metadata": {"name": name},
        "spec": {"resourceSelectors": selectors, "overrideRules": [{"overriders": overriders}]}});
    let made = door.post("tenant", &format!("{POLICY}/overridepolicies"), &rule).await;
    if made.code != 201 {
        // Refused at once is the best that can happen.
        made.refused()?;
    }
    door.post("tenant", MAPS, &json!({"metadata": {"name": name}, "data": data})).await.one_of(&[201])?;
    propagate(stage, name).await?;
    let next = next_arrives(stage, name).await;
    door.send("tenant", "DELETE", &format!("{POLICY}/overridepolicies/{name}"), String::new()).await;
    next
}

/// Sends a ConfigMap after something of this name, and waits until it has arrived. Whatever the control plane does about things that it
/// was given before it has done by then: before that, it says nothing that something is not in the member.
async fn next_arrives(stage: &Stage, name: &str) -> Result<(), String> {
    let member = stage.member().await;
    let marker = format!("after-{name}");
    let map = json!({"metadata": {"name": marker}, "data": {"a": "b"}});
    stage.plane.door.post("tenant", MAPS, &map).await.one_of(&[201])?;
    propagate(stage, &marker).await?;
    let maps = api(&member.client, "", "v1", "ConfigMap", Some("tenant"));
    let there = arrives(&maps, &marker).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    if there { Ok(()) } else { Err("nothing is propagated any more".to_owned()) }
}

async fn propagate(stage: &Stage, name: &str) -> Result<(), String> {
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": name},
        "spec": {"resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": name}], "placement": {}}});
    stage
        .plane
        .door
        .post("tenant", &format!("{POLICY}/propagationpolicies"), &policy)
        .await
        .one_of(&[201])
        .map(drop)
}

fn plaintext(patches: &[(&str, &str, Value)]) -> Value {
    let list: Vec<Value> = patches
        .iter()
        .map(|(operator, path, value)| json!({"operator": operator, "path": path, "value": value}))
        .collect();
    json!({"plaintext": list})
}

/// A ConfigMap becomes a ClusterRoleBinding on its way.
pub(crate) async fn overrides_the_kind(stage: &Stage) -> Verdict {
    let member = stage.member().await;
    let overriders = plaintext(&[
        ("replace", "/apiVersion", json!("rbac.authorization.k8s.io/v1")),
        ("replace", "/kind", json!("ClusterRoleBinding")),
        ("remove", "/metadata/namespace", Value::Null),
        (
            "add",
            "/roleRef",
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}),
        ),
        (
            "add",
            "/subjects",
            json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}]),
        ),
        ("remove", "/data", Value::Null),
    ]);
    send_overridden(stage, "crown", json!({"a": "b"}), overriders).await?;
    let bindings = api(&member.client, "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", None);
    match bindings.get_opt("crown").await {
        Ok(None) => Ok("no ClusterRoleBinding in the member".to_owned()),
        Ok(Some(_)) => Err("the tenant is cluster-admin of the member".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// It goes to another tenant's namespace, under another's name.
pub(crate) async fn overrides_the_place(stage: &Stage) -> Verdict {
    let member = stage.member().await;
    let overriders = plaintext(&[
        ("replace", "/metadata/namespace", json!("other")),
        ("replace", "/metadata/name", json!("planted")),
    ]);
    send_overridden(stage, "wanderer", json!({"a": "b"}), overriders).await?;
    for (namespace, name) in [("other", "planted"), ("other", "wanderer"), ("tenant", "planted")] {
        let maps = api(&member.client, "", "v1", "ConfigMap", Some(namespace));
        if maps.get_opt(name).await.ok().flatten().is_some() {
            return Err(format!("{namespace}/{name} is in the member"));
        }
    }
    Ok("neither namespace nor name change".to_owned())
}

/// The labels by which the control plane knows its own.
pub(crate) async fn overrides_the_marks(stage: &Stage) -> Verdict {
    let overriders = plaintext(&[
        (
            "add",
            "/metadata/ownerReferences",
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}]),
        ),
        ("add", "/metadata/finalizers", json!(["attack.example.com/wait"])),
        ("add", "/metadata/annotations/work.karmada.io~1namespace", json!("karmada-es-other")),
    ]);
    send_overridden(stage, "masked", json!({"a": "b"}), overriders).await?;
    Ok("the next one arrives".to_owned())
}

/// The depth bomb, stored in a policy. Values this deep are written as text: no library would make them.
pub(crate) async fn overrides_the_depth(stage: &Stage) -> Verdict {
    let nested = format!("{}{}", "[".repeat(90), "]".repeat(90));
    let mut patches = vec![format!(r#"{{"operator":"add","path":"/data/x","value":{nested}}}"#)];
    let mut depth = 90;
    while depth < 30_000 {
        let inner = format!("/data/x{}/-", "/0".repeat(depth - 1));
        patches.push(format!(r#"{{"operator":"add","path":"{inner}","value":{nested}}}"#));
        depth += 90;
        if patches.iter().map(String::len).sum::<usize>() > 1_300_000 {
            break;
        }
    }
    let door = &stage.plane.door;
    let policy = format!(
        r#"{{"apiVersion":"policy.karmada.io/v1alpha1","kind":"OverridePolicy","metadata":{{"name":"abyss"}},"spec":{{"resourceSelectors":[{{"apiVersion":"v1","kind":"ConfigMap","name":"abyss"}}],"overrideRules":[{{"overriders":{{"plaintext":[{}]}}}}]}}}}"#,
        patches.join(",")
    );
    let made = door.send("tenant", "POST", &format!("{POLICY}/overridepolicies"), policy).await;
    if made.code != 201 {
        made.refused()?;
    }
    // The one behind it arrives; the policy is deleted afterwards.
    send_overridden(stage, "abyss", json!({"a": "b"}), json!({})).await?;
    Ok(format!("a policy for {depth} levels: {}; the next one arrives", made.code))
}

/// A YAML bomb in a ConfigMap that a fieldOverrider reads.
pub(crate) async fn overrides_a_bomb(stage: &Stage) -> Verdict {
    let aliases = vec!["*a"; 1_500].join(",");
    let bomb = format!("a: &a {}\nb: [{aliases}]\n", "x".repeat(500_000));
    let overriders = json!({"fieldOverrider": [{"fieldPath": "/data/bomb", "yaml": [{"subPath": "/c", "operator": "add", "value": 1}]}]});
    send_overridden(stage, "yamlbomb", json!({"bomb": bomb}), overriders).await?;
    Ok("the next one arrives".to_owned())
}

fn binding(name: &str, resource: Value) -> Value {
    json!({"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding", "metadata": {"name": name},
        "spec": {"resource": resource, "clusters": [{"name": "m1"}], "placement": {}}})
}

/// A binding by hand that names another namespace's Secret.
pub(crate) async fn binding_by_hand(stage: &Stage) -> Verdict {
    let member = stage.member().await;
    let path = format!("{WORK}/namespaces/tenant/resourcebindings");
    let uid =
        stage.plane.calm.get("root", "api/v1/namespaces/other/secrets/treasure").await.at("/metadata/uid");
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "namespace": "other", "name": "treasure", "uid": uid});
    let role =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "cluster-admin"});
    let first = stage.plane.door.post("editor", &path, &binding("treasure-secret", secret)).await;
    let second = stage.plane.door.post("editor", &path, &binding("cluster-admin-clusterrole", role)).await;
    // The editor may read the Namespace, and this name of one is the path of the Secret.
    let inside = "other/secrets/treasure";
    let inside = json!({"apiVersion": "v1", "kind": "Namespace", "namespace": "tenant", "name": inside});
    let third = stage.plane.door.post("editor", &path, &binding("treasure-namespace", inside)).await;
    let next = next_arrives(stage, "treasure").await;
    let works = stage.plane.calm.get("root", "apis/work.karmada.io/v1alpha1/works").await.text();
    let secrets = api(&member.client, "", "v1", "Secret", Some("other"));
    let propagated = secrets.get_opt("treasure").await.ok().flatten().is_some();
    for name in ["treasure-secret", "cluster-admin-clusterrole", "treasure-namespace"] {
        stage.plane.calm.send("root", "DELETE", &format!("{path}/{name}"), String::new()).await;
    }
    if propagated || works.contains(crate::plane::SECRET) || works.contains("\"cluster-admin\"") {
        return Err("what the editor may not read is on its way to the member".to_owned());
    }
    next?;
    Ok(format!("{}, {} and {}; not propagated", first.code, second.code, third.code))
}

/// A policy that selects what is in another namespace.
pub(crate) async fn policy_for_others(stage: &Stage) -> Verdict {
    let member = stage.member().await;
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": "greedy"},
        "spec": {"resourceSelectors": [{"apiVersion": "v1", "kind": "Secret", "namespace": "other", "name": "treasure"},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "cluster-admin"}], "placement": {}}});
    let made = stage.plane.door.post("tenant", &format!("{POLICY}/propagationpolicies"), &policy).await;
    let next = next_arrives(stage, "greedy").await;
    let secrets = api(&member.client, "", "v1", "Secret", Some("other"));
    let propagated = secrets.get_opt("treasure").await.ok().flatten().is_some();
    stage
        .plane
        .calm
        .send("root", "DELETE", &format!("{POLICY}/propagationpolicies/greedy"), String::new())
        .await;
    if propagated {
        return Err("another tenant's Secret is in the member".to_owned());
    }
    next?;
    Ok(made.brief())
}

/// Works and execution namespaces are the control plane's.
pub(crate) async fn works_by_hand(stage: &Stage) -> Verdict {
    stage.member().await;
    let work = json!({"apiVersion": "work.karmada.io/v1alpha1", "kind": "Work", "metadata": {"name": "mine"},
        "spec": {"workload": {"manifests": [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "planted"}}]}}});
    for who in ["editor", "tenant"] {
        stage
            .plane
            .door
            .post(who, "apis/work.karmada.io/v1alpha1/namespaces/karmada-es-m1/works", &work)
            .await
            .one_of(&[403])?;
    }
    let clusterwide = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterPropagationPolicy", "metadata": {"name": "mine"},
        "spec": {"resourceSelectors": [{"apiVersion": "v1", "kind": "Secret"}], "placement": {}}});
    stage
        .plane
        .door
        .post("tenant", "apis/policy.karmada.io/v1alpha1/clusterpropagationpolicies", &clusterwide)
        .await
        .one_of(&[403])
}

/// Policies whose lists are long and whose numbers are at the edge.
pub(crate) async fn large_policies(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let names: Vec<String> = (0..30_000).map(|n| format!("cluster-{n}")).collect();
    let placements = [
        json!({"clusterAffinity": {"clusterNames": names}}),
        json!({"clusterAffinity": {"labelSelector": {"matchExpressions": (0..5_000).map(|n| json!({"key": format!("k{n}"), "operator": "In", "values": ["a"]})).collect::<Vec<_>>()}}}),
        json!({"spreadConstraints": [{"spreadByField": "cluster", "maxGroups": i64::MAX, "minGroups": i64::MIN}]}),
        json!({"replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
            "weightPreference": {"staticWeightList": [{"targetCluster": {}, "weight": i64::MAX}, {"targetCluster": {}, "weight": i64::MAX}]}}}),
        json!({"clusterTolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": i64::MAX}]}),
    ];
    for (number, placement) in placements.into_iter().enumerate() {
        let name = format!("large-{number}");
        let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": name},
            "spec": {"resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": name}], "placement": placement}});
        let made = door.post("tenant", &format!("{POLICY}/propagationpolicies"), &policy).await;
        if made.code != 201 {
            made.refused().map_err(|seen| format!("{number}: {seen}"))?;
            continue;
        }
        let labels = json!({"matchLabels": {"app": name}});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {"replicas": i32::MAX,
            "selector": labels, "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
        door.post("tenant", "apis/apps/v1/namespaces/tenant/deployments", &deployment)
            .await
            .one_of(&[201, 422])?;
        let path = format!("{WORK}/namespaces/tenant/resourcebindings/{name}-deployment");
        let judged =
            stage.plane.calm.until("root", &path, |answer| answer.text().contains("\"Scheduled\"")).await;
        if !judged.text().contains("\"Scheduled\"") {
            return Err(format!("policy {number} is never judged"));
        }
        door.send(
            "tenant",
            "DELETE",
            &format!("apis/apps/v1/namespaces/tenant/deployments/{name}"),
            String::new(),
        )
        .await;
        door.send("tenant", "DELETE", &format!("{POLICY}/propagationpolicies/{name}"), String::new()).await;
    }
    Ok("refused or judged".to_owned())
}
