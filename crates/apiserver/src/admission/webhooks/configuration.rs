//! A webhook as configured, parsed once.

use std::collections::HashMap;

use apimachinery::pointer;
use apimachinery::selector::LabelSelector;
use base64::Engine;
use serde_json::Value;

use super::matching::Rule;
use crate::admission::expressions::Conditions;
use crate::outbound::{Address, Endpoint, ServicePort, Trust};

/// One entry of a configuration's `webhooks`.
#[derive(Debug)]
pub(super) struct Hook {
    pub(super) name: String,
    pub(super) configuration: String,
    /// Distinguishes webhooks with the same name in one or several configurations.
    pub(super) uid: String,
    pub(super) rules: Vec<Rule>,
    pub(super) equivalent: bool,
    pub(super) namespaces: Result<LabelSelector, String>,
    pub(super) objects: Result<LabelSelector, String>,
    pub(super) conditions: Conditions,
    pub(super) ignore_failure: bool,
    pub(super) reinvoke: bool,
    pub(super) timeout_seconds: u64,
    pub(super) side_effects: String,
    /// `v1` or `v1beta1`, the first listed one that we support.
    pub(super) review_version: Option<&'static str>,
    pub(super) client: Result<Client, String>,
}

/// Where and how a webhook is called.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) endpoint: Endpoint,
    /// Scheme, host and port, as shown in errors.
    pub(crate) origin: String,
    pub(crate) path: String,
}

impl Client {
    /// Reads a `clientConfig`.
    pub(crate) fn read(config: &Value) -> Result<Self, String> {
        let bundle = config["caBundle"]
            .as_str()
            .and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
        let trust = Trust::from_bundle(bundle);
        let endpoint = |address| Endpoint { address, trust, as_front_proxy: false };
        if let Some(service) = config.get("service").filter(|service| service.is_object()) {
            let text = |field: &str| service[field].as_str().unwrap_or("").to_owned();
            let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
            let address =
                Address::Service(ServicePort { namespace: text("namespace"), name: text("name"), port });
            let origin = format!("https://{}", address.authority());
            return Ok(Self { endpoint: endpoint(address), origin, path: rooted(&text("path")) });
        }
        let url = config["url"].as_str().unwrap_or("");
        if url.is_empty() {
            return Err("webhook configuration must have either service or URL".to_owned());
        }
        let unparsable = || format!("Unparsable URL: {url}");
        let address = Address::of_url(url).ok_or_else(unparsable)?;
        let rest = url.strip_prefix("https://").ok_or_else(unparsable)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        Ok(Self {
            endpoint: endpoint(address),
            origin: format!("https://{authority}"),
            path: rooted(path.split(['?', '#']).next().unwrap_or("")),
        })
    }
}

fn rooted(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// Reads the webhooks of a stored configuration.
pub(super) fn read(name: &str, body: &[u8]) -> Vec<Hook> {
    let Ok(configuration) = serde_json::from_slice::<Value>(body) else { return Vec::new() };
    let hooks = pointer::list(&configuration, "/webhooks").iter();
    let mut seen: HashMap<String, usize> = HashMap::new();
    hooks
        .map(|hook| {
            let hook_name = hook["name"].as_str().unwrap_or("").to_owned();
            let count = seen.entry(hook_name.clone()).or_default();
            let nth = *count;
            *count = count.saturating_add(1);
            Hook {
                uid: format!("{name}/{hook_name}/{nth}"),
                configuration: name.to_owned(),
                rules: hook["rules"].as_array().into_iter().flatten().map(Rule::read).collect(),
                equivalent: hook["matchPolicy"] == "Equivalent",
                namespaces: selector(&hook["namespaceSelector"]),
                objects: selector(&hook["objectSelector"]),
                conditions: Conditions::read(&hook["matchConditions"]),
                ignore_failure: hook["failurePolicy"] == "Ignore",
                reinvoke: hook["reinvocationPolicy"] == "IfNeeded",
                timeout_seconds: hook["timeoutSeconds"].as_u64().unwrap_or(10),
                side_effects: hook["sideEffects"].as_str().unwrap_or("").to_owned(),
                review_version: hook["admissionReviewVersions"].as_array().into_iter().flatten().find_map(
                    |version| match version.as_str() {
                        Some("v1") => Some("v1"),
                        Some("v1beta1") => Some("v1beta1"),
                        _ => None,
                    },
                ),
                client: Client::read(&hook["clientConfig"]),
                name: hook_name,
            }
        })
        .collect()
}

pub(crate) fn selector(value: &Value) -> Result<LabelSelector, String> {
    if value.is_null() {
        return Ok(LabelSelector::everything());
    }
    LabelSelector::from_object(Some(value)).map_err(|error| error.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_url_without_port_means_443_but_is_shown_as_written() {
        let client = Client::read(&json!({"url": "https://hook.example.com/check?x=1"})).unwrap();
        assert_eq!(client.origin, "https://hook.example.com");
        assert_eq!(client.path, "/check");
        assert_eq!(client.endpoint.address, Address::Host { host: "hook.example.com".into(), port: 443 });
    }

    #[test]
    fn a_service_is_known_by_its_cluster_name() {
        let client = Client::read(&json!({"service": {"name": "s", "namespace": "n", "path": "p"}})).unwrap();
        assert_eq!((client.origin.as_str(), client.path.as_str()), ("https://s.n.svc:443", "/p"));
    }

    #[test]
    fn finding_25_many_webhooks_are_told_apart_in_linear_time() {
        let hooks: Vec<Value> =
            (0..100_000).map(|number| json!({"name": format!("{}.example.com", number % 50_000)})).collect();
        let body = serde_json::to_vec(&json!({"webhooks": hooks})).unwrap();
        // Comparing each with each before it would take minutes.
        let hooks = read("many", &body);
        assert_eq!(hooks.len(), 100_000);
        assert_eq!(
            (hooks[7].uid.as_str(), hooks[50_007].uid.as_str()),
            ("many/7.example.com/0", "many/7.example.com/1")
        );
    }

    #[test]
    fn an_ipv6_address_keeps_its_brackets_in_the_url() {
        let client = Client::read(&json!({"url": "https://[::1]:8443"})).unwrap();
        assert_eq!(client.endpoint.address, Address::Host { host: "[::1]".into(), port: 8443 });
        assert_eq!(client.endpoint.address.server_name(), "::1");
        assert_eq!(client.path, "/");
    }
}
