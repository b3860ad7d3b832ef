//! The control socket of a fleet: `<dir>/control.sock`, one JSON line as question, one as answer.
//!
//! The fleet's own process and other processes (tests that share the clusters, the command line) use it alike, so there is
//! one way to do harm to a cluster. The socket lies in a folder that only its owner can enter.

use std::{
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot},
};

use crate::{error::Error, proxy::Network, state::ClusterState};

/// What can be asked of a cluster, or of the fleet when no cluster is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Command {
    /// Returns the cluster's state.
    Status,
    /// Freezes the API server.
    Pause,
    Resume,
    /// Ends the API server.
    Kill,
    /// Starts the API server again, or restarts it.
    Restart,
    Network(Network),
    ExpireCertificate,
    RenewCertificate,
    RestartEmpty,
    /// Keeps the data as they are now.
    Snapshot,
    /// Starts the whole cluster again with the data that were kept.
    RestartFromSnapshot,
    /// Ends the kubelet of a member with real pods.
    KillKubelet,
    RestartKubelet,
    /// Undoes every trouble but emptiness; does nothing to a cluster that has none.
    Recover,
    /// Ends the whole fleet.
    Down,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) cluster: Option<String>,
    pub(crate) command: Command,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Done,
    State(Box<ClusterState>),
    Failed(String),
}

/// A request with the way back.
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) reply: oneshot::Sender<Answer>,
}

pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// Sends a command and waits for its answer.
pub(crate) async fn send(dir: &Path, cluster: Option<&str>, command: Command) -> Result<Answer, Error> {
    let not_running = |_| Error::NotRunning { dir: dir.to_path_buf() };
    let stream = UnixStream::connect(path(dir)).await.map_err(not_running)?;
    let (reader, mut writer) = stream.into_split();
    let request = Request { cluster: cluster.map(ToString::to_string), command };
    let mut line = serde_json::to_vec(&request).expect("plain data is always JSON");
    line.push(b'\n');
    writer.write_all(&line).await.map_err(not_running)?;
    let mut answer = String::new();
    BufReader::new(reader).read_line(&mut answer).await.map_err(not_running)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Failed(reason)) => Err(Error::Refused {
            command: format!("{command:?}"),
            cluster: cluster.unwrap_or("the fleet").to_string(),
            reason,
        }),
        Ok(answer) => Ok(answer),
        // The fleet ended before it could answer.
        Err(_) => Err(Error::NotRunning { dir: dir.to_path_buf() }),
    }
}

/// Like [`send`], for places that cannot wait asynchronously. Nobody looks at the answer there; it is only waited for.
pub(crate) fn send_blocking(dir: &Path, cluster: &str, command: Command) -> io::Result<()> {
    let mut stream = std::os::unix::net::UnixStream::connect(path(dir))?;
    let request = Request { cluster: Some(cluster.to_string()), command };
    let mut line = serde_json::to_vec(&request).expect("plain data is always JSON");
    line.push(b'\n');
    stream.write_all(&line)?;
    stream.read_to_end(&mut Vec::new()).map(|_| ())
}

/// Takes requests until the receiver of `calls` is gone.
pub(crate) async fn listen(listener: UnixListener, calls: mpsc::Sender<Call>) {
    while let Ok((stream, _)) = listener.accept().await {
        let calls = calls.clone();
        tokio::spawn(async move {
            let (reader, mut writer) = stream.into_split();
            let mut line = String::new();
            if BufReader::new(reader).read_line(&mut line).await.is_err() {
                return;
            }
            let answer = match serde_json::from_str(&line) {
                Ok(request) => {
                    let (reply, answer) = oneshot::channel();
                    if calls.send(Call { request, reply }).await.is_err() {
                        return;
                    }
                    answer.await.unwrap_or_else(|_| Answer::Failed("the fleet is ending".to_string()))
                }
                Err(error) => Answer::Failed(format!("not understood: {error}")),
            };
            let mut line = serde_json::to_vec(&answer).expect("plain data is always JSON");
            line.push(b'\n');
            let _ = writer.write_all(&line).await;
        });
    }
}
