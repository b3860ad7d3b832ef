//! `port-forward`: local ports that lead to a pod of a member.
//!
//! Each connection gets a separate websocket: channel 0 carries bytes, channel 1 errors. Both begin with two bytes that repeat
//! the port.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use futures::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;

use crate::clients::duration;
use crate::clusters::Scope;
use crate::failure::misused;
use crate::output;
use crate::pods;
use crate::server::{Namespaced, Server, segment};

/// How long the answer may take after the caller has finished sending.
const PATIENCE: Duration = Duration::from_secs(30);

/// Forward one or more local ports to a pod.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Port 8080 here leads to port 80 of a pod of deployment web
  karmadactl port-forward deploy/web 8080:80 -s members -C member1

  # A free port here, for whoever asks this machine
  karmadactl port-forward svc/web :http --address=0.0.0.0 -s members -C member1")]
pub struct Arguments {
    /// POD or TYPE/NAME, then [LOCAL:]REMOTE….
    #[arg(value_name = "POD [LOCAL:]REMOTE")]
    pub words: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    #[command(flatten)]
    pub scope: Scope,
    /// Addresses to listen on, separated by commas.
    #[arg(long, value_name = "ADDRESS", default_value = "localhost", value_delimiter = ',')]
    pub address: Vec<String>,
    /// The length of time to wait until at least one pod is running.
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    pub pod_running_timeout: String,
}

/// The route to one port of a pod.
struct Way {
    server: Server,
    path: String,
    port: u16,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Some((word, ports)) = arguments.words.split_first().filter(|(_, ports)| !ports.is_empty()) else {
        return Err(misused("port-forward", "TYPE/NAME and list of ports are required for port-forward"));
    };
    let patience = duration(&arguments.pod_running_timeout)?;
    let plane = arguments.place.plane().await?;
    let server = plane.scoped(&arguments.scope).await?;
    let pod = pods::find(&server, &plane.namespace, word, patience).await?.first()?;
    if pod["status"]["phase"] != "Running" {
        bail!(
            "unable to forward port because pod is not running. Current status={}",
            pod["status"]["phase"].as_str().unwrap_or("unknown")
        );
    }
    let service = service(&server, &plane.namespace, word).await?;
    let mut listeners = Vec::new();
    for text in ports {
        let (local, remote) = text.split_once(':').unwrap_or((text, text));
        let remote = remote_port(remote, service.as_ref(), &pod)?;
        // By default, the same port on both sides.
        let local = match local {
            "" => 0,
            _ if !text.contains(':') => text.parse().unwrap_or(remote),
            local => local
                .parse()
                .map_err(|_| anyhow!("error parsing local port {local:?}: it is not a number"))?,
        };
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/portforward?ports={remote}",
            segment(&plane.namespace),
            segment(pods::name(&pod))
        );
        let way = Arc::new(Way { server: server.clone(), path, port: remote });
        let mut bound = local;
        for address in &arguments.address {
            for host in hosts(address) {
                let listener = match TcpListener::bind((host, bound)).await {
                    Ok(listener) => listener,
                    // Some machines lack one of the address families.
                    Err(_) if host == "::1" => continue,
                    Err(error) => bail!("unable to listen on {host}:{bound}: {error}"),
                };
                let own = listener.local_addr().context("cannot read the address")?;
                bound = own.port();
                output::line(&format!("Forwarding from {own} -> {remote}"));
                listeners.push((listener, way.clone()));
            }
        }
    }
    let serving = listeners.into_iter().map(|(listener, way)| serve(listener, way));
    futures::future::join_all(serving).await;
    Ok(())
}

fn hosts(address: &str) -> Vec<&str> {
    if address == "localhost" { vec!["127.0.0.1", "::1"] } else { vec![address] }
}

/// The service in the word, whose port numbers differ from those of its pods.
async fn service(server: &Server, namespace: &str, word: &str) -> anyhow::Result<Option<Value>> {
    let Some((type_, name)) = word.split_once('/') else { return Ok(None) };
    let resource = server.discovery().await?.resolve(type_)?;
    if resource.plural != "services" || !resource.group.is_empty() {
        return Ok(None);
    }
    crate::select::get(server, resource, namespace, name, None).await.map(Some)
}

/// The pod's port for a number or a name.
fn remote_port(text: &str, service: Option<&Value>, pod: &Value) -> anyhow::Result<u16> {
    let number = text.parse::<u16>().ok().filter(|port| *port > 0);
    let named = |name: &str| {
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        containers
            .flat_map(|container| container["ports"].as_array().into_iter().flatten())
            .find(|port| port["name"] == name)
            .and_then(|port| port["containerPort"].as_u64())
            .and_then(|port| u16::try_from(port).ok())
    };
    let missing = |what: &str| anyhow!("{what} has no port {}", apimachinery::go::quote(text));
    if let Some(service) = service {
        let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
        let port = ports.find(|port| match number {
            Some(number) => port["port"] == number,
            None => port["name"] == text,
        });
        let port = port.ok_or_else(|| missing("the service"))?;
        let headless = service["spec"]["clusterIP"] == "None";
        return match &port["targetPort"] {
            _ if headless && number.is_some() => number.ok_or_else(|| missing("the service")),
            Value::String(name) => named(name).ok_or_else(|| missing("the pod")),
            target => target
                .as_u64()
                .or(port["port"].as_u64())
                .and_then(|port| u16::try_from(port).ok())
                .ok_or_else(|| missing("the service")),
        };
    }
    number.or_else(|| named(text)).ok_or_else(|| missing("the pod"))
}

async fn serve(listener: TcpListener, way: Arc<Way>) {
    let port = listener.local_addr().map_or(0, |address| address.port());
    while let Ok((stream, _)) = listener.accept().await {
        output::line(&format!("Handling connection for {port}"));
        let way = way.clone();
        tokio::spawn(async move {
            if let Err(error) = relay(stream, &way).await {
                output::warn(&format!("error: port {}: {error:#}", way.port));
            }
        });
    }
}

async fn relay(stream: TcpStream, way: &Way) -> anyhow::Result<()> {
    let connection = way.server.connect(&way.path).await?;
    let (mut send, mut receive) = connection.into_stream().split();
    let (mut read, mut write) = stream.into_split();
    let mut buffer = vec![0; 32 * 1024];
    // The first message of each channel is the port.
    let mut begun = [false; 2];
    let mut talking = true;
    loop {
        tokio::select! {
            count = read.read(&mut buffer[1..]), if talking => match count {
                Ok(0) | Err(_) => talking = false,
                Ok(count) => {
                    buffer[0] = 0;
                    let message = Message::binary(buffer[..=count].to_vec());
                    send.send(message).await.map_err(|error| anyhow!("cannot send: {error}"))?;
                }
            },
            message = receive.next() => match message {
                Some(Ok(Message::Binary(bytes))) => match bytes.split_first() {
                    Some((&channel @ (0 | 1), _)) if !std::mem::replace(&mut begun[usize::from(channel)], true) => {}
                    Some((&0, rest)) => match write.write_all(rest).await {
                        Ok(()) => {}
                        Err(_) => return Ok(()),
                    },
                    Some((&1, rest)) if !rest.is_empty() => bail!("{}", String::from_utf8_lossy(rest).trim()),
                    _ => {}
                },
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(error)) => bail!("the connection to the pod broke: {error}"),
            },
            () = tokio::time::sleep(PATIENCE), if !talking => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_have_numbers_names_and_services() {
        let pod = json!({"spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]}});
        let service = json!({"spec": {"ports": [{"name": "web", "port": 80, "targetPort": "http"}, {"port": 90, "targetPort": 9}]}});
        let port = |text: &str, service: Option<&Value>| remote_port(text, service, &pod).ok();
        assert_eq!(port("123", None), Some(123));
        assert_eq!(port("http", None), Some(8080));
        assert_eq!(port("80", Some(&service)), Some(8080));
        assert_eq!(port("web", Some(&service)), Some(8080));
        assert_eq!(port("90", Some(&service)), Some(9));
        assert_eq!((port("nope", None), port("81", Some(&service)), port("0", None)), (None, None, None));
    }
}
