//! The templates: mirrors of objects of every kind that can be propagated, as kinds appear and disappear.
//!
//! Kinds are discovered at the start, whenever a definition or an aggregated API changes, and now and then, in case
//! a server announces a kind late. A kind that discovery no longer shows is forgotten; nothing is concluded about
//! its objects.
//!
//! Templates may depend on objects that policies skip ([`SkipRules`]). A skipped kind is mirrored once a
//! template depends on an object of it ([`Templates::need`]); most never are. Skipped namespaces are mirrored
//! with the others, but only subscribers of [`Templates::subscribe_to_all`] hear of objects in them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::work::ObjectReference;
use apimachinery::gvk::Gvk;
use apimachinery::names;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::discovery::{Discovery, Scope, verbs};
use kube::runtime::watcher;
use parking_lot::RwLock;
use propagation::Object;
use propagation::skip::SkipRules;
use runtime::{Change, Error, Mirror, Supervisor, Writer};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::mirrored::{Mirrored, is_head};

/// How long after a definition changed discovery is asked once more: a server may announce a kind a moment after it
/// has accepted the definition.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// How often discovery is asked when nothing happens.
const PERIOD: Duration = Duration::from_secs(30);

/// How long the start waits for kinds that do not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Identifies a template.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TemplateKey {
    pub(crate) kind: Gvk,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl TemplateKey {
    pub(crate) fn of(template: &Value) -> Self {
        Self {
            kind: template.gvk(),
            namespace: template.namespace().to_owned(),
            name: template.name().to_owned(),
        }
    }

    pub(crate) fn of_reference(reference: &ObjectReference) -> Self {
        Self {
            kind: Gvk::from_api_version(&reference.api_version, &reference.kind),
            namespace: reference.namespace.clone(),
            name: reference.name.clone(),
        }
    }

    /// Returns whether an object can be called so. Users write references, and the client writes their names into paths as they
    /// are: with the rights of the controllers, the Namespace `bank/secrets/token` would be a Secret.
    fn can_exist(&self) -> bool {
        names::is_path_segment(&self.namespace) && names::is_path_segment(&self.name)
    }
}

type Told = Box<dyn Fn(&Change<Value>) + Send + Sync>;

pub(crate) struct Templates {
    writer: Writer,
    skip: SkipRules,
    kinds: RwLock<BTreeMap<Gvk, Kind>>,
    /// Served kinds that policies skip and that no template depends on. They are not mirrored.
    passed_over: RwLock<BTreeMap<Gvk, Served>>,
    /// Kinds that policies skip and that a template has depended on. They are mirrored from then on, as
    /// upstream does.
    needed: RwLock<BTreeSet<Gvk>>,
    subscribers: RwLock<Vec<Told>>,
    /// Subscribers that also hear of objects that policies skip.
    subscribers_to_all: RwLock<Vec<Told>>,
    definitions_changed: Notify,
    discovered: watch::Sender<bool>,
}

/// A kind that the server has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Served {
    resource: ApiResource,
    namespaced: bool,
}

/// A kind whose objects are mirrored.
#[derive(Clone)]
struct Kind {
    served: Served,
    mirror: Arc<Mirror<Mirrored>>,
    stop: CancellationToken,
}

impl Templates {
    pub(crate) fn new(writer: Writer, skip: SkipRules) -> Arc<Self> {
        Arc::new(Self {
            writer,
            skip,
            kinds: RwLock::default(),
            passed_over: RwLock::default(),
            needed: RwLock::default(),
            subscribers: RwLock::default(),
            subscribers_to_all: RwLock::default(),
            definitions_changed: Notify::new(),
            discovered: watch::Sender::new(false),
        })
    }

    /// Calls `told` on every change of any template.
    pub(crate) fn subscribe(&self, told: impl Fn(&Change<Value>) + Send + Sync + 'static) {
        self.subscribers.write().push(Box::new(told));
    }

    /// As [`Self::subscribe`], and also on every change of mirrored objects that policies skip.
    pub(crate) fn subscribe_to_all(&self, told: impl Fn(&Change<Value>) + Send + Sync + 'static) {
        self.subscribers_to_all.write().push(Box::new(told));
    }

    pub(crate) fn skip(&self) -> &SkipRules {
        &self.skip
    }

    /// Mirrors the objects of a kind that templates depend on, even if policies skip it. Returns whether the
    /// mirror is complete; if not, it soon will be.
    pub(crate) fn need(&self, kind: &Gvk) -> Result<bool, Error> {
        if !self.skip.skips_kind(kind) {
            return Ok(true);
        }
        if let Some(mirrored) = self.kinds.read().get(kind) {
            return Ok(mirrored.mirror.is_synced());
        }
        // Kinds that are not served are not remembered, since templates may name any kind.
        if !self.passed_over.read().contains_key(kind) {
            return Err(Error::UnknownKind(kind.to_string()));
        }
        if self.needed.write().insert(kind.clone()) {
            self.definitions_changed.notify_one();
        }
        Ok(false)
    }

    /// Returns the mirrored template; only its head if no policy claims it.
    pub(crate) fn get(&self, key: &TemplateKey) -> Option<Arc<Value>> {
        let mirror = self.kinds.read().get(&key.kind).map(|kind| Arc::clone(&kind.mirror))?;
        mirror.get(&key.namespace, &key.name).map(|kept| kept.value(&key.kind))
    }

    /// Returns all mirrored templates of a kind; of those that no policy claims, their heads.
    pub(crate) fn all(&self, kind: &Gvk) -> Vec<Arc<Value>> {
        let mirror = self.kinds.read().get(kind).map(|kind| Arc::clone(&kind.mirror));
        mirror.map(|mirror| mirror.all().iter().map(|kept| kept.value(kind)).collect()).unwrap_or_default()
    }

    /// Returns the whole template, at least as new as the reference says: from the mirror, or from the API when the mirror
    /// is behind or has the head only.
    pub(crate) async fn fetch(&self, reference: &ObjectReference) -> Result<Option<Arc<Value>>, Error> {
        let key = TemplateKey::of_reference(reference);
        if let Some(template) = self.get(&key)
            && !is_head(&template)
            && !is_older(template.resource_version(), &reference.resource_version)
        {
            return Ok(Some(template));
        }
        let Some(served) = self.place(&key)? else { return Ok(None) };
        match api(self.writer.client(), &served, &key.namespace).get(&key.name).await {
            Ok(object) => Ok(Some(Arc::new(tree(object, &served.resource)))),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what patches templates with what can be computed again from other stored objects: it need not
    /// wait for the disk.
    pub(crate) fn derived(&self) -> Derived<'_> {
        Derived(self)
    }

    /// Patches a template; returns it as it now is, or nothing if it is gone. The write is durable: templates
    /// are the users' own objects, and what becomes of them in members follows from them.
    pub(crate) async fn patch(&self, key: &TemplateKey, patch: Value) -> Result<Option<Value>, Error> {
        self.patch_by(&self.writer, key, patch).await
    }

    async fn patch_by(
        &self,
        writer: &Writer,
        key: &TemplateKey,
        patch: Value,
    ) -> Result<Option<Value>, Error> {
        let Some(served) = self.place(key)? else { return Ok(None) };
        let api = api(writer.client(), &served, &key.namespace);
        match api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(object) => Ok(Some(tree(object, &served.resource))),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`Self::patch`], unless it would change nothing: the mirror may not show yet what was written a moment ago, so the
    /// server is asked.
    pub(crate) async fn patch_unless_equal(&self, key: &TemplateKey, patch: Value) -> Result<(), Error> {
        let Some(found) = self.current(key).await? else { return Ok(()) };
        if is_news(&found, &patch) {
            self.patch(key, patch).await?;
        }
        Ok(())
    }

    /// Returns a template as the server has it.
    pub(crate) async fn current(&self, key: &TemplateKey) -> Result<Option<Value>, Error> {
        let Some(served) = self.place(key)? else { return Ok(None) };
        let found = api(self.writer.client(), &served, &key.namespace).get_opt(&key.name).await?;
        Ok(found.map(|found| tree(found, &served.resource)))
    }

    /// Patches a template's status; it is fine if the template is gone. As every status it shows what was
    /// observed, so it can always be computed again.
    pub(crate) async fn patch_status(&self, key: &TemplateKey, patch: Value) -> Result<(), Error> {
        let Some(served) = self.place(key)? else { return Ok(()) };
        let api = api(self.writer.derived().client(), &served, &key.namespace);
        match api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the kind of an object, unless there can be no such object. Users write references: one to the ClusterRole
    /// `cluster-admin` in their own namespace would be one to that of all, since the path of a kind without namespaces has none.
    fn place(&self, key: &TemplateKey) -> Result<Option<Served>, Error> {
        if !key.can_exist() {
            return Ok(None);
        }
        let served = self.served(&key.kind)?;
        Ok((served.namespaced || key.namespace.is_empty()).then_some(served))
    }

    fn served(&self, kind: &Gvk) -> Result<Served, Error> {
        let mirrored = self.kinds.read().get(kind).map(|known| known.served.clone());
        mirrored
            .or_else(|| self.passed_over.read().get(kind).cloned())
            .ok_or_else(|| Error::UnknownKind(kind.to_string()))
    }

    /// Waits until the objects of all kinds are known; a kind that cannot be listed is not waited for any longer
    /// than [`PATIENCE`].
    pub(crate) async fn complete(&self) {
        // The sender lives as long as `self`, so that waiting cannot fail.
        let _ = self.discovered.subscribe().wait_for(|discovered| *discovered).await;
        let mirrors: Vec<_> = self.kinds.read().values().map(|kind| Arc::clone(&kind.mirror)).collect();
        let all = async {
            for mirror in mirrors {
                mirror.complete().await;
            }
        };
        if tokio::time::timeout(PATIENCE, all).await.is_err() {
            tracing::warn!("some kinds cannot be listed; their objects are looked up one by one");
        }
    }

    /// Discovers and mirrors kinds until the process stops.
    pub(crate) fn follow(self: Arc<Self>, supervisor: &Supervisor) {
        let workers = supervisor.clone();
        supervisor.keep("templates", move || self.clone().run(workers.clone()));
    }

    async fn run(self: Arc<Self>, supervisor: Supervisor) {
        let stop = supervisor.token();
        let mut wait = Duration::ZERO;
        loop {
            let next = tokio::select! {
                () = stop.cancelled() => break,
                () = self.definitions_changed.notified() => SECOND_LOOK,
                () = tokio::time::sleep(wait) => PERIOD,
            };
            wait = next;
            if let Err(error) = self.discover(&supervisor).await {
                tracing::warn!(%error, "kinds cannot be discovered");
                wait = SECOND_LOOK;
            } else {
                self.discovered.send_replace(true);
            }
        }
        self.subscribers.write().clear();
        self.subscribers_to_all.write().clear();
    }

    async fn discover(self: &Arc<Self>, supervisor: &Supervisor) -> Result<(), Error> {
        let discovery = match Discovery::new(self.writer.client().clone()).run_aggregated().await {
            Ok(discovery) => discovery,
            // Older servers know the one-by-one form only.
            Err(_) => Discovery::new(self.writer.client().clone()).run().await?,
        };
        let known = self.kinds.read().iter().map(|(gvk, kind)| (gvk.clone(), kind.served.clone())).collect();
        let needed = self.needed.read().clone();
        let Changes { appeared, vanished, passed_over } =
            changes(&known, preferred(&discovery), &self.skip, &needed);
        for (gvk, served) in appeared {
            self.start(gvk, served, supervisor);
        }
        *self.passed_over.write() = passed_over;
        for gvk in vanished {
            if let Some(kind) = self.kinds.write().remove(&gvk) {
                tracing::debug!(kind = %gvk, "no longer served");
                kind.stop.cancel();
            }
        }
        Ok(())
    }

    fn start(self: &Arc<Self>, gvk: Gvk, served: Served, supervisor: &Supervisor) {
        tracing::debug!(kind = %gvk, "watched");
        let mirror = self.mirror(&gvk);
        let kind = Kind { served, mirror, stop: supervisor.token().child_token() };
        let before = self.kinds.write().insert(gvk, kind.clone());
        if let Some(before) = before {
            before.stop.cancel();
        }
        let api = Api::<DynamicObject>::all_with(self.writer.client().clone(), &kind.served.resource);
        let name = format!("mirror/{}", kind.served.resource.plural);
        supervisor.keep_until(name, kind.stop.clone(), move || {
            let (Kind { served, mirror, stop }, api) = (kind.clone(), api.clone());
            async move {
                let convert = |object| Mirrored::new(tree(object, &served.resource));
                mirror.follow(api, watcher::Config::default(), stop, convert).await;
            }
        });
    }

    /// Returns a new mirror of a kind, which passes its changes to the subscribers.
    fn mirror(self: &Arc<Self>, gvk: &Gvk) -> Arc<Mirror<Mirrored>> {
        let mirror = Arc::new(Mirror::default());
        let templates = Arc::clone(self);
        let defines_kinds = matches!(gvk.kind.as_str(), "CustomResourceDefinition" | "APIService");
        mirror.subscribe({
            let gvk = gvk.clone();
            move |change: &Change<Mirrored>| {
                if defines_kinds && !change.initial {
                    templates.definitions_changed.notify_one();
                }
                let new = change.new.as_ref().map(|kept| kept.value(&gvk));
                let old = change.old.as_ref().map(|kept| match &new {
                    Some(new) => kept.value_before(new, &gvk),
                    None => kept.value(&gvk),
                });
                let skipped =
                    new.as_ref().or(old.as_ref()).is_some_and(|object| templates.skip.skips(object));
                let change = Change { key: change.key, old, new, ours: change.ours, initial: change.initial };
                if !skipped {
                    for told in templates.subscribers.read().iter() {
                        told(&change);
                    }
                }
                for told in templates.subscribers_to_all.read().iter() {
                    told(&change);
                }
            }
        });
        mirror
    }
}

/// Patches templates without waiting for the disk.
pub(crate) struct Derived<'a>(&'a Templates);

impl Derived<'_> {
    /// As [`Templates::patch`], for what can be computed again from other stored objects.
    pub(crate) async fn patch(&self, key: &TemplateKey, patch: Value) -> Result<Option<Value>, Error> {
        self.0.patch_by(&self.0.writer.derived(), key, patch).await
    }
}

fn api(client: &Client, served: &Served, namespace: &str) -> Api<DynamicObject> {
    if served.namespaced {
        Api::namespaced_with(client.clone(), namespace, &served.resource)
    } else {
        Api::all_with(client.clone(), &served.resource)
    }
}

/// Returns whether a merge patch changes an object; an empty map counts as absent.
fn is_news(object: &Value, patch: &Value) -> bool {
    match (object, patch) {
        (Value::Null, Value::Object(patch)) => patch.values().any(|field| is_news(&Value::Null, field)),
        (Value::Object(object), Value::Object(patch)) => {
            patch.iter().any(|(name, field)| is_news(object.get(name).unwrap_or(&Value::Null), field))
        }
        (object, patch) => object != patch,
    }
}

#[cfg(test)]
impl Templates {
    /// Adds a kind without asking the server, and without watching its objects.
    pub(crate) fn learn(self: &Arc<Self>, group: &str, version: &str, kind: &str, namespaced: bool) {
        let resource = ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk(group, version, kind));
        let mirror = self.mirror(&Gvk::new(group, version, kind));
        let served = Served { resource, namespaced };
        let kind_of = Kind { served, mirror, stop: CancellationToken::new() };
        self.kinds.write().insert(Gvk::new(group, version, kind), kind_of);
    }

    fn learned(&self, kind: &Gvk) -> Arc<Mirror<Mirrored>> {
        let mirror = self.kinds.read().get(kind).map(|known| Arc::clone(&known.mirror));
        mirror.expect("a kind that was learned of")
    }

    /// Puts in a template as the server has it.
    pub(crate) fn note(&self, template: &Value) {
        let key = runtime::Key::new(template.namespace(), template.name());
        let kept = Arc::new(Mirrored::new(template.clone()));
        self.learned(&template.gvk()).put(&key, template.resource_version(), kept);
    }

    /// Forgets a template.
    pub(crate) fn forget(&self, template: &Value) {
        let key = runtime::Key::new(template.namespace(), template.name());
        self.learned(&template.gvk()).remove(&key, 0);
    }
}

/// Returns each resource once, in the version the server prefers for it, if it can be listed, watched and deleted.
fn preferred(discovery: &Discovery) -> Vec<Served> {
    let mut found = Vec::new();
    for group in discovery.groups() {
        let mut seen = BTreeSet::new();
        let versions = std::iter::once(group.preferred_version_or_latest()).chain(group.versions());
        for version in versions {
            for (resource, capabilities) in group.versioned_resources(version) {
                let usable = [verbs::LIST, verbs::WATCH, verbs::DELETE]
                    .into_iter()
                    .all(|verb| capabilities.supports_operation(verb));
                if seen.insert(resource.plural.clone()) && usable {
                    found.push(Served { resource, namespaced: capabilities.scope == Scope::Namespaced });
                }
            }
        }
    }
    found
}

/// How the kinds that are served differ from those that are mirrored.
#[derive(Debug, PartialEq, Eq)]
struct Changes {
    appeared: Vec<(Gvk, Served)>,
    vanished: Vec<Gvk>,
    /// What is served and not mirrored.
    passed_over: BTreeMap<Gvk, Served>,
}

/// A kind that was defined anew with another plural or scope appears again.
fn changes(
    known: &BTreeMap<Gvk, Served>,
    served: Vec<Served>,
    skip: &SkipRules,
    needed: &BTreeSet<Gvk>,
) -> Changes {
    let stays: BTreeSet<Gvk> =
        known.iter().filter(|(_, address)| served.contains(address)).map(|(gvk, _)| gvk.clone()).collect();
    let (mut seen, mut appeared, mut passed_over) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
    for one in served {
        let gvk = Gvk::new(&one.resource.group, &one.resource.version, &one.resource.kind);
        // Two resources of one kind are the same objects.
        if skip.skips_kind(&gvk) && !needed.contains(&gvk) {
            passed_over.entry(gvk).or_insert(one);
        } else if seen.insert(gvk.clone()) && !stays.contains(&gvk) {
            appeared.push((gvk, one));
        }
    }
    let vanished = known.keys().filter(|gvk| !seen.contains(*gvk)).cloned().collect();
    Changes { appeared, vanished, passed_over }
}

/// Items of a list do not say what they are.
fn tree(mut object: DynamicObject, resource: &ApiResource) -> Value {
    object.metadata.managed_fields = None;
    object.types =
        Some(kube::core::TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() });
    serde_json::to_value(object).unwrap_or_default()
}

/// Compares resource versions; one that is not a number is never older.
fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use kube::api::GroupVersionKind;

    use propagation::Reference as _;
    use serde_json::json;

    use super::*;
    use crate::Settings;
    use crate::world::World;

    fn resource(group: &str, version: &str, kind: &str) -> Served {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Served { resource, namespaced: true }
    }

    #[test]
    fn which_kinds_come_and_go() {
        let gvk = Gvk::new;
        let known = |kinds: &[Gvk]| {
            let served = |gvk: &Gvk| (gvk.clone(), resource(&gvk.group, &gvk.version, &gvk.kind));
            kinds.iter().map(served).collect::<BTreeMap<_, _>>()
        };
        let (map, secret) = (gvk("", "v1", "ConfigMap"), gvk("", "v1", "Secret"));
        let cases = [
            ("a kind appears", known(&[]), vec![resource("", "v1", "ConfigMap")], vec![map.clone()], vec![]),
            (
                "it is known",
                known(std::slice::from_ref(&map)),
                vec![resource("", "v1", "ConfigMap")],
                vec![],
                vec![],
            ),
            (
                "it vanishes",
                known(&[map.clone(), secret.clone()]),
                vec![resource("", "v1", "Secret")],
                vec![],
                vec![map.clone()],
            ),
            (
                "it is defined anew with another scope",
                known(std::slice::from_ref(&map)),
                vec![Served { namespaced: false, ..resource("", "v1", "ConfigMap") }],
                vec![map.clone()],
                vec![],
            ),
            (
                "it has a second resource",
                known(std::slice::from_ref(&map)),
                vec![
                    Served { namespaced: false, ..resource("", "v1", "ConfigMap") },
                    resource("", "v1", "ConfigMap"),
                ],
                vec![],
                vec![],
            ),
            (
                "two resources of one kind",
                known(&[]),
                vec![resource("", "v1", "ConfigMap"), resource("", "v1", "ConfigMap")],
                vec![map.clone()],
                vec![],
            ),
            (
                "another version of it is preferred",
                known(&[gvk("apps", "v1beta1", "Deployment")]),
                vec![resource("apps", "v1", "Deployment")],
                vec![gvk("apps", "v1", "Deployment")],
                vec![gvk("apps", "v1beta1", "Deployment")],
            ),
            (
                "Karmada's own kinds are not propagated",
                known(&[]),
                vec![resource("work.karmada.io", "v1alpha1", "Work")],
                vec![],
                vec![],
            ),
            (
                "nothing is served: nothing is concluded about objects",
                known(std::slice::from_ref(&map)),
                vec![],
                vec![],
                vec![map],
            ),
        ];
        for (name, known, served, appeared, vanished) in cases {
            let found = changes(&known, served, &SkipRules::with_defaults(), &BTreeSet::new());
            let names: Vec<Gvk> = found.appeared.into_iter().map(|(gvk, _)| gvk).collect();
            assert_eq!((names, found.vanished), (appeared, vanished), "{name}");
        }
    }

    #[test]
    fn a_kind_that_policies_pass_over_is_mirrored_if_templates_depend_on_it() {
        let skip = SkipRules::new("v1/ConfigMap", []).expect("a rule");
        let (none, this) = (BTreeSet::new(), BTreeSet::from([Gvk::new("", "v1", "ConfigMap")]));
        let served = || vec![resource("", "v1", "ConfigMap")];
        let mirrored = BTreeMap::from([(Gvk::new("", "v1", "ConfigMap"), resource("", "v1", "ConfigMap"))]);
        let nothing = BTreeMap::new();
        let cases = [
            ("nobody needs it", &nothing, &none, (0, 0, 1)),
            ("somebody needs it", &nothing, &this, (1, 0, 0)),
            ("it is mirrored", &mirrored, &this, (0, 0, 0)),
        ];
        for (name, known, needed, expected) in cases {
            let found = changes(known, served(), &skip, needed);
            let counts = (found.appeared.len(), found.vanished.len(), found.passed_over.len());
            assert_eq!(counts, expected, "{name}");
        }
    }

    #[tokio::test]
    async fn who_is_told_of_what_policies_pass_over() {
        let cases = [
            ("nothing", SkipRules::new("", []), vec!["templates", "all"]),
            ("its kind", SkipRules::new("v1/ConfigMap", []), vec!["all"]),
            ("its namespace", SkipRules::new("", ["world-.*"]), vec!["all"]),
        ];
        for (name, skip, expected) in cases {
            let settings = Settings { skip: skip.expect("a rule"), ..Settings::default() };
            let world = World::with(settings).await;
            let told = Arc::new(parking_lot::Mutex::new(Vec::new()));
            world.plane.templates.subscribe({
                let told = Arc::clone(&told);
                move |_| told.lock().push("templates")
            });
            world.plane.templates.subscribe_to_all({
                let told = Arc::clone(&told);
                move |_| told.lock().push("all")
            });
            world.template("web", json!({})).await;
            assert_eq!(*told.lock(), expected, "policies pass over {name}");
            world.supervisor.stop().await;
        }
    }

    #[tokio::test]
    async fn a_kind_that_policies_pass_over_can_be_read_and_is_mirrored_on_demand() {
        let skip = SkipRules::new("v1/ConfigMap", []).expect("a rule");
        let world = World::with(Settings { skip: skip.clone(), ..Settings::default() }).await;
        let map = world.template("web", json!({})).await;
        let templates = Templates::new(world.environment.writer.clone(), skip);
        let kind = Gvk::new("", "v1", "ConfigMap");
        assert!(matches!(templates.need(&kind), Err(Error::UnknownKind(_))), "nothing was discovered yet");
        assert!(templates.needed.read().is_empty());
        templates.passed_over.write().insert(kind.clone(), resource("", "v1", "ConfigMap"));
        let found = templates.fetch(&map.reference()).await.expect("it is served").expect("it exists");
        assert_eq!(found["data"], map["data"]);
        assert!(templates.get(&TemplateKey::of(&map)).is_none(), "it is not mirrored");
        assert!(matches!(templates.need(&kind), Ok(false)));
        assert_eq!(*templates.needed.read(), BTreeSet::from([kind.clone()]));
        assert!(
            matches!(templates.need(&Gvk::new("", "v1", "Secret")), Ok(true)),
            "others are mirrored anyway"
        );
        world.supervisor.stop().await;
    }

    #[tokio::test]
    async fn a_write_to_a_template_is_durable_unless_it_can_be_computed_again() {
        let world = World::new().await;
        let key = TemplateKey::of(&world.template("web", json!({})).await);
        let templates = &world.plane.templates;
        let label = |value: &str| json!({ "metadata": { "labels": { "a": value } } });
        let (nowhere, write) = (Vec::<String>::new(), vec!["PATCH */configmaps/web".to_owned()]);
        world.writes();
        templates.patch(&key, label("1")).await.expect("written");
        assert_eq!(world.durable_writes(), write, "what cannot be computed again");
        templates.patch_unless_equal(&key, label("2")).await.expect("written");
        assert_eq!(world.durable_writes(), write, "the same, unless it is there");
        templates.patch_unless_equal(&key, label("2")).await.expect("it is there");
        assert_eq!(world.writes(), nowhere);
        let found = templates.derived().patch(&key, label("3")).await.expect("written").expect("it exists");
        assert_eq!(found["metadata"]["labels"]["a"], "3");
        assert_eq!(world.durable_writes(), nowhere, "a claim");
        let gone = TemplateKey { kind: Gvk::new("apps", "v1", "Deployment"), ..key };
        templates.patch_status(&gone, json!({ "status": {} })).await.expect("it is gone, and that is fine");
        assert_eq!(world.durable_writes(), nowhere, "a status");
        assert_eq!(templates.patch(&gone, label("1")).await.expect("that is fine"), None);
        assert_eq!(templates.derived().patch(&gone, label("1")).await.expect("that is fine"), None);
        world.supervisor.stop().await;
    }

    #[tokio::test]
    async fn finding_25_a_name_that_is_a_path_leads_to_no_other_object() {
        let world = World::new().await;
        world.template("web", json!({})).await;
        let templates = &world.plane.templates;
        let inside = format!("{}/configmaps/web", world.namespace);
        let cases = [
            ("Namespace", String::new(), inside.clone()),
            ("Secret", format!("{inside}?a="), "b".to_owned()),
            ("Secret", format!("{inside}#"), "b".to_owned()),
            ("ConfigMap", world.namespace.clone(), "web?a=b".to_owned()),
        ];
        world.writes();
        for (kind, namespace, name) in cases {
            let reference = ObjectReference {
                api_version: "v1".to_owned(),
                kind: kind.to_owned(),
                namespace,
                name,
                ..ObjectReference::default()
            };
            let key = TemplateKey::of_reference(&reference);
            assert_eq!(templates.fetch(&reference).await.expect("no object"), None, "{key:?}");
            assert_eq!(templates.current(&key).await.expect("no object"), None, "{key:?}");
            let label = json!({ "metadata": { "labels": { "a": "b" } } });
            assert_eq!(templates.patch(&key, label).await.expect("no object"), None, "{key:?}");
            templates.patch_status(&key, json!({ "status": {} })).await.expect("no object");
        }
        assert_eq!(world.writes(), Vec::<String>::new());
        world.supervisor.stop().await;
    }

    #[tokio::test]
    async fn finding_25_what_has_no_namespace_is_not_found_in_that_of_a_user() {
        let world = World::new().await;
        let templates = &world.plane.templates;
        let reference = |namespace: &str| ObjectReference {
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            namespace: namespace.to_owned(),
            name: world.namespace.clone(),
            ..ObjectReference::default()
        };
        let known = templates.fetch(&reference("")).await.expect("an answer");
        assert!(known.is_some(), "it is there");
        let odd = reference(&world.namespace);
        let key = TemplateKey::of_reference(&odd);
        world.writes();
        assert_eq!(templates.fetch(&odd).await.expect("no object"), None);
        assert_eq!(templates.current(&key).await.expect("no object"), None);
        let label = json!({ "metadata": { "labels": { "a": "b" } } });
        assert_eq!(templates.patch(&key, label).await.expect("no object"), None);
        templates.patch_status(&key, json!({ "status": {} })).await.expect("no object");
        assert_eq!(world.writes(), Vec::<String>::new());
        world.supervisor.stop().await;
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, than, expected) in [
            ("7", "8", true),
            ("8", "8", false),
            ("9", "8", false),
            ("10", "9", false),
            ("x", "8", false),
            ("8", "", false),
        ] {
            assert_eq!(is_older(version, than), expected, "{version} and {than}");
        }
    }

    #[test]
    fn a_template_is_found_by_what_a_binding_says_of_it() {
        let template = serde_json::json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web", "namespace": "n" } });
        assert_eq!(TemplateKey::of(&template), TemplateKey::of_reference(&template.reference()));
    }

    #[test]
    fn a_patch_that_changes_nothing_is_known() {
        let object = json!({"metadata": {"labels": {"a": "1"}}});
        for (patch, changing) in [
            (json!({"metadata": {"labels": {"a": "1", "b": null}, "annotations": {}}}), false),
            (json!({"metadata": {"annotations": {"c": null}}}), false),
            (json!({"metadata": {"labels": {"a": null}}}), true),
            (json!({"metadata": {"labels": {"a": "2"}}}), true),
            (json!({"metadata": {"annotations": {"c": "1"}}}), true),
        ] {
            assert_eq!(is_news(&object, &patch), changing, "{patch}");
        }
    }
}
