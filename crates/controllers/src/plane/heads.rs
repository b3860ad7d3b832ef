//! How a template lies in the mirror: whole if a policy claims it, else its head alone, both as compact JSON.
//!
//! Most objects of a control plane are nobody's template, many are Secrets. Of those, the detector needs what policies
//! select by (kind, namespace, name, labels) and whether anything has changed. So the mirror keeps their metadata and a
//! digest of the rest; whoever needs the rest asks the API ([`super::templates::Templates::fetch`]).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use api::labels::{CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, PROPAGATION_POLICY_PERMANENT_ID};
use propagation::Object;
use propagation::activation::{self, specification_changed};
use serde_json::{Map, Value, json};

/// Where a head keeps the digest of its object. No field of a Kubernetes object has such a name.
const DIGEST: &str = "/digest";

/// A template in the mirror.
#[derive(Debug)]
pub(super) enum Mirrored {
    /// JSON of the template.
    Whole(Box<[u8]>),
    /// JSON of its head.
    Head(Box<[u8]>),
}

impl Mirrored {
    pub(super) fn new(template: Value) -> Self {
        // Namespaces are mirrored to all clusters, claimed or not.
        let needed = is_claimed(&template) || template.kind() == "Namespace";
        if needed { Self::Whole(written(&template)) } else { Self::Head(written(&head(template))) }
    }

    /// Returns the template, or its head.
    pub(super) fn value(&self) -> Arc<Value> {
        let (Self::Whole(text) | Self::Head(text)) = self;
        Arc::new(serde_json::from_slice(text).unwrap_or_default())
    }

    /// Returns the template as it was before `newer` came: when nothing that counts has changed, this is `newer` itself, whether
    /// the one or the other is a head.
    pub(super) fn value_before(&self, newer: &Arc<Value>) -> Arc<Value> {
        let older = self.value();
        // Of two that are whole the reader can tell himself.
        let unchanged = is_head(&older)
            && digest_of(&older) == digest_of(newer)
            && !specification_changed(&metadata(&older), &metadata(newer));
        if unchanged { Arc::clone(newer) } else { older }
    }
}

/// Returns whether this is the head of a template and not the whole of it.
pub(super) fn is_head(template: &Value) -> bool {
    template.get(DIGEST).is_some()
}

/// Returns whether the change from `old` to `new` consists of our own marks alone, whether the one or the other is a head:
/// what a policy claims becomes whole by it.
pub(super) fn changed_by_karmada(old: &Value, new: &Value) -> bool {
    if is_head(old) || is_head(new) {
        return digest_of(old) == digest_of(new)
            && activation::changed_by_karmada(&metadata(old), &metadata(new));
    }
    activation::changed_by_karmada(old, new)
}

fn metadata(template: &Value) -> Value {
    json!({ "metadata": template["metadata"] })
}

fn digest_of(template: &Value) -> u64 {
    template.get(DIGEST).and_then(Value::as_u64).unwrap_or_else(|| digest(template))
}

fn is_claimed(template: &Value) -> bool {
    [PROPAGATION_POLICY_PERMANENT_ID, CLUSTER_PROPAGATION_POLICY_PERMANENT_ID]
        .into_iter()
        .any(|label| template.label(label).is_some())
}

fn written(value: &Value) -> Box<[u8]> {
    serde_json::to_vec(value).expect("a tree can be written to memory").into_boxed_slice()
}

fn head(template: Value) -> Value {
    let digest = digest(&template);
    let mut head = Map::new();
    if let Value::Object(fields) = template {
        head.extend(
            fields
                .into_iter()
                .filter(|(name, _)| matches!(name.as_str(), "apiVersion" | "kind" | "metadata")),
        );
    }
    head.insert(DIGEST.to_owned(), digest.into());
    Value::Object(head)
}

/// A number that differs when what counts of the template besides its metadata differs. It lives as long as the process.
fn digest(template: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    let counting = template
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "metadata" && *name != "status");
    for (name, value) in counting {
        name.hash(&mut hasher);
        serde_json::to_vec(value).expect("a tree can be written to memory").hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(version: &str, data: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "data": {"k": data},
            "metadata": {"name": "a", "namespace": "n", "labels": {"l": "v"}, "resourceVersion": version}})
    }

    #[test]
    fn of_a_secret_that_nobody_propagates_no_data_stays() {
        let kept = Mirrored::new(secret("1", "c2VjcmV0"));
        assert!(is_head(&kept.value()));
        assert_eq!(kept.value().label("l"), Some("v"));
        assert!(!format!("{:?}", kept.value()).contains("c2VjcmV0"));
    }

    #[test]
    fn a_claimed_template_is_kept_whole() {
        let mut claimed = secret("1", "eA==");
        claimed["metadata"]["labels"][PROPAGATION_POLICY_PERMANENT_ID] = "id".into();
        assert_eq!(*Mirrored::new(claimed.clone()).value(), claimed);
    }

    #[test]
    fn a_change_of_what_is_not_kept_is_noticed() {
        let old = Mirrored::new(secret("1", "eA=="));
        let new = Mirrored::new(secret("2", "eQ==")).value();
        assert!(specification_changed(&old.value_before(&new), &new));
    }

    #[test]
    fn a_change_of_the_version_alone_is_no_change() {
        let old = Mirrored::new(secret("1", "eA=="));
        let head = Mirrored::new(secret("2", "eA==")).value();
        assert!(!specification_changed(&old.value_before(&head), &head));
        let whole = Arc::new(secret("2", "eA=="));
        assert!(!specification_changed(&old.value_before(&whole), &whole));
    }

    #[test]
    fn a_claim_is_told_from_what_a_user_does_although_only_the_head_is_known() {
        let mirrored = |template: &Value| Mirrored::new(template.clone()).value();
        let mut template = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1},
            "metadata": {"name": "a", "generation": 1}});
        let head = mirrored(&template);
        assert!(is_head(&head));
        template["metadata"]["generation"] = 2.into();
        template["metadata"]["labels"] = json!({PROPAGATION_POLICY_PERMANENT_ID: "u"});
        template["metadata"]["annotations"] = json!({"propagationpolicy.karmada.io/name": "p"});
        assert!(!is_head(&mirrored(&template)));
        assert!(changed_by_karmada(&head, &mirrored(&template)));
        let mut touched = template.clone();
        touched["metadata"]["annotations"]["touched"] = "by the user".into();
        assert!(!changed_by_karmada(&head, &mirrored(&touched)));
        template["spec"]["replicas"] = 2.into();
        assert!(!changed_by_karmada(&head, &mirrored(&template)));
    }
}
