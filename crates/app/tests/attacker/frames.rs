//! HTTP/2 frame by frame: the floods of 2019, 2023 and 2024, and windows that stay closed.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::stage::{Stage, Verdict};
use crate::wire::{Door, Stream};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// How long an attacker pushes at most.
const PUSH: Duration = Duration::from_secs(3);

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// One field, literally and without a table.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        let mut length = text.len();
        if length < 127 {
            bytes.push(length as u8);
        } else {
            bytes.push(127);
            length -= 127;
            while length >= 128 {
                bytes.push((length % 128) as u8 | 128);
                length /= 128;
            }
            bytes.push(length as u8);
        }
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

fn fields(who: &str, method: &str, path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in
        [(":method", method), (":scheme", "https"), (":authority", "127.0.0.1"), (":path", path)]
    {
        block.extend(field(name, value));
    }
    if !who.is_empty() {
        block.extend(field("authorization", &format!("Bearer {who}")));
    }
    block
}

pub(crate) fn ask(stream: u32, who: &str, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(who, "GET", path))
}

/// The same for an answer that is put together in memory first.
fn ask_for_protobuf(stream: u32, who: &str, path: &str) -> Vec<u8> {
    let mut block = fields(who, "GET", path);
    block.extend(field("accept", "application/vnd.kubernetes.protobuf"));
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
}

/// Opens a connection with these settings (pairs of id and value).
pub(crate) async fn open(door: &Door, settings: &[(u16, u32)]) -> std::io::Result<Stream> {
    let mut stream = door.tls("h2").await?;
    let mut payload = Vec::new();
    for (id, value) in settings {
        payload.extend_from_slice(&id.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    stream.write_all(PREFACE).await?;
    stream.write_all(&frame(SETTINGS, 0, 0, &payload)).await?;
    stream.flush().await?;
    Ok(stream)
}

/// Writes pieces as long as the server takes them, reading what comes back; returns how many it took.
async fn push(stream: Stream, pieces: usize, piece: impl Fn(u32) -> Vec<u8>) -> usize {
    let (mut from, mut to) = tokio::io::split(stream);
    let draining = tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while matches!(from.read(&mut buffer).await, Ok(read) if read > 0) {}
    });
    let mut taken = 0;
    let writing = async {
        for number in 0..pieces {
            if to.write_all(&piece(number as u32)).await.is_err() {
                return;
            }
            taken += 1;
        }
        let _ = to.flush().await;
    };
    let _ = tokio::time::timeout(PUSH, writing).await;
    draining.abort();
    taken
}

/// A flood on one connection. Whether it is taken or cut off does not matter: the bystander judges.
async fn flood(stage: &Stage, pieces: usize, piece: impl Fn(u32) -> Vec<u8>) -> Verdict {
    let stream = open(&stage.plane.door, &[]).await.map_err(|error| error.to_string())?;
    let taken = push(stream, pieces, piece).await;
    Ok(format!("{taken} of {pieces} pieces taken"))
}

pub(crate) async fn pings(stage: &Stage) -> Verdict {
    flood(stage, 2_000, |_| frame(PING, 0, 0, &[0; 8]).repeat(50)).await
}

pub(crate) async fn settings(stage: &Stage) -> Verdict {
    flood(stage, 2_000, |n| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, (n % 200) as u8, 1]).repeat(20)).await
}

/// Each request is reset before it is answered.
pub(crate) async fn rapid_reset(stage: &Stage) -> Verdict {
    flood(stage, 20_000, |n| {
        let stream = n * 2 + 1;
        let mut bytes = ask(stream, "nobody", "/api/v1/namespaces/other/secrets");
        bytes.extend(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
        bytes
    })
    .await
}

/// Each stream is wrong, so that the server resets it.
pub(crate) async fn resets_provoked(stage: &Stage) -> Verdict {
    flood(stage, 10_000, |n| {
        let stream = n * 2 + 1;
        let mut bytes = ask(stream, "", "/version");
        bytes.extend(frame(WINDOW_UPDATE, 0, stream, &0u32.to_be_bytes()));
        bytes
    })
    .await
}

/// Hundred streams at a time, each opened anew as soon as it is reset, by a connection each.
pub(crate) async fn rapid_reset_on_many_connections(stage: &Stage) -> Verdict {
    let tasks = (0..10).map(|_| {
        flood(stage, 3_000, |n| {
            let stream = n * 2 + 1;
            let mut bytes = ask(stream, "nobody", "/openapi/v2");
            bytes.extend(frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
            bytes
        })
    });
    let seen = futures::future::join_all(tasks).await;
    Ok(format!("{} connections", seen.iter().filter(|verdict| verdict.is_ok()).count()))
}

pub(crate) async fn empty_headers(stage: &Stage) -> Verdict {
    let stream = open(&stage.plane.door, &[]).await.map_err(|error| error.to_string())?;
    let taken = push(stream, 2_000, |n| {
        let mut block = fields("", "GET", "/version");
        for _ in 0..100 {
            block.extend(field("", ""));
        }
        frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &block)
    })
    .await;
    Ok(format!("{taken} taken"))
}

/// A body of empty frames that never ends.
pub(crate) async fn empty_data(stage: &Stage) -> Verdict {
    let path = "/api/v1/namespaces/tenant/configmaps";
    let stream = open(&stage.plane.door, &[]).await.map_err(|error| error.to_string())?;
    let taken = push(stream, 3_000, |n| match n {
        0 => frame(HEADERS, END_HEADERS, 1, &fields("editor", "POST", path)),
        _ => frame(DATA, 0, 1, &[]).repeat(50),
    })
    .await;
    Ok(format!("{taken} taken"))
}

/// A head that goes on and on.
pub(crate) async fn continuation(stage: &Stage) -> Verdict {
    let filler = field("x-filler", &"x".repeat(15_000));
    let stream = open(&stage.plane.door, &[]).await.map_err(|error| error.to_string())?;
    let taken = push(stream, 20_000, |n| match n {
        0 => frame(HEADERS, 0, 1, &fields("", "GET", "/version")),
        _ => frame(CONTINUATION, 0, 1, &filler),
    })
    .await;
    if taken < 20_000 {
        Ok(format!("cut off after {} MiB", taken * 15 / 1024))
    } else {
        Err("300 MiB of head are taken".to_owned())
    }
}

/// Continuations without content: nothing to count by size.
pub(crate) async fn empty_continuation(stage: &Stage) -> Verdict {
    let stream = open(&stage.plane.door, &[]).await.map_err(|error| error.to_string())?;
    let taken = push(stream, 5_000, |n| match n {
        0 => frame(HEADERS, 0, 1, &fields("", "GET", "/version")),
        _ => frame(CONTINUATION, 0, 1, &[]).repeat(50),
    })
    .await;
    Ok(format!("{taken} taken"))
}

/// The tree of priorities is shuffled all the time.
pub(crate) async fn priorities(stage: &Stage) -> Verdict {
    flood(stage, 3_000, |n| {
        let mut bytes = Vec::new();
        for inner in 0..50u32 {
            let mut payload = ((n * 7 + inner * 13) % 1000 * 2 + 1).to_be_bytes().to_vec();
            payload.push(16);
            bytes.extend(frame(PRIORITY, 0, (n * 50 + inner) % 500 * 2 + 3001, &payload));
        }
        bytes
    })
    .await
}

/// The window opens by one byte at a time.
pub(crate) async fn dribble(stage: &Stage) -> Verdict {
    let mut stream = open(&stage.plane.door, &[(4, 0)]).await.map_err(|error| error.to_string())?;
    for number in 0..50 {
        let _ = stream.write_all(&ask(number * 2 + 1, "nobody", "/openapi/v2")).await;
    }
    let taken = push(stream, 5_000, |n| frame(WINDOW_UPDATE, 0, n % 50 * 2 + 1, &1u32.to_be_bytes())).await;
    Ok(format!("{taken} bytes asked for"))
}

/// Lists of everything that nobody reads: the window is shut from the start.
pub(crate) async fn lists_behind_closed_windows(stage: &Stage) -> Verdict {
    stage.heavy_maps().await;
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut stream = open(&stage.plane.door, &[(4, 0)]).await.map_err(|error| error.to_string())?;
        for number in 0..25 {
            let path = "/api/v1/namespaces/tenant/configmaps";
            let asked = if number % 2 == 0 {
                ask(number * 2 + 1, "editor", path)
            } else {
                ask_for_protobuf(number * 2 + 1, "editor", path)
            };
            stream.write_all(&asked).await.map_err(|error| error.to_string())?;
        }
        let _ = stream.flush().await;
        kept.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    Ok(format!("{} lists of 8 MB asked for", kept.len() * 25))
}

/// Watches of large objects that nobody reads.
pub(crate) async fn watches_behind_closed_windows(stage: &Stage) -> Verdict {
    stage.heavy_maps().await;
    let mut kept = Vec::new();
    for _ in 0..5 {
        let mut stream = open(&stage.plane.door, &[(4, 0)]).await.map_err(|error| error.to_string())?;
        for number in 0..200 {
            let path = "/api/v1/namespaces/tenant/configmaps?watch=true";
            let asked = ask(number * 2 + 1, "editor", path);
            stream.write_all(&asked).await.map_err(|error| error.to_string())?;
        }
        let _ = stream.flush().await;
        kept.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    Ok(format!("{} watches", kept.len() * 200))
}

/// The answer is asked for and the socket is never read.
pub(crate) async fn unread_sockets(stage: &Stage) -> Verdict {
    stage.heavy_maps().await;
    let mut kept = Vec::new();
    for _ in 0..40 {
        let mut stream =
            open(&stage.plane.door, &[(4, 0x7fff_ffff)]).await.map_err(|error| error.to_string())?;
        let _ = stream.write_all(&frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000u32.to_be_bytes())).await;
        for number in 0..5 {
            let asked = ask(number * 2 + 1, "editor", "/api/v1/namespaces/tenant/configmaps");
            stream.write_all(&asked).await.map_err(|error| error.to_string())?;
        }
        let _ = stream.flush().await;
        kept.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(format!("{} sockets", kept.len()))
}

/// Bodies that arrive byte by byte, fifteen of each of two users: as many as there are places for writes.
pub(crate) async fn slow_bodies(stage: &Stage) -> Verdict {
    let mut kept = Vec::new();
    for who in ["editor", "tenant"] {
        for _ in 0..15 {
            let mut stream = stage.plane.door.tls("http/1.1").await.map_err(|error| error.to_string())?;
            let head = format!(
                "POST /api/v1/namespaces/tenant/configmaps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {who}\r\n\
                 Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
            );
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.flush().await;
            kept.push(stream);
        }
    }
    for _ in 0..12 {
        for stream in &mut kept {
            let _ = stream.write_all(b" ").await;
            let _ = stream.flush().await;
        }
        let map = serde_json::json!({"metadata": {"generateName": "third-"}});
        let answer = stage.plane.calm.post("bystander", "api/v1/namespaces/quiet/configmaps", &map).await;
        answer.one_of(&[201])?;
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    Ok("a third user writes meanwhile".to_owned())
}

/// Heads that arrive byte by byte on a hundred connections.
pub(crate) async fn slow_heads(stage: &Stage) -> Verdict {
    let mut kept = Vec::new();
    for _ in 0..100 {
        kept.push(stage.plane.door.tls("http/1.1").await.map_err(|error| error.to_string())?);
    }
    for byte in b"GET / HT" {
        for stream in &mut kept {
            let _ = stream.write_all(&[*byte]).await;
            let _ = stream.flush().await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(format!("{} connections", kept.len()))
}
