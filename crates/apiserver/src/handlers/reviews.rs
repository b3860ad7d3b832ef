//! Kinds that are answered, not stored: who am I, may I, whose token is this.

use std::sync::Arc;

use apimachinery::field::{self, Path};
use apimachinery::status::Status;
use bytes::Bytes;
use http::Response;
use serde_json::{Value, json};

use super::Failure;
use super::context::{Context, WriteOptions};
use super::decode;
use crate::auth::rbac::{Attributes, Rule};
use crate::auth::user::MASTERS;
use crate::auth::{User, bearer};
use crate::http::Body;
use crate::http::negotiate::Offer;
use crate::http::respond;
use crate::registry::Kind;
use crate::server::Server;

/// Answers a request for a computed kind.
pub async fn answer(
    server: &Arc<Server>,
    context: &Context,
    kind: &Kind,
    namespace: &str,
    body: &Bytes,
) -> Result<Response<Body>, Failure> {
    if !kind.allows(context.info.verb) {
        return Err(Status::method_not_allowed().into());
    }
    let offer = Offer {
        protobuf: true,
        yaml: true,
        table: false,
        metadata: false,
        metadata_list: false,
        native: true,
    };
    let accepted = context.accept(offer)?;
    if kind.resource.resource == "componentstatuses" {
        return Ok(respond::value(200, &component_statuses(server, context)?, accepted));
    }
    let options = WriteOptions::parse(context, "CreateOptions")?;
    let mut review = decode::object(context, kind, &kind.gvk, body, options.field_validation)?;
    if let Some(metadata) = review.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("creationTimestamp");
    }
    match kind.gvk.kind.as_str() {
        "SelfSubjectReview" => review["status"] = json!({"userInfo": context.user.to_value()}),
        "TokenReview" => token_review(server, &mut review).await?,
        "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            if kind.namespaced {
                let asked = text(&review, "/spec/resourceAttributes/namespace");
                if asked != namespace {
                    let path = Path::new("spec").child("resourceAttributes").child("namespace");
                    let error = field::Error::invalid(&path, asked, "must match metadata.namespace");
                    return Err(Status::invalid(&kind.gvk.group, &kind.gvk.kind, "", &[error]).into());
                }
            }
            let user = subject(kind, &review)?;
            access_review(server, kind, &user, &mut review)?;
        }
        "SelfSubjectAccessReview" => access_review(server, kind, &context.user, &mut review)?,
        "SelfSubjectRulesReview" => rules_review(server, &context.user, &mut review)?,
        _ => return Err(Status::method_not_allowed().into()),
    }
    Ok(respond::value(201, &review, accepted))
}

fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned()
}

fn texts(object: &Value, pointer: &str) -> Vec<String> {
    let list = object.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

async fn token_review(server: &Server, review: &mut Value) -> Result<(), Status> {
    let token = text(review, "/spec/token");
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let mut audiences = texts(review, "/spec/audiences");
    let asked = !audiences.is_empty();
    if !asked {
        audiences.push(server.identity.issuer.clone());
    }
    review["status"] = match bearer::identify(server, &token, &audiences).await {
        Some((user, audiences)) => {
            json!({"authenticated": true, "user": user.to_value(), "audiences": audiences})
        }
        None => json!({"user": {}, "error": "[invalid bearer token, unknown]"}),
    };
    Ok(())
}

fn subject(kind: &Kind, review: &Value) -> Result<User, Status> {
    let name = text(review, "/spec/user");
    let groups = texts(review, "/spec/groups");
    if name.is_empty() && groups.is_empty() {
        let path = Path::new("spec").child("user");
        let error = field::Error::invalid(&path, "", "at least one of user or group must be specified");
        return Err(Status::invalid(&kind.gvk.group, &kind.gvk.kind, "", &[error]));
    }
    let extra = review.pointer("/spec/extra").and_then(|extra| serde_json::from_value(extra.clone()).ok());
    Ok(User { name, uid: text(review, "/spec/uid"), groups, extra: extra.unwrap_or_default() })
}

fn access_review(server: &Server, kind: &Kind, user: &User, review: &mut Value) -> Result<(), Status> {
    let (resource, path) =
        (review.pointer("/spec/resourceAttributes"), review.pointer("/spec/nonResourceAttributes"));
    let field = |object: Option<&Value>, name: &str| {
        object.and_then(|object| object.get(name)).and_then(Value::as_str).unwrap_or("").to_owned()
    };
    let invalid = |detail: &str| {
        let error =
            field::Error::invalid(&Path::new("spec").child("resourceAttributes"), Value::Null, detail);
        Status::invalid(&kind.gvk.group, &kind.gvk.kind, "", &[error])
    };
    let allowed = match (resource, path) {
        (Some(_), Some(_)) => {
            return Err(invalid("cannot be specified in combination with nonResourceAttributes"));
        }
        (None, None) => {
            return Err(invalid(
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            ));
        }
        (Some(_), None) => {
            let get = |name| field(resource, name);
            let (verb, group, version, name) = (get("verb"), get("group"), get("version"), get("name"));
            let (what, subresource, namespace) = (get("resource"), get("subresource"), get("namespace"));
            let attributes = Attributes {
                verb: &verb,
                group: &group,
                version: &version,
                resource: &what,
                subresource: &subresource,
                namespace: &namespace,
                name: &name,
                path: None,
            };
            server.rbac.check(&server.store, user, &attributes).is_ok()
        }
        (None, Some(_)) => {
            let (verb, path) = (field(path, "verb"), field(path, "path"));
            let attributes = Attributes { verb: &verb, path: Some(&path), ..Attributes::default() };
            server.rbac.check(&server.store, user, &attributes).is_ok()
        }
    };
    review["status"] = json!({"allowed": allowed});
    if allowed && user.in_group(MASTERS) {
        // Upstream's authorizer for this group gives no reason either.
        return Ok(());
    }
    Ok(())
}

fn rules_review(server: &Server, user: &User, review: &mut Value) -> Result<(), Status> {
    let namespace = text(review, "/spec/namespace");
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let mut rules = Vec::new();
    if user.in_group(MASTERS) {
        let all = || vec!["*".to_owned()];
        rules.push(Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() });
        rules.push(Rule { verbs: all(), urls: all(), ..Rule::default() });
    }
    server.rbac.refresh(&server.store);
    rules.extend(server.rbac.rules_of(user, &namespace));
    let mut resources = Vec::new();
    let mut urls = Vec::new();
    for rule in rules {
        if rule.urls.is_empty() {
            resources.push(serde_json::to_value(&rule).expect("rules are plain data"));
        } else {
            urls.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.urls}));
        }
    }
    review["status"] = json!({"resourceRules": resources, "nonResourceRules": urls, "incomplete": false});
    Ok(())
}

/// `kubectl get componentstatuses`: one component, the store.
fn component_statuses(server: &Server, context: &Context) -> Result<Value, Status> {
    let failure = server.store.stats().read_only;
    let condition = match &failure {
        None => json!({"type": "Healthy", "status": "True", "message": "ok"}),
        Some(why) => json!({"type": "Healthy", "status": "False", "message": why}),
    };
    let item = json!({"metadata": {"name": "etcd-0"}, "conditions": [condition]});
    match context.info.name.as_str() {
        "" => Ok(json!({"kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": [item]})),
        "etcd-0" => {
            let mut item = item;
            item["kind"] = json!("ComponentStatus");
            item["apiVersion"] = json!("v1");
            Ok(item)
        }
        other => {
            Err(Status::not_found(&apimachinery::gvk::GroupResource::new("", "componentstatuses"), other))
        }
    }
}
