//! Writes answers: objects and errors in the representation the client accepted.

use apimachinery::status::Status;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::Value;

use super::body::{self, Body};
use super::negotiate::{Accepted, Media};
use super::sending::Manner;

/// Returns an answer with a JSON (or YAML, or protobuf) document.
pub fn value(code: u16, document: &Value, accepted: Accepted) -> Response<Body> {
    match encode(document, accepted) {
        Ok(bytes) => bytes_of(code, bytes, accepted.media.name()),
        Err(status) => error(&status),
    }
}

/// Encodes a document in an accepted format.
pub fn encode(document: &Value, accepted: Accepted) -> Result<Bytes, Status> {
    match accepted.media {
        Media::Json if accepted.pretty => {
            let mut out = serde_json::to_vec_pretty(document).map_err(Status::internal)?;
            out.push(b'\n');
            Ok(out.into())
        }
        Media::Json => {
            let mut out = serde_json::to_vec(document).map_err(Status::internal)?;
            out.push(b'\n');
            Ok(out.into())
        }
        Media::Yaml => Ok(Bytes::from(crate::yaml::print(document))),
        Media::Protobuf => {
            let text = |field| document.get(field).and_then(Value::as_str).unwrap_or("");
            let gvk = apimachinery::gvk::Gvk::from_api_version(text("apiVersion"), text("kind"));
            native::proto::encode(&gvk, document).map(Bytes::from).map_err(Status::internal)
        }
    }
}

/// Returns an answer with encoded bytes.
pub fn bytes_of(code: u16, bytes: impl Into<Bytes>, content_type: &'static str) -> Response<Body> {
    stream(code, body::full(bytes), content_type)
}

/// Returns an answer with any body.
pub fn stream(code: u16, content: Body, content_type: &'static str) -> Response<Body> {
    let mut response = Response::new(content);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// Marks an answer that ends by itself, though requests of its kind may stay open: it is broken off if it is not read.
pub fn brief(mut response: Response<Body>) -> Response<Body> {
    response.extensions_mut().insert(Manner::Brief);
    response
}

/// Returns plain text, as for health checks and unknown groups.
pub fn text(code: u16, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = bytes_of(code, text, "text/plain; charset=utf-8");
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// Returns the Status that describes an error, as JSON.
pub fn error(status: &Status) -> Response<Body> {
    error_as(status, Accepted::JSON)
}

/// Returns the Status in the format that the client accepted; errors are never shown as a table.
pub fn error_as(status: &Status, accepted: Accepted) -> Response<Body> {
    let document = status.to_value();
    let bytes = encode(&document, accepted).unwrap_or_else(|_| document.to_string().into());
    let mut response = bytes_of(status.code, bytes, accepted.media.name());
    let retry = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if retry > 0 {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry));
    }
    response
}
