//! Another server behind this one.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::start;
use crate::support::backend::{self, GROUP};
use crate::support::{Answer, Api, Call};

fn available(answer: &Answer) -> bool {
    let conditions = answer.json()["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Available" && condition["status"] == "True")
}

#[tokio::test]
async fn an_upgraded_connection_goes_through() {
    let (handle, api) = start().await;
    let (service, registration) = backend::registration(backend::start().await);
    api.post("api/v1/namespaces/default/services", &service).await.expect(201);
    api.post("apis/apiregistration.k8s.io/v1/apiservices", &registration).await.expect(201);
    api.until(&format!("apis/apiregistration.k8s.io/v1/apiservices/v1.{GROUP}"), available).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "walker"}});
    api.post("api/v1/namespaces/default/serviceaccounts", &account).await.expect(201);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "walker"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "walker", "namespace": "default"}]});
    api.post("apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect(201);
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let answer =
        api.post("api/v1/namespaces/default/serviceaccounts/walker/token", &request).await.expect(201);
    let token = answer.at("/status/token");

    // Written by hand: no client would let us see the bytes after the switch.
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(handle.pki.ca.cert.as_bytes()).expect("a certificate"))
        .expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("usual protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(handle.address).await.expect("the server listens");
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await.expect("a TLS connection");
    let head = format!(
        "POST /apis/{GROUP}/v1/things/x/portforward HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("the request is taken");
    let mut seen = Vec::new();
    while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
        seen.push(stream.read_u8().await.expect("the head of an answer"));
    }
    let answer = String::from_utf8_lossy(&seen).into_owned();
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    stream.write_all(b"hello").await.expect("bytes are taken");
    let mut back = [0; 5];
    stream.read_exact(&mut back).await.expect("bytes come back");
    assert_eq!(&back, b"olleh");
    handle.stop().await;
}

/// Starts a server with another one behind it.
async fn with_backend() -> (apiserver::Handle, Api) {
    let (handle, api) = start().await;
    let (service, registration) = backend::registration(backend::start().await);
    api.post("api/v1/namespaces/default/services", &service).await.expect(201);
    api.post("apis/apiregistration.k8s.io/v1/apiservices", &registration).await.expect(201);
    api.until(&format!("apis/apiregistration.k8s.io/v1/apiservices/v1.{GROUP}"), available).await;
    (handle, api)
}

#[tokio::test]
async fn finding_13_a_redirect_is_not_passed_on() {
    let (handle, api) = with_backend().await;
    let answer = api.get(&format!("apis/{GROUP}/v1/things/elsewhere")).await.expect(502);
    assert_eq!(answer.text(), "the backend attempted to redirect this request, which is not permitted");
    assert!(!answer.headers.contains_key("location"));
    handle.stop().await;
}

#[tokio::test]
async fn finding_13_a_server_that_never_answers_holds_no_request_for_ever() {
    let (handle, api) = with_backend().await;
    for query in ["timeout=300ms", "timeout=300ms&watch=1"] {
        let answer = api.get(&format!("apis/{GROUP}/v1/things/never?{query}")).await.expect(504);
        assert!(answer.text().contains("Timeout"), "{}", answer.text());
    }
    handle.stop().await;
}

#[tokio::test]
async fn finding_13_half_of_an_answer_does_not_pass_for_the_whole() {
    let (handle, api) = with_backend().await;
    let answer = api.try_send(&Call::new("GET", format!("apis/{GROUP}/v1/things/broken"))).await;
    assert!(answer.is_err(), "{answer:?}");
    handle.stop().await;
}

#[tokio::test]
async fn finding_24_dot_segments_do_not_reach_another_server() {
    let (handle, api) = with_backend().await;
    for path in ["things/../../../version", "things/%2e%2e/x", "things/x%2f..%2fy"] {
        let answer = api.get(&format!("apis/{GROUP}/v1/{path}")).await.expect(400);
        assert!(answer.at("/message").contains("segments"), "{}", answer.text());
    }
    handle.stop().await;
}

#[tokio::test]
async fn dependents_of_an_object_on_another_server_are_not_collected() {
    let (handle, api) = start().await;
    // The kind is known here, too: its definition was there before the other server took the group over.
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "owners.elsewhere.example.com"},
        "spec": {"group": "elsewhere.example.com", "scope": "Cluster",
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
            "names": {"plural": "owners", "singular": "owner", "kind": "Owner", "listKind": "OwnerList"}}});
    api.post("apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
    api.until("apis/elsewhere.example.com/v1/owners", |answer| answer.code == 200).await;
    let service = "apis/apiregistration.k8s.io/v1/apiservices/v1.elsewhere.example.com";
    api.until(service, |answer| answer.code == 200).await;
    let remote =
        json!({"spec": {"insecureSkipTLSVerify": true, "service": {"name": "none", "namespace": "default"}}});
    api.merge(service, &remote).await.expect(200);
    api.until(service, |answer| answer.text().contains("ServiceNotFound")).await;

    let owned = |name: &str, api_version: &str, kind: &str| {
        json!({"metadata": {"name": name, "ownerReferences": [
            {"apiVersion": api_version, "kind": kind, "name": "nowhere", "uid": format!("uid-of-{name}")}]}})
    };
    let maps = "api/v1/namespaces/default/configmaps";
    api.post(maps, &owned("kept", "elsewhere.example.com/v1", "Owner")).await.expect(201);
    // Looked at after the other one: when it is gone, the other one has been looked at.
    api.post(maps, &owned("lost", "v1", "ConfigMap")).await.expect(201);
    api.until(&format!("{maps}/lost"), |answer| answer.code == 404).await;
    api.get(&format!("{maps}/kept")).await.expect(200);
    handle.stop().await;
}
