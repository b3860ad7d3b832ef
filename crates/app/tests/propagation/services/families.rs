//! Services of both families of addresses: each family reaches the clusters that want it, by slices of its own, and no cluster gets a
//! Service of which it would refuse a family. On simulated members: the real ones have one family.

use kube::api::{DynamicObject, ListParams};
use serde_json::{Value, json};
use testkit::{eventually, until};

use super::{CONTROLLERS, QUICK, SERVICE_NAME, deployment, deployments, multi, service, services, slices};
use crate::members::Members;
use crate::plane::ControlPlane;
use crate::world::World;

const RANGES: &str = "--service-cluster-ip-range=10.96.0.0/12,fd00:10:96::/112";

fn texts(found: Option<&DynamicObject>, field: &str) -> Vec<String> {
    let list = found.and_then(|found| found.data["spec"][field].as_array()).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

impl World {
    /// Waits until the Service in a member has these families, and an address of each.
    async fn until_of(&self, member: usize, families: &[&str]) {
        let what = format!("the Service of member {member} has {families:?}");
        until(&self.in_member(member, &services()), "web", what, |found| {
            texts(found, "ipFamilies") == families && texts(found, "clusterIPs").len() == families.len()
        })
        .await;
    }

    /// Waits until these slices were brought to a member: cluster and family of each, all with addresses of that family alone.
    async fn until_sliced(&self, member: usize, wanted: &[(usize, &str)]) {
        let mut wanted: Vec<(String, String)> = wanted
            .iter()
            .map(|(from, family)| (self.members[*from].name.clone(), (*family).to_owned()))
            .collect();
        wanted.sort();
        let selection = format!(
            "{SERVICE_NAME}=web,endpointslice.kubernetes.io/managed-by=endpointslice-dispatch-controller.karmada.io"
        );
        eventually(format!("member {member} has slices of {wanted:?}"), async || {
            let listed =
                self.in_member(member, &slices()).list(&ListParams::default().labels(&selection)).await;
            let mut found = Vec::new();
            for slice in listed.map_err(|error| error.to_string())?.items {
                let family = slice.data["addressType"].as_str().unwrap_or_default().to_owned();
                let endpoints = slice.data["endpoints"].as_array().cloned().unwrap_or_default();
                let fits = |endpoint: &Value| {
                    let address = endpoint["addresses"][0].as_str().unwrap_or_default();
                    (family == "IPv6") == address.contains(':')
                };
                if !endpoints.iter().all(fits) || endpoints.is_empty() {
                    return Err(format!("{family} with {endpoints:?}"));
                }
                let name = slice.metadata.name.unwrap_or_default();
                let from = self.members.iter().find(|one| name.starts_with(&format!("{}-", one.name)));
                found.push((from.map_or(name.clone(), |from| from.name.clone()), family));
            }
            found.sort();
            if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }
}

/// Two clusters have both families, the second one has IPv4 only.
async fn prefer_both(tag: &str, more: &[&str], in_plane: &[&str]) {
    testkit::install_tls();
    let members = Members::of_families(&[true, false, true]).await;
    let control = ControlPlane::with(CONTROLLERS, &[&QUICK[..], more].concat());
    let world = World::joined(tag, control, &members.places(), &["--install-mcs-crds"]).await;
    world.policy("workload", ("apps/v1", "Deployment"), &[0, 1]).await;
    world.create(&deployments(), deployment(2)).await;
    world.create(&services(), service(json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}}))).await;
    let template = world.in_plane(&services()).get("web").await.expect("a Service");
    assert_eq!(texts(Some(&template), "ipFamilies"), in_plane);
    let named = |members: &[usize]| -> Value {
        members.iter().map(|index| json!({"name": world.members[*index].name})).collect()
    };
    let made = json!({"apiVersion": "networking.karmada.io/v1alpha1", "kind": "MultiClusterService",
        "metadata": {"name": "web"}, "spec": {"types": ["CrossCluster"],
            "providerClusters": named(&[0, 1]), "consumerClusters": named(&[1, 2])}});
    world.create(&multi(), made).await;

    let both = ["IPv4", "IPv6"];
    world.until_of(0, &both).await;
    world.until_of(1, &["IPv4"]).await;
    world.until_of(2, &both).await;
    world.until_sliced(2, &[(0, "IPv4"), (0, "IPv6"), (1, "IPv4")]).await;
    world.until_sliced(1, &[(0, "IPv4"), (0, "IPv6")]).await;
    world.until_reached(2, "web", &[0, 1], 2).await;
    world.check().await;

    // Endpoints of both families follow the pods.
    world.patch(&deployments(), "web", &json!({"spec": {"replicas": 3}})).await;
    world.until_reached(2, "web", &[0, 1], 3).await;

    // A change of something else reaches every member, whatever it has made of the preference.
    world.patch(&services(), "web", &json!({"spec": {"sessionAffinity": "ClientIP"}})).await;
    for (member, families) in [(0, &both[..]), (1, &both[..1]), (2, &both[..])] {
        until(&world.in_member(member, &services()), "web", "the change is there", |found| {
            found.is_some_and(|found| found.data["spec"]["sessionAffinity"] == "ClientIP")
        })
        .await;
        world.until_of(member, families).await;
    }
    world.check().await;

    // One family is given up, and its slices go everywhere.
    world.patch(&services(), "web", &json!({"spec": {"ipFamilyPolicy": "SingleStack"}})).await;
    for member in 0..3 {
        world.until_of(member, &["IPv4"]).await;
    }
    world.until_sliced(2, &[(0, "IPv4"), (1, "IPv4")]).await;
    world.until_sliced(1, &[(0, "IPv4")]).await;
    world.until_reached(2, "web", &[0, 1], 3).await;
    world.check().await;
    world.remove(&multi(), "web").await;
    world.remove(&services(), "web").await;
    world.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_families_reach_who_has_them() {
    prefer_both("families", &[RANGES], &["IPv4", "IPv6"]).await;
}

/// The control plane itself has one family, and hands the preference on.
#[tokio::test(flavor = "multi_thread")]
async fn a_preference_comes_true_in_the_members_that_can() {
    prefer_both("preference", &[], &["IPv4"]).await;
}
