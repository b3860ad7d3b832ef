//! What is known about the specs of Karmada's suite: what each needs from its surroundings, and which fail here and why.
//!
//! Both lists go by file and by a part of a spec's full name; what no line names needs nothing special and passes. The table in
//! `docs/guides/real-clusters.md` is made from these lists (`cargo xtask e2e --list`), and a test compares the two.

/// What a spec needs beyond a control plane, `karmadactl` and members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Nothing,
    /// An image whose pods never get ready.
    UnreadyPods,
    /// Objects that clusters of kind have in `kube-system`.
    KindObjects,
    /// The example of an interpreter webhook, and its kind in all clusters.
    Interpreter,
    /// A scheduler estimator for each member.
    Estimators,
    /// Containers that run: logs, exec, metrics, traffic.
    RealPods,
    /// A cluster that is made during the spec.
    Cluster,
    /// An agent that runs as a pod of a cluster that is made during the spec.
    Agent,
    /// Karmada's own components as pods of a host cluster.
    Host,
}

impl Need {
    /// Says whether something has to run in a pod.
    fn real_pods(self) -> bool {
        matches!(self, Self::RealPods | Self::Agent)
    }

    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Nothing => "–",
            Self::UnreadyPods => "pods that never get ready",
            Self::KindObjects => "objects of kind's clusters",
            Self::Interpreter => "interpreter example",
            Self::Estimators => "estimators",
            Self::RealPods => "real pods",
            Self::Cluster => "a new cluster",
            Self::Agent => "a new cluster, agent in a pod",
            Self::Host => "host cluster",
        }
    }
}

/// File, part of the full name, need. The first line that fits counts.
const NEEDS: &[(&str, &str, Need)] = &[
    ("aggregatedapi", "", Need::Cluster),
    ("clusteraffinities", "OverflowAffinities", Need::Estimators),
    ("estimator", "", Need::Estimators),
    ("failover", "application failover testing", Need::UnreadyPods),
    ("failover", "purgeMode directly", Need::UnreadyPods),
    ("federatedhpa", "", Need::RealPods),
    ("federatedresourcequota", "join new cluster", Need::Cluster),
    ("karmadactl", "join/unjoin testing", Need::Cluster),
    ("karmadactl", "cordon/uncordon testing", Need::Cluster),
    ("karmadactl", "taint testing", Need::Cluster),
    ("karmadactl", "register testing", Need::Agent),
    ("karmadactl", "exec testing", Need::RealPods),
    ("karmadactl", "top testing", Need::RealPods),
    ("karmadactl", "should get logs", Need::RealPods),
    ("mcs", "Connectivity testing", Need::RealPods),
    ("metrics", "", Need::Host),
    ("namespace", "when joining new cluster", Need::Cluster),
    ("rescheduling", "when join or unJoin cluster", Need::Cluster),
    ("resourceinterpreter", "interpreter webhook testing", Need::Interpreter),
    ("search", "member clusters joined", Need::Cluster),
    ("search", "", Need::KindObjects),
];

/// File, part of the full name, why it fails. An empty part is the whole file.
const KNOWN: &[(&str, &str, &str)] = &[
    (
        "estimator",
        "exceeding resource quota limits",
        "v1.17.1 calls a lack of room SchedulerError; ours Unschedulable, as later versions do",
    ),
    ("metrics", "", "looks for Karmada's components in a host cluster; ours is one process"),
];

/// A spec, as reports name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spec {
    /// Without `_test.go`.
    pub(super) file: String,
    /// Texts of all containers and of the spec itself.
    pub(super) name: String,
}

/// Where a spec is expected to pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Passes,
    /// Only on members with real pods.
    PassesOnPods,
    Fails(&'static str),
}

impl Spec {
    pub(super) fn need(&self) -> Need {
        NEEDS.iter().find(|(file, part, _)| self.is(file, part)).map_or(Need::Nothing, |(.., need)| *need)
    }

    pub(super) fn expected(&self) -> Expected {
        match KNOWN.iter().find(|(file, part, _)| self.is(file, part)) {
            Some((.., reason)) => Expected::Fails(reason),
            None if self.need().real_pods() => Expected::PassesOnPods,
            None => Expected::Passes,
        }
    }

    fn is(&self, file: &str, part: &str) -> bool {
        self.file == file && self.name.contains(part)
    }
}

/// Returns what ginkgo is told so that it leaves out what fails for a known reason and, unless `pods`, what needs real pods.
pub(super) fn left_out(known: bool, pods: bool) -> Vec<String> {
    let known = KNOWN.iter().filter(|_| !known).map(|(file, part, _)| (*file, *part));
    let needs_pods = NEEDS.iter().filter(|(.., need)| !pods && need.real_pods());
    let all = known.chain(needs_pods.map(|(file, part, _)| (*file, *part)));
    all.map(|(file, part)| {
        if part.is_empty() {
            format!("--skip-file=/{file}_test.go")
        } else {
            format!("--skip={}", quote(part))
        }
    })
    .collect()
}

/// Quotes a text for Go's regular expressions.
fn quote(text: &str) -> String {
    let mut quoted = String::new();
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$".contains(letter) {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted
}

#[cfg(test)]
pub(super) fn all_parts() -> impl Iterator<Item = (&'static str, &'static str)> {
    let needs = NEEDS.iter().map(|(file, part, _)| (*file, *part));
    needs.chain(KNOWN.iter().map(|(file, part, _)| (*file, *part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(file: &str, name: &str) -> Spec {
        Spec { file: file.to_string(), name: name.to_string() }
    }

    #[test]
    fn a_spec_that_no_line_names_needs_nothing_and_passes() {
        let plain = spec("namespace", "namespace should be propagated to member clusters");
        assert_eq!((plain.need(), plain.expected()), (Need::Nothing, Expected::Passes));
        let logs = spec("karmadactl", "Karmadactl logs testing should get logs of the existing pod");
        assert_eq!((logs.need(), logs.expected()), (Need::RealPods, Expected::PassesOnPods));
    }

    #[test]
    fn a_line_counts_for_its_file_only() {
        assert_eq!(spec("resource", "join/unjoin testing").need(), Need::Nothing);
    }

    #[test]
    fn names_are_quoted_and_whole_files_are_named_from_their_slash_on() {
        assert_eq!(quote("a (b) [c]"), r"a \(b\) \[c\]");
        let told = left_out(false, false);
        assert!(told.contains(&"--skip-file=/metrics_test.go".to_string()), "{told:?}");
        assert!(told.contains(&"--skip=should get logs".to_string()), "{told:?}");
        assert!(told.contains(&"--skip=register testing".to_string()), "{told:?}");
        assert!(!left_out(true, true).iter().any(|each| each.contains("logs")));
    }
}
