//! Everything that reads bytes from outside, tried with inputs that nobody would write.
//!
//! A [`Target`] is a plain function from bytes to a word about what became of them; it panics if a property does not
//! hold. The [`driver`] mutates a small corpus (`corpus/<target>/`) with a seeded generator, on a thread with the stack
//! of a worker, and watches the memory. That runs on the stable toolchain, for a few seconds in CI and for as long as
//! you like with `cargo xtask fuzz`.
//!
//! The driver is not guided by coverage; it keeps inputs whose outcome was not seen before. With a nightly toolchain the
//! same functions are targets of `cargo fuzz`: `fuzz_target!(|data: &[u8]| { (fuzz::find("json").unwrap().run)(data); });`

pub mod driver;
mod targets;

use std::path::PathBuf;

pub use targets::TARGETS;

/// Something to be tried.
#[derive(Debug)]
pub struct Target {
    pub name: &'static str,
    /// What must hold, whatever the input.
    pub about: &'static str,
    /// Words of the format, which chance would hardly find.
    pub words: &'static [&'static str],
    /// Tries one input and returns what became of it. Panics if a property does not hold.
    pub run: fn(&[u8]) -> String,
}

/// Returns the target of this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Target {
    /// Returns the folder with the inputs to begin with.
    pub fn corpus_dir(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }

    /// Returns the inputs to begin with, in the order of their names.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn corpus(&self) -> std::io::Result<Vec<Vec<u8>>> {
        let mut paths: Vec<PathBuf> = self
            .corpus_dir()
            .read_dir()?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        paths.sort();
        paths.into_iter().map(std::fs::read).collect()
    }
}
