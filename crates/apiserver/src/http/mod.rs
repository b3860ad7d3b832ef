//! HTTP: connections, what a request asks for, what representation it wants, how answers are written.

pub mod body;
pub mod front;
pub mod listener;
pub mod negotiate;
pub mod onward;
pub mod pass;
pub mod request;
pub mod respond;
pub(crate) mod sending;

pub use body::Body;
pub use request::{Query, RequestInfo};
