//! Karmada's admission rules as a plug-in of the API server in the same process.
//!
//! The rules are in `admission`; this shell wraps their refusals in the words a client would see if they came from
//! Karmada's webhook server behind kube-apiserver.

use admission::{Denial, Operation, Request, Settings};
use api::cluster::Cluster;
use api::features::Features;
use apimachinery::status::Status;
use apiserver::admission::{Admit, Attributes, Operation as Write};
use apiserver::registry::Kind;
use futures::future::BoxFuture;
use serde_json::Value;

/// The groups whose kinds have rules of their own.
const GROUPS: [&str; 4] = [api::policy::GROUP, api::work::GROUP, api::networking::GROUP, api::cluster::GROUP];

#[derive(Debug)]
pub(crate) struct Karmada {
    settings: Settings,
}

impl Karmada {
    pub(crate) fn new(features: Features) -> Self {
        Self { settings: Settings { features, ..Settings::default() } }
    }
}

impl Admit for Karmada {
    fn name(&self) -> &'static str {
        "Karmada"
    }

    fn handles(&self, operation: Write, kind: &Kind, subresource: &str) -> bool {
        // Anything may be protected against deletion; a status never comes here.
        subresource.is_empty() && (operation == Write::Delete || GROUPS.contains(&kind.gvk.group.as_str()))
    }

    fn mutate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(std::future::ready(self.change(attributes)))
    }

    fn validate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(std::future::ready(self.check(attributes)))
    }
}

impl Karmada {
    fn change(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(object) = attributes.object.take() else { return Ok(()) };
        let result = if is_cluster(attributes.kind) {
            self.change_cluster(object, attributes.old)
        } else {
            let request = request(attributes);
            let mut fresh = || uuid::Uuid::new_v4().to_string();
            admission::mutate(&request, object, &mut fresh).map_err(|denial| refused(attributes, denial))
        };
        attributes.object = Some(object);
        result
    }

    /// Clusters are normalised by their own API server, not by a webhook.
    fn change_cluster(&self, object: &mut Value, old: Option<&Value>) -> Result<(), Status> {
        let read = |value: &Value| {
            serde_json::from_value::<Cluster>(value.clone()).map_err(|error| {
                Status::bad_request(format!(
                    "Cluster in version \"v1alpha1\" cannot be handled as a Cluster: {error}"
                ))
            })
        };
        let mut cluster = read(object)?;
        match old {
            None => admission::cluster::prepare_create(&mut cluster, &self.settings.features),
            Some(old) => {
                admission::cluster::prepare_update(&mut cluster, &read(old)?, &self.settings.features)
            }
        }
        admission::cluster::canonicalize(&mut cluster, jiff::Timestamp::now());
        let mut new = serde_json::to_value(&cluster).map_err(Status::internal)?;
        // What the type does not know of the metadata stays as it was written.
        if let Some(metadata) = object.get("metadata") {
            new["metadata"] = metadata.clone();
        }
        *object = new;
        Ok(())
    }

    fn check(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let object = attributes.object.as_deref().cloned().unwrap_or(Value::Null);
        if is_cluster(attributes.kind) && attributes.operation != Write::Delete {
            let cluster: Cluster = serde_json::from_value(object).map_err(Status::internal)?;
            let errors = admission::cluster::check(&cluster);
            if errors.is_empty() {
                return Ok(());
            }
            let gvk = &attributes.kind.gvk;
            return Err(Status::invalid(&gvk.group, &gvk.kind, attributes.name, &errors));
        }
        admission::validate(&request(attributes), &object, &self.settings)
            .map_err(|denial| refused(attributes, denial))
    }
}

fn is_cluster(kind: &Kind) -> bool {
    kind.gvk.group == api::cluster::GROUP && kind.gvk.kind == "Cluster"
}

fn request<'a>(attributes: &'a Attributes<'_>) -> Request<'a> {
    Request {
        operation: match attributes.operation {
            Write::Create => Operation::Create,
            Write::Update => Operation::Update,
            Write::Delete => Operation::Delete,
        },
        group: &attributes.kind.gvk.group,
        version: &attributes.kind.gvk.version,
        kind: &attributes.kind.gvk.kind,
        namespace: attributes.namespace,
        old: attributes.old,
    }
}

/// `admission webhook "propagationpolicy.karmada.io" denied the request: …`
fn refused(attributes: &Attributes<'_>, denial: Denial) -> Status {
    let webhook = if attributes.operation == Write::Delete {
        "resourcedeletionprotection.karmada.io".to_owned()
    } else {
        format!("{}.karmada.io", attributes.kind.gvk.kind.to_ascii_lowercase())
    };
    let message = format!("admission webhook {webhook:?} denied the request: {}", denial.message);
    Status::new(denial.code, denial.reason.unwrap_or(""), message)
}

#[cfg(test)]
mod tests {
    use apiserver::{Options, Profile, local};
    use kube::api::{Api, DynamicObject, PostParams};
    use kube::core::{ApiResource, GroupVersionKind};
    use serde_json::json;

    use super::*;

    fn definitions() -> Vec<Value> {
        api::crd::all().into_iter().chain(api::crd::aggregated()).collect()
    }

    async fn server() -> apiserver::Handle {
        let _ = rustls::crypto::ring::default_provider().install_default();
        apiserver::start(Options {
            profile: Profile::Karmada,
            definitions: definitions(),
            plugins: vec![std::sync::Arc::new(Karmada::new(Features::default()))],
            ..Options::default()
        })
        .await
        .expect("the server starts")
    }

    fn policies(client: kube::Client) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk("policy.karmada.io", "v1alpha1", "PropagationPolicy");
        let resource = ApiResource::from_gvk_with_plural(&gvk, "propagationpolicies");
        Api::namespaced_with(client, "default", &resource)
    }

    fn policy(name: &str, placement: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "policy.karmada.io/v1alpha1",
            "kind": "PropagationPolicy",
            "metadata": {"name": name},
            "spec": {
                "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment"}],
                "placement": placement,
            },
        }))
        .expect("a policy")
    }

    #[tokio::test]
    async fn policies_get_their_defaults_and_bad_ones_are_refused_in_karmadas_words() {
        let handle = server().await;
        let client = local::client(&handle.server, apiserver::auth::User::system("system:admin"));
        let policies = policies(client);
        let made =
            policies.create(&PostParams::default(), &policy("good", json!({}))).await.expect("created");
        let labels = made.metadata.labels.unwrap_or_default();
        assert!(labels.contains_key("propagationpolicy.karmada.io/permanent-id"), "{labels:?}");
        let selector = &made.data["spec"]["resourceSelectors"][0];
        assert_eq!(selector["namespace"], "default", "{selector}");

        let both = json!({"clusterAffinity": {}, "clusterAffinities": [{"affinityName": "a"}]});
        let error = policies.create(&PostParams::default(), &policy("bad", both)).await.expect_err("refused");
        let text = error.to_string();
        assert!(
            text.contains("admission webhook \"propagationpolicy.karmada.io\" denied the request: "),
            "{text}"
        );
        handle.stop().await;
    }
}
