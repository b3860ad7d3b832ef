//! Prints objects: one place for every format except a server's table.
//!
//! In: `-o` and an object. Out: text. Tables are in [`table`].

use anyhow::bail;
use apimachinery::jsonpath::Template;
use clap::Args;
use serde_json::{Value, json};

use crate::discovery::Resource;

pub(crate) mod columns;
pub(crate) mod go_template;
pub(crate) mod kyaml;
pub(crate) mod table;
pub(crate) mod tabs;

/// The flags about templates, of commands that print objects.
#[derive(Debug, Clone, Default, Args)]
pub struct Templates {
    /// Template, or path of a file with one, for -o go-template, go-template-file, jsonpath and jsonpath-file.
    #[arg(long, value_name = "TEMPLATE", default_value = "", hide_default_value = true)]
    pub template: String,
    /// If true, a field or key of a template that an object does not have is not an error.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, default_value_t = true)]
    pub allow_missing_template_keys: bool,
}

/// The flags of commands that print an object that they changed.
#[derive(Debug, Clone, Default, Args)]
pub struct Output {
    /// Output format. One of: (json, yaml, kyaml, name, go-template, go-template-file, template, templatefile, jsonpath,
    /// jsonpath-as-json, jsonpath-file).
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
    #[command(flatten)]
    pub templates: Templates,
    /// If true, keep the managedFields when printing objects in JSON or YAML format.
    #[arg(long)]
    pub show_managed_fields: bool,
}

/// A format of `-o`.
#[derive(Debug, Clone)]
pub(crate) enum Format {
    Table { wide: bool },
    Json,
    Yaml,
    Kyaml,
    Name,
    JsonPath(Template),
    JsonPathAsJson(Template),
    GoTemplate(go_template::GoTemplate),
    Columns(columns::Columns),
}

const GO_TEMPLATES: [&str; 4] = ["go-template", "go-template-file", "template", "templatefile"];

/// The formats of every command that prints objects, except kyaml, which the environment can forbid.
const OF_OBJECTS: [&str; 10] = [
    "json",
    "yaml",
    "name",
    "jsonpath",
    "jsonpath-as-json",
    "jsonpath-file",
    GO_TEMPLATES[0],
    GO_TEMPLATES[1],
    GO_TEMPLATES[2],
    GO_TEMPLATES[3],
];

/// Lists the available formats.
pub(crate) fn unsuitable(format: &str, mut known: Vec<&str>) -> anyhow::Error {
    known.extend(kyaml::allowed().then_some("kyaml"));
    known.sort_unstable();
    anyhow::anyhow!(
        "unable to match a printer suitable for the output format {}, allowed formats are: {}",
        apimachinery::go::quote(format),
        known.join(",")
    )
}

impl Format {
    /// Parses `-o` for commands without flags about templates.
    pub(crate) fn parse(text: &str, no_headers: bool) -> anyhow::Result<Self> {
        Self::read(
            text,
            no_headers,
            &Templates { template: String::new(), allow_missing_template_keys: true },
        )
    }

    /// Parses `-o`. A template without a format is a Go template.
    pub(crate) fn read(text: &str, no_headers: bool, templates: &Templates) -> anyhow::Result<Self> {
        let text = if text.is_empty() && !templates.template.is_empty() { "go-template" } else { text };
        let (kind, argument) = text.split_once('=').unwrap_or((text, ""));
        let argument = if templates.template.is_empty() { argument } else { templates.template.as_str() };
        let template = || -> anyhow::Result<Template> {
            if argument.is_empty() {
                bail!("template format specified but no template given");
            }
            Ok(Template::parse(argument)?)
        };
        Ok(match kind {
            "" => Self::Table { wide: false },
            "wide" => Self::Table { wide: true },
            "json" => Self::Json,
            "yaml" => Self::Yaml,
            "kyaml" if kyaml::allowed() => Self::Kyaml,
            "name" => Self::Name,
            "jsonpath" => Self::JsonPath(template()?),
            "jsonpath-as-json" => Self::JsonPathAsJson(template()?),
            "jsonpath-file" => {
                let text = read(argument)?;
                Self::JsonPath(Template::parse(&text)?)
            }
            kind if GO_TEMPLATES.contains(&kind) => {
                if argument.is_empty() {
                    bail!("template format specified but no template given");
                }
                let text = if kind.ends_with("file") { read(argument)? } else { argument.to_owned() };
                let missing_keys = if templates.allow_missing_template_keys {
                    go_template::MissingKeys::Allowed
                } else {
                    go_template::MissingKeys::Refused
                };
                let template = go_template::GoTemplate::parse(&text, missing_keys)
                    .map_err(|error| anyhow::anyhow!("error parsing template {text}, {error}"))?;
                Self::GoTemplate(template)
            }
            "custom-columns" => Self::Columns(columns::Columns::parse(argument, no_headers)?),
            "custom-columns-file" => {
                let text = std::fs::read_to_string(argument)
                    .map_err(|error| anyhow::anyhow!("error reading template {argument}, {error}"))?;
                Self::Columns(columns::Columns::from_file(&text, no_headers)?)
            }
            _ => {
                let mut known = ["custom-columns", "custom-columns-file", "wide"].to_vec();
                known.extend(OF_OBJECTS);
                return Err(unsuitable(text, known));
            }
        })
    }

    pub(crate) fn is_table(&self) -> bool {
        matches!(self, Self::Table { .. })
    }

    /// Prints an object or a `List`. Tables are not printed here.
    pub(crate) fn print(&self, object: &Value, managed_fields: bool) -> anyhow::Result<String> {
        let mut object = object.clone();
        if !managed_fields {
            strip_managed_fields(&mut object);
        }
        Ok(match self {
            Self::Table { .. } => String::new(),
            Self::Json => pretty(&object),
            Self::Yaml => apimachinery::yaml::write(&object),
            Self::Kyaml => kyaml::write(&object),
            Self::Name => items(&object).map(|item| format!("{}\n", name_of(item))).collect(),
            Self::JsonPath(template) => template.print(&object),
            Self::JsonPathAsJson(template) => {
                let found = Value::Array(template.find(&object));
                pretty(&found)
            }
            Self::GoTemplate(template) => {
                let (text, done) = template.print(&object);
                if let Err(error) = done {
                    // The output before the error, and information to find it.
                    crate::output::print(&text);
                    return Err(error);
                }
                text
            }
            Self::Columns(columns) => columns.print(items(&object))?,
        })
    }
}

/// Reads the file of a template; a missing file is reported in Go's words.
fn read(path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        let said = match error.kind() {
            std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
            _ => error.to_string(),
        };
        anyhow::anyhow!("error reading --template {path}, open {path}: {said}")
    })
}

/// JSON as kubectl prints it: four spaces, keys in order.
pub(crate) fn pretty(value: &Value) -> String {
    use serde::Serialize;
    let mut out = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut writer = serde_json::Serializer::with_formatter(&mut out, format);
    let sorted = sorted(value);
    let _ = sorted.serialize(&mut writer);
    String::from_utf8_lossy(&out).into_owned() + "\n"
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            Value::Object(entries.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

/// The items of a list, or the object itself.
pub(crate) fn items(object: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match object["items"]
        .as_array()
        .filter(|_| object["kind"].as_str().is_some_and(|kind| kind.ends_with("List")))
    {
        Some(items) => Box::new(items.iter()),
        None => Box::new(std::iter::once(object)),
    }
}

/// Combines objects into one document: a single one unchanged, several as a `List`.
pub(crate) fn document(mut objects: Vec<Value>, always_list: bool) -> Value {
    if objects.len() == 1 && !always_list {
        return objects.remove(0);
    }
    let metadata = json!({"resourceVersion": "", "selfLink": ""});
    json!({"apiVersion": "v1", "items": objects, "kind": "List", "metadata": metadata})
}

/// `deployment.apps/nginx`
fn name_of(object: &Value) -> String {
    let api_version = object["apiVersion"].as_str().unwrap_or("");
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let kind = object["kind"].as_str().unwrap_or("").to_lowercase();
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    if group.is_empty() { format!("{kind}/{name}") } else { format!("{kind}.{group}/{name}") }
}

fn strip_managed_fields(object: &mut Value) {
    let strip = |object: &mut Value| {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    };
    strip(object);
    for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        strip(item);
    }
}

impl Output {
    pub(crate) fn format(&self) -> anyhow::Result<Option<Format>> {
        let text = self.output.as_deref().unwrap_or("");
        if text.is_empty() && self.templates.template.is_empty() {
            return Ok(None);
        }
        let fits = |format: &Format| !matches!(format, Format::Table { .. } | Format::Columns(_));
        let kind = text.split('=').next().unwrap_or(text);
        let known = kind.is_empty() || OF_OBJECTS.contains(&kind) || (kind == "kyaml" && kyaml::allowed());
        let format =
            if known { Some(Format::read(text, false, &self.templates)?).filter(fits) } else { None };
        Ok(Some(format.ok_or_else(|| unsuitable(text, OF_OBJECTS.to_vec()))?))
    }

    /// Reports a change: `deployment.apps/nginx labeled`, or the object in the requested format.
    pub(crate) fn tell(
        &self,
        resource: &Resource,
        object: &Value,
        done: &str,
        dry_run: DryRun,
    ) -> anyhow::Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or("");
        let text = match self.format()? {
            None => format!("{}/{name} {done}{}\n", resource.prefix(), dry_run.suffix()),
            Some(Format::Name) => format!("{}/{name}\n", resource.prefix()),
            Some(format) => format.print(object, self.show_managed_fields)?,
        };
        crate::output::print(&text);
        Ok(())
    }
}

/// The level of a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum DryRun {
    #[default]
    None,
    Client,
    Server,
}

impl DryRun {
    /// Parses `--dry-run`, which without a value means `client`.
    pub(crate) fn parse(text: Option<&str>) -> anyhow::Result<Self> {
        Ok(match text {
            None | Some("none") => Self::None,
            Some("" | "unchanged" | "client") => Self::Client,
            Some("server") => Self::Server,
            Some(other) => {
                bail!("Invalid dry-run value ({other}). Must be \"none\", \"server\", or \"client\".")
            }
        })
    }

    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }

    /// The query of a writing request.
    pub(crate) fn query(self) -> &'static str {
        if self == Self::Server { "&dryRun=All" } else { "" }
    }
}

/// `--dry-run`, for commands that write.
#[derive(Debug, Clone, Default, Args)]
pub struct DryRunFlag {
    /// Must be "none", "server", or "client": only print what would be sent, or send it without keeping it.
    #[arg(long, value_name = "STRATEGY", num_args = 0..=1, require_equals = true, default_missing_value = "unchanged")]
    pub dry_run: Option<String>,
}

impl DryRunFlag {
    pub(crate) fn get(&self) -> anyhow::Result<DryRun> {
        if self.dry_run.as_deref() == Some("unchanged") {
            crate::output::warn("--dry-run is deprecated and can be replaced with --dry-run=client.");
        }
        DryRun::parse(self.dry_run.as_deref())
    }
}

/// `--validate`, for commands that send whole objects.
#[derive(Debug, Clone, Default, Args)]
pub struct Validation {
    /// What unknown fields are: strict (or true), warn, ignore (or false).
    #[arg(long, value_name = "MODE", default_value = "strict", num_args = 0..=1, require_equals = true, default_missing_value = "strict")]
    pub validate: String,
}

impl Validation {
    /// The query of a writing request.
    pub(crate) fn get(&self) -> anyhow::Result<&'static str> {
        Ok(match self.validate.as_str() {
            "strict" | "true" => "Strict",
            "warn" => "Warn",
            "ignore" | "false" => "Ignore",
            other => bail!(
                "invalid - validate option {}; must be one of: strict (or true), warn, ignore (or false)",
                apimachinery::go::quote(other)
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_read_and_refused_as_in_kubectl() {
        for good in ["", "wide", "json", "yaml", "kyaml", "name", "jsonpath={.a}", "custom-columns=A:.a"] {
            assert!(Format::parse(good, false).is_ok(), "{good}");
        }
        let error = Format::parse("nope", false).expect_err("unknown").to_string();
        assert!(
            error.starts_with("unable to match a printer suitable for the output format \"nope\""),
            "{error}"
        );
        assert!(error.ends_with("jsonpath-file,kyaml,name,template,templatefile,wide,yaml"), "{error}");
        let error = Format::parse("jsonpath", false).expect_err("empty").to_string();
        assert_eq!(error, "template format specified but no template given");
    }

    #[test]
    fn objects_print_in_every_format() {
        let object = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "web", "managedFields": [1]}});
        let print = |format: &str| {
            Format::parse(format, false).expect("good").print(&object, false).expect("printed")
        };
        assert_eq!(print("name"), "deployment.apps/web\n");
        assert_eq!(print("yaml"), "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n");
        assert!(print("json").starts_with("{\n    \"apiVersion\": \"apps/v1\",\n    \"kind\""));
        assert_eq!(print("jsonpath={.metadata.name}"), "web");
        assert_eq!(print("jsonpath-as-json={.kind}"), "[\n    \"Deployment\"\n]\n");
        assert_eq!(print("custom-columns=NAME:.metadata.name,X:.nope"), "NAME   X\nweb    <none>\n");
        let list = document(vec![object.clone(), object.clone()], false);
        assert_eq!(
            Format::Name.print(&list, false).expect("printed"),
            "deployment.apps/web\ndeployment.apps/web\n"
        );
    }

    #[test]
    fn a_dry_run_has_three_strengths() {
        assert_eq!(DryRun::parse(None).expect("good"), DryRun::None);
        assert_eq!(DryRun::parse(Some("client")).expect("good"), DryRun::Client);
        assert_eq!(DryRun::parse(Some("server")).expect("good").query(), "&dryRun=All");
        assert!(DryRun::parse(Some("maybe")).is_err());
    }
}
