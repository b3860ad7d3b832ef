//! A namespace for one test: unique name, gone afterwards.

use std::{path::PathBuf, sync::mpsc, thread, time::Duration};

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, PostParams},
};

use crate::{
    apiserver::{self, Trust},
    cluster::Cluster,
    error::Error,
    nodes::START_DEADLINE,
    options::Flavour,
    wait::until,
};

/// A namespace that is deleted, as far as possible, when this value is dropped.
#[derive(Debug)]
pub struct TestNamespace {
    name: String,
    cluster: String,
    kubeconfig: PathBuf,
}

impl TestNamespace {
    pub(crate) async fn create(cluster: &Cluster, prefix: &str) -> Result<Self, Error> {
        let name = format!("{prefix}-{:08x}", rand::random::<u32>());
        let client = cluster.client().await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let wanted = Namespace {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        namespaces.create(&PostParams::default(), &wanted).await.map_err(|source| Error::Client {
            cluster: cluster.name().to_string(),
            source: Box::new(source),
        })?;
        let namespace = Self {
            name,
            cluster: cluster.name().to_string(),
            kubeconfig: cluster.direct_kubeconfig().to_path_buf(),
        };
        if matches!(cluster.flavour(), Flavour::Member | Flavour::Pods) {
            // A pod created before its ServiceAccount exists is refused; no test should have to think of that.
            let accounts: Api<ServiceAccount> = Api::namespaced(client, &namespace.name);
            until("the default ServiceAccount", START_DEADLINE, async || {
                accounts.get("default").await.map(|_| ()).map_err(|error| error.to_string())
            })
            .await?;
        }
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for TestNamespace {
    /// Asks for the deletion and does not wait for its end. A thread with a runtime of its own does it, since the test's runtime
    /// may be ending; a cluster that does not answer costs at most five seconds.
    fn drop(&mut self) {
        let (name, cluster, kubeconfig) = (self.name.clone(), self.cluster.clone(), self.kubeconfig.clone());
        let (done, finished) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            if let Ok(runtime) = runtime {
                runtime.block_on(async {
                    if let Ok(client) = apiserver::client(&cluster, &kubeconfig, Trust::Anything).await {
                        let namespaces: Api<Namespace> = Api::all(client);
                        let _ = namespaces.delete(&name, &DeleteParams::background()).await;
                    }
                });
            }
            let _ = done.send(());
        });
        let _ = finished.recv_timeout(Duration::from_secs(5));
    }
}
