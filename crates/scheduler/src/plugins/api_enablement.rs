//! Rejects clusters that do not serve the API of the resource.
//!
//! A cluster that already runs the resource passes, so that an incomplete report never takes a workload away. Whether
//! the cluster's report is complete makes no difference otherwise: what is not reported is not there.

use super::{Context, Filter, Plugin, Reason};
use crate::fleet::Member;

pub(super) struct ApiEnablement;

impl Plugin for ApiEnablement {
    fn name(&self) -> &'static str {
        "APIEnablement"
    }

    fn filter<'a>(&'a self, context: &Context<'a>) -> Option<Box<dyn Filter + 'a>> {
        let resource = &context.spec.resource;
        Some(Box::new(Check {
            context: *context,
            api: context.fleet.api(&resource.api_version, &resource.kind),
        }))
    }
}

struct Check<'a> {
    context: Context<'a>,
    api: Option<u32>,
}

impl Filter for Check<'_> {
    fn reject(&self, position: u32, member: &Member) -> Option<Reason> {
        let served = self.api.is_some_and(|api| member.serves(api));
        (!served && !self.context.is_target(position))
            .then_some(Reason::Fixed("cluster(s) did not have the API resource"))
    }
}
