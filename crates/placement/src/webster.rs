//! Divides seats among parties in proportion to their votes (Webster's method, also called Sainte-Laguë).
//!
//! In: the number of seats, the votes of each party, and the tie rule of the workload.
//! Out: a seat count per party, in the order of the input, summing to the request. Does not ask who has room.
//!
//! Seats go one by one to the party with the highest `votes / (2 × seats + 1)`, computed in `f64` as Karmada does.
//! A tie goes to the party with fewer seats, then by name, up or down as the hash of the workload's UID says: stable
//! for one workload, but many workloads do not all favour the same cluster.
//!
//! Handing out a million seats one by one would take seconds, so most of them are counted at once: every seat whose
//! priority lies strictly above some bar is handed out before any seat below it, whatever the ties. We pick a bar that
//! hands out at most the requested number and give only the rest one by one.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Which of two equal parties wins: the one with the smaller or with the larger name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TieRule {
    SmallerName,
    LargerName,
}

impl TieRule {
    /// Returns the rule of a workload: the lowest bit of the FNV-1a hash of its UID decides.
    pub fn of_uid(uid: &str) -> Self {
        if !uid.is_empty() && api::names::fnv1a_32(uid) & 1 == 1 {
            Self::LargerName
        } else {
            Self::SmallerName
        }
    }
}

/// Divides `seats` among the parties, given as `(name, votes)`; names must be distinct. A name is whatever orders as
/// names do; the scheduler passes positions in a list sorted by name.
///
/// Returns `None` when there is nothing to weigh by (no party, or no votes at all): upstream then allocates nothing,
/// which is different from giving everybody zero.
pub fn divide<N: Ord>(seats: i64, parties: &[(N, i64)], tie: TieRule) -> Option<Vec<i64>> {
    let total: i128 = parties.iter().map(|(_, votes)| i128::from(*votes)).sum();
    if total == 0 {
        return None;
    }
    let mut given = head_start(seats, parties, total);
    let mut remaining = seats.saturating_sub(given.iter().sum());
    if remaining <= 0 {
        return Some(given);
    }
    let mut queue: BinaryHeap<Claim<'_, N>> = parties
        .iter()
        .zip(&given)
        .enumerate()
        .map(|(index, ((name, votes), seats))| Claim {
            priority: priority(*votes, *seats),
            seats: *seats,
            name,
            votes: *votes,
            index,
            tie,
        })
        .collect();
    while remaining > 0 {
        let mut winner = queue.peek_mut().expect("a positive total means there is a party");
        winner.seats = winner.seats.saturating_add(1);
        if let Some(seats) = given.get_mut(winner.index) {
            *seats = winner.seats;
        }
        winner.priority = priority(winner.votes, winner.seats);
        remaining = remaining.saturating_sub(1);
    }
    Some(given)
}

fn priority(votes: i64, seats: i64) -> f64 {
    votes as f64 / seats.saturating_mul(2).saturating_add(1) as f64
}

/// Below this many seats per party the queue alone is faster than searching a bar.
const FEW_SEATS_PER_PARTY: i64 = 4;

/// Returns seats that are certain: all those whose priority is strictly above one bar, at most `seats` together.
fn head_start<N>(seats: i64, parties: &[(N, i64)], total: i128) -> Vec<i64> {
    let none = vec![0; parties.len()];
    let count = parties.len() as i64;
    if seats < FEW_SEATS_PER_PARTY.saturating_mul(count) || parties.iter().any(|(_, votes)| *votes < 0) {
        return none;
    }
    // At the bar total/(2·seats) the counts sum to about `seats`, give or take half a seat per party: aim lower by that.
    let aim = seats.saturating_sub(count).max(1);
    let bar = total as f64 / (2.0 * aim as f64);
    let counts: Vec<i64> = parties.iter().map(|(_, votes)| seats_above(*votes, bar)).collect();
    if counts.iter().sum::<i64>() <= seats { counts } else { none }
}

/// Returns how many of a party's seats have a priority strictly above the bar.
fn seats_above(votes: i64, bar: f64) -> i64 {
    // votes/(2k+1) > bar  ⇔  k < (votes/bar − 1)/2; the estimate may be off by one either way in floating point.
    let mut count = (((votes as f64 / bar) - 1.0) / 2.0).ceil().max(0.0) as i64;
    while count > 0 && priority(votes, count.saturating_sub(1)) <= bar {
        count = count.saturating_sub(1);
    }
    while priority(votes, count) > bar {
        count = count.saturating_add(1);
    }
    count
}

/// A party waiting for its next seat; the greatest claim wins it.
struct Claim<'a, N> {
    priority: f64,
    seats: i64,
    name: &'a N,
    votes: i64,
    index: usize,
    tie: TieRule,
}

impl<N: Ord> Ord for Claim<'_, N> {
    fn cmp(&self, other: &Self) -> Ordering {
        // Votes are not negative, so there is neither NaN nor a negative zero and `total_cmp` is the numeric order.
        self.priority.total_cmp(&other.priority).then_with(|| other.seats.cmp(&self.seats)).then_with(|| {
            match self.tie {
                TieRule::SmallerName => other.name.cmp(self.name),
                TieRule::LargerName => self.name.cmp(other.name),
            }
        })
    }
}

impl<N: Ord> PartialOrd for Claim<'_, N> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<N: Ord> PartialEq for Claim<'_, N> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<N: Ord> Eq for Claim<'_, N> {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, one seat at a time and without any shortcut.
    fn by_the_book(seats: i64, parties: &[(String, i64)], tie: TieRule) -> Option<Vec<i64>> {
        if parties.iter().map(|(_, votes)| votes).sum::<i64>() == 0 {
            return None;
        }
        let mut given = vec![0; parties.len()];
        for _ in 0..seats {
            let winner = (0..parties.len())
                .max_by(|a, b| {
                    let (left, right) =
                        (priority(parties[*a].1, given[*a]), priority(parties[*b].1, given[*b]));
                    left.partial_cmp(&right).expect("finite").then(given[*b].cmp(&given[*a])).then(
                        match tie {
                            TieRule::SmallerName => parties[*b].0.cmp(&parties[*a].0),
                            TieRule::LargerName => parties[*a].0.cmp(&parties[*b].0),
                        },
                    )
                })
                .expect("not empty");
            given[winner] += 1;
        }
        Some(given)
    }

    fn check(seats: i64, votes: &[i64], uid: &str, expected: &[i64]) {
        let parties: Vec<(String, i64)> =
            votes.iter().enumerate().map(|(index, votes)| (format!("m{index:02}"), *votes)).collect();
        assert_eq!(
            divide(seats, &parties, TieRule::of_uid(uid)).as_deref(),
            Some(expected),
            "{seats} by {votes:?}"
        );
    }

    #[test]
    fn the_uid_decides_the_direction_of_ties() {
        assert_eq!(api::names::fnv1a_32("uid-a"), 0x80c4_a5d3);
        assert_eq!(api::names::fnv1a_32("uid-b"), 0x81c4_a766);
        assert_eq!(TieRule::of_uid("uid-a"), TieRule::LargerName);
        assert_eq!(TieRule::of_uid("uid-b"), TieRule::SmallerName);
        assert_eq!(TieRule::of_uid(""), TieRule::SmallerName);
    }

    #[test]
    fn three_to_two_to_one_gives_seven_as_four_two_one_for_every_uid() {
        check(7, &[3, 2, 1], "uid-a", &[4, 2, 1]);
        check(7, &[3, 2, 1], "uid-b", &[4, 2, 1]);
    }

    #[test]
    fn equal_votes_fall_to_the_name() {
        check(2, &[1, 1, 1], "uid-b", &[1, 1, 0]);
        check(2, &[1, 1, 1], "uid-a", &[0, 1, 1]);
        check(10, &[2, 1, 1], "uid-b", &[5, 3, 2]);
        check(10, &[2, 1, 1], "uid-a", &[5, 2, 3]);
    }

    #[test]
    fn no_votes_means_no_allocation_and_no_seats_means_zero_for_everybody() {
        assert_eq!(divide(3, &[("a", 0), ("b", 0)], TieRule::SmallerName), None);
        assert_eq!(divide::<&str>(3, &[], TieRule::SmallerName), None);
        check(0, &[1, 2], "", &[0, 0]);
    }

    #[test]
    fn a_million_seats_are_divided_at_once() {
        check(1_000_000, &[1, 1], "", &[500_000, 500_000]);
        check(2_000_000_000, &[3, 1], "", &[1_500_000_000, 500_000_000]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn shortcuts_do_not_change_the_result(
            seats in 0i64..600,
            votes in prop::collection::vec(0i64..40, 1..12),
            larger in any::<bool>(),
        ) {
            let tie = if larger { TieRule::LargerName } else { TieRule::SmallerName };
            let parties: Vec<(String, i64)> =
                votes.iter().enumerate().map(|(index, votes)| (format!("m{index}"), *votes)).collect();
            prop_assert_eq!(divide(seats, &parties, tie), by_the_book(seats, &parties, tie));
        }
    }
}
