//! Deployments, replica sets, stateful sets, daemon sets, jobs and cron jobs.

use serde_json::Value;

use super::pods::template;
use super::words::{Page, controller, each, joined, selector, shown, text, time, yes};
use crate::select::{Item, list};
use crate::server::Server;

/// The replica sets that a deployment owns.
pub(super) async fn replica_sets(server: &Server, item: &Item) -> Vec<Value> {
    let path = format!("/apis/apps/v1/namespaces/{}/replicasets", crate::server::segment(&item.namespace));
    let labels = selector(&item.object["spec"]["selector"]);
    let found = list(server, &path, Some(&labels), None).await.unwrap_or_default();
    found.into_iter().filter(|set| owned(set, item)).collect()
}

/// The pods that a workload owns.
pub(super) async fn pods(server: &Server, item: &Item) -> Vec<Value> {
    let path = format!("/api/v1/namespaces/{}/pods", crate::server::segment(&item.namespace));
    let labels = selector(&item.object["spec"]["selector"]);
    let found = list(server, &path, Some(&labels), None).await.unwrap_or_default();
    found.into_iter().filter(|pod| owned(pod, item)).collect()
}

fn owned(object: &Value, item: &Item) -> bool {
    let uid = &item.object["metadata"]["uid"];
    each(&object["metadata"]["ownerReferences"])
        .any(|owner| owner["uid"] == *uid && owner["controller"] == true)
}

fn head(page: &mut Page, object: &Value) {
    page.pair(0, "Name", text(&object["metadata"]["name"]));
    page.pair(0, "Namespace", text(&object["metadata"]["namespace"]));
}

fn marks(page: &mut Page, object: &Value) {
    page.labels("Labels", &object["metadata"]["labels"]);
    page.annotations("Annotations", &object["metadata"]["annotations"]);
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

fn conditions(page: &mut Page, list: &Value) {
    if each(list).next().is_none() {
        return;
    }
    page.line(0, "Conditions:");
    page.line(1, "Type\tStatus\tReason");
    page.line(1, "----\t------\t------");
    for condition in each(list) {
        let (kind, status, reason) =
            (text(&condition["type"]), text(&condition["status"]), text(&condition["reason"]));
        page.line(1, format!("{kind} \t{status}\t{reason}"));
    }
}

pub(super) fn deployment(page: &mut Page, object: &Value, sets: &[Value]) {
    let (spec, status) = (&object["spec"], &object["status"]);
    head(page, object);
    page.pair(0, "CreationTimestamp", time(&object["metadata"]["creationTimestamp"]));
    marks(page, object);
    page.pair(0, "Selector", selector(&spec["selector"]));
    page.pair(
        0,
        "Replicas",
        format!(
            "{} desired | {} updated | {} total | {} available | {} unavailable",
            number(&spec["replicas"]),
            number(&status["updatedReplicas"]),
            number(&status["replicas"]),
            number(&status["availableReplicas"]),
            number(&status["unavailableReplicas"])
        ),
    );
    page.pair(0, "StrategyType", text(&spec["strategy"]["type"]));
    page.pair(0, "MinReadySeconds", number(&spec["minReadySeconds"]));
    let rolling = &spec["strategy"]["rollingUpdate"];
    if rolling.is_object() {
        let (away, more) = (shown(&rolling["maxUnavailable"], "0"), shown(&rolling["maxSurge"], "0"));
        page.pair(0, "RollingUpdateStrategy", format!("{away} max unavailable, {more} max surge"));
    }
    template(page, &spec["template"]);
    conditions(page, &status["conditions"]);
    if sets.is_empty() {
        return;
    }
    let revision =
        |object: &Value| text(&object["metadata"]["annotations"]["deployment.kubernetes.io/revision"]);
    let (new, old): (Vec<&Value>, Vec<&Value>) =
        sets.iter().partition(|set| revision(set) == revision(object));
    let told = |sets: &[&Value]| {
        let texts: Vec<String> = sets
            .iter()
            .map(|set| {
                let (have, want) = (number(&set["status"]["replicas"]), number(&set["spec"]["replicas"]));
                format!("{} ({have}/{want} replicas created)", text(&set["metadata"]["name"]))
            })
            .collect();
        if texts.is_empty() { "<none>".to_owned() } else { texts.join(", ") }
    };
    page.pair(0, "OldReplicaSets", told(&old));
    page.pair(0, "NewReplicaSet", told(&new));
}

fn pods_status(page: &mut Page, pods: &[Value]) {
    let count = |phase: &str| pods.iter().filter(|pod| pod["status"]["phase"] == phase).count();
    page.pair(
        0,
        "Pods Status",
        format!(
            "{} Running / {} Waiting / {} Succeeded / {} Failed",
            count("Running"),
            count("Pending"),
            count("Succeeded"),
            count("Failed")
        ),
    );
}

pub(super) fn replica_set(page: &mut Page, object: &Value, pods: &[Value]) {
    let (spec, status) = (&object["spec"], &object["status"]);
    head(page, object);
    page.pair(0, "Selector", selector(&spec["selector"]));
    marks(page, object);
    if let Some(owner) = controller(object) {
        page.pair(0, "Controlled By", owner);
    }
    let (have, want) = (number(&status["replicas"]), number(&spec["replicas"]));
    page.pair(0, "Replicas", format!("{have} current / {want} desired"));
    pods_status(page, pods);
    template(page, &spec["template"]);
    conditions(page, &status["conditions"]);
}

pub(super) fn stateful_set(page: &mut Page, object: &Value, pods: &[Value]) {
    let (spec, status) = (&object["spec"], &object["status"]);
    head(page, object);
    page.pair(0, "CreationTimestamp", time(&object["metadata"]["creationTimestamp"]));
    page.pair(0, "Selector", selector(&spec["selector"]));
    marks(page, object);
    let (want, have) = (number(&spec["replicas"]), number(&status["replicas"]));
    page.pair(0, "Replicas", format!("{want} desired | {have} total"));
    page.pair(0, "Update Strategy", text(&spec["updateStrategy"]["type"]));
    let rolling = &spec["updateStrategy"]["rollingUpdate"];
    if rolling.is_object() {
        if !rolling["partition"].is_null() {
            page.pair(1, "Partition", number(&rolling["partition"]));
        }
        if !rolling["maxUnavailable"].is_null() {
            page.pair(1, "MaxUnavailable", shown(&rolling["maxUnavailable"], ""));
        }
    }
    pods_status(page, pods);
    template(page, &spec["template"]);
    if each(&spec["volumeClaimTemplates"]).next().is_none() {
        page.pair(0, "Volume Claims", "<none>");
        return;
    }
    page.line(0, "Volume Claims:");
    for claim in each(&spec["volumeClaimTemplates"]) {
        page.pair(1, "Name", text(&claim["metadata"]["name"]));
        page.pair(1, "StorageClass", text(&claim["spec"]["storageClassName"]));
        page.labels("  Labels", &claim["metadata"]["labels"]);
        page.annotations("  Annotations", &claim["metadata"]["annotations"]);
        page.pair(1, "Capacity", shown(&claim["spec"]["resources"]["requests"]["storage"], "<default>"));
        let modes: Vec<String> = each(&claim["spec"]["accessModes"]).map(text).collect();
        page.pair(1, "Access Modes", format!("[{}]", modes.join(" ")));
    }
}

pub(super) fn daemon_set(page: &mut Page, object: &Value, pods: &[Value]) {
    let (spec, status) = (&object["spec"], &object["status"]);
    head(page, object);
    page.pair(0, "Selector", selector(&spec["selector"]));
    page.pair(0, "Node-Selector", joined(&spec["template"]["spec"]["nodeSelector"]));
    marks(page, object);
    for (title, key) in [
        ("Desired Number of Nodes Scheduled", "desiredNumberScheduled"),
        ("Current Number of Nodes Scheduled", "currentNumberScheduled"),
        ("Number of Nodes Scheduled with Up-to-date Pods", "updatedNumberScheduled"),
        ("Number of Nodes Scheduled with Available Pods", "numberAvailable"),
        ("Number of Nodes Misscheduled", "numberMisscheduled"),
    ] {
        page.line(0, format!("{title}: {}", number(&status[key])));
    }
    pods_status(page, pods);
    template(page, &spec["template"]);
}

pub(super) fn job(page: &mut Page, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    head(page, object);
    if spec["selector"].is_object() {
        page.pair(0, "Selector", selector(&spec["selector"]));
    }
    marks(page, object);
    if let Some(owner) = controller(object) {
        page.pair(0, "Controlled By", owner);
    }
    page.pair(0, "Parallelism", shown(&spec["parallelism"], "<unset>"));
    page.pair(0, "Completions", shown(&spec["completions"], "<unset>"));
    if let Some(mode) = spec["completionMode"].as_str() {
        page.pair(0, "Completion Mode", mode);
    }
    if !spec["suspend"].is_null() {
        page.pair(0, "Suspend", spec["suspend"] == true);
    }
    if !spec["backoffLimit"].is_null() {
        page.pair(0, "Backoff Limit", number(&spec["backoffLimit"]));
    }
    if !spec["ttlSecondsAfterFinished"].is_null() {
        page.pair(0, "TTL Seconds After Finished", number(&spec["ttlSecondsAfterFinished"]));
    }
    for (title, key) in [("Start Time", "startTime"), ("Completed At", "completionTime")] {
        if status[key].is_string() {
            page.pair(0, title, time(&status[key]));
        }
    }
    let moment = |key: &str| status[key].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    if let (Some(_), Some(end)) = (moment("startTime"), moment("completionTime")) {
        page.pair(0, "Duration", super::events::age(status["startTime"].as_str().unwrap_or(""), end));
    }
    if !spec["activeDeadlineSeconds"].is_null() {
        page.pair(0, "Active Deadline Seconds", format!("{}s", number(&spec["activeDeadlineSeconds"])));
    }
    let ready = status["ready"].as_i64().map(|ready| format!(" ({ready} Ready)")).unwrap_or_default();
    page.pair(
        0,
        "Pods Statuses",
        format!(
            "{} Active{ready} / {} Succeeded / {} Failed",
            number(&status["active"]),
            number(&status["succeeded"]),
            number(&status["failed"])
        ),
    );
    template(page, &spec["template"]);
}

pub(super) fn cron_job(page: &mut Page, object: &Value) {
    let (spec, status) = (&object["spec"], &object["status"]);
    head(page, object);
    marks(page, object);
    page.pair(0, "Schedule", text(&spec["schedule"]));
    if let Some(zone) = spec["timeZone"].as_str() {
        page.pair(0, "Time Zone", zone);
    }
    page.pair(0, "Concurrency Policy", text(&spec["concurrencyPolicy"]));
    page.pair(0, "Suspend", yes(spec["suspend"] == true));
    page.pair(0, "Successful Job History Limit", shown(&spec["successfulJobsHistoryLimit"], "<unset>"));
    page.pair(0, "Failed Job History Limit", shown(&spec["failedJobsHistoryLimit"], "<unset>"));
    let deadline = &spec["startingDeadlineSeconds"];
    let deadline = if deadline.is_null() { "<unset>".to_owned() } else { format!("{}s", number(deadline)) };
    page.pair(0, "Starting Deadline Seconds", deadline);
    let job = &spec["jobTemplate"]["spec"];
    let chosen = if job["selector"].is_object() { selector(&job["selector"]) } else { "<unset>".to_owned() };
    page.pair(0, "Selector", chosen);
    page.pair(0, "Parallelism", shown(&job["parallelism"], "<unset>"));
    page.pair(0, "Completions", shown(&job["completions"], "<unset>"));
    if !job["activeDeadlineSeconds"].is_null() {
        page.pair(0, "Active Deadline Seconds", format!("{}s", number(&job["activeDeadlineSeconds"])));
    }
    template(page, &job["template"]);
    let last = &status["lastScheduleTime"];
    page.pair(0, "Last Schedule Time", if last.is_string() { time(last) } else { "<unset>".to_owned() });
    let active: Vec<String> = each(&status["active"]).map(|job| text(&job["name"])).collect();
    page.pair(0, "Active Jobs", if active.is_empty() { "<none>".to_owned() } else { active.join(", ") });
}
