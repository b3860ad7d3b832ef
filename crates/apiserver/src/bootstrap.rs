//! Objects that exist from the start: namespaces, roles, priority classes, and the objects that aggregated servers look for.
//!
//! A restart adds missing objects and leaves the others alone. Only roles are changed: missing permissions are added, as upstream
//! does (unless an annotation forbids it).

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::Status;
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::auth::pki::Pki;
use crate::internal::Actor;
use crate::object;
use crate::options::{Options, Profile};
use crate::registry::Kind;
use crate::server::Server;

const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// Writes all objects that must exist.
pub(crate) async fn run(server: &Arc<Server>, options: &Options, pki: &Pki) -> Result<(), Status> {
    let actor = Actor::new(server, "system:apiserver");
    let mut namespaces = vec!["default", "kube-system", "kube-public", "kube-node-lease"];
    namespaces.extend(options.namespaces.iter().map(String::as_str));
    // Writes that wait for the disk together cost one sync.
    let creations = namespaces
        .into_iter()
        .map(|name| ensure(&actor, "", "v1", "namespaces", "", json!({"metadata": {"name": name}})));
    try_join_all(creations).await?;
    let rbac = "rbac.authorization.k8s.io";
    let controllers = options.profile == Profile::Member;
    let objects = native::bootstrap::objects();
    let mut roles = Vec::new();
    inherit_public_info(&actor).await?;
    for (resource, objects) in [
        ("clusterroles", objects.cluster_roles),
        ("clusterrolebindings", objects.cluster_role_bindings),
        ("roles", objects.roles),
        ("rolebindings", objects.role_bindings),
    ] {
        for role in objects {
            let name = role.name();
            // Roles for controllers are only useful if those controllers run outside of this process.
            if !controllers && name.starts_with("system:controller:") {
                continue;
            }
            let namespace = role.namespace().to_owned();
            if !namespace.is_empty() && server.store.get("namespaces", &namespace).is_none() {
                continue;
            }
            roles.push(ensure_role(&actor, rbac, resource, namespace, role));
        }
    }
    try_join_all(roles).await?;
    let classes = objects
        .priority_classes
        .into_iter()
        .map(|class| ensure(&actor, "scheduling.k8s.io", "v1", "priorityclasses", "", class));
    try_join_all(classes).await?;
    let authentication = json!({
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {
            "client-ca-file": pki.ca.cert,
            "requestheader-client-ca-file": pki.front_proxy_ca.cert,
            "requestheader-allowed-names": "[\"front-proxy-client\"]",
            "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
            "requestheader-group-headers": "[\"X-Remote-Group\"]",
            "requestheader-username-headers": "[\"X-Remote-User\"]",
            "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
        },
    });
    ensure(&actor, "", "v1", "configmaps", "kube-system", authentication).await?;
    let service = json!({
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": options.service_ranges.first_address(),
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 5443}]},
    });
    ensure(&actor, "", "v1", "services", "default", service).await?;
    service_range(&actor).await?;
    server.rbac.catch_up(&server.store);
    Ok(())
}

/// An operator who restricted `system:discovery` when it still included public information also meant that part. So if the
/// binding of `system:public-info-viewer` is missing beside it, it is created with the same subjects.
async fn inherit_public_info(actor: &Actor) -> Result<(), Status> {
    let (group, resource, public) =
        ("rbac.authorization.k8s.io", "clusterrolebindings", "system:public-info-viewer");
    let kind = kind(actor, group, "v1", resource)?;
    let store = &actor.server().store;
    let (None, Some(discovery)) =
        (store.get(&kind.collection, public), store.get(&kind.collection, "system:discovery"))
    else {
        return Ok(());
    };
    let mut binding = actor.server().read(&kind, &discovery)?;
    let metadata = binding.metadata_mut();
    metadata.retain(|field, _| field == "annotations" || field == "labels");
    metadata.insert("name".to_owned(), public.into());
    pointer::set(pointer::object_at(&mut binding, "roleRef"), "name", public.into());
    ensure(actor, group, "v1", resource, "", binding).await
}

/// Tells where the addresses of Services come from. A second range may be added later; any other change is not told, as upstream.
async fn service_range(actor: &Actor) -> Result<(), Status> {
    let (group, version, resource) = ("networking.k8s.io", "v1", "servicecidrs");
    // A server may be configured to serve other kinds than Kubernetes'.
    let Ok(kind) = kind(actor, group, version, resource) else { return Ok(()) };
    let ranges = actor.server().service_ranges.texts();
    let range = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ranges}});
    ensure(actor, group, version, resource, "", range).await?;
    let Some(entry) = actor.server().store.get(&kind.collection, "kubernetes") else { return Ok(()) };
    let stored = actor.server().read(&kind, &entry)?;
    let told = stored.pointer("/spec/cidrs").unwrap_or(&Value::Null);
    if *told != json!(ranges) {
        if *told != json!([ranges.first()]) {
            tracing::warn!(
                %told,
                ranges = %actor.server().service_ranges,
                "the ServiceCIDR kubernetes names other ranges than those that Services get their addresses from"
            );
            return Ok(());
        }
        let wider = |old: &Value| {
            let mut new = old.clone();
            pointer::set(pointer::object_at(&mut new, "spec"), "cidrs", json!(ranges));
            (old != &new).then_some(new)
        };
        actor.update(&kind, "", "kubernetes", "", wider).await?;
    }
    if stored.pointer("/status/conditions").is_some() {
        // Even a write that changes nothing would ask webhooks, and a broken one must not keep the server from starting.
        return Ok(());
    }
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let ready = |old: &Value| {
        let mut new = old.clone();
        pointer::set(
            &mut new,
            "status",
            json!({"conditions": [{"type": "Ready", "status": "True", "reason": "",
            "message": "Kubernetes default Service CIDR is ready", "lastTransitionTime": now}]}),
        );
        old.pointer("/status/conditions").is_none().then_some(new)
    };
    actor.update(&kind, "", "kubernetes", "status", ready).await.map(|_| ())
}

fn kind(actor: &Actor, group: &str, version: &str, resource: &str) -> Result<Arc<Kind>, Status> {
    let registry = actor.server().registry.load();
    registry
        .find(group, version, resource)
        .cloned()
        .ok_or_else(|| Status::internal(format!("{resource}.{group}/{version} is not served")))
}

/// Creates an object unless one with this name exists.
pub(crate) async fn ensure(
    actor: &Actor,
    group: &str,
    version: &str,
    resource: &str,
    namespace: &str,
    mut object: Value,
) -> Result<(), Status> {
    let kind = kind(actor, group, version, resource)?;
    let key = object::join_key(namespace, object.name());
    if actor.server().store.get(&kind.collection, &key).is_some() {
        return Ok(());
    }
    object::stamp(&mut object, &kind.api_version, &kind.gvk.kind, None);
    match actor.create(&kind, namespace, object).await {
        // Another server was faster. For a Service, the error names the address that is taken, not the name.
        Err(_) if actor.server().store.get(&kind.collection, &key).is_some() => Ok(()),
        Err(status) if status.reason == "AlreadyExists" => Ok(()),
        other => other.map(|_| ()),
    }
}

async fn ensure_role(
    actor: &Actor,
    group: &str,
    resource: &str,
    namespace: String,
    role: Value,
) -> Result<(), Status> {
    let namespace = namespace.as_str();
    let kind = kind(actor, group, "v1", resource)?;
    let name = role.name().to_owned();
    let key = object::join_key(namespace, &name);
    let Some(entry) = actor.server().store.get(&kind.collection, &key) else {
        return ensure(actor, group, "v1", resource, namespace, role).await;
    };
    let current = actor.server().read(&kind, &entry)?;
    if merged(&current, &role).is_none() {
        return Ok(());
    }
    actor.update(&kind, namespace, &name, "", |old| merged(old, &role)).await.map(|_| ())
}

/// Returns the stored role with our additional rules; `None` if nothing is missing.
fn merged(stored: &Value, ours: &Value) -> Option<Value> {
    if stored.pointer(&format!("/metadata/annotations/{}", AUTOUPDATE.replace('/', "~1")))
        == Some(&json!("false"))
    {
        return None;
    }
    let mut new = stored.clone();
    let mut changed = false;
    // The rules of an aggregated role belong to its controller.
    let fields: &[&str] =
        if ours.get("aggregationRule").is_some() { &["subjects"] } else { &["rules", "subjects"] };
    for field in fields {
        let wanted = ours.get(*field).and_then(Value::as_array).cloned().unwrap_or_default();
        let present = stored.get(*field).and_then(Value::as_array).cloned().unwrap_or_default();
        let missing: Vec<Value> = wanted.into_iter().filter(|item| !covered(&present, item)).collect();
        if !missing.is_empty() {
            changed = true;
            pointer::set(&mut new, field, present.into_iter().chain(missing).collect());
        }
    }
    changed.then_some(new)
}

/// Returns whether one of the items contains everything in `item`.
fn covered(present: &[Value], item: &Value) -> bool {
    let lists = |value: &Value| -> BTreeMap<String, Value> {
        value.as_object().map(|fields| fields.clone().into_iter().collect()).unwrap_or_default()
    };
    let wanted = lists(item);
    present.iter().any(|have| {
        let have = lists(have);
        wanted.iter().all(|(key, value)| match (value, have.get(key)) {
            (Value::Array(wanted), Some(Value::Array(have))) => wanted.iter().all(|one| have.contains(one)),
            (value, Some(have)) => value == have,
            (_, None) => false,
        })
    })
}
