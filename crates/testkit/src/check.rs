//! The laws that every control plane with members keeps, whatever a test has done to it. Tests call [`check`] at their end.
//!
//! What is there is looked at until it has come to rest ([`state`]); what happened is read from audit logs ([`history`]). The laws
//! are functions from what was read to complaints, and each has a test with a world that breaks it.

pub mod history;
pub mod state;

use std::path::PathBuf;
use std::time::Duration;

use api::labels::{MANAGED, annotations};
use api::names;
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream, try_join};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use serde_json::Value;

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
}

impl Site {
    pub fn plane(client: kube::Client, writer: &str, logs: Vec<PathBuf>) -> Self {
        let (name, about) = ("the control plane".to_owned(), String::new());
        Self { name, client, writer: writer.to_owned(), logs, about }
    }

    /// A member that was joined under this name. The control plane acts there through an account of its own.
    pub fn member(name: &str, client: kube::Client, logs: Vec<PathBuf>) -> Self {
        let writer = format!(":{}", names::service_account(name));
        Self { name: name.to_owned(), client, writer, logs, about: String::new() }
    }

    /// Leaves lines of the logs to others that do not have these words.
    pub fn about(self, words: &str) -> Self {
        Self { about: words.to_owned(), ..self }
    }
}

/// Waits until the world keeps all laws, and fails with the complaints if it does not.
pub async fn check(world: &World) {
    eventually("the control plane and its members agree", async || {
        let complaints = state::complaints(&observe(world).await?);
        if complaints.is_empty() { Ok(()) } else { Err(listed(&complaints)) }
    })
    .await;
    // A log is written a moment after the answer. What is missing in it then is there at the next look, and what is wrong stays.
    let mut complaints = read_and_judge(world);
    for _ in 0..20 {
        if complaints.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        complaints = read_and_judge(world);
    }
    panic!("what happened was not right:{}", listed(&complaints));
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
    let writers: Vec<String> = agents.chain([world.plane.writer.clone()]).collect();
    for (run, writer) in plane.iter().flat_map(|run| writers.iter().map(move |writer| (run, writer))) {
        complaints.extend(history::repeated_writes(&world.plane.name, run, writer));
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
        for run in &runs {
            complaints.extend(history::repeated_writes(&member.name, run, &member.writer));
        }
    }
    complaints
}

/// Reads all logs of a server, one list per run. A log that is not complete is a complaint.
fn read(site: &Site, complaints: &mut Vec<String>) -> Vec<Vec<Entry>> {
    let mut entries = |log: &PathBuf| {
        let text = std::fs::read_to_string(log)
            .unwrap_or_else(|error| panic!("cannot read the audit log {}: {error}", log.display()));
        complaints.extend(history::lost_lines(&site.name, &text));
        let ours: Vec<&str> = text.lines().filter(|line| line.contains(&site.about)).collect();
        Entry::read(&ours.join("\n"))
    };
    site.logs.iter().map(&mut entries).collect()
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
    let lists = resources.into_iter().map(|resource| objects_of(client, resource, selection));
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
