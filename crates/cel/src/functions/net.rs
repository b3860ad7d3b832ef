//! IP addresses and ranges.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Outcome, bad, ok};
use crate::value::Value;

fn parse(text: &str) -> Result<IpAddr, String> {
    let refused =
        |what: &str| format!("IP Address {text:?} parse error during conversion from string: {what}");
    let ip: IpAddr = text.parse().map_err(|_| refused("unable to parse IP"))?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(refused("IPv4-mapped IPv6 address is not allowed"))
        }
        ip => Ok(ip),
    }
}

fn parse_range(text: &str) -> Result<IpNet, String> {
    let refused =
        || format!("network address parse error during conversion from string: netip.ParsePrefix({text:?})");
    let (address, length) = text.split_once('/').ok_or_else(refused)?;
    let address = parse(address).map_err(|_| refused())?;
    IpNet::new(address, length.parse().map_err(|_| refused())?).map_err(|_| refused())
}

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    match (target, name, args) {
        (None, "isIP", [Value::String(text)]) => ok(Value::Bool(parse(text).is_ok())),
        (None, "ip", [Value::String(text)]) => parse(text).map_or_else(bad, |ip| ok(Value::Ip(ip))),
        (None, "ip.isCanonical", [Value::String(text)]) => {
            parse(text).map_or_else(bad, |ip| ok(Value::Bool(ip.to_string() == **text)))
        }
        (None, "isCIDR", [Value::String(text)]) => ok(Value::Bool(parse_range(text).is_ok())),
        (None, "cidr", [Value::String(text)]) => {
            parse_range(text).map_or_else(bad, |cidr| ok(Value::Cidr(cidr)))
        }
        (Some(Value::Ip(ip)), _, []) => address(*ip, name),
        (Some(Value::Cidr(cidr)), _, _) => range(cidr, name, args),
        _ => None,
    }
}

fn address(ip: IpAddr, name: &str) -> Outcome {
    let flag = match (name, ip) {
        ("family", IpAddr::V4(_)) => return ok(Value::Int(4)),
        ("family", IpAddr::V6(_)) => return ok(Value::Int(6)),
        ("isUnspecified", ip) => ip.is_unspecified(),
        ("isLoopback", ip) => ip.is_loopback(),
        ("isLinkLocalMulticast", IpAddr::V4(ip)) => ip.octets()[..3] == [224, 0, 0],
        ("isLinkLocalMulticast", IpAddr::V6(ip)) => ip.segments()[0] & 0xff0f == 0xff02,
        ("isLinkLocalUnicast", IpAddr::V4(ip)) => ip.is_link_local(),
        ("isLinkLocalUnicast", IpAddr::V6(ip)) => ip.segments()[0] & 0xffc0 == 0xfe80,
        ("isGlobalUnicast", ip) => {
            let link_local = match ip {
                IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
                IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
            };
            !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !link_local
        }
        _ => return None,
    };
    ok(Value::Bool(flag))
}

fn range(cidr: &IpNet, name: &str, args: &[Value]) -> Outcome {
    match (name, args) {
        ("containsIP", [Value::Ip(ip)]) => ok(Value::Bool(cidr.contains(ip))),
        ("containsIP", [Value::String(text)]) => {
            parse(text).map_or_else(bad, |ip| ok(Value::Bool(cidr.contains(&ip))))
        }
        ("containsCIDR", [Value::Cidr(other)]) => ok(Value::Bool(cidr.contains(other))),
        ("containsCIDR", [Value::String(text)]) => {
            parse_range(text).map_or_else(bad, |other| ok(Value::Bool(cidr.contains(&other))))
        }
        ("ip", []) => ok(Value::Ip(cidr.addr())),
        ("masked", []) => ok(Value::Cidr(cidr.trunc())),
        ("prefixLength", []) => ok(Value::Int(i64::from(cidr.prefix_len()))),
        _ => None,
    }
}
