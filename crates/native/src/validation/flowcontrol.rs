//! Flow schemas and priority levels: who waits in which queue. The two levels and schemas that kube-apiserver insists on may be
//! changed here, since nothing depends on them.

use std::collections::HashSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

use super::check::complaints;
use super::node::Node;

const MAX_PRECEDENCE: i64 = 10_000;
const MAX_QUEUES: i64 = 10_000_000;
/// A hand of queues is dealt from the bits of one hash.
const MAX_HASH_BITS: f64 = 60.0;
const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

pub(super) fn flow_schema(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    let precedence = spec.at("matchingPrecedence").int();
    let mut wrong = |detail: String| {
        errors.push(Error::invalid(&path.child("matchingPrecedence"), precedence, detail));
    };
    if precedence <= 0 {
        wrong("must be a positive value".to_owned());
    }
    if precedence > MAX_PRECEDENCE {
        wrong(format!("must not be greater than {MAX_PRECEDENCE}"));
    }
    if precedence == 1 && root.dig(&["metadata", "name"]).text() != "exempt" {
        wrong("only the schema named 'exempt' may have matchingPrecedence 1".to_owned());
    }
    let method = spec.at("distinguisherMethod");
    if method.exists() && !["ByNamespace", "ByUser"].contains(&method.at("type").text()) {
        let at = path.child("distinguisherMethod").child("type");
        let shown = serde_json::json!({"Type": method.at("type").text()});
        errors.push(Error::not_supported(&at, shown, &["ByNamespace", "ByUser"]));
    }
    let at = path.child("priorityLevelConfiguration").child("name");
    match spec.dig(&["priorityLevelConfiguration", "name"]).text() {
        "" => errors.push(Error::required(&at, "must reference a priority level")),
        name => complaints(errors, &at, name, names::dns1123_subdomain(name)),
    }
    for (index, rule) in spec.at("rules").items().enumerate() {
        rules(errors, rule, &path.child("rules").index(index));
    }
    conditions(errors, root);
}

fn rules(errors: &mut Errors, rule: Node<'_>, path: &Path) {
    if rule.at("subjects").is_empty() {
        errors.push(Error::required(&path.child("subjects"), "subjects must contain at least one value"));
    }
    for (index, one) in rule.at("subjects").items().enumerate() {
        subject(errors, one, &path.child("subjects").index(index));
    }
    if rule.at("resourceRules").is_empty() && rule.at("nonResourceRules").is_empty() {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(Error::required(path, detail));
    }
    for (index, one) in rule.at("resourceRules").items().enumerate() {
        resource_rule(errors, one, &path.child("resourceRules").index(index));
    }
    for (index, one) in rule.at("nonResourceRules").items().enumerate() {
        url_rule(errors, one, &path.child("nonResourceRules").index(index));
    }
}

fn subject(errors: &mut Errors, subject: Node<'_>, path: &Path) {
    const KINDS: [(&str, &str); 3] =
        [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = subject.at("kind").text();
    let Some((_, field)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        let at = path.child("kind");
        errors.push(Error::not_supported(&at, kind, &["Group", "ServiceAccount", "User"]));
        return;
    };
    let (value, at) = (subject.at(field), path.child(field));
    if !value.exists() {
        errors.push(Error::required(&at, format!("{field} is required when subject kind is '{kind}'")));
    } else {
        match value.at("name").text() {
            "" => errors.push(Error::required(&at.child("name"), "")),
            name if kind == "ServiceAccount" && name != "*" => {
                complaints(errors, &at.child("name"), name, names::dns1123_subdomain(name));
            }
            _ => {}
        }
        if kind == "ServiceAccount" {
            match value.at("namespace").text() {
                "" => errors.push(Error::required(
                    &at.child("namespace"),
                    "must specify namespace for service account",
                )),
                name => complaints(errors, &at.child("namespace"), name, names::dns1123_label(name)),
            }
        }
    }
    // In upstream's order: the account comes before the others, the user before the group.
    for (other, field) in KINDS.iter().filter(|(other, _)| *other != kind) {
        if subject.at(field).exists() {
            let detail = format!("{field} is forbidden when subject kind is not '{other}'");
            errors.push(Error::forbidden(&path.child(field), detail));
        }
    }
}

fn verbs(errors: &mut Errors, rule: Node<'_>, path: &Path) {
    let (verbs, at) = (rule.at("verbs").texts(), path.child("verbs"));
    if verbs.is_empty() {
        errors.push(Error::required(&at, "verbs must contain at least one value"));
    } else if verbs.contains(&"*") {
        alone(errors, rule.at("verbs"), &at, "verbs");
    } else if verbs.iter().any(|verb| !VERBS.contains(verb)) {
        errors.push(Error::not_supported(&at, rule.at("verbs").value(), &VERBS));
    }
}

/// Complains about a star that does not stand alone.
fn alone(errors: &mut Errors, list: Node<'_>, path: &Path, what: &str) {
    if list.len() > 1 && list.texts().contains(&"*") {
        let detail = format!("if '*' is present, must not specify other {what}");
        errors.push(Error::invalid(path, list.value(), detail));
    }
}

fn resource_rule(errors: &mut Errors, rule: Node<'_>, path: &Path) {
    verbs(errors, rule, path);
    for (field, what, plural) in
        [("apiGroups", "api group", "api groups"), ("resources", "resource", "resources")]
    {
        let at = path.child(field);
        if rule.at(field).is_empty() {
            let detail = format!("resource rules must supply at least one {what}");
            errors.push(Error::required(&at, detail));
        }
        alone(errors, rule.at(field), &at, plural);
    }
    let (namespaces, at) = (rule.at("namespaces"), path.child("namespaces"));
    if namespaces.is_empty() && !rule.at("clusterScope").flag() {
        let detail = "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(Error::required(&at, detail));
    } else if namespaces.texts().contains(&"*") {
        alone(errors, namespaces, &at, "namespaces");
    } else {
        for (index, name) in namespaces.texts().into_iter().enumerate() {
            for problem in names::dns1123_label(name) {
                let detail = format!("each member of this list must be '*' or a DNS-1123 label; {problem}");
                errors.push(Error::invalid(&at.index(index), name, detail));
            }
        }
    }
}

fn url_rule(errors: &mut Errors, rule: Node<'_>, path: &Path) {
    verbs(errors, rule, path);
    let (urls, at) = (rule.at("nonResourceURLs"), path.child("nonResourceURLs"));
    if urls.is_empty() {
        errors.push(Error::required(&at, "nonResourceURLs must contain at least one value"));
    } else if urls.texts().contains(&"*") {
        alone(errors, urls, &at, "non-resource URLs");
    } else {
        for (index, url) in urls.texts().into_iter().enumerate() {
            let detail = match url {
                "" => "must not be empty",
                "/" => continue,
                url if !url.starts_with('/') => "must start with slash",
                url if url.contains(' ') => "must not contain white-space",
                url if url.contains("//") => "must not contain double slash",
                url if url.matches('*').count() > 1 || url.contains('*') && !url.ends_with("/*") => {
                    "wildcard can only do suffix matching"
                }
                _ => continue,
            };
            errors.push(Error::invalid(&at.index(index), url, detail));
        }
    }
}

pub(super) fn priority_level(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    let (kind, at) = (spec.at("type").text(), path.child("type"));
    if (root.dig(&["metadata", "name"]).text() == "exempt") != (kind == "Exempt") {
        errors.push(Error::invalid(&at, kind, "must be 'Exempt' if and only if `name` is 'exempt'"));
    }
    let (limited, exempt) = (spec.at("limited"), spec.at("exempt"));
    match kind {
        "Exempt" => {
            if limited.exists() {
                let detail = "must be nil if the type is not Limited";
                errors.push(Error::forbidden(&path.child("limited"), detail));
            }
            shares(errors, exempt, &path.child("exempt"));
            lendable(errors, exempt, &path.child("exempt"));
        }
        "Limited" => {
            if exempt.exists() {
                errors.push(Error::forbidden(&path.child("exempt"), "must be nil if the type is Limited"));
            }
            let at = path.child("limited");
            if !limited.exists() {
                errors.push(Error::required(&at, "must not be empty when type is Limited"));
            } else {
                shares(errors, limited, &at);
                limit_response(errors, limited.at("limitResponse"), &at.child("limitResponse"));
                lendable(errors, limited, &at);
                let borrowing = limited.at("borrowingLimitPercent");
                if borrowing.int() < 0 {
                    let detail = "if specified, must be a non-negative integer";
                    errors.push(Error::invalid(&at.child("borrowingLimitPercent"), borrowing.int(), detail));
                }
            }
        }
        "" => errors.push(Error::required(&at, "")),
        other => errors.push(Error::not_supported(&at, other, &["Exempt", "Limited"])),
    }
    conditions(errors, root);
}

fn shares(errors: &mut Errors, owner: Node<'_>, path: &Path) {
    let shares = owner.at("nominalConcurrencyShares").int();
    if shares < 0 {
        let at = path.child("nominalConcurrencyShares");
        errors.push(Error::invalid(&at, shares, "must be a non-negative integer"));
    }
}

fn lendable(errors: &mut Errors, owner: Node<'_>, path: &Path) {
    let percent = owner.at("lendablePercent").int();
    if !(0..=100).contains(&percent) {
        let at = path.child("lendablePercent");
        errors.push(Error::invalid(&at, percent, "must be between 0 and 100, inclusive"));
    }
}

fn limit_response(errors: &mut Errors, response: Node<'_>, path: &Path) {
    let (queuing, at) = (response.at("queuing"), path.child("queuing"));
    match response.at("type").text() {
        "Reject" if queuing.exists() => {
            let detail = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(Error::forbidden(&at, detail));
        }
        "Reject" => {}
        "Queue" if !queuing.exists() => {
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(Error::required(&at, detail));
        }
        "Queue" => queues(errors, queuing, &at),
        "" => errors.push(Error::required(&path.child("type"), "")),
        other => errors.push(Error::not_supported(&path.child("type"), other, &["Queue", "Reject"])),
    }
}

fn queues(errors: &mut Errors, queuing: Node<'_>, path: &Path) {
    let number = |field: &str| queuing.at(field).int();
    let mut wrong =
        |field: &str, detail: String| errors.push(Error::invalid(&path.child(field), number(field), detail));
    if number("queueLengthLimit") <= 0 {
        wrong("queueLengthLimit", "must be positive".to_owned());
    }
    let (queues, hand) = (number("queues"), number("handSize"));
    if queues <= 0 {
        wrong("queues", "must be positive".to_owned());
    } else if queues > MAX_QUEUES {
        wrong("queues", format!("must not be greater than {MAX_QUEUES}"));
    }
    if hand <= 0 {
        wrong("handSize", "must be positive".to_owned());
    } else if hand > queues {
        wrong("handSize", format!("should not be greater than queues ({queues})"));
    } else if ((queues as f64).log2() * hand as f64).ceil() > MAX_HASH_BITS {
        wrong(
            "handSize",
            format!(
                "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {MAX_HASH_BITS}"
            ),
        );
    }
}

/// The status of both kinds: conditions with types, each type once.
pub(super) fn conditions(errors: &mut Errors, root: Node<'_>) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, condition) in root.dig(&["status", "conditions"]).items().enumerate() {
        let at = Path::new("status").child("conditions").index(index).child("type");
        let kind = condition.at("type").text();
        if seen.contains(&kind) {
            errors.push(Error::duplicate(&at, kind));
        }
        seen.insert(kind);
        if kind.is_empty() {
            errors.push(Error::required(&at, ""));
        }
    }
}
