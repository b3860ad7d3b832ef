//! A control plane with its members, and how kinds and objects are addressed in them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta};
use kube::discovery::{Discovery, verbs};
use serde_json::{Value, json};

use crate::plane::ControlPlane;
use crate::testkit::follow::until;
use crate::testkit::process::run;
use crate::testkit::{DEADLINE, client};

/// A member as the tests see it: whatever has a kubeconfig.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) client: kube::Client,
    kubeconfig: PathBuf,
}

/// A control plane and its members.
pub(crate) struct World {
    pub(crate) control: ControlPlane,
    pub(crate) plane: kube::Client,
    pub(crate) members: Vec<Member>,
    /// Unlike those of other tests that use the same members.
    pub(crate) tag: String,
    pub(crate) namespace: String,
}

impl World {
    /// Joins members, waits until they are ready, and makes a namespace.
    pub(crate) async fn new(tag: &str, control: ControlPlane, kubeconfigs: &[PathBuf]) -> Self {
        let tag = format!("{tag}-{}", std::process::id());
        let plane = client(&control.kubeconfig).await;
        let mut members = Vec::new();
        for (number, kubeconfig) in kubeconfigs.iter().enumerate() {
            let name = format!("{tag}-m{}", number + 1);
            let (control, member) = (control.kubeconfig.to_string_lossy(), kubeconfig.to_string_lossy());
            let accounts = format!("accounts-{tag}");
            let join = ["join", &name, "--kubeconfig", &control, "--cluster-kubeconfig", &member];
            run(&[&join[..], &["--cluster-namespace", &accounts]].concat());
            let client = client(kubeconfig).await;
            members.push(Member { name, client, kubeconfig: kubeconfig.clone() });
        }
        let world = Self { control, plane, members, namespace: tag.clone(), tag };
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
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let found = self.inventory(index).await;
            let there: Vec<&str> = found.keys().filter_map(|key| key.strip_prefix(&start)).collect();
            if there == wanted {
                return found;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "not {wanted:?} within {DEADLINE:?}, but {there:?}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Takes the members out of the control plane again.
    pub(crate) fn leave(&self) {
        for member in &self.members {
            let control = self.control.kubeconfig.to_string_lossy();
            let kubeconfig = member.kubeconfig.to_string_lossy();
            let accounts = format!("accounts-{}", self.tag);
            // Unlike `join`, `unjoin` takes the cluster's name for the context's unless told otherwise.
            let file = kube::config::Kubeconfig::read_from(&member.kubeconfig).expect("a kubeconfig");
            let context = file.current_context.expect("a current context");
            let unjoin =
                ["unjoin", &member.name, "--kubeconfig", &control, "--cluster-kubeconfig", &kubeconfig];
            let further = ["--cluster-context", &context, "--cluster-namespace", &accounts];
            run(&[&unjoin[..], &further[..]].concat());
        }
    }
}

/// Objects of all kinds, as `Kind namespace/name`, with their uids: what was deleted and made again has another one.
pub(crate) type Inventory = BTreeMap<String, String>;

/// Returns all objects of a cluster that are chosen, whatever their kind. Events and Leases come and go by themselves.
pub(crate) async fn inventory(
    client: &kube::Client,
    selection: &ListParams,
    chosen: impl Fn(&PartialObjectMeta<DynamicObject>) -> bool,
) -> Inventory {
    let discovery = Discovery::new(client.clone()).run().await.expect("discovery");
    let mut found = Inventory::new();
    for (resource, capabilities) in discovery.groups().flat_map(|group| group.recommended_resources()) {
        if !capabilities.supports_operation(verbs::LIST)
            || ["Event", "Lease"].contains(&resource.kind.as_str())
        {
            continue;
        }
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        // A kind may be gone since discovery told of it.
        let Ok(list) = api.list_metadata(selection).await else { continue };
        for object in list.items.into_iter().filter(|object| chosen(object)) {
            let metadata = object.metadata;
            let (space, name) = (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
            found.insert(format!("{} {space}/{name}", resource.kind), metadata.uid.unwrap_or_default());
        }
    }
    found
}

/// Fails for every object of `before` that is gone or was made again, unless it was expected to go.
pub(crate) fn assert_kept(
    before: &Inventory,
    after: &Inventory,
    expected: impl Fn(&str) -> bool,
    when: &str,
) {
    let lost: Vec<_> =
        before.iter().filter(|(key, uid)| !expected(key) && after.get(*key) != Some(uid)).collect();
    assert!(lost.is_empty(), "{when}, these were deleted or made again: {lost:#?}\nafterwards: {after:#?}");
}

#[test]
fn an_object_that_was_deleted_and_made_again_is_noticed() {
    let inventory = |uid: &str| Inventory::from([("ConfigMap a/b".to_owned(), uid.to_owned())]);
    assert_kept(&inventory("1"), &inventory("1"), |_| false, "at rest");
    let again =
        std::panic::catch_unwind(|| assert_kept(&inventory("1"), &inventory("2"), |_| false, "made again"));
    assert!(again.is_err());
}

/// A kind and how it is addressed.
#[derive(Clone)]
pub(crate) struct Kind {
    pub(crate) resource: ApiResource,
    pub(crate) namespaced: bool,
}

impl Kind {
    pub(crate) fn namespaced(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        let gvk = GroupVersionKind::gvk(group, version, kind);
        Self { resource: ApiResource::from_gvk_with_plural(&gvk, plural), namespaced: true }
    }

    pub(crate) fn cluster(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        Self { namespaced: false, ..Self::namespaced(group, version, kind, plural) }
    }

    pub(crate) fn api(&self, client: kube::Client, namespace: &str) -> Api<DynamicObject> {
        if self.namespaced {
            Api::namespaced_with(client, namespace, &self.resource)
        } else {
            Api::all_with(client, &self.resource)
        }
    }
}

pub(crate) fn definition() -> ApiResource {
    Kind::cluster("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
        .resource
}

pub(crate) fn work() -> Kind {
    Kind::namespaced("work.karmada.io", "v1alpha1", "Work", "works")
}

/// Returns the status of a condition.
pub(crate) fn condition<'a>(object: Option<&'a DynamicObject>, kind: &str) -> Option<&'a str> {
    let conditions = object?.data["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)?["status"].as_str()
}

/// Returns what an object has at a JSON pointer; metadata lies apart from the rest.
pub(crate) fn at(object: Option<&DynamicObject>, path: &str) -> Option<Value> {
    let object = object?;
    match path.strip_prefix("/metadata/annotations/") {
        Some(key) => object.metadata.annotations.as_ref()?.get(key).map(|text| json!(text)),
        None => object.data.pointer(path).cloned(),
    }
}
