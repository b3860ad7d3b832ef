//! Renews certificates before they expire while the server runs, and publishes a renewed authority.
//!
//! Writes: files in `pki`; the ConfigMap `extension-apiserver-authentication`, the `kube-root-ca.crt` of every namespace,
//! and `ca.crt` in the Secrets of service accounts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::pki::{self, Pair};
use super::serving::Serving;
use crate::controllers::accounts::TOKEN_TYPE;
use crate::internal::Actor;
use crate::object;
use crate::server::Server;

/// How often the remaining lifetimes are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(12 * 3600);

pub(crate) struct Renewal {
    server: Arc<Server>,
    serving: Arc<Serving>,
    front_proxy_ca: ArcSwap<Pair>,
    front_proxy_client: ArcSwap<Pair>,
    dir: Option<PathBuf>,
    /// Held while objects are written, so that an older authority never overwrites a newer one.
    publishing: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Renewal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Renewal").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Renewal {
    pub(crate) fn new(
        server: &Arc<Server>,
        serving: Arc<Serving>,
        pki: &pki::Pki,
        dir: Option<PathBuf>,
    ) -> Self {
        Self {
            server: server.clone(),
            serving,
            front_proxy_ca: ArcSwap::from_pointee(pki.front_proxy_ca.clone()),
            front_proxy_client: ArcSwap::from_pointee(pki.front_proxy_client.clone()),
            dir,
            publishing: tokio::sync::Mutex::default(),
        }
    }

    /// Renews the certificates until the server stops.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            if let Err(error) = self.renew(Timestamp::now()) {
                tracing::error!(%error, "cannot renew certificates");
            }
            // Even if nothing was renewed: the start may already have renewed an authority.
            self.publish().await;
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Replaces certificates with less than a month left at `now`, authorities first.
    pub(crate) fn renew(&self, now: Timestamp) -> Result<(), pki::Error> {
        let ca = self.server.signer.pair();
        if pki::is_due(&ca.cert, now) {
            let next = self.keep(pki::CA.0, pki::renewed_authority(&ca, pki::CA.1)?)?;
            self.server.signer.replace(next);
            tracing::info!("the certificate authority was renewed");
        }
        let proxies = self.front_proxy_ca.load_full();
        if pki::is_due(&proxies.cert, now) {
            let (name, common_name) = pki::FRONT_PROXY_CA;
            let next = self.keep(name, pki::renewed_authority(&proxies, common_name)?)?;
            self.front_proxy_ca.store(Arc::new(next));
            tracing::info!("the front proxy authority was renewed");
        }
        if pki::is_due(&self.front_proxy_client.load().cert, now) {
            let next = pki::front_proxy_client(&self.front_proxy_ca.load())?;
            let next = self.keep("front-proxy-client", next)?;
            self.server.outbound.set_front_proxy(next.clone());
            self.front_proxy_client.store(Arc::new(next));
        }
        if self.serving.renew(now)? {
            tracing::info!("the serving certificate was renewed");
        }
        Ok(())
    }

    fn keep(&self, name: &str, pair: Pair) -> Result<Pair, pki::Error> {
        if let Some(dir) = &self.dir {
            pki::write_pair(dir, name, &pair)?;
        }
        Ok(pair)
    }

    /// Updates the objects that contain the authorities.
    pub(crate) async fn publish(&self) {
        let _in_order = self.publishing.lock().await;
        let actor = Actor::new(&self.server, "system:kube-controller-manager");
        let ca = &self.server.signer.pair().cert;
        let proxies = &self.front_proxy_ca.load().cert;
        let data = json!({"client-ca-file": ca, "requestheader-client-ca-file": proxies});
        self.show(&actor, "configmaps", "kube-system/extension-apiserver-authentication", &data).await;
        for entry in self.server.store.snapshot("configmaps").iter() {
            if object::split_key(&entry.name).1 == "kube-root-ca.crt" {
                self.show(&actor, "configmaps", &entry.name, &json!({"ca.crt": ca})).await;
            }
        }
        let encoded = base64::engine::general_purpose::STANDARD.encode(ca);
        for entry in self.server.store.snapshot("secrets").iter() {
            let secret = serde_json::from_slice::<Value>(&entry.value).unwrap_or_default();
            let is_token = secret.get("type").and_then(Value::as_str) == Some(TOKEN_TYPE);
            if is_token && secret.get("data").is_some_and(|data| data.get("ca.crt").is_some()) {
                self.show(&actor, "secrets", &entry.name, &json!({"ca.crt": encoded})).await;
            }
        }
    }

    /// Sets the keys of an object's `data` that differ.
    async fn show(&self, actor: &Actor, resource: &str, key: &str, data: &Value) {
        let Some(kind) = self.server.registry.load().find("", "v1", resource).cloned() else { return };
        let Some(entry) = self.server.store.get(&kind.collection, key) else { return };
        let wanted = data.as_object().into_iter().flatten();
        let is_shown = |object: &Value| {
            wanted
                .clone()
                .all(|(key, value)| object.get("data").and_then(|data| data.get(key)) == Some(value))
        };
        if serde_json::from_slice::<Value>(&entry.value).is_ok_and(|object| is_shown(&object)) {
            return;
        }
        let (namespace, name) = object::split_key(key);
        let update = actor.update(&kind, namespace, name, "", |old| {
            let mut new = old.clone();
            let shown = new.as_object_mut()?.entry("data").or_insert_with(|| json!({}));
            shown
                .as_object_mut()?
                .extend(data.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
            Some(new)
        });
        if let Err(status) = update.await {
            tracing::warn!(object = key, error = %status, "cannot show the new authority");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, start};

    #[tokio::test]
    async fn an_authority_is_renewed_in_place_and_everybody_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let options =
            Options { data_dir: Some(dir.path().to_owned()), in_memory: true, ..Options::default() };
        let handle = start(options).await.unwrap();
        let server = handle.server.clone();
        let signer = server.signer.clone();
        let (pki, renewal) = (dir.path().join("pki"), handle.renewal.clone());
        let shown = || {
            let entry =
                server.store.get("configmaps", "kube-system/extension-apiserver-authentication").unwrap();
            serde_json::from_slice::<Value>(&entry.value).unwrap()["data"].clone()
        };
        let first = signer.pair();
        renewal.renew(Timestamp::now()).unwrap();
        assert_eq!(signer.pair().cert, first.cert, "nothing is due");
        let years = jiff::SignedDuration::from_hours(24 * 365 * 10 - 24 * 20);
        renewal.renew(Timestamp::now() + years).unwrap();
        renewal.publish().await;
        let second = signer.pair();
        assert_ne!(second.cert, first.cert);
        assert_eq!(second.key, first.key, "what was signed stays valid");
        assert_eq!(shown()["client-ca-file"], second.cert);
        assert_ne!(shown()["requestheader-client-ca-file"], handle.pki.front_proxy_ca.cert);
        assert_eq!(std::fs::read_to_string(pki.join("ca.crt")).unwrap(), second.cert);
        // A client that trusts the first authority, and shows a certificate from it, is still accepted.
        let config = kube::config::Kubeconfig::from_yaml(&handle.kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
        let client = kube::Client::try_from(config).unwrap();
        client.apiserver_version().await.unwrap();
        handle.stop().await;
    }
}
