//! `karmada crds`: Karmada's definitions, for a control plane that runs on kube-apiserver.

use std::io::Write;

use clap::Args;

/// Print the CustomResourceDefinitions of all kinds, to be applied to an existing kube-apiserver.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Also print Cluster and ResourceRegistry, which Karmada serves by API servers of their own. Their rules are then
    /// applied by `karmada webhook`.
    #[arg(long)]
    aggregated: bool,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let aggregated = if arguments.aggregated { api::crd::aggregated() } else { Vec::new() };
    for definition in api::crd::all().into_iter().chain(aggregated) {
        // JSON is valid YAML, which kubectl accepts.
        writeln!(out, "---\n{definition:#}")?;
    }
    Ok(())
}
