//! `cargo xtask compare`: our parts against the originals, outcome by outcome.
//!
//! Each comparison is an ignored test of its own; this builds the original it needs first, which takes minutes the
//! first time and shows its progress, then runs the test.

use anyhow::{Context, Result, bail};
use clusters::toolchain::{HELM, KARMADA, MEMBER_RECIPES, Recipe, Toolchain};

use crate::workspace::cargo;

/// What can be compared: its name, the programs it needs, and the test that does it.
static COMPARISONS: &[(&str, &Recipe, &[&str], &str)] = &[
    ("scheduler", &KARMADA, &["karmada-scheduler"], "scheduling_original"),
    ("webhook", &KARMADA, &["karmada-webhook"], "admission"),
    (
        "server",
        &KARMADA,
        &["karmada-aggregated-apiserver", "karmada-controller-manager", "karmada-scheduler"],
        "original",
    ),
    ("helm", &HELM, &["helm"], "helm"),
    ("cli", &KARMADA, &["karmadactl"], "up"),
];

pub(crate) fn run(name: Option<&str>) -> Result<()> {
    let Some(wanted) = name else {
        println!("{}", list());
        return Ok(());
    };
    let Some((_, recipe, programs, test)) = COMPARISONS.iter().find(|(name, ..)| *name == wanted) else {
        bail!("there is no comparison called {wanted}\n{}", list());
    };
    let toolchain = Toolchain::from_env()?;
    toolchain.ensure(&MEMBER_RECIPES)?;
    for program in *programs {
        toolchain.ensure_program(recipe, program)?;
    }
    let status = cargo()
        .args(["test", "--package", "app", "--test", test, "--", "--ignored", "--nocapture"])
        .status()
        .context("cannot run cargo test")?;
    if !status.success() {
        bail!("the outcomes differ, or could not be compared");
    }
    Ok(())
}

fn list() -> String {
    let names: Vec<&str> = COMPARISONS.iter().map(|(name, ..)| *name).collect();
    format!("Comparisons:\n  {}", names.join("\n  "))
}
