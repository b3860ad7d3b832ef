//! `options`: the flags that every command takes.

use clap::Args;

use crate::output;
use crate::server::Connection;

/// Print the list of flags inherited by all commands.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Print flags inherited by all commands
  karmadactl options")]
pub struct Arguments {
    #[command(flatten)]
    pub connection: Connection,
}

/// Prints them.
pub(crate) fn run(program: &str) {
    output::print(&format!(
        "The following options can be passed to any command:\n\n    --kubeconfig='':\n\tPath to the kubeconfig file to use \
         for CLI requests.\n\n    --karmada-context='':\n\tThe name of the kubeconfig context to use\n\n    -v, --v=0:\n\t\
         number for the log level verbosity; from 6 on, requests are told\n\nUse \"{program} <command> --help\" for the \
         flags of a command.\n"
    ));
}
