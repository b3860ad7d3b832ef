//! Tokens for service accounts on request.

use std::sync::Arc;

use apimachinery::field::{self, Path};
use apimachinery::gvk::{GroupResource, Gvk};
use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::Status;
use bytes::Bytes;
use http::Response;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::context::{Context, WriteOptions};
use super::decode;
use super::table;
use super::write::{Target, second};
use crate::auth::tokens::{Claims, Kubernetes, Reference};
use crate::http::Body;
use crate::http::negotiate::{Offer, Shape};
use crate::http::respond;
use crate::object;
use crate::registry::Kind;
use crate::server::Server;

const DEFAULT: i64 = 3600;
const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;

/// Answers a TokenRequest for a service account.
pub async fn request(
    server: &Arc<Server>,
    context: &Context,
    kind: &Arc<Kind>,
    namespace: &str,
    body: &Bytes,
) -> Result<Response<Body>, Status> {
    let offer =
        Offer { protobuf: true, yaml: true, table: false, metadata: true, metadata_list: true, native: true };
    let accepted = context.accept(offer)?;
    let options = WriteOptions::parse(context, "CreateOptions")?;
    let gvk = Gvk::new("authentication.k8s.io", "v1", "TokenRequest");
    let body = if body.is_empty() { &Bytes::from_static(b"{}") } else { body };
    let mut request = decode::object(context, kind, &gvk, body, options.field_validation)?;
    let account_name = context.info.name.as_str();
    let target = Target {
        server,
        context,
        kind,
        namespace,
        name: account_name,
        subresource: "token",
        scale: false,
        options: &options,
    };
    // Here the uid is a precondition; other objects lose the uid that a client sends.
    let wanted_uid = request.uid().to_owned();
    if request.pointer("/spec/expirationSeconds").is_none_or(Value::is_null) {
        pointer::set(pointer::object_at(&mut request, "spec"), "expirationSeconds", json!(DEFAULT));
    }
    target.begin_answered(&gvk, &mut request).await?;
    let given = request.name().to_owned();
    if !given.is_empty() && given != account_name {
        let path = Path::new("metadata").child("name");
        let detail = "must match the service account name if specified";
        let error = field::Error::invalid(&path, given, detail);
        return Err(Status::invalid(&gvk.group, &gvk.kind, account_name, &[error]));
    }
    let account = server
        .store
        .get("serviceaccounts", &object::join_key(namespace, account_name))
        .ok_or_else(|| Status::not_found(&kind.resource, account_name))?;
    if !wanted_uid.is_empty() && *wanted_uid != *account.head.uid {
        return Err(Status::conflict(
            &GroupResource::new(&gvk.group, &gvk.kind),
            account_name,
            &format!(
                "the UID in the token request ({wanted_uid}) does not match the UID of the service account ({})",
                account.head.uid
            ),
        ));
    }
    let seconds = request.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT);
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
    let now = Timestamp::now();
    let metadata = request.metadata_mut();
    metadata.insert("name".to_owned(), account_name.into());
    metadata.insert("namespace".to_owned(), namespace.into());
    metadata.insert("uid".to_owned(), account.head.uid.to_string().into());
    metadata.insert("creationTimestamp".to_owned(), second(now).into());
    pointer::set(pointer::object_at(&mut request, "spec"), "audiences", json!(audiences));
    target.admit_answered(&gvk, &request).await?;
    let bound = bound_object(server, namespace, account_name, &request)?;
    let expires = crate::clock::after(now, seconds);
    let claims = Claims {
        aud: audiences.clone(),
        exp: Some(expires.as_second()),
        iat: Some(now.as_second()),
        iss: server.identity.issuer.clone(),
        jti: Some(uuid::Uuid::new_v4().to_string()),
        kubernetes: Some(Kubernetes {
            namespace: namespace.to_owned(),
            node: bound.node,
            pod: bound.pod,
            secret: bound.secret,
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
    pointer::set(pointer::object_at(&mut request, "spec"), "expirationSeconds", json!(seconds));
    if request.pointer("/spec/boundObjectRef").is_none() {
        pointer::set(pointer::object_at(&mut request, "spec"), "boundObjectRef", Value::Null);
    }
    pointer::set(&mut request, "status", json!({"token": token, "expirationTimestamp": second(expires)}));
    let document = match accepted.shape {
        Shape::Metadata { beta } => table::partial(&request, beta),
        Shape::MetadataList { .. } => return Err(table::no_list("authentication.TokenRequest")),
        Shape::Object | Shape::Table { .. } => request,
    };
    Ok(respond::value(201, &document, accepted))
}

/// The object to which a token is bound.
#[derive(Debug, Default)]
struct Bound {
    pod: Option<Reference>,
    secret: Option<Reference>,
    node: Option<Reference>,
}

/// Finds the object whose lifetime the token shares.
fn bound_object(server: &Server, namespace: &str, account: &str, request: &Value) -> Result<Bound, Status> {
    let mut bound = Bound::default();
    let Some(reference) = request.pointer("/spec/boundObjectRef").filter(|reference| reference.is_object())
    else {
        return Ok(bound);
    };
    let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
    let (kind, name, uid) = (text("kind"), text("name"), text("uid"));
    let gvk = Gvk::from_api_version(&text("apiVersion"), &kind);
    let (resource, collection, key) = match (gvk.group.as_str(), kind.as_str()) {
        ("", "Pod") => ("pods", "pods", object::join_key(namespace, &name)),
        ("", "Secret") => ("secrets", "secrets", object::join_key(namespace, &name)),
        ("", "Node") => ("nodes", "minions", object::join_key("", &name)),
        _ => {
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {}/{}, Kind={kind}",
                gvk.group, gvk.version
            )));
        }
    };
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    let entry = server
        .store
        .get(collection, &key)
        .ok_or_else(|| Status::not_found(&GroupResource::new("", resource), &name))?;
    let found = Reference { name: name.clone(), uid: entry.head.uid.to_string() };
    let slot = match kind.as_str() {
        "Pod" => {
            let pod: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
            let pod_spec = pod.get("spec").unwrap_or(&Value::Null);
            let spec = |field: &str| pod_spec[field].as_str().unwrap_or("").to_owned();
            if spec("serviceAccountName") != account {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            let node = spec("nodeName");
            if !node.is_empty() {
                let uid = server.store.get("minions", &object::join_key("", &node));
                let uid = uid.map(|entry| entry.head.uid.to_string()).unwrap_or_default();
                bound.node = Some(Reference { name: node, uid });
            }
            &mut bound.pod
        }
        "Secret" => &mut bound.secret,
        _ => &mut bound.node,
    };
    if !uid.is_empty() && uid != found.uid {
        return Err(Status::conflict(
            &GroupResource::new("", &kind),
            &name,
            &format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            ),
        ));
    }
    *slot = Some(found);
    Ok(bound)
}
