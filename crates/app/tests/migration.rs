//! The way over from the original Karmada, and back: its control plane on a kube-apiserver, three real members, 300 templates. The
//! members' audit logs are the witness that nothing is written there but what the report announced.
//!
//! Not run by default: the originals have to be built with Go first. `cargo xtask compare migrate` does both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use clusters::toolchain::{ETCD, KARMADA, Toolchain};
use clusters::{ClusterOptions, Etcd, Fleet, FleetOptions};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testkit::check::{self, AUDIT_POLICY, CONTROLLERS, Site, check};
use testkit::process::{Signal, Speaks};
use testkit::{Kind, Process, Server, client, condition, eventually, object, resource, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_karmada");
const MEMBERS: [&str; 3] = ["member1", "member2", "member3"];
const NAMESPACES: [&str; 2] = ["shop", "bank"];
/// Templates of each of the four kinds; `KARMADA_RS_TEMPLATES` makes it fewer.
const OF_EACH: usize = 75;
/// Longer than three looks at every member.
const QUIET: Duration = Duration::from_secs(35);
/// So long members may be written to, and the controllers of a side may be said to act.
const AT_MOST: Duration = Duration::from_secs(300);

fn of_each() -> usize {
    std::env::var("KARMADA_RS_TEMPLATES")
        .ok()
        .and_then(|text| text.parse::<usize>().ok())
        .map_or(OF_EACH, |all| all / 4)
}

/// The original control plane.
struct Original {
    kubeconfig: PathBuf,
    client: Client,
    toolchain: Toolchain,
    dir: PathBuf,
    _etcd: Etcd,
    _servers: Vec<Process>,
    acting: Vec<Process>,
}

fn spawn(program: &Path, arguments: &[String]) -> Process {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    Process::spawn(command, Speaks::Stderr)
}

async fn send(client: &Client, method: &str, path: &str, body: &Value) -> Result<Value, String> {
    let request =
        http::Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = request.body(body.to_string().into_bytes()).expect("a request");
    client.request(request).await.map_err(|error| format!("{method} {path}: {error}"))
}

/// Says what an object is where a server does not know it from the path.
fn typed(path: &str, body: &Value) -> Value {
    let kinds = [
        ("clusterpropagationpolicies", "policy.karmada.io/v1alpha1", "ClusterPropagationPolicy"),
        ("propagationpolicies", "policy.karmada.io/v1alpha1", "PropagationPolicy"),
        ("overridepolicies", "policy.karmada.io/v1alpha1", "OverridePolicy"),
        ("widgets", "example.com/v1", "Widget"),
    ];
    let mut body = body.clone();
    if let Some((_, version, kind)) =
        kinds.iter().find(|(plural, ..)| path.rsplit('/').next() == Some(plural))
    {
        body["apiVersion"] = json!(version);
        body["kind"] = json!(kind);
    }
    body
}

async fn post(client: &Client, path: &str, body: &Value) {
    send(client, "POST", path, &typed(path, body)).await.unwrap_or_else(|error| panic!("{error}"));
}

impl Original {
    /// Starts everything but the parts that act.
    async fn start(kubeconfig: &Path, dir: &Path) -> Self {
        let toolchain = Toolchain::from_env().expect("a place for the programs");
        for name in [
            "karmada-controller-manager",
            "karmada-scheduler",
            "karmada-aggregated-apiserver",
            "karmada-webhook",
        ] {
            toolchain.ensure_program(&KARMADA, name).expect("the original is built");
        }
        toolchain.ensure(&[&ETCD]).expect("etcd is built");
        let client = client(kubeconfig).await;
        for name in ["karmada-system", "karmada-cluster"] {
            post(&client, "/api/v1/namespaces", &json!({ "metadata": { "name": name } })).await;
        }
        // As upstream's installers make them: a member lets those in whom roles name.
        let rbac = "rbac.authorization.k8s.io";
        for (name, group, resource, user) in [
            ("cluster-proxy-admin", "cluster.karmada.io", "clusters/proxy", "system:admin"),
            ("system:karmada:agent-rbac-generator", "*", "*", "system:karmada:agent:rbac-generator"),
        ] {
            let rules = json!([{ "apiGroups": [group], "resources": [resource], "verbs": ["*"] }]);
            let role = json!({ "metadata": { "name": name }, "rules": rules });
            post(&client, &format!("/apis/{rbac}/v1/clusterroles"), &role).await;
            let binding = json!({ "metadata": { "name": name },
                "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": name },
                "subjects": [{ "apiGroup": rbac, "kind": "User", "name": user }] });
            post(&client, &format!("/apis/{rbac}/v1/clusterrolebindings"), &binding).await;
        }
        let config = kubeconfig.display().to_string();
        let program = |name: &str| toolchain.path(&KARMADA.program(name));

        // Its aggregated server keeps Clusters in an etcd of its own.
        let etcd = Etcd::alone(dir).await.expect("etcd starts").expect("etcd is built");
        let ports = clusters::free_ports(2).expect("free ports");
        let (aggregated, webhook) = (ports[0], ports[1]);
        let certificates = dir.join("aggregated").display().to_string();
        let mut servers = vec![spawn(
            &program("karmada-aggregated-apiserver"),
            &[
                format!("--kubeconfig={config}"),
                format!("--authentication-kubeconfig={config}"),
                format!("--authorization-kubeconfig={config}"),
                format!("--etcd-servers={}", etcd.endpoint),
                format!("--secure-port={aggregated}"),
                format!("--cert-dir={certificates}"),
                "--bind-address=127.0.0.1".to_owned(),
            ],
        )];
        let service = json!({ "metadata": { "name": "karmada-aggregated-apiserver", "namespace": "karmada-system" },
            "spec": { "type": "ExternalName", "externalName": "localhost", "ports": [{ "port": aggregated }] } });
        post(&client, "/api/v1/namespaces/karmada-system/services", &service).await;
        let registration = json!({ "metadata": { "name": "v1alpha1.cluster.karmada.io" }, "spec": {
            "group": "cluster.karmada.io", "version": "v1alpha1", "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 2000, "versionPriority": 10,
            "service": { "name": "karmada-aggregated-apiserver", "namespace": "karmada-system", "port": aggregated } } });
        post(&client, "/apis/apiregistration.k8s.io/v1/apiservices", &registration).await;

        let certificates = dir.join("webhook").display().to_string();
        let print = ["webhook", "--print-configuration", "--cert-dir", &certificates, "--url"];
        let url = format!("https://127.0.0.1:{webhook}");
        // The original knows no paths with passwords, which are printed where callers show no certificates.
        let printed =
            testkit::run(PROGRAM, &[&print[..], &[url.as_str(), "--client-ca-file", "none"]].concat());
        let printed = String::from_utf8(printed.stdout).expect("text");
        let hooks: Vec<Value> = printed
            .split("---\n")
            .filter(|text| !text.trim().is_empty())
            .map(|text| serde_json::from_str(text).expect("an object"))
            .collect();
        let ca = hooks[0]["webhooks"][0]["clientConfig"]["caBundle"].as_str().unwrap_or_default().to_owned();
        for mut definition in api::crd::all() {
            if definition["spec"]["versions"].as_array().is_some_and(|versions| versions.len() > 1) {
                definition = api::crd::with_conversion_webhook(definition, &format!("{url}/convert"), &ca);
            }
            post(&client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
        }
        servers.push(Process::start(
            program("karmada-webhook"),
            &[
                &format!("--kubeconfig={config}"),
                "--bind-address=127.0.0.1",
                &format!("--secure-port={webhook}"),
                &format!("--cert-dir={certificates}"),
                "--metrics-bind-address=0",
                "--health-probe-bind-address=0",
            ],
            "Serving webhook server",
        ));
        for mut object in hooks {
            let hooks = object["webhooks"].as_array_mut().expect("a list of hooks");
            // Rules of ours alone, and those of the aggregated server.
            let ours =
                ["/validate-clusterresourcebinding", "cluster.karmada.io", "resourceregistry.karmada.io"];
            hooks.retain(|hook| {
                let url = hook["clientConfig"]["url"].as_str().unwrap_or_default();
                !url.ends_with(ours[0]) && hook["name"] != ours[1] && hook["name"] != ours[2]
            });
            let plural = object["kind"].as_str().unwrap_or_default().to_lowercase() + "s";
            post(&client, &format!("/apis/admissionregistration.k8s.io/v1/{plural}"), &object).await;
        }
        eventually("the original's own kinds are served", async || {
            send(&client, "GET", "/apis/cluster.karmada.io/v1alpha1/clusters", &Value::Null)
                .await
                .map(drop)?;
            send(&client, "GET", "/apis/policy.karmada.io/v1alpha1/propagationpolicies", &Value::Null)
                .await
                .map(drop)
        })
        .await;
        let (kubeconfig, dir) = (kubeconfig.to_owned(), dir.to_owned());
        Self { kubeconfig, client, toolchain, dir, _etcd: etcd, _servers: servers, acting: Vec::new() }
    }

    /// Starts its controllers and its scheduler; returns once they act.
    async fn act(&mut self) {
        let before = self.holder().await;
        let config = format!("--kubeconfig={}", self.kubeconfig.display());
        let zero = ["--metrics-bind-address=0", "--health-probe-bind-address=0"];
        let common = [&[config.as_str(), "--kube-api-qps=400", "--kube-api-burst=600"], &zero[..]].concat();
        for (name, further) in [
            (
                "karmada-controller-manager",
                vec!["--controllers=*", "--cluster-api-qps=400", "--cluster-api-burst=600"],
            ),
            ("karmada-scheduler", vec!["--enable-scheduler-estimator=false"]),
        ] {
            let program = self.toolchain.path(&KARMADA.program(name));
            let all: Vec<String> = common.iter().chain(&further).map(|&flag| flag.to_owned()).collect();
            self.acting.push(spawn(&program, &all));
        }
        // A process that waits for the Lease writes nothing, which proves nothing.
        eventually("the original acts", async || match self.holder().await {
            holder if holder.is_empty() || holder == before => Err(format!("{holder:?} has the Lease")),
            _ => Ok(()),
        })
        .await;
    }

    /// Returns who holds the Lease of its controllers.
    async fn holder(&self) -> String {
        let path = "/apis/coordination.k8s.io/v1/namespaces/karmada-system/leases/karmada-controller-manager";
        let lease = send(&self.client, "GET", path, &Value::Null).await.unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }

    /// Ends them.
    fn rest(&mut self) {
        for process in &self.acting {
            process.signal(Signal::TERM);
        }
        for process in &mut self.acting {
            process.ended();
        }
        self.acting.clear();
    }
}

/// Runs our program to its end.
fn karmada(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().expect("the program runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `karmada migrate` and returns its report. Controllers that ended a moment ago are waited for.
async fn migrate(arguments: &[&str]) -> Value {
    let all: Vec<&str> = ["migrate", "-o", "json"].into_iter().chain(arguments.iter().copied()).collect();
    let started = Instant::now();
    loop {
        let output = karmada(&all);
        if output.status.success() {
            let report = String::from_utf8_lossy(&output.stdout).into_owned();
            eprintln!("migrate {arguments:?} took {:?}", started.elapsed());
            return serde_json::from_str(&report).expect("a report");
        }
        let told = said(&output);
        assert!(
            told.contains("still acts") && started.elapsed() < AT_MOST,
            "migrate {arguments:?}: {told}\n{}",
            String::from_utf8_lossy(&output.stdout)
        );
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// The writes that a report announces: cluster, verb, path. `writes` change something, `repeated` do not.
fn announced(report: &Value, which: &str) -> BTreeSet<String> {
    let writes = report["rehearsal"][which].as_array().expect("a rehearsal");
    let text = |write: &Value, field: &str| write[field].as_str().unwrap_or_default().to_owned();
    writes
        .iter()
        .map(|write| format!("{} {} {}", text(write, "cluster"), text(write, "verb"), text(write, "path")))
        .collect()
}

/// What control planes have written into the members since then, by their audit logs.
struct Witness {
    logs: Vec<(String, PathBuf, u64)>,
}

impl Witness {
    fn from_now(logs: &[(String, PathBuf)]) -> Self {
        let length = |path: &PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
        Self { logs: logs.iter().map(|(name, path)| (name.clone(), path.clone(), length(path))).collect() }
    }

    fn writes(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (cluster, path, from) in &self.logs {
            let text = std::fs::read(path).expect("an audit log");
            let new = String::from_utf8_lossy(
                text.get(usize::try_from(*from).expect("short")..).unwrap_or_default(),
            )
            .into_owned();
            for line in new.lines() {
                let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
                let user = entry["user"]["username"].as_str().unwrap_or_default();
                let verb = entry["verb"].as_str().unwrap_or_default();
                let reads = ["get", "list", "watch"].contains(&verb);
                let asks =
                    entry["objectRef"]["resource"].as_str().is_some_and(|name| name.ends_with("reviews"));
                if !user.starts_with("system:serviceaccount:karmada-cluster:") || reads || asks {
                    continue;
                }
                let path =
                    entry["requestURI"].as_str().unwrap_or_default().split('?').next().unwrap_or_default();
                found.insert(format!("{cluster} {verb} {path}"));
            }
        }
        found
    }

    /// Waits until nothing has been written for a while, and returns what was.
    async fn quiet(&self) -> BTreeSet<String> {
        let started = Instant::now();
        let mut last = (self.writes(), started);
        while last.1.elapsed() < QUIET {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = self.writes();
            assert!(started.elapsed() < AT_MOST, "members are written to again and again: {now:#?}");
            if now != last.0 {
                last = (now, Instant::now());
            }
        }
        last.0
    }
}

fn bindings() -> Kind {
    Kind::namespaced("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings")
}

/// Waits until all bindings of a control plane are carried out.
async fn until_applied(client: &Client, count: usize) {
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &bindings().resource);
    eventually(format!("{count} bindings are carried out"), async || {
        let list = all.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let applied = list
            .items
            .iter()
            .filter(|binding| condition(Some(binding), "FullyApplied") == Some("True"))
            .count();
        if applied == count && list.items.len() == count {
            Ok(())
        } else {
            Err(format!("{applied} of {} bindings are carried out", list.items.len()))
        }
    })
    .await;
}

async fn until_ready(client: &Client) {
    let clusters: Api<DynamicObject> =
        Api::all_with(client.clone(), &resource("cluster.karmada.io", "v1alpha1", "Cluster", "clusters"));
    for member in MEMBERS {
        until(&clusters, member, "the cluster is ready", |cluster| {
            condition(cluster, "Ready") == Some("True")
        })
        .await;
    }
}

/// Writes templates of four kinds, policies of several sorts, overrides, a definition with an object of its kind, and a role.
async fn populate(client: &Client) {
    let policies = "/apis/policy.karmada.io/v1alpha1";
    for namespace in NAMESPACES {
        post(
            client,
            "/api/v1/namespaces",
            &json!({ "metadata": { "name": namespace, "labels": { "team": namespace } } }),
        )
        .await;
    }
    let definition = json!({ "metadata": { "name": "widgets.example.com" }, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": { "kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList" },
        "versions": [{ "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
            "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }] } });
    post(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    let role = json!({ "metadata": { "name": "tenant" }, "rules": [{ "apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"],
        "resourceNames": ["member1"], "verbs": ["*"] }] });
    post(client, "/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await;
    let binding = json!({ "metadata": { "name": "tenant" }, "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tenant" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane" }] });
    post(client, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await;

    let everywhere = json!({ "clusterAffinity": { "clusterNames": MEMBERS } });
    let weights = |weights: [i64; 3]| {
        let list: Vec<Value> = MEMBERS
            .iter()
            .zip(weights)
            .map(|(name, weight)| json!({ "targetCluster": { "clusterNames": [name] }, "weight": weight }))
            .collect();
        json!({ "clusterAffinity": { "clusterNames": MEMBERS }, "replicaScheduling": {
            "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
            "weightPreference": { "staticWeightList": list } } })
    };
    let whole = json!({ "metadata": { "name": "definitions" }, "spec": { "placement": everywhere, "resourceSelectors": [
        { "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "name": "widgets.example.com" },
        { "apiVersion": "example.com/v1", "kind": "Widget" } ] } });
    post(client, &format!("{policies}/clusterpropagationpolicies"), &whole).await;
    for namespace in NAMESPACES {
        let at = format!("{policies}/namespaces/{namespace}");
        let policy = |name: &str, selectors: Value, placement: &Value| {
            json!({ "metadata": { "name": name, "namespace": namespace },
                "spec": { "resourceSelectors": selectors, "placement": placement, "propagateDeps": name == "plain" } })
        };
        let selected = |api: &str, kind: &str| json!([{ "apiVersion": api, "kind": kind }]);
        for made in [
            policy("divided", selected("apps/v1", "Deployment"), &weights([3, 2, 1])),
            policy(
                "plain",
                json!([{ "apiVersion": "v1", "kind": "ConfigMap" }, { "apiVersion": "v1", "kind": "Secret" }]),
                &everywhere,
            ),
            policy(
                "services",
                selected("v1", "Service"),
                &json!({ "clusterAffinity": { "clusterNames": ["member1", "member3"] } }),
            ),
        ] {
            post(client, &format!("{at}/propagationpolicies"), &made).await;
        }
        let overrides = json!({ "metadata": { "name": "registry", "namespace": namespace }, "spec": {
            "resourceSelectors": [{ "apiVersion": "apps/v1", "kind": "Deployment" }],
            "overrideRules": [{ "targetCluster": { "clusterNames": ["member3"] }, "overriders": {
                "imageOverrider": [{ "component": "Registry", "operator": "replace", "value": "registry.example" }],
                "labelsOverrider": [{ "operator": "add", "value": { "where": "far" } }] } }] } });
        post(client, &format!("{at}/overridepolicies"), &overrides).await;
    }
    for number in 0..of_each() {
        let namespace = NAMESPACES[number % 2];
        let metadata = |prefix: &str| {
            json!({ "name": format!("{prefix}-{number}"), "namespace": namespace,
                "labels": { "number": number.to_string() }, "annotations": { "note": format!("{prefix} {number}") } })
        };
        let core = format!("/api/v1/namespaces/{namespace}");
        let deployment = json!({ "metadata": metadata("web"), "spec": { "replicas": 1 + number % 5,
            "selector": { "matchLabels": { "app": format!("web-{number}") } },
            "template": { "metadata": { "labels": { "app": format!("web-{number}") } },
                "spec": { "containers": [{ "name": "web", "image": "nginx:1.29", "resources": { "requests": { "cpu": "1m" } } }] } } } });
        post(client, &format!("/apis/apps/v1/namespaces/{namespace}/deployments"), &deployment).await;
        let map = json!({ "metadata": metadata("map"), "data": { "key": number.to_string() } });
        post(client, &format!("{core}/configmaps"), &map).await;
        let secret =
            json!({ "metadata": metadata("secret"), "stringData": { "password": format!("p{number}") } });
        post(client, &format!("{core}/secrets"), &secret).await;
        let service = json!({ "metadata": metadata("svc"), "spec": { "selector": { "app": format!("web-{number}") }, "ports": [{ "port": 80 }] } });
        post(client, &format!("{core}/services"), &service).await;
    }
    eventually("the new kind is served", async || {
        let widget = json!({ "metadata": { "name": "w", "namespace": "shop" }, "spec": { "size": 3 } });
        let path = "/apis/example.com/v1/namespaces/shop/widgets";
        let made = send(client, "POST", path, &typed(path, &widget)).await;
        made.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the original programs; run `cargo xtask compare migrate`"]
async fn a_karmada_moves_over_and_back_and_its_members_notice_nothing() {
    testkit::install_tls();
    let dir = tempfile::tempdir().expect("a folder for the test");
    let mut options = FleetOptions::of([ClusterOptions::control_plane("karmada")]);
    for member in MEMBERS {
        options = options.and(ClusterOptions::member(member));
    }
    let fleet = Fleet::start(options).await.expect("clusters");
    let kubeconfig = fleet.cluster("karmada").expect("the control plane").kubeconfig().to_path_buf();
    let mut original = Original::start(&kubeconfig, dir.path()).await;
    original.act().await;
    let config = kubeconfig.display().to_string();
    let mut logs = Vec::new();
    for member in MEMBERS {
        let cluster = fleet.cluster(member).expect("a member");
        let place = cluster.kubeconfig().display().to_string();
        testkit::run(PROGRAM, &["join", member, "--kubeconfig", &config, "--cluster-kubeconfig", &place]);
        logs.push((member.to_owned(), cluster.audit_log()));
    }
    until_ready(&original.client).await;
    populate(&original.client).await;
    // Four kinds, and the object of the defined kind.
    let count = 4 * of_each() + 1;
    until_applied(&original.client, count).await;
    Witness::from_now(&logs).quiet().await;

    // Whenever its controllers start, the original sends some objects once more that have not changed.
    original.rest();
    let witness = Witness::from_now(&logs);
    original.act().await;
    until_ready(&original.client).await;
    until_applied(&original.client, count).await;
    let habits = witness.quiet().await;
    eprintln!("the original sends {} objects again when it starts", habits.len());

    // A report while the original still acts: nothing would be touched.
    let ours = dir.path().join("ours");
    let data = ours.display().to_string();
    let report = migrate(&["--from", &config, "--data-dir", &data, "--dry-run"]).await;
    eprintln!("the way over: {}", summary(&report));
    assert_eq!(announced(&report, "writes"), BTreeSet::new(), "the report announces writes");
    assert_eq!(announced(&report, "repeated"), BTreeSet::new(), "ours repeats nothing");
    assert_eq!(report["rehearsal"]["members"], json!(MEMBERS));
    assert!(!ours.exists(), "a dry run leaves nothing behind");

    // The switch.
    let witness = Witness::from_now(&logs);
    let refused = karmada(&[
        "migrate",
        "--from",
        &config,
        "--data-dir",
        &data,
        "--no-rehearsal",
        "--accept-member-writes",
    ]);
    assert!(!refused.status.success() && said(&refused).contains("still acts"), "{}", said(&refused));
    original.rest();
    let report = migrate(&["--from", &config, "--data-dir", &data]).await;
    assert_eq!(announced(&report, "writes"), BTreeSet::new());
    // Before that, the members' logs tell of the original.
    let mut sites = Vec::new();
    for (member, log) in &logs {
        let there = client(fleet.cluster(member).expect("a member").kubeconfig()).await;
        sites.push(Site::member(member, there, vec![log.clone()]).from_now());
    }
    let mut server = Server::audited_at(PROGRAM, &ours, AUDIT_POLICY, &[]);
    let plane = server.client().await;
    until_ready(&plane).await;
    until_applied(&plane, count).await;
    assert_eq!(witness.quiet().await, BTreeSet::new(), "ours has written to members after the switch");
    eprintln!("ours acts, and the members have seen no write for {QUIET:?}");

    // Ours is really at work: a change, a new template, one that goes.
    let deployments = Kind::namespaced("apps", "v1", "Deployment", "deployments");
    let maps = Kind::namespaced("", "v1", "ConfigMap", "configmaps");
    let scale = Patch::Merge(json!({ "spec": { "replicas": 12 } }));
    let here = deployments.api(plane.clone(), "shop");
    here.patch("web-0", &PatchParams::default(), &scale).await.expect("a template of ours now");
    let late = object(
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "late", "namespace": "bank" }, "data": { "a": "1" } }),
    );
    maps.api(plane.clone(), "bank").create(&PostParams::default(), &late).await.expect("a new template");
    maps.api(plane.clone(), "bank").delete("map-1", &DeleteParams::default()).await.expect("it goes");
    for (member, replicas) in MEMBERS.into_iter().zip([6, 4, 2]) {
        let there = client(fleet.cluster(member).expect("a member").kubeconfig()).await;
        let found = deployments.api(there.clone(), "shop");
        until(&found, "web-0", "the change arrives", |it| {
            it.is_some_and(|it| it.data["spec"]["replicas"] == replicas)
        })
        .await;
        until(&maps.api(there.clone(), "bank"), "late", "the new one arrives", |it| it.is_some()).await;
        testkit::until_gone(&maps.api(there, "bank"), "map-1", "it leaves the member").await;
    }
    until_applied(&plane, count).await;
    witness.quiet().await;
    let site = Site::plane(plane.clone(), CONTROLLERS, server.audit_logs());
    check(&check::World { plane: site, members: sites, controllers: "*".to_owned() }).await;

    // The way back: our controllers rest, the server still answers.
    server.end();
    let server = Server::at(PROGRAM, &ours, &["--controllers", ""]);
    let from = server.kubeconfig().display().to_string();
    let back = ["--from", from.as_str(), "--to", config.as_str()];
    let refused = karmada(&[&["migrate"], &back[..], &["--dry-run"]].concat());
    assert!(said(&refused).contains("--force overwrites it"), "{}", said(&refused));
    let forced = [&back[..], &["--force", "--prune", "--accept-member-writes"]].concat();
    let report = migrate(&[&forced[..], &["--dry-run"]].concat()).await;
    eprintln!("the way back: {}", summary(&report));
    let (told, repeated) = (announced(&report, "writes"), announced(&report, "repeated"));
    assert_eq!(repeated, habits, "the report does not know what the original sends when it starts");
    assert!(told.iter().all(|write| write.ends_with("/namespaces/bank/configmaps/late")), "{told:#?}");
    let witness = Witness::from_now(&logs);
    let before = versions(&fleet, &told).await;
    migrate(&forced).await;
    drop(server);
    original.act().await;
    until_ready(&original.client).await;
    until_applied(&original.client, count).await;
    let written = witness.quiet().await;
    eprintln!("written on the way back: {} objects", written.len());
    eprintln!("announced on the way back: {} changes, {} repetitions", told.len(), repeated.len());
    let unannounced: Vec<_> =
        written.iter().filter(|&it| !told.contains(it) && !repeated.contains(it)).collect();
    assert!(unannounced.is_empty(), "not announced: {unannounced:#?}");
    assert_eq!(versions(&fleet, &told).await, before, "what was announced as a repetition has changed");
    let scaled = deployments.api(original.client.clone(), "shop").get("web-0").await.expect("the template");
    assert_eq!(scaled.data["spec"]["replicas"], 12, "what was changed meanwhile has moved back");
    assert!(maps.api(original.client.clone(), "bank").get_opt("map-1").await.expect("an answer").is_none());
    original.rest();
    drop(original.dir);
    fleet.down().await.expect("the clusters end");
}

/// The versions of what was brought to the members, but for what a report announces.
async fn versions(fleet: &Fleet, announced: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for member in MEMBERS {
        let there = client(fleet.cluster(member).expect("a member").kubeconfig()).await;
        for (namespace, plural, kind) in NAMESPACES.into_iter().flat_map(|namespace| {
            [("services", "Service"), ("configmaps", "ConfigMap"), ("secrets", "Secret")]
                .map(|(plural, kind)| (namespace, plural, kind))
        }) {
            let all = Kind::namespaced("", "v1", kind, plural).api(there.clone(), namespace);
            for object in all.list(&ListParams::default()).await.expect("a list").items {
                let name = object.metadata.name.unwrap_or_default();
                let path = format!("/namespaces/{namespace}/{plural}/{name}");
                let here = format!("{member} ");
                if !announced.iter().any(|write| write.starts_with(&here) && write.ends_with(&path)) {
                    found.insert(
                        format!("{member} {path}"),
                        object.metadata.resource_version.unwrap_or_default(),
                    );
                }
            }
        }
    }
    found
}

fn summary(report: &Value) -> String {
    let mut short = report.clone();
    for list in ["/onlyInTarget", "/conflicts", "/rehearsal/repeated"] {
        let Some(list) = short.pointer_mut(list) else { continue };
        let count = list.as_array().map_or(0, Vec::len);
        if count > 10 {
            *list = json!(format!("{count} objects"));
        }
    }
    format!("{short:#}")
}
