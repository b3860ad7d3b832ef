//! Schemas of the Kubernetes types that stand inside Karmada's kinds.
//!
//! The Rust types come from `k8s-openapi`; its own schemas describe built-in resources, not how these types
//! look inside a CRD, so the schemas are written here, with what generated CRDs say about each.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    Condition, LabelSelector, LabelSelectorRequirement, Time,
};
use serde::{Serialize, Serializer};

use crate::schema::{CONDITION_TYPE_PATTERN, REASON_PATTERN, Schema, tidy};
use crate::wire::Wire;

/// Returns the schema of an empty top-level kind: the three fields that every Kubernetes object has.
pub(crate) fn root(type_name: &'static str, description: &str) -> Schema {
    Schema::record(type_name)
        .describe(&tidy(description))
        .field(
            "apiVersion",
            false,
            "The API group and version that this representation of the object follows.",
            text(),
        )
        .field("kind", false, "The type of the object, in CamelCase and singular.", text())
        // No word on the metadata: API servers refuse a definition that says anything about it, even a description.
        .field("metadata", false, "", Schema::of_type("object"))
}

fn text() -> Schema {
    Schema::of_type("string")
}

/// Returns the schema of a list of strings that server-side apply treats as one unit.
fn operands() -> Schema {
    Schema::list(text()).atomic_list()
}

impl Wire for LabelSelector {
    fn schema() -> Schema {
        Schema::record("LabelSelector")
            .field(
                "matchExpressions",
                false,
                "Requirements on labels; all of them must hold.",
                Schema::list(LabelSelectorRequirement::schema()).atomic_list(),
            )
            .field(
                "matchLabels",
                false,
                "Labels the object must carry with exactly these values; all of them must hold.",
                Schema::map(text()),
            )
            .atomic_map()
    }
    fn is_zero(&self) -> bool {
        false
    }
    fn encode<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct InGoOrder<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            match_labels: Option<&'a BTreeMap<String, String>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            match_expressions: Option<&'a Vec<LabelSelectorRequirement>>,
        }
        InGoOrder {
            match_labels: self.match_labels.as_ref().filter(|labels| !labels.is_empty()),
            match_expressions: self.match_expressions.as_ref().filter(|terms| !terms.is_empty()),
        }
        .serialize(serializer)
    }
}

impl Wire for LabelSelectorRequirement {
    fn schema() -> Schema {
        Schema::record("LabelSelectorRequirement")
            .field("key", true, "The label key the requirement is about.", text())
            .field(
                "operator",
                true,
                "How the label relates to the values: In, NotIn, Exists or DoesNotExist.",
                text(),
            )
            .field(
                "values",
                false,
                "The values to compare with: needed for In and NotIn, absent for Exists and DoesNotExist.",
                operands(),
            )
    }
    fn is_zero(&self) -> bool {
        false
    }
}

impl Wire for NodeSelectorRequirement {
    fn schema() -> Schema {
        Schema::record("NodeSelectorRequirement")
            .field("key", true, "The label or field the requirement is about.", text())
            .field(
                "operator",
                true,
                "How the key relates to the values: In, NotIn, Exists, DoesNotExist, Gt or Lt.",
                text(),
            )
            .field(
                "values",
                false,
                "The values to compare with: needed for In and NotIn, absent for Exists and DoesNotExist, a single \
                 integer for Gt and Lt.",
                operands(),
            )
    }
    fn is_zero(&self) -> bool {
        false
    }
}

impl Wire for NodeSelectorTerm {
    fn schema() -> Schema {
        Schema::record("NodeSelectorTerm")
            .field(
                "matchExpressions",
                false,
                "Requirements on the labels of a node.",
                Schema::list(NodeSelectorRequirement::schema()).atomic_list(),
            )
            .field(
                "matchFields",
                false,
                "Requirements on the fields of a node.",
                Schema::list(NodeSelectorRequirement::schema()).atomic_list(),
            )
            .atomic_map()
    }
    fn is_zero(&self) -> bool {
        false
    }
}

impl Wire for NodeSelector {
    fn schema() -> Schema {
        Schema::record("NodeSelector")
            .field(
                "nodeSelectorTerms",
                true,
                "Alternatives: a node qualifies when it meets any of these terms.",
                Schema::list(NodeSelectorTerm::schema()).atomic_list(),
            )
            .atomic_map()
    }
    fn is_zero(&self) -> bool {
        false
    }
}

impl Wire for Toleration {
    fn schema() -> Schema {
        Schema::record("Toleration")
            .field("effect", false, "The taint effect that is tolerated; empty means every effect.", text())
            .field(
                "key",
                false,
                "The taint key that is tolerated; empty, together with operator Exists, means every key.",
                text(),
            )
            .field(
                "operator",
                false,
                "How the key relates to the value: Equal, which is the default, or Exists, which tolerates any value.",
                text(),
            )
            .field(
                "tolerationSeconds",
                false,
                "How long a NoExecute taint is tolerated; absent means forever, zero or less means not at all.",
                i64::schema(),
            )
            .field("value", false, "The taint value that is tolerated; must be empty for Exists.", text())
    }
    fn is_zero(&self) -> bool {
        false
    }
    fn encode<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct InGoOrder<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            key: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            operator: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            value: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            effect: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            toleration_seconds: Option<i64>,
        }
        // Go omits empty strings, whether or not the user wrote them.
        fn text(field: &Option<String>) -> Option<&str> {
            field.as_deref().filter(|text| !text.is_empty())
        }
        InGoOrder {
            key: text(&self.key),
            operator: text(&self.operator),
            value: text(&self.value),
            effect: text(&self.effect),
            toleration_seconds: self.toleration_seconds,
        }
        .serialize(serializer)
    }
}

impl Wire for Taint {
    fn schema() -> Schema {
        Schema::record("Taint")
            .field("effect", true, "What the taint does to workloads that do not tolerate it.", text())
            .field("key", true, "The name of the taint.", text())
            .field(
                "timeAdded",
                false,
                "When the taint was added.",
                Schema::of_type("string").format("date-time"),
            )
            .field("value", false, "A value that tolerations can ask for.", text())
    }
    fn is_zero(&self) -> bool {
        false
    }
    fn encode<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct InGoOrder<'a> {
            key: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            value: Option<&'a str>,
            effect: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            time_added: Option<&'a Time>,
        }
        InGoOrder {
            key: &self.key,
            value: self.value.as_deref().filter(|value| !value.is_empty()),
            effect: &self.effect,
            time_added: self.time_added.as_ref(),
        }
        .serialize(serializer)
    }
}

impl Wire for Condition {
    fn schema() -> Schema {
        Schema::record("Condition")
            .field(
                "lastTransitionTime",
                true,
                "When the status last changed from one value to another.",
                Schema::of_type("string").format("date-time"),
            )
            .field("message", true, "An explanation for humans; may be empty.", text().max_length(32768))
            .field(
                "observedGeneration",
                false,
                "The generation of the object that this condition was computed for.",
                i64::schema().minimum(0),
            )
            .field(
                "reason",
                true,
                "A CamelCase word for programs that tells why the status is what it is.",
                text().min_length(1).max_length(1024).pattern(REASON_PATTERN),
            )
            .field("status", true, "True, False or Unknown.", text().one_of(&["True", "False", "Unknown"]))
            .field(
                "type",
                true,
                "What the condition is about, in CamelCase.",
                text().max_length(316).pattern(CONDITION_TYPE_PATTERN),
            )
    }
    fn is_zero(&self) -> bool {
        false
    }
}
