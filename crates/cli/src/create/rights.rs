//! Generators of roles and their bindings.

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use super::{Creation, Made, Name, required};
use crate::failure::Plain;
use crate::output;
use crate::server::Plane;

const GROUP: &str = "rbac.authorization.k8s.io";
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
/// Verbs that some resource understands.
const VERBS: [&str; 15] = [
    "*",
    "get",
    "delete",
    "list",
    "create",
    "update",
    "patch",
    "watch",
    "proxy",
    "deletecollection",
    "use",
    "bind",
    "approve",
    "impersonate",
    "escalate",
];

/// What a rule is about.
#[derive(Debug, Clone, Default, Args)]
pub struct Rule {
    /// Verb that applies to the resources contained in the rule; may be repeated.
    #[arg(long, value_name = "VERB", value_delimiter = ',')]
    pub verb: Vec<String>,
    /// Resource that the rule applies to, such as deployments.apps/scale; may be repeated.
    #[arg(long, value_name = "RESOURCE", value_delimiter = ',')]
    pub resource: Vec<String>,
    /// Resource in the white list that the rule applies to; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub resource_name: Vec<String>,
}

impl Rule {
    fn verbs(&self) -> Vec<&str> {
        if self.verb.iter().any(|verb| verb == "*") {
            return vec!["*"];
        }
        let mut verbs: Vec<&str> = Vec::new();
        for verb in &self.verb {
            if !verbs.contains(&verb.as_str()) {
                verbs.push(verb);
            }
        }
        verbs
    }

    /// The rules, one for each group of the API, in the order in which groups appear.
    async fn rules(&self, plane: &Plane) -> anyhow::Result<Vec<Value>> {
        for verb in self.verbs().iter().filter(|verb| !VERBS.contains(verb)) {
            output::warn(&format!("Warning: '{verb}' is not a standard resource verb"));
        }
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for word in &self.resource {
            let (type_, part) =
                word.split_once('/').map_or((word.as_str(), ""), |(type_, part)| (type_, part));
            if type_.is_empty() {
                bail!("resource type is missing in {}", apimachinery::go::quote(word));
            }
            let (group, plural) = if type_ == "*" {
                ("*".to_owned(), "*".to_owned())
            } else {
                let found = plane
                    .server
                    .discovery()
                    .await?
                    .resolve(type_)
                    .map_err(|error| Plain(error.to_string()))?;
                (found.group.clone(), found.plural.clone())
            };
            let name = if part.is_empty() { plural } else { format!("{plural}/{part}") };
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, names)) if names.contains(&name) => {}
                Some((_, names)) => names.push(name),
                None => groups.push((group, vec![name])),
            }
        }
        let rules = groups.into_iter().map(|(group, resources)| {
            let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": self.verbs()});
            if !self.resource_name.is_empty() {
                rule["resourceNames"] = json!(self.resource_name);
            }
            rule
        });
        Ok(rules.collect())
    }
}

/// Create a role with single rule.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Who has it may look at pods
  karmadactl create role reader --verb=get,list,watch --resource=pods

  # Who has it may scale one deployment
  karmadactl create role scaler --verb=patch --resource=deployments.apps/scale --resource-name=web")]
pub struct Role {
    #[command(flatten)]
    pub name: Name,
    #[command(flatten)]
    pub rule: Rule,
    #[command(flatten)]
    pub creation: Creation,
}

impl Role {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let name = self.name.get("role")?;
        if self.rule.verb.is_empty() {
            bail!("at least one verb must be specified");
        }
        if self.rule.resource.is_empty() {
            bail!("at least one resource must be specified");
        }
        let plane = self.creation.place.plane().await?;
        let rules = self.rule.rules(&plane).await?;
        let object =
            json!({"apiVersion": API_VERSION, "kind": "Role", "metadata": {"name": name}, "rules": rules});
        self.creation.create_on(&plane, Made { object, plural: "roles", namespaced: true, failed: "" }).await
    }
}

/// Create a cluster role.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Who has it may look at pods
  karmadactl create clusterrole reader --verb=get,list,watch --resource=pods

  # Who has it may ask whether the server is well
  karmadactl create clusterrole doctor --verb=get --non-resource-url=/healthz

  # What other roles with a label allow
  karmadactl create clusterrole monitoring --aggregation-rule=rbac.example/monitoring=true")]
pub struct ClusterRole {
    #[command(flatten)]
    pub name: Name,
    #[command(flatten)]
    pub rule: Rule,
    /// A path of the server, such as /logs/*; may be repeated.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub non_resource_url: Vec<String>,
    /// Labels of the cluster roles that this one is made of.
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    pub aggregation_rule: Vec<String>,
    #[command(flatten)]
    pub creation: Creation,
}

impl ClusterRole {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let name = self.name.get("clusterrole")?;
        let plane = self.creation.place.plane().await?;
        let mut object =
            json!({"apiVersion": API_VERSION, "kind": "ClusterRole", "metadata": {"name": name}});
        if self.aggregation_rule.is_empty() {
            self.check()?;
            let mut rules = self.rule.rules(&plane).await?;
            if !self.non_resource_url.is_empty() {
                rules.push(json!({"nonResourceURLs": self.non_resource_url, "verbs": self.rule.verbs()}));
            }
            object["rules"] = rules.into();
        } else {
            if !(self.rule.verb.is_empty()
                && self.rule.resource.is_empty()
                && self.non_resource_url.is_empty())
            {
                bail!(
                    "aggregation rule must be specified without non-resource url, resource and resource-name or verbs"
                );
            }
            let mut labels = serde_json::Map::new();
            for pair in &self.aggregation_rule {
                let Some((key, value)) = pair.split_once('=') else {
                    bail!("invalid aggregation rule {pair}, expected key=value");
                };
                labels.insert(key.to_owned(), value.into());
            }
            object["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": labels}]});
            object["rules"] = Value::Null;
        }
        self.creation
            .create_on(&plane, Made { object, plural: "clusterroles", namespaced: false, failed: "" })
            .await
    }

    fn check(&self) -> anyhow::Result<()> {
        if self.rule.verb.is_empty() {
            bail!("at least one verb must be specified");
        }
        if self.rule.resource.is_empty() && self.non_resource_url.is_empty() {
            bail!("one of resource or nonResourceURL must be specified");
        }
        for url in &self.non_resource_url {
            if url != "*" && (!url.starts_with('/') || url.trim_end_matches('*').contains('*')) {
                bail!(
                    "nonResourceURL only supports \\* at the end and must begin with a slash: {}",
                    apimachinery::go::quote(url)
                );
            }
        }
        Ok(())
    }
}

/// The users, groups and accounts that get the role.
#[derive(Debug, Clone, Default, Args)]
pub struct Subjects {
    /// User to bind to the role; may be repeated.
    #[arg(long, value_name = "USER")]
    pub user: Vec<String>,
    /// Group to bind to the role; may be repeated.
    #[arg(long, value_name = "GROUP")]
    pub group: Vec<String>,
    /// Service account to bind to the role, as NAMESPACE:NAME; may be repeated.
    #[arg(long, value_name = "NAMESPACE:NAME")]
    pub serviceaccount: Vec<String>,
}

impl Subjects {
    fn list(&self) -> anyhow::Result<Vec<Value>> {
        let named = |kind: &str, name: &String| json!({"apiGroup": GROUP, "kind": kind, "name": name});
        let mut list: Vec<Value> = self.user.iter().map(|name| named("User", name)).collect();
        list.extend(self.group.iter().map(|name| named("Group", name)));
        for account in &self.serviceaccount {
            let Some((namespace, name)) =
                account.split_once(':').filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(':'))
            else {
                bail!("serviceaccount must be <namespace>:<name>");
            };
            list.push(json!({"kind": "ServiceAccount", "name": name, "namespace": namespace}));
        }
        Ok(list)
    }
}

fn binding(kind: &str, name: &str, role_kind: &str, role: &str, subjects: Vec<Value>) -> Value {
    let mut object = json!({
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": role_kind, "name": role},
    });
    if !subjects.is_empty() {
        object["subjects"] = subjects.into();
    }
    object
}

/// Create a role binding for a particular role or cluster role.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Users and a service account may look
  karmadactl create rolebinding readers --role=reader --user=ada --user=grace --serviceaccount=shop:robot")]
pub struct RoleBinding {
    #[command(flatten)]
    pub name: Name,
    /// ClusterRole this RoleBinding should reference.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub clusterrole: String,
    /// Role this RoleBinding should reference.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub role: String,
    #[command(flatten)]
    pub subjects: Subjects,
    #[command(flatten)]
    pub creation: Creation,
}

impl RoleBinding {
    pub(super) fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("rolebinding")?;
        let (kind, role) = match (self.role.as_str(), self.clusterrole.as_str()) {
            (role, "") if !role.is_empty() => ("Role", role),
            ("", role) if !role.is_empty() => ("ClusterRole", role),
            _ => bail!("exactly one of clusterrole or role must be specified"),
        };
        Ok(Made {
            object: binding("RoleBinding", name, kind, role, self.subjects.list()?),
            plural: "rolebindings",
            namespaced: true,
            failed: "failed to create rolebinding: ",
        })
    }
}

/// Create a cluster role binding for a particular cluster role.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # A group may do everything
  karmadactl create clusterrolebinding owners --clusterrole=cluster-admin --group=owners")]
pub struct ClusterRoleBinding {
    #[command(flatten)]
    pub name: Name,
    /// ClusterRole this ClusterRoleBinding should reference.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub clusterrole: String,
    #[command(flatten)]
    pub subjects: Subjects,
    #[command(flatten)]
    pub creation: Creation,
}

impl ClusterRoleBinding {
    pub(super) fn make(&self) -> anyhow::Result<Made> {
        required(&[("clusterrole", !self.clusterrole.is_empty())])?;
        let name = self.name.get("clusterrolebinding")?;
        Ok(Made {
            object: binding(
                "ClusterRoleBinding",
                name,
                "ClusterRole",
                &self.clusterrole,
                self.subjects.list()?,
            ),
            plural: "clusterrolebindings",
            namespaced: false,
            failed: "failed to create clusterrolebinding: ",
        })
    }
}
