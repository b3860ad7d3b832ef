//! Answers expressions from standard input, one JSON document per line, for comparison with another implementation.
//!
//! In: `{"id", "mode": "crd" | "vap" | "map", "schema", "self", "oldSelf", "expr", "limit"}`. Out, per line: what was wrong, or
//! type, estimate, result and cost.

#[path = "../tests/observed/mod.rs"]
mod observed;

use std::io::{BufRead, Write};

use observed::{Setting, answer};
use serde_json::{Map, Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line: Value = serde_json::from_str(&line?)?;
        let setting = Setting {
            schema: (line["mode"] == "crd").then(|| line["schema"].clone()),
            value: line["self"].clone(),
            old: line.get("oldSelf").filter(|old| !old.is_null()).cloned(),
            makes_objects: line["mode"] == "map",
            root: line["root"] == true,
            optional_old: line["optionalOld"] == true,
        };
        let limit = line["limit"].as_u64().unwrap_or(cel::PER_CALL);
        let answer = answer(&setting, line["expr"].as_str().unwrap_or(""), limit);
        let mut shown = Map::new();
        shown.insert("id".to_owned(), line["id"].clone());
        let texts = [
            ("issues", answer.issues),
            ("type", answer.ty),
            ("est", answer.estimate),
            ("program", answer.program),
            ("result", answer.result),
            ("err", answer.error),
        ];
        shown.extend(
            texts
                .into_iter()
                .filter(|(_, text)| !text.is_empty())
                .map(|(name, text)| (name.to_owned(), json!(text))),
        );
        shown.extend(answer.cost.map(|cost| ("cost".to_owned(), json!(cost))));
        writeln!(out, "{}", Value::Object(shown))?;
    }
    Ok(())
}
