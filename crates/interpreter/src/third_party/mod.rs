//! The third layer: kinds of well-known operators that Karmada understands without being taught.
//!
//! Karmada bundles scripts for them; here they are data and small functions, one file per project. What they answer
//! was compared with the original (`tests/original.rs`). Where a script would fail on an object that lacks a field,
//! so do these rules.

mod argo;
mod blocks;
mod flink;
mod flux;
mod kruise;
mod kubeflow;
mod kyverno;
mod ray;
mod spark;
mod volcano;

use api::config::DependentObjectReference;
use api::work::{AggregatedStatusItem, Component};
use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::chain::{kind_of, no_rule};
use crate::pods::PriorityClass;
use crate::{Operation, Replicas, Result, Rulebook};

/// The layer itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThirdParty {
    pub priority_class: PriorityClass,
}

type Items<'a> = &'a [AggregatedStatusItem];
type Read<T> = fn(&Value) -> Result<T>;
type Needs<T> = fn(&Value, PriorityClass) -> Result<T>;
type Merge = fn(&mut Value, &Value) -> Result<()>;
type Aggregate = fn(&mut Value, Items<'_>, Timestamp) -> Result<()>;

/// The rules of one kind; what is absent is left to the native layer.
#[derive(Clone, Copy)]
struct Rules {
    replicas: Option<Needs<Replicas>>,
    components: Option<Needs<Vec<Component>>>,
    revise: Option<fn(&mut Value, i64) -> Result<()>>,
    retain: Option<Merge>,
    /// An absent list and an empty one are the same: a binding does not store an empty one.
    aggregate: Option<Aggregate>,
    reflect: Option<Read<Map<String, Value>>>,
    health: Option<Read<bool>>,
    dependencies: Option<Read<Vec<DependentObjectReference>>>,
}

impl Rules {
    const NONE: Self = Self {
        replicas: None,
        components: None,
        revise: None,
        retain: None,
        aggregate: None,
        reflect: None,
        health: None,
        dependencies: None,
    };

    fn has(&self, operation: Operation) -> bool {
        match operation {
            Operation::InterpretReplica => self.replicas.is_some(),
            Operation::InterpretComponent => self.components.is_some(),
            Operation::ReviseReplica => self.revise.is_some(),
            Operation::Retain => self.retain.is_some(),
            Operation::AggregateStatus => self.aggregate.is_some(),
            Operation::InterpretStatus => self.reflect.is_some(),
            Operation::InterpretHealth => self.health.is_some(),
            Operation::InterpretDependency => self.dependencies.is_some(),
        }
    }
}

/// Every kind with its rules.
const KINDS: &[(&str, &str, &str, Rules)] = &[
    ("apps.kruise.io", "v1alpha1", "CloneSet", kruise::CLONE_SET),
    ("apps.kruise.io", "v1beta1", "StatefulSet", kruise::STATEFUL_SET),
    ("apps.kruise.io", "v1alpha1", "DaemonSet", kruise::DAEMON_SET),
    ("apps.kruise.io", "v1alpha1", "UnitedDeployment", kruise::UNITED_DEPLOYMENT),
    ("apps.kruise.io", "v1alpha1", "BroadcastJob", kruise::BROADCAST_JOB),
    ("apps.kruise.io", "v1alpha1", "AdvancedCronJob", kruise::ADVANCED_CRON_JOB),
    ("apps.kruise.io", "v1alpha1", "SidecarSet", kruise::SIDECAR_SET),
    ("argoproj.io", "v1alpha1", "Workflow", argo::WORKFLOW),
    ("batch.volcano.sh", "v1alpha1", "Job", volcano::JOB),
    ("flink.apache.org", "v1beta1", "FlinkDeployment", flink::DEPLOYMENT),
    ("kubeflow.org", "v1", "Notebook", kubeflow::NOTEBOOK),
    ("kubeflow.org", "v1", "PyTorchJob", kubeflow::PYTORCH_JOB),
    ("kubeflow.org", "v1", "TFJob", kubeflow::TF_JOB),
    ("kubeflow.org", "v2beta1", "MPIJob", kubeflow::MPI_JOB),
    ("kustomize.toolkit.fluxcd.io", "v1", "Kustomization", flux::KUSTOMIZATION),
    ("helm.toolkit.fluxcd.io", "v2beta1", "HelmRelease", flux::HELM_RELEASE),
    ("source.toolkit.fluxcd.io", "v1", "GitRepository", flux::GIT_REPOSITORY),
    ("source.toolkit.fluxcd.io", "v1beta2", "Bucket", flux::BUCKET),
    ("source.toolkit.fluxcd.io", "v1beta2", "HelmRepository", flux::HELM_REPOSITORY),
    ("source.toolkit.fluxcd.io", "v1beta2", "HelmChart", flux::HELM_CHART),
    ("source.toolkit.fluxcd.io", "v1beta2", "OCIRepository", flux::OCI_REPOSITORY),
    ("kyverno.io", "v1", "ClusterPolicy", kyverno::POLICY),
    ("kyverno.io", "v1", "Policy", kyverno::POLICY),
    ("ray.io", "v1", "RayCluster", ray::CLUSTER),
    ("ray.io", "v1", "RayJob", ray::JOB),
    ("ray.io", "v1", "RayService", ray::SERVICE),
    ("sparkoperator.k8s.io", "v1beta2", "SparkApplication", spark::APPLICATION),
];

/// Returns the kinds that have rules, with the operations that they have rules for.
pub fn third_party_kinds() -> impl Iterator<Item = (Gvk, Vec<Operation>)> {
    KINDS.iter().map(|(group, version, kind, rules)| {
        let operations = Operation::ALL.into_iter().filter(|operation| rules.has(*operation)).collect();
        (Gvk::new(*group, *version, *kind), operations)
    })
}

fn rules(kind: &Gvk) -> Option<&'static Rules> {
    KINDS
        .iter()
        .find(|(group, version, name, _)| {
            kind.kind == *name && kind.group == *group && kind.version == *version
        })
        .map(|(_, _, _, rules)| rules)
}

fn rule<T>(object: &Value, operation: Operation, pick: impl FnOnce(&Rules) -> Option<T>) -> Result<T> {
    rules(&kind_of(object)).and_then(pick).ok_or_else(|| no_rule(object, operation))
}

impl Rulebook for ThirdParty {
    fn supports(&self, kind: &Gvk, operation: Operation) -> bool {
        rules(kind).is_some_and(|rules| rules.has(operation))
    }

    fn get_replicas(&self, object: &Value) -> Result<Replicas> {
        rule(object, Operation::InterpretReplica, |rules| rules.replicas)?(object, self.priority_class)
    }

    fn get_components(&self, object: &Value) -> Result<Vec<Component>> {
        rule(object, Operation::InterpretComponent, |rules| rules.components)?(object, self.priority_class)
    }

    fn revise_replica(&self, mut object: Value, replicas: i64) -> Result<Value> {
        rule(&object, Operation::ReviseReplica, |rules| rules.revise)?(&mut object, replicas)?;
        blocks::drop_nulls(&mut object);
        Ok(object)
    }

    fn retain(&self, mut desired: Value, observed: &Value) -> Result<Value> {
        rule(&desired, Operation::Retain, |rules| rules.retain)?(&mut desired, observed)?;
        blocks::drop_nulls(&mut desired);
        Ok(desired)
    }

    fn aggregate_status(&self, mut object: Value, items: Items<'_>, now: Timestamp) -> Result<Value> {
        rule(&object, Operation::AggregateStatus, |rules| rules.aggregate)?(&mut object, items, now)?;
        blocks::drop_empty(&mut object);
        Ok(object)
    }

    fn reflect_status(&self, object: &Value) -> Result<Option<Value>> {
        let status = rule(object, Operation::InterpretStatus, |rules| rules.reflect)?(object)?;
        let mut status = Value::Object(status);
        blocks::drop_empty(&mut status);
        Ok(Some(status))
    }

    fn interpret_health(&self, object: &Value) -> Result<bool> {
        rule(object, Operation::InterpretHealth, |rules| rules.health)?(object)
    }

    fn get_dependencies(&self, object: &Value) -> Result<Vec<DependentObjectReference>> {
        let mut found = rule(object, Operation::InterpretDependency, |rules| rules.dependencies)?(object)?;
        found.sort_by(|left, right| {
            let key = |each: &DependentObjectReference| {
                [&each.api_version, &each.kind, &each.namespace, &each.name].map(Clone::clone)
            };
            key(left).cmp(&key(right))
        });
        found.dedup();
        Ok(found)
    }
}
