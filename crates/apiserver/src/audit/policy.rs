//! Audit policies: the first rule that matches a request decides in how much detail it is recorded.

use serde::Deserialize;

use crate::auth::User;
use crate::http::RequestInfo;

/// How much of a request is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) enum Level {
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// When an event is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Policy {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: serde_json::Value,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<Resources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    paths: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Resources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// The decision of a policy about a request.
#[derive(Debug, Clone)]
pub(super) struct Decision {
    pub(super) level: Level,
    pub(super) omit_managed_fields: bool,
    omit_stages: Vec<Stage>,
}

impl Decision {
    pub(super) fn omits(&self, stage: Stage) -> bool {
        self.omit_stages.contains(&stage)
    }
}

impl Policy {
    /// Returns the default policy: who did what to what, once for each request.
    pub(super) fn metadata() -> Self {
        let text = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: Metadata}]}";
        Self::parse(text).expect("the built-in policy is valid")
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let policy: Self = apimachinery::yaml::from_str(text).map_err(|error| error.to_string())?;
        if policy.kind != "Policy" || policy.api_version != "audit.k8s.io/v1" {
            return Err(format!(
                "expected apiVersion audit.k8s.io/v1 and kind Policy, not {:?} and {:?}",
                policy.api_version, policy.kind
            ));
        }
        if policy.rules.is_empty() {
            return Err("it has no rules: nothing would be recorded".to_owned());
        }
        for (index, rule) in policy.rules.iter().enumerate() {
            let about_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
            if about_resources && !rule.paths.is_empty() {
                return Err(format!(
                    "rules[{index}]: rules cannot apply to both regular resources and non-resource URLs"
                ));
            }
            if let Some(path) = rule.paths.iter().find(|path| !is_valid_pattern(path)) {
                return Err(format!(
                    "rules[{index}].nonResourceURLs: {path:?} must be \"*\" or begin with \"/\", with \"*\" at its end only"
                ));
            }
            for resources in &rule.resources {
                if !resources.resource_names.is_empty() && resources.resources.is_empty() {
                    return Err(format!(
                        "rules[{index}].resources: using resourceNames requires at least one resource"
                    ));
                }
            }
        }
        Ok(policy)
    }

    pub(super) fn decide(&self, user: &User, info: &RequestInfo) -> Decision {
        let Some(rule) = self.rules.iter().find(|rule| rule.fits(user, info)) else {
            return Decision { level: Level::None, omit_managed_fields: false, omit_stages: Vec::new() };
        };
        Decision {
            level: rule.level,
            omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
            omit_stages: self.omit_stages.iter().chain(&rule.omit_stages).copied().collect(),
        }
    }
}

fn is_valid_pattern(path: &str) -> bool {
    path == "*" || (path.starts_with('/') && !path.strip_suffix('*').unwrap_or(path).contains('*'))
}

impl Rule {
    fn fits(&self, user: &User, info: &RequestInfo) -> bool {
        let named = |list: &[String], text: &str| list.is_empty() || list.iter().any(|each| each == text);
        let groups = self.user_groups.is_empty() || self.user_groups.iter().any(|group| user.in_group(group));
        if !named(&self.users, &user.name) || !groups || !named(&self.verbs, info.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            // The namespace "" stands for resources without a namespace.
            return info.is_resource
                && named(&self.namespaces, &info.namespace)
                && (self.resources.is_empty() || self.resources.iter().any(|each| each.fit(info)));
        }
        if !self.paths.is_empty() {
            return !info.is_resource
                && self.paths.iter().any(|pattern| match pattern.strip_suffix('*') {
                    Some(start) => info.path.starts_with(start),
                    None => info.path == *pattern,
                });
        }
        true
    }
}

impl Resources {
    fn fit(&self, info: &RequestInfo) -> bool {
        if self.group != info.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let whole = info.full_resource();
        let named = self.resource_names.is_empty() || self.resource_names.contains(&info.name);
        named
            && self.resources.iter().any(|pattern| {
                *pattern == whole
                    || pattern == "*"
                    || match (pattern.strip_suffix("/*"), pattern.strip_prefix("*/")) {
                        (Some(resource), _) => resource == info.resource,
                        (_, Some(subresource)) => subresource == info.subresource,
                        _ => false,
                    }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Query;
    use http::Method;

    fn level(policy: &Policy, user: &User, method: Method, path: &str) -> Level {
        policy.decide(user, &RequestInfo::parse(&method, path, &Query::default())).level
    }

    #[test]
    fn finding_28_only_the_end_of_a_path_may_be_a_star_whatever_letters_it_has() {
        for path in ["*", "/", "/*", "/healthz*", "/größe/é", "/é*"] {
            assert!(is_valid_pattern(path), "{path}");
        }
        for path in ["", "healthz", "/*/é", "/a*b", "/**"] {
            assert!(!is_valid_pattern(path), "{path}");
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = Policy::parse(
            "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [system:kube-proxy]
- level: None
  nonResourceURLs: [/healthz*, /version]
- level: Metadata
  resources: [{group: '', resources: [secrets, configmaps]}]
- level: RequestResponse
  resources: [{group: apps, resources: [deployments/*], resourceNames: [web]}]
- level: Request
  namespaces: [team]
- level: Metadata
  userGroups: [ops]
",
        )
        .unwrap();
        let user = User { name: "eve".to_owned(), ..User::default() };
        let level_of = |method, path: &str| level(&policy, &user, method, path);
        assert_eq!(level_of(Method::GET, "/healthz/ping"), Level::None);
        assert_eq!(level_of(Method::GET, "/api/v1/namespaces/team/secrets/x"), Level::Metadata);
        assert_eq!(
            level_of(Method::PATCH, "/apis/apps/v1/namespaces/a/deployments/web/scale"),
            Level::RequestResponse
        );
        assert_eq!(level_of(Method::PATCH, "/apis/apps/v1/namespaces/a/deployments/db/scale"), Level::None);
        assert_eq!(level_of(Method::GET, "/api/v1/namespaces/team/pods"), Level::Request);
        assert_eq!(level_of(Method::GET, "/api/v1/namespaces/else/pods"), Level::None);
        let operator = User { groups: vec!["ops".to_owned()], ..user.clone() };
        assert_eq!(level(&policy, &operator, Method::GET, "/metrics"), Level::Metadata);
        let proxy = User { name: "system:kube-proxy".to_owned(), ..operator };
        assert_eq!(level(&policy, &proxy, Method::GET, "/metrics"), Level::None);
    }

    #[test]
    fn a_mistake_is_named() {
        let refused = |text: &str| Policy::parse(text).unwrap_err();
        assert!(
            refused("{apiVersion: v1, kind: Policy, rules: [{level: None}]}").contains("audit.k8s.io/v1")
        );
        assert!(refused("{apiVersion: audit.k8s.io/v1, kind: Policy}").contains("no rules"));
        assert!(
            refused("{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Loud}]}").contains("Loud")
        );
        let both = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None, namespaces: [a], nonResourceURLs: [/x]}]}";
        assert!(refused(both).contains("both regular resources and non-resource URLs"));
        let star =
            "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None, nonResourceURLs: ['/a*b']}]}";
        assert!(refused(star).contains("nonResourceURLs"));
    }
}
