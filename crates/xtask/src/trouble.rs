//! `cargo xtask trouble`: the campaign of trouble on real members, every failure with every way of leaving a cluster. One case of it is in CI.

use anyhow::{Context, Result, bail};
use clusters::toolchain::{MEMBER_RECIPES, Toolchain};

use crate::workspace::cargo;

pub(crate) fn run() -> Result<()> {
    // Here, where the user sees the progress of a first build.
    Toolchain::from_env()?.ensure(&MEMBER_RECIPES)?;
    let status = cargo()
        .args(["test", "--package", "app", "--test", "propagation", "campaign"])
        .args(["--", "--include-ignored", "--nocapture"])
        .status()
        .context("cannot run cargo test")?;
    if !status.success() {
        bail!("something was lost");
    }
    Ok(())
}
