//! What is built, from which module, under which name: the only place that knows versions.

use std::fmt;

/// One upstream module and the programs we take from it.
#[derive(Debug)]
pub struct Recipe {
    /// Our short name; part of the folder's name in the cache.
    pub name: &'static str,
    pub module: &'static str,
    pub version: &'static str,
    /// Program name and the package it is built from. The package's last path element is what Go calls the result.
    pub(crate) builds: &'static [(&'static str, &'static str)],
    /// A test suite to be compiled, as program name and package.
    pub(crate) suite: Option<(&'static str, &'static str)>,
    /// Modules of ours in the place of others: what upstream calls there is done in another way here.
    pub(crate) stand_ins: &'static [StandIn],
    /// Set where upstream has no buildable main package in a module of its own: the text of our `main.go`.
    pub(crate) main: Option<&'static str>,
    /// Variables to stamp with the version at link time.
    pub(crate) stamps: &'static [&'static str],
}

/// A module of ours that has the name of another one.
#[derive(Debug)]
pub(crate) struct StandIn {
    pub(crate) module: &'static str,
    /// Paths within the module, and texts.
    pub(crate) files: &'static [(&'static str, &'static str)],
}

/// A program in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub name: &'static str,
    pub version: &'static str,
    pub(crate) built_as: &'static str,
}

/// The parts of a Kubernetes cluster, and its client.
pub static KUBERNETES: Recipe = Recipe {
    name: "kubernetes",
    module: "k8s.io/kubernetes",
    version: "v1.36.3",
    builds: &[
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ],
    suite: None,
    stand_ins: &[],
    main: None,
    stamps: &["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"],
};

/// The database. Its server module is a library with an entry point, hence the `main.go`.
pub static ETCD: Recipe = Recipe {
    name: "etcd",
    module: "go.etcd.io/etcd/server/v3",
    version: "v3.7.3",
    builds: &[("etcd", ".")],
    suite: None,
    stand_ins: &[],
    main: Some(
        "// Runs etcd as a program of its own.\npackage main\n\nimport (\n\t\"os\"\n\n\t\"go.etcd.io/etcd/server/v3/etcdmain\"\n)\n\nfunc main() { etcdmain.Main(os.Args) }\n",
    ),
    stamps: &[],
};

/// The kubelet's stand-in: nodes that are Ready and pods that run, without a container.
pub static KWOK: Recipe = Recipe {
    name: "kwok",
    module: "sigs.k8s.io/kwok",
    version: "v0.7.0",
    builds: &[("kwok", "sigs.k8s.io/kwok/cmd/kwok")],
    suite: None,
    stand_ins: &[],
    main: None,
    stamps: &[],
};

/// The originals, as oracles. Built only on demand.
pub static KARMADA: Recipe = Recipe {
    name: "karmada",
    module: "github.com/karmada-io/karmada",
    version: "v1.17.1",
    builds: &[
        ("karmada-scheduler", "github.com/karmada-io/karmada/cmd/scheduler"),
        ("karmada-controller-manager", "github.com/karmada-io/karmada/cmd/controller-manager"),
        ("karmada-webhook", "github.com/karmada-io/karmada/cmd/webhook"),
        ("karmada-aggregated-apiserver", "github.com/karmada-io/karmada/cmd/aggregated-apiserver"),
        ("karmadactl", "github.com/karmada-io/karmada/cmd/karmadactl"),
        ("karmada-agent", "github.com/karmada-io/karmada/cmd/agent"),
        ("karmada-search", "github.com/karmada-io/karmada/cmd/karmada-search"),
    ],
    suite: None,
    stand_ins: &[],
    main: None,
    stamps: &["github.com/karmada-io/karmada/pkg/version"],
};

/// The originals that talk gRPC to each other. Only with upstream's build tag do they understand their own messages.
pub static KARMADA_ESTIMATING: Recipe = Recipe {
    name: "karmada-estimating",
    module: KARMADA.module,
    version: KARMADA.version,
    builds: &[
        ("karmada-estimating-scheduler", "github.com/karmada-io/karmada/cmd/scheduler"),
        ("karmada-estimating-estimator", "github.com/karmada-io/karmada/cmd/scheduler-estimator"),
    ],
    suite: None,
    stand_ins: &[],
    main: None,
    stamps: KARMADA.stamps,
};

/// Karmada's own end-to-end suite, the program that runs it in several processes, and what its specs expect to find running.
/// Where the suite makes clusters with kind, it asks whoever runs it for them.
pub static KARMADA_E2E: Recipe = Recipe {
    name: "karmada-e2e",
    module: "github.com/karmada-io/karmada",
    version: "v1.17.1",
    builds: &[
        ("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo"),
        (
            "karmada-interpreter-example",
            "github.com/karmada-io/karmada/examples/customresourceinterpreter/webhook",
        ),
    ],
    suite: Some(("karmada-suite", "github.com/karmada-io/karmada/test/e2e/suites/base")),
    stand_ins: &[StandIn {
        module: "sigs.k8s.io/kind",
        files: &[
            ("go.mod", "module sigs.k8s.io/kind\n\ngo 1.25.0\n"),
            ("pkg/cluster/cluster.go", include_str!("kind/cluster.go")),
            ("pkg/exec/exec.go", include_str!("kind/exec.go")),
        ],
    }],
    main: None,
    stamps: &[],
};

/// Kubernetes' own end-to-end suite, and the program that runs it in several processes.
pub static KUBERNETES_E2E: Recipe = Recipe {
    name: "kubernetes-e2e",
    module: "k8s.io/kubernetes",
    version: "v1.36.3",
    builds: &[("kubernetes-ginkgo", "github.com/onsi/ginkgo/v2/ginkgo")],
    suite: Some(("kubernetes-e2e", "k8s.io/kubernetes/test/e2e")),
    stand_ins: &[],
    main: None,
    stamps: &[],
};

/// Kubernetes' own integration tests; which packages, and with which files of ours, is the caller's choice.
pub static KUBERNETES_INTEGRATION: Recipe = Recipe {
    name: "kubernetes-integration",
    module: "k8s.io/kubernetes",
    version: "v1.36.3",
    builds: &[],
    suite: None,
    stand_ins: &[],
    main: None,
    stamps: &[],
};

/// A package manager that many people install with.
pub static HELM: Recipe = Recipe {
    name: "helm",
    module: "helm.sh/helm/v3",
    version: "v3.22.0",
    builds: &[("helm", "helm.sh/helm/v3/cmd/helm")],
    suite: None,
    stand_ins: &[],
    main: None,
    stamps: &[],
};

/// What runs on a node of a member with real pods.
pub static KUBERNETES_NODE: Recipe = Recipe {
    name: "kubernetes-node",
    module: "k8s.io/kubernetes",
    version: KUBERNETES.version,
    builds: &[
        ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
        ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    ],
    suite: None,
    stand_ins: &[],
    main: None,
    stamps: &["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"],
};

/// The container runtime, and the small program that it leaves beside each container.
pub static CONTAINERD: Recipe = Recipe {
    name: "containerd",
    module: "github.com/containerd/containerd/v2",
    version: "v2.4.2",
    builds: &[
        ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
        ("containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"),
    ],
    suite: None,
    stand_ins: &[],
    main: None,
    stamps: &[],
};

/// What answers `kubectl top` and feeds autoscalers.
pub static METRICS_SERVER: Recipe = Recipe {
    name: "metrics-server",
    module: "sigs.k8s.io/metrics-server",
    version: "v0.9.0",
    builds: &[("metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server")],
    suite: None,
    stand_ins: &[],
    main: None,
    stamps: &[],
};

/// The name server. Its own entry point knows every plugin, and with them the libraries of every cloud; ours knows four.
pub static COREDNS: Recipe = Recipe {
    name: "coredns",
    module: "github.com/coredns/coredns",
    version: "v1.15.0",
    builds: &[("coredns", ".")],
    suite: None,
    stand_ins: &[],
    main: Some(include_str!("coredns.go")),
    stamps: &[],
};

/// The one program in the images of real pods: source of our own, no module of others. A change of it needs a new version.
pub static POD_PROGRAM: Recipe = Recipe {
    name: "pod-program",
    module: "",
    version: "v2",
    builds: &[("pod-program", ".")],
    suite: None,
    stand_ins: &[],
    main: Some(include_str!("pod_program.go")),
    stamps: &[],
};

/// All that a member with real pods needs; kwok is not among it.
pub static POD_RECIPES: [&Recipe; 7] =
    [&KUBERNETES, &ETCD, &KUBERNETES_NODE, &CONTAINERD, &METRICS_SERVER, &COREDNS, &POD_PROGRAM];

/// All that a member cluster needs. The biggest comes first, so that a machine with little patience fails early.
pub static MEMBER_RECIPES: [&Recipe; 3] = [&KUBERNETES, &ETCD, &KWOK];

impl Recipe {
    /// Returns the programs this recipe gives.
    pub fn programs(&self) -> impl Iterator<Item = Program> + '_ {
        let builds = self.builds.iter().map(|(name, package)| Program {
            name,
            version: self.version,
            // "." is our own module, which Go names after the last element of its path: the recipe's name.
            built_as: if *package == "." { self.name } else { last_element(package) },
        });
        let suite =
            self.suite.iter().map(|(name, _)| Program { name, version: self.version, built_as: name });
        builds.chain(suite)
    }

    /// Returns the program called `name`. Panics when this recipe has none: names are constants of ours.
    pub fn program(&self, name: &str) -> Program {
        self.programs().find(|program| program.name == name).expect("a program that the recipe names")
    }

    /// Returns a recipe for one of the programs.
    pub(crate) fn only(&self, name: &str) -> Recipe {
        let place = self.builds.iter().position(|(each, _)| *each == name);
        let place = place.expect("a program that the recipe names");
        Recipe { builds: &self.builds[place..=place], suite: None, ..*self }
    }

    /// Returns the build tags that upstream builds with.
    pub(crate) fn tags(&self) -> &'static str {
        if self.name == KARMADA_ESTIMATING.name { "kubernetes_protomessage_one_more_release" } else { "" }
    }

    pub(crate) fn packages(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.builds.iter().map(|(_, package)| *package)
    }

    pub(crate) fn names(&self) -> String {
        self.builds.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    /// Returns linker flags: no symbol tables (a third of the size), and the version, which a plain build would not know.
    pub(crate) fn link_flags(&self) -> String {
        let mut parts = self.version.trim_start_matches('v').split('.');
        let (major, minor) = (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"));
        let mut flags = "-s -w".to_string();
        for package in self.stamps {
            for (variable, value) in [("gitVersion", self.version), ("gitMajor", major), ("gitMinor", minor)]
            {
                flags.push_str(&format!(" -X {package}.{variable}={value}"));
            }
        }
        flags
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

fn last_element(package: &'static str) -> &'static str {
    package.rsplit('/').next().unwrap_or(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_stamped_into_every_version_package() {
        let flags = KUBERNETES.link_flags();
        assert!(flags.starts_with("-s -w "));
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.36.3"));
        assert!(flags.contains("-X k8s.io/component-base/version.gitMinor=36"));
    }

    #[test]
    fn a_program_may_be_called_otherwise_than_its_package() {
        assert_eq!(KARMADA.program("karmada-scheduler").built_as, "scheduler");
        assert_eq!(ETCD.program("etcd").built_as, "etcd");
    }

    #[test]
    fn one_program_can_be_had_alone() {
        let alone = KARMADA.only("karmada-webhook");
        assert_eq!(alone.names(), "karmada-webhook");
        assert_eq!(alone.version, KARMADA.version);
    }

    #[test]
    fn no_two_programs_share_a_name() {
        let mut names: Vec<_> = MEMBER_RECIPES
            .iter()
            .copied()
            .chain([&KARMADA, &KARMADA_ESTIMATING, &KARMADA_E2E, &KUBERNETES_E2E, &HELM])
            .chain([&KUBERNETES_NODE, &CONTAINERD, &METRICS_SERVER, &COREDNS, &POD_PROGRAM])
            .flat_map(|r| r.programs().map(|p| p.name))
            .collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
