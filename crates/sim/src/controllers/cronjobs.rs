//! CronJobs: a Job at every moment of a schedule.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use workloads::cron::Schedule;

use crate::kinds::Kind;
use crate::objects::{Object, after, controlled_by, flag, is_true, list, map_at, number, stamp, text, time};
use crate::plan::{Step, Tell};
use crate::view::View;

/// How far back missed runs are searched, in seconds.
const LONGEST_WALK: i64 = 10 * 24 * 3600;

const SOURCE: &str = "cronjob-controller";

pub(crate) fn decide(view: &View<'_>, cron: &Value) -> Vec<Step> {
    if cron.is_deleting() {
        return Vec::new();
    }
    let mut jobs = view.objects.owned(Kind::Job, cron.namespace(), cron.uid());
    jobs.sort_by_key(|job| (text(job, "/status/startTime").to_owned(), job.name().to_owned()));
    let mut steps = Vec::new();
    let mut status = if cron["status"].is_object() { cron["status"].clone() } else { json!({}) };
    let over = |job: &Value| is_true(job, "Complete") || is_true(job, "Failed");
    for reference in list(&status, "/active").to_vec() {
        let job = jobs.iter().find(|job| job.uid() == text(&reference, "/uid"));
        if let Some(job) = job.filter(|job| over(job)) {
            let how = if is_true(job, "Complete") { "Complete" } else { "Failed" };
            let message = format!("Saw completed job: {}, condition: {how}", job.name());
            steps.push(Step::event(cron, SOURCE, "SawCompletedJob", message));
        }
    }
    let active: Vec<&Value> = jobs.iter().filter(|job| !over(job) && !job.is_deleting()).collect();
    let last_success = jobs
        .iter()
        .filter(|job| is_true(job, "Complete"))
        .map(|job| text(job, "/status/completionTime"))
        .max();
    if let Some(moment) = last_success.filter(|moment| *moment > text(&status, "/lastSuccessfulTime")) {
        status["lastSuccessfulTime"] = json!(moment);
    }
    let mut references: Vec<Value> = active.iter().map(|job| reference(job)).collect();
    let due = schedule(view, cron, &mut steps);
    if let Some(due) = due {
        let policy = text(cron, "/spec/concurrencyPolicy");
        if policy == "Forbid" && !active.is_empty() {
            let message =
                "Not starting job because prior execution is running and concurrency policy is Forbid";
            steps.push(Step::event(cron, SOURCE, "JobAlreadyActive", message.to_owned()));
        } else {
            if policy == "Replace" {
                steps.extend(active.iter().map(|job| Step::delete(Kind::Job, job)));
                references.clear();
            }
            let job = job_for(cron, due);
            if view.get(Kind::Job, cron.namespace(), job.name()).is_none() {
                let tell = Tell::new(cron, SOURCE, "Created job {}");
                steps.push(Step::Create { kind: Kind::Job, object: job, tell: Some(tell) });
            }
            status["lastScheduleTime"] = json!(stamp(due));
        }
    }
    let fields = status.as_object_mut().expect("just made an object");
    if references.is_empty() {
        fields.remove("active");
    } else {
        fields.insert("active".to_owned(), references.into());
    }
    if status != cron["status"] && !(cron["status"].is_null() && status == json!({})) {
        steps.push(Step::status(Kind::CronJob, cron, status));
    }
    for (kind, field, default) in
        [("Complete", "successfulJobsHistoryLimit", 3), ("Failed", "failedJobsHistoryLimit", 1)]
    {
        let limit = number(cron, &format!("/spec/{field}")).unwrap_or(default).max(0) as usize;
        let finished: Vec<&Value> =
            jobs.iter().filter(|job| is_true(job, kind) && !job.is_deleting()).collect();
        let surplus = finished.len().saturating_sub(limit);
        for job in &finished[..surplus] {
            steps.push(Step::delete(Kind::Job, job));
            steps.push(Step::event(cron, SOURCE, "SuccessfulDelete", format!("Deleted job {}", job.name())));
        }
    }
    steps
}

/// Returns the time for which a Job is due, if one is; sets the timer for the next.
fn schedule(view: &View<'_>, cron: &Value, steps: &mut Vec<Step>) -> Option<Timestamp> {
    if flag(cron, "/spec/suspend") {
        return None;
    }
    let schedule = Schedule::parse(text(cron, "/spec/schedule")).ok()?;
    let zone = match text(cron, "/spec/timeZone") {
        "" => TimeZone::UTC,
        zone => TimeZone::get(zone).ok()?,
    };
    let now = view.now;
    let mut from = time(cron, "/status/lastScheduleTime")
        .or_else(|| time(cron, "/metadata/creationTimestamp"))
        .unwrap_or(now);
    // Of the missed runs, only the last counts: there is no need to walk through years, whatever the deadline is.
    let deadline =
        number(cron, "/spec/startingDeadlineSeconds").unwrap_or(LONGEST_WALK).clamp(0, LONGEST_WALK);
    from = from.max(after(now, -deadline));
    let mut due = None;
    let mut next = schedule.next(from, &zone);
    while let Some(moment) = next.filter(|moment| *moment <= now) {
        due = Some(moment);
        next = schedule.next(moment, &zone);
    }
    steps.extend(next.map(|next| Step::again_at(next, now)));
    due
}

fn job_for(cron: &Value, due: Timestamp) -> Value {
    let template = &cron["spec"]["jobTemplate"];
    let mut job = json!({
        "metadata": {
            "name": format!("{}-{}", cron.name(), due.as_second() / 60),
            "namespace": cron.namespace(),
            "labels": template.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({})),
            "annotations": template.pointer("/metadata/annotations").cloned().unwrap_or_else(|| json!({})),
            "ownerReferences": [controlled_by(cron)],
        },
        "spec": template["spec"],
    });
    map_at(&mut job["metadata"], "annotations")
        .insert("batch.kubernetes.io/cronjob-scheduled-timestamp".to_owned(), json!(stamp(due)));
    job
}

fn reference(job: &Value) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "name": job.name(), "namespace": job.namespace(), "uid": job.uid(),
        "resourceVersion": text(job, "/metadata/resourceVersion")})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    fn cron(policy: &str, last: &str) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c", "namespace": "d", "uid": "cron",
            "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"schedule": "*/5 * * * *", "concurrencyPolicy": policy, "jobTemplate": {"spec": {}}},
            "status": {"lastScheduleTime": last}})
    }

    fn made(steps: &[Step]) -> Vec<&str> {
        steps
            .iter()
            .filter_map(|step| match step {
                Step::Create { object, .. } => Some(object.name()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_job_is_made_when_it_is_due_and_only_once() {
        // It is 00:10.
        let steps = with_view(vec![], |view| decide(view, &cron("Allow", "2026-01-01T00:05:00Z")));
        assert_eq!(made(&steps), ["c-29453770"]);
        let steps = with_view(vec![], |view| decide(view, &cron("Allow", "2026-01-01T00:10:00Z")));
        assert_eq!(made(&steps), Vec::<&str>::new());
        assert!(steps.iter().any(|step| matches!(step, Step::Again(_))));
    }

    #[test]
    fn a_running_job_can_forbid_the_next() {
        let running = json!({"kind": "Job", "metadata": {"name": "r", "namespace": "d", "uid": "r",
            "ownerReferences": [{"uid": "cron"}]}});
        let forbid = cron("Forbid", "2026-01-01T00:05:00Z");
        assert_eq!(made(&with_view(vec![running], |view| decide(view, &forbid))), Vec::<&str>::new());
    }
}
