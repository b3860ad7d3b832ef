//! A fleet: one etcd, its clusters, a control socket, a folder; and the thread that owns them.
//!
//! ```text
//! <dir>/state.json            written when everything is ready
//! <dir>/control.sock          see `control`
//! <dir>/lock                  held by the owner; if it can be taken, the owner is gone
//! <dir>/<cluster>.kubeconfig  for clients
//! <dir>/<cluster>/            logs, pid files, keys
//! <dir>/etcd/                 data and log
//! ```
//!
//! All children are started by one thread that lives as long as the fleet, because the parent-death signal is bound to the
//! starting thread, not to the process: a test's own runtime threads come and go.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{self, Child, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    net::UnixListener,
    sync::{mpsc, oneshot},
    task::LocalSet,
};

use crate::{
    cluster::Cluster,
    control::{self, Answer, Call, Command},
    error::Error,
    etcd::Etcd,
    options::{ClusterOptions, Flavour, FleetOptions},
    pods::{self, Hub, Registry, WayOut},
    process::alive,
    run::{Ground, PodGround, Running},
    state::FleetState,
    toolchain::{ETCD, KUBERNETES, KWOK, POD_PACKAGES, POD_RECIPES, Packages, Recipe, Toolchain},
    wait::until,
};

/// Running clusters. If this process started them, dropping the value ends them; if it only attached, dropping changes nothing.
#[derive(Debug)]
pub struct Fleet {
    dir: PathBuf,
    state: FleetState,
    owner: Option<Owner>,
}

#[derive(Debug)]
struct Owner {
    /// Dropped to tell the thread to end.
    stop: Option<oneshot::Sender<()>>,
    /// Resolves when the thread is through, for whatever reason.
    ended: oneshot::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Builds what is missing, starts all clusters side by side, and returns when every one is ready.
    pub async fn start(options: FleetOptions) -> Result<Self, Error> {
        let mut names = BTreeSet::new();
        if let Some(twice) = options.clusters.iter().find(|cluster| !names.insert(&cluster.name)) {
            return Err(Error::SameName { name: twice.name.clone() });
        }
        let toolchain = Toolchain::from_env()?;
        let (builder, recipes) = (toolchain.clone(), recipes(&options.clusters));
        let with_pods = has_pods(&options.clusters);
        if with_pods {
            check_for_pods(&options.clusters)?;
        }
        let packages = tokio::task::spawn_blocking(move || {
            builder.ensure(&recipes)?;
            with_pods.then(|| builder.ensure_packages(POD_PACKAGES)).transpose()
        })
        .await
        .map_err(|_| Error::ThreadEnded)??;

        let dir = match &options.dir {
            Some(dir) => std::path::absolute(dir).map_err(Error::io("find", dir))?,
            None => fresh_dir(&toolchain)?,
        };
        let (ready, when_ready) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (ending, ended) = oneshot::channel::<()>();
        let place = dir.clone();
        let thread = thread::Builder::new()
            .name("clusters".to_string())
            .spawn(move || {
                let _ending = ending; // dropped last
                let tasks = LocalSet::new();
                let ending = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => {
                        tasks.block_on(&runtime, own(options, (toolchain, packages), &place, ready, stopped))
                    }
                    Err(source) => {
                        let path = place.clone();
                        let _ = ready.send(Err(Error::Io { action: "start a runtime for", path, source }));
                        return;
                    }
                };
                // The tasks own the processes: first they die, then their files go, then the folder is free.
                drop(tasks);
                if ending.remove {
                    let _ = remove(&place);
                }
                drop(ending);
            })
            .map_err(Error::io("start a thread for", &dir))?;
        let owner = Owner { stop: Some(stop), ended, thread: Some(thread) };
        let state = when_ready.await.map_err(|_| Error::ThreadEnded)??;
        Ok(Self { dir, state, owner: Some(owner) })
    }

    /// Reaches the fleet that runs in `dir`.
    pub async fn attach(dir: &Path) -> Result<Self, Error> {
        let dir = std::path::absolute(dir).map_err(Error::io("find", dir))?;
        let state = FleetState::read(&dir)?;
        if !is_owned(&dir) {
            return Err(Error::NotRunning { dir });
        }
        Ok(Self { dir, state, owner: None })
    }

    /// Returns the folder of the fleet.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the fleet as it was when it became ready.
    pub fn state(&self) -> &FleetState {
        &self.state
    }

    pub fn clusters(&self) -> impl Iterator<Item = Cluster> + '_ {
        self.state.clusters.iter().map(|state| Cluster::new(&self.dir, state.clone()))
    }

    /// Returns the cluster called `name`.
    pub fn cluster(&self, name: &str) -> Result<Cluster, Error> {
        self.clusters()
            .find(|cluster| cluster.name() == name)
            .ok_or_else(|| Error::NoSuchCluster { name: name.to_string(), dir: self.dir.clone() })
    }

    /// Ends the fleet, whoever owns it; returns when no process and no folder is left.
    pub async fn down(mut self) -> Result<(), Error> {
        match self.owner.take() {
            Some(mut owner) => {
                owner.stop = None;
                let _ = (&mut owner.ended).await;
                Ok(())
            }
            None => end(&self.dir).await,
        }
    }

    /// Waits until the fleet was ended from outside.
    async fn wait(&mut self) {
        if let Some(owner) = &mut self.owner {
            let _ = (&mut owner.ended).await;
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // milliseconds: the children are killed, not asked
        }
    }
}

/// Starts a fleet and keeps it until SIGTERM, SIGINT or `down`. For a process whose only purpose this is.
pub async fn supervise(mut options: FleetOptions) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).map_err(Error::io("listen for signals for", "the fleet"));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    options.supervised = true;
    let run = async {
        let mut fleet = Fleet::start(options).await?;
        eprintln!("clusters: ready");
        fleet.wait().await;
        Ok(())
    };
    tokio::select! {
        done = run => done,
        _ = terminate.recv() => told_to_end("SIGTERM"),
        _ = interrupt.recv() => told_to_end("SIGINT"),
    }
}

/// A supervisor that ends says why: its last words may be all that somebody finds.
fn told_to_end(signal: &str) -> Result<(), Error> {
    eprintln!("clusters: ending because of {signal}");
    Ok(())
}

/// Ends the fleet in `dir`, or removes what a fleet that died has left there.
pub async fn end(dir: &Path) -> Result<(), Error> {
    if !dir.exists() {
        return Err(Error::NotRunning { dir: dir.to_path_buf() });
    }
    if is_owned(dir) {
        let supervisor = FleetState::read(dir).ok().filter(|state| state.supervised).map(|state| state.owner);
        match control::send(dir, None, Command::Down).await {
            // An answer may get lost in the fall.
            Ok(_) | Err(Error::NotRunning { .. }) => {}
            Err(error) => return Err(error),
        }
        until("the fleet to end", Duration::from_secs(60), async || {
            // A supervisor lets go of the folder a moment before it ends itself.
            let lingers = is_owned(dir) || supervisor.is_some_and(alive);
            if lingers { Err("its owner is alive".to_string()) } else { Ok(()) }
        })
        .await?;
    }
    // Only what we made is removed: a folder that is not a fleet's stays.
    if dir.join("lock").exists() { remove(dir) } else { Ok(()) }
}

/// Returns where `clusters up` keeps its fleet unless told otherwise.
pub fn default_dir() -> Result<PathBuf, Error> {
    Ok(Toolchain::from_env()?.root().join("run").join("default"))
}

/// What is left to do when the clusters are gone.
struct Ending {
    remove: bool,
    _lock: Option<fs::File>,
}

/// The thread's work: start, tell, serve.
async fn own(
    options: FleetOptions,
    programs: (Toolchain, Option<Packages>),
    dir: &Path,
    ready: oneshot::Sender<Result<FleetState, Error>>,
    mut stopped: oneshot::Receiver<()>,
) -> Ending {
    let explicit = options.dir.is_some();
    let lock = match claim(dir) {
        Ok(lock) => lock,
        Err(error) => {
            let _ = ready.send(Err(error));
            return Ending { remove: false, _lock: None };
        }
    };
    let keep = std::env::var_os("KARMADA_RS_KEEP_LOGS").is_some();
    let cgroups = programs.1.is_some().then(|| format!("karmada-rs-{:08x}", rand::random::<u32>()));
    let _janitor = (!explicit && !keep).then(|| janitor(dir, cgroups.as_deref().unwrap_or_default()));
    let started = tokio::select! {
        started = Started::new(options, programs, cgroups, dir) => started,
        // The caller lost patience (or a signal came) before the clusters were ready.
        _ = &mut stopped => return Ending { remove: true, _lock: Some(lock) },
    };
    let remove = match started {
        Ok(mut started) => {
            let state = started.state.clone();
            if ready.send(state.write(dir).map(|()| state)).is_ok() {
                tokio::select! {
                    () = started.serve() => {}
                    _ = &mut stopped => {}
                }
            }
            !keep
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            // A folder that the user named keeps its logs for them to read; a nameless one would only pile up.
            !explicit && !keep
        }
    };
    Ending { remove, _lock: Some(lock) }
}

/// Everything that runs.
struct Started {
    state: FleetState,
    etcd: Etcd,
    /// What members with real pods share.
    _middle: Option<(Registry, Option<WayOut>, Hub)>,
    inboxes: BTreeMap<String, mpsc::Sender<Call>>,
    calls: mpsc::Receiver<Call>,
}

impl Started {
    async fn new(
        options: FleetOptions,
        (toolchain, packages): (Toolchain, Option<Packages>),
        cgroups: Option<String>,
        dir: &Path,
    ) -> Result<Self, Error> {
        let socket = control::path(dir);
        let listener = UnixListener::bind(&socket).map_err(Error::io("listen on", &socket))?;
        let etcd = Etcd::start(&toolchain, dir, options.unsafe_no_fsync).await?;
        let (mut middle, mut pods) = (None, None);
        if let (Some(packages), Some(cgroups)) = (packages, cgroups) {
            // Before the first group exists: whatever cleans up behind us must know the name.
            let note = dir.join(pods::CGROUPS_FILE);
            fs::write(&note, &cgroups).map_err(Error::io("write", &note))?;
            let hub = Hub::build(&dir.join(pods::HUB_FOLDER)).await?;
            let registry = Registry::start(&toolchain, &packages, &options.images, hub.room()).await?;
            let way_out = match options.way_out {
                Some(address) => Some(WayOut::open(hub.room(), address).await?),
                None => None,
            };
            pods = Some(PodGround { hub: hub.room(), packages, cgroups });
            middle = Some((registry, way_out, hub));
        }
        let ground = Ground {
            toolchain,
            dir: dir.to_path_buf(),
            etcd: etcd.endpoint.clone(),
            etcd_pid: etcd.process.id(),
            etcd_data: etcd.data(),
            unsafe_no_fsync: options.unsafe_no_fsync,
            pods,
        };

        let starting: Vec<_> = options
            .clusters
            .into_iter()
            .enumerate()
            .map(|(index, cluster)| tokio::task::spawn_local(begin(cluster, index, ground.clone())))
            .collect();
        let mut clusters = Vec::new();
        let mut failure = None;
        for task in starting {
            match task.await {
                Ok(Ok(running)) => clusters.push(running),
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(_) => failure = failure.or(Some(Error::ThreadEnded)),
            }
        }
        if let Some(error) = failure {
            return Err(error); // and the clusters that did start die here
        }

        let state = FleetState {
            owner: process::id(),
            supervised: options.supervised,
            etcd: etcd.endpoint.clone(),
            etcd_pid: etcd.process.id(),
            clusters: clusters.iter().map(Running::state).collect(),
        };
        let mut inboxes = BTreeMap::new();
        for (running, named) in clusters.into_iter().zip(&state.clusters) {
            // Commands to a cluster are obeyed one by one; eight may wait, more would mean a test that runs amok.
            let (inbox, calls) = mpsc::channel(8);
            inboxes.insert(named.name.clone(), inbox);
            tokio::task::spawn_local(running.serve(calls));
        }
        let (sender, calls) = mpsc::channel(8);
        tokio::task::spawn_local(control::listen(listener, sender));
        Ok(Self { state, etcd, _middle: middle, inboxes, calls })
    }

    /// Passes calls on until one of them is the last.
    async fn serve(&mut self) {
        let mut tick = tokio::time::interval(Duration::from_millis(500));
        loop {
            let call = tokio::select! {
                call = self.calls.recv() => call,
                _ = tick.tick() => {
                    if let Some(status) = self.etcd.process.exited() {
                        // Its data is gone without fsync; pretending otherwise would only confuse a test.
                        eprintln!("clusters: {}", self.etcd.launch.ended(status));
                        return;
                    }
                    continue;
                }
            };
            let Some(call) = call else { return };
            match (&call.request.cluster, call.request.command) {
                (None, Command::Down) => {
                    let _ = call.reply.send(Answer::Done);
                    // Let the answer leave before everything ends.
                    tokio::task::yield_now().await;
                    return;
                }
                (Some(name), _) if self.inboxes.contains_key(name) => {
                    let inbox = self.inboxes[name].clone();
                    // Its own task: a cluster that is busy restarting must not hold up the others.
                    tokio::task::spawn_local(async move { inbox.send(call).await });
                }
                (name, command) => {
                    let name = name.as_deref().unwrap_or("the fleet");
                    let _ = call.reply.send(Answer::Failed(format!("{name} cannot {command:?}")));
                }
            }
        }
    }
}

async fn begin(options: ClusterOptions, index: usize, ground: Ground) -> Result<Running, Error> {
    let started = std::time::Instant::now();
    let name = options.name.clone();
    eprintln!("clusters: starting {name}");
    let running = Running::start(options, index, ground).await.inspect_err(|error| {
        // Of several that fail, the caller hears of one only.
        eprintln!("clusters: {name} did not start: {}", error.chain());
    })?;
    eprintln!("clusters: {name} is ready after {:.1} s", started.elapsed().as_secs_f32());
    Ok(running)
}

fn recipes(clusters: &[ClusterOptions]) -> Vec<&'static Recipe> {
    let mut recipes = vec![&KUBERNETES, &ETCD];
    if clusters.iter().any(|cluster| cluster.flavour == Flavour::Member) {
        recipes.push(&KWOK);
    }
    if has_pods(clusters) {
        recipes.extend(POD_RECIPES);
    }
    recipes
}

fn has_pods(clusters: &[ClusterOptions]) -> bool {
    clusters.iter().any(|cluster| cluster.flavour == Flavour::Pods)
}

/// Refuses what cannot work before anything is built or started.
fn check_for_pods(clusters: &[ClusterOptions]) -> Result<(), Error> {
    if clusters.len() > pods::MOST_MEMBERS {
        let what = format!("a fleet of at most {} clusters: there are no more addresses", pods::MOST_MEMBERS);
        return Err(Error::NoPods { what });
    }
    pods::missing().map_or(Ok(()), |what| Err(Error::NoPods { what }))
}

/// Makes the folder ours, for us alone.
fn claim(dir: &Path) -> Result<fs::File, Error> {
    let running = || Error::AlreadyRunning { dir: dir.to_path_buf() };
    fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    let empty = fs::read_dir(dir).map_err(Error::io("read", dir))?.next().is_none();
    let path = dir.join("lock");
    if !empty && !path.exists() {
        let source = std::io::Error::other("the folder holds other things");
        return Err(Error::Io { action: "use", path: dir.to_path_buf(), source });
    }
    let lock = fs::File::create(&path).map_err(Error::io("create", &path))?;
    lock.try_lock().map_err(|_| running())?;
    // What a fleet that died here has left: it cannot be alive, since we hold its lock.
    pods::sweep(dir);
    for entry in fs::read_dir(dir).map_err(Error::io("read", dir))?.flatten() {
        if entry.file_name() != "lock" && entry.file_name() != SUPERVISOR_LOG {
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(Error::io("close to others", dir))?;
    Ok(lock)
}

/// Starts a shell that waits for our end and then removes a nameless folder, with the keys in it. We do it ourselves when we end in
/// order; but a test binary just exits, and nobody can remove anything after `kill -9`.
fn janitor(dir: &Path, cgroups: &str) -> Option<Child> {
    // It notices our end by its input, which we hold open. Processes that die at the same time may still be writing, hence the retries.
    let script = r#"cat >/dev/null
for _ in 1 2 3 4 5; do
  if [ -n "$2" ]; then find /sys/fs/cgroup -depth -type d -path "*/$2-*" -exec rmdir {} + 2>/dev/null; fi
  rm -rf -- "$1" 2>/dev/null && ! find /sys/fs/cgroup -maxdepth 2 -name "${2:-/}-*" | grep -q . && break
  sleep 1
done"#;
    process::Command::new("sh")
        .args(["-c", script, "janitor"])
        .arg(dir)
        .arg(cgroups)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0) // spared by Ctrl-C at the terminal
        .spawn()
        .ok() // without it, the next fleet sweeps
}

/// Where a supervisor in the background writes; it is there before the fleet claims the folder.
pub const SUPERVISOR_LOG: &str = "supervisor.log";

/// Says whether a live process holds the fleet in `dir`. A shared lock, so that two who ask do not take each other for the owner.
fn is_owned(dir: &Path) -> bool {
    fs::File::open(dir.join("lock")).is_ok_and(|lock| lock.try_lock_shared().is_err())
}

fn remove(dir: &Path) -> Result<(), Error> {
    pods::sweep(dir);
    match fs::remove_dir_all(dir) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Io { action: "remove", path: dir.to_path_buf(), source })
        }
        _ => Ok(()),
    }
}

/// Returns a new folder under the cache, after removing those of processes that are gone.
fn fresh_dir(toolchain: &Toolchain) -> Result<PathBuf, Error> {
    let run = toolchain.root().join("run");
    fs::create_dir_all(&run).map_err(Error::io("create", &run))?;
    for entry in fs::read_dir(&run).map_err(Error::io("read", &run))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("fleet-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !alive(pid)) {
            let _ = remove(&entry.path());
        }
    }
    Ok(run.join(format!("fleet-{}-{:08x}", process::id(), rand::random::<u32>())))
}
