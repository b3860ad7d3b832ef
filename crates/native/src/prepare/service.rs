//! What a Service gets from the cluster: addresses, families, node ports; and what it keeps or loses on update.
//!
//! Allocation runs after preparation and before validation, as upstream: validation looks at what was allocated.
//! The API server hands in its [`Allocator`]; what was taken or became free comes back as an [`Allocation`], to be
//! reverted when the write is refused or fails and committed once it is stored.
//!
//! A Service has addresses of one family or of both. Which, `ipFamilyPolicy`, `ipFamilies` and `clusterIPs` say together, and what is
//! left out follows from the rest and from what the cluster has. No Service gets or loses a family because the cluster did: only
//! who changes one of the three changes that.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv6Addr;

use apimachinery::field::{Error, Errors, Path};
use serde_json::{Value, json};

use crate::defaults::tree::{Object, each, ensure, has_items, text};
use crate::validation;
use crate::validation::node::{Node, same};

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Returns its name in `ipFamilies`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        [Self::V4, Self::V6].into_iter().find(|family| family.name() == name)
    }

    /// Returns the family of an address. To Go, an IPv4 address in the clothes of IPv6 (`::ffff:10.0.0.1`) is one of IPv4.
    pub fn of(address: &str) -> Self {
        match address.parse::<Ipv6Addr>() {
            Ok(address) if address.to_ipv4_mapped().is_none() => Self::V6,
            _ => Self::V4,
        }
    }
}

/// Hands out addresses and node ports. Errors are the detail of the field error, as upstream words it:
/// `provided IP is already allocated`, `provided port is not in the valid range. The range of valid ports is …`.
pub trait Allocator {
    /// Returns the families that the cluster has addresses of, one or both; a Service that does not say gets the first.
    fn families(&self) -> &[Family];
    fn cluster_ip(&self, family: Family, wanted: Option<&str>) -> Result<String, String>;
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

/// Returns the node port of one port, if it has one.
fn node_port_of(port: Node<'_>) -> Option<u16> {
    u16::try_from(port.at("nodePort").int()).ok().filter(|port| *port != 0)
}

/// Services come here before their ports are counted: nothing may look through all ports for each port, or copy them.
fn node_ports(spec: Node<'_>) -> BTreeSet<u16> {
    node_ports_of(spec.at("ports"))
}

fn node_ports_of(ports: Node<'_>) -> BTreeSet<u16> {
    ports.items().filter_map(node_port_of).collect()
}

/// Returns a spec without its ports, to be looked at while it is changed.
fn without_ports(spec: &Object) -> Value {
    let others = spec.iter().filter(|(name, _)| *name != "ports");
    Value::Object(others.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Node ports and the health check port.
fn ports_of(spec: Node<'_>) -> Vec<u16> {
    node_ports(spec).into_iter().chain(health_check_port(spec.at("healthCheckNodePort"))).collect()
}

fn health_check_port(port: Node<'_>) -> Option<u16> {
    u16::try_from(port.int()).ok().filter(|port| *port != 0)
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
        spec.insert("clusterIPs".to_owned(), json!([address]));
    }
}

/// Keeps what was allocated before where the update leaves it out.
pub(super) fn keep_allocated(root: &mut Object, old: &Value) {
    let old = Node::from(old).at("spec");
    let Some(spec) = ensure(root, "spec") else { return };
    let now = without_ports(spec);
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
        let (before, after) = (node_ports(old), node_ports_of(Node(spec.get("ports"))));
        // Of several that share a name the last one counts.
        let by_name: HashMap<&str, i64> =
            old.at("ports").items().map(|port| (port.at("name").text(), port.at("nodePort").int())).collect();
        each(spec, "ports", |port| {
            if port.get("nodePort").and_then(Value::as_i64).unwrap_or(0) != 0 {
                return;
            }
            let number = by_name.get(text(port, "name")).copied().unwrap_or(0);
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
    let now = without_ports(spec);
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
    if needs_node_port(old)
        && !needs_node_port(now)
        && node_ports_of(Node(spec.get("ports"))).is_subset(&node_ports(old))
    {
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
    let result = families(object, old, allocator.families())
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

fn names(spec: &Object, field: &str) -> Vec<String> {
    Node(spec.get(field)).texts().into_iter().map(str::to_owned).collect()
}

/// A Service that prefers both families and whose addresses nobody touches stays as it is, whatever the cluster has by now.
fn stays_as_preferred(now: Node<'_>, before: Node<'_>) -> bool {
    let prefers = |spec: Node<'_>| spec.at("ipFamilyPolicy").text() == "PreferDualStack";
    matches!(now.at("type").text(), "ClusterIP" | "NodePort" | "LoadBalancer")
        && prefers(now)
        && (prefers(before) || before.at("ipFamilyPolicy").is_empty())
        && ["type", "clusterIP", "clusterIPs", "ipFamilies"]
            .iter()
            .all(|field| same(now.at(field), before.at(field)))
}

/// Settles `ipFamilyPolicy` and `ipFamilies`, and takes away the second address of a Service that becomes single-stack.
fn families(object: &mut Value, old: Option<&Value>, configured: &[Family]) -> Result<(), Errors> {
    let Some(spec) = spec_of(object) else { return Ok(()) };
    if text(spec, "type") == "ExternalName" {
        return Ok(());
    }
    let before = old.map(|old| Node::from(old).at("spec"));
    let given = without_ports(spec);
    let given = Node::from(&given);
    if before.is_some_and(|before| stays_as_preferred(given, before)) {
        return Ok(());
    }
    // Without a selector the Service's endpoints are somebody else's, who may well be dual-stack.
    let free = given.at("clusterIP").text() == "None" && !has_items(spec, "selector");
    if !given.at("ipFamilyPolicy").exists() {
        let kept =
            before.map(|before| before.at("ipFamilyPolicy").text()).filter(|policy| !policy.is_empty());
        let policy = kept.unwrap_or(if free { "RequireDualStack" } else { "SingleStack" });
        spec.insert("ipFamilyPolicy".to_owned(), policy.into());
    }
    let mut errors = Errors::new();
    let path = Path::new("spec");
    validation::service::addresses(&mut errors, Node(Some(&without_ports(spec))), &path);
    if !errors.is_empty() {
        return Err(errors);
    }

    let policy = text(spec, "ipFamilyPolicy").to_owned();
    let single = policy == "SingleStack";
    let (mut addresses, mut families) = (names(spec, "clusterIPs"), names(spec, "ipFamilies"));
    let mut refuse = |message: &str| {
        errors.push(Error::invalid(&path.child("ipFamilyPolicy"), policy.as_str(), message));
    };
    if let Some(before) = before {
        let (had_addresses, had_families) = (before.at("clusterIPs"), before.at("ipFamilies"));
        if single {
            // A client that says so and leaves the lists as they are wants the second address gone.
            if same(given.at("clusterIP"), before.at("clusterIP"))
                && same(given.at("clusterIPs"), had_addresses)
            {
                addresses.truncate(1);
            }
            if same(given.at("ipFamilies"), had_families) {
                families.truncate(1);
            }
        } else {
            if (1..had_addresses.len()).contains(&addresses.len()) {
                refuse("must be 'SingleStack' to release the secondary cluster IP");
            }
            if (1..had_families.len()).contains(&families.len()) {
                refuse("must be 'SingleStack' to release the secondary IP family");
            }
        }
    }
    if single {
        for (list, words) in [(&addresses, "cluster IPs"), (&families, "IP families")] {
            if list.len() == 2 {
                refuse(&format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {words} are specified"
                ));
            }
        }
    }
    // What addresses are given tells the families that are not.
    for (index, address) in
        addresses.iter().enumerate().skip(families.len()).filter(|(_, text)| *text != "None")
    {
        let family = Family::of(address);
        if configured.contains(&family) {
            families.push(family.name().to_owned());
        } else {
            let message = format!("{} is not configured on this cluster", family.name());
            errors.push(Error::invalid(&path.child("clusterIPs").index(index), json!(addresses), message));
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if !free {
        if policy == "RequireDualStack" && configured.len() < 2 {
            let message = "this cluster is not configured for dual-stack services";
            errors.push(Error::invalid(&path.child("ipFamilyPolicy"), policy.as_str(), message));
        }
        for (index, family) in families.iter().enumerate() {
            if Family::named(family).is_none_or(|family| !configured.contains(&family)) {
                let at = path.child("ipFamilies").index(index);
                errors.push(Error::invalid(&at, family.as_str(), "not configured on this cluster"));
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
    }
    if families.is_empty() {
        families.extend(configured.first().map(|family| family.name().to_owned()));
    }
    if !single
        && let [only] = families.as_slice()
        && (free || configured.len() == 2)
    {
        let other = if only == "IPv4" { "IPv6" } else { "IPv4" };
        families.push(other.to_owned());
    }
    if given.at("clusterIPs").len() > addresses.len() {
        spec.insert("clusterIPs".to_owned(), json!(addresses));
    }
    spec.insert("ipFamilies".to_owned(), json!(families));
    Ok(())
}

fn addresses(
    object: &mut Value,
    old: Option<&Value>,
    allocator: &dyn Allocator,
    allocation: &mut Allocation,
) -> Result<(), Errors> {
    let before = old.map(|old| Node::from(old).at("spec"));
    let view = object.get("spec").and_then(Value::as_object).map(without_ports).unwrap_or_default();
    let now = Node::from(&view);
    let families = now.at("ipFamilies").texts();
    let mut from = 0;
    if let Some(before) = before.filter(|before| needs_cluster_ip(*before)) {
        if is_headless(before) || stays_as_preferred(now, before) {
            return Ok(());
        }
        // The first address of a living Service never changes: validation sees to that. The second comes and goes with its family.
        let (had, has) = (before.at("ipFamilies").len(), families.len());
        let freed = if needs_cluster_ip(now) { (had == 2 && has == 1).then_some(1) } else { Some(0) };
        if let Some(freed) = freed {
            let held = before.at("clusterIPs").texts();
            allocation.freed_ips.extend(held.into_iter().skip(freed).map(str::to_owned));
        }
        if !(had == 1 && has == 2) {
            return Ok(());
        }
        from = 1;
    }
    if !needs_cluster_ip(now) || is_headless(now) {
        return Ok(());
    }
    let mut list: Vec<String> = now.at("clusterIPs").texts().into_iter().map(str::to_owned).collect();
    list.resize(families.len().max(list.len()), String::new());
    for (index, family) in families.iter().enumerate().skip(from) {
        let Some(family) = Family::named(family) else { continue };
        let wanted = list.get(index).map(String::as_str).filter(|wanted| !wanted.is_empty());
        let address = allocator.cluster_ip(family, wanted).map_err(|why| {
            let path = Path::new("spec").child("clusterIPs");
            vec![match wanted {
                Some(wanted) => {
                    Error::invalid(&path, json!(list), format!("failed to allocate IP {wanted}: {why}"))
                }
                None => Error::invalid(
                    &path,
                    now.at("clusterIPs").value(),
                    format!("failed to allocate IP: {why}"),
                ),
            }]
        })?;
        allocation.taken_ips.push(address.clone());
        if let Some(place) = list.get_mut(index) {
            *place = address;
        }
    }
    if let Some(spec) = spec_of(object) {
        if let Some(first) = list.first() {
            spec.insert("clusterIP".to_owned(), first.as_str().into());
        }
        spec.insert("clusterIPs".to_owned(), json!(list));
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
    let view = without_ports(spec);
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
    let mut has = BTreeSet::new();
    if needs_node_port(now) {
        has = node_ports_of(Node(spec.get("ports")));
        has.extend(health_check_port(Node(spec.get("healthCheckNodePort"))));
    }
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
    let mut own = before.map(node_ports).unwrap_or_default();
    let allocate = now.at("type").text() != "LoadBalancer"
        || now.at("allocateLoadBalancerNodePorts").0.and_then(Value::as_bool).unwrap_or(true);
    // Only on creation do ports of one number share what one of them got, or what one of them names.
    let creating = before.is_none();
    let mut shared: HashMap<i64, u16> = HashMap::new();
    let named = if creating { first_node_ports(Node(spec.get("ports"))) } else { HashMap::new() };
    let Some(list) = spec.get_mut("ports").and_then(Value::as_array_mut) else { return Ok(()) };
    for (index, port) in list.iter_mut().enumerate() {
        let Some(port) = port.as_object_mut() else { continue };
        let number = Node(port.get("port")).int();
        let wanted = u16::try_from(Node(port.get("nodePort")).int()).ok().filter(|port| *port != 0);
        if wanted.is_none() && !allocate {
            continue;
        }
        let wanted = wanted.or_else(|| shared.get(&number).or_else(|| named.get(&number)).copied());
        let chosen = match wanted.filter(|port| own.contains(port)) {
            Some(port) => port,
            None => {
                let port = allocator.node_port(wanted).map_err(|why| {
                    let path = Path::new("spec").child("ports").index(index).child("nodePort");
                    vec![Error::invalid(&path, wanted.unwrap_or(0), why)]
                })?;
                allocation.taken_ports.push(port);
                own.insert(port);
                port
            }
        };
        if creating {
            shared.entry(number).or_insert(chosen);
        }
        port.insert("nodePort".to_owned(), chosen.into());
    }
    Ok(())
}

/// Returns for each number the first node port that a port of this number names.
fn first_node_ports(ports: Node<'_>) -> HashMap<i64, u16> {
    let mut first = HashMap::new();
    for port in ports.items() {
        if let Some(node_port) = node_port_of(port) {
            first.entry(port.at("port").int()).or_insert(node_port);
        }
    }
    first
}
