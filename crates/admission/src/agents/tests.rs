//! Cases of who may do what; the whole matrix is tried on a server in `app/tests`.

use base64::Engine as _;
use serde_json::{Value, json};

use super::*;
use crate::Operation;

/// Cluster `b` is registered, and so is `a-impersonator`, whose Secret has the name of one of `a`'s.
struct Known;

impl Facts for Known {
    fn is_registered(&self, cluster: &str) -> bool {
        cluster == "b"
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<Secret> {
        let owned = |cluster: &str| Secret { owners: vec![cluster.to_owned()], ..Secret::default() };
        match (namespace, name) {
            (_, "a-impersonator") => Some(owned("a-impersonator")),
            (_, "b" | "b-impersonator") => Some(owned("b")),
            // Made by hand, for a Cluster that was made by hand. Even with the label of the system.
            (_, "creds") => Some(Secret { is_labelled: true, ..Secret::default() }),
            // A tenant's, in a namespace that once was an agent's.
            ("accounts", "password") => Some(Secret::default()),
            // Left by an agent that ended before it had its Cluster.
            (_, "password") => Some(Secret { is_labelled: true, ..Secret::default() }),
            (_, "c") => Some(owned("c")),
            // The Cluster names it; that does not make it its own.
            (_, "c-impersonator") => Some(Secret::default()),
            _ => None,
        }
    }

    fn users_of_secret(&self, _: &str, name: &str) -> Vec<String> {
        match name {
            "creds" => vec!["b".to_owned()],
            "c-impersonator" => vec!["c".to_owned()],
            _ => Vec::new(),
        }
    }

    fn registered_with(&self, id: &str) -> Vec<String> {
        match id {
            "id-of-b" => vec!["b".to_owned()],
            _ => Vec::new(),
        }
    }

    fn requester(&self, request: &str) -> Option<String> {
        match request {
            "a-1" => Some("system:karmada:agent:a".to_owned()),
            "b-1" => Some("system:karmada:agent:b".to_owned()),
            "t-1" => Some("system:bootstrap:abcdef".to_owned()),
            _ => None,
        }
    }

    fn is_propagated(&self, cluster: &str, object: Named<'_>) -> bool {
        cluster == "a" && object == Named { kind: "Deployment", namespace: "default", name: "web" }
    }

    fn is_system_namespace(&self, name: &str) -> bool {
        matches!(name, "karmada-system" | "karmada-cluster" | "accounts" | "karmada-es-b")
    }
}

fn who(user: &str) -> Who<'_> {
    Who::of(user, &[]).expect("somebody with bounds")
}

#[test]
fn who_has_bounds() {
    assert_eq!(Who::of("jane", &[]), None);
    assert_eq!(Who::of("jane", &[AGENTS.to_owned()]), Some(Who::Nobody));
    assert_eq!(Who::of("system:karmada:agent:a", &["system:masters".to_owned()]), Some(Who::Agent("a")));
    assert_eq!(Who::of("system:karmada:agent:", &[]), Some(Who::Nobody));
    assert_eq!(Who::of("system:karmada:agent:../b", &[]), Some(Who::Nobody));
    assert_eq!(Who::of(GENERATOR, &[]), Some(Who::Generator));
    assert_eq!(Who::of("system:bootstrap:abcdef", &[]), Some(Who::Bootstrap(None)));
    assert_eq!(Who::of("somebody", &[BOOTSTRAPPERS.to_owned()]), Some(Who::Bootstrap(None)));
    let for_one = [BOOTSTRAPPERS.to_owned(), format!("{BOOTSTRAP_CLUSTER_PREFIX}a")];
    assert_eq!(Who::of(TOKEN, &for_one), Some(Who::Bootstrap(Some("a"))));
}

const AGENT_A: &str = "system:karmada:agent:a";
const AGENT_C: &str = "system:karmada:agent:c";
/// Agents that chose the names of Secrets that are not theirs.
const AGENT_CREDS: &str = "system:karmada:agent:creds";
const AGENT_PASSWORD: &str = "system:karmada:agent:password";
const TOKEN: &str = "system:bootstrap:abcdef";

#[test]
fn what_is_ones_own_and_what_is_not() {
    // Who, verb, group, resource, namespace, name, and whether.
    let cases = [
        (AGENT_A, "get", "cluster.karmada.io", "clusters", "", "a", true),
        (AGENT_A, "get", "cluster.karmada.io", "clusters", "", "b", false),
        (AGENT_A, "list", "cluster.karmada.io", "clusters", "", "b", false),
        (AGENT_A, "deletecollection", "cluster.karmada.io", "clusters", "", "", false),
        (AGENT_A, "get", "cluster.karmada.io", "clusters/proxy", "", "a", false),
        (AGENT_A, "patch", "work.karmada.io", "works/status", "karmada-es-a", "w", true),
        (AGENT_A, "list", "work.karmada.io", "works", "", "", false),
        (AGENT_A, "list", "work.karmada.io", "works", "karmada-es-b", "", false),
        (AGENT_A, "update", "coordination.k8s.io", "leases", "karmada-cluster", "a", true),
        (AGENT_A, "update", "coordination.k8s.io", "leases", "karmada-cluster", "b", false),
        (AGENT_A, "update", "coordination.k8s.io", "leases", "karmada-system", "karmada-agent-a", true),
        (AGENT_A, "update", "coordination.k8s.io", "leases", "karmada-system", "a", false),
        (AGENT_A, "update", "coordination.k8s.io", "leases", "karmada-system", "karmada-scheduler", false),
        (AGENT_A, "get", "", "secrets", "karmada-cluster", "a", true),
        (AGENT_A, "get", "", "secrets", "accounts", "a", true),
        (AGENT_A, "get", "", "secrets", "default", "a", false),
        (AGENT_A, "get", "", "secrets", "karmada-system", "a", false),
        (AGENT_A, "get", "", "secrets", "karmada-cluster", "b", false),
        (AGENT_A, "get", "", "secrets", "karmada-cluster", "a-impersonator", false),
        (AGENT_A, "list", "", "secrets", "karmada-cluster", "", false),
        (AGENT_CREDS, "get", "", "secrets", "karmada-cluster", "creds", false),
        (AGENT_CREDS, "patch", "", "secrets", "karmada-cluster", "creds", false),
        (AGENT_PASSWORD, "get", "", "secrets", "accounts", "password", false),
        (AGENT_PASSWORD, "patch", "", "secrets", "accounts", "password", false),
        (AGENT_PASSWORD, "get", "", "secrets", "karmada-cluster", "password", true),
        (AGENT_C, "get", "", "secrets", "karmada-cluster", "c", true),
        (AGENT_C, "patch", "", "secrets", "karmada-cluster", "c", true),
        (AGENT_C, "get", "", "secrets", "karmada-cluster", "c-impersonator", false),
        (AGENT_A, "get", "", "namespaces", "", "karmada-es-a", true),
        (AGENT_A, "get", "", "namespaces", "", "karmada-es-b", false),
        (AGENT_A, "get", "", "namespaces", "", "default", false),
        (AGENT_A, "get", "certificates.k8s.io", "certificatesigningrequests", "", "a-1", true),
        (AGENT_A, "get", "certificates.k8s.io", "certificatesigningrequests", "", "b-1", false),
        (AGENT_A, "impersonate", "", "users", "", "admin", false),
        (TOKEN, "get", "certificates.k8s.io", "certificatesigningrequests", "", "t-1", true),
        (TOKEN, "get", "certificates.k8s.io", "certificatesigningrequests", "", "a-1", false),
        (TOKEN, "get", "", "configmaps", "kube-public", "cluster-info", true),
        (TOKEN, "get", "cluster.karmada.io", "clusters", "", "a", false),
        (GENERATOR, "get", "cluster.karmada.io", "clusters", "", "a", true),
        (GENERATOR, "get", "cluster.karmada.io", "clusters", "", "b", false),
        (
            GENERATOR,
            "delete",
            "rbac.authorization.k8s.io",
            "clusterroles",
            "",
            "system:karmada:a:agent",
            true,
        ),
        (
            GENERATOR,
            "delete",
            "rbac.authorization.k8s.io",
            "clusterroles",
            "",
            "system:karmada:b:agent",
            false,
        ),
        (GENERATOR, "delete", "rbac.authorization.k8s.io", "clusterroles", "", "cluster-admin", false),
        (GENERATOR, "get", "", "secrets", "karmada-cluster", "a", false),
        ("system:karmada:agent:", "get", "cluster.karmada.io", "clusters", "", "", false),
    ];
    for (user, verb, group, resource, namespace, name, expected) in cases {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let wanted = Wanted { verb, group, resource, subresource, namespace, name, path: None };
        let decided = may(who(user), user, &wanted, &Known);
        assert_eq!(
            decided.is_ok(),
            expected,
            "{user} {verb} {group} {resource} {namespace}/{name}: {decided:?}"
        );
    }
}

#[test]
fn lists_are_narrowed_to_what_is_ones_own() {
    let list = |resource, group| Wanted { verb: "list", group, resource, ..Wanted::default() };
    let only = |wanted: &Wanted<'_>| may(who(AGENT_A), AGENT_A, wanted, &Known).expect("allowed").only;
    assert_eq!(only(&list("clusters", "cluster.karmada.io")).as_deref(), Some("metadata.name=a"));
    assert_eq!(only(&list("services", "")).as_deref(), Some("metadata.namespace=karmada-system"));
    assert_eq!(only(&list("resourceinterpretercustomizations", "config.karmada.io")), None);
}

#[test]
fn paths_that_tell_what_is_served_are_open() {
    for (path, expected) in
        [("/api", true), ("/apis/apps/v1", true), ("/apiserver", false), ("/metrics", false)]
    {
        let wanted = Wanted { verb: "get", path: Some(path), ..Wanted::default() };
        assert_eq!(may(who(AGENT_A), AGENT_A, &wanted, &Known).is_ok(), expected, "{path}");
        let post = Wanted { verb: "post", ..wanted };
        assert!(may(who(AGENT_A), AGENT_A, &post, &Known).is_err(), "{path}");
    }
}

fn request(common_name: &str, organization: &str, names: &[&str], usages: Value) -> Value {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut parameters = rcgen::CertificateParams::new(names).expect("names");
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    parameters.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    let key = rcgen::KeyPair::generate().expect("a key");
    let pem = parameters.serialize_request(&key).and_then(|made| made.pem()).expect("a request");
    json!({ "spec": {
        "signerName": "kubernetes.io/kube-apiserver-client",
        "request": base64::engine::general_purpose::STANDARD.encode(pem),
        "usages": usages,
    } })
}

fn usual() -> Value {
    json!(["digital signature", "key encipherment", "client auth"])
}

#[test]
fn which_certificate_requests_are_those_of_agents() {
    let read = |object: &Value| CertificateRequest::read(object).map(|request| request.common_name);
    assert_eq!(read(&request(AGENT_A, AGENTS, &[], usual())).as_deref(), Some(AGENT_A));
    let fewer = json!(["client auth", "digital signature"]);
    assert_eq!(read(&request(AGENT_A, AGENTS, &[], fewer)).as_deref(), Some(AGENT_A));
    assert_eq!(read(&request(AGENT_A, AGENTS, &["a.example.com"], usual())), None);
    assert_eq!(read(&request(AGENT_A, "system:masters", &[], usual())), None);
    assert_eq!(read(&request("jane", AGENTS, &[], usual())), None);
    assert_eq!(read(&request(AGENT_A, AGENTS, &[], json!(["client auth", "server auth"]))), None);
    let mut other = request(AGENT_A, AGENTS, &[], usual());
    other["spec"]["signerName"] = "kubernetes.io/kubelet-serving".into();
    assert_eq!(read(&other), None);
    other["spec"]["request"] = "nonsense".into();
    assert_eq!(read(&other), None);
}

/// Parsers differ in which of several blocks they read. Go passes over a block whose END does not match its BEGIN and reads the
/// next one: a certificate for the second name would be signed after the first was approved.
#[test]
fn a_request_is_one_block_and_nothing_else() {
    let pem = |name: &str| {
        let object = request(name, AGENTS, &[], usual());
        let encoded = object["spec"]["request"].as_str().expect("a request");
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).expect("Base64");
        String::from_utf8(bytes).expect("text")
    };
    let read = |text: &str| {
        let mut object = request(AGENT_A, AGENTS, &[], usual());
        object["spec"]["request"] = base64::engine::general_purpose::STANDARD.encode(text).into();
        CertificateRequest::read(&object).map(|request| request.common_name)
    };
    let (own, other) = (pem(AGENT_A), pem(GENERATOR));
    for fine in [own.clone(), format!("\n{own}\n\n"), own.replace('\n', "\r\n"), own.trim().to_owned()] {
        assert_eq!(read(&fine).as_deref(), Some(AGENT_A), "{fine}");
    }
    let ends = "-----END CERTIFICATE REQUEST-----";
    for (what, text) in [
        ("another end", format!("{}{other}", own.replace(ends, "-----END X-----"))),
        ("another begin", format!("{}{other}", own.replace("BEGIN CERTIFICATE REQUEST", "BEGIN X"))),
        ("two blocks", format!("{own}{other}")),
        ("no end", format!("{}{other}", own.replace(ends, ""))),
        ("text before", format!("hello\n{own}")),
        ("text after", format!("{own}hello")),
        ("headers", own.replacen('\n', "\nA: b\n\n", 1)),
        ("a label of old", own.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST")),
        ("nothing", String::new()),
    ] {
        assert_eq!(read(&text), None, "{what}");
    }
}

/// Other names hide in a second attribute, which our parser passes over when it is asked for the extensions.
#[test]
fn other_names_are_found_wherever_they_are() {
    const EXTENSIONS: &[u64] = &[1, 2, 840, 113_549, 1, 9, 14];
    let attribute = |values: &[u8]| rcgen::Attribute { oid: EXTENSIONS, values: values.to_vec() };
    let harmless = [0x31, 13, 0x30, 11, 0x30, 9, 6, 3, 0x55, 0x1d, 0x13, 4, 2, 0x30, 0];
    let name = [0x31, 16, 0x30, 14, 0x30, 12, 6, 3, 0x55, 0x1d, 0x11, 4, 5, 0x30, 3, 0x82, 1, b'x'];
    let read = |attributes: &[&[u8]]| {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::OrganizationName, AGENTS);
        parameters.distinguished_name.push(rcgen::DnType::CommonName, AGENT_A);
        let key = rcgen::KeyPair::generate().expect("a key");
        let attributes = attributes.iter().map(|values| attribute(values)).collect();
        let made = parameters.serialize_request_with_attributes(&key, attributes);
        let pem = made.and_then(|made| made.pem()).expect("a request");
        let mut object = request(AGENT_A, AGENTS, &[], usual());
        object["spec"]["request"] = base64::engine::general_purpose::STANDARD.encode(pem).into();
        CertificateRequest::read(&object).is_some()
    };
    assert!(read(&[&harmless]));
    assert!(!read(&[&harmless, &name]) && !read(&[&name, &harmless]));
}

fn write(user: &str, group: &str, kind: &str, namespace: &str, object: &Value) -> Result<(), String> {
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    let operation = Operation::Create;
    let write = Write { operation, group, kind, subresource: "", namespace, name, object, old: None };
    check(who(user), &write, &Known)
}

#[test]
fn what_an_agent_writes_is_its_own() {
    let cluster = |name: &str, rest: Value| {
        let mut object = json!({ "metadata": { "name": name }, "spec": { "syncMode": "Pull" } });
        apimachinery::patch::merge::apply(&mut object, rest);
        write(AGENT_A, "cluster.karmada.io", "Cluster", "", &object)
    };
    assert_eq!(cluster("a", json!({})), Ok(()));
    assert!(cluster("c", json!({})).is_err());
    assert!(cluster("a", json!({ "spec": { "syncMode": "Push" } })).is_err());
    assert!(cluster("a", json!({ "metadata": { "labels": { "env": "prod" } } })).is_err());
    assert!(cluster("a", json!({ "spec": { "taints": [{ "key": "k", "effect": "NoSchedule" }] } })).is_err());
    let secret = |namespace: &str, name: &str, kind: &str| {
        let object = json!({ "metadata": { "name": name }, "type": kind });
        write(AGENT_A, "", "Secret", namespace, &object)
    };
    assert_eq!(secret("karmada-cluster", "a", "Opaque"), Ok(()));
    assert!(secret("karmada-cluster", "other", "Opaque").is_err());
    assert!(secret("default", "a", "Opaque").is_err());
    assert!(secret("karmada-cluster", "a", "kubernetes.io/service-account-token").is_err());
    let lease = |namespace: &str, name: &str| {
        let object = json!({ "metadata": { "name": name } });
        write(AGENT_A, "coordination.k8s.io", "Lease", namespace, &object)
    };
    assert!(lease("karmada-cluster", "a").is_ok() && lease("karmada-cluster", "b").is_err());
    let ask = |name: &str| {
        let object = request(name, AGENTS, &[], usual());
        write(AGENT_A, "certificates.k8s.io", "CertificateSigningRequest", "", &object)
    };
    assert!(ask(AGENT_A).is_ok() && ask("system:karmada:agent:c").is_err() && ask(GENERATOR).is_err());
}

#[test]
fn an_update_keeps_what_is_not_the_agents_to_say() {
    let old =
        json!({ "metadata": { "name": "a", "labels": { "env": "dev" } }, "spec": { "syncMode": "Pull" } });
    let update = |object: &Value| {
        let (group, kind, name) = ("cluster.karmada.io", "Cluster", "a");
        let (operation, old) = (Operation::Update, Some(&old));
        let write = Write { operation, group, kind, subresource: "", namespace: "", name, object, old };
        check(who(AGENT_A), &write, &Known)
    };
    assert_eq!(update(&old), Ok(()));
    let mut moved = old.clone();
    moved["spec"]["region"] = "elsewhere".into();
    assert_eq!(update(&moved), Ok(()));
    moved["metadata"]["labels"]["env"] = "prod".into();
    assert_eq!(update(&moved), Err("an agent does not change the labels of its cluster".to_owned()));
}

#[test]
fn one_member_has_one_name() {
    let cluster = |id: Option<&str>| {
        let spec = json!({ "syncMode": "Pull", "id": id });
        json!({ "metadata": { "name": "a" }, "spec": spec })
    };
    let (group, kind, name) = ("cluster.karmada.io", "Cluster", "a");
    let write = |operation, object: &Value, old: Option<&Value>| {
        let write = Write { operation, group, kind, subresource: "", namespace: "", name, object, old };
        check(who(AGENT_A), &write, &Known)
    };
    let (own, other, none) = (cluster(Some("id-of-a")), cluster(Some("id-of-b")), cluster(None));
    let refused =
        "the cluster ID id-of-b has been registered with name \"b\"; unregister it there first".to_owned();
    assert_eq!(write(Operation::Create, &own, None), Ok(()));
    assert_eq!(write(Operation::Create, &none, None), Ok(()));
    assert_eq!(write(Operation::Create, &other, None), Err(refused.clone()));
    assert_eq!(write(Operation::Update, &other, Some(&own)), Err(refused));
    // Whatever came about in another way does not keep the agent from writing.
    assert_eq!(write(Operation::Update, &other, Some(&other)), Ok(()));
}

#[test]
fn an_agent_tells_of_what_it_has_to_do_with() {
    let tell = |field: &str, kind: &str, namespace: &str, name: &str| {
        let group = if field == "regarding" { "events.k8s.io" } else { "" };
        let object = json!({ field: { "kind": kind, "namespace": namespace, "name": name } });
        write(AGENT_A, group, "Event", "default", &object)
    };
    let cases = [
        ("Cluster", "", "a", true),
        ("Cluster", "", "b", false),
        ("Cluster", "default", "a", false),
        ("Work", "karmada-es-a", "w", true),
        ("Work", "karmada-es-b", "w", false),
        ("Deployment", "default", "web", true),
        ("Deployment", "default", "other", false),
        ("Secret", "default", "web", false),
        ("Lease", "karmada-system", "karmada-agent-a", true),
        ("Lease", "karmada-system", "karmada-agent-b", false),
        ("Lease", "karmada-cluster", "a", true),
        ("Lease", "karmada-cluster", "b", false),
    ];
    for (kind, namespace, name, expected) in cases {
        for field in ["involvedObject", "regarding"] {
            let told = tell(field, kind, namespace, name);
            assert_eq!(told.is_ok(), expected, "{field} {kind} {namespace}/{name}: {told:?}");
        }
    }
    // An Event about something else does not become the agent's own.
    let (old, object) = (
        json!({ "involvedObject": { "kind": "Cluster", "name": "b" } }),
        json!({ "involvedObject": { "kind": "Cluster", "name": "a" } }),
    );
    let (operation, group, kind) = (Operation::Update, "", "Event");
    let taken = Write {
        operation,
        group,
        kind,
        subresource: "",
        namespace: "default",
        name: "e",
        object: &object,
        old: Some(&old),
    };
    assert!(check(who(AGENT_A), &taken, &Known).is_err());
}

#[test]
fn a_token_for_one_cluster_asks_for_no_other() {
    let groups = [BOOTSTRAPPERS.to_owned(), format!("{BOOTSTRAP_CLUSTER_PREFIX}a")];
    let ask = |common_name: &str, name: &str| {
        let object = request(common_name, AGENTS, &[], usual());
        let (group, kind) = ("certificates.k8s.io", "CertificateSigningRequest");
        let (operation, namespace) = (Operation::Create, "");
        let object = &object;
        let write = Write { operation, group, kind, subresource: "", namespace, name, object, old: None };
        check(Who::of(TOKEN, &groups).expect("a token"), &write, &Known)
    };
    assert_eq!(ask(AGENT_A, "a-x2b4c"), Ok(()));
    let other = ask(AGENT_C, "c-x2b4c");
    assert_eq!(other, Err("the token is for cluster \"a\", not for \"c\"".to_owned()));
    // The right to write roles carries no cluster's name; the request for it does.
    assert_eq!(ask(GENERATOR, "agent-rbac-generator-ax2b4c"), Ok(()));
    for name in
        ["agent-rbac-generator-cx2b4c", "agent-rbac-generator-a", "agent-rbac-generator-a-bx2b4c", "r"]
    {
        let refused = ask(GENERATOR, name).expect_err(name);
        assert!(refused.contains("the token is for cluster \"a\""), "{refused}");
    }
}

#[test]
fn a_token_asks_for_names_that_are_free() {
    let ask = |name: &str| {
        let object = request(name, AGENTS, &[], usual());
        write(TOKEN, "certificates.k8s.io", "CertificateSigningRequest", "", &object)
    };
    assert!(ask(AGENT_A).is_ok() && ask(GENERATOR).is_ok());
    assert_eq!(ask("system:karmada:agent:b"), Err("cluster \"b\" is registered already".to_owned()));
    assert!(ask("system:karmada:agent:A/..").is_err() && ask("jane").is_err());
}

#[test]
fn the_generator_writes_the_roles_of_a_free_cluster_and_nothing_else() {
    let all = |cluster: &str, namespace: &str| {
        let objects = roles(cluster, namespace);
        objects.iter().map(generate).collect::<Result<Vec<()>, String>>()
    };
    assert_eq!(all("a", "karmada-cluster").map(|list| list.len()), Ok(6));
    assert_eq!(all("a", "accounts").map(|list| list.len()), Ok(6));
    assert!(all("a", "default").is_err() && all("b", "karmada-cluster").is_err());

    let mut role = roles("a", "karmada-cluster")[0].clone();
    role["rules"][0]["resourceNames"] = json!(["b"]);
    assert!(generate(&role).is_err(), "another cluster");
    role["rules"] = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
    assert!(generate(&role).is_err(), "everything");
    role["rules"] = json!([]);
    role["metadata"]["labels"] = json!({ "rbac.authorization.k8s.io/aggregate-to-admin": "true" });
    assert!(generate(&role).is_err(), "a part of another role");
    let mut binding = roles("a", "karmada-cluster")[1].clone();
    binding["subjects"][0]["name"] = "jane".into();
    assert!(generate(&binding).is_err(), "for somebody else");
    let mut binding = roles("a", "karmada-cluster")[1].clone();
    binding["roleRef"]["name"] = "cluster-admin".into();
    assert!(generate(&binding).is_err(), "another role");

    let namespace = |name: &str, labels: Value| {
        let object = json!({ "metadata": { "name": name, "labels": labels } });
        write(GENERATOR, "", "Namespace", "", &object)
    };
    assert!(namespace("karmada-es-a", json!({})).is_ok() && namespace("karmada-es-b", json!({})).is_err());
    assert!(namespace("accounts", json!({ "karmada.io/system": "true" })).is_ok());
    assert!(namespace("default", json!({})).is_err());
}

fn generate(object: &Value) -> Result<(), String> {
    let kind = object["kind"].as_str().unwrap_or("");
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("");
    write(GENERATOR, "rbac.authorization.k8s.io", kind, namespace, object)
}
