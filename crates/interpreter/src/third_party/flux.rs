//! Flux: what is applied (Kustomization, HelmRelease) and where it comes from (sources).

use api::config::DependentObjectReference;
use serde_json::{Map, Value, json};

use super::blocks::{
    aggregate_generation, at, json_number, last, list, need, number, refer, reference, retain_suspend,
    some_text, status, statuses, text, united_conditions, with_generation,
};
use super::{Items, Rules};
use crate::Result;

const REVISIONS: &[&str] = &["lastAttemptedRevision", "lastAppliedRevision"];
const RELEASE: &[&str] = &[
    "lastAttemptedRevision",
    "lastAppliedRevision",
    "lastAttemptedValuesChecksum",
    "helmChart",
    "lastReleaseRevision",
];
const FAILURES: &[&str] = &["failures", "upgradeFailures", "installFailures"];

pub(super) const KUSTOMIZATION: Rules = Rules {
    retain: Some(retain_suspend),
    health: Some(|object| Ok(is_ready(object, &["ReconciliationSucceeded"]))),
    reflect: Some(|object| {
        Ok(with_generation(object, &[&["conditions", "observedGeneration"], REVISIONS].concat()))
    }),
    aggregate: Some(|object, items, _| aggregate_applied(object, items, REVISIONS)),
    dependencies: Some(|object| {
        need(object, &["spec"])?;
        let mut found = Vec::new();
        refer(&mut found, object, "Secret", &["spec", "decryption", "secretRef", "name"]);
        refer(&mut found, object, "Secret", &["spec", "kubeConfig", "secretRef", "name"]);
        refer(&mut found, object, "ServiceAccount", &["spec", "serviceAccountName"]);
        Ok(found)
    }),
    ..Rules::NONE
};

pub(super) const HELM_RELEASE: Rules = Rules {
    reflect: Some(|object| {
        Ok(with_generation(object, &[&["conditions", "observedGeneration"], RELEASE, FAILURES].concat()))
    }),
    aggregate: Some(|object, items, _| {
        for name in FAILURES {
            if items.is_empty() {
                status(object).insert((*name).to_owned(), json!(0));
            } else if let Some(before) = number(object, &["status", name]) {
                let more: f64 = statuses(items).filter_map(|(_, found)| number(found, &[name])).sum();
                status(object).insert((*name).to_owned(), json_number(before + more));
            }
        }
        aggregate_applied(object, items, RELEASE)
    }),
    dependencies: Some(|object| {
        let spec = need(object, &["spec"])?;
        let mut found = Vec::new();
        for source in list(spec, &["valuesFrom"]) {
            if let (Some(kind @ ("Secret" | "ConfigMap")), Some(name)) =
                (text(source, &["kind"]), some_text(source, &["name"]))
            {
                found.push(reference(object, kind, name));
            }
        }
        refer(&mut found, object, "Secret", &["spec", "chart", "spec", "verify", "secretRef", "name"]);
        refer(&mut found, object, "Secret", &["spec", "kubeConfig", "secretRef", "name"]);
        refer(&mut found, object, "ServiceAccount", &["spec", "serviceAccountName"]);
        Ok(found)
    }),
    ..KUSTOMIZATION
};

pub(super) const GIT_REPOSITORY: Rules = Rules {
    retain: Some(retain_suspend),
    health: Some(|object| Ok(is_ready(object, &["Succeeded"]))),
    reflect: Some(|object| {
        let names =
            ["conditions", "artifact", "observedGeneration", "observedIgnore", "observedRecurseSubmodules"];
        Ok(with_generation(object, &names))
    }),
    aggregate: Some(|object, items, _| aggregate_source(object, items, &[])),
    dependencies: Some(|object| {
        secrets(object, &[&["spec", "secretRef", "name"], &["spec", "verify", "secretRef", "name"]])
    }),
    ..Rules::NONE
};

pub(super) const BUCKET: Rules = Rules {
    reflect: Some(|object| {
        let names = ["conditions", "artifact", "observedGeneration", "observedIgnore", "url"];
        Ok(with_generation(object, &names))
    }),
    aggregate: Some(|object, items, _| aggregate_source(object, items, &["url"])),
    dependencies: Some(|object| secrets(object, &[&["spec", "secretRef", "name"]])),
    ..GIT_REPOSITORY
};

pub(super) const HELM_REPOSITORY: Rules = Rules {
    reflect: Some(|object| {
        Ok(with_generation(object, &["conditions", "artifact", "observedGeneration", "url"]))
    }),
    ..BUCKET
};

pub(super) const HELM_CHART: Rules = Rules {
    health: Some(|object| Ok(is_ready(object, &["Succeeded", "ChartPullSucceeded"]))),
    // Upstream reads the observed generation from a name that nobody sets.
    reflect: Some(|object| {
        let names = ["conditions", "artifact", "url", "observedChartName", "observedSourceArtifactRevision"];
        Ok(with_generation(object, &names))
    }),
    aggregate: Some(|object, items, _| {
        aggregate_source(object, items, &["url", "observedSourceArtifactRevision", "observedChartName"])
    }),
    dependencies: Some(|object| secrets(object, &[&["spec", "verify", "secretRef", "name"]])),
    ..GIT_REPOSITORY
};

pub(super) const OCI_REPOSITORY: Rules = Rules {
    reflect: Some(|object| {
        let names = [
            "conditions",
            "artifact",
            "observedGeneration",
            "observedIgnore",
            "observedLayerSelector",
            "url",
        ];
        Ok(with_generation(object, &names))
    }),
    dependencies: Some(|object| {
        let mut found = secrets(
            object,
            &[
                &["spec", "secretRef", "name"],
                &["spec", "verify", "secretRef", "name"],
                &["spec", "certSecretRef", "name"],
            ],
        )?;
        refer(&mut found, object, "ServiceAccount", &["spec", "serviceAccountName"]);
        Ok(found)
    }),
    ..BUCKET
};

fn secrets(object: &Value, paths: &[&[&str]]) -> Result<Vec<DependentObjectReference>> {
    need(object, &["spec"])?;
    let mut found = Vec::new();
    for path in paths {
        refer(&mut found, object, "Secret", path);
    }
    Ok(found)
}

fn is_ready(object: &Value, reasons: &[&str]) -> bool {
    list(object, &["status", "conditions"]).iter().any(|condition| {
        let field = |name| text(condition, &[name]).unwrap_or_default();
        field("type") == "Ready" && field("status") == "True" && reasons.contains(&field("reason"))
    })
}

fn aggregate_applied(object: &mut Value, items: Items<'_>, names: &[&str]) -> Result<()> {
    let conditions = united_conditions(items)?;
    aggregate_generation(object, items);
    let own = status(object);
    for name in names {
        if items.is_empty() {
            own.insert((*name).to_owned(), json!(""));
        } else if let Some(value) = last(items, name) {
            own.insert((*name).to_owned(), value);
        }
    }
    own.insert("conditions".into(), Value::Array(conditions));
    Ok(())
}

fn aggregate_source(object: &mut Value, items: Items<'_>, names: &[&str]) -> Result<()> {
    let conditions = united_conditions(items)?;
    aggregate_generation(object, items);
    let artifact = statuses(items).filter_map(|(_, found)| at(found, &["artifact"])).last().cloned();
    let own = status(object);
    own.insert("artifact".into(), artifact.unwrap_or_else(|| Value::Object(Map::new())));
    for name in names {
        own.insert((*name).to_owned(), last(items, name).unwrap_or_else(|| json!("")));
    }
    own.insert("conditions".into(), Value::Array(conditions));
    Ok(())
}
