//! Code that reads what others send cannot panic by arithmetic, an index or `unwrap`: clippy denies these where a module asks for it.
//!
//! This list keeps the modules from dropping the request unnoticed. A module's attribute holds for all modules inside of it.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

/// The modules that deny all three, below `crates`. Add yours if it reads anything from a client, a member, a webhook or a file of
/// somebody else.
const READERS: &[&str] = &[
    "admission/src/lib.rs",
    "apimachinery/src/lib.rs",
    "apiserver/src/lib.rs",
    "app/src/aggregated.rs",
    "app/src/cluster_proxy.rs",
    "app/src/fleet/mod.rs",
    "app/src/fleet_metrics.rs",
    "app/src/peers.rs",
    "app/src/tunnels.rs",
    "app/src/webhook.rs",
    "cel/src/lexer.rs",
    "cel/src/literals.rs",
    "cel/src/macros.rs",
    "cel/src/parser.rs",
    "cel/src/syntax.rs",
    "controllers/src/autoscaling/metrics.rs",
    "controllers/src/interpretation/transport.rs",
    "controllers/src/interpretation/webhooks.rs",
    "estimator/src/lib.rs",
    "fleet/src/lib.rs",
    "interpreter/src/webhook.rs",
    "member/src/lib.rs",
    "native/src/defaults.rs",
    "native/src/prepare.rs",
    "native/src/proto.rs",
    "native/src/validation.rs",
    "placement/src/lib.rs",
    "propagation/src/lib.rs",
    "runtime/src/lib.rs",
    "tunnel/src/lib.rs",
];

const LINTS: &[&str] =
    &["clippy::arithmetic_side_effects", "clippy::indexing_slicing", "clippy::unwrap_used"];

/// Whether a file denies the lints for itself and what is inside of it, outside of tests or everywhere.
fn denies(text: &str) -> bool {
    // Attributes may be spread over several lines.
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let attributes = code.split("#![").skip(1).map(|rest| rest.split(")]").next().unwrap_or_default());
    let denied: Vec<&str> =
        attributes.filter_map(|attribute| attribute.split_once("deny(")).map(|(_, lints)| lints).collect();
    LINTS.iter().all(|lint| denied.iter().any(|lints| lints.contains(lint)))
}

/// Returns the modules of the list that lack a lint, or that do not exist.
pub(super) fn complaints(root: &Path) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for module in READERS {
        // Where a whole crate has the lints, its modules need not repeat them.
        let krate = module.split_once("/src/").map_or("", |(krate, _)| krate);
        let library = fs::read_to_string(root.join(format!("crates/{krate}/src/lib.rs"))).unwrap_or_default();
        let path = root.join("crates").join(module);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("cannot read crates/{module}, which xtask's panics.rs names"))?;
        if !denies(&library) && !denies(&text) {
            complaints.push(format!("crates/{module} reads what others send and does not deny {LINTS:?}"));
        }
    }
    Ok(complaints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_28_readers_cannot_panic() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert_eq!(complaints(&root).expect("the sources"), Vec::<String>::new());
    }

    #[test]
    fn lints_are_denied_for_the_whole_file_or_not_at_all() {
        let all = LINTS.join(", ");
        for text in [
            format!("//! X.\n\n#![cfg_attr(not(test), deny({all}))]\n"),
            format!("//! X.\n\n#![deny({all})]\n\nfn f() {{}}\n"),
            format!("//! X.\n\n#![cfg_attr(\n    not(test),\n    deny({})\n)]\n", LINTS.join(",\n        ")),
        ] {
            assert!(denies(&text), "{text}");
        }
        for text in [
            format!("//! X.\n\n#![deny({}, {})]\n", LINTS[0], LINTS[1]),
            format!("//! X.\n\n#[deny({all})]\nfn f() {{}}\n"),
            format!("//! X.\n// #![deny({all})]\n"),
            format!("//! X.\n\n#![allow({all})]\n"),
        ] {
            assert!(!denies(&text), "{text}");
        }
    }
}
