//! Tables of cases for the arithmetic of autoscalers. `cargo xtask compare autoscaling` holds the same functions against Karmada's.

use serde_json::json;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

const NOW: i64 = 10_000;

/// A pod that has been ready for long, asks for 100m of cpu and is called by its number.
fn pod(number: usize) -> Pod {
    Pod {
        name: format!("p{number}"),
        phase: Phase::Running,
        ready: Some(Ready { status: Some(true), since: Some(at(1_000)) }),
        started: Some(at(1_000)),
        containers: vec![Container {
            name: "c".to_owned(),
            requests: [("cpu".to_owned(), 100), ("memory".to_owned(), 64_000)].into(),
        }],
        ..Pod::default()
    }
}

fn samples(values: &[i64]) -> Samples {
    let one =
        |value: &i64| Sample { value: *value, time: at(NOW - 5), window: SignedDuration::from_secs(15) };
    values.iter().enumerate().map(|(number, value)| (format!("p{number}"), one(value))).collect()
}

fn utilization(
    pods: &[Pod],
    used: &[i64],
    replicas: i32,
    calibration: f64,
    target: i32,
) -> Result<i32, String> {
    let workload = Workload { replicas, calibration, pods };
    let settings = Settings::default();
    by_utilization(&workload, samples(used), "cpu", None, target, &settings, at(NOW)).map(|one| one.replicas)
}

#[test]
fn replicas_follow_the_use_beyond_a_tenth() {
    let pods: Vec<Pod> = (0..4).map(pod).collect();
    for (name, used, replicas, calibration, expected) in [
        ("twice the target", [100, 100, 100, 100], 4, 1.0, 8),
        ("within a tenth", [54, 54, 54, 54], 4, 1.0, 4),
        ("just beyond", [56, 56, 56, 56], 4, 1.0, 5),
        ("half of it", [25, 25, 25, 25], 4, 1.0, 2),
        ("nothing is used", [0, 0, 0, 0], 4, 1.0, 0),
        ("two clusters have a copy each", [100, 100, 100, 100], 2, 2.0, 4),
        ("uneven load", [200, 0, 0, 0], 4, 1.0, 4),
    ] {
        assert_eq!(utilization(&pods, &used, replicas, calibration, 50), Ok(expected), "{name}");
    }
}

#[test]
fn pods_that_say_nothing_count_against_the_change() {
    let starting = |mut pod: Pod| {
        (pod.started, pod.ready) =
            (Some(at(NOW - 20)), Some(Ready { status: Some(false), since: Some(at(NOW - 20)) }));
        pod
    };
    let pending = |mut pod: Pod| {
        pod.phase = Phase::Pending;
        pod
    };
    let failed = |mut pod: Pod| {
        pod.phase = Phase::Failed;
        pod
    };
    let leaving = |mut pod: Pod| {
        pod.deleting = true;
        pod
    };
    for (name, pods, used, replicas, expected) in [
        // 2 pods use 200 %, which is 4 times the target; with 2 more that use nothing it is twice.
        ("missing while it goes up", vec![pod(0), pod(1), pod(2), pod(3)], vec![200, 200], 4, Ok(8)),
        // 3 pods use 10 %; with one at 100 % the average is 32 %, which is less than the target.
        ("missing while it goes down", vec![pod(0), pod(1), pod(2), pod(3)], vec![10, 10, 10], 4, Ok(3)),
        ("missing turns it", vec![pod(0), pod(1), pod(2)], vec![40], 3, Ok(3)),
        ("unready while it goes up", vec![pod(0), starting(pod(1))], vec![200, 900], 2, Ok(4)),
        ("unready while it goes down", vec![pod(0), starting(pod(1))], vec![10, 900], 2, Ok(1)),
        ("pending", vec![pod(0), pending(pod(1))], vec![100], 2, Ok(2)),
        ("failed", vec![pod(0), failed(pod(1))], vec![100, 900], 2, Ok(2)),
        ("on its way out", vec![pod(0), leaving(pod(1))], vec![100, 900], 2, Ok(2)),
        (
            "none is ready",
            vec![starting(pod(0))],
            vec![100],
            1,
            Err("did not receive metrics for any ready pods"),
        ),
        ("no pods", vec![], vec![], 1, Err("no pods returned by selector while calculating replica count")),
    ] {
        let found = utilization(&pods, &used, replicas, 1.0, 50);
        assert_eq!(found, expected.map_err(str::to_owned), "{name}");
    }
}

#[test]
fn when_the_cpu_of_a_pod_counts() {
    let settings = Settings::default();
    let sample = samples(&[1])["p0"];
    let case = |started: i64, status: Option<bool>, since: i64| {
        let mut pod = pod(0);
        (pod.started, pod.ready) = (Some(at(started)), Some(Ready { status, since: Some(at(since)) }));
        pods::Groups::of(&[pod], &[("p0".to_owned(), sample)].into(), "cpu", &settings, at(NOW)).ready == 1
    };
    assert!(case(NOW - 100, Some(true), NOW - 20), "measured since it became ready");
    assert!(!case(NOW - 100, Some(true), NOW - 19), "measured before");
    assert!(!case(NOW - 100, Some(false), NOW - 90), "it starts");
    assert!(case(NOW - 301, Some(true), NOW - 1), "it is no longer starting");
    assert!(!case(NOW - 400, Some(false), NOW - 380), "it has never been ready");
    assert!(case(NOW - 400, Some(false), NOW - 370), "it was ready once");
    assert!(case(NOW - 400, None, NOW - 380), "nobody says that it is not ready");
    let mut bare = pod(0);
    bare.ready = None;
    let groups = |resource| {
        pods::Groups::of(std::slice::from_ref(&bare), &samples(&[1]), resource, &settings, at(NOW)).ready
    };
    assert_eq!((groups("cpu"), groups("memory")), (0, 1), "only for cpu");
}

#[test]
fn what_pods_ask_for_must_be_known() {
    let mut odd = pod(1);
    odd.containers.push(Container { name: "sidecar".to_owned(), ..Container::default() });
    let fault = "missing request for cpu in container sidecar of Pod p1";
    let pods = [pod(0), odd];
    assert_eq!(utilization(&pods, &[100, 100], 2, 1.0, 50).unwrap_err(), fault);
    let workload = Workload { replicas: 2, calibration: 1.0, pods: &pods };
    let one =
        by_utilization(&workload, samples(&[100, 100]), "cpu", Some("c"), 50, &Settings::default(), at(NOW));
    assert_eq!(
        one,
        Ok(Proposal { replicas: 4, value: 100, utilization: Some(100) }),
        "the other container does not count"
    );
}

#[test]
fn plain_values_have_a_target_each_way() {
    let pods: Vec<Pod> = (0..4).map(pod).collect();
    let workload = |replicas, calibration| Workload { replicas, calibration, pods: &pods };
    let settings = Settings::default();
    let average = |used: &[i64], replicas, calibration| {
        by_average(&workload(replicas, calibration), samples(used), "", 50, &settings, at(NOW))
            .map(|one| (one.replicas, one.value))
    };
    assert_eq!(average(&[100, 100, 100, 100], 4, 1.0), Ok((8, 100)));
    assert_eq!(average(&[100, 100, 100, 100], 2, 2.0), Ok((4, 100)));
    assert_eq!(average(&[10, 10], 4, 1.0), Ok((3, 10)), "missing ones count with the target");
    let value = |value, replicas, calibration| {
        by_value(&workload(replicas, calibration), value, 50, &settings).map(|one| one.replicas)
    };
    assert_eq!(value(100, 4, 1.0), Ok(8));
    assert_eq!(value(52, 4, 1.0), Ok(4));
    assert_eq!(value(100, 2, 2.0), Ok(4));
    assert_eq!(value(100, 0, 1.0), Ok(2), "there is nothing yet");
    let empty = Workload { replicas: 1, calibration: 1.0, pods: &[] };
    assert!(by_value(&empty, 100, 50, &settings).unwrap_err().starts_with("unable to calculate ready pods"));
    let share = |value, running, calibration| {
        let one = by_share(&workload(2, calibration), running, value, 50, &settings);
        (one.replicas, one.value)
    };
    assert_eq!(share(400, 4, 1.0), (8, 100));
    assert_eq!(share(210, 4, 1.0), (4, 53), "within a tenth");
    assert_eq!(share(400, 4, 2.0), (4, 100), "8 in two clusters are 4 in each");
    assert_eq!(share(400, 0, 1.0), (8, 400), "nothing runs yet");
}

const BOUNDS: Bounds = Bounds { least: 1, most: 20 };

#[test]
fn without_rules_going_down_waits_and_going_up_at_most_doubles() {
    let window = SignedDuration::from_secs(300);
    let next = |asked: &[(i32, i64)], current, wish| {
        let recommendations =
            asked.iter().map(|(replicas, ago)| Change { replicas: *replicas, time: at(NOW - ago) });
        let mut history = History { recommendations: recommendations.collect(), ..History::default() };
        let verdict = plain(&mut history, current, wish, BOUNDS, window, at(NOW));
        assert_eq!(history.recommendations.last(), Some(&Change { replicas: wish, time: at(NOW) }));
        (verdict.replicas, verdict.stabilized.0, verdict.limited, verdict.limit.0)
    };
    let (free, held) = ("ReadyForNewScale", "ScaleDownStabilized");
    assert_eq!(next(&[], 5, 3), (3, free, false, "DesiredWithinRange"));
    assert_eq!(
        next(&[(5, 300)], 5, 3),
        (5, held, false, "DesiredWithinRange"),
        "five minutes ago it was five"
    );
    assert_eq!(next(&[(5, 301)], 5, 3), (3, free, false, "DesiredWithinRange"), "longer ago");
    assert_eq!(next(&[(4, 10)], 5, 3), (4, held, false, "DesiredWithinRange"));
    assert_eq!(next(&[], 5, 30), (10, free, true, "ScaleUpLimit"));
    assert_eq!(next(&[], 1, 30), (4, free, true, "ScaleUpLimit"));
    assert_eq!(next(&[], 15, 30), (20, free, true, "TooManyReplicas"));
    assert_eq!(next(&[], 5, 0), (1, free, true, "TooFewReplicas"));
}

#[test]
fn rules_hold_in_both_directions() {
    let rules = |window: i64, select, policies: &[(Amount, i64)]| Rules {
        window: SignedDuration::from_secs(window),
        select,
        policies: policies
            .iter()
            .map(|(amount, period)| Policy { amount: *amount, period: SignedDuration::from_secs(*period) })
            .collect(),
    };
    let open = |window| rules(window, Select::Max, &[(Amount::Percent(900), 15)]);
    let limits = [(Amount::Pods(4), 60), (Amount::Percent(50), 60)];
    let next = |up: Rules, down: Rules, asked: &[(i32, i64)], ups: &[(i32, i64)], current, wish| {
        let changes = |past: &[(i32, i64)]| {
            past.iter()
                .map(|(replicas, ago)| Change { replicas: *replicas, time: at(NOW - ago) })
                .collect::<Vec<_>>()
        };
        let mut history = History { recommendations: changes(asked), ups: changes(ups), downs: Vec::new() };
        let verdict = behaving(&mut history, current, wish, BOUNDS, &Behavior { up, down }, at(NOW));
        (verdict.replicas, verdict.stabilized.0, verdict.limit.0)
    };
    let (free, within) = ("ReadyForNewScale", "DesiredWithinRange");
    assert_eq!(next(open(0), open(0), &[], &[], 4, 7), (7, free, within));
    assert_eq!(next(open(60), open(0), &[(5, 59)], &[], 4, 7), (5, "ScaleUpStabilized", within));
    assert_eq!(next(open(60), open(0), &[(5, 60)], &[], 4, 7), (7, free, within), "just too old");
    assert_eq!(next(open(0), open(60), &[(9, 59)], &[], 9, 4), (9, "ScaleDownStabilized", within));
    let up = |select| rules(0, select, &limits);
    assert_eq!(next(up(Select::Max), open(0), &[], &[], 4, 15), (8, free, "ScaleUpLimit"));
    assert_eq!(next(up(Select::Min), open(0), &[], &[], 4, 15), (6, free, "ScaleUpLimit"));
    assert_eq!(next(up(Select::Disabled), open(0), &[], &[], 4, 15), (4, free, "ScaleUpLimit"));
    assert_eq!(
        next(up(Select::Max), open(0), &[], &[(2, 59)], 6, 15),
        (8, free, "ScaleUpLimit"),
        "two came already"
    );
    assert_eq!(next(up(Select::Max), open(0), &[], &[(2, 60)], 6, 15), (10, free, "ScaleUpLimit"));
    assert_eq!(
        next(up(Select::Max), open(0), &[], &[(9, 1)], 9, 15),
        (9, free, "ScaleUpLimit"),
        "never back"
    );
    assert_eq!(next(up(Select::Max), open(0), &[], &[], 18, 40), (20, free, "TooManyReplicas"));
    let down = |select| rules(0, select, &limits);
    assert_eq!(next(open(0), down(Select::Max), &[], &[], 9, 2), (4, free, "ScaleDownLimit"), "4.5 is cut");
    assert_eq!(next(open(0), down(Select::Min), &[], &[], 9, 2), (5, free, "ScaleDownLimit"));
    assert_eq!(next(open(0), down(Select::Disabled), &[], &[], 9, 2), (9, free, "ScaleDownLimit"));
    assert_eq!(next(open(0), down(Select::Max), &[], &[], 2, 0), (1, free, "TooFewReplicas"));
}

#[test]
fn what_was_done_is_remembered_as_long_as_it_counts() {
    let rules = Rules {
        window: SignedDuration::ZERO,
        select: Select::Max,
        policies: vec![Policy { amount: Amount::Pods(1), period: SignedDuration::from_secs(60) }],
    };
    let behavior = Behavior { up: rules.clone(), down: rules };
    let mut history = History::since(3, at(0));
    history.scaled(None, 3, 4, at(1));
    assert!(history.ups.is_empty(), "without rules nobody asks");
    history.scaled(Some(&behavior), 3, 5, at(100));
    history.scaled(Some(&behavior), 5, 4, at(110));
    history.scaled(Some(&behavior), 4, 5, at(161));
    assert_eq!(history.ups, [Change { replicas: 1, time: at(161) }]);
    assert_eq!(history.downs, [Change { replicas: 1, time: at(110) }]);
}

#[test]
fn a_clock_that_is_set_back_holds_nothing_longer_than_its_window() {
    let hour = 3600;
    let ahead = |replicas| vec![Change { replicas, time: at(NOW + hour) }];
    let window = SignedDuration::from_secs(300);
    let mut history = History { recommendations: ahead(5), ..History::default() };
    let mut held = |second| plain(&mut history, 5, 3, BOUNDS, window, at(second)).replicas;
    assert_eq!((held(NOW), held(NOW + 300), held(NOW + 301)), (5, 5, 3));
    let rules = Rules {
        window: SignedDuration::from_secs(60),
        select: Select::Max,
        policies: vec![Policy { amount: Amount::Pods(1), period: SignedDuration::from_secs(60) }],
    };
    let behavior = Behavior { up: rules.clone(), down: rules };
    let mut history = History { recommendations: ahead(9), ups: ahead(1), downs: Vec::new() };
    let mut next = |second| behaving(&mut history, 5, 9, BOUNDS, &behavior, at(second)).replicas;
    assert_eq!((next(NOW), next(NOW + 59), next(NOW + 60)), (5, 5, 6), "one a minute");
}

#[test]
fn limits_hold_and_are_told() {
    assert_eq!(limited(3, 1, 5), (3, Limit::Within));
    assert_eq!(limited(9, 1, 5), (5, Limit::TooMany));
    assert_eq!(limited(0, 1, 5), (1, Limit::TooFew));
    assert_eq!(limited(4, 6, 5), (6, Limit::TooFew), "the limits contradict each other");
}

#[test]
fn only_going_down_waits() {
    let now: Timestamp = "2026-01-01T00:05:00Z".parse().expect("a time");
    let at = |text: &str| Some(text.parse().expect("a time"));
    assert_eq!(next(5, 7, at("2026-01-01T00:04:59Z"), 300, now), 7);
    assert_eq!(next(5, 3, at("2026-01-01T00:00:01Z"), 300, now), 5);
    assert_eq!(next(5, 3, at("2026-01-01T00:00:00Z"), 300, now), 3);
    assert_eq!(next(5, 3, None, 300, now), 3);
    assert_eq!(next(5, 3, at("2026-01-01T00:00:00Z"), i64::MAX, now), 5, "a window that never ends");
}

#[test]
fn pods_are_read_as_the_api_has_them() {
    let read = Pod::read(&json!({
        "metadata": { "name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "250m", "memory": "64Mi", "odd": "?" } } }] },
        "status": { "phase": "Running", "startTime": "1970-01-01T00:00:10Z", "conditions": [
            { "type": "PodScheduled", "status": "True" },
            { "type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:00:20Z" },
        ] },
    }));
    let requests = [("cpu".to_owned(), 250), ("memory".to_owned(), 67_108_864_000)].into();
    let expected = Pod {
        name: "a".to_owned(),
        deleting: true,
        phase: Phase::Running,
        ready: Some(Ready { status: Some(false), since: Some(at(20)) }),
        started: Some(at(10)),
        containers: vec![Container { name: "c".to_owned(), requests }],
    };
    assert_eq!(read, expected);
    assert_eq!(Pod::read(&json!({})), Pod::default());
}
