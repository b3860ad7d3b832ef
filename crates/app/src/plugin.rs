//! Karmada's admission rules as a plug-in of the API server in the same process.
//!
//! An object of a kind that no controller acts on yet is accepted with a warning (`controllers::table`).
//!
//! The rules are in `admission`. This shell puts their refusals into the words that a client would see from Karmada's webhook
//! server behind kube-apiserver.

#[cfg(test)]
mod charges;

use std::sync::Arc;

use admission::{Act, Denial, HOOKS, Home, Hook, Means, Operation, Request, Settings, Wants};
use api::features::FEDERATED_QUOTA_ENFORCEMENT;
use apimachinery::gvk::Gvk;
use apimachinery::status::Status;
use apiserver::admission::{Admit, Attributes, Companion, Operation as Write, Together};
use apiserver::registry::Kind;
use controllers::table;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::environment::{Environment, Writer};

#[derive(Debug, Default)]
pub(crate) struct Karmada {
    settings: Settings,
    environment: Arc<Environment>,
}

impl Karmada {
    /// Returns the plug-in. Its rules can read other objects once `environment` is connected.
    pub(crate) fn new(settings: Settings, environment: Arc<Environment>) -> Self {
        Self { settings, environment }
    }
}

impl Admit for Karmada {
    fn name(&self) -> &'static str {
        "Karmada"
    }

    fn handles(&self, operation: Write, kind: &Kind, subresource: &str) -> bool {
        // Statuses are never passed to it.
        let (group, name) = (&kind.gvk.group, &kind.gvk.kind);
        subresource.is_empty()
            && (HOOKS.iter().any(|hook| hook.sees(operation_of(operation), group, name))
                || (operation == Write::Create && table::warning_for(group, name).is_some()))
    }

    fn mutate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(std::future::ready(self.change(attributes)))
    }

    fn validate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            self.check(attributes).await?;
            let gvk = &attributes.kind.gvk;
            if attributes.operation == Write::Create
                && let Some(warning) = table::warning_for(&gvk.group, &gvk.kind)
            {
                attributes.warnings.push(warning);
            }
            Ok(())
        })
    }

    /// Bindings count towards the quotas of their namespace.
    fn accompanies(&self, _: Write, kind: &Kind, subresource: &str) -> bool {
        subresource.is_empty()
            && self.settings.features.enabled(FEDERATED_QUOTA_ENFORCEMENT)
            && charging().is_some_and(|hook| hook.group == kind.gvk.group && hook.kind == kind.gvk.kind)
    }

    fn together<'a>(&'a self, attributes: &'a Attributes<'_>) -> BoxFuture<'a, Result<Together, Status>> {
        Box::pin(async move {
            let object = attributes.object.as_deref().unwrap_or(&Value::Null);
            let request = request(attributes);
            let Some(hook) = charging().filter(|_| admission::asks_quotas(&request, object, &self.settings))
            else {
                return Ok(Together::default());
            };
            let turn = self.environment.charge_alone(attributes.namespace).await;
            let charges = self.environment.charges(&request, object).await;
            let quotas = charges.map_err(|denial| refused(hook, attributes, denial))?;
            let kind = Gvk::new(api::policy::GROUP, "v1alpha1", "FederatedResourceQuota");
            let write = |object| Companion { kind: kind.clone(), object };
            Ok(Together { writes: quotas.into_iter().map(write).collect(), held: vec![Box::new(turn)] })
        })
    }
}

/// Returns the rule that charges quotas.
fn charging() -> Option<&'static Hook> {
    HOOKS.iter().find(|hook| hook.wants == Wants::Quotas)
}

impl Karmada {
    fn change(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(object) = attributes.object.take() else { return Ok(()) };
        let mut fresh_id = || uuid::Uuid::new_v4().to_string();
        let mut means = Means {
            settings: &self.settings,
            now: jiff::Timestamp::now(),
            fresh_id: &mut fresh_id,
            warnings: Vec::new(),
        };
        let result = admission::hooks_for(&request(attributes)).try_for_each(|hook| match hook.act {
            Act::Mutate(act) => act(&request(attributes), object, &mut means)
                .map_err(|denial| refused(hook, attributes, denial)),
            Act::Validate(_) => Ok(()),
        });
        let warnings = means.warnings;
        attributes.object = Some(object);
        attributes.warnings.extend(warnings);
        result
    }

    async fn check(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        let object = attributes.object.as_deref().unwrap_or(&Value::Null);
        let request = request(attributes);
        let user = attributes.user;
        let writer = Writer {
            name: user.name.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
        };
        for hook in admission::hooks_for(&request) {
            self.environment
                .validate(hook, &request, object, &self.settings, &writer)
                .await
                .map_err(|denial| refused(hook, attributes, denial))?;
        }
        Ok(())
    }
}

fn operation_of(operation: Write) -> Operation {
    match operation {
        Write::Create => Operation::Create,
        Write::Update => Operation::Update,
        Write::Delete => Operation::Delete,
    }
}

fn request<'a>(attributes: &'a Attributes<'_>) -> Request<'a> {
    Request {
        operation: operation_of(attributes.operation),
        group: &attributes.kind.gvk.group,
        version: &attributes.kind.gvk.version,
        kind: &attributes.kind.gvk.kind,
        namespace: attributes.namespace,
        old: attributes.old,
    }
}

/// `admission webhook "propagationpolicy.karmada.io" denied the request: …`
fn refused(hook: &Hook, attributes: &Attributes<'_>, denial: Denial) -> Status {
    let gvk = &attributes.kind.gvk;
    if hook.home == Home::ApiServer {
        return if denial.causes.is_empty() {
            Status::new(denial.code, denial.reason.unwrap_or_default(), denial.message)
        } else {
            Status::invalid(&gvk.group, &gvk.kind, attributes.name, &denial.causes)
        };
    }
    let message = format!("admission webhook {:?} denied the request: {}", hook.name, denial.message);
    Status::new(denial.code, denial.reason.unwrap_or_default(), message)
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
            plugins: vec![Arc::new(Karmada::default())],
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

    /// A server with one user who may write clusters, registries and bindings and read nothing.
    async fn server_with_editor() -> (apiserver::Handle, kube::Client, kube::Client) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let environment = Arc::new(Environment::default());
        let handle = apiserver::start(Options {
            profile: Profile::Karmada,
            definitions: definitions(),
            plugins: vec![Arc::new(Karmada::new(Settings::default(), environment.clone()))],
            ..Options::default()
        })
        .await
        .expect("the server starts");
        let admin = local::client(&handle.server, apiserver::auth::User::system("system:admin"));
        environment.connect(admin.clone());
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "editor"},
            "rules": [{
                "apiGroups": ["cluster.karmada.io", "search.karmada.io", "work.karmada.io"],
                "resources": ["clusters", "resourceregistries", "resourcebindings", "clusterresourcebindings"],
                "verbs": ["create", "update", "patch"],
            }],
        });
        create(&admin, "clusterroles", "", role).await.expect("a role");
        grant(&admin, "editor").await;
        let editor = apiserver::auth::User { name: "editor".to_owned(), ..Default::default() };
        let editor = local::client(&handle.server, editor);
        (handle, admin, editor)
    }

    async fn grant(admin: &kube::Client, role: &str) {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "editor"}],
        });
        create(admin, "clusterrolebindings", "", binding).await.expect("a binding");
    }

    async fn create(
        client: &kube::Client,
        plural: &str,
        namespace: &str,
        object: Value,
    ) -> Result<DynamicObject, String> {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        let gvk = GroupVersionKind::gvk(group, version, &kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        let api: Api<DynamicObject> = match namespace {
            "" => Api::all_with(client.clone(), &resource),
            namespace => Api::namespaced_with(client.clone(), namespace, &resource),
        };
        let object = serde_json::from_value(object).expect("an object");
        api.create(&PostParams::default(), &object).await.map_err(|error| match error {
            kube::Error::Api(status) => format!("{} {}", status.code, status.message),
            other => other.to_string(),
        })
    }

    fn cluster(name: &str) -> Value {
        json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {"syncMode": "Push", "apiEndpoint": "https://attacker",
                "secretRef": {"namespace": "kube-system", "name": "token"}}})
    }

    fn binding(kind: &str, resource: Value) -> Value {
        json!({"apiVersion": "work.karmada.io/v1alpha2", "kind": kind, "metadata": {"name": "forged"},
            "spec": {"resource": resource, "clusters": [{"name": "m1"}]}})
    }

    #[tokio::test]
    async fn finding_15_a_cluster_needs_the_right_to_read_the_secrets_it_names() {
        let (handle, admin, editor) = server_with_editor().await;
        let refused = create(&editor, "clusters", "", cluster("m1")).await.expect_err("refused");
        assert!(refused.starts_with("403 "), "{refused}");
        assert!(
            refused
                .contains("spec.secretRef names Secret \"token\", but user \"editor\" cannot get resource"),
            "{refused}"
        );
        create(&admin, "clusters", "", cluster("m2")).await.expect("administrators may");
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "reader"},
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["token"], "verbs": ["get"]}],
        });
        create(&admin, "clusterroles", "", role).await.expect("a role");
        grant(&admin, "reader").await;
        create(&editor, "clusters", "", cluster("m3"))
            .await
            .expect("whoever may read the Secret may name it");
        handle.stop().await;
    }

    #[tokio::test]
    async fn a_registry_needs_the_right_to_read_the_secret_of_its_opensearch() {
        let (handle, admin, editor) = server_with_editor().await;
        let registry = |name: &str, secret: &str| {
            json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry", "metadata": {"name": name},
                "spec": {"targetCluster": {}, "resourceSelectors": [{"apiVersion": "v1", "kind": "Pod"}],
                    "backendStore": {"openSearch": {"addresses": ["https://attacker"],
                        "secretRef": {"namespace": "kube-system", "name": secret}}}}})
        };
        let refused = create(&editor, "resourceregistries", "", registry("r1", "token")).await;
        let refused = refused.expect_err("refused");
        let why = "spec.backendStore.openSearch.secretRef names Secret \"token\", but user \"editor\" cannot get resource";
        assert!(refused.starts_with("403 ") && refused.contains(why), "{refused}");
        create(&admin, "resourceregistries", "", registry("r2", "token")).await.expect("administrators may");
        create(&editor, "resourceregistries", "", registry("r3", "")).await.expect("it names no Secret");
        handle.stop().await;
    }

    #[tokio::test]
    async fn finding_25_a_binding_made_by_hand_needs_the_right_to_read_its_object() {
        let (handle, admin, editor) = server_with_editor().await;
        let secret = |namespace: &str| json!({"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": "token"});
        let own = binding("ResourceBinding", secret("default"));
        let refused = create(&editor, "resourcebindings", "default", own.clone()).await.expect_err("refused");
        assert!(
            refused.starts_with("403 ") && refused.contains("cannot get resource \"secrets\""),
            "{refused}"
        );
        let foreign = binding("ResourceBinding", secret("kube-system"));
        let refused = create(&editor, "resourcebindings", "default", foreign).await.expect_err("refused");
        assert!(refused.contains("objects of its own namespace \"default\""), "{refused}");
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "name": "cluster-admin"});
        let role = binding("ClusterResourceBinding", role);
        let refused = create(&editor, "clusterresourcebindings", "", role).await.expect_err("refused");
        assert!(refused.contains("cannot get resource \"clusterroles\""), "{refused}");
        create(&admin, "resourcebindings", "default", own).await.expect("administrators may");
        handle.stop().await;
    }

    #[tokio::test]
    async fn finding_25_what_a_binding_names_is_neither_a_path_nor_in_a_namespace_of_its_choice() {
        let (handle, admin, editor) = server_with_editor().await;
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "reader", "namespace": "default"},
            "rules": [{"apiGroups": ["", "rbac.authorization.k8s.io"], "verbs": ["get"],
                "resources": ["namespaces", "clusterroles", "configmaps"]}],
        });
        create(&admin, "roles", "default", role).await.expect("a role");
        let granted = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "reader", "namespace": "default"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "editor"}],
        });
        create(&admin, "rolebindings", "default", granted).await.expect("a binding");
        let try_it = async |version: &str, kind: &str, name: &str| {
            let resource = json!({"apiVersion": version, "kind": kind, "namespace": "default", "name": name});
            create(&editor, "resourcebindings", "default", binding("ResourceBinding", resource)).await
        };
        let rbac = "rbac.authorization.k8s.io/v1";
        for (version, kind, name, why) in [
            ("v1", "Namespace", "kube-system/secrets/token", "which no object is called"),
            ("/v1/secrets", "ConfigMap", "a", "which is not served here"),
            ("apps/v1/deployments?watch=true", "ConfigMap", "a", "which is not served here"),
            // They are in no namespace, so that a right in one does not help.
            (rbac, "ClusterRole", "cluster-admin", "at the cluster scope"),
            ("v1", "Namespace", "kube-system", "in the namespace \"kube-system\""),
        ] {
            let refused = try_it(version, kind, name).await.expect_err("refused");
            assert!(refused.starts_with("403 ") && refused.contains(why), "{version} {name}: {refused}");
        }
        try_it("v1", "ConfigMap", "a").await.expect("he may read that one");
        handle.stop().await;
    }

    #[tokio::test]
    async fn a_kind_whose_controller_has_to_be_asked_for_is_stored_with_a_warning() {
        let handle = server().await;
        let client = local::client(&handle.server, apiserver::auth::User::system("system:admin"));
        let create = |path: &str, object: Value| {
            let request = http::Request::post(path)
                .header("content-type", "application/json")
                .body(kube::client::Body::from(object.to_string().into_bytes()))
                .expect("a request");
            let client = client.clone();
            async move { client.send(request).await.expect("an answer") }
        };
        let ingress = json!({
            "apiVersion": "networking.karmada.io/v1alpha1", "kind": "MultiClusterIngress", "metadata": { "name": "w" },
            "spec": { "defaultBackend": { "service": { "name": "web", "port": { "number": 80 } } } },
        });
        let path = "/apis/networking.karmada.io/v1alpha1/namespaces/default/multiclusteringresses";
        let answer = create(path, ingress).await;
        assert_eq!(answer.status(), 201);
        let warning = answer.headers().get("warning").and_then(|value| value.to_str().ok()).unwrap_or("");
        assert!(
            warning.contains(
                "nothing acts on MultiClusterIngress unless --controllers names multiClusterIngress"
            ),
            "{warning}"
        );
        let policy = serde_json::to_value(policy("p", json!({}))).expect("a policy");
        let answer =
            create("/apis/policy.karmada.io/v1alpha1/namespaces/default/propagationpolicies", policy).await;
        assert_eq!((answer.status().as_u16(), answer.headers().get("warning")), (201, None));
        handle.stop().await;
    }
}
