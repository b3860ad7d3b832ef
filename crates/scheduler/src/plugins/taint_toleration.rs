//! Rejects clusters with a taint that the placement does not tolerate.
//!
//! A cluster that already runs the resource passes: leaving is the business of the taint manager, not of the scheduler.

use super::{Context, Filter, Plugin, Reason};
use crate::fleet::Member;

pub(super) struct TaintToleration;

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn filter<'a>(&'a self, context: &Context<'a>) -> Option<Box<dyn Filter + 'a>> {
        let tolerations =
            context.spec.placement.as_ref().map(|placement| placement.cluster_tolerations.as_slice());
        let tolerations = tolerations.unwrap_or_default();
        let taints = context.fleet.taints();
        let tolerated =
            taints.iter().map(|taint| tolerations.iter().any(|one| taint.tolerated_by(one))).collect();
        Some(Box::new(Check { context: *context, tolerated }))
    }
}

struct Check<'a> {
    context: Context<'a>,
    /// By the number of the taint.
    tolerated: Vec<bool>,
}

impl Filter for Check<'_> {
    fn reject(&self, position: u32, member: &Member) -> Option<Reason> {
        let taint = member.taints.iter().find(|taint| !self.tolerated[**taint as usize])?;
        (!self.context.is_target(position)).then_some(Reason::Taint(*taint))
    }
}
