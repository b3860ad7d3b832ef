//! How the mirror stores a template: whole if a policy claims it, otherwise only its head, both as compact
//! JSON.
//!
//! Most objects of a control plane are not propagated, and many are Secrets. For those, the detector needs
//! only what policies select by (kind, namespace, name, labels) and whether anything has changed. So the
//! mirror keeps their metadata and a digest of the rest; code that needs the rest reads it from the API
//! ([`super::templates::Templates::fetch`]).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use api::labels::{CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, PROPAGATION_POLICY_PERMANENT_ID};
use apimachinery::gvk::Gvk;
use propagation::Object;
use propagation::activation::{self, specification_changed};
use serde_json::{Value, json};

/// Where a head keeps the digest of its object. No field of a Kubernetes object has such a name.
const DIGEST: &str = "/digest";
/// It never changes, and nothing selects by it.
const CREATED: &str = "creationTimestamp";

/// A template in the mirror.
#[derive(Debug)]
pub(super) enum Mirrored {
    /// JSON of the template.
    Whole(Box<[u8]>),
    /// JSON of its head. There may be very many, so it leaves out what is known from elsewhere.
    Head(Box<[u8]>),
}

impl Mirrored {
    pub(super) fn new(template: Value) -> Self {
        // Namespaces are mirrored to all clusters, claimed or not.
        let needed = is_claimed(&template) || template.kind() == "Namespace";
        if needed { Self::Whole(written(&template)) } else { Self::Head(written(&head(&template))) }
    }

    /// Returns the template, or its head.
    pub(super) fn value(&self, kind: &Gvk) -> Arc<Value> {
        let (Self::Whole(text) | Self::Head(text)) = self;
        let mut value: Value = serde_json::from_slice(text).unwrap_or_default();
        if let Self::Head(_) = self {
            value["apiVersion"] = kind.api_version().into();
            value["kind"] = kind.kind.as_str().into();
        }
        Arc::new(value)
    }

    /// Returns the template as it was before `newer` came: if nothing relevant has changed, this is `newer`
    /// itself, even if either of them is a head.
    pub(super) fn value_before(&self, newer: &Arc<Value>, kind: &Gvk) -> Arc<Value> {
        let older = self.value(kind);
        // The reader can compare two whole templates itself.
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

/// Returns whether only our own labels and annotations changed from `old` to `new`, even if either of them is
/// a head: a claim turns a head into a whole template.
pub(super) fn changed_by_karmada(old: &Value, new: &Value) -> bool {
    if is_head(old) || is_head(new) {
        return digest_of(old) == digest_of(new)
            && activation::changed_by_karmada(&metadata(old), &metadata(new));
    }
    activation::changed_by_karmada(old, new)
}

/// Returns the relevant part of the metadata.
fn metadata(template: &Value) -> Value {
    let mut metadata = template["metadata"].clone();
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove(CREATED);
    }
    json!({ "metadata": metadata })
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
    // Copies into a buffer of the right size: an allocator may not return memory that is only shrunk.
    Box::from(serde_json::to_vec(value).expect("a tree can be written to memory").as_slice())
}

fn head(template: &Value) -> Value {
    let digest = digest(template);
    let mut head = metadata(template);
    head[DIGEST] = digest.into();
    head
}

/// A digest of the relevant part of the template without its metadata. It is valid within one process only.
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

    fn kind(name: &str) -> Gvk {
        Gvk::new("", "v1", name)
    }

    fn secret(version: &str, data: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "data": {"k": data},
            "metadata": {"name": "a", "namespace": "n", "labels": {"l": "v"}, "resourceVersion": version,
                "creationTimestamp": "2026-01-01T00:00:00Z"}})
    }

    #[test]
    fn of_a_secret_that_nobody_propagates_no_data_stays() {
        let kept = Mirrored::new(secret("1", "c2VjcmV0"));
        assert!(is_head(&kept.value(&kind("Secret"))));
        assert_eq!(kept.value(&kind("Secret")).label("l"), Some("v"));
        assert_eq!(
            (kept.value(&kind("Secret")).api_version(), kept.value(&kind("Secret")).kind()),
            ("v1", "Secret")
        );
        assert!(!format!("{:?}", kept.value(&kind("Secret"))).contains("c2VjcmV0"));
    }

    #[test]
    fn a_claimed_template_is_kept_whole() {
        let mut claimed = secret("1", "eA==");
        claimed["metadata"]["labels"][PROPAGATION_POLICY_PERMANENT_ID] = "id".into();
        assert_eq!(*Mirrored::new(claimed.clone()).value(&kind("Secret")), claimed);
    }

    #[test]
    fn a_change_of_what_is_not_kept_is_noticed() {
        let old = Mirrored::new(secret("1", "eA=="));
        let new = Mirrored::new(secret("2", "eQ==")).value(&kind("Secret"));
        assert!(specification_changed(&old.value_before(&new, &kind("Secret")), &new));
    }

    #[test]
    fn a_change_of_the_version_alone_is_no_change() {
        let old = Mirrored::new(secret("1", "eA=="));
        let head = Mirrored::new(secret("2", "eA==")).value(&kind("Secret"));
        assert!(!specification_changed(&old.value_before(&head, &kind("Secret")), &head));
        let whole = Arc::new(secret("2", "eA=="));
        assert!(!specification_changed(&old.value_before(&whole, &kind("Secret")), &whole));
    }

    #[test]
    fn a_claim_is_told_from_what_a_user_does_although_only_the_head_is_known() {
        let mirrored =
            |template: &Value| Mirrored::new(template.clone()).value(&Gvk::new("apps", "v1", "Deployment"));
        let mut template = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1},
            "metadata": {"name": "a", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}});
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
