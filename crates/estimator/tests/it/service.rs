//! A small estimator in this process, and a control plane that leads to it.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use estimator::protocol::{
    self, MaxAvailableComponentSetsRequest, MaxAvailableComponentSetsResponse, MaxAvailableReplicasRequest,
    MaxAvailableReplicasResponse, UnschedulableReplicasRequest, UnschedulableReplicasResponse,
};
use futures::future::BoxFuture;
use http::{Request, Response};
use serde_json::{Value, json};
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::ServerTlsConfig;
use tonic_prost::ProstCodec;
use tower::service_fn;

/// Answers by cluster name: 1 for m1 and so on, −1 for `unsure`; `slow` never answers.
#[derive(Clone, Default)]
pub(crate) struct Estimator {
    /// Which workloads were asked about.
    pub(crate) objects: Arc<Mutex<Vec<String>>>,
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
                protocol::GET_UNSCHEDULABLE_REPLICAS => {
                    Grpc::new(ProstCodec::default()).unary(Unschedulable, request).await
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
            let number = match request.cluster.as_str() {
                "unsure" => -1,
                name => name.trim_start_matches('m').parse().unwrap_or(0),
            };
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

struct Unschedulable;

impl UnaryService<UnschedulableReplicasRequest> for Unschedulable {
    type Response = UnschedulableReplicasResponse;
    type Future = BoxFuture<'static, Result<tonic::Response<Self::Response>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<UnschedulableReplicasRequest>) -> Self::Future {
        Box::pin(async move {
            let request = request.into_inner();
            if request.cluster == "slow" {
                std::future::pending::<()>().await;
            }
            let resource = request.resource.unwrap_or_default();
            if (resource.kind.as_str(), request.unschedulable_threshold) != ("Deployment", 300_000_000_000) {
                return Err(tonic::Status::invalid_argument("the request was not understood"));
            }
            let unschedulable_replicas = request.cluster.trim_start_matches('m').parse().unwrap_or(0);
            Ok(tonic::Response::new(UnschedulableReplicasResponse { unschedulable_replicas }))
        })
    }
}

/// Starts the service, in plain text unless told otherwise; returns its port.
pub(crate) async fn serve(estimator: Estimator, tls: Option<ServerTlsConfig>) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let mut server = tonic::transport::Server::builder();
    if let Some(tls) = tls {
        server = server.tls_config(tls).unwrap();
    }
    tokio::spawn(server.serve_with_incoming(estimator, incoming));
    port
}

/// A control plane that knows a Service for every cluster but `nobody`, all leading to this port.
pub(crate) fn control_plane(port: u16) -> kube::Client {
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
