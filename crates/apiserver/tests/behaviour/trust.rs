//! Attacks on who is believed and on those who keep the server going: numbers without bounds, names that cannot be read,
//! rights that come by a detour, credentials that should be gone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use apiserver::{Handle, Options};
use serde_json::{Value, json};

use crate::support::{Answer, Api, Call};
use crate::{start, start_with};

const REVIEWS: &str = "apis/authentication.k8s.io/v1/selfsubjectreviews";
const RBAC: &str = "apis/rbac.authorization.k8s.io/v1";

fn immediate() -> Options {
    Options { namespace_grace: Duration::ZERO, ..Options::default() }
}

async fn namespace_with_map(api: &Api, name: &str) {
    api.post("api/v1/namespaces", &json!({"metadata": {"name": name}})).await.expect(201);
    let map = json!({"metadata": {"name": "m"}});
    api.post(&format!("api/v1/namespaces/{name}/configmaps"), &map).await.expect(201);
}

/// A pod that runs somewhere and wants to live on for ever after its deletion.
fn immortal(owner: Option<&str>) -> Value {
    let mut pod = json!({
        "metadata": {"name": "immortal"},
        "spec": {"nodeName": "n", "terminationGracePeriodSeconds": i64::MAX, "containers": [{"name": "c", "image": "i"}]},
    });
    if let Some(uid) = owner {
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}]);
    }
    pod
}

fn is_deleting(answer: &Answer) -> bool {
    !answer.at("/metadata/deletionTimestamp").is_empty()
}

#[tokio::test]
async fn finding_5_a_pod_with_endless_grace_stops_neither_namespaces_nor_garbage_collection() {
    let (handle, api) = start_with(immediate()).await;
    // Directly, by way of its namespace, and as garbage.
    let pods = "api/v1/namespaces/default/pods";
    api.post(pods, &immortal(None)).await.expect(201);
    let deleted = api.delete(&format!("{pods}/immortal")).await.expect(200);
    assert!(deleted.at("/metadata/deletionTimestamp").starts_with("9999-"), "{}", deleted.text());
    namespace_with_map(&api, "doomed").await;
    api.post("api/v1/namespaces/doomed/pods", &immortal(None)).await.expect(201);
    api.delete("api/v1/namespaces/doomed").await.expect(200);
    api.until("api/v1/namespaces/doomed/pods/immortal", is_deleting).await;
    namespace_with_map(&api, "home").await;
    let maps = "api/v1/namespaces/home/configmaps";
    let owner = api.post(maps, &json!({"metadata": {"name": "owner"}})).await.expect(201);
    let orphan = immortal(Some(&owner.at("/metadata/uid")));
    api.post("api/v1/namespaces/home/pods", &orphan).await.expect(201);
    api.delete(&format!("{maps}/owner")).await.expect(200);
    api.until("api/v1/namespaces/home/pods/immortal", is_deleting).await;
    // Both controllers still work for everybody else.
    namespace_with_map(&api, "other").await;
    api.delete("api/v1/namespaces/other").await.expect(200);
    api.until("api/v1/namespaces/other", |answer| answer.code == 404).await;
    let owner = api.post(maps, &json!({"metadata": {"name": "owner"}})).await.expect(201);
    let reference =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.at("/metadata/uid")}]);
    let dependent = json!({"metadata": {"name": "dependent", "ownerReferences": reference}});
    api.post(maps, &dependent).await.expect(201);
    api.delete(&format!("{maps}/owner")).await.expect(200);
    api.until(&format!("{maps}/dependent"), |answer| answer.code == 404).await;
    handle.stop().await;
}

#[tokio::test]
async fn finding_5_a_watch_may_be_asked_for_until_the_end_of_time() {
    let (handle, api) = start().await;
    let path = format!("api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds={}", i64::MAX);
    let mut watch = api.open(&path).await;
    assert_eq!(watch.code, 200);
    api.post("api/v1/namespaces/default/configmaps", &json!({"metadata": {"name": "m"}})).await.expect(201);
    assert_eq!(watch.step().await, ("ADDED".to_owned(), "m".to_owned()));
    handle.stop().await;
}

#[tokio::test]
async fn readiness_lists_every_controller() {
    let (handle, api) = start().await;
    let text = api.get("readyz?verbose").await.expect(200).text();
    for name in [
        "namespaces",
        "garbage-collector",
        "certificates",
        "certificate-renewal",
        "compaction",
        "definitions",
    ] {
        assert!(text.contains(&format!("[+]controller/{name} ok\n")), "{name}: {text}");
    }
    assert!(
        !api.get("livez?verbose").await.expect(200).text().contains("controller/"),
        "no reason for a restart"
    );
    handle.stop().await;
}

fn acting_as(method: &str, path: &str, user: &str) -> Call {
    let mut call = Call::new(method, path);
    call.headers.push(("impersonate-user".to_owned(), user.to_owned()));
    call
}

#[tokio::test]
async fn finding_7_an_impersonated_name_beyond_ascii_does_not_become_the_callers_own() {
    let (handle, api) = start().await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let seen = api.send(&acting_as("POST", REVIEWS, "jörg").json(&review)).await.expect(201);
    assert_eq!(seen.at("/status/userInfo/username"), "jörg");
    let refused = api.send(&acting_as("GET", "api/v1/secrets", "jörg")).await.expect(403);
    assert!(refused.at("/message").contains("User \"jörg\""), "{}", refused.text());
    // What names nobody, or somebody in a way nobody understands, is refused.
    api.send(&acting_as("GET", "api/v1/secrets", "")).await.expect(400);
    let mut twice = acting_as("GET", "api/v1/secrets", "a");
    twice.headers.push(("impersonate-user".to_owned(), "b".to_owned()));
    api.send(&twice).await.expect(400);
    let mut unknown = Call::new("GET", "api/v1/secrets");
    unknown.headers.push(("impersonate-role".to_owned(), "view".to_owned()));
    api.send(&unknown).await.expect(400);
    handle.stop().await;
}

async fn allow(api: &Api, user: &str, rules: Value) {
    let role = json!({"metadata": {"name": user}, "rules": rules});
    api.post(&format!("{RBAC}/clusterroles"), &role).await.expect(201);
    let binding = json!({"metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]});
    api.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect(201);
}

#[tokio::test]
async fn finding_25_a_label_on_a_role_cannot_make_another_role_gather_what_its_writer_does_not_hold() {
    let (handle, api) = start().await;
    let rules = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["get", "patch", "update"]}]);
    allow(&api, "labeller", rules).await;
    let patch = |path: &str, body: Value| {
        let call = acting_as("PATCH", &format!("{RBAC}/{path}"), "labeller").json(&body);
        call.content_type("application/merge-patch+json")
    };
    let label = json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}});
    let refused = api.send(&patch("clusterroles/cluster-admin", label.clone())).await.expect(403);
    assert!(refused.at("/message").contains("not currently held"), "{}", refused.text());
    // A role of nothing but what he holds may be labelled.
    api.send(&patch("clusterroles/labeller", label)).await.expect(200);
    // An aggregated role may be changed by administrators only, whatever it holds at the moment.
    let empty = json!({"metadata": {"name": "empty"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"never": "set"}}]}});
    api.post(&format!("{RBAC}/clusterroles"), &empty).await.expect(201);
    for change in [json!({"metadata": {"annotations": {"a": "b"}}}), json!({"aggregationRule": null})] {
        let refused = api.send(&patch("clusterroles/empty", change)).await.expect(403);
        let wanted = "must have cluster-admin privileges to use the aggregationRule";
        assert!(refused.at("/message").ends_with(wanted), "{}", refused.text());
    }
    // A binding to more than he holds may not be touched either, except by what the garbage collector has to change.
    let path = "clusterrolebindings/cluster-admin";
    api.send(&patch(path, json!({"metadata": {"labels": {"a": "b"}}}))).await.expect(403);
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}]);
    api.send(&patch(path, json!({"metadata": {"ownerReferences": owner}}))).await.expect(200);
    handle.stop().await;
}

async fn holder(handle: &Handle, token: &str) -> Api {
    let mut config = serde_saphyr::from_str::<Value>(&handle.kubeconfig).expect("a kubeconfig is YAML");
    config["users"][0]["user"] = json!({"token": token});
    Api::from_kubeconfig(&config.to_string()).await
}

#[tokio::test]
async fn finding_10_a_token_whose_secret_was_deleted_stays_revoked_when_the_secret_is_made_again() {
    let (handle, api) = start().await;
    let (accounts, secrets) =
        ("api/v1/namespaces/default/serviceaccounts", "api/v1/namespaces/default/secrets");
    api.post(accounts, &json!({"metadata": {"name": "robot"}})).await.expect(201);
    let secret = json!({"metadata": {"name": "t", "annotations": {"kubernetes.io/service-account.name": "robot"}},
        "type": "kubernetes.io/service-account-token"});
    let path = format!("{secrets}/t");
    let filled = async || {
        api.post(secrets, &secret).await.expect(201);
        let answer = api.until(&path, |answer| !answer.at("/data/token").is_empty()).await;
        use base64::Engine;
        let token = base64::engine::general_purpose::STANDARD.decode(answer.at("/data/token"));
        String::from_utf8(token.expect("base64")).expect("a token is text")
    };
    let first = filled().await;
    holder(&handle, &first).await.get("version").await.expect(200);
    api.delete(&path).await.expect(200);
    holder(&handle, &first).await.get("version").await.expect(401);
    let second = filled().await;
    holder(&handle, &first).await.get("version").await.expect(401);
    holder(&handle, &second).await.get("version").await.expect(200);
    handle.stop().await;
}

fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> =
        entries.map(|path| (path.clone(), std::fs::read(path).expect("a file"))).collect();
    files.sort();
    files
}

#[tokio::test]
async fn finding_25_a_second_start_on_a_directory_in_use_changes_no_key() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = || Options { data_dir: Some(dir.path().to_owned()), ..Options::default() };
    let (handle, api) = start_with(options()).await;
    let before = contents(&dir.path().join("pki"));
    let error = apiserver::start(options()).await.expect_err("the directory is in use");
    assert!(matches!(error, apiserver::Error::Store(_)), "{error}");
    assert_eq!(contents(&dir.path().join("pki")), before);
    api.get("api/v1/namespaces/default").await.expect(200);
    handle.stop().await;
    // An authority that cannot be read is not replaced, and the directory can be used again once it is mended.
    let path = dir.path().join("pki/ca.crt");
    let good = std::fs::read(&path).expect("a file");
    std::fs::write(&path, "nonsense").expect("a file");
    let error = apiserver::start(options()).await.expect_err("the authority is unreadable").to_string();
    assert!(error.contains("ca.crt"), "{error}");
    std::fs::write(&path, good).expect("a file");
    let (handle, _) = start_with(options()).await;
    handle.stop().await;
}

#[tokio::test]
async fn finding_24_whoever_writes_a_webhook_configuration_that_is_not_obeyed_is_told_so() {
    let options = Options { ignored_webhooks: vec!["validating-config".to_owned()], ..Options::default() };
    let (handle, api) = start_with(options).await;
    let configurations = "apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let configuration = |name: &str| json!({"metadata": {"name": name}, "webhooks": []});
    let warning = |answer: &Answer| {
        let header = answer.headers.get("warning").map(|value| value.to_str().expect("ASCII").to_owned());
        header.unwrap_or_default()
    };
    let quiet = api.post(configurations, &configuration("mine")).await.expect(201);
    assert_eq!(warning(&quiet), "");
    let told = api.post(configurations, &configuration("validating-config")).await.expect(201);
    assert!(warning(&told).contains("stored but not obeyed"), "{:?}", told.headers);
    let change = json!({"metadata": {"labels": {"a": "b"}}});
    let told = api.merge(&format!("{configurations}/validating-config"), &change).await.expect(200);
    assert!(warning(&told).contains("stored but not obeyed"), "{:?}", told.headers);
    handle.stop().await;
}

#[tokio::test]
async fn finding_23_a_namespace_with_content_is_seen_to_end_before_it_is_gone() {
    // Long enough for whatever a client does in the meantime.
    let options = Options { namespace_grace: Duration::from_secs(3600), ..Options::default() };
    let (handle, api) = start_with(options).await;
    namespace_with_map(&api, "full").await;
    api.post("api/v1/namespaces", &json!({"metadata": {"name": "empty"}})).await.expect(201);
    let mut watch = api.open("api/v1/namespaces?watch=true&fieldSelector=metadata.name%3Dempty").await;
    assert_eq!(watch.step().await.0, "ADDED");
    for name in ["full", "empty"] {
        let deleted = api.delete(&format!("api/v1/namespaces/{name}")).await.expect(200);
        assert_eq!(deleted.at("/status/phase"), "Terminating");
        assert!(is_deleting(&deleted));
        assert_eq!(deleted.json()["spec"]["finalizers"], json!(["kubernetes"]));
    }
    // What holds nothing goes at once, and those who watch see it end.
    let terminating = watch.next().await.expect("an event");
    assert_eq!(
        (&terminating["type"], &terminating["object"]["status"]["phase"]),
        (&json!("MODIFIED"), &json!("Terminating"))
    );
    while watch.step().await.0 != "DELETED" {}
    // What holds something can still be looked at and changed, and deleted once more.
    let change = json!({"metadata": {"labels": {"a": "b"}}});
    api.merge("api/v1/namespaces/full/configmaps/m", &change).await.expect(200);
    api.merge("api/v1/namespaces/full", &change).await.expect(200);
    api.delete("api/v1/namespaces/full").await.expect(200);
    handle.stop().await;
}

#[tokio::test]
async fn finding_23_a_namespace_says_what_is_left_in_it() {
    let (handle, api) = start_with(immediate()).await;
    namespace_with_map(&api, "held").await;
    let map = "api/v1/namespaces/held/configmaps/m";
    api.merge(map, &json!({"metadata": {"finalizers": ["example.com/hold"]}})).await.expect(200);
    api.delete("api/v1/namespaces/held").await.expect(200);
    let conditions = |answer: &Answer| answer.at("/status/conditions");
    let told = api
        .until("api/v1/namespaces/held", |answer| conditions(answer).contains("SomeFinalizersRemain"))
        .await;
    assert!(conditions(&told).contains("example.com/hold in 1 resource instances"), "{}", told.text());
    api.merge(map, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    api.until("api/v1/namespaces/held", |answer| answer.code == 404).await;
    handle.stop().await;
}

/// Deletes a namespace while something in it is admitted.
#[derive(Default)]
struct Deleting(std::sync::OnceLock<std::sync::Arc<apiserver::server::Server>>);

impl apiserver::admission::Admit for Deleting {
    fn name(&self) -> &'static str {
        "Deleting"
    }

    fn handles(
        &self,
        _: apiserver::admission::Operation,
        kind: &apiserver::registry::Kind,
        subresource: &str,
    ) -> bool {
        kind.gvk.kind == "ConfigMap" && subresource.is_empty()
    }

    fn validate<'a>(
        &'a self,
        attributes: &'a mut apiserver::admission::Attributes<'_>,
    ) -> futures::future::BoxFuture<'a, Result<(), apimachinery::status::Status>> {
        Box::pin(async {
            let Some(server) = self.0.get().filter(|_| attributes.namespace == "going") else {
                return Ok(());
            };
            let registry = server.registry.load_full();
            let kind = registry.find("", "v1", "namespaces").expect("it is native");
            let actor = apiserver::internal::Actor::new(server, "test");
            let options = apiserver::handlers::delete::DeleteOptions::default();
            actor.delete(kind, "", "going", &options).await.map(drop)
        })
    }
}

#[tokio::test]
async fn nothing_is_created_in_a_namespace_that_went_while_it_was_admitted() {
    let deleting = std::sync::Arc::new(Deleting::default());
    let (handle, api) = start_with(Options { plugins: vec![deleting.clone()], ..Options::default() }).await;
    assert!(deleting.0.set(handle.server.clone()).is_ok());
    api.post("api/v1/namespaces", &json!({"metadata": {"name": "going"}})).await.expect(201);
    let map = json!({"metadata": {"name": "m"}});
    let refused = api.post("api/v1/namespaces/going/configmaps", &map).await;
    assert!([403, 404].contains(&refused.code), "{}", refused.text());
    assert!(handle.server.store.get("configmaps", "going/m").is_none());
    handle.stop().await;
}
