//! The requests of [`FILES`]: scenes of several steps, each scene in a namespace of its own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::suite::Suite;
use crate::support::Call;

const FILES: [&str; 6] =
    ["requests.yaml", "identity.yaml", "apply.yaml", "strict.yaml", "structures.yaml", "deeper.yaml"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scene {
    /// First part of its cases' names, and the name of its namespace, which steps write as `NS`.
    scene: String,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    case: String,
    /// Method and path. The method `WAIT` asks with GET until both answer with 200.
    send: String,
    /// Sent as JSON.
    body: Option<Value>,
    /// Sent as it stands.
    raw: Option<String>,
    #[serde(rename = "type")]
    content_type: Option<String>,
    accept: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The token to send it with, in place of the administrator's certificate.
    bearer: Option<String>,
    /// Values to take from the answers: name and JSON pointer.
    #[serde(default)]
    keep: BTreeMap<String, String>,
    /// Sent without looking at the answers.
    #[serde(default)]
    unseen: bool,
    /// Sent several times, `N` in path and body counting from 1.
    #[serde(default = "once")]
    times: usize,
}

fn once() -> usize {
    1
}

/// Runs all scenes in order.
pub(crate) async fn run(suite: &mut Suite) {
    for file in FILES {
        let scenes: Vec<Scene> = serde_saphyr::from_str(&crate::testdata(file))
            .unwrap_or_else(|error| panic!("{file} is a list of scenes: {error}"));
        for scene in scenes {
            if suite.wants(&scene.scene) {
                play(suite, &scene).await;
            }
        }
    }
}

async fn play(suite: &mut Suite, scene: &Scene) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": scene.scene}});
    suite.both(&Call::new("POST", "api/v1/namespaces").json(&namespace)).await;
    for step in &scene.steps {
        for number in 1..=step.times {
            let call = call(scene, step, number);
            let case = format!("{} {}", scene.scene, step.case);
            if call.method == "WAIT" {
                let call = Call { method: "GET".to_owned(), ..call };
                suite.until(&call, |answer| answer.code == 200).await;
            } else if step.unseen {
                suite.both(&call).await;
            } else {
                let code = suite.compare_and_keep(&case, &call, &step.keep).await;
                // What only prepares has to succeed, or the two servers agree about nothing.
                if step.case.starts_with("prepare") && code >= 300 {
                    suite.unprepared.push(format!("{case} is refused with {code}"));
                }
            }
        }
    }
}

fn call(scene: &Scene, step: &Step, number: usize) -> Call {
    let (method, path) = step.send.split_once(' ').expect("a step sends METHOD path");
    let fill = |text: &str| {
        let text = text.replace("NS", &scene.scene);
        if step.times > 1 { text.replace('N', &number.to_string()) } else { text }
    };
    let mut call = Call::new(method, fill(path));
    if let Some(body) = &step.body {
        call = call.raw(fill(&body.to_string()));
    }
    if let Some(raw) = &step.raw {
        call = call.raw(fill(raw));
    }
    if let Some(content_type) = &step.content_type {
        call = call.content_type(long_type(content_type));
    }
    if let Some(accept) = &step.accept {
        call = call.accept(long_type(accept));
    }
    call.headers = step.headers.clone().into_iter().collect();
    call.bearer.clone_from(&step.bearer);
    call
}

/// Returns what a short name of a media type stands for.
fn long_type(name: &str) -> &str {
    match name {
        "merge" => "application/merge-patch+json",
        "strategic" => "application/strategic-merge-patch+json",
        "json-patch" => "application/json-patch+json",
        "apply" => "application/apply-patch+yaml",
        "yaml" => "application/yaml",
        "protobuf" => "application/vnd.kubernetes.protobuf",
        "table" => "application/json;as=Table;v=v1;g=meta.k8s.io",
        "metadata" => "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "metadata-list" => "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "aggregated" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        other => other,
    }
}
