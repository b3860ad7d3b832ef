//! Where the addresses of Services come from: a range of one family of addresses, or one of each.
//!
//! In: what `--service-cluster-ip-range` says, as kube-apiserver takes it. Out: the families in their order and the addresses of each.
//! The module `allocator` knows which addresses are taken.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use native::prepare::service::Family;

/// Upstream's default.
const DEFAULT: ServiceRange = ServiceRange { family: Family::V4, network: 0x0a60_0000, prefix: 12 };

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is not a range of addresses, such as 10.96.0.0/12")]
    Range(String),
    #[error("the range {0} must have at least 8 addresses")]
    Small(String),
    #[error("the range {0} is too large: of an IPv6 network, the prefix must have at least 64 bits")]
    Large(String),
    #[error("there may be two ranges at most")]
    Many,
    #[error("the two ranges must be of different families of addresses")]
    SameFamily,
}

/// The ranges of a server. A Service that names no family gets an address of the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRanges {
    ranges: Vec<ServiceRange>,
    families: Vec<Family>,
}

impl Default for ServiceRanges {
    fn default() -> Self {
        Self { ranges: vec![DEFAULT], families: vec![DEFAULT.family] }
    }
}

impl FromStr for ServiceRanges {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let ranges = text.split(',').map(str::parse).collect::<Result<Vec<ServiceRange>, Error>>()?;
        let families: Vec<Family> = ranges.iter().map(|range| range.family).collect();
        match families[..] {
            [_] => {}
            [first, second] if first != second => {}
            [_, _] => return Err(Error::SameFamily),
            _ => return Err(Error::Many),
        }
        Ok(Self { ranges, families })
    }
}

impl fmt::Display for ServiceRanges {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.texts().join(","))
    }
}

impl ServiceRanges {
    pub(crate) fn families(&self) -> &[Family] {
        &self.families
    }

    pub(crate) fn of(&self, family: Family) -> Option<&ServiceRange> {
        self.ranges.iter().find(|range| range.family == family)
    }

    /// Returns the address of the Service `kubernetes`.
    pub(crate) fn first_address(&self) -> String {
        self.ranges.first().unwrap_or(&DEFAULT).address(1).to_string()
    }

    pub(crate) fn texts(&self) -> Vec<String> {
        self.ranges.iter().map(ServiceRange::to_string).collect()
    }
}

/// A network whose addresses Services get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServiceRange {
    family: Family,
    /// Its first address, as a number.
    network: u128,
    prefix: u32,
}

impl FromStr for ServiceRange {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Range(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let digits = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u32 = prefix.parse().ok().filter(|_| digits).ok_or_else(wrong)?;
        let (family, number) = match address.parse().map_err(|_| wrong())? {
            IpAddr::V4(address) => (Family::V4, u128::from(u32::from(address))),
            IpAddr::V6(address) => (Family::V6, u128::from(address)),
        };
        let host_bits = bits(family).checked_sub(prefix).ok_or_else(wrong)?;
        if host_bits < 3 {
            return Err(Error::Small(text.to_owned()));
        }
        if host_bits > 64 {
            return Err(Error::Large(text.to_owned()));
        }
        Ok(Self { family, network: number >> host_bits << host_bits, prefix })
    }
}

impl fmt::Display for ServiceRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address(0), self.prefix)
    }
}

fn bits(family: Family) -> u32 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

impl ServiceRange {
    fn size(self) -> u128 {
        1_u128.checked_shl(bits(self.family).saturating_sub(self.prefix)).unwrap_or(u128::MAX)
    }

    /// Returns how far the last address is from the first that a Service can have. Of IPv4, the last is for broadcasts.
    fn last(self) -> u128 {
        match self.family {
            Family::V4 => self.size().saturating_sub(2),
            Family::V6 => self.size().saturating_sub(1),
        }
    }

    fn address(self, offset: u128) -> IpAddr {
        let number = self.network.saturating_add(offset);
        match self.family {
            Family::V4 => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
            Family::V6 => Ipv6Addr::from(number).into(),
        }
    }

    /// Says whether a Service can have this address. The first one stands for the network.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let (family, number) = match address.to_canonical() {
            IpAddr::V4(address) => (Family::V4, u128::from(u32::from(address))),
            IpAddr::V6(address) => (Family::V6, u128::from(address)),
        };
        let offset = number.checked_sub(self.network);
        family == self.family && offset.is_some_and(|offset| (1..=self.last()).contains(&offset))
    }

    /// Returns addresses to try: some at random, then all. The lower part of the range is left to addresses that are asked for, as long
    /// as there are others.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = IpAddr> {
        let range = *self;
        let asked_for = match range.size() {
            ..=16 => 1,
            size => (size / 16).clamp(16, 256),
        };
        let random = (0..64).map(move |_| rand::random_range(asked_for..=range.last()));
        random.chain(1..=range.last()).map(move |offset| range.address(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ServiceRanges, Error> {
        text.parse()
    }

    #[test]
    fn ranges_are_read_as_kube_apiserver_reads_them() {
        for (text, shown, first) in [
            ("10.96.0.0/12", "10.96.0.0/12", "10.96.0.1"),
            ("10.0.0.0/16,fd00::/108", "10.0.0.0/16,fd00::/108", "10.0.0.1"),
            ("fd00:10:96::/112,10.96.0.0/16", "fd00:10:96::/112,10.96.0.0/16", "fd00:10:96::1"),
            // The bits of hosts do not count.
            ("10.96.3.4/12", "10.96.0.0/12", "10.96.0.1"),
            ("FD00:0::7/64", "fd00::/64", "fd00::1"),
        ] {
            let ranges = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((ranges.to_string().as_str(), ranges.first_address().as_str()), (shown, first));
        }
        assert_eq!(ServiceRanges::default(), read("10.96.0.0/12").expect("the default"));
        for (text, error) in [
            ("", Error::Range(String::new())),
            ("10.96.0.0", Error::Range("10.96.0.0".to_owned())),
            ("10.96.0.0/33", Error::Range("10.96.0.0/33".to_owned())),
            ("10.96.0.0/+8", Error::Range("10.96.0.0/+8".to_owned())),
            ("10.96.0.0/12,", Error::Range(String::new())),
            ("10.96.0.0/30", Error::Small("10.96.0.0/30".to_owned())),
            ("fd00::/126", Error::Small("fd00::/126".to_owned())),
            ("fd00::/63", Error::Large("fd00::/63".to_owned())),
            ("10.0.0.0/16,10.1.0.0/16", Error::SameFamily),
            ("10.0.0.0/16,fd00::/108,fd01::/108", Error::Many),
        ] {
            assert_eq!(read(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_range_has_neither_its_network_nor_its_broadcasts() {
        let ranges = read("10.0.0.8/29,fd00::8/125").expect("ranges");
        for (family, address, has) in [
            (Family::V4, "10.0.0.7", false),
            (Family::V4, "10.0.0.8", false),
            (Family::V4, "10.0.0.9", true),
            (Family::V4, "10.0.0.14", true),
            (Family::V4, "10.0.0.15", false),
            (Family::V4, "::ffff:10.0.0.9", true),
            (Family::V4, "fd00::9", false),
            (Family::V6, "fd00::8", false),
            (Family::V6, "fd00::f", true),
            (Family::V6, "fd00::10", false),
            (Family::V6, "10.0.0.9", false),
        ] {
            let range = ranges.of(family).expect("there is one of each");
            assert_eq!(range.contains(address.parse().expect("an address")), has, "{address}");
        }
    }

    #[test]
    fn what_is_tried_is_in_the_range_and_everything_is_tried() {
        for text in ["10.0.0.0/29", "10.0.0.0/26", "fd00::/120", "10.0.0.0/22"] {
            let range: ServiceRange = text.parse().expect("a range");
            let tried: std::collections::BTreeSet<IpAddr> = range.candidates().collect();
            assert!(tried.iter().all(|address| range.contains(*address)), "{text}");
            assert_eq!(tried.len() as u128, range.last(), "{text}");
        }
        let low: IpAddr = "10.96.1.0".parse().expect("an address");
        assert!(
            DEFAULT.candidates().take(64).all(|address| address >= low),
            "these are left to who asks for them"
        );
    }
}
