//! YAML in and out of the server.

use apimachinery::yaml::Document;
use serde_json::Value;

/// Reads a YAML body.
pub(crate) fn read(body: &[u8]) -> Result<Document, String> {
    let text = std::str::from_utf8(body).map_err(|_| "yaml: invalid leading UTF-8 octet".to_owned())?;
    apimachinery::yaml::read(text).map_err(|error| error.to_string())
}

/// Prints a document as YAML.
pub(crate) fn print(document: &Value) -> String {
    apimachinery::yaml::write(document)
}
