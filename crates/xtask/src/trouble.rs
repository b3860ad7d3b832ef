//! `cargo xtask trouble`: the campaign of trouble on real members, every failure with every way of leaving a cluster. One case
//! of it is in CI.

use anyhow::{Context, Result, bail};
use clusters::toolchain::{MEMBER_RECIPES, Toolchain};

use crate::workspace::cargo;

/// Names the troubles to the test.
const CHOSEN: &str = "KARMADA_RS_TROUBLE";

pub(crate) fn run(chosen: &[String]) -> Result<()> {
    // Here, where the user sees the progress of a first build.
    Toolchain::from_env()?.ensure(&MEMBER_RECIPES)?;
    let status = cargo()
        .args(["test", "--workspace", "--test", "propagation", "campaign"])
        .args(["--", "--include-ignored", "--nocapture"])
        .env(CHOSEN, chosen.join(" "))
        .status()
        .context("cannot run cargo test")?;
    if !status.success() {
        bail!("something was lost");
    }
    Ok(())
}
