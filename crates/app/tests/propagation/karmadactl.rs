//! The official `karmadactl`, unchanged, against our control plane with real members: it joins them, looks into them, applies,
//! takes over what is there already, and lets them go. Whoever looks into a member does so in his own name.

use std::path::{Path, PathBuf};
use std::process::Command;

use clusters::toolchain::{KARMADA, Toolchain};
use kube::api::{Api, DynamicObject, ListParams, ObjectList, PostParams};
use serde_json::{Value, json};
use testkit::check::{self, Site, check};
use testkit::{Kind, client, condition, eventually, install_tls, until, until_gone};

use crate::plane::ControlPlane;

const NAMESPACE: &str = "shop";

/// The program and the control plane it talks to.
struct Terminal {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Terminal {
    /// Runs the program; returns whether it is content, and what it said on either channel.
    fn run(&self, arguments: &[&str]) -> (bool, String, String) {
        let output = Command::new(&self.program)
            .args(arguments)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["--karmada-context", "karmada-apiserver"])
            .output()
            .expect("karmadactl runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    }

    /// Runs what has to work; returns what it printed.
    fn ok(&self, arguments: &[&str]) -> String {
        let (good, out, err) = self.run(arguments);
        assert!(good, "karmadactl {arguments:?}:\n{out}{err}");
        out
    }

    /// Runs what has to fail; returns its complaint.
    fn refused(&self, arguments: &[&str]) -> String {
        let (good, out, err) = self.run(arguments);
        assert!(!good, "karmadactl {arguments:?} did not fail:\n{out}");
        err
    }
}

fn deployments() -> Kind {
    Kind::namespaced("apps", "v1", "Deployment", "deployments")
}

fn cluster_kind() -> Kind {
    Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters")
}

fn role_kind() -> Kind {
    Kind::cluster("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles")
}

fn deployment(name: &str, replicas: i32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "web", "image": "nginx"}]}}}})
}

async fn create(client: &kube::Client, kind: &Kind, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    let created = kind.api(client.clone(), NAMESPACE).create(&PostParams::default(), &object).await;
    created.unwrap_or_else(|error| panic!("{}: {error}", kind.resource.kind));
}

/// Lists until the answer is as wanted: what a member has stored, it obeys a moment later.
async fn until_answered(
    api: &Api<DynamicObject>,
    what: &str,
    wanted: impl Fn(&Result<ObjectList<DynamicObject>, kube::Error>) -> bool,
) {
    eventually(what, async || {
        let answer = api.list(&ListParams::default()).await;
        if wanted(&answer) { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
}

fn context(kubeconfig: &Path) -> String {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    file.current_context.expect("a current context")
}

/// Returns a client for a member that goes through the control plane, perhaps as somebody else.
async fn through_the_proxy(kubeconfig: &Path, cluster: &str, user: Option<&str>) -> kube::Client {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let mut config =
        kube::Config::from_custom_kubeconfig(file, &Default::default()).await.expect("a usable kubeconfig");
    let url = format!(
        "{}/apis/cluster.karmada.io/v1alpha1/clusters/{cluster}/proxy",
        config.cluster_url.to_string().trim_end_matches('/')
    );
    config.cluster_url = url.parse().expect("an address");
    config.auth_info.impersonate = user.map(str::to_owned);
    kube::Client::try_from(config).expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_karmadactl_works_as_on_the_original() {
    install_tls();
    let Some(members) = clusters::exclusive(2).await else { return };
    let program = Toolchain::from_env()
        .and_then(|t| t.ensure_program(&KARMADA, "karmadactl"))
        .expect("karmadactl builds");
    let control = ControlPlane::server("*");
    let terminal = Terminal { program, kubeconfig: control.kubeconfig.clone() };
    let plane = client(&control.kubeconfig).await;
    let names = ["one", "two"];
    let mut inside = Vec::new();

    // Join: each member becomes a cluster that is ready, and cannot be joined twice.
    for (name, member) in names.iter().zip(members.iter()) {
        let (file, context) = (member.kubeconfig().to_string_lossy(), context(member.kubeconfig()));
        let join = ["join", name, "--cluster-kubeconfig", &file, "--cluster-context", &context];
        assert!(terminal.ok(&join).contains(&format!("cluster({name}) is joined successfully")));
        assert!(terminal.refused(&join).contains("has been registered"));
        inside.push(client(member.kubeconfig()).await);
    }
    for name in names {
        until(&cluster_kind().api(plane.clone(), ""), name, "a joined cluster is ready", |found| {
            condition(found, "Ready") == Some("True")
        })
        .await;
    }
    let listed = terminal.ok(&["get", "clusters"]);
    assert!(listed.contains("one") && listed.contains("Push") && listed.contains("True"), "{listed}");

    // Apply to all clusters: the object and a policy of its own.
    let namespaces = Kind::cluster("", "v1", "Namespace", "namespaces");
    create(
        &plane,
        &namespaces,
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
    )
    .await;
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("web.json");
    std::fs::write(&file, deployment("web", 1).to_string()).expect("a file");
    let path = file.to_string_lossy();
    let applied = terminal.ok(&["apply", "-f", &path, "--all-clusters"]);
    assert!(applied.contains("deployment.apps/web created"), "{applied}");
    assert!(
        applied.contains("propagationpolicy.policy.karmada.io/web-") && applied.lines().count() == 2,
        "{applied}"
    );
    let again = terminal.ok(&["apply", "-f", &path, "--all-clusters"]);
    assert!(again.contains("deployment.apps/web unchanged"), "{again}");
    for member in &inside {
        until(&deployments().api(member.clone(), NAMESPACE), "web", "it arrives and runs", |found| {
            found.is_some_and(|found| found.data["status"]["readyReplicas"] == 1)
        })
        .await;
    }

    // Get: in the control plane, in members, in both. The member has to know first whom to trust.
    for member in &inside {
        until(
            &role_kind().api(member.clone(), ""),
            "karmada-impersonator",
            "impersonation is allowed",
            |found| {
                ["system:masters", "system:admin"]
                    .iter()
                    .all(|name| found.is_some_and(|found| found.data["rules"].to_string().contains(name)))
            },
        )
        .await;
    }
    // A role that is there is not yet one that the member obeys.
    for name in names {
        let through = through_the_proxy(&control.kubeconfig, name, None).await;
        until_answered(&deployments().api(through, NAMESPACE), "the member believes the proxy", |answer| {
            answer.is_ok()
        })
        .await;
    }
    let get = |more: &[&str]| terminal.ok(&[&["get", "deployments", "-n", NAMESPACE], more].concat());
    let here = get(&[]);
    assert!(here.contains("Karmada") && !here.contains("one"), "{here}");
    let everywhere = get(&["--operation-scope", "all"]);
    assert_eq!(everywhere.lines().count(), 4, "{everywhere}");
    assert!(["Karmada", "one", "two"].iter().all(|name| everywhere.contains(name)), "{everywhere}");
    let there = get(&["--operation-scope", "members", "--clusters", "two"]);
    let row: Vec<&str> = there.lines().nth(1).unwrap_or("").split_whitespace().collect();
    assert_eq!((row.first(), row.get(1), row.last()), (Some(&"web"), Some(&"two"), Some(&"Y")), "{there}");
    let missing = ["get", "pods", "nobody", "-n", NAMESPACE, "-s", "members", "-C", "one"];
    assert!(terminal.refused(&missing).contains(r#"pods "nobody" not found"#));
    let unknown = ["get", "gadgets", "-s", "members", "-C", "one"];
    assert!(terminal.refused(&unknown).contains(r#"the server doesn't have a resource type "gadgets""#));

    somebody_else(&control.kubeconfig, &plane, &inside[0]).await;

    // Promote: what a member has already comes under management where it is.
    create(&inside[0], &deployments(), deployment("legacy", 2)).await;
    let uid = |found: &DynamicObject| found.metadata.uid.clone();
    let before =
        uid(&deployments().api(inside[0].clone(), NAMESPACE).get("legacy").await.expect("it is there"));
    let promoted = terminal.ok(&["promote", "deployment", "legacy", "-n", NAMESPACE, "-C", "one"]);
    assert!(promoted.contains("is promoted successfully"), "{promoted}");
    until(&deployments().api(inside[0].clone(), NAMESPACE), "legacy", "it is managed now", |found| {
        let labels = found.and_then(|found| found.metadata.labels.as_ref());
        labels.and_then(|labels| labels.get("karmada.io/managed")).map(String::as_str) == Some("true")
    })
    .await;
    until(&deployments().api(plane.clone(), NAMESPACE), "legacy", "and reports", |found| {
        found.is_some_and(|found| found.data["status"]["readyReplicas"] == 2)
    })
    .await;
    let after = deployments().api(inside[0].clone(), NAMESPACE).get("legacy").await.expect("it is there");
    assert_eq!(uid(&after), before, "it was taken over, not replaced");

    let there = names.iter().zip(&inside).zip(members.iter());
    let member = |((name, client), cluster): ((&&str, &kube::Client), &clusters::Cluster)| {
        // Lines about the cluster's account, and about what the test has made there.
        Site::member(name, client.clone(), vec![cluster.audit_log()]).about(NAMESPACE)
    };
    let (plane_site, controllers) = (control.site(plane.clone()), control.controllers().to_owned());
    check(&check::World { plane: plane_site, members: there.map(member).collect(), controllers }).await;

    // Unjoin: nothing of us is left in the member, nor of the member here.
    let (file, context) = (members[1].kubeconfig().to_string_lossy(), context(members[1].kubeconfig()));
    terminal.ok(&["unjoin", "two", "--cluster-kubeconfig", &file, "--cluster-context", &context]);
    let gone = "nothing of an unjoined cluster is left";
    until_gone(&cluster_kind().api(plane.clone(), ""), "two", gone).await;
    until_gone(&namespaces.api(plane.clone(), ""), "karmada-es-two", gone).await;
    until_gone(&namespaces.api(inside[1].clone(), ""), "karmada-cluster", gone).await;
    until_gone(&role_kind().api(inside[1].clone(), ""), "karmada-controller-manager:karmada-two", gone).await;
    let complaint = terminal.refused(&["unjoin", "two"]);
    assert!(complaint.contains("no cluster object two found"), "{complaint}");
    let listed = terminal.ok(&["get", "clusters"]);
    assert!(listed.contains("one") && !listed.contains("two"), "{listed}");

    // The members are for others after us.
    let (file, context) = (members[0].kubeconfig().to_string_lossy(), self::context(members[0].kubeconfig()));
    terminal.ok(&["unjoin", "one", "--cluster-kubeconfig", &file, "--cluster-context", &context]);
    for member in &inside {
        let _ = namespaces.api(member.clone(), "").delete(NAMESPACE, &Default::default()).await;
        let _ = role_kind().api(member.clone(), "").delete("karmada-impersonator", &Default::default()).await;
    }
}

/// Somebody without rights is stopped by the control plane; with the right to use the proxy, by the member; with rights in the
/// member he sees what he may see, as it happens.
async fn somebody_else(kubeconfig: &Path, plane: &kube::Client, member: &kube::Client) {
    let maps = Kind::namespaced("", "v1", "ConfigMap", "configmaps");
    let as_alice = through_the_proxy(kubeconfig, "one", Some("alice")).await;
    let seen: Api<DynamicObject> = maps.api(as_alice, NAMESPACE);
    let refused = |error: kube::Error| match error {
        kube::Error::Api(status) if status.code == 403 => status.message.clone(),
        other => panic!("not refused: {other}"),
    };
    let stopped = refused(seen.list(&ListParams::default()).await.expect_err("alice may nothing"));
    assert!(stopped.contains("cluster.karmada.io"), "stopped by the control plane: {stopped}");

    let role = |name: &str, rules: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    let bound = |name: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "alice"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}})
    };
    let bindings =
        Kind::cluster("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings");
    let proxy = json!([{"apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"],
        "resourceNames": ["one"], "verbs": ["*"]}]);
    create(plane, &role_kind(), role("alice-proxy", proxy)).await;
    create(plane, &bindings, bound("alice-proxy")).await;
    let roles = role_kind().api(member.clone(), "");
    until(&roles, "karmada-impersonator", "the member hears of alice", |found| {
        found.is_some_and(|found| found.data["rules"].to_string().contains("alice"))
    })
    .await;
    let by_the_member = r#"User "alice" cannot list resource "configmaps""#;
    until_answered(&seen, "alice is stopped by the member", |answer| match answer {
        Err(kube::Error::Api(status)) => status.code == 403 && status.message.contains(by_the_member),
        _ => false,
    })
    .await;

    let reading =
        json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]);
    create(member, &role_kind(), role("alice-reads", reading)).await;
    create(member, &bindings, bound("alice-reads")).await;
    // A watch that begins before the object exists: what is seen has come through the proxy as it happened.
    let watching = {
        let seen = seen.clone();
        tokio::spawn(
            async move { until(&seen, "news", "alice sees it happen", |found| found.is_some()).await },
        )
    };
    let news =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "news"}, "data": {"a": "b"}});
    create(member, &maps, news.clone()).await;
    watching.await.expect("alice sees it");
    let object: DynamicObject = serde_json::from_value(news).expect("an object");
    refused(seen.create(&PostParams::default(), &object).await.expect_err("alice may not write"));
    let no_such = through_the_proxy(kubeconfig, "nobody", None).await;
    match maps.api(no_such, NAMESPACE).list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) => {
            assert_eq!(status.code, 404);
            assert_eq!(status.message, r#"clusters.cluster.karmada.io "nobody" not found"#);
        }
        other => panic!("an unknown cluster: {other:?}"),
    }
    for (kind, name) in [(role_kind(), "alice-reads"), (bindings, "alice-reads")] {
        kind.api(member.clone(), "").delete(name, &Default::default()).await.expect("tidied up");
    }
}
