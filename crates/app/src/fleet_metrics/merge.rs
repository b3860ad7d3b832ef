//! Merges the metrics of several members into one answer. A member may send anything: items that are not objects are left out.

use std::collections::BTreeMap;
use std::ops::Add as _;

use apimachinery::gvk::GroupResource;
use apimachinery::pointer;
use apimachinery::quantity::Quantity;
use apimachinery::status::Status;
use serde_json::{Map, Value};

/// The annotation with the cluster of an item.
const CLUSTER: &str = "resource.karmada.io/query-from-cluster";

/// Returns the items of all members, each with its cluster. Items with the same name from several clusters are all kept.
pub(super) fn listed(answers: Vec<(String, Value)>) -> Vec<Value> {
    let mut items = Vec::new();
    for (cluster, mut answer) in answers {
        let found =
            answer.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default();
        items.extend(found.into_iter().map(|item| with_cluster(item, &cluster)));
    }
    items
}

/// Returns the one object with a name. If several clusters have one, the request is ambiguous.
pub(super) fn single(
    resource: &GroupResource,
    name: &str,
    mut answers: Vec<(String, Value)>,
) -> Result<Value, Status> {
    match answers.len() {
        0 => Err(Status::not_found(resource, name)),
        1 => {
            let (cluster, object) = answers.remove(0);
            Ok(with_cluster(object, &cluster))
        }
        _ => {
            let what = resource.resource.trim_end_matches('s');
            let why = format!("the {what}({name}) found in more than one clusters");
            Err(Status::conflict(resource, name, &why))
        }
    }
}

fn with_cluster(mut item: Value, cluster: &str) -> Value {
    // A member may send anything.
    if !item.is_object() {
        return item;
    }
    let annotations = pointer::object_at(pointer::object_at(&mut item, "metadata"), "annotations");
    pointer::set(annotations, CLUSTER, cluster.into());
    item
}

/// Returns custom metrics in the form of `v1beta2`. Values of objects with the same name are added up; other fields come from the
/// first. `None` if no member has the metric.
pub(super) fn custom(answers: Vec<Value>) -> Option<Vec<Value>> {
    let mut merged: Vec<Value> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for item in answers.iter().flat_map(items) {
        let item = to_newer(item);
        let part =
            |name: &str| item.get("describedObject").map_or(&Value::Null, |object| field(object, name));
        let name = format!("{}/{}/{}", part("kind"), part("namespace"), part("name"));
        match places.get(&name).and_then(|place| merged.get_mut(*place)) {
            Some(first) => add(first, &item),
            None => {
                places.insert(name, merged.len());
                merged.push(item);
            }
        }
    }
    (!merged.is_empty()).then_some(merged)
}

/// Returns external metrics; values of one series, by name and labels, are added up.
pub(super) fn external(answers: Vec<Value>) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for item in answers.iter().flat_map(items) {
        let series = format!("{} {}", field(item, "metricName"), field(item, "metricLabels"));
        match places.get(&series).and_then(|place| merged.get_mut(*place)) {
            Some(first) => add(first, item),
            None => {
                places.insert(series, merged.len());
                merged.push(item.clone());
            }
        }
    }
    merged
}

fn items(answer: &Value) -> impl Iterator<Item = &Value> {
    answer.get("items").and_then(Value::as_array).into_iter().flatten().filter(|item| item.is_object())
}

fn field<'a>(object: &'a Value, name: &str) -> &'a Value {
    object.get(name).unwrap_or(&Value::Null)
}

/// Adds the value of an item to that of another one.
fn add(first: &mut Value, item: &Value) {
    let read = |item: &Value| Quantity::parse(item.get("value")?.as_str()?).ok();
    match (read(first), read(item)) {
        // Quantities saturate.
        (Some(one), Some(other)) => pointer::set(first, "value", one.add(other).to_string().into()),
        (None, Some(other)) => pointer::set(first, "value", other.to_string().into()),
        _ => {}
    }
}

/// Returns a value in the form of `v1beta2`, whichever form it has.
fn to_newer(item: &Value) -> Value {
    let mut item = item.clone();
    let Some(fields) = item.as_object_mut() else { return item };
    if let Some(name) = fields.remove("metricName") {
        let mut metric = Map::from_iter([("name".to_owned(), name)]);
        if let Some(selector) = fields.remove("selector") {
            metric.insert("selector".to_owned(), selector);
        }
        fields.insert("metric".to_owned(), metric.into());
        if let Some(window) = fields.remove("window") {
            fields.insert("windowSeconds".to_owned(), window);
        }
    }
    item
}

/// Returns a value in the form of `v1beta1`.
pub(super) fn to_older(mut item: Value) -> Value {
    let Some(fields) = item.as_object_mut() else { return item };
    if let Some(mut metric) = fields.remove("metric") {
        let mut take = |name: &str| metric.get_mut(name).map(Value::take);
        fields.insert("metricName".to_owned(), take("name").unwrap_or_default());
        if let Some(selector) = take("selector").filter(Value::is_object) {
            fields.insert("selector".to_owned(), selector);
        }
    }
    if let Some(window) = fields.remove("windowSeconds") {
        fields.insert("window".to_owned(), window);
    }
    item
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str) -> Value {
        json!({ "metadata": { "name": name }, "containers": [] })
    }

    fn answers(items: &[(&str, &[&str])]) -> Vec<(String, Value)> {
        let list =
            |names: &[&str]| json!({ "items": names.iter().map(|name| pod(name)).collect::<Vec<_>>() });
        items.iter().map(|(cluster, names)| ((*cluster).to_owned(), list(names))).collect()
    }

    #[test]
    fn lists_are_put_together_and_say_where_each_item_is() {
        let found = listed(answers(&[("m1", &["a", "b"]), ("m2", &[]), ("m3", &["a"])]));
        let names: Vec<(&str, &str)> = found
            .iter()
            .map(|item| {
                let metadata = &item["metadata"];
                (metadata["name"].as_str().unwrap(), metadata["annotations"][CLUSTER].as_str().unwrap())
            })
            .collect();
        assert_eq!(names, [("a", "m1"), ("b", "m1"), ("a", "m3")]);
        assert!(
            listed(vec![("m1".to_owned(), json!({ "odd": 1 })), ("m2".to_owned(), json!([]))]).is_empty()
        );
        assert_eq!(
            listed(vec![("m1".to_owned(), json!({ "items": [7] }))]),
            [json!(7)],
            "nonsense stays what it is"
        );
    }

    #[test]
    fn one_object_is_that_of_the_only_cluster_that_has_it() {
        let resource = GroupResource::new("", "pods");
        let asked = |clusters: &[&str]| {
            let each = clusters.iter().map(|cluster| ((*cluster).to_owned(), pod("a"))).collect();
            single(&resource, "a", each)
        };
        assert_eq!(asked(&["m2"]).expect("one")["metadata"]["annotations"][CLUSTER], "m2");
        let none = asked(&[]).expect_err("none");
        assert_eq!((none.code, none.message.as_str()), (404, "pods \"a\" not found"));
        let both = asked(&["m1", "m2"]).expect_err("two");
        let message =
            "Operation cannot be fulfilled on pods \"a\": the pod(a) found in more than one clusters";
        assert_eq!((both.code, both.message.as_str()), (409, message));
    }

    fn newer(object: &str, value: &str) -> Value {
        json!({ "describedObject": { "kind": "Pod", "namespace": "n", "name": object }, "metric": { "name": "m" },
            "timestamp": "t", "windowSeconds": 30, "value": value })
    }

    #[test]
    fn custom_metrics_of_one_object_are_summed_up_in_either_form() {
        let older = json!({ "describedObject": { "kind": "Pod", "namespace": "n", "name": "a" }, "metricName": "m",
            "timestamp": "later", "window": 60, "value": "500m" });
        let found =
            custom(vec![json!({ "items": [newer("a", "1"), newer("b", "7")] }), json!({ "items": [older] })]);
        assert_eq!(found, Some(vec![newer("a", "1500m"), newer("b", "7")]));
        assert_eq!(custom(vec![json!({ "items": [] }), json!({})]), None);
        let shown = to_older(newer("a", "1"));
        assert_eq!(
            (&shown["metricName"], &shown["window"], shown.get("metric")),
            (&json!("m"), &json!(30), None)
        );
        assert_eq!(to_newer(&shown), newer("a", "1"), "there and back");
    }

    #[test]
    fn external_series_are_told_apart_by_their_labels() {
        let series = |queue: &str, value: &str| json!({ "metricName": "depth", "metricLabels": { "queue": queue }, "timestamp": "t", "value": value });
        let both = [
            json!({ "items": [series("a", "2"), series("b", "1")] }),
            json!({ "items": [series("a", "3")] }),
        ];
        assert_eq!(external(both.to_vec()), [series("a", "5"), series("b", "1")]);
    }

    #[test]
    fn a_member_with_many_series_does_not_cost_more_than_it_sends() {
        // Compared with each other, these would be 10¹⁰ comparisons.
        let many = |value: &str| {
            let one = |number: usize| json!({ "metricName": "depth", "metricLabels": { "n": number.to_string() }, "value": value });
            json!({ "items": (0..100_000).map(one).collect::<Vec<_>>() })
        };
        let began = std::time::Instant::now();
        let found = external(vec![many("1"), many("2")]);
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
        assert_eq!((found.len(), &found[99_999]["value"]), (100_000, &json!("3")));
    }

    #[test]
    fn nonsense_of_a_member_is_left_out_or_stays_what_it_is() {
        let odd = json!({ "items": [7, 7, null, [], "x", { "value": 1 }, { "metric": 7, "value": "x" }] });
        let both = vec![odd.clone(), odd];
        assert_eq!(external(both.clone()), [json!({ "value": 1 })], "the others have the same name, none");
        let found = custom(both).expect("something");
        assert_eq!(found, [json!({ "value": 1 })]);
        for (item, shown) in [
            (json!(7), json!(7)),
            (json!({ "metric": 7 }), json!({ "metricName": null })),
            (json!({ "metric": { "name": "m", "selector": 7 } }), json!({ "metricName": "m" })),
        ] {
            assert_eq!(to_older(item), shown);
        }
    }
}
