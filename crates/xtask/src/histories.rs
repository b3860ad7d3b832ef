//! `cargo xtask histories`: the campaign on three servers and three etcds, see `crates/app/tests/up/histories`. A short round
//! of it is in CI.

use anyhow::{Context, Result, bail};
use clusters::toolchain::{ETCD, Toolchain};

use crate::workspace::cargo;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// For how long.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// What happens, and what goes wrong, follows from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    // Here, where the user sees the progress of a first build.
    Toolchain::from_env()?.ensure(&[&ETCD])?;
    let status = cargo()
        .args(["test", "--workspace", "--test", "up", "what_clients_of_three_servers_see"])
        .args(["--", "--nocapture"])
        .env("KARMADA_RS_HISTORIES_MINUTES", arguments.minutes.to_string())
        .env("KARMADA_RS_HISTORIES_SEED", arguments.seed.to_string())
        .status()
        .context("cannot run cargo test")?;
    if !status.success() {
        bail!("seed {}: no store explains what clients saw, or something did not recover", arguments.seed);
    }
    Ok(())
}
