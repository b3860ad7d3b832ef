//! Where the estimator of a cluster answers.
//!
//! Each has a Service in the control plane, `<prefix>-<cluster>`. One that leads elsewhere (`ExternalName`) is followed;
//! where there is none, the in-cluster names of a Service are tried.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A Service that does not say where to go.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unsupported service type {0:?}")]
    Type(String),
    #[error("service {service} has no port {port} with a numeric target port")]
    Port { service: String, port: u16 },
}

/// Returns the addresses to try, in order.
pub fn addresses(
    service: Option<&Service>,
    namespace: &str,
    name: &str,
    port: u16,
) -> Result<Vec<String>, Error> {
    let Some(service) = service else {
        return Ok(vec![
            format!("{name}.{namespace}.svc.cluster.local:{port}"),
            format!("{name}.{namespace}.svc:{port}"),
        ]);
    };
    let spec = service.spec.clone().unwrap_or_default();
    let kind = spec.type_.unwrap_or_else(|| "ClusterIP".to_owned());
    if kind != "ExternalName" {
        return Err(Error::Type(kind));
    }
    let target = spec.ports.iter().flatten().find(|one| one.port == i32::from(port));
    match target.and_then(|one| one.target_port.as_ref()) {
        Some(IntOrString::Int(target)) => {
            Ok(vec![format!("{}:{target}", spec.external_name.unwrap_or_default())])
        }
        _ => Err(Error::Port { service: name.to_owned(), port }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(spec: serde_json::Value) -> Result<Vec<String>, Error> {
        let service: Service = serde_json::from_value(json!({"spec": spec})).unwrap();
        addresses(Some(&service), "karmada-system", "karmada-scheduler-estimator-m1", 10352)
    }

    #[test]
    fn a_service_that_leads_elsewhere_is_followed() {
        let port = json!([{"port": 10352, "targetPort": 30352}]);
        let spec = json!({"type": "ExternalName", "externalName": "m1.example.com", "ports": port});
        assert_eq!(check(spec).unwrap(), ["m1.example.com:30352"]);
    }

    #[test]
    fn other_services_are_refused_by_name() {
        assert_eq!(check(json!({})).unwrap_err().to_string(), "unsupported service type \"ClusterIP\"");
        let named = json!([{"port": 10352, "targetPort": "grpc"}]);
        assert!(check(json!({"type": "ExternalName", "externalName": "x", "ports": named})).is_err());
    }

    #[test]
    fn without_a_service_its_usual_names_are_tried() {
        assert_eq!(
            addresses(None, "ns", "e-m1", 1).unwrap(),
            ["e-m1.ns.svc.cluster.local:1", "e-m1.ns.svc:1"]
        );
    }
}
