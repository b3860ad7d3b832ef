//! The whole of Karmada on somebody else's kube-apiserver: `karmada aggregated`, `karmada controllers` and `karmada webhook`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use testkit::check::{self, AUDIT_POLICY, CONTROLLERS, Site, audit_policy_with_reads, check};
use testkit::{Kind, Process, client, condition, eventually, object, run, until, until_gone};

use clusters::{ClusterOptions, Fleet, FleetOptions};

use crate::members::{Access, Members, Place, have_kubernetes};
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

/// Has a role name the caller, so that members are told of him.
async fn name_caller(plane: &Client) {
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
        create(plane, made, &PostParams::default()).await;
    }
}

/// Has a template be brought to the members and waits until its status comes back.
async fn propagate(plane: &Client) {
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
}

async fn until_ready(plane: &Client, name: &str) {
    let clusters =
        Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters").api(plane.clone(), "");
    until(&clusters, name, "it is ready", |found| condition(found, "Ready") == Some("True")).await;
}

/// Returns the API server that all of it runs on, and where it writes down what the policy says.
fn host(folder: &Path, policy: &str) -> (ClusterOptions, PathBuf) {
    let (file, log) = (folder.join("policy.json"), folder.join("audit.log"));
    std::fs::write(&file, policy).expect("a policy");
    let host = ClusterOptions::control_plane("host")
        .apiserver_arg(format!("--audit-policy-file={}", file.display()))
        .apiserver_arg(format!("--audit-log-path={}", log.display()));
    (host, log)
}

/// Writes a kubeconfig by which the administrator acts in another name, so that the log tells who writes.
fn in_the_name_of(user: &str, config: &Path, to: &Path) {
    let mut file = serde_json::to_value(Kubeconfig::read_from(config).expect("a kubeconfig")).expect("JSON");
    for known in file["users"].as_array_mut().into_iter().flatten() {
        known["user"]["as"] = user.into();
        known["user"]["as-groups"] = json!(["system:masters"]);
    }
    std::fs::write(to, file.to_string()).expect("a kubeconfig");
}

/// Returns the port that a server of ours has chosen.
fn port_of(process: &Process) -> u16 {
    let address = process.ready.split_once("127.0.0.1:").map(|(_, rest)| rest).expect("an address");
    let port: String = address.chars().take_while(char::is_ascii_digit).collect();
    port.parse().expect("a port")
}

/// Fails unless a control plane whose controllers write in this name and its member m1 keep the laws of every world.
async fn keeps_laws(plane: &Client, writer: &str, log: &Path, member: &Place) {
    let logs = member.audit_log.iter().cloned().collect();
    let members = vec![Site::member("m1", client(&member.kubeconfig).await, logs)];
    let plane = Site::plane(plane.clone(), writer, vec![log.to_owned()]);
    check(&check::World { plane, members, controllers: "*".to_owned() }).await;
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
    let (host, log) = host(dir.path(), AUDIT_POLICY);
    let fleet =
        Fleet::start(FleetOptions::of([host])).await.unwrap_or_else(|error| panic!("{}", error.chain()));
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

    // Each server takes a free port and says which; whoever is to call it is told afterwards.
    let (certificates, webhook) = (at("aggregated-certs"), at("webhook-certs"));
    let shared = ["aggregated", "--external-name", "localhost", "--cert-dir", &certificates, "--secure-port"];
    let data = at("data");
    let serve = ["0", "--kubeconfig", &config, "--bind-address", "127.0.0.1", "--data-dir", &data];
    let aggregated = Process::start(KARMADA, &[&shared[..], &serve].concat(), "ready");
    let port = port_of(&aggregated).to_string();
    apply_printed(&plane, &[&shared[..], &[port.as_str(), "--print-registration"]].concat()).await;
    let webhook_arguments = [
        "webhook",
        "--kubeconfig",
        &config,
        "--bind-address",
        "127.0.0.1",
        "--secure-port",
        "0",
        "--health-probe-bind-address",
        "0",
        "--cert-dir",
        &webhook,
    ];
    let hooks = Process::start(KARMADA, &webhook_arguments, "ready");
    let url = format!("https://127.0.0.1:{}", port_of(&hooks));
    apply_printed(&plane, &["webhook", "--print-configuration", "--cert-dir", &webhook, "--url", &url]).await;
    let services =
        Kind::cluster("apiregistration.k8s.io", "v1", "APIService", "apiservices").api(plane.clone(), "");
    for name in ["v1alpha1.cluster.karmada.io", "v1alpha1.search.karmada.io", "v1beta1.metrics.k8s.io"] {
        until(&services, name, "it is available", |found| condition(found, "Available") == Some("True"))
            .await;
    }
    clusters_are_served(&plane).await;
    let own = at("controllers.kubeconfig");
    in_the_name_of(CONTROLLERS, &kubeconfig, Path::new(&own));
    let controllers = Process::start(KARMADA, &["controllers", "--kubeconfig", &own], "controllers run");

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
    until_ready(&plane, "m1").await;
    propagate(&plane).await;

    // Into the member, as the caller.
    name_caller(&plane).await;
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
    keeps_laws(&plane, CONTROLLERS, &log, place).await;
    drop((controllers, hooks, aggregated));
    fleet.down().await.expect("the API server ends");
}

/// Leads calls of the API server to programs on this machine, where the pods of a cluster would be.
fn led_here(object: &mut Value, ports: &BTreeMap<&str, u16>) {
    let port = |service: &Value| ports.get(service["name"].as_str().unwrap_or_default()).copied();
    let lead = |service: &mut Value| {
        if let Some(port) = port(service) {
            service["port"] = port.into();
        }
    };
    if object["kind"] == "Service"
        && let Some(port) = port(&object["metadata"])
    {
        object["spec"] =
            json!({ "type": "ExternalName", "externalName": "localhost", "ports": [{ "port": port }] });
    }
    for place in ["/spec/service", "/spec/conversion/webhook/clientConfig/service"] {
        object.pointer_mut(place).into_iter().for_each(&lead);
    }
    for hook in object["webhooks"].as_array_mut().into_iter().flatten() {
        lead(&mut hook["clientConfig"]["service"]);
    }
}

/// Changes all objects of a kind so that they lead here.
async fn lead_here(plane: &Client, kind: &Kind, ports: &BTreeMap<&str, u16>) {
    let all: Api<DynamicObject> = Api::all_with(plane.clone(), &kind.resource);
    for found in all.list(&ListParams::default()).await.expect("a list") {
        let (namespace, name) = (
            found.metadata.namespace.clone().unwrap_or_default(),
            found.metadata.name.clone().expect("a name"),
        );
        let mut changed = serde_json::to_value(&found).expect("an object");
        changed["kind"] = kind.resource.kind.clone().into();
        changed["apiVersion"] = kind.resource.api_version.clone().into();
        let before = changed.clone();
        led_here(&mut changed, ports);
        if changed != before {
            let api = kind.api(plane.clone(), &namespace);
            api.replace(&name, &PostParams::default(), &object(changed)).await.expect("it leads here");
        }
    }
}

/// Runs `init --on-existing`; as no machine of the host runs pods, what it waits for is said to be ready.
async fn install(plane: &Client, config: &str) {
    let command = ["init", "--on-existing", "--etcd-storage-mode=emptyDir", "--kubeconfig", config];
    let mut init = std::process::Command::new(KARMADA);
    let mut init = init.args(command).spawn().expect("it runs");
    let ended = eventually("it has installed everything", async || {
        for (kind, name) in [
            (Kind::namespaced("apps", "v1", "StatefulSet", "statefulsets"), "karmada-aggregated-apiserver"),
            (Kind::namespaced("apps", "v1", "Deployment", "deployments"), "karmada-webhook"),
            (Kind::namespaced("apps", "v1", "Deployment", "deployments"), "karmada-controllers"),
        ] {
            let api = kind.api(plane.clone(), "karmada-system");
            let Some(found) = api.get_opt(name).await.map_err(|error| error.to_string())? else { continue };
            let status = json!({ "observedGeneration": found.metadata.generation, "replicas": 1, "readyReplicas": 1,
                "updatedReplicas": 1 });
            let patch = Patch::Merge(json!({ "status": status }));
            api.patch_status(name, &PatchParams::default(), &patch).await.map_err(|error| error.to_string())?;
        }
        init.try_wait().expect("a child").ok_or_else(|| "it still runs".to_owned())
    })
    .await;
    assert!(ended.success(), "init has failed");
}

/// Makes a kubeconfig with a token of an account, as a pod of it would have one.
async fn as_account(plane: &Client, kubeconfig: &Path, name: &str, to: &Path) {
    let path = format!("/api/v1/namespaces/karmada-system/serviceaccounts/{name}/token");
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "expirationSeconds": 3600 } });
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.body(review.to_string().into_bytes()).expect("a request");
    let answer: Value = plane.request(request).await.expect("a token");
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{ "name": "here", "cluster": file.clusters[0].cluster }],
        "users": [{ "name": "here", "user": { "token": answer["status"]["token"] } }],
        "contexts": [{ "name": "here", "context": { "cluster": "here", "user": "here" } }],
    });
    std::fs::write(to, config.to_string()).expect("a kubeconfig");
}

/// Starts a program that `init` has installed, with the arguments, the certificate and the account of its pods. A server takes a free
/// port.
async fn start_installed(
    plane: &Client,
    kubeconfig: &Path,
    folder: &Path,
    (name, workload): (&str, &Kind),
    ready: &str,
) -> Process {
    let folder = folder.join(name);
    std::fs::create_dir(&folder).expect("a folder");
    let secrets = Kind::namespaced("", "v1", "Secret", "secrets").api(plane.clone(), "karmada-system");
    let secret = secrets.get_opt(&format!("{name}-cert")).await.expect("an answer");
    for (file, encoded) in secret.iter().filter_map(|secret| secret.data["data"].as_object()).flatten() {
        use base64::Engine as _;
        let encoded = encoded.as_str().expect("text");
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).expect("base64");
        std::fs::write(folder.join(file), bytes).expect("a file");
    }
    let own = folder.join("kubeconfig");
    as_account(plane, kubeconfig, name, &own).await;
    let workload = workload.api(plane.clone(), "karmada-system").get(name).await.expect("a workload");
    let container = &workload.data["spec"]["template"]["spec"]["containers"][0];
    let (place, data) = (folder.display().to_string(), folder.join("data").display().to_string());
    let mut arguments = Vec::new();
    for argument in container["args"].as_array().expect("arguments").iter().filter_map(Value::as_str) {
        match argument.split_once('=') {
            Some(("--cert-dir", _)) => arguments.push(format!("--cert-dir={place}")),
            Some(("--data-dir", _)) => arguments.push(format!("--data-dir={data}")),
            Some(("--secure-port", _)) => {
                arguments.push("--secure-port=0".to_owned());
                arguments.push("--bind-address=127.0.0.1".to_owned());
            }
            Some(("--health-probe-bind-address", _)) => {
                arguments.push("--health-probe-bind-address=0".to_owned());
            }
            _ => arguments.push(argument.to_owned()),
        }
    }
    arguments.push(format!("--kubeconfig={}", own.display()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Process::start(KARMADA, &arguments, ready)
}

/// What `init --on-existing` installs, with the programs on this machine: they have the arguments, the certificates and the accounts of
/// their pods.
#[tokio::test(flavor = "multi_thread")]
async fn what_init_installs_on_an_existing_api_server_brings_templates_to_members() {
    if !have_kubernetes() {
        return;
    }
    testkit::install_tls();
    let members = Members::simulated(Access::Shared, 1).await.expect("a simulated member");
    let dir = tempfile::tempdir().expect("a folder for the test");
    let accounts = json!({ "userGroups": ["system:serviceaccounts"] });
    let (host, log) = host(dir.path(), &audit_policy_with_reads(&accounts));
    let fleet =
        Fleet::start(FleetOptions::of([host])).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let kubeconfig = fleet.cluster("host").expect("the API server").kubeconfig().to_path_buf();
    let (config, plane) = (kubeconfig.display().to_string(), client(&kubeconfig).await);

    install(&plane, &config).await;
    let secrets = Kind::namespaced("", "v1", "Secret", "secrets").api(plane.clone(), "karmada-system");
    let first = secrets.get("karmada-webhook-cert").await.expect("a certificate");
    install(&plane, &config).await;
    let second = secrets.get("karmada-webhook-cert").await.expect("a certificate");
    assert_eq!(first.data["data"], second.data["data"], "what runs keeps its certificate");
    let registration = Kind::cluster("apiregistration.k8s.io", "v1", "APIService", "apiservices");
    let hooks = |kind: &str| {
        let plural = format!("{}s", kind.to_lowercase());
        Kind::cluster("admissionregistration.k8s.io", "v1", kind, &plural)
    };
    let (mutating, validating) =
        (hooks("MutatingWebhookConfiguration"), hooks("ValidatingWebhookConfiguration"));
    let definitions =
        Kind::cluster("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions");
    let services = Kind::namespaced("", "v1", "Service", "services");

    let start = async |name: &str, workload: &str, plural: &str, ready: &str| {
        let workload = Kind::namespaced("apps", "v1", workload, plural);
        start_installed(&plane, &kubeconfig, dir.path(), (name, &workload), ready).await
    };
    let servers = ["karmada-aggregated-apiserver", "karmada-webhook"];
    let mut running = vec![
        start(servers[0], "StatefulSet", "statefulsets", "ready").await,
        start(servers[1], "Deployment", "deployments", "ready").await,
    ];
    let ports: BTreeMap<&str, u16> = servers.into_iter().zip(running.iter().map(port_of)).collect();
    for kind in [&services, &definitions, &registration, &mutating, &validating] {
        lead_here(&plane, kind, &ports).await;
    }
    running.push(start("karmada-controllers", "Deployment", "deployments", "controllers run").await);
    let available = |found: Option<&DynamicObject>| condition(found, "Available") == Some("True");
    let registrations = registration.api(plane.clone(), "");
    for name in ["v1alpha1.cluster.karmada.io", "v1alpha1.search.karmada.io"] {
        until(&registrations, name, "it is available", available).await;
    }
    clusters_are_served(&plane).await;
    let place = members.places()[0].kubeconfig.display().to_string();
    run(KARMADA, &["join", "m1", "--kubeconfig", &config, "--cluster-kubeconfig", &place]);
    until_ready(&plane, "m1").await;
    propagate(&plane).await;
    name_caller(&plane).await;
    eventually("the way into the member is open", async || {
        let api = get(&plane, "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api").await?;
        if api["kind"] == "APIVersions" { Ok(()) } else { Err(api.to_string()) }
    })
    .await;
    let writer = ":karmada-controllers";
    keeps_laws(&plane, writer, &log, &members.places()[0]).await;
    // A template that is withdrawn leaves no binding behind, and a cluster that leaves no space.
    let deployments =
        Kind::namespaced("apps", "v1", "Deployment", "deployments").api(plane.clone(), "default");
    deployments.delete("web", &DeleteParams::default()).await.expect("it is there");
    let bindings = Kind::namespaced("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings");
    until_gone(&bindings.api(plane.clone(), "default"), "web-deployment", "it goes along").await;
    run(KARMADA, &["unjoin", "m1", "--kubeconfig", &config]);
    keeps_laws(&plane, writer, &log, &members.places()[0]).await;

    // Nobody needed a right that was not given.
    let log = std::fs::read_to_string(log).expect("an audit log");
    let mut asked = BTreeSet::new();
    for entry in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let user = entry["user"]["username"].as_str().unwrap_or_default();
        if let Some(account) = user.strip_prefix("system:serviceaccount:karmada-system:") {
            asked.insert(account.to_owned());
            let decision = &entry["annotations"]["authorization.k8s.io/decision"];
            assert_ne!(decision, "forbid", "{entry:#}");
        }
    }
    let three = ["karmada-aggregated-apiserver", "karmada-controllers", "karmada-webhook"];
    assert!(three[..2].iter().all(|name| asked.contains(*name)), "the audit log shows only {asked:?}");

    // What is removed leaves nobody who would be called in vain, and Karmada's objects.
    run(KARMADA, &["deinit", "--force", "--kubeconfig", &config]);
    for (kind, name) in [
        (&registration, "v1alpha1.cluster.karmada.io"),
        (&registration, "v1alpha1.search.karmada.io"),
        (&mutating, "mutating-config"),
        (&validating, "validating-config"),
        (
            &Kind::cluster("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles"),
            "karmada-controllers",
        ),
    ] {
        until_gone(&kind.api(plane.clone(), ""), name, "it is removed").await;
    }
    let readers = Kind::namespaced("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings");
    until_gone(&readers.api(plane.clone(), "kube-system"), three[0], "it is removed").await;
    let policies = "propagationpolicies.policy.karmada.io";
    definitions.api(plane.clone(), "").get(policies).await.expect("definitions stay");
    drop(running);
    fleet.down().await.expect("the API server ends");
}

/// kube-apiserver says that an APIService is available a moment before it sends requests there.
async fn clusters_are_served(plane: &Client) {
    let clusters =
        Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters").api(plane.clone(), "");
    eventually("clusters can be listed", async || {
        clusters.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
}
