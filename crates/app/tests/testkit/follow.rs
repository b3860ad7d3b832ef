//! Following an object until it is as wanted. Nothing is asked again and again: it is watched.

use std::fmt::Debug;
use std::time::Duration;

use kube::api::{Api, DynamicObject};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::DEADLINE;

/// Follows an object until it is as wanted; shows what it is when time runs out.
pub(crate) async fn until<K>(api: &Api<K>, name: &str, what: &str, wanted: impl Fn(Option<&K>) -> bool)
where
    K: kube::Resource + Clone + Debug + Send + DeserializeOwned + Serialize + 'static,
{
    let reached = async {
        // An API server serves a kind a moment after its definition is there; a watch may also end for reasons of its own.
        loop {
            let found = |found: Option<&K>| wanted(found);
            match kube::runtime::wait::await_condition(api.clone(), name, found).await {
                Ok(_) => return,
                Err(error) => eprintln!("{what} ({name}): {error}; once more"),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    if tokio::time::timeout(DEADLINE, reached).await.is_err() {
        let shown = serde_json::to_string_pretty(&api.get_opt(name).await.ok()).unwrap_or_default();
        panic!("{what} ({name}): not within {DEADLINE:?}; last seen: {shown}");
    }
}

/// Follows an object until it is gone.
pub(crate) async fn until_gone(api: &Api<DynamicObject>, name: &str, what: &str) {
    until(api, name, what, |found| found.is_none()).await;
}
