//! Named formats: `format.dns1123Label().validate(name)`.

use apimachinery::names;

use super::{Outcome, bad, ok};
use crate::signatures::FORMATS;
use crate::value::Value;

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    match (target, name, args) {
        (None, "format.named", [Value::String(text)]) => {
            let known = FORMATS.iter().find(|known| ***known == **text);
            ok(Value::Optional(known.map(|name| Box::new(Value::Format(name)))))
        }
        (None, _, []) => {
            let name = name.strip_prefix("format.")?;
            FORMATS.iter().find(|known| **known == name).map(|known| Ok(Value::Format(known)))
        }
        (Some(Value::Format(format)), "validate", [Value::String(text)]) => match complaints(format, text) {
            Some(found) if found.is_empty() => ok(Value::Optional(None)),
            Some(found) => ok(Value::some(Value::list(found.into_iter().map(Value::text).collect()))),
            None => bad(format!("unknown format {format}")),
        },
        _ => None,
    }
}

/// Returns how long the pattern of a format is, or one that would do.
pub(crate) fn pattern_size(name: &str) -> u64 {
    match name {
        "dns1123Label" | "dns1123LabelPrefix" | "dns1035Label" | "dns1035LabelPrefix" => 30,
        "dns1123Subdomain" | "dns1123SubdomainPrefix" | "qualifiedName" => 60,
        "labelValue" => 40,
        "uri" => 1103,
        "uuid" => 70,
        "byte" => 84,
        _ => 71,
    }
}

fn complaints(format: &str, text: &str) -> Option<Vec<String>> {
    // A prefix may end in a dash, which a whole name may not.
    let prefix = || text.strip_suffix('-').map_or(text.to_owned(), |text| format!("{text}a"));
    let one = |ok: bool, what: &str| if ok { Vec::new() } else { vec![what.to_owned()] };
    Some(match format {
        "dns1123Label" => names::dns1123_label(text),
        "dns1123Subdomain" => names::dns1123_subdomain(text),
        "dns1035Label" => names::dns1035_label(text),
        "qualifiedName" => names::qualified_name(text),
        "labelValue" => names::label_value(text),
        "dns1123LabelPrefix" => names::dns1123_label(&prefix()),
        "dns1123SubdomainPrefix" => names::dns1123_subdomain(&prefix()),
        "dns1035LabelPrefix" => names::dns1035_label(&prefix()),
        "uri" => super::urls::complaint(text).into_iter().collect(),
        "uuid" => {
            let parts: Vec<&str> = text.split('-').collect();
            let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
            let hex = parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()));
            one(hex && lengths == [8, 4, 4, 4, 12], "does not match the UUID format")
        }
        "byte" => {
            use base64::Engine;
            one(base64::engine::general_purpose::STANDARD.decode(text).is_ok(), "invalid base64")
        }
        "date" => one(text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10, "invalid date"),
        "datetime" => one(text.parse::<jiff::Timestamp>().is_ok(), "invalid datetime"),
        _ => return None,
    })
}
