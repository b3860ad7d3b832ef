//! The route to a member, and the client that uses it.
//!
//! Code that reaches a member under a caller's name gets the route from [`Connection::of_caller`]. A member
//! in push mode is reached at its address. A member in pull mode is reached through the tunnel that its agent
//! keeps open; only this file knows the difference.

use std::collections::BTreeMap;

use api::cluster::{Cluster, ClusterSyncMode, LocalSecretReference};
use api::constants::{SECRET_CA_BUNDLE, SECRET_TOKEN};
use apimachinery::{names, pointer};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Request};
use k8s_openapi::api::core::v1::Secret;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;
use tower::Layer as _;
use tower::util::MapRequest;
use tunnel::Tunnels;

use crate::limit::LimitLayer;
use crate::tls::OldestTls;
use crate::{Error, Result, lasting, proxied};

/// The route to a member. Equal routes can share a client.
#[derive(Clone, PartialEq, Eq)]
pub struct Connection {
    cluster: String,
    way: Way,
}

#[derive(Clone, PartialEq, Eq)]
enum Way {
    Address(Box<Address>),
    /// Whichever tunnel the agent has open at the moment of a request.
    Tunnel {
        tunnels: Tunnels,
        who: Who,
    },
}

/// The name under which requests go through a tunnel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// The caller's name, from each request.
    Caller,
    /// The control plane's own.
    Plane,
}

/// The name of the control plane when it reaches a member through a tunnel. The agent's account may
/// impersonate this name, since it is bound to the role for the cluster proxy from the start. Where the
/// control plane has credentials of a member, those are also an administrator's.
const PLANE: (&str, &str) = ("system:admin", "system:masters");

/// Address and credentials of a member.
#[derive(Clone, PartialEq, Eq)]
struct Address {
    endpoint: String,
    token: String,
    certificates: Vec<u8>,
    skip_verification: bool,
    proxy: String,
    /// Headers for the proxy, sent with every connection.
    proxy_headers: BTreeMap<String, String>,
    oldest_tls: OldestTls,
}

/// Without the credentials.
impl std::fmt::Debug for Connection {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let endpoint = match &self.way {
            Way::Address(address) => address.endpoint.as_str(),
            Way::Tunnel { .. } => "its tunnel",
        };
        out.debug_struct("Connection")
            .field("cluster", &self.cluster)
            .field("endpoint", &endpoint)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Reads the Secret that a Cluster names and combines the two.
    pub async fn read(control: &Client, cluster: &Cluster) -> Result<Self> {
        let name = cluster.metadata.name.clone().unwrap_or_default();
        // Users write it, and the client writes it into a path as it is. There is no Secret with such a name.
        let can_exist = |reference: &&LocalSecretReference| {
            names::is_path_segment(&reference.namespace) && names::is_path_segment(&reference.name)
        };
        let Some(reference) = cluster.spec.secret_ref.as_ref().filter(can_exist) else {
            return Err(Error::NoSecret { cluster: name });
        };
        let secret = Api::<Secret>::namespaced(control.clone(), &reference.namespace)
            .get(&reference.name)
            .await
            .map_err(|source| Error::Secret { cluster: name.clone(), source: Box::new(source) })?;
        Self::new(cluster, &secret)
    }

    /// Combines a Cluster and its Secret.
    pub fn new(cluster: &Cluster, secret: &Secret) -> Result<Self> {
        let token = token(cluster, secret)?;
        Self::with(cluster, Some(secret), token)
    }

    /// Returns how the control plane itself reaches a member, to follow what is in it: with the credentials that the Cluster names,
    /// or, in pull mode, through the tunnel, which need not be open yet.
    pub async fn of_plane(control: &Client, cluster: &Cluster, tunnels: &Tunnels) -> Result<Self> {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let spec = &cluster.spec;
        let can_be_reached = !spec.api_endpoint.is_empty() && spec.secret_ref.is_some();
        if spec.sync_mode == ClusterSyncMode::Pull && (tunnels.is_known(name) || !can_be_reached) {
            return Ok(Self::tunnelled(name, tunnels));
        }
        Self::read(control, cluster).await
    }

    /// Returns how the control plane itself reaches a member through its tunnel.
    pub fn tunnelled(cluster: &str, tunnels: &Tunnels) -> Self {
        let way = Way::Tunnel { tunnels: tunnels.clone(), who: Who::Plane };
        Self { cluster: cluster.to_owned(), way }
    }

    /// Returns how a member is reached in the name of a caller. `secret` reads the Secrets that the Cluster names.
    ///
    /// A member in pull mode is reached through its tunnel, which need not be open yet. One whose agent opens none, but
    /// reports an address and an impersonator, is reached there: upstream knows no other way.
    pub fn of_caller<E: From<Error>>(
        cluster: &Cluster,
        tunnels: &Tunnels,
        secret: impl Fn(&LocalSecretReference) -> std::result::Result<Secret, E>,
    ) -> std::result::Result<Self, E> {
        let name = cluster.metadata.name.clone().unwrap_or_default();
        let spec = &cluster.spec;
        let can_be_reached = !spec.api_endpoint.is_empty() && spec.impersonator_secret_ref.is_some();
        if spec.sync_mode == ClusterSyncMode::Pull && (tunnels.is_known(&name) || !can_be_reached) {
            let way = Way::Tunnel { tunnels: tunnels.clone(), who: Who::Caller };
            return Ok(Self { cluster: name, way });
        }
        if spec.api_endpoint.is_empty() {
            return Err(Error::NoEndpoint { cluster: name }.into());
        }
        let Some(reference) = &spec.impersonator_secret_ref else {
            return Err(Error::NoImpersonator { cluster: name }.into());
        };
        let own = spec.secret_ref.as_ref().map(&secret).transpose()?;
        let impersonator = secret(reference)?;
        Ok(Self::impersonator(cluster, own.as_ref(), &impersonator)?)
    }

    /// Returns how the cluster proxy reaches a member: with the impersonator's token, which may only
    /// impersonate the users of the proxy. Without a Secret of its own, the member is trusted as this machine
    /// trusts others; an agent's cluster has none.
    pub fn impersonator(cluster: &Cluster, secret: Option<&Secret>, impersonator: &Secret) -> Result<Self> {
        let token = token(cluster, impersonator)?;
        Self::with(cluster, secret, token)
    }

    fn with(cluster: &Cluster, secret: Option<&Secret>, token: String) -> Result<Self> {
        let name = cluster.metadata.name.clone().unwrap_or_default();
        let spec = &cluster.spec;
        if spec.api_endpoint.is_empty() {
            return Err(Error::NoEndpoint { cluster: name });
        }
        let certificates = match secret {
            Some(secret) if !spec.insecure_skip_tls_verification => {
                entry(cluster, secret, SECRET_CA_BUNDLE)?.to_vec()
            }
            _ => Vec::new(),
        };
        let address = Address {
            endpoint: spec.api_endpoint.clone(),
            token,
            certificates,
            skip_verification: spec.insecure_skip_tls_verification,
            proxy: spec.proxy_url.clone(),
            proxy_headers: spec.proxy_header.clone(),
            oldest_tls: OldestTls::default(),
        };
        Ok(Self { cluster: name, way: Way::Address(Box::new(address)) })
    }

    /// Returns the same route with a minimum version of TLS. A tunnel has its own TLS.
    pub fn with_oldest_tls(mut self, oldest: OldestTls) -> Self {
        if let Way::Address(address) = &mut self.way {
            address.oldest_tls = oldest;
        }
        self
    }

    /// Makes a client that passes on every answer without a limit. Nothing is sent yet.
    pub async fn client(&self) -> Result<Client> {
        self.client_with(None).await
    }

    /// Makes a client for use in this process, which reads no more than [`limit`](crate::limit) allows.
    pub async fn limited_client(&self) -> Result<Client> {
        self.client_with(Some(LimitLayer::new(&self.cluster))).await
    }

    async fn client_with(&self, limits: Option<LimitLayer>) -> Result<Client> {
        match &self.way {
            Way::Address(address) => address.client(&self.cluster, limits).await,
            Way::Tunnel { tunnels, who } => {
                let named: fn(Request<Body>) -> Request<Body> = match who {
                    Who::Caller => std::convert::identity,
                    Who::Plane => in_the_planes_name,
                };
                let through = MapRequest::new(tunnels.through(&self.cluster), named);
                Ok(match limits {
                    Some(limits) => Client::new(limits.layer(through), "default"),
                    None => Client::new(through, "default"),
                })
            }
        }
    }
}

/// Makes a request under the name of the control plane.
pub(crate) fn in_the_planes_name(mut request: Request<Body>) -> Request<Body> {
    let headers = request.headers_mut();
    headers.insert("impersonate-user", HeaderValue::from_static(PLANE.0));
    headers.insert("impersonate-group", HeaderValue::from_static(PLANE.1));
    request
}

impl Address {
    async fn client(&self, cluster: &str, limits: Option<LimitLayer>) -> Result<Client> {
        let failed = || Error::Client { cluster: cluster.to_owned(), endpoint: self.endpoint.clone() };
        // The route through a kubeconfig leaves the parsing of certificates and proxies to the client library.
        let mut cluster = json!({ "server": self.endpoint });
        if self.skip_verification {
            pointer::set(&mut cluster, "insecure-skip-tls-verify", true.into());
        } else if !self.certificates.is_empty() {
            pointer::set(
                &mut cluster,
                "certificate-authority-data",
                STANDARD.encode(&self.certificates).into(),
            );
        }
        if !self.proxy.is_empty() {
            pointer::set(&mut cluster, "proxy-url", self.proxy.clone().into());
        }
        let kubeconfig: Kubeconfig = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "member",
            "clusters": [{ "name": "member", "cluster": cluster }],
            "users": [{ "name": "member", "user": { "token": self.token } }],
            "contexts": [{ "name": "member", "context": { "cluster": "member", "user": "member" } }],
        }))
        .map_err(|_| failed())?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(|_| failed())?;
        config.connect_timeout = Some(std::time::Duration::from_secs(5));
        // The caller decides about retries, per object, not the client.
        config.default_retry = false;
        let oldest = self.oldest_tls;
        let simple = self.proxy_headers.is_empty() && oldest == OldestTls::V1_2;
        let client = match config.proxy_url.clone().filter(|_| !simple) {
            Some(proxy) => proxied::client(&config, proxy, &self.proxy_headers, limits.as_ref(), oldest),
            None => lasting::client(&config, limits.as_ref(), oldest),
        };
        client.map_err(|_| failed())
    }
}

fn token(cluster: &Cluster, secret: &Secret) -> Result<String> {
    let text = String::from_utf8(entry(cluster, secret, SECRET_TOKEN)?.to_vec());
    let cluster = || cluster.metadata.name.clone().unwrap_or_default();
    text.map_err(|_| Error::NoCredential { cluster: cluster(), key: SECRET_TOKEN })
}

fn entry<'a>(cluster: &Cluster, secret: &'a Secret, key: &'static str) -> Result<&'a [u8]> {
    let found = secret.data.as_ref().and_then(|data| data.get(key)).filter(|value| !value.0.is_empty());
    let missing = || Error::NoCredential { cluster: cluster.metadata.name.clone().unwrap_or_default(), key };
    found.map(|value| value.0.as_slice()).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(spec: serde_json::Value) -> Cluster {
        serde_json::from_value(json!({ "metadata": { "name": "m1" }, "spec": spec })).unwrap()
    }

    fn secret(entries: &[(&str, &str)]) -> Secret {
        Secret {
            data: Some(
                entries
                    .iter()
                    .map(|(key, value)| {
                        ((*key).to_owned(), k8s_openapi::ByteString(value.as_bytes().to_vec()))
                    })
                    .collect(),
            ),
            ..Secret::default()
        }
    }

    #[tokio::test]
    async fn finding_25_a_secret_whose_name_is_more_than_a_name_is_not_read() {
        let nobody = tower::service_fn(|request: Request<Body>| async move {
            Err::<http::Response<Body>, _>(format!("{} was asked for", request.uri()))
        });
        let control = Client::new(nobody, "default");
        let read = async |namespace: &str, name: &str| {
            let reference = json!({ "namespace": namespace, "name": name });
            let spec = json!({ "syncMode": "Push", "apiEndpoint": "https://m1", "secretRef": reference });
            Connection::read(&control, &cluster(spec)).await.expect_err("there is none")
        };
        for (namespace, name) in [("n", "a/b"), ("n/secrets", "a"), ("n", "a?b"), ("n#", "a"), ("n", "..")] {
            let error = read(namespace, name).await;
            assert!(matches!(error, Error::NoSecret { .. }), "{namespace}/{name}: {error}");
        }
        let error = read("n", "a").await;
        assert!(matches!(error, Error::Secret { .. }), "what can exist is asked for: {error}");
    }

    #[test]
    fn a_token_is_needed_and_certificates_unless_nobody_checks_them() {
        let push = cluster(json!({ "syncMode": "Push", "apiEndpoint": "https://m1:6443" }));
        assert_eq!(
            Connection::new(&push, &secret(&[])).unwrap_err().to_string(),
            r#"the secret for cluster m1 is missing a non-empty value for "token""#
        );
        assert_eq!(
            Connection::new(&push, &secret(&[("token", "t")])).unwrap_err().to_string(),
            r#"the secret for cluster m1 is missing a non-empty value for "caBundle""#
        );
        assert!(Connection::new(&push, &secret(&[("token", "t"), ("caBundle", "c")])).is_ok());
        let careless = cluster(
            json!({ "syncMode": "Push", "apiEndpoint": "https://m1", "insecureSkipTLSVerification": true }),
        );
        assert!(Connection::new(&careless, &secret(&[("token", "t")])).is_ok());
        let nowhere = cluster(json!({ "syncMode": "Push" }));
        assert!(matches!(
            Connection::new(&nowhere, &secret(&[("token", "t")])),
            Err(Error::NoEndpoint { .. })
        ));
    }

    #[test]
    fn a_caller_reaches_a_member_in_pull_mode_through_its_tunnel_unless_there_is_another_way() {
        let tunnels = Tunnels::default();
        let read = |reference: &LocalSecretReference| {
            assert_eq!(reference.name, "impersonator");
            Ok::<_, Error>(secret(&[("token", "t")]))
        };
        let way = |spec: serde_json::Value| {
            Connection::of_caller(&cluster(spec), &tunnels, read).map(|connection| format!("{connection:?}"))
        };
        let tunnel = r#"Connection { cluster: "m1", endpoint: "its tunnel", .. }"#;
        assert_eq!(way(json!({ "syncMode": "Pull" })).unwrap(), tunnel);
        assert_eq!(way(json!({ "syncMode": "Pull", "apiEndpoint": "https://m1" })).unwrap(), tunnel);
        let reference = json!({ "namespace": "n", "name": "impersonator" });
        for mode in ["Push", "Pull"] {
            let spec =
                json!({ "syncMode": mode, "apiEndpoint": "https://m1", "impersonatorSecretRef": reference });
            let direct = r#"Connection { cluster: "m1", endpoint: "https://m1", .. }"#;
            assert_eq!(way(spec).unwrap(), direct, "{mode}");
        }
        assert_eq!(
            way(json!({ "syncMode": "Push", "impersonatorSecretRef": reference })).unwrap_err().to_string(),
            "the api endpoint of cluster m1 is empty"
        );
        assert_eq!(
            way(json!({ "syncMode": "Push", "apiEndpoint": "https://m1" })).unwrap_err().to_string(),
            "the impersonatorSecretRef of cluster m1 is nil"
        );
    }

    #[test]
    fn credentials_are_never_printed() {
        let careless = cluster(
            json!({ "syncMode": "Push", "apiEndpoint": "https://m1", "insecureSkipTLSVerification": true }),
        );
        let connection = Connection::new(&careless, &secret(&[("token", "very-secret")])).unwrap();
        assert!(!format!("{connection:?}").contains("very-secret"));
    }
}
