//! `cargo run -p fuzz -- [TARGET] [--seconds N]`: tries one target, or all one after the other.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use fuzz::driver::{self, Options};
use fuzz::{TARGETS, Target};

/// Tries what reads bytes from outside with mutated inputs.
#[derive(Parser)]
#[command(name = "fuzz", bin_name = "cargo xtask fuzz")]
struct Arguments {
    /// The target; without it, all are tried one after the other.
    target: Option<String>,
    /// How long each target is tried.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Where the inputs begin; the same number gives the same inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where inputs that break something are written.
    #[arg(long, default_value = "target/fuzz")]
    findings: PathBuf,
    /// Run this input only.
    #[arg(long, requires = "target")]
    input: Option<PathBuf>,
    /// Show the targets and what must hold for them.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let chosen: Vec<&'static Target> = match &arguments.target {
        None => TARGETS.iter().collect(),
        Some(name) => match fuzz::find(name) {
            Some(target) => vec![target],
            None => {
                let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
                bail!("there is no target called {name}; there are {}", names.join(", "));
            }
        },
    };
    if arguments.list {
        for target in &chosen {
            println!("{:<14} {}", target.name, target.about);
        }
        return Ok(());
    }
    if let (Some(path), [target]) = (&arguments.input, chosen.as_slice()) {
        let input = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        println!("{}", (target.run)(&input));
        return Ok(());
    }
    let Arguments { seconds, seed, .. } = *arguments;
    let mut failures = Vec::new();
    for target in chosen {
        let options = Options { seconds, seed, findings: arguments.findings.clone() };
        match driver::run(target, &options) {
            Ok(tried) => println!("{:<14} {tried} inputs", target.name),
            Err(error) => {
                println!("{:<14} FAILED", target.name);
                failures.push(format!("{error:#}"));
            }
        }
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(())
}
