//! Counts connections, in total and for each address, and chooses which one leaves when a new one needs its place.
//!
//! Connections cost a caller next to nothing, and without TLS anybody can open them. So nobody keeps a place for good: a connection
//! without requests leaves for a new one, and an address with many leaves one to an address with few, even with requests in progress.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// How many connections there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// A few schedulers have one each.
    pub(super) all: usize,
    /// Of one address; several schedulers may come from behind one.
    pub(super) per_address: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { all: 256, per_address: 64 }
    }
}

/// A connection in the list.
#[derive(Debug)]
pub(super) struct Guest {
    origin: IpAddr,
    requests: Mutex<Requests>,
    leaving: CancellationToken,
    guests: Arc<Guests>,
}

#[derive(Debug)]
struct Requests {
    in_progress: usize,
    /// When the connection was opened or its last request ended, by a clock that counts these events.
    since: u64,
}

impl Guest {
    /// Counts a request, until the returned value is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Active {
        let mut requests = self.requests.lock();
        requests.in_progress = requests.in_progress.saturating_add(1);
        Active(self.clone())
    }

    /// Returns what is cancelled when the connection has to go.
    pub(super) fn leaving(&self) -> CancellationToken {
        self.leaving.clone()
    }
}

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct Active(Arc<Guest>);

impl Drop for Active {
    fn drop(&mut self) {
        let now = self.0.guests.tick();
        let mut requests = self.0.requests.lock();
        requests.in_progress = requests.in_progress.saturating_sub(1);
        requests.since = now;
    }
}

/// All connections of a listener.
#[derive(Debug)]
pub(super) struct Guests {
    limits: Limits,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    clock: u64,
    all: BTreeMap<u64, Arc<Guest>>,
}

impl List {
    fn tick(&mut self) -> u64 {
        self.clock = self.clock.saturating_add(1);
        self.clock
    }

    fn staying(&self) -> impl Iterator<Item = &Arc<Guest>> {
        self.all.values().filter(|guest| !guest.leaving.is_cancelled())
    }

    /// Has the connection leave that has been without requests for longest, of those that are wanted. If all have requests in progress,
    /// the oldest one leaves if it may. Returns whether there was one.
    fn evict(&self, wanted: impl Fn(&Guest) -> bool, busy_too: bool) -> bool {
        let ranked = self.staying().filter(|guest| wanted(guest)).map(|guest| {
            let requests = guest.requests.lock();
            ((requests.in_progress > 0, requests.since), guest)
        });
        let chosen = ranked.filter(|((busy, _), _)| busy_too || !busy).min_by_key(|(rank, _)| *rank);
        if let Some((_, guest)) = chosen {
            tracing::debug!(address = %guest.origin, "a connection is closed: others are waiting");
            guest.leaving.cancel();
        }
        chosen.is_some()
    }
}

impl Guests {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, list: Mutex::default() })
    }

    fn tick(&self) -> u64 {
        self.list.lock().tick()
    }

    /// Accepts a connection, if there is room or if another one can leave for it.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Slot> {
        let origin = origin(address);
        let mut list = self.list.lock();
        if !self.has_room(&list, origin) {
            return None;
        }
        let number = list.tick();
        let requests = Mutex::new(Requests { in_progress: 0, since: number });
        let leaving = CancellationToken::new();
        let guest = Arc::new(Guest { origin, requests, leaving, guests: self.clone() });
        list.all.insert(number, guest.clone());
        Some(Slot { number, guest })
    }

    fn has_room(&self, list: &List, origin: IpAddr) -> bool {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for guest in list.staying() {
            let count = counts.entry(guest.origin).or_default();
            *count = count.saturating_add(1);
        }
        let own = counts.get(&origin).copied().unwrap_or(0);
        if own >= self.limits.per_address {
            return list.evict(|guest| guest.origin == origin, false);
        }
        if list.staying().count() < self.limits.all {
            return true;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        if most > own.saturating_add(1) {
            return list.evict(|guest| counts.get(&guest.origin) == Some(&most), true);
        }
        list.evict(|_| true, false)
    }
}

/// Returns whose share of the places an address uses. Whoever has one address of IPv6 has all others of its network, too.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        four => four,
    }
}

/// A place among the connections; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    number: u64,
    pub(super) guest: Arc<Guest>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.guest.guests.list.lock().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn leaving(slot: &Slot) -> bool {
        slot.guest.leaving.is_cancelled()
    }

    #[test]
    fn finding_4_one_address_does_not_take_all_places() {
        let guests = Guests::new(Limits { all: 10, per_address: 2 });
        let take = |address: &str| guests.enter(address.parse().unwrap());
        let first = take("10.0.0.1").unwrap();
        let second = take("::ffff:10.0.0.1").unwrap();
        let (busy, busy_too) = (first.guest.begin(), second.guest.begin());
        assert!(take("10.0.0.1").is_none(), "its two have requests in progress");
        let other = take("10.0.0.2").unwrap();
        drop(busy_too);
        let third = take("10.0.0.1").unwrap();
        assert!(leaving(&second) && !leaving(&first) && !leaving(&other));
        let (six, again) = (take("fd00::1").unwrap(), take("fd00::2").unwrap());
        let _third_of_a_network = take("fd00:0:0:0:1::3").unwrap();
        assert!(leaving(&six) && !leaving(&again));
        drop((busy, first, second, other, third, six, again));
        assert_eq!(guests.list.lock().all.len(), 1, "nothing is kept of the gone");
    }

    #[test]
    fn finding_4_four_addresses_do_not_keep_all_places_for_good() {
        let guests = Guests::new(Limits { all: 8, per_address: 2 });
        let all: Vec<Slot> = (0..8).map(|number| guests.enter(address(number / 2)).unwrap()).collect();
        let scheduler = guests.enter(address(9)).unwrap();
        assert_eq!(
            all.iter().map(leaving).collect::<Vec<_>>(),
            [true, false, false, false, false, false, false, false]
        );
        let _busy: Vec<Active> = all.iter().map(|slot| slot.guest.begin()).collect();
        let second = guests.enter(address(8)).unwrap();
        assert!(leaving(&all[2]) && !leaving(&scheduler), "those with many leave one to those with few");
        let _busy_too = (scheduler.guest.begin(), second.guest.begin());
        let _third = guests.enter(address(7)).unwrap();
        assert!(leaving(&all[4]) && !leaving(&all[1]) && !leaving(&scheduler) && !leaving(&second));
    }

    #[test]
    fn nobody_leaves_while_at_work_for_one_who_has_as_many() {
        let guests = Guests::new(Limits { all: 2, per_address: 2 });
        let slots = [guests.enter(address(1)).unwrap(), guests.enter(address(2)).unwrap()];
        let busy: Vec<Active> = slots.iter().map(|slot| slot.guest.begin()).collect();
        assert!(guests.enter(address(3)).is_none());
        drop(busy);
        let third = guests.enter(address(3)).unwrap();
        let _work = third.guest.begin();
        assert!(leaving(&slots[0]) && !leaving(&slots[1]), "the one whose work ended first");
    }
}
