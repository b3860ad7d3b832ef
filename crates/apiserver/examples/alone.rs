//! The API server alone: Kubernetes' kinds and what has to be built in, nothing of Karmada.
//!
//! `alone DIR [--token-auth-file=FILE] [--audit-log-path=FILE] [--audit-policy-file=FILE] [--collect-garbage=true]` keeps everything in
//! DIR, picks a free port, writes `DIR/alone.kubeconfig` when it is ready, and ends in order when told to. Kubernetes' own integration
//! tests run against it (`cargo xtask integration`), and it shows how little it takes to embed the server.

use std::path::PathBuf;

use apiserver::{Options, audit};
use tokio::signal::unix::{SignalKind, signal};

type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("say where to keep the data")?);
    // As kube-apiserver itself: who wants a garbage collector starts one beside it, and pods have priorities.
    let mut options =
        Options { data_dir: Some(dir), collect_garbage: false, pod_priority: true, ..Options::default() };
    let (mut log, mut policy) = (None, None);
    for argument in arguments {
        let (name, value) = argument.split_once('=').ok_or("options are written as --name=value")?;
        match name {
            "--token-auth-file" => options.token_file = Some(value.into()),
            "--audit-log-path" => log = Some(PathBuf::from(value)),
            "--audit-policy-file" => policy = Some(PathBuf::from(value)),
            "--collect-garbage" => options.collect_garbage = value == "true",
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let rotation = audit::Rotation { size: None, keep: 0 };
    options.audit = log.map(|path| audit::Options { policy, path, rotation, blocking: true });
    let handle = apiserver::start(options).await?;
    handle.write_kubeconfig("alone.kubeconfig")?;
    signal(SignalKind::terminate())?.recv().await;
    handle.stop().await;
    Ok(())
}
