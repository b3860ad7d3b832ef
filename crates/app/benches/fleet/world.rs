//! The control plane with its simulated clusters, and what is done with them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cli::{ControlArguments, JoinArguments};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::wait::await_condition;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};

use crate::processes::{Cost, Process};
use crate::support::client;
use crate::{Sizes, timed};

/// Requests of this program that are on their way at once.
const AT_ONCE: usize = 16;
const NAMESPACE: &str = "default";
/// Replicas of the divided Deployment in each cluster.
const EACH: usize = 2;
/// What is measured of the divided Deployment, in this order.
pub(crate) const DIVIDED: [&str; 3] =
    ["to the last cluster", "ready in the last cluster", "full status on the template"];

pub(crate) struct World {
    sizes: Sizes,
    server: Process,
    simulation: Process,
    dir: tempfile::TempDir,
    plane: kube::Client,
    members: Vec<kube::Client>,
}

impl World {
    /// Starts both processes; returns how long the simulation took.
    pub(crate) async fn start(sizes: &Sizes) -> Result<(Self, Duration)> {
        let dir = tempfile::tempdir()?;
        let (data, sim) = (dir.path().join("data"), dir.path().join("sim"));
        let (data, sim) = (data.to_string_lossy(), sim.to_string_lossy());
        let server = Process::start(&["server", "--bind", "127.0.0.1:0", "--data-dir", &data])?;
        let (clusters, nodes) = (sizes.clusters.to_string(), sizes.nodes.to_string());
        let begun = Instant::now();
        let simulation =
            Process::start(&["sim", "--data-dir", &sim, "--clusters", &clusters, "--nodes", &nodes])?;
        let took = begun.elapsed();
        let plane = client(&dir.path().join("data/karmada.kubeconfig")).await?;
        let mut world = Self { sizes: sizes.clone(), server, simulation, dir, plane, members: Vec::new() };
        for number in 1..=sizes.clusters {
            world.members.push(client(&world.member_kubeconfig(number)).await?);
        }
        Ok((world, took))
    }

    fn member_kubeconfig(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("sim/member{number}.kubeconfig"))
    }

    /// Returns what both processes have used up to now: control plane, simulation.
    pub(crate) fn mark(&self) -> [Cost; 2] {
        [self.server.cost(), self.simulation.cost()]
    }

    pub(crate) fn cost_so_far(&self) -> [Cost; 2] {
        self.mark()
    }

    pub(crate) fn since(&self, before: &[Cost; 2]) -> [Cost; 2] {
        let mut now = self.mark();
        for (now, before) in now.iter_mut().zip(before) {
            now.cpu_seconds -= before.cpu_seconds;
        }
        now
    }

    /// Registers all clusters and waits until they are ready and have said what they serve and what room they have.
    pub(crate) async fn join(&mut self) -> Result<Duration> {
        let control = self.dir.path().join("data/karmada.kubeconfig");
        let joined = stream::iter(1..=self.sizes.clusters).map(|number| {
            let arguments = arguments(number, &control, &self.member_kubeconfig(number));
            async move {
                cli::enrol(&arguments, |_| {}).await.with_context(|| format!("cannot join member{number}"))
            }
        });
        let clusters = self.api("cluster.karmada.io", "v1alpha1", "Cluster", "clusters", "");
        let (_, took) = timed(async {
            joined.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await?;
            let ready = self.until_all(clusters, self.sizes.clusters, |cluster| {
                let status = &cluster.data["status"];
                has_condition(status, "Ready")
                    && status["apiEnablements"].as_array().is_some_and(|kinds| !kinds.is_empty())
                    && status["resourceSummary"]["allocatable"]["pods"].is_string()
            });
            ready.await
        })
        .await?;
        Ok(took)
    }

    /// Creates a Deployment that is divided over all clusters, and removes it again.
    pub(crate) async fn divide(&self, round: usize) -> Result<[Duration; 3]> {
        let name = format!("divided-{round}");
        let replicas = self.sizes.clusters * EACH;
        let selectors = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": name}]);
        let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": name}, "spec": {"resourceSelectors": selectors, "placement": {
                "replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted"}}}});
        self.policies().create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
        let template: Deployment = serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "nginx:1.29"}]}}}}))?;
        let templates: Api<Deployment> = Api::namespaced(self.plane.clone(), NAMESPACE);
        let mut parts = Vec::new();
        for member in &self.members {
            let part: Api<Deployment> = Api::namespaced(member.clone(), NAMESPACE);
            // Opens the connection, which is not what is measured.
            part.get_opt(&name).await?;
            parts.push(part);
        }
        let begun = Instant::now();
        let arrivals = parts.iter().map(|part| {
            let (part, name) = (part.clone(), name.clone());
            tokio::spawn(async move {
                await_condition(part.clone(), &name, |found: Option<&Deployment>| found.is_some()).await?;
                let arrived = begun.elapsed();
                await_condition(part, &name, |found: Option<&Deployment>| ready(found) == EACH).await?;
                anyhow::Ok((arrived, begun.elapsed()))
            })
        });
        let arrivals: Vec<_> = arrivals.collect();
        templates.create(&PostParams::default(), &template).await?;
        await_condition(templates.clone(), &name, |found: Option<&Deployment>| ready(found) == replicas)
            .await?;
        let full = begun.elapsed();
        let (mut arrived, mut all_ready) = (Duration::ZERO, Duration::ZERO);
        for arrival in arrivals {
            let (one, other) = arrival.await??;
            (arrived, all_ready) = (arrived.max(one), all_ready.max(other));
        }
        templates.delete(&name, &DeleteParams::background()).await?;
        for part in parts {
            await_condition(part, &name, |found: Option<&Deployment>| found.is_none()).await?;
        }
        self.policies().delete(&name, &DeleteParams::default()).await?;
        Ok([arrived, all_ready, full])
    }

    /// Sends many templates to some clusters each; returns when all were created, and when all had arrived.
    pub(crate) async fn spread(&self) -> Result<(Duration, Duration)> {
        let Sizes { clusters, templates, spread, .. } = self.sizes;
        // As many groups of clusters as are full; the templates take turns.
        let groups = clusters / spread;
        for group in 0..groups {
            let names: Vec<String> =
                (0..spread).map(|index| format!("member{}", group * spread + index + 1)).collect();
            let selector = json!({"matchLabels": {"group": group.to_string()}});
            let selectors = json!([{"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": selector}]);
            let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
                "metadata": {"name": format!("group-{group}")}, "spec": {"resourceSelectors": selectors,
                    "placement": {"clusterAffinity": {"clusterNames": names}}}});
            self.policies().create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
        }
        let maps = self.api("", "v1", "ConfigMap", "configmaps", NAMESPACE);
        let bindings =
            self.api("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings", NAMESPACE);
        let begun = Instant::now();
        let creating = async {
            let creates = stream::iter(0..templates).map(|index| {
                let maps = maps.clone();
                let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"text": "x".repeat(500)},
                    "metadata": {"name": format!("load-{index}"), "labels": {"group": (index % groups).to_string()}}});
                async move {
                    maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
                    anyhow::Ok(())
                }
            });
            creates.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
            anyhow::Ok(begun.elapsed())
        };
        let reporting = async {
            let complete = |binding: &DynamicObject| {
                let status = &binding.data["status"];
                let reports = status["aggregatedStatus"].as_array().map_or(&[][..], Vec::as_slice);
                has_condition(status, "FullyApplied")
                    && reports.iter().filter(|report| report["applied"] == true).count() == spread
            };
            self.until_all(bindings, templates, complete).await?;
            anyhow::Ok(begun.elapsed())
        };
        futures::future::try_join(creating, reporting).await
    }

    /// Follows a collection until so many of its objects have been as wanted.
    async fn until_all(
        &self,
        api: Api<DynamicObject>,
        count: usize,
        wanted: impl Fn(&DynamicObject) -> bool,
    ) -> Result<()> {
        let mut done = std::collections::BTreeSet::new();
        let changes = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
        let mut changes = std::pin::pin!(changes);
        while done.len() < count {
            let object = changes.try_next().await?.context("the watch ended")?;
            if wanted(&object) {
                done.insert(object.metadata.name);
            }
        }
        Ok(())
    }

    fn policies(&self) -> Api<DynamicObject> {
        self.api("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies", NAMESPACE)
    }

    fn api(
        &self,
        group: &str,
        version: &str,
        kind: &str,
        plural: &str,
        namespace: &str,
    ) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        match namespace {
            "" => Api::all_with(self.plane.clone(), &resource),
            namespace => Api::namespaced_with(self.plane.clone(), namespace, &resource),
        }
    }
}

fn ready(deployment: Option<&Deployment>) -> usize {
    let ready = deployment.and_then(|found| found.status.as_ref()?.ready_replicas).unwrap_or(0);
    usize::try_from(ready).unwrap_or(0)
}

fn has_condition(status: &Value, kind: &str) -> bool {
    let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

fn arguments(number: usize, control: &Path, member: &Path) -> JoinArguments {
    JoinArguments {
        name: format!("member{number}"),
        control: ControlArguments {
            kubeconfig: Some(control.to_owned()),
            karmada_context: None,
            karmada_as: None,
            karmada_as_group: Vec::new(),
            karmada_as_uid: None,
        },
        cluster_kubeconfig: Some(member.to_owned()),
        cluster_context: None,
        cluster_namespace: api::constants::NAMESPACE_CLUSTER.to_owned(),
        cluster_provider: Some("simulated".to_owned()),
        cluster_region: None,
        cluster_zones: Vec::new(),
        install_mcs_crds: false,
        dry_run: false,
    }
}
