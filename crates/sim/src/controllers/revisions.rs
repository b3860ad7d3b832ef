//! ControllerRevisions: the versions of a StatefulSet's or DaemonSet's pod template.

use serde_json::{Value, json};

use super::family;
use crate::hash;
use crate::kinds::Kind;
use crate::objects::{Object, controlled_by, map_at, number};
use crate::plan::Step;
use crate::view::View;

/// All versions of a set, the oldest first, and the one with the current template.
pub(crate) struct Revisions {
    pub(crate) all: Vec<Value>,
    pub(crate) update: Value,
    pub(crate) hash: String,
}

/// Returns the versions of a set; the necessary writes are added to `steps`. `label` is the key of the hash.
pub(crate) fn sync(view: &View<'_>, set: &Value, label: &str, steps: &mut Vec<Step>) -> Revisions {
    let family = family::gather(view, Kind::ControllerRevision, set, None, |_| true);
    steps.extend(family.steps);
    let mut all = family.members;
    all.sort_by_key(|revision| number(revision, "/revision").unwrap_or(0));
    let data = data(set);
    let hash = hash::template(&set["spec"]["template"], number(set, "/status/collisionCount").unwrap_or(0));
    let newest = all.last().and_then(|last| number(last, "/revision")).unwrap_or(0);
    if let Some(at) = all.iter().rposition(|revision| revision["data"] == data) {
        let mut update = all[at].clone();
        if number(&update, "/revision").unwrap_or(0) < newest {
            // Back to an older version, which becomes the newest.
            update["revision"] = json!(newest + 1);
            steps.push(Step::Update { kind: Kind::ControllerRevision, object: update.clone() });
            all.remove(at);
            all.push(update.clone());
        }
        let hash = update.name().rsplit('-').next().unwrap_or("").to_owned();
        return Revisions { all, update, hash };
    }
    let mut labels = set.pointer("/spec/template/metadata/labels").cloned().unwrap_or_else(|| json!({}));
    if let Some(labels) = labels.as_object_mut() {
        labels.insert(label.to_owned(), json!(hash));
    }
    let mut update = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": format!("{}-{hash}", set.name()), "namespace": set.namespace(), "labels": labels,
            "ownerReferences": [controlled_by(set)]},
        "data": data,
        "revision": newest + 1,
    });
    if let Some(annotations) = set.pointer("/metadata/annotations").filter(|all| all.is_object()) {
        *map_at(&mut update["metadata"], "annotations") =
            annotations.as_object().cloned().unwrap_or_default();
    }
    if !set.is_deleting() {
        steps.push(Step::Create { kind: Kind::ControllerRevision, object: update.clone(), tell: None });
    }
    all.push(update.clone());
    Revisions { all, update, hash }
}

/// The content of a version: a patch that replaces the template.
fn data(set: &Value) -> Value {
    let mut template = set["spec"]["template"].clone();
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// Returns the template in a version.
pub(crate) fn template(revision: &Value) -> Value {
    let mut template = revision.pointer("/data/spec/template").cloned().unwrap_or_default();
    if let Some(fields) = template.as_object_mut() {
        fields.remove("$patch");
    }
    template
}

/// Deletes versions beyond the history limit, except those in use.
pub(crate) fn clean_up(set: &Value, revisions: &Revisions, in_use: &dyn Fn(&Value) -> bool) -> Vec<Step> {
    let limit = number(set, "/spec/revisionHistoryLimit").unwrap_or(10).max(0) as usize;
    let idle: Vec<&Value> = revisions
        .all
        .iter()
        .filter(|revision| revision.name() != revisions.update.name() && !in_use(revision))
        .collect();
    let surplus = idle.len().saturating_sub(limit);
    idle.into_iter().take(surplus).map(|revision| Step::delete(Kind::ControllerRevision, revision)).collect()
}
