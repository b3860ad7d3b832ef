//! Answers that are being sent, and the memory that they hold.
//!
//! Bytes that a client does not read stay in memory: here, in the HTTP library, and in TLS. Every piece of an answer is charged
//! to its user's account from its creation until its last copy is dropped, wherever that is. Large bodies are handed over in
//! slices, so that most of an unread body is still in our hands and can be dropped.
//!
//! Every few seconds, a sweep ends stalled answers: any answer except a watch that has made no progress for a while, and, for
//! users over their budget, everything that stalls, watches included, longest stall first. A watch gets an error inside the
//! stream (`429`), another answer is broken off. If a user is still over the budget after that, the connection is closed.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::body::{Body, Broken};
use super::listener::Guest;
use crate::account::Account;

/// Bodies up to this size cost about as much as the stream that carries them, and are not counted.
const SMALL: u64 = 2 * 1024;
/// Larger pieces are handed over in slices of this size.
const SLICE: usize = 64 * 1024;
/// The number of pieces in a queue; low, since a thousand clients may have stopped reading at once.
const QUEUE: usize = 4;
/// How often the sweep looks for stalled answers.
const SWEEP: Duration = Duration::from_secs(2);
/// An answer stalls after this time without progress, if its user is over the budget.
const STALLED: Duration = Duration::from_secs(4);

/// Returns bytes that are charged to an account until their last copy is dropped.
fn charged(account: Option<&Arc<Account>>, bytes: Bytes) -> Bytes {
    match account {
        Some(account) => account.charged(bytes),
        None => bytes,
    }
}

/// The user who gets an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recipient {
    /// `None` for administrators.
    pub(crate) account: Option<Arc<Account>>,
    /// `None` for parts of this process, and for callers who come through another server: its connection is not only theirs.
    pub(crate) guest: Option<Arc<Guest>>,
    /// The connection carries one answer at a time, and ends if that is broken off.
    pub(crate) alone: bool,
}

/// How an answer is sent, if its request does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It charges its bytes itself.
    Counted,
    /// It ends by itself, though requests of its kind may stay open.
    Brief,
}

/// All answers in progress that could stall.
#[derive(Debug)]
pub(crate) struct Sendings {
    /// An answer ends after this time without progress.
    patience: Duration,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Shared>>>,
}

impl Sendings {
    pub(crate) fn new(patience: Duration) -> Arc<Self> {
        Arc::new(Self { patience, next: AtomicU64::new(0), open: Mutex::default() })
    }

    /// Returns an answer's body whose bytes are charged until they are sent. `lasting` ones may pause for any time.
    pub(crate) fn send(self: &Arc<Self>, body: Body, to: Recipient, lasting: bool) -> Body {
        let is_own = to.guest.is_none() && to.account.is_none();
        if is_own || body.size_hint().exact().is_some_and(|size| size <= SMALL) {
            return body;
        }
        // A client may never read it.
        let mut state = State { taken: Some(Instant::now()), ..State::default() };
        let mut body = body;
        // A complete body takes its memory now, even if the client's window is closed and the client never reads it.
        if body.size_hint().exact().is_some()
            && let Some(Some(Ok(frame))) = body.frame().now_or_never()
            && let Ok(piece) = frame.into_data()
        {
            state.left = charged(to.account.as_ref(), piece);
        }
        state.source = Some(body);
        Sending::new(self, state, to, lasting, None).boxed_unsync()
    }

    /// Returns a body that is fed through a queue, and the sending end of the queue. If the answer must end early, `farewell` is
    /// sent last.
    pub(crate) fn queue(self: &Arc<Self>, to: Recipient, farewell: fn() -> Bytes) -> (Outbox, Body) {
        let sending = Sending::new(self, State::default(), to, true, Some(farewell));
        (Outbox { shared: sending.shared.clone() }, sending.boxed_unsync())
    }

    /// Ends stalled answers, until it is stopped.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(SWEEP.min(self.patience)) => self.sweep(Instant::now()),
                () = stop.cancelled() => return,
            }
        }
    }

    fn sweep(&self, now: Instant) {
        let open: Vec<Arc<Shared>> = self.open.lock().values().cloned().collect();
        let mut stalled: Vec<(Duration, Arc<Shared>)> =
            open.into_iter().filter_map(|shared| Some((shared.stalls(now)?, shared))).collect();
        stalled.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        let soon = STALLED.min(self.patience);
        for (time, shared) in stalled {
            let over = shared.to.account.as_ref().is_some_and(|account| account.is_over());
            if over && time >= soon {
                shared.give_up(now);
                if shared.was_given_up(now, soon) {
                    shared.close();
                }
            } else if time >= self.patience && !shared.lasting {
                shared.give_up(now);
            }
        }
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    to: Recipient,
    lasting: bool,
    farewell: Option<fn() -> Bytes>,
    /// Notifies the sender that there is room.
    room: Notify,
    /// Nothing more will be sent.
    over: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    source: Option<Body>,
    queue: VecDeque<Bytes>,
    /// The rest of the piece that is being handed over.
    left: Bytes,
    waker: Option<Waker>,
    /// The sender is gone.
    complete: bool,
    /// When all pieces that had not been handed over were taken back.
    given_up: Option<Instant>,
    /// The answer is broken off.
    broken: bool,
    /// When a piece was handed over, or became available to be handed over; unset when more is requested.
    taken: Option<Instant>,
}

impl Shared {
    /// Returns for how long the client has not taken the piece that was handed over.
    fn stalls(&self, now: Instant) -> Option<Duration> {
        let taken = self.state.lock().taken?;
        Some(now.saturating_duration_since(taken))
    }

    /// Takes back all pieces that have not been handed over yet, and ends the answer.
    fn give_up(&self, now: Instant) {
        let mut state = self.state.lock();
        if state.given_up.is_some() {
            return;
        }
        state.given_up = Some(now);
        // Dropped after the lock is released.
        let _content = (state.source.take(), std::mem::take(&mut state.queue));
        match self.farewell {
            // Half of an event would garble the farewell.
            Some(farewell) if state.left.is_empty() => {
                state.queue.push_back(farewell());
                state.complete = true;
            }
            _ => state.broken = true,
        }
        let _rest = std::mem::take(&mut state.left);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        drop(state);
        self.over.cancel();
        if self.to.alone {
            self.close();
        }
    }

    fn was_given_up(&self, now: Instant, since: Duration) -> bool {
        let given_up = self.state.lock().given_up;
        given_up.is_some_and(|at| now.saturating_duration_since(at) >= since)
    }

    /// Closes the connection: the memory that it holds cannot be freed otherwise.
    fn close(&self) {
        if let Some(guest) = &self.to.guest {
            tracing::debug!(address = %guest.address(), "closing a connection whose answers are not read");
            guest.dismiss();
        }
    }
}

/// The body of an answer whose bytes are charged.
struct Sending {
    shared: Arc<Shared>,
    sendings: Arc<Sendings>,
    number: u64,
}

impl Sending {
    fn new(
        sendings: &Arc<Sendings>,
        state: State,
        to: Recipient,
        lasting: bool,
        farewell: Option<fn() -> Bytes>,
    ) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            to,
            lasting,
            farewell,
            room: Notify::new(),
            over: CancellationToken::new(),
        });
        let number = sendings.next.fetch_add(1, Ordering::Relaxed);
        sendings.open.lock().insert(number, shared.clone());
        Self { shared, sendings: sendings.clone(), number }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.sendings.open.lock().remove(&self.number);
        self.shared.over.cancel();
    }
}

impl http_body::Body for Sending {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let shared = &*self.shared;
        let account = shared.to.account.as_ref();
        let mut state = shared.state.lock();
        loop {
            if state.broken {
                return Poll::Ready(Some(Err(Broken::new("the client did not read the answer in time"))));
            }
            if !state.left.is_empty() {
                let piece = if state.left.len() <= 2 * SLICE {
                    std::mem::take(&mut state.left)
                } else {
                    // Copied, since the slice would keep the whole piece in memory.
                    let slice = state.left.split_to(SLICE);
                    charged(account, Bytes::copy_from_slice(&slice))
                };
                state.taken = Some(Instant::now());
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if let Some(piece) = state.queue.pop_front() {
                shared.room.notify_one();
                state.left = piece;
                continue;
            }
            let Some(source) = &mut state.source else {
                if state.complete {
                    state.taken = None;
                    return Poll::Ready(None);
                }
                state.taken = None;
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            };
            match Pin::new(source).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(piece) => state.left = charged(account, piece),
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                Poll::Pending => {
                    state.taken = None;
                    return Poll::Pending;
                }
                ended => return ended,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let state = self.shared.state.lock();
        let source_ended = state.source.as_ref().map_or(state.complete, |source| source.is_end_stream());
        !state.broken && state.left.is_empty() && state.queue.is_empty() && source_ended
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.shared.state.lock();
        match &state.source {
            Some(source) => {
                let rest = source.size_hint();
                let left = state.left.len() as u64;
                let mut hint = SizeHint::new();
                // The upper bound first: the lower one must never exceed it.
                if let Some(upper) = rest.upper() {
                    hint.set_upper(upper.saturating_add(left));
                }
                hint.set_lower(rest.lower().saturating_add(left));
                hint
            }
            None => SizeHint::default(),
        }
    }
}

/// The sending end of a queue: pieces are sent in order.
#[derive(Debug)]
pub struct Outbox {
    shared: Arc<Shared>,
}

impl Outbox {
    /// Returns whether a piece may be created immediately.
    pub fn has_room(&self) -> bool {
        let within = self.shared.to.account.as_ref().is_none_or(|account| !account.is_over());
        within && !self.shared.over.is_cancelled() && self.shared.state.lock().queue.len() < QUEUE
    }

    /// Waits until a piece may be created: there is room in the queue, and the user is within the budget. A piece that is created
    /// before holds memory that is not charged.
    pub async fn room(&self) {
        loop {
            if let Some(account) = &self.shared.to.account {
                account.room().await;
            }
            let room = self.shared.room.notified();
            if self.shared.state.lock().queue.len() < QUEUE {
                return;
            }
            room.await;
        }
    }

    /// Puts a piece into the queue.
    pub fn push(&self, piece: Bytes) {
        if self.shared.over.is_cancelled() {
            return;
        }
        let piece = charged(self.shared.to.account.as_ref(), piece);
        let mut state = self.shared.state.lock();
        state.queue.push_back(piece);
        match state.waker.take() {
            Some(waker) => waker.wake(),
            // A client that requests nothing, from the beginning or any more, does not take the available pieces.
            None => {
                state.taken.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Waits until nothing more can be sent: the client has gone, or the answer was ended.
    pub async fn closed(&self) {
        self.shared.over.cancelled().await;
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.complete = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::body;
    use futures::FutureExt;
    use std::net::IpAddr;

    fn to(account: &Arc<Account>) -> Recipient {
        let guest = Arc::new(Guest::of(IpAddr::from([127, 0, 0, 1])));
        Recipient { account: Some(account.clone()), guest: Some(guest), alone: false }
    }

    fn next(body: &mut Body) -> Option<Option<Result<Bytes, Broken>>> {
        let frame = body.frame().now_or_never()?;
        Some(frame.map(|frame| frame.map(|frame| frame.into_data().unwrap_or_default())))
    }

    #[test]
    fn an_answer_is_charged_until_its_last_copy_is_gone() {
        let (sendings, account) = (Sendings::new(Duration::from_secs(30)), Account::within(1000));
        let mut body = sendings.send(body::full(vec![b'x'; 10_000]), to(&account), false);
        assert_eq!(body.size_hint().exact(), Some(10_000));
        let piece = next(&mut body).flatten().unwrap().unwrap();
        assert!(next(&mut body).unwrap().is_none());
        drop(body);
        assert_eq!((account.unsent(), account.is_over()), (10_000, true), "the library still has it");
        let copy = piece.slice(5..6);
        drop(piece);
        assert_eq!(account.unsent(), 10_000);
        drop(copy);
        assert_eq!((account.unsent(), account.is_over()), (0, false));
        assert!(sendings.open.lock().is_empty());
    }

    #[test]
    fn an_answer_that_nobody_reads_is_broken_off() {
        let (sendings, account) = (Sendings::new(Duration::from_secs(30)), Account::within(1 << 30));
        let mut body = sendings.send(body::full(vec![b'x'; 1_000_000]), to(&account), false);
        let first = next(&mut body).flatten().unwrap().unwrap();
        assert_eq!(first.len(), SLICE);
        sendings.sweep(Instant::now() + Duration::from_secs(29));
        assert_eq!(account.unsent(), 1_000_000 + SLICE);
        sendings.sweep(Instant::now() + Duration::from_secs(31));
        assert_eq!(account.unsent(), SLICE, "what the library does not have is dropped");
        drop(first);
        assert!(next(&mut body).flatten().unwrap().is_err());
        // A body that is never requested is not kept either: the client's window is closed.
        let mut body = sendings.send(body::full(vec![b'x'; 1_000_000]), to(&account), false);
        sendings.sweep(Instant::now() + Duration::from_secs(31));
        assert_eq!(account.unsent(), 0);
        assert!(next(&mut body).flatten().unwrap().is_err());
    }

    #[tokio::test]
    async fn stalled_watches_end_when_their_user_is_over_the_budget() {
        let (sendings, account) = (Sendings::new(Duration::from_secs(30)), Account::within(100_000));
        let farewell = || Bytes::from_static(b"farewell");
        let (healthy, mut read) = sendings.queue(to(&account), farewell);
        let (stalled, mut pieces) = sendings.queue(to(&account), farewell);
        for outbox in [&healthy, &stalled] {
            outbox.push(vec![b'x'; 60_000].into());
        }
        assert!(healthy.room().now_or_never().is_none(), "nothing more is made for this user");
        // Both hand their first piece over; one client reads it and requests more.
        let held = next(&mut pieces).flatten().unwrap().unwrap();
        drop(next(&mut read).flatten().unwrap().unwrap());
        assert!(next(&mut read).is_none());
        stalled.push(vec![b'x'; 60_000].into());
        sendings.sweep(Instant::now() + Duration::from_secs(60));
        assert!(stalled.closed().now_or_never().is_some() && healthy.closed().now_or_never().is_none());
        assert_eq!(account.unsent(), 60_000);
        assert!(healthy.room().now_or_never().is_some());
        assert_eq!(next(&mut pieces).flatten().unwrap().unwrap(), "farewell");
        assert!(next(&mut pieces).unwrap().is_none());
        drop(held);
        assert_eq!(account.unsent(), 0);
    }

    #[tokio::test]
    async fn a_watch_that_was_never_asked_for_anything_ends_when_its_user_is_over_the_budget() {
        let (sendings, account) = (Sendings::new(Duration::from_secs(30)), Account::within(100_000));
        // The client's window is closed: the library does not request the body.
        let (shut, mut body) = sendings.queue(to(&account), || Bytes::from_static(b"farewell"));
        shut.push(vec![b'x'; 60_000].into());
        sendings.sweep(Instant::now() + Duration::from_secs(60));
        assert!(shut.closed().now_or_never().is_none(), "it may wait while there is room");
        shut.push(vec![b'x'; 60_000].into());
        sendings.sweep(Instant::now() + Duration::from_secs(60));
        assert!(shut.closed().now_or_never().is_some());
        assert_eq!((account.unsent(), account.is_over()), (0, false));
        assert_eq!(next(&mut body).flatten().unwrap().unwrap(), "farewell");
    }

    #[test]
    fn a_watch_may_pause_while_its_user_is_within_the_budget() {
        let (sendings, account) = (Sendings::new(Duration::from_secs(30)), Account::within(100_000));
        let (outbox, mut body) = sendings.queue(to(&account), Bytes::new);
        outbox.push("event".into());
        let _held = next(&mut body).flatten().unwrap().unwrap();
        sendings.sweep(Instant::now() + Duration::from_secs(3600));
        assert!(outbox.closed().now_or_never().is_none());
    }
}
