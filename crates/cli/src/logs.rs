//! `logs`: the output of containers in a member.
//!
//! In: a pod, a workload or a selector, and one cluster or several. Out: the log of one container, or of several with a prefix;
//! with several clusters, the prefix begins with the cluster's name. If several are followed, lines are printed as they arrive.

use anyhow::{anyhow, bail};
use clap::Args;
use futures::AsyncBufReadExt;
use jiff::Timestamp;
use serde_json::Value;

use crate::clients::duration;
use crate::failure::{self, Failures};
use crate::output;
use crate::pods::{self, Found};
use crate::select::list;
use crate::server::{Namespaced, Server, query, segment};
use crate::terminal::paint;

/// Print the logs for a container in a pod in a cluster.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Return the logs of pod nginx with only one container, in cluster member1
  karmadactl logs nginx -C member1

  # Follow the logs of all containers of the pods with label app=nginx
  karmadactl logs -f -l app=nginx --all-containers --prefix -C member1

  # Follow what runs in all clusters of a region, each in its own colour
  karmadactl logs -f deploy/nginx -C region=eu --max-log-requests=20

  # Show the last 20 lines of a deployment's log
  karmadactl logs deployment/nginx --tail=20 -C member1")]
pub struct Arguments {
    /// POD, or TYPE/NAME; then perhaps a container.
    #[arg(value_name = "POD")]
    pub resource: Vec<String>,
    #[command(flatten)]
    pub place: Namespaced,
    /// The member cluster, or several, by name, glob or label selector.
    #[arg(short = 'C', long, value_name = "CLUSTER")]
    pub cluster: Vec<String>,
    /// Print the logs of this container.
    #[arg(short, long, value_name = "CONTAINER", default_value = "")]
    pub container: String,
    /// Get all containers' logs in the pod(s).
    #[arg(long)]
    pub all_containers: bool,
    /// Get logs from all pods of a workload; sets prefix to true.
    #[arg(long)]
    pub all_pods: bool,
    /// Stream the logs.
    #[arg(short, long)]
    pub follow: bool,
    /// Print the logs of the previous instance of the container.
    #[arg(short, long)]
    pub previous: bool,
    /// Label selector of pods, such as app=web.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Lines of recent log to display; all by default, 10 with a selector.
    #[arg(long, value_name = "LINES", allow_negative_numbers = true)]
    pub tail: Option<i64>,
    /// Only return logs newer than a relative duration like 5s, 2m, or 3h.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::clients::duration_text)]
    pub since: String,
    /// Only return logs after a specific date (RFC3339).
    #[arg(long, value_name = "TIME")]
    pub since_time: Option<String>,
    /// Include timestamps on each line.
    #[arg(long)]
    pub timestamps: bool,
    /// Maximum bytes of logs to return.
    #[arg(long, value_name = "BYTES", default_value_t = 0, allow_negative_numbers = true)]
    pub limit_bytes: i64,
    /// Prefix each line with pod and container.
    #[arg(long)]
    pub prefix: bool,
    /// How many logs may be followed at once with a selector.
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    pub max_log_requests: usize,
    /// Errors of one log do not end the others.
    #[arg(long)]
    pub ignore_errors: bool,
    /// Skip verifying the identity of the kubelet that logs are requested from.
    #[arg(long)]
    pub insecure_skip_tls_verify_backend: bool,
    /// The length of time to wait until at least one pod is running.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    pub pod_running_timeout: String,
}

/// One container's log.
#[derive(Debug)]
struct Source {
    pod: String,
    container: String,
}

/// A log in one of several places.
struct Feed {
    member: Server,
    source: Source,
    prefix: String,
}

pub(crate) async fn run(mut arguments: Arguments) -> anyhow::Result<()> {
    arguments.check()?;
    let parameters = arguments.parameters()?;
    let plane = arguments.place.plane().await?;
    let members = match &arguments.cluster[..] {
        [one] if !one.contains(',') && !one.contains(['*', '?', '=', '!', '(']) => {
            vec![plane.member(one).await?]
        }
        words => plane.select(words).await?.iter().map(|name| plane.known_member(name)).collect(),
    };
    let several = members.len() > 1;
    let namespace = &plane.namespace;
    let looking = members.iter().map(|member| sources(&arguments, member, namespace));
    let found = futures::future::join_all(looking).await;
    let mut feeds = Vec::new();
    let mut failures = Vec::new();
    for (index, (member, found)) in members.into_iter().zip(found).enumerate() {
        match found {
            Ok(sources) => feeds.extend(sources.into_iter().map(|source| Feed {
                prefix: arguments.prefix_of(&member, &source, several, index),
                member: member.clone(),
                source,
            })),
            Err(error) if several => failures.push(error.context(format!("cluster({})", member.name))),
            Err(error) => return Err(error),
        }
    }
    if arguments.follow && feeds.len() > arguments.max_log_requests {
        bail!(
            "you are attempting to follow {} log streams, but maximum allowed concurrency is {}, use --max-log-requests \
             to increase the limit",
            feeds.len(),
            arguments.max_log_requests
        );
    }
    let copies = feeds.iter().map(|feed| copy(feed, namespace, &parameters));
    let results = if arguments.follow {
        futures::future::join_all(copies).await
    } else {
        // One after the other; the first failure ends the command, unless errors are ignored.
        let mut results = Vec::new();
        for copy in copies {
            let result = copy.await;
            let failed = result.is_err();
            results.push(result);
            if failed && !arguments.ignore_errors {
                break;
            }
        }
        results
    };
    for error in results.into_iter().filter_map(Result::err) {
        if arguments.ignore_errors {
            output::warn(&format!("error: {error:#}"));
        } else {
            failures.push(error);
        }
    }
    Failures::check(failures)
}

async fn sources(arguments: &Arguments, member: &Server, namespace: &str) -> anyhow::Result<Vec<Source>> {
    let mut sources = Vec::new();
    for pod in pods(arguments, member, namespace).await? {
        sources.extend(arguments.sources(&pod)?);
    }
    Ok(sources)
}

impl Arguments {
    fn check(&mut self) -> anyhow::Result<()> {
        if self.cluster.iter().all(String::is_empty) {
            bail!("must specify a cluster");
        }
        match (&self.resource[..], self.selector.is_some()) {
            ([], false) => bail!(
                "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command"
            ),
            ([_, _, _, ..], false) => {
                return Err(failure::misused(
                    "logs",
                    "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER] (-C CLUSTER)'.\nPOD or TYPE/NAME is a required \
                     argument for the logs command",
                ));
            }
            ([_, ..], true) => {
                return Err(failure::misused("logs", "only a selector (-l) or a POD name is allowed"));
            }
            ([_, container], false) if self.container.is_empty() => self.container = container.clone(),
            ([] | [_], _) => {}
            _ => bail!("only one of -c or an inline [CONTAINER] arg is allowed"),
        }
        if self.all_containers && !self.container.is_empty() {
            bail!("--all-containers=true should not be specified with container name {}", self.container);
        }
        if self.since_time.is_some() && self.since != "0s" {
            bail!("at most one of `sinceTime` or `sinceSeconds` may be specified");
        }
        if self.tail.is_some_and(|lines| lines < -1) {
            bail!("--tail must be greater than or equal to -1");
        }
        self.prefix |= self.all_pods;
        Ok(())
    }

    fn parameters(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        let mut add = |key: &str, value: String| text.push_str(&format!("&{key}={}", query(&value)));
        for (key, on) in [
            ("follow", self.follow),
            ("previous", self.previous),
            ("timestamps", self.timestamps),
            ("insecureSkipTLSVerifyBackend", self.insecure_skip_tls_verify_backend),
        ] {
            if on {
                add(key, "true".to_owned());
            }
        }
        let since = duration(&self.since)?.as_secs();
        if since > 0 {
            add("sinceSeconds", since.to_string());
        }
        if let Some(time) = &self.since_time {
            let time: Timestamp =
                time.parse().map_err(|_| anyhow!("--since-time {time:?} is no RFC3339 time"))?;
            add("sinceTime", time.to_string());
        }
        let tail = self.tail.unwrap_or(if self.selector.is_some() { 10 } else { -1 });
        if tail >= 0 {
            add("tailLines", tail.to_string());
        }
        if self.limit_bytes > 0 {
            add("limitBytes", self.limit_bytes.to_string());
        }
        Ok(text)
    }

    /// The selected containers of a pod.
    fn sources(&self, pod: &Value) -> anyhow::Result<Vec<Source>> {
        let name = pods::name(pod);
        let [regular, init, ephemeral] = pods::containers(pod);
        let chosen = if self.all_containers {
            [init, regular, ephemeral].concat()
        } else if self.container.is_empty() {
            vec![pods::default_container(pod, false)?]
        } else if [&regular, &init, &ephemeral].iter().any(|names| names.contains(&self.container)) {
            vec![self.container.clone()]
        } else {
            bail!("container {} is not valid for pod {name}", self.container);
        };
        Ok(chosen.into_iter().map(|container| Source { pod: name.to_owned(), container }).collect())
    }
}

impl Arguments {
    /// The prefix of each line.
    fn prefix_of(&self, member: &Server, source: &Source, several: bool, index: usize) -> String {
        let (pod, container) = (&source.pod, &source.container);
        match (several, self.prefix) {
            (true, _) => format!("{} ", paint(&format!("[{} pod/{pod}/{container}]", member.name), index)),
            (false, true) => format!("[pod/{pod}/{container}] "),
            (false, false) => String::new(),
        }
    }
}

/// Finds the selected pods.
async fn pods(arguments: &Arguments, member: &Server, namespace: &str) -> anyhow::Result<Vec<Value>> {
    if let Some(selector) = &arguments.selector {
        let path = member.discovery().await?.resolve("pods")?.collection(Some(namespace));
        let found = list(member, &path, Some(selector), None).await?;
        if found.is_empty() {
            output::warn(&format!("No resources found in {namespace} namespace."));
        }
        return Ok(found);
    }
    let patience = duration(&arguments.pod_running_timeout)?;
    let word = arguments.resource.first().map_or("", String::as_str);
    let found = pods::find(member, namespace, word, patience).await.map_err(|error| {
        if failure::is_not_found(&error) {
            return anyhow!(
                "error from server (NotFound): {error} in namespace {}",
                apimachinery::go::quote(namespace)
            );
        }
        error
    })?;
    Ok(match found {
        Found::Pod(pod) => vec![pod],
        Found::Several(found) if arguments.all_pods => found,
        Found::Several(found) => {
            let count = found.len();
            let chosen = found.into_iter().next();
            if let Some(chosen) = chosen.as_ref().filter(|_| count > 1) {
                output::warn(&format!("Found {count} pods, using pod/{}", pods::name(chosen)));
            }
            chosen.into_iter().collect()
        }
    })
}

async fn copy(feed: &Feed, namespace: &str, parameters: &str) -> anyhow::Result<()> {
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}/log?container={}{parameters}",
        segment(namespace),
        segment(&feed.source.pod),
        query(&feed.source.container)
    );
    let stream = feed.member.stream(&path, "*/*").await?;
    let mut stream = std::pin::pin!(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        if stream.read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        // One line at a time, so that those of other logs do not split it.
        output::print(&format!("{}{}", feed.prefix, String::from_utf8_lossy(&line)));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn read(line: &str) -> anyhow::Result<Arguments> {
        let words = std::iter::once("logs").chain(line.split_whitespace());
        let mut arguments = Line::try_parse_from(words)?.arguments;
        arguments.check()?;
        Ok(arguments)
    }

    #[test]
    fn arguments_have_rules() {
        assert_eq!(read("x web -C m").expect("good").container, "web");
        assert!(read("x -C m --all-pods").expect("good").prefix);
        for (line, complaint) in [
            ("x", "must specify a cluster"),
            ("-C m", "is a required argument"),
            ("x -l a=b -C m", "only a selector (-l) or a POD name"),
            ("x y -c z -C m", "only one of -c"),
            ("x -c z --all-containers -C m", "should not be specified with container name z"),
        ] {
            let error = read(line).expect_err(line).to_string();
            assert!(error.contains(complaint), "{line}: {error}");
        }
        assert_eq!(
            read("x -C m -f --tail=3 --since=1m").expect("good").parameters().expect("good"),
            "&follow=true&sinceSeconds=60&tailLines=3"
        );
        assert_eq!(read("-l a=b -C m").expect("good").parameters().expect("good"), "&tailLines=10");
    }

    #[test]
    fn a_container_has_to_be_in_the_pod() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        let names = |line: &str| -> anyhow::Result<Vec<String>> {
            Ok(read(line)?.sources(&pod)?.into_iter().map(|source| source.container).collect())
        };
        assert_eq!(names("p -C m").expect("good"), ["a"]);
        assert_eq!(names("p -C m -c i").expect("good"), ["i"]);
        assert_eq!(names("p -C m --all-containers").expect("good"), ["i", "a", "b"]);
        assert_eq!(
            names("p -C m -c x").expect_err("unknown").to_string(),
            "container x is not valid for pod p"
        );
    }
}
