//! What the benchmarks share: our server as a process of its own, what processes have used, and tables.

#![allow(dead_code, reason = "every benchmark takes what it needs")]

pub(crate) mod follower;
pub(crate) mod originals;
pub(crate) mod programs;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use programs::Running;

/// A program to measure.
pub(crate) struct Build {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
}

/// Returns what is measured: this build, and beside it the one that `KARMADA_BENCH_BEFORE` names, so that a change
/// is compared with what was before it in one run. `KARMADA_BENCH_NOW` names a build to measure instead of this one, such as the
/// program of a package.
pub(crate) fn builds() -> Vec<Build> {
    let before = std::env::var_os("KARMADA_BENCH_BEFORE")
        .map(|program| Build { name: "karmada-rs before", program: program.into() });
    let now = std::env::var_os("KARMADA_BENCH_NOW").unwrap_or_else(|| env!("CARGO_BIN_EXE_karmada").into());
    before.into_iter().chain([Build { name: "karmada-rs", program: now.into() }]).collect()
}

/// A `karmada server` that ends with the benchmark.
pub(crate) struct Ours {
    pub(crate) child: Running,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) ready_ms: u128,
    _dir: tempfile::TempDir,
}

impl Ours {
    pub(crate) fn start(build: &Build) -> Result<Self> {
        Self::with(build, &[])
    }

    /// Starts it with further flags.
    pub(crate) fn with(build: &Build, flags: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let data = dir.path().join("data");
        let started = Instant::now();
        let mut command = Command::new(&build.program);
        command.args(["--log", "warn", "server", "--bind", "127.0.0.1:0", "--data-dir"]);
        let child = Running::start(command.arg(&data).args(flags))?;
        let kubeconfig = data.join("karmada.kubeconfig");
        while !kubeconfig.exists() {
            if started.elapsed() > Duration::from_secs(60) {
                bail!("the server was not ready within a minute");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { child, kubeconfig, ready_ms: started.elapsed().as_millis(), _dir: dir })
    }
}

/// Finds processes by what they are called and the folder they were given.
pub(crate) fn children_named(names: &[&str], dir: &Path) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(command) = std::fs::read_to_string(entry.path().join("cmdline")) else { continue };
        let program = command.split('\0').next().unwrap_or("");
        let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or("");
        if names.iter().any(|wanted| name.starts_with(wanted)) && command.contains(&*dir.to_string_lossy()) {
            found.push(pid);
        }
    }
    if found.is_empty() {
        bail!("cannot find the processes in {}", dir.display());
    }
    Ok(found)
}

/// Returns a client for a kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let file = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

/// Reads a number that may be set to something else than usual.
pub(crate) fn number(variable: &str, usual: usize) -> Result<usize> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable} is not a number: {text}")),
        Err(_) => Ok(usual),
    }
}

/// Does some work; returns how long it took and what the processes used of the CPU meanwhile.
pub(crate) async fn timed(pids: &[u32], work: impl Future<Output = Result<()>>) -> Result<(Duration, f64)> {
    let (before, started) = (cpu_seconds(pids), Instant::now());
    work.await?;
    Ok((started.elapsed(), cpu_seconds(pids) - before))
}

pub(crate) fn rate(count: usize, wall: Duration) -> String {
    format!("{:.0}", count as f64 / wall.as_secs_f64())
}

pub(crate) fn per_thousand(cpu: f64, count: usize) -> String {
    format!("{:.2}", cpu * 1000.0 / count as f64)
}

/// User and system time of the processes; the kernel counts in hundredths.
pub(crate) fn cpu_seconds(pids: &[u32]) -> f64 {
    let ticks: u64 = pids
        .iter()
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok())
        .map(|stat| {
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
            let field =
                |index: usize| fields.get(index).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            field(11) + field(12)
        })
        .sum();
    ticks as f64 / 100.0
}

/// Resident memory of the processes.
pub(crate) fn megabytes(pids: &[u32]) -> String {
    let kilobytes: u64 = pids
        .iter()
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok())
        .filter_map(|status| {
            let line = status.lines().find(|line| line.starts_with("VmRSS:"))?.to_owned();
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .sum();
    format!("{:.0}", kilobytes as f64 / 1024.0)
}

/// One column of a table: a name, and name and value of each row.
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) rows: Vec<(String, String)>,
}

/// Measures each build as often as `KARMADA_BENCH_ROUNDS` says (once unless set), and returns the means. Every second
/// round measures them in reverse, so that a machine that gets faster or slower meanwhile favours none of them.
pub(crate) async fn rounds<F>(measure: impl Fn(Build) -> F) -> Result<Vec<Column>>
where
    F: Future<Output = Result<Column>>,
{
    let rounds = number("KARMADA_BENCH_ROUNDS", 1)?.max(1);
    let count = builds().len();
    let mut measured: Vec<Vec<Column>> = (0..count).map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        let mut order: Vec<(usize, Build)> = builds().into_iter().enumerate().collect();
        if round % 2 == 0 {
            order.reverse();
        }
        for (index, build) in order {
            eprintln!("{}, round {round} of {rounds} …", build.name);
            measured[index].push(measure(build).await?);
        }
    }
    Ok(measured.into_iter().map(|columns| mean(&columns)).collect())
}

/// Returns the means of columns with the same rows, number by number: a row may have several.
fn mean(columns: &[Column]) -> Column {
    let row = |(index, (row, first)): (usize, &(String, String))| {
        let values = |column: &Column| -> Vec<f64> {
            column.rows[index].1.split(" / ").filter_map(|number| number.parse().ok()).collect()
        };
        let decimals = first
            .split(" / ")
            .next()
            .and_then(|number| number.split_once('.'))
            .map_or(0, |(_, rest)| rest.len());
        let measured: Vec<Vec<f64>> = columns.iter().map(values).collect();
        let means: Vec<String> = (0..first.split(" / ").count())
            .map(|place| {
                let numbers: Vec<f64> =
                    measured.iter().filter_map(|numbers| numbers.get(place).copied()).collect();
                format!("{:.decimals$}", numbers.iter().sum::<f64>() / numbers.len() as f64)
            })
            .collect();
        (row.clone(), means.join(" / "))
    };
    let first = &columns[0];
    Column { name: first.name, rows: first.rows.iter().enumerate().map(row).collect() }
}

/// Waits until the processes together use no more of a processor than this share.
pub(crate) async fn quiet(pids: &[u32], share: f64) -> Result<()> {
    let mut before = cpu_seconds(pids);
    let mut calm = 0;
    for _ in 0..300 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = cpu_seconds(pids);
        calm = if now - before <= share { calm + 1 } else { 0 };
        if calm == 3 {
            return Ok(());
        }
        before = now;
    }
    bail!("the programs were still busy after five minutes")
}

/// Prints columns side by side, as Markdown.
pub(crate) fn print(columns: &[Column]) {
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    println!("| | {} |", names.join(" | "));
    println!("|---|{}", "---:|".repeat(columns.len()));
    let Some(first) = columns.first() else { return };
    for (index, (row, _)) in first.rows.iter().enumerate() {
        let values: Vec<&str> = columns
            .iter()
            .map(|column| column.rows.get(index).map_or("", |(_, value)| value.as_str()))
            .collect();
        println!("| {row} | {} |", values.join(" | "));
    }
}
