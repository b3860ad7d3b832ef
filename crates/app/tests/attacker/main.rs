//! An attacker in CI: plays a table of attacks against the real binary, under caps on memory and descriptors, while another
//! client has to be served.
//!
//! An attack passes if what it tries is refused or bounded as its function says, the process never ends, its memory stays
//! below the cap, and every request of the bystander is answered as it should be. The table is printed at the end. After
//! an attack that ends the process, a new one is started for the rest.
//!
//! `KARMADA_RS_ATTACKS=patch,csr` plays only attacks whose names contain one of these words.

mod anonymous;
mod definitions;
mod disk;
mod doors;
mod editor;
mod fleet;
mod frames;
mod hostile;
mod neighbours;
mod nobody;
mod plane;
mod rights;
mod stage;
mod table;
mod tenant;
mod wire;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plane::MEMORY_MIB;
use stage::{Stage, Verdict};
use table::{Attack, How, attacks};

/// No attack may keep the test waiting for longer. What the server throttles takes its time on a slow machine.
fn patience() -> Duration {
    testkit::slowed(Duration::from_secs(300))
}

/// What came of an attack.
struct Outcome {
    attack: Attack,
    verdict: Verdict,
    took: Duration,
    memory_mib: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn finding_26_others_are_served_whatever_attackers_do() {
    testkit::install_tls();
    let wanted = std::env::var("KARMADA_RS_ATTACKS").unwrap_or_default();
    let words: Vec<&str> = wanted.split(',').filter(|word| !word.is_empty()).collect();
    let chosen = |attack: &Attack| words.is_empty() || words.iter().any(|word| attack.name.contains(word));
    let (mut shared, mut alone, mut long) = (Vec::new(), Vec::new(), Vec::new());
    for attack in attacks().into_iter().filter(chosen) {
        match attack.how {
            How::Shared(play) => shared.push((attack, play)),
            How::Long(play) => long.push((attack, play)),
            How::Alone(play) => alone.push((attack, play)),
        }
    }
    // What takes long and what has processes of its own is played beside the rest.
    let first = Arc::new(Stage::start().await);
    let beside = futures::future::join_all(long.into_iter().map(|(attack, play)| {
        let stage = first.clone();
        async move { timed(attack, play(&stage)).await }
    }));
    let apart = async {
        let mut outcomes = Vec::new();
        for (attack, play) in alone {
            outcomes.push(timed(attack, play()).await);
        }
        outcomes
    };
    let in_turn = async {
        let mut stage = first.clone();
        let mut outcomes = Vec::new();
        for (attack, play) in shared {
            outcomes.push(play_one(attack, play, &stage).await);
            if !stage.plane.victim.is_alive() {
                stage = Arc::new(Stage::start().await);
            }
        }
        outcomes
    };
    let (mut outcomes, beside, apart) = futures::join!(in_turn, beside, apart);
    outcomes.extend(beside);
    outcomes.extend(apart);
    let failed: Vec<&str> = outcomes
        .iter()
        .filter(|outcome| outcome.verdict.is_err())
        .map(|outcome| outcome.attack.name)
        .collect();
    let _ = std::io::stderr().write_all(shown(&outcomes).as_bytes());
    assert!(failed.is_empty(), "{} of {} attacks succeed: {failed:?}", failed.len(), outcomes.len());
}

async fn timed(attack: Attack, play: impl Future<Output = Verdict>) -> Outcome {
    let began = Instant::now();
    let verdict = guarded(play).await;
    told(attack.name, &verdict);
    Outcome { attack, verdict, took: began.elapsed(), memory_mib: 0 }
}

/// Says at once what came of an attack: the rest may take a while.
fn told(name: &str, verdict: &Verdict) {
    let line = match verdict {
        Ok(_) => format!("withstood  {name}\n"),
        Err(seen) => format!("SUCCEEDED  {name}: {seen}\n"),
    };
    let _ = std::io::stderr().write_all(line.as_bytes());
}

async fn guarded(play: impl Future<Output = Verdict>) -> Verdict {
    let caught = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(play));
    let patience = patience();
    match tokio::time::timeout(patience, caught).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(panic)) => {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
        }
        Err(_) => Err(format!("no end within {patience:?}")),
    }
}

async fn play_one(attack: Attack, play: stage::Play, stage: &Stage) -> Outcome {
    let victim = &stage.plane.victim;
    victim.forget_peak();
    let began = Instant::now();
    let verdict = guarded(play(stage)).await;
    let took = began.elapsed();
    let experience = if victim.is_alive() { Some(stage.bystander.experience().await) } else { None };
    let memory_mib = victim.peak_mib();
    let verdict = match (verdict, experience) {
        _ if !victim.is_alive() => {
            let log = victim.log();
            let last: Vec<&str> = log.lines().rev().take(3).collect();
            Err(format!("the process ended: {}", last.join(" | ")))
        }
        (Err(seen), _) => Err(seen),
        (Ok(_), Some(experience)) if !experience.complaints.is_empty() => {
            Err(format!("the bystander: {}", experience.complaints[0]))
        }
        (Ok(_), _) if memory_mib > MEMORY_MIB => Err(format!("{memory_mib} MiB resident")),
        (Ok(seen), Some(experience)) => {
            Ok(format!("{seen} (others waited {:?} at most)", experience.slowest))
        }
        (Ok(seen), None) => Ok(seen),
    };
    told(attack.name, &verdict);
    Outcome { attack, verdict, took, memory_mib }
}

/// The table that is printed at the end.
fn shown(outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "\n{:<44} {:<24} {:<14} {:>7} {:>9}  {}\n",
        "attack", "finding or CVE", "attacker", "s", "peak MiB", "outcome"
    );
    for outcome in outcomes {
        let (mark, seen) = match &outcome.verdict {
            Ok(seen) => ("withstood", seen),
            Err(seen) => ("SUCCEEDED", seen),
        };
        let seen: String = seen.chars().take(160).collect();
        let Attack { name, reference, actor, expected, .. } = &outcome.attack;
        text += &format!(
            "{name:<44} {reference:<24} {actor:<14} {:>7.1} {:>9}  {mark} (expected: {expected}): {seen}\n",
            outcome.took.as_secs_f32(),
            outcome.memory_mib
        );
    }
    let bad = outcomes.iter().filter(|outcome| outcome.verdict.is_err()).count();
    text + &format!("{} attacks, {bad} succeed\n", outcomes.len())
}

#[test]
fn the_table_is_long_enough_and_every_attack_has_a_name_of_its_own() {
    let all = attacks();
    let names: BTreeSet<&str> = all.iter().map(|attack| attack.name).collect();
    assert_eq!(names.len(), all.len(), "two attacks share a name");
    assert!(all.len() > 130, "{} attacks", all.len());
}
