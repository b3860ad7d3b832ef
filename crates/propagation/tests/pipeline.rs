//! From a template and its policy to bindings, Works, the member, and back.

use std::sync::Arc;

use api::cluster::Cluster;
use api::features::{self, Features};
use api::policy::{ClusterPropagationPolicy, ConflictResolution, PropagationPolicy};
use api::work::{ClusterResourceBinding, ResourceBinding, TargetCluster, Work};
use interpreter::pods::PriorityClass;
use interpreter::{AtOnce, Customizations, Interpreter, at_once};
use jiff::Timestamp;
use propagation::binding::{self, Change, Inputs};
use propagation::claim::Claim;
use propagation::delivery::{self, Decision};
use propagation::overrides::Overrides;
use propagation::render::{DesiredWork, Renderer};
use propagation::{Error, dependencies, status};
use serde_json::{Value, json};

fn template() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "namespace": "shop", "name": "web", "uid": "uid-1", "resourceVersion": "10", "generation": 3,
            "labels": {"app": "web"}, "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
            "annotations": {"deployment.kubernetes.io/revision": "1", "note": "x"},
        },
        "spec": {
            "replicas": 5,
            "template": {"spec": {"containers": [
                {"name": "web", "image": "nginx", "resources": {"requests": {"cpu": "100m"}}},
            ]}},
        },
        "status": {"replicas": 1},
    })
}

fn policy() -> PropagationPolicy {
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "shop", "name": "p",
            "labels": {"propagationpolicy.karmada.io/permanent-id": "policy-id"},
        },
        "spec": {
            "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment"}],
            "placement": {"clusterAffinity": {"clusterNames": ["m1", "m2"]}},
            "schedulerName": "default-scheduler",
            "conflictResolution": "Abort",
            "suspension": {"dispatchingOnClusters": {"clusterNames": ["m2"]}},
        },
    }))
    .expect("a policy")
}

struct World {
    template: Value,
    policy: PropagationPolicy,
    features: Features,
    interpreter: Interpreter,
    priority_class: Option<i32>,
}

impl World {
    fn new() -> Self {
        Self {
            template: template(),
            policy: policy(),
            features: Features::default(),
            interpreter: Interpreter::native(),
            priority_class: None,
        }
    }

    fn claim(&self) -> Claim {
        Claim::of(&self.policy).expect("the policy has an id")
    }

    fn build(&self) -> Result<ResourceBinding, Error> {
        done(binding::build(&Inputs {
            template: &self.template,
            policy: &self.policy.spec,
            claim: &self.claim(),
            interpreter: &self.interpreter,
            features: &self.features,
            priority_class: self.priority_class,
        }))
    }

    fn update(&self, existing: &mut ResourceBinding) -> Result<Change, Error> {
        binding::update(existing, &self.build()?, &self.policy.spec, &self.claim())
    }
}

/// Native rules answer at once.
fn done<T>(future: impl Future<Output = T>) -> T {
    at_once(future).expect("nothing here waits")
}

fn json_of(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("plain data")
}

#[test]
fn a_binding_carries_names_marks_and_everything_the_policy_says() {
    let binding = json_of(World::new().build().expect("the binding"));
    assert_eq!(
        binding["metadata"],
        json!({
            "name": "web-deployment", "namespace": "shop",
            "labels": {"propagationpolicy.karmada.io/permanent-id": "policy-id"},
            "annotations": {
                "propagationpolicy.karmada.io/namespace": "shop", "propagationpolicy.karmada.io/name": "p",
            },
            "finalizers": ["karmada.io/binding-controller"],
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "uid-1",
                "controller": true, "blockOwnerDeletion": true,
            }],
        })
    );
    assert_eq!(
        binding["spec"],
        json!({
            "resource": {
                "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "web",
                "uid": "uid-1", "resourceVersion": "10",
            },
            "replicas": 5,
            "replicaRequirements": {"resourceRequest": {"cpu": "100m"}},
            "placement": {"clusterAffinity": {"clusterNames": ["m1", "m2"]}},
            "schedulerName": "default-scheduler",
            "conflictResolution": "Abort",
            "suspension": {"dispatchingOnClusters": {"clusterNames": ["m2"]}},
        })
    );
}

#[test]
fn a_cluster_scoped_template_gets_a_cluster_binding() {
    let template = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "system::tom", "uid": "u"},
    });
    let policy: ClusterPropagationPolicy = serde_json::from_value(json!({
        "metadata": {"name": "c", "labels": {"clusterpropagationpolicy.karmada.io/permanent-id": "i"}},
        "spec": {"resourceSelectors": [], "propagateDeps": true},
    }))
    .expect("a policy");
    let claim = Claim::of(&policy).expect("the policy has an id");
    let binding: ClusterResourceBinding = done(binding::build(&Inputs {
        template: &template,
        policy: &policy.spec,
        claim: &claim,
        interpreter: &Interpreter::native(),
        features: &Features::default(),
        priority_class: None,
    }))
    .expect("the binding");
    let metadata = json_of(&binding.metadata);
    assert_eq!(metadata["name"], "system..tom-clusterrole");
    assert_eq!(metadata["namespace"], Value::Null);
    assert_eq!(metadata["finalizers"], json!(["karmada.io/cluster-resource-binding-controller"]));
    assert_eq!(metadata["labels"], json!({"clusterpropagationpolicy.karmada.io/permanent-id": "i"}));
}

#[test]
fn updating_touches_only_what_the_detector_owns() {
    let mut world = World::new();
    let mut existing = world.build().expect("the binding");
    existing.spec.clusters = vec![TargetCluster { name: "m1".into(), replicas: 5, ..Default::default() }];
    existing.spec.suspension.get_or_insert_default().scheduling = Some(true);
    assert_eq!(world.update(&mut existing).expect("an update"), Change::None);

    world.template["metadata"]["resourceVersion"] = "11".into();
    assert_eq!(world.update(&mut existing).expect("an update"), Change::VersionOnly);

    world.template["spec"]["replicas"] = 7.into();
    world.policy.spec.suspension = None;
    assert_eq!(world.update(&mut existing).expect("an update"), Change::Content);
    assert_eq!(existing.spec.replicas, 7);
    assert_eq!(existing.spec.clusters.len(), 1, "the scheduler's result stays");
    assert_eq!(
        json_of(&existing.spec.suspension),
        json!({"scheduling": true}),
        "the queue's suspension stays"
    );

    existing.spec.suspension = None;
    assert_eq!(world.update(&mut existing).expect("an update"), Change::None);
}

#[test]
fn a_policy_strips_the_marks_of_a_cluster_policy_from_the_binding() {
    let world = World::new();
    let mut existing = world.build().expect("the binding");
    let labels = existing.metadata.labels.get_or_insert_default();
    labels.insert("clusterpropagationpolicy.karmada.io/permanent-id".into(), "c".into());
    labels.insert("other".into(), "stays".into());
    assert_eq!(world.update(&mut existing).expect("an update"), Change::Content);
    assert_eq!(
        json_of(&existing.metadata.labels),
        json!({"propagationpolicy.karmada.io/permanent-id": "policy-id", "other": "stays"})
    );
}

#[test]
fn the_binding_of_an_earlier_object_is_left_to_the_garbage_collector() {
    let mut world = World::new();
    let mut existing = world.build().expect("the binding");
    world.template["metadata"]["uid"] = "uid-2".into();
    assert!(matches!(world.update(&mut existing), Err(Error::ForeignOwner { .. })));
}

#[test]
fn priorities_and_affinity_groups_are_resolved_behind_their_gates() {
    let mut world = World::new();
    world.policy.spec.schedule_priority = serde_json::from_value(json!({
        "priorityClassSource": "KubePriorityClass", "priorityClassName": "high",
    }))
    .expect("a priority");
    world.policy.spec.placement.workload_affinity = serde_json::from_value(json!({
        "affinity": {"groupByLabelKey": "app"}, "antiAffinity": {"groupByLabelKey": "absent"},
    }))
    .expect("an affinity");
    assert!(matches!(world.build(), Err(Error::NoPriorityClass { .. })));
    world.priority_class = Some(100);
    let spec = json_of(world.build().expect("the binding").spec);
    assert_eq!(spec["schedulePriority"], json!({"priority": 100}));
    assert_eq!(spec["workloadAffinityGroups"], Value::Null);
    world.features = Features::default()
        .with(features::WORKLOAD_AFFINITY, true)
        .with(features::RESOURCE_QUOTA_ESTIMATE, true)
        .with(features::PRIORITY_BASED_SCHEDULING, false);
    let spec = json_of(world.build().expect("the binding").spec);
    assert_eq!(spec["workloadAffinityGroups"], json!({"affinityGroup": "app=web"}));
    assert_eq!(spec["schedulePriority"], Value::Null);
    assert_eq!(spec["replicaRequirements"]["namespace"], "shop");
}

#[test]
fn what_a_layer_says_about_needs_gets_the_namespace_and_nothing_else_where_quotas_count() {
    let mut world = World::new();
    world.template["spec"]["template"]["spec"]["priorityClassName"] = "high".into();
    world.features = Features::default().with(features::RESOURCE_QUOTA_ESTIMATE, true);
    let needs =
        |world: &World| json_of(world.build().expect("the binding").spec)["replicaRequirements"].clone();
    world.interpreter = Interpreter::native().with_priority_class(PriorityClass::Needed);
    let expected =
        json!({"resourceRequest": {"cpu": "100m"}, "namespace": "shop", "priorityClassName": "high"});
    assert_eq!(needs(&world), expected);

    let rules = Customizations::new(Arc::new(Timestamp::now)).with_priority_class(PriorityClass::Needed);
    rules.load([&serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {
        "target": {"apiVersion": "apps/v1", "kind": "Deployment"},
        "customizations": {"replicaResource": {"luaScript":
            "function GetReplicas(o) return 1, {nodeClaim = {}, resourceRequest = {cpu = '100m'}} end"}},
    }}))
    .expect("a customization")]);
    world.interpreter = Interpreter::with_layers([Arc::new(AtOnce(rules)) as _]);
    assert_eq!(needs(&world), json!({"resourceRequest": {"cpu": "100m"}, "namespace": "shop"}));
}

fn cluster(name: &str) -> Cluster {
    serde_json::from_value(json!({"metadata": {"name": name}})).expect("a cluster")
}

fn scheduled(world: &World, clusters: &[(&str, i32)]) -> ResourceBinding {
    let mut binding = world.build().expect("the binding");
    binding
        .metadata
        .labels
        .get_or_insert_default()
        .insert("resourcebinding.karmada.io/permanent-id".into(), "binding-id".into());
    binding.spec.clusters = clusters
        .iter()
        .map(|(name, replicas)| TargetCluster {
            name: (*name).into(),
            replicas: *replicas,
            ..Default::default()
        })
        .collect();
    binding
}

fn render(world: &World, binding: &ResourceBinding, overrides: &Overrides) -> Vec<DesiredWork> {
    let renderer =
        Renderer::new(binding, &world.template, &world.interpreter, &world.features).expect("a renderer");
    renderer
        .targets()
        .iter()
        .map(|target| {
            let revised = done(renderer.revise(target)).expect("a revised template");
            renderer.render(target, revised, &cluster(&target.name), overrides).expect("a work").work
        })
        .collect()
}

#[test]
fn a_work_is_named_marked_and_pruned_to_the_byte() {
    let world = World::new();
    let works = render(&world, &scheduled(&world, &[("m1", 2), ("m2", 3)]), &Overrides::default());
    let work = json_of(works[0].create());
    assert_eq!(
        work["metadata"],
        json!({
            "namespace": "karmada-es-m1", "name": api::names::work("Deployment", "web", "shop"),
            "labels": {"resourcebinding.karmada.io/permanent-id": "binding-id"},
            "annotations": {
                "resourcebinding.karmada.io/namespace": "shop", "resourcebinding.karmada.io/name": "web-deployment",
                "work.karmada.io/conflict-resolution": "abort",
            },
            "finalizers": ["karmada.io/execution-controller"],
        })
    );
    assert_eq!(work["spec"]["suspendDispatching"], json!(false));
    assert_eq!(work["spec"]["preserveResourcesOnDeletion"], json!(false));
    assert_eq!(json_of(works[1].create())["spec"]["suspendDispatching"], json!(true));
    let name = api::names::work("Deployment", "web", "shop");
    assert_eq!(
        work["spec"]["workload"]["manifests"],
        json!([{
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "namespace": "shop", "name": "web",
                "labels": {
                    "app": "web", "karmada.io/managed": "true",
                    "resourcebinding.karmada.io/permanent-id": "binding-id",
                },
                "annotations": {
                    "note": "x",
                    "resourcebinding.karmada.io/name": "web-deployment",
                    "resourcebinding.karmada.io/namespace": "shop",
                    "resourcetemplate.karmada.io/generation": "3",
                    "resourcetemplate.karmada.io/managed-annotations": "note,resourcebinding.karmada.io/name,resourcebinding.karmada.io/namespace,resourcetemplate.karmada.io/generation,resourcetemplate.karmada.io/managed-annotations,resourcetemplate.karmada.io/managed-labels,resourcetemplate.karmada.io/uid,work.karmada.io/conflict-resolution,work.karmada.io/name,work.karmada.io/namespace",
                    "resourcetemplate.karmada.io/managed-labels": "app,karmada.io/managed,resourcebinding.karmada.io/permanent-id",
                    "resourcetemplate.karmada.io/uid": "uid-1",
                    "work.karmada.io/conflict-resolution": "abort",
                    "work.karmada.io/name": name,
                    "work.karmada.io/namespace": "karmada-es-m1",
                },
            },
            "spec": {
                "replicas": 2,
                "template": {"spec": {"containers": [
                    {"name": "web", "image": "nginx", "resources": {"requests": {"cpu": "100m"}}},
                ]}},
            },
        }])
    );
}

#[test]
fn a_second_rendering_changes_nothing_and_admissions_stamp_is_respected() {
    let world = World::new();
    let works = render(&world, &scheduled(&world, &[("m1", 2)]), &Overrides::default());
    let mut stored = works[0].create();
    // What admission does: a permanent id on the Work, and the same stamp on the manifest.
    stored
        .metadata
        .labels
        .get_or_insert_default()
        .insert("work.karmada.io/permanent-id".into(), "work-id".into());
    propagation::render::stamp(&mut stored.spec.workload.manifests[0], Some("work-id"));
    assert!(!works[0].update(&mut stored).expect("an update"));

    let annotations = stored.metadata.annotations.get_or_insert_default();
    annotations.insert("policy.karmada.io/applied-overrides".into(), "[]".into());
    annotations.insert("mine".into(), "stays".into());
    assert!(works[0].update(&mut stored).expect("an update"));
    let annotations = stored.metadata.annotations.clone().unwrap_or_default();
    assert!(!annotations.contains_key("policy.karmada.io/applied-overrides"), "a stale record goes");
    assert!(annotations.contains_key("mine"));
}

#[test]
fn a_work_that_is_being_deleted_is_not_revived() {
    let world = World::new();
    let works = render(&world, &scheduled(&world, &[("m1", 2)]), &Overrides::default());
    let mut stored = works[0].create();
    let mut metadata = json_of(&stored.metadata);
    metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    stored.metadata = serde_json::from_value(metadata).expect("metadata");
    assert!(matches!(works[0].update(&mut stored), Err(Error::WorkBeingDeleted { .. })));
}

#[test]
fn a_work_of_another_binding_is_not_written() {
    let world = World::new();
    let works = render(&world, &scheduled(&world, &[("m1", 2)]), &Overrides::default());
    let mut stored = works[0].create();
    let mut set = |id: &str, namespace: &str| {
        stored.metadata.labels = Some([("resourcebinding.karmada.io/permanent-id".into(), id.into())].into());
        let notes = stored.metadata.annotations.get_or_insert_default();
        notes.insert("resourcebinding.karmada.io/namespace".into(), namespace.into());
        let before = stored.clone();
        let result = works[0].update(&mut stored);
        (result, before == stored)
    };
    let (result, untouched) = set("other-id", "other");
    let error = result.expect_err("it is another tenant's").to_string();
    assert!(
        error.starts_with("work karmada-es-m1/") && error.contains("belongs to binding other/"),
        "{error}"
    );
    assert!(untouched);
    assert!(set("other-id", "shop").0.is_ok(), "the binding was made anew under its old name");
}

#[test]
fn overrides_win_over_replicas_and_are_recorded() {
    let world = World::new();
    let mut overrides = Overrides::default();
    overrides.insert(Arc::new(
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "o"},
            "spec": {"overrideRules": [{"overriders": {
                "plaintext": [{"path": "/spec/replicas", "operator": "replace", "value": 9}],
                "annotationsOverrider": [
                    {"operator": "add", "value": {"work.karmada.io/conflict-resolution": "overwrite"}},
                ],
            }}]},
        }))
        .expect("a policy"),
    ));
    let works = render(&world, &scheduled(&world, &[("m1", 2)]), &overrides);
    let work = json_of(works[0].create());
    let manifest = &work["spec"]["workload"]["manifests"][0];
    assert_eq!(manifest["spec"]["replicas"], 9);
    let annotations = &work["metadata"]["annotations"];
    assert_eq!(annotations["work.karmada.io/conflict-resolution"], "overwrite");
    assert_eq!(manifest["metadata"]["annotations"]["work.karmada.io/conflict-resolution"], "overwrite");
    assert!(
        annotations["policy.karmada.io/applied-overrides"]
            .as_str()
            .is_some_and(|text| text.contains("\"o\""))
    );
    assert_eq!(annotations["policy.karmada.io/applied-cluster-overrides"], Value::Null);
}

#[test]
fn a_divided_jobs_completions_are_divided_like_its_replicas() {
    let mut world = World::new();
    world.template = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": "shop", "name": "j", "uid": "uid-b"},
        "spec": {"parallelism": 4, "completions": 8, "template": {}},
    });
    world.policy.spec.placement.replica_scheduling =
        serde_json::from_value(json!({"replicaSchedulingType": "Divided"})).expect("a strategy");
    let binding = scheduled(&world, &[("m1", 1), ("m2", 3)]);
    let completions = |works: Vec<DesiredWork>| -> Vec<Value> {
        let field =
            |work: DesiredWork| json_of(work.create())["spec"]["workload"]["manifests"][0]["spec"].clone();
        works.into_iter().map(field).collect()
    };
    assert_eq!(
        completions(render(&world, &binding, &Overrides::default())),
        [
            json!({"parallelism": 1, "completions": 2, "template": {}}),
            json!({"parallelism": 3, "completions": 6, "template": {}}),
        ]
    );
    world.template["spec"].as_object_mut().expect("a map").remove("completions");
    let binding = scheduled(&world, &[("m1", 1)]);
    assert_eq!(
        completions(render(&world, &binding, &Overrides::default())),
        [json!({"parallelism": 1, "template": {}})]
    );
}

#[test]
fn the_state_of_a_failed_copy_is_handed_to_its_only_successor() {
    let mut world = World::new();
    world.features = Features::default().with(features::STATEFUL_FAILOVER_INJECTION, true);
    let mut binding = scheduled(&world, &[("m2", 1)]);
    binding.spec.graceful_eviction_tasks = serde_json::from_value(json!([{
        "fromCluster": "m1", "purgeMode": "Directly", "reason": "ApplicationFailure", "producer": "x",
        "preservedLabelState": {"state": "7"}, "clustersBeforeFailover": ["m1"],
    }]))
    .expect("tasks");
    let label = |works: Vec<DesiredWork>| {
        json_of(works[0].create())["spec"]["workload"]["manifests"][0]["metadata"]["labels"]["state"].clone()
    };
    assert_eq!(label(render(&world, &binding, &Overrides::default())), "7");
    binding.spec.graceful_eviction_tasks[0].purge_mode = Some("Immediately".into());
    assert_eq!(label(render(&world, &binding, &Overrides::default())), "7", "its name up to v1.18");
    binding.spec.graceful_eviction_tasks[0].clusters_before_failover = vec!["m2".into()];
    assert_eq!(label(render(&world, &binding, &Overrides::default())), Value::Null);
}

#[test]
fn expected_clusters_keep_graceful_evictions_and_drop_direct_ones() {
    let world = World::new();
    let mut binding = scheduled(&world, &[("m1", 1)]);
    binding.spec.required_by = serde_json::from_value(json!([
        {"namespace": "shop", "name": "a", "clusters": [{"name": "m1", "replicas": 9}, {"name": "m4", "replicas": 2}]},
    ]))
    .expect("referrers");
    binding.spec.graceful_eviction_tasks = serde_json::from_value(json!([
        {"fromCluster": "m2", "purgeMode": "Gracefully", "reason": "A", "producer": "x"},
        {"fromCluster": "m3", "purgeMode": "Directly", "reason": "A", "producer": "x"},
        {"fromCluster": "m5", "purgeMode": "Graciously", "reason": "A", "producer": "x"},
        {"fromCluster": "m6", "purgeMode": "Immediately", "reason": "A", "producer": "x"},
    ]))
    .expect("tasks");
    let expected = propagation::expected_clusters(&binding.spec);
    assert_eq!(expected.into_iter().collect::<Vec<_>>(), ["m1", "m2", "m4", "m5"]);
    let purged = propagation::directly_purged_clusters(&binding.spec);
    assert_eq!(purged.into_iter().collect::<Vec<_>>(), ["m3", "m6"]);
    let targets: Vec<_> = propagation::target_clusters(&binding.spec)
        .into_iter()
        .map(|target| (target.name, target.replicas))
        .collect();
    assert_eq!(targets, [("m1".to_owned(), 1), ("m4".to_owned(), 2)]);
}

/// What a member makes of a manifest: its own metadata, status and allocations.
fn in_member(manifest: &Value) -> Value {
    let mut object = manifest.clone();
    object["metadata"]["uid"] = "member-uid".into();
    object["metadata"]["resourceVersion"] = "77".into();
    object["metadata"]["generation"] = 1.into();
    object["status"] = json!({"replicas": 2});
    object
}

fn manifest(template: Value) -> Value {
    let work = DesiredWork::new("m1", template, [].into(), [].into()).expect("a work").create();
    work.spec.workload.manifests[0].clone()
}

#[test]
fn an_object_that_is_as_wanted_is_not_written_again() {
    let interpreter = Interpreter::native();
    let service = |address: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "s"},
            "spec": {"ports": [{"port": 80}], "clusterIP": address, "clusterIPs": [address]},
        })
    };
    let plain = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "shop", "name": "a"}});
    for (template, upstream_repeats) in [
        (template(), false),
        (service("10.1.1.1"), true),
        (service("None"), false),
        (plain("ServiceAccount"), true),
        (plain("ConfigMap"), false),
        (plain("Pod"), true),
    ] {
        let desired = manifest(template);
        let mut observed = in_member(&desired);
        if observed["kind"] == "Service" && observed["spec"]["clusterIP"] != "None" {
            observed["spec"]["clusterIP"] = "10.9.9.9".into();
            observed["spec"]["clusterIPs"] = json!(["10.9.9.9"]);
        }
        if observed["kind"] == "ServiceAccount" {
            observed["secrets"] = json!([{"name": "a-token-x"}]);
        }
        observed["metadata"]["annotations"]["theirs"] = "stays".into();
        observed["metadata"]["finalizers"] = json!(["member/finalizer"]);
        let decision = done(delivery::decide(&desired, &observed, &interpreter)).expect("a decision");
        assert_eq!(decision, Decision::Keep, "{}", desired["kind"]);
        let repeats = done(delivery::upstream_repeats(&desired, &observed, &interpreter)).expect("an answer");
        assert_eq!(repeats, upstream_repeats, "{desired}");
    }
}

#[test]
fn an_update_keeps_what_the_member_owns_and_withdraws_what_we_withdrew() {
    let desired = manifest(template());
    let mut observed = in_member(&desired);
    observed["spec"]["replicas"] = 99.into();
    observed["metadata"]["labels"]["old"] = "ours".into();
    observed["metadata"]["labels"]["theirs"] = "stays".into();
    observed["metadata"]["labels"]["app"] = "tampered".into();
    let managed = "resourcetemplate.karmada.io/managed-labels";
    observed["metadata"]["annotations"][managed] = "app,karmada.io/managed,old".into();
    observed["metadata"]["ownerReferences"] = json!([{"uid": "o"}]);
    let decision = done(delivery::decide(&desired, &observed, &Interpreter::native())).expect("a decision");
    let Decision::Update(object) = decision else { panic!("expected an update, got {decision:?}") };
    assert_eq!(object["spec"]["replicas"], 5);
    assert_eq!(
        object["metadata"]["labels"],
        json!({"app": "web", "karmada.io/managed": "true", "theirs": "stays"})
    );
    assert_eq!(object["metadata"]["resourceVersion"], "77");
    assert_eq!(object["metadata"]["ownerReferences"], json!([{"uid": "o"}]));
    assert_eq!(object["metadata"]["annotations"][managed], "app,karmada.io/managed");
}

#[test]
fn a_foreign_object_is_touched_only_with_permission() {
    let mut desired = manifest(template());
    let mut observed = in_member(&desired);
    observed["metadata"]["labels"].as_object_mut().expect("a map").remove("karmada.io/managed");
    let interpreter = Interpreter::native();
    assert_eq!(
        done(delivery::decide(&desired, &observed, &interpreter)).expect("a decision"),
        Decision::Foreign
    );
    desired["metadata"]["annotations"]["work.karmada.io/conflict-resolution"] = "overwrite".into();
    assert!(matches!(
        done(delivery::decide(&desired, &observed, &interpreter)).expect("a decision"),
        Decision::Update(_)
    ));
}

#[test]
fn only_changes_beyond_status_are_drift() {
    let observed = in_member(&manifest(template()));
    let mut churn = observed.clone();
    churn["status"]["replicas"] = 3.into();
    churn["metadata"]["resourceVersion"] = "78".into();
    assert!(!delivery::drifted(&observed, &churn));
    churn["spec"]["replicas"] = 1.into();
    assert!(delivery::drifted(&observed, &churn));
}

#[test]
fn a_released_manifest_carries_none_of_our_marks() {
    let world = World::new();
    let mut claimed = world.template.clone();
    world.claim().mark(&mut claimed);
    let mut object = manifest(claimed);
    delivery::release(&mut object);
    assert_eq!(
        object["metadata"],
        json!({"namespace": "shop", "name": "web", "labels": {"app": "web"}, "annotations": {"note": "x"}})
    );
}

fn config_map(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}"), "labels": labels},
    })
}

fn independent(name: &str, resolution: &str, preserve: Option<bool>) -> ResourceBinding {
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "shop", "name": name,
            "labels": {"resourcebinding.karmada.io/permanent-id": format!("id-{name}")},
        },
        "spec": {
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "clusters": [{"name": "m1", "replicas": 2}],
            "conflictResolution": resolution, "preserveResourcesOnDeletion": preserve, "propagateDeps": true,
        },
    }))
    .expect("a binding")
}

#[test]
fn an_attached_binding_follows_those_that_require_it() {
    let (a, b) = (independent("a", "Abort", None), independent("b", "Overwrite", Some(true)));
    let get = |_: &str, name: &str| match name {
        "a" => Some(&a),
        "b" => Some(&b),
        _ => None,
    };
    let object = config_map("cfg", json!({}));
    let first = dependencies::build_attached(&a, &object);
    assert_eq!(first.metadata.name.as_deref(), Some("cfg-configmap"));
    let label = |name: &str| dependencies::depended_by_label("shop", name);
    assert_eq!(json_of(&first.metadata.labels), json!({label("a"): "id-a"}));
    assert_eq!(
        json_of(&first.spec.required_by),
        json!([{"namespace": "shop", "name": "a", "clusters": [{"name": "m1", "replicas": 2}]}])
    );
    assert!(first.spec.placement.is_none());

    let mut existing = first.clone();
    assert_eq!(dependencies::attach(&mut existing, &first, get).expect("attached").1, None);
    assert_eq!(existing.spec.preserve_resources_on_deletion, Some(false));
    assert!(
        !dependencies::attach(&mut existing, &first, get).expect("attached").0,
        "a second time changes nothing"
    );

    let second = dependencies::build_attached(&b, &object);
    let (changed, disagreement) = dependencies::attach(&mut existing, &second, get).expect("attached");
    assert!(changed);
    assert_eq!(
        disagreement.as_deref(),
        Some(
            "ConflictResolution conflicted (Overwrite vs Abort); \
             PreserveResourcesOnDeletion conflicted (true vs false)"
        )
    );
    assert_eq!(existing.spec.conflict_resolution, Some(ConflictResolution::Overwrite));
    assert_eq!(existing.spec.preserve_resources_on_deletion, Some(true));

    assert!(dependencies::detach(&mut existing, "shop", "b", get).expect("detached"));
    assert_eq!(existing.spec.conflict_resolution, Some(ConflictResolution::Abort));
    assert!(dependencies::detach(&mut existing, "shop", "a", get).expect("detached"));
    assert_eq!(existing.spec.conflict_resolution, None);
    assert!(existing.spec.required_by.is_empty());
    assert!(!dependencies::detach(&mut existing, "shop", "a", get).expect("detached"));

    let unknown = dependencies::build_attached(&independent("c", "Abort", None), &object);
    assert!(matches!(dependencies::attach(&mut existing, &unknown, get), Err(Error::NoReferrer { .. })));
}

#[test]
fn an_objects_own_policy_keeps_its_strategies() {
    let b = independent("b", "Overwrite", Some(true));
    let attached = dependencies::build_attached(&b, &config_map("cfg", json!({})));
    let mut existing = attached.clone();
    existing.spec.required_by.clear();
    existing.spec.placement = Some(Default::default());
    existing.spec.conflict_resolution = Some(ConflictResolution::Abort);
    existing.spec.preserve_resources_on_deletion = None;
    let (changed, disagreement) =
        dependencies::attach(&mut existing, &attached, |_, _| None).expect("attached");
    assert!(changed && disagreement.is_none());
    assert_eq!(existing.spec.conflict_resolution, Some(ConflictResolution::Abort));
    assert_eq!(existing.spec.preserve_resources_on_deletion, None);
    assert_eq!(existing.spec.required_by.len(), 1);
}

#[test]
fn dependents_are_found_by_name_and_by_selector() {
    let mut binding = independent("a", "Abort", None);
    let references: Vec<_> = serde_json::from_value(json!([
        {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "shop", "name": "cfg"},
        {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "shop", "labelSelector": {"matchLabels": {"x": "1"}}},
    ]))
    .expect("references");
    assert!(dependencies::record(&mut binding, &references));
    assert!(!dependencies::record(&mut binding, &references));
    assert_eq!(
        binding.metadata.annotations.as_ref().and_then(|all| all.get("resourcebinding.karmada.io/dependencies")),
        Some(
            &r#"[{"apiVersion":"v1","kind":"ConfigMap","namespace":"shop","name":"cfg"},{"apiVersion":"v1","kind":"ConfigMap","namespace":"shop","labelSelector":{"matchLabels":{"x":"1"}}}]"#
                .to_owned()
        )
    );
    assert_eq!(dependencies::parse(&binding).expect("readable"), references);

    let mut index = dependencies::DependencyIndex::default();
    index.insert(&binding).expect("filed");
    assert_eq!(index.dependents(&config_map("cfg", json!({}))), [("shop", "a")]);
    assert_eq!(index.dependents(&config_map("other", json!({"x": "1"}))), [("shop", "a")]);
    assert!(index.dependents(&config_map("other", json!({"x": "2"}))).is_empty());
    index.remove("shop", "a");
    assert!(index.dependents(&config_map("cfg", json!({}))).is_empty());

    let attached =
        |name: &str| dependencies::build_attached(&binding, &config_map(name, json!({}))).spec.resource;
    let orphan = |name: &str, labels: Option<Value>| {
        let object = labels.map(|labels| config_map(name, labels));
        dependencies::is_orphan(&attached(name), &references, object.as_ref()).expect("valid selectors")
    };
    assert!(!orphan("cfg", None));
    assert!(!orphan("other", Some(json!({"x": "1"}))));
    assert!(orphan("other", Some(json!({"x": "2"}))));
    assert!(orphan("other", None));
}

fn now() -> Timestamp {
    "2026-01-02T03:04:05.678Z".parse().expect("a time")
}

fn work_in(world: &World, cluster_name: &str, status: Value) -> Work {
    let binding = scheduled(world, &[(cluster_name, 2)]);
    let mut work = render(world, &binding, &Overrides::default())[0].create();
    work.status = serde_json::from_value(status).expect("a status");
    work
}

fn applied(status: &str, message: &str) -> Value {
    json!([{
        "type": "Applied", "status": status, "reason": "R", "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }])
}

#[test]
fn works_report_into_the_binding() {
    let world = World::new();
    let identifier = json!({
        "ordinal": 0, "group": "apps", "version": "v1", "kind": "Deployment", "resource": "",
        "namespace": "shop", "name": "web",
    });
    // Nulls would not survive the way to the server: merge patches cannot carry them in lists.
    let reflected =
        json!({"replicas": 2, "conditions": [{"type": "A", "lastProbeTime": null}], "selector": null});
    let reported = |health: &str| {
        json!({
            "conditions": applied("True", ""),
            "manifestStatuses": [{"identifier": identifier, "status": reflected, "health": health}],
        })
    };
    let works = [
        work_in(&world, "m2", json!({"conditions": applied("False", "no room")})),
        work_in(&world, "m1", reported("Healthy")),
        work_in(&world, "m3", json!({"conditions": applied("True", "")})),
        work_in(&world, "m4", json!({})),
    ];
    let mut binding = scheduled(&world, &[("m1", 2), ("m2", 2), ("m3", 1), ("m4", 1)]);
    let reports = |works: &[Work]| {
        let reports = status::aggregate(works, &binding.spec.resource);
        assert!(reports.skipped.is_empty(), "{reports:?}");
        reports.items
    };
    let (all, first) = (reports(&works), reports(&works[1..2]));
    assert!(status::update_binding(&mut binding, &all, now()));
    assert_eq!(
        json_of(&binding.status.aggregated_status),
        json!([
            {"clusterName": "m1", "status": {"replicas": 2, "conditions": [{"type": "A"}]}, "applied": true, "health": "Healthy"},
            {"clusterName": "m2", "appliedMessage": "no room", "health": "Unknown"},
            {"clusterName": "m3", "applied": true, "health": "Unknown"},
            {"clusterName": "m4", "health": "Unknown"},
        ])
    );
    let condition = |binding: &ResourceBinding| json_of(&binding.status.conditions[0]);
    assert_eq!(condition(&binding)["status"], "False");
    assert_eq!(condition(&binding)["reason"], "FullyAppliedFailed");
    assert!(!status::update_binding(&mut binding, &all, now()), "a second time changes nothing");

    binding.spec.clusters.truncate(1);
    let later = "2027-01-01T00:00:00Z".parse().expect("a time");
    assert!(status::update_binding(&mut binding, &first, later));
    assert_eq!(
        condition(&binding),
        json!({
            "type": "FullyApplied", "status": "True", "reason": "FullyAppliedSuccess",
            "message": "All works have been successfully applied", "lastTransitionTime": "2027-01-01T00:00:00Z",
        })
    );
    binding.spec.clusters.clear();
    status::update_binding(&mut binding, &[], later);
    assert_eq!(condition(&binding)["status"], "False", "no clusters are not fully applied");
}

#[test]
fn a_work_that_does_not_fit_holds_up_no_report() {
    let world = World::new();
    let applied = || json!({"conditions": applied("True", "")});
    let (ours, other) = (work_in(&world, "m1", applied()), work_in(&world, "m2", applied()));
    let named = |name: &str, mut work: Work| {
        work.metadata.name = Some(name.to_owned());
        work
    };
    let empty = |mut work: Work| {
        work.spec.workload.manifests.clear();
        work
    };
    let elsewhere = |mut work: Work| {
        work.metadata.namespace = Some("shop".to_owned());
        work
    };
    let pending = || work_in(&world, "m1", json!({}));
    let resource = scheduled(&world, &[("m1", 2), ("m2", 2)]).spec.resource;
    // The Works, which clusters report and have applied, and what is said about those that do not count.
    let cases = [
        ("none", vec![], vec![("m1", true), ("m2", true)], vec![]),
        (
            "without the manifest",
            vec![empty(named("a", pending()))],
            vec![("m1", true), ("m2", true)],
            vec!["work karmada-es-m1/a has no manifest of Deployment shop/web".to_owned()],
        ),
        (
            "a second one of the same object, whatever its name",
            vec![named("a", pending()), named("zz", pending())],
            vec![("m1", true), ("m2", true)],
            ["a", "zz"]
                .map(|name| {
                    let counted = ours.metadata.name.as_deref().expect("a name");
                    format!("work karmada-es-m1/{name} has the same object as karmada-es-m1/{counted}, which counts")
                })
                .to_vec(),
        ),
        (
            "in no execution space",
            vec![elsewhere(pending())],
            vec![("m1", true), ("m2", true)],
            vec!["work namespace shop is not an execution space".to_owned()],
        ),
        ("of a cluster of its own", vec![work_in(&world, "m3", json!({}))], vec![("m1", true), ("m2", true), ("m3", false)], vec![]),
    ];
    for (what, strays, expected, told) in cases {
        for turned in [false, true] {
            let mut works = [vec![ours.clone(), other.clone()], strays.clone()].concat();
            if turned {
                works.reverse();
            }
            let reports = status::aggregate(&works, &resource);
            let items: Vec<_> =
                reports.items.iter().map(|item| (item.cluster_name.as_str(), item.applied)).collect();
            assert_eq!(items, expected, "{what}");
            let skipped: Vec<String> = reports.skipped.iter().map(ToString::to_string).collect();
            assert_eq!(skipped, told, "{what}");
        }
    }
    // Without one of the expected name, the first by name counts.
    let works = [named("b", pending()), named("a", ours)];
    assert!(status::aggregate(&works, &resource).items[0].applied);
}

#[test]
fn a_member_object_reports_status_and_health() {
    let world = World::new();
    let work = work_in(&world, "m1", json!({}));
    let mut observed = in_member(&work.spec.workload.manifests[0]);
    observed["status"] =
        json!({"replicas": 2, "observedGeneration": 1, "updatedReplicas": 5, "availableReplicas": 5});
    let report = done(status::report(&work, &observed, &world.interpreter)).expect("a report");
    assert_eq!(
        json_of(&report.status),
        json!({
            "identifier": {
                "ordinal": 0, "group": "apps", "version": "v1", "kind": "Deployment", "resource": "",
                "namespace": "shop", "name": "web",
            },
            "status": {
                "generation": 1, "resourceTemplateGeneration": 3, "replicas": 2, "updatedReplicas": 5,
                "availableReplicas": 5, "observedGeneration": 1,
            },
            "health": "Healthy",
        })
    );
    let mut work = work;
    assert!(status::update_work(&mut work, report.status.clone()));
    assert!(!status::update_work(&mut work, report.status));
}

/// The server sets the class and puts it back: to take it out would be a write that never ends.
#[test]
fn the_class_of_a_pod_stays_in_the_status_of_its_template() {
    let world = World::new();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]},
        "status": {"phase": "Pending", "qosClass": "BestEffort"}});
    let items: Vec<_> =
        serde_json::from_value(json!([{"clusterName": "m1", "status": {"phase": "Running"}}]))
            .expect("items");
    let updated = done(status::update_template(&pod, &items, &world.interpreter, now())).expect("a result");
    let updated = updated.expect("a new status");
    assert_eq!(
        (&updated["status"]["phase"], &updated["status"]["qosClass"]),
        (&json!("Running"), &json!("BestEffort"))
    );
    assert_eq!(
        done(status::update_template(&updated, &items, &world.interpreter, now())).expect("a result"),
        None
    );
}

#[test]
fn the_template_gets_the_sum_and_nothing_when_it_has_it_already() {
    let world = World::new();
    let items: Vec<_> = serde_json::from_value(json!([
        {"clusterName": "m1", "status": {"replicas": 2, "readyReplicas": 2}},
        {"clusterName": "m2", "status": {"replicas": 3}},
    ]))
    .expect("items");
    let updated =
        done(status::update_template(&world.template, &items, &world.interpreter, now())).expect("a result");
    let updated = updated.expect("a new status");
    assert_eq!(updated["status"], json!({"replicas": 5, "readyReplicas": 2}));
    assert_eq!(
        done(status::update_template(&updated, &items, &world.interpreter, now())).expect("a result"),
        None
    );
    let gadget = json!({"apiVersion": "example.io/v1", "kind": "Gadget"});
    assert_eq!(
        done(status::update_template(&gadget, &items, &world.interpreter, now())).expect("a result"),
        None
    );
}
