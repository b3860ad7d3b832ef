//! Shows a report: a picture, tables, and what to do.

use super::report::{Flow, Probe, Report, Severity, Way};
use crate::print::table::align;

/// If a table has more rows than this, only faulty ones are shown.
const MANY: usize = 40;

pub(super) fn draw(report: &Report) -> String {
    let ways: Vec<&str> = report
        .ways
        .iter()
        .map(|way| match way {
            Way::MultiClusterService => "MultiClusterService",
            Way::ServiceExport => "ServiceExport and ServiceImport",
        })
        .collect();
    let offered = if ways.is_empty() { "nothing".to_owned() } else { ways.join("; ") };
    let mut out = format!("Service {}/{}, offered by {offered}\n", report.namespace, report.name);
    if report.clusters.iter().any(|row| row.provides || row.receives) {
        out.push('\n');
        out.push_str(&picture(report));
        out.push('\n');
        out.push_str(&align(&clusters(report)));
    }
    if !report.flows.is_empty() {
        out.push('\n');
        out.push_str(&align(&flows(report)));
        let hidden = report.flows.len() - shown(&report.flows).count();
        if hidden > 0 {
            out.push_str(&format!("({hidden} more are as they should be)\n"));
        }
    }
    out.push('\n');
    if report.findings.is_empty() {
        out.push_str("Everything is as it should be.\n");
    }
    for finding in &report.findings {
        let sign = match finding.severity {
            Severity::Problem => "✗",
            Severity::Note => "·",
        };
        out.push_str(&format!("{sign} {}: {}\n    {}\n", finding.about, finding.message, finding.advice));
    }
    out
}

fn endpoints(count: usize) -> String {
    format!("{count} endpoint{}", if count == 1 { "" } else { "s" })
}

/// The providers on the left, the receivers on the right, the control plane between them. The number on an arrow is the number of
/// endpoints that take this way; with a stroke, some are missing.
fn picture(report: &Report) -> String {
    let mut left = Vec::new();
    for row in report.clusters.iter().filter(|row| row.provides) {
        let own = row.own.map_or_else(|| "?".to_owned(), endpoints);
        let arrow = match (row.ready, row.own) {
            (false, _) => "──╳ ".to_owned(),
            (true, Some(own)) if own != row.collected => format!("──{}/{own}─►", row.collected),
            _ => format!("──{}──►", row.collected),
        };
        left.push((format!("{}  {own}", row.cluster), arrow));
    }
    let mut right = Vec::new();
    for row in report.clusters.iter().filter(|row| row.receives) {
        let flows: Vec<&Flow> = report.flows.iter().filter(|flow| flow.to == row.cluster).collect();
        let wanted: usize = flows.iter().map(|flow| flow.wanted).sum();
        let brought: usize = flows.iter().filter_map(|flow| flow.brought).sum();
        let arrow = match (row.ready, flows.iter().all(|flow| flow.complete)) {
            (false, _) => "──╳ ".to_owned(),
            (true, true) => format!("──{brought}──►"),
            (true, false) => format!("──{brought}/{wanted}─►"),
        };
        let mut services: Vec<&str> = flows.iter().map(|flow| flow.service.as_str()).collect();
        services.dedup();
        right.push((arrow, format!("{}  {}", row.cluster, services.join(", "))));
    }
    let width =
        |texts: &mut dyn Iterator<Item = &String>| texts.map(|text| text.chars().count()).max().unwrap_or(0);
    let (names, arrows) =
        (width(&mut left.iter().map(|(name, _)| name)), width(&mut left.iter().map(|(_, arrow)| arrow)));
    let right_arrows = width(&mut right.iter().map(|(arrow, _)| arrow));
    let pad = |text: &str, width: usize| format!("{text}{}", " ".repeat(width - text.chars().count()));
    // An arrow is extended at its tail, so that all heads are aligned.
    let arrow = |text: &str, width: usize| match text.chars().next() {
        Some(tail) => format!("{}{text}", tail.to_string().repeat(width - text.chars().count())),
        None => " ".repeat(width),
    };
    const BOX: &str = "control plane";
    let blank = " ".repeat(names + 1 + arrows + 1);
    let line = "─".repeat(BOX.len() + 2);
    let mut out = format!("  {blank}┌{line}┐\n");
    let (none_left, none_right) = ((String::new(), String::new()), (String::new(), String::new()));
    for index in 0..left.len().max(right.len()).max(1) {
        let (name, out_of) = left.get(index).unwrap_or(&none_left);
        let (into, receiver) = right.get(index).unwrap_or(&none_right);
        let middle = if index == 0 { BOX } else { "             " };
        let text = format!(
            "  {} {} │ {middle} │ {} {receiver}",
            pad(name, names),
            arrow(out_of, arrows),
            arrow(into, right_arrows)
        );
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out.push_str(&format!("  {blank}└{line}┘\n"));
    out
}

fn clusters(report: &Report) -> Vec<Vec<String>> {
    let head =
        ["CLUSTER", "READY", "PROVIDES", "RECEIVES", "SERVICE", "EXPORT", "OWN", "COLLECTED", "POD-NETWORKS"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let word = |known: Option<bool>| known.map_or("?", |known| if known { "yes" } else { "no" }).to_owned();
    for row in report.clusters.iter().filter(|row| row.provides || row.receives) {
        rows.push(vec![
            row.cluster.clone(),
            word(Some(row.ready)),
            word(Some(row.provides)),
            word(Some(row.receives)),
            word(row.service),
            word(row.export),
            row.own.map_or_else(|| "?".to_owned(), |own| own.to_string()),
            row.collected.to_string(),
            if row.networks.is_empty() { "?".to_owned() } else { row.networks.join(",") },
        ]);
    }
    rows
}

fn is_well(flow: &Flow) -> bool {
    flow.complete && !matches!(flow.probe, Some(Probe::Unreachable { .. }))
}

fn shown(flows: &[Flow]) -> impl Iterator<Item = &Flow> {
    let all = flows.len() <= MANY;
    flows.iter().filter(move |flow| all || !is_well(flow))
}

fn flows(report: &Report) -> Vec<Vec<String>> {
    let mut head = vec!["FROM", "TO", "SERVICE", "WANTED", "BROUGHT", "STATE"];
    let probed = report.flows.iter().any(|flow| flow.probe.is_some());
    if probed {
        head.push("PROBE");
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for flow in shown(&report.flows) {
        let state = match (flow.complete, flow.brought) {
            (true, _) if flow.wanted == 0 => "nothing offered",
            (true, _) => "complete",
            (false, None) => "unknown",
            (false, Some(_)) => "incomplete",
        };
        let brought = flow.brought.map_or_else(|| "?".to_owned(), |brought| brought.to_string());
        let mut row = vec![
            flow.from.clone(),
            flow.to.clone(),
            flow.service.clone(),
            flow.wanted.to_string(),
            brought,
            state.to_owned(),
        ];
        if probed {
            row.push(match &flow.probe {
                None => String::new(),
                Some(Probe::Reached { tried, pod }) => format!("{tried} of {tried} reached from {pod}"),
                Some(Probe::Unreachable { tried, failed, pod }) => {
                    format!("{} of {tried} reached from {pod}", tried - failed.len())
                }
                Some(Probe::Skipped(why)) => format!("skipped: {why}"),
            });
        }
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests;
