//! A language for searching the fleet, answered from the caches.
//!
//! ```text
//! kind:pod status!=Running image:*:v2 cluster:eu-* age<1h
//! ```
//!
//! A query is a sequence of terms that must all hold (`parse`). It is answered kind by kind and cluster by cluster (`run`), from
//! the index of a word if that leaves fewer objects to check, in a stable order, page by page.

mod parse;
mod run;

pub use parse::{Error, Query, Term};
pub use run::{Answer, Order, Page, Row, run};
