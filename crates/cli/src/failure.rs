//! Formats errors in kubectl's words, so that people and scripts find what they know.
//!
//! A refusal of a server reads `Error from server (Reason): …`; every other error reads `error: …`.

use std::fmt;

use serde_json::Value;

use crate::terminal::visible;

/// A server's answer that is not a success.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) status: Value,
}

impl Refusal {
    pub(crate) fn new(code: u16, body: &str) -> Self {
        let status = serde_json::from_str::<Value>(body).ok().filter(|value| value["kind"] == "Status");
        let status = status.unwrap_or_else(|| {
            let message = if body.trim().is_empty() {
                format!("the server answered with {code}")
            } else {
                body.trim().into()
            };
            serde_json::json!({ "message": message, "code": code })
        });
        Self { code, status }
    }

    pub(crate) fn reason(&self) -> &str {
        self.status["reason"].as_str().unwrap_or("")
    }

    /// Adds the operation that failed, as kubectl does for objects from files.
    pub(crate) fn when(mut self, doing: &str, source: &str) -> anyhow::Error {
        if self.reason() != "Invalid" {
            let source = apimachinery::go::quote(source);
            self.status["message"] = format!("error when {doing} {source}: {self}").into();
        }
        self.into()
    }

    fn message(&self) -> &str {
        self.status["message"].as_str().unwrap_or("unknown")
    }

    /// The text that kubectl would print.
    fn told(&self) -> String {
        if self.reason() == "Invalid" {
            let details = &self.status["details"];
            let filled = |key: &str| details[key].as_str().is_some_and(|text| !text.is_empty());
            let none = details["causes"].as_array().is_none_or(Vec::is_empty);
            let head = if filled("kind") || filled("name") {
                format!(
                    "The {} {} is invalid",
                    details["kind"].as_str().unwrap_or(""),
                    apimachinery::go::quote(details["name"].as_str().unwrap_or(""))
                )
            } else if none {
                format!("The request is invalid: {}", self.message())
            } else {
                "The request is invalid".to_owned()
            };
            let causes: Vec<String> = details["causes"].as_array().into_iter().flatten().map(cause).collect();
            return match &causes[..] {
                [] => head,
                [one] => format!("{head}: {one}"),
                several => {
                    format!(
                        "{head}: {}",
                        several.iter().map(|cause| format!("\n* {cause}")).collect::<String>()
                    )
                }
            };
        }
        match self.reason() {
            "" => format!("Error from server: {}", self.message()),
            reason => format!("Error from server ({reason}): {}", self.message()),
        }
    }
}

fn cause(cause: &Value) -> String {
    let message = cause["message"].as_str().unwrap_or("");
    match cause["field"].as_str() {
        None | Some("") => message.to_owned(),
        Some(field) => format!("{field}: {message}"),
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Refusal {}

/// Several errors of one command; the rest succeeded.
#[derive(Debug)]
pub(crate) struct Failures(pub(crate) Vec<anyhow::Error>);

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(|error| format!("{error:#}")).collect();
        match &texts[..] {
            [one] => f.write_str(one),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

impl std::error::Error for Failures {}

impl Failures {
    /// Returns an error if there is any.
    pub(crate) fn check(mut failures: Vec<anyhow::Error>) -> anyhow::Result<()> {
        match failures.len() {
            0 => Ok(()),
            1 => Err(failures.remove(0)),
            _ => Err(Self(failures).into()),
        }
    }
}

/// The command has already printed everything: it only ends with this status.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) u8);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit status {}", self.0)
    }
}

impl std::error::Error for Ended {}

/// A text that is printed without a prefix.
#[derive(Debug)]
pub(crate) struct Plain(pub(crate) String);

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Plain {}

/// No server listens at the address.
pub(crate) fn refused_connection(host: &str) -> anyhow::Error {
    let text =
        format!("The connection to the server {host} was refused - did you specify the right host or port?");
    Plain(text).into()
}

/// Returns whether no server listens at the address.
pub(crate) fn is_refused_connection(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused)
    })
}

/// Returns what to print and the exit status. What a server said in it steers no terminal.
pub fn told(error: &anyhow::Error) -> (String, u8) {
    let (text, status) = words(error);
    (visible(&text).into_owned(), status)
}

fn words(error: &anyhow::Error) -> (String, u8) {
    if let Some(Ended(status)) = error.downcast_ref::<Ended>() {
        return (String::new(), *status);
    }
    if let Some(Failures(failures)) = error.downcast_ref::<Failures>() {
        let lines: Vec<String> = failures.iter().map(|failure| words(failure).0).collect();
        return (lines.join("\n"), 1);
    }
    if let Some(refusal) = error.downcast_ref::<Refusal>() {
        return (refusal.told(), 1);
    }
    if let Some(Plain(text)) = error.downcast_ref::<Plain>() {
        return (text.clone(), 1);
    }
    (format!("error: {}", in_one_line(error)), 1)
}

/// Adds a hint to a server's refusal.
pub(crate) fn with_hint(error: anyhow::Error, hint: &str) -> anyhow::Error {
    match error.downcast::<Refusal>() {
        Ok(mut refusal) => {
            refusal.status["message"] = format!("{refusal}; {hint}").into();
            refusal.into()
        }
        Err(error) => error,
    }
}

/// Adds the file in which the error occurred.
pub(crate) fn in_source(error: anyhow::Error, doing: &str, source: &str) -> anyhow::Error {
    let text = format!("{error:#}");
    match text.split_once(": no matches for kind ") {
        // For an unknown type, the file is named.
        Some((head, rest)) if text.starts_with("resource mapping not found") => {
            anyhow::anyhow!("{head} from {}: no matches for kind {rest}", apimachinery::go::quote(source))
        }
        _ => error.context(format!("error when {doing} {}", apimachinery::go::quote(source))),
    }
}

/// A usage error, with a pointer to the help.
pub(crate) fn misused(command: &str, complaint: &str) -> anyhow::Error {
    let program = crate::program::shown();
    anyhow::anyhow!("{complaint}\nSee '{program} {command} -h' for help and examples")
}

/// Returns whether the server said that the object does not exist.
pub(crate) fn is_not_found(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<Refusal>()
        .is_some_and(|refusal| refusal.code == 404 && refusal.reason() == "NotFound")
}

/// Returns whether the server said that the caller lacks the right.
pub(crate) fn is_forbidden(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.code == 403)
}

/// The error and its causes in one line. For a refusal by a server, its own message is enough; for a failed connection, the last
/// cause.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut parts = Vec::new();
    for cause in error.chain() {
        match cause.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) => {
                parts.push(status.message.clone());
                break;
            }
            Some(_) => {
                parts.push(error.root_cause().to_string());
                break;
            }
            None => parts.push(cause.to_string()),
        }
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use serde_json::json;

    use super::*;

    fn refusal(status: &Value) -> anyhow::Error {
        Refusal::new(422, &status.to_string()).into()
    }

    #[test]
    fn finding_30_what_a_server_says_does_not_steer_the_terminal() {
        let body =
            json!({"kind": "Status", "reason": "Forbidden", "message": "no\u{1b}[2J\ryes"}).to_string();
        let several = Failures(vec![Refusal::new(403, &body).into(), anyhow::anyhow!("\u{7}")]);
        let text = told(&several.into()).0;
        assert_eq!(text, "Error from server (Forbidden): no^[[2J\\ryes\nerror: \\u{7}");
    }

    #[test]
    fn errors_read_as_kubectl_writes_them() {
        let missing = json!({"kind": "Status", "reason": "NotFound", "message": "pods \"x\" not found"});
        let mut invalid = json!({"kind": "Status", "reason": "Invalid", "message": "m", "details": {
            "kind": "Job", "name": "x", "causes": [{"field": "spec.a", "message": "Required value"}]}});
        assert_eq!(told(&refusal(&missing)).0, "Error from server (NotFound): pods \"x\" not found");
        assert_eq!(told(&refusal(&invalid)).0, "The Job \"x\" is invalid: spec.a: Required value");
        invalid["details"]["causes"].as_array_mut().expect("a list").push(json!({"message": "b"}));
        assert_eq!(told(&refusal(&invalid)).0, "The Job \"x\" is invalid: \n* spec.a: Required value\n* b");
        assert_eq!(told(&anyhow!("no")).0, "error: no");
        let both = Failures(vec![anyhow!("a"), refusal(&missing)]).into();
        assert_eq!(
            told(&both),
            ("error: a\nError from server (NotFound): pods \"x\" not found".to_owned(), 1)
        );
        let forbidden = kube::core::Status::failure("secrets is forbidden", "Forbidden").with_code(403);
        let forbidden = anyhow::Error::from(kube::Error::Api(forbidden.boxed())).context("cannot list");
        assert_eq!(told(&forbidden).0, "error: cannot list: secrets is forbidden");
        assert_eq!(told(&Refusal::new(502, "").into()).0, "Error from server: the server answered with 502");
    }
}
