//! Defaults of the kinds that configure the cluster itself: namespaces, roles, limits, admission, extension.

use serde_json::{Value, json};

use super::quantities;
use super::tree::{Object, below, each, ensure, has_items, put, put_nonzero, text};

/// Every namespace carries its name as a label. One that only has a generateName gets it once it has a name.
pub(super) fn namespace(root: &mut Object) {
    if let Some(metadata) = below(root, "metadata") {
        let name = text(metadata, "name").to_owned();
        if !name.is_empty()
            && let Some(labels) = ensure(metadata, "labels")
        {
            labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
        }
    }
    if let Some(status) = ensure(root, "status") {
        put_nonzero(status, "phase", "Active");
    }
}

pub(super) fn node(root: &mut Object) {
    let Some(status) = below(root, "status") else { return };
    quantities::round(status, &["capacity", "allocatable"]);
    if let Some(capacity) = status.get("capacity").filter(|capacity| capacity.is_object()).cloned() {
        put(status, "allocatable", capacity);
    }
}

pub(super) fn limit_range(root: &mut Object) {
    let Some(spec) = below(root, "spec") else { return };
    each(spec, "limits", |item| {
        quantities::round(item, &["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"]);
        if text(item, "type") == "Container" {
            fill_from(item, "default", "max");
            fill_from(item, "defaultRequest", "default");
            fill_from(item, "defaultRequest", "min");
        }
    });
}

/// Copies the entries of one resource list that another lacks; nothing to copy creates nothing.
fn fill_from(item: &mut Object, target: &str, source: &str) {
    if !has_items(item, source) {
        return;
    }
    let Some(entries) = item.get(source).and_then(Value::as_object).cloned() else { return };
    if let Some(list) = ensure(item, target) {
        for (name, quantity) in entries {
            list.entry(name).or_insert(quantity);
        }
    }
}

pub(super) fn resource_quota(root: &mut Object) {
    if let Some(spec) = below(root, "spec") {
        quantities::round(spec, &["hard"]);
    }
    if let Some(status) = below(root, "status") {
        quantities::round(status, &["hard", "used"]);
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) fn role_binding(root: &mut Object) {
    if let Some(role) = ensure(root, "roleRef") {
        put_nonzero(role, "apiGroup", RBAC);
    }
    each(root, "subjects", |subject| {
        if matches!(text(subject, "kind"), "User" | "Group") {
            put_nonzero(subject, "apiGroup", RBAC);
        }
    });
}

pub(super) fn webhooks(root: &mut Object, mutating: bool) {
    each(root, "webhooks", |webhook| {
        put(webhook, "failurePolicy", "Fail");
        match_resources(webhook, "rules");
        put(webhook, "timeoutSeconds", 10);
        if mutating {
            put(webhook, "reinvocationPolicy", "Never");
        }
        service_port(webhook, "clientConfig");
    });
}

fn match_resources(matcher: &mut Object, rules: &str) {
    put(matcher, "matchPolicy", "Equivalent");
    put(matcher, "namespaceSelector", Object::new());
    put(matcher, "objectSelector", Object::new());
    each(matcher, rules, |rule| put(rule, "scope", "*"));
}

fn service_port(owner: &mut Object, config: &str) {
    if let Some(service) = below(owner, config).and_then(|config| below(config, "service")) {
        put(service, "port", 443);
    }
}

pub(super) fn admission_policy(kind: &str, root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    let matcher = if kind.ends_with("Binding") {
        "matchResources"
    } else {
        put(spec, "failurePolicy", "Fail");
        "matchConstraints"
    };
    if let Some(matcher) = below(spec, matcher) {
        match_resources(matcher, "resourceRules");
        each(matcher, "excludeResourceRules", |rule| put(rule, "scope", "*"));
    }
}

pub(super) fn custom_resource_definition(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    if let Some(names) = ensure(spec, "names") {
        let kind = text(names, "kind").to_owned();
        if !kind.is_empty() {
            put_nonzero(names, "singular", kind.to_lowercase());
            put_nonzero(names, "listKind", format!("{kind}List"));
        }
    }
    put(spec, "conversion", json!({"strategy": "None"}));
    if let Some(webhook) = below(spec, "conversion").and_then(|conversion| below(conversion, "webhook")) {
        service_port(webhook, "clientConfig");
    }
}

pub(super) fn api_service(root: &mut Object) {
    if let Some(spec) = below(root, "spec")
        && let Some(service) = below(spec, "service")
    {
        put(service, "port", 443);
    }
}

pub(super) fn flow_schema(root: &mut Object) {
    if let Some(spec) = ensure(root, "spec") {
        put_nonzero(spec, "matchingPrecedence", 1000);
    }
}

pub(super) fn priority_level(root: &mut Object) {
    let Some(spec) = below(root, "spec") else { return };
    if let Some(exempt) = below(spec, "exempt") {
        put(exempt, "nominalConcurrencyShares", 0);
        put(exempt, "lendablePercent", 0);
    }
    if let Some(limited) = below(spec, "limited") {
        put(limited, "nominalConcurrencyShares", 30);
        put(limited, "lendablePercent", 0);
        let queuing = below(limited, "limitResponse").and_then(|response| below(response, "queuing"));
        if let Some(queuing) = queuing {
            put_nonzero(queuing, "handSize", 8);
            put_nonzero(queuing, "queues", 64);
            put_nonzero(queuing, "queueLengthLimit", 50);
        }
    }
}

/// `owner` holds a claim's spec below `spec`: a ResourceClaim, or the template inside a ResourceClaimTemplate.
pub(super) fn resource_claim(owner: &mut Object) {
    let Some(devices) = below(owner, "spec").and_then(|spec| below(spec, "devices")) else { return };
    each(devices, "requests", |request| {
        if let Some(exactly) = below(request, "exactly") {
            device_request(exactly);
        }
        each(request, "firstAvailable", device_request);
    });
}

fn device_request(request: &mut Object) {
    put_nonzero(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        put_nonzero(request, "count", 1);
    }
}
