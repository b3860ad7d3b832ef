//! IP addresses and ranges. What cannot be read is refused in the words of Go's `netip`.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Outcome, bad, ok};
use crate::value::Value;

fn parse(text: &str) -> Result<IpAddr, String> {
    if text.contains(':')
        && let Some((_, zone)) = text.split_once('%')
        && !zone.is_empty()
    {
        return Err(format!("IP address {text:?} with zone value is not allowed"));
    }
    match read(text) {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"))
        }
        Ok(ip) => Ok(ip),
        Err(why) => Err(format!("IP Address {text:?} parse error during conversion from string: {why}")),
    }
}

fn read(text: &str) -> Result<IpAddr, String> {
    let why = match text.find(['.', ':', '%']).map(|at| text.as_bytes()[at]) {
        Some(b'.') => match four(text) {
            Ok(ip) => return Ok(ip),
            Err(why) => why,
        },
        Some(b':') => match text.parse() {
            Ok(ip) => return Ok(ip),
            Err(_) => six(text),
        },
        Some(_) => "missing IPv6 address".to_owned(),
        None => "unable to parse IP".to_owned(),
    };
    Err(format!("ParseAddr({text:?}): {why}"))
}

fn four(text: &str) -> Result<IpAddr, String> {
    let mut octets = Vec::new();
    let (mut value, mut digits) = (0u32, 0);
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                if digits == 1 && value == 0 {
                    return Err("IPv4 field has octet with leading zero".to_owned());
                }
                value = value * 10 + u32::from(byte - b'0');
                digits += 1;
                if value > 255 {
                    return Err("IPv4 field has value >255".to_owned());
                }
            }
            b'.' => {
                if at == 0 || at == bytes.len() - 1 || bytes[at - 1] == b'.' {
                    return Err(format!("IPv4 field must have at least one digit (at {:?})", &text[at..]));
                }
                if octets.len() == 3 {
                    return Err("IPv4 address too long".to_owned());
                }
                octets.push(value as u8);
                (value, digits) = (0, 0);
            }
            _ => return Err(format!("unexpected character (at {:?})", text.get(at..).unwrap_or(""))),
        }
    }
    let [a, b, c] = octets[..] else { return Err("IPv4 address too short".to_owned()) };
    Ok(IpAddr::from([a, b, c, value as u8]))
}

/// Says what is wrong with an address that cannot be read.
fn six(text: &str) -> String {
    let mut rest = text.strip_prefix("::").unwrap_or(text);
    let mut ellipsis = rest.len() < text.len();
    let mut fields = 0;
    while fields < 8 && !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()).len();
        if digits > 4 {
            return format!("each group must have 4 or less digits (at {rest:?})");
        }
        if digits == 0 {
            return format!("each colon-separated field must have at least one digit (at {rest:?})");
        }
        fields += 1;
        let behind = &rest[digits..];
        if behind.is_empty() {
            rest = behind;
            break;
        }
        let Some(next) = behind.strip_prefix(':') else {
            return format!("unexpected character, want colon (at {behind:?})");
        };
        if next.is_empty() {
            return format!("colon must be followed by more characters (at {behind:?})");
        }
        rest = next;
        if let Some(next) = rest.strip_prefix(':') {
            if ellipsis {
                return format!("multiple :: in address (at {rest:?})");
            }
            ellipsis = true;
            rest = next;
        }
    }
    if !rest.is_empty() {
        return format!("trailing garbage after address (at {rest:?})");
    }
    if fields < 8 {
        return "address string too short".to_owned();
    }
    "the :: must expand to at least one field of zeros".to_owned()
}

fn parse_range(text: &str) -> Result<IpNet, String> {
    let failed = "network address parse error during conversion from string";
    let refused = |why: String| format!("{failed}: netip.ParsePrefix({text:?}): {why}");
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| refused("no '/'".to_owned()))?;
    let ip = read(address.split('%').next().unwrap_or("")).map_err(&refused)?;
    if address.contains('%') {
        return Err(refused("IPv6 zones cannot be present in a prefix".to_owned()));
    }
    let plain = bits.len() < 2 || bits.starts_with(|c| matches!(c, '1'..='9'));
    let length = bits.parse::<u32>().ok().filter(|_| plain && !bits.starts_with('+'));
    let length = length.ok_or_else(|| refused(format!("bad bits after slash: {bits:?}")))?;
    let range = u8::try_from(length).ok().and_then(|length| IpNet::new(ip, length).ok());
    let range = range.ok_or_else(|| refused("prefix length out of range".to_owned()))?;
    match ip {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"))
        }
        _ => Ok(range),
    }
}

/// As [`parse_range`], with one more word about what it was for.
fn converted(text: &str) -> Result<IpNet, String> {
    parse_range(text)
        .map_err(|why| format!("network address parse error during conversion from string: {why}"))
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
            converted(text).map_or_else(bad, |cidr| ok(Value::Cidr(cidr)))
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
        // Why the text is not an address gets lost upstream.
        ("containsIP", [Value::String(text)]) => {
            parse(text).map_or_else(|_| bad("no such overload"), |ip| ok(Value::Bool(cidr.contains(&ip))))
        }
        ("containsCIDR", [Value::Cidr(other)]) => ok(Value::Bool(cidr.contains(other))),
        ("containsCIDR", [Value::String(text)]) => {
            converted(text).map_or_else(bad, |other| ok(Value::Bool(cidr.contains(&other))))
        }
        ("ip", []) => ok(Value::Ip(cidr.addr())),
        ("masked", []) => ok(Value::Cidr(cidr.trunc())),
        ("prefixLength", []) => ok(Value::Int(i64::from(cidr.prefix_len()))),
        _ => None,
    }
}
