//! Probes and lifecycle hooks.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

use super::check::{self, complaints};
use super::node::Node;

/// Checks hooks and probes in the order upstream does.
pub(super) fn of_container(errors: &mut Errors, container: Node<'_>, path: &Path) {
    let lifecycle = container.at("lifecycle");
    for hook in ["postStart", "preStop"] {
        if lifecycle.at(hook).exists() {
            handler(errors, lifecycle.at(hook), &path.child("lifecycle").child(hook));
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = container.at(name);
        if probe.exists() {
            check_probe(errors, name, probe, &path.child(name));
        }
    }
}

fn check_probe(errors: &mut Errors, name: &str, probe: Node<'_>, path: &Path) {
    handler(errors, probe, path);
    check::none_negative(
        errors,
        path,
        probe,
        &["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"],
    );
    if let Some(seconds @ ..=0) = probe.at("terminationGracePeriodSeconds").opt_int() {
        let at = path.child("terminationGracePeriodSeconds");
        errors.push(Error::invalid(&at, seconds, "must be greater than 0"));
    }
    if name == "readinessProbe" {
        if let Some(seconds) = probe.at("terminationGracePeriodSeconds").opt_int() {
            let at = path.child("terminationGracePeriodSeconds");
            errors.push(Error::invalid(&at, seconds, "must not be set for readinessProbes"));
        }
    } else if probe.at("successThreshold").int() != 1 {
        let at = path.child("successThreshold");
        errors.push(Error::invalid(&at, probe.at("successThreshold").int(), "must be 1"));
    }
}

fn handler(errors: &mut Errors, handler: Node<'_>, path: &Path) {
    let mut found = false;
    for kind in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let action = handler.at(kind);
        if !action.exists() {
            continue;
        }
        let path = path.child(kind);
        if found {
            errors.push(Error::forbidden(&path, "may not specify more than 1 handler type"));
            continue;
        }
        found = true;
        match kind {
            "exec" => check::required(errors, &path.child("command"), action.at("command")),
            "httpGet" => http_get(errors, action, &path),
            "tcpSocket" => check::port_or_name(errors, &path.child("port"), action.at("port")),
            "grpc" => {
                let port = action.at("port").int();
                let wrong = names::port_number(port);
                errors.extend(wrong.into_iter().map(|text| Error::invalid(&path.child("port"), port, text)));
            }
            _ => {}
        }
    }
    if !found {
        errors.push(Error::required(path, "must specify a handler type"));
    }
}

fn http_get(errors: &mut Errors, action: Node<'_>, path: &Path) {
    check::required(errors, &path.child("path"), action.at("path"));
    check::port_or_name(errors, &path.child("port"), action.at("port"));
    check::optional_enum(errors, &path.child("scheme"), action.at("scheme"), &["HTTP", "HTTPS"]);
    for header in action.at("httpHeaders").items() {
        let name = header.at("name").text();
        complaints(errors, &path.child("httpHeaders"), name, names::http_header_name(name));
    }
}
