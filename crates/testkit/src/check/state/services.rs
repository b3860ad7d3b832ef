//! The laws of services across clusters: each endpoint that is offered is where it is wanted, and nothing else is.

use std::collections::BTreeSet;

use api::labels::annotations::{PROVISION_CLUSTER, WORK_NAME, WORK_NAMESPACE};
use api::labels::{ENDPOINT_SLICE_CONTROLLER, ENDPOINT_SLICE_MANAGED_BY, ENDPOINT_SLICE_NAME};
use api::names;
use serde_json::Value;

use super::{
    Index, full, has_condition, is_going, items, name_of, namespace_of, note, runs, service_of, text,
};

/// Returns what is wrong with Works and EndpointSlices that carry endpoints from cluster to cluster.
pub(super) fn complaints(index: &Index<'_>) -> Vec<String> {
    let mut complaints = Vec::new();
    let works = index.of_kind("Work").filter(|work| !is_going(work));
    for work in works {
        let Some((kind, namespace, name)) = service_of(work) else { continue };
        let manifest = &work["spec"]["workload"]["manifests"][0];
        let source = note(work, PROVISION_CLUSTER);
        if kind == "MultiClusterService" && index.find(kind, namespace, name).is_none() {
            complaints
                .push(format!("{} is there although there is no {kind} {namespace}/{name}", full(work)));
        } else if !source.is_empty() {
            // Brought here from there: it says the same as what was collected there.
            let slice = text(&manifest["metadata"]["name"]).strip_prefix(&format!("{source}-")).unwrap_or("");
            let collected = index.find(
                "Work",
                &names::execution_space(source),
                &names::work("EndpointSlice", slice, text(&manifest["metadata"]["namespace"])),
            );
            let said = |work: &Value| work["spec"]["workload"]["manifests"][0]["endpoints"].clone();
            match collected {
                None => {
                    complaints.push(format!("{} is there although {source} has no such slice", full(work)))
                }
                Some(other) if said(other) != said(work) => {
                    complaints.push(format!("{} has other endpoints than {}", full(work), full(other)));
                }
                Some(_) => {}
            }
        }
    }
    complaints.extend(undispatched(index));
    complaints.extend(imported(index));
    complaints
}

/// Every collected slice of a MultiClusterService is in each of its consumers but its own, while its cluster is ready.
fn undispatched(index: &Index<'_>) -> Vec<String> {
    if !runs(&index.state.controllers, "endpointsliceDispatch") {
        return Vec::new();
    }
    let all: BTreeSet<&str> =
        index.of_kind("Cluster").filter(|cluster| !is_going(cluster)).map(name_of).collect();
    let mut complaints = Vec::new();
    for multi in index.of_kind("MultiClusterService").filter(|multi| !is_going(multi)) {
        let listed = |field: &str| -> BTreeSet<&str> {
            let named: BTreeSet<&str> =
                items(&multi["spec"][field]).iter().map(|one| text(&one["name"])).collect();
            if named.is_empty() { all.clone() } else { named.intersection(&all).copied().collect() }
        };
        for provider in listed("providerClusters") {
            let ready =
                index.find("Cluster", "", provider).is_some_and(|cluster| has_condition(cluster, "Ready"));
            let space = names::execution_space(provider);
            let collected = index.of_kind("Work").filter(|work| {
                let about =
                    service_of(work) == Some(("MultiClusterService", namespace_of(multi), name_of(multi)));
                let slice = work["spec"]["workload"]["manifests"][0]["kind"] == "EndpointSlice";
                about && slice && namespace_of(work) == space && note(work, PROVISION_CLUSTER).is_empty()
            });
            for work in collected {
                let slice = &work["spec"]["workload"]["manifests"][0]["metadata"];
                let there = names::dispatched_endpoint_slice(provider, text(&slice["name"]));
                let name = names::work("EndpointSlice", &there, text(&slice["namespace"]));
                for consumer in
                    listed("consumerClusters").into_iter().filter(|consumer| *consumer != provider)
                {
                    let found = index.find("Work", &names::execution_space(consumer), &name).is_some();
                    if found != ready {
                        let what = if found { "is" } else { "is not" };
                        complaints.push(format!(
                            "{} {what} in {consumer}, and {provider} is ready: {ready}",
                            full(work)
                        ));
                    }
                }
            }
        }
    }
    complaints
}

/// Every slice that was collected for a ServiceExport is in the control plane while its cluster is ready, and no other is.
fn imported(index: &Index<'_>) -> Vec<String> {
    if !runs(&index.state.controllers, "endpointSlice") {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    let ours =
        |slice: &&Value| slice["metadata"]["labels"][ENDPOINT_SLICE_MANAGED_BY] == ENDPOINT_SLICE_CONTROLLER;
    for slice in index.of_kind("EndpointSlice").filter(ours) {
        if index.find("Work", note(slice, WORK_NAMESPACE), note(slice, WORK_NAME)).is_none() {
            complaints.push(format!("{} is there although nothing was collected for it", full(slice)));
        }
    }
    let exported = |work: &&Value| {
        let named = !text(&work["metadata"]["labels"][ENDPOINT_SLICE_NAME]).is_empty();
        named && note(work, PROVISION_CLUSTER).is_empty() && !is_going(work)
    };
    for work in index.of_kind("Work").filter(exported) {
        let cluster = names::cluster_of_execution_space(namespace_of(work)).unwrap_or("");
        let ready = index.find("Cluster", "", cluster).is_some_and(|cluster| has_condition(cluster, "Ready"));
        let manifest = &work["spec"]["workload"]["manifests"][0];
        let name = names::imported_endpoint_slice(cluster, name_of(manifest));
        match index.find("EndpointSlice", namespace_of(manifest), &name) {
            Some(found) if ready && found["endpoints"] != manifest["endpoints"] => {
                complaints.push(format!("{} has other endpoints than {}", full(found), full(work)));
            }
            found if found.is_some() != ready => complaints.push(format!(
                "EndpointSlice {name} is there: {}, and {cluster} is ready: {ready}",
                found.is_some()
            )),
            _ => {}
        }
    }
    complaints
}
