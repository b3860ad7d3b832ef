//! Resolves a word to a pod and container: `POD`, `TYPE/NAME`, `-c`. Shared by logs, exec, attach, cp and port-forward.

use std::time::Duration;

use anyhow::{anyhow, bail};
use serde_json::Value;

use crate::output;
use crate::select::{Words, get, list};
use crate::server::Server;

/// The meaning of a word.
#[derive(Debug)]
pub(crate) enum Found {
    Pod(Value),
    /// The pods of a workload, running ones first.
    Several(Vec<Value>),
}

impl Found {
    /// The pod itself, or the best of the workload.
    pub(crate) fn first(self) -> anyhow::Result<Value> {
        match self {
            Self::Pod(pod) => Ok(pod),
            Self::Several(pods) => pods.into_iter().next().ok_or_else(|| anyhow!("there is no pod")),
        }
    }
}

/// Finds the pod, or those of a workload; waits until there is one.
pub(crate) async fn find(
    server: &Server,
    namespace: &str,
    word: &str,
    patience: Duration,
) -> anyhow::Result<Found> {
    let discovery = server.discovery().await?;
    let (type_, name) = if word.contains('/') {
        let mut words = Words::parse(&[word.to_owned()])?;
        let (type_, name) = words.pairs.remove(0);
        (type_, name.unwrap_or_default())
    } else {
        ("pods".to_owned(), word.to_owned())
    };
    let resource = discovery.resolve(&type_)?;
    let object = get(server, resource, namespace, &name, None).await?;
    if resource.plural == "pods" && resource.group.is_empty() {
        return Ok(Found::Pod(object));
    }
    let selector = selector(&object)
        .ok_or_else(|| anyhow!("{} {name} selects no pods", resource.kind))?
        .map_err(|error| anyhow!("{type_}/{name}: {error}"))?;
    let path = discovery.resolve("pods")?.collection(Some(namespace));
    let deadline = tokio::time::Instant::now() + patience;
    let mut found = loop {
        let found = list(server, &path, Some(&selector), None).await?;
        if !found.is_empty() {
            break found;
        }
        if tokio::time::Instant::now() >= deadline {
            bail!("timed out waiting for the condition");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    // A running pod is preferred.
    found.sort_by_key(|pod| pod["status"]["phase"] != "Running");
    Ok(Found::Several(found))
}

/// Returns the label selector of a workload or service; `None` if it has none.
pub(crate) fn selector(object: &Value) -> Option<anyhow::Result<String>> {
    match &object["spec"]["selector"] {
        // Services and replication controllers have plain labels, other workloads a selector.
        Value::Object(map) if !map.contains_key("matchLabels") && !map.contains_key("matchExpressions") => {
            let pairs = map.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")));
            Some(Ok(pairs.collect::<Vec<_>>().join(",")))
        }
        Value::Object(_) => {
            let selector =
                apimachinery::selector::label::Selector::from_object(object["spec"].get("selector"));
            Some(selector.map(|selector| selector.to_string()).map_err(|error| anyhow!("{error}")))
        }
        _ => None,
    }
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let items = pod["spec"][list].as_array().into_iter().flatten();
    items.filter_map(|item| item["name"].as_str().map(str::to_owned)).collect()
}

/// All containers: regular ones, init ones, ephemeral ones.
pub(crate) fn containers(pod: &Value) -> [Vec<String>; 3] {
    [names(pod, "containers"), names(pod, "initContainers"), names(pod, "ephemeralContainers")]
}

/// Returns the default container without `-c`: the annotated one, or the first. Prints a note if there are others.
pub(crate) fn default_container(pod: &Value, quiet: bool) -> anyhow::Result<String> {
    let [regular, init, ephemeral] = containers(pod);
    let annotated = pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"].as_str();
    if let Some(name) = annotated.filter(|name| regular.iter().any(|each| each == name)) {
        return Ok(name.to_owned());
    }
    let Some(first) = regular.first() else { bail!("the pod has no containers") };
    if !quiet && regular.len() + init.len() + ephemeral.len() > 1 {
        let all: Vec<String> = regular
            .iter()
            .cloned()
            .chain(ephemeral.iter().map(|name| format!("{name} (ephem)")))
            .chain(init.iter().map(|name| format!("{name} (init)")))
            .collect();
        output::warn(&format!(
            "Defaulted container {} out of: {}",
            apimachinery::go::quote(first),
            all.join(", ")
        ));
    }
    Ok(first.clone())
}

/// Returns the container to connect to.
pub(crate) fn container(pod: &Value, wanted: &str, quiet: bool) -> anyhow::Result<String> {
    if wanted.is_empty() {
        return default_container(pod, quiet);
    }
    if !containers(pod).iter().flatten().any(|each| each == wanted) {
        bail!("container {wanted} not found in pod {}", name(pod));
    }
    Ok(wanted.to_owned())
}

pub(crate) fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_container_is_the_annotated_one_or_the_first() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "i"}]}});
        assert_eq!(container(&pod, "", true).expect("good"), "a");
        assert_eq!(container(&pod, "i", true).expect("good"), "i");
        pod["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/default-container": "b"});
        assert_eq!(container(&pod, "", true).expect("good"), "b");
        let error = container(&pod, "x", true).expect_err("unknown").to_string();
        assert_eq!(error, "container x not found in pod p");
    }

    #[test]
    fn services_and_workloads_select_pods() {
        let text = |object: Value| selector(&object).map(|found| found.expect("a selector"));
        assert_eq!(text(json!({"spec": {"selector": {"a": "b"}}})).as_deref(), Some("a=b"));
        assert_eq!(text(json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}})).as_deref(), Some("a=b"));
        assert_eq!(text(json!({"spec": {}})), None);
    }
}
