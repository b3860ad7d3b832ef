//! Cluster addresses and node ports for Services.
//!
//! Everything in use has an entry in the store that names the Service. The entry is created and removed in the same commit as the
//! Service that takes it or gives it back. So no two Services have the same address or port, whichever servers write them, and a
//! write that fails, or whose outcome is unknown, leaves nothing behind. There is no state outside the store.
//!
//! If two Services want the same at the same moment, one commit is refused, and that Service tries another.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use futures::future::try_join_all;
use native::prepare::service::{self, Allocation};
use serde_json::Value;
use store::{CommitError, Expect, Store, Write};

use crate::head::Head;
use crate::object;

/// Where the addresses of Services come from, as kube-apiserver's default.
pub(crate) const RANGE: &str = "10.96.0.0/12";
const NETWORK: u32 = u32::from_be_bytes([10, 96, 0, 0]);
const NETWORK_SIZE: u32 = 1 << 20;
const PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;

/// These are not collections of kinds: no API shows them.
const ADDRESSES: &str = "ranges/serviceips";
const NODE_PORTS: &str = "ranges/servicenodeports";
const SERVICES: &str = "services/specs";

/// Gives a Service the addresses and ports that it needs. They are taken once [`writes`] are committed together with the Service.
pub(crate) fn assign(
    store: &Store<Head>,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<Allocation, apimachinery::field::Errors> {
    service::allocate(object, old, &Free { store, taken: RefCell::default() })
}

/// Returns the writes that must be committed together with a Service, for what it takes and gives back.
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

/// Returns the collections for addresses of our range and for ports.
fn entries<'a>(
    addresses: &'a [String],
    ports: &'a [u16],
) -> impl Iterator<Item = (&'static str, String)> + 'a {
    let addresses = addresses.iter().filter(|address| offset(address).is_some());
    let addresses = addresses.map(|address| (ADDRESSES, address.clone()));
    addresses.chain(ports.iter().map(|port| (NODE_PORTS, port.to_string())))
}

fn reserve(collection: &str, name: &str, owner: &str) -> Write<Head> {
    Write::put(collection, name, Expect::Absent, owner.as_bytes().to_vec().into(), Head::default())
}

fn offset(address: &str) -> Option<u32> {
    let address = u32::from(address.parse::<Ipv4Addr>().ok()?);
    address.checked_sub(NETWORK).filter(|offset| *offset < NETWORK_SIZE)
}

/// Finds addresses and ports that are free at this moment, and that the Service at hand has not taken yet.
struct Free<'a> {
    store: &'a Store<Head>,
    taken: RefCell<BTreeSet<(&'static str, String)>>,
}

impl Free<'_> {
    fn take(&self, collection: &'static str, name: String) -> bool {
        self.store.get(collection, &name).is_none() && self.taken.borrow_mut().insert((collection, name))
    }
}

impl service::Allocator for Free<'_> {
    fn cluster_ip(&self, wanted: Option<&str>) -> Result<String, String> {
        let take = |address: &String| self.take(ADDRESSES, address.clone());
        if let Some(wanted) = wanted {
            let Some(offset) = offset(wanted) else {
                return Err(format!(
                    "the provided IP ({wanted}) is not in the valid range. The range of valid IPs is {RANGE}"
                ));
            };
            let address = address(offset);
            return if take(&address) {
                Ok(address)
            } else {
                Err("provided IP is already allocated".to_owned())
            };
        }
        // The lower part of the range is reserved for addresses that are requested explicitly; the first and last are not hosts.
        let random = (0..64).map(|_| rand::random_range(256..NETWORK_SIZE - 1));
        let address = random.chain(1..NETWORK_SIZE - 1).map(address).find(take);
        address.ok_or_else(|| "range is full".to_owned())
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

fn address(offset: u32) -> String {
    Ipv4Addr::from(NETWORK + offset).to_string()
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
        let told = |mut object: Value| assign(&store, &mut object, None).map(drop);
        for taken in [service("10.96.0.7", 30001), service("10.96.0.1", 30007)] {
            let errors = told(taken).expect_err("it is taken");
            assert!(format!("{errors:?}").contains("is already allocated"), "{errors:?}");
        }
        told(service("10.96.0.8", 30008)).expect("it is free");
    }
}
