//! Label and field selectors: parsing, matching, printing.

pub mod field;
pub mod label;

pub use field::Selector as FieldSelector;
pub use label::Selector as LabelSelector;
