//! Finds the best combination of groups (regions) that satisfies the spread constraints.
//!
//! In: groups with a value (how many clusters they hold) and a weight (how good they are), how many groups may be
//! chosen, and the value wanted together. Out: the chosen groups, best first, or none.
//!
//! Upstream enumerates combinations depth first in the order value ↑, weight ↓, name ↑, and does not extend a
//! combination that already satisfies the constraints. Among those found it takes the one with the greatest weight,
//! then the greatest value, then the one found first; and if a shorter combination that was found is a prefix of it
//! (both ordered by weight), the shorter one. We walk the same tree but leave out branches that cannot beat the best
//! so far or cannot satisfy, since the plain walk is exponential in the number of regions. What is left of the walk may still be, so it has
//! an end: the best that was found by then is taken.

/// A group that may be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: i64,
    pub(crate) weight: i64,
}

/// How many groups are wanted and what they must hold together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) min: i64,
    pub(crate) max: i64,
    pub(crate) value: i64,
}

/// Returns positions of the chosen groups in `groups`, ordered by weight ↓, name ↑; `None` when no combination will do.
pub(crate) fn choose(groups: &[Group<'_>], wanted: Wanted) -> Option<Vec<usize>> {
    if groups.is_empty() {
        return None;
    }
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (&groups[*a], &groups[*b]);
        a.value.cmp(&b.value).then(b.weight.cmp(&a.weight)).then(a.name.cmp(b.name))
    });
    let sorted: Vec<&Group<'_>> = order.iter().map(|index| &groups[*index]).collect();
    let best = Walk::new(&sorted, wanted).best()?;
    let shortest = shortest_prefix(&sorted, best, wanted);
    Some(shortest.into_iter().map(|position| order[position]).collect())
}

/// A combination found: positions in the sorted list, ascending.
#[derive(Debug, Clone)]
struct Path {
    positions: Vec<usize>,
    weight: i64,
    value: i64,
}

struct Walk<'a, 'g> {
    groups: &'a [&'a Group<'g>],
    wanted: Wanted,
    /// The greatest weight of any group from this position on: bounds what a branch can still gain.
    heaviest_from: Vec<i64>,
    path: Path,
    best: Option<Path>,
    /// How many combinations may still be looked at.
    left: u32,
}

/// How many combinations are looked at, which takes some milliseconds. Twenty regions have as many.
const COMBINATIONS: u32 = 1 << 20;

impl<'a, 'g> Walk<'a, 'g> {
    fn new(groups: &'a [&'a Group<'g>], wanted: Wanted) -> Self {
        let mut heaviest_from = vec![0; groups.len() + 1];
        for position in (0..groups.len()).rev() {
            heaviest_from[position] = groups[position].weight.max(heaviest_from[position + 1]);
        }
        let path = Path { positions: Vec::new(), weight: 0, value: 0 };
        Self { groups, wanted, heaviest_from, path, best: None, left: COMBINATIONS }
    }

    fn best(mut self) -> Option<Path> {
        self.visit(0);
        self.best
    }

    fn visit(&mut self, from: usize) {
        if satisfies(self.path.value, self.path.positions.len(), self.wanted) {
            // Found later means a greater id: only strictly better combinations replace the best.
            let better = self
                .best
                .as_ref()
                .is_none_or(|best| (self.path.weight, self.path.value) > (best.weight, best.value));
            if better {
                self.best = Some(self.path.clone());
            }
            return;
        }
        if self.path.positions.len() as i64 >= self.wanted.max {
            return;
        }
        // When as many groups are required as there are, upstream only ever looks at the combination of all of them.
        let all_required = self.groups.len() as i64 == self.wanted.min;
        for position in from..self.groups.len() {
            if self.left == 0 || self.unreachable(position) || self.hopeless(position) {
                return;
            }
            self.left -= 1;
            let group = self.groups[position];
            self.path.positions.push(position);
            self.path.weight += group.weight;
            self.path.value += group.value;
            self.visit(position + 1);
            self.path.positions.pop();
            self.path.weight -= group.weight;
            self.path.value -= group.value;
            if all_required {
                return;
            }
        }
    }

    /// Tells whether no combination that continues at `position` or later can satisfy.
    fn unreachable(&self, position: usize) -> bool {
        let (chosen, rest) = (self.path.positions.len() as i64, (self.groups.len() - position) as i64);
        let slots = (self.wanted.max - chosen).min(rest).max(0);
        // Groups are sorted by value, so the last ones bound the value.
        let tail = &self.groups[self.groups.len() - slots as usize..];
        chosen + rest < self.wanted.min
            || self.path.value + tail.iter().map(|group| group.value).sum::<i64>() < self.wanted.value
    }

    /// Tells whether no combination that continues at `position` or later can beat the best one found so far.
    fn hopeless(&self, position: usize) -> bool {
        let Some(best) = &self.best else { return false };
        let slots =
            (self.wanted.max - self.path.positions.len() as i64).min((self.groups.len() - position) as i64);
        let reach = self.path.weight.saturating_add(self.heaviest_from[position].saturating_mul(slots));
        if reach != best.weight {
            return reach < best.weight;
        }
        // Groups are sorted by value, so the last ones bound the value.
        let tail = &self.groups[self.groups.len() - slots.max(0) as usize..];
        self.path.value + tail.iter().map(|group| group.value).sum::<i64>() <= best.value
    }
}

fn satisfies(value: i64, count: usize, wanted: Wanted) -> bool {
    value >= wanted.value && count as i64 >= wanted.min && count as i64 <= wanted.max
}

/// Returns the shortest combination that upstream's walk would have found and that is a prefix of `best` by weight.
///
/// Scanning upstream's list visits prefixes from long to short, as a longer one has at least the weight and a greater
/// value, so the scan always ends at the shortest.
fn shortest_prefix(groups: &[&Group<'_>], best: Path, wanted: Wanted) -> Vec<usize> {
    let mut by_weight = best.positions;
    by_weight
        .sort_by(|a, b| groups[*b].weight.cmp(&groups[*a].weight).then(groups[*a].name.cmp(groups[*b].name)));
    for length in 0..by_weight.len() {
        if would_be_found(groups, &by_weight[..length], wanted) {
            by_weight.truncate(length);
            break;
        }
    }
    by_weight
}

/// Tells whether the walk records exactly this set: it satisfies, and nothing on the way to it did already.
fn would_be_found(groups: &[&Group<'_>], set: &[usize], wanted: Wanted) -> bool {
    if groups.len() as i64 == wanted.min {
        return false;
    }
    let mut positions = set.to_vec();
    positions.sort_unstable();
    let mut value = 0;
    for (count, position) in positions.iter().enumerate() {
        if satisfies(value, count, wanted) {
            return false;
        }
        value += groups[*position].value;
    }
    satisfies(value, positions.len(), wanted)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Upstream's procedure as the specification words it, without leaving anything out.
    fn by_the_book(groups: &[Group<'_>], wanted: Wanted) -> Option<Vec<String>> {
        let mut sorted: Vec<&Group<'_>> = groups.iter().collect();
        sorted.sort_by(|a, b| a.value.cmp(&b.value).then(b.weight.cmp(&a.weight)).then(a.name.cmp(b.name)));
        fn visit<'a>(
            all: &[&'a Group<'a>],
            wanted: Wanted,
            sum: i64,
            from: usize,
            path: &mut Vec<&'a Group<'a>>,
            found: &mut Vec<Vec<&'a Group<'a>>>,
        ) {
            if sum >= wanted.value && path.len() as i64 >= wanted.min && path.len() as i64 <= wanted.max {
                found.push(path.clone());
                return;
            }
            if path.len() as i64 >= wanted.max {
                return;
            }
            for index in from..all.len() {
                path.push(all[index]);
                visit(all, wanted, sum + all[index].value, index + 1, path, found);
                if all.len() as i64 == wanted.min {
                    break;
                }
                path.pop();
            }
        }
        let mut found = Vec::new();
        visit(&sorted, wanted, 0, 0, &mut Vec::new(), &mut found);
        for path in &mut found {
            path.sort_by(|a, b| b.weight.cmp(&a.weight).then(a.name.cmp(b.name)));
        }
        let sum = |path: &[&Group<'_>]| -> (i64, i64) {
            (path.iter().map(|group| group.weight).sum(), path.iter().map(|group| group.value).sum())
        };
        found.sort_by_key(|path| std::cmp::Reverse(sum(path)));
        let mut best = found.first()?.clone();
        for path in &found[1..] {
            if path.len() < best.len() && path.iter().zip(&best).all(|(a, b)| a.name == b.name) {
                best = path.clone();
            }
        }
        if best.is_empty() {
            return Some(Vec::new());
        }
        Some(best.into_iter().map(|group| group.name.to_owned()).collect())
    }

    fn names(groups: &[Group<'_>], chosen: Option<Vec<usize>>) -> Option<Vec<String>> {
        chosen.map(|chosen| chosen.into_iter().map(|index| groups[index].name.to_owned()).collect())
    }

    fn group(name: &str, value: i64, weight: i64) -> Group<'_> {
        Group { name, value, weight }
    }

    #[test]
    fn the_heaviest_pair_that_holds_enough_wins() {
        // Example E14: [B,A] 2100, [B,C] 3000, [A,C] 3100.
        let groups = [group("A", 2, 1100), group("B", 1, 1000), group("C", 3, 2000)];
        let chosen = choose(&groups, Wanted { min: 2, max: 2, value: 3 });
        assert_eq!(names(&groups, chosen).unwrap(), ["C", "A"]);
    }

    #[test]
    fn a_shorter_combination_wins_over_its_extension() {
        // Walk order is C, B, A; recorded are [C,B,A], [C,A], [B,A], [A] is too short; [A,B] is a prefix of [A,B,C].
        let groups = [group("A", 3, 300), group("B", 2, 200), group("C", 1, 100)];
        let chosen = choose(&groups, Wanted { min: 2, max: 3, value: 4 });
        assert_eq!(names(&groups, chosen).unwrap(), ["A", "B"]);
    }

    #[test]
    fn too_few_groups_or_too_little_value_gives_none() {
        let groups = [group("A", 1, 5), group("B", 1, 5)];
        assert_eq!(choose(&groups, Wanted { min: 3, max: 3, value: 1 }), None);
        assert_eq!(choose(&groups, Wanted { min: 1, max: 2, value: 3 }), None);
        assert_eq!(choose(&groups, Wanted { min: 1, max: 0, value: 1 }), None);
        assert_eq!(choose(&[], Wanted { min: 0, max: 1, value: 0 }), None);
    }

    #[test]
    fn many_regions_are_no_endless_walk() {
        let names: Vec<String> = (0..60).map(|index| format!("r{index:02}")).collect();
        let groups: Vec<Group<'_>> = names.iter().map(|name| group(name, 1, 100)).collect();
        let chosen = choose(&groups, Wanted { min: 1, max: 60, value: 30 }).expect("thirty of them");
        assert_eq!(chosen, (0..30).collect::<Vec<_>>(), "all are alike, so the first are taken");
        assert_eq!(choose(&groups, Wanted { min: 1, max: 60, value: 61 }), None, "there are not as many");
        // All are different, which leaves little out.
        let groups: Vec<Group<'_>> = (0i64..)
            .zip(&names)
            .map(|(index, name)| group(name, 1 + index * index % 7, 100 + index * index * 31 % 101))
            .collect();
        assert!(choose(&groups, Wanted { min: 1, max: 60, value: 90 }).is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn leaving_out_branches_does_not_change_the_choice(
            shapes in prop::collection::vec((1i64..5, 0i64..6), 1..9),
            min in 0i64..5, extra in 0i64..4, value in 0i64..14,
        ) {
            let labels: Vec<String> = (0..shapes.len()).map(|index| format!("r{index}")).collect();
            let groups: Vec<Group<'_>> = labels.iter().zip(&shapes)
                .map(|(name, (value, weight))| group(name, *value, *weight)).collect();
            let wanted = Wanted { min, max: min + extra, value };
            prop_assert_eq!(names(&groups, choose(&groups, wanted)), by_the_book(&groups, wanted));
        }
    }
}
