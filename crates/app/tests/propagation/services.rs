//! Services across clusters: endpoints are where they are wanted. In which order things come and go is in `orders`, what a change
//! costs in `cost`, two families of addresses in `families`.

mod cost;
mod families;
mod orders;

use apimachinery::patch::merge;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use testkit::{Kind, at, condition, eventually, until, until_gone};

use crate::members::{Members, on_real_and_simulated_members};
use crate::plane::ControlPlane;
use crate::world::World;

on_real_and_simulated_members! {
    an_exported_service_is_reached_from_where_it_is_imported(Exclusive, 3);
    a_multi_cluster_service_follows_its_endpoints_and_its_clusters(Exclusive, 3);
}

/// What members go through is noticed within seconds, and everything of services runs.
const QUICK: [&str; 4] = [
    "--feature-gates=MultiClusterService=true",
    "--cluster-status-update-frequency=1s",
    "--cluster-success-threshold=1s",
    "--cluster-failure-threshold=1s",
];
const CONTROLLERS: &str = "*,-unifiedAuth,multiClusterIngress";
const SERVICE_NAME: &str = "kubernetes.io/service-name";

fn core(kind: &str, plural: &str) -> Kind {
    Kind::namespaced("", "v1", kind, plural)
}

fn services() -> Kind {
    core("Service", "services")
}

fn deployments() -> Kind {
    Kind::namespaced("apps", "v1", "Deployment", "deployments")
}

fn slices() -> Kind {
    Kind::namespaced("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
}

fn policies() -> Kind {
    Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies")
}

fn exports() -> Kind {
    Kind::namespaced("multicluster.x-k8s.io", "v1alpha1", "ServiceExport", "serviceexports")
}

fn imports() -> Kind {
    Kind::namespaced("multicluster.x-k8s.io", "v1alpha1", "ServiceImport", "serviceimports")
}

fn multi() -> Kind {
    Kind::namespaced("networking.karmada.io", "v1alpha1", "MultiClusterService", "multiclusterservices")
}

fn clusters() -> Kind {
    Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters")
}

fn deployment(replicas: u32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "nginx"}]}}}})
}

fn service(otherwise: Value) -> Value {
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [
            {"name": "http", "port": 80, "targetPort": 8080}, {"name": "metrics", "port": 9090}]}});
    merge::apply(&mut service, otherwise);
    service
}

fn export() -> Value {
    json!({"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceExport", "metadata": {"name": "web"}})
}

fn import() -> Value {
    json!({"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImport", "metadata": {"name": "web"},
        "spec": {"type": "ClusterSetIP", "ports": [
            {"name": "http", "port": 80, "protocol": "TCP"}, {"name": "metrics", "port": 9090, "protocol": "TCP"}]}})
}

/// An EndpointSlice in a member, as far as it counts here: its name and its addresses.
type Found = Vec<(String, Vec<String>)>;

impl World {
    /// A world whose members know ServiceExports and ServiceImports.
    async fn of_services(tag: &str, members: &Members) -> Self {
        let control = ControlPlane::with(CONTROLLERS, &QUICK);
        let world = Self::joined(tag, control, &members.places(), &["--install-mcs-crds"]).await;
        world.until_they_know_exports().await;
        world
    }

    async fn until_they_know_exports(&self) {
        for member in &self.members {
            until(&self.in_plane(&clusters()), &member.name, "it serves what it was given", |found| {
                found.is_some_and(|found| {
                    found.data["status"]["apiEnablements"].to_string().contains("ServiceExport")
                })
            })
            .await;
        }
    }

    /// A policy that brings objects of one kind to some of the members.
    async fn policy(&self, name: &str, (api_version, kind): (&str, &str), members: &[usize]) {
        let names: Vec<&str> = members.iter().map(|index| self.members[*index].name.as_str()).collect();
        let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": name}, "spec": {
                "resourceSelectors": [{"apiVersion": api_version, "kind": kind}],
                "placement": {"clusterAffinity": {"clusterNames": names}}}});
        self.create(&policies(), policy).await;
    }

    async fn remove(&self, kind: &Kind, name: &str) {
        self.in_plane(kind).delete(name, &DeleteParams::default()).await.expect("it is deleted");
        until_gone(&self.in_plane(kind), name, "it is gone").await;
    }

    /// Returns the slices of a Service in a member that we brought there, or those of its own.
    async fn slices(&self, member: usize, service: &str, ours: bool) -> Found {
        let sign = if ours { "in" } else { "notin" };
        let who = "(endpointslice-controller.karmada.io,endpointslice-dispatch-controller.karmada.io)";
        let selection =
            format!("{SERVICE_NAME}={service},endpointslice.kubernetes.io/managed-by {sign} {who}");
        let listed = self.in_member(member, &slices()).list(&ListParams::default().labels(&selection)).await;
        let addresses = |slice: &DynamicObject| {
            let endpoints = slice.data["endpoints"].as_array().cloned().unwrap_or_default();
            let mut all: Vec<String> =
                endpoints.iter().filter_map(|one| one["addresses"][0].as_str().map(str::to_owned)).collect();
            all.sort();
            all
        };
        let mut found: Found = listed
            .expect("slices")
            .items
            .iter()
            .map(|slice| (slice.metadata.name.clone().unwrap_or_default(), addresses(slice)))
            .collect();
        found.sort();
        found
    }

    /// Waits until a member has exactly the slices of these other members for a Service, under this name and no other.
    async fn until_reached(&self, member: usize, name: &str, from: &[usize], endpoints: usize) {
        eventually(
            format!("member {member} has {name} of {from:?} with {endpoints} endpoints each"),
            async || {
                let mut wanted: Found = Vec::new();
                for source in from {
                    let cluster = &self.members[*source].name;
                    let prefix =
                        if name == "web" { format!("{cluster}-") } else { format!("imported-{cluster}-") };
                    for (slice, addresses) in self.slices(*source, "web", false).await {
                        if addresses.len() != endpoints {
                            return Err(format!("{cluster} itself has {addresses:?}"));
                        }
                        wanted.push((format!("{prefix}{slice}"), addresses));
                    }
                }
                wanted.sort();
                // A cluster without pods offers a slice without endpoints.
                let mut found = self.slices(member, name, true).await;
                found.retain(|(_, addresses)| !addresses.is_empty());
                if found == wanted && wanted.len() >= from.len() {
                    Ok(())
                } else {
                    Err(format!("{found:?}, wanted {wanted:?}"))
                }
            },
        )
        .await;
    }

    /// Waits until pods run behind the Service in a member.
    async fn until_running(&self, member: usize, count: u64) {
        until(&self.in_member(member, &deployments()), "web", "its pods run", |found| {
            found.and_then(|found| found.data["status"]["readyReplicas"].as_u64()) == Some(count)
        })
        .await;
    }

    async fn until_cluster_is(&self, member: usize, ready: &str) {
        until(&self.in_plane(&clusters()), &self.members[member].name, "its readiness is known", |found| {
            condition(found, "Ready") == Some(ready)
        })
        .await;
    }
}

async fn an_exported_service_is_reached_from_where_it_is_imported(members: Members) {
    let world = World::of_services("export", &members).await;
    world.policy("workload", ("apps/v1", "Deployment"), &[0, 1]).await;
    world.policy("services", ("v1", "Service"), &[0, 1]).await;
    world.policy("exports", ("multicluster.x-k8s.io/v1alpha1", "ServiceExport"), &[0, 1]).await;
    world.policy("imports", ("multicluster.x-k8s.io/v1alpha1", "ServiceImport"), &[2]).await;
    world.create(&deployments(), deployment(2)).await;
    world.create(&services(), service(json!({}))).await;
    world.create(&imports(), import()).await;
    world.create(&exports(), export()).await;
    world.until_reached(2, "derived-web", &[0, 1], 2).await;
    let derived = world.in_member(2, &services()).get("derived-web").await.expect("a derived Service");
    let ports: Vec<(&Value, &Value)> = derived.data["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|port| (&port["name"], &port["port"]))
        .collect();
    assert_eq!(ports, [(&json!("http"), &json!(80)), (&json!("metrics"), &json!(9090))]);
    assert_eq!(
        world.slices(1, "derived-web", true).await,
        [],
        "nothing is brought where nothing was imported"
    );
    world.check().await;

    traffic_comes_in_where_the_annotation_says(&world).await;

    // Endpoints follow the pods.
    world.patch(&deployments(), "web", &json!({"spec": {"replicas": 3}})).await;
    world.until_reached(2, "derived-web", &[0, 1], 3).await;

    // A cluster that is lost takes its endpoints with it, and brings them back.
    members.cut_off(0).await;
    world.until_cluster_is(0, "False").await;
    world.until_reached(2, "derived-web", &[1], 3).await;
    members.heal(0).await;
    world.until_cluster_is(0, "True").await;
    world.until_reached(2, "derived-web", &[0, 1], 3).await;
    world.check().await;

    // What is not exported any more goes, and what is not imported any more goes, too.
    world.remove(&exports(), "web").await;
    world.until_reached(2, "derived-web", &[], 0).await;
    world.create(&exports(), export()).await;
    world.until_reached(2, "derived-web", &[0, 1], 3).await;
    world.remove(&imports(), "web").await;
    until_gone(&world.in_member(2, &services()), "derived-web", "it goes with its import").await;
    until_gone(&world.in_plane(&services()), "derived-web", "it goes in the control plane, too").await;
    world.until_reached(2, "derived-web", &[], 0).await;
    world.remove(&exports(), "web").await;
    world.leave().await;
}

/// The third member takes traffic for what runs in the other two.
async fn traffic_comes_in_where_the_annotation_says(world: &World) {
    let ingresses = Kind::namespaced("networking.k8s.io", "v1", "Ingress", "ingresses");
    let multi =
        Kind::namespaced("networking.karmada.io", "v1alpha1", "MultiClusterIngress", "multiclusteringresses");
    let rules = |host: &str| {
        json!([{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix",
            "backend": {"service": {"name": "web", "port": {"name": "http"}}}}]}}])
    };
    let made = json!({"apiVersion": "networking.karmada.io/v1alpha1", "kind": "MultiClusterIngress",
        "metadata": {"name": "shop", "annotations": {"networking.karmada.io/entry-clusters": world.members[2].name}},
        "spec": {"rules": rules("shop.example.com")}});
    world.create(&multi, made).await;
    let found =
        until(&world.in_member(2, &ingresses), "shop", "it is in its entry cluster", |found| found.is_some())
            .await;
    let backend = at(found.as_ref(), "/spec/rules/0/http/paths/0/backend/service/name");
    assert_eq!(backend, Some(json!("derived-web")));
    assert!(world.in_member(0, &ingresses).get_opt("shop").await.expect("an answer").is_none());
    // Before anybody else has written the Ingress, which would give it a new version as well.
    world.patch(&multi, "shop", &json!({"spec": {"rules": rules("new.example.com")}})).await;
    until(&world.in_member(2, &ingresses), "shop", "its new host is there", |found| {
        at(found, "/spec/rules/0/host") == Some(json!("new.example.com"))
    })
    .await;
    // What an ingress controller there would say.
    let address = Patch::Merge(json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}}));
    let told = world.in_member(2, &ingresses).patch_status("shop", &PatchParams::default(), &address).await;
    told.expect("an address");
    let found = until(&world.in_plane(&multi), "shop", "its address comes back", |found| {
        at(found, "/status/loadBalancer/ingress/0/ip") == Some(json!("192.0.2.7"))
    })
    .await;
    let located = at(found.as_ref(), "/status/serviceLocations/0/clusters");
    assert_eq!(located, Some(json!([world.members[0].name, world.members[1].name])));
    world.check().await;
    world.remove(&multi, "shop").await;
    until_gone(&world.in_member(2, &ingresses), "shop", "it goes with its MultiClusterIngress").await;
}

async fn a_multi_cluster_service_follows_its_endpoints_and_its_clusters(members: Members) {
    let world = World::of_services("multi", &members).await;
    world.policy("workload", ("apps/v1", "Deployment"), &[0, 1]).await;
    world.create(&deployments(), deployment(2)).await;
    // A headless Service has endpoints, too.
    world.create(&services(), service(json!({"spec": {"clusterIP": "None"}}))).await;
    let named = |members: &[usize]| -> Value {
        members.iter().map(|index| json!({"name": world.members[*index].name})).collect()
    };
    let made = json!({"apiVersion": "networking.karmada.io/v1alpha1", "kind": "MultiClusterService",
        "metadata": {"name": "web"}, "spec": {"types": ["CrossCluster"],
            "providerClusters": named(&[0, 1]), "consumerClusters": named(&[1, 2])}});
    world.create(&multi(), made.clone()).await;
    world.until_reached(2, "web", &[0, 1], 2).await;
    world.until_reached(1, "web", &[0], 2).await;
    until(&world.in_plane(&multi()), "web", "both conditions are true", |found| {
        condition(found, "ServiceApplied") == Some("True")
            && condition(found, "EndpointSliceDispatched") == Some("True")
    })
    .await;
    world.check().await;

    members.cut_off(0).await;
    world.until_cluster_is(0, "False").await;
    world.until_reached(2, "web", &[1], 2).await;
    members.heal(0).await;
    world.until_cluster_is(0, "True").await;
    world.until_reached(2, "web", &[0, 1], 2).await;

    let turned = json!({"spec": {"providerClusters": named(&[1]), "consumerClusters": named(&[0])}});
    world.patch(&multi(), "web", &turned).await;
    world.until_reached(0, "web", &[1], 2).await;
    world.until_reached(2, "web", &[], 0).await;
    world.check().await;

    // A cluster that does not exist is told of; one that is nobody's is empty.
    let nowhere = json!({"spec": {"consumerClusters": [{"name": "nowhere"}]}});
    world.patch(&multi(), "web", &nowhere).await;
    world.until_reached(0, "web", &[], 0).await;
    let events = core("Event", "events");
    eventually("users are told of the cluster that is missing", async || {
        let listed =
            world.in_plane(&events).list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let told = |event: &DynamicObject| {
            event.data["reason"] == "ClusterNotFound"
                && event.data["message"].as_str().is_some_and(|message| message.contains("nowhere"))
        };
        if listed.items.iter().any(told) { Ok(()) } else { Err("no such event".to_owned()) }
    })
    .await;

    // All clusters, and then none: the endpoints go, the Service stays where it is.
    let all = json!({"spec": {"providerClusters": null, "consumerClusters": null}});
    world.patch(&multi(), "web", &all).await;
    world.until_reached(2, "web", &[0, 1], 2).await;
    world.until_reached(0, "web", &[1], 2).await;
    world.remove(&multi(), "web").await;
    for member in 0..3 {
        world.until_reached(member, "web", &[], 0).await;
    }
    world.check().await;
    // Nothing of it holds the Service any more: a policy takes it over.
    world.policy("services", ("v1", "Service"), &[0]).await;
    until_gone(&world.in_member(2, &services()), "web", "the policy does not name this cluster").await;
    world.check().await;
    world.remove(&services(), "web").await;
    until_gone(&world.in_member(0, &services()), "web", "it goes with its template").await;
    world.leave().await;
}
