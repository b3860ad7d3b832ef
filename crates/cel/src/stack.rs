//! Room for expressions that nest: parsing and checking call themselves, and stacks do not grow.
//!
//! An expression is refused beyond a fixed depth (`parser`), but the way there may take more than what is left of the
//! caller's stack. So whatever could be deep is compiled on a thread with a stack of known size.

/// Enough for the deepest expression that is accepted, in a build without optimizations.
const STACK: usize = 32 << 20;
/// With fewer signs than this an expression cannot be deep.
const FEW: usize = 32;
/// Every level of nesting needs one of these.
const SIGNS: &[u8] = b"([{?.+-*/%<>=!&|";

/// Says whether an expression may be nested more than a few levels.
pub(crate) fn may_be_deep(source: &str) -> bool {
    source.bytes().filter(|byte| SIGNS.contains(byte)).nth(FEW).is_some()
        || source.matches(" in ").nth(FEW).is_some()
}

/// Runs it on a large stack; nothing if there is no thread to be had.
pub(crate) fn with_room<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run).ok()?;
        match thread.join() {
            Ok(done) => Some(done),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
