//! Which servers an agent has tunnels to, and when it asks for the next one.
//!
//! Whoever comes through a balancer cannot choose among the servers behind it. So the agent asks again and again until it has
//! met every server that there is: greetings name them all, each answer says whose it is, and a server to which the agent has
//! a tunnel takes no second one. An agent that needs nothing asks nobody: with one server, that is always.
//!
//! Pauses grow with failures (nobody answers, a tunnel ends at once) and with answers of servers that are known already, which
//! say nothing about those that are not. Pure: time and chance are arguments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::servers::{MOST, Names};

/// The pause after the first failure, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The pause after the control plane said that it will not have a tunnel: that changes when somebody changes something.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Without a failure for so long, all is well again. Longer than the longest pause.
const WELL: Duration = Duration::from_secs(60);
/// All agents hear of a new server at the same moment; within this time they come to it.
const GATHERING: Duration = Duration::from_secs(1);
/// So many answers for each server ought to have been enough to meet every one of them: by chance, one of three stays away
/// once in 17,000 times.
const OUGHT: u32 = 8;

/// How a tunnel ends.
#[derive(Default, Clone, Debug)]
pub(crate) struct Ending {
    /// It shall take no new streams.
    pub(crate) farewell: CancellationToken,
    /// It has ended.
    pub(crate) over: CancellationToken,
}

/// What the server at the other end of a tunnel says about all servers.
#[derive(Default, Clone, Debug)]
pub(crate) struct Told {
    names: Arc<Mutex<Names>>,
    news: Arc<Notify>,
}

impl Told {
    /// `news` is told when something changes.
    pub(crate) fn new(news: &Arc<Notify>) -> Self {
        Self { names: Arc::default(), news: news.clone() }
    }

    pub(crate) fn set(&self, names: Names) {
        let mut known = self.names.lock();
        if *known != names {
            *known = names;
            self.news.notify_one();
        }
    }
}

/// A tunnel to one server.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) ending: Ending,
    pub(crate) told: Told,
    /// When another one takes its place.
    pub(crate) renewal: Instant,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Ask,
    /// Nothing before this moment, unless something happens.
    Rest(Option<Instant>),
}

/// Why there is no further tunnel after asking for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missed {
    /// A server answered to which there is a tunnel.
    Known,
    Refused,
    Failed,
}

/// The tunnels of an agent, by server. The one to a server that does not say who it is has no name.
#[derive(Debug)]
pub(crate) struct Roster {
    tunnels: BTreeMap<String, Kept>,
    /// The servers that there were when somebody looked last.
    known: Names,
    failures: u32,
    failed: Option<Instant>,
    /// Answers of known servers since the last one that helped.
    misses: u32,
    not_before: Instant,
}

impl Roster {
    pub(crate) fn new(now: Instant) -> Self {
        let (tunnels, known) = (BTreeMap::new(), Names::new());
        Self { tunnels, known, failures: 0, failed: None, misses: 0, not_before: now }
    }

    /// Returns how many servers have a tunnel, and how many there are.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.tunnels.len(), self.tunnels.len().saturating_add(self.missing().count()))
    }

    /// Returns the servers that no tunnel is wanted to: there is one, and it is not to be renewed yet.
    pub(crate) fn held(&self, now: Instant) -> Names {
        let held = self.tunnels.iter().filter(|(_, kept)| now < kept.renewal);
        held.map(|(name, _)| name.clone()).filter(|name| !name.is_empty()).collect()
    }

    /// Says what to do now.
    pub(crate) fn next(&mut self, now: Instant, chance: f64) -> Next {
        let wanted = self.wanted();
        if wanted.difference(&self.known).any(|name| !self.tunnels.contains_key(name)) {
            self.misses = 0;
            let soon = after(now, spread(GATHERING, chance));
            self.not_before = if self.not_before > now { self.not_before.min(soon) } else { soon };
        }
        self.known = wanted;
        let room = self.tunnels.len() < MOST;
        let renewal = self.tunnels.values().map(|kept| kept.renewal).min();
        let needed = self.tunnels.is_empty()
            || room && self.missing().next().is_some()
            || renewal.is_some_and(|renewal| renewal <= now);
        match needed {
            true if self.not_before <= now => Next::Ask,
            true => Next::Rest(Some(self.not_before)),
            false => {
                self.misses = 0;
                Next::Rest(renewal)
            }
        }
    }

    /// Enters a tunnel that has been opened; returns the one whose place it takes.
    pub(crate) fn opened(&mut self, server: String, kept: Kept, now: Instant, chance: f64) -> Option<Kept> {
        let due = self.tunnels.get(&server).map(|old| old.renewal <= now);
        let wanted = self.tunnels.is_empty() || due.unwrap_or_else(|| self.known.contains(&server));
        let old = self.tunnels.insert(server, kept);
        if wanted {
            self.misses = 0;
            self.not_before = now;
        } else {
            self.missed(Missed::Known, now, chance);
        }
        old
    }

    /// Notes that asking brought no tunnel. Says whether it is time to wonder why some servers are never met.
    pub(crate) fn missed(&mut self, why: Missed, now: Instant, chance: f64) -> bool {
        if why == Missed::Known {
            let servers = u32::try_from(self.known.len().max(1)).unwrap_or(u32::MAX);
            let rounds = self.misses.checked_div(servers).unwrap_or(0);
            self.misses = self.misses.saturating_add(1);
            self.not_before = after(now, pause(rounds.saturating_add(1), chance));
            return self.misses == servers.saturating_mul(OUGHT);
        }
        if self.failed.is_some_and(|failed| now.saturating_duration_since(failed) > WELL) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.failed = Some(now);
        let time = match why {
            Missed::Refused => spread(REFUSED_PAUSE, chance),
            _ => pause(self.failures, chance),
        };
        self.not_before = after(now, time);
        false
    }

    /// Forgets tunnels that have ended; returns their servers.
    pub(crate) fn reap(&mut self, now: Instant, chance: f64) -> Vec<String> {
        let over = self.tunnels.extract_if(.., |_, kept| kept.ending.over.is_cancelled());
        let ended: Vec<String> = over.map(|(server, _)| server).collect();
        if !ended.is_empty() {
            self.missed(Missed::Failed, now, chance);
        }
        ended
    }

    /// Returns the servers that there are and to which there is no tunnel.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &String> {
        self.known.iter().filter(|name| !self.tunnels.contains_key(*name))
    }

    /// Returns all servers that any of them knows of.
    fn wanted(&self) -> Names {
        let mut wanted = Names::new();
        for kept in self.tunnels.values() {
            wanted.extend(kept.told.names.lock().iter().cloned());
        }
        wanted.into_iter().take(MOST).collect()
    }
}

/// Returns how long to wait after so many failures in a row: doubled each time, and between half and all of it by chance.
fn pause(failures: u32, chance: f64) -> Duration {
    let doubled = 2_u32.checked_pow(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    spread(FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE), chance)
}

/// Returns between half and all of a time.
pub(crate) fn spread(time: Duration, chance: f64) -> Duration {
    time.mul_f64(chance.clamp(0.0, 1.0).mul_add(0.5, 0.5))
}

pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    now.checked_add(time).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const SECOND: Duration = Duration::from_secs(1);

    /// A tunnel whose server knows of these.
    fn kept(now: Instant, names: &[&str]) -> Kept {
        let told = Told::default();
        told.set(names.iter().map(|&name| name.to_owned()).collect());
        Kept { ending: Ending::default(), told, renewal: now + HOUR }
    }

    fn open(roster: &mut Roster, now: Instant, server: &str, names: &[&str]) {
        assert!(roster.opened(server.to_owned(), kept(now, names), now, 1.0).is_none());
    }

    /// Asks until nothing is left to be done, with answers of these servers; returns the time that it took and the number of questions.
    fn gather(
        roster: &mut Roster,
        mut now: Instant,
        all: &[&str],
        mut answers: impl Iterator<Item = usize>,
    ) -> (Duration, usize) {
        let (began, mut asked) = (now, 0);
        loop {
            match roster.next(now, 1.0) {
                Next::Ask => {
                    asked += 1;
                    let server = all[answers.next().expect("it is enough")];
                    if roster.held(now).contains(server) {
                        roster.missed(Missed::Known, now, 1.0);
                    } else {
                        roster.opened(server.to_owned(), kept(now, all), now, 1.0);
                    }
                }
                Next::Rest(Some(until)) if until < now + HOUR / 2 => now = until,
                Next::Rest(_) => return (now - began, asked),
            }
        }
    }

    #[test]
    fn pauses_grow_and_differ_by_chance() {
        assert_eq!(pause(1, 1.0), Duration::from_millis(500));
        assert_eq!(pause(1, 0.0), Duration::from_millis(250));
        assert_eq!(pause(4, 1.0), Duration::from_secs(4));
        for many in [8, 33, u32::MAX] {
            assert_eq!(pause(many, 1.0), LONGEST_PAUSE, "{many}");
            assert_eq!(pause(many, 0.0), LONGEST_PAUSE / 2, "{many}");
        }
    }

    #[test]
    fn one_server_is_asked_once_whether_it_has_a_name_or_not() {
        for (server, names) in [("", &[][..]), ("a", &["a"])] {
            let now = Instant::now();
            let mut roster = Roster::new(now);
            assert_eq!(roster.next(now, 1.0), Next::Ask);
            open(&mut roster, now, server, names);
            assert_eq!(roster.next(now, 1.0), Next::Rest(Some(now + HOUR)));
            assert_eq!(roster.count(), (1, 1));
            // Until it is time to renew it.
            let later = now + HOUR;
            assert_eq!((roster.next(later, 1.0), roster.held(later).len()), (Next::Ask, 0));
            assert!(roster.opened(server.to_owned(), kept(later, names), later, 1.0).is_some());
            assert_eq!(roster.next(later, 1.0), Next::Rest(Some(later + HOUR)));
        }
    }

    #[test]
    fn all_servers_are_met_soon_by_chance_or_in_turn() {
        let all = ["a", "b", "c"];
        let now = Instant::now();
        let mut roster = Roster::new(now);
        let (time, asked) = gather(&mut roster, now, &all, 0..3);
        assert_eq!((asked, roster.count()), (3, (3, 3)));
        assert!(time <= GATHERING, "{time:?}");
        // Nine misses in between: three rounds.
        let mut roster = Roster::new(now);
        let (time, asked) = gather(&mut roster, now, &all, [0, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0, 2].into_iter());
        assert_eq!((asked, roster.count()), (12, (3, 3)));
        assert!(time < 10 * SECOND, "{time:?}");
    }

    #[test]
    fn a_server_that_is_never_met_is_asked_for_at_leisure_and_wondered_about_once() {
        let mut now = Instant::now();
        let mut roster = Roster::new(now);
        open(&mut roster, now, "a", &["a", "b"]);
        let (mut asked, mut wondered, began) = (0, 0, now);
        while now < began + HOUR / 2 {
            match roster.next(now, 0.0) {
                Next::Ask => {
                    asked += 1;
                    wondered += usize::from(roster.missed(Missed::Known, now, 0.0));
                }
                Next::Rest(until) => now = until.expect("a moment"),
            }
        }
        // At most every 15 seconds, once the pauses have grown.
        assert!((100..140).contains(&asked), "{asked}");
        assert_eq!(wondered, 1);
        assert_eq!(roster.missing().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn a_new_server_is_asked_for_within_a_moment_and_one_that_has_gone_no_more() {
        let now = Instant::now();
        let mut roster = Roster::new(now);
        gather(&mut roster, now, &["a", "b"], 0..2);
        let later = now + 60 * SECOND;
        assert_eq!(roster.next(later, 1.0), Next::Rest(Some(now + HOUR)));
        let tell = |roster: &Roster, names: &[&str]| {
            for kept in roster.tunnels.values() {
                kept.told.set(names.iter().map(|&name| name.to_owned()).collect());
            }
        };
        tell(&roster, &["a", "b", "c"]);
        assert_eq!(roster.next(later, 0.5), Next::Rest(Some(later + GATHERING.mul_f64(0.75))));
        assert_eq!(roster.next(later + GATHERING, 0.5), Next::Ask);
        tell(&roster, &["a", "b"]);
        assert!(
            matches!(roster.next(later + GATHERING, 0.5), Next::Rest(Some(until)) if until > later + 60 * SECOND)
        );
    }

    #[test]
    fn a_server_that_takes_tunnels_and_drops_them_is_asked_for_ever_less_often() {
        let mut now = Instant::now();
        let mut roster = Roster::new(now);
        open(&mut roster, now, "a", &["a", "b"]);
        let mut opened = 0;
        let began = now;
        while now < began + 600 * SECOND {
            match roster.next(now, 1.0) {
                Next::Ask => {
                    opened += 1;
                    open(&mut roster, now, "b", &["a", "b"]);
                    roster.tunnels["b"].ending.over.cancel();
                    assert_eq!(roster.reap(now, 1.0), ["b"]);
                }
                Next::Rest(until) => now = until.expect("a moment"),
            }
        }
        assert!((15..30).contains(&opened), "{opened}");
        // Where all has been well for a while, a failure is the first again.
        now += 2 * WELL;
        roster.missed(Missed::Failed, now, 1.0);
        assert_eq!(roster.next(now, 1.0), Next::Rest(Some(now + FIRST_PAUSE)));
    }

    #[test]
    fn nobody_is_made_to_keep_more_tunnels_than_there_is_room_for() {
        let mut now = Instant::now();
        let mut roster = Roster::new(now);
        for number in 0..100 {
            let until = match roster.next(now, 1.0) {
                Next::Ask => {
                    let names = [format!("s{number}"), format!("s{}", number + 1)];
                    open(&mut roster, now, &names[0], &[&names[0], &names[1]]);
                    continue;
                }
                Next::Rest(until) => until.expect("a moment"),
            };
            if until >= now + HOUR / 2 {
                break;
            }
            now = until;
        }
        assert_eq!(roster.tunnels.len(), MOST);
    }
}
