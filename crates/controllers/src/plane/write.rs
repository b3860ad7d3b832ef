//! Writing to the API: only what differs, only what is ours.

use std::fmt::Debug;

use apimachinery::patch::merge;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource};
use member::Mirror;
use propagation::Binding;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use api::work::{ClusterResourceBinding, ResourceBinding};

use crate::queue::Outcome;

/// Why a reconcile did not come to its end; it will be tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{}", describe(.0))]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Decision(#[from] propagation::Error),
    #[error("cannot encode an object: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("kind {0} is not known to the control plane")]
    UnknownKind(String),
    #[error("waiting {0}")]
    Waiting(String),
    /// What went wrong for some of several clusters.
    #[error("{}", .0.join("; "))]
    Several(Vec<String>),
}

/// The API's own words, without the wrapping.
fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

impl Error {
    /// Returns whether someone else was faster: nothing to worry about, the next look is at the newer object.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(error) if code(error) == Some(409))
    }
}

impl From<Result<(), Error>> for Outcome {
    fn from(result: Result<(), Error>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(error) => Self::Failed { conflict: error.is_conflict(), error: error.to_string() },
        }
    }
}

fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Returns whether the object is not there.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    code(error) == Some(404)
}

/// A binding that can be written; bridges the two scopes.
pub(crate) trait Stored:
    Binding + Resource<DynamicType = ()> + Serialize + DeserializeOwned + Debug
{
    fn api(client: &Client, namespace: &str) -> Api<Self>;
}

impl Stored for ResourceBinding {
    fn api(client: &Client, namespace: &str) -> Api<Self> {
        Api::namespaced(client.clone(), namespace)
    }
}

impl Stored for ClusterResourceBinding {
    fn api(client: &Client, _: &str) -> Api<Self> {
        Api::all(client.clone())
    }
}

/// Whether a write is refused when the object is no longer the one that was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The fields have one writer; whatever else changed does not matter.
    Fields,
    /// The change was derived from the object as it was.
    Version,
}

/// Writes the difference between two states of an object; returns the object as it now is, or nothing when there
/// was no difference. Lists that several write, such as finalizers, are always guarded by the version.
pub(crate) async fn update<K>(api: &Api<K>, old: &K, new: &K, guard: Guard) -> Result<Option<K>, Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    let Some(patch) = difference(old, new, old.meta(), guard)? else { return Ok(None) };
    let name = old.meta().name.as_deref().unwrap_or("");
    Ok(Some(api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?))
}

/// As [`update`], but the mirror learns of it at once; returns whether there was a difference.
pub(crate) async fn update_mirrored<K>(
    api: &Api<K>,
    mirror: &Mirror<K>,
    old: &K,
    new: &K,
    guard: Guard,
) -> Result<bool, Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    let written = update(api, old, new, guard).await?;
    Ok(written.map(|written| mirror.note(written)).is_some())
}

/// As [`update`], for the status.
pub(crate) async fn update_status<K>(api: &Api<K>, old: &K, new: &K, guard: Guard) -> Result<Option<K>, Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    let Some(patch) = difference(old, new, old.meta(), guard)? else { return Ok(None) };
    let name = old.meta().name.as_deref().unwrap_or("");
    Ok(Some(api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?))
}

fn difference<K: Serialize>(
    old: &K,
    new: &K,
    metadata: &ObjectMeta,
    guard: Guard,
) -> Result<Option<Value>, Error> {
    let patch = merge::diff(&serde_json::to_value(old)?, &serde_json::to_value(new)?);
    Ok(patch.map(|patch| guarded(patch, metadata.resource_version.as_deref(), guard)))
}

fn guarded(mut patch: Value, version: Option<&str>, guard: Guard) -> Value {
    let shared = patch["metadata"].get("finalizers").is_some() || patch["spec"].get("requiredBy").is_some();
    if (shared || guard == Guard::Version)
        && let Some(version) = version
    {
        if !patch["metadata"].is_object() {
            patch["metadata"] = json!({});
        }
        patch["metadata"]["resourceVersion"] = version.into();
    }
    patch
}

/// Returns the merge patch from one tree to another, for objects of any kind.
pub(crate) fn tree_difference(old: &Value, new: &Value, guard: Guard) -> Option<Value> {
    merge::diff(old, new).map(|patch| guarded(patch, old["metadata"]["resourceVersion"].as_str(), guard))
}

/// Creates an object; the mirror learns of it at once.
pub(crate) async fn create<K>(api: &Api<K>, mirror: &Mirror<K>, object: &K) -> Result<(), Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    mirror.note(api.create(&PostParams::default(), object).await?);
    Ok(())
}

/// Deletes this very object; that it is gone already is fine.
pub(crate) async fn delete<K>(api: &Api<K>, metadata: &ObjectMeta) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let parameters = DeleteParams {
        preconditions: Some(Preconditions { uid: metadata.uid.clone(), resource_version: None }),
        ..DeleteParams::default()
    };
    match api.delete(metadata.name.as_deref().unwrap_or(""), &parameters).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How often a change is worked out anew when someone else was faster.
const ATTEMPTS: usize = 5;

/// Changes the status of an object, which several write: when someone was faster, the change is made to what they
/// left. Returns the object as it now is, or nothing when `change` had nothing to do.
pub(crate) async fn change_status<K>(
    api: &Api<K>,
    object: &K,
    change: impl Fn(&mut K) -> Result<(), Error>,
) -> Result<Option<K>, Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    let mut seen = object.clone();
    let mut attempt = 1;
    loop {
        let mut wanted = seen.clone();
        change(&mut wanted)?;
        match update_status(api, &seen, &wanted, Guard::Version).await {
            Err(error) if error.is_conflict() && attempt < ATTEMPTS => {
                let name = object.meta().name.as_deref().unwrap_or("");
                let Some(newer) = api.get_opt(name).await? else { return Ok(None) };
                if newer.meta().uid != object.meta().uid {
                    return Ok(None);
                }
                seen = newer;
                attempt += 1;
            }
            result => return result,
        }
    }
}
