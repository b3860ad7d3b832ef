//! The kinds as CustomResourceDefinitions: names, scope, versions, columns and schemas.
//!
//! Out: [`all`] gives the manifests of the kinds that are CRDs in Karmada too; [`aggregated`] gives the two kinds
//! that Karmada serves from API servers of their own, in the same form, so that one server can serve everything.
//! Everything comes from [`definitions`], which the reference page and the tests read as well.

mod table;

pub use table::{Column, Definition, Subresources, Version, definitions};

use serde_json::{Map, Value, json};

/// The annotation by which tools recognise the origin of a generated CRD, and the value Karmada's carry.
const GENERATOR: (&str, &str) = ("controller-gen.kubebuilder.io/version", "v0.21.0");

/// Returns the manifests of all kinds that are CRDs.
pub fn all() -> Vec<Value> {
    definitions().iter().filter(|definition| !definition.aggregated).map(Definition::manifest).collect()
}

/// Returns the aggregated kinds, Cluster and ResourceRegistry, in the form of CRDs.
///
/// Their schemas say which fields exist and of what type, nothing else: upstream enforces no limits by schema here, the
/// checks are compiled in and word their errors on their own. A stricter schema would refuse what Go clients send,
/// such as `null` for an empty required list, and would get ahead of those checks.
pub fn aggregated() -> Vec<Value> {
    definitions().iter().filter(|definition| definition.aggregated).map(Definition::manifest).collect()
}

/// Adds the conversion webhook to the manifest of a kind with two versions, as Karmada's installers do.
///
/// For control planes that run on a stock kube-apiserver; our own server converts by itself.
pub fn with_conversion_webhook(mut manifest: Value, url: &str, ca_bundle: &str) -> Value {
    manifest["spec"]["conversion"] = json!({
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": { "url": url, "caBundle": ca_bundle },
            "conversionReviewVersions": ["v1"],
        },
    });
    manifest
}

impl Definition {
    /// Returns the name of the CRD: plural and group.
    pub fn name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// Returns the complete manifest.
    pub fn manifest(&self) -> Value {
        let mut names = Map::new();
        names.insert("kind".into(), self.kind.into());
        names.insert("listKind".into(), format!("{}List", self.kind).into());
        names.insert("plural".into(), self.plural.into());
        names.insert("singular".into(), self.singular().into());
        if !self.short_names.is_empty() {
            names.insert("shortNames".into(), json!(self.short_names));
        }
        if !self.categories.is_empty() {
            names.insert("categories".into(), json!(self.categories));
        }
        let mut metadata = json!({ "name": self.name() });
        if self.generated {
            metadata["annotations"] = json!({ GENERATOR.0: GENERATOR.1 });
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": metadata,
            "spec": {
                "group": self.group,
                "names": names,
                "scope": if self.namespaced { "Namespaced" } else { "Cluster" },
                "versions": self.versions.iter().map(|version| self.version_manifest(version)).collect::<Vec<_>>(),
            },
        })
    }

    fn version_manifest(&self, version: &Version) -> Value {
        let mut schema = version.schema.to_json();
        if self.aggregated {
            relax(&mut schema);
        }
        let mut out = json!({
            "name": version.name,
            "served": true,
            "storage": version.storage,
            "schema": { "openAPIV3Schema": schema },
        });
        match version.subresources {
            Subresources::Absent => {}
            Subresources::Empty => out["subresources"] = json!({}),
            Subresources::Status => out["subresources"] = json!({ "status": {} }),
        }
        if !version.columns.is_empty() {
            out["additionalPrinterColumns"] = version.columns.iter().map(|column| column.to_json()).collect();
        }
        out
    }
}

impl Column {
    fn to_json(self) -> Value {
        let mut out = json!({ "name": self.name, "type": self.type_, "jsonPath": self.json_path });
        if !self.description.is_empty() {
            out["description"] = self.description.into();
        }
        if self.priority != 0 {
            out["priority"] = self.priority.into();
        }
        out
    }
}

/// Removes every demand from a schema and leaves names and types.
fn relax(schema: &mut Value) {
    const DEMANDS: [&str; 6] = ["required", "enum", "minLength", "maxLength", "minimum", "pattern"];
    let Value::Object(fields) = schema else { return };
    for demand in DEMANDS {
        fields.remove(demand);
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(relax);
    }
    for child in ["items", "additionalProperties"] {
        if let Some(child) = fields.get_mut(child) {
            relax(child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversion_webhook_is_added_where_installers_put_it() {
        let manifest = all().into_iter().find(|m| m["spec"]["names"]["kind"] == "ResourceBinding").unwrap();
        let patched = with_conversion_webhook(manifest, "https://w.ns.svc:443/convert", "Q0E=");
        assert_eq!(patched["spec"]["conversion"]["strategy"], "Webhook");
        assert_eq!(
            patched["spec"]["conversion"]["webhook"]["clientConfig"]["url"],
            "https://w.ns.svc:443/convert"
        );
        assert_eq!(patched["spec"]["conversion"]["webhook"]["conversionReviewVersions"], json!(["v1"]));
    }

    #[test]
    fn aggregated_kinds_demand_nothing_by_schema() {
        let text = serde_json::to_string(&aggregated()).unwrap();
        assert!(!text.contains("\"required\""), "compiled-in checks come first");
        assert!(text.contains("resourceModels"), "but every field is known");
    }
}
