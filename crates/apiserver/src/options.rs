//! The options of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::admission::Admit;
use crate::auth::bounds::Bounds;
use crate::gate::Gate;
use crate::registry::Registry;
use crate::server::Extension;
use crate::service_ranges::ServiceRanges;

/// The purpose of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// The control plane: templates, policies, no admission for pods.
    Karmada,
    /// A simulated cluster: service accounts and root certificates in every namespace.
    Member,
}

/// All options for the start of a server.
#[derive(Clone)]
pub struct Options {
    /// Where state and keys are; `None` keeps everything in memory.
    pub data_dir: Option<PathBuf>,
    pub bind: SocketAddr,
    pub profile: Profile,
    /// Additional names and addresses for which the serving certificate is valid.
    pub extra_names: Vec<String>,
    /// The address for clients; by default the bound one.
    pub advertise: Option<String>,
    /// Static bearer tokens: `token,user,uid,"group1,group2"` per line.
    pub token_file: Option<PathBuf>,
    /// The OpenID Connect issuer whose tokens are accepted; by default none.
    pub oidc: Option<crate::auth::oidc::Settings>,
    pub plugins: Vec<Arc<dyn Admit>>,
    /// Webhook configurations that are stored but ignored: those of programs whose rules are among the plug-ins.
    pub ignored_webhooks: Vec<String>,
    pub extension: Option<Arc<dyn Extension>>,
    /// Users who never get more than their own objects, whatever roles say.
    pub bounds: Option<Arc<dyn Bounds>>,
    /// The kinds that are served before the first definition; by default the native kinds.
    pub registry: Option<Arc<Registry>>,
    /// Definitions that are installed before the server is ready.
    pub definitions: Vec<Value>,
    /// Namespaces that exist from the start, in addition to Kubernetes' own.
    pub namespaces: Vec<String>,
    pub compact_every: Duration,
    /// Deletes owned objects when their owners are gone; off if another component does this, or must see that nothing does.
    pub collect_garbage: bool,
    /// How long objects in a deleted namespace are left alone.
    pub namespace_grace: Duration,
    /// Where the addresses of Services come from; with a range of each family, Services can be dual-stack.
    pub service_ranges: ServiceRanges,
    /// Gives pods the priority of their class.
    pub pod_priority: bool,
    /// Name of the cluster, context and user in the kubeconfig.
    pub context_name: String,
    pub max_reads: usize,
    pub max_writes: usize,
    /// What one user may hold in memory.
    pub budgets: crate::account::Budgets,
    /// Limits of connections; by default they follow from the number of files that the process may have open.
    pub connections: Option<crate::http::listener::Settings>,
    /// Where requests are recorded; by default nowhere.
    pub audit: Option<crate::audit::Options>,
    /// Keeps objects in etcd, where other servers see them; then the data directory has only keys.
    pub etcd: Option<store::EtcdOptions>,
    /// Keeps objects in memory even with a data directory: only keys are kept there.
    pub in_memory: bool,
    /// Acknowledges writes before they are on disk: a crash loses the last moments. For simulated data only.
    pub relaxed: bool,
    /// Lets the owner shut clients out or slow them down.
    pub gate: Gate,
    /// Lets tests make the store's disk fail. `None` in production.
    pub store_faults: Option<store::Faults>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            data_dir: None,
            bind: ([127, 0, 0, 1], 0).into(),
            profile: Profile::Karmada,
            extra_names: Vec::new(),
            advertise: None,
            token_file: None,
            oidc: None,
            plugins: Vec::new(),
            ignored_webhooks: Vec::new(),
            extension: None,
            bounds: None,
            registry: None,
            definitions: Vec::new(),
            namespaces: Vec::new(),
            compact_every: Duration::from_secs(300),
            collect_garbage: true,
            namespace_grace: Duration::from_secs(2),
            service_ranges: ServiceRanges::default(),
            pod_priority: false,
            context_name: "karmada-apiserver".to_owned(),
            max_reads: 400,
            max_writes: 200,
            budgets: Default::default(),
            connections: None,
            audit: None,
            etcd: None,
            in_memory: false,
            relaxed: false,
            gate: Gate::default(),
            store_faults: None,
        }
    }
}
