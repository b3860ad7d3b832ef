//! Asks the control plane for metrics of all members: `metrics.k8s.io`, `custom.metrics.k8s.io`, `external.metrics.k8s.io`.
//!
//! In: what a metric of a FederatedHPA names. Out: samples by pod, or values in thousandths; errors in
//! Karmada's words. The server of these APIs merges what members report; both our server and Karmada's
//! metrics adapter do.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use std::time::Duration;

use api::autoscaling::{CrossVersionObjectReference, MetricIdentifier};
use apimachinery::gvk::Gvk;
use apimachinery::pointer;
use apimachinery::quantity::Quantity;
use apimachinery::selector::LabelSelector;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use runtime::Error;
use serde_json::Value;
use workloads::autoscaling::{Sample, Samples};

use super::scale::{self, Scales};

/// How long the control plane may take to answer: it waits for members.
const PATIENCE: Duration = Duration::from_secs(30);
/// The annotation that says from which cluster an item comes.
const CLUSTER: &str = "resource.karmada.io/query-from-cluster";
/// The window of a custom metric that does not name one.
const WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// Returns the name by which a pod and its samples find each other: names alone repeat where several clusters run a copy.
pub(super) fn name(cluster: &str, pod: &str) -> String {
    format!("{cluster}/{pod}")
}

/// Returns what the selected pods use of a resource, in all containers or in one. Names include their
/// cluster, if the answer contains it.
pub(super) async fn of_resource(
    client: &Client,
    namespace: &str,
    selector: &str,
    resource: &str,
    container: Option<&str>,
) -> Result<Samples, String> {
    let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
    let list = get(client, &path, &[("labelSelector", selector)])
        .await
        .map_err(|error| format!("unable to fetch metrics from resource metrics API: {error}"))?;
    read_resource(&list, resource, container)
}

fn read_resource(list: &Value, resource: &str, container: Option<&str>) -> Result<Samples, String> {
    let items = items(list);
    if items.is_empty() {
        return Err("no metrics returned from resource metrics API".to_owned());
    }
    let mut samples = Samples::new();
    for item in items {
        let (pod, namespace) =
            (pointer::text(item, "/metadata/name"), pointer::text(item, "/metadata/namespace"));
        let containers = pointer::list(item, "/containers");
        let used = |one: &Value| milli(one.get("usage")?.get(resource)?);
        let value = match container {
            Some(name) => {
                let found = containers.iter().find(|one| pointer::text(one, "/name") == name).ok_or_else(|| {
                    format!("failed to get container metrics: container {name} not present in metrics for pod {namespace}/{pod}")
                })?;
                used(found)
            }
            None if containers.is_empty() => None,
            // The answer of a member is not trusted.
            None => containers.iter().map(used).try_fold(0_i64, |sum, one| Some(sum.saturating_add(one?))),
        };
        let annotations = item.pointer("/metadata/annotations");
        let key = match annotations.and_then(|all| all.get(CLUSTER)).and_then(Value::as_str) {
            Some(cluster) => name(cluster, pod),
            None => pod.to_owned(),
        };
        if let Some(value) = value {
            let window = apimachinery::duration::nanos(pointer::text(item, "/window")).unwrap_or(0);
            let sample = Sample { value, time: time(item), window: SignedDuration::from_nanos(window) };
            samples.insert(key, sample);
        }
    }
    Ok(samples)
}

/// Returns a custom metric of the selected pods.
pub(super) async fn of_pods(
    client: &Client,
    namespace: &str,
    selector: &str,
    metric: &MetricIdentifier,
) -> Result<Samples, String> {
    scale::check_name(&metric.name).map_err(unfit)?;
    let path = format!("namespaces/{namespace}/pods/*/{}", metric.name);
    let list = custom(client, &path, &[("labelSelector", selector)], metric).await?;
    read_pods(&list)
}

fn read_pods(list: &Value) -> Result<Samples, String> {
    let items = items(list);
    if items.is_empty() {
        return Err("no metrics returned from custom metrics API".to_owned());
    }
    // A value that cannot be read is missing. Taken for nothing, it would be a reason to remove replicas.
    let sample = |item: &Value| {
        let value = milli(item.get("value")?)?;
        let window = pointer::number(item, "/windowSeconds").or(pointer::number(item, "/window"));
        let window = window.map_or(WINDOW, SignedDuration::from_secs);
        Some((pointer::owned(item, "/describedObject/name"), Sample { value, time: time(item), window }))
    };
    Ok(items.iter().filter_map(sample).collect())
}

/// Returns a custom metric of an object.
pub(super) async fn of_object(
    client: &Client,
    scales: &Scales,
    namespace: &str,
    object: &CrossVersionObjectReference,
    metric: &MetricIdentifier,
) -> Result<i64, String> {
    scale::check_name(&metric.name).map_err(unfit)?;
    scale::check_name(&object.name).map_err(unfit)?;
    let kind = Gvk::from_api_version(&object.api_version, &object.kind);
    let path = if kind.kind == "Namespace" && kind.group.is_empty() {
        // An autoscaler sees only its own namespace, whatever it names.
        format!("namespaces/{namespace}/metrics/{}", metric.name)
    } else {
        let resource = scales
            .resource(client, &kind)
            .await
            .map_err(|error| format!("unable to fetch metrics from custom metrics API: {error}"))?;
        let group = if kind.group.is_empty() { String::new() } else { format!(".{}", kind.group) };
        format!("namespaces/{namespace}/{}{group}/{}/{}", resource.plural, object.name, metric.name)
    };
    let list = custom(client, &path, &[], metric).await?;
    let value = items(&list).first().and_then(|item| milli(item.get("value")?));
    value.ok_or_else(|| "no metrics returned from custom metrics API".to_owned())
}

/// Returns all values of an external metric, summed up.
pub(super) async fn external(
    client: &Client,
    namespace: &str,
    metric: &MetricIdentifier,
) -> Result<i64, String> {
    let unfit = |error: Error| format!("unable to fetch metrics from external metrics API: {error}");
    scale::check_name(&metric.name).map_err(unfit)?;
    let selector = selector_of(metric)?;
    let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{}", metric.name);
    let list = get(client, &path, &[("labelSelector", &selector)])
        .await
        .map_err(|error| format!("unable to fetch metrics from external metrics API: {error}"))?;
    read_external(&list)
}

fn read_external(list: &Value) -> Result<i64, String> {
    let items = items(list);
    if items.is_empty() {
        return Err("no metrics returned from external metrics API".to_owned());
    }
    let value = |item: &Value| milli(item.get("value")?);
    let sum = items.iter().map(value).try_fold(0_i64, |sum, one| Some(sum.saturating_add(one?)));
    sum.ok_or_else(|| "a value from the external metrics API is not a quantity".to_owned())
}

async fn custom(
    client: &Client,
    path: &str,
    query: &[(&str, &str)],
    metric: &MetricIdentifier,
) -> Result<Value, String> {
    let selector = selector_of(metric)?;
    let query: Vec<(&str, &str)> =
        query.iter().copied().chain([("metricLabelSelector", selector.as_str())]).collect();
    let newer = get(client, &format!("/apis/custom.metrics.k8s.io/v1beta2/{path}"), &query).await;
    let found = match newer {
        // A server may know the older version only.
        Err(error) if error.not_found => {
            let older = get(client, &format!("/apis/custom.metrics.k8s.io/v1beta1/{path}"), &query).await;
            older.map_err(|_| error)
        }
        found => found,
    };
    found.map_err(|error| format!("unable to fetch metrics from custom metrics API: {error}"))
}

/// Returns why a custom metric is not asked for.
fn unfit(error: Error) -> String {
    format!("unable to fetch metrics from custom metrics API: {error}")
}

fn selector_of(metric: &MetricIdentifier) -> Result<String, String> {
    let Some(selector) = &metric.selector else { return Ok(String::new()) };
    let tree = serde_json::to_value(selector).map_err(|error| error.to_string())?;
    LabelSelector::from_object(Some(&tree)).map(|it| it.to_string()).map_err(|error| error.to_string())
}

struct Refused {
    message: String,
    not_found: bool,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.message)
    }
}

async fn get(client: &Client, path: &str, query: &[(&str, &str)]) -> Result<Value, Refused> {
    let failed = |message: String| Refused { message, not_found: false };
    let pairs = query.iter().filter(|(_, value)| !value.is_empty());
    let query: Vec<String> = pairs.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let uri = if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) };
    let request = http::Request::get(uri).body(Vec::new()).map_err(|error| failed(error.to_string()))?;
    match tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await {
        Err(_) => Err(failed(format!("no answer within {PATIENCE:?}"))),
        Ok(Ok(found)) => Ok(found),
        Ok(Err(kube::Error::Api(status))) => {
            Err(Refused { message: status.message.clone(), not_found: status.code == 404 })
        }
        Ok(Err(error)) => Err(failed(error.to_string())),
    }
}

/// Returns a text as it stands in a query.
fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

fn items(list: &Value) -> &[Value] {
    pointer::list(list, "/items")
}

fn time(item: &Value) -> Timestamp {
    pointer::text(item, "/timestamp").parse().unwrap_or(Timestamp::UNIX_EPOCH)
}

fn milli(amount: &Value) -> Option<i64> {
    Some(Quantity::parse(amount.as_str()?).ok()?.milli_value())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, cluster: Option<&str>, containers: &[(&str, Option<&str>)]) -> Value {
        let containers: Vec<Value> = containers
            .iter()
            .map(|(name, cpu)| match cpu {
                Some(cpu) => json!({ "name": name, "usage": { "cpu": cpu, "memory": "1Mi" } }),
                None => json!({ "name": name, "usage": {} }),
            })
            .collect();
        let annotations = cluster.map(|cluster| json!({ CLUSTER: cluster })).unwrap_or_default();
        json!({
            "metadata": { "name": name, "namespace": "n", "annotations": annotations },
            "timestamp": "1970-01-01T00:00:10Z", "window": "15s", "containers": containers,
        })
    }

    fn read(items: &[Value], container: Option<&str>) -> Result<Vec<(String, i64)>, String> {
        let samples = read_resource(&json!({ "items": items }), "cpu", container)?;
        Ok(samples.into_iter().map(|(name, sample)| (name, sample.value)).collect())
    }

    #[test]
    fn what_a_pod_uses_is_read() {
        let both = [("c", Some("100m")), ("d", Some("1"))];
        let sum = |name: &str, value| (name.to_owned(), value);
        assert_eq!(read(&[pod("a", None, &both)], None), Ok(vec![sum("a", 1100)]));
        assert_eq!(read(&[pod("a", None, &both)], Some("c")), Ok(vec![sum("a", 100)]));
        let same = [pod("a", Some("m1"), &both), pod("a", Some("m2"), &both)];
        assert_eq!(
            read(&same, None),
            Ok(vec![sum("m1/a", 1100), sum("m2/a", 1100)]),
            "names repeat in clusters"
        );
        let most = Some("9223372036854775807m");
        let too_much = pod("a", None, &[("c", most), ("d", most)]);
        assert_eq!(read(&[too_much], None), Ok(vec![sum("a", i64::MAX)]), "no member makes it negative");
        let part = pod("b", None, &[("c", Some("100m")), ("d", None)]);
        assert_eq!(
            read(&[part.clone(), pod("a", None, &both)], None),
            Ok(vec![sum("a", 1100)]),
            "half is nothing"
        );
        assert_eq!(read(&[part], Some("d")), Ok(vec![]));
        assert_eq!(read(&[], None).unwrap_err(), "no metrics returned from resource metrics API");
        let fault = "failed to get container metrics: container x not present in metrics for pod n/a";
        assert_eq!(read(&[pod("a", None, &both)], Some("x")).unwrap_err(), fault);
        let samples =
            read_resource(&json!({ "items": [pod("a", None, &both)] }), "cpu", None).expect("samples");
        let expected = (Timestamp::from_second(10).expect("a time"), SignedDuration::from_secs(15));
        assert_eq!((samples["a"].time, samples["a"].window), expected);
    }

    #[tokio::test]
    async fn finding_25_a_metric_whose_name_is_more_than_a_name_is_not_asked_for() {
        let world = crate::world::World::new().await;
        let (client, scales) = (world.environment.client(), Scales::default());
        world.writes();
        let named = |name: &str| MetricIdentifier { name: name.to_owned(), ..MetricIdentifier::default() };
        let pod = |name: &str| CrossVersionObjectReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: name.to_owned(),
        };
        for odd in ["a?watch=true", "a#", "a/b", "..", "a%2fb"] {
            let metric = named(odd);
            let answers = [
                of_pods(client, "n", "", &metric).await.map(drop),
                of_object(client, &scales, "n", &pod("p"), &metric).await.map(|_| ()),
                of_object(client, &scales, "n", &pod(odd), &named("m")).await.map(|_| ()),
                external(client, "n", &metric).await.map(|_| ()),
            ];
            for answer in answers {
                let error = answer.expect_err("nothing is called so");
                assert!(error.ends_with(&format!("nothing can be called {odd:?}")), "{error}");
            }
        }
        assert_eq!(world.reads(), Vec::<String>::new());
        world.supervisor.stop().await;
    }

    #[test]
    fn a_custom_metric_has_its_time_and_its_window() {
        let sample = |otherwise: Value| {
            let base = json!({ "describedObject": { "name": "a" }, "value": "1" });
            let list = json!({ "items": [crate::fixtures::merged(base, otherwise)] });
            let sample = read_pods(&list).expect("samples").remove("a").expect("a sample");
            (sample.time.as_second(), sample.window.as_secs())
        };
        assert_eq!(sample(json!({ "timestamp": "1970-01-01T00:01:40Z", "windowSeconds": 30 })), (100, 30));
        assert_eq!(sample(json!({ "window": 20 })), (0, 20), "as an older version says it");
        assert_eq!(sample(json!({})), (0, 60), "a minute if it does not say");
        let none = read_pods(&json!({ "items": [] })).unwrap_err();
        assert_eq!(none, "no metrics returned from custom metrics API");
    }

    #[test]
    fn a_value_that_cannot_be_read_is_not_taken_for_nothing() {
        let item = |name: &str, value: Value| json!({ "describedObject": { "name": name }, "value": value });
        let list = |items: Vec<Value>| json!({ "items": items });
        let odd = [json!(null), json!("many"), json!({}), json!("")];
        let items = odd.iter().map(|value| item("odd", value.clone())).chain([item("a", json!("1500m"))]);
        let found = read_pods(&list(items.collect())).expect("samples");
        let values: Vec<(&str, i64)> =
            found.iter().map(|(name, sample)| (name.as_str(), sample.value)).collect();
        assert_eq!(values, [("a", 1500)]);
        for value in odd {
            assert!(read_pods(&list(vec![item("odd", value.clone())])).expect("nothing").is_empty());
            let both = list(vec![item("a", json!("2")), item("odd", value)]);
            assert!(read_external(&both).unwrap_err().contains("not a quantity"));
        }
        assert_eq!(read_external(&list(vec![item("a", json!("2")), item("b", json!("500m"))])), Ok(2500));
        assert!(read_external(&list(vec![])).unwrap_err().starts_with("no metrics"));
    }
}
