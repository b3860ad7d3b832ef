//! What runs beside the suite and the control plane: our estimators and agents, and Karmada's example of an interpreter webhook.
//!
//! Each is a process that ends with us, however we end.

use std::{
    fs,
    io::Write,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clusters::toolchain::{KARMADA_E2E, KUBERNETES, Toolchain};
use serde_json::{Value, json};

const START_DEADLINE: Duration = Duration::from_secs(120);

/// Port of the estimators' Services; where each leads is up to the Service.
const ESTIMATOR_PORT: u16 = 10352;

/// Everything is on, in every process.
pub(super) const FEATURES: &str = "--feature-gates=AllAlpha=true,AllBeta=true";

/// A process that is killed when dropped, and that dies with us.
pub(super) struct Running(Child);

impl Running {
    pub(super) fn start(
        program: &Path,
        arguments: &[String],
        environment: &[(&str, &Path)],
        log: &Path,
    ) -> Result<Self> {
        let file = fs::File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("cannot open the log twice")?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self(child))
    }

    /// Waits until `ready`, but not longer than the process lives.
    pub(super) fn wait(&mut self, what: &str, log: &Path, ready: impl Fn() -> bool) -> Result<()> {
        let started = Instant::now();
        while !ready() {
            if let Some(status) = self.0.try_wait().with_context(|| format!("cannot watch {what}"))? {
                bail!("{what} ended at once ({status}); see {}", log.display());
            }
            if started.elapsed() > START_DEADLINE {
                bail!("{what} was not ready after {} s; see {}", START_DEADLINE.as_secs(), log.display());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What fixtures are made from.
pub(super) struct Workshop<'a> {
    pub(super) toolchain: &'a Toolchain,
    pub(super) lab: &'a Path,
    /// The control plane's.
    pub(super) kubeconfig: &'a Path,
    /// Folder of the members' fleet.
    pub(super) fleet: &'a Path,
    pub(super) members: &'a [&'a str],
}

impl Workshop<'_> {
    /// Registers a member in pull mode with a token, and runs its agent.
    pub(super) fn agent(&self, program: &Path, member: &str) -> Result<Running> {
        let made = Command::new(program)
            .args(["token", "create", "--print-register-command", "--kubeconfig"])
            .arg(self.kubeconfig)
            .output()
            .context("cannot make a token")?;
        let line = String::from_utf8_lossy(&made.stdout).into_owned();
        let mut arguments: Vec<String> = line.split_whitespace().skip(1).map(str::to_owned).collect();
        let log = self.lab.join(format!("agent-{member}.log"));
        arguments.extend([
            format!("--cluster-name={member}"),
            format!("--kubeconfig={}", self.member(member).display()),
            format!("--agent-kubeconfig={}", self.lab.join(format!("agent-{member}.kubeconfig")).display()),
            FEATURES.to_owned(),
            "--run".to_owned(),
        ]);
        let mut process = Running::start(program, &arguments, &[], &log)?;
        process.wait(&format!("the agent of {member}"), &log, || {
            fs::read_to_string(&log).unwrap_or_default().contains("agent runs")
        })?;
        Ok(process)
    }

    /// Starts `karmada estimator` for each member, and tells the control plane where they are.
    pub(super) fn estimators(&self, program: &Path) -> Result<Vec<Running>> {
        let mut running = Vec::new();
        for member in self.members {
            let port = free_port()?;
            let log = self.lab.join(format!("estimator-{member}.log"));
            let arguments = [
                "estimator".to_string(),
                format!("--cluster-name={member}"),
                format!("--kubeconfig={}", self.member(member).display()),
                "--bind-address=127.0.0.1".to_string(),
                format!("--server-port={port}"),
                FEATURES.to_string(),
            ];
            let mut process = Running::start(program, &arguments, &[], &log)?;
            process.wait(&format!("the estimator of {member}"), &log, || listens(port))?;
            running.push(process);
            self.apply(self.kubeconfig, &estimator_service(member, port).to_string())?;
        }
        Ok(running)
    }

    /// Starts Karmada's example of an interpreter webhook, tells the control plane about it, and makes its kind known everywhere.
    pub(super) fn interpreter(&self) -> Result<Running> {
        let program = self.toolchain.path(&KARMADA_E2E.program("karmada-interpreter-example"));
        let (port, log) = (free_port()?, self.lab.join("interpreter.log"));
        // The certificate of a member's API server is good for the loopback address, which is all we need.
        let pki = self.fleet.join(self.members[0]).join("pki");
        let keys = self.lab.join("interpreter");
        fs::create_dir_all(&keys).context("cannot make a folder for keys")?;
        for (from, to) in [("apiserver.crt", "tls.crt"), ("apiserver.key", "tls.key")] {
            fs::copy(pki.join(from), keys.join(to)).with_context(|| format!("cannot copy {from}"))?;
        }
        let arguments = [
            "--bind-address=127.0.0.1".to_string(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", keys.display()),
        ];
        let mut process = Running::start(&program, &arguments, &[("KUBECONFIG", self.kubeconfig)], &log)?;
        process.wait("the interpreter example", &log, || listens(port))?;

        let module = self.toolchain.module_folder(&KARMADA_E2E)?.join("examples/customresourceinterpreter");
        let definition = module.join("apis/workload.example.io_workloads.yaml");
        let definition = fs::read_to_string(&definition)
            .with_context(|| format!("cannot read {}", definition.display()))?;
        self.apply(self.kubeconfig, &definition)?;
        for member in self.members {
            self.apply(&self.member(member), &definition)?;
        }
        let authority = fs::read(pki.join("ca.crt")).context("cannot read the authority")?;
        self.apply(self.kubeconfig, &interpreter_configuration(port, &authority).to_string())?;
        Ok(process)
    }

    fn member(&self, name: &str) -> PathBuf {
        self.fleet.join(format!("{name}.kubeconfig"))
    }

    fn apply(&self, kubeconfig: &Path, objects: &str) -> Result<()> {
        apply(self.toolchain, kubeconfig, objects)
    }
}

/// Applies objects with kubectl.
pub(super) fn apply(toolchain: &Toolchain, kubeconfig: &Path, objects: &str) -> Result<()> {
    let mut kubectl = Command::new(toolchain.path(&KUBERNETES.program("kubectl")))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(["apply", "--server-side", "--force-conflicts", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run kubectl")?;
    let mut input = kubectl.stdin.take().context("kubectl has no input")?;
    input.write_all(objects.as_bytes()).context("kubectl does not read")?;
    drop(input);
    if !kubectl.wait().context("cannot wait for kubectl")?.success() {
        bail!("kubectl could not apply to {}", kubeconfig.display());
    }
    Ok(())
}

fn estimator_service(member: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": format!("karmada-scheduler-estimator-{member}"), "namespace": "karmada-system"},
        "spec": {
            "type": "ExternalName",
            "externalName": "127.0.0.1",
            "ports": [{"name": "grpc", "port": ESTIMATOR_PORT, "targetPort": port}],
        },
    })
}

fn interpreter_configuration(port: u16, authority: &[u8]) -> Value {
    json!({
        "apiVersion": "config.karmada.io/v1alpha1",
        "kind": "ResourceInterpreterWebhookConfiguration",
        "metadata": {"name": "examples"},
        "webhooks": [{
            "name": "workloads.example.com",
            "rules": [{
                "operations": [
                    "InterpretReplica", "ReviseReplica", "Retain", "AggregateStatus", "InterpretHealth", "InterpretStatus",
                    "InterpretDependency",
                ],
                "apiGroups": ["workload.example.io"],
                "apiVersions": ["v1alpha1"],
                "kinds": ["Workload"],
            }],
            "clientConfig": {
                "url": format!("https://127.0.0.1:{port}/interpreter-workload"),
                "caBundle": base64(authority),
            },
            "interpreterContextVersions": ["v1alpha1"],
            "timeoutSeconds": 3,
        }],
    })
}

/// A port that was free a moment ago.
pub(super) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no port is free")?;
    Ok(listener.local_addr().context("a listener has an address")?.port())
}

pub(super) fn listens(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Encodes bytes; too little to need a crate for.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let number =
            chunk.iter().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = LETTERS[(number >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_encoded_as_everywhere() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg==");
        assert_eq!(base64(b"fo"), "Zm8=");
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
    }

    #[test]
    fn an_estimator_is_found_by_the_name_of_its_service() {
        let service = estimator_service("member1", 7);
        assert_eq!(service["metadata"]["name"], "karmada-scheduler-estimator-member1");
        assert_eq!(service["spec"]["ports"][0]["targetPort"], 7);
    }
}
