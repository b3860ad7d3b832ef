//! Pods and pod templates: the spec as a whole, its DNS, and what a Pod update may change.

use std::collections::HashSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

use super::check::{self, complaints};
use super::node::{Node, same};
use super::{containers, meta, scheduling, security, volumes};

/// Whose pod spec it is: some rules hold for Pods alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Pod,
    Template,
}

pub(super) fn create(errors: &mut Errors, root: Node<'_>) {
    let path = Path::new("spec");
    spec(errors, root.at("spec"), &path, Owner::Pod);
    for list in ["initContainers", "containers"] {
        for (index, container) in root.at("spec").at(list).items().enumerate() {
            let image = container.at("image").text();
            if image.trim() != image {
                let at = path.child(list).index(index).child("image");
                errors.push(Error::invalid(&at, image, "must not have leading or trailing whitespace"));
            }
        }
    }
    if !root.at("spec").at("ephemeralContainers").is_empty() {
        errors.push(Error::forbidden(&path.child("ephemeralContainers"), "cannot be set on create"));
    }
}

/// A pod template; labels and annotations are reported without `metadata` in the path, as upstream does.
pub(super) fn template(errors: &mut Errors, template: Node<'_>, path: &Path) {
    let metadata = template.at("metadata");
    errors.extend(meta::labels(metadata.at("labels"), &path.child("labels")));
    errors.extend(meta::annotations(metadata.at("annotations"), &path.child("annotations")));
    let at = path.child("spec");
    spec(errors, template.at("spec"), &at, Owner::Template);
    if !template.at("spec").at("ephemeralContainers").is_empty() {
        let at = at.child("ephemeralContainers");
        errors.push(Error::forbidden(&at, "ephemeral containers not allowed in pod template"));
    }
}

pub(super) fn spec(errors: &mut Errors, spec: Node<'_>, path: &Path, owner: Owner) {
    if !spec.at("terminationGracePeriodSeconds").exists() {
        errors.push(Error::required(&path.child("terminationGracePeriodSeconds"), ""));
    }
    let volume_names = volumes::check(errors, spec.at("volumes"), &path.child("volumes"));
    containers::regular(errors, spec, &volume_names, path);
    containers::init(errors, spec, &volume_names, path);
    host_network_ports(errors, spec, path, owner);
    check::required_enum(
        errors,
        &path.child("restartPolicy"),
        spec.at("restartPolicy"),
        &["Always", "OnFailure", "Never"],
    );
    check::required_enum(
        errors,
        &path.child("dnsPolicy"),
        spec.at("dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    errors.extend(meta::labels(spec.at("nodeSelector"), &path.child("nodeSelector")));
    security::pod(errors, spec, path);
    scheduling::affinity(errors, spec.at("affinity"), &path.child("affinity"));
    dns_config(errors, spec, &path.child("dnsConfig"));
    for (index, gate) in spec.at("readinessGates").items().enumerate() {
        let at = path.child("readinessGates").index(index).child("conditionType");
        let kind = gate.at("conditionType").text();
        complaints(errors, &at, kind, names::qualified_name(kind));
    }
    scheduling::gates(errors, spec.at("schedulingGates"), &path.child("schedulingGates"));
    scheduling::spread(
        errors,
        spec.at("topologySpreadConstraints"),
        &path.child("topologySpreadConstraints"),
    );
    named(errors, spec, path, "serviceAccountName", names::dns1123_subdomain);
    named(errors, spec, path, "nodeName", names::dns1123_subdomain);
    if let Some(seconds) = spec.at("activeDeadlineSeconds").opt_int() {
        let wrong = names::in_range(seconds, 1, i64::from(i32::MAX));
        let at = path.child("activeDeadlineSeconds");
        errors.extend(wrong.into_iter().map(|text| Error::invalid(&at, seconds, text)));
    }
    named(errors, spec, path, "hostname", names::dns1123_label);
    named(errors, spec, path, "subdomain", names::dns1123_label);
    scheduling::tolerations(errors, spec.at("tolerations"), &path.child("tolerations"));
    host_aliases(errors, spec.at("hostAliases"), &path.child("hostAliases"));
    named(errors, spec, path, "priorityClassName", names::dns1123_subdomain);
    if let Some(class) = spec.at("runtimeClassName").opt_text() {
        complaints(errors, &path.child("runtimeClassName"), class, names::dns1123_subdomain(class));
    }
    check::optional_enum(
        errors,
        &path.child("preemptionPolicy"),
        spec.at("preemptionPolicy"),
        &["PreemptLowerPriority", "Never"],
    );
    for (name, amount) in spec.at("overhead").entries() {
        check::resource_amount(errors, &path.child("overhead").key(name), name, amount);
    }
    if spec.at("os").exists() {
        check::required_enum(
            errors,
            &path.child("os").child("name"),
            spec.at("os").at("name"),
            &["linux", "windows"],
        );
    }
}

fn named(errors: &mut Errors, owner: Node<'_>, path: &Path, field: &str, rule: fn(&str) -> Vec<String>) {
    let value = owner.at(field).text();
    if !value.is_empty() {
        complaints(errors, &path.child(field), value, rule(value));
    }
}

/// On the host's network a port can only be published under its own number.
fn host_network_ports(errors: &mut Errors, spec: Node<'_>, path: &Path, owner: Owner) {
    if !spec.at("hostNetwork").flag() {
        return;
    }
    for (container_index, container) in spec.at("containers").items().enumerate() {
        let ports = path.child("containers").index(container_index).child("ports");
        for (index, port) in container.at("ports").items().enumerate() {
            let (host, own) = (port.at("hostPort").int(), port.at("containerPort").int());
            if (owner == Owner::Pod || host != 0) && host != own {
                let at = ports.index(index).child("hostPort");
                errors.push(Error::invalid(
                    &at,
                    host,
                    "must match `containerPort` when `hostNetwork` is true",
                ));
            }
        }
    }
}

fn dns_config(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    let config = spec.at("dnsConfig");
    let servers = config.at("nameservers");
    if spec.at("dnsPolicy").text() == "None" {
        if !config.exists() {
            errors.push(Error::required(path, "must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if servers.is_empty() {
            let text = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(Error::required(&path.child("nameservers"), text));
            return;
        }
    }
    if servers.len() > 3 {
        let text = "must not have more than 3 nameservers";
        errors.push(Error::invalid(&path.child("nameservers"), servers.value(), text));
    }
    for (index, server) in servers.texts().into_iter().enumerate() {
        complaints(errors, &path.child("nameservers").index(index), server, names::ip(server));
    }
    let searches = config.at("searches");
    if searches.len() > 32 {
        let text = "must not have more than 32 search paths";
        errors.push(Error::invalid(&path.child("searches"), searches.value(), text));
    }
    if searches.texts().join(" ").len() > 2048 {
        let text = "must not have more than 2048 characters (including spaces) in the search list";
        errors.push(Error::invalid(&path.child("searches"), searches.value(), text));
    }
    for (index, option) in config.at("options").items().enumerate() {
        if option.at("name").is_empty() {
            errors.push(Error::required(&path.child("options").index(index), "must not be empty"));
        }
    }
}

fn host_aliases(errors: &mut Errors, aliases: Node<'_>, path: &Path) {
    for (index, alias) in aliases.items().enumerate() {
        let path = path.index(index);
        let address = alias.at("ip").text();
        complaints(errors, &path.child("ip"), address, names::ip(address));
        for (index, host) in alias.at("hostnames").texts().into_iter().enumerate() {
            complaints(errors, &path.child("hostnames").index(index), host, names::dns1123_subdomain(host));
        }
    }
}

const MAY_CHANGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// A running pod is what it is, except for a handful of fields.
pub(super) fn update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    let path = Path::new("spec");
    let (new, old) = (new.at("spec"), old.at("spec"));
    for list in ["containers", "initContainers"] {
        if new.at(list).len() != old.at(list).len() {
            errors.push(Error::forbidden(&path.child(list), "pod updates may not add or remove containers"));
            return;
        }
        for (index, container) in new.at(list).items().enumerate() {
            let at = path.child(list).index(index).child("image");
            check::required(errors, &at, container.at("image"));
        }
    }
    deadline(errors, new, old, &path.child("activeDeadlineSeconds"));
    let gates: Vec<&str> = old.at("schedulingGates").items().map(|gate| gate.at("name").text()).collect();
    for (index, gate) in new.at("schedulingGates").items().enumerate() {
        if !gates.contains(&gate.at("name").text()) {
            let at = path.child("schedulingGates").index(index);
            errors.push(Error::forbidden(&at, "only deletion is allowed, but found new scheduling gate"));
        }
    }
    let mut frozen = new.value();
    if let Some(spec) = frozen.as_object_mut() {
        for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
            match old.at(field).0 {
                Some(value) => spec.insert(field.to_owned(), value.clone()),
                None => spec.remove(field),
            };
        }
        if old.at("terminationGracePeriodSeconds").int() < 0
            && new.at("terminationGracePeriodSeconds").int() == 1
        {
            let value = old.at("terminationGracePeriodSeconds").value();
            spec.insert("terminationGracePeriodSeconds".to_owned(), value);
        }
        for list in ["containers", "initContainers"] {
            let images: Vec<_> =
                old.at(list).items().map(|container| container.at("image").value()).collect();
            let containers = spec.get_mut(list).and_then(serde_json::Value::as_array_mut);
            for (container, image) in containers.into_iter().flatten().zip(images) {
                container["image"] = image;
            }
        }
    }
    // While gated, a pod's node constraints may still be tightened; which changes tighten is not judged here.
    let gated = !old.at("schedulingGates").is_empty();
    if !gated && !same(Node::from(&frozen), old) {
        errors.push(Error::forbidden(&path, MAY_CHANGE));
    }
    let (old, new) = (old.at("tolerations"), new.at("tolerations"));
    let known: HashSet<&serde_json::Value> = new.items().filter_map(|toleration| toleration.0).collect();
    let kept = old
        .items()
        .all(|old| old.0.is_some_and(|old| known.contains(old)) || new.items().any(|new| same(new, old)));
    if !kept {
        let text = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(Error::forbidden(&path.child("tolerations"), text));
    }
}

fn deadline(errors: &mut Errors, new: Node<'_>, old: Node<'_>, path: &Path) {
    match (new.at("activeDeadlineSeconds").opt_int(), old.at("activeDeadlineSeconds").opt_int()) {
        (Some(seconds), old) => {
            let wrong = names::in_range(seconds, 0, i64::from(i32::MAX));
            errors.extend(wrong.into_iter().map(|text| Error::invalid(path, seconds, text)));
            if let Some(old) = old
                && old < seconds
            {
                errors.push(Error::invalid(path, seconds, "must be less than or equal to previous value"));
            }
        }
        (None, Some(_)) => {
            errors.push(Error::invalid(
                path,
                serde_json::Value::Null,
                "must not update from a positive integer to nil value",
            ));
        }
        (None, None) => {}
    }
}
