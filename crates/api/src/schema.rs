//! The OpenAPI v3 schema of a field or kind, as a value that can be built next to the type.
//!
//! In: what [`crate::wire::Wire`] says about a Rust type, plus the limits that a field adds to it.
//! Out: the JSON that stands in a CustomResourceDefinition, and the tables of the API reference.
//!
//! A schema generator that looks at Rust types alone cannot say "map-type atomic", "enum of only two of
//! the three values here" or "required, yet omitted when empty" exactly as Karmada does; this one can,
//! and it is small enough to be read in one go. It only knows the constraints that Karmada's kinds use.

use serde_json::{Map, Value, json};

/// The pattern every Kubernetes quantity follows.
pub const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// The pattern of a condition type: an optional DNS prefix and a qualified name.
pub const CONDITION_TYPE_PATTERN: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";

/// The pattern of a machine-readable reason, as in conditions and eviction tasks.
pub const REASON_PATTERN: &str = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";

/// A schema: constraints of the value itself, and the schemas of what it contains.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// The name of the record, so that the reference can describe it once and link to it.
    pub type_name: Option<&'static str>,
    /// What users read in `kubectl explain`.
    pub description: String,
    /// Constraints that need no children, such as `type`, `enum` or `minLength`.
    pub constraints: Map<String, Value>,
    /// The fields of an object, in declaration order.
    pub properties: Vec<Property>,
    /// The schema of list items.
    pub items: Option<Box<Schema>>,
    /// The schema of map values.
    pub values: Option<Box<Schema>>,
}

/// One field of an object schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Property {
    /// The JSON name.
    pub name: &'static str,
    /// Whether the key must be present.
    pub required: bool,
    /// What the value must look like.
    pub schema: Schema,
}

impl Schema {
    /// Returns the schema of anything at all: no type, nothing pruned.
    pub fn any() -> Self {
        Self::default().with("x-kubernetes-preserve-unknown-fields", true)
    }

    /// Returns the schema of a value with nothing but a type.
    pub fn of_type(name: &str) -> Self {
        Self::default().with("type", name)
    }

    /// Returns the schema of an object whose fields follow.
    pub fn record(type_name: &'static str) -> Self {
        Self { type_name: Some(type_name), ..Self::of_type("object") }
    }

    /// Returns the schema of a list.
    pub fn list(items: Schema) -> Self {
        Self { items: Some(Box::new(items)), ..Self::of_type("array") }
    }

    /// Returns the schema of a map from strings.
    pub fn map(values: Schema) -> Self {
        Self { values: Some(Box::new(values)), ..Self::of_type("object") }
    }

    /// Returns the schema of a Kubernetes quantity: a number or its textual form.
    pub fn quantity() -> Self {
        Self::default()
            .with("anyOf", json!([{"type": "integer"}, {"type": "string"}]))
            .with("pattern", QUANTITY_PATTERN)
            .with("x-kubernetes-int-or-string", true)
    }

    /// Sets one constraint by its OpenAPI name.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.constraints.insert(name.to_owned(), value.into());
        self
    }

    /// Replaces the description.
    pub fn describe(mut self, text: &str) -> Self {
        self.description = text.to_owned();
        self
    }

    /// Adds a field to an object schema.
    pub fn field(mut self, name: &'static str, required: bool, description: &str, schema: Schema) -> Self {
        let schema = schema.describe(&tidy(description));
        self.properties.push(Property { name, required, schema });
        self
    }

    /// Adds all fields of another record, as an inlined Go struct does.
    pub fn inline(mut self, other: Schema) -> Self {
        self.properties.extend(other.properties);
        self
    }

    /// Sets the value that an absent field gets.
    pub fn defaults_to(self, value: impl Into<Value>) -> Self {
        self.with("default", value)
    }

    /// Restricts a string to these values, replacing an earlier restriction.
    pub fn one_of(self, values: &[&str]) -> Self {
        self.with("enum", json!(values))
    }

    /// Lifts the restriction to known values, also for the items of a list: the schema accepts any text, admission
    /// decides.
    pub fn any_text(mut self) -> Self {
        self.constraints.remove("enum");
        self.items = self.items.map(|items| Box::new(items.any_text()));
        self
    }

    /// Sets the smallest number.
    pub fn minimum(self, value: i64) -> Self {
        self.with("minimum", value)
    }

    /// Sets the largest number.
    pub fn maximum(self, value: i64) -> Self {
        self.with("maximum", value)
    }

    /// Sets the shortest text.
    pub fn min_length(self, value: u32) -> Self {
        self.with("minLength", value)
    }

    /// Sets the longest text.
    pub fn max_length(self, value: u32) -> Self {
        self.with("maxLength", value)
    }

    /// Sets the smallest number of items.
    pub fn min_items(self, value: u32) -> Self {
        self.with("minItems", value)
    }

    /// Sets the largest number of items.
    pub fn max_items(self, value: u32) -> Self {
        self.with("maxItems", value)
    }

    /// Sets the pattern a string follows.
    pub fn pattern(self, value: &str) -> Self {
        self.with("pattern", value)
    }

    /// Sets the format, e.g. `int32` where Go's published OpenAPI says so about a wider integer.
    pub fn format(self, value: &str) -> Self {
        self.with("format", value)
    }

    /// Removes the format: Go's `int` has none in generated CRDs.
    pub fn no_format(mut self) -> Self {
        self.constraints.remove("format");
        self
    }

    /// Makes a list one unit for server-side apply.
    pub fn atomic_list(self) -> Self {
        self.with("x-kubernetes-list-type", "atomic")
    }

    /// Makes a list a map keyed by one field of its items.
    pub fn list_map(self, key: &str) -> Self {
        self.with("x-kubernetes-list-map-keys", json!([key])).with("x-kubernetes-list-type", "map")
    }

    /// Makes an object one unit for server-side apply.
    pub fn atomic_map(self) -> Self {
        self.with("x-kubernetes-map-type", "atomic")
    }

    /// Makes this an object of which nothing is pruned.
    pub fn free_object(self) -> Self {
        self.with("type", "object").with("x-kubernetes-preserve-unknown-fields", true)
    }

    /// Makes the items of this list objects of which nothing is pruned.
    pub fn free_objects(mut self) -> Self {
        self.items = self.items.map(|items| Box::new(items.free_object()));
        self
    }

    /// Returns the named property of an object schema.
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties.iter().find(|property| property.name == name)
    }

    /// Returns the JSON form that a CustomResourceDefinition carries.
    pub fn to_json(&self) -> Value {
        let mut out = self.constraints.clone();
        if !self.description.is_empty() {
            out.insert("description".into(), self.description.clone().into());
        }
        if !self.properties.is_empty() {
            let properties: Map<String, Value> =
                self.properties.iter().map(|p| (p.name.to_owned(), p.schema.to_json())).collect();
            out.insert("properties".into(), properties.into());
            let mut required: Vec<&str> =
                self.properties.iter().filter(|p| p.required).map(|p| p.name).collect();
            if !required.is_empty() {
                // Generated CRDs sort this list, and a sorted list makes diffs quiet.
                required.sort_unstable();
                out.insert("required".into(), json!(required));
            }
        }
        if let Some(items) = &self.items {
            out.insert("items".into(), items.to_json());
        }
        if let Some(values) = &self.values {
            out.insert("additionalProperties".into(), values.to_json());
        }
        out.into()
    }
}

/// Joins the lines of a doc comment into one paragraph.
pub fn tidy(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_names_are_sorted_whatever_the_declaration_order() {
        let schema = Schema::record("Sample")
            .field("zone", true, "Where.", Schema::of_type("string"))
            .field("area", true, "How much.", Schema::of_type("integer"))
            .field("note", false, "Anything.", Schema::any());
        let json = schema.to_json();
        assert_eq!(json["required"], json!(["area", "zone"]));
        assert_eq!(json["properties"]["note"]["x-kubernetes-preserve-unknown-fields"], json!(true));
        assert_eq!(json["properties"]["zone"]["description"], json!("Where."));
    }

    #[test]
    fn a_doc_comment_of_several_lines_becomes_one_paragraph() {
        assert_eq!(tidy(" first line\n   second  line "), "first line second line");
    }
}
