//! `describe`: one object in full, with its events.
//!
//! Every type is shown in the same way: what the object says, field by field, in words instead of YAML. Events follow.

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;
use serde_json::Value;

use crate::apply::LAST_APPLIED;
use crate::failure::{self, Failures};
use crate::manifests::Files;
use crate::output;
use crate::print::table::align;
use crate::select::{Item, Query, list, typed};
use crate::server::{Namespaced, Scoped, Server};

/// Show details of a specific resource or group of resources in Karmada control plane or a member cluster.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Describe a propagation policy
  karmadactl describe propagationpolicies/nginx

  # Describe a pod in cluster member1
  karmadactl describe pods/nginx -n shop -s members -C member1

  # Describe all deployments with label app=web
  karmadactl describe deployments -l app=web")]
pub struct Arguments {
    /// TYPE [NAME_PREFIX], or TYPE/NAME….
    #[arg(value_name = "RESOURCE")]
    pub resources: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub files: Files,
    /// Operation scope: karmada or members.
    #[arg(short = 's', long, value_name = "SCOPE", default_value = "karmada", value_parser = crate::server::scope)]
    pub operation_scope: String,
    /// The member cluster; takes effect with the scope members.
    #[arg(short = 'C', long, value_name = "CLUSTER")]
    pub cluster: Option<String>,
    /// Describe across all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Label selector, such as app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Show events related to the described object.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub show_events: bool,
}

/// Describes the objects.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let plane = arguments.place.plane().await?;
    let scope =
        Scoped { operation_scope: arguments.operation_scope.clone(), cluster: arguments.cluster.clone() };
    let server = plane.scoped(&scope).await?;
    if arguments.resources.is_empty() && arguments.files.is_empty() {
        bail!(
            "You must specify the type of resource to describe. Use \"karmadactl api-resources\" for a complete list of supported resources."
        );
    }
    let asked = Query {
        words: arguments.resources.clone(),
        files: arguments.files.clone(),
        namespace: plane.namespace.clone(),
        namespace_asked: plane.namespace_asked,
        all_namespaces: arguments.all_namespaces,
        labels: arguments.selector.clone(),
        all: true,
        ..Query::default()
    };
    let (mut items, mut failures) = asked.items(&server).await?;
    // A name that nothing has may be the beginning of names.
    if items.is_empty()
        && let [_, prefix] = &arguments.resources[..]
        && failures.iter().all(failure::is_not_found)
        && !failures.is_empty()
    {
        items = beginning_with(&server, &asked, prefix).await?;
        if !items.is_empty() {
            failures.clear();
        }
    }
    let mut first = true;
    for item in &items {
        if !std::mem::replace(&mut first, false) {
            output::print("\n\n");
        }
        let mut text = describe(&item.object);
        if arguments.show_events {
            text.push_str(&events(&server, item).await);
        }
        output::print(&text);
    }
    if items.is_empty() && failures.is_empty() {
        if arguments.all_namespaces {
            output::warn("No resources found");
        } else {
            output::warn(&format!("No resources found in {} namespace.", plane.namespace));
        }
    }
    Failures::check(failures)
}

async fn beginning_with(server: &Server, asked: &Query, prefix: &str) -> anyhow::Result<Vec<Item>> {
    let Some(type_) = asked.words.first() else { return Ok(Vec::new()) };
    let resource = server.discovery().await?.resolve(type_)?;
    let found = list(server, &resource.collection(Some(&asked.namespace)), None, None).await?;
    let begins =
        |object: &Value| object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(prefix));
    Ok(found.into_iter().filter(begins).map(|object| Item::new(resource, typed(object, resource))).collect())
}

/// Its level, its name, and its value; what has none is a title or an item of a list.
type Line = (usize, String, Option<String>);

/// Returns the object's text.
fn describe(object: &Value) -> String {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let mut lines: Vec<Line> = vec![
        (0, "Name:".to_owned(), Some(text(&metadata["name"]))),
        (0, "Namespace:".to_owned(), Some(text(&metadata["namespace"]))),
    ];
    pairs(&mut lines, "Labels:", &metadata["labels"], "=");
    pairs(&mut lines, "Annotations:", &metadata["annotations"], ": ");
    lines.push((0, "API Version:".to_owned(), Some(text(&object["apiVersion"]))));
    lines.push((0, "Kind:".to_owned(), Some(text(&object["kind"]))));
    let mut rest = object.clone();
    if let Some(map) = rest.as_object_mut() {
        map.remove("apiVersion");
        map.remove("kind");
    }
    if let Some(map) = rest["metadata"].as_object_mut() {
        for known in ["name", "namespace", "labels", "annotations", "managedFields"] {
            map.remove(known);
        }
    }
    fields(&mut lines, 0, &rest);
    lay(&lines)
}

fn pairs(lines: &mut Vec<Line>, title: &str, map: &Value, between: &str) {
    let mut title = title.to_owned();
    for (key, value) in map.as_object().into_iter().flatten() {
        // What apply remembers says nothing new.
        if key != LAST_APPLIED {
            let text = format!("{key}{between}{}", value.as_str().unwrap_or(""));
            lines.push((0, std::mem::take(&mut title), Some(text)));
        }
    }
    if !title.is_empty() {
        lines.push((0, title, Some("<none>".to_owned())));
    }
}

fn fields(lines: &mut Vec<Line>, level: usize, object: &Value) {
    let mut entries: Vec<(String, &Value)> =
        object.as_object().into_iter().flatten().map(|(key, value)| (title(key), value)).collect();
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    for (key, value) in entries {
        match value {
            Value::Object(map) if map.is_empty() => lines.push((level, format!("{key}:"), None)),
            Value::Object(_) => {
                lines.push((level, format!("{key}:"), None));
                fields(lines, level + 1, value);
            }
            Value::Array(items) => {
                lines.push((level, format!("{key}:"), None));
                for item in items {
                    if item.is_object() {
                        fields(lines, level + 1, item);
                    } else {
                        lines.push((level + 1, apimachinery::jsonpath::print(item), None));
                    }
                }
            }
            other => lines.push((level, format!("{key}:"), Some(apimachinery::jsonpath::print(other)))),
        }
    }
}

/// `resourceVersion` becomes `Resource Version`; what has other signs stays.
fn title(key: &str) -> String {
    if !key.chars().all(|c| c.is_ascii_alphanumeric()) {
        return key.to_owned();
    }
    let mut out = String::new();
    let characters: Vec<char> = key.chars().collect();
    for (i, c) in characters.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|i| characters.get(i));
        let next_lower = characters.get(i + 1).is_some_and(char::is_ascii_lowercase);
        let starts =
            c.is_ascii_uppercase() && before.is_some_and(|before| !before.is_ascii_uppercase() || next_lower);
        if starts {
            out.push(' ');
        }
        out.push(if i == 0 { c.to_ascii_uppercase() } else { *c });
    }
    // Abbreviations that kubectl knows.
    out.split(' ')
        .map(|word| match word {
            "Uid" => "UID".to_owned(),
            "Api" => "API".to_owned(),
            "Url" => "URL".to_owned(),
            "Ip" => "IP".to_owned(),
            other => other.to_owned(),
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Values of neighbouring lines stand in one column, two spaces behind the longest name; a title begins anew.
fn lay(lines: &[Line]) -> String {
    let mut out = String::new();
    for block in lines.chunk_by(|one, other| one.2.is_some() && other.2.is_some()) {
        let size = |(level, key, _): &Line| 2 * level + key.chars().count();
        let width = block.iter().map(size).max().unwrap_or(0) + 2;
        for line in block {
            let (level, key, value) = line;
            out.push_str(&format!("{}{key}", "  ".repeat(*level)));
            if let Some(value) = value {
                let mut parts = value.trim_end_matches('\n').split('\n');
                out.push_str(&format!("{}{}", " ".repeat(width - size(line)), parts.next().unwrap_or("")));
                for part in parts {
                    out.push_str(&format!("\n{}{part}", " ".repeat(width)));
                }
            }
            out.push('\n');
        }
    }
    out
}

async fn events(server: &Server, item: &Item) -> String {
    let uid = item.object["metadata"]["uid"].as_str().unwrap_or("");
    let mut selector = format!("involvedObject.name={}", item.name);
    if !uid.is_empty() {
        selector.push_str(&format!(",involvedObject.uid={uid}"));
    }
    let namespace = if item.namespace.is_empty() { "default" } else { &item.namespace };
    let path = format!("/api/v1/namespaces/{}/events", crate::server::segment(namespace));
    let Ok(mut events) = list(server, &path, None, Some(&selector)).await else { return String::new() };
    if events.is_empty() {
        return "Events:  <none>\n".to_owned();
    }
    let last = |event: &Value| -> String {
        let times = [
            &event["lastTimestamp"],
            &event["series"]["lastObservedTime"],
            &event["eventTime"],
            &event["firstTimestamp"],
        ];
        times.iter().find_map(|time| time.as_str()).unwrap_or("").to_owned()
    };
    events.sort_by_key(last);
    let mut rows = vec![
        ["  Type", "Reason", "Age", "From", "Message"].map(str::to_owned).to_vec(),
        ["  ----", "------", "----", "----", "-------"].map(str::to_owned).to_vec(),
    ];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    for event in &events {
        let from = [&event["source"]["component"], &event["reportingComponent"]];
        let from = from.iter().find_map(|from| from.as_str().filter(|from| !from.is_empty())).unwrap_or("");
        let count = event["count"].as_i64().or(event["series"]["count"].as_i64()).unwrap_or(1);
        let mut age = age(&last(event), Timestamp::now());
        if count > 1 {
            let first = event["firstTimestamp"].as_str().or(event["eventTime"].as_str()).unwrap_or("");
            age = format!("{age} (x{count} over {})", self::age(first, Timestamp::now()));
        }
        rows.push(vec![
            format!("  {}", text(&event["type"])),
            text(&event["reason"]),
            age,
            from.to_owned(),
            text(&event["message"]).trim().to_owned(),
        ]);
    }
    format!("Events:\n{}", align(&rows))
}

/// How long ago, as kubectl says it: `45s`, `3m12s`, `26m`, `5h2m`, `3d`.
fn age(time: &str, now: Timestamp) -> String {
    let Ok(time) = time.parse::<Timestamp>() else { return "<unknown>".to_owned() };
    let seconds = now.duration_since(time).as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let with =
        |main: String, rest: i64, unit: &str| if rest == 0 { main } else { format!("{main}{rest}{unit}") };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => with(format!("{minutes}m"), seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => with(format!("{hours}h"), minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => with(format!("{days}d"), hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        _ => with(format!("{}y", days / 365), days % 365, "d"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_told_in_words() {
        let object = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": "n", "namespace": "ns", "labels": {"a": "1", "b": "2"}, "uid": "u", "managedFields": []},
            "spec": {"preemption": "Never", "clusterNames": ["m1", "m2"], "list": [{"x": 1}]}});
        assert_eq!(
            describe(&object),
            "Name:         n\nNamespace:    ns\nLabels:       a=1\n              b=2\nAnnotations:  <none>\n\
             API Version:  policy.karmada.io/v1alpha1\nKind:         PropagationPolicy\nMetadata:\n  UID:  u\nSpec:\n  \
             Cluster Names:\n    m1\n    m2\n  List:\n    X:         1\n  Preemption:  Never\n"
        );
        assert_eq!(title("creationTimestamp"), "Creation Timestamp");
        assert_eq!(title("app.io/x"), "app.io/x");
    }

    #[test]
    fn ages_are_short() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().expect("a time");
        for (time, text) in [
            ("2026-01-01T23:59:15Z", "45s"),
            ("2026-01-01T23:56:48Z", "3m12s"),
            ("2026-01-01T23:34:00Z", "26m"),
            ("2026-01-01T18:58:00Z", "5h2m"),
            ("2025-12-20T00:00:00Z", "13d"),
            ("", "<unknown>"),
        ] {
            assert_eq!(age(time, now), text, "{time}");
        }
    }
}
