//! `cargo xtask bench`: finds the benchmarks that exist and runs the one that is asked for.

use anyhow::{Context, Result, bail};
use clusters::toolchain::{KARMADA, MEMBER_RECIPES, Toolchain};

use crate::workspace::{Workspace, cargo};

pub(crate) fn run(name: Option<&str>, arguments: &[String]) -> Result<()> {
    let workspace = Workspace::load()?;
    let benches: Vec<(&str, &str)> = workspace
        .crates
        .iter()
        .flat_map(|each| each.benches.iter().map(|bench| (each.name.as_str(), bench.as_str())))
        .collect();
    let Some(wanted) = name else {
        println!("{}", list(&benches));
        return Ok(());
    };
    let Some((crate_name, bench)) = benches.iter().find(|(_, bench)| *bench == wanted) else {
        bail!("there is no benchmark called {wanted}\n{}", list(&benches));
    };
    let mut command = cargo();
    if wanted == "interpreter" {
        // It is measured beside ours.
        command.env("KARMADA_RS_INTERPRETER_ORACLE", crate::compare::oracle()?);
    }
    if wanted == "pull" {
        let toolchain = Toolchain::from_env()?;
        toolchain.ensure(&MEMBER_RECIPES)?;
        for program in crate::compare::CONTROL_PLANE.iter().chain(&["karmada-agent"]) {
            toolchain.ensure_program(&KARMADA, program)?;
        }
    }
    let status = command
        // As in packages, with optimisation across crates.
        .args(["bench", "--profile", "dist", "--package", crate_name, "--bench", bench, "--"])
        .args(arguments)
        .status()
        .context("cannot run cargo bench")?;
    if !status.success() {
        bail!("the benchmark {wanted} failed");
    }
    Ok(())
}

fn list(benches: &[(&str, &str)]) -> String {
    if benches.is_empty() {
        return "There are no benchmarks yet: a file in a crate's `benches` folder becomes one.".to_string();
    }
    let lines: Vec<String> =
        benches.iter().map(|(crate_name, bench)| format!("  {bench:<24} ({crate_name})")).collect();
    format!("Benchmarks:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_benchmark_is_invented() {
        assert!(list(&[]).starts_with("There are no benchmarks yet"));
        assert_eq!(list(&[("store", "writes")]), "Benchmarks:\n  writes                   (store)");
    }
}
