//! The removals of apply: objects that are no longer in the files (`--prune`), and objects that must be created again
//! (`--force`).
//!
//! Only objects that an earlier apply created are pruned: they have its annotation. With a selector, only matching ones are.

use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use serde_json::{Value, json};

use super::LAST_APPLIED;
use crate::clients::duration;
use crate::delete::{Cascade, gone};
use crate::discovery::Resource;
use crate::failure;
use crate::output;
use crate::print::DryRun;
use crate::select::{Item, list, typed};
use crate::server::{Plane, Server};

/// The types that are searched without `--prune-allowlist`: group, version, kind.
const DEFAULTS: [(&str, &str, &str); 16] = [
    ("", "v1", "ConfigMap"),
    ("", "v1", "Endpoints"),
    ("", "v1", "PersistentVolumeClaim"),
    ("", "v1", "Pod"),
    ("", "v1", "ReplicationController"),
    ("", "v1", "Secret"),
    ("", "v1", "Service"),
    ("batch", "v1", "Job"),
    ("batch", "v1", "CronJob"),
    ("networking.k8s.io", "v1", "Ingress"),
    ("apps", "v1", "DaemonSet"),
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "ReplicaSet"),
    ("apps", "v1", "StatefulSet"),
    ("", "v1", "Namespace"),
    ("", "v1", "PersistentVolume"),
];

/// The flags about removing.
#[derive(Debug, Clone, Args)]
pub struct Removal {
    /// Delete objects that an earlier apply made and that the files no longer hold.
    #[arg(long)]
    pub prune: bool,
    /// With --prune, look through these types only, as GROUP/VERSION/KIND; may be repeated.
    #[arg(long, value_name = "GROUP/VERSION/KIND")]
    pub prune_allowlist: Vec<String>,
    /// With --prune and without a selector: all objects of the types may be deleted.
    #[arg(long)]
    pub all: bool,
    /// Delete and create anew what cannot be changed.
    #[arg(long)]
    pub force: bool,
    /// Seconds given to what is deleted to terminate gracefully; ignored if negative.
    #[arg(long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true)]
    pub grace_period: i64,
    #[command(flatten)]
    pub cascade: Cascade,
    /// Wait for deleted objects to be gone before returning.
    #[arg(long)]
    pub wait: bool,
    /// How long to wait for a deletion; zero means a week.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::clients::duration_text)]
    pub timeout: String,
}

/// An applied object.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) namespace: String,
    pub(super) uid: String,
}

impl Removal {
    pub(super) fn check(&self, selector: Option<&str>) -> anyhow::Result<()> {
        self.allowed()?;
        duration(&self.timeout)?;
        self.cascade.get()?;
        if self.prune && selector.is_none() && !self.all {
            bail!(
                "all resources selected for prune without explicitly passing --all. To prune all resources, pass the --all \
                 flag. If you did not mean to prune all resources, specify a label selector"
            );
        }
        if self.prune && selector.is_some() && self.all {
            bail!("cannot set --all and --selector at the same time");
        }
        if self.force && self.grace_period > 0 {
            bail!("--force and --grace-period greater than 0 cannot be specified together");
        }
        Ok(())
    }

    fn allowed(&self) -> anyhow::Result<Vec<(String, String, String)>> {
        if self.prune_allowlist.is_empty() {
            let own = |text: &str| text.to_owned();
            return Ok(DEFAULTS
                .iter()
                .map(|(group, version, kind)| (own(group), own(version), own(kind)))
                .collect());
        }
        let read = self.prune_allowlist.iter().map(|text| {
            let parts: Vec<&str> = text.split('/').collect();
            let [group, version, kind] = parts[..] else {
                bail!("invalid GroupVersionKind format: {text}, please follow <group/version/kind>");
            };
            let group = if group == "core" { "" } else { group };
            Ok((group.to_owned(), version.to_owned(), kind.to_owned()))
        });
        read.collect()
    }

    /// Refuses types that the server does not have, before anything is written.
    pub(super) async fn known(&self, plane: &Plane) -> anyhow::Result<()> {
        let discovery = plane.server.discovery().await?;
        for (group, version, kind) in self.allowed()? {
            let has = |each: &Resource| each.group == group && each.version == version && each.kind == kind;
            if !self.prune_allowlist.is_empty() && !discovery.resources.iter().any(has) {
                let place = if group.is_empty() { version } else { format!("{group}/{version}") };
                bail!("no matches for kind \"{kind}\" in version \"{place}\"");
            }
        }
        Ok(())
    }

    /// Deletes objects that are no longer in the files.
    pub(super) async fn prune(
        &self,
        plane: &Plane,
        selector: Option<&str>,
        dry_run: DryRun,
        seen: &[Seen],
    ) -> anyhow::Result<()> {
        let discovery = plane.server.discovery().await?;
        let mut namespaces: Vec<&str> = seen.iter().map(|seen| seen.namespace.as_str()).collect();
        namespaces.retain(|namespace| !namespace.is_empty());
        namespaces.sort_unstable();
        namespaces.dedup();
        for (group, version, kind) in self.allowed()? {
            let found = discovery
                .resources
                .iter()
                .find(|r| r.group == group && r.version == version && r.kind == kind);
            let Some(resource) = found else {
                // A default type that the server lacks is skipped.
                if self.prune_allowlist.is_empty() {
                    continue;
                }
                return Err(anyhow!("no matches for kind {kind:?} in version \"{group}/{version}\""));
            };
            let places: Vec<Option<&str>> = match (resource.namespaced, plane.namespace_asked) {
                (true, _) => namespaces.iter().map(|namespace| Some(*namespace)).collect(),
                // A namespace on the command line limits the search to its objects.
                (false, true) => Vec::new(),
                (false, false) => vec![None],
            };
            for place in places {
                let path = resource.collection(place);
                for object in list(&plane.server, &path, selector, None).await? {
                    if stale(&object, seen) {
                        self.remove(plane, resource, object, dry_run).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn remove(
        &self,
        plane: &Plane,
        resource: &Resource,
        object: Value,
        dry_run: DryRun,
    ) -> anyhow::Result<()> {
        let item = Item::new(resource, typed(object, resource));
        self.delete(&plane.server, &item, dry_run, self.wait).await?;
        output::line(&format!("{} pruned{}", item.title(), dry_run.suffix()));
        Ok(())
    }

    /// Deletes one object, and waits if asked.
    pub(super) async fn delete(
        &self,
        server: &Server,
        item: &Item,
        dry_run: DryRun,
        wait: bool,
    ) -> anyhow::Result<()> {
        if dry_run == DryRun::Client {
            return Ok(());
        }
        let mut options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": self.cascade.get()?,
            // Exactly this object: another one with the same name belongs to someone else.
            "preconditions": {"uid": item.object["metadata"]["uid"]},
        });
        let grace = if self.force && self.grace_period < 0 { 0 } else { self.grace_period };
        if grace >= 0 {
            options["gracePeriodSeconds"] = grace.into();
        }
        if dry_run == DryRun::Server {
            options["dryRun"] = json!(["All"]);
        }
        match server.delete(&item.path(), &options).await {
            Err(error) if !failure::is_not_found(&error) => return Err(error),
            _ => {}
        }
        if wait && dry_run == DryRun::None {
            let patience = match duration(&self.timeout)? {
                Duration::ZERO => Duration::from_secs(7 * 24 * 3600),
                patience => patience,
            };
            gone(server, item, patience).await?;
        }
        Ok(())
    }
}

/// Returns whether an earlier apply created it, and this one did not contain it.
fn stale(object: &Value, seen: &[Seen]) -> bool {
    let metadata = &object["metadata"];
    let applied = metadata["annotations"][LAST_APPLIED].as_str().is_some_and(|text| !text.is_empty());
    let leaving = metadata["deletionTimestamp"].is_string();
    applied
        && !leaving
        && metadata["uid"].as_str().is_some_and(|uid| !seen.iter().any(|seen| seen.uid == uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_apply_made_and_no_longer_holds_is_stale() {
        let seen = [Seen { namespace: String::new(), uid: "1".to_owned() }];
        let object = |uid: &str, applied: bool| {
            let annotations = if applied { json!({LAST_APPLIED: "{}"}) } else { json!({}) };
            json!({"metadata": {"uid": uid, "annotations": annotations}})
        };
        assert!(stale(&object("2", true), &seen));
        assert!(!stale(&object("1", true), &seen), "it was applied just now");
        assert!(!stale(&object("2", false), &seen), "somebody else made it");
        let mut leaving = object("2", true);
        leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(!stale(&leaving, &seen));
    }
}
