//! The CLI beside the official karmadactl: what a command costs, and how long a look into many clusters takes.
//!
//! `cargo xtask bench cli`; `--help` names the sizes. CPU is that of the program alone, as the kernel counts it for ended
//! children, over many runs. Wall times include the control plane and the simulated clusters, which share the machine.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use clusters::toolchain::{KARMADA, Toolchain};
use support::programs::{join, simulate};
use support::{Build, Ours};

/// Measures commands.
#[derive(Debug, Parser)]
struct Sizes {
    /// How many simulated clusters.
    #[arg(long, default_value_t = 100)]
    clusters: usize,
    /// How many pods each of them has.
    #[arg(long, default_value_t = 50)]
    pods: usize,
    /// How often a short command is run.
    #[arg(long, default_value_t = 50)]
    runs: u32,
    /// How often the look into all clusters is taken; the median counts.
    #[arg(long, default_value_t = 5)]
    looks: usize,
    /// The program to measure instead of the one that was built with the benchmark.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// What `cargo bench` says to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// One of the programs that are compared.
struct Program {
    name: &'static str,
    path: PathBuf,
}

fn main() -> Result<()> {
    let sizes = Sizes::parse();
    let ours = sizes.program.clone().unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_karmada")));
    let folder = tempfile::tempdir()?;
    let plane = Ours::start(&Build { name: "karmada-rs", program: ours.clone() })?;
    let simulated = folder.path().join("sim");
    let _sim = simulate(&ours, &simulated, sizes.clusters, &[])?;
    let mut programs = vec![Program { name: "karmada-rs", path: ours.clone() }];
    match Toolchain::from_env().and_then(|toolchain| toolchain.ensure_program(&KARMADA, "karmadactl")) {
        Ok(path) => programs.push(Program { name: "karmadactl", path }),
        Err(error) => eprintln!("karmadactl is left out: {error:#}"),
    }
    eprintln!("joining …");
    for number in 1..=sizes.clusters {
        let name = format!("member{number}");
        join(&ours, &plane.kubeconfig, &name, &simulated.join(format!("{name}.kubeconfig")))?;
    }
    fill(&ours, &plane.kubeconfig, folder.path(), &sizes)?;

    println!("{:<44} {:>14} {:>14}", "", "CPU", "wall");
    for line in ["version", "get deploy", "get deploy -s members -C member1"] {
        for program in &programs {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (before, start) = (children()?, Instant::now());
            for _ in 0..sizes.runs {
                run(&program.path, &plane.kubeconfig, &words)?;
            }
            let (cpu, wall) = ((children()? - before) / sizes.runs, start.elapsed() / sizes.runs);
            show(program.name, line, cpu, wall);
        }
    }
    for program in &programs {
        let mut looks = Vec::new();
        for _ in 0..sizes.looks {
            let (before, start) = (children()?, Instant::now());
            let said = run(&program.path, &plane.kubeconfig, &["get", "pods", "-s", "all"])?;
            looks.push((start.elapsed(), children()? - before));
            let rows = said.lines().count();
            if rows < sizes.clusters * sizes.pods {
                bail!("{} rows are fewer than {} pods", rows, sizes.clusters * sizes.pods);
            }
        }
        looks.sort();
        let (wall, cpu) = looks[looks.len() / 2];
        let line = format!("get pods -s all ({} × {})", sizes.clusters, sizes.pods);
        show(program.name, &line, cpu, wall);
    }
    Ok(())
}

fn show(program: &str, line: &str, cpu: Duration, wall: Duration) {
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
    println!("{:<44} {:>14} {:>14}", format!("{program} {line}"), ms(cpu), ms(wall));
}

fn run(program: &Path, kubeconfig: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new(program).arg("--kubeconfig").arg(kubeconfig).args(words).output()?;
    if !output.status.success() {
        bail!("{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What all ended children have used so far.
fn children() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").context("cannot read what children used")?;
    // The name, in parentheses, may hold anything; fields are counted behind it.
    let (_, rest) = text.rsplit_once(')').context("an odd line of the kernel")?;
    let ticks: u64 =
        rest.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    // Linux counts in hundredths of a second for everybody.
    Ok(Duration::from_millis(ticks * 10))
}

/// Puts pods into every cluster, and waits for them.
fn fill(program: &Path, kubeconfig: &Path, folder: &Path, sizes: &Sizes) -> Result<()> {
    eprintln!("{} pods in each …", sizes.pods);
    let file = folder.join("web.yaml");
    let text = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: {}\n  selector: {{matchLabels: {{app: web}}}}\n  \
         template:\n    metadata: {{labels: {{app: web}}}}\n    spec: {{containers: [{{name: web, image: nginx}}]}}\n",
        sizes.pods
    );
    std::fs::write(&file, text)?;
    let file = file.display().to_string();
    run(program, kubeconfig, &["apply", "-f", &file, "--all-clusters"])?;
    let deadline = Instant::now() + Duration::from_secs(600);
    loop {
        // A member may not know yet whom to trust.
        let pods =
            run(program, kubeconfig, &["get", "pods", "-s", "members", "--no-headers"]).unwrap_or_default();
        if pods.lines().count() >= sizes.clusters * sizes.pods {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("only {} pods came", pods.lines().count());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}
