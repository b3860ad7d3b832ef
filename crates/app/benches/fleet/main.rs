//! A control plane and many simulated clusters, each a process of its own: how long things take from end to end, and what
//! the control plane costs apart from the simulation.
//!
//! `cargo xtask bench fleet --clusters 100`; `--help` names the other sizes. Two loads:
//! 1. One Deployment divided over all clusters, from its creation to the last cluster and to the full status.
//! 2. Many ConfigMaps, each to some of the clusters, from the first creation until every binding reports every cluster.
//!
//! Wall times include this program and the simulation, which share the machine; CPU seconds and memory are per process.

mod processes;
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Parser;

use crate::processes::Cost;
use crate::world::World;

/// Measures a control plane with many simulated clusters.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Sizes {
    /// How many clusters.
    #[arg(long, default_value_t = 100)]
    clusters: usize,
    /// How many nodes each cluster has.
    #[arg(long, default_value_t = 50)]
    nodes: usize,
    /// How many templates are propagated at once.
    #[arg(long, default_value_t = 1000)]
    templates: usize,
    /// To how many clusters each of them goes.
    #[arg(long, default_value_t = 10)]
    spread: usize,
    /// How many times the Deployment is created; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// For how many seconds the processes are watched doing nothing.
    #[arg(long, default_value_t = 20)]
    rest: u64,
    /// What `cargo bench` says to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let sizes = Sizes::parse();
    if sizes.clusters == 0 || sizes.spread == 0 || sizes.spread > sizes.clusters || sizes.rounds == 0 {
        bail!("there has to be a cluster, a round, and no more clusters per template than there are");
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(&sizes))
}

async fn run(sizes: &Sizes) -> Result<()> {
    eprintln!("starting {} clusters with {} nodes each …", sizes.clusters, sizes.nodes);
    let (mut world, started) = World::start(sizes).await?;
    let mut report = Report::default();
    report.fact(&format!("{} clusters with {} nodes each are up", sizes.clusters, sizes.nodes), started);
    report.cost("idle, before any cluster is joined", world.cost_so_far());

    eprintln!("joining …");
    let before = world.mark();
    report.fact("all clusters joined and Ready", world.join().await?);
    report.cost("joining all clusters", world.since(&before));

    eprintln!("one Deployment over all clusters …");
    let before = world.mark();
    let mut rounds = Vec::new();
    for round in 0..sizes.rounds {
        rounds.push(world.divide(round).await?);
    }
    for (index, what) in world::DIVIDED.iter().enumerate() {
        let mut times: Vec<Duration> = rounds.iter().map(|round| round[index]).collect();
        times.sort();
        report.fact(&format!("Deployment over {} clusters: {what}", sizes.clusters), times[times.len() / 2]);
    }
    report.cost(&format!("{} such Deployments", sizes.rounds), world.since(&before));

    eprintln!("{} templates to {} clusters each …", sizes.templates, sizes.spread);
    let before = world.mark();
    let (created, reported) = world.spread().await?;
    let what = format!("{} templates to {} clusters each", sizes.templates, sizes.spread);
    report.fact(&format!("{what}: created"), created);
    report.fact(&format!("{what}: all applied and reported"), reported);
    report.cost(&what, world.since(&before));

    eprintln!("at rest for {} s …", sizes.rest);
    let before = world.mark();
    tokio::time::sleep(Duration::from_secs(sizes.rest)).await;
    report.cost(&format!("{} s at rest", sizes.rest), world.since(&before));
    report.print();
    Ok(())
}

/// What is printed in the end.
#[derive(Default)]
struct Report {
    facts: Vec<(String, Duration)>,
    costs: Vec<(String, [Cost; 2])>,
}

impl Report {
    fn fact(&mut self, what: &str, took: Duration) {
        eprintln!("  {what}: {}", seconds(took));
        self.facts.push((what.to_owned(), took));
    }

    fn cost(&mut self, during: &str, costs: [Cost; 2]) {
        self.costs.push((during.to_owned(), costs));
    }

    fn print(&self) {
        println!("| | time |\n|---|---:|");
        for (what, took) in &self.facts {
            println!("| {what} | {} |", seconds(*took));
        }
        println!(
            "\n| | control plane: CPU | memory after | simulation: CPU | memory after |\n|---|---:|---:|---:|---:|"
        );
        for (during, [plane, simulation]) in &self.costs {
            println!(
                "| {during} | {:.2} s | {} MB | {:.2} s | {} MB |",
                plane.cpu_seconds, plane.megabytes, simulation.cpu_seconds, simulation.megabytes
            );
        }
    }
}

fn seconds(took: Duration) -> String {
    format!("{:.2} s", took.as_secs_f64())
}

/// Returns how long something took, with its outcome.
async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<(T, Duration)> {
    let started = Instant::now();
    let outcome = work.await?;
    Ok((outcome, started.elapsed()))
}
