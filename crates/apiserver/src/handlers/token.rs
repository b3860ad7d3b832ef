//! Tokens for service accounts on request.

use std::sync::Arc;

use apimachinery::field::{self, Path};
use apimachinery::gvk::{GroupResource, Gvk};
use apimachinery::status::Status;
use bytes::Bytes;
use http::Response;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::context::{Context, WriteOptions};
use super::decode;
use super::write::second;
use crate::auth::tokens::{Claims, Kubernetes, Reference};
use crate::http::Body;
use crate::http::negotiate::Offer;
use crate::http::respond;
use crate::object;
use crate::registry::Kind;
use crate::server::Server;

const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;

/// Answers a TokenRequest for a service account.
pub async fn request(
    server: &Arc<Server>,
    context: &Context,
    kind: &Kind,
    namespace: &str,
    body: &Bytes,
) -> Result<Response<Body>, Status> {
    let offer = Offer {
        protobuf: true,
        yaml: true,
        table: false,
        metadata: false,
        metadata_list: false,
        native: true,
    };
    let accepted = context.accept(offer)?;
    let options = WriteOptions::parse(context, "CreateOptions")?;
    let gvk = Gvk::new("authentication.k8s.io", "v1", "TokenRequest");
    let body = if body.is_empty() { &Bytes::from_static(b"{}") } else { body };
    let mut request = decode::object(context, kind, &gvk, body, options.field_validation)?;
    let account_name = context.info.name.as_str();
    let account = server
        .store
        .get("serviceaccounts", &object::join_key(namespace, account_name))
        .ok_or_else(|| Status::not_found(&kind.resource, account_name))?;
    let seconds = request.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(3600);
    let path = Path::new("spec").child("expirationSeconds");
    let mut errors = Vec::new();
    if seconds < SHORTEST {
        errors.push(field::Error::invalid(&path, seconds, "may not specify a duration less than 10 minutes"));
    }
    if seconds > LONGEST {
        errors.push(field::Error::invalid(
            &path,
            seconds,
            "may not specify a duration larger than 2^32 seconds",
        ));
    }
    if !errors.is_empty() {
        return Err(Status::invalid(&gvk.group, &gvk.kind, "", &errors));
    }
    let mut audiences: Vec<String> = request
        .pointer("/spec/audiences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if audiences.is_empty() {
        audiences.push(server.identity.issuer.clone());
    }
    let bound = bound_object(server, namespace, &request)?;
    let now = Timestamp::now();
    let expires = now + jiff::SignedDuration::from_secs(seconds);
    let claims = Claims {
        aud: audiences.clone(),
        exp: Some(expires.as_second()),
        iat: Some(now.as_second()),
        iss: server.identity.issuer.clone(),
        jti: Some(uuid::Uuid::new_v4().to_string()),
        kubernetes: Some(Kubernetes {
            namespace: namespace.to_owned(),
            pod: bound.as_ref().filter(|(kind, _)| kind == "Pod").map(|(_, reference)| reference.clone()),
            secret: bound
                .as_ref()
                .filter(|(kind, _)| kind == "Secret")
                .map(|(_, reference)| reference.clone()),
            serviceaccount: Reference { name: account_name.to_owned(), uid: account.head.uid.to_string() },
        }),
        nbf: Some(now.as_second()),
        sub: format!("system:serviceaccount:{namespace}:{account_name}"),
        legacy_namespace: None,
        legacy_secret: None,
        legacy_name: None,
        legacy_uid: None,
    };
    let token = server.tokens.sign(&claims).map_err(Status::internal)?;
    let metadata = object::meta_mut(&mut request);
    metadata.insert("name".to_owned(), account_name.into());
    metadata.insert("namespace".to_owned(), namespace.into());
    metadata.insert("creationTimestamp".to_owned(), second(now).into());
    request["spec"]["audiences"] = json!(audiences);
    request["spec"]["expirationSeconds"] = json!(seconds);
    if request["spec"].get("boundObjectRef").is_none() {
        request["spec"]["boundObjectRef"] = Value::Null;
    }
    request["status"] = json!({"token": token, "expirationTimestamp": second(expires)});
    Ok(respond::value(201, &request, accepted))
}

/// Finds the object whose life the token shares.
fn bound_object(
    server: &Server,
    namespace: &str,
    request: &Value,
) -> Result<Option<(String, Reference)>, Status> {
    let Some(reference) = request.pointer("/spec/boundObjectRef").filter(|reference| reference.is_object())
    else {
        return Ok(None);
    };
    let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
    let (kind, name, uid) = (text("kind"), text("name"), text("uid"));
    let (collection, key) = match kind.as_str() {
        "Pod" => ("pods", object::join_key(namespace, &name)),
        "Secret" => ("secrets", object::join_key(namespace, &name)),
        _ => {
            let gvk = Gvk::from_api_version(&text("apiVersion"), &kind);
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {}/{}, Kind={kind}",
                gvk.group, gvk.version
            )));
        }
    };
    let resource = GroupResource::new("", collection);
    let entry = server.store.get(collection, &key).ok_or_else(|| Status::not_found(&resource, &name))?;
    if !uid.is_empty() && *uid != *entry.head.uid {
        return Err(Status::conflict(
            &resource,
            &name,
            &format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            ),
        ));
    }
    Ok(Some((kind, Reference { name, uid: entry.head.uid.to_string() })))
}
