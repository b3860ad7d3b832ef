//! What policies skip: kinds of the control plane itself, and system namespaces. Dependencies of a template
//! are propagated with it all the same, as upstream.

use api::constants::{
    EXTENSION_APISERVER_AUTHENTICATION, NAMESPACE_KUBE_SYSTEM, SKIPPED_API_GROUPS, SKIPPED_API_VERSIONS,
    is_reserved_namespace,
};
use apimachinery::gvk::Gvk;
use regex::Regex;
use serde_json::Value;

use crate::{Error, Object, Result};

/// The rules, from the built-in list and the two flags.
#[derive(Debug, Clone)]
pub struct SkipRules {
    groups: Vec<String>,
    versions: Vec<(String, String)>,
    kinds: Vec<Gvk>,
    namespaces: Vec<Regex>,
}

/// Namespaces whose objects are not propagated by default.
pub const SKIPPED_NAMESPACES: &str = "kube-.*";

impl SkipRules {
    /// Returns the default rules.
    pub fn with_defaults() -> Self {
        Self::new("", [SKIPPED_NAMESPACES]).expect("the built-in rules are valid")
    }

    /// Parses `--skipped-propagating-apis` and `--skipped-propagating-namespaces`.
    ///
    /// `apis` is separated by semicolons: `group`, `group/version`, `group/version/Kind,Kind`, and for the core
    /// group `v1/Kind,Kind`. Namespace patterns are anchored on both sides.
    pub fn new<'a>(apis: &str, namespaces: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let mut rules = Self {
            groups: SKIPPED_API_GROUPS.iter().map(|group| (*group).to_owned()).collect(),
            versions: SKIPPED_API_VERSIONS
                .iter()
                .filter_map(|version| version.split_once('/'))
                .map(|(group, version)| (group.to_owned(), version.to_owned()))
                .collect(),
            kinds: vec![Gvk::new("", "v1", "Event")],
            namespaces: Vec::new(),
        };
        for token in apis.split(';').filter(|token| !token.is_empty()) {
            rules.add(token)?;
        }
        for pattern in namespaces {
            let regex = Regex::new(&format!("^{pattern}$"))
                .map_err(|_| Error::NamespacePattern { pattern: pattern.to_owned() })?;
            rules.namespaces.push(regex);
        }
        Ok(rules)
    }

    fn add(&mut self, token: &str) -> Result<()> {
        let parts: Vec<&str> = token.split('/').collect();
        match parts.as_slice() {
            [group] => self.groups.push((*group).to_owned()),
            [version, kinds] if token.starts_with("v1") => self.add_kinds("", version, kinds),
            [group, version] => self.versions.push(((*group).to_owned(), (*version).to_owned())),
            [group, version, kinds] => self.add_kinds(group, version, kinds),
            _ => return Err(Error::SkippedApi { token: token.to_owned() }),
        }
        Ok(())
    }

    fn add_kinds(&mut self, group: &str, version: &str, kinds: &str) {
        self.kinds.extend(kinds.split(',').map(|kind| Gvk::new(group, version, kind)));
    }

    /// Returns whether objects of this kind are never templates.
    pub fn skips_kind(&self, kind: &Gvk) -> bool {
        self.groups.contains(&kind.group)
            || self.versions.iter().any(|(group, version)| *group == kind.group && *version == kind.version)
            || self.kinds.contains(kind)
    }

    /// Returns whether nothing in this namespace is a template. Cluster-scoped objects have none and pass.
    pub fn skips_namespace(&self, namespace: &str) -> bool {
        !namespace.is_empty()
            && (is_reserved_namespace(namespace)
                || self.namespaces.iter().any(|pattern| pattern.is_match(namespace)))
    }

    /// Returns whether the object is never a template.
    pub fn skips(&self, object: &Value) -> bool {
        self.skips_namespace(object.namespace())
            || self.skips_kind(&object.gvk())
            || (object.namespace() == NAMESPACE_KUBE_SYSTEM
                && object.kind() == "ConfigMap"
                && object.api_version() == "v1"
                && object.name() == EXTENSION_APISERVER_AUTHENTICATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(apis: &str) -> SkipRules {
        SkipRules::new(apis, ["kube-.*"]).expect("valid flags")
    }

    #[test]
    fn the_control_planes_own_kinds_are_skipped() {
        let rules = rules("");
        for kind in [
            Gvk::new("policy.karmada.io", "v1alpha1", "PropagationPolicy"),
            Gvk::new("", "v1", "Event"),
            Gvk::new("events.k8s.io", "v1", "Event"),
            Gvk::new("coordination.k8s.io", "v1", "Lease"),
        ] {
            assert!(rules.skips_kind(&kind), "{kind}");
        }
        for kind in [
            Gvk::new("search.karmada.io", "v1alpha1", "ResourceRegistry"),
            Gvk::new("multicluster.x-k8s.io", "v1alpha1", "ServiceImport"),
            Gvk::new("apps", "v1", "Deployment"),
        ] {
            assert!(!rules.skips_kind(&kind), "{kind}");
        }
    }

    #[test]
    fn the_flag_names_groups_versions_and_kinds() {
        let rules = rules("example.io;batch/v1;apps/v1/Deployment,DaemonSet;v1/Pod,Secret");
        assert!(rules.skips_kind(&Gvk::new("example.io", "v9", "Any")));
        assert!(rules.skips_kind(&Gvk::new("batch", "v1", "Job")));
        assert!(!rules.skips_kind(&Gvk::new("batch", "v1beta1", "CronJob")));
        assert!(rules.skips_kind(&Gvk::new("apps", "v1", "DaemonSet")));
        assert!(!rules.skips_kind(&Gvk::new("apps", "v1", "StatefulSet")));
        assert!(rules.skips_kind(&Gvk::new("", "v1", "Secret")));
        assert!(!rules.skips_kind(&Gvk::new("", "v1", "secret")));
        assert!(SkipRules::new("a/b/c/d", []).is_err());
        assert!(SkipRules::new("", ["("]).is_err());
    }

    #[test]
    fn namespace_patterns_are_anchored_and_reserved_namespaces_are_always_skipped() {
        let rules = rules("");
        for namespace in ["kube-system", "karmada-system", "karmada-cluster", "karmada-es-m1"] {
            assert!(rules.skips_namespace(namespace), "{namespace}");
        }
        for namespace in ["", "default", "my-kube-system"] {
            assert!(!rules.skips_namespace(namespace), "{namespace}");
        }
    }
}
