//! `cargo xtask dist`: what packages hold beside the binary: man pages, and completions for bash, zsh and fish.

use anyhow::{Context, Result, bail};

use crate::workspace::cargo;

pub(crate) fn run(folder: &std::path::Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    // All commands, the roles among them, are known to the binary alone; what writes pages of them is a test of it.
    let status = cargo()
        .args(["test", "--quiet", "--package", "app", "--bin", "karmada", "--"])
        .args(["--ignored", "--exact", "pages::write_what_packages_hold"])
        .env("KARMADA_RS_DIST", &folder)
        .stdout(std::process::Stdio::null())
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("the pages were not written");
    }
    println!("man pages and completions are in {}", folder.display());
    Ok(())
}
