//! The list of kinds: everything about a CRD that is not in the schema.

use crate::constants::CATEGORY;
use crate::schema::Schema;
use crate::wire::Kind;
use crate::{apps, autoscaling, cluster, config, multicluster, networking, policy, remedy, search, work};

/// A kind of the API.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The API group.
    pub group: &'static str,
    /// The kind's name.
    pub kind: &'static str,
    /// The resource name in URLs.
    pub plural: &'static str,
    /// Abbreviations for the command line.
    pub short_names: &'static [&'static str],
    /// Groups of kinds for the command line.
    pub categories: &'static [&'static str],
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether upstream serves the kind from an aggregated API server.
    pub aggregated: bool,
    /// Whether upstream's CRD is generated and says so in an annotation.
    pub generated: bool,
    /// The versions, oldest first.
    pub versions: Vec<Version>,
}

/// A version of a kind. All versions are served.
#[derive(Clone, Debug)]
pub struct Version {
    /// The name, such as `v1alpha1`.
    pub name: &'static str,
    /// Whether objects are stored in this version.
    pub storage: bool,
    /// The subresources.
    pub subresources: Subresources,
    /// The columns of `kubectl get`, besides the name.
    pub columns: &'static [Column],
    /// The schema.
    pub schema: Schema,
}

/// The subresources of a version. No kind has a `scale` subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subresources {
    /// The key is missing: nothing.
    Absent,
    /// The key is there and empty, which means the same; upstream writes it so for some kinds.
    Empty,
    /// Status is written separately.
    Status,
}

/// A column of `kubectl get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The heading.
    pub name: &'static str,
    /// The type of the cells.
    pub type_: &'static str,
    /// Where the value is.
    pub json_path: &'static str,
    /// What the column shows, if its heading does not say it.
    pub description: &'static str,
    /// Above 0 means that the column is shown on request only.
    pub priority: i32,
}

const fn column(name: &'static str, type_: &'static str, json_path: &'static str) -> Column {
    Column { name, type_, json_path, description: "", priority: 0 }
}

const fn wide(name: &'static str, json_path: &'static str) -> Column {
    Column { name, type_: "string", json_path, description: "", priority: 1 }
}

const AGE: Column = column("AGE", "date", ".metadata.creationTimestamp");

const PROPAGATION: &[Column] = &[
    column("CONFLICT-RESOLUTION", "string", ".spec.conflictResolution"),
    column("PRIORITY", "string", ".spec.priority"),
    AGE,
];
const QUOTA: &[Column] = &[
    column("OVERALL", "string", ".status.overall"),
    column("OVERALL_USED", "string", ".status.overallUsed"),
];
const BINDING: &[Column] = &[
    column("SCHEDULED", "string", r#".status.conditions[?(@.type=="Scheduled")].status"#),
    column("FULLYAPPLIED", "string", r#".status.conditions[?(@.type=="FullyApplied")].status"#),
    AGE,
];
const WORK: &[Column] = &[
    column("WORKLOAD-KIND", "string", ".spec.workload.manifests[*].kind"),
    column("APPLIED", "string", r#".status.conditions[?(@.type=="Applied")].status"#),
    AGE,
];
const CUSTOMIZATION: &[Column] = &[
    column("TARGET-API-VERSION", "string", ".spec.target.apiVersion"),
    column("TARGET-KIND", "string", ".spec.target.kind"),
    AGE,
];
const HPA: &[Column] = &[
    column("REFERENCE-KIND", "string", ".spec.scaleTargetRef.kind"),
    column("REFERENCE-NAME", "string", ".spec.scaleTargetRef.name"),
    column("MINPODS", "integer", ".spec.minReplicas"),
    column("MAXPODS", "integer", ".spec.maxReplicas"),
    column("REPLICAS", "integer", ".status.currentReplicas"),
    AGE,
];
const CRON_HPA: &[Column] = &[
    column("REFERENCE-KIND", "string", ".spec.scaleTargetRef.kind"),
    column("REFERENCE-NAME", "string", ".spec.scaleTargetRef.name"),
    AGE,
];
const SERVICE_EXPORT: &[Column] = &[column("Age", "date", ".metadata.creationTimestamp")];
const SERVICE_IMPORT: &[Column] = &[
    Column { description: "How the imported Service is reached", ..column("Type", "string", ".spec.type") },
    Column { description: "The address of the imported Service", ..column("IP", "string", ".spec.ips") },
    column("Age", "date", ".metadata.creationTimestamp"),
];
/// In CRD form only; upstream computes the cells, see [`cluster::table_cells`].
const CLUSTER: &[Column] = &[
    column("VERSION", "string", ".status.kubernetesVersion"),
    column("MODE", "string", ".spec.syncMode"),
    column("READY", "string", r#".status.conditions[?(@.type=="Ready")].status"#),
    AGE,
    wide("ZONES", ".spec.zones"),
    wide("REGION", ".spec.region"),
    wide("PROVIDER", ".spec.provider"),
    wide("API-ENDPOINT", ".spec.apiEndpoint"),
    wide("PROXY-URL", ".spec.proxyURL"),
];
const REGISTRY: &[Column] = &[column("Created At", "date", ".metadata.creationTimestamp")];

/// Returns a definition with one version and the category that nearly all kinds have.
fn define<K: Kind>(
    short_names: &'static [&'static str],
    subresources: Subresources,
    columns: &'static [Column],
) -> Definition {
    Definition {
        group: K::GROUP,
        kind: K::KIND,
        plural: K::PLURAL,
        short_names,
        categories: &[CATEGORY],
        namespaced: K::NAMESPACED,
        aggregated: false,
        generated: true,
        versions: vec![version::<K>(subresources, columns)],
    }
}

fn version<K: Kind>(subresources: Subresources, columns: &'static [Column]) -> Version {
    Version { name: K::VERSION, storage: true, subresources, columns, schema: K::root_schema() }
}

impl Definition {
    /// Puts an older, served but not stored version in front.
    fn with_old<K: Kind>(mut self) -> Self {
        let old = Version { storage: false, ..version::<K>(Subresources::Status, &[]) };
        self.versions.insert(0, old);
        self
    }

    fn without_category(mut self) -> Self {
        self.categories = &[];
        self
    }

    /// Marks a kind whose CRD upstream writes by hand.
    fn hand_written(mut self) -> Self {
        self.generated = false;
        self
    }

    fn aggregated(mut self) -> Self {
        self.aggregated = true;
        self
    }

    /// Returns the singular name.
    pub fn singular(&self) -> String {
        self.kind.to_lowercase()
    }

    /// Returns the version in which objects are stored.
    pub fn storage_version(&self) -> &Version {
        self.versions.iter().find(|version| version.storage).expect("every definition has a storage version")
    }
}

/// Returns every kind, sorted by group and name.
pub fn definitions() -> Vec<Definition> {
    use Subresources::{Absent, Empty, Status};
    let mut all = vec![
        define::<policy::PropagationPolicy>(&["pp"], Empty, PROPAGATION),
        define::<policy::ClusterPropagationPolicy>(&["cpp"], Empty, PROPAGATION),
        define::<policy::OverridePolicy>(&["op"], Absent, &[]),
        define::<policy::ClusterOverridePolicy>(&["cop"], Absent, &[]),
        define::<policy::FederatedResourceQuota>(&[], Status, QUOTA),
        define::<policy::ClusterTaintPolicy>(&[], Absent, &[]).without_category(),
        define::<work::ResourceBinding>(&["rb"], Status, BINDING)
            .with_old::<work::v1alpha1::ResourceBinding>(),
        define::<work::ClusterResourceBinding>(&["crb"], Status, BINDING)
            .with_old::<work::v1alpha1::ClusterResourceBinding>(),
        define::<work::Work>(&["wk"], Status, WORK),
        define::<config::ResourceInterpreterCustomization>(&["ric"], Empty, CUSTOMIZATION),
        define::<config::ResourceInterpreterWebhookConfiguration>(&[], Absent, &[]),
        define::<networking::MultiClusterIngress>(&["mci"], Status, &[]),
        define::<networking::MultiClusterService>(&["mcs"], Status, &[]),
        define::<autoscaling::FederatedHPA>(&["fhpa"], Status, HPA),
        define::<autoscaling::CronFederatedHPA>(&["cronfhpa"], Status, CRON_HPA),
        define::<remedy::Remedy>(&[], Absent, &[]),
        define::<apps::WorkloadRebalancer>(&[], Status, &[]).without_category(),
        define::<multicluster::ServiceExport>(&["svcex"], Status, SERVICE_EXPORT)
            .without_category()
            .hand_written(),
        define::<multicluster::ServiceImport>(&["svcim"], Status, SERVICE_IMPORT)
            .without_category()
            .hand_written(),
        define::<cluster::Cluster>(&[], Status, CLUSTER).without_category().hand_written().aggregated(),
        define::<search::ResourceRegistry>(&[], Status, REGISTRY)
            .without_category()
            .hand_written()
            .aggregated(),
    ];
    all.sort_by_key(|definition| (definition.group, definition.kind));
    all
}
