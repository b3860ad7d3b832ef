//! The whole of Karmada on somebody else's kube-apiserver: `karmada aggregated`, `karmada controllers` and `karmada webhook`.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use testkit::{Kind, Process, client, condition, eventually, object, run, until};

use clusters::{ClusterOptions, Fleet, FleetOptions};

use crate::members::{Access, Members, have_kubernetes};
use crate::plane::KARMADA;

/// Applies what a command of ours prints.
async fn apply_printed(client: &Client, arguments: &[&str]) {
    let printed = run(KARMADA, arguments);
    let text = String::from_utf8(printed.stdout).expect("text");
    for document in text.split("---\n").filter(|document| !document.trim().is_empty()) {
        create(client, serde_json::from_str(document).expect("an object"), &PostParams::default()).await;
    }
}

async fn create(client: &Client, made: Value, parameters: &PostParams) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&made["apiVersion"]), text(&made["kind"]));
    let (group, version) = version.split_once('/').unwrap_or(("", version.as_str()));
    let (plural, namespace) = (format!("{}s", kind.to_lowercase()), text(&made["metadata"]["namespace"]));
    let kind = match namespace.as_str() {
        "" => Kind::cluster(group, version, &kind, &plural),
        _ => Kind::namespaced(group, version, &kind, &plural),
    };
    let told = made.to_string();
    let answer = kind.api(client.clone(), &namespace).create(parameters, &object(made)).await;
    answer.unwrap_or_else(|error| panic!("{told}: {error}"));
}

async fn get(client: &Client, path: &str) -> Result<Value, String> {
    let request = http::Request::get(path).body(Vec::new()).expect("a request");
    client.request(request).await.map_err(|error| format!("{path}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_of_karmada_runs_on_a_kube_apiserver() {
    if !have_kubernetes() {
        return;
    }
    testkit::install_tls();
    let members = Members::simulated(Access::Shared, 1).await.expect("a simulated member");
    let dir = tempfile::tempdir().expect("a folder for the test");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let options = FleetOptions::of([ClusterOptions::control_plane("host")]);
    let fleet = Fleet::start(options).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let kubeconfig = fleet.cluster("host").expect("the API server").kubeconfig().to_path_buf();
    let (config, plane) = (kubeconfig.display().to_string(), client(&kubeconfig).await);
    let namespaces = Kind::cluster("", "v1", "Namespace", "namespaces").api(plane.clone(), "");
    for name in ["karmada-system", "karmada-cluster"] {
        let made = object(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
        namespaces.create(&PostParams::default(), &made).await.expect("a namespace");
    }
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/on-existing-apiserver.yaml");
    let example = std::fs::read_to_string(example).expect("the example");
    let rehearsal = PostParams { dry_run: true, ..PostParams::default() };
    let documents =
        apimachinery::yaml::read_all(&example).expect("YAML").into_iter().map(|document| document.value);
    for document in documents.filter(|document| !document.is_null()) {
        create(&plane, document, &rehearsal).await;
    }
    apply_printed(&plane, &["crds"]).await;

    let ports = clusters::free_ports(2).expect("free ports");
    let (port, hooks) = (ports[0].to_string(), ports[1].to_string());
    let (certificates, webhook) = (at("aggregated-certs"), at("webhook-certs"));
    let shared = ["--secure-port", &port, "--cert-dir", &certificates];
    let print = ["aggregated", "--print-registration", "--external-name", "localhost"];
    apply_printed(&plane, &[&print[..], &shared].concat()).await;
    let data = at("data");
    let serve = ["aggregated", "--kubeconfig", &config, "--bind-address", "127.0.0.1", "--data-dir", &data];
    let aggregated = Process::start(KARMADA, &[&serve[..], &shared].concat(), "ready");
    let url = format!("https://127.0.0.1:{hooks}");
    apply_printed(&plane, &["webhook", "--print-configuration", "--cert-dir", &webhook, "--url", &url]).await;
    let webhook_arguments = [
        "webhook",
        "--kubeconfig",
        &config,
        "--bind-address",
        "127.0.0.1",
        "--secure-port",
        &hooks,
        "--health-probe-bind-address",
        "0",
        "--cert-dir",
        &webhook,
    ];
    let webhook = Process::start(KARMADA, &webhook_arguments, "ready");
    let services =
        Kind::cluster("apiregistration.k8s.io", "v1", "APIService", "apiservices").api(plane.clone(), "");
    for name in ["v1alpha1.cluster.karmada.io", "v1alpha1.search.karmada.io", "v1beta1.metrics.k8s.io"] {
        until(&services, name, "it is available", |found| condition(found, "Available") == Some("True"))
            .await;
    }
    let controllers = Process::start(KARMADA, &["controllers", "--kubeconfig", &config], "controllers run");

    let place = &members.places()[0];
    run(
        KARMADA,
        &[
            "join",
            "m1",
            "--kubeconfig",
            &config,
            "--cluster-kubeconfig",
            &place.kubeconfig.display().to_string(),
        ],
    );
    let clusters =
        Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters").api(plane.clone(), "");
    until(&clusters, "m1", "it is ready", |found| condition(found, "Ready") == Some("True")).await;
    let policies =
        Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
    let policy = json!({ "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": { "name": "all", "namespace": "default" },
        "spec": { "resourceSelectors": [{ "apiVersion": "apps/v1", "kind": "Deployment" }], "placement": {} } });
    eventually("the policy is accepted", async || {
        let made = policies
            .api(plane.clone(), "default")
            .create(&PostParams::default(), &object(policy.clone()))
            .await;
        made.map(drop).map_err(|error| error.to_string())
    })
    .await;
    let deployments = Kind::namespaced("apps", "v1", "Deployment", "deployments");
    let labels = json!({ "app": "web" });
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web", "namespace": "default" },
        "spec": { "replicas": 2, "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels },
            "spec": { "containers": [{ "name": "web", "image": "nginx" }] } } } });
    deployments
        .api(plane.clone(), "default")
        .create(&PostParams::default(), &object(deployment))
        .await
        .expect("a template");
    let ready =
        |found: Option<&DynamicObject>| found.is_some_and(|found| found.data["status"]["readyReplicas"] == 2);
    until(&deployments.api(plane.clone(), "default"), "web", "it runs, and its status comes back", ready)
        .await;

    // Into the member, as the caller, whom the member is told of because a role names him.
    let me: SelfSubjectReview = Api::all(plane.clone())
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .expect("somebody asks");
    let me = me.status.and_then(|status| status.user_info?.username).expect("a name");
    let rbac = "rbac.authorization.k8s.io";
    let role = json!({ "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": { "name": "proxy" },
        "rules": [{ "apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"], "verbs": ["*"] }] });
    let binding = json!({ "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": "proxy" },
        "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": "proxy" },
        "subjects": [{ "apiGroup": rbac, "kind": "User", "name": me }] });
    for made in [role, binding] {
        create(&plane, made, &PostParams::default()).await;
    }
    let proxy = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy";
    eventually("the way into the member is open", async || {
        let api = get(&plane, &format!("{proxy}/api")).await?;
        if api["kind"] == "APIVersions" { Ok(()) } else { Err(api.to_string()) }
    })
    .await;
    eventually("the caller is known in the member", async || {
        let web = get(&plane, &format!("{proxy}/apis/apps/v1/namespaces/default/deployments/web")).await?;
        if web["metadata"]["labels"]["karmada.io/managed"] == "true" { Ok(()) } else { Err(web.to_string()) }
    })
    .await;

    // Copies of the member's objects.
    let registries = Kind::cluster("search.karmada.io", "v1alpha1", "ResourceRegistry", "resourceregistries");
    let registry = json!({ "apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry", "metadata": { "name": "pods" },
        "spec": { "targetCluster": {}, "resourceSelectors": [{ "apiVersion": "apps/v1", "kind": "Deployment" }] } });
    registries
        .api(plane.clone(), "")
        .create(&PostParams::default(), &object(registry))
        .await
        .expect("a registry");
    eventually("the cache has the member's objects", async || {
        let found =
            get(&plane, "/apis/search.karmada.io/v1alpha1/search/cache/apis/apps/v1/deployments").await?;
        let items = found["items"].as_array().map_or(0, Vec::len);
        if items == 1 { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
    // What is not cached is answered by the API server in front, as the caller.
    let through = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";
    let own =
        get(&plane, &format!("{through}/api/v1/namespaces/karmada-system")).await.expect("the front answers");
    assert_eq!(own["metadata"]["name"], "karmada-system");
    eventually("metrics of the member arrive", async || {
        let nodes = get(&plane, "/apis/metrics.k8s.io/v1beta1/nodes").await?;
        if nodes["items"].as_array().is_some_and(|items| !items.is_empty()) {
            Ok(())
        } else {
            Err(nodes.to_string())
        }
    })
    .await;

    // Rights are those of the API server in front.
    let file = Kubeconfig::read_from(&kubeconfig).expect("a kubeconfig");
    let mut config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await.expect("usable");
    config.auth_info.impersonate = Some("jane".to_owned());
    let jane = Client::try_from(config).expect("a client");
    let refused = get(&jane, proxy).await.expect_err("jane has no rights");
    assert!(refused.contains(r#"User "jane" cannot"#) && refused.contains("clusters"), "{refused}");
    // And only by way of that API server: without its certificate nobody is believed.
    let mut direct = kube::Config::new(format!("https://localhost:{port}").parse().expect("an address"));
    direct.accept_invalid_certs = true;
    let direct = Client::try_from(direct).expect("a client");
    let mut claim =
        http::Request::get("/apis/cluster.karmada.io/v1alpha1/clusters").body(Vec::new()).expect("a request");
    for (name, value) in [("x-remote-user", "admin"), ("x-remote-group", "system:masters")] {
        claim.headers_mut().insert(name, http::HeaderValue::from_static(value));
    }
    let refused = direct.request::<Value>(claim).await.expect_err("nobody vouches for this");
    assert!(refused.to_string().contains("system:anonymous"), "{refused}");
    let ready = http::Request::get("/readyz").body(Vec::new()).expect("a request");
    assert_eq!(direct.request_text(ready).await.expect("an answer"), "ok");
    let secrets = Api::<DynamicObject>::all_with(direct, &testkit::resource("", "v1", "Secret", "secrets"));
    assert!(secrets.list(&Default::default()).await.is_err(), "nothing else is served");
    drop((controllers, webhook, aggregated));
    fleet.down().await.expect("the API server ends");
}
