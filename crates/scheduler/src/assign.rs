//! Assigns a binding's replicas to the selected clusters.
//!
//! In: the selected clusters in order, what each had before, the strategy and whether to start afresh. Out: replicas per
//! cluster, in the order in which they are written to `spec.clusters`, and a note of how it came about.
//!
//! Steady mode, the default, moves as little as possible: what is placed stays, only the difference is divided. Fresh
//! mode (a requested rebalance) forgets the previous result. Overflow affinities split the clusters into tiers; a tier
//! gets replicas only once the tiers before it are full, and gives them up first.
//!
//! Rooms are summed in 64 bits. Upstream sums in 32 and wraps around, so that rebalancing a workload of 0 replicas over
//! two clusters (whose room is then "unlimited") fails there with a negative sum; ours succeeds.

use std::collections::BTreeMap;

use crate::gosort;
use crate::spread::Candidate;
use crate::webster::{self, TieRule};

/// How replicas are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Strategy {
    /// Every cluster gets all replicas.
    Duplicated,
    /// As few clusters as can hold them.
    Aggregated,
    /// By the weights of the placement.
    StaticWeight,
    /// By how much room there is.
    DynamicWeight,
}

/// What a division did to the previous result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Mode {
    /// Duplicated and static weights look at no previous result.
    Stateless,
    /// A rebalance was asked for: room is what is free plus what was assigned.
    Fresh,
    /// More replicas than placed (or none placed yet): only the difference is divided.
    ScaleUp,
    /// Fewer replicas than placed: divided by what each cluster has.
    ScaleDown,
    /// As many replicas as placed: nothing moves.
    Unchanged,
}

/// One run of a strategy over one tier of clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Division {
    /// The overflow order of the tier, 0 without overflow.
    pub(crate) tier: i32,
    pub(crate) strategy: Strategy,
    pub(crate) mode: Mode,
    /// How many replicas were divided in this run.
    pub(crate) target: i64,
    /// What they were divided by: member and weight.
    pub(crate) weights: Vec<(u32, i64)>,
}

/// The clusters do not have enough room; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Shortage {
    #[error("failed to do fresh scale: Clusters available replicas {0} are not enough to schedule.")]
    Fresh(i64),
    #[error("failed to scale down: Clusters available replicas {0} are not enough to schedule.")]
    ScaleDown(i64),
    #[error("failed to scale up: Clusters available replicas {0} are not enough to schedule.")]
    ScaleUp(i64),
    #[error("Clusters available replicas are not enough to schedule.")]
    AllTiers,
}

/// What is to be divided, and how.
pub(crate) struct Task<'a> {
    pub(crate) strategy: Strategy,
    pub(crate) replicas: i64,
    /// A rebalance was asked for.
    pub(crate) fresh: bool,
    /// Overflow affinities are in effect.
    pub(crate) tiered: bool,
    /// The previous result, in the order of `spec.clusters`, members of the fleet only.
    pub(crate) previous: &'a [(u32, i64)],
    /// The static weight of a member, 0 when no rule names it.
    pub(crate) weight_of: &'a dyn Fn(u32) -> i64,
    pub(crate) tie: TieRule,
}

/// Replicas per member, in the order of the result.
pub(crate) type Assigned = Vec<(u32, i64)>;

/// Divides the task's replicas among the candidates; entries without replicas are left out.
pub(crate) fn assign(
    candidates: &[Candidate],
    task: &Task<'_>,
) -> Result<(Assigned, Vec<Division>), Shortage> {
    let mut notes = Vec::new();
    if !task.tiered {
        let assigned = divide(candidates, task, 0, task.replicas, &mut notes)?;
        return Ok((assigned, notes));
    }
    let mut tiers: BTreeMap<i32, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        tiers.entry(candidate.overflow).or_default().push(*candidate);
    }
    let mut assigned = Vec::new();
    let mut remaining = task.replicas;
    for (tier, members) in tiers {
        let room: i64 = members.iter().map(|member| member.available).sum();
        let share = remaining.min(room);
        assigned.extend(divide(&members, task, tier, share, &mut notes)?);
        remaining -= share;
        if remaining <= 0 {
            break;
        }
    }
    if remaining > 0 { Err(Shortage::AllTiers) } else { Ok((assigned, notes)) }
}

fn divide(
    candidates: &[Candidate],
    task: &Task<'_>,
    tier: i32,
    replicas: i64,
    notes: &mut Vec<Division>,
) -> Result<Assigned, Shortage> {
    let (mut assigned, division) = match task.strategy {
        Strategy::Duplicated => duplicate(candidates, replicas),
        Strategy::StaticWeight => by_static_weight(candidates, task, replicas),
        Strategy::Aggregated | Strategy::DynamicWeight => by_room(candidates, task, replicas)?,
    };
    notes.push(Division { tier, ..division });
    assigned.retain(|(_, replicas)| *replicas > 0);
    Ok(assigned)
}

fn duplicate(candidates: &[Candidate], replicas: i64) -> (Assigned, Division) {
    let assigned = candidates.iter().map(|candidate| (candidate.member, replicas)).collect();
    let note = Division {
        tier: 0,
        strategy: Strategy::Duplicated,
        mode: Mode::Stateless,
        target: replicas,
        weights: Vec::new(),
    };
    (assigned, note)
}

/// Divides by the placement's weights; the previous result and the room play no role.
fn by_static_weight(candidates: &[Candidate], task: &Task<'_>, replicas: i64) -> (Assigned, Division) {
    let mut weights: Vec<(u32, i64)> = candidates
        .iter()
        .map(|candidate| (candidate.member, (task.weight_of)(candidate.member)))
        .filter(|(_, weight)| *weight > 0)
        .collect();
    if weights.is_empty() {
        weights = candidates.iter().map(|candidate| (candidate.member, 1)).collect();
    }
    let assigned = by_weight(replicas, &weights, task.tie);
    let (strategy, mode) = (Strategy::StaticWeight, Mode::Stateless);
    (assigned, Division { tier: 0, strategy, mode, target: replicas, weights })
}

/// Divides by room, as Aggregated and DynamicWeight do.
fn by_room(
    candidates: &[Candidate],
    task: &Task<'_>,
    replicas: i64,
) -> Result<(Assigned, Division), Shortage> {
    // Clusters that are no longer candidates lose their replicas, which then count as missing.
    let mut positions: Vec<u32> = candidates.iter().map(|candidate| candidate.member).collect();
    positions.sort_unstable();
    let scheduled: Vec<(u32, i64)> =
        task.previous.iter().copied().filter(|(member, _)| positions.binary_search(member).is_ok()).collect();
    let assigned: i64 = scheduled.iter().map(|(_, replicas)| replicas).sum();

    let mode = match assigned.cmp(&replicas) {
        _ if task.fresh => Mode::Fresh,
        std::cmp::Ordering::Greater => Mode::ScaleDown,
        std::cmp::Ordering::Less => Mode::ScaleUp,
        std::cmp::Ordering::Equal => Mode::Unchanged,
    };
    let free = || candidates.iter().map(|candidate| (candidate.member, candidate.allocatable));
    let (target, mut room, kept): (i64, Assigned, &[(u32, i64)]) = match mode {
        Mode::Stateless | Mode::Unchanged => {
            let note = Division { tier: 0, strategy: task.strategy, mode, target: 0, weights: Vec::new() };
            return Ok((scheduled, note));
        }
        Mode::Fresh => {
            let had: BTreeMap<u32, i64> = scheduled.iter().copied().collect();
            let room = free()
                .map(|(member, free)| (member, free + had.get(&member).copied().unwrap_or(0)))
                .collect();
            (replicas, room, &[])
        }
        Mode::ScaleDown => (replicas, scheduled.clone(), &[]),
        Mode::ScaleUp => (replicas - assigned, free().collect(), &scheduled),
    };
    gosort::sort(&mut room, |left, right| left.1 > right.1);

    let total: i64 = room.iter().map(|(_, room)| room).sum();
    if total < target {
        return Err(match mode {
            Mode::Fresh => Shortage::Fresh(total),
            Mode::ScaleDown => Shortage::ScaleDown(total),
            _ => Shortage::ScaleUp(total),
        });
    }
    if task.strategy == Strategy::Aggregated {
        room = shortest_prefix(room, kept, target);
    }
    let added = by_weight(target, &room, task.tie);
    let note = Division { tier: 0, strategy: task.strategy, mode, target, weights: room };
    Ok((merge(kept, added), note))
}

/// Returns the first clusters that together have room for the target, those in use before the others.
fn shortest_prefix(room: Vec<(u32, i64)>, in_use: &[(u32, i64)], target: i64) -> Vec<(u32, i64)> {
    let is_used = |member: u32| in_use.iter().any(|(used, replicas)| *used == member && *replicas > 0);
    let (mut ordered, others): (Vec<_>, Vec<_>) = room.into_iter().partition(|(member, _)| is_used(*member));
    ordered.extend(others);
    let mut sum = 0;
    let enough = ordered.iter().position(|(_, room)| {
        sum += room;
        sum >= target
    });
    if let Some(last) = enough {
        ordered.truncate(last + 1);
    }
    ordered
}

/// Divides by Webster's method; sorted by name, empty when there is nothing to weigh by.
fn by_weight(replicas: i64, weights: &[(u32, i64)], tie: TieRule) -> Assigned {
    let mut parties = weights.to_vec();
    parties.sort_unstable_by_key(|(member, _)| *member);
    match webster::divide(replicas, &parties, tie) {
        Some(seats) => parties.iter().zip(seats).map(|((member, _), seats)| (*member, seats)).collect(),
        None => Vec::new(),
    }
}

/// Adds new replicas to those kept: first the clusters that got some, by name, then the others, by name too.
///
/// Upstream appends the others in random order; any order is right, a stable one is better.
fn merge(kept: &[(u32, i64)], added: Assigned) -> Assigned {
    if kept.is_empty() {
        return added;
    }
    if added.is_empty() {
        return kept.to_vec();
    }
    let mut leftover: BTreeMap<u32, i64> = kept.iter().copied().collect();
    let mut merged: Assigned = added
        .into_iter()
        .map(|(member, replicas)| (member, replicas + leftover.remove(&member).unwrap_or(0)))
        .collect();
    merged.extend(leftover);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members are m1, m2, … at positions 1, 2, …; rooms in that order, `previous` as (position, replicas).
    fn check(
        strategy: Strategy,
        replicas: i64,
        rooms: &[i64],
        previous: &[(u32, i64)],
        fresh: bool,
        expected: Result<&[(u32, i64)], &str>,
    ) {
        let candidates: Vec<Candidate> = rooms
            .iter()
            .zip(1..)
            .map(|(room, member)| {
                let had = previous.iter().find(|(name, _)| *name == member).map_or(0, |(_, had)| *had);
                Candidate { member, overflow: 0, score: 0, allocatable: *room, available: room + had }
            })
            .collect();
        let task = Task {
            strategy,
            replicas,
            fresh,
            tiered: false,
            previous,
            weight_of: &|_| 1,
            tie: TieRule::SmallerName,
        };
        match (assign(&candidates, &task), expected) {
            (Ok((assigned, _)), Ok(expected)) => assert_eq!(assigned, expected),
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected),
            (got, expected) => panic!("got {got:?}, expected {expected:?}"),
        }
    }

    use Strategy::{Aggregated, DynamicWeight};

    #[test]
    fn dynamic_weights_follow_the_room() {
        check(DynamicWeight, 9, &[18, 10, 7], &[], false, Ok(&[(1, 4), (2, 3), (3, 2)]));
    }

    #[test]
    fn scaling_up_divides_only_what_is_new() {
        let previous = [(1, 3), (2, 2), (3, 1)];
        check(DynamicWeight, 12, &[15, 4, 11], &previous, false, Ok(&[(1, 6), (2, 3), (3, 3)]));
    }

    #[test]
    fn scaling_down_keeps_the_proportions() {
        check(DynamicWeight, 5, &[9, 9, 9], &[(1, 6), (2, 3), (3, 3)], false, Ok(&[(1, 3), (2, 1), (3, 1)]));
    }

    #[test]
    fn aggregation_takes_the_roomiest_clusters_that_suffice() {
        check(Aggregated, 12, &[8, 6, 5], &[], false, Ok(&[(1, 7), (2, 5)]));
    }

    #[test]
    fn aggregation_scales_up_where_it_already_is() {
        check(Aggregated, 9, &[9, 6, 2], &[(3, 4)], false, Ok(&[(1, 4), (3, 5)]));
    }

    #[test]
    fn aggregation_scales_down_to_fewer_clusters() {
        let previous = [(1, 5), (2, 3), (3, 2)];
        check(Aggregated, 4, &[0, 0, 0], &previous, false, Ok(&[(1, 4)]));
        check(Aggregated, 6, &[0, 0, 0], &previous, false, Ok(&[(1, 4), (2, 2)]));
    }

    #[test]
    fn a_rebalance_counts_what_was_assigned_as_room() {
        check(Aggregated, 10, &[0, 8, 1], &[(1, 8), (3, 2)], true, Ok(&[(1, 5), (2, 5)]));
    }

    #[test]
    fn too_little_room_is_told_with_the_sum() {
        let message = "failed to scale up: Clusters available replicas 7 are not enough to schedule.";
        check(DynamicWeight, 10, &[3, 4], &[], false, Err(message));
        let message = "failed to do fresh scale: Clusters available replicas 9 are not enough to schedule.";
        check(DynamicWeight, 10, &[3, 4], &[(1, 2)], true, Err(message));
    }

    #[test]
    fn replicas_of_a_lost_cluster_go_to_the_others() {
        // Example E12: m2 is not a candidate any more (position 9 stands for it).
        check(DynamicWeight, 6, &[2, 0, 6], &[(1, 3), (9, 3)], false, Ok(&[(1, 4), (3, 2)]));
    }

    #[test]
    fn a_fully_placed_binding_keeps_its_order() {
        check(DynamicWeight, 5, &[1, 1, 1], &[(3, 4), (1, 1)], false, Ok(&[(3, 4), (1, 1)]));
    }

    #[test]
    fn overflow_tiers_fill_up_in_order_and_shrink_first() {
        let candidate = |member, overflow, allocatable, available| Candidate {
            member,
            overflow,
            score: 0,
            allocatable,
            available,
        };
        let run = |candidates: &[Candidate], replicas, previous: &[(u32, i64)]| {
            let weight_of = |_| 1;
            let (strategy, tie) = (Aggregated, TieRule::SmallerName);
            let task =
                Task { strategy, replicas, fresh: false, tiered: true, previous, weight_of: &weight_of, tie };
            assign(candidates, &task).map(|(assigned, _)| assigned)
        };
        let empty = [candidate(1, 0, 4, 4), candidate(2, 0, 3, 3), candidate(3, 1, 9, 9)];
        let placed = vec![(1, 4), (2, 3), (3, 3)];
        assert_eq!(run(&empty, 10, &[]).unwrap(), placed);
        assert_eq!(
            run(&empty, 20, &[]).unwrap_err().to_string(),
            "Clusters available replicas are not enough to schedule."
        );
        let full = [candidate(1, 0, 0, 4), candidate(2, 0, 0, 3), candidate(3, 1, 6, 9)];
        assert_eq!(run(&full, 8, &placed).unwrap(), [(1, 4), (2, 3), (3, 1)]);
    }
}
