//! What a real etcd cannot be made to do at will.

use super::*;
use crate::disk::RawEntry;

fn follower() -> Follower<()> {
    let client = Client::new(&EtcdOptions::new(["http://127.0.0.1:1".to_owned()])).expect("an address");
    let everything = Everything { revision: 10, newest: 10, collections: HashMap::new() };
    Follower::new(Options::memory(), client, Keys::new("test"), everything)
}

/// As if everything had been read anew.
fn read_anew(follower: &mut Follower<()>, revision: Revision, modified: Revision) {
    let raw = RawEntry {
        name: "a".into(),
        created: modified,
        modified,
        expires_ms: None,
        value: Bytes::from_static(b"x"),
    };
    let collection: Arc<str> = "c".into();
    let entries = parse_heads(&collection, vec![raw]);
    follower.shared.state.write().replace(revision, HashMap::from([(collection, entries)]));
    follower.applied = revision;
}

#[tokio::test]
async fn a_write_whose_answer_comes_after_everything_was_read_anew_is_acknowledged() {
    let mut follower = follower();
    let key: Key = ("c".into(), "a".into());
    for (id, revision, shown) in [(1, 15, true), (2, 25, false)] {
        let flight = Flight { id, value: None, head: None, seen: Vec::new(), acknowledged: None };
        follower.flights.entry(key.clone()).or_default().push(flight);
        read_anew(&mut follower, 20, 15);
        let (done, mut outcome) = oneshot::channel();
        follower.acknowledge(&key, id, revision, done);
        let told = outcome.try_recv().ok().map(|reply| reply.ok().map(|made| made.revision));
        assert_eq!(told, shown.then_some(Some(revision)), "what is not shown yet is waited for");
    }
    // It comes with the next reading.
    let before = follower.flights.len();
    read_anew(&mut follower, 30, 25);
    follower.answer_shown(&key);
    assert_eq!((before, follower.flights.len()), (1, 0));
}
