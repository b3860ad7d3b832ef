//! The file behind the audit log: written by a thread of its own, turned over when it is full.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use prometheus_client::metrics::counter::Counter;
use serde_json::Value;
use tokio::sync::oneshot;

/// How many lines may wait to be written.
const WAITING: usize = 10_000;

/// When a log file is turned over, and how many old ones are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// In bytes; none never turns over.
    pub size: Option<u64>,
    /// How many old files are kept; zero keeps all.
    pub keep: usize,
}

/// What the writer is handed.
enum Item {
    Line(Vec<u8>),
    /// Somebody waits until everything before has been written.
    Waiting(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(super) struct Log {
    lines: Option<SyncSender<Item>>,
    writer: Option<std::thread::JoinHandle<()>>,
    lost: Counter<u64, AtomicU64>,
}

impl Log {
    pub(super) fn open(path: &Path, rotation: Rotation, lost: Counter<u64, AtomicU64>) -> io::Result<Self> {
        let mut sink = Sink::open(path, rotation)?;
        let (lines, waiting) = sync_channel(WAITING);
        let counted = lost.clone();
        let writer = std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            write_all(&mut sink, &waiting, &counted);
        })?;
        Ok(Self { lines: Some(lines), writer: Some(writer), lost })
    }

    pub(super) fn write(&self, event: &Value) {
        let Some(lines) = &self.lines else { return };
        let mut line = event.to_string().into_bytes();
        line.push(b'\n');
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = lines.try_send(Item::Line(line)) {
            self.lost.inc();
        }
    }

    /// Waits until what was handed in so far has been written, or lost.
    pub(super) async fn written(&self) {
        let (done, waiting) = oneshot::channel();
        let handed_in = self.lines.as_ref().is_some_and(|lines| lines.try_send(Item::Waiting(done)).is_ok());
        if handed_in {
            let _ = waiting.await;
        }
    }
}

impl Drop for Log {
    /// What was handed in is written before the log is gone.
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn write_all(sink: &mut Sink, waiting: &Receiver<Item>, lost: &Counter<u64, AtomicU64>) {
    let mut failing = false;
    while let Ok(item) = waiting.recv() {
        let line = match item {
            Item::Line(line) => line,
            Item::Waiting(done) => {
                let _ = done.send(());
                continue;
            }
        };
        match sink.write(&line) {
            Ok(()) => failing = false,
            Err(error) => {
                lost.inc();
                if !failing {
                    tracing::error!(%error, "cannot write the audit log");
                }
                failing = true;
            }
        }
    }
}

enum Sink {
    Stdout,
    File { path: PathBuf, file: File, size: u64, rotation: Rotation },
}

impl Sink {
    fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let file = create(path)?;
        let size = file.metadata()?.len();
        Ok(Self::File { path: path.to_owned(), file, size, rotation })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().lock().write_all(line),
            Self::File { path, file, size, rotation } => {
                let full = rotation.size.is_some_and(|limit| *size + line.len() as u64 > limit && *size > 0);
                if full {
                    turn_over(path, rotation.keep)?;
                    *file = create(path)?;
                    *size = 0;
                }
                file.write_all(line)?;
                *size += line.len() as u64;
                Ok(())
            }
        }
    }
}

/// Others have no business in it.
fn create(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Renames the file after the time, and removes the oldest ones.
fn turn_over(path: &Path, keep: usize) -> io::Result<()> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let ending = path.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%S.%6f");
    std::fs::rename(path, folder.join(format!("{stem}-{time}{ending}")))?;
    if keep == 0 {
        return Ok(());
    }
    let mut old: Vec<PathBuf> = std::fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&format!("{stem}-")) && name.ends_with(&ending)
        })
        .collect();
    old.sort();
    let surplus = old.len().saturating_sub(keep);
    for file in &old[..surplus] {
        std::fs::remove_file(file)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_full_file_is_turned_over_and_only_some_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let log = Log::open(&path, Rotation { size: Some(50), keep: 2 }, Counter::default()).unwrap();
        for number in 0..10 {
            log.write(&json!({"number": number, "text": "0123456789012345678901234567890"}));
        }
        drop(log);
        let names: Vec<String> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names.len(), 3, "{names:?}");
        let newest = std::fs::read_to_string(&path).unwrap();
        assert!(newest.contains(r#""number":9"#) && newest.lines().count() == 1, "{newest}");
    }

    #[tokio::test]
    async fn who_waits_finds_what_was_handed_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let log = Log::open(&path, Rotation { size: None, keep: 0 }, Counter::default()).unwrap();
        log.write(&json!({"number": 1}));
        log.written().await;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"number\":1}\n");
    }

    #[test]
    fn what_others_must_not_read_they_cannot() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deeper").join("audit.log");
        drop(Log::open(&path, Rotation { size: None, keep: 0 }, Counter::default()).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
