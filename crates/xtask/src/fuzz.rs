//! `cargo xtask fuzz`: runs the fuzzer, which is a program of its own (`crates/fuzz`).

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, cargo};

/// The program of the `fuzz` crate.
const PROGRAM: &str = "fuzz";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let status = command(&Workspace::load()?)?.args(arguments).status().context("cannot run the fuzzer")?;
    if !status.success() {
        bail!("the fuzzer ended with {status}");
    }
    Ok(())
}

/// Builds the fuzzer and returns the call of it; arguments follow. It is built as one of the whole workspace: alone it would need other
/// features of its dependencies, and compile most of them a second time.
pub(crate) fn command(workspace: &Workspace) -> Result<Command> {
    let built = cargo()
        .args(["build", "--quiet", "--workspace", "--bin", PROGRAM])
        .current_dir(&workspace.root)
        .status()
        .context("cannot run cargo build")?;
    if !built.success() {
        bail!("the fuzzer does not compile");
    }
    Ok(Command::new(workspace.program(PROGRAM)))
}
