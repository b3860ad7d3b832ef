//! Waiting for a state, never for a duration. Whoever waits in vain says what was seen last.

use std::fmt::{Debug, Display};
use std::time::Duration;

use kube::api::Api;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::DEADLINE;

/// The first pause between two looks; each is twice as long as the one before, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Looks until `look` returns what it looks for. In the meantime it returns what it sees instead, which is shown when
/// time runs out.
pub async fn eventually<T>(what: impl Display, look: impl AsyncFnMut() -> Result<T, String>) -> T {
    within(DEADLINE, what, look).await
}

/// As [`eventually`], where there is nothing to tell about what is seen instead.
pub async fn until_some<T>(what: impl Display, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    eventually(what, async || look().await.ok_or_else(|| "nothing".to_owned())).await
}

/// As [`eventually`], for a state that shows in this process.
pub async fn until_true(what: impl Display, mut condition: impl FnMut() -> bool) {
    until_some(what, async || condition().then_some(())).await;
}

/// Returns how long something that takes this time on an idle machine may take on one as busy as this is: where several want each
/// processor, everybody waits for the others.
pub fn slowed(time: Duration) -> Duration {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let runnable: f64 = load.split(' ').next().and_then(|minute| minute.parse().ok()).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    time.mul_f64((runnable / cores).max(1.0))
}

async fn within<T>(
    deadline: Duration,
    what: impl Display,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let mut seen = "nothing: the first look has not ended".to_owned();
    let mut pause = FIRST_PAUSE;
    let found = tokio::time::timeout(deadline, async {
        loop {
            match look().await {
                Ok(found) => return found,
                Err(instead) => seen = instead,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    })
    .await;
    found.unwrap_or_else(|_| panic!("not within {deadline:?}: {what}; last seen: {seen}"))
}

/// Follows an object until it is as wanted, and returns it. It is watched, not asked for again and again.
pub async fn until<K>(
    api: &Api<K>,
    name: &str,
    what: impl Display,
    wanted: impl Fn(Option<&K>) -> bool,
) -> Option<K>
where
    K: kube::Resource + Clone + Debug + Send + DeserializeOwned + Serialize + 'static,
{
    let reached = async {
        // An API server serves a kind a moment after its definition is there; a watch may also end for reasons of its own.
        loop {
            match kube::runtime::wait::await_condition(api.clone(), name, |found: Option<&K>| wanted(found))
                .await
            {
                Ok(found) => return found,
                Err(error) => eprintln!("{what} ({name}): {error}; once more"),
            }
            tokio::time::sleep(LONGEST_PAUSE).await;
        }
    };
    match tokio::time::timeout(DEADLINE, reached).await {
        Ok(found) => found,
        Err(_) => {
            // Whoever does not answer now is the reason, and must not keep the test from saying so.
            let last = tokio::time::timeout(Duration::from_secs(10), api.get_opt(name)).await;
            let shown = match last {
                Ok(Ok(found)) => serde_json::to_string_pretty(&found).unwrap_or_default(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            panic!("not within {DEADLINE:?}: {what} ({name}); last seen: {shown}");
        }
    }
}

/// Follows an object until it is gone.
pub async fn until_gone<K>(api: &Api<K>, name: &str, what: impl Display)
where
    K: kube::Resource + Clone + Debug + Send + DeserializeOwned + Serialize + 'static,
{
    until(api, name, what, |found| found.is_none()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For what never comes.
    const SHORT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn the_state_that_is_waited_for_is_returned() {
        let mut looks = 0;
        let found = eventually("the third look succeeds", async || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err(format!("look {looks}")) }
        })
        .await;
        assert_eq!(found, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "a miracle; last seen: nothing special")]
    async fn whoever_waits_in_vain_says_what_was_seen_last() {
        within::<()>(SHORT, "a miracle", async || Err("nothing special".to_owned())).await;
    }

    #[tokio::test]
    #[should_panic(expected = "an answer; last seen: nothing: the first look has not ended")]
    async fn a_look_that_hangs_is_told_apart() {
        within::<()>(SHORT, "an answer", async || std::future::pending().await).await;
    }
}
