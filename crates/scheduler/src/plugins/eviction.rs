//! Rejects clusters that the resource is being evicted from.

use super::{Context, Filter, Plugin, Reason};
use crate::fleet::Member;
use crate::symbols::Bits;

pub(super) struct ClusterEviction;

impl Plugin for ClusterEviction {
    fn name(&self) -> &'static str {
        "ClusterEviction"
    }

    fn filter<'a>(&'a self, context: &Context<'a>) -> Option<Box<dyn Filter + 'a>> {
        let tasks = &context.spec.graceful_eviction_tasks;
        let mut leaving = Bits::default();
        for position in tasks.iter().filter_map(|task| context.fleet.position(&task.from_cluster)) {
            leaving.insert(position);
        }
        if tasks.is_empty() { None } else { Some(Box::new(Check { leaving })) }
    }
}

struct Check {
    leaving: Bits,
}

impl Filter for Check {
    fn reject(&self, position: u32, _member: &Member) -> Option<Reason> {
        self.leaving.contains(position).then_some(Reason::Fixed("cluster(s) is in the process of eviction"))
    }
}
