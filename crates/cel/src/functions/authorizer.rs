//! Questions about rights: `authorizer.group('apps').resource('deployments').namespace('x').check('get').allowed()`.

use std::sync::Arc;

use apimachinery::names;

use crate::eval::fail;
use crate::value::Value;
use crate::{Authorizer, EvalError, Question};

pub(crate) fn call(
    question: &Arc<Question>,
    name: &str,
    args: &[Value],
    authorizer: Option<&dyn Authorizer>,
) -> Result<Value, EvalError> {
    let mut next = Question::clone(question);
    match (name, args) {
        ("serviceAccount", [Value::String(namespace), Value::String(account)]) => {
            if !names::dns1123_subdomain(account).is_empty() {
                return fail("Invalid service account name");
            }
            if !names::dns1123_label(namespace).is_empty() {
                return fail("Invalid service account namespace");
            }
            next.account = Some((namespace.to_string(), account.to_string()));
        }
        ("path", [Value::String(path)]) if path.trim().is_empty() => return fail("path must not be empty"),
        ("path", [Value::String(path)]) => next.path = Some(path.to_string()),
        ("group", [Value::String(group)]) => next.group = group.to_string(),
        ("resource", [Value::String(resource)]) if resource.trim().is_empty() => {
            return fail("resource must not be empty");
        }
        ("resource", [Value::String(resource)]) => next.resource = resource.to_string(),
        ("subresource", [Value::String(subresource)]) => next.subresource = subresource.to_string(),
        ("namespace", [Value::String(namespace)]) => next.namespace = namespace.to_string(),
        ("name", [Value::String(name)]) => next.name = name.to_string(),
        // Rules of roles know no selectors: they do not change the answer.
        ("fieldSelector" | "labelSelector", [Value::String(_)]) => {}
        ("check", [Value::String(verb)]) => {
            let Some(authorizer) = authorizer else { return fail("no authorizer") };
            next.verb = verb.to_string();
            let (allowed, reason) = authorizer.allows(&next);
            return Ok(Value::Decision(allowed, reason.into()));
        }
        _ => return fail("no such overload"),
    }
    Ok(Value::Authorizer(Arc::new(next)))
}

/// Asks a decision.
pub(crate) fn decision(allowed: bool, reason: &Arc<str>, name: &str) -> Option<Value> {
    match name {
        "allowed" => Some(Value::Bool(allowed)),
        "reason" => Some(Value::String(reason.clone())),
        "errored" => Some(Value::Bool(false)),
        "error" => Some(Value::text("")),
        _ => None,
    }
}
