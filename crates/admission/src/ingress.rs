//! MultiClusterIngress: the rules of an Ingress, as they were when Karmada took them over.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use serde_json::Value;

use api::networking::{
    HTTPIngressPath, IngressBackend, IngressRule, IngressSpec, MultiClusterIngressStatus,
    TypedLocalObjectReference,
};

use crate::request::{Denial, Operation, Request, deny_if_any, invalid, part, spec};
use crate::{addresses, metadata};

pub(crate) fn validate(request: &Request<'_>, object: &Value) -> Result<(), Denial> {
    let mut errors = Errors::new();
    let old = request.old.filter(|_| request.operation == Operation::Update);
    if let Some(old) = old {
        errors.extend(metadata::updated(object, old));
    }
    errors.extend(metadata::namespaced(object));
    errors.extend(check(&spec(object)?, &Path::new("spec")));
    if old.is_some() {
        let status: MultiClusterIngressStatus = part(object, "status")?;
        let known = status.load_balancer.ingress.iter();
        errors.extend(addresses::check(known.map(|entry| (entry.ip.as_str(), entry.hostname.as_str()))));
    }
    deny_if_any(&errors)
}

fn check(ingress: &IngressSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if ingress.rules.is_empty() && ingress.default_backend.is_none() {
        let fault = "either `defaultBackend` or `rules` must be specified";
        // What is shown is Go's list without elements.
        errors.push(invalid(path, &None::<Vec<IngressRule>>, fault));
    }
    if let Some(default) = &ingress.default_backend {
        errors.extend(backend(default, &path.child("defaultBackend")));
    }
    for (index, each) in ingress.rules.iter().enumerate() {
        errors.extend(rule(each, &path.child("rules").index(index)));
    }
    for (index, tls) in ingress.tls.iter().enumerate() {
        let path = path.child("tls").index(index);
        for (index, host) in tls.hosts.iter().enumerate() {
            complain(&mut errors, &path.child("hosts").index(index), host, host_name(host));
        }
        if !tls.secret_name.is_empty() {
            let faults = names::dns1123_subdomain(&tls.secret_name);
            complain(&mut errors, &path.child("secretName"), &tls.secret_name, faults);
        }
    }
    if let Some(class) = &ingress.ingress_class_name {
        complain(&mut errors, &path.child("ingressClassName"), class, names::dns1123_subdomain(class));
    }
    errors
}

fn complain(errors: &mut Errors, path: &Path, value: &str, faults: Vec<String>) {
    errors.extend(faults.into_iter().map(|fault| Error::invalid(path, value, fault)));
}

fn host_name(host: &str) -> Vec<String> {
    if host.contains('*') { names::wildcard_dns1123_subdomain(host) } else { names::dns1123_subdomain(host) }
}

fn rule(rule: &IngressRule, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let (host, at) = (rule.host.as_str(), path.child("host"));
    if !host.is_empty() {
        if addresses::is_ip(host) {
            errors.push(Error::invalid(&at, host, "must be a DNS name, not an IP address"));
        }
        complain(&mut errors, &at, host, host_name(host));
    }
    if let Some(http) = &rule.http {
        let path = path.child("http").child("paths");
        if http.paths.is_empty() {
            errors.push(Error::required(&path, ""));
        }
        for (index, entry) in http.paths.iter().enumerate() {
            errors.extend(http_path(entry, &path.index(index)));
        }
    }
    errors
}

fn http_path(entry: &HTTPIngressPath, path: &Path) -> Errors {
    let Some(kind) = entry.path_type.as_deref() else {
        return vec![Error::required(&path.child("pathType"), "pathType must be specified")];
    };
    let mut errors = Errors::new();
    let (value, at) = (entry.path.as_str(), path.child("path"));
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
        "ImplementationSpecific" if value.is_empty() || value.starts_with('/') => {}
        "ImplementationSpecific" => errors.push(Error::invalid(&at, value, "must be an absolute path")),
        _ => {
            let known = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.push(Error::not_supported(&path.child("pathType"), kind, &known));
        }
    }
    errors.extend(backend(&entry.backend, &path.child("backend")));
    errors
}

fn backend(backend: &IngressBackend, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let service = match (&backend.service, &backend.resource) {
        (Some(_), Some(_)) => {
            return vec![Error::invalid(path, "", "cannot set both resource and service backends")];
        }
        (None, Some(resource)) => return reference(resource, &path.child("resource")),
        (None, None) => return vec![Error::invalid(path, "", "resource or service backend is required")],
        (Some(service), None) => service,
    };
    let at = path.child("service");
    if service.name.is_empty() {
        errors.push(Error::required(&at.child("name"), ""));
    } else {
        complain(&mut errors, &at.child("name"), &service.name, names::dns1035_label(&service.name));
    }
    let at = at.child("port");
    match (service.port.name.as_str(), service.port.number) {
        ("", 0) => errors.push(Error::required(path, "port name or number is required")),
        (name, 0) => complain(&mut errors, &at.child("name"), name, names::port_name(name)),
        ("", number) => {
            for fault in names::port_number(i64::from(number)) {
                errors.push(Error::invalid(&at.child("number"), number, fault));
            }
        }
        _ => errors.push(Error::invalid(path, "", "cannot set both port name & port number")),
    }
    errors
}

fn reference(target: &TypedLocalObjectReference, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if let Some(group) = &target.api_group {
        complain(&mut errors, &path.child("apiGroup"), group, names::dns1123_subdomain(group));
    }
    for (field, value) in [("kind", &target.kind), ("name", &target.name)] {
        let at = path.child(field);
        if value.is_empty() {
            errors.push(Error::required(&at, format!("{field} is required")));
        } else {
            complain(&mut errors, &at, value, names::path_segment(value));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(spec: Value) -> Vec<String> {
        check(&serde_json::from_value(spec).unwrap(), &Path::new("spec"))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn something_must_be_served() {
        assert_eq!(
            faults(json!({})),
            ["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"]
        );
        let service = json!({ "service": { "name": "web", "port": { "number": 80 } } });
        assert_eq!(faults(json!({ "defaultBackend": service })), Vec::<String>::new());
    }

    #[test]
    fn hosts_paths_and_backends_are_checked() {
        let found = faults(json!({
            "rules": [{ "host": "1.2.3.4", "http": { "paths": [
                { "path": "a//b", "pathType": "Exact", "backend": { "service": { "name": "1st", "port": {} } } },
                { "pathType": "Magic", "backend": { "resource": { "kind": "", "name": "x/y" } } },
                { "backend": {} },
            ] } }],
            "tls": [{ "hosts": ["*.bad.*"], "secretName": "No" }],
        }));
        let fields: Vec<&str> = found.iter().map(|text| text.split(": ").next().unwrap()).collect();
        assert_eq!(
            fields,
            [
                "spec.rules[0].host",
                "spec.rules[0].http.paths[0].path",
                "spec.rules[0].http.paths[0].path",
                "spec.rules[0].http.paths[0].backend.service.name",
                "spec.rules[0].http.paths[0].backend",
                "spec.rules[0].http.paths[1].pathType",
                "spec.rules[0].http.paths[1].backend.resource.kind",
                "spec.rules[0].http.paths[1].backend.resource.name",
                "spec.rules[0].http.paths[2].pathType",
                "spec.tls[0].hosts[0]",
                "spec.tls[0].secretName",
            ]
        );
    }
}
