//! What operators want to know of etcd: how requests to it went, what it sent, and which of its endpoints answer.
//!
//! Written by the thread that speaks to etcd, read by whoever makes metrics and answers questions of health.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

/// Upper ends of the ranges of durations, in seconds: those of kube-apiserver, so that its dashboards fit.
pub const ETCD_BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];

/// What is asked of etcd, in kube-apiserver's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Get,
    List,
}

impl Operation {
    const ALL: [Self; 5] = [Self::Create, Self::Update, Self::Delete, Self::Get, Self::List];

    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Get => "get",
            Self::List => "list",
        }
    }
}

/// How etcd is, as far as this server knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EtcdReport {
    /// In the order of the options.
    pub endpoints: Vec<EtcdEndpoint>,
    /// By collection and operation.
    pub requests: Vec<EtcdRequests>,
    /// Changes that the watch has brought, by collection.
    pub events: Vec<(Arc<str>, u64)>,
}

/// One endpoint, when it was last looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdEndpoint {
    pub url: String,
    /// Why it cannot be used.
    pub failure: Option<Arc<str>>,
    /// Size of its database; 0 if it never answered.
    pub bytes: u64,
}

/// Requests of one kind, since the start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EtcdRequests {
    /// `create`, `update`, `delete`, `get` or `list`.
    pub operation: &'static str,
    /// Empty for what is asked of all at once.
    pub collection: Arc<str>,
    pub count: u64,
    pub errors: u64,
    /// How long all of them took together.
    pub seconds: f64,
    /// How many took no longer than each of [`ETCD_BUCKETS`], and longer than the one before.
    pub buckets: [u64; ETCD_BUCKETS.len()],
}

/// What is counted. Both locks are held for a moment only, and never together.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    collections: Mutex<HashMap<Arc<str>, Collection>>,
    endpoints: Mutex<Vec<EtcdEndpoint>>,
}

#[derive(Debug, Default)]
struct Collection {
    events: u64,
    requests: [EtcdRequests; Operation::ALL.len()],
}

impl Telemetry {
    pub(crate) fn asked(&self, operation: Operation, collection: &Arc<str>, took: Duration, failed: bool) {
        let seconds = took.as_secs_f64();
        let mut collections = self.collections.lock();
        let known = collections.entry(Arc::clone(collection)).or_default();
        let requests = &mut known.requests[operation as usize];
        requests.count += 1;
        requests.errors += u64::from(failed);
        requests.seconds += seconds;
        if let Some(bucket) = ETCD_BUCKETS.iter().position(|end| seconds <= *end) {
            requests.buckets[bucket] += 1;
        }
    }

    pub(crate) fn received<'a>(&self, collections: impl Iterator<Item = &'a Arc<str>>) {
        let mut known = self.collections.lock();
        for collection in collections {
            match known.get_mut(collection) {
                Some(counts) => counts.events += 1,
                None => known.entry(Arc::clone(collection)).or_default().events += 1,
            }
        }
    }

    /// Notes what a look at all endpoints has shown, and says what has changed.
    pub(crate) fn looked(&self, seen: Vec<EtcdEndpoint>) {
        let mut known = self.endpoints.lock();
        for endpoint in &seen {
            let before = known.iter().find(|before| before.url == endpoint.url);
            match (before.and_then(|before| before.failure.as_ref()), &endpoint.failure) {
                (None, Some(reason)) => {
                    tracing::warn!(endpoint = endpoint.url, %reason, "an etcd endpoint cannot be used");
                }
                (Some(_), None) => tracing::info!(endpoint = endpoint.url, "an etcd endpoint is back"),
                _ => {}
            }
        }
        *known = seen;
    }

    pub(crate) fn endpoints(&self) -> Vec<EtcdEndpoint> {
        self.endpoints.lock().clone()
    }

    pub(crate) fn report(&self) -> EtcdReport {
        let endpoints = self.endpoints();
        let mut report = EtcdReport { endpoints, ..EtcdReport::default() };
        let collections = self.collections.lock();
        for (collection, counts) in &*collections {
            if counts.events > 0 {
                report.events.push((Arc::clone(collection), counts.events));
            }
            for (operation, requests) in Operation::ALL.into_iter().zip(&counts.requests) {
                if requests.count > 0 {
                    let collection = Arc::clone(collection);
                    let operation = operation.name();
                    report.requests.push(EtcdRequests { operation, collection, ..requests.clone() });
                }
            }
        }
        drop(collections);
        report.events.sort();
        report.requests.sort_by(|a, b| (&a.collection, a.operation).cmp(&(&b.collection, b.operation)));
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_collection_and_operation() {
        let telemetry = Telemetry::default();
        let (pods, maps): (Arc<str>, Arc<str>) = ("pods".into(), "configmaps".into());
        telemetry.asked(Operation::Create, &pods, Duration::from_millis(5), false);
        telemetry.asked(Operation::Create, &pods, Duration::from_millis(30), true);
        telemetry.asked(Operation::Delete, &maps, Duration::from_secs(61), false);
        telemetry.received([&pods, &pods, &maps].into_iter());
        let report = telemetry.report();
        let told: Vec<_> = report
            .requests
            .iter()
            .map(|one| (&*one.collection, one.operation, one.count, one.errors))
            .collect();
        assert_eq!(told, [("configmaps", "delete", 1, 0), ("pods", "create", 2, 1)]);
        let [deletion, creation] = &report.requests[..] else { panic!("{report:?}") };
        assert_eq!((creation.buckets[0], creation.buckets[1], creation.buckets[2]), (1, 0, 1));
        assert_eq!(deletion.buckets.iter().sum::<u64>(), 0, "longer than all of them");
        assert_eq!(report.events, [(maps, 1), (pods, 2)]);
    }

    #[test]
    fn the_newest_look_at_the_endpoints_counts() {
        let telemetry = Telemetry::default();
        let look = |failure: Option<&str>| {
            let endpoint =
                EtcdEndpoint { url: "http://a:1".to_owned(), failure: failure.map(Into::into), bytes: 7 };
            telemetry.looked(vec![endpoint.clone()]);
            assert_eq!(telemetry.report().endpoints, [endpoint]);
        };
        look(None);
        look(Some("gone"));
        look(None);
    }
}
