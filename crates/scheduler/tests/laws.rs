//! Laws that hold for every decision, over random fleets and bindings.

use std::sync::Arc;

use api::cluster::Cluster;
use api::work::{ResourceBindingSpec, ResourceBindingStatus, TargetCluster};
use jiff::Timestamp;
use proptest::prelude::*;
use scheduler::{Assumptions, Fleet, Groups, Options, Scheduler, World};
use serde_json::{Value, json};

/// What a random cluster is made of.
#[derive(Debug, Clone)]
struct Member {
    room: i64,
    region: u8,
    tainted: bool,
}

impl Member {
    fn cluster(&self, index: usize) -> Arc<Cluster> {
        let taints = if self.tainted { json!([{"key": "k", "effect": "NoSchedule"}]) } else { json!([]) };
        let cluster = json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": format!("m{index:02}")},
            "spec": {"syncMode": "Push", "region": format!("r{}", self.region), "taints": taints},
            "status": {
                "apiEnablements": [{"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]}],
                "resourceSummary": {"allocatable": {"cpu": self.room.to_string(), "pods": "1000"}},
            },
        });
        Arc::new(serde_json::from_value(cluster).expect("a cluster"))
    }
}

#[derive(Debug, Clone)]
struct Case {
    members: Vec<Member>,
    strategy: Value,
    constraints: Value,
    replicas: i32,
    previous: Vec<(usize, i32)>,
    uid: String,
    fresh: bool,
}

impl Case {
    fn fleet(&self) -> Fleet {
        Fleet::new(self.members.iter().enumerate().map(|(index, member)| member.cluster(index)))
    }

    fn spec(&self) -> ResourceBindingSpec {
        let mut seen = std::collections::BTreeSet::new();
        let clusters: Vec<Value> = self
            .previous
            .iter()
            .map(|(index, replicas)| (index % self.members.len(), replicas))
            .filter(|(index, _)| seen.insert(*index))
            .map(|(index, replicas)| json!({"name": format!("m{index:02}"), "replicas": replicas}))
            .collect();
        let mut spec = json!({
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ns", "name": "web", "uid": self.uid},
            "replicas": self.replicas,
            "replicaRequirements": {"resourceRequest": {"cpu": "1"}},
            "clusters": clusters,
            "placement": {"replicaScheduling": self.strategy, "spreadConstraints": self.constraints},
        });
        if self.fresh {
            spec["rescheduleTriggeredAt"] = json!("2026-01-02T00:00:00Z");
        }
        serde_json::from_value(spec).expect("a spec")
    }

    fn status() -> ResourceBindingStatus {
        serde_json::from_value(json!({"lastScheduledTime": "2026-01-01T00:00:00Z"})).expect("a status")
    }
}

fn decide(fleet: &Fleet, spec: &ResourceBindingSpec) -> Result<Vec<TargetCluster>, String> {
    let (workloads, assumptions) = (Groups::default(), Assumptions::default());
    let world = World {
        fleet,
        workloads: &workloads,
        assumptions: &assumptions,
        estimators: &[],
        now: Timestamp::UNIX_EPOCH,
    };
    let attempt = Scheduler::new(Options::default()).schedule(world, spec, &Case::status());
    match attempt.result {
        Ok(decision) => Ok(decision.clusters),
        Err(failure) => Err(failure.message),
    }
}

fn sum(clusters: &[TargetCluster]) -> i32 {
    clusters.iter().map(|target| target.replicas).sum()
}

fn strategies() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"})),
        Just(json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
            "weightPreference": {"dynamicWeight": "AvailableReplicas"}})),
        Just(json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted"})),
    ]
}

fn constraints() -> impl Strategy<Value = Value> {
    let limits = |field: &'static str| {
        (1i64..4, 0i64..4).prop_map(
            move |(min, more)| json!({"spreadByField": field, "minGroups": min, "maxGroups": min + more}),
        )
    };
    prop_oneof![
        3 => Just(json!([])),
        1 => limits("cluster").prop_map(|cluster| json!([cluster])),
        1 => (limits("cluster"), limits("region")).prop_map(|(cluster, region)| json!([cluster, region])),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let member = (0i64..12, 0u8..4, prop::bool::weighted(0.2)).prop_map(|(room, region, tainted)| Member {
        room,
        region,
        tainted,
    });
    (
        prop::collection::vec(member, 1..24),
        strategies(),
        constraints(),
        1i32..40,
        prop::collection::vec((0usize..24, 0i32..6), 0..8),
        "[a-d]{0,3}",
        prop::bool::weighted(0.2),
    )
        .prop_map(|(members, strategy, constraints, replicas, previous, uid, fresh)| Case {
            members,
            strategy,
            constraints,
            replicas,
            previous,
            uid,
            fresh,
        })
}

/// Static weights promise nothing about room.
fn by_room(case: &Case) -> bool {
    case.strategy["replicaDivisionPreference"] == "Aggregated"
        || case.strategy["weightPreference"].is_object()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn divided_replicas_add_up(case in cases()) {
        if let Ok(clusters) = decide(&case.fleet(), &case.spec()) {
            prop_assert_eq!(sum(&clusters), case.replicas);
            prop_assert!(clusters.iter().all(|target| target.replicas > 0));
        }
    }

    #[test]
    fn no_cluster_gets_more_than_it_has_room_for(case in cases()) {
        let spec = case.spec();
        if by_room(&case) && let Ok(clusters) = decide(&case.fleet(), &spec) {
            for target in clusters {
                let index: usize = target.name[1..].parse().expect("a number");
                let had = spec.clusters.iter().find(|old| old.name == target.name).map_or(0, |old| old.replicas);
                // What was assigned before counts as room: those replicas run already.
                prop_assert!(i64::from(target.replicas) <= case.members[index].room + i64::from(had));
            }
        }
    }

    #[test]
    fn a_fully_placed_binding_does_not_move(case in cases()) {
        let mut case = case;
        case.fresh = false;
        let fleet = case.fleet();
        let mut spec = case.spec();
        if by_room(&case) && let Ok(clusters) = decide(&fleet, &spec) {
            spec.clusters = clusters.clone();
            // The new result may lose a region or cluster race against itself only if it does not satisfy the constraints;
            // without constraints it must stay, whatever the room.
            spec.placement.as_mut().expect("set").spread_constraints.clear();
            prop_assert_eq!(decide(&fleet, &spec), Ok(clusters));
        }
    }

    #[test]
    fn the_order_in_which_clusters_come_changes_nothing(case in cases(), seed in any::<u64>()) {
        let spec = case.spec();
        let mut clusters: Vec<Arc<Cluster>> =
            case.members.iter().enumerate().map(|(index, member)| member.cluster(index)).collect();
        let expected = decide(&case.fleet(), &spec);
        let length = clusters.len();
        for index in 0..length {
            clusters.swap(index, (seed.rotate_left(index as u32 * 7) % length as u64) as usize);
        }
        let mut fleet = Fleet::default();
        for cluster in clusters {
            fleet.upsert(cluster);
        }
        prop_assert!(fleet.check());
        prop_assert_eq!(decide(&fleet, &spec), expected);
    }

    #[test]
    fn the_same_input_gives_the_same_bytes(case in cases()) {
        let fleet = case.fleet();
        let spec = case.spec();
        let (workloads, assumptions) = (Groups::default(), Assumptions::default());
        let run = || {
            let world = World { fleet: &fleet, workloads: &workloads, assumptions: &assumptions, estimators: &[], now: Timestamp::UNIX_EPOCH };
            match Scheduler::new(Options::default()).decide(world, &spec, &Case::status(), "") {
                Ok(decision) => {
                    serde_json::to_string(&(decision.clusters, decision.diagnosis.report())).expect("encodes")
                }
                Err(failure) => {
                    serde_json::to_string(&(failure.message, failure.diagnosis.report())).expect("encodes")
                }
            }
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn a_cluster_that_comes_and_goes_leaves_no_trace(case in cases(), index in 0usize..24) {
        let spec = case.spec();
        let expected = decide(&case.fleet(), &spec);
        let mut fleet = case.fleet();
        let changed = index % case.members.len();
        let other = Member { room: 99, region: 3, tainted: true };
        fleet.upsert(other.cluster(changed));
        fleet.upsert(other.cluster(90));
        fleet.remove("m90");
        fleet.upsert(case.members[changed].cluster(changed));
        prop_assert!(fleet.check());
        prop_assert_eq!(decide(&fleet, &spec), expected);
    }
}
