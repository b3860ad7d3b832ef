//! The context of one request in the handlers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apimachinery::field::{self, Path};
use apimachinery::pointer;
use apimachinery::status::Status;
use bytes::Bytes;
use http::{HeaderMap, Method, header};
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use serde_json::{Value, json};

pub use crate::account::Held;
use crate::auth::User;
use crate::auth::bounds::Reach;
use crate::http::negotiate::{self, Accepted, Offer};
use crate::http::sending::Recipient;
use crate::http::{Query, RequestInfo};
use crate::local::Terms;
use crate::outbound::reply::Taken;
use crate::serve::{Onward, Peer};

/// The warnings of an answer are cut at 4096 characters in total; further ones are dropped.
const MOST_WARNINGS: usize = 4097;

/// The facts about a request besides its body.
#[derive(Debug)]
pub struct Context {
    pub method: Method,
    pub info: RequestInfo,
    pub query: Query,
    pub headers: HeaderMap,
    pub user: Arc<User>,
    warnings: Mutex<Vec<String>>,
    /// Annotations of admission for the audit log.
    annotations: Mutex<BTreeMap<String, String>>,
    /// The same, for logs that keep the content of requests.
    request_annotations: Mutex<BTreeMap<String, String>>,
    /// Room for what webhooks sent and this request goes on with.
    kept: Mutex<Vec<Taken>>,
    /// When the request times out, for the client or for the server.
    deadline: Option<Instant>,
    /// The client's connection, if it wants to switch protocols.
    upgrade: Mutex<Option<OnUpgrade>>,
    pub terms: Terms,
    /// The reach of the user's rights.
    reach: Reach,
    /// Another component has already checked all rights that this request needs.
    pub(crate) vouched: bool,
    /// The user who gets the answer.
    pub(crate) recipient: Recipient,
}

impl Context {
    pub fn new(method: Method, info: RequestInfo, query: Query, headers: HeaderMap, user: Arc<User>) -> Self {
        Self {
            method,
            info,
            query,
            headers,
            user,
            warnings: Mutex::default(),
            annotations: Mutex::default(),
            request_annotations: Mutex::default(),
            kept: Mutex::default(),
            deadline: None,
            upgrade: Mutex::default(),
            terms: Terms::default(),
            reach: Reach::Asked,
            vouched: false,
            recipient: Recipient::default(),
        }
    }

    /// Charges the user for memory that the answer takes in addition to its bytes, until the returned value is dropped.
    /// Administrators are not charged.
    ///
    /// # Errors
    /// If the user has already left too much unread.
    pub fn hold(&self, bytes: usize) -> Result<Option<Held>, Status> {
        match &self.recipient.account {
            Some(account) => account.hold(bytes).map(Some).ok_or_else(super::list::too_much_unsent),
            None => Ok(None),
        }
    }

    /// Returns the client of this request as the client of another one, which this one is answered with: with the same rights, and
    /// with the same share of places and memory.
    pub fn client(&self) -> Peer {
        Peer::Onward(Onward { user: self.user.clone(), recipient: self.recipient.clone() })
    }

    /// Sets the user who gets the answer.
    pub(crate) fn with_recipient(mut self, recipient: Recipient) -> Self {
        self.recipient = recipient;
        self
    }

    /// Sets the reach of the user's rights.
    pub(crate) fn within(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }

    /// Notes that another component has checked the user's rights.
    pub(crate) fn vouched(mut self, vouched: bool) -> Self {
        self.vouched = vouched;
        self
    }

    /// Returns the field selector of a list or a watch: the requested one, restricted by the user's rights.
    pub(crate) fn field_selector(&self) -> Cow<'_, str> {
        let asked = self.query.text("fieldSelector");
        match &self.reach {
            Reach::Asked => asked.into(),
            Reach::Only(own) if asked.is_empty() => own.into(),
            Reach::Only(own) => format!("{asked},{own}").into(),
        }
    }

    pub fn with_terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Sets the deadline of the request.
    pub fn with_deadline(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Returns how much time the request has left, if it has a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Keeps the client's connection for a handler that can switch protocols.
    pub fn with_upgrade(self, upgrade: Option<OnUpgrade>) -> Self {
        *self.upgrade.lock() = upgrade;
        self
    }

    /// Returns the client's connection if it wants to switch protocols; only the first call gets it.
    pub fn take_upgrade(&self) -> Option<OnUpgrade> {
        self.upgrade.lock().take()
    }

    pub fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Adds a warning to the answer; equal ones are sent once. A warning that would exceed the limit is dropped.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock();
        if warnings.len() < MOST_WARNINGS && !text.is_empty() && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// Keeps room until this request is done.
    pub fn keep(&self, room: Option<Taken>) {
        self.kept.lock().extend(room);
    }

    /// Adds an annotation for the audit log; the first value of a key counts.
    pub fn annotate(&self, key: &str, value: String) {
        self.annotations.lock().entry(key.to_owned()).or_insert(value);
    }

    /// As [`Context::annotate`], for annotations with content of the request: only a log that keeps content gets them.
    pub fn annotate_request(&self, key: &str, value: String) {
        self.request_annotations.lock().entry(key.to_owned()).or_insert(value);
    }

    pub fn take_annotations(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut *self.annotations.lock())
    }

    pub fn take_request_annotations(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut *self.request_annotations.lock())
    }

    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock())
    }

    /// Returns the media type of the body without its parameters, in lower case.
    pub fn content_type(&self) -> String {
        let raw = self.header(header::CONTENT_TYPE).unwrap_or("");
        raw.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
    }

    /// Negotiates the representation of the answer; browsers and curl get indented JSON.
    pub fn accept(&self, offer: Offer) -> Result<Accepted, Status> {
        let mut accepted = negotiate::negotiate(self.header(header::ACCEPT), offer)?;
        accepted.pretty |= match self.query.get("pretty") {
            Some(value) => value != "false" && value != "0",
            None => {
                let agent = self.header(header::USER_AGENT).unwrap_or("");
                agent.starts_with("curl") || agent.starts_with("Wget") || agent.starts_with("Mozilla/5.0")
            }
        };
        Ok(accepted)
    }

    /// Returns the field manager.
    pub fn field_manager(&self) -> String {
        let manager = self.query.text("fieldManager");
        if !manager.is_empty() {
            return manager.to_owned();
        }
        let agent = self.header(header::USER_AGENT).unwrap_or("");
        let prefix = agent.split('/').next().unwrap_or("");
        if prefix.is_empty() { "unknown".to_owned() } else { prefix.chars().take(128).collect() }
    }
}

/// How to handle unknown fields and repeated keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// The query options that every write has.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_validation: FieldValidation,
    pub field_manager: String,
    pub force: Option<bool>,
    /// The options as admission sees them, without their kind.
    pub document: Value,
}

impl WriteOptions {
    /// Returns the options of an operation as admission sees them.
    pub fn to_value(&self, kind: &str) -> Value {
        let mut value = self.document.clone();
        pointer::set(&mut value, "kind", json!(kind));
        pointer::set(&mut value, "apiVersion", json!("meta.k8s.io/v1"));
        value
    }

    /// Reads and checks the options; `kind` names them in errors (`CreateOptions`, …).
    pub fn parse(context: &Context, kind: &str) -> Result<Self, Status> {
        let mut errors = Vec::new();
        let dry: Vec<&str> = context.query.all("dryRun").collect();
        if dry.iter().any(|value| *value != "All") {
            errors.push(field::Error::not_supported(&Path::new("dryRun"), json!(dry), &["All"]));
        }
        let manager = context.query.text("fieldManager");
        let path = Path::new("fieldManager");
        if manager.len() > 128 {
            errors.push(field::Error::too_long(&path, 128));
        }
        for (position, odd) in manager.char_indices().filter(|(_, c)| !is_printable(*c)) {
            let detail = format!("invalid character U+{:04X} (at position {position})", u32::from(odd));
            errors.push(field::Error::invalid(&path, manager, detail));
        }
        let is_apply = context.content_type().starts_with("application/apply-patch");
        let force = context.query.get("force").map(|value| value != "false" && value != "0");
        if kind == "PatchOptions" {
            if is_apply {
                if manager.is_empty() {
                    errors.push(field::Error::required(&path, "is required for apply patch"));
                }
            } else if force.is_some() {
                errors.push(field::Error::forbidden(
                    &Path::new("force"),
                    "may not be specified for non-apply patch",
                ));
            }
        }
        let field_validation = match context.query.text("fieldValidation") {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                errors.push(field::Error::not_supported(
                    &Path::new("fieldValidation"),
                    other,
                    &["", "Ignore", "Strict", "Warn"],
                ));
                FieldValidation::Warn
            }
        };
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", kind, "", &errors));
        }
        let mut document = json!({});
        if !dry.is_empty() {
            pointer::set(&mut document, "dryRun", json!(dry));
        }
        for field in ["fieldManager", "fieldValidation"] {
            let given = context.query.text(field);
            if !given.is_empty() {
                pointer::set(&mut document, field, json!(given));
            }
        }
        Ok(Self {
            dry_run: !dry.is_empty(),
            field_validation,
            field_manager: context.field_manager(),
            force,
            document,
        })
    }
}

fn is_printable(c: char) -> bool {
    !c.is_control() && (c == ' ' || !c.is_whitespace())
}

/// The complete body of a request.
pub type RequestBody = Bytes;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_warnings_are_kept_than_can_be_sent() {
        let query = || Query::parse(None);
        let info = RequestInfo::parse(&Method::GET, "/version", &query());
        let context = Context::new(Method::GET, info, query(), HeaderMap::new(), Arc::new(User::default()));
        (0..100_000).for_each(|number| context.warn(format!("unknown field \"spec.f{number}\"")));
        assert_eq!(context.take_warnings().len(), MOST_WARNINGS);
    }
}
