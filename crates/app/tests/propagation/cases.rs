//! One case per kind: the object, a change of it, and the status its template gets.

use serde_json::{Value, json};
use testkit::Kind;

/// What is propagated and what is expected of it.
pub(crate) struct Case {
    pub(crate) kind: Kind,
    /// Without namespace.
    pub(crate) template: Value,
    /// A merge patch that a user sends.
    pub(crate) change: Value,
    /// Where the change shows in the member, and how.
    pub(crate) changed: (&'static str, Value),
    /// What is written as the object's status in each member, where no controller of the member sets it.
    pub(crate) reported: Option<Value>,
    /// Where the status of two members shows on the template, and how.
    pub(crate) status: Option<(&'static str, Value)>,
}

/// Returns all cases. Names of cluster-scoped objects carry the tag: members are shared.
pub(crate) fn all(tag: &str) -> Vec<Case> {
    let mut cases = workloads();
    cases.extend(network());
    cases.extend(settings());
    cases.extend(rights(tag));
    cases.extend(kinds_of_kinds(tag));
    cases
}

fn case(kind: Kind, name: &str, rest: Value, change: Value, changed: (&'static str, Value)) -> Case {
    let mut template = rest;
    template["apiVersion"] = kind.resource.api_version.clone().into();
    template["kind"] = kind.resource.kind.clone().into();
    template["metadata"] = json!({"name": name, "labels": {"app": name}});
    Case { kind, template, change, changed, reported: None, status: None }
}

impl Case {
    fn status(mut self, path: &'static str, value: Value) -> Self {
        self.status = Some((path, value));
        self
    }

    fn reported(mut self, status: Value) -> Self {
        self.reported = Some(status);
        self
    }
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "nginx:1.19.0"}]}})
}

fn workloads() -> Vec<Case> {
    let selector = |name: &str| json!({"matchLabels": {"app": name}});
    let job = || {
        let mut pod = pod("job");
        pod["spec"]["restartPolicy"] = "Never".into();
        pod
    };
    let image =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "nginx:1.20.0"}]}}}});
    let image_path = "/spec/template/spec/containers/0/image";
    vec![
        case(
            Kind::namespaced("apps", "v1", "Deployment", "deployments"),
            "deployment",
            json!({"spec": {"replicas": 2, "selector": selector("deployment"), "template": pod("deployment")}}),
            image.clone(),
            (image_path, json!("nginx:1.20.0")),
        )
        .status("/status/readyReplicas", json!(4)),
        case(
            Kind::namespaced("apps", "v1", "StatefulSet", "statefulsets"),
            "statefulset",
            json!({"spec": {"serviceName": "none", "replicas": 1, "selector": selector("statefulset"),
                "template": pod("statefulset")}}),
            image.clone(),
            (image_path, json!("nginx:1.20.0")),
        )
        .status("/status/readyReplicas", json!(2)),
        case(
            Kind::namespaced("apps", "v1", "DaemonSet", "daemonsets"),
            "daemonset",
            json!({"spec": {"selector": selector("daemonset"), "template": pod("daemonset")}}),
            image,
            (image_path, json!("nginx:1.20.0")),
        )
        .status("/status/numberReady", json!(6)),
        case(
            Kind::namespaced("batch", "v1", "Job", "jobs"),
            "job",
            json!({"spec": {"template": job()}}),
            json!({"spec": {"backoffLimit": 3}}),
            ("/spec/backoffLimit", json!(3)),
        )
        .status("/status/succeeded", json!(2)),
        case(
            Kind::namespaced("batch", "v1", "CronJob", "cronjobs"),
            "cronjob",
            json!({"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": job()}}}}),
            json!({"spec": {"schedule": "0 0 2 1 *"}}),
            ("/spec/schedule", json!("0 0 2 1 *")),
        ),
        case(
            Kind::namespaced("", "v1", "Pod", "pods"),
            "pod",
            json!({"spec": pod("pod")["spec"]}),
            json!({"spec": {"activeDeadlineSeconds": 100_000}}),
            ("/spec/activeDeadlineSeconds", json!(100_000)),
        )
        .status("/status/phase", json!("Running")),
    ]
}

fn network() -> Vec<Case> {
    let address = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
    let backend =
        |port: i64| json!({"defaultBackend": {"service": {"name": "web", "port": {"number": port}}}});
    vec![
        case(
            Kind::namespaced("", "v1", "Service", "services"),
            "service",
            json!({"spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]}}),
            json!({"spec": {"selector": {"app": "other"}}}),
            ("/spec/selector/app", json!("other")),
        )
        .reported(address.clone())
        .status("/status/loadBalancer/ingress/0/ip", json!("192.0.2.1")),
        case(
            Kind::namespaced("networking.k8s.io", "v1", "Ingress", "ingresses"),
            "ingress",
            json!({"spec": backend(80)}),
            json!({"spec": backend(81)}),
            ("/spec/defaultBackend/service/port/number", json!(81)),
        )
        .reported(address)
        .status("/status/loadBalancer/ingress/0/ip", json!("192.0.2.1")),
    ]
}

fn settings() -> Vec<Case> {
    vec![
        case(
            Kind::namespaced("", "v1", "ConfigMap", "configmaps"),
            "configmap",
            json!({"data": {"a": "1"}}),
            json!({"data": {"a": "2", "b": "3"}}),
            ("/data", json!({"a": "2", "b": "3"})),
        ),
        case(
            Kind::namespaced("", "v1", "Secret", "secrets"),
            "secret",
            json!({"data": {"a": "MQ=="}}),
            json!({"data": {"a": "Mg=="}}),
            ("/data/a", json!("Mg==")),
        ),
        case(
            Kind::namespaced("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
            "claim",
            // Of a class that no member has, so that it waits everywhere.
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "absent",
                "resources": {"requests": {"storage": "1Gi"}}}}),
            json!({"metadata": {"annotations": {"note": "changed"}}}),
            ("/metadata/annotations/note", json!("changed")),
        )
        .status("/status/phase", json!("Pending")),
        case(
            Kind::namespaced("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
            "autoscaler",
            json!({"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "absent"},
                "minReplicas": 1, "maxReplicas": 3}}),
            json!({"spec": {"maxReplicas": 5}}),
            ("/spec/maxReplicas", json!(5)),
        )
        .reported(json!({"currentReplicas": 2, "desiredReplicas": 3}))
        .status("/status/desiredReplicas", json!(6)),
        case(
            Kind::namespaced("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
            "budget",
            // Nobody's pods: those of another case may be gone already.
            json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "nobody"}}}}),
            json!({"spec": {"minAvailable": 2}}),
            ("/spec/minAvailable", json!(2)),
        )
        .status("/status/desiredHealthy", json!(2)),
    ]
}

fn rights(tag: &str) -> Vec<Case> {
    let rule = |verb: &str| json!([{"apiGroups": [""], "resources": ["pods"], "verbs": [verb]}]);
    let group = "rbac.authorization.k8s.io";
    let subject = |name: &str| json!([{"kind": "User", "apiGroup": group, "name": name}]);
    let name = |kind: &str| format!("{kind}-{tag}");
    let reference = |kind: &str, name: &str| json!({"apiGroup": group, "kind": kind, "name": name});
    vec![
        case(
            Kind::namespaced(group, "v1", "Role", "roles"),
            "role",
            json!({"rules": rule("get")}),
            json!({"rules": rule("list")}),
            ("/rules/0/verbs/0", json!("list")),
        ),
        case(
            Kind::namespaced(group, "v1", "RoleBinding", "rolebindings"),
            "rolebinding",
            json!({"roleRef": reference("Role", "role"), "subjects": subject("anna")}),
            json!({"subjects": subject("berta")}),
            ("/subjects/0/name", json!("berta")),
        ),
        case(
            Kind::cluster(group, "v1", "ClusterRole", "clusterroles"),
            &name("clusterrole"),
            json!({"rules": rule("get")}),
            json!({"rules": rule("list")}),
            ("/rules/0/verbs/0", json!("list")),
        ),
        case(
            Kind::cluster(group, "v1", "ClusterRoleBinding", "clusterrolebindings"),
            &name("clusterrolebinding"),
            json!({"roleRef": reference("ClusterRole", &name("clusterrole")), "subjects": subject("anna")}),
            json!({"subjects": subject("berta")}),
            ("/subjects/0/name", json!("berta")),
        ),
        case(
            Kind::namespaced("", "v1", "ServiceAccount", "serviceaccounts"),
            "account",
            json!({"imagePullSecrets": [{"name": "one"}]}),
            json!({"imagePullSecrets": [{"name": "two"}]}),
            ("/imagePullSecrets/0/name", json!("two")),
        ),
    ]
}

/// Returns the definition of a kind that exists for these tests alone.
pub(crate) fn custom_definition(tag: &str, kind: &str) -> Value {
    let (plural, group) = (format!("{}s", kind.to_lowercase()), format!("{tag}.example.io"));
    let version = json!({"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "versions": [version],
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")}}})
}

fn kinds_of_kinds(tag: &str) -> Vec<Case> {
    let mut namespace = case(
        Kind::cluster("", "v1", "Namespace", "namespaces"),
        &format!("namespace-{tag}"),
        json!({}),
        json!({"metadata": {"annotations": {"note": "changed"}}}),
        ("/metadata/annotations/note", json!("changed")),
    );
    // Namespaces go everywhere by themselves, unless told not to.
    namespace.template["metadata"]["labels"]["namespace.karmada.io/skip-auto-propagation"] = "true".into();
    let gadgets = custom_definition(tag, "Gadget");
    let definition = case(
        Kind::cluster("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"),
        gadgets["metadata"]["name"].as_str().expect("a name"),
        json!({"spec": gadgets["spec"]}),
        json!({"spec": {"names": {"shortNames": ["gdg"]}}}),
        ("/spec/names/shortNames/0", json!("gdg")),
    );
    let custom = case(
        Kind::namespaced(&format!("{tag}.example.io"), "v1", "Widget", "widgets"),
        "widget",
        json!({"spec": {"size": 1}}),
        json!({"spec": {"size": 2}}),
        ("/spec/size", json!(2)),
    );
    vec![namespace, definition, custom]
}
