//! Connections to estimators on a server: when they are made, missed and ended.

use runtime::Key;
use serde_json::{Value, json};

use super::super::settings::Settings;
use super::*;
use crate::world::World;

struct Test {
    world: World,
    connections: Connections,
    /// A cluster.
    name: String,
}

impl Test {
    async fn new(skip_pull_mode: bool, cluster: Value) -> Self {
        let world = World::new().await;
        let name = world.cluster("m1", cluster).await;
        let estimating = Some(Estimating { options: Options::default(), skip_pull_mode });
        let settings = Settings { estimating, ..Settings::default() };
        let connections = Connections(Arc::new(Controller::new(&world.plane, settings)));
        world.writes();
        Self { world, connections, name }
    }

    async fn once(&self) -> Outcome {
        self.world.once(&self.connections, &self.name).await
    }

    fn is_connected(&self) -> bool {
        let estimators = self.connections.0.estimators.as_ref();
        estimators.is_some_and(|estimators| estimators.client.is_connected(&self.name))
    }

    async fn end(self) {
        assert_eq!(self.world.writes(), [""; 0], "nothing is written");
        self.world.supervisor.stop().await;
    }
}

fn pull() -> Value {
    json!({ "spec": { "syncMode": "Pull" } })
}

#[tokio::test]
async fn a_connection_lasts_from_the_first_answer_until_the_cluster_is_gone() {
    let test = Test::new(false, pull()).await;
    let missed = test.once().await;
    assert!(matches!(missed, Outcome::Failed { conflict: false, .. }), "{missed:?}");
    assert!(!test.is_connected());
    test.world.serve_estimator(&test.name, &Options::default()).await;
    for _ in 0..2 {
        assert_eq!(test.once().await, Outcome::Done);
        assert!(test.is_connected());
    }
    test.world.environment.mirrors.clusters.remove(&Key::new("", test.name.as_str()), 0);
    assert_eq!(test.once().await, Outcome::Done);
    assert!(!test.is_connected());
    assert_eq!(test.once().await, Outcome::Done, "it stays away");
    test.end().await;
}

#[tokio::test]
async fn an_estimator_is_not_missed_where_nodes_and_pods_are_known() {
    let test = Test::new(false, json!({})).await;
    test.world.environment.members.adopt(&test.name, test.world.environment.client());
    assert_eq!(test.once().await, Outcome::Retry, "it is looked for again");
    test.world.environment.members.remove(&test.name);
    let missed = test.once().await;
    assert!(matches!(missed, Outcome::Failed { conflict: false, .. }), "{missed:?}");
    test.end().await;
}

#[tokio::test]
async fn clusters_in_pull_mode_are_passed_over_if_so_set() {
    let test = Test::new(true, pull()).await;
    test.world.serve_estimator(&test.name, &Options::default()).await;
    assert_eq!(test.once().await, Outcome::Done);
    assert!(!test.is_connected());
    assert!(!test.world.reads().iter().any(|path| path.contains("/services")), "it is not even looked for");
    test.end().await;
}
