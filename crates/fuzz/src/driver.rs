//! The loop: mutate, run, look at what happened.
//!
//! In: a target, a seed, how long. Out: how many inputs were tried, or the first input that broke a property. An input
//! that ends the whole process (a stack overflow, no memory) is found in the file that was written before it ran.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::Target;

/// No input is longer: what a few KiB do not show, a few MiB hardly will.
const MAX_INPUT: usize = 64 * 1024;
/// What all inputs together may add to the peak of the process. A reader may need a hundred times its input, which is
/// 6 MiB; tables that are unpacked at their first use need some tens.
const MAX_MEMORY_KIB: u64 = 256 * 1024;
/// As much stack as a worker of the server has.
const STACK: usize = 2 * 1024 * 1024;
/// An input that takes this long counts as one that never ends, even on a busy machine.
const HANGS: Duration = Duration::from_secs(60);
/// No more inputs are kept to be mutated further.
const MAX_KEPT: usize = 2_000;

/// What to do.
#[derive(Debug, Clone)]
pub struct Options {
    pub seconds: u64,
    pub seed: u64,
    /// Where the input of the moment and those that break something are written.
    pub findings: PathBuf,
}

/// Runs a target for a while; returns the number of inputs.
///
/// # Errors
/// If an input breaks a property; the error tells where it was written.
pub fn run(target: &'static Target, options: &Options) -> Result<u64> {
    std::fs::create_dir_all(&options.findings)
        .with_context(|| format!("cannot create {}", options.findings.display()))?;
    let began = Arc::new(AtomicU64::new(0));
    let clock = Instant::now();
    let worker = {
        let (began, options) = (began.clone(), options.clone());
        std::thread::Builder::new()
            .name(target.name.to_owned())
            .stack_size(STACK)
            .spawn(move || work(target, &options, clock, &began))
            .context("cannot start a thread")?
    };
    while !worker.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
        let began = Duration::from_millis(began.load(Ordering::Relaxed));
        if clock.elapsed().saturating_sub(began) > HANGS {
            bail!(
                "{} does not come to an end with the input in {}",
                target.name,
                current(target, &options.findings).display()
            );
        }
    }
    worker.join().map_err(|cause| anyhow!("the driver itself failed: {}", told(&*cause)))?
}

fn current(target: &Target, findings: &Path) -> PathBuf {
    findings.join(format!("{}.current", target.name))
}

fn work(target: &Target, options: &Options, clock: Instant, began: &AtomicU64) -> Result<u64> {
    let current = current(target, &options.findings);
    let corpus = target.corpus().with_context(|| format!("{} has no corpus", target.name))?;
    let mut random = Random(options.seed);
    let mut kept = corpus.clone();
    let mut outcomes = BTreeSet::new();
    let mut tried = 0;
    let mut peak = None;
    while tried < corpus.len() as u64 || clock.elapsed() < Duration::from_secs(options.seconds) {
        // The corpus itself comes first.
        let input = match corpus.get(usize::try_from(tried).unwrap_or(usize::MAX)) {
            Some(input) => input.clone(),
            None => mutated(&kept, target.words, &mut random),
        };
        std::fs::write(&current, &input).with_context(|| format!("cannot write {}", current.display()))?;
        began.store(u64::try_from(clock.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
        tried += 1;
        let keep = |why: String| {
            let path = options.findings.join(format!("{}-{}", target.name, api::names::hash(&input)));
            let saved = std::fs::write(&path, &input).map(|()| path);
            anyhow!("{}: {why}\nthe input is in {}", target.name, saved.unwrap_or(current.clone()).display())
        };
        match outcome {
            Ok(outcome) => {
                if kept.len() < MAX_KEPT && outcomes.insert(shape(&outcome)) {
                    kept.push(input.clone());
                }
            }
            Err(cause) => return Err(keep(told(&*cause))),
        }
        if let Some(now) = peak_kib() {
            // The first inputs unpack what is needed for all.
            let before = if tried <= corpus.len() as u64 { now } else { peak.unwrap_or(now) };
            peak = Some(before);
            if now > before + MAX_MEMORY_KIB {
                return Err(keep(format!("the memory grew by {} MiB", (now - before) / 1024)));
            }
        }
    }
    std::fs::remove_file(&current).with_context(|| format!("cannot remove {}", current.display()))?;
    Ok(tried)
}

fn told(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().cloned();
    text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Returns an outcome without what differs from input to input: digits and what is quoted.
fn shape(outcome: &str) -> String {
    let mut quoted = false;
    let mut shape = String::new();
    for character in outcome.chars().take(300) {
        match character {
            '"' | '\'' | '`' => quoted = !quoted,
            '0'..='9' => {}
            other if !quoted => shape.push(other),
            _ => {}
        }
    }
    shape
}

/// Returns the largest memory that the process has ever had, where the system tells.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// Splitmix64: small, seeded, good enough.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`; 0 if there is none.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end.max(1) as u64)).unwrap_or(0)
    }

    fn one_of<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        let index = self.below(list.len());
        list.get(index)
    }
}

/// Returns a changed copy of one of the inputs.
fn mutated(kept: &[Vec<u8>], words: &[&str], random: &mut Random) -> Vec<u8> {
    let mut input = random.one_of(kept).cloned().unwrap_or_default();
    for _ in 0..=random.below(6) {
        let length = input.len();
        let start = random.below(length + 1);
        let end = (start + random.below(1 + (length - start).min(64))).min(length);
        match random.below(10) {
            0 if start < length => input[start] ^= 1 << random.below(8),
            1 if start < length => input[start] = random.next() as u8,
            2 => input.insert(start, random.next() as u8),
            3 => drop(input.drain(start..end)),
            4 => {
                // The same again, up to many times: depth and size.
                let piece: Vec<u8> = input[start..end].to_vec();
                let most = if random.below(4) == 0 { 500 } else { 3 };
                let times = 1 + random.below(most);
                let more = piece.repeat(times);
                input.splice(start..start, more);
            }
            5 => {
                let other = random.one_of(kept).cloned().unwrap_or_default();
                let from = random.below(other.len() + 1);
                let to = (from + random.below(256)).min(other.len());
                input.splice(start..end, other[from..to].iter().copied());
            }
            6 | 7 => {
                let word = random.one_of(words).copied().unwrap_or_default();
                let times = if random.below(8) == 0 { 1 + random.below(300) } else { 1 };
                input.splice(start..start, word.repeat(times).into_bytes());
            }
            8 => {
                let numbers: [&str; 8] =
                    ["0", "-1", "255", "65536", "2147483648", "9223372036854775807", "1e308", "0.1"];
                let number = random.one_of(&numbers).copied().unwrap_or_default();
                input.splice(start..end, number.bytes());
            }
            _ => input.truncate(start.max(length / 2)),
        }
        input.truncate(MAX_INPUT);
    }
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests run side by side: each has a folder of its own.
    fn options(test: &str) -> Options {
        let findings = std::env::temp_dir().join(format!("fuzz-driver-{test}-{}", std::process::id()));
        Options { seconds: 30, seed: 7, findings }
    }

    #[test]
    fn the_driver_finds_what_is_broken_and_keeps_the_input() {
        static BROKEN: Target = Target {
            name: "json",
            about: "no input has two brackets in a row",
            words: &["[["],
            run: |input| {
                assert!(!input.windows(2).any(|pair| pair == b"[["), "two brackets");
                String::new()
            },
        };
        let error = run(&BROKEN, &options("broken")).unwrap_err().to_string();
        assert!(error.contains("two brackets"), "{error}");
        let path = error.rsplit_once(" in ").unwrap().1;
        assert!(std::fs::read(path).unwrap().windows(2).any(|pair| pair == b"[["));
    }

    #[test]
    fn memory_that_grows_without_reason_is_found() {
        static GREEDY: Target = Target {
            name: "json",
            about: "inputs with a bracket cost little",
            words: &["greedy"],
            run: |input| {
                if input.windows(6).any(|word| word == b"greedy") {
                    return vec![b'x'; 400 * 1024 * 1024].len().to_string();
                }
                String::new()
            },
        };
        // Only where the system tells how much memory there was.
        if peak_kib().is_some() {
            let error = run(&GREEDY, &options("greedy")).unwrap_err().to_string();
            assert!(error.contains("the memory grew"), "{error}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_inputs() {
        let kept = vec![b"{\"a\": [1, 2]}".to_vec()];
        let inputs = |seed| {
            let mut random = Random(seed);
            (0..50).map(|_| mutated(&kept, &["["], &mut random)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
    }
}
