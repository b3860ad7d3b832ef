//! Room for what nests: parsers and checkers call themselves, and stacks do not grow.
//!
//! Whatever reads nested text refuses it beyond a fixed depth, but the way there may take more than what is left of the
//! caller's stack. So it is done on a thread with a stack of known size.

/// Enough for the deepest text that any of our parsers accepts, in a build without optimizations.
const STACK: usize = 32 << 20;

/// Runs a function on a large stack. Returns nothing if no thread can be started.
pub fn with_room<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run).ok()?;
        match thread.join() {
            Ok(done) => Some(done),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
