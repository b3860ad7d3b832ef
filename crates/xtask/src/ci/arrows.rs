//! Which crates may depend on which. A new crate or a new arrow is a design decision: it is made here, and told in ARCHITECTURE.md.

use anyhow::{Context as _, Result, bail};

use super::Context;
use crate::workspace::{Crate, Kind, Workspace, cargo};

/// Every crate and what it may use of ours.
const ARROWS: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("apimachinery", &[]),
    ("native", &["apimachinery"]),
    ("admission", &["api", "apimachinery", "interpreter", "native", "propagation", "scheduler"]),
    ("interpreter", &["api", "apimachinery"]),
    // Overrides choose clusters as placements do, and completions are divided as replicas are: the scheduler and propagation
    // share this and do not know each other.
    ("placement", &["api", "apimachinery"]),
    ("scheduler", &["api", "apimachinery", "placement"]),
    ("propagation", &["api", "apimachinery", "interpreter", "placement"]),
    ("store", &[]),
    // What a cluster does with workloads: for whoever foresees it, imitates it or does it across clusters.
    ("workloads", &["apimachinery"]),
    // Knows Kubernetes, not federation, and nothing of the controllers: the two meet at the Kubernetes API.
    ("apiserver", &["apimachinery", "cel", "native", "store", "trust"]),
    ("cel", &["apimachinery"]),
    // Webhooks are called by the server and by the controllers, which do not know each other.
    ("trust", &[]),
    // The machinery of controllers. It knows the Kubernetes API and nothing of what any controller decides.
    ("runtime", &["api", "apimachinery"]),
    // Both ends of a connection that an agent keeps open. It knows requests and whose they are, not what they mean.
    ("tunnel", &["apimachinery", "runtime"]),
    // Also how a cluster becomes a member, which `join` and the discovery of clusters have in common.
    ("member", &["api", "apimachinery", "runtime", "tunnel"]),
    ("estimator", &["api", "apimachinery", "runtime"]),
    // Copies of members' objects, shown as one cluster. It knows how objects are listed and watched, not who may see them.
    ("fleet", &["api", "apimachinery", "member", "native", "placement", "runtime"]),
    (
        "controllers",
        &[
            "admission",
            "api",
            "apimachinery",
            "estimator",
            "interpreter",
            "member",
            "propagation",
            "runtime",
            "scheduler",
            "trust",
            "workloads",
        ],
    ),
    ("cli", &["admission", "api", "apimachinery", "interpreter", "member", "propagation", "scheduler"]),
    ("sim", &["api", "apimachinery", "apiserver", "native", "store", "workloads"]),
    (
        "app",
        &[
            "admission",
            "api",
            "apimachinery",
            "apiserver",
            "cli",
            "controllers",
            "estimator",
            "fleet",
            "interpreter",
            "member",
            "native",
            "propagation",
            "runtime",
            "scheduler",
            "sim",
            "store",
            "tunnel",
        ],
    ),
    (
        "testkit",
        &[
            "admission",
            "api",
            "apimachinery",
            "apiserver",
            "clusters",
            "controllers",
            "member",
            "native",
            "sim",
            "store",
        ],
    ),
    // Tries whatever reads bytes from outside; nobody uses it.
    (
        "fuzz",
        &[
            "admission",
            "api",
            "apimachinery",
            "apiserver",
            "cel",
            "fleet",
            "interpreter",
            "member",
            "native",
            "propagation",
            "runtime",
            "workloads",
        ],
    ),
    ("clusters", &[]),
    ("xtask", &["clusters"]),
];

/// Any crate may use these in its tests; the server, since it is what controllers are tried on without Go.
const TEST_TOOLS: &[&str] = &["apiserver", "cli", "clusters", "testkit"];

/// Crates without IO: values in, values out.
const PURE: &[&str] = &[
    "admission",
    "api",
    "apimachinery",
    "cel",
    "interpreter",
    "native",
    "placement",
    "propagation",
    "scheduler",
    "workloads",
];

/// Whoever has one of these, directly or not, can do IO. `kube-core` and `k8s-openapi` are only types.
const IMPURE: &[&str] =
    &["hyper", "hyper-util", "kube-client", "kube-runtime", "mio", "reqwest", "rustls", "socket2", "tokio"];

pub(super) fn check(context: &Context) -> Result<()> {
    let mut complaints = wrong_arrows(&context.workspace.crates);
    for pure in PURE {
        if context.workspace.crates.iter().any(|each| each.name == *pure) {
            complaints.extend(impurities(&context.workspace, pure)?);
        }
    }
    if complaints.is_empty() {
        return Ok(());
    }
    bail!("\n  {}", complaints.join("\n  "));
}

fn wrong_arrows(crates: &[Crate]) -> Vec<String> {
    let mut complaints = Vec::new();
    for each in crates {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == each.name) else {
            complaints
                .push(format!("{} is a new crate: say in xtask's arrows.rs what it may use", each.name));
            continue;
        };
        for (used, kind) in &each.uses {
            let tool = *kind == Kind::Dev && TEST_TOOLS.contains(&used.as_str());
            if !allowed.contains(&used.as_str()) && !tool {
                complaints.push(format!("{} must not depend on {used}", each.name));
            }
        }
    }
    complaints
}

/// Asks cargo for all that a crate brings along, with the features it has when built alone.
fn impurities(workspace: &Workspace, name: &str) -> Result<Vec<String>> {
    let output = cargo()
        .args(["tree", "--package", name, "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .current_dir(&workspace.root)
        .output()
        .context("cannot run cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree failed for {name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(impure(&String::from_utf8_lossy(&output.stdout))
        .into_iter()
        .map(|found| format!("{name} is a pure crate and must not bring {found} along"))
        .collect())
}

fn impure(tree: &str) -> Vec<&'static str> {
    let has = |wanted: &&&str| tree.lines().any(|line| line.split(' ').next() == Some(**wanted));
    IMPURE.iter().filter(has).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_with(name: &str, uses: &[(&str, Kind)]) -> Crate {
        let uses = uses.iter().map(|(name, kind)| (name.to_string(), *kind)).collect();
        Crate { name: name.to_string(), uses, benches: Vec::new() }
    }

    #[test]
    fn the_api_server_must_not_know_the_controllers() {
        let crates = [crate_with("apiserver", &[("controllers", Kind::Normal)])];
        assert_eq!(wrong_arrows(&crates), ["apiserver must not depend on controllers"]);
    }

    #[test]
    fn test_tools_are_for_tests_only() {
        assert_eq!(wrong_arrows(&[crate_with("store", &[("testkit", Kind::Dev)])]), Vec::<String>::new());
        assert_eq!(
            wrong_arrows(&[crate_with("store", &[("testkit", Kind::Normal)])]),
            ["store must not depend on testkit"]
        );
    }

    #[test]
    fn an_unknown_crate_is_noticed() {
        assert_eq!(wrong_arrows(&[crate_with("surprise", &[])]).len(), 1);
    }

    #[test]
    fn no_arrow_leads_back() {
        // A crate may only use crates whose own arrows do not reach it again.
        fn reaches(from: &str, to: &str) -> bool {
            let (_, uses) = ARROWS.iter().find(|(name, _)| *name == from).expect("every target is listed");
            uses.iter().any(|next| *next == to || reaches(next, to))
        }
        for (name, _) in ARROWS {
            assert!(!reaches(name, name), "{name} reaches itself");
        }
    }

    #[test]
    fn a_runtime_deep_in_the_tree_is_found() {
        assert_eq!(impure("api v0.1.0 (/w)\nserde v1.0.0\ntokio v1.54.1 (*)\n"), ["tokio"]);
        assert_eq!(impure("api v0.1.0 (/w)\ntokio-like v1.0.0\n"), Vec::<&str>::new());
    }
}
