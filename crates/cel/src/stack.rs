//! Which expressions need room: parsing and checking call themselves, once for every level of nesting.

/// With fewer signs than this an expression cannot be deep.
const FEW: usize = 32;
/// Every level of nesting needs one of these.
const SIGNS: &[u8] = b"([{?.+-*/%<>=!&|";

/// Says whether an expression may be nested more than a few levels.
pub(crate) fn may_be_deep(source: &str) -> bool {
    source.bytes().filter(|byte| SIGNS.contains(byte)).nth(FEW).is_some()
        || source.matches(" in ").nth(FEW).is_some()
}
