//! `cargo xtask compare`: our parts against the originals, outcome by outcome.
//!
//! Each comparison is an ignored test of its own; this builds the original it needs first, which takes minutes the
//! first time and shows its progress, then runs the test.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clusters::toolchain::{HELM, KARMADA, KARMADA_ESTIMATING, MEMBER_RECIPES, Recipe, Toolchain};

use crate::workspace::{Workspace, cargo};

/// Ignored tests: the package, the test binary, and a part of their names.
type Tests = (&'static str, &'static str, &'static str);

/// What can be compared: its name, the programs it needs, and the tests that do it.
static COMPARISONS: &[(&str, &Recipe, &[&str], &[Tests])] = &[
    ("scheduler", &KARMADA, &["karmada-scheduler"], &[("app", "scheduling_original", "both_schedulers")]),
    (
        "estimator",
        &KARMADA_ESTIMATING,
        &["karmada-estimating-scheduler", "karmada-estimating-estimator"],
        &[("estimator", "it", "original"), ("app", "scheduling_original", "estimators")],
    ),
    ("webhook", &KARMADA, &["karmada-webhook"], &[("app", "admission", "")]),
    (
        "server",
        &KARMADA,
        &["karmada-aggregated-apiserver", "karmada-controller-manager", "karmada-scheduler"],
        &[("app", "original", "the_original_controllers")],
    ),
    ("agent", &KARMADA, AGENTS, &[("app", "original", "agent::")]),
    ("migrate", &KARMADA, CONTROL_PLANE, &[("app", "migration", "")]),
    ("helm", &HELM, &["helm"], &[("app", "helm", "")]),
    ("cli", &KARMADA, &["karmadactl"], &[("app", "up", "original::")]),
];

/// The programs of the whole original control plane.
pub(crate) const CONTROL_PLANE: &[&str] =
    &["karmada-aggregated-apiserver", "karmada-controller-manager", "karmada-scheduler", "karmada-webhook"];

/// The same, with what registers clusters and looks after them.
const AGENTS: &[&str] = &[
    "karmada-aggregated-apiserver",
    "karmada-controller-manager",
    "karmada-scheduler",
    "karmada-webhook",
    "karmadactl",
    "karmada-agent",
];

/// These need a program of ours around the original's packages, and no cluster.
const INTERPRETER: &str = "interpreter";
const AUTOSCALING: &str = "autoscaling";
/// The API server against kube-apiserver, both on etcd.
const ETCD: &str = "etcd";

pub(crate) fn run(name: Option<&str>) -> Result<()> {
    let Some(wanted) = name else {
        println!("{}", list());
        return Ok(());
    };
    if wanted == INTERPRETER {
        return interpreter();
    }
    if wanted == AUTOSCALING {
        return autoscaling();
    }
    if wanted == ETCD {
        return etcd();
    }
    let Some((_, recipe, programs, tests)) = COMPARISONS.iter().find(|(name, ..)| *name == wanted) else {
        bail!("there is no comparison called {wanted}\n{}", list());
    };
    let toolchain = Toolchain::from_env()?;
    toolchain.ensure(&MEMBER_RECIPES)?;
    for program in *programs {
        toolchain.ensure_program(recipe, program)?;
    }
    for (package, test, filter) in *tests {
        let status = cargo()
            .args(["test", "--package", package, "--test", test, "--", "--ignored", "--nocapture", filter])
            .status()
            .context("cannot run cargo test")?;
        if !status.success() {
            bail!("the outcomes differ, or could not be compared");
        }
    }
    Ok(())
}

/// Asks the original's interpreter the recorded questions again; `UPDATE_GOLDEN=1` records its answers.
fn interpreter() -> Result<()> {
    let status = cargo()
        .args(["test", "--package", "interpreter", "--test", "original", "--", "--ignored", "--nocapture"])
        .env("KARMADA_RS_INTERPRETER_ORACLE", oracle()?)
        .status()
        .context("cannot run cargo test")?;
    if !status.success() {
        bail!("the original answers differently than it was recorded");
    }
    Ok(())
}

/// Has the original's autoscaler decide a thousand random situations; `UPDATE_GOLDEN=1` records some of its answers, `KARMADA_RS_SEED`
/// makes others.
fn autoscaling() -> Result<()> {
    let source = Workspace::load()?.root.join("crates/controllers/tests/oracle");
    let oracle = Toolchain::from_env()?.build_own("autoscaling-oracle", &source)?;
    let test = "autoscaling::hpa::original::random";
    let status = cargo()
        .args(["test", "--package", "controllers", "--lib", "--", "--ignored", "--nocapture", test])
        .env("KARMADA_RS_AUTOSCALING_ORACLE", oracle)
        .status()
        .context("cannot run cargo test")?;
    if !status.success() {
        bail!("the original decides otherwise");
    }
    Ok(())
}

/// Sends every request of the differential suite to kube-apiserver and to our server on etcd.
fn etcd() -> Result<()> {
    Toolchain::from_env()?.ensure(&MEMBER_RECIPES)?;
    let status = cargo()
        .args(["test", "--package", "apiserver", "--test", "differential", "--", "--ignored", "--nocapture"])
        .status()
        .context("cannot run cargo test")?;
    if !status.success() {
        bail!("the answers differ, or could not be compared");
    }
    Ok(())
}

/// Builds the program that answers with the original's interpreter.
pub(crate) fn oracle() -> Result<PathBuf> {
    let source = Workspace::load()?.root.join("crates/interpreter/tests/oracle");
    Ok(Toolchain::from_env()?.build_own("interpreter-oracle", &source)?)
}

fn list() -> String {
    let names: Vec<&str> =
        COMPARISONS.iter().map(|(name, ..)| *name).chain([INTERPRETER, AUTOSCALING, ETCD]).collect();
    format!("Comparisons:\n  {}", names.join("\n  "))
}
