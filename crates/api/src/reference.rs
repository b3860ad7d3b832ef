//! The API reference as a Markdown page, written from the same definitions as the CRDs.
//!
//! One chapter per group, one section per kind and version, then the structs in the order in which they are first
//! met. A struct that several kinds use is described once and linked to.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use crate::crd::{Column, Definition, Subresources, Version, definitions};
use crate::schema::{Property, Schema};

/// Returns the page.
pub fn markdown() -> String {
    let mut page = String::from(
        "# API reference\n\n\
         Every kind that the control plane serves besides those of Kubernetes. This page is generated; the same \
         texts appear in `kubectl explain`.\n\n",
    );
    let definitions = definitions();
    contents(&definitions, &mut page);
    let mut described = BTreeSet::new();
    let mut group = "";
    for definition in &definitions {
        if definition.group != group {
            group = definition.group;
            writeln!(page, "## {group}\n").expect("writing to a string");
        }
        for version in &definition.versions {
            kind(definition, version, &mut page);
            let mut waiting = vec![(true, &version.schema)];
            records(definition, version, &mut waiting, &mut described, &mut page);
        }
    }
    while page.ends_with("\n\n") {
        page.pop();
    }
    page
}

fn contents(definitions: &[Definition], page: &mut String) {
    page.push_str("| Kind | Group | Versions | Scope | Short name |\n|---|---|---|---|---|\n");
    for definition in definitions {
        let versions: Vec<_> = definition.versions.iter().map(|version| version.name).collect();
        let short = definition.short_names.join(", ");
        writeln!(
            page,
            "| [{}](#{}) | {} | {} | {} | {} |",
            definition.kind,
            anchor(&heading(definition, definition.storage_version())),
            definition.group,
            versions.join(", "),
            scope(definition),
            short,
        )
        .expect("writing to a string");
    }
    page.push('\n');
}

fn scope(definition: &Definition) -> &'static str {
    if definition.namespaced { "Namespaced" } else { "Cluster" }
}

/// Only kinds with several versions need the version in their heading.
fn heading(definition: &Definition, version: &Version) -> String {
    if definition.versions.len() > 1 {
        format!("{} {}", definition.kind, version.name)
    } else {
        definition.kind.to_owned()
    }
}

fn kind(definition: &Definition, version: &Version, page: &mut String) {
    let stored = if version.storage { "" } else { " Served for old clients, never stored." };
    let subresource = match version.subresources {
        Subresources::Status => " Status is a subresource.",
        Subresources::Absent | Subresources::Empty => "",
    };
    writeln!(
        page,
        "### {}\n\n{}\n\n`apiVersion: {}/{}`, resource `{}`, scope {}.{stored}{subresource}\n",
        heading(definition, version),
        escape(&version.schema.description),
        definition.group,
        version.name,
        definition.plural,
        scope(definition),
    )
    .expect("writing to a string");
    if !version.columns.is_empty() {
        let columns: Vec<_> = version.columns.iter().map(column).collect();
        writeln!(page, "Columns: {}.\n", columns.join(", ")).expect("writing to a string");
    }
}

fn column(column: &Column) -> String {
    let wide = if column.priority > 0 { " (wide)" } else { "" };
    format!("{}{wide}", column.name)
}

/// Describes the waiting records, depth first, skipping what the page has already.
fn records(
    definition: &Definition,
    version: &Version,
    waiting: &mut Vec<(bool, &Schema)>,
    described: &mut BTreeSet<String>,
    page: &mut String,
) {
    while let Some((root, schema)) = waiting.pop() {
        if !root {
            let Some(title) = title(definition, version, schema) else { continue };
            if !described.insert(title.clone()) {
                continue;
            }
            writeln!(page, "#### {title}\n").expect("writing to a string");
        }
        page.push_str("| Field | Type | Required | Limits | Meaning |\n|---|---|---|---|---|\n");
        let own =
            |property: &&Property| !root || !matches!(property.name, "apiVersion" | "kind" | "metadata");
        for property in schema.properties.iter().filter(own) {
            writeln!(
                page,
                "| {} | {} | {} | {} | {} |",
                property.name,
                type_text(definition, version, &property.schema),
                if property.required { "yes" } else { "" },
                limits(&property.schema),
                escape(&property.schema.description),
            )
            .expect("writing to a string");
        }
        page.push('\n');
        for property in schema.properties.iter().rev() {
            waiting.push((false, innermost(&property.schema)));
        }
    }
}

/// Returns what a list or map finally contains.
fn innermost(schema: &Schema) -> &Schema {
    match schema.items.as_deref().or(schema.values.as_deref()) {
        Some(inner) => innermost(inner),
        None => schema,
    }
}

/// Returns the heading of a record.
///
/// Karmada uses some names twice for different structs; the group or the version tells them apart.
fn title(definition: &Definition, version: &Version, schema: &Schema) -> Option<String> {
    const AMBIGUOUS: [&str; 5] =
        ["Suspension", "SchedulePriority", "ObjectReference", "ResourceSelector", "ClusterStatus"];
    const VERSIONED: [&str; 5] = [
        "ResourceBindingSpec",
        "ResourceBindingStatus",
        "TargetCluster",
        "AggregatedStatusItem",
        "ObjectReference",
    ];
    let name = schema.type_name?;
    let short_group = definition.group.split('.').next().unwrap_or_default();
    let old = definition.versions.len() > 1 && !version.storage;
    let foreign = match name {
        // Records of the policy group keep their name wherever they stand.
        "Taint" => schema.property("timeAdded").is_none(),
        "ClusterAffinity" => schema.property("labelSelector").is_none(),
        "Suspension" => schema.property("scheduling").is_some(),
        "SchedulePriority" => schema.property("priority").is_some(),
        "ResourceSelector" => schema.property("labelSelector").is_none(),
        _ => AMBIGUOUS.contains(&name),
    };
    Some(match () {
        () if old && VERSIONED.contains(&name) => format!("{name} ({short_group} {})", version.name),
        () if foreign => format!("{name} ({short_group})"),
        () => name.to_owned(),
    })
}

fn type_text(definition: &Definition, version: &Version, schema: &Schema) -> String {
    if let Some(items) = &schema.items {
        return format!("list of {}", type_text(definition, version, items));
    }
    if let Some(values) = &schema.values {
        return format!("map of {}", type_text(definition, version, values));
    }
    if let Some(title) = title(definition, version, schema) {
        return format!("[{title}](#{})", anchor(&title));
    }
    let constraint = |name: &str| schema.constraints.get(name).and_then(Value::as_str);
    if schema.constraints.contains_key("x-kubernetes-int-or-string") {
        return "quantity".into();
    }
    match (constraint("type"), constraint("format")) {
        (Some("string"), Some("date-time")) => "time".into(),
        (Some("string"), Some("byte")) => "bytes".into(),
        (Some("integer"), Some(format)) => format.to_owned(),
        (Some(type_), _) => type_.to_owned(),
        (None, _) => "any".into(),
    }
}

fn limits(schema: &Schema) -> String {
    let mut out = Vec::new();
    let mut note = |name: &str, label: &str| {
        if let Some(value) = schema.constraints.get(name) {
            out.push(match value {
                Value::String(text) => format!("{label} {text}"),
                other => format!("{label} {other}"),
            });
        }
    };
    note("default", "default");
    note("minimum", "at least");
    note("maximum", "at most");
    note("minLength", "min. length");
    note("maxLength", "max. length");
    note("minItems", "min. items");
    note("maxItems", "max. items");
    if let Some(Value::Array(values)) = schema.constraints.get("enum") {
        let values: Vec<_> = values.iter().filter_map(Value::as_str).collect();
        out.push(format!("one of {}", values.join(", ")));
    }
    if let (Some(Value::String(pattern)), None) =
        (schema.constraints.get("pattern"), schema.constraints.get("x-kubernetes-int-or-string"))
    {
        out.push(format!("pattern `{}`", pattern.replace('|', "\\|")));
    }
    out.join("; ")
}

/// Keeps Markdown from reading characters of a description as its own.
fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('[', "\\[").replace('<', "&lt;").replace('*', "\\*")
}

/// Returns the anchor that Markdown renderers give to a heading.
fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_has_its_heading_and_every_heading_is_unique() {
        let page = markdown();
        let headings: Vec<String> = page
            .lines()
            .filter(|line| line.starts_with('#'))
            .map(|line| anchor(line.trim_start_matches('#').trim_start()))
            .collect();
        let unique: BTreeSet<_> = headings.iter().collect();
        assert_eq!(unique.len(), headings.len(), "a heading is there twice");
        for link in page.split("](#").skip(1) {
            let target = link.split(')').next().unwrap();
            assert!(unique.contains(&target.to_owned()), "no heading for #{target}");
        }
    }

    /// A name that stands for two different structs would make the page describe only one of them.
    #[test]
    fn one_title_stands_for_one_struct() {
        fn walk(
            definition: &Definition,
            version: &Version,
            schema: &Schema,
            seen: &mut std::collections::BTreeMap<String, Vec<Property>>,
        ) {
            for property in &schema.properties {
                let inner = innermost(&property.schema);
                if let Some(title) = title(definition, version, inner) {
                    let known = seen.entry(title.clone()).or_insert_with(|| inner.properties.clone());
                    assert!(*known == inner.properties, "{title} stands for different structs");
                    walk(definition, version, inner, seen);
                }
            }
        }
        let mut seen = std::collections::BTreeMap::new();
        for definition in definitions() {
            for version in &definition.versions {
                walk(&definition, version, &version.schema, &mut seen);
            }
        }
        assert!(seen.len() > 100);
    }
}
