//! Rows of the kinds that make up the cluster itself, and the row of everything without columns of its own.

use std::collections::BTreeSet;

use apimachinery::gvk::Gvk;
use jiff::SignedDuration;
use serde_json::Value;

use super::{Row, duration, or, selector};
use crate::validation::node::Node;

pub(super) fn cells(gvk: &Gvk, row: Row<'_>) -> Vec<Value> {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "ConfigMap") => {
            let entries = row.root.at("data").len() + row.root.at("binaryData").len();
            vec![row.name(), entries.into(), row.age()]
        }
        ("", "Secret") => {
            vec![row.name(), row.root.at("type").text().into(), row.root.at("data").len().into(), row.age()]
        }
        ("", "Namespace") => vec![row.name(), row.status("phase").text().into(), row.age()],
        ("", "Node") => node(row),
        ("", "ResourceQuota") => quota(row),
        ("", "ComponentStatus") => component_status(row),
        ("", "Event") => {
            event(row, "involvedObject", "message", ["firstTimestamp", "lastTimestamp"], "count", "source")
        }
        ("events.k8s.io", "Event") => event(
            row,
            "regarding",
            "note",
            ["deprecatedFirstTimestamp", "deprecatedLastTimestamp"],
            "deprecatedCount",
            "deprecatedSource",
        ),
        ("coordination.k8s.io", "Lease") => {
            vec![row.name(), row.spec("holderIdentity").text().into(), row.age()]
        }
        ("certificates.k8s.io", "CertificateSigningRequest") => signing_request(row),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => role_binding(row),
        ("scheduling.k8s.io", "PriorityClass") => vec![
            row.name(),
            row.root.at("value").int().into(),
            row.root.at("globalDefault").flag().into(),
            row.age(),
            row.root.at("preemptionPolicy").text().into(),
        ],
        ("node.k8s.io", "RuntimeClass") => vec![row.name(), row.root.at("handler").text().into(), row.age()],
        ("admissionregistration.k8s.io", kind) => admission(kind, row),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => flow_schema(row),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => priority_level(row),
        ("apiregistration.k8s.io", "APIService") => api_service(row),
        _ => vec![row.name(), row.meta("creationTimestamp").text().into()],
    }
}

fn node(row: Row<'_>) -> Vec<Value> {
    let ready = row.status("conditions").items().rfind(|condition| condition.at("type").text() == "Ready");
    let mut status = match ready {
        Some(condition) if condition.at("status").text() == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if row.spec("unschedulable").flag() {
        status += ",SchedulingDisabled";
    }
    let roles: BTreeSet<&str> = row
        .meta("labels")
        .entries()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None => (key == "kubernetes.io/role").then(|| value.text()),
        })
        .filter(|role| !role.is_empty())
        .collect();
    let roles = roles.into_iter().collect::<Vec<_>>().join(",");
    let address = |kind: &str| -> Value {
        let found = row.status("addresses").items().find(|address| address.at("type").text() == kind);
        found.map_or("<none>", |address| address.at("address").text()).into()
    };
    let info = row.status("nodeInfo");
    let unknown = |field: &str| or(info.at(field).text(), "<unknown>").to_owned();
    let mut kernel = unknown("kernelVersion");
    if !info.at("architecture").is_empty() {
        kernel = format!("{kernel} ({})", info.at("architecture").text());
    }
    vec![
        row.name(),
        status.into(),
        or(&roles, "<none>").into(),
        row.age(),
        info.at("kubeletVersion").text().into(),
        address("InternalIP"),
        address("ExternalIP"),
        unknown("osImage").into(),
        kernel.into(),
        unknown("containerRuntimeVersion").into(),
    ]
}

fn quota(row: Row<'_>) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (name, hard) in row.status("hard").entries() {
        let used = or(row.status("used").at(name).text(), "0");
        let text = format!("{name}: {used}/{}", hard.text());
        if name.starts_with("limits.") { limits.push(text) } else { requests.push(text) }
    }
    vec![row.name(), requests.join(", ").into(), limits.join(", ").into(), row.age()]
}

fn component_status(row: Row<'_>) -> Vec<Value> {
    let healthy =
        row.root.at("conditions").items().find(|condition| condition.at("type").text() == "Healthy");
    let status = match healthy {
        Some(condition) if condition.at("status").text() == "True" => "Healthy",
        Some(_) => "Unhealthy",
        None => "Unknown",
    };
    let healthy = healthy.unwrap_or(Node(None));
    vec![row.name(), status.into(), healthy.at("message").text().into(), healthy.at("error").text().into()]
}

/// The two spellings of an Event differ in names only.
fn event(
    row: Row<'_>,
    object: &str,
    message: &str,
    times: [&str; 2],
    count: &str,
    source: &str,
) -> Vec<Value> {
    let root = row.root;
    let [first, last] = times.map(|field| root.at(field));
    let first = row.since(if first.exists() { first } else { root.at("eventTime") });
    let mut seen = if last.exists() { row.since(last) } else { first.clone() };
    let mut times = root.at(count).int().max(0);
    let series = root.at("series");
    if series.exists() {
        seen = row.since(series.at("lastObservedTime"));
        times = series.at("count").int();
    } else if times == 0 {
        times = 1;
    }
    let object = root.at(object);
    let kind = object.at("kind").text().to_lowercase();
    let target = match object.at("name").text() {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component = or(
        root.at(source).at("component").text(),
        or(root.at("reportingComponent").text(), root.at("reportingController").text()),
    );
    let instance = or(root.at(source).at("host").text(), root.at("reportingInstance").text());
    let source = if instance.is_empty() { component.to_owned() } else { format!("{component}, {instance}") };
    vec![
        seen.into(),
        root.at("type").text().into(),
        root.at("reason").text().into(),
        target.into(),
        object.at("fieldPath").text().into(),
        source.into(),
        root.at(message).text().trim().into(),
        first.into(),
        times.into(),
        row.name(),
    ]
}

fn signing_request(row: Row<'_>) -> Vec<Value> {
    let has =
        |kind: &str| row.status("conditions").items().any(|condition| condition.at("type").text() == kind);
    let mut condition = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        condition += ",Failed";
    }
    if !row.status("certificate").is_empty() {
        condition += ",Issued";
    }
    let lifetime = row.spec("expirationSeconds").opt_int();
    let lifetime =
        lifetime.map_or("<none>".to_owned(), |seconds| duration(SignedDuration::from_secs(seconds)));
    vec![
        row.name(),
        row.age(),
        or(row.spec("signerName").text(), "<none>").into(),
        row.spec("username").text().into(),
        lifetime.into(),
        condition.into(),
    ]
}

fn role_binding(row: Row<'_>) -> Vec<Value> {
    let subjects = |kind: &str| -> Value {
        let of_kind = row.root.at("subjects").items().filter(|subject| subject.at("kind").text() == kind);
        let names = of_kind.map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", subject.at("namespace").text(), subject.at("name").text()),
            _ => subject.at("name").text().to_owned(),
        });
        names.collect::<Vec<_>>().join(", ").into()
    };
    let role = row.root.at("roleRef");
    vec![
        row.name(),
        format!("{}/{}", role.at("kind").text(), role.at("name").text()).into(),
        row.age(),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

fn admission(kind: &str, row: Row<'_>) -> Vec<Value> {
    let count = |node: Node<'_>| Value::from(node.len());
    let param_kind = || -> Value {
        let param = row.spec("paramKind");
        if !param.exists() {
            return "<unset>".into();
        }
        format!("{}/{}", param.at("apiVersion").text(), param.at("kind").text()).into()
    };
    match kind {
        "ValidatingAdmissionPolicy" => {
            vec![row.name(), count(row.spec("validations")), param_kind(), row.age()]
        }
        "MutatingAdmissionPolicy" => vec![row.name(), count(row.spec("mutations")), param_kind(), row.age()],
        "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding" => {
            let param = row.spec("paramRef");
            let shown: Value = match (param.at("name").text(), param.at("namespace").text()) {
                ("", _) if param.at("selector").exists() => selector(param.at("selector")),
                ("", _) => "<unset>".into(),
                (name, "") => format!("*/{name}").into(),
                (name, namespace) => format!("{namespace}/{name}").into(),
            };
            vec![row.name(), row.spec("policyName").text().into(), shown, row.age()]
        }
        _ => vec![row.name(), count(row.root.at("webhooks")), row.age()],
    }
}

fn flow_schema(row: Row<'_>) -> Vec<Value> {
    let method = row.spec("distinguisherMethod");
    let method = if method.exists() { method.at("type").text() } else { "<none>" };
    let dangling =
        row.status("conditions").items().find(|condition| condition.at("type").text() == "Dangling");
    vec![
        row.name(),
        row.spec("priorityLevelConfiguration").at("name").text().into(),
        row.spec("matchingPrecedence").int().into(),
        method.into(),
        row.age(),
        dangling.map_or("?", |condition| condition.at("status").text()).into(),
    ]
}

fn priority_level(row: Row<'_>) -> Vec<Value> {
    let limited = row.spec("limited");
    let queuing = limited.dig(&["limitResponse", "queuing"]);
    let number = |node: Node<'_>, present: bool| -> Value {
        if present { node.int().into() } else { "<none>".into() }
    };
    vec![
        row.name(),
        row.spec("type").text().into(),
        number(limited.at("nominalConcurrencyShares"), limited.exists()),
        number(queuing.at("queues"), queuing.exists()),
        number(queuing.at("handSize"), queuing.exists()),
        number(queuing.at("queueLengthLimit"), queuing.exists()),
        row.age(),
    ]
}

fn api_service(row: Row<'_>) -> Vec<Value> {
    let service = row.spec("service");
    let service = if service.exists() {
        format!("{}/{}", service.at("namespace").text(), service.at("name").text())
    } else {
        "Local".to_owned()
    };
    let available =
        row.status("conditions").items().find(|condition| condition.at("type").text() == "Available");
    let available = available.map_or("Unknown".to_owned(), |condition| {
        match (condition.at("status").text(), condition.at("reason").text()) {
            ("True", _) => "True".to_owned(),
            (status, "") => status.to_owned(),
            (status, reason) => format!("{status} ({reason})"),
        }
    });
    vec![row.name(), service.into(), available.into(), row.age()]
}
