//! How callers get in, as whom, and what they may do.

use apiserver::auth::pki::{self, Pki};
use apiserver::{Handle, Options};
use serde_json::json;

use crate::support::Api;
use crate::{start, start_with};

const MAPS: &str = "api/v1/namespaces/default/configmaps";
const ACCOUNT: &str = "api/v1/namespaces/default/serviceaccounts/robot";

/// Returns a client of the server without any credential, or with a token.
async fn client(handle: &Handle, token: Option<&str>) -> Api {
    let user = match token {
        Some(token) => json!({"token": token}),
        None => json!({}),
    };
    let mut config =
        serde_saphyr::from_str::<serde_json::Value>(&handle.kubeconfig).expect("a kubeconfig is YAML");
    config["users"][0]["user"] = user;
    Api::from_kubeconfig(&config.to_string()).await
}

/// Makes the account `robot` and returns a token for it.
async fn robot(api: &Api) -> String {
    let accounts = "api/v1/namespaces/default/serviceaccounts";
    api.post(accounts, &json!({"metadata": {"name": "robot"}})).await.expect(201);
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    api.post(&format!("{ACCOUNT}/token"), &request).await.expect(201).at("/status/token")
}

#[tokio::test]
async fn an_account_may_do_what_its_role_says_and_nothing_else() {
    let (handle, api) = start().await;
    let token = robot(&api).await;
    let robot = client(&handle, Some(&token)).await;
    let refused = robot.get(MAPS).await.expect(403);
    assert_eq!(
        refused.at("/message"),
        "configmaps is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"configmaps\" \
         in API group \"\" in the namespace \"default\""
    );
    let rbac = "apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    api.post(&format!("{rbac}/roles"), &json!({"metadata": {"name": "r"}, "rules": rules})).await.expect(201);
    let binding = json!({
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}],
    });
    api.post(&format!("{rbac}/rolebindings"), &binding).await.expect(201);
    robot.get(MAPS).await.expect(200);
    robot.get("api/v1/namespaces/kube-system/configmaps").await.expect(403);
    robot.post(MAPS, &json!({"metadata": {"name": "x"}})).await.expect(403);
    // Nobody hands out more than they have.
    let wide = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    robot
        .post(&format!("{rbac}/roles"), &json!({"metadata": {"name": "all"}, "rules": wide}))
        .await
        .expect(403);
    api.delete(&format!("{rbac}/rolebindings/b")).await.expect(200);
    robot.get(MAPS).await.expect(403);
    handle.stop().await;
}

#[tokio::test]
async fn strangers_see_health_and_version_alone() {
    let (handle, _) = start().await;
    let stranger = client(&handle, None).await;
    for path in ["healthz", "livez", "readyz", "version"] {
        stranger.get(path).await.expect(200);
    }
    for path in ["api", "apis", MAPS, "metrics", "openapi/v3", "api/v1/namespaces/default"] {
        let refused = stranger.get(path).await.expect(403);
        assert!(refused.at("/message").contains("system:anonymous"), "{}", refused.text());
    }
    handle.stop().await;
}

#[tokio::test]
async fn a_wrong_credential_is_not_the_lack_of_one() {
    let (handle, api) = start().await;
    for token in ["garbage", "a.b.c", "eyJhbGciOiJub25lIn0.e30."] {
        let refused = client(&handle, Some(token)).await.get("version").await.expect(401);
        assert_eq!(refused.at("/reason"), "Unauthorized");
    }
    // A token that was good, of an account that is gone.
    let token = robot(&api).await;
    let robot = client(&handle, Some(&token)).await;
    robot.get("version").await.expect(200);
    api.delete(ACCOUNT).await.expect(200);
    robot.get("version").await.expect(401);
    handle.stop().await;
}

#[tokio::test]
async fn certificates_of_another_authority_are_refused() {
    let (handle, _) = start().await;
    let other = Pki::load_or_create(None, &[]).expect("keys can be made");
    let config = pki::kubeconfig(&handle.url, "c", &handle.pki.ca.cert, &other.admin);
    Api::from_kubeconfig(&config).await.get("version").await.expect(401);
    // The same name from the right one is let in.
    let pair = pki::client(&handle.pki.ca, "system:admin", &["system:masters"], 1).expect("a certificate");
    let config = pki::kubeconfig(&handle.url, "c", &handle.pki.ca.cert, &pair);
    Api::from_kubeconfig(&config).await.get(MAPS).await.expect(200);
    handle.stop().await;
}

#[tokio::test]
async fn a_token_review_tells_whose_a_token_is() {
    let (handle, api) = start().await;
    let token = robot(&api).await;
    let reviews = "apis/authentication.k8s.io/v1/tokenreviews";
    let review = |token: &str| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let good = api.post(reviews, &review(&token)).await.expect(201).json();
    assert_eq!(good["status"]["authenticated"], true);
    assert_eq!(good["status"]["user"]["username"], "system:serviceaccount:default:robot");
    let groups = good["status"]["user"]["groups"].as_array().expect("groups");
    assert!(groups.contains(&json!("system:serviceaccounts:default")), "{groups:?}");
    let bad = api.post(reviews, &review("garbage")).await.expect(201).json();
    assert_ne!(bad["status"]["authenticated"], true);
    assert!(bad["status"].get("user").is_none_or(|user| user.get("username").is_none()), "{bad}");
    handle.stop().await;
}

#[tokio::test]
async fn fixed_tokens_come_from_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokens.csv");
    std::fs::write(&file, "secret-1,alice,1,\"system:masters,others\"\nsecret-2,bob,2\n").expect("written");
    let (handle, _) = start_with(Options { token_file: Some(file), ..Options::default() }).await;
    client(&handle, Some("secret-1")).await.get(MAPS).await.expect(200);
    let refused = client(&handle, Some("secret-2")).await.get(MAPS).await.expect(403);
    assert!(refused.at("/message").contains("User \"bob\""), "{}", refused.text());
    client(&handle, Some("secret-3")).await.get(MAPS).await.expect(401);
    handle.stop().await;
}
