//! Jobs and CronJobs.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use apimachinery::selector::label::Selector;
use serde_json::{Value, json};

use super::check;
use super::node::{Node, same};
use super::{cron, pod};

const MAX_INDEXED_PARALLELISM: i64 = 100_000;

pub(super) fn job(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    generated_selector(errors, root);
    job_spec(errors, spec, &path);
    selector(errors, spec, &path);
    let name = root.dig(&["metadata", "name"]).text();
    let completions = spec.at("completions").int();
    if spec.at("completionMode").text() == "Indexed" && completions > 0 {
        let last = format!("{name}-{}", completions.saturating_sub(1));
        if !names::dns1123_label(&last).is_empty() {
            let text = format!("will not able to create pod with invalid DNS label: {last}");
            errors.push(Error::invalid(&Path::new("metadata").child("name"), name, text));
        }
    }
}

/// Unless the user manages it, the selector must be the one that finds this Job's pods and no others.
fn generated_selector(errors: &mut Errors, root: Node<'_>) {
    let spec = root.at("spec");
    if spec.at("manualSelector").flag() || !spec.at("selector").exists() {
        return;
    }
    let (uid, name) = (root.dig(&["metadata", "uid"]).text(), root.dig(&["metadata", "name"]).text());
    let labels = spec.dig(&["template", "metadata", "labels"]);
    let path = Path::new("spec").child("template").child("metadata").child("labels");
    let expected = [
        ("controller-uid", uid),
        ("job-name", name),
        ("batch.kubernetes.io/controller-uid", uid),
        ("batch.kubernetes.io/job-name", name),
    ];
    for (key, wanted) in expected {
        match labels.at(key).opt_text() {
            None => errors.push(Error::required(&path.key(key), format!("must be '{wanted}'"))),
            Some(value) if value != wanted => {
                errors.push(Error::invalid(&path.key(key), labels.value(), format!("must be '{wanted}'")));
            }
            Some(_) => {}
        }
    }
    let own: Value = expected.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    if Selector::from_object(spec.at("selector").0).is_ok_and(|selector| !selector.matches(&own)) {
        let at = Path::new("spec").child("selector");
        errors.push(Error::invalid(&at, spec.at("selector").value(), "`selector` not auto-generated"));
    }
}

fn selector(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    let node = spec.at("selector");
    if node.exists() {
        check::selector(errors, &path.child("selector"), node);
    } else {
        errors.push(Error::required(&path.child("selector"), ""));
    }
    let labels = spec.dig(&["template", "metadata", "labels"]);
    let empty = json!({});
    if Selector::from_object(node.0).is_ok_and(|selector| !selector.matches(labels.0.unwrap_or(&empty))) {
        let at = path.child("template").child("metadata").child("labels");
        errors.push(Error::invalid(&at, labels.value(), "`selector` does not match template `labels`"));
    }
}

/// The spec of a Job, also inside a CronJob.
fn job_spec(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    check::none_negative(
        errors,
        path,
        spec,
        &[
            "parallelism",
            "completions",
            "activeDeadlineSeconds",
            "backoffLimit",
            "ttlSecondsAfterFinished",
            "backoffLimitPerIndex",
            "maxFailedIndexes",
        ],
    );
    if spec.at("maxFailedIndexes").exists() && !spec.at("backoffLimitPerIndex").exists() {
        errors
            .push(Error::required(&path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"));
    }
    completion_mode(errors, spec, path);
    if spec.at("podFailurePolicy").exists() {
        failure_policy(errors, spec, &path.child("podFailurePolicy"));
    }
    if spec.at("successPolicy").exists() && spec.at("completionMode").text() != "Indexed" {
        let at = path.child("successPolicy");
        errors.push(Error::invalid(
            &at,
            spec.at("successPolicy").value(),
            "requires indexed completion mode",
        ));
    }
    replacement_policy(errors, spec, &path.child("podReplacementPolicy"));
    pod::template(errors, spec.at("template"), &path.child("template"));

    let at = path.child("template").child("spec").child("restartPolicy");
    match spec.dig(&["template", "spec", "restartPolicy"]).text() {
        "" | "Always" => errors.push(Error::required(&at, "valid values: \"OnFailure\", \"Never\"")),
        "Never" => {}
        "OnFailure" if spec.at("podFailurePolicy").exists() => {
            let text = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.push(Error::invalid(&at, "OnFailure", text));
        }
        "OnFailure" => {}
        policy => errors.push(Error::not_supported(&at, policy, &["OnFailure", "Never"])),
    }
}

fn completion_mode(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    let mode = spec.at("completionMode");
    check::optional_enum(errors, &path.child("completionMode"), mode, &["NonIndexed", "Indexed"]);
    if mode.text() == "Indexed" {
        if !spec.at("completions").exists() {
            errors.push(Error::required(&path.child("completions"), "when completion mode is Indexed"));
        }
        let parallelism = spec.at("parallelism").int();
        if parallelism > MAX_INDEXED_PARALLELISM {
            let text = format!(
                "must be less than or equal to {MAX_INDEXED_PARALLELISM} when completion mode is Indexed"
            );
            errors.push(Error::invalid(&path.child("parallelism"), parallelism, text));
        }
        if let (Some(failed), Some(completions)) =
            (spec.at("maxFailedIndexes").opt_int(), spec.at("completions").opt_int())
            && failed > completions
        {
            let at = path.child("maxFailedIndexes");
            errors.push(Error::invalid(&at, failed, "must be less than or equal to completions"));
        }
    } else if matches!(mode.text(), "" | "NonIndexed") {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(number) = spec.at(field).opt_int() {
                errors.push(Error::invalid(&path.child(field), number, "requires indexed completion mode"));
            }
        }
    }
}

const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];

fn failure_policy(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    let rules = spec.dig(&["podFailurePolicy", "rules"]);
    if rules.len() > 20 {
        errors.push(Error::too_many(&path.child("rules"), rules.len(), 20));
    }
    for (index, rule) in rules.items().enumerate() {
        let path = path.child("rules").index(index);
        let at = path.child("action");
        match rule.at("action").text() {
            "" => {
                let text = "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]";
                errors.push(Error::required(&at, text));
            }
            "FailIndex" if !spec.at("backoffLimitPerIndex").exists() => {
                let text = "requires the backoffLimitPerIndex to be set";
                errors.push(Error::invalid(&at, "FailIndex", text));
            }
            action if !ACTIONS.contains(&action) => errors.push(Error::not_supported(&at, action, &ACTIONS)),
            _ => {}
        }
        let codes = rule.at("onExitCodes");
        if codes.exists() {
            let at = path.child("onExitCodes");
            check::required_enum(errors, &at.child("operator"), codes.at("operator"), &["In", "NotIn"]);
            if codes.at("values").is_empty() {
                errors.push(Error::invalid(
                    &at.child("values"),
                    codes.at("values").value(),
                    "at least one value is required",
                ));
            }
        }
    }
}

fn replacement_policy(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    let policy = spec.at("podReplacementPolicy");
    if spec.at("podFailurePolicy").exists() {
        check::optional_enum(errors, path, policy, &["Failed"]);
    } else {
        check::optional_enum(errors, path, policy, &["Failed", "TerminatingOrFailed"]);
    }
}

pub(super) fn job_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    let path = Path::new("spec");
    let old_root = old;
    let (new, old) = (new.at("spec"), old.at("spec"));
    job_spec(errors, new, &path);
    selector(errors, new, &path);
    let at = path.child("completions");
    if new.at("completionMode").text() != "Indexed" {
        check::immutable(errors, &at, new.at("completions"), old.at("completions"));
    } else if !same(new.at("completions"), old.at("completions"))
        && new.at("completions").exists()
        && new.at("completions").int() != new.at("parallelism").int()
    {
        let text = "can only be modified in tandem with spec.parallelism";
        errors.push(Error::invalid(&at, new.at("completions").int(), text));
    }
    check::immutable(errors, &path.child("selector"), new.at("selector"), old.at("selector"));
    template_update(errors, new, old_root, &path.child("template"));
    for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        check::immutable(errors, &path.child(field), new.at(field), old.at(field));
    }
}

/// Queueing controllers decide where and how big the pods of a suspended Job are, until it first starts.
fn template_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>, path: &Path) {
    let waiting = old.dig(&["spec", "suspend"]).flag() && !old.dig(&["status", "startTime"]).exists();
    let stored = old.dig(&["spec", "template"]);
    let mut allowed = stored.value();
    if waiting {
        let given = new.at("template");
        for (owner, fields) in [
            ("metadata", ["labels", "annotations", "", ""]),
            ("spec", ["nodeSelector", "tolerations", "schedulingGates", "affinity"]),
        ] {
            for field in fields.into_iter().filter(|field| !field.is_empty()) {
                let Some(target) = allowed.get_mut(owner).and_then(Value::as_object_mut) else { continue };
                match given.at(owner).at(field).0 {
                    Some(value) => target.insert(field.to_owned(), value.clone()),
                    None => target.remove(field),
                };
            }
        }
        for list in ["containers", "initContainers"] {
            let resources: Vec<Value> = given
                .at("spec")
                .at(list)
                .items()
                .map(|container| container.at("resources").value())
                .collect();
            let containers = allowed.get_mut("spec").and_then(|spec| spec.get_mut(list)?.as_array_mut());
            for (container, resources) in containers.into_iter().flatten().zip(resources) {
                container["resources"] = resources;
            }
        }
    }
    if !same(new.at("template"), Node::from(&allowed)) {
        errors.push(Error::invalid(path, new.at("template").value(), check::IMMUTABLE));
    }
}

pub(super) fn cron_job(errors: &mut Errors, root: Node<'_>, old: Option<Node<'_>>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    let schedule = spec.at("schedule").text();
    let at = path.child("schedule");
    if schedule.is_empty() {
        errors.push(Error::required(&at, ""));
    } else {
        if let Err(text) = cron::check(schedule) {
            errors.push(Error::invalid(&at, schedule, text));
        }
        let tolerated = old.is_some_and(|old| old.dig(&["spec", "schedule"]).text().contains("TZ"));
        if schedule.contains("TZ") {
            if !tolerated {
                let text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
                errors.push(Error::invalid(&at, schedule, text));
            } else if spec.at("timeZone").exists() {
                let text = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
                errors.push(Error::invalid(&at, schedule, text));
            }
        }
    }
    check::not_negative(errors, &path.child("startingDeadlineSeconds"), spec.at("startingDeadlineSeconds"));
    if old.is_none_or(|old| !same(old.dig(&["spec", "timeZone"]), spec.at("timeZone")))
        && let Some(zone) = spec.at("timeZone").opt_text()
    {
        time_zone(errors, zone, &path.child("timeZone"));
    }
    check::required_enum(
        errors,
        &path.child("concurrencyPolicy"),
        spec.at("concurrencyPolicy"),
        &["Allow", "Forbid", "Replace"],
    );
    let (job, job_path) = (spec.dig(&["jobTemplate", "spec"]), path.child("jobTemplate").child("spec"));
    job_spec(errors, job, &job_path);
    if job.at("selector").exists() {
        let at = job_path.child("selector");
        errors.push(Error::invalid(&at, job.at("selector").value(), "`selector` will be auto-generated"));
    }
    if job.at("manualSelector").flag() {
        errors.push(Error::not_supported(&job_path.child("manualSelector"), true, &["nil", "false"]));
    }
    check::none_negative(errors, &path, spec, &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"]);
    let name = root.dig(&["metadata", "name"]).text();
    if old.is_none() && name.len() > 52 {
        let at = Path::new("metadata").child("name");
        errors.push(Error::invalid(&at, name, "must be no more than 52 characters"));
    }
}

fn time_zone(errors: &mut Errors, zone: &str, path: &Path) {
    if zone.is_empty() {
        errors.push(Error::invalid(path, zone, "timeZone must be nil or non-empty string"));
        return;
    }
    let odd = |part: &str| {
        part == "."
            || part == ".."
            || part.starts_with('-')
            || part.is_empty()
            || !part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'+'))
    };
    if zone.split('/').any(odd) {
        errors.push(Error::invalid(path, zone, format!("unknown time zone {zone}")));
        return;
    }
    if zone.eq_ignore_ascii_case("Local") {
        let text = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.push(Error::invalid(path, zone, text));
    }
    // A machine without a time zone database cannot judge; the member cluster will.
    let zones = jiff::tz::db();
    if !zones.is_definitively_empty() && zones.get(zone).is_err() {
        errors.push(Error::invalid(path, zone, format!("unknown time zone {zone}")));
    }
}
