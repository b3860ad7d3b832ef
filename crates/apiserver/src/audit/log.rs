//! The file behind the audit log: a separate thread writes it, and it is rotated when it is full.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, OwnedPermit, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// How many lines may wait to be written.
const WAITING: usize = 10_000;
/// How many bytes all of them may have. Most lines have less than 2 KiB, and 10,000 of those fit. One with the content of its
/// request and of its answer has up to 3 MB, and twenty of those fit.
const WAITING_BYTES: usize = 64 << 20;

/// When a log file is rotated, and how many old ones are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// In bytes; without it, the file is never rotated.
    pub size: Option<u64>,
    /// How many old files are kept; zero keeps all.
    pub keep: usize,
}

/// The annotation of an event that stands for events that were lost.
const LOST: &str = "karmada.io/lost-audit-events";

/// A message to the writer.
#[derive(Debug)]
enum Item {
    /// A line and its part of the room.
    Line(Vec<u8>, OwnedSemaphorePermit),
    /// A caller waits until everything before this has been written.
    Waiting(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(super) struct Log {
    lines: Option<Sender<Item>>,
    /// In bytes.
    room: Arc<Semaphore>,
    writer: Option<std::thread::JoinHandle<()>>,
    lost: Lost,
}

/// A reserved place in the queue: a line that has one cannot be lost.
#[derive(Debug)]
pub(super) struct Place(OwnedPermit<Item>);

/// Lines that were lost: in total, and since the last report in the log.
#[derive(Debug, Clone)]
struct Lost {
    counted: Counter<u64, AtomicU64>,
    untold: Arc<AtomicU64>,
}

impl Lost {
    fn one(&self) {
        self.counted.inc();
        self.untold.fetch_add(1, Ordering::Relaxed);
    }
}

impl Log {
    pub(super) fn open(path: &Path, rotation: Rotation, lost: Counter<u64, AtomicU64>) -> io::Result<Self> {
        let mut sink = Sink::open(path, rotation)?;
        let (lines, mut waiting) = mpsc::channel(WAITING);
        let lost = Lost { counted: lost, untold: Arc::default() };
        let noted = lost.clone();
        let writer = std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            write_all(&mut sink, &mut waiting, &noted);
        })?;
        let room = Arc::new(Semaphore::new(WAITING_BYTES));
        Ok(Self { lines: Some(lines), room, writer: Some(writer), lost })
    }

    /// Waits for a place, so that its line cannot be lost in a flood.
    pub(super) async fn reserve(&self) -> Option<Place> {
        self.lines.clone()?.reserve_owned().await.ok().map(Place)
    }

    /// Queues a line; it is lost if the queue is full.
    pub(super) fn write(&self, event: &Value) {
        let Some(lines) = &self.lines else { return };
        let line = line_of(event);
        let room = self.room.clone().try_acquire_many_owned(permits(&line));
        let queued = room.is_ok_and(|room| lines.try_send(Item::Line(line, room)).is_ok());
        if !queued {
            self.lost.one();
        }
    }

    /// Queues a line that has a place, as soon as there is room for it. It is lost if nobody waits for that.
    pub(super) async fn write_at(&self, Place(place): Place, event: &Value) {
        let line = line_of(event);
        let given_up = GivenUp(&self.lost);
        if let Ok(room) = self.room.clone().acquire_many_owned(permits(&line)).await {
            place.send(Item::Line(line, room));
            std::mem::forget(given_up);
        }
    }

    /// Waits until everything queued so far has been written, or lost.
    pub(super) async fn written(&self) {
        let Some(lines) = &self.lines else { return };
        let (done, waiting) = oneshot::channel();
        if lines.send(Item::Waiting(done)).await.is_ok() {
            let _ = waiting.await;
        }
    }
}

/// Counts a line whose client went away while it waited for room.
struct GivenUp<'a>(&'a Lost);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.one();
    }
}

impl Drop for Log {
    /// Queued lines are written before the log is dropped.
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn line_of(event: &Value) -> Vec<u8> {
    let mut line = event.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// Returns what a line takes of the room: one that is larger than the room takes all of it.
fn permits(line: &[u8]) -> u32 {
    u32::try_from(line.len().min(WAITING_BYTES)).unwrap_or(u32::MAX)
}

fn write_all(sink: &mut Sink, waiting: &mut Receiver<Item>, lost: &Lost) {
    let mut failing = false;
    while let Some(item) = waiting.blocking_recv() {
        let (line, _room) = match item {
            Item::Line(line, room) => (line, room),
            Item::Waiting(done) => {
                let _ = done.send(());
                continue;
            }
        };
        match sink.write(&line) {
            Ok(()) => {
                failing = false;
                tell_of_lost(sink, lost);
            }
            Err(error) => {
                lost.one();
                if !failing {
                    tracing::error!(%error, "cannot write the audit log");
                }
                failing = true;
            }
        }
    }
    tell_of_lost(sink, lost);
}

/// Writes how many lines were lost since the last report. Lines are lost only while others wait, so one of those arrives here
/// soon after.
fn tell_of_lost(sink: &mut Sink, lost: &Lost) {
    let count = lost.untold.swap(0, Ordering::Relaxed);
    if count == 0 {
        return;
    }
    tracing::warn!(events = count, "audit events were lost: more came than could be written");
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let event = json!({
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": uuid::Uuid::new_v4().to_string(),
        "stage": "ResponseComplete",
        "requestURI": "",
        "verb": "",
        "user": {"username": "system:apiserver"},
        "responseStatus": {"metadata": {}, "message": format!("{count} audit events were lost")},
        "requestReceivedTimestamp": now,
        "stageTimestamp": now,
        "annotations": {LOST: count.to_string()},
    });
    if sink.write(&line_of(&event)).is_err() {
        lost.untold.fetch_add(count, Ordering::Relaxed);
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
                let full = rotation
                    .size
                    .is_some_and(|limit| size.saturating_add(line.len() as u64) > limit && *size > 0);
                if full {
                    turn_over(path, rotation.keep)?;
                    *file = create(path)?;
                    *size = 0;
                }
                file.write_all(line)?;
                *size = size.saturating_add(line.len() as u64);
                Ok(())
            }
        }
    }
}

/// Other users must not read it.
fn create(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// How the time is written into the name of an old file: names sort as times do.
const TIME: &str = "%Y-%m-%dT%H-%M-%S.%6f";

/// Returns whether a text is a time as it stands in the name of an old file.
fn is_time(text: &str) -> bool {
    const FORM: &str = "0000-00-00T00-00-00.000000";
    let fits = |(given, form): (u8, u8)| if form == b'0' { given.is_ascii_digit() } else { given == form };
    text.len() == FORM.len() && text.bytes().zip(FORM.bytes()).all(fits)
}

/// Returns whether a name is that of an old file of this log. Other files in the folder belong to somebody else, also if they
/// begin and end like it: the log of a second server may be `audit-eu.log`.
fn is_old(name: &str, stem: &str, ending: &str) -> bool {
    let middle = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(ending));
    middle.is_some_and(is_time)
}

/// Renames the file after the current time, and removes the oldest files.
fn turn_over(path: &Path, keep: usize) -> io::Result<()> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let ending = path.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let time = jiff::Timestamp::now().strftime(TIME);
    std::fs::rename(path, folder.join(format!("{stem}-{time}{ending}")))?;
    if keep == 0 {
        return Ok(());
    }
    let mut old: Vec<PathBuf> = std::fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|file| is_old(&file.file_name().unwrap_or_default().to_string_lossy(), &stem, &ending))
        .collect();
    old.sort();
    let surplus = old.len().saturating_sub(keep);
    for file in old.iter().take(surplus) {
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

    #[test]
    fn finding_24_only_old_files_of_this_log_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mine = ["audit-2020-01-02T03-04-05.000006.log", "audit-2020-01-02T03-04-05.000007.log"];
        let others = [
            "audit-eu.log",
            "audit-eu-2020-01-02T03-04-05.000006.log",
            "audit-2020-01-02T03-04-05.000006.log.gz",
            "audit-2020-01-02T03-04-05.000.log",
            "audit-2020-01-02T03-04-05.00000x.log",
            "audit-.log",
            "audit.2020.log",
        ];
        for name in mine.iter().chain(&others) {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let log = Log::open(&path, Rotation { size: Some(50), keep: 1 }, Counter::default()).unwrap();
        for number in 0..5 {
            log.write(&json!({"number": number, "text": "0123456789012345678901234567890"}));
        }
        drop(log);
        for name in others {
            assert!(folder.path().join(name).exists(), "{name}");
        }
        for name in mine {
            assert!(!folder.path().join(name).exists(), "{name}");
        }
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, others.len() + 2, "the log itself and the newest old file");
    }

    #[tokio::test]
    async fn a_flush_waits_for_all_queued_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let log = Log::open(&path, Rotation { size: None, keep: 0 }, Counter::default()).unwrap();
        log.write(&json!({"number": 1}));
        log.written().await;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"number\":1}\n");
    }

    /// A log with two places, whose writer waits for a signal.
    fn stopped(path: &Path) -> (Log, impl FnOnce() + Send + 'static + use<>) {
        with_room(path, 2, WAITING_BYTES)
    }

    fn with_room(path: &Path, places: usize, bytes: usize) -> (Log, impl FnOnce() + Send + 'static + use<>) {
        let (lines, mut waiting) = mpsc::channel(places);
        let lost = Lost { counted: Counter::default(), untold: Arc::default() };
        let (noted, mut sink) = (lost.clone(), Sink::open(path, Rotation { size: None, keep: 0 }).unwrap());
        let go = move || write_all(&mut sink, &mut waiting, &noted);
        let room = Arc::new(Semaphore::new(bytes));
        (Log { lines: Some(lines), room, writer: None, lost }, go)
    }

    #[test]
    fn finding_24_lines_that_a_flood_drops_are_counted_and_the_log_says_how_many() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let (log, write) = stopped(&path);
        for number in 0..5 {
            log.write(&json!({"number": number}));
        }
        assert_eq!(log.lost.counted.get(), 3);
        drop(log);
        write();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let told: Vec<&Value> = lines.iter().filter(|line| !line["annotations"][LOST].is_null()).collect();
        assert_eq!((lines.len(), told.len()), (3, 1), "{text}");
        assert_eq!(told[0]["annotations"][LOST], "3");
        assert_eq!(told[0]["kind"], "Event", "readers of the log find nothing but events");
    }

    #[tokio::test]
    async fn a_line_with_a_place_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let (log, write) = stopped(&path);
        let place = log.reserve().await;
        for number in 0..5 {
            log.write(&json!({"number": number}));
        }
        log.write_at(place.expect("a place"), &json!({"number": "mine"})).await;
        assert_eq!(log.lost.counted.get(), 4);
        drop(log);
        tokio::task::spawn_blocking(write).await.unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains(r#""number":"mine""#));
    }

    #[test]
    fn finding_24_waiting_lines_are_bounded_by_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let (log, write) = with_room(&path, 100, 1_000);
        let room = log.room.clone();
        for number in 0..50 {
            log.write(&json!({"number": number, "text": "x".repeat(370)}));
        }
        assert_eq!(
            log.lost.counted.get(),
            48,
            "two lines of 400 bytes have room, although there are 100 places"
        );
        log.write(&json!({"number": "small"}));
        assert_eq!(log.lost.counted.get(), 48);
        drop(log);
        write();
        assert_eq!(room.available_permits(), 1_000, "what is written gives its room back");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains(r#""karmada.io/lost-audit-events":"48""#), "{text}");
    }

    #[tokio::test]
    async fn finding_24_a_line_with_a_place_waits_for_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let (log, write) = with_room(&path, 100, 1_000);
        let place = log.reserve().await.expect("a place");
        for number in 0..50 {
            log.write(&json!({"number": number, "text": "x".repeat(370)}));
        }
        let mine = json!({"number": "mine", "text": "x".repeat(370)});
        let mut waiting = Box::pin(log.write_at(place, &mine));
        assert!(futures::poll!(&mut waiting).is_pending(), "two others take the room");
        let lost = log.lost.counted.get();
        let given_up = log.reserve().await.expect("a place");
        assert!(futures::poll!(Box::pin(log.write_at(given_up, &mine))).is_pending());
        assert_eq!(log.lost.counted.get(), lost + 1, "nobody waited for it");
        let writer = tokio::task::spawn_blocking(write);
        waiting.await;
        drop(log);
        writer.await.unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains(r#""number":"mine""#));
    }

    #[test]
    fn only_the_owner_can_read_the_log() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deeper").join("audit.log");
        drop(Log::open(&path, Rotation { size: None, keep: 0 }, Counter::default()).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
