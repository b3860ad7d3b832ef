//! Selects, among the clusters that passed the filters, those that take part in the division.
//!
//! In: the candidates with score and room, and the placement's spread constraints. Out: the selected candidates in the
//! order in which later steps visit them, with a note of how it came about; or the reason why there are none.
//!
//! Only constraints on `cluster` and `region` select; `zone` and `provider` act as filters alone (their plug-in rejects
//! clusters without the property), as upstream.

pub(crate) mod search;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use self::search::{Group, Wanted};

/// A cluster that passed the filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Position in the fleet, whose members are sorted by name: comparing positions compares names.
    pub(crate) member: u32,
    /// 0 for the primary affinity, 1, 2, … for the overflow affinities.
    pub(crate) overflow: i32,
    pub(crate) score: i64,
    /// How many more replicas fit.
    pub(crate) allocatable: i64,
    /// What fits plus what is already assigned there.
    pub(crate) available: i64,
}

impl Candidate {
    /// Orders as every list of candidates is ordered: overflow ↑, score ↓, available ↓, name ↑.
    pub(crate) fn rank(&self, other: &Self) -> Ordering {
        self.overflow
            .cmp(&other.overflow)
            .then(other.score.cmp(&self.score))
            .then(other.available.cmp(&self.available))
            .then(self.member.cmp(&other.member))
    }
}

/// What a spread constraint groups by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Cluster,
    Region,
    Zone,
    Provider,
    /// A label, or nothing known: never selects.
    Other,
}

/// A spread constraint with its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Constraint {
    pub(crate) field: Field,
    pub(crate) min: i64,
    pub(crate) max: i64,
}

/// How capacity counts when clusters are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Every cluster gets all replicas, capacity is not checked (Duplicated).
    Everywhere,
    /// The selected clusters together need room for this many.
    Together(i64),
}

/// What the selection works on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) constraints: &'a [Constraint],
    pub(crate) need: Need,
    /// The binding's replicas, which scale the scores of groups.
    pub(crate) replicas: i64,
}

/// How the selection came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// There are no constraints.
    Unconstrained,
    /// Static weights decide, constraints are ignored.
    Ignored,
    ByCluster {
        min: i64,
        max: i64,
        replaced: Vec<Replacement>,
    },
    ByRegion {
        min: i64,
        max: i64,
        regions: Vec<RegionNote>,
    },
}

/// A cluster that gave way to one with more room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replacement {
    pub(crate) out: u32,
    pub(crate) by: u32,
}

/// A region as the search saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegionNote {
    pub(crate) name: String,
    pub(crate) clusters: usize,
    pub(crate) score: i64,
    pub(crate) chosen: bool,
}

/// Why no clusters could be selected; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("just support cluster and region spread constraint")]
    Unsupported,
    #[error("the number of feasible clusters is less than spreadConstraint.MinGroups")]
    TooFewClusters,
    #[error("no enough resource when selecting {0} clusters")]
    NoRoom(i64),
    #[error("the number of feasible region is less than spreadConstraint.MinGroups")]
    TooFewRegions,
    #[error("the number of clusters is less than the cluster spreadConstraint.MinGroups")]
    NoRegions,
}

/// Selects among `candidates`, which must be sorted by rank. `region_of` names a member's region, empty if it has none.
pub(crate) fn select<'f>(
    mut candidates: Vec<Candidate>,
    task: Task<'_>,
    region_of: impl Fn(u32) -> &'f str,
) -> Result<(Vec<Candidate>, Note), Error> {
    if task.constraints.is_empty() {
        return Ok((candidates, Note::Unconstrained));
    }
    // Of several constraints on one field, the last one counts.
    let by_field = |field| task.constraints.iter().rev().find(|constraint| constraint.field == field);
    let cluster = by_field(Field::Cluster);
    if let Some(region) = by_field(Field::Region) {
        return by_region(&candidates, task, *region, cluster, region_of);
    }
    let Some(cluster) = cluster else { return Err(Error::Unsupported) };
    let replaced = by_cluster(&mut candidates, *cluster, task.need)?;
    Ok((candidates, Note::ByCluster { min: cluster.min, max: cluster.max, replaced }))
}

/// Keeps the best clusters, replacing the last ones by roomier ones until all replicas have room.
fn by_cluster(
    candidates: &mut Vec<Candidate>,
    constraint: Constraint,
    need: Need,
) -> Result<Vec<Replacement>, Error> {
    let total = candidates.len() as i64;
    if total < constraint.min {
        return Err(Error::TooFewClusters);
    }
    // A maximum of 0 selects nothing, as upstream. Admission sets no default, so an absent maximum is 0, too.
    let count = total.min(constraint.max).max(0);
    let Need::Together(replicas) = need else {
        candidates.truncate(count as usize);
        return Ok(Vec::new());
    };
    let mut replaced = Vec::new();
    let (kept, rest) = candidates.split_at_mut(count as usize);
    let mut room: i64 = kept.iter().map(|candidate| candidate.available).sum();
    for place in (0..kept.len()).rev() {
        if room >= replicas {
            break;
        }
        let mut roomiest: Option<usize> = None;
        let mut most = kept[place].available;
        for (index, candidate) in rest.iter().enumerate() {
            if candidate.available > most {
                most = candidate.available;
                roomiest = Some(index);
            }
        }
        if let Some(index) = roomiest {
            replaced.push(Replacement { out: kept[place].member, by: rest[index].member });
            room += most - kept[place].available;
            std::mem::swap(&mut kept[place], &mut rest[index]);
        }
    }
    if room < replicas || kept.is_empty() {
        return Err(Error::NoRoom(count));
    }
    candidates.truncate(count as usize);
    Ok(replaced)
}

/// Chooses regions, takes the best cluster of each and fills up with the best of the others.
fn by_region<'f>(
    candidates: &[Candidate],
    task: Task<'_>,
    region: Constraint,
    cluster: Option<&Constraint>,
    region_of: impl Fn(u32) -> &'f str,
) -> Result<(Vec<Candidate>, Note), Error> {
    let (cluster_min, cluster_max) = cluster.map_or((0, 0), |cluster| (cluster.min, cluster.max));
    let mut regions: BTreeMap<&str, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        let name = region_of(candidate.member);
        if !name.is_empty() {
            regions.entry(name).or_default().push(*candidate);
        }
    }
    if (regions.len() as i64) < region.min {
        return Err(Error::TooFewRegions);
    }
    let groups: Vec<Group<'_>> = regions
        .iter()
        .map(|(name, members)| Group {
            name,
            value: members.len() as i64,
            weight: match task.need {
                Need::Everywhere => duplicated_score(members, task.replicas),
                Need::Together(_) => divided_score(members, task.replicas, region.min, cluster_min),
            },
        })
        .collect();
    let wanted = Wanted { min: region.min, max: region.max, value: cluster_min };
    let chosen =
        search::choose(&groups, wanted).filter(|chosen| !chosen.is_empty()).ok_or(Error::NoRegions)?;
    let note = Note::ByRegion {
        min: region.min,
        max: region.max,
        regions: groups
            .iter()
            .enumerate()
            .map(|(index, group)| RegionNote {
                name: group.name.to_owned(),
                clusters: group.value as usize,
                score: group.weight,
                chosen: chosen.contains(&index),
            })
            .collect(),
    };

    let mut selected = Vec::new();
    let mut pool = Vec::new();
    for index in chosen {
        let (first, others) =
            regions[groups[index].name].split_first().expect("a region exists for its clusters");
        selected.push(*first);
        pool.extend_from_slice(others);
    }
    let want = ((selected.len() + pool.len()) as i64).min(cluster_max);
    if want > selected.len() as i64 {
        let more = want as usize - selected.len();
        pool.sort_unstable_by(Candidate::rank);
        selected.extend_from_slice(&pool[..more]);
    }
    Ok((selected, note))
}

/// Keeps replicas apart from cluster scores (0 … 100) in the score of a group.
const UNIT: i64 = 1000;

/// Scores a group when every cluster gets all replicas: how many clusters can hold them, then their average score.
fn duplicated_score(members: &[Candidate], replicas: i64) -> i64 {
    let able = members.iter().filter(|member| member.available >= replicas);
    let (count, score) = able.fold((0, 0), |(count, score), member| (count + 1, score + member.score));
    if count == 0 { 0 } else { count * UNIT + score / count }
}

/// Scores a group when replicas are divided: how much of its share it can hold, then the average score.
fn divided_score(members: &[Candidate], replicas: i64, group_min: i64, cluster_min: i64) -> i64 {
    let target = share(replicas, group_min);
    let need = cluster_min.max(group_min);
    let (mut room, mut score, mut visited) = (0i64, 0i64, 0i64);
    for member in members {
        room += member.available;
        score += member.score;
        visited += 1;
        if visited >= need && room >= target {
            break;
        }
    }
    if room < target {
        room.wrapping_mul(UNIT) + score / members.len() as i64
    } else {
        target.wrapping_mul(UNIT) + score / visited
    }
}

/// Returns the share of one group, rounded up.
///
/// Dividing by zero groups is infinite upstream, which its conversion to an integer turns into the least one.
/// Admission defaults the minimum to 1, so only hand-written bindings get here.
fn share(replicas: i64, groups: i64) -> i64 {
    if groups == 0 { i64::MIN } else { (replicas as f64 / groups as f64).ceil() as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(member: u32, score: i64, available: i64) -> Candidate {
        Candidate { member, overflow: 0, score, allocatable: available, available }
    }

    fn members(selected: &[Candidate]) -> Vec<u32> {
        selected.iter().map(|candidate| candidate.member).collect()
    }

    fn cluster(min: i64, max: i64) -> Constraint {
        Constraint { field: Field::Cluster, min, max }
    }

    #[test]
    fn a_cluster_with_too_little_room_gives_way_to_a_roomier_one() {
        // Example E13: a(100, 4), b(10), c(8), d(6).
        let list = vec![candidate(0, 100, 4), candidate(1, 0, 10), candidate(2, 0, 8), candidate(3, 0, 6)];
        let select_for = |replicas| {
            let constraints = [cluster(1, 2)];
            let task = Task { constraints: &constraints, need: Need::Together(replicas), replicas };
            select(list.clone(), task, |_| "").map(|(selected, _)| members(&selected))
        };
        assert_eq!(select_for(14).unwrap(), [0, 1]);
        assert_eq!(select_for(18).unwrap(), [2, 1]);
        assert_eq!(select_for(20).unwrap_err().to_string(), "no enough resource when selecting 2 clusters");
    }

    #[test]
    fn a_maximum_of_zero_selects_nothing() {
        let list = vec![candidate(0, 100, 4), candidate(1, 0, 10)];
        let select_for = |constraints: &[Constraint], need| {
            let task = Task { constraints, need, replicas: 1 };
            let selected = select(list.clone(), task, |_| "r");
            selected.map(|(selected, _)| members(&selected)).map_err(|error| error.to_string())
        };
        assert_eq!(select_for(&[cluster(1, 0)], Need::Everywhere), Ok(vec![]));
        let no_room = "no enough resource when selecting 0 clusters".to_owned();
        assert_eq!(select_for(&[cluster(1, 0)], Need::Together(1)), Err(no_room));
        let region = Constraint { field: Field::Region, min: 1, max: 0 };
        let no_regions = Error::NoRegions.to_string();
        assert_eq!(select_for(&[cluster(1, 2), region], Need::Everywhere), Err(no_regions));
    }

    #[test]
    fn regions_are_chosen_by_score_and_filled_up_by_rank() {
        // Example E14; members: a1 a2 b1 c1 c2 c3.
        let mut list = vec![
            candidate(0, 100, 40),
            candidate(1, 0, 5),
            candidate(2, 0, 30),
            candidate(3, 0, 20),
            candidate(4, 0, 12),
            candidate(5, 0, 9),
        ];
        list.sort_by(Candidate::rank);
        let constraints = [Constraint { field: Field::Region, min: 2, max: 2 }, cluster(3, 4)];
        let task = Task { constraints: &constraints, need: Need::Everywhere, replicas: 10 };
        let region = |member| ["A", "A", "B", "C", "C", "C"][member as usize];
        let (selected, note) = select(list, task, region).unwrap();
        assert_eq!(members(&selected), [3, 0, 4, 5]);
        let Note::ByRegion { regions, .. } = note else { panic!("{note:?}") };
        assert_eq!(regions.iter().map(|region| region.score).collect::<Vec<_>>(), [1100, 1000, 2000]);
    }

    #[test]
    fn a_divided_group_counts_up_to_its_share() {
        // Example E15: 20 replicas, region min 2, cluster min 3.
        let rich = [candidate(0, 100, 6), candidate(1, 0, 7), candidate(2, 0, 2)];
        let poor = [candidate(3, 0, 4), candidate(4, 0, 3)];
        assert_eq!(divided_score(&rich, 20, 2, 3), 10_033);
        assert_eq!(divided_score(&poor, 20, 2, 3), 7_000);
    }

    #[test]
    fn a_region_constraint_alone_takes_one_cluster_of_each_region() {
        let list = vec![candidate(0, 0, 9), candidate(1, 0, 8), candidate(2, 0, 7)];
        let constraints = [Constraint { field: Field::Region, min: 1, max: 2 }];
        let task = Task { constraints: &constraints, need: Need::Everywhere, replicas: 1 };
        let (selected, _) = select(list, task, |member| ["x", "x", "y"][member as usize]).unwrap();
        // Two clusters of x can hold the replica against one of y: x alone satisfies, and is a prefix of x, y.
        assert_eq!(members(&selected), [0]);
    }

    #[test]
    fn unmet_constraints_are_told_in_upstreams_words() {
        let list = vec![candidate(0, 0, 9)];
        let check = |constraints: &[Constraint], expected: &str| {
            let task = Task { constraints, need: Need::Together(1), replicas: 1 };
            assert_eq!(select(list.clone(), task, |_| "x").unwrap_err().to_string(), expected);
        };
        check(&[cluster(2, 2)], "the number of feasible clusters is less than spreadConstraint.MinGroups");
        check(&[cluster(0, 0)], "no enough resource when selecting 0 clusters");
        let region = |min, max| Constraint { field: Field::Region, min, max };
        check(&[region(2, 2)], "the number of feasible region is less than spreadConstraint.MinGroups");
        check(
            &[region(1, 1), cluster(2, 3)],
            "the number of clusters is less than the cluster spreadConstraint.MinGroups",
        );
        check(
            &[Constraint { field: Field::Zone, min: 1, max: 1 }],
            "just support cluster and region spread constraint",
        );
    }
}
