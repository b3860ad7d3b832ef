//! The audit log, as somebody reads it who wants to know what happened.

use apiserver::Options;
use apiserver::audit::{self, Rotation};
use serde_json::{Value, json};

use crate::start_with;
use crate::support::{Api, Call};

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ['/*']
- level: Metadata
  resources: [{group: '', resources: [secrets]}]
- level: RequestResponse
  users: [system:admin]
  omitManagedFields: true
  resources: [{group: '', resources: [configmaps]}]
- level: Metadata
  omitStages: [ResponseComplete]
  verbs: [watch]
  resources: [{group: '', resources: [services]}]
- level: None
";

fn read(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the log is there");
    text.lines().map(|line| serde_json::from_str(line).expect("every line is an event")).collect()
}

#[tokio::test]
async fn the_policy_says_what_is_recorded() {
    let dir = tempfile::tempdir().expect("a folder");
    let (log, policy) = (dir.path().join("audit.log"), dir.path().join("policy.yaml"));
    std::fs::write(&policy, POLICY).expect("the policy is written");
    let rotation = Rotation { size: None, keep: 0 };
    let options = audit::Options { policy: Some(policy), path: log.clone(), rotation, blocking: false };
    let (handle, api) = start_with(Options { audit: Some(options), ..Options::default() }).await;
    let me = api
        .post(
            "apis/authentication.k8s.io/v1/selfsubjectreviews",
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
        )
        .await
        .expect(201)
        .at("/status/userInfo/username");
    assert_eq!(me, "system:admin", "the policy above names the administrator");

    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seen"}, "data": {"a": "b"}});
    api.post("api/v1/namespaces/default/configmaps", &map).await.expect(201);
    api.post("api/v1/namespaces/default/configmaps", &map).await.expect(409);
    api.delete("api/v1/namespaces/default/configmaps/seen").await.expect(200);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "quiet"}, "stringData": {"a": "hidden"}});
    let mut call = Call::new("POST", "api/v1/namespaces/default/secrets").json(&secret);
    call.headers.push(("impersonate-user".to_owned(), "eve".to_owned()));
    api.send(&call).await.expect(403);
    api.post("api/v1/namespaces/default/secrets", &secret).await.expect(201);
    api.get("version").await.expect(200);
    api.get("api/v1/namespaces/default/services").await.expect(200);
    let lines = api.open("api/v1/namespaces/default/services?watch=1").await;
    assert_eq!(lines.code, 200);
    drop((lines, api));
    handle.stop().await;

    let events = read(&log);
    let entries_of = |resource: &str| -> Vec<&Value> {
        events
            .iter()
            .filter(|event| {
                event["objectRef"]["resource"] == resource && event["user"]["username"] == "system:admin"
            })
            .collect()
    };
    let maps = entries_of("configmaps");
    assert_eq!(maps.len(), 3, "{events:#?}");
    let created = maps[0];
    assert_eq!(
        (&created["stage"], &created["level"], &created["verb"]),
        (&json!("ResponseComplete"), &json!("RequestResponse"), &json!("create"))
    );
    assert_eq!(created["requestObject"]["data"], json!({"a": "b"}));
    assert_eq!(created["responseObject"]["metadata"]["name"], "seen");
    assert!(created["responseObject"]["metadata"]["managedFields"].is_null());
    assert_eq!(created["responseStatus"]["code"], 201);
    assert_eq!(created["annotations"]["authorization.k8s.io/decision"], "allow");
    assert_eq!(created["sourceIPs"], json!(["127.0.0.1"]));
    assert_eq!(created["userAgent"], "differ/1");
    assert_eq!(
        (&maps[1]["responseStatus"]["code"], &maps[1]["responseStatus"]["reason"]),
        (&json!(409), &json!("AlreadyExists"))
    );
    // The answer to a deletion is a Status without a code.
    assert_eq!(
        (&maps[2]["responseStatus"]["code"], &maps[2]["responseStatus"]["status"]),
        (&json!(200), &json!("Success"))
    );

    let secrets = entries_of("secrets");
    assert_eq!(secrets.len(), 2);
    assert_eq!(secrets[0]["impersonatedUser"]["username"], "eve");
    let narrow = json!({"impersonationConstraint": "impersonate:user-info"});
    assert_eq!(secrets[0]["authenticationMetadata"], narrow);
    assert!(secrets[1]["authenticationMetadata"].is_null());
    assert_eq!(secrets[0]["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert!(!std::fs::read_to_string(&log).expect("the log").contains("hidden"), "a secret is in the log");

    let watches: Vec<&Value> = entries_of("services");
    assert_eq!(watches.len(), 1, "the list is of no interest");
    assert_eq!(watches[0]["stage"], "ResponseStarted");
    assert!(
        events.iter().all(|event| event["stage"] != "RequestReceived" && event["requestURI"] != "/version")
    );
}

#[tokio::test]
async fn failed_logins_are_recorded_and_answers_stay_whole() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = dir.path().join("audit.log");
    let options = audit::Options {
        policy: None,
        path: log.clone(),
        rotation: Rotation { size: None, keep: 0 },
        blocking: true,
    };
    let (handle, api) = start_with(Options { audit: Some(options), ..Options::default() }).await;
    let mut config = kube::Config::new(handle.url.parse().expect("a URL"));
    config.accept_invalid_certs = true;
    let mut call = Call::new("GET", "api/v1/secrets");
    call.headers.push(("authorization".to_owned(), "Bearer nonsense".to_owned()));
    let refused = Api::from_config(config).send(&call).await.expect(401);
    assert_eq!(refused.at("/reason"), "Unauthorized");
    drop(api);
    handle.stop().await;
    let events = read(&log);
    let failed: Vec<&Value> = events.iter().filter(|event| event["responseStatus"]["code"] == 401).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["requestURI"], "/api/v1/secrets");
    assert_eq!(failed[0]["user"]["username"], "");
    assert_eq!(failed[0]["level"], "Metadata");
}

#[tokio::test]
async fn a_policy_that_cannot_be_used_keeps_the_server_from_starting() {
    let dir = tempfile::tempdir().expect("a folder");
    let policy = dir.path().join("policy.yaml");
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\n").expect("the policy is written");
    let rotation = Rotation { size: None, keep: 0 };
    let audit =
        audit::Options { policy: Some(policy), path: dir.path().join("log"), rotation, blocking: false };
    let error = apiserver::start(Options { audit: Some(audit), ..Options::default() }).await.unwrap_err();
    assert!(error.to_string().contains("no rules"), "{error}");
}
