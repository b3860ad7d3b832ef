//! Ownership: a controller adopts objects that match its selector and have no controller, and releases those that no longer
//! match.

use apimachinery::selector::LabelSelector;
use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::objects::{Object, controlled_by, list, map_at};
use crate::plan::Step;
use crate::view::View;

/// The objects of one controller.
pub(crate) struct Family {
    pub(crate) members: Vec<Value>,
    /// The writes that make it so.
    pub(crate) steps: Vec<Step>,
}

/// Returns the objects of a kind that belong to `owner`. `fits` may exclude some that its selector matches. With a `finalizer`,
/// adopted objects get it and released ones lose it.
pub(crate) fn gather(
    view: &View<'_>,
    kind: Kind,
    owner: &Value,
    finalizer: Option<&str>,
    fits: impl Fn(&Value) -> bool,
) -> Family {
    let selector = selector(owner);
    let takes = |object: &Value| {
        selector.as_ref().is_none_or(|selector| selector.matches(object.labels())) && fits(object)
    };
    let mut family = Family { members: Vec::new(), steps: Vec::new() };
    for object in view.objects.family(kind, owner.namespace(), owner.uid(), selector.as_ref()) {
        // Other owners may remain; only one controls it.
        let is_ours = object.controller().is_some_and(|each| each["uid"] == owner.uid());
        match (is_ours, takes(&object)) {
            (true, true) => family.members.push(object),
            (true, false) if !owner.is_deleting() => {
                family.steps.push(Step::Update { kind, object: released(&object, owner, finalizer) });
            }
            (false, true)
                if object.controller().is_none() && !object.is_deleting() && !owner.is_deleting() =>
            {
                let object = adopted(&object, owner, finalizer);
                family.steps.push(Step::Update { kind, object: object.clone() });
                family.members.push(object);
            }
            _ => {}
        }
    }
    family
}

/// Returns the selector of a controller; a ReplicationController's is a plain map. An empty one matches what it already owns.
fn selector(owner: &Value) -> Option<LabelSelector> {
    let selector = owner.pointer("/spec/selector")?;
    let plain = json!({"matchLabels": selector});
    let selector = if owner["kind"] == "ReplicationController" { &plain } else { selector };
    LabelSelector::from_object(Some(selector)).ok()
}

fn adopted(object: &Value, owner: &Value, finalizer: Option<&str>) -> Value {
    let mut object = object.clone();
    let mut owners = list(&object, "/metadata/ownerReferences").to_vec();
    owners.push(controlled_by(owner));
    let mut finalizers = list(&object, "/metadata/finalizers").to_vec();
    let metadata = map_at(&mut object, "metadata");
    metadata.insert("ownerReferences".to_owned(), owners.into());
    if let Some(finalizer) = finalizer.filter(|new| !finalizers.iter().any(|own| own == new)) {
        finalizers.push(json!(finalizer));
        metadata.insert("finalizers".to_owned(), finalizers.into());
    }
    object
}

fn released(object: &Value, owner: &Value, finalizer: Option<&str>) -> Value {
    let mut object = object.clone();
    let mut owners = list(&object, "/metadata/ownerReferences").to_vec();
    owners.retain(|each| each["uid"] != owner.uid());
    let mut finalizers = list(&object, "/metadata/finalizers").to_vec();
    finalizers.retain(|own| finalizer.is_none_or(|gone| own != gone));
    let metadata = map_at(&mut object, "metadata");
    for (field, left) in [("ownerReferences", owners), ("finalizers", finalizers)] {
        if left.is_empty() {
            metadata.remove(field);
        } else {
            metadata.insert(field.to_owned(), left.into());
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Object;
    use crate::view::fake::with_view;

    fn set() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": "s", "namespace": "d", "uid": "set"},
            "spec": {"selector": {"matchLabels": {"app": "a"}}}})
    }

    fn pod(name: &str, app: &str, owner: Option<&str>) -> Value {
        let owners: Vec<Value> =
            owner.into_iter().map(|uid| json!({"uid": uid, "controller": true})).collect();
        json!({"kind": "Pod", "metadata": {"name": name, "namespace": "d", "labels": {"app": app},
            "ownerReferences": owners, "finalizers": ["f"]}})
    }

    fn gathered(set: &Value, pods: Vec<Value>) -> (Vec<String>, Vec<(String, usize, usize)>) {
        let family = with_view(pods, |view| gather(view, Kind::Pod, set, Some("f"), |_| true));
        let members = family.members.iter().map(|pod| pod.name().to_owned()).collect();
        let written = family.steps.iter().map(|step| match step {
            Step::Update { object, .. } => {
                let count = |field: &str| list(object, &format!("/metadata/{field}")).len();
                (object.name().to_owned(), count("ownerReferences"), count("finalizers"))
            }
            other => panic!("{other:?}"),
        });
        (members, written.collect())
    }

    #[test]
    fn orphans_are_taken_in_and_others_children_left_alone() {
        let pods = vec![
            pod("own", "a", Some("set")),
            pod("orphan", "a", None),
            pod("other", "a", Some("else")),
            pod("stranger", "b", None),
        ];
        let (members, written) = gathered(&set(), pods);
        assert_eq!(members, ["own", "orphan"]);
        assert_eq!(written, [("orphan".to_owned(), 1, 1)]);
    }

    #[test]
    fn an_object_that_no_longer_matches_is_released() {
        let (members, written) = gathered(&set(), vec![pod("changed", "b", Some("set"))]);
        assert!(members.is_empty());
        assert_eq!(written, [("changed".to_owned(), 0, 0)]);
    }

    #[test]
    fn an_owner_that_is_not_the_controller_releases_nothing() {
        let mut shared = pod("shared", "b", Some("else"));
        let owners = shared["metadata"]["ownerReferences"].as_array_mut().expect("a list");
        owners.push(json!({"uid": "set"}));
        let (members, written) = gathered(&set(), vec![shared]);
        assert!(members.is_empty() && written.is_empty());
    }

    #[test]
    fn a_controller_that_is_being_deleted_adopts_nothing() {
        let mut going = set();
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let (members, written) = gathered(&going, vec![pod("orphan", "a", None)]);
        assert!(members.is_empty() && written.is_empty());
    }
}
