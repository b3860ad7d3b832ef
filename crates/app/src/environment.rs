//! What admission rules read besides the object, and what they charge: the environment of the pure rules.
//!
//! Both shells use it, the plug-in of the server and the webhook server. They differ in how quotas are charged: the plug-in
//! writes the charge in one commit with the binding; the webhook server can only write it before kube-apiserver stores the
//! binding.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use admission::{Act, Denial, Hook, Reading, Request, Settings, Wants};
use apimachinery::gvk::Gvk;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::Scope;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{OwnedMutexGuard, SetOnce};

/// How often a charge is attempted when others charge the same quotas, and how long to wait in between. As upstream.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// The group of users who may do everything.
const MASTERS: &str = "system:masters";

/// The user who makes a write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

/// Access to the control plane; the client may be set after the first question.
#[derive(Default)]
pub(crate) struct Environment {
    client: SetOnce<Client>,
    /// The namespaces in which a binding is being charged.
    charging: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Environment").field("connected", &self.client.initialized()).finish()
    }
}

impl Environment {
    /// Sets the client of the control plane. Earlier questions have been waiting for it.
    pub(crate) fn connect(&self, client: Client) {
        if self.client.set(client).is_err() {
            tracing::warn!("admission was connected twice");
        }
    }

    /// Evaluates a validating rule.
    pub(crate) async fn validate(
        &self,
        hook: &Hook,
        request: &Request<'_>,
        object: &Value,
        settings: &Settings,
        writer: &Writer,
    ) -> Result<(), Denial> {
        let Act::Validate(judge) = hook.act else { return Ok(()) };
        self.check_rights(hook, request, object, writer).await?;
        let seen = match hook.wants {
            Wants::Nothing | Wants::Quotas => Vec::new(),
            Wants::Customizations => {
                let kind = resource(
                    api::config::GROUP,
                    "v1alpha1",
                    "ResourceInterpreterCustomization",
                    "resourceinterpretercustomizations",
                );
                list(
                    Api::all_with(self.client.wait().await.clone(), &kind),
                    "ResourceInterpreterCustomizations",
                )
                .await?
            }
        };
        judge(request, object, settings, &seen)
    }

    /// Waits until no other write charges the quotas of a namespace, for as long as the guard is held. Without this queue, all
    /// but one of several writers would have to try again.
    pub(crate) async fn charge_alone(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut charging = self.charging.lock();
            charging.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(charging.entry(namespace.to_owned()).or_default())
        };
        turn.lock_owned().await
    }

    /// Returns the quotas to charge for a write of a binding, or for its removal, with their new usage.
    pub(crate) async fn charges(&self, request: &Request<'_>, object: &Value) -> Result<Vec<Value>, Denial> {
        self.other_charges(request, object, &[]).await
    }

    /// Returns the quotas to charge, except those that have already been charged, given by their uid.
    async fn other_charges(
        &self,
        request: &Request<'_>,
        object: &Value,
        charged: &[Value],
    ) -> Result<Vec<Value>, Denial> {
        let client = self.client.wait().await;
        let mut quotas = list(quotas(client, request.namespace), "FederatedResourceQuotas").await?;
        quotas.retain(|quota| !charged.contains(&quota["metadata"]["uid"]));
        let stored = if admission::must_count(&quotas) {
            let kind = resource(api::work::GROUP, "v1alpha2", "ResourceBinding", "resourcebindings");
            list(Api::namespaced_with(client.clone(), request.namespace, &kind), "ResourceBindings").await?
        } else {
            Vec::new()
        };
        let charges = admission::charge(request, object, &quotas, &stored)?;
        Ok(charges.into_iter().map(|charge| charge.quota).collect())
    }

    /// Charges quotas for a binding that another server stores afterwards.
    pub(crate) async fn charge(
        &self,
        request: &Request<'_>,
        object: &Value,
        dry_run: bool,
    ) -> Result<(), Denial> {
        let client = self.client.wait().await;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let whom = format!("RB {}/{name}", request.namespace);
        let mut last = String::new();
        // If the write of one quota loses a race, the quotas written before it must not be charged again.
        let mut charged = Vec::new();
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let quotas = self.other_charges(request, object, &charged).await?;
            match write(client, &quotas, dry_run, &mut charged).await {
                Ok(()) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => last = status.message.clone(),
                Err(error) => {
                    let text = format!("permanent error updating FRQ statuses for {whom}: {}", words(&error));
                    return Err(Denial::internal(format!("Internal error occurred: {text}")));
                }
            }
        }
        Err(Denial::internal(format!(
            "Internal error occurred: failed to apply FederatedResourceQuota updates after multiple retries for \
             {whom}: {last}"
        )))
    }
}

impl Environment {
    /// Refuses a write that would make the control plane read an object that the writer may not read.
    async fn check_rights(
        &self,
        hook: &Hook,
        request: &Request<'_>,
        object: &Value,
        writer: &Writer,
    ) -> Result<(), Denial> {
        if writer.groups.iter().any(|group| group == MASTERS) {
            return Ok(());
        }
        for reading in hook.rights(request, object)? {
            let client = self.client.wait().await;
            let (resource, scope) = resource_of(client, &reading).await?;
            let namespace = place(&resource, &scope, &reading);
            if !may_get(client, writer, &resource, namespace, &reading.name).await? {
                let scope = match namespace {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                return Err(Denial::forbidden(format!(
                    "{} names {} {:?}, but user {:?} cannot get resource {:?} in API group {:?} {scope}; only those \
                     who may read an object may have the control plane read it",
                    reading.field, reading.kind, reading.name, writer.name, resource.plural, resource.group,
                )));
            }
        }
        Ok(())
    }
}

/// Returns the resource of an object that is named by its kind, and its scope.
async fn resource_of(client: &Client, reading: &Reading) -> Result<(ApiResource, Scope), Denial> {
    let kind = Gvk::from_api_version(&reading.api_version, &reading.kind);
    // The client writes group and version into a path as they are, and asks with the rights of the control plane.
    if !kind.is_plain() {
        return Err(unknown_kind(reading));
    }
    let gvk = GroupVersionKind::gvk(&kind.group, &kind.version, &kind.kind);
    match kube::discovery::pinned_kind(client, &gvk).await {
        Ok((resource, capabilities)) => Ok((resource, capabilities.scope)),
        Err(kube::Error::Discovery(_)) => Err(unknown_kind(reading)),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(unknown_kind(reading)),
        Err(error) => Err(Denial::internal(format!("Internal error occurred: {}", words(&error)))),
    }
}

/// Returns the namespace in which the writer needs the right. A cluster-scoped object is in none, whatever namespace is written
/// beside its name; only a Namespace is in itself.
fn place<'a>(resource: &ApiResource, scope: &Scope, reading: &'a Reading) -> &'a str {
    match scope {
        Scope::Namespaced => &reading.namespace,
        Scope::Cluster if resource.group.is_empty() && resource.plural == "namespaces" => &reading.name,
        Scope::Cluster => "",
    }
}

fn unknown_kind(reading: &Reading) -> Denial {
    Denial::forbidden(format!(
        "{} names an object of kind {:?} in version {:?}, which is not served here",
        reading.field, reading.kind, reading.api_version
    ))
}

async fn may_get(
    client: &Client,
    writer: &Writer,
    resource: &ApiResource,
    namespace: &str,
    name: &str,
) -> Result<bool, Denial> {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: text(&writer.name),
            uid: text(&writer.uid),
            groups: Some(writer.groups.clone()),
            extra: Some(writer.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                verb: text("get"),
                group: text(&resource.group),
                version: text(&resource.version),
                resource: text(&resource.plural),
                namespace: text(namespace),
                name: text(name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = Api::<SubjectAccessReview>::all(client.clone())
        .create(&PostParams::default(), &review)
        .await
        .map_err(|error| Denial::internal(format!("Internal error occurred: {}", words(&error))))?;
    Ok(answer.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
}

async fn list(objects: Api<DynamicObject>, what: &str) -> Result<Vec<Value>, Denial> {
    let list = objects.list(&ListParams::default()).await.map_err(|error| {
        Denial::internal(format!("Internal error occurred: failed to list {what}: {}", words(&error)))
    })?;
    list.items.iter().map(|object| serde_json::to_value(object).map_err(unreadable)).collect()
}

/// Writes the new usage of quotas, one after the other; records the uid of each written one.
async fn write(
    client: &Client,
    usages: &[Value],
    dry_run: bool,
    written: &mut Vec<Value>,
) -> Result<(), kube::Error> {
    let parameters = PostParams { dry_run, ..PostParams::default() };
    for quota in usages {
        let object: DynamicObject = serde_json::from_value(quota.clone()).map_err(kube::Error::SerdeError)?;
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let name = object.metadata.name.clone().unwrap_or_default();
        quotas(client, &namespace).replace_status(&name, &parameters, &object).await?;
        written.push(quota["metadata"]["uid"].clone());
    }
    Ok(())
}

fn quotas(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = resource(api::policy::GROUP, "v1alpha1", "FederatedResourceQuota", "federatedresourcequotas");
    Api::namespaced_with(client.clone(), namespace, &kind)
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn unreadable(error: serde_json::Error) -> Denial {
    Denial::internal(format!("Internal error occurred: {error}"))
}

/// Returns the server's error, without the client's wrapping.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use admission::Operation;
    use http::{Method, Response};
    use serde_json::json;

    use super::*;

    fn quota(name: &str) -> Value {
        let limits = json!({ "cpu": "10" });
        json!({
            "apiVersion": "policy.karmada.io/v1alpha1", "kind": "FederatedResourceQuota",
            "metadata": { "namespace": "ns", "name": name, "uid": name, "resourceVersion": "7" },
            "spec": { "overall": limits }, "status": { "overall": limits, "overallUsed": {} },
        })
    }

    #[tokio::test]
    async fn a_quota_is_charged_once_although_another_one_was_lost_to_somebody_faster() {
        let wrote = Arc::new(Mutex::new(Vec::<String>::new()));
        let noted = wrote.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let path = request.uri().path().to_owned();
            let (code, said): (u16, Value) = if request.method() == Method::GET {
                let items = [quota("a"), quota("b"), quota("c")];
                (200, json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items }))
            } else {
                let name = path.rsplit('/').nth(1).unwrap_or_default().to_owned();
                let mut wrote = noted.lock();
                let lost = name == "b" && !wrote.contains(&name);
                wrote.push(name.clone());
                let conflict =
                    json!({ "status": "Failure", "reason": "Conflict", "message": "no", "code": 409 });
                if lost { (409, conflict) } else { (200, quota(&name)) }
            };
            let body = kube::client::Body::from(said.to_string().into_bytes());
            async move {
                Ok::<_, tower::BoxError>(Response::builder().status(code).body(body).expect("an answer"))
            }
        });
        let environment = Environment::default();
        environment.connect(Client::new(service, "default"));
        let binding = json!({ "metadata": { "namespace": "ns", "name": "web-deployment" }, "spec": {
            "resource": { "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ns", "name": "web" },
            "clusters": [{ "name": "m1", "replicas": 2 }],
            "replicaRequirements": { "resourceRequest": { "cpu": "3" } },
        } });
        let request = Request {
            operation: Operation::Create,
            group: "work.karmada.io",
            version: "v1alpha2",
            kind: "ResourceBinding",
            namespace: "ns",
            old: None,
        };
        assert!(environment.charge(&request, &binding, false).await.is_ok());
        assert_eq!(*wrote.lock(), ["a", "b", "b", "c"]);
    }
}
