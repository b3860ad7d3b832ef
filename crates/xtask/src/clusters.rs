//! `cargo xtask clusters …`: builds the program that does it, and becomes it.

use std::{os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, cargo};

/// The program of the `clusters` crate.
pub(crate) const PROGRAM: &str = "karmada-clusters";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let built = cargo()
        .args(["build", "--workspace", "--bin", PROGRAM])
        .status()
        .context("cannot run cargo build")?;
    if !built.success() {
        bail!("{PROGRAM} does not compile");
    }
    let program = Workspace::load()?.program(PROGRAM);
    let failure = Command::new(&program).args(arguments).exec(); // returns only if it cannot
    Err(failure).with_context(|| format!("cannot run {}", program.display()))
}
