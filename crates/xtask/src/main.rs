//! The project's own commands: `cargo xtask ci`, `cargo xtask clusters …`, `cargo xtask bench …`, `cargo xtask compare …`,
//! `cargo xtask e2e`, `cargo xtask pods`, `cargo xtask trouble`, `cargo xtask histories`, `cargo xtask conformance`,
//! `cargo xtask integration`, `cargo xtask fuzz`, `cargo xtask licenses`, `cargo xtask dist`.
//!
//! Kept small on purpose: it compiles in seconds, and whatever needs the async stack is a program of its own that is called.

mod bench;
mod ci;
mod clusters;
mod compare;
mod conformance;
mod dependencies;
mod dist;
mod e2e;
mod fuzz;
mod histories;
mod integration;
mod licenses;
mod pods;
mod trouble;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about = "The project's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run every check that a change must pass.
    Ci(ci::Arguments),
    /// Real Kubernetes clusters on this machine: up, down, status, logs, trouble, build.
    #[command(disable_help_flag = true)]
    Clusters {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run a benchmark, or list them.
    Bench {
        /// The benchmark's name; without it, all are listed.
        name: Option<String>,
        /// What the benchmark itself is told, such as `--clusters 100`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run Karmada's own end-to-end suite against our control plane on real members.
    E2e(e2e::Arguments),
    /// Test what works with real pods through our control plane, and measure members that have them. Needs root.
    Pods,
    /// Break real members in every way, and count what is lost.
    Trouble {
        /// Which kinds of trouble, such as `cut` or `restored`; by default all.
        kinds: Vec<String>,
    },
    /// Kill, freeze and cut off servers and etcds, and hold what clients saw against what one store would have shown.
    Histories(histories::Arguments),
    /// Run Kubernetes' own end-to-end suite, as far as it needs no containers, against our API server.
    Conformance(conformance::Arguments),
    /// Run Kubernetes' own integration tests against our API server.
    Integration(integration::Arguments),
    /// Try what reads bytes from outside with mutated inputs: `cargo xtask fuzz [TARGET] [--seconds N]`.
    #[command(disable_help_flag = true)]
    Fuzz {
        /// What the fuzzer itself is told; `--list` shows the targets, `--help` the rest.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Write the licences of what is inside of the binary into the file that it contains.
    Licenses,
    /// Write what packages hold beside the binary: man pages and completions.
    Dist {
        /// Where to.
        #[arg(default_value = "target/dist/share")]
        folder: std::path::PathBuf,
    },
    /// Compare a part of ours with the original, or list what can be compared.
    Compare {
        /// The part's name; without it, all are listed.
        name: Option<String>,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Verb::Ci(arguments) => ci::run(&arguments),
        Verb::Clusters { arguments } => clusters::run(&arguments),
        Verb::Bench { name, arguments } => bench::run(name.as_deref(), &arguments),
        Verb::Fuzz { arguments } => fuzz::run(&arguments),
        Verb::Compare { name } => compare::run(name.as_deref()),
        Verb::Dist { folder } => dist::run(&folder),
        Verb::Licenses => licenses::run(),
        Verb::Pods => pods::run(),
        Verb::Trouble { kinds } => trouble::run(&kinds),
        Verb::Histories(arguments) => histories::run(&arguments),
        Verb::E2e(arguments) => e2e::run(&arguments),
        Verb::Conformance(arguments) => conformance::run(&arguments),
        Verb::Integration(arguments) => integration::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
