//! What native objects need beside them.

use api::config::DependentObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::kinds::Kind;
use crate::fields::{self, list, text};
use crate::{Error, Result, pods};

pub(super) fn supports(kind: Kind) -> bool {
    pod_spec(kind).is_some() || matches!(kind, Kind::Ingress | Kind::ServiceImport)
}

fn pod_spec(kind: Kind) -> Option<&'static [&'static str]> {
    match kind {
        Kind::Deployment | Kind::ReplicaSet | Kind::DaemonSet | Kind::StatefulSet | Kind::Job => {
            Some(&["spec", "template", "spec"])
        }
        Kind::CronJob => Some(&["spec", "jobTemplate", "spec", "template", "spec"]),
        Kind::Pod => Some(&["spec"]),
        _ => None,
    }
}

pub(super) fn get(kind: Kind, object: &Value) -> Result<Vec<DependentObjectReference>> {
    let namespace = fields::namespace(object);
    match (kind, pod_spec(kind)) {
        (_, Some(path)) => {
            let Some(spec) = fields::present(object, path)? else { return Ok(Vec::new()) };
            let mut references = pods::references(spec, namespace)?;
            if kind == Kind::StatefulSet {
                drop_own_claims(object, &mut references)?;
            }
            Ok(references)
        }
        (Kind::Ingress, None) => list(object, &["spec", "tls"])?
            .iter()
            .filter_map(|tls| match text(tls, &["secretName"]) {
                // The ingress controller has a certificate of its own for these hosts. Upstream refuses the whole list.
                Ok("") => None,
                name => Some(name.map(|name| reference("v1", "Secret", namespace, name))),
            })
            .collect(),
        (Kind::ServiceImport, None) => {
            let derived = format!("derived-{}", fields::name(object));
            let selector = LabelSelector {
                match_labels: Some([("kubernetes.io/service-name".to_owned(), derived.clone())].into()),
                ..LabelSelector::default()
            };
            Ok(vec![
                reference("v1", "Service", namespace, &derived),
                DependentObjectReference {
                    label_selector: Some(selector),
                    ..reference("discovery.k8s.io/v1", "EndpointSlice", namespace, "")
                },
            ])
        }
        _ => Err(Error::NoDependencyRule),
    }
}

/// Claims made from a StatefulSet's own templates are created in the member, not propagated.
fn drop_own_claims(object: &Value, references: &mut Vec<DependentObjectReference>) -> Result<()> {
    for template in list(object, &["spec", "volumeClaimTemplates"])? {
        let name = text(template, &["metadata", "name"])?;
        references.retain(|reference| reference.kind != "PersistentVolumeClaim" || reference.name != name);
    }
    Ok(())
}

fn reference(api_version: &str, kind: &str, namespace: &str, name: &str) -> DependentObjectReference {
    DependentObjectReference {
        api_version: api_version.into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
        label_selector: None,
    }
}
