//! Certificates and bootstrap tokens: how somebody new becomes somebody known.

use base64::Engine;
use serde_json::{Value, json};

use crate::start;
use crate::support::{Answer, Api, DEADLINE};

const REQUESTS: &str = "apis/certificates.k8s.io/v1/certificatesigningrequests";

fn request(common_name: &str, organization: &str) -> (String, String) {
    request_of(common_name, organization.into())
}

fn request_of(common_name: &str, organization: rcgen::DnValue) -> (String, String) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names are valid names");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    let pem = params.serialize_request(&key).expect("a request").pem().expect("a request as PEM");
    (key.serialize_pem(), base64::engine::general_purpose::STANDARD.encode(pem))
}

fn object(name: &str, signer: &str, request: &str) -> Value {
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"signerName": signer, "request": request, "usages": ["digital signature", "key encipherment", "client auth"]}})
}

fn certificate(answer: &Answer) -> Option<String> {
    let text = answer.json()["status"]["certificate"].as_str()?.to_owned();
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
    Some(String::from_utf8(bytes).expect("PEM is text"))
}

async fn approve(api: &Api, name: &str) {
    let mut approved = api.get(&format!("{REQUESTS}/{name}")).await.expect(200).json();
    approved["status"]["conditions"] =
        json!([{"type": "Approved", "status": "True", "reason": "Test", "message": "m"}]);
    api.put(&format!("{REQUESTS}/{name}/approval"), &approved).await.expect(200);
}

#[tokio::test]
async fn an_approved_request_becomes_a_certificate_that_is_recognised() {
    let (handle, api) = start().await;
    let (key, pem) = request("jane", "dev");
    api.post(REQUESTS, &object("jane", "kubernetes.io/kube-apiserver-client", &pem)).await.expect(201);
    approve(&api, "jane").await;
    let answer = api.until(&format!("{REQUESTS}/jane"), |answer| certificate(answer).is_some()).await;
    let pair = apiserver::auth::pki::Pair { cert: certificate(&answer).expect("just seen"), key };
    let kubeconfig = apiserver::auth::pki::kubeconfig(&handle.url, "jane", &handle.pki.ca.cert, &pair);
    let jane = Api::from_kubeconfig(&kubeconfig).await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let seen = jane.post("apis/authentication.k8s.io/v1/selfsubjectreviews", &review).await.expect(201);
    assert_eq!(seen.at("/status/userInfo/username"), "jane");
    assert!(seen.at("/status/userInfo/groups").contains("\"dev\""));
    handle.stop().await;
}

#[tokio::test]
async fn a_request_that_a_signer_does_not_sign_fails_with_the_reason() {
    let (handle, api) = start().await;
    let (_, pem) = request("jane", "dev");
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    api.post(REQUESTS, &object("odd", signer, &pem)).await.expect(201);
    approve(&api, "odd").await;
    let failed = |answer: &Answer| answer.text().contains("SignerValidationFailure");
    let answer = api.until(&format!("{REQUESTS}/odd"), failed).await;
    assert!(answer.text().contains("subject organization is not system:nodes"), "{}", answer.text());
    handle.stop().await;
}

#[tokio::test]
async fn bytes_that_are_no_request_are_refused_when_they_are_written() {
    let (handle, api) = start().await;
    let signer = "kubernetes.io/kube-apiserver-client";
    let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let envelope = |der: &[u8]| {
        let (begin, end) = ("-----BEGIN CERTIFICATE REQUEST-----", "-----END CERTIFICATE REQUEST-----");
        encode(format!("{begin}\n{}\n{end}\n", encode(der)).as_bytes())
    };
    // As kube-apiserver v1.36.3 answered.
    let garbage = envelope(b"\x30\x04\x30\x05\x02\x01");
    let mut odd = object("odd", signer, &garbage);
    odd["spec"]["expirationSeconds"] = json!(5);
    let refused = api.post(REQUESTS, &odd).await.expect(422);
    assert_eq!(
        refused.at("/message"),
        format!(
            "CertificateSigningRequest.certificates.k8s.io \"odd\" is invalid: [spec.request: Invalid value: {garbage:?}: \
             asn1: syntax error: data truncated, spec.expirationSeconds: Invalid value: 5: may not specify a duration less \
             than 600 seconds (10 minutes)]"
        )
    );
    // A request whose name was changed after it was signed.
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names are valid names");
    params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
    let mut der = params.serialize_request(&key).expect("a request").der().to_vec();
    api.post(REQUESTS, &object("fine", signer, &envelope(&der))).await.expect(201);
    let place = der.windows(4).position(|window| window == b"jane").expect("the name");
    der[place] = b'k';
    let refused = api.post(REQUESTS, &object("changed", signer, &envelope(&der))).await.expect(422);
    assert!(
        refused.at("/message").ends_with(": x509: ECDSA verification failure"),
        "{}",
        refused.at("/message")
    );
    handle.stop().await;
}

#[tokio::test]
async fn finding_24_nobody_becomes_an_administrator_by_request() {
    let (handle, api) = start().await;
    use rcgen::string::{BmpString, PrintableString, TeletexString};
    // However the name is written: whoever trusts our authority may read it in each of these ways.
    let masters = "system:masters";
    let spellings = [
        rcgen::DnValue::Utf8String(masters.to_owned()),
        rcgen::DnValue::PrintableString(PrintableString::try_from(masters).expect("printable")),
        rcgen::DnValue::TeletexString(TeletexString::try_from(masters).expect("ASCII")),
        rcgen::DnValue::BmpString(BmpString::try_from(masters).expect("of the basic plane")),
    ];
    for organization in spellings {
        let shown = format!("{organization:?}");
        let (_, pem) = request_of("eve", organization);
        let refused = api.post(REQUESTS, &object("eve", "kubernetes.io/kube-apiserver-client", &pem)).await;
        assert_eq!(refused.code, 403, "{shown}: {}", refused.text());
        assert!(
            refused.at("/message").contains("with system:masters group is not allowed"),
            "{}",
            refused.text()
        );
    }
    handle.stop().await;
}

fn token(expiration: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token", "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true", "expiration": expiration,
            "auth-extra-groups": "system:bootstrappers:karmada"}})
}

#[tokio::test]
async fn a_bootstrap_token_names_its_holder_and_signs_the_cluster_information() {
    let (handle, api) = start().await;
    api.post("api/v1/namespaces/kube-system/secrets", &token("2999-01-01T00:00:00Z")).await.expect(201);
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nclusters: [{{name: a, cluster: {{server: '{}', certificate-authority-data: {}}}}}]\nusers: [{{name: a, user: {{token: abcdef.0123456789abcdef}}}}]\n",
        handle.url,
        base64::engine::general_purpose::STANDARD.encode(&handle.pki.ca.cert)
    );
    let holder = Api::from_kubeconfig(&kubeconfig).await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let seen = holder.post("apis/authentication.k8s.io/v1/selfsubjectreviews", &review).await.expect(201);
    assert_eq!(seen.at("/status/userInfo/username"), "system:bootstrap:abcdef");
    assert!(seen.at("/status/userInfo/groups").contains("system:bootstrappers:karmada"));

    let maps = "api/v1/namespaces/kube-public/configmaps";
    let info = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "text"}});
    api.post(maps, &info).await.expect(201);
    let signed = |answer: &Answer| answer.json()["data"]["jws-kubeconfig-abcdef"].is_string();
    api.until(&format!("{maps}/cluster-info"), signed).await;
    api.delete("api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef").await.expect(200);
    api.until(&format!("{maps}/cluster-info"), |answer| !signed(answer)).await;
    let refused = holder.get("api/v1/namespaces").await;
    assert_eq!(refused.code, 401);
    handle.stop().await;
}

#[tokio::test]
async fn an_expired_bootstrap_token_is_removed() {
    let (handle, api) = start().await;
    api.post("api/v1/namespaces/kube-system/secrets", &token("2001-01-01T00:00:00Z")).await.expect(201);
    let path = "api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef";
    api.until(path, |answer| answer.code == 404).await;
    handle.stop().await;
}

#[tokio::test]
async fn a_bootstrap_token_expires_also_while_other_things_change() {
    let (handle, api) = start().await;
    // Whole seconds, as kubeadm writes them; at least one is left.
    let ends = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + 2).expect("a time");
    api.post("api/v1/namespaces/kube-system/secrets", &token(&ends.to_string())).await.expect(201);
    let maps = "api/v1/namespaces/default/configmaps";
    let path = "api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef";
    let (mut number, began) = (0, std::time::Instant::now());
    while api.get(path).await.code != 404 {
        assert!(began.elapsed() < DEADLINE, "it is still there, {number} changes later");
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("other-{number}")}});
        api.post(maps, &map).await.expect(201);
        number += 1;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    handle.stop().await;
}
