//! How much work the overrides of one object in one cluster may be.
//!
//! Whoever may write an override policy decides how often an object is read, changed and printed, and that happens on a thread that
//! serves everybody. Policies that admission refuses today may have been stored before, and many small policies add up, so the
//! limits are kept here, where the work is done; admission tells the writer of a single policy early.

use api::policy::Overriders;
use apimachinery::patch::json::{Spent, Tree};
use serde_json::Value;

use super::Error;

/// So many rules may apply to an object in a cluster. Policies have a handful, and a fleet has its rules by region or provider.
pub const MAX_RULES: usize = 1_000;

/// So many overriders may all these rules have together: what a policy of a hundred containers with ten changes each needs.
pub const MAX_ENTRIES: usize = 1_000;

/// So many bytes may be read and printed on the way, those of an object or a field again for each rule that patches it. It is some
/// twenty times the largest object that can be stored; YAML takes about a second for it.
pub const MAX_BYTES: usize = 32 << 20;

/// What one step costs besides the bytes that it looks at, for steps that are many and small.
const STEP: usize = 64;

/// What was spent for an object so far.
#[derive(Debug, Default)]
pub(super) struct Budget {
    rules: usize,
    entries: usize,
    bytes: usize,
    /// The size of the object before the first change. What patches add to it is limited by the size of the policies.
    object: Option<usize>,
    pub(super) patches: Spent,
}

impl Budget {
    /// Counts a rule that is about to be applied.
    pub(super) fn rule(&mut self, overriders: &Overriders) -> Result<(), Error> {
        self.rules = self.rules.saturating_add(1);
        self.entries = self.entries.saturating_add(entries(overriders));
        if self.rules > MAX_RULES {
            return Err(Error::TooManyRules);
        }
        if self.entries > MAX_ENTRIES {
            return Err(Error::TooManyEntries);
        }
        Ok(())
    }

    /// Counts bytes that are read or written.
    pub(super) fn bytes(&mut self, bytes: usize) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MAX_BYTES { Err(Error::TooMuchWork) } else { Ok(()) }
    }

    /// Counts small steps.
    pub(super) fn steps(&mut self, steps: usize) -> Result<(), Error> {
        self.bytes(steps.saturating_mul(STEP))
    }

    /// Counts a pass over the whole object.
    pub(super) fn pass(&mut self, object: &Value) -> Result<(), Error> {
        let size = *self.object.get_or_insert_with(|| object.size());
        self.bytes(size)
    }

    #[cfg(test)]
    pub(super) fn spent_bytes(&self) -> usize {
        self.bytes
    }
}

/// Returns how many overriders a rule has.
pub fn entries(overriders: &Overriders) -> usize {
    let Overriders {
        plaintext,
        image_overrider,
        command_overrider,
        args_overrider,
        labels_overrider,
        annotations_overrider,
        field_overrider,
    } = overriders;
    [
        plaintext.len(),
        image_overrider.len(),
        command_overrider.len(),
        args_overrider.len(),
        labels_overrider.len(),
        annotations_overrider.len(),
        field_overrider.len(),
    ]
    .into_iter()
    .sum()
}
