//! Rejects clusters without the property that a spread constraint groups by.
//!
//! Applies even where constraints are later ignored (static weights), as upstream.

use api::policy::SpreadFieldValue;

use super::{Context, Filter, Plugin, Reason};
use crate::fleet::Member;

pub(super) struct SpreadConstraint;

impl Plugin for SpreadConstraint {
    fn name(&self) -> &'static str {
        "SpreadConstraint"
    }

    fn filter<'a>(&'a self, context: &Context<'a>) -> Option<Box<dyn Filter + 'a>> {
        let constraints = &context.spec.placement.as_ref()?.spread_constraints;
        let needed: Vec<&SpreadFieldValue> = constraints
            .iter()
            .filter_map(|constraint| constraint.spread_by_field.as_ref())
            .filter(|field| !matches!(field, SpreadFieldValue::Cluster | SpreadFieldValue::Other(_)))
            .collect();
        if needed.is_empty() { None } else { Some(Box::new(Check { needed })) }
    }
}

struct Check<'a> {
    needed: Vec<&'a SpreadFieldValue>,
}

impl Filter for Check<'_> {
    fn reject(&self, _position: u32, member: &Member) -> Option<Reason> {
        self.needed.iter().find_map(|field| match field {
            SpreadFieldValue::Provider if !member.has_provider() => {
                Some(Reason::Fixed("cluster(s) did not have provider property"))
            }
            SpreadFieldValue::Region if member.region().is_empty() => {
                Some(Reason::Fixed("cluster(s) did not have region property"))
            }
            SpreadFieldValue::Zone if member.zones.is_empty() => {
                Some(Reason::Fixed("cluster(s) did not have zones property"))
            }
            _ => None,
        })
    }
}
