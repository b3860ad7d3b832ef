//! Every route and verb, tried by those who must not get in.
//!
//! Routes are not written down here: resources come from discovery, everything else from the table that the server
//! itself dispatches by, so that a new one is tried as soon as it is served. A route that strangers or users without
//! rights may use has to be named below, or the test fails.

use std::collections::BTreeSet;

use apiserver::auth::pki::{self, Pki};
use apiserver::auth::tokens::{Claims, Kubernetes, Reference, Tokens};
use apiserver::{Handle, ROUTES, Readers};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::start;
use crate::support::{Api, Call};

/// What everybody who is known may create: questions about oneself.
const OPEN: [(&str, &str); 3] = [
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
];
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Requests on their way at once.
const AT_ONCE: usize = 32;

/// One who must not get in, and what they are told.
struct Intruder {
    who: &'static str,
    api: Api,
    /// The credential itself is refused, whatever is asked for.
    unknown: bool,
}

/// A request that somebody tries.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Attempt {
    method: &'static str,
    path: String,
    group: String,
    resource: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn no_route_and_no_verb_lets_in_who_has_no_right() {
    let (handle, api) = start().await;
    define(&api).await;
    let intruders = intruders(&handle, &api).await;
    let attempts = attempts(&api).await;
    let routes: BTreeSet<&str> = attempts.iter().map(|attempt| attempt.path.as_str()).collect();
    assert!(routes.len() > 300, "only {} routes were found", routes.len());
    let mut wrong = Vec::new();
    for intruder in &intruders {
        let answers = futures::stream::iter(&attempts).map(|attempt| async move {
            let call = Call::new(attempt.method, attempt.path.trim_start_matches('/'));
            let call = if attempt.method == "GET" { call } else { call.json(&json!({})) };
            (attempt, intruder.api.send(&call).await.code)
        });
        let answers: Vec<_> = answers.buffer_unordered(AT_ONCE).collect().await;
        for (attempt, code) in answers {
            let open = OPEN.contains(&(&*attempt.group, &*attempt.resource))
                && attempt.method == "POST"
                && !attempt.path.contains("/watch/");
            let right = match intruder.who {
                _ if intruder.unknown => code == 401,
                "a user without rights" if open => code != 401 && code != 403,
                _ => code == 403,
            };
            if !right {
                wrong.push(format!("{} {} {}: {code}", intruder.who, attempt.method, attempt.path));
            }
        }
    }
    wrong.sort();
    assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
    println!("{} requests to {} routes", attempts.len() * intruders.len(), routes.len());
    handle.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_are_no_resources_are_read_by_whom_they_are_meant_for() {
    let (handle, api) = start().await;
    let intruders = intruders(&handle, &api).await;
    let mut wrong = Vec::new();
    for route in ROUTES {
        let path = route.path.replace('*', "ping");
        for intruder in &intruders {
            for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
                let code = intruder.api.send(&Call::new(method, path.trim_start_matches('/'))).await.code;
                let reads = method == "GET";
                let known = intruder.who == "a user without rights";
                let may = match route.readers {
                    Readers::Anyone => reads,
                    Readers::Authenticated => reads && known,
                    Readers::Granted => false,
                };
                let right = match intruder.unknown {
                    true => code == 401,
                    false if may => !matches!(code, 401 | 403),
                    false => code == 403,
                };
                if !right {
                    wrong.push(format!("{} {method} {path}: {code}", intruder.who));
                }
            }
        }
        // And who has the right is let in: the path exists.
        let code = api.get(path.trim_start_matches('/')).await.code;
        if matches!(code, 401 | 403) {
            wrong.push(format!("the administrator GET {path}: {code}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
    handle.stop().await;
}

/// Serves a custom kind with every subresource that one can have.
async fn define(api: &Api) {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "doors.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "versions": [version],
            "names": {"plural": "doors", "singular": "door", "kind": "Door", "listKind": "DoorList"}}});
    api.post("apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
    api.until("apis/example.com/v1/doors", |answer| answer.code == 200).await;
}

async fn intruders(handle: &Handle, api: &Api) -> Vec<Intruder> {
    let url = &handle.url;
    let with_user = async |user: Value| {
        let mut config: Value = serde_saphyr::from_str(&handle.kubeconfig).expect("a kubeconfig is YAML");
        config["users"][0]["user"] = user;
        Api::from_kubeconfig(&config.to_string()).await
    };
    let with_pair = async |pair: &pki::Pair| {
        Api::from_kubeconfig(&pki::kubeconfig(url, "c", &handle.pki.ca.cert, pair)).await
    };
    let foreign = Pki::load_or_create(None, &[]).expect("keys can be made");
    let nobody = pki::client(&handle.pki.ca, "nobody", &[], 1).expect("a certificate");
    let proxy_signed = pki::client(&handle.pki.front_proxy_ca, "system:admin", &["system:masters"], 1)
        .expect("a certificate");
    let accounts = "api/v1/namespaces/default/serviceaccounts";
    let account = api.post(accounts, &json!({"metadata": {"name": "robot"}})).await.expect(201);
    let elsewhere = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["elsewhere"]}});
    let elsewhere =
        api.post(&format!("{accounts}/robot/token"), &elsewhere).await.expect(201).at("/status/token");
    // Signed with the right key, for the right account and audience: only the time is over.
    let issuer = handle.server.tokens.issuer.clone();
    let expired = Tokens::new(&handle.pki.service_account_key, &issuer, None).expect("a usable key");
    let now = jiff::Timestamp::now().as_second();
    let claims = |expires: i64| Claims {
        aud: vec![issuer.clone()],
        exp: Some(expires),
        iat: Some(now - 7200),
        iss: issuer.clone(),
        jti: None,
        kubernetes: Some(Kubernetes {
            namespace: "default".to_owned(),
            pod: None,
            node: None,
            secret: None,
            serviceaccount: Reference { name: "robot".to_owned(), uid: account.at("/metadata/uid") },
        }),
        nbf: Some(now - 7200),
        sub: "system:serviceaccount:default:robot".to_owned(),
        legacy_namespace: None,
        legacy_secret: None,
        legacy_name: None,
        legacy_uid: None,
    };
    let sign = |expires: i64| expired.sign(&claims(expires)).expect("a token");
    // The same token with time left is good, or the case below would prove nothing.
    with_user(json!({"token": sign(now + 600)})).await.get("api").await.expect(200);
    let intruder = |who, api, unknown| Intruder { who, api, unknown };
    vec![
        intruder("a stranger", with_user(json!({})).await, false),
        intruder("a certificate of another authority", with_pair(&foreign.admin).await, true),
        intruder("a certificate of the front proxy's authority", with_pair(&proxy_signed).await, true),
        intruder("an expired token", with_user(json!({"token": sign(now - 60)})).await, true),
        intruder("a token for another audience", with_user(json!({"token": elsewhere})).await, true),
        intruder("a user without rights", with_pair(&nobody).await, false),
    ]
}

/// Returns every path of every served resource with every method: those that discovery offers and the others.
async fn attempts(api: &Api) -> Vec<Attempt> {
    let mut attempts = BTreeSet::new();
    for root in ["api", "apis"] {
        let call = Call::new("GET", root).accept(AGGREGATED);
        for group in api.send(&call).await.expect(200).json()["items"].as_array().expect("groups") {
            let name = group["metadata"]["name"].as_str().unwrap_or("");
            for version in group["versions"].as_array().expect("versions") {
                let version_name = version["version"].as_str().expect("a name");
                let base = match name {
                    "" => format!("/api/{version_name}"),
                    name => format!("/apis/{name}/{version_name}"),
                };
                for resource in version["resources"].as_array().expect("resources") {
                    paths(&base, resource, |method, path, resource| {
                        attempts.insert(Attempt {
                            method,
                            path,
                            group: name.to_owned(),
                            resource: resource.to_owned(),
                        });
                    });
                }
            }
        }
    }
    attempts.into_iter().collect()
}

fn paths(base: &str, resource: &Value, mut add: impl FnMut(&'static str, String, &str)) {
    let name = resource["resource"].as_str().expect("a name");
    let scoped = match resource["scope"].as_str() {
        Some("Namespaced") => format!("{base}/namespaces/default/{name}"),
        _ => format!("{base}/{name}"),
    };
    let mut all = vec![
        format!("{base}/{name}"),
        format!("{base}/{name}?watch=true"),
        format!("{base}/watch/{name}"),
        scoped.clone(),
        format!("{scoped}?watch=true"),
        format!("{scoped}/one"),
        format!("{}/one", scoped.replacen(base, &format!("{base}/watch"), 1)),
    ];
    for subresource in resource["subresources"].as_array().into_iter().flatten() {
        let subresource = subresource["subresource"].as_str().expect("a name");
        all.push(format!("{scoped}/one/{subresource}"));
        all.push(format!("{scoped}/one/{subresource}/deeper"));
    }
    for path in all {
        for method in METHODS {
            add(method, path.clone(), name);
        }
    }
}
