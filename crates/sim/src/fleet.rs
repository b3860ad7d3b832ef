//! Starting, breaking, healing and stopping a fleet.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apiserver::gate::Gate;
use futures::StreamExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::addresses::{self, Addresses};
use crate::admission::limits::Limits;
use crate::admission::quotas::Quotas;
use crate::admission::{Pods, STORAGE_CLASS};
use crate::control;
use crate::controllers::claims::PROVISIONER;
use crate::controllers::nodes;
use crate::engine::Engine;
use crate::extension::Cluster;
use crate::metrics;
use crate::options::{MemberOptions, Options};
use crate::trouble::{Load, Trouble, Troubles};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start {member}")]
    Start { member: String, source: Box<apiserver::Error> },
    #[error("cannot create what {member} has from the start: {message}")]
    Nodes { member: String, message: String },
    #[error("cannot use {path}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("cannot write the kubeconfig of {member}")]
    Kubeconfig { member: String, source: apiserver::auth::pki::Error },
    #[error("there is no member called {0}")]
    NoSuchMember(String),
    #[error("{member} has no node called {node}")]
    NoSuchNode { member: String, node: String },
    #[error("{0:?} is not a label selector")]
    Selector(String),
    #[error("two members are called {0}")]
    Twice(String),
}

/// Running simulated clusters. Cheap to clone; all clones are the same fleet.
#[derive(Debug, Clone)]
pub struct Fleet {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    members: Vec<Member>,
    running: parking_lot::Mutex<Vec<apiserver::Handle>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    data_dir: Option<PathBuf>,
}

/// One running cluster.
#[derive(Debug)]
pub struct Member {
    pub name: String,
    pub url: String,
    /// The administrator's kubeconfig; its context has the member's name.
    pub kubeconfig: String,
    /// Its path, if there is a data directory.
    pub kubeconfig_path: Option<PathBuf>,
    /// The audit log, if there is a policy for one.
    pub audit_log: Option<PathBuf>,
    server: Arc<apiserver::Server>,
    gate: Gate,
    troubles: watch::Sender<Troubles>,
}

/// How many members start at the same time: enough to use the cores, few enough not to crowd them.
const AT_ONCE: usize = 8;

/// Starts all members; returns when every API server answers and every node exists.
pub async fn start(options: Options) -> Result<Fleet, Error> {
    let mut names = std::collections::BTreeSet::new();
    for member in &options.members {
        if !names.insert(member.name.as_str()) {
            return Err(Error::Twice(member.name.clone()));
        }
    }
    if let Some(dir) = &options.data_dir {
        private_dir(dir)?;
    }
    let tasks = TaskTracker::new();
    let starts = options
        .members
        .iter()
        .enumerate()
        .map(|(index, member)| start_member(&options, index, member, &tasks));
    let mut started: Vec<_> = futures::stream::iter(starts).buffered(AT_ONCE).collect().await;
    if let Some(failed) = started.iter().position(Result::is_err)
        && let Err(failure) = started.swap_remove(failed)
    {
        for (_, handle) in started.into_iter().flatten() {
            handle.stop().await;
        }
        return Err(failure);
    }
    let (members, running) = started.into_iter().flatten().unzip();
    let shared = Shared {
        members,
        running: parking_lot::Mutex::new(running),
        tasks,
        stop: CancellationToken::new(),
        data_dir: options.data_dir.clone(),
    };
    let fleet = Fleet { shared: Arc::new(shared) };
    for (member, trouble) in &options.troubles {
        fleet.trouble(member, trouble)?;
    }
    if let Some(dir) = &options.data_dir {
        let socket = dir.join(control::SOCKET);
        let listening = control::listen(&fleet, &socket, fleet.shared.stop.clone())
            .map_err(|source| Error::File { path: socket.clone(), source })?;
        fleet.shared.tasks.spawn(listening);
    }
    fleet.shared.tasks.close();
    Ok(fleet)
}

async fn start_member(
    options: &Options,
    index: usize,
    member: &MemberOptions,
    tasks: &TaskTracker,
) -> Result<(Member, apiserver::Handle), Error> {
    let dir = options.data_dir.as_ref().map(|dir| dir.join("members").join(&member.name));
    let gate = Gate::default();
    let (pods, quotas) = (Arc::new(Pods::default()), Arc::new(Quotas::default()));
    let limits = Arc::new(Limits::default());
    let troubles = watch::Sender::new(Troubles::default());
    let extension = Arc::new(Cluster { troubles: troubles.subscribe() });
    let port = match options.port {
        0 => remembered_port(dir.as_deref()),
        first => first.saturating_add(u16::try_from(index).unwrap_or(u16::MAX)),
    };
    let audit = options.data_dir.as_ref().zip(options.audit_policy.clone()).map(|(top, policy)| {
        apiserver::audit::Options {
            policy: Some(policy),
            path: top.join(format!("{}.audit.log", member.name)),
            rotation: apiserver::audit::Rotation { size: None, keep: 0 },
            blocking: true,
        }
    });
    let setup = |port: u16| apiserver::Options {
        data_dir: dir.clone(),
        audit: audit.clone(),
        in_memory: !options.persist,
        bind: SocketAddr::new(options.bind, port),
        profile: apiserver::Profile::Member,
        service_ranges: addresses::of_services(member.dual_stack),
        // Quotas come last: they count what the others have made of an object.
        plugins: vec![pods.clone(), limits.clone(), quotas.clone()],
        extension: Some(extension.clone()),
        registry: Some(metrics::registry()),
        context_name: member.name.clone(),
        relaxed: true,
        gate: gate.clone(),
        ..apiserver::Options::default()
    };
    let mut started = apiserver::start(setup(port)).await;
    if options.port == 0 && port != 0 && matches!(started, Err(apiserver::Error::Listen(_))) {
        // Another process has the previous port.
        started = apiserver::start(setup(0)).await;
    }
    let handle =
        started.map_err(|source| Error::Start { member: member.name.clone(), source: Box::new(source) })?;
    pods.attach(&handle.server);
    limits.attach(&handle.server);
    quotas.attach(&handle.server);
    let kubeconfig_path = match &options.data_dir {
        Some(top) => {
            let path = top.join(format!("{}.kubeconfig", member.name));
            let failed = |source| Error::Kubeconfig { member: member.name.clone(), source };
            apiserver::auth::pki::write_private(&path, handle.kubeconfig.as_bytes()).map_err(failed)?;
            Some(path)
        }
        None => None,
    };
    if let Some(dir) = &dir {
        let path = dir.join("port");
        std::fs::write(&path, handle.address.port().to_string())
            .map_err(|source| Error::File { path, source })?;
    }
    create_nodes(&handle.server, member).await?;
    create_storage_class(&handle.server, member).await?;
    let engine = Engine::new(
        &handle.server,
        options.delays,
        Addresses::new(index, member.dual_stack),
        troubles.subscribe(),
    );
    tasks.spawn(engine.run());
    let member = Member {
        name: member.name.clone(),
        url: handle.url.clone(),
        kubeconfig: handle.kubeconfig.clone(),
        kubeconfig_path,
        audit_log: audit.map(|audit| audit.path),
        server: handle.server.clone(),
        gate,
        troubles,
    };
    Ok((member, handle))
}

fn remembered_port(dir: Option<&Path>) -> u16 {
    dir.and_then(|dir| std::fs::read_to_string(dir.join("port")).ok())
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Creates the nodes that do not exist yet.
async fn create_nodes(server: &Arc<apiserver::Server>, member: &MemberOptions) -> Result<(), Error> {
    let kubelet = apiserver::internal::Actor::new(server, "system:kubelet");
    let registry = server.registry.load_full();
    let kind = registry.find("", "v1", "nodes").expect("nodes are served").clone();
    for node in &member.nodes {
        if server.store.get(&kind.collection, &node.name).is_some() {
            continue;
        }
        kubelet.create(&kind, "", nodes::object(node)).await.map_err(|status| Error::Nodes {
            member: member.name.clone(),
            message: status.message.clone(),
        })?;
    }
    Ok(())
}

/// Creates the storage class for claims without one.
async fn create_storage_class(server: &Arc<apiserver::Server>, member: &MemberOptions) -> Result<(), Error> {
    let registry = server.registry.load_full();
    let kind =
        registry.find("storage.k8s.io", "v1", "storageclasses").expect("storage classes are served").clone();
    if server.store.get(&kind.collection, STORAGE_CLASS).is_some() {
        return Ok(());
    }
    let class = serde_json::json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER,
    });
    let manager = apiserver::internal::Actor::new(server, "system:kube-controller-manager");
    let made = manager.create(&kind, "", class).await;
    made.map_err(|status| Error::Nodes { member: member.name.clone(), message: status.message.clone() })?;
    Ok(())
}

fn private_dir(dir: &Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|source| Error::File { path: dir.to_owned(), source })
}

impl Fleet {
    /// Returns the members in the order of the options.
    pub fn members(&self) -> &[Member] {
        &self.shared.members
    }

    pub fn member(&self, name: &str) -> Result<&Member, Error> {
        let found = self.shared.members.iter().find(|member| member.name == name);
        found.ok_or_else(|| Error::NoSuchMember(name.to_owned()))
    }

    /// Breaks something.
    pub fn trouble(&self, member: &str, trouble: &Trouble) -> Result<(), Error> {
        let member = self.member(member)?;
        member.check(trouble)?;
        member.change(|troubles| troubles.add(trouble));
        Ok(())
    }

    /// Mends something.
    pub fn heal(&self, member: &str, trouble: &Trouble) -> Result<(), Error> {
        self.member(member)?.change(|troubles| troubles.remove(trouble));
        Ok(())
    }

    /// Mends everything; the load remains.
    pub fn heal_all(&self, member: &str) -> Result<(), Error> {
        self.member(member)?.change(|troubles| {
            *troubles = Troubles { loads: std::mem::take(&mut troubles.loads), ..Troubles::default() };
        });
        Ok(())
    }

    /// Puts pods under load.
    pub fn load(&self, member: &str, load: Load) -> Result<(), Error> {
        let member = self.member(member)?;
        selector(&load.selector)?;
        member.change(|troubles| {
            troubles.loads.insert(load.selector.clone(), load);
        });
        Ok(())
    }

    /// Returns the troubles, by member.
    pub fn troubles(&self) -> BTreeMap<String, Troubles> {
        self.shared.members.iter().map(|member| (member.name.clone(), member.troubles())).collect()
    }

    pub fn data_dir(&self) -> Option<&Path> {
        self.shared.data_dir.as_deref()
    }

    /// Ends all members.
    pub async fn stop(self) {
        self.shared.stop.cancel();
        let running = std::mem::take(&mut *self.shared.running.lock());
        futures::future::join_all(running.into_iter().map(apiserver::Handle::stop)).await;
        self.shared.tasks.wait().await;
    }
}

fn selector(text: &str) -> Result<(), Error> {
    match apimachinery::selector::LabelSelector::parse(text) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::Selector(text.to_owned())),
    }
}

impl Member {
    /// Returns a client that needs no socket and may do everything.
    pub fn server(&self) -> &Arc<apiserver::Server> {
        &self.server
    }

    pub fn troubles(&self) -> Troubles {
        self.troubles.borrow().clone()
    }

    fn check(&self, trouble: &Trouble) -> Result<(), Error> {
        match trouble {
            Trouble::Node(node) if self.server.store.get("minions", node).is_none() => {
                Err(Error::NoSuchNode { member: self.name.clone(), node: node.clone() })
            }
            Trouble::PodsFailing(text) => selector(text),
            _ => Ok(()),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Troubles)) {
        self.troubles.send_modify(change);
        let now = self.troubles.borrow();
        self.gate.set_shut(now.api_down);
        self.gate.set_delay(now.delay());
    }
}
