//! Divides a Job's completions among clusters in proportion to their replicas.
//!
//! Webster's method, as Karmada uses it everywhere: seats are given one by one to the highest quotient
//! `votes / (2·seats + 1)`. A tie goes to whoever has fewer seats, then by name, up or down as the hash of the
//! template's UID says: stable for one Job, but not the same cluster for all of them.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Returns how many of `seats` each name gets; empty when nobody has votes.
pub(crate) fn divide(seats: i32, votes: &[(&str, i64)], uid: &str) -> BTreeMap<String, i32> {
    if votes.iter().map(|(_, votes)| *votes).sum::<i64>() == 0 {
        return BTreeMap::new();
    }
    let descending = !uid.is_empty() && api::names::fnv1a_32(uid) & 1 == 1;
    let mut parties: BTreeMap<&str, (i64, i32)> = BTreeMap::new();
    for (name, votes) in votes {
        parties.insert(name, (*votes, 0));
    }
    for _ in 0..seats.max(0) {
        let winner = parties
            .iter()
            .max_by(|(left_name, left), (right_name, right)| {
                let by_name = if descending { left_name.cmp(right_name) } else { right_name.cmp(left_name) };
                quotient(**left)
                    .partial_cmp(&quotient(**right))
                    .unwrap_or(Ordering::Equal)
                    .then(right.1.cmp(&left.1))
                    .then(by_name)
            })
            .map(|(name, _)| *name);
        let Some(winner) = winner else { break };
        if let Some((_, seats)) = parties.get_mut(winner) {
            *seats += 1;
        }
    }
    parties.into_iter().map(|(name, (_, seats))| (name.to_owned(), seats)).collect()
}

fn quotient((votes, seats): (i64, i32)) -> f64 {
    votes as f64 / f64::from(2 * seats + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seats: i32, votes: &[(&str, i64)], uid: &str, expected: &[(&str, i32)]) {
        let expected = expected.iter().map(|(name, seats)| ((*name).to_owned(), *seats)).collect();
        assert_eq!(divide(seats, votes, uid), expected);
    }

    #[test]
    fn seats_follow_votes() {
        check(8, &[("a", 1), ("b", 3)], "", &[("a", 2), ("b", 6)]);
        check(5, &[("a", 1), ("b", 1), ("c", 0)], "", &[("a", 3), ("b", 2), ("c", 0)]);
        check(0, &[("a", 1)], "", &[("a", 0)]);
        check(5, &[("a", 0)], "", &[]);
    }

    #[test]
    fn ties_follow_the_hash_of_the_uid() {
        check(1, &[("a", 1), ("b", 1)], "uid-a", &[("a", 0), ("b", 1)]);
        check(1, &[("a", 1), ("b", 1)], "uid-b", &[("a", 1), ("b", 0)]);
    }
}
