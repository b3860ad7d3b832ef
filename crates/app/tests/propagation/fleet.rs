//! The members as one cluster: reading, watching, changing and searching them through the control plane, and who may.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use http::Request;
use http_body_util::BodyExt;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testkit::{Kind, eventually, install_tls};

use crate::members::{Access, Members};
use crate::plane::ControlPlane;
use crate::world::World;

const PROXY: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";
const CACHE: &str = "/apis/search.karmada.io/v1alpha1/search/cache";
const QUERY: &str = "/apis/search.karmada.io/v1alpha1/query";
const CLUSTER: &str = "/metadata/annotations/resource.karmada.io~1cached-from-cluster";

fn config_maps() -> Kind {
    Kind::namespaced("", "v1", "ConfigMap", "configmaps")
}

/// Asks the control plane, as somebody; the administrator is the empty name.
async fn ask(world: &World, user: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let mut request = Request::builder().method(method).uri(path);
    if !user.is_empty() {
        request = request.header("impersonate-user", user);
    }
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request =
        request.header("content-type", kind).body(kube::client::Body::from(body)).expect("a request");
    let answer = world.plane.send(request).await.expect("an answer");
    let code = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes))))
}

async fn get(world: &World, path: &str) -> Value {
    let (code, answer) = ask(world, "", "GET", path, &Value::Null).await;
    assert_eq!(code, 200, "{path}: {answer}");
    answer
}

/// Returns what a list shows, as `cluster/name`, sorted.
fn shown(world: &World, list: &Value) -> Vec<String> {
    let one = |item: &Value| {
        let cluster =
            item.pointer(CLUSTER).and_then(Value::as_str).or(item["cluster"].as_str()).unwrap_or("?");
        let name =
            item.pointer("/metadata/name").and_then(Value::as_str).or(item["name"].as_str()).unwrap_or("?");
        format!("{}/{name}", cluster.trim_start_matches(&world.tag).trim_start_matches('-'))
    };
    let mut all: Vec<String> = list["items"].as_array().into_iter().flatten().map(one).collect();
    all.sort();
    all
}

async fn put(world: &World, member: usize, name: &str) {
    let namespaces = Kind::cluster("", "v1", "Namespace", "namespaces");
    let namespace: DynamicObject = serde_json::from_value(
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}}),
    )
    .expect("an object");
    let _ = world.in_member(member, &namespaces).create(&PostParams::default(), &namespace).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"fleet": "yes"}},
        "data": {"a": "1"}});
    let map: DynamicObject = serde_json::from_value(map).expect("an object");
    world.in_member(member, &config_maps()).create(&PostParams::default(), &map).await.expect("created");
}

async fn register(world: &World, kinds: &[(&str, &str)]) {
    let selectors: Vec<Value> =
        kinds.iter().map(|(api_version, kind)| json!({"apiVersion": api_version, "kind": kind})).collect();
    let registry = json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry",
        "metadata": {"name": "fleet"}, "spec": {"targetCluster": {}, "resourceSelectors": selectors}});
    let registries = Kind::cluster("search.karmada.io", "v1alpha1", "ResourceRegistry", "resourceregistries");
    world.create(&registries, registry).await;
}

async fn a_world(tag: &str) -> (World, Members) {
    install_tls();
    let members = Members::simulated(Access::Exclusive, 2).await.expect("members");
    // The members are its own, so that it alone says who may come in whose name.
    let world = World::new(tag, ControlPlane::server("*"), &members.places()).await;
    put(&world, 0, "first").await;
    put(&world, 0, "both").await;
    put(&world, 1, "both").await;
    // Nobody has a LimitRange.
    register(&world, &[("v1", "ConfigMap"), ("v1", "Node"), ("v1", "LimitRange")]).await;
    let path = maps(&world, "");
    eventually("everything is cached", async || {
        let list = get(&world, &path).await;
        let all = shown(&world, &list);
        if all == ["m1/both", "m1/first", "m2/both"] { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
    (world, members)
}

/// The path of our ConfigMaps through the proxy.
fn maps(world: &World, name: &str) -> String {
    let base = format!("{PROXY}/api/v1/namespaces/{}/configmaps", world.namespace);
    if name.is_empty() { format!("{base}?labelSelector=fleet%3Dyes") } else { format!("{base}/{name}") }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_read_watched_and_changed_as_one_cluster() {
    let (world, members) = a_world("fleet").await;
    let all = maps(&world, "");

    // Pages, and what they say of the version to go on from.
    let first = get(&world, &format!("{all}&limit=2")).await;
    assert_eq!(shown(&world, &first), ["m1/both", "m1/first"]);
    let next = first["metadata"]["continue"].as_str().expect("there is more");
    // What comes between two pages is in none of them.
    put(&world, 0, "later").await;
    let now = ["m1/both", "m1/first", "m1/later", "m2/both"];
    eventually("what came later is shown", async || {
        let list = get(&world, &all).await;
        if shown(&world, &list) == now { Ok(()) } else { Err(list.to_string()) }
    })
    .await;
    let second = get(&world, &format!("{all}&limit=2&continue={next}")).await;
    assert_eq!(shown(&world, &second), ["m2/both"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert!(second["metadata"].get("continue").is_none());
    // A version that nobody remembers is refused, with a way to go on.
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let (one, two) = (&world.members[0].name, &world.members[1].name);
    let rv = encode(&json!({(one.as_str()): "1", (two.as_str()): "1"}));
    let old = encode(&json!({"rv": rv, "cluster": one, "continue": format!("{}/both", world.namespace)}));
    let (code, refused) =
        ask(&world, "", "GET", &format!("{all}&limit=2&continue={old}"), &Value::Null).await;
    assert_eq!((code, &refused["reason"]), (410, &json!("Expired")), "{refused}");
    let next = refused["metadata"]["continue"].as_str().expect("a way to go on");
    let rest = get(&world, &format!("{all}&limit=2&continue={next}")).await;
    assert_eq!(shown(&world, &rest), ["m1/first", "m1/later"]);
    let exact = first["metadata"]["resourceVersion"].as_str().expect("a version");
    let before = get(&world, &format!("{all}&resourceVersion={exact}&resourceVersionMatch=Exact")).await;
    assert_eq!(shown(&world, &before), ["m1/both", "m1/first", "m2/both"]);
    let gone = world.in_member(0, &config_maps()).delete("later", &kube::api::DeleteParams::default()).await;
    gone.expect("deleted");
    eventually("it is gone", async || {
        let list = get(&world, &all).await;
        if shown(&world, &list).len() == 3 { Ok(()) } else { Err(list.to_string()) }
    })
    .await;

    // One object: where it is, and what can be written back.
    let (code, answer) = ask(&world, "", "GET", &maps(&world, "both"), &Value::Null).await;
    let why = answer["message"].as_str().unwrap_or("").to_owned();
    assert!(code == 409 && why.contains("ambiguous objects in clusters ["), "{code} {why}");
    assert_eq!(ask(&world, "", "GET", &maps(&world, "none"), &Value::Null).await.0, 404);
    let mut one = get(&world, &maps(&world, "first")).await;
    assert_eq!(one.pointer(CLUSTER), Some(&json!(world.members[0].name)));
    one["data"]["a"] = json!("2");
    // The member learns a moment after it has joined who may come in whose name.
    eventually("a change is handed on", async || {
        let (code, answer) = ask(&world, "", "PUT", &maps(&world, "first"), &one).await;
        if code == 200 { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    let there = world.in_member(0, &config_maps()).get("first").await.expect("in the member");
    assert_eq!(there.data["data"]["a"], "2");
    assert!(
        there
            .metadata
            .annotations
            .is_none_or(|all| !all.contains_key("resource.karmada.io/cached-from-cluster"))
    );
    let (code, answer) = ask(&world, "", "PUT", &maps(&world, "first"), &one).await;
    assert_eq!(code, 409, "the version is that of the member: {answer}");
    let created = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}});
    let collection = format!("{PROXY}/api/v1/namespaces/{}/configmaps", world.namespace);
    assert_eq!(ask(&world, "", "POST", &collection, &created).await.0, 405);

    // A watch from the version of a list is told what happens in either member, and can be resumed from any version.
    let list = get(&world, &all).await;
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    for (member, value) in [(0, "3"), (1, "4")] {
        let patch = Patch::Merge(json!({"data": {"a": value}}));
        let api = world.in_member(member, &config_maps());
        api.patch("both", &PatchParams::default(), &patch).await.expect("patched");
    }
    let watch = async |version: &str, count: usize| -> Vec<Value> {
        let path = format!("{all}&watch=true&resourceVersion={version}");
        let request = Request::get(path).body(Vec::new()).expect("a request");
        let lines = world.plane.request_stream(request).await.expect("a watch").lines();
        let lines: Vec<String> = lines.take(count).try_collect().await.expect("events");
        lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let events = watch(&version, 2).await;
    let mut told: Vec<String> =
        events.iter().map(|event| format!("{} {}", event["type"], event["object"]["data"]["a"])).collect();
    told.sort();
    assert_eq!(told, [r#""MODIFIED" "3""#, r#""MODIFIED" "4""#]);
    let middle = events[0]["object"]["metadata"]["resourceVersion"].as_str().expect("a version");
    assert_eq!(watch(middle, 1).await[0]["object"]["data"], events[1]["object"]["data"]);
    assert_eq!(watch("", 3).await.len(), 3, "from nothing, everything");

    // A client that lists by watching is told at once where the beginning ends, also if there is nothing.
    let streamed =
        "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for (path, before) in [(all.clone(), 3), (format!("{PROXY}/api/v1/limitranges?"), 0)] {
        let request = Request::get(format!("{path}&{streamed}&timeoutSeconds=30")).body(Vec::new());
        let lines = world.plane.request_stream(request.expect("a request")).await.expect("a watch").lines();
        let lines: Vec<String> = lines.take(before + 1).try_collect().await.expect("events");
        let end = lines.last().expect("an event");
        assert!(end.contains(r#""k8s.io/initial-events-end":"true""#), "{path}: {end}");
    }

    // Tables say the cluster; metadata alone and protobuf are what the server has them for.
    let request =
        Request::get(&all).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io").body(Vec::new());
    let table: Value = world.plane.request(request.expect("a request")).await.expect("a table");
    assert_eq!(table["columnDefinitions"][1]["name"], "Cluster");
    assert_eq!(table["rows"][0]["cells"][1], json!(world.members[0].name));
    for (accept, path, kind) in [
        (
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
            &all,
            "PartialObjectMetadataList",
        ),
        (
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
            &maps(&world, "first"),
            "PartialObjectMetadata",
        ),
    ] {
        let request = Request::get(path).header("accept", accept).body(Vec::new()).expect("a request");
        let answer: Value = world.plane.request(request).await.expect("metadata");
        let shown = answer.pointer("/items/0").unwrap_or(&answer);
        assert_eq!((answer["kind"].as_str(), shown.get("data")), (Some(kind), None), "{answer}");
        assert_eq!(shown.pointer(CLUSTER), Some(&json!(world.members[0].name)), "{answer}");
    }
    // The same for what happens: the first event of a table has its columns.
    for (accept, kind) in [("Table", "Table"), ("PartialObjectMetadata", "PartialObjectMetadata")] {
        let accept = format!("application/json;as={accept};v=v1;g=meta.k8s.io");
        let request = Request::get(format!("{all}&watch=true")).header("accept", accept).body(Vec::new());
        let lines = world.plane.request_stream(request.expect("a request")).await.expect("a watch").lines();
        let lines: Vec<String> = lines.take(1).try_collect().await.expect("events");
        let event: Value = serde_json::from_str(&lines[0]).expect("JSON");
        assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ADDED"), &json!(kind)), "{event}");
        if kind == "Table" {
            assert_eq!(event["object"]["columnDefinitions"][1]["name"], "Cluster");
            assert_eq!(event["object"]["rows"][0]["cells"][1], json!(world.members[0].name));
        }
    }

    // Karmada's path, the query, all clusters at once, and what belongs to the control plane.
    let cached = get(&world, &format!("{CACHE}/api/v1/namespaces/{}/configmaps/both", world.namespace)).await;
    assert_eq!(
        (shown(&world, &cached), &cached["kind"]),
        (vec!["m1/both".to_owned(), "m2/both".to_owned()], &json!("ConfigMapList"))
    );
    let found = get(&world, &format!("{QUERY}?q=kind:cm+label:fleet+ns:{}", world.namespace)).await;
    assert_eq!(shown(&world, &found).len(), 3);
    assert_eq!(ask(&world, "", "GET", &format!("{QUERY}?q=kid:cm"), &Value::Null).await.0, 400);
    let star = "/apis/cluster.karmada.io/v1alpha1/clusters/*/proxy";
    let everywhere =
        get(&world, &format!("{star}/api/v1/namespaces/{}/configmaps?labelSelector=fleet", world.namespace))
            .await;
    assert_eq!(everywhere["items"].as_array().map(Vec::len), Some(3));
    let named = |name: &str| format!("{star}/api/v1/namespaces/{}/configmaps/{name}", world.namespace);
    assert_eq!(get(&world, &named("first")).await["metadata"]["name"], "first");
    assert_eq!(ask(&world, "", "GET", &named("both"), &Value::Null).await.0, 409);
    assert_eq!(ask(&world, "", "GET", &named("none"), &Value::Null).await.0, 404);
    assert_eq!(ask(&world, "", "DELETE", &format!("{star}/api/v1/pods"), &Value::Null).await.0, 405);
    let own = get(&world, &format!("{PROXY}/apis/cluster.karmada.io/v1alpha1/clusters")).await;
    assert_eq!(own["items"].as_array().map(Vec::len), Some(2));
    let secrets = get(&world, &format!("{PROXY}/api/v1/secrets")).await;
    assert!(shown(&world, &secrets).iter().all(|secret| secret.starts_with('?')), "nobody registered them");

    // A member that is away keeps what is known of it, and says so; the other is not affected.
    members.cut_off(1).await;
    eventually("what is old is marked", async || {
        let list = get(&world, &all).await;
        let stale =
            |item: &Value| item.pointer("/metadata/annotations/search.karmada.io~1stale-since").is_some();
        let marks: Vec<bool> = list["items"].as_array().expect("items").iter().map(stale).collect();
        if marks == [false, false, true] { Ok(()) } else { Err(format!("{marks:?}")) }
    })
    .await;
    members.heal(1).await;
    eventually("it is heard of again", async || {
        let text = get(&world, &all).await.to_string();
        if text.contains("stale-since") { Err(text) } else { Ok(()) }
    })
    .await;
    world.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_watch_has_shown_can_be_put_back_unless_it_has_changed() {
    let (world, _members) = a_world("put-back").await;
    put(&world, 0, "alone").await;
    let all = maps(&world, "");
    eventually("what came later is shown", async || {
        let list = get(&world, &all).await;
        if shown(&world, &list).len() == 4 { Ok(()) } else { Err(list.to_string()) }
    })
    .await;
    let request = Request::get(format!("{all}&watch=true")).body(Vec::new()).expect("a request");
    let lines = world.plane.request_stream(request).await.expect("a watch").lines();
    let lines: Vec<String> = lines.take(4).try_collect().await.expect("events");
    let events: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    // The first and the last object of a member.
    for name in ["alone", "first"] {
        let event = events.iter().find(|event| event["object"]["metadata"]["name"] == name).expect("told");
        assert_eq!(event["type"], "ADDED");
        let mut object = event["object"].clone();
        let there = world.in_member(0, &config_maps()).get(name).await.expect("in the member");
        object["data"]["a"] = json!("2");
        eventually("a change is handed on", async || {
            let (code, answer) = ask(&world, "", "PUT", &maps(&world, name), &object).await;
            if code == 200 { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
        // Now it has changed in the member, and what the watch has shown is old.
        let (code, answer) = ask(&world, "", "PUT", &maps(&world, name), &object).await;
        assert_eq!(code, 409, "{name} at {:?}: {answer}", there.metadata.resource_version);
    }
    world.leave().await;
}

/// What somebody sees behind a door.
#[derive(Debug, PartialEq)]
enum Sees {
    Refused,
    These(&'static [&'static str]),
}

/// Waits until somebody is shown exactly these. Members are asked who may see what, and one that is late to answer is not shown for a
/// while; but at no time may anything else be shown.
async fn until_shown(world: &World, user: &str, path: &str, names: &[&str]) {
    eventually(format!("{user} sees {names:?} at {path}"), async || {
        let (code, answer) = ask(world, user, "GET", path, &Value::Null).await;
        let seen = shown(world, &answer);
        assert!(seen.iter().all(|name| names.contains(&name.as_str())), "{user} {path}: {answer}");
        if code == 200 && seen == names { Ok(()) } else { Err(format!("{code} {answer}")) }
    })
    .await;
}

/// Waits until somebody gets this code. What is refused is so at once; what is allowed may be refused while a member is late to say so.
async fn until_answered(world: &World, user: &str, path: &str, expected: u16) {
    eventually(format!("{user} gets {expected} at {path}"), async || {
        let (code, answer) = ask(world, user, "GET", path, &Value::Null).await;
        assert!(expected != 403 || code == 403, "{user:?} {path}: {code} {answer}");
        if code == expected { Ok(()) } else { Err(format!("{code} {answer}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_sees_or_changes_through_any_door_what_the_members_would_not_let_them() {
    let (world, _members) = a_world("doors").await;
    let role = async |client: kube::Client, user: &str, rules: Value| {
        let roles = Kind::cluster("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles");
        let bindings =
            Kind::cluster("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings");
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
        for (kind, object) in [(roles, role), (bindings, binding)] {
            let api: Api<DynamicObject> = kind.api(client.clone(), "");
            let object: DynamicObject = serde_json::from_value(object).expect("an object");
            api.create(&PostParams::default(), &object).await.expect("created");
        }
    };
    let group = "search.karmada.io";
    let all_doors = json!([
        {"apiGroups": [group], "resources": ["proxying/proxy"], "verbs": ["*"]},
        {"apiGroups": [group], "resources": ["search/api", "search/apis"], "verbs": ["get"]},
        {"apiGroups": [group], "resources": ["query"], "verbs": ["list"]}]);
    let reading =
        json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]);
    for user in ["guest", "reader", "both"] {
        role(world.plane.clone(), user, all_doors.clone()).await;
    }
    let other_name = json!([{"apiGroups": [group], "resources": ["proxying/proxy"], "resourceNames": ["other"], "verbs": ["*"]}]);
    role(world.plane.clone(), "elsewhere", other_name).await;
    role(world.members[0].client.clone(), "reader", reading.clone()).await;
    for member in [0, 1] {
        role(world.members[member].client.clone(), "both", reading.clone()).await;
    }
    // In the members, but not at the doors.
    role(world.members[0].client.clone(), "nobody", reading.clone()).await;

    let namespace = &world.namespace;
    let proxy = maps(&world, "");
    let cache = format!("{CACHE}/api/v1/namespaces/{namespace}/configmaps?labelSelector=fleet");
    let query = format!("{QUERY}?q=kind:configmap+label:fleet");
    let first: &[&str] = &["m1/both", "m1/first"];
    let every: &[&str] = &["m1/both", "m1/first", "m2/both"];
    let nothing = Sees::These(&[]);
    let matrix = [
        ("nobody", Sees::Refused, Sees::Refused, Sees::Refused),
        ("elsewhere", Sees::Refused, Sees::Refused, Sees::Refused),
        ("guest", Sees::Refused, nothing, Sees::These(&[])),
        ("reader", Sees::These(first), Sees::These(first), Sees::These(first)),
        ("both", Sees::These(every), Sees::These(every), Sees::These(every)),
        ("", Sees::These(every), Sees::These(every), Sees::These(every)),
    ];
    for (user, by_proxy, by_cache, by_query) in matrix {
        for (path, expected) in [(&proxy, by_proxy), (&cache, by_cache), (&query, by_query)] {
            match expected {
                Sees::Refused => until_answered(&world, user, path, 403).await,
                Sees::These(names) => until_shown(&world, user, path, names).await,
            }
        }
    }

    // One object and its changes: the ambiguous one is not, for whoever sees one of them; writing is up to the member.
    let both = maps(&world, "both");
    until_answered(&world, "guest", &both, 403).await;
    until_answered(&world, "reader", &both, 200).await;
    until_answered(&world, "both", &both, 409).await;
    let patch = json!({"data": {"a": "stolen"}});
    for user in ["guest", "reader", "both", "nobody", "elsewhere"] {
        for (method, path) in
            [("PATCH", maps(&world, "first")), ("DELETE", maps(&world, "first")), ("PATCH", both.clone())]
        {
            let (code, answer) = ask(&world, user, method, &path, &patch).await;
            assert!(code == 403 || code == 409 && user == "both", "{user} {method} {path}: {code} {answer}");
        }
    }
    let there = world.in_member(0, &config_maps()).get("first").await.expect("in the member");
    assert_eq!(there.data["data"]["a"], "1");
    // Nor does anybody learn from the refusal whether there is something of that name.
    for user in ["guest", "reader"] {
        let said = async |name: &str| {
            let (code, answer) = ask(&world, user, "PATCH", &maps(&world, name), &patch).await;
            (code, answer["message"].as_str().unwrap_or("").replace(name, "NAME"))
        };
        // A member that is late to say who may what changes the answer for a while.
        eventually(format!("{user} is told the same of both"), async || {
            let (first, none) = (said("first").await, said("none").await);
            if first == none { Ok(()) } else { Err(format!("{first:?}, {none:?}")) }
        })
        .await;
    }

    // What belongs to the control plane is read with the caller's own rights there.
    for (path, code) in
        [("api/v1/secrets", 403), ("apis/cluster.karmada.io/v1alpha1/clusters", 403), ("version", 200)]
    {
        assert_eq!(
            ask(&world, "both", "GET", &format!("{PROXY}/{path}"), &Value::Null).await.0,
            code,
            "{path}"
        );
    }

    // Members by name, all at once, and their metrics: doors of their own, with rights of their own.
    let proxies =
        json!([{"apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"], "verbs": ["*"]}]);
    role(world.plane.clone(), "walker", proxies).await;
    role(world.members[0].client.clone(), "walker", reading.clone()).await;
    let metrics =
        json!([{"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": ["get", "list"]}]);
    role(world.plane.clone(), "meter", metrics).await;
    let clusters = "/apis/cluster.karmada.io/v1alpha1/clusters";
    let within =
        |cluster: &str| format!("{clusters}/{cluster}/proxy/api/v1/namespaces/{namespace}/configmaps");
    let (one, two) = (within(&world.members[0].name), within(&world.members[1].name));
    let (star, first) = (within("*"), format!("{}/first", within("*")));
    let both = format!("{}/both", within("*"));
    eventually("the members know the walker", async || {
        let (code, answer) = ask(&world, "walker", "GET", &one, &Value::Null).await;
        if code == 200 { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    let nodes = "/apis/metrics.k8s.io/v1beta1/nodes";
    let matrix: [(&str, [(&str, u16); 6]); 8] = [
        ("nobody", [(&one, 403), (&two, 403), (&star, 403), (&first, 403), (&both, 403), (nodes, 403)]),
        ("elsewhere", [(&one, 403), (&two, 403), (&star, 403), (&first, 403), (&both, 403), (nodes, 403)]),
        ("guest", [(&one, 403), (&two, 403), (&star, 403), (&first, 403), (&both, 403), (nodes, 403)]),
        ("reader", [(&one, 403), (&two, 403), (&star, 403), (&first, 403), (&both, 403), (nodes, 403)]),
        ("both", [(&one, 403), (&two, 403), (&star, 403), (&first, 403), (&both, 403), (nodes, 403)]),
        ("walker", [(&one, 200), (&two, 403), (&star, 200), (&first, 200), (&both, 200), (nodes, 403)]),
        ("meter", [(&one, 403), (&two, 403), (&star, 403), (&first, 403), (&both, 403), (nodes, 200)]),
        ("", [(&one, 200), (&two, 200), (&star, 200), (&first, 200), (&both, 409), (nodes, 200)]),
    ];
    for (user, doors) in matrix {
        for (path, expected) in doors {
            until_answered(&world, user, path, expected).await;
        }
    }
    // Of the second member he sees nothing.
    until_shown(&world, "walker", &format!("{star}?labelSelector=fleet"), &["?/both", "?/first"]).await;
    for (method, path) in [("PATCH", &first), ("DELETE", &first), ("PATCH", &format!("{one}/first"))] {
        assert_eq!(ask(&world, "walker", method, path, &patch).await.0, 403, "{method} {path}");
    }
    // The other metrics are doors of their own, too.
    for path in [
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/x/pods/*/load",
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/x/load",
    ] {
        for user in ["nobody", "guest", "reader", "both", "walker", "meter"] {
            assert_eq!(ask(&world, user, "GET", path, &Value::Null).await.0, 403, "{user} {path}");
        }
    }
    nothing_is_written(&world, &[&star, nodes]).await;

    // A watch shows no more than a list.
    let watched = format!("{}&watch=true&timeoutSeconds=5", maps(&world, ""));
    for (user, count) in [("guest", None), ("reader", Some(2)), ("both", Some(3)), ("nobody", None)] {
        let Some(count) = count else {
            until_answered(&world, user, &watched, 403).await;
            continue;
        };
        eventually(format!("{user} is told of {count}"), async || {
            let (code, answer) = ask(&world, user, "GET", &watched, &Value::Null).await;
            let text = answer.as_str().map_or_else(|| answer.to_string(), str::to_owned);
            let told = text.matches("\"ADDED\"").count();
            assert!(told <= count, "{user}: {text}");
            if (code, told) == (200, count) { Ok(()) } else { Err(format!("{code} {text}")) }
        })
        .await;
    }
    world.leave().await;
}

/// Tries all ways of writing at all doors, as everybody who may not: it is refused, and nothing changes in the members.
async fn nothing_is_written(world: &World, others: &[&str]) {
    let state = async || {
        let mut all = Vec::new();
        for member in [0, 1] {
            let list =
                world.in_member(member, &config_maps()).list(&ListParams::default().labels("fleet")).await;
            for map in list.expect("a list") {
                all.push((member, map.metadata.name, map.metadata.resource_version));
            }
        }
        all
    };
    let before = state().await;
    assert_eq!(before.len(), 3);
    let own = format!("api/v1/namespaces/{}/configmaps", world.namespace);
    let mut doors = vec![format!("{PROXY}/{own}"), format!("{CACHE}/{own}"), QUERY.to_owned()];
    doors.extend(others.iter().map(ToString::to_string));
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "first", "labels": {"fleet": "yes"}}, "data": {"a": "stolen"}});
    for user in ["nobody", "elsewhere", "guest", "reader", "both", "walker", "meter"] {
        for door in &doors {
            let one = format!("{door}/first");
            for (method, path) in [
                ("POST", door),
                ("DELETE", door),
                ("POST", &one),
                ("PUT", &one),
                ("PATCH", &one),
                ("DELETE", &one),
            ] {
                let (code, answer) = ask(world, user, method, path, &map).await;
                // Whoever may use the door is told that nothing can be done there, or is refused by the member.
                assert!([403, 404, 405].contains(&code), "{user} {method} {path}: {code} {answer}");
            }
        }
    }
    // What only shows does not take anything from administrators either.
    for door in [&doors[1], &doors[2], &doors[4]] {
        for method in ["POST", "DELETE"] {
            let (code, answer) = ask(world, "", method, door, &map).await;
            assert_eq!(code, 405, "{method} {door}: {answer}");
        }
    }
    assert_eq!(state().await, before);
}
