//! `cargo xtask dist`: what packages hold beside the binary: man pages, and completions for bash, zsh and fish.

use anyhow::{Context, Result, bail};

use crate::workspace::cargo;

pub(crate) fn run(folder: &std::path::Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let status = cargo()
        .args(["run", "--quiet", "--package", "cli", "--example", "pages", "--"])
        .arg(folder)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("the pages were not written");
    }
    println!("man pages and completions are in {}", folder.display());
    Ok(())
}
