//! Finds the addresses behind a Service. Cluster addresses are not routed on this machine and DNS does not know the names, so the
//! server looks them up itself: ExternalName, then endpoints, then the cluster address.

use apimachinery::pointer;
use serde_json::Value;

use super::Error;
use crate::object;
use crate::server::Server;

/// A Service and one of its ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServicePort {
    pub namespace: String,
    pub name: String,
    pub port: u16,
}

/// The target of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    Host { host: String, port: u16 },
    Service(ServicePort),
}

impl Address {
    /// Returns the target of an https URL; `None` if it is not one.
    pub fn of_url(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("https://")?;
        let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            _ => (authority, 443),
        };
        (!host.is_empty()).then(|| Self::Host { host: host.to_owned(), port })
    }

    /// Returns the name for which the certificate of the other side must be valid.
    pub fn server_name(&self) -> String {
        match self {
            Self::Host { host, .. } => host.trim_matches(['[', ']']).to_owned(),
            Self::Service(service) => format!("{}.{}.svc", service.name, service.namespace),
        }
    }

    /// Returns host and port as written in a URL.
    pub fn authority(&self) -> String {
        match self {
            Self::Host { host, port } => format!("{host}:{port}"),
            Self::Service(service) => format!("{}:{}", self.server_name(), service.port),
        }
    }

    /// Returns whether a Service has a ready endpoint. A host always counts as one.
    pub fn has_endpoints(&self, server: &Server) -> bool {
        match self {
            Self::Host { .. } => true,
            Self::Service(service) => service.resolve(server).is_ok(),
        }
    }

    pub(super) fn resolve(&self, server: &Server) -> Result<Vec<String>, Error> {
        match self {
            Self::Host { .. } => Ok(vec![self.authority()]),
            Self::Service(service) => service.resolve(server),
        }
    }
}

impl ServicePort {
    /// Returns the addresses to try, with the endpoints in random order.
    pub fn resolve(&self, server: &Server) -> Result<Vec<String>, Error> {
        let missing = || Error(format!("service {:?} not found", self.name));
        let key = object::join_key(&self.namespace, &self.name);
        let entry = server.store.get("services/specs", &key).ok_or_else(missing)?;
        let service: Value = serde_json::from_slice(&entry.value).map_err(|_| missing())?;
        let spec = service.get("spec").unwrap_or(&Value::Null);
        let text = |field: &str| spec[field].as_str().unwrap_or("").to_owned();
        if text("type") == "ExternalName" {
            return Ok(vec![format!("{}:{}", text("externalName"), self.port)]);
        }
        let ports = pointer::list(&service, "/spec/ports");
        let port = ports.iter().find(|port| port["port"] == self.port).ok_or_else(|| {
            Error(format!("no service port {} found for service {:?}", self.port, self.name))
        })?;
        let name = port["name"].as_str().unwrap_or("");
        let mut found = self.in_slices(server, name);
        if found.is_empty() {
            found = self.in_endpoints(server, name);
        }
        if found.len() > 1 {
            let first = rand::random_range(0..found.len());
            found.rotate_left(first);
        }
        let cluster_ip = text("clusterIP");
        if found.is_empty() && !cluster_ip.is_empty() && cluster_ip != "None" && has_selector(&service) {
            // Another network may route this address; ours has no endpoints for it.
            found.push(join(&cluster_ip, u64::from(self.port)));
        }
        if found.is_empty() {
            return Err(Error(format!("no endpoints available for service {:?}", self.name)));
        }
        Ok(found)
    }

    fn in_slices(&self, server: &Server, port_name: &str) -> Vec<String> {
        let mut found = Vec::new();
        for entry in server.store.snapshot("endpointslices").iter() {
            let (namespace, _) = object::split_key(&entry.name);
            if namespace != self.namespace
                || entry.head.label("kubernetes.io/service-name") != Some(self.name.as_str())
            {
                continue;
            }
            let Ok(slice) = serde_json::from_slice::<Value>(&entry.value) else { continue };
            let Some(port) = port_of(pointer::list(&slice, "/ports"), port_name) else { continue };
            for endpoint in pointer::list(&slice, "/endpoints") {
                if endpoint["conditions"].get("ready") != Some(&Value::Bool(false))
                    && let Some(address) = endpoint["addresses"].get(0).and_then(Value::as_str)
                {
                    found.push(join(address, port));
                }
            }
        }
        found
    }

    fn in_endpoints(&self, server: &Server, port_name: &str) -> Vec<String> {
        let key = object::join_key(&self.namespace, &self.name);
        let Some(entry) = server.store.get("services/endpoints", &key) else { return Vec::new() };
        let Ok(endpoints) = serde_json::from_slice::<Value>(&entry.value) else { return Vec::new() };
        let mut found = Vec::new();
        for subset in pointer::list(&endpoints, "/subsets") {
            let Some(port) = port_of(pointer::list(subset, "/ports"), port_name) else { continue };
            let addresses = subset["addresses"].as_array().into_iter().flatten();
            found.extend(
                addresses.filter_map(|address| address["ip"].as_str()).map(|address| join(address, port)),
            );
        }
        found
    }
}

fn has_selector(service: &Value) -> bool {
    service["spec"].get("selector").and_then(Value::as_object).is_some_and(|selector| !selector.is_empty())
}

fn port_of(ports: &[Value], name: &str) -> Option<u64> {
    let mut ports = ports.iter();
    ports.find(|port| port["name"].as_str().unwrap_or("") == name)?["port"].as_u64()
}

fn join(host: &str, port: u64) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
