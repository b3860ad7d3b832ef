//! What validating and mutating policies have in common: which writes they match, which parameters they get, and how their
//! variables are computed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::gvk::Gvk;
use apimachinery::pointer;
use apimachinery::selector::LabelSelector;
use cel::{EvalError, Lazy, Value as Cel, Variables};
use serde_json::Value;

use super::expressions::Expression;
use super::webhooks::{Match, Occasion, Rule, find_rule, match_namespace, match_object, selector};
use crate::object::{self, Entry};

/// The CEL cost that all expressions of one policy may have for one write.
pub(super) const BUDGET: u64 = 10_000_000;

/// A binding of a policy.
pub(super) struct Binding {
    pub(super) name: String,
    pub(super) constraints: Option<Constraints>,
    pub(super) param_ref: Value,
    /// What a validating policy does when a validation fails.
    pub(super) actions: Vec<String>,
}

impl Binding {
    pub(super) fn read(name: &str, spec: &Value) -> Self {
        Self {
            name: name.to_owned(),
            constraints: spec["matchResources"]
                .is_object()
                .then(|| Constraints::read(&spec["matchResources"])),
            param_ref: spec["paramRef"].clone(),
            actions: list(spec, "validationActions").filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }

    /// Returns whether the binding lets its policy see a write.
    pub(super) fn matches(
        &self,
        occasion: &Occasion<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<bool, String> {
        let Some(constraints) = &self.constraints else { return Ok(true) };
        constraints.find(occasion, object, old).map(|found| found.is_some()).map_err(in_binding)
    }
}

/// Which writes match: `matchConstraints` and `matchResources`.
pub(super) struct Constraints {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    equivalent: bool,
    namespaces: Result<LabelSelector, String>,
    objects: Result<LabelSelector, String>,
}

pub(super) fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

impl Constraints {
    pub(super) fn read(value: &Value) -> Self {
        Self {
            rules: list(value, "resourceRules").map(Rule::read).collect(),
            excluded: list(value, "excludeResourceRules").map(Rule::read).collect(),
            equivalent: value["matchPolicy"] != "Exact",
            namespaces: selector(&value["namespaceSelector"]),
            objects: selector(&value["objectSelector"]),
        }
    }

    /// Returns how the policy sees a write, if the write matches.
    ///
    /// # Errors
    /// If the namespace does not exist. This counts only where the rules match.
    pub(super) fn find(
        &self,
        occasion: &Occasion<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Option<Match>, String> {
        let by_namespace = match_namespace(&self.namespaces, occasion, object);
        let by_object = match_object(&self.objects, object, old);
        if matches!(by_namespace, Ok(false)) || matches!(by_object, Ok(false)) {
            return Ok(None);
        }
        if find_rule(&self.excluded, self.equivalent, occasion).is_some() {
            return Ok(None);
        }
        // A binding without rules matches everything that its policy matches.
        let found = if self.rules.is_empty() {
            Some(Match::own(occasion))
        } else {
            find_rule(&self.rules, self.equivalent, occasion)
        };
        if found.is_some() {
            by_namespace.map_err(|status| status.message)?;
            by_object.map_err(|status| status.message)?;
        }
        Ok(found)
    }
}

/// Formats a fault of the policy itself.
pub(super) fn in_policy(why: impl std::fmt::Display) -> String {
    format!("failed to configure policy: {why}")
}

/// Formats a fault of one of its bindings.
pub(super) fn in_binding(why: impl std::fmt::Display) -> String {
    format!("failed to configure binding: {why}")
}

/// The `paramKind` of a policy.
#[derive(Debug)]
pub(super) struct ParamKind {
    api_version: String,
    gvk: Gvk,
}

impl ParamKind {
    pub(super) fn read(spec: &Value) -> Option<Self> {
        let given = spec.get("paramKind").filter(|given| given.is_object())?;
        let api_version = pointer::owned(given, "/apiVersion");
        Some(Self { gvk: Gvk::from_api_version(&api_version, &pointer::owned(given, "/kind")), api_version })
    }

    /// Returns why the kind cannot be used, if it is not served.
    pub(super) fn check(&self, occasion: &Occasion<'_>) -> Result<(), String> {
        let registry = occasion.server.registry.load();
        match registry.find_kind(&self.gvk.group, &self.gvk.version, &self.gvk.kind) {
            Some(_) => Ok(()),
            None => Err(in_policy(format!(
                "failed to find resource referenced by paramKind: '{}/{}, Kind={}'",
                self.gvk.group, self.gvk.version, self.gvk.kind
            ))),
        }
    }
}

/// Removes fields from native parameters that mutating policies do not see: upstream knows their kind, but does not read it from
/// them.
pub(super) fn without_type(occasion: &Occasion<'_>, wanted: Option<&ParamKind>, mut params: Value) -> Value {
    let registry = occasion.server.registry.load();
    let kind = wanted
        .and_then(|wanted| registry.find_kind(&wanted.gvk.group, &wanted.gvk.version, &wanted.gvk.kind));
    if let Some(fields) = params.as_object_mut()
        && kind.is_some_and(|kind| !kind.is_custom())
    {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    params
}

/// Returns the parameters that a binding names, in the version that the policy names: one value for each object, or null for a
/// policy without parameters.
pub(super) async fn params(
    occasion: &Occasion<'_>,
    wanted: Option<&ParamKind>,
    reference: &Value,
) -> Result<Vec<Value>, String> {
    let Some(wanted) = wanted.filter(|_| reference.is_object()) else { return Ok(vec![Value::Null]) };
    let server = occasion.server;
    let registry = server.registry.load_full();
    let gvk = &wanted.gvk;
    let unknown = |what: &str| {
        let kind = format!("&ParamKind{{APIVersion:{},Kind:{},}}", wanted.api_version, gvk.kind);
        in_binding(format!("paramKind kind `{kind}` {what}"))
    };
    let kind = registry.find_kind(&gvk.group, &gvk.version, &gvk.kind).ok_or_else(|| unknown("not known"))?;
    let given = pointer::owned(reference, "/namespace");
    let namespace = match (kind.namespaced, given.is_empty()) {
        (true, false) => given,
        (true, true) if occasion.namespace.is_empty() => {
            return Err(in_binding(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources",
            ));
        }
        (true, true) => occasion.namespace.to_owned(),
        (false, true) => String::new(),
        (false, false) => {
            return Err(in_binding(
                "paramRef.namespace must not be provided for a cluster-scoped `paramKind`",
            ));
        }
    };
    let name = pointer::owned(reference, "/name");
    let stored: Vec<Arc<Entry>> = if name.is_empty() {
        let chosen = selector(&reference["selector"]).map_err(in_binding)?;
        let snapshot = server.store.snapshot(&kind.collection);
        let chosen = snapshot
            .iter()
            .filter(|entry| object::split_key(&entry.name).0 == namespace && chosen.matches(&entry.head));
        chosen.cloned().collect()
    } else {
        server.store.get(&kind.collection, &object::join_key(&namespace, &name)).into_iter().collect()
    };
    let shown = crate::conversion::entries(server, kind, stored).await;
    let shown = shown.map_err(|_| unknown("not yet synced to use for admission"))?;
    if shown.is_empty() && reference["parameterNotFoundAction"] == "Deny" {
        return Err(in_binding("no params found for policy binding with `Deny` parameterNotFoundAction"));
    }
    let read = |entry: &Arc<Entry>| server.read(kind, entry).map_err(|status| in_binding(&status.message));
    shown.iter().map(read).collect()
}

/// How many variables may wait for each other on the stack. Each may be an expression as deep as the language allows.
const LONGEST_CHAIN: usize = 4;

/// The `variables` of a policy. Each is computed once, when it is first used, and may use earlier ones.
///
/// A policy may have any number of variables, each of which uses the previous one, and stacks do not grow. So a variable that
/// would be too deep is postponed: everything that waits for it is abandoned, it is computed first, and then the rest again.
pub(super) struct Computed<'a> {
    variables: &'a [(String, Expression)],
    base: &'a dyn Fn() -> Variables<'a>,
    known: RefCell<BTreeMap<String, Result<Cel, EvalError>>>,
    /// How many variables are being computed, each on behalf of the previous one.
    depth: Cell<usize>,
    /// The variable that must be computed before all others. While it is set, no result counts.
    put_off: RefCell<Option<String>>,
}

impl<'a> Computed<'a> {
    pub(super) fn new(variables: &'a [(String, Expression)], base: &'a dyn Fn() -> Variables<'a>) -> Self {
        Self {
            variables,
            base,
            known: RefCell::default(),
            depth: Cell::default(),
            put_off: RefCell::default(),
        }
    }

    fn find(&self, name: &str) -> Option<&'a Expression> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, expression)| expression)
    }

    fn compute(&self, name: &str, expression: &Expression, budget: &mut u64) -> Result<Cel, EvalError> {
        // A variable that uses itself finds this, instead of an endless loop.
        self.known.borrow_mut().insert(name.to_owned(), circle(name));
        self.depth.set(self.depth.get().saturating_add(1));
        let variables = (self.base)().set_lazy("variables", self);
        let value = expression
            .value(&variables, budget)
            .map_err(|why| EvalError(format!("composited variable {name:?} fails to evaluate: {why}")));
        self.depth.set(self.depth.get().saturating_sub(1));
        if self.put_off.borrow().is_some() {
            self.known.borrow_mut().remove(name);
        } else {
            self.known.borrow_mut().insert(name.to_owned(), value.clone());
        }
        value
    }
}

fn circle(name: &str) -> Result<Cel, EvalError> {
    Err(EvalError(format!("variable {name} uses itself")))
}

impl Lazy for Computed<'_> {
    fn field(&self, name: &str, budget: &mut u64) -> Option<Result<Cel, EvalError>> {
        if let Some(known) = self.known.borrow().get(name) {
            return Some(known.clone());
        }
        let expression = self.find(name)?;
        if self.depth.get() == LONGEST_CHAIN || self.put_off.borrow().is_some() {
            self.put_off.borrow_mut().get_or_insert_with(|| name.to_owned());
            return Some(Err(EvalError(format!("variable {name} is not computed yet"))));
        }
        if self.depth.get() > 0 {
            return Some(self.compute(name, expression, budget));
        }
        let mut waiting = vec![(name.to_owned(), expression)];
        loop {
            let (name, expression) =
                waiting.last().expect("the variable that was asked for waits to the end");
            let value = self.compute(name, expression, budget);
            match self.put_off.take() {
                Some(first) if waiting.iter().any(|(known, _)| *known == first) => {
                    self.known.borrow_mut().insert(first.clone(), circle(&first));
                }
                Some(first) => {
                    let expression = self.find(&first)?;
                    waiting.push((first, expression));
                }
                None if waiting.len() == 1 => return Some(value),
                None => drop(waiting.pop()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cel::Type;

    use super::super::declarations::Available;
    use super::*;

    fn variable(name: &str, expression: &str, uses: &str) -> (String, Expression) {
        let before = [(uses.to_owned(), Type::Int)];
        let scope = Available { variables: Some(&before), ..Available::default() }.scope();
        (name.to_owned(), Expression::read(expression, &scope))
    }

    fn compute(variables: &[(String, Expression)], name: &str) -> Result<i64, String> {
        let mut budget = BUDGET;
        match Computed::new(variables, &Variables::new).field(name, &mut budget) {
            Some(Ok(Cel::Int(value))) => Ok(value),
            Some(Err(EvalError(why))) => Err(why),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn variables_that_use_each_other_can_be_very_many() {
        let many = 5000;
        let mut variables = vec![variable("v0", "1", "v0")];
        for index in 1..=many {
            let before = format!("v{}", index - 1);
            variables.push(variable(&format!("v{index}"), &format!("variables.{before} + 1"), &before));
        }
        assert_eq!(compute(&variables, &format!("v{many}")), Ok(many + 1));
    }

    #[test]
    fn a_variable_that_is_not_needed_is_not_computed() {
        let mut variables = vec![variable("v0", "1 / 0", "v0")];
        for index in 1..=20 {
            let before = format!("v{}", index - 1);
            variables.push(variable(&format!("v{index}"), &format!("variables.{before} + 1"), &before));
        }
        variables.push(variable("last", "true ? 7 : variables.v20", "v20"));
        assert_eq!(compute(&variables, "last"), Ok(7));
        let why = compute(&variables, "v20").unwrap_err();
        assert!(why.contains("division by zero"), "{why}");
    }

    #[test]
    fn a_circle_of_variables_ends() {
        for length in [1, 3, LONGEST_CHAIN, LONGEST_CHAIN + 1, 3 * LONGEST_CHAIN] {
            let name = |index: usize| format!("v{}", index % length);
            let variables: Vec<_> = (0..length)
                .map(|index| {
                    variable(&name(index), &format!("variables.{} + 1", name(index + 1)), &name(index + 1))
                })
                .collect();
            let why = compute(&variables, "v0").unwrap_err();
            assert!(why.contains("uses itself"), "{length}: {why}");
        }
    }
}
