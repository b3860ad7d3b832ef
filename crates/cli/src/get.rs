//! `get`: objects of the control plane, of members, or of both, as one table with a column for the cluster.
//!
//! In: types, names, selectors, files. Out: the servers' own tables, merged; or objects in another format, one document per
//! cluster. A failure in one cluster does not hide the others.

use anyhow::{anyhow, bail};
use apimachinery::jsonpath::{self, Path};
use clap::Args;
use serde_json::Value;

use crate::clusters::Members;
use crate::discovery::{Discovery, Resource};
use crate::failure::{self, Failures};
use crate::manifests::Files;
use crate::output;
use crate::print::table::align;
use crate::print::{Format, Templates, document};
use crate::select::{Wanted, Words, list_query, missing_namespace, typed, unfit};
use crate::server::{CONTROL_PLANE, Namespaced, Plane, Server};

mod rows;
mod watch;

use rows::{Rows, Shape};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

/// Display one or many resources in Karmada control plane and member clusters.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # List all deployments in the control plane
  karmadactl get deployments

  # List all pods of cluster member1
  karmadactl get pods --operation-scope=members --clusters=member1

  # Watch the pods of all clusters whose name begins with member
  karmadactl get pods -s members -C 'member*' -w

  # List several types
  karmadactl get deployments,services -o wide")]
pub struct Arguments {
    /// TYPE[.VERSION.GROUP][,TYPE] [NAME…], or TYPE/NAME….
    #[arg(value_name = "RESOURCE")]
    pub resources: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub files: Files,
    /// Operation scope: karmada, members or all.
    #[arg(short = 's', long, value_name = "SCOPE", default_value = "karmada", value_parser = crate::server::scope)]
    pub operation_scope: String,
    #[command(flatten)]
    pub members: Members,
    /// List across all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Label selector, such as app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR", alias = "selector")]
    pub labels: Option<String>,
    /// Field selector, such as metadata.name=web.
    #[arg(long, value_name = "SELECTOR")]
    pub field_selector: Option<String>,
    /// Output format. One of: (json, yaml, kyaml, name, go-template, go-template-file, template, templatefile, jsonpath,
    /// jsonpath-as-json, jsonpath-file, custom-columns, custom-columns-file, wide).
    #[arg(short, long, value_name = "FORMAT", default_value = "")]
    pub output: String,
    #[command(flatten)]
    pub templates: Templates,
    /// Don't print headers.
    #[arg(long)]
    pub no_headers: bool,
    /// Show all labels as the last column.
    #[arg(long)]
    pub show_labels: bool,
    /// Labels to show as columns; may be repeated.
    #[arg(short = 'L', long, value_name = "LABEL", value_delimiter = ',')]
    pub label_columns: Vec<String>,
    /// List the resource type of the objects.
    #[arg(long)]
    pub show_kind: bool,
    /// If true, keep the managedFields when printing objects in JSON or YAML format.
    #[arg(long)]
    pub show_managed_fields: bool,
    /// Sort by this JSONPath, such as {.metadata.name}.
    #[arg(long, value_name = "PATH", default_value = "")]
    pub sort_by: String,
    /// If the requested object does not exist the command ends with 0.
    #[arg(long)]
    pub ignore_not_found: bool,
    /// After listing/getting the requested objects, watch for changes.
    #[arg(short, long)]
    pub watch: bool,
    /// Watch for changes, without listing/getting first.
    #[arg(long)]
    pub watch_only: bool,
    /// Output watch event objects when --watch or --watch-only is used.
    #[arg(long)]
    pub output_watch_events: bool,
}

impl Arguments {
    fn watching(&self) -> bool {
        self.watch || self.watch_only
    }

    fn check(&self, format: &Format) -> anyhow::Result<()> {
        if self.show_labels && !format.is_table() {
            bail!("--show-labels option cannot be used with {} printer", self.output);
        }
        if self.output_watch_events && !self.watching() {
            bail!("--output-watch-events option can only be used with --watch or --watch-only");
        }
        if self.resources.is_empty() && self.files.is_empty() {
            bail!(
                "cluster(Karmada): You must provide one or more resources by argument or filename.\nExample resource \
                 specifications include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'\n   '<resource> <name>'\n   \
                 '<resource>'"
            );
        }
        Ok(())
    }
}

/// Prints the requested objects.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let format = Format::read(&arguments.output, arguments.no_headers, &arguments.templates)?;
    arguments.check(&format)?;
    let sort = match arguments.sort_by.as_str() {
        "" => None,
        path => Some(Path::parse(path).map_err(|error| anyhow!("--sort-by {path}: {error}"))?),
    };
    let plane = arguments.place.plane().await?;
    let servers = servers(&arguments, &plane).await?;
    if servers.is_empty() {
        output::warn("No member Clusters found in Karmada control plane");
        return Ok(());
    }
    let wanted = Asked::new(&arguments, &plane).await?;
    if arguments.watching() {
        return watch::run(&arguments, &format, &servers, &wanted).await;
    }
    if format.is_table() {
        tables(&arguments, &format, sort.as_ref(), &servers, &wanted).await
    } else {
        documents(&arguments, &format, sort.as_ref(), &servers, &wanted).await
    }
}

async fn servers(arguments: &Arguments, plane: &Plane) -> anyhow::Result<Vec<Server>> {
    let mut servers = Vec::new();
    if arguments.operation_scope != "members" {
        servers.push(plane.server.clone());
    }
    if matches!(arguments.operation_scope.as_str(), "members" | "all") {
        servers.extend(
            plane.select(&arguments.members.clusters).await?.iter().map(|name| plane.known_member(name)),
        );
    }
    Ok(servers)
}

/// The request to every server.
pub(super) struct Asked {
    words: Words,
    /// Objects in files: apiVersion, kind, namespace, name.
    objects: Vec<Value>,
    namespace: String,
    all_namespaces: bool,
    labels: Option<String>,
    fields: Option<String>,
    /// The meaning of the words in every cluster, if they are Kubernetes' own types: then the members' discovery is not needed.
    guess: Option<Vec<(Wanted, Option<String>)>>,
}

/// Returns whether every cluster has types of this group.
fn is_native(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}

impl Asked {
    async fn new(arguments: &Arguments, plane: &Plane) -> anyhow::Result<Self> {
        let place = if arguments.operation_scope == "members" { "" } else { "cluster(Karmada): " };
        let words = Words::parse(&arguments.resources).map_err(|error| anyhow!("{place}{error}"))?;
        let mut objects = Vec::new();
        if !arguments.files.is_empty() {
            if !arguments.resources.is_empty() {
                bail!(
                    "when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well"
                );
            }
            objects = arguments.files.read().await?.into_iter().map(|manifest| manifest.object).collect();
        }
        let selecting = arguments.labels.is_some() || arguments.field_selector.is_some();
        if words.named() && selecting {
            bail!("name cannot be provided when a selector is specified");
        }
        if words.named() && arguments.all_namespaces {
            // Upstream finds this out while it asks, and reports where it happened.
            let place = match arguments.operation_scope.as_str() {
                "members" => "",
                _ => "cluster(Karmada): ",
            };
            bail!("{place}a resource cannot be retrieved by name across all namespaces");
        }
        let namespace = (!arguments.all_namespaces).then(|| plane.namespace.clone());
        let guess = match arguments.operation_scope.as_str() {
            "members" | "all" if objects.is_empty() => match plane.server.discovery().await {
                Ok(discovery) => guess(&words, discovery)
                    .map(|wanted| wanted.into_iter().map(|wanted| (wanted, namespace.clone())).collect()),
                Err(_) => None,
            },
            _ => None,
        };
        Ok(Self {
            guess,
            words,
            objects,
            namespace: plane.namespace.clone(),
            all_namespaces: arguments.all_namespaces,
            labels: arguments.labels.clone(),
            fields: arguments.field_selector.clone(),
        })
    }

    /// The objects on one server, each with its namespace.
    async fn on(&self, server: &Server) -> anyhow::Result<Vec<(Wanted, Option<String>)>> {
        let discovery = server.discovery().await.map_err(|error| {
            if server.is_control_plane() {
                return error;
            }
            anyhow!(
                "cluster({0}): basic connection test to cluster({0}) failed, please check authorization or network: \
                 {error:#}",
                server.name
            )
        })?;
        let mut found = Vec::new();
        for object in &self.objects {
            let resource = discovery.of(object)?.clone();
            let text = |key: &str| object["metadata"][key].as_str().map(str::to_owned);
            let namespace = text("namespace").or_else(|| Some(self.namespace.clone()));
            found.push((Wanted { resource, name: text("name") }, namespace));
        }
        let namespace = (!self.all_namespaces).then(|| self.namespace.clone());
        let words = self.words.resolve(discovery).map_err(|error| in_cluster(server, error))?;
        found.extend(words.into_iter().map(|wanted| (wanted, namespace.clone())));
        Ok(found)
    }
}

/// Resolves the words by the control plane's own types, if all clusters have these.
fn guess(words: &Words, discovery: &Discovery) -> Option<Vec<Wanted>> {
    // The content of a category may differ from cluster to cluster.
    let single =
        |(type_, _): &(String, Option<String>)| discovery.expand(type_).is_ok_and(|found| found.len() == 1);
    let wanted = words.pairs.iter().all(single).then(|| words.resolve(discovery).ok()).flatten()?;
    wanted.iter().all(|wanted| is_native(&wanted.resource.group)).then_some(wanted)
}

/// Adds where the error occurred.
fn in_cluster(server: &Server, error: anyhow::Error) -> anyhow::Error {
    anyhow!("cluster({}): {error:#}", server.name)
}

/// The result of one server: an answer per type, and the errors.
struct Given {
    answers: Vec<(Resource, bool, Value)>,
    failures: Vec<anyhow::Error>,
}

async fn ask(server: &Server, asked: &Asked, accept: &str, whole: bool, ignore_not_found: bool) -> Given {
    if !server.is_control_plane()
        && let Some(wanted) = asked.guess.clone()
    {
        let given = fetch(server, asked, wanted, accept, whole, ignore_not_found).await;
        if given.failures.is_empty() {
            return given;
        }
        // Whatever the error is: the cluster may have other types, and gives the best message.
    }
    match asked.on(server).await {
        Ok(wanted) => fetch(server, asked, wanted, accept, whole, ignore_not_found).await,
        Err(error) => Given { answers: Vec::new(), failures: vec![error] },
    }
}

async fn fetch(
    server: &Server,
    asked: &Asked,
    wanted: Vec<(Wanted, Option<String>)>,
    accept: &str,
    whole: bool,
    ignore_not_found: bool,
) -> Given {
    let mut given = Given { answers: Vec::new(), failures: Vec::new() };
    let include = if whole { "&includeObject=Object" } else { "" };
    for (Wanted { resource, name }, namespace) in wanted {
        let named = name.is_some();
        let answers = match &name {
            Some(name) => {
                let namespace = namespace.as_deref().unwrap_or("");
                let path = format!("{}?{}", resource.path(namespace, name), include.trim_start_matches('&'));
                match server.get_as(path.trim_end_matches('?'), accept).await {
                    Ok(answer) => Ok(vec![answer]),
                    Err(error) => Err(missing_namespace(server, &resource, namespace, error).await),
                }
            }
            None => pages(server, &resource.collection(namespace.as_deref()), asked, accept, include)
                .await
                .map_err(|e| unfit(&resource, asked.labels.as_deref(), asked.fields.as_deref(), e)),
        };
        match answers {
            Ok(answers) => {
                given.answers.extend(answers.into_iter().map(|answer| (resource.clone(), named, answer)))
            }
            Err(error) if ignore_not_found && failure::is_not_found(&error) => {}
            Err(error) => given.failures.push(in_cluster(server, error)),
        }
    }
    given
}

async fn pages(
    server: &Server,
    path: &str,
    asked: &Asked,
    accept: &str,
    include: &str,
) -> anyhow::Result<Vec<Value>> {
    let mut pages = Vec::new();
    let mut next = String::new();
    loop {
        let query = list_query(asked.labels.as_deref(), asked.fields.as_deref(), &next);
        let page = server.get_as(&format!("{path}?{query}{include}"), accept).await?;
        next = page["metadata"]["continue"].as_str().unwrap_or("").to_owned();
        pages.push(page);
        if next.is_empty() {
            return Ok(pages);
        }
    }
}

async fn tables(
    arguments: &Arguments,
    format: &Format,
    sort: Option<&Path>,
    servers: &[Server],
    asked: &Asked,
) -> anyhow::Result<()> {
    let whole = sort.is_some();
    let asking = servers.iter().map(|server| ask(server, asked, TABLE, whole, arguments.ignore_not_found));
    let given = futures::future::join_all(asking).await;

    let mut groups: Vec<(Resource, Rows)> = Vec::new();
    let mut failures = Vec::new();
    for (server, given) in servers.iter().zip(given) {
        failures.extend(given.failures);
        for (resource, _, table) in given.answers {
            let same = |known: &Resource| known.group == resource.group && known.plural == resource.plural;
            let index = groups.iter().position(|(known, _)| same(known)).unwrap_or_else(|| {
                groups.push((resource.clone(), Rows::default()));
                groups.len() - 1
            });
            groups[index].1.add(&table, server)?;
        }
    }
    let several = groups.len() > 1;
    let namespaced = groups.iter().any(|(resource, _)| resource.namespaced);
    groups.retain(|(_, rows)| !rows.is_empty());
    groups.sort_by_key(|(resource, _)| resource.go_text());
    let mut text = String::new();
    for (i, (resource, mut rows)) in groups.into_iter().enumerate() {
        if let Some(path) = sort {
            rows.sort(path)?;
        }
        if i > 0 {
            text.push('\n');
        }
        let shape = Shape {
            wide: matches!(format, Format::Table { wide: true }),
            namespaces: arguments.all_namespaces && resource.namespaced,
            kind: (several || arguments.show_kind).then(|| resource.prefix()),
            pods: resource.plural == "pods" && resource.group.is_empty(),
            show_labels: arguments.show_labels,
            label_columns: &arguments.label_columns,
            headers: !arguments.no_headers,
            event: None,
        };
        text.push_str(&align(&rows.lay_out(&shape)));
    }
    output::print(&text);
    if text.is_empty() && failures.is_empty() && !arguments.ignore_not_found {
        nothing(asked, namespaced);
    }
    Failures::check(failures)
}

fn nothing(asked: &Asked, namespaced: bool) {
    if asked.all_namespaces || !namespaced {
        output::warn("No resources found");
    } else {
        output::warn(&format!("No resources found in {} namespace.", asked.namespace));
    }
}

async fn documents(
    arguments: &Arguments,
    format: &Format,
    sort: Option<&Path>,
    servers: &[Server],
    asked: &Asked,
) -> anyhow::Result<()> {
    let asking = servers
        .iter()
        .map(|server| ask(server, asked, "application/json", false, arguments.ignore_not_found));
    let mut failures = Vec::new();
    let mut printed = false;
    for given in futures::future::join_all(asking).await {
        let failed = !given.failures.is_empty();
        failures.extend(given.failures);
        let mut objects = Vec::new();
        let mut always_list = false;
        for (resource, named, answer) in given.answers {
            always_list |= !named;
            match answer["items"].as_array().filter(|_| !named) {
                Some(items) => objects.extend(items.iter().map(|item| typed(item.clone(), &resource))),
                None => objects.push(answer),
            }
        }
        if objects.is_empty() && (failed || !always_list) {
            continue;
        }
        if let Some(path) = sort {
            sort_objects(&mut objects, path)?;
        }
        if printed && matches!(format, Format::Yaml) {
            output::line("---");
        }
        printed = true;
        output::print(&format.print(&document(objects, always_list), arguments.show_managed_fields)?);
    }
    Failures::check(failures)
}

fn sort_objects(objects: &mut [Value], path: &Path) -> anyhow::Result<()> {
    if !objects.is_empty() && objects.iter().all(|object| path.first(object).is_none()) {
        bail!("couldn't find any field with the path of --sort-by in the list of objects");
    }
    objects.sort_by(|one, other| order(path.first(one), path.first(other)));
    Ok(())
}

/// Compares numbers by value, quantities by amount, and everything else as text; missing values come first.
fn order(one: Option<&Value>, other: Option<&Value>) -> std::cmp::Ordering {
    use apimachinery::quantity::Quantity;
    match (one, other) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => {
            a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(std::cmp::Ordering::Equal)
        }
        (Some(Value::String(a)), Some(Value::String(b))) => match (Quantity::parse(a), Quantity::parse(b)) {
            (Ok(a), Ok(b)) => a.as_f64().total_cmp(&b.as_f64()),
            _ => a.cmp(b),
        },
        (one, other) => one.map(jsonpath::print).cmp(&other.map(jsonpath::print)),
    }
}

/// The text of the cluster column, and the mark for objects that the control plane manages.
fn adoption(server: &str, object: &Value, watching: bool) -> &'static str {
    if server == CONTROL_PLANE && !watching {
        return "-";
    }
    if object["metadata"]["labels"]["karmada.io/managed"] == "true" { "Y" } else { "N" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_types_that_all_clusters_have_are_guessed() {
        for (group, native) in
            [("", true), ("apps", true), ("networking.k8s.io", true), ("policy.karmada.io", false)]
        {
            assert_eq!(is_native(group), native, "{group}");
        }
        let resource = |group: &str, plural: &str, categories: &[&str]| Resource {
            group: group.into(),
            version: "v1".into(),
            plural: plural.into(),
            categories: categories.iter().map(|name| (*name).to_owned()).collect(),
            ..Resource::default()
        };
        let discovery = Discovery {
            resources: vec![
                resource("", "pods", &["all"]),
                resource("apps", "deployments", &["all"]),
                resource("x.io", "things", &[]),
            ],
            versions: Vec::new(),
        };
        let guessed = |words: &str| {
            let words =
                Words::parse(&words.split(' ').map(str::to_owned).collect::<Vec<_>>()).expect("words");
            guess(&words, &discovery).map(|wanted| wanted.len())
        };
        assert_eq!((guessed("pods"), guessed("pods,deployments a")), (Some(1), Some(2)));
        assert_eq!((guessed("all"), guessed("things"), guessed("nothing")), (None, None, None));
    }

    #[test]
    fn values_are_put_in_order_by_what_they_are() {
        use std::cmp::Ordering::{Greater, Less};
        assert_eq!(order(Some(&json!(9)), Some(&json!(10))), Less);
        assert_eq!(order(Some(&json!("1Gi")), Some(&json!("900Mi"))), Greater);
        assert_eq!(order(Some(&json!("b")), Some(&json!("a"))), Greater);
        assert_eq!(order(None, Some(&json!("a"))), Less);
    }

    #[test]
    fn only_what_a_member_got_from_the_control_plane_is_adopted() {
        let managed = json!({"metadata": {"labels": {"karmada.io/managed": "true"}}});
        assert_eq!(adoption("m1", &managed, false), "Y");
        assert_eq!(adoption("m1", &json!({}), false), "N");
        assert_eq!(adoption(CONTROL_PLANE, &managed, false), "-");
        assert_eq!(adoption(CONTROL_PLANE, &managed, true), "Y");
    }
}
