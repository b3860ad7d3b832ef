//! `cargo xtask pods`: what kubectl does with pods, through our control plane, on members with real pods; and how long these take to start
//! and what memory they need. The short part of it is in CI.

use anyhow::{Context, Result, bail};
use clusters::toolchain::{POD_PACKAGES, POD_RECIPES, Toolchain};

use crate::workspace::cargo;

pub(crate) fn run() -> Result<()> {
    // Here, where the user sees the progress of a first build.
    let toolchain = Toolchain::from_env()?;
    toolchain.ensure(&POD_RECIPES)?;
    toolchain.ensure_packages(POD_PACKAGES)?;
    let status = cargo()
        .args(["test", "--workspace", "--test", "propagation", "real_pods"])
        .args(["--", "--include-ignored", "--nocapture"])
        .status()
        .context("cannot run cargo test")?;
    if !status.success() {
        bail!("not everything works on real pods");
    }
    Ok(())
}
