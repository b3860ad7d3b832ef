//! OverridePolicy and ClusterOverridePolicy: how a resource differs from cluster to cluster.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ClusterAffinity, ResourceSelector};
use crate::wire::{Kind, choice, kind, record};

kind! {
    /// Changes resources of its namespace on their way to member clusters.
    pub struct OverridePolicy in "policy.karmada.io" / "v1alpha1" as "overridepolicies", Namespaced {
        /// What is changed, for which resources, in which clusters.
        "spec" required spec: OverrideSpec;
    }
}

kind! {
    /// Changes cluster-scoped resources, and resources of any namespace, on their way to member clusters.
    pub struct ClusterOverridePolicy in "policy.karmada.io" / "v1alpha1" as "clusteroverridepolicies", Cluster {
        /// What is changed, for which resources, in which clusters.
        "spec" required spec: OverrideSpec;
    }
}

choice! {
    /// What an overrider does.
    pub enum OverriderOperator {
        /// Adds something.
        Add = "add",
        /// Removes something.
        Remove = "remove",
        /// Replaces something that is there.
        Replace = "replace",
    }
}

choice! {
    /// A part of an image name.
    pub enum ImageComponent {
        /// The host part, as in `registry.example.com:5000`.
        Registry = "Registry",
        /// The path part, as in `library/nginx`.
        Repository = "Repository",
        /// The tag or digest.
        Tag = "Tag",
    }
}

record! {
    /// What is changed, for which resources, in which clusters.
    pub struct OverrideSpec {
        /// The resources this policy is for; empty means all.
        "resourceSelectors" optional resource_selectors: Vec<ResourceSelector>;
        /// The changes, each with the clusters it is for.
        "overrideRules" optional override_rules: Vec<RuleWithCluster>;
        /// Deprecated, use overrideRules: the clusters for which overriders applies.
        "targetCluster" optional target_cluster: Option<ClusterAffinity>;
        /// Deprecated, use overrideRules: the changes.
        "overriders" always overriders: Overriders;
    }
}

record! {
    /// Changes and the clusters they are for.
    pub struct RuleWithCluster {
        /// The clusters the changes are for; absent means every cluster.
        "targetCluster" optional target_cluster: Option<ClusterAffinity>;
        /// The changes.
        "overriders" required overriders: Overriders;
    }
}

record! {
    /// The changes of one rule, applied in this order: images, commands, arguments, labels, annotations, fields,
    /// plain text.
    pub struct Overriders {
        /// JSON patch operations on the resource.
        "plaintext" optional plaintext: Vec<PlaintextOverrider>;
        /// Changes of container images.
        "imageOverrider" optional image_overrider: Vec<ImageOverrider>;
        /// Changes of container commands.
        "commandOverrider" optional command_overrider: Vec<CommandArgsOverrider>;
        /// Changes of container arguments.
        "argsOverrider" optional args_overrider: Vec<CommandArgsOverrider>;
        /// Changes of labels.
        "labelsOverrider" optional labels_overrider: Vec<LabelAnnotationOverrider>;
        /// Changes of annotations.
        "annotationsOverrider" optional annotations_overrider: Vec<LabelAnnotationOverrider>;
        /// Changes inside a JSON or YAML document that is held in a string field.
        "fieldOverrider" optional field_overrider: Vec<FieldOverrider>;
    }
}

record! {
    /// A JSON patch operation on the resource.
    pub struct PlaintextOverrider {
        /// Where to apply it, as a JSON pointer.
        "path" required path: String;
        /// What to do there.
        "operator" required operator: OverriderOperator;
        /// The value to add or to put in place; absent for remove.
        "value" always value: Option<Value>;
    }
}

record! {
    /// A change of a container image.
    #[derive(Eq)]
    pub struct ImageOverrider {
        /// Which image to change. Absent means the images of all containers, but not of init containers, of a Pod,
        /// ReplicaSet, Deployment, StatefulSet, DaemonSet or Job.
        "predicate" optional predicate: Option<ImagePredicate>;
        /// The part of the image name to change, which reads registry, repository and tag or digest.
        "component" required component: ImageComponent;
        /// What to do with that part; add appends the value to it.
        "operator" required operator: OverriderOperator;
        /// The text to add or to put in place; ignored by remove.
        "value" optional value: String;
    }
}

record! {
    /// Which image is meant.
    #[derive(Eq)]
    pub struct ImagePredicate {
        /// Where the image is, as a JSON pointer.
        "path" required path: String;
    }
}

record! {
    /// A change of the command or the arguments of a container.
    #[derive(Eq)]
    pub struct CommandArgsOverrider {
        /// The name of the container; init containers are not considered.
        "containerName" required container_name: String;
        /// Whether to append the items or to delete those that are equal to one of them.
        "operator" required operator: OverriderOperator { one_of(&["add", "remove"]) };
        /// The items to append or to delete.
        "value" optional value: Vec<String>;
    }
}

record! {
    /// A change of labels or annotations.
    #[derive(Eq)]
    pub struct LabelAnnotationOverrider {
        /// What to do with the keys; remove and replace affect only keys that are there.
        "operator" required operator: OverriderOperator;
        /// The keys and their values.
        "value" required value: BTreeMap<String, String>;
    }
}

record! {
    /// A change inside a document that is held in a string field. Exactly one of json and yaml must be given.
    pub struct FieldOverrider {
        /// Where the string field is, as a JSON pointer.
        "fieldPath" required field_path: String;
        /// Operations on the document when it is JSON.
        "json" optional json: Vec<PatchOperation>;
        /// Operations on the document when it is YAML.
        "yaml" optional yaml: Vec<PatchOperation>;
    }
}

record! {
    /// A JSON patch operation inside a document.
    pub struct PatchOperation {
        /// Where in the document to apply it, as a JSON pointer.
        "subPath" required sub_path: String;
        /// What to do there.
        "operator" required operator: OverriderOperator;
        /// The value to add or to put in place; absent for remove.
        "value" always value: Option<Value>;
    }
}

/// What the two kinds of override policy have in common, for code that serves both.
pub trait Override: Kind + Clone + Default + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Returns the spec.
    fn spec(&self) -> &OverrideSpec;
    /// Returns the spec for changing it.
    fn spec_mut(&mut self) -> &mut OverrideSpec;
}

impl Override for OverridePolicy {
    fn spec(&self) -> &OverrideSpec {
        &self.spec
    }
    fn spec_mut(&mut self) -> &mut OverrideSpec {
        &mut self.spec
    }
}

impl Override for ClusterOverridePolicy {
    fn spec(&self) -> &OverrideSpec {
        &self.spec
    }
    fn spec_mut(&mut self) -> &mut OverrideSpec {
        &mut self.spec
    }
}
