//! Addresses of load balancers in a status. Updates of the object itself carry the stored status, and upstream looks
//! at it once more.

use std::net::IpAddr;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

/// Returns what is wrong with the addresses: pairs of IP and host name.
pub(crate) fn check<'a>(addresses: impl Iterator<Item = (&'a str, &'a str)>) -> Errors {
    let path = Path::new("status").child("loadBalancer").child("ingress");
    let mut errors = Errors::new();
    for (index, (ip, host)) in addresses.enumerate() {
        let here = path.index(index);
        if !ip.is_empty() && !is_ip(ip) {
            errors.push(Error::invalid(&here.child("ip"), ip, "must be a valid IP address"));
        }
        if !host.is_empty() {
            let at = here.child("hostname");
            let faults = names::dns1123_subdomain(host);
            errors.extend(faults.into_iter().map(|fault| Error::invalid(&at, host, fault)));
            if is_ip(host) {
                errors.push(Error::invalid(&at, host, "must be a DNS name, not an IP address"));
            }
        }
    }
    errors
}

/// Says whether a text is an IP address, where leading zeros are decimal as they once were in Go.
pub(crate) fn is_ip(text: &str) -> bool {
    if text.parse::<IpAddr>().is_ok() {
        return true;
    }
    let octets: Vec<&str> = text.split('.').collect();
    octets.len() == 4
        && octets.iter().all(|octet| {
            (1..=3).contains(&octet.len())
                && octet.bytes().all(|byte| byte.is_ascii_digit())
                && octet.parse::<u16>().is_ok_and(|value| value <= 255)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_addresses_and_names_are_names() {
        let good = [("10.0.0.1", ""), ("010.000.000.001", "a.example.com"), ("::1", "")];
        assert_eq!(check(good.into_iter()), Errors::new());
        let bad: Vec<String> =
            check([("10.0.0", "1.2.3.4"), ("", "-x")].into_iter()).into_iter().map(|e| e.field).collect();
        assert_eq!(
            bad,
            [
                "status.loadBalancer.ingress[0].ip",
                "status.loadBalancer.ingress[0].hostname",
                "status.loadBalancer.ingress[1].hostname",
            ]
        );
    }
}
