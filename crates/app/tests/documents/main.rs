//! Every command of the README, of the tutorial and of the guides, run as a reader would: in order, in one shell, in a folder of its own.
//!
//! A block marked `sh` is run and has to succeed. `<!-- expect: words -->` behind it names words that it has to print. A
//! block is left alone if `<!-- not run: reason -->` stands right before it. Other blocks (`text`, `yaml`) only show.
//!
//! `cargo run --release --` stands for the binary under test. `karmada up`, which a reader leaves running in another
//! terminal, goes to the background on a free port; when it is called again, the earlier one gets a Ctrl-C first.

mod markdown;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clusters::toolchain::{ETCD, KUBERNETES, Toolchain};
use markdown::Block;
use tokio::process::Command;

/// Generous: the machine may be busy with everything else.
const DEADLINE: Duration = Duration::from_secs(600);

/// What the shell knows before the first block. Every block runs in this shell, so that variables stay.
const PRELUDE: &str = r#"
set -euo pipefail
up=
stop_up() {
    if [ -n "$up" ]; then kill -INT "$up"; wait "$up"; up=; fi
}
karmada() {
    if [ "$1" != up ]; then "$KARMADA" "$@"; return; fi
    stop_up
    : >up.log
    "$KARMADA" "$@" --bind 127.0.0.1:0 >up.log 2>&1 &
    up=$!
    # Returns when the words come, or when the process is gone.
    sed '/Try, in another terminal/q' < <(tail --lines=+1 --follow --pid="$up" up.log)
    kill -0 "$up"
}
cargo() {
    if [ "$1 $2 $3" != "run --release --" ]; then echo "no such command here: cargo $*" >&2; return 1; fi
    shift 3
    karmada "$@"
}
# Whatever was started in the background ends, also where a block has failed.
stop_all() {
    stop_up
    if [ -d three-servers ]; then examples/three-servers.sh down; fi
}
trap stop_all EXIT
"#;

/// Printed between blocks, to tell their outputs apart.
const MARK: &str = "=-=-= block";

fn repository() -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_folder.ancestors().nth(2).expect("crates lie two folders below the top").to_owned()
}

/// Prepares what a reader would have: `kubectl` on the path, the examples, the binary where cargo puts it.
fn prepare(folder: &Path) -> Option<PathBuf> {
    let toolchain = Toolchain::from_env().expect("a place for the programs");
    let kubectl = toolchain.path(&KUBERNETES.program("kubectl"));
    if !kubectl.is_file() {
        clusters::left_out(&format!("{}, which the tests with real clusters build", kubectl.display()));
        return None;
    }
    let link = |from: &Path, to: &str| {
        let to = folder.join(to);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        std::os::unix::fs::symlink(from, to).expect("a link");
    };
    link(&kubectl, "bin/kubectl");
    link(&toolchain.path(&ETCD.program("etcd")), "bin/etcd");
    link(Path::new(env!("CARGO_BIN_EXE_karmada")), "bin/karmada");
    link(&repository().join("examples"), "examples");
    link(Path::new(env!("CARGO_BIN_EXE_karmada")), "target/release/karmada");
    Some(folder.join("bin"))
}

async fn run(document: &str) {
    let text = std::fs::read_to_string(repository().join(document)).expect("the document");
    let blocks = markdown::blocks(&text).unwrap_or_else(|error| panic!("{document}: {error}"));
    assert!(!blocks.is_empty(), "{document} has no command at all");
    let folder = tempfile::tempdir().expect("a folder");
    let Some(programs) = prepare(folder.path()) else { return };
    let mut script = PRELUDE.to_owned();
    for (index, block) in blocks.iter().enumerate() {
        script.push_str(&format!("echo '{MARK} {index}'\n{}", block.commands));
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let child = Command::new("bash")
        .args(["-c", &format!("exec 2>&1\n{script}")])
        .current_dir(folder.path())
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("KARMADA", env!("CARGO_BIN_EXE_karmada"))
        .env("HOME", folder.path())
        .env("THREE_SERVERS_PORT", ports().to_string())
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = match tokio::time::timeout(DEADLINE, child).await {
        Ok(output) => output.expect("bash runs"),
        Err(_) => panic!("{document}: not done within {DEADLINE:?}\n{}", log(folder.path())),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{document}: {}\n{said}\n{}", output.status, log(folder.path()));
    let outputs: Vec<&str> = said.split(MARK).skip(1).collect();
    assert_eq!(outputs.len(), blocks.len(), "{document}: every block is run\n{said}");
    for (block, said) in blocks.iter().zip(outputs) {
        for words in &block.expected {
            let Block { line, commands, .. } = block;
            assert!(said.contains(words), "{document}:{line}: no {words:?} from\n{commands}\nbut{said}");
        }
    }
}

/// Returns the first of six ports for etcd: of a range that nothing is given by chance, and not that of another run.
fn ports() -> u32 {
    20_000 + std::process::id() % 1_900 * 6
}

fn log(folder: &Path) -> String {
    ["up.log", "karmada-data/karmada.log"]
        .map(|name| std::fs::read_to_string(folder.join(name)).unwrap_or_default())
        .join("\n")
}

#[tokio::test]
async fn the_readme_does_what_it_says() {
    run("README.md").await;
}

#[tokio::test]
async fn the_tutorial_does_what_it_says() {
    run("docs/tutorial.md").await;
}

#[tokio::test]
async fn the_guide_to_customizations_does_what_it_says() {
    run("docs/guides/customizations.md").await;
}

#[tokio::test]
async fn the_guide_to_the_cli_does_what_it_says() {
    run("docs/guides/cli.md").await;
}

#[tokio::test]
async fn the_guide_to_autoscaling_does_what_it_says() {
    run("docs/guides/autoscaling.md").await;
}

#[tokio::test]
async fn the_guide_to_quotas_does_what_it_says() {
    run("docs/guides/quotas.md").await;
}

#[tokio::test]
async fn the_guide_to_failover_does_what_it_says() {
    run("docs/guides/failover.md").await;
}

#[tokio::test]
async fn the_guide_to_services_does_what_it_says() {
    run("docs/guides/services.md").await;
}

#[tokio::test]
async fn the_guide_to_the_fleet_does_what_it_says() {
    run("docs/guides/fleet.md").await;
}

#[tokio::test]
async fn the_page_about_several_servers_does_what_it_says() {
    run("docs/operations/etcd.md").await;
}

#[tokio::test]
async fn the_guide_to_pull_mode_does_what_it_says() {
    run("docs/guides/pull-mode.md").await;
}
