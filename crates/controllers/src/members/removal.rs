//! The only place that deletes from members.
//!
//! An object is deleted only if its Work is being deleted, if the object carries our label, and if it names
//! this very Work. An object that is not in the mirror is read from the member, since it may still exist. The
//! deletion names the UID of the object that was checked, so another object of the same name is safe.

use api::labels::annotations::{WORK_NAME, WORK_NAMESPACE};
use member::{Kind, Lookup, Member};
use propagation::{Object, delivery};
use runtime::Key;
use serde_json::Value;

/// The result of a request to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removed {
    /// The member was told to delete it. We do not wait until it is gone.
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
        let uid = match judge(observed.as_ref(), work) {
            Verdict::Done(removed) => return Ok(removed),
            Verdict::Delete { uid } => uid.to_owned(),
        };
        match member.delete(kind, key, &uid).await {
            Ok(()) => return Ok(Removed::Deleted),
            // It is another object by now: decide again.
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

/// What happens to an object of a Work that is being deleted.
#[derive(Debug, PartialEq, Eq)]
enum Verdict<'a> {
    /// Delete the object with this UID.
    Delete {
        uid: &'a str,
    },
    Done(Removed),
}

fn judge<'a>(observed: Option<&'a Value>, work: &Key) -> Verdict<'a> {
    match observed {
        None => Verdict::Done(Removed::Absent),
        Some(object) if !is_ours(object, work) => Verdict::Done(Removed::Foreign),
        Some(object) if object.is_deleting() => Verdict::Done(Removed::Deleted),
        Some(object) => Verdict::Delete { uid: object.uid() },
    }
}

/// If someone removed the Work's name from an object, our label is enough, as upstream.
fn is_ours(object: &Value, work: &Key) -> bool {
    delivery::is_managed(object)
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
    fn what_is_deleted_and_what_is_not() {
        let work = Key::new("karmada-es-m1", "web-1");
        let object = |managed: &str, space: &str, name: &str| {
            json!({ "metadata": {
                "uid": "u", "labels": { "karmada.io/managed": managed },
                "annotations": { "work.karmada.io/namespace": space, "work.karmada.io/name": name },
            } })
        };
        let mut going = object("true", "karmada-es-m1", "web-1");
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let foreign = || Verdict::Done(Removed::Foreign);
        let cases = [
            ("ours", Some(object("true", "karmada-es-m1", "web-1")), Verdict::Delete { uid: "u" }),
            ("not managed", Some(object("false", "karmada-es-m1", "web-1")), foreign()),
            ("of another Work", Some(object("true", "karmada-es-m1", "web-2")), foreign()),
            ("of another control plane's cluster", Some(object("true", "karmada-es-m2", "web-1")), foreign()),
            ("never ours", Some(json!({ "metadata": { "name": "web", "uid": "u" } })), foreign()),
            (
                "somebody took the Work's name off",
                Some(json!({ "metadata": { "uid": "u", "labels": { "karmada.io/managed": "true" } } })),
                Verdict::Delete { uid: "u" },
            ),
            ("going already", Some(going), Verdict::Done(Removed::Deleted)),
            ("gone", None, Verdict::Done(Removed::Absent)),
        ];
        for (name, observed, expected) in cases {
            assert_eq!(judge(observed.as_ref(), &work), expected, "{name}");
        }
    }
}
