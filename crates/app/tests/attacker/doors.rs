//! Connections that say nothing, by the hundred, where descriptors are few. Played on processes of their own.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;

use serde_json::json;

use crate::frames;
use crate::plane::{MEMORY_MIB, Plane, Victim, address};
use crate::stage::Verdict;
use crate::wire::{Door, request};

/// As few as an operator's shell may give.
const DESCRIPTORS: u32 = 256;
/// More than that.
const SILENT: usize = 300;
/// How long the attacker keeps them open, and the others are served.
const HELD: Duration = Duration::from_secs(6);

/// How a connection is opened before it falls silent.
#[derive(Clone, Copy, PartialEq)]
enum Silence {
    Tcp,
    Tls,
    Preface,
}

/// Opens silent connections, and asks from elsewhere as long as they are held.
async fn shut_out(door: &Door, how: Silence, ask: impl AsyncFn() -> Verdict) -> Verdict {
    let mut opened: Vec<Box<dyn Send>> = Vec::new();
    let attempts = (0..SILENT).map(|_| async move {
        let opened: Option<Box<dyn Send>> = match how {
            Silence::Tcp => door.tcp().await.ok().map(|stream| Box::new(stream) as Box<dyn Send>),
            Silence::Tls => {
                let opening = tokio::time::timeout(Duration::from_secs(5), door.tls("http/1.1"));
                opening.await.ok().and_then(Result::ok).map(|stream| Box::new(stream) as Box<dyn Send>)
            }
            Silence::Preface => {
                let opening = tokio::time::timeout(Duration::from_secs(5), frames::open(door, &[]));
                opening.await.ok().and_then(Result::ok).map(|stream| Box::new(stream) as Box<dyn Send>)
            }
        };
        opened
    });
    opened.extend(futures::future::join_all(attempts).await.into_iter().flatten());
    let began = Instant::now();
    let mut served = 0;
    while began.elapsed() < HELD || served == 0 {
        ask().await.map_err(|seen| format!("with {} silent connections: {seen}", opened.len()))?;
        served += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(format!("{} silent connections held, {served} requests of others served", opened.len()))
}

async fn server(how: Silence) -> Verdict {
    let plane = Plane::start(DESCRIPTORS, &["--controllers", ""]).await;
    let ask = async || {
        let answer = plane.calm.get("bystander", "api/v1/namespaces/quiet/configmaps/diary").await;
        answer.one_of(&[200])?;
        plane.calm.get("root", "api/v1/namespaces").await.one_of(&[200])
    };
    shut_out(&plane.door, how, ask).await
}

pub(crate) async fn tcp() -> Verdict {
    server(Silence::Tcp).await
}

pub(crate) async fn tls() -> Verdict {
    server(Silence::Tls).await
}

pub(crate) async fn preface() -> Verdict {
    server(Silence::Preface).await
}

/// The webhook server: silent connections, and reviews that did not come from the API server.
pub(crate) async fn webhook() -> Verdict {
    let plane = Plane::start(1024, &["--controllers", ""]).await;
    let (process, door) = webhook_of(&plane, &[]).await?;
    // A process that turns strangers away during the handshake keeps nobody else out either.
    let ask = async || {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "operation": "CREATE"}});
        let answer = door
            .clone()
            .from([127, 0, 0, 1].into())
            .post("", "validate-federatedresourcequota", &review)
            .await;
        if answer.code == 0 { Err(answer.brief()) } else { Ok(answer.brief()) }
    };
    ask().await?;
    let verdict = shut_out(&door, Silence::Tls, ask).await;
    drop(process);
    verdict
}

/// Reviews of a million small parts, each of which would become a hundred times its size.
pub(crate) async fn dense_reviews() -> Verdict {
    let plane = Plane::start(1024, &["--controllers", ""]).await;
    let (process, door) = webhook_of(&plane, &[]).await?;
    process.forget_peak();
    let dense = format!("{{\"request\":{{\"objects\":[{}0]}}}}", r#"{"":0},"#.repeat(900_000));
    for path in ["convert", "validate-propagationpolicy"] {
        let posted = (0..8).map(|_| door.send("", "POST", path, dense.clone()));
        for answer in futures::future::join_all(posted).await {
            // Whoever is refused before all is sent may see no more than the end of the connection.
            answer.one_of(&[0, 413, 429])?;
        }
    }
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {"uid": "u", "objects": []}});
    door.clone().from([127, 0, 0, 1].into()).post("", "convert", &review).await.one_of(&[200])?;
    let peak = process.peak_mib();
    if peak < MEMORY_MIB / 2 { Ok(format!("refused, {peak} MiB")) } else { Err(format!("{peak} MiB")) }
}

async fn webhook_of(plane: &Plane, further: &[&str]) -> Result<(Victim, Door), String> {
    let (certificates, kubeconfig) =
        (plane.folder("webhook").display().to_string(), plane.kubeconfig().display().to_string());
    let place =
        ["webhook", "--bind-address", "127.0.0.1", "--secure-port", "0", "--health-probe-bind-address", "0"];
    let files = ["--cert-dir", &certificates, "--kubeconfig", &kubeconfig];
    let process = Victim::try_start(DESCRIPTORS, &[&place[..], &files, further].concat(), "ready").await?;
    let door = Door::new(address(&process.ready), &plane.folder("webhook").join("ca.crt"));
    Ok((process, door))
}

/// A review about somebody else tells what that one may read: it says who writes, and the answer depends on that one's rights.
pub(crate) async fn rights_of_others() -> Verdict {
    let plane = Plane::start(1024, &["--controllers", ""]).await;
    let (_process, door) = webhook_of(&plane, &[]).await?;
    let kind = json!({"group": "cluster.karmada.io", "version": "v1alpha1", "kind": "Cluster"});
    let cluster = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "m"},
        "spec": {"syncMode": "Push", "apiEndpoint": "https://m", "secretRef": {"namespace": "other", "name": "treasure"}}});
    let mut told = Vec::new();
    for (user, groups) in [("tenant", json!([])), ("root", json!(["system:masters"]))] {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "kind": kind,
            "name": "m", "operation": "CREATE", "userInfo": {"username": user, "groups": groups}, "object": cluster}});
        for path in ["validate-cluster", "validate-cluster/0123456789abcdef0123", "validate-cluster/"] {
            let answer = door.post("", path, &review).await;
            if answer.text().contains("allowed") {
                told.push(format!("{path} about {user}: {}", answer.brief()));
            }
        }
    }
    if told.is_empty() { Ok("strangers are not answered".to_owned()) } else { Err(told.join("; ")) }
}

/// A review that anybody may post charges a quota.
pub(crate) async fn quota() -> Verdict {
    let plane = Plane::start(1024, &["--controllers", ""]).await;
    let gate = ["--feature-gates", "FederatedQuotaEnforcement=true"];
    let (_process, door) = match webhook_of(&plane, &gate).await {
        Ok(started) => started,
        // It may charge nobody's quota without knowing who asks, and says so.
        Err(said) if said.contains("--client-ca-file") => {
            return Ok("it does not start without --client-ca-file".to_owned());
        }
        Err(said) => return Err(said),
    };
    let quotas = "apis/policy.karmada.io/v1alpha1/namespaces/tenant/federatedresourcequotas";
    let quota = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "FederatedResourceQuota", "metadata": {"name": "q"},
        "spec": {"overall": {"cpu": "100"}}});
    plane.make(quotas, &quota).await;
    let status = json!({"status": {"overall": {"cpu": "100"}, "overallUsed": {"cpu": "0"}}}).to_string();
    plane.calm.patch("root", &format!("{quotas}/q/status"), "merge", status).await.one_of(&[200])?;
    let binding = json!({"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding", "metadata": {"name": "b", "namespace": "tenant"},
        "spec": {"resource": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "namespace": "tenant"}, "replicas": 90,
            "replicaRequirements": {"resourceRequest": {"cpu": "1"}}, "clusters": [{"name": "m", "replicas": 90}]}});
    let kind = json!({"group": "work.karmada.io", "version": "v1alpha2", "kind": "ResourceBinding"});
    let resource = json!({"group": "work.karmada.io", "version": "v1alpha2", "resource": "resourcebindings"});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "kind": kind, "resource": resource,
        "requestKind": kind, "requestResource": resource, "name": "b", "namespace": "tenant", "operation": "CREATE",
        "userInfo": {"username": "root", "groups": ["system:masters"]}, "object": binding, "dryRun": false}});
    let answer = door.post("", "validate-resourcebinding", &review).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let used = plane.calm.get("root", &format!("{quotas}/q")).await.at("/status/overallUsed/cpu");
    if used == "0" {
        Ok(format!("nothing is charged ({})", answer.brief()))
    } else {
        Err(format!("{used} CPUs are charged by a stranger"))
    }
}

/// Metrics and health of the controllers: no credentials there, so no patience either.
pub(crate) async fn metrics() -> Verdict {
    let plane = Plane::start(1024, &["--controllers", ""]).await;
    let kubeconfig = plane.kubeconfig().display().to_string();
    let arguments = [
        "controllers",
        "--metrics-bind-address",
        "127.0.0.1:0",
        "--health-probe-bind-address",
        "0",
        "--kubeconfig",
        &kubeconfig,
    ];
    let process = Victim::start_until(DESCRIPTORS, &arguments, "answers without credentials").await;
    let place = address(&process.ready);
    let mut kept = Vec::new();
    for _ in 0..SILENT {
        let socket = tokio::net::TcpSocket::new_v4().map_err(|error| error.to_string())?;
        let _ = socket.bind((crate::wire::HOSTILE, 0).into());
        let connecting = tokio::time::timeout(Duration::from_secs(2), socket.connect(place));
        if let Ok(Ok(stream)) = connecting.await {
            kept.push(stream);
        }
    }
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(place).await?;
        stream.write_all(&request("", "GET", "metrics", &[], b"")).await?;
        let mut text = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut text).await?;
        std::io::Result::Ok(text.len())
    };
    match tokio::time::timeout(testkit::slowed(Duration::from_secs(25)), asked).await {
        Ok(Ok(size)) if size > 100 => {
            Ok(format!("{} silent connections; metrics of {size} bytes", kept.len()))
        }
        Ok(other) => Err(format!("with {} silent connections: {other:?}", kept.len())),
        Err(_) => Err(format!("with {} silent connections nobody gets the metrics", kept.len())),
    }
}
