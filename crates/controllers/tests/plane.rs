//! The control-plane controllers on our own API server, in one process: from a template and its policies to Works,
//! and from the Works' reports back to the template. The test plays the members.

use api::cluster::Cluster;
use api::policy::{ClusterPropagationPolicy, OverridePolicy, PropagationPolicy};
use api::work::{ClusterResourceBinding, ResourceBinding, Work};
use controllers::{Context, Selection};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Client, Resource, ResourceExt};
use runtime::Supervisor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testkit::check::{self, CONTROLLERS, Excuse, Site, check_but};
use testkit::embedded::{Embedded, audit};
use testkit::until_some;

#[path = "plane/interpretation.rs"]
mod interpretation;

/// A control plane with its controllers.
struct Plane {
    server: Embedded,
    client: Client,
    supervisor: Supervisor,
    /// Holds the audit log.
    directory: tempfile::TempDir,
}

const LOG: &str = "audit.log";

impl Plane {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a folder for the test");
        let log = audit(&directory.path().join(LOG));
        let options = apiserver::Options { audit: Some(log), ..apiserver::Options::default() };
        let server = Embedded::control_plane(options).await;
        let (client, supervisor) = (server.client.clone(), Supervisor::default());
        let plane = Self { server, client, supervisor, directory };
        for name in ["m1", "m2"] {
            plane.join(name).await;
        }
        plane.run();
        plane
    }

    /// Runs the controllers of this side, all of them.
    fn run(&self) {
        self.run_with(controllers::Settings::default());
    }

    fn run_with(&self, settings: controllers::Settings) {
        let context =
            Context { settings, ..Context::new(self.server.controllers(), self.supervisor.clone()) };
        let selection = Selection::parse("*,-cluster,-clusterStatus,-execution,-workStatus").expect("a list");
        controllers::spawn(&context, &selection);
    }

    /// Registers a cluster that is ready and serves what the tests propagate.
    async fn join(&self, name: &str) {
        let space = json!({"metadata": {"name": format!("karmada-es-{name}")}});
        self.create::<Namespace>(&Api::all(self.client.clone()), space).await;
        let clusters: Api<Cluster> = Api::all(self.client.clone());
        self.create(&clusters, json!({"metadata": {"name": name}, "spec": {"syncMode": "Push"}})).await;
        let status = json!({"status": {
            "apiEnablements": [
                {"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]},
                {"groupVersion": "v1", "resources": [{"name": "configmaps", "kind": "ConfigMap"}]},
                {"groupVersion": "example.io/v1", "resources": [{"name": "widgets", "kind": "Widget"}]},
            ],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "ClusterReady", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }});
        clusters
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .expect("the cluster reports");
    }

    async fn create<K>(&self, api: &Api<K>, object: Value) -> K
    where
        K: Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).expect("a valid object");
        api.create(&PostParams::default(), &object).await.expect("the object is accepted")
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    fn works(&self, cluster: &str) -> Api<Work> {
        Api::namespaced(self.client.clone(), &format!("karmada-es-{cluster}"))
    }

    async fn work(&self, cluster: &str, name: &str) -> Option<Work> {
        self.works(cluster).get_opt(name).await.expect("the API answers")
    }

    /// Lets Works go that are being deleted, as the member side does once the member's object is gone.
    async fn finish_deletions(&self) {
        let all: Api<Work> = Api::all(self.client.clone());
        for work in all.list(&ListParams::default()).await.expect("the API answers") {
            if work.metadata.deletion_timestamp.is_some() {
                let api: Api<Work> =
                    Api::namespaced(self.client.clone(), work.metadata.namespace.as_deref().unwrap_or(""));
                let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                // Gone already is as good.
                let _ = api.patch(&work.name_any(), &PatchParams::default(), &patch).await;
            }
        }
    }

    async fn keep_finishing_deletions(&self) {
        loop {
            self.finish_deletions().await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Reports a Work as applied, with this status of the member's object.
    async fn report(&self, cluster: &str, name: &str, status: Value) {
        let patch = json!({"status": {
            "conditions": [{
                "type": "Applied", "status": "True", "reason": "AppliedSuccessful", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
            "manifestStatuses": [{
                "identifier": {
                    "ordinal": 0, "group": "apps", "version": "v1", "kind": "Deployment",
                    "resource": "deployments", "namespace": "default", "name": "nginx",
                },
                "status": status,
                "health": "Healthy",
            }],
        }});
        self.works(cluster)
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("the report is accepted");
    }

    async fn stop(self) {
        self.stop_but(&[]).await;
    }

    /// Fails unless the control plane keeps the laws of every world, but for what is excused, and stops it.
    async fn stop_but(mut self, excuses: &[Excuse<'_>]) {
        let plane = Site::plane(self.client.clone(), CONTROLLERS, vec![self.directory.path().join(LOG)]);
        // The test plays the members, and what controllers do there.
        let world = check::World { plane, members: Vec::new(), controllers: "*".to_owned() };
        tokio::select! {
            () = check_but(&world, excuses) => {}
            () = self.keep_finishing_deletions() => {}
        }
        self.stop_controllers().await;
        self.server.stop().await;
    }

    /// Stops the controllers; others may be started then.
    async fn stop_controllers(&mut self) {
        self.supervisor.stop().await;
        self.supervisor = Supervisor::default();
    }

    /// Returns the names of the Works in a cluster that nobody has told to go.
    async fn present(&self, cluster: &str) -> Vec<String> {
        let works = self.works(cluster).list(&ListParams::default()).await.expect("the API answers");
        let present = works.items.iter().filter(|work| work.metadata.deletion_timestamp.is_none());
        present.map(ResourceExt::name_any).collect()
    }
}

fn deployment(replicas: i32) -> Value {
    json!({
        "metadata": {"name": "nginx", "namespace": "default", "labels": {"app": "nginx"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "nginx"}},
            "template": {
                "metadata": {"labels": {"app": "nginx"}},
                "spec": {"containers": [{"name": "nginx", "image": "nginx:1.19.0"}]},
            },
        },
    })
}

fn policy(clusters: &[&str]) -> Value {
    json!({
        "metadata": {"name": "nginx", "namespace": "default"},
        "spec": {
            "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "nginx"}],
            "placement": {
                "clusterAffinity": {"clusterNames": clusters},
                "replicaScheduling": {
                    "replicaSchedulingType": "Divided",
                    "replicaDivisionPreference": "Weighted",
                },
            },
        },
    })
}

/// The name of the Work of Deployment default/nginx.
const WORK: &str = "nginx-687f7fb96f";

fn replicas(work: &Work) -> Option<i64> {
    work.spec.workload.manifests.first()?["spec"]["replicas"].as_i64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_is_placed_overridden_scaled_moved_and_leaves_nothing_behind() {
    let plane = Plane::start().await;
    let deployments: Api<Deployment> = plane.api();
    let bindings: Api<ResourceBinding> = plane.api();
    let policies: Api<PropagationPolicy> = plane.api();

    // An override for one of two clusters, a template, and a policy that divides it.
    plane
        .create::<OverridePolicy>(
            &plane.api(),
            json!({
                "metadata": {"name": "registry", "namespace": "default"},
                "spec": {
                    "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "nginx"}],
                    "overrideRules": [{
                        "targetCluster": {"clusterNames": ["m2"]},
                        "overriders": {"imageOverrider": [
                            {"component": "Registry", "operator": "add", "value": "registry.m2"},
                        ]},
                    }],
                },
            }),
        )
        .await;
    plane.create(&deployments, deployment(4)).await;
    plane.create(&policies, policy(&["m1", "m2"])).await;

    // Waited for as a whole: a Work may be written before its override is seen, and be mended a moment later.
    let works = until_some("one Work per cluster, with its image and its share", || async {
        let works = [plane.work("m1", WORK).await?, plane.work("m2", WORK).await?];
        let images = works.each_ref().map(|work| {
            let manifest = &work.spec.workload.manifests[0];
            manifest["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap_or("").to_owned()
        });
        let right = images == ["nginx:1.19.0", "registry.m2/nginx:1.19.0"]
            && works.each_ref().map(replicas) == [Some(2), Some(2)];
        right.then_some(works)
    })
    .await;

    let binding = bindings.get("nginx-deployment").await.expect("the binding exists");
    let template = deployments.get("nginx").await.expect("the template exists");
    assert_eq!(binding.metadata.finalizers, Some(vec!["karmada.io/binding-controller".to_owned()]));
    assert_eq!(binding.owner_references()[0].uid, template.uid().unwrap_or_default());
    assert_eq!(
        template.annotations().get("propagationpolicy.karmada.io/name").map(String::as_str),
        Some("nginx"),
        "the template is claimed"
    );
    let id = binding.labels().get("resourcebinding.karmada.io/permanent-id").cloned();
    assert!(id.is_some());
    for work in &works {
        assert_eq!(work.labels().get("resourcebinding.karmada.io/permanent-id").cloned(), id);
        assert_eq!(work.finalizers(), ["karmada.io/execution-controller"]);
    }

    // The members report; binding and template show it.
    for cluster in ["m1", "m2"] {
        let status = json!({"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        plane.report(cluster, WORK, status).await;
    }
    until_some("FullyApplied on the binding", || async {
        let binding = bindings.get("nginx-deployment").await.ok()?;
        let conditions = &binding.status.conditions;
        let applied = conditions.iter().find(|condition| condition.type_ == "FullyApplied")?;
        let scheduled = conditions.iter().any(|c| c.type_ == "Scheduled" && c.status == "True");
        (applied.status == "True" && scheduled && binding.status.aggregated_status.len() == 2).then_some(())
    })
    .await;
    until_some("the sum of replicas on the template", || async {
        let status = deployments.get("nginx").await.ok()?.status?;
        (status.ready_replicas == Some(4)).then_some(())
    })
    .await;

    // Scaling reaches the Works.
    let scale = Patch::Merge(json!({"spec": {"replicas": 6}}));
    deployments.patch("nginx", &PatchParams::default(), &scale).await.expect("it scales");
    until_some("six replicas in the Works", || async {
        let counts = [replicas(&plane.work("m1", WORK).await?), replicas(&plane.work("m2", WORK).await?)];
        (counts.into_iter().flatten().sum::<i64>() == 6).then_some(())
    })
    .await;

    // A placement that leaves a cluster out takes the Work away there, and nowhere else.
    let moved = Patch::Merge(json!({"spec": policy(&["m2"])["spec"]}));
    policies.patch("nginx", &PatchParams::default(), &moved).await.expect("the policy changes");
    until_some("everything in m2", || async {
        plane.finish_deletions().await;
        let gone = plane.work("m1", WORK).await.is_none();
        (gone && replicas(&plane.work("m2", WORK).await?) == Some(6)).then_some(())
    })
    .await;

    // A policy that goes takes its claim along and leaves what runs.
    policies.delete("nginx", &DeleteParams::default()).await.expect("the policy goes");
    until_some("the claim is gone", || async {
        let template = deployments.get("nginx").await.ok()?;
        let binding = bindings.get("nginx-deployment").await.ok()?;
        let claim = "propagationpolicy.karmada.io/permanent-id";
        let free = !template.labels().contains_key(claim) && !binding.labels().contains_key(claim);
        (free && policies.get_opt("nginx").await.ok()?.is_none()).then_some(())
    })
    .await;
    assert!(plane.work("m2", WORK).await.is_some_and(|work| work.metadata.deletion_timestamp.is_none()));

    // The template goes, and with it all the rest.
    deployments.delete("nginx", &DeleteParams::default()).await.expect("the template goes");
    until_some("no binding and no Work", || async {
        plane.finish_deletions().await;
        let binding = bindings.get_opt("nginx-deployment").await.ok()?;
        (binding.is_none() && plane.work("m2", WORK).await.is_none()).then_some(())
    })
    .await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_writes_nothing_and_later_clusters_are_served() {
    let mut plane = Plane::start().await;
    let all_works: Api<Work> = Api::all(plane.client.clone());
    let bindings: Api<ResourceBinding> = plane.api();
    let settings: Api<ConfigMap> = plane.api();
    plane
        .create(
            &settings,
            json!({"metadata": {"name": "settings", "namespace": "default"}, "data": {"key": "value"}}),
        )
        .await;
    plane
        .create::<PropagationPolicy>(
            &plane.api(),
            json!({
                "metadata": {"name": "settings", "namespace": "default"},
                "spec": {
                    "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}],
                    "placement": {"clusterAffinity": {}},
                },
            }),
        )
        .await;
    let namespaces: Api<Namespace> = Api::all(plane.client.clone());
    plane.create(&namespaces, json!({"metadata": {"name": "shop"}})).await;
    // Two clusters, each with the ConfigMap and the namespace.
    let settled = |expected: usize| {
        let (all_works, bindings) = (all_works.clone(), bindings.clone());
        async move {
            let binding = bindings.get_opt("settings-configmap").await.ok()??;
            let observed = binding.status.scheduler_observed_generation;
            let works = all_works.list(&ListParams::default()).await.ok()?.items;
            let clusters = binding.spec.clusters.len();
            let complete = works.len() == expected && clusters * 2 == expected;
            (complete && binding.metadata.generation == Some(observed)).then_some((binding, works))
        }
    };
    until_some("Works for both clusters", || settled(4)).await;
    // The scheduler's last note may still be on its way into the other controllers; they have nothing to write.
    plane.supervisor.stop().await;
    let versions = |(binding, works): (ResourceBinding, Vec<Work>)| {
        let mut versions: Vec<Option<String>> = works.iter().map(ResourceExt::resource_version).collect();
        versions.push(binding.resource_version());
        versions
    };
    let before = versions(until_some("the same objects", || settled(4)).await);
    let template = settings.get("settings").await.expect("the template exists").resource_version();

    plane.supervisor = Supervisor::default();
    plane.run();
    // A third cluster shows that the controllers are at work again, and have been through everything.
    plane.join("m3").await;
    let (binding, works) = until_some("Works for the third cluster", || settled(6)).await;
    assert_eq!(binding.spec.clusters.len(), 3);
    let old: Vec<Work> =
        works.into_iter().filter(|work| work.namespace().as_deref() != Some("karmada-es-m3")).collect();
    let after = versions((binding, old));
    // All but the binding, which has one more cluster, are as they were.
    assert_eq!(before[..4], after[..4]);
    assert_eq!(settings.get("settings").await.expect("the template exists").resource_version(), template);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_template_refers_to_travels_along_and_goes_with_it() {
    let plane = Plane::start().await;
    let deployments: Api<Deployment> = plane.api();
    let bindings: Api<ResourceBinding> = plane.api();
    let all_works: Api<Work> = Api::all(plane.client.clone());
    let mut template = deployment(1);
    template["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "settings", "configMap": {"name": "settings"}}]);
    let mut with_dependencies = policy(&["m1"]);
    with_dependencies["spec"]["propagateDeps"] = true.into();
    plane.create(&plane.api::<PropagationPolicy>(), with_dependencies).await;
    plane.create(&deployments, template).await;
    until_some("a Work of the Deployment", || plane.work("m1", WORK)).await;
    // The dependency may come later than who needs it.
    plane
        .create::<ConfigMap>(
            &plane.api(),
            json!({"metadata": {"name": "settings", "namespace": "default"}, "data": {"key": "value"}}),
        )
        .await;
    let carried = |kind: &'static str| {
        let all_works = all_works.clone();
        async move {
            let works = all_works.list(&ListParams::default()).await.ok()?.items;
            works.into_iter().find(|work| work.spec.workload.manifests[0]["kind"] == kind)
        }
    };
    let work = until_some("a Work of the ConfigMap", || carried("ConfigMap")).await;
    assert_eq!(work.namespace().as_deref(), Some("karmada-es-m1"));
    let attached = bindings.get("settings-configmap").await.expect("the attached binding exists");
    assert_eq!(attached.spec.placement, None);
    assert_eq!(attached.spec.required_by[0].name, "nginx-deployment");
    assert_eq!(attached.spec.required_by[0].clusters[0].name, "m1");

    deployments.delete("nginx", &DeleteParams::default()).await.expect("the template goes");
    until_some("no Work is left", || async {
        plane.finish_deletions().await;
        let works = all_works.list(&ListParams::default()).await.ok()?.items;
        works.is_empty().then_some(())
    })
    .await;
    let attached = bindings.get("settings-configmap").await.expect("the attached binding stays");
    assert!(attached.spec.required_by.is_empty());
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_template_refers_to_travels_along_although_policies_pass_over_its_kind() {
    let mut plane = Plane::start().await;
    plane.stop_controllers().await;
    let skip = propagation::skip::SkipRules::new("v1/ConfigMap", ["kube-.*"]).expect("a rule");
    plane.run_with(controllers::Settings { skip, ..controllers::Settings::default() });
    let maps: Api<ConfigMap> = plane.api();
    let mut template = deployment(1);
    template["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "settings", "configMap": {"name": "settings"}}]);
    let mut both = policy(&["m1"]);
    both["spec"]["propagateDeps"] = true.into();
    both["spec"]["resourceSelectors"] = json!([
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "nginx"},
        {"apiVersion": "v1", "kind": "ConfigMap"},
    ]);
    plane.create(&plane.api::<PropagationPolicy>(), both).await;
    for name in ["settings", "other"] {
        plane
            .create(&maps, json!({"metadata": {"name": name, "namespace": "default"}, "data": {"key": "a"}}))
            .await;
    }
    plane.create(&plane.api::<Deployment>(), template).await;
    let carried = |value: &'static str| {
        let works = plane.works("m1");
        async move {
            let works = works.list(&ListParams::default()).await.ok()?.items;
            works.into_iter().find(|work| work.spec.workload.manifests[0]["data"]["key"] == value)
        }
    };
    until_some("a Work of the ConfigMap", || carried("a")).await;
    let change = Patch::Merge(json!({"data": {"key": "b"}}));
    maps.patch("settings", &PatchParams::default(), &change).await.expect("accepted");
    until_some("its change in the Work", || carried("b")).await;

    let bindings: Api<ResourceBinding> = plane.api();
    let mut names: Vec<String> = bindings
        .list(&ListParams::default())
        .await
        .expect("the API answers")
        .items
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    names.sort();
    assert_eq!(names, ["nginx-deployment", "settings-configmap"], "the policy takes no ConfigMap");
    let attached = bindings.get("settings-configmap").await.expect("the attached binding exists");
    assert_eq!(attached.spec.placement, None);
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_that_appears_later_waits_for_its_cluster_and_is_placed_when_it_joins() {
    let plane = Plane::start().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client.clone());
    plane
        .create(
            &definitions,
            json!({
                "metadata": {"name": "widgets.example.io"},
                "spec": {
                    "group": "example.io",
                    "scope": "Cluster",
                    "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                    "versions": [{
                        "name": "v1", "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": {
                            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        }},
                    }],
                },
            }),
        )
        .await;
    plane
        .create::<ClusterPropagationPolicy>(
            &Api::all(plane.client.clone()),
            json!({
                "metadata": {"name": "widgets"},
                "spec": {
                    "resourceSelectors": [{"apiVersion": "example.io/v1", "kind": "Widget"}],
                    "placement": {"clusterAffinity": {"clusterNames": ["m3"]}},
                },
            }),
        )
        .await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.io", "v1", "Widget"));
    let widgets: Api<DynamicObject> = Api::all_with(plane.client.clone(), &resource);
    let widget = DynamicObject::new("a", &resource).data(json!({"spec": {"size": 1}}));
    until_some("the definition is served", || async {
        widgets.create(&PostParams::default(), &widget).await.ok()
    })
    .await;
    let bindings: Api<ClusterResourceBinding> = Api::all(plane.client.clone());
    until_some("the binding says that no cluster fits", || async {
        let binding = bindings.get_opt("a-widget").await.ok()??;
        let scheduled = binding.status.conditions.iter().find(|condition| condition.type_ == "Scheduled")?;
        (scheduled.status == "False" && scheduled.reason == "NoClusterFit").then_some(())
    })
    .await;

    plane.join("m3").await;
    let works = plane.works("m3");
    until_some("the Work in the cluster that joined", || async {
        let works = works.list(&ListParams::default()).await.ok()?.items;
        works.into_iter().find(|work| work.spec.workload.manifests[0]["spec"]["size"] == 1)
    })
    .await;
    let scheduled = until_some("the binding says that it is scheduled", || async {
        let binding = bindings.get_opt("a-widget").await.ok()??;
        let is_scheduled = |binding: &ClusterResourceBinding| {
            binding.status.conditions.iter().any(|c| c.type_ == "Scheduled" && c.status == "True")
        };
        is_scheduled(&binding).then_some(binding)
    })
    .await;
    assert_eq!(scheduled.spec.clusters[0].name, "m3");
    plane.stop().await;
}

fn maps_policy(name: &str, selector: Value, affinity: Value) -> Value {
    let mut selector = selector;
    selector["apiVersion"] = "v1".into();
    selector["kind"] = "ConfigMap".into();
    json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"resourceSelectors": [selector], "placement": {"clusterAffinity": affinity}}})
}

fn config_map(name: &str, group: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "labels": {"group": group}}, "data": {}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finding_22_the_only_cluster_loses_its_copy_when_its_label_leaves_the_policy() {
    let plane = Plane::start().await;
    let clusters: Api<Cluster> = Api::all(plane.client.clone());
    let label = |value: Value| Patch::Merge(json!({"metadata": {"labels": {"env": value}}}));
    clusters.patch("m1", &PatchParams::default(), &label(json!("prod"))).await.expect("labelled");
    plane.create::<ConfigMap>(&plane.api(), config_map("settings", "a")).await;
    let prod = json!({"labelSelector": {"matchLabels": {"env": "prod"}}});
    plane
        .create::<PropagationPolicy>(&plane.api(), maps_policy("maps", json!({"name": "settings"}), prod))
        .await;
    until_some("a Work in the cluster", || async { plane.present("m1").await.pop() }).await;
    clusters.patch("m1", &PatchParams::default(), &label(Value::Null)).await.expect("the label is gone");
    until_some("the Work is told to go", || async { plane.present("m1").await.is_empty().then_some(()) })
        .await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finding_22_removals_that_hit_everything_at_once_are_held_until_somebody_agrees() {
    const COUNT: usize = 5;
    let mut plane = Plane::start().await;
    plane.stop_controllers().await;
    let settings = controllers::Settings {
        removals: propagation::withdrawal::Limits { templates: 3, percent: 50 },
        ..controllers::Settings::default()
    };
    plane.run_with(settings.clone());
    let (maps, policies): (Api<ConfigMap>, Api<PropagationPolicy>) = (plane.api(), plane.api());
    for number in 0..COUNT {
        plane.create(&maps, config_map(&format!("map-{number}"), "a")).await;
    }
    let group = json!({"labelSelector": {"matchLabels": {"group": "a"}}});
    plane.create(&policies, maps_policy("maps", group, json!({}))).await;
    let all = |count: usize| {
        let plane = &plane;
        move || async move {
            let here = [plane.present("m1").await.len(), plane.present("m2").await.len()];
            (here == [count, count]).then_some(())
        }
    };
    until_some("Works in both clusters", all(COUNT)).await;

    // A slip: no cluster has that name.
    let slip = json!({"spec": {"placement": {"clusterAffinity": {"clusterNames": ["m3"]}}}});
    policies.patch("maps", &PatchParams::default(), &Patch::Merge(slip)).await.expect("accepted");
    let note = |policies: Api<PropagationPolicy>| async move {
        let policy = policies.get("maps").await.expect("the policy is there");
        policy.metadata.annotations.unwrap_or_default().remove("policy.karmada.io/removals-held")
    };
    let held = until_some("the policy says what is held", || note(policies.clone())).await;
    assert!(held.contains("kubectl annotate --overwrite propagationpolicy maps -n default "), "{held}");
    let events: Api<k8s_openapi::api::core::v1::Event> = plane.api();
    until_some("an event says so, too", || async {
        let events = events.list(&ListParams::default()).await.expect("the API answers");
        events.items.into_iter().find(|event| event.reason.as_deref() == Some("RemovalsHeld"))
    })
    .await;

    // What a user deletes is not held.
    maps.delete("map-0", &DeleteParams::default()).await.expect("deleted");
    until_some("the Works of the deleted template go", all(COUNT - 1)).await;

    // Held it stays, also after a restart. The Work of a later template shows that the bindings have been looked at.
    plane.stop_controllers().await;
    plane.run_with(settings);
    plane.create(&maps, config_map("later", "b")).await;
    let later = maps_policy("later", json!({"name": "later"}), json!({"clusterNames": ["m1"]}));
    plane.create(&policies, later).await;
    until_some("another template arrives", || async {
        (plane.present("m1").await.len() == COUNT).then_some(())
    })
    .await;
    assert_eq!(plane.present("m2").await.len(), COUNT - 1);

    let id = held.split(' ').next().unwrap_or_default().to_owned();
    let agree = |id: &str| {
        Patch::Merge(json!({"metadata": {"annotations": {"policy.karmada.io/allow-removals": id}}}))
    };
    policies.patch("maps", &PatchParams::default(), &agree(&id)).await.expect("accepted");
    until_some("what was held goes, and nothing else", || async {
        let here = [plane.present("m1").await.len(), plane.present("m2").await.len()];
        (here == [1, 0]).then_some(())
    })
    .await;
    until_some("the policy says nothing any more", || async {
        let note = note(policies.clone()).await;
        note.is_none().then_some(())
    })
    .await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finding_25_a_binding_that_names_an_object_of_another_namespace_is_not_carried_out() {
    let plane = Plane::start().await;
    plane.create::<Namespace>(&Api::all(plane.client.clone()), json!({"metadata": {"name": "bank"}})).await;
    let bank: Api<ConfigMap> = Api::namespaced(plane.client.clone(), "bank");
    plane.create(&bank, json!({"metadata": {"name": "secret", "namespace": "bank"}})).await;
    plane.create::<ConfigMap>(&plane.api(), config_map("own", "a")).await;
    let binding = |name: &str, namespace: &str| {
        json!({
            "metadata": {"name": name, "namespace": "default",
                "labels": {"resourcebinding.karmada.io/permanent-id": name}},
            "spec": {"clusters": [{"name": "m1"}], "resource":
                {"apiVersion": "v1", "kind": "ConfigMap", "namespace": namespace, "name": name}},
        })
    };
    plane.create::<ResourceBinding>(&plane.api(), binding("secret", "bank")).await;
    let events: Api<k8s_openapi::api::core::v1::Event> = plane.api();
    let told = until_some("an event says why", || async {
        let events = events.list(&ListParams::default()).await.expect("the API answers");
        events.items.into_iter().find(|event| event.reason.as_deref() == Some("SyncWorkFailed"))
    })
    .await;
    let message = told.message.unwrap_or_default();
    assert!(message.contains("refers to ConfigMap bank/secret, which is not in its namespace"), "{message}");
    // One that names an object of its own namespace is carried out.
    plane.create::<ResourceBinding>(&plane.api(), binding("own", "default")).await;
    let work = until_some("the Work of the other binding", || async {
        plane.present("m1").await.into_iter().find(|name| name.starts_with("own-"))
    })
    .await;
    let others: Vec<String> = plane.present("m1").await.into_iter().filter(|name| *name != work).collect();
    assert!(!others.iter().any(|name| name.starts_with("secret-")), "{others:?}");
    let refused = Excuse {
        complaint: "ResourceBinding default/secret wants m1 and has no Work there",
        because: "its object is in another namespace",
    };
    plane.stop_but(&[refused]).await;
}
