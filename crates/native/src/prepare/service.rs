//! What a Service gets from the cluster: addresses, families, node ports; and what it keeps or loses on update.
//!
//! Allocation runs after preparation and before validation, as upstream: validation looks at what was allocated.
//! The API server hands in its [`Allocator`]; what was taken or became free comes back as an [`Allocation`], to be
//! reverted when the write is refused or fails and committed once it is stored.
//! One address family only: this is a single-stack IPv4 control plane.

use apimachinery::field::{Error, Errors, Path};
use serde_json::{Value, json};

use crate::defaults::tree::{Object, each, ensure, has_items, text};
use crate::validation::node::{Node, same};

/// Hands out addresses and node ports. Errors are the detail of the field error, as upstream words it:
/// `provided IP is already allocated`, `provided port is not in the valid range. The range of valid ports is …`.
pub trait Allocator {
    fn cluster_ip(&self, wanted: Option<&str>) -> Result<String, String>;
    fn node_port(&self, wanted: Option<u16>) -> Result<u16, String>;
    fn release_cluster_ip(&self, address: &str);
    fn release_node_port(&self, port: u16);
}

/// What one write took and what it will set free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocation {
    /// To be released if the write fails.
    pub taken_ips: Vec<String>,
    pub taken_ports: Vec<u16>,
    /// To be released once the write is committed.
    pub freed_ips: Vec<String>,
    pub freed_ports: Vec<u16>,
}

impl Allocation {
    /// The write was stored: what the Service no longer uses becomes free.
    pub fn commit(self, allocator: &dyn Allocator) {
        self.freed_ips.iter().for_each(|address| allocator.release_cluster_ip(address));
        self.freed_ports.iter().for_each(|port| allocator.release_node_port(*port));
    }

    /// The write was not stored: what it took goes back.
    pub fn revert(self, allocator: &dyn Allocator) {
        self.taken_ips.iter().for_each(|address| allocator.release_cluster_ip(address));
        self.taken_ports.iter().for_each(|port| allocator.release_node_port(*port));
    }
}

/// Returns everything a stored Service holds, for its deletion and for filling an allocator at start.
pub fn held(object: &Value) -> Allocation {
    let spec = Node::from(object).at("spec");
    let freed_ips = if needs_cluster_ip(spec) {
        spec.at("clusterIPs")
            .texts()
            .into_iter()
            .filter(|ip| !matches!(*ip, "" | "None"))
            .map(str::to_owned)
            .collect()
    } else {
        Vec::new()
    };
    Allocation { freed_ips, freed_ports: ports_of(spec), ..Allocation::default() }
}

fn needs_cluster_ip(spec: Node<'_>) -> bool {
    spec.at("type").text() != "ExternalName"
}

fn needs_node_port(spec: Node<'_>) -> bool {
    matches!(spec.at("type").text(), "NodePort" | "LoadBalancer")
}

fn needs_health_check_port(spec: Node<'_>) -> bool {
    spec.at("type").text() == "LoadBalancer" && spec.at("externalTrafficPolicy").text() == "Local"
}

fn reachable_from_outside(spec: Node<'_>) -> bool {
    needs_node_port(spec) || (spec.at("type").text() == "ClusterIP" && !spec.at("externalIPs").is_empty())
}

fn is_headless(spec: Node<'_>) -> bool {
    spec.at("clusterIP").text() == "None"
        || spec.at("clusterIPs").items().next().is_some_and(|ip| ip.text() == "None")
}

fn node_ports(spec: Node<'_>) -> Vec<u16> {
    let numbers = spec.at("ports").items().filter_map(|port| u16::try_from(port.at("nodePort").int()).ok());
    let mut ports: Vec<u16> = numbers.filter(|port| *port != 0).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Node ports and the health check port.
fn ports_of(spec: Node<'_>) -> Vec<u16> {
    let mut ports = node_ports(spec);
    if let Ok(port @ 1..) = u16::try_from(spec.at("healthCheckNodePort").int()) {
        ports.push(port);
    }
    ports
}

/// Brings `clusterIP` and `clusterIPs` together where the caller only wrote (or only changed) the singular.
pub(super) fn normalise(root: &mut Object, old: Option<&Value>) {
    let Some(spec) = root.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let address = text(spec, "clusterIP").to_owned();
    let Some(old) = old.map(|old| Node::from(old).at("spec")) else {
        if !address.is_empty() && !has_items(spec, "clusterIPs") {
            spec.insert("clusterIPs".to_owned(), json!([address]));
        }
        return;
    };
    let before = old.at("clusterIP").text();
    let list_unchanged = same(Node(spec.get("clusterIPs")), old.at("clusterIPs"));
    if address.is_empty() && !before.is_empty() {
        // The client cleared the singular: whatever was derived from it goes with it.
        if list_unchanged {
            spec.remove("clusterIPs");
        }
    } else if address != before && list_unchanged {
        let mut list: Vec<Value> = old.at("clusterIPs").items().map(Node::value).collect();
        match list.first_mut() {
            Some(first) => *first = address.into(),
            None => list.push(address.into()),
        }
        spec.insert("clusterIPs".to_owned(), list.into());
    }
}

/// Keeps what was allocated before where the update leaves it out.
pub(super) fn keep_allocated(root: &mut Object, old: &Value) {
    let old = Node::from(old).at("spec");
    let Some(spec) = ensure(root, "spec") else { return };
    let now = Value::Object(spec.clone());
    let now = Node::from(&now);
    if needs_cluster_ip(old) && needs_cluster_ip(now) {
        if now.at("clusterIP").is_empty() && !old.at("clusterIP").is_empty() {
            spec.insert("clusterIP".to_owned(), old.at("clusterIP").value());
        }
        if now.at("clusterIPs").is_empty() && !old.at("clusterIPs").is_empty() {
            spec.insert("clusterIPs".to_owned(), old.at("clusterIPs").value());
        }
    }
    if needs_node_port(old) && needs_node_port(now) {
        let (before, after) = (node_ports(old), node_ports(now));
        each(spec, "ports", |port| {
            if port.get("nodePort").and_then(Value::as_i64).unwrap_or(0) != 0 {
                return;
            }
            let name = text(port, "name");
            let same_name = old.at("ports").items().rfind(|old| old.at("name").text() == name);
            let number = same_name.map_or(0, |old| old.at("nodePort").int());
            let reused =
                u16::try_from(number).is_ok_and(|port| before.contains(&port) && after.contains(&port));
            if number != 0 && !reused {
                port.insert("nodePort".to_owned(), number.into());
            }
        });
    }
    if needs_health_check_port(old)
        && needs_health_check_port(now)
        && now.at("healthCheckNodePort").int() == 0
    {
        let number = old.at("healthCheckNodePort").int();
        if number != 0 {
            spec.insert("healthCheckNodePort".to_owned(), number.into());
        }
    }
}

/// Drops what the old type needed and the new type must not have, unless the update changes it itself.
pub(super) fn drop_what_the_type_lost(root: &mut Object, old: &Value) {
    let old = Node::from(old).at("spec");
    let Some(spec) = ensure(root, "spec") else { return };
    let now = Value::Object(spec.clone());
    let now = Node::from(&now);
    let unchanged = |field: &str| same(now.at(field), old.at(field));

    if needs_cluster_ip(old) && !needs_cluster_ip(now) {
        if unchanged("clusterIP") && unchanged("clusterIPs") {
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if unchanged(field) {
                spec.remove(field);
            }
        }
    }
    let ports_subset = node_ports(now).iter().all(|port| node_ports(old).contains(port));
    if needs_node_port(old) && !needs_node_port(now) && ports_subset {
        each(spec, "ports", |port| {
            port.remove("nodePort");
        });
    }
    if needs_health_check_port(old) && !needs_health_check_port(now) && unchanged("healthCheckNodePort") {
        spec.remove("healthCheckNodePort");
    }
    let was_balancer = old.at("type").text() == "LoadBalancer";
    let is_balancer = now.at("type").text() == "LoadBalancer";
    if was_balancer && !is_balancer {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if unchanged(field) {
                spec.remove(field);
            }
        }
    }
    if reachable_from_outside(old) && !reachable_from_outside(now) && unchanged("externalTrafficPolicy") {
        spec.remove("externalTrafficPolicy");
    }
    if now.at("type").text() == "ExternalName" && unchanged("internalTrafficPolicy") {
        spec.remove("internalTrafficPolicy");
    }
    if !is_balancer && let Some(status) = ensure(root, "status") {
        status.insert("loadBalancer".to_owned(), json!({}));
    }
}

/// Fills address, families and node ports of a prepared Service.
///
/// *Guarantees*: on error nothing stays taken.
pub fn allocate(
    object: &mut Value,
    old: Option<&Value>,
    allocator: &dyn Allocator,
) -> Result<Allocation, Errors> {
    let mut allocation = Allocation::default();
    let result = families(object)
        .and_then(|()| addresses(object, old, allocator, &mut allocation))
        .and_then(|()| ports(object, old, allocator, &mut allocation));
    match result {
        Ok(()) => Ok(allocation),
        Err(errors) => {
            allocation.revert(allocator);
            Err(errors)
        }
    }
}

fn spec_of(object: &mut Value) -> Option<&mut Object> {
    object.get_mut("spec").and_then(Value::as_object_mut)
}

fn families(object: &mut Value) -> Result<(), Errors> {
    let Some(spec) = spec_of(object) else { return Ok(()) };
    if text(spec, "type") == "ExternalName" {
        return Ok(());
    }
    let path = Path::new("spec");
    // Without a selector the Service's endpoints are somebody else's, who may well be dual-stack.
    let free = {
        let view = Value::Object(spec.clone());
        is_headless(Node::from(&view)) && !has_items(spec, "selector")
    };
    if text(spec, "ipFamilyPolicy").is_empty() {
        let policy = if free { "RequireDualStack" } else { "SingleStack" };
        spec.insert("ipFamilyPolicy".to_owned(), policy.into());
    }
    let policy = text(spec, "ipFamilyPolicy").to_owned();
    let given: Vec<String> = Node(spec.get("ipFamilies")).texts().into_iter().map(str::to_owned).collect();
    let mut errors = Errors::new();
    if policy == "SingleStack" {
        let multiple = "must be 'RequireDualStack' or 'PreferDualStack' when multiple";
        for (field, words) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
            if Node(spec.get(field)).len() == 2 {
                let text = format!("{multiple} {words} are specified");
                errors.push(Error::invalid(&path.child("ipFamilyPolicy"), policy.as_str(), text));
            }
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if free {
        let mut list = if given.is_empty() { vec!["IPv4".to_owned()] } else { given };
        if list.len() < 2 && policy != "SingleStack" {
            list.push(if list[0] == "IPv4" { "IPv6" } else { "IPv4" }.to_owned());
        }
        spec.insert("ipFamilies".to_owned(), json!(list));
        return Ok(());
    }
    if policy == "RequireDualStack" {
        let text = "this cluster is not configured for dual-stack services";
        errors.push(Error::invalid(&path.child("ipFamilyPolicy"), policy.as_str(), text));
    }
    for (index, family) in given.iter().enumerate().filter(|(_, family)| *family != "IPv4") {
        let at = path.child("ipFamilies").index(index);
        errors.push(Error::invalid(&at, family.as_str(), "not configured on this cluster"));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if given.is_empty() {
        spec.insert("ipFamilies".to_owned(), json!(["IPv4"]));
    }
    Ok(())
}

fn addresses(
    object: &mut Value,
    old: Option<&Value>,
    allocator: &dyn Allocator,
    allocation: &mut Allocation,
) -> Result<(), Errors> {
    let before = old.map(|old| Node::from(old).at("spec"));
    let view = object.get("spec").cloned().unwrap_or_default();
    let now = Node::from(&view);
    match before {
        Some(before) if needs_cluster_ip(before) && !is_headless(before) => {
            if !needs_cluster_ip(now) {
                let held = before.at("clusterIPs").texts();
                allocation.freed_ips.extend(held.into_iter().map(str::to_owned));
            }
            // The address of a living Service never changes: validation has seen to that.
            return Ok(());
        }
        Some(before) if needs_cluster_ip(before) => return Ok(()),
        _ => {}
    }
    if !needs_cluster_ip(now) || is_headless(now) {
        return Ok(());
    }
    let wanted = now.at("clusterIPs").items().next().map_or(now.at("clusterIP").text(), Node::text);
    let wanted = Some(wanted).filter(|wanted| !wanted.is_empty());
    let address = allocator.cluster_ip(wanted).map_err(|why| {
        let text = match wanted {
            Some(wanted) => format!("failed to allocate IP {wanted}: {why}"),
            None => format!("failed to allocate IP: {why}"),
        };
        vec![Error::invalid(&Path::new("spec").child("clusterIPs"), now.at("clusterIPs").value(), text)]
    })?;
    allocation.taken_ips.push(address.clone());
    if let Some(spec) = spec_of(object) {
        spec.insert("clusterIP".to_owned(), address.clone().into());
        spec.insert("clusterIPs".to_owned(), json!([address]));
    }
    Ok(())
}

fn ports(
    object: &mut Value,
    old: Option<&Value>,
    allocator: &dyn Allocator,
    allocation: &mut Allocation,
) -> Result<(), Errors> {
    let before = old.map(|old| Node::from(old).at("spec"));
    let had = before.map(ports_of).unwrap_or_default();
    let Some(spec) = spec_of(object) else { return Ok(()) };
    let view = Value::Object(spec.clone());
    let now = Node::from(&view);

    if needs_node_port(now) {
        node_ports_of_new(spec, now, before, allocator, allocation)?;
    }
    if needs_health_check_port(now) {
        let wanted = u16::try_from(now.at("healthCheckNodePort").int()).ok().filter(|port| *port != 0);
        if wanted.is_none_or(|port| !had.contains(&port)) {
            let path = Path::new("spec").child("healthCheckNodePort");
            let port = allocator.node_port(wanted).map_err(|why| {
                let text = format!(
                    "failed to allocate requested HealthCheck NodePort {}: {why}",
                    wanted.unwrap_or(0)
                );
                vec![Error::internal(&path, text)]
            })?;
            allocation.taken_ports.push(port);
            spec.insert("healthCheckNodePort".to_owned(), port.into());
        }
    }
    let view = Value::Object(spec.clone());
    let has = if needs_node_port(Node::from(&view)) { ports_of(Node::from(&view)) } else { Vec::new() };
    allocation.freed_ports.extend(had.into_iter().filter(|port| !has.contains(port)));
    Ok(())
}

/// One node port per port, shared by ports of the same number (TCP and UDP of one DNS server).
fn node_ports_of_new(
    spec: &mut Object,
    now: Node<'_>,
    before: Option<Node<'_>>,
    allocator: &dyn Allocator,
    allocation: &mut Allocation,
) -> Result<(), Errors> {
    let had = before.map(node_ports).unwrap_or_default();
    let allocate = now.at("type").text() != "LoadBalancer"
        || now.at("allocateLoadBalancerNodePorts").0.and_then(Value::as_bool).unwrap_or(true);
    let mut by_port: Vec<(i64, u16)> = Vec::new();
    let Some(list) = spec.get_mut("ports").and_then(Value::as_array_mut) else { return Ok(()) };
    for (index, port) in list.iter_mut().enumerate() {
        let Some(port) = port.as_object_mut() else { continue };
        let number = Node(port.get("port")).int();
        let wanted = u16::try_from(Node(port.get("nodePort")).int()).ok().filter(|port| *port != 0);
        if wanted.is_none() && !allocate {
            continue;
        }
        let shared = by_port.iter().find(|(port, _)| *port == number).map(|(_, node_port)| *node_port);
        // On creation a sibling port may name the number this one shares.
        let sibling = now.at("ports").items().filter(|other| other.at("port").int() == number);
        let sibling = sibling
            .filter_map(|other| u16::try_from(other.at("nodePort").int()).ok())
            .find(|port| *port != 0);
        let wanted = wanted.or(shared.filter(|_| before.is_none())).or(sibling.filter(|_| before.is_none()));
        let known = wanted.is_some_and(|port| had.contains(&port) || allocation.taken_ports.contains(&port));
        let chosen = match wanted {
            Some(port) if known => port,
            wanted => {
                let port = allocator.node_port(wanted).map_err(|why| {
                    let path = Path::new("spec").child("ports").index(index).child("nodePort");
                    vec![Error::invalid(&path, wanted.unwrap_or(0), why)]
                })?;
                allocation.taken_ports.push(port);
                port
            }
        };
        by_port.push((number, chosen));
        port.insert("nodePort".to_owned(), chosen.into());
    }
    Ok(())
}
