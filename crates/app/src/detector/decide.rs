//! What a lookup means for its node, and what the nodes mean for their cluster. Pure.
//!
//! Upstream's rules: a change must last before a node's condition follows it, and a cluster counts as unable to resolve names
//! only if no ready node can. While a ready node has not reported recently, the cluster's condition is left unchanged.

use std::time::Duration;

use api::conditions::cluster::{
    REASON_RESOLUTION_FAILED, REASON_RESOLUTION_READY, SERVICE_DOMAIN_NAME_RESOLUTION_READY,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use propagation::status::condition;
use serde_json::{Value, json};

/// How long a change must last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Thresholds {
    pub(super) success: Duration,
    pub(super) failure: Duration,
}

/// The last result, and since when it has been the same.
#[derive(Debug, Default)]
pub(super) struct Memory {
    last: Option<(bool, Duration)>,
}

/// The result of a lookup: success, or why it failed.
pub(super) type Lookup = Result<(), String>;

impl Memory {
    /// Returns the result for the condition of the node: that of the lookup, or the current one. `at` counts from any fixed
    /// moment. The very first lookup counts at once.
    pub(super) fn adjust(
        &mut self,
        current: Option<&NodeCondition>,
        observed: &Lookup,
        at: Duration,
        thresholds: Thresholds,
    ) -> Lookup {
        let first = self.last.is_none();
        let resolved = observed.is_ok();
        let since = match self.last {
            Some((before, since)) if before == resolved => since,
            _ => at,
        };
        self.last = Some((resolved, since));
        let Some(current) = current.filter(|_| !first) else { return observed.clone() };
        let threshold = if resolved { thresholds.success } else { thresholds.failure };
        if (current.status == "True") != resolved && at.saturating_sub(since) < threshold {
            return match current.status.as_str() {
                "True" => Ok(()),
                _ => Err(current.message.clone().unwrap_or_default()),
            };
        }
        observed.clone()
    }
}

/// Returns the condition of a node.
pub(super) fn found(node: &Node) -> Option<&NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == SERVICE_DOMAIN_NAME_RESOLUTION_READY)
}

/// Returns the strategic merge patch that sets the node's condition. Its heartbeat is also a sign of life: readers use it as the
/// age of the result.
pub(super) fn node_patch(node: &Node, said: &Lookup, now: Timestamp) -> Value {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let (status, reason, message) = match said {
        Ok(()) => ("True", REASON_RESOLUTION_READY, ""),
        Err(error) => ("False", REASON_RESOLUTION_FAILED, error.as_str()),
    };
    let mut told = json!({
        "type": SERVICE_DOMAIN_NAME_RESOLUTION_READY, "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": now,
    });
    if found(node).is_none_or(|before| before.status != status) {
        told["lastTransitionTime"] = now.into();
    }
    json!({ "status": { "conditions": [told] } })
}

/// The summary of all nodes.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Unknown, for this reason.
    Unknown(String),
    Resolves,
    Fails,
}

/// Summarises the ready nodes of a cluster. A node that has not reported for `stale` may be in any state.
pub(super) fn judge(nodes: &[Node], now: Timestamp, stale: Duration) -> Verdict {
    let stale = SignedDuration::try_from(stale).unwrap_or(SignedDuration::MAX);
    let (mut ready, mut resolving, mut silent) = (0_usize, 0_usize, Vec::new());
    for node in nodes.iter().filter(|node| is_ready(node)) {
        ready += 1;
        let fresh = found(node).filter(|condition| {
            condition.last_heartbeat_time.as_ref().is_some_and(|beat| now.duration_since(beat.0) <= stale)
        });
        match fresh.map(|condition| condition.status.as_str()) {
            Some("False") => {}
            Some("True") => resolving += 1,
            _ => silent.push(node.metadata.name.as_deref().unwrap_or("")),
        }
    }
    if ready == 0 {
        return Verdict::Unknown("no node is ready".to_owned());
    }
    if let Some(first) = silent.first() {
        return Verdict::Unknown(format!(
            "{} of {ready} ready nodes have told nothing lately, {first} among them",
            silent.len()
        ));
    }
    if resolving == 0 { Verdict::Fails } else { Verdict::Resolves }
}

fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the condition of the cluster; `None` while the summary is unknown.
pub(super) fn cluster_condition(verdict: &Verdict, now: Timestamp) -> Option<Condition> {
    let (status, reason, message) = match verdict {
        Verdict::Unknown(_) => return None,
        Verdict::Resolves => ("True", REASON_RESOLUTION_READY, "service domain name resolution is ready"),
        Verdict::Fails => ("False", REASON_RESOLUTION_FAILED, "service domain name resolution is unready"),
    };
    Some(condition(SERVICE_DOMAIN_NAME_RESOLUTION_READY, status, reason, message, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:10:00Z";
    const THRESHOLDS: Thresholds =
        Thresholds { success: Duration::from_secs(30), failure: Duration::from_secs(20) };

    fn now() -> Timestamp {
        NOW.parse().expect("a time")
    }

    /// A node with its condition: the status and the time of the last heartbeat.
    fn node(name: &str, ready: &str, said: Option<(&str, &str)>) -> Node {
        let mut conditions = vec![json!({ "type": "Ready", "status": ready })];
        conditions.extend(said.map(|(status, beat)| {
            json!({ "type": "ServiceDomainNameResolutionReady", "status": status, "lastHeartbeatTime": beat,
                "message": "why" })
        }));
        let node = json!({ "metadata": { "name": name }, "status": { "conditions": conditions } });
        serde_json::from_value(node).expect("a node")
    }

    #[test]
    fn a_cluster_is_judged_by_its_ready_nodes() {
        let (fresh, stale) = ("2026-01-01T00:09:00Z", "2026-01-01T00:08:59Z");
        let says = |status, beat| Some((status, beat));
        let silent = |text: &str| Verdict::Unknown(text.to_owned());
        let cases = [
            (
                "all fail",
                vec![("True", says("False", fresh)), ("True", says("False", fresh))],
                Verdict::Fails,
            ),
            (
                "one resolves",
                vec![("True", says("False", fresh)), ("True", says("True", fresh))],
                Verdict::Resolves,
            ),
            (
                "one is silent",
                vec![("True", says("False", fresh)), ("True", None)],
                silent("1 of 2 ready nodes have told nothing lately, n1 among them"),
            ),
            (
                "one fell silent",
                vec![("True", says("True", stale)), ("True", says("True", fresh))],
                silent("1 of 2 ready nodes have told nothing lately, n0 among them"),
            ),
            (
                "who is not ready does not count",
                vec![("True", says("False", fresh)), ("False", says("True", fresh)), ("Unknown", None)],
                Verdict::Fails,
            ),
            ("nobody is ready", vec![("False", says("False", fresh))], silent("no node is ready")),
            ("there are no nodes", vec![], silent("no node is ready")),
        ];
        for (name, nodes, expected) in cases {
            let nodes = nodes.into_iter().enumerate();
            let nodes: Vec<Node> =
                nodes.map(|(number, (ready, said))| node(&format!("n{number}"), ready, said)).collect();
            assert_eq!(judge(&nodes, now(), Duration::from_secs(60)), expected, "{name}");
        }
    }

    /// Feeds lookups (second, whether it resolved) and compares the condition after each.
    #[track_caller]
    fn check(current: Option<&str>, steps: &[(u64, bool, &str)]) {
        let mut memory = Memory::default();
        let mut current = current.map(|status| node("n", "True", Some((status, NOW))));
        for (second, resolved, expected) in steps {
            let observed = if *resolved { Ok(()) } else { Err("no such host".to_owned()) };
            let at = Duration::from_secs(*second);
            let said = memory.adjust(current.as_ref().and_then(found), &observed, at, THRESHOLDS);
            let status = if said.is_ok() { "True" } else { "False" };
            assert_eq!(status, *expected, "at second {second}");
            current = Some(node("n", "True", Some((status, NOW))));
        }
    }

    #[test]
    fn a_change_has_to_last() {
        check(None, &[(0, false, "False")]);
        check(Some("True"), &[(0, false, "False")]);
        check(None, &[(0, true, "True"), (5, false, "True"), (24, false, "True"), (25, false, "False")]);
        check(None, &[(0, true, "True"), (5, false, "True"), (15, true, "True"), (25, false, "True")]);
        check(None, &[(0, false, "False"), (5, true, "False"), (34, true, "False"), (35, true, "True")]);
    }

    #[test]
    fn without_a_lasting_change_the_condition_keeps_its_reason() {
        let mut memory = Memory::default();
        let first = Err("first".to_owned());
        assert_eq!(memory.adjust(None, &first, Duration::ZERO, THRESHOLDS), first);
        let current = node("n", "True", Some(("False", NOW)));
        let said = memory.adjust(found(&current), &Ok(()), Duration::from_secs(1), THRESHOLDS);
        assert_eq!(said, Err("why".to_owned()));
    }

    #[test]
    fn a_heartbeat_is_not_a_transition() {
        let before = node("n", "True", Some(("True", NOW)));
        let patch = node_patch(&before, &Ok(()), now());
        assert_eq!(patch["status"]["conditions"][0]["lastHeartbeatTime"], NOW);
        assert_eq!(patch["status"]["conditions"][0].get("lastTransitionTime"), None);
        let patch = node_patch(&before, &Err("no such host".to_owned()), now());
        assert_eq!(patch["status"]["conditions"][0]["lastTransitionTime"], NOW);
        assert_eq!(patch["status"]["conditions"][0]["message"], "no such host");
    }

    #[test]
    fn the_cluster_says_it_in_upstreams_words() {
        let told = cluster_condition(&Verdict::Fails, now()).expect("a condition");
        assert_eq!(
            (told.status.as_str(), told.reason.as_str()),
            ("False", "ServiceDomainNameResolutionFailed")
        );
        assert_eq!(told.message, "service domain name resolution is unready");
        let told = cluster_condition(&Verdict::Resolves, now()).expect("a condition");
        assert_eq!(
            (told.status.as_str(), told.reason.as_str()),
            ("True", "ServiceDomainNameResolutionReady")
        );
        assert_eq!(cluster_condition(&Verdict::Unknown(String::new()), now()), None);
    }
}
