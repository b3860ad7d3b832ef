//! `label`: sets and removes labels of objects in the control plane.

use clap::Args;

use crate::marks::{self, Mark};

/// Update the labels on a resource.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Update deployment foo
  karmadactl label deployment foo unhealthy=true

  # Update it, overwriting any existing value
  karmadactl label --overwrite deployment foo unhealthy=true

  # Remove from deployment foo what is called bar
  karmadactl label deployment foo bar-")]
pub struct Arguments {
    #[command(flatten)]
    pub what: marks::Arguments,
    /// Name of the manager used to track field ownership.
    #[arg(long, value_name = "NAME", default_value = "kubectl-label")]
    pub field_manager: String,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    marks::run(Mark::Label, arguments.what, &arguments.field_manager).await
}
