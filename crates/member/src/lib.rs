//! Connections to member clusters: clients, caches, health.

/// All members this process is connected to.
#[derive(Debug, Default)]
pub struct Members {}
