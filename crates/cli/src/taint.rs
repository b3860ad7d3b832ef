//! `taint`: adds taints to clusters and removes them.

use anyhow::bail;
use apimachinery::names;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::output;
use crate::server::{Connection, segment};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Update the taints on one or more clusters.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Update cluster foo with a taint with key dedicated, value special-user and effect NoSchedule
  karmadactl taint clusters foo dedicated=special-user:NoSchedule

  # Remove from cluster foo the taint with key dedicated and effect NoSchedule if one exists
  karmadactl taint clusters foo dedicated:NoSchedule-

  # Remove from cluster foo all the taints with key dedicated
  karmadactl taint clusters foo dedicated-")]
pub struct Arguments {
    /// clusters NAME… KEY[=VALUE]:EFFECT… KEY[:EFFECT]-…
    #[arg(value_name = "CLUSTER")]
    pub words: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
    /// If true, allow taints to be overwritten, otherwise reject taint updates that overwrite existing taints.
    #[arg(long)]
    pub overwrite: bool,
    /// Run the command in dry-run mode, without making any server requests that change something.
    #[arg(long)]
    pub dry_run: bool,
}

/// Changes the taints.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let (clusters, changes) = parse(&arguments.words)?;
    let plane = arguments.connection.plane().await?;
    let mut found = Vec::new();
    for name in clusters {
        let path = format!("/apis/cluster.karmada.io/v1alpha1/clusters/{}", segment(name));
        let cluster = plane.server.get(&path).await?;
        found.push((name, path, cluster));
    }
    for (name, path, cluster) in found {
        let old = cluster["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let (new, done) = changes.apply(name, &old, arguments.overwrite)?;
        if !arguments.dry_run {
            let taints = if new.is_empty() { Value::Null } else { new.into() };
            let patch = json!({ "spec": { "taints": taints } });
            plane.server.patch(&path, "application/merge-patch+json", &patch).await?;
        }
        output::line(&format!("cluster/{name} {done}"));
    }
    Ok(())
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Taint {
    key: String,
    value: String,
    effect: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    add: Vec<Taint>,
    /// An empty effect means all of them.
    remove: Vec<Taint>,
}

fn parse(words: &[String]) -> anyhow::Result<(Vec<&str>, Changes)> {
    let mut names = Vec::new();
    let mut specs = Vec::new();
    for word in words {
        let taint = word.contains(['=', ':']) || word.ends_with('-');
        match (taint, specs.is_empty()) {
            (true, _) => specs.push(word.as_str()),
            (false, true) => names.push(word.as_str()),
            (false, false) => bail!("all resources must be specified before taint changes: {word}"),
        }
    }
    let Some((type_, clusters)) = names.split_first() else {
        bail!("one or more resources must be specified as <resource> <name>");
    };
    if !matches!(*type_, "cluster" | "clusters") {
        bail!("invalid resource type {type_}, only [\"cluster\" \"clusters\"] are supported");
    }
    if specs.is_empty() {
        bail!("at least one taint update is required");
    }
    if clusters.is_empty() {
        bail!("at least one resource name must be specified");
    }
    Ok((clusters.to_vec(), Changes::parse(&specs)?))
}

impl Changes {
    fn parse(specs: &[&str]) -> anyhow::Result<Self> {
        let mut changes = Self::default();
        for spec in specs {
            if let Some(spec) = spec.strip_suffix('-') {
                changes.remove.push(taint(spec, false)?);
                continue;
            }
            let taint = taint(spec, true)?;
            if changes.add.iter().any(|each| each.key == taint.key && each.effect == taint.effect) {
                bail!(
                    "duplicated taints with the same key and effect: {{{} {} {} <nil>}}",
                    taint.key,
                    taint.value,
                    taint.effect
                );
            }
            changes.add.push(taint);
        }
        let conflict = |add: &Taint, remove: &&Taint| {
            add.key == remove.key && (remove.effect.is_empty() || add.effect == remove.effect)
        };
        let both: Vec<String> = changes
            .add
            .iter()
            .flat_map(|add| changes.remove.iter().filter(move |remove| conflict(add, remove)))
            .map(|remove| format!("{{\"{}\":\"{}\"}}", remove.key, remove.effect))
            .collect();
        if !both.is_empty() {
            bail!(
                "can not both modify and remove the following taint(s) in the same command: {}",
                both.join(", ")
            );
        }
        Ok(changes)
    }

    /// Returns the new taints and a message about the change.
    fn apply(
        &self,
        cluster: &str,
        old: &[Value],
        overwrite: bool,
    ) -> anyhow::Result<(Vec<Value>, &'static str)> {
        let same = |taint: &Value, other: &Taint| {
            taint["key"] == *other.key && (other.effect.is_empty() || taint["effect"] == *other.effect)
        };
        if !overwrite {
            let taken: Vec<&str> = self
                .add
                .iter()
                .filter(|add| old.iter().any(|taint| same(taint, add)))
                .map(|add| add.key.as_str())
                .collect();
            if !taken.is_empty() {
                bail!(
                    "cluster {cluster} already has {} taint(s) with same effect(s) and --overwrite is false",
                    taken.join(",")
                );
            }
        }
        for remove in &self.remove {
            if !old.iter().any(|taint| same(taint, remove)) {
                let effect =
                    if remove.effect.is_empty() { String::new() } else { format!(":{}", remove.effect) };
                bail!("taint \"{}{effect}\" not found", remove.key);
            }
        }
        let mut new: Vec<Value> = self.add.iter().map(Taint::object).collect();
        let stays = |taint: &&Value| !self.add.iter().chain(&self.remove).any(|change| same(taint, change));
        new.extend(old.iter().filter(stays).cloned());
        let done = match (self.add.is_empty(), self.remove.is_empty(), overwrite) {
            (_, _, true) | (false, false, _) => "modified",
            (true, false, _) => "untainted",
            _ => "tainted",
        };
        Ok((new, done))
    }
}

impl Taint {
    fn object(&self) -> Value {
        let mut map = Map::new();
        map.insert("key".into(), self.key.clone().into());
        if !self.value.is_empty() {
            map.insert("value".into(), self.value.clone().into());
        }
        map.insert("effect".into(), self.effect.clone().into());
        map.into()
    }
}

fn taint(spec: &str, adding: bool) -> anyhow::Result<Taint> {
    let parts: Vec<&str> = spec.split(':').collect();
    let (pair, effect) = match &parts[..] {
        [pair] => (*pair, ""),
        [pair, effect] => (*pair, *effect),
        _ => bail!("invalid taint spec: {spec}"),
    };
    if parts.len() == 2 && !EFFECTS.contains(&effect) {
        bail!("invalid taint effect: {effect}, unsupported taint effect");
    }
    // Without an effect, the whole word is the key.
    let (key, value) = match pair.split_once('=') {
        Some(parts) if !effect.is_empty() => parts,
        _ => (pair, ""),
    };
    if value.contains('=') {
        bail!("invalid taint spec: {spec}");
    }
    for complaints in [names::qualified_name(key), names::label_value(value)] {
        if !complaints.is_empty() {
            bail!("invalid taint spec: {spec}, {}", complaints.join("; "));
        }
    }
    if adding && effect.is_empty() {
        bail!("invalid taint spec: {spec}");
    }
    Ok(Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> anyhow::Result<(Vec<String>, Changes)> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words).map(|(names, changes)| (names.into_iter().map(str::to_owned).collect(), changes))
    }

    #[test]
    fn words_are_names_first_and_taints_then() {
        let (names, changes) = read("clusters a b k=v:NoSchedule x:NoExecute- y-").expect("good");
        assert_eq!(names, ["a", "b"]);
        assert_eq!((changes.add.len(), changes.remove.len()), (1, 2));
        for (line, complaint) in [
            ("nodes a k:NoSchedule", "invalid resource type"),
            ("clusters a", "at least one taint update is required"),
            ("clusters k:NoSchedule", "at least one resource name must be specified"),
            ("clusters a k:NoSchedule b", "all resources must be specified before taint changes: b"),
            ("clusters a k:Never", "invalid taint effect: Never"),
            ("clusters a k=v", "invalid taint spec: k=v"),
            ("clusters a k:NoSchedule k=w:NoSchedule", "duplicated taints"),
            ("clusters a k:NoSchedule k:NoSchedule-", "can not both modify and remove"),
            ("clusters a k:NoSchedule k-", "in the same command: {\"k\":\"\"}"),
            ("clusters a ,:NoSchedule", "invalid taint spec"),
        ] {
            let error = read(line).expect_err(line).to_string();
            assert!(error.contains(complaint), "{line}: {error}");
        }
    }

    #[test]
    fn taints_are_added_overwritten_and_removed() {
        let old = [json!({"key": "k", "value": "v", "effect": "NoSchedule"})];
        let apply = |line: &str, overwrite| read(line).expect("good").1.apply("m1", &old, overwrite);
        assert_eq!(apply("cluster m1 n:NoExecute", false).expect("good").1, "tainted");
        assert_eq!(apply("cluster m1 k-", false).expect("good"), (vec![], "untainted"));
        assert_eq!(apply("cluster m1 n:NoExecute k:NoSchedule-", false).expect("good").1, "modified");
        let (new, done) = apply("cluster m1 k=w:NoSchedule", true).expect("good");
        assert_eq!(
            (new, done),
            (vec![json!({"key": "k", "value": "w", "effect": "NoSchedule"})], "modified")
        );
        let error = apply("cluster m1 k=w:NoSchedule", false).expect_err("taken").to_string();
        assert_eq!(error, "cluster m1 already has k taint(s) with same effect(s) and --overwrite is false");
        let error = apply("cluster m1 x:NoSchedule-", false).expect_err("missing").to_string();
        assert_eq!(error, "taint \"x:NoSchedule\" not found");
    }
}
