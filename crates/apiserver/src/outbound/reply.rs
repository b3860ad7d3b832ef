//! Reads the answer of a webhook like client-go: a JSON document, or an error in client-go's words.

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::Value;

use super::Error;

/// Much larger than any review.
const MAX_REPLY: usize = 16 * 1024 * 1024;

/// Reads a whole body.
pub async fn read(body: Incoming) -> Result<Bytes, Error> {
    Limited::new(body, MAX_REPLY)
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .map_err(|_| Error("unexpected EOF".to_owned()))
}

/// Returns the document of a successful answer.
pub fn document(code: u16, body: &[u8]) -> Result<Value, Error> {
    if !(200..=206).contains(&code) {
        return Err(Error(failure(code, body)));
    }
    if body.is_empty() {
        return Err(Error("0-length response with status code: 200 and content type: ".to_owned()));
    }
    let value: Value = match apimachinery::json::read(body) {
        Ok(parsed) => parsed.value,
        Err(error) => return Err(Error(format!("couldn't get version/kind; json parse error: {error}"))),
    };
    if !value.is_object() {
        return Err(Error(
            "couldn't get version/kind; json parse error: json: cannot unmarshal into an object".to_owned(),
        ));
    }
    Ok(value)
}

/// Returns the error for an answer outside of 2xx.
fn failure(code: u16, body: &[u8]) -> String {
    if let Ok(status) = serde_json::from_slice::<Value>(body)
        && status["kind"] == "Status"
        && status["status"] != "Success"
        && let Some(message) = status["message"].as_str()
    {
        return message.to_owned();
    }
    let text = String::from_utf8_lossy(body);
    let said = if text.trim().is_empty() { "unknown" } else { text.trim() };
    match code {
        409 => "the server reported a conflict".to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => said.to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        500.. => format!(
            "an error on the server ({}) has prevented the request from succeeding",
            apimachinery::go::quote(said)
        ),
        other => format!("the server responded with the status code {other} but did not return more information"),
    }
}
