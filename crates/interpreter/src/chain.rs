//! The layers that may answer, in order: the first one with a rule for the exact group, version and kind does.
//!
//! Karmada's order is declarative customisations, webhooks, bundled third-party rules, native rules. A layer
//! that fails ends the operation: falling through to another opinion about the same kind would make a broken
//! customisation look like a working default.

use std::sync::Arc;

use api::config::DependentObjectReference;
use api::work::{AggregatedStatusItem, Component};
use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use serde_json::Value;

use crate::native::Native;
use crate::{Error, Operation, Replicas, Result, ThirdParty, verify_dependencies};

/// A source of interpretation rules.
///
/// An operation is called only for kinds that [`Layer::supports`] affirmed; the default bodies therefore
/// answer "no rule" and a layer overrides those it offers. Methods are synchronous, since rendering and
/// deciding are: a layer that waits for the network says so by [`Layer::blocks`], and callers then run the
/// operation where waiting is allowed.
pub trait Layer: Send + Sync {
    fn supports(&self, kind: &Gvk, operation: Operation) -> bool;

    /// Returns whether calls may wait for something outside the process.
    fn blocks(&self) -> bool {
        false
    }

    fn get_replicas(&self, object: &Value) -> Result<Replicas> {
        Err(no_rule(object, Operation::InterpretReplica))
    }

    fn get_components(&self, _object: &Value) -> Result<Vec<Component>> {
        Err(Error::NoComponentRule)
    }

    fn revise_replica(&self, object: Value, _replicas: i64) -> Result<Value> {
        Err(no_rule(&object, Operation::ReviseReplica))
    }

    fn retain(&self, desired: Value, _observed: &Value) -> Result<Value> {
        Err(no_rule(&desired, Operation::Retain))
    }

    /// `now` is what generated conditions are stamped with.
    fn aggregate_status(
        &self,
        object: Value,
        _items: &[AggregatedStatusItem],
        _now: Timestamp,
    ) -> Result<Value> {
        Err(no_rule(&object, Operation::AggregateStatus))
    }

    fn reflect_status(&self, object: &Value) -> Result<Option<Value>> {
        Err(no_rule(object, Operation::InterpretStatus))
    }

    fn interpret_health(&self, object: &Value) -> Result<bool> {
        Err(no_rule(object, Operation::InterpretHealth))
    }

    fn get_dependencies(&self, _object: &Value) -> Result<Vec<DependentObjectReference>> {
        Err(Error::NoDependencyRule)
    }
}

/// Refuses what a layer made if it nests too deep for everybody after it.
fn accept(made: Value) -> Result<Value> {
    apimachinery::depth::accept(made).map_err(|error| Error::Layer(error.to_string()))
}

/// The layers in order, native rules last. Cheap to clone.
#[derive(Clone)]
pub struct Interpreter {
    layers: Arc<[Arc<dyn Layer>]>,
}

impl Interpreter {
    /// Returns an interpreter that knows the native kinds only.
    pub fn native() -> Self {
        Self::with_layers([])
    }

    /// Returns an interpreter that asks `layers` first, then the third-party rules, then the native ones: Karmada's
    /// order, with customizations and webhooks as `layers`.
    pub fn built_in(layers: impl IntoIterator<Item = Arc<dyn Layer>>) -> Self {
        let third_party: Arc<dyn Layer> = Arc::new(ThirdParty);
        Self::with_layers(layers.into_iter().chain([third_party]))
    }

    /// Returns an interpreter that asks `layers` in the given order, then the native rules.
    pub fn with_layers(layers: impl IntoIterator<Item = Arc<dyn Layer>>) -> Self {
        let native: Arc<dyn Layer> = Arc::new(Native);
        Self { layers: layers.into_iter().chain([native]).collect() }
    }

    /// Returns whether any layer has a rule: what Karmada calls an enabled hook.
    pub fn supports(&self, kind: &Gvk, operation: Operation) -> bool {
        self.layer(kind, operation).is_some()
    }

    /// Returns whether answering may wait for something outside the process.
    pub fn blocks(&self, kind: &Gvk, operation: Operation) -> bool {
        self.layer(kind, operation).is_some_and(|layer| layer.blocks())
    }

    /// Returns the desired replicas and what each of them needs.
    pub fn get_replicas(&self, object: &Value) -> Result<Replicas> {
        self.answer(object, Operation::InterpretReplica)?.get_replicas(object)
    }

    /// Returns the pod templates of a workload that has several.
    pub fn get_components(&self, object: &Value) -> Result<Vec<Component>> {
        self.answer(object, Operation::InterpretComponent)?.get_components(object)
    }

    /// Returns the object with its replica count set, where it has one.
    pub fn revise_replica(&self, object: Value, replicas: i64) -> Result<Value> {
        accept(self.answer(&object, Operation::ReviseReplica)?.revise_replica(object, replicas)?)
    }

    /// Returns the desired object with what the member cluster owns taken over from the observed one.
    pub fn retain(&self, desired: Value, observed: &Value) -> Result<Value> {
        accept(self.answer(&desired, Operation::Retain)?.retain(desired, observed)?)
    }

    /// Returns the template with the members' reports summed up in its status.
    pub fn aggregate_status(
        &self,
        object: Value,
        items: &[AggregatedStatusItem],
        now: Timestamp,
    ) -> Result<Value> {
        accept(self.answer(&object, Operation::AggregateStatus)?.aggregate_status(object, items, now)?)
    }

    /// Returns what is worth reporting of a member object's status; `None` when there is nothing yet.
    pub fn reflect_status(&self, object: &Value) -> Result<Option<Value>> {
        self.answer(object, Operation::InterpretStatus)?.reflect_status(object)?.map(accept).transpose()
    }

    /// Returns whether a member object is healthy.
    pub fn interpret_health(&self, object: &Value) -> Result<bool> {
        self.answer(object, Operation::InterpretHealth)?.interpret_health(object)
    }

    /// Returns what the object needs beside it; the list is verified, whichever layer gave it.
    pub fn get_dependencies(&self, object: &Value) -> Result<Vec<DependentObjectReference>> {
        let dependencies = self.answer(object, Operation::InterpretDependency)?.get_dependencies(object)?;
        verify_dependencies(&dependencies)?;
        Ok(dependencies)
    }

    fn layer(&self, kind: &Gvk, operation: Operation) -> Option<&dyn Layer> {
        self.layers.iter().find(|layer| layer.supports(kind, operation)).map(AsRef::as_ref)
    }

    fn answer(&self, object: &Value, operation: Operation) -> Result<&dyn Layer> {
        self.layer(&kind_of(object), operation).ok_or_else(|| no_rule(object, operation))
    }
}

pub(crate) fn kind_of(object: &Value) -> Gvk {
    Gvk::from_api_version(object["apiVersion"].as_str().unwrap_or(""), object["kind"].as_str().unwrap_or(""))
}

pub(crate) fn no_rule(object: &Value, operation: Operation) -> Error {
    match operation {
        Operation::InterpretComponent => Error::NoComponentRule,
        Operation::InterpretDependency => Error::NoDependencyRule,
        operation => Error::NoRule { operation, kind: kind_of(object) },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Answers health for Deployments only, always with an error or a fixed verdict.
    struct Fixed(Result<bool>);

    impl Layer for Fixed {
        fn supports(&self, kind: &Gvk, operation: Operation) -> bool {
            kind.kind == "Deployment" && operation == Operation::InterpretHealth
        }

        fn blocks(&self) -> bool {
            true
        }

        fn interpret_health(&self, _object: &Value) -> Result<bool> {
            self.0.clone()
        }
    }

    fn deployment() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "generation": 2}})
    }

    #[test]
    fn an_earlier_layer_beats_the_native_rule_for_the_operation_it_offers_and_no_other() {
        let chain = Interpreter::with_layers([Arc::new(Fixed(Ok(true))) as Arc<dyn Layer>]);
        assert_eq!(Interpreter::native().interpret_health(&deployment()), Ok(false));
        assert_eq!(chain.interpret_health(&deployment()), Ok(true));
        assert_eq!(chain.get_replicas(&deployment()).map(|replicas| replicas.count), Ok(0));
    }

    #[test]
    fn third_party_kinds_are_known_unless_a_layer_before_them_answers() {
        let set = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": {"generation": 2},
            "spec": {"replicas": 4, "template": {"spec": {}}}, "status": {"observedGeneration": 1}});
        assert!(Interpreter::native().get_replicas(&set).is_err());
        let chain = Interpreter::built_in([Arc::new(Fixed(Ok(true))) as Arc<dyn Layer>]);
        assert_eq!(chain.get_replicas(&set).map(|replicas| replicas.count), Ok(4));
        assert_eq!(chain.interpret_health(&set), Ok(false));
        assert_eq!(chain.interpret_health(&deployment()), Ok(true));
    }

    #[test]
    fn a_failing_layer_ends_the_operation() {
        let broken = Error::Layer("boom".into());
        let chain = Interpreter::with_layers([
            Arc::new(Fixed(Err(broken.clone()))) as Arc<dyn Layer>,
            Arc::new(Fixed(Ok(true))),
        ]);
        assert_eq!(chain.interpret_health(&deployment()), Err(broken));
    }

    #[test]
    fn only_the_answering_layer_decides_whether_a_call_may_wait() {
        let chain = Interpreter::with_layers([Arc::new(Fixed(Ok(true))) as Arc<dyn Layer>]);
        let kind = kind_of(&deployment());
        assert!(chain.blocks(&kind, Operation::InterpretHealth));
        assert!(!chain.blocks(&kind, Operation::Retain));
    }

    #[test]
    fn a_kind_without_a_rule_is_refused_in_upstreams_words() {
        let gadget = json!({"apiVersion": "example.io/v1", "kind": "Gadget"});
        let native = Interpreter::native();
        let text = |error: Error| error.to_string();
        assert_eq!(
            native.get_replicas(&gadget).map_err(text),
            Err("default InterpretReplica interpreter for \"example.io/v1, Kind=Gadget\" not found".into())
        );
        assert_eq!(
            native.get_dependencies(&gadget).map_err(text),
            Err("default interpreter for operation InterpretDependency not found".into())
        );
        assert_eq!(
            native.get_components(&gadget).map_err(text),
            Err("interface GetComponents not implemented yet".into())
        );
        assert_eq!(native.reflect_status(&gadget), Ok(None));
    }
}
