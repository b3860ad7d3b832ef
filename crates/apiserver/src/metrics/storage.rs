//! Metrics of the store, under kube-apiserver's names: requests to etcd, events from its watch, and the size of the database.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use store::{ETCD_BUCKETS, EtcdReport};

use crate::registry::Kind;

/// Names the resource of a collection as kube-apiserver's labels do.
pub(super) struct Resources(HashMap<Arc<str>, (String, String)>);

impl Resources {
    pub(super) fn of(kinds: &[Arc<Kind>]) -> Self {
        let name = |kind: &Arc<Kind>| (kind.resource.group.clone(), kind.resource.resource.clone());
        Self(kinds.iter().map(|kind| (kind.collection.clone(), name(kind))).collect())
    }

    fn labels(&self, collection: &str) -> String {
        match self.0.get(collection) {
            Some((group, resource)) => format!("group=\"{group}\",resource=\"{resource}\""),
            // Collections that are not resources: keys of the servers, questions about the whole store.
            None => "group=\"\",resource=\"\"".to_owned(),
        }
    }
}

/// Writes the size of the database; without etcd, the size of the file.
pub(super) fn size(text: &mut String, bytes: u64) {
    text.push_str("# HELP apiserver_storage_size_bytes Size of the storage database file physically allocated in bytes\n");
    text.push_str("# TYPE apiserver_storage_size_bytes gauge\n");
    let _ = writeln!(text, "apiserver_storage_size_bytes{{storage_cluster_id=\"etcd-0\"}} {bytes}");
}

/// Writes the metrics of etcd.
pub(super) fn etcd(text: &mut String, report: &EtcdReport, resources: &Resources) {
    let bytes = report.endpoints.iter().map(|endpoint| endpoint.bytes).max().unwrap_or(0);
    size(text, bytes);
    text.push_str(
        "# HELP karmada_etcd_endpoint_up Whether an endpoint of etcd answered when it was last looked at\n",
    );
    text.push_str("# TYPE karmada_etcd_endpoint_up gauge\n");
    for endpoint in &report.endpoints {
        let up = u8::from(endpoint.failure.is_none());
        let _ = writeln!(text, "karmada_etcd_endpoint_up{{endpoint={:?}}} {up}", endpoint.url);
    }
    let labels = |collection: &str, operation: &str| {
        format!("operation=\"{operation}\",{}", resources.labels(collection))
    };
    text.push_str("# HELP etcd_request_duration_seconds Etcd request latency in seconds for each operation and object type\n");
    text.push_str("# TYPE etcd_request_duration_seconds histogram\n");
    for one in &report.requests {
        let labels = labels(&one.collection, one.operation);
        let mut sum: u64 = 0;
        for (end, count) in ETCD_BUCKETS.iter().zip(one.buckets) {
            sum = sum.saturating_add(count);
            let _ = writeln!(text, "etcd_request_duration_seconds_bucket{{{labels},le=\"{end:?}\"}} {sum}");
        }
        let _ = writeln!(text, "etcd_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} {}", one.count);
        let _ = writeln!(text, "etcd_request_duration_seconds_sum{{{labels}}} {:?}", one.seconds);
        let _ = writeln!(text, "etcd_request_duration_seconds_count{{{labels}}} {}", one.count);
    }
    text.push_str("# HELP etcd_requests Etcd request counts for each operation and object type\n# TYPE etcd_requests counter\n");
    for one in &report.requests {
        let _ =
            writeln!(text, "etcd_requests_total{{{}}} {}", labels(&one.collection, one.operation), one.count);
    }
    text.push_str(
        "# HELP etcd_request_errors Etcd failed request counts for each operation and object type\n",
    );
    text.push_str("# TYPE etcd_request_errors counter\n");
    for one in &report.requests {
        let labels = labels(&one.collection, one.operation);
        let _ = writeln!(text, "etcd_request_errors_total{{{labels}}} {}", one.errors);
    }
    text.push_str("# HELP apiserver_storage_events_received Number of etcd events received split by kind\n");
    text.push_str("# TYPE apiserver_storage_events_received counter\n");
    for (collection, count) in &report.events {
        let labels = resources.labels(collection);
        let _ = writeln!(text, "apiserver_storage_events_received_total{{{labels}}} {count}");
    }
}

#[cfg(test)]
mod tests {
    use store::{EtcdEndpoint, EtcdRequests};

    use super::*;

    #[test]
    fn requests_have_the_names_of_kube_apiserver() {
        let mut requests = EtcdRequests {
            operation: "update",
            collection: "deployments".into(),
            count: 3,
            errors: 1,
            seconds: 0.5,
            ..EtcdRequests::default()
        };
        (requests.buckets[0], requests.buckets[1]) = (1, 1);
        let endpoint = |url: &str, failure: Option<&str>, bytes| EtcdEndpoint {
            url: url.to_owned(),
            failure: failure.map(Into::into),
            bytes,
        };
        let report = EtcdReport {
            endpoints: vec![endpoint("http://a:1", None, 42), endpoint("http://b:1", Some("gone"), 0)],
            requests: vec![requests],
            events: vec![("server-keys".into(), 1)],
        };
        let resource = ("apps".to_owned(), "deployments".to_owned());
        let mut text = String::new();
        etcd(&mut text, &report, &Resources(HashMap::from([("deployments".into(), resource)])));
        let labels = "operation=\"update\",group=\"apps\",resource=\"deployments\"";
        for line in [
            "apiserver_storage_size_bytes{storage_cluster_id=\"etcd-0\"} 42".to_owned(),
            "karmada_etcd_endpoint_up{endpoint=\"http://a:1\"} 1".to_owned(),
            "karmada_etcd_endpoint_up{endpoint=\"http://b:1\"} 0".to_owned(),
            format!("etcd_request_duration_seconds_bucket{{{labels},le=\"0.005\"}} 1"),
            format!("etcd_request_duration_seconds_bucket{{{labels},le=\"60.0\"}} 2"),
            format!("etcd_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 3"),
            format!("etcd_request_duration_seconds_sum{{{labels}}} 0.5"),
            format!("etcd_requests_total{{{labels}}} 3"),
            format!("etcd_request_errors_total{{{labels}}} 1"),
            "apiserver_storage_events_received_total{group=\"\",resource=\"\"} 1".to_owned(),
        ] {
            assert!(text.lines().any(|told| told == line), "{line}\n{text}");
        }
    }
}
