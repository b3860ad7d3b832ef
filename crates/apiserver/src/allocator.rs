//! Cluster addresses and node ports for Services.
//!
//! Everything in use has an entry in the store that names the Service. The entry is created and removed in the same commit as the
//! Service that takes it or gives it back. So no two Services have the same address or port, whichever servers write them, and a
//! write that fails, or whose outcome is unknown, leaves nothing behind. There is no state outside the store.
//!
//! Two that want the same at the same moment: the commit of one is refused, and it looks for another.
//!
//! An address has its entry whether or not it is in one of the ranges of this server: another server may have other ranges, or this
//! one after its next start, and what a Service has stays its own.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use apimachinery::field::Errors;
use futures::future::try_join_all;
use native::prepare::service::{self, Allocation, Family};
use serde_json::Value;
use store::{CommitError, Expect, Store, Write};

use crate::head::Head;
use crate::object;
use crate::service_ranges::ServiceRanges;

const PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;

/// These are not collections of kinds: no API shows them.
const ADDRESSES: &str = "ranges/serviceips";
const NODE_PORTS: &str = "ranges/servicenodeports";
const SERVICES: &str = "services/specs";

/// Returns what has to be written together with a Service that takes and gives back so much.
pub(crate) fn writes(
    store: &Store<Head>,
    namespace: &str,
    name: &str,
    allocation: &Allocation,
) -> Vec<Write<Head>> {
    let owner = object::join_key(namespace, name);
    let taken = entries(&allocation.taken_ips, &allocation.taken_ports)
        .map(|(collection, name)| reserve(collection, &name, &owner));
    let freed = entries(&allocation.freed_ips, &allocation.freed_ports).filter_map(|(collection, name)| {
        // A Service that an earlier release stored may have no entry, and the entry with its address may belong to another one.
        let entry = store.get(collection, &name).filter(|entry| *entry.value == *owner.as_bytes())?;
        Some(Write::delete(collection, name, Expect::Revision(entry.modified)))
    });
    taken.chain(freed).collect()
}

/// Returns the writes that must be committed together with the deletion of a Service.
pub(crate) fn release(store: &Store<Head>, namespace: &str, name: &str, last: &Value) -> Vec<Write<Head>> {
    writes(store, namespace, name, &service::held(last))
}

/// Returns the writes that must be committed together with a Service that brings its addresses and ports from elsewhere. It keeps
/// them in any case; an entry that another Service already has stays with that one.
pub(crate) fn adopt(store: &Store<Head>, namespace: &str, name: &str, object: &Value) -> Vec<Write<Head>> {
    let (owner, held) = (object::join_key(namespace, name), service::held(object));
    entries(&held.freed_ips, &held.freed_ports)
        .filter(|(collection, name)| store.get(collection, name).is_none())
        .map(|(collection, name)| reserve(collection, &name, &owner))
        .collect()
}

/// Returns whether an entry of this collection stands for an address or a port.
pub(crate) fn is_range(collection: &str) -> bool {
    collection == ADDRESSES || collection == NODE_PORTS
}

/// Repairs the entries according to the stored Services: an earlier release did not write any, and a Service that could not be
/// read leaves its entries behind.
pub(crate) async fn repair(store: &Store<Head>) -> Result<(), CommitError<Head>> {
    let all = store.snapshots([SERVICES, ADDRESSES, NODE_PORTS]);
    let [services, addresses, ports] = &all[..] else { return Ok(()) };
    let mut held: BTreeSet<(&str, String)> = BTreeSet::new();
    let mut repairs = Vec::new();
    for entry in services.iter() {
        let Ok(object) = serde_json::from_slice::<Value>(&entry.value) else { continue };
        let holds = service::held(&object);
        for (collection, name) in entries(&holds.freed_ips, &holds.freed_ports) {
            let known = if collection == ADDRESSES { addresses.get(&name) } else { ports.get(&name) };
            if known.is_none() && !held.contains(&(collection, name.clone())) {
                repairs.push(reserve(collection, &name, &entry.name));
            }
            held.insert((collection, name));
        }
    }
    for (collection, snapshot) in [(ADDRESSES, addresses), (NODE_PORTS, ports)] {
        for entry in snapshot.iter().filter(|entry| !held.contains(&(collection, entry.name.to_string()))) {
            // As long as the entry exists, no other Service can have taken it.
            repairs.push(Write::delete(collection, entry.name.clone(), Expect::Revision(entry.modified)));
        }
    }
    // Another server may do the same at the same time.
    try_join_all(repairs.into_iter().map(|write| async {
        match store.commit(write).await {
            Ok(_) | Err(CommitError::Conflict { .. } | CommitError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }))
    .await
    .map(drop)
}

/// Returns where addresses and ports are noted.
fn entries<'a>(
    addresses: &'a [String],
    ports: &'a [u16],
) -> impl Iterator<Item = (&'static str, String)> + 'a {
    let addresses =
        addresses.iter().filter_map(|address| Some((ADDRESSES, entry_name(address.parse::<IpAddr>().ok()?))));
    addresses.chain(ports.iter().map(|port| (NODE_PORTS, port.to_string())))
}

/// An address may be written in several ways, and has one entry.
fn entry_name(address: IpAddr) -> String {
    address.to_canonical().to_string()
}

fn reserve(collection: &str, name: &str, owner: &str) -> Write<Head> {
    Write::put(collection, name, Expect::Absent, owner.as_bytes().to_vec().into(), Head::default())
}

/// What nobody has at this moment, and the Service at hand has not taken yet.
pub(crate) struct Free<'a> {
    store: &'a Store<Head>,
    ranges: &'a ServiceRanges,
    /// Nothing will be stored. Then, as upstream, it does not matter who has what.
    dry_run: bool,
    taken: RefCell<BTreeSet<(&'static str, String)>>,
}

impl<'a> Free<'a> {
    pub(crate) fn new(store: &'a Store<Head>, ranges: &'a ServiceRanges, dry_run: bool) -> Self {
        Self { store, ranges, dry_run, taken: RefCell::default() }
    }

    /// Gives a Service what it needs. It has it once [`writes`] are committed together with the Service.
    pub(crate) fn assign(&self, object: &mut Value, old: Option<&Value>) -> Result<Allocation, Errors> {
        service::allocate(object, old, self)
    }

    fn take(&self, collection: &'static str, name: String) -> bool {
        let free = self.dry_run || self.store.get(collection, &name).is_none();
        free && self.taken.borrow_mut().insert((collection, name))
    }

    fn take_address(&self, address: IpAddr) -> bool {
        self.take(ADDRESSES, entry_name(address))
    }
}

impl service::Allocator for Free<'_> {
    fn families(&self) -> &[Family] {
        self.ranges.families()
    }

    fn cluster_ip(&self, family: Family, wanted: Option<&str>) -> Result<String, String> {
        let Some(range) = self.ranges.of(family) else {
            return Err(format!("{} is not configured on this cluster", family.name()));
        };
        if let Some(wanted) = wanted {
            let Some(address) = wanted.parse::<IpAddr>().ok().filter(|address| range.contains(*address))
            else {
                // Upstream asks different parts of itself.
                return Err(if self.dry_run {
                    format!(
                        "the provided IP ({wanted}) is not in the valid range. The range of valid IPs is {range}"
                    )
                } else {
                    "the provided network does not match the current range".to_owned()
                });
            };
            return if self.take_address(address) {
                Ok(wanted.to_owned())
            } else {
                Err("provided IP is already allocated".to_owned())
            };
        }
        let free = range.candidates().find(|address| self.take_address(*address));
        free.map(|address| address.to_string()).ok_or_else(|| "range is full".to_owned())
    }

    fn node_port(&self, wanted: Option<u16>) -> Result<u16, String> {
        let take = |port: &u16| self.take(NODE_PORTS, port.to_string());
        if let Some(port) = wanted {
            if !PORTS.contains(&port) {
                return Err(
                    "provided port is not in the valid range. The range of valid ports is 30000-32767"
                        .to_owned(),
                );
            }
            return if take(&port) { Ok(port) } else { Err("provided port is already allocated".to_owned()) };
        }
        let random = (0..64).map(|_| rand::random_range(30086..=32767));
        random.chain(PORTS).find(take).ok_or_else(|| "range is full".to_owned())
    }

    fn release_cluster_ip(&self, _: &str) {}

    fn release_node_port(&self, _: u16) {}
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use store::Options;

    use super::*;

    fn service(address: &str, port: u16) -> Value {
        json!({"spec": {"type": "NodePort", "clusterIP": address, "clusterIPs": [address],
            "ports": [{"port": 80, "nodePort": port}]}})
    }

    fn open() -> Store<Head> {
        Store::open(Options::memory()).expect("memory is always there")
    }

    async fn put(store: &Store<Head>, name: &str, object: &Value) {
        let value = object.to_string().into_bytes().into();
        let write = Write::put(SERVICES, name, Expect::Any, value, Head::default());
        store.commit(write).await.expect("stored");
    }

    fn noted(store: &Store<Head>) -> Vec<String> {
        let all = store.snapshots([ADDRESSES, NODE_PORTS]);
        let text = |entry: &std::sync::Arc<store::Entry<Head>>| {
            format!("{} {}", entry.name, String::from_utf8_lossy(&entry.value))
        };
        all.iter().flat_map(|snapshot| snapshot.iter().map(text).collect::<Vec<_>>()).collect()
    }

    #[tokio::test]
    async fn only_addresses_and_ports_of_stored_services_have_entries() {
        let store = open();
        put(&store, "default/web", &service("10.96.0.7", 30007)).await;
        put(&store, "default/headless", &json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}))
            .await;
        // A Service that could not be read left this behind.
        store.commit(reserve(NODE_PORTS, "30008", "default/gone")).await.expect("noted");
        for _ in 0..2 {
            repair(&store).await.expect("the store takes writes");
            assert_eq!(noted(&store), ["10.96.0.7 default/web", "30007 default/web"]);
        }
        let before = store.revision();
        repair(&store).await.expect("the store takes writes");
        assert_eq!(store.revision(), before, "nothing was to be done");
    }

    #[tokio::test]
    async fn a_service_that_goes_takes_only_its_own_along() {
        let store = open();
        let object = service("10.96.0.7", 30007);
        put(&store, "default/web", &object).await;
        repair(&store).await.expect("the store takes writes");
        assert!(release(&store, "default", "other", &object).is_empty(), "they are somebody else's");
        assert_eq!(release(&store, "default", "web", &object).len(), 2);
        assert!(adopt(&store, "default", "other", &object).is_empty(), "they stay somebody else's");
        assert_eq!(adopt(&store, "default", "other", &service("10.96.0.8", 30007)).len(), 1);
    }

    #[tokio::test]
    async fn an_address_in_use_is_not_allocated_again() {
        let store = open();
        put(&store, "default/web", &service("10.96.0.7", 30007)).await;
        repair(&store).await.expect("the store takes writes");
        let ranges = ServiceRanges::default();
        let told = |mut object: Value| Free::new(&store, &ranges, false).assign(&mut object, None).map(drop);
        for taken in [service("10.96.0.7", 30001), service("10.96.0.1", 30007)] {
            let errors = told(taken).expect_err("it is taken");
            assert!(format!("{errors:?}").contains("is already allocated"), "{errors:?}");
        }
        told(service("10.96.0.8", 30008)).expect("it is free");
    }
    #[tokio::test]
    async fn both_addresses_are_taken_given_back_and_never_given_twice() {
        let (store, ranges) = (open(), "10.0.0.0/29,fd00::/108".parse().expect("ranges"));
        let assign = |spec: Value, old: Option<&Value>| {
            let mut object = json!({"spec": spec});
            let held = Free::new(&store, &ranges, false).assign(&mut object, old)?;
            Ok::<_, Errors>((object, held))
        };
        let port = json!([{"port": 80, "protocol": "TCP"}]);
        let both = json!({"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack", "ports": port,
            "clusterIP": "10.0.0.3", "clusterIPs": ["10.0.0.3", "FD00:0::7"]});
        let (web, held) = assign(both.clone(), None).expect("both are free");
        assert_eq!(web["spec"]["clusterIPs"], json!(["10.0.0.3", "FD00:0::7"]), "as it was written");
        commit(&store, "default/web", &web, writes(&store, "default", "web", &held)).await;
        assert_eq!(noted(&store), ["10.0.0.3 default/web", "fd00::7 default/web"]);

        // However it is written.
        let mut other = both;
        other["clusterIP"] = "10.0.0.4".into();
        other["clusterIPs"] = json!(["10.0.0.4", "fd00::7"]);
        let errors = assign(other, None).expect_err("the second one is taken");
        assert!(
            format!("{errors:?}").contains("failed to allocate IP fd00::7: provided IP is already allocated"),
            "{errors:?}"
        );

        let mut single = web.clone();
        single["spec"]["ipFamilyPolicy"] = "SingleStack".into();
        let (single, held) =
            assign(single["spec"].clone(), Some(&web)).expect("it gives the second one back");
        assert_eq!(single["spec"]["clusterIPs"], json!(["10.0.0.3"]));
        commit(&store, "default/web", &single, writes(&store, "default", "web", &held)).await;
        assert_eq!(noted(&store), ["10.0.0.3 default/web"]);
    }

    /// A server that is still to be told of the second range starts beside one that has it already.
    #[tokio::test]
    async fn addresses_of_no_range_of_ours_stay_noted() {
        let store = open();
        let object = json!({"spec": {"type": "ClusterIP", "clusterIPs": ["10.96.0.7", "fd00::7"]}});
        put(&store, "default/web", &object).await;
        for _ in 0..2 {
            repair(&store).await.expect("the store takes writes");
            assert_eq!(noted(&store), ["10.96.0.7 default/web", "fd00::7 default/web"]);
        }
        assert_eq!(release(&store, "default", "web", &object).len(), 2);
    }

    #[tokio::test]
    async fn a_range_that_is_full_says_so() {
        let (store, ranges) = (open(), "10.0.0.0/29".parse().expect("a range"));
        let free = Free::new(&store, &ranges, false);
        let mut given: Vec<String> =
            std::iter::from_fn(|| service::Allocator::cluster_ip(&free, Family::V4, None).ok()).collect();
        given.sort();
        assert_eq!(given, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
        assert_eq!(service::Allocator::cluster_ip(&free, Family::V4, None), Err("range is full".to_owned()));
    }

    async fn commit(store: &Store<Head>, name: &str, object: &Value, ranges: Vec<Write<Head>>) {
        let value = object.to_string().into_bytes().into();
        let write = Write::put(SERVICES, name, Expect::Any, value, Head::default());
        store.commit_with(write, ranges).await.expect("stored");
    }
}
