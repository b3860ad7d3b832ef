//! API servers in this process: control planes that know Karmada's kinds, and members.

use std::path::Path;

use apiserver::auth::User;
use apiserver::{Handle, Options, Profile, audit};

use crate::check::{AUDIT_POLICY, CONTROLLERS};

/// Returns how to keep an audit log of every write in this file, for [`crate::check::check`].
pub fn audit(log: &Path) -> audit::Options {
    let policy = log.with_extension("policy.json");
    std::fs::write(&policy, AUDIT_POLICY).expect("a policy");
    let rotation = audit::Rotation { size: None, keep: 0 };
    audit::Options { policy: Some(policy), path: log.to_owned(), rotation, blocking: true }
}

/// A server in this process and its administrator's client, which takes no socket.
pub struct Embedded {
    pub handle: Handle,
    pub client: kube::Client,
}

impl Embedded {
    /// Starts a server as the options say.
    pub async fn start(options: Options) -> Self {
        let handle = apiserver::start(options).await.expect("the server starts");
        let client = apiserver::local::client(&handle.server, User::system("system:admin"));
        Self { handle, client }
    }

    /// Starts a control plane: a server that knows Karmada's kinds. No controller runs.
    pub async fn control_plane(options: Options) -> Self {
        Self::start(Options {
            definitions: api::crd::all().into_iter().chain(api::crd::aggregated()).collect(),
            namespaces: vec!["karmada-system".to_owned(), "karmada-cluster".to_owned()],
            ..options
        })
        .await
    }

    /// Returns the client for controllers, whose writes [`crate::check::check`] tells from those of the test.
    pub fn controllers(&self) -> kube::Client {
        apiserver::local::client(&self.handle.server, User::system(CONTROLLERS))
    }

    /// Starts a member of this name. It has no nodes and runs nothing.
    pub async fn member(name: &str, options: Options) -> Self {
        Self::start(Options { profile: Profile::Member, context_name: name.to_owned(), ..options }).await
    }

    pub async fn stop(self) {
        self.handle.stop().await;
    }
}
