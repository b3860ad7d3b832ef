//! Logs of good days, and of bad ones.

use serde_json::json;

use super::*;

const US: &str = "system:karmada-controllers";

/// Writes a log line by line, a second each.
#[derive(Default)]
struct Log(Vec<String>);

impl Log {
    fn add(
        &mut self,
        at: usize,
        user: &str,
        verb: &str,
        object: (&str, &str, &str),
        sent: Value,
        answered: Value,
    ) -> &mut Self {
        let (resource, namespace, name) = object;
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let line = json!({"requestURI": "/x", "verb": verb, "user": {"username": user}, "userAgent": "",
            "objectRef": {"resource": resource, "namespace": namespace, "name": name, "subresource": subresource},
            "responseStatus": {"code": 200}, "requestObject": sent, "responseObject": answered,
            "requestReceivedTimestamp": format!("2026-01-01T00:00:{at:02}.000000Z")});
        self.0.push(line.to_string());
        self
    }

    fn patch(&mut self, at: usize, user: &str, resource: &str, sent: Value) -> &mut Self {
        self.add(at, user, "patch", (resource, "default", "nginx"), sent, Value::Null)
    }

    fn work(&mut self, at: usize, verb: &str) -> &mut Self {
        let work = json!({
            "metadata": {"annotations": {"resourcebinding.karmada.io/namespace": "default",
                "resourcebinding.karmada.io/name": "nginx-deployment"}},
            "spec": {"workload": {"manifests": [{"kind": "Deployment",
                "metadata": {"name": "nginx", "namespace": "default"}}]}}});
        self.add(at, US, verb, ("works", "karmada-es-m1", "nginx-687f7fb96f"), Value::Null, work)
    }

    fn binding(&mut self, at: usize, clusters: &[&str]) -> &mut Self {
        let targets: Vec<Value> = clusters.iter().map(|name| json!({"name": name})).collect();
        let binding = json!({"spec": {"clusters": targets}});
        self.add(
            at,
            US,
            "patch",
            ("resourcebindings", "default", "nginx-deployment"),
            json!({"at": at}),
            binding,
        )
    }

    fn read(&self) -> Vec<Entry> {
        Entry::read(&self.0.join("\n"))
    }
}

fn repetitions(log: &Log) -> Vec<String> {
    repeated_writes("here", &in_order(&[log.read()]), US)
}

fn repeated(log: &Log) -> usize {
    repetitions(log).len()
}

#[test]
fn the_same_write_twice_in_a_row_is_noticed() {
    let (one, two) = (json!({"spec": {"a": 1}}), json!({"spec": {"a": 2}}));
    let mut log = Log::default();
    log.patch(1, US, "deployments", one.clone()).patch(2, US, "deployments", one.clone());
    assert_eq!(
        repetitions(&log),
        [
            "here: patch of deployments default/nginx  was repeated at 2026-01-01T00:00:02.000000Z with the same content: \
          {\"spec\":{\"a\":1}}"
        ]
    );
    // The revision in it does not make it another write.
    let with = |revision: &str| json!({"metadata": {"resourceVersion": revision}, "spec": {"a": 1}});
    let mut log = Log::default();
    log.patch(1, US, "deployments", with("1")).patch(2, US, "deployments", with("2"));
    assert_eq!(repeated(&log), 1);

    // Something else, somewhere else, by somebody else, or after somebody else.
    for second in [("deployments", &two), ("deployments/status", &one), ("statefulsets", &one)] {
        let mut log = Log::default();
        log.patch(1, US, "deployments", one.clone()).patch(2, US, second.0, second.1.clone());
        assert_eq!(repeated(&log), 0, "{second:?}");
    }
    let mut log = Log::default();
    log.patch(1, US, "deployments", one.clone()).patch(2, "anna", "deployments", two.clone()).patch(
        3,
        US,
        "deployments",
        one.clone(),
    );
    assert_eq!(repeated(&log), 0);
    let mut log = Log::default();
    log.patch(1, "anna", "deployments", one.clone()).patch(2, "anna", "deployments", one.clone());
    assert_eq!(repeated(&log), 0, "users may do as they like");
    let mut log = Log::default();
    let object = ("deployments", "default", "nginx");
    log.add(1, US, "create", object, one.clone(), Value::Null).add(2, US, "create", object, one, Value::Null);
    assert_eq!(repeated(&log), 0, "it was gone in between");
    for (version, count) in [("7", 1), ("9", 0)] {
        let mut log = Log::default();
        let answered = |version: &str| json!({"metadata": {"resourceVersion": version}});
        let sent = json!({"spec": {"a": 1}});
        log.add(1, US, "patch", object, sent.clone(), answered("7"));
        log.add(2, US, "patch", object, sent, answered(version));
        assert_eq!(repeated(&log), count, "version {version} after 7");
    }
}

#[test]
fn who_writes_through_somebody_else_writes_himself() {
    let line = |number: usize, impersonated: Value| {
        json!({"requestURI": "/x", "verb": "patch", "user": {"username": US}, "impersonatedUser": impersonated,
            "objectRef": {"resource": "pods", "name": "a"}, "responseStatus": {"code": 200},
            "requestReceivedTimestamp": format!("2026-01-01T00:00:0{number}.000000Z")})
        .to_string()
    };
    let repeated = |impersonated: Value| {
        let log = [1, 2].map(|number| line(number, impersonated.clone())).join("\n");
        repeated_writes("here", &in_order(&[Entry::read(&log)]), US).len()
    };
    assert_eq!(repeated(Value::Null), 1);
    assert_eq!(repeated(json!({"username": "anna"})), 0);
}

#[test]
fn what_servers_on_one_store_tell_is_judged_in_the_order_it_happened() {
    let sent = json!({"spec": {"a": 1}});
    let (mut one, mut other) = (Log::default(), Log::default());
    one.patch(1, US, "deployments", sent.clone()).patch(3, US, "deployments", sent.clone());
    other.patch(2, "anna", "deployments", json!({"spec": {"a": 2}}));
    let runs = [one.read(), other.read()];
    assert_eq!(repeated_writes("here", &in_order(&runs[..1]), US).len(), 1);
    assert_eq!(repeated_writes("here", &in_order(&runs), US), Vec::<String>::new());

    // The Work was made and deleted by one server, and its binding written by the other, before or after that.
    for (at, wrong) in [(3, 0), (5, 1)] {
        let (mut one, mut other) = (Log::default(), Log::default());
        one.binding(1, &["m1"]).work(2, "create").work(4, "delete");
        other.binding(at, &["m2"]);
        let runs = [one.read(), other.read()];
        assert_eq!(works_deleted_though_wanted(&runs, US).len(), wrong, "at {at}");
        let member = deletion(5, AGENT);
        let runs = [other.read(), one.read()];
        let judged = objects_deleted_though_wanted("m1", &[member], &runs, MEMBER);
        assert_eq!(judged, Vec::<String>::new(), "the Work was deleted before");
    }
}

#[test]
fn a_log_with_a_gap_is_noticed() {
    let mut log = Log::default();
    log.patch(1, US, "deployments", json!({"metadata": {"annotations": {LOST: "9"}}}));
    assert_eq!(
        lost_lines("here", &log.0.join("\n")),
        Vec::<String>::new(),
        "an object that names it does not leave a gap"
    );
    log.0.push(json!({"kind": "Event", "annotations": {LOST: "3"}}).to_string());
    assert_eq!(lost_lines("here", &log.0.join("\n")), ["here: 3 lines of the audit log were lost"]);
}

#[test]
fn refusals_and_rehearsals_are_no_writes() {
    let line = |uri: &str, code: i64| {
        json!({"requestURI": uri, "verb": "patch", "user": {"username": US}, "objectRef": {"resource": "pods", "name": "a"},
            "responseStatus": {"code": code}})
        .to_string()
    };
    let log =
        [line("/a", 409), line("/a?dryRun=All", 200), line("/a", 200), "{\"requestURI\": \"/cut".to_owned()];
    assert_eq!(Entry::read(&log.join("\n")).len(), 1);
}

#[test]
fn what_only_reads_or_follows_the_time_is_no_write() {
    let line = |verb: &str, group: &str, resource: &str| {
        json!({"requestURI": "/a", "verb": verb, "user": {"username": US}, "responseStatus": {"code": 200},
            "objectRef": {"apiGroup": group, "resource": resource, "name": "a"}})
        .to_string()
    };
    let written = |verb: &str, group: &str, resource: &str| Entry::read(&line(verb, group, resource)).len();
    assert_eq!(
        ["patch", "get", "list", "watch"].map(|verb| written(verb, "apps", "deployments")),
        [1, 0, 0, 0]
    );
    let others = [("", "events"), ("events.k8s.io", "events"), ("coordination.k8s.io", "leases")];
    assert_eq!(others.map(|(group, resource)| written("patch", group, resource)), [0, 0, 0]);
}

const MEMBER: &str = ":karmada-m1";
const AGENT: &str = "system:serviceaccount:accounts:karmada-m1";

fn deletion(at: usize, user: &str) -> Vec<Entry> {
    let mut log = Log::default();
    log.add(at, user, "delete", ("deployments", "default", "nginx"), Value::Null, Value::Null);
    log.read()
}

fn unfounded(plane: &Log, member: Vec<Entry>) -> Vec<String> {
    objects_deleted_though_wanted("m1", &[member], &[plane.read()], MEMBER)
}

#[test]
fn an_object_that_is_deleted_although_its_work_was_not_is_noticed() {
    let mut plane = Log::default();
    plane.work(1, "create");
    let complaint = "m1: deployments default/nginx was deleted at 2026-01-01T00:00:03.000000Z although nobody had deleted its Work or template";
    assert_eq!(unfounded(&plane, deletion(3, AGENT)), [complaint]);
    assert_eq!(unfounded(&plane, deletion(3, "anna")), Vec::<String>::new(), "somebody in the member");
    plane.work(5, "delete");
    assert_eq!(unfounded(&plane, deletion(3, AGENT)).len(), 1, "the Work went later");
    assert_eq!(unfounded(&plane, deletion(6, AGENT)), Vec::<String>::new());
}

#[test]
fn a_deletion_that_a_killed_server_did_not_tell_of_shows_in_the_work() {
    let (mut before, mut after) = (Log::default(), Log::default());
    before.work(1, "create");
    let going = json!({"metadata": {"name": "x", "deletionTimestamp": "2026-01-01T00:00:03Z"}});
    let work = ("works", "karmada-es-m1", "nginx-687f7fb96f");
    after.add(7, US, "patch", work, json!({"metadata": {"finalizers": null}}), going);
    let judge = |plane: &[Vec<Entry>], at| {
        objects_deleted_though_wanted("m1", &[deletion(at, AGENT)], plane, MEMBER).len()
    };
    let killed = [before.read(), after.read()];
    assert_eq!([2, 3, 5].map(|at| judge(&killed, at)), [1, 0, 0], "not before the Work began to go");
    let all_in_one = [killed.concat()];
    assert_eq!(judge(&all_in_one, 5), 1, "a server that was not killed has told of everything");
    assert_eq!(judge(&[before.read(), Vec::new()], 5), 1);
}

#[test]
fn the_deletion_of_another_work_does_not_count() {
    let mut plane = Log::default();
    let other = json!({"spec": {"workload": {"manifests": [{"kind": "Service",
        "metadata": {"name": "nginx", "namespace": "default"}}]}}});
    plane.add(1, US, "delete", ("works", "karmada-es-m1", "other"), Value::Null, other.clone());
    assert_eq!(unfounded(&plane, deletion(3, AGENT)).len(), 1);
    let mut plane = Log::default();
    plane.add(1, "anna", "delete", ("clusters", "", "m1"), Value::Null, Value::Null);
    assert_eq!(unfounded(&plane, deletion(3, AGENT)), Vec::<String>::new(), "the cluster leaves");
    for (resource, namespace, name, wrong) in [
        ("deployments", "default", "nginx", 0),
        ("namespaces", "default", "default", 0),
        ("deployments", "default", "other", 1),
        ("namespaces", "other", "other", 1),
    ] {
        let mut plane = Log::default();
        plane.work(1, "create");
        plane.add(2, "anna", "delete", (resource, namespace, name), Value::Null, Value::Null);
        assert_eq!(unfounded(&plane, deletion(3, AGENT)).len(), wrong, "{resource} {name}");
    }
}

fn lost(log: &Log) -> Vec<String> {
    works_deleted_though_wanted(&[log.read()], US)
}

#[test]
fn a_work_that_is_deleted_although_it_is_wanted_is_noticed() {
    let mut log = Log::default();
    log.binding(1, &["m1"]).work(2, "create").binding(3, &["m1", "m2"]).work(4, "delete");
    let complaint = "works karmada-es-m1/nginx-687f7fb96f was deleted at 2026-01-01T00:00:04.000000Z although \
        ResourceBinding default/nginx-deployment has wanted m1 all the time";
    assert_eq!(lost(&log), [complaint]);
    // It does not count that it was unwanted before the Work was made.
    let mut log = Log::default();
    log.binding(1, &[]).binding(2, &["m1"]).work(3, "create").work(4, "delete");
    assert_eq!(lost(&log).len(), 1);
}

#[test]
fn a_work_that_was_made_too_late_may_go() {
    // Whoever made the Work had not yet seen that its binding no longer wanted it.
    let mut log = Log::default();
    log.binding(1, &["m1"]).binding(2, &["m2"]).work(3, "create").binding(4, &["m1", "m2"]).work(5, "delete");
    assert_eq!(lost(&log), Vec::<String>::new());
    let mut log = Log::default();
    let binding = ("resourcebindings", "default", "nginx-deployment");
    log.binding(1, &["m1"]).add(2, "anna", "delete", binding, Value::Null, Value::Null);
    log.work(3, "create").binding(4, &["m1"]).work(5, "delete");
    assert_eq!(lost(&log), Vec::<String>::new(), "its binding was gone");
    // What tells nothing about clusters does not count.
    let mut log = Log::default();
    log.binding(1, &["m1"]);
    log.add(2, US, "patch", binding, json!({"metadata": {"labels": {"a": "b"}}}), Value::Null);
    log.work(3, "create").work(4, "delete");
    assert_eq!(lost(&log).len(), 1);
}

/// A log of a server whose clients do not ask for more than metadata.
fn terse(patched: Value) -> Log {
    let mut log = Log::default();
    let metadata = json!({"kind": "PartialObjectMetadata", "metadata": {"name": "x"}});
    log.binding(1, &["m1"]).work(2, "create");
    let binding = ("resourcebindings", "default", "nginx-deployment");
    log.add(3, US, "patch", binding, json!({"spec": patched}), metadata.clone());
    let work = ("works", "karmada-es-m1", "nginx-687f7fb96f");
    log.add(4, US, "patch", work, json!({"metadata": {"labels": {"a": "b"}}}), metadata.clone());
    log.add(5, US, "delete", work, Value::Null, metadata);
    log
}

#[test]
fn answers_without_content_are_made_up_for_by_what_was_sent() {
    for still_wanted in [json!({"replicas": 2}), json!({"clusters": [{"name": "m1"}, {"name": "m2"}]})] {
        assert_eq!(lost(&terse(still_wanted.clone())).len(), 1, "{still_wanted}");
    }
    let evicting = json!({"gracefulEvictionTasks": [{"fromCluster": "m1"}]});
    for given_up in [json!({"clusters": [{"name": "m2"}]}), json!({"clusters": null}), evicting] {
        assert_eq!(lost(&terse(given_up.clone())), Vec::<String>::new(), "{given_up}");
    }
}

#[test]
fn a_work_that_is_not_wanted_any_more_may_go() {
    let mut log = Log::default();
    log.binding(1, &["m1"]).work(2, "create").binding(3, &["m2"]).work(4, "delete");
    assert_eq!(lost(&log), Vec::<String>::new());
    for gone in [
        ("deployments", "default", "nginx"),
        ("resourcebindings", "default", "nginx-deployment"),
        ("namespaces", "", "default"),
        ("clusters", "", "m1"),
    ] {
        let mut log = Log::default();
        log.binding(1, &["m1"]).work(2, "create");
        log.add(3, "anna", "delete", gone, Value::Null, Value::Null).work(4, "delete");
        assert_eq!(lost(&log), Vec::<String>::new(), "{gone:?}");
    }
}

/// Each law reads what our server and kube-apiserver write.
#[test]
fn the_policy_is_one() {
    let policy: Value = serde_json::from_str(super::super::AUDIT_POLICY).expect("JSON");
    assert_eq!(policy["rules"].as_array().map(Vec::len), Some(5));
}
