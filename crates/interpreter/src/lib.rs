//! What a resource means: replicas, health, status, dependencies, retention.
//!
//! A federation handles kinds it has never heard of, so the questions it must ask about an object ("how many
//! replicas?", "is it healthy?", "what does it need beside it?") are answered here, by the first of several
//! layers that knows the kind: declarative customisations, webhooks, bundled third-party rules, native rules.
//! The native rules, the third-party rules and the machine for declarative scripts ([`lua`]) are in this crate. What
//! needs threads or a network (the pool that scripts run on, webhooks) plugs in through [`Layer`].
//!
//! Objects are `serde_json::Value` trees. Nothing here reads a clock or touches the world: the one operation
//! that stamps times takes `now` as an argument, and scripts get a clock from whoever makes their layer.

mod chain;
mod customizations;
mod dependency;
mod error;
mod fields;
pub mod lua;
pub mod native;
mod operation;
pub mod pods;
mod prune;
mod question;
mod replicas;
mod third_party;
pub mod webhook;

pub use chain::{AtOnce, Interpreter, Layer, Pending, Rulebook, at_once};
pub use customizations::{Clock, Customizations, Limit, scripts};
pub use dependency::verify_dependencies;
pub use error::{Error, Result};
pub use operation::Operation;
pub use prune::prune;
pub use question::{Answer, Question};
pub use replicas::Replicas;
pub use third_party::{ThirdParty, third_party_kinds};
