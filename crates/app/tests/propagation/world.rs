//! A control plane with its members.

use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::check::{self, Site, check};
use testkit::{Inventory, Kind, Process, client, condition, eventually, inventory, run, until, until_gone};

use crate::members::Place;
use crate::plane::{ControlPlane, KARMADA};
use crate::pull::{self, Newcomer, token};

/// A member as the tests see it: whatever has a kubeconfig.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) client: kube::Client,
    place: Place,
}

/// A control plane and its members.
pub(crate) struct World {
    pub(crate) control: ControlPlane,
    pub(crate) plane: kube::Client,
    pub(crate) members: Vec<Member>,
    /// Unlike those of other tests that use the same members.
    pub(crate) tag: String,
    pub(crate) namespace: String,
    /// Further flags of `karmada join`, or of `karmada register`.
    flags: &'static [&'static str],
    /// In pull mode, who looks after the members.
    agents: Option<Agents>,
}

/// The agents of members in pull mode; one that is not there belongs to a member that was taken out.
struct Agents {
    folder: tempfile::TempDir,
    running: Mutex<Vec<Option<Process>>>,
}

impl World {
    /// Joins members, waits until they are ready, and makes a namespace.
    pub(crate) async fn new(tag: &str, control: ControlPlane, places: &[Place]) -> Self {
        Self::joined(tag, control, places, &[]).await
    }

    /// As [`Self::new`], with further flags of `karmada join`.
    pub(crate) async fn joined(
        tag: &str,
        control: ControlPlane,
        places: &[Place],
        flags: &'static [&'static str],
    ) -> Self {
        Self::with(tag, control, places, flags, None).await
    }

    /// As [`Self::joined`], but the members are in pull mode: they are registered, and an agent looks after each.
    pub(crate) async fn registered(
        tag: &str,
        control: ControlPlane,
        places: &[Place],
        flags: &'static [&'static str],
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the agents");
        let running = Mutex::new(places.iter().map(|_| None).collect());
        Self::with(tag, control, places, flags, Some(Agents { folder, running })).await
    }

    async fn with(
        tag: &str,
        control: ControlPlane,
        places: &[Place],
        flags: &'static [&'static str],
        agents: Option<Agents>,
    ) -> Self {
        let tag = format!("{tag}-{}", std::process::id());
        let plane = client(&control.kubeconfig).await;
        let mut members = Vec::new();
        for (number, place) in places.iter().enumerate() {
            let name = format!("{tag}-m{}", number + 1);
            let client = client(&place.kubeconfig).await;
            members.push(Member { name, client, place: place.clone() });
        }
        let world = Self { control, plane, members, namespace: tag.clone(), tag, flags, agents };
        for member in 0..world.members.len() {
            world.join(member);
        }
        for member in &world.members {
            world.until_ready(&member.name).await;
        }
        let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}});
        world.create(&Kind::cluster("", "v1", "Namespace", "namespaces"), made).await;
        world
    }

    /// Waits until a cluster is ready and says what it serves.
    pub(crate) async fn until_ready(&self, cluster: &str) {
        let clusters = Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters");
        until(&self.in_plane(&clusters), cluster, "a joined cluster is ready", |found| {
            condition(found, "Ready") == Some("True")
                && found.is_some_and(|c| {
                    c.data["status"]["apiEnablements"].as_array().is_some_and(|l| !l.is_empty())
                })
        })
        .await;
    }

    pub(crate) fn in_plane(&self, kind: &Kind) -> Api<DynamicObject> {
        kind.api(self.plane.clone(), &self.namespace)
    }

    pub(crate) fn in_member(&self, index: usize, kind: &Kind) -> Api<DynamicObject> {
        kind.api(self.members[index].client.clone(), &self.namespace)
    }

    pub(crate) async fn create(&self, kind: &Kind, object: Value) {
        let text = object.to_string();
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        if let Err(error) = self.in_plane(kind).create(&PostParams::default(), &object).await {
            panic!("{text}: {error}");
        }
    }

    pub(crate) async fn patch(&self, kind: &Kind, name: &str, patch: &Value) {
        let patch = Patch::Merge(patch);
        let result = self.in_plane(kind).patch(name, &PatchParams::default(), &patch).await;
        result.unwrap_or_else(|error| panic!("{} {name}: {error}", kind.resource.kind));
    }

    /// Returns everything that this control plane has put into a member, whatever its kind.
    pub(crate) async fn inventory(&self, index: usize) -> Inventory {
        let member = &self.members[index];
        let managed = ListParams::default().labels("karmada.io/managed=true");
        let space = format!("karmada-es-{}", member.name);
        let ours = |object: &PartialObjectMeta<DynamicObject>| {
            let notes = object.metadata.annotations.as_ref();
            notes.and_then(|notes| notes.get("work.karmada.io/namespace")) == Some(&space)
        };
        inventory(&member.client, &managed, ours).await
    }

    /// Waits until a member has exactly these names of one kind among what this control plane has put there, and returns
    /// everything.
    pub(crate) async fn until_inventory(&self, index: usize, kind: &Kind, names: &[&str]) -> Inventory {
        let start = format!("{} {}/", kind.resource.kind, self.namespace);
        let mut wanted: Vec<&str> = names.to_vec();
        wanted.sort_unstable();
        eventually(format!("exactly {wanted:?} in member {index}"), async || {
            let found = self.inventory(index).await;
            let there: Vec<&str> = found.keys().filter_map(|key| key.strip_prefix(&start)).collect();
            if there == wanted { Ok(found) } else { Err(format!("{there:?}")) }
        })
        .await
    }

    /// Fails unless the control plane and its members keep the laws of every world, whatever the test has done to them.
    pub(crate) async fn check(&self) {
        let member = |member: &Member| {
            let logs = member.place.audit_log.iter().cloned().collect();
            let site = match self.agents {
                Some(_) => pull::site(&member.name, member.client.clone(), logs),
                None => Site::member(&member.name, member.client.clone(), logs),
            };
            site.about(&self.tag)
        };
        check(&check::World {
            plane: self.control.site(self.plane.clone()),
            members: self.members.iter().map(member).collect(),
            controllers: self.control.controllers().to_owned(),
        })
        .await;
    }

    /// Checks the world, and takes the members out of the control plane again.
    pub(crate) async fn leave(&self) {
        self.check().await;
        for member in 0..self.members.len() {
            self.unjoin(member);
        }
        if self.agents.is_some() {
            for member in &self.members {
                pull::remove_account(&member.place.kubeconfig, &member.name);
            }
        }
    }

    /// Joins a member, or registers it and starts its agent.
    pub(crate) fn join(&self, index: usize) {
        let member = &self.members[index];
        if let Some(agents) = &self.agents {
            let server = self.control.process();
            let newcomer =
                Newcomer::new(server, &member.name, &member.place.kubeconfig, agents.folder.path());
            let accounts = format!("accounts-{}", self.tag);
            let flags = [&["--cluster-namespace", accounts.as_str()][..], self.flags].concat();
            agents.running.lock()[index] = Some(newcomer.register_with(&token(server), &flags));
            return;
        }
        let control = self.control.kubeconfig.to_string_lossy();
        let kubeconfig = member.place.kubeconfig.to_string_lossy();
        join(&member.name, &control, &kubeconfig, &format!("accounts-{}", self.tag), self.flags);
    }

    /// Waits until nothing of a member that was taken out stands in the way of its return.
    pub(crate) async fn until_left(&self, index: usize) {
        let (namespace, namespaces) =
            (format!("accounts-{}", self.tag), Kind::cluster("", "v1", "Namespace", "namespaces"));
        until_gone(&self.in_member(index, &namespaces), &namespace, "the accounts of the last time are gone")
            .await;
    }

    /// Takes a member out of the control plane.
    pub(crate) fn unjoin(&self, index: usize) {
        let member = &self.members[index];
        if let Some(agents) = &self.agents {
            let (control, kubeconfig) =
                (self.control.kubeconfig.to_string_lossy(), member.place.kubeconfig.to_string_lossy());
            let unregister = ["unregister", &member.name, "--karmada-config", &control];
            let accounts = format!("accounts-{}", self.tag);
            let there = ["--cluster-kubeconfig", &kubeconfig, "--cluster-namespace", &accounts, "--wait=3m"];
            run(KARMADA, &[&unregister[..], &there[..]].concat());
            agents.running.lock()[index] = None;
            let file = agents.folder.path().join(format!("{}.kubeconfig", member.name));
            std::fs::remove_file(file).expect("the agent's kubeconfig is removed");
            return;
        }
        let control = self.control.kubeconfig.to_string_lossy();
        let kubeconfig = member.place.kubeconfig.to_string_lossy();
        let accounts = format!("accounts-{}", self.tag);
        // Unlike `join`, `unjoin` takes the cluster's name for the context's unless told otherwise.
        let file = kube::config::Kubeconfig::read_from(&member.place.kubeconfig).expect("a kubeconfig");
        let context = file.current_context.expect("a current context");
        let unjoin = ["unjoin", &member.name, "--kubeconfig", &control, "--cluster-kubeconfig", &kubeconfig];
        let further = ["--cluster-context", &context, "--cluster-namespace", &accounts, "--wait=180"];
        run(KARMADA, &[&unjoin[..], &further[..]].concat());
    }
}

fn join(name: &str, control: &str, member: &str, accounts: &str, flags: &[&str]) {
    let join = ["join", name, "--kubeconfig", control, "--cluster-kubeconfig", member];
    run(KARMADA, &[&join[..], &["--cluster-namespace", accounts], flags].concat());
}
