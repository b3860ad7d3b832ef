//! What a failed test wants to see: objects, events, logs.

use std::{fmt::Write, fs, time::Duration};

use kube::{
    Api, Client,
    api::ListParams,
    core::DynamicObject,
    discovery::{ApiCapabilities, ApiResource, Discovery, Scope, verbs},
};

use crate::{
    apiserver::{self, Trust},
    cluster::Cluster,
    toolchain::tail,
};

const LOG_LINES: usize = 30;

/// Returns everything about `namespace` in `cluster`, and the ends of the logs.
pub(crate) async fn report(cluster: &Cluster, namespace: &str) -> String {
    let mut text = format!("===== cluster {}, namespace {namespace} =====\n", cluster.name());
    // Past the proxy and past an expired certificate: the cluster under test may be cut off right now.
    match apiserver::client(cluster.name(), cluster.direct_kubeconfig(), Trust::Anything).await {
        Ok(client) => {
            let objects = objects(&client, namespace, &mut text);
            if tokio::time::timeout(Duration::from_secs(30), objects).await.is_err() {
                text.push_str("(the cluster did not answer within 30 s)\n");
            }
        }
        Err(error) => _ = writeln!(text, "(no client: {})", error.chain()),
    }
    logs(cluster, &mut text);
    text
}

async fn objects(client: &Client, namespace: &str, text: &mut String) {
    let discovery = match Discovery::new(client.clone()).run().await {
        Ok(discovery) => discovery,
        Err(error) => {
            let _ = writeln!(text, "(no discovery: {error})");
            return;
        }
    };
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if wanted(&resource, &capabilities) {
                list(client, namespace, &resource, text).await;
            }
        }
    }
}

fn wanted(resource: &ApiResource, capabilities: &ApiCapabilities) -> bool {
    // Events are served twice; the core group's are enough.
    let second_events = resource.kind == "Event" && !resource.group.is_empty();
    capabilities.scope == Scope::Namespaced && capabilities.supports_operation(verbs::LIST) && !second_events
}

async fn list(client: &Client, namespace: &str, resource: &ApiResource, text: &mut String) {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
    let objects = match api.list(&ListParams::default()).await {
        Ok(objects) => objects,
        Err(error) => {
            let _ = writeln!(text, "(cannot list {}: {error})", resource.plural);
            return;
        }
    };
    for mut object in objects {
        object.metadata.managed_fields = None;
        let name = object.metadata.name.clone().unwrap_or_default();
        // The name of a Secret helps; its content belongs into no log.
        let body = if resource.kind == "Secret" {
            "(content withheld)".to_string()
        } else {
            serde_json::to_string_pretty(&object).unwrap_or_default()
        };
        let _ = writeln!(text, "--- {} {name}\n{body}", resource.kind);
    }
}

fn logs(cluster: &Cluster, text: &mut String) {
    let mut logs: Vec<_> = fs::read_dir(cluster.folder())
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    for path in logs {
        let content = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
        let _ = writeln!(text, "--- last lines of {}\n{}", path.display(), tail(&content, LOG_LINES));
    }
}
