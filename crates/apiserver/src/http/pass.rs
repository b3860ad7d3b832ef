//! Passes another server's answer on to a client: streamed, or, once both sides have switched protocols, as two connections
//! joined into one.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;

use super::body::{self, Body};
use crate::server::Server;

/// Headers that are about one connection, not about the request.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];
/// Pieces on their way to a client; the remote server is read no faster than the client reads.
const PIECES: usize = 16;

/// Says whether a header, in lower case, is about one connection and must not be passed on.
pub fn is_hop_by_hop(name: &str) -> bool {
    HOP_BY_HOP.contains(&name)
}

/// Passes an answer on piece by piece.
pub fn stream<B>(response: Response<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
{
    let (parts, mut incoming) = response.into_parts();
    let (sender, receiver) = mpsc::channel(PIECES);
    tokio::spawn(async move {
        loop {
            let frame = tokio::select! {
                // A quiet watch whose client has gone would stay open until its next event.
                () = sender.closed() => return,
                frame = incoming.frame() => frame,
            };
            let Some(Ok(frame)) = frame else { return };
            if let Ok(piece) = frame.into_data()
                && sender.send(piece).await.is_err()
            {
                return;
            }
        }
    });
    let mut answer = Response::new(body::channel(receiver));
    *answer.status_mut() = parts.status;
    for (name, value) in &parts.headers {
        if !is_hop_by_hop(name.as_str()) {
            answer.headers_mut().append(name.clone(), value.clone());
        }
    }
    answer
}

/// Joins the two connections once both sides have switched protocols.
pub fn relay<B>(server: &Arc<Server>, client: OnUpgrade, mut response: Response<B>) -> Response<Body> {
    let far = hyper::upgrade::on(&mut response);
    let stop = server.stop.clone();
    tokio::spawn(async move {
        let (Ok(near), Ok(far)) = tokio::join!(client, far) else { return };
        let (mut near, mut far) = (TokioIo::new(near), TokioIo::new(far));
        tokio::select! {
            ended = tokio::io::copy_bidirectional(&mut near, &mut far) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "an upgraded connection ended");
                }
            }
            () = stop.cancelled() => {}
        }
    });
    let mut answer = Response::new(body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = response.headers().clone();
    answer
}
