//! Names of kinds and resources: group, version, kind; group, version, resource.

use std::fmt;

use crate::names;

/// A kind in one version of an API group; the core group is the empty string.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    pub group: String,
    pub version: String,
    pub kind: String,
}

impl Gvk {
    pub fn new(group: impl Into<String>, version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// Returns the kind named by an object's `apiVersion` and `kind`; a malformed apiVersion with more than one
    /// slash keeps everything after the first slash as the version, as Kubernetes' own lenient parser does not:
    /// callers that must refuse it compare with [`Gvk::api_version`].
    pub fn from_api_version(api_version: &str, kind: &str) -> Self {
        match api_version.split_once('/') {
            Some((group, version)) => Self::new(group, version, kind),
            None => Self::new("", api_version, kind),
        }
    }

    /// Returns whether group and version are names that a server could serve.
    ///
    /// A client that looks for a kind writes both into a path as they are. Users write them into objects, so that one called
    /// `v1/secrets?watch=true` would have the control plane read something else, with its own rights and without end.
    pub fn is_plain(&self) -> bool {
        let plain = |text: &str| names::dns1123_subdomain(text).is_empty();
        (self.group.is_empty() || plain(&self.group)) && plain(&self.version)
    }

    /// Returns `v1` for the core group, `group/version` otherwise.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// As Go prints it in error messages: `apps/v1, Kind=Deployment`.
impl fmt::Display for Gvk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

/// A resource (plural) of an API group, as error messages name it: `deployments.apps`, `pods`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    pub group: String,
    pub resource: String,
}

impl GroupResource {
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { group: group.into(), resource: resource.into() }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            out.write_str(&self.resource)
        } else {
            write!(out, "{}.{}", self.resource, self.group)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_server_serves_is_not_plain() {
        for served in ["v1", "apps/v1", "work.karmada.io/v1alpha2"] {
            assert!(Gvk::from_api_version(served, "K").is_plain(), "{served}");
        }
        let malformed = ["", "/", "apps/", "/v1/secrets", "../v1", "v1%2fpods"];
        for odd in malformed.into_iter().chain(["apps/v1/deployments?watch=true", "apps/v1?a=b"]) {
            assert!(!Gvk::from_api_version(odd, "K").is_plain(), "{odd}");
        }
    }
}
