//! `karmada crds`: Karmada's definitions, for a control plane that runs on kube-apiserver.

use std::io::Write;

use clap::Args;

/// Print the CustomResourceDefinitions of all kinds, to be applied to an existing kube-apiserver.
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: Arguments) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    // Clusters, too: without an aggregated API server the definition serves them at the same place.
    for definition in api::crd::all().into_iter().chain(api::crd::aggregated()) {
        // JSON is YAML; kubectl takes it as it is.
        writeln!(out, "---\n{definition:#}")?;
    }
    Ok(())
}
