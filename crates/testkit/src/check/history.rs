//! What must not have happened, by the audit logs of all servers: something wanted was deleted, or a write was repeated.

use std::collections::BTreeMap;

use api::names;
use serde_json::Value;

use super::state::{binding_of, evicting_clusters, text, wanted_clusters};

/// A write that was carried out, as an audit log tells of it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// When the request came, in a form that sorts by time. All servers have the clock of one machine. What a controller does in
    /// reaction to a write comes later than that write.
    at: String,
    /// In whose name it was made, whoever handed it on.
    user: String,
    /// Program and field manager.
    agent: String,
    verb: String,
    target: Target,
    subresource: String,
    sent: Value,
    answered: Value,
}

/// An object, as requests name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    group: String,
    resource: String,
    namespace: String,
    name: String,
}

impl Entry {
    /// Reads a log: the writes that were answered with success. The last line may be on its way.
    pub fn read(log: &str) -> Vec<Self> {
        let mut entries: Vec<Self> = log.lines().filter_map(Self::parse).collect();
        // A log has the order of the answers.
        entries.sort_by(|one, other| one.at.cmp(&other.at));
        entries
    }

    fn parse(line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let code = line["responseStatus"]["code"].as_i64()?;
        if !(200..300).contains(&code) || line["requestURI"].as_str()?.contains("dryRun=") {
            return None;
        }
        let object = &line["objectRef"];
        let reads = ["get", "list", "watch"].contains(&text(&line["verb"]));
        // A test may have its server tell more than `AUDIT_POLICY` asks for.
        let follows_the_time = ["events.k8s.io", "coordination.k8s.io"].contains(&text(&object["apiGroup"]))
            || object["resource"] == "events";
        let goes_on = line["stage"] == "ResponseStarted";
        if reads || follows_the_time || goes_on {
            return None;
        }
        let mut target = Target {
            group: text(&object["apiGroup"]).to_owned(),
            resource: text(&object["resource"]).to_owned(),
            namespace: text(&object["namespace"]).to_owned(),
            name: text(&object["name"]).to_owned(),
        };
        if target.name.is_empty() {
            target.name = text(&line["responseObject"]["metadata"]["name"]).to_owned();
        }
        // A request for a namespace is a request in that namespace; the object itself is in none.
        if target.resource == "namespaces" {
            target.namespace.clear();
        }
        let query = text(&line["requestURI"]).split_once('?').map_or("", |(_, query)| query);
        let manager = query.split('&').find_map(|pair| pair.strip_prefix("fieldManager=")).unwrap_or("");
        let user = ["impersonatedUser", "user"].map(|field| text(&line[field]["username"]));
        Some(Self {
            at: text(&line["requestReceivedTimestamp"]).to_owned(),
            user: user.into_iter().find(|name| !name.is_empty()).unwrap_or("").to_owned(),
            agent: format!("{} {manager}", text(&line["userAgent"])),
            verb: text(&line["verb"]).to_owned(),
            target,
            subresource: text(&object["subresource"]).to_owned(),
            sent: without_revision(line["requestObject"].clone()),
            answered: line["responseObject"].clone(),
        })
    }

    fn is_on(&self, resource: &str) -> bool {
        self.target.resource == resource
    }

    /// Returns the object as the log shows it: the answer, or what was sent where the answer has only metadata, as of writers
    /// that do not want more. What was sent may be a part of the object.
    fn shown(&self) -> &Value {
        if self.answered["spec"].is_object() { &self.answered } else { &self.sent }
    }
}

impl Target {
    fn key(&self) -> String {
        format!("{} {}", self.resource, names::namespaced_key(&self.namespace, &self.name))
    }
}

/// The revision says what the writer has seen, not what it wants.
fn without_revision(mut sent: Value) -> Value {
    if let Some(metadata) = sent.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    sent
}

/// The annotation of a line that stands for lines that were lost.
const LOST: &str = "karmada.io/lost-audit-events";

/// Returns where a log tells that it is not complete: a server that is in a hurry drops lines and says how many. What is judged
/// by such a log is judged by half of what happened.
pub fn lost_lines(place: &str, log: &str) -> Vec<String> {
    let told = log.lines().filter(|line| line.contains(LOST));
    let events = told.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let counts = events.filter_map(|event| event["annotations"][LOST].as_str().map(str::to_owned));
    counts.map(|count| format!("{place}: {count} lines of the audit log were lost")).collect()
}

/// Returns what all logs of a server tell, by time: two processes on one store write at the same time.
pub fn in_order(runs: &[Vec<Entry>]) -> Vec<&Entry> {
    let mut all: Vec<&Entry> = runs.iter().flatten().collect();
    all.sort_by(|one, other| one.at.cmp(&other.at));
    all
}

/// Returns the writes that a controller made twice in a row: the same content on the same object, and nobody else wrote in
/// between. Two runs of a server are judged apart, since a crash may lose what was written last.
pub fn repeated_writes(place: &str, run: &[&Entry], writer: &str) -> Vec<String> {
    let mut last: BTreeMap<&Target, &Entry> = BTreeMap::new();
    let mut complaints = Vec::new();
    for &entry in run {
        let before = last.insert(&entry.target, entry);
        let Some(before) = before.filter(|_| entry.user.ends_with(writer)) else { continue };
        let same_writer = (&before.user, &before.agent) == (&entry.user, &entry.agent);
        let same_request = (&before.verb, &before.subresource, &before.sent)
            == (&entry.verb, &entry.subresource, &entry.sent);
        // Requests that come at the same time may be carried out in another order than they came. A write that made a new version found
        // something else than the one before it had left.
        let version =
            |entry: &Entry| entry.answered["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let made_a_version = match (version(before), version(entry)) {
            (Some(one), Some(other)) => one != other,
            _ => false,
        };
        // What is created a second time was gone in between.
        let changes = ["update", "patch"].contains(&entry.verb.as_str());
        if changes && same_writer && same_request && !made_a_version {
            complaints.push(format!(
                "{place}: {} of {} {} was repeated at {} with the same content: {}",
                entry.verb,
                entry.target.key(),
                entry.subresource,
                entry.at,
                entry.sent
            ));
        }
    }
    complaints
}

/// Returns the objects that controllers deleted in a member although neither their Work nor their template had been deleted before.
pub fn objects_deleted_though_wanted(
    cluster: &str,
    member: &[Vec<Entry>],
    plane: &[Vec<Entry>],
    writer: &str,
) -> Vec<String> {
    let space = names::execution_space(cluster);
    let in_plane = in_order(plane);
    let mut complaints = Vec::new();
    for deleted in
        member.iter().flatten().filter(|entry| entry.verb == "delete" && entry.user.ends_with(writer))
    {
        let allowed = in_plane.iter().take_while(|entry| entry.at < deleted.at).any(|entry| {
            let whole = (entry.is_on("clusters") && entry.target.name == cluster)
                || (entry.is_on("namespaces") && entry.target.name == space);
            let work = entry.is_on("works")
                && entry.target.namespace == space
                && holds(&in_plane, &entry.target, &deleted.target);
            // With the template, or its namespace, the server itself deletes what they own, and no log tells of that.
            let template = entry.target == deleted.target
                || (entry.is_on("namespaces") && entry.target.name == deleted.target.namespace);
            entry.verb == "delete" && (whole || work || template)
        });
        let was_killed = plane.len() > 1;
        if !(allowed || was_killed && had_a_going_work(&in_plane, &space, deleted)) {
            complaints.push(format!(
                "{cluster}: {} was deleted at {} although nobody had deleted its Work or template",
                deleted.target.key(),
                deleted.at
            ));
        }
    }
    complaints
}

/// Whether the Work of an object had begun to go when the object was deleted, by what the log shows of the Work at any time. A server
/// that is killed may have carried out a deletion and not have told of it.
fn had_a_going_work(plane: &[&Entry], space: &str, deleted: &Entry) -> bool {
    plane.iter().filter(|entry| entry.is_on("works") && entry.target.namespace == space).any(|entry| {
        // Whole seconds.
        let began = text(&entry.answered["metadata"]["deletionTimestamp"]).trim_end_matches('Z');
        let had_begun = !began.is_empty() && deleted.at.get(..began.len()).is_some_and(|at| began <= at);
        had_begun && holds(plane, &entry.target, &deleted.target)
    })
}

/// Whether a Work has ever had a manifest of this object.
fn holds(plane: &[&Entry], work: &Target, object: &Target) -> bool {
    plane.iter().filter(|entry| entry.target == *work).any(|entry| {
        let manifests = entry.shown()["spec"]["workload"]["manifests"].as_array();
        manifests.into_iter().flatten().any(|manifest| {
            let metadata = &manifest["metadata"];
            // Requests name the plural: of `Policy` they say `policies`.
            let kind = text(&manifest["kind"]).to_lowercase();
            let stem = &kind[..kind.len().saturating_sub(1)];
            text(&metadata["name"]) == object.name
                && text(&metadata["namespace"]) == object.namespace
                && object.resource.starts_with(stem)
        })
    })
}

/// Returns the Works that controllers deleted although, ever since the Work was made, its binding had wanted its cluster.
pub fn works_deleted_though_wanted(plane: &[Vec<Entry>], writer: &str) -> Vec<String> {
    let all = in_order(plane);
    let mut complaints = Vec::new();
    for (number, deleted) in all.iter().enumerate() {
        if deleted.verb != "delete" || !deleted.is_on("works") || !deleted.user.ends_with(writer) {
            continue;
        }
        let before = &all[..number];
        let of_work = |entry: &&&Entry| entry.target == deleted.target;
        let born = before.iter().rposition(|entry| of_work(&entry) && entry.verb == "create").unwrap_or(0);
        // The last that shows manifests: of what became of them later, the log has parts.
        let is_whole = |entry: &&&Entry| of_work(entry) && entry.shown()["spec"]["workload"].is_object();
        let Some(work) = before.iter().rfind(is_whole).map(|entry| entry.shown()) else {
            continue;
        };
        // Works of owners go with their owners.
        let Some((kind, namespace, name)) = binding_of(work) else { continue };
        let Some(cluster) = names::cluster_of_execution_space(&deleted.target.namespace) else { continue };
        let resource = format!("{}s", kind.to_lowercase());
        let of_binding = |entry: &&Entry| {
            entry.is_on(&resource) && entry.target.namespace == namespace && entry.target.name == name
        };
        let of_template = |entry: &&Entry| is_of_template(entry, work);
        let gives_up = |entry: &&Entry| entry.verb == "delete" || !wants(entry.shown(), cluster);
        // A Work may be made after its binding has changed its mind, by a controller that had not seen that yet.
        let at_birth = before[..born]
            .iter()
            .rfind(|entry| of_binding(entry) && (entry.verb == "delete" || tells(entry.shown())));
        let given_up = at_birth.is_some_and(gives_up);
        let given_up = given_up
            || before[born..].iter().any(|entry| {
                if of_binding(entry) {
                    gives_up(entry)
                } else {
                    // A whole collection, a namespace, a cluster, or the template itself: what hangs on it goes without a word.
                    entry.verb == "deletecollection"
                        || (entry.verb == "delete"
                            && (of_template(entry) || is_above(entry, cluster, namespace)))
                }
            });
        if !given_up {
            complaints.push(format!(
                "{} was deleted at {} although {kind} {} has wanted {cluster} all the time",
                deleted.target.key(),
                deleted.at,
                names::namespaced_key(namespace, name)
            ));
        }
    }
    complaints
}

/// Whether a binding, or the part of it that was written, wants a cluster. A part that does not say leaves it as it was.
fn wants(binding: &Value, cluster: &str) -> bool {
    let going = binding["metadata"]["deletionTimestamp"].is_string();
    let evicting = evicting_clusters(binding).any(|evicting| evicting == cluster);
    !going && !evicting && (!tells(binding) || wanted_clusters(binding).contains(&cluster))
}

/// Whether a binding, or the part of it that was written, says which clusters it wants.
fn tells(binding: &Value) -> bool {
    let chosen = ["clusters", "requiredBy"].iter().any(|field| binding["spec"].get(field).is_some());
    // A whole binding without either wants no cluster; it has its object.
    chosen || binding["spec"]["resource"].is_object()
}

fn is_above(entry: &Entry, cluster: &str, namespace: &str) -> bool {
    (entry.is_on("namespaces") && entry.target.name == namespace)
        || (entry.is_on("namespaces") && entry.target.name == names::execution_space(cluster))
        || (entry.is_on("clusters") && entry.target.name == cluster)
}

fn is_of_template(entry: &Entry, work: &Value) -> bool {
    let manifests = work["spec"]["workload"]["manifests"].as_array();
    manifests.into_iter().flatten().any(|manifest| {
        let (name, namespace) =
            (text(&manifest["metadata"]["name"]), text(&manifest["metadata"]["namespace"]));
        // A derived Service belongs to its ServiceImport and goes with it, which no log tells of.
        let import = entry.is_on("serviceimports") && names::derived_service(&entry.target.name) == name;
        (entry.target.name == name || import) && entry.target.namespace == namespace
    })
}

#[cfg(test)]
mod tests;
