//! To come.
use crate::plan::Step;
use crate::view::View;
use serde_json::Value;
pub(crate) fn decide(_: &View<'_>, _: &Value) -> Vec<Step> {
    Vec::new()
}
