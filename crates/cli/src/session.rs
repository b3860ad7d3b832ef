//! Connects the user to a program in a container: channels of a websocket, in the kubelet's protocol.
//!
//! In: bytes of stdin and sizes of the terminal. Out: bytes of stdout and stderr, and finally how the program ended. The first
//! byte of every message is its channel. Version 5 of the protocol can signal the end of stdin; version 4 can only close the
//! connection.

use anyhow::{anyhow, bail};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use crate::failure::{Ended, Refusal};
use crate::output;
use crate::server::{Server, query, segment};
use crate::terminal::Size;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// One message; the kubelet reads at most this much at once.
const CHUNK: usize = 32 * 1024;

/// A container, and what to do in it.
#[derive(Debug, Clone)]
pub(crate) struct Target<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) container: &'a str,
    /// `exec` or `attach`.
    pub(crate) verb: &'a str,
    pub(crate) command: &'a [String],
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
}

/// The source of the bytes.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) input: Option<mpsc::Receiver<Vec<u8>>>,
    pub(crate) sizes: Option<mpsc::Receiver<Size>>,
}

/// The channel on which bytes arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    Stdout,
    Stderr,
}

impl Target<'_> {
    fn path(&self) -> String {
        let mut path = format!(
            "/api/v1/namespaces/{}/pods/{}/{}?container={}&stdout=true",
            segment(self.namespace),
            segment(self.pod),
            self.verb,
            query(self.container)
        );
        for word in self.command {
            path.push_str(&format!("&command={}", query(word)));
        }
        // A terminal has one output channel.
        for (name, on) in [("stdin", self.stdin), ("stderr", !self.tty), ("tty", self.tty)] {
            if on {
                path.push_str(&format!("&{name}=true"));
            }
        }
        path
    }
}

/// Runs the program until it ends; returns the server's status.
pub(crate) async fn run(
    server: &Server,
    target: &Target<'_>,
    sources: Sources,
    mut sink: impl FnMut(From, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<Value> {
    let connection = server.connect(&target.path()).await?;
    let closable = connection.supports_stream_close();
    let (mut send, mut receive) = connection.into_stream().split();
    let Sources { mut input, mut sizes } = sources;
    loop {
        tokio::select! {
            message = receive.next() => match message {
                Some(Ok(Message::Binary(bytes))) => match bytes.split_first() {
                    Some((&STDOUT, rest)) if !rest.is_empty() => sink(From::Stdout, rest)?,
                    Some((&STDERR, rest)) if !rest.is_empty() => sink(From::Stderr, rest)?,
                    Some((&STATUS, rest)) if !rest.is_empty() => return Ok(status(rest)),
                    _ => {}
                },
                Some(Ok(_)) => {}
                Some(Err(error)) => bail!("the connection to the container broke: {error}"),
                // Without a status, only the connection has ended.
                None => return Ok(json!({"status": "Success"})),
            },
            typed = next(&mut input), if input.is_some() => match typed {
                Some(bytes) => {
                    for chunk in bytes.chunks(CHUNK) {
                        send.send(message(STDIN, chunk)).await.map_err(|error| anyhow!("cannot send: {error}"))?;
                    }
                }
                None => {
                    input = None;
                    let end = if closable { message(CLOSE, &[STDIN]) } else { Message::Close(None) };
                    send.send(end).await.map_err(|error| anyhow!("cannot send: {error}"))?;
                }
            },
            size = next(&mut sizes), if sizes.is_some() => match size {
                Some((width, height)) => {
                    let size = json!({"Width": width, "Height": height}).to_string();
                    send.send(message(RESIZE, size.as_bytes())).await.map_err(|error| anyhow!("cannot send: {error}"))?;
                }
                None => sizes = None,
            },
        }
    }
}

async fn next<T>(source: &mut Option<mpsc::Receiver<T>>) -> Option<T> {
    match source {
        Some(source) => source.recv().await,
        None => None,
    }
}

fn message(channel: u8, bytes: &[u8]) -> Message {
    let mut text = Vec::with_capacity(bytes.len() + 1);
    text.push(channel);
    text.extend_from_slice(bytes);
    Message::binary(text)
}

fn status(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes)
        .unwrap_or_else(|_| json!({"status": "Failure", "message": String::from_utf8_lossy(bytes)}))
}

/// Turns the exit status of the program into that of this one.
pub(crate) fn ended(status: &Value) -> anyhow::Result<()> {
    if status["status"] == "Success" {
        return Ok(());
    }
    if let Some(code) = exit_code(status) {
        output::warn(&format!("command terminated with exit code {code}"));
        return Err(Ended(u8::try_from(code).unwrap_or(1)).into());
    }
    let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
    let mut status = status.clone();
    status["kind"] = "Status".into();
    Err(Refusal::new(code, &status.to_string()).into())
}

fn exit_code(status: &Value) -> Option<i64> {
    if status["reason"] != "NonZeroExitCode" {
        return None;
    }
    let causes = status["details"]["causes"].as_array()?;
    let cause = causes.iter().find(|cause| cause["reason"] == "ExitCode")?;
    cause["message"].as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_names_everything_that_the_kubelet_wants_to_know() {
        let command = ["sh".to_owned(), "-c".to_owned(), "a b".to_owned()];
        let target = Target {
            namespace: "n",
            pod: "p",
            container: "c",
            verb: "exec",
            command: &command,
            stdin: true,
            tty: true,
        };
        assert_eq!(
            target.path(),
            "/api/v1/namespaces/n/pods/p/exec?container=c&stdout=true&command=sh&command=-c&command=a%20b&stdin=true&tty=true"
        );
        let quiet = Target { stdin: false, tty: false, command: &[], verb: "attach", ..target };
        assert_eq!(quiet.path(), "/api/v1/namespaces/n/pods/p/attach?container=c&stdout=true&stderr=true");
    }

    #[test]
    fn a_program_ends_with_its_own_status() {
        assert!(ended(&status(br#"{"status":"Success"}"#)).is_ok());
        let failed = br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
        let error = ended(&status(failed)).expect_err("it failed");
        assert_eq!(crate::failure::told(&error), (String::new(), 3));
        let error = ended(&status(b"no such container")).expect_err("it failed");
        assert_eq!(crate::failure::told(&error), ("Error from server: no such container".to_owned(), 1));
    }
}
