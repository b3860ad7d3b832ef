//! JSON as the API reads and writes it.
//!
//! [`read`] turns bytes into a value tree and reports repeated keys; [`write()`] prints a tree as Go would. Unlike a
//! general JSON library it keeps to Go's words for syntax errors (clients see them in 400 answers), prefers 64-bit
//! integers, and turns floats without a fraction into integers, which is what a round trip through the API does.

mod read;
mod write;

pub(crate) use read::from_float;
pub use read::{Document, Error, read, read_value, sort_complaints};
pub use write::{write, write_pretty};
