//! The writes that give the target what the source has: a comparison of two snapshots.
//!
//! In: both, and whether the target can keep uids. Out: a [`Plan`]: one step for each object of the source, the obstacles, and
//! what the target has in addition. Writes nothing.

use std::collections::BTreeMap;

use apimachinery::object::Object as _;
use serde_json::Value;

use super::identity::{self, Uids};
use super::scope;
use super::snapshot::{Item, Key, Resource, Snapshot};

/// What a target does with uids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Ours: objects keep the uids that they have in the source.
    Kept,
    /// Any Kubernetes API: a new object gets a new uid, one that exists keeps its own.
    OfTarget,
}

/// The step for one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    /// The content is the same; uid, status or a deletion in progress differ.
    Settle,
    /// The target has a different object with this name.
    Replace,
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) item: Item,
    pub(crate) step: Step,
}

#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) planned: Vec<Planned>,
    /// Objects of the target with names from the source, but with different content.
    pub(crate) conflicts: Vec<Key>,
    /// Objects that only the target has.
    pub(crate) extra: Vec<Key>,
    /// Kinds with objects that the target does not serve in this version.
    pub(crate) unknown: BTreeMap<String, usize>,
    /// The uids of the target, by those of the source.
    pub(crate) uids: Uids,
    /// The number of references to owners that do not move.
    pub(crate) forgotten_owners: usize,
}

impl Plan {
    pub(crate) fn count(&self, step: Step) -> usize {
        self.planned.iter().filter(|planned| planned.step == step).count()
    }
}

/// Compares source and target.
pub(crate) fn plan(source: &Snapshot, target: &Snapshot, identity: Identity) -> Plan {
    let mut plan = Plan::default();
    if identity == Identity::OfTarget {
        for (key, item) in &source.items {
            if let Some(there) = target.items.get(key) {
                plan.uids.insert(item.uid().to_owned(), there.uid().to_owned());
            }
        }
    }
    let own_definitions: Vec<&str> = definitions(source).collect();
    for (key, item) in &source.items {
        let comes_along = own_definitions.contains(&format!("{}.{}", key.plural, key.group).as_str());
        if !comes_along && !target.serves(&item.resource) {
            let kind = format!("{} {}", item.resource.api_version(), item.resource.kind);
            *plan.unknown.entry(kind).or_default() += 1;
            continue;
        }
        let mut item = item.clone();
        plan.forgotten_owners +=
            identity::forget_owners(&mut item.object, |uid| source.left_out_uids.contains(uid));
        let step = match target.items.get(key) {
            None => Step::Create,
            Some(there) => step(&item, there, identity, &plan.uids),
        };
        if step == Step::Replace {
            plan.conflicts.push(key.clone());
        }
        plan.planned.push(Planned { item, step });
    }
    let extra = target.items.keys().filter(|key| !source.items.contains_key(key));
    // If a group of the source could not be read, it is unknown whether the source has the object.
    plan.extra = extra.filter(|key| !source.unreadable.contains(&key.group)).cloned().collect();
    plan
}

/// Returns the names of the definitions that move.
fn definitions(source: &Snapshot) -> impl Iterator<Item = &str> {
    let definitions = source.items.iter().filter(|(key, _)| key.plural == "customresourcedefinitions");
    definitions.map(|(key, _)| key.name.as_str())
}

fn step(item: &Item, there: &Item, identity: Identity, uids: &Uids) -> Step {
    let mut wanted = item.object.clone();
    identity::rename(&mut wanted, uids);
    if content(&item.resource, &wanted) != content(&there.resource, &there.object) {
        // Objects that every control plane has from the start do not count.
        let bootstrap = identity == Identity::Kept && is_first_namespace(item);
        return if bootstrap { Step::Settle } else { Step::Replace };
    }
    let (from, to) = (item.object.generation(), there.object.generation());
    let mut status = wanted["status"].take();
    if identity == Identity::OfTarget {
        identity::move_generation(&mut status, from, to);
    }
    let same = clean(status) == clean(there.object["status"].clone())
        && item.object.is_deleting() == there.object.is_deleting()
        && (identity == Identity::OfTarget || item.uid() == there.uid());
    if same { Step::Nothing } else { Step::Settle }
}

fn is_first_namespace(item: &Item) -> bool {
    let first =
        ["default", "kube-system", "kube-public", "kube-node-lease", "karmada-system", "karmada-cluster"];
    item.resource.is("", "namespaces") && first.contains(&item.object.name())
}

/// Returns what users or controllers wrote, without the fields that servers add and without the status.
fn content(resource: &Resource, object: &Value) -> Value {
    let mut content = object.clone();
    scope::trim(resource, &mut content);
    let metadata = content.metadata_mut();
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
        "generation",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        metadata.remove(field);
    }
    if let Some(fields) = content.as_object_mut() {
        fields.remove("status");
    }
    if resource.is("", "services")
        && let Some(Value::Object(spec)) = content.get_mut("spec")
    {
        // Addresses belong to the server's own network.
        spec.retain(|field, _| !matches!(field.as_str(), "clusterIP" | "clusterIPs"));
    }
    if scope::is_token(resource, &content) {
        content.remove_annotation("kubernetes.io/service-account.uid");
        content.remove_label("kubernetes.io/legacy-token-last-used");
    }
    clean(content)
}

/// Removes meaningless values: nulls, and empty lists and maps.
fn clean(value: Value) -> Value {
    fn is_empty(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        }
    }
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(clean).collect()),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name, clean(value)));
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        other => other,
    }
}

/// Returns the objects of the target after the plan has been carried out. New objects of a target that assigns uids get those
/// from `new_uid`.
pub(crate) fn outcome(
    plan: &Plan,
    target: &Snapshot,
    identity: Identity,
    prune: bool,
    mut new_uid: impl FnMut() -> String,
) -> Vec<Item> {
    let mut uids = plan.uids.clone();
    if identity == Identity::OfTarget {
        for planned in plan.planned.iter().filter(|planned| planned.step == Step::Create) {
            uids.insert(planned.item.uid().to_owned(), new_uid());
        }
    }
    let mut after = target.items.clone();
    if prune {
        plan.extra.iter().for_each(|key| drop(after.remove(key)));
    }
    for planned in &plan.planned {
        let mut item = planned.item.clone();
        identity::rename(&mut item.object, &uids);
        after.insert(item.key(), item);
    }
    after.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn snapshot(objects: &[(&str, &str, Value)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (group, plural, object) in objects {
            let resource = Arc::new(Resource {
                group: (*group).to_owned(),
                version: "v1".to_owned(),
                plural: (*plural).to_owned(),
                kind: (*plural).to_owned(),
                namespaced: true,
                status: true,
            });
            snapshot.served.push(resource.clone());
            snapshot.add(Item { resource, object: object.clone() });
        }
        snapshot
    }

    fn map(uid: &str, value: &str) -> (&'static str, &'static str, Value) {
        (
            "",
            "configmaps",
            json!({ "metadata": { "name": "a", "namespace": "n", "uid": uid }, "data": { "k": value } }),
        )
    }

    fn steps(
        source: &[(&str, &str, Value)],
        target: &[(&str, &str, Value)],
        identity: Identity,
    ) -> Vec<Step> {
        let (source, mut target) = (snapshot(source), snapshot(target));
        target.served.extend(source.served.clone());
        plan(&source, &target, identity).planned.iter().map(|planned| planned.step).collect()
    }

    #[test]
    fn each_object_gets_the_step_it_needs() {
        use Identity::{Kept, OfTarget};
        let cases = [
            (vec![], Kept, Step::Create),
            (vec![map("u", "1")], Kept, Step::Nothing),
            (vec![map("other", "1")], Kept, Step::Settle),
            (vec![map("other", "1")], OfTarget, Step::Nothing),
            (vec![map("u", "2")], Kept, Step::Replace),
            (vec![map("u", "2")], OfTarget, Step::Replace),
        ];
        for (target, identity, expected) in cases {
            assert_eq!(steps(&[map("u", "1")], &target, identity), [expected], "{target:?} {identity:?}");
        }
    }

    #[test]
    fn a_status_alone_is_no_conflict() {
        let work = |generation: i64, seen: i64| {
            let metadata = json!({ "name": "w", "uid": "u", "generation": generation });
            (
                "work.karmada.io",
                "works",
                json!({ "metadata": metadata, "status": { "observedGeneration": seen } }),
            )
        };
        assert_eq!(steps(&[work(3, 3)], &[work(3, 2)], Identity::Kept), [Step::Settle]);
        assert_eq!(
            steps(&[work(3, 3)], &[work(1, 1)], Identity::OfTarget),
            [Step::Nothing],
            "both are up to date"
        );
    }

    #[test]
    fn references_are_compared_by_what_they_mean() {
        let owner = |uid: &str| ("apps", "deployments", json!({ "metadata": { "name": "d", "uid": uid } }));
        let owned = |uid: &str, owner: &str| {
            (
                "apps",
                "replicasets",
                json!({ "metadata": { "name": "s", "uid": uid, "ownerReferences": [{ "uid": owner }] } }),
            )
        };
        let source = [owner("d1"), owned("s1", "d1")];
        assert_eq!(
            steps(&source, &[owner("d2"), owned("s2", "d2")], Identity::OfTarget),
            [Step::Nothing, Step::Nothing]
        );
        assert_eq!(
            steps(&source, &[owner("d2"), owned("s2", "d3")], Identity::OfTarget),
            [Step::Nothing, Step::Replace]
        );
    }

    #[test]
    fn kinds_and_versions_that_the_target_does_not_know_are_told() {
        let (source, target) = (snapshot(&[map("u", "1")]), snapshot(&[]));
        let plan = plan(&source, &target, Identity::Kept);
        assert_eq!(
            (plan.planned.len(), plan.unknown),
            (0, BTreeMap::from([("v1 configmaps".to_owned(), 1)]))
        );
    }

    #[test]
    fn what_could_not_be_read_is_not_taken_for_absent() {
        let object = |name: &str| json!({ "metadata": { "name": name, "uid": name } });
        let target = snapshot(&[("example.com", "widgets", object("w")), ("", "secrets", object("s"))]);
        let mut source = snapshot(&[]);
        let extra = |source: &Snapshot| {
            let plan = plan(source, &target, Identity::OfTarget);
            let after = outcome(&plan, &target, Identity::OfTarget, true, String::new);
            let after: Vec<String> = after.iter().map(|item| item.object.name().to_owned()).collect();
            (plan.extra.iter().map(|key| key.name.clone()).collect::<Vec<_>>(), after)
        };
        assert_eq!(extra(&source), (vec!["s".to_owned(), "w".to_owned()], vec![]));
        source.unreadable.insert("example.com".to_owned());
        assert_eq!(extra(&source), (vec!["s".to_owned()], vec!["w".to_owned()]));
    }

    #[test]
    fn the_result_has_the_uids_of_the_target() {
        let binding = json!({ "metadata": { "name": "b", "namespace": "n", "uid": "b1" }, "spec": { "resource": { "uid": "u" } } });
        let source = snapshot(&[map("u", "1"), ("work.karmada.io", "resourcebindings", binding)]);
        let mut target = snapshot(&[("", "secrets", json!({ "metadata": { "name": "only", "uid": "x" } }))]);
        target.served.extend(source.served.clone());
        let plan = plan(&source, &target, Identity::OfTarget);
        let mut number = 0;
        let after = outcome(&plan, &target, Identity::OfTarget, false, || {
            number += 1;
            format!("new-{number}")
        });
        let named =
            |name: &str| after.iter().find(|item| item.object.name() == name).map(|item| &item.object);
        assert_eq!(named("a").unwrap()["metadata"]["uid"], named("b").unwrap()["spec"]["resource"]["uid"]);
        assert!(named("only").is_some());
        assert_eq!(plan.extra.len(), 1);
    }
}
