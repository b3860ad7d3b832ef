//! Webhook configurations, APIServices and certificate signing requests.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use base64::Engine as _;

use super::check::{self, complaints};
use super::node::Node;

pub(super) fn webhooks(errors: &mut Errors, root: Node<'_>, mutating: bool) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, hook) in root.at("webhooks").items().enumerate() {
        let path = Path::new("webhooks").index(index);
        webhook(errors, hook, mutating, &path);
        let versions = hook.at("admissionReviewVersions");
        let at = path.child("admissionReviewVersions");
        if versions.is_empty() {
            errors.push(Error::required(&at, "must specify one of v1, v1beta1"));
        } else if !versions.texts().iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
            let text = "must include at least one of v1, v1beta1";
            errors.push(Error::invalid(&at, versions.value(), text));
        }
        let name = hook.at("name").text();
        if !name.is_empty() {
            if seen.contains(&name) {
                errors.push(Error::duplicate(&path.child("name"), name));
            }
            seen.push(name);
        }
    }
}

fn webhook(errors: &mut Errors, hook: Node<'_>, mutating: bool, path: &Path) {
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
        webhook_rule(errors, rule, &path.child("rules").index(index));
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
        (true, false) => webhook_url(errors, url.text(), &path.child("url")),
        (false, true) => {
            let path = path.child("service");
            for field in ["name", "namespace"] {
                if service.at(field).is_empty() {
                    errors.push(Error::required(&path.child(field), format!("service {field} is required")));
                }
            }
            let port = service.at("port").int();
            if !names::port_number(port).is_empty() {
                let text = format!("port is not valid: {}", names::port_number(port).join(", "));
                errors.push(Error::invalid(&path.child("port"), port, text));
            }
        }
        _ => errors.push(Error::required(path, "exactly one of url or service is required")),
    }
}

fn webhook_url(errors: &mut Errors, url: &str, path: &Path) {
    let desired = "desired format: https://host[/path]";
    let Some((scheme, rest)) = url.split_once("://") else {
        let text = format!("'https' is the only allowed URL scheme; {desired}");
        errors.push(Error::invalid(path, url, text));
        return;
    };
    if scheme != "https" {
        let text = format!("'https' is the only allowed URL scheme; {desired}");
        errors.push(Error::invalid(path, scheme, text));
    }
    let (before_fragment, fragment) = rest.split_once('#').map_or((rest, ""), |(head, tail)| (head, tail));
    let (address, query) =
        before_fragment.split_once('?').map_or((before_fragment, ""), |(head, tail)| (head, tail));
    let authority = address.split('/').next().unwrap_or_default();
    if authority.rsplit('@').next().unwrap_or_default().is_empty() {
        errors.push(Error::invalid(path, authority, format!("host must be specified; {desired}")));
    }
    if let Some((user, _)) = authority.split_once('@') {
        errors.push(Error::invalid(path, user, "user information is not permitted in the URL"));
    }
    if !fragment.is_empty() {
        errors.push(Error::invalid(path, fragment, "fragments are not permitted in the URL"));
    }
    if !query.is_empty() {
        errors.push(Error::invalid(path, query, "query parameters are not permitted in the URL"));
    }
}

fn webhook_rule(errors: &mut Errors, rule: Node<'_>, path: &Path) {
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
    if rule.at("resources").is_empty() {
        errors.push(Error::required(&path.child("resources"), ""));
    }
    for (index, resource) in rule.at("resources").texts().into_iter().enumerate() {
        if resource.is_empty() {
            errors.push(Error::required(&path.child("resources").index(index), ""));
        }
    }
    check::optional_enum(errors, &path.child("scope"), rule.at("scope"), &["*", "Cluster", "Namespaced"]);
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

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

pub(super) fn signing_request(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    let request = spec.at("request").text();
    let bytes = base64::engine::general_purpose::STANDARD.decode(request).unwrap_or_default();
    if !String::from_utf8_lossy(&bytes).contains("-----BEGIN CERTIFICATE REQUEST-----") {
        let text = "PEM block type must be CERTIFICATE REQUEST";
        errors.push(Error::invalid(&path.child("request"), request, text));
    }
    let (usages, at) = (spec.at("usages").texts(), path.child("usages"));
    if usages.is_empty() {
        errors.push(Error::required(&at, ""));
    }
    for (index, usage) in usages.iter().enumerate() {
        if !USAGES.contains(usage) {
            errors.push(Error::not_supported(&at.index(index), *usage, &USAGES));
        }
    }
    for (index, usage) in usages.iter().enumerate() {
        if usages[..index].contains(usage) {
            errors.push(Error::duplicate(&at.index(index), *usage));
        }
    }
    let (signer, at) = (spec.at("signerName").text(), path.child("signerName"));
    if signer == "kubernetes.io/legacy-unknown" {
        let text = "the legacy signerName is not allowed via this API version";
        errors.push(Error::invalid(&at, signer, text));
    } else {
        signer_name(errors, signer, &at);
    }
    if let Some(seconds) = spec.at("expirationSeconds").opt_int()
        && seconds < 600
    {
        let text = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(Error::invalid(&path.child("expirationSeconds"), seconds, text));
    }
    conditions(errors, root.dig(&["status", "conditions"]), &Path::new("status").child("conditions"));
}

fn signer_name(errors: &mut Errors, signer: &str, path: &Path) {
    if signer.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    let parts: Vec<&str> = signer.split('/').collect();
    let [domain, rest] = parts[..] else {
        let text = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(Error::invalid(path, signer, text));
        return;
    };
    let mut check_labels = |whole: &str, rule: fn(&str) -> Vec<String>| {
        let bad = whole.split('.').map(|label| (label, rule(label))).find(|(_, wrong)| !wrong.is_empty());
        if let Some((label, wrong)) = bad {
            let texts = wrong.into_iter().map(|text| format!("validating label {label:?}: {text}"));
            errors.extend(texts.map(|text| Error::invalid(path, whole, text)));
        }
    };
    check_labels(domain, names::dns1123_label);
    check_labels(rest, names::dns1123_subdomain);
    if !domain.contains('.') {
        let text = "should be a domain with at least two segments separated by dots";
        errors.push(Error::invalid(path, domain, text));
    }
}

/// Approved, Denied and Failed are decisions: they are true or absent, and the first two exclude each other.
fn conditions(errors: &mut Errors, conditions: Node<'_>, path: &Path) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in conditions.items().enumerate() {
        let path = path.index(index);
        let (kind, status) = (condition.at("type").text(), condition.at("status").text());
        check::required(errors, &path.child("type"), condition.at("type"));
        let at = path.child("status");
        match kind {
            "Approved" | "Denied" | "Failed" => match status {
                "True" => {}
                "" => errors.push(Error::required(&at, "")),
                _ => errors.push(Error::not_supported(&at, status, &["True"])),
            },
            _ => check::required_enum(errors, &at, condition.at("status"), &["False", "True", "Unknown"]),
        }
        let opposite = match kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !opposite.is_empty() && seen.contains(&opposite) {
            let text = "Approved and Denied conditions are mutually exclusive";
            errors.push(Error::invalid(&path.child("type"), kind, text));
        }
        if seen.contains(&kind) {
            errors.push(Error::duplicate(&path.child("type"), kind));
        }
        seen.push(kind);
    }
}
