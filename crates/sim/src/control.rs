//! The owner's socket in the data directory: one JSON line as the request, one as the answer.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::fleet::{Error, Fleet};
use crate::trouble::{Load, Trouble, Troubles};

/// Name of the socket in the data directory.
pub const SOCKET: &str = "sim.sock";

/// The requests to a running fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    Break {
        member: String,
        troubles: Vec<Trouble>,
    },
    /// Without troubles: all of them.
    Heal {
        member: String,
        troubles: Vec<Trouble>,
    },
    Load {
        member: String,
        load: Load,
    },
    Status,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Done,
    /// Name, address and troubles of every member.
    Status(Vec<(String, String, Troubles)>),
    Failed(String),
}

/// Sends a request to the fleet that runs on a data directory. An error means that none does.
pub async fn ask(data_dir: &Path, request: &Request) -> std::io::Result<Answer> {
    let mut stream = UnixStream::connect(data_dir.join(SOCKET)).await?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Listens until it is stopped.
pub(crate) fn listen(
    fleet: &Fleet,
    path: &Path,
    stop: CancellationToken,
) -> std::io::Result<impl Future<Output = ()> + use<>> {
    use std::os::unix::fs::PermissionsExt;
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::AddrInUse,
            "another fleet runs on this directory",
        ));
    }
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    let (fleet, path) = (fleet.clone(), path.to_owned());
    Ok(async move {
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    if let Ok((stream, _)) = accepted {
                        let fleet = fleet.clone();
                        tokio::spawn(async move { answer(&fleet, stream).await });
                    }
                }
                () = stop.cancelled() => break,
            }
        }
        let _ = std::fs::remove_file(&path);
    })
}

async fn answer(fleet: &Fleet, stream: UnixStream) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    if BufReader::new(read.take(1 << 16)).read_line(&mut line).await.is_err() {
        return;
    }
    let answer = match serde_json::from_str(&line) {
        Ok(request) => perform(fleet, request).unwrap_or_else(|error| Answer::Failed(error.to_string())),
        Err(error) => Answer::Failed(format!("not understood: {error}")),
    };
    let line = serde_json::to_vec(&answer).unwrap_or_default();
    let _ = write.write_all(&line).await;
}

fn perform(fleet: &Fleet, request: Request) -> Result<Answer, Error> {
    match request {
        Request::Break { member, troubles } => {
            for trouble in &troubles {
                fleet.trouble(&member, trouble)?;
            }
        }
        Request::Heal { member, troubles } if troubles.is_empty() => fleet.heal_all(&member)?,
        Request::Heal { member, troubles } => {
            for trouble in &troubles {
                fleet.heal(&member, trouble)?;
            }
        }
        Request::Load { member, load } => fleet.load(&member, load)?,
        Request::Status => {
            let describe =
                |member: &crate::fleet::Member| (member.name.clone(), member.url.clone(), member.troubles());
            return Ok(Answer::Status(fleet.members().iter().map(describe).collect()));
        }
    }
    Ok(Answer::Done)
}
