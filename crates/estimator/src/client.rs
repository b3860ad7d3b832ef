//! The side of the scheduler and the descheduler: one connection per cluster, kept while the cluster exists, and all clusters asked
//! at once.
//!
//! If any cluster cannot be asked, or does not answer in time, there is no answer at all, as upstream: half of the
//! answers would favour the clusters that said nothing.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::work::{Component, ObjectReference, ReplicaRequirements};
use futures::future::try_join_all;
use http::Uri;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use parking_lot::RwLock;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::{address, protocol};

/// How large an answer may be.
const ANSWER: usize = 64 * 1024;
/// How long one address is tried.
const DIAL: Duration = Duration::from_secs(5);

/// How long calls may stay without any answer, at least, before the address is looked up again.
const SILENCE: Duration = Duration::from_secs(10);

/// How estimators are found and asked. The defaults are upstream's.
#[derive(Debug, Clone)]
pub struct Options {
    /// `--scheduler-estimator-service-namespace`
    pub namespace: String,
    /// `--scheduler-estimator-service-prefix`
    pub prefix: String,
    /// `--scheduler-estimator-port`
    pub port: u16,
    /// `--scheduler-estimator-timeout`: for all clusters together.
    pub timeout: Duration,
    /// See [`crate::tls::Tls::client_config`]; none for plain text.
    pub tls: Option<Arc<ClientConfig>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespace: "karmada-system".to_owned(),
            prefix: "karmada-scheduler-estimator".to_owned(),
            port: 10352,
            timeout: Duration::from_secs(3),
            tls: None,
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no connection to the estimator of cluster {0}")]
    NotConnected(String),
    #[error("the estimator of cluster {cluster} does not answer: {}", status.message())]
    Call { cluster: String, status: Box<tonic::Status> },
    #[error("not all estimators answered within {0:?}")]
    TooSlow(Duration),
    #[error("cannot look up the service of cluster {cluster}")]
    Lookup { cluster: String, source: Box<kube::Error> },
    #[error("the estimator of cluster {cluster} cannot be found")]
    Address { cluster: String, source: address::Error },
    #[error("cannot reach the estimator of cluster {cluster} at any of {addresses:?}")]
    Dial { cluster: String, addresses: Vec<String> },
}

/// What all clusters are asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// The workload, for the service's log.
    pub resource: ObjectReference,
    pub want: Want,
    /// The clusters, with the workloads that were placed there but do not run yet.
    pub clusters: Vec<(String, Vec<Workload>)>,
}

/// What is to be counted.
#[derive(Debug, Clone)]
pub enum Want {
    /// Replicas of one pod template.
    Replicas(Option<ReplicaRequirements>),
    /// Complete sets of all components.
    Sets(Vec<Component>),
}

/// A workload that was placed but does not run yet.
#[derive(Debug, Clone)]
pub struct Workload {
    pub namespace: String,
    pub components: Vec<Component>,
}

/// A question to one cluster, as it is sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    Replicas(Box<protocol::MaxAvailableReplicasRequest>),
    Sets(protocol::MaxAvailableComponentSetsRequest),
}

impl Question {
    /// Returns what one cluster is asked.
    pub fn request(&self, cluster: &str, assumed: &[Workload]) -> Request {
        let assumed_workloads = assumed.iter().map(|workload| protocol::AssumedWorkload {
            namespace: workload.namespace.clone(),
            components: workload.components.iter().map(Into::into).collect(),
        });
        let (cluster, assumed_workloads) = (cluster.to_owned(), assumed_workloads.collect());
        match &self.want {
            Want::Replicas(needs) => Request::Replicas(Box::new(protocol::MaxAvailableReplicasRequest {
                cluster,
                replica_requirements: needs.as_ref().map(Into::into),
                assumed_workloads,
            })),
            Want::Sets(components) => Request::Sets(protocol::MaxAvailableComponentSetsRequest {
                cluster,
                components: components.iter().map(Into::into).collect(),
                namespace: self.resource.namespace.clone(),
                assumed_workloads,
            }),
        }
    }

    /// Returns the namespace whose quotas count.
    pub fn namespace(&self) -> &str {
        match &self.want {
            Want::Replicas(needs) => needs.as_ref().map_or("", |needs| needs.namespace.as_str()),
            Want::Sets(_) => &self.resource.namespace,
        }
    }
}

/// Connections to the estimators of all clusters.
pub struct Client {
    options: Options,
    control_plane: kube::Client,
    connections: RwLock<HashMap<String, Connection>>,
}

struct Connection {
    channel: Channel,
    silence: Silence,
}

/// Since when nothing has been answered. A channel dials the address it was made for, for ever; the estimator may be gone, or elsewhere.
#[derive(Debug, Default)]
struct Silence(Option<Instant>);

impl Silence {
    /// A call begins; returns whether those before it have been without an answer for too long.
    fn is_too_long(&mut self, now: Instant, longest: Duration) -> bool {
        now.duration_since(*self.0.get_or_insert(now)) > longest
    }

    fn end(&mut self) {
        self.0 = None;
    }
}

/// Returns whether a status comes from the estimator, and not from the way to it.
fn is_answer(status: &tonic::Status) -> bool {
    use tonic::Code;
    !matches!(status.code(), Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Unknown)
}

impl Client {
    pub fn new(options: Options, control_plane: kube::Client) -> Self {
        Self { options, control_plane, connections: RwLock::default() }
    }

    /// Connects to a cluster's estimator, unless that has been done; the connection renews itself when it breaks, and is given up when
    /// nothing is answered any more.
    pub async fn connect(&self, cluster: &str) -> Result<(), Error> {
        if self.is_connected(cluster) {
            return Ok(());
        }
        let name = format!("{}-{cluster}", self.options.prefix);
        let services: Api<Service> = Api::namespaced(self.control_plane.clone(), &self.options.namespace);
        let service = services
            .get_opt(&name)
            .await
            .map_err(|source| Error::Lookup { cluster: cluster.to_owned(), source: Box::new(source) })?;
        let addresses =
            address::addresses(service.as_ref(), &self.options.namespace, &name, self.options.port)
                .map_err(|source| Error::Address { cluster: cluster.to_owned(), source })?;
        for address in &addresses {
            match dial(address, self.options.tls.clone()).await {
                Ok(channel) => {
                    let connection = Connection { channel, silence: Silence::default() };
                    self.connections.write().insert(cluster.to_owned(), connection);
                    return Ok(());
                }
                Err(error) => tracing::debug!(cluster, address, %error, "cannot reach the estimator"),
            }
        }
        Err(Error::Dial { cluster: cluster.to_owned(), addresses })
    }

    /// Ends the connection to a cluster that is gone.
    pub fn disconnect(&self, cluster: &str) {
        self.connections.write().remove(cluster);
    }

    /// Ends the connections to all clusters but these.
    pub fn keep(&self, stays: impl Fn(&str) -> bool) {
        self.connections.write().retain(|cluster, _| stays(cluster));
    }

    pub fn is_connected(&self, cluster: &str) -> bool {
        self.connections.read().contains_key(cluster)
    }

    /// Returns how long all clusters together may take.
    pub fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Asks all clusters at once.
    ///
    /// # Errors
    /// Fails if any of them cannot be asked or does not answer in time.
    pub async fn max_available(&self, question: &Question) -> Result<BTreeMap<String, i32>, Error> {
        let calls = question.clusters.iter().map(|(cluster, assumed)| async move {
            Ok((cluster.clone(), self.ask(cluster, assumed, question).await?))
        });
        let timeout = self.options.timeout;
        let answers = tokio::time::timeout(timeout, try_join_all(calls)).await;
        answers.map_err(|_| Error::TooSlow(timeout))?.map(|answers| answers.into_iter().collect())
    }

    /// Asks one cluster how many replicas of a Deployment have been waiting for a node for longer than `threshold`.
    ///
    /// # Errors
    /// Fails if it cannot be asked, does not answer in time, or cannot tell.
    pub async fn unschedulable(
        &self,
        cluster: &str,
        resource: &ObjectReference,
        threshold: Duration,
    ) -> Result<i32, Error> {
        let request = protocol::UnschedulableReplicasRequest {
            cluster: cluster.to_owned(),
            resource: Some(resource.into()),
            unschedulable_threshold: i64::try_from(threshold.as_nanos()).unwrap_or(i64::MAX),
        };
        let path = protocol::GET_UNSCHEDULABLE_REPLICAS;
        let asked = self.call::<_, protocol::UnschedulableReplicasResponse>(cluster, path, request, resource);
        let timeout = self.options.timeout;
        let answer = tokio::time::timeout(timeout, asked).await.map_err(|_| Error::TooSlow(timeout))?;
        answer.map(|answer| answer.unschedulable_replicas)
    }

    async fn ask(&self, cluster: &str, assumed: &[Workload], question: &Question) -> Result<i32, Error> {
        match question.request(cluster, assumed) {
            Request::Replicas(request) => {
                let path = protocol::MAX_AVAILABLE_REPLICAS;
                let answer: protocol::MaxAvailableReplicasResponse =
                    self.call(cluster, path, *request, &question.resource).await?;
                Ok(answer.max_replicas)
            }
            Request::Sets(request) => {
                let path = protocol::MAX_AVAILABLE_COMPONENT_SETS;
                let answer: protocol::MaxAvailableComponentSetsResponse =
                    self.call(cluster, path, request, &question.resource).await?;
                Ok(answer.max_sets)
            }
        }
    }

    async fn call<Q, A>(
        &self,
        cluster: &str,
        path: &'static str,
        message: Q,
        resource: &ObjectReference,
    ) -> Result<A, Error>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let channel = self.channel(cluster).ok_or_else(|| Error::NotConnected(cluster.to_owned()))?;
        let failed = |status| Error::Call { cluster: cluster.to_owned(), status: Box::new(status) };
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.options.timeout);
        let object = format!("kind={}, name={}/{}", resource.kind, resource.namespace, resource.name);
        if let Ok(object) = MetadataValue::try_from(object) {
            request.metadata_mut().insert("object", object);
        }
        // An answer is a number.
        let mut grpc = Grpc::new(channel).max_decoding_message_size(ANSWER);
        grpc.ready().await.map_err(|error| failed(tonic::Status::unavailable(error.to_string())))?;
        let path = http::uri::PathAndQuery::from_static(path);
        let answer = grpc.unary(request, path, ProstCodec::<Q, A>::default()).await;
        if answer.as_ref().map_or_else(is_answer, |_| true)
            && let Some(connection) = self.connections.write().get_mut(cluster)
        {
            connection.silence.end();
        }
        Ok(answer.map_err(failed)?.into_inner())
    }

    /// Returns the channel for a call; gives it up if nobody has answered for too long.
    fn channel(&self, cluster: &str) -> Option<Channel> {
        let longest = SILENCE.max(self.options.timeout.saturating_mul(3));
        let mut connections = self.connections.write();
        let connection = connections.get_mut(cluster)?;
        if connection.silence.is_too_long(Instant::now(), longest) {
            connections.remove(cluster);
            return None;
        }
        Some(connection.channel.clone())
    }
}

/// Connects to one address and waits until it answers.
async fn dial(
    address: &str,
    tls: Option<Arc<ClientConfig>>,
) -> Result<Channel, Box<dyn std::error::Error + Send + Sync>> {
    // The connector below does TLS itself; the scheme is only what the requests say.
    let mut endpoint = Endpoint::from_shared(format!("http://{address}"))?.connect_timeout(DIAL);
    if tls.is_some() {
        endpoint = endpoint.origin(Uri::try_from(format!("https://{address}"))?);
    }
    let connector = service_fn(move |uri: Uri| connect(uri, tls.clone()));
    Ok(tokio::time::timeout(DIAL, endpoint.connect_with_connector(connector)).await??)
}

/// A connection, secured or not.
trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for S {}

async fn connect(uri: Uri, tls: Option<Arc<ClientConfig>>) -> io::Result<TokioIo<Box<dyn Stream>>> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let plain = TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(443))).await?;
    plain.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(TokioIo::new(Box::new(plain))) };
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    Ok(TokioIo::new(Box::new(TlsConnector::from(tls).connect(name, plain).await?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_for_long_is_given_up() {
        let (begun, longest) = (Instant::now(), Duration::from_secs(10));
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut silence = Silence::default();
        assert!(!silence.is_too_long(at(0), longest));
        silence.end();
        assert!(!silence.is_too_long(at(3600), longest), "it was answered, however long ago");
        assert!(!silence.is_too_long(at(3610), longest));
        assert!(silence.is_too_long(at(3611), longest), "no call since was answered");
        silence.end();
        assert!(!silence.is_too_long(at(3612), longest));
        assert!(is_answer(&tonic::Status::invalid_argument("no")));
        assert!(!is_answer(&tonic::Status::unavailable("no")));
    }
}
