//! `cargo xtask fuzz`: runs the fuzzer, which is a program of its own (`crates/fuzz`).

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::cargo;

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let status = command().args(arguments).status().context("cannot run the fuzzer")?;
    if !status.success() {
        bail!("the fuzzer ended with {status}");
    }
    Ok(())
}

/// Returns the call of the fuzzer; arguments follow.
pub(crate) fn command() -> Command {
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "fuzz", "--"]);
    command
}
