//! How the store looks on disk: tables and encodings, and which files are understood.
//!
//! | table | key | value |
//! |---|---|---|
//! | `entries` | collection, name | created, modified, expiry (each 8 bytes little-endian), then the value |
//! | `collections` | collection | the revision of its newest change, kept also when it is empty |
//! | `meta` | `format`, `state` | the version of this layout; [`Meta`] |
//!
//! No event is kept on disk: after a restart the past before it is gone, and watchers of a collection that has
//! changed since start over. The newest change per collection lets watchers of quiet ones simply go on.

use std::num::NonZeroU64;

use redb::TableDefinition;

use crate::{FIRST_REVISION, Revision};

/// Raise it with every change of the layout that older programs would misread.
pub(crate) const FORMAT: u64 = 1;

pub(crate) const ENTRIES: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("entries");
pub(crate) const COLLECTIONS: TableDefinition<'_, &str, u64> = TableDefinition::new("collections");
pub(crate) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

pub(crate) const META_FORMAT: &str = "format";
pub(crate) const META_STATE: &str = "state";

/// Revisions are reserved on disk in steps of this many. After a crash the store goes on behind the reserved
/// range, whatever was handed out of it. Large enough that reserving is rare, and no concern in 64 bits.
pub(crate) const RESERVE: u64 = 10_000;

/// How far a restored store jumps ahead of its backup, at least. Clients may hold revisions from after the backup;
/// they must lie below the first revision of the restored store, where they are refused, and not among revisions to
/// come. At a thousand writes per second, this is eleven days of writes after the backup.
pub const RESTORE_JUMP: u64 = 1_000_000_000;

/// Revisions between two lives of a store that may have been shown to clients and no longer count.
///
/// A client that comes back with one of them has seen a state that was lost (a buffered write before a crash,
/// everything after a backup) and must start over, although no event is missing by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The last revision before the gap.
    pub(crate) start: Revision,
    /// The first revision behind the gap.
    pub(crate) end: Revision,
}

impl Gap {
    pub(crate) fn contains(&self, revision: Revision) -> bool {
        self.start < revision && revision < self.end
    }
}

/// The part of the state that is not entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    /// The newest revision on disk.
    pub(crate) revision: Revision,
    /// No revision above this one has been handed out.
    pub(crate) reserved: Revision,
    pub(crate) compacted: Revision,
    pub(crate) gap: Option<Gap>,
    /// The store was closed in order and nothing was lost.
    pub(crate) clean: bool,
}

impl Meta {
    pub(crate) fn new() -> Self {
        Self { revision: FIRST_REVISION, reserved: FIRST_REVISION, compacted: 0, gap: None, clean: true }
    }

    /// Returns where a store goes on that was not closed in order: behind every revision that anybody may have seen.
    ///
    /// The last reserved revision may have been handed out, too. If the store went on at that one, a client that saw
    /// it before the crash would believe that it knows the present state.
    pub(crate) fn after_crash(self) -> Self {
        self.jump(self.reserved.max(self.revision) + 1)
    }

    /// Returns where a store goes on that is restored from a backup at a time in milliseconds since the Unix epoch.
    ///
    /// Everything before counts as compacted. The time makes two stores from the same backup start at different
    /// revisions, so that a client of the first is refused by the second as well.
    pub(crate) fn after_restore(self, now_ms: u64) -> Self {
        let newest = self.reserved.max(self.revision);
        let revision = newest.saturating_add(RESTORE_JUMP).saturating_add(now_ms);
        Self { revision, reserved: revision, compacted: revision, gap: None, clean: true }
    }

    /// Goes on at `revision`, refusing everything between.
    ///
    /// Only one gap is remembered: what lies before an older one counts as compacted.
    pub(crate) fn jump(self, revision: Revision) -> Self {
        let compacted = self.gap.map_or(self.compacted, |gap| self.compacted.max(gap.end.min(self.revision)));
        Self {
            revision,
            reserved: self.reserved.max(revision),
            compacted,
            gap: Some(Gap { start: self.revision, end: revision }),
            ..self
        }
    }

    pub(crate) fn encode(&self) -> [u8; 48] {
        let gap = self.gap.unwrap_or(Gap { start: 0, end: 0 });
        let fields =
            [self.revision, self.reserved, self.compacted, gap.start, gap.end, u64::from(self.clean)];
        let mut bytes = [0; 48];
        for (slot, field) in bytes.chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != 48 {
            return None;
        }
        let field = |at: usize| u64_at(bytes, at * 8);
        let gap = Gap { start: field(3)?, end: field(4)? };
        Some(Self {
            revision: field(0)?,
            reserved: field(1)?,
            compacted: field(2)?,
            gap: (gap.end > 0).then_some(gap),
            clean: field(5)? == 1,
        })
    }
}

/// Length of what precedes a value in `entries`.
pub(crate) const RECORD_HEADER: usize = 24;

pub(crate) fn encode_record(
    into: &mut [u8],
    created: Revision,
    modified: Revision,
    expires_ms: Option<NonZeroU64>,
    value: &[u8],
) {
    into[0..8].copy_from_slice(&created.to_le_bytes());
    into[8..16].copy_from_slice(&modified.to_le_bytes());
    into[16..24].copy_from_slice(&expires_ms.map_or(0, NonZeroU64::get).to_le_bytes());
    into[RECORD_HEADER..].copy_from_slice(value);
}

/// One record of `entries`: created, modified, expiry, value.
pub(crate) type Record<'a> = (Revision, Revision, Option<NonZeroU64>, &'a [u8]);

pub(crate) fn decode_record(bytes: &[u8]) -> Option<Record<'_>> {
    let value = bytes.get(RECORD_HEADER..)?;
    Some((u64_at(bytes, 0)?, u64_at(bytes, 8)?, NonZeroU64::new(u64_at(bytes, 16)?), value))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_survives_the_disk() {
        let gap = Some(Gap { start: 12, end: 10_000 });
        for meta in [Meta::new(), Meta { revision: 77, reserved: 10_077, compacted: 5, gap, clean: false }] {
            assert_eq!(Meta::decode(&meta.encode()), Some(meta));
        }
        assert_eq!(Meta::decode(&[0; 47]), None);
    }

    #[test]
    fn a_jump_refuses_what_lies_between_and_remembers_older_gaps_as_compacted() {
        let first = Meta { revision: 20, reserved: 10_000, ..Meta::new() }.jump(10_000);
        assert_eq!((first.revision, first.compacted), (10_000, 0));
        assert!(!first.gap.unwrap().contains(20) && first.gap.unwrap().contains(21));
        assert!(first.gap.unwrap().contains(9_999) && !first.gap.unwrap().contains(10_000));
        let second = Meta { revision: 10_005, reserved: 20_000, ..first }.jump(20_000);
        assert_eq!(second.compacted, 10_000);
        assert_eq!(second.gap, Some(Gap { start: 10_005, end: 20_000 }));
    }

    #[test]
    fn after_a_crash_the_last_reserved_revision_is_refused_as_well() {
        let crashed = Meta { revision: 20, reserved: 10_000, clean: false, ..Meta::new() }.after_crash();
        assert_eq!(crashed.revision, 10_001);
        assert!(crashed.gap.unwrap().contains(10_000));
    }

    #[test]
    fn two_stores_from_one_backup_start_far_ahead_and_apart() {
        let backup = Meta { revision: 20, reserved: 20, ..Meta::new() };
        let (first, second) = (backup.after_restore(5_000), backup.after_restore(6_000));
        assert!(first.revision >= 20 + RESTORE_JUMP && second.revision >= first.revision + 1_000);
        assert_eq!((second.compacted, second.gap), (second.revision, None));
    }

    #[test]
    fn finding_12_a_restored_store_is_a_thousand_million_revisions_ahead_whatever_the_clock_says() {
        // The milliseconds since the epoch are more than that, but a machine may have lost its clock.
        let backup = Meta { revision: 20, reserved: 10_000, ..Meta::new() };
        let restored = backup.after_restore(0);
        assert!(restored.revision >= 10_000 + 1_000_000_000, "{}", restored.revision);
        assert_eq!((restored.compacted, restored.reserved), (restored.revision, restored.revision));
    }

    #[test]
    fn records_survive_the_disk() {
        let mut bytes = vec![0; RECORD_HEADER + 3];
        encode_record(&mut bytes, 5, 9, NonZeroU64::new(77), b"abc");
        assert_eq!(decode_record(&bytes), Some((5, 9, NonZeroU64::new(77), &b"abc"[..])));
        assert_eq!(decode_record(&bytes[..20]), None);
    }
}
