//! Rows of the kinds that own pods, and of those that scale and protect them.

use apimachinery::selector::label::Selector;
use jiff::Timestamp;
use serde_json::Value;

use super::{Row, containers, duration, labels, or, selector, shortened};
use crate::validation::node::Node;

fn template_containers(row: Row<'_>) -> [Value; 2] {
    containers(row.root.dig(&["spec", "template", "spec", "containers"]))
}

fn ready_of(row: Row<'_>) -> Value {
    format!("{}/{}", row.status("readyReplicas").int(), row.spec("replicas").int()).into()
}

pub(super) fn pod_template(row: Row<'_>) -> Vec<Value> {
    let [names, images] = containers(row.root.dig(&["template", "spec", "containers"]));
    vec![row.name(), names, images, labels(row.root.dig(&["template", "metadata", "labels"]))]
}

fn replicas(row: Row<'_>, selector: Value) -> Vec<Value> {
    let [names, images] = template_containers(row);
    vec![
        row.name(),
        row.spec("replicas").int().into(),
        row.status("replicas").int().into(),
        row.status("readyReplicas").int().into(),
        row.age(),
        names,
        images,
        selector,
    ]
}

pub(super) fn replication_controller(row: Row<'_>) -> Vec<Value> {
    replicas(row, labels(row.spec("selector")))
}

pub(super) fn replica_set(row: Row<'_>) -> Vec<Value> {
    replicas(row, selector(row.spec("selector")))
}

pub(super) fn deployment(row: Row<'_>) -> Vec<Value> {
    let [names, images] = template_containers(row);
    let selector = match Selector::from_object(row.spec("selector").0) {
        Ok(selector) => selector.to_string(),
        Err(_) => "<invalid>".to_owned(),
    };
    vec![
        row.name(),
        ready_of(row),
        row.status("updatedReplicas").int().into(),
        row.status("availableReplicas").int().into(),
        row.age(),
        names,
        images,
        selector.into(),
    ]
}

pub(super) fn stateful_set(row: Row<'_>) -> Vec<Value> {
    let [names, images] = template_containers(row);
    vec![row.name(), ready_of(row), row.age(), names, images]
}

pub(super) fn daemon_set(row: Row<'_>) -> Vec<Value> {
    let [names, images] = template_containers(row);
    let mut cells = vec![row.name()];
    for count in [
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    ] {
        cells.push(row.status(count).int().into());
    }
    cells.extend([
        labels(row.root.dig(&["spec", "template", "spec", "nodeSelector"])),
        row.age(),
        names,
        images,
        selector(row.spec("selector")),
    ]);
    cells
}

pub(super) fn controller_revision(row: Row<'_>) -> Vec<Value> {
    let controller = row.meta("ownerReferences").items().find(|owner| owner.at("controller").flag());
    let controller = controller.map_or("<none>".to_owned(), |owner| {
        let group = owner.at("apiVersion").text().split_once('/').map_or("", |(group, _)| group);
        let kind = owner.at("kind").text();
        let kind = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        format!("{}/{}", kind.to_lowercase(), owner.at("name").text())
    });
    vec![row.name(), controller.into(), row.root.at("revision").int().into(), row.age()]
}

pub(super) fn job(row: Row<'_>) -> Vec<Value> {
    let succeeded = row.status("succeeded").int();
    let completions = match (row.spec("completions").opt_int(), row.spec("parallelism").int()) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism @ 2..) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let [names, images] = template_containers(row);
    vec![
        row.name(),
        job_status(row).into(),
        completions.into(),
        job_duration(row).into(),
        row.age(),
        names,
        images,
        selector(row.spec("selector")),
    ]
}

fn job_status(row: Row<'_>) -> &'static str {
    let has = |kind: &str| {
        let condition =
            row.status("conditions").items().find(|condition| condition.at("type").text() == kind);
        condition.is_some_and(|condition| condition.at("status").text() == "True")
    };
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if row.is_deleted() {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn job_duration(row: Row<'_>) -> String {
    let Ok(start) = row.status("startTime").text().parse::<Timestamp>() else { return String::new() };
    let end = row.status("completionTime").text().parse::<Timestamp>().unwrap_or(row.now);
    duration(end.duration_since(start))
}

pub(super) fn cron_job(row: Row<'_>) -> Vec<Value> {
    let last = row.status("lastScheduleTime");
    let last = if last.exists() { row.since(last) } else { "<none>".to_owned() };
    let job = row.spec("jobTemplate").at("spec");
    let [names, images] = containers(job.dig(&["template", "spec", "containers"]));
    let suspend = match row.spec("suspend").0.and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    };
    vec![
        row.name(),
        row.spec("schedule").text().into(),
        row.spec("timeZone").opt_text().unwrap_or("<none>").into(),
        suspend.into(),
        row.status("active").len().into(),
        last.into(),
        row.age(),
        names,
        images,
        selector(job.at("selector")),
    ]
}

pub(super) fn scale(row: Row<'_>) -> Vec<Value> {
    vec![row.name(), row.spec("replicas").int().into(), row.status("replicas").int().into(), row.age()]
}

pub(super) fn disruption_budget(row: Row<'_>) -> Vec<Value> {
    let amount = |field: &str| -> Value {
        match row.spec(field).0 {
            Some(Value::Number(number)) => number.to_string().into(),
            Some(Value::String(text)) => text.as_str().into(),
            _ => "N/A".into(),
        }
    };
    vec![
        row.name(),
        amount("minAvailable"),
        amount("maxUnavailable"),
        row.status("disruptionsAllowed").int().into(),
        row.age(),
    ]
}

pub(super) fn autoscaler(version: &str, row: Row<'_>) -> Vec<Value> {
    let target = row.spec("scaleTargetRef");
    let targets = if version == "v1" { cpu_target(row) } else { metrics(row) };
    let least = row.spec("minReplicas").opt_int().map_or("<unset>".to_owned(), |count| count.to_string());
    vec![
        row.name(),
        format!("{}/{}", target.at("kind").text(), target.at("name").text()).into(),
        targets.into(),
        least.into(),
        row.spec("maxReplicas").int().into(),
        row.status("currentReplicas").int().into(),
        row.age(),
    ]
}

/// The v1 view only knows the cpu target.
fn cpu_target(row: Row<'_>) -> String {
    let Some(target) = row.spec("targetCPUUtilizationPercentage").opt_int() else {
        return "<none>".to_owned();
    };
    let current = row.status("currentCPUUtilizationPercentage").opt_int();
    format!("cpu: {}/{target}%", current.map_or("<unknown>".to_owned(), |current| format!("{current}%")))
}

fn metrics(row: Row<'_>) -> String {
    let specs = row.spec("metrics");
    if specs.is_empty() {
        return "<none>".to_owned();
    }
    let mut statuses = row.status("currentMetrics").items();
    let texts: Vec<String> =
        specs.items().map(|spec| metric(spec, statuses.next().unwrap_or(Node(None)))).collect();
    shortened(&texts[..texts.len().min(2)], texts.len(), 2, ", ")
}

fn metric(spec: Node<'_>, status: Node<'_>) -> String {
    let field = match spec.at("type").text() {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let target = spec.at(field).at("target");
    let current = status.at(field).at("current");
    let shown = |node: Node<'_>| or(node.text(), "<unknown>").to_owned();
    let average = target.at("averageValue");
    match field {
        "pods" => format!("{}/{}", shown(current.at("averageValue")), average.text()),
        "external" | "object" if average.exists() => {
            format!("{}/{} (avg)", shown(current.at("averageValue")), average.text())
        }
        "external" | "object" => format!("{}/{}", shown(current.at("value")), target.at("value").text()),
        _ => {
            let name = spec.at(field).at("name").text();
            if average.exists() {
                return format!("{name}: {}/{}", shown(current.at("averageValue")), average.text());
            }
            let percent = |node: Node<'_>, otherwise: &str| {
                node.opt_int().map_or(otherwise.to_owned(), |percent| format!("{percent}%"))
            };
            format!(
                "{name}: {}/{}",
                percent(current.at("averageUtilization"), "<unknown>"),
                percent(target.at("averageUtilization"), "<auto>")
            )
        }
    }
}
