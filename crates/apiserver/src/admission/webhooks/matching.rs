//! Which webhooks a write matches, and in which version they see it.

use std::borrow::Cow;
use std::sync::Arc;

use apimachinery::gvk::{GroupResource, Gvk};
use apimachinery::selector::LabelSelector;
use apimachinery::status::Status;
use serde_json::Value;

use super::Occasion;
use super::configuration::Hook;
use crate::admission::Operation;
use crate::admission::expressions::{self, Sight};
use crate::registry::Kind;

/// The operations and resources that a webhook or a policy matches.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    scope: String,
    /// Only policies have names of objects.
    names: Vec<String>,
}

/// A resource in one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resource {
    pub group: String,
    pub version: String,
    pub resource: String,
}

impl Resource {
    pub(crate) fn of(kind: &Kind) -> Self {
        Self {
            group: kind.gvk.group.clone(),
            version: kind.gvk.version.clone(),
            resource: kind.resource.resource.clone(),
        }
    }
}

/// How a webhook sees a write.
#[derive(Debug, Clone)]
pub(crate) struct Match {
    pub resource: Resource,
    pub gvk: Gvk,
    /// Set if the webhook wants another version than the client used.
    pub other: Option<Arc<Kind>>,
}

impl Match {
    /// The write as the client sent it.
    pub(crate) fn own(occasion: &Occasion<'_>) -> Self {
        Self { resource: Resource::of(occasion.kind), gvk: occasion.gvk.clone(), other: None }
    }
}

/// A write in the version that a webhook or policy wants.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    pub found: Match,
    pub object: Option<Cow<'a, Value>>,
    pub old: Option<Cow<'a, Value>>,
}

impl<'a> Seen<'a> {
    pub(crate) async fn convert(
        occasion: &Occasion<'_>,
        found: &Match,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> Result<Self, Status> {
        Ok(Self {
            found: found.clone(),
            old: convert(occasion, found, old).await?,
            object: convert(occasion, found, object).await?,
        })
    }
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn any(items: &[String], wanted: &str) -> bool {
    items.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    pub(crate) fn read(rule: &Value) -> Self {
        Self {
            operations: texts(&rule["operations"]),
            groups: texts(&rule["apiGroups"]),
            versions: texts(&rule["apiVersions"]),
            resources: texts(&rule["resources"]),
            scope: rule["scope"].as_str().unwrap_or("*").to_owned(),
            names: texts(&rule["resourceNames"]),
        }
    }

    pub(crate) fn matches(&self, occasion: &Occasion<'_>, resource: &Resource) -> bool {
        let namespaced = occasion.kind.namespaced && !occasion.namespace.is_empty();
        let scope = match self.scope.as_str() {
            "Namespaced" => namespaced,
            "Cluster" => !namespaced,
            _ => true,
        };
        scope
            && any(&self.operations, occasion.operation.name())
            && any(&self.groups, &resource.group)
            && any(&self.versions, &resource.version)
            && (self.names.is_empty() || self.names.iter().any(|name| name == occasion.name))
            && self.resources.iter().any(|pattern| {
                let (name, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
                (name == "*" || name == resource.resource) && (sub == "*" || sub == occasion.subresource)
            })
    }
}

/// Returns how the webhook sees the write, if the webhook must be called. Its conditions see the same version as the webhook.
pub(super) async fn find(
    hook: &Hook,
    occasion: &Occasion<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<Option<Match>, Status> {
    // An unreadable namespace or selector counts only for webhooks whose rules match.
    let by_namespace = match_namespace(&hook.namespaces, occasion, object);
    if matches!(by_namespace, Ok(false)) {
        return Ok(None);
    }
    let by_object = match_object(&hook.objects, object, old);
    if matches!(by_object, Ok(false)) {
        return Ok(None);
    }
    let found = find_rule(&hook.rules, hook.equivalent, occasion);
    let Some(found) = found else { return Ok(None) };
    by_namespace?;
    by_object?;
    if hook.conditions.is_empty() {
        return Ok(Some(found));
    }
    let seen = Seen::convert(occasion, &found, object, old).await;
    let seen = seen.map_err(|status| Status::internal(status.message))?;
    let holds = hook.conditions.hold(&Sight::new(occasion, &seen).of_conditions());
    match holds {
        Ok(true) => Ok(Some(found)),
        Ok(false) => Ok(None),
        Err(_) if hook.ignore_failure => Ok(None),
        Err(why) => Err(expressions::refused(occasion, &why)),
    }
}

/// Returns the version of the write that one of the rules matches.
pub(crate) fn find_rule(rules: &[Rule], equivalent: bool, occasion: &Occasion<'_>) -> Option<Match> {
    let own = Resource::of(occasion.kind);
    if rules.iter().any(|rule| rule.matches(occasion, &own)) {
        return Some(Match { resource: own, gvk: occasion.gvk.clone(), other: None });
    }
    if !equivalent {
        return None;
    }
    let others = equivalents(occasion);
    for rule in rules {
        for other in &others {
            let resource = Resource::of(other);
            if rule.matches(occasion, &resource) {
                // A subresource with a separate kind is the same in all versions.
                let same = *occasion.gvk != occasion.kind.gvk;
                let gvk = if same { occasion.gvk.clone() } else { other.gvk.clone() };
                return Some(Match { resource, gvk, other: (!same).then(|| other.clone()) });
            }
        }
    }
    None
}

/// Returns the other versions of the same object, in the order in which rules are tried on them: native versions by preference,
/// custom ones in the order of their definition.
fn equivalents(occasion: &Occasion<'_>) -> Vec<Arc<Kind>> {
    let registry = occasion.server.registry.load_full();
    let mut others: Vec<Arc<Kind>> = registry
        .kinds()
        .filter(|kind| kind.collection == occasion.kind.collection && kind.gvk != occasion.kind.gvk)
        .filter(|kind| occasion.subresource.is_empty() || kind.subresource(occasion.subresource).is_some())
        .cloned()
        .collect();
    if let Some(custom) = occasion.kind.custom() {
        let place = |kind: &Kind| custom.versions.iter().position(|version| version.name == kind.gvk.version);
        others.sort_by_key(|kind| place(kind));
        return others;
    }
    others.sort_by(|a, b| {
        a.gvk
            .group
            .cmp(&b.gvk.group)
            .then_with(|| crate::registry::version_order(&a.gvk.version, &b.gvk.version))
    });
    others
}

/// Returns whether the namespace of a write has the labels. Objects without a namespace always match.
pub(crate) fn match_namespace(
    selector: &Result<LabelSelector, String>,
    occasion: &Occasion<'_>,
    object: Option<&Value>,
) -> Result<bool, Status> {
    let is_namespace = occasion.kind.is_namespace();
    if occasion.namespace.is_empty() && !is_namespace {
        return Ok(true);
    }
    let selector = selector.as_ref().map_err(Status::internal)?;
    if selector.is_everything() {
        return Ok(true);
    }
    if is_namespace
        && occasion.subresource.is_empty()
        && matches!(occasion.operation, Operation::Create | Operation::Update)
    {
        return Ok(object.is_some_and(|object| labelled(selector, object)));
    }
    let name = if is_namespace { occasion.name } else { occasion.namespace };
    match occasion.server.store.get("namespaces", name) {
        Some(entry) => Ok(selector.matches(&entry.head)),
        None => Err(Status::not_found(&GroupResource::new("", "namespaces"), name)),
    }
}

/// Returns whether the old or the new object has the labels.
pub(crate) fn match_object(
    selector: &Result<LabelSelector, String>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<bool, Status> {
    let selector = selector.as_ref().map_err(Status::internal)?;
    if selector.is_everything() {
        return Ok(true);
    }
    Ok([object, old].into_iter().flatten().any(|object| labelled(selector, object)))
}

fn labelled(selector: &LabelSelector, object: &Value) -> bool {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let mut pairs: Vec<(Box<str>, Box<str>)> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())))
        .collect();
    pairs.sort();
    selector.matches(&pairs[..])
}

/// Returns an object in the version that the webhook wants.
async fn convert<'a>(
    occasion: &Occasion<'_>,
    found: &Match,
    object: Option<&'a Value>,
) -> Result<Option<Cow<'a, Value>>, Status> {
    let Some(object) = object else { return Ok(None) };
    let Some(other) = &found.other else { return Ok(Some(Cow::Borrowed(object))) };
    crate::conversion::between(occasion.server, occasion.kind, other, object.clone())
        .await
        .map(|converted| Some(Cow::Owned(converted)))
}

/// Returns a patched object in the version that the client used.
pub(crate) async fn convert_back(
    occasion: &Occasion<'_>,
    found: &Match,
    object: Value,
) -> Result<Value, Status> {
    let Some(other) = &found.other else { return Ok(object) };
    crate::conversion::between(occasion.server, other, occasion.kind, object).await
}
