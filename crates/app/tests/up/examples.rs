//! Every example of every `--help`, run on a control plane with simulated members.
//!
//! The examples are taken from the reference, which a test holds against the help. Most run as they stand in a folder with the files that
//! they name; [`SPECIAL`] lists those that need something first, may end otherwise, or run elsewhere, and a line of it that no
//! example matches is a failure.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::process::Up;

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");

/// What an example needs.
enum Need {
    /// Lines of the shell to run first, and afterwards.
    Around(&'static [&'static str], &'static [&'static str]),
    /// It goes on until it is stopped; this is in its first output.
    Endless(&'static str),
    /// It ends with one of these, too.
    Ends(&'static [i32]),
    /// Simulated members run no containers; `propagation::real_pods` runs the command.
    Containers,
    /// It installs into a host cluster; `propagation::host` runs the command.
    Host,
}
use Need::{Around, Containers, Endless, Ends, Host};

const FOO: Need = Around(&["k apply -f cluster.yaml"], &["k delete cluster foo"]);
const WEB: Need =
    Around(&["k apply -f world.yaml -C member1,member2", "k rollout status deploy/web --timeout=60s"], &[]);
const OLD: Need = Around(
    &["k delete deploy nginx --ignore-not-found", "k1 create deployment nginx --image=nginx"],
    &[
        "k delete deploy nginx --ignore-not-found",
        // The policy that it comes with.
        "k delete pp nginx-6d7f8d5f5b --ignore-not-found",
        "k1 delete deploy nginx --ignore-not-found",
        "k apply -f world.yaml",
    ],
);

/// The beginning of an example, and what it needs. The first line that fits counts. `k` is the program, `k1` the program inside of member1.
const SPECIAL: &[(&str, Need)] = &[
    ("addons disable", Host),
    ("addons enable", Host),
    ("addons list", Host),
    ("deinit --purge-namespace", Host),
    ("deinit", Around(&["k create ns karmada-system || true"], &[])),
    ("init --karmada-apiserver-advertise-address", Host),
    ("attach", Containers),
    ("cp", Containers),
    ("exec", Containers),
    ("logs", Containers),
    ("port-forward", Containers),
    ("register", Host),
    ("unregister", Host),
    ("cordon foo", FOO),
    ("uncordon foo", Around(&["k apply -f cluster.yaml", "k cordon foo"], &["k delete cluster foo"])),
    ("taint clusters foo dedicated=", FOO),
    (
        "taint clusters foo",
        Around(
            &["k apply -f cluster.yaml", "k taint clusters foo dedicated=x:NoSchedule"],
            &["k delete cluster foo"],
        ),
    ),
    (
        "create job now --from",
        Around(&["k -n NS create cronjob nightly --image=busybox --schedule='0 3 * * *' -- date"], &[]),
    ),
    ("create token robot", Around(&["k -n NS create serviceaccount robot"], &[])),
    ("annotate deployment foo description", Around(&["k annotate deployment foo description-"], &[])),
    ("delete -f ./policy.yaml", Around(&["k apply -f policy.yaml"], &[])),
    ("delete propagationpolicies", Around(&["k apply -f policy.yaml -n shop"], &[])),
    ("delete deployments,services", Around(&[], &["k apply -f world.yaml -C member1,member2"])),
    ("describe propagationpolicies/nginx", Around(&["k apply -f policy.yaml"], &[])),
    (
        "describe pods/nginx",
        Around(
            &[
                "k apply -f pod.yaml -C member1 -n shop",
                "k wait pods/nginx -n shop --for='jsonpath={.status.phase}=Running' -C member1 --timeout=60s",
            ],
            &[],
        ),
    ),
    ("diff", Ends(&[1])),
    // Nothing offers the Service to other clusters here, which is what it says.
    ("doctor service", Ends(&[1])),
    ("get pods -s members -C 'member*' -w", Endless("member1")),
    ("interpret my-customization", Around(&["k apply -f my-customization.yaml"], &[])),
    (
        "join member1",
        Around(
            &["k unjoin member1"],
            &[
                "k label cluster member1 region=eu",
                "k wait clusters --all --for=condition=Ready --timeout=60s",
            ],
        ),
    ),
    (
        "unjoin member1",
        Around(
            &[],
            &[
                "k join member1 --cluster-kubeconfig=member1.kubeconfig",
                "k wait clusters --all --for=condition=Ready --timeout=60s",
            ],
        ),
    ),
    ("label deployment foo unhealthy", Around(&["k label deployment foo unhealthy-"], &[])),
    ("promote", OLD),
    ("rollout", WEB),
    ("scale deployment web --current-replicas=2", Around(&["k scale deploy/web --replicas=2"], &[])),
    (
        "scale deployment/web --replicas=0",
        Around(
            &[
                "k apply -f world.yaml -C member1,member2",
                "k rollout status deploy/web -C member1 --timeout=60s",
            ],
            &["k apply -f world.yaml"],
        ),
    ),
    (
        "token delete abcdef",
        Around(
            &[
                "k create secret generic bootstrap-token-abcdef -n kube-system --type=bootstrap.kubernetes.io/token --from-literal=token-id=abcdef --from-literal=token-secret=0123456789abcdef",
            ],
            &[],
        ),
    ),
    (
        "top pod web",
        Around(
            &[
                "k1 run-pod web",
                "k wait pods/web --for='jsonpath={.status.phase}=Running' -C member1 --timeout=60s",
            ],
            &[],
        ),
    ),
    ("wait deployment/web --for=delete", Around(&["k delete deploy web --ignore-not-found"], &[])),
    ("wait deployment/web", WEB),
    ("wait pods", WEB),
];

/// Reads the examples out of the page: those of each command, without the program's name.
fn examples(page: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let (mut inside, mut open) = (false, false);
    for line in page.lines() {
        if line.starts_with("```") || !line.starts_with(' ') && !line.is_empty() {
            (inside, open) = (line == "Examples:", false);
        } else if inside {
            let text = line.trim();
            match text.strip_prefix("karmadactl ") {
                Some(example) => {
                    found.push(example.to_owned());
                    open = true;
                }
                None if text.is_empty() || text.starts_with('#') => open = false,
                // A long example goes on.
                None if open => {
                    let last = found.last_mut().expect("an example is open");
                    *last = format!("{last} {text}");
                }
                None => {}
            }
        }
    }
    found
}

/// A folder with everything that examples name, and the functions that run them in a shell.
struct Desk {
    folder: PathBuf,
}

impl Desk {
    fn new(folder: &Path, data: &Path) -> Self {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).unwrap_or_else(|error| panic!("{name}: {error}"));
        };
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_karmada"), folder.join("karmadactl")).expect("a link");
        std::fs::copy(data.join("member1.kubeconfig"), folder.join("member1.kubeconfig"))
            .expect("a kubeconfig");
        let deployment = |name: &str| {
            format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nspec:\n  replicas: 2\n  \
                 selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    \
                 spec: {{containers: [{{name: app, image: nginx}}]}}\n---\n"
            )
        };
        write("web.yaml", &deployment("web"));
        write("world.yaml", &deployment("web"));
        write("others.yaml", &["foo", "nginx", "nginx-deployment"].map(deployment).concat());
        let motd = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: motd}\ndata: {a: one}\n";
        write("manifest.yaml", motd);
        write("dir/motd.yaml", motd);
        write("motd.txt", "hello\n");
        write("texts/motd.txt", "hello\n");
        let pod = |name: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: app, image: nginx}}]}}\n"
            )
        };
        write("pod.yaml", &pod("nginx"));
        write("pod-web.yaml", &pod("web"));
        write(
            "policy.yaml",
            "apiVersion: policy.karmada.io/v1alpha1\nkind: PropagationPolicy\nmetadata: {name: nginx}\nspec:\n  resourceSelectors:\n  \
             - {apiVersion: v1, kind: ConfigMap, name: nothing}\n  placement: {clusterAffinity: {clusterNames: [member1]}}\n",
        );
        write(
            "cluster.yaml",
            "apiVersion: cluster.karmada.io/v1alpha1\nkind: Cluster\nmetadata: {name: foo}\nspec: {syncMode: Pull}\n",
        );
        let customization = include_str!("../../../../examples/interpreter/customization.yaml");
        write("customization.yaml", customization);
        write("my-customization.yaml", &customization.replacen("name: caches", "name: my-customization", 1));
        let cache = include_str!("../../../../examples/interpreter/cache.yaml");
        write("desired.yaml", cache);
        write("observed.yaml", cache);
        write("status.yaml", "clusterName: member1\nstatus: {ready: 6}\n");
        let key = rcgen::generate_simple_self_signed(["web.example".to_owned()]).expect("a certificate");
        write("web.crt", &key.cert.pem());
        write("web.key", &key.signing_key.serialize_pem());
        Self { folder: folder.to_owned() }
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        let functions = "k() { ./karmadactl \"$@\"; }\n\
            k1() { if [ \"$1\" = run-pod ]; then set -- create -f pod-web.yaml; fi; ./karmadactl --kubeconfig member1.kubeconfig \"$@\"; }\n";
        let input = std::fs::File::open(self.folder.join("status.yaml")).expect("a file");
        command
            .arg("-c")
            .arg(format!("{functions}{line}"))
            .current_dir(&self.folder)
            .env("KUBECONFIG", "karmada.kubeconfig")
            .env("KUBE_EDITOR", "sed -i s/replicas:.2/replicas:\\ 3/")
            .stdin(input);
        command
    }

    fn run(&self, line: &str) -> Output {
        self.shell(line).output().expect("a shell runs")
    }

    /// Runs what has to work.
    fn ok(&self, line: &str) -> Result<(), String> {
        let output = self.run(line);
        if output.status.success() { Ok(()) } else { Err(told(line, &output)) }
    }

    /// Runs an example as its line of the list wants it.
    fn example(&self, example: &str, namespace: &str, need: Option<&Need>) -> Result<(), String> {
        // Examples that create would otherwise meet what others created.
        let line = if example.starts_with("create ") && !example.starts_with("create namespace") {
            self.ok(&format!("k create namespace {namespace}"))?;
            format!("k -n {namespace} {example}")
        } else {
            format!("k {example}")
        };
        let (before, after): (&[&str], &[&str]) = match need {
            Some(Around(before, after)) => (before, after),
            _ => (&[], &[]),
        };
        for line in before {
            self.ok(&line.replace("NS", namespace))?;
        }
        match need {
            Some(Containers | Host) => return Ok(()),
            Some(Endless(words)) => return self.endless(&line, words),
            _ => {}
        }
        let output = self.run(&line);
        let status = output.status.code().unwrap_or(-1);
        let fine = status == 0 || matches!(need, Some(Ends(others)) if others.contains(&status));
        if !fine {
            return Err(told(&line, &output));
        }
        after.iter().try_for_each(|line| self.ok(&line.replace("NS", namespace)))
    }

    /// Runs what does not end by itself until it has said some words.
    fn endless(&self, line: &str, words: &str) -> Result<(), String> {
        let log = self.folder.join("endless.log");
        let file = std::fs::File::create(&log).expect("a log");
        // The shell makes room for the program, so that the program is what is stopped.
        let line = line.replacen("k ", "exec ./karmadactl ", 1);
        let mut child = self.shell(&line).stdout(file).stderr(Stdio::null()).spawn().expect("a shell runs");
        let mut said = String::new();
        for _ in 0..1800 {
            said = std::fs::read_to_string(&log).unwrap_or_default();
            if said.contains(words) || child.try_wait().is_ok_and(|ended| ended.is_some()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let ended = child.try_wait().expect("its state");
        let _ = child.kill();
        let _ = child.wait();
        match ended {
            None if said.contains(words) => Ok(()),
            ended => Err(format!("{line}: {ended:?}\n{said}")),
        }
    }
}

fn told(line: &str, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("$ {line}\n{}{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

#[test]
fn every_example_of_the_help_runs() {
    let page = std::fs::read_to_string(REFERENCE).expect("the reference");
    let examples = examples(&page);
    assert!(examples.len() > 100, "{} examples were found", examples.len());
    let folder = tempfile::tempdir().expect("a folder for the test");
    let mut up = Up::start(&folder.path().join("data"), &[]);
    up.until_it_says("Try, in another terminal");
    let work = folder.path().join("work");
    std::fs::create_dir(&work).expect("a folder");
    std::fs::copy(up.data_dir().join("karmada.kubeconfig"), work.join("karmada.kubeconfig"))
        .expect("a kubeconfig");
    let desk = Desk::new(&work, up.data_dir());
    for line in [
        "k label cluster member1 region=eu",
        "k apply -f others.yaml",
        "k apply -f world.yaml -C member1,member2",
    ] {
        desk.ok(line).unwrap_or_else(|said| panic!("{said}"));
    }
    let mut failures = Vec::new();
    let mut used = vec![false; SPECIAL.len()];
    for (number, example) in examples.iter().enumerate() {
        let special = SPECIAL.iter().position(|(start, _)| example.starts_with(start));
        if let Some(line) = special {
            used[line] = true;
        }
        let need = special.map(|line| &SPECIAL[line].1);
        failures.extend(desk.example(example, &format!("example{number}"), need).err());
    }
    for ((start, need), used) in SPECIAL.iter().zip(used) {
        // Commands that are being added may be listed already.
        if !used && !matches!(need, Host) {
            failures.push(format!("no example begins with {start:?}"));
        }
    }
    up.interrupt();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), examples.len(), failures.join("\n\n"));
}

#[test]
fn examples_are_found_with_their_second_lines() {
    let page = "```text\nx\n\nUsage: karmadactl x\n\nExamples:\n  # One\n  karmadactl a b\n\n  # Two\n  karmadactl c --long\n  d\n```\n\n\
        ```text\n  karmadactl no\n```\n";
    assert_eq!(examples(page), ["a b", "c --long d"]);
}
