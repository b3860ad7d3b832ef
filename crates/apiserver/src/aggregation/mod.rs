//! APIServices: groups that other servers serve, below the paths of this one.
//!
//! `availability` decides which of them can be reached and writes their condition. `local` keeps an APIService for each of our
//! own groups. `proxy` forwards requests. The registry also has the remotely served groups, so that discovery and routing see the
//! same state.

pub(crate) mod availability;
pub(crate) mod discovery;
pub(crate) mod local;
pub(crate) mod proxy;

use std::sync::Arc;

use base64::Engine;
use serde_json::Value;

use crate::outbound::{Address, Endpoint, ServicePort, Trust};

pub(crate) const COLLECTION: &str = "apiregistration.k8s.io/apiservices";

/// A group version that another server serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Remote {
    /// Name of the APIService.
    pub name: String,
    pub group: String,
    pub version: String,
    pub group_priority: i32,
    pub version_priority: i32,
    pub service: ServicePort,
    pub endpoint: Endpoint,
    pub available: bool,
    /// Its resources, in the form of aggregated discovery, once they are known.
    pub resources: Option<Arc<Value>>,
    /// Set if these are the resources from the last successful discovery.
    pub fresh: bool,
    /// The part of its OpenAPI v2 document that concerns this group version, as text: `paths` and `definitions`.
    pub openapi: Option<Arc<str>>,
}

impl Remote {
    /// Reads an APIService; `None` if it stands for one of our own groups.
    pub(crate) fn read(service: &Value) -> Option<Self> {
        let spec = &service["spec"];
        let target = spec.get("service").filter(|target| target.is_object())?;
        let text = |value: &Value, field: &str| value[field].as_str().unwrap_or("").to_owned();
        let number = |field: &str| spec[field].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
        let port = target["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
        let bundle = spec["caBundle"]
            .as_str()
            .and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
        let trust =
            if spec["insecureSkipTLSVerify"] == true { Trust::Anyone } else { Trust::from_bundle(bundle) };
        let target = ServicePort { namespace: text(target, "namespace"), name: text(target, "name"), port };
        Some(Self {
            name: text(&service["metadata"], "name"),
            group: text(spec, "group"),
            version: text(spec, "version"),
            group_priority: number("groupPriorityMinimum"),
            version_priority: number("versionPriority"),
            endpoint: Endpoint { address: Address::Service(target.clone()), trust, as_front_proxy: true },
            service: target,
            available: apimachinery::conditions::is_true(service, "Available"),
            resources: None,
            fresh: false,
            openapi: None,
        })
    }

    /// Returns whether this is the same server in the same place, whatever is known about it.
    pub(crate) fn is_declared_as(&self, other: &Self) -> bool {
        let declared = |remote: &Self| Self {
            available: false,
            resources: None,
            fresh: false,
            openapi: None,
            ..remote.clone()
        };
        declared(self) == declared(other)
    }

    /// Returns this remote with what is known about one of the same name.
    pub(crate) fn with_what_is_known(self, known: &Self) -> Self {
        Self {
            available: known.available,
            resources: known.resources.clone(),
            fresh: known.fresh,
            openapi: known.openapi.clone(),
            ..self
        }
    }

    /// Returns what the server's discovery says about one of its resources.
    pub(crate) fn resource(&self, name: &str) -> Option<&Value> {
        let resources = self.resources.as_deref().and_then(Value::as_array);
        resources.into_iter().flatten().find(|resource| resource["resource"] == name)
    }

    /// Returns whether a resource has a subresource, according to the server's discovery.
    pub(crate) fn has_subresource(resource: &Value, name: &str) -> bool {
        let subresources = resource["subresources"].as_array().into_iter().flatten();
        subresources.into_iter().any(|known| known["subresource"] == name)
    }

    /// Returns the path prefix of this group version.
    pub(crate) fn path(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }
}
