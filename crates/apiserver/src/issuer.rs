//! How other servers verify our service account tokens: the issuer's discovery document and its keys.

use base64::Engine;
use http::Response;
use serde_json::json;

use crate::http::body::Body;
use crate::http::respond;
use crate::server::Server;

pub(crate) fn configuration(server: &Server) -> Response<Body> {
    let issuer = &server.identity.issuer;
    let document = json!({
        "issuer": issuer,
        "jwks_uri": format!("{issuer}/openid/v1/jwks"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    });
    respond::bytes_of(200, document.to_string(), "application/json")
}

pub(crate) fn keys(server: &Server) -> Response<Body> {
    let encode = |bytes: &[u8]| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    // An uncompressed point of P-256: a marker, then two coordinates of 32 bytes.
    let point = server.tokens.public_point();
    let keys: Vec<_> = match (point.get(1..33), point.get(33..65)) {
        (Some(x), Some(y)) => vec![json!({
            "use": "sig",
            "kty": "EC",
            "kid": server.tokens.key_id(),
            "crv": "P-256",
            "alg": "ES256",
            "x": encode(x),
            "y": encode(y),
        })],
        _ => Vec::new(),
    };
    respond::bytes_of(200, json!({"keys": keys}).to_string(), "application/jwk-set+json")
}
