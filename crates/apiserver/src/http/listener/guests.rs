//! Counts connections, in total and for each address, and chooses which one is closed when a new one needs its place.
//!
//! Requests only touch atomics; the list is locked when a connection is opened or closed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::Settings;

/// A connection in the list.
#[derive(Debug)]
pub struct Guest {
    address: IpAddr,
    /// Requests whose answers are not complete.
    active: AtomicU32,
    /// When the connection was opened or the last request ended, in milliseconds of [`now`].
    since: AtomicU64,
    /// The head of a request has been received completely.
    served: AtomicBool,
    /// A request had a valid credential.
    known: AtomicBool,
    /// Accepted beyond the limits: it remains only if it turns out to be an administrator's.
    reserve: AtomicBool,
    leaving: CancellationToken,
}

/// Milliseconds since the first call.
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Guest {
    fn new(address: IpAddr, reserve: bool) -> Self {
        Self {
            address,
            active: AtomicU32::new(0),
            since: AtomicU64::new(now()),
            served: AtomicBool::new(false),
            known: AtomicBool::new(false),
            reserve: AtomicBool::new(reserve),
            leaving: CancellationToken::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn of(address: IpAddr) -> Self {
        Self::new(address, false)
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Notes that a request had a valid credential: such a connection is among the last to be closed.
    pub fn is_known(&self) {
        self.known.store(true, Ordering::Relaxed);
    }

    /// Counts a request, until the returned value is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.served.store(true, Ordering::Relaxed);
        Active(self.clone())
    }

    /// Closes the connection, even with requests in progress.
    pub fn dismiss(&self) {
        self.leaving.cancel();
    }

    pub(super) async fn dismissed(&self) {
        self.leaving.cancelled().await;
    }

    /// Waits until the connection has been idle for too long.
    pub(super) async fn idle_for_too_long(&self, settings: &Settings) {
        loop {
            let limit =
                if self.served.load(Ordering::Relaxed) { settings.idle } else { settings.first_request };
            let rest = if self.active.load(Ordering::Relaxed) > 0 {
                limit
            } else {
                limit.saturating_sub(self.idle_for())
            };
            if rest.is_zero() {
                return;
            }
            tokio::time::sleep(rest).await;
        }
    }

    fn idle_for(&self) -> Duration {
        Duration::from_millis(now().saturating_sub(self.since.load(Ordering::Relaxed)))
    }

    /// Returns the order in which connections are closed: those without a valid credential first, and within both groups the
    /// longest idle first. `None` for connections with requests in progress.
    fn rank(&self) -> Option<(bool, u64)> {
        let idle = self.active.load(Ordering::Relaxed) == 0 && !self.leaving.is_cancelled();
        idle.then(|| (self.known.load(Ordering::Relaxed), self.since.load(Ordering::Relaxed)))
    }
}

/// A request whose answer is not complete.
#[derive(Debug)]
pub(super) struct Active(Arc<Guest>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.since.store(now(), Ordering::Relaxed);
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All connections of a listener.
#[derive(Debug)]
pub(super) struct Guests {
    settings: Settings,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    all: BTreeMap<u64, Arc<Guest>>,
}

impl List {
    /// Counts the connections that remain: in total, from an address, and those beyond the limits.
    fn count(&self, address: IpAddr) -> (usize, usize, usize) {
        let staying = self.all.values().filter(|guest| !guest.leaving.is_cancelled());
        staying.fold((0, 0, 0), |(all, same, reserve): (usize, usize, usize), guest| {
            if guest.reserve.load(Ordering::Relaxed) {
                (all, same, reserve.saturating_add(1))
            } else {
                let here = usize::from(guest.address == address);
                (all.saturating_add(1), same.saturating_add(here), reserve)
            }
        })
    }

    /// Closes the least important connection. Returns whether there was one.
    fn evict(&self, wanted: impl Fn(&Guest) -> bool) -> bool {
        let idle = self.all.values().filter(|guest| wanted(guest));
        let chosen =
            idle.filter_map(|guest| guest.rank().map(|rank| (rank, guest))).min_by_key(|(rank, _)| *rank);
        if let Some((_, guest)) = chosen {
            tracing::debug!(address = %guest.address, "closing an idle connection: others are waiting");
            guest.dismiss();
        }
        chosen.is_some()
    }
}

impl Guests {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self { settings, list: Mutex::default() })
    }

    /// Accepts a connection. If there is no room, an idle one is closed for it. If none is idle, it goes into the reserve, where
    /// only administrators may stay. `None` if that is full, too.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Slot> {
        let mut list = self.list.lock();
        let reserve = !self.has_room(&list, address);
        if reserve && !self.reserve_has_room(&list, address) {
            return None;
        }
        let guest = Arc::new(Guest::new(address, reserve));
        let number = list.next;
        list.next = number.saturating_add(1);
        list.all.insert(number, guest.clone());
        Some(Slot { number, guest, guests: self.clone() })
    }

    fn has_room(&self, list: &List, address: IpAddr) -> bool {
        let (all, same, _) = list.count(address);
        let ordinary = |guest: &Guest| !guest.reserve.load(Ordering::Relaxed);
        if same >= self.settings.per_address {
            return list.evict(|guest| ordinary(guest) && guest.address == address);
        }
        all < self.settings.connections || list.evict(ordinary)
    }

    fn reserve_has_room(&self, list: &List, address: IpAddr) -> bool {
        let (.., reserve) = list.count(address);
        let in_reserve = |guest: &Guest| guest.reserve.load(Ordering::Relaxed);
        reserve < self.settings.reserve || (self.settings.reserve > 0 && list.evict(in_reserve))
    }

    /// Frees a connection after the system refused a new one.
    pub(super) fn make_room(&self) -> bool {
        self.list.lock().evict(|_| true)
    }
}

/// A place among the connections; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    number: u64,
    pub(super) guest: Arc<Guest>,
    guests: Arc<Guests>,
}

impl Slot {
    /// Returns whether the connection may stay, now that it is known whether it is an administrator's.
    pub(super) fn may_stay(&self, administrator: bool) -> bool {
        if administrator {
            self.guest.is_known();
            return true;
        }
        if !self.guest.reserve.load(Ordering::Relaxed) {
            return true;
        }
        let list = self.guests.list.lock();
        let room = self.guests.has_room(&list, self.guest.address);
        if room {
            self.guest.reserve.store(false, Ordering::Relaxed);
        }
        room
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.guests.list.lock().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guests(connections: usize, per_address: usize, reserve: usize) -> Arc<Guests> {
        Guests::new(Settings { connections, per_address, reserve, ..Settings::default() })
    }

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn silent_connections_leave_for_new_ones() {
        let guests = guests(2, 2, 0);
        let silent = guests.enter(address(1)).unwrap();
        let busy = guests.enter(address(2)).unwrap();
        let _request = busy.guest.begin();
        let new = guests.enter(address(3)).unwrap();
        assert!(silent.guest.leaving.is_cancelled() && !busy.guest.leaving.is_cancelled());
        let _request = new.guest.begin();
        assert!(guests.enter(address(4)).is_none(), "nobody is idle");
    }

    #[test]
    fn strangers_leave_before_users() {
        let guests = guests(2, 2, 0);
        let user = guests.enter(address(1)).unwrap();
        user.guest.is_known();
        drop(user.guest.begin());
        let stranger = guests.enter(address(2)).unwrap();
        let _new = guests.enter(address(3)).unwrap();
        assert!(stranger.guest.leaving.is_cancelled() && !user.guest.leaving.is_cancelled());
    }

    #[test]
    fn one_address_takes_its_share_only() {
        let guests = guests(4, 2, 0);
        let first = guests.enter(address(1)).unwrap();
        let second = guests.enter(address(1)).unwrap();
        let requests = [first.guest.begin(), second.guest.begin()];
        assert!(guests.enter(address(1)).is_none());
        let other = guests.enter(address(2)).unwrap();
        drop(requests);
        let _third = guests.enter(address(1)).unwrap();
        assert!(first.guest.leaving.is_cancelled() && !other.guest.leaving.is_cancelled());
    }

    #[test]
    fn the_reserve_is_for_administrators() {
        let guests = guests(1, 1, 1);
        let busy = guests.enter(address(1)).unwrap();
        let request = busy.guest.begin();
        assert!(busy.may_stay(false));
        let stranger = guests.enter(address(2)).unwrap();
        assert!(!stranger.may_stay(false));
        drop(stranger);
        let administrator = guests.enter(address(2)).unwrap();
        assert!(administrator.may_stay(true));
        let _work = administrator.guest.begin();
        assert!(guests.enter(address(3)).is_none());
        drop(request);
        let late = guests.enter(address(3)).unwrap();
        assert!(late.may_stay(false) && busy.guest.leaving.is_cancelled());
    }

    #[tokio::test]
    async fn a_connection_is_idle_only_without_requests() {
        let settings = Settings { idle: Duration::from_millis(10), ..Settings::default() };
        let slot = Guests::new(settings).enter(address(1)).unwrap();
        let request = slot.guest.begin();
        let outcome = tokio::time::timeout(settings.idle * 10, slot.guest.idle_for_too_long(&settings)).await;
        assert!(outcome.is_err());
        drop(request);
        slot.guest.idle_for_too_long(&settings).await;
    }
}
