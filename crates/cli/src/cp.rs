//! `cp`: copies files from and to containers of members, by `tar` on the other side.
//!
//! Data from a container is not trusted: nothing is written outside of the given place, and links that lead out of it are left
//! out.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use tokio::sync::mpsc;

use crate::clusters::Scope;
use crate::failure::misused;
use crate::output;
use crate::pods;
use crate::server::{Namespaced, Plane, Server};
use crate::session::{self, From, Sources, Target};

/// Copy files and directories to and from containers.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # From a pod of cluster member1
  karmadactl cp web-0:/var/log/web.log web.log -s members -C member1

  # To a container of a pod in another namespace
  karmadactl cp ./config shop/web-0:/etc/web -c app -s members -C member1")]
pub struct Arguments {
    /// [NAMESPACE/]POD:PATH, or a path here.
    #[arg(value_name = "FROM TO")]
    pub words: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub scope: Scope,
    /// Container name; by default the annotated one, or the first.
    #[arg(short, long, value_name = "CONTAINER", default_value = "")]
    pub container: String,
    /// Owner and rights of files are not kept.
    #[arg(long)]
    pub no_preserve: bool,
}

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
struct End {
    /// Namespace and pod; `None` if the file is local.
    pod: Option<(Option<String>, String)>,
    path: String,
}

impl End {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let Some((pod, path)) = text.split_once(':').filter(|(pod, _)| !pod.starts_with(['.', '/'])) else {
            return Ok(Self { pod: None, path: text.to_owned() });
        };
        if path.is_empty() {
            bail!("filepath can not be empty");
        }
        let (namespace, name) = match pod.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (None, pod),
        };
        if name.is_empty() || name.contains('/') {
            bail!("{text:?} is no [NAMESPACE/]POD:PATH");
        }
        Ok(Self { pod: Some((namespace, name.to_owned())), path: path.to_owned() })
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let [from, to] = &arguments.words[..] else {
        return Err(misused("cp", "source and destination are required"));
    };
    let (from, to) = (End::parse(from)?, End::parse(to)?);
    let plane = arguments.place.plane().await?;
    match (&from.pod, &to.pod) {
        (Some(_), Some(_)) => bail!("one of src or dest must be a local file specification"),
        (None, None) => bail!("one of src or dest must be a remote file specification"),
        (Some((namespace, name)), None) => {
            let there = Place::find(&arguments, &plane, namespace.as_deref(), name).await?;
            download(&there, &from.path, Path::new(&to.path), !arguments.no_preserve).await
        }
        (None, Some((namespace, name))) => {
            let there = Place::find(&arguments, &plane, namespace.as_deref(), name).await?;
            upload(&there, Path::new(&from.path), &to.path, !arguments.no_preserve).await
        }
    }
}

/// A container in a cluster.
struct Place {
    server: Server,
    namespace: String,
    pod: String,
    container: String,
}

impl Place {
    async fn find(
        arguments: &Arguments,
        plane: &Plane,
        namespace: Option<&str>,
        name: &str,
    ) -> anyhow::Result<Self> {
        let server = plane.scoped(&arguments.scope).await?;
        let namespace = namespace.unwrap_or(&plane.namespace).to_owned();
        let pod = pods::find(&server, &namespace, name, std::time::Duration::ZERO).await?.first()?;
        let container = pods::container(&pod, &arguments.container, false)?;
        Ok(Self { server, namespace, pod: pods::name(&pod).to_owned(), container })
    }

    /// Runs a program there; returns whether it succeeded.
    async fn run(
        &self,
        command: &[&str],
        input: Option<mpsc::Receiver<Vec<u8>>>,
        mut sink: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let target = Target {
            namespace: &self.namespace,
            pod: &self.pod,
            container: &self.container,
            verb: "exec",
            command: &command,
            stdin: input.is_some(),
            tty: false,
        };
        let sources = Sources { input, sizes: None };
        let status = session::run(&self.server, &target, sources, |from, bytes| match from {
            From::Stdout => sink(bytes),
            From::Stderr => {
                output::warn_bytes(bytes);
                Ok(())
            }
        })
        .await?;
        match &status["reason"] {
            reason if reason == "NonZeroExitCode" => Ok(false),
            _ => session::ended(&status).map(|()| true),
        }
    }
}

async fn upload(there: &Place, from: &Path, to: &str, preserve: bool) -> anyhow::Result<()> {
    if !from.exists() {
        bail!("{} doesn't exist in local filesystem", from.display());
    }
    let name = from.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // Into an existing folder, under the file's own name; otherwise under the given name.
    let into_folder = to.ends_with('/') || there.run(&["test", "-d", to], None, |_| Ok(())).await?;
    let to = to.trim_end_matches('/');
    let (folder, name) = if into_folder {
        (if to.is_empty() { "/" } else { to }.to_owned(), name)
    } else {
        let (folder, name) = to.rsplit_once('/').unwrap_or((".", to));
        (if folder.is_empty() { "/" } else { folder }.to_owned(), name.to_owned())
    };
    if name.is_empty() {
        bail!("{} names no file to copy", from.display());
    }
    let (sender, receiver) = mpsc::channel(8);
    let from = from.to_owned();
    let packing = tokio::task::spawn_blocking(move || pack(&from, &name, sender));
    let mut command = vec!["tar", "-xmf", "-", "-C", &folder];
    if !preserve {
        command.insert(1, "--no-same-permissions");
        command.insert(2, "--no-same-owner");
    }
    let content = there.run(&command, Some(receiver), |_| Ok(())).await?;
    packing.await.context("cannot read the files")??;
    if content { Ok(()) } else { Err(anyhow!("tar in the container could not unpack the files")) }
}

/// Passes bytes on to a channel.
struct Pipe(mpsc::Sender<Vec<u8>>);

impl std::io::Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let sent = self.0.blocking_send(bytes.to_vec());
        sent.map(|()| bytes.len()).map_err(|_| std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn pack(from: &Path, name: &str, sender: mpsc::Sender<Vec<u8>>) -> anyhow::Result<()> {
    let pipe = std::io::BufWriter::with_capacity(32 * 1024, Pipe(sender));
    let mut archive = tar::Builder::new(pipe);
    archive.follow_symlinks(false);
    let added = if from.is_dir() {
        archive.append_dir_all(name, from)
    } else {
        archive.append_path_with_name(from, name)
    };
    added.with_context(|| format!("cannot read {}", from.display()))?;
    let mut pipe = archive.into_inner().context("cannot end the archive")?;
    std::io::Write::flush(&mut pipe).context("cannot send the archive")
}

async fn download(there: &Place, from: &str, to: &Path, preserve: bool) -> anyhow::Result<()> {
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Vec<u8>>(64);
    let name = from.trim_end_matches('/').rsplit('/').next().unwrap_or("").to_owned();
    // Into an existing folder, under its own name; otherwise under the given name.
    let target =
        if to.is_dir() && !matches!(name.as_str(), "" | "." | "..") { to.join(&name) } else { to.to_owned() };
    let prefix = PathBuf::from(from);
    let unpacking = tokio::task::spawn_blocking(move || {
        let stream = Stream { receiver, rest: Vec::new(), at: 0 };
        unpack(stream, &prefix, &target, preserve)
    });
    // Another thread writes, so waiting for it here cannot deadlock.
    let content = there
        .run(&["tar", "cf", "-", from], None, |bytes| {
            sender.send(bytes.to_vec()).map_err(|_| anyhow!("the files cannot be written"))
        })
        .await;
    drop(sender);
    let count = unpacking.await.context("cannot write the files")??;
    if !content? || count == 0 {
        bail!("{from} could not be read in the container");
    }
    Ok(())
}

/// A reader for bytes from a channel.
struct Stream {
    receiver: std::sync::mpsc::Receiver<Vec<u8>>,
    rest: Vec<u8>,
    at: usize,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.at == self.rest.len() {
            match self.receiver.recv() {
                Ok(bytes) => (self.rest, self.at) = (bytes, 0),
                Err(_) => return Ok(0),
            }
        }
        let count = buffer.len().min(self.rest.len() - self.at);
        buffer[..count].copy_from_slice(&self.rest[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Writes an archive; returns the number of its entries.
fn unpack(stream: impl Read, prefix: &Path, target: &Path, preserve: bool) -> anyhow::Result<usize> {
    let mut archive = tar::Archive::new(stream);
    archive.set_preserve_permissions(preserve);
    let prefix = plain(prefix);
    let mut count = 0;
    for entry in archive.entries().context("cannot read the archive")? {
        let mut entry = entry.context("cannot read the archive")?;
        let path = entry.path().context("cannot read the archive")?.into_owned();
        let Some(inner) = safe(&path).and_then(|path| path.strip_prefix(&prefix).ok().map(Path::to_owned))
        else {
            output::warn(&format!(
                "warning: {} lies outside of what was asked for, and is left out",
                path.display()
            ));
            continue;
        };
        let kind = entry.header().entry_type();
        if kind.is_symlink() || kind.is_hard_link() {
            output::warn(&format!("warning: {} is a link, and is left out", path.display()));
            continue;
        }
        let place = if inner.as_os_str().is_empty() { target.to_owned() } else { target.join(inner) };
        if let Some(parent) = place.parent() {
            std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        }
        if kind.is_dir() {
            std::fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        } else {
            entry.unpack(&place).with_context(|| format!("cannot write {}", place.display()))?;
        }
        count += 1;
    }
    Ok(count)
}

/// Without the root and dots, as tar stores names.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

/// The path of an entry, if it stays inside the target.
fn safe(path: &Path) -> Option<PathBuf> {
    let inside = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    inside.then(|| plain(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_here_or_in_a_pod() {
        let pod = |namespace: Option<&str>, name: &str, path: &str| End {
            pod: Some((namespace.map(str::to_owned), name.to_owned())),
            path: path.to_owned(),
        };
        assert_eq!(End::parse("web:/a").expect("good"), pod(None, "web", "/a"));
        assert_eq!(End::parse("ns/web:a:b").expect("good"), pod(Some("ns"), "web", "a:b"));
        assert_eq!(End::parse("./a:b").expect("good"), End { pod: None, path: "./a:b".to_owned() });
        assert!(End::parse("web:").is_err() && End::parse("a/b/c:/x").is_err());
    }

    #[test]
    fn packed_files_are_unpacked_and_no_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("source");
        std::fs::create_dir_all(source.join("deep")).expect("a folder");
        std::fs::write(source.join("deep/a"), "hi").expect("written");
        let (sender, mut packed) = mpsc::channel(64);
        pack(&source, "var/log", sender).expect("packed");
        let (sender, receiver) = std::sync::mpsc::sync_channel(64);
        while let Ok(bytes) = packed.try_recv() {
            sender.send(bytes).expect("room");
        }
        drop(sender);
        let stream = Stream { receiver, rest: Vec::new(), at: 0 };
        let target = folder.path().join("target");
        let count = unpack(stream, Path::new("/var/log"), &target, true).expect("unpacked");
        assert!(count >= 2, "{count}");
        assert_eq!(std::fs::read_to_string(target.join("deep/a")).expect("there"), "hi");

        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().expect("gnu").name[.."../evil".len()].copy_from_slice(b"../evil");
        header.set_size(1);
        header.set_cksum();
        archive.append(&header, &b"x"[..]).expect("appended");
        let bytes = archive.into_inner().expect("an archive");
        assert_eq!(unpack(&bytes[..], Path::new("/"), &target, true).expect("read"), 0, "it leads out");
        assert!(!folder.path().join("evil").exists());
    }
}
