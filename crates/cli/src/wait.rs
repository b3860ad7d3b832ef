//! `wait`: ends when objects have a condition or value, exist, or are gone, in the control plane or in members.

use std::time::Duration;

use anyhow::{anyhow, bail};
use apimachinery::jsonpath::{self, Path};
use clap::Args;
use serde_json::Value;

use crate::clients::duration;
use crate::clusters::{Places, place_prefix};
use crate::failure::{self, Failures};
use crate::manifests::Files;
use crate::output;
use crate::select::{Item, Query, Words};
use crate::server::{Namespaced, Server};

/// Wait for a specific condition on one or many resources.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Until deployment web is available in cluster member1
  karmadactl wait deployment/web --for=condition=Available -C member1 --timeout=2m

  # Until all clusters are ready
  karmadactl wait clusters --all --for=condition=Ready

  # Until pods run in two clusters
  karmadactl wait pods -l app=web --for='jsonpath={.status.phase}=Running' -C member1,member2

  # Until it is gone
  karmadactl wait deployment/web --for=delete")]
pub struct Arguments {
    /// TYPE NAME… or TYPE/NAME….
    #[arg(value_name = "RESOURCE")]
    pub resources: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub places: Places,
    #[command(flatten)]
    pub files: Files,
    /// create, delete, condition=NAME[=VALUE], or jsonpath={PATH}[=VALUE].
    #[arg(long = "for", value_name = "WHAT", default_value = "")]
    pub what: String,
    /// How long to wait before giving up; zero looks once, a negative number of seconds means a week.
    #[arg(long, value_name = "DURATION", default_value = "30s", allow_hyphen_values = true)]
    pub timeout: String,
    /// Select all objects of the types, in the namespace.
    #[arg(long)]
    pub all: bool,
    /// Look in all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Label selector, such as app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Field selector, such as metadata.name=web.
    #[arg(long, value_name = "SELECTOR")]
    pub field_selector: Option<String>,
}

/// The state to wait for.
#[derive(Debug)]
enum Goal {
    Create,
    Delete,
    Condition { name: String, value: String },
    Value { path: Path, value: Option<String> },
}

impl Goal {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let lower = text.to_lowercase();
        if lower == "delete" {
            return Ok(Self::Delete);
        }
        if lower == "create" {
            return Ok(Self::Create);
        }
        if let Some(rest) = text.strip_prefix("condition=") {
            let (name, value) = rest.split_once('=').unwrap_or((rest, "true"));
            if name.is_empty() {
                bail!("--for={text} names no condition; write it like condition=Ready");
            }
            return Ok(Self::Condition { name: name.to_lowercase(), value: value.to_lowercase() });
        }
        if let Some(rest) = text.strip_prefix("jsonpath=") {
            let rest = rest.trim_start_matches('\'');
            let end = rest.rfind('}').map_or(rest.len(), |end| end + 1);
            let (path, value) = rest.split_at(end);
            let value = match value.trim_start_matches('\'') {
                "" => None,
                value => match value.strip_prefix('=').map(|value| value.trim_matches(['"', '\''])) {
                    Some(value) if !value.is_empty() => Some(value.to_owned()),
                    _ => bail!(
                        "jsonpath wait format must be --for=jsonpath='{{.status.readyReplicas}}'=3 or --for=jsonpath='{{.status.readyReplicas}}'"
                    ),
                },
            };
            let path = Path::parse(path).map_err(|error| anyhow!("--for={text}: {error}"))?;
            return Ok(Self::Value { path, value });
        }
        bail!("unrecognized condition: {}", apimachinery::go::quote(text))
    }

    fn met(&self, object: Option<&Value>) -> bool {
        match (self, object) {
            (Self::Delete, object) => object.is_none(),
            (_, None) => false,
            (Self::Create, Some(_)) => true,
            (Self::Condition { name, value }, Some(object)) => {
                // Conditions that describe an older generation do not count.
                let generation = object["metadata"]["generation"].as_i64();
                let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
                conditions.into_iter().any(|condition| {
                    let text = |key: &str| condition[key].as_str().unwrap_or("").to_lowercase();
                    let observed = condition["observedGeneration"]
                        .as_i64()
                        .or(object["status"]["observedGeneration"].as_i64());
                    let fresh = observed.zip(generation).is_none_or(|(observed, wanted)| observed >= wanted);
                    text("type") == *name && text("status") == *value && fresh
                })
            }
            (Self::Value { path, value }, Some(object)) => {
                let found = path.find(object);
                match value {
                    None => !found.is_empty(),
                    Some(value) => {
                        !found.is_empty() && found.iter().all(|found| jsonpath::print(found) == *value)
                    }
                }
            }
        }
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let goal = Goal::parse(&arguments.what)?;
    let patience = match arguments.timeout.strip_prefix('-') {
        Some(rest) => duration(rest).map(|_| Duration::from_secs(7 * 24 * 3600))?,
        None => duration(&arguments.timeout)?,
    };
    let plane = arguments.place.plane().await?;
    let asked = Query {
        words: arguments.resources.clone(),
        files: arguments.files.clone(),
        namespace: plane.namespace.clone(),
        namespace_asked: plane.namespace_asked,
        all_namespaces: arguments.all_namespaces,
        labels: arguments.selector.clone(),
        fields: arguments.field_selector.clone(),
        all: arguments.all,
        ..Query::default()
    };
    let servers = plane.places(&arguments.places).await?;
    let deadline = tokio::time::Instant::now() + patience;
    let waiting = servers.iter().map(|server| on_server(server, &asked, &goal, deadline));
    let failures: Vec<anyhow::Error> =
        futures::future::join_all(waiting).await.into_iter().flatten().collect();
    Failures::check(failures)
}

async fn on_server(
    server: &Server,
    asked: &Query,
    goal: &Goal,
    deadline: tokio::time::Instant,
) -> Vec<anyhow::Error> {
    let (items, mut failures) = match first_look(server, asked, goal, deadline).await {
        Ok(found) => found,
        Err(error) => return vec![error],
    };
    if matches!(goal, Goal::Delete) {
        // A missing object is the wanted state.
        failures.retain(|error| !failure::is_not_found(error));
    } else if items.is_empty() && failures.is_empty() {
        failures.push(anyhow!("{}no matching resources found", place_prefix(server)));
    }
    for item in &items {
        match until(server, item, goal, deadline).await {
            Ok(()) => output::line(&format!("{}{} condition met", place_prefix(server), item.title())),
            Err(error) => failures.push(error),
        }
    }
    failures
}

/// An object that is yet to be created may be missing.
async fn first_look(
    server: &Server,
    asked: &Query,
    goal: &Goal,
    deadline: tokio::time::Instant,
) -> anyhow::Result<(Vec<Item>, Vec<anyhow::Error>)> {
    if matches!(goal, Goal::Create)
        && asked.files.is_empty()
        && !Words::parse(&asked.words)?.named()
        && !asked.all
        && asked.labels.is_none()
        && asked.fields.is_none()
    {
        bail!("--for=create needs a name, a selector or --all");
    }
    let mut pause = Duration::from_millis(50);
    loop {
        let (items, failures) = asked.items(server).await?;
        let pending = failures.iter().any(failure::is_not_found) || (items.is_empty() && failures.is_empty());
        if !matches!(goal, Goal::Create) || !pending {
            return Ok((items, failures));
        }
        if tokio::time::Instant::now() + pause > deadline {
            bail!("{}timed out waiting for the condition", place_prefix(server));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

async fn until(
    server: &Server,
    item: &Item,
    goal: &Goal,
    deadline: tokio::time::Instant,
) -> anyhow::Result<()> {
    let mut pause = Duration::from_millis(50);
    let mut object = Some(item.object.clone());
    loop {
        // Another object with the same name is not the original one.
        let same = |found: &Value| found["metadata"]["uid"] == item.object["metadata"]["uid"];
        if goal.met(object.as_ref().filter(|found| !matches!(goal, Goal::Delete) || same(found))) {
            return Ok(());
        }
        if object.is_none() && !matches!(goal, Goal::Delete) {
            bail!(
                "{}{} {} was deleted while waiting",
                place_prefix(server),
                item.resource.full_name(),
                item.name
            );
        }
        if tokio::time::Instant::now() + pause > deadline {
            bail!(
                "{}timed out waiting for the condition on {}/{}",
                place_prefix(server),
                item.resource.plural,
                item.name
            );
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
        object = match server.get(&item.path()).await {
            Ok(found) => Some(found),
            Err(error) if failure::is_not_found(&error) => None,
            Err(error) => return Err(error),
        };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn goals_are_met_by_what_they_say() {
        let object = json!({"metadata": {"generation": 2}, "status": {"phase": "Running", "observedGeneration": 2,
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Old", "status": "True", "observedGeneration": 1}]}});
        for (text, met) in [
            ("condition=Ready", true),
            ("condition=ready=true", true),
            ("condition=Ready=False", false),
            ("condition=Old", false),
            ("condition=Nothing", false),
            ("jsonpath={.status.phase}=Running", true),
            ("jsonpath='{.status.phase}'=Running", true),
            ("jsonpath={.status.phase}=Failed", false),
            ("jsonpath={.status.phase}", true),
            ("jsonpath={.status.nothing}", false),
            ("create", true),
            ("delete", false),
        ] {
            let goal = Goal::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(goal.met(Some(&object)), met, "{text}");
        }
        assert!(Goal::parse("delete").expect("good").met(None));
        for bad in ["", "x", "condition=", "jsonpath={.a}=", "jsonpath={"] {
            assert!(Goal::parse(bad).is_err(), "{bad}");
        }
    }
}
