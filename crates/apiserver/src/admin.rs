//! Operations that only the owner of the data directory may use: a socket in the directory, which nobody else can open.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::server::Server;

/// Name of the socket in the data directory.
pub const SOCKET: &str = "admin.sock";
/// The pause after the system refused a connection.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use the socket {path}")]
    Socket { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Refused(String),
}

/// Listens on the socket until the server stops.
pub(crate) fn listen(server: &Arc<Server>, dir: &Path) -> Result<impl Future<Output = ()> + use<>, Error> {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join(SOCKET);
    let failed = |source| Error::Socket { path: path.clone(), source };
    // The store's lock guarantees that no other process serves this directory, so this file is a leftover.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(failed)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let server = server.clone();
    let socket = path.clone();
    Ok(async move {
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let server = server.clone();
                        tokio::spawn(async move { answer(&server, stream).await });
                    }
                    // Usually the process has run out of file descriptors. Tried at once, it would take a whole processor.
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection of the owner");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
                () = server.stop.cancelled() => break,
            }
        }
        let _ = std::fs::remove_file(&socket);
    })
}

async fn answer(server: &Arc<Server>, stream: UnixStream) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    if BufReader::new(read.take(8192)).read_line(&mut line).await.is_err() {
        return;
    }
    let reply = match line.trim_end().split_once(' ') {
        Some(("backup", to)) => {
            let (store, to) = (server.store.clone(), PathBuf::from(to));
            match tokio::task::spawn_blocking(move || store.backup(&to)).await {
                Ok(Ok(made)) => format!("ok {} entries at revision {}\n", made.entries, made.revision),
                Ok(Err(error)) => {
                    let mut text = error.to_string();
                    let mut source = std::error::Error::source(&error);
                    while let Some(cause) = source {
                        text = format!("{text}: {cause}");
                        source = cause.source();
                    }
                    format!("error {text}\n")
                }
                Err(_) => "error the backup was interrupted\n".to_owned(),
            }
        }
        _ => "error unknown request\n".to_owned(),
    };
    let _ = write.write_all(reply.as_bytes()).await;
}

/// Asks a running server for a backup; `None` if none is running.
pub async fn backup(socket: &Path, to: &Path) -> Result<Option<String>, Error> {
    let failed = |source| Error::Socket { path: socket.to_owned(), source };
    let mut stream = match UnixStream::connect(socket).await {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let to = std::path::absolute(to).map_err(failed)?;
    stream.write_all(format!("backup {}\n", to.display()).as_bytes()).await.map_err(failed)?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.map_err(failed)?;
    match reply.trim_end().split_once(' ') {
        Some(("ok", made)) => Ok(Some(made.to_owned())),
        Some((_, why)) => Err(Error::Refused(why.to_owned())),
        None => Err(Error::Refused("the server ended before the backup was complete".to_owned())),
    }
}
