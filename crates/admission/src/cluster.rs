//! The rules of the Cluster kind, which Karmada compiles into its own API server.
//!
//! Order on create: [`prepare_create`], [`check`], the server's checks on metadata, [`canonicalize`]. On update:
//! [`prepare_update`], the server's checks, [`check`], [`canonicalize`]. A write to status is neither prepared nor
//! checked, but canonicalized. Refusals are 422 with one cause per field, not 403.

use std::collections::BTreeSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use apimachinery::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use api::cluster::{Cluster, ClusterSpec, LocalSecretReference, MODEL_UNBOUNDED, ResourceModel};
use api::constants::{CLUSTER_NAME_MAX_LENGTH, EFFECT_NO_EXECUTE, EFFECT_NO_SCHEDULE};
use api::features::{CUSTOMIZED_CLUSTER_RESOURCE_MODELING, Features};

use serde::Deserialize;
use serde_json::Value;

use crate::request::{Denial, Means, Request, encode, invalid};

/// Prepares and canonicalizes, in one step: an API server checks the metadata before and after.
pub(crate) fn mutate(request: &Request<'_>, object: &mut Value, means: &mut Means<'_>) -> Result<(), Denial> {
    let mut cluster = read(object)?;
    match request.old {
        None => prepare_create(&mut cluster, &means.settings.features),
        Some(old) => prepare_update(&mut cluster, &read(old)?, &means.settings.features),
    }
    canonicalize(&mut cluster, means.now);
    let mut new = encode(&cluster);
    // What the type does not know of the metadata stays as it was written.
    if let Some(metadata) = object.get("metadata")
        && let Some(fields) = new.as_object_mut()
    {
        fields.insert("metadata".to_owned(), metadata.clone());
    }
    *object = new;
    Ok(())
}

pub(crate) fn validate(object: &Value) -> Result<(), Denial> {
    let errors = check(&read(object)?);
    if errors.is_empty() { Ok(()) } else { Err(Denial::invalid(errors)) }
}

fn read(object: &Value) -> Result<Cluster, Denial> {
    Cluster::deserialize(object).map_err(|error| {
        let kind = "Cluster in version \"v1alpha1\" cannot be handled as a Cluster";
        Denial { reason: Some("BadRequest"), ..Denial::unreadable(format!("{kind}: {error}")) }
    })
}

/// Normalises a cluster that is about to be created: no status, generation 1, classes of node sizes.
pub fn prepare_create(cluster: &mut Cluster, features: &Features) {
    cluster.status = Default::default();
    cluster.metadata.generation = Some(1);
    if features.enabled(CUSTOMIZED_CLUSTER_RESOURCE_MODELING) {
        if cluster.spec.resource_models.is_empty() {
            cluster.spec.resource_models = api::cluster::default_resource_models();
        } else {
            normalize_models(&mut cluster.spec.resource_models);
        }
    }
}

/// Normalises a cluster that is about to be replaced: the stored status, the times of taints that stay, a new generation if the
/// spec differs.
pub fn prepare_update(cluster: &mut Cluster, old: &Cluster, features: &Features) {
    cluster.status = old.status.clone();
    keep_times(&mut cluster.spec.taints, &old.spec.taints);
    let generation = old.metadata.generation.unwrap_or_default();
    // Compared before the classes are normalised, as upstream.
    let changed = cluster.spec != old.spec;
    cluster.metadata.generation = Some(if changed { generation.saturating_add(1) } else { generation });
    if features.enabled(CUSTOMIZED_CLUSTER_RESOURCE_MODELING) {
        normalize_models(&mut cluster.spec.resource_models);
    }
}

/// Gives taints that are written without their time the one that they have. Applying the same file every few minutes does not set
/// them anew: tolerations count from that time, and would never end.
fn keep_times(taints: &mut [Taint], old: &[Taint]) {
    for taint in taints {
        if taint.effect == EFFECT_NO_EXECUTE && taint.time_added.is_none() {
            let known = old.iter().find(|known| is_same(known, taint));
            taint.time_added = known.and_then(|known| known.time_added.clone());
        }
    }
}

fn is_same(one: &Taint, other: &Taint) -> bool {
    let value = |taint: &Taint| taint.value.clone().unwrap_or_default();
    one.key == other.key && one.effect == other.effect && value(one) == value(other)
}

/// Brings a cluster into the form in which it is stored: times on taints, zones as a list.
pub fn canonicalize(cluster: &mut Cluster, now: Timestamp) {
    for taint in &mut cluster.spec.taints {
        if taint.effect == EFFECT_NO_EXECUTE && taint.time_added.is_none() {
            taint.time_added = Some(Time(now));
        }
    }
    if !cluster.spec.zone.is_empty() && cluster.spec.zones.is_empty() {
        cluster.spec.zones.push(std::mem::take(&mut cluster.spec.zone));
    }
}

/// Sorts the classes by grade and opens them at both ends.
fn normalize_models(models: &mut [ResourceModel]) {
    models.sort_by_key(|model| model.grade);
    for range in models.first_mut().into_iter().flat_map(|model| &mut model.ranges) {
        range.min.0 = "0".to_owned();
    }
    for range in models.last_mut().into_iter().flat_map(|model| &mut model.ranges) {
        range.max.0 = MODEL_UNBOUNDED.to_owned();
    }
}

/// Returns what is wrong with a cluster.
pub fn check(cluster: &Cluster) -> Errors {
    let mut errors = Errors::new();
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    for fault in name_faults(name) {
        errors.push(Error::invalid(&Path::new("metadata").child("name"), name, fault));
    }
    errors.extend(check_spec(&cluster.spec, &Path::new("spec")));
    errors
}

/// Returns what is wrong with the name of a cluster: one thing at a time.
pub fn name_faults(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["must be not empty".to_owned()];
    }
    if name.len() > CLUSTER_NAME_MAX_LENGTH {
        return vec![format!("must be no more than {CLUSTER_NAME_MAX_LENGTH} characters")];
    }
    names::dns1123_label(name)
}

fn check_spec(spec: &ClusterSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mode = spec.sync_mode.as_str();
    if mode.is_empty() {
        errors.push(Error::required(&path.child("syncMode"), ""));
    }
    if !matches!(mode, "Pull" | "Push") {
        errors.push(Error::not_supported(&path.child("syncMode"), mode, &["Pull", "Push"]));
    }
    if !spec.api_endpoint.is_empty() {
        errors.extend(check_endpoint(&spec.api_endpoint, &path.child("apiEndpoint")));
    }
    errors.extend(check_secret(spec.secret_ref.as_ref(), &path.child("secretRef")));
    errors.extend(check_secret(spec.impersonator_secret_ref.as_ref(), &path.child("impersonatorSecretRef")));
    if !spec.proxy_url.is_empty() {
        errors.extend(check_proxy(&spec.proxy_url, &path.child("proxyURL")));
    }
    errors.extend(check_location(spec, path));
    errors.extend(check_taints(&spec.taints, &path.child("taints")));
    if let Some(fault) = models_fault(&spec.resource_models) {
        errors.push(invalid(&path.child("resourceModels"), &spec.resource_models, fault));
    }
    errors
}

fn check_secret(secret: Option<&LocalSecretReference>, path: &Path) -> Errors {
    let Some(secret) = secret else { return Errors::new() };
    [("namespace", &secret.namespace), ("name", &secret.name)]
        .into_iter()
        .filter(|(_, value)| value.is_empty())
        .map(|(field, _)| Error::required(&path.child(field), ""))
        .collect()
}

fn check_endpoint(endpoint: &str, path: &Path) -> Errors {
    const FORM: &str = "; desired format: hostname, hostname:port, IP or IP:port";
    let url = match Url::parse(endpoint) {
        Ok(url) => url,
        Err(fault) => {
            let text = format!("apiEndpoint must be a valid URL: {fault}{FORM}");
            return vec![Error::invalid(path, endpoint, text)];
        }
    };
    let mut errors = Errors::new();
    if url.host.is_empty() {
        errors.push(Error::invalid(path, "", format!("host must be provided{FORM}")));
    }
    if let Some(user) = url.user {
        errors.push(Error::invalid(path, user, "user information is not permitted in the URL"));
    }
    if !url.fragment.is_empty() {
        errors.push(Error::invalid(path, url.fragment, "fragments are not permitted in the URL"));
    }
    if !url.query.is_empty() {
        errors.push(Error::invalid(path, url.query, "query parameters are not permitted in the URL"));
    }
    errors
}

fn check_proxy(proxy: &str, path: &Path) -> Errors {
    match Url::parse(proxy) {
        Err(fault) => vec![Error::invalid(path, proxy, format!("apiEndpoint must be a valid URL: {fault}"))],
        Ok(url) if matches!(url.scheme.as_str(), "http" | "https" | "socks5") => Errors::new(),
        Ok(url) => vec![Error::invalid(
            path,
            proxy,
            format!("unsupported scheme {:?}, must be http, https, or socks5", url.scheme),
        )],
    }
}

fn check_location(spec: &ClusterSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut label = |field: &str, value: &str| {
        let faults = names::label_value(value);
        if !faults.is_empty() {
            errors.push(Error::invalid(&path.child(field), value, faults.join("; ")));
        }
    };
    label("provider", &spec.provider);
    label("region", &spec.region);
    if !spec.zone.is_empty() && !spec.zones.is_empty() {
        // The doubled path and the whole spec as the value are upstream's.
        let fault = "Zone and Zones cannot co-exist";
        errors.push(Error::type_invalid(&path.child("spec"), Value::Null, fault).showing(api::go_json(spec)));
        return errors;
    }
    if !spec.zone.is_empty() {
        label("Zone", &spec.zone);
        return errors;
    }
    for zone in &spec.zones {
        label("Zones", zone);
    }
    errors
}

fn check_taints(taints: &[Taint], path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for (index, taint) in taints.iter().enumerate() {
        let here = path.index(index);
        for fault in names::qualified_name(&taint.key) {
            errors.push(Error::invalid(&here.child("key"), taint.key.as_str(), fault));
        }
        let value = taint.value.as_deref().unwrap_or_default();
        let faults = names::label_value(value);
        if !faults.is_empty() {
            errors.push(Error::invalid(&here.child("value"), value, faults.join(";")));
        }
        match taint.effect.as_str() {
            "" => errors.push(Error::required(&here.child("effect"), "")),
            EFFECT_NO_SCHEDULE | EFFECT_NO_EXECUTE => {}
            other => {
                let known = [EFFECT_NO_SCHEDULE, EFFECT_NO_EXECUTE];
                errors.push(Error::not_supported(&here.child("effect"), other, &known));
            }
        }
        if !seen.insert((taint.key.as_str(), taint.effect.as_str())) {
            let mut error = Error::duplicate(&here, Value::Null).showing(api::go_json(taint));
            error.detail = "taints must be unique by key and effect pair".to_owned();
            errors.push(error);
        }
    }
    errors
}

/// Returns the first thing that is wrong with the classes of node sizes.
fn models_fault(models: &[ResourceModel]) -> Option<&'static str> {
    let amount = |text: &str| Quantity::parse(text).ok();
    for (i, model) in models.iter().enumerate() {
        let previous = i.checked_sub(1).and_then(|before| models.get(before));
        if previous.is_some_and(|previous| previous.grade == model.grade) {
            return Some("The grade of each models should not be the same");
        }
        if previous.is_some_and(|previous| previous.ranges.len() != model.ranges.len()) {
            return Some("The number of resource types should be the same");
        }
        for (j, range) in model.ranges.iter().enumerate() {
            // What is not a quantity was refused when the object was read; it cannot be larger than anything.
            let (min, max) = (amount(&range.min.0), amount(&range.max.0));
            if max.is_none() || min.is_none() || max <= min {
                return Some("The max value of each resource must be greater than the min value");
            }
            match previous.and_then(|previous| previous.ranges.get(j)) {
                None if min.is_some_and(|min| !min.is_zero()) => {
                    return Some("The min value of each resource in the first model should be 0");
                }
                None => {}
                Some(below) if below.name != range.name => {
                    return Some("The resource types of each models should be the same");
                }
                // The text counts, not the amount: upstream compares what was written.
                Some(below) if below.max != range.min => {
                    return Some("Model intervals for resources must be contiguous and non-overlapping");
                }
                Some(_) => {}
            }
            if i.saturating_add(1) == models.len() && max.is_some_and(|max| max.value() != i64::MAX) {
                return Some("The max value of each resource in the last model should be MaxInt64");
            }
        }
    }
    None
}

/// A URL cut into the parts that the rules look at, with the faults that Go's parser names.
pub(crate) struct Url<'a> {
    pub(crate) scheme: String,
    pub(crate) user: Option<&'a str>,
    pub(crate) host: &'a str,
    pub(crate) query: &'a str,
    pub(crate) fragment: &'a str,
}

impl<'a> Url<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        let fault = |what: &str| Err(format!("parse {text:?}: {what}"));
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return fault("net/url: invalid control character in URL");
        }
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let (scheme, rest) = match rest.split_once(':') {
            Some(("", _)) => return fault("missing protocol scheme"),
            Some((scheme, after)) if is_scheme(scheme) => (scheme.to_lowercase(), after),
            _ => (String::new(), rest),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let Some(rest) = rest.strip_prefix("//") else {
            let first = rest.split('/').next().unwrap_or_default();
            if scheme.is_empty() && first.contains(':') {
                return fault("first path segment in URL cannot contain colon");
            }
            return Ok(Self { scheme, user: None, host: "", query, fragment });
        };
        let authority = rest.split('/').next().unwrap_or_default();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let port = match host.rsplit_once(']') {
            Some((_, after)) => after,
            None => host.find(':').map_or("", |colon| &host[colon..]),
        };
        let digits = port.strip_prefix(':').unwrap_or(port);
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) || (port == digits && !port.is_empty()) {
            return fault(&format!("invalid port {port:?} after host"));
        }
        Ok(Self { scheme, user, host, query, fragment })
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cluster(spec: Value) -> Cluster {
        serde_json::from_value(json!({ "metadata": { "name": "member1", "generation": 4 }, "spec": spec }))
            .unwrap()
    }

    fn fields(spec: Value) -> Vec<String> {
        check(&cluster(spec)).into_iter().map(|error| error.field).collect()
    }

    fn range(min: &str, max: &str) -> Value {
        json!({ "name": "cpu", "min": min, "max": max })
    }

    #[test]
    fn a_new_cluster_gets_the_default_classes_and_they_pass() {
        let mut new = cluster(json!({ "syncMode": "Push" }));
        prepare_create(&mut new, &Features::default());
        assert_eq!(new.metadata.generation, Some(1));
        assert_eq!(new.spec.resource_models.len(), 9);
        assert_eq!(check(&new), []);
        let mut new = cluster(json!({ "syncMode": "Push" }));
        prepare_create(&mut new, &Features::default().with(CUSTOMIZED_CLUSTER_RESOURCE_MODELING, false));
        assert!(new.spec.resource_models.is_empty());
    }

    #[test]
    fn classes_are_sorted_and_opened_at_both_ends() {
        let mut new = cluster(json!({ "syncMode": "Push", "resourceModels": [
            { "grade": 1, "ranges": [range("2", "4")] }, { "grade": 0, "ranges": [range("1", "2")] },
        ] }));
        prepare_create(&mut new, &Features::default());
        let bounds: Vec<_> = new
            .spec
            .resource_models
            .iter()
            .map(|m| (m.ranges[0].min.0.as_str(), m.ranges[0].max.0.as_str()))
            .collect();
        assert_eq!(bounds, [("0", "2"), ("2", MODEL_UNBOUNDED)]);
        assert_eq!(check(&new), []);
    }

    #[test]
    fn neighbouring_classes_must_join_in_the_same_words() {
        let fault = |upper: &str| {
            let spec = cluster(json!({ "resourceModels": [
                { "grade": 0, "ranges": [range("0", "1")] },
                { "grade": 1, "ranges": [range(upper, MODEL_UNBOUNDED)] },
            ] }))
            .spec;
            models_fault(&spec.resource_models)
        };
        assert_eq!(fault("1"), None);
        let gap = Some("Model intervals for resources must be contiguous and non-overlapping");
        assert_eq!(fault("1000m"), gap);
        assert_eq!(fault("2"), gap);
    }

    #[test]
    fn the_generation_rises_only_with_the_spec() {
        let old = cluster(json!({ "syncMode": "Push" }));
        let mut same = old.clone();
        same.metadata.generation = Some(99);
        prepare_update(&mut same, &old, &Features::default());
        assert_eq!(same.metadata.generation, Some(4));
        let mut other = cluster(json!({ "syncMode": "Push", "region": "r" }));
        prepare_update(&mut other, &old, &Features::default());
        assert_eq!(other.metadata.generation, Some(5));
        assert!(other.spec.resource_models.is_empty(), "an empty list stays empty");
    }

    #[test]
    fn taints_get_their_time_and_the_zone_becomes_a_list() {
        let mut new = cluster(json!({
            "syncMode": "Push", "zone": "z1",
            "taints": [{ "key": "a", "effect": "NoExecute" }, { "key": "a", "effect": "NoSchedule" }],
        }));
        let now: Timestamp = "2024-01-02T03:04:05Z".parse().unwrap();
        canonicalize(&mut new, now);
        assert_eq!(new.spec.zones, ["z1"]);
        assert_eq!(new.spec.zone, "");
        assert_eq!(new.spec.taints[0].time_added, Some(Time(now)));
        assert_eq!(new.spec.taints[1].time_added, None);
    }

    #[test]
    fn a_taint_that_is_written_again_keeps_its_time() {
        let taint = |value: &str, effect: &str| json!({ "key": "a", "value": value, "effect": effect });
        let tainted = |taints: Value| cluster(json!({ "syncMode": "Push", "taints": taints }));
        let (first, later): (Timestamp, Timestamp) =
            ("2024-01-02T03:04:05Z".parse().unwrap(), "2024-01-02T04:00:00Z".parse().unwrap());
        let mut old = tainted(json!([taint("v", "NoExecute")]));
        canonicalize(&mut old, first);
        let written = |taints: Value| {
            let mut new = tainted(taints);
            prepare_update(&mut new, &old, &Features::default());
            canonicalize(&mut new, later);
            let times = new.spec.taints.iter().map(|taint| taint.time_added.as_ref().map(|time| time.0));
            (new.metadata.generation, times.collect::<Vec<_>>())
        };
        assert_eq!(written(json!([taint("v", "NoExecute")])), (Some(4), vec![Some(first)]));
        assert_eq!(written(json!([taint("other", "NoExecute")])), (Some(5), vec![Some(later)]));
        let both = json!([taint("v", "NoSchedule"), taint("v", "NoExecute")]);
        assert_eq!(written(both), (Some(5), vec![None, Some(first)]));
    }

    #[test]
    fn every_field_is_checked_at_its_path() {
        assert_eq!(fields(json!({})), ["spec.syncMode", "spec.syncMode"]);
        assert_eq!(
            fields(json!({
                "syncMode": "Push",
                "secretRef": {}, "impersonatorSecretRef": { "namespace": "n" },
                "proxyURL": "ftp://x", "provider": "not valid", "zone": "a", "zones": ["b"],
                "taints": [{ "key": "", "effect": "PreferNoSchedule" }, { "key": "a" }],
            })),
            [
                "spec.secretRef.namespace",
                "spec.secretRef.name",
                "spec.impersonatorSecretRef.name",
                "spec.proxyURL",
                "spec.provider",
                "spec.spec",
                "spec.taints[0].key",
                "spec.taints[0].key",
                "spec.taints[0].effect",
                "spec.taints[1].effect",
            ]
        );
    }

    #[test]
    fn an_endpoint_needs_a_scheme_and_a_host_and_nothing_secret() {
        let faults = |endpoint: &str| -> Vec<String> {
            check_endpoint(endpoint, &Path::new("e")).into_iter().map(|error| error.detail).collect()
        };
        for fine in ["https://10.0.0.1:6443", "https://[::1]:6443/prefix", "http://host", "https://10.0.0.1:"]
        {
            assert!(faults(fine).is_empty(), "{fine}: {:?}", faults(fine));
        }
        assert!(faults("10.0.0.1:6443")[0].contains("first path segment in URL cannot contain colon"));
        assert!(faults("host.example:6443")[0].starts_with("host must be provided"));
        assert!(faults("https://user:pw@host")[0].starts_with("user information"));
        assert_eq!(faults("https://host?a=b#c").len(), 2);
        assert!(faults("https://host:http")[0].contains("invalid port \":http\" after host"));
    }

    #[test]
    fn names_leave_room_for_the_execution_namespace() {
        assert_eq!(name_faults(""), ["must be not empty"]);
        assert_eq!(name_faults(&"a".repeat(49)), ["must be no more than 48 characters"]);
        assert!(name_faults(&"a".repeat(48)).is_empty());
        assert_eq!(name_faults("Upper").len(), 1);
    }
}
