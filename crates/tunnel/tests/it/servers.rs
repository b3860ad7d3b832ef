//! Several servers behind one address, and the agent that has a tunnel to each of them.

use std::sync::atomic::Ordering;

use http::StatusCode;
use testkit::until_true;
use tunnel::{Limits, Tunnels};

use crate::stage::{CLUSTER, Member, Stage, jane, piece, soon};

/// Has all servers know of each other.
fn introduce(servers: &[(&str, &Tunnels)]) {
    for (own, tunnels) in servers {
        tunnels.know_servers(own, servers.iter().map(|(name, _)| (*name).to_owned()));
    }
}

#[tokio::test]
async fn an_agent_has_a_tunnel_to_each_server_behind_one_address() {
    let member = Member::default();
    let address = member.clone().serve().await;
    let stage = Stage::empty(Limits::default(), address, member).await;
    let a = stage.tunnels.clone();
    let (b, c) = (Tunnels::default(), Tunnels::default());
    *stage.servers.lock() = vec![a.clone(), b.clone()];
    introduce(&[("a", &a), ("b", &b)]);
    let agent = stage.agent();
    until_true("both are met", || a.is_open(CLUSTER) && b.is_open(CLUSTER)).await;
    let mut watch = a.through(CLUSTER).client().send(jane("/watch")).await.unwrap().into_body();
    piece(&mut watch).await.unwrap();

    // A third one comes: agents hear of it from the others, and come to it.
    *stage.servers.lock() = vec![a.clone(), b.clone(), c.clone()];
    introduce(&[("a", &a), ("b", &b), ("c", &c)]);
    until_true("it is met", || c.is_open(CLUSTER)).await;
    for tunnels in [&a, &b, &c] {
        let answer = soon("an answer", tunnels.through(CLUSTER).client().send(jane("/echo"))).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
    }
    piece(&mut watch).await.unwrap();

    // All are cut, and one of them has gone for good: the others are met again.
    *stage.servers.lock() = vec![a.clone(), b.clone()];
    stage.lever.cut();
    until_true("it is gone", || !c.is_open(CLUSTER)).await;
    until_true("the others are met", || a.is_open(CLUSTER) && b.is_open(CLUSTER)).await;
    // Once nobody speaks of it any more, nobody is asked.
    introduce(&[("a", &a), ("b", &b)]);
    for tunnels in [&a, &b] {
        let answer = soon("an answer", tunnels.through(CLUSTER).client().send(jane("/echo"))).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
    }
    agent.cancel();
    until_true("all are gone", || !a.is_open(CLUSTER) && !b.is_open(CLUSTER)).await;
}

#[tokio::test]
async fn a_server_takes_no_second_tunnel_from_an_agent_that_looks_for_another() {
    let member = Member::default();
    let address = member.clone().serve().await;
    let stage = Stage::empty(Limits::default(), address, member).await;
    // It speaks of one that nobody ever meets.
    stage.tunnels.know_servers("a", ["b".to_owned()]);
    stage.agent();
    stage.open().await;
    let news = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let told = news.clone();
    stage.tunnels.observe(move |_, news| told.lock().push(news));
    let mut watch = stage.get("/watch").await.unwrap().into_body();
    while stage.lever.made.load(Ordering::SeqCst) < 4 {
        piece(&mut watch).await.unwrap();
        assert_eq!(stage.get("/echo").await.unwrap().status(), StatusCode::OK);
    }
    assert!(news.lock().is_empty(), "the tunnel stays as it is");
}
