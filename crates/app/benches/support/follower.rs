//! What benchmarks of propagation share: many writes at once, how many objects there are somewhere, and how long things took.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{Api, DynamicObject};
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;

const WRITERS: usize = 16;

/// Returns the times, in milliseconds, that these shares of all stayed below.
pub(crate) fn shares(mut times: Vec<Duration>, shares: &[f64]) -> String {
    times.sort();
    let milliseconds = |share: &f64| {
        let index = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    };
    let shown: Vec<String> = shares.iter().map(|share| format!("{:.1}", milliseconds(share))).collect();
    shown.join(" / ")
}

/// Does something for every name, for several at once.
pub(crate) async fn each<'a, F: Future<Output = Result<()>>>(
    names: &'a [String],
    work: impl Fn(&'a str) -> F,
) -> Result<()> {
    stream::iter(names).map(|name| work(name)).buffer_unordered(WRITERS).try_collect::<()>().await
}

/// How many objects of each round there are somewhere, kept by a watch.
pub(crate) struct Follower {
    counts: watch::Receiver<HashMap<usize, usize>>,
    task: tokio::task::JoinHandle<()>,
}

impl Follower {
    pub(crate) fn start(
        api: Api<DynamicObject>,
        round: impl Fn(&DynamicObject) -> usize + Send + 'static,
    ) -> Self {
        let (tell, counts) = watch::channel(HashMap::new());
        let task = tokio::spawn(async move {
            let mut rounds: HashMap<String, usize> = HashMap::new();
            let mut events =
                watcher(api, watcher::Config::default().labels("app=bench")).default_backoff().boxed();
            while let Some(event) = events.next().await {
                let (name, now) = match event {
                    Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                        let now = round(&object);
                        (object.metadata.name.unwrap_or_default(), Some(now))
                    }
                    Ok(watcher::Event::Delete(object)) => (object.metadata.name.unwrap_or_default(), None),
                    Ok(watcher::Event::Init | watcher::Event::InitDone) => continue,
                    Err(error) => {
                        eprintln!("  a watch ended: {error}");
                        continue;
                    }
                };
                let before = match now {
                    Some(now) => rounds.insert(name, now),
                    None => rounds.remove(&name),
                };
                tell.send_modify(|counts| {
                    if let Some(before) = before
                        && let Some(count) = counts.get_mut(&before)
                    {
                        *count -= 1;
                    }
                    if let Some(now) = now {
                        *counts.entry(now).or_default() += 1;
                    }
                });
            }
        });
        Self { counts, task }
    }

    /// Waits until there are so many objects of this round, and none of another.
    pub(crate) async fn until(&self, round: usize, count: usize) -> Result<()> {
        let mut counts = self.counts.clone();
        counts
            .wait_for(|counts| {
                let of_round = counts.get(&round).copied().unwrap_or(0);
                of_round == count && counts.values().sum::<usize>() == count
            })
            .await
            .context("a watch has ended")?;
        Ok(())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}
