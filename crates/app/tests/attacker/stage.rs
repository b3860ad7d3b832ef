//! Where the attacks happen: a control plane, a simulated member, hostile servers, and the bystander who is served meanwhile.

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::OnceCell;

use crate::hostile::Hostile;
use crate::plane::{Plane, run};
use crate::wire::{Answer, Door};

/// What an attack led to: what was seen, or in which way it succeeded.
pub(crate) type Verdict = Result<String, String>;
pub(crate) type Play = for<'a> fn(&'a Stage) -> Pin<Box<dyn Future<Output = Verdict> + 'a>>;

/// How many descriptors the control plane has: enough for honest use.
const DESCRIPTORS: u32 = 1024;
/// Within this every request of the bystander is answered, if the machine has nothing else to do. Calm ones take milliseconds. A debug
/// build on two busy cores takes a second or two where a worker parses some megabytes; a limit far above that would hide a server that
/// stands still.
const SERVED: Duration = Duration::from_secs(8);

/// Returns the time within which the bystander is answered on a machine as busy as this one is.
fn served() -> Duration {
    testkit::slowed(SERVED)
}

pub(crate) struct Stage {
    pub(crate) plane: Plane,
    /// A server that does whatever its path says: member, aggregated server, webhook.
    pub(crate) hostile: Arc<Hostile>,
    pub(crate) bystander: Bystander,
    member: OnceCell<Member>,
    heavy: OnceCell<()>,
}

/// A simulated cluster that has joined.
pub(crate) struct Member {
    pub(crate) client: kube::Client,
    _fleet: sim::Fleet,
    _dir: tempfile::TempDir,
}

impl Stage {
    pub(crate) async fn start() -> Self {
        let plane = Plane::start(DESCRIPTORS, &[]).await;
        let bystander = Bystander::start(plane.calm.clone());
        let hostile = Arc::new(Hostile::start().await);
        Self { plane, hostile, bystander, member: OnceCell::new(), heavy: OnceCell::new() }
    }

    /// Returns a member, joined at the first wish.
    pub(crate) async fn member(&self) -> &Member {
        self.member
            .get_or_init(|| async {
                let dir = tempfile::tempdir().expect("a folder for the test");
                let mut options = sim::Options::new(1, 1);
                options.data_dir = Some(dir.path().join("members"));
                let fleet = sim::start(options).await.expect("a simulated member");
                let path = fleet.members()[0].kubeconfig_path.clone().expect("a kubeconfig");
                let (control, there) =
                    (self.plane.kubeconfig().display().to_string(), path.display().to_string());
                let (joined, said) = tokio::task::spawn_blocking(move || {
                    run(&["join", "m1", "--kubeconfig", &control, "--cluster-kubeconfig", &there])
                })
                .await
                .expect("it runs");
                assert!(joined, "{said}");
                let path = fleet.members()[0].kubeconfig_path.clone().expect("a kubeconfig");
                let client = testkit::client(&path).await;
                let cluster = "apis/cluster.karmada.io/v1alpha1/clusters/m1";
                let ready = |answer: &Answer| {
                    let conditions = answer.json()["status"]["conditions"].as_array().cloned();
                    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
                };
                let answer = self.plane.calm.until("root", cluster, ready).await;
                assert!(ready(&answer), "the member is not ready: {}", answer.text());
                Member { client, _fleet: fleet, _dir: dir }
            })
            .await
    }

    /// Fills the tenant's namespace with 8 MB of ConfigMaps, once.
    pub(crate) async fn heavy_maps(&self) {
        self.heavy
            .get_or_init(|| async {
                for number in 0..16 {
                    let map = json!({"metadata": {"name": format!("heavy-{number}")}, "data": {"x": "x".repeat(500_000)}});
                    self.plane.make("api/v1/namespaces/tenant/configmaps", &map).await;
                }
            })
            .await;
    }

    /// Removes what would make later lists of the tenant's namespace heavy.
    pub(crate) async fn lighten(&self) {
        self.plane.calm.send("root", "DELETE", "api/v1/namespaces/tenant/configmaps", String::new()).await;
    }
}

/// Another client, which is served all the time: on a thread of its own, with a new connection for every round.
pub(crate) struct Bystander {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    over: AtomicBool,
    rounds: AtomicUsize,
    complaints: Mutex<Vec<String>>,
    slowest: Mutex<Duration>,
}

/// What the bystander says about a span of time.
pub(crate) struct Experience {
    pub(crate) complaints: Vec<String>,
    pub(crate) slowest: Duration,
}

impl Bystander {
    pub(crate) fn start(door: Door) -> Self {
        let state = Arc::new(State::default());
        let own = state.clone();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let door = door.from(Ipv4Addr::LOCALHOST);
                while !own.over.load(Ordering::SeqCst) {
                    let number = own.rounds.load(Ordering::SeqCst);
                    if let Err(complaint) = own.round(&door, number).await {
                        own.complaints.lock().expect("complaints").push(complaint);
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                    own.rounds.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        });
        Self { state }
    }

    /// Waits for a whole round that began after now, and returns what was experienced since the last call.
    pub(crate) async fn experience(&self) -> Experience {
        let wanted = self.state.rounds.load(Ordering::SeqCst) + 2;
        let began = Instant::now();
        while self.state.rounds.load(Ordering::SeqCst) < wanted && began.elapsed() < 4 * served() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let complaints = std::mem::take(&mut *self.state.complaints.lock().expect("complaints"));
        let slowest = std::mem::take(&mut *self.state.slowest.lock().expect("times"));
        Experience { complaints, slowest }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
    }
}

impl State {
    /// Writes, reads what was written, lists, and asks for health.
    async fn round(&self, door: &Door, number: usize) -> Result<(), String> {
        let diary = "api/v1/namespaces/quiet/configmaps/diary";
        let value = format!("n{number}");
        let patch = json!({"data": {"n": value}}).to_string();
        let written = self.timed("write", door.patch("bystander", diary, "merge", patch)).await?;
        self.wants("write", &written, 200)?;
        let read = self.timed("read", door.get("bystander", diary)).await?;
        self.wants("read", &read, 200)?;
        if read.at("/data/n") != value {
            return Err(format!("read {} where {value} was written", read.at("/data/n")));
        }
        let listed =
            self.timed("list", door.get("bystander", "api/v1/namespaces/quiet/configmaps?limit=5")).await?;
        self.wants("list", &listed, 200)?;
        let healthy = self.timed("health", door.get("", "readyz")).await?;
        self.wants("health", &healthy, 200)
    }

    async fn timed(&self, what: &str, asked: impl Future<Output = Answer>) -> Result<Answer, String> {
        let (began, patience) = (Instant::now(), served());
        let answer = tokio::time::timeout(patience, asked).await;
        let mut slowest = self.slowest.lock().expect("times");
        *slowest = began.elapsed().max(*slowest);
        answer.map_err(|_| format!("{what}: not answered within {patience:.1?}"))
    }

    fn wants(&self, what: &str, answer: &Answer, code: u16) -> Result<(), String> {
        if answer.code == code { Ok(()) } else { Err(format!("{what}: {}", answer.brief())) }
    }
}
