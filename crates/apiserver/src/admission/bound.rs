//! What validating and mutating policies have in common: which writes they are about, which parameters they get, how
//! their variables are computed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::gvk::Gvk;
use apimachinery::selector::LabelSelector;
use cel::{EvalError, Lazy, Value as Cel, Variables};
use serde_json::Value;

use super::expressions::Expression;
use super::webhooks::{Match, Occasion, Rule, find_rule, match_namespace, match_object, selector};
use crate::object::{self, Entry};

/// What all expressions of one policy may cost for one write.
pub(super) const BUDGET: u64 = 10_000_000;

/// A binding of a policy.
pub(super) struct Binding {
    pub(super) name: String,
    pub(super) constraints: Option<Constraints>,
    pub(super) param_ref: Value,
    /// What a validating policy does with an objection.
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

    /// Says whether the binding lets its policy see a write.
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

/// Which writes are meant: `matchConstraints` and `matchResources`.
pub(super) struct Constraints {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    equivalent: bool,
    namespaces: Result<LabelSelector, String>,
    objects: Result<LabelSelector, String>,
}

pub(super) fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or("").to_owned()
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

    /// Returns how the policy sees a write, if that is one of those that are meant.
    ///
    /// *Errors*: says that the namespace is not there; that counts only where the rules match.
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
        // A binding without rules takes all that its policy takes.
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

/// Words for what is wrong with a policy itself.
pub(super) fn in_policy(why: impl std::fmt::Display) -> String {
    format!("failed to configure policy: {why}")
}

/// Words for what is wrong with one of its bindings.
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
        let api_version = text(given, "apiVersion");
        Some(Self { gvk: Gvk::from_api_version(&api_version, &text(given, "kind")), api_version })
    }

    /// Says why the kind cannot be used, if it is not served.
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

/// Takes from parameters what mutating policies do not see of native ones: upstream knows their kind, but not from them.
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

/// Returns the parameters that a binding names, in the version that the policy names: one value per object, or null for a
/// policy without.
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
    let given = text(reference, "namespace");
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
    let name = text(reference, "name");
    let stored: Vec<Arc<Entry>> = if name.is_empty() {
        let chosen = selector(&reference["selector"]).map_err(in_binding)?;
        let snapshot = server.store.snapshot(&kind.collection);
        let chosen = snapshot.iter().filter(|entry| {
            object::split_key(&entry.name).0 == namespace && chosen.matches(&entry.head.labels[..])
        });
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

/// The `variables` of a policy: each is computed once, when it is first used, and may use those before it.
pub(super) struct Computed<'a> {
    pub(super) variables: &'a [(String, Expression)],
    pub(super) base: &'a dyn Fn() -> Variables<'a>,
    pub(super) known: RefCell<BTreeMap<String, Result<Cel, EvalError>>>,
}

impl<'a> Computed<'a> {
    pub(super) fn new(variables: &'a [(String, Expression)], base: &'a dyn Fn() -> Variables<'a>) -> Self {
        Self { variables, base, known: RefCell::default() }
    }
}

impl Lazy for Computed<'_> {
    fn field(&self, name: &str, budget: &mut u64) -> Option<Result<Cel, EvalError>> {
        if let Some(known) = self.known.borrow().get(name) {
            return Some(known.clone());
        }
        let (_, expression) = self.variables.iter().find(|(known, _)| known == name)?;
        // A variable that asks for itself finds this, not an endless loop.
        let circle = Err(EvalError(format!("variable {name} uses itself")));
        self.known.borrow_mut().insert(name.to_owned(), circle);
        let variables = (self.base)().set_lazy("variables", self);
        let value = expression
            .value(&variables, budget)
            .map_err(|why| EvalError(format!("composited variable {name:?} fails to evaluate: {why}")));
        self.known.borrow_mut().insert(name.to_owned(), value.clone());
        Some(value)
    }
}
