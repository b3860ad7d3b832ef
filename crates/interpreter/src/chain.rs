//! The layers that may answer, in order: the first one with a rule for the exact group, version and kind does.
//!
//! Karmada's order is declarative customisations, webhooks, bundled third-party rules, native rules. A layer
//! that fails ends the operation: falling through to another opinion about the same kind would make a broken
//! customisation look like a working default.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use api::config::DependentObjectReference;
use api::work::{AggregatedStatusItem, Component};
use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use serde_json::Value;

use crate::native::Native;
use crate::pods::PriorityClass;
use crate::{Answer, Error, Operation, Question, Replicas, Result, ThirdParty, verify_dependencies};

/// A source of rules that answers at once, without waiting for anything.
///
/// An operation is called only for kinds that [`Rulebook::supports`] affirmed; the default bodies therefore
/// answer "no rule" and a rulebook overrides those it offers.
pub trait Rulebook: Send + Sync {
    fn supports(&self, kind: &Gvk, operation: Operation) -> bool;

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

/// An answer that is on its way.
pub type Pending<'a> = Pin<Box<dyn Future<Output = Result<Answer>> + Send + 'a>>;

/// A layer before the built-in rules. Its answer may take time: a script runs on another thread, a webhook in another
/// process. Whoever asks waits without keeping a thread.
pub trait Layer: Send + Sync {
    /// Returns whether it has a rule. Only then it is asked.
    fn supports(&self, kind: &Gvk, operation: Operation) -> bool;

    fn ask(&self, question: Question) -> Pending<'_>;
}

/// A rulebook as a layer of its own, answering on the thread of the one who asks.
#[derive(Debug, Clone, Copy, Default)]
pub struct AtOnce<R>(pub R);

impl<R: Rulebook> Layer for AtOnce<R> {
    fn supports(&self, kind: &Gvk, operation: Operation) -> bool {
        self.0.supports(kind, operation)
    }

    fn ask(&self, question: Question) -> Pending<'_> {
        Box::pin(std::future::ready(question.put_to(&self.0)))
    }
}

/// Returns what a future gives that does not wait for anything, as those of the built-in rules; nothing if it would wait.
pub fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Refuses what a layer made if it nests too deep for everybody after it.
fn accept(made: Value) -> Result<Value> {
    apimachinery::depth::accept(made).map_err(|error| Error::Layer(error.to_string()))
}

/// The layers in order, then the built-in rules. Cheap to clone.
#[derive(Clone)]
pub struct Interpreter {
    layers: Arc<[Arc<dyn Layer>]>,
    third_party: Option<ThirdParty>,
    native: Native,
}

/// What answers.
enum Source<'a> {
    Layer(&'a dyn Layer),
    BuiltIn(&'a dyn Rulebook),
}

impl Interpreter {
    /// Returns an interpreter that knows the native kinds only.
    pub fn native() -> Self {
        Self::with_layers([])
    }

    /// Returns an interpreter that asks `layers` first, then the third-party rules, then the native ones: Karmada's
    /// order, with customizations and webhooks as `layers`.
    pub fn built_in(layers: impl IntoIterator<Item = Arc<dyn Layer>>) -> Self {
        Self { third_party: Some(ThirdParty::default()), ..Self::with_layers(layers) }
    }

    /// Returns an interpreter that asks `layers` in the given order, then the native rules.
    pub fn with_layers(layers: impl IntoIterator<Item = Arc<dyn Layer>>) -> Self {
        Self { layers: layers.into_iter().collect(), third_party: None, native: Native::default() }
    }

    /// Says whether the built-in rules count the class of its priority among the needs of a pod. What the layers before them
    /// say is theirs.
    pub fn with_priority_class(mut self, class: PriorityClass) -> Self {
        self.native.priority_class = class;
        self.third_party = self.third_party.map(|_| ThirdParty { priority_class: class });
        self
    }

    /// Returns whether any layer has a rule: what Karmada calls an enabled hook.
    pub fn supports(&self, kind: &Gvk, operation: Operation) -> bool {
        self.source(kind, operation).is_some()
    }

    /// Returns the desired replicas and what each of them needs.
    pub async fn get_replicas(&self, object: &Value) -> Result<Replicas> {
        match self.answering(object, Operation::InterpretReplica)? {
            Source::BuiltIn(rules) => rules.get_replicas(object),
            Source::Layer(layer) => {
                layer.ask(Question::Replicas { object: object.clone() }).await?.into_replicas()
            }
        }
    }

    /// Returns the pod templates of a workload that has several.
    pub async fn get_components(&self, object: &Value) -> Result<Vec<Component>> {
        match self.answering(object, Operation::InterpretComponent)? {
            Source::BuiltIn(rules) => rules.get_components(object),
            Source::Layer(layer) => {
                layer.ask(Question::Components { object: object.clone() }).await?.into_components()
            }
        }
    }

    /// Returns the object with its replica count set, where it has one.
    pub async fn revise_replica(&self, object: Value, replicas: i64) -> Result<Value> {
        accept(match self.answering(&object, Operation::ReviseReplica)? {
            Source::BuiltIn(rules) => rules.revise_replica(object, replicas)?,
            Source::Layer(layer) => layer.ask(Question::Revise { object, replicas }).await?.into_object()?,
        })
    }

    /// Returns the desired object with what the member cluster owns taken over from the observed one.
    pub async fn retain(&self, desired: Value, observed: &Value) -> Result<Value> {
        accept(match self.answering(&desired, Operation::Retain)? {
            Source::BuiltIn(rules) => rules.retain(desired, observed)?,
            Source::Layer(layer) => {
                let observed = observed.clone();
                layer.ask(Question::Retain { desired, observed }).await?.into_object()?
            }
        })
    }

    /// Returns the template with the members' reports summed up in its status.
    pub async fn aggregate_status(
        &self,
        object: Value,
        items: &[AggregatedStatusItem],
        now: Timestamp,
    ) -> Result<Value> {
        accept(match self.answering(&object, Operation::AggregateStatus)? {
            Source::BuiltIn(rules) => rules.aggregate_status(object, items, now)?,
            Source::Layer(layer) => {
                let items = items.to_vec();
                layer.ask(Question::Aggregate { object, items, now }).await?.into_object()?
            }
        })
    }

    /// Returns what is worth reporting of a member object's status; `None` when there is nothing yet.
    pub async fn reflect_status(&self, object: &Value) -> Result<Option<Value>> {
        let status = match self.answering(object, Operation::InterpretStatus)? {
            Source::BuiltIn(rules) => rules.reflect_status(object)?,
            Source::Layer(layer) => {
                layer.ask(Question::Status { object: object.clone() }).await?.into_status()?
            }
        };
        status.map(accept).transpose()
    }

    /// Returns whether a member object is healthy.
    pub async fn interpret_health(&self, object: &Value) -> Result<bool> {
        match self.answering(object, Operation::InterpretHealth)? {
            Source::BuiltIn(rules) => rules.interpret_health(object),
            Source::Layer(layer) => {
                layer.ask(Question::Health { object: object.clone() }).await?.into_health()
            }
        }
    }

    /// Returns what the object needs beside it; the list is verified, whichever layer gave it.
    pub async fn get_dependencies(&self, object: &Value) -> Result<Vec<DependentObjectReference>> {
        let dependencies = match self.answering(object, Operation::InterpretDependency)? {
            Source::BuiltIn(rules) => rules.get_dependencies(object)?,
            Source::Layer(layer) => {
                layer.ask(Question::Dependencies { object: object.clone() }).await?.into_dependencies()?
            }
        };
        verify_dependencies(&dependencies)?;
        Ok(dependencies)
    }

    /// Answers a question, whatever it is about.
    pub async fn ask(&self, question: Question) -> Result<Answer> {
        Ok(match question {
            Question::Replicas { object } => Answer::Replicas(self.get_replicas(&object).await?),
            Question::Components { object } => Answer::Components(self.get_components(&object).await?),
            Question::Revise { object, replicas } => {
                Answer::Object(self.revise_replica(object, replicas).await?)
            }
            Question::Retain { desired, observed } => Answer::Object(self.retain(desired, &observed).await?),
            Question::Aggregate { object, items, now } => {
                Answer::Object(self.aggregate_status(object, &items, now).await?)
            }
            Question::Status { object } => Answer::Status(self.reflect_status(&object).await?),
            Question::Health { object } => Answer::Health(self.interpret_health(&object).await?),
            Question::Dependencies { object } => Answer::Dependencies(self.get_dependencies(&object).await?),
        })
    }

    fn source(&self, kind: &Gvk, operation: Operation) -> Option<Source<'_>> {
        if let Some(layer) = self.layers.iter().find(|layer| layer.supports(kind, operation)) {
            return Some(Source::Layer(layer.as_ref()));
        }
        if let Some(third_party) = &self.third_party
            && third_party.supports(kind, operation)
        {
            return Some(Source::BuiltIn(third_party));
        }
        self.native.supports(kind, operation).then_some(Source::BuiltIn(&self.native))
    }

    fn answering(&self, object: &Value, operation: Operation) -> Result<Source<'_>> {
        self.source(&kind_of(object), operation).ok_or_else(|| no_rule(object, operation))
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
    use crate::Customizations;

    /// Answers health for Deployments only, always with an error or a fixed verdict.
    struct Fixed(Result<bool>);

    impl Rulebook for Fixed {
        fn supports(&self, kind: &Gvk, operation: Operation) -> bool {
            kind.kind == "Deployment" && operation == Operation::InterpretHealth
        }

        fn interpret_health(&self, _object: &Value) -> Result<bool> {
            self.0.clone()
        }
    }

    fn fixed(verdict: Result<bool>) -> Arc<dyn Layer> {
        Arc::new(AtOnce(Fixed(verdict)))
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        at_once(future).expect("no layer here waits for anything")
    }

    fn deployment() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "generation": 2}})
    }

    #[test]
    fn an_earlier_layer_beats_the_native_rule_for_the_operation_it_offers_and_no_other() {
        let chain = Interpreter::with_layers([fixed(Ok(true))]);
        assert_eq!(now(Interpreter::native().interpret_health(&deployment())), Ok(false));
        assert_eq!(now(chain.interpret_health(&deployment())), Ok(true));
        assert_eq!(now(chain.get_replicas(&deployment())).map(|replicas| replicas.count), Ok(0));
    }

    #[test]
    fn third_party_kinds_are_known_unless_a_layer_before_them_answers() {
        let set = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": {"generation": 2},
            "spec": {"replicas": 4, "template": {"spec": {}}}, "status": {"observedGeneration": 1}});
        assert!(now(Interpreter::native().get_replicas(&set)).is_err());
        let chain = Interpreter::built_in([fixed(Ok(true))]);
        assert_eq!(now(chain.get_replicas(&set)).map(|replicas| replicas.count), Ok(4));
        assert_eq!(now(chain.interpret_health(&set)), Ok(false));
        assert_eq!(now(chain.interpret_health(&deployment())), Ok(true));
    }

    #[test]
    fn the_priority_class_is_a_need_of_whatever_has_pod_templates_where_it_counts() {
        let pod = json!({"spec": {"priorityClassName": "high", "nodeSelector": {"disk": "ssd"}}});
        let spec = json!({
            "replicas": 1, "parallelism": 1, "template": pod, "tasks": [{"template": pod}],
            "headGroupSpec": {"template": pod}, "rayClusterConfig": {"headGroupSpec": {"template": pod}},
            "rayClusterSpec": {"headGroupSpec": {"template": pod}},
            "pytorchReplicaSpecs": {"Master": {"template": pod}}, "tfReplicaSpecs": {"Chief": {"template": pod}},
            "mpiReplicaSpecs": {"Launcher": {"template": pod}},
        });
        for (api_version, kind) in [
            ("apps/v1", "Deployment"),
            ("batch/v1", "Job"),
            ("apps.kruise.io/v1alpha1", "CloneSet"),
            ("apps.kruise.io/v1beta1", "StatefulSet"),
            ("apps.kruise.io/v1alpha1", "UnitedDeployment"),
            ("apps.kruise.io/v1alpha1", "BroadcastJob"),
            ("kubeflow.org/v1", "Notebook"),
            ("ray.io/v1", "RayService"),
            ("ray.io/v1", "RayCluster"),
            ("ray.io/v1", "RayJob"),
            ("batch.volcano.sh/v1alpha1", "Job"),
            ("kubeflow.org/v1", "PyTorchJob"),
            ("kubeflow.org/v1", "TFJob"),
            ("kubeflow.org/v2beta1", "MPIJob"),
        ] {
            let object = json!({"apiVersion": api_version, "kind": kind, "spec": spec});
            for (class, expected) in [(PriorityClass::Needed, "high"), (PriorityClass::Ignored, "")] {
                let chain = Interpreter::built_in([]).with_priority_class(class);
                let found = if chain.supports(&kind_of(&object), Operation::InterpretComponent) {
                    let components = now(chain.get_components(&object)).expect("components");
                    components[0].replica_requirements.clone().expect("needs").priority_class_name
                } else {
                    let replicas = now(chain.get_replicas(&object)).expect("replicas");
                    replicas.requirements.expect("needs").priority_class_name
                };
                assert_eq!(found, expected, "{kind} {class:?}");
            }
        }
    }

    #[test]
    fn scripts_are_told_the_priority_class_where_it_counts() {
        let gadget = json!({"apiVersion": "example.io/v1", "kind": "Gadget", "spec": {"template": {
            "spec": {"priorityClassName": "high", "nodeSelector": {"disk": "ssd"}},
        }}});
        let customization = serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {
            "target": {"apiVersion": "example.io/v1", "kind": "Gadget"},
            "customizations": {"replicaResource": {"luaScript": "local kube = require('kube') \
                function GetReplicas(o) return 1, kube.accuratePodRequirements(o.spec.template) end"}},
        }}))
        .expect("a customization");
        for (class, expected) in [(PriorityClass::Needed, "high"), (PriorityClass::Ignored, "")] {
            let layer = Customizations::new(Arc::new(Timestamp::now)).with_priority_class(class);
            layer.load([&customization]);
            let replicas = layer.get_replicas(&gadget).expect("replicas");
            assert_eq!(replicas.requirements.expect("needs").priority_class_name, expected);
        }
    }

    #[test]
    fn a_failing_layer_ends_the_operation() {
        let broken = Error::Layer("boom".into());
        let chain = Interpreter::with_layers([fixed(Err(broken.clone())), fixed(Ok(true))]);
        assert_eq!(now(chain.interpret_health(&deployment())), Err(broken));
    }

    #[test]
    fn a_layer_that_answers_another_question_is_an_error() {
        struct Confused;

        impl Layer for Confused {
            fn supports(&self, _: &Gvk, _: Operation) -> bool {
                true
            }

            fn ask(&self, _: Question) -> Pending<'_> {
                Box::pin(std::future::ready(Ok(Answer::Health(true))))
            }
        }

        let chain = Interpreter::built_in([Arc::new(Confused) as Arc<dyn Layer>]);
        assert_eq!(now(chain.interpret_health(&deployment())), Ok(true));
        let error = Error::Layer("the layer answered another question".into());
        assert_eq!(now(chain.get_replicas(&deployment())), Err(error));
    }

    #[test]
    fn a_kind_without_a_rule_is_refused_in_upstreams_words() {
        let gadget = json!({"apiVersion": "example.io/v1", "kind": "Gadget"});
        let native = Interpreter::native();
        let text = |error: Error| error.to_string();
        assert_eq!(
            now(native.get_replicas(&gadget)).map_err(text),
            Err("default InterpretReplica interpreter for \"example.io/v1, Kind=Gadget\" not found".into())
        );
        assert_eq!(
            now(native.get_dependencies(&gadget)).map_err(text),
            Err("default interpreter for operation InterpretDependency not found".into())
        );
        assert_eq!(
            now(native.get_components(&gadget)).map_err(text),
            Err("interface GetComponents not implemented yet".into())
        );
        assert_eq!(now(native.reflect_status(&gadget)), Ok(None));
    }
}
