//! The scheduler at work in a control plane that runs as a process of its own.
//!
//! `members` has three real members, and every way to divide replicas follows what changes. `reasons` has clusters that
//! are only described, and asks why bindings are where they are.

mod members;
mod reasons;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

/// Generous: the machine may be busy with everything else.
const DEADLINE: Duration = Duration::from_secs(180);

/// The control plane as a process of its own, ended with the test.
struct Server {
    child: Child,
    kubeconfig: PathBuf,
    _dir: tempfile::TempDir,
}

impl Server {
    /// Starts it with these controllers, as `--controllers` names them.
    fn start(controllers: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let data = dir.path().join("data");
        let mut child = Command::new(env!("CARGO_BIN_EXE_karmada"))
            .args(["server", "--bind", "127.0.0.1:0", "--controllers", controllers, "--data-dir"])
            .arg(&data)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let log = BufReader::new(child.stderr.take().expect("a piped log"));
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                if line.contains("ready") {
                    let _ = ready.send(());
                }
            }
        });
        is_ready.recv_timeout(DEADLINE).expect("the server is ready in time");
        Self { child, kubeconfig: data.join("karmada.kubeconfig"), _dir: dir }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn client(kubeconfig: &Path) -> kube::Client {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config =
        kube::Config::from_custom_kubeconfig(file, &Default::default()).await.expect("a usable kubeconfig");
    kube::Client::try_from(config).expect("a client")
}

fn dynamic(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}

/// Follows an object until it is as wanted; shows what it is when time runs out.
async fn until<K>(api: &Api<K>, name: &str, what: &str, wanted: impl Fn(Option<&K>) -> bool)
where
    K: kube::Resource
        + Clone
        + std::fmt::Debug
        + Send
        + serde::de::DeserializeOwned
        + serde::Serialize
        + 'static,
{
    let reached = kube::runtime::wait::await_condition(api.clone(), name, |found: Option<&K>| wanted(found));
    match tokio::time::timeout(DEADLINE, reached).await {
        Ok(result) => drop(result.unwrap_or_else(|error| panic!("{what}: {error}"))),
        Err(_) => {
            let shown = serde_json::to_string_pretty(&api.get_opt(name).await.ok()).unwrap_or_default();
            panic!("{what}: not within {DEADLINE:?}; last seen: {shown}");
        }
    }
}
