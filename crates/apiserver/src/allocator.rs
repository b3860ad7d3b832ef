//! Cluster addresses and node ports for Services.
//!
//! Everything in use is kept as two sets in memory, filled from the stored Services at the start. An address is
//! taken before the write and given back if the write fails.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use native::prepare::service::{self, Allocation};
use parking_lot::Mutex;
use serde_json::Value;
use store::Store;

use crate::head::Head;

/// Where the addresses of Services come from, as kube-apiserver's default.
pub(crate) const RANGE: &str = "10.96.0.0/12";
const NETWORK: u32 = u32::from_be_bytes([10, 96, 0, 0]);
const NETWORK_SIZE: u32 = 1 << 20;
const PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;

#[derive(Debug, Default)]
pub struct Allocator {
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    addresses: BTreeSet<u32>,
    ports: BTreeSet<u16>,
}

impl Allocator {
    /// Marks what stored Services hold.
    pub fn load(&self, store: &Store<Head>) {
        let mut used = self.used.lock();
        for entry in store.snapshot("services/specs").iter() {
            let Ok(object) = serde_json::from_slice::<Value>(&entry.value) else { continue };
            let held = service::held(&object);
            used.addresses.extend(held.freed_ips.iter().filter_map(|ip| offset(ip)));
            used.ports.extend(held.freed_ports);
        }
    }

    /// Takes back everything a deleted Service held.
    pub fn release(&self, object: &Value) {
        service::held(object).commit(self);
    }

    /// Gives a Service what it needs; the result is settled when the write has succeeded or failed.
    pub fn assign(
        &self,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Allocation, apimachinery::field::Errors> {
        service::allocate(object, old, self)
    }
}

fn offset(address: &str) -> Option<u32> {
    let address = u32::from(address.parse::<Ipv4Addr>().ok()?);
    address.checked_sub(NETWORK).filter(|offset| *offset < NETWORK_SIZE)
}

impl service::Allocator for Allocator {
    fn cluster_ip(&self, wanted: Option<&str>) -> Result<String, String> {
        let mut used = self.used.lock();
        if let Some(wanted) = wanted {
            let Some(offset) = offset(wanted) else {
                return Err(format!(
                    "the provided IP ({wanted}) is not in the valid range. The range of valid IPs is {RANGE}"
                ));
            };
            if !used.addresses.insert(offset) {
                return Err("provided IP is already allocated".to_owned());
            }
            return Ok(wanted.to_owned());
        }
        // The lower part of the range is left to addresses that are asked for; the first and last are not hosts.
        for _ in 0..64 {
            let offset = rand::random_range(256..NETWORK_SIZE - 1);
            if used.addresses.insert(offset) {
                return Ok(Ipv4Addr::from(NETWORK + offset).to_string());
            }
        }
        let free = (1..NETWORK_SIZE - 1).find(|offset| !used.addresses.contains(offset));
        let offset = free.ok_or("range is full")?;
        used.addresses.insert(offset);
        Ok(Ipv4Addr::from(NETWORK + offset).to_string())
    }

    fn node_port(&self, wanted: Option<u16>) -> Result<u16, String> {
        let mut used = self.used.lock();
        if let Some(port) = wanted {
            if !PORTS.contains(&port) {
                return Err(
                    "provided port is not in the valid range. The range of valid ports is 30000-32767"
                        .to_owned(),
                );
            }
            if !used.ports.insert(port) {
                return Err("provided port is already allocated".to_owned());
            }
            return Ok(port);
        }
        for _ in 0..64 {
            let port = rand::random_range(30086..=32767);
            if used.ports.insert(port) {
                return Ok(port);
            }
        }
        let port = PORTS.into_iter().find(|port| !used.ports.contains(port)).ok_or("range is full")?;
        used.ports.insert(port);
        Ok(port)
    }

    fn release_cluster_ip(&self, address: &str) {
        if let Some(offset) = offset(address) {
            self.used.lock().addresses.remove(&offset);
        }
    }

    fn release_node_port(&self, port: u16) {
        self.used.lock().ports.remove(&port);
    }
}
