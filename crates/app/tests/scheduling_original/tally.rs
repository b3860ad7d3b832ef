//! What was compared: which outcomes differ, what may differ, and how often everything that matters came up.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

const APPLIED: &str = "policy.karmada.io/applied-placement";

/// What counts of a decision.
#[derive(Debug, Clone, PartialEq)]
struct Outcome {
    clusters: Value,
    applied: Value,
    affinity: Value,
    status: Value,
    reason: Value,
    message: Value,
}

impl Outcome {
    fn of(binding: &Value) -> Self {
        let conditions = binding["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let scheduled = conditions.iter().find(|one| one["type"] == "Scheduled").unwrap_or(&Value::Null);
        Self {
            clusters: binding["spec"]["clusters"].clone(),
            applied: binding["metadata"]["annotations"][APPLIED].clone(),
            affinity: binding["status"]["schedulerObservingAffinityName"].clone(),
            status: scheduled["status"].clone(),
            reason: scheduled["reason"].clone(),
            message: scheduled["message"].clone(),
        }
    }

    fn text(&self) -> &str {
        self.message.as_str().unwrap_or_default()
    }

    fn field(&self, name: &str) -> &Value {
        match name {
            "clusters" => &self.clusters,
            "applied" => &self.applied,
            "affinity" => &self.affinity,
            "status" => &self.status,
            "reason" => &self.reason,
            "message" => &self.message,
            _ => panic!("no field {name}"),
        }
    }

    fn field_mut(&mut self, name: &str) -> &mut Value {
        match name {
            "clusters" => &mut self.clusters,
            "applied" => &mut self.applied,
            "affinity" => &mut self.affinity,
            "status" => &mut self.status,
            "reason" => &mut self.reason,
            "message" => &mut self.message,
            _ => panic!("no field {name}"),
        }
    }
}

/// What may differ, and in which fields. A full run fails for what never does.
const EXCUSES: &[(&str, &[&str])] = &[
    ("cause", &["reason"]),
    ("reasons", &["message"]),
    ("order", &["clusters"]),
    ("sums", &["clusters", "applied", "status", "reason", "message"]),
];

/// Returns the fields that differ and may, each with its excuse.
fn excuses(theirs: &Outcome, ours: &Outcome) -> Vec<(&'static str, &'static str)> {
    let holds = |excuse: &str| match excuse {
        "cause" => {
            ours.reason == "Unschedulable"
                && theirs.reason == "SchedulerError"
                && ours.message == theirs.message
        }
        "reasons" => same_but_for_reasons(ours.text(), theirs.text()),
        "order" => sorted(&ours.clusters) == sorted(&theirs.clusters),
        // Nothing that can be added up is negative.
        "sums" => theirs.text().contains("Clusters available replicas -") && ours.status == "True",
        _ => false,
    };
    let mut excused: Vec<(&str, &str)> = Vec::new();
    for (excuse, fields) in EXCUSES.iter().filter(|(excuse, _)| holds(excuse)) {
        for field in *fields {
            let told = excused.iter().any(|(_, excused)| excused == field);
            if !told && ours.field(field) != theirs.field(field) {
                excused.push((excuse, field));
            }
        }
    }
    excused
}

/// One line of the summary.
#[derive(Debug, Default)]
struct Count {
    decisions: usize,
    placed: usize,
    failed: usize,
    differ: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) decisions: usize,
    outcomes: BTreeMap<String, usize>,
    /// Decisions by what they were about.
    facts: BTreeMap<String, Count>,
    /// What was allowed to differ and did: how often, by excuse and field.
    excused: BTreeMap<(&'static str, &'static str), usize>,
    pub(crate) differences: Vec<String>,
}

/// What both schedulers were given.
pub(crate) struct Input<'a> {
    /// Fleet, round and name.
    pub(crate) at: String,
    pub(crate) binding: &'a Value,
    pub(crate) clusters: &'a [Value],
    /// What happened to the binding since the last round.
    pub(crate) change: &'static str,
}

impl Tally {
    pub(crate) fn compare(&mut self, input: &Input<'_>, original: &Value, ours: &Value) {
        self.decisions += 1;
        let (theirs, mut ours) = (Outcome::of(original), Outcome::of(ours));
        let reason = theirs.reason.as_str().unwrap_or("nothing to do").to_owned();
        *self.outcomes.entry(reason).or_default() += 1;
        for excuse in excuses(&theirs, &ours) {
            *self.excused.entry(excuse).or_default() += 1;
            let (_, field) = excuse;
            *ours.field_mut(field) = theirs.field(field).clone();
        }
        let differ = ours != theirs;
        for fact in facts(input) {
            let count = self.facts.entry(fact).or_default();
            count.decisions += 1;
            count.placed += usize::from(theirs.status == "True");
            count.failed += usize::from(theirs.status == "False");
            count.differ += usize::from(differ);
        }
        if differ {
            let (at, binding) = (&input.at, input.binding);
            let difference =
                format!("{at}\n  input    {binding}\n  original {theirs:?}\n  ours     {ours:?}");
            eprintln!("{difference}");
            self.differences.push(difference);
        }
    }

    /// Returns the whole result as text.
    pub(crate) fn summary(&self) -> String {
        let Self { decisions, outcomes, facts, excused, differences } = self;
        let mut text = format!(
            "{decisions} decisions: {outcomes:?}; allowed to differ, by excuse and field: {excused:?}; {} differ\n",
            differences.len()
        );
        let _ = writeln!(text, "{:62} decisions  placed  failed  differ", "");
        for (fact, Count { decisions, placed, failed, differ }) in facts {
            let _ = writeln!(text, "{fact:62} {decisions:9} {placed:7} {failed:7} {differ:7}");
        }
        text
    }

    /// Returns what may differ and never did: excuses that are needed no more, field by field.
    pub(crate) fn unused(&self) -> Vec<(&'static str, &'static str)> {
        let all = EXCUSES.iter().flat_map(|(excuse, fields)| fields.iter().map(|field| (*excuse, *field)));
        all.filter(|excuse| !self.excused.contains_key(excuse)).collect()
    }

    /// Returns what never came up though it should have.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        EXPECTED.iter().filter(|fact| !self.facts.contains_key(**fact)).copied().collect()
    }
}

/// What a full run has to have seen.
const EXPECTED: &[&str] = &[
    "affinity: by groups, several",
    "affinity: by groups, one",
    "affinity: by one rule",
    "affinity: none",
    "change: another placement",
    "change: evicted from a cluster",
    "change: fresh start",
    "change: new",
    "change: scaled down",
    "change: scaled up",
    "cluster: being deleted",
    "cluster: without the API",
    "cluster: with an untolerated taint",
    "spread: cluster",
    "spread: none",
    "spread: provider",
    "spread: region",
    "spread: region and cluster",
    "spread: zone",
    "strategy: Aggregated",
    "strategy: Duplicated",
    "strategy: dynamic weight",
    "strategy: evenly",
    "strategy: none given",
    "strategy: static weight",
    "what: cluster-scoped",
    "what: with replicas",
    "what: without replicas",
];

/// Returns what a decision is about.
fn facts(input: &Input<'_>) -> Vec<String> {
    let (spec, placement) = (&input.binding["spec"], &input.binding["spec"]["placement"]);
    let scheduling = &placement["replicaScheduling"];
    let weights = &scheduling["weightPreference"];
    let strategy = match (
        scheduling["replicaSchedulingType"].as_str(),
        scheduling["replicaDivisionPreference"].as_str(),
    ) {
        (None, _) => "none given",
        (Some("Duplicated"), _) => "Duplicated",
        (_, Some("Aggregated")) => "Aggregated",
        _ if weights["dynamicWeight"].is_string() => "dynamic weight",
        _ if weights["staticWeightList"].is_array() => "static weight",
        _ => "evenly",
    };
    let what = match (&input.binding["kind"], &spec["replicas"]) {
        (kind, _) if kind == "ClusterResourceBinding" => "cluster-scoped",
        (_, replicas) if replicas.is_number() => "with replicas",
        _ => "without replicas",
    };
    let mut facts = vec![
        format!("strategy: {strategy}"),
        format!("what: {what}"),
        format!("change: {}", input.change),
        format!("strategy and change: {strategy}, {}", input.change),
    ];
    let affinity = match placement["clusterAffinities"].as_array().map(Vec::len) {
        Some(1) => "by groups, one",
        Some(_) => "by groups, several",
        None if placement["clusterAffinity"].is_object() => "by one rule",
        None => "none",
    };
    facts.push(format!("affinity: {affinity}"));
    let fields: Vec<&str> = placement["spreadConstraints"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|constraint| constraint["spreadByField"].as_str())
        .collect();
    match (fields.contains(&"region"), fields.contains(&"cluster")) {
        (true, true) => facts.push("spread: region and cluster".to_owned()),
        (true, false) => facts.push("spread: region".to_owned()),
        (false, true) => facts.push("spread: cluster".to_owned()),
        (false, false) if fields.is_empty() => facts.push("spread: none".to_owned()),
        (false, false) => {}
    }
    let further = fields.iter().filter(|field| ["zone", "provider"].contains(field));
    facts.extend(further.map(|field| format!("spread: {field}")));
    facts.extend(about_clusters(input).into_iter().map(|what| format!("cluster: {what}")));
    facts
}

/// Returns what some cluster is like that the binding is not on yet.
fn about_clusters(input: &Input<'_>) -> Vec<&'static str> {
    let spec = &input.binding["spec"];
    let targets: Vec<&Value> =
        spec["clusters"].as_array().into_iter().flatten().map(|target| &target["name"]).collect();
    let others = || input.clusters.iter().filter(|cluster| !targets.contains(&&cluster["metadata"]["name"]));
    // The only toleration that bindings are given is for every taint with the key `k`.
    let tolerant = spec["placement"]["clusterTolerations"].is_array();
    let untolerated = |cluster: &Value| {
        let taints = cluster["spec"]["taints"].as_array();
        taints.into_iter().flatten().any(|taint| !tolerant || taint["key"] != "k")
    };
    let mut found = Vec::new();
    if others().any(untolerated) {
        found.push("with an untolerated taint");
    }
    if others().any(|cluster| cluster["status"]["apiEnablements"].is_null()) {
        found.push("without the API");
    }
    if input.clusters.iter().any(|cluster| cluster["deleting"] == true) {
        found.push("being deleted");
    }
    found
}

fn sorted(clusters: &Value) -> Vec<String> {
    let mut all: Vec<String> = clusters.as_array().into_iter().flatten().map(Value::to_string).collect();
    all.sort();
    all
}

/// Says whether two messages report the same numbers of clusters, rejected for whichever reason.
fn same_but_for_reasons(one: &str, other: &str) -> bool {
    let parse = |message: &str| -> Option<(String, usize)> {
        let (head, reasons) = message.split_once(" clusters are available: ")?;
        let counts = reasons.split(", ").map(|reason| reason.split(' ').next()?.parse::<usize>().ok());
        Some((head.to_owned(), counts.sum::<Option<usize>>()?))
    };
    parse(one).is_some() && parse(one) == parse(other)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn binding(clusters: Value, status: &str, reason: &str, message: &str) -> Value {
        json!({"metadata": {"annotations": {}}, "spec": {"clusters": clusters},
            "status": {"conditions": [{"type": "Scheduled", "status": status, "reason": reason, "message": message}]}})
    }

    fn compared(original: &Value, ours: &Value) -> Tally {
        let mut tally = Tally::default();
        let at = "here".to_owned();
        tally.compare(&Input { at, binding: &json!({}), clusters: &[], change: "new" }, original, ours);
        tally
    }

    #[test]
    fn an_excuse_covers_its_own_fields_and_no_others() {
        let (a, b) = (json!({"name": "a"}), json!({"name": "b"}));
        let success = |clusters: Value, reason: &str| binding(clusters, "True", reason, "fine");
        let original = success(json!([a, b]), "Success");
        let order = compared(&original, &success(json!([b, a]), "Success"));
        assert!(order.differences.is_empty() && order.excused.contains_key(&("order", "clusters")));
        assert!(
            !order.unused().contains(&("order", "clusters")) && order.unused().contains(&("cause", "reason"))
        );
        let more = compared(&original, &success(json!([b, a]), "Another"));
        assert_eq!(more.differences.len(), 1);
        let sums =
            binding(json!([a]), "False", "Unschedulable", "Clusters available replicas -5 are not enough");
        let mut ours = success(json!([a, b]), "Success");
        assert!(compared(&sums, &ours).differences.is_empty());
        ours["status"]["schedulerObservingAffinityName"] = json!("group");
        assert_eq!(compared(&sums, &ours).differences.len(), 1, "the group is excused by nothing");
    }

    #[test]
    fn nothing_is_unused_once_all_has_differed() {
        let mut tally = Tally::default();
        for (excuse, fields) in EXCUSES {
            tally.excused.extend(fields.iter().map(|field| ((*excuse, *field), 1)));
        }
        assert!(tally.unused().is_empty());
    }
}
