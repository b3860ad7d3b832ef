//! Roles and their bindings. Whether somebody may grant what they grant is the authorizer's question.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

use super::check::{self, complaints};
use super::node::{Node, same};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn role(errors: &mut Errors, root: Node<'_>, namespaced: bool) {
    for (index, rule) in root.at("rules").items().enumerate() {
        policy_rule(errors, rule, namespaced, &Path::new("rules").index(index));
    }
    let (aggregation, path) = (root.at("aggregationRule"), Path::new("aggregationRule"));
    if aggregation.exists() {
        let (selectors, at) = (aggregation.at("clusterRoleSelectors"), path.child("clusterRoleSelectors"));
        if selectors.is_empty() {
            let text = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.push(Error::required(&at, text));
        }
        for (index, selector) in selectors.items().enumerate() {
            check::selector(errors, &at.index(index), selector);
        }
    }
}

fn policy_rule(errors: &mut Errors, rule: Node<'_>, namespaced: bool, path: &Path) {
    if rule.at("verbs").is_empty() {
        errors.push(Error::required(&path.child("verbs"), "verbs must contain at least one value"));
    }
    let urls = rule.at("nonResourceURLs");
    if !urls.is_empty() {
        let at = path.child("nonResourceURLs");
        if namespaced {
            let text = "namespaced rules cannot apply to non-resource URLs";
            errors.push(Error::invalid(&at, urls.value(), text));
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !rule.at(field).is_empty()) {
            let text = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(Error::invalid(&at, urls.value(), text));
        }
        return;
    }
    if rule.at("apiGroups").is_empty() {
        let text = "resource rules must supply at least one api group";
        errors.push(Error::required(&path.child("apiGroups"), text));
    }
    if rule.at("resources").is_empty() {
        let text = "resource rules must supply at least one resource";
        errors.push(Error::required(&path.child("resources"), text));
    }
}

pub(super) fn binding(errors: &mut Errors, root: Node<'_>, namespaced: bool) {
    let (role, path) = (root.at("roleRef"), Path::new("roleRef"));
    let group = role.at("apiGroup").text();
    if group != GROUP {
        errors.push(Error::not_supported(&path.child("apiGroup"), group, &[GROUP]));
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    let kind = role.at("kind").text();
    if !kinds.contains(&kind) {
        errors.push(Error::not_supported(&path.child("kind"), kind, kinds));
    }
    let name = role.at("name").text();
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    } else {
        complaints(errors, &path.child("name"), name, names::path_segment(name));
    }
    for (index, subject) in root.at("subjects").items().enumerate() {
        binding_subject(errors, subject, namespaced, &Path::new("subjects").index(index));
    }
}

fn binding_subject(errors: &mut Errors, subject: Node<'_>, namespaced: bool, path: &Path) {
    let (name, group) = (subject.at("name").text(), subject.at("apiGroup").text());
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    }
    match subject.at("kind").text() {
        "ServiceAccount" => {
            if !name.is_empty() {
                complaints(errors, &path.child("name"), name, names::dns1123_subdomain(name));
            }
            if !group.is_empty() {
                errors.push(Error::not_supported(&path.child("apiGroup"), group, &[""]));
            }
            if !namespaced && subject.at("namespace").is_empty() {
                errors.push(Error::required(&path.child("namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.push(Error::not_supported(&path.child("apiGroup"), group, &[GROUP]));
            }
        }
        kind => {
            errors.push(Error::not_supported(
                &path.child("kind"),
                kind,
                &["ServiceAccount", "User", "Group"],
            ));
        }
    }
}

pub(super) fn binding_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    if !same(new.at("roleRef"), old.at("roleRef")) {
        errors.push(Error::invalid(
            &Path::new("roleRef"),
            new.at("roleRef").value(),
            "cannot change roleRef",
        ));
    }
}
