//! The layout of `init --on-existing`: the three programs that make up Karmada on an existing API server.
//!
//! In: the flags and the serving certificates. Out: namespaces, accounts with only the rights that each program needs,
//! certificates, definitions, Services and workloads. Separately, it returns the objects that make the API server call the
//! programs; they must be applied once the programs run.

use anyhow::{anyhow, bail};
use base64::Engine as _;
use clap::Args;
use serde_json::{Value, json};

use super::manifests::{LABEL, image, store};
use super::{Arguments, DATA};
use crate::registration::{self, Groups, PASSWORD_FILE, Place};
use crate::serving::{self, Serving};

pub(crate) const CONTROLLERS: &str = "karmada-controllers";
pub(crate) const WEBHOOK: &str = "karmada-webhook";
pub(crate) const AGGREGATED: &str = "karmada-aggregated-apiserver";
/// The value of [`LABEL`] on all objects outside of the namespace of the installation.
const MARK: &str = "existing-defaults";
/// Names the namespace of the installation on these objects.
const INSTALLED_IN: &str = "karmada.io/installed-in";
/// The namespace of members' credentials.
const CLUSTERS: &str = "karmada-cluster";
const RBAC: &str = "rbac.authorization.k8s.io";
const CERTIFICATES: &str = "/etc/karmada/certificates";
const PORT: u16 = 443;
const WEBHOOK_PORT: u16 = 8443;
const AGGREGATED_PORT: u16 = 5444;
const HEALTH_PORT: u16 = 10357;

/// What can be chosen for the three programs.
#[derive(Debug, Clone, Default, Args)]
#[group(id = "existing")]
pub struct Flags {
    /// Install on the API server of the host cluster itself, as karmada-controllers, karmada-webhook and
    /// karmada-aggregated-apiserver, instead of a control plane with an API server and a store of its own.
    #[arg(long)]
    pub on_existing: bool,
    /// With --on-existing, also have the metrics of all members be served as metrics.k8s.io and custom.metrics.k8s.io. A metrics
    /// server of the host cluster is no longer asked then.
    #[arg(long, requires = "on_existing")]
    pub serve_metrics: bool,
    /// With --on-existing, further arguments of karmada-controllers, such as --feature-gates=Failover=true; may be repeated.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub karmada_controller_manager_extra_args: Vec<String>,
    /// With --on-existing, further arguments of karmada-webhook; may be repeated.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub karmada_webhook_extra_args: Vec<String>,
    /// With --on-existing, further arguments of karmada-aggregated-apiserver; may be repeated.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub karmada_aggregated_apiserver_extra_args: Vec<String>,
    /// With --on-existing, how many karmada-controllers there are; one of them acts.
    #[arg(long, value_name = "COUNT")]
    pub karmada_controller_manager_replicas: Option<u32>,
    /// With --on-existing, how many karmada-webhooks there are.
    #[arg(long, value_name = "COUNT")]
    pub karmada_webhook_replicas: Option<u32>,
}

impl Flags {
    /// Refuses unsupported combinations.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let lists = [
            ("karmada-controller-manager", &self.karmada_controller_manager_extra_args),
            ("karmada-webhook", &self.karmada_webhook_extra_args),
            ("karmada-aggregated-apiserver", &self.karmada_aggregated_apiserver_extra_args),
        ];
        for (name, list) in lists {
            if !self.on_existing && !list.is_empty() {
                bail!(
                    "--{name}-extra-args cannot be had: all components are one process; use --karmada-apiserver-extra-args"
                );
            }
            if let Some(wrong) = list.iter().find(|it| !it.starts_with("--") || it.trim() != it.as_str()) {
                bail!("--{name}-extra-args {wrong:?} must look like --name=value");
            }
        }
        let counts = [
            ("karmada-controller-manager", self.karmada_controller_manager_replicas),
            ("karmada-webhook", self.karmada_webhook_replicas),
        ];
        for (name, count) in counts {
            match count {
                Some(count) if !self.on_existing && count != 1 => bail!(
                    "--{name}-replicas={count} cannot be had: the control plane is one process, which owns its store"
                ),
                Some(0) => bail!("--{name}-replicas=0 would leave nobody who does its work"),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The certificates of the two serving programs, and what the API server shows to the webhook server.
pub(super) struct Certificates {
    pub(super) webhook: Serving,
    pub(super) aggregated: Serving,
    pub(super) password: String,
}

impl Certificates {
    /// Creates all, or reuses what `known` has: the Secret of a program, by its name.
    pub(super) fn make(arguments: &Arguments, known: impl Fn(&str) -> Option<Value>) -> anyhow::Result<Self> {
        let one = |name: &str| match known(&secret_name(name)) {
            Some(secret) => serving(&secret),
            None => serving::make(name, &names(arguments, name)),
        };
        // Secrets of earlier versions have none.
        let password = known(&secret_name(WEBHOOK)).and_then(|secret| part(&secret, PASSWORD_FILE));
        let password = password.unwrap_or_else(registration::password);
        Ok(Self { webhook: one(WEBHOOK)?, aggregated: one(AGGREGATED)?, password })
    }
}

/// The names under which API servers call a program.
fn names(arguments: &Arguments, name: &str) -> Vec<String> {
    let Arguments { host, host_cluster_domain: domain, .. } = arguments;
    let service = format!("{name}.{}.svc", host.namespace);
    let given = arguments.cert_external_ip.iter().chain(&arguments.cert_external_dns).cloned();
    ["localhost".to_owned(), name.to_owned(), format!("{service}.{domain}"), service]
        .into_iter()
        .chain(given.filter(|name| !name.is_empty()))
        .collect()
}

pub(super) fn secret_name(name: &str) -> String {
    format!("{name}-cert")
}

/// The objects to apply before the programs run, and those to apply afterwards.
pub(super) struct Layout {
    pub(super) programs: Vec<Value>,
    pub(super) calls: Vec<Value>,
}

/// Marks an object outside of the namespace of its installation.
fn mark(object: &mut Value, namespace: &str) {
    object["metadata"]["labels"][LABEL] = MARK.into();
    object["metadata"]["labels"][INSTALLED_IN] = namespace.into();
}

/// Returns the selector for the objects of an installation outside of its namespace.
pub(crate) fn marked(namespace: &str) -> String {
    format!("{LABEL}={MARK},{INSTALLED_IN}={namespace}")
}

pub(super) fn layout(arguments: &Arguments, certificates: &Certificates) -> anyhow::Result<Layout> {
    let namespace = arguments.host.namespace.as_str();
    let webhook = Place::Service { namespace, name: WEBHOOK, port: PORT };
    let (trusted, also) = (&certificates.webhook.authority, &certificates.aggregated.authority);
    let mut programs = vec![space(namespace), space(CLUSTERS)];
    for name in [CONTROLLERS, WEBHOOK, AGGREGATED] {
        programs.push(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": name, LABEL: "account-defaults"}},
            // Pods decide themselves whether they get a token.
            "automountServiceAccountToken": false,
        }));
    }
    programs.extend(rights(namespace));
    let mut webhook_secret = secret(namespace, WEBHOOK, &certificates.webhook);
    webhook_secret["data"][PASSWORD_FILE] = encode(&certificates.password).into();
    programs.push(webhook_secret);
    programs.push(secret(namespace, AGGREGATED, &certificates.aggregated));
    programs.extend(registration::definitions(webhook, trusted));
    programs.push(service(namespace, WEBHOOK, WEBHOOK_PORT));
    programs.push(service(namespace, AGGREGATED, AGGREGATED_PORT));
    programs.extend([aggregated(arguments)?, admission(arguments), controllers(arguments)]);

    let groups = if arguments.existing.serve_metrics { Groups::AndMetrics } else { Groups::Karmada };
    let mut calls = registration::api_services(groups, namespace, AGGREGATED, PORT, also);
    calls.extend(registration::webhooks(webhook, trusted, Some(&certificates.password)));
    for object in &mut calls {
        mark(object, namespace);
    }
    Ok(Layout { programs, calls })
}

fn space(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"karmada.io/system": "true"}},
    })
}

fn encode(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn secret(namespace: &str, name: &str, serving: &Serving) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(name), "namespace": namespace, "labels": {"app": name, LABEL: "secret-defaults"},
        },
        "type": "kubernetes.io/tls",
        "data": {
            "ca.crt": encode(&serving.authority),
            "tls.crt": encode(&serving.certificate),
            "tls.key": encode(&serving.key),
        },
    })
}

fn service(namespace: &str, name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name, LABEL: "service-defaults"}},
        "spec": {
            "selector": {"app": name},
            "ports": [{"name": "https", "port": PORT, "targetPort": port, "protocol": "TCP"}],
        },
    })
}

/// Roles and their bindings.
///
/// The controllers read everything and mark templates of any kind, so they may update everything; they may only create and delete
/// their own kinds of objects. RBAC keeps them from giving themselves more rights by updating roles.
fn rights(namespace: &str) -> Vec<Value> {
    let rule = |groups: &[&str], resources: &[&str], verbs: &[&str]| json!({"apiGroups": groups, "resources": resources, "verbs": verbs});
    let (read, all) = (["get", "list", "watch"], ["*"]);
    let made = ["create", "delete"];
    let events = rule(&[""], &["events"], &["create", "patch"]);
    let approved = json!({
        "apiGroups": ["certificates.k8s.io"],
        "resources": ["signers"],
        "resourceNames": ["kubernetes.io/kube-apiserver-client"],
        "verbs": ["approve"],
    });
    let controllers = json!([
        rule(&all, &all, &["get", "list", "watch", "update", "patch"]),
        rule(&["work.karmada.io"], &["works", "resourcebindings", "clusterresourcebindings"], &made),
        rule(&["apps.karmada.io"], &["workloadrebalancers"], &["delete"]),
        // Execution namespaces; Services, endpoints and ingresses of other clusters.
        rule(&[""], &["namespaces", "services"], &made),
        rule(&["discovery.k8s.io"], &["endpointslices"], &made),
        rule(&["networking.k8s.io"], &["ingresses"], &made),
        // Agents request certificates; the API server decides what they may do.
        rule(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]),
        approved,
        events,
    ]);
    let webhook = json!([
        rule(&["config.karmada.io"], &["resourceinterpretercustomizations"], &["get", "list"]),
        rule(&["policy.karmada.io"], &["federatedresourcequotas"], &["get", "list"]),
        rule(&["policy.karmada.io"], &["federatedresourcequotas/status"], &["update"]),
        rule(&["work.karmada.io"], &["resourcebindings"], &["get", "list"]),
        rule(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]),
    ]);
    let aggregated = json!([
        rule(&["cluster.karmada.io"], &["clusters"], &read),
        rule(&["search.karmada.io"], &["resourceregistries"], &read),
        rule(&["search.karmada.io"], &["resourceregistries/status"], &["patch"]),
        events,
    ]);
    let leases = json!([rule(&["coordination.k8s.io"], &["leases"], &["create"])]);
    let secrets = json!([rule(&[""], &["secrets"], &["get"])]);
    let role = |place: &str, name: &str, rules: &Value| {
        let kind = if place.is_empty() { "ClusterRole" } else { "Role" };
        let mut role = json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": kind,
            "metadata": {"name": name, "labels": {"app": name}}, "rules": rules,
        });
        mark(&mut role, namespace);
        if !place.is_empty() {
            role["metadata"]["namespace"] = place.into();
        }
        role
    };
    let binding = |place: &str, name: &str, (kind, role): (&str, &str), account: &str| {
        let own = if place.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
        let mut binding = json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": own,
            "metadata": {"name": name, "labels": {"app": account}},
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
        });
        mark(&mut binding, namespace);
        if !place.is_empty() {
            binding["metadata"]["namespace"] = place.into();
        }
        binding
    };
    let mut objects = Vec::new();
    for (name, rules) in [(CONTROLLERS, &controllers), (WEBHOOK, &webhook), (AGGREGATED, &aggregated)] {
        objects.push(role("", name, rules));
        objects.push(binding("", name, ("ClusterRole", name), name));
    }
    for (place, name, rules) in [(namespace, CONTROLLERS, &leases), (CLUSTERS, AGGREGATED, &secrets)] {
        objects.push(role(place, name, rules));
        objects.push(binding(place, name, ("Role", name), name));
    }
    // An aggregated server gets the caller's identity and rights from the API server.
    let delegator = ("ClusterRole", "system:auth-delegator");
    objects.push(binding("", &format!("{AGGREGATED}:auth-delegator"), delegator, AGGREGATED));
    let reader = ("Role", "extension-apiserver-authentication-reader");
    objects.push(binding("kube-system", AGGREGATED, reader, AGGREGATED));
    objects
}

/// A container with the parts that all three programs share.
fn container(arguments: &Arguments, name: &str, args: Vec<String>, port: u16) -> Value {
    json!({
        "name": name,
        "image": image(arguments),
        "imagePullPolicy": arguments.image_pull_policy,
        "command": ["karmada"],
        "args": args,
        "ports": [{"name": if port == HEALTH_PORT { "health" } else { "https" }, "containerPort": port, "protocol": "TCP"}],
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [],
    })
}

fn pod(arguments: &Arguments, name: &str, container: Value) -> Value {
    let mut pod = json!({
        "serviceAccountName": name,
        "automountServiceAccountToken": true,
        "priorityClassName": arguments.karmada_apiserver_priority_class,
        "containers": [container],
        "volumes": [],
    });
    if !arguments.image_pull_secrets.is_empty() {
        let secrets: Vec<Value> =
            arguments.image_pull_secrets.iter().map(|name| json!({"name": name})).collect();
        pod["imagePullSecrets"] = secrets.into();
    }
    pod
}

/// Mounts the certificate of a program where it is expected.
fn with_certificate(mut pod: Value, name: &str) -> Value {
    let mount = json!({"name": "certificate", "mountPath": CERTIFICATES, "readOnly": true});
    push(&mut pod["containers"][0]["volumeMounts"], mount);
    push(&mut pod["volumes"], json!({"name": "certificate", "secret": {"secretName": secret_name(name)}}));
    pod
}

fn push(list: &mut Value, item: Value) {
    if let Value::Array(list) = list {
        list.push(item);
    }
}

fn workload(arguments: &Arguments, kind: &str, name: &str, mut spec: Value, pod: Value) -> Value {
    spec["selector"] = json!({"matchLabels": {"app": name}});
    spec["template"] = json!({"metadata": {"labels": {"app": name}}, "spec": pod});
    json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {
            "name": name, "namespace": arguments.host.namespace, "labels": {"app": name, LABEL: "app-defaults"},
        },
        "spec": spec,
    })
}

fn https(port: u16, path: &str) -> Value {
    json!({"httpGet": {"path": path, "port": port, "scheme": "HTTPS"}, "periodSeconds": 5})
}

fn aggregated(arguments: &Arguments) -> anyhow::Result<Value> {
    let mut args = vec![
        "aggregated".to_owned(),
        format!("--secure-port={AGGREGATED_PORT}"),
        format!("--data-dir={DATA}"),
        format!("--cert-dir={CERTIFICATES}"),
        format!("--service-namespace={}", arguments.host.namespace),
    ];
    args.extend(arguments.existing.karmada_aggregated_apiserver_extra_args.iter().cloned());
    let mut container = container(arguments, AGGREGATED, args, AGGREGATED_PORT);
    container["readinessProbe"] = https(AGGREGATED_PORT, "/readyz");
    container["livenessProbe"] = https(AGGREGATED_PORT, "/livez");
    push(&mut container["volumeMounts"], json!({"name": "data", "mountPath": DATA}));
    let mut pod = with_certificate(pod(arguments, AGGREGATED, container), AGGREGATED);
    // The store is written to disk before the process ends.
    pod["terminationGracePeriodSeconds"] = 60.into();
    // One process owns the store of Clusters.
    let mut spec = json!({"replicas": 1, "serviceName": AGGREGATED});
    store(arguments, AGGREGATED, &mut pod, &mut spec)?;
    Ok(workload(arguments, "StatefulSet", AGGREGATED, spec, pod))
}

fn admission(arguments: &Arguments) -> Value {
    let mut args = vec![
        "webhook".to_owned(),
        format!("--secure-port={WEBHOOK_PORT}"),
        format!("--cert-dir={CERTIFICATES}"),
        "--health-probe-bind-address=0".to_owned(),
    ];
    args.extend(arguments.existing.karmada_webhook_extra_args.iter().cloned());
    let mut container = container(arguments, WEBHOOK, args, WEBHOOK_PORT);
    container["readinessProbe"] = https(WEBHOOK_PORT, "/readyz");
    let pod = with_certificate(pod(arguments, WEBHOOK, container), WEBHOOK);
    let replicas = arguments.existing.karmada_webhook_replicas.unwrap_or(2);
    workload(arguments, "Deployment", WEBHOOK, json!({"replicas": replicas}), pod)
}

fn controllers(arguments: &Arguments) -> Value {
    let mut args = vec![
        "controllers".to_owned(),
        format!("--leader-elect-resource-namespace={}", arguments.host.namespace),
        format!("--health-probe-bind-address=:{HEALTH_PORT}"),
    ];
    args.extend(arguments.existing.karmada_controller_manager_extra_args.iter().cloned());
    let mut container = container(arguments, CONTROLLERS, args, HEALTH_PORT);
    container["livenessProbe"] =
        json!({"httpGet": {"path": "/healthz", "port": HEALTH_PORT}, "periodSeconds": 5});
    // One acts, by a Lease; the other takes over.
    let replicas = arguments.existing.karmada_controller_manager_replicas.unwrap_or(2);
    let pod = pod(arguments, CONTROLLERS, container);
    workload(arguments, "Deployment", CONTROLLERS, json!({"replicas": replicas}), pod)
}

/// The programs, and the resource of their workloads.
pub(super) const WORKLOADS: [(&str, &str); 3] =
    [(AGGREGATED, "statefulsets"), (WEBHOOK, "deployments"), (CONTROLLERS, "deployments")];

/// Reads a text that a Secret holds.
fn part(secret: &Value, key: &str) -> Option<String> {
    let encoded = secret["data"][key].as_str()?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).ok()?;
    String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}

/// Reads the certificate that a Secret holds.
pub(super) fn serving(secret: &Value) -> anyhow::Result<Serving> {
    let text = |key: &str| {
        let name = secret["metadata"]["name"].as_str().unwrap_or("");
        part(secret, key)
            .ok_or_else(|| anyhow!("Secret {name} has no {key}; hint: delete it, and a new one is made"))
    };
    Ok(Serving { authority: text("ca.crt")?, certificate: text("tls.crt")?, key: text("tls.key")? })
}

/// Refuses to take a group version away from another server, unless that was requested.
pub(super) fn may_replace(found: &Value, wanted: &Value, metrics: bool) -> anyhow::Result<()> {
    let name = wanted["metadata"]["name"].as_str().unwrap_or("");
    let text = |key: &str| found["spec"]["service"][key].as_str().unwrap_or("");
    let ours = ["name", "namespace"].iter().all(|key| wanted["spec"]["service"][key] == text(key));
    if ours || (metrics && name.ends_with("metrics.k8s.io")) {
        return Ok(());
    }
    let by = match text("name") {
        "" => "a definition".to_owned(),
        service => format!("{}/{service}", text("namespace")),
    };
    bail!("APIService {name} is served by {by} already; nothing was installed; hint: remove that first")
}
