//! Evaluates the facts about a Service. Pure.
//!
//! In: the state of the control plane and the members. Out: a report with a line for each cluster, one for each flow of endpoints
//! that should exist, overlapping pod ranges, and findings with advice. Deterministic, in the order of the clusters.

use std::collections::{BTreeMap, BTreeSet};

use api::conditions::cluster::READY;
use api::labels::annotations::PROVISION_CLUSTER;
use api::labels::{
    ENDPOINT_SLICE_CONTROLLER, ENDPOINT_SLICE_DISPATCH_CONTROLLER, ENDPOINT_SLICE_MANAGED_BY,
    ENDPOINT_SLICE_NAME, MULTI_CLUSTER_SERVICE_NAME,
};
use api::names;
use apimachinery::conditions;
use ipnet::IpNet;
use serde::Serialize;
use serde_json::Value;

use super::findings;
use super::gather::{ClusterFacts, Facts, MemberFacts};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// How many endpoints of a cluster a picture shows at most.
const SHOWN: usize = 3;

/// The facts, and what to do about them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) namespace: String,
    pub(super) name: String,
    /// How the Service is offered to other clusters: MultiClusterService, ServiceExport.
    pub(super) ways: Vec<Way>,
    pub(super) clusters: Vec<Row>,
    pub(super) flows: Vec<Flow>,
    pub(super) overlaps: Vec<Overlap>,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    /// Returns whether there is nothing to do.
    pub(super) fn is_well(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity != Severity::Problem)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Way {
    MultiClusterService,
    ServiceExport,
}

/// A cluster, as far as it concerns the Service.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) cluster: String,
    pub(super) ready: bool,
    pub(super) provides: bool,
    pub(super) receives: bool,
    /// Whether it has the Service; unknown if it could not be queried.
    pub(super) service: Option<bool>,
    pub(super) export: Option<bool>,
    pub(super) derived: Option<bool>,
    /// Ready endpoints of its own pods, and the first of their addresses.
    pub(super) own: Option<usize>,
    pub(super) addresses: Vec<String>,
    /// Endpoints of its own pods that are not ready, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unready: Option<usize>,
    /// Its own endpoints that the control plane has.
    pub(super) collected: usize,
    pub(super) networks: Vec<String>,
    /// Why it could not be queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unreachable: Option<String>,
}

/// A flow of endpoints that should exist.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Flow {
    pub(super) way: Way,
    pub(super) from: String,
    pub(super) to: String,
    /// The Service that clients in the target cluster use.
    pub(super) service: String,
    /// The number of endpoints that should be there, and that are there.
    pub(super) wanted: usize,
    pub(super) brought: Option<usize>,
    /// Whether the actual endpoints are the expected ones.
    pub(super) complete: bool,
    #[serde(skip)]
    pub(super) endpoints: Vec<(String, u16)>,
    /// The slices that should be in the target cluster.
    #[serde(skip)]
    pub(super) slices: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) probe: Option<Probe>,
}

/// The result of trying connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Probe {
    #[serde(rename_all = "camelCase")]
    Reached { tried: usize, pod: String },
    #[serde(rename_all = "camelCase")]
    Unreachable { tried: usize, failed: Vec<String>, pod: String },
    /// Nothing was tried, for this reason.
    Skipped(String),
}

/// Pods of two clusters share addresses.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Overlap {
    pub(super) clusters: [String; 2],
    pub(super) ranges: [String; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Severity {
    Problem,
    Note,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) about: String,
    pub(super) message: String,
    pub(super) advice: String,
}

/// Formats an address with its port.
pub(super) fn endpoint(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

pub(super) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or("")
}

fn entry<'a>(object: &'a Value, map: &str, key: &str) -> &'a str {
    object["metadata"][map][key].as_str().unwrap_or("")
}

/// Returns the endpoints of a slice that get traffic. Without a condition they are ready, as in Kubernetes.
fn endpoints(slice: &Value) -> impl Iterator<Item = &Value> {
    all_endpoints(slice).filter(|one| one["conditions"]["ready"] != false)
}

fn all_endpoints(slice: &Value) -> impl Iterator<Item = &Value> {
    slice["endpoints"].as_array().into_iter().flatten()
}

fn addresses(slice: &Value) -> BTreeSet<&str> {
    endpoints(slice)
        .flat_map(|one| one["addresses"].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .collect()
}

/// A slice that the control plane collected: its cluster and the slice itself.
struct Collected<'a> {
    cluster: &'a str,
    slice: &'a Value,
    multi: bool,
    export: bool,
}

fn collected(facts: &Facts) -> Vec<Collected<'_>> {
    let slice = |work: &'_ Value| -> Option<usize> {
        let manifests = work["spec"]["workload"]["manifests"].as_array()?;
        manifests.iter().position(|manifest| manifest["kind"] == "EndpointSlice")
    };
    facts
        .works
        .iter()
        .filter(|work| entry(work, "annotations", PROVISION_CLUSTER).is_empty())
        .filter(|work| work["metadata"]["deletionTimestamp"].is_null())
        .filter_map(|work| {
            let index = slice(work)?;
            Some(Collected {
                cluster: names::cluster_of_execution_space(text(work, "/metadata/namespace"))?,
                slice: &work["spec"]["workload"]["manifests"][index],
                multi: !entry(work, "labels", MULTI_CLUSTER_SERVICE_NAME).is_empty(),
                export: !entry(work, "labels", ENDPOINT_SLICE_NAME).is_empty(),
            })
        })
        .collect()
}

pub(super) fn brought_by_us(slice: &Value) -> bool {
    let manager = entry(slice, "labels", ENDPOINT_SLICE_MANAGED_BY);
    [ENDPOINT_SLICE_CONTROLLER, ENDPOINT_SLICE_DISPATCH_CONTROLLER].contains(&manager)
}

impl MemberFacts {
    /// Returns the slices of the member's own pods.
    fn own<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.slices
            .iter()
            .filter(move |slice| !brought_by_us(slice) && entry(slice, "labels", SERVICE_NAME) == name)
    }
}

/// Draws all conclusions except those from probes.
pub(super) fn diagnose(facts: &Facts) -> Report {
    let mut report = Report {
        namespace: facts.namespace.clone(),
        name: facts.name.clone(),
        ways: Vec::new(),
        clusters: Vec::new(),
        flows: Vec::new(),
        overlaps: Vec::new(),
        findings: Vec::new(),
    };
    let collected = collected(facts);
    let live = |object: &Option<Value>| {
        object.as_ref().is_some_and(|o| o["metadata"]["deletionTimestamp"].is_null())
    };
    let multi = facts.multi.as_ref().filter(|multi| {
        let types = multi["spec"]["types"].as_array();
        types.is_some_and(|types| types.iter().any(|kind| kind == "CrossCluster"))
    });
    if multi.is_some() && live(&facts.multi) {
        report.ways.push(Way::MultiClusterService);
    }
    let exported_somewhere =
        facts.clusters.iter().any(|cluster| cluster.member.as_ref().is_ok_and(|m| m.export));
    if live(&facts.export) || live(&facts.import) || exported_somewhere {
        report.ways.push(Way::ServiceExport);
    }
    let listed = |list: &str| -> Option<BTreeSet<&str>> {
        let names = multi?["spec"][list].as_array().filter(|list| !list.is_empty())?;
        Some(names.iter().filter_map(|one| one["name"].as_str()).collect())
    };
    let (providers, consumers) = (listed("providerClusters"), listed("consumerClusters"));
    let by_multi = report.ways.contains(&Way::MultiClusterService);
    let named = |list: &Option<BTreeSet<&str>>, cluster: &str| {
        by_multi && list.as_ref().is_none_or(|list| list.contains(cluster))
    };
    let sources = |way: Way, cluster: &ClusterFacts| match way {
        Way::MultiClusterService => named(&providers, &cluster.name),
        Way::ServiceExport => match &cluster.member {
            Ok(member) => member.export,
            Err(_) => collected.iter().any(|one| one.export && one.cluster == cluster.name),
        },
    };
    let targets = |way: Way, cluster: &ClusterFacts| match way {
        Way::MultiClusterService => named(&consumers, &cluster.name),
        Way::ServiceExport => cluster.member.as_ref().is_ok_and(|member| member.derived),
    };
    for cluster in &facts.clusters {
        let any =
            |role: &dyn Fn(Way, &ClusterFacts) -> bool| report.ways.iter().any(|way| role(*way, cluster));
        let (provides, receives) = (any(&sources), any(&targets));
        report.clusters.push(row(facts, cluster, provides, receives, &collected));
    }
    for way in report.ways.clone() {
        for source in facts.clusters.iter().filter(|cluster| sources(way, cluster)) {
            for target in facts.clusters.iter().filter(|cluster| targets(way, cluster)) {
                if way == Way::MultiClusterService && source.name == target.name {
                    continue;
                }
                report.flows.push(flow(facts, way, source, target, &collected));
            }
        }
    }
    report.overlaps = overlaps(&report.clusters);
    report.findings = findings::find(facts, &report, multi, [&providers, &consumers]);
    report
}

fn row(
    facts: &Facts,
    cluster: &ClusterFacts,
    provides: bool,
    receives: bool,
    collected: &[Collected<'_>],
) -> Row {
    let member = cluster.member.as_ref().ok();
    let own = member.map(|member| member.own(&facts.name).flat_map(endpoints).count());
    let all = member.map_or(0, |member| member.own(&facts.name).flat_map(all_endpoints).count());
    let unready = all.saturating_sub(own.unwrap_or(0));
    let mut first: Vec<String> = member
        .into_iter()
        .flat_map(|member| member.own(&facts.name))
        .flat_map(addresses)
        .map(str::to_owned)
        .collect();
    first.sort();
    first.truncate(SHOWN);
    let ranges = member.map(|member| member.networks.clone()).unwrap_or_default();
    let ranges: Vec<IpNet> = ranges.iter().filter_map(|range| range.parse().ok()).collect();
    Row {
        cluster: cluster.name.clone(),
        ready: conditions::is_true(&cluster.object, READY),
        provides,
        receives,
        service: member.map(|member| member.service),
        export: member.map(|member| member.export),
        derived: member.map(|member| member.derived),
        own,
        unready: (unready > 0).then_some(unready),
        addresses: first,
        collected: collected
            .iter()
            .filter(|one| one.cluster == cluster.name)
            .map(|one| endpoints(one.slice).count())
            .sum(),
        networks: IpNet::aggregate(&ranges).iter().map(ToString::to_string).collect(),
        unreachable: cluster.member.as_ref().err().cloned(),
    }
}

fn flow(
    facts: &Facts,
    way: Way,
    source: &ClusterFacts,
    target: &ClusterFacts,
    collected: &[Collected<'_>],
) -> Flow {
    let service = match way {
        Way::MultiClusterService => facts.name.clone(),
        Way::ServiceExport => names::derived_service(&facts.name),
    };
    // A cluster that is not ready offers nothing.
    let offered = collected.iter().filter(|one| {
        let wanted = if way == Way::MultiClusterService { one.multi } else { one.export };
        one.cluster == source.name && wanted && conditions::is_true(&source.object, READY)
    });
    let called = |slice: &Value| match way {
        Way::MultiClusterService => {
            names::dispatched_endpoint_slice(&source.name, text(slice, "/metadata/name"))
        }
        Way::ServiceExport => names::imported_endpoint_slice(&source.name, text(slice, "/metadata/name")),
    };
    let there: Option<BTreeMap<&str, &Value>> = target.member.as_ref().ok().map(|member| {
        let ours = member.slices.iter().filter(|slice| brought_by_us(slice));
        ours.map(|slice| (text(slice, "/metadata/name"), slice)).collect()
    });
    let (mut wanted, mut brought, mut complete) = (0, 0, true);
    let (mut found, mut slices) = (Vec::new(), Vec::new());
    for one in offered {
        wanted += endpoints(one.slice).count();
        let ports = one.slice["ports"].as_array().into_iter().flatten();
        let port = ports.filter(|port| port["protocol"].as_str().is_none_or(|protocol| protocol == "TCP"));
        let port = port.filter_map(|port| port["port"].as_u64()).find_map(|port| u16::try_from(port).ok());
        for address in addresses(one.slice) {
            found.extend(port.map(|port| (address.to_owned(), port)));
        }
        let name = called(one.slice);
        match there.as_ref().and_then(|there| there.get(name.as_str())) {
            Some(slice) => {
                brought += endpoints(slice).count();
                complete &= addresses(slice) == addresses(one.slice);
            }
            None => complete = false,
        }
        slices.push(name);
    }
    Flow {
        way,
        from: source.name.clone(),
        to: target.name.clone(),
        service,
        wanted,
        brought: there.is_some().then_some(brought),
        complete: complete && there.is_some(),
        endpoints: found,
        slices,
        probe: None,
    }
}

/// Returns which clusters have pods with overlapping addresses.
fn overlaps(rows: &[Row]) -> Vec<Overlap> {
    let involved: Vec<(&Row, Vec<IpNet>)> = rows
        .iter()
        .filter(|row| row.provides || row.receives)
        .map(|row| (row, row.networks.iter().filter_map(|range| range.parse().ok()).collect()))
        .collect();
    let mut found = Vec::new();
    for (index, (one, ranges)) in involved.iter().enumerate() {
        for (other, others) in &involved[index + 1..] {
            let pair = ranges.iter().find_map(|range| {
                let shared = others.iter().find(|other| range.contains(*other) || other.contains(range));
                shared.map(|shared| [range.to_string(), shared.to_string()])
            });
            if let Some(ranges) = pair {
                found.push(Overlap { clusters: [one.cluster.clone(), other.cluster.clone()], ranges });
            }
        }
    }
    found
}
