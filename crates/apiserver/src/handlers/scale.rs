//! The `scale` subresource: one number of an object, seen as an `autoscaling/v1 Scale`.

use apimachinery::field::{self, Path};
use apimachinery::gvk::Gvk;
use apimachinery::selector::LabelSelector;
use apimachinery::status::Status;
use bytes::Bytes;
use serde_json::{Value, json};

use super::decode;
use super::update::{Patch, PatchType};
use super::write::{Change, Outcome, Target};
use crate::object;
use crate::registry::{Kind, Source};

pub fn gvk() -> Gvk {
    Gvk::new("autoscaling", "v1", "Scale")
}

/// Where the numbers of a scalable object stand.
#[derive(Debug, Clone)]
pub struct Paths {
    pub spec: String,
    pub status: String,
    pub selector: Option<String>,
}

fn paths(kind: &Kind) -> Paths {
    match &kind.source {
        Source::Custom(custom) => custom.scale_paths(&kind.gvk.version).unwrap_or_else(default_paths),
        Source::Native => default_paths(),
    }
}

fn default_paths() -> Paths {
    Paths { spec: ".spec.replicas".to_owned(), status: ".status.replicas".to_owned(), selector: None }
}

fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    object.pointer(&path.replace('.', "/"))
}

fn set(object: &mut Value, path: &str, value: Value) {
    let mut here = object;
    for part in path.trim_start_matches('.').split('.') {
        if !here.is_object() {
            *here = json!({});
        }
        here = here.as_object_mut().expect("made an object above").entry(part).or_insert(Value::Null);
    }
    *here = value;
}

/// Gives an object the number of replicas of a Scale.
pub fn set_replicas(kind: &Kind, object: &mut Value, scale: &Value) {
    let path = paths(kind).spec;
    let wanted = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    if at(object, &path).and_then(Value::as_i64) != Some(wanted) {
        set(object, &path, json!(wanted));
    }
}

/// Returns the Scale of an object.
pub fn of(kind: &Kind, object: &Value) -> Result<Value, Status> {
    let paths = paths(kind);
    let replicas = match at(object, &paths.spec).and_then(Value::as_i64) {
        Some(replicas) => replicas,
        None if kind.is_custom() => {
            return Err(Status::internal(format!("the spec replicas field {:?} does not exist", paths.spec)));
        }
        None => 0,
    };
    let mut scale = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {},
        "spec": {},
        "status": {"replicas": at(object, &paths.status).and_then(Value::as_i64).unwrap_or(0)},
    });
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        let value = object::meta_str(object, field);
        if !value.is_empty() {
            scale["metadata"][field] = json!(value);
        }
    }
    if replicas != 0 {
        scale["spec"]["replicas"] = json!(replicas);
    }
    let selector = match &paths.selector {
        Some(path) => at(object, path).and_then(Value::as_str).unwrap_or("").to_owned(),
        None if kind.is_custom() => String::new(),
        None => selector_text(kind, object),
    };
    if !selector.is_empty() {
        scale["status"]["selector"] = json!(selector);
    }
    Ok(scale)
}

fn selector_text(kind: &Kind, object: &Value) -> String {
    let Some(selector) = object.pointer("/spec/selector") else { return String::new() };
    if kind.gvk.kind == "ReplicationController" {
        let labels = selector.as_object().into_iter().flatten();
        return LabelSelector::from_labels(
            labels.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or(""))),
        )
        .to_string();
    }
    LabelSelector::from_object(Some(selector)).map(|selector| selector.to_string()).unwrap_or_default()
}

/// A new Scale for an object: replaced or patched.
struct Rescale<'a> {
    kind: &'a Kind,
    name: &'a str,
    new: ScaleChange<'a>,
}

enum ScaleChange<'a> {
    Replace(Value),
    Patch(Patch<'a>),
}

impl Change for Rescale<'_> {
    fn apply(&self, old: &Value) -> Result<Value, Status> {
        let paths = paths(self.kind);
        let scale = match &self.new {
            ScaleChange::Replace(scale) => scale.clone(),
            ScaleChange::Patch(patch) => {
                // A custom object without the field has no Scale to read, but it can get one.
                let mut base = old.clone();
                if at(&base, &paths.spec).is_none() {
                    set(&mut base, &paths.spec, json!(0));
                }
                patch.patch(&of(self.kind, &base)?)?
            }
        };
        let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
        if replicas < 0 {
            let path = Path::new("spec").child("replicas");
            let error = field::Error::invalid(&path, replicas, "must be greater than or equal to 0");
            return Err(Status::invalid("autoscaling", "Scale", self.name, &[error]));
        }
        let mut new = old.clone();
        set(&mut new, &paths.spec, json!(replicas));
        let sent = object::meta_str(&scale, "resourceVersion").to_owned();
        let uid = object::meta_str(&scale, "uid").to_owned();
        let metadata = object::meta_mut(&mut new);
        metadata.insert("resourceVersion".to_owned(), sent.into());
        if !uid.is_empty() {
            metadata.insert("uid".to_owned(), uid.into());
        }
        Ok(new)
    }

    fn is_patch(&self) -> bool {
        // A Scale does not have to carry a revision.
        true
    }
}

/// Runs a PUT or PATCH of the scale; answers with the new Scale.
pub async fn write(target: &Target<'_>, body: &Bytes, is_patch: bool) -> Result<Outcome, Status> {
    let new = if is_patch {
        let patch = PatchType::parse(target.context, target.kind)?;
        if patch == PatchType::Apply {
            return Err(Status::unsupported_media_type(
                "the scale of an object takes JSON, merge and strategic merge patches; apply the object itself instead",
            ));
        }
        ScaleChange::Patch(Patch::decode(target.context, target.kind, gvk(), patch, body, target.options)?)
    } else {
        let scale =
            decode::object(target.context, target.kind, &gvk(), body, target.options.field_validation)?;
        let name = object::meta_str(&scale, "name");
        if name != target.name {
            return Err(Status::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                target.name
            )));
        }
        ScaleChange::Replace(scale)
    };
    let change = Rescale { kind: target.kind, name: target.name, new };
    // The object's own rules apply to the change, generation included.
    let whole = Target { subresource: "", scale: true, ..*target };
    let outcome = whole.update(&change).await?;
    Ok(Outcome { object: of(target.kind, &outcome.object)?, created: false })
}
