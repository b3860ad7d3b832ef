//! More rights than one was given: roles, signing requests, tokens, impersonation.

use std::time::Duration;

use base64::Engine as _;
use rcgen::string::{BmpString, TeletexString};
use rcgen::{DnType, DnValue};
use serde_json::{Value, json};

use crate::stage::{Stage, Verdict};
use crate::wire::{Answer, Door, request};

const RBAC: &str = "apis/rbac.authorization.k8s.io/v1";
const CSRS: &str = "apis/certificates.k8s.io/v1/certificatesigningrequests";
const TREASURE: &str = "api/v1/namespaces/other/secrets/treasure";

fn everything() -> Value {
    json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
}

/// A role with more than its writer has.
pub(crate) async fn escalate(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let roles = format!("{RBAC}/namespaces/tenant/roles");
    let role = json!({"metadata": {"name": "more"}, "rules": everything()});
    door.post("tenant", &roles, &role).await.one_of(&[403])?;
    let harmless = json!({"metadata": {"name": "harmless"}, "rules": []});
    door.post("tenant", &roles, &harmless).await.one_of(&[201])?;
    let path = format!("{roles}/harmless");
    door.send("tenant", "PUT", &path, &json!({"metadata": {"name": "harmless"}, "rules": everything()}))
        .await
        .one_of(&[403])?;
    for (kind, patch) in [
        ("merge", json!({"rules": everything()}).to_string()),
        ("json", json!([{"op": "replace", "path": "/rules", "value": everything()}]).to_string()),
        ("strategic-merge", json!({"rules": everything()}).to_string()),
    ] {
        door.patch("tenant", &path, kind, patch)
            .await
            .one_of(&[403])
            .map_err(|seen| format!("{kind}: {seen}"))?;
    }
    let apply = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": everything()});
    door.patch("tenant", &format!("{path}?fieldManager=x&force=true"), "apply", apply.to_string())
        .await
        .one_of(&[403])?;
    for verbs in [json!(["escalate"]), json!(["bind"]), json!(["impersonate"])] {
        let role = json!({"metadata": {"name": "verbs"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": verbs}]});
        door.post("tenant", &roles, &role).await.one_of(&[403])?;
    }
    Ok("403 each".to_owned())
}

/// A few kilobytes of rules that mean a thousand million rights.
pub(crate) async fn product(stage: &Stage) -> Verdict {
    let values =
        |prefix: &str| -> Vec<String> { (0..200).map(|number| format!("{prefix}{number}")).collect() };
    let rule = json!({"verbs": values("v"), "apiGroups": values("g"), "resources": values("r"), "resourceNames": values("n")});
    let role = json!({"metadata": {"name": "product"}, "rules": [rule]});
    all_at_once(stage, &role, "").await?;
    all_at_once(stage, &role, "?dryRun=All").await
}

/// One right under very many names: one that the writer does not have, and one that it has.
pub(crate) async fn many_names(stage: &Stage) -> Verdict {
    let names: Vec<String> = (0..100_000).map(|number| number.to_string()).collect();
    let role = |resource: &str| {
        json!({"metadata": {"name": "many-names"}, "rules": [
            {"verbs": ["get", "list"], "apiGroups": [""], "resources": [resource], "resourceNames": names}]})
    };
    let roles = format!("{RBAC}/namespaces/tenant/roles?dryRun=All");
    stage.plane.door.post_costly("tenant", &roles, &role("pods")).await.one_of(&[201])?;
    all_at_once(stage, &role("nodes"), "?dryRun=All").await
}

/// Posts a role to the tenant's namespace four times at once, which has to be refused each time, in few words.
async fn all_at_once(stage: &Stage, role: &Value, query: &str) -> Verdict {
    let roles = format!("{RBAC}/namespaces/tenant/roles{query}");
    let post = || stage.plane.door.post_costly("tenant", &roles, role);
    let answers = futures::future::join_all((0..4).map(|_| post())).await;
    for answer in &answers {
        answer.one_of(&[403])?;
        if answer.body.len() > 1 << 20 {
            return Err(format!("{} bytes of missing rights are told", answer.body.len()));
        }
    }
    Ok(answers.first().map(Answer::brief).unwrap_or_default())
}

/// A binding to a role with more than its writer has.
pub(crate) async fn bind(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let bindings = format!("{RBAC}/namespaces/tenant/rolebindings");
    let binding = |role: &str, kind: &str| {
        json!({"metadata": {"name": format!("to-{role}")}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}]})
    };
    door.post("tenant", &bindings, &binding("cluster-admin", "ClusterRole")).await.one_of(&[403])?;
    door.post("tenant", &format!("{RBAC}/clusterrolebindings"), &binding("view", "ClusterRole"))
        .await
        .one_of(&[403])?;
    // A role that does not exist yet may come to have any rights.
    door.post("tenant", &bindings, &binding("not-there-yet", "ClusterRole")).await.one_of(&[403, 404])?;
    door.post("tenant", &bindings, &binding("view", "ClusterRole")).await.one_of(&[201])?;
    let path = format!("{bindings}/to-view");
    let mut changed = binding("cluster-admin", "ClusterRole");
    changed["metadata"]["name"] = json!("to-view");
    door.send("tenant", "PUT", &path, &changed).await.one_of(&[403, 422])
}

/// A label on a role lets another one gather it.
pub(crate) async fn aggregate(stage: &Stage) -> Verdict {
    let rules = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["get", "list", "create", "update", "patch"]}]);
    stage.plane.grant("tenant", None, "role-editor", Some(rules)).await;
    stage.plane.grant("nobody", None, "view", None).await;
    let door = &stage.plane.door;
    let path = format!("{RBAC}/clusterroles/cluster-admin");
    let label = r#"{"metadata":{"labels":{"rbac.authorization.k8s.io/aggregate-to-view":"true"}}}"#;
    let labelled = door.patch("tenant", &path, "merge", label).await;
    let gathering = json!({"metadata": {"name": "gathering"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}]}});
    let gathered = door.post("tenant", &format!("{RBAC}/clusterroles"), &gathering).await;
    // A role that the administrator has gathered afterwards has its effect, so whatever comes of the others has, too.
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["nowhere"], "verbs": ["get"]}]);
    let later = json!({"metadata": {"name": "gathered-later", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": rules});
    stage.plane.make(&format!("{RBAC}/clusterroles"), &later).await;
    let nowhere = "api/v1/namespaces/other/secrets/nowhere";
    let gathers = stage.plane.calm.until("nobody", nowhere, |answer| answer.code == 404).await.one_of(&[404]);
    let read = door.get("nobody", TREASURE).await;
    // Undone, whatever came of it.
    let undo = r#"{"metadata":{"labels":{"rbac.authorization.k8s.io/aggregate-to-view":null}}}"#;
    stage.plane.calm.patch("root", &path, "merge", undo).await;
    for role in ["role-editor", "view"] {
        let who = if role == "view" { "nobody" } else { "tenant" };
        stage
            .plane
            .calm
            .send("root", "DELETE", &format!("{RBAC}/clusterrolebindings/{who}-{role}"), String::new())
            .await;
    }
    for role in ["gathering", "gathered-later"] {
        stage.plane.calm.send("root", "DELETE", &format!("{RBAC}/clusterroles/{role}"), String::new()).await;
    }
    if read.code == 200 {
        return Err("a viewer reads secrets after a label was set".to_owned());
    }
    gathers.map_err(|seen| format!("what the administrator gathers: {seen}"))?;
    labelled.one_of(&[403]).map_err(|seen| format!("label: {seen}"))?;
    gathered.one_of(&[403]).map_err(|seen| format!("aggregation rule: {seen}"))
}

/// The default roles do not give away what they must not.
pub(crate) async fn default_roles(stage: &Stage) -> Verdict {
    let door = &stage.plane.calm;
    for (role, resource) in [
        ("view", "secrets"),
        ("system:basic-user", "secrets"),
        ("system:discovery", "secrets"),
        ("system:public-info-viewer", "secrets"),
        ("edit", "roles"),
        ("view", "clusters/proxy"),
    ] {
        let found = door.get("root", &format!("{RBAC}/clusterroles/{role}")).await;
        for rule in found.json()["rules"].as_array().into_iter().flatten() {
            let resources = rule["resources"].as_array().cloned().unwrap_or_default();
            let groups = rule["apiGroups"].as_array().cloned().unwrap_or_default();
            let own = if resource == "clusters/proxy" {
                "cluster.karmada.io"
            } else if resource == "roles" {
                "rbac.authorization.k8s.io"
            } else {
                ""
            };
            if resources.iter().any(|found| found == resource || found == "*")
                && groups.iter().any(|found| found == own || found == "*")
            {
                return Err(format!("{role} has {resource}"));
            }
        }
    }
    Ok("none has secrets or roles".to_owned())
}

fn csr(organization: DnValue, name: &str) -> String {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, organization);
    let key = rcgen::KeyPair::generate().expect("a key");
    params.serialize_request(&key).expect("a request").pem().expect("PEM")
}

fn csr_object(name: &str, pem: &str, further: Value) -> Value {
    let mut spec = json!({"request": base64::engine::general_purpose::STANDARD.encode(pem),
        "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]});
    for (key, value) in further.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name}, "spec": spec})
}

/// `system:masters` in every kind of string that a certificate may have.
pub(crate) async fn masters_by_csr(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let masters = "system:masters";
    let printable = DnValue::PrintableString("system:masters".try_into().expect("printable"));
    let values = [
        ("utf8", DnValue::Utf8String(masters.to_owned())),
        ("printable", printable),
        ("bmp", DnValue::BmpString(BmpString::try_from(masters).expect("a string"))),
        ("teletex", DnValue::TeletexString(TeletexString::try_from(masters).expect("a string"))),
    ];
    for (name, value) in values {
        let object = csr_object(&format!("masters-{name}"), &csr(value, "mallory"), json!({}));
        let answer = door.post("asker", CSRS, &object).await;
        if !(400..500).contains(&answer.code) {
            return Err(format!("{name}: {}", answer.brief()));
        }
    }
    Ok("refused each".to_owned())
}

/// A client can neither approve its own request nor say that somebody else asked.
pub(crate) async fn own_approval(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let pem = csr(DnValue::Utf8String("askers".to_owned()), "system:admin");
    let spoofed =
        json!({"username": "root", "groups": ["system:masters"], "uid": "x", "extra": {"a": ["b"]}});
    let made = door.post("asker", CSRS, &csr_object("own", &pem, spoofed)).await;
    made.one_of(&[201])?;
    if made.at("/spec/username") != "asker" || made.text().contains("system:masters") {
        return Err(format!("the request says it is from {}", made.at("/spec/username")));
    }
    let condition = json!({"type": "Approved", "status": "True", "reason": "me", "message": "me", "lastUpdateTime": null});
    let mut approved = made.json();
    approved["status"]["conditions"] = json!([condition]);
    for path in [format!("{CSRS}/own/approval"), format!("{CSRS}/own/status"), format!("{CSRS}/own")] {
        door.send("asker", "PUT", &path, &approved).await.one_of(&[403])?;
    }
    let mut born = csr_object("born-approved", &pem, json!({}));
    born["status"] = json!({"conditions": [condition], "certificate": "AAAA"});
    door.post("asker", CSRS, &born).await.one_of(&[201])?;
    // One that comes later, and that the administrator approves, is signed: the signer has been at the others by then.
    let plain = csr(DnValue::Utf8String("askers".to_owned()), "asker");
    let mut good = door.post("asker", CSRS, &csr_object("good", &plain, json!({}))).await.json();
    good["status"]["conditions"] =
        json!([{"type": "Approved", "status": "True", "reason": "good", "message": "good"}]);
    stage.plane.calm.send("root", "PUT", &format!("{CSRS}/good/approval"), &good).await.one_of(&[200])?;
    let is_signed = |answer: &Answer| answer.json()["status"]["certificate"].is_string();
    let signed = stage.plane.calm.until("root", &format!("{CSRS}/good"), is_signed).await;
    if !is_signed(&signed) {
        return Err(format!("what the administrator approves is not signed: {}", signed.brief()));
    }
    let found = door.get("asker", &format!("{CSRS}/born-approved")).await;
    if found.json()["status"]["certificate"].is_string() || found.text().contains("Approved") {
        return Err("a request can be born approved".to_owned());
    }
    Ok("403, and the status of a new request is dropped".to_owned())
}

/// Requests that are not requests, and lifetimes beyond all calendars.
pub(crate) async fn odd_csrs(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let pem = csr(DnValue::Utf8String("askers".to_owned()), "asker");
    for (number, seconds) in
        [json!(i64::MAX), json!(-1), json!(2_147_483_647), json!(0), json!(1e30)].into_iter().enumerate()
    {
        let name = format!("lifetime-{number}");
        let made =
            door.post("asker", CSRS, &csr_object(&name, &pem, json!({"expirationSeconds": seconds}))).await;
        if made.code == 201 {
            let mut approved = made.json();
            approved["status"]["conditions"] =
                json!([{"type": "Approved", "status": "True", "reason": "x", "message": "x"}]);
            stage
                .plane
                .calm
                .send("root", "PUT", &format!("{CSRS}/{name}/approval"), &approved)
                .await
                .one_of(&[200])?;
        } else {
            made.refused()?;
        }
    }
    let body = |text: &str| {
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")
    };
    let mut long = vec![0x30, 0x84, 0x7f, 0xff, 0xff, 0xff];
    long.extend(std::iter::repeat_n(0x30, 300_000));
    let nested = base64::engine::general_purpose::STANDARD.encode([0x30, 0x80].repeat(100_000));
    let odd = [
        body("AAAA"),
        body(&base64::engine::general_purpose::STANDARD.encode(long)),
        body(&nested),
        "x".repeat(500_000),
        String::new(),
        pem.replace("CERTIFICATE REQUEST", "CERTIFICATE"),
    ];
    for (number, pem) in odd.iter().enumerate() {
        let name = format!("odd-{number}");
        let made = door.post("asker", CSRS, &csr_object(&name, pem, json!({}))).await;
        made.refused().map_err(|seen| format!("odd {number}: {seen}"))?;
    }
    Ok("refused, or signed within the limits".to_owned())
}

/// A signer that may be asked for by nodes only.
pub(crate) async fn node_certificates(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    for (number, signer) in [
        "kubernetes.io/kube-apiserver-client-kubelet",
        "kubernetes.io/kubelet-serving",
        "kubernetes.io/legacy-unknown",
    ]
    .into_iter()
    .enumerate()
    {
        let pem = csr(DnValue::Utf8String("system:nodes".to_owned()), "system:node:other");
        let name = format!("node-{number}");
        let made = door
            .post(
                "asker",
                CSRS,
                &csr_object(
                    &name,
                    &pem,
                    json!({"signerName": signer, "usages": ["client auth", "server auth"]}),
                ),
            )
            .await;
        if made.code != 201 {
            continue;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let found = door.get("asker", &format!("{CSRS}/{name}")).await;
        if found.json()["status"]["certificate"].is_string() {
            return Err(format!("{signer} signs without approval"));
        }
    }
    Ok("nothing is signed without approval".to_owned())
}

async fn account(stage: &Stage, name: &str) {
    stage.plane.make("api/v1/namespaces/tenant/serviceaccounts", &json!({"metadata": {"name": name}})).await;
}

fn secret_token(account: &str, name: &str) -> Value {
    json!({"metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": account}}, "type": "kubernetes.io/service-account-token"})
}

/// A token whose Secret was deleted stays worthless, also when a Secret of that name is made again.
pub(crate) async fn revoked_tokens(stage: &Stage) -> Verdict {
    account(stage, "leaver").await;
    let secrets = "api/v1/namespaces/tenant/secrets";
    let path = format!("{secrets}/leaver-token");
    let calm = &stage.plane.calm;
    stage.plane.make(secrets, &secret_token("leaver", "leaver-token")).await;
    let has = |answer: &Answer| answer.json()["data"]["token"].is_string();
    let found = calm.until("root", &path, has).await;
    let decoded =
        base64::engine::general_purpose::STANDARD.decode(found.at("/data/token")).unwrap_or_default();
    let token = String::from_utf8_lossy(&decoded).into_owned();
    let review = "apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let ask = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "tenant"}});
    calm.post(&token, review, &ask)
        .await
        .one_of(&[201])
        .map_err(|seen| format!("the token never worked: {seen}"))?;
    calm.send("root", "DELETE", &path, String::new()).await.one_of(&[200])?;
    let dead = calm.until(&token, "api", |answer| answer.code == 401).await;
    dead.one_of(&[401]).map_err(|seen| format!("after deletion: {seen}"))?;
    stage.plane.make(secrets, &secret_token("leaver", "leaver-token")).await;
    calm.until("root", &path, has).await;
    stage
        .plane
        .door
        .post(&token, review, &ask)
        .await
        .one_of(&[401])
        .map_err(|seen| format!("the Secret made again: {seen}"))
}

/// A token of an account that was deleted and made again.
pub(crate) async fn tokens_of_the_dead(stage: &Stage) -> Verdict {
    account(stage, "mortal").await;
    let base = "api/v1/namespaces/tenant/serviceaccounts/mortal";
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}});
    let token = stage.plane.make(&format!("{base}/token"), &asked).await.at("/status/token");
    let calm = &stage.plane.calm;
    calm.get(&token, "api").await.one_of(&[200])?;
    calm.send("root", "DELETE", base, String::new()).await.one_of(&[200])?;
    account(stage, "mortal").await;
    let dead = calm.until(&token, "api", |answer| answer.code == 401).await;
    dead.one_of(&[401])
}

/// Tokens for others' ears, for ever, or bound to nothing.
pub(crate) async fn odd_token_requests(stage: &Stage) -> Verdict {
    account(stage, "speaker").await;
    let path = "api/v1/namespaces/tenant/serviceaccounts/speaker/token";
    let asked =
        |spec: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let elsewhere =
        stage.plane.make(path, &asked(json!({"audiences": ["https://elsewhere.example.com"]}))).await;
    stage
        .plane
        .door
        .get(&elsewhere.at("/status/token"), "api")
        .await
        .one_of(&[401])
        .map_err(|seen| format!("another audience: {seen}"))?;
    for seconds in [json!(i64::MAX), json!(-1), json!(0), json!(9_223_372_036i64), json!(1e30)] {
        let answer = stage.plane.calm.post("root", path, &asked(json!({"expirationSeconds": seconds}))).await;
        if answer.code == 0 || answer.code >= 500 {
            return Err(format!("{seconds} seconds: {}", answer.brief()));
        }
    }
    let bound = asked(json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": "nothing"}}));
    let answer = stage.plane.calm.post("root", path, &bound).await;
    if answer.code == 201 { Err("a token bound to nothing".to_owned()) } else { Ok(answer.brief()) }
}

/// An authenticating proxy passes a name on that is not ASCII.
pub(crate) async fn foreign_names(stage: &Stage) -> Verdict {
    for name in ["jörg", "李", "\u{202e}root", "a\u{80}b"] {
        let answer = stage.plane.door.get_with("frontdoor", TREASURE, &[("Impersonate-User", name)]).await;
        answer.one_of(&[400, 401, 403]).map_err(|seen| format!("{name:?}: {seen}"))?;
    }
    // Not UTF-8 at all.
    let mut sent = request("frontdoor", "GET", TREASURE, &[("Impersonate-User", "xyz")], b"");
    let at = sent.windows(3).position(|part| part == b"xyz").expect("the name");
    sent[at] = 0xff;
    stage.plane.door.raw(sent).await.one_of(&[400, 401, 403]).map_err(|seen| format!("not UTF-8: {seen}"))
}

/// Headers that a proxy on the way is told to drop, doubled ones, and odd spellings.
pub(crate) async fn dropped_headers(stage: &Stage) -> Verdict {
    for headers in [
        &[("Connection", "close, Impersonate-User"), ("Impersonate-User", "nobody")][..],
        &[
            ("Connection", "Impersonate-User, close"),
            ("Impersonate-User", "nobody"),
            ("Impersonate-Group", "none"),
        ],
        &[("Impersonate-User", "nobody"), ("Impersonate-User", "root")],
        &[("Impersonate-User", "nobody, root")],
        &[("IMPERSONATE-USER", "nobody")],
        &[("Impersonate-User", " nobody ")],
        &[("Impersonate-Group", "none")],
        &[("Impersonate-Extra-a%2fb", "x")],
        &[("Impersonate-Extra-%ff", "x"), ("Impersonate-User", "nobody")],
        &[("Impersonate-Uid", "u")],
        &[("Impersonate-User", "system:serviceaccount:a:b:c")],
        &[("Impersonate-User", "")],
        &[("Impersonate-Nonsense", "x"), ("Impersonate-User", "nobody")],
    ] {
        let answer = stage.plane.door.get_with("frontdoor", TREASURE, headers).await;
        // An empty header is as good as none for kube-apiserver, too.
        let empty = headers.len() == 1 && headers[0].1.is_empty();
        if answer.code == 200 && !empty {
            return Err(format!("{headers:?} runs with the caller's own rights"));
        }
    }
    Ok("never with the caller's own rights".to_owned())
}

/// One who may take on users takes on the administrators' group.
pub(crate) async fn masters_by_impersonation(stage: &Stage) -> Verdict {
    let rules = json!([{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}]);
    stage.plane.grant("asker", None, "takes-users", Some(rules)).await;
    let door = &stage.plane.door;
    let headers = [("Impersonate-User", "x"), ("Impersonate-Group", "system:masters")];
    door.get_with("asker", TREASURE, &headers).await.one_of(&[403])?;
    let headers = [("Impersonate-User", "system:serviceaccount:kube-system:default")];
    door.get_with("asker", TREASURE, &headers).await.one_of(&[403])?;
    let headers = [("Impersonate-User", "x"), ("Impersonate-Extra-scopes", "y")];
    door.get_with("asker", TREASURE, &headers).await.one_of(&[403])
}

/// Certificates that are not ours: signed by nobody, by another authority, or for serving.
pub(crate) async fn foreign_certificates(stage: &Stage) -> Verdict {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "system:admin");
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages.push(rcgen::ExtendedKeyUsagePurpose::ClientAuth);
    let own = crate::wire::Certificate {
        chain: params.self_signed(&key).expect("a certificate").pem(),
        key: key.serialize_pem(),
    };
    let door: Door = stage.plane.door.clone().with(own);
    door.get("", TREASURE).await.one_of(&[0, 401, 403])?;
    // A serving certificate of the right authority is nobody's.
    let read =
        |name: &str| std::fs::read_to_string(stage.plane.data.join("pki").join(name)).unwrap_or_default();
    let serving = crate::wire::Certificate { chain: read("server.crt"), key: read("server.key") };
    if !serving.chain.is_empty() && !serving.key.is_empty() {
        stage.plane.door.clone().with(serving).get("", TREASURE).await.one_of(&[0, 401, 403])?;
    }
    Ok("not believed".to_owned())
}

/// The certificate of an agent of a pull-mode member reads nothing of the control plane (CVE-2024-56513).
pub(crate) async fn agents(stage: &Stage) -> Verdict {
    for (name, groups) in [
        ("system:karmada:agent:m1", &["system:karmada:agents"][..]),
        ("system:node:m1", &["system:nodes"]),
        ("karmada-agent", &["system:karmada:agents"]),
    ] {
        let certificate = stage.plane.certificate(DnValue::Utf8String(name.to_owned()), groups);
        let door = stage.plane.door.clone().with(certificate);
        for path in [
            TREASURE,
            "api/v1/namespaces/karmada-cluster/secrets",
            "api/v1/secrets",
            "apis/work.karmada.io/v1alpha1/namespaces/karmada-es-other/works",
            "apis/rbac.authorization.k8s.io/v1/clusterroles",
        ] {
            door.get("", path).await.one_of(&[401, 403]).map_err(|seen| format!("{name}: {path}: {seen}"))?;
        }
        let admin = json!({"metadata": {"name": "mine"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]});
        door.post("", &format!("{RBAC}/clusterrolebindings"), &admin).await.one_of(&[401, 403])?;
    }
    Ok("403 each".to_owned())
}
