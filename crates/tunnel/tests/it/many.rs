//! Several hundred tunnels into one control plane: what they cost while nothing happens. Run by hand; both ends are in this
//! process, so that the control plane's share is about half of what is printed.

use std::time::Duration;

use futures::StreamExt as _;
use testkit::until_true;
use tunnel::Limits;

use crate::stage::{Member, Stage, jane, soon};

const TUNNELS: usize = 300;

/// Returns a field of the status of this process, in kilobytes.
fn kilobytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
}

/// Returns the processor time of this process, in hundredths of a second.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; see the head of the file"]
async fn three_hundred_tunnels_are_open_at_once() {
    let member = Member::default();
    let address = member.clone().serve().await;
    let stage = Stage::empty(Limits::default(), address, member).await;
    let before = kilobytes("VmRSS:");
    let names: Vec<String> = (0..TUNNELS).map(|number| format!("m{number}")).collect();
    for name in &names {
        stage.agent_of(name);
    }
    until_true("all tunnels are open", || names.iter().all(|name| stage.tunnels.is_open(name))).await;
    let open = kilobytes("VmRSS:");
    let asking = names.iter().map(|name| {
        let client = stage.tunnels.through(name).client();
        async move { soon("an answer", client.send(jane("/echo"))).await.unwrap() }
    });
    futures::stream::iter(asking).buffer_unordered(50).collect::<Vec<_>>().await;
    let asked = kilobytes("VmRSS:");
    let started = ticks();
    tokio::time::sleep(Duration::from_secs(20)).await;
    println!(
        "{TUNNELS} tunnels, both ends: {} KB each, {} KB each after a request; {} ms of processor time in 20 s of rest",
        (open - before) / TUNNELS as u64,
        (asked - before) / TUNNELS as u64,
        (ticks() - started) * 10
    );
    assert!(names.iter().all(|name| stage.tunnels.is_open(name)));
}
