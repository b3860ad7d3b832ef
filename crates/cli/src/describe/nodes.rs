//! Nodes, with the pods on them and their requests.

use apimachinery::quantity::Quantity;
use jiff::Timestamp;
use serde_json::Value;

use super::events::age;
use super::words::{Page, each, shown, sorted, text, time};
use crate::select::list;
use crate::server::{Server, segment};

/// The pods on a node that have not ended, and the node's lease.
pub(super) async fn pods_and_lease(server: &Server, name: &str) -> (Vec<Value>, Option<Value>) {
    let fields = format!("spec.nodeName={name},status.phase!=Failed,status.phase!=Succeeded");
    let pods = list(server, "/api/v1/pods", None, Some(&fields)).await.unwrap_or_default();
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", segment(name));
    (pods, server.get(&path).await.ok())
}

pub(super) fn node(page: &mut Page, object: &Value, pods: &[Value], lease: Option<&Value>) {
    let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    page.pair(0, "Name", text(&metadata["name"]));
    let roles: Vec<String> = sorted(&metadata["labels"])
        .iter()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) if !role.is_empty() => Some(role.to_owned()),
            _ if key == "kubernetes.io/role" && !value.is_empty() => Some(value.clone()),
            _ => None,
        })
        .collect();
    page.pair(0, "Roles", if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") });
    page.labels("Labels", &metadata["labels"]);
    page.annotations("Annotations", &metadata["annotations"]);
    page.pair(0, "CreationTimestamp", time(&metadata["creationTimestamp"]));
    let taints: Vec<String> = each(&spec["taints"])
        .map(|taint| {
            let value = match text(&taint["value"]).as_str() {
                "" => String::new(),
                value => format!("={value}"),
            };
            format!("{}{value}:{}", text(&taint["key"]), text(&taint["effect"]))
        })
        .collect();
    page.list("Taints", &taints);
    page.pair(0, "Unschedulable", spec["unschedulable"] == true);
    page.line(0, "Lease:");
    let field = |key: &str| lease.map_or(&Value::Null, |lease| &lease["spec"][key]);
    let moment = |key: &str| if field(key).is_string() { time(field(key)) } else { "<unset>".to_owned() };
    page.pair(1, "HolderIdentity", shown(field("holderIdentity"), "<unset>"));
    page.pair(1, "AcquireTime", moment("acquireTime"));
    page.pair(1, "RenewTime", moment("renewTime"));
    if each(&status["conditions"]).next().is_some() {
        page.line(0, "Conditions:");
        page.line(1, "Type\tStatus\tLastHeartbeatTime\tLastTransitionTime\tReason\tMessage");
        page.line(1, "----\t------\t-----------------\t------------------\t------\t-------");
        for condition in each(&status["conditions"]) {
            page.line(
                1,
                format!(
                    "{} \t{} \t{} \t{} \t{} \t{}",
                    text(&condition["type"]),
                    text(&condition["status"]),
                    time(&condition["lastHeartbeatTime"]),
                    time(&condition["lastTransitionTime"]),
                    text(&condition["reason"]),
                    text(&condition["message"])
                ),
            );
        }
    }
    page.line(0, "Addresses:");
    for address in each(&status["addresses"]) {
        page.pair(1, &text(&address["type"]), text(&address["address"]));
    }
    for (title, key) in [("Capacity", "capacity"), ("Allocatable", "allocatable")] {
        if status[key].is_object() {
            page.line(0, format!("{title}:"));
            for (name, amount) in sorted(&status[key]) {
                page.pair(1, &name, amount);
            }
        }
    }
    page.line(0, "System Info:");
    for (title, key) in [
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
        ("Kube-Proxy Version", "kubeProxyVersion"),
    ] {
        page.pair(1, title, text(&status["nodeInfo"][key]));
    }
    for (title, key) in [("PodCIDR", "podCIDR"), ("ProviderID", "providerID")] {
        if let Some(value) = spec[key].as_str().filter(|value| !value.is_empty()) {
            page.pair(0, title, value);
        }
    }
    let has = if status["allocatable"].is_object() { &status["allocatable"] } else { &status["capacity"] };
    resources(page, pods, has);
}

/// An amount of CPU in thousandths, or of bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Amounts {
    cpu: i64,
    memory: i64,
    storage: i64,
}

impl Amounts {
    /// The requests of a pod's containers, or the largest init container's if they are higher.
    fn of(pod: &Value, key: &str) -> Self {
        let spec = &pod["spec"];
        let read = |container: &Value| {
            let quantity = |name: &str| {
                container["resources"][key][name].as_str().and_then(|text| Quantity::parse(text).ok())
            };
            Self {
                cpu: quantity("cpu").map_or(0, |q| q.milli_value()),
                memory: quantity("memory").map_or(0, |q| q.value()),
                storage: quantity("ephemeral-storage").map_or(0, |q| q.value()),
            }
        };
        let mut sum = Self::default();
        for container in each(&spec["containers"]) {
            sum.add(read(container));
        }
        for container in each(&spec["initContainers"]) {
            let one = read(container);
            sum.cpu = sum.cpu.max(one.cpu);
            sum.memory = sum.memory.max(one.memory);
            sum.storage = sum.storage.max(one.storage);
        }
        sum
    }

    fn add(&mut self, other: Self) {
        self.cpu += other.cpu;
        self.memory += other.memory;
        self.storage += other.storage;
    }
}

fn cpu(thousandths: i64) -> String {
    if thousandths % 1000 == 0 { (thousandths / 1000).to_string() } else { format!("{thousandths}m") }
}

/// In the largest unit that divides it.
fn bytes(amount: i64) -> String {
    for (unit, name) in [(1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")] {
        if amount != 0 && amount % unit == 0 {
            return format!("{}{name}", amount / unit);
        }
    }
    amount.to_string()
}

fn share(amount: i64, all: i64) -> i64 {
    if all == 0 { 0 } else { amount * 100 / all }
}

fn resources(page: &mut Page, pods: &[Value], has: &Value) {
    let quantity = |name: &str| has[name].as_str().and_then(|text| Quantity::parse(text).ok());
    let all_cpu = quantity("cpu").map_or(0, |q| q.milli_value());
    let all_memory = quantity("memory").map_or(0, |q| q.value());
    let all_storage = quantity("ephemeral-storage").map_or(0, |q| q.value());
    page.pair(0, "Non-terminated Pods", format!("({} in total)", pods.len()));
    page.line(1, "Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge");
    page.line(1, "---------\t----\t\t------------\t----------\t---------------\t-------------\t---");
    let (mut asked, mut limits) = (Amounts::default(), Amounts::default());
    for pod in pods {
        let (request, limit) = (Amounts::of(pod, "requests"), Amounts::of(pod, "limits"));
        let born = age(pod["metadata"]["creationTimestamp"].as_str().unwrap_or(""), Timestamp::now());
        page.line(
            1,
            format!(
                "{}\t{}\t\t{} ({}%)\t{} ({}%)\t{} ({}%)\t{} ({}%)\t{born}",
                text(&pod["metadata"]["namespace"]),
                text(&pod["metadata"]["name"]),
                cpu(request.cpu),
                share(request.cpu, all_cpu),
                cpu(limit.cpu),
                share(limit.cpu, all_cpu),
                bytes(request.memory),
                share(request.memory, all_memory),
                bytes(limit.memory),
                share(limit.memory, all_memory)
            ),
        );
        asked.add(request);
        limits.add(limit);
    }
    page.line(0, "Allocated resources:\n  (Total limits may be over 100 percent, i.e., overcommitted.)");
    page.line(1, "Resource\tRequests\tLimits");
    page.line(1, "--------\t--------\t------");
    for (name, one, other, all, write) in [
        ("cpu", asked.cpu, limits.cpu, all_cpu, cpu as fn(i64) -> String),
        ("memory", asked.memory, limits.memory, all_memory, bytes),
        ("ephemeral-storage", asked.storage, limits.storage, all_storage, bytes),
    ] {
        let (one_share, other_share) = (share(one, all), share(other, all));
        page.line(1, format!("{name}\t{} ({one_share}%)\t{} ({other_share}%)", write(one), write(other)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_of_pods_are_added_up() {
        let pod = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}},
            {"resources": {"requests": {"cpu": "1"}}}], "initContainers": [{"resources": {"requests": {"memory": "1Gi"}}}]}});
        let sum = Amounts::of(&pod, "requests");
        assert_eq!((sum.cpu, bytes(sum.memory), cpu(sum.cpu)), (1100, "1Gi".to_owned(), "1100m".to_owned()));
        assert_eq!((cpu(2000), bytes(0), bytes(1000)), ("2".to_owned(), "0".to_owned(), "1000".to_owned()));
    }
}
