//! Whether a resource selector picks an object, and how specifically.

use api::policy::ResourceSelector;
use apimachinery::selector::LabelSelector;
use serde_json::Value;

use crate::Object;

/// How specifically a selector names an object; more specific is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImplicitPriority {
    MatchAll = 1,
    MatchLabelSelector = 2,
    MatchName = 3,
}

/// A resource selector, its label selector parsed once.
#[derive(Debug, Clone)]
pub struct Selector {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    labels: Labels,
}

#[derive(Debug, Clone)]
enum Labels {
    Any,
    Selected(LabelSelector),
    /// An invalid label selector matches nothing.
    Invalid,
}

impl Selector {
    pub fn new(selector: &ResourceSelector) -> Self {
        let labels = match &selector.label_selector {
            None => Labels::Any,
            Some(selector) => serde_json::to_value(selector)
                .ok()
                .and_then(|selector| LabelSelector::from_object(Some(&selector)).ok())
                .map_or(Labels::Invalid, Labels::Selected),
        };
        Self {
            api_version: selector.api_version.clone(),
            kind: selector.kind.clone(),
            namespace: selector.namespace.clone(),
            name: selector.name.clone(),
            labels,
        }
    }

    /// Returns how specifically the object is picked, `None` when it is not. A name makes the label selector
    /// irrelevant.
    pub fn matches(&self, object: &Value) -> Option<ImplicitPriority> {
        if self.api_version != object.api_version()
            || self.kind != object.kind()
            || !(self.namespace.is_empty() || self.namespace == object.namespace())
        {
            return None;
        }
        if !self.name.is_empty() {
            return (self.name == object.name()).then_some(ImplicitPriority::MatchName);
        }
        match &self.labels {
            Labels::Any => Some(ImplicitPriority::MatchAll),
            Labels::Selected(selector) => {
                selector.matches(object.labels()).then_some(ImplicitPriority::MatchLabelSelector)
            }
            Labels::Invalid => None,
        }
    }
}

/// Returns the most specific way in which any of the selectors picks the object.
pub fn matches_any(selectors: &[ResourceSelector], object: &Value) -> Option<ImplicitPriority> {
    selectors.iter().filter_map(|selector| Selector::new(selector).matches(object)).max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(selector: Value, expected: Option<ImplicitPriority>) {
        let selector: ResourceSelector = serde_json::from_value(selector).expect("a selector");
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"namespace": "shop", "name": "web", "labels": {"app": "web"}},
        });
        assert_eq!(Selector::new(&selector).matches(&object), expected, "{selector:?}");
    }

    #[test]
    fn a_selector_picks_by_kind_namespace_then_name_or_labels() {
        use ImplicitPriority::*;
        let kind = |more: Value| {
            let mut selector = json!({"apiVersion": "apps/v1", "kind": "Deployment"});
            selector.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            selector
        };
        check(kind(json!({})), Some(MatchAll));
        check(kind(json!({"namespace": "shop"})), Some(MatchAll));
        check(kind(json!({"namespace": "other"})), None);
        check(kind(json!({"name": "web"})), Some(MatchName));
        check(kind(json!({"name": "db"})), None);
        check(kind(json!({"labelSelector": {"matchLabels": {"app": "web"}}})), Some(MatchLabelSelector));
        check(kind(json!({"labelSelector": {"matchLabels": {"app": "db"}}})), None);
        check(kind(json!({"labelSelector": {}})), Some(MatchLabelSelector));
        check(kind(json!({"name": "web", "labelSelector": {"matchLabels": {"app": "db"}}})), Some(MatchName));
        let odd = json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["w"]}]});
        check(kind(json!({"labelSelector": odd})), None);
        check(json!({"apiVersion": "apps/v1beta1", "kind": "Deployment"}), None);
        check(json!({"apiVersion": "apps/v1", "kind": "deployment"}), None);
    }
}
