//! `version`: the version of this program, in the words of every Karmada component.

use clap::Args;

use crate::output;
use crate::server::Connection;

/// Print the version information.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Print the version information
  karmadactl version")]
pub struct Arguments {
    #[command(flatten)]
    pub connection: Connection,
}

/// Prints one line.
pub(crate) fn run(program: &str) {
    output::line(&text(program));
}

fn text(program: &str) -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    // Scripts look for these words; a Rust build has no Go version.
    format!(
        "{program} version: version.Info{{GitVersion:\"v{}\", GitCommit:\"unknown\", GitShortCommit:\"unknown\", \
         GitTreeState:\"unknown\", BuildDate:\"unknown\", GoVersion:\"none\", Compiler:\"rustc\", \
         Platform:\"{}/{architecture}\"}}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_has_upstreams_words() {
        let text = super::text("karmadactl");
        for word in ["karmadactl version: version.Info{", "GitVersion:\"v", "GoVersion", "Platform:\""] {
            assert!(text.contains(word), "{text}");
        }
    }
}
