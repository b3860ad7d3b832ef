//! Kyverno's policies.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::blocks::{
    at, json_number, list, missing, number, picked, set_status, statuses, text, united_conditions,
};
use super::{Items, Rules};
use crate::Result;

pub(super) const POLICY: Rules = Rules {
    reflect: Some(|object| {
        Ok(picked(object, &["ready", "conditions", "autogen", "rulecount"]).unwrap_or_default())
    }),
    aggregate: Some(aggregate),
    health: Some(|object| {
        if let Some(ready) = at(object, &["status", "ready"]) {
            return Ok(ready == &json!(true));
        }
        Ok(list(object, &["status", "conditions"]).iter().any(|condition| {
            let field = |name| text(condition, &[name]).unwrap_or_default();
            field("type") == "Ready" && field("status") == "True" && field("reason") == "Succeeded"
        }))
    }),
    ..Rules::NONE
};

fn aggregate(object: &mut Value, items: Items<'_>, _now: Timestamp) -> Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    let mut status = Map::new();
    let mut counts = [("validate", 0.0), ("generate", 0.0), ("mutate", 0.0), ("verifyimages", 0.0)];
    for (_, found) in statuses(items) {
        for name in ["autogen", "ready"] {
            if let Some(value) = at(found, &[name]) {
                status.insert(name.into(), value.clone());
            }
        }
        if let Some(rulecount) = at(found, &["rulecount"]) {
            for (name, count) in &mut counts {
                *count += number(rulecount, &[name]).ok_or_else(|| missing(&["rulecount", name]))?;
            }
        }
    }
    let counts: Map<_, _> =
        counts.into_iter().map(|(name, count)| (name.to_owned(), json_number(count))).collect();
    status.insert("rulecount".into(), Value::Object(counts));
    status.insert("conditions".into(), Value::Array(united_conditions(items)?));
    set_status(object, Value::Object(status));
    Ok(())
}
