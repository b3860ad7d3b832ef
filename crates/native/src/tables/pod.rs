//! A Pod's row: the STATUS column tells in one word what a dozen fields say.

use serde_json::Value;

use super::{Row, or};
use crate::validation::node::Node;

pub(super) fn pod(row: Row<'_>) -> Vec<Value> {
    let summary = summarise(row);
    let restarts = match summary.last_restart {
        Some(time) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, row.since(time))
        }
        _ => summary.restarts.to_string(),
    };
    let ip = row.status("podIPs").items().next().map_or("", |ip| ip.at("ip").text());
    vec![
        row.name(),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        row.age(),
        or(ip, "<none>").into(),
        or(row.spec("nodeName").text(), "<none>").into(),
        or(row.status("nominatedNodeName").text(), "<none>").into(),
        readiness_gates(row).into(),
    ]
}

struct Summary<'a> {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<Node<'a>>,
}

fn summarise(row: Row<'_>) -> Summary<'_> {
    let init_specs = row.spec("initContainers");
    let is_sidecar = |name: &str| {
        init_specs.items().any(|container| {
            container.at("name").text() == name && container.at("restartPolicy").text() == "Always"
        })
    };
    let sidecars =
        init_specs.items().filter(|container| container.at("restartPolicy").text() == "Always").count();
    let phase = row.status("phase").text();
    let mut summary = Summary {
        reason: or(row.status("reason").text(), phase).to_owned(),
        ready: 0,
        total: row.spec("containers").len() + sidecars,
        restarts: 0,
        last_restart: None,
    };
    if row.status("conditions").items().any(|condition| {
        condition.at("type").text() == "PodScheduled" && condition.at("reason").text() == "SchedulingGated"
    }) {
        summary.reason = "SchedulingGated".to_owned();
    }

    let mut initializing = false;
    let (mut sidecar_restarts, mut last_sidecar_restart) = (0, None);
    for (index, container) in row.status("initContainerStatuses").items().enumerate() {
        let sidecar = is_sidecar(container.at("name").text());
        summary.restarts += container.at("restartCount").int();
        later(&mut summary.last_restart, container);
        if sidecar {
            sidecar_restarts += container.at("restartCount").int();
            later(&mut last_sidecar_restart, container);
        }
        let (terminated, waiting) =
            (container.dig(&["state", "terminated"]), container.dig(&["state", "waiting"]));
        if terminated.exists() && terminated.at("exitCode").int() == 0 {
            continue;
        }
        if sidecar && container.at("started").flag() {
            summary.ready += usize::from(container.at("ready").flag());
            continue;
        }
        summary.reason = if terminated.exists() {
            format!("Init:{}", why_terminated(terminated))
        } else if !matches!(waiting.at("reason").text(), "" | "PodInitializing") {
            format!("Init:{}", waiting.at("reason").text())
        } else {
            format!("Init:{index}/{}", init_specs.len())
        };
        initializing = true;
        break;
    }

    if !initializing || condition_is_true(row, "Initialized") {
        summary.restarts = sidecar_restarts;
        summary.last_restart = last_sidecar_restart;
        running_containers(row, &mut summary);
    }

    if row.is_deleted() {
        if row.status("reason").text() == "NodeLost" {
            summary.reason = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            summary.reason = "Terminating".to_owned();
        }
    }
    summary
}

fn running_containers<'a>(row: Row<'a>, summary: &mut Summary<'a>) {
    let mut has_running = false;
    let mut failure = None;
    // From the last to the first, so that the first container's word counts.
    for container in row.status("containerStatuses").items().rev() {
        summary.restarts += container.at("restartCount").int();
        later(&mut summary.last_restart, container);
        let (terminated, waiting) =
            (container.dig(&["state", "terminated"]), container.dig(&["state", "waiting"]));
        if !waiting.at("reason").is_empty() {
            summary.reason = waiting.at("reason").text().to_owned();
        } else if terminated.exists() {
            summary.reason = why_terminated(terminated);
            if terminated.at("exitCode").int() != 0 {
                failure = Some(summary.reason.clone());
            }
        } else if container.at("ready").flag() && container.dig(&["state", "running"]).exists() {
            has_running = true;
            summary.ready += 1;
        }
    }
    // One container is done while others still run: the pod is not.
    if summary.reason == "Completed" {
        if has_running && condition_is_true(row, "Ready") {
            summary.reason = "Running".to_owned();
        } else if let Some(failure) = failure {
            summary.reason = failure;
        } else if has_running {
            summary.reason = "NotReady".to_owned();
        }
    }
}

fn why_terminated(terminated: Node<'_>) -> String {
    match (terminated.at("reason").text(), terminated.at("signal").int()) {
        ("", 0) => format!("ExitCode:{}", terminated.at("exitCode").int()),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Times in Go shape compare as texts: whole seconds, UTC.
fn later<'a>(latest: &mut Option<Node<'a>>, container: Node<'a>) {
    let finished = container.dig(&["lastState", "terminated", "finishedAt"]);
    if !finished.is_empty() && latest.is_none_or(|latest| latest.text() < finished.text()) {
        *latest = Some(finished);
    }
}

fn condition_is_true(row: Row<'_>, kind: &str) -> bool {
    row.status("conditions")
        .items()
        .any(|condition| condition.at("type").text() == kind && condition.at("status").text() == "True")
}

fn readiness_gates(row: Row<'_>) -> String {
    let gates = row.spec("readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let is_open = |gate: &Node<'_>| {
        let kind = gate.at("conditionType").text();
        let condition =
            row.status("conditions").items().find(|condition| condition.at("type").text() == kind);
        condition.is_some_and(|condition| condition.at("status").text() == "True")
    };
    format!("{}/{}", gates.items().filter(is_open).count(), gates.len())
}
