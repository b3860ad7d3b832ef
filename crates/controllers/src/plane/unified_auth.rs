//! Lets users of the cluster proxy act in the members under their own names.
//!
//! Watches: Clusters, ClusterRoles and ClusterRoleBindings of the control plane.
//! Writes: two Works per cluster, owned by the Cluster: the ClusterRole and the ClusterRoleBinding
//! `karmada-impersonator`, by which the impersonator's account may impersonate exactly the users that are
//! bound to a role for `clusters/proxy` (or `proxying/proxy` of the search) in the control plane.
//!
//! `unifiedAuth` in `--controllers`. A cluster in push mode without an impersonator's secret is skipped; in
//! pull mode the agent may keep that secret to itself. This file does not decide how the proxy uses it.

#[cfg(test)]
mod on_server;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::cluster::{Cluster, ClusterSyncMode};
use api::constants::NAMESPACE_CLUSTER;
use api::events as reasons;
use api::labels::{SYSTEM, TRUE};
use api::names::IMPERSONATOR_SERVICE_ACCOUNT;
use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Subject};
use kube::runtime::watcher;
use kube::{Api, Resource as _};
use propagation::render::DesiredWork;
use runtime::{Error, Mirror, Outcome, Queue, Reconcile, controller};
use serde_json::{Value, json};

use super::{Plane, Start};
use runtime::events::about;

const WORKERS: usize = 2;
const COMPONENT: &str = "unified-auth-controller";
/// The name of both objects in a member.
const IMPERSONATOR: &str = "karmada-impersonator";

struct Authenticator {
    plane: Arc<Plane>,
    queue: Arc<Queue<String>>,
    roles: Mirror<Reach>,
    bindings: Mirror<Bound>,
}

/// To which clusters a role opens the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    /// These; most roles: none.
    Named(BTreeSet<String>),
    All,
}

/// The subjects of a ClusterRoleBinding and its ClusterRole.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bound {
    role: String,
    subjects: Vec<(String, String)>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let authenticator = subscribed(plane);
    let client = plane.client().clone();
    Box::new(move || {
        let supervisor = authenticator.plane.supervisor.clone();
        let stop = supervisor.token().clone();
        let (seen, api) = (authenticator.clone(), Api::<ClusterRole>::all(client.clone()));
        let stopping = stop.clone();
        supervisor.keep("mirror/clusterroles of proxies", move || {
            let (seen, api, stop) = (seen.clone(), api.clone(), stopping.clone());
            async move { seen.roles.follow(api, watcher::Config::default(), stop, |role| reach(&role)).await }
        });
        let (seen, api) = (authenticator.clone(), Api::<ClusterRoleBinding>::all(client.clone()));
        let stopping = stop.clone();
        supervisor.keep("mirror/clusterrolebindings of proxies", move || {
            let (seen, api, stop) = (seen.clone(), api.clone(), stopping.clone());
            async move { seen.bindings.follow(api, watcher::Config::default(), stop, bound).await }
        });
        let workers = supervisor.clone();
        supervisor.spawn(async move {
            // A subject that has not been seen yet must not lose access.
            let complete =
                async { tokio::join!(authenticator.roles.complete(), authenticator.bindings.complete()) };
            tokio::select! {
                () = stop.cancelled() => return,
                ((), ()) = complete => {}
            }
            controller::run(&authenticator, &authenticator.queue, WORKERS, &workers);
        });
    })
}

fn subscribed(plane: &Arc<Plane>) -> Arc<Authenticator> {
    let authenticator = Arc::new(Authenticator {
        plane: Arc::clone(plane),
        queue: Queue::new(COMPONENT),
        roles: Mirror::default(),
        bindings: Mirror::default(),
    });

    plane.tell_panics_by_name(&authenticator.queue, COMPONENT, &plane.mirrors.clusters);
    let pushed = Arc::clone(&authenticator.queue);
    plane.mirrors.clusters.subscribe(move |change| {
        let Some(new) = &change.new else { return };
        let same = |old: &Arc<Cluster>| {
            old.spec.impersonator_secret_ref == new.spec.impersonator_secret_ref
                && old.metadata.uid == new.metadata.uid
        };
        if !change.old.as_ref().is_some_and(same) {
            pushed.push(change.key.name.clone());
        }
    });

    // If one of our Works is deleted while the cluster still exists, it is created again.
    plane.mirrors.works.subscribe({
        let (pushed, plane) = (Arc::clone(&authenticator.queue), Arc::clone(plane));
        move |change| {
            if let (Some(old), None) = (&change.old, &change.new) {
                let owners = old.metadata.owner_references.iter().flatten();
                for owner in owners.filter(|owner| owner.kind == "Cluster") {
                    plane.bring_back(old, &pushed, owner.name.clone());
                }
            }
        }
    });

    authenticator.roles.subscribe({
        let authenticator = Arc::clone(&authenticator);
        move |change| {
            if change.old != change.new {
                for reach in [&change.old, &change.new].into_iter().flatten() {
                    authenticator.push_reached(reach);
                }
            }
        }
    });
    authenticator.bindings.subscribe({
        let authenticator = Arc::clone(&authenticator);
        move |change| {
            if change.old != change.new {
                for bound in [&change.old, &change.new].into_iter().flatten() {
                    if let Some(reach) = authenticator.roles.get("", &bound.role) {
                        authenticator.push_reached(&reach);
                    }
                }
            }
        }
    });

    authenticator
}

impl Authenticator {
    fn push_reached(&self, reach: &Reach) {
        match reach {
            Reach::Named(names) => names.iter().for_each(|name| self.queue.push(name.clone())),
            Reach::All => {
                for key in self.plane.mirrors.clusters.keys(|_| true) {
                    self.queue.push(key.name);
                }
            }
        }
    }

    /// Returns kind and name of every subject that may use the proxy to a cluster.
    fn subjects(&self, cluster: &str) -> BTreeSet<(String, String)> {
        let reaching = |bound: &Arc<Bound>| match self.roles.get("", &bound.role).as_deref() {
            Some(Reach::All) => true,
            Some(Reach::Named(names)) => names.contains(cluster),
            None => false,
        };
        let bindings = self.bindings.all();
        bindings.iter().filter(|bound| reaching(bound)).flat_map(|bound| bound.subjects.clone()).collect()
    }
}

/// What is known of a cluster and of the subjects that may use the proxy to it.
pub(crate) struct View {
    cluster: Arc<Cluster>,
    /// Kind and name of every such subject.
    subjects: BTreeSet<(String, String)>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    /// The cluster is left alone, for this reason.
    Nothing(&'static str),
    /// These objects exist in the member.
    Bring([Value; 2]),
}

fn decide(view: &View) -> Plan {
    if view.cluster.metadata.deletion_timestamp.is_some() {
        return Plan::Nothing("it leaves");
    }
    match &view.cluster.spec.impersonator_secret_ref {
        // An agent that keeps the impersonator's token to itself uses it for its tunnel.
        None if view.cluster.spec.sync_mode == ClusterSyncMode::Pull => {
            Plan::Bring([role(&impersonation(&view.subjects)), binding(NAMESPACE_CLUSTER)])
        }
        None => Plan::Nothing("it has no impersonator"),
        Some(secret) => Plan::Bring([role(&impersonation(&view.subjects)), binding(&secret.namespace)]),
    }
}

impl Reconcile for Authenticator {
    type Key = String;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, name: &String) -> Result<Option<View>, Error> {
        let cluster = self.plane.mirrors.clusters.get("", name);
        Ok(cluster.map(|cluster| View { subjects: self.subjects(name), cluster }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, name: &String, view: View, plan: Plan) -> Result<Outcome, Error> {
        let Plan::Bring(objects) = plan else { return Ok(Outcome::Done) };
        let result = self.ensure(name, &view.cluster, objects).await;
        let (events, subject) = (&self.plane.events, about(view.cluster.as_ref()));
        match &result {
            Ok(true) => {
                let message = "Sync impersonation config succeed.";
                events.normal(COMPONENT, &subject, reasons::SYNC_IMPERSONATION_CONFIG_SUCCEED, message);
            }
            Err(error) if !error.is_conflict() => {
                let reason = reasons::SYNC_IMPERSONATION_CONFIG_FAILED;
                events.warning(COMPONENT, &subject, reason, error.to_string());
            }
            _ => {}
        }
        result.map(|_| Outcome::Done)
    }
}

impl Authenticator {
    /// Returns whether anything had to be written.
    async fn ensure(&self, name: &str, cluster: &Cluster, objects: [Value; 2]) -> Result<bool, Error> {
        let owner = cluster.controller_owner_ref(&());
        let mut written = false;
        for object in objects {
            let mut work =
                DesiredWork::new(name, object, BTreeMap::new(), BTreeMap::new()).map_err(Error::decision)?;
            if let Some(owner) = &owner {
                work = work.owned_by(owner.clone());
            }
            written |= self.plane.works.ensure(&self.plane.writer, &work).await?;
        }
        Ok(written)
    }
}

fn reach(role: &ClusterRole) -> Reach {
    let mut names = BTreeSet::new();
    for rule in role.rules.iter().flatten() {
        if grants(rule, api::search::GROUP, "proxying/proxy") {
            return Reach::All;
        }
        if grants(rule, api::cluster::GROUP, "clusters/proxy") {
            match rule.resource_names.as_deref() {
                None | Some([]) => return Reach::All,
                Some(some) => names.extend(some.iter().cloned()),
            }
        }
    }
    Reach::Named(names)
}

/// The verbs do not count, as upstream: the control plane checks the verb before the request, and the member
/// checks it afterwards.
fn grants(rule: &PolicyRule, group: &str, resource: &str) -> bool {
    let has = |list: &Option<Vec<String>>, wanted: &str| {
        list.iter().flatten().any(|item| item == "*" || item == wanted)
    };
    has(&rule.api_groups, group) && has(&rule.resources, resource)
}

fn bound(binding: ClusterRoleBinding) -> Bound {
    let named = |subject: Subject| (subject.kind, subject.name);
    Bound {
        role: if binding.role_ref.kind == "ClusterRole" { binding.role_ref.name } else { String::new() },
        subjects: binding.subjects.into_iter().flatten().map(named).collect(),
    }
}

/// Returns the rules by which these subjects can be impersonated: users, then accounts, then groups.
fn impersonation(subjects: &BTreeSet<(String, String)>) -> Value {
    let kinds = [("User", "users"), ("ServiceAccount", "serviceaccounts"), ("Group", "groups")];
    let rules = kinds.into_iter().filter_map(|(kind, resource)| {
        let names: Vec<&str> = subjects
            .iter()
            .filter(|(subject_kind, _)| subject_kind == kind)
            .map(|(_, name)| name.as_str())
            .collect();
        let rule = json!({
            "verbs": ["impersonate"], "apiGroups": [""], "resources": [resource], "resourceNames": names,
        });
        (!names.is_empty()).then_some(rule)
    });
    rules.collect()
}

fn role(rules: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": IMPERSONATOR, "labels": { SYSTEM: TRUE } },
        "rules": if rules.as_array().is_none_or(Vec::is_empty) { Value::Null } else { rules.clone() },
    })
}

fn binding(namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": IMPERSONATOR, "labels": { SYSTEM: TRUE } },
        "subjects": [{
            "kind": "ServiceAccount", "namespace": namespace, "name": IMPERSONATOR_SERVICE_ACCOUNT,
        }],
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": IMPERSONATOR,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{cluster, deleting, merged};

    fn reached(rules: Value) -> Reach {
        reach(&serde_json::from_value(json!({ "metadata": { "name": "r" }, "rules": rules })).unwrap())
    }

    #[test]
    fn a_role_reaches_the_clusters_it_names_or_all() {
        let proxy = |names: &[&str]| {
            json!({
                "apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"],
                "resourceNames": names, "verbs": ["*"],
            })
        };
        let named = |names: &[&str]| Reach::Named(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(reached(json!([proxy(&["m1"]), proxy(&["m2"])])), named(&["m1", "m2"]));
        assert_eq!(reached(json!([proxy(&["m1"]), proxy(&[])])), Reach::All);
        assert_eq!(reached(json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }])), Reach::All);
        let search = json!([{ "apiGroups": ["search.karmada.io"], "resources": ["proxying/proxy"], "verbs": ["get"] }]);
        assert_eq!(reached(search), Reach::All);
        let pods = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["*"] }]);
        assert_eq!(reached(pods), named(&[]));
    }

    #[test]
    fn subjects_become_sorted_rules_by_kind() {
        let pairs = [("Group", "system:masters"), ("User", "bob"), ("User", "alice"), ("Robot", "r2")];
        let subjects = pairs.map(|(kind, name)| (kind.to_owned(), name.to_owned())).into();
        let rules = impersonation(&subjects);
        assert_eq!(rules[0]["resources"], json!(["users"]));
        assert_eq!(rules[0]["resourceNames"], json!(["alice", "bob"]));
        assert_eq!(rules[1]["resources"], json!(["groups"]));
        assert_eq!(rules.as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_role_is_one_for_proxies_by_group_and_resource_alone() {
        let rule = |groups: &[&str], resources: &[&str], verbs: &[&str]| {
            reached(json!([{ "apiGroups": groups, "resources": resources, "verbs": verbs }]))
        };
        let none = Reach::Named(BTreeSet::new());
        let cases = [
            (rule(&["cluster.karmada.io"], &["clusters/proxy"], &["get"]), Reach::All),
            (rule(&["cluster.karmada.io"], &["clusters/proxy"], &[]), Reach::All),
            (rule(&["*"], &["clusters/proxy"], &["*"]), Reach::All),
            (rule(&["cluster.karmada.io"], &["*"], &["*"]), Reach::All),
            (rule(&["cluster.karmada.io"], &["clusters"], &["*"]), none.clone()),
            (rule(&["search.karmada.io"], &["clusters/proxy"], &["*"]), none.clone()),
            (rule(&["work.karmada.io"], &["*"], &["*"]), none.clone()),
            (rule(&[], &[], &[]), none),
        ];
        for (number, (found, expected)) in cases.into_iter().enumerate() {
            assert_eq!(found, expected, "case {number}");
        }
    }

    #[test]
    fn a_binding_counts_if_it_gives_a_cluster_role() {
        let given = |kind: &str| {
            bound(serde_json::from_value(json!({
                "metadata": { "name": "b" }, "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "r" },
                "subjects": [{ "kind": "User", "name": "alice" }],
            })).unwrap())
        };
        assert_eq!(given("ClusterRole").role, "r");
        assert_eq!(given("Role").role, "");
        assert_eq!(given("ClusterRole").subjects, [("User".to_owned(), "alice".to_owned())]);
    }

    #[test]
    fn which_clusters_get_something() {
        let impersonator =
            || json!({ "spec": { "impersonatorSecretRef": { "namespace": "elsewhere", "name": "s" } } });
        let pull = || json!({ "spec": { "syncMode": "Pull" } });
        // Where the account is that may impersonate; nothing if the cluster is left alone, and why.
        let cases = [
            ("an impersonator", impersonator(), Ok("elsewhere")),
            ("none", json!({}), Err("it has no impersonator")),
            ("none, for an agent", pull(), Ok(NAMESPACE_CLUSTER)),
            ("one that an agent has reported", merged(pull(), impersonator()), Ok("elsewhere")),
            ("it leaves", merged(impersonator(), deleting()), Err("it leaves")),
            ("it leaves with its agent", merged(pull(), deleting()), Err("it leaves")),
        ];
        for (name, otherwise, expected) in cases {
            let cluster = Arc::new(cluster("m1", "True", otherwise));
            let found = match decide(&View { cluster, subjects: BTreeSet::new() }) {
                Plan::Bring([role, binding]) => {
                    assert_eq!(
                        (&role["kind"], &binding["kind"]),
                        (&json!("ClusterRole"), &json!("ClusterRoleBinding"))
                    );
                    Ok(binding["subjects"][0]["namespace"].as_str().unwrap_or("").to_owned())
                }
                Plan::Nothing(why) => Err(why),
            };
            assert_eq!(found, expected.map(str::to_owned), "{name}");
        }
    }

    #[test]
    fn what_a_cluster_gets() {
        let impersonator =
            json!({ "spec": { "impersonatorSecretRef": { "namespace": "karmada-cluster", "name": "s" } } });
        let plan = |otherwise: Value, subjects: &[(&str, &str)]| {
            let subjects =
                subjects.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned())).collect();
            decide(&View { cluster: Arc::new(cluster("m1", "True", otherwise)), subjects })
        };
        assert_eq!(plan(json!({}), &[]), Plan::Nothing("it has no impersonator"));
        let pull = json!({ "spec": { "syncMode": "Pull" } });
        let Plan::Bring([_, binding]) = plan(pull, &[]) else { panic!("for the tunnel of the agent") };
        assert_eq!(binding["subjects"][0]["namespace"], "karmada-cluster");
        assert_eq!(plan(merged(impersonator.clone(), deleting()), &[]), Plan::Nothing("it leaves"));
        let Plan::Bring([role, binding]) = plan(impersonator.clone(), &[("User", "alice")]) else {
            panic!("objects")
        };
        assert_eq!(role["rules"][0]["resourceNames"], json!(["alice"]));
        assert_eq!(binding["subjects"][0]["namespace"], "karmada-cluster");
        let Plan::Bring([role, _]) = plan(impersonator, &[]) else { panic!("objects") };
        assert_eq!(role["rules"], Value::Null, "nobody may: the role stays, without rules");
    }
}
