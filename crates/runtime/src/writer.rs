//! Writes to the API: only what differs, only our own fields, and as durably as needed.
//!
//! A write is on disk before it is answered, unless the caller says that it can be computed again from other
//! stored objects: [`Writer::derived`]. Claims, bindings, decisions and every status are such writes. A write
//! that has an effect outside the control plane, or that cannot be computed again, is durable; this is also
//! the default. A server in this process gives the two kinds two clients; any other server has one client for
//! both.

use std::fmt::Debug;

use apimachinery::object::{child, fields};
use apimachinery::patch::merge;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::queue::Outcome;
use crate::{Key, Mirror};

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}", describe(.0))]
    Api(#[from] kube::Error),
    /// The observed state does not allow a decision.
    #[error(transparent)]
    Decision(Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot encode an object: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("kind {0} is not known to the control plane")]
    UnknownKind(String),
    #[error("waiting {0}")]
    Waiting(String),
    /// The errors of some of several objects.
    #[error("{}", .0.join("; "))]
    Several(Vec<String>),
}

/// The API's own message, without the wrapping.
fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// What to do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Another writer was faster; the next reconcile sees the newer object.
    Conflict,
    /// Retry, after a longer wait each time.
    Backoff,
}

impl Error {
    /// Wraps the error of a function that decides.
    pub fn decision(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Decision(Box::new(error))
    }

    /// Joins the errors of several writes. A single error is kept as it is, so that a conflict is recognised;
    /// several conflicts are still a conflict.
    pub fn join(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ if errors.iter().all(Self::is_conflict) => Err(errors.remove(0)),
            _ => Err(Self::Several(errors.iter().map(ToString::to_string).collect())),
        }
    }

    /// Returns what to do next.
    pub fn retry(&self) -> Retry {
        if self.is_conflict() { Retry::Conflict } else { Retry::Backoff }
    }

    /// Returns whether another writer was faster.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// Returns whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Returns whether the server does not accept the object as it would be.
    pub fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    /// Returns whether an object of this name exists already.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists")
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Api(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }
}

impl From<Error> for Outcome {
    fn from(error: Error) -> Self {
        Self::Failed { conflict: error.retry() == Retry::Conflict, error: error.to_string() }
    }
}

impl From<Result<(), Error>> for Outcome {
    fn from(result: Result<(), Error>) -> Self {
        result.map_or_else(Self::from, |()| Self::Done)
    }
}

/// Whether objects of a kind are in namespaces or not.
pub trait Place {
    /// Returns the collection of a namespace; kinds without namespaces ignore it.
    fn api<K: Resource<Scope = Self, DynamicType = ()>>(client: Client, namespace: &str) -> Api<K>;
}

impl Place for NamespaceResourceScope {
    fn api<K: Resource<Scope = Self, DynamicType = ()>>(client: Client, namespace: &str) -> Api<K> {
        Api::namespaced(client, namespace)
    }
}

impl Place for ClusterResourceScope {
    fn api<K: Resource<Scope = Self, DynamicType = ()>>(client: Client, _: &str) -> Api<K> {
        Api::all(client)
    }
}

/// An object of a kind that is known when the program is compiled.
pub trait Stored:
    Resource<DynamicType = (), Scope: Place> + Clone + Serialize + DeserializeOwned + Debug + Send + Sync
{
}

impl<K> Stored for K where
    K: Resource<DynamicType = (), Scope: Place> + Clone + Serialize + DeserializeOwned + Debug + Send + Sync
{
}

/// Whether a write is refused when the object has changed since it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// The fields have one writer; other changes do not matter.
    Fields,
    /// The change was derived from the object as it was.
    Version,
}

/// How often a change is computed again after a conflict.
const ATTEMPTS: usize = 5;

/// Writes objects; cheap to clone.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    derived: Client,
}

impl Writer {
    /// Returns a writer for a server that treats all writes alike.
    pub fn new(client: Client) -> Self {
        Self { derived: client.clone(), client }
    }

    /// Returns a writer for a server that answers requests of `derived` before they are on disk.
    pub fn with_derived(client: Client, derived: Client) -> Self {
        Self { client, derived }
    }

    /// Returns the writer for data that can be computed again from other stored objects: it need not wait for
    /// the disk.
    pub fn derived(&self) -> Self {
        Self { client: self.derived.clone(), derived: self.derived.clone() }
    }

    /// Returns the client for all other requests. Its writes are as durable as those of this writer.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the objects of a kind in a namespace, or those without one.
    pub fn api<K: Stored>(&self, namespace: &str) -> Api<K> {
        <K::Scope as Place>::api(self.client.clone(), namespace)
    }

    fn api_of<K: Stored>(&self, object: &K) -> Api<K> {
        self.api(object.meta().namespace.as_deref().unwrap_or(""))
    }

    /// Creates an object and updates the mirror at once.
    pub async fn create<K: Stored>(&self, mirror: &Mirror<K>, object: &K) -> Result<(), Error> {
        mirror.note(self.api_of(object).create(&PostParams::default(), object).await?);
        Ok(())
    }

    /// Writes the difference between two states of an object; returns the resulting object, or `None` if there was no difference.
    /// Lists with several writers, such as finalizers, are always guarded by the version.
    pub async fn update<K: Stored>(&self, old: &K, new: &K, guard: Guard) -> Result<Option<K>, Error> {
        let Some(patch) = difference(old, new, old.meta(), guard)? else { return Ok(None) };
        let api = self.api_of(old);
        Ok(Some(api.patch(name(old), &PatchParams::default(), &Patch::Merge(patch)).await?))
    }

    /// As [`Self::update`], and updates the mirror immediately; returns whether there was a difference.
    pub async fn update_mirrored<K: Stored>(
        &self,
        mirror: &Mirror<K>,
        old: &K,
        new: &K,
        guard: Guard,
    ) -> Result<bool, Error> {
        let written = self.update(old, new, guard).await?;
        Ok(written.map(|written| mirror.note(written)).is_some())
    }

    /// Writes fields of an object, whatever its current state is, and updates the mirror immediately. An object that is gone
    /// is not an error. Returns whether it existed. Unlike [`Self::update`], it also writes fields that the mirror may not know
    /// yet, such as an annotation that must be removed, whoever set it.
    pub async fn patch_mirrored<K: Stored>(
        &self,
        mirror: &Mirror<K>,
        key: &Key,
        patch: Value,
    ) -> Result<bool, Error> {
        let api = self.api::<K>(&key.namespace);
        match api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(answer) => {
                mirror.note(answer);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`Self::update`], for the status. A status shows what was observed, so it can always be computed
    /// again.
    pub async fn update_status<K: Stored>(&self, old: &K, new: &K, guard: Guard) -> Result<Option<K>, Error> {
        let Some(patch) = difference(old, new, old.meta(), guard)? else { return Ok(None) };
        self.patch_status(old, patch).await.map(Some)
    }

    /// Writes fields of a status, whatever its current state is.
    pub async fn patch_status<K: Stored>(&self, object: &K, patch: Value) -> Result<K, Error> {
        let api = self.derived().api_of(object);
        Ok(api.patch_status(name(object), &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    /// Changes the status of an object with several writers: after a conflict, the change is applied to the newer status. Returns
    /// the resulting object, or `None` if `change` had nothing to do.
    pub async fn change_status<K: Stored>(
        &self,
        object: &K,
        change: impl Fn(&mut K) -> Result<(), Error>,
    ) -> Result<Option<K>, Error> {
        let mut seen = object.clone();
        let mut attempt = 1_usize;
        loop {
            let mut wanted = seen.clone();
            change(&mut wanted)?;
            match self.update_status(&seen, &wanted, Guard::Version).await {
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => {
                    let Some(newer) = self.api_of(object).get_opt(name(object)).await? else {
                        return Ok(None);
                    };
                    if newer.meta().uid != object.meta().uid {
                        return Ok(None);
                    }
                    seen = newer;
                    attempt = attempt.saturating_add(1);
                }
                result => return result,
            }
        }
    }

    /// Writes the answer to a certificate request, and updates the mirror immediately; returns whether there was a difference. It
    /// is a conflict if the request has changed since it was read, since another process may have answered it. Unlike a status,
    /// it is on disk before it is acknowledged: a signed certificate remains valid.
    pub async fn update_approval(
        &self,
        mirror: &Mirror<CertificateSigningRequest>,
        old: &CertificateSigningRequest,
        new: &CertificateSigningRequest,
    ) -> Result<bool, Error> {
        let Some(patch) = difference(old, new, old.meta(), Guard::Version)? else { return Ok(false) };
        let (api, patch) = (self.api_of(old), Patch::Merge(patch));
        mirror.note(api.patch_subresource("approval", name(old), &PatchParams::default(), &patch).await?);
        Ok(true)
    }

    /// Applies the fields of `object` by server-side apply as `manager`; returns the object as it now is. It
    /// is a conflict if others own a field and want another value.
    pub async fn apply<K: Stored>(&self, manager: &str, object: &K) -> Result<K, Error> {
        let parameters = PatchParams::apply(manager);
        Ok(self.api_of(object).patch(name(object), &parameters, &Patch::Apply(object)).await?)
    }

    /// Removes a finalizer from an object, if the object still exists and has the finalizer. Returns whether
    /// anything was written. The mirror is updated immediately, so that the removal of the next finalizer starts from the newest
    /// version.
    pub async fn release<K: Stored>(
        &self,
        mirror: &Mirror<K>,
        object: &K,
        finalizer: &str,
    ) -> Result<bool, Error> {
        let mut released = object.clone();
        let finalizers = released.meta_mut().finalizers.get_or_insert_default();
        finalizers.retain(|held| held != finalizer);
        if finalizers.len() == object.meta().finalizers.as_ref().map_or(0, Vec::len) {
            return Ok(false);
        }
        // Encoded as an empty list, not as a missing one: a merge patch removes only what it mentions.
        let patch = json!({ "metadata": {
            "resourceVersion": object.meta().resource_version, "finalizers": finalizers,
        } });
        match self.api_of(object).patch(name(object), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(answer) => {
                // An object is gone with its last finalizer. The watch reports the deletion.
                let meta = answer.meta();
                let gone =
                    meta.deletion_timestamp.is_some() && meta.finalizers.iter().flatten().next().is_none();
                if !gone {
                    mirror.note(answer);
                }
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes exactly this object, if it is still there. If another object has its name by now, that is a
    /// conflict: the next reconcile sees that one.
    pub async fn delete<K: Stored>(&self, object: &K) -> Result<(), Error> {
        self.delete_if(object, Guard::Fields).await
    }

    /// As [`Self::delete`]; it is a conflict as well if the object has changed since it was read.
    pub async fn delete_unchanged<K: Stored>(&self, object: &K) -> Result<(), Error> {
        self.delete_if(object, Guard::Version).await
    }

    async fn delete_if<K: Stored>(&self, object: &K, guard: Guard) -> Result<(), Error> {
        let parameters = DeleteParams {
            preconditions: Some(preconditions(object.meta(), guard)),
            ..DeleteParams::default()
        };
        match self.api_of(object).delete(name(object), &parameters).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn preconditions(metadata: &ObjectMeta, guard: Guard) -> Preconditions {
    let version = metadata.resource_version.clone().filter(|_| guard == Guard::Version);
    Preconditions { uid: metadata.uid.clone(), resource_version: version }
}

fn name<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or("")
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
    let shared = ["/metadata/finalizers", "/spec/requiredBy"].iter().any(|at| patch.pointer(at).is_some());
    if (shared || guard == Guard::Version)
        && let Some(version) = version
    {
        child(fields(&mut patch), "metadata").insert("resourceVersion".to_owned(), version.into());
    }
    patch
}

/// Returns the merge patch from one tree to another, for objects of any kind.
pub fn tree_difference(old: &Value, new: &Value, guard: Guard) -> Option<Value> {
    let version = old["metadata"].get("resourceVersion").and_then(Value::as_str);
    merge::diff(old, new).map(|patch| guarded(patch, version, guard))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::client::Body;
    use parking_lot::Mutex;

    use super::*;

    /// A client that notes every request under a name, and gives the same answer to each.
    fn answering(name: &'static str, asked: &Arc<Mutex<Vec<String>>>, answer: Value) -> Client {
        let asked = asked.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let path = request.uri().path().rsplit_once("/certificatesigningrequests/");
            let path = path.map_or("elsewhere", |(_, rest)| rest);
            asked.lock().push(format!("{name}: {} {path}", request.method()));
            let answer = http::Response::new(Body::from(answer.to_string().into_bytes()));
            async move { Ok::<_, tower::BoxError>(answer) }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_status_does_not_wait_for_the_disk_and_an_approval_does() {
        let request = |version: &str, status: Value| {
            json!({
                "metadata": { "name": "r", "resourceVersion": version },
                "spec": { "request": "", "signerName": "s" }, "status": status,
            })
        };
        let read = |tree: Value| -> CertificateSigningRequest { serde_json::from_value(tree).expect("one") };
        let approved = json!({ "conditions": [{ "type": "Approved", "status": "True" }] });
        let (old, new) = (read(request("7", json!({}))), read(request("7", approved.clone())));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let client = |name| answering(name, &asked, request("8", approved.clone()));
        let (writer, mirror) =
            (Writer::with_derived(client("durable"), client("derived")), Mirror::default());
        let taken = || std::mem::take(&mut *asked.lock());

        assert!(!writer.update_approval(&mirror, &old, &old).await.expect("nothing to do"));
        assert_eq!(taken(), [""; 0]);
        assert!(writer.update_approval(&mirror, &old, &new).await.expect("written"));
        assert_eq!(taken(), ["durable: PATCH r/approval"]);
        assert_eq!(mirror.revision("", "r"), 8, "the mirror knows the answer");
        writer.update_status(&old, &new, Guard::Version).await.expect("written");
        assert_eq!(taken(), ["derived: PATCH r/status"]);
        let key = Key::new("", "r");
        assert!(writer.patch_mirrored(&mirror, &key, json!({})).await.expect("written"));
        writer.delete_unchanged(&old).await.expect("deleted");
        assert_eq!(taken(), ["durable: PATCH r", "durable: DELETE r"]);
        assert!(writer.derived().patch_mirrored(&mirror, &key, json!({})).await.expect("written"));
        writer.derived().delete(&old).await.expect("deleted");
        assert_eq!(taken(), ["derived: PATCH r", "derived: DELETE r"]);
    }

    fn object(version: &str, finalizers: &[&str], replicas: i64) -> Value {
        json!({
            "metadata": { "name": "a", "resourceVersion": version, "finalizers": finalizers },
            "spec": { "replicas": replicas },
        })
    }

    #[track_caller]
    fn check(old: &Value, new: &Value, guard: Guard, expected: Option<Value>) {
        assert_eq!(tree_difference(old, new, guard), expected);
    }

    #[test]
    fn only_what_differs_is_written() {
        let old = object("7", &[], 1);
        check(&old, &old, Guard::Version, None);
        check(&old, &object("7", &[], 2), Guard::Fields, Some(json!({ "spec": { "replicas": 2 } })));
        let guarded = json!({ "metadata": { "resourceVersion": "7" }, "spec": { "replicas": 2 } });
        check(&old, &object("7", &[], 2), Guard::Version, Some(guarded));
    }

    #[test]
    fn lists_with_several_writers_are_always_guarded() {
        let released = json!({ "metadata": { "resourceVersion": "7", "finalizers": [] } });
        check(&object("7", &["f"], 1), &object("7", &[], 1), Guard::Fields, Some(released));
        let required =
            |by: Value| json!({ "metadata": { "resourceVersion": "7" }, "spec": { "requiredBy": by } });
        let patch = json!({ "metadata": { "resourceVersion": "7" }, "spec": { "requiredBy": ["a"] } });
        check(&required(json!([])), &required(json!(["a"])), Guard::Fields, Some(patch));
    }

    #[test]
    fn a_deletion_says_which_object_is_meant_and_which_version_if_that_counts() {
        let meta = ObjectMeta {
            uid: Some("u".to_owned()),
            resource_version: Some("7".to_owned()),
            ..ObjectMeta::default()
        };
        let sent = |guard: Guard| serde_json::to_value(preconditions(&meta, guard)).expect("a tree");
        assert_eq!(sent(Guard::Fields), json!({ "uid": "u" }));
        assert_eq!(sent(Guard::Version), json!({ "uid": "u", "resourceVersion": "7" }));
    }

    fn answer(code: u16, reason: &str) -> Error {
        let status = json!({ "status": "Failure", "message": "m", "reason": reason, "code": code });
        Error::Api(kube::Error::Api(Box::new(serde_json::from_value(status).expect("a status"))))
    }

    #[test]
    fn an_error_knows_how_to_go_on() {
        assert_eq!(answer(409, "Conflict").retry(), Retry::Conflict);
        assert_eq!(answer(500, "InternalError").retry(), Retry::Backoff);
        assert!(
            answer(409, "AlreadyExists").is_already_exists() && !answer(409, "Conflict").is_already_exists()
        );
        assert!(answer(404, "NotFound").is_not_found());
        let outcome = Outcome::from(answer(409, "Conflict"));
        assert_eq!(outcome, Outcome::Failed { error: "m".to_owned(), conflict: true });
    }

    #[test]
    fn one_error_of_several_stays_itself() {
        assert!(Error::join(Vec::new()).is_ok());
        assert!(Error::join(vec![answer(409, "Conflict")]).unwrap_err().is_conflict());
        let conflicts = Error::join(vec![answer(409, "Conflict"), answer(409, "Conflict")]).unwrap_err();
        assert_eq!((conflicts.retry(), conflicts.to_string()), (Retry::Conflict, "m".to_owned()));
        let both = Error::join(vec![answer(409, "Conflict"), Error::Waiting("for b".to_owned())]);
        assert_eq!(both.unwrap_err().to_string(), "m; waiting for b");
    }
}
