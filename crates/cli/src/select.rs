//! Resolves the objects of a command: `TYPE NAME…`, `TYPE/NAME…`, `TYPE,TYPE`, selectors, or files.
//!
//! In: words of the command line. Out: the requests to the server, or the objects themselves. Errors are those of kubectl's
//! resource builder.

use anyhow::bail;
use serde_json::Value;

use crate::discovery::{Discovery, Resource};
use crate::failure;
use crate::manifests::Files;
use crate::server::{Server, query, segment};

/// The request for one type.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) resource: Resource,
    /// One object; otherwise the collection.
    pub(crate) name: Option<String>,
}

/// The words as types and names, before the types are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Words {
    /// Types with the requested name, if any.
    pub(crate) pairs: Vec<(String, Option<String>)>,
}

impl Words {
    /// Sorts words into types and names.
    pub(crate) fn parse(words: &[String]) -> anyhow::Result<Self> {
        let mut pairs = Vec::new();
        if words.iter().any(|word| word.contains('/')) {
            for word in words {
                let mut parts = word.split('/');
                let (Some(type_), Some(name), None) = (parts.next(), parts.next(), parts.next()) else {
                    if word.contains('/') {
                        bail!("arguments in resource/name form may not have more than one slash");
                    }
                    let program = crate::program::shown();
                    bail!(
                        "there is no need to specify a resource type as a separate argument when passing arguments in \
                         resource/name form (e.g. '{program} get resource/<resource_name>' instead of '{program} get \
                         resource resource/<resource_name>'"
                    );
                };
                if type_.is_empty() || name.is_empty() {
                    bail!("arguments in resource/name form must have a single resource and name");
                }
                pairs.push((type_.to_owned(), Some(name.to_owned())));
            }
            return Ok(Self { pairs });
        }
        if let Some((types, names)) = words.split_first() {
            for type_ in types.split(',').filter(|type_| !type_.is_empty()) {
                if names.is_empty() {
                    pairs.push((type_.to_owned(), None));
                }
                pairs.extend(names.iter().map(|name| (type_.to_owned(), Some(name.clone()))));
            }
        }
        Ok(Self { pairs })
    }

    pub(crate) fn named(&self) -> bool {
        self.pairs.iter().any(|(_, name)| name.is_some())
    }

    /// Resolves the types.
    pub(crate) fn resolve(&self, discovery: &Discovery) -> anyhow::Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        for (type_, name) in &self.pairs {
            let found =
                if name.is_some() { vec![discovery.resolve(type_)?] } else { discovery.expand(type_)? };
            wanted.extend(found.into_iter().map(|r| Wanted { resource: r.clone(), name: name.clone() }));
        }
        Ok(wanted)
    }
}

/// An object on a server, and its path.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) resource: Resource,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) object: Value,
}

impl Item {
    pub(crate) fn new(resource: &Resource, object: Value) -> Self {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or("").to_owned();
        Self { resource: resource.clone(), namespace: text("namespace"), name: text("name"), object }
    }

    pub(crate) fn path(&self) -> String {
        self.resource.path(&self.namespace, &self.name)
    }

    /// `deployment.apps/nginx`
    pub(crate) fn title(&self) -> String {
        format!("{}/{}", self.resource.prefix(), self.name)
    }
}

/// All arguments that select objects.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query {
    pub(crate) words: Vec<String>,
    pub(crate) files: Files,
    pub(crate) namespace: String,
    /// Whether the namespace was given explicitly: then files must agree with it.
    pub(crate) namespace_asked: bool,
    pub(crate) all_namespaces: bool,
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
    /// Every object of the types.
    pub(crate) all: bool,
    pub(crate) ignore_not_found: bool,
    pub(crate) subresource: Option<String>,
    /// For deletions: a missing object is reported by its own name, and with its file.
    pub(crate) deleting: bool,
}

impl Query {
    /// Returns the objects from the server, and the errors.
    pub(crate) async fn items(&self, server: &Server) -> anyhow::Result<(Vec<Item>, Vec<anyhow::Error>)> {
        let mut items = Vec::new();
        let mut failures = Vec::new();
        if !self.files.is_empty() {
            if !self.words.is_empty() {
                bail!(
                    "when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well"
                );
            }
            let discovery = server.discovery().await?;
            for manifest in self.files.read().await? {
                let resource = discovery.of(&manifest.object)?;
                let namespace = self.namespace_of(resource, &manifest.object)?;
                let name = manifest.object["metadata"]["name"].as_str().unwrap_or("").to_owned();
                let before = failures.len();
                self.fetch(server, resource, &namespace, &name, &mut items, &mut failures).await;
                if self.deleting && failures.len() > before {
                    let missing = failures.pop().map(|error| match error.downcast::<failure::Refusal>() {
                        Ok(refusal) => refusal.when("deleting", &manifest.source),
                        Err(error) => error,
                    });
                    failures.extend(missing);
                }
            }
            return Ok((items, failures));
        }
        let words = Words::parse(&self.words)?;
        if words.pairs.is_empty() {
            bail!(
                "You must provide one or more resources by argument or filename.\nExample resource specifications \
                 include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'\n   '<resource> <name>'\n   '<resource>'"
            );
        }
        let selecting = self.labels.is_some() || self.fields.is_some();
        if words.named() && selecting {
            bail!("name cannot be provided when a selector is specified");
        }
        if words.named() && self.all_namespaces {
            bail!("a resource cannot be retrieved by name across all namespaces");
        }
        if !words.named() && !selecting && !self.all {
            bail!("resource(s) were provided, but no name was specified");
        }
        let discovery = server.discovery().await?;
        for Wanted { resource, name } in words.resolve(discovery)? {
            match name {
                Some(name) => {
                    self.fetch(server, &resource, &self.namespace, &name, &mut items, &mut failures).await
                }
                None => {
                    let path = resource.collection((!self.all_namespaces).then_some(self.namespace.as_str()));
                    let (labels, fields) = (self.labels.as_deref(), self.fields.as_deref());
                    match list(server, &path, labels, fields)
                        .await
                        .map_err(|e| unfit(&resource, labels, fields, e))
                    {
                        Ok(found) => items.extend(
                            found.into_iter().map(|object| Item::new(&resource, typed(object, &resource))),
                        ),
                        Err(error) => failures.push(error),
                    }
                }
            }
        }
        Ok((items, failures))
    }

    async fn fetch(
        &self,
        server: &Server,
        resource: &Resource,
        namespace: &str,
        name: &str,
        items: &mut Vec<Item>,
        failures: &mut Vec<anyhow::Error>,
    ) {
        let found = if self.deleting {
            server.get(&resource.path(namespace, name)).await
        } else {
            get(server, resource, namespace, name, self.subresource.as_deref()).await
        };
        match found {
            Ok(object) => items.push(Item::new(resource, object)),
            Err(error) if self.ignore_not_found && failure::is_not_found(&error) => {}
            Err(error) => failures.push(error),
        }
    }

    /// Returns the namespace of an object in a file, which must not contradict an explicit one.
    pub(crate) fn namespace_of(&self, resource: &Resource, object: &Value) -> anyhow::Result<String> {
        let own = object["metadata"]["namespace"].as_str().unwrap_or("");
        if !resource.namespaced {
            return Ok(String::new());
        }
        if own.is_empty() {
            return Ok(self.namespace.clone());
        }
        if self.namespace_asked && own != self.namespace {
            bail!(
                "the namespace from the provided object {} does not match the namespace {}. You must pass \
                 '--namespace={own}' to perform this operation.",
                apimachinery::go::quote(own),
                apimachinery::go::quote(&self.namespace)
            );
        }
        Ok(own.to_owned())
    }
}

/// Reads one object. If it is missing because its namespace is, the error says so.
pub(crate) async fn get(
    server: &Server,
    resource: &Resource,
    namespace: &str,
    name: &str,
    subresource: Option<&str>,
) -> anyhow::Result<Value> {
    let path = resource.path(namespace, name);
    let path = match subresource.filter(|part| !part.is_empty()) {
        Some(part) => format!("{path}/{}", segment(part)),
        None => path,
    };
    let error = match server.get(&path).await {
        Ok(object) => return Ok(object),
        Err(error) => error,
    };
    Err(missing_namespace(server, resource, namespace, error).await)
}

/// Replaces an error that hides a missing namespace.
pub(crate) async fn missing_namespace(
    server: &Server,
    resource: &Resource,
    namespace: &str,
    error: anyhow::Error,
) -> anyhow::Error {
    if failure::is_not_found(&error) && resource.namespaced && namespace != "default" && !namespace.is_empty()
    {
        let space = server.get(&format!("/api/v1/namespaces/{}", segment(namespace))).await;
        if let Err(missing) = space
            && failure::is_not_found(&missing)
        {
            return missing;
        }
    }
    error
}

/// Adds the type and selector to the error of a list, if the request is at fault.
pub(crate) fn unfit(
    resource: &Resource,
    labels: Option<&str>,
    fields: Option<&str>,
    error: anyhow::Error,
) -> anyhow::Error {
    match error.downcast::<failure::Refusal>() {
        Ok(mut refusal) if matches!(refusal.reason(), "BadRequest" | "NotFound") => {
            let quote = |text: Option<&str>| apimachinery::go::quote(text.unwrap_or(""));
            refusal.status["message"] = format!(
                "Unable to find {} that match label selector {}, field selector {}: {refusal}",
                apimachinery::go::quote(&resource.go_text()),
                quote(labels),
                quote(fields)
            )
            .into();
            refusal.into()
        }
        Ok(refusal) => refusal.into(),
        Err(error) => error,
    }
}

/// Lists a collection, in pieces of 500 as kubectl does.
pub(crate) async fn list(
    server: &Server,
    path: &str,
    labels: Option<&str>,
    fields: Option<&str>,
) -> anyhow::Result<Vec<Value>> {
    let mut items = Vec::new();
    let mut next = String::new();
    loop {
        let page = server.get(&format!("{path}?{}", list_query(labels, fields, &next))).await?;
        items.extend(page["items"].as_array().cloned().unwrap_or_default());
        next = page["metadata"]["continue"].as_str().unwrap_or("").to_owned();
        if next.is_empty() {
            return Ok(items);
        }
    }
}

/// The query of one page of a list.
pub(crate) fn list_query(labels: Option<&str>, fields: Option<&str>, next: &str) -> String {
    let mut text = String::from("limit=500");
    for (key, value) in [("labelSelector", labels), ("fieldSelector", fields), ("continue", Some(next))] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            text.push_str(&format!("&{key}={}", query(value)));
        }
    }
    text
}

/// Sets the type of an item, which only the list has.
pub(crate) fn typed(mut object: Value, resource: &Resource) -> Value {
    if object["kind"].is_null() {
        object["kind"] = resource.kind.clone().into();
        object["apiVersion"] = resource.api_version().into();
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> anyhow::Result<Words> {
        Words::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn words_become_types_and_names() {
        let pair = |type_: &str, name: Option<&str>| (type_.to_owned(), name.map(str::to_owned));
        assert_eq!(words("pods").expect("good").pairs, [pair("pods", None)]);
        assert_eq!(words("pods,svc").expect("good").pairs, [pair("pods", None), pair("svc", None)]);
        assert_eq!(words("po a b").expect("good").pairs, [pair("po", Some("a")), pair("po", Some("b"))]);
        assert_eq!(words("po/a svc/b").expect("good").pairs, [pair("po", Some("a")), pair("svc", Some("b"))]);
        for (bad, complaint) in [
            ("po/a b", "there is no need to specify a resource type"),
            ("po/a/b", "more than one slash"),
            ("po/", "must have a single resource and name"),
        ] {
            let error = words(bad).expect_err(bad).to_string();
            assert!(error.contains(complaint), "{bad}: {error}");
        }
    }

    #[test]
    fn the_query_of_a_page_is_escaped() {
        assert_eq!(list_query(Some("a=b"), None, "x+y"), "limit=500&labelSelector=a%3Db&continue=x%2By");
        assert_eq!(list_query(Some(""), None, ""), "limit=500");
    }
}
