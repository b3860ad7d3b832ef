//! Kinds that are answered and not stored: "who am I", "may I", and "whose token is this".

use std::sync::Arc;

use apimachinery::pointer;
use apimachinery::status::Status;
use bytes::Bytes;
use http::Response;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Failure;
use super::access_review;
use super::context::{Context, WriteOptions};
use super::decode;
use super::table::{self, Include};
use super::write::{Target, second};
use crate::auth::{User, bearer};
use crate::http::Body;
use crate::http::negotiate::{Offer, Shape};
use crate::http::respond;
use crate::registry::Kind;
use crate::server::Server;

/// Answers a request for a computed kind.
pub async fn answer(
    server: &Arc<Server>,
    context: &Context,
    kind: &Arc<Kind>,
    namespace: &str,
    body: &Bytes,
) -> Result<Response<Body>, Failure> {
    if !kind.allows(context.info.verb) {
        return Err(Status::method_not_allowed().into());
    }
    let components = kind.computes_tables();
    let offer = Offer {
        protobuf: true,
        yaml: true,
        table: components,
        metadata: true,
        metadata_list: true,
        native: true,
    };
    let accepted = context.accept(offer)?;
    if components {
        let mut found = component_statuses(server, context)?;
        let items = match found.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => Some(items),
            _ => None,
        };
        let document = match (accepted.shape, items) {
            (Shape::Object, None) => found,
            (Shape::Object, Some(items)) => {
                pointer::set(&mut found, "items", items.into());
                found
            }
            (Shape::Table { beta }, items) => {
                let include = Include::parse(context)?;
                let objects = items.unwrap_or_else(|| vec![found]);
                table::of_objects(server, kind, objects, json!({}), include, beta)
            }
            (Shape::Metadata { beta }, None) => table::partial(&found, beta),
            (Shape::Metadata { .. }, Some(_)) => return Err(table::is_a_list(kind).into()),
            (Shape::MetadataList { .. }, None) => return Err(table::not_a_list(kind).into()),
            (Shape::MetadataList { beta }, Some(items)) => {
                table::partial_list(items.into_iter(), json!({}), beta)
            }
        };
        return Ok(respond::value(200, &document, accepted));
    }
    let options = WriteOptions::parse(context, "CreateOptions")?;
    let target = Target {
        server,
        context,
        kind,
        namespace,
        name: "",
        subresource: "",
        scale: false,
        options: &options,
    };
    let mut review = decode::object(context, kind, &kind.gvk, body, options.field_validation)?;
    target.begin_answered(&kind.gvk, &mut review).await?;
    let reply = match kind.gvk.kind.as_str() {
        "SelfSubjectReview" => {
            target.admit_answered(&kind.gvk, &review).await?;
            let now = second(Timestamp::now());
            fresh(kind, json!({"creationTimestamp": now}), json!({"userInfo": context.user.to_value()}))
        }
        "TokenReview" => {
            if pointer::owned(&review, "/spec/token").is_empty() {
                return Err(Status::bad_request("token is required for TokenReview in authentication").into());
            }
            target.admit_answered(&kind.gvk, &review).await?;
            token_review(server, &mut review).await;
            review
        }
        "SubjectAccessReview" | "LocalSubjectAccessReview" | "SelfSubjectAccessReview" => {
            access_review::validate(kind, &review)?;
            target.admit_answered(&kind.gvk, &review).await?;
            let status = access_review::decide(server, context, kind, &review);
            pointer::set(&mut review, "status", status);
            review
        }
        "SelfSubjectRulesReview" => {
            if pointer::owned(&review, "/spec/namespace").is_empty() {
                return Err(Status::bad_request("no namespace on request").into());
            }
            target.admit_answered(&kind.gvk, &review).await?;
            let status = rules_of(server, &context.user, &pointer::owned(&review, "/spec/namespace"));
            let mut reply = fresh(kind, json!({}), status);
            pointer::set(&mut reply, "spec", json!({}));
            reply
        }
        _ => return Err(Status::method_not_allowed().into()),
    };
    let document = match accepted.shape {
        Shape::Metadata { beta } => table::partial(&reply, beta),
        Shape::MetadataList { .. } => return Err(table::not_a_list(kind).into()),
        Shape::Object | Shape::Table { .. } => reply,
    };
    Ok(respond::value(201, &document, accepted))
}

/// Returns an answer that does not repeat the question.
fn fresh(kind: &Kind, metadata: Value, status: Value) -> Value {
    json!({"kind": kind.gvk.kind, "apiVersion": kind.api_version, "metadata": metadata, "status": status})
}

/// Fills in the owner of the token. The rest of the status that the client wrote remains, as upstream.
async fn token_review(server: &Server, review: &mut Value) {
    let token = pointer::owned(review, "/spec/token");
    let mut audiences = pointer::texts(review, "/spec/audiences");
    if audiences.is_empty() {
        audiences.push(server.identity.issuer.clone());
    }
    let found = bearer::identify(server, &token, &audiences).await;
    let status = &mut review["status"];
    if !status.is_object() {
        *status = json!({"user": {}});
    }
    let Some(fields) = status.as_object_mut() else { return };
    fields.remove("authenticated");
    match found {
        Ok((user, audiences)) => {
            fields.insert("authenticated".to_owned(), true.into());
            fields.insert("user".to_owned(), user.to_value());
            fields.insert("audiences".to_owned(), json!(audiences));
        }
        Err(why) => {
            fields.insert("error".to_owned(), why.to_string().into());
        }
    }
}

fn rules_of(server: &Server, user: &User, namespace: &str) -> Value {
    server.rbac.catch_up(&server.store);
    let mut resources = Vec::new();
    let mut urls = Vec::new();
    for rule in server.rbac.rules_of(user, namespace) {
        if rule.urls.is_empty() {
            resources.push(serde_json::to_value(&rule).expect("rules are plain data"));
        } else {
            urls.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.urls}));
        }
    }
    json!({"resourceRules": resources, "nonResourceRules": urls, "incomplete": false})
}

/// `kubectl get componentstatuses`: the store, or each endpoint of an etcd that has several.
fn component_statuses(server: &Server, context: &Context) -> Result<Value, Status> {
    let endpoints = server.store.etcd_endpoints();
    let failures: Vec<Option<String>> = if endpoints.len() > 1 {
        let told = |endpoint: store::EtcdEndpoint| Some(format!("{}: {}", endpoint.url, endpoint.failure?));
        endpoints.into_iter().map(told).collect()
    } else {
        vec![server.store.stats().read_only.map(|why| why.to_string())]
    };
    let item = |(number, failure): (usize, Option<String>)| {
        let condition = match failure {
            None => json!({"type": "Healthy", "status": "True", "message": "ok"}),
            Some(why) => json!({"type": "Healthy", "status": "False", "message": why}),
        };
        json!({"metadata": {"name": format!("etcd-{number}")}, "conditions": [condition]})
    };
    let mut items: Vec<Value> = failures.into_iter().enumerate().map(item).collect();
    match context.info.name.as_str() {
        "" => Ok(json!({"kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": items})),
        name => {
            let Some(item) =
                items.iter_mut().find(|item| item["metadata"].get("name").is_some_and(|own| own == name))
            else {
                let resource = apimachinery::gvk::GroupResource::new("", "componentstatuses");
                return Err(Status::not_found(&resource, name));
            };
            item["kind"] = json!("ComponentStatus");
            item["apiVersion"] = json!("v1");
            Ok(item.take())
        }
    }
}
