//! Ingresses, network policies, endpoints and their slices.

use std::collections::HashSet;
use std::net::IpAddr;

use apimachinery::field::{Error, Errors, Path, domain_prefixed_path};
use apimachinery::names;

use super::check::{self, complaints};
use super::node::Node;

pub(super) fn ingress(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    if spec.at("rules").is_empty() && !spec.at("defaultBackend").exists() {
        let text = "either `defaultBackend` or `rules` must be specified";
        errors.push(Error::invalid(&path, spec.at("rules").value(), text));
    }
    if spec.at("defaultBackend").exists() {
        backend(errors, spec.at("defaultBackend"), &path.child("defaultBackend"));
    }
    for (index, rule) in spec.at("rules").items().enumerate() {
        ingress_rule(errors, rule, &path.child("rules").index(index));
    }
    for (index, tls) in spec.at("tls").items().enumerate() {
        let path = path.child("tls").index(index);
        for (index, host) in tls.at("hosts").texts().into_iter().enumerate() {
            complaints(errors, &path.child("hosts").index(index), host, host_name(host));
        }
        let secret = tls.at("secretName").text();
        if !secret.is_empty() {
            complaints(errors, &path.child("secretName"), secret, names::dns1123_subdomain(secret));
        }
    }
    if let Some(class) = spec.at("ingressClassName").opt_text() {
        complaints(errors, &path.child("ingressClassName"), class, names::dns1123_subdomain(class));
    }
}

fn host_name(host: &str) -> Vec<String> {
    if host.contains('*') { names::wildcard_dns1123_subdomain(host) } else { names::dns1123_subdomain(host) }
}

fn ingress_rule(errors: &mut Errors, rule: Node<'_>, path: &Path) {
    let (host, at) = (rule.at("host").text(), path.child("host"));
    if !host.is_empty() {
        if host.parse::<IpAddr>().is_ok() {
            errors.push(Error::invalid(&at, host, "must be a DNS name, not an IP address"));
        }
        complaints(errors, &at, host, host_name(host));
    }
    let http = rule.at("http");
    if !http.exists() {
        return;
    }
    let path = path.child("http").child("paths");
    if http.at("paths").is_empty() {
        errors.push(Error::required(&path, ""));
    }
    for (index, entry) in http.at("paths").items().enumerate() {
        ingress_path(errors, entry, &path.index(index));
    }
}

fn ingress_path(errors: &mut Errors, entry: Node<'_>, path: &Path) {
    let Some(kind) = entry.at("pathType").opt_text() else {
        errors.push(Error::required(&path.child("pathType"), "pathType must be specified"));
        return;
    };
    let (value, at) = (entry.at("path").text(), path.child("path"));
    match kind {
        "Exact" | "Prefix" => {
            if !value.starts_with('/') {
                errors.push(Error::invalid(&at, value, "must be an absolute path"));
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|part| value.contains(part)) {
                errors.push(Error::invalid(&at, value, format!("must not contain '{part}'")));
            }
            for end in ["/..", "/."].into_iter().filter(|end| value.ends_with(end)) {
                errors.push(Error::invalid(&at, value, format!("cannot end with '{end}'")));
            }
        }
        "ImplementationSpecific" => {
            if !value.is_empty() && !value.starts_with('/') {
                errors.push(Error::invalid(&at, value, "must be an absolute path"));
            }
        }
        _ => {
            let supported = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.push(Error::not_supported(&path.child("pathType"), kind, &supported));
        }
    }
    backend(errors, entry.at("backend"), &path.child("backend"));
}

fn backend(errors: &mut Errors, backend: Node<'_>, path: &Path) {
    let (service, resource) = (backend.at("service"), backend.at("resource"));
    match (service.exists(), resource.exists()) {
        (true, true) => {
            errors.push(Error::invalid(path, "", "cannot set both resource and service backends"))
        }
        (false, false) => errors.push(Error::invalid(path, "", "resource or service backend is required")),
        (false, true) => {
            for field in ["kind", "name"] {
                check::required(errors, &path.child("resource").child(field), resource.at(field));
            }
        }
        (true, false) => {
            let at = path.child("service");
            let name = service.at("name").text();
            if name.is_empty() {
                errors.push(Error::required(&at.child("name"), ""));
            } else {
                complaints(errors, &at.child("name"), name, names::dns1123_label(name));
            }
            let (name, number) =
                (service.dig(&["port", "name"]).text(), service.dig(&["port", "number"]).int());
            let at = at.child("port");
            match (name, number) {
                ("", 0) => errors.push(Error::required(path, "port name or number is required")),
                (name, 0) => complaints(errors, &at.child("name"), name, names::port_name(name)),
                ("", number) => {
                    let wrong = names::port_number(number);
                    errors.extend(
                        wrong.into_iter().map(|text| Error::invalid(&at.child("number"), number, text)),
                    );
                }
                _ => errors.push(Error::invalid(path, "", "cannot set both port name & port number")),
            }
        }
    }
}

pub(super) fn ingress_class(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    let (controller, at) = (spec.at("controller").text(), path.child("controller"));
    if controller.is_empty() {
        errors.push(Error::required(&at, ""));
    } else if controller.len() > 250 {
        errors.push(Error::too_long(&at, 250));
    } else {
        errors.extend(domain_prefixed_path(&at, controller));
    }
    let (parameters, path) = (spec.at("parameters"), path.child("parameters"));
    if !parameters.exists() {
        return;
    }
    for field in ["kind", "name"] {
        check::required(errors, &path.child(field), parameters.at(field));
    }
    let at = path.child("namespace");
    match parameters.at("scope").text() {
        "" => errors.push(Error::required(&path.child("scope"), "")),
        "Namespace" => match parameters.at("namespace").opt_text() {
            None => errors.push(Error::required(&at, "`parameters.scope` is set to 'Namespace'")),
            Some(namespace) => complaints(errors, &at, namespace, names::dns1123_label(namespace)),
        },
        "Cluster" if parameters.at("namespace").exists() => {
            errors.push(Error::forbidden(&at, "`parameters.scope` is set to 'Cluster'"));
        }
        "Cluster" => {}
        scope => errors.push(Error::not_supported(&path.child("scope"), scope, &["Cluster", "Namespace"])),
    }
}

pub(super) fn network_policy(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    check::selector(errors, &path.child("podSelector"), spec.at("podSelector"));
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in spec.at(direction).items().enumerate() {
            let path = path.child(direction).index(index);
            for (index, port) in rule.at("ports").items().enumerate() {
                policy_port(errors, port, &path.child("ports").index(index));
            }
            for (index, peer) in rule.at(peers).items().enumerate() {
                policy_peer(errors, peer, &path.child(peers).index(index));
            }
        }
    }
    let types = spec.at("policyTypes");
    let at = path.child("policyTypes");
    if types.len() > 2 {
        errors.push(Error::invalid(&at, types.value(), "may not specify more than two policyTypes"));
        return;
    }
    for (index, kind) in types.items().enumerate() {
        if !matches!(kind.text(), "Ingress" | "Egress") {
            errors.push(Error::not_supported(&at.index(index), kind.text(), &["Ingress", "Egress"]));
        }
    }
}

fn policy_port(errors: &mut Errors, port: Node<'_>, path: &Path) {
    check::optional_enum(errors, &path.child("protocol"), port.at("protocol"), &["TCP", "UDP", "SCTP"]);
    let (number, end) = (port.at("port"), port.at("endPort").opt_int());
    let at = path.child("endPort");
    match (number.opt_int(), number.opt_text()) {
        (Some(first), _) => {
            check::port_or_name(errors, &path.child("port"), number);
            if let Some(last) = end {
                if last < first {
                    errors.push(Error::invalid(&at, first, "must be greater than or equal to `port`"));
                }
                let wrong = names::port_number(last);
                errors.extend(wrong.into_iter().map(|text| Error::invalid(&at, last, text)));
            }
        }
        (None, Some(_)) => {
            if let Some(last) = end {
                errors.push(Error::invalid(&at, last, "may not be specified when `port` is non-numeric"));
            }
            check::port_or_name(errors, &path.child("port"), number);
        }
        (None, None) => {
            if let Some(last) = end {
                errors.push(Error::invalid(&at, last, "may not be specified when `port` is not specified"));
            }
        }
    }
}

fn policy_peer(errors: &mut Errors, peer: Node<'_>, path: &Path) {
    let mut given = 0_usize;
    for field in ["podSelector", "namespaceSelector"] {
        if peer.at(field).exists() {
            given = given.saturating_add(1);
            check::selector(errors, &path.child(field), peer.at(field));
        }
    }
    let block = peer.at("ipBlock");
    if block.exists() {
        given = given.saturating_add(1);
        ip_block(errors, block, &path.child("ipBlock"));
    }
    if given == 0 {
        errors.push(Error::required(path, "must specify a peer"));
    } else if given > 1 && block.exists() {
        errors.push(Error::forbidden(path, "may not specify both ipBlock and another peer"));
    }
}

fn ip_block(errors: &mut Errors, block: Node<'_>, path: &Path) {
    let cidr = block.at("cidr").text();
    if cidr.is_empty() {
        errors.push(Error::required(&path.child("cidr"), ""));
        return;
    }
    complaints(errors, &path.child("cidr"), cidr, names::cidr(cidr));
    let Some(outer) = parse_cidr(cidr) else { return };
    for (index, except) in block.at("except").texts().into_iter().enumerate() {
        let at = path.child("except").index(index);
        complaints(errors, &at, except, names::cidr(except));
        if parse_cidr(except).is_some_and(|inner| !is_strict_subset(inner, outer)) {
            errors.push(Error::invalid(&at, except, "must be a strict subset of `cidr`"));
        }
    }
}

/// The address as bits aligned to the left of 128, the prefix length, and whether it is IPv6.
fn parse_cidr(cidr: &str) -> Option<(u128, u32, bool)> {
    let (address, length) = cidr.split_once('/')?;
    let length = length.parse().ok()?;
    match address.parse().ok()? {
        IpAddr::V4(address) if length <= 32 => Some((u128::from(address.to_bits()) << 96, length, false)),
        IpAddr::V6(address) if length <= 128 => Some((address.to_bits(), length, true)),
        _ => None,
    }
}

fn is_strict_subset(inner: (u128, u32, bool), outer: (u128, u32, bool)) -> bool {
    let mask = u128::MAX.checked_shl(128_u32.saturating_sub(outer.1)).unwrap_or(0);
    inner.2 == outer.2 && inner.1 > outer.1 && inner.0 & mask == outer.0 & mask
}

/// Addresses that must not stand behind a Service: a backend would mean the node itself or nobody.
pub(super) fn endpoint_ip(address: &str, path: &Path) -> Errors {
    let Ok(parsed) = address.parse::<IpAddr>() else {
        return vec![Error::invalid(path, address, "must be a valid IP address")];
    };
    let link_local = match parsed {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let link_local_multicast = match parsed {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    };
    let text = if parsed.is_unspecified() {
        format!("may not be unspecified ({address})")
    } else if parsed.is_loopback() {
        "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()
    } else if link_local {
        "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()
    } else if link_local_multicast {
        "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned()
    } else {
        return Errors::new();
    };
    vec![Error::invalid(path, address, text)]
}

const MAX_ADDRESSES: usize = 100;

pub(super) fn endpoint_slice(errors: &mut Errors, root: Node<'_>) {
    let kind = root.at("addressType").text();
    check::required_enum(
        errors,
        &Path::new("addressType"),
        root.at("addressType"),
        &["FQDN", "IPv4", "IPv6"],
    );
    for (index, endpoint) in root.at("endpoints").items().enumerate() {
        let path = Path::new("endpoints").index(index);
        let (addresses, at) = (endpoint.at("addresses"), path.child("addresses"));
        if addresses.is_empty() {
            errors.push(Error::required(&at, "must contain at least 1 address"));
        } else if addresses.len() > MAX_ADDRESSES {
            errors.push(Error::too_many(&at, addresses.len(), MAX_ADDRESSES));
        }
        for (index, address) in addresses.texts().into_iter().enumerate() {
            slice_address(errors, kind, address, &at, index);
        }
        if let Some(host) = endpoint.at("hostname").opt_text() {
            complaints(errors, &path.child("hostname"), host, names::dns1123_label(host));
        }
        if let Some(node) = endpoint.at("nodeName").opt_text() {
            complaints(errors, &path.child("nodeName"), node, names::dns1123_subdomain(node));
        }
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, port) in root.at("ports").items().enumerate() {
        let path = Path::new("ports").index(index);
        let name = port.at("name").text();
        if !name.is_empty() {
            complaints(errors, &path.child("name"), name, names::dns1123_label(name));
        }
        if seen.contains(&name) {
            errors.push(Error::duplicate(&path.child("name"), name));
        }
        seen.insert(name);
        check::required_enum(errors, &path.child("protocol"), port.at("protocol"), &["SCTP", "TCP", "UDP"]);
        if let Some(protocol) = port.at("appProtocol").opt_text() {
            complaints(errors, &path.child("appProtocol"), protocol, names::qualified_name(protocol));
        }
    }
}

/// The wrong family is reported at the list, everything else at the element.
fn slice_address(errors: &mut Errors, kind: &str, address: &str, list: &Path, index: usize) {
    let path = list.index(index);
    match kind {
        "FQDN" => complaints(errors, &path, address, names::dns1123_subdomain(address)),
        "IPv4" | "IPv6" => {
            let wrong = names::ip(address);
            if !wrong.is_empty() {
                complaints(errors, &path, address, wrong);
                return;
            }
            if address.contains(':') != (kind == "IPv6") {
                errors.push(Error::invalid(list, address, format!("must be an {kind} address")));
            }
            errors.extend(endpoint_ip(address, &path));
        }
        _ => {}
    }
}

pub(super) fn endpoints(errors: &mut Errors, root: Node<'_>) {
    for (index, subset) in root.at("subsets").items().enumerate() {
        let path = Path::new("subsets").index(index);
        if subset.at("addresses").is_empty() && subset.at("notReadyAddresses").is_empty() {
            errors.push(Error::required(&path, "must specify `addresses` or `notReadyAddresses`"));
        }
        for list in ["addresses", "notReadyAddresses"] {
            for (index, entry) in subset.at(list).items().enumerate() {
                let path = path.child(list).index(index);
                let address = entry.at("ip").text();
                complaints(errors, &path.child("ip"), address, names::ip(address));
                errors.extend(endpoint_ip(address, &path.child("ip")));
                let host = entry.at("hostname").text();
                if !host.is_empty() {
                    complaints(errors, &path.child("hostname"), host, names::dns1123_label(host));
                }
            }
        }
        let several = subset.at("ports").len() > 1;
        for (index, port) in subset.at("ports").items().enumerate() {
            let path = path.child("ports").index(index);
            let name = port.at("name").text();
            if !name.is_empty() {
                complaints(errors, &path.child("name"), name, names::dns1123_label(name));
            } else if several {
                errors.push(Error::required(&path.child("name"), ""));
            }
            let number = port.at("port").int();
            let wrong = names::port_number(number);
            errors.extend(wrong.into_iter().map(|text| Error::invalid(&path.child("port"), number, text)));
            check::required_enum(
                errors,
                &path.child("protocol"),
                port.at("protocol"),
                &["SCTP", "TCP", "UDP"],
            );
        }
    }
}
