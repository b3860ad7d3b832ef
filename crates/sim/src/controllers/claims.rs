//! To come.
use crate::plan::Step;
use crate::view::{Objects, View};
use serde_json::Value;
pub(crate) fn decide(_: &View<'_>, _: &Value) -> Vec<Step> {
    Vec::new()
}
pub(crate) fn decide_volume(_: &View<'_>, _: &Value) -> Vec<Step> {
    Vec::new()
}
pub(crate) fn unbound(_: &dyn Objects, _: &Value) -> Option<String> {
    None
}
