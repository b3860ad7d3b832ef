//! Says whether evictions are halted: one answer for all controllers that start or end them.
//!
//! In: the Clusters, as they change. Out: what was seen of them, whether [too many are lost](super::outage),
//! and a call to subscribers when that ends. It exists in every process that evicts, whichever of its
//! controllers run there.

use std::sync::Arc;

use api::cluster::Cluster;
use parking_lot::{Mutex, MutexGuard, RwLock};
use runtime::events::about;
use runtime::{Events, Mirror};
use tokio::time::Instant;

use super::metrics::METRICS;
use super::outage::{Limits, Loss, Sight, Told};
use crate::environment::Environment;

/// The source of the events. Upstream has no such limit.
const COMPONENT: &str = "taint-manager";
const HALTED: &str = "EvictionsHalted";
const RESUMED: &str = "EvictionsResumed";

/// Called with the cluster that has changed; no name means that evictions are halted or resumed, which
/// concerns all.
type Listener = Box<dyn Fn(Option<&str>) + Send + Sync>;

/// Watches over the clusters.
pub(crate) struct Halt {
    events: Events,
    clusters: Arc<Mirror<Cluster>>,
    limits: Limits,
    sight: Mutex<Sight>,
    standing: Mutex<Standing>,
    /// The clusters that have an event about the halt. Locked before `standing`, which is locked before
    /// `sight`.
    told: Mutex<Told>,
    listeners: RwLock<Vec<Listener>>,
}

/// Whether evictions are halted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Standing {
    /// Too many clusters are lost.
    pub(super) halted: bool,
    /// When the last halt ended. Time before that does not count.
    pub(super) resumed: Option<Instant>,
}

impl Standing {
    /// Returns the time from which an observation counts: `seen`, or the end of the last halt if that is
    /// later.
    pub(super) fn since(self, seen: Instant) -> Instant {
        self.resumed.map_or(seen, |resumed| resumed.max(seen))
    }
}

impl Halt {
    /// Starts to watch. Subscribers that register with the clusters later find it up to date.
    pub(crate) fn new(environment: &Environment) -> Arc<Self> {
        let clusters = environment.mirrors.clusters.clone();
        let halt = Arc::new(Self {
            events: environment.events.clone(),
            clusters: clusters.clone(),
            limits: environment.failover.limits(),
            sight: Mutex::default(),
            standing: Mutex::default(),
            told: Mutex::default(),
            listeners: RwLock::default(),
        });
        let noticing = halt.clone();
        clusters.subscribe(move |change| {
            let name = &change.key.name;
            let relevant = noticing.sight.lock().note(name, change.new.as_deref(), Instant::now());
            // The first list is incomplete until its end, so it is evaluated when the workers start.
            if relevant && !change.initial && !noticing.review() {
                noticing.tell(Some(name));
            }
        });
        halt
    }

    /// Adds a subscriber.
    pub(crate) fn subscribe(&self, listener: impl Fn(Option<&str>) + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    fn tell(&self, cluster: Option<&str>) {
        self.listeners.read().iter().for_each(|listener| listener(cluster));
    }

    pub(super) fn standing(&self) -> Standing {
        *self.standing.lock()
    }

    /// Returns what has been seen of the clusters.
    pub(super) fn sight(&self) -> MutexGuard<'_, Sight> {
        self.sight.lock()
    }

    /// Checks whether too many clusters are lost. Emits the missing events, and returns true when the answer
    /// has changed and all subscribers were called.
    pub(super) fn review(&self) -> bool {
        // One review at a time, so that an older one cannot overwrite a newer result.
        let mut told = self.told.lock();
        let (loss, lost) = {
            let sight = self.sight.lock();
            (sight.loss(), sight.lost())
        };
        let halted = loss.exceeds(self.limits);
        let turned = self.turn(halted, Instant::now());
        METRICS.halted(halted);
        // A cluster that is lost while evictions are halted also gets the event.
        let news = told.news(halted, lost);
        if turned || !news.is_empty() {
            self.announce(halted, loss, |cluster| !halted || news.contains(cluster));
        }
        if turned {
            self.tell(None);
        }
        turned
    }

    /// Records whether evictions are halted; returns whether that has changed.
    fn turn(&self, halted: bool, now: Instant) -> bool {
        let mut standing = self.standing.lock();
        if standing.halted == halted {
            return false;
        }
        standing.halted = halted;
        if !halted {
            // The time is reset before any reader sees that evictions are resumed.
            self.sight.lock().count_anew(now);
            standing.resumed = Some(now);
        }
        true
    }

    fn announce(&self, halted: bool, loss: Loss, concerns: impl Fn(&str) -> bool) {
        let Loss { lost, all } = loss;
        let message = if halted {
            format!(
                "{lost} of {all} clusters are lost at once: evictions stop until fewer than {}% of the clusters, or fewer \
                 than {} are. This control plane may have lost its own network.",
                self.limits.percent, self.limits.clusters
            )
        } else {
            format!("{lost} of {all} clusters are lost: evictions go on.")
        };
        tracing::warn!(controller = COMPONENT, lost, all, "{message}");
        // When evictions are resumed, no cluster may be lost any more, so all of them get the event.
        for cluster in self.clusters.all() {
            if !concerns(cluster.metadata.name.as_deref().unwrap_or("")) {
                continue;
            }
            let about = about(cluster.as_ref());
            if halted {
                self.events.warning(COMPONENT, &about, HALTED, message.clone());
            } else {
                self.events.normal(COMPONENT, &about, RESUMED, message.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::Key;
    use serde_json::json;

    use super::*;
    use crate::fixtures::cluster;
    use crate::world::World;

    #[tokio::test]
    async fn everybody_hears_when_evictions_stop_and_go_on() {
        let world = World::new().await;
        let (halt, heard) = (world.plane.halt().clone(), Arc::new(Mutex::new(Vec::new())));
        halt.subscribe({
            let heard = heard.clone();
            move |changed| heard.lock().push(changed.map(str::to_owned))
        });
        let mut version = 0;
        let mut report = |name: &str, ready: &str| {
            version += 1;
            let cluster = Arc::new(cluster(name, ready, json!({})));
            world.environment.mirrors.clusters.put(&Key::new("", name), &version.to_string(), cluster);
        };
        ["m1", "m2", "m3", "m4"].into_iter().for_each(|name| report(name, "True"));
        heard.lock().clear();
        report("m1", "False");
        report("m2", "Unknown");
        assert_eq!(halt.standing(), Standing::default(), "two are not too many");
        report("m3", "False");
        assert_eq!(halt.standing(), Standing { halted: true, resumed: None });
        let one = |name: &str| Some(name.to_owned());
        assert_eq!(std::mem::take(&mut *heard.lock()), [one("m1"), one("m2"), None]);
        report("m4", "False");
        assert_eq!(std::mem::take(&mut *heard.lock()), [one("m4")], "it is told once");

        let before = Instant::now();
        report("m3", "True");
        report("m4", "True");
        let Standing { halted, resumed } = halt.standing();
        assert!(!halted && resumed.is_some_and(|resumed| resumed >= before));
        assert_eq!(std::mem::take(&mut *heard.lock()), [one("m3"), None]);
        let now = Instant::now();
        assert!(halt.sight().unchanged_for("m1", now) <= now - before, "time counts anew");
        assert_eq!(halt.standing().since(before), resumed.expect("it has ended"));
        assert_eq!(halt.standing().since(now), now, "that was later");

        assert_eq!(world.told_of(HALTED, 4).await, ["Cluster"; 4], "each that is lost is told of once");
        let stop = "3 of 4 clusters are lost at once: evictions stop until fewer than 55% of the clusters, or fewer than 3 are. \
                    This control plane may have lost its own network.";
        assert_eq!(world.event(HALTED).await, stop);
        assert_eq!(world.told_of(RESUMED, 4).await, ["Cluster"; 4]);
        assert_eq!(world.event(RESUMED).await, "2 of 4 clusters are lost: evictions go on.");
    }
}
