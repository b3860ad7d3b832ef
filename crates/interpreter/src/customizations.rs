//! The first layer: what users teach by ResourceInterpreterCustomization.
//!
//! Of several customizations for one kind the first by name that has a script for an operation answers; only scripts
//! for dependencies are all run and their answers united. Scripts are compiled when they are loaded, and kept when the
//! same text is loaded again.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use api::config::{
    CustomizationRules, DependentObjectReference, LuaScriptHolder, ResourceInterpreterCustomization,
};
use api::work::{AggregatedStatusItem, Component};
use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use serde_json::Value;

use crate::chain::{kind_of, no_rule};
use crate::lua::{Argument, Limits, Returned, ReturnedValue, Script, bounded, decode};
use crate::pods::PriorityClass;
use crate::{Error, Operation, Replicas, Result, Rulebook, verify_dependencies};

/// What time it is: scripts may ask, and must end in time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The customizations as they are at this moment; they can be replaced while others ask.
pub struct Customizations {
    rules: RwLock<Arc<Rules>>,
    clock: Clock,
    limit: Limit,
    priority_class: PriorityClass,
}

/// What a single run may take, where it is not the usual.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limit {
    pub steps: Option<u64>,
    pub bytes: Option<usize>,
}

#[derive(Default)]
struct Rules {
    by_kind: HashMap<Gvk, HashMap<Operation, Vec<Rule>>>,
    /// What was compiled, by its text.
    compiled: HashMap<Arc<str>, std::result::Result<Script, String>>,
}

#[derive(Clone)]
struct Rule {
    customization: Arc<str>,
    script: std::result::Result<Script, String>,
}

impl Customizations {
    /// Returns a layer without any customization.
    pub fn new(clock: Clock) -> Self {
        Self {
            rules: RwLock::default(),
            clock,
            limit: Limit::default(),
            priority_class: PriorityClass::default(),
        }
    }

    /// Changes what a run may take.
    pub fn with_limit(mut self, limit: Limit) -> Self {
        self.limit = limit;
        self
    }

    /// Changes what scripts are told that a pod needs.
    pub fn with_priority_class(mut self, class: PriorityClass) -> Self {
        self.priority_class = class;
        self
    }

    /// Replaces all customizations.
    pub fn load<'a>(&self, customizations: impl IntoIterator<Item = &'a ResourceInterpreterCustomization>) {
        let before = self.current();
        let mut sorted: Vec<_> = customizations.into_iter().collect();
        sorted.sort_by(|left, right| left.metadata.name.cmp(&right.metadata.name));
        let mut rules = Rules::default();
        for customization in sorted {
            let name: Arc<str> = customization.metadata.name.as_deref().unwrap_or_default().into();
            let target = &customization.spec.target;
            let kind = Gvk::from_api_version(&target.api_version, &target.kind);
            for (operation, text) in scripts(&customization.spec.customizations) {
                let Some(text) = text else { continue };
                let script = before
                    .compiled
                    .get(text)
                    .or_else(|| rules.compiled.get(text))
                    .cloned()
                    .unwrap_or_else(|| Script::compile(text));
                rules.compiled.insert(text.into(), script.clone());
                let known = rules.by_kind.entry(kind.clone()).or_default().entry(operation).or_default();
                if known.is_empty() || operation == Operation::InterpretDependency {
                    known.push(Rule { customization: Arc::clone(&name), script });
                }
            }
        }
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    fn current(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn rules(&self, object: &Value, operation: Operation) -> Result<Vec<Rule>> {
        let rules = self.current();
        let found = rules.by_kind.get(&kind_of(object)).and_then(|rules| rules.get(&operation));
        found.cloned().ok_or_else(|| no_rule(object, operation))
    }

    /// Runs the script for an operation and makes of its results what `read` says.
    fn run<T>(
        &self,
        object: &Value,
        operation: Operation,
        arguments: &[Argument<'_>],
        read: impl FnOnce(Vec<Returned>) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let rules = self.rules(object, operation)?;
        let rule = rules.first().ok_or_else(|| no_rule(object, operation))?;
        self.run_rule(rule, operation, arguments, read)
    }

    fn run_rule<T>(
        &self,
        rule: &Rule,
        operation: Operation,
        arguments: &[Argument<'_>],
        read: impl FnOnce(Vec<Returned>) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let clock = || (self.clock)();
        let mut limits = Limits::usual(&clock);
        limits.steps = self.limit.steps.unwrap_or(limits.steps);
        limits.bytes = self.limit.bytes.unwrap_or(limits.bytes);
        limits.priority_class = self.priority_class;
        let (function, results) = function(operation);
        rule.script
            .clone()
            .and_then(|script| script.call(function, arguments, results, &limits))
            .map_err(|message| match operation {
                Operation::InterpretComponent => format!("failed to run 'GetComponents' script: {message}"),
                _ => message,
            })
            .and_then(read)
            .map_err(|message| Error::Script {
                customization: rule.customization.to_string(),
                operation,
                message: bounded(message.as_bytes()),
            })
    }
}

/// Returns the scripts by operation, in the order in which users see them.
pub fn scripts(rules: &CustomizationRules) -> [(Operation, Option<&str>); 8] {
    fn text(holder: &Option<LuaScriptHolder>) -> Option<&str> {
        holder.as_ref().map(|holder| holder.lua_script.as_str()).filter(|script| !script.is_empty())
    }
    [
        (Operation::Retain, text(&rules.retention)),
        (Operation::InterpretReplica, text(&rules.replica_resource)),
        (Operation::InterpretComponent, text(&rules.component_resource)),
        (Operation::ReviseReplica, text(&rules.replica_revision)),
        (Operation::InterpretStatus, text(&rules.status_reflection)),
        (Operation::AggregateStatus, text(&rules.status_aggregation)),
        (Operation::InterpretHealth, text(&rules.health_interpretation)),
        (Operation::InterpretDependency, text(&rules.dependency_interpretation)),
    ]
}

/// Returns the function that a script must define, and how many values it returns.
fn function(operation: Operation) -> (&'static str, usize) {
    match operation {
        Operation::InterpretReplica => ("GetReplicas", 2),
        Operation::InterpretComponent => ("GetComponents", 1),
        Operation::ReviseReplica => ("ReviseReplica", 1),
        Operation::Retain => ("Retain", 1),
        Operation::AggregateStatus => ("AggregateStatus", 1),
        Operation::InterpretStatus => ("ReflectStatus", 1),
        Operation::InterpretHealth => ("InterpretHealth", 1),
        Operation::InterpretDependency => ("GetDependencies", 1),
    }
}

fn first(returned: Vec<Returned>) -> std::result::Result<Returned, String> {
    returned.into_iter().next().ok_or_else(|| "the function returned nothing".to_owned())
}

/// Returns the table that a function must return; `what` is how upstream calls it.
fn table(returned: Returned, what: &str) -> std::result::Result<Value, String> {
    match returned.value {
        ReturnedValue::Table(json) => json,
        _ => Err(format!("expect the returned {what} type is table but got {}", returned.type_name)),
    }
}

impl Rulebook for Customizations {
    fn supports(&self, kind: &Gvk, operation: Operation) -> bool {
        self.current().by_kind.get(kind).is_some_and(|rules| rules.contains_key(&operation))
    }

    fn get_replicas(&self, object: &Value) -> Result<Replicas> {
        self.run(object, Operation::InterpretReplica, &[Argument::Json(object)], |returned| {
            let mut returned = returned.into_iter();
            let (Some(count), Some(requirements)) = (returned.next(), returned.next()) else {
                return Err("the function returned nothing".into());
            };
            let ReturnedValue::Number(number) = count.value else {
                return Err(format!("result type {} is not number", count.type_number));
            };
            let requirements = match requirements.value {
                ReturnedValue::Nil => None,
                _ => Some(decode::requirements(table(requirements, "requires")?)?),
            };
            Ok(Replicas { count: decode::count(number), requirements })
        })
    }

    fn get_components(&self, object: &Value) -> Result<Vec<Component>> {
        self.run(object, Operation::InterpretComponent, &[Argument::Json(object)], |returned| {
            let returned = first(returned)?;
            match returned.value {
                ReturnedValue::Nil => Ok(Vec::new()),
                ReturnedValue::Table(json) => json
                    .and_then(decode::components)
                    .map_err(|why| format!("failed to convert lua table for components: {why}")),
                _ => Err(format!(
                    "expected result type 'table' or 'nil' from GetComponents, but got '{}'",
                    returned.type_name
                )),
            }
        })
    }

    fn revise_replica(&self, object: Value, replicas: i64) -> Result<Value> {
        let arguments = [Argument::Json(&object), Argument::Number(replicas as f64)];
        self.run(&object, Operation::ReviseReplica, &arguments, |returned| {
            decode::object(table(first(returned)?, "requires")?, &[&object])
        })
    }

    fn retain(&self, desired: Value, observed: &Value) -> Result<Value> {
        let arguments = [Argument::Json(&desired), Argument::Json(observed)];
        self.run(&desired, Operation::Retain, &arguments, |returned| {
            decode::object(table(first(returned)?, "requires")?, &[&desired, observed])
        })
    }

    fn aggregate_status(
        &self,
        object: Value,
        items: &[AggregatedStatusItem],
        _now: Timestamp,
    ) -> Result<Value> {
        // A list without entries is absent in a stored binding, so scripts are told nil.
        let listed = if items.is_empty() { None } else { serde_json::to_value(items).ok() };
        let items = listed.as_ref().map_or(Argument::Nil, Argument::Json);
        self.run(&object, Operation::AggregateStatus, &[Argument::Json(&object), items], |returned| {
            decode::object(table(first(returned)?, "requires")?, &[])
        })
    }

    fn reflect_status(&self, object: &Value) -> Result<Option<Value>> {
        self.run(object, Operation::InterpretStatus, &[Argument::Json(object)], |returned| {
            Ok(Some(decode::status(table(first(returned)?, "replica")?)))
        })
    }

    fn interpret_health(&self, object: &Value) -> Result<bool> {
        self.run(object, Operation::InterpretHealth, &[Argument::Json(object)], |returned| {
            let returned = first(returned)?;
            match returned.value {
                ReturnedValue::Boolean(healthy) => Ok(healthy),
                _ => Err(format!("result type {} is not bool", returned.type_number)),
            }
        })
    }

    fn get_dependencies(&self, object: &Value) -> Result<Vec<DependentObjectReference>> {
        let operation = Operation::InterpretDependency;
        let mut united: Vec<DependentObjectReference> = Vec::new();
        for rule in self.rules(object, operation)? {
            let found = self.run_rule(&rule, operation, &[Argument::Json(object)], |returned| {
                let found = decode::dependencies(table(first(returned)?, "requires")?)?;
                verify_dependencies(&found).map_err(|error| error.to_string())?;
                Ok(found)
            })?;
            for dependency in found {
                // Those with a selector are never the same to upstream.
                if dependency.label_selector.is_some() || !united.contains(&dependency) {
                    united.push(dependency);
                }
            }
        }
        united.sort_by(|left, right| {
            let key = |each: &DependentObjectReference| {
                [&each.api_version, &each.kind, &each.namespace, &each.name].map(Clone::clone)
            };
            key(left).cmp(&key(right))
        });
        Ok(united)
    }
}
