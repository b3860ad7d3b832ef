//! Label and field selectors: parsing, matching, printing.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod field;
pub mod label;

pub use field::Selector as FieldSelector;
pub use label::Selector as LabelSelector;
