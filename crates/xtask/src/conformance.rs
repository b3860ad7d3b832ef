//! `cargo xtask conformance`: Kubernetes' own end-to-end suite against our API server.
//!
//! Builds what is missing (the suite, `kubectl`, our binary), starts one simulated member, which is our API server with
//! simulated nodes and controllers, runs the specs that need no container, and prints what passed. Specs that are known to
//! fail are listed in [`KNOWN`] and are counted, not left out: the run fails for a failure that is not listed and for
//! a listed one that is gone. `docs/compatibility.md` gives the reasons.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use clusters::toolchain::{KUBERNETES, KUBERNETES_E2E, Toolchain};
use serde_json::Value;

use crate::workspace::{Workspace, cargo};

/// What is run: regular expressions on the full names of specs, none of which needs more than an API server and
/// controllers. Specs that look into containers are taken out by [`NEEDS_CONTAINERS`].
const WANTED: &[&str] = &[
    r"\[sig-api-machinery\] Watchers",
    r"\[sig-api-machinery\] Servers with support for API chunking",
    r"\[sig-api-machinery\] Servers with support for Table transformation",
    r"\[sig-api-machinery\] AggregatedDiscovery",
    r"\[sig-api-machinery\] Discovery",
    r"\[sig-api-machinery\] server version",
    r"\[sig-api-machinery\] OpenAPIV3",
    r"\[sig-api-machinery\] CustomResource(Definition|PublishOpenAPI|ValidationRules)",
    r"\[sig-api-machinery\] CRDValidationRatcheting",
    r"\[sig-api-machinery\] FieldValidation",
    r"\[sig-api-machinery\] ServerSideApply",
    r"\[sig-api-machinery\] (Ordered)?Namespace(s|Deletion)",
    r"\[sig-api-machinery\] Garbage collector",
    r"\[sig-api-machinery\] ValidatingAdmissionPolicy",
    r"\[sig-api-machinery\] MutatingAdmissionPolicy",
    r"\[sig-api-machinery\] API priority and fairness should support",
    r"\[sig-api-machinery\] ResourceQuota",
    r"\[sig-api-machinery\] Server request timeout",
    r"\[sig-api-machinery\] API Streaming",
    r"\[sig-api-machinery\] client-go should negotiate",
    r"\[sig-api-machinery\] Generated clientset",
    r"\[sig-api-machinery\] health handlers",
    r"\[sig-auth\] Certificates API",
    r"\[sig-auth\] SubjectReview",
    r"\[sig-auth\] SelfSubjectReview",
    r"\[sig-auth\] ServiceAccounts should (run through|update|guarantee|create a serviceAccountToken)",
    r"\[sig-architecture\] Conformance Tests should have at least two untainted nodes",
    r"\[sig-apps\] CronJob should support CronJob API operations",
    r"\[sig-apps\] ControllerRevision",
    r"\[sig-apps\] (Deployment|ReplicaSet|StatefulSet|Daemon set|Job|ReplicationController|DisruptionController).*([Ss]tatus|[Ss]cale subresource|API operations|lifecycle|list, patch and delete)",
    r"\[sig-network\] Ingress API",
    r"\[sig-network\] IngressClass API",
    r"\[sig-network\] API Server should",
    r"\[sig-network\] EndpointSlice should (support creating|create and delete|have Endpoints)",
    r"\[sig-network\] EndpointsController should create and delete",
    r"\[sig-network\] Endpoints should test the lifecycle",
    r"\[sig-network\] ServiceCIDR and IPAddress API",
    r"\[sig-network\] Services should (complete a service status lifecycle|delete a collection of services|find a service from listing)",
    r"\[sig-network\] Netpol API",
    r"\[sig-node\] Lease",
    r"\[sig-node\] RuntimeClass should support RuntimeClasses API",
    r"\[sig-node\] ConfigMap should (run through|fail to create)",
    r"\[sig-node\] Secrets should (patch|fail to create)",
    r"\[sig-node\] PodTemplates",
    r"\[sig-node\] NodeLease",
    r"\[sig-storage\] (CSINodes|CSIDrivers?|StorageClasses|VolumeAttachment|CSIStorageCapacity|VolumeAttributesClass)",
    r"\[sig-storage\] PersistentVolumes.*should (run through the lifecycle|apply changes to a pv/pvc status)",
    r"\[sig-storage\] (ConfigMap|Secrets) should be immutable",
    r"\[sig-scheduling\] .*PriorityClass endpoints",
    r"\[sig-scheduling\] LimitRange",
    r"\[sig-instrumentation\] Events",
    r"\[sig-cli\] Kubectl client Kubectl (api-versions|cluster-info|version|create quota|describe|label|patch|server-side dry-run|validation)",
    r"\[sig-cli\] Kubectl client (kubectl|Kubectl) (explain|diff|apply|get componentstatuses|events)",
    r"\[sig-cli\] Kubectl client Proxy server",
];

/// These start a program in a container and talk to it or count on its not ending, or take the cluster apart.
const NEEDS_CONTAINERS: &[&str] = &[
    r"\[Disruptive\]",
    r"should apply changes to a job status",
    r"Job should update the status ready field",
    r"OpenAPI V3 for Aggregated APIServer",
    r"\[Feature:[A-Za-z]*Proxy[A-Za-z]*\]",
    r"\[sig-api-machinery\] AdmissionWebhook",
    r"\[sig-api-machinery\] CustomResourceConversionWebhook",
    r"\[sig-api-machinery\] Aggregator",
    r"\[Alpha\]",
    r"\[Flaky\]",
    r"\[sig-api-machinery\] CustomResourceFieldSelectors",
    r"FeatureGate:[A-Za-z0-9]*\] \[Alpha\]",
];

/// Specs that fail, as parts of their names, and why; `docs/compatibility.md` lists them too.
const KNOWN: &[(&str, &str)] = &[
    (
        "API Server should have Endpoints and EndpointSlices pointing to API Server",
        "the member listens on the loopback interface, whose addresses Endpoints must not hold",
    ),
    ("health handlers should contain necessary checks", "names the start-up hooks inside kube-apiserver"),
    ("capture the life of a ResourceClaim", "simulated members do not count the devices of claims"),
];

const START_DEADLINE: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Specs to run instead, as a regular expression on their names.
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// Processes that run specs side by side.
    #[arg(long, value_name = "N", default_value_t = 4)]
    processes: usize,
    /// Say what would be run, and end.
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::load()?;
    let toolchain = Toolchain::from_env()?;
    toolchain.ensure(&[&KUBERNETES_E2E])?;
    let kubectl = toolchain.ensure_program(&KUBERNETES, "kubectl")?;
    let built = cargo()
        .args(["build", "--workspace", "--bin", "karmada"])
        .status()
        .context("cannot run cargo build")?;
    if !built.success() {
        bail!("the binary does not compile");
    }
    let lab = workspace.target.join("conformance");
    // What an earlier run left would be taken for this one's.
    let _ = fs::remove_dir_all(&lab);
    fs::create_dir_all(&lab).context("cannot make a folder for the run")?;
    let member = Member::start(&workspace.program("karmada"), &lab)?;
    specs(arguments, &toolchain, &lab, &kubectl, &member.kubeconfig)?;
    if arguments.list {
        return Ok(());
    }
    report(&lab, arguments.focus.is_some())
}

/// Runs the suite; whether specs failed is for the report to say.
fn specs(
    arguments: &Arguments,
    toolchain: &Toolchain,
    lab: &Path,
    kubectl: &Path,
    kubeconfig: &Path,
) -> Result<()> {
    // The program wants the suite's name to end in `.test`.
    let suite = lab.join("e2e.test");
    let original = toolchain.path(&KUBERNETES_E2E.program("kubernetes-e2e"));
    fs::hard_link(&original, &suite)
        .or_else(|_| fs::copy(&original, &suite).map(|_| ()))
        .context("cannot copy the suite")?;
    let log = lab.join("suite.log");
    let file = fs::File::create(&log).context("cannot make a log")?;
    let mut command = Command::new(toolchain.path(&KUBERNETES_E2E.program("kubernetes-ginkgo")));
    command
        .args(["-v", "--no-color", "--timeout=3h", "--json-report=report.json"])
        .arg(format!("--procs={}", arguments.processes))
        .arg(format!("--output-dir={}", lab.display()));
    match &arguments.focus {
        Some(focus) => {
            command.arg(format!("--focus={focus}"));
        }
        None => {
            command.args(WANTED.iter().map(|spec| format!("--focus={spec}")));
            command.args(NEEDS_CONTAINERS.iter().map(|spec| format!("--skip={spec}")));
        }
    }
    if arguments.list {
        command.arg("--dry-run");
    }
    println!("running the suite; its log is {}", log.display());
    command
        .arg(&suite)
        .args(["--", "--provider=skeleton", "--allowed-not-ready-nodes=-1", "--minStartupPods=-1"])
        .args(["--num-nodes=2", "--dump-logs-on-failure=false", "--disable-log-dump=true"])
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--kubectl-path={}", kubectl.display()))
        .arg(format!("--report-dir={}", lab.display()))
        .env("KUBECONFIG", kubeconfig)
        .current_dir(lab)
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("cannot open the log")?)
        .stderr(file)
        .status()
        .context("cannot run ginkgo")?;
    Ok(())
}

/// Prints what passed and what did not, writes the same as a page, and fails for surprises.
fn report(lab: &Path, partial: bool) -> Result<()> {
    let text = fs::read_to_string(lab.join("report.json"))
        .context("the suite wrote no report: it ended before the first spec; see its log")?;
    let report: Value = serde_json::from_str(&text).context("the report is not readable")?;
    let specs: Vec<Spec> =
        report[0]["SpecReports"].as_array().into_iter().flatten().filter_map(Spec::read).collect();
    let mut page =
        String::from("| Part of the suite | Passed | Failed | Skipped themselves |\n|---|---|---|---|\n");
    let mut parts: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let mut sums = [0; 3];
    for spec in &specs {
        let column = match spec.verdict {
            Verdict::Passed => 0,
            Verdict::Failed => 1,
            Verdict::Skipped => 2,
        };
        parts.entry(spec.part.as_str()).or_default()[column] += 1;
        sums[column] += 1;
    }
    for (part, [passed, failed, skipped]) in &parts {
        writeln!(page, "| {part} | {passed} | {failed} | {skipped} |")?;
    }
    let [passed, failed, skipped] = sums;
    writeln!(page, "| **together** | **{passed}** | **{failed}** | **{skipped}** |")?;
    for (title, wanted) in [("failed", Verdict::Failed), ("skipped themselves", Verdict::Skipped)] {
        writeln!(page, "\n{title}:")?;
        for spec in specs.iter().filter(|spec| spec.verdict == wanted) {
            let reason = known(&spec.name).unwrap_or(&spec.reason);
            writeln!(page, "- {}: {reason}", spec.name)?;
        }
    }
    println!("\n{page}");
    fs::write(lab.join("summary.md"), &page).context("cannot write the summary")?;
    let surprises =
        specs.iter().filter(|spec| spec.verdict == Verdict::Failed && known(&spec.name).is_none());
    let surprises: Vec<&str> = surprises.map(|spec| spec.name.as_str()).collect();
    let gone: Vec<&str> = KNOWN
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| {
            !partial && !specs.iter().any(|spec| spec.verdict == Verdict::Failed && spec.name.contains(name))
        })
        .collect();
    if passed == 0 {
        bail!("no spec passed");
    }
    if !surprises.is_empty() || !gone.is_empty() {
        bail!("failures that are not known: {surprises:#?}; known ones that are gone: {gone:#?}");
    }
    Ok(())
}

/// Returns why a spec is known to fail.
fn known(name: &str) -> Option<&'static str> {
    KNOWN.iter().find(|(part, _)| name.contains(part)).map(|(_, reason)| *reason)
}

/// One spec that was run.
struct Spec {
    /// What the suite calls the group it belongs to.
    part: String,
    name: String,
    verdict: Verdict,
    /// First line of its complaint.
    reason: String,
}

#[derive(PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

impl Spec {
    /// Reads a spec of ginkgo's report; nothing for what was not to be run.
    fn read(spec: &Value) -> Option<Self> {
        if spec["LeafNodeType"] != "It" {
            return None;
        }
        let texts = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
        let mut texts: Vec<&str> = texts.filter_map(Value::as_str).collect();
        // Marks such as [Conformance] follow the group's name.
        let part = texts.first().map_or("", |part| part.split(" [").next().unwrap_or(part));
        let part = match part.split_once("] ") {
            Some(_) => part.to_string(),
            // The name itself begins with a mark.
            None => texts.first().copied().unwrap_or_default().to_string(),
        };
        texts.extend(spec["LeafNodeText"].as_str());
        let name = texts.join(" ");
        let message = spec["Failure"]["Message"].as_str().unwrap_or_default();
        let reason = message.lines().next().unwrap_or_default().to_string();
        let verdict = match spec["State"].as_str()? {
            "passed" => Verdict::Passed,
            // Without a reason it was not among the wanted ones.
            "skipped" if reason.is_empty() => return None,
            "skipped" => Verdict::Skipped,
            "pending" => return None,
            _ => Verdict::Failed,
        };
        Some(Self { part, name, verdict, reason })
    }
}

/// A simulated member, ended when dropped.
struct Member {
    child: Child,
    kubeconfig: PathBuf,
}

impl Member {
    fn start(program: &Path, lab: &Path) -> Result<Self> {
        let (data, log) = (lab.join("data"), lab.join("member.log"));
        let child = Command::new(program)
            .args(["sim", "--clusters", "1", "--nodes", "2", "--data-dir"])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).context("cannot make a log")?)
            .spawn()
            .context("cannot start karmada sim")?;
        let mut member = Self { child, kubeconfig: data.join("member1.kubeconfig") };
        let started = Instant::now();
        while !member.kubeconfig.exists() {
            if let Some(status) = member.child.try_wait().context("cannot watch the member")? {
                bail!("karmada sim ended at once ({status}); see {}", log.display());
            }
            if started.elapsed() > START_DEADLINE {
                bail!("the member was not ready after {} s", START_DEADLINE.as_secs());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(member)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
