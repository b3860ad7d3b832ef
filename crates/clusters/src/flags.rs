//! The command lines of a cluster's programs: pure functions from paths and ports to arguments.
//!
//! Everything listens on the loopback address only. Leader election is off: there is one of each, and a program that loses its
//! lease because a test froze the API server would exit instead of waiting.

use std::path::{Path, PathBuf};

use crate::options::Flavour;

/// Where the files of a cluster are.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    /// `<fleet>/<cluster>`
    pub(crate) folder: PathBuf,
}

impl Files {
    pub(crate) fn pki(&self) -> PathBuf {
        self.folder.join("pki")
    }

    /// The kubeconfig of the cluster's own programs, which does not go through the proxy.
    pub(crate) fn direct_kubeconfig(&self) -> PathBuf {
        self.folder.join("direct.kubeconfig")
    }

    pub(crate) fn kwok_config(&self) -> PathBuf {
        self.folder.join("kwok.yaml")
    }

    pub(crate) fn audit_policy(&self) -> PathBuf {
        self.folder.join("audit-policy.json")
    }

    /// The writes to a member, one JSON line each.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    fn pki_file(&self, name: &str) -> String {
        self.pki().join(name).display().to_string()
    }
}

/// What kube-apiserver needs to know beyond its files.
#[derive(Debug, Clone)]
pub(crate) struct ApiServer {
    pub(crate) flavour: Flavour,
    pub(crate) port: u16,
    pub(crate) etcd: String,
    pub(crate) etcd_prefix: String,
}

/// What the audit log of a member tells: every write, and the content of those that service accounts make. Control planes act
/// through one, the cluster's own programs as the administrator. Events and Leases follow the time.
pub(crate) const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
"omitStages": ["RequestReceived", "ResponseStarted"], "omitManagedFields": true,
"rules": [
  {"level": "None", "verbs": ["get", "list", "watch"]},
  {"level": "None", "resources": [{"group": "", "resources": ["events"]}, {"group": "events.k8s.io"}]},
  {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
  {"level": "None", "nonResourceURLs": ["/*"]},
  {"level": "RequestResponse", "userGroups": ["system:serviceaccounts"]},
  {"level": "Metadata"}]}"#;

/// Names and addresses in the serving certificate.
pub(crate) const SERVING_HOSTS: [&str; 6] =
    ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1", "10.96.0.1"];

/// The controllers that Karmada's installation runs in its control plane.
const CONTROL_PLANE_CONTROLLERS: &str = "namespace,garbagecollector,serviceaccount-token,ttl-after-finished,bootstrapsigner,tokencleaner,csrcleaner,csrsigning,clusterrole-aggregation";

/// All controllers but those that need a cloud or hand out node address ranges.
const MEMBER_CONTROLLERS: &str =
    "*,-cloud-node-lifecycle-controller,-service-lb-controller,-node-route-controller,-node-ipam-controller";

/// One etcd for the whole fleet.
pub(crate) fn etcd(data: &Path, client_port: u16, peer_port: u16, unsafe_no_fsync: bool) -> Vec<String> {
    etcd_member(data, client_port, peer_port, &[peer_port], 0, unsafe_no_fsync)
}

/// The name of one of several etcds.
pub(crate) fn etcd_name(number: usize) -> String {
    if number == 0 { "clusters".to_string() } else { format!("clusters-{number}") }
}

/// One of several that are one store: it listens to the others at `peer_port`; `number` of those that find each other at `doors`.
pub(crate) fn etcd_member(
    data: &Path,
    client_port: u16,
    peer_port: u16,
    doors: &[u16],
    number: usize,
    unsafe_no_fsync: bool,
) -> Vec<String> {
    let address = |port: &u16| format!("http://127.0.0.1:{port}");
    let client = address(&client_port);
    let door = address(&doors[number]);
    let members = doors.iter().enumerate().map(|(at, port)| format!("{}={}", etcd_name(at), address(port)));
    let members = members.collect::<Vec<_>>().join(",");
    let mut args = vec![
        format!("--name={}", etcd_name(number)),
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={}", address(&peer_port)),
        format!("--initial-advertise-peer-urls={door}"),
        format!("--initial-cluster={members}"),
        "--log-level=warn".to_string(),
        // The default snapshot interval suits large clusters; ours are short-lived and share memory with everything else.
        "--snapshot-count=5000".to_string(),
    ];
    if unsafe_no_fsync {
        args.push("--unsafe-no-fsync".to_string());
    }
    args
}

pub(crate) fn kube_apiserver(files: &Files, server: &ApiServer, extra: &[String]) -> Vec<String> {
    let pki = |name: &str| files.pki_file(name);
    let mut args = vec![
        format!("--etcd-servers={}", server.etcd),
        format!("--etcd-prefix={}", server.etcd_prefix),
        "--bind-address=127.0.0.1".to_string(),
        "--advertise-address=127.0.0.1".to_string(),
        // A loopback address may not become an endpoint of the kubernetes Service; do not even try.
        "--endpoint-reconciler-type=none".to_string(),
        format!("--secure-port={}", server.port),
        format!("--tls-cert-file={}", pki("apiserver.crt")),
        format!("--tls-private-key-file={}", pki("apiserver.key")),
        format!("--client-ca-file={}", pki("ca.crt")),
        "--authorization-mode=Node,RBAC".to_string(),
        "--allow-privileged=true".to_string(),
        "--enable-bootstrap-token-auth=true".to_string(),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_string(),
        format!("--service-account-key-file={}", pki("service-account.pub")),
        format!("--service-account-signing-key-file={}", pki("service-account.key")),
        "--service-cluster-ip-range=10.96.0.0/12".to_string(),
        format!("--requestheader-client-ca-file={}", pki("front-proxy-ca.crt")),
        "--requestheader-allowed-names=front-proxy-client".to_string(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_string(),
        "--requestheader-group-headers=X-Remote-Group".to_string(),
        "--requestheader-username-headers=X-Remote-User".to_string(),
        format!("--proxy-client-cert-file={}", pki("front-proxy-client.crt")),
        format!("--proxy-client-key-file={}", pki("front-proxy-client.key")),
        "--profiling=false".to_string(),
    ];
    if server.flavour == Flavour::ControlPlane {
        // As Karmada deploys it: nothing there runs pods, so nothing there needs their admission.
        args.push("--disable-admission-plugins=StorageObjectInUseProtection,ServiceAccount".to_string());
        args.push("--tls-min-version=VersionTLS13".to_string());
    }
    if server.flavour == Flavour::Member {
        args.push(format!("--audit-policy-file={}", files.audit_policy().display()));
        args.push(format!("--audit-log-path={}", files.audit_log().display()));
    }
    args.extend_from_slice(extra);
    args
}

pub(crate) fn kube_controller_manager(files: &Files, flavour: Flavour) -> Vec<String> {
    let pki = |name: &str| files.pki_file(name);
    let (controllers, name) = match flavour {
        Flavour::ControlPlane => (CONTROL_PLANE_CONTROLLERS, "karmada"),
        Flavour::Member | Flavour::Pods | Flavour::ApiServer => (MEMBER_CONTROLLERS, "kubernetes"),
    };
    // A frozen API server or a busy machine must not make kwok's nodes look lost; a kubelet that is gone shall be noticed.
    let patience = if flavour == Flavour::Pods { "40s" } else { "10m" };
    vec![
        format!("--kubeconfig={}", files.direct_kubeconfig().display()),
        format!("--controllers={controllers}"),
        format!("--cluster-name={name}"),
        format!("--cluster-signing-cert-file={}", pki("ca.crt")),
        format!("--cluster-signing-key-file={}", pki("ca.key")),
        format!("--root-ca-file={}", pki("ca.crt")),
        format!("--service-account-private-key-file={}", pki("service-account.key")),
        "--leader-elect=false".to_string(),
        // Nobody asks it anything; one port less that could clash.
        "--secure-port=0".to_string(),
        format!("--node-monitor-grace-period={patience}"),
        "--kube-api-qps=200".to_string(),
        "--kube-api-burst=400".to_string(),
        "--profiling=false".to_string(),
    ]
}

pub(crate) fn kube_scheduler(files: &Files) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", files.direct_kubeconfig().display()),
        "--leader-elect=false".to_string(),
        "--secure-port=0".to_string(),
        "--kube-api-qps=200".to_string(),
        "--kube-api-burst=400".to_string(),
        "--profiling=false".to_string(),
    ]
}

/// `index` is the cluster's place in the fleet: each gets its own range of pod addresses.
pub(crate) fn kwok(files: &Files, index: usize, configured: bool) -> Vec<String> {
    // An empty configuration instead of none: kwok would otherwise read the user's own one.
    let config = if configured { files.kwok_config().display().to_string() } else { "/dev/null".to_string() };
    vec![
        format!("--kubeconfig={}", files.direct_kubeconfig().display()),
        format!("--config={config}"),
        "--manage-all-nodes=true".to_string(),
        format!("--cidr=10.{}.0.1/16", 100 + index % 100),
        "--node-ip=127.0.0.1".to_string(),
        "--node-lease-duration-seconds=120".to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        Files { folder: "/fleet/member1".into() }
    }

    fn server(flavour: Flavour) -> ApiServer {
        ApiServer {
            flavour,
            port: 6443,
            etcd: "http://127.0.0.1:2379".to_string(),
            etcd_prefix: "/member1/1".to_string(),
        }
    }

    #[test]
    fn clusters_on_one_etcd_are_kept_apart_by_their_prefix() {
        let args = kube_apiserver(&files(), &server(Flavour::Member), &[]);
        assert!(args.contains(&"--etcd-prefix=/member1/1".to_string()));
    }

    #[test]
    fn own_flags_come_last_and_win() {
        let extra = ["--profiling=true".to_string()];
        assert_eq!(kube_apiserver(&files(), &server(Flavour::ApiServer), &extra).last(), Some(&extra[0]));
    }

    #[test]
    fn a_control_plane_runs_the_controllers_that_karmada_runs() {
        let args = kube_controller_manager(&files(), Flavour::ControlPlane).join(" ");
        assert!(args.contains("--controllers=namespace,garbagecollector,"), "{args}");
        assert!(args.contains("--cluster-name=karmada"), "{args}");
    }

    #[test]
    fn pod_addresses_differ_between_members() {
        assert_ne!(kwok(&files(), 0, false), kwok(&files(), 1, false));
    }
}
