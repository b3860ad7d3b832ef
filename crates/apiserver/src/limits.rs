//! Limits how many requests are handled at once, in total and for each client; further requests wait a little and then get 429.
//! It also limits how fast a client may send, how much of its requests and unread answers may be in memory, and how much
//! processor time it may use; work beyond these limits is delayed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apimachinery::status::Status;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::account::{Account, Accounts, Budgets, Reading};
use crate::auth::User;
use crate::auth::user::MASTERS;
use crate::background;
use crate::http::RequestInfo;

/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for expensive work of a client that has had a lot of it.
const LONG_PATIENCE: Duration = Duration::from_secs(30);
/// How many requests of one client may stay open: mostly watches. An informer needs one for each kind.
const LONG_RUNNING: usize = 10_000;

/// How many bytes of requests are read from one client per second, in the long run, and how many at once. The largest objects
/// have 3 MB.
const SENT: Rate = Rate { per_second: 8.0 * 1024.0 * 1024.0, burst: 16.0 * 1024.0 * 1024.0 };
/// How many seconds of processor time one client gets for documents per second, in the long run, and how many at once.
const DOCUMENTS: Rate = Rate { per_second: 0.05, burst: 0.25 };
/// The same for definitions.
const DEFINITIONS: Rate = Rate { per_second: 0.03, burst: 0.25 };
/// The same for large lists that must be built as a whole.
const LISTS: Rate = Rate { per_second: 0.25, burst: 2.0 };
/// The charge, in seconds, for work whose duration is not known yet: so many pieces of work at once add up.
const AT_FIRST: f64 = 0.01;

/// Separate limits for reads and writes, so that neither starves the other. One client gets at most half of either, and a quarter
/// is reserved for clients with few requests, so that a few clients cannot starve the others.
#[derive(Debug)]
pub struct Limits {
    reads: Places,
    writes: Places,
    long_running: Places,
    patience: Duration,
    accounts: Accounts,
    sent: Allowances,
    documents: Allowances,
    definitions: Allowances,
    lists: Allowances,
}

fn come_back() -> Status {
    Status::too_many_requests("Too many requests, please try again later.", 1)
}

/// Expensive work.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// Building an OpenAPI document.
    Document,
    /// Writing a definition.
    Definition,
    /// Building a large list that cannot be sent in pieces.
    List,
}

/// How much of something each client gets.
#[derive(Debug, Clone, Copy)]
struct Rate {
    per_second: f64,
    /// At once.
    burst: f64,
}

/// How much of something each client has left.
#[derive(Debug)]
struct Allowances {
    rate: Rate,
    clients: Mutex<HashMap<String, Allowance>>,
}

/// What one client has left, at a certain moment.
#[derive(Debug)]
struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    fn grow(&mut self, rate: Rate, now: Instant) {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * rate.per_second;
        self.left = (self.left + gained).min(rate.burst);
        self.at = now;
    }
}

impl Allowances {
    fn new(rate: Rate) -> Self {
        Self { rate, clients: Mutex::default() }
    }

    /// Takes some of a client's share. Returns how long the client must wait for it. Administrators never wait.
    fn take(&self, user: &User, amount: f64, now: Instant) -> Duration {
        /// Up to this number, clients that can be forgotten are not searched for.
        const REMEMBERED: usize = 1024;
        if user.in_group(MASTERS) {
            return Duration::ZERO;
        }
        let mut clients = self.clients.lock();
        if clients.len() > REMEMBERED {
            clients.retain(|_, allowance| {
                allowance.grow(self.rate, now);
                allowance.left < self.rate.burst
            });
        }
        if !clients.contains_key(&user.name) {
            clients.insert(user.name.clone(), Allowance { left: self.rate.burst, at: now });
        }
        let Some(allowance) = clients.get_mut(&user.name) else { return Duration::ZERO };
        allowance.grow(self.rate, now);
        allowance.left -= amount;
        Duration::from_secs_f64((-allowance.left / self.rate.per_second).max(0.0))
    }
}

impl Limits {
    pub fn new(reads: usize, writes: usize, budgets: Budgets) -> Self {
        Self {
            reads: Places::new(reads, reads.div_ceil(2)),
            writes: Places::new(writes, writes.div_ceil(2)),
            long_running: Places::new(Semaphore::MAX_PERMITS, LONG_RUNNING),
            patience: PATIENCE,
            accounts: Accounts::new(budgets),
            lists: Allowances::new(LISTS),
            sent: Allowances::new(SENT),
            documents: Allowances::new(DOCUMENTS),
            definitions: Allowances::new(DEFINITIONS),
        }
    }

    /// Returns the account of a user's memory; administrators have none.
    pub(crate) fn account(&self, user: &User) -> Option<Arc<Account>> {
        (!user.in_group(MASTERS)).then(|| self.accounts.of(&user.name))
    }

    /// Waits until a body of this many bytes may be read from a client.
    pub(crate) async fn read(&self, account: &Account, bytes: usize) -> Result<Reading, Status> {
        tokio::time::timeout(self.patience, account.read(bytes)).await.map_err(|_| come_back())
    }

    /// Waits until there is room for bytes of a body that have arrived.
    pub(crate) async fn arrive(
        &self,
        account: &Account,
        reading: &mut Reading,
        bytes: usize,
    ) -> Result<(), Status> {
        tokio::time::timeout(self.patience, account.arrive(reading, bytes)).await.map_err(|_| come_back())
    }

    /// Waits until a body that was read from a client may be handled.
    pub(crate) async fn handle(
        &self,
        account: &Account,
        reading: &mut Reading,
        body: &[u8],
    ) -> Result<(), Status> {
        tokio::time::timeout(self.patience, account.handle(reading, body)).await.map_err(|_| come_back())
    }

    /// Waits until a client has read enough of its answers to get another one.
    pub(crate) async fn write(&self, account: &Account) -> Result<(), Status> {
        if !account.is_over() {
            return Ok(());
        }
        tokio::time::timeout(self.patience, account.room()).await.map_err(|_| come_back())
    }

    /// Charges the bytes that a client has sent. Returns how long to wait before more is read from it.
    pub fn sent(&self, user: &User, bytes: usize) -> Duration {
        self.sent.take(user, bytes as f64, Instant::now())
    }

    /// Runs expensive work for a client as soon as its share allows it, and charges it. `times` is the cost of the work with its
    /// consequences, as a multiple of its own cost.
    pub(crate) async fn in_background<T: Send + 'static>(
        &self,
        work: Work,
        user: &User,
        times: u32,
        compute: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Status> {
        let allowances = match work {
            Work::Document => &self.documents,
            Work::Definition => &self.definitions,
            Work::List => &self.lists,
        };
        let wait = allowances.take(user, AT_FIRST, Instant::now());
        if wait > LONG_PATIENCE {
            allowances.take(user, -AT_FIRST, Instant::now());
            let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
            return Err(Status::too_many_requests("Too many requests, please try again later.", seconds));
        }
        tokio::time::sleep(wait).await;
        let (result, time) = background::run(compute).await?;
        allowances.take(user, time.saturating_mul(times).as_secs_f64() - AT_FIRST, Instant::now());
        Ok(result)
    }

    /// Waits for a place. Administrators need none. Requests that stay open, or that another server answers, have separate
    /// limits.
    pub async fn enter(
        &self,
        user: &User,
        info: &RequestInfo,
        elsewhere: bool,
    ) -> Result<Option<Permit>, Status> {
        if user.in_group(MASTERS) || !(info.is_resource || elsewhere) {
            return Ok(None);
        }
        let (places, patience) = match info.verb {
            _ if elsewhere || info.is_long_running() => (&self.long_running, Duration::ZERO),
            "get" | "list" => (&self.reads, self.patience),
            _ => (&self.writes, self.patience),
        };
        match tokio::time::timeout(patience, places.take(&user.name)).await {
            Ok(permit) => Ok(Some(permit)),
            Err(_) => Err(come_back()),
        }
    }
}

/// A place among the requests in progress; it is free again when this is dropped.
#[derive(Debug)]
pub struct Permit {
    // Fields are dropped in this order: the client's own place last, after which the client may be forgotten.
    _place: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _client: KnownClient,
}

type Clients = Mutex<HashMap<String, Arc<Semaphore>>>;

/// A client that has a place or waits for one. When its last handle is dropped, the client is forgotten, also if it gave up
/// waiting.
#[derive(Debug)]
struct KnownClient {
    own: Option<Arc<Semaphore>>,
    client: String,
    clients: Arc<Clients>,
}

impl Drop for KnownClient {
    fn drop(&mut self) {
        let mut clients = self.clients.lock();
        drop(self.own.take());
        // There are no other handles: one is needed to hold a place or to wait for one, and handles are given out under this
        // lock.
        if clients.get(&self.client).is_some_and(|own| Arc::strong_count(own) == 1) {
            clients.remove(&self.client);
        }
    }
}

#[derive(Debug)]
struct Places {
    /// Places for all clients.
    open: Arc<Semaphore>,
    /// Places for clients that have at most `few`.
    kept: Arc<Semaphore>,
    share: usize,
    few: usize,
    clients: Arc<Clients>,
}

impl Places {
    fn new(all: usize, share: usize) -> Self {
        let kept = all / 4;
        Self {
            open: Arc::new(Semaphore::new(all.saturating_sub(kept))),
            kept: Arc::new(Semaphore::new(kept)),
            share: share.max(1),
            few: (all / 8).max(1),
            clients: Arc::default(),
        }
    }

    async fn take(&self, client: &str) -> Permit {
        let own = {
            let mut clients = self.clients.lock();
            clients.entry(client.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.share))).clone()
        };
        let known =
            KnownClient { own: Some(own.clone()), client: client.to_owned(), clients: self.clients.clone() };
        // The client's own limit first: a request that waits for it must not stand in the common queue.
        let own = own.acquire_owned().await.expect("the semaphore is never closed");
        let left = known.own.as_ref().map_or(0, |own| own.available_permits());
        let place = if self.share.saturating_sub(left) <= self.few {
            tokio::select! {
                biased;
                place = self.open.clone().acquire_owned() => place,
                place = self.kept.clone().acquire_owned() => place,
            }
        } else {
            self.open.clone().acquire_owned().await
        };
        Permit { _place: place.expect("the semaphore is never closed"), _own: own, _client: known }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Query;
    use http::Method;

    fn impatient(reads: usize, writes: usize) -> Limits {
        Limits { patience: Duration::from_millis(1), ..Limits::new(reads, writes, Budgets::default()) }
    }

    fn user(name: &str) -> User {
        User { name: name.to_owned(), ..User::default() }
    }

    fn list() -> RequestInfo {
        RequestInfo::parse(&Method::GET, "/api/v1/pods", &Query::default())
    }

    #[tokio::test]
    async fn one_client_cannot_take_all_places() {
        let limits = impatient(4, 2);
        let greedy = user("greedy");
        let first = limits.enter(&greedy, &list(), false).await.unwrap();
        let _second = limits.enter(&greedy, &list(), false).await.unwrap();
        let refused = limits.enter(&greedy, &list(), false).await.unwrap_err();
        assert_eq!((refused.code, refused.reason.as_str()), (429, "TooManyRequests"));
        assert!(limits.enter(&user("modest"), &list(), false).await.unwrap().is_some());
        drop(first);
        assert!(limits.enter(&greedy, &list(), false).await.is_ok());
    }

    #[tokio::test]
    async fn finding_24_clients_that_are_gone_are_forgotten() {
        let limits = impatient(4, 2);
        let permits =
            [limits.enter(&user("a"), &list(), false).await, limits.enter(&user("b"), &list(), false).await];
        assert_eq!(limits.reads.clients.lock().len(), 2);
        drop(permits);
        assert!(limits.reads.clients.lock().is_empty());
    }

    #[tokio::test]
    async fn clients_that_waited_in_vain_are_forgotten() {
        let limits = impatient(1, 1);
        let first = limits.enter(&user("a"), &list(), false).await.unwrap();
        assert!(limits.enter(&user("b"), &list(), false).await.is_err());
        assert_eq!(limits.reads.clients.lock().len(), 1);
        drop(first);
        assert!(limits.reads.clients.lock().is_empty());
    }

    #[tokio::test]
    async fn finding_25_two_clients_cannot_take_all_places() {
        let limits = impatient(16, 16);
        let mut taken = Vec::new();
        for client in ["first", "second"] {
            while let Ok(permit) = limits.enter(&user(client), &list(), false).await {
                taken.push(permit);
            }
        }
        for client in ["third", "fourth"] {
            assert!(limits.enter(&user(client), &list(), false).await.is_ok(), "{client}");
        }
    }

    #[tokio::test]
    async fn a_client_with_too_much_in_memory_gets_429() {
        let budgets = Budgets { reading: 1024, unsent: 10, ..Budgets::default() };
        let limits = Limits { patience: Duration::from_millis(1), ..Limits::new(1, 1, budgets) };
        let account = limits.account(&user("someone")).unwrap();
        let _reading = limits.read(&account, 1024).await.unwrap();
        assert_eq!(limits.read(&account, 1).await.unwrap_err().code, 429);
        let unsent = account.charged(bytes::Bytes::from_static(b"more than ten"));
        assert_eq!(limits.write(&account).await.unwrap_err().code, 429);
        drop(unsent);
        assert!(limits.write(&account).await.is_ok());
        assert!(limits.account(&User::system("admin")).is_none());
    }

    #[tokio::test]
    async fn finding_25_a_client_with_many_names_gets_429() {
        let budgets = Budgets { reading: 1 << 20, ..Budgets::default() };
        let limits = Limits { patience: Duration::from_millis(1), ..Limits::new(1, 1, budgets) };
        let mut held = Vec::new();
        let refused = loop {
            let account = limits.account(&user(&format!("account-{}", held.len()))).unwrap();
            let mut reading = limits.read(&account, 1 << 20).await.unwrap();
            match limits.arrive(&account, &mut reading, 1 << 20).await {
                Ok(()) => held.push(reading),
                Err(refused) => break refused,
            }
        };
        assert_eq!((refused.code, refused.reason.as_str()), (429, "TooManyRequests"));
        assert_eq!(held.len(), 8);
        let account = limits.account(&user("modest")).unwrap();
        let mut reading = limits.read(&account, 1024).await.unwrap();
        assert!(limits.arrive(&account, &mut reading, 1024).await.is_ok());
    }

    #[test]
    fn a_client_that_sends_too_fast_is_read_later() {
        let sent = Allowances::new(SENT);
        let (client, now) = (user("someone"), Instant::now());
        let megabytes = |count: u32| f64::from(count) * 1024.0 * 1024.0;
        assert_eq!(sent.take(&client, megabytes(16), now), Duration::ZERO);
        assert_eq!(sent.take(&client, megabytes(4), now), Duration::from_millis(500));
        assert_eq!(sent.take(&user("other"), megabytes(1), now), Duration::ZERO);
        assert_eq!(sent.take(&client, 0.0, now + Duration::from_millis(500)), Duration::ZERO);
        assert_eq!(sent.take(&User::system("admin"), megabytes(1000), now), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_client_that_would_wait_too_long_gets_429() {
        let limits = Limits::new(1, 1, Budgets::default());
        let ask =
            async |name: &str| limits.in_background(Work::Document, &user(name), 1, async { "made" }).await;
        assert_eq!(ask("someone").await.unwrap(), "made");
        limits.documents.take(&user("someone"), 3.0, Instant::now());
        let refused = ask("someone").await.unwrap_err();
        assert_eq!((refused.code, refused.reason.as_str()), (429, "TooManyRequests"));
        assert_eq!(ask("other").await.unwrap(), "made");
        let left = limits.documents.clients.lock()["someone"].left;
        assert!((-2.75..-2.5).contains(&left), "who is sent away pays nothing: {left}");
    }

    #[tokio::test]
    async fn administrators_always_get_in() {
        let limits = impatient(1, 1);
        let _taken = limits.enter(&user("someone"), &list(), false).await.unwrap();
        assert!(limits.enter(&User::system("admin"), &list(), false).await.unwrap().is_none());
        assert!(limits.enter(&user("other"), &list(), false).await.is_err());
    }
}
