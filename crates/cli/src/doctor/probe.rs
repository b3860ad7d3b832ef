//! Tries connections to endpoints from pods of the clusters that should reach them.
//!
//! One pod of the Service's namespace in each cluster, one command in it for each source, and a few endpoints each. If there is
//! no such pod, or no shell or tool in it, the probe says so: that is not a failure of the network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{anyhow, bail};
use futures::{StreamExt, stream};

use super::report::{Flow, Probe, Report};
use crate::pods;
use crate::select::list;
use crate::server::{Plane, Server, segment};
use crate::session::{self, From, Sources, Target};

/// How many endpoints of one source are tried from one cluster. A broken network shows with the first.
const TRIED: usize = 3;
/// From how many clusters probes run at once.
const AT_ONCE: usize = 8;
/// The time limit of one command: the tools give up after two seconds for each endpoint.
const PATIENCE: Duration = Duration::from_secs(20);
/// The limit of a pod's output, which is not trusted.
const LONGEST: usize = 4096;
/// Prints one word for each address and port: `open`, `closed`, or `tool` if no tool is available.
const SCRIPT: &str = "while [ $# -gt 1 ]; do \
    if command -v nc >/dev/null 2>&1; then \
    { nc -z -w 2 \"$1\" \"$2\" || nc -w 2 \"$1\" \"$2\"; } </dev/null >/dev/null 2>&1 && echo open || echo closed; \
    elif command -v bash >/dev/null 2>&1; then \
    timeout 2 bash -c 'exec 3<>/dev/tcp/$0/$1' \"$1\" \"$2\" 2>/dev/null && echo open || echo closed; \
    elif command -v curl >/dev/null 2>&1; then \
    curl -s -o /dev/null --connect-timeout 2 -m 3 \"telnet://$1:$2\" </dev/null; \
    case $? in 0|28|48|49|52|56) echo open;; *) echo closed;; esac; \
    elif command -v wget >/dev/null 2>&1; then wget -q -T 2 -t 1 -O /dev/null \"http://$1:$2/\" && echo open || echo closed; \
    else echo tool; fi; shift 2; done";

/// Fills in the results, flow by flow.
pub(super) async fn probe(plane: &Plane, report: &mut Report) {
    let namespace = report.namespace.clone();
    let mut by_target: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, flow) in report.flows.iter().enumerate() {
        by_target.entry(flow.to.clone()).or_default().push(index);
    }
    let flows = &report.flows;
    let probes = by_target.into_iter().map(|(cluster, indices)| {
        let (member, namespace) = (plane.known_member(&cluster), namespace.as_str());
        async move {
            let pod = talker(&member, namespace).await.map_err(|error| format!("{error:#}"));
            let mut found = Vec::new();
            for index in indices {
                let probe = match (&pod, endpoints(&flows[index])) {
                    (_, tried) if tried.is_empty() => Probe::Skipped("there is nothing to reach".to_owned()),
                    (Err(why), _) => Probe::Skipped(why.clone()),
                    (Ok(pod), tried) => attempt(&member, namespace, pod, &tried).await,
                };
                found.push((index, probe));
            }
            found
        }
    });
    let found: Vec<Vec<(usize, Probe)>> = stream::iter(probes).buffer_unordered(AT_ONCE).collect().await;
    for (index, probe) in found.into_iter().flatten() {
        report.flows[index].probe = Some(probe);
    }
}

/// Returns the endpoints to try. They come from members, so only addresses and ports are used.
fn endpoints(flow: &Flow) -> Vec<(String, u16)> {
    let tried = flow.endpoints.iter().filter_map(|(address, port)| {
        let address: IpAddr = address.parse().ok()?;
        Some((address.to_string(), *port))
    });
    tried.take(TRIED).collect()
}

/// A pod that can try connections: its name and its container.
struct Talker {
    pod: String,
    container: String,
}

async fn talker(member: &Server, namespace: &str) -> anyhow::Result<Talker> {
    let path = format!("/api/v1/namespaces/{}/pods", segment(namespace));
    let found = list(member, &path, None, Some("status.phase=Running")).await?;
    let Some(pod) = found.first() else {
        bail!("no pod runs in the namespace {namespace} of this cluster to try it from");
    };
    Ok(Talker { pod: pods::name(pod).to_owned(), container: pods::default_container(pod, true)? })
}

async fn attempt(member: &Server, namespace: &str, from: &Talker, tried: &[(String, u16)]) -> Probe {
    match tokio::time::timeout(PATIENCE, said(member, namespace, from, tried)).await {
        Ok(Ok(text)) => read(&text, tried, &from.pod),
        Ok(Err(error)) => Probe::Skipped(format!("nothing can be run in pod {}: {error:#}", from.pod)),
        Err(_) => Probe::Skipped(format!("pod {} does not answer in time", from.pod)),
    }
}

async fn said(
    member: &Server,
    namespace: &str,
    from: &Talker,
    tried: &[(String, u16)],
) -> anyhow::Result<String> {
    let mut command: Vec<String> = ["sh", "-c", SCRIPT, "probe"].map(str::to_owned).to_vec();
    command.extend(tried.iter().flat_map(|(address, port)| [address.clone(), port.to_string()]));
    let target = Target {
        namespace,
        pod: &from.pod,
        container: &from.container,
        verb: "exec",
        command: &command,
        stdin: false,
        tty: false,
    };
    let mut text = Vec::new();
    let status = session::run(member, &target, Sources::default(), |channel, bytes| {
        if channel == From::Stdout && text.len() + bytes.len() <= LONGEST {
            text.extend_from_slice(bytes);
        }
        Ok(())
    })
    .await?;
    if status["status"] != "Success" {
        return Err(anyhow!("{}", status["message"].as_str().unwrap_or("it failed")));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Parses the output of the script.
fn read(text: &str, tried: &[(String, u16)], pod: &str) -> Probe {
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.contains(&"tool") || words.len() != tried.len() {
        return Probe::Skipped(format!("pod {pod} has none of nc, bash, curl, wget"));
    }
    let closed = |(word, (address, port)): (&&str, &(String, u16))| {
        (*word != "open").then(|| super::report::endpoint(address, *port))
    };
    let closed: Vec<String> = words.iter().zip(tried).filter_map(closed).collect();
    match closed.is_empty() {
        true => Probe::Reached { tried: tried.len(), pod: pod.to_owned() },
        false => Probe::Unreachable { tried: tried.len(), failed: closed, pod: pod.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried() -> Vec<(String, u16)> {
        vec![("10.1.0.5".to_owned(), 8080), ("fd00::1".to_owned(), 80)]
    }

    #[test]
    fn the_output_of_a_pod_is_parsed_but_not_trusted() {
        let pod = || "web-0".to_owned();
        assert_eq!(read("open\nopen\n", &tried(), "web-0"), Probe::Reached { tried: 2, pod: pod() });
        let failed = vec!["[fd00::1]:80".to_owned()];
        assert_eq!(
            read("open\nclosed\n", &tried(), "web-0"),
            Probe::Unreachable { tried: 2, failed, pod: pod() }
        );
        let skipped = Probe::Skipped("pod web-0 has none of nc, bash, curl, wget".to_owned());
        assert_eq!(read("tool\ntool\n", &tried(), "web-0"), skipped);
        assert_eq!(read("anything else at all", &tried(), "web-0"), skipped);
    }

    #[test]
    fn the_script_is_one_that_shells_understand() {
        use std::io::Read as _;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let open = listener.local_addr().expect("an address").port();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let gone = closed.local_addr().expect("an address").port();
        drop(closed);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten().take(1) {
                let _ = (&connection).read(&mut [0; 16]);
            }
        });
        let output = std::process::Command::new("sh")
            .args(["-c", SCRIPT, "probe", "127.0.0.1", &open.to_string(), "127.0.0.1", &gone.to_string()])
            .output()
            .expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "open\nclosed\n");
    }
}
