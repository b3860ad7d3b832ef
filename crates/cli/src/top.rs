//! `top`: the resource usage of pods and nodes in members, from their metrics servers.
//!
//! In: `metrics.k8s.io` of each member, through the proxy. Out: one table with a column for the cluster. A failure in one cluster
//! does not hide the others.

use anyhow::{anyhow, bail};
use apimachinery::quantity::Quantity;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::Value;

use crate::clusters::Members;
use crate::failure::{self, Ended, misused};
use crate::output;
use crate::print::table::align_wide;
use crate::select::list;
use crate::server::{Connection, Namespaced, Plane, Server, segment};

/// Display resource (CPU/memory) usage of member clusters.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    #[command(flatten)]
    pub connection: Connection,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one in the life of the process")]
pub enum Command {
    #[command(visible_aliases = ["pods", "po"])]
    Pod(Pods),
    #[command(visible_aliases = ["nodes", "no"])]
    Node(Nodes),
}

/// The flags of both.
#[derive(Debug, Clone, Args)]
pub struct Shape {
    #[command(flatten)]
    pub members: Members,
    /// Label selector, such as app=web,tier!=cache.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Sort by cpu or memory, the greatest first.
    #[arg(long, value_name = "FIELD", default_value = "")]
    pub sort_by: String,
    /// If present, print output without headers.
    #[arg(long)]
    pub no_headers: bool,
    /// Accepted for upstream's sake: metrics are asked for as JSON.
    #[arg(long, hide = true, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub use_protocol_buffers: bool,
}

/// Display resource (CPU/memory) usage of pods of member clusters.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Show metrics for all pods in the default namespace of all clusters
  karmadactl top pod

  # Show metrics for a pod and its containers in cluster member1
  karmadactl top pod web -C member1 --containers

  # The greediest pods of a region
  karmadactl top pods -A -C region=eu --sort-by=memory")]
pub struct Pods {
    /// Name of one pod.
    #[arg(value_name = "NAME")]
    pub name: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub shape: Shape,
    /// List across all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Field selector, such as metadata.name=web.
    #[arg(long, value_name = "SELECTOR")]
    pub field_selector: Option<String>,
    /// If present, print usage of containers within a pod.
    #[arg(long)]
    pub containers: bool,
    /// Print the sum of the resource usage.
    #[arg(long)]
    pub sum: bool,
}

/// Display resource (CPU/memory) usage of nodes.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Show metrics for all nodes of all clusters
  karmadactl top node

  # Show metrics for one node
  karmadactl top node node1 -C member1")]
pub struct Nodes {
    /// Name of one node.
    #[arg(value_name = "NAME")]
    pub name: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub shape: Shape,
    /// Print percentages of the capacity instead of what is allocatable.
    #[arg(long)]
    pub show_capacity: bool,
}

/// CPU in thousandths, memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    cpu: i64,
    memory: i64,
}

impl Usage {
    fn of(usage: &Value) -> Self {
        let quantity = |name: &str| usage[name].as_str().and_then(|text| Quantity::parse(text).ok());
        Self {
            cpu: quantity("cpu").map_or(0, |quantity| quantity.milli_value()),
            memory: quantity("memory").map_or(0, |quantity| quantity.value()),
        }
    }

    fn add(&mut self, other: Self) {
        self.cpu += other.cpu;
        self.memory += other.memory;
    }

    fn cpu_text(self) -> String {
        format!("{}m", self.cpu)
    }

    fn memory_text(self) -> String {
        format!("{}Mi", self.memory / (1024 * 1024))
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::Pod(arguments) => pods(&arguments).await,
        Command::Node(arguments) => nodes(&arguments).await,
    }
}

impl Shape {
    fn check(&self, names: &[String], fields: Option<&str>) -> anyhow::Result<()> {
        if !matches!(self.sort_by.as_str(), "" | "cpu" | "memory") {
            bail!("--sort-by accepts only cpu or memory");
        }
        if !names.is_empty() && (self.selector.is_some() || fields.is_some()) {
            bail!("only one of NAME or selector can be provided");
        }
        Ok(())
    }

    async fn members(&self, plane: &Plane) -> anyhow::Result<Vec<Server>> {
        let names = plane.select(&self.members.clusters).await?;
        Ok(names.iter().map(|name| plane.known_member(name)).collect())
    }

    /// Sorts in descending order, or leaves the order unchanged.
    fn sort<T>(&self, rows: &mut [T], usage: impl Fn(&T) -> Option<Usage>) {
        let key =
            |row: &T| usage(row).map(|usage| if self.sort_by == "cpu" { usage.cpu } else { usage.memory });
        if !self.sort_by.is_empty() {
            rows.sort_by_key(|row| std::cmp::Reverse(key(row)));
        }
    }
}

async fn has_metrics(member: &Server) -> anyhow::Result<()> {
    let served = member.discovery().await?.versions.iter().any(|version| version == "metrics.k8s.io/v1beta1");
    if served { Ok(()) } else { Err(anyhow!("metrics API not available")) }
}

/// Prints the errors of each cluster.
fn finish(mut failures: Vec<(String, anyhow::Error)>) -> anyhow::Result<()> {
    if failures.is_empty() {
        return Ok(());
    }
    if failures.len() == 1 {
        let (cluster, error) = failures.remove(0);
        bail!("cluster({cluster}): {error:#}");
    }
    for (cluster, error) in failures {
        output::warn(&format!("cluster({cluster}): {error:#}"));
    }
    Err(Ended(1).into())
}

/// Runs something on every member, in parallel; returns the results and the errors.
async fn on_all<T, F>(members: &[Server], ask: F) -> (Vec<(String, T)>, Vec<(String, anyhow::Error)>)
where
    F: AsyncFn(&Server) -> anyhow::Result<T>,
{
    let asking = members.iter().map(|member| ask(member));
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for (member, answer) in members.iter().zip(futures::future::join_all(asking).await) {
        match answer {
            Ok(answer) => good.push((member.name.clone(), answer)),
            Err(error) => bad.push((member.name.clone(), error)),
        }
    }
    (good, bad)
}

async fn pods(arguments: &Pods) -> anyhow::Result<()> {
    if arguments.name.len() > 1 {
        return Err(misused("top pod", "pod [NAME | -l label]"));
    }
    arguments.shape.check(&arguments.name, arguments.field_selector.as_deref())?;
    let plane = arguments.place.plane().await?;
    let members = arguments.shape.members(&plane).await?;
    let namespace = (!arguments.all_namespaces).then_some(plane.namespace.as_str());
    let (answers, failures) =
        on_all(&members, async |member| pods_of(arguments, member, namespace).await).await;
    let mut rows: Vec<(String, Value)> = answers
        .into_iter()
        .flat_map(|(cluster, pods)| pods.into_iter().map(move |pod| (cluster.clone(), pod)))
        .collect();
    rows.sort_by_key(|(cluster, pod)| {
        let text = |key: &str| pod["metadata"][key].as_str().unwrap_or("").to_owned();
        (cluster.clone(), text("namespace"), text("name"))
    });
    arguments.shape.sort(&mut rows, |(_, pod)| Some(pod_usage(pod)));
    if rows.is_empty() && failures.is_empty() {
        match namespace {
            Some(namespace) => output::warn(&format!("No resources found in {namespace} namespace.")),
            None => output::warn("No resources found"),
        }
        return Ok(());
    }
    if !rows.is_empty() {
        output::print(&pod_table(arguments, &rows));
    }
    finish(failures)
}

async fn pods_of(arguments: &Pods, member: &Server, namespace: Option<&str>) -> anyhow::Result<Vec<Value>> {
    has_metrics(member).await?;
    let root = "/apis/metrics.k8s.io/v1beta1";
    let place = |kind: &str| match namespace {
        Some(namespace) => format!("namespaces/{}/{kind}", segment(namespace)),
        None => kind.to_owned(),
    };
    if let Some(name) = arguments.name.first() {
        return Ok(vec![member.get(&format!("{root}/{}/{}", place("pods"), segment(name))).await?]);
    }
    let (labels, fields) = (arguments.shape.selector.as_deref(), arguments.field_selector.as_deref());
    let metrics = list(member, &format!("{root}/{}", place("pods")), labels, fields).await?;
    if metrics.is_empty() {
        // Metrics lag behind; if a pod has none for long, that is reported.
        let pods = list(member, &format!("/api/v1/{}", place("pods")), labels, fields).await?;
        for pod in &pods {
            let created = pod["metadata"]["creationTimestamp"].as_str().unwrap_or("");
            let Ok(created) = created.parse::<Timestamp>() else { continue };
            let age = Timestamp::now().duration_since(created);
            if age.as_secs() > 120 {
                bail!(
                    "metrics not available for pod {}/{}, age: {}s",
                    pod["metadata"]["namespace"].as_str().unwrap_or(""),
                    crate::pods::name(pod),
                    age.as_secs()
                );
            }
        }
        if !pods.is_empty() {
            bail!("metrics not available yet");
        }
    }
    Ok(metrics)
}

fn pod_usage(pod: &Value) -> Usage {
    let mut sum = Usage::default();
    for container in pod["containers"].as_array().into_iter().flatten() {
        sum.add(Usage::of(&container["usage"]));
    }
    sum
}

fn pod_table(arguments: &Pods, pods: &[(String, Value)]) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let mut before = Vec::new();
    if arguments.all_namespaces {
        before.push("NAMESPACE");
    }
    if arguments.containers {
        before.push("POD");
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    if !arguments.shape.no_headers {
        let header = before.iter().chain(&["NAME", "CLUSTER", "CPU(cores)", "MEMORY(bytes)"]);
        rows.push(header.map(|name| (*name).to_owned()).collect());
    }
    let mut sum = Usage::default();
    for (cluster, pod) in pods {
        let metadata = &pod["metadata"];
        let mut add = |name: String, usage: Usage| {
            let mut row = Vec::new();
            if arguments.all_namespaces {
                row.push(text(&metadata["namespace"]));
            }
            if arguments.containers {
                row.push(text(&metadata["name"]));
            }
            row.extend([name, cluster.clone(), usage.cpu_text(), usage.memory_text()]);
            rows.push(row);
        };
        if arguments.containers {
            let mut containers: Vec<&Value> = pod["containers"].as_array().into_iter().flatten().collect();
            containers.sort_by_key(|container| text(&container["name"]));
            for container in containers {
                add(text(&container["name"]), Usage::of(&container["usage"]));
            }
        } else {
            add(text(&metadata["name"]), pod_usage(pod));
        }
        sum.add(pod_usage(pod));
    }
    if arguments.sum {
        let empty = || vec![String::new(); before.len() + 2];
        rows.push([empty(), vec!["________".to_owned(), "________".to_owned()]].concat());
        rows.push([empty(), vec![sum.cpu_text(), sum.memory_text()]].concat());
    }
    align_wide(&rows)
}

/// A node of a cluster: its name, its capacity, and its usage if known.
struct Node {
    cluster: String,
    name: String,
    has: Usage,
    uses: Option<Usage>,
}

async fn nodes(arguments: &Nodes) -> anyhow::Result<()> {
    if arguments.name.len() > 1 {
        return Err(misused("top node", "node [NAME | -l label]"));
    }
    arguments.shape.check(&arguments.name, None)?;
    let plane = arguments.connection.plane().await?;
    let members = arguments.shape.members(&plane).await?;
    let (answers, failures) = on_all(&members, async |member| nodes_of(arguments, member).await).await;
    let mut rows: Vec<Node> = answers.into_iter().flat_map(|(_, nodes)| nodes).collect();
    rows.sort_by_key(|node| (node.name.clone(), node.cluster.clone()));
    arguments.shape.sort(&mut rows, |node| node.uses);
    if rows.is_empty() && failures.is_empty() {
        output::warn("No resources found");
        return Ok(());
    }
    if !rows.is_empty() {
        output::print(&node_table(&rows, !arguments.shape.no_headers));
    }
    finish(failures)
}

async fn nodes_of(arguments: &Nodes, member: &Server) -> anyhow::Result<Vec<Node>> {
    has_metrics(member).await?;
    let root = "/apis/metrics.k8s.io/v1beta1/nodes";
    let (metrics, nodes) = match arguments.name.first() {
        Some(name) => {
            let metrics = member.get(&format!("{root}/{}", segment(name))).await?;
            (vec![metrics], vec![member.get(&format!("/api/v1/nodes/{}", segment(name))).await?])
        }
        None => {
            let labels = arguments.shape.selector.as_deref();
            let nodes = list(member, "/api/v1/nodes", labels, None).await?;
            match list(member, root, labels, None).await {
                Ok(metrics) if metrics.is_empty() && !nodes.is_empty() => bail!("metrics not available yet"),
                Err(error) if failure::is_not_found(&error) => bail!("metrics not available yet"),
                metrics => (metrics?, nodes),
            }
        }
    };
    let source = if arguments.show_capacity { "capacity" } else { "allocatable" };
    let text = |object: &Value| object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let made = nodes.iter().map(|node| {
        let name = text(node);
        let uses = metrics.iter().find(|each| text(each) == name).map(|each| Usage::of(&each["usage"]));
        Node { cluster: member.name.clone(), has: Usage::of(&node["status"][source]), name, uses }
    });
    Ok(made.collect())
}

fn node_table(nodes: &[Node], headers: bool) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    if headers {
        let header = ["NAME", "CLUSTER", "CPU(cores)", "CPU%", "MEMORY(bytes)", "MEMORY%"];
        rows.push(header.map(str::to_owned).to_vec());
    }
    for node in nodes {
        let share = |used: i64, all: i64| match all {
            0 => "<unknown>".to_owned(),
            all => format!("{}%", i128::from(used) * 100 / i128::from(all)),
        };
        let values = match node.uses {
            Some(uses) => [
                uses.cpu_text(),
                share(uses.cpu, node.has.cpu),
                uses.memory_text(),
                share(uses.memory, node.has.memory),
            ],
            None => ["<unknown>"; 4].map(str::to_owned),
        };
        rows.push([vec![node.name.clone(), node.cluster.clone()], values.to_vec()].concat());
    }
    align_wide(&rows)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        pods: Pods,
    }

    fn table(line: &str) -> String {
        let words = std::iter::once("pod").chain(line.split_whitespace());
        let pods = Line::try_parse_from(words).expect("good").pods;
        let pod = |name: &str, cpu: &str, memory: &str| {
            json!({"metadata": {"name": name, "namespace": "ns"}, "containers": [
                {"name": "b", "usage": {"cpu": cpu, "memory": memory}}, {"name": "a", "usage": {"cpu": "1m", "memory": "1Mi"}}]})
        };
        let mut rows =
            vec![("m1".to_owned(), pod("x", "250m", "64Mi")), ("m2".to_owned(), pod("y", "1500000n", "1Gi"))];
        pods.shape.sort(&mut rows, |(_, pod)| Some(pod_usage(pod)));
        pod_table(&pods, &rows)
    }

    #[test]
    fn pods_are_summed_and_sorted() {
        assert_eq!(
            table(""),
            "NAME   CLUSTER   CPU(cores)   MEMORY(bytes)   \nx      m1        251m         65Mi            \ny      m2        3m           1025Mi          \n"
        );
        assert!(table("--sort-by memory --no-headers").starts_with("y "));
        assert!(table("--sort-by cpu --no-headers").starts_with("x "));
        let sum = table("-A --sum");
        assert!(sum.contains("________     ________") && sum.contains("254m         1090Mi"), "{sum}");
        let containers = table("--containers");
        assert!(containers.starts_with("POD   NAME   CLUSTER"), "{containers}");
        assert!(
            containers.lines().nth(1).is_some_and(|line| line.starts_with("x     a      m1")),
            "{containers}"
        );
    }

    #[test]
    fn nodes_without_metrics_are_unknown() {
        let has = Usage { cpu: 2000, memory: 4 << 30 };
        let node = |uses| Node { cluster: "m".to_owned(), name: "n".to_owned(), has, uses };
        let text = node_table(&[node(Some(Usage { cpu: 500, memory: 1 << 30 })), node(None)], false);
        assert_eq!(
            text.lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>(),
            ["n m 500m 25% 1024Mi 25%", "n m <unknown> <unknown> <unknown> <unknown>"]
        );
    }
}
