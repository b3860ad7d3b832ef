//! `kube`: what scripts may ask Karmada itself.

use apimachinery::quantity::Quantity;
use serde_json::Value as Json;

use super::Call;
use crate::lua::convert;
use crate::lua::machine::Ran;
use crate::lua::value::Value;
use crate::lua::{Throw, decode};
use crate::pods;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lua) enum Function {
    AccuratePodRequirements,
    GetPodDependencies,
    GetResourceQuantity,
    ResourceAdd,
}

pub(super) const MEMBERS: &[(&str, Function)] = &[
    ("accuratePodRequirements", Function::AccuratePodRequirements),
    ("getPodDependencies", Function::GetPodDependencies),
    ("getResourceQuantity", Function::GetResourceQuantity),
    ("resourceAdd", Function::ResourceAdd),
];

pub(super) fn call(call: &mut Call<'_, '_>, function: Function) -> Ran {
    match function {
        Function::ResourceAdd => {
            let mut sum = Quantity::ZERO;
            for argument in 1..=call.count {
                sum += quantity(call, argument)?;
            }
            call.push_text(sum.to_string().as_bytes())
        }
        Function::GetResourceQuantity => {
            if call.count != 1 {
                return Err(call.raise("getResourceQuantity only accepts one argument"));
            }
            let amount = quantity(call, 1)?.as_f64();
            if amount < 0.0 {
                return Err(call.raise("int approximation unexpectedly returned a negative value"));
            }
            if !amount.is_finite() {
                return Err(call.raise("int approximation unexpectedly returned an infinite value"));
            }
            call.push_number(amount)
        }
        Function::AccuratePodRequirements => {
            if call.count != 1 {
                return Err(call.raise("getPodRequirements only accepts one argument"));
            }
            let spec = pod_spec(call, "PodTemplateSpec")?;
            let class = call.machine.priority_class();
            let requirements =
                pods::requirements(&spec, class).map_err(|error| call.raise(&error.to_string()))?;
            answer(call, requirements.map(serde_json::to_value).transpose())
        }
        Function::GetPodDependencies => {
            if call.count != 2 {
                return Err(call.raise("getPodDependencies only accepts two argument"));
            }
            let spec = pod_spec(call, "corev1.PodTemplateSpec")?;
            let namespace = match call.get(2) {
                Value::Nil => "default".to_owned(),
                _ => call.text(2)?.lossy(),
            };
            let mut found = pods::references(&spec, "").map_err(|error| call.raise(&error.to_string()))?;
            // Each has a copy of its own.
            let copies = found.len() * namespace.len();
            call.machine.heap.charge(copies)?;
            found.iter_mut().for_each(|reference| reference.namespace.clone_from(&namespace));
            let found = (!found.is_empty()).then_some(found);
            answer(call, found.map(serde_json::to_value).transpose())?;
            call.machine.heap.release(copies);
            Ok(())
        }
    }
}

/// Reads a quantity; nil is zero.
fn quantity(call: &mut Call<'_, '_>, argument: usize) -> Ran<Quantity> {
    let text = match call.get(argument) {
        Value::Nil => return Ok(Quantity::ZERO),
        Value::Text(text) => text.lossy(),
        _ => return Err(call.wrong(argument, "string")),
    };
    call.spend(text.len() / 16)?;
    Quantity::parse(&text).map_err(|error| {
        let shown: String = text.chars().take(200).collect();
        // This one upstream tells without a place; a place helps.
        call.raise(&format!("cannot parse '{shown}': {error}"))
    })
}

/// Returns the `spec` of a pod template, as far as its fields have the right types.
fn pod_spec(call: &mut Call<'_, '_>, target: &str) -> Ran<Json> {
    let table = call.table(1)?;
    let failed = |call: &mut Call<'_, '_>, why: String| -> Throw {
        call.raise(&format!("fail to convert lua value to {target}: {why}"))
    };
    let (mut json, charged) = match convert::to_json(call.machine, table)? {
        Ok(encoded) => encoded,
        Err(why) => return Err(failed(call, why)),
    };
    // It is dropped before the script goes on.
    call.machine.heap.release(charged);
    decode::object_where_empty(&mut json);
    convert::repair(&mut json, &[]);
    match json {
        Json::Object(mut fields) => match fields.remove("spec") {
            None | Some(Json::Null) => Ok(Json::Object(serde_json::Map::new())),
            Some(spec @ Json::Object(_)) => Ok(spec),
            Some(_) => Err(failed(call, "spec is not an object".into())),
        },
        _ => Err(failed(call, "it is not an object".into())),
    }
}

fn answer(call: &mut Call<'_, '_>, json: Result<Option<Json>, serde_json::Error>) -> Ran {
    match json {
        Ok(None) => call.push(Value::Nil),
        Ok(Some(json)) => {
            let value = convert::from_json(call.machine, &json)?;
            call.push(value)
        }
        Err(error) => Err(call.raise(&error.to_string())),
    }
}
