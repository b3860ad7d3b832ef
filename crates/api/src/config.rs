//! `config.karmada.io/v1alpha1`: teaching the control plane what a kind of resource means, by script or by webhook.

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use crate::wire::{choice, kind, record};
use crate::work::{AggregatedStatusItem, Component, ReplicaRequirements};

/// The API group of this module.
pub const GROUP: &str = "config.karmada.io";

/// The version of the interpreter protocol that webhooks must speak.
pub const INTERPRETER_CONTEXT_VERSION: &str = "v1alpha1";

kind! {
    /// Scripts that tell what a kind of resource means. They go before interpreter webhooks, and those before the
    /// built-in rules.
    pub struct ResourceInterpreterCustomization in "config.karmada.io" / "v1alpha1"
        as "resourceinterpretercustomizations", Cluster
    {
        /// The kind of resource and the scripts for it.
        "spec" required spec: ResourceInterpreterCustomizationSpec;
    }
}

kind! {
    /// Webhooks that tell what kinds of resources mean.
    pub struct ResourceInterpreterWebhookConfiguration in "config.karmada.io" / "v1alpha1"
        as "resourceinterpreterwebhookconfigurations", Cluster
    {
        /// The webhooks and what they are asked for.
        "webhooks" required webhooks: Vec<ResourceInterpreterWebhook>;
    }
}

choice! {
    /// A question about a resource.
    pub enum InterpreterOperation {
        /// Every question.
        All = "*",
        /// How many replicas does it have, and what does one need?
        InterpretReplica = "InterpretReplica",
        /// Which parts does it have, and what do they need?
        InterpretComponent = "InterpretComponent",
        /// What does it look like with another number of replicas?
        ReviseReplica = "ReviseReplica",
        /// Which part of its status is worth collecting?
        InterpretStatus = "InterpretStatus",
        /// Declared upstream, but refused by admission.
        Prune = "Prune",
        /// Which fields of the member cluster's copy are kept?
        Retain = "Retain",
        /// What is its status over all clusters?
        AggregateStatus = "AggregateStatus",
        /// Does it work?
        InterpretHealth = "InterpretHealth",
        /// What does it refer to?
        InterpretDependency = "InterpretDependency",
    }
}

record! {
    /// A kind of resource and the scripts for it.
    #[derive(Eq)]
    pub struct ResourceInterpreterCustomizationSpec {
        /// The kind of resource.
        "target" required target: CustomizationTarget;
        /// The scripts.
        "customizations" required customizations: CustomizationRules;
    }
}

record! {
    /// A kind of resource.
    #[derive(Eq)]
    pub struct CustomizationTarget {
        /// The API version of the resource.
        "apiVersion" required api_version: String;
        /// The kind of the resource.
        "kind" required kind: String;
    }
}

record! {
    /// Scripts for a kind of resource; what is absent is answered by webhooks or built-in rules.
    #[derive(Eq)]
    pub struct CustomizationRules {
        /// Decides which fields of the copy in the member cluster are kept: Retain(desiredObj, observedObj) returns
        /// the object to apply.
        "retention" optional retention: Option<LuaScriptHolder>;
        /// Finds the number of replicas and what one needs: GetReplicas(desiredObj) returns both.
        "replicaResource" optional replica_resource: Option<LuaScriptHolder>;
        /// Finds the parts of a workload with several pod templates: GetComponents(desiredObj) returns a list.
        "componentResource" optional component_resource: Option<LuaScriptHolder>;
        /// Changes the number of replicas: ReviseReplica(desiredObj, desiredReplica) returns the object.
        "replicaRevision" optional replica_revision: Option<LuaScriptHolder>;
        /// Picks the part of the status that is collected: ReflectStatus(observedObj) returns it.
        "statusReflection" optional status_reflection: Option<LuaScriptHolder>;
        /// Sums up the collected status: AggregateStatus(desiredObj, statusItems) returns the object.
        "statusAggregation" optional status_aggregation: Option<LuaScriptHolder>;
        /// Judges the health: InterpretHealth(observedObj) returns true or false.
        "healthInterpretation" optional health_interpretation: Option<LuaScriptHolder>;
        /// Finds what the resource refers to: GetDependencies(desiredObj) returns a list.
        "dependencyInterpretation" optional dependency_interpretation: Option<LuaScriptHolder>;
    }
}

record! {
    /// A script.
    #[derive(Eq)]
    pub struct LuaScriptHolder {
        /// Source in Lua 5.1 that defines the function under its fixed name.
        "luaScript" required lua_script: String;
    }
}

record! {
    /// A webhook and what it is asked for.
    pub struct ResourceInterpreterWebhook {
        /// The fully qualified name of the webhook, unique within this object.
        "name" required name: String;
        /// How the webhook is reached.
        "clientConfig" required client_config: WebhookClientConfig;
        /// What the webhook is asked for; any matching rule is enough.
        "rules" optional rules: Vec<RuleWithOperations>;
        /// How long to wait for an answer, from 1 to 30 seconds.
        "timeoutSeconds" optional timeout_seconds: Option<i32>;
        /// The versions of the interpreter protocol that the webhook speaks, the preferred one first; must contain
        /// v1alpha1.
        "interpreterContextVersions" required interpreter_context_versions: Vec<String>;
    }
}

record! {
    /// How a webhook is reached: by URL or by Service.
    pub struct WebhookClientConfig {
        /// The URL of the webhook. Excludes service.
        "url" optional url: Option<String>;
        /// The Service of the webhook. Excludes url.
        "service" optional service: Option<WebhookServiceReference>;
        /// The CA certificates to check the webhook's certificate with, in PEM, encoded as base64.
        "caBundle" optional ca_bundle: Option<ByteString>;
    }
}

record! {
    /// The Service of a webhook.
    #[derive(Eq)]
    pub struct WebhookServiceReference {
        /// The namespace of the Service.
        "namespace" required namespace: String;
        /// The name of the Service.
        "name" required name: String;
        /// The path of the webhook's URL.
        "path" optional path: Option<String>;
        /// The port of the Service; 443 when absent.
        "port" optional port: Option<i32>;
    }
}

record! {
    /// What a webhook is asked for.
    #[derive(Eq)]
    pub struct RuleWithOperations {
        /// The questions; an asterisk alone means all.
        "operations" required operations: Vec<InterpreterOperation> { any_text() };
        /// The resources.
        inline rule: Rule;
    }
}

record! {
    /// Resources that a webhook is asked about.
    #[derive(Eq)]
    pub struct Rule {
        /// API groups, the empty one being the core group; an asterisk alone means all.
        "apiGroups" required api_groups: Vec<String>;
        /// API versions; an asterisk alone means all.
        "apiVersions" required api_versions: Vec<String>;
        /// Kinds; an asterisk alone means all.
        "kinds" required kinds: Vec<String>;
    }
}

record! {
    /// A reference from a resource to what it needs, by name or by label.
    pub struct DependentObjectReference {
        /// The API version of the referenced object.
        "apiVersion" required api_version: String;
        /// The kind of the referenced object.
        "kind" required kind: String;
        /// The namespace of the referenced object; empty for cluster-scoped ones.
        "namespace" optional namespace: String;
        /// The name of the referenced object. When set, labelSelector is ignored.
        "name" optional name: String;
        /// The labels of the referenced objects; used only without name.
        "labelSelector" optional label_selector: Option<LabelSelector>;
    }
}

record! {
    /// What is sent to an interpreter webhook, and what comes back.
    pub struct ResourceInterpreterContext {
        /// `config.karmada.io/v1alpha1`.
        "apiVersion" optional api_version: String;
        /// `ResourceInterpreterContext`.
        "kind" optional kind: String;
        /// The question.
        "request" optional request: Option<ResourceInterpreterRequest>;
        /// The answer.
        "response" optional response: Option<ResourceInterpreterResponse>;
    }
}

record! {
    /// A type of resource, in parts.
    #[derive(Eq)]
    pub struct GroupVersionKind {
        /// The API group.
        "group" required group: String;
        /// The API version.
        "version" required version: String;
        /// The kind.
        "kind" required kind: String;
    }
}

record! {
    /// A question to an interpreter webhook.
    pub struct ResourceInterpreterRequest {
        /// Identifies the question; the answer repeats it.
        "uid" required uid: String;
        /// The type of the resource.
        "kind" required kind: GroupVersionKind;
        /// The name of the resource.
        "name" required name: String;
        /// The namespace of the resource.
        "namespace" optional namespace: String;
        /// What is asked.
        "operation" required operation: InterpreterOperation;
        /// The resource as it is in the control plane.
        "object" always object: Option<Value> { free_object() };
        /// The resource as it is in the member cluster.
        "observedObject" optional observed_object: Option<Value> { free_object() };
        /// The wanted number of replicas.
        "replicas" optional desired_replicas: Option<i32>;
        /// The state of the resource in each cluster.
        "aggregatedStatus" optional aggregated_status: Vec<AggregatedStatusItem>;
    }
}

record! {
    /// An answer of an interpreter webhook.
    pub struct ResourceInterpreterResponse {
        /// Repeats the identity of the question.
        "uid" required uid: String;
        /// Whether the question could be answered.
        "successful" required successful: bool;
        /// Why it could not.
        "status" optional status: Option<RequestStatus>;
        /// How the object is to be changed: a JSON patch, encoded as base64.
        "patch" optional patch: Option<ByteString>;
        /// The kind of patch; JSONPatch is the only one.
        "patchType" optional patch_type: Option<String>;
        /// What one replica needs.
        "replicaRequirements" optional replica_requirements: Option<ReplicaRequirements>;
        /// The number of replicas.
        "replicas" optional replicas: Option<i32>;
        /// The parts of the workload.
        "components" optional components: Vec<Component>;
        /// What the resource refers to.
        "dependencies" optional dependencies: Vec<DependentObjectReference>;
        /// The part of the status that is worth collecting.
        "rawStatus" optional raw_status: Option<Value> { free_object() };
        /// Whether the resource works.
        "healthy" optional healthy: Option<bool>;
    }
}

record! {
    /// Why a question could not be answered.
    #[derive(Eq)]
    pub struct RequestStatus {
        /// An explanation for humans.
        "message" optional message: String;
        /// An HTTP status code.
        "code" optional code: i32;
    }
}
