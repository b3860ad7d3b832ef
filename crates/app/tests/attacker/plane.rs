//! The victim: the real binary as a process under caps on memory and descriptors, and everybody who has an account there.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::wire::{Answer, Certificate, Door};

/// What the process may have resident, whatever anybody does. It has some 100 MiB when nobody does anything.
pub(crate) const MEMORY_MIB: u64 = 512;
/// What it may map: an emergency brake for the machine that runs the test.
const ADDRESS_SPACE_MIB: u64 = 6 * 1024;
const READY: Duration = Duration::from_secs(180);
const SHOWN: usize = 40;

/// Tokens of everybody: token, groups. The user's name is the token's.
const ACCOUNTS: [(&str, &str); 11] = [
    ("root", "system:masters"),
    ("bystander", "quiet"),
    ("nobody", "none"),
    ("editor", "editors"),
    ("tenant", "tenants"),
    ("other", "others"),
    ("frontdoor", "proxies"),
    ("asker", "askers"),
    ("definer", "definers"),
    ("registrar", "registrars"),
    ("walker", "walkers"),
];

/// A secret that nobody but its owner may ever see.
pub(crate) const SECRET: &str = "c3VwZXItc2VjcmV0LXZhbHVl";

/// A process of the binary under caps.
pub(crate) struct Victim {
    child: Mutex<Child>,
    id: u32,
    log: Arc<Mutex<VecDeque<String>>>,
    /// The line that said it is ready.
    pub(crate) ready: String,
}

impl Victim {
    /// Starts the binary with at most so many descriptors; returns once it says that it is ready.
    pub(crate) async fn start(descriptors: u32, arguments: &[&str]) -> Self {
        Self::start_until(descriptors, arguments, "ready").await
    }

    /// The same, with other words of its log.
    pub(crate) async fn start_until(descriptors: u32, arguments: &[&str], words: &'static str) -> Self {
        Self::try_start(descriptors, arguments, words)
            .await
            .unwrap_or_else(|log| panic!("it is not ready: {log}"))
    }

    /// The same; returns the end of the log if it does not get that far.
    pub(crate) async fn try_start(
        descriptors: u32,
        arguments: &[&str],
        words: &'static str,
    ) -> Result<Self, String> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let starting = tokio::task::spawn_blocking(move || Self::spawn(descriptors, &arguments, words));
        starting.await.expect("it starts or says why not")
    }

    fn spawn(descriptors: u32, arguments: &[String], words: &'static str) -> Result<Self, String> {
        let caps = format!("ulimit -v {}; ulimit -n {descriptors}; exec \"$@\"", ADDRESS_SPACE_MIB * 1024);
        let mut child = Command::new("sh")
            .args(["-c", &caps, "sh", env!("CARGO_BIN_EXE_karmada")])
            .args(arguments)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let lines = BufReader::new(child.stderr.take().expect("a piped log")).lines();
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let (tell, told) = channel();
        let kept = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.contains(words) {
                    let _ = tell.send(line.clone());
                }
                let mut kept = kept.lock().expect("a log");
                if kept.len() == SHOWN {
                    kept.pop_front();
                }
                kept.push_back(line.chars().take(300).collect());
            }
        });
        let id = child.id();
        let mut victim = Self { child: Mutex::new(child), id, log, ready: String::new() };
        match told.recv_timeout(READY) {
            Ok(line) => victim.ready = line,
            Err(_) => return Err(victim.log()),
        }
        Ok(victim)
    }

    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.child.lock().expect("a process").try_wait(), Ok(None))
    }

    pub(crate) fn log(&self) -> String {
        Vec::from(self.log.lock().expect("a log").clone()).join("\n")
    }

    /// Forgets the highest use of memory so far.
    pub(crate) fn forget_peak(&self) {
        let _ = std::fs::write(format!("/proc/{}/clear_refs", self.id), "5");
    }

    /// Returns the most memory that was resident since [`Self::forget_peak`].
    pub(crate) fn peak_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id)).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or("");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        if let Ok(mut child) = self.child.lock() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `karmada server` with accounts and namespaces.
pub(crate) struct Plane {
    pub(crate) victim: Victim,
    /// For attackers.
    pub(crate) door: Door,
    /// For everybody else.
    pub(crate) calm: Door,
    pub(crate) data: PathBuf,
    dir: tempfile::TempDir,
}

impl Plane {
    pub(crate) async fn start(descriptors: u32, further: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let tokens = dir.path().join("tokens.csv");
        let lines = ACCOUNTS.map(|(name, group)| format!("{name},{name},uid-{name},\"{group}\"\n"));
        std::fs::write(&tokens, lines.concat()).expect("a file of tokens");
        let data = dir.path().join("data");
        let (place, file) = (data.display().to_string(), tokens.display().to_string());
        let own = ["server", "--bind", "127.0.0.1:0", "--data-dir", &place, "--token-auth-file", &file];
        // Few places for writes, so that a few slow clients could take them all.
        let places = ["--max-mutating-requests-inflight", "30"];
        let victim = Victim::start(descriptors, &[&own[..], &places, further].concat()).await;
        let door = Door::new(address(&victim.ready), &data.join("pki/ca.crt"));
        let calm = door.clone().from(Ipv4Addr::LOCALHOST);
        let plane = Self { victim, door, calm, data, dir };
        plane.furnish().await;
        plane
    }

    /// Ends the process and returns what it leaves on disk, with what keeps it there.
    pub(crate) fn end(self) -> (PathBuf, tempfile::TempDir) {
        drop(self.victim);
        (self.data, self.dir)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.data.join("karmada.kubeconfig")
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Posts as the administrator, who has to succeed.
    pub(crate) async fn make(&self, path: &str, object: &Value) -> Answer {
        let answer = self.calm.post("root", path, object).await;
        assert!(matches!(answer.code, 200 | 201 | 409), "{path}: {}\n{object}", answer.brief());
        answer
    }

    /// Grants rules everywhere, or in one namespace.
    pub(crate) async fn grant(&self, who: &str, namespace: Option<&str>, name: &str, rules: Option<Value>) {
        let rbac = "apis/rbac.authorization.k8s.io/v1";
        if let Some(rules) = rules {
            self.make(&format!("{rbac}/clusterroles"), &json!({"metadata": {"name": name}, "rules": rules}))
                .await;
        }
        let binding = json!({"metadata": {"name": format!("{who}-{name}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who}]});
        let place = match namespace {
            Some(namespace) => format!("{rbac}/namespaces/{namespace}/rolebindings"),
            None => format!("{rbac}/clusterrolebindings"),
        };
        self.make(&place, &binding).await;
    }

    async fn furnish(&self) {
        for name in ["quiet", "tenant", "other"] {
            self.make("api/v1/namespaces", &json!({"metadata": {"name": name}})).await;
        }
        let secret = json!({"metadata": {"name": "treasure"}, "data": {"value": SECRET}});
        self.make("api/v1/namespaces/other/secrets", &secret).await;
        self.make(
            "api/v1/namespaces/other/configmaps",
            &json!({"metadata": {"name": "victim"}, "data": {"a": "b"}}),
        )
        .await;
        self.make(
            "api/v1/namespaces/quiet/configmaps",
            &json!({"metadata": {"name": "diary"}, "data": {"n": "0"}}),
        )
        .await;
        let karmada = json!([{"apiGroups": ["policy.karmada.io", "work.karmada.io"], "verbs": ["*"], "resources":
            ["propagationpolicies", "overridepolicies", "resourcebindings", "federatedresourcequotas", "works"]}]);
        self.grant("bystander", Some("quiet"), "edit", None).await;
        self.grant("editor", Some("tenant"), "edit", None).await;
        self.grant("editor", Some("tenant"), "karmada-tenant", Some(karmada)).await;
        self.grant("tenant", Some("tenant"), "admin", None).await;
        self.grant("tenant", Some("tenant"), "karmada-tenant", None).await;
        self.grant("other", Some("other"), "admin", None).await;
        let front = json!([
            {"apiGroups": [""], "resources": ["users", "groups", "serviceaccounts"], "verbs": ["impersonate"]},
            {"apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["*"]}]);
        self.grant("frontdoor", None, "front-door", Some(front)).await;
        let asks = json!([{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
            "verbs": ["create", "get", "list", "watch"]}]);
        self.grant("asker", None, "asks", Some(asks)).await;
        let defines = json!([
            {"apiGroups": ["apiextensions.k8s.io", "admissionregistration.k8s.io", "apiregistration.k8s.io", "attack.example.com"],
                "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["services"], "verbs": ["*"]},
            {"apiGroups": ["things.example.com"], "resources": ["*"], "verbs": ["*"]}]);
        self.grant("definer", None, "defines", Some(defines)).await;
        let registers =
            json!([{"apiGroups": ["cluster.karmada.io"], "resources": ["clusters"], "verbs": ["*"]}]);
        self.grant("registrar", None, "registers", Some(registers)).await;
        let walks = json!([{"apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy", "clusters"], "verbs": ["*"]}]);
        self.grant("walker", None, "walks", Some(walks)).await;
    }

    /// Makes a client certificate as the authority would: the attacker was given it, or found a way to it.
    pub(crate) fn certificate(&self, name: rcgen::DnValue, groups: &[&str]) -> Certificate {
        let read =
            |name: &str| std::fs::read_to_string(self.data.join("pki").join(name)).expect("the authority");
        let key = rcgen::KeyPair::from_pem(&read("ca.key")).expect("a key");
        let issuer = rcgen::Issuer::from_ca_cert_pem(&read("ca.crt"), key).expect("an authority");
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        for group in groups {
            params.distinguished_name.push(rcgen::DnType::OrganizationName, *group);
        }
        params.extended_key_usages.push(rcgen::ExtendedKeyUsagePurpose::ClientAuth);
        let own = rcgen::KeyPair::generate().expect("a key");
        let signed = params.signed_by(&own, &issuer).expect("a certificate");
        Certificate { chain: signed.pem(), key: own.serialize_pem() }
    }
}

/// Reads the address from the line that says it is ready.
pub(crate) fn address(line: &str) -> SocketAddr {
    let found = line
        .split(['"', ' ', '='])
        .filter_map(|word| word.trim_start_matches("https://").parse().ok())
        .next();
    found.unwrap_or_else(|| panic!("no address in {line}"))
}

/// Runs a command of the binary to its end.
pub(crate) fn run(arguments: &[&str]) -> (bool, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_karmada")).args(arguments).output().expect("the binary runs");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns the content of every file of a folder, by name.
pub(crate) fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .expect("a folder")
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_file())
        .map(|entry| (entry.path(), std::fs::read(entry.path()).expect("a file")))
        .collect();
    found.sort();
    found
}
