//! Another server behind both API servers: its registration, its place in discovery, and requests through it.

use serde_json::{Value, json};

use crate::suite::Suite;
use crate::support::backend::{self, GROUP};
use crate::support::{Answer, Call};

const SERVICES: &str = "apis/apiregistration.k8s.io/v1/apiservices";

fn available(answer: &Answer, wanted: &str) -> bool {
    let conditions = answer.json()["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Available" && condition["status"] == wanted)
}

pub(crate) async fn run(suite: &mut Suite) {
    if !suite.wants("aggregation") {
        return;
    }
    let (service, registration) = backend::registration(backend::start().await);
    let mut cases = Cases { suite };
    let one = format!("{SERVICES}/v1.{GROUP}");
    cases.get("local native", &format!("{SERVICES}/v1.apps")).await;
    cases.get("local core", &format!("{SERVICES}/v1.")).await;
    cases.get("local autoscaling", &format!("{SERVICES}/v2.autoscaling")).await;
    let mut bad = registration.clone();
    bad["metadata"]["name"] = json!("other");
    cases.send("misnamed", Call::new("POST", SERVICES).json(&bad)).await;
    cases.send("register", Call::new("POST", SERVICES).json(&registration)).await;
    cases.suite.until(&Call::new("GET", &one), |answer| available(answer, "False")).await;
    cases.get("without a service", &one).await;
    // Not asked for while it is away: the client of these tests would try again and again after a 503.
    cases.suite.both(&Call::new("POST", "api/v1/namespaces/default/services").json(&service)).await;
    cases.suite.until(&Call::new("GET", &one), |answer| available(answer, "True")).await;
    cases.get("available", &one).await;
    cases.suite.until(&Call::new("GET", format!("apis/{GROUP}/v1")), |answer| answer.code == 200).await;
    cases.get("version", &format!("apis/{GROUP}/v1")).await;
    cases.get("group", &format!("apis/{GROUP}")).await;
    cases.get("groups", "apis").await;
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let call = Call::new("GET", "apis").accept(aggregated);
    let listed = |answer: &Answer| answer.text().contains("\"resource\":\"things\"");
    cases.suite.until(&call, listed).await;
    let (theirs, ours) = cases.suite.both(&call).await;
    assert_eq!(entry(&theirs), entry(&ours), "the group in aggregated discovery");
    cases.get("read", &format!("apis/{GROUP}/v1/things/a?x=1&y=a%2Fb")).await;
    cases.get("stream", &format!("apis/{GROUP}/v1/things/stream")).await;
    cases.get("refusal", &format!("apis/{GROUP}/v1/things/teapot")).await;
    let object = json!({"kind": "Thing", "spec": {"a": [1, 2, 3]}});
    cases.send("write", Call::new("POST", format!("apis/{GROUP}/v1/things")).json(&object)).await;
    let mut call = Call::new("GET", format!("apis/{GROUP}/v1/things/b"));
    call.headers = vec![
        ("x-remote-user".to_owned(), "mallory".to_owned()),
        ("x-remote-extra-team".to_owned(), "red".to_owned()),
    ];
    cases.send("forged headers", call).await;
    let mut call = Call::new("DELETE", format!("apis/{GROUP}/v1/things/b"));
    call.headers = vec![("impersonate-user".to_owned(), "jane".to_owned())];
    cases.send("not allowed", call).await;
    cases.send("unregister", Call::new("DELETE", &one)).await;
    cases.suite.until(&Call::new("GET", format!("apis/{GROUP}/v1")), |answer| answer.code == 404).await;
    cases.get("gone", &format!("apis/{GROUP}/v1/things")).await;
    cases.suite.both(&Call::new("DELETE", "api/v1/namespaces/default/services/things")).await;
}

fn entry(answer: &Answer) -> Option<Value> {
    let document = answer.json();
    document["items"].as_array()?.iter().find(|item| item["metadata"]["name"] == GROUP).cloned()
}

struct Cases<'a> {
    suite: &'a mut Suite,
}

impl Cases<'_> {
    async fn get(&mut self, case: &str, path: &str) {
        self.send(case, Call::new("GET", path)).await;
    }

    async fn send(&mut self, case: &str, call: Call) {
        self.suite.compare(&format!("aggregation {case}"), &call).await;
    }
}
