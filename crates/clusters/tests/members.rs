//! Members behave like clusters, break on demand, and heal.

use std::time::{Duration, Instant};

use clusters::{Cluster, Network, until};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Event, Namespace, Node, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

/// Generous: the machine may be busy with other builds.
const DEADLINE: Duration = Duration::from_secs(180);

/// For requests that must not be answered: long enough to be sure, short enough to wait for.
const SILENCE: Duration = Duration::from_secs(2);

fn deployment(name: &str, replicas: i32) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "web", "image": "nginx"}]},
            },
        },
    }))
    .expect("a Deployment by construction")
}

/// One request, on a connection of its own: none may be left over from before the trouble.
async fn answers(cluster: &Cluster) -> Result<(), String> {
    let client = cluster.client().await.map_err(|error| error.chain())?;
    client.apiserver_version().await.map(|_| ()).map_err(|error| chain(&error))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(&format!(": {source}"));
        next = source.source();
    }
    text
}

async fn ready_pods(client: &Client, namespace: &str) -> Result<usize, String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let list = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
    let is_ready = |pod: &Pod| {
        let conditions =
            pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    Ok(list.iter().filter(|pod| is_ready(pod)).count())
}

async fn create_config_map(client: &Client, namespace: &str, name: &str) -> kube::Result<ConfigMap> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let wanted =
        serde_json::from_value(json!({"metadata": {"name": name}})).expect("a ConfigMap by construction");
    config_maps.create(&PostParams::default(), &wanted).await
}

#[tokio::test]
async fn three_replicas_become_three_ready_pods_in_each_of_three_members() {
    let Some(members) = clusters::shared(3).await else { return };
    for member in members.iter() {
        let namespace = member.namespace("replicas").await.expect("namespace");
        let client = member.client().await.expect("client");
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace.name());
        deployments.create(&PostParams::default(), &deployment("web", 3)).await.expect("create");
        let became_ready = until("three ready pods", DEADLINE, async || {
            match ready_pods(&client, namespace.name()).await? {
                3 => Ok(()),
                count => Err(format!("{count} ready pods")),
            }
        })
        .await;
        if let Err(error) = became_ready {
            panic!("{error}\n{}", member.diagnose(namespace.name()).await);
        }
    }
}

#[tokio::test]
async fn members_know_nothing_of_each_other() {
    let Some(members) = clusters::shared(2).await else { return };
    let namespace = members[0].namespace("apart").await.expect("namespace");
    let elsewhere: Api<Namespace> = Api::all(members[1].client().await.expect("client"));
    assert!(elsewhere.get_opt(namespace.name()).await.expect("ask").is_none());

    // Not even their credentials fit: each has an authority of its own.
    let own = std::fs::read_to_string(members[0].kubeconfig()).expect("read");
    let other = std::fs::read_to_string(members[1].kubeconfig()).expect("read");
    let authority =
        |text: &str| text.lines().find(|line| line.contains("authority-data")).map(ToString::to_string);
    assert_ne!(authority(&own), authority(&other));
}

#[tokio::test]
async fn a_cut_off_member_refuses_and_answers_again_when_healed() {
    let Some(members) = clusters::exclusive(1).await else { return };
    let member = &members[0];
    answers(member).await.expect("before");
    member.cut_off().await.expect("cut off");
    let refused = answers(member).await.expect_err("it must not answer");
    assert!(refused.to_lowercase().contains("refused"), "{refused}");
    // The cluster itself is well: its own programs do not use the broken network.
    member.direct_client().await.expect("client").apiserver_version().await.expect("past the proxy");

    member.heal().await.expect("heal");
    answers(member).await.expect("after");
}

#[tokio::test]
async fn a_black_hole_answers_nothing_and_open_requests_go_on_afterwards() {
    let Some(members) = clusters::exclusive(1).await else { return };
    let member = &members[0];
    let client = member.client().await.expect("client");
    client.apiserver_version().await.expect("before");
    member.network(Network::Blackhole).await.expect("blackhole");
    let waiting = client.apiserver_version();
    tokio::pin!(waiting);
    if let Ok(answer) = tokio::time::timeout(SILENCE, &mut waiting).await {
        panic!("it answered: {answer:?}");
    }

    member.heal().await.expect("heal");
    tokio::time::timeout(DEADLINE, waiting).await.expect("in time").expect("the answer to the old request");
}

#[tokio::test]
async fn a_slow_member_answers_late() {
    let Some(members) = clusters::exclusive(1).await else { return };
    let member = &members[0];
    member.network(Network::Slow { delay_ms: 300 }).await.expect("slow");
    let before = Instant::now();
    answers(member).await.expect("an answer");
    // At least there and back once; TLS adds more round trips.
    assert!(before.elapsed() >= Duration::from_millis(600), "only {:?}", before.elapsed());
    member.heal().await.expect("heal");
}

#[tokio::test]
async fn a_paused_member_is_silent_until_resumed() {
    let Some(members) = clusters::exclusive(1).await else { return };
    let member = &members[0];
    member.pause().await.expect("pause");
    if let Ok(answer) = tokio::time::timeout(SILENCE, answers(member)).await {
        panic!("it answered: {answer:?}");
    }
    member.resume().await.expect("resume");
    until("an answer", DEADLINE, async || answers(member).await).await.expect("after");
}

#[tokio::test]
async fn a_killed_member_comes_back_with_its_data() {
    let Some(members) = clusters::exclusive(1).await else { return };
    let member = &members[0];
    let namespace = member.namespace("killed").await.expect("namespace");
    create_config_map(&member.client().await.expect("client"), namespace.name(), "kept")
        .await
        .expect("create");
    member.kill().await.expect("kill");
    answers(member).await.expect_err("it must not answer");
    assert_eq!(member.state().await.expect("state").components[0].pid, None);

    member.restart().await.expect("restart");
    let config_maps: Api<ConfigMap> =
        Api::namespaced(member.client().await.expect("client"), namespace.name());
    config_maps.get("kept").await.expect("the data is still there");
}

#[tokio::test]
async fn an_expired_certificate_is_rejected_until_it_is_renewed() {
    let Some(members) = clusters::exclusive(1).await else { return };
    let member = &members[0];
    member.expire_certificate().await.expect("expire");
    let rejected = answers(member).await.expect_err("nobody may trust it");
    assert!(rejected.to_lowercase().contains("expired"), "{rejected}");
    member.renew_certificate().await.expect("renew");
    answers(member).await.expect("after");
}

#[tokio::test]
async fn an_emptied_member_has_its_nodes_and_nothing_else() {
    let Some(members) = clusters::exclusive(1).await else { return };
    let member = &members[0];
    let namespace = member.namespace("emptied").await.expect("namespace");
    let (server, nodes_before) = (member.server().to_string(), node_names(member).await);
    member.restart_empty().await.expect("restart empty");

    let namespaces: Api<Namespace> =
        Api::all(member.client().await.expect("the old kubeconfig is still good"));
    assert!(namespaces.get_opt(namespace.name()).await.expect("ask").is_none());
    until("the nodes are back", DEADLINE, async || {
        let nodes = node_names(member).await;
        if nodes == nodes_before { Ok(()) } else { Err(format!("{nodes:?}")) }
    })
    .await
    .expect("the same nodes");
    assert_eq!(member.state().await.expect("state").server, server);
}

#[tokio::test]
async fn a_restored_member_has_what_it_had_and_its_revisions() {
    let Some(members) = clusters::exclusive(1).await else { return };
    let member = &members[0];
    let namespace = member.namespace("restored").await.expect("namespace");
    let client = member.client().await.expect("client");
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace.name());
    create_config_map(&client, namespace.name(), "before").await.expect("create");
    member.snapshot().await.expect("a snapshot");
    config_maps.delete("before", &DeleteParams::default()).await.expect("delete");
    create_config_map(&client, namespace.name(), "after").await.expect("create");
    let late = config_maps.get("after").await.expect("it is there").metadata.resource_version;

    member.restart_from_snapshot().await.expect("restart from the snapshot");
    let config_maps: Api<ConfigMap> =
        Api::namespaced(member.client().await.expect("the old kubeconfig is still good"), namespace.name());
    let before = config_maps.get("before").await.expect("it is there again");
    assert!(config_maps.get_opt("after").await.expect("ask").is_none());
    let revision = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok());
    assert!(revision(before.metadata.resource_version) < revision(late), "its past is the same");
    member.restart_empty().await.expect("back to the etcd of all");
    answers(member).await.expect("it works again");
}

#[tokio::test]
async fn a_test_that_breaks_a_member_leaves_it_in_order() {
    let Some(members) = clusters::exclusive(1).await else { return };
    let member = members[0].clone();
    member.cut_off().await.expect("cut off");
    member.kill().await.expect("kill");
    drop(members);
    let Some(_members) = clusters::shared(1).await else { return };
    answers(&member).await.expect("it works again");
}

#[tokio::test]
async fn diagnostics_show_objects_events_and_logs_even_when_cut_off() {
    let Some(members) = clusters::exclusive(1).await else { return };
    let member = &members[0];
    let namespace = member.namespace("diagnosed").await.expect("namespace");
    let client = member.client().await.expect("client");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace.name());
    deployments.create(&PostParams::default(), &deployment("shown", 1)).await.expect("create");
    until("a ready pod", DEADLINE, async || {
        if ready_pods(&client, namespace.name()).await? == 1 { Ok(()) } else { Err("none".to_string()) }
    })
    .await
    .expect("a pod");
    // Events are written in their own time.
    let events: Api<Event> = Api::namespaced(client.clone(), namespace.name());
    until("an event about the Deployment", DEADLINE, async || {
        let list = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let about = |event: &Event| event.involved_object.name.as_deref() == Some("shown");
        if list.items.iter().any(about) { Ok(()) } else { Err(format!("{} events", list.items.len())) }
    })
    .await
    .expect("an event");
    member.cut_off().await.expect("cut off");
    let report = member.diagnose(namespace.name()).await;
    for part in ["--- Deployment shown", "--- Event shown", "kube-apiserver.log", "kwok.log"] {
        assert!(report.contains(part), "no {part} in:\n{report}");
    }
}

async fn node_names(member: &Cluster) -> Vec<String> {
    let nodes: Api<Node> = Api::all(member.client().await.expect("client"));
    let list = nodes.list(&ListParams::default()).await.expect("list");
    list.items.into_iter().filter_map(|node| node.metadata.name).collect()
}
