//! What a run of one Go test came to, read from its log.

use std::fmt;

/// How one test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) package: &'static str,
    pub(super) test: String,
    pub(super) verdict: Verdict,
    /// Why it failed or was left out; which of its cases were left out if it passed.
    pub(super) reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    Failed,
    LeftOut,
}

impl Verdict {
    /// Its place in a row of counts.
    pub(super) fn column(self) -> usize {
        match self {
            Self::Passed => 0,
            Self::Failed => 1,
            Self::LeftOut => 2,
        }
    }
}

impl Outcome {
    pub(super) fn left_out(package: &'static str, test: &str, reason: &str) -> Self {
        Self { package, test: test.to_string(), verdict: Verdict::LeftOut, reason: reason.to_string() }
    }

    pub(super) fn failed(package: &'static str, test: &str, reason: String) -> Self {
        Self { package, test: test.to_string(), verdict: Verdict::Failed, reason }
    }

    /// Reads the log of `go test -v` for one test. A test all of whose cases leave themselves out was left out itself.
    pub(super) fn read(package: &'static str, test: &str, log: &str) -> Self {
        let ended = |word: &'static str| {
            log.lines().filter_map(move |line| {
                let rest = line.trim_start().strip_prefix("--- ")?.strip_prefix(word)?.strip_prefix(": ")?;
                Some(name(rest))
            })
        };
        let top = |word: &'static str| ended(word).any(|name| name == test);
        let cases = |word: &'static str| ended(word).filter(|name| name.contains('/')).count();
        let reason =
            log.lines().find_map(|line| line.split_once("left out: ")).map(|(_, reason)| reason.trim());
        let (passed, skipped) = (cases("PASS"), cases("SKIP"));
        if top("PASS") && skipped > 0 && passed == 0 {
            return Self::left_out(package, test, reason.unwrap_or("every case skips itself"));
        }
        if top("PASS") {
            let reason = match skipped {
                0 => String::new(),
                _ => format!("{skipped} cases left out: {}", reason.unwrap_or("they skip themselves")),
            };
            return Self { package, test: test.to_string(), verdict: Verdict::Passed, reason };
        }
        if top("SKIP") {
            return Self::left_out(package, test, reason.unwrap_or("skips itself"));
        }
        let failures: Vec<&str> = ended("FAIL").filter(|name| name.contains('/')).collect();
        let first = log
            .lines()
            .find(|line| line.starts_with("panic:"))
            .or_else(|| log.lines().find(|line| is_complaint(line)))
            .map_or("no reason given", str::trim);
        let reason = match failures.len() {
            0 => first.to_string(),
            count => format!("{count} of {} cases; first: {first}", count + passed),
        };
        Self::failed(package, test, reason)
    }
}

/// `TestA/case (0.01s)` without its time.
fn name(rest: &str) -> &str {
    rest.rsplit_once(" (").map_or(rest, |(name, _)| name)
}

/// A line such as `    apply_test.go:12: unexpected error`, as tests write them; chatter of the frame looks otherwise.
fn is_complaint(line: &str) -> bool {
    let line = line.trim_start();
    line.split_once(": ").is_some_and(|(place, _)| {
        place
            .split_once("_test.go:")
            .is_some_and(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.verdict {
            Verdict::Passed => "passed  ",
            Verdict::Failed => "failed  ",
            Verdict::LeftOut => "left out",
        };
        write!(f, "{word}  {} {}", super::short(self.package), self.test)?;
        if !self.reason.is_empty() {
            write!(f, ": {}", self.reason)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(log: &str, verdict: Verdict, reason: &str) {
        let outcome = Outcome::read("p", "TestA", log);
        assert_eq!((outcome.verdict, outcome.reason.as_str()), (verdict, reason));
    }

    #[test]
    fn a_test_that_passed_has_no_reason() {
        check("=== RUN   TestA\n--- PASS: TestA (0.50s)\nPASS\n", Verdict::Passed, "");
    }

    #[test]
    fn a_failure_is_told_by_its_first_complaint_and_its_cases() {
        check(
            "=== RUN   TestA\n    a_test.go:7: no such thing\n--- FAIL: TestA (0.50s)\n    --- FAIL: TestA/x (0.1s)\n    --- PASS: TestA/y (0.1s)\n",
            Verdict::Failed,
            "1 of 2 cases; first: a_test.go:7: no such thing",
        );
    }

    #[test]
    fn a_panic_is_a_failure() {
        check("=== RUN   TestA\npanic: nil map\n", Verdict::Failed, "panic: nil map");
    }

    #[test]
    fn who_leaves_itself_out_says_why() {
        check(
            "    a.go:1: left out: feature gate X=true\n--- SKIP: TestA (0.00s)\n",
            Verdict::LeftOut,
            "feature gate X=true",
        );
        check(
            "    a.go:1: left out: feature gate X=true\n--- PASS: TestA (0.00s)\n    --- SKIP: TestA/x (0.0s)\n",
            Verdict::LeftOut,
            "feature gate X=true",
        );
    }
}
