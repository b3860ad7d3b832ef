//! `annotate`: sets and removes annotations of objects in the control plane.

use clap::Args;

use crate::marks::{self, Mark};

/// Update the annotations on a resource.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Update deployment foo
  karmadactl annotate deployment foo description='my frontend'

  # Update it, overwriting any existing value
  karmadactl annotate --overwrite deployment foo description='my frontend'

  # Remove from deployment foo what is called bar
  karmadactl annotate deployment foo bar-")]
pub struct Arguments {
    #[command(flatten)]
    pub what: marks::Arguments,
    /// Name of the manager used to track field ownership.
    #[arg(long, value_name = "NAME", default_value = "kubectl-annotate")]
    pub field_manager: String,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    marks::run(Mark::Annotation, arguments.what, &arguments.field_manager).await
}
