//! What clients of the server may rely on, seen from outside: over HTTPS, against a server in this process.
//!
//! Unlike `differential`, this needs no other program. Nothing sleeps for a fixed time: a test either gets an answer at
//! once, reads the next event of a stream, or looks until something has happened.

#[path = "../support/mod.rs"]
mod support;

mod access;
mod addresses;
mod aggregation;
mod audit;
mod bounds;
mod conversion;
mod custom;
mod disk;
mod doors;
mod gitops;
mod hooks;
mod identity;
mod life;
mod pressure;
mod several;
mod strangers;
mod trust;
mod verdicts;
mod watch;

use apiserver::{Handle, Options};

use crate::support::Api;

/// A server in memory and its administrator's client.
async fn start() -> (Handle, Api) {
    start_with(Options::default()).await
}

async fn start_with(options: Options) -> (Handle, Api) {
    let handle = apiserver::start(options).await.expect("the server starts");
    let api = Api::from_kubeconfig(&handle.kubeconfig).await;
    (handle, api)
}
