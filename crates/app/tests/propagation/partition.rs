//! An agent that is cut off from its control plane by a link that swallows everything, while what is wanted changes all the time;
//! then back. Nothing that is wanted is deleted, the member ends up as wanted, and what the return costs is counted.
//!
//! ```text
//!  network of the control plane
//!  karmada server 10.199.8.2 ◄── the link that is cut ── 10.199.8.1 karmada agent ──► 127.0.0.1 the member
//!                 10.199.8.6 ◄── another link ───────── 10.199.8.5 the test
//! ```
//!
//! The short form, half a minute, is part of CI where there is root. The long one takes ten minutes; by hand:
//! `cargo test -p app --test propagation -- --ignored --nocapture partition`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use testkit::check::{CONTROLLERS, Site, audit_policy_with_reads};
use testkit::{Kind, client, eventually, install_tls, object};

use crate::members::{Access, Members};
use crate::network::{Link, Network};
use crate::plane::KARMADA;
use crate::pull::{AGENT, HASTY, Newcomer, Plane, account, asked_by_agent, keeps_laws};

/// The links have numbers of their own for each form: both may run at once.
struct Form {
    agents: Link,
    ours: Link,
    cut: Duration,
    /// How often something changes meanwhile.
    pause: Duration,
    /// Whether the server's history reaches back to the cut.
    remembers: bool,
}

/// As many ConfigMaps exist from the beginning; the first quarter stays as it is.
const MAPS: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn a_short_cut_costs_no_list_and_deletes_nothing_that_is_wanted() {
    partition(&Form {
        agents: Link::new(0, "agents"),
        ours: Link::new(1, "ours"),
        cut: Duration::from_secs(6),
        pause: Duration::from_millis(100),
        remembers: true,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes eleven minutes"]
async fn ten_minutes_cut_off_under_churn_delete_nothing_that_is_wanted() {
    let seconds = std::env::var("KARMADA_TEST_CUT").ok().and_then(|text| text.parse().ok());
    partition(&Form {
        agents: Link::new(2, "agents"),
        ours: Link::new(3, "ours"),
        cut: Duration::from_secs(seconds.unwrap_or(600)),
        pause: Duration::from_millis(500),
        // Older history than five minutes is compacted.
        remembers: false,
    })
    .await;
}

/// What there is, by name: its data and its UID.
type State = BTreeMap<String, (String, String)>;

async fn state(maps: &Api<DynamicObject>) -> State {
    let found = maps.list(&ListParams::default().labels("churn=yes")).await.expect("a list");
    let entry = |map: DynamicObject| {
        let value = map.data["data"]["a"].as_str().unwrap_or_default().to_owned();
        (map.metadata.name.unwrap_or_default(), (value, map.metadata.uid.unwrap_or_default()))
    };
    found.items.into_iter().map(entry).collect()
}

fn values(state: &State) -> BTreeMap<&String, &String> {
    state.iter().map(|(name, (value, _))| (name, value)).collect()
}

async fn create(maps: &Api<DynamicObject>, name: &str) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"churn": "yes"}}, "data": {"a": "0"}});
    maps.create(&PostParams::default(), &object(map)).await.expect("created");
}

/// Changes, makes and deletes ConfigMaps, but for the first quarter; returns how many changes that were.
async fn churn(maps: &Api<DynamicObject>, time: Duration, pause: Duration) -> usize {
    let (began, mut step) = (Instant::now(), 0);
    while began.elapsed() < time {
        let number = MAPS / 4 + step % (MAPS * 3 / 4);
        let name = format!("map-{number:02}");
        match step % 7 {
            3 => {
                maps.delete(&name, &DeleteParams::default()).await.map(drop).unwrap_or_default();
            }
            _ if maps.get_opt(&name).await.expect("an answer").is_none() => create(maps, &name).await,
            _ => {
                let patch = Patch::Merge(json!({"data": {"a": step.to_string()}}));
                maps.patch(&name, &PatchParams::default(), &patch).await.expect("changed");
            }
        }
        step += 1;
        tokio::time::sleep(pause).await;
    }
    step
}

async fn partition(form: &Form) {
    install_tls();
    if let Some(needs) = clusters::pods_missing() {
        return clusters::left_out(&format!("a network of its own, which needs {needs}"));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let members = Members::simulated(Access::Exclusive, 1).await.expect("a member");
    let place = &members.places()[0];
    let (policy, log) = (folder.path().join("policy.json"), folder.path().join("audit.log"));
    std::fs::write(&policy, audit_policy_with_reads(&json!({"users": [AGENT]}))).expect("a policy");
    let network = Network::new(&[form.agents.clone(), form.ours.clone()]);
    let data = folder.path().join("data");
    let (policy, written, kept) = (policy.to_string_lossy(), log.to_string_lossy(), data.to_string_lossy());
    let (told, named) = (
        format!("--advertise-address={}", form.ours.inside),
        format!("--cert-extra-sans={}", form.agents.inside),
    );
    let flags = ["server", "--bind=0.0.0.0:5443", &told, &named, "--data-dir", &kept];
    let audit = ["--audit-policy-file", &policy, "--audit-log-path", &written, "--audit-log-maxsize", "0"];
    let mut server = network.start(KARMADA, &[&flags[..], &audit, &HASTY].concat());
    server.says("ready");
    let control = data.join("karmada.kubeconfig");
    let token = crate::pull::token_of(&control);
    let newcomer = Newcomer {
        address: format!("{}:5443", form.agents.inside),
        name: "m1".to_owned(),
        member: account(&place.kubeconfig, "m1", folder.path()),
        kubeconfig: folder.path().join("m1.kubeconfig"),
    };
    let mut agent = newcomer.register(&token);
    let plane = Plane { client: client(&control).await };
    plane.until_ready("m1", "True", "a registered cluster is ready").await;
    let kind = Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
    let selector =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": {"matchLabels": {"churn": "yes"}}});
    plane
        .create(
            &kind,
            json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": "all"}, "spec": {"resourceSelectors": [selector], "placement": {}}}),
        )
        .await;
    let maps = Kind::namespaced("", "v1", "ConfigMap", "configmaps");
    let (here, there) =
        (maps.api(plane.client.clone(), "default"), maps.api(client(&place.kubeconfig).await, "default"));
    for number in 0..MAPS {
        create(&here, &format!("map-{number:02}")).await;
    }
    same(&here, &there, "everything arrives").await;
    let before = state(&there).await;

    network.cut(&form.agents);
    let churned = churn(&here, form.cut, form.pause).await;
    plane.until_ready("m1", "Unknown", "the silence is noticed").await;
    assert_eq!(state(&there).await, before, "a member that is cut off keeps what it has");
    let seen = asked_by_agent(&log).len();

    let began = Instant::now();
    network.mend(&form.agents);
    same(&here, &there, "the member catches up").await;
    let caught_up = began.elapsed();
    plane.until_ready("m1", "True", "it is back").await;
    let after = asked_by_agent(&log).split_off(seen);
    let now = state(&there).await;
    for number in 0..MAPS / 4 {
        let name = format!("map-{number:02}");
        assert_eq!(now.get(&name), before.get(&name), "what was wanted all the time is the same object");
    }
    let count = |verb: &str| after.iter().filter(|entry| entry["verb"] == verb).count();
    let lists = count("list");
    println!(
        "cut off for {} s, {churned} changes; as wanted {:.1} s after the return; {} requests: {lists} lists, {} watches, \
         {} gets, {} writes",
        form.cut.as_secs(),
        caught_up.as_secs_f32(),
        after.len(),
        count("watch"),
        count("get"),
        count("create") + count("update") + count("patch") + count("delete"),
    );
    let most = if form.remembers { 0 } else { 4 };
    assert!(lists <= most, "{lists} lists, and at most {most} are needed");
    assert!(!agent.has_said("panicked") && !server.has_said("panicked"));
    keeps_laws(Site::plane(plane.client.clone(), CONTROLLERS, vec![log]), "m1", place).await;
}

/// Waits until the member has what the control plane has.
async fn same(here: &Api<DynamicObject>, there: &Api<DynamicObject>, what: &str) {
    eventually(what, async || {
        let (wanted, found) = (state(here).await, state(there).await);
        if values(&wanted) == values(&found) { Ok(()) } else { Err(format!("{wanted:?} and {found:?}")) }
    })
    .await;
}
