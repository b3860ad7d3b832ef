//! Scales workloads, and moves the limits of FederatedHPAs, at given times.
//!
//! Watches: CronFederatedHPAs.
//! Writes:  `spec.replicas` of workloads through their scale, `spec.minReplicas` and `spec.maxReplicas` of FederatedHPAs, the status of
//! CronFederatedHPAs.
//!
//! As upstream, what was missed while nobody looked is not made up for: the next moment counts from the start. The clock on the wall is
//! looked at every half a minute. If it jumps ahead over several moments, the rule acts once, and several rules act in the order of
//! their last moments; if it is set back, the rule waits for its next moment on the new clock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::autoscaling::{
    CronFederatedHPA, CronFederatedHPARule, CronFederatedHPAStatus, CrossVersionObjectReference,
    ExecutionHistory, FailedExecution, FederatedHPA, SuccessfulExecution,
};
use api::events::{SCALE_FAILED, START_RULE_FAILED, UPDATE_STATUS_FAILED};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use propagation::status::whole_seconds;
use runtime::{Change, Error, Guard, Key, Outcome, Queue, Reconcile, controller};
use workloads::cron::{Schedule, zone};

use super::scale::{self, Scale, Scales};
use super::telemetry::METRICS;
use crate::plane::Plane;
use crate::table::Start;

const COMPONENT: &str = "cronfederatedhpa-controller";
const WORKERS: usize = 5;
/// How often the clock is checked, since it may be set at any time.
const GLANCE: Duration = Duration::from_secs(30);
/// A smaller step back is a normal correction of the clock.
const CORRECTION: SignedDuration = SignedDuration::from_secs(60);
/// How often a rule that cannot run is looked at again, since time zones can be installed. To learn that a schedule never comes takes
/// a search through years.
const SECOND_LOOK: SignedDuration = SignedDuration::from_mins(10);
/// How often a write is tried while others write the same object.
const ATTEMPTS: usize = 5;
/// How many executions are remembered if the rule does not say.
const HISTORY: i32 = 3;

/// When each rule of an object acts next.
pub(super) type Jobs = BTreeMap<String, Job>;

/// When a rule acts next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    rule: CronFederatedHPARule,
    target: CrossVersionObjectReference,
    next: Timestamp,
    /// When that was last checked.
    seen: Timestamp,
}

struct Controller {
    plane: Arc<Plane>,
    scales: Scales,
    known: Mutex<HashMap<Key, Known>>,
}

/// What is known of the rules of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Known {
    /// When the rules act from now on; rules that are not in here are inactive.
    pub(super) jobs: Jobs,
    /// Rules that cannot run and that have an event about it, by name.
    idle: BTreeMap<String, Idle>,
}

/// A rule that cannot run.
#[derive(Debug, Clone, PartialEq)]
struct Idle {
    rule: CronFederatedHPARule,
    /// When it was last tried.
    tried: Timestamp,
}

/// Says whether the clock was not set back since this time. What was found before that tells nothing on the new clock.
fn goes_on(since: Timestamp, now: Timestamp) -> bool {
    now >= since.saturating_sub(CORRECTION).unwrap_or(now)
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new(COMPONENT);
    let mirror = &plane.mirrors.cron_federated_hpas;
    plane.tell_panics(&queue, COMPONENT, mirror);
    let pushed = queue.clone();
    mirror.subscribe(move |change| {
        if is_news(change) {
            pushed.push(change.key.clone());
        }
    });
    let controller = Controller { plane: plane.clone(), scales: Scales::default(), known: Mutex::default() };
    (Arc::new(controller), queue)
}

fn is_news(change: &Change<'_, CronFederatedHPA>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            old.spec != new.spec || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        }
        _ => true,
    }
}

/// An object, and what is known of its rules.
pub(crate) struct View {
    scaler: Arc<CronFederatedHPA>,
    known: Known,
    /// When each rule acts, in the order of the rules; why it cannot, if it cannot.
    timetables: Vec<Result<Timetable, String>>,
}

impl View {
    /// Reads the time zones of the rules, which the machine has.
    pub(super) fn new(scaler: Arc<CronFederatedHPA>, known: Known) -> Self {
        let timetables = scaler.spec.rules.iter().map(Timetable::read).collect();
        Self { scaler, known, timetables }
    }
}

/// When a rule acts.
struct Timetable {
    schedule: Schedule,
    zone: TimeZone,
    /// The text of the schedule, for messages.
    text: String,
}

impl Timetable {
    fn read(rule: &CronFederatedHPARule) -> Result<Self, String> {
        let zone = zone(rule.time_zone.as_deref().unwrap_or("Local"))?;
        Ok(Self { schedule: Schedule::parse(&rule.schedule)?, zone, text: rule.schedule.clone() })
    }

    /// Returns when the rule acts next.
    fn next(&self, now: Timestamp) -> Result<Timestamp, String> {
        #[cfg(test)]
        tests::SEARCHES.set(tests::SEARCHES.get() + 1);
        let next = self.schedule.next(now, &self.zone);
        next.ok_or_else(|| format!("the schedule {:?} never comes", self.text))
    }

    /// Returns the last moment of the rule up to now; `first` is one of them. It is looked for further and further back: of a clock that
    /// jumps ahead by years, not every minute is gone through.
    fn last(&self, first: Timestamp, now: Timestamp) -> Timestamp {
        let missed = |after: Timestamp| self.next(after).ok().filter(|moment| *moment <= now);
        let mut back = SignedDuration::from_mins(1);
        let mut last = loop {
            let from = now.saturating_sub(back).unwrap_or(first);
            if from <= first {
                break first;
            }
            if let Some(moment) = missed(from) {
                break moment;
            }
            back = back.saturating_mul(2);
        };
        while let Some(moment) = missed(last) {
            last = moment;
        }
        last
    }
}

/// What is to be done.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(super) known: Known,
    /// The rules that act now.
    pub(super) due: Vec<Due>,
    /// Why rules that are new or have changed cannot run.
    faults: Vec<String>,
    /// When to reconcile again; never, if all rules are inactive.
    again: Option<Duration>,
}

/// A rule that acts now.
#[derive(Debug, PartialEq)]
pub(crate) struct Due {
    pub(super) rule: CronFederatedHPARule,
    /// When it was due.
    planned: Timestamp,
    act: Act,
}

/// What a rule does.
#[derive(Debug, PartialEq)]
enum Act {
    /// It moves the limits of a FederatedHPA.
    Limits,
    /// It scales a workload to so many replicas.
    Scale(i32),
    /// It cannot act, for this reason.
    Refuse(String),
}

pub(super) fn decide(view: &View, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let target = &view.scaler.spec.scale_target_ref;
    let mut due = Vec::new();
    let rules = view.scaler.spec.rules.iter().zip(&view.timetables);
    for (rule, timetable) in rules.filter(|(rule, _)| rule.suspend != Some(true)) {
        let known = view.known.jobs.get(&rule.name);
        let known = known.filter(|job| job.rule == *rule && job.target == *target && goes_on(job.seen, now));
        // A moment that is known and has not come need not be looked for again.
        let planned = match known.filter(|job| job.next > now) {
            Some(job) => job.next,
            None => {
                let idle = view.known.idle.get(&rule.name).filter(|idle| idle.rule == *rule);
                let rests =
                    |idle: &&Idle| goes_on(idle.tried, now) && now.duration_since(idle.tried) < SECOND_LOOK;
                if let Some(idle) = idle.filter(rests) {
                    plan.known.idle.insert(rule.name.clone(), idle.clone());
                    continue;
                }
                let found = timetable.as_ref().map_err(Clone::clone);
                match found.and_then(|timetable| Ok((timetable, timetable.next(now)?))) {
                    Ok((timetable, next)) => {
                        due.extend(known.map(|job| (rule, job.next, timetable)));
                        next
                    }
                    Err(fault) => {
                        if idle.is_none() {
                            plan.faults.push(format!("rule {}: {fault}", rule.name));
                        }
                        plan.known.idle.insert(rule.name.clone(), Idle { rule: rule.clone(), tried: now });
                        continue;
                    }
                }
            }
        };
        let job = Job { rule: rule.clone(), target: target.clone(), next: planned, seen: now };
        plan.known.jobs.insert(rule.name.clone(), job);
    }
    // What several rules missed is done in its order, so that the one that counts now has the last word.
    due.sort_by_cached_key(|(_, planned, timetable)| timetable.last(*planned, now));
    let due = due.into_iter().map(|(rule, planned, _)| {
        let (rule, act) = (rule.clone(), act_of(&view.scaler, rule));
        Due { rule, planned, act }
    });
    plan.due = due.collect();
    let Known { jobs, idle } = &plan.known;
    let first = jobs.values().map(|job| job.next.duration_since(now).max(SignedDuration::ZERO)).min();
    // A rule that cannot run now may run later: time zones can be installed.
    let fallback = (!idle.is_empty()).then_some(GLANCE);
    plan.again = first.map(|wait| wait.unsigned_abs().min(GLANCE)).or(fallback);
    plan
}

/// What became of an execution.
#[derive(Debug, Clone)]
struct Done {
    rule: CronFederatedHPARule,
    planned: Timestamp,
    at: Timestamp,
    /// What went wrong.
    error: Option<String>,
}

/// Returns the status after these executions.
fn status(
    old: &CronFederatedHPAStatus,
    rules: &[CronFederatedHPARule],
    jobs: &Jobs,
    done: &[Done],
) -> CronFederatedHPAStatus {
    let mut histories: Vec<ExecutionHistory> = old.execution_histories.clone();
    let names: HashSet<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    histories.retain(|history| names.contains(history.rule_name.as_str()));
    // Where the history of each rule is; the first one, if there are two.
    let mut places: HashMap<String, usize> = HashMap::new();
    for (place, history) in histories.iter().enumerate() {
        places.entry(history.rule_name.clone()).or_insert(place);
    }
    let mut executions: HashMap<&str, Vec<&Done>> = HashMap::new();
    for done in done {
        executions.entry(&done.rule.name).or_default().push(done);
    }
    for rule in rules {
        let next = jobs.get(&rule.name).map(|job| Time(job.next));
        let suspended = rule.suspend == Some(true);
        let place = match places.get(&rule.name) {
            Some(place) => *place,
            // A rule that cannot run has no history.
            None if next.is_none() && !suspended => continue,
            None => {
                histories
                    .push(ExecutionHistory { rule_name: rule.name.clone(), ..ExecutionHistory::default() });
                places.insert(rule.name.clone(), histories.len() - 1);
                histories.len() - 1
            }
        };
        let Some(history) = histories.get_mut(place) else { continue };
        // A rule that ran once and cannot run any more has none either: the time that it had would be a promise.
        history.next_execution_time = next;
        for done in executions.get(rule.name.as_str()).into_iter().flatten() {
            note(history, done);
        }
    }
    CronFederatedHPAStatus { execution_histories: histories }
}

/// Inserts an execution before the earlier ones.
fn note(history: &mut ExecutionHistory, done: &Done) {
    let time = |time: Timestamp| Some(Time(whole_seconds(time)));
    let limit = |limit: Option<i32>| usize::try_from(limit.unwrap_or(HISTORY)).unwrap_or(0);
    let (schedule_time, execution_time) = (time(done.planned), time(done.at));
    match &done.error {
        Some(message) => {
            let message = message.clone();
            history.failed_executions.insert(0, FailedExecution { schedule_time, execution_time, message });
            history.failed_executions.truncate(limit(done.rule.failed_history_limit));
        }
        None => {
            let execution = SuccessfulExecution {
                schedule_time,
                execution_time,
                applied_replicas: done.rule.target_replicas,
                applied_max_replicas: done.rule.target_max_replicas,
                applied_min_replicas: done.rule.target_min_replicas,
            };
            history.successful_executions.insert(0, execution);
            history.successful_executions.truncate(limit(done.rule.successful_history_limit));
        }
    }
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let found = self.plane.mirrors.cron_federated_hpas.find(key);
        let Some(scaler) = found.filter(|scaler| scaler.metadata.deletion_timestamp.is_none()) else {
            self.known.lock().remove(key);
            return Ok(None);
        };
        let known = self.known.lock().get(key).cloned().unwrap_or_default();
        Ok(Some(View::new(scaler, known)))
    }

    fn decide(view: &View, now: Timestamp) -> Plan {
        decide(view, now)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let (begun, runs) = (Instant::now(), plan.known.idle.is_empty());
        let outcome = self.carry_out(key, &view.scaler, plan).await;
        METRICS.scheduled(begun, runs && outcome.is_ok());
        outcome
    }
}

impl Controller {
    async fn carry_out(&self, key: &Key, scaler: &CronFederatedHPA, plan: Plan) -> Result<Outcome, Error> {
        let plane = &self.plane;
        // This comes first, so that nothing acts twice, even if the rest fails.
        self.known.lock().insert(key.clone(), plan.known.clone());
        for fault in &plan.faults {
            plane.events.say(COMPONENT, scaler, START_RULE_FAILED, fault.clone());
        }
        let mut done = Vec::new();
        for Due { rule, planned, act } in plan.due {
            let begun = Instant::now();
            let error = self.act(scaler, &rule, &act).await.err().map(|error| error.to_string());
            METRICS.acted(begun, error.is_none());
            if let Some(error) = &error {
                plane.events.say(COMPONENT, scaler, SCALE_FAILED, error.clone());
            }
            done.push(Done { rule, planned, at: Timestamp::now(), error });
        }
        let rules = &scaler.spec.rules;
        let noted = plane.writer.change_status(scaler, |scaler| {
            scaler.status = status(&scaler.status, rules, &plan.known.jobs, &done);
            Ok(())
        });
        match noted.await {
            Ok(written) => written.into_iter().for_each(|it| plane.mirrors.cron_federated_hpas.note(it)),
            Err(error) if error.is_not_found() => return Ok(Outcome::Done),
            Err(error) => {
                plane.events.say(COMPONENT, scaler, UPDATE_STATUS_FAILED, error.to_string());
                return Err(error);
            }
        }
        Ok(plan.again.map_or(Outcome::Done, Outcome::After))
    }

    /// Does what a rule asks for.
    async fn act(
        &self,
        scaler: &CronFederatedHPA,
        rule: &CronFederatedHPARule,
        act: &Act,
    ) -> Result<(), Error> {
        let target = &scaler.spec.scale_target_ref;
        let namespace = scaler.metadata.namespace.as_deref().unwrap_or("");
        let mut attempt = 1;
        loop {
            let result = match act {
                Act::Limits => self.move_limits(rule, target, namespace).await,
                Act::Scale(replicas) => self.scale(*replicas, target, namespace).await,
                Act::Refuse(fault) => Err(Error::Decision(fault.clone().into())),
            };
            match result {
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    async fn move_limits(
        &self,
        rule: &CronFederatedHPARule,
        target: &CrossVersionObjectReference,
        namespace: &str,
    ) -> Result<(), Error> {
        scale::check_name(&target.name)?;
        let old = self.plane.writer.api::<FederatedHPA>(namespace).get(&target.name).await?;
        self.plane.writer.update(&old, &with_limits(&old, rule), Guard::Version).await.map(drop)
    }

    async fn scale(
        &self,
        replicas: i32,
        target: &CrossVersionObjectReference,
        namespace: &str,
    ) -> Result<(), Error> {
        let client = self.plane.client();
        let scale = self.scales.get(client, namespace, target).await?;
        match to_set(&scale, replicas) {
            Some(replicas) => self.scales.set(client, namespace, target, &scale, replicas).await,
            None => Ok(()),
        }
    }
}

/// Returns what a rule does to the target: that of a FederatedHPA has limits, every other one replicas.
fn act_of(scaler: &CronFederatedHPA, rule: &CronFederatedHPARule) -> Act {
    let target = &scaler.spec.scale_target_ref;
    let CrossVersionObjectReference { api_version, kind, .. } = target;
    if api_version != <FederatedHPA as api::Kind>::API_VERSION {
        return replicas(rule, target).map_or_else(Act::Refuse, Act::Scale);
    }
    if kind == <FederatedHPA as api::Kind>::KIND {
        return Act::Limits;
    }
    let (namespace, name) = (scaler.metadata.namespace.as_deref(), scaler.metadata.name.as_deref());
    let (namespace, name) = (namespace.unwrap_or(""), name.unwrap_or(""));
    Act::Refuse(format!(
        "CronFederatedHPA({namespace}/{name}) do not support scale target {api_version}/{kind}"
    ))
}

/// Returns a FederatedHPA with the limits that a rule asks for; those that it does not mention stay.
fn with_limits(found: &FederatedHPA, rule: &CronFederatedHPARule) -> FederatedHPA {
    let mut wanted = found.clone();
    wanted.spec.max_replicas = rule.target_max_replicas.unwrap_or(found.spec.max_replicas);
    wanted.spec.min_replicas = rule.target_min_replicas.or(found.spec.min_replicas);
    wanted
}

/// Returns how many replicas a rule asks for, or why that is not known.
fn replicas(rule: &CronFederatedHPARule, target: &CrossVersionObjectReference) -> Result<i32, String> {
    let fault = || format!("rule {} has no targetReplicas to scale {} to", rule.name, target.kind);
    rule.target_replicas.ok_or_else(fault)
}

/// Returns the number to write, if a scale says another one or none.
fn to_set(scale: &Scale, replicas: i32) -> Option<i32> {
    (scale.wanted != Some(replicas)).then_some(replicas)
}

#[cfg(test)]
mod on_server;
#[cfg(test)]
mod tests;
