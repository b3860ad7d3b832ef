//! The laws that every control plane with members keeps, whatever a test has done to it. A test calls [`check`] at its end.
//!
//! What is there is looked at until it has come to rest ([`state`]); what happened is read from audit logs ([`history`]). The laws
//! are functions from what was read to complaints, and each has a test with a world that breaks it.

pub mod history;
pub mod state;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use api::labels::{MANAGED, annotations};
use api::names;
use kube::api::{Api, DynamicObject, ListParams};
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
}

impl Site {
    pub fn plane(client: kube::Client, writer: &str, logs: Vec<PathBuf>) -> Self {
        Self { name: "the control plane".to_owned(), client, writer: writer.to_owned(), logs }
    }

    /// A member that was joined under this name. The control plane acts there through an account of its own.
    pub fn member(name: &str, client: kube::Client, logs: Vec<PathBuf>) -> Self {
        let writer = format!(":{}", names::service_account(name));
        Self { name: name.to_owned(), client, writer, logs }
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
    let plane = read(&world.plane);
    let mut complaints = Vec::new();
    if !world.plane.logs.is_empty() {
        complaints.extend(history::works_deleted_though_wanted(&plane, &world.plane.writer));
    }
    for run in &plane {
        complaints.extend(history::repeated_writes(&world.plane.name, run, &world.plane.writer));
    }
    for member in &world.members {
        let runs = read(member);
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

/// Reads all logs of a server, one list per run.
fn read(site: &Site) -> Vec<Vec<Entry>> {
    let entries = |log: &PathBuf| {
        let text = std::fs::read_to_string(log)
            .unwrap_or_else(|error| panic!("cannot read the audit log {}: {error}", log.display()));
        Entry::read(&text)
    };
    site.logs.iter().map(entries).collect()
}

async fn observe(world: &World) -> Result<State, String> {
    let plane = objects(&world.plane.client, &ListParams::default()).await?;
    let managed = ListParams::default().labels(&format!("{MANAGED}=true"));
    let mut members = BTreeMap::new();
    for member in &world.members {
        let mut found = objects(&member.client, &managed).await?;
        // Members may have several control planes.
        let space = names::execution_space(&member.name);
        found.retain(|object| object["metadata"]["annotations"][annotations::WORK_NAMESPACE] == *space);
        members.insert(member.name.clone(), found);
    }
    Ok(State { plane, members, controllers: world.controllers.clone() })
}

/// Returns all objects, whatever their kind.
async fn objects(client: &kube::Client, selection: &ListParams) -> Result<Vec<Value>, String> {
    let mut found = Vec::new();
    for resource in listable(client).await.map_err(|error| format!("discovery: {error}"))? {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let list = match api.list(selection).await {
            Ok(list) => list,
            // A kind may be gone since discovery told of it, or have a list that is no list of objects.
            Err(kube::Error::Api(status)) if [404, 405].contains(&status.code) => continue,
            Err(error) => return Err(format!("{}: {error}", resource.plural)),
        };
        for object in list.items {
            let mut object = serde_json::to_value(object).map_err(|error| error.to_string())?;
            object["apiVersion"] = resource.api_version.clone().into();
            object["kind"] = resource.kind.clone().into();
            found.push(object);
        }
    }
    Ok(found)
}
