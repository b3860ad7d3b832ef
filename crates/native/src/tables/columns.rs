//! The columns of each kind's table, as recorded from kube-apiserver 1.36.3; descriptions in our words.

use apimachinery::gvk::Gvk;

/// One column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// OpenAPI type of the cells: `string`, `integer`, `boolean`, `date`.
    pub kind: &'static str,
    /// `name` marks the column that identifies the row.
    pub format: &'static str,
    pub description: &'static str,
    /// 0 is always shown, more only by wide output.
    pub priority: i32,
}

const fn text(name: &'static str, description: &'static str) -> Column {
    Column { name, kind: "string", format: "", description, priority: 0 }
}

const fn integer(name: &'static str, description: &'static str) -> Column {
    Column { kind: "integer", ..text(name, description) }
}

const fn boolean(name: &'static str, description: &'static str) -> Column {
    Column { kind: "boolean", ..text(name, description) }
}

const fn wide(name: &'static str, description: &'static str) -> Column {
    Column { priority: 1, ..text(name, description) }
}

const NAME: Column =
    Column { format: "name", ..text("Name", "The object's name, unique within its namespace.") };
const AGE: Column = text("Age", "How long ago the object was created.");
const CREATED_AT: Column = Column { kind: "date", ..text("Created At", "When the object was created.") };
const CONTAINERS: Column = wide("Containers", "Names of the containers in the pod template.");
const IMAGES: Column = wide("Images", "Images of the containers in the pod template.");
const SELECTOR: Column = wide("Selector", "Labels by which the pods are found.");

/// Returns the columns of a native kind; kinds without columns of their own show when they were created.
pub fn columns(gvk: &Gvk) -> &'static [Column] {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Pod") => POD,
        ("", "PodTemplate") => POD_TEMPLATE,
        ("", "ReplicationController") | ("apps", "ReplicaSet") => REPLICA_SET,
        ("apps", "Deployment") => DEPLOYMENT,
        ("apps", "StatefulSet") => STATEFUL_SET,
        ("apps", "DaemonSet") => DAEMON_SET,
        ("apps", "ControllerRevision") => CONTROLLER_REVISION,
        ("batch", "Job") => JOB,
        ("batch", "CronJob") => CRON_JOB,
        ("autoscaling", "HorizontalPodAutoscaler") => AUTOSCALER,
        ("autoscaling", "Scale") => SCALE,
        ("policy", "PodDisruptionBudget") => DISRUPTION_BUDGET,
        ("", "Service") => SERVICE,
        ("", "Endpoints") => ENDPOINTS,
        ("discovery.k8s.io", "EndpointSlice") => ENDPOINT_SLICE,
        ("networking.k8s.io", "Ingress") => INGRESS,
        ("networking.k8s.io", "IngressClass") => INGRESS_CLASS,
        ("networking.k8s.io", "NetworkPolicy") => NETWORK_POLICY,
        ("networking.k8s.io", "IPAddress") => IP_ADDRESS,
        ("networking.k8s.io", "ServiceCIDR") => SERVICE_CIDR,
        ("", "ConfigMap") => CONFIG_MAP,
        ("", "Secret") => SECRET,
        ("", "ServiceAccount") | ("resource.k8s.io", "DeviceClass" | "ResourceClaimTemplate") => ONLY_AGE,
        ("", "Namespace") => NAMESPACE,
        ("", "Node") => NODE,
        ("", "PersistentVolume") => PERSISTENT_VOLUME,
        ("", "PersistentVolumeClaim") => PERSISTENT_VOLUME_CLAIM,
        ("", "ResourceQuota") => RESOURCE_QUOTA,
        ("", "ComponentStatus") => COMPONENT_STATUS,
        ("" | "events.k8s.io", "Event") => EVENT,
        ("coordination.k8s.io", "Lease") => LEASE,
        ("certificates.k8s.io", "CertificateSigningRequest") => SIGNING_REQUEST,
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => ROLE_BINDING,
        ("storage.k8s.io", "StorageClass") => STORAGE_CLASS,
        ("storage.k8s.io", "CSIDriver") => CSI_DRIVER,
        ("storage.k8s.io", "CSINode") => CSI_NODE,
        ("storage.k8s.io", "VolumeAttachment") => VOLUME_ATTACHMENT,
        ("storage.k8s.io", "VolumeAttributesClass") => VOLUME_ATTRIBUTES_CLASS,
        ("scheduling.k8s.io", "PriorityClass") => PRIORITY_CLASS,
        ("node.k8s.io", "RuntimeClass") => RUNTIME_CLASS,
        (
            "admissionregistration.k8s.io",
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration",
        ) => WEBHOOKS,
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => VALIDATING_POLICY,
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy") => MUTATING_POLICY,
        (
            "admissionregistration.k8s.io",
            "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding",
        ) => POLICY_BINDING,
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => FLOW_SCHEMA,
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => PRIORITY_LEVEL,
        ("resource.k8s.io", "ResourceClaim") => RESOURCE_CLAIM,
        ("resource.k8s.io", "ResourceSlice") => RESOURCE_SLICE,
        ("apiregistration.k8s.io", "APIService") => API_SERVICE,
        _ => &[NAME, CREATED_AT],
    }
}

/// Returns the columns of any `/scale`.
pub fn scale_columns() -> &'static [Column] {
    SCALE
}

const ONLY_AGE: &[Column] = &[NAME, AGE];
const POD: &[Column] = &[
    NAME,
    text("Ready", "Containers that are ready, out of all."),
    text("Status", "What the pod is doing, or why it is not."),
    text("Restarts", "How often containers were restarted, and when last."),
    AGE,
    wide("IP", "The pod's first address."),
    wide("Node", "The node the pod runs on."),
    wide("Nominated Node", "The node on which preemption makes room for the pod."),
    wide("Readiness Gates", "Readiness gates that are open, out of all."),
];
const POD_TEMPLATE: &[Column] = &[
    NAME,
    text("Containers", "Names of the containers in the template."),
    text("Images", "Images of the containers in the template."),
    text("Pod Labels", "Labels of the template's pods."),
];
const REPLICA_SET: &[Column] = &[
    NAME,
    integer("Desired", "Replicas asked for."),
    integer("Current", "Replicas that exist."),
    integer("Ready", "Replicas that are ready."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];
const DEPLOYMENT: &[Column] = &[
    NAME,
    text("Ready", "Replicas that are ready, out of those asked for."),
    text("Up-to-date", "Replicas that run the newest template."),
    text("Available", "Replicas that have been ready for long enough."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];
const STATEFUL_SET: &[Column] =
    &[NAME, text("Ready", "Replicas that are ready, out of those asked for."), AGE, CONTAINERS, IMAGES];
const DAEMON_SET: &[Column] = &[
    NAME,
    integer("Desired", "Nodes that should run the pod."),
    integer("Current", "Nodes that run at least one such pod."),
    integer("Ready", "Nodes where the pod is ready."),
    integer("Up-to-date", "Nodes that run the newest template."),
    integer("Available", "Nodes where the pod has been ready for long enough."),
    text("Node Selector", "Labels a node needs to run the pod."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];
const CONTROLLER_REVISION: &[Column] = &[
    NAME,
    text("Controller", "The object whose revision this is."),
    text("Revision", "The revision's number."),
    AGE,
];
const JOB: &[Column] = &[
    NAME,
    text("Status", "Whether the job runs, is done, or failed."),
    text("Completions", "Pods that succeeded, out of those wanted."),
    text("Duration", "How long the job has been running or took."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];
const CRON_JOB: &[Column] = &[
    NAME,
    text("Schedule", "When jobs are started, in cron format."),
    text("Timezone", "The time zone in which the schedule is read."),
    boolean("Suspend", "Whether new jobs are held back."),
    integer("Active", "Jobs that are running."),
    text("Last Schedule", "How long ago a job was last started."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];
const AUTOSCALER: &[Column] = &[
    NAME,
    text("Reference", "The object that is scaled."),
    text("Targets", "Current and wanted value of each metric."),
    text("MinPods", "The least number of replicas."),
    text("MaxPods", "The greatest number of replicas."),
    text("Replicas", "Replicas at the last look."),
    AGE,
];
const SCALE: &[Column] = &[
    Column { format: "", ..NAME },
    integer("Desired", "Replicas asked for."),
    integer("Available", "Replicas that exist."),
    AGE,
];
const DISRUPTION_BUDGET: &[Column] = &[
    NAME,
    text("Min Available", "How many pods must stay available during an eviction."),
    text("Max Unavailable", "How many pods may be unavailable during an eviction."),
    integer("Allowed Disruptions", "How many pods may be evicted now."),
    AGE,
];
const SERVICE: &[Column] = &[
    NAME,
    text("Type", "How the service is exposed."),
    text("Cluster-IP", "The service's address inside the cluster."),
    text("External-IP", "Addresses under which the service is reachable from outside."),
    text("Port(s)", "The ports and, where allocated, node ports."),
    AGE,
    wide("Selector", "Labels of the pods that traffic goes to."),
];
const ENDPOINTS: &[Column] = &[NAME, text("Endpoints", "Addresses and ports behind the service."), AGE];
const ENDPOINT_SLICE: &[Column] = &[
    NAME,
    text("AddressType", "The kind of addresses in the slice."),
    text("Ports", "The ports of the endpoints."),
    text("Endpoints", "The addresses of the endpoints."),
    AGE,
];
const INGRESS: &[Column] = &[
    NAME,
    text("Class", "The ingress class that implements the ingress."),
    text("Hosts", "Hosts that rules apply to."),
    text("Address", "Addresses of the load balancer."),
    text("Ports", "Ports that are served."),
    AGE,
];
const INGRESS_CLASS: &[Column] = &[
    NAME,
    text("Controller", "The controller that handles the class."),
    text("Parameters", "The object that configures the controller."),
    AGE,
];
const NETWORK_POLICY: &[Column] =
    &[NAME, text("Pod-Selector", "Labels of the pods the policy applies to."), AGE];
const IP_ADDRESS: &[Column] = &[NAME, text("ParentRef", "The object that uses the address.")];
const SERVICE_CIDR: &[Column] = &[NAME, text("CIDRs", "Ranges that service addresses come from."), AGE];
const CONFIG_MAP: &[Column] = &[NAME, text("Data", "How many entries there are."), AGE];
const SECRET: &[Column] =
    &[NAME, text("Type", "What the secret is for."), text("Data", "How many entries there are."), AGE];
const NAMESPACE: &[Column] =
    &[NAME, text("Status", "Whether the namespace is active or being emptied."), AGE];
const NODE: &[Column] = &[
    NAME,
    text("Status", "Whether the node is ready and takes new pods."),
    text("Roles", "Roles given by labels."),
    AGE,
    text("Version", "The version of the kubelet."),
    wide("Internal-IP", "The node's address inside the cluster."),
    wide("External-IP", "The node's address outside the cluster."),
    wide("OS-Image", "The operating system the node reports."),
    wide("Kernel-Version", "The kernel the node reports, and its architecture."),
    wide("Container-Runtime", "The container runtime and its version."),
];
const PERSISTENT_VOLUME: &[Column] = &[
    NAME,
    text("Capacity", "How much the volume holds."),
    text("Access Modes", "How the volume may be mounted."),
    text("Reclaim Policy", "What happens to the volume once its claim is gone."),
    text("Status", "Whether the volume is free, bound or released."),
    text("Claim", "The claim that holds the volume."),
    text("StorageClass", "The class the volume belongs to."),
    text("VolumeAttributesClass", "The attributes class in use."),
    text("Reason", "Why the volume is in its state."),
    AGE,
    wide("VolumeMode", "Whether a file system or the raw device is used."),
];
const PERSISTENT_VOLUME_CLAIM: &[Column] = &[
    NAME,
    text("Status", "Whether the claim is bound."),
    text("Volume", "The volume that is bound to the claim."),
    text("Capacity", "How much the bound volume holds."),
    text("Access Modes", "How the bound volume may be mounted."),
    text("StorageClass", "The class asked for."),
    text("VolumeAttributesClass", "The attributes class asked for."),
    AGE,
    wide("VolumeMode", "Whether a file system or the raw device is asked for."),
];
const RESOURCE_QUOTA: &[Column] = &[
    NAME,
    text("Request", "What is used of requests and counts, out of what is allowed."),
    text("Limit", "What is used of limits, out of what is allowed."),
    AGE,
];
const COMPONENT_STATUS: &[Column] = &[
    NAME,
    text("Status", "Whether the component is healthy."),
    text("Message", "What the component says about itself."),
    text("Error", "What went wrong when asking it."),
];
const EVENT: &[Column] = &[
    text("Last Seen", "How long ago the event happened last."),
    text("Type", "Normal or Warning."),
    text("Reason", "Why the event was recorded, in one word."),
    text("Object", "The object the event is about."),
    wide("Subobject", "The part of the object the event is about."),
    wide("Source", "Who recorded the event."),
    text("Message", "What happened."),
    wide("First Seen", "How long ago the event happened first."),
    wide("Count", "How often the event happened."),
    Column { priority: 1, ..NAME },
];
const LEASE: &[Column] = &[NAME, text("Holder", "Who holds the lease."), AGE];
const SIGNING_REQUEST: &[Column] = &[
    NAME,
    AGE,
    text("SignerName", "The signer that should issue the certificate."),
    text("Requestor", "Who asks for the certificate."),
    text("RequestedDuration", "How long the certificate should be valid."),
    text("Condition", "How far the request has come."),
];
const ROLE_BINDING: &[Column] = &[
    NAME,
    text("Role", "The role that is granted."),
    AGE,
    wide("Users", "Users it is granted to."),
    wide("Groups", "Groups it is granted to."),
    wide("ServiceAccounts", "Service accounts it is granted to."),
];
const STORAGE_CLASS: &[Column] = &[
    NAME,
    text("Provisioner", "Who makes volumes of the class."),
    text("ReclaimPolicy", "What happens to volumes whose claim is gone."),
    text("VolumeBindingMode", "When volumes are made and bound."),
    text("AllowVolumeExpansion", "Whether claims may grow."),
    AGE,
];
const CSI_DRIVER: &[Column] = &[
    NAME,
    boolean("AttachRequired", "Whether volumes are attached before they are mounted."),
    boolean("PodInfoOnMount", "Whether the driver is told about the pod."),
    boolean("StorageCapacity", "Whether the driver reports its capacity."),
    text("TokenRequests", "Audiences of the tokens the driver gets."),
    boolean("RequiresRepublish", "Whether volumes are published again from time to time."),
    text("Modes", "Which kinds of volumes the driver handles."),
    AGE,
];
const CSI_NODE: &[Column] = &[NAME, integer("Drivers", "How many drivers run on the node."), AGE];
const VOLUME_ATTACHMENT: &[Column] = &[
    NAME,
    Column { format: "name", ..text("Attacher", "The driver that attaches the volume.") },
    text("PV", "The volume."),
    text("Node", "The node it is attached to."),
    boolean("Attached", "Whether it is attached."),
    AGE,
];
const VOLUME_ATTRIBUTES_CLASS: &[Column] =
    &[NAME, text("DriverName", "The driver that understands the attributes."), AGE];
const PRIORITY_CLASS: &[Column] = &[
    NAME,
    integer("Value", "The priority pods of the class get."),
    boolean("Global-Default", "Whether pods without a class get this one."),
    AGE,
    text("PreemptionPolicy", "Whether pods of the class may push others out."),
];
const RUNTIME_CLASS: &[Column] = &[NAME, text("Handler", "The runtime configuration on the node."), AGE];
const WEBHOOKS: &[Column] = &[NAME, integer("Webhooks", "How many webhooks there are."), AGE];
const VALIDATING_POLICY: &[Column] = &[
    NAME,
    integer("Validations", "How many checks the policy has."),
    text("ParamKind", "The kind of its parameters."),
    AGE,
];
const MUTATING_POLICY: &[Column] = &[
    NAME,
    integer("Mutations", "How many changes the policy makes."),
    text("ParamKind", "The kind of its parameters."),
    AGE,
];
const POLICY_BINDING: &[Column] = &[
    NAME,
    text("PolicyName", "The policy that is put to use."),
    text("ParamRef", "The parameters it is used with."),
    AGE,
];
const FLOW_SCHEMA: &[Column] = &[
    NAME,
    text("PriorityLevel", "The priority level that requests go to."),
    text("MatchingPrecedence", "Lower numbers are tried first."),
    text("DistinguisherMethod", "How requests are told apart within the schema."),
    AGE,
    text("MissingPL", "Whether the priority level does not exist."),
];
const PRIORITY_LEVEL: &[Column] = &[
    NAME,
    text("Type", "Whether requests are limited or exempt."),
    text("NominalConcurrencyShares", "Share of the seats the level gets."),
    text("Queues", "How many queues the level has."),
    text("HandSize", "How many queues a flow may use."),
    text("QueueLengthLimit", "How many requests may wait in one queue."),
    AGE,
];
const RESOURCE_CLAIM: &[Column] = &[NAME, text("State", "Whether devices are allocated and reserved."), AGE];
const RESOURCE_SLICE: &[Column] = &[
    NAME,
    text("Node", "The node the devices belong to."),
    text("Driver", "The driver that manages the devices."),
    text("Pool", "The pool the devices belong to."),
    AGE,
];
const API_SERVICE: &[Column] = &[
    NAME,
    text("Service", "The service that answers for the group version, or Local."),
    text("Available", "Whether it can be reached."),
    AGE,
];
