//! The metrics of a FederatedHPA: what is measured and what was measured, as in `autoscaling/v2`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::CrossVersionObjectReference;
use crate::wire::record;

record! {
    /// A metric and its target; exactly the source that type names must be given.
    pub struct MetricSpec {
        /// The source of the metric: Resource, ContainerResource, Pods or Object.
        "type" required type_: String;
        /// A metric of a single object.
        "object" optional object: Option<ObjectMetricSource>;
        /// A metric of each pod, averaged.
        "pods" optional pods: Option<PodsMetricSource>;
        /// A resource that the pods use, such as cpu.
        "resource" optional resource: Option<ResourceMetricSource>;
        /// A resource that one container of the pods uses.
        "containerResource" optional container_resource: Option<ContainerResourceMetricSource>;
        /// A metric from outside; not supported.
        "external" optional external: Option<PodsMetricSource>;
    }
}

record! {
    /// A resource that pods use, and its target.
    pub struct ResourceMetricSource {
        /// The name of the resource.
        "name" required name: String;
        /// The target.
        "target" required target: MetricTarget;
    }
}

record! {
    /// A resource that a container uses, and its target.
    pub struct ContainerResourceMetricSource {
        /// The name of the resource.
        "name" required name: String;
        /// The target.
        "target" required target: MetricTarget;
        /// The name of the container.
        "container" required container: String;
    }
}

record! {
    /// A metric of pods, and its target.
    pub struct PodsMetricSource {
        /// The metric.
        "metric" required metric: MetricIdentifier;
        /// The target.
        "target" required target: MetricTarget;
    }
}

record! {
    /// A metric of an object, and its target.
    pub struct ObjectMetricSource {
        /// The object.
        "describedObject" required described_object: CrossVersionObjectReference;
        /// The target.
        "target" required target: MetricTarget;
        /// The metric.
        "metric" required metric: MetricIdentifier;
    }
}

record! {
    /// A metric by name.
    pub struct MetricIdentifier {
        /// The name of the metric.
        "name" required name: String;
        /// Selects among several series of the metric.
        "selector" optional selector: Option<LabelSelector>;
    }
}

record! {
    /// The target of a metric.
    pub struct MetricTarget {
        /// What kind of target it is: Utilization, Value or AverageValue.
        "type" required type_: String;
        /// The wanted value of the metric.
        "value" optional value: Option<Quantity>;
        /// The wanted value of the metric, averaged over the pods.
        "averageValue" optional average_value: Option<Quantity>;
        /// The wanted use of a resource, averaged over the pods, in percent of what they request.
        "averageUtilization" optional average_utilization: Option<i32>;
    }
}

record! {
    /// What was measured.
    pub struct MetricStatus {
        /// The source of the metric.
        "type" required type_: String;
        /// A metric of a single object.
        "object" optional object: Option<ObjectMetricStatus>;
        /// A metric of each pod, averaged.
        "pods" optional pods: Option<PodsMetricStatus>;
        /// A resource that the pods use.
        "resource" optional resource: Option<ResourceMetricStatus>;
        /// A resource that one container of the pods uses.
        "containerResource" optional container_resource: Option<ContainerResourceMetricStatus>;
        /// A metric from outside.
        "external" optional external: Option<PodsMetricStatus>;
    }
}

record! {
    /// The measured use of a resource by pods.
    pub struct ResourceMetricStatus {
        /// The name of the resource.
        "name" required name: String;
        /// What was measured.
        "current" required current: MetricValueStatus;
    }
}

record! {
    /// The measured use of a resource by a container.
    pub struct ContainerResourceMetricStatus {
        /// The name of the resource.
        "name" required name: String;
        /// What was measured.
        "current" required current: MetricValueStatus;
        /// The name of the container.
        "container" required container: String;
    }
}

record! {
    /// A measured metric of pods.
    pub struct PodsMetricStatus {
        /// The metric.
        "metric" required metric: MetricIdentifier;
        /// What was measured.
        "current" required current: MetricValueStatus;
    }
}

record! {
    /// A measured metric of an object.
    pub struct ObjectMetricStatus {
        /// The metric.
        "metric" required metric: MetricIdentifier;
        /// What was measured.
        "current" required current: MetricValueStatus;
        /// The object.
        "describedObject" required described_object: CrossVersionObjectReference;
    }
}

record! {
    /// A measured value.
    pub struct MetricValueStatus {
        /// The value of the metric.
        "value" optional value: Option<Quantity>;
        /// The value of the metric, averaged over the pods.
        "averageValue" optional average_value: Option<Quantity>;
        /// The use of a resource, averaged over the pods, in percent of what they request.
        "averageUtilization" optional average_utilization: Option<i32>;
    }
}
