//! The client of the accurate estimator against a service in the same process, and our service beside the original.

mod client;
mod original;
mod server;
mod service;
mod tls;
mod worlds;
