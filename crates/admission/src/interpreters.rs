//! ResourceInterpreterWebhookConfiguration.

use std::collections::BTreeSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use serde_json::Value;

use api::config::{
    INTERPRETER_CONTEXT_VERSION, InterpreterOperation, ResourceInterpreterWebhook, RuleWithOperations,
    WebhookServiceReference,
};

use crate::cluster::Url;
use crate::request::{Denial, deny_if_any, invalid, part};

/// Sorted, as they are listed to the user. `Prune` is declared by the API but served by nobody.
const OPERATIONS: [&str; 9] = [
    "*",
    "AggregateStatus",
    "InterpretComponent",
    "InterpretDependency",
    "InterpretHealth",
    "InterpretReplica",
    "InterpretStatus",
    "Retain",
    "ReviseReplica",
];

pub(crate) fn validate(object: &Value) -> Result<(), Denial> {
    let hooks: Vec<ResourceInterpreterWebhook> = part(object, "webhooks")?;
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (index, hook) in hooks.iter().enumerate() {
        let path = Path::new("webhooks").index(index);
        errors.extend(check(hook, &path));
        if !seen.insert(hook.name.as_str()) {
            errors.push(Error::duplicate(&path.child("name"), hook.name.as_str()));
        }
    }
    deny_if_any(&errors)
}

fn check(hook: &ResourceInterpreterWebhook, path: &Path) -> Errors {
    let mut errors = Errors::new();
    errors.extend(domain_name(&hook.name, &path.child("name")));
    for (index, rule) in hook.rules.iter().enumerate() {
        errors.extend(check_rule(rule, &path.child("rules").index(index)));
    }
    if let Some(seconds) = hook.timeout_seconds
        && !(1..=30).contains(&seconds)
    {
        let fault = "the timeout value must be between 1 and 30 seconds";
        errors.push(Error::invalid(&path.child("timeoutSeconds"), seconds, fault));
    }
    let at = path.child("clientConfig");
    match (&hook.client_config.url, &hook.client_config.service) {
        (Some(url), None) => errors.extend(check_url(url, &at.child("url"))),
        (None, Some(service)) => errors.extend(check_service(service, &at.child("service"))),
        _ => errors.push(Error::required(&at, "exactly one of url or service is required")),
    }
    let at = path.child("interpreterContextVersions");
    errors.extend(check_versions(&hook.interpreter_context_versions, &at));
    errors
}

fn domain_name(name: &str, path: &Path) -> Option<Error> {
    if name.is_empty() {
        return Some(Error::required(path, ""));
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let faults = names::dns1123_subdomain(name);
    if !faults.is_empty() {
        return Some(Error::invalid(path, name, faults.join(",")));
    }
    if !name.contains('.') {
        let fault = "should be a domain with at least two segments separated by dots";
        return Some(Error::invalid(path, name, fault));
    }
    name.split('.').find_map(|label| {
        let faults = names::dns1123_label(label);
        (!faults.is_empty()).then(|| Error::invalid(path, label, faults.join(",")))
    })
}

fn check_rule(rule: &RuleWithOperations, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let at = path.child("operations");
    if rule.operations.is_empty() {
        errors.push(Error::required(&at, ""));
    }
    if rule.operations.len() > 1 && rule.operations.contains(&InterpreterOperation::All) {
        let fault = "if '*' is present, must not specify other operations";
        errors.push(invalid(&at, &rule.operations, fault));
    }
    for (index, operation) in rule.operations.iter().enumerate() {
        if !OPERATIONS.contains(&operation.as_str()) {
            errors.push(Error::not_supported(&at.index(index), operation.as_str(), &OPERATIONS));
        }
    }
    // An empty group is the core group; an empty version or kind is nothing.
    for (field, words, list, empty_allowed) in [
        ("apiGroups", "API groups", &rule.rule.api_groups, true),
        ("apiVersions", "API versions", &rule.rule.api_versions, false),
        ("kinds", "kinds", &rule.rule.kinds, false),
    ] {
        let at = path.child(field);
        if list.is_empty() {
            errors.push(Error::required(&at, ""));
        }
        if list.len() > 1 && list.iter().any(|entry| entry == "*") {
            let fault = format!("if '*' is present, must not specify other {words}");
            errors.push(invalid(&at, list, fault));
        }
        for (index, _) in list.iter().enumerate().filter(|(_, entry)| entry.is_empty() && !empty_allowed) {
            errors.push(Error::required(&at.index(index), ""));
        }
    }
    errors
}

fn check_url(text: &str, path: &Path) -> Errors {
    const FORM: &str = "; desired format: https://host[/path]";
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(fault) => {
            return vec![Error::required(path, format!("url must be a valid URL: {fault}{FORM}"))];
        }
    };
    let mut errors = Errors::new();
    if url.scheme != "https" {
        let fault = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(Error::invalid(path, url.scheme.as_str(), fault));
    }
    if url.host.is_empty() {
        errors.push(Error::invalid(path, "", format!("host must be specified{FORM}")));
    }
    if let Some(user) = url.user {
        errors.push(Error::invalid(path, user, "user information is not permitted in the URL"));
    }
    if !url.fragment.is_empty() {
        errors.push(Error::invalid(path, url.fragment, "fragments are not permitted in the URL"));
    }
    if !url.query.is_empty() {
        errors.push(Error::invalid(path, url.query, "query parameters are not permitted in the URL"));
    }
    errors
}

fn check_service(service: &WebhookServiceReference, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (field, value) in [("name", &service.name), ("namespace", &service.namespace)] {
        if value.is_empty() {
            errors.push(Error::required(&path.child(field), ""));
        }
    }
    let port = service.port.unwrap_or(443);
    let faults = names::port_number(i64::from(port));
    if !faults.is_empty() {
        let fault = format!("port is not valid: {}", faults.join(", "));
        errors.push(Error::invalid(&path.child("port"), port, fault));
    }
    let Some(text) = service.path.as_deref().filter(|text| !matches!(*text, "" | "/")) else {
        return errors;
    };
    let at = path.child("path");
    if text == "//" {
        errors.push(Error::invalid(&at, text, "segment[0] may not be empty"));
        return errors;
    }
    if !text.starts_with('/') {
        errors.push(Error::invalid(&at, text, "must start with a '/'"));
    }
    // The first byte is taken for the slash even where it is none.
    let mut rest = text.chars();
    rest.next();
    let rest = rest.as_str();
    for (index, segment) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if segment.is_empty() {
            errors.push(Error::invalid(&at, text, format!("segment[{index}] may not be empty")));
        } else {
            for fault in names::dns1123_subdomain(segment) {
                errors.push(Error::invalid(&at, text, format!("segment[{index}]: {fault}")));
            }
        }
    }
    errors
}

fn check_versions(versions: &[String], path: &Path) -> Errors {
    let known = INTERPRETER_CONTEXT_VERSION;
    if versions.is_empty() {
        return vec![Error::required(path, format!("must specify one of {known}"))];
    }
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        let at = path.index(index);
        if !seen.insert(version) {
            errors.push(Error::invalid(&at, version.as_str(), "duplicate version"));
            continue;
        }
        let faults = names::dns1035_label(version);
        errors.extend(faults.into_iter().map(|fault| Error::invalid(&at, version.as_str(), fault)));
    }
    if !versions.iter().any(|version| version == known) {
        errors.push(invalid(path, &versions.to_vec(), format!("must include at least one of {known}")));
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(hook: Value) -> Vec<String> {
        check(&serde_json::from_value(hook).unwrap(), &Path::new("webhooks[0]"))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_hook_with_a_service_needs_no_port() {
        let hook = json!({
            "name": "a.example.com", "interpreterContextVersions": ["v1alpha1"],
            "clientConfig": { "service": { "namespace": "ns", "name": "svc", "path": "/interpret/" } },
            "rules": [{ "operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "kinds": ["Pod"] }],
        });
        assert_eq!(faults(hook), Vec::<String>::new());
    }

    #[test]
    fn every_part_is_checked() {
        let hook = json!({
            "name": "plain", "timeoutSeconds": 31, "interpreterContextVersions": ["v2", "v2"],
            "clientConfig": { "url": "http://user@host/?q=1#f" },
            "rules": [{
                "operations": ["*", "Prune"], "apiGroups": [], "apiVersions": [""], "kinds": ["*", "Pod"],
            }],
        });
        assert_eq!(
            faults(hook),
            [
                "webhooks[0].name: Invalid value: \"plain\": should be a domain with at least two segments separated \
                 by dots",
                "webhooks[0].rules[0].operations: Invalid value: [\"*\",\"Prune\"]: if '*' is present, must not \
                 specify other operations",
                "webhooks[0].rules[0].operations[1]: Unsupported value: \"Prune\": supported values: \"*\", \
                 \"AggregateStatus\", \"InterpretComponent\", \"InterpretDependency\", \"InterpretHealth\", \
                 \"InterpretReplica\", \"InterpretStatus\", \"Retain\", \"ReviseReplica\"",
                "webhooks[0].rules[0].apiGroups: Required value",
                "webhooks[0].rules[0].apiVersions[0]: Required value",
                "webhooks[0].rules[0].kinds: Invalid value: [\"*\",\"Pod\"]: if '*' is present, must not specify other \
                 kinds",
                "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
                "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired \
                 format: https://host[/path]",
                "webhooks[0].clientConfig.url: Invalid value: \"user\": user information is not permitted in the URL",
                "webhooks[0].clientConfig.url: Invalid value: \"f\": fragments are not permitted in the URL",
                "webhooks[0].clientConfig.url: Invalid value: \"q=1\": query parameters are not permitted in the URL",
                "webhooks[0].interpreterContextVersions[1]: Invalid value: \"v2\": duplicate version",
                "webhooks[0].interpreterContextVersions: Invalid value: [\"v2\",\"v2\"]: must include at least one of \
                 v1alpha1",
            ]
        );
    }
}
