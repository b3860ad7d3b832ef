//! The server's shared state, and the few operations on it that handlers need.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::Status;
use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::Response;
use native::prepare::service::Allocation;
use serde_json::Value;
use store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::Chain;
use crate::admission::mutations::Mutations;
use crate::admission::policies::Policies;
use crate::admission::webhooks::Webhooks;
use crate::allocator::Free;
use crate::auth::oidc::Oidc;
use crate::auth::rbac::{Attributes, Rbac};
use crate::auth::serving::Signer;
use crate::auth::tokens::Tokens;
use crate::handlers::context::Context;
use crate::handlers::write::Target;
use crate::head::Head;
use crate::http::Body;
use crate::metrics::Metrics;
use crate::object::{self, Entry};
use crate::options::Profile;
use crate::outbound::Outbound;
use crate::registry::{Kind, Registry, Subresource};
use crate::service_ranges::ServiceRanges;

/// How long a read waits for a revision that has not been reached yet.
const REVISION_WAIT: Duration = Duration::from_secs(3);

/// Everything that requests share.
pub struct Server {
    pub store: Store<Head>,
    pub registry: ArcSwap<Registry>,
    pub rbac: Rbac,
    pub impersonators: crate::auth::impersonation::Impersonators,
    pub tokens: Tokens,
    pub oidc: Option<Oidc>,
    pub admission: Chain,
    pub webhooks: Webhooks,
    pub policies: Policies,
    pub mutations: Mutations,
    /// The results of conversion webhooks.
    pub conversions: crate::conversion::Cache,
    pub outbound: Outbound,
    pub signer: Arc<Signer>,
    pub metrics: Metrics,
    pub profile: Profile,
    /// Where the addresses of Services come from.
    pub service_ranges: ServiceRanges,
    /// Gives pods the priority of their class.
    pub pod_priority: bool,
    pub extensions: Arc<dyn Extension>,
    /// Cancelled when the server must stop.
    pub stop: CancellationToken,
    /// Open watches; a clean shutdown waits for them.
    pub watches: TaskTracker,
    pub identity: Identity,
    pub ready: Readiness,
    pub limits: crate::limits::Limits,
    /// Answers in progress.
    pub(crate) sendings: Arc<crate::http::sending::Sendings>,
    pub audit: Option<Arc<crate::audit::Audit>>,
    /// Writes are acknowledged before they are on disk.
    pub relaxed: bool,
    pub gate: crate::gate::Gate,
}

/// Facts about the server that clients can read.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The issuer of service account tokens.
    pub issuer: String,
    pub started: jiff::Timestamp,
}

/// The finished steps of the start; `/readyz` names the others.
#[derive(Debug, Default)]
pub struct Readiness {
    pub bootstrapped: std::sync::atomic::AtomicBool,
    pub definitions: std::sync::atomic::AtomicBool,
    /// The state of the server's own controllers.
    pub controllers: crate::controllers::supervision::Health,
}

/// One check of the health endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: Cow<'static, str>,
    /// Checked by `/livez` too; the other checks only decide whether the server is ready.
    pub live: bool,
    /// Why it fails.
    pub failure: Option<String>,
}

/// Additions of other components: subresources such as `clusters/proxy`, computed columns, and metrics.
pub trait Extension: Send + Sync {
    /// Returns `None` for unknown requests.
    fn subresource<'a>(
        &'a self,
        server: &'a Arc<Server>,
        context: &'a Context,
        kind: &'a Kind,
        namespace: &'a str,
        body: Bytes,
    ) -> BoxFuture<'a, Option<Result<Response<Body>, Status>>>;

    /// Answers a request for a computed kind that is not the server's own. Returns `None` for unknown requests.
    fn computed<'a>(
        &'a self,
        _server: &'a Arc<Server>,
        _context: &'a Context,
        _kind: &'a Kind,
        _namespace: &'a str,
        _body: &'a Bytes,
    ) -> BoxFuture<'a, Option<Result<Response<Body>, Status>>> {
        Box::pin(std::future::ready(None))
    }

    /// Answers any request below a computed kind that is not the server's own: any method, subresources, upgrades. Returns `None`
    /// for unknown requests.
    fn connect<'a>(
        &'a self,
        _server: &'a Arc<Server>,
        _context: &'a Context,
        _kind: &'a Kind,
        _body: &'a Bytes,
    ) -> BoxFuture<'a, Option<Result<Response<Body>, Status>>> {
        Box::pin(std::future::ready(None))
    }

    /// Returns the subresources that it adds to the kind of a definition, named `<plural>.<group>`. It gets requests for them
    /// with any method, long-running requests and upgrades included.
    fn connects(&self, _definition: &str) -> Vec<Subresource> {
        Vec::new()
    }

    /// Rewrites the cells of a row in a table, for kinds whose columns are computed and not found by JSON path.
    fn cells(&self, _kind: &Kind, _object: &Value, _cells: &mut Vec<Value>) {}

    /// Returns further checks for `/readyz`.
    fn checks(&self) -> Vec<Check> {
        Vec::new()
    }

    /// Returns further metrics for `/metrics`, without the mark that ends a document.
    fn metrics(&self) -> String {
        String::new()
    }
}

/// Serves no further subresource.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoExtension;

impl Extension for NoExtension {
    fn subresource<'a>(
        &'a self,
        _: &'a Arc<Server>,
        _: &'a Context,
        _: &'a Kind,
        _: &'a str,
        _: Bytes,
    ) -> BoxFuture<'a, Option<Result<Response<Body>, Status>>> {
        Box::pin(std::future::ready(None))
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Server").field("profile", &self.profile).finish_non_exhaustive()
    }
}

impl Server {
    /// Returns an object as clients of `kind` see it; an unreadable one is an error.
    pub fn read(&self, kind: &Kind, entry: &Entry) -> Result<Value, Status> {
        let mut object = object::decode(&kind.storage.api_version(), &kind.gvk.kind, entry)?;
        if !kind.serves_as_stored(entry) {
            kind.present(entry, &mut object);
        }
        object::stamp(&mut object, &kind.api_version, &kind.gvk.kind, Some(entry.modified));
        Ok(object)
    }

    /// As [`Server::read`], for controllers that skip unreadable objects; they are logged.
    pub fn read_or_warn(&self, kind: &Kind, entry: &Entry) -> Option<Value> {
        self.read(kind, entry)
            .inspect_err(|status| tracing::warn!(collection = %kind.collection, error = %status, "passing over an object"))
            .ok()
    }

    /// Returns an object as it is in the store at this moment, without authorisation.
    pub fn stored(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Value> {
        let entry = self.store.get(&kind.collection, &object::join_key(namespace, name))?;
        self.read_or_warn(kind, &entry)
    }

    /// Waits a limited time until the store has reached a revision.
    pub async fn wait_for(&self, revision: u64) -> Result<(), Status> {
        if revision <= self.store.revision() {
            return Ok(());
        }
        let waited = tokio::time::timeout(REVISION_WAIT, self.store.wait_for(revision)).await;
        waited.map_err(|_| Status::too_large_resource_version(revision, self.store.revision()))
    }

    /// Checks that the caller may use another verb on the same resource.
    pub fn authorize_also(&self, context: &Context, verb: &str) -> Result<(), Status> {
        if context.vouched {
            return Ok(());
        }
        let attributes = Attributes { verb, ..Attributes::of(&context.info) };
        self.rbac.check(&self.store, &context.user, &attributes)
    }

    /// Gives a Service its addresses and ports, before it is validated. What it took has to be committed together with it.
    pub fn assign(
        &self,
        target: &Target<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Option<Allocation>, Status> {
        if !target.kind.holds_addresses() || !target.subresource.is_empty() {
            return Ok(None);
        }
        let name = object.name().to_owned();
        let free = Free::new(&self.store, &self.service_ranges, target.options.dry_run);
        let held = free.assign(object, old).map_err(|errors| target.invalid(&name, &errors))?;
        Ok(Some(held).filter(|_| !target.options.dry_run))
    }

    /// Runs what has to happen between validation and the commit: guards on roles.
    pub fn before_commit(
        &self,
        target: &Target<'_>,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if target.kind.grants_rights() {
            crate::auth::escalation::check(self, target, object, old)?;
        }
        Ok(())
    }

    /// Returns the grace period of an object. Only pods that run somewhere have one.
    pub fn grace_period(&self, kind: &Kind, object: &Value, asked: Option<i64>) -> i64 {
        if !kind.is_marked_before_removal() {
            return 0;
        }
        let phase = object.pointer("/status/phase").and_then(Value::as_str).unwrap_or("");
        let node = object.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or("");
        if node.is_empty() || phase == "Succeeded" || phase == "Failed" {
            return 0;
        }
        let own = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(30);
        let grace = asked.unwrap_or(own);
        if grace < 0 { 1 } else { grace }
    }
}
