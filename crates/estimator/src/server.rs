//! The service: answers how many replicas a member can still hold, from copies of its nodes, pods and quotas.
//!
//! One process serves one member, as `karmada-scheduler-estimator` does. Two plug-ins answer each question, and the smaller number
//! counts: the room on the nodes ([`crate::room`]) and, behind the gate ResourceQuotaEstimate, what quotas allow ([`crate::quota`]).
//! Workloads that are on their way are counted behind the gate SchedulingOvercommitProtection.

mod connections;
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

use crate::protocol::{
    self, AssumedWorkload, MaxAvailableComponentSetsRequest, MaxAvailableComponentSetsResponse,
    MaxAvailableReplicasRequest, MaxAvailableReplicasResponse, UnschedulableReplicasRequest,
    UnschedulableReplicasResponse,
};
use crate::quota::{self, Need};
use crate::room::{self, Node, Part, Taken};
use crate::unschedulable;
use metrics::METRICS;

/// Which pods take room: those that have not ended.
const RUNNING: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// How many requests of one connection are worked on at once.
const AT_ONCE: usize = 256;
/// How long a request may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// How large a request may be; the original's limit, too.
const LARGEST: usize = 4 * 1024 * 1024;
/// How many components a request may have, those of assumed workloads among them: each is tried on every node.
const COMPONENTS: usize = 10_000;
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
            client: client.clone(),
            features,
            nodes: Arc::default(),
            pods: Arc::default(),
            quotas: Arc::default(),
        };
        let (mirror, of, stop) = (state.nodes.clone(), client.clone(), supervisor.token().clone());
        supervisor.keep("nodes", move || {
            let (mirror, of, stop) = (mirror.clone(), of.clone(), stop.clone());
            async move {
                mirror.follow(Api::<core::Node>::all(of), watcher::Config::default(), stop, Node::from).await
            }
        });
        let (mirror, of, stop) = (state.pods.clone(), client.clone(), supervisor.token().clone());
        supervisor.keep("pods", move || {
            let (mirror, of, stop) = (mirror.clone(), of.clone(), stop.clone());
            let running = watcher::Config::default().fields(RUNNING);
            async move { mirror.follow(Api::<core::Pod>::all(of), running, stop, Taken::from).await }
        });
        if state.with_quotas() {
            let (mirror, of, stop) = (state.quotas.clone(), client, supervisor.token().clone());
            supervisor.keep("quotas", move || {
                let (mirror, of, stop) = (mirror.clone(), of.clone(), stop.clone());
                let all = Api::<core::ResourceQuota>::all(of);
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
        let incoming = connections::incoming(listener, tls, stop.clone());
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

    /// Returns the nodes with what is left of them, after those who are on their way.
    fn nodes(&self, assumed: &[AssumedWorkload]) -> Vec<Node> {
        let nodes = self.nodes.all();
        let taken = self.pods.all();
        let placed = taken.iter().filter(|taken| !taken.node.is_empty()).map(|taken| taken.as_ref().clone());
        let mut left = room::left(nodes.iter().map(|node| node.as_ref().clone()), placed);
        if self.features.enabled(features::SCHEDULING_OVERCOMMIT_PROTECTION) {
            for workload in assumed {
                room::sets(&mut left, &parts(&workload.components), 1);
            }
        }
        left
    }

    /// Returns what the quotas of a namespace allow.
    fn allowed(&self, namespace: &str, needs: &[Need], assumed: &[AssumedWorkload]) -> i32 {
        if !self.with_quotas() || namespace.is_empty() || needs.is_empty() {
            return i32::MAX;
        }
        let coming: Vec<Need> = if self.features.enabled(features::SCHEDULING_OVERCOMMIT_PROTECTION) {
            let here = assumed.iter().filter(|workload| workload.namespace == namespace);
            here.flat_map(|workload| workload.components.iter().map(need)).collect()
        } else {
            Vec::new()
        };
        let quotas = self.quotas.all();
        let here: Vec<&core::ResourceQuota> = quotas
            .iter()
            .map(AsRef::as_ref)
            .filter(|quota| quota.metadata.namespace.as_deref() == Some(namespace))
            .collect();
        let allowed = quota::allowed(&here, needs, &coming);
        allowed.and_then(|allowed| i32::try_from(allowed).ok()).unwrap_or(i32::MAX)
    }

    fn replicas(&self, request: &MaxAvailableReplicasRequest) -> Result<i32, Status> {
        self.check(&request.cluster)?;
        bounded(&[], &request.assumed_workloads)?;
        let nodes = self.nodes(&request.assumed_workloads);
        if nodes.is_empty() {
            return Ok(0);
        }
        let Some(needs) = &request.replica_requirements else {
            return Ok(room::replicas(&nodes, &Part::default()));
        };
        let list = needs.request();
        let claim = needs.node_claim.as_ref().map(protocol::NodeClaim::read);
        let fit = room::replicas(&nodes, &Part::new(1, &list, claim.as_ref()));
        let need = Need {
            replicas: 1,
            request: Some(list.into_iter().map(|(name, amount)| (name, amount.0)).collect()),
            priority_class: needs.priority_class_name.clone(),
        };
        Ok(fit.min(self.allowed(&needs.namespace, &[need], &request.assumed_workloads)))
    }

    fn sets(&self, request: &MaxAvailableComponentSetsRequest) -> Result<i32, Status> {
        self.check(&request.cluster)?;
        bounded(&request.components, &request.assumed_workloads)?;
        let mut nodes = self.nodes(&request.assumed_workloads);
        if nodes.is_empty() {
            return Ok(0);
        }
        if request.components.is_empty() {
            return Ok(i32::MAX);
        }
        let fit = room::sets(&mut nodes, &parts(&request.components), i32::MAX);
        let needs: Vec<Need> = request.components.iter().map(need).collect();
        Ok(fit.min(self.allowed(&request.namespace, &needs, &request.assumed_workloads)))
    }

    async fn unschedulable(&self, request: &UnschedulableReplicasRequest) -> Result<i32, Status> {
        self.check(&request.cluster)?;
        let Ok(threshold) = u64::try_from(request.unschedulable_threshold) else { return Ok(0) };
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
    let count =
        components.len() + assumed.iter().map(|workload| workload.components.len().max(1)).sum::<usize>();
    if count > COMPONENTS {
        let said =
            format!("the request has {count} components and assumed workloads, more than {COMPONENTS}");
        return Err(Status::invalid_argument(said));
    }
    Ok(())
}

fn parts(components: &[protocol::Component]) -> Vec<Part> {
    let part = |component: &protocol::Component| {
        let needs = component.replica_requirements.as_ref();
        let claim = needs.and_then(|needs| needs.node_claim.as_ref()).map(protocol::NodeClaim::read);
        let list = needs.map(protocol::ComponentReplicaRequirements::request).unwrap_or_default();
        Part::new(component.replicas, &list, claim.as_ref())
    };
    components.iter().map(part).collect()
}

fn need(component: &protocol::Component) -> Need {
    let needs = component.replica_requirements.as_ref();
    let list = |needs: &protocol::ComponentReplicaRequirements| {
        needs.request().into_iter().map(|(name, amount)| (name, amount.0)).collect()
    };
    Need {
        replicas: component.replicas.into(),
        request: needs.map(list),
        priority_class: needs.map(|needs| needs.priority_class_name.clone()).unwrap_or_default(),
    }
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
        Box::pin(async move {
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
