//! The rights in a control plane with agents: every verb on every resource, as an agent, as a bootstrap token and as the
//! identity that writes the roles of new agents.
//!
//! Everything is asked for over HTTP, writes as dry runs. What is not refused is written down and compared with
//! `pull_rights.golden` (to refresh it: `KARMADA_RS_REFRESH=1`).

use std::collections::BTreeSet;
use std::path::Path;

use base64::Engine as _;
use http::{Method, Request};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use testkit::{Server, eventually, install_tls};

use crate::members::{Access, Members};
use crate::plane::KARMADA;
use crate::pull::{Newcomer, token};

/// Somebody, over HTTP.
struct Caller {
    name: &'static str,
    client: Client,
}

impl Caller {
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        as_user: Option<&str>,
    ) -> (u16, Value) {
        let patch = method == Method::PATCH;
        let mut request = Request::builder().method(method).uri(path);
        if let Some(user) = as_user {
            request = request.header("Impersonate-User", user);
        }
        let kind = if patch { "application/merge-patch+json" } else { "application/json" };
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request =
            request.header("content-type", kind).body(kube::client::Body::from(bytes)).expect("a request");
        let response = self.client.send(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        let code = response.status().as_u16();
        let collected = http_body_util::BodyExt::collect(response.into_body());
        // A watch that is allowed need not be followed. Anything else is read to its end, which a busy machine may take a while for.
        let watching = path.contains("watch=1");
        let usual = std::time::Duration::from_millis(if watching { 200 } else { 30_000 });
        let body = tokio::time::timeout(testkit::slowed(usual), collected).await;
        let bytes = body.map(|body| body.expect("an answer").to_bytes()).unwrap_or_default();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn code(&self, method: Method, path: &str, body: Option<&Value>) -> u16 {
        self.send(method, path, body, None).await.0
    }
}

async fn with(config: &Config, auth: AuthInfo) -> Client {
    let mut config = config.clone();
    config.auth_info = auth;
    Client::try_from(config).expect("a client")
}

async fn config(kubeconfig: &Path) -> Config {
    let file = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a configuration")
}

/// A resource or subresource that is served.
#[derive(Debug)]
struct Served {
    /// `/api/v1` or `/apis/GROUP/VERSION`
    root: String,
    group: String,
    resource: String,
    namespaced: bool,
}

async fn served(admin: &Caller) -> Vec<Served> {
    let mut roots = vec![("/api/v1".to_owned(), String::new())];
    let (_, groups) = admin.send(Method::GET, "/apis", None, None).await;
    for group in groups["groups"].as_array().expect("groups") {
        let name = group["name"].as_str().expect("a name");
        for version in group["versions"].as_array().expect("versions") {
            let version = version["groupVersion"].as_str().expect("a version");
            roots.push((format!("/apis/{version}"), name.to_owned()));
        }
    }
    let mut all = Vec::new();
    for (root, group) in roots {
        let (_, list) = admin.send(Method::GET, &root, None, None).await;
        for resource in list["resources"].as_array().expect("resources") {
            all.push(Served {
                root: root.clone(),
                group: group.clone(),
                resource: resource["name"].as_str().expect("a name").to_owned(),
                namespaced: resource["namespaced"] == true,
            });
        }
    }
    assert!(all.len() > 80, "{} resources", all.len());
    all
}

const VERBS: [(&str, Method); 8] = [
    ("get", Method::GET),
    ("list", Method::GET),
    ("watch", Method::GET),
    ("create", Method::POST),
    ("update", Method::PUT),
    ("patch", Method::PATCH),
    ("delete", Method::DELETE),
    ("deletecollection", Method::DELETE),
];

impl Served {
    /// Returns the path of a request and whether it names an object; nothing where there is no such request.
    fn path(&self, verb: &str, namespace: &str, name: &str) -> Option<(String, bool)> {
        let (resource, subresource) =
            self.resource.split_once('/').map_or((self.resource.as_str(), ""), |it| it);
        let is_collection = matches!(verb, "list" | "watch" | "deletecollection")
            || (verb == "create" && subresource.is_empty());
        if is_collection && !subresource.is_empty() {
            return None;
        }
        let place = match (self.namespaced, namespace) {
            (true, "") if is_collection && verb != "create" => String::new(),
            (true, "") | (false, _) if self.namespaced => return None,
            (true, namespace) => format!("/namespaces/{namespace}"),
            (false, _) => String::new(),
        };
        let mut path = format!("{}{place}/{resource}", self.root);
        if !is_collection {
            path = format!("{path}/{name}");
        }
        if !subresource.is_empty() {
            path = format!("{path}/{subresource}");
        }
        let path = match verb {
            "watch" => format!("{path}?watch=1&timeoutSeconds=1"),
            "get" | "list" => path,
            _ => format!("{path}?dryRun=All"),
        };
        Some((path, !is_collection))
    }
}

/// Tries every verb on every resource in a place; returns what was not refused.
async fn allowed(caller: &Caller, served: &[Served], namespace: &str, name: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for resource in served {
        for (verb, method) in &VERBS {
            let Some((path, named)) = resource.path(verb, namespace, name) else { continue };
            let body = matches!(*verb, "create" | "update" | "patch").then(|| json!({}));
            let code = caller.code(method.clone(), &path, body.as_ref()).await;
            if !matches!(code, 403 | 405) {
                let place = if resource.namespaced { format!(" in {namespace:?}") } else { String::new() };
                let object = if named { format!(" named {name:?}") } else { String::new() };
                let (what, group) = (&resource.resource, &resource.group);
                found.insert(format!("{}: {verb} {what} of {group:?}{place}{object}", caller.name));
            }
        }
    }
    found
}

fn signing_request(common_name: &str, name: &str) -> Value {
    let mut parameters = rcgen::CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "system:karmada:agents");
    parameters.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    let key = rcgen::KeyPair::generate().expect("a key");
    let pem = parameters.serialize_request(&key).and_then(|made| made.pem()).expect("a request");
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": name },
        "spec": {
            "signerName": "kubernetes.io/kube-apiserver-client",
            "request": base64::engine::general_purpose::STANDARD.encode(pem),
            "usages": ["digital signature", "client auth"],
        },
    })
}

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";

#[tokio::test(flavor = "multi_thread")]
async fn agents_and_tokens_reach_what_is_their_own_and_nothing_else() {
    install_tls();
    let members = Members::simulated(Access::Exclusive, 2).await.expect("members");
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(KARMADA, &[]);
    let admin = Caller { name: "admin", client: server.client().await };
    let flags = token(&server);
    let mut agents = Vec::new();
    for (name, place) in ["a", "b"].iter().zip(members.places()) {
        let newcomer = Newcomer::new(&server, name, &place.kubeconfig, folder.path());
        let agent = newcomer.register(&flags);
        eventually("the cluster is registered", async || {
            let path = format!("{CLUSTERS}/{name}");
            let (_, found) = admin.send(Method::GET, &path, None, None).await;
            let ready = found["status"]["conditions"].to_string().contains("ClusterReady");
            if ready { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
        agents.push((newcomer.kubeconfig, agent));
    }
    // They are registered; from here on the test acts in their names.
    let plain = config(&server.kubeconfig()).await;
    let agent = config(&agents[0].0).await;
    agents.clear();
    let agent = Caller { name: "agent of a", client: with(&plain, agent.auth_info).await };
    let secret = AuthInfo { token: Some(flags[1].clone().into()), ..AuthInfo::default() };
    let token = Caller { name: "bootstrap token", client: with(&plain, secret).await };
    let generator = generator(&plain, &token, &admin).await;
    let served = served(&admin).await;

    // What is b's, or nobody's.
    let mut refused = BTreeSet::new();
    for caller in [&agent, &token, &generator] {
        for (namespace, name) in [("karmada-es-b", "b"), ("karmada-cluster", "b"), ("default", "a")] {
            refused.extend(allowed(caller, &served, namespace, name).await);
        }
    }
    let own: BTreeSet<String> = {
        let mut own = BTreeSet::new();
        for namespace in ["karmada-es-a", "karmada-cluster", "karmada-system", ""] {
            own.extend(allowed(&agent, &served, namespace, "a").await);
        }
        own
    };
    let mut all: Vec<&String> = own.union(&refused).collect();
    all.sort();
    let text: String = all.iter().map(|line| format!("{line}\n")).collect();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/propagation/pull_rights.golden");
    if std::env::var_os("KARMADA_RS_REFRESH").is_some() {
        std::fs::write(&golden, &text).expect("written");
    }
    let known = std::fs::read_to_string(&golden).expect("a golden file");
    assert_eq!(text, known, "what is allowed differs from {}", golden.display());

    lists_show_what_is_ones_own(&agent).await;
    writes_of_others_are_refused(&agent, &token, &generator).await;
    one_member_has_one_name(&admin, &agent).await;
    names_open_no_secrets(&plain, &admin, &token, &generator).await;
    roles_do_not_widen_it(&admin, &agent).await;
}

/// Gets the certificate in whose name the roles of agents are written.
async fn generator(plain: &Config, token: &Caller, admin: &Caller) -> Caller {
    let name = "system:karmada:agent:rbac-generator";
    let (caller, made) = certified("generator", name, plain, token, admin).await;
    assert_eq!(made["spec"]["expirationSeconds"], 600, "the right to write roles is short");
    caller
}

/// Gets a certificate with a token; returns whoever shows it, and the request.
async fn certified(
    caller: &'static str,
    common_name: &str,
    plain: &Config,
    token: &Caller,
    admin: &Caller,
) -> (Caller, Value) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "system:karmada:agents");
    parameters.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    let pem = parameters.serialize_request(&key).and_then(|made| made.pem()).expect("a request");
    let mut object = signing_request("", caller);
    let encode = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
    object["spec"]["request"] = encode(pem).into();
    object["spec"]["expirationSeconds"] = 31_536_000.into();
    let (code, made) = token.send(Method::POST, REQUESTS, Some(&object), None).await;
    assert_eq!(code, 201, "{made}");
    let certificate = eventually("a certificate", async || {
        let (_, found) = admin.send(Method::GET, &format!("{REQUESTS}/{caller}"), None, None).await;
        found["status"]["certificate"].as_str().map(str::to_owned).ok_or_else(|| found.to_string())
    })
    .await;
    let auth = AuthInfo {
        client_certificate_data: Some(certificate),
        client_key_data: Some(encode(key.serialize_pem()).into()),
        ..AuthInfo::default()
    };
    (Caller { name: caller, client: with(plain, auth).await }, made)
}

/// Whoever has a token chooses the name of a cluster, and the name of a Secret follows from it. That makes the Secret of a
/// Cluster that was made by hand, or of a tenant, nobody's but theirs.
async fn names_open_no_secrets(plain: &Config, admin: &Caller, token: &Caller, generator: &Caller) {
    let create = async |caller: &Caller, path: &str, object: &Value| {
        let (code, answer) = caller.send(Method::POST, path, Some(object), None).await;
        assert_eq!(code, 201, "{} {path}: {answer}", caller.name);
    };
    let secret = |name: &str| {
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "stringData": { "token": "of somebody else" } })
    };
    let namespace = |name: &str| {
        json!({ "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "labels": { "karmada.io/system": "true" } } })
    };
    for (name, cluster, place) in
        [("hand-made", "m1-creds", "karmada-cluster"), ("tenant", "db-password", "prod")]
    {
        let common_name = format!("system:karmada:agent:{cluster}");
        let (agent, _) = certified(name, &common_name, plain, token, admin).await;
        let places = [format!("karmada-es-{cluster}"), place.to_owned()];
        for place in places.iter().filter(|place| *place != "karmada-cluster") {
            create(generator, "/api/v1/namespaces", &namespace(place)).await;
        }
        for object in admission::agents::roles(cluster, place) {
            let plural = format!("{}s", object["kind"].as_str().expect("a kind").to_lowercase());
            let path = match object["metadata"]["namespace"].as_str() {
                Some(namespace) => format!("namespaces/{namespace}/{plural}"),
                None => plural,
            };
            create(generator, &format!("/apis/rbac.authorization.k8s.io/v1/{path}"), &object).await;
        }
        // Afterwards, and without a word about whose it is.
        let secrets = format!("/api/v1/namespaces/{place}/secrets");
        create(admin, &secrets, &secret(cluster)).await;
        if name == "hand-made" {
            let reference = json!({ "namespace": place, "name": cluster });
            let pushed = json!({ "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
                "metadata": { "name": "m1" },
                "spec": { "syncMode": "Push", "apiEndpoint": "https://127.0.0.1:1", "secretRef": reference } });
            create(admin, CLUSTERS, &pushed).await;
        }
        let (path, nothing) = (format!("{secrets}/{cluster}"), json!({}));
        for (method, path, body) in [
            (Method::GET, &path, None),
            (Method::PATCH, &path, Some(&nothing)),
            (Method::PUT, &path, Some(&secret(cluster))),
            (Method::POST, &secrets, Some(&secret(cluster))),
        ] {
            let (code, answer) = agent.send(method.clone(), path, body, None).await;
            assert_eq!(code, 403, "{name}: {method} {path}: {answer}");
            assert!(!answer.to_string().contains("b2Ygc29tZWJvZHkgZWxzZQ"), "{answer}");
        }
        // What it makes itself is its own.
        let own = format!("{cluster}-impersonator");
        let made = json!({ "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": own, "labels": { "karmada.io/system": "true" } } });
        create(&agent, &secrets, &made).await;
        assert_eq!(agent.code(Method::GET, &format!("{secrets}/{own}"), None).await, 200);
    }
}

/// A member that is registered cannot be registered under a second name. An agent sees its own Cluster only, so it cannot tell.
async fn one_member_has_one_name(admin: &Caller, agent: &Caller) {
    let (_, other) = admin.send(Method::GET, &format!("{CLUSTERS}/b"), None, None).await;
    let id = other["spec"]["id"].as_str().expect("an id");
    let change = json!({ "spec": { "id": id } });
    let (code, answer) = agent.send(Method::PATCH, &format!("{CLUSTERS}/a"), Some(&change), None).await;
    let told = answer["message"].as_str().unwrap_or("");
    let expected =
        format!("the cluster ID {id} has been registered with name \"b\"; unregister it there first");
    assert!(code == 403 && told.ends_with(&expected), "{answer}");
}

async fn lists_show_what_is_ones_own(agent: &Caller) {
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().filter_map(|item| item["metadata"]["name"].as_str()).map(str::to_owned).collect()
    };
    let (_, list) = agent.send(Method::GET, CLUSTERS, None, None).await;
    assert_eq!(names(&list), ["a"]);
    let (code, _) =
        agent.send(Method::GET, &format!("{CLUSTERS}?fieldSelector=metadata.name%3Db"), None, None).await;
    assert_eq!(code, 403);
    let (_, list) =
        agent.send(Method::GET, &format!("{CLUSTERS}?fieldSelector=metadata.name%21%3Da"), None, None).await;
    assert_eq!(names(&list), [""; 0]);
    let (_, services) = agent.send(Method::GET, "/api/v1/services", None, None).await;
    assert_eq!(names(&services), [""; 0], "those of others are not shown");
}

async fn writes_of_others_are_refused(agent: &Caller, token: &Caller, generator: &Caller) {
    let cluster = |name: &str, mode: &str| {
        json!({ "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": { "name": name },
            "spec": { "syncMode": mode } })
    };
    let secret = |name: &str, kind: &str| {
        let account = json!({ "kubernetes.io/service-account.name": "default" });
        json!({ "apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": { "name": name, "annotations": account } })
    };
    let lease =
        json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "b" } });
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "system:karmada:c:agent" },
        "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] }] });
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "system:karmada:c:agent" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:karmada:agent:c" }] });
    let secrets = "/api/v1/namespaces/karmada-cluster/secrets";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/karmada-cluster/leases";
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let (roles, bindings) = (format!("{rbac}/clusterroles"), format!("{rbac}/clusterrolebindings"));
    let token_kind = "kubernetes.io/service-account-token";
    for (caller, path, object) in [
        (agent, CLUSTERS, cluster("c", "Pull")),
        (agent, secrets, secret("c", "Opaque")),
        (agent, secrets, secret("a", token_kind)),
        (agent, leases, lease),
        (agent, REQUESTS, signing_request("system:karmada:agent:b", "b-x")),
        (agent, REQUESTS, signing_request("system:karmada:agent:c", "c-x")),
        (agent, REQUESTS, signing_request("system:karmada:agent:rbac-generator", "g-x")),
        (token, REQUESTS, signing_request("system:karmada:agent:b", "b-y")),
        (token, REQUESTS, signing_request("somebody", "s-y")),
        (token, CLUSTERS, cluster("c", "Pull")),
        (generator, REQUESTS, signing_request("system:karmada:agent:c", "c-z")),
        (generator, &roles, role),
        (generator, &bindings, binding),
        (generator, CLUSTERS, cluster("c", "Pull")),
    ] {
        let (code, answer) = caller.send(Method::POST, path, Some(&object), None).await;
        assert_eq!(code, 403, "{} {path}: {answer}", caller.name);
    }
    let change = json!({ "metadata": { "labels": { "env": "prod" } } });
    for (path, change) in [
        (format!("{CLUSTERS}/a"), change),
        (format!("{CLUSTERS}/a"), json!({ "spec": { "syncMode": "Push" } })),
        (format!("{CLUSTERS}/a"), json!({ "metadata": { "finalizers": [] } })),
    ] {
        assert_eq!(agent.code(Method::PATCH, &path, Some(&change)).await, 403, "{path} {change}");
    }
    for caller in [agent, token, generator] {
        for path in [
            format!("{CLUSTERS}/b/proxy/api"),
            format!("{CLUSTERS}/a/proxy/api/v1/secrets"),
            "/metrics".into(),
        ] {
            assert_eq!(caller.code(Method::GET, &path, None).await, 403, "{} {path}", caller.name);
        }
        for user in ["system:admin", "system:karmada:agent:b", "system:serviceaccount:default:default"] {
            let (code, _) = caller.send(Method::GET, "/api/v1/namespaces", None, Some(user)).await;
            assert_eq!(code, 403, "{} as {user}", caller.name);
        }
    }
}

/// A role that gives an agent everything gives it nothing.
async fn roles_do_not_widen_it(admin: &Caller, agent: &Caller) {
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "everything" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:karmada:agent:a" }] });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    assert_eq!(admin.code(Method::POST, bindings, Some(&binding)).await, 201);
    for path in ["/api/v1/secrets", "/api/v1/namespaces/karmada-cluster/secrets/b", &format!("{CLUSTERS}/b")]
    {
        assert_eq!(agent.code(Method::GET, path, None).await, 403, "{path}");
    }
    assert_eq!(agent.code(Method::GET, &format!("{CLUSTERS}/a"), None).await, 200);
    // Without its roles an agent has no rights at all.
    for name in ["everything", "system:karmada:a:agent"] {
        assert_eq!(admin.code(Method::DELETE, &format!("{bindings}/{name}"), None).await, 200);
    }
    // A right that is taken away ends a moment after the answer, as on kube-apiserver.
    eventually("an agent without its roles has no rights", async || {
        match agent.code(Method::GET, &format!("{CLUSTERS}/a"), None).await {
            403 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    assert_eq!(
        agent.code(Method::GET, "/apis/work.karmada.io/v1alpha1/namespaces/karmada-es-a/works", None).await,
        200,
        "its role in the namespace still holds"
    );
}
