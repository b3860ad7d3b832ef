//! `explain`: the fields of a type, as the server's OpenAPI documents describe them.
//!
//! In: `TYPE[.FIELD…]`. Out: kubectl's page: group, kind, version, the field, its description, its fields. On each path, a
//! reference is followed only once, so that types which contain themselves end.

use anyhow::{anyhow, bail};
use clap::Args;
use serde_json::Value;

use crate::clusters::Scope;
use crate::discovery::Resource;
use crate::failure::Plain;
use crate::output;
use crate::server::{Namespaced, Server};

/// Text is wrapped at this width, after four spaces.
const WIDTH: usize = 76;

/// Describe fields and structure of various resources in Karmada control plane or a member cluster.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # What a propagation policy is made of
  karmadactl explain propagationpolicies

  # One of its fields, with everything below
  karmadactl explain propagationpolicies.spec.placement --recursive

  # The fields of pods in cluster member1
  karmadactl explain pods.spec.containers -s members -C member1")]
pub struct Arguments {
    /// TYPE, or TYPE.FIELD.FIELD….
    #[arg(value_name = "TYPE[.FIELD]")]
    pub words: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub scope: Scope,
    /// Get different explanations for particular API version (API group/version).
    #[arg(long, value_name = "VERSION", default_value = "")]
    pub api_version: String,
    /// Print the fields of fields.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Format in which to render the schema: plaintext or plaintext-openapiv2.
    #[arg(short, long, value_name = "FORMAT", default_value = "plaintext")]
    pub output: String,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let word = match &arguments.words[..] {
        [] => bail!(
            "You must specify the type of resource to explain. Use \"{} api-resources\" for a complete list of supported \
             resources.",
            crate::program::shown()
        ),
        [word] => word,
        _ => bail!("We accept only this format: explain RESOURCE"),
    };
    // Both formats look the same to users; servers have one kind of document.
    if !matches!(arguments.output.as_str(), "plaintext" | "plaintext-openapiv2") {
        bail!("unrecognized format: {}", arguments.output);
    }
    let plane = arguments.place.plane().await?;
    let server = plane.scoped(&arguments.scope).await?;
    let (resource, fields) = find(&server, word, &arguments.api_version).await?;
    let document = document(&server, &resource).await?;
    let page = Page { document: &document, recursive: arguments.recursive };
    let schema = page.schema(&resource).ok_or_else(|| {
        anyhow!(
            "GVK {}/{}, Kind={} not found in OpenAPI schema",
            resource.group,
            resource.version,
            resource.kind
        )
    })?;
    output::print(&head(&resource));
    output::print(&page.print(schema, &fields)?);
    Ok(())
}

/// Splits a word into a type and a path of fields: the type is the longest prefix that the server knows.
async fn find(server: &Server, word: &str, api_version: &str) -> anyhow::Result<(Resource, Vec<String>)> {
    let discovery = server.discovery().await?;
    let (first, rest) = word.split_once('.').unwrap_or((word, ""));
    let fields = |rest: &str| rest.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    if !api_version.is_empty() {
        let plain = discovery.resolve(first).map_err(|error| Plain(error.to_string()))?;
        let found =
            discovery.resources.iter().find(|r| r.api_version() == api_version && r.plural == plain.plural);
        return match found {
            Some(found) => Ok((found.clone(), fields(rest))),
            None => bail!(
                "couldn't find resource for {}",
                apimachinery::go::quote(&format!("{api_version}, Resource={}", plain.plural))
            ),
        };
    }
    // A name with its group and version takes precedence over one with fields.
    let parts: Vec<&str> = word.split('.').collect();
    for end in (2..=parts.len()).rev() {
        if let Ok(found) = discovery.resolve(&parts[..end].join("."))
            && !found.group.is_empty()
        {
            return Ok((found.clone(), parts[end..].iter().map(|part| (*part).to_owned()).collect()));
        }
    }
    let found = discovery.resolve(first).map_err(|error| Plain(error.to_string()))?;
    Ok((found.clone(), fields(rest)))
}

async fn document(server: &Server, resource: &Resource) -> anyhow::Result<Value> {
    let index = server.get("/openapi/v3").await?;
    let key = if resource.group.is_empty() {
        format!("api/{}", resource.version)
    } else {
        format!("apis/{}/{}", resource.group, resource.version)
    };
    let Some(path) = index["paths"][&key]["serverRelativeURL"].as_str() else {
        bail!(
            "couldn't find resource for {}: the server describes no {key}",
            apimachinery::go::quote(&resource.go_text())
        );
    };
    server.get(path).await
}

fn head(resource: &Resource) -> String {
    let group = match resource.group.as_str() {
        "" => String::new(),
        group => format!("GROUP:      {group}\n"),
    };
    format!("{group}KIND:       {}\nVERSION:    {}\n\n", resource.kind, resource.version)
}

struct Page<'a> {
    document: &'a Value,
    recursive: bool,
}

impl<'a> Page<'a> {
    fn schema(&self, resource: &Resource) -> Option<&'a Value> {
        let schemas = self.document["components"]["schemas"].as_object()?;
        schemas.values().find(|schema| {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array().into_iter().flatten();
            kinds.into_iter().any(|gvk| {
                gvk["group"] == *resource.group
                    && gvk["version"] == *resource.version
                    && gvk["kind"] == *resource.kind
            })
        })
    }

    fn print(&self, schema: &'a Value, fields: &[String]) -> anyhow::Result<String> {
        let mut schema = schema;
        let mut last = None;
        for name in fields {
            let inner = self.contents(schema);
            let Some(next) = self.property(inner, name) else { bail!("field \"{name}\" does not exist") };
            schema = next;
            last = Some(name);
        }
        let mut text = String::new();
        if let Some(name) = last {
            text.push_str(&format!("FIELD: {name} <{}>\n", self.type_name(schema)));
            match values(self.resolve(schema)) {
                list if list.is_empty() => text.push('\n'),
                list => {
                    text.push_str("ENUM:\n");
                    text.extend(list.iter().map(|value| format!("    {value}\n")));
                }
            }
            text.push('\n');
        }
        let description = self.description(schema);
        let description = if description.is_empty() { "<empty>" } else { &description };
        text.push_str(&format!("DESCRIPTION:\n{}    \n", indented(description, 4)));
        let list = self.fields(schema, 1, &mut Vec::new());
        if !list.is_empty() {
            text.push_str(&format!("FIELDS:\n{list}"));
        }
        text.push('\n');
        Ok(text)
    }

    /// Follows references, and wrappers of a single reference.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        match reference(schema) {
            Some(name) => &self.document["components"]["schemas"][name],
            None => schema,
        }
    }

    /// The schema with the fields: for lists and maps, that of their items.
    fn contents(&self, schema: &'a Value) -> &'a Value {
        let mut schema = self.resolve(schema);
        // Lists of lists are rare, and end soon.
        for _ in 0..8 {
            if schema["items"].is_object() {
                schema = self.resolve(&schema["items"]);
            } else if schema["additionalProperties"].is_object() {
                schema = self.resolve(&schema["additionalProperties"]);
            } else {
                break;
            }
        }
        schema
    }

    fn property(&self, schema: &'a Value, name: &str) -> Option<&'a Value> {
        let found = &schema["properties"][name];
        if !found.is_null() {
            return Some(found);
        }
        parts(schema).find_map(|part| self.property(self.resolve(part), name))
    }

    /// Its own description, and that of the items of a list or map.
    fn description(&self, schema: &'a Value) -> String {
        let text = |schema: &Value| schema["description"].as_str().unwrap_or("").to_owned();
        let mut lines = Vec::new();
        let own = text(schema);
        let resolved = self.resolve(schema);
        lines.push(if own.is_empty() { text(resolved) } else { own.clone() });
        if !own.is_empty() && !std::ptr::eq(resolved, schema) {
            lines.push(text(resolved));
        }
        let inner = self.contents(schema);
        if !std::ptr::eq(inner, resolved) {
            lines.push(text(inner));
        }
        lines.retain(|line| !line.is_empty());
        lines.join("\n")
    }

    fn type_name(&self, schema: &'a Value) -> String {
        if let Some(name) = reference(schema) {
            let target = &self.document["components"]["schemas"][name];
            // A named type without fields is shown as its basic type.
            let kind = target["type"].as_str().unwrap_or("");
            if target["properties"].is_object() || kind.is_empty() || kind == "object" {
                return name.rsplit('.').next().unwrap_or(name).to_owned();
            }
            return self.type_name(target);
        }
        if schema["items"].is_object() {
            return format!("[]{}", self.type_name(&schema["items"]));
        }
        if schema["additionalProperties"].is_object() {
            return format!("map[string]{}", self.type_name(&schema["additionalProperties"]));
        }
        match schema["type"].as_str() {
            Some("object") | None => "Object".to_owned(),
            Some(other) => other.to_owned(),
        }
    }

    /// The fields of a type, in order. `seen` contains the types on the path.
    fn fields(&self, schema: &'a Value, level: usize, seen: &mut Vec<*const Value>) -> String {
        let schema = self.contents(schema);
        let place: *const Value = schema;
        if seen.contains(&place) {
            return String::new();
        }
        seen.push(place);
        let mut text = String::new();
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut entries: Vec<(&String, &'a Value)> =
            schema["properties"].as_object().into_iter().flatten().collect();
        entries.sort_by_key(|(name, _)| name.as_str());
        let space = "  ".repeat(level);
        for (name, field) in entries {
            let needed = if required.contains(&name.as_str()) { " -required-" } else { "" };
            text.push_str(&format!("{space}{name}\t<{}>{needed}\n", self.type_name(field)));
            let list = values(self.resolve(field));
            if !list.is_empty() {
                text.push_str(&format!("{space}enum: {}\n", enumerated(&list)));
            }
            if self.recursive {
                text.push_str(&self.fields(field, level + 1, seen));
            } else {
                let description = self.description_of_field(field);
                text.push_str(&format!("{}\n", indented(&description, 2 * level + 2)));
            }
        }
        for part in parts(schema) {
            text.push_str(&self.fields(part, level, seen));
        }
        seen.pop();
        text
    }

    fn description_of_field(&self, field: &'a Value) -> String {
        let own = field["description"].as_str().unwrap_or("");
        let text =
            if own.is_empty() { self.resolve(field)["description"].as_str().unwrap_or("") } else { own };
        if text.is_empty() { "<no description>".to_owned() } else { text.to_owned() }
    }
}

/// The name in `$ref`, or in an `allOf` with one item.
fn reference(schema: &Value) -> Option<&str> {
    let name = schema["$ref"].as_str().or_else(|| match schema["allOf"].as_array().map(Vec::as_slice) {
        Some([one]) => one["$ref"].as_str(),
        _ => None,
    })?;
    name.rsplit('/').next()
}

/// Several schemas of which a type is composed.
fn parts(schema: &Value) -> impl Iterator<Item = &Value> {
    ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|key| schema[key].as_array().into_iter().flatten())
}

fn values(schema: &Value) -> Vec<String> {
    let shown = |value: &Value| match apimachinery::jsonpath::print(value).as_str() {
        "" => "\"\"".to_owned(),
        text => text.to_owned(),
    };
    schema["enum"].as_array().into_iter().flatten().map(shown).collect()
}

/// `a, b, c`; of many, only the first ones.
fn enumerated(values: &[String]) -> String {
    if values.len() > 4 {
        return format!("{}, ....", values[..4].join(", "));
    }
    values.join(", ")
}

/// Wraps text into lines of at most [`WIDTH`] characters and indents them.
fn indented(text: &str, spaces: usize) -> String {
    let space = " ".repeat(spaces);
    let mut out = String::new();
    for line in text.lines() {
        // The first line keeps its own indent.
        let own = line.len() - line.trim_start().len();
        let mut row = line[..own].to_owned();
        let mut fresh = true;
        // Double blanks in the text are kept, except where a line is broken.
        let mut gap = String::new();
        for word in line[own..].split(' ') {
            if word.is_empty() {
                gap.push(' ');
                continue;
            }
            if !fresh && row.chars().count() + gap.len() + word.chars().count() > WIDTH {
                out.push_str(&format!("{space}{row}\n"));
                row.clear();
                fresh = true;
            }
            if !std::mem::replace(&mut fresh, false) {
                row.push_str(&gap);
            }
            " ".clone_into(&mut gap);
            row.push_str(word);
        }
        out.push_str(&format!("{space}{row}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Value {
        json!({"components": {"schemas": {
            "io.x.Web": {"description": "A web.", "type": "object", "required": ["kind"],
                "x-kubernetes-group-version-kind": [{"group": "x.io", "version": "v1", "kind": "Web"}],
                "properties": {
                    "kind": {"type": "string", "description": "Its kind."},
                    "spec": {"description": "What is wanted.", "allOf": [{"$ref": "#/components/schemas/io.x.WebSpec"}]}}},
            "io.x.WebSpec": {"description": "The wish.", "type": "object", "properties": {
                "mode": {"type": "string", "enum": ["A", "B"], "description": "How."},
                "sub": {"type": "array", "items": {"$ref": "#/components/schemas/io.x.WebSpec"}, "description": "More."},
                "tags": {"type": "object", "additionalProperties": {"type": "string"}}}},
        }}})
    }

    fn explain(fields: &[&str], recursive: bool) -> anyhow::Result<String> {
        let document = sample();
        let page = Page { document: &document, recursive };
        let resource = Resource {
            group: "x.io".into(),
            version: "v1".into(),
            kind: "Web".into(),
            ..Resource::default()
        };
        let fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
        page.print(page.schema(&resource).expect("described"), &fields)
    }

    #[test]
    fn a_type_is_explained_with_its_fields() {
        assert_eq!(
            explain(&[], false).expect("good"),
            "DESCRIPTION:\n    A web.\n    \nFIELDS:\n  kind\t<string> -required-\n    Its kind.\n\n  spec\t<WebSpec>\n    What \
             is wanted.\n\n\n"
        );
        assert_eq!(
            explain(&["spec", "mode"], false).expect("good"),
            "FIELD: mode <string>\nENUM:\n    A\n    B\n\nDESCRIPTION:\n    How.\n    \n\n"
        );
        let sub = explain(&["spec", "sub", "sub"], false).expect("through lists");
        assert!(
            sub.starts_with("FIELD: sub <[]WebSpec>\n\n\nDESCRIPTION:\n    More.\n    The wish.\n"),
            "{sub}"
        );
        assert_eq!(
            explain(&["nope"], false).expect_err("unknown").to_string(),
            "field \"nope\" does not exist"
        );
    }

    #[test]
    fn a_type_that_contains_itself_ends() {
        let text = explain(&[], true).expect("good");
        assert!(text.contains("    sub\t<[]WebSpec>\n    tags\t<map[string]string>\n"), "{text}");
        assert!(text.contains("    mode\t<string>\n    enum: A, B\n"), "{text}");
    }

    #[test]
    fn long_text_is_broken() {
        let text = indented(&"word ".repeat(20), 4);
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| line.starts_with("    word") && line.len() <= 80));
    }
}
