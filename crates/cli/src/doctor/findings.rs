//! The faults of a Service, in words, with advice. Pure.

use std::collections::BTreeSet;

use api::conditions::cluster::SERVICE_DOMAIN_NAME_RESOLUTION_READY;
use api::conditions::multi_cluster_service::SERVICE_APPLIED;
use api::labels::ENDPOINT_SLICE_NAME;
use api::names;
use apimachinery::conditions;
use serde_json::Value;

use super::gather::{ClusterFacts, Facts};
use super::report::{Finding, Overlap, Probe, Report, Row, Severity, Way, brought_by_us, text};

/// Returns the faults that are visible without probes. `named` are the lists of the MultiClusterService, if they are not empty.
pub(super) fn find(
    facts: &Facts,
    report: &Report,
    multi: Option<&Value>,
    named: [&Option<BTreeSet<&str>>; 2],
) -> Vec<Finding> {
    let mut findings = Findings { facts, found: Vec::new(), not_brought: false };
    findings.about_the_plane(report, multi, named);
    findings.about_clusters(report);
    findings.about_flows(report);
    findings.about_what_was_left_behind(report);
    findings.found
}

struct Findings<'a> {
    facts: &'a Facts,
    found: Vec<Finding>,
    /// The MultiClusterService does not bring its Service anywhere, and this was reported.
    not_brought: bool,
}

impl Findings<'_> {
    fn add(
        &mut self,
        severity: Severity,
        about: &str,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) {
        let (about, message, advice) = (about.to_owned(), message.into(), advice.into());
        self.found.push(Finding { severity, about, message, advice });
    }

    fn problem(&mut self, about: &str, message: impl Into<String>, advice: impl Into<String>) {
        self.add(Severity::Problem, about, message, advice);
    }

    fn about_the_plane(
        &mut self,
        report: &Report,
        multi: Option<&Value>,
        [providers, consumers]: [&Option<BTreeSet<&str>>; 2],
    ) {
        const PLANE: &str = "control plane";
        let facts = self.facts;
        for what in &facts.unreadable {
            let advice = "ask for the right to read it; without it this report is not complete";
            self.add(Severity::Note, PLANE, format!("cannot read {what}"), advice);
        }
        if report.ways.is_empty() {
            let service = format!("{}/{}", facts.namespace, facts.name);
            if facts.service.is_none() && facts.unreadable.is_empty() {
                let advice = "see that name and namespace are right: kubectl get services -A";
                self.problem(PLANE, format!("there is no Service {service}"), advice);
            }
            let advice = "create a MultiClusterService, or a ServiceExport and a ServiceImport, of this name";
            self.problem(PLANE, format!("nothing offers the Service {service} to other clusters"), advice);
        }
        if facts.multi.is_some() && multi.is_none() {
            // Admission refuses other types, and a second one.
            let advice =
                "delete it and create it anew with the type CrossCluster; its types cannot be changed";
            self.problem(
                "MultiClusterService",
                "its types do not say CrossCluster, so nothing is done",
                advice,
            );
        }
        if let Some(multi) = multi.filter(|_| report.ways.contains(&Way::MultiClusterService)) {
            let requested = facts
                .works
                .iter()
                .any(|work| work["spec"]["workload"]["manifests"][0]["kind"] == "MultiClusterService");
            let before = self.found.len();
            if facts.service.is_none() {
                let advice =
                    format!("create the Service {} in the namespace {}", facts.name, facts.namespace);
                self.problem("MultiClusterService", "the control plane has no Service of its name", advice);
            } else if let Some(failed) =
                conditions::find(multi, SERVICE_APPLIED).filter(|condition| condition["status"] != "True")
            {
                let message =
                    format!("the Service is not brought to its clusters: {}", text(failed, "/message"));
                self.problem(
                    "MultiClusterService",
                    message,
                    "mend what the message names; it is tried again",
                );
            } else if conditions::find(multi, SERVICE_APPLIED).is_none()
                && !requested
                && facts.unreadable.is_empty()
            {
                let advice = "start the control plane with --feature-gates=MultiClusterService=true, and with the controllers \
                              multiclusterservice, endpointsliceCollect and endpointsliceDispatch";
                self.problem("MultiClusterService", "no controller has looked at it", advice);
            }
            self.not_brought = self.found.len() > before;
            let known: BTreeSet<&str> = facts.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
            for (list, named) in [("providerClusters", providers), ("consumerClusters", consumers)] {
                for missing in named.iter().flatten().filter(|name| !known.contains(*name)) {
                    let message = format!("spec.{list} names {missing}, which is not a cluster here");
                    let advice = match facts.partial {
                        true => "correct the name, join the cluster, or widen -C",
                        false => "correct the name, or join the cluster",
                    };
                    self.problem("MultiClusterService", message, advice);
                }
            }
        }
        if report.ways.contains(&Way::ServiceExport) {
            self.about_exports(report);
        }
    }

    fn about_exports(&mut self, report: &Report) {
        let facts = self.facts;
        let name = &facts.name;
        // For a cluster that was not queried, or does not answer, the collected slices show its export.
        let asked = |name: &str| facts.clusters.iter().any(|one| one.name == name && one.member.is_ok());
        let exports = report.clusters.iter().any(|row| row.export == Some(true))
            || facts.works.iter().filter_map(exporter).any(|cluster| !asked(cluster));
        let none = !exports && self.sees_all("the ServiceExport");
        if none {
            let message = match &facts.export {
                Some(_) => "there is a ServiceExport in the control plane, and none in any member",
                None => "no cluster exports the Service",
            };
            let advice = match &facts.export {
                Some(_) => format!(
                    "bring it to the clusters that have the Service with a PropagationPolicy; {}",
                    self.if_there_is_one("ServiceExport")
                ),
                None => {
                    "create a ServiceExport of this name and bring it to the clusters that have the Service"
                        .to_owned()
                }
            };
            self.problem("ServiceExport", message, advice);
        } else if !exports {
            let message = "no cluster that could be asked exports the Service; another one may";
            self.add(Severity::Note, "ServiceExport", message, self.how_to_see_all("the ServiceExport"));
        }
        let lacking: Vec<&str> = facts
            .clusters
            .iter()
            .filter(|cluster| cluster.member.as_ref().is_ok_and(|member| !member.knows_exports))
            .map(|cluster| cluster.name.as_str())
            .collect();
        if !lacking.is_empty() {
            let message = format!("{} do not know the kind ServiceExport", lacking.join(", "));
            let advice = "join with --install-mcs-crds, or bring the two definitions there with a ClusterPropagationPolicy";
            let severity = if none { Severity::Problem } else { Severity::Note };
            self.add(severity, "ServiceExport", message, advice);
        }
        let Some(import) = &facts.import else {
            if facts.unreadable.iter().any(|what| what.starts_with("the ServiceImport")) {
                return;
            }
            let advice =
                "create a ServiceImport of this name and bring it to the clusters that should reach it";
            self.problem("ServiceImport", "the Service is exported, and nobody imports it", advice);
            return;
        };
        if text(import, "/spec/type") == "Headless" {
            let advice = "use the type ClusterSetIP, or a MultiClusterService, which takes headless Services";
            self.problem(
                "ServiceImport",
                "it is Headless: only the type ClusterSetIP gets a Service",
                advice,
            );
        } else if !report.clusters.iter().any(|row| row.derived == Some(true)) {
            let derived = names::derived_service(name);
            if self.sees_all("the derived Service") {
                let advice = format!(
                    "bring the ServiceImport to the clusters that should reach it with a PropagationPolicy; {}",
                    self.if_there_is_one("ServiceImport")
                );
                self.problem("ServiceImport", format!("no member has the Service {derived}"), advice);
            } else {
                let message =
                    format!("no cluster that could be asked has the Service {derived}; another one may");
                self.add(
                    Severity::Note,
                    "ServiceImport",
                    message,
                    self.how_to_see_all("the derived Service"),
                );
            }
        }
        if let Some(service) = &facts.service {
            let (offered, wanted) = (ports(service), ports(import));
            let missing: Vec<String> = wanted.difference(&offered).map(|port| port.words(&offered)).collect();
            if !missing.is_empty() {
                let message =
                    format!("it asks for port {}, which the Service does not have", missing.join(", "));
                self.problem("ServiceImport", message, "give both the same ports, with the same names");
            }
        }
    }

    /// Returns the clusters that did not say whether they have this.
    fn silent(&self, what: &str) -> Vec<&str> {
        let tells = |cluster: &&ClusterFacts| {
            let member = cluster.member.as_ref();
            member
                .is_ok_and(|member| !member.unreadable.iter().any(|unreadable| unreadable.starts_with(what)))
        };
        let silent = self.facts.clusters.iter().filter(|cluster| !tells(cluster));
        silent.map(|cluster| cluster.name.as_str()).collect()
    }

    /// Returns whether every cluster said whether it has this: only then is it known that none has.
    fn sees_all(&self, what: &str) -> bool {
        !self.facts.partial && self.silent(what).is_empty()
    }

    fn how_to_see_all(&self, what: &str) -> String {
        let mut ways = Vec::new();
        if self.facts.partial {
            ways.push("ask all clusters, without -C".to_owned());
        }
        let silent = self.silent(what);
        if !silent.is_empty() {
            ways.push(format!("see why these do not answer: {}", silent.join(", ")));
        }
        ways.join("; ")
    }

    /// Where to look if there already is a policy for an object of this kind.
    fn if_there_is_one(&self, kind: &str) -> String {
        let Facts { namespace, name, .. } = self.facts;
        let binding = names::binding(kind, name);
        format!(
            "if there is one, see what became of it: kubectl describe resourcebinding -n {namespace} {binding}"
        )
    }

    fn about_clusters(&mut self, report: &Report) {
        let mut providers = report.clusters.iter().filter(|row| row.provides);
        let nowhere = providers.all(|row| row.own == Some(0));
        for (row, cluster) in report.clusters.iter().zip(&self.facts.clusters) {
            if !row.provides && !row.receives {
                continue;
            }
            let name = row.cluster.as_str();
            if !row.ready {
                let message = match row.provides {
                    true => {
                        "it is not ready, so its endpoints are taken out everywhere; they come back with it"
                    }
                    false => "it is not ready; it gets the endpoints when it is",
                };
                self.problem(
                    name,
                    message,
                    format!("see why: karmadactl describe cluster {name} -s karmada"),
                );
            }
            if let Some(error) = &row.unreachable {
                let advice = "see that the cluster answers, and that you may use clusters/proxy and read Services there";
                self.problem(name, format!("it cannot be asked: {error}"), advice);
            }
            if let Ok(member) = &cluster.member {
                for what in &member.unreadable {
                    let advice = "ask for the right to read it; without it this report is not complete";
                    self.add(Severity::Note, name, format!("cannot read {what}"), advice);
                }
            }
            if conditions::find(&cluster.object, SERVICE_DOMAIN_NAME_RESOLUTION_READY)
                .is_some_and(|condition| condition["status"] == "False")
            {
                let advice = "look at the name server of the cluster (CoreDNS), its pods and its log";
                self.problem(name, "names of Services cannot be resolved in it", advice);
            }
            if row.provides && row.ready {
                self.about_provider(row, nowhere);
            }
        }
        for Overlap { clusters: [one, other], ranges: [first, second] } in &report.overlaps {
            let message = if first == second {
                format!("pods of {one} and {other} have the same addresses: {first}")
            } else {
                format!("pods of {one} and {other} share addresses: {first} and {second}")
            };
            let advice = "an address means another pod in each of them: give clusters distinct ranges \
                          (kubeadm --pod-network-cidr), or join them by a network that translates (Submariner Globalnet)";
            self.problem("pod networks", message, advice);
        }
    }

    /// `nowhere` is set for a Service without endpoints in any cluster.
    fn about_provider(&mut self, row: &Row, nowhere: bool) {
        let name = row.cluster.as_str();
        if row.service == Some(false) {
            let exported = row.export == Some(true);
            if !exported && self.not_brought {
                return;
            }
            let advice = match exported {
                true => "bring the Service there with a policy, as the ServiceExport".to_owned(),
                false => format!(
                    "this passes within seconds; if it stays, see its Work: kubectl get works -n {} ; and the \
                     events of the MultiClusterService",
                    names::execution_space(name)
                ),
            };
            self.problem(name, "it should offer the Service and does not have it", advice);
            return;
        }
        match row.own {
            Some(0) if row.unready.is_some() => {
                let message = format!("it has {} endpoints, none is ready", row.unready.unwrap_or(0));
                let advice = "see why its pods are not ready, such as by their readiness probes: kubectl describe pods";
                self.problem(name, message, advice);
            }
            Some(0) => {
                let advice =
                    "see that pods with the labels of the Service's selector run there and are ready";
                // One of several may have none; if all have none, the Service is unreachable.
                let severity = if nowhere { Severity::Problem } else { Severity::Note };
                self.add(severity, name, "it has no endpoints of the Service", advice);
            }
            Some(own) if own != row.collected && self.facts.unreadable.is_empty() => {
                let message = format!("{} of its {own} endpoints are collected", row.collected);
                let advice = "this passes within seconds; if it stays, look at the log of the controllers (in pull mode: of the \
                              agent), and that serviceExport and endpointsliceCollect run there";
                self.problem(name, message, advice);
            }
            _ => {}
        }
    }

    fn about_flows(&mut self, report: &Report) {
        for flow in report.flows.iter().filter(|flow| !flow.complete && flow.brought.is_some()) {
            let ready = |name: &str| report.clusters.iter().any(|row| row.cluster == name && row.ready);
            // The cluster itself has already been reported.
            if !ready(&flow.to) {
                continue;
            }
            let message = format!(
                "{} has {} of {} endpoints of {} for {}",
                flow.to,
                flow.brought.unwrap_or(0),
                flow.wanted,
                flow.from,
                flow.service
            );
            let advice = format!(
                "look at the Works: kubectl get works -n {} ; and at the events of the {}",
                names::execution_space(&flow.to),
                match flow.way {
                    Way::MultiClusterService => "MultiClusterService",
                    Way::ServiceExport => "ServiceImport",
                }
            );
            self.problem(&format!("{} to {}", flow.from, flow.to), message, advice);
        }
    }

    /// Slices that we brought to a cluster but that no cluster exports any more.
    fn about_what_was_left_behind(&mut self, report: &Report) {
        // Without access to all clusters and all Works, this is unknown.
        if self.facts.partial || !self.facts.unreadable.is_empty() {
            return;
        }
        for cluster in &self.facts.clusters {
            let Ok(member) = &cluster.member else { continue };
            let wanted = |name: &str| {
                report
                    .flows
                    .iter()
                    .any(|flow| flow.to == cluster.name && flow.slices.iter().any(|slice| slice == name))
            };
            let left = member.slices.iter().filter(|slice| brought_by_us(slice));
            let left: Vec<&str> =
                left.map(|slice| text(slice, "/metadata/name")).filter(|name| !wanted(name)).collect();
            if !left.is_empty() {
                let message = format!("it has EndpointSlices that nobody offers: {}", left.join(", "));
                let advice = "this passes within seconds; if it stays, the cluster cannot be written to: see its Works";
                self.problem(&cluster.name, message, advice);
            }
        }
    }
}

/// The identity of a port of a Service. Endpoints are found by the name of their port.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port<'a> {
    number: u64,
    protocol: &'a str,
    name: &'a str,
}

impl Port<'_> {
    /// Returns the description of a port that is not among these.
    fn words(&self, others: &BTreeSet<Port<'_>>) -> String {
        let Self { number, protocol, name } = self;
        let number = if *protocol == "TCP" { number.to_string() } else { format!("{number}/{protocol}") };
        let has_name =
            others.iter().any(|other| (other.number, other.protocol) == (self.number, self.protocol));
        match name.is_empty() {
            false => format!("{number} named {name}"),
            true if has_name => format!("{number} without a name"),
            true => number,
        }
    }
}

fn ports(object: &Value) -> BTreeSet<Port<'_>> {
    let ports = object["spec"]["ports"].as_array().into_iter().flatten();
    ports
        .filter_map(|port| {
            let protocol = port["protocol"].as_str().filter(|protocol| !protocol.is_empty());
            let (number, name) = (port["port"].as_u64()?, text(port, "/name"));
            Some(Port { number, protocol: protocol.unwrap_or("TCP"), name })
        })
        .collect()
}

/// Returns the cluster of a Work with a slice for a ServiceExport.
fn exporter(work: &Value) -> Option<&str> {
    let metadata = &work["metadata"];
    let held = metadata["labels"][ENDPOINT_SLICE_NAME].is_string() && metadata["deletionTimestamp"].is_null();
    names::cluster_of_execution_space(text(work, "/metadata/namespace")).filter(|_| held)
}

/// Adds the findings from probes.
pub(super) fn judge_probes(report: &mut Report) {
    let mut found: Vec<Finding> = Vec::new();
    for flow in &report.flows {
        if let Some(Probe::Skipped(why)) = flow.probe.as_ref().filter(|_| !flow.endpoints.is_empty()) {
            let note = Finding {
                severity: Severity::Note,
                about: flow.to.clone(),
                message: format!("no connection was tried from it: {why}"),
                advice: format!(
                    "run a pod with a shell and one of nc, bash, curl, wget in the namespace {} there, and try again",
                    report.namespace
                ),
            };
            // Whatever the source is, the reason is the same.
            if !found.contains(&note) {
                found.push(note);
            }
        }
        if let Some(Probe::Unreachable { tried, failed, pod }) = &flow.probe {
            found.push(Finding {
                severity: Severity::Problem,
                about: format!("{} to {}", flow.from, flow.to),
                message: format!(
                    "pod {pod} in {} cannot connect to {} of {tried} endpoints of {}: {}",
                    flow.to,
                    failed.len(),
                    flow.from,
                    failed.join(", ")
                ),
                advice:
                    "join the pod networks (Submariner, Cilium Cluster Mesh, routes), and let firewalls and \
                         NetworkPolicies on both sides pass the port"
                        .to_owned(),
            });
        }
    }
    report.findings.extend(found);
}
