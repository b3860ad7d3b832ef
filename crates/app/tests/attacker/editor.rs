//! Somebody who may edit one namespace: patches, depths, times, lists, and ways into another namespace.

use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::hostile::{depth_patch, doubling_patch};
use crate::plane::SECRET;
use crate::stage::{Stage, Verdict};
use crate::wire::{Answer, Sent, patience, request};

const MAPS: &str = "api/v1/namespaces/tenant/configmaps";

async fn map(stage: &Stage, name: &str) -> String {
    let made =
        stage.plane.door.post("editor", MAPS, &json!({"metadata": {"name": name}, "data": {"a": "b"}})).await;
    assert!(matches!(made.code, 201 | 409), "{}", made.brief());
    format!("{MAPS}/{name}")
}

fn whole(answer: &Answer) -> Verdict {
    answer.refused()
}

/// 500 levels, copied eight times into their own innermost one: 128,000.
pub(crate) async fn patch_depth_by_copies(stage: &Stage) -> Verdict {
    let path = map(stage, "deepened").await;
    whole(&stage.plane.door.patch("editor", &path, "json", depth_patch("/data/x")).await)
}

/// The same without a copy: each `add` goes deeper.
pub(crate) async fn patch_depth_by_adds(stage: &Stage) -> Verdict {
    let path = map(stage, "added").await;
    let nested = format!("{}{}", "[".repeat(400), "]".repeat(400));
    let mut operations = vec![format!(r#"{{"op":"add","path":"/metadata/x","value":{nested}}}"#)];
    for round in 1..60 {
        let inner = format!("/metadata/x{}/-", "/0".repeat(400 * round - 1));
        operations.push(format!(r#"{{"op":"add","path":"{inner}","value":{nested}}}"#));
    }
    whole(&stage.plane.door.patch("editor", &path, "json", format!("[{}]", operations.join(","))).await)
}

pub(crate) async fn patch_doubling(stage: &Stage) -> Verdict {
    let path = map(stage, "doubled").await;
    whole(&stage.plane.door.patch("editor", &path, "json", doubling_patch("/data", 40)).await)
}

pub(crate) async fn patch_operations(stage: &Stage) -> Verdict {
    let path = map(stage, "operated").await;
    let operations = vec![r#"{"op":"add","path":"/data/a","value":"c"}"#; 20_000].join(",");
    stage.plane.door.patch("editor", &path, "json", format!("[{operations}]")).await.one_of(&[413])
}

/// The other three kinds of patch, as deep as a body allows.
pub(crate) async fn deep_patches(stage: &Stage) -> Verdict {
    let path = map(stage, "patched").await;
    let door = &stage.plane.door;
    let nested = format!("{}1{}", "{\"a\":".repeat(200_000), "}".repeat(200_000));
    for kind in ["merge", "strategic-merge"] {
        let body = format!("{{\"data\":{nested}}}");
        door.patch("editor", &path, kind, body).await.refused().map_err(|seen| format!("{kind}: {seen}"))?;
    }
    let apply = format!("{path}?fieldManager=x&force=true");
    let body = format!("{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"data\":{nested}}}");
    door.patch("editor", &apply, "apply", body).await.refused().map_err(|seen| format!("apply: {seen}"))?;
    let aliases = vec!["*a"; 2_000].join(",");
    let bomb = format!("apiVersion: v1\nkind: ConfigMap\na: &a {}\nb: [{aliases}]\n", "x".repeat(1 << 20));
    // The field is unknown; what counts is that nobody pays for the aliases.
    let answer = door.patch("editor", &apply, "apply", bomb).await;
    if answer.code == 0 || answer.code == 200 {
        Err(format!("answered {}", answer.brief()))
    } else {
        Ok(answer.brief())
    }
}

/// Strategic merge directives that do not fit.
pub(crate) async fn strategic_directives(stage: &Stage) -> Verdict {
    let path = map(stage, "directed").await;
    for patch in [
        json!({"$patch": "delete"}),
        json!({"$patch": 5}),
        json!({"data": {"$patch": "nonsense"}}),
        json!({"metadata": {"$setElementOrder/ownerReferences": [{"uid": "x"}, 5, null]}}),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": {"a": 1}}}),
        json!({"metadata": {"ownerReferences": [{"$patch": "replace"}, {"uid": {"a": 1}}]}}),
        json!({"$retainKeys": [[], {}], "data": null}),
    ] {
        let answer = stage.plane.door.patch("editor", &path, "strategic-merge", patch.to_string()).await;
        // Some are 500 in kube-apiserver, too.
        if answer.code == 0 {
            return Err(format!("{patch}: {}", answer.brief()));
        }
    }
    Ok("answered each".to_owned())
}

/// What is accepted can be read, patched and deleted, and its finalizers count.
pub(crate) async fn accepted_depths(stage: &Stage) -> Verdict {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "depths.attack.example.com"},
        "spec": {"group": "attack.example.com", "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
            "names": {"plural": "depths", "singular": "depth", "kind": "Depth", "listKind": "DepthList"}}});
    stage.plane.make("apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    let base = "apis/attack.example.com/v1/namespaces/tenant/depths";
    stage.plane.calm.until("root", base, |answer| answer.code == 200).await;
    let mut accepted = Vec::new();
    for depth in [60, 100, 120, 130, 200, 300, 500, 700, 2_000, 20_000] {
        let name = format!("depth-{depth}");
        let body = format!(
            r#"{{"apiVersion":"attack.example.com/v1","kind":"Depth","metadata":{{"name":"{name}","finalizers":["attack.example.com/wait"]}},"spec":{}{}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        );
        let made = stage.plane.door.send("definer", "POST", base, body).await;
        if made.code != 201 {
            made.refused()?;
            continue;
        }
        let path = format!("{base}/{name}");
        let door = &stage.plane.door;
        door.get("definer", &path).await.one_of(&[200]).map_err(|seen| format!("{depth}: get {seen}"))?;
        for (kind, patch) in [
            ("merge", r#"{"metadata":{"labels":{"a":"b"}}}"#),
            ("json", r#"[{"op":"add","path":"/metadata/labels/c","value":"d"}]"#),
        ] {
            let patched = door.patch("definer", &path, kind, patch).await;
            patched
                .one_of(&[200])
                .map_err(|seen| format!("{depth} levels are accepted and {kind} patch {seen}"))?;
        }
        door.send("definer", "DELETE", &path, String::new()).await.one_of(&[200, 202])?;
        door.get("definer", &path)
            .await
            .one_of(&[200])
            .map_err(|_| format!("at {depth} levels the finalizer is not seen"))?;
        door.patch("definer", &path, "merge", r#"{"metadata":{"finalizers":null}}"#).await.one_of(&[200])?;
        accepted.push(depth.to_string());
    }
    Ok(format!("accepted and good: {}", accepted.join(", ")))
}

/// Times beyond all calendars; afterwards namespaces still go.
pub(crate) async fn grace_periods(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let pods = "api/v1/namespaces/doomed/pods";
    stage.plane.make("api/v1/namespaces", &json!({"metadata": {"name": "doomed"}})).await;
    stage.plane.grant("editor", Some("doomed"), "edit", None).await;
    for grace in [i64::MAX, i64::MAX - 1, i64::MAX / 1000, 9_223_372_036] {
        let pod = json!({"metadata": {"name": format!("pod-{grace}"), "finalizers": ["attack.example.com/wait"]},
            "spec": {"terminationGracePeriodSeconds": grace, "nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
        let made = door.post("editor", pods, &pod).await;
        if made.code != 201 {
            made.refused()?;
        }
    }
    let answer = door.send("editor", "DELETE", &format!("{pods}/pod-{}", i64::MAX), String::new()).await;
    answer.one_of(&[200, 202, 400, 404, 409, 422]).map_err(|seen| format!("delete: {seen}"))?;
    let options = json!({"gracePeriodSeconds": i64::MAX});
    let answer = door.send("editor", "DELETE", &format!("{pods}/pod-{}", i64::MAX - 1), &options).await;
    answer.one_of(&[200, 202, 400, 404, 409, 422]).map_err(|seen| format!("delete with options: {seen}"))?;
    stage.plane.calm.send("root", "DELETE", "api/v1/namespaces/doomed", String::new()).await;
    // The controllers go on for everybody else.
    tokio::time::sleep(Duration::from_millis(500)).await;
    stage.plane.make("api/v1/namespaces", &json!({"metadata": {"name": "peaceful"}})).await;
    stage.plane.make("api/v1/namespaces/peaceful/configmaps", &json!({"metadata": {"name": "a"}})).await;
    stage.plane.calm.send("root", "DELETE", "api/v1/namespaces/peaceful", String::new()).await;
    let gone =
        stage.plane.calm.until("root", "api/v1/namespaces/peaceful", |answer| answer.code == 404).await;
    if gone.code != 404 {
        return Err("after it no namespace is deleted any more".to_owned());
    }
    let owned = json!({"metadata": {"name": "orphan", "ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "nowhere", "uid": "11111111-1111-1111-1111-111111111111"}]}});
    stage.plane.make("api/v1/namespaces/quiet/configmaps", &owned).await;
    let path = "api/v1/namespaces/quiet/configmaps/orphan";
    let gone = stage.plane.calm.until("root", path, |answer| answer.code == 404).await;
    if gone.code == 404 {
        Ok("others' namespaces and garbage go as ever".to_owned())
    } else {
        Err("garbage stays".to_owned())
    }
}

/// Numbers at the edge in every option.
pub(crate) async fn options(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    for query in [
        "limit=9223372036854775807",
        "limit=-1",
        "limit=99999999999999999999",
        "limit=1e30",
        "timeoutSeconds=9223372036854775807",
        "timeoutSeconds=-9223372036854775808",
        "resourceVersion=18446744073709551615",
        "resourceVersion=-1",
        "resourceVersion=9223372036854775807&resourceVersionMatch=Exact",
        "resourceVersionMatch=Nonsense",
        "resourceVersion=1&resourceVersionMatch=NotOlderThan&limit=1",
        "resourceVersion=999999999999&resourceVersionMatch=NotOlderThan&timeoutSeconds=1",
    ] {
        let sent = request("editor", "GET", &format!("{MAPS}?{query}"), &[], b"");
        let answer = door.raw(sent).await;
        if answer.code == 0 || answer.code == 500 {
            return Err(format!("{query}: {}", answer.brief()));
        }
    }
    for query in
        ["timeoutSeconds=9223372036854775807", "timeoutSeconds=18446744073709551615", "timeoutSeconds=-5"]
    {
        let sent = request("editor", "GET", &format!("{MAPS}?watch=true&{query}"), &[], b"");
        let answer = door.begun(sent).await;
        if answer.code == 0 || answer.code == 500 {
            return Err(format!("watch {query}: {}", answer.brief()));
        }
    }
    Ok("answered each".to_owned())
}

/// A watch from a revision that does not exist yet is not a quiet success.
pub(crate) async fn future_watch(stage: &Stage) -> Verdict {
    let sent = request(
        "editor",
        "GET",
        &format!("{MAPS}?watch=true&resourceVersion=9000000000000&timeoutSeconds=4"),
        &[],
        b"",
    );
    let answer = stage.plane.door.raw(sent).await;
    if answer.code >= 400 || answer.text().contains("ERROR") {
        Ok(answer.brief())
    } else {
        Err(format!("answered {} and nothing is said", answer.brief()))
    }
}

pub(crate) async fn selectors(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let values = vec!["v"; 20_000].join(",");
    let many = (0..8_000).map(|n| format!("k{n}%3Dv")).collect::<Vec<_>>().join(",");
    for query in [
        format!("labelSelector=a+in+({values})"),
        format!("labelSelector={many}"),
        format!("labelSelector={}", "(".repeat(20_000)),
        format!("labelSelector={}", "%21".repeat(20_000)),
        format!("fieldSelector=metadata.name%3D{}", "x".repeat(100_000)),
        format!("fieldSelector={}", "metadata.name%3Dx,".repeat(5_000)),
        "fieldSelector=a%5C%5C%3Db%3D%3Dc".to_owned(),
        "labelSelector=%ff%fe".to_owned(),
    ] {
        let answer = door.get("editor", &format!("{MAPS}?{query}")).await;
        let short: String = query.chars().take(40).collect();
        answer.one_of(&[0, 200, 400, 414, 431]).map_err(|seen| format!("{short}: {seen}"))?;
    }
    Ok("answered each".to_owned())
}

/// A continue token is the client's to change: it must not lead elsewhere.
pub(crate) async fn forged_continue(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let encode = |value: Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string());
    for token in [
        encode(json!({"v": "meta.k8s.io/v1", "rv": 1, "start": "../other/\u{0}"})),
        encode(json!({"v": "meta.k8s.io/v1", "rv": -1, "start": "../../secrets/other/"})),
        encode(json!({"v": "meta.k8s.io/v1", "rv": i64::MAX, "start": "a"})),
        encode(json!({"v": "meta.k8s.io/v1", "rv": u64::MAX, "start": "a"})),
        encode(json!({"v": "meta.k8s.io/v1", "rv": 0, "start": ""})),
        encode(json!({"v": "meta.k8s.io/v1", "rv": 5, "start": "../"})),
        encode(json!({"v": "v9", "rv": 5, "start": "x".repeat(10_000)})),
        "AAAA".to_owned(),
        "%00%ff".to_owned(),
    ] {
        for limit in ["", "&limit=5"] {
            let answer = door.get("editor", &format!("{MAPS}?continue={token}{limit}")).await;
            // A revision beyond the present is 504, as everywhere.
            if answer.code == 500 || answer.code == 0 || answer.text().contains("\"namespace\":\"other\"") {
                return Err(format!("{token}: {}", answer.brief()));
            }
        }
    }
    Ok("never leads elsewhere".to_owned())
}

/// Names and namespaces that are paths.
pub(crate) async fn names(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    for name in ["../other/x", "..", ".", "a/b", "a%2fb", "a\u{0}b", "ä", "", "-", "a..b", "A"] {
        let answer = door.post("editor", MAPS, &json!({"metadata": {"name": name}})).await;
        answer.one_of(&[400, 422]).map_err(|seen| format!("{name:?}: {seen}"))?;
    }
    let long = "x".repeat(100_000);
    door.post("editor", MAPS, &json!({"metadata": {"name": long}})).await.one_of(&[400, 422])?;
    door.post("editor", MAPS, &json!({"metadata": {"generateName": "../x"}})).await.one_of(&[400, 422])?;
    let elsewhere = json!({"metadata": {"name": "planted", "namespace": "other"}});
    door.post("editor", MAPS, &elsewhere).await.one_of(&[400])?;
    let path = map(stage, "here").await;
    let moved = json!({"metadata": {"name": "here", "namespace": "other"}, "data": {}});
    door.send("editor", "PUT", &path, &moved).await.one_of(&[400])?;
    door.patch("editor", &path, "merge", r#"{"metadata":{"namespace":"other"}}"#)
        .await
        .one_of(&[400, 422])?;
    door.patch("editor", &path, "merge", r#"{"metadata":{"name":"elsewhere"}}"#).await.one_of(&[400, 422])?;
    door.patch("editor", &path, "merge", r#"{"kind":"Secret"}"#).await.one_of(&[400, 422])
}

/// Subresources that belong to somebody else.
pub(crate) async fn subresources(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let finalize = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}, "spec": {"finalizers": []}});
    door.send("editor", "PUT", "api/v1/namespaces/tenant/finalize", &finalize).await.one_of(&[403])?;
    for (method, path) in [
        ("PUT", "api/v1/namespaces/tenant/status"),
        ("POST", "api/v1/namespaces/kube-system/serviceaccounts/default/token"),
        ("POST", "api/v1/namespaces/other/serviceaccounts/default/token"),
        ("GET", "apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/secrets"),
        ("POST", "api/v1/namespaces/tenant/configmaps/a/token"),
        ("PUT", "api/v1/namespaces/tenant/secrets/a/exec"),
        ("GET", "api/v1/namespaces/other/secrets/treasure/scale"),
    ] {
        let answer = door.send("editor", method, path, String::from("{}")).await;
        if (200..300).contains(&answer.code) {
            return Err(format!("{method} {path}: {}", answer.brief()));
        }
    }
    Ok("refused each".to_owned())
}

/// Field managers by the hundred, and field sets that describe nothing.
pub(crate) async fn managed_fields(stage: &Stage) -> Verdict {
    let path = map(stage, "managed").await;
    let door = &stage.plane.door;
    for number in 0..60 {
        let apply = format!("{path}?fieldManager=m{number}&force=true");
        let body =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {format!("k{number}"): "x".repeat(200)}});
        door.patch("editor", &apply, "apply", body.to_string()).await.one_of(&[200, 413, 422])?;
    }
    let nested = format!("{}{{}}{}", "{\"f:a\":".repeat(5_000), "}".repeat(5_000));
    for fields in
        [nested.as_str(), "{\"k:{\\\"a\":{}}", "{\"v:\":{},\"i:99999999999999\":{}}", "5", "{\"\":{}}"]
    {
        let body = format!(
            r#"{{"metadata":{{"name":"managed","managedFields":[{{"manager":"x","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{fields}}}]}},"data":{{}}}}"#
        );
        let answer = door.send("editor", "PUT", &path, body).await;
        if answer.code == 0 || answer.code >= 500 {
            return Err(format!("{}: {}", &fields[..fields.len().min(40)], answer.brief()));
        }
    }
    door.get("editor", &path).await.one_of(&[200])
}

pub(crate) async fn large_objects(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let annotations = json!({"metadata": {"name": "annotated", "annotations": {"a": "x".repeat(300_000)}}});
    door.post("editor", MAPS, &annotations).await.one_of(&[422])?;
    let data: serde_json::Map<String, Value> = (0..200_000).map(|n| (format!("k{n}"), json!(""))).collect();
    let many = json!({"metadata": {"name": "many"}, "data": data});
    // As kube-apiserver says it.
    let answer = door.post("editor", MAPS, &many).await;
    if !answer.text().contains("request is too large") {
        answer.refused()?;
    }
    let finalizers: Vec<String> = (0..100_000).map(|n| format!("a.example.com/{n}")).collect();
    let body = json!({"metadata": {"name": "finalized", "finalizers": finalizers}});
    let answer = door.post("editor", MAPS, &body).await;
    if answer.text().contains("request is too large") {
        return Ok(answer.brief());
    }
    answer.one_of(&[201, 413, 422])
}

/// Sends a request four times at once, for all workers of a small machine. Whoever compares each with each does not answer in time.
async fn at_once(stage: &Stage, method: &str, path: &str, media: &'static str, body: &Value) -> Verdict {
    let text = body.to_string();
    let send = || stage.plane.door.send("editor", method, path, Sent::of(media, text.clone()));
    let answers = futures::future::join_all((0..4).map(|_| send())).await;
    match answers.iter().find(|answer| answer.code == 0) {
        Some(late) => Err(late.brief()),
        None => Ok(answers.first().map(Answer::brief).unwrap_or_default()),
    }
}

pub(crate) async fn many_finalizers(stage: &Stage) -> Verdict {
    let path = format!("{}?dryRun=All", map(stage, "finalizing").await);
    let finalizers: Vec<String> = (0..120_000).map(|number| format!("a.example.com/{number}")).collect();
    let patch = json!({"metadata": {"finalizers": finalizers}});
    at_once(stage, "PATCH", &path, "application/strategic-merge-patch+json", &patch).await
}

/// A custom object that has very many finalizers, and small patches that leave them alone.
pub(crate) async fn many_finalizers_of_a_policy(stage: &Stage) -> Verdict {
    let policies = "apis/policy.karmada.io/v1alpha1/namespaces/tenant/propagationpolicies";
    let path = format!("{policies}/finalizing");
    let finalizers: Vec<String> = (0..40_000).map(|number| format!("a.b/{number}")).collect();
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
        "metadata": {"name": "finalizing", "finalizers": finalizers},
        "spec": {"resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "nowhere"}],
            "placement": {"clusterAffinity": {"clusterNames": ["nowhere"]}}}});
    stage.plane.door.post_costly("editor", policies, &policy).await.one_of(&[201])?;
    let patch = json!({"metadata": {"labels": {"x": "1"}}});
    let seen = at_once(stage, "PATCH", &path, "application/merge-patch+json", &patch).await;
    stage.plane.calm.patch("root", &path, "merge", r#"{"metadata":{"finalizers":null}}"#).await;
    stage.plane.calm.send("root", "DELETE", &path, String::new()).await;
    seen
}

pub(crate) async fn many_owners(stage: &Stage) -> Verdict {
    let owner =
        |number: usize| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": number.to_string()});
    let owners: Vec<Value> = (0..45_000).map(owner).collect();
    let owned = json!({"metadata": {"name": "owned", "ownerReferences": owners}});
    at_once(stage, "POST", &format!("{MAPS}?dryRun=All"), "application/json", &owned).await
}

pub(crate) async fn many_mounts(stage: &Stage) -> Verdict {
    let volumes: Vec<Value> =
        (0..25_000).map(|number| json!({"name": format!("v{number}"), "emptyDir": {}})).collect();
    let mounts: Vec<Value> = (0..25_000)
        .map(|number| json!({"name": format!("v{number}"), "mountPath": format!("/{number}")}))
        .collect();
    let pod = json!({"metadata": {"name": "mounted"}, "spec": {"volumes": volumes,
        "containers": [{"name": "c", "image": "i", "volumeMounts": mounts}]}});
    at_once(stage, "POST", "api/v1/namespaces/tenant/pods?dryRun=All", "application/json", &pod).await
}

/// Node ports are given before anything is refused.
pub(crate) async fn many_ports(stage: &Stage) -> Verdict {
    let ports = vec![json!({"port": 1}); 150_000];
    let service = json!({"metadata": {"name": "ported"}, "spec": {"type": "NodePort", "ports": ports}});
    at_once(stage, "POST", "api/v1/namespaces/tenant/services?dryRun=All", "application/json", &service).await
}

/// Asks for the deletion of many large objects, without meaning it.
pub(crate) async fn dry_collections(stage: &Stage) -> Verdict {
    let name = |number: usize| format!("doomed-{number}");
    for number in 0..8 {
        let map = json!({"metadata": {"name": name(number)}, "data": {"x": "x".repeat(500_000)}});
        stage.plane.make(MAPS, &map).await;
    }
    let mut seen = Err("nothing was asked".to_owned());
    for media in ["application/yaml", "application/json"] {
        let path = format!("{MAPS}?dryRun=All");
        let delete = request("editor", "DELETE", &path, &[("accept", media)], b"");
        // Others of this user were counted before: it may have to wait for its turn.
        let ask = || stage.plane.door.raw_within(delete.clone(), 4 * patience());
        let answers = futures::future::join_all((0..8).map(|_| ask())).await;
        // Some are told to come back later. Answers are built when others leave the processor time for it: on a machine that is
        // busy enough, not in time.
        let odd = answers.iter().find(|answer| !matches!(answer.code, 200 | 429 | 504));
        seen = odd.map_or_else(|| Ok("answered or put off".to_owned()), |odd| Err(odd.brief()));
        if seen.is_err() {
            break;
        }
    }
    for number in 0..8 {
        let path = format!("{MAPS}/{}", name(number));
        stage.plane.calm.send("root", "DELETE", &path, String::new()).await;
    }
    seen
}

/// An owner in another namespace, and a deletion that waits for others.
pub(crate) async fn owners(stage: &Stage) -> Verdict {
    let victim = stage.plane.calm.get("root", "api/v1/namespaces/other/configmaps/victim").await;
    let uid = victim.at("/metadata/uid");
    let own = json!({"metadata": {"name": "thief", "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "victim",
        "uid": uid, "controller": true, "blockOwnerDeletion": true}]}});
    stage.plane.door.post("editor", MAPS, &own).await;
    let path = format!("{MAPS}/thief?propagationPolicy=Foreground");
    stage.plane.door.send("editor", "DELETE", &path, String::new()).await;
    // Garbage that comes later goes: whatever the collector does about the thief it has done by then.
    let later = json!({"metadata": {"name": "later-garbage", "ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "nowhere", "uid": "22222222-2222-2222-2222-222222222222"}]}});
    stage.plane.make(MAPS, &later).await;
    let later = format!("{MAPS}/later-garbage");
    stage
        .plane
        .calm
        .until("root", &later, |answer| answer.code == 404)
        .await
        .one_of(&[404])
        .map_err(|seen| format!("garbage stays: {seen}"))?;
    let still = stage.plane.calm.get("root", "api/v1/namespaces/other/configmaps/victim").await;
    if still.code == 200
        && still.at("/metadata/uid") == uid
        && still.json()["metadata"].get("deletionTimestamp").is_none()
    {
        Ok("the other's object is untouched".to_owned())
    } else {
        Err("the other's object is gone".to_owned())
    }
}

/// Addresses that lead the cluster to itself.
pub(crate) async fn endpoints(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    stage.plane.grant("editor", Some("tenant"), "slices", Some(json!([
        {"apiGroups": ["discovery.k8s.io", ""], "resources": ["endpointslices", "endpoints"], "verbs": ["*"]}]))).await;
    for address in
        ["127.0.0.1", "169.254.169.254", "224.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1", "fe80::1"]
    {
        let family = if address.contains(':') { "IPv6" } else { "IPv4" };
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s"},
            "addressType": family, "endpoints": [{"addresses": [address]}]});
        let answer =
            door.post("editor", "apis/discovery.k8s.io/v1/namespaces/tenant/endpointslices", &slice).await;
        answer.one_of(&[422]).map_err(|seen| format!("{address}: {seen}"))?;
    }
    Ok("422 each".to_owned())
}

/// An object that a policy locks is changed by no verb.
pub(crate) async fn locked_objects(stage: &Stage) -> Verdict {
    let path = map(stage, "locked").await;
    let door = &stage.plane.door;
    door.patch("editor", &path, "merge", r#"{"metadata":{"labels":{"locked":"yes"}}}"#)
        .await
        .one_of(&[200])?;
    let registration = "apis/admissionregistration.k8s.io/v1";
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "lock"},
        "spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["UPDATE", "DELETE"], "resources": ["configmaps"]}]},
            "validations": [{"expression": "!has(oldObject.metadata.labels) || !('locked' in oldObject.metadata.labels)", "message": "locked"}]}});
    stage.plane.make(&format!("{registration}/validatingadmissionpolicies"), &policy).await;
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "lock"}, "spec": {"policyName": "lock", "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tenant"}}}}});
    stage.plane.make(&format!("{registration}/validatingadmissionpolicybindings"), &binding).await;
    let touched = |n: usize| json!({"data": {"try": n.to_string()}}).to_string();
    let began = std::time::Instant::now();
    let mut number = 0;
    while began.elapsed() < patience() {
        number += 1;
        if door.patch("editor", &path, "merge", touched(number)).await.code == 422 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let before = door.get("editor", &path).await.at("/metadata/resourceVersion");
    let unlocked = json!({"metadata": {"name": "locked", "labels": {}}, "data": {"a": "c"}});
    door.send("editor", "PUT", &path, &unlocked).await;
    door.patch("editor", &path, "json", r#"[{"op":"remove","path":"/metadata/labels"}]"#).await;
    door.patch("editor", &path, "strategic-merge", r#"{"metadata":{"labels":null}}"#).await;
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"labels": {"locked": "no"}}});
    door.patch("editor", &format!("{path}?fieldManager=x&force=true"), "apply", applied.to_string()).await;
    door.patch("editor", &path, "merge", r#"{"metadata":{"finalizers":["a.example.com/x"]}}"#).await;
    door.send("editor", "DELETE", &path, String::new()).await;
    door.send("editor", "DELETE", &format!("{MAPS}?labelSelector=locked%3Dyes"), String::new()).await;
    let after = door.get("editor", &path).await;
    for resource in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
        stage
            .plane
            .calm
            .send("root", "DELETE", &format!("{registration}/{resource}/lock"), String::new())
            .await;
    }
    if after.code == 200 && after.at("/metadata/resourceVersion") == before {
        Ok("unchanged by put, four patches, delete and deletecollection".to_owned())
    } else {
        Err(format!("it was changed: {}", after.brief()))
    }
}

/// Another namespace's list through a table, a watch, or all namespaces.
pub(crate) async fn other_namespaces(stage: &Stage) -> Verdict {
    for path in [
        "api/v1/secrets",
        "api/v1/namespaces/other/secrets?watch=true&timeoutSeconds=1",
        "api/v1/secrets?fieldSelector=metadata.namespace%3Dtenant",
        "api/v1/namespaces/other/secrets?limit=1",
        "apis/rbac.authorization.k8s.io/v1/clusterroles",
        "api/v1/namespaces/other/secrets/treasure?pretty=true",
    ] {
        let answer = stage
            .plane
            .door
            .get_with("editor", path, &[("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")])
            .await;
        answer.one_of(&[403]).map_err(|seen| format!("{path}: {seen}"))?;
        if answer.text().contains(SECRET) {
            return Err(format!("{path} shows it"));
        }
    }
    Ok("403 each".to_owned())
}

/// Two hundred large bodies at once.
pub(crate) async fn many_large_writes(stage: &Stage) -> Verdict {
    let body =
        json!({"metadata": {"generateName": "large-"}, "data": {"x": "x".repeat(900_000)}}).to_string();
    let sends = (0..60)
        .map(|_| stage.plane.door.send("editor", "POST", MAPS, Sent::of("application/json", body.clone())));
    let codes: Vec<u16> = futures::future::join_all(sends).await.iter().map(|answer| answer.code).collect();
    stage.lighten().await;
    let made = codes.iter().filter(|code| **code == 201).count();
    let odd: Vec<&u16> = codes.iter().filter(|code| ![0, 201, 429].contains(code)).collect();
    if odd.is_empty() { Ok(format!("{made} of 60 written")) } else { Err(format!("{odd:?}")) }
}

/// Watches by the hundred on one connection that are opened and closed again and again.
pub(crate) async fn watch_churn(stage: &Stage) -> Verdict {
    for _ in 0..150 {
        let mut stream = stage.plane.door.tls("http/1.1").await.map_err(|error| error.to_string())?;
        let sent = request(
            "editor",
            "GET",
            &format!(
                "{MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
            ),
            &[],
            b"",
        );
        let _ = stream.write_all(&sent).await;
        let mut piece = [0; 100];
        let _ = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut piece)).await;
    }
    Ok("150 watches opened and dropped".to_owned())
}
