//! Writes and applies on the sample kind, as sequences of what clients do.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::server_side_apply::sample::{Samples, objects};

const NOW: &str = "2026-01-01T00:00:00Z";
const LATER: &str = "2026-01-02T00:00:00Z";

struct World {
    gvk: Gvk,
    reset: BTreeMap<String, Set>,
    object: Value,
}

impl World {
    fn new() -> Self {
        Self {
            gvk: Gvk::new("test", "v1", "Sample"),
            reset: BTreeMap::new(),
            object: json!({"apiVersion": "test/v1", "kind": "Sample"}),
        }
    }

    fn manager(&self) -> FieldManager<'_, Samples> {
        FieldManager { types: &Samples, gvk: &self.gvk, subresource: "", reset: &self.reset }
    }

    fn complete(body: Value) -> Value {
        let mut object = body;
        object["apiVersion"] = json!("test/v1");
        object["kind"] = json!("Sample");
        if object.get("metadata").is_none() {
            object["metadata"] = json!({});
        }
        object["metadata"]["name"] = json!("x");
        object
    }

    fn stored(&mut self, mut object: Value) {
        object["metadata"]["uid"] = json!("1");
        self.object = object;
    }

    fn apply(&mut self, manager: &str, body: Value, now: &str) -> Result<&Value, Error> {
        self.apply_with(manager, body, false, now)
    }

    fn apply_with(&mut self, manager: &str, body: Value, force: bool, now: &str) -> Result<&Value, Error> {
        let object = self.manager().apply(&self.object, &Self::complete(body), manager, force, now)?;
        self.stored(object);
        Ok(&self.object)
    }

    fn update(&mut self, manager: &str, body: Value, now: &str) -> &Value {
        let mut body = Self::complete(body);
        if let Some(uid) = self.object.pointer("/metadata/uid") {
            body["metadata"]["uid"] = uid.clone();
        }
        let object = self.manager().update(&self.object, body, manager, now);
        self.stored(object);
        &self.object
    }

    /// `manager operation: fields` for every entry.
    fn owners(&self) -> Vec<String> {
        let entries = self.object.pointer("/metadata/managedFields").and_then(Value::as_array);
        entries
            .into_iter()
            .flatten()
            .map(|entry| {
                let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
                format!("{} {}: {}", text("manager"), text("operation"), json::write(&entry["fieldsV1"]))
            })
            .collect()
    }

    fn spec(&self) -> Value {
        self.object.get("spec").cloned().unwrap_or(Value::Null)
    }
}

#[test]
fn creating_by_apply_gives_the_fields_to_the_applier() {
    let mut world = World::new();
    world.apply("a", json!({"spec": {"n": 1}}), NOW).unwrap();
    assert_eq!(world.owners(), [r#"a Apply: {"f:spec":{"f:n":{}}}"#]);
    assert_eq!(world.object["metadata"]["managedFields"][0]["time"], NOW);
}

#[test]
fn creating_by_post_gives_the_fields_to_the_writer() {
    let mut world = World::new();
    world.update("w", json!({"spec": {"n": 1}, "metadata": {"labels": {"a": "1"}}}), NOW);
    assert_eq!(
        world.owners(),
        [r#"w Update: {"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{".":{},"f:n":{}}}"#]
    );
}

#[test]
fn an_empty_object_has_no_owners_and_stays_untracked() {
    let mut world = World::new();
    world.update("w", json!({}), NOW);
    assert!(world.owners().is_empty());
    world.update("w", json!({"spec": {"n": 1}}), NOW);
    assert!(world.owners().is_empty());
}

#[test]
fn applying_the_same_again_changes_nothing() {
    let mut world = World::new();
    let first = world.apply("a", json!({"spec": {"n": 1, "items": [{"name": "x"}]}}), NOW).unwrap().clone();
    let second = world.apply("a", json!({"spec": {"n": 1, "items": [{"name": "x"}]}}), LATER).unwrap();
    assert_eq!(*second, first);
}

#[test]
fn what_is_no_longer_applied_is_removed() {
    let mut world = World::new();
    world
        .apply(
            "a",
            json!({"spec": {"n": 1, "s": "x", "items": [{"name": "x"}, {"name": "y"}], "set": ["p", "q"]}}),
            NOW,
        )
        .unwrap();
    world.apply("a", json!({"spec": {"n": 1, "items": [{"name": "y"}], "set": ["q"]}}), LATER).unwrap();
    assert_eq!(world.spec(), json!({"n": 1, "items": [{"name": "y"}], "set": ["q"]}));
}

#[test]
fn what_another_manager_owns_survives_pruning() {
    let mut world = World::new();
    world.apply("a", json!({"spec": {"n": 1, "s": "x"}}), NOW).unwrap();
    world.apply("b", json!({"spec": {"s": "x"}}), NOW).unwrap();
    world.apply("a", json!({"spec": {"n": 1}}), LATER).unwrap();
    assert_eq!(world.spec(), json!({"n": 1, "s": "x"}));
    assert_eq!(world.owners(), [r#"b Apply: {"f:spec":{"f:s":{}}}"#, r#"a Apply: {"f:spec":{"f:n":{}}}"#]);
}

#[test]
fn an_item_survives_pruning_only_if_another_manager_owns_the_item_itself() {
    let mut world = World::new();
    world.apply("a", json!({"spec": {"items": [{"name": "x", "n": 1}, {"name": "y"}]}}), NOW).unwrap();
    // An update owns the field it added, not the item; an apply that names the item owns both.
    world.update("w", json!({"spec": {"items": [{"name": "x", "n": 1}, {"name": "y", "s": "added"}]}}), NOW);
    world.apply("b", json!({"spec": {"items": [{"name": "x", "s": "mine"}]}}), NOW).unwrap();
    world.apply("a", json!({"spec": {"n": 1}}), LATER).unwrap();
    assert_eq!(world.spec(), json!({"n": 1, "items": [{"name": "x", "s": "mine"}]}));
}

#[test]
fn a_container_that_is_applied_empty_stays() {
    let mut world = World::new();
    world.apply("a", json!({"spec": {"labels": {"x": "1"}}}), NOW).unwrap();
    world.apply("a", json!({"spec": {"labels": {}}}), LATER).unwrap();
    assert_eq!(world.spec(), json!({"labels": {}}));
}

#[test]
fn changing_what_another_owns_is_a_conflict() {
    let mut world = World::new();
    world.apply("a", json!({"spec": {"n": 1, "s": "x"}}), NOW).unwrap();
    let error = world.apply("b", json!({"spec": {"n": 2}}), LATER).unwrap_err();
    assert_eq!(error.to_string(), r#"Apply failed with 1 conflict: conflict with "a": .spec.n"#);
    let error = world.apply("b", json!({"spec": {"n": 2, "s": "y"}}), LATER).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"a\":\n- .spec.n\n- .spec.s"
    );
    let status = error.to_status();
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    let causes = status.details.unwrap().causes;
    assert_eq!(causes[0].field, ".spec.n");
    assert_eq!(causes[0].reason, "FieldManagerConflict");
    assert_eq!(causes[0].message, "conflict with \"a\"");
}

#[test]
fn updaters_are_named_with_their_version() {
    let mut world = World::new();
    world.update("w", json!({"spec": {"n": 1}}), NOW);
    let error = world.apply("a", json!({"spec": {"n": 2}}), NOW).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"Apply failed with 1 conflict: conflict with "w" using test/v1: .spec.n"#
    );
}

#[test]
fn force_moves_the_ownership() {
    let mut world = World::new();
    world.apply("a", json!({"spec": {"n": 1, "s": "x"}}), NOW).unwrap();
    world.apply_with("b", json!({"spec": {"n": 2}}), true, LATER).unwrap();
    assert_eq!(world.spec(), json!({"n": 2, "s": "x"}));
    assert_eq!(world.owners(), [r#"a Apply: {"f:spec":{"f:s":{}}}"#, r#"b Apply: {"f:spec":{"f:n":{}}}"#]);
}

#[test]
fn equal_values_are_shared_and_a_mere_joiner_has_no_time() {
    let mut world = World::new();
    world.apply("a", json!({"spec": {"n": 1}}), NOW).unwrap();
    world.apply("b", json!({"spec": {"n": 1}}), LATER).unwrap();
    assert_eq!(world.owners(), [r#"b Apply: {"f:spec":{"f:n":{}}}"#, r#"a Apply: {"f:spec":{"f:n":{}}}"#]);
    let entries = world.object["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries[0].get("time"), None);
    assert_eq!(entries[1]["time"], NOW);
}

#[test]
fn an_update_takes_what_it_changes_and_nothing_else() {
    let mut world = World::new();
    world.apply("a", json!({"spec": {"n": 1, "s": "x", "set": ["p"]}}), NOW).unwrap();
    world.update("w", json!({"spec": {"n": 2, "set": ["p", "q"]}}), LATER);
    assert_eq!(
        world.owners(),
        [
            r#"a Apply: {"f:spec":{"f:set":{"v:\"p\"":{}}}}"#,
            r#"w Update: {"f:spec":{"f:n":{},"f:set":{"v:\"q\"":{}}}}"#
        ]
    );
    assert_eq!(world.object["metadata"]["managedFields"][1]["time"], LATER);
}

#[test]
fn an_update_that_changes_nothing_keeps_the_entries() {
    let mut world = World::new();
    let before = world.update("w", json!({"spec": {"n": 1}}), NOW).clone();
    assert_eq!(*world.update("v", json!({"spec": {"n": 1}}), LATER), before);
}

#[test]
fn existing_fields_of_untracked_objects_go_to_before_first_apply() {
    let mut world = World::new();
    world.stored(World::complete(json!({"spec": {"n": 1, "s": "x"}})));
    let error = world.apply("a", json!({"spec": {"n": 2}}), NOW).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"Apply failed with 1 conflict: conflict with "before-first-apply" using test/v1: .spec.n"#
    );
    world.apply("a", json!({"spec": {"n": 1}}), NOW).unwrap();
    assert_eq!(
        world.owners(),
        [
            r#"a Apply: {"f:spec":{"f:n":{}}}"#,
            r#"before-first-apply Update: {"f:spec":{".":{},"f:n":{},"f:s":{}}}"#
        ]
    );
    assert_eq!(world.object["metadata"]["managedFields"][1].get("time"), None);
}

#[test]
fn managed_fields_can_be_reset_and_are_kept_when_left_out() {
    let mut world = World::new();
    world.update("w", json!({"spec": {"n": 1}}), NOW);
    world.update("w", json!({"spec": {"n": 1}}), NOW);
    assert_eq!(world.owners().len(), 1);
    for reset in [json!([]), json!([{}])] {
        let mut world = World::new();
        world.update("w", json!({"spec": {"n": 1}}), NOW);
        world.update("w", json!({"spec": {"n": 1}, "metadata": {"managedFields": reset}}), NOW);
        assert!(world.owners().is_empty());
    }
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let world = World::new();
    let refuse = |applied: Value| {
        let error = world.manager().apply(&world.object, &applied, "a", false, NOW).unwrap_err();
        (error.to_status().code, error.to_string())
    };
    assert_eq!(
        refuse(json!({"apiVersion": "test/v2", "kind": "Sample"})),
        (400, "invalid object type: test/v2, Kind=Sample".to_owned())
    );
    assert_eq!(refuse(json!({})), (400, "invalid object type: /, Kind=".to_owned()));
    let mut managed = World::complete(json!({}));
    managed["metadata"]["managedFields"] = json!([]);
    assert_eq!(refuse(managed), (400, "metadata.managedFields must be nil".to_owned()));
    assert_eq!(
        refuse(World::complete(json!({"spec": {"nope": 1}}))),
        (500, "failed to create typed patch object (/x; test/v1, Kind=Sample): .spec.nope: field not declared in schema".to_owned())
    );
    assert_eq!(
        refuse(World::complete(json!({"spec": {"set": ["1", "1"]}}))).1,
        r#"failed to create typed patch object (/x; test/v1, Kind=Sample): .spec.set: duplicate entries for key [="1"]"#
    );
}

#[test]
fn kubectl_may_take_over_its_own_client_side_configuration() {
    let last = r#"{"apiVersion":"test/v1","kind":"Sample","metadata":{"name":"x"},"spec":{"n":1}}"#;
    let body = |number: u8| json!({"spec": {"n": number}});
    let mut world = World::new();
    let mut object = World::complete(json!({"spec": {"n": 1}}));
    object["metadata"]["annotations"] = json!({LAST_APPLIED: last});
    world.update("kubectl-client-side-apply", object, NOW);
    world.apply("kubectl", body(2), LATER).unwrap();
    assert_eq!(world.spec(), json!({"n": 2}));
    let annotation = world.object["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap();
    assert!(annotation.contains(r#""n":2"#), "{annotation}");
    // Somebody else's change is still a conflict.
    world.update(
        "w",
        {
            let mut object = world.object.clone();
            object["spec"]["n"] = json!(7);
            object
        },
        LATER,
    );
    assert!(matches!(world.apply("kubectl", body(3), LATER), Err(Error::Conflicts(_))));
}

#[test]
fn reset_fields_are_never_owned() {
    let mut world = World::new();
    world.reset.insert("test/v1".to_owned(), Set::of_fields([["status"].as_slice()]));
    world.apply("a", json!({"spec": {"n": 1}, "status": {"n": 5}}), NOW).unwrap();
    assert_eq!(world.owners(), [r#"a Apply: {"f:spec":{"f:n":{}}}"#]);
    world.update("w", json!({"spec": {"n": 1}, "status": {"n": 6}}), NOW);
    assert_eq!(world.owners(), [r#"a Apply: {"f:spec":{"f:n":{}}}"#]);
}

#[test]
fn entries_of_versions_that_are_gone_are_dropped() {
    let mut world = World::new();
    world.apply("a", json!({"spec": {"n": 1}}), NOW).unwrap();
    let entry = json!({
        "manager": "old", "operation": "Update", "apiVersion": "test/v0", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:s": {}}},
    });
    let entries = world.object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut).unwrap();
    entries.push(entry.clone());
    let mut other = entry;
    other["manager"] = json!("other");
    other["apiVersion"] = json!("test/v2");
    entries.push(other);
    world.apply("a", json!({"spec": {"n": 2}}), LATER).unwrap();
    assert_eq!(
        world.owners(),
        [r#"a Apply: {"f:spec":{"f:n":{}}}"#, r#"other Update: {"f:spec":{"f:s":{}}}"#]
    );
}

#[test]
fn a_new_time_alone_is_no_change() {
    let old = json!({"metadata": {"managedFields": [{"manager": "a", "time": NOW}], "resourceVersion": "1"}, "spec": 1});
    let new = json!({"metadata": {"managedFields": [{"manager": "a", "time": LATER}], "resourceVersion": "1"}, "spec": 1});
    assert_eq!(keep_times_if_equal(&old, new.clone()), old);
    let mut changed = new;
    changed["spec"] = json!(2);
    assert_eq!(keep_times_if_equal(&old, changed.clone()), changed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn applying_twice_is_applying_once(
        live in objects(),
        applied in objects(),
        then in objects(),
    ) {
        let mut world = World::new();
        world.update("w", json!({"spec": live}), NOW);
        for body in [applied, then] {
            let once = world.apply_with("a", json!({"spec": body.clone()}), true, NOW).unwrap().clone();
            let twice = world.apply_with("a", json!({"spec": body}), true, LATER).unwrap().clone();
            prop_assert_eq!(once, twice);
        }
    }

    #[test]
    fn an_applier_owns_what_it_applied(applied in objects()) {
        let mut world = World::new();
        world.apply("a", json!({"spec": applied}), NOW).unwrap();
        let spec = world.spec();
        prop_assert_eq!(spec, applied);
    }
}
