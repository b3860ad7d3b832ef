//! The laws that every control plane with members keeps, whatever a test has done to it. Tests call [`check`] at their end.
//!
//! What is there is looked at until it has come to rest ([`state`]); what happened is read from audit logs ([`history`]). The laws
//! are functions from what was read to complaints, and each has a test with a world that breaks it.

pub mod history;
pub mod state;

use std::path::{Path, PathBuf};

use api::labels::{MANAGED, annotations};
use api::names;
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream, try_join};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use serde_json::{Value, json};

use crate::eventually;
use crate::objects::listable;
use history::Entry;
use state::State;

/// The audit policy that [`history`] needs: every write, with what was sent and answered. Events and Leases follow the time.
pub const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
"omitStages": ["RequestReceived", "ResponseStarted"],
"rules": [
  {"level": "None", "verbs": ["get", "list", "watch"]},
  {"level": "None", "resources": [{"group": "", "resources": ["events"]}, {"group": "events.k8s.io"}]},
  {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
  {"level": "None", "nonResourceURLs": ["/*"]},
  {"level": "RequestResponse", "omitManagedFields": true}]}"#;

/// Returns [`AUDIT_POLICY`] for tests that also look at what somebody reads: of those whom the selector names, as rules of audit
/// policies name them, everything else is told as well, without content. [`history`] passes over it.
pub fn audit_policy_with_reads(selector: &Value) -> String {
    let mut policy: Value = serde_json::from_str(AUDIT_POLICY).expect("JSON");
    let further = [
        json!({"verbs": ["get", "list", "watch"]}),
        json!({"resources": [{"group": "", "resources": ["events"]}, {"group": "events.k8s.io"},
            {"group": "coordination.k8s.io"}]}),
        json!({"nonResourceURLs": ["/*"]}),
    ];
    let rules = further.into_iter().map(|mut rule| {
        rule["level"] = "Metadata".into();
        for (field, names) in selector.as_object().into_iter().flatten() {
            rule[field] = names.clone();
        }
        rule
    });
    let all = rules.chain(policy["rules"].as_array().into_iter().flatten().cloned()).collect();
    policy["rules"] = Value::Array(all);
    // A watch that goes on is told of when it begins.
    policy["omitStages"] = json!(["RequestReceived"]);
    policy.to_string()
}

/// How many kinds of one server are listed at a time: there are many, and a test waits for them.
const LISTS_AT_ONCE: usize = 8;

/// The user in whose name the controllers inside `karmada server` write.
pub const CONTROLLERS: &str = "system:karmada-controllers";

/// A control plane and its members.
pub struct World {
    pub plane: Site,
    pub members: Vec<Site>,
    /// Which controllers run, as `--controllers` says it.
    pub controllers: String,
}

/// One API server of a world.
pub struct Site {
    /// Of a member, the name of its Cluster.
    pub name: String,
    pub client: kube::Client,
    /// In whose name controllers write here: the end of a user's name.
    pub writer: String,
    /// The audit logs, one per run of the server. Without any, what happened on this server is not judged.
    pub logs: Vec<PathBuf>,
    /// What every line about this world has in it; empty if nobody else uses the server.
    pub about: String,
    /// Whether several processes serve this at the same time, each with logs of its own.
    several: bool,
    /// How much of each log tells of a time that is not judged.
    past: Vec<usize>,
}

impl Site {
    pub fn plane(client: kube::Client, writer: &str, logs: Vec<PathBuf>) -> Self {
        Self::new("the control plane", client, writer.to_owned(), logs)
    }

    /// A member that was joined under this name. The control plane acts there through an account of its own.
    pub fn member(name: &str, client: kube::Client, logs: Vec<PathBuf>) -> Self {
        Self::new(name, client, format!(":{}", names::service_account(name)), logs)
    }

    fn new(name: &str, client: kube::Client, writer: String, logs: Vec<PathBuf>) -> Self {
        let past = Vec::new();
        Self { name: name.to_owned(), client, writer, logs, about: String::new(), several: false, past }
    }

    /// Names another writer: in a member in pull mode, that is the account of its agent.
    pub fn written_by(self, writer: &str) -> Self {
        Self { writer: writer.to_owned(), ..self }
    }

    /// Leaves lines of the logs to others that do not have these words.
    pub fn about(self, words: &str) -> Self {
        Self { about: words.to_owned(), ..self }
    }

    /// Says that the logs are those of several processes on one store. Only together they tell who wrote after whom.
    pub fn of_several_servers(self) -> Self {
        Self { several: true, ..self }
    }

    /// Leaves out what the logs tell by now: another control plane may have used this server before.
    pub fn from_now(self) -> Self {
        let past = self.logs.iter().map(|log| text_of(log).len()).collect();
        Self { past, ..self }
    }
}

fn text_of(log: &Path) -> String {
    std::fs::read_to_string(log)
        .unwrap_or_else(|error| panic!("cannot read the audit log {}: {error}", log.display()))
}

/// What cannot be true in a test, and why. It has to be wrong, or else it needs no excuse.
pub struct Excuse<'a> {
    /// Words of the complaint.
    pub complaint: &'a str,
    pub because: &'a str,
}

/// Waits until the world keeps all laws, and fails with the complaints if it does not.
pub async fn check(world: &World) {
    check_but(world, &[]).await;
}

/// As [`check`], but for what is excused of what is there. What happened has no excuse.
pub async fn check_but(world: &World, excuses: &[Excuse<'_>]) {
    eventually("the control plane and its members agree", async || {
        let complaints = without_excused(state::complaints(&observe(world).await?), excuses);
        if complaints.is_empty() { Ok(()) } else { Err(listed(&complaints)) }
    })
    .await;
    // A log is written a moment after the answer, on a busy machine a long one. What is missing in it then is there at a later look,
    // and what is wrong stays.
    eventually("what happened was right", async || {
        let complaints = read_and_judge(world);
        if complaints.is_empty() { Ok(()) } else { Err(listed(&complaints)) }
    })
    .await;
}

fn without_excused(complaints: Vec<String>, excuses: &[Excuse<'_>]) -> Vec<String> {
    let covers = |excuse: &Excuse<'_>, complaint: &str| complaint.contains(excuse.complaint);
    let idle = excuses.iter().filter(|excuse| !complaints.iter().any(|complaint| covers(excuse, complaint)));
    let idle =
        idle.map(|excuse| format!("nothing needs the excuse {}, since {}", excuse.complaint, excuse.because));
    let idle: Vec<String> = idle.collect();
    let stands = |complaint: &String| !excuses.iter().any(|excuse| covers(excuse, complaint));
    complaints.into_iter().filter(stands).chain(idle).collect()
}

fn listed(complaints: &[String]) -> String {
    complaints.iter().map(|complaint| format!("\n- {complaint}")).collect()
}

fn read_and_judge(world: &World) -> Vec<String> {
    let mut complaints = Vec::new();
    let plane = read(&world.plane, &mut complaints);
    if !world.plane.logs.is_empty() {
        complaints.extend(history::works_deleted_though_wanted(&plane, &world.plane.writer));
    }
    // Members in pull mode have agents, which write here as well.
    let agents = world.members.iter().map(|member| format!(":agent:{}", member.name));
    for writer in agents.chain([world.plane.writer.clone()]) {
        complaints.extend(repeated_writes(&world.plane, &plane, &writer));
    }
    for member in &world.members {
        let runs = read(member, &mut complaints);
        if !world.plane.logs.is_empty() {
            complaints.extend(history::objects_deleted_though_wanted(
                &member.name,
                &runs,
                &plane,
                &member.writer,
            ));
        }
        complaints.extend(repeated_writes(member, &runs, &member.writer));
    }
    complaints
}

fn repeated_writes(site: &Site, runs: &[Vec<Entry>], writer: &str) -> Vec<String> {
    if site.several {
        return history::repeated_writes(&site.name, &history::in_order(runs), writer);
    }
    let of_run =
        |run: &Vec<Entry>| history::repeated_writes(&site.name, &run.iter().collect::<Vec<_>>(), writer);
    runs.iter().flat_map(of_run).collect()
}

/// Reads all logs of a server, one list per run. A log that is not complete is a complaint.
fn read(site: &Site, complaints: &mut Vec<String>) -> Vec<Vec<Entry>> {
    let mut entries = |(number, log): (usize, &PathBuf)| {
        let text = text_of(log);
        let judged = text.get(site.past.get(number).copied().unwrap_or(0)..).unwrap_or("");
        complaints.extend(history::lost_lines(&site.name, judged));
        let ours: Vec<&str> = judged.lines().filter(|line| line.contains(&site.about)).collect();
        Entry::read(&ours.join("\n"))
    };
    site.logs.iter().enumerate().map(&mut entries).collect()
}

async fn observe(world: &World) -> Result<State, String> {
    let managed = ListParams::default().labels(&format!("{MANAGED}=true"));
    let in_member = async |member: &Site| {
        let mut found = objects(&member.client, &managed).await?;
        // Members may have several control planes.
        let space = names::execution_space(&member.name);
        found.retain(|object| object["metadata"]["annotations"][annotations::WORK_NAMESPACE] == *space);
        Ok::<_, String>((member.name.clone(), found))
    };
    let members = try_join_all(world.members.iter().map(in_member));
    let everything = ListParams::default();
    let (plane, members) = try_join!(objects(&world.plane.client, &everything), members)?;
    Ok(State { plane, members: members.into_iter().collect(), controllers: world.controllers.clone() })
}

/// Returns all objects, whatever their kind.
async fn objects(client: &kube::Client, selection: &ListParams) -> Result<Vec<Value>, String> {
    let resources = listable(client).await.map_err(|error| format!("discovery: {error}"))?;
    // What is measured in members is nothing that a control plane keeps, and may be long in coming.
    let kept = resources.into_iter().filter(|resource| resource.group != "metrics.k8s.io");
    let lists = kept.map(|resource| objects_of(client, resource, selection));
    let found: Vec<Vec<Value>> = stream::iter(lists).buffered(LISTS_AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

async fn objects_of(
    client: &kube::Client,
    resource: ApiResource,
    selection: &ListParams,
) -> Result<Vec<Value>, String> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let list = match api.list(selection).await {
        Ok(list) => list,
        // A kind may be gone since discovery told of it, or have a list that does not consist of objects.
        Err(kube::Error::Api(status)) if [404, 405].contains(&status.code) => return Ok(Vec::new()),
        Err(error) => return Err(format!("{}: {error}", resource.plural)),
    };
    let complete = |object: DynamicObject| {
        let mut object = serde_json::to_value(object).map_err(|error| error.to_string())?;
        object["apiVersion"] = resource.api_version.clone().into();
        object["kind"] = resource.kind.clone().into();
        Ok(object)
    };
    list.items.into_iter().map(complete).collect()
}

#[cfg(test)]
mod tests;
