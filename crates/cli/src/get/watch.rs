//! `get -w`: the watches of all clusters feed one table, or one stream of documents.
//!
//! If a server ends a watch, it is resumed where it stopped. The command ends when every watch has failed.

use anyhow::{anyhow, bail};
use futures::{AsyncBufReadExt, StreamExt};
use serde_json::Value;
use tokio::sync::mpsc;

use super::rows::{Rows, Shape};
use super::{Arguments, Asked, TABLE, in_cluster};
use crate::discovery::Resource;
use crate::failure::{self, Failures};
use crate::output;
use crate::print::table::Growing;
use crate::print::{Format, document};
use crate::select::{Wanted, list_query, missing_namespace};
use crate::server::{Server, query};
use crate::terminal::paint;

/// A message from one server.
struct Told {
    cluster: String,
    resource: Resource,
    event: String,
    object: Value,
}

pub(super) async fn run(
    arguments: &Arguments,
    format: &Format,
    servers: &[Server],
    asked: &Asked,
) -> anyhow::Result<()> {
    let (sender, mut receiver) = mpsc::channel(64);
    let following = servers.iter().map(|server| {
        let sender = sender.clone();
        async move {
            let result = follow(arguments, format, server, asked, sender).await;
            result.map_err(|error| in_cluster(server, error))
        }
    });
    let following = futures::future::join_all(following);
    drop(sender);
    let mut screen = Screen::new(arguments, format);
    let printing = async {
        while let Some(told) = receiver.recv().await {
            screen.show(&told)?;
        }
        anyhow::Ok(())
    };
    let (results, printed) = tokio::join!(following, printing);
    printed?;
    Failures::check(results.into_iter().filter_map(Result::err).collect())
}

async fn follow(
    arguments: &Arguments,
    format: &Format,
    server: &Server,
    asked: &Asked,
    sender: mpsc::Sender<Told>,
) -> anyhow::Result<()> {
    let wanted = asked.on(server).await?;
    let [(Wanted { resource, name }, namespace)] = &wanted[..] else {
        bail!("you may only specify a single resource type");
    };
    let accept = if format.is_table() { TABLE } else { "application/json" };
    let path = resource.collection(namespace.as_deref());
    let by_name = name.as_ref().map(|name| format!("metadata.name={name}"));
    let fields = match (&by_name, &asked.fields) {
        (Some(name), _) => Some(name.as_str()),
        (None, fields) => fields.as_deref(),
    };
    let labels = asked.labels.as_deref();

    // The first list gives the version from which to watch. A missing object may be created later.
    if let Some(name) = name
        && !arguments.watch_only
        && let Err(error) = server.get(&resource.path(namespace.as_deref().unwrap_or(""), name)).await
    {
        let error = missing_namespace(server, resource, namespace.as_deref().unwrap_or(""), error).await;
        if !(arguments.ignore_not_found && failure::is_not_found(&error)) {
            return Err(error);
        }
    }
    let tell = |event: &str, object: Value| {
        let told = Told {
            cluster: server.name.clone(),
            resource: resource.clone(),
            event: event.to_owned(),
            object,
        };
        sender.send(told)
    };
    let mut next = String::new();
    let mut revision;
    loop {
        let page = server.get_as(&format!("{path}?{}", list_query(labels, fields, &next)), accept).await?;
        revision = page["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned();
        next = page["metadata"]["continue"].as_str().unwrap_or("").to_owned();
        if !arguments.watch_only {
            if page["kind"] == "Table" {
                if tell("ADDED", page).await.is_err() {
                    return Ok(());
                }
            } else {
                for item in page["items"].as_array().into_iter().flatten() {
                    let item = crate::select::typed(item.clone(), resource);
                    if tell("ADDED", item).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        if next.is_empty() {
            break;
        }
    }
    loop {
        let mut address =
            format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion={}", query(&revision));
        for (key, value) in [("labelSelector", labels), ("fieldSelector", fields)] {
            if let Some(value) = value {
                address.push_str(&format!("&{key}={}", query(value)));
            }
        }
        let stream = server.stream(&address, accept).await?;
        let mut lines = stream.lines();
        let mut any = false;
        while let Some(line) = lines.next().await {
            // A broken connection counts as a watch that ended.
            let Ok(line) = line else { break };
            let event: Value =
                serde_json::from_str(&line).map_err(|error| anyhow!("the watch is no JSON: {error}"))?;
            let object = &event["object"];
            let kind = event["type"].as_str().unwrap_or("");
            if kind == "ERROR" {
                return Err(failure::Refusal::new(
                    object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500),
                    &object.to_string(),
                )
                .into());
            }
            any = true;
            let inner = if object["kind"] == "Table" { &object["rows"][0]["object"] } else { object };
            if let Some(seen) = inner["metadata"]["resourceVersion"].as_str() {
                revision = seen.to_owned();
            }
            if kind != "BOOKMARK" && tell(kind, object.clone()).await.is_err() {
                return Ok(());
            }
        }
        if !any {
            // A server that ends every watch immediately is asked again only after a pause.
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    }
}

/// The table on the screen.
struct Screen<'a> {
    arguments: &'a Arguments,
    format: &'a Format,
    growing: Growing,
    rows: Rows,
    headed: bool,
    documents: usize,
    /// In the order in which they first sent something: each has its colour.
    clusters: Vec<String>,
}

impl<'a> Screen<'a> {
    fn new(arguments: &'a Arguments, format: &'a Format) -> Self {
        Self {
            arguments,
            format,
            growing: Growing::default(),
            rows: Rows::watching(),
            headed: false,
            documents: 0,
            clusters: Vec::new(),
        }
    }

    fn show(&mut self, told: &Told) -> anyhow::Result<()> {
        let text = self.text(told)?;
        output::print(&text);
        Ok(())
    }

    fn text(&mut self, told: &Told) -> anyhow::Result<String> {
        let arguments = self.arguments;
        if !self.format.is_table() {
            let object = if arguments.output_watch_events {
                serde_json::json!({"object": told.object, "type": told.event})
            } else {
                document(vec![told.object.clone()], false)
            };
            let text = self.format.print(&object, arguments.show_managed_fields)?;
            self.documents += 1;
            let between = matches!(self.format, Format::Yaml) && self.documents > 1;
            return Ok(if between { format!("---\n{text}") } else { text });
        }
        self.rows.clear();
        self.rows.add_as(&told.object, &told.cluster)?;
        if self.rows.is_empty() {
            return Ok(String::new());
        }
        let resource = &told.resource;
        let shape = Shape {
            wide: matches!(self.format, Format::Table { wide: true }),
            namespaces: arguments.all_namespaces && resource.namespaced,
            kind: arguments.show_kind.then(|| resource.prefix()),
            pods: resource.plural == "pods" && resource.group.is_empty(),
            show_labels: arguments.show_labels,
            label_columns: &arguments.label_columns,
            headers: !arguments.no_headers && !std::mem::replace(&mut self.headed, true),
            event: arguments.output_watch_events.then_some(told.event.as_str()),
        };
        let index = self.clusters.iter().position(|name| *name == told.cluster).unwrap_or_else(|| {
            self.clusters.push(told.cluster.clone());
            self.clusters.len() - 1
        });
        // The cluster comes after the name.
        let column = usize::from(shape.event.is_some()) + usize::from(shape.namespaces) + 1;
        Ok(self.growing.add(&self.rows.lay_out(&shape), &|i, cell| {
            if i == column && cell == told.cluster { paint(cell, index) } else { cell.to_owned() }
        }))
    }
}
