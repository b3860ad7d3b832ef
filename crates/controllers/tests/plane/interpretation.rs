//! What users teach: customizations and webhooks decide about their kinds, are followed when they change, and harm nobody else.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::config::{ResourceInterpreterCustomization, ResourceInterpreterWebhookConfiguration};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Event;
use tokio::sync::Semaphore;

use super::*;

fn customization(name: &str, rules: Value) -> Value {
    json!({ "metadata": { "name": name }, "spec": {
        "target": { "apiVersion": "apps/v1", "kind": "Deployment" }, "customizations": rules,
    } })
}

fn script(text: &str) -> Value {
    json!({ "luaScript": text })
}

async fn replicas_become(plane: &Plane, expected: i32) {
    let bindings: Api<ResourceBinding> = plane.api();
    until_some(&format!("a binding of {expected} replicas"), || async {
        let binding = bindings.get_opt("nginx-deployment").await.ok()??;
        (binding.spec.replicas == expected).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_customization_decides_is_followed_and_is_forgotten() {
    let plane = Plane::start().await;
    let customizations: Api<ResourceInterpreterCustomization> = Api::all(plane.client.clone());
    plane.create(&plane.api::<PropagationPolicy>(), policy(&["m1"])).await;
    plane.create(&plane.api::<Deployment>(), deployment(2)).await;
    replicas_become(&plane, 2).await;

    let doubles = "function GetReplicas(o) return o.spec.replicas * 2, nil end";
    let revises = "function ReviseReplica(o, n)\n o.spec.replicas = n\n o.spec.paused = true\n return o\nend";
    let rules = json!({ "replicaResource": script(doubles), "replicaRevision": script(revises) });
    plane.create(&customizations, customization("doubles", rules)).await;
    replicas_become(&plane, 4).await;
    until_some("a Work as the script revises it", || async {
        let work = plane.work("m1", WORK).await?;
        let spec = &work.spec.workload.manifests[0]["spec"];
        (spec["paused"] == true && spec["replicas"] == 4).then_some(())
    })
    .await;

    // Of two for one kind, the first by name answers; a change is followed, though the template stays as it is.
    let triples = "function GetReplicas(o) return o.spec.replicas * 3, nil end";
    plane
        .create(&customizations, customization("a-triples", json!({ "replicaResource": script(triples) })))
        .await;
    replicas_become(&plane, 6).await;
    let fails = json!({ "spec": { "customizations": { "replicaResource": script("\nfunction GetReplicas(o) return o.x.y end") } } });
    customizations
        .patch("a-triples", &PatchParams::default(), &Patch::Merge(fails))
        .await
        .expect("the customization is accepted");
    let events: Api<Event> = plane.api();
    let message = until_some("users are told of the script that fails", || async {
        let events = events.list(&ListParams::default()).await.ok()?.items;
        events.into_iter().find(|event| event.reason.as_deref() == Some("GetReplicasFailed"))?.message
    })
    .await;
    let place = "customization a-triples: InterpretReplica: <string>:2: ";
    assert!(message.contains(place), "{message}");

    // A customization that goes leaves the next one, and at last what is built in.
    for (name, replicas) in [("a-triples", 4), ("doubles", 2)] {
        customizations.delete(name, &DeleteParams::default()).await.expect("it goes");
        replicas_become(&plane, replicas).await;
    }
    until_some("a Work as the built-in rules revise it", || async {
        let work = plane.work("m1", WORK).await?;
        (work.spec.workload.manifests[0]["spec"].get("paused").is_none()).then_some(())
    })
    .await;
    plane.stop().await;
}

/// A webhook that answers what it is told to.
struct Webhook {
    url: String,
    authority: String,
    asked: Arc<AtomicUsize>,
    /// Answers wait for one of these.
    doors: Arc<Semaphore>,
}

impl Webhook {
    async fn start(answer: fn(&Value) -> Value) -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params =
            rcgen::CertificateParams::new(vec!["localhost".to_owned(), "hook.default.svc".to_owned()])
                .expect("parameters");
        // Its own authority, as `openssl req -x509` makes it.
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        let authority = certificate.pem();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .expect("a configuration");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (asked, doors) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(Semaphore::MAX_PERMITS >> 1)));
        let (count, wait) = (asked.clone(), doors.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, count, wait) = (acceptor.clone(), count.clone(), wait.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request: hyper::Request<Incoming>| {
                        let (count, wait) = (count.clone(), wait.clone());
                        async move {
                            let body = request.into_body().collect().await.expect("a body").to_bytes();
                            let context: Value = serde_json::from_slice(&body).expect("JSON");
                            count.fetch_add(1, Ordering::SeqCst);
                            wait.acquire().await.expect("open").forget();
                            let mut response = answer(&context["request"]);
                            response["uid"] = context["request"]["uid"].clone();
                            let text = json!({ "response": response }).to_string();
                            Ok::<_, Infallible>(hyper::Response::new(Full::new(Bytes::from(text))))
                        }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { url: format!("https://localhost:{port}/interpret"), authority, asked, doors }
    }

    fn configuration(&self, kind: &str, operations: &[&str], timeout: i32) -> Value {
        use base64::Engine as _;
        let bundle = base64::engine::general_purpose::STANDARD.encode(&self.authority);
        json!({ "metadata": { "name": "hooks" }, "webhooks": [{
            "name": "a.example.com", "timeoutSeconds": timeout, "interpreterContextVersions": ["v1alpha1"],
            "clientConfig": { "url": self.url, "caBundle": bundle },
            "rules": [{ "operations": operations, "apiGroups": ["*"], "apiVersions": ["v1"], "kinds": [kind] }],
        }] })
    }
}

/// 200,000 empty maps are a megabyte of text and more than a hundred as a tree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finding_16_an_answer_of_an_interpreter_webhook_of_many_small_parts_is_refused() {
    let plane = Plane::start().await;
    let webhook =
        Webhook::start(|_| json!({ "successful": true, "replicas": 7, "parts": vec![json!({}); 200_000] }))
            .await;
    let hooks: Api<ResourceInterpreterWebhookConfiguration> = Api::all(plane.client.clone());
    plane.create(&hooks, webhook.configuration("Deployment", &["InterpretReplica"], 30)).await;
    plane.create(&plane.api::<PropagationPolicy>(), policy(&["m1"])).await;
    plane.create(&plane.api::<Deployment>(), deployment(2)).await;
    let events: Api<Event> = plane.api();
    let message = until_some("users are told of the answer", || async {
        let events = events.list(&ListParams::default()).await.ok()?.items;
        events.into_iter().find(|event| event.reason.as_deref() == Some("GetReplicasFailed"))?.message
    })
    .await;
    assert!(message.contains("the answer becomes objects of more than 128 MiB"), "{message}");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_decides_and_a_customization_goes_before_it() {
    let plane = Plane::start().await;
    let webhook = Webhook::start(|request| match request["operation"].as_str() {
        Some("InterpretReplica") => json!({ "successful": true, "replicas": 7 }),
        Some("ReviseReplica") => {
            // [{"op":"add","path":"/spec/paused","value":true}]
            let patch = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL3NwZWMvcGF1c2VkIiwidmFsdWUiOnRydWV9XQ==";
            json!({ "successful": true, "patch": patch, "patchType": "JSONPatch" })
        }
        other => json!({ "successful": false, "status": { "code": 400, "message": format!("{other:?}") } }),
    })
    .await;
    let configurations: Api<ResourceInterpreterWebhookConfiguration> = Api::all(plane.client.clone());
    let operations = ["InterpretReplica", "ReviseReplica", "InterpretDependency"];
    plane.create(&configurations, webhook.configuration("Deployment", &operations, 10)).await;
    let mut with_dependencies = policy(&["m1"]);
    with_dependencies["spec"]["propagateDeps"] = true.into();
    plane.create(&plane.api::<PropagationPolicy>(), with_dependencies).await;
    plane.create(&plane.api::<Deployment>(), deployment(2)).await;
    replicas_become(&plane, 7).await;
    until_some("a Work as the webhook revises it", || async {
        let work = plane.work("m1", WORK).await?;
        (work.spec.workload.manifests[0]["spec"]["paused"] == true).then_some(())
    })
    .await;
    let events: Api<Event> = plane.api();
    let message = until_some("users are told of the operation that fails", || async {
        let events = events.list(&ListParams::default()).await.ok()?.items;
        events.into_iter().find(|event| event.reason.as_deref() == Some("GetDependenciesFailed"))?.message
    })
    .await;
    assert_eq!(
        message,
        "Internal error occurred: failed calling webhook \"hooks/a.example.com\": webhook call failed, get status code: \
         400, msg: Some(\"InterpretDependency\")"
    );

    let customizations: Api<ResourceInterpreterCustomization> = Api::all(plane.client.clone());
    let five = json!({ "replicaResource": script("function GetReplicas(o) return 5 end") });
    plane.create(&customizations, customization("five", five)).await;
    replicas_become(&plane, 5).await;
    customizations.delete("five", &DeleteParams::default()).await.expect("it goes");
    replicas_become(&plane, 7).await;
    configurations.delete("hooks", &DeleteParams::default()).await.expect("they go");
    replicas_become(&plane, 2).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_does_not_answer_holds_up_nothing_but_its_own_kind() {
    let plane = Plane::start().await;
    let webhook = Webhook::start(|_| json!({ "successful": true, "replicas": 1 })).await;
    webhook.doors.forget_permits(usize::MAX);
    let configurations: Api<ResourceInterpreterWebhookConfiguration> = Api::all(plane.client.clone());
    plane.create(&configurations, webhook.configuration("ConfigMap", &["InterpretReplica"], 30)).await;
    // More objects than the detector has workers, and than the hook is asked at once.
    let mut all = maps_policy("maps", json!({}), json!({ "clusterNames": ["m1"] }));
    all["metadata"]["name"] = "maps".into();
    plane.create(&plane.api::<PropagationPolicy>(), all).await;
    for index in 0..24 {
        plane.create::<ConfigMap>(&plane.api(), config_map(&format!("map-{index}"), "g")).await;
    }
    until_some("the hook is asked by as many as may ask at once", || async {
        (webhook.asked.load(Ordering::SeqCst) == 16).then_some(())
    })
    .await;
    plane.create(&plane.api::<PropagationPolicy>(), policy(&["m1"])).await;
    plane.create(&plane.api::<Deployment>(), deployment(2)).await;
    until_some("a Work of the Deployment", || plane.work("m1", WORK)).await;
    assert_eq!(webhook.asked.load(Ordering::SeqCst), 16, "the hook has not answered yet");

    webhook.doors.add_permits(1000);
    let bindings: Api<ResourceBinding> = plane.api();
    until_some("all objects have their bindings", || async {
        (bindings.list(&ListParams::default()).await.ok()?.items.len() == 25).then_some(())
    })
    .await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parts_that_a_script_lists_are_scheduled_as_a_set() {
    let mut plane = Plane::start().await;
    plane.stop_controllers().await;
    let gate = api::features::MULTIPLE_POD_TEMPLATES_SCHEDULING;
    let features = controllers::Settings::default().features.with(gate, true);
    plane.run_with(controllers::Settings { features, ..controllers::Settings::default() });

    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client.clone());
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let definition = json!({ "metadata": { "name": "widgets.example.io" }, "spec": {
        "group": "example.io", "scope": "Namespaced",
        "names": { "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList" },
        "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
    } });
    plane.create(&definitions, definition).await;
    let parts = "function GetComponents(o)\n return {\n  {name = 'leader', replicas = 1, replicaRequirements = {resourceRequest = {cpu = '0.1'}}},\n  \
                 {name = 'worker', replicas = o.spec.size},\n }\nend";
    let mut widgets = customization("widgets", json!({ "componentResource": script(parts) }));
    widgets["spec"]["target"] = json!({ "apiVersion": "example.io/v1", "kind": "Widget" });
    plane.create::<ResourceInterpreterCustomization>(&Api::all(plane.client.clone()), widgets).await;
    let mut one_cluster = policy(&["m1", "m2"]);
    one_cluster["spec"]["resourceSelectors"] = json!([{ "apiVersion": "example.io/v1", "kind": "Widget" }]);
    one_cluster["spec"]["placement"] = json!({
        "clusterAffinity": { "clusterNames": ["m1", "m2"] },
        "spreadConstraints": [{ "spreadByField": "cluster", "minGroups": 1, "maxGroups": 1 }],
    });
    plane.create(&plane.api::<PropagationPolicy>(), one_cluster).await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.io", "v1", "Widget"));
    let api: Api<DynamicObject> = Api::namespaced_with(plane.client.clone(), "default", &resource);
    let widget = DynamicObject::new("a", &resource).data(json!({ "spec": { "size": 3 } }));
    until_some("the definition is served", || async {
        api.create(&PostParams::default(), &widget).await.ok()
    })
    .await;
    let bindings: Api<ResourceBinding> = plane.api();
    let binding = until_some("a binding with a cluster", || async {
        let binding = bindings.get_opt("a-widget").await.ok()??;
        (!binding.spec.clusters.is_empty()).then_some(binding)
    })
    .await;
    let parts: Vec<(&str, i32)> =
        binding.spec.components.iter().map(|part| (part.name.as_str(), part.replicas)).collect();
    assert_eq!(parts, [("leader", 1), ("worker", 3)]);
    let spec = serde_json::to_value(&binding.spec).expect("plain data");
    assert_eq!(spec["components"][0]["replicaRequirements"]["resourceRequest"]["cpu"], "100m");
    assert_eq!(binding.spec.clusters.len(), 1);
    let placed: Vec<(&str, i32)> =
        binding.spec.clusters[0].components.iter().map(|part| (part.name.as_str(), part.replicas)).collect();
    assert_eq!(placed, [("leader", 1), ("worker", 3)]);
    plane.stop().await;
}
