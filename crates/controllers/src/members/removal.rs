//! The one place that deletes from members.
//!
//! An object goes only if its Work is being deleted, if the object carries our mark, and if it says that it belongs to
//! this very Work. What a copy does not have is looked up in the member: not to be seen is not to be gone. The deletion
//! names the UID that was judged, so that something else of the same name is safe.

use api::labels::annotations::{WORK_NAME, WORK_NAMESPACE};
use member::{Kind, Lookup, Member};
use propagation::{Object, apply};
use runtime::Key;
use serde_json::Value;

/// What became of a request to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removed {
    /// The member was told to delete it. Nobody waits for it to disappear.
    Deleted,
    /// It does not exist.
    Absent,
    /// It is not ours and stays.
    Foreign,
}

/// Deletes the object of a Work that is being deleted.
pub(super) async fn remove(
    member: &Member,
    kind: &Kind,
    key: &Key,
    work: &Key,
) -> Result<Removed, member::Error> {
    let mut observed: Option<Value> = match member.look_up(kind, key).await {
        Lookup::Found(object) => Some((*object).clone()),
        Lookup::Missing | Lookup::Unknown => member.get(kind, key).await?,
    };
    for _ in 0..3 {
        let Some(object) = &observed else { return Ok(Removed::Absent) };
        if !is_ours(object, work) {
            return Ok(Removed::Foreign);
        }
        if object.is_deleting() {
            return Ok(Removed::Deleted);
        }
        match member.delete(kind, key, object.uid()).await {
            Ok(()) => return Ok(Removed::Deleted),
            // It is another one by now: judge again.
            Err(error) if error.is_conflict() => observed = member.get(kind, key).await?,
            Err(error) => return Err(error),
        }
    }
    Err(member::Error::Refused {
        code: 409,
        reason: "Conflict".to_owned(),
        message: format!("{} {key} changes faster than it can be deleted", kind.resource.kind),
    })
}

/// An object without the Work's name is one that somebody stripped; our mark is enough then, as upstream.
fn is_ours(object: &Value, work: &Key) -> bool {
    apply::is_managed(object)
        && match (object.annotation(WORK_NAMESPACE), object.annotation(WORK_NAME)) {
            (Some(namespace), Some(name)) => namespace == work.namespace && name == work.name,
            _ => true,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_carries_our_mark_and_belongs_to_the_work_is_ours() {
        let work = Key::new("karmada-es-m1", "web-1");
        let object = |managed: &str, name: &str| {
            json!({ "metadata": {
                "labels": { "karmada.io/managed": managed },
                "annotations": { "work.karmada.io/namespace": "karmada-es-m1", "work.karmada.io/name": name },
            } })
        };
        assert!(is_ours(&object("true", "web-1"), &work));
        assert!(!is_ours(&object("false", "web-1"), &work));
        assert!(!is_ours(&object("true", "web-2"), &work));
        assert!(!is_ours(&json!({ "metadata": { "name": "web" } }), &work));
        assert!(is_ours(&json!({ "metadata": { "labels": { "karmada.io/managed": "true" } } }), &work));
    }
}
