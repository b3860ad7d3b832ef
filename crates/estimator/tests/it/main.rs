//! The client of the accurate estimator against a service in the same process.

mod client;
mod server;
mod service;
mod tls;
