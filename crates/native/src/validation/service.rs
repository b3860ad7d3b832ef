//! Services. Addresses and node ports are allocated before validation, so they are seen here.

use std::collections::HashSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use apimachinery::status::MOST_ERRORS;
use serde_json::json;

use super::check::{self, complaints};
use super::meta;
use super::node::{Node, same};
use crate::prepare::service::Family;

const CHANGED: &str = "may not change once set";
const ONLY_BALANCERS: &str = "may only be used when `type` is 'LoadBalancer'";

pub(super) fn service(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    let kind = spec.at("type").text();
    let first_ip = spec.at("clusterIPs").items().next().map_or("", Node::text);
    let headless = first_ip == "None";
    if spec.at("ports").is_empty() && !headless && kind != "ExternalName" {
        errors.push(Error::required(&path.child("ports"), ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let text = format!("may not be set to 'None' for {kind} services");
            errors.push(Error::invalid(&path.child("clusterIPs").index(0), first_ip, text));
        }
        "ExternalName" => external_name(errors, spec, &path),
        _ => {}
    }
    let mut seen: HashSet<&str> = HashSet::new();
    let require_name = spec.at("ports").len() > 1;
    for (index, port) in spec.at("ports").items().enumerate() {
        if errors.len() >= MOST_ERRORS {
            break;
        }
        service_port(errors, port, require_name, &mut seen, &path.child("ports").index(index));
    }
    errors.extend(meta::labels(spec.at("selector"), &path.child("selector")));
    affinity(errors, spec, &path);
    if kind != "ExternalName" {
        addresses(errors, spec, &path);
    }
    for (index, address) in spec.at("externalIPs").texts().into_iter().enumerate() {
        let at = path.child("externalIPs").index(index);
        let wrong = names::ip(address);
        if wrong.is_empty() {
            errors.extend(super::networking::endpoint_ip(address, &at));
        } else {
            complaints(errors, &at, address, wrong);
        }
    }
    check::required_enum(
        errors,
        &path.child("type"),
        spec.at("type"),
        &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
    );
    port_clashes(errors, spec, &path.child("ports"));
    balancer(errors, spec, &path);
    traffic(errors, spec, &path);
}

fn external_name(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if !spec.at(field).is_empty() {
            errors.push(Error::forbidden(&path.child(field), "may not be set for ExternalName services"));
        }
    }
    let name = spec.at("externalName").text();
    let name = name.strip_suffix('.').unwrap_or(name);
    let at = path.child("externalName");
    if name.is_empty() {
        errors.push(Error::required(&at, ""));
    } else {
        complaints(errors, &at, name, names::dns1123_subdomain(name));
    }
}

fn service_port<'a>(
    errors: &mut Errors,
    port: Node<'a>,
    require_name: bool,
    seen: &mut HashSet<&'a str>,
    path: &Path,
) {
    let name = port.at("name").text();
    if !name.is_empty() {
        complaints(errors, &path.child("name"), name, names::dns1123_label(name));
        if seen.contains(&name) {
            errors.push(Error::duplicate(&path.child("name"), name));
        } else {
            seen.insert(name);
        }
    } else if require_name {
        errors.push(Error::required(&path.child("name"), ""));
    }
    let number = port.at("port").int();
    let wrong = names::port_number(number);
    errors.extend(wrong.into_iter().map(|text| Error::invalid(&path.child("port"), number, text)));
    check::required_enum(errors, &path.child("protocol"), port.at("protocol"), &["SCTP", "TCP", "UDP"]);
    check::port_or_name(errors, &path.child("targetPort"), port.at("targetPort"));
    if let Some(protocol) = port.at("appProtocol").opt_text() {
        complaints(errors, &path.child("appProtocol"), protocol, names::qualified_name(protocol));
    }
}

fn affinity(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    check::required_enum(
        errors,
        &path.child("sessionAffinity"),
        spec.at("sessionAffinity"),
        &["ClientIP", "None"],
    );
    let (config, at) = (spec.at("sessionAffinityConfig"), path.child("sessionAffinityConfig"));
    match spec.at("sessionAffinity").text() {
        "ClientIP" => {
            let seconds = config.dig(&["clientIP", "timeoutSeconds"]);
            let at = at.child("clientIP").child("timeoutSeconds");
            match seconds.opt_int() {
                Some(1..=86400) => {}
                Some(number) => {
                    let text = "must be greater than 0 and less than 86400";
                    errors.push(Error::invalid(&at, number, text));
                }
                None => errors.push(Error::required(&at, "when session affinity type is ClientIP")),
            }
        }
        "None" if config.exists() => {
            errors.push(Error::forbidden(&at, "must not be set when session affinity is None"));
        }
        _ => {}
    }
}

/// `clusterIP`, `clusterIPs`, families and their policy must tell one story. Asked before anything is allocated, too.
pub(crate) fn addresses(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    let (single, list) = (spec.at("clusterIP").text(), spec.at("clusterIPs"));
    let at = path.child("clusterIPs");
    let addresses = list.texts();
    match (single, addresses.first()) {
        ("", None) => {}
        ("", Some(_)) => {
            let text = "must be empty when `clusterIP` is not specified";
            errors.push(Error::invalid(&at, list.value(), text));
        }
        (_, None) => errors.push(Error::required(&at, "")),
        (single, Some(first)) if single != *first => {
            errors.push(Error::invalid(&at, list.value(), "first value must match `clusterIP`"));
        }
        _ => {}
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, family) in spec.at("ipFamilies").texts().into_iter().enumerate() {
        let at = path.child("ipFamilies").index(index);
        if !matches!(family, "IPv4" | "IPv6") {
            errors.push(Error::not_supported(&at, family, &["IPv4", "IPv6"]));
        }
        if seen.contains(&family) {
            errors.push(Error::duplicate(&at, family));
        }
        seen.insert(family);
    }
    // An empty one is not a missing one.
    let (policy, policies) =
        (spec.at("ipFamilyPolicy"), ["PreferDualStack", "RequireDualStack", "SingleStack"]);
    if policy.exists() && !policies.contains(&policy.text()) {
        errors.push(Error::not_supported(&path.child("ipFamilyPolicy"), policy.text(), &policies));
    }
    let mut readable = true;
    for (index, address) in addresses.iter().enumerate() {
        if index == 0 && *address == "None" {
            if addresses.len() > 1 {
                readable = false;
                let text = "'None' must be the first and only value";
                errors.push(Error::invalid(&at, list.value(), text));
            }
            continue;
        }
        let wrong = names::ip(address);
        readable &= wrong.is_empty();
        complaints(errors, &at.index(index), address, wrong);
    }
    if addresses.len() > 2 {
        errors.push(Error::invalid(&at, list.value(), "may only hold up to 2 values"));
    }
    if !readable {
        return;
    }
    let of_both = |list: &[&str]| {
        [Family::V4, Family::V6].iter().all(|one| list.iter().any(|ip| Family::of(ip) == *one))
    };
    if addresses.len() > 1 && !of_both(&addresses) {
        errors.push(Error::invalid(&at, list.value(), "may specify no more than one IP for each IP family"));
    }
    if is_headless(spec) {
        return;
    }
    for (index, (address, family)) in addresses.iter().zip(spec.at("ipFamilies").texts()).enumerate() {
        if Family::named(family).is_some_and(|family| family != Family::of(address)) {
            let text = format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            errors.push(Error::invalid(&at.index(index), *address, text));
        }
    }
}

fn is_headless(spec: Node<'_>) -> bool {
    spec.at("clusterIPs").texts() == ["None"]
}

/// Adds no more errors than are told: each shows a port, which is much larger there than in a body of very many.
fn port_clashes(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    if errors.len() >= MOST_ERRORS {
        return;
    }
    let ports = || spec.at("ports").items().enumerate();
    if spec.at("type").text() == "ClusterIP" {
        for (index, _) in ports().filter(|(_, port)| port.at("nodePort").int() != 0) {
            let text = "may not be used when `type` is 'ClusterIP'";
            errors.push(Error::forbidden(&path.index(index).child("nodePort"), text));
        }
    }
    let mut seen: HashSet<(&str, i64)> = HashSet::new();
    for (index, port) in ports().filter(|(_, port)| port.at("nodePort").int() != 0) {
        let key = (port.at("protocol").text(), port.at("nodePort").int());
        if seen.contains(&key) {
            errors.push(Error::duplicate(&path.index(index).child("nodePort"), key.1));
        }
        seen.insert(key);
    }
    let mut seen: HashSet<(&str, i64)> = HashSet::new();
    for (index, port) in ports() {
        let key = (port.at("protocol").text(), port.at("port").int());
        if seen.contains(&key) && errors.len() < MOST_ERRORS {
            let shown = json!({
                "Name": "", "Protocol": key.0, "AppProtocol": null, "Port": key.1, "TargetPort": 0, "NodePort": 0,
            });
            errors.push(Error::duplicate(&path.index(index), shown));
        }
        seen.insert(key);
    }
}

fn balancer(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    let is_balancer = spec.at("type").text() == "LoadBalancer";
    // The capital letter is upstream's.
    let at = path.child("LoadBalancerSourceRanges");
    let ranges = spec.at("loadBalancerSourceRanges").texts();
    if !ranges.is_empty() && !is_balancer {
        errors.push(Error::forbidden(&at, ONLY_BALANCERS));
    }
    for (index, range) in ranges.into_iter().enumerate() {
        complaints(errors, &at.index(index), range.trim(), names::cidr(range.trim()));
    }
    if spec.at("allocateLoadBalancerNodePorts").exists() && !is_balancer {
        errors.push(Error::forbidden(&path.child("allocateLoadBalancerNodePorts"), ONLY_BALANCERS));
    }
    if let Some(class) = spec.at("loadBalancerClass").opt_text() {
        let at = path.child("loadBalancerClass");
        if is_balancer {
            complaints(errors, &at, class, names::qualified_name(class));
        } else {
            errors.push(Error::forbidden(&at, ONLY_BALANCERS));
        }
    }
}

fn traffic(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    let kind = spec.at("type").text();
    let reachable = matches!(kind, "NodePort" | "LoadBalancer")
        || (kind == "ClusterIP" && !spec.at("externalIPs").is_empty());
    let (policy, at) = (spec.at("externalTrafficPolicy"), path.child("externalTrafficPolicy"));
    if reachable {
        check::required_enum(errors, &at, policy, &["Cluster", "Local"]);
    } else if !policy.is_empty() {
        let text = "may only be set for externally-accessible services";
        errors.push(Error::invalid(&at, policy.text(), text));
    }
    let (port, at) = (spec.at("healthCheckNodePort").int(), path.child("healthCheckNodePort"));
    if kind == "LoadBalancer" && policy.text() == "Local" {
        if port == 0 {
            errors.push(Error::required(&at, ""));
        } else {
            let wrong = names::port_number(port);
            errors.extend(wrong.into_iter().map(|text| Error::invalid(&at, port, text)));
        }
    } else if port != 0 {
        let text = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.push(Error::invalid(&at, port, text));
    }
    let (internal, at) = (spec.at("internalTrafficPolicy"), path.child("internalTrafficPolicy"));
    if matches!(kind, "NodePort" | "LoadBalancer" | "ClusterIP") {
        check::required_enum(errors, &at, internal, &["Cluster", "Local"]);
    } else {
        check::optional_enum(errors, &at, internal, &["Cluster", "Local"]);
    }
    check::optional_enum(
        errors,
        &path.child("trafficDistribution"),
        spec.at("trafficDistribution"),
        &["PreferClose", "PreferSameZone", "PreferSameNode"],
    );
}

/// What an update must keep: the primary address above all.
pub(super) fn update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    let path = Path::new("spec");
    let (new, old) = (new.at("spec"), old.at("spec"));
    let is = |spec: Node<'_>, kind: &str| spec.at("type").text() == kind;
    if !is(new, "ExternalName") && !is(old, "ExternalName") {
        addresses_stay(errors, new, old, &path);
        families_stay(errors, new, old, &path);
    }
    if is(new, "LoadBalancer")
        && is(old, "LoadBalancer")
        && !same(new.at("loadBalancerClass"), old.at("loadBalancerClass"))
    {
        let at = path.child("loadBalancerClass");
        errors.push(Error::invalid(&at, new.at("loadBalancerClass").value(), CHANGED));
    }
    let needs_check =
        |spec: Node<'_>| is(spec, "LoadBalancer") && spec.at("externalTrafficPolicy").text() == "Local";
    if needs_check(new)
        && needs_check(old)
        && !same(new.at("healthCheckNodePort"), old.at("healthCheckNodePort"))
    {
        errors.push(Error::forbidden(&path.child("healthCheckNodePort"), check::IMMUTABLE));
    }
}

/// A second address may come and go, and only with a policy that says so; the others stay.
fn addresses_stay(errors: &mut Errors, new: Node<'_>, old: Node<'_>, path: &Path) {
    if is_headless(new) && is_headless(old) {
        return;
    }
    let (after, before) = (new.at("clusterIPs").texts(), old.at("clusterIPs").texts());
    let mut refuse = |index: usize, text: &str| {
        errors.push(Error::invalid(
            &path.child("clusterIPs").index(index),
            new.at("clusterIPs").value(),
            text,
        ));
    };
    if after.len() == before.len() {
        for (index, _) in after.iter().zip(&before).enumerate().filter(|(_, (after, before))| after != before)
        {
            refuse(index, CHANGED);
        }
        return;
    }
    match (after.first(), before.first()) {
        (None, _) => refuse(0, "primary clusterIP can not be unset"),
        (Some(after), Some(before)) if after != before => refuse(0, CHANGED),
        _ => {}
    }
    if after.len() == 1 && before.len() > 1 {
        released(errors, new, path, "must be set to 'SingleStack' when releasing the secondary clusterIP");
    }
}

/// As for the addresses. A Service that has none, or had none before, may have any families.
fn families_stay(errors: &mut Errors, new: Node<'_>, old: Node<'_>, path: &Path) {
    if is_headless(new) || is_headless(old) {
        return;
    }
    let (after, before) = (new.at("ipFamilies").texts(), old.at("ipFamilies").texts());
    let mut refuse = |shown: &str, text: &str| {
        errors.push(Error::invalid(&path.child("ipFamilies").index(0), new.at(shown).value(), text));
    };
    if after.len() == before.len() {
        for _ in after.iter().zip(&before).filter(|(after, before)| after != before) {
            refuse("ipFamilies", CHANGED);
        }
        return;
    }
    if after.len() < before.len() && new.at("clusterIPs").is_empty() {
        refuse("ipFamilies", "primary ipFamily can not be unset");
    }
    if let (Some(after), Some(before)) = (after.first(), before.first())
        && after != before
    {
        // Upstream shows the addresses here.
        refuse("clusterIPs", CHANGED);
    }
    if after.len() == 1 && before.len() > 1 {
        released(errors, new, path, "must be set to 'SingleStack' when releasing the secondary ipFamily");
    }
}

fn released(errors: &mut Errors, new: Node<'_>, path: &Path, text: &str) {
    let policy = new.at("ipFamilyPolicy");
    if policy.text() != "SingleStack" {
        errors.push(Error::invalid(&path.child("ipFamilyPolicy"), policy.value(), text));
    }
}
