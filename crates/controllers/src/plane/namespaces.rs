//! Creates every namespace in every cluster, so that propagated objects have a namespace there.
//!
//! Watches: Namespaces, Clusters that appear, ClusterOverridePolicies that select namespaces.
//! Writes: one Work per namespace and cluster, owned by the Namespace, so they are deleted with it.

#[cfg(test)]
mod on_server;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::cluster::Cluster;
use api::labels::SKIP_AUTO_PROPAGATION;
use api::labels::annotations::APPLIED_CLUSTER_OVERRIDES;
use apimachinery::gvk::Gvk;
use futures::future::join_all;
use jiff::Timestamp;
use propagation::overrides::{Applied, Overrides, record};
use propagation::render::DesiredWork;
use propagation::{Object, Reference as _};
use serde_json::Value;

use super::templates::TemplateKey;
use super::{Plane, Start, override_events};
use runtime::{Error, Outcome, Queue, Reconcile, controller};

const COMPONENT: &str = "namespace-sync-controller";
/// Upstream has one worker. Each worker handles all clusters of a namespace at once, so a few are enough.
const WORKERS: usize = 2;

fn namespace_kind() -> Gvk {
    Gvk::new("", "v1", "Namespace")
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<String>>) {
    let queue: Arc<Queue<String>> = Queue::new(COMPONENT);
    plane.tell_panics_of_templates(&queue, COMPONENT, |name: &String| TemplateKey {
        kind: namespace_kind(),
        namespace: String::new(),
        name: name.clone(),
    });

    let pushed = Arc::clone(&queue);
    plane.templates.subscribe(move |change| {
        if let Some(object) = &change.new
            && object.kind() == "Namespace"
            && object.api_version() == "v1"
        {
            pushed.push(object.name().to_owned());
        }
    });

    plane.mirrors.clusters.subscribe({
        let (pushed, plane) = (Arc::clone(&queue), Arc::clone(plane));
        move |change| {
            if change.old.is_none() {
                push_all(&plane, &pushed);
            }
        }
    });

    plane.mirrors.cluster_override_policies.subscribe({
        let (pushed, plane) = (Arc::clone(&queue), Arc::clone(plane));
        move |change| {
            let policies = [&change.old, &change.new].into_iter().flatten();
            for selector in policies.flat_map(|policy| &policy.spec.resource_selectors) {
                match (selector.api_version.as_str(), selector.kind.as_str(), selector.name.as_str()) {
                    ("v1", "Namespace", "") => push_all(&plane, &pushed),
                    ("v1", "Namespace", name) => pushed.push(name.to_owned()),
                    _ => {}
                }
            }
        }
    });

    // A Work of ours that was deleted while the namespace and the cluster are still there comes back.
    plane.mirrors.works.subscribe({
        let (pushed, plane) = (Arc::clone(&queue), Arc::clone(plane));
        move |change| {
            if let (Some(old), None) = (&change.old, &change.new) {
                let owners = old.metadata.owner_references.iter().flatten();
                for owner in owners.filter(|owner| owner.kind == "Namespace" && owner.api_version == "v1") {
                    plane.bring_back(old, &pushed, owner.name.clone());
                }
            }
        }
    });

    (Arc::new(Controller { plane: plane.clone() }), queue)
}

struct Controller {
    plane: Arc<Plane>,
}

fn push_all(plane: &Plane, queue: &Queue<String>) {
    for namespace in plane.templates.all(&namespace_kind()) {
        queue.push(namespace.name().to_owned());
    }
}

/// What is known of a namespace.
pub(crate) struct View {
    /// `--skipped-propagating-namespaces` names it.
    skipped: bool,
    namespace: Arc<Value>,
    clusters: Vec<Arc<Cluster>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// It stays in the control plane, for this reason.
    Nothing(&'static str),
    /// It is brought to these clusters.
    Bring(Vec<String>),
}

fn decide(view: &View) -> Plan {
    let namespace = &view.namespace;
    let kept_back =
        namespace.label(SKIP_AUTO_PROPAGATION).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if namespace.name() == "default" {
        return Plan::Nothing("every cluster has it");
    }
    if view.skipped {
        return Plan::Nothing("it is not propagated");
    }
    if namespace.is_deleting() {
        return Plan::Nothing("it goes, and its Works with it");
    }
    if kept_back {
        return Plan::Nothing("its label says so");
    }
    let present = view.clusters.iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
    Plan::Bring(present.filter_map(|cluster| cluster.metadata.name.clone()).collect())
}

impl Reconcile for Controller {
    type Key = String;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, name: &String) -> Result<Option<View>, Error> {
        let plane = &self.plane;
        let key = TemplateKey { kind: namespace_kind(), namespace: String::new(), name: name.clone() };
        let Some(namespace) = plane.templates.get(&key) else { return Ok(None) };
        let skipped = plane.templates.skip().skips_namespace(name);
        Ok(Some(View { skipped, namespace, clusters: plane.mirrors.clusters.all() }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, _: &String, view: View, plan: Plan) -> Result<Outcome, Error> {
        let Plan::Bring(names) = plan else { return Ok(Outcome::Done) };
        let named =
            |cluster: &&Arc<Cluster>| cluster.metadata.name.as_ref().is_some_and(|name| names.contains(name));
        let clusters = view.clusters.iter().filter(named);
        let results = join_all(clusters.map(|cluster| self.ensure_work(&view.namespace, cluster))).await;
        Error::join(results.into_iter().filter_map(Result::err).collect())?;
        Ok(Outcome::Done)
    }
}

impl Controller {
    async fn ensure_work(&self, namespace: &Value, cluster: &Cluster) -> Result<(), Error> {
        let events = &self.plane.events;
        let overrides = Arc::clone(&self.plane.overrides.read());
        let (work, applied) = desired(namespace, cluster, &overrides).map_err(|error| {
            override_events::failed(events, namespace, &error);
            Error::decision(error)
        })?;
        if self.plane.works.ensure(&self.plane.writer, &work).await? {
            let name = cluster.metadata.name.as_deref().unwrap_or("");
            override_events::applied(events, namespace, name, &applied);
        }
        Ok(())
    }
}

/// Returns the Work that brings a namespace to a cluster, and the overrides that it is made with.
fn desired(
    namespace: &Value,
    cluster: &Cluster,
    overrides: &Overrides,
) -> propagation::Result<(DesiredWork, Applied)> {
    let name = cluster.metadata.name.as_deref().unwrap_or("");
    let mut manifest = namespace.clone();
    let applied = overrides
        .apply(&mut manifest, cluster)
        .map_err(|failure| propagation::Error::Override { cluster: name.to_owned(), failure })?;
    let mut annotations = BTreeMap::new();
    if let Some(record) = record(&applied.cluster) {
        annotations.insert(APPLIED_CLUSTER_OVERRIDES.to_owned(), record);
    }
    let work = DesiredWork::new(name, manifest, BTreeMap::new(), annotations)?;
    Ok((work.owned_by(namespace.controller_reference()), applied))
}

#[cfg(test)]
mod tests {
    use api::policy::ClusterOverridePolicy;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{cluster, deleting, merged, read};

    fn namespace(otherwise: Value) -> Arc<Value> {
        let base =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop", "uid": "n" } });
        Arc::new(merged(base, otherwise))
    }

    fn clusters() -> Vec<Arc<Cluster>> {
        let leaving = cluster("m3", "True", deleting());
        [cluster("m1", "True", json!({})), cluster("m2", "False", json!({})), leaving].map(Arc::new).into()
    }

    #[test]
    fn which_namespaces_go_where() {
        let label = |value: &str| json!({ "metadata": { "labels": { SKIP_AUTO_PROPAGATION: value } } });
        let all = || Plan::Bring(vec!["m1".to_owned(), "m2".to_owned()]);
        let cases = [
            ("to all clusters that stay, ready or not", json!({}), false, all()),
            ("its label is not true", label("false"), false, all()),
            ("its label says so", label("True"), false, Plan::Nothing("its label says so")),
            ("it is skipped", json!({}), true, Plan::Nothing("it is not propagated")),
            ("it goes", deleting(), false, Plan::Nothing("it goes, and its Works with it")),
            (
                "the one that every cluster has",
                json!({ "metadata": { "name": "default" } }),
                false,
                Plan::Nothing("every cluster has it"),
            ),
        ];
        for (name, otherwise, skipped, expected) in cases {
            let view = View { skipped, namespace: namespace(otherwise), clusters: clusters() };
            assert_eq!(decide(&view), expected, "{name}");
        }
    }

    #[test]
    fn its_work_belongs_to_it_and_carries_no_status() {
        let status = json!({ "status": { "phase": "Active" } });
        let (work, applied) =
            desired(&namespace(status), &cluster("m1", "True", json!({})), &Overrides::default()).unwrap();
        assert_eq!(applied, Applied::default());
        let made = work.create();
        assert_eq!(made.metadata.namespace.as_deref(), Some("karmada-es-m1"));
        let owner = &made.metadata.owner_references.unwrap()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()),
            ("Namespace", "shop", "n")
        );
        assert_eq!(made.spec.workload.manifests[0].get("status"), None);
        assert_eq!(made.metadata.annotations, Some(BTreeMap::new()), "no override was applied");
    }

    #[test]
    fn its_work_says_which_overrides_were_applied() {
        let policy: ClusterOverridePolicy = read(json!({
            "metadata": { "name": "p" },
            "spec": { "overrideRules": [{ "overriders": { "labelsOverrider": [
                { "operator": "add", "value": { "team": "a" } },
            ] } }] },
        }));
        let mut overrides = Overrides::default();
        overrides.insert_cluster(Arc::new(policy));
        let (work, _) =
            desired(&namespace(json!({})), &cluster("m1", "True", json!({})), &overrides).unwrap();
        let made = work.create();
        let record = made.metadata.annotations.unwrap().remove(APPLIED_CLUSTER_OVERRIDES).expect("a record");
        assert!(record.contains("\"p\""), "{record}");
        assert_eq!(made.spec.workload.manifests[0].pointer("/metadata/labels/team"), Some(&json!("a")));
    }
}
