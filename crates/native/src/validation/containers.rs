//! Containers: their names, ports, variables, mounts, resources, probes.

use std::collections::HashSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

use super::check::{self, complaints};
use super::node::Node;
use super::{probes, security};

pub(super) fn regular(errors: &mut Errors, spec: Node<'_>, volumes: &HashSet<&str>, path: &Path) {
    let (containers, path) = (spec.at("containers"), path.child("containers"));
    if containers.is_empty() {
        errors.push(Error::required(&path, ""));
        return;
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, container) in containers.items().enumerate() {
        let path = path.index(index);
        container_fields(errors, container, volumes, &path);
        let name = container.at("name").text();
        if seen.contains(&name) {
            errors.push(Error::duplicate(&path.child("name"), name));
        } else {
            seen.insert(name);
        }
        probes::of_container(errors, container, &path);
        restart_policy(errors, container, &path);
    }
    host_ports(errors, containers.items().enumerate(), &path);
}

pub(super) fn init(errors: &mut Errors, spec: Node<'_>, volumes: &HashSet<&str>, path: &Path) {
    let path = path.child("initContainers");
    let mut seen: HashSet<&str> =
        spec.at("containers").items().map(|container| container.at("name").text()).collect();
    for (index, container) in spec.at("initContainers").items().enumerate() {
        let at = path.index(index);
        container_fields(errors, container, volumes, &at);
        restart_policy(errors, container, &at);
        let name = container.at("name").text();
        if seen.contains(&name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        } else if !name.is_empty() {
            seen.insert(name);
        }
        // Upstream reports a clash within one init container under index 0.
        host_ports(errors, std::iter::once((0, container)), &path);
        if container.at("restartPolicy").text() == "Always" {
            probes::of_container(errors, container, &at);
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if container.at(field).exists() {
                let text = "may not be set for init containers without restartPolicy=Always";
                errors.push(Error::forbidden(&at.child(field), text));
            }
        }
    }
}

fn restart_policy(errors: &mut Errors, container: Node<'_>, path: &Path) {
    check::optional_enum(
        errors,
        &path.child("restartPolicy"),
        container.at("restartPolicy"),
        &["Always", "Never", "OnFailure"],
    );
}

/// Checks what regular and init containers are checked for alike.
fn container_fields(errors: &mut Errors, container: Node<'_>, volumes: &HashSet<&str>, path: &Path) {
    let name = container.at("name").text();
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    } else {
        complaints(errors, &path.child("name"), name, names::dns1123_label(name));
    }
    check::required(errors, &path.child("image"), container.at("image"));
    check::required_enum(
        errors,
        &path.child("terminationMessagePolicy"),
        container.at("terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    );
    ports(errors, container.at("ports"), &path.child("ports"));
    variables(errors, container.at("env"), &path.child("env"));
    variable_sources(errors, container.at("envFrom"), &path.child("envFrom"));
    mounts(errors, container, volumes, &path.child("volumeMounts"));
    devices(errors, container, volumes, &path.child("volumeDevices"));
    check::required_enum(
        errors,
        &path.child("imagePullPolicy"),
        container.at("imagePullPolicy"),
        &["Always", "IfNotPresent", "Never"],
    );
    resources(errors, container.at("resources"), &path.child("resources"));
    security::container(errors, container.at("securityContext"), &path.child("securityContext"));
}

fn ports(errors: &mut Errors, ports: Node<'_>, path: &Path) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, port) in ports.items().enumerate() {
        let path = path.index(index);
        let name = port.at("name").text();
        if !name.is_empty() {
            let wrong = names::port_name(name);
            if !wrong.is_empty() {
                complaints(errors, &path.child("name"), name, wrong);
            } else if seen.contains(&name) {
                errors.push(Error::duplicate(&path.child("name"), name));
            } else {
                seen.insert(name);
            }
        }
        for field in ["containerPort", "hostPort"] {
            let number = port.at(field).int();
            let at = path.child(field);
            if number != 0 {
                let wrong = names::port_number(number);
                errors.extend(wrong.into_iter().map(|text| Error::invalid(&at, number, text)));
            } else if field == "containerPort" {
                errors.push(Error::required(&at, ""));
            }
        }
        check::required_enum(errors, &path.child("protocol"), port.at("protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

fn host_ports<'a>(errors: &mut Errors, containers: impl Iterator<Item = (usize, Node<'a>)>, path: &Path) {
    let mut seen: HashSet<String> = HashSet::new();
    for (container_index, container) in containers {
        for (index, port) in container.at("ports").items().enumerate() {
            let number = port.at("hostPort").int();
            if number == 0 {
                continue;
            }
            let key = format!("{}/{}/{number}", port.at("protocol").text(), port.at("hostIP").text());
            if seen.contains(&key) {
                let at = path.index(container_index).child("ports").index(index).child("hostPort");
                errors.push(Error::duplicate(&at, key));
            } else {
                seen.insert(key);
            }
        }
    }
}

/// Since 1.34 a variable may have any printable name without `=`.
fn variable_name(name: &str) -> Vec<String> {
    let fine = name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=');
    if fine {
        return Vec::new();
    }
    vec![
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
            .to_owned(),
    ]
}

fn variables(errors: &mut Errors, env: Node<'_>, path: &Path) {
    for (index, variable) in env.items().enumerate() {
        let path = path.index(index);
        let name = variable.at("name").text();
        if name.is_empty() {
            errors.push(Error::required(&path.child("name"), ""));
        } else {
            complaints(errors, &path.child("name"), name, variable_name(name));
        }
        let source = variable.at("valueFrom");
        if source.exists() {
            value_from(errors, source, !variable.at("value").is_empty(), &path.child("valueFrom"));
        }
    }
}

fn value_from(errors: &mut Errors, source: Node<'_>, has_value: bool, path: &Path) {
    let mut sources = 0_usize;
    if source.at("fieldRef").exists() {
        sources = sources.saturating_add(1);
        field_ref(errors, source.at("fieldRef"), &ENV_FIELDS, &path.child("fieldRef"));
    }
    if source.at("resourceFieldRef").exists() {
        sources = sources.saturating_add(1);
        resource_ref(errors, source.at("resourceFieldRef"), &path.child("resourceFieldRef"));
    }
    for field in ["configMapKeyRef", "secretKeyRef"] {
        let reference = source.at(field);
        if !reference.exists() {
            continue;
        }
        sources = sources.saturating_add(1);
        let path = path.child(field);
        let name = reference.at("name").text();
        complaints(errors, &path.child("name"), name, names::dns1123_subdomain(name));
        let key = reference.at("key").text();
        if key.is_empty() {
            errors.push(Error::required(&path.child("key"), ""));
        } else {
            complaints(errors, &path.child("key"), key, names::config_key(key));
        }
    }
    sources = sources.saturating_add(usize::from(source.at("fileKeyRef").exists()));
    let text = match (sources, has_value) {
        (0, _) => {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        }
        (_, true) => "may not be specified when `value` is not empty",
        (1, _) => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(Error::invalid(path, "", text));
}

/// What a variable may show of its pod.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// What a file of a downward volume may show of its pod.
pub(super) const VOLUME_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

pub(super) fn field_ref(errors: &mut Errors, reference: Node<'_>, supported: &[&str], path: &Path) {
    let field = reference.at("fieldPath").text();
    for (name, value) in [("apiVersion", reference.at("apiVersion").text()), ("fieldPath", field)] {
        if value.is_empty() {
            errors.push(Error::required(&path.child(name), ""));
            return;
        }
    }
    let at = path.child("fieldPath");
    let subscript = field.strip_suffix("']").and_then(|rest| rest.split_once("['"));
    let known = ENV_FIELDS.contains(&field) || VOLUME_FIELDS.contains(&field) || field == "spec.host";
    match subscript {
        Some(("metadata.annotations", key)) => {
            complaints(errors, path, &key.to_lowercase(), names::qualified_name(&key.to_lowercase()));
        }
        Some(("metadata.labels", key)) => complaints(errors, path, key, names::qualified_name(key)),
        Some((field, _)) => errors.push(Error::invalid(path, field, "does not support subscript")),
        None if !known => {
            let text = format!("error converting fieldPath: field label not supported: {field}");
            errors.push(Error::invalid(&at, field, text));
        }
        None if !supported.contains(&field) => errors.push(Error::not_supported(&at, field, supported)),
        None => {}
    }
}

pub(super) fn resource_ref(errors: &mut Errors, reference: Node<'_>, path: &Path) {
    let resource = reference.at("resource").text();
    let known = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    if resource.is_empty() {
        errors.push(Error::required(&path.child("resource"), ""));
    } else if !known.contains(&resource)
        && !resource.starts_with("requests.hugepages-")
        && !resource.starts_with("limits.hugepages-")
    {
        errors.push(Error::not_supported(&path.child("resource"), resource, &known));
    }
}

fn variable_sources(errors: &mut Errors, sources: Node<'_>, path: &Path) {
    for (index, source) in sources.items().enumerate() {
        let at = path.index(index);
        let prefix = source.at("prefix").text();
        complaints(errors, &at.child("prefix"), prefix, variable_name(prefix));
        let mut given = 0_usize;
        for field in ["configMapRef", "secretRef"] {
            let reference = source.at(field);
            if !reference.exists() {
                continue;
            }
            given = given.saturating_add(1);
            let name = reference.at("name").text();
            let at = at.child(field).child("name");
            if name.is_empty() {
                errors.push(Error::required(&at, ""));
            } else {
                complaints(errors, &at, name, names::dns1123_subdomain(name));
            }
        }
        match given {
            0 => errors.push(Error::invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")),
            1 => {}
            _ => {
                errors.push(Error::invalid(path, "", "may not have more than one field specified at a time"))
            }
        }
    }
}

fn mounts(errors: &mut Errors, container: Node<'_>, volumes: &HashSet<&str>, path: &Path) {
    let devices = container.at("volumeDevices");
    let device_names: HashSet<&str> = devices.items().map(|device| device.at("name").text()).collect();
    let device_paths: HashSet<&str> = devices.items().map(|device| device.at("devicePath").text()).collect();
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, mount) in container.at("volumeMounts").items().enumerate() {
        let at = path.index(index);
        let (name, target) = (mount.at("name").text(), mount.at("mountPath").text());
        check::required(errors, &at.child("name"), mount.at("name"));
        if !volumes.contains(name) {
            errors.push(Error::not_found(&at.child("name"), name));
        }
        check::required(errors, &at.child("mountPath"), mount.at("mountPath"));
        if seen.contains(&target) {
            errors.push(Error::invalid(&at.child("mountPath"), target, "must be unique"));
        }
        seen.insert(target);
        if device_names.contains(name) {
            errors.push(Error::invalid(&at.child("name"), name, "must not already exist in volumeDevices"));
        }
        if device_paths.contains(target) {
            let text = "must not already exist as a path in volumeDevices";
            errors.push(Error::invalid(&at.child("mountPath"), target, text));
        }
        let (sub_path, expression) = (mount.at("subPath").text(), mount.at("subPathExpr").text());
        check::descending_path(errors, &path.child("subPath"), sub_path);
        if !expression.is_empty() {
            if !sub_path.is_empty() {
                let text = "subPathExpr and subPath are mutually exclusive";
                errors.push(Error::invalid(&at.child("subPathExpr"), expression, text));
            }
            check::descending_path(errors, &path.child("subPathExpr"), expression);
        }
        let propagation = mount.at("mountPropagation");
        let at = path.child("mountPropagation");
        check::optional_enum(errors, &at, propagation, &["Bidirectional", "HostToContainer", "None"]);
        let privileged = container.dig(&["securityContext", "privileged"]).flag();
        if propagation.text() == "Bidirectional" && !privileged {
            let text = "Bidirectional mount propagation is available only to privileged containers";
            errors.push(Error::forbidden(&at, text));
        }
    }
}

fn devices(errors: &mut Errors, container: Node<'_>, volumes: &HashSet<&str>, path: &Path) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, device) in container.at("volumeDevices").items().enumerate() {
        let path = path.index(index);
        let (name, target) = (device.at("name").text(), device.at("devicePath").text());
        check::required(errors, &path.child("name"), device.at("name"));
        if !name.is_empty() && !volumes.contains(name) {
            errors.push(Error::not_found(&path.child("name"), name));
        }
        check::required(errors, &path.child("devicePath"), device.at("devicePath"));
        if seen.contains(&target) {
            errors.push(Error::invalid(&path.child("devicePath"), target, "must be unique"));
        }
        seen.insert(target);
        check::no_backsteps(errors, &path.child("devicePath"), target);
    }
}

fn resource_name(errors: &mut Errors, path: &Path, name: &str) {
    let before = errors.len();
    complaints(errors, path, name, names::qualified_name(name));
    let hugepages = name.starts_with("hugepages-");
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || hugepages;
    if name.contains('/') {
        if check::is_extended_resource(name) && !names::qualified_name(&format!("requests.{name}")).is_empty()
        {
            errors.push(Error::invalid(path, name, "doesn't follow extended resource name standard"));
        }
        return;
    }
    if standard {
        return;
    }
    let known = check::is_integer_resource(name)
        || name == "storage"
        || name.starts_with("requests.")
        || name.starts_with("limits.");
    if !known && errors.len() == before {
        errors.push(Error::invalid(path, name, "must be a standard resource type or fully qualified"));
    }
    errors.push(Error::invalid(path, name, "must be a standard resource for containers"));
}

pub(super) fn resources(errors: &mut Errors, resources: Node<'_>, path: &Path) {
    let (limits, requests) = (resources.at("limits"), resources.at("requests"));
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    for (name, amount) in limits.entries() {
        let at = limits_path.key(name);
        resource_name(errors, &at, name);
        check::resource_amount(errors, &at, name, amount);
    }
    for (name, amount) in requests.entries() {
        let at = requests_path.key(name);
        resource_name(errors, &at, name);
        check::resource_amount(errors, &at, name, amount);
        let limit = limits.at(name);
        if limit.exists() {
            let order = check::quantity(amount).cmp(&check::quantity(limit));
            if order.is_ne() && !check::is_overcommit_allowed(name) {
                let text = format!("must be equal to {name} limit of {}", limit.text());
                errors.push(Error::invalid(&requests_path, amount.text(), text));
            } else if order.is_gt() {
                let text = format!("must be less than or equal to {name} limit of {}", limit.text());
                errors.push(Error::invalid(&requests_path, amount.text(), text));
            }
        } else if !check::is_overcommit_allowed(name) {
            let text = "Limit must be set for non overcommitable resources";
            errors.push(Error::required(&limits_path, text));
        }
    }
    let has = |test: fn(&str) -> bool| limits.entries().chain(requests.entries()).any(|(name, _)| test(name));
    if has(|name| name.starts_with("hugepages-")) && !has(|name| matches!(name, "cpu" | "memory")) {
        errors.push(Error::forbidden(path, "HugePages require cpu or memory"));
    }
}
