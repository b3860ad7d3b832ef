//! Admission webhooks: other servers that may change or refuse what is written.
//!
//! In: a write in progress, and the configurations as stored at this moment (a configuration takes effect as soon as it is
//! acknowledged). Out: the changed object, warnings, or the refusal, in kube-apiserver's words. Mutating webhooks run one after
//! the other, by configuration name and position, and once more if a later change makes it necessary. Validating webhooks run all
//! at once. The configurations themselves are never sent to a webhook, so that a broken one can be removed.

mod call;
mod configuration;
mod matching;
mod notes;
mod review;

use std::collections::BTreeSet;
use std::sync::Arc;

use apimachinery::gvk::Gvk;
use apimachinery::status::Status;
use arc_swap::ArcSwap;
use futures::future::join_all;
use serde_json::Value;

use self::call::Failure;
pub(crate) use self::call::post;
use self::configuration::Hook;
pub(crate) use self::configuration::{Client, selector};
pub(crate) use self::matching::{
    Match, Resource, Rule, Seen, convert_back, find_rule, match_namespace, match_object,
};
pub(crate) use self::review::request_namespace;
use super::Operation;
use crate::handlers::context::Context;
use crate::handlers::decode;
use crate::registry::Kind;
use crate::server::Server;

const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";

/// The webhooks as they are configured.
#[derive(Default)]
pub struct Webhooks {
    mutating: Table,
    validating: Table,
    /// Configurations that are stored but ignored, by name: those of other servers for rules that are built into this process.
    ignored: Vec<String>,
}

impl std::fmt::Debug for Webhooks {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Webhooks { .. }")
    }
}

/// One kind of configurations, parsed when they change.
#[derive(Default)]
struct Table(ArcSwap<Parsed>);

#[derive(Default)]
struct Parsed {
    /// The revisions of the configurations: equal revisions are equal configurations.
    revisions: Vec<u64>,
    hooks: Vec<Arc<Hook>>,
}

impl Table {
    fn hooks(&self, server: &Server, collection: &str, ignored: &[String]) -> Arc<Parsed> {
        let snapshot = server.store.snapshot(collection);
        let known = self.0.load();
        if snapshot.iter().map(|entry| entry.modified).eq(known.revisions.iter().copied()) {
            return known.clone();
        }
        let mut next = Parsed::default();
        for entry in snapshot.iter() {
            next.revisions.push(entry.modified);
            if !ignored.iter().any(|name| **name == *entry.name) {
                next.hooks.extend(configuration::read(&entry.name, &entry.value).into_iter().map(Arc::new));
            }
        }
        let next = Arc::new(next);
        self.0.store(next.clone());
        next
    }
}

/// A write as webhooks see it.
#[derive(Debug)]
pub struct Occasion<'a> {
    pub server: &'a Arc<Server>,
    pub context: &'a Context,
    pub operation: Operation,
    pub kind: &'a Arc<Kind>,
    /// What the object is: the kind itself, or that of a subresource.
    pub gvk: &'a Gvk,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub dry_run: bool,
    /// The `CreateOptions`, `UpdateOptions` or `DeleteOptions` of the request.
    pub options: &'a Value,
}

/// Which webhooks have run and which must run again.
#[derive(Debug, Default)]
pub struct Rounds {
    second: bool,
    /// Webhooks that ran and asked to run again if the object changes after them.
    called: BTreeSet<String>,
    again: BTreeSet<String>,
    /// A webhook changed the object.
    changed: bool,
    last: Option<Value>,
    policies: Turns,
}

/// The same for mutating policies, which change objects before webhooks do.
#[derive(Debug, Default)]
struct Turns {
    called: BTreeSet<String>,
    again: BTreeSet<String>,
    last: Option<Value>,
}

impl Turns {
    fn something_changed(&mut self) {
        self.again.append(&mut self.called);
    }
}

impl Rounds {
    /// In a second round, policies run again that ran before something else changed the object.
    pub(crate) fn before_policies(&mut self, object: &Value) {
        if self.second && self.policies.last.as_ref() != Some(object) {
            self.policies.something_changed();
        }
    }

    pub(crate) fn policy_is_due(&self, key: &str) -> bool {
        !self.second || self.policies.again.contains(key)
    }

    pub(crate) fn policy_changed(&mut self) {
        self.policies.something_changed();
        self.changed = true;
    }

    pub(crate) fn policy_called(&mut self, key: String) {
        self.policies.called.insert(key);
    }

    pub(crate) fn after_policies(&mut self, object: &Value) {
        self.policies.last = Some(object.clone());
    }

    /// Returns whether a second round is due, and starts it.
    pub fn begin_second(&mut self) -> bool {
        let due = self.changed && !self.second;
        self.second |= due;
        due
    }

    fn something_changed(&mut self) {
        self.again.append(&mut self.called);
    }
}

impl Webhooks {
    pub fn new(ignored: Vec<String>) -> Self {
        Self { ignored, ..Self::default() }
    }

    /// Returns a warning for users who write a configuration that is ignored.
    pub fn warning(&self, kind: &Kind, name: &str) -> Option<String> {
        let is_configuration = [MUTATING, VALIDATING].contains(&&*kind.collection);
        (is_configuration && self.ignored.iter().any(|ignored| ignored == name)).then(|| {
            format!(
                "{} {name:?} is stored but not obeyed: this server applies Karmada's own rules itself, and takes a \
                 configuration of this name for theirs; give yours another name",
                kind.gvk.kind
            )
        })
    }

    /// Runs the mutating webhooks once on the object (`None` for a deletion).
    pub async fn mutate(
        &self,
        occasion: &Occasion<'_>,
        object: &mut Option<&mut Value>,
        old: Option<&Value>,
        rounds: &mut Rounds,
    ) -> Result<(), Status> {
        let parsed = self.mutating.hooks(occasion.server, MUTATING, &self.ignored);
        if parsed.hooks.is_empty() || is_exempt(occasion.kind) {
            return Ok(());
        }
        if rounds.second && rounds.last.as_ref() != object.as_deref() {
            rounds.something_changed();
        }
        for (index, hook) in parsed.hooks.iter().enumerate() {
            let found = matching::find(hook, occasion, object.as_deref(), old).await?;
            let Some(found) = found else { continue };
            if rounds.second && !rounds.again.contains(&hook.uid) {
                continue;
            }
            let place = notes::Place { hook, second: rounds.second, index };
            let outcome = self.mutate_once(&place, &found, occasion, object, old).await;
            let mutated = matches!(outcome, Ok(true));
            place.note_mutation(occasion.context, mutated);
            if mutated {
                rounds.something_changed();
                rounds.changed = true;
            }
            if hook.reinvoke {
                rounds.called.insert(hook.uid.clone());
            }
            match outcome {
                Ok(_) => {}
                Err(Failure::Call(why)) if hook.ignore_failure => {
                    tracing::warn!(webhook = hook.name, error = why, "failed calling a webhook, going on");
                    place.note_failed_open(occasion.context);
                    end_if_late(occasion.context).await;
                }
                Err(failure) => return Err(failure.into_status(&hook.name)),
            }
        }
        rounds.last = object.as_deref().cloned();
        Ok(())
    }

    /// Calls one webhook; returns whether it changed the object.
    async fn mutate_once(
        &self,
        place: &notes::Place<'_>,
        found: &Match,
        occasion: &Occasion<'_>,
        object: &mut Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<bool, Failure> {
        let hook = place.hook;
        let seen = Seen::convert(occasion, found, object.as_deref(), old).await;
        // Upstream repeats this here.
        let seen = seen.map_err(|status| inconvertible(Status::internal(status.message)))?;
        let response = call::call(hook, occasion, &seen, true).await?;
        let Some(patch) = response.patch else { return Ok(false) };
        let operations = review::operations(&patch).map_err(Failure::Call)?;
        let list = operations.as_array().map(Vec::as_slice).unwrap_or_default();
        if list.is_empty() {
            return Ok(false);
        }
        let Some(shown) = seen.object else {
            return Err(Failure::Status(Status::internal(format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                hook.name
            ))));
        };
        let patched = apimachinery::patch::json::apply(&shown, &operations)
            .map_err(|error| Failure::Status(Status::internal(error)))?;
        let mut patched = convert_back(occasion, found, patched).await.map_err(inconvertible)?;
        decode::canonicalise(occasion.kind, occasion.gvk, &mut patched)
            .map_err(|error| Failure::Status(Status::internal(error)))?;
        place.note_patch(occasion.context, list);
        let Some(object) = object else { return Ok(false) };
        let changed = **object != patched;
        crate::field_ownership::keep_readable(occasion.context, object, &mut patched);
        **object = patched;
        Ok(changed)
    }

    /// Calls the validating webhooks, all at once. Of several refusals, the first one in their order counts.
    pub async fn validate(
        &self,
        occasion: &Occasion<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let parsed = self.validating.hooks(occasion.server, VALIDATING, &self.ignored);
        if parsed.hooks.is_empty() || is_exempt(occasion.kind) {
            return Ok(());
        }
        let mut calls = Vec::new();
        for hook in &parsed.hooks {
            if let Some(found) = matching::find(hook, occasion, object, old).await? {
                calls.push(self.validate_once(hook, found, occasion, object, old, calls.len()));
            }
        }
        join_all(calls).await.into_iter().collect()
    }

    async fn validate_once(
        &self,
        hook: &Hook,
        found: Match,
        occasion: &Occasion<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
        index: usize,
    ) -> Result<(), Status> {
        let asked = async {
            let seen = Seen::convert(occasion, &found, object, old).await.map_err(inconvertible)?;
            call::call(hook, occasion, &seen, false).await
        };
        match asked.await {
            Ok(_) => Ok(()),
            Err(Failure::Call(why)) if hook.ignore_failure => {
                tracing::warn!(webhook = hook.name, error = why, "failed calling a webhook, going on");
                let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
                occasion.context.annotate(&key, hook.name.clone());
                end_if_late(occasion.context).await;
                Ok(())
            }
            Err(failure) => Err(failure.into_status(&hook.name)),
        }
    }
}

/// Returns what a webhook's answer makes of an object. No server is asked: this is for whoever tries answers that nobody would give.
///
/// # Errors
/// If the answer is not one, or if it refuses the write.
pub fn answered(code: u16, body: &[u8], uid: &str, mutating: bool, object: &Value) -> Result<Value, String> {
    let answer = crate::outbound::reply::document(code, body).map_err(|error| error.0)?;
    review::check_kind(&answer)?;
    let response = review::read(&answer, "v1", uid, mutating)?;
    if !response.allowed {
        return Err(call::denied("webhook", &response.result).message);
    }
    let Some(patch) = response.patch else { return Ok(object.clone()) };
    let operations = review::operations(&patch)?;
    apimachinery::patch::json::apply(object, &operations).map_err(|error| error.to_string())
}

/// Waits for the end of a request whose time is up: whoever answers it gives it up in this very moment. What a failure
/// policy says about the webhook does not matter any more, and nothing may be asked or written after that.
async fn end_if_late(context: &Context) {
    if context.time_left().is_some_and(|left| left.is_zero()) {
        std::future::pending::<()>().await;
    }
}

/// A write that cannot be converted to the version that a webhook wants is refused, whatever its failure policy says.
fn inconvertible(status: Status) -> Failure {
    Failure::Status(Status::internal(status.message))
}

/// Returns the `request` of a review as expressions see it.
pub(crate) fn review_request(occasion: &Occasion<'_>, found: &Match) -> Value {
    review::request(occasion, found, "")
}

/// Webhooks do not see configurations of admission.
pub(crate) fn is_exempt(kind: &Kind) -> bool {
    kind.gvk.group == "admissionregistration.k8s.io"
        && matches!(
            kind.gvk.kind.as_str(),
            "ValidatingWebhookConfiguration"
                | "MutatingWebhookConfiguration"
                | "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding"
                | "MutatingAdmissionPolicy"
                | "MutatingAdmissionPolicyBinding"
        )
}
