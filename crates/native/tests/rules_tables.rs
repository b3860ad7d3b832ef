//! Cells that depend on a status, which recorded objects without controllers do not have.

use apimachinery::gvk::Gvk;
use native::tables;
use serde_json::{Value, json};

fn cells(gvk: (&str, &str, &str), object: &Value) -> Vec<Value> {
    let gvk = Gvk::new(gvk.0, gvk.1, gvk.2);
    let cells = tables::cells(&gvk, object, "2026-01-01T01:00:00Z".parse().expect("a time"));
    assert!(cells.len() >= tables::columns(&gvk).len(), "every column has a cell");
    cells
}

/// Ready, Status and Restarts of a pod with two containers.
fn pod(status: Value, deleted: bool) -> [String; 3] {
    let mut object = json!({
        "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]},
        "status": status,
    });
    if deleted {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:00Z");
    }
    let cells = cells(("", "v1", "Pod"), &object);
    [1, 2, 3].map(|index| cells[index].as_str().expect("a text").to_owned())
}

#[test]
fn a_pods_status_is_the_most_telling_word() {
    let running = json!({"ready": true, "restartCount": 0, "state": {"running": {}}});
    let crashed = json!({"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"finishedAt": "2026-01-01T00:50:00Z"}}});
    let done = json!({"restartCount": 0, "state": {"terminated": {"reason": "Completed", "exitCode": 0}}});
    let killed = json!({"restartCount": 0, "state": {"terminated": {"exitCode": 137, "signal": 9}}});
    let ready = json!([{"type": "Ready", "status": "True"}]);
    for (status, deleted, expected) in [
        (json!({"phase": "Pending"}), false, ["0/3", "Pending", "0"]),
        (
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
            false,
            ["0/3", "SchedulingGated", "0"],
        ),
        (
            json!({"phase": "Running", "containerStatuses": [running, crashed]}),
            false,
            ["1/3", "CrashLoopBackOff", "3 (10m ago)"],
        ),
        (
            json!({"phase": "Running", "conditions": ready, "containerStatuses": [done, running]}),
            false,
            ["1/3", "Running", "0"],
        ),
        (json!({"phase": "Running", "containerStatuses": [done, running]}), false, ["1/3", "NotReady", "0"]),
        (json!({"phase": "Failed", "containerStatuses": [killed, done]}), false, ["0/3", "Signal:9", "0"]),
        (
            json!({"phase": "Running", "containerStatuses": [running, running]}),
            true,
            ["2/3", "Terminating", "0"],
        ),
        (json!({"phase": "Failed", "reason": "Evicted"}), true, ["0/3", "Evicted", "0"]),
        (json!({"phase": "Running", "reason": "NodeLost"}), true, ["0/3", "Unknown", "0"]),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 1, "state": {"running": {}}}]}),
            false,
            ["0/3", "Init:0/2", "1"],
        ),
        (
            json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "restartCount": 0, "state": {"terminated": {"exitCode": 2}}}]}),
            false,
            ["0/3", "Init:ExitCode:2", "0"],
        ),
        (
            json!({"phase": "Running", "containerStatuses": [running, running], "initContainerStatuses": [
                {"name": "i", "restartCount": 0, "state": {"terminated": {"exitCode": 0}}},
                {"name": "s", "restartCount": 2, "started": true, "ready": true, "state": {"running": {}}}]}),
            false,
            ["3/3", "Running", "2"],
        ),
    ] {
        assert_eq!(pod(status.clone(), deleted), expected.map(str::to_owned), "{status}");
    }
}

#[test]
fn a_node_shows_readiness_roles_and_addresses() {
    let node = json!({
        "metadata": {"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "db"}},
        "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.3", "kernelVersion": "6.1", "architecture": "amd64"}},
    });
    let expected = json!([
        "n",
        "NotReady,SchedulingDisabled",
        "control-plane,db,worker",
        "60m",
        "v1.36.3",
        "10.0.0.1",
        "<none>",
        "<unknown>",
        "6.1 (amd64)",
        "<unknown>"
    ]);
    assert_eq!(json!(cells(("", "v1", "Node"), &node)), expected);
}

#[test]
fn a_job_shows_how_far_it_is_and_how_long_it_took() {
    let job = json!({
        "metadata": {"name": "j"},
        "spec": {"completions": 2, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
        "status": {"succeeded": 2, "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:05:03Z",
            "conditions": [{"type": "Complete", "status": "True"}]},
    });
    let shown = cells(("batch", "v1", "Job"), &job);
    assert_eq!(json!(shown[1..5]), json!(["Complete", "2/2", "5m3s", "<unknown>"]));
}

#[test]
fn long_lists_are_cut_and_counted() {
    let endpoints = json!({"metadata": {"name": "e"}, "subsets": [{
        "addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "ports": [{"port": 80}, {"port": 81}]}]});
    assert_eq!(
        cells(("", "v1", "Endpoints"), &endpoints)[1],
        "10.0.0.1:80,[fd00::1]:80,10.0.0.1:81 + 1 more..."
    );
    let rule = |host: &str| json!({"host": host});
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"tls": [{}],
        "rules": [rule("a"), rule("b"), rule("c"), rule("d"), rule("e")]}});
    let shown = cells(("networking.k8s.io", "v1", "Ingress"), &ingress);
    assert_eq!(json!(shown[2..5]), json!(["a,b,c + 2 more...", "", "80, 443"]));
}

#[test]
fn a_service_shows_where_it_is_reached_from_outside() {
    let service = |spec: Value, ingress: Value| {
        let object = json!({"metadata": {"name": "s"}, "spec": spec, "status": {"loadBalancer": {"ingress": ingress}}});
        cells(("", "v1", "Service"), &object)[3].clone()
    };
    assert_eq!(service(json!({"type": "LoadBalancer"}), json!([])), "<pending>");
    assert_eq!(
        service(json!({"type": "LoadBalancer"}), json!([{"hostname": "b"}, {"ip": "1.1.1.1"}])),
        "1.1.1.1,b"
    );
    assert_eq!(
        service(json!({"type": "LoadBalancer", "externalIPs": ["2.2.2.2"]}), json!([{"ip": "1.1.1.1"}])),
        "1.1.1.1,2.2.2.2"
    );
    assert_eq!(service(json!({"type": "ClusterIP"}), json!([])), "<none>");
    assert_eq!(
        service(json!({"type": "ExternalName", "externalName": "x.example.com"}), json!([])),
        "x.example.com"
    );
}

#[test]
fn an_event_shows_its_series() {
    let event = json!({
        "metadata": {"name": "e"}, "type": "Normal", "reason": "R", "message": " m ",
        "involvedObject": {"kind": "Pod", "name": "p"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "series": {"count": 4, "lastObservedTime": "2026-01-01T00:59:30.000000Z"},
        "reportingComponent": "kubelet", "reportingInstance": "n1",
    });
    let expected = json!(["30s", "Normal", "R", "pod/p", "", "kubelet, n1", "m", "60m", 4, "e"]);
    assert_eq!(json!(cells(("", "v1", "Event"), &event)), expected);
}
