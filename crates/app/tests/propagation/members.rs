//! Where members come from: real clusters that tests share, or simulated ones of a test's own. The scenarios do not know
//! which they have.

use std::path::PathBuf;

use clusters::toolchain::{MEMBER_RECIPES, Toolchain};
use testkit::check::AUDIT_POLICY;

/// Nodes of each simulated member: as many as a real one has.
const NODES: usize = 3;

/// Members lent to a test, until it ends.
pub(crate) enum Members {
    Real(clusters::Members),
    Simulated {
        fleet: sim::Fleet,
        /// Holds the kubeconfigs.
        _dir: tempfile::TempDir,
    },
}

/// What a test does with real members. Simulated ones are always its own.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    /// Uses them beside other tests.
    Shared,
    /// Does them harm.
    Exclusive,
}

impl Members {
    /// Returns real members; none where there is no Go toolchain, after saying so.
    pub(crate) async fn real(access: Access, count: usize) -> Option<Self> {
        let lent = match access {
            Access::Shared => clusters::shared(count).await,
            Access::Exclusive => clusters::exclusive(count).await,
        };
        lent.map(Self::Real)
    }

    pub(crate) async fn simulated(_: Access, count: usize) -> Option<Self> {
        Some(Self::simulate(sim::Options::new(count, NODES)).await)
    }

    /// Returns simulated members, of which some have both families of addresses.
    pub(crate) async fn of_families(dual_stack: &[bool]) -> Self {
        let mut options = sim::Options::new(dual_stack.len(), NODES);
        for (member, dual_stack) in options.members.iter_mut().zip(dual_stack) {
            member.dual_stack = *dual_stack;
        }
        Self::simulate(options).await
    }

    async fn simulate(mut options: sim::Options) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        options.data_dir = Some(dir.path().join("members"));
        let policy = dir.path().join("audit-policy.json");
        std::fs::write(&policy, AUDIT_POLICY).expect("a policy");
        options.audit_policy = Some(policy);
        let fleet = sim::start(options).await.expect("simulated members");
        Self::Simulated { fleet, _dir: dir }
    }

    /// Returns where the members are.
    pub(crate) fn places(&self) -> Vec<Place> {
        match self {
            Self::Real(members) => members.iter().map(Place::real).collect(),
            Self::Simulated { fleet, .. } => {
                let place = |member: &sim::Member| Place {
                    kubeconfig: member.kubeconfig_path.clone().expect("a member with files has a kubeconfig"),
                    audit_log: member.audit_log.clone(),
                };
                fleet.members().iter().map(place).collect()
            }
        }
    }

    /// Lets nobody reach a member any more.
    pub(crate) async fn cut_off(&self, index: usize) {
        match self {
            Self::Real(members) => members[index].cut_off().await.expect("cut off"),
            Self::Simulated { fleet, .. } => {
                let name = &fleet.members()[index].name;
                fleet.trouble(name, &sim::Trouble::ApiDown).expect("cut off");
            }
        }
    }

    /// Has pods with these labels crash; simulated members only.
    pub(crate) fn fail_pods(&self, index: usize, labels: &str) {
        let Self::Simulated { fleet, .. } = self else { panic!("only simulated pods crash on demand") };
        let trouble = sim::Trouble::PodsFailing(labels.to_owned());
        fleet.trouble(&fleet.members()[index].name, &trouble).expect("pods that crash");
    }

    pub(crate) async fn heal(&self, index: usize) {
        match self {
            Self::Real(members) => members[index].heal().await.expect("healed"),
            Self::Simulated { fleet, .. } => {
                fleet.heal_all(&fleet.members()[index].name).expect("healed");
            }
        }
    }
}

/// Where a member is reached, and where what was done to it is written down.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) audit_log: Option<PathBuf>,
}

impl Place {
    pub(crate) fn real(cluster: &clusters::Cluster) -> Self {
        Self { kubeconfig: cluster.kubeconfig().to_path_buf(), audit_log: Some(cluster.audit_log()) }
    }
}

/// Whether kube-apiserver can be had; says so if not.
pub(crate) fn have_kubernetes() -> bool {
    let can = Toolchain::from_env().is_ok_and(|toolchain| toolchain.can_provide(&MEMBER_RECIPES));
    if !can {
        clusters::left_out("a kube-apiserver, and there is no Go toolchain to build it with");
    }
    can
}

/// Makes two tests of every scenario of a file: `real::…` and `simulated::…`, with the same assertions.
macro_rules! on_real_and_simulated_members {
    ($($scenario:ident($access:ident, $count:literal);)*) => {
        mod real {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                use crate::members::{Access, Members};
                testkit::install_tls();
                let Some(members) = Members::real(Access::$access, $count).await else { return };
                super::$scenario(members).await;
            })*
        }
        mod simulated {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                use crate::members::{Access, Members};
                testkit::install_tls();
                let Some(members) = Members::simulated(Access::$access, $count).await else { return };
                super::$scenario(members).await;
            })*
        }
    };
}
pub(crate) use on_real_and_simulated_members;
