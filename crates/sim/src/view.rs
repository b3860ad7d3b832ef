//! The controllers' view of a cluster: its objects at this moment.

use std::collections::HashMap;

use apimachinery::selector::LabelSelector;
use jiff::Timestamp;
use serde_json::Value;

use crate::kinds::Kind;
use crate::options::Delays;
use crate::trouble::Troubles;

/// Read access to a cluster. An empty namespace means all, or none for kinds without namespaces.
pub(crate) trait Objects {
    fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value>;
    fn list(&self, kind: Kind, namespace: &str) -> Vec<Value>;
    /// The objects with an owner of this uid, controlling or not.
    fn owned(&self, kind: Kind, namespace: &str, owner: &str) -> Vec<Value>;
    fn selected(&self, kind: Kind, namespace: &str, selector: &LabelSelector) -> Vec<Value>;
    /// The objects with an owner of this uid, and those that a selector matches and that have no controlling owner.
    fn family(
        &self,
        kind: Kind,
        namespace: &str,
        owner: &str,
        selector: Option<&LabelSelector>,
    ) -> Vec<Value>;
    /// How many objects of any kind there are, by group and plural name.
    fn count(&self, group: &str, plural: &str, namespace: &str) -> usize;
}

/// Everything that a decision may depend on.
pub(crate) struct View<'a> {
    pub(crate) objects: &'a dyn Objects,
    pub(crate) now: Timestamp,
    pub(crate) delays: &'a Delays,
    pub(crate) troubles: &'a Troubles,
    /// Why the last attempt to create something for an object failed, by uid.
    pub(crate) failures: &'a HashMap<String, String>,
}

impl View<'_> {
    pub(crate) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        self.objects.get(kind, namespace, name)
    }
}

#[cfg(test)]
pub(crate) mod fake {
    //! A cluster that is a list of objects.

    use super::*;
    use crate::objects::{Object, list};

    #[derive(Default)]
    pub(crate) struct Cluster(pub(crate) Vec<Value>);

    impl Cluster {
        fn of(&self, kind: Kind) -> impl Iterator<Item = &Value> {
            self.0.iter().filter(move |object| object["kind"] == kind.name())
        }
    }

    impl Objects for Cluster {
        fn get(&self, kind: Kind, space: &str, wanted: &str) -> Option<Value> {
            self.of(kind).find(|object| object.namespace() == space && object.name() == wanted).cloned()
        }

        fn list(&self, kind: Kind, space: &str) -> Vec<Value> {
            self.of(kind).filter(|object| space.is_empty() || object.namespace() == space).cloned().collect()
        }

        fn owned(&self, kind: Kind, space: &str, owner: &str) -> Vec<Value> {
            let is_owned = |object: &Value| {
                list(object, "/metadata/ownerReferences").iter().any(|each| each["uid"] == owner)
            };
            self.list(kind, space).into_iter().filter(is_owned).collect()
        }

        fn selected(&self, kind: Kind, space: &str, selector: &LabelSelector) -> Vec<Value> {
            self.list(kind, space).into_iter().filter(|object| selector.matches(object.labels())).collect()
        }

        fn family(
            &self,
            kind: Kind,
            space: &str,
            owner: &str,
            selector: Option<&LabelSelector>,
        ) -> Vec<Value> {
            let belongs = |object: &Value| {
                list(object, "/metadata/ownerReferences").iter().any(|each| each["uid"] == owner)
                    || selector.is_some_and(|selector| selector.matches(object.labels()))
            };
            self.list(kind, space).into_iter().filter(belongs).collect()
        }

        fn count(&self, group: &str, plural: &str, space: &str) -> usize {
            let kind = Kind::ALL.into_iter().find(|kind| {
                let (own, _, resource) = kind.resource();
                own == group && resource == plural
            });
            kind.map_or(0, |kind| self.list(kind, space).len())
        }
    }

    /// Runs a decision over a list of objects at a fixed moment.
    pub(crate) fn with_view<T>(objects: Vec<Value>, decide: impl FnOnce(&View<'_>) -> T) -> T {
        let cluster = Cluster(objects);
        let (delays, troubles, failures) = (Delays::default(), Troubles::default(), HashMap::new());
        let now = "2026-01-01T00:10:00Z".parse().expect("a time");
        decide(&View { objects: &cluster, now, delays: &delays, troubles: &troubles, failures: &failures })
    }
}
