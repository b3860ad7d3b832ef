//! One call of one webhook.

use std::time::Duration;

use apimachinery::status::{Details, Status};
use http::Request;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use serde_json::Value;

use super::Occasion;
use super::configuration::Hook;
use super::matching::Seen;
use super::review::{self, Response};
use crate::outbound;
use crate::outbound::reply::{Document, Limits};

/// Why a webhook did not allow a write.
#[derive(Debug)]
pub(super) enum Failure {
    /// It could not be called; its failure policy decides what that means.
    Call(String),
    /// The webhook, or the server, refused.
    Status(Status),
}

impl Failure {
    pub(super) fn into_status(self, name: &str) -> Status {
        match self {
            Self::Call(why) => Status::internal(format!("failed calling webhook {name:?}: {why}")),
            Self::Status(status) => status,
        }
    }
}

/// Calls a webhook. Returns its answer if it allows the write.
pub(super) async fn call(
    hook: &Hook,
    occasion: &Occasion<'_>,
    seen: &Seen<'_>,
    mutating: bool,
) -> Result<Response, Failure> {
    if occasion.dry_run && !matches!(hook.side_effects.as_str(), "None" | "NoneOnDryRun") {
        if hook.side_effects.is_empty() {
            return Err(Failure::Call("Webhook SideEffects is nil".to_owned()));
        }
        return Err(Failure::Status(Status::bad_request(format!(
            "admission webhook {:?} does not support dry run",
            hook.name
        ))));
    }
    let Some(version) = hook.review_version else {
        return Err(Failure::Call(
            "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)"
                .to_owned(),
        ));
    };
    let client =
        hook.client.as_ref().map_err(|why| Failure::Call(format!("could not get REST client: {why}")))?;
    let uid = uuid::Uuid::new_v4().to_string();
    let document = review::document(occasion, seen, &uid, version).to_string();
    let timeout = timeout(hook.timeout_seconds, occasion.context.time_left());
    let path = format!("{}?timeout={}s", client.path, whole_seconds(timeout));
    let posted = post(occasion.server, client, &path, document, Limits::default(), timeout).await;
    let answer = posted
        .and_then(|answer| review::check_kind(&answer.value).map(|()| answer))
        .map_err(|why| Failure::Call(format!("failed to call webhook: {why}")))?;
    let invalid = |why| Failure::Call(format!("received invalid webhook response: {why}"));
    let response = review::read(&answer.value, version, &uid, mutating).map_err(invalid)?;
    let patch = response.patch.as_deref().unwrap_or_default();
    let kept = occasion.server.outbound.keep(&client.endpoint, patch).map_err(|error| invalid(error.0))?;
    occasion.context.keep(kept);
    for (key, value) in notes(&response.annotations, |(key, value)| [key, value]) {
        occasion.context.annotate(&format!("{}/{key}", hook.name), value.clone());
    }
    for warning in notes(&response.warnings, |warning| [warning, ""]) {
        occasion.context.warn(warning.clone());
    }
    if response.allowed { Ok(response) } else { Err(Failure::Status(denied(&hook.name, &response.result))) }
}

/// How many bytes of annotations, or of warnings, are taken from one answer. All warnings of a request have 4 KiB at most, and
/// annotations are short.
const NOTES: usize = 64 << 10;

/// Returns the notes of an answer up to a limit: they stay in memory until the request is done.
fn notes<T>(all: &[T], texts: impl Fn(&T) -> [&str; 2]) -> impl Iterator<Item = &T> {
    let mut left = NOTES;
    all.iter().take_while(move |note| {
        let length: usize = texts(note).iter().map(|text| text.len()).sum();
        left = left.saturating_sub(length);
        left > 0
    })
}

/// Returns the timeout of a webhook: as configured, but not longer than the request that waits for it.
fn timeout(configured_seconds: u64, left: Option<Duration>) -> Duration {
    let configured = Duration::from_secs(configured_seconds);
    left.map_or(configured, |left| left.min(configured))
}

/// Rounds up, since webhooks get whole seconds.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// Posts a document and returns the one that comes back. Errors are in client-go's words.
pub(crate) async fn post(
    server: &crate::server::Server,
    client: &super::configuration::Client,
    path: &str,
    document: String,
    limits: Limits,
    timeout: Duration,
) -> Result<Document, String> {
    let request = Request::post(path)
        .header(HOST, client.endpoint.address.authority())
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json, */*")
        .header(USER_AGENT, "kube-apiserver-admission")
        .body(outbound::full(document))
        .map_err(|error| error.to_string())?;
    let exchange = server.outbound.exchange(server, &client.endpoint, request, limits);
    let while_posting = |why: &str| format!("Post {:?}: {why}", format!("{}{path}", client.origin));
    let reply = match tokio::time::timeout(timeout, exchange).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => return Err(while_posting(&error.0)),
        Err(_) => return Err(while_posting("context deadline exceeded")),
    };
    reply.document().map_err(|error| error.0)
}

/// The refusal of a webhook, as the client gets it.
pub(super) fn denied(name: &str, result: &Value) -> Status {
    let by = format!("admission webhook {name:?} denied the request");
    let text = |field: &str| result[field].as_str().unwrap_or("");
    let message = match (text("message"), text("reason")) {
        ("", "") => format!("{by} without explanation"),
        ("", reason) => format!("{by}: {reason}"),
        (message, _) => format!("{by}: {message}"),
    };
    let code = result["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0).max(400);
    let mut status = Status::new(code, text("reason"), message);
    if let Ok(details) = serde_json::from_value::<Details>(result["details"].clone()) {
        status = status.with_details(details);
    }
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_webhook_has_no_more_time_than_the_request() {
        let told = |left: Option<f64>| whole_seconds(timeout(10, left.map(Duration::from_secs_f64)));
        assert_eq!(told(None), 10);
        assert_eq!(told(Some(60.0)), 10);
        assert_eq!(told(Some(7.2)), 8);
        assert_eq!(told(Some(7.0)), 7);
    }

    #[test]
    fn a_refusal_is_never_a_success() {
        let status = denied("a.b.c", &json!({"code": 200, "message": "no"}));
        assert_eq!(
            (status.code, status.message.as_str()),
            (400, "admission webhook \"a.b.c\" denied the request: no")
        );
        let silent = denied("a.b.c", &Value::Null);
        assert!(silent.message.ends_with("denied the request without explanation"));
        let teapot = denied("a.b.c", &json!({"code": 418, "reason": "Teapot"}));
        assert_eq!((teapot.code, teapot.reason.as_str()), (418, "Teapot"));
    }
}
