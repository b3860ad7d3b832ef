//! Karmada's controllers: they keep the control plane and the members in step with what users wrote.
//!
//! They talk to a Kubernetes API through a `kube::Client` and know nothing about the server behind it.
//! [`table::TABLE`] lists them all; each file is one controller of the shape that `runtime` gives: it
//! observes, decides and applies. Decisions that several controllers share are in the pure crates
//! (`propagation`, `scheduler`, `interpreter`).
//!
//! The control-plane side (`plane`) turns templates and policies into bindings, placements and Works, and
//! collects their status. The member side (`members`) registers clusters, applies Works and reports the
//! status of their objects. The two meet at the Work. `services` brings endpoints of Services from cluster to
//! cluster, `failover` moves workloads away from clusters that have failed, `autoscaling` gives them as many
//! replicas as they need. `cluster_api` joins the clusters that a management cluster of cluster-api
//! provisions.

pub mod autoscaling;
mod cluster_api;
mod environment;
pub mod failover;
#[cfg(test)]
mod fixtures;
mod interpretation;
pub mod members;
mod mirrors;
mod my_clusters;
pub mod plane;
pub mod selection;
mod services;
#[cfg(test)]
mod shape;
pub mod table;
pub mod timing;
#[cfg(test)]
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::cluster::Cluster;
use api::features::Features;
use interpreter::Interpreter;
use kube::Client;
use member::{Member, Members};
use propagation::skip::SkipRules;
use runtime::{Mirror, Supervisor, Writer};

use environment::Environment;
pub use mirrors::Watch;
pub use my_clusters::MyClusters;
pub use selection::Selection;
pub use table::{AGENT, CERT_ROTATION};
use table::{TABLE, Wire};
pub use timing::Timing;

/// The options that can be set on the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `--feature-gates`
    pub features: Features,
    /// `--skipped-propagating-apis` and `--skipped-propagating-namespaces`
    pub skip: SkipRules,
    pub timing: Timing,
    /// `--removal-limit-templates` and `--removal-limit-percent`
    pub removals: propagation::withdrawal::Limits,
    /// The flags of evictions.
    pub failover: failover::Settings,
    /// The flags of autoscalers.
    pub autoscaling: autoscaling::Settings,
    /// `--enable-cluster-resource-modeling`: whether nodes and pods of members are watched, and summed up in
    /// the status of Clusters.
    pub resource_modeling: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            features: Features::default(),
            skip: SkipRules::with_defaults(),
            timing: Timing::default(),
            removals: propagation::withdrawal::Limits::default(),
            failover: failover::Settings::default(),
            autoscaling: autoscaling::Settings::default(),
            resource_modeling: true,
        }
    }
}

/// What a process gives to its controllers.
#[derive(Clone)]
pub struct Context {
    /// Which features are on and what is not propagated.
    pub settings: Settings,
    /// The control plane.
    pub writer: Writer,
    /// Supervises all tasks, and stops them.
    pub supervisor: Supervisor,
    /// Connections to the members, shared by all controllers.
    pub members: Arc<Members>,
    /// Which clusters this process looks after.
    pub clusters: MyClusters,
    /// How the scheduler is set up.
    pub scheduler: plane::scheduling::Settings,
    /// `--cluster-api-kubeconfig`: the management cluster of cluster-api whose clusters are joined.
    pub cluster_api: Option<Client>,
}

impl Context {
    /// Returns the context of controllers with the default of every flag.
    pub fn new(client: Client, supervisor: Supervisor) -> Self {
        Self {
            settings: Settings::default(),
            writer: Writer::new(client),
            members: Arc::new(Members::new(supervisor.clone())),
            supervisor,
            clusters: MyClusters::default(),
            scheduler: plane::scheduling::Settings::default(),
            cluster_api: None,
        }
    }
}

/// The members as the controllers of a process see them; cheap to clone.
#[derive(Clone)]
pub struct Fleet {
    clusters: Arc<Mirror<Cluster>>,
    members: Arc<Members>,
    interpreter: Interpreter,
}

impl Fleet {
    /// Returns the interpreter that these controllers use.
    pub fn interpreter(&self) -> &Interpreter {
        &self.interpreter
    }

    /// Returns, by name, the connected members whose Clusters are ready and not being deleted.
    pub fn ready(&self) -> Vec<Arc<Member>> {
        let mut ready: Vec<Arc<Member>> = self.members.all();
        ready.retain(|member| {
            let cluster = self.clusters.get("", member.name());
            cluster.is_some_and(|it| it.status.is_ready() && it.metadata.deletion_timestamp.is_none())
        });
        ready.sort_by(|one, other| one.name().cmp(other.name()));
        ready
    }
}

/// Starts the selected controllers; they end when the supervisor is stopped. Returns the members that they
/// are connected to, if any controller needs connections.
pub fn spawn(context: &Context, selection: &Selection) -> Option<Fleet> {
    runtime::metrics::introduce();
    let chosen: Vec<_> = TABLE
        .iter()
        .filter(|declaration| selection.has(declaration) && declaration.is_open(&context.settings.features))
        .map(|declaration| (declaration, declaration.wire))
        .collect();
    if chosen.is_empty() {
        return None;
    }
    let names: BTreeSet<&str> = chosen.iter().map(|(declaration, _)| declaration.name).collect();
    let mut watches: BTreeSet<Watch> =
        chosen.iter().flat_map(|(declaration, _)| declaration.watches).copied().collect();
    let environment = Arc::new(Environment::new(context));
    let plane = plane::Plane::new(&environment, &context.settings);
    let shared = members::Shared::new(&environment, &names);
    for (declaration, wire) in chosen {
        let start = match wire {
            Wire::Plane(wire) => wire(&plane),
            Wire::Members(wire) => wire(&shared),
        };
        let (plane, stop) = (plane.clone(), context.supervisor.token().clone());
        context.supervisor.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = plane.complete(declaration.watches) => start(),
            }
        });
    }
    if let Some(management) = &context.cluster_api {
        watches.insert(Watch::Clusters);
        cluster_api::start(&environment, management);
    }
    if let Some(signs) = &environment.signs {
        let seen = Arc::downgrade(&environment);
        signs.when_broken(move || seen.upgrade().iter().for_each(|seen| seen.mirrors.went_back()));
        let witness: Arc<dyn runtime::Witness> = signs.clone();
        environment.mirrors.rely_on(&witness);
    }
    let client = context.writer.client();
    environment.mirrors.follow(&watches, client, &context.clusters, &context.supervisor);
    if watches.contains(&Watch::Templates) {
        plane.templates.clone().follow(&context.supervisor);
    }
    shared.is_connected().then(|| Fleet {
        clusters: environment.mirrors.clusters.clone(),
        members: context.members.clone(),
        interpreter: environment.interpreter.clone(),
    })
}
