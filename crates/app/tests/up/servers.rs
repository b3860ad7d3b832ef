//! Several servers on one etcd are one control plane.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use clusters::Etcd;
use futures::StreamExt as _;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use testkit::{Server, eventually, install_tls};

const SERVERS: usize = 3;

fn start(etcd: &str, data: &Path) -> Server {
    Server::at(env!("CARGO_BIN_EXE_karmada"), data, &["--store", "etcd", "--etcd-servers", etcd])
}

/// Starts all at once, so that they meet over keys and what has to exist.
pub(crate) fn start_all(etcd: &str, dir: &Path) -> Vec<Server> {
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..SERVERS)
            .map(|number| scope.spawn(move || start(etcd, &dir.join(format!("server-{number}")))))
            .collect();
        starts.into_iter().map(|start| start.join().expect("it starts")).collect()
    })
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"value": value}}))
        .expect("a ConfigMap")
}

pub(crate) async fn config(server: &Server) -> kube::Config {
    let kubeconfig = kube::config::Kubeconfig::read_from(server.kubeconfig()).expect("a kubeconfig");
    kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.expect("a usable context")
}

async fn holder(client: &Client) -> String {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "karmada-system");
    let lease = leases.get_opt("karmada-controller-manager").await.expect("the server answers");
    lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
}

async fn acquired(client: &Client) -> jiff::Timestamp {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "karmada-system");
    let lease = leases.get("karmada-controller-manager").await.expect("the server answers");
    lease.spec.and_then(|spec| spec.acquire_time).expect("it is held").0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_of_a_migration_writes_nothing_to_etcd() {
    install_tls();
    let dir = tempfile::tempdir().expect("a folder for the test");
    let Some(etcd) = Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
    let source = Server::at(env!("CARGO_BIN_EXE_karmada"), &dir.path().join("source"), &[]);
    let (from, data) = (source.kubeconfig().display().to_string(), dir.path().join("target"));
    let place = data.display().to_string();
    let to = ["--store", "etcd", "--etcd-servers", &etcd.endpoint, "--data-dir", &place];
    let report = ["migrate", "--from", &from, "--dry-run", "--no-rehearsal", "-o", "json"];
    let output = testkit::run(env!("CARGO_BIN_EXE_karmada"), &[&report[..], &to[..]].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert!(report["objects"].as_u64().is_some_and(|count| count > 0), "{report}");
    let options =
        store::EtcdOptions { compact_every: None, ..store::EtcdOptions::new([etcd.endpoint.clone()]) };
    let store = store::Store::<()>::open(store::Options::etcd(options)).expect("etcd is there");
    assert!(store.collections().is_empty(), "nothing is written: {:?}", store.collections());
    assert!(!data.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_on_one_etcd_are_one_control_plane() {
    install_tls();
    let dir = tempfile::tempdir().expect("a folder for the test");
    let Some(etcd) = Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
    let mut servers = start_all(&etcd.endpoint, dir.path());
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(server.client().await);
    }
    let maps: Vec<Api<ConfigMap>> =
        clients.iter().map(|client| Api::namespaced(client.clone(), "default")).collect();

    // What one has acknowledged, every other shows at once, and can change, delete and make anew.
    for round in 0..20 {
        let [one, other, third] = [0, 1, 2].map(|offset| &maps[(round + offset) % SERVERS]);
        let made =
            one.create(&PostParams::default(), &map("shared", "1")).await.expect("it is not there yet");
        let mut seen = other.get("shared").await.expect("it is there");
        assert_eq!(seen.resource_version(), made.resource_version());
        seen.data = map("shared", "2").data;
        let changed = other.replace("shared", &PostParams::default(), &seen).await.expect("it is the newest");
        let list = third.list(&ListParams::default()).await.expect("a list");
        let found = list.items.iter().find(|map| map.name_any() == "shared").expect("it is listed");
        assert_eq!(found.resource_version(), changed.resource_version());
        third.delete("shared", &DeleteParams::default()).await.expect("it is there");
    }

    // Nobody has to read first: what one has acknowledged, every other can change, delete and make anew at once.
    let to = |value: &str| Patch::Merge(json!({"data": {"value": value}}));
    for round in 0..30 {
        let [one, other, third] = [0, 1, 2].map(|offset| &maps[(round + offset) % SERVERS]);
        let usual = PatchParams::default();
        one.create(&PostParams::default(), &map("blind", "1")).await.expect("it is gone");
        let patched = other.patch("blind", &usual, &to("2")).await.expect("it is there");
        // The same as before it was changed: nothing to do for those who do not know that.
        let back = third.patch("blind", &usual, &to("1")).await.expect("it is there");
        assert_ne!(back.resource_version(), patched.resource_version(), "round {round}");
        assert_eq!(back.data, map("blind", "1").data, "round {round}");
        let again = one.replace("blind", &PostParams::default(), &back).await.expect("it is the newest");
        assert_eq!(again.resource_version(), back.resource_version(), "nothing has changed");
        other.replace("blind", &PostParams::default(), &patched).await.expect_err("it has been overtaken");
        other.delete("blind", &DeleteParams::default()).await.expect("it is there");
    }

    // A watch goes on at another server where a list of the first one ended.
    let version = maps[0].list(&ListParams::default()).await.expect("a list").metadata.resource_version;
    let watch = maps[1].watch(&WatchParams::default(), &version.expect("a version")).await.expect("a watch");
    maps[2].create(&PostParams::default(), &map("watched", "1")).await.expect("it is new");
    let first = tokio::time::timeout(testkit::DEADLINE, Box::pin(watch).next()).await.expect("soon");
    match first.expect("an event").expect("readable") {
        WatchEvent::Added(map) => assert_eq!(map.name_any(), "watched"),
        other => panic!("{other:?}"),
    }

    // What one has given to a Service, no other gives to a second one, until it is given back, to whichever server.
    let services: Vec<Api<Service>> =
        clients.iter().map(|client| Api::namespaced(client.clone(), "default")).collect();
    let service = |name: &str| -> Service {
        let spec =
            json!({"type": "NodePort", "clusterIP": "10.96.7.7", "ports": [{"port": 80, "nodePort": 30777}]});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a Service")
    };
    for round in 0..3 {
        let [one, other, third] = [0, 1, 2].map(|offset| &services[(round + offset) % SERVERS]);
        one.create(&PostParams::default(), &service("first")).await.expect("they are free");
        let refused =
            other.create(&PostParams::default(), &service("second")).await.expect_err("they are taken");
        assert!(refused.to_string().contains("already allocated"), "{refused}");
        third.delete("first", &DeleteParams::default()).await.expect("it is there");
    }
    let attempts = (0..12).map(|number| {
        let (services, service) = (&services[number % SERVERS], service(&format!("race-{number}")));
        async move { services.create(&PostParams::default(), &service).await }
    });
    let attempts = futures::future::join_all(attempts).await;
    assert_eq!(attempts.iter().filter(|made| made.is_ok()).count(), 1, "{attempts:?}");

    // A token that one has signed is believed by the others.
    let accounts: Api<ServiceAccount> = Api::namespaced(clients[0].clone(), "default");
    let account = serde_json::from_value(json!({"metadata": {"name": "robot"}})).expect("an account");
    accounts.create(&PostParams::default(), &account).await.expect("it is new");
    let request: TokenRequest =
        serde_json::from_value(json!({"spec": {"audiences": []}})).expect("a request");
    let token =
        accounts.create_token_request("robot", &PostParams::default(), &request).await.expect("a token");
    let mut config = config(&servers[1]).await;
    config.auth_info = kube::config::AuthInfo {
        token: token.status.and_then(|status| status.token).map(Into::into),
        ..kube::config::AuthInfo::default()
    };
    let robot: Api<SelfSubjectReview> = Api::all(Client::try_from(config).expect("a client"));
    let review = eventually("it is believed", async || {
        let review = robot.create(&PostParams::default(), &SelfSubjectReview::default()).await;
        review.map_err(|error| error.to_string())
    })
    .await;
    let user = review.status.and_then(|status| status.user_info?.username);
    assert_eq!(user.as_deref(), Some("system:serviceaccount:default:robot"));

    // So are the rights that one has given.
    let robots: Api<ConfigMap> = Api::namespaced(robot.into_client(), "default");
    robots.list(&ListParams::default()).await.expect_err("nobody has allowed it yet");
    let rights: Api<RoleBinding> = Api::namespaced(clients[0].clone(), "default");
    let right = serde_json::from_value(json!({
        "metadata": {"name": "robot"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}],
    }));
    rights.create(&PostParams::default(), &right.expect("a binding")).await.expect("it is new");
    // Each server judges by what it has heard of the others' writes.
    eventually("it may", async || {
        robots.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string())
    })
    .await;

    // A definition that one has accepted is served by the others.
    let definitions: Api<CustomResourceDefinition> = Api::all(clients[0].clone());
    let definition = serde_json::from_value(json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    }));
    definitions.create(&PostParams::default(), &definition.expect("a definition")).await.expect("it is new");
    let kind = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("example.com", "v1", "Widget"));
    let accepted = std::time::Instant::now();
    for (number, client) in clients.iter().enumerate() {
        let widgets: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &kind);
        let widget = DynamicObject::new(&format!("w{number}"), &kind);
        eventually("the definition is served", async || {
            widgets.create(&PostParams::default(), &widget).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        eprintln!("the definition is served by server {number} within {:?}", accepted.elapsed());
        assert_eq!(widgets.list(&ListParams::default()).await.expect("a list").items.len(), number + 1);
    }

    // One of them acts; when it is killed, another one does once the Lease has run out, and at once when it ends in order.
    let mut last = String::new();
    for orderly in [true, false] {
        let number = eventually("one of them acts", async || {
            let holder = holder(&clients[SERVERS - 1]).await;
            let at = servers.iter().position(|server| {
                let id = std::fs::read_to_string(server.data().join("server.id")).unwrap_or_default();
                !holder.is_empty() && holder == format!("karmada-server_{}", id.trim())
            });
            at.filter(|_| holder != last).ok_or_else(|| format!("the lease is {holder:?}'s"))
        })
        .await;
        last = holder(&clients[number]).await;
        if orderly {
            servers[number].end();
        } else {
            servers[number].kill();
        }
        let ended = jiff::Timestamp::now();
        let left =
            clients.iter().enumerate().find(|(other, _)| *other != number).expect("two are left").1.clone();
        eventually("another one acts", async || {
            let now = holder(&left).await;
            if now.is_empty() || now == last { Err(format!("still {now:?}")) } else { Ok(()) }
        })
        .await;
        // The Lease says when. Without an orderly end it cannot have been before the Lease ran out, 15 s after its last renewal; with
        // one nobody waits for that. A busy machine takes its time for the rest.
        let acquired = acquired(&left).await;
        let after = acquired.duration_since(ended).as_secs();
        eprintln!("orderly {orderly}: another server acts after {after} s");
        let most = testkit::slowed(Duration::from_secs(if orderly { 10 } else { 20 }));
        assert!(after <= i64::try_from(most.as_secs()).unwrap_or(i64::MAX), "orderly {orderly}: {after} s");
        servers[number].restart();
        clients[number] = servers[number].client().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_its_etcd_says_so_and_recovers() {
    install_tls();
    let dir = tempfile::tempdir().expect("a folder for the test");
    let Some(mut etcd) = Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
    let server = start(&etcd.endpoint, &dir.path().join("data"));
    // One that tells every refusal, rather than trying for minutes.
    let mut config = config(&server).await;
    config.default_retry = false;
    let client = Client::try_from(config).expect("a client");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    maps.create(&PostParams::default(), &map("kept", "1")).await.expect("it is new");

    etcd.kill();
    let refused =
        maps.create(&PostParams::default(), &map("lost", "1")).await.expect_err("there is no store");
    let kube::Error::Api(status) = &refused else { panic!("{refused:?}") };
    assert!((status.code == 504 || status.code == 503) && status.message.contains("etcd"), "{status:?}");
    // What does not have to be the newest is still told.
    let any = kube::api::GetParams::any();
    maps.get_with("kept", &any).await.expect("from memory");
    let health =
        client.request_text(http::Request::get("/readyz").body(Vec::new()).expect("a request")).await;
    assert!(health.is_err(), "a server that cannot write is not ready: {health:?}");

    etcd.start_again().await.expect("it starts again");
    eventually("writes succeed again", async || {
        maps.create(&PostParams::default(), &map("again", "1"))
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    })
    .await;
    maps.get("kept").await.expect("nothing was lost");
}

async fn read(client: &Client, path: &str) -> Result<String, String> {
    let request = http::Request::get(path).body(Vec::new()).expect("a request");
    client.request_text(request).await.map_err(|error| format!("{error:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_endpoint_that_is_down_is_named_and_does_no_harm() {
    install_tls();
    let dir = tempfile::tempdir().expect("a folder for the test");
    let Some(etcd) = Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
    // A port that nobody listens at, and that nobody else is given.
    let gone = tokio::net::TcpSocket::new_v4().expect("a socket");
    gone.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let down = format!("http://{}", gone.local_addr().expect("an address"));
    let server = start(&format!("{down},{}", etcd.endpoint), &dir.path().join("data"));
    let mut config = config(&server).await;
    config.default_retry = false;
    let client = Client::try_from(config).expect("a client");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    maps.create(&PostParams::default(), &map("written", "1")).await.expect("the other endpoint takes it");

    // Each endpoint is looked at in its own time.
    let lines = [
        "[+]etcd ok",
        "[+]etcd-readiness ok",
        "[-]etcd-endpoint-0 failed: others are asked",
        "[+]etcd-endpoint-1 ok",
        "readyz check passed",
    ];
    eventually("all endpoints have been looked at", async || {
        let told = read(&client, "/readyz?verbose").await?;
        let all = lines.iter().all(|line| told.lines().any(|told| told == *line));
        if all { Ok(()) } else { Err(told) }
    })
    .await;
    let live = read(&client, "/livez?verbose").await.expect("it lives");
    assert!(live.contains("[+]etcd ok") && !live.contains("etcd-"), "{live}");
    let one = read(&client, "/readyz/etcd-endpoint-0").await.expect_err("it is down");
    assert!(one.contains(&down), "{one}");
    let components = read(&client, "/api/v1/componentstatuses").await.expect("a list");
    assert!(components.contains(&down) && components.contains("etcd-1"), "{components}");

    // What the watch told of the write is counted when it comes.
    let received = "apiserver_storage_events_received_total{group=\"\",resource=\"configmaps\"}";
    let metrics = eventually("the watch has told of the write", async || {
        let metrics = read(&client, "/metrics").await?;
        let told = metrics.lines().any(|line| line.starts_with(received) && !line.ends_with(" 0"));
        if told { Ok(metrics) } else { Err(metrics) }
    })
    .await;
    let value = |wanted: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(wanted)).map(str::trim);
        line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("no {wanted}:\n{metrics}"))
    };
    let of_maps = "operation=\"create\",group=\"\",resource=\"configmaps\"";
    assert!(value(&format!("etcd_requests_total{{{of_maps}}}")) >= 1.0);
    assert!(value(&format!("etcd_request_duration_seconds_count{{{of_maps}}}")) >= 1.0);
    assert!(value(&format!("etcd_request_errors_total{{{of_maps}}}")) < 1.0);
    assert!(value(received) >= 1.0);
    assert!(value("apiserver_storage_size_bytes{storage_cluster_id=\"etcd-0\"}") > 1.0);
    assert!(value(&format!("karmada_etcd_endpoint_up{{endpoint=\"{down}\"}}")) < 1.0);
    assert!(value(&format!("karmada_etcd_endpoint_up{{endpoint=\"{}\"}}", etcd.endpoint)) > 0.0);
}

/// Names and uids of what has to exist, by kind.
async fn founded(client: &Client) -> BTreeMap<&'static str, BTreeSet<(String, String)>> {
    async fn all<K>(client: &Client) -> BTreeSet<(String, String)>
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let list = Api::<K>::all(client.clone()).list(&ListParams::default()).await.expect("a list");
        list.items.iter().map(|one| (one.name_any(), one.uid().unwrap_or_default())).collect()
    }
    BTreeMap::from([
        ("namespaces", all::<Namespace>(client).await),
        ("roles", all::<ClusterRole>(client).await),
        ("definitions", all::<CustomResourceDefinition>(client).await),
    ])
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: `cargo test -p app --test up -- --ignored servers_that_start`"]
async fn servers_that_start_together_agree_every_time() {
    install_tls();
    for round in 0..20_u64 {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let Some(etcd) = Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
        // At once at first, then one after the other in every order, with ever longer pauses.
        let order = [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0], [1, 0, 2], [0, 2, 1]][(round % 6) as usize];
        let (folder, endpoint) = (dir.path(), etcd.endpoint.as_str());
        let servers: Vec<Server> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..SERVERS)
                .map(|number| {
                    scope.spawn(move || {
                        std::thread::sleep(Duration::from_millis(round * 20 * order[number]));
                        start(endpoint, &folder.join(format!("server-{number}")))
                    })
                })
                .collect();
            starts.into_iter().map(|start| start.join().expect("it starts")).collect()
        });
        let keys = |server: &Server| {
            ["ca.key", "ca.crt", "front-proxy-ca.key", "front-proxy-ca.crt", "sa.key"]
                .map(|name| std::fs::read_to_string(server.data().join("pki").join(name)).expect("a key"))
        };
        let first = founded(&servers[0].client().await).await;
        assert!(first.values().all(|names| !names.is_empty()), "{first:?}");
        for server in &servers[1..] {
            assert!(keys(server) == keys(&servers[0]), "round {round}: the keys differ");
            assert_eq!(founded(&server.client().await).await, first, "round {round}");
        }
        println!(
            "round {round}: {} objects, the same for all",
            first.values().map(BTreeSet::len).sum::<usize>()
        );
    }
}
