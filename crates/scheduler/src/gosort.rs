//! Sorts clusters by capacity with the very steps of Go's `sort.Sort`, which is not stable.
//!
//! In: a slice and "comes before". Out: the slice, sorted; equal elements end up where Go leaves them.
//!
//! The Aggregated strategy keeps a prefix of the clusters sorted by capacity; with more than twelve clusters, which of
//! several equal ones fall inside the prefix is decided by the sorting algorithm (pattern-defeating quicksort since
//! Go 1.19). To place workloads as Karmada does, we take the same steps. Nothing else should use this module: everywhere
//! else our orders are total and any sort will do.

/// Sorts as Go's `sort.Sort` does with `less` as `Less`.
pub(crate) fn sort<T>(data: &mut [T], less: impl Fn(&T, &T) -> bool) {
    let length = data.len();
    let mut sorter = Sorter { data, less };
    sorter.quick(0, length, bit_length(length));
}

/// Slices up to this length are sorted by insertion.
const INSERTION_MAX: usize = 12;
/// From this length on the pivot is chosen among nine elements, and nearly sorted runs are repaired in place.
const NINTHER_MIN: usize = 50;
/// How many out-of-order pairs the repair of a nearly sorted run may fix before it gives up.
const REPAIRS_MAX: usize = 5;
/// As many swaps as choosing a pivot among nine can make: the run was in reverse.
const SWAPS_MAX: usize = 4 * 3;

fn bit_length(value: usize) -> u32 {
    usize::BITS - value.leading_zeros()
}

#[derive(Clone, Copy, PartialEq)]
enum Hint {
    Unknown,
    Increasing,
    Decreasing,
}

struct Sorter<'a, T, L> {
    data: &'a mut [T],
    less: L,
}

impl<T, L: Fn(&T, &T) -> bool> Sorter<'_, T, L> {
    fn less(&self, left: usize, right: usize) -> bool {
        (self.less)(&self.data[left], &self.data[right])
    }

    fn swap(&mut self, left: usize, right: usize) {
        self.data.swap(left, right);
    }

    fn quick(&mut self, mut a: usize, mut b: usize, mut limit: u32) {
        let mut balanced = true;
        let mut partitioned = true;
        loop {
            let length = b - a;
            if length <= INSERTION_MAX {
                return self.insertion(a, b);
            }
            if limit == 0 {
                return self.heap(a, b);
            }
            if !balanced {
                self.break_patterns(a, b);
                limit -= 1;
            }
            let (mut pivot, mut hint) = self.choose_pivot(a, b);
            if hint == Hint::Decreasing {
                self.data[a..b].reverse();
                pivot = (b - 1) - (pivot - a);
                hint = Hint::Increasing;
            }
            if balanced && partitioned && hint == Hint::Increasing && self.repair(a, b) {
                return;
            }
            // Everything in this range is at least the element before it; if the pivot is no more than that, it is equal.
            if a > 0 && !self.less(a - 1, pivot) {
                a = self.partition_equal(a, b, pivot);
                continue;
            }
            let (middle, already) = self.partition(a, b, pivot);
            partitioned = already;
            let (left, right) = (middle - a, b - middle);
            let threshold = length / 8;
            if left < right {
                balanced = left >= threshold;
                self.quick(a, middle, limit);
                a = middle + 1;
            } else {
                balanced = right >= threshold;
                self.quick(middle + 1, b, limit);
                b = middle;
            }
        }
    }

    fn insertion(&mut self, a: usize, b: usize) {
        for outer in a + 1..b {
            let mut inner = outer;
            while inner > a && self.less(inner, inner - 1) {
                self.swap(inner, inner - 1);
                inner -= 1;
            }
        }
    }

    fn heap(&mut self, a: usize, b: usize) {
        let length = b - a;
        for start in (0..=(length - 1) / 2).rev() {
            self.sift_down(start, length, a);
        }
        for end in (0..length).rev() {
            self.swap(a, a + end);
            self.sift_down(0, end, a);
        }
    }

    fn sift_down(&mut self, mut root: usize, end: usize, first: usize) {
        loop {
            let mut child = 2 * root + 1;
            if child >= end {
                return;
            }
            if child + 1 < end && self.less(first + child, first + child + 1) {
                child += 1;
            }
            if !self.less(first + root, first + child) {
                return;
            }
            self.swap(first + root, first + child);
            root = child;
        }
    }

    /// Swaps three elements around the middle with pseudo-random ones, so that no input stays quadratic.
    fn break_patterns(&mut self, a: usize, b: usize) {
        let length = b - a;
        if length < 8 {
            return;
        }
        let mut random = length as u64;
        let modulus = 1u64 << bit_length(length);
        let first = a + (length / 4) * 2 - 1;
        for place in first..first + 3 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let mut other = (random & (modulus - 1)) as usize;
            if other >= length {
                other -= length;
            }
            self.swap(place, a + other);
        }
    }

    fn choose_pivot(&self, a: usize, b: usize) -> (usize, Hint) {
        let length = b - a;
        let mut swaps = 0;
        let mut i = a + length / 4;
        let mut j = a + length / 4 * 2;
        let mut k = a + length / 4 * 3;
        if length >= 8 {
            if length >= NINTHER_MIN {
                i = self.median(i - 1, i, i + 1, &mut swaps);
                j = self.median(j - 1, j, j + 1, &mut swaps);
                k = self.median(k - 1, k, k + 1, &mut swaps);
            }
            j = self.median(i, j, k, &mut swaps);
        }
        match swaps {
            0 => (j, Hint::Increasing),
            SWAPS_MAX => (j, Hint::Decreasing),
            _ => (j, Hint::Unknown),
        }
    }

    fn median(&self, mut a: usize, mut b: usize, mut c: usize, swaps: &mut usize) -> usize {
        let mut order = |left: &mut usize, right: &mut usize| {
            if self.less(*right, *left) {
                *swaps += 1;
                std::mem::swap(left, right);
            }
        };
        order(&mut a, &mut b);
        order(&mut b, &mut c);
        order(&mut a, &mut b);
        b
    }

    /// Tries to finish a nearly sorted run with a few swaps; tells whether it is sorted now.
    fn repair(&mut self, a: usize, b: usize) -> bool {
        let mut index = a + 1;
        for _ in 0..REPAIRS_MAX {
            while index < b && !self.less(index, index - 1) {
                index += 1;
            }
            if index == b {
                return true;
            }
            if b - a < NINTHER_MIN {
                return false;
            }
            self.swap(index, index - 1);
            if index - a >= 2 {
                for position in (1..index).rev() {
                    if !self.less(position, position - 1) {
                        break;
                    }
                    self.swap(position, position - 1);
                }
            }
            if b - index >= 2 {
                for position in index + 1..b {
                    if !self.less(position, position - 1) {
                        break;
                    }
                    self.swap(position, position - 1);
                }
            }
        }
        false
    }

    /// Puts what equals the pivot first; returns where the rest begins.
    fn partition_equal(&mut self, a: usize, b: usize, pivot: usize) -> usize {
        self.swap(a, pivot);
        let (mut i, mut j) = (a + 1, b - 1);
        loop {
            while i <= j && !self.less(a, i) {
                i += 1;
            }
            while i <= j && self.less(a, j) {
                j -= 1;
            }
            if i > j {
                return i;
            }
            self.swap(i, j);
            i += 1;
            j -= 1;
        }
    }

    /// Puts what is less than the pivot before it; returns the pivot's place and whether nothing had to move.
    fn partition(&mut self, a: usize, b: usize, pivot: usize) -> (usize, bool) {
        self.swap(a, pivot);
        let (mut i, mut j) = (a + 1, b - 1);
        while i <= j && self.less(i, a) {
            i += 1;
        }
        while i <= j && !self.less(j, a) {
            j -= 1;
        }
        if i > j {
            self.swap(j, a);
            return (j, true);
        }
        self.swap(i, j);
        i += 1;
        j -= 1;
        loop {
            while i <= j && self.less(i, a) {
                i += 1;
            }
            while i <= j && !self.less(j, a) {
                j -= 1;
            }
            if i > j {
                break;
            }
            self.swap(i, j);
            i += 1;
            j -= 1;
        }
        self.swap(j, a);
        (j, false)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn twelve_or_fewer_elements_keep_the_order_of_equals() {
        let mut data = [(1, 'a'), (2, 'b'), (1, 'c'), (2, 'd'), (3, 'e')];
        sort(&mut data, |left, right| left.0 > right.0);
        assert_eq!(data.map(|(_, name)| name), ['e', 'b', 'd', 'a', 'c']);
    }

    /// Arrays as Go 1.26 sorted them: the values before, and where each element came from afterwards.
    #[test]
    fn equal_elements_end_up_where_go_leaves_them() {
        let cases: Vec<(Vec<u32>, Vec<usize>)> =
            serde_json::from_str(include_str!("../testdata/sort/go.json")).expect("well-formed");
        assert!(cases.len() >= 100);
        for (values, expected) in cases {
            let mut data: Vec<(u32, usize)> = values.iter().copied().zip(0..).collect();
            sort(&mut data, |left, right| left.0 > right.0);
            assert!(data.iter().map(|(_, origin)| *origin).eq(expected.iter().copied()), "{values:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn the_result_is_a_sorted_permutation(values in prop::collection::vec(0u32..50, 0..300)) {
            let mut data: Vec<(u32, usize)> = values.iter().copied().zip(0..).collect();
            sort(&mut data, |left, right| left.0 > right.0);
            prop_assert!(data.windows(2).all(|pair| pair[0].0 >= pair[1].0));
            let mut seen: Vec<usize> = data.iter().map(|(_, index)| *index).collect();
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..values.len()));
        }
    }
}
