//! Maps references by uid, and orders objects so that each is written after the objects to which it refers.

use std::collections::BTreeMap;

use apimachinery::object::Object as _;
use serde_json::Value;

use super::scope;
use super::snapshot::Item;

/// Names the account whose token a Secret contains.
const ACCOUNT: &str = "kubernetes.io/service-account.name";

/// The uids of objects in the target, by those in the source.
pub(crate) type Uids = BTreeMap<String, String>;

/// Replaces every value that is one of these uids: owners, the template in a binding, annotations, manifests inside a Work. A uid
/// is a random number of 122 bits, so an equal value is that uid.
pub(crate) fn rename(value: &mut Value, uids: &Uids) {
    match value {
        Value::String(text) => {
            if let Some(uid) = uids.get(text.as_str()) {
                text.clone_from(uid);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, uids)),
        Value::Object(fields) => fields.values_mut().for_each(|field| rename(field, uids)),
        _ => {}
    }
}

/// Removes references to owners that do not move: a garbage collector would treat the object as orphaned. Returns how many.
pub(crate) fn forget_owners(object: &mut Value, stays: impl Fn(&str) -> bool) -> usize {
    let Some(Value::Array(owners)) = object.metadata_mut().get_mut("ownerReferences") else { return 0 };
    let before = owners.len();
    owners.retain(|owner| !owner["uid"].as_str().is_some_and(&stays));
    let after = owners.len();
    if after == 0 {
        object.metadata_mut().remove("ownerReferences");
    }
    before.saturating_sub(after)
}

/// Adjusts the observed generation in a status to the generation that the object has now.
pub(crate) fn move_generation(status: &mut Value, from: i64, to: i64) {
    let seen = |fields: &mut Value| {
        for name in ["observedGeneration", "schedulerObservedGeneration"] {
            if fields.get(name).and_then(Value::as_i64) == Some(from) {
                fields[name] = to.into();
            }
        }
    };
    seen(status);
    if let Some(Value::Array(conditions)) = status.get_mut("conditions") {
        conditions.iter_mut().for_each(seen);
    }
}

/// Sorts objects into groups that can be written one after the other: definitions, namespaces, then everything else: owners
/// before the objects that they own, tokens after their accounts, bindings after their templates, Works last. Namespaces that are
/// being deleted come at the very end.
pub(crate) fn in_order(items: Vec<Item>) -> Vec<Vec<Item>> {
    let accounts = items.iter().filter(|item| item.resource.is("", "serviceaccounts"));
    let accounts: BTreeMap<(&str, &str), &str> =
        accounts.map(|item| ((item.object.namespace(), item.object.name()), item.uid())).collect();
    let owners: BTreeMap<String, Vec<String>> = items
        .iter()
        .map(|item| {
            let uids = item.object.owner_references().iter();
            let uids = uids.filter_map(|owner| owner["uid"].as_str());
            // The target's own controller deletes a token whose account does not exist.
            let account =
                item.object.annotation(ACCOUNT).filter(|_| scope::is_token(&item.resource, &item.object));
            let account = account.and_then(|name| accounts.get(&(item.object.namespace(), name)).copied());
            (item.uid().to_owned(), uids.chain(account).map(str::to_owned).collect())
        })
        .collect();
    let mut groups: BTreeMap<(u8, usize), Vec<Item>> = BTreeMap::new();
    for item in items {
        let place = (stage(&item), depth(item.uid(), &owners, 0));
        groups.entry(place).or_default().push(item);
    }
    groups.into_values().collect()
}

fn stage(item: &Item) -> u8 {
    match (item.resource.group.as_str(), item.resource.plural.as_str()) {
        ("apiextensions.k8s.io", _) => 0,
        ("", "namespaces") if item.object.is_deleting() => 9,
        ("", "namespaces") => 1,
        ("work.karmada.io", "works") => 4,
        ("work.karmada.io", _) => 3,
        _ => 2,
    }
}

/// Returns the number of owners above an object. Cycles are cut off.
fn depth(uid: &str, owners: &BTreeMap<String, Vec<String>>, seen: usize) -> usize {
    if seen > 16 {
        return seen;
    }
    let above = owners.get(uid).into_iter().flatten().filter(|owner| owners.contains_key(*owner));
    above.map(|owner| depth(owner, owners, seen.saturating_add(1))).max().unwrap_or(seen)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::snapshot::Resource;
    use super::*;

    fn item(group: &str, plural: &str, object: Value) -> Item {
        let resource = Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            plural: plural.to_owned(),
            kind: String::new(),
            namespaced: true,
            status: true,
        };
        Item { resource: Arc::new(resource), object }
    }

    #[test]
    fn uids_are_renamed_wherever_they_stand_alone() {
        let uids = Uids::from([("u-1".to_owned(), "n-1".to_owned())]);
        let mut work = json!({
            "metadata": { "ownerReferences": [{ "uid": "u-1" }], "labels": { "id": "u-11" } },
            "spec": { "workload": { "manifests": [{ "metadata": { "annotations": { "resourcetemplate.karmada.io/uid": "u-1" } } }] } },
        });
        rename(&mut work, &uids);
        assert_eq!(work["metadata"]["ownerReferences"][0]["uid"], "n-1");
        assert_eq!(work["metadata"]["labels"]["id"], "u-11", "a longer value is another one");
        let manifest = &work["spec"]["workload"]["manifests"][0];
        assert_eq!(manifest["metadata"]["annotations"]["resourcetemplate.karmada.io/uid"], "n-1");
    }

    #[test]
    fn only_owners_that_stay_behind_are_forgotten() {
        let mut object =
            json!({ "metadata": { "ownerReferences": [{ "uid": "stays" }, { "uid": "moves" }] } });
        assert_eq!(forget_owners(&mut object, |uid| uid == "stays"), 1);
        assert_eq!(object["metadata"]["ownerReferences"], json!([{ "uid": "moves" }]));
        assert_eq!(forget_owners(&mut object, |_| true), 1);
        assert_eq!(object, json!({ "metadata": {} }));
    }

    #[test]
    fn a_status_that_was_up_to_date_stays_so() {
        let mut status = json!({ "schedulerObservedGeneration": 7, "observedGeneration": 6,
            "conditions": [{ "type": "Scheduled", "observedGeneration": 7 }] });
        move_generation(&mut status, 7, 1);
        assert_eq!(status["schedulerObservedGeneration"], 1);
        assert_eq!(status["observedGeneration"], 6, "this one was behind");
        assert_eq!(status["conditions"][0]["observedGeneration"], 1);
    }

    #[test]
    fn owners_come_first_and_dying_namespaces_last() {
        let owned = |uid: &str, owner: &str| json!({ "metadata": { "name": uid, "uid": uid, "ownerReferences": [{ "uid": owner }] } });
        let bare = |uid: &str| json!({ "metadata": { "name": uid, "uid": uid } });
        let dying = json!({ "metadata": { "name": "old", "uid": "old", "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        let items = vec![
            item("work.karmada.io", "works", bare("work")),
            item("", "namespaces", dying),
            item("work.karmada.io", "resourcebindings", owned("binding", "template")),
            item("apps", "replicasets", owned("set", "template")),
            item("apps", "deployments", bare("template")),
            item("", "namespaces", bare("shop")),
            item("apiextensions.k8s.io", "customresourcedefinitions", bare("definition")),
        ];
        let order: Vec<Vec<String>> = in_order(items)
            .into_iter()
            .map(|group| group.iter().map(|item| item.object.name().to_owned()).collect())
            .collect();
        let expected = [
            vec!["definition"],
            vec!["shop"],
            vec!["template"],
            vec!["set"],
            vec!["binding"],
            vec!["work"],
            vec!["old"],
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn a_token_comes_after_its_account() {
        let account = |owner: Option<&str>| {
            let owners: Vec<Value> = owner.into_iter().map(|uid| json!({ "uid": uid })).collect();
            let metadata =
                json!({ "name": "robot", "namespace": "n", "uid": "account", "ownerReferences": owners });
            item("", "serviceaccounts", json!({ "metadata": metadata }))
        };
        let token = || {
            let annotations = json!({ "kubernetes.io/service-account.name": "robot" });
            let metadata =
                json!({ "name": "token", "namespace": "n", "uid": "token", "annotations": annotations });
            let kind = "kubernetes.io/service-account-token";
            item("", "secrets", json!({ "metadata": metadata, "type": kind }))
        };
        let owner =
            || item("apps", "deployments", json!({ "metadata": { "name": "owner", "uid": "owner" } }));
        let cases = [
            (vec![token(), account(None)], vec![vec!["robot"], vec!["token"]]),
            // In the group of the account itself.
            (
                vec![token(), account(Some("owner")), owner()],
                vec![vec!["owner"], vec!["robot"], vec!["token"]],
            ),
            // It already exists, or was left out.
            (vec![token()], vec![vec!["token"]]),
        ];
        for (items, expected) in cases {
            let order: Vec<Vec<String>> = in_order(items)
                .into_iter()
                .map(|group| group.iter().map(|item| item.object.name().to_owned()).collect())
                .collect();
            assert_eq!(order, expected);
        }
    }

    #[test]
    fn owners_in_a_circle_are_ordered_somehow() {
        let owned = |uid: &str, owner: &str| json!({ "metadata": { "name": uid, "uid": uid, "ownerReferences": [{ "uid": owner }] } });
        let items = vec![item("", "configmaps", owned("a", "b")), item("", "configmaps", owned("b", "a"))];
        assert_eq!(in_order(items).into_iter().map(|group| group.len()).sum::<usize>(), 2);
    }
}
