//! Servers that the control plane asks: webhooks, aggregated API servers, member clusters.

use std::time::{Duration, Instant};

use futures::future::join_all;
use rcgen::DnValue;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::definitions::definition;
use crate::hostile::GROUP;
use crate::stage::{Stage, Verdict};
use crate::wire::{Answer, request};

const HOOKS: &str = "apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const DEFINITIONS: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CLUSTERS: &str = "apis/cluster.karmada.io/v1alpha1/clusters";
const MAPS: &str = "api/v1/namespaces/hooked/configmaps";

/// Has a hostile webhook judge one ConfigMap; returns the answer to its writer.
async fn hooked(stage: &Stage, part: &str, seconds: u64) -> Answer {
    stage.plane.make("api/v1/namespaces", &json!({"metadata": {"name": "hooked"}})).await;
    stage.plane.grant("editor", Some("hooked"), "edit", None).await;
    let name = part.replace('/', "-");
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": {"name": name},
        "webhooks": [{"name": "hook.attack.example.com", "clientConfig": stage.hostile.hook(part), "admissionReviewVersions": ["v1"],
            "sideEffects": "None", "timeoutSeconds": seconds, "failurePolicy": "Fail",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "hooked"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]}]});
    let made = stage.plane.door.post("definer", HOOKS, &configuration).await;
    assert!(matches!(made.code, 201 | 409), "{}", made.brief());
    // Until it is obeyed.
    let began = Instant::now();
    let mut number = 0;
    let answer = loop {
        number += 1;
        let map = json!({"metadata": {"name": format!("{name}-{number}")}, "data": {"a": "b"}});
        let answer = stage.plane.door.post("editor", MAPS, &map).await;
        if !stage.hostile.seen(part).is_empty() || began.elapsed() > crate::wire::patience() {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    stage.plane.calm.send("root", "DELETE", &format!("{HOOKS}/{name}"), String::new()).await;
    answer
}

pub(crate) async fn hook_deepens(stage: &Stage) -> Verdict {
    let answer = hooked(stage, "hook/patch-depth", 5).await;
    if answer.code == 0 || answer.code == 201 {
        Err(format!("answered {}", answer.brief()))
    } else {
        Ok(answer.brief())
    }
}

pub(crate) async fn hook_doubles(stage: &Stage) -> Verdict {
    let answer = hooked(stage, "hook/patch-copies", 5).await;
    if answer.code == 0 || answer.code == 201 {
        Err(format!("answered {}", answer.brief()))
    } else {
        Ok(answer.brief())
    }
}

/// Redirected to a place where the server has credentials, or whose answer the writer would see.
pub(crate) async fn hook_redirects(stage: &Stage) -> Verdict {
    let answer = hooked(stage, "hook/redirect", 5).await;
    if !stage.hostile.seen("/stolen").is_empty() {
        return Err("the redirect is followed".to_owned());
    }
    if answer.code == 201 { Err("taken for consent".to_owned()) } else { Ok(answer.brief()) }
}

pub(crate) async fn hook_never_ends(stage: &Stage) -> Verdict {
    let answer = hooked(stage, "hook/endless", 3).await;
    if answer.code == 201 || answer.code == 0 {
        Err(format!("answered {}", answer.brief()))
    } else {
        Ok(answer.brief())
    }
}

pub(crate) async fn hook_is_silent(stage: &Stage) -> Verdict {
    let answer = hooked(stage, "hook/silent", 2).await;
    if answer.code == 201 || answer.code == 0 {
        Err(format!("answered {}", answer.brief()))
    } else {
        Ok(answer.brief())
    }
}

/// It moves the object to another namespace, where its writer may not write.
pub(crate) async fn hook_moves(stage: &Stage) -> Verdict {
    let answer = hooked(stage, "hook/other-name", 5).await;
    let planted = stage.plane.calm.get("root", "api/v1/namespaces/other/configmaps").await;
    if planted.text().contains("hook-other-name") {
        return Err("the object was written to another namespace".to_owned());
    }
    if answer.code == 0 { Err(answer.brief()) } else { Ok(answer.brief()) }
}

pub(crate) async fn hook_answers_for_another(stage: &Stage) -> Verdict {
    let answer = hooked(stage, "hook/other-uid", 5).await;
    if answer.code == 201 {
        Err("an answer to another question is taken".to_owned())
    } else {
        Ok(answer.brief())
    }
}

pub(crate) async fn hook_warns(stage: &Stage) -> Verdict {
    let answer = hooked(stage, "hook/many-warnings", 5).await;
    if answer.code == 0 || answer.head.len() > 300_000 {
        return Err(format!("a head of {} bytes: {}", answer.head.len(), answer.brief()));
    }
    Ok(format!("a head of {} bytes", answer.head.len()))
}

/// An answer within its limit that becomes a hundred times as much.
pub(crate) async fn hook_parts(stage: &Stage) -> Verdict {
    let answer = hooked(stage, "hook/dense", 20).await;
    if answer.code == 201 || answer.code == 0 {
        Err(format!("answered {}", answer.brief()))
    } else {
        Ok(answer.brief())
    }
}

/// A conversion that gives an object another name.
pub(crate) async fn conversion_renames(stage: &Stage) -> Verdict {
    let answer = converted(stage, "converted", "hook/renames").await?;
    if answer.text().contains("somebody-else") && answer.code == 200 {
        Err("another object's name is shown".to_owned())
    } else {
        Ok(answer.brief())
    }
}

/// The same for a conversion.
pub(crate) async fn conversion_parts(stage: &Stage) -> Verdict {
    converted(stage, "densely", "hook/dense").await?.one_of(&[500])
}

/// Has a hostile webhook convert one object; returns the answer to its reader.
async fn converted(stage: &Stage, kind: &str, part: &str) -> Result<Answer, String> {
    let mut object =
        definition(kind, json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    let mut second = object["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    object["spec"]["versions"].as_array_mut().expect("versions").push(second);
    object["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": stage.hostile.hook(part)}});
    stage.plane.door.post_patiently("definer", DEFINITIONS, &object).await.one_of(&[201])?;
    let path = format!("apis/attack.example.com/v1/namespaces/tenant/{kind}");
    stage.plane.calm.until("root", &path, |answer| answer.code == 200).await;
    let item =
        json!({"apiVersion": "attack.example.com/v1", "kind": kind, "metadata": {"name": "me"}, "spec": {}});
    stage.plane.door.post("definer", &path, &item).await.one_of(&[201])?;
    let other = format!("apis/attack.example.com/v2/namespaces/tenant/{kind}/me");
    let answer = stage.plane.door.get("definer", &other).await;
    let path = format!("{DEFINITIONS}/{kind}.attack.example.com");
    stage.plane.calm.send("root", "DELETE", &path, String::new()).await;
    Ok(answer)
}

/// Registers the hostile server as an aggregated one.
async fn aggregated(stage: &Stage) -> String {
    let port = stage.hostile.address.port();
    let service = json!({"metadata": {"name": "things"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}});
    stage.plane.make("api/v1/namespaces/tenant/services", &service).await;
    let registration = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": format!("v1.{GROUP}")},
        "spec": {"group": GROUP, "version": "v1", "insecureSkipTLSVerify": true, "groupPriorityMinimum": 1500, "versionPriority": 20,
            "service": {"name": "things", "namespace": "tenant", "port": port}}});
    let services = "apis/apiregistration.k8s.io/v1/apiservices";
    stage.plane.make(services, &registration).await;
    let path = format!("{services}/v1.{GROUP}");
    let available = |answer: &Answer| {
        let conditions = answer.json()["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Available" && condition["status"] == "True")
    };
    let answer = stage.plane.calm.until("root", &path, available).await;
    assert!(available(&answer), "{}", answer.text());
    format!("apis/{GROUP}/v1")
}

pub(crate) async fn aggregated_redirects(stage: &Stage) -> Verdict {
    let base = aggregated(stage).await;
    for method in ["GET", "POST", "DELETE"] {
        let answer =
            stage.plane.door.send("definer", method, &format!("{base}/redirect"), String::new()).await;
        if answer.header("location").is_some() || (300..400).contains(&answer.code) {
            return Err(format!("{method}: the client is sent to {:?}", answer.header("location")));
        }
    }
    if stage.hostile.seen("/stolen").is_empty() {
        Ok("not passed on, not followed".to_owned())
    } else {
        Err("followed".to_owned())
    }
}

pub(crate) async fn aggregated_cuts(stage: &Stage) -> Verdict {
    let base = aggregated(stage).await;
    let answer = stage.plane.door.get("definer", &format!("{base}/cut")).await;
    if answer.code == 200 && answer.complete {
        Err("half an answer looks complete".to_owned())
    } else {
        Ok(format!("incomplete, or {}", answer.code))
    }
}

/// It never answers: the request must end all the same.
pub(crate) async fn aggregated_is_silent(stage: &Stage) -> Verdict {
    let base = aggregated(stage).await;
    let sent = request("definer", "GET", &format!("{base}/silent"), &[], b"");
    let answer = stage.plane.door.raw_within(sent, testkit::slowed(Duration::from_secs(75))).await;
    if answer.code >= 500 {
        Ok(answer.brief())
    } else {
        Err(format!("held for more than a minute: {}", answer.brief()))
    }
}

pub(crate) async fn aggregated_never_ends(stage: &Stage) -> Verdict {
    let base = aggregated(stage).await;
    let mut kept = Vec::new();
    for _ in 0..10 {
        let mut stream = stage.plane.door.tls("http/1.1").await.map_err(|error| error.to_string())?;
        let _ = stream.write_all(&request("definer", "GET", &format!("{base}/endless"), &[], b"")).await;
        kept.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok("ten endless answers that nobody reads".to_owned())
}

/// An upgrade that the other server refuses leaves no tunnel behind.
pub(crate) async fn aggregated_refuses_upgrades(stage: &Stage) -> Verdict {
    let base = aggregated(stage).await;
    let mut stream = stage.plane.door.tls("http/1.1").await.map_err(|error| error.to_string())?;
    let headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")];
    let _ = stream.write_all(&request("definer", "POST", &format!("{base}/refuses"), &headers, b"")).await;
    let mut seen = vec![0; 4096];
    let _ = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut seen)).await;
    let second = "GET /apis/as-somebody-else HTTP/1.1\r\nHost: x\r\nX-Remote-User: root\r\nX-Remote-Group: system:masters\r\n\r\n";
    let _ = stream.write_all(second.as_bytes()).await;
    let _ = stream.flush().await;
    // Our own refusal names the path too; what counts is what the other server saw.
    let mut more = vec![0; 4096];
    let _ = tokio::time::timeout(Duration::from_secs(3), stream.read(&mut more)).await;
    if stage.hostile.tunnelled().contains("as-somebody-else") {
        return Err("the second request reached the other server as written".to_owned());
    }
    Ok("no tunnel".to_owned())
}

/// The caller's own identity headers do not reach the other server.
pub(crate) async fn aggregated_identity(stage: &Stage) -> Verdict {
    let base = aggregated(stage).await;
    for headers in [
        &[("X-Remote-User", "root"), ("X-Remote-Group", "system:masters"), ("X-Remote-Extra-Scopes", "all")]
            [..],
        &[("x-remote-user", "root"), ("Connection", "close, X-Remote-User, X-Remote-Group")],
        &[("X_Remote_User", "root"), ("X-Remote-Uid", "0")],
    ] {
        let answer = stage.plane.door.get_with("definer", &format!("{base}/things"), headers).await;
        answer.one_of(&[200])?;
        let told = answer.json();
        if told["users"] != json!(["definer"]) || told["groups"].to_string().contains("masters") {
            return Err(format!("{headers:?}: {told}"));
        }
    }
    Ok("told the caller's name, once".to_owned())
}

/// Its discovery documents do not end; everybody else's are there.
pub(crate) async fn aggregated_discovery(stage: &Stage) -> Verdict {
    aggregated(stage).await;
    for path in ["apis", "api/v1", "apis/apps/v1"] {
        stage.plane.door.get_with("nobody", path, &[("Accept", "application/json")]).await.one_of(&[200])?;
    }
    register(stage, "endless").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let answer = stage.plane.door.get("nobody", "apis").await.one_of(&[200]);
    unregister(stage, "endless").await;
    answer
}

const REGISTRATIONS: &str = "apis/apiregistration.k8s.io/v1/apiservices";

/// Registers the hostile server for one more group, whose name says what it does when it is asked what it serves.
async fn register(stage: &Stage, group: &str) {
    let port = stage.hostile.address.port();
    let registration = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": format!("v1.{group}")},
        "spec": {"group": group, "version": "v1", "insecureSkipTLSVerify": true, "groupPriorityMinimum": 1500, "versionPriority": 20,
            "service": {"name": "things", "namespace": "tenant", "port": port}}});
    stage.plane.make(REGISTRATIONS, &registration).await;
}

async fn unregister(stage: &Stage, group: &str) {
    let path = format!("{REGISTRATIONS}/v1.{group}");
    stage.plane.calm.send("root", "DELETE", &path, String::new()).await;
}

/// Its discovery document becomes a hundred times its bytes.
pub(crate) async fn aggregated_parts(stage: &Stage) -> Verdict {
    aggregated(stage).await;
    register(stage, "dense").await;
    let asked = asked(stage, "/apis/dense/v1", Duration::from_secs(4)).await;
    unregister(stage, "dense").await;
    asked
}

/// Its discovery document has a million resources; what follows from others' definitions goes on meanwhile.
pub(crate) async fn aggregated_long_discovery(stage: &Stage) -> Verdict {
    aggregated(stage).await;
    register(stage, "long").await;
    let asked = asked(stage, "/apis/long/v1", Duration::from_secs(2)).await;
    let object = definition("meanwhile", json!({"type": "object"}));
    let made = stage.plane.door.post_patiently("definer", DEFINITIONS, &object).await.one_of(&[201]);
    let path = "apis/attack.example.com/v1/namespaces/tenant/meanwhile";
    let served = stage.plane.calm.until("root", path, |answer| answer.code == 200).await;
    unregister(stage, "long").await;
    let definition = format!("{DEFINITIONS}/meanwhile.attack.example.com");
    stage.plane.calm.send("root", "DELETE", &definition, String::new()).await;
    made?;
    served.one_of(&[200]).map_err(|seen| format!("a new kind is not served: {seen}"))?;
    asked
}

/// Registers the hostile server as a member; `part` says what it does.
async fn cluster(stage: &Stage, name: &str, part: &str) {
    let secret = json!({"metadata": {"name": name}, "stringData": {"token": format!("token-of-{name}"), "caBundle": ""}});
    stage.plane.make("api/v1/namespaces/karmada-cluster/secrets", &secret).await;
    let reference = json!({"namespace": "karmada-cluster", "name": name});
    let object = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
        "spec": {"syncMode": "Push", "apiEndpoint": stage.hostile.url(part), "insecureSkipTLSVerification": true,
            "secretRef": reference, "impersonatorSecretRef": reference}});
    stage.plane.make(CLUSTERS, &object).await;
}

async fn leave(stage: &Stage, name: &str) {
    stage.plane.calm.send("root", "DELETE", &format!("{CLUSTERS}/{name}"), String::new()).await;
    stage
        .plane
        .calm
        .patch("root", &format!("{CLUSTERS}/{name}"), "merge", r#"{"metadata":{"finalizers":null}}"#)
        .await;
}

/// Waits until the hostile member has been asked for something, and gives it time to answer. A member that was never asked
/// has shown nothing.
async fn asked(stage: &Stage, path: &str, time: Duration) -> Verdict {
    let began = Instant::now();
    while stage.hostile.seen(path).is_empty() {
        if began.elapsed() > crate::wire::patience() {
            return Err("the member was never asked".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(time).await;
    Ok(format!("asked {} times", stage.hostile.seen(path).len()))
}

/// Its lists do not end.
pub(crate) async fn member_never_ends(stage: &Stage) -> Verdict {
    cluster(stage, "endless", "endless").await;
    let asked = asked(stage, "/endless/", Duration::from_secs(8)).await;
    leave(stage, "endless").await;
    asked
}

/// Lists of all clusters, many at once, when the list of one does not end and that of another is made to be costly.
pub(crate) async fn members_never_end(stage: &Stage) -> Verdict {
    cluster(stage, "endless", "endless").await;
    cluster(stage, "zeros", "zeros").await;
    let path = format!("{CLUSTERS}/*/proxy/api/v1/pods");
    let answers = join_all((0..20).map(|_| stage.plane.door.get("walker", &path))).await;
    leave(stage, "endless").await;
    leave(stage, "zeros").await;
    if stage.hostile.seen("/endless/api/v1/pods").is_empty() || stage.hostile.seen("/zeros/").is_empty() {
        return Err("the members were never asked".to_owned());
    }
    let mut codes = Vec::new();
    for answer in &answers {
        answer.one_of(&[200, 404, 429])?;
        codes.push(answer.code);
    }
    codes.sort_unstable();
    Ok(format!("{codes:?}"))
}

/// Its answers unpack to a gigabyte each.
pub(crate) async fn member_bombs(stage: &Stage) -> Verdict {
    cluster(stage, "bomb", "bomb").await;
    let asked = asked(stage, "/bomb/", Duration::from_secs(4)).await;
    leave(stage, "bomb").await;
    asked
}

/// Its answers are nested without end.
pub(crate) async fn member_nests(stage: &Stage) -> Verdict {
    cluster(stage, "deep", "deep").await;
    let asked = asked(stage, "/deep/", Duration::from_secs(3)).await;
    leave(stage, "deep").await;
    asked
}

/// Its answers are within the limits of size, and become a hundred times as much.
pub(crate) async fn member_parts(stage: &Stage) -> Verdict {
    cluster(stage, "parts", "parts").await;
    let asked = asked(stage, "/parts/", Duration::from_secs(8)).await;
    let path = format!("{CLUSTERS}/*/proxy/api/v1/pods");
    let answers = join_all((0..10).map(|_| stage.plane.door.get("walker", &path))).await;
    leave(stage, "parts").await;
    for answer in &answers {
        answer.one_of(&[200, 404, 429])?;
    }
    asked
}

/// It sends the control plane elsewhere, token and all; or its users, who would follow with their own.
pub(crate) async fn member_redirects(stage: &Stage) -> Verdict {
    cluster(stage, "redirect", "redirect").await;
    cluster(stage, "elsewhere", "elsewhere").await;
    let within = stage.plane.door.get("walker", &format!("{CLUSTERS}/elsewhere/proxy/api/v1/pods")).await;
    leave(stage, "elsewhere").await;
    let proxy = format!("{CLUSTERS}/redirect/proxy/api/v1/pods");
    let answer = stage.plane.door.get("walker", &proxy).await;
    let headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")];
    let sent = request("walker", "POST", &format!("{proxy}/x/exec"), &headers, b"");
    let upgraded = stage.plane.door.raw_within(sent, Duration::from_secs(5)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    leave(stage, "redirect").await;
    if !stage.hostile.seen("/stolen").is_empty() {
        return Err("the redirect is followed, with credentials".to_owned());
    }
    for answer in [&answer, &upgraded] {
        let sends_away = answer.head.to_lowercase().lines().any(|line| line.starts_with("location:"));
        if sends_away || answer.text().contains("stolen") {
            return Err(format!("the caller is sent to another host: {}", answer.brief()));
        }
    }
    within.one_of(&[302])?;
    Ok(format!("not followed; {} and {}", answer.code, upgraded.code))
}

/// Paths through the proxy that lead out of it.
pub(crate) async fn proxy_paths(stage: &Stage) -> Verdict {
    cluster(stage, "mirror", "mirror").await;
    let base = format!("/{CLUSTERS}/mirror/proxy");
    for path in [
        "/../../../../../api/v1/secrets",
        "/api/v1/../../../x",
        "/%2e%2e/%2e%2e/x",
        "/api/..%2f..%2fx",
        "/./../x",
        "/a/../b",
    ] {
        let sent = request("walker", "GET", &format!("{base}{path}"), &[], b"");
        let answer = stage.plane.door.raw_within(sent, Duration::from_secs(10)).await;
        let climbed = stage.hostile.seen("").iter().any(|seen| {
            let plain = seen.path.to_lowercase().replace("%2e", ".").replace("%2f", "/");
            plain.contains("/../") || plain.ends_with("/..") || plain.contains("/./")
        });
        if climbed {
            leave(stage, "mirror").await;
            return Err(format!("{path} reaches the member as it is ({})", answer.code));
        }
    }
    leave(stage, "mirror").await;
    Ok("no such segment reaches the member".to_owned())
}

/// The member is told who asks: once, and whole.
pub(crate) async fn proxy_identity(stage: &Stage) -> Verdict {
    cluster(stage, "witness", "witness").await;
    let proxy = format!("{CLUSTERS}/witness/proxy/api");
    for headers in [
        &[("X-Remote-User", "root"), ("X-Remote-Group", "system:masters")][..],
        &[("Connection", "close, Impersonate-User, Impersonate-Group")],
        &[("Connection", "Authorization, close")],
        &[("Impersonate-Uid", "0")],
        &[("Impersonate-Extra-Scopes", "all")],
    ] {
        stage.plane.door.get_with("walker", &proxy, headers).await;
    }
    let rights =
        json!([{"apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"], "verbs": ["*"]}]);
    stage.plane.grant("jörg", None, "foreign-walker", Some(rights)).await;
    let certificate = stage.plane.certificate(DnValue::Utf8String("jörg".to_owned()), &["größe"]);
    let foreign = stage.plane.door.clone().with(certificate).get("", &proxy).await;
    let asked: Vec<_> =
        stage.hostile.seen("/witness/api").into_iter().filter(|seen| seen.path.ends_with("/api")).collect();
    leave(stage, "witness").await;
    for seen in &asked {
        let users = seen.header("impersonate-user");
        let own = seen.header("authorization") == ["Bearer token-of-witness"];
        // The control plane's own discovery takes on nobody's name and comes with the cluster's own token.
        let from_proxy = seen.head.to_lowercase().contains("host") && users.len() == 1;
        if users.len() > 1
            || seen.head.to_lowercase().contains("system:masters")
            || (from_proxy && users[0].is_empty())
            || !own
        {
            return Err(format!("the member sees {users:?}"));
        }
        if seen.header("impersonate-uid") == ["0"] || !seen.header("impersonate-extra-scopes").is_empty() {
            return Err("identity headers of the caller reach the member".to_owned());
        }
    }
    let named: Vec<String> = asked.iter().flat_map(|seen| seen.header("impersonate-user")).collect();
    let whole = named
        .iter()
        .filter(|name| name.contains("rg"))
        .all(|name| name.ends_with("rg") && name.starts_with('j'));
    if foreign.code == 200 && !named.iter().any(|name| name.starts_with('j')) {
        return Err("a request of a user with a foreign name went on without a name".to_owned());
    }
    if whole {
        Ok(format!("{} requests, each with one name", asked.len()))
    } else {
        Err(format!("{named:?}"))
    }
}

/// A Cluster that names somebody else's Secret has its token sent to the registrar's own server.
pub(crate) async fn stolen_secret(stage: &Stage) -> Verdict {
    let secret = json!({"metadata": {"name": "others-token"}, "stringData": {"token": "precious-token", "caBundle": ""}});
    stage.plane.make("api/v1/namespaces/other/secrets", &secret).await;
    let reference = json!({"namespace": "other", "name": "others-token"});
    let object = |name: &str, spec: Value| {
        let mut object = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {"syncMode": "Push", "apiEndpoint": stage.hostile.url("thief"), "insecureSkipTLSVerification": true}});
        for (key, value) in spec.as_object().into_iter().flatten() {
            object["spec"][key] = value.clone();
        }
        object
    };
    let door = &stage.plane.door;
    let first = door.post("registrar", CLUSTERS, &object("thief", json!({"secretRef": reference}))).await;
    let second = door
        .post(
            "registrar",
            CLUSTERS,
            &object("thief2", json!({"secretRef": reference, "impersonatorSecretRef": reference})),
        )
        .await;
    // Or first without, and then by a patch.
    door.post("registrar", CLUSTERS, &object("thief3", json!({}))).await;
    let patch = json!({"spec": {"secretRef": reference, "impersonatorSecretRef": reference}}).to_string();
    let third = door.patch("registrar", &format!("{CLUSTERS}/thief3"), "merge", patch).await;
    for name in ["thief2", "thief3"] {
        door.get("walker", &format!("{CLUSTERS}/{name}/proxy/api")).await;
    }
    // A member that comes after them is sent its own token; what would be sent to the others was sent by then.
    cluster(stage, "witness", "witness").await;
    let witness = asked(stage, "/witness", Duration::from_secs(1)).await;
    let sent = stage.hostile.seen("/witness").iter().any(|seen| seen.head.contains("token-of-witness"));
    let stolen = stage.hostile.seen("/thief").iter().any(|seen| seen.head.contains("precious-token"));
    for name in ["thief", "thief2", "thief3", "witness"] {
        leave(stage, name).await;
    }
    witness?;
    if stolen {
        Err("the token was sent to the registrar's server".to_owned())
    } else if !sent {
        Err("no member is sent its token any more".to_owned())
    } else {
        Ok(format!("{}, {}, {}", first.code, second.code, third.code))
    }
}

/// Members that never answer delay nobody.
pub(crate) async fn member_is_silent(stage: &Stage) -> Verdict {
    for number in 0..10 {
        cluster(stage, &format!("silent-{number}"), "silent").await;
    }
    let answer = stage
        .plane
        .door
        .raw_within(
            request("walker", "GET", &format!("{CLUSTERS}/silent-0/proxy/api/v1/pods"), &[], b""),
            Duration::from_secs(2),
        )
        .await;
    let joined = stage.member().await;
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(joined.client.clone());
    let listed = namespaces.list(&Default::default()).await.map_err(|error| error.to_string())?;
    for number in 0..10 {
        leave(stage, &format!("silent-{number}")).await;
    }
    Ok(format!("a good member joins meanwhile ({} namespaces); {}", listed.items.len(), answer.brief()))
}
