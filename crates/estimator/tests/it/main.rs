//! The client of the accurate estimator against a service in the same process.

mod client;
mod service;
mod tls;
