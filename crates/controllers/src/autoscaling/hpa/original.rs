//! Compares our decisions with those of the original's controller, on random situations.
//!
//! `testdata/autoscaling/original.jsonl` has situations with the answers of the original, recorded once. `cargo xtask compare
//! autoscaling` makes a thousand others, has the original decide them and compares; with `UPDATE_GOLDEN=1` it records the first of them.
//! What differs on purpose is in [`difference`].

use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use api::autoscaling::FederatedHPASpec;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use workloads::autoscaling::{Change, Sample, Samples};

use super::*;
use crate::autoscaling::Settings;
use crate::fixtures::{at, read};

const CASES: usize = 1000;
const RECORDED: usize = 80;
const NOW: i64 = 1_000_000;

#[derive(Debug, Serialize, Deserialize)]
struct Situation {
    spec: Value,
    replicas: i32,
    clusters: Vec<Value>,
    measured: Vec<Value>,
    recommendations: Option<Vec<Value>>,
    ups: Option<Vec<Value>>,
    downs: Option<Vec<Value>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Recorded {
    situation: Situation,
    answer: Value,
}

/// A deterministic random generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn one<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.roll(choices.len() as u64)).expect("an index")]
    }

    fn happens(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    fn between(&mut self, least: i64, most: i64) -> i64 {
        least + i64::try_from(self.roll(u64::try_from(most - least + 1).expect("a range"))).expect("a number")
    }
}

fn situation(dice: &mut Dice) -> Situation {
    let (count, replicas) = (dice.between(1, 3), dice.between(1, 12));
    let duplicated = dice.happens(40);
    let (mut clusters, mut names) = (Vec::new(), Vec::new());
    for index in 0..count {
        let part = replicas / count + i64::from(index < replicas % count);
        let wanted = if duplicated { replicas } else { part };
        let running = if dice.happens(80) { wanted } else { dice.between(0, wanted) };
        let pods: Vec<Value> = (0..running).map(|number| pod(dice, &format!("m{index}-{number}"))).collect();
        names.extend(pods.iter().map(|pod| pod["name"].as_str().expect("a name").to_owned()));
        clusters
            .push(json!({ "name": format!("m{index}"), "wanted": wanted, "running": running, "pods": pods }));
    }
    let (mut metrics, mut measured) = (Vec::new(), Vec::new());
    let mut sources = vec!["cpu", "memory", "container", "pods", "value", "share"];
    for _ in 0..dice.between(1, 3) {
        let source = sources.remove(usize::try_from(dice.roll(sources.len() as u64)).expect("an index"));
        let (metric, answer) = metric(dice, source, &names, replicas);
        metrics.push(metric);
        measured.push(answer);
    }
    let least = dice.between(1, 4);
    let most = dice.between(least, 20);
    let mut spec = json!({
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
        "minReplicas": least, "maxReplicas": most, "metrics": metrics,
    });
    if dice.happens(50) {
        spec["behavior"] = json!({ "scaleUp": rules(dice, true), "scaleDown": rules(dice, false) });
    }
    let remembered = |dice: &mut Dice, most: i64| {
        let count = dice.between(1, 4);
        let one = |dice: &mut Dice| json!({ "replicas": dice.between(1, most), "ago": dice.between(0, 60) * 10 + 5 });
        dice.happens(60).then(|| (0..count).map(|_| one(dice)).collect::<Vec<Value>>())
    };
    Situation {
        spec,
        replicas: i32::try_from(replicas).expect("a small number"),
        clusters,
        measured,
        recommendations: remembered(dice, 15),
        ups: remembered(dice, 4),
        downs: remembered(dice, 4),
    }
}

fn pod(dice: &mut Dice, name: &str) -> Value {
    let started = dice.one(&[20, 45, 155, 250, 350, 1000, 5000]);
    let container =
        |name: &str, cpu: &str| json!({ "name": name, "requests": { "cpu": cpu, "memory": "64Mi" } });
    let mut containers = vec![container("c", dice.one(&["100m", "250m", "1"]))];
    if dice.happens(30) {
        containers.push(container("sidecar", "50m"));
    }
    if dice.happens(2) {
        containers.push(json!({ "name": "bare", "requests": {} }));
    }
    let odd = dice.roll(20);
    json!({
        "name": name,
        "phase": match odd { 0 => "Pending", 1 => "Failed", 2 => "Succeeded", _ => "Running" },
        "deleting": odd == 3,
        "ready": match odd { 4 => "", 5 => "Unknown", 6 | 7 | 0 => "False", _ => "True" },
        "readyAgo": dice.between(0, started / 10) * 10 + 2,
        "startedAgo": if odd == 8 { Value::Null } else { json!(started) },
        "containers": containers,
    })
}

fn metric(dice: &mut Dice, source: &str, pods: &[String], replicas: i64) -> (Value, Value) {
    // The metric relative to its target, in percent.
    let level = dice.one(&[0, 10, 45, 80, 92, 100, 108, 115, 150, 210, 400, 1500]);
    let goal = dice.one(&[20, 50, 80, 120]);
    let samples = |dice: &mut Dice, average: i64| {
        let all = pods.iter().filter_map(|name| {
            let value = average * dice.between(80, 120) / 100;
            let sample = json!({ "value": value, "ago": 5, "window": dice.one(&[15, 30]) });
            dice.happens(93).then(|| (name.clone(), sample))
        });
        json!({ "pods": all.collect::<serde_json::Map<String, Value>>() })
    };
    let target = json!({ "type": "AverageValue", "averageValue": format!("{goal}") });
    let object = json!({ "describedObject": { "apiVersion": "v1", "kind": "Service", "name": "web" },
        "metric": { "name": "queue" } });
    let (metric, measured) = match source {
        "cpu" => {
            let target = json!({ "type": "Utilization", "averageUtilization": goal });
            let metric = json!({ "type": "Resource", "resource": { "name": "cpu", "target": target } });
            (metric, samples(dice, 150 * goal * level / 10_000))
        }
        "memory" => {
            let target = json!({ "type": "AverageValue", "averageValue": "64Mi" });
            let metric = json!({ "type": "Resource", "resource": { "name": "memory", "target": target } });
            (metric, samples(dice, 67_108_864 * level * 10))
        }
        "container" => {
            let target = json!({ "type": "Utilization", "averageUtilization": goal });
            let source = json!({ "name": "cpu", "container": "c", "target": target });
            let metric = json!({ "type": "ContainerResource", "containerResource": source });
            (metric, samples(dice, 100 * goal * level / 10_000))
        }
        "pods" => {
            let metric =
                json!({ "type": "Pods", "pods": { "metric": { "name": "hits" }, "target": target } });
            (metric, samples(dice, goal * level * 10))
        }
        "value" => {
            let mut source = object;
            source["target"] = json!({ "type": "Value", "value": format!("{goal}") });
            (json!({ "type": "Object", "object": source }), json!({ "value": goal * level * 10 }))
        }
        _ => {
            let mut source = object;
            (source["target"], source["metric"]["name"]) = (target, json!("share"));
            (json!({ "type": "Object", "object": source }), json!({ "value": goal * level * 10 * replicas }))
        }
    };
    if dice.happens(8) { (metric, json!({ "error": "nobody answers" })) } else { (metric, measured) }
}

fn rules(dice: &mut Dice, up: bool) -> Value {
    let policy = |dice: &mut Dice| {
        let (kind, value) = if dice.happens(50) {
            ("Pods", dice.between(1, 5))
        } else {
            ("Percent", dice.between(1, 10) * 20)
        };
        json!({ "type": kind, "value": value, "periodSeconds": dice.one(&[20, 60, 120, 600]) })
    };
    let policies: Vec<Value> = (0..dice.between(1, 2)).map(|_| policy(dice)).collect();
    let mut rules = json!({
        "selectPolicy": dice.one(&["Max", "Max", "Min", "Disabled"]), "policies": policies,
        "stabilizationWindowSeconds": dice.one(&[0, 60, 120, 300]),
    });
    if !up && dice.happens(30) {
        rules.as_object_mut().expect("an object").remove("stabilizationWindowSeconds");
    }
    rules
}

fn ago(value: &Value) -> Option<Timestamp> {
    value.as_i64().map(|seconds| at(NOW - seconds))
}

/// Returns our view of a situation.
fn view(given: &Situation) -> View {
    let spec: FederatedHPASpec = read(given.spec.clone());
    let number = |value: &Value| i32::try_from(value.as_i64().unwrap_or(0)).expect("a small number");
    let mut target = Target { replicas: given.replicas, selector: "app=web".to_owned(), ..Target::default() };
    target.scalers = vec![("h".to_owned(), "n".to_owned())];
    let mut place = HashMap::new();
    for cluster in &given.clusters {
        target.wanted += number(&cluster["wanted"]);
        target.running += number(&cluster["running"]);
        let name = cluster["name"].as_str().expect("a name");
        for pod in cluster["pods"].as_array().into_iter().flatten() {
            let time = |value: &Value| ago(value).map(|time| time.to_string());
            let containers: Vec<Value> = pod["containers"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|one| json!({ "name": one["name"], "resources": { "requests": one["requests"] } }))
                .collect();
            let conditions = match pod["ready"].as_str() {
                Some("") | None => json!([]),
                Some(ready) => {
                    json!([{ "type": "Ready", "status": ready, "lastTransitionTime": time(&pod["readyAgo"]) }])
                }
            };
            let mut read = Pod::read(&json!({
                "metadata": { "name": pod["name"], "deletionTimestamp": pod["deleting"].as_bool().filter(|it| *it) },
                "spec": { "containers": containers },
                "status": { "phase": pod["phase"], "conditions": conditions, "startTime": time(&pod["startedAgo"]) },
            }));
            place.insert(read.name.clone(), name.to_owned());
            read.name = metrics::name(name, &read.name);
            target.pods.push(read);
        }
    }
    for (metric, measured) in spec.metrics.iter().zip(&given.measured) {
        target.measured.push(match measured["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(match measured["value"].as_i64() {
                Some(value) => Measured::Value(value),
                None => Measured::Pods(samples(&measured["pods"], |name| {
                    // What pods use comes with its cluster, custom metrics come without.
                    if metric.type_ == "Pods" { name.to_owned() } else { metrics::name(&place[name], name) }
                })),
            }),
        });
    }
    let changes = |given: &Option<Vec<Value>>| -> Vec<Change> {
        let one =
            |it: &Value| Change { replicas: number(&it["replicas"]), time: ago(&it["ago"]).expect("a time") };
        given.iter().flatten().map(one).collect()
    };
    let recommendations = match &given.recommendations {
        None => vec![Change { replicas: given.replicas, time: at(NOW) }],
        known => changes(known),
    };
    let history = History::of(recommendations, changes(&given.ups), changes(&given.downs));
    let metadata = kube::core::ObjectMeta {
        name: Some("h".to_owned()),
        namespace: Some("n".to_owned()),
        ..kube::core::ObjectMeta::default()
    };
    let scaler = Arc::new(FederatedHPA { metadata, spec, ..FederatedHPA::default() });
    View { scaler, target: Ok(target), history: Some(history), settings: Settings::default() }
}

fn samples(given: &Value, name: impl Fn(&str) -> String) -> Samples {
    let one = |(pod, sample): (&String, &Value)| {
        let window = SignedDuration::from_secs(sample["window"].as_i64().unwrap_or(0));
        let time = ago(&sample["ago"]).expect("a time");
        (name(pod), Sample { value: sample["value"].as_i64().unwrap_or(0), time, window })
    };
    given.as_object().into_iter().flatten().map(one).collect()
}

/// Returns what we decide, in the words of the oracle.
fn ours(given: &Situation) -> Value {
    let mut plan = decide::decide(&view(given), at(NOW));
    let rescale = plan.rescale.take();
    if rescale.is_some() {
        plan.events.push((events::SUCCESSFUL_RESCALE, String::new()));
    }
    let conditions: Vec<Value> = plan
        .status
        .conditions
        .iter()
        .map(
            |it| json!({ "type": it.type_, "status": it.status, "reason": it.reason, "message": it.message }),
        )
        .collect();
    json!({
        "replicas": rescale.map_or(given.replicas, |(replicas, _)| replicas),
        "desired": plan.status.desired_replicas,
        "metrics": plan.status.current_metrics,
        "conditions": conditions,
        "events": plan.events.iter().map(|(reason, _)| *reason).collect::<Vec<_>>(),
        "error": plan.error.unwrap_or_default(),
    })
}

/// Removes differences without meaning: the order of events, and how an error is wrapped.
fn plain(mut answer: Value) -> Value {
    let mut events: Vec<String> = answer["events"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|it| it.as_str().map(str::to_owned))
        .collect();
    events.sort();
    answer["events"] = json!(events);
    answer["error"] = json!(answer["error"].as_str().is_some_and(|error| !error.is_empty()));
    // We say in which cluster a pod is.
    for condition in answer["conditions"].as_array_mut().into_iter().flatten() {
        let message = condition["message"].as_str().unwrap_or_default();
        let bare = ["m0", "m1", "m2"].iter().fold(message.to_owned(), |text, cluster| {
            text.replace(&format!(" of Pod {cluster}/"), " of Pod ")
        });
        condition["message"] = json!(bare);
    }
    // The original names no object with an average; we do.
    for metric in answer["metrics"].as_array_mut().into_iter().flatten() {
        if let Some(object) = metric.get_mut("object").and_then(Value::as_object_mut) {
            object.remove("describedObject");
        }
    }
    answer
}

/// Returns why an answer may differ.
fn difference(given: &Situation) -> Option<&'static str> {
    let wanted: i64 = given.clusters.iter().filter_map(|cluster| cluster["wanted"].as_i64()).sum();
    let metrics = given.spec["metrics"].as_array().map_or(&[][..], Vec::as_slice);
    let object = |metric: &&Value| metric["type"] == "Object";
    if wanted != i64::from(given.replicas)
        && metrics.iter().filter(object).any(|it| it["object"]["target"]["type"] == "AverageValue")
    {
        return Some("the original divides an object's average by the number of copies twice");
    }
    let running: i64 = given.clusters.iter().filter_map(|cluster| cluster["running"].as_i64()).sum();
    if running == 0 && metrics.iter().any(|metric| metric["type"] == "Object") {
        return Some("the original shows an average over no replicas as the smallest number there is");
    }
    let failed = |index: usize| given.measured[index].get("error").is_some();
    if metrics.iter().enumerate().any(|(index, metric)| metric["type"] == "Object" && failed(index)) {
        return Some("the original mixes up the words of the error about an object");
    }
    None
}

/// Removes the name of the pod that lacks a request, where several pods may lack it.
fn without_the_pod(mut answer: Value) -> Value {
    for condition in answer["conditions"].as_array_mut().into_iter().flatten() {
        let message = condition["message"].as_str().unwrap_or_default();
        if let Some((what, _)) =
            message.split_once(" in container ").filter(|(what, _)| what.contains("missing request"))
        {
            condition["message"] = json!(what);
        }
    }
    answer
}

fn compare<'a>(cases: impl Iterator<Item = (&'a Situation, &'a Value)>) {
    let (mut same, mut known, mut different) = (0, BTreeMap::<&str, usize>::new(), Vec::new());
    for (given, answer) in cases {
        let (ours, theirs) = (plain(ours(given)), plain(answer.clone()));
        match (ours == theirs, difference(given)) {
            (true, _) => same += 1,
            (false, Some(why)) => *known.entry(why).or_default() += 1,
            (false, None) if without_the_pod(ours.clone()) == without_the_pod(theirs.clone()) => {
                let why = "the original looks at pods in no order, and names the first one without a request";
                *known.entry(why).or_default() += 1;
            }
            (false, None) => different.push(format!(
                "situation: {}\n  ours:   {ours}\n  theirs: {theirs}",
                serde_json::to_string(given).expect("a situation")
            )),
        }
    }
    println!("{same} situations are decided alike");
    for (why, count) in &known {
        println!("{count} are decided otherwise on purpose: {why}");
    }
    assert!(same > 0, "nothing was compared");
    assert!(
        different.is_empty(),
        "{} differ:\n{}",
        different.len(),
        different[..different.len().min(5)].join("\n")
    );
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/autoscaling/original.jsonl")
}

#[test]
fn recorded_situations_are_decided_as_the_original_did() {
    let text = std::fs::read_to_string(golden()).expect("the recorded situations");
    let cases: Vec<Recorded> =
        text.lines().map(|line| serde_json::from_str(line).expect("a recorded situation")).collect();
    assert_eq!(cases.len(), RECORDED);
    compare(cases.iter().map(|case| (&case.situation, &case.answer)));
}

#[test]
#[ignore = "needs the original: cargo xtask compare autoscaling"]
fn random_situations_are_decided_as_the_original_does() {
    let oracle = std::env::var("KARMADA_RS_AUTOSCALING_ORACLE").expect("the oracle's path");
    let seed = std::env::var("KARMADA_RS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_260_729);
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let cases: Vec<Situation> = (0..CASES).map(|_| situation(&mut dice)).collect();
    let lines: Vec<String> =
        cases.iter().map(|case| serde_json::to_string(case).expect("a situation")).collect();
    let mut child = Command::new(oracle)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the oracle starts");
    let (mut questions, asked) = (child.stdin.take().expect("its input"), lines.join("\n"));
    let asking = std::thread::spawn(move || questions.write_all(asked.as_bytes()));
    let reader = std::io::BufReader::new(child.stdout.take().expect("its output"));
    let answers: Vec<Value> =
        reader.lines().map(|line| serde_json::from_str(&line.expect("a line")).expect("an answer")).collect();
    asking.join().expect("no panic").expect("all questions are asked");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(answers.len(), cases.len());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let line = |(given, answer): (&Situation, &Value)| {
            format!("{}\n", json!({ "situation": given, "answer": answer }))
        };
        let text: String = cases.iter().zip(&answers).take(RECORDED).map(line).collect();
        std::fs::create_dir_all(golden().parent().expect("a folder")).expect("the folder");
        std::fs::write(golden(), text).expect("the recorded situations");
    }
    compare(cases.iter().zip(&answers));
}
