//! Answers of other servers: webhooks, aggregated servers, issuers of tokens.
//!
//! They are not trusted with the memory of this server. An answer has a limit, in its bytes and in what they become ([`Weight`]),
//! since small parts become a hundred times their bytes. So do all answers of one endpoint together, and those of all endpoints.
//! One that there is no room for waits for others, as long as its caller does; small ones need no room. Waiting for room never
//! holds up others: a large answer gets all the room for its bytes at once, before it is read on, and that for its tree when it is
//! complete.
//!
//! What is read is understood as by client-go: a JSON document, or an error in client-go's words.

use std::sync::Arc;

use apimachinery::pointer;
use apimachinery::weight::Weight;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Error;

/// Much larger than any review.
const MAX_REPLY: usize = 16 << 20;
/// What an answer may become. Ordinary objects become eleven times their bytes: the largest one, of 3 MiB, some 33 MiB, and a
/// conversion of 4 MiB of objects at once some 45 MiB.
const MAX_TREE: usize = 64 << 20;
/// Answers up to this size need no room: there are at most as many as requests. A review has a few KiB.
const SMALL: usize = 64 << 10;
/// The same for what they become: the patch that adds a container to a Pod becomes some 200 KiB.
const SMALL_TREE: usize = 512 << 10;
/// Bytes of all large answers that are being read, and of those of one endpoint: six and two of the largest.
const ALL_ARRIVING: usize = 96 << 20;
const ARRIVING: usize = 32 << 20;
/// What all large answers have become that are being handled, and those of one endpoint: three and one of the largest.
const ALL_TREES: usize = 192 << 20;
const TREES: usize = 64 << 20;
/// What large parts of answers have become that stay until the end of a request, such as a patch of its object; the same shares.
const ALL_KEPT: usize = ALL_TREES;
const KEPT: usize = TREES;
/// As client-go: this much is told of an answer that is not a document.
const TOLD: usize = 2048;

/// The limits of one answer.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    bytes: usize,
    /// None if the answer does not become a tree.
    tree: Option<usize>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: MAX_REPLY, tree: Some(MAX_TREE) }
    }
}

impl Limits {
    /// Returns the limits of an answer that is read as text.
    pub fn of_text() -> Self {
        Self { bytes: MAX_REPLY, tree: None }
    }

    /// Returns the limits of an answer that repeats its question in another form.
    pub fn like(question: &str) -> Self {
        const TIMES: usize = 8;
        let grown = |size: usize, more: usize| size.saturating_mul(TIMES).saturating_add(more);
        Self {
            bytes: grown(question.len(), 1 << 20).min(MAX_REPLY),
            tree: Some(grown(Weight::of(question.as_bytes()), 4 << 20).min(MAX_TREE)),
        }
    }
}

/// What answers may take at the same time, in KiB: those of all endpoints, or those of one.
#[derive(Debug, Clone)]
pub struct Room {
    arriving: Arc<Semaphore>,
    trees: Arc<Semaphore>,
    kept: Arc<Semaphore>,
}

/// The room of all endpoints together.
impl Default for Room {
    fn default() -> Self {
        Self::new(ALL_ARRIVING, ALL_TREES, ALL_KEPT)
    }
}

impl Room {
    fn new(arriving: usize, trees: usize, kept: usize) -> Self {
        let semaphore = |bytes: usize| Arc::new(Semaphore::new(bytes >> 10));
        Self { arriving: semaphore(arriving), trees: semaphore(trees), kept: semaphore(kept) }
    }
}

/// A part of the room of one endpoint and of that of all; given back when it is dropped.
#[derive(Debug)]
pub struct Taken([OwnedSemaphorePermit; 2]);

impl Taken {
    /// Takes the part of the endpoint first, so that one that has used up its own keeps nobody else waiting.
    async fn wait(rooms: [&Arc<Semaphore>; 2], bytes: usize) -> Result<Self, Error> {
        let [own, all] = rooms;
        let kib = kib(bytes);
        let closed = |_| Error("unexpected EOF".to_owned());
        let own = own.clone().acquire_many_owned(kib).await.map_err(closed)?;
        let all = all.clone().acquire_many_owned(kib).await.map_err(closed)?;
        Ok(Self([own, all]))
    }

    /// Gives back what is not needed.
    fn shrink(&mut self, bytes: usize) {
        for permit in &mut self.0 {
            let surplus = permit.num_permits().saturating_sub(kib(bytes) as usize);
            drop(permit.split(surplus));
        }
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

/// The rooms for the answers of an endpoint.
#[derive(Debug, Clone)]
pub struct Rooms {
    own: Room,
    all: Room,
}

impl Rooms {
    /// Returns the rooms of a new endpoint.
    pub fn new(all: Room) -> Self {
        Self { own: Room::new(ARRIVING, TREES, KEPT), all }
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// If it breaks off, or if it is larger than its limits.
    pub async fn read<B>(&self, code: u16, mut body: B, limits: Limits) -> Result<Reply, Error>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let (mut read, mut weight, mut arriving) = (BytesMut::new(), Weight::default(), None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Error("unexpected EOF".to_owned()))?;
            let Ok(piece) = frame.into_data() else { continue };
            let length = read.len().saturating_add(piece.len());
            if length > limits.bytes {
                return Err(Error(format!("the response has more than {} bytes", limits.bytes)));
            }
            if let Some(most) = limits.tree {
                weight.add(&piece);
                if weight.total() > most {
                    return Err(too_heavy(most));
                }
            }
            if length > SMALL && arriving.is_none() {
                let rooms = [&self.own.arriving, &self.all.arriving];
                arriving = Some(Taken::wait(rooms, limits.bytes).await?);
            }
            read.extend_from_slice(&piece);
        }
        if let Some(arriving) = &mut arriving {
            arriving.shrink(read.len());
        }
        let tree = self.tree(weight.total()).await?;
        Ok(Reply { code, body: read.freeze(), _arriving: arriving, tree })
    }

    /// Takes room for a document within an answer, such as a patch, until the request that it belongs to is done. Nobody waits for
    /// that: the other ones may wait for answers that need room themselves.
    ///
    /// # Errors
    /// If it is larger than any answer may become, or if there is no room.
    pub fn keep(&self, text: &[u8]) -> Result<Option<Taken>, Error> {
        let weight = Weight::of(text);
        if weight <= SMALL_TREE {
            return Ok(None);
        }
        if weight > MAX_TREE {
            return Err(too_heavy(MAX_TREE));
        }
        let part = |room: &Room| room.kept.clone().try_acquire_many_owned(kib(weight));
        match (part(&self.own), part(&self.all)) {
            (Ok(own), Ok(all)) => Ok(Some(Taken([own, all]))),
            _ => Err(Error("too many large responses are being handled".to_owned())),
        }
    }

    async fn tree(&self, weight: usize) -> Result<Option<Taken>, Error> {
        if weight <= SMALL_TREE {
            return Ok(None);
        }
        Taken::wait([&self.own.trees, &self.all.trees], weight).await.map(Some)
    }
}

fn too_heavy(limit: usize) -> Error {
    Error(format!("the response has so many parts that it becomes more than {limit} bytes"))
}

/// An answer that was read.
#[derive(Debug)]
pub struct Reply {
    pub code: u16,
    pub body: Bytes,
    _arriving: Option<Taken>,
    tree: Option<Taken>,
}

impl Reply {
    /// Returns the document of a successful answer.
    ///
    /// # Errors
    /// In client-go's words.
    pub fn document(self) -> Result<Document, Error> {
        Ok(Document { value: document(self.code, &self.body)?, _tree: self.tree })
    }
}

/// What an answer has become.
#[derive(Debug)]
pub struct Document {
    pub value: Value,
    _tree: Option<Taken>,
}

/// Returns the document of a successful answer.
pub fn document(code: u16, body: &[u8]) -> Result<Value, Error> {
    if !(200..=206).contains(&code) {
        return Err(Error(failure(code, body)));
    }
    if body.is_empty() {
        return Err(Error("0-length response with status code: 200 and content type: ".to_owned()));
    }
    let value: Value = match apimachinery::json::read(body) {
        Ok(parsed) => parsed.value,
        Err(error) => return Err(Error(format!("couldn't get version/kind; json parse error: {error}"))),
    };
    if !value.is_object() {
        return Err(Error(
            "couldn't get version/kind; json parse error: json: cannot unmarshal into an object".to_owned(),
        ));
    }
    Ok(value)
}

/// Returns the error for an answer outside of 2xx.
fn failure(code: u16, body: &[u8]) -> String {
    // A refusal has a few hundred bytes.
    if body.len() <= SMALL
        && let Ok(status) = serde_json::from_slice::<Value>(body)
        && pointer::text(&status, "/kind") == "Status"
        && pointer::text(&status, "/status") != "Success"
        && let Some(message) = status.get("message").and_then(Value::as_str)
    {
        return message.to_owned();
    }
    let text = String::from_utf8_lossy(body.get(..TOLD).unwrap_or(body));
    let said = if text.trim().is_empty() { "unknown" } else { text.trim() };
    match code {
        409 => "the server reported a conflict".to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => said.to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        500.. => format!(
            "an error on the server ({}) has prevented the request from succeeding",
            apimachinery::go::quote(said)
        ),
        other => format!("the server responded with the status code {other} but did not return more information"),
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;
    use http_body_util::Full;

    use super::*;

    fn rooms() -> Rooms {
        Rooms::new(Room::default())
    }

    async fn read(rooms: &Rooms, text: &str) -> Result<Reply, Error> {
        rooms.read(200, Full::new(Bytes::from(text.to_owned())), Limits::default()).await
    }

    fn free(rooms: &Rooms) -> [usize; 6] {
        let of = |room: &Room| {
            [&room.arriving, &room.trees, &room.kept].map(|part| part.available_permits() << 10)
        };
        let ([a, b, c], [d, e, f]) = (of(&rooms.own), of(&rooms.all));
        [a, b, c, d, e, f]
    }

    const EMPTY: [usize; 6] = [ARRIVING, TREES, KEPT, ALL_ARRIVING, ALL_TREES, ALL_KEPT];

    /// A document of this many parts, each of which becomes a hundred times its bytes.
    fn dense(parts: usize) -> String {
        format!(r#"{{"x":[{}0]}}"#, r#"{"":0},"#.repeat(parts))
    }

    #[tokio::test]
    async fn finding_16_an_answer_of_a_webhook_of_many_small_parts_is_refused() {
        let rooms = rooms();
        let text = dense(100_000);
        assert!(text.len() < 1 << 20);
        let refused = read(&rooms, &text).await.unwrap_err();
        assert!(refused.0.contains("so many parts"), "{refused}");
        // The same bytes as a text are nothing special.
        let text = serde_json::json!({"x": text}).to_string();
        assert!(read(&rooms, &text).await.unwrap().document().is_ok());
        let refused = read(&rooms, &"x".repeat(MAX_REPLY + 1)).await.unwrap_err();
        assert_eq!(refused.0, "the response has more than 16777216 bytes");
        // What is read as text becomes no tree.
        let body = Full::new(Bytes::from(dense(100_000)));
        assert!(rooms.read(200, body, Limits::of_text()).await.is_ok());
        assert_eq!(free(&rooms), EMPTY, "what was refused or dropped holds nothing");
    }

    #[tokio::test]
    async fn finding_16_answers_at_the_same_time_have_a_limit_together() {
        let rooms = rooms();
        // 60 MiB each, once they are trees.
        let large = dense(89_000);
        let first = read(&rooms, &large).await.unwrap().document().unwrap();
        let mut second = Box::pin(read(&rooms, &large));
        assert!(poll!(&mut second).is_pending(), "an endpoint has room for one");
        assert!(read(&rooms, r#"{"small":1}"#).await.is_ok(), "small ones need no room");
        let other = Rooms::new(rooms.all.clone());
        let others = read(&other, &large).await.expect("other endpoints have room of their own");
        drop(first);
        drop((second.await.unwrap(), others));
        assert_eq!(free(&rooms), EMPTY);
        // All endpoints together have room for three.
        let mut held = Vec::new();
        for _ in 0..3 {
            let endpoint = Rooms::new(rooms.all.clone());
            held.push(read(&endpoint, &large).await.unwrap());
        }
        let mut fourth = Box::pin(read(&rooms, &large));
        assert!(poll!(&mut fourth).is_pending());
        held.pop();
        assert!(fourth.await.is_ok());
    }

    #[tokio::test]
    async fn finding_16_an_answer_that_arrives_slowly_holds_up_no_small_one_and_no_other_endpoint() {
        let rooms = rooms();
        let begun = |rooms: &Rooms| {
            let begin = Bytes::from("x".repeat(SMALL + 1));
            let begin =
                futures::stream::iter([Ok::<_, std::convert::Infallible>(hyper::body::Frame::data(begin))]);
            let body =
                http_body_util::StreamBody::new(futures::StreamExt::chain(begin, futures::stream::pending()));
            let rooms = rooms.clone();
            Box::pin(async move { rooms.read(200, body, Limits::default()).await })
        };
        let mut slow: Vec<_> = (0..5).map(|_| begun(&rooms)).collect();
        for answer in &mut slow {
            assert!(poll!(answer).is_pending());
        }
        assert_eq!(free(&rooms)[0], 0, "two of them have all that the endpoint has");
        assert_eq!(free(&rooms)[3], ALL_ARRIVING - ARRIVING, "and no more than that of all");
        assert!(read(&rooms, r#"{"small":1}"#).await.is_ok());
        let text = serde_json::json!({"x": "x".repeat(SMALL)}).to_string();
        let mut large = Box::pin(read(&rooms, &text));
        assert!(poll!(&mut large).is_pending());
        assert!(read(&Rooms::new(rooms.all.clone()), &text).await.is_ok());
        drop(slow);
        let reply = large.await.unwrap();
        assert!(free(&rooms)[0] > ARRIVING - 2 * SMALL, "what it does not need is given back");
        drop(reply);
        assert_eq!(free(&rooms), EMPTY);
    }

    #[tokio::test]
    async fn finding_16_what_is_kept_of_answers_has_a_limit() {
        let rooms = rooms();
        assert!(rooms.keep(b"[]").unwrap().is_none(), "small documents need no room");
        let large = dense(89_000);
        let kept = rooms.keep(large.as_bytes()).unwrap();
        assert!(kept.is_some());
        assert!(rooms.keep(large.as_bytes()).is_err(), "nobody waits for it");
        assert!(Rooms::new(rooms.all.clone()).keep(large.as_bytes()).is_ok());
        drop(kept);
        assert!(rooms.keep(large.as_bytes()).is_ok());
        assert!(rooms.keep(dense(100_000).as_bytes()).unwrap_err().0.contains("so many parts"));
        assert_eq!(free(&rooms), EMPTY);
    }

    #[test]
    fn a_conversion_is_not_much_larger_than_its_question() {
        let limits = Limits::like(&"x".repeat(1000));
        assert_eq!(limits.bytes, (1 << 20) + 8_000);
        assert_eq!(limits.tree, Some((4 << 20) + 8_000));
        let limits = Limits::like(&dense(80_000));
        assert_eq!((limits.bytes, limits.tree), ((1 << 20) + 8 * dense(80_000).len(), Some(MAX_TREE)));
    }

    #[test]
    fn finding_16_little_is_told_of_an_answer_that_is_not_a_document() {
        let long = "x".repeat(SMALL + 1);
        assert_eq!(document(403, long.as_bytes()).unwrap_err().0, "x".repeat(TOLD));
        let status = serde_json::json!({"kind": "Status", "status": "Failure", "message": "no"}).to_string();
        assert_eq!(document(403, status.as_bytes()).unwrap_err().0, "no");
    }
}
