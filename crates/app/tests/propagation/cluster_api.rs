//! Clusters that cluster-api provisions become members, and leave with their objects. The management cluster is another
//! server of ours with cluster-api's definition; what it "provisions" is a simulated cluster.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testkit::check::{self, Site, check};
use testkit::{Kind, Server, client, condition, eventually, install_tls, object, until, until_gone};

use crate::members::{Access, Members, Place};
use crate::plane::{ControlPlane, KARMADA};

const NAMESPACE: &str = "capi";
const JOINED_FOR: &str = "clusterapi.karmada.io/joined-for";

fn member_clusters(plane: &Client) -> Api<DynamicObject> {
    Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters").api(plane.clone(), "")
}

/// A management cluster of cluster-api, without the controllers that provision.
struct Management {
    server: Server,
    client: Client,
}

impl Management {
    async fn start() -> Self {
        let server = Server::start(KARMADA, &["--controllers", ""]);
        let management = Self { client: server.client().await, server };
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let namespaces = Kind::cluster("", "v1", "Namespace", "namespaces");
        management.create(&namespaces, namespace).await;
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "clusters.cluster.x-k8s.io"},
            "spec": {
                "group": "cluster.x-k8s.io", "scope": "Namespaced",
                "names": {"plural": "clusters", "singular": "cluster", "kind": "Cluster", "listKind": "ClusterList"},
                "versions": [{
                    "name": "v1beta1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        });
        management.create(&Kind::definition(), definition).await;
        let definitions = Kind::definition().api(management.client.clone(), "");
        until(&definitions, "clusters.cluster.x-k8s.io", "the definition is established", |found| {
            condition(found, "Established") == Some("True")
        })
        .await;
        management
    }

    async fn create(&self, kind: &Kind, value: Value) {
        let api = kind.api(self.client.clone(), NAMESPACE);
        let text = value.to_string();
        if let Err(error) = api.create(&PostParams::default(), &object(value)).await {
            panic!("{text}: {error}");
        }
    }

    fn clusters(&self) -> Api<DynamicObject> {
        let kind = Kind::namespaced("cluster.x-k8s.io", "v1beta1", "Cluster", "clusters");
        kind.api(self.client.clone(), NAMESPACE)
    }

    /// Asks for a cluster; it has a kubeconfig, and nothing provisions it.
    async fn ask_for(&self, name: &str, kubeconfig: &str) {
        let kind = Kind::namespaced("cluster.x-k8s.io", "v1beta1", "Cluster", "clusters");
        let cluster = json!({"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster",
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"paused": false}});
        self.create(&kind, cluster).await;
        let mut secret = Secret {
            type_: Some("cluster.x-k8s.io/secret".to_owned()),
            data: Some([("value".to_owned(), ByteString(kubeconfig.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        secret.metadata.name = Some(format!("{name}-kubeconfig"));
        let secrets = Api::<Secret>::namespaced(self.client.clone(), NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await.expect("a Secret");
        self.is(name, "Provisioning").await;
    }

    /// Puts a cluster into a phase, as cluster-api's controllers do.
    async fn is(&self, name: &str, phase: &str) {
        let status = Patch::Merge(json!({"status": {"phase": phase}}));
        self.clusters().patch_status(name, &PatchParams::default(), &status).await.expect("a phase");
    }

    async fn delete(&self, name: &str) {
        self.clusters().delete(name, &DeleteParams::default()).await.expect("deleted");
    }

    /// Waits for an event about a cluster; returns its message.
    async fn event(&self, name: &str, reason: &str) -> String {
        let events = Api::<Event>::namespaced(self.client.clone(), NAMESPACE);
        eventually(format!("the event {reason} about {name}"), async || {
            let all = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let found = all.iter().find(|event| {
                event.reason.as_deref() == Some(reason) && event.involved_object.name.as_deref() == Some(name)
            });
            let seen = || format!("{:?}", all.iter().map(|event| &event.message).collect::<Vec<_>>());
            found.map(|event| event.message.clone().unwrap_or_default()).ok_or_else(seen)
        })
        .await
    }

    fn control_plane(&self) -> ControlPlane {
        let kubeconfig = self.server.kubeconfig().display().to_string();
        ControlPlane::with("*", &["--cluster-api-kubeconfig", &kubeconfig])
    }
}

async fn until_ready(plane: &Client, name: &str) -> DynamicObject {
    let clusters = member_clusters(plane);
    until(&clusters, name, "a provisioned cluster is a ready member", |found| {
        condition(found, "Ready") == Some("True")
    })
    .await
    .expect("it is there")
}

/// Fails unless the control plane and these clusters, also those that have left it, keep the laws of every world.
async fn keeps_laws(control: &ControlPlane, plane: &Client, clusters: &[(&str, &Place)]) {
    let mut members = Vec::new();
    for (name, place) in clusters {
        let logs = place.audit_log.iter().cloned().collect();
        members.push(Site::member(name, client(&place.kubeconfig).await, logs));
    }
    let controllers = control.controllers().to_owned();
    check(&check::World { plane: control.site(plane.clone()), members, controllers }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provisioned_cluster_becomes_a_member_and_leaves_with_its_object() {
    install_tls();
    let members = Members::simulated(Access::Exclusive, 1).await.expect("simulated members");
    let place = members.places().remove(0);
    let kubeconfig = std::fs::read_to_string(&place.kubeconfig).expect("a kubeconfig");
    let management = Management::start().await;
    let control = management.control_plane();
    let plane = client(&control.kubeconfig).await;

    management.ask_for("provided", &kubeconfig).await;
    // Provisioned later, and told of: by then the first one has been looked at, too, and was left alone.
    let marker = tempfile::tempdir().expect("a folder");
    let made = marker.path().join("made");
    let exec = format!(
        "current-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
         clusters: [{{name: a, cluster: {{server: 'https://127.0.0.1:1'}}}}]\n\
         users: [{{name: a, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: touch, \
         args: ['{}'], interactiveMode: Never}}}}}}]\n",
        made.display()
    );
    management.ask_for("hostile", &exec).await;
    management.is("hostile", "Provisioned").await;
    let told = management.event("hostile", "NotJoinedToKarmada").await;
    assert!(told.contains("it wants a program to be run (exec)"), "{told}");
    assert!(!made.exists(), "nothing was run");
    let joined = member_clusters(&plane).list(&ListParams::default()).await.expect("a list").items;
    assert!(joined.is_empty(), "nothing is provisioned that can be joined: {joined:?}");

    management.is("provided", "Provisioned").await;
    let cluster = until_ready(&plane, "provided").await;
    let origin = cluster.metadata.annotations.and_then(|notes| notes.get(JOINED_FOR).cloned());
    assert!(origin.as_deref().is_some_and(|origin| origin.contains("/capi/provided/")), "{origin:?}");
    assert_eq!(cluster.data["spec"]["syncMode"], "Push");
    assert!(management.event("provided", "JoinedToKarmada").await.contains("provided"));

    keeps_laws(&control, &plane, &[("provided", &place)]).await;

    management.delete("hostile").await;
    management.delete("provided").await;
    until_gone(&member_clusters(&plane), "provided", "it leaves with its object").await;
    let secrets = Api::<Secret>::namespaced(plane.clone(), "karmada-cluster");
    until_gone(&secrets, "provided", "its credentials leave with it").await;
    assert!(!made.exists(), "nothing was run");
    keeps_laws(&control, &plane, &[("provided", &place)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_was_deleted_while_nobody_looked_leaves_and_others_stay() {
    install_tls();
    let members = Members::simulated(Access::Exclusive, 2).await.expect("simulated members");
    let places = members.places();
    let management = Management::start().await;
    let mut control = management.control_plane();
    let plane = client(&control.kubeconfig).await;
    for (name, place) in ["going", "staying"].into_iter().zip(&places) {
        let kubeconfig = std::fs::read_to_string(&place.kubeconfig).expect("a kubeconfig");
        management.ask_for(name, &kubeconfig).await;
        management.is(name, "Provisioned").await;
        until_ready(&plane, name).await;
    }
    let before = member_clusters(&plane).get("staying").await.expect("it is there").metadata.uid;

    control.kill();
    management.delete("going").await;
    control.start();
    let plane = client(&control.kubeconfig).await;
    until_gone(&member_clusters(&plane), "going", "what is gone leaves after a restart").await;
    let after = member_clusters(&plane).get("staying").await.expect("it is still there").metadata.uid;
    assert_eq!(after, before, "it was never taken out");
    keeps_laws(&control, &plane, &[("going", &places[0]), ("staying", &places[1])]).await;
}
