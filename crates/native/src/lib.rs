//! Kubernetes' own kinds as data and small functions: what their fields are, how Go would print them, which
//! defaults they get, what is wrong with them, what `kubectl get` shows.
//!
//! The data under `data/` is derived from the published Go API modules and recorded from a stock kube-apiserver
//! (see `gen/README.md`). It is embedded compressed; nothing is unpacked before somebody asks for it.

pub mod bootstrap;
pub mod convert;
pub mod merge;
pub mod openapi;
pub mod proto;
pub mod resources;
pub mod shape;
pub mod types;

pub mod defaults;
pub mod prepare;
pub mod tables;
pub mod validation;

mod data;
