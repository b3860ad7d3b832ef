//! Whether a definition in one of Kubernetes' own groups has been approved there, as its condition tells.

use serde_json::Value;

use super::Condition;

const ANNOTATION: &str = "api-approved.kubernetes.io";
const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// Returns the condition `KubernetesAPIApprovalPolicyConformant`; none for groups that anybody may use.
pub fn approval_condition(crd: &Value) -> Option<Condition> {
    let group = crd.pointer("/spec/group").and_then(Value::as_str).unwrap_or_default();
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|suffix| group.strip_suffix(suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
    if !protected {
        return None;
    }
    let annotations = crd.pointer("/metadata/annotations");
    let given = annotations.and_then(|all| all.get(ANNOTATION)).and_then(Value::as_str).unwrap_or_default();
    let is_url = given.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && !rest.split('/').next().unwrap_or_default().is_empty()
    });
    let (status, reason, message) = if given.is_empty() {
        let message = format!("protected groups must have approval annotation \"{ANNOTATION}\", {SEE}");
        ("False", "MissingAnnotation", message)
    } else if given.starts_with("unapproved") {
        ("False", "UnapprovedAnnotation", format!("not approved: {given:?}"))
    } else if is_url {
        ("True", "ApprovedAnnotation", format!("approved in {given}"))
    } else {
        let message = format!(
            "protected groups must have approval annotation \"{ANNOTATION}\" with either a URL or a reason starting with \"unapproved\", {SEE}"
        );
        ("False", "InvalidAnnotation", message)
    };
    let kind = "KubernetesAPIApprovalPolicyConformant";
    Some(Condition { kind, status, reason: reason.to_owned(), message })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_kubernetes_own_groups_need_approval() {
        let crd = |group: &str, given: &str| json!({"metadata": {"annotations": {ANNOTATION: given}}, "spec": {"group": group}});
        assert!(approval_condition(&crd("example.com", "")).is_none());
        assert!(approval_condition(&crd("notk8s.io", "")).is_none());
        let reason = |given: &str| approval_condition(&crd("sigs.k8s.io", given)).expect("protected").reason;
        assert_eq!(reason("https://example.com/review"), "ApprovedAnnotation");
        assert_eq!(reason("unapproved, testing"), "UnapprovedAnnotation");
        assert_eq!(reason("somebody said so"), "InvalidAnnotation");
        assert_eq!(reason(""), "MissingAnnotation");
    }
}
