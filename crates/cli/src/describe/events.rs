//! The events of an object, as a table.

use jiff::Timestamp;
use serde_json::Value;

use super::words::Page;
use crate::select::{Item, list};
use crate::server::Server;

/// Returns the object's events; nothing if the server returns none.
pub(super) async fn of(server: &Server, item: &Item) -> Option<Vec<Value>> {
    let uid = item.object["metadata"]["uid"].as_str().unwrap_or("");
    let mut selector = format!("involvedObject.name={}", item.name);
    // The kubelet knows its node only by name.
    if item.resource.kind == "Node" && item.resource.group.is_empty() {
        selector.push_str(",involvedObject.kind=Node");
    } else if !uid.is_empty() {
        selector.push_str(&format!(",involvedObject.uid={uid}"));
    }
    let namespace = if item.namespace.is_empty() { "default" } else { &item.namespace };
    let path = format!("/api/v1/namespaces/{}/events", crate::server::segment(namespace));
    let mut events = list(server, &path, None, Some(&selector)).await.ok()?;
    events.sort_by_key(last);
    Some(events)
}

fn last(event: &Value) -> String {
    let times = [
        &event["series"]["lastObservedTime"],
        &event["lastTimestamp"],
        &event["eventTime"],
        &event["firstTimestamp"],
    ];
    times.iter().find_map(|time| time.as_str()).unwrap_or("").to_owned()
}

pub(super) fn table(page: &mut Page, events: &[Value]) {
    if events.is_empty() {
        page.pair(0, "Events", "<none>");
        return;
    }
    page.flush();
    page.line(0, "Events:");
    page.line(1, "Type\tReason\tAge\tFrom\tMessage");
    page.line(1, "----\t------\t----\t----\t-------");
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    for event in events {
        let from = [&event["source"]["component"], &event["reportingComponent"]];
        let from = from.iter().find_map(|from| from.as_str().filter(|from| !from.is_empty())).unwrap_or("");
        let now = Timestamp::now();
        let first = event["eventTime"].as_str().or(event["firstTimestamp"].as_str()).unwrap_or("");
        let first = age(first, now);
        let age = match (event["series"]["count"].as_i64(), event["count"].as_i64()) {
            (Some(count), _) => {
                format!(
                    "{} (x{count} over {first})",
                    age(event["series"]["lastObservedTime"].as_str().unwrap_or(""), now)
                )
            }
            (None, Some(count)) if count > 1 => {
                format!("{} (x{count} over {first})", age(event["lastTimestamp"].as_str().unwrap_or(""), now))
            }
            _ => first,
        };
        let (kind, reason, message) = (text(&event["type"]), text(&event["reason"]), text(&event["message"]));
        page.line(1, format!("{kind}\t{reason}\t{age}\t{from}\t{}", message.trim()));
    }
}

/// The age, as kubectl writes it: `45s`, `3m12s`, `26m`, `5h2m`, `3d`.
pub(crate) fn age(time: &str, now: Timestamp) -> String {
    let Ok(time) = time.parse::<Timestamp>() else { return "<unknown>".to_owned() };
    let seconds = now.duration_since(time).as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let with =
        |main: String, rest: i64, unit: &str| if rest == 0 { main } else { format!("{main}{rest}{unit}") };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => with(format!("{minutes}m"), seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => with(format!("{hours}h"), minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => with(format!("{days}d"), hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        _ => with(format!("{}y", days / 365), days % 365, "d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().expect("a time");
        for (time, text) in [
            ("2026-01-01T23:59:15Z", "45s"),
            ("2026-01-01T23:56:48Z", "3m12s"),
            ("2026-01-01T23:34:00Z", "26m"),
            ("2026-01-01T18:58:00Z", "5h2m"),
            ("2025-12-20T00:00:00Z", "13d"),
            ("", "<unknown>"),
        ] {
            assert_eq!(age(time, now), text, "{time}");
        }
    }
}
