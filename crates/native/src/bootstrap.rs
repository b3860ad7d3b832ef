//! The objects a stock server creates for itself at its first start, as recorded: RBAC roles and bindings, system
//! priority classes, the flow control configuration.
//!
//! They come without uid, times and managed fields. Reading unpacks the file each time, since it happens once per
//! start; nothing stays in memory.

use serde::Deserialize;
use serde_json::Value;

use crate::data;

/// Returns all of them.
pub fn objects() -> Objects {
    let mut objects: Objects = data::read(data::BOOTSTRAP);
    let rbac = "rbac.authorization.k8s.io/v1";
    let flow = "flowcontrol.apiserver.k8s.io/v1";
    // They were recorded as items of lists, which do not name their type.
    for (items, api_version, kind) in [
        (&mut objects.cluster_roles, rbac, "ClusterRole"),
        (&mut objects.cluster_role_bindings, rbac, "ClusterRoleBinding"),
        (&mut objects.roles, rbac, "Role"),
        (&mut objects.role_bindings, rbac, "RoleBinding"),
        (&mut objects.priority_classes, "scheduling.k8s.io/v1", "PriorityClass"),
        (&mut objects.flow_schemas, flow, "FlowSchema"),
        (&mut objects.priority_level_configurations, flow, "PriorityLevelConfiguration"),
    ] {
        for item in items {
            item["apiVersion"] = api_version.into();
            item["kind"] = kind.into();
        }
    }
    objects
}

/// The objects by kind, in the order of their names.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Objects {
    pub cluster_roles: Vec<Value>,
    pub cluster_role_bindings: Vec<Value>,
    pub roles: Vec<Value>,
    pub role_bindings: Vec<Value>,
    pub priority_classes: Vec<Value>,
    pub flow_schemas: Vec<Value>,
    pub priority_level_configurations: Vec<Value>,
}

pub fn cluster_roles() -> Vec<Value> {
    objects().cluster_roles
}

pub fn cluster_role_bindings() -> Vec<Value> {
    objects().cluster_role_bindings
}

pub fn roles() -> Vec<Value> {
    objects().roles
}

pub fn role_bindings() -> Vec<Value> {
    objects().role_bindings
}

pub fn priority_classes() -> Vec<Value> {
    objects().priority_classes
}

pub fn flow_schemas() -> Vec<Value> {
    objects().flow_schemas
}

pub fn priority_level_configurations() -> Vec<Value> {
    objects().priority_level_configurations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_well_known_objects_are_there() {
        let names = |objects: &[Value]| -> Vec<String> {
            objects.iter().map(|o| o["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
        };
        let objects = objects();
        for name in ["cluster-admin", "admin", "edit", "view", "system:discovery", "system:basic-user"] {
            assert!(names(&objects.cluster_roles).contains(&name.to_owned()), "{name}");
        }
        assert!(names(&objects.cluster_role_bindings).contains(&"cluster-admin".to_owned()));
        assert!(names(&objects.roles).contains(&"extension-apiserver-authentication-reader".to_owned()));
        assert!(!objects.role_bindings.is_empty());
        assert_eq!(names(&objects.priority_classes), ["system-cluster-critical", "system-node-critical"]);
        assert!(names(&objects.flow_schemas).contains(&"catch-all".to_owned()));
        assert!(names(&objects.priority_level_configurations).contains(&"exempt".to_owned()));
    }

    #[test]
    fn nothing_of_the_recorded_server_is_left_in_them() {
        let objects = objects();
        let all = [
            &objects.cluster_roles,
            &objects.cluster_role_bindings,
            &objects.roles,
            &objects.role_bindings,
            &objects.priority_classes,
            &objects.flow_schemas,
            &objects.priority_level_configurations,
        ];
        for object in all.into_iter().flatten() {
            for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"] {
                assert!(object["metadata"].get(field).is_none(), "{field} of {object}");
            }
            assert!(object.get("kind").is_some() && object.get("apiVersion").is_some(), "{object}");
        }
    }
}
