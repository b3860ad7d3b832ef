//! One running cluster, as its owner sees it: processes, keys, proxy, and what the control socket may ask of it.
//!
//! Runs as a task of the fleet's thread. A process that ends by itself is started again and counted; one that was stopped on
//! purpose stays down until it is wanted again.

use std::{fs, path::PathBuf, time::Duration};

use kube::Client;
use tokio::sync::mpsc;

use crate::{
    apiserver::{self, Trust},
    control::{Answer, Call, Command},
    error::Error,
    flags::{self, Files},
    kubeconfig, nodes,
    options::{ClusterOptions, Flavour},
    pki::{Authority, Pair, TokenKey, Validity},
    ports,
    process::{Launch, Process},
    proxy::{Network, Proxy},
    state::{ClusterState, ComponentState},
    toolchain::{KUBERNETES, KWOK, Toolchain},
};

/// What a cluster gets from its fleet.
#[derive(Debug, Clone)]
pub(crate) struct Ground {
    pub(crate) toolchain: Toolchain,
    pub(crate) dir: PathBuf,
    pub(crate) etcd: String,
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
    proxy_port: u16,
    /// None only until the ports are found.
    proxy: Option<Proxy>,
    /// Counts how often the cluster was emptied; part of the etcd prefix.
    generation: u32,
    validity: Validity,
    /// The API server comes first.
    components: Vec<Component>,
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
            proxy_port: 0,
            proxy: None,
            generation: 1,
            validity: Validity::Valid,
            components: Vec::new(),
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
            server: format!("https://127.0.0.1:{}", self.proxy_port),
            kubeconfig: self.kubeconfig(),
            direct_kubeconfig: self.files.direct_kubeconfig(),
            folder: self.files.folder.clone(),
            network: self.proxy.as_ref().map_or(Network::Refuse, Proxy::network),
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
                if let Some(proxy) = &mut self.proxy {
                    proxy.set(network).await;
                }
            }
            Command::ExpireCertificate => self.restart_api_server(Validity::Expired).await?,
            Command::RenewCertificate => self.restart_api_server(Validity::Valid).await?,
            Command::RestartEmpty => {
                self.components.clear(); // kills them
                self.generation += 1;
                self.boot().await?;
            }
            Command::Recover => self.recover().await?,
            Command::Down => return Ok(Answer::Failed("only the whole fleet can go down".to_string())),
        }
        Ok(Answer::Done)
    }

    async fn recover(&mut self) -> Result<(), Error> {
        if let Some(proxy) = &mut self.proxy {
            proxy.set(Network::Open).await;
        }
        self.api_server().resume();
        if self.validity == Validity::Expired || self.api_server().process.is_none() {
            self.restart_api_server(Validity::Valid).await?;
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
            (self.port, self.proxy_port) = (found[0], found[1]);
            match Proxy::start(self.proxy_port, self.port).await {
                Ok(proxy) => {
                    self.proxy = Some(proxy);
                    break;
                }
                Err(_) if attempt < 5 => {}
                Err(source) => {
                    return Err(Error::Io { action: "listen for", path: self.files.folder.clone(), source });
                }
            }
        }
        Ok(())
    }

    /// Starts all processes on the current ports and generation, and waits until the cluster works.
    async fn boot(&mut self) -> Result<(), Error> {
        let authority = self.authority.pair().certificate;
        let name = self.options.name.clone();
        for (path, port) in
            [(self.kubeconfig(), self.proxy_port), (self.files.direct_kubeconfig(), self.port)]
        {
            kubeconfig::write(&path, &name, port, &authority, &self.admin)?;
        }
        self.write_serving_certificate(Validity::Valid)?;
        let server = flags::ApiServer {
            flavour: self.options.flavour,
            port: self.port,
            etcd: self.ground.etcd.clone(),
            etcd_prefix: format!("/{name}/{}", self.generation),
        };
        let args = flags::kube_apiserver(&self.files, &server, &self.options.apiserver_args);
        self.launch("kube-apiserver", args)?;
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
                self.prove(&client).await?;
            }
        }
        Ok(())
    }

    /// Waits for the member to work, but not longer than its processes live.
    async fn prove(&mut self, client: &Client) -> Result<(), Error> {
        let proof = nodes::prove(client, &self.options.nodes);
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
        let launch = Launch {
            name: name.to_string(),
            cluster: self.options.name.clone(),
            program: self.ground.toolchain.path(&recipe.program(name)),
            args,
            folder: self.files.folder.clone(),
        };
        let process = launch.start()?;
        self.components.push(Component { launch, process: Some(process), paused: false, restarts: 0 });
        Ok(())
    }

    fn api_server(&mut self) -> &mut Component {
        self.components.first_mut().expect("every flavour has an API server")
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
        let pair = self.authority.server("kube-apiserver", &flags::SERVING_HOSTS, validity)?;
        pair.write(&self.files.pki(), "apiserver")?;
        self.validity = validity;
        Ok(())
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
    // A second authority for aggregated servers: who trusts it, believes every user name in a header.
    let front_proxy = Authority::new(&format!("{cluster}-front-proxy-ca"))?;
    front_proxy.pair().write(&folder, "front-proxy-ca")?;
    front_proxy.client("front-proxy-client", None)?.write(&folder, "front-proxy-client")?;
    TokenKey::new(cluster)?.write(&folder)?;
    Ok(authority)
}
