//! Which addresses the nodes, pods and Services of a member have.
//!
//! Every member has networks of its own, so that no address is there twice in a fleet; only Services have the same in all, as in most
//! real fleets. In a dual-stack member everything that has an IPv4 address has a twin in IPv6, made of the same numbers:
//! `10.112.1.7` and `fd00:10:112::107`.

use std::net::{Ipv4Addr, Ipv6Addr};

use apiserver::ServiceRanges;
use serde_json::{Value, json};

/// Returns where the addresses of Services come from. 10.96 to 10.111 belong to them alone.
pub(crate) fn of_services(dual_stack: bool) -> ServiceRanges {
    if !dual_stack {
        return ServiceRanges::default();
    }
    "10.96.0.0/12,fd00:10:96::/112".parse().expect("one range of each family")
}

/// The addresses of one member: `10.M.x.y` for pods, counted up, with M from the member's number.
pub(crate) struct Addresses {
    network: u8,
    next: u32,
    dual_stack: bool,
}

impl Addresses {
    pub(crate) fn new(member: usize, dual_stack: bool) -> Self {
        // Behind the Services.
        Self { network: 112 + (member % 128) as u8, next: 1, dual_stack }
    }

    /// Returns what the next pod gets, the primary address first.
    pub(crate) fn of_next_pod(&self) -> Vec<String> {
        let [_, high, middle, low] = (self.next % (1 << 16)).to_be_bytes();
        debug_assert_eq!(high, 0);
        self.with_twin(Ipv4Addr::new(10, self.network, middle, low))
    }

    pub(crate) fn take(&mut self) {
        self.next += 1;
    }

    /// Counts on behind an address that a pod has already.
    pub(crate) fn seen(&mut self, address: &str) {
        let Ok(address) = address.parse::<Ipv4Addr>() else { return };
        let [ten, network, middle, low] = address.octets();
        if ten == 10 && network == self.network {
            self.next = self.next.max((u32::from(middle) << 8 | u32::from(low)) + 1);
        }
    }

    /// Returns the addresses of a node by its place in the order of names.
    pub(crate) fn of_node(&self, index: usize) -> Vec<String> {
        let (middle, low) = ((index / 250) as u8, (index % 250) as u8 + 1);
        self.with_twin(Ipv4Addr::new(172, 16 + self.network % 16, middle, low))
    }

    fn with_twin(&self, address: Ipv4Addr) -> Vec<String> {
        let mut all = vec![address.to_string()];
        if self.dual_stack {
            let [first, network, middle, low] = address.octets();
            let host = u16::from_be_bytes([middle, low]);
            all.push(Ipv6Addr::new(0xfd00, as_read(first), as_read(network), 0, 0, 0, 0, host).to_string());
        }
        all
    }
}

/// Returns the group of an IPv6 address that reads like a decimal number.
fn as_read(number: u8) -> u16 {
    let number = u16::from(number);
    ((number / 100) << 8) | ((number / 10 % 10) << 4) | (number % 10)
}

/// Returns addresses as `podIPs` and `hostIPs` hold them.
pub(crate) fn listed(addresses: &[String]) -> Value {
    addresses.iter().map(|address| json!({"ip": address})).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_on_after_those_in_use() {
        let mut addresses = Addresses::new(1, false);
        assert_eq!(addresses.of_next_pod(), ["10.113.0.1"]);
        addresses.seen("10.113.1.255");
        addresses.seen("10.1.9.9");
        assert_eq!(addresses.of_next_pod(), ["10.113.2.0"]);
    }

    #[test]
    fn in_a_dual_stack_member_every_address_has_a_twin() {
        let mut addresses = Addresses::new(1, true);
        assert_eq!(addresses.of_next_pod(), ["10.113.0.1", "fd00:10:113::1"]);
        addresses.seen("10.113.1.9");
        assert_eq!(addresses.of_next_pod(), ["10.113.1.10", "fd00:10:113::10a"]);
        assert_eq!(addresses.of_node(0), ["172.17.0.1", "fd00:172:17::1"]);
        assert_eq!(addresses.of_node(250), ["172.17.1.1", "fd00:172:17::101"]);
        assert_eq!(Addresses::new(1, false).of_node(250), ["172.17.1.1"]);
    }
}
