//! Webhook configurations and APIServices.

use std::collections::HashSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::{names, webhook};
use base64::Engine as _;

use super::check::{self, complaints};
use super::node::Node;

pub(super) fn webhooks(errors: &mut Errors, root: Node<'_>, mutating: bool) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, hook) in root.at("webhooks").items().enumerate() {
        let path = Path::new("webhooks").index(index);
        hook_of(errors, hook, mutating, &path);
        let versions = hook.at("admissionReviewVersions");
        let at = path.child("admissionReviewVersions");
        if versions.is_empty() {
            errors.push(Error::required(&at, "must specify one of v1, v1beta1"));
        }
        let mut known: HashSet<&str> = HashSet::new();
        for (index, version) in versions.texts().into_iter().enumerate() {
            if !known.insert(version) {
                errors.push(Error::invalid(&at.index(index), version, "duplicate version"));
                continue;
            }
            complaints(errors, &at.index(index), version, names::dns1035_label(version));
        }
        if !versions.is_empty() && !known.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
            let text = "must include at least one of v1, v1beta1";
            errors.push(Error::invalid(&at, versions.value(), text));
        }
        let name = hook.at("name").text();
        if !name.is_empty() {
            if seen.contains(&name) {
                errors.push(Error::duplicate(&path.child("name"), name));
            }
            seen.insert(name);
        }
    }
}

fn hook_of(errors: &mut Errors, hook: Node<'_>, mutating: bool, path: &Path) {
    let (name, at) = (hook.at("name").text(), path.child("name"));
    if name.is_empty() {
        errors.push(Error::required(&at, ""));
    } else {
        complaints(errors, &at, name, names::dns1123_subdomain(name));
        if name.split('.').count() < 3 {
            let text = "should be a domain with at least three segments separated by dots";
            errors.push(Error::invalid(&at, name, text));
        }
    }
    for (index, rule) in hook.at("rules").items().enumerate() {
        self::rule(errors, rule, &path.child("rules").index(index));
    }
    check::optional_enum(errors, &path.child("failurePolicy"), hook.at("failurePolicy"), &["Fail", "Ignore"]);
    check::optional_enum(
        errors,
        &path.child("matchPolicy"),
        hook.at("matchPolicy"),
        &["Equivalent", "Exact"],
    );
    let (effects, at) = (hook.at("sideEffects"), path.child("sideEffects"));
    if effects.exists() {
        check::optional_enum(errors, &at, effects, &["None", "NoneOnDryRun"]);
    } else {
        errors.push(Error::required(&at, "must specify one of None, NoneOnDryRun"));
    }
    if let Some(seconds) = hook.at("timeoutSeconds").opt_int()
        && !(1..=30).contains(&seconds)
    {
        let text = "the timeout value must be between 1 and 30 seconds";
        errors.push(Error::invalid(&path.child("timeoutSeconds"), seconds, text));
    }
    for selector in ["namespaceSelector", "objectSelector"] {
        check::selector(errors, &path.child(selector), hook.at(selector));
    }
    if mutating {
        let at = path.child("reinvocationPolicy");
        check::optional_enum(errors, &at, hook.at("reinvocationPolicy"), &["IfNeeded", "Never"]);
    }
    client_config(errors, hook.at("clientConfig"), &path.child("clientConfig"));
}

fn client_config(errors: &mut Errors, config: Node<'_>, path: &Path) {
    let (url, service) = (config.at("url"), config.at("service"));
    match (url.exists(), service.exists()) {
        (true, false) => webhook::url(&path.child("url"), url.text(), errors),
        (false, true) => webhook::service(
            &path.child("service"),
            &webhook::Service {
                namespace: service.at("namespace").text(),
                name: service.at("name").text(),
                path: service.at("path").opt_text(),
                port: service.at("port").int(),
            },
            errors,
        ),
        _ => errors.push(Error::required(path, "exactly one of url or service is required")),
    }
}

/// Checks what a webhook or a policy is about: operations, groups, versions, resources and scope.
pub(super) fn rule(errors: &mut Errors, rule: Node<'_>, path: &Path) {
    let supported = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    for (field, words) in
        [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")]
    {
        let (list, at) = (rule.at(field), path.child(field));
        if list.is_empty() {
            errors.push(Error::required(&at, ""));
        }
        if list.len() > 1 && list.texts().contains(&"*") {
            let text = format!("if '*' is present, must not specify other {words}");
            errors.push(Error::invalid(&at, list.value(), text));
        }
        for (index, value) in list.texts().into_iter().enumerate() {
            if field == "operations" && !supported.contains(&value) {
                errors.push(Error::not_supported(&at.index(index), value, &supported));
            }
            if field == "apiVersions" && value.is_empty() {
                errors.push(Error::required(&at.index(index), ""));
            }
        }
    }
    resources(errors, rule.at("resources"), &path.child("resources"));
    check::optional_enum(errors, &path.child("scope"), rule.at("scope"), &["*", "Cluster", "Namespaced"]);
}

/// Finds resources that a star has named already.
fn resources(errors: &mut Errors, list: Node<'_>, path: &Path) {
    if list.is_empty() {
        errors.push(Error::required(path, ""));
    }
    let (mut all_of, mut everywhere): (HashSet<&str>, HashSet<&str>) = (HashSet::new(), HashSet::new());
    // The last one without a subresource decides, as upstream.
    let mut plain = false;
    for (index, resource) in list.texts().into_iter().enumerate() {
        let at = path.index(index);
        if resource.is_empty() {
            errors.push(Error::required(&at, ""));
            continue;
        }
        let Some((name, sub)) = resource.split_once('/') else {
            plain = resource != "*";
            continue;
        };
        let mut covered = |by: String| {
            let text = format!("if '{by}' is present, must not specify {resource}");
            errors.push(Error::invalid(&at, resource, text));
        };
        if all_of.contains(&name) {
            covered(format!("{name}/*"));
        }
        if everywhere.contains(&sub) {
            covered(format!("*/{sub}"));
        }
        if sub == "*" {
            all_of.insert(name);
        }
        if name == "*" {
            everywhere.insert(sub);
        }
    }
    let has = |wanted: &str| list.texts().contains(&wanted);
    if list.len() > 1 && has("*/*") {
        let text = "if '*/*' is present, must not specify other resources";
        errors.push(Error::invalid(path, list.value(), text));
    }
    if has("*") && plain {
        let text = "if '*' is present, must not specify other resources without subresources";
        errors.push(Error::invalid(path, list.value(), text));
    }
}

/// The one name an APIService may have.
pub(super) fn api_service_name(root: Node<'_>, name: &str) -> Vec<String> {
    let wrong = names::path_segment(name);
    if !wrong.is_empty() {
        return wrong;
    }
    let wanted = format!("{}.{}", root.dig(&["spec", "version"]).text(), root.dig(&["spec", "group"]).text());
    if name == wanted {
        Vec::new()
    } else {
        vec![format!("must be `spec.version+\".\"+spec.group`: {wanted:?}")]
    }
}

pub(super) fn api_service(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    let (group, version) = (spec.at("group").text(), spec.at("version").text());
    if group.is_empty() && version != "v1" {
        let text = "only v1 may have an empty group and it better be legacy kube";
        errors.push(Error::required(&path.child("group"), text));
    }
    if !group.is_empty() {
        complaints(errors, &path.child("group"), group, names::dns1123_subdomain(group));
    }
    complaints(errors, &path.child("version"), version, names::dns1035_label(version));
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
        let number = spec.at(field).int();
        if number <= 0 || number > most {
            let text = format!("must be positive and less than {most}");
            errors.push(Error::invalid(&path.child(field), number, text));
        }
    }
    let (service, insecure, bundle) =
        (spec.at("service"), spec.at("insecureSkipTLSVerify").flag(), spec.at("caBundle"));
    let at = path.child("insecureSkipTLSVerify");
    if !service.exists() {
        if !bundle.is_empty() {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(bundle.text())
                .map_or(0, |bytes| bytes.len());
            let text = "local APIServices may not have a caBundle";
            errors.push(Error::invalid(&path.child("caBundle"), format!("{bytes} bytes"), text));
        }
        if insecure {
            errors.push(Error::invalid(&at, true, "local APIServices may not have insecureSkipTLSVerify"));
        }
        return;
    }
    for field in ["namespace", "name"] {
        check::required(errors, &path.child("service").child(field), service.at(field));
    }
    let port = service.at("port").int();
    let wrong = names::port_number(port);
    if !wrong.is_empty() {
        let text = format!("port is not valid: {}", wrong.join(", "));
        errors.push(Error::invalid(&path.child("service").child("port"), port, text));
    }
    if insecure && !bundle.is_empty() {
        errors.push(Error::invalid(&at, true, "may not be true if caBundle is present"));
    }
}
