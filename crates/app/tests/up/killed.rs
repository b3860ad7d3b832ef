//! `kill -9` of a control plane: what was acknowledged is there afterwards, and the next start waits for what the dead one
//! still holds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testkit::process::{Signal, Speaks};
use testkit::{Process, Server, install_tls};

const WRITERS: usize = 4;
const ROUNDS: u64 = 3;
/// So many acknowledgements in each round, before the end comes.
const WRITES: u64 = 60;

/// What each writer was told last.
type Acknowledged = Arc<Mutex<BTreeMap<String, u64>>>;

/// Counts up in one object until the server is gone.
async fn count(maps: Api<ConfigMap>, name: String, from: u64, acknowledged: Acknowledged) {
    for number in from.. {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"number": number.to_string()}});
        let parameters = PatchParams::apply("test").force();
        if maps.patch(&name, &parameters, &Patch::Apply(&map)).await.is_err() {
            return;
        }
        acknowledged.lock().expect("no writer panics").insert(name.clone(), number);
        // Changes nothing, and is acknowledged all the same.
        if maps.patch(&name, &parameters, &Patch::Apply(&map)).await.is_err() {
            return;
        }
    }
}

fn number(map: &ConfigMap) -> u64 {
    let text = map.data.as_ref().and_then(|data| data.get("number"));
    text.and_then(|text| text.parse().ok()).expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn finding_25_acknowledged_writes_survive_kill_9() {
    install_tls();
    let mut server = Server::start(env!("CARGO_BIN_EXE_karmada"), &["--controllers", ""]);
    let acknowledged = Acknowledged::default();
    for round in 1..=ROUNDS {
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let (name, acknowledged) = (format!("writer-{writer}"), acknowledged.clone());
            let from = acknowledged.lock().expect("no writer panics").get(&name).map_or(1, |last| last + 2);
            let maps = Api::namespaced(server.client().await, "default");
            writers.push(tokio::spawn(count(maps, name, from, acknowledged)));
        }
        let told = || acknowledged.lock().expect("no writer panics").clone();
        testkit::eventually("enough writes, and some of every writer", async || match told() {
            all if all.len() == WRITERS && all.values().sum::<u64>() >= round * WRITES => Ok(()),
            few => Err(format!("{few:?} acknowledged")),
        })
        .await;
        server.process().signal(Signal::KILL);
        for writer in writers {
            writer.await.expect("no writer panics");
        }
        server.restart();
        let maps: Api<ConfigMap> = Api::namespaced(server.client().await, "default");
        let last = acknowledged.lock().expect("no writer panics").clone();
        assert_eq!(last.len(), WRITERS);
        for (name, last) in last {
            let found = number(&maps.get(&name).await.expect("the object is there"));
            // What was under way when the end came may be there as well: the next number or, if the end came before the first
            // acknowledgement of this round, the number that the round began with.
            assert!(
                (last..=last + 2).contains(&found),
                "round {round}, {name}: {found}, acknowledged {last}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_beside_a_dying_predecessor_waits_for_its_port_and_its_lock() {
    install_tls();
    let server = Server::start(env!("CARGO_BIN_EXE_karmada"), &["--controllers", ""]);
    let data = server.data().display().to_string();
    let start = |bind: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_karmada"));
        command.args(["server", "--controllers", "", "--bind", bind, "--data-dir", &data]);
        Process::spawn(command, Speaks::Stderr)
    };
    // On the same port it waits for that first.
    let mut second = start(&server.address().expect("it runs"));
    second.says("waiting for another program to let go of the port");
    server.process().signal(Signal::KILL);
    second.says("ready");
    // On another one only the lock is in the way. It says nothing about that: give it time to get there.
    let mut third = start("127.0.0.1:0");
    std::thread::sleep(Duration::from_millis(1000));
    assert!(!third.has_said("ready"), "two servers work on the same data");
    second.signal(Signal::KILL);
    third.says("ready");
    third.end(Signal::TERM);
}
