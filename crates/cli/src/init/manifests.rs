//! The installed objects: a namespace, an account without rights, two Services, a StatefulSet with its volume.
//!
//! Labels are upstream's, so that the `deinit` of either program finds the objects of the other.

use anyhow::bail;
use serde_json::{Map, Value, json};

use super::{Arguments, DATA, NAME};

/// The label by which `deinit` finds objects.
pub(crate) const LABEL: &str = "karmada.io/bootstrapping";
const PORT: u16 = 5443;

/// Returns everything, in the order in which it is applied.
pub(super) fn all(arguments: &Arguments) -> anyhow::Result<Vec<Value>> {
    let namespace = &arguments.host.namespace;
    let labels = |kind: &str| json!({"app": NAME, LABEL: kind});
    let service = |name: &str, spec: Value| {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": namespace, "labels": labels("service-defaults")},
            "spec": spec,
        })
    };
    Ok(vec![
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {"karmada.io/system": "true"}},
        }),
        // It needs no rights in the host cluster, and gets no token.
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": NAME, "namespace": namespace, "labels": labels("account-defaults")},
            "automountServiceAccountToken": false,
        }),
        service(
            NAME,
            json!({
                "type": "NodePort",
                "selector": {"app": NAME},
                "ports": [{"name": "https", "port": PORT, "targetPort": PORT, "protocol": "TCP", "nodePort": arguments.port}],
            }),
        ),
        service(
            "karmada",
            json!({
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": {"app": NAME},
                "ports": [{"name": "https", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
            }),
        ),
        stateful_set(arguments, labels("app-defaults"))?,
    ])
}

pub(super) fn image(arguments: &Arguments) -> String {
    let tag = concat!("karmada:v", env!("CARGO_PKG_VERSION"));
    match (arguments.karmada_apiserver_image.as_str(), arguments.private_image_registry.trim_end_matches('/'))
    {
        ("", "") => format!("ghcr.io/karmada-rs/{tag}"),
        ("", registry) => format!("{registry}/{tag}"),
        (image, _) => image.to_owned(),
    }
}

/// The names for which the serving certificate must be valid.
fn names(arguments: &Arguments) -> Vec<String> {
    let namespace = &arguments.host.namespace;
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    for name in [NAME, "karmada"] {
        names.push(name.to_owned());
        names.push(format!("{name}.{namespace}.svc"));
        names.push(format!("{name}.{namespace}.svc.{}", arguments.host_cluster_domain));
    }
    let address = &arguments.karmada_apiserver_advertise_address;
    let given = arguments.cert_external_ip.iter().chain(&arguments.cert_external_dns).chain([address]);
    names.extend(given.filter(|name| !name.is_empty()).cloned());
    names
}

fn stateful_set(arguments: &Arguments, labels: Value) -> anyhow::Result<Value> {
    let mut args = vec![
        "server".to_owned(),
        format!("--data-dir={DATA}"),
        format!("--bind=0.0.0.0:{PORT}"),
        format!("--advertise-address={NAME}.{}.svc", arguments.host.namespace),
    ];
    args.extend(names(arguments).iter().map(|name| format!("--cert-extra-sans={name}")));
    for argument in &arguments.karmada_apiserver_extra_args {
        if !argument.starts_with("--") || argument.trim() != argument {
            bail!("--karmada-apiserver-extra-args {argument:?} must look like --name=value");
        }
        args.push(argument.clone());
    }
    let probe =
        |path: &str| json!({"httpGet": {"path": path, "port": PORT, "scheme": "HTTPS"}, "periodSeconds": 5});
    let mut pod = json!({
        "serviceAccountName": NAME,
        "automountServiceAccountToken": false,
        "priorityClassName": arguments.karmada_apiserver_priority_class,
        // The store is written to disk before the process ends.
        "terminationGracePeriodSeconds": 60,
        "tolerations": [{"effect": "NoExecute", "operator": "Exists"}],
        "containers": [{
            "name": NAME,
            "image": image(arguments),
            "imagePullPolicy": arguments.image_pull_policy,
            "command": ["karmada"],
            "args": args,
            "ports": [{"name": "https", "containerPort": PORT, "protocol": "TCP"}],
            "livenessProbe": probe("/livez"),
            "readinessProbe": probe("/readyz"),
            "startupProbe": {"httpGet": {"path": "/livez", "port": PORT, "scheme": "HTTPS"}, "periodSeconds": 2, "failureThreshold": 60},
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "data", "mountPath": DATA}],
        }],
    });
    if !arguments.image_pull_secrets.is_empty() {
        let secrets: Vec<Value> =
            arguments.image_pull_secrets.iter().map(|name| json!({"name": name})).collect();
        pod["imagePullSecrets"] = secrets.into();
    }
    let mut spec = json!({
        // One process owns the store.
        "replicas": 1,
        "serviceName": "karmada",
        "selector": {"matchLabels": {"app": NAME}},
    });
    store(arguments, NAME, &mut pod, &mut spec)?;
    spec["template"] = json!({"metadata": {"labels": {"app": NAME}}, "spec": pod});
    Ok(json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": NAME, "namespace": arguments.host.namespace, "labels": labels},
        "spec": spec,
    }))
}

/// Sets where the data of a StatefulSet is, as the volume `data`.
pub(super) fn store(
    arguments: &Arguments,
    name: &str,
    pod: &mut Value,
    spec: &mut Value,
) -> anyhow::Result<()> {
    let mut volume = |volume: Value| match &mut pod["volumes"] {
        Value::Array(volumes) => volumes.push(volume),
        none => *none = json!([volume]),
    };
    match arguments.etcd_storage_mode.as_str() {
        "emptyDir" => volume(json!({"name": "data", "emptyDir": {}})),
        "PVC" => {
            spec["volumeClaimTemplates"] = json!([{
                "metadata": {"name": "data", "labels": {"app": name, LABEL: "pvc-defaults"}},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": arguments.storage_classes_name,
                    "resources": {"requests": {"storage": arguments.etcd_pvc_size}},
                },
            }]);
        }
        _ => {
            let directory = json!({"path": arguments.etcd_data, "type": "DirectoryOrCreate"});
            volume(json!({"name": "data", "hostPath": directory}));
            let mut labels = Map::new();
            for pair in arguments.etcd_node_selector_labels.split(',').filter(|pair| !pair.is_empty()) {
                let Some((key, value)) = pair.split_once('=') else {
                    bail!("--etcd-node-selector-labels {pair:?} must look like key=value");
                };
                labels.insert(key.to_owned(), value.into());
            }
            if !labels.is_empty() {
                pod["nodeSelector"] = labels.into();
            }
        }
    }
    Ok(())
}
