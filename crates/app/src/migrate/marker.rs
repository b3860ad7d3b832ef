//! Marks a control plane that is being filled: controllers that act on half of it would remove objects that the other half needs.
//!
//! The mark is a ConfigMap, so any store and any API server can have it. `karmada server` and `karmada controllers` do not let
//! their controllers act while it says that the copy is incomplete.

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

pub(crate) const NAMESPACE: &str = "karmada-system";
pub(crate) const NAME: &str = "karmada-migration";
const STATE: &str = "state";
const SOURCE: &str = "source";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Copying,
    Complete,
}

impl State {
    fn text(self) -> &'static str {
        match self {
            Self::Copying => "copying",
            Self::Complete => "complete",
        }
    }
}

/// Records the progress of the copy.
pub(crate) async fn set(client: &Client, state: State, source: &str) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": NAME, "namespace": NAMESPACE },
        "data": { STATE: state.text(), SOURCE: source },
    });
    let parameters = PatchParams::apply("karmada-migrate").force();
    maps.patch(NAME, &parameters, &Patch::Apply(map))
        .await
        .with_context(|| format!("cannot write ConfigMap {NAMESPACE}/{NAME}"))?;
    Ok(())
}

/// Refuses a control plane with an incomplete copy.
pub(crate) async fn check(client: &Client) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let map =
        maps.get_opt(NAME).await.with_context(|| format!("cannot read ConfigMap {NAMESPACE}/{NAME}"))?;
    let Some(data) = map.and_then(|map| map.data) else { return Ok(()) };
    if data.get(STATE).map(String::as_str) == Some(State::Copying.text()) {
        bail!(
            "this control plane is an unfinished copy of {}: controllers would remove from members what has not been copied \
             yet; hint: run `karmada migrate` again, it goes on where it ended",
            data.get(SOURCE).map_or("another one", String::as_str)
        );
    }
    Ok(())
}
