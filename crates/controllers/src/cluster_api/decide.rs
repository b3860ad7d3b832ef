//! Decides whether a cluster of cluster-api is joined, unjoined, refused or left alone. Pure.

use std::sync::Arc;

use api::cluster::{Cluster, ClusterSyncMode};
use api::constants::CLUSTER_NAME_MAX_LENGTH;
use apimachinery::names::dns1123_label;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;
use member::kubeconfig::Access;
use runtime::Key;
use serde_json::Value;

use super::origin::Origin;
use super::{DEFINITION, MANAGEMENT};

/// The phase in which a cluster has a control plane that answers.
const PROVISIONED: &str = "Provisioned";

/// What is kept of an object of the management cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(super) uid: String,
    /// `status.phase`
    pub(super) phase: String,
    /// It is being deleted; workloads in its cluster still run.
    pub(super) is_deleting: bool,
}

impl Seen {
    pub(super) fn of(object: &DynamicObject) -> Self {
        let phase = object.data.pointer("/status/phase").and_then(Value::as_str);
        Self {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            phase: phase.unwrap_or("").to_owned(),
            is_deleting: object.metadata.deletion_timestamp.is_some(),
        }
    }

    /// Returns why it cannot be joined at the moment.
    fn obstacle(&self) -> Option<&'static str> {
        if self.is_deleting {
            Some("it is being deleted")
        } else if self.phase != PROVISIONED {
            Some("it is not provisioned yet")
        } else {
            None
        }
    }
}

/// What is known of the definition of cluster-api's clusters. Its deletion deletes its objects, although the clusters still exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Definition {
    /// It was not asked for.
    Unasked,
    Found {
        is_deleting: bool,
        /// When it was created.
        created: Option<Timestamp>,
    },
    /// We have no right to read it, so it does not count.
    Unreadable,
}

impl Definition {
    pub(super) fn of(metadata: &ObjectMeta) -> Self {
        Self::Found {
            is_deleting: metadata.deletion_timestamp.is_some(),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
        }
    }

    /// Returns why a missing object may only have gone with its definition, for a Cluster that was joined for it.
    fn obstacle(self, cluster: &Cluster) -> Option<&'static str> {
        let joined = cluster.metadata.creation_timestamp.as_ref().map(|time| time.0);
        match self {
            Self::Unasked => Some("is not known"),
            Self::Found { is_deleting: true, .. } => Some("is being deleted"),
            Self::Found { created, .. } => {
                let is_newer = created.zip(joined).is_some_and(|(created, joined)| created > joined);
                is_newer.then_some("was made after the cluster was joined")
            }
            Self::Unreadable => None,
        }
    }
}

/// What is known under a namespace and name of the management cluster.
pub(crate) struct View {
    key: Key,
    /// The object there.
    pub(super) seen: Option<Arc<Seen>>,
    /// The Cluster of the same name.
    cluster: Option<Arc<Cluster>>,
    /// What that Cluster was joined for, if it was joined for this.
    origin: Option<Origin>,
    /// Read if the object is gone that the Cluster was joined for.
    pub(super) definition: Definition,
    /// The UID of the management cluster; empty if it does not matter.
    pub(super) management: String,
    /// The kubeconfig of the object's cluster, if it has to be joined and there is one.
    pub(super) kubeconfig: Option<Vec<u8>>,
}

impl View {
    pub(super) fn new(key: Key, seen: Option<Arc<Seen>>, cluster: Option<Arc<Cluster>>) -> Self {
        let origin = cluster.as_deref().and_then(Origin::of).filter(|origin| origin.key == key);
        let definition = Definition::Unasked;
        Self { key, seen, cluster, origin, definition, management: String::new(), kubeconfig: None }
    }

    /// Returns whether only the kubeconfig may be missing.
    pub(super) fn may_join(&self) -> bool {
        self.cluster.is_none() && self.seen.as_ref().is_some_and(|seen| seen.obstacle().is_none())
    }

    /// Returns whether what was joined may be gone.
    pub(super) fn may_unjoin(&self) -> bool {
        self.origin.is_some() && self.seen.is_none()
    }
}

/// What happens.
#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// Whether it is unjoined cannot be decided, for this reason; the question is asked again.
    Undecided(String),
    /// It cannot be joined for this reason; an event says so.
    Refuse(String),
    /// It is joined for this object, with this kubeconfig.
    Join(Origin, Access),
    /// The Cluster that was joined for this object is deleted.
    Unjoin(Origin),
}

/// Returns the name of the Secret with the kubeconfig of a cluster.
pub(super) fn secret_of(name: &str) -> String {
    format!("{name}-kubeconfig")
}

pub(super) fn decide(view: &View) -> Plan {
    match (&view.cluster, &view.origin, &view.seen) {
        (Some(cluster), Some(origin), _) => joined(view, cluster, origin),
        (Some(_), None, Some(seen)) => match seen.obstacle() {
            Some(why) => Plan::Nothing(why),
            None => Plan::Refuse(format!(
                "the control plane has a cluster named {}, which was not joined for this one",
                view.key.name
            )),
        },
        (None, _, Some(seen)) => join(view, seen),
        (_, _, None) => Plan::Nothing("it is gone, and nothing was joined for it"),
    }
}

/// The control plane has a cluster that was joined for this name.
fn joined(view: &View, cluster: &Cluster, origin: &Origin) -> Plan {
    if cluster.metadata.deletion_timestamp.is_some() {
        return Plan::Nothing("it is leaving");
    }
    if let Some(seen) = &view.seen {
        return match seen.obstacle() {
            _ if seen.uid == origin.uid => Plan::Nothing("it is joined"),
            Some(why) => Plan::Nothing(why),
            // The same cluster may have a new object, restored from a backup or moved from another management
            // cluster. So nothing is unjoined automatically here, as in upstream.
            None => Plan::Refuse(format!(
                "cluster {} was joined for another object of this name; it is joined for this one when it has been unjoined",
                view.key.name
            )),
        };
    }
    if let Some(what) = view.definition.obstacle(cluster) {
        return Plan::Undecided(format!("{DEFINITION} of {MANAGEMENT} {what}; nothing is unjoined"));
    }
    if view.management != origin.management {
        // An empty management cluster behind the same address must not unjoin everything.
        return Plan::Nothing("it was joined from another management cluster");
    }
    if cluster.spec.sync_mode == ClusterSyncMode::Pull {
        return Plan::Nothing("it is in pull mode by now, and its agent's to take out");
    }
    Plan::Unjoin(origin.clone())
}

/// What happens to a Cluster as the server has it, when the object that it was joined for is gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unjoin {
    /// It stays, for this reason.
    Leave(&'static str),
    /// It is deleted if it is still exactly this one.
    Delete { uid: Option<String>, resource_version: Option<String> },
}

/// Decides about the newest state of a Cluster that is to be unjoined: its owner may have changed it meanwhile.
pub(super) fn unjoin(found: Option<&Cluster>, origin: &Origin) -> Unjoin {
    let Some(cluster) = found else { return Unjoin::Leave("it is gone") };
    let metadata = &cluster.metadata;
    if metadata.deletion_timestamp.is_some() {
        return Unjoin::Leave("it is leaving");
    }
    // If a user has removed the annotation, the cluster stays.
    if Origin::of(cluster).as_ref() != Some(origin) {
        return Unjoin::Leave("it was not joined for this object, or is no longer marked so");
    }
    Unjoin::Delete { uid: metadata.uid.clone(), resource_version: metadata.resource_version.clone() }
}

/// No cluster of this name is known.
fn join(view: &View, seen: &Seen) -> Plan {
    if let Some(why) = seen.obstacle() {
        return Plan::Nothing(why);
    }
    let Key { namespace, name } = &view.key;
    if name.len() > CLUSTER_NAME_MAX_LENGTH || !dns1123_label(name).is_empty() {
        return Plan::Refuse(format!(
            "a cluster of the control plane cannot have its name: it must be a DNS label of at most \
             {CLUSTER_NAME_MAX_LENGTH} characters"
        ));
    }
    let secret = secret_of(name);
    let Some(kubeconfig) = &view.kubeconfig else {
        return Plan::Refuse(format!(
            "there is no Secret {namespace}/{secret} with its kubeconfig under the key value"
        ));
    };
    match Access::read(kubeconfig) {
        Ok(access) => {
            let management = view.management.clone();
            Plan::Join(Origin { management, key: view.key.clone(), uid: seen.uid.clone() }, access)
        }
        Err(why) => Plan::Refuse(format!("the kubeconfig in Secret {namespace}/{secret} is not used: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use api::labels::annotations::JOINED_FOR;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{at, cluster, deleting, merged};

    const KUBECONFIG: &str = r#"
current-context: it
contexts: [{name: it, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443"}}]
users: [{name: u, user: {token: t}}]
"#;

    #[test]
    fn what_is_kept_of_an_object() {
        let seen = |otherwise: Value| {
            let base = json!({ "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "metadata": { "name": "m1", "uid": "u" } });
            Seen::of(&crate::fixtures::read(merged(base, otherwise)))
        };
        let kept =
            |phase: &str, is_deleting: bool| Seen { uid: "u".into(), phase: phase.into(), is_deleting };
        assert_eq!(seen(json!({})), kept("", false));
        assert_eq!(seen(json!({ "status": { "phase": "Provisioned" } })), kept("Provisioned", false));
        assert_eq!(seen(deleting()), kept("", true));
    }

    fn origin(management: &str, uid: &str) -> Origin {
        Origin { management: management.into(), key: Key::new("capi", "m1"), uid: uid.into() }
    }

    fn seen(uid: &str, phase: &str) -> Option<Arc<Seen>> {
        Some(Arc::new(Seen { uid: uid.into(), phase: phase.into(), is_deleting: false }))
    }

    /// A definition that was created at this second, if it says so.
    fn defined(created: Option<i64>) -> Definition {
        Definition::Found { is_deleting: false, created: created.map(at) }
    }

    /// A Cluster that was joined for an object, and how it differs otherwise.
    fn joined_for(origin: &Origin, otherwise: Value) -> Option<Arc<Cluster>> {
        let base = json!({ "metadata": { "annotations": { JOINED_FOR: origin.to_string() } } });
        Some(Arc::new(cluster("m1", "True", merged(base, otherwise))))
    }

    /// What is seen in the management cluster `k`.
    fn view(seen: Option<Arc<Seen>>, cluster: Option<Arc<Cluster>>) -> View {
        let view = View::new(Key::new("capi", "m1"), seen, cluster);
        View { management: "k".into(), definition: defined(Some(0)), ..view }
    }

    fn with_kubeconfig(view: View, text: &str) -> View {
        View { kubeconfig: Some(text.as_bytes().to_vec()), ..view }
    }

    #[test]
    fn what_is_unjoined_of_what_the_server_has() {
        let this = origin("k", "u");
        let unmarked = json!({ "metadata": { "annotations": null } });
        let not_its_own = "it was not joined for this object, or is no longer marked so";
        let cases = [
            ("it is as it was", joined_for(&this, json!({})), None),
            ("something else of it changed", joined_for(&this, json!({ "spec": { "region": "eu" } })), None),
            ("it is gone", None, Some("it is gone")),
            ("it is leaving", joined_for(&this, deleting()), Some("it is leaving")),
            ("a user has taken the mark off", joined_for(&this, unmarked), Some(not_its_own)),
            ("it was joined for a newer object", joined_for(&origin("k", "v"), json!({})), Some(not_its_own)),
            ("it was joined from elsewhere", joined_for(&origin("l", "u"), json!({})), Some(not_its_own)),
        ];
        for (name, found, left) in cases {
            let expected = left.map_or_else(
                || Unjoin::Delete { uid: Some("c-m1".to_owned()), resource_version: Some("7".to_owned()) },
                Unjoin::Leave,
            );
            assert_eq!(unjoin(found.as_deref(), &this), expected, "{name}");
        }
    }

    fn refused(plan: &Plan, expected: &str) -> bool {
        matches!(plan, Plan::Refuse(why) if why.contains(expected))
    }

    #[test]
    fn what_is_provisioned_is_joined() {
        let provisioned = || view(seen("u", PROVISIONED), None);
        assert!(provisioned().may_join() && !provisioned().may_unjoin());
        let access = Access::read(KUBECONFIG.as_bytes()).expect("it is of use");
        let plan = decide(&with_kubeconfig(provisioned(), KUBECONFIG));
        assert_eq!(plan, Plan::Join(origin("k", "u"), access));
        assert!(refused(&decide(&provisioned()), "no Secret capi/m1-kubeconfig"));
        let exec = KUBECONFIG.replace("token: t", "exec: {command: sh}");
        let plan = decide(&with_kubeconfig(provisioned(), &exec));
        assert!(refused(&plan, "Secret capi/m1-kubeconfig is not used: it wants a program to be run (exec)"));

        for phase in ["", "Pending", "Provisioning", "Deleting", "Failed", "Unknown"] {
            let early = with_kubeconfig(view(seen("u", phase), None), KUBECONFIG);
            assert!(!early.may_join(), "{phase}");
            assert_eq!(decide(&early), Plan::Nothing("it is not provisioned yet"), "{phase}");
        }
        let leaving = Seen { uid: "u".into(), phase: PROVISIONED.into(), is_deleting: true };
        let leaving = with_kubeconfig(view(Some(Arc::new(leaving)), None), KUBECONFIG);
        assert!(!leaving.may_join());
        assert_eq!(decide(&leaving), Plan::Nothing("it is being deleted"));
    }

    #[test]
    fn names_that_no_cluster_can_have_are_refused() {
        for name in ["a.b", &"a".repeat(49)] {
            let view = View::new(Key::new("capi", name), seen("u", PROVISIONED), None);
            assert!(
                refused(&decide(&with_kubeconfig(view, KUBECONFIG)), "a DNS label of at most 48"),
                "{name}"
            );
        }
        let longest = View::new(Key::new("capi", "a".repeat(48)), seen("u", PROVISIONED), None);
        let plan = decide(&with_kubeconfig(longest, KUBECONFIG));
        assert!(matches!(plan, Plan::Join(..)), "{plan:?}");
    }

    #[test]
    fn what_was_joined_leaves_when_its_object_is_gone_and_for_nothing_else() {
        let (ours, none) = (origin("k", "u"), || json!({}));
        let pull = json!({ "spec": { "syncMode": "Pull" } });
        let cases = [
            ("it is there", seen("u", PROVISIONED), none(), Plan::Nothing("it is joined")),
            ("it has trouble", seen("u", "Failed"), none(), Plan::Nothing("it is joined")),
            ("its deletion has begun", seen("u", "Deleting"), none(), Plan::Nothing("it is joined")),
            ("it is gone", None, none(), Plan::Unjoin(ours.clone())),
            ("another is to come", seen("v", "Pending"), none(), Plan::Nothing("it is not provisioned yet")),
            ("it leaves already", None, deleting(), Plan::Nothing("it is leaving")),
            (
                "it is an agent's by now",
                None,
                pull,
                Plan::Nothing("it is in pull mode by now, and its agent's to take out"),
            ),
        ];
        for (name, seen, otherwise, expected) in cases {
            assert_eq!(decide(&view(seen, joined_for(&ours, otherwise))), expected, "{name}");
        }
        let replaced = view(seen("v", PROVISIONED), joined_for(&ours, json!({})));
        assert!(!replaced.may_unjoin() && !replaced.may_join());
        assert!(refused(&decide(&replaced), "cluster m1 was joined for another object of this name"));
    }

    #[test]
    fn what_goes_with_its_definition_stays_a_member() {
        let ours = origin("k", "u");
        let unjoined = || Plan::Unjoin(ours.clone());
        let undecided = |what: &str| {
            Plan::Undecided(format!(
                "clusters.cluster.x-k8s.io of the management cluster of cluster-api {what}; nothing is unjoined"
            ))
        };
        let newer = "was made after the cluster was joined";
        let going = Definition::Found { is_deleting: true, created: Some(at(0)) };
        let joined = json!({ "metadata": { "creationTimestamp": "1970-01-01T00:01:40Z" } });
        // The definition, where the cluster was joined at second 100, or says nothing.
        let cases = [
            ("it is older", joined.clone(), defined(Some(99)), unjoined()),
            ("it is of the same second", joined.clone(), defined(Some(100)), unjoined()),
            ("it is newer by a second", joined.clone(), defined(Some(101)), undecided(newer)),
            ("it does not say when it was made", joined.clone(), defined(None), unjoined()),
            ("the cluster does not say when it was joined", json!({}), defined(Some(101)), unjoined()),
            ("it is being deleted", joined.clone(), going, undecided("is being deleted")),
            ("it may not be read", joined.clone(), Definition::Unreadable, unjoined()),
            ("it was not asked for", joined.clone(), Definition::Unasked, undecided("is not known")),
        ];
        for (name, otherwise, definition, expected) in cases {
            let view = View { definition, ..view(None, joined_for(&ours, otherwise)) };
            assert_eq!(decide(&view), expected, "{name}");
        }
        let leaving = View { definition: going, ..view(None, joined_for(&ours, deleting())) };
        assert_eq!(decide(&leaving), Plan::Nothing("it is leaving"));
        let there = View { definition: going, ..view(seen("u", PROVISIONED), joined_for(&ours, joined)) };
        assert_eq!(decide(&there), Plan::Nothing("it is joined"), "its object still exists");
    }

    #[test]
    fn another_management_cluster_takes_nothing_away() {
        let theirs = origin("other", "u");
        let elsewhere = Plan::Nothing("it was joined from another management cluster");
        assert_eq!(decide(&view(None, joined_for(&theirs, json!({})))), elsewhere);
        let moved = view(seen("v", PROVISIONED), joined_for(&theirs, json!({})));
        assert!(refused(&decide(&moved), "cluster m1 was joined for another object of this name"));
    }

    #[test]
    fn what_was_joined_by_others_is_left_alone() {
        let by_hand = || Some(Arc::new(cluster("m1", "True", json!({}))));
        let plan = decide(&with_kubeconfig(view(seen("u", PROVISIONED), by_hand()), KUBECONFIG));
        assert!(refused(&plan, "has a cluster named m1, which was not joined for this one"));
        assert_eq!(
            decide(&view(seen("u", "Pending"), by_hand())),
            Plan::Nothing("it is not provisioned yet")
        );
        let nothing = || Plan::Nothing("it is gone, and nothing was joined for it");
        assert_eq!(decide(&view(None, by_hand())), nothing());
        assert_eq!(decide(&view(None, None)), nothing());
        // Joined for an object of this name in another namespace.
        let neighbour = Origin { key: Key::new("other", "m1"), ..origin("k", "u") };
        assert_eq!(decide(&view(None, joined_for(&neighbour, json!({})))), nothing());
        let second = decide(&view(seen("v", PROVISIONED), joined_for(&neighbour, json!({}))));
        assert!(refused(&second, "which was not joined for this one"));
    }
}
