//! A CustomResourceDefinition, compiled: the schemas of its versions, and how their objects are checked.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use apimachinery::field;
use apimachinery::gvk::{GroupResource, Gvk};
use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::structural::Malformed;
use jiff::Timestamp;
use native::validation::meta;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::kind::{Kind, Rules, Source, Subresource};
use crate::conversion::Converter;
use crate::handlers::scale::{self, Paths};
use crate::object::{self, Entry};

/// Stands for the schema of an object that a webhook has converted: it has the form of the target version.
pub(crate) const CONVERTED: u32 = u32::MAX;
/// Stands for the schema of an object that must be changed before any version can show it.
pub(crate) const UNSETTLED: u32 = u32::MAX - 1;

/// Numbers compiled definitions, within this process.
static INCARNATIONS: AtomicU64 = AtomicU64::new(0);

/// One definition with all its versions.
#[derive(Debug)]
pub struct Custom {
    /// Name of the definition: `<plural>.<group>`.
    pub name: String,
    pub uid: String,
    pub group: String,
    pub names: Names,
    pub namespaced: bool,
    pub versions: Vec<Version>,
    /// The storage version.
    pub storage_version: String,
    /// The first of the versions in which objects were ever stored: that of every stored body without a version.
    pub first_stored: String,
    /// The webhook that converts between the versions; without one they differ only by name.
    pub conversion: Option<Converter>,
    /// The definition is being deleted: no instances may be created.
    pub terminating: bool,
    /// All versions have the same schema, so that stored bytes serve each of them.
    pub uniform: bool,
    /// Distinguishes the source of this compilation from any other, see [`essence`].
    pub essence: u64,
    /// Identifies how this is served: a different number ends the watches, see [`Custom::succeed`].
    service: u64,
    /// Cancelled when objects are no longer served like this.
    pub retired: CancellationToken,
    /// A new number each time objects are served differently, even if they were served the same way before.
    pub incarnation: u64,
    /// Subresources that an extension answers, whatever the method is.
    pub connects: Vec<Subresource>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Names {
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
}

#[derive(Debug)]
pub struct Version {
    pub name: String,
    pub served: bool,
    pub schema: Arc<apimachinery::structural::Schema>,
    pub status: bool,
    pub scale: Option<Paths>,
    pub columns: Vec<Column>,
    pub selectable: Vec<String>,
    pub deprecated: bool,
    pub deprecation_warning: Option<String>,
    pub has_defaults: bool,
    /// Distinguishes this schema, together with that of the storage version, from others, within this process. Never 0.
    pub fingerprint: u32,
    /// The rules of `x-kubernetes-validations`.
    pub rules: Option<super::rules::Rules>,
    /// The schema as written, for OpenAPI.
    pub document: Value,
}

/// An additional printer column.
#[derive(Debug)]
pub struct Column {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
    pub path: Option<apimachinery::jsonpath::Path>,
}

#[derive(Debug, thiserror::Error)]
#[error("definition {name}: {what}")]
pub struct Error {
    name: String,
    what: String,
}

impl Names {
    /// Reads `spec.names` or `status.acceptedNames`.
    pub fn read(value: &Value) -> Self {
        Self {
            plural: pointer::owned(value, "/plural"),
            singular: pointer::owned(value, "/singular"),
            kind: pointer::owned(value, "/kind"),
            list_kind: pointer::owned(value, "/listKind"),
            short_names: pointer::texts(value, "/shortNames"),
            categories: pointer::texts(value, "/categories"),
        }
    }
}

impl Custom {
    /// Compiles a definition as stored.
    pub fn compile(definition: &Value) -> Result<Self, Error> {
        let name = definition.name().to_owned();
        let spec = &definition["spec"];
        let names = Names::read(&spec["names"]);
        let mut versions = Vec::new();
        let mut storage_version = String::new();
        for version in definition.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten() {
            let document = version
                .pointer("/schema/openAPIV3Schema")
                .cloned()
                .unwrap_or_else(|| json!({"type": "object"}));
            let mut schema = apimachinery::structural::Schema::compile(&document)
                .map_err(|what| Error { name: name.clone(), what })?;
            schema.prune_defaults();
            if version["storage"] == true {
                storage_version = pointer::owned(version, "/name");
            }
            versions.push(Version {
                name: pointer::owned(version, "/name"),
                served: version["served"] == true,
                schema: Arc::new(schema),
                status: version.pointer("/subresources/status").is_some(),
                scale: version.pointer("/subresources/scale").map(|scale| Paths {
                    spec: pointer::owned(scale, "/specReplicasPath"),
                    status: pointer::owned(scale, "/statusReplicasPath"),
                    selector: Some(pointer::owned(scale, "/labelSelectorPath"))
                        .filter(|path| !path.is_empty()),
                }),
                columns: columns(version),
                selectable: version["selectableFields"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|field| pointer::owned(field, "/jsonPath").trim_start_matches('.').to_owned())
                    .collect(),
                deprecated: version["deprecated"] == true,
                deprecation_warning: version["deprecationWarning"].as_str().map(str::to_owned),
                has_defaults: has_defaults(&document),
                fingerprint: 0,
                rules: super::rules::Rules::compile(&document),
                document,
            });
        }
        let stored = versions.iter().find(|version| version.name == storage_version);
        let stored = stored.map(|version| version.document.clone()).unwrap_or_default();
        for version in &mut versions {
            version.fingerprint = fingerprint(&version.document, &stored);
        }
        let uniform =
            versions.windows(2).all(|pair| matches!(pair, [one, next] if one.document == next.document));
        Ok(Self {
            uid: definition.uid().to_owned(),
            group: pointer::owned(definition, "/spec/group"),
            names,
            namespaced: pointer::owned(definition, "/spec/scope") == "Namespaced",
            versions,
            first_stored: first_stored(definition).to_owned(),
            conversion: Converter::read(&spec["conversion"]),
            storage_version,
            terminating: definition.is_deleting(),
            uniform,
            essence: essence(definition),
            service: service(definition),
            retired: CancellationToken::new(),
            incarnation: INCARNATIONS.fetch_add(1, Ordering::Relaxed),
            connects: Vec::new(),
            name,
        })
    }

    /// Returns the served resources of a definition.
    pub fn kinds(this: &Arc<Self>) -> Vec<Arc<Kind>> {
        this.versions
            .iter()
            .filter(|version| version.served)
            .map(|version| this.kind(this, version))
            .collect()
    }

    fn kind(&self, this: &Arc<Self>, version: &Version) -> Arc<Kind> {
        let gvk = Gvk::new(&self.group, &version.name, &self.names.kind);
        let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let mut subresources = Vec::new();
        if version.status {
            subresources.push(Subresource {
                name: "status".to_owned(),
                gvk: gvk.clone(),
                verbs: own(&["get", "patch", "update"]),
            });
        }
        if version.scale.is_some() {
            subresources.push(Subresource {
                name: "scale".to_owned(),
                gvk: scale::gvk(),
                verbs: own(&["get", "patch", "update"]),
            });
        }
        subresources.extend(self.connects.iter().cloned());
        Arc::new(Kind {
            api_version: gvk.api_version(),
            list_kind: self.names.list_kind.clone(),
            resource: GroupResource::new(&self.group, &self.names.plural),
            singular: self.names.singular.clone(),
            short_names: self.names.short_names.clone(),
            categories: self.names.categories.clone(),
            namespaced: self.namespaced,
            verbs: own(&["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]),
            subresources,
            collection: format!("{}/{}", self.group, self.names.plural).into(),
            source: Source::Custom(this.clone()),
            rules: Rules { generation: true, status: version.status, ..Rules::default() },
            storage: Gvk::new(&self.group, &self.storage_version, &self.names.kind),
            gvk,
        })
    }

    fn version(&self, name: &str) -> &Version {
        self.versions
            .iter()
            .find(|version| version.name == name)
            .expect("a kind is made only for versions that the definition has")
    }

    /// Replaces an earlier compilation of the definition: watches continue if objects are served as before.
    pub fn succeed(&mut self, before: &Self) {
        if self.serves_like(before) {
            self.retired = before.retired.clone();
            self.incarnation = before.incarnation;
        }
    }

    /// Returns whether objects are served as before.
    pub fn serves_like(&self, before: &Self) -> bool {
        self.service == before.service
    }

    /// Returns whether an object that was stored under a schema can be sent unchanged: if that is the schema of this version. An
    /// object from before the server's start may lack defaults that have been added to the schema since, but nothing else.
    pub fn serves_as_stored(&self, version: &str, schema: u32) -> bool {
        let version = self.version(version);
        schema == CONVERTED
            || self.conversion.is_none()
                && (version.fingerprint == schema || schema == 0 && self.uniform && !version.has_defaults)
    }

    pub fn fingerprint(&self, version: &str) -> u32 {
        self.version(version).fingerprint
    }

    /// Returns the version that an object is stored in.
    pub fn stored_version<'a>(&'a self, entry: &'a Entry) -> &'a str {
        let said = object::stored_version(&entry.value).and_then(|said| said.rsplit('/').next());
        said.unwrap_or(&self.first_stored)
    }

    /// Converts an object of one version to another one, as if it were read from the store: with the defaults of its storage
    /// version, and without fields that the other version does not know. The defaults of the other version are for objects from
    /// clients.
    pub fn present(&self, from: &str, to: &str, object: &mut Value) {
        let target = self.version(to);
        match self.versions.iter().find(|version| version.name == from) {
            Some(stored) => {
                stored.settle(object);
                if stored.fingerprint != target.fingerprint {
                    target.trim(object);
                }
            }
            None => target.settle(object),
        }
    }

    /// Brings an object into the form that its version has in the store, with the defaults for reading.
    pub fn settle(&self, version: &str, object: &mut Value) {
        if let Some(version) = self.versions.iter().find(|own| own.name == version) {
            version.settle(object);
        }
    }

    /// Drops fields that a version does not know.
    pub fn trim(&self, version: &str, object: &mut Value) {
        if let Some(version) = self.versions.iter().find(|own| own.name == version) {
            version.trim(object);
        }
    }

    /// Drops unknown fields and fills in defaults. Returns the paths of the dropped fields.
    pub fn canonicalise(&self, gvk: &Gvk, object: &mut Value) -> Result<Vec<String>, String> {
        let schema = &self.version(&gvk.version).schema;
        let metadata =
            schema.coerce_metadata(object, Malformed::Refuse).map_err(|error| error.to_string())?;
        // In the order of the messages: the object's own metadata, the fields, the metadata of embedded objects.
        let (mut unknown, inside): (Vec<String>, Vec<String>) =
            metadata.into_iter().partition(|path| path.starts_with("metadata."));
        unknown.extend(schema.prune(object));
        unknown.extend(inside);
        schema.default(object).map_err(|error| error.to_string())?;
        Ok(unknown)
    }

    /// Returns the unknown fields of an object whose kind or version differs from that of the endpoint. For another version of
    /// this kind, that version's schema counts, or none if it does not exist; for another kind, only the metadata counts.
    pub fn unknown_in(&self, given: &Gvk, object: &mut Value) -> Result<Vec<String>, String> {
        let of_this_kind = given.group == self.group && given.kind == self.names.kind;
        let version = self.versions.iter().find(|version| version.name == given.version);
        if let Some(version) = version.filter(|_| of_this_kind) {
            let gvk = Gvk::new(&self.group, &version.name, &self.names.kind);
            return self.canonicalise(&gvk, object);
        }
        let schema = &self.version(&self.storage_version).schema;
        let metadata =
            schema.coerce_metadata(object, Malformed::Refuse).map_err(|error| error.to_string())?;
        let mut unknown: Vec<String> =
            metadata.into_iter().filter(|path| path.starts_with("metadata.")).collect();
        if of_this_kind {
            let fields = object.as_object().into_iter().flat_map(|fields| fields.keys());
            unknown.extend(
                fields.filter(|field| !["apiVersion", "kind", "metadata"].contains(&field.as_str())).cloned(),
            );
        }
        Ok(unknown)
    }

    /// Drops nulls from a client's object where null is not allowed.
    pub fn drop_nulls(&self, gvk: &Gvk, object: &mut Value) {
        self.version(&gvk.version).schema.prune_nulls(object);
    }

    pub fn prepare_create(&self, gvk: &Gvk, object: &mut Value) {
        if self.version(&gvk.version).status
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
    }

    /// Restores the fields that an endpoint does not change: the status through the object, everything but the status through
    /// `/status`.
    pub fn prepare_update(&self, gvk: &Gvk, subresource: &str, new: &mut Value, old: &Value) {
        if subresource == "status" {
            let status = new.get("status").cloned();
            let managed = new.pointer("/metadata/managedFields").cloned();
            *new = old.clone();
            let fields = new.as_object_mut().expect("stored objects are objects");
            match status {
                Some(status) => fields.insert("status".to_owned(), status),
                None => fields.remove("status"),
            };
            if let Some(managed) = managed {
                new.metadata_mut().insert("managedFields".to_owned(), managed);
            }
            return;
        }
        if self.version(&gvk.version).status
            && let Some(fields) = new.as_object_mut()
        {
            match old.get("status") {
                Some(status) => fields.insert("status".to_owned(), status.clone()),
                None => fields.remove("status"),
            };
        }
    }

    /// Returns whether anything but metadata (and the status, where it is a subresource) differs.
    pub fn spec_changed(&self, version: &str, old: &Value, new: &Value) -> bool {
        let status = self.version(version).status;
        let rest = |object: &Value| {
            let mut fields = object.as_object().cloned().unwrap_or_default();
            for field in ["metadata", "apiVersion", "kind"] {
                fields.remove(field);
            }
            if status {
                fields.remove("status");
            }
            fields
        };
        rest(old) != rest(new)
    }

    pub fn validate_create(&self, gvk: &Gvk, namespaced: bool, object: &Value) -> field::Errors {
        let version = self.version(&gvk.version);
        let mut errors =
            meta::create(object, namespaced, meta::NameRule::Subdomain, meta::Finalizers::Qualified);
        errors.extend(version.schema.validate(object, None));
        errors.extend(version.check_scale(object));
        errors.extend(version.schema.validate_embedded(object));
        errors.extend(version.schema.validate_lists(object));
        version.with_rules(errors, object, None, &|_| ())
    }

    /// Checks a changed object; through `/status`, only its status. Existing faults become warnings.
    pub fn validate_update(
        &self,
        gvk: &Gvk,
        subresource: &str,
        object: &Value,
        old: &Value,
        warn: &dyn Fn(String),
    ) -> field::Errors {
        let version = self.version(&gvk.version);
        // Upstream checks the metadata twice.
        let mut errors = meta::update(object, old, meta::Finalizers::Qualified);
        errors.extend(meta::update(object, old, meta::Finalizers::Qualified));
        if subresource == "status" {
            errors.extend(version.schema.validate_status(object, old));
            errors.extend(version.scale.iter().flat_map(|paths| scale::check_status(paths, object)));
        } else {
            errors.extend(version.schema.validate(object, Some(old)));
            errors.extend(version.check_scale(object));
            errors.extend(version.schema.validate_embedded(object));
        }
        errors.extend(version.schema.validate_lists_update(object, old));
        version.with_rules(errors, object, Some(old), warn)
    }

    pub fn selectable_fields(&self, version: &str) -> Vec<String> {
        self.version(version).selectable.clone()
    }

    pub fn scale_paths(&self, version: &str) -> Option<Paths> {
        self.version(version).scale.clone()
    }

    /// Returns the warning for every request to a deprecated version.
    pub fn deprecation(&self, gvk: &Gvk) -> Option<String> {
        let version = self.version(&gvk.version);
        if !version.deprecated {
            return None;
        }
        if let Some(warning) = &version.deprecation_warning {
            return Some(warning.clone());
        }
        let own = format!("{} {}", gvk.api_version(), gvk.kind);
        let mut better: Vec<&Version> =
            self.versions.iter().filter(|version| version.served && !version.deprecated).collect();
        better.sort_by(|a, b| super::version_order(&a.name, &b.name));
        Some(match better.first() {
            Some(better) => format!("{own} is deprecated; use {}/{} {}", self.group, better.name, gvk.kind),
            None => format!("{own} is deprecated"),
        })
    }

    pub fn table_columns(&self, version: &str) -> Vec<Value> {
        let mut columns = vec![json!({
            "name": "Name",
            "type": "string",
            "format": "name",
            "description": "The name of the object, unique among its kind in a namespace.",
            "priority": 0,
        })];
        columns.extend(self.version(version).columns.iter().map(|column| {
            json!({
                "name": column.name,
                "type": column.kind,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            })
        }));
        columns
    }

    pub fn table_cells(&self, version: &str, object: &Value, now: Timestamp) -> Vec<Value> {
        let mut cells = vec![json!(object.name())];
        cells.extend(self.version(version).columns.iter().map(|column| column.cell(object, now)));
        cells
    }
}

impl Version {
    /// Drops fields that this version does not know.
    fn trim(&self, object: &mut Value) {
        self.schema.prune(object);
        self.schema.prune_nulls(object);
    }

    /// Drops fields that this version does not know and fills in the current defaults.
    fn settle(&self, object: &mut Value) {
        self.trim(object);
        if let Err(error) = self.schema.default(object) {
            tracing::debug!(%error, "an object is shown without some of its defaults");
        }
    }

    fn check_scale(&self, object: &Value) -> field::Errors {
        let Some(paths) = &self.scale else { return field::Errors::new() };
        let mut errors = scale::check_spec(paths, object);
        errors.extend(scale::check_status(paths, object));
        errors
    }

    /// Adds the errors of the schema's rules. They do not run on an object of the wrong shape.
    fn with_rules(
        &self,
        mut errors: field::Errors,
        object: &Value,
        stored: Option<&Value>,
        warn: &dyn Fn(String),
    ) -> field::Errors {
        match &self.rules {
            Some(_) if errors.iter().any(is_misshapen) => errors.push(super::rules::unchecked()),
            Some(rules) => {
                let verdict = rules.validate(object, stored);
                errors.extend(verdict.errors);
                verdict.warnings.into_iter().for_each(warn);
            }
            None => {}
        }
        errors
    }
}

/// Returns whether an error concerns the shape of an object, on which expressions rely.
fn is_misshapen(error: &field::Error) -> bool {
    use field::ErrorType::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
    matches!(error.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid)
}

/// A digest that changes if a definition must be compiled again. Most of its status does not matter.
pub fn essence(definition: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in ["/metadata/uid", "/metadata/deletionTimestamp", "/spec"] {
        definition.pointer(path).map(ToString::to_string).hash(&mut hasher);
    }
    first_stored(definition).hash(&mut hasher);
    hasher.finish()
}

/// A digest that changes if objects of a definition are served differently.
fn service(definition: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in ["/metadata/uid", "/spec"] {
        definition.pointer(path).map(ToString::to_string).hash(&mut hasher);
    }
    hasher.finish()
}

fn first_stored(definition: &Value) -> &str {
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array);
    let storage = versions.into_iter().flatten().rfind(|version| version["storage"] == true);
    let stored = definition.pointer("/status/storedVersions/0").and_then(Value::as_str);
    stored.or_else(|| storage?["name"].as_str()).unwrap_or("")
}

fn fingerprint(schema: &Value, stored: &Value) -> u32 {
    let mut hasher = DefaultHasher::new();
    schema.to_string().hash(&mut hasher);
    stored.to_string().hash(&mut hasher);
    (hasher.finish() as u32).clamp(1, UNSETTLED - 1)
}

/// Returns whether a schema sets a default anywhere.
fn has_defaults(schema: &Value) -> bool {
    let Some(fields) = schema.as_object() else { return false };
    let below = |field: &str| fields.get(field).is_some_and(has_defaults);
    let properties = fields.get("properties").and_then(Value::as_object);
    fields.contains_key("default")
        || properties.is_some_and(|properties| properties.values().any(has_defaults))
        || below("items")
        || below("additionalProperties")
}

fn columns(version: &Value) -> Vec<Column> {
    let given = version["additionalPrinterColumns"].as_array().filter(|columns| !columns.is_empty());
    let Some(given) = given else {
        return vec![Column {
            name: "Age".to_owned(),
            kind: "date".to_owned(),
            format: String::new(),
            description: "How long ago the object was created.".to_owned(),
            priority: 0,
            path: apimachinery::jsonpath::Path::parse(".metadata.creationTimestamp").ok(),
        }];
    };
    given
        .iter()
        .map(|column| Column {
            name: pointer::owned(column, "/name"),
            kind: pointer::owned(column, "/type"),
            format: pointer::owned(column, "/format"),
            description: Some(pointer::owned(column, "/description"))
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| {
                    let path = pointer::owned(column, "/jsonPath");
                    format!("Custom resource definition column (in JSONPath format): {path}")
                }),
            priority: column["priority"].as_i64().unwrap_or(0),
            path: apimachinery::jsonpath::Path::parse(&pointer::owned(column, "/jsonPath")).ok(),
        })
        .collect()
}

impl Column {
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(path) = &self.path else { return Value::Null };
        let found = path.find(object);
        let Some(first) = found.first() else { return Value::Null };
        match self.kind.as_str() {
            "integer" => {
                first.as_i64().or_else(|| first.as_f64().map(|n| n as i64)).map_or(Value::Null, Value::from)
            }
            "number" => first.as_f64().map_or(Value::Null, |number| json!(number)),
            "boolean" => first.as_bool().map_or(Value::Null, Value::from),
            "date" => match first.as_str().filter(|text| text.parse::<Timestamp>().is_ok()) {
                Some(when) => json!(native::tables::age(when, now)),
                None => json!("<invalid>"),
            },
            _ => json!(
                found.iter().map(|value| apimachinery::jsonpath::print(value)).collect::<Vec<_>>().join(" ")
            ),
        }
    }
}
