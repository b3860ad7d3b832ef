//! Admission webhooks: one server of ours is called by both API servers, and what they make of its answers is compared.
//!
//! kube-apiserver learns of a configuration after a moment. Every scenario therefore carries a marker: a webhook that
//! refuses objects with a label of the scenario. When the marker bites on both sides, the rest does too.

use serde_json::{Value, json};

use crate::suite::Suite;
use crate::support::Call;
use crate::support::webhook::Webhook;

const NAMESPACE: &str = "hooks";
const CONFIG_MAPS: &str = "api/v1/namespaces/hooks/configmaps";
const MERGE: &str = "application/merge-patch+json";

pub(crate) async fn run(suite: &mut Suite) {
    if !suite.wants("hooks") {
        return;
    }
    let server = Webhook::start().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    suite.both(&Call::new("POST", "api/v1/namespaces").json(&namespace)).await;
    service(suite, &server).await;
    let mut scenarios = Scenarios { suite, server: &server, count: 0 };
    scenarios.answers().await;
    scenarios.requests().await;
    scenarios.selection().await;
    scenarios.mutation().await;
    scenarios.reach().await;
}

/// A Service without a selector, so that its endpoints are ours to write.
async fn service(suite: &Suite, server: &Webhook) {
    let port = server.address.port();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}});
    suite.both(&Call::new("POST", "api/v1/namespaces/hooks/services").json(&service)).await;
}

struct Scenarios<'a> {
    suite: &'a mut Suite,
    server: &'a Webhook,
    count: usize,
}

impl Scenarios<'_> {
    fn hook(&self, path: &str) -> Value {
        self.hook_by(&self.server.client(path))
    }

    fn hook_by(&self, client: &Value) -> Value {
        json!({
            "name": "hook.example.com",
            "clientConfig": client,
            "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
            "objectSelector": {"matchExpressions": [{"key": "marker", "operator": "DoesNotExist"}]},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        })
    }

    /// Configures webhooks on both sides and waits until they are called.
    async fn with(&mut self, mutating: bool, hooks: &[Value]) {
        self.count += 1;
        let marker = format!("m{}", self.count);
        let mut marking = self.hook("/deny");
        marking["name"] = json!("marker.example.com");
        marking["objectSelector"] = json!({"matchLabels": {"marker": marker}});
        let mut hooks = hooks.to_vec();
        hooks.push(marking);
        let kind = if mutating { "MutatingWebhookConfiguration" } else { "ValidatingWebhookConfiguration" };
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "differ"},
            "webhooks": hooks,
        });
        self.suite.both(&Call::new("POST", collection(mutating)).json(&configuration)).await;
        let probe = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "probe", "labels": {"marker": marker}}});
        let probe = Call::new("POST", format!("{CONFIG_MAPS}?dryRun=All")).json(&probe);
        self.suite.until(&probe, |answer| answer.text().contains("denied the request: not today")).await;
    }

    /// Takes the webhooks away again and waits until nobody is called any more.
    async fn without(&mut self, mutating: bool) {
        let path = format!("{}/differ", collection(mutating));
        self.suite.both(&Call::new("DELETE", path)).await;
        let marker = format!("m{}", self.count);
        let probe = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "probe", "labels": {"marker": marker}}});
        let probe = Call::new("POST", format!("{CONFIG_MAPS}?dryRun=All")).json(&probe);
        self.suite.until(&probe, |answer| answer.code == 201).await;
    }

    async fn case(&mut self, case: &str, call: Call) {
        self.suite.compare(&format!("hooks {case}"), &call).await;
    }

    async fn create(&mut self, case: &str, name: &str, query: &str) {
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}});
        self.case(case, Call::new("POST", format!("{CONFIG_MAPS}{query}")).json(&object)).await;
    }

    /// Whatever a webhook may answer.
    async fn answers(&mut self) {
        for path in [
            "/allow",
            "/warn",
            "/deny",
            "/deny-silently",
            "/deny-fully",
            "/deny-reason",
            "/wrong-uid",
            "/absent",
            "/wrong-kind",
            "/garbage",
            "/500",
            "/503",
            "/404",
            "/no-type",
            "/label",
        ] {
            for mutating in [false, true] {
                let word = if mutating { "mutating" } else { "validating" };
                let hook = self.hook(path);
                self.with(mutating, &[hook]).await;
                self.create(&format!("answer {word} {path}"), "answer", "").await;
                self.case("tidy", Call::new("DELETE", format!("{CONFIG_MAPS}/answer"))).await;
                self.without(mutating).await;
                self.suite.both(&Call::new("DELETE", format!("{CONFIG_MAPS}/answer"))).await;
            }
        }
        for path in ["/500", "/wrong-uid", "/garbage", "/deny"] {
            let mut hook = self.hook(path);
            hook["failurePolicy"] = json!("Ignore");
            self.with(false, &[hook]).await;
            self.create(&format!("ignored {path}"), "ignored", "?dryRun=All").await;
            self.without(false).await;
        }
        let mut slow = self.hook("/slow");
        slow["timeoutSeconds"] = json!(1);
        self.with(false, &[slow]).await;
        self.create("slow", "slow", "?dryRun=All").await;
        self.without(false).await;
        let mut effects = self.hook("/allow");
        effects["admissionReviewVersions"] = json!(["v1beta1"]);
        self.with(false, &[effects]).await;
        self.create("old review", "old", "?dryRun=All").await;
        self.without(false).await;
    }

    /// What a webhook is asked: it refuses with the question.
    async fn requests(&mut self) {
        self.create("prepare stored", "stored", "").await;
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
        let deployments = "apis/apps/v1/namespaces/hooks/deployments";
        self.suite.both(&Call::new("POST", deployments).json(&deployment)).await;
        for mutating in [false, true] {
            let word = if mutating { "mutating" } else { "validating" };
            let hook = self.hook("/echo");
            self.with(mutating, &[hook]).await;
            self.create(&format!("asked {word} create"), "new", "").await;
            self.create(
                &format!("asked {word} create options"),
                "new",
                "?dryRun=All&fieldManager=m&fieldValidation=Strict",
            )
            .await;
            let generated =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "gen-"}});
            self.case(&format!("asked {word} generate"), Call::new("POST", CONFIG_MAPS).json(&generated))
                .await;
            let item = format!("{CONFIG_MAPS}/stored");
            let patch = json!({"data": {"k": "w"}});
            let call = Call::new("PATCH", format!("{item}?fieldManager=m")).json(&patch).content_type(MERGE);
            self.case(&format!("asked {word} patch"), call).await;
            let put = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stored"}, "data": {"a": "b"}});
            self.case(&format!("asked {word} put"), Call::new("PUT", &item).json(&put)).await;
            let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}});
            let call = Call::new("PATCH", format!("{CONFIG_MAPS}/applied?fieldManager=m&force=true"))
                .json(&apply)
                .content_type("application/apply-patch+yaml");
            self.case(&format!("asked {word} apply new"), call).await;
            let options = json!({"propagationPolicy": "Foreground", "gracePeriodSeconds": 5});
            self.case(&format!("asked {word} delete"), Call::new("DELETE", &item).json(&options)).await;
            self.case(&format!("asked {word} delete plain"), Call::new("DELETE", &item)).await;
            self.case(&format!("asked {word} delete collection"), Call::new("DELETE", CONFIG_MAPS)).await;
            let scale = json!({"spec": {"replicas": 2}});
            let call = Call::new("PATCH", format!("{deployments}/d/scale")).json(&scale).content_type(MERGE);
            self.case(&format!("asked {word} scale"), call).await;
            let status = json!({"status": {"replicas": 1}});
            let call =
                Call::new("PATCH", format!("{deployments}/d/status")).json(&status).content_type(MERGE);
            self.case(&format!("asked {word} status"), call).await;
            let labels = json!({"metadata": {"labels": {"x": "y"}}});
            let call = Call::new("PATCH", "api/v1/namespaces/hooks").json(&labels).content_type(MERGE);
            self.case(&format!("asked {word} namespace"), call).await;
            self.without(mutating).await;
        }
        let mut replicas = self.hook("/replicas");
        replicas["rules"][0]["resources"] = json!(["deployments/scale"]);
        self.with(true, &[replicas]).await;
        let scale = json!({"spec": {"replicas": 2}});
        let call = Call::new("PATCH", format!("{deployments}/d/scale")).json(&scale).content_type(MERGE);
        self.case("scale changed", call).await;
        self.case("scale changed shows", Call::new("GET", format!("{deployments}/d"))).await;
        self.without(true).await;
        self.suite.both(&Call::new("DELETE", format!("{deployments}/d"))).await;
        self.suite.both(&Call::new("DELETE", format!("{CONFIG_MAPS}/stored"))).await;
    }

    /// Which requests a webhook is asked about.
    async fn selection(&mut self) {
        let rules = [
            (
                "wrong group",
                json!([{"operations": ["*"], "apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["*"]}]),
            ),
            (
                "wrong version",
                json!([{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v2"], "resources": ["*"]}]),
            ),
            (
                "only subresources",
                json!([{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps/*"]}]),
            ),
            (
                "exact",
                json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]),
            ),
            (
                "other operation",
                json!([{"operations": ["UPDATE", "DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]),
            ),
            (
                "cluster scope",
                json!([{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "scope": "Cluster"}]),
            ),
            (
                "namespaced scope",
                json!([{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "scope": "Namespaced"}]),
            ),
            (
                "all resources",
                json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]),
            ),
        ];
        for (case, rules) in rules {
            let mut hook = self.hook("/deny");
            hook["rules"] = json!([rules[0], {"operations": ["*"], "apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"]}]);
            self.with(false, &[hook]).await;
            self.create(&format!("selects {case}"), "selected", "?dryRun=All").await;
            self.without(false).await;
        }
        for (case, selector) in [
            ("labelled", json!({"matchLabels": {"pick": "me"}})),
            ("unlabelled", json!({"matchExpressions": [{"key": "pick", "operator": "DoesNotExist"}]})),
        ] {
            let mut hook = self.hook("/deny");
            hook["objectSelector"] = selector;
            self.with(false, &[hook]).await;
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p", "labels": {"pick": "me"}}});
            self.case(
                &format!("selects {case}"),
                Call::new("POST", format!("{CONFIG_MAPS}?dryRun=All")).json(&object),
            )
            .await;
            self.without(false).await;
        }
        // The same objects through another version of their kind.
        let autoscaler = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
        for policy in ["Equivalent", "Exact"] {
            let mut hook = self.hook("/echo");
            hook["matchPolicy"] = json!(policy);
            hook["rules"] = json!([{"operations": ["*"], "apiGroups": ["autoscaling"], "apiVersions": ["v2"], "resources": ["*"]}]);
            self.with(false, &[hook]).await;
            let path = "apis/autoscaling/v1/namespaces/hooks/horizontalpodautoscalers?dryRun=All";
            self.case(&format!("policy {policy}"), Call::new("POST", path).json(&autoscaler)).await;
            self.without(false).await;
        }
        let mut hook = self.hook("/deny");
        hook.as_object_mut().expect("a hook").remove("namespaceSelector");
        hook["rules"] = json!([{"operations": ["*"], "apiGroups": ["admissionregistration.k8s.io"], "apiVersions": ["*"], "resources": ["*"]}]);
        self.with(false, &[hook]).await;
        let other = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "other"}, "webhooks": []});
        let path = format!("{}?dryRun=All", collection(false));
        self.case("never about itself", Call::new("POST", path).json(&other)).await;
        self.without(false).await;
    }

    /// What webhooks change.
    async fn mutation(&mut self) {
        for path in ["/label", "/nothing", "/unapplicable", "/ruin", "/invalid"] {
            let hook = self.hook(path);
            self.with(true, &[hook]).await;
            self.create(&format!("change {path}"), "changed", "").await;
            self.case(&format!("change {path} shows"), Call::new("GET", format!("{CONFIG_MAPS}/changed")))
                .await;
            let patch = json!({"data": {"k": "2"}});
            let call = Call::new("PATCH", format!("{CONFIG_MAPS}/changed")).json(&patch).content_type(MERGE);
            self.case(&format!("change {path} update"), call).await;
            self.case(
                &format!("change {path} delete"),
                Call::new("DELETE", format!("{CONFIG_MAPS}/changed")),
            )
            .await;
            self.without(true).await;
            self.suite.both(&Call::new("DELETE", format!("{CONFIG_MAPS}/changed"))).await;
        }
        let named = |mut hook: Value, name: &str, policy: &str| {
            hook["name"] = json!(format!("{name}.example.com"));
            hook["reinvocationPolicy"] = json!(policy);
            hook
        };
        let (count, once) = (self.hook("/count"), self.hook("/once"));
        for (case, hooks) in [
            (
                "again if needed",
                vec![named(count.clone(), "a", "IfNeeded"), named(once.clone(), "b", "Never")],
            ),
            ("never again", vec![named(count.clone(), "a", "Never"), named(once.clone(), "b", "Never")]),
            (
                "both again",
                vec![named(count.clone(), "a", "IfNeeded"), named(count.clone(), "b", "IfNeeded")],
            ),
            ("nothing after", vec![named(once, "a", "IfNeeded"), named(count, "b", "IfNeeded")]),
        ] {
            self.with(true, &hooks).await;
            self.create(&format!("rounds {case}"), "rounds", "?dryRun=All").await;
            self.without(true).await;
        }
    }

    /// How a webhook is reached, or not.
    async fn reach(&mut self) {
        let port = self.server.address.port();
        let bundle = &self.server.bundle;
        let by_service = |name: &str, port: u16, path: &str| json!({"service": {"name": name, "namespace": NAMESPACE, "port": port, "path": path}, "caBundle": bundle});
        let clients = [
            ("service", by_service("hook", port, "/deny")),
            ("service missing", by_service("nobody", 443, "/deny")),
            ("no bundle", json!({"url": format!("https://127.0.0.1:{port}/deny")})),
            ("other name", json!({"url": format!("https://127.0.0.2:{port}/deny"), "caBundle": bundle})),
            ("localhost", json!({"url": format!("https://localhost:{port}/deny"), "caBundle": bundle})),
            ("refused", json!({"url": "https://127.0.0.1:1/deny", "caBundle": bundle})),
        ];
        for (case, client) in clients {
            let hook = self.hook_by(&client);
            self.with(false, &[hook]).await;
            self.create(&format!("reach {case}"), "reached", "?dryRun=All").await;
            self.without(false).await;
        }
    }
}

fn collection(mutating: bool) -> &'static str {
    if mutating {
        "apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    } else {
        "apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    }
}
