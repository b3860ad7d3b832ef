//! Simulated members by the dozen: what one more of them costs.

use testkit::Process;

/// What an additional empty member may take, in kilobytes.
const LIMIT: u64 = 3 * 1024;
const MANY: u64 = 20;

/// Starts simulated clusters without nodes; returns the kilobytes in memory once they answer.
fn memory_of(clusters: u64) -> u64 {
    let dir = tempfile::tempdir().expect("a folder for the test");
    let data = dir.path().join("sim").display().to_string();
    let count = clusters.to_string();
    let process = Process::start(
        env!("CARGO_BIN_EXE_karmada"),
        &["sim", "--data-dir", &data, "--clusters", &count, "--nodes", "0"],
        "ready",
    );
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn an_empty_member_more_costs_less_than_three_megabytes() {
    let (one, many) = (memory_of(1), memory_of(1 + MANY));
    let each = many.saturating_sub(one) / MANY;
    assert!(
        each <= LIMIT,
        "{each} KB for each of {MANY} further members ({one} KB with one, {many} KB with all)"
    );
}
