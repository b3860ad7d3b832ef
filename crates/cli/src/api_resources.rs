//! `api-resources`: the types that a server serves.

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use crate::clusters::Scope;
use crate::discovery::Resource;
use crate::failure::misused;
use crate::output;
use crate::print::table::align;
use crate::print::{Format, kyaml, pretty, unsuitable};
use crate::server::Connection;

/// Print the supported API resources on the server.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Print the supported API resources
  karmadactl api-resources

  # Print the supported API resources of cluster member1 with more information
  karmadactl api-resources -o wide --operation-scope=members --cluster=member1

  # Print the types of one API group
  karmadactl api-resources --api-group=policy.karmada.io")]
pub struct Arguments {
    /// Nothing is expected here.
    #[arg(hide = true)]
    pub words: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub scope: Scope,
    /// Limit to resources in the specified API group.
    #[arg(long, value_name = "GROUP")]
    pub api_group: Option<String>,
    /// Limit to namespaced resources, or with =false to the others.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub namespaced: Option<bool>,
    /// Limit to resources that support the specified verbs.
    #[arg(long, value_name = "VERB", value_delimiter = ',')]
    pub verbs: Vec<String>,
    /// Limit to resources that belong to the specified categories.
    #[arg(long, value_name = "CATEGORY", value_delimiter = ',')]
    pub categories: Vec<String>,
    /// Sort by name or kind.
    #[arg(long, value_name = "FIELD", default_value = "")]
    pub sort_by: String,
    /// Accepted for kubectl's sake: the server is always asked.
    #[arg(long)]
    pub cached: bool,
    /// Output format. One of: (json, yaml, kyaml, name, wide).
    #[arg(short, long, value_name = "FORMAT", default_value = "")]
    pub output: String,
    /// Don't print headers.
    #[arg(long)]
    pub no_headers: bool,
}

/// Prints the types.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if !arguments.words.is_empty() {
        return Err(misused(
            "api-resources",
            &format!("unexpected arguments: [{}]", arguments.words.join(" ")),
        ));
    }
    let format = Format::parse(&arguments.output, false).ok().filter(|format| {
        matches!(format, Format::Table { .. } | Format::Json | Format::Yaml | Format::Kyaml | Format::Name)
    });
    let format = format.ok_or_else(|| unsuitable(&arguments.output, vec!["json", "name", "wide", "yaml"]))?;
    if !matches!(arguments.sort_by.as_str(), "" | "name" | "kind") {
        bail!("--sort-by accepts only name or kind");
    }
    let plane = arguments.connection.plane().await?;
    let server = plane.scoped(&arguments.scope).await?;
    let all = &server.discovery().await?.resources;
    output::print(&show(&arguments, &format, chosen(&arguments, all)));
    Ok(())
}

/// The preferred version of every matching type, in order.
fn chosen<'a>(arguments: &Arguments, all: &'a [Resource]) -> Vec<&'a Resource> {
    let mut chosen: Vec<&Resource> = Vec::new();
    for resource in all {
        let fits = !resource.verbs.is_empty()
            && arguments.api_group.as_ref().is_none_or(|group| *group == resource.group)
            && arguments.namespaced.is_none_or(|namespaced| namespaced == resource.namespaced)
            && arguments.verbs.iter().all(|verb| resource.verbs.contains(verb))
            && arguments.categories.iter().all(|category| resource.categories.contains(category));
        let known = chosen.iter().any(|each| each.group == resource.group && each.plural == resource.plural);
        if fits && !known {
            chosen.push(resource);
        }
    }
    match arguments.sort_by.as_str() {
        "name" => chosen.sort_by(|a, b| a.plural.cmp(&b.plural)),
        "kind" => chosen.sort_by(|a, b| a.kind.cmp(&b.kind)),
        _ => chosen.sort_by(|a, b| (&a.group, &a.plural).cmp(&(&b.group, &b.plural))),
    }
    chosen
}

fn show(arguments: &Arguments, format: &Format, resources: Vec<&Resource>) -> String {
    match format {
        Format::Name => resources.iter().map(|resource| format!("{}\n", resource.full_name())).collect(),
        Format::Json => pretty(&document(&resources)),
        Format::Yaml => apimachinery::yaml::write(&document(&resources)),
        Format::Kyaml => kyaml::write(&document(&resources)),
        format => {
            let wide = matches!(format, Format::Table { wide: true });
            let mut rows = Vec::new();
            if !arguments.no_headers {
                let mut header: Vec<String> =
                    ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"].map(str::to_owned).into();
                if wide {
                    header.extend(["VERBS", "CATEGORIES"].map(str::to_owned));
                }
                rows.push(header);
            }
            for resource in resources {
                let mut row = vec![
                    resource.plural.clone(),
                    resource.short_names.join(","),
                    resource.api_version(),
                    resource.namespaced.to_string(),
                    resource.kind.clone(),
                ];
                if wide {
                    row.push(resource.verbs.join(","));
                    row.push(resource.categories.join(","));
                }
                rows.push(row);
            }
            align(&rows)
        }
    }
}

fn document(resources: &[&Resource]) -> Value {
    let items: Vec<Value> = resources
        .iter()
        .map(|resource| {
            let mut item = json!({"name": resource.plural, "singularName": resource.singular,
                "namespaced": resource.namespaced, "version": resource.version, "kind": resource.kind,
                "verbs": resource.verbs});
            for (key, list) in [("shortNames", &resource.short_names), ("categories", &resource.categories)] {
                if !list.is_empty() {
                    item[key] = json!(list);
                }
            }
            if !resource.group.is_empty() {
                item["group"] = resource.group.clone().into();
            }
            item
        })
        .collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "", "resources": items})
}
