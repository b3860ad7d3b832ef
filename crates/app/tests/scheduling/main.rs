//! The scheduler at work in a control plane that runs as a process of its own.
//!
//! `members` has three real members, and every way to divide replicas follows what changes. `reasons` has clusters that
//! are only described, and asks why bindings are where they are.

mod members;
mod reasons;

use testkit::Server;

/// Starts the control plane as a process of its own with these controllers, as `--controllers` names them.
fn start(controllers: &str) -> Server {
    testkit::install_tls();
    Server::audited(env!("CARGO_BIN_EXE_karmada"), &["--controllers", controllers])
}
