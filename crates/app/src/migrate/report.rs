//! The report of a migration, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::plan::{Plan, Step};
use super::rehearsal::Rehearsal;
use super::snapshot::Snapshot;

/// How many names are listed; of longer lists, the rest is counted.
const SHOWN: usize = 50;

pub(crate) struct Report<'a> {
    pub(crate) from: &'a str,
    pub(crate) to: &'a str,
    pub(crate) source: &'a Snapshot,
    pub(crate) plan: &'a Plan,
    pub(crate) rehearsal: Option<&'a Rehearsal>,
    pub(crate) prune: bool,
    /// Clusters whose agents must get the address of the control plane.
    pub(crate) pulled: Vec<String>,
}

impl Report<'_> {
    pub(crate) fn json(&self) -> Value {
        let names = |keys: &[super::snapshot::Key]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
        json!({
            "from": self.from,
            "to": self.to,
            "objects": self.source.items.len(),
            "create": self.plan.count(Step::Create),
            "settle": self.plan.count(Step::Settle),
            "replace": self.plan.count(Step::Replace),
            "unchanged": self.plan.count(Step::Nothing),
            "conflicts": names(&self.plan.conflicts),
            "onlyInTarget": names(&self.plan.extra),
            "unknown": self.plan.unknown,
            "leftOut": self.source.left_out,
            "unread": self.source.unreadable,
            "pulled": self.pulled,
            "rehearsal": self.rehearsal.map(|rehearsal| json!({
                "complete": rehearsal.complete,
                "seconds": rehearsal.seconds,
                "members": rehearsal.members,
                "absent": rehearsal.absent,
                "writes": rehearsal.touches.iter().map(|(touch, fields)| json!({
                    "cluster": touch.cluster, "verb": touch.verb, "path": touch.path, "fields": fields,
                })).collect::<Vec<_>>(),
                "repeated": rehearsal.repeated,
            })),
        })
    }

    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.print(&mut out);
        out
    }

    fn print(&self, out: &mut String) -> std::fmt::Result {
        let plan = self.plan;
        writeln!(out, "From {}: {} objects", self.from, self.source.items.len())?;
        writeln!(out, "To   {}", self.to)?;
        writeln!(out, "  created             {}", plan.count(Step::Create))?;
        writeln!(out, "  uid or status set   {}", plan.count(Step::Settle))?;
        writeln!(out, "  overwritten         {}", plan.count(Step::Replace))?;
        writeln!(out, "  there already       {}", plan.count(Step::Nothing))?;
        let left: Vec<String> =
            self.source.left_out.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        writeln!(out, "Left out: {}", if left.is_empty() { "nothing".to_owned() } else { left.join(", ") })?;
        let unreadable = self.source.unreadable.iter().cloned();
        list(out, "Not read, since the servers that have these groups are away:", unreadable)?;
        if plan.forgotten_owners > 0 {
            writeln!(out, "References to owners that are left out, removed: {}", plan.forgotten_owners)?;
        }
        let kinds = plan.unknown.iter().map(|(kind, count)| format!("{kind}: {count} objects"));
        list(out, "The target does not know these kinds:", kinds)?;
        let conflicts = plan.conflicts.iter().map(ToString::to_string);
        list(out, "The target has other content under these names:", conflicts)?;
        let title = if self.prune {
            "Removed, since only the target has them:"
        } else {
            "Only in the target, and left there:"
        };
        list(out, title, plan.extra.iter().map(ToString::to_string))?;
        list(out, "Clusters whose agents must be registered with the target:", self.pulled.iter().cloned())?;
        match self.rehearsal {
            None => writeln!(out, "Not rehearsed: what would be written to members is not known."),
            Some(rehearsal) => self.print_rehearsal(out, rehearsal),
        }
    }

    fn print_rehearsal(&self, out: &mut String, rehearsal: &Rehearsal) -> std::fmt::Result {
        writeln!(
            out,
            "Rehearsed in {} s with {} on a copy in memory; writes to members were held back.",
            rehearsal.seconds,
            if rehearsal.members.is_empty() { "no member".to_owned() } else { rehearsal.members.join(", ") },
        )?;
        let absent = rehearsal.absent.iter().cloned();
        list(out, "These members took no part; nothing is known about them:", absent)?;
        if !rehearsal.complete {
            writeln!(out, "The controllers did not come to rest; more may be written than is told here.")?;
        }
        if !rehearsal.repeated.is_empty() {
            writeln!(
                out,
                "Karmada's own controllers send {} objects to members again whenever they start; nothing changes by that:",
                rehearsal.repeated.len()
            )?;
            let mut counts = BTreeMap::<(&str, &str), usize>::new();
            for touch in &rehearsal.repeated {
                let plural = touch.path.rsplit('/').nth(1).unwrap_or_default();
                *counts.entry((&touch.cluster, plural)).or_default() += 1;
            }
            for ((cluster, plural), count) in counts {
                writeln!(out, "  {cluster} {plural}: {count}")?;
            }
        }
        if rehearsal.touches.is_empty() {
            return writeln!(out, "In members nothing would be written.");
        }
        let writes = rehearsal.touches.iter().map(|(touch, fields)| {
            let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
            format!("{} {} {} {}", touch.cluster, touch.verb, touch.path, fields.join(" "))
                .trim_end()
                .to_owned()
        });
        list(out, &format!("In members {} objects would be written:", rehearsal.touches.len()), writes)
    }
}

/// Prints a list, if there is anything in it.
fn list(out: &mut String, title: &str, lines: impl ExactSizeIterator<Item = String>) -> std::fmt::Result {
    let count = lines.len();
    if count == 0 {
        return Ok(());
    }
    writeln!(out, "{title}")?;
    for line in lines.take(SHOWN) {
        writeln!(out, "  {line}")?;
    }
    if count > SHOWN {
        writeln!(out, "  and {} more; -o json lists all", count.saturating_sub(SHOWN))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::rehearsal::Touch;
    use super::*;

    #[test]
    fn repeated_writes_are_reported_separately_from_changes() {
        let (source, plan) = (Snapshot::default(), Plan::default());
        let touch = |cluster: &str, plural: &str, name: &str| Touch {
            cluster: cluster.to_owned(),
            verb: "update",
            path: format!("/api/v1/namespaces/shop/{plural}/{name}"),
        };
        let rehearsal = Rehearsal {
            repeated: ["a", "b"].map(|name| touch("m1", "services", name)).into(),
            members: vec!["m1".to_owned()],
            complete: true,
            ..Rehearsal::default()
        };
        let report = Report {
            from: "one",
            to: "other",
            source: &source,
            plan: &plan,
            rehearsal: Some(&rehearsal),
            prune: false,
            pulled: Vec::new(),
        };
        let told = "send 2 objects to members again whenever they start; nothing changes by that:\n  m1 services: 2\nIn members nothing \
                    would be written.\n";
        assert!(report.text().ends_with(told), "{}", report.text());
        assert_eq!(report.json()["rehearsal"]["writes"], json!([]));
        assert_eq!(report.json()["rehearsal"]["repeated"][1]["path"], "/api/v1/namespaces/shop/services/b");
    }
}
