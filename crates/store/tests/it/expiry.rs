//! Entries with a time limit.

use std::{sync::Arc, time::Duration};

use store::{Expect, Options, Store};

use crate::support::{ManualClock, Mark, put, show, show_events, soon};

const MINUTE: Duration = Duration::from_secs(60);

fn options(clock: &Arc<ManualClock>) -> Options {
    Options { clock: Arc::clone(clock) as _, ttl_sweep: Duration::from_secs(1), ..Options::memory() }
}

async fn put_for(store: &Store<Mark>, name: &str, value: &str, ttl: Option<Duration>) {
    let write = put("events", name, Expect::Any, value).buffered();
    let write = match ttl {
        Some(ttl) => write.with_ttl(ttl),
        None => write,
    };
    store.commit(write).await.expect("an unconditional put succeeds");
}

#[tokio::test]
async fn an_expired_entry_is_deleted_with_an_ordinary_event() {
    let clock = Arc::<ManualClock>::default();
    let store = Store::<Mark>::open(options(&clock)).unwrap();
    put_for(&store, "short", "1", Some(MINUTE)).await; // 2
    put_for(&store, "long", "1", Some(3 * MINUTE)).await; // 3
    put_for(&store, "forever", "1", None).await; // 4
    let mut watch = store.watch("events", store.revision()).unwrap();
    clock.advance(MINUTE);
    store.nudge();
    assert_eq!(show_events(&soon(watch.next()).await.unwrap()), ["5 short: 1 -> -"]);
    assert_eq!(show(&store.snapshot("events")), ["forever=1@4/4", "long=1@3/3"]);
    clock.advance(5 * MINUTE);
    store.nudge();
    assert_eq!(show_events(&soon(watch.next()).await.unwrap()), ["6 long: 1 -> -"]);
    assert_eq!(show(&store.snapshot("events")), ["forever=1@4/4"]);
}

#[tokio::test]
async fn every_put_states_the_limit_anew() {
    let clock = Arc::<ManualClock>::default();
    let store = Store::<Mark>::open(options(&clock)).unwrap();
    put_for(&store, "renewed", "1", Some(MINUTE)).await;
    put_for(&store, "made-permanent", "1", Some(MINUTE)).await;
    put_for(&store, "control", "1", Some(MINUTE)).await;
    clock.advance(MINUTE / 2);
    put_for(&store, "renewed", "2", Some(MINUTE)).await;
    put_for(&store, "made-permanent", "2", None).await;
    let mut watch = store.watch("events", store.revision()).unwrap();
    clock.advance(MINUTE / 2);
    store.nudge();
    assert_eq!(show_events(&soon(watch.next()).await.unwrap()), ["7 control: 1 -> -"]);
    clock.advance(MINUTE / 2);
    store.nudge();
    assert_eq!(show_events(&soon(watch.next()).await.unwrap()), ["8 renewed: 2 -> -"]);
    assert_eq!(show(&store.snapshot("events")), ["made-permanent=2@3/6"]);
}

#[tokio::test]
async fn limits_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::<ManualClock>::default();
    let options = || Options { clock: Arc::clone(&clock) as _, ..Options::file(dir.path()) };
    let store = Store::<Mark>::open(options()).unwrap();
    put_for(&store, "while-away", "1", Some(MINUTE)).await;
    put_for(&store, "later", "1", Some(3 * MINUTE)).await;
    store.close().await;
    clock.advance(2 * MINUTE);
    let store = Store::<Mark>::open(options()).unwrap();
    let mut watch = store.watch("events", 3).unwrap();
    assert_eq!(show_events(&soon(watch.next()).await.unwrap()), ["4 while-away: 1 -> -"]);
    assert_eq!(store.get("events", "later").unwrap().modified, 3);
    clock.advance(2 * MINUTE);
    store.nudge();
    assert_eq!(show_events(&soon(watch.next()).await.unwrap()), ["5 later: 1 -> -"]);
}

#[tokio::test]
async fn the_sweeper_wakes_by_itself() {
    let sweep = Options { ttl_sweep: Duration::from_millis(1), ..Options::memory() };
    let store = Store::<Mark>::open(sweep).unwrap();
    let mut watch = store.watch("events", 2).unwrap();
    put_for(&store, "a", "1", Some(Duration::from_millis(5))).await;
    assert_eq!(show_events(&soon(watch.next()).await.unwrap()), ["3 a: 1 -> -"]);
}

#[tokio::test]
async fn thousands_can_expire_together() {
    let clock = Arc::<ManualClock>::default();
    let store = Store::<Mark>::open(options(&clock)).unwrap();
    for n in 0..2_500 {
        put_for(&store, &format!("e{n}"), "1", Some(MINUTE)).await;
    }
    clock.advance(MINUTE);
    store.nudge();
    soon(store.wait_for(1 + 5_000)).await;
    assert!(store.snapshot("events").is_empty());
}
