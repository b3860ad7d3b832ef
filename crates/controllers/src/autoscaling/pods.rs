//! The pods of members for autoscalers: mirrors that start with the first request for a member.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use apimachinery::selector::LabelSelector;
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher;
use member::Member;
use member::limit::COPY_LIMIT;
use parking_lot::Mutex;
use runtime::room::Budget;
use runtime::{Mirror, Supervisor};
use serde_json::Value;
use workloads::autoscaling::Pod;

/// How long to wait for a new mirror.
const PATIENCE: Duration = Duration::from_secs(10);

/// A pod, and what it is selected by.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) labels: Value,
    pub(crate) pod: Pod,
}

type Copy = Arc<Mirror<Record>>;

/// The mirrors of all members that were requested.
pub(crate) struct Pods {
    supervisor: Supervisor,
    copies: Mutex<HashMap<String, (Weak<Member>, Copy)>>,
}

impl Pods {
    pub(crate) fn new(supervisor: Supervisor) -> Self {
        Self { supervisor, copies: Mutex::default() }
    }

    /// Returns the pods of a member that a selector selects, or nothing if they are not known in time.
    pub(crate) async fn select(
        &self,
        member: &Arc<Member>,
        namespace: &str,
        selector: &LabelSelector,
    ) -> Option<Vec<Arc<Record>>> {
        let copy = self.copy(member);
        if !copy.wait(PATIENCE).await {
            return None;
        }
        let here = copy.keys(|key| key.namespace == namespace);
        let found = here.iter().filter_map(|key| copy.find(key));
        Some(found.filter(|record| selector.matches(&record.labels)).collect())
    }

    fn copy(&self, member: &Arc<Member>) -> Copy {
        let mut copies = self.copies.lock();
        // The mirrors of members that left, or have a new connection, have ended.
        copies
            .retain(|_, (source, _)| source.upgrade().is_some_and(|member| !member.stopped().is_cancelled()));
        if let Some((source, copy)) = copies.get(member.name())
            && source.upgrade().is_some_and(|source| Arc::ptr_eq(&source, member))
        {
            return copy.clone();
        }
        let budget = Arc::new(Budget::new(COPY_LIMIT));
        let copy: Copy = Arc::new(Mirror::default().within(member.name(), budget));
        copies.insert(member.name().to_owned(), (Arc::downgrade(member), copy.clone()));
        let (following, client, stop) = (copy.clone(), member.client().clone(), member.stopped().clone());
        let task = format!("pods/{}", member.name());
        self.supervisor.keep_until(task, stop.clone(), move || {
            let (following, client, stop) = (following.clone(), client.clone(), stop.clone());
            async move {
                let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
                let pods = Api::<DynamicObject>::all_with(client, &resource);
                let record = |pod: DynamicObject| {
                    let mut pod = serde_json::to_value(pod).unwrap_or_default();
                    let labels = pod["metadata"]["labels"].take();
                    Record { labels, pod: Pod::read(&pod) }
                };
                following.follow(pods, watcher::Config::default(), stop, record).await;
            }
        });
        copy
    }
}
