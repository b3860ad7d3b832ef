//! What goes wrong, and when: a schedule that follows from a seed.

use std::time::Duration;

use clusters::Network;
use testkit::history::Dice;

use super::SERVERS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    KillServer(usize),
    /// Told to end, as in a rolling restart.
    EndServer(usize),
    FreezeServer(usize),
    /// No etcd is reached.
    CutServer(usize, Network),
    /// One etcd is not reached.
    CutWay(usize, usize, Network),
    KillEtcd(usize),
    FreezeEtcd(usize),
    /// An etcd does not reach the others; servers reach them all.
    CutEtcd(usize, Network),
    /// Two etcds do not reach each other, and both reach this one.
    CutOthers(usize, Network),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Begin(Fault),
    End(Fault),
}

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::KillServer(_) => "server killed",
            Self::EndServer(_) => "server ended",
            Self::FreezeServer(_) => "server frozen",
            Self::CutServer(_, Network::Slow { .. }) => "server far from etcd",
            Self::CutServer(..) => "server cut off",
            Self::CutWay(..) => "one etcd out of reach",
            Self::KillEtcd(_) => "etcd killed",
            Self::FreezeEtcd(_) => "etcd frozen",
            Self::CutEtcd(_, Network::Slow { .. }) => "etcd far from the others",
            Self::CutEtcd(..) => "etcd cut off from the others",
            Self::CutOthers(..) => "two etcds cut off from each other",
        }
    }

    /// What it happens to: only one thing at a time happens to each.
    fn targets(self) -> Vec<usize> {
        match self {
            Self::KillServer(at) | Self::EndServer(at) | Self::FreezeServer(at) => vec![at],
            Self::CutServer(at, _) | Self::CutWay(at, ..) => vec![SERVERS + at],
            Self::KillEtcd(at) | Self::FreezeEtcd(at) => vec![2 * SERVERS + at],
            // The network between two etcds has the number of the third.
            Self::CutEtcd(at, _) => others(at).map(|other| 3 * SERVERS + other).to_vec(),
            Self::CutOthers(at, _) => vec![3 * SERVERS + at],
        }
    }

    /// Between which etcds the network changes, and how.
    pub(super) fn between_etcds(self) -> Option<(Vec<(usize, usize)>, Network)> {
        match self {
            Self::CutEtcd(at, network) => Some((others(at).map(|other| (at, other)).to_vec(), network)),
            Self::CutOthers(at, network) => Some((vec![others(at).into()], network)),
            _ => None,
        }
    }
}

/// The other two of three.
fn others(at: usize) -> [usize; 2] {
    [(at + 1) % SERVERS, (at + 2) % SERVERS]
}

/// Returns what begins and ends when; at the end of the time everything has ended.
pub(super) fn schedule(seed: u64, round: u64, length: Duration) -> Vec<(Duration, Act)> {
    let mut dice = Dice::new(&[seed, round, 0]);
    let length = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let mut busy = [0; 4 * SERVERS];
    let mut acts = Vec::new();
    let mut now = 300;
    while now + 1_000 < length {
        let fault = fault(&mut dice);
        // Some last long enough for leases, pings and compactions to pass.
        let lasts = if dice.below(4) == 0 { 4_000 + dice.below(10_000) } else { 200 + dice.below(3_000) };
        let until = (now + lasts).min(length);
        if fault.targets().iter().all(|target| busy[*target] < now) {
            for target in fault.targets() {
                busy[target] = until;
            }
            acts.push((now, Act::Begin(fault)));
            acts.push((until, Act::End(fault)));
        }
        now += 300 + dice.below(2_000);
    }
    acts.sort_by_key(|(at, _)| *at);
    acts.into_iter().map(|(at, act)| (Duration::from_millis(at), act)).collect()
}

fn fault(dice: &mut Dice) -> Fault {
    let one = |dice: &mut Dice| usize::try_from(dice.below(SERVERS as u64)).unwrap_or(0);
    let at = one(dice);
    let network = match dice.below(2) {
        0 => Network::Refuse,
        _ => Network::Blackhole,
    };
    match dice.below(21) {
        0 | 1 => Fault::KillServer(at),
        2 => Fault::EndServer(at),
        3 | 4 => Fault::FreezeServer(at),
        5 | 6 => Fault::CutServer(at, network),
        7 => Fault::CutServer(at, Network::Slow { delay_ms: 20 + dice.below(200) }),
        8 | 9 => Fault::CutWay(at, one(dice), network),
        10..13 => Fault::KillEtcd(at),
        13..16 => Fault::FreezeEtcd(at),
        16 | 17 => Fault::CutEtcd(at, network),
        18 => Fault::CutEtcd(at, Network::Slow { delay_ms: 20 + dice.below(200) }),
        _ => Fault::CutOthers(at, network),
    }
}

#[test]
fn a_seed_is_a_schedule_and_everything_ends() {
    let length = Duration::from_secs(60);
    for seed in 0..50 {
        let acts = schedule(seed, 3, length);
        assert_eq!(acts, schedule(seed, 3, length));
        assert!(acts.len() > 10 && acts.iter().all(|(at, _)| *at <= length));
        let begun = acts.iter().filter(|(_, act)| matches!(act, Act::Begin(_))).count();
        assert_eq!(2 * begun, acts.len());
    }
    assert_ne!(schedule(1, 3, length), schedule(1, 4, length));
}

#[test]
fn the_round_in_ci_cuts_etcds_off_from_each_other() {
    let acts = schedule(super::SEED, 0, super::SHORT);
    let cuts =
        acts.iter().filter(|(_, act)| matches!(act, Act::Begin(fault) if fault.between_etcds().is_some()));
    assert!(cuts.count() >= 1, "take another seed: {acts:#?}");
}
