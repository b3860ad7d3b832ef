//! Writes a plan into its target: into our server in this process, where objects keep their uids, or through any Kubernetes API.
//!
//! Both process the groups of [`identity::in_order`] one after the other; the objects of a group are written concurrently. Either
//! can be interrupted and started again: existing objects are not written twice.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use apimachinery::object::Object as _;
use apiserver::internal::Actor;
use apiserver::registry::Kind;
use apiserver::server::Server;
use futures::{StreamExt as _, TryStreamExt as _};
use http::{Method, Request};
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::identity::{self, Uids};
use super::plan::{Plan, Step};
use super::snapshot::{self, Item, Resource, Snapshot};

/// How many writes run at once: they share the syncs of the disk, and any API server can handle them.
const AT_ONCE: usize = 32;
/// How long it may take until the kind of a new definition is served.
const SERVED_WITHIN: Duration = Duration::from_secs(30);
/// How often a write is repeated because another client wrote the same object.
const ATTEMPTS: usize = 5;

/// Lets our server take over objects with their uids; existing ones with the same name are replaced.
pub(crate) async fn adopt(server: &Arc<Server>, items: Vec<Item>) -> anyhow::Result<()> {
    let actor = Actor::new(server, "system:karmada-migrate");
    for group in identity::in_order(items) {
        let writes = group.into_iter().map(|item| adopt_one(&actor, item));
        futures::stream::iter(writes).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    }
    Ok(())
}

async fn adopt_one(actor: &Actor, item: Item) -> anyhow::Result<()> {
    let key = item.key();
    let kind = served(actor.server(), &item.resource).await?;
    actor
        .adopt(&kind, &key.namespace, item.object, true)
        .await
        .map_err(|status| anyhow!("cannot take over {key}: {}", status.message))?;
    Ok(())
}

/// Returns a kind; waits for one whose definition has just been written.
async fn served(server: &Arc<Server>, resource: &Resource) -> anyhow::Result<Arc<Kind>> {
    let find = || server.registry.load().find(&resource.group, &resource.version, &resource.plural).cloned();
    let waiting = async {
        loop {
            if let Some(kind) = find() {
                return kind;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SERVED_WITHIN, waiting)
        .await
        .map_err(|_| anyhow!("{} {} is not served", resource.api_version(), resource.plural))
}

/// Carries out a plan through the API of the target.
pub(crate) async fn write(
    client: &Client,
    plan: &Plan,
    target: &Snapshot,
    prune: bool,
) -> anyhow::Result<()> {
    let uids = Mutex::new(plan.uids.clone());
    let steps: std::collections::BTreeMap<_, Step> =
        plan.planned.iter().map(|planned| (planned.item.key(), planned.step)).collect();
    let changed = plan.planned.iter().filter(|planned| planned.step != Step::Nothing);
    let items: Vec<Item> = changed.map(|planned| planned.item.clone()).collect();
    for group in identity::in_order(items) {
        let writes = group.into_iter().map(|item| {
            let step = steps.get(&item.key()).copied().unwrap_or(Step::Nothing);
            write_one(client, item, step, &uids)
        });
        futures::stream::iter(writes).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    }
    if prune {
        for key in &plan.extra {
            let Some(item) = target.items.get(key) else { continue };
            remove(client, item).await.with_context(|| format!("cannot remove {key}"))?;
        }
    }
    Ok(())
}

async fn write_one(client: &Client, item: Item, step: Step, uids: &Mutex<Uids>) -> anyhow::Result<()> {
    let key = item.key();
    let told = || format!("cannot write {key}");
    let mut wanted = item.object.clone();
    identity::rename(&mut wanted, &uids.lock());
    let mut stored = match step {
        Step::Create => create(client, &item.resource, &wanted).await.with_context(told)?,
        Step::Replace => replace(client, &item, &wanted).await.with_context(told)?,
        Step::Settle | Step::Nothing => {
            snapshot::get(client, &item.resource.path_of(&key)).await.with_context(told)?
        }
    };
    uids.lock().insert(item.uid().to_owned(), stored.meta("uid").to_owned());
    if item.resource.status && wanted.get("status").is_some_and(|status| !status.is_null()) {
        stored = settle_status(client, &item, &wanted, stored).await.with_context(told)?;
    }
    if item.object.is_deleting() && !stored.is_deleting() {
        delete(client, &item).await.with_context(told)?;
    }
    Ok(())
}

/// Creates an object; one that an earlier run has created is left as it is.
async fn create(client: &Client, resource: &Resource, wanted: &Value) -> anyhow::Result<Value> {
    let mut object = wanted.clone();
    let metadata = object.metadata_mut();
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        metadata.remove(field);
    }
    if resource.is("", "services")
        && let Some(Value::Object(spec)) = object.get_mut("spec")
        && spec.get("clusterIP").is_some_and(|address| address != "None")
    {
        // An address of the source's network is meaningless here.
        spec.retain(|field, _| !matches!(field.as_str(), "clusterIP" | "clusterIPs"));
    }
    let path = resource.path(object.namespace());
    let started = std::time::Instant::now();
    loop {
        match send(client, Method::POST, &path, Some(&object)).await {
            Ok(stored) => return Ok(stored),
            // The definition of this kind has just been written.
            Err(kube::Error::Api(status)) if status.code == 404 && started.elapsed() < SERVED_WITHIN => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
                let path = format!("{path}/{}", object.name());
                return snapshot::get(client, &path).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Replaces the existing object.
async fn replace(client: &Client, item: &Item, wanted: &Value) -> anyhow::Result<Value> {
    let path = item.resource.path_of(&item.key());
    for _ in 0..ATTEMPTS {
        let present = snapshot::get(client, &path).await?;
        let mut object = wanted.clone();
        take_system_fields(&mut object, &present);
        match send(client, Method::PUT, &path, Some(&object)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => return Ok(other?),
        }
    }
    bail!("it is being changed by somebody else; hint: stop the controllers of the target")
}

/// Writes the status, with the observed generation adjusted to the target.
async fn settle_status(
    client: &Client,
    item: &Item,
    wanted: &Value,
    mut stored: Value,
) -> anyhow::Result<Value> {
    let path = item.resource.path_of(&item.key());
    for _ in 0..ATTEMPTS {
        let mut status = wanted["status"].clone();
        identity::move_generation(&mut status, item.object.generation(), stored.generation());
        if stored["status"] == status {
            return Ok(stored);
        }
        let mut object = stored.clone();
        object["status"] = status;
        match send(client, Method::PUT, &format!("{path}/status"), Some(&object)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                stored = snapshot::get(client, &path).await?;
            }
            other => return Ok(other?),
        }
    }
    bail!("its status is being changed by somebody else; hint: stop the controllers of the target")
}

/// Copies the server-assigned fields of the existing object to its new version.
fn take_system_fields(object: &mut Value, present: &Value) {
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
        let metadata = object.metadata_mut();
        match present.pointer(&format!("/metadata/{field}")) {
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.remove(field),
        };
    }
    for field in ["clusterIP", "clusterIPs"] {
        if let Some(address) = present.pointer(&format!("/spec/{field}"))
            && present["kind"] == "Service"
        {
            object["spec"][field] = address.clone();
        }
    }
}

async fn delete(client: &Client, item: &Item) -> anyhow::Result<()> {
    let path = item.resource.path_of(&item.key());
    let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background" });
    match send(client, Method::DELETE, &path, Some(&options)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(|_| ()).map_err(Into::into),
    }
}

/// Removes an object and its finalizers: what they would clean up in members does not exist, or belongs to what has moved.
async fn remove(client: &Client, item: &Item) -> anyhow::Result<()> {
    let path = item.resource.path_of(&item.key());
    for _ in 0..ATTEMPTS {
        let mut present = match snapshot::get(client, &path).await {
            Ok(present) => present,
            Err(error) if error.downcast_ref::<kube::Error>().is_some_and(is_gone) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !present.finalizers().is_empty() {
            present.set_finalizers(Vec::new());
            match send(client, Method::PUT, &path, Some(&present)).await {
                Err(kube::Error::Api(status)) if status.code == 409 => continue,
                Err(error) if is_gone(&error) => return Ok(()),
                other => drop(other?),
            }
        }
        return delete(client, item).await;
    }
    bail!("it is being changed by somebody else; hint: stop the controllers of the target")
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

async fn send(client: &Client, method: Method, path: &str, body: Option<&Value>) -> kube::Result<Value> {
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(kube::Error::HttpError)?;
    client.request(request).await
}
