//! The member side end to end: a control plane and a member, both in this process, the member reached over HTTPS.
//!
//! Joins the member by the command that users call, writes Works by hand, and looks at what becomes of them on both
//! sides. Waits for states, each with a deadline, never for a duration.

use std::path::PathBuf;

use api::cluster::Cluster;
use api::work::{ManifestStatus, ResourceHealth, Work};
use apiserver::Options;
use clap::Parser;
use controllers::{Context, Selection};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use runtime::Supervisor;
use serde_json::{Value, json};
use testkit::check::{self, Site, check};
use testkit::embedded::{Embedded, audit};
use testkit::process::keep_address;
use testkit::{DEADLINE, eventually};

const SPACE: &str = "karmada-es-m1";
const CONTROLLERS: &str = "cluster,clusterStatus,execution,workStatus";

/// The commands as the binary has them.
#[derive(Parser)]
enum Command {
    Join(cli::JoinArguments),
    Unjoin(cli::UnjoinArguments),
}

async fn command(line: &[&str]) {
    let done = match Command::parse_from([&["karmada"], line].concat()) {
        Command::Join(arguments) => cli::join(arguments).await,
        Command::Unjoin(arguments) => cli::unjoin(arguments).await,
    };
    done.unwrap_or_else(|error| panic!("{line:?}: {error:#}"));
}

struct World {
    control: Embedded,
    member: Embedded,
    directory: tempfile::TempDir,
    client: Client,
    member_client: Client,
    supervisor: Supervisor,
}

impl World {
    /// A control plane with the member side's controllers, and a member that has joined.
    async fn new() -> Self {
        Self::with(Options::default()).await
    }

    /// As [`World::new`], with a member that is started like this.
    async fn with(member: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = audit(&directory.path().join("control.log"));
        let control = Embedded::control_plane(Options { audit: Some(log), ..Options::default() }).await;
        let log = audit(&directory.path().join("member.log"));
        let member = start_member(Options { audit: Some(log), ..member }).await;
        std::fs::write(directory.path().join("control"), &control.handle.kubeconfig).unwrap();
        std::fs::write(directory.path().join("member"), &member.handle.kubeconfig).unwrap();
        let (client, member_client) = (control.client.clone(), member.client.clone());
        let world =
            Self { control, member, directory, client, member_client, supervisor: Supervisor::default() };
        world.start_controllers();
        let (control, member) = world.kubeconfigs();
        command(&["join", "m1", "--kubeconfig", &control, "--cluster-kubeconfig", &member]).await;
        world
    }

    fn start_controllers(&self) {
        let context = Context::new(self.control.controllers(), self.supervisor.clone());
        let selection = Selection::parse(CONTROLLERS).unwrap();
        controllers::spawn(&context, &selection);
    }

    fn kubeconfigs(&self) -> (String, String) {
        let path = |name: &str| -> String {
            let path: PathBuf = self.directory.path().join(name);
            path.to_string_lossy().into_owned()
        };
        (path("control"), path("member"))
    }

    fn works(&self) -> Api<Work> {
        Api::namespaced(self.client.clone(), SPACE)
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.member_client.clone(), "default")
    }

    async fn ready(&self) -> Cluster {
        let clusters = Api::<Cluster>::all(self.client.clone());
        eventually("the cluster is ready and has an execution namespace", async || {
            let cluster = clusters.get("m1").await.map_err(|error| error.to_string())?;
            let ready = cluster.status.condition("Ready").is_some_and(|condition| condition.status == "True");
            if ready && cluster.spec.taints.is_empty() { Ok(cluster) } else { Err(format!("{cluster:?}")) }
        })
        .await
    }

    /// Fails unless the control plane and the member keep the laws of every world.
    async fn check(&self) {
        let log = |name: &str| vec![self.directory.path().join(name)];
        let plane = Site::plane(self.client.clone(), check::CONTROLLERS, log("control.log"));
        let member = Site::member("m1", self.member_client.clone(), log("member.log"));
        check(&check::World { plane, members: vec![member], controllers: CONTROLLERS.to_owned() }).await;
    }

    async fn end(self) {
        self.check().await;
        tokio::time::timeout(DEADLINE, self.supervisor.stop())
            .await
            .expect("the controllers end when told to");
        self.control.stop().await;
        self.member.stop().await;
    }
}

async fn start_member(options: Options) -> Embedded {
    Embedded::member("m1", options).await
}

/// A Work as the binding controller renders it.
fn work(name: &str, mut manifest: Value) -> Work {
    manifest["metadata"]["labels"]["karmada.io/managed"] = "true".into();
    manifest["metadata"]["annotations"] = json!({
        "work.karmada.io/namespace": SPACE, "work.karmada.io/name": name,
        "resourcetemplate.karmada.io/uid": "", "resourcetemplate.karmada.io/generation": "1",
    });
    propagation::render::stamp(&mut manifest, None);
    serde_json::from_value(json!({
        "apiVersion": "work.karmada.io/v1alpha1", "kind": "Work",
        "metadata": { "name": name, "namespace": SPACE, "finalizers": ["karmada.io/execution-controller"] },
        "spec": { "workload": { "manifests": [manifest] } },
    }))
    .unwrap()
}

fn config_map(name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": "default" }, "data": { "key": value },
    })
}

fn applied(work: &Work) -> Option<String> {
    work.status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Applied")
        .map(|condition| format!("{}/{}: {}", condition.status, condition.reason, condition.message))
}

/// Whether a Work has come to its end: applied, and the only object reported as healthy.
fn finished(work: &Work) -> bool {
    let healthy = |report: &ManifestStatus| report.health == Some(ResourceHealth::Healthy);
    applied(work).as_deref() == Some("True/AppliedSuccessful: Manifest has been successfully applied")
        && work.status.manifest_statuses.len() == 1
        && work.status.manifest_statuses.iter().all(healthy)
        && work.status.manifest_statuses[0].identifier.kind == work.spec.workload.manifests[0]["kind"]
}

async fn value_of(maps: &Api<ConfigMap>, name: &str) -> Result<String, String> {
    let map = maps.get(name).await.map_err(|error| error.to_string())?;
    map.data.and_then(|mut data| data.remove("key")).ok_or_else(|| "no data".to_owned())
}

async fn wait_for_value(maps: &Api<ConfigMap>, name: &str, wanted: &str) {
    eventually(&format!("{name} says {wanted}"), async || match value_of(maps, name).await {
        Ok(value) if value == wanted => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

async fn wait_until_gone(works: &Api<Work>, name: &str) {
    eventually("the Work is gone", async || match works.get_opt(name).await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_joins_runs_what_works_say_and_leaves() {
    let world = World::new().await;
    let cluster = world.ready().await;
    assert!(!cluster.status.kubernetes_version.is_empty());
    assert!(cluster.status.api_enablements.iter().any(|api| api.group_version == "apps/v1"));
    assert!(cluster.metadata.finalizers.unwrap().contains(&"karmada.io/cluster-controller".to_owned()));
    let works = world.works();
    let maps = world.config_maps();

    // Create.
    works.create(&PostParams::default(), &work("map", config_map("map", "one"))).await.unwrap();
    wait_for_value(&maps, "map", "one").await;
    eventually("the Work is applied and reported as healthy", async || {
        let work = works.get("map").await.map_err(|error| error.to_string())?;
        if finished(&work) { Ok(()) } else { Err(format!("{:?}", work.status)) }
    })
    .await;

    // Update.
    let mut changed = works.get("map").await.unwrap();
    changed.spec.workload.manifests[0]["data"]["key"] = "two".into();
    works.replace("map", &PostParams::default(), &changed).await.unwrap();
    wait_for_value(&maps, "map", "two").await;

    // Somebody changes it in the member, then deletes it there.
    let meddling = json!({ "data": { "key": "three", "more": "mine" } });
    maps.patch("map", &PatchParams::default(), &Patch::Merge(&meddling)).await.unwrap();
    eventually("the change is undone", async || {
        let map = maps.get("map").await.map_err(|error| error.to_string())?;
        let data = map.data.clone().unwrap_or_default();
        if data.len() == 1 && data["key"] == "two" { Ok(()) } else { Err(format!("{map:?}")) }
    })
    .await;
    let before = maps.get("map").await.unwrap().metadata.uid;
    maps.delete("map", &DeleteParams::default()).await.unwrap();
    eventually("it is made anew", async || {
        let map = maps.get("map").await.map_err(|error| error.to_string())?;
        if map.metadata.uid != before { Ok(()) } else { Err("the old one".to_owned()) }
    })
    .await;

    // Delete.
    works.delete("map", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&works, "map").await;
    eventually("it is gone from the member", async || match maps.get_opt("map").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;

    // Leave: what still runs there goes too, and so do the accounts.
    works.create(&PostParams::default(), &work("last", config_map("last", "x"))).await.unwrap();
    wait_for_value(&maps, "last", "x").await;
    let (control, member) = world.kubeconfigs();
    command(&["unjoin", "m1", "--kubeconfig", &control, "--cluster-kubeconfig", &member]).await;
    assert!(Api::<Cluster>::all(world.client.clone()).get_opt("m1").await.unwrap().is_none());
    assert!(Api::<Namespace>::all(world.client.clone()).get_opt(SPACE).await.unwrap().is_none());
    assert!(maps.get_opt("last").await.unwrap().is_none());
    let secrets = Api::<Secret>::namespaced(world.client.clone(), "karmada-cluster");
    eventually("the credentials are gone", async || match secrets.get_opt("m1").await {
        Ok(None) => Ok(()),
        other => Err(format!("{:?}", other.map(|secret| secret.map(|secret| secret.metadata)))),
    })
    .await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_comes_back_and_what_is_not_ours_is_left_alone() {
    let world = World::new().await;
    world.ready().await;
    let works = world.works();
    let maps = world.config_maps();

    // The status of a Deployment in the member is reported with its Work.
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web", "namespace": "default" },
        "spec": {
            "replicas": 2, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "web", "image": "nginx" }] },
            },
        },
    });
    works.create(&PostParams::default(), &work("web", deployment)).await.unwrap();
    let deployments = Api::<Deployment>::namespaced(world.member_client.clone(), "default");
    eventually("the deployment is there", async || {
        deployments.get("web").await.map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
    let status = json!({ "status": {
        "observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
    } });
    deployments.patch_status("web", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    eventually("the status is in the Work", async || {
        let work = works.get("web").await.map_err(|error| error.to_string())?;
        let report = work.status.manifest_statuses.first().ok_or("no report")?;
        let ready = report.status.as_ref().map(|status| status["readyReplicas"].clone());
        if ready == Some(json!(2)) { Ok(()) } else { Err(format!("{report:?}")) }
    })
    .await;

    // A foreign object of the same name is neither taken over nor deleted.
    let foreign: ConfigMap = serde_json::from_value(config_map("foreign", "theirs")).unwrap();
    maps.create(&PostParams::default(), &foreign).await.unwrap();
    works.create(&PostParams::default(), &work("foreign", config_map("foreign", "ours"))).await.unwrap();
    eventually("the refusal is reported", async || {
        let work = works.get("foreign").await.map_err(|error| error.to_string())?;
        let refusal = "False/AppliedFailed: Failed to apply all manifests (0/1): ";
        let refused = applied(&work).is_some_and(|said| said.starts_with(refusal));
        if refused { Ok(()) } else { Err(format!("{:?}", work.status)) }
    })
    .await;
    assert_eq!(value_of(&maps, "foreign").await.as_deref(), Ok("theirs"));
    works.delete("foreign", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&works, "foreign").await;
    assert_eq!(value_of(&maps, "foreign").await.as_deref(), Ok("theirs"));

    // A suspended Work does not reach the member until it is resumed.
    let mut held = work("held", config_map("held", "x"));
    held.spec.suspend_dispatching = Some(true);
    works.create(&PostParams::default(), &held).await.unwrap();
    eventually("the suspension is reported", async || {
        let work = works.get("held").await.map_err(|error| error.to_string())?;
        let suspended =
            work.status.conditions.iter().any(|condition| condition.reason == "SuspendDispatching");
        if suspended { Ok(()) } else { Err(format!("{:?}", work.status)) }
    })
    .await;
    assert!(maps.get_opt("held").await.unwrap().is_none());
    let resume = json!({ "spec": { "suspendDispatching": false } });
    works.patch("held", &PatchParams::default(), &Patch::Merge(&resume)).await.unwrap();
    wait_for_value(&maps, "held", "x").await;

    // A Work that preserves its objects leaves them behind without our marks.
    let mut kept = work("kept", config_map("kept", "x"));
    kept.spec.preserve_resources_on_deletion = Some(true);
    works.create(&PostParams::default(), &kept).await.unwrap();
    wait_for_value(&maps, "kept", "x").await;
    works.delete("kept", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&works, "kept").await;
    let left = maps.get("kept").await.unwrap();
    let marks: Vec<String> = [left.metadata.labels, left.metadata.annotations]
        .into_iter()
        .flatten()
        .flat_map(std::collections::BTreeMap::into_keys)
        .filter(|key| key.contains("karmada.io"))
        .collect();
    assert!(marks.is_empty(), "{marks:?}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_writes_nothing_that_is_already_right() {
    let mut world = World::new().await;
    world.ready().await;
    let works = world.works();
    let maps = world.config_maps();
    for index in 0..20 {
        let name = format!("map-{index}");
        works.create(&PostParams::default(), &work(&name, config_map(&name, "x"))).await.unwrap();
    }
    let versions = async || -> Result<Vec<String>, String> {
        let list = works.list(&Default::default()).await.map_err(|error| error.to_string())?;
        let count = list.items.iter().filter(|work| finished(work)).count();
        if count != 20 {
            return Err(format!("{count} finished"));
        }
        let here = list.items.into_iter().filter_map(|work| work.metadata.resource_version);
        let there = maps.list(&Default::default()).await.map_err(|error| error.to_string())?;
        let there = there.items.into_iter().filter_map(|map| map.metadata.resource_version);
        Ok(here.chain(there).collect())
    };
    let before = eventually("all is applied and reported", versions).await;

    tokio::time::timeout(DEADLINE, world.supervisor.stop()).await.expect("the controllers end when told to");
    world.supervisor = Supervisor::default();
    world.start_controllers();
    // One more Work shows that the new controllers have caught up: its cluster's Works were taken up before it.
    works.create(&PostParams::default(), &work("marker", config_map("marker", "x"))).await.unwrap();
    wait_for_value(&maps, "marker", "x").await;
    works.delete("marker", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&works, "marker").await;
    eventually("the marker is gone", async || match maps.get_opt("marker").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert_eq!(versions().await.unwrap(), before);
    world.end().await;
}

/// Makes the member refuse the creation of some objects before it looks at their names, as it does for a Service whose
/// node port is taken.
async fn refuse_creations(world: &World, name: &str) {
    let parts = [
        (
            "ValidatingAdmissionPolicy",
            "validatingadmissionpolicies",
            json!({
                "metadata": { "name": "no-creations" },
                "spec": {
                    "failurePolicy": "Fail",
                    "matchConstraints": { "resourceRules": [{
                        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
                    }] },
                    "validations": [{
                        "expression": format!("object.metadata.name != '{name}'"),
                        "message": "provided port is already allocated",
                    }],
                },
            }),
        ),
        (
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            json!({
                "metadata": { "name": "no-creations" },
                "spec": { "policyName": "no-creations", "validationActions": ["Deny"] },
            }),
        ),
    ];
    for (kind, plural, mut object) in parts {
        object["apiVersion"] = "admissionregistration.k8s.io/v1".into();
        object["kind"] = kind.into();
        let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        let api = Api::<DynamicObject>::all_with(world.member_client.clone(), &resource);
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }
    let maps = world.config_maps();
    eventually("the member refuses creations", async || {
        let probe: ConfigMap = serde_json::from_value(config_map(name, "probe")).unwrap();
        match maps.create(&PostParams { dry_run: true, ..PostParams::default() }, &probe).await {
            Err(kube::Error::Api(status)) if status.code == 422 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finding_21_a_creation_that_is_refused_for_any_reason_takes_over_what_exists() {
    let world = World::new().await;
    world.ready().await;
    let (works, maps) = (world.works(), world.config_maps());
    let theirs: ConfigMap = serde_json::from_value(config_map("promoted", "theirs")).unwrap();
    maps.create(&PostParams::default(), &theirs).await.unwrap();
    refuse_creations(&world, "promoted").await;

    let mut promoted = work("promoted", config_map("promoted", "ours"));
    let manifest = &mut promoted.spec.workload.manifests[0];
    manifest["metadata"]["annotations"]["work.karmada.io/conflict-resolution"] = "overwrite".into();
    works.create(&PostParams::default(), &promoted).await.unwrap();
    wait_for_value(&maps, "promoted", "ours").await;

    // Where nothing exists, the refusal is what is told.
    maps.delete("promoted", &DeleteParams::default()).await.unwrap();
    eventually("the refusal is reported", async || {
        let work = works.get("promoted").await.map_err(|error| error.to_string())?;
        match applied(&work) {
            Some(text) if text.contains("provided port is already allocated") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finding_24_joining_again_replaces_the_credentials_that_an_earlier_join_left() {
    let world = World::new().await;
    world.ready().await;
    let (control, member) = world.kubeconfigs();
    command(&["unjoin", "m1", "--kubeconfig", &control, "--cluster-kubeconfig", &member]).await;
    let secrets = Api::<Secret>::namespaced(world.client.clone(), "karmada-cluster");
    eventually("the credentials are gone", async || match secrets.get_opt("m1").await {
        Ok(None) => Ok(()),
        other => Err(format!("{:?}", other.map(|secret| secret.map(|secret| secret.metadata)))),
    })
    .await;
    // What the earlier join made in the member goes with its namespace, and nothing can be made there until it is gone.
    let namespaces = Api::<Namespace>::all(world.member_client.clone());
    eventually("the member has forgotten the join", async || {
        match namespaces.get_opt("karmada-cluster").await {
            Ok(None) => Ok(()),
            other => Err(format!("{:?}", other.map(|namespace| namespace.map(|namespace| namespace.status)))),
        }
    })
    .await;
    for name in ["m1", "m1-impersonator"] {
        let old: Secret = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "karmada.io/system": "true" } },
            "stringData": { "token": "of yesterday", "caBundle": "of yesterday", "more": "x" },
        }))
        .unwrap();
        secrets.create(&PostParams::default(), &old).await.unwrap();
    }
    command(&["join", "m1", "--kubeconfig", &control, "--cluster-kubeconfig", &member]).await;
    for name in ["m1", "m1-impersonator"] {
        let secret = secrets.get(name).await.unwrap();
        let data = secret.data.unwrap_or_default();
        assert!(data.values().all(|value| value.0 != b"of yesterday"), "{name}: {:?}", data.keys());
        assert!(!data.contains_key("more") && data.contains_key("token"), "{name}: {:?}", data.keys());
        assert_eq!(secret.metadata.owner_references.unwrap_or_default().len(), 1);
    }
    world.ready().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finding_25_a_member_that_was_restored_to_an_older_revision_is_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let (data, backup) = (folder.path().join("data"), folder.path().join("backup"));
    let mut options = Options { data_dir: Some(data.clone()), ..Options::default() };
    let mut world = World::with(options.clone()).await;
    world.ready().await;
    options.bind = world.member.handle.url.trim_start_matches("https://").parse().unwrap();
    let works = world.works();
    for name in ["changed", "new"] {
        works.create(&PostParams::default(), &work(name, config_map(name, "one"))).await.unwrap();
        wait_for_value(&world.config_maps(), name, "one").await;
    }

    // A backup, then life goes on: one object changes, another one is made anew.
    let restart = async |world: &mut World, replace: &dyn Fn()| {
        let member = std::mem::replace(&mut world.member, start_member(Options::default()).await);
        member.stop().await;
        // It has to come back where the control plane knows it.
        let place = keep_address(options.bind);
        replace();
        let unused = std::mem::replace(&mut world.member, start_member(options.clone()).await);
        drop(place);
        unused.stop().await;
        world.member_client = world.member.client.clone();
    };
    restart(&mut world, &|| copy(&data, &backup)).await;
    for name in ["changed", "new"] {
        let patch = json!({ "spec": { "workload": { "manifests": [
            work(name, config_map(name, "two")).spec.workload.manifests[0]
        ] } } });
        works.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        wait_for_value(&world.config_maps(), name, "two").await;
    }
    // Revisions go on for a while, so that they are far behind afterwards.
    let maps = world.config_maps();
    for number in 0..20 {
        let busy: ConfigMap = serde_json::from_value(config_map(&format!("busy-{number}"), "x")).unwrap();
        maps.create(&PostParams::default(), &busy).await.unwrap();
    }

    restart(&mut world, &|| {
        std::fs::remove_dir_all(&data).unwrap();
        copy(&backup, &data);
    })
    .await;
    for name in ["changed", "new"] {
        wait_for_value(&world.config_maps(), name, "two").await;
    }
    world.end().await;
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}
