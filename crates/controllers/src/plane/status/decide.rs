//! Decides when the reports of a binding's Works are summed up, and what is then written. Pure.

use std::sync::Arc;
use std::time::Duration;

use api::conditions::work as conditions;
use api::work::{AggregatedStatusItem, Work};
use jiff::Timestamp;
use propagation::status::{Reports, aggregate, update_binding};
use propagation::{Binding, Object, check_scope};
use runtime::writer::tree_difference;
use runtime::{Error, Guard};
use serde_json::{Value, json};

/// How long the first report of a binding waits for those of its other clusters. Short enough not to be
/// noticed, long enough for clusters that are written to at the same time.
pub(super) const GATHER: Duration = Duration::from_millis(100);

/// What is known of a binding, of its Works and of its template.
pub(crate) struct View<B> {
    pub(super) binding: Arc<B>,
    /// What the Works report, or why that is not summed up now.
    pub(super) reports: Result<Reports, Plan>,
    /// The interpreter has a rule that sums up the status of this kind.
    pub(super) aggregates: bool,
    pub(super) template: Template,
}

impl<B: Binding> View<B> {
    /// Returns the view without the template. `pause` is how long to wait after the last write, `gathering`
    /// for how long some of the clusters have reported while others are about to.
    pub(super) fn new(
        binding: Arc<B>,
        works: &[Arc<Work>],
        pause: Option<Duration>,
        gathering: Option<Duration>,
        aggregates: bool,
    ) -> Self {
        let reports = match delay(binding.as_ref(), works, pause, gathering) {
            Some(plan) => Err(plan),
            None => Ok(aggregate(works.iter().map(AsRef::as_ref), &binding.spec().resource)),
        };
        Self { binding, reports, aggregates, template: Template::Unread }
    }

    /// Returns what the clusters report if the template has to be read, too, to show it.
    pub(super) fn for_template(&self) -> Option<&[AggregatedStatusItem]> {
        let reports = self.reports.as_ref().ok()?;
        untouched(self).is_none().then_some(&reports.items)
    }
}

/// What is known of a template.
pub(super) enum Template {
    /// It was not read, since [`View::for_template`] says that it need not be.
    Unread,
    Unreadable(Error),
    Absent,
    /// An object of the same name as the one that was bound.
    Another,
    Read {
        template: Arc<Value>,
        /// The template with the status that the interpreter gives it; nothing if it has it already.
        updated: propagation::Result<Option<Value>>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Plan {
    Nothing(&'static str),
    /// Look again after this time.
    Wait(Duration, &'static str),
    Report(Box<Report>),
}

/// What is written, in this order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Report {
    /// The Works that do not count, and why.
    pub(super) passed_over: Vec<String>,
    pub(super) binding: OfBinding,
    pub(super) template: OfTemplate,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum OfBinding {
    Leave(&'static str),
    Write(Summary),
}

/// What the status of a binding says about its clusters.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Summary {
    pub(super) items: Vec<AggregatedStatusItem>,
    pub(super) at: Timestamp,
}

impl Summary {
    /// Puts it into a status of which others may have changed other fields meanwhile; returns whether anything changed.
    pub(super) fn update<B: Binding>(&self, binding: &mut B) -> bool {
        update_binding(binding, &self.items, self.at)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum OfTemplate {
    Leave(&'static str),
    Patch(Value),
    /// It could not be read; that is tried again.
    Unreadable(String),
    /// The interpreter failed, which an event tells.
    Fail(String),
}

pub(super) fn decide<B: Binding>(view: &View<B>, now: Timestamp) -> Plan {
    let reports = match &view.reports {
        Ok(reports) => reports,
        Err(plan) => return plan.clone(),
    };
    let summary = Summary { items: reports.items.clone(), at: now };
    let is_news = summary.update(&mut view.binding.as_ref().clone());
    Plan::Report(Box::new(Report {
        passed_over: reports.skipped.iter().map(ToString::to_string).collect(),
        binding: if is_news {
            OfBinding::Write(summary)
        } else {
            OfBinding::Leave("its status says it already")
        },
        template: of_template(view),
    }))
}

/// Returns what is done instead of a report, if it is not time for one.
fn delay<B: Binding>(
    binding: &B,
    works: &[Arc<Work>],
    pause: Option<Duration>,
    gathering: Option<Duration>,
) -> Option<Plan> {
    if binding.metadata().deletion_timestamp.is_some() {
        return Some(Plan::Nothing("the binding goes"));
    }
    if let Some(pause) = pause {
        return Some(Plan::Wait(pause, "the last write was a moment ago"));
    }
    let left = GATHER.checked_sub(gathering.unwrap_or_default()).filter(|left| !left.is_zero())?;
    more_to_come(works).then_some(Plan::Wait(left, "more reports are about to come"))
}

/// Returns whether Works of a binding have not been applied yet. Suspended and failed Works do not count.
fn more_to_come(works: &[Arc<Work>]) -> bool {
    works.iter().any(|work| {
        work.metadata.deletion_timestamp.is_none()
            && work.spec.suspend_dispatching != Some(true)
            && !work.status.conditions.iter().any(|condition| condition.type_ == conditions::APPLIED)
    })
}

/// Returns why a template gets no status, as far as that is known without reading it.
fn untouched<B: Binding>(view: &View<B>) -> Option<&'static str> {
    if check_scope(view.binding.as_ref()).is_err() {
        // The binding controller reports it.
        return Some("the binding may not stand for it");
    }
    (!view.aggregates).then_some("no rule sums up its status")
}

fn of_template<B: Binding>(view: &View<B>) -> OfTemplate {
    if let Some(why) = untouched(view) {
        return OfTemplate::Leave(why);
    }
    match &view.template {
        Template::Unread => OfTemplate::Leave("it was not read"),
        Template::Unreadable(error) => OfTemplate::Unreadable(error.to_string()),
        Template::Absent => OfTemplate::Leave("it is gone"),
        Template::Another => OfTemplate::Leave("it is another one of the same name"),
        Template::Read { updated: Err(error), .. } => OfTemplate::Fail(error.to_string()),
        Template::Read { updated: Ok(None), .. } => OfTemplate::Leave("its status says it already"),
        Template::Read { template, updated: Ok(Some(updated)) } => match status_patch(template, updated) {
            Some(patch) => OfTemplate::Patch(patch),
            None => OfTemplate::Leave("its status says it already"),
        },
    }
}

/// Returns the patch of the status alone, valid only for the template that was read.
fn status_patch(template: &Value, updated: &Value) -> Option<Value> {
    let only_status = |object: &Value| {
        json!({
            "metadata": {"resourceVersion": template.resource_version()},
            "status": object.get("status").cloned().unwrap_or_else(|| json!({})),
        })
    };
    tree_difference(&only_status(template), &only_status(updated), Guard::Version)
}

#[cfg(test)]
mod tests {
    use api::work::ResourceBinding;

    use super::*;
    use crate::fixtures::{self, at, deleting, merged, work};

    fn applied(status: &str) -> Value {
        json!({ "status": { "conditions": [{
            "type": "Applied", "status": status, "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] } })
    }

    fn millis(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    fn works(found: Vec<Value>) -> Vec<Arc<Work>> {
        found.into_iter().map(|otherwise| work("m1", otherwise)).collect()
    }

    #[test]
    fn when_a_binding_is_reported() {
        let moment = |left: u64| format!("{left} ms: the last write was a moment ago");
        let coming_in = |left: u64| format!("{left} ms: more reports are about to come");
        let report = || "report".to_owned();
        let (done, coming) = (applied("True"), json!({}));
        let suspended = json!({ "spec": { "suspendDispatching": true } });
        let cases = [
            ("all have reported", json!({}), vec![done.clone()], None, None, report()),
            ("there are no Works", json!({}), vec![], None, None, report()),
            (
                "one is about to report",
                json!({}),
                vec![done.clone(), coming.clone()],
                None,
                None,
                coming_in(100),
            ),
            ("it has been waited for", json!({}), vec![coming.clone()], None, millis(60), coming_in(40)),
            ("it was waited for long enough", json!({}), vec![coming.clone()], None, millis(100), report()),
            ("and longer", json!({}), vec![coming.clone()], None, millis(5000), report()),
            ("failed is reported, too", json!({}), vec![applied("False")], None, None, report()),
            ("what is suspended is not waited for", json!({}), vec![suspended], None, None, report()),
            ("what goes is not waited for", json!({}), vec![deleting()], None, None, report()),
            (
                "the last write was a moment ago",
                json!({}),
                vec![done.clone()],
                millis(150),
                None,
                moment(150),
            ),
            ("pause before gathering", json!({}), vec![coming.clone()], millis(10), millis(100), moment(10)),
            ("the binding goes", deleting(), vec![done], None, None, "nothing: the binding goes".to_owned()),
            (
                "the binding goes before anything is waited for",
                deleting(),
                vec![coming],
                millis(10),
                None,
                "nothing: the binding goes".to_owned(),
            ),
        ];
        for (name, binding, found, pause, gathering, expected) in cases {
            let binding = Arc::new(fixtures::binding(binding));
            let view = View::new(binding, &works(found), pause, gathering, true);
            let words = match decide(&view, at(100)) {
                Plan::Nothing(why) => format!("nothing: {why}"),
                Plan::Wait(left, why) => format!("{} ms: {why}", left.as_millis()),
                Plan::Report(_) => "report".to_owned(),
            };
            assert_eq!(words, expected, "{name}");
            assert_eq!(view.for_template().is_some(), expected == "report", "{name}");
        }
    }

    /// A report that is due, from these Works.
    fn reported(binding: Value, works: &[Arc<Work>], template: Template) -> Report {
        let binding = Arc::new(fixtures::binding(binding));
        let view = View { template, ..View::new(binding, works, None, millis(5000), true) };
        match decide(&view, at(100)) {
            Plan::Report(report) => *report,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_the_binding_says_of_its_clusters() {
        let chosen = |names: &[&str]| {
            let clusters: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
            json!({ "spec": { "clusters": clusters } })
        };
        let done = |cluster: &str| work(cluster, applied("True"));
        let elsewhere = work("m1", json!({ "metadata": { "namespace": "default" } }));
        let other = json!({ "spec": { "workload": { "manifests": [] } } });
        // Name, binding, Works; then: its clusters, whether all are applied, how many Works do not count.
        let cases = [
            ("nobody has reported", chosen(&["m1"]), vec![], "", "False", 0),
            ("all have", chosen(&["m1"]), vec![done("m1")], "m1 applied", "True", 0),
            (
                "one has not",
                chosen(&["m1", "m2"]),
                vec![done("m2"), work("m1", json!({}))],
                "m1, m2 applied",
                "False",
                0,
            ),
            (
                "one failed, and says why",
                chosen(&["m1"]),
                vec![work("m1", applied("False"))],
                "m1 failed: m",
                "False",
                0,
            ),
            ("one that was not asked for", chosen(&["m2"]), vec![done("m1")], "m1 applied", "False", 0),
            (
                "one that goes does not count",
                chosen(&["m1"]),
                vec![work("m1", merged(applied("True"), deleting()))],
                "",
                "False",
                0,
            ),
            ("one outside of execution namespaces", chosen(&["m1"]), vec![elsewhere], "", "False", 1),
            (
                "one that does not have the object",
                chosen(&["m1"]),
                vec![work("m1", merged(applied("True"), other))],
                "",
                "False",
                1,
            ),
            (
                "a second one of a cluster",
                chosen(&["m1"]),
                vec![done("m1"), work("m1", merged(applied("True"), json!({ "metadata": { "name": "x" } })))],
                "m1 applied",
                "True",
                1,
            ),
        ];
        for (name, binding, works, clusters, condition, passed_over) in cases {
            let report = reported(binding.clone(), &works, Template::Absent);
            let OfBinding::Write(summary) = &report.binding else { panic!("{name}: {report:?}") };
            let words: Vec<String> = summary
                .items
                .iter()
                .map(|item| match item {
                    item if item.applied => format!("{} applied", item.cluster_name),
                    item if item.applied_message.is_empty() => item.cluster_name.clone(),
                    item => format!("{} failed: {}", item.cluster_name, item.applied_message),
                })
                .collect();
            assert_eq!(
                (words.join(", ").as_str(), report.passed_over.len()),
                (clusters, passed_over),
                "{name}"
            );
            let mut written = fixtures::binding(binding);
            assert!(summary.update(&mut written), "{name}");
            let found = &written.status.conditions[0];
            assert_eq!((found.type_.as_str(), found.status.as_str()), ("FullyApplied", condition), "{name}");
            assert_eq!(found.last_transition_time.0, at(100), "{name}");

            // A second look, after the write.
            let written = serde_json::to_value(&written).expect("a tree");
            let again = reported(written, &works, Template::Absent);
            assert_eq!(again.binding, OfBinding::Leave("its status says it already"), "{name}");
            assert_eq!(again.passed_over.len(), passed_over, "{name}");
        }
    }

    #[test]
    fn what_others_wrote_into_the_status_meanwhile_stays() {
        let works = [work("m1", applied("True"))];
        let OfBinding::Write(summary) = reported(json!({}), &works, Template::Absent).binding else {
            panic!("a write")
        };
        let mut newer = fixtures::binding(json!({ "status": { "schedulerObservedGeneration": 7 } }));
        assert!(summary.update(&mut newer));
        assert_eq!(
            (newer.status.scheduler_observed_generation, newer.status.aggregated_status.len()),
            (7, 1)
        );
        assert!(!summary.update(&mut newer), "twice is once");
    }

    fn object(status: Value) -> Value {
        json!({ "metadata": { "name": "web", "uid": "t", "resourceVersion": "7" }, "status": status })
    }

    #[test]
    fn what_becomes_of_the_template() {
        let read = |updated: propagation::Result<Option<Value>>| Template::Read {
            template: Arc::new(object(json!({ "a": 1 }))),
            updated,
        };
        let failed = || propagation::Error::NotAnExecutionSpace { namespace: "n".to_owned() };
        let foreign = || json!({ "spec": { "resource": { "namespace": "other" } } });
        let said = || OfTemplate::Leave("its status says it already");
        let patch =
            || OfTemplate::Patch(json!({ "metadata": { "resourceVersion": "7" }, "status": { "a": 2 } }));
        let news = || read(Ok(Some(object(json!({ "a": 2 })))));
        let cases = [
            ("its status is another one", json!({}), true, news(), patch()),
            ("its status is right", json!({}), true, read(Ok(None)), said()),
            (
                "only something else differs",
                json!({}),
                true,
                read(Ok(Some(merged(
                    object(json!({ "a": 1 })),
                    json!({ "metadata": { "labels": { "l": "v" } } }),
                )))),
                said(),
            ),
            ("it is gone", json!({}), true, Template::Absent, OfTemplate::Leave("it is gone")),
            (
                "it is another one",
                json!({}),
                true,
                Template::Another,
                OfTemplate::Leave("it is another one of the same name"),
            ),
            (
                "it cannot be read",
                json!({}),
                true,
                Template::Unreadable(Error::UnknownKind("v1/Web".to_owned())),
                OfTemplate::Unreadable("kind v1/Web is not known to the control plane".to_owned()),
            ),
            ("the rule fails", json!({}), true, read(Err(failed())), OfTemplate::Fail(failed().to_string())),
            ("there is no rule", json!({}), false, news(), OfTemplate::Leave("no rule sums up its status")),
            (
                "the binding is in another namespace",
                foreign(),
                true,
                news(),
                OfTemplate::Leave("the binding may not stand for it"),
            ),
            ("nobody read it", json!({}), true, Template::Unread, OfTemplate::Leave("it was not read")),
        ];
        for (name, binding, aggregates, template, expected) in cases {
            let binding: Arc<ResourceBinding> = Arc::new(fixtures::binding(binding));
            let seen = View::new(binding, &[], None, None, aggregates);
            let needed = !matches!(
                expected,
                OfTemplate::Leave("no rule sums up its status" | "the binding may not stand for it")
            );
            assert_eq!(seen.for_template().is_some(), needed, "{name}");
            let Plan::Report(report) = decide(&View { template, ..seen }, at(100)) else { panic!("{name}") };
            assert_eq!(report.template, expected, "{name}");
            assert!(
                matches!(report.binding, OfBinding::Write(_)),
                "{name}: the binding is written all the same"
            );
        }
    }

    #[test]
    fn the_patch_of_a_template_has_its_status_alone_and_is_valid_once() {
        let template = |labels: Value, status: Value| json!({ "metadata": { "resourceVersion": "7", "labels": labels }, "status": status });
        let old = template(json!({}), json!({ "a": 1 }));
        assert_eq!(status_patch(&old, &old), None);
        let new = template(json!({ "l": "v" }), json!({ "a": 2 }));
        assert_eq!(
            status_patch(&old, &new),
            Some(json!({ "metadata": { "resourceVersion": "7" }, "status": { "a": 2 } }))
        );
        let first = json!({ "metadata": { "resourceVersion": "7" } });
        assert_eq!(
            status_patch(&first, &old),
            Some(json!({ "metadata": { "resourceVersion": "7" }, "status": { "a": 1 } }))
        );
    }
}
