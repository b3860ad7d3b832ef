//! The embedded data files and how they are unpacked.

use serde::de::DeserializeOwned;

pub(crate) static TYPES: &[u8] = include_bytes!("../data/types.json.zst");
pub(crate) static DISCOVERY: &[u8] = include_bytes!("../data/discovery.json.zst");
pub(crate) static OPENAPI_V2: &[u8] = include_bytes!("../data/openapi-v2.json.zst");
pub(crate) static BOOTSTRAP: &[u8] = include_bytes!("../data/bootstrap.json.zst");

/// Returns the bytes of an embedded file.
pub(crate) fn unpack(packed: &[u8]) -> Vec<u8> {
    zstd::stream::decode_all(packed).expect("embedded data is intact: the tests unpack every file")
}

/// Returns an embedded JSON file as typed data.
pub(crate) fn read<T: DeserializeOwned>(packed: &[u8]) -> T {
    serde_json::from_slice(&unpack(packed)).expect("embedded data has its type: the tests read every file")
}
