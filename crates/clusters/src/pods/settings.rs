//! The settings and command lines of what a member with real pods runs beyond a member of kwok's.
//!
//! All of it lives in the member's namespaces, so everything uses its customary port; only the API server has the port by which it is
//! known on the machine, so that one kubeconfig serves inside and outside.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{HUB_ADDRESS, REGISTRY_PORT, node_address, objects::DNS_ADDRESS, pod_range};
use crate::{
    error::Error,
    flags::{self, Files},
    toolchain::{CONTAINERD, COREDNS, ETCD, KUBERNETES_NODE, METRICS_SERVER, Packages, Recipe, Toolchain},
};

/// The image that holds a pod's namespaces.
pub(crate) const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10";

/// The folder, in a member's, where programs are under the names by which others look for them.
pub(crate) const PROGRAMS: &str = "bin";

/// One member, as its settings depend on it.
pub(crate) struct Member<'a> {
    pub(crate) files: &'a Files,
    pub(crate) toolchain: &'a Toolchain,
    pub(crate) packages: &'a Packages,
    /// Place in the fleet.
    pub(crate) index: usize,
    pub(crate) node: &'a str,
    pub(crate) cgroup: &'a str,
    pub(crate) unsafe_no_fsync: bool,
}

/// A program and its arguments.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
}

/// What runs before the API server, and what runs after.
pub(crate) struct Parts {
    pub(crate) before: Vec<Part>,
    pub(crate) after: Vec<Part>,
}

/// Writes the settings and returns the programs that read them.
pub(crate) fn components(member: &Member<'_>) -> Result<Parts, Error> {
    member.write_runtime()?;
    let kubelet = member.write("kubelet.json", &member.kubelet().to_string())?;
    let proxy = member.write("kube-proxy.json", &member.kube_proxy().to_string())?;
    let names = member.write("Corefile", &member.corefile())?;
    let etcd_args = flags::etcd(&member.files.folder.join("etcd"), 2379, 2380, member.unsafe_no_fsync);
    let containerd = vec![format!("--config={}", member.path("containerd.toml").display())];
    let before =
        vec![member.part(&ETCD, "etcd", etcd_args), member.part(&CONTAINERD, "containerd", containerd)];
    let kubeconfig = member.files.direct_kubeconfig().display().to_string();
    let after = vec![
        member.part(
            &KUBERNETES_NODE,
            "kubelet",
            vec![
                format!("--kubeconfig={kubeconfig}"),
                format!("--config={}", kubelet.display()),
                format!("--hostname-override={}", member.node),
                format!("--node-ip={}", node_address(member.index)),
            ],
        ),
        member.part(&KUBERNETES_NODE, "kube-proxy", vec![format!("--config={}", proxy.display())]),
        member.part(&COREDNS, "coredns", vec!["-conf".to_string(), names.display().to_string()]),
        member.part(&METRICS_SERVER, "metrics-server", member.metrics_server(&kubeconfig)),
    ];
    Ok(Parts { before, after })
}

/// Flags of kube-apiserver that turn it from one on the loopback address into one of a network with nodes.
pub(crate) fn api_server_flags(files: &Files, index: usize) -> Vec<String> {
    let pki = |name: &str| files.pki().join(name).display().to_string();
    vec![
        "--bind-address=0.0.0.0".to_string(),
        format!("--advertise-address={}", node_address(index)),
        "--endpoint-reconciler-type=lease".to_string(),
        format!("--kubelet-client-certificate={}", pki("admin.crt")),
        format!("--kubelet-client-key={}", pki("admin.key")),
        format!("--kubelet-certificate-authority={}", pki("ca.crt")),
        "--kubelet-preferred-address-types=InternalIP".to_string(),
    ]
}

impl Member<'_> {
    fn part(&self, recipe: &Recipe, name: &'static str, args: Vec<String>) -> Part {
        Part { name, program: self.toolchain.path(&recipe.program(name)), args }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.folder.join(name)
    }

    fn pki(&self, name: &str) -> String {
        self.files.pki().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.path(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        }
        fs::write(&path, text).map_err(Error::io("write", &path))?;
        Ok(path)
    }

    fn write_runtime(&self) -> Result<(), Error> {
        let shim = "containerd-shim-runc-v2";
        let programs = self.path(PROGRAMS);
        fs::create_dir_all(&programs).map_err(Error::io("create", &programs))?;
        let link = programs.join(shim);
        let _ = fs::remove_file(&link);
        symlink(self.toolchain.path(&CONTAINERD.program(shim)), &link).map_err(Error::io("create", &link))?;
        let registry = format!("http://{HUB_ADDRESS}:{REGISTRY_PORT}");
        self.write(
            "registries/_default/hosts.toml",
            &format!(
                "server = \"{registry}\"\n[host.\"{registry}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
            ),
        )?;
        self.write("cni/10-bridge.conflist", &self.network().to_string())?;
        self.write("resolv.conf", "nameserver 127.0.0.1\n")?;
        self.write("containerd.toml", &self.containerd()).map(|_| ())
    }

    fn containerd(&self) -> String {
        let quote = |path: &Path| format!("{:?}", path.display().to_string());
        format!(
            "version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = \"{PAUSE_IMAGE}\"
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = {registries}
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [{plugins}]
conf_dir = {networks}
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = \"io.containerd.runc.v2\"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
",
            registries = quote(&self.path("registries")),
            plugins = quote(&self.packages.cni()),
            networks = quote(&self.path("cni")),
        )
    }

    fn network(&self) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": true,
                    // Pods of other members shall see who it is that talks to them.
                    "ipMasq": false,
                    "hairpinMode": true,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": pod_range(self.index)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": true}},
            ],
        })
    }

    fn kubelet(&self) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": false,
            "failSwapOn": false,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup,
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            "localStorageCapacityIsolation": false,
            // The machine's memory and disk are not this node's to judge.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "0%",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
                "imagefs.inodesFree": "0%",
            },
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "maxPods": 200,
            "serializeImagePulls": false,
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": self.path("resolv.conf"),
            "tlsCertFile": self.pki("node.crt"),
            "tlsPrivateKeyFile": self.pki("node.key"),
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": self.pki("ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
        })
    }

    fn kube_proxy(&self) -> Value {
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": pod_range(self.index),
            "hostnameOverride": self.node,
            "clientConnection": {"kubeconfig": self.files.direct_kubeconfig()},
            // These settings count for the whole machine: leave them alone.
            "conntrack": {"maxPerCore": 0, "min": 0},
        })
    }

    fn corefile(&self) -> String {
        format!(
            ".:53 {{\n    bind {}\n    errors\n    kubernetes cluster.local in-addr.arpa {{\n        kubeconfig {}\n    }}\n    cache 5\n}}\n",
            node_address(self.index),
            self.files.direct_kubeconfig().display()
        )
    }

    fn metrics_server(&self, kubeconfig: &str) -> Vec<String> {
        vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--secure-port=4443".to_string(),
            format!("--tls-cert-file={}", self.pki("node.crt")),
            format!("--tls-private-key-file={}", self.pki("node.key")),
            format!("--kubelet-certificate-authority={}", self.pki("ca.crt")),
            "--kubelet-preferred-address-types=InternalIP".to_string(),
            "--metric-resolution=10s".to_string(),
            "--kubelet-request-timeout=5s".to_string(),
        ]
    }
}
