//! Prefers clusters that already run the resource.

use super::{Context, Plugin, Score};
use crate::fleet::Member;

/// The score of a cluster that already runs the resource; others get 0.
const HERE: i64 = 100;

pub(super) struct ClusterLocality;

impl Plugin for ClusterLocality {
    fn name(&self) -> &'static str {
        "ClusterLocality"
    }

    fn score<'a>(&'a self, context: &Context<'a>) -> Option<Box<dyn Score + 'a>> {
        if context.spec.clusters.is_empty() { None } else { Some(Box::new(Rate(*context))) }
    }
}

struct Rate<'a>(Context<'a>);

impl Score for Rate<'_> {
    fn score(&self, position: u32, _member: &Member) -> Result<i64, String> {
        Ok(if self.0.is_target(position) { HERE } else { 0 })
    }
}
