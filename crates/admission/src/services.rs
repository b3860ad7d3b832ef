//! MultiClusterService.

use std::collections::BTreeSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use serde_json::Value;

use api::labels::MULTI_CLUSTER_SERVICE_PERMANENT_ID;
use api::networking::{ClusterSelector, ExposurePort, ExposureType, MultiClusterServiceSpec, ServiceStatus};

use crate::addresses;
use crate::cluster::name_faults;
use crate::request::{
    Denial, Operation, Request, deny_if_any, invalid, label, part, set_label, set_spec_with, spec,
};

pub(crate) fn mutate(object: &mut Value, fresh_id: &mut dyn FnMut() -> String) -> Result<(), Denial> {
    let service: MultiClusterServiceSpec = spec(object)?;
    set_spec_with(object, &service, &["types"]);
    if label(object, MULTI_CLUSTER_SERVICE_PERMANENT_ID).unwrap_or_default().is_empty() {
        set_label(object, MULTI_CLUSTER_SERVICE_PERMANENT_ID, fresh_id());
    }
    Ok(())
}

pub(crate) fn validate(request: &Request<'_>, object: &Value) -> Result<(), Denial> {
    let service: MultiClusterServiceSpec = spec(object)?;
    let mut errors = Errors::new();
    if let (Operation::Update, Some(old)) = (request.operation, request.old) {
        let old: MultiClusterServiceSpec = spec(old)?;
        if old.types != service.types {
            errors.push(invalid(
                &Path::new("spec").child("types"),
                &old.types,
                "MultiClusterService types are immutable",
            ));
        }
    }
    let mut of_status = Errors::new();
    if let (Operation::Update, true) = (request.operation, request.old.is_some()) {
        let status: ServiceStatus = part(object, "status")?;
        let known = status.load_balancer.ingress.iter();
        of_status = addresses::check(known.map(|entry| (entry.ip.as_str(), entry.hostname.as_str())));
    }
    // The name becomes the name of a Service, whose rules are narrower than those of other objects.
    if let Some(name) = object["metadata"].get("name").and_then(Value::as_str) {
        for fault in names::dns1035_label(name) {
            errors.push(Error::invalid(&Path::new("metadata").child("name"), name, fault));
        }
    }
    errors.extend(check(&service));
    // In this order, as upstream.
    errors.extend(of_status);
    deny_if_any(&errors)
}

fn check(service: &MultiClusterServiceSpec) -> Errors {
    let path = Path::new("spec");
    let mut errors = ports(&service.ports, &path.child("ports"));
    let types = path.child("types");
    for (index, exposure) in service.types.iter().enumerate() {
        if !matches!(exposure, ExposureType::CrossCluster | ExposureType::LoadBalancer) {
            errors.push(Error::invalid(&types.index(index), exposure.as_str(), "ExposureType Error"));
        }
    }
    if service.types.iter().collect::<BTreeSet<_>>().len() > 1 {
        errors.push(invalid(
            &types,
            &service.types,
            "MultiClusterService types should not contain more than one type",
        ));
    }
    // The paths are upstream's, from when the lists stood under range.
    let range = path.child("range");
    errors.extend(clusters(&service.provider_clusters, &range.child("providerClusters")));
    errors.extend(clusters(&service.consumer_clusters, &range.child("consumerClusters")));
    errors
}

fn ports(ports: &[ExposurePort], path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let here = path.index(index);
        if !port.name.is_empty() {
            for fault in names::dns1123_label(&port.name) {
                errors.push(Error::invalid(&here.child("name"), port.name.as_str(), fault));
            }
            if !seen.insert(port.name.as_str()) {
                errors.push(Error::duplicate(&here.child("name"), port.name.as_str()));
            }
        }
        for fault in names::port_number(i64::from(port.port)) {
            errors.push(Error::invalid(&here.child("port"), port.port, fault));
        }
    }
    errors
}

fn clusters(clusters: &[ClusterSelector], path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (index, cluster) in clusters.iter().enumerate() {
        let faults = name_faults(&cluster.name);
        if !faults.is_empty() {
            errors.push(Error::invalid(&path.index(index), cluster.name.as_str(), faults.join(",")));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(spec: Value) -> Vec<String> {
        check(&serde_json::from_value(spec).unwrap()).into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn the_id_is_given_once_and_the_range_is_written_out() {
        let mut object = json!({ "metadata": { "name": "s" }, "spec": { "types": ["CrossCluster"] } });
        mutate(&mut object, &mut || "fresh".to_owned()).unwrap();
        assert_eq!(object["metadata"]["labels"][MULTI_CLUSTER_SERVICE_PERMANENT_ID], "fresh");
        assert_eq!(object["spec"], json!({ "types": ["CrossCluster"], "range": {} }));
        mutate(&mut object, &mut || panic!("it has one")).unwrap();
    }

    #[test]
    fn ports_types_and_clusters_are_checked() {
        assert!(fields(json!({ "types": [] })).is_empty());
        assert_eq!(
            fields(json!({
                "types": ["CrossCluster", "LoadBalancer", "Teleport"],
                "ports": [{ "name": "a", "port": 80 }, { "name": "a", "port": 0 }],
                "providerClusters": [{ "name": "" }],
                "consumerClusters": [{ "name": "Not A Name" }],
            })),
            [
                "spec.ports[1].name",
                "spec.ports[1].port",
                "spec.types[2]",
                "spec.types",
                "spec.range.providerClusters[0]",
                "spec.range.consumerClusters[0]",
            ]
        );
    }

    #[test]
    fn types_cannot_be_changed_and_the_name_is_that_of_a_service() {
        let old = json!({ "metadata": { "name": "s" }, "spec": { "types": ["CrossCluster"] } });
        let request = Request {
            operation: Operation::Update,
            group: "networking.karmada.io",
            version: "v1alpha1",
            kind: "MultiClusterService",
            namespace: "ns",
            old: Some(&old),
        };
        assert_eq!(validate(&request, &old), Ok(()));
        let mut new = old.clone();
        new["spec"]["types"] = json!(["LoadBalancer"]);
        assert!(validate(&request, &new).unwrap_err().message.ends_with("types are immutable"));
        let mut new = old.clone();
        new["metadata"]["name"] = json!("1st");
        assert!(
            validate(&request, &new)
                .unwrap_err()
                .message
                .starts_with("metadata.name: Invalid value: \"1st\"")
        );
        new["spec"] = json!({ "types": ["LoadBalancer"], "ports": [{ "port": 0 }] });
        new["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "nowhere" }] } });
        let message = validate(&request, &new).unwrap_err().message;
        let places = ["spec.types", "metadata.name", "spec.ports[0].port", "status.loadBalancer"];
        let found: Vec<Option<usize>> = places.iter().map(|field| message.find(field)).collect();
        assert!(found.is_sorted() && found[0].is_some(), "as upstream orders them: {message}");
    }
}
