//! A world at rest, and each way to break it.

use serde_json::json;

use super::*;

const WORK: &str = "nginx-687f7fb96f";

fn deployment(replicas: i64, ready: i64) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "nginx", "namespace": "default", "uid": "template"},
        "spec": {"replicas": replicas},
        "status": {"replicas": ready, "readyReplicas": ready, "availableReplicas": ready, "updatedReplicas": ready}})
}

fn work(cluster: &str, replicas: i64) -> Value {
    json!({"apiVersion": "work.karmada.io/v1alpha1", "kind": "Work",
        "metadata": {"name": WORK, "namespace": format!("karmada-es-{cluster}"),
            "finalizers": ["karmada.io/execution-controller"],
            "annotations": {"resourcebinding.karmada.io/namespace": "default",
                "resourcebinding.karmada.io/name": "nginx-deployment"}},
        "spec": {"workload": {"manifests": [deployment(replicas, 0)]}},
        "status": {"conditions": [{"type": "Applied", "status": "True"}]}})
}

fn inside(cluster: &str, replicas: i64) -> Value {
    let mut object = deployment(replicas, replicas);
    object["metadata"]["annotations"] =
        json!({"work.karmada.io/namespace": format!("karmada-es-{cluster}"), "work.karmada.io/name": WORK});
    object
}

/// Three replicas in the first member, one in the second.
fn world() -> State {
    let cluster = |name: &str| {
        json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": name, "uid": name, "finalizers": ["karmada.io/cluster-controller"]}})
    };
    let binding = json!({"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
        "metadata": {"name": "nginx-deployment", "namespace": "default",
            "finalizers": ["karmada.io/binding-controller"]},
        "spec": {"replicas": 4,
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": "nginx"},
            "placement": {"replicaScheduling": {"replicaSchedulingType": "Divided"}},
            "clusters": [{"name": "m1", "replicas": 3}, {"name": "m2", "replicas": 1}]},
        "status": {"conditions": [{"type": "Scheduled", "status": "True"}]}});
    let owned = json!({"apiVersion": "work.karmada.io/v1alpha1", "kind": "Work",
        "metadata": {"name": "owned", "namespace": "karmada-es-m1", "ownerReferences": [{"uid": "m1"}]}});
    State {
        plane: vec![
            cluster("m1"),
            cluster("m2"),
            deployment(4, 4),
            binding,
            work("m1", 3),
            work("m2", 1),
            owned,
        ],
        members: BTreeMap::from([
            ("m1".to_owned(), vec![inside("m1", 3)]),
            ("m2".to_owned(), vec![inside("m2", 1)]),
        ]),
        controllers: "*,-unifiedAuth".to_owned(),
    }
}

/// Returns an object of the control plane, to be changed.
fn of<'a>(state: &'a mut State, kind: &str) -> &'a mut Value {
    state.plane.iter_mut().find(|object| object["kind"] == kind).expect("it is in the world")
}

/// Fails unless exactly these complaints are made, which begin so, once the world is broken.
#[track_caller]
fn breaks(how: impl FnOnce(&mut State), expected: &[&str]) {
    let mut state = world();
    how(&mut state);
    let found = complaints(&state);
    let alike = found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| found.contains(expected));
    assert!(alike, "expected {expected:#?}, found {found:#?}");
}

#[test]
fn a_world_at_rest_is_fine() {
    breaks(|_| {}, &[]);
}

#[test]
fn a_work_without_its_binding_is_noticed() {
    let gone = "Work karmada-es-m1/nginx-687f7fb96f has no binding: there is no ResourceBinding default/nginx-deployment";
    breaks(
        |state| state.plane.retain(|object| object["kind"] != "ResourceBinding"),
        &[gone, "Work karmada-es-m2/"],
    );
}

#[test]
fn a_work_in_a_cluster_that_is_not_wanted_is_noticed() {
    let unwanted = "Work karmada-es-m2/nginx-687f7fb96f is there although ResourceBinding default/nginx-deployment does not want m2";
    let move_all = |state: &mut State| {
        of(state, "ResourceBinding")["spec"]["clusters"] = json!([{"name": "m1", "replicas": 4}]);
        state.plane[4] = work("m1", 4);
        state.members.insert("m1".to_owned(), vec![inside("m1", 4)]);
    };
    breaks(move_all, &[unwanted]);
    // Unless it is to stay for a while, or its removal waits for somebody's word.
    let evicting = |state: &mut State| {
        move_all(state);
        of(state, "ResourceBinding")["spec"]["gracefulEvictionTasks"] = json!([{"fromCluster": "m2"}]);
    };
    breaks(evicting, &[]);
    let held = |state: &mut State| {
        move_all(state);
        of(state, "Deployment")["metadata"]["annotations"] = json!({"policy.karmada.io/removals-held": "1"});
    };
    breaks(held, &[]);
}

#[test]
fn a_work_without_its_owner_is_noticed() {
    let orphan = |state: &mut State| state.plane[6]["metadata"]["ownerReferences"][0]["uid"] = "gone".into();
    breaks(orphan, &["Work karmada-es-m1/owned names no binding, and no owner that exists"]);
    let nobody = |state: &mut State| state.plane[6]["metadata"]["ownerReferences"] = json!([]);
    breaks(nobody, &["Work karmada-es-m1/owned names no binding, and no owner that exists"]);
}

#[test]
fn a_wish_without_its_work_is_noticed() {
    let lost = |state: &mut State| {
        state.plane.remove(5);
        state.members.insert("m2".to_owned(), Vec::new());
        of(state, "Deployment")["status"] = deployment(4, 3)["status"].clone();
    };
    breaks(lost, &["ResourceBinding default/nginx-deployment wants m2 and has no Work there"]);
    // What somebody else needs is wanted as well.
    let needed = |state: &mut State| {
        let third = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "m3"}});
        state.plane.push(third);
        of(state, "ResourceBinding")["spec"]["requiredBy"] = json!([{"clusters": [{"name": "m3"}]}]);
    };
    breaks(needed, &["ResourceBinding default/nginx-deployment wants m3 and has no Work there"]);
    let suspended = |state: &mut State| {
        needed(state);
        of(state, "ResourceBinding")["spec"]["suspension"] = json!({"dispatching": true});
    };
    breaks(suspended, &[]);
    let only_scheduled = |state: &mut State| {
        needed(state);
        state.plane.retain(|object| object["kind"] != "Work");
        state.members.clear();
        of(state, "ResourceBinding")["metadata"]["finalizers"] = json!([]);
        state.controllers = "scheduler,cluster".to_owned();
    };
    breaks(only_scheduled, &[]);
}

#[test]
fn a_binding_without_its_template_is_noticed() {
    let gone = "ResourceBinding default/nginx-deployment has no template";
    breaks(|state| state.plane.retain(|object| object["kind"] != "Deployment"), &[gone]);
    let other_group = |state: &mut State| of(state, "Deployment")["apiVersion"] = "example.io/v1".into();
    breaks(other_group, &[gone]);
    // Where nobody makes bindings of templates, the test has made them of nothing.
    let by_hand = |state: &mut State| {
        state.plane.retain(|object| object["kind"] != "Deployment");
        state.controllers = "scheduler,binding,cluster,execution".to_owned();
    };
    breaks(by_hand, &[]);
}

#[test]
fn an_object_without_its_work_is_noticed() {
    let left_over = |state: &mut State| {
        let mut object = inside("m1", 1);
        object["metadata"]["name"] = "other".into();
        object["metadata"]["annotations"]["work.karmada.io/name"] = "other-work".into();
        state.members.get_mut("m1").expect("a member").push(object);
    };
    breaks(left_over, &["Deployment default/other in m1 has no Work: there is no karmada-es-m1/other-work"]);
    let wrong = |state: &mut State| {
        let mut object = inside("m1", 1);
        object["metadata"]["name"] = "other".into();
        state.members.get_mut("m1").expect("a member").push(object);
    };
    breaks(
        wrong,
        &["Deployment default/other in m1 is not what its Work karmada-es-m1/nginx-687f7fb96f says"],
    );
}

#[test]
fn a_work_that_lies_about_its_object_is_noticed() {
    let lost = |state: &mut State| {
        state.members.insert("m2".to_owned(), Vec::new());
        of(state, "Deployment")["status"] = deployment(4, 3)["status"].clone();
    };
    let complaint =
        "Work karmada-es-m2/nginx-687f7fb96f is applied, but Deployment default/nginx is not in m2";
    breaks(lost, &[complaint]);
    let honest = |state: &mut State| {
        lost(state);
        state.plane[5]["status"]["conditions"][0]["status"] = "False".into();
    };
    breaks(honest, &[]);
}

#[test]
fn a_finalizer_without_its_controller_is_noticed() {
    let off = |state: &mut State| state.controllers = "*,-execution".to_owned();
    let complaint = "has karmada.io/execution-controller, but execution does not run";
    breaks(off, &[complaint, complaint]);
    let few = |state: &mut State| state.controllers = "execution,cluster".to_owned();
    breaks(few, &["has karmada.io/binding-controller, but binding does not run"]);
    // Then Works are made by hand, and need no wish.
    let by_hand = |state: &mut State| {
        few(state);
        state.plane.retain(|object| object["kind"] != "ResourceBinding");
    };
    breaks(by_hand, &[]);
    let strange = |state: &mut State| {
        of(state, "Deployment")["metadata"]["finalizers"] =
            json!(["karmada.io/execution-controller", "other.io/own"]);
    };
    breaks(
        strange,
        &["Deployment default/nginx has karmada.io/execution-controller, which no controller takes off"],
    );
}

#[test]
fn an_object_that_does_not_go_is_noticed() {
    let stuck = |state: &mut State| {
        state.plane[6]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        state.plane[6]["metadata"]["finalizers"] = json!(["karmada.io/execution-controller"]);
    };
    breaks(
        stuck,
        &[
            "Work karmada-es-m1/owned is still being deleted, with finalizers [\"karmada.io/execution-controller\"]",
        ],
    );
}

#[test]
fn replicas_that_do_not_add_up_are_noticed() {
    let short = |state: &mut State| {
        of(state, "ResourceBinding")["spec"]["clusters"][0]["replicas"] = 2.into();
        state.plane[4] = work("m1", 2);
        state.members.insert("m1".to_owned(), vec![inside("m1", 2)]);
        of(state, "Deployment")["status"] = deployment(4, 3)["status"].clone();
    };
    breaks(short, &["ResourceBinding default/nginx-deployment wants 4 replicas and divides 3"]);
    let unseen = |state: &mut State| of(state, "Deployment")["spec"]["replicas"] = 5.into();
    breaks(unseen, &["ResourceBinding default/nginx-deployment wants 4 replicas, its template 5"]);
    let unrendered = |state: &mut State| {
        state.plane[4] = work("m1", 2);
        state.members.get_mut("m1").expect("a member")[0]["spec"]["replicas"] = 2.into();
    };
    breaks(unrendered, &["Work karmada-es-m1/nginx-687f7fb96f says 2 replicas instead of 3"]);
    let overridden = |state: &mut State| {
        unrendered(state);
        state.plane[4]["metadata"]["annotations"]["policy.karmada.io/applied-overrides"] = "[]".into();
    };
    breaks(overridden, &[]);
    let drifted =
        |state: &mut State| state.members.get_mut("m1").expect("a member")[0]["spec"]["replicas"] = 9.into();
    breaks(drifted, &["Deployment default/nginx in m1 has 9 replicas instead of 3"]);
    let retained = |state: &mut State| {
        drifted(state);
        let manifest = &mut state.plane[4]["spec"]["workload"]["manifests"][0];
        manifest["metadata"]["labels"] = json!({"resourcetemplate.karmada.io/retain-replicas": "true"});
    };
    breaks(retained, &[]);
}

#[test]
fn a_status_that_is_not_the_sum_is_noticed() {
    let old = |state: &mut State| of(state, "Deployment")["status"]["readyReplicas"] = 3.into();
    breaks(old, &["Deployment default/nginx shows readyReplicas 3, its members have 4"]);
}

/// A world where the first member offers a slice to the second, as a MultiClusterService and an export ask for it.
fn with_services(state: &mut State) {
    for cluster in state.plane.iter_mut().filter(|object| object["kind"] == "Cluster") {
        cluster["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    }
    let slice = |name: &str| {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": "default"}, "endpoints": [{"addresses": ["10.0.0.1"]}]})
    };
    let multi = json!({"multiclusterservice.karmada.io/namespace": "default", "multiclusterservice.karmada.io/name": "web"});
    let mut both = multi.clone();
    both["endpointslice.karmada.io/namespace"] = "default".into();
    both["endpointslice.karmada.io/name"] = "web".into();
    let work = |cluster: &str, labels: Value, manifest: Value| {
        let name = names::work("EndpointSlice", name_of(&manifest), "default");
        json!({"apiVersion": "work.karmada.io/v1alpha1", "kind": "Work",
            "metadata": {"name": name, "namespace": format!("karmada-es-{cluster}"), "labels": labels},
            "spec": {"workload": {"manifests": [manifest]}}})
    };
    let collected = work("m1", both, slice("web-1"));
    let mut dispatched = work("m2", multi, slice("m1-web-1"));
    dispatched["metadata"]["annotations"] = json!({"endpointslice.karmada.io/provision-cluster": "m1"});
    let mut imported = slice("imported-m1-web-1");
    imported["metadata"]["labels"] =
        json!({"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.karmada.io"});
    imported["metadata"]["annotations"] = json!({"work.karmada.io/namespace": "karmada-es-m1",
        "work.karmada.io/name": collected["metadata"]["name"]});
    let service = json!({"apiVersion": "networking.karmada.io/v1alpha1", "kind": "MultiClusterService",
        "metadata": {"name": "web", "namespace": "default", "uid": "mcs"}, "spec": {"types": ["CrossCluster"]}});
    state.plane.extend([service, collected, dispatched, imported]);
}

#[test]
fn endpoints_that_are_missing_or_left_behind_are_noticed() {
    breaks(with_services, &[]);
    let of_cluster = |state: &mut State, cluster: &str| {
        let space = format!("karmada-es-{cluster}");
        let slice = |work: &Value| work["spec"]["workload"]["manifests"][0]["kind"] == "EndpointSlice";
        state.plane.iter().position(|work| slice(work) && namespace_of(work) == space).expect("a Work")
    };
    let undispatched = |state: &mut State| {
        with_services(state);
        let found = of_cluster(state, "m2");
        state.plane.remove(found);
    };
    breaks(undispatched, &["is not in m2, and m1 is ready: true"]);
    let uncollected = |state: &mut State| {
        with_services(state);
        let found = of_cluster(state, "m1");
        state.plane.remove(found);
    };
    breaks(
        uncollected,
        &[
            "is there although m1 has no such slice",
            "imported-m1-web-1 is there although nothing was collected",
        ],
    );
    let outdated = |state: &mut State| {
        with_services(state);
        let found = of_cluster(state, "m1");
        state.plane[found]["spec"]["workload"]["manifests"][0]["endpoints"] = json!([]);
    };
    breaks(
        outdated,
        &["has other endpoints than Work karmada-es-m1/", "has other endpoints than Work karmada-es-m1/"],
    );
    let unimported = |state: &mut State| {
        with_services(state);
        state.plane.retain(|object| object["kind"] != "EndpointSlice");
    };
    breaks(unimported, &["EndpointSlice imported-m1-web-1 is there: false, and m1 is ready: true"]);
    let lost = |state: &mut State| {
        with_services(state);
        of(state, "Cluster")["status"] = json!({});
    };
    breaks(lost, &["is in m2, and m1 is ready: false", "is there: true, and m1 is ready: false"]);
    let unwanted = |state: &mut State| {
        with_services(state);
        state.plane.retain(|object| object["kind"] != "MultiClusterService");
    };
    let there = "is there although there is no MultiClusterService default/web";
    breaks(unwanted, &[there, there]);
}
