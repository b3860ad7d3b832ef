//! The estimator of Karmada v1.17.1, as a process, and ours are asked the same about the same random members: the answers are the same.
//!
//! `cargo xtask compare estimator` runs it: one member whose nodes, pods, quotas and Deployments are replaced world by world, both
//! estimators on it, one client with a certificate. `KARMADA_COMPARE_WORLDS` (500), `KARMADA_COMPARE_FIRST` (0) and
//! `KARMADA_COMPARE_SEED` (1) choose how many and which; `UPDATE_GOLDEN=1` records the first of them, which are answered without a
//! member in CI.
//!
//! What may differ, and is counted:
//! - *overused*: where more of a quota is used than it has, the original divides a negative number and says that less than nothing fits;
//!   ours says 0, as the original does since v1.18.
//! - *missing*: of a Deployment that a member does not have, ours says that no replica waits. The original's error makes its descheduler
//!   forget the answers of all other clusters.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use api::features::Features;
use clusters::toolchain::{KARMADA_ESTIMATING, Toolchain};
use estimator::estimate;
use estimator::protocol::{
    self, MaxAvailableComponentSetsRequest, MaxAvailableReplicasRequest, UnschedulableReplicasRequest,
};
use estimator::room::{self, Node, Taken};
use estimator::server::Estimator;
use estimator::tls::ServerTls;
use estimator::unschedulable;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1 as core;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use runtime::Supervisor;
use serde_json::{Value, json};
use testkit::embedded::Embedded;
use testkit::process::{Process, Speaks};
use testkit::{Kind, eventually};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::tls::Authority;
use crate::worlds::{Answer, NAMESPACES, Question, World};

const CLUSTER: &str = "m1";
const GATES: &str = "ResourceQuotaEstimate=true";
/// How many worlds are recorded.
const RECORDED: u64 = 40;
/// How many objects are written at once.
const AT_ONCE: usize = 8;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn recorded() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/original.jsonl")
}

fn replicas(needs: &Value) -> MaxAvailableReplicasRequest {
    let needs: Option<api::work::ReplicaRequirements> = serde_json::from_value(needs.clone()).expect("needs");
    MaxAvailableReplicasRequest {
        cluster: CLUSTER.to_owned(),
        replica_requirements: needs.as_ref().map(Into::into),
        assumed_workloads: Vec::new(),
    }
}

fn sets(namespace: &str, components: &Value) -> MaxAvailableComponentSetsRequest {
    let components: Vec<api::work::Component> =
        serde_json::from_value(components.clone()).expect("components");
    MaxAvailableComponentSetsRequest {
        cluster: CLUSTER.to_owned(),
        components: components.iter().map(Into::into).collect(),
        namespace: namespace.to_owned(),
        assumed_workloads: Vec::new(),
    }
}

fn namespace(deployment: &str) -> String {
    if deployment.starts_with("zz-") { "marks".to_owned() } else { "a".to_owned() }
}

/// One of the two, over mutual TLS.
struct Side(Channel);

impl Side {
    async fn connect(port: u16, authority: &Authority) -> Self {
        let (certificate, key) = authority.issue("karmada-scheduler");
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority.pem()))
            .identity(Identity::from_pem(certificate, key));
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{port}")).expect("an address");
        let endpoint = endpoint.tls_config(tls).expect("certificates");
        Self(
            eventually("the estimator answers", async || {
                endpoint.connect().await.map_err(|error| format!("{error:?}"))
            })
            .await,
        )
    }

    async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, tonic::Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.0.clone());
        grpc.ready().await.expect("a connection");
        let mut request = tonic::Request::new(message);
        request.set_timeout(Duration::from_secs(30));
        let path = http::uri::PathAndQuery::from_static(path);
        let codec = tonic_prost::ProstCodec::<Q, A>::default();
        Ok(grpc.unary(request, path, codec).await?.into_inner())
    }

    async fn ask(&self, question: &Question) -> Answer {
        let answer = match question {
            Question::Replicas(needs) => {
                let answer: Result<protocol::MaxAvailableReplicasResponse, _> =
                    self.call(protocol::MAX_AVAILABLE_REPLICAS, replicas(needs)).await;
                answer.map(|answer| answer.max_replicas)
            }
            Question::Sets { namespace, components } => {
                let answer: Result<protocol::MaxAvailableComponentSetsResponse, _> =
                    self.call(protocol::MAX_AVAILABLE_COMPONENT_SETS, sets(namespace, components)).await;
                answer.map(|answer| answer.max_sets)
            }
            Question::Unschedulable { name, seconds } => {
                let request = UnschedulableReplicasRequest {
                    cluster: CLUSTER.to_owned(),
                    resource: Some(protocol::ObjectReference {
                        api_version: "apps/v1".to_owned(),
                        kind: "Deployment".to_owned(),
                        namespace: namespace(name),
                        name: name.clone(),
                    }),
                    unschedulable_threshold: seconds * 1_000_000_000,
                };
                let answer: Result<protocol::UnschedulableReplicasResponse, _> =
                    self.call(protocol::GET_UNSCHEDULABLE_REPLICAS, request).await;
                answer.map(|answer| answer.unschedulable_replicas)
            }
        };
        answer.map_or_else(|status| Answer::Error(status.message().to_owned()), Answer::Number)
    }
}

/// Why answers may differ; nothing if they may not.
fn excuse(world: &World, question: &Question, theirs: &Answer, ours: &Answer) -> Option<&'static str> {
    let overused = |namespace: &str| {
        let quotas = world.quotas.iter().filter(|quota| quota["metadata"]["namespace"] == namespace);
        let mut amounts = quotas.flat_map(|quota| {
            let hard = quota["status"]["hard"].as_object().into_iter().flatten();
            hard.map(|(name, hard)| (hard.clone(), quota["status"]["used"][name].clone()))
        });
        let value = |amount: &Value| {
            let amount = amount.as_str().and_then(|text| apimachinery::quantity::Quantity::parse(text).ok());
            amount.map(|amount| amount.milli_value())
        };
        amounts.any(|(hard, used)| value(&used).is_some_and(|used| value(&hard) < Some(used)))
    };
    let less_than_nothing =
        matches!((theirs, ours), (Answer::Number(theirs), Answer::Number(0)) if *theirs < 0);
    match question {
        Question::Replicas(needs) if less_than_nothing => {
            overused(needs["namespace"].as_str().unwrap_or_default()).then_some("overused")
        }
        Question::Sets { namespace, .. } if less_than_nothing => overused(namespace).then_some("overused"),
        Question::Unschedulable { name, .. } if name == "missing" => {
            (matches!(theirs, Answer::Error(_)) && *ours == Answer::Number(0)).then_some("missing")
        }
        _ => None,
    }
}

/// The member, with one world at a time.
struct Member {
    client: kube::Client,
}

fn nodes() -> Kind {
    Kind::cluster("", "v1", "Node", "nodes")
}

fn kinds() -> [Kind; 4] {
    [
        Kind::namespaced("", "v1", "ResourceQuota", "resourcequotas"),
        Kind::namespaced("", "v1", "Pod", "pods"),
        Kind::namespaced("apps", "v1", "ReplicaSet", "replicasets"),
        Kind::namespaced("apps", "v1", "Deployment", "deployments"),
    ]
}

impl Member {
    async fn clear(&self) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        for kind in kinds() {
            for namespace in NAMESPACES {
                let api = kind.api(self.client.clone(), namespace);
                api.delete_collection(&now, &ListParams::default()).await.expect("deleted");
            }
        }
        let api = nodes().api(self.client.clone(), "");
        api.delete_collection(&now, &ListParams::default()).await.expect("deleted");
    }

    /// Creates an object with its status, and returns its identifier.
    async fn create(&self, kind: &Kind, object: &Value) -> String {
        let api = kind.api(self.client.clone(), object["metadata"]["namespace"].as_str().unwrap_or_default());
        let mut made = object.clone();
        made["apiVersion"] = kind.resource.api_version.clone().into();
        made["kind"] = kind.resource.kind.clone().into();
        let made: DynamicObject = serde_json::from_value(made).expect("an object");
        let created = api.create(&PostParams::default(), &made).await;
        let created = created.unwrap_or_else(|error| panic!("{object}: {error}"));
        let name = created.metadata.name.clone().expect("a name");
        if kind.resource.kind == "Node" {
            // The server taints new nodes until somebody says that they are ready.
            let spec = Patch::Merge(json!({"spec": {"taints": object["spec"]["taints"]}}));
            api.patch(&name, &PatchParams::default(), &spec).await.expect("taints");
        }
        if let Some(status) = object.get("status") {
            let status = Patch::Merge(json!({"status": status}));
            let written = api.patch_status(&name, &PatchParams::default(), &status).await;
            written.unwrap_or_else(|error| panic!("{object}: {error}"));
        }
        created.metadata.uid.expect("an identifier")
    }

    async fn become_like(&self, world: &World) {
        self.clear().await;
        // In this order: it is that of the original's walk over the nodes.
        for node in &world.nodes {
            self.create(&nodes(), node).await;
        }
        let [quotas, pods, sets, deployments] = kinds();
        let mut identifiers = HashMap::new();
        for (kind, objects) in [(&deployments, &world.deployments), (&sets, &world.sets)] {
            let known = &identifiers;
            let create = async |object: &Value| {
                let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
                (format!("{} {name}", kind.resource.kind), self.create(kind, &owned(object, known)).await)
            };
            let mut new = Vec::new();
            for object in objects {
                new.push(create(object).await);
            }
            identifiers.extend(new);
        }
        // The marks come last.
        for (kind, objects) in [(&pods, &world.pods), (&quotas, &world.quotas)] {
            let (marks, others): (Vec<&Value>, Vec<&Value>) =
                objects.iter().partition(|object| object["metadata"]["namespace"] == "marks");
            let known = &identifiers;
            stream::iter(others)
                .for_each_concurrent(AT_ONCE, async |object| {
                    self.create(kind, &owned(object, known)).await;
                })
                .await;
            for mark in marks {
                self.create(kind, &owned(mark, known)).await;
            }
        }
    }
}

/// The object with the identifiers of its owners in the place of their names.
fn owned(object: &Value, identifiers: &HashMap<String, String>) -> Value {
    let mut object = object.clone();
    for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
        let key =
            format!("{} {}", owner["kind"].as_str().unwrap_or(""), owner["name"].as_str().unwrap_or(""));
        owner["uid"] = identifiers[&key].clone().into();
    }
    object
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the original estimator; run `cargo xtask compare estimator`"]
async fn both_estimators_give_the_same_answers() {
    testkit::install_tls();
    let program = Toolchain::from_env()
        .expect("a cache")
        .ensure_program(&KARMADA_ESTIMATING, "karmada-estimating-estimator")
        .expect("the original estimator");
    let data = tempfile::tempdir().expect("a folder");
    let options = apiserver::Options { collect_garbage: false, ..apiserver::Options::default() };
    let embedded = Embedded::member(CLUSTER, options).await;
    let kubeconfig = data.path().join("kubeconfig");
    std::fs::write(&kubeconfig, &embedded.handle.kubeconfig).expect("a kubeconfig");
    let member = Member { client: embedded.client.clone() };
    for namespace in NAMESPACES {
        let kind = Kind::cluster("", "v1", "Namespace", "namespaces");
        member.create(&kind, &json!({"metadata": {"name": namespace}})).await;
    }

    let authority = Authority::new();
    let (certificate, key) = authority.issue_files("127.0.0.1");
    let text = |path: &PathBuf| path.display().to_string();
    let port = clusters::free_ports(1).expect("a port")[0];
    let mut original = std::process::Command::new(&program);
    original
        .args(["--cluster-name", CLUSTER, "--server-port", &port.to_string(), "--feature-gates", GATES])
        .args(["--metrics-bind-address=0", "--health-probe-bind-address=0", "--kube-api-qps=1000"])
        .args(["--grpc-auth-cert-file", &text(&certificate), "--grpc-auth-key-file", &text(&key)])
        .args(["--grpc-client-ca-file", &text(&authority.file()), "--kubeconfig", &text(&kubeconfig)])
        .stdin(std::process::Stdio::null());
    let _original = Process::spawn(original, Speaks::Stderr);
    let theirs = Side::connect(port, &authority).await;

    let tls = ServerTls {
        certificate: Some(certificate),
        key: Some(key),
        client_ca: Some(authority.file()),
        skip_client_verification: false,
    };
    let supervisor = Supervisor::default();
    let estimator =
        Estimator::new(CLUSTER, embedded.client.clone(), Features::parse(GATES).expect("gates"), &supervisor);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let tls = tls.server_config().expect("certificates");
    tokio::spawn(estimator.serve(listener, tls, supervisor.token().clone()));
    let ours = Side::connect(port, &authority).await;

    let (seed, count) = (setting("KARMADA_COMPARE_SEED", 1), setting("KARMADA_COMPARE_WORLDS", 500));
    let first = setting("KARMADA_COMPARE_FIRST", 0);
    let (mut asked, mut positive) = (0_usize, 0_usize);
    let mut excused: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut differences, mut lines) = (Vec::new(), Vec::new());
    for number in first..first + count {
        let mut world = World::new(seed, number, Timestamp::now().as_second());
        member.become_like(&world).await;
        for (question, expected) in world.marks() {
            for side in [&theirs, &ours] {
                eventually("the estimator knows the world", async || {
                    let answer = side.ask(&question).await;
                    if answer == expected { Ok(()) } else { Err(format!("{question:?}: {answer:?}")) }
                })
                .await;
            }
        }
        for question in &world.questions {
            let (original, own) = tokio::join!(theirs.ask(question), ours.ask(question));
            asked += 1;
            positive += usize::from(matches!(original, Answer::Number(found) if found > 0));
            let both_fail = matches!((&original, &own), (Answer::Error(_), Answer::Error(_)));
            if original != own && !both_fail {
                match excuse(&world, question, &original, &own) {
                    Some(why) => *excused.entry(why).or_default() += 1,
                    None => differences
                        .push(format!("world {number}: {question:?}\n  original {original:?}, ours {own:?}")),
                }
            }
            world.answers.push(original);
        }
        if number < RECORDED {
            lines.push(serde_json::to_string(&world).expect("JSON"));
        }
        if (number + 1) % 50 == 0 {
            eprintln!("{} worlds: {asked} questions, {} differ", number + 1, differences.len());
        }
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(recorded(), lines.join("\n") + "\n").expect("recorded");
    }
    eprintln!(
        "{count} worlds of seed {seed}: {asked} questions, {positive} answers above 0, {} differ, excused {excused:?}",
        differences.len()
    );
    supervisor.stop().await;
    embedded.stop().await;
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(asked >= count as usize * 10 && positive * 4 > asked, "too little was asked");
}

fn read<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{object}: {error}"))
}

/// What the service would say, from the objects themselves.
fn answer(world: &World, question: &Question) -> Answer {
    let ended = |pod: &&Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let pods: Vec<core::Pod> = world.pods.iter().filter(|pod| !ended(pod)).map(read).collect();
    let taken = pods.iter().cloned().map(Taken::from).filter(|taken| !taken.node.is_empty());
    let left = room::left(world.nodes.iter().map(|node| Node::from(read::<core::Node>(node))), taken);
    let quotas: Vec<core::ResourceQuota> = world.quotas.iter().map(read).collect();
    let known = estimate::World { left: &left, quotas: Some(&quotas), protected: false };
    Answer::Number(match question {
        Question::Replicas(needs) => known.replicas(&replicas(needs)),
        Question::Sets { namespace, components } => known.sets(&sets(namespace, components)),
        Question::Unschedulable { name, seconds } => {
            let is_meant = |object: &&Value| object["metadata"]["name"] == name.as_str();
            let Some(deployment) = world.deployments.iter().find(is_meant) else { return Answer::Number(0) };
            let mut deployment: Deployment = read(deployment);
            deployment.metadata.uid = Some(name.clone());
            let sets = world.sets.iter().map(|set| {
                let mut set: ReplicaSet = read(set);
                set.metadata.uid = set.metadata.name.clone();
                set
            });
            let now = Timestamp::from_second(world.now).expect("a time");
            let threshold = Duration::from_secs(u64::try_from(*seconds).unwrap_or(0));
            unschedulable::count(&deployment, &sets.collect::<Vec<_>>(), &pods, threshold, now)
        }
    })
}

#[test]
fn what_the_original_was_seen_to_answer_is_answered() {
    let text = std::fs::read_to_string(recorded()).expect("recorded worlds");
    let (mut count, mut positive) = (0, 0);
    for line in text.lines() {
        let world: World = serde_json::from_str(line).expect("a world");
        for (question, theirs) in world.questions.iter().zip(&world.answers) {
            let ours = answer(&world, question);
            let alike = *theirs == ours || excuse(&world, question, theirs, &ours).is_some();
            assert!(alike, "world {}: {question:?}: {ours:?}, the original said {theirs:?}", world.number);
            count += 1;
            positive += usize::from(matches!(theirs, Answer::Number(found) if *found > 0));
        }
    }
    assert!(count >= 400 && positive >= 100, "only {count} answers, {positive} above 0");
}
