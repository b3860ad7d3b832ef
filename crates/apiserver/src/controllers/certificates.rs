//! Certificate signing requests: approves those of nodes that are entitled to one, signs approved ones, and deletes old ones.
//!
//! Watches: CertificateSigningRequest. Writes: its `Approved` condition (through approval), its certificate or `Failed` condition
//! (through status). Deletes requests that are no longer needed. The signers are kube-controller-manager's.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::pointer;
use base64::Engine;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::auth::User;
use crate::auth::certify::Asked;
use crate::auth::rbac::Attributes;
use crate::clock;
use crate::handlers::delete::{DeleteOptions, Preconditions};
use crate::handlers::write::second;
use crate::internal::Actor;
use crate::server::Server;

const COLLECTION: &str = "certificatesigningrequests";
/// Certificates are valid a year unless the request says less; never shorter than ten minutes.
const LIFETIME: SignedDuration = SignedDuration::from_hours(365 * 24);
const SHORTEST: SignedDuration = SignedDuration::from_mins(10);
/// For clocks that are slightly behind.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);
/// Certificates with a shorter duration than this are valid for all of it from now on. For longer ones, the time before now is
/// subtracted, so that the total is the requested duration. Both as in Kubernetes.
const SHORT: SignedDuration = SignedDuration::from_hours(8);
/// How long answered and unanswered requests are kept.
const KEEP_ANSWERED: SignedDuration = SignedDuration::from_hours(1);
const KEEP_PENDING: SignedDuration = SignedDuration::from_hours(24);
const CLEAN_EVERY: Duration = Duration::from_secs(10 * 60);

pub(super) async fn run(server: Arc<Server>) {
    let actor = Actor::new(&server, "system:serviceaccount:kube-system:certificate-controller");
    let Ok(mut watch) = server.store.watch(COLLECTION, server.store.revision()) else { return };
    for entry in server.store.snapshot(COLLECTION).iter() {
        settle(&actor, &entry.name).await;
    }
    loop {
        clean(&actor, Timestamp::now()).await;
        let next_cleaning = tokio::time::sleep(CLEAN_EVERY);
        tokio::pin!(next_cleaning);
        loop {
            tokio::select! {
                batch = watch.next() => {
                    let Ok(batch) = batch else { return };
                    for event in batch {
                        if let Some(entry) = &event.current {
                            settle(&actor, &entry.name).await;
                        }
                    }
                }
                () = &mut next_cleaning => break,
            }
        }
    }
}

fn has(request: &Value, condition: &str) -> bool {
    let mut list = pointer::list(request, "/status/conditions").iter();
    list.any(|known| pointer::text(known, "/type") == condition && pointer::text(known, "/status") != "False")
}

async fn settle(actor: &Actor, name: &str) {
    let server = actor.server();
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("certificates.k8s.io", "v1", COLLECTION).cloned() else { return };
    let Some(entry) = server.store.get(COLLECTION, name) else { return };
    let Some(request) = server.read_or_warn(&kind, &entry) else { return };
    let issued = pointer::text(&request, "/status/certificate");
    if !issued.is_empty() || has(&request, "Denied") || has(&request, "Failed") {
        return;
    }
    let now = Timestamp::now();
    let result = if has(&request, "Approved") {
        let Some(outcome) = sign(server, &request, now) else { return };
        let change = |old: &Value| {
            let mut new = old.clone();
            match &outcome {
                Ok(certificate) => {
                    let encoded = base64::engine::general_purpose::STANDARD.encode(certificate);
                    pointer::set(pointer::object_at(&mut new, "status"), "certificate", encoded.into());
                }
                Err(why) => add_condition(&mut new, "Failed", "SignerValidationFailure", why, now),
            }
            Some(new)
        };
        actor.update(&kind, "", name, "status", change).await
    } else if let Some(message) = approves(server, &request) {
        let change = |old: &Value| {
            let mut new = old.clone();
            add_condition(&mut new, "Approved", "AutoApproved", message, now);
            Some(new)
        };
        actor.update(&kind, "", name, "approval", change).await
    } else {
        return;
    };
    if let Err(status) = result {
        tracing::warn!(object = name, error = %status, "cannot answer a signing request");
    }
}

fn add_condition(request: &mut Value, kind: &str, reason: &str, message: &str, now: Timestamp) {
    let mut list = pointer::list(request, "/status/conditions").to_vec();
    list.push(json!({"type": kind, "status": "True", "reason": reason, "message": message,
        "lastUpdateTime": second(now), "lastTransitionTime": second(now)}));
    pointer::set(pointer::object_at(request, "status"), "conditions", list.into());
}

fn asked(request: &Value) -> Result<Asked, String> {
    let pem = base64::engine::general_purpose::STANDARD
        .decode(pointer::text(request, "/spec/request"))
        .map_err(|error| error.to_string())?;
    Asked::read(&pem).map_err(|error| error.to_string())
}

fn usages(request: &Value) -> Vec<&str> {
    pointer::list(request, "/spec/usages").iter().filter_map(Value::as_str).collect()
}

/// Returns the certificate, or why there is none; `None` for signers that are not ours.
fn sign(server: &Server, request: &Value, now: Timestamp) -> Option<Result<String, String>> {
    let signer = pointer::text(request, "/spec/signerName");
    if !matches!(
        signer,
        "kubernetes.io/kube-apiserver-client"
            | "kubernetes.io/kube-apiserver-client-kubelet"
            | "kubernetes.io/kubelet-serving"
            | "kubernetes.io/legacy-unknown"
    ) {
        return None;
    }
    let usages = usages(request);
    let issue = || {
        let asked = asked(request)?;
        check(signer, &asked, &usages)?;
        let (begins, ends) = span(pointer::number(request, "/spec/expirationSeconds"), now);
        let ends = ends.min(server.signer.expires());
        asked.issue(&server.signer.pair(), &usages, begins, ends).map_err(|error| error.to_string())
    };
    Some(issue())
}

/// Returns the start and the end of the validity of a certificate for the requested number of seconds.
fn span(seconds: Option<i64>, now: Timestamp) -> (Timestamp, Timestamp) {
    let lifetime = match seconds {
        Some(seconds) => SignedDuration::from_secs(seconds).clamp(SHORTEST, LIFETIME),
        None => LIFETIME,
    };
    let begins = clock::after(now, BACKDATE.as_secs().saturating_neg());
    let counted_from = if lifetime < SHORT { now } else { begins };
    (begins, clock::after(counted_from, lifetime.as_secs()))
}

fn only(usages: &[&str], allowed: &[&str], required: &[&str]) -> bool {
    usages.iter().all(|usage| allowed.contains(usage)) && required.iter().all(|usage| usages.contains(usage))
}

/// Checks whether the signer would sign such a request at all.
fn check(signer: &str, asked: &Asked, usages: &[&str]) -> Result<(), String> {
    let usual = ["digital signature", "key encipherment", "client auth"];
    let refuse = |why: &str| Err(why.to_owned());
    match signer {
        "kubernetes.io/kube-apiserver-client" if only(usages, &usual, &["client auth"]) => {}
        "kubernetes.io/kube-apiserver-client" => {
            return refuse("usages did not match [client auth digital signature key encipherment]");
        }
        "kubernetes.io/kube-apiserver-client-kubelet" => {
            if asked.organizations != ["system:nodes"] {
                return refuse("subject organization is not system:nodes");
            }
            if !asked.common_name.starts_with("system:node:") {
                return refuse("subject common name does not begin with system:node: ");
            }
            if !asked.dns.is_empty() || [asked.ips, asked.emails, asked.uris] != [0; 3] {
                return refuse("DNS, IP, email and URI subjectAltNames are not allowed");
            }
            if !only(usages, &usual, &["digital signature", "client auth"]) {
                return refuse("usages did not match [client auth digital signature key encipherment]");
            }
        }
        "kubernetes.io/kubelet-serving" => {
            if asked.organizations != ["system:nodes"] {
                return refuse("subject organization is not system:nodes");
            }
            if asked.dns.is_empty() && asked.ips == 0 {
                return refuse("DNS or IP subjectAltName is required");
            }
            if asked.emails > 0 {
                return refuse("email subjectAltNames are not allowed");
            }
            if asked.uris > 0 {
                return refuse("URI subjectAltNames are not allowed");
            }
            if !only(
                usages,
                &["digital signature", "key encipherment", "server auth"],
                &["digital signature", "server auth"],
            ) {
                return refuse("usages did not match [digital signature key encipherment server auth]");
            }
            if !asked.common_name.starts_with("system:node:") {
                return refuse("subject common name does not begin with system:node: ");
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns why a request is approved automatically: a node requests its own client certificate and is allowed to.
fn approves(server: &Server, request: &Value) -> Option<&'static str> {
    if pointer::text(request, "/spec/signerName") != "kubernetes.io/kube-apiserver-client-kubelet" {
        return None;
    }
    let asked = asked(request).ok()?;
    check("kubernetes.io/kube-apiserver-client-kubelet", &asked, &usages(request)).ok()?;
    let spec = &request["spec"];
    let user = User {
        name: spec["username"].as_str().unwrap_or("").to_owned(),
        groups: spec["groups"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        ..User::default()
    };
    let may = |subresource: &str| {
        let attributes = Attributes {
            verb: "create",
            group: "certificates.k8s.io",
            version: "*",
            resource: COLLECTION,
            subresource,
            ..Attributes::default()
        };
        server.rbac.check(&server.store, &user, &attributes).is_ok()
    };
    if user.name == asked.common_name && may("selfnodeclient") {
        return Some("Auto approving self kubelet client certificate after SubjectAccessReview.");
    }
    may("nodeclient").then_some("Auto approving kubelet client certificate after SubjectAccessReview.")
}

/// Deletes requests that were answered a while ago, that remained unanswered, or whose certificate has expired.
async fn clean(actor: &Actor, now: Timestamp) {
    let server = actor.server();
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("certificates.k8s.io", "v1", COLLECTION).cloned() else { return };
    for entry in server.store.snapshot(COLLECTION).iter() {
        let Some(request) = server.read_or_warn(&kind, entry) else { continue };
        if is_stale(&request, now) {
            let preconditions =
                Preconditions { uid: Some(entry.head.uid.to_string()), resource_version: None };
            let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
            let _ = actor.delete(&kind, "", request.name(), &options).await;
        }
    }
}

fn is_stale(request: &Value, now: Timestamp) -> bool {
    let older = |time: &str, than: SignedDuration| {
        time.parse::<Timestamp>().is_ok_and(|time| now.duration_since(time) > than)
    };
    let conditions = pointer::list(request, "/status/conditions");
    if conditions.is_empty() {
        return older(pointer::text(request, "/metadata/creationTimestamp"), KEEP_PENDING);
    }
    conditions.iter().any(|condition| older(pointer::text(condition, "/lastUpdateTime"), KEEP_ANSWERED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(common_name: &str, organization: &str) -> Asked {
        let mut asked = Asked::default();
        asked.common_name = common_name.to_owned();
        asked.organizations = vec![organization.to_owned()];
        asked
    }

    #[test]
    fn only_nodes_get_certificates_of_nodes() {
        let signer = "kubernetes.io/kube-apiserver-client-kubelet";
        let usages = ["digital signature", "client auth"];
        assert_eq!(check(signer, &asked("system:node:a", "system:nodes"), &usages), Ok(()));
        assert!(check(signer, &asked("jane", "system:nodes"), &usages).is_err());
        assert!(check(signer, &asked("system:node:a", "dev"), &usages).is_err());
        assert!(check(signer, &asked("system:node:a", "system:nodes"), &["server auth"]).is_err());
    }

    #[test]
    fn certificates_begin_a_little_before_now_and_only_short_ones_are_longer_for_it() {
        let now: Timestamp = "2026-01-02T12:00:00Z".parse().unwrap();
        for (asked, ends) in [
            (Some(1), "2026-01-02T12:10:00Z"),
            (Some(600), "2026-01-02T12:10:00Z"),
            (Some(8 * 3600 - 1), "2026-01-02T19:59:59Z"),
            (Some(8 * 3600), "2026-01-02T19:55:00Z"),
            (Some(24 * 3600), "2026-01-03T11:55:00Z"),
            (Some(i64::MAX), "2027-01-02T11:55:00Z"),
            (None, "2027-01-02T11:55:00Z"),
        ] {
            let (from, until) = span(asked, now);
            assert_eq!(
                (from.to_string().as_str(), until.to_string().as_str()),
                ("2026-01-02T11:55:00Z", ends),
                "{asked:?}"
            );
        }
    }

    #[test]
    fn old_requests_are_forgotten() {
        let now: Timestamp = "2026-01-02T12:00:00Z".parse().unwrap();
        let pending = |time: &str| json!({"metadata": {"creationTimestamp": time}});
        assert!(is_stale(&pending("2026-01-01T11:00:00Z"), now));
        assert!(!is_stale(&pending("2026-01-02T11:00:00Z"), now));
        let denied = json!({"metadata": {"creationTimestamp": "2026-01-02T10:00:00Z"},
            "status": {"conditions": [{"type": "Denied", "lastUpdateTime": "2026-01-02T10:30:00Z"}]}});
        assert!(is_stale(&denied, now));
        let far =
            json!({"status": {"conditions": [{"type": "Denied", "lastUpdateTime": "9999-12-30T21:59:59Z"}]}});
        assert!(!is_stale(&far, now), "a time at the end of all time is only a time");
    }
}
