//! Rejects clusters that the placement's affinity does not mean.
//!
//! With `clusterAffinities` the term being tried counts, for workloads together with its overflow affinities.

use super::{Context, Filter, Plugin, Reason};
use crate::affinity::Matcher;
use crate::fleet::{Fleet, Member};

pub(super) struct ClusterAffinity;

impl Plugin for ClusterAffinity {
    fn name(&self) -> &'static str {
        "ClusterAffinity"
    }

    fn filter<'a>(&'a self, context: &Context<'a>) -> Option<Box<dyn Filter + 'a>> {
        let placement = context.spec.placement.as_ref()?;
        let mut matchers = Vec::new();
        if let Some(affinity) = &placement.cluster_affinity {
            matchers.push(Matcher::new(affinity, context.fleet));
        } else {
            let term = context.affinity_term?;
            matchers.push(Matcher::new(&term.affinity, context.fleet));
            if context.spec.is_workload() {
                let overflow = term.overflow_affinities.iter();
                matchers.extend(overflow.map(|overflow| Matcher::new(&overflow.affinity, context.fleet)));
            }
        }
        Some(Box::new(Check { fleet: context.fleet, matchers }))
    }
}

struct Check<'a> {
    fleet: &'a Fleet,
    matchers: Vec<Matcher>,
}

impl Filter for Check<'_> {
    fn reject(&self, _position: u32, member: &Member) -> Option<Reason> {
        let meant = self.matchers.iter().any(|matcher| matcher.matches(member, self.fleet));
        (!meant)
            .then_some(Reason::Fixed("cluster(s) did not match the placement cluster affinity constraint"))
    }
}
