//! Lines that are cut or go dead, agents that come twice, tunnels that are renewed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use testkit::until_true;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{Error, Limits, News};

use crate::stage::{CLUSTER, Stage, piece, soon};

#[tokio::test]
async fn a_cut_tunnel_ends_what_was_on_it_and_the_next_request_works() {
    let stage = Stage::new(Limits::default()).await;
    let news = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let told = news.clone();
    stage.tunnels.observe(move |cluster, news| told.lock().push((cluster.to_owned(), news)));
    let mut watch = stage.get("/watch").await.unwrap().into_body();
    piece(&mut watch).await.unwrap();
    let mut shell = stage.switch("/switch").await;
    let mut shell = hyper_util::rt::TokioIo::new(hyper::upgrade::on(&mut shell).await.unwrap());
    shell.write_all(b"a").await.unwrap();
    assert_eq!(shell.read_u8().await.unwrap(), b'a');

    stage.lever.cut();
    // A broken stream, not one that seems to have come to its end.
    let broken = async {
        loop {
            if let Err(end) = piece(&mut watch).await {
                break end;
            }
        }
    };
    let end = soon("the end of the watch", broken).await;
    assert_ne!(end, "the end");
    assert!(soon("the end of the shell", shell.read_u8()).await.is_err());
    until_true("a new tunnel", || news.lock().len() == 2).await;
    assert_eq!(*news.lock(), [(CLUSTER.to_owned(), News::Down), (CLUSTER.to_owned(), News::Up)]);
    assert_eq!(stage.get("/echo").await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_line_that_went_dead_is_noticed_by_both_ends() {
    // Both ends are here, and a busy machine must not pass for a dead line.
    let (ping, pong) = (Duration::from_millis(200), testkit::slowed(Duration::from_secs(1)));
    let stage = Stage::new(Limits { ping, pong, ..Limits::default() }).await;
    let mut watch = stage.get("/watch").await.unwrap().into_body();
    piece(&mut watch).await.unwrap();
    stage.lever.freeze(true);
    soon("the end of the watch", async { while piece(&mut watch).await.is_ok() {} }).await;
    until_true("the control plane has noticed", || !stage.tunnels.is_open(CLUSTER)).await;
    let refused = stage.get("/echo").await.unwrap_err();
    assert!(matches!(Error::within(&refused), Some(Error::Absent { .. })), "{refused:?}");
    assert!(stage.tunnels.is_known(CLUSTER), "a moment ago there was one");
    stage.lever.freeze(false);
    // Only an agent that has noticed by itself comes again: the line tells it nothing.
    stage.open().await;
    assert_eq!(stage.get("/echo").await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_newer_tunnel_replaces_the_older_whose_streams_go_on() {
    let stage = Stage::new(Limits::default()).await;
    let mut watch = stage.get("/watch").await.unwrap().into_body();
    piece(&mut watch).await.unwrap();
    stage.agent();
    until_true("the second agent has come", || stage.lever.made.load(Ordering::SeqCst) == 2).await;
    for _ in 0..50 {
        piece(&mut watch).await.unwrap();
        assert_eq!(stage.get("/echo").await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_tunnel_is_renewed_without_a_gap() {
    let stage = Stage::new(Limits { renewal: Duration::from_millis(200), ..Limits::default() }).await;
    let mut watch = stage.get("/watch").await.unwrap().into_body();
    while stage.lever.made.load(Ordering::SeqCst) < 4 {
        piece(&mut watch).await.unwrap();
        assert_eq!(stage.get("/echo").await.unwrap().status(), StatusCode::OK);
    }
    piece(&mut watch).await.unwrap();
}

#[tokio::test]
async fn a_tunnel_that_is_not_renewed_is_left() {
    let limits = Limits { lifetime: Duration::from_millis(200), ..Limits::default() };
    let stage = Stage::new(limits).await;
    until_true("the agent had to come again", || stage.lever.made.load(Ordering::SeqCst) >= 3).await;
    stage.open().await;
}

#[tokio::test]
async fn an_agent_that_may_not_stay_is_cut_off() {
    let stage = Stage::new(Limits { review: Duration::from_millis(50), ..Limits::default() }).await;
    let mut watch = stage.get("/watch").await.unwrap().into_body();
    stage.allowed.store(false, Ordering::SeqCst);
    soon("the end of the watch", async { while piece(&mut watch).await.is_ok() {} }).await;
    until_true("it is gone", || !stage.tunnels.is_open(CLUSTER)).await;
}

#[tokio::test]
async fn an_agent_that_is_stopped_is_gone_at_once() {
    let member = crate::stage::Member::default();
    let stage = Stage::empty(Limits::default(), ([127, 0, 0, 1], 1).into(), member).await;
    let agent = stage.agent();
    stage.open().await;
    agent.cancel();
    until_true("the tunnel is gone", || !stage.tunnels.is_open(CLUSTER)).await;
}
