//! The service: answers how many replicas a member can still hold, from copies of its nodes, pods and quotas.
//!
//! One process serves one member, as `karmada-scheduler-estimator` does. What it answers is decided in [`crate::estimate`]: quotas count
//! behind the gate ResourceQuotaEstimate, workloads that are on their way behind the gate SchedulingOvercommitProtection.

mod connections;
mod guests;
mod metrics;

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use api::features::{self, Features};
use futures::future::BoxFuture;
use http::{Request, Response};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::runtime::watcher;
use kube::{Api, Client};
use runtime::{Mirror, Supervisor};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic_prost::ProstCodec;

use crate::estimate::{self, World};
use crate::protocol::{
    self, AssumedWorkload, MaxAvailableComponentSetsRequest, MaxAvailableComponentSetsResponse,
    MaxAvailableReplicasRequest, MaxAvailableReplicasResponse, UnschedulableReplicasRequest,
    UnschedulableReplicasResponse,
};
use crate::room::{self, Node, Taken};
use crate::{RUNNING, unschedulable};
use guests::{Guest, Guests, Limits};
use metrics::METRICS;

/// How many requests of one connection are worked on at once.
const AT_ONCE: usize = 256;
/// How long a request may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// How large a request may be; the original's limit, too.
const LARGEST: usize = 4 * 1024 * 1024;
/// Largest headers of a request.
const HEADERS: u32 = 16 * 1024;
/// How often a silent caller is asked whether it is still there, and how long it may take to say so: a place among the
/// connections is not kept for one that is gone.
const PROBE: Duration = Duration::from_secs(30);
const PROBE_ANSWER: Duration = Duration::from_secs(10);

/// The estimator of one member; cheap to clone.
#[derive(Clone)]
pub struct Estimator(Arc<State>);

struct State {
    cluster: String,
    client: Client,
    features: Features,
    nodes: Arc<Mirror<Node>>,
    pods: Arc<Mirror<Taken>>,
    quotas: Arc<Mirror<core::ResourceQuota>>,
}

impl Estimator {
    /// Returns the estimator of a member, and follows its nodes, pods and quotas from now on.
    pub fn new(cluster: &str, client: Client, features: Features, supervisor: &Supervisor) -> Self {
        let state = State {
            cluster: cluster.to_owned(),
            client,
            features,
            nodes: Arc::default(),
            pods: Arc::default(),
            quotas: Arc::default(),
        };
        let (mirror, client, stop) = (state.nodes.clone(), state.client.clone(), supervisor.token().clone());
        supervisor.keep("nodes", move || {
            let (mirror, client, stop) = (mirror.clone(), client.clone(), stop.clone());
            async move {
                mirror
                    .follow(Api::<core::Node>::all(client), watcher::Config::default(), stop, Node::from)
                    .await
            }
        });
        let (mirror, client, stop) = (state.pods.clone(), state.client.clone(), supervisor.token().clone());
        supervisor.keep("pods", move || {
            let (mirror, client, stop) = (mirror.clone(), client.clone(), stop.clone());
            let running = watcher::Config::default().fields(RUNNING);
            async move { mirror.follow(Api::<core::Pod>::all(client), running, stop, Taken::from).await }
        });
        if state.with_quotas() {
            let (mirror, client, stop) =
                (state.quotas.clone(), state.client.clone(), supervisor.token().clone());
            supervisor.keep("quotas", move || {
                let (mirror, client, stop) = (mirror.clone(), client.clone(), stop.clone());
                let all = Api::<core::ResourceQuota>::all(client);
                async move { mirror.follow(all, watcher::Config::default(), stop, |quota| quota).await }
            });
        }
        Self(Arc::new(state))
    }

    /// Waits until the copies are complete.
    pub async fn complete(&self) {
        let state = &self.0;
        tokio::join!(state.nodes.complete(), state.pods.complete());
        if state.with_quotas() {
            state.quotas.complete().await;
        }
    }

    /// Answers on a listener until told to stop; in plain text without a TLS configuration.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve(
        self,
        listener: TcpListener,
        tls: Option<Arc<ServerConfig>>,
        stop: CancellationToken,
    ) -> Result<(), tonic::transport::Error> {
        let guests = Guests::new(Limits::default());
        let incoming = connections::incoming(listener, tls, guests, connections::PATIENCE, stop.clone());
        tonic::transport::Server::builder()
            .concurrency_limit_per_connection(AT_ONCE)
            .max_concurrent_streams(u32::try_from(AT_ONCE).ok())
            .http2_max_header_list_size(HEADERS)
            .http2_keepalive_interval(Some(PROBE))
            .http2_keepalive_timeout(Some(PROBE_ANSWER))
            .timeout(DEADLINE)
            .serve_with_incoming_shutdown(self, incoming, stop.cancelled_owned())
            .await
    }
}

impl State {
    fn with_quotas(&self) -> bool {
        self.features.enabled(features::RESOURCE_QUOTA_ESTIMATE)
    }

    fn check(&self, cluster: &str) -> Result<(), Status> {
        if cluster == self.cluster {
            return Ok(());
        }
        let desired = &self.cluster;
        Err(Status::unknown(format!("cluster name does not match, got: {cluster}, desire: {desired}")))
    }

    /// Returns the nodes with what their pods have left of them.
    fn left(&self) -> Vec<Node> {
        let nodes = self.nodes.all();
        let taken = self.pods.all();
        let placed = taken.iter().filter(|taken| !taken.node.is_empty()).map(|taken| taken.as_ref().clone());
        room::left(nodes.iter().map(|node| node.as_ref().clone()), placed)
    }

    /// Returns the quotas of a namespace; nothing if they do not count.
    fn quotas(&self, namespace: &str) -> Option<Vec<core::ResourceQuota>> {
        let here = |quota: &&Arc<core::ResourceQuota>| quota.metadata.namespace.as_deref() == Some(namespace);
        self.with_quotas()
            .then(|| self.quotas.all().iter().filter(here).map(|quota| (**quota).clone()).collect())
    }

    fn answer<T>(&self, namespace: &str, ask: impl FnOnce(World<'_>) -> T) -> T {
        let (left, quotas) = (self.left(), self.quotas(namespace));
        let protected = self.features.enabled(features::SCHEDULING_OVERCOMMIT_PROTECTION);
        ask(World { left: &left, quotas: quotas.as_deref(), protected })
    }

    fn replicas(&self, request: &MaxAvailableReplicasRequest) -> Result<i32, Status> {
        self.check(&request.cluster)?;
        bounded(&[], &request.assumed_workloads)?;
        let namespace = request.replica_requirements.as_ref().map_or("", |needs| needs.namespace.as_str());
        Ok(self.answer(namespace, |world| world.replicas(request)))
    }

    fn sets(&self, request: &MaxAvailableComponentSetsRequest) -> Result<i32, Status> {
        self.check(&request.cluster)?;
        bounded(&request.components, &request.assumed_workloads)?;
        Ok(self.answer(&request.namespace, |world| world.sets(request)))
    }

    async fn unschedulable(&self, request: &UnschedulableReplicasRequest) -> Result<i32, Status> {
        self.check(&request.cluster)?;
        let threshold = u64::try_from(request.unschedulable_threshold).unwrap_or(0);
        let resource = request.resource.clone().unwrap_or_default();
        let resource = api::work::ObjectReference {
            api_version: resource.api_version,
            kind: resource.kind,
            namespace: resource.namespace,
            name: resource.name,
            ..api::work::ObjectReference::default()
        };
        let threshold = Duration::from_nanos(threshold);
        unschedulable::replicas(&self.client, &resource, threshold, Timestamp::now())
            .await
            .map_err(|error| Status::unknown(error.to_string()))
    }
}

/// Refuses a request whose components would take too long.
fn bounded(components: &[protocol::Component], assumed: &[AssumedWorkload]) -> Result<(), Status> {
    let Some(count) = estimate::too_many(components, assumed) else { return Ok(()) };
    let most = estimate::COMPONENTS;
    let said = format!("the request has {count} components and assumed workloads, more than {most}");
    Err(Status::invalid_argument(said))
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
        let state = self.0.clone();
        let active = request.extensions().get::<Arc<Guest>>().map(Guest::begin);
        Box::pin(async move {
            let _active = active;
            Ok(match request.uri().path() {
                protocol::MAX_AVAILABLE_REPLICAS => grpc().unary(Replicas(state), request).await,
                protocol::MAX_AVAILABLE_COMPONENT_SETS => grpc().unary(Sets(state), request).await,
                protocol::GET_UNSCHEDULABLE_REPLICAS => grpc().unary(Unschedulable(state), request).await,
                other => Status::unimplemented(format!("{other} is not served")).into_http(),
            })
        })
    }
}

/// One call, whose message is bounded.
fn grpc<Q, A>() -> Grpc<ProstCodec<A, Q>>
where
    Q: prost::Message + Default + Send + 'static,
    A: prost::Message + Default + Send + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(LARGEST)
}

type Answer<T> = BoxFuture<'static, Result<tonic::Response<T>, Status>>;

struct Replicas(Arc<State>);

impl UnaryService<MaxAvailableReplicasRequest> for Replicas {
    type Response = MaxAvailableReplicasResponse;
    type Future = Answer<Self::Response>;

    fn call(&mut self, request: tonic::Request<MaxAvailableReplicasRequest>) -> Self::Future {
        let state = self.0.clone();
        Box::pin(async move {
            let started = Instant::now();
            let result = state.replicas(request.get_ref());
            METRICS.answered("MaxAvailableReplicas", started, result.is_ok());
            result.map(|max_replicas| tonic::Response::new(MaxAvailableReplicasResponse { max_replicas }))
        })
    }
}

struct Sets(Arc<State>);

impl UnaryService<MaxAvailableComponentSetsRequest> for Sets {
    type Response = MaxAvailableComponentSetsResponse;
    type Future = Answer<Self::Response>;

    fn call(&mut self, request: tonic::Request<MaxAvailableComponentSetsRequest>) -> Self::Future {
        let state = self.0.clone();
        Box::pin(async move {
            let started = Instant::now();
            let result = state.sets(request.get_ref());
            METRICS.answered("MaxAvailableComponentSets", started, result.is_ok());
            result.map(|max_sets| tonic::Response::new(MaxAvailableComponentSetsResponse { max_sets }))
        })
    }
}

struct Unschedulable(Arc<State>);

impl UnaryService<UnschedulableReplicasRequest> for Unschedulable {
    type Response = UnschedulableReplicasResponse;
    type Future = Answer<Self::Response>;

    fn call(&mut self, request: tonic::Request<UnschedulableReplicasRequest>) -> Self::Future {
        let state = self.0.clone();
        Box::pin(async move {
            let started = Instant::now();
            let result = state.unschedulable(request.get_ref()).await;
            METRICS.answered("GetUnschedulableReplicas", started, result.is_ok());
            result.map(|unschedulable_replicas| {
                tonic::Response::new(UnschedulableReplicasResponse { unschedulable_replicas })
            })
        })
    }
}
