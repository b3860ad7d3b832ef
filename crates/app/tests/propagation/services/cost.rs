//! What a change of an endpoint costs does not grow with the number of Services.

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testkit::{at, until};

use super::{SERVICE_NAME, multi, services, slices};
use crate::members::{Access, Members};
use crate::world::World;

/// Services that are made at once.
const AT_ONCE: usize = 8;

/// One endpoint changes: what is written for it, anywhere, does not depend on how many other Services there are.
#[tokio::test(flavor = "multi_thread")]
async fn requests_per_change_do_not_grow_with_the_number_of_services() {
    testkit::install_tls();
    let Some(members) = Members::simulated(Access::Exclusive, 3).await else { return };
    let world = World::of_services("count", &members).await;
    let mut written = Vec::new();
    for numbers in [0..10, 10..100] {
        let offers: Vec<_> = numbers.map(|number| offer(&world, number)).collect();
        stream::iter(offers).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
        world.check().await;
        let before = world.written();
        let address = format!("10.9.9.{}", written.len() + 1);
        let slice = Patch::Merge(json!({"endpoints": [{"addresses": [address]}]}));
        let patched = world.in_member(0, &slices()).patch("s0-own", &PatchParams::default(), &slice).await;
        patched.expect("an endpoint changes");
        world.until_brought(0, &address).await;
        world.check().await;
        let mut difference = world.written();
        for (what, count) in before {
            difference.entry(what).and_modify(|all| *all -= count);
        }
        difference.retain(|_, count| *count > 0);
        written.push(difference);
    }
    println!("writes per change, with 10 Services: {:?}", written[0]);
    assert_eq!(written[0], written[1], "with ten Services, and with a hundred");
    // One for what was collected; for each consumer its Work, and what became of it.
    let sum: usize = written[0].values().sum();
    assert!((3..=1 + 2 * 2).contains(&sum), "{:?}", written[0]);
    world.leave().await;
}

/// Makes a Service whose only endpoint is in the first member, for all clusters.
async fn offer(world: &World, number: usize) {
    let name = format!("s{number}");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"ports": [{"name": "http", "port": 80}]}});
    world.create(&services(), service).await;
    let made = json!({"apiVersion": "networking.karmada.io/v1alpha1", "kind": "MultiClusterService",
        "metadata": {"name": name}, "spec": {"types": ["CrossCluster"]}});
    world.create(&multi(), made).await;
    let there = world.in_member(0, &services());
    until(&there, &name, "it is brought to the provider", |found| found.is_some()).await;
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{name}-own"), "labels": {SERVICE_NAME: name}},
        "endpoints": [{"addresses": ["10.9.0.1"]}], "ports": [{"name": "http", "port": 80}]});
    let slice: DynamicObject = serde_json::from_value(slice).expect("a slice");
    world.in_member(0, &slices()).create(&PostParams::default(), &slice).await.expect("a slice");
    world.until_brought(number, "10.9.0.1").await;
}

impl World {
    /// Waits until both consumers have this address of a Service.
    async fn until_brought(&self, number: usize, address: &str) {
        let slice = format!("{}-s{number}-own", self.members[0].name);
        for member in [1, 2] {
            until(&self.in_member(member, &slices()), &slice, "its endpoint arrives", |found| {
                at(found, "/endpoints/0/addresses/0") == Some(json!(address))
            })
            .await;
        }
    }

    /// Returns how often controllers have written what about Services into the control plane: verb, kind and part.
    fn written(&self) -> BTreeMap<String, usize> {
        let site = self.control.site(self.plane.clone());
        let text: String =
            site.logs.iter().map(|log| std::fs::read_to_string(log).expect("an audit log")).collect();
        let entry = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            let (object, user) = (&line["objectRef"], line["user"]["username"].as_str()?);
            let resource = object["resource"].as_str()?;
            let counts = ["works", "endpointslices", "resourcebindings", "multiclusterservices", "services"];
            let part = object["subresource"].as_str().unwrap_or("");
            let written = format!("{} {resource} {part}", line["verb"].as_str()?);
            (user.ends_with(&site.writer) && counts.contains(&resource)).then_some(written)
        };
        let mut all = BTreeMap::new();
        for written in text.lines().filter_map(entry) {
            *all.entry(written).or_default() += 1;
        }
        all
    }
}
