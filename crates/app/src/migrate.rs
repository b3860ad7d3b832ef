//! `karmada migrate`: from a running Karmada to ours, and back.
//!
//! In: the kubeconfig of a control plane, and a target: a data directory (or etcd) of ours, or the kubeconfig of another control
//! plane. Out: a report of what would be written to the target and to members; then the copy, if nothing prevents it.
//!
//! Copies of objects in members contain the uid of their template. Our store is filled by a server without listeners and
//! controllers inside this process, which keeps uids (`takeover::adopt`); members then see no change. Another control plane keeps
//! the uids of its existing objects, and assigns new ones to new objects; the report lists the consequences.

pub(crate) mod marker;

mod identity;
mod plan;
mod rehearsal;
mod report;
mod scope;
mod scratch;
mod snapshot;
mod takeover;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use apimachinery::object::Object as _;
use clap::{Args, ValueEnum};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, ListParams};

use self::plan::{Identity, Plan, Step};
use self::rehearsal::Acting;
use self::report::Report;
use self::scratch::Scratch;
use self::snapshot::Snapshot;
use crate::controllers::Chosen;
use crate::etcd::{EtcdArguments, StoreKind};
use crate::plane::{Plane, SEARCH_CACHE, Setup};

/// Copy a running Karmada into a control plane of ours, or back, so that members notice nothing.
///
/// Everything is read, compared with the target and rehearsed first: our controllers work on a copy in memory, with the real members
/// before them, and what they would write there is held back and told. With --dry-run this is all. Otherwise the copy follows, unless
/// the controllers of one side still run, something in the target would be overwritten, or something in a member would be written.
///
/// An interrupted copy is continued by the same command; until it is complete, no controllers start on it.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Kubeconfig of the control plane to copy.
    #[arg(long, value_name = "KUBECONFIG")]
    from: PathBuf,
    /// Context in that kubeconfig; by default the current one.
    #[arg(long, value_name = "NAME")]
    from_context: Option<String>,
    /// Kubeconfig of the control plane to fill. Without it a data directory is filled, on which no server may run.
    #[arg(long, value_name = "KUBECONFIG", conflicts_with_all = ["data_dir", "store"])]
    to: Option<PathBuf>,
    /// Context in that kubeconfig; by default the current one.
    #[arg(long, value_name = "NAME", requires = "to")]
    to_context: Option<String>,
    /// The data directory to fill; `karmada server` is started on it afterwards.
    #[arg(long, value_name = "DIR", default_value = "karmada-data", env = "KARMADA_DATA_DIR")]
    data_dir: PathBuf,
    /// Where the objects of the target are stored.
    #[arg(long, value_enum, default_value_t = StoreKind::Embedded)]
    store: StoreKind,
    #[command(flatten)]
    etcd: EtcdArguments,
    /// Report what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Overwrite what the target has under the same names with another content.
    #[arg(long)]
    force: bool,
    /// Remove from the target what the source does not have.
    #[arg(long, requires = "to")]
    prune: bool,
    /// Copy although the rehearsal wrote to members, or some members could not take part in it.
    #[arg(long)]
    accept_member_writes: bool,
    /// Do not rehearse: nothing is known about members then, and --accept-member-writes is needed.
    #[arg(long)]
    no_rehearsal: bool,
    /// How the report is printed.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    chosen: Chosen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// The target.
enum Target {
    /// A server of ours without controllers, in this process; no other process uses its store.
    Ours(Box<Plane>),
    Other,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if arguments.no_rehearsal && !arguments.dry_run && !arguments.accept_member_writes {
        bail!(
            "--no-rehearsal needs --accept-member-writes: nobody has looked what would be written to members"
        );
    }
    let (source_client, source_url) = client(&arguments.from, arguments.from_context.as_deref()).await?;
    tracing::info!("reading {source_url}");
    let source = Snapshot::take(&source_client, None)
        .await
        .with_context(|| format!("cannot read the control plane at {source_url}"))?;
    let etcd = arguments.etcd.clone().options(arguments.store)?;
    // It is dropped when the report is done.
    let mut scratch = None;
    let (target, target_client, target_name) = match &arguments.to {
        Some(kubeconfig) => {
            let (client, url) = client(kubeconfig, arguments.to_context.as_deref()).await?;
            if url == source_url {
                bail!("--from and --to lead to the same control plane, {url}");
            }
            (Target::Other, client, url)
        }
        None => {
            let place = match &etcd {
                Some(etcd) => format!("etcd at {} under {}", etcd.endpoints.join(","), etcd.prefix),
                None => format!("data directory {}", arguments.data_dir.display()),
            };
            let plane = if arguments.dry_run {
                // A server always writes to its store, if only its own objects, so a report uses a separate store.
                scratch = Scratch::of(&arguments.data_dir, etcd).await?;
                let copy = scratch.as_ref().map(|copy| copy.dir().to_owned());
                open(copy, None).await?
            } else {
                open(Some(arguments.data_dir.clone()), etcd).await?
            };
            let client = plane.client.clone();
            (Target::Ours(Box::new(plane)), client, place)
        }
    };
    let outcome =
        go(&arguments, (&source_client, &source_url, &source), &target, (&target_client, &target_name)).await;
    if let Target::Ours(plane) = target {
        plane.stop().await;
    }
    drop(scratch);
    outcome
}

/// Starts a server on the target's store, or in memory, without controllers.
async fn open(data_dir: Option<PathBuf>, etcd: Option<store::EtcdOptions>) -> anyhow::Result<Plane> {
    let server = apiserver::Options {
        data_dir,
        etcd,
        // Owners are written before the objects that they own, but nothing should depend on that order.
        collect_garbage: false,
        ..apiserver::Options::default()
    };
    let setup = Setup {
        server,
        rules: admission::Settings::default(),
        chosen: Chosen::by(&["--controllers", ""]),
        search_cache_bytes: SEARCH_CACHE,
        oldest_tls: member::OldestTls::V1_3,
    };
    Plane::start(setup).await.context("cannot open the target; hint: no server may run on its data directory")
}

async fn go(
    arguments: &Arguments,
    (source_client, source_url, source): (&Client, &str, &Snapshot),
    target: &Target,
    (target_client, target_name): (&Client, &str),
) -> anyhow::Result<()> {
    let there = Snapshot::take(target_client, Some(source))
        .await
        .with_context(|| format!("cannot read the control plane at {target_name}"))?;
    let identity = match target {
        Target::Ours(_) => Identity::Kept,
        Target::Other => Identity::OfTarget,
    };
    let plan = plan::plan(source, &there, identity);
    let rehearsal = if arguments.no_rehearsal || !plan.unknown.is_empty() {
        None
    } else {
        let at_least = arguments.chosen.status_period().mul_f32(1.5).as_secs();
        tracing::info!("rehearsing with {} objects; this takes at least {at_least} s", source.items.len());
        let new_uid = || uuid::Uuid::new_v4().to_string();
        let after = plan::outcome(&plan, &there, identity, arguments.prune, new_uid);
        let acting = match target {
            Target::Ours(_) => Acting::Ours,
            Target::Other if is_ours(target_client).await? => Acting::Ours,
            Target::Other => Acting::Original,
        };
        Some(rehearsal::rehearse(after, &arguments.chosen, acting).await?)
    };
    let report = Report {
        from: source_url,
        to: target_name,
        source,
        plan: &plan,
        rehearsal: rehearsal.as_ref(),
        prune: arguments.prune,
        pulled: pulled(source),
    };
    let mut out = std::io::stdout().lock();
    match arguments.output {
        Output::Text => write!(out, "{}", report.text())?,
        Output::Json => writeln!(out, "{:#}", report.json())?,
    }
    drop(out);
    obstacles(arguments, &plan, rehearsal.as_ref())?;
    if arguments.dry_run {
        return Ok(());
    }
    for (client, side) in [(source_client, "source"), (target_client, "target")] {
        nobody_acts(client, side).await?;
    }
    marker::set(target_client, marker::State::Copying, source_url).await?;
    match target {
        Target::Ours(plane) => {
            let changed = plan.planned.iter().filter(|planned| planned.step != Step::Nothing);
            takeover::adopt(plane.server(), changed.map(|planned| planned.item.clone()).collect()).await?;
        }
        Target::Other => takeover::write(target_client, &plan, &there, arguments.prune).await?,
    }
    marker::set(target_client, marker::State::Complete, source_url).await?;
    tracing::info!(
        "copied; the controllers of the target may start now, those of the source must not run again"
    );
    Ok(())
}

/// Returns whether a server runs our program, according to its version. Behind any other server, the original's controllers may
/// act.
async fn is_ours(client: &Client) -> anyhow::Result<bool> {
    let version = client.apiserver_version().await.context("the target does not answer")?;
    Ok(version.git_version.ends_with("+karmada-rs"))
}

/// Refuses what must not happen without a flag.
fn obstacles(
    arguments: &Arguments,
    plan: &Plan,
    rehearsal: Option<&rehearsal::Rehearsal>,
) -> anyhow::Result<()> {
    if let Some(kind) = plan.unknown.keys().next() {
        let others = plan.unknown.len().saturating_sub(1);
        bail!(
            "the target does not know {kind} and {others} more of the source's kinds: the source is of another version of Karmada \
             or Kubernetes than is known here; nothing was written"
        );
    }
    if !plan.conflicts.is_empty() && !arguments.force {
        bail!(
            "the target has other content under {} of the source's names; nothing was written; hint: --force overwrites it",
            plan.conflicts.len()
        );
    }
    let Some(rehearsal) = rehearsal else { return Ok(()) };
    if arguments.accept_member_writes {
        return Ok(());
    }
    if !rehearsal.touches.is_empty() || !rehearsal.complete {
        bail!(
            "{} objects would be written in members; nothing was written; hint: --accept-member-writes goes on all the same",
            rehearsal.touches.len()
        );
    }
    if !rehearsal.absent.is_empty() {
        bail!(
            "these members could not be asked: {}; nothing was written; hint: --accept-member-writes goes on without them",
            rehearsal.absent.join(", ")
        );
    }
    Ok(())
}

/// Refuses a control plane whose controllers act: their writes during the copy would be lost or duplicated.
async fn nobody_acts(client: &Client, side: &str) -> anyhow::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), marker::NAMESPACE);
    let leases = leases.list(&ListParams::default()).await;
    let leases = leases.with_context(|| format!("cannot see whether the controllers of the {side} act"))?;
    let now = jiff::Timestamp::now();
    for lease in leases {
        let Some(spec) = lease.spec else { continue };
        let name = lease.metadata.name.unwrap_or_default();
        let acts = ["karmada-controller-manager", "karmada-scheduler", "karmada-descheduler"];
        let holder = spec.holder_identity.unwrap_or_default();
        let (Some(renewed), false) = (spec.renew_time, holder.is_empty()) else { continue };
        let lasts =
            Duration::from_secs(spec.lease_duration_seconds.unwrap_or(15).max(0).unsigned_abs().into());
        let silent = now.duration_since(renewed.0);
        let fresh = silent.unsigned_abs() < lasts || silent.is_negative();
        if acts.contains(&name.as_str()) && fresh {
            bail!(
                "{name} of the {side} still acts: {holder} renewed its Lease {} s ago; nothing was written; hint: stop the controllers \
                 of both sides first, then run this again after {} s",
                silent.as_secs(),
                lasts.as_secs()
            );
        }
    }
    Ok(())
}

/// Returns the clusters in pull mode: their agents have credentials and an address of the source.
fn pulled(source: &Snapshot) -> Vec<String> {
    let clusters = source.items.values().filter(|item| item.resource.is("cluster.karmada.io", "clusters"));
    let pulled = clusters.filter(|item| item.object["spec"]["syncMode"] == "Pull");
    pulled.map(|item| item.object.name().to_owned()).collect()
}

async fn client(kubeconfig: &std::path::Path, context: Option<&str>) -> anyhow::Result<(Client, String)> {
    let config = cli::config(Some(kubeconfig), context).await?;
    let url = config.cluster_url.to_string();
    let client =
        cli::client(config).with_context(|| format!("cannot make a client from {}", kubeconfig.display()))?;
    Ok((client, url))
}
