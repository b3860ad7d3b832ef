//! Members and agents that answer garbage, too much, or never.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use http::StatusCode;
use hyper_util::rt::TokioIo;
use testkit::until_true;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;
use tunnel::{Error, Limits, Tunnels};

use crate::stage::{CLUSTER, Member, Stage, jane, raw_member, soon, text};

#[tokio::test]
async fn a_member_that_answers_garbage_costs_one_answer() {
    let huge_head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(2 << 20)).into_bytes();
    let endless_head = b"HTTP/1.1 200 OK\r\n".iter().copied().chain(b"x: y\r\n".repeat(100_000)).collect();
    for (what, says) in [
        ("noise", vec![0xff; 10_000]),
        ("nothing", Vec::new()),
        ("a huge header", huge_head),
        ("too many headers", endless_head),
        ("a switch that nobody asked for", b"HTTP/1.1 101 Switching Protocols\r\n\r\n".to_vec()),
    ] {
        let address = raw_member(says).await;
        let stage = Stage::with(Limits::default(), address, Member::default()).await;
        for _ in 0..3 {
            let response = stage.get("/api/v1/pods").await.unwrap();
            assert_eq!(response.status(), StatusCode::BAD_GATEWAY, "{what}");
            let status: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
            assert_eq!(status["code"], 502, "{what}: {status}");
        }
        assert!(stage.tunnels.is_open(CLUSTER), "{what}");
        assert_eq!(stage.lever.made.load(Ordering::SeqCst), 1, "{what}: the tunnel held");
    }
}

#[tokio::test]
async fn headers_that_are_too_large_for_the_tunnel_do_not_break_it() {
    let stage = Stage::new(Limits::default()).await;
    let response = stage.get("/large-headers").await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    assert!(text(response).await.contains("are too large for the tunnel"));
    assert_eq!(stage.get("/echo").await.unwrap().status(), StatusCode::OK);
    assert_eq!(stage.lever.made.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_member_that_never_answers_is_given_up() {
    let stage = Stage::new(Limits { answer: Duration::from_millis(100), ..Limits::default() }).await;
    let response = stage.get("/never").await.unwrap();
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    until_true("the member knows", || stage.member.given_up.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn a_thousand_stalled_streams_leave_the_tunnel_alive() {
    let stage = Stage::new(Limits::default()).await;
    let mut asking = futures::stream::FuturesUnordered::new();
    for _ in 0..1000 {
        let client = stage.client();
        asking.push(async move { client.send(jane("/never")).await.map(|_| ()) });
    }
    let mut refused = 0;
    while refused < 1000 - 256 {
        let answer = soon("those beyond the limit are told so", asking.next()).await.unwrap();
        assert!(matches!(Error::within(&answer.unwrap_err()), Some(Error::Busy { limit: 256, .. })));
        refused += 1;
    }
    until_true("the others reach the member", || stage.member.waiting.load(Ordering::SeqCst) == 256).await;
    assert_eq!(stage.lever.made.load(Ordering::SeqCst), 1);
    drop(asking);
    until_true("the member knows", || stage.member.waiting.load(Ordering::SeqCst) == 0).await;
    assert_eq!(stage.get("/echo").await.unwrap().status(), StatusCode::OK);
}

/// Opens a tunnel whose other end is played by the test.
async fn opened_by<F>(agent: impl FnOnce(tokio::io::DuplexStream) -> F) -> Result<(), Error>
where
    F: Future<Output = ()> + Send + 'static,
{
    let tunnels = Tunnels::new(Limits { opening: Duration::from_millis(500), ..Limits::default() });
    let (near, far) = tokio::io::duplex(64 * 1024);
    tokio::spawn(agent(far));
    let stop = CancellationToken::new();
    let ended = soon("an end", tunnels.serve("m1", TokioIo::new(near), || true, &stop)).await;
    assert!(!tunnels.is_open("m1"));
    ended
}

#[tokio::test]
async fn an_agent_that_does_not_speak_the_protocol_gets_no_tunnel() {
    let silent = opened_by(|stream| async move {
        let _open = stream;
        std::future::pending().await
    });
    let gone = opened_by(|stream| async move { drop(stream) });
    let noisy = opened_by(|mut stream| async move {
        let _ = stream.write_all(&[0xff; 100_000]).await;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    for (what, ended) in [("silent", silent.await), ("gone", gone.await), ("noisy", noisy.await)] {
        assert!(matches!(ended, Err(Error::Handshake { .. })), "{what}: {ended:?}");
    }
}
