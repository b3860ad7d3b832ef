//! What somebody with bounds may write: checks that need the object itself, since the name of a new one is in no path.

use api::constants::NAMESPACE_SYSTEM;
use api::labels::{SYSTEM, TRUE};
use api::names::execution_space;
use serde_json::Value;

use super::rights::is_lease_of;
use super::{
    AGENT_PREFIX, CertificateRequest, Facts, GENERATOR, GENERATOR_REQUEST, Named, Who, cluster_of_role,
    holds_secrets, is_cluster_name, owns_secret, roles,
};
use crate::Operation;

/// A write, with what is to be stored.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    pub operation: Operation,
    pub group: &'a str,
    pub kind: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub object: &'a Value,
    pub old: Option<&'a Value>,
}

type Verdict = Result<(), String>;

/// Decides about a write that `rights` let pass.
///
/// # Errors
/// If it may not be; with a reason for the user.
pub fn check(who: Who<'_>, write: &Write<'_>, facts: &dyn Facts) -> Verdict {
    if write.operation == Operation::Delete || !write.subresource.is_empty() {
        return Ok(());
    }
    match who {
        Who::Agent(cluster) => agent(cluster, write, facts),
        Who::Generator => generator(write, facts),
        Who::Bootstrap(only) => bootstrap(only, write, facts),
        Who::Nobody => Ok(()),
    }
}

fn agent(cluster: &str, write: &Write<'_>, facts: &dyn Facts) -> Verdict {
    let (object, created) = (write.object, write.operation == Operation::Create);
    match (write.group, write.kind) {
        ("cluster.karmada.io", "Cluster") => own_cluster(cluster, write, facts),
        ("coordination.k8s.io", "Lease") if created => {
            let message = format!("the agent of cluster {cluster:?} has Leases of its own name only");
            is_lease_of(cluster, write.namespace, write.name).then_some(()).ok_or(message)
        }
        ("", "Secret") if created => {
            if !holds_secrets(write.namespace, facts)
                || !owns_secret(cluster, write.namespace, write.name, facts)
            {
                return Err(format!(
                    "Secret {:?} does not belong to cluster {cluster:?}; choose another name or namespace",
                    write.name
                ));
            }
            // Some types make others write credentials into a Secret.
            match object["type"].as_str() {
                None | Some("" | "Opaque") => Ok(()),
                Some(other) => Err(format!("an agent's Secret is Opaque, not {other:?}")),
            }
        }
        ("" | "events.k8s.io", "Event") => {
            let own = [Some(object), write.old];
            match own.into_iter().flatten().all(|event| is_event_of(cluster, event, facts)) {
                true => Ok(()),
                false => Err(format!(
                    "the agent of cluster {cluster:?} writes Events about its Cluster, its Works, its Leases, and what goes to its cluster"
                )),
            }
        }
        ("certificates.k8s.io", "CertificateSigningRequest") if created => {
            let own = format!("{AGENT_PREFIX}{cluster}");
            match CertificateRequest::read(object) {
                Some(request) if request.common_name == own => Ok(()),
                _ => Err(format!("an agent asks for certificates of its own name, {own:?}, only")),
            }
        }
        _ => Ok(()),
    }
}

/// What attracts workloads, or keeps them away, is for administrators to say. And a member has one name: the agent itself cannot
/// look for another, since it sees no Cluster but its own.
fn own_cluster(cluster: &str, write: &Write<'_>, facts: &dyn Facts) -> Verdict {
    let (new, old) = (write.object, write.old.unwrap_or(&Value::Null));
    if write.name != cluster {
        return Err(format!("cluster {:?} is not that of this agent", write.name));
    }
    if new["spec"].get("syncMode").is_none_or(|mode| mode != "Pull") {
        return Err("an agent registers its cluster in pull mode".to_owned());
    }
    for (pointer, what) in [
        ("/metadata/labels", "labels"),
        ("/metadata/finalizers", "finalizers"),
        ("/metadata/ownerReferences", "owners"),
        ("/spec/taints", "taints"),
    ] {
        let is_empty = |value: Option<&Value>| match value {
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            other => other.is_none_or(Value::is_null),
        };
        let (is, was) = (new.pointer(pointer), old.pointer(pointer));
        if is != was && !(is_empty(is) && is_empty(was)) {
            return Err(format!("an agent does not change the {what} of its cluster"));
        }
    }
    let id = new["spec"].get("id").and_then(Value::as_str).unwrap_or("");
    if !id.is_empty() && new["spec"].get("id") != old["spec"].get("id") {
        let mut others = facts.registered_with(id);
        others.retain(|other| other != cluster);
        if let Some(other) = others.first() {
            return Err(format!(
                "the cluster ID {id} has been registered with name {other:?}; unregister it there first"
            ));
        }
    }
    Ok(())
}

/// Returns whether an Event is about something that an agent has to do with.
fn is_event_of(cluster: &str, event: &Value, facts: &dyn Facts) -> bool {
    // The two groups call it differently.
    let about = event.get("involvedObject").or_else(|| event.get("regarding")).unwrap_or(&Value::Null);
    let text = |field: &str| about[field].as_str().unwrap_or("");
    let named = Named { kind: text("kind"), namespace: text("namespace"), name: text("name") };
    (named.kind == "Cluster" && named.namespace.is_empty() && named.name == cluster)
        || named.namespace == execution_space(cluster)
        // Go's election tells of each change of its Lease.
        || (named.kind == "Lease" && is_lease_of(cluster, named.namespace, named.name))
        || facts.is_propagated(cluster, named)
}

fn bootstrap(only: Option<&str>, write: &Write<'_>, facts: &dyn Facts) -> Verdict {
    if write.operation != Operation::Create || write.kind != "CertificateSigningRequest" {
        return Ok(());
    }
    let request = CertificateRequest::read(write.object)
        .ok_or("a bootstrap token may ask for certificates of agents only")?;
    if request.common_name == GENERATOR {
        return match only.filter(|only| !is_generator_request(only, write.name)) {
            Some(only) => Err(format!(
                "the token is for cluster {only:?}; the request is to be named {GENERATOR_REQUEST}{only} and five characters"
            )),
            None => Ok(()),
        };
    }
    let cluster = request.common_name.strip_prefix(AGENT_PREFIX).unwrap_or("");
    if !is_cluster_name(cluster) {
        return Err(format!("{:?} is not the name of an agent", request.common_name));
    }
    match only.filter(|only| *only != cluster) {
        Some(only) => Err(format!("the token is for cluster {only:?}, not for {cluster:?}")),
        None => free(cluster, facts),
    }
}

/// Returns whether `register` names the generator's request so for a cluster: five characters follow, without a dash.
fn is_generator_request(cluster: &str, name: &str) -> bool {
    let rest = name.strip_prefix(GENERATOR_REQUEST).and_then(|rest| rest.strip_prefix(cluster));
    rest.is_some_and(|rest| rest.len() == 5 && rest.chars().all(|c| c.is_ascii_alphanumeric()))
}

fn free(cluster: &str, facts: &dyn Facts) -> Verdict {
    match facts.is_registered(cluster) {
        true => Err(format!("cluster {cluster:?} is registered already")),
        false => Ok(()),
    }
}

fn generator(write: &Write<'_>, facts: &dyn Facts) -> Verdict {
    if write.operation != Operation::Create {
        return Err("roles of agents are created and deleted, not changed".to_owned());
    }
    let object = write.object;
    match write.kind {
        "Namespace" => new_namespace(write, facts),
        "ClusterRole" | "Role" => {
            let (cluster, wanted) = wanted_rules(write, facts)?;
            free(&cluster, facts)?;
            let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
            let plain = labels.is_none_or(|labels| labels.keys().all(|label| label == SYSTEM));
            let aggregates = object.get("aggregationRule").is_some_and(|rule| !rule.is_null());
            if !plain || aggregates {
                return Err("the role of an agent must not be part of another role".to_owned());
            }
            match covered(&object["rules"], &wanted) {
                true => Ok(()),
                false => Err("the role gives more than an agent needs".to_owned()),
            }
        }
        "ClusterRoleBinding" | "RoleBinding" => {
            let (cluster, _) = wanted_rules(write, facts)?;
            free(&cluster, facts)?;
            let kind = write.kind.strip_suffix("Binding").unwrap_or("");
            let fits = object["roleRef"] == roles::role_ref(kind, write.name)
                && object["subjects"] == roles::subjects(&cluster);
            fits.then_some(()).ok_or_else(|| "the binding is not that of an agent to its role".to_owned())
        }
        _ => Err("only roles of agents may be written".to_owned()),
    }
}

fn new_namespace(write: &Write<'_>, facts: &dyn Facts) -> Verdict {
    if let Some(cluster) = api::names::cluster_of_execution_space(write.name) {
        return free(cluster, facts);
    }
    let label = write.object.pointer("/metadata/labels").map(|labels| &labels[SYSTEM]);
    let fits = label.is_some_and(|label| label == TRUE)
        && write.name != NAMESPACE_SYSTEM
        && !write.name.starts_with("kube-");
    fits.then_some(()).ok_or_else(|| "the namespace of agents has the label of the system".to_owned())
}

/// Returns the cluster of a role or binding, and the rules that its role may have at most.
fn wanted_rules(write: &Write<'_>, facts: &dyn Facts) -> Result<(String, Value), String> {
    let found = if write.namespace.is_empty() {
        cluster_of_role(write.name, "agent").map(|cluster| (cluster, roles::cluster_rules(cluster)))
    } else if let Some(cluster) = cluster_of_role(write.name, "agent-work") {
        (write.namespace == execution_space(cluster)).then(|| (cluster, roles::work_rules()))
    } else {
        let named = cluster_of_role(write.name, "agent-secret");
        named
            .filter(|_| holds_secrets(write.namespace, facts))
            .map(|cluster| (cluster, roles::secret_rules(cluster)))
    };
    let (cluster, rules) = found.ok_or_else(|| format!("{:?} is not a role of an agent here", write.name))?;
    Ok((cluster.to_owned(), rules))
}

/// Returns whether every rule gives no more than one of those that are known.
fn covered(rules: &Value, known: &Value) -> bool {
    let list = |rule: &Value, field: &str| -> Vec<String> {
        let items = rule[field].as_array().into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let within = |rule: &Value, wide: &Value, field: &str| {
        let wide = list(wide, field);
        list(rule, field).iter().all(|item| wide.contains(item))
    };
    let fits = |rule: &Value, wide: &Value| {
        let names = (list(rule, "resourceNames"), list(wide, "resourceNames"));
        ["apiGroups", "resources", "verbs"].iter().all(|field| within(rule, wide, field))
            && list(rule, "nonResourceURLs").is_empty()
            && (names.1.is_empty() || (!names.0.is_empty() && within(rule, wide, "resourceNames")))
    };
    let known = known.as_array().cloned().unwrap_or_default();
    rules.as_array().into_iter().flatten().all(|rule| known.iter().any(|wide| fits(rule, wide)))
}
