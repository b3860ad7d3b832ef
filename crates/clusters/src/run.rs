//! One running cluster, as its owner sees it: processes, keys, proxy, and what the control socket may ask of it.
//!
//! Runs as a task of the fleet's thread. A process that ends by itself is started again and counted; one that was stopped on
//! purpose stays down until it is wanted again.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::Client;
use tokio::sync::mpsc;

use crate::{
    apiserver::{self, Trust},
    control::{Answer, Call, Command},
    error::Error,
    etcd,
    flags::{self, Files},
    kubeconfig, nodes,
    options::{ClusterOptions, Flavour},
    pki::{Authority, Pair, TokenKey, Validity},
    pods::{self, Cgroup, House, Line, Room},
    ports,
    process::{Launch, Process, StandStill},
    proxy::{Home, Network, Proxy},
    state::{ClusterState, ComponentState},
    toolchain::{ETCD, KUBERNETES, KWOK, POD_PROGRAM, Packages, Toolchain},
};

/// The folder with the data of a cluster that was restored.
const OLDER: &str = "etcd-restored";

/// Copies a folder and what is in it.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(Error::io("create", to))?;
    for entry in fs::read_dir(from).map_err(Error::io("read", from))? {
        let path = entry.map_err(Error::io("read", from))?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target).map_err(Error::io("copy", &path))?;
        }
    }
    Ok(())
}

/// What a cluster gets from its fleet.
#[derive(Debug, Clone)]
pub(crate) struct Ground {
    pub(crate) toolchain: Toolchain,
    pub(crate) dir: PathBuf,
    pub(crate) etcd: String,
    pub(crate) etcd_pid: u32,
    pub(crate) etcd_data: PathBuf,
    pub(crate) unsafe_no_fsync: bool,
    /// There where a cluster has real pods.
    pub(crate) pods: Option<PodGround>,
}

/// What members with real pods share.
#[derive(Debug, Clone)]
pub(crate) struct PodGround {
    pub(crate) hub: Room,
    pub(crate) packages: Packages,
    /// How the names of the fleet's control groups begin.
    pub(crate) cgroups: String,
}

pub(crate) struct Running {
    options: ClusterOptions,
    ground: Ground,
    /// Place in the fleet.
    index: usize,
    files: Files,
    authority: Authority,
    admin: Pair,
    port: u16,
    /// Where clients come in.
    outside: SocketAddr,
    /// None only until the ports are found.
    proxy: Option<Proxy>,
    /// Counts how often the cluster was emptied; part of the etcd prefix.
    generation: u32,
    /// The etcd of a cluster that was restored: one of its own, with older data.
    older: Option<String>,
    validity: Validity,
    components: Vec<Component>,
    /// Where real pods run. After the components, so that it goes after them.
    home: Option<PodHome>,
    /// The same place, for the proxies.
    room: Arc<Mutex<Option<Room>>>,
    /// What makes the network of a house slow, while it is.
    line: Option<Line>,
    /// The way past the proxy into a house; None where there is no house.
    direct: Option<Proxy>,
}

/// The namespaces and the control group of a member with real pods. The latter goes last: it must be empty.
struct PodHome {
    house: House,
    cgroup: Cgroup,
}

struct Component {
    launch: Launch,
    /// None: stopped on purpose.
    process: Option<Process>,
    paused: bool,
    restarts: u32,
}

impl Running {
    /// Starts a cluster; returns when it is ready to be used.
    pub(crate) async fn start(options: ClusterOptions, index: usize, ground: Ground) -> Result<Self, Error> {
        let files = Files { folder: ground.dir.join(&options.name) };
        fs::create_dir_all(files.pki()).map_err(Error::io("create", files.pki()))?;
        let authority = write_pki(&files, &options.name)?;
        let admin = authority.client("kubernetes-admin", Some("system:masters"))?;
        if let Some(text) = &options.kwok_config {
            fs::write(files.kwok_config(), text).map_err(Error::io("write", files.kwok_config()))?;
        }
        let mut running = Self {
            options,
            ground,
            index,
            files,
            authority,
            admin,
            port: 0,
            outside: (Ipv4Addr::LOCALHOST, 0).into(),
            proxy: None,
            generation: 1,
            older: None,
            validity: Validity::Valid,
            components: Vec::new(),
            home: None,
            room: Arc::default(),
            line: None,
            direct: None,
        };
        for attempt in 1.. {
            running.take_ports().await?;
            match running.boot().await {
                Ok(()) => break,
                // Another fleet was quicker with the port.
                Err(Error::Ended { tail, .. }) if attempt < 5 && tail.contains("address already in use") => {
                    running.components.clear();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(running)
    }

    /// Serves calls until the sender is gone.
    pub(crate) async fn serve(mut self, mut calls: mpsc::Receiver<Call>) {
        let mut tick = tokio::time::interval(Duration::from_millis(500));
        loop {
            tokio::select! {
                call = calls.recv() => {
                    let Some(Call { request, reply }) = call else { return };
                    let answer = match self.obey(request.command).await {
                        Ok(answer) => answer,
                        Err(error) => Answer::Failed(error.chain()),
                    };
                    let _ = reply.send(answer); // the asker may have gone away
                }
                _ = tick.tick() => self.revive(),
            }
        }
    }

    pub(crate) fn state(&self) -> ClusterState {
        let component = |component: &Component| ComponentState {
            name: component.launch.name.clone(),
            pid: component.process.as_ref().map(Process::id),
            paused: component.paused,
            restarts: component.restarts,
            log: component.launch.log(),
        };
        ClusterState {
            name: self.options.name.clone(),
            flavour: self.options.flavour,
            server: format!("https://{}", self.outside),
            kubeconfig: self.kubeconfig(),
            direct_kubeconfig: self.files.direct_kubeconfig(),
            folder: self.files.folder.clone(),
            network: self.proxy.as_ref().map_or(Network::Refuse, Proxy::network),
            cgroup: self.home.as_ref().map(|home| home.cgroup.name().to_string()),
            components: self.components.iter().map(component).collect(),
        }
    }

    async fn obey(&mut self, command: Command) -> Result<Answer, Error> {
        match command {
            Command::Status => return Ok(Answer::State(Box::new(self.state()))),
            Command::Pause => self.api_server().pause(),
            Command::Resume => self.api_server().resume(),
            Command::Kill => self.api_server().stop(),
            Command::Restart => self.restart_api_server(self.validity).await?,
            Command::Network(network) => {
                self.set_network(network).await?;
            }
            Command::KillKubelet => self.kubelet()?.stop(),
            Command::RestartKubelet => {
                let kubelet = self.kubelet()?;
                kubelet.stop();
                kubelet.process = Some(kubelet.launch.start()?);
            }
            Command::ExpireCertificate => self.restart_api_server(Validity::Expired).await?,
            Command::RenewCertificate => self.restart_api_server(Validity::Valid).await?,
            Command::RestartEmpty => {
                self.components.clear(); // kills them; a house with all its pods is left by `boot`
                self.generation += 1;
                self.older = None;
                self.boot().await?;
                // A new house has a new link.
                let network = self.proxy.as_ref().map_or(Network::Open, Proxy::network);
                self.set_network(network).await?;
            }
            Command::Snapshot | Command::RestartFromSnapshot if self.options.flavour == Flavour::Pods => {
                return Ok(Answer::Failed("a member with real pods cannot go back in time".to_string()));
            }
            Command::Snapshot => self.keep_data()?,
            Command::RestartFromSnapshot => {
                self.components.clear(); // kills them
                self.go_back().await?;
                self.boot().await?;
            }
            Command::Recover => self.recover().await?,
            Command::Down => return Ok(Answer::Failed("only the whole fleet can go down".to_string())),
        }
        Ok(Answer::Done)
    }

    fn snapshot(&self) -> PathBuf {
        self.files.folder.join("snapshot")
    }

    /// Copies the data of etcd while it stands still: what a power failure would leave behind.
    fn keep_data(&self) -> Result<(), Error> {
        let (snapshot, older) = (self.snapshot(), self.files.folder.join(OLDER));
        if snapshot.exists() {
            fs::remove_dir_all(&snapshot).map_err(Error::io("remove", &snapshot))?;
        }
        let etcd = self.components.iter().find(|component| component.launch.name == "etcd");
        let (pid, data) = match etcd.and_then(|etcd| etcd.process.as_ref()) {
            Some(own) => (own.id(), &older),
            None => (self.ground.etcd_pid, &self.ground.etcd_data),
        };
        let _still = StandStill::of(pid);
        copy(data, &snapshot)
    }

    /// Starts an etcd with the data that were kept, for this cluster alone.
    async fn go_back(&mut self) -> Result<(), Error> {
        let (snapshot, data) = (self.snapshot(), self.files.folder.join(OLDER));
        if data.exists() {
            fs::remove_dir_all(&data).map_err(Error::io("remove", &data))?;
        }
        copy(&snapshot, &data)?;
        let found = ports::free(2)?;
        // It has other addresses than the one whose data these were, which does not matter to a member that is alone. As a new cluster
        // it would drop the last write, which it does not know to be committed yet.
        let args = flags::etcd(&data, found[0], found[1], self.ground.unsafe_no_fsync);
        self.launch_program("etcd", self.ground.toolchain.path(&ETCD.program("etcd")), args)?;
        let etcd = self.components.last_mut().expect("it was started a moment ago");
        let process = etcd.process.as_mut().expect("and runs");
        etcd::ready(&etcd.launch, process, found[0]).await?;
        self.older = Some(format!("http://127.0.0.1:{}", found[0]));
        Ok(())
    }

    async fn recover(&mut self) -> Result<(), Error> {
        self.set_network(Network::Open).await?;
        if let Ok(kubelet) = self.kubelet()
            && kubelet.process.is_none()
        {
            kubelet.process = Some(kubelet.launch.start()?);
        }
        self.api_server().resume();
        if self.validity == Validity::Expired || self.api_server().process.is_none() {
            self.restart_api_server(Validity::Valid).await?;
        }
        Ok(())
    }

    /// Sets the network of the cluster's clients and, with real pods, the link of its node.
    async fn set_network(&mut self, network: Network) -> Result<(), Error> {
        // The node first: if this machine cannot do it, nothing has changed.
        if let (Some(_), Some(ground)) = (&self.home, &self.ground.pods) {
            let (hub, index) = (ground.hub, self.index);
            Line::remove(self.line.take(), hub, index)?;
            if let Network::Slow { delay_ms } = network {
                let program = self.ground.toolchain.path(&POD_PROGRAM.program("pod-program"));
                let laid = Line::lay(hub, index, delay_ms, &program, &self.files.folder).await;
                // A line that is half laid would cut the member off.
                self.line = Some(laid.inspect_err(|_| _ = Line::remove(None, hub, index))?);
            }
            let cut = matches!(network, Network::Refuse | Network::Blackhole);
            pods::set_link(hub, index, !cut)?;
        }
        if let Some(proxy) = &mut self.proxy {
            proxy.set(network).await;
        }
        Ok(())
    }

    /// Starts again what ended without being told to.
    fn revive(&mut self) {
        let cluster = &self.options.name;
        for component in &mut self.components {
            let Some(status) = component.process.as_mut().and_then(Process::exited) else { continue };
            component.restarts += 1;
            eprintln!("clusters: {} of {cluster} ended ({status}); starting it again", component.launch.name);
            match component.launch.start() {
                Ok(process) => component.process = Some(process),
                Err(error) => eprintln!("clusters: {}", error.chain()), // the next tick tries again
            }
        }
    }

    async fn take_ports(&mut self) -> Result<(), Error> {
        for attempt in 1.. {
            let found = ports::free(2)?;
            self.port = found[0];
            self.outside = self.options.address.unwrap_or((Ipv4Addr::LOCALHOST, found[1]).into());
            match self.start_proxies().await {
                Ok(()) => break,
                Err(_) if attempt < 5 => {}
                Err(source) => {
                    return Err(Error::Io { action: "listen for", path: self.files.folder.clone(), source });
                }
            }
        }
        Ok(())
    }

    async fn start_proxies(&mut self) -> std::io::Result<()> {
        let home = match self.options.flavour {
            Flavour::Pods => Home::House(self.room.clone()),
            Flavour::Member | Flavour::ControlPlane | Flavour::ApiServer => Home::Machine,
        };
        self.proxy = Some(Proxy::start(self.outside, self.port, home.clone()).await?);
        if matches!(home, Home::House(_)) {
            // The same port on both sides: one kubeconfig serves the machine and the programs inside.
            self.direct = Some(Proxy::start(self.inside(), self.port, home).await?);
        }
        Ok(())
    }

    /// Starts all processes on the current ports and generation, and waits until the cluster works.
    async fn boot(&mut self) -> Result<(), Error> {
        let authority = self.authority.pair().certificate;
        let name = self.options.name.clone();
        for (path, address) in
            [(self.kubeconfig(), self.outside), (self.files.direct_kubeconfig(), self.inside())]
        {
            kubeconfig::write(&path, &name, address, &authority, &self.admin)?;
        }
        self.write_serving_certificate(Validity::Valid)?;
        let mut server = flags::ApiServer {
            flavour: self.options.flavour,
            port: self.port,
            etcd: self.older.clone().unwrap_or_else(|| self.ground.etcd.clone()),
            etcd_prefix: format!("/{name}/{}", self.generation),
        };
        let policy = self.files.audit_policy();
        fs::write(&policy, flags::AUDIT_POLICY).map_err(Error::io("write", &policy))?;
        let (mut extra, mut later) = (Vec::new(), Vec::new());
        if self.options.flavour == Flavour::Pods {
            server.etcd = "http://127.0.0.1:2379".to_string(); // its own
            extra = pods::api_server_flags(&self.files, self.index);
            later = self.move_in().await?;
        }
        extra.extend_from_slice(&self.options.apiserver_args);
        self.launch("kube-apiserver", flags::kube_apiserver(&self.files, &server, &extra))?;
        let client = self.wait_for_api_server().await?;
        match self.options.flavour {
            Flavour::ApiServer => {}
            Flavour::ControlPlane => self.launch_controller_manager()?,
            Flavour::Member => {
                self.launch_controller_manager()?;
                self.launch("kube-scheduler", flags::kube_scheduler(&self.files))?;
                let configured = self.options.kwok_config.is_some();
                self.launch("kwok", flags::kwok(&self.files, self.index, configured))?;
                nodes::create(&client, &self.options.nodes).await?;
                // No image is ever pulled: kwok runs the pod.
                self.prove(&client, "probe").await?;
            }
            Flavour::Pods => {
                self.launch_controller_manager()?;
                self.launch("kube-scheduler", flags::kube_scheduler(&self.files))?;
                for part in later {
                    self.launch_program(part.name, part.program, part.args)?;
                }
                pods::create_objects(&client, &pods::node_address(self.index), &authority).await?;
                self.prove(&client, pods::PAUSE_IMAGE).await?;
            }
        }
        pods::apply_objects(&client, &self.options.objects).await
    }

    /// Makes the house of a member with real pods, joins it to the hub and starts what comes before the API server. Returns
    /// what comes after.
    async fn move_in(&mut self) -> Result<Vec<pods::Part>, Error> {
        let ground = self.ground.pods.clone().expect("a fleet with such a member has their ground");
        let name = self.options.name.clone();
        self.forget_home();
        // Objects, containers and volumes of an earlier life.
        for data in ["etcd", "root"].map(|name| self.files.folder.join(name)) {
            if data.exists() {
                fs::remove_dir_all(&data).map_err(Error::io("remove", &data))?;
            }
        }
        let cgroup = Cgroup::create(&format!("{}-{name}", ground.cgroups))?;
        let house = House::member(&name, &self.files.folder).await?;
        let room = house.room();
        let home = self.home.insert(PodHome { house, cgroup });
        pods::join(ground.hub, room, self.index)?;
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = Some(room);

        let address = pods::node_address(self.index);
        let node = self.options.nodes.names.first().cloned().unwrap_or_default();
        let hosts = [address.as_str(), &node, "127.0.0.1", "metrics-server.kube-system.svc"];
        self.authority.server("node", &hosts, Validity::Valid)?.write(&self.files.pki(), "node")?;
        self.admin.write(&self.files.pki(), "admin")?;
        let parts = pods::components(&pods::Member {
            files: &self.files,
            toolchain: &self.ground.toolchain,
            packages: &ground.packages,
            index: self.index,
            node: &node,
            cgroup: &home.cgroup.path(),
            unsafe_no_fsync: self.ground.unsafe_no_fsync,
        })?;
        for part in parts.before {
            self.launch_program(part.name, part.program, part.args)?;
        }
        Ok(parts.after)
    }

    fn forget_home(&mut self) {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.home = None;
    }

    /// Waits for the member to work, but not longer than its processes live.
    async fn prove(&mut self, client: &Client, image: &str) -> Result<(), Error> {
        let proof = nodes::prove(client, &self.options.nodes, image);
        let death = async {
            loop {
                tokio::time::sleep(Duration::from_millis(250)).await;
                for component in &mut self.components {
                    if let Some(status) = component.process.as_mut().and_then(Process::exited) {
                        return component.launch.ended(status);
                    }
                }
            }
        };
        tokio::select! {
            proven = proof => proven,
            error = death => Err(error),
        }
    }

    fn launch_controller_manager(&mut self) -> Result<(), Error> {
        self.launch(
            "kube-controller-manager",
            flags::kube_controller_manager(&self.files, self.options.flavour),
        )
    }

    fn launch(&mut self, name: &str, args: Vec<String>) -> Result<(), Error> {
        let recipe = if name == "kwok" { &KWOK } else { &KUBERNETES };
        let program = self.ground.toolchain.path(&recipe.program(name));
        self.launch_program(name, program, args)
    }

    /// Starts a program, inside of the house where there is one.
    fn launch_program(&mut self, name: &str, program: PathBuf, args: Vec<String>) -> Result<(), Error> {
        let (program, args) = match (&self.home, &self.ground.pods) {
            (Some(home), Some(ground)) => {
                let environment = ground.packages.environment(&self.files.folder.join(pods::PROGRAMS));
                home.house.room().enter(&environment, &program, &args)
            }
            _ => (program, args),
        };
        let launch = Launch {
            name: name.to_string(),
            cluster: self.options.name.clone(),
            program,
            args,
            folder: self.files.folder.clone(),
        };
        let process = launch.start()?;
        self.components.push(Component { launch, process: Some(process), paused: false, restarts: 0 });
        Ok(())
    }

    fn api_server(&mut self) -> &mut Component {
        let is_it = |component: &&mut Component| component.launch.name == "kube-apiserver";
        self.components.iter_mut().find(is_it).expect("every flavour has an API server")
    }

    fn kubelet(&mut self) -> Result<&mut Component, Error> {
        let cluster = self.options.name.clone();
        let is_it = |component: &&mut Component| component.launch.name == "kubelet";
        self.components.iter_mut().find(is_it).ok_or(Error::NoKubelet { cluster })
    }

    async fn restart_api_server(&mut self, validity: Validity) -> Result<(), Error> {
        self.write_serving_certificate(validity)?;
        let api_server = self.api_server();
        api_server.stop();
        api_server.process = Some(api_server.launch.start()?);
        self.wait_for_api_server().await.map(|_| ())
    }

    /// Waits for `/readyz`; fails early when the process ends. Returns a client that goes past the proxy.
    async fn wait_for_api_server(&mut self) -> Result<Client, Error> {
        let trust = match self.validity {
            Validity::Valid => Trust::Verify,
            Validity::Expired => Trust::Anything,
        };
        let client = apiserver::client(&self.options.name, &self.files.direct_kubeconfig(), trust).await?;
        let started = std::time::Instant::now();
        loop {
            let component = self.api_server();
            if let Some(status) = component.process.as_mut().and_then(Process::exited) {
                return Err(component.launch.ended(status));
            }
            let seen = match tokio::time::timeout(Duration::from_secs(10), apiserver::ready(&client)).await {
                Ok(Ok(())) => return Ok(client),
                Ok(Err(reason)) => reason,
                Err(_) => "no answer within 10 s".to_string(),
            };
            if started.elapsed() > nodes::START_DEADLINE {
                let what = format!("the API server of {} to be ready", self.options.name);
                return Err(Error::Timeout { what, after: nodes::START_DEADLINE, seen });
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn write_serving_certificate(&mut self, validity: Validity) -> Result<(), Error> {
        let (address, outside) = (pods::node_address(self.index), self.outside.ip().to_string());
        let mut hosts = flags::SERVING_HOSTS.to_vec();
        if !hosts.contains(&outside.as_str()) {
            hosts.push(&outside);
        }
        if self.options.flavour == Flavour::Pods {
            hosts.push(&address);
        }
        let pair = self.authority.server("kube-apiserver", &hosts, validity)?;
        pair.write(&self.files.pki(), "apiserver")?;
        self.validity = validity;
        Ok(())
    }

    /// Where the API server itself listens, as the machine sees it.
    fn inside(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    fn kubeconfig(&self) -> PathBuf {
        self.ground.dir.join(format!("{}.kubeconfig", self.options.name))
    }
}

impl Component {
    fn pause(&mut self) {
        if let Some(process) = &self.process {
            process.pause();
            self.paused = true;
        }
    }

    fn resume(&mut self) {
        if let Some(process) = &self.process {
            process.resume();
        }
        self.paused = false;
    }

    fn stop(&mut self) {
        self.process = None; // dropping kills
        self.paused = false;
    }
}

/// Writes what the programs read, and returns the authority that signs it.
fn write_pki(files: &Files, cluster: &str) -> Result<Authority, Error> {
    let folder = files.pki();
    let authority = Authority::new(&format!("{cluster}-ca"))?;
    authority.pair().write(&folder, "ca")?;
    // A second authority for aggregated servers: a server that trusts it believes every user name in a header.
    let front_proxy = Authority::new(&format!("{cluster}-front-proxy-ca"))?;
    front_proxy.pair().write(&folder, "front-proxy-ca")?;
    front_proxy.client("front-proxy-client", None)?.write(&folder, "front-proxy-client")?;
    TokenKey::new(cluster)?.write(&folder)?;
    Ok(authority)
}
