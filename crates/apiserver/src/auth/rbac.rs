//! Role-based access control: rules are compiled once for each change of a role or binding. A decision walks over the few rules
//! of the caller.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use apimachinery::gvk::GroupResource;
use apimachinery::status::Status;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde::Deserialize;
use store::Store;

use super::User;
use super::bounds::{Bounds, Reach};
use super::user::MASTERS;
use crate::head::Head;
use crate::http::RequestInfo;

/// The action that a user requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attributes<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// Set for paths that are not resources.
    pub path: Option<&'a str>,
}

impl<'a> Attributes<'a> {
    pub fn of(info: &'a RequestInfo) -> Self {
        if !info.is_resource {
            return Self { verb: info.verb, path: Some(&info.path), ..Self::default() };
        }
        Self {
            verb: info.verb,
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            path: None,
        }
    }
}

/// One rule of a role.
#[derive(Debug, Clone, Default, Deserialize, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    pub verbs: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
}

impl Rule {
    pub fn allows(&self, wanted: &Attributes<'_>) -> bool {
        if !self.verbs.iter().any(|verb| verb == "*" || verb == wanted.verb) {
            return false;
        }
        if let Some(path) = wanted.path {
            return self
                .urls
                .iter()
                .any(|url| url == path || url.ends_with('*') && path.starts_with(url.trim_end_matches('*')));
        }
        self.api_groups.iter().any(|group| group == "*" || group == wanted.group)
            && self.resources.iter().any(|resource| resource_matches(resource, wanted))
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|name| name == wanted.name))
    }
}

/// `*`, `res`, `res/sub`, `*/sub`.
fn resource_matches(rule: &str, wanted: &Attributes<'_>) -> bool {
    if rule == "*" {
        return true;
    }
    if wanted.subresource.is_empty() {
        // A review may write `pods/exec` as the resource.
        return rule == wanted.resource;
    }
    rule.split_once('/').is_some_and(|(resource, subresource)| {
        subresource == wanted.subresource && (resource == "*" || resource == wanted.resource)
    })
}

/// The collections with rights: changes of other collections cannot change them.
pub(crate) const COLLECTIONS: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];

type Rules = Arc<Vec<Rule>>;

/// What a binding grants to a subject.
#[derive(Debug, Clone)]
struct Grant {
    rules: Rules,
    /// The number of the binding.
    binding: usize,
    /// The binding that grants it, in upstream's words.
    by: Arc<str>,
}

/// Parsed roles by kind (true: ClusterRole) and key, with the revision they were read at.
type ParsedRoles = HashMap<(bool, Box<str>), (u64, Rules)>;

/// The rules of every subject at one revision.
#[derive(Debug, Default)]
struct Compiled {
    revision: u64,
    cluster: HashMap<String, Vec<Grant>>,
    /// By namespace, then by subject.
    namespaced: HashMap<String, HashMap<String, Vec<Grant>>>,
}

/// The authorizer.
#[derive(Default)]
pub struct Rbac {
    /// Bounds for users who must never get more than their own objects.
    bounds: Option<Arc<dyn Bounds>>,
    compiled: ArcSwap<Compiled>,
    /// Parsed roles by collection and name, with the revision at which they were read. The lock also ensures that only one thread
    /// compiles. While it is held, no other lock is taken.
    roles: Mutex<ParsedRoles>,
}

impl std::fmt::Debug for Rbac {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Rbac").field("revision", &self.compiled.load().revision).finish()
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawRole {
    rules: Option<Vec<Rule>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawBinding {
    role_ref: RawRef,
    subjects: Option<Vec<RawSubject>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawRef {
    kind: String,
    name: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawSubject {
    kind: String,
    name: String,
    namespace: String,
}

impl RawSubject {
    fn key(&self, namespace: &str) -> Option<String> {
        match self.kind.as_str() {
            "User" => Some(user_key(&self.name)),
            "Group" => Some(group_key(&self.name)),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() { namespace } else { &self.namespace };
                Some(user_key(&format!("system:serviceaccount:{namespace}:{}", self.name)))
            }
            _ => None,
        }
    }

    /// Returns the subject as it appears in reasons.
    fn described(&self, namespace: &str) -> String {
        let namespace = if self.namespace.is_empty() { namespace } else { &self.namespace };
        match self.kind.as_str() {
            "ServiceAccount" => format!("ServiceAccount {:?}", format!("{}/{namespace}", self.name)),
            kind => format!("{kind} {:?}", self.name),
        }
    }
}

impl RawBinding {
    /// Returns each subject with the rights that the binding called `title` grants to it.
    fn grants<'a>(
        &'a self,
        number: usize,
        title: &'a str,
        namespace: &'a str,
        rules: &'a Rules,
    ) -> impl Iterator<Item = (String, Grant)> + 'a {
        self.subjects.iter().flatten().filter_map(move |subject| {
            let role = format!("{} {:?}", self.role_ref.kind, self.role_ref.name);
            let by = format!("{title} of {role} to {}", subject.described(namespace));
            Some((subject.key(namespace)?, Grant { rules: rules.clone(), binding: number, by: by.into() }))
        })
    }
}

fn user_key(name: &str) -> String {
    format!("u:{name}")
}

fn group_key(name: &str) -> String {
    format!("g:{name}")
}

impl Rbac {
    /// Returns an authorizer whose roles grant nothing beyond these bounds.
    pub fn within(bounds: Option<Arc<dyn Bounds>>) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Reads the latest roles and bindings. Returns whether anything was new. It checks only the collections with rights, so that
    /// a refusal costs the same however busy the rest of the store is.
    pub fn catch_up(&self, store: &Store<Head>) -> bool {
        let behind = || self.compiled.load().revision < store.last_change(COLLECTIONS);
        if !behind() {
            return false;
        }
        let mut roles = self.roles.lock();
        // Another thread may have compiled while this one waited for the lock. There were changes all the same.
        if behind() {
            self.compile(store, &mut roles);
        }
        true
    }

    /// Compiles the roles and bindings as they are now.
    fn compile(&self, store: &Store<Head>, known: &mut ParsedRoles) {
        let snapshots = store.snapshots(COLLECTIONS);
        let [cluster_roles, roles, cluster_bindings, bindings] = snapshots.as_slice() else { return };
        let mut next = ParsedRoles::new();
        for (cluster, snapshot) in [(true, cluster_roles), (false, roles)] {
            for entry in snapshot.iter() {
                let key = (cluster, entry.name.clone());
                let parsed = known.get(&key).filter(|(read, _)| *read == entry.modified).cloned();
                let rules = parsed.unwrap_or_else(|| {
                    let role: RawRole = serde_json::from_slice(&entry.value).unwrap_or_default();
                    (entry.modified, Arc::new(role.rules.unwrap_or_default()))
                });
                next.insert(key, rules);
            }
        }
        let mut compiled = Compiled { revision: cluster_roles.revision(), ..Compiled::default() };
        let numbered = (0..).zip(cluster_bindings.iter().chain(bindings.iter()));
        for (number, entry) in numbered {
            let binding: RawBinding = serde_json::from_slice(&entry.value).unwrap_or_default();
            let is_cluster_wide = number < cluster_bindings.len();
            let (namespace, name) =
                if is_cluster_wide { ("", &*entry.name) } else { crate::object::split_key(&entry.name) };
            let key = if is_cluster_wide || binding.role_ref.kind == "ClusterRole" {
                (true, binding.role_ref.name.clone())
            } else {
                (false, crate::object::join_key(namespace, &binding.role_ref.name))
            };
            let Some((_, rules)) = next.get(&key) else { continue };
            let title = if is_cluster_wide {
                format!("ClusterRoleBinding {name:?}")
            } else {
                format!("RoleBinding {:?}", format!("{name}/{namespace}"))
            };
            let here = if is_cluster_wide {
                &mut compiled.cluster
            } else {
                compiled.namespaced.entry(namespace.to_owned()).or_default()
            };
            for (subject, grant) in binding.grants(number, &title, namespace, rules) {
                here.entry(subject).or_default().push(grant);
            }
        }
        *known = next;
        self.compiled.store(Arc::new(compiled));
    }

    /// Returns whether the user may do this.
    pub fn allows(&self, user: &User, wanted: &Attributes<'_>) -> bool {
        self.decide(user, wanted).is_ok()
    }

    /// Returns the reach of the user's right, or a reason for the refusal, which is empty where roles decide.
    fn decide(&self, user: &User, wanted: &Attributes<'_>) -> Result<Reach, String> {
        let compiled = self.compiled.load();
        let roles = |wanted: &Attributes<'_>| compiled.allows(user, wanted);
        if let Some(decided) = self.bounds.as_ref().and_then(|bounds| bounds.bound(user, wanted, &roles)) {
            return decided;
        }
        if user.in_group(MASTERS) || roles(wanted) { Ok(Reach::Asked) } else { Err(String::new()) }
    }

    /// Returns the 403 if the user may not do this. Before it refuses, it reads the latest roles, so that a permission takes
    /// effect as soon as its binding is acknowledged.
    pub fn check(&self, store: &Store<Head>, user: &User, wanted: &Attributes<'_>) -> Result<(), Status> {
        self.reach(store, user, wanted).map(drop)
    }

    /// As [`Rbac::check`], but returns the reach of the right.
    pub fn reach(&self, store: &Store<Head>, user: &User, wanted: &Attributes<'_>) -> Result<Reach, Status> {
        let mut decided = self.decide(user, wanted);
        if decided.is_err() && self.catch_up(store) {
            decided = self.decide(user, wanted);
        }
        decided.map_err(|reason| forbidden(user, wanted, &reason))
    }

    /// Returns all rules of a user in a namespace (or cluster-wide, if it is empty). A binding that names the user several times
    /// counts once.
    pub fn rules_of(&self, user: &User, namespace: &str) -> Vec<Rule> {
        self.held(user, namespace).iter().flat_map(|rules| rules.iter().cloned()).collect()
    }

    /// The same role by role, without copies of the rules.
    pub(super) fn held(&self, user: &User, namespace: &str) -> Vec<Rules> {
        let compiled = self.compiled.load();
        let mut seen = HashSet::new();
        let grants = compiled.of(user, namespace).filter(|grant| seen.insert(grant.binding));
        grants.map(|grant| grant.rules.clone()).collect()
    }

    /// Returns why a user may do what [`Rbac::check`] allows; empty for users who may do everything.
    pub fn reason(&self, user: &User, wanted: &Attributes<'_>) -> String {
        if user.in_group(MASTERS) {
            return String::new();
        }
        let compiled = self.compiled.load();
        let by = compiled.granting(user, wanted).map(|grant| grant.by.clone());
        by.map(|by| format!("RBAC: allowed by {by}")).unwrap_or_default()
    }

    /// Returns the rules of a role.
    pub fn role(&self, cluster: bool, key: &str) -> Option<Rules> {
        self.roles.lock().get(&(cluster, key.into())).map(|(_, rules)| rules.clone())
    }
}

impl Compiled {
    fn of<'a>(&'a self, user: &'a User, namespace: &'a str) -> impl Iterator<Item = &'a Grant> {
        let everywhere = [Some(&self.cluster), self.namespaced.get(namespace)];
        everywhere.into_iter().flatten().flat_map(move |subjects| {
            let keys =
                std::iter::once(user_key(&user.name)).chain(user.groups.iter().map(|group| group_key(group)));
            keys.filter_map(|key| subjects.get(&key)).flatten()
        })
    }

    fn allows(&self, user: &User, wanted: &Attributes<'_>) -> bool {
        self.granting(user, wanted).is_some()
    }

    fn granting<'a>(&'a self, user: &'a User, wanted: &'a Attributes<'_>) -> Option<&'a Grant> {
        self.of(user, wanted.namespace).find(|grant| grant.rules.iter().any(|rule| rule.allows(wanted)))
    }
}

/// The 403 in upstream's words, with an additional reason if there is one.
pub fn forbidden(user: &User, wanted: &Attributes<'_>, reason: &str) -> Status {
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    if let Some(path) = wanted.path {
        let message = format!("forbidden: User {:?} cannot {} path {path:?}{reason}", user.name, wanted.verb);
        return Status::new(403, "Forbidden", message).with_details(Default::default());
    }
    let resource = if wanted.subresource.is_empty() {
        wanted.resource.to_owned()
    } else {
        format!("{}/{}", wanted.resource, wanted.subresource)
    };
    let scope = if wanted.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", wanted.namespace)
    };
    let why = format!(
        "User {:?} cannot {} resource {resource:?} in API group {:?} {scope}{reason}",
        user.name, wanted.verb, wanted.group
    );
    Status::forbidden(&GroupResource::new(wanted.group, wanted.resource), wanted.name, &why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Rule {
            verbs: own(verbs),
            api_groups: own(groups),
            resources: own(resources),
            resource_names: own(names),
            urls: vec![],
        }
    }

    fn wanted<'a>(
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        subresource: &'a str,
        name: &'a str,
    ) -> Attributes<'a> {
        Attributes { verb, group, resource, subresource, name, ..Attributes::default() }
    }

    async fn write(store: &Store<Head>, collection: &str, name: &str, value: &str) {
        let write = store::Write {
            collection: collection.into(),
            name: name.into(),
            expect: store::Expect::Any,
            change: store::Change::Put { value: value.as_bytes().to_vec().into(), head: Head::default() },
            durability: store::Durability::Buffered,
            ttl: None,
        };
        store.commit(write).await.expect("a write to memory");
    }

    #[tokio::test]
    async fn finding_14_a_refusal_compiles_nothing_unless_a_role_or_binding_changed() {
        let store = Store::open(store::Options::memory()).expect("a store in memory");
        let rbac = Rbac::default();
        let user = User { name: "jane".to_owned(), ..User::default() };
        let wanted = wanted("get", "", "secrets", "", "s");
        assert!(!rbac.catch_up(&store), "an empty store has no rights to learn");
        write(
            &store,
            "clusterroles",
            "reader",
            r#"{"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]}"#,
        )
        .await;
        rbac.check(&store, &user, &wanted).expect_err("no binding yet");
        let compiled = rbac.compiled.load_full();
        for number in 0..3 {
            write(&store, "configmaps", &format!("default/{number}"), "{}").await;
            rbac.check(&store, &user, &wanted).expect_err("still no binding");
        }
        assert!(Arc::ptr_eq(&compiled, &rbac.compiled.load_full()), "a ConfigMap gives nobody a right");
        let binding = r#"{"roleRef": {"kind": "ClusterRole", "name": "reader"}, "subjects": [{"kind": "User", "name": "jane"}]}"#;
        write(&store, "clusterrolebindings", "jane", binding).await;
        rbac.check(&store, &user, &wanted).expect("a right holds as soon as its binding is written");
        store.close().await;
    }

    #[test]
    fn a_subresource_needs_its_own_rule() {
        let pods = rule(&["get"], &[""], &["pods"], &[]);
        assert!(pods.allows(&wanted("get", "", "pods", "", "a")));
        assert!(!pods.allows(&wanted("get", "", "pods", "log", "a")));
        assert!(rule(&["get"], &[""], &["pods/log"], &[]).allows(&wanted("get", "", "pods", "log", "a")));
        assert!(rule(&["get"], &[""], &["*/log"], &[]).allows(&wanted("get", "", "pods", "log", "a")));
        assert!(rule(&["*"], &["*"], &["*"], &[]).allows(&wanted("get", "x", "pods", "log", "a")));
    }

    #[test]
    fn resource_names_restrict() {
        let one = rule(&["get"], &[""], &["secrets"], &["a"]);
        assert!(one.allows(&wanted("get", "", "secrets", "", "a")));
        assert!(!one.allows(&wanted("get", "", "secrets", "", "b")));
        assert!(!one.allows(&wanted("get", "", "secrets", "", "")));
    }

    #[test]
    fn urls_match_by_prefix_only_with_a_star() {
        let rule = Rule {
            verbs: vec!["get".into()],
            urls: vec!["/healthz".into(), "/api/*".into()],
            ..Rule::default()
        };
        let path = |path| Attributes { verb: "get", path: Some(path), ..Attributes::default() };
        assert!(rule.allows(&path("/healthz")));
        assert!(!rule.allows(&path("/healthz/x")));
        assert!(rule.allows(&path("/api/v1")));
    }

    #[test]
    fn refusals_read_as_upstream() {
        let user = User { name: "u".into(), ..User::default() };
        let mut attributes = wanted("get", "apps", "deployments", "scale", "d");
        attributes.namespace = "ns";
        assert_eq!(
            forbidden(&user, &attributes, "").message,
            r#"deployments.apps "d" is forbidden: User "u" cannot get resource "deployments/scale" in API group "apps" in the namespace "ns""#
        );
    }
}
