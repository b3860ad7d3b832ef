//! `apply`: gives the control plane the objects in files, and on request propagates them to members.
//!
//! In: manifests. Out: objects created, configured or unchanged. A field that the last apply set and that is no longer in the
//! file is removed: the annotation `last-applied-configuration` records the fields, as for kubectl. The server decides what to
//! merge: the patch contains the whole configuration, with removals. An object counts as unchanged only if its version stays the
//! same.

use std::cell::RefCell;

use anyhow::bail;
use api::names;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::discovery::Resource;
use crate::failure::{self, Failures, Plain, Refusal};
use crate::manifests::Files;
use crate::output;
use crate::print::{DryRun, DryRunFlag, Output, Validation};
use crate::select::{Item, Query};
use crate::server::{Namespaced, Plane, Server, query, segment};

mod ownership;
mod prune;

use prune::{Removal, Seen};

pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Apply a configuration to a resource by file name or stdin and propagate them into member clusters.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Apply the configuration without propagation into member clusters
  karmadactl apply -f manifest.yaml

  # Apply the configuration with propagation into specific member clusters
  karmadactl apply -f manifest.yaml --cluster member1,member2

  # Apply resources from a directory and propagate all of them into all member clusters
  karmadactl apply -f dir/ --all-clusters")]
pub struct Arguments {
    #[command(flatten)]
    pub place: Namespaced,
    /// Nothing is expected here.
    #[arg(hide = true)]
    pub words: Vec<String>,
    #[command(flatten)]
    pub files: Files,
    /// Propagate the resources to all member clusters.
    #[arg(long)]
    pub all_clusters: bool,
    /// Propagate the resources to these clusters, by name, glob or label selector.
    #[arg(short = 'C', long, value_name = "CLUSTER")]
    pub cluster: Vec<String>,
    /// Apply only the objects of the files that this label selector fits.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Apply in the server instead of the client.
    #[arg(long)]
    pub server_side: bool,
    /// Server-side apply takes fields over that others own.
    #[arg(long, requires = "server_side")]
    pub force_conflicts: bool,
    /// Name of the manager used to track field ownership.
    #[arg(long, value_name = "NAME")]
    pub field_manager: Option<String>,
    /// Values of the configuration win over live ones that others changed.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub overwrite: bool,
    #[command(flatten)]
    pub validation: Validation,
    #[command(flatten)]
    pub removal: Removal,
    /// Apply to this subresource of the object; only with --server-side.
    #[arg(long, value_name = "SUBRESOURCE", default_value = "")]
    pub subresource: String,
    /// Accepted for kubectl's sake: the server decides what to merge.
    #[arg(long, hide = true, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub openapi_patch: bool,
    #[command(flatten)]
    pub dry_run: DryRunFlag,
    #[command(flatten)]
    pub output: Output,
}

/// Applies everything.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let dry_run = arguments.dry_run.get()?;
    if !arguments.words.is_empty() {
        return Err(failure::misused("apply", &format!("Unexpected args: [{}]", arguments.words.join(" "))));
    }
    if arguments.files.is_empty() {
        bail!("must specify one of -f and -k");
    }
    if arguments.all_clusters && !arguments.cluster.is_empty() {
        bail!("--all-clusters and --cluster cannot be used together");
    }
    if arguments.removal.force && arguments.server_side {
        bail!("--force cannot be used with --server-side");
    }
    if !arguments.subresource.is_empty() && !arguments.server_side {
        bail!("--subresource can only be specified for --server-side");
    }
    arguments.removal.check(arguments.selector.as_deref())?;
    if arguments.server_side && dry_run == DryRun::Client {
        bail!("--dry-run=client doesn't work with --server-side (did you mean --dry-run=server instead?)");
    }
    let validation = arguments.validation.get()?;
    arguments.output.format()?;
    let selector = match &arguments.selector {
        Some(text) => Some(
            apimachinery::selector::label::Selector::parse(text)
                .map_err(|error| anyhow::anyhow!("unable to parse requirement: {error}"))?,
        ),
        None => None,
    };
    let mut manifests = arguments.files.read().await?;
    if let Some(selector) = &selector {
        manifests.retain(|manifest| selector.matches(&manifest.object["metadata"]["labels"]));
    }
    if manifests.is_empty() {
        bail!("no objects passed to apply");
    }
    let plane = arguments.place.plane().await?;
    if arguments.removal.prune {
        arguments.removal.known(&plane).await?;
    }
    let clusters = if arguments.cluster.is_empty() {
        Vec::new()
    } else {
        plane.select(&arguments.cluster).await.map_err(|error| {
            match error.to_string().strip_prefix("clusters don't exist: ") {
                Some(names) if !names.contains(',') => anyhow::anyhow!("cluster {}", absent(names)),
                _ => error,
            }
        })?
    };
    let propagated = arguments.all_clusters || !clusters.is_empty();
    let work = Work { arguments: &arguments, plane: &plane, dry_run, validation, seen: RefCell::default() };
    let mut failures = Vec::new();
    for manifest in manifests {
        let source = manifest.source;
        if let Err(error) = work.with_policy(manifest.object, &source, propagated, &clusters).await {
            failures.push(match error.downcast::<Refusal>() {
                Ok(refusal) => refusal.into(),
                Err(error) if error.is::<Plain>() => error,
                Err(error) => failure::in_source(error, "applying", &source),
            });
        }
    }
    // Objects that could not be applied must not be mistaken for ones that are gone from the files.
    if arguments.removal.prune && failures.is_empty() {
        let seen = work.seen.take();
        arguments.removal.prune(&plane, arguments.selector.as_deref(), dry_run, &seen).await?;
    }
    Failures::check(failures)
}

/// `nowhere does not exist`, followed by the hint.
fn absent(names: &str) -> String {
    match names.split_once(';') {
        Some((name, hint)) => format!("{name} does not exist;{hint}"),
        None => format!("{names} does not exist"),
    }
}

/// The default manager of fields that the server applies.
const SERVER_SIDE: &str = "kubectl";

/// The hint for conflicts, in kubectl's words.
const CONFLICTS: &str = "Please review the fields above--they currently have other managers. Here
are the ways you can resolve this warning:
* If you intend to manage all of these fields, please re-run the apply
  command with the `--force-conflicts` flag.
* If you do not intend to manage all of the fields, please edit your
  manifest to remove references to the fields that should keep their
  current managers.
* You may co-own fields by updating your manifest to match the existing
  value; in this case, you'll become the manager if the other manager(s)
  stop managing the field (remove it from their configuration).
See https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts";

struct Work<'a> {
    arguments: &'a Arguments,
    plane: &'a Plane,
    dry_run: DryRun,
    validation: &'static str,
    /// The result of applying an object.
    seen: RefCell<Vec<Seen>>,
}

impl Work<'_> {
    /// Applies an object, and then the policy that propagates it.
    async fn with_policy(
        &self,
        object: Value,
        source: &str,
        propagated: bool,
        clusters: &[String],
    ) -> anyhow::Result<()> {
        let discovery = self.plane.server.discovery().await?;
        let resource = discovery.of(&object)?;
        let (name, namespace) = self.one(resource, object, source).await?;
        if propagated {
            let policy = policy(resource, &namespace, &name, clusters);
            let resource = discovery.of(&policy)?;
            self.one(resource, policy, source).await?;
        }
        Ok(())
    }

    async fn one(
        &self,
        resource: &Resource,
        mut object: Value,
        source: &str,
    ) -> anyhow::Result<(String, String)> {
        let asked = Query {
            namespace: self.plane.namespace.clone(),
            namespace_asked: self.plane.namespace_asked,
            ..Query::default()
        };
        let namespace = asked.namespace_of(resource, &object)?;
        if resource.namespaced {
            object["metadata"]["namespace"] = namespace.clone().into();
        }
        let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
        if name.is_empty() {
            let hint = if object["metadata"]["generateName"].is_string() {
                ": cannot use generate name with apply"
            } else {
                ""
            };
            bail!("resource name may not be empty{hint}");
        }
        let (done, live) = if self.arguments.server_side {
            ("serverside-applied", self.server_side(resource, &namespace, &name, &object).await?)
        } else {
            self.client_side(resource, &namespace, &name, object, source).await?
        };
        let uid = live["metadata"]["uid"].as_str().unwrap_or("").to_owned();
        self.seen.borrow_mut().push(Seen { namespace: namespace.clone(), uid });
        self.arguments.output.tell(resource, &live, done, self.dry_run)?;
        Ok((name, namespace))
    }

    fn query(&self, manager: &str) -> String {
        let manager = self.arguments.field_manager.as_deref().unwrap_or(manager);
        format!("fieldManager={}&fieldValidation={}{}", query(manager), self.validation, self.dry_run.query())
    }

    async fn server_side(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> anyhow::Result<Value> {
        let force = self.arguments.force_conflicts;
        let part = match self.arguments.subresource.as_str() {
            "" => String::new(),
            part => format!("/{}", segment(part)),
        };
        let path = format!("{}{part}", resource.path(namespace, name));
        let applied = format!("{path}?{}&force={force}", self.query(SERVER_SIDE));
        let apply = async || {
            let result = self.server().patch(&applied, "application/apply-patch+yaml", object).await;
            result.map_err(|error| match error.downcast_ref::<Refusal>() {
                Some(refusal) if refusal.reason() == "Conflict" => {
                    Plain(format!("error: {refusal}\n{CONFLICTS}")).into()
                }
                _ => error,
            })
        };
        let live = apply().await?;
        if !part.is_empty() || self.dry_run != DryRun::None {
            return Ok(live);
        }
        // The fields of a client-side apply belong to its manager; from now on they belong to this one.
        let manager = self.arguments.field_manager.as_deref().unwrap_or(SERVER_SIDE);
        if manager == SERVER_SIDE {
            ownership::keep_annotation(self.server(), &path, &live).await?;
        }
        if ownership::hand_over(self.server(), &path, &live, manager).await? {
            return apply().await;
        }
        Ok(live)
    }

    fn server(&self) -> &Server {
        &self.plane.server
    }

    async fn client_side(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        object: Value,
        source: &str,
    ) -> anyhow::Result<(&'static str, Value)> {
        let object = remembered(object);
        let path = resource.path(namespace, name);
        let query = self.query("kubectl-client-side-apply");
        let live = match self.server().get(&path).await {
            Ok(live) => live,
            Err(error) if failure::is_not_found(&error) => {
                if self.dry_run == DryRun::Client {
                    return Ok(("created", object));
                }
                let path = format!("{}?{query}", resource.collection(Some(namespace)));
                let created = self.server().post(&path, &object).await;
                return Ok((
                    "created",
                    created.map_err(|error| match error.downcast::<Refusal>() {
                        Ok(refusal) => refusal.when("creating", source),
                        Err(error) => error,
                    })?,
                ));
            }
            Err(error) => return Err(error),
        };
        let last = live["metadata"]["annotations"][LAST_APPLIED].as_str();
        let last: Value = last.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if last.is_null() {
            let program = crate::program::shown();
            output::warn(&format!(
                "Warning: resource {}/{name} is missing the {LAST_APPLIED} annotation which is required by {program} apply. \
                 {program} apply should only be used on resources created declaratively by either {program} create \
                 --save-config or {program} apply. The missing annotation will be patched automatically.",
                resource.plural
            ));
        }
        if self.dry_run == DryRun::Client {
            return Ok(("configured", live));
        }
        if !self.arguments.overwrite
            && let Some(field) = conflict(&last, &live, &object)
        {
            bail!(
                "{field} was changed by somebody else since the last apply, and --overwrite=false leaves it alone"
            );
        }
        let changed = match merged(self.server(), resource, &path, &query, &live, &object).await {
            Err(error) if self.arguments.removal.force && replaceable(&error) => {
                self.replace(resource, namespace, &live, &object, &query).await?
            }
            result => result?,
        };
        let unchanged = if self.dry_run == DryRun::None {
            changed["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]
        } else {
            // Nothing was written, so the version is the old one.
            without_version(&changed) == without_version(&live)
        };
        let done = if unchanged { "unchanged" } else { "configured" };
        Ok((done, changed))
    }
}

impl Work<'_> {
    /// Deletes an object that cannot be changed, and creates it again.
    async fn replace(
        &self,
        resource: &Resource,
        namespace: &str,
        live: &Value,
        object: &Value,
        query: &str,
    ) -> anyhow::Result<Value> {
        let item = Item::new(resource, live.clone());
        self.arguments.removal.delete(self.server(), &item, self.dry_run, true).await?;
        let path = format!("{}?{query}", resource.collection(Some(namespace)));
        self.server().post(&path, object).await
    }
}

/// Returns the object without the fields that every write changes.
fn without_version(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["resourceVersion", "managedFields", "generation"] {
            metadata.remove(field);
        }
    }
    object
}

/// Returns whether an object can only be replaced by creating it again.
fn replaceable(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| matches!(refusal.reason(), "Invalid" | "Conflict"))
}

/// Returns a field that the file changes, and that another client has changed to a different value since the last apply.
fn conflict(last: &Value, live: &Value, now: &Value) -> Option<String> {
    match (last, now) {
        (Value::Object(last), Value::Object(now)) => now.iter().find_map(|(key, value)| {
            if key == LAST_APPLIED {
                return None;
            }
            let inner = conflict(last.get(key)?, &live[key], value)?;
            Some(if inner.is_empty() { key.clone() } else { format!("{key}.{inner}") })
        }),
        _ => (now != last && live != last && live != now).then(String::new),
    }
}

/// Lets the server merge a configuration into the live object; returns the result.
pub(crate) async fn merged(
    server: &Server,
    resource: &Resource,
    path: &str,
    query: &str,
    live: &Value,
    object: &Value,
) -> anyhow::Result<Value> {
    let last = live["metadata"]["annotations"][LAST_APPLIED].as_str();
    let last: Value = last.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let path = format!("{path}?{query}");
    let strategic = with_removals(&last, object, true, "", &resource.kind);
    match server.patch(&path, "application/strategic-merge-patch+json", &strategic).await {
        // Types from definitions support only merge patches.
        Err(error) if error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.code == 415) => {
            let merge = with_removals(&last, object, false, "", &resource.kind);
            server.patch(&path, "application/merge-patch+json", &merge).await
        }
        result => result,
    }
}

/// Returns the object with the annotation that tells the next apply which fields this one set.
pub(crate) fn remembered(mut object: Value) -> Value {
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove(LAST_APPLIED);
    }
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    let text = format!("{}\n", apimachinery::json::write(&object));
    object["metadata"]["annotations"][LAST_APPLIED] = text.into();
    object
}

/// Returns the configuration as a patch: with nulls for fields that only the last one had.
fn with_removals(last: &Value, now: &Value, strategic: bool, field: &str, kind: &str) -> Value {
    match (last, now) {
        (Value::Object(last), Value::Object(now)) => {
            let mut patch = Map::new();
            for (key, value) in now {
                let before = last.get(key).unwrap_or(&Value::Null);
                patch.insert(key.clone(), with_removals(before, value, strategic, key, kind));
            }
            for key in last.keys().filter(|key| !now.contains_key(*key)) {
                patch.insert(key.clone(), Value::Null);
            }
            patch.into()
        }
        (Value::Array(last), Value::Array(now)) if strategic => {
            let Some(key) = merge_key(field, now.first().or_else(|| last.first()), kind) else {
                return now.clone().into();
            };
            let same =
                |one: &Value, other: &Value| one[key] == other[key] && one["protocol"] == other["protocol"];
            let mut patch: Vec<Value> = now
                .iter()
                .map(|item| {
                    let before = last.iter().find(|each| same(each, item)).unwrap_or(&Value::Null);
                    with_removals(before, item, strategic, "", kind)
                })
                .collect();
            for gone in last.iter().filter(|item| !now.iter().any(|each| each[key] == item[key])) {
                patch.push(json!({ "$patch": "delete", key: gone[key] }));
            }
            patch.into()
        }
        (_, now) => now.clone(),
    }
}

/// The field that distinguishes the items of a list, if they all have it.
fn merge_key(field: &str, item: Option<&Value>, kind: &str) -> Option<&'static str> {
    let item = item?;
    key_of(field, kind).filter(|key| item.get(key).is_some())
}

/// The field that distinguishes the items of a list, for lists of native types that are merged.
pub(crate) fn key_of(field: &str, kind: &str) -> Option<&'static str> {
    Some(match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "resourceClaims" => "name",
        "secrets" if kind == "ServiceAccount" => "name",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        "ports" if kind == "Service" => "port",
        "ports" => "containerPort",
        "hostAliases" => "ip",
        "topologySpreadConstraints" => "topologyKey",
        "ownerReferences" => "uid",
        "webhooks" => "name",
        _ => return None,
    })
}

/// Returns the policy that propagates an object to the clusters, or to all of them.
fn policy(resource: &Resource, namespace: &str, name: &str, clusters: &[String]) -> Value {
    let namespaced = resource.namespaced;
    let gvk = names::go_gvk(&resource.group, &resource.version, &resource.kind);
    let affinity = if clusters.is_empty() { json!({}) } else { json!({ "clusterNames": clusters }) };
    let mut selector = json!({ "apiVersion": resource.api_version(), "kind": resource.kind, "name": name });
    let mut metadata = json!({ "name": names::generated_policy(namespace, name, &gvk) });
    if namespaced {
        selector["namespace"] = namespace.into();
        metadata["namespace"] = namespace.into();
    }
    json!({
        "apiVersion": "policy.karmada.io/v1alpha1",
        "kind": if namespaced { "PropagationPolicy" } else { "ClusterPropagationPolicy" },
        "metadata": metadata,
        "spec": { "resourceSelectors": [selector], "placement": { "clusterAffinity": affinity } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_only_the_last_apply_had_are_removed() {
        let last = json!({"spec": {"a": 1, "b": {"c": 1, "d": 2}, "containers": [
            {"name": "x", "image": "1", "args": ["y"]}, {"name": "gone"}]}, "list": [1, 2]});
        let now = json!({"spec": {"b": {"c": 1}, "containers": [{"name": "x", "image": "2"}]}, "list": [2]});
        assert_eq!(
            with_removals(&last, &now, true, "", "Pod"),
            json!({"spec": {"a": null, "b": {"c": 1, "d": null}, "containers": [
                {"name": "x", "image": "2", "args": null}, {"name": "gone", "$patch": "delete"}]}, "list": [2]})
        );
        assert_eq!(
            with_removals(&last, &now, false, "", "X")["spec"]["containers"],
            json!([{"name": "x", "image": "2"}])
        );
        assert_eq!(with_removals(&Value::Null, &now, true, "", "Pod"), now);
    }

    #[test]
    fn a_field_that_two_have_changed_is_a_conflict() {
        let (last, live) = (json!({"a": {"b": 1, "c": 1}}), json!({"a": {"b": 2, "c": 1}}));
        assert_eq!(conflict(&last, &live, &json!({"a": {"b": 3}})).as_deref(), Some("a.b"));
        for peaceful in
            [json!({"a": {"b": 2}}), json!({"a": {"b": 1}}), json!({"a": {"c": 5}}), json!({"d": 1})]
        {
            assert_eq!(conflict(&last, &live, &peaceful), None, "{peaceful}");
        }
    }

    #[test]
    fn an_object_remembers_what_was_applied() {
        let object = json!({"kind": "X", "metadata": {"name": "n"}});
        let once = remembered(object);
        let text = once["metadata"]["annotations"][LAST_APPLIED].as_str().expect("an annotation");
        assert_eq!(text, "{\"kind\":\"X\",\"metadata\":{\"annotations\":{},\"name\":\"n\"}}\n");
        assert_eq!(remembered(once.clone()), once);
    }

    #[test]
    fn the_policy_selects_one_object() {
        let resource = Resource {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            namespaced: true,
            ..Resource::default()
        };
        let made = policy(&resource, "ns", "web", &["m1".to_owned()]);
        assert_eq!(made["kind"], "PropagationPolicy");
        assert_eq!(made["metadata"]["namespace"], "ns");
        assert_eq!(made["spec"]["placement"]["clusterAffinity"], json!({"clusterNames": ["m1"]}));
        assert_eq!(policy(&resource, "ns", "web", &[])["spec"]["placement"]["clusterAffinity"], json!({}));
    }
}
