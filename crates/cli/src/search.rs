//! `search`: finds objects in all members at once, in the control plane's copies.

use clap::Args;
use jiff::Timestamp;
use serde_json::Value;

use crate::describe::age;
use crate::output;
use crate::print::table::align;
use crate::server::{Connection, query as escape};

const PATH: &str = "/apis/search.karmada.io/v1alpha1/query";

/// Find objects in all clusters at once.
///
/// Only what a ResourceRegistry names can be found. A query is a sequence of terms that must all hold: kind, cluster, namespace,
/// name, status, image, node and label are compared with : and !=, age with < and >. Patterns may have * and ?; several, separated
/// by commas, mean any of them. A word alone is looked for in names.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Pods of an image that do not run, in the clusters of a region, made within the last hour
  karmadactl search 'kind:pod status!=Running image:*:v2 cluster:eu-* age<1h'

  # The newest warnings about an application
  karmadactl search 'kind:event label:app=web' --sort age --limit 20

  # Everything called checkout, as JSON
  karmadactl search checkout -o json")]
pub struct Arguments {
    /// What to look for; nothing means everything.
    #[arg(value_name = "QUERY")]
    pub query: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
    /// The order of what is found: name, age (the youngest first), -age or status.
    #[arg(long, value_name = "ORDER", default_value = "name", allow_hyphen_values = true)]
    pub sort: String,
    /// Show so many at most; 0 means all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub limit: usize,
    /// Output format. One of: (wide, name, json). With json, whole objects, one a line.
    #[arg(short, long, value_name = "FORMAT", default_value = "", value_parser = ["", "wide", "name", "json"])]
    pub output: String,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let plane = arguments.connection.plane().await?;
    let query = arguments.query.join(" ");
    let (mut rows, mut next) = (Vec::new(), String::new());
    loop {
        let page = match arguments.limit {
            0 => 1000,
            limit => limit.saturating_sub(rows.len()).min(1000),
        };
        let mut path = format!("{PATH}?q={}&sort={}&limit={page}", escape(&query), escape(&arguments.sort));
        if arguments.output == "json" {
            path.push_str("&objects=true");
        }
        if !next.is_empty() {
            path.push_str(&format!("&continue={next}"));
        }
        let answer = plane.server.get(&path).await?;
        rows.extend(items(&answer["items"]).cloned());
        next = answer["metadata"]["continue"].as_str().unwrap_or("").to_owned();
        if next.is_empty() || arguments.limit > 0 && rows.len() >= arguments.limit {
            break;
        }
    }
    match arguments.output.as_str() {
        "json" => rows.iter().for_each(|row| output::line(&row.to_string())),
        "name" => rows.iter().for_each(|row| output::line(&name(row))),
        _ if rows.is_empty() => {
            output::warn("nothing found; only what a ResourceRegistry names can be found")
        }
        format => output::print(&align(&table(&rows, format == "wide", Timestamp::now()))),
    }
    if !next.is_empty() {
        output::warn(&format!("there is more than the {} shown; hint: --limit 0 shows all", rows.len()));
    }
    Ok(())
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().unwrap_or("")
}

/// Returns `cluster/namespace/kind/name`.
fn name(row: &Value) -> String {
    let parts = [text(row, "cluster"), text(row, "namespace"), text(row, "kind"), text(row, "name")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

fn table(rows: &[Value], wide: bool, now: Timestamp) -> Vec<Vec<String>> {
    let mut head = vec!["CLUSTER", "NAMESPACE", "KIND", "NAME", "STATUS", "AGE"];
    if wide {
        head.extend(["NODE", "IMAGES"]);
    }
    let mut lines = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for row in rows {
        let fields = ["cluster", "namespace", "kind", "name", "status"];
        let mut line: Vec<String> = fields.iter().map(|field| text(row, field).to_owned()).collect();
        if !text(row, "staleSince").is_empty() {
            line[4].push_str(" (stale)");
        }
        line.push(age(text(row, "created"), now));
        if wide {
            line.push(text(row, "node").to_owned());
            let images: Vec<&str> = items(&row["images"]).filter_map(Value::as_str).collect();
            line.push(images.join(","));
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn results_are_a_table_and_stale_ones_are_marked() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let rows = [
            json!({"cluster": "m1", "namespace": "shop", "kind": "Pod", "name": "web", "status": "Running",
                "created": "2026-01-01T00:00:00Z", "node": "n1", "images": ["nginx:v2", "envoy"], "staleSince": "x"}),
            json!({"cluster": "m2", "kind": "Node", "name": "n1", "status": "Ready", "created": "2026-01-01T00:59:00Z"}),
        ];
        let lines = table(&rows, true, now);
        assert_eq!(lines[1], ["m1", "shop", "Pod", "web", "Running (stale)", "60m", "n1", "nginx:v2,envoy"]);
        assert_eq!(lines[2][..6], ["m2", "", "Node", "n1", "Ready", "60s"]);
        assert_eq!((name(&rows[0]).as_str(), name(&rows[1]).as_str()), ("m1/shop/Pod/web", "m2/Node/n1"));
    }
}
