//! What the server says in `Warning` headers: nothing is refused, but somebody should look.

use std::collections::{BTreeMap, HashSet};

use apimachinery::field::Path;
use apimachinery::gvk::Gvk;
use apimachinery::names;
use apimachinery::quantity::Quantity;
use serde_json::Value;

use crate::validation::node::{Node, same};

/// Returns the warnings of creating an object.
pub fn on_create(gvk: &Gvk, object: &Value) -> Vec<String> {
    let root = Node::from(object);
    let mut warnings: Vec<String> = deprecation(gvk).into_iter().map(str::to_owned).collect();
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Pod") => {
            name_is_no_label(root, "used in the Pod's hostname", &mut warnings);
            pod(&Path::default(), root, &mut warnings);
        }
        ("", "ReplicationController")
        | ("apps", "Deployment" | "ReplicaSet")
        | ("batch", "Job" | "CronJob") => {
            name_is_no_label(root, "used in Pod names and hostnames", &mut warnings);
            template(gvk, root, &mut warnings);
        }
        ("", "PodTemplate") | ("apps", "StatefulSet" | "DaemonSet") => template(gvk, root, &mut warnings),
        ("networking.k8s.io", "Ingress") => {
            let class = root.dig(&["metadata", "annotations", "kubernetes.io/ingress.class"]);
            if class.exists() && !root.dig(&["spec", "ingressClassName"]).exists() {
                warnings.push(
                    "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"
                        .to_owned(),
                );
            }
        }
        ("", "ResourceQuota") => quota(root, &mut warnings),
        ("", "ServiceAccount") if mountable_secrets(root) => warnings.push(MOUNTABLE_SECRETS.to_owned()),
        _ => always(gvk, root, &mut warnings),
    }
    warnings
}

/// Returns the warnings of an update; those of a pod template only when it could have changed.
pub fn on_update(gvk: &Gvk, object: &Value, old: &Value) -> Vec<String> {
    let root = Node::from(object);
    let mut warnings: Vec<String> = deprecation(gvk).into_iter().map(str::to_owned).collect();
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "ReplicationController")
        | ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
        | ("batch", "Job" | "CronJob") => {
            let old = Node::from(old).dig(&["metadata", "generation"]);
            if !same(root.dig(&["metadata", "generation"]), old) {
                template(gvk, root, &mut warnings);
            }
        }
        ("", "ServiceAccount") if mountable_secrets(root) && !mountable_secrets(Node::from(old)) => {
            warnings.push(MOUNTABLE_SECRETS.to_owned());
        }
        _ => always(gvk, root, &mut warnings),
    }
    warnings
}

const MOUNTABLE_SECRETS: &str = "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";

fn mountable_secrets(account: Node<'_>) -> bool {
    account.dig(&["metadata", "annotations", "kubernetes.io/enforce-mountable-secrets"]).exists()
}

/// Returns what every request for a deprecated kind is told, reads included.
pub fn deprecation(gvk: &Gvk) -> Option<&'static str> {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Endpoints") => {
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        }
        ("", "ComponentStatus") => Some("v1 ComponentStatus is deprecated in v1.19+"),
        _ => None,
    }
}

/// Kinds that warn alike on create and update.
fn always(gvk: &Gvk, root: Node<'_>, warnings: &mut Vec<String>) {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Service") => service(root, warnings),
        ("", "PersistentVolume") => persistent_volume(root, warnings),
        ("", "PersistentVolumeClaim") => claim(root, warnings),
        _ => {}
    }
}

fn name_is_no_label(root: Node<'_>, used: &str, warnings: &mut Vec<String>) {
    let wrong = names::dns1123_label(root.dig(&["metadata", "name"]).text());
    if !wrong.is_empty() {
        warnings.push(format!(
            "metadata.name: this is {used}, which can result in surprising behavior; a DNS label is recommended: [{}]",
            wrong.join(" ")
        ));
    }
}

fn template(gvk: &Gvk, root: Node<'_>, warnings: &mut Vec<String>) {
    let (path, node) = match gvk.kind.as_str() {
        "CronJob" => {
            let keys = ["spec", "jobTemplate", "spec", "template"];
            (Path::new("spec").child("jobTemplate").child("spec").child("template"), root.dig(&keys))
        }
        "PodTemplate" => (Path::new("template"), root.at("template")),
        _ => (Path::new("spec").child("template"), root.dig(&["spec", "template"])),
    };
    pod(&path, node, warnings);
    if gvk.kind == "StatefulSet" && root.dig(&["spec", "revisionHistoryLimit"]).int() < 0 {
        warnings.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                .to_owned(),
        );
    }
}

const DEPRECATED_LABELS: [(&str, &str); 5] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
];

const DEPRECATED_VOLUMES: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

fn deprecated_label(key: &str) -> Option<&'static str> {
    DEPRECATED_LABELS.iter().find(|(label, _)| *label == key).map(|(_, text)| *text)
}

/// A pod or a pod template at `path`.
fn pod(path: &Path, pod: Node<'_>, warnings: &mut Vec<String>) {
    let at = path.child("spec");
    let spec = pod.at("spec");
    for (key, _) in spec.at("nodeSelector").entries() {
        if let Some(text) = deprecated_label(key) {
            warnings.push(format!("{}: {text}", at.child("nodeSelector").key(key)));
        }
    }
    for (index, constraint) in spec.at("topologySpreadConstraints").items().enumerate() {
        let at = at.child("topologySpreadConstraints").index(index);
        let key = constraint.at("topologyKey").text();
        if let Some(text) = deprecated_label(key) {
            warnings.push(format!("{}: {key} is {text}", at.child("topologyKey")));
        }
        if !constraint.at("labelSelector").exists() {
            let at = at.child("labelSelector");
            warnings.push(format!("{at}: a null labelSelector results in matching no pod"));
        }
    }
    deprecated_annotations(path, pod, warnings);
    for (index, volume) in spec.at("volumes").items().enumerate() {
        for (source, text) in DEPRECATED_VOLUMES {
            if volume.at(source).exists() {
                let shown = if source == "storageos" { "storageOS" } else { source };
                warnings.push(format!("{}: {text}", at.child("volumes").index(index).child(shown)));
            }
        }
    }
    duplicates(spec.at("hostAliases"), "ip", &at.child("hostAliases"), warnings);
    duplicates(spec.at("imagePullSecrets"), "name", &at.child("imagePullSecrets"), warnings);
    for (index, secret) in spec.at("imagePullSecrets").items().enumerate() {
        if secret.at("name").is_empty() {
            let at = at.child("imagePullSecrets").index(index).child("name");
            warnings.push(format!("{at}: invalid empty name \"\""));
        }
    }
    fractional_bytes(spec.at("overhead"), &at.child("overhead"), warnings);
    let containers = containers(spec, &at);
    for (path, container) in &containers {
        for list in ["limits", "requests"] {
            let at = path.child("resources").child(list);
            fractional_bytes(container.at("resources").at(list), &at, warnings);
        }
        hidden_variables(container.at("env"), &path.child("env"), warnings);
    }
    ports(&containers, warnings);
    if spec.at("terminationGracePeriodSeconds").int() < 0 {
        let at = at.child("terminationGracePeriodSeconds");
        warnings.push(format!("{at}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    affinity(spec.at("affinity"), &at.child("affinity"), warnings);
}

fn containers<'a>(spec: Node<'a>, path: &Path) -> Vec<(Path, Node<'a>)> {
    let mut all = Vec::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let items = spec.at(list).items().enumerate();
        all.extend(items.map(|(index, container)| (path.child(list).index(index), container)));
    }
    all
}

fn deprecated_annotations(path: &Path, pod: Node<'_>, warnings: &mut Vec<String>) {
    let annotations = pod.dig(&["metadata", "annotations"]);
    for (key, text) in [
        (
            "scheduler.alpha.kubernetes.io/critical-pod",
            "non-functional in v1.16+; use the \"priorityClassName\" field instead",
        ),
        (
            "security.alpha.kubernetes.io/sysctls",
            "non-functional in v1.11+; use the \"sysctls\" field instead",
        ),
        (
            "security.alpha.kubernetes.io/unsafe-sysctls",
            "non-functional in v1.11+; use the \"sysctls\" field instead",
        ),
    ] {
        if annotations.at(key).exists() {
            warnings.push(format!("{}: {text}", path.child("metadata").child("annotations").key(key)));
        }
    }
}

fn duplicates(list: Node<'_>, field: &str, path: &Path, warnings: &mut Vec<String>) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, item) in list.items().enumerate() {
        let value = item.at(field).text();
        if !seen.insert(value) {
            warnings.push(format!("{}: duplicate {field} {value:?}", path.index(index).child(field)));
        }
    }
}

fn fractional_bytes(list: Node<'_>, path: &Path, warnings: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        let text = list.at(name).text();
        if text.parse::<Quantity>().is_ok_and(|quantity| quantity.milli_value() % 1000 != 0) {
            let at = path.key(name);
            warnings.push(format!("{at}: fractional byte value {text:?} is invalid, must be an integer"));
        }
    }
}

/// A repeated variable is fine when it extends the former (`PATH=$(PATH):/x`).
fn hidden_variables(env: Node<'_>, path: &Path, warnings: &mut Vec<String>) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, variable) in env.items().enumerate() {
        let name = variable.at("name").text();
        if seen.insert(name) {
            continue;
        }
        let (value, reference) = (variable.at("value").text(), format!("$({name})"));
        if variable.at("valueFrom").exists() || value == reference || !value.contains(&reference) {
            warnings.push(format!(
                "{}: hides previous definition of {name:?}, which may be dropped when using apply",
                path.index(index)
            ));
        }
    }
}

fn ports(containers: &[(Path, Node<'_>)], warnings: &mut Vec<String>) {
    let mut by_number: BTreeMap<(i64, &str), Vec<(Path, Node<'_>)>> = BTreeMap::new();
    for (path, container) in containers {
        for (index, port) in container.at("ports").items().enumerate() {
            let at = path.child("ports").index(index);
            let (ip, number) = (port.at("hostIP").text(), port.at("hostPort").int());
            let others =
                by_number.entry((port.at("containerPort").int(), port.at("protocol").text())).or_default();
            for (other_path, other) in others.iter() {
                let (other_ip, other_number) = (other.at("hostIP").text(), other.at("hostPort").int());
                let what = if ip == other_ip && number == other_number {
                    "duplicate"
                } else if number == 0 || other_number == 0 {
                    "overlapping"
                } else if number == other_number && ip.is_empty() != other_ip.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                warnings.push(format!("{at}: {what} port definition with {other_path}"));
            }
            others.push((at, port));
        }
    }
    let mut by_name: BTreeMap<&str, Path> = BTreeMap::new();
    for (path, container) in containers {
        for (index, port) in container.at("ports").items().enumerate() {
            let (name, at) = (port.at("name").text(), path.child("ports").index(index));
            if name.is_empty() {
                continue;
            }
            match by_name.get(name) {
                Some(other) => warnings.push(format!(
                    "{at}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}"
                )),
                None => {
                    by_name.insert(name, at);
                }
            }
        }
    }
}

fn affinity(affinity: Node<'_>, path: &Path, warnings: &mut Vec<String>) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        for list in [
            "requiredDuringSchedulingIgnoredDuringExecution",
            "preferredDuringSchedulingIgnoredDuringExecution",
        ] {
            for (index, term) in affinity.at(kind).at(list).items().enumerate() {
                let at = path.child(kind).child(list).index(index);
                let (at, term) = if list.starts_with("preferred") {
                    (at.child("podAffinityTerm"), term.at("podAffinityTerm"))
                } else {
                    (at, term)
                };
                if !term.at("labelSelector").exists() {
                    let at = at.child("labelSelector");
                    warnings.push(format!("{at}: a null labelSelector results in matching no pod"));
                }
            }
        }
    }
}

fn service(root: Node<'_>, warnings: &mut Vec<String>) {
    let spec = root.at("spec");
    let mut warn = |text: &str| warnings.push(text.to_owned());
    if root.dig(&["metadata", "annotations", "service.kubernetes.io/topology-aware-hints"]).exists() {
        warn(
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
        );
    }
    let kind = spec.at("type").text();
    let headless = kind == "ClusterIP" && spec.at("clusterIP").text() == "None";
    let has_external_ips = !spec.at("externalIPs").is_empty();
    if headless {
        if !spec.at("loadBalancerIP").is_empty() {
            warn("spec.loadBalancerIP is ignored for headless services");
        }
        if has_external_ips {
            warn("spec.externalIPs is ignored for headless services");
        }
        if spec.at("sessionAffinity").text() != "None" {
            warn("spec.SessionAffinity is ignored for headless services");
        }
    }
    if has_external_ips && !headless && kind != "ExternalName" {
        warn("spec.externalIPs is deprecated and may no longer be implemented in some clusters");
    }
    if kind == "ExternalName" && has_external_ips {
        warn("spec.externalIPs is ignored when spec.type is \"ExternalName\"");
    }
    if kind != "ExternalName" && !spec.at("externalName").is_empty() {
        warn("spec.externalName is ignored when spec.type is not \"ExternalName\"");
    }
    if spec.at("trafficDistribution").text() == "PreferClose" {
        warn("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"");
    }
}

fn persistent_volume(root: Node<'_>, warnings: &mut Vec<String>) {
    let (path, spec) = (Path::new("spec"), root.at("spec"));
    if spec.at("persistentVolumeReclaimPolicy").text() == "Recycle" {
        let at = path.child("persistentVolumeReclaimPolicy");
        warnings.push(format!(
            "{at}: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning."
        ));
    }
    for (source, text) in DEPRECATED_VOLUMES {
        if matches!(source, "cephfs" | "photonPersistentDisk" | "scaleIO" | "storageos" | "glusterfs" | "rbd")
            && spec.at(source).exists()
        {
            let shown = if source == "storageos" { "storageOS" } else { source };
            warnings.push(format!("{}: {text}", path.child(shown)));
        }
    }
}

fn claim(root: Node<'_>, warnings: &mut Vec<String>) {
    let resources = root.dig(&["spec", "resources"]);
    let path = Path::new("spec").child("resources");
    for list in ["requests", "limits"] {
        let text = resources.at(list).at("storage").text();
        if text.parse::<Quantity>().is_ok_and(|quantity| quantity.milli_value() % 1000 != 0) {
            let at = path.child(list).key("storage");
            warnings.push(format!("{at}: fractional byte value {text:?} is invalid, must be an integer"));
        }
    }
}

fn quota(root: Node<'_>, warnings: &mut Vec<String>) {
    let hard = root.dig(&["spec", "hard"]);
    for name in ["cpu", "memory", "ephemeral-storage"] {
        let (mut request_name, limit_name) = (format!("requests.{name}"), format!("limits.{name}"));
        if !hard.at(&request_name).exists() && name != "ephemeral-storage" {
            request_name = name.to_owned();
        }
        let (request, limit) = (hard.at(&request_name).text(), hard.at(&limit_name).text());
        if let (Ok(asked), Ok(allowed)) = (request.parse::<Quantity>(), limit.parse::<Quantity>())
            && asked > allowed
        {
            warnings.push(format!(
                "ResourceQuota {request_name} ({request}) should be less than {limit_name} ({limit})"
            ));
        }
    }
}
