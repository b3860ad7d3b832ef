//! `cargo xtask ci`: every check that a change must pass, in one command.
//!
//! A check is a [`Step`] in [`steps`]; add yours there. Steps run one after the other, cheapest first, and all of them run even
//! if one fails, so that one run shows everything. Output is passed through as it comes.
//!
//! What can overlap, does: the programs of the real clusters are built by Go in the background, at low priority, while cargo
//! compiles. Everything uses the one dev profile, so dependencies are compiled once for tests and once, without code, for lints and docs.

mod arrows;
mod binaries;
pub(crate) mod fleet;
mod hygiene;
mod limits;
mod panics;

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ::clusters::{LEFT_OUT_VARIABLE, toolchain::PODS_VARIABLE};
use anyhow::{Context as _, Result, bail};

use crate::{
    clusters::PROGRAM,
    dependencies,
    workspace::{Workspace, cargo},
};
use binaries::Conditions;
use fleet::Fleet;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run only these steps, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "STEPS")]
    only: Vec<String>,
    /// Leave these steps out, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "STEPS")]
    skip: Vec<String>,
    /// Look only at these crates, separated by commas. For working on one crate; a change must pass with all.
    #[arg(long, value_delimiter = ',', value_name = "CRATES")]
    package: Vec<String>,
    /// Fail if tests that need real clusters cannot run, instead of leaving them out.
    #[arg(long)]
    require_clusters: bool,
    /// Build what members with real pods need, so that the tests on them run. Without it they run where that was built before, and are
    /// left out elsewhere.
    #[arg(long)]
    pods: bool,
    /// Run the tests so many times, to find those that fail now and then.
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: usize,
    /// In the last so many of these runs, keep every processor busy with something else.
    #[arg(long, value_name = "N", default_value_t = 0)]
    under_load: usize,
    /// Run tests that fail once more, if they are few. Those that pass then are named at the end: each is a bug to mend, in the test or in
    /// what it tests, but not a reason to turn a change away.
    #[arg(long)]
    second_try: bool,
    /// Show the steps and what they check.
    #[arg(long)]
    list: bool,
}

/// One check.
struct Step {
    name: &'static str,
    about: &'static str,
    /// Whether it uses real clusters; then their programs are built while earlier steps run.
    clusters: bool,
    run: fn(&Context) -> Result<()>,
}

/// What came of a step.
type Results<'a> = [(&'a str, Duration, Result<()>)];

/// The checks, in the order in which they run. Put a new one before `doc`, or wherever it fails soonest.
fn steps() -> Vec<Step> {
    let step = |name, about, run| Step { name, about, clusters: false, run };
    vec![
        step("fmt", "the code is formatted (the files listed are not; `cargo fmt` does it)", |context| {
            // Without a selection, `cargo fmt` wants to be told to look at all crates in its own words.
            let scope: &[String] =
                if context.packages.is_empty() { &["--all".to_string()] } else { &context.scope() };
            context.run(cargo().arg("fmt").args(scope).args(["--", "--check", "-l"]))
        }),
        step("arrows", "crates depend only on those they may, and pure crates stay pure", arrows::check),
        step("hygiene", "every source file says what it is for, and none is too long", hygiene::check),
        step("dependencies", "crates of others are welcome, and their licences are told", |context| {
            dependencies::check(&context.workspace)
        }),
        step("clippy", "no lint has anything to say", |context| {
            let deny = ["--all-targets", "--", "--deny", "warnings"];
            context.run(cargo().arg("clippy").args(context.scope()).args(deny))
        }),
        Step { clusters: true, ..step("test", "all tests pass, with real clusters where Go is there", test) },
        step(
            "fuzz",
            "whatever reads bytes from outside holds its properties for a few seconds each",
            |context| {
                if !context.packages.is_empty() && !context.packages.iter().any(|package| package == "fuzz") {
                    return Ok(());
                }
                context.run(crate::fuzz::command(&context.workspace)?.args(["--seconds", "3"]))
            },
        ),
        step("doc", "the documentation builds without a warning", |context| {
            context.run(
                cargo()
                    .arg("doc")
                    .args(context.scope())
                    .args(["--no-deps", "--quiet"])
                    .env("RUSTDOCFLAGS", "--deny warnings"),
            )
        }),
    ]
}

/// What steps share.
struct Context {
    workspace: Workspace,
    /// The crates to look at; none means all.
    packages: Vec<String>,
    programs: fleet::Programs,
    /// Tests that did not run for want of clusters are a failure.
    require_clusters: bool,
    /// What real pods need may be built.
    pods: bool,
    /// How often the tests run.
    repeat: usize,
    /// How many of the last runs have a load beside them.
    under_load: usize,
    /// Tests that fail are run once more.
    second_try: bool,
    /// Tests that passed only then.
    unsteady: RefCell<Vec<String>>,
    /// Those tests, each with what it needs.
    left_out: RefCell<Vec<String>>,
}

impl Context {
    /// Starts clusters, which end with what is returned; None where there is no Go toolchain.
    fn clusters(&self) -> Result<Option<Fleet>> {
        let fleet = Fleet::start(&self.workspace, &self.programs)?;
        if fleet.is_none() && self.require_clusters {
            bail!(
                "--require-clusters: there is no Go toolchain to build clusters with; install Go, or leave the flag \
                 out to run the other tests"
            );
        }
        Ok(fleet)
    }

    /// Returns the arguments by which cargo knows what to look at.
    fn scope(&self) -> Vec<String> {
        if self.packages.is_empty() {
            return vec!["--workspace".to_string()];
        }
        self.packages.iter().flat_map(|package| ["--package".to_string(), package.clone()]).collect()
    }

    fn run(&self, command: &mut Command) -> Result<()> {
        let status = command
            .current_dir(&self.workspace.root)
            .status()
            .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
        if !status.success() {
            bail!("it ended with {status}");
        }
        Ok(())
    }
}

fn test(context: &Context) -> Result<()> {
    // Compile first: clusters that idle meanwhile would only take the compiler's time.
    let mut compile = cargo();
    compile.arg("test").args(context.scope()).current_dir(&context.workspace.root);
    let tests = binaries::build(&mut compile)?;
    if !context.packages.is_empty() {
        // With the whole workspace it is among what was just built.
        context.run(cargo().args(["build", "--workspace", "--bin", PROGRAM]))?;
    }
    let notes = context.workspace.target.join(format!("left-out-{}", std::process::id()));
    let mut environment = vec![(LEFT_OUT_VARIABLE, notes.display().to_string())];
    if context.pods {
        environment.push((PODS_VARIABLE, "1".to_string()));
    }
    if context.packages.is_empty() {
        context.programs.build_karmadactl_meanwhile();
    }
    let logs = context.workspace.target.join(format!("test-logs-{}", std::process::id()));
    let has_library = tests.iter().any(binaries::Binary::is_library);
    let passed = repeated(context.repeat, |number| {
        // Each run has clusters of its own: what one leaves in them, or in their audit logs, does not decide about the next.
        let fleet = context.clusters()?;
        let place = fleet.as_ref().map(|fleet| (fleet::CLUSTERS_VARIABLE, fleet.dir().display().to_string()));
        let environment: Vec<_> = environment.iter().cloned().chain(place).collect();
        let conditions =
            Conditions { environment: &environment, logs: &logs, second_try: context.second_try };
        let busy = number + context.under_load >= context.repeat;
        let _load = busy.then(Load::on_all_processors);
        context.unsteady.borrow_mut().extend(binaries::run(tests.clone(), &conditions)?);
        Ok(())
    });
    // Rustdoc compiles and runs the examples in the documentation; cargo refuses to look for any without a library.
    let examples = match has_library {
        true => context.run(cargo().arg("test").args(context.scope()).args(["--doc", "--quiet"])),
        false => Ok(()),
    };
    let left_out = left_out(&fs::read_to_string(&notes).unwrap_or_default());
    let _ = fs::remove_file(&notes); // there is none where nothing was left out
    context.left_out.replace(left_out);
    passed.and(examples)?;
    let count = demanded(&context.left_out.borrow(), context.pods);
    if context.require_clusters && count > 0 {
        bail!("{count} tests were left out, and --require-clusters is given");
    }
    Ok(())
}

/// Does something so many times, whatever fails, and says how often it did.
fn repeated(count: usize, mut once: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let mut failures = Vec::new();
    for number in 0..count {
        let result = once(number);
        if count > 1 {
            let verdict = if result.is_ok() { "passed" } else { "FAILED" };
            eprintln!("==> run {} of {count} {verdict}", number + 1);
        }
        failures.extend(result.err());
    }
    match failures.pop() {
        None => Ok(()),
        Some(only) if count == 1 => Err(only),
        Some(last) => {
            Err(last.context(format!("{} of {count} runs failed, the last of them", failures.len() + 1)))
        }
    }
}

/// Threads that compute for nothing, until they are dropped.
struct Load {
    ended: Arc<AtomicBool>,
}

impl Load {
    fn on_all_processors() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let ended = ended.clone();
            thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self { ended }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Counts the tests that a run on clusters must not leave out. Those on real pods are demanded by `--pods` alone: what they need takes
/// long to build, and not every machine can run it. Shells do not belong to clusters; where Debian has them, they are fetched.
fn demanded(left_out: &[String], pods: bool) -> usize {
    let spared = |test: &str| {
        let shell = [": needs zsh", ": needs fish"].iter().any(|needs| test.contains(needs));
        shell || (!pods && test.contains(": needs real pods"))
    };
    left_out.iter().filter(|test| !spared(test)).count()
}

/// Reads what tests have noted; each is named once.
fn left_out(notes: &str) -> Vec<String> {
    let lines: BTreeSet<&str> = notes.lines().collect();
    lines.into_iter().map(ToString::to_string).collect()
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let steps = chosen(steps(), &arguments.only, &arguments.skip)?;
    if arguments.list {
        for step in &steps {
            println!("{:<12} {}", step.name, step.about);
        }
        return Ok(());
    }
    let programs = if steps.iter().any(|step| step.clusters) {
        fleet::Programs::build_in_background(arguments.pods)
    } else {
        fleet::Programs::unwanted()
    };
    let context = Context {
        workspace: Workspace::load()?,
        packages: arguments.package.clone(),
        programs,
        require_clusters: arguments.require_clusters,
        pods: arguments.pods,
        repeat: arguments.repeat,
        under_load: arguments.under_load,
        second_try: arguments.second_try,
        unsteady: RefCell::default(),
        left_out: RefCell::default(),
    };
    let started = Instant::now();
    let mut results: Vec<(&str, Duration, Result<()>)> = Vec::new();
    for step in &steps {
        eprintln!("\n==> {}: {}", step.name, step.about);
        let before = Instant::now();
        let result = (step.run)(&context);
        let took = before.elapsed();
        match &result {
            Ok(()) => eprintln!("==> {} passed after {:.1} s", step.name, took.as_secs_f32()),
            Err(error) => eprintln!("==> {} FAILED after {:.1} s: {error:#}", step.name, took.as_secs_f32()),
        }
        results.push((step.name, took, result));
    }
    let (left_out, unsteady) = (context.left_out.take(), context.unsteady.take());
    eprintln!("\n{}", summary(&results, started.elapsed(), &left_out, &unsteady));
    let failed = results.iter().filter(|(_, _, result)| result.is_err()).count();
    if failed > 0 {
        bail!("{failed} of {} steps failed", results.len());
    }
    Ok(())
}

fn chosen(steps: Vec<Step>, only: &[String], skip: &[String]) -> Result<Vec<Step>> {
    let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
    if let Some(unknown) = only.iter().chain(skip).find(|wanted| !names.contains(&wanted.as_str())) {
        bail!("there is no step called {unknown}; there are {}", names.join(", "));
    }
    let wanted = |step: &Step| {
        let named = |list: &[String]| list.iter().any(|name| name == step.name);
        (only.is_empty() || named(only)) && !named(skip)
    };
    Ok(steps.into_iter().filter(wanted).collect())
}

fn summary(results: &Results<'_>, total: Duration, left_out: &[String], unsteady: &[String]) -> String {
    let mut lines: Vec<String> = results
        .iter()
        .map(|(name, took, result)| {
            let verdict = if result.is_ok() { "passed" } else { "FAILED" };
            format!("  {name:<12} {verdict} {:>8.1} s", took.as_secs_f32())
        })
        .collect();
    lines.push(format!("  {:<12}        {:>8.1} s", "total", total.as_secs_f32()));
    if !left_out.is_empty() {
        lines.push(format!("\n  {} tests were LEFT OUT, so this says nothing about:", left_out.len()));
        lines.extend(left_out.iter().map(|test| format!("    {test}")));
    }
    if !unsteady.is_empty() {
        lines.push(format!(
            "\n  {} tests passed ONLY AT THE SECOND TRY; each is a bug to mend:",
            unsteady.len()
        ));
        lines.extend(unsteady.iter().map(|test| format!("    {test}")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str], skip: &[&str]) -> Result<Vec<&'static str>> {
        let strings = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        Ok(chosen(steps(), &strings(only), &strings(skip))?.iter().map(|step| step.name).collect())
    }

    #[test]
    fn steps_run_in_their_order_whatever_the_order_of_the_wish() {
        assert_eq!(names(&["clippy", "fmt"], &[]).expect("known steps"), ["fmt", "clippy"]);
    }

    #[test]
    fn what_fails_in_some_runs_only_is_counted() {
        let mut ran = 0;
        let odd = |number: usize| {
            ran += 1;
            if number % 2 == 1 { bail!("number {number}") } else { Ok(()) }
        };
        let error = format!("{:#}", repeated(4, odd).expect_err("two fail"));
        assert_eq!((ran, error.as_str()), (4, "2 of 4 runs failed, the last of them: number 3"));
        assert!(repeated(3, |_| Ok(())).is_ok());
    }

    #[test]
    fn steps_can_be_left_out() {
        let left = names(&[], &["test", "doc"]).expect("known steps");
        assert!(left.contains(&"fmt") && !left.contains(&"test") && !left.contains(&"doc"));
    }

    #[test]
    fn an_unknown_step_is_an_error_that_names_the_known_ones() {
        let error = names(&["typo"], &[]).expect_err("there is none").to_string();
        assert!(error.contains("typo") && error.contains("clippy"), "{error}");
    }

    #[test]
    fn the_summary_tells_failure_from_success() {
        let results = [
            ("fmt", Duration::from_secs(1), Ok(())),
            ("test", Duration::from_secs(2), Err(anyhow::anyhow!("x"))),
        ];
        assert_eq!(
            summary(&results, Duration::from_secs(3), &[], &[]),
            "  fmt          passed      1.0 s\n  test         FAILED      2.0 s\n  total                    3.0 s"
        );
    }

    #[test]
    fn real_pods_are_demanded_only_where_they_are_asked_for_and_shells_nowhere() {
        let noted =
            left_out("a: needs real pods, and they need root\nb: needs Go\nc: needs zsh, from Debian\n");
        assert_eq!((demanded(&noted, false), demanded(&noted, true)), (1, 2));
    }

    #[test]
    fn tests_that_need_a_second_try_are_named_in_the_summary() {
        let passed = [("test", Duration::from_secs(1), Ok(()))];
        let told = summary(&passed, Duration::from_secs(1), &[], &["app/propagation: a::b".to_string()]);
        assert!(
            told.contains("1 tests passed ONLY AT") && told.ends_with("    app/propagation: a::b"),
            "{told}"
        );
    }

    #[test]
    fn tests_that_were_left_out_are_counted_and_named_in_the_summary() {
        let noted = left_out("b::two: needs Go\na::one: needs kubectl\nb::two: needs Go\n");
        assert_eq!(noted, ["a::one: needs kubectl", "b::two: needs Go"]);
        let told = summary(&[("test", Duration::from_secs(1), Ok(()))], Duration::from_secs(1), &noted, &[]);
        assert!(told.contains("2 tests were LEFT OUT") && told.ends_with("    b::two: needs Go"), "{told}");
    }

    #[test]
    fn clusters_that_are_required_and_cannot_be_had_are_a_failure() {
        let context = |require_clusters| Context {
            workspace: Workspace { root: ".".into(), target: ".".into(), crates: Vec::new() },
            packages: Vec::new(),
            programs: fleet::Programs::unwanted(),
            require_clusters,
            pods: false,
            repeat: 1,
            under_load: 0,
            second_try: false,
            unsteady: RefCell::default(),
            left_out: RefCell::default(),
        };
        assert!(context(false).clusters().expect("nothing fails").is_none());
        let error = context(true).clusters().err().expect("there are none").to_string();
        assert!(error.contains("--require-clusters"), "{error}");
    }
}
