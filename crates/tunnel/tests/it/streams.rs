//! Requests through a tunnel: in whose name, with which bodies, side by side, with other protocols.

use std::sync::atomic::Ordering;

use http::StatusCode;
use http::header::{CONNECTION, UPGRADE};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use testkit::until_true;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{Error, Limits};

use crate::stage::{CLUSTER, Stage, jane, piece, soon, text};

#[tokio::test]
async fn a_request_reaches_the_member_in_the_callers_name() {
    let stage = Stage::new(Limits::default()).await;
    let mut request = jane("/echo?a=b");
    *request.method_mut() = http::Method::POST;
    *request.body_mut() = Body::from(b"what is asked".to_vec());
    request.headers_mut().insert("authorization", "Bearer stolen".parse().unwrap());
    request.headers_mut().insert("accept", "application/json".parse().unwrap());
    let response = soon("an answer", stage.client().send(request)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let seen = text(response).await;
    assert!(seen.starts_with("POST /echo?a=b\n") && seen.ends_with("what is asked"), "{seen}");
    for line in ["impersonate-user: jane\n", "impersonate-group: dev\n", "accept: application/json\n"] {
        assert!(seen.contains(line), "{line:?} is not in {seen}");
    }
    assert!(!seen.contains("stolen") && !seen.contains("karmada-tunnel"), "{seen}");
    assert_eq!(stage.get("/elsewhere").await.unwrap().status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn nothing_is_asked_without_a_name() {
    let stage = Stage::new(Limits::default()).await;
    for user in [None, Some(""), Some("impersonator")] {
        let mut request = jane("/echo");
        request.headers_mut().remove("impersonate-user");
        if let Some(user) = user {
            request.headers_mut().insert("impersonate-user", user.parse().unwrap());
        }
        let response = soon("an answer", stage.client().send(request)).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{user:?}");
        let status: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!((&status["kind"], &status["code"]), (&"Status".into(), &400.into()), "{status}");
    }
}

#[tokio::test]
async fn protocols_are_switched_through_the_tunnel() {
    let stage = Stage::new(Limits::default()).await;
    let mut response = stage.switch("/switch").await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()[UPGRADE], "SPDY/3.1");
    assert_eq!(response.headers()[CONNECTION], "Upgrade");
    assert_eq!(response.headers()["sec-websocket-protocol"], "v5.channel.k8s.io");
    let stream = soon("the other protocol", hyper::upgrade::on(&mut response)).await.unwrap();
    let (mut from, mut to) = tokio::io::split(TokioIo::new(stream));
    // More than any window, so that both directions have to flow at once.
    let said = vec![b'z'; 1024 * 1024];
    let expected = said.clone();
    let sending = tokio::spawn(async move {
        to.write_all(&said).await.unwrap();
        to.shutdown().await.unwrap();
        to
    });
    let mut heard = Vec::new();
    soon("the echo, and its end", from.read_to_end(&mut heard)).await.unwrap();
    assert!(heard == expected, "{} bytes came back", heard.len());
    sending.await.unwrap();
}

#[tokio::test]
async fn a_member_that_does_not_switch_is_heard_as_it_is() {
    let stage = Stage::new(Limits::default()).await;
    for (path, status, says) in
        [("/refuses", 403, "{\"kind\":\"Status\",\"code\":403}"), ("/ignores", 200, "not switched")]
    {
        let response = stage.switch(path).await;
        assert_eq!(response.status().as_u16(), status, "{path}");
        assert!(!response.headers().keys().any(|name| name.as_str().starts_with("karmada-tunnel")), "{path}");
        assert_eq!(text(response).await, says, "{path}");
    }
}

#[tokio::test]
async fn streams_that_nobody_reads_hold_up_nobody() {
    let limits = Limits { streams: 32, window: 64 * 1024, ..Limits::default() };
    let stage = Stage::new(limits).await;
    let mut bodies = Vec::new();
    for _ in 0..31 {
        let mut body = stage.get("/flood").await.unwrap().into_body();
        piece(&mut body).await.unwrap();
        bodies.push(body);
    }
    // All of them have filled their windows by the time that these are through.
    for _ in 0..50 {
        assert_eq!(stage.get("/echo").await.unwrap().status(), StatusCode::OK);
    }
    let mut watch = stage.get("/watch").await.unwrap().into_body();
    for _ in 0..50 {
        piece(&mut watch).await.unwrap();
    }
    // What was not read is not lost.
    for body in &mut bodies {
        for _ in 0..3 {
            assert!(!piece(body).await.unwrap().is_empty());
        }
    }
}

#[tokio::test]
async fn beyond_the_limit_a_request_is_told_so_and_a_place_comes_back() {
    let stage = Stage::new(Limits { streams: 3, ..Limits::default() }).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(stage.get("/watch").await.unwrap());
    }
    let refused = stage.get("/echo").await.unwrap_err();
    assert!(matches!(Error::within(&refused), Some(Error::Busy { limit: 3, .. })), "{refused:?}");
    open.pop();
    assert_eq!(stage.get("/echo").await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn connections_that_were_switched_count_until_they_end() {
    let stage = Stage::new(Limits { streams: 3, ..Limits::default() }).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut response = stage.switch("/switch").await;
        open.push(hyper::upgrade::on(&mut response).await.unwrap());
    }
    let refused = stage.get("/echo").await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let refused = stage.switch("/switch").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(text(refused).await.contains("3 requests are on their way through the tunnel already"));
    open.clear();
    let mut status = StatusCode::TOO_MANY_REQUESTS;
    while status == StatusCode::TOO_MANY_REQUESTS {
        status = stage.get("/echo").await.unwrap().status();
    }
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_request_that_is_given_up_ends_in_the_member() {
    let stage = Stage::new(Limits::default()).await;
    let client = stage.client();
    let asking = tokio::spawn(async move { client.send(jane("/never")).await.map(|_| ()) });
    until_true("the member has it", || stage.member.waiting.load(Ordering::SeqCst) == 1).await;
    asking.abort();
    until_true("the member knows", || stage.member.given_up.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn several_tunnels_do_not_know_each_other() {
    let stage = Stage::new(Limits::default()).await;
    let other = stage.tunnels.through("m2").client();
    let refused = soon("an answer", other.send(jane("/echo"))).await.unwrap_err();
    assert!(matches!(Error::within(&refused), Some(Error::Absent { .. })), "{refused:?}");
    assert!(refused.to_string().contains("the agent of cluster m2 has no tunnel"), "{refused}");
    assert!(stage.tunnels.is_known(CLUSTER) && !stage.tunnels.is_known("m2"));
}
