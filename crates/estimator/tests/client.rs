//! The client against a small service in the same process, and what happens when something is missing.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use api::work::ObjectReference;
use estimator::protocol::{
    MaxAvailableComponentSetsRequest, MaxAvailableComponentSetsResponse, MaxAvailableReplicasRequest,
    MaxAvailableReplicasResponse,
};
use estimator::{Client, Error, Options, Question, Want, protocol};
use futures::future::BoxFuture;
use http::{Request, Response};
use serde_json::{Value, json};
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// Answers by cluster name: 1 for m1 and so on; `slow` never answers.
#[derive(Clone, Default)]
struct Estimator {
    objects: Arc<Mutex<Vec<String>>>,
}

impl NamedService for Estimator {
    const NAME: &'static str = protocol::SERVICE;
}

impl tower::Service<Request<Body>> for Estimator {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if let Some(object) = request.headers().get("object") {
                service.objects.lock().unwrap().push(object.to_str().unwrap().to_owned());
            }
            let answer = match request.uri().path() {
                protocol::MAX_AVAILABLE_REPLICAS => {
                    Grpc::new(ProstCodec::default()).unary(Replicas, request).await
                }
                protocol::MAX_AVAILABLE_COMPONENT_SETS => {
                    Grpc::new(ProstCodec::default()).unary(Sets, request).await
                }
                other => panic!("{other} is not served"),
            };
            Ok(answer)
        })
    }
}

struct Replicas;

impl UnaryService<MaxAvailableReplicasRequest> for Replicas {
    type Response = MaxAvailableReplicasResponse;
    type Future = BoxFuture<'static, Result<tonic::Response<Self::Response>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<MaxAvailableReplicasRequest>) -> Self::Future {
        Box::pin(async move {
            let request = request.into_inner();
            if request.cluster == "slow" {
                std::future::pending::<()>().await;
            }
            let known = request.replica_requirements.is_some_and(|needs| {
                needs.resource_request_bytes.get("cpu").is_some_and(|cpu| cpu == b"\x0a\x03500")
                    || needs.resource_request_bytes.get("cpu").is_some_and(|cpu| cpu == b"\x0a\x04500m")
            });
            if !known {
                return Err(tonic::Status::invalid_argument("the request was not understood"));
            }
            let number = request.cluster.trim_start_matches('m').parse().unwrap_or(0);
            Ok(tonic::Response::new(MaxAvailableReplicasResponse { max_replicas: number }))
        })
    }
}

struct Sets;

impl UnaryService<MaxAvailableComponentSetsRequest> for Sets {
    type Response = MaxAvailableComponentSetsResponse;
    type Future = BoxFuture<'static, Result<tonic::Response<Self::Response>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<MaxAvailableComponentSetsRequest>) -> Self::Future {
        Box::pin(async move {
            let sets = request.into_inner().components.len() as i32;
            Ok(tonic::Response::new(MaxAvailableComponentSetsResponse { max_sets: sets }))
        })
    }
}

/// Starts the service; returns its port.
async fn serve(estimator: Estimator) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(tonic::transport::Server::builder().serve_with_incoming(estimator, incoming));
    port
}

/// A control plane that knows a Service for every cluster but `nobody`, all leading to this port.
fn control_plane(port: u16) -> kube::Client {
    let service = service_fn(move |request: Request<kube::client::Body>| async move {
        let path = request.uri().path().to_owned();
        let (code, body): (u16, Value) = if path.ends_with("-nobody") {
            let spec = json!({"type": "ClusterIP"});
            (200, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": spec}))
        } else {
            let ports = json!([{"port": 10352, "targetPort": port}]);
            let spec = json!({"type": "ExternalName", "externalName": "127.0.0.1", "ports": ports});
            (200, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": spec}))
        };
        let body = kube::client::Body::from(body.to_string().into_bytes());
        Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
    });
    kube::Client::new(service, "default")
}

fn question(clusters: &[&str], want: Want) -> Question {
    Question {
        resource: ObjectReference {
            kind: "Deployment".into(),
            namespace: "ns".into(),
            name: "web".into(),
            ..Default::default()
        },
        want,
        clusters: clusters.iter().map(|name| ((*name).to_owned(), Vec::new())).collect(),
    }
}

fn half_a_core() -> Want {
    Want::Replicas(Some(serde_json::from_value(json!({"resourceRequest": {"cpu": "0.5"}})).unwrap()))
}

#[tokio::test]
async fn all_clusters_are_asked_and_told_about_the_workload() {
    let estimator = Estimator::default();
    let client = Client::new(Options::default(), control_plane(serve(estimator.clone()).await));
    for cluster in ["m1", "m2"] {
        client.connect(cluster).await.unwrap();
    }
    let answers = client.max_available(&question(&["m1", "m2"], half_a_core())).await.unwrap();
    assert_eq!(answers, BTreeMap::from([("m1".to_owned(), 1), ("m2".to_owned(), 2)]));
    assert_eq!(estimator.objects.lock().unwrap()[0], "kind=Deployment, name=ns/web");
    let components: Vec<api::work::Component> =
        serde_json::from_value(json!([{"name": "a", "replicas": 1}, {"name": "b", "replicas": 2}])).unwrap();
    let answers = client.max_available(&question(&["m1"], Want::Sets(components))).await.unwrap();
    assert_eq!(answers["m1"], 2);
}

#[tokio::test]
async fn one_cluster_that_cannot_be_asked_spoils_the_answer() {
    let client = Client::new(Options::default(), control_plane(serve(Estimator::default()).await));
    client.connect("m1").await.unwrap();
    let error = client.max_available(&question(&["m1", "m2"], half_a_core())).await.unwrap_err();
    assert!(matches!(error, Error::NotConnected(cluster) if cluster == "m2"));
    let error = client.max_available(&question(&["m1"], Want::Replicas(None))).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the estimator of cluster m1 does not answer: the request was not understood"
    );
    client.disconnect("m1");
    assert!(!client.is_connected("m1"));
}

#[tokio::test]
async fn one_deadline_holds_for_all_clusters() {
    let options = Options { timeout: Duration::from_millis(200), ..Options::default() };
    let client = Client::new(options, control_plane(serve(Estimator::default()).await));
    for cluster in ["m1", "slow"] {
        client.connect(cluster).await.unwrap();
    }
    assert!(client.max_available(&question(&["m1", "slow"], half_a_core())).await.is_err());
}

#[tokio::test]
async fn a_service_that_leads_nowhere_is_named() {
    let client = Client::new(Options::default(), control_plane(1));
    let error = client.connect("nobody").await.unwrap_err();
    assert_eq!(error.to_string(), "the estimator of cluster nobody cannot be found");
    // Nobody listens on port 1.
    assert!(matches!(client.connect("m1").await.unwrap_err(), Error::Dial { .. }));
}
