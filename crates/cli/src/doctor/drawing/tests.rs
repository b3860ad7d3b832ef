//! Compares the output with recorded texts: `UPDATE_GOLDEN=1 cargo test -p cli doctor` rewrites them.

use serde_json::{Value, json};

use super::super::findings::judge_probes;
use super::super::gather::{ClusterFacts, Facts, MemberFacts};
use super::super::report::{Finding, Probe, diagnose};
use super::*;

#[track_caller]
fn check(case: &str, text: &str) {
    let path = format!("{}/testdata/doctor/{case}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).expect("the text is written");
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, recorded, "{case}; hint: UPDATE_GOLDEN=1 cargo test -p cli doctor rewrites it");
}

fn slice(name: &str, service: &str, manager: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|address| json!({ "addresses": [address] })).collect();
    json!({
        "kind": "EndpointSlice",
        "metadata": { "name": name, "labels": {
            "kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": manager } },
        "endpoints": endpoints, "ports": [{ "name": "http", "port": 8080 }],
    })
}

fn own(name: &str, addresses: &[&str]) -> Value {
    slice(name, "web", "endpointslice-controller.k8s.io", addresses)
}

fn dispatched(name: &str, addresses: &[&str]) -> Value {
    slice(name, "web", "endpointslice-dispatch-controller.karmada.io", addresses)
}

fn imported(name: &str, addresses: &[&str]) -> Value {
    slice(name, "derived-web", "endpointslice-controller.karmada.io", addresses)
}

/// A Work with a slice of a cluster, for a MultiClusterService or for a ServiceExport.
fn collected(cluster: &str, label: &str, slice: &Value) -> Value {
    json!({
        "metadata": { "namespace": format!("karmada-es-{cluster}"), "labels": { (label): "web" } },
        "spec": { "workload": { "manifests": [slice] } },
    })
}

const MULTI: &str = "multiclusterservice.karmada.io/name";
const EXPORT: &str = "endpointslice.karmada.io/name";

fn cluster(name: &str, ready: &str, member: Result<MemberFacts, &str>) -> ClusterFacts {
    ClusterFacts {
        name: name.to_owned(),
        object: json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } }),
        member: member.map_err(str::to_owned),
    }
}

fn member(networks: &[&str], slices: Vec<Value>) -> MemberFacts {
    MemberFacts {
        service: true,
        knows_exports: true,
        slices,
        networks: networks.iter().map(|range| (*range).to_owned()).collect(),
        ..MemberFacts::default()
    }
}

fn service() -> Option<Value> {
    Some(json!({ "spec": { "ports": [{ "port": 80 }] } }))
}

/// Two providers and a consumer.
fn shared() -> Facts {
    let (one, two) = (own("web-a", &["10.1.0.5", "10.1.0.6"]), own("web-b", &["10.2.0.7"]));
    let named = |names: &[&str]| -> Value { names.iter().map(|name| json!({ "name": name })).collect() };
    Facts {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        service: service(),
        multi: Some(json!({
            "spec": { "types": ["CrossCluster"], "providerClusters": named(&["member1", "member2"]),
                "consumerClusters": named(&["member3"]) },
            "status": { "conditions": [{ "type": "ServiceApplied", "status": "True" }] },
        })),
        works: vec![collected("member1", MULTI, &one), collected("member2", MULTI, &two)],
        clusters: vec![
            cluster("member1", "True", Ok(member(&["10.1.0.0/24", "10.1.1.0/24"], vec![one.clone()]))),
            cluster("member2", "True", Ok(member(&["10.2.0.0/16"], vec![two.clone()]))),
            cluster(
                "member3",
                "True",
                Ok(member(
                    &["10.3.0.0/16"],
                    vec![
                        dispatched("member1-web-a", &["10.1.0.5", "10.1.0.6"]),
                        dispatched("member2-web-b", &["10.2.0.7"]),
                    ],
                )),
            ),
            cluster("bystander", "True", Ok(member(&["10.1.0.0/16"], vec![]))),
        ],
        ..Facts::default()
    }
}

#[test]
fn a_service_that_is_shared_as_it_should_be() {
    let report = diagnose(&shared());
    assert!(report.is_well());
    check("shared.txt", &draw(&report));
    check("shared.json", &format!("{}\n", serde_json::to_string_pretty(&report).expect("JSON")));
}

#[test]
fn a_service_that_is_offered_by_nothing() {
    let report = diagnose(&Facts { multi: None, works: Vec::new(), clusters: Vec::new(), ..shared() });
    assert!(!report.is_well());
    check("nothing.txt", &draw(&report));
    let facts = Facts { service: None, multi: None, works: Vec::new(), clusters: Vec::new(), ..shared() };
    check("no-such-service.txt", &draw(&diagnose(&facts)));
}

#[test]
fn a_service_without_endpoints_is_not_well_unless_another_cluster_has_some() {
    let mut facts = shared();
    let none = own("web-a", &[]);
    facts.works[0] = collected("member1", MULTI, &none);
    facts.clusters[0].member = Ok(member(&["10.1.0.0/16"], vec![none.clone()]));
    let slices = vec![dispatched("member1-web-a", &[]), dispatched("member2-web-b", &["10.2.0.7"])];
    facts.clusters[2].member = Ok(member(&["10.3.0.0/16"], slices));
    let report = diagnose(&facts);
    let told: Vec<(&str, Severity)> =
        report.findings.iter().map(|finding| (finding.about.as_str(), finding.severity)).collect();
    assert_eq!(told, [("member1", Severity::Note)]);
    facts.works[1] = collected("member2", MULTI, &own("web-b", &[]));
    facts.clusters[1].member = Ok(member(&["10.2.0.0/16"], vec![]));
    facts.clusters[2].member = Ok(member(&["10.3.0.0/16"], vec![dispatched("member1-web-a", &[])]));
    facts.works.truncate(1);
    let report = diagnose(&facts);
    assert!(!report.is_well());
    check("no-endpoints.txt", &draw(&report));
}

#[test]
fn endpoints_that_are_not_ready_neither_count_nor_are_tried() {
    let unready = |mut slice: Value| {
        slice["endpoints"][0]["conditions"] = json!({ "ready": false });
        slice
    };
    // First one of two is not ready, then the only one.
    let (one, two) = (unready(own("web-a", &["10.1.0.5", "10.1.0.6"])), unready(own("web-b", &["10.2.0.7"])));
    let mut facts = shared();
    facts.works = vec![collected("member1", MULTI, &one), collected("member2", MULTI, &two)];
    facts.clusters[0].member = Ok(member(&["10.1.0.0/16"], vec![one]));
    facts.clusters[1].member = Ok(member(&["10.2.0.0/16"], vec![two]));
    let there =
        [dispatched("member1-web-a", &["10.1.0.5", "10.1.0.6"]), dispatched("member2-web-b", &["10.2.0.7"])];
    facts.clusters[2].member = Ok(member(&["10.3.0.0/16"], there.map(unready).to_vec()));
    let report = diagnose(&facts);
    let counts: Vec<_> = report.clusters.iter().map(|row| (row.own, row.unready, row.collected)).collect();
    assert_eq!(counts[..2], [(Some(1), Some(1), 1), (Some(0), Some(1), 0)]);
    let tried: Vec<_> = report.flows.iter().flat_map(|flow| flow.endpoints.clone()).collect();
    assert_eq!(tried, [("10.1.0.6".to_owned(), 8080)]);
    assert!(report.flows.iter().all(|flow| flow.complete), "{:?}", report.flows);
    let told: Vec<(&str, &str)> =
        report.findings.iter().map(|finding| (finding.about.as_str(), finding.message.as_str())).collect();
    assert_eq!(told, [("member2", "it has 1 endpoints, none is ready")]);
    assert!(!report.is_well());
}

#[test]
fn ports_of_an_import_are_compared_with_their_names_and_protocols() {
    let told = |offered: Value, wanted: Value| -> Vec<String> {
        let facts = Facts {
            multi: None,
            service: Some(json!({ "spec": { "ports": offered } })),
            import: Some(json!({ "spec": { "type": "ClusterSetIP", "ports": wanted } })),
            ..shared()
        };
        let found = diagnose(&facts).findings.into_iter().map(|finding| finding.message);
        found.filter(|message| message.contains("asks for port")).collect()
    };
    let asks = |port: &str| vec![format!("it asks for port {port}, which the Service does not have")];
    let named = || json!([{ "name": "http", "port": 80 }]);
    assert_eq!(told(named(), json!([{ "name": "http", "port": 80, "protocol": "TCP" }])), [""; 0]);
    assert_eq!(told(named(), json!([{ "name": "web", "port": 80 }])), asks("80 named web"));
    assert_eq!(told(named(), json!([{ "port": 80 }])), asks("80 without a name"));
    assert_eq!(told(named(), json!([{ "name": "", "port": 81 }])), asks("81"));
    let udp = json!([{ "name": "http", "port": 80, "protocol": "UDP" }]);
    assert_eq!(told(named(), udp), asks("80/UDP named http"));
}

#[test]
fn a_probe_that_tried_nothing_says_so() {
    let mut report = diagnose(&shared());
    for flow in &mut report.flows {
        flow.probe = Some(Probe::Skipped("no pod runs there".to_owned()));
    }
    judge_probes(&mut report);
    assert!(report.is_well());
    let told: Vec<(&str, &str)> =
        report.findings.iter().map(|finding| (finding.about.as_str(), finding.message.as_str())).collect();
    assert_eq!(told, [("member3", "no connection was tried from it: no pod runs there")]);
    assert!(!draw(&report).contains("Everything is as it should be"));
}

#[test]
fn advice_about_a_missing_service_depends_on_who_brings_it() {
    let mut facts = shared();
    facts.clusters[1].member = Ok(MemberFacts { service: false, ..member(&[], vec![]) });
    let advice = |facts: &Facts| -> Vec<String> {
        let missing = |finding: &&Finding| finding.message.contains("does not have it");
        diagnose(facts).findings.iter().filter(missing).map(|finding| finding.advice.clone()).collect()
    };
    let told = advice(&facts);
    assert!(told.len() == 1 && told[0].contains("kubectl get works -n karmada-es-member2"), "{told:?}");
    facts.clusters[1].member = Ok(MemberFacts { service: false, export: true, ..member(&[], vec![]) });
    assert_eq!(advice(&facts), ["bring the Service there with a policy, as the ServiceExport"]);
}

#[test]
fn everything_that_can_go_wrong_is_named_with_advice() {
    let mut facts = shared();
    // The first provider has one endpoint more than was collected, the second is away, and the consumer lacks a slice and has an
    // extra one. Pods of the consumer have the same addresses as the first provider's.
    facts.clusters[0].member =
        Ok(member(&["10.1.0.0/16"], vec![own("web-a", &["10.1.0.5", "10.1.0.6", "10.1.0.9"])]));
    facts.clusters[1] = cluster("member2", "False", Err("cluster member2 does not answer"));
    facts.clusters[2].member = Ok(MemberFacts {
        unreadable: vec!["Nodes: nodes is forbidden".to_owned()],
        ..member(&["10.1.0.0/16"], vec![dispatched("member9-old", &["10.9.0.1"])])
    });
    facts.clusters[2].object["status"]["conditions"]
        .as_array_mut()
        .expect("conditions")
        .push(json!({ "type": "ServiceDomainNameResolutionReady", "status": "False" }));
    let multi = facts.multi.as_mut().expect("a MultiClusterService");
    multi["spec"]["consumerClusters"].as_array_mut().expect("a list").push(json!({ "name": "nowhere" }));
    let mut report = diagnose(&facts);
    report.flows[0].probe = Some(Probe::Unreachable {
        tried: 2,
        failed: vec!["10.1.0.5:8080".to_owned(), "10.1.0.6:8080".to_owned()],
        pod: "shell-0".to_owned(),
    });
    report.flows[1].probe = Some(Probe::Skipped("there is nothing to reach".to_owned()));
    judge_probes(&mut report);
    assert!(!report.is_well());
    check("trouble.txt", &draw(&report));
}

#[test]
fn a_multi_cluster_service_that_nobody_carries_out() {
    let mut facts = shared();
    facts.works.clear();
    let multi = facts.multi.as_mut().expect("a MultiClusterService");
    multi["status"] = json!({});
    facts.clusters.truncate(1);
    facts.clusters.push(cluster("member2", "True", Ok(MemberFacts::default())));
    facts.clusters.push(cluster("member3", "True", Ok(MemberFacts::default())));
    check("not-carried-out.txt", &draw(&diagnose(&facts)));
    // The missing Service is reported first.
    facts.service = None;
    check("no-service.txt", &draw(&diagnose(&facts)));
    let mut facts = shared();
    let multi = facts.multi.as_mut().expect("a MultiClusterService");
    multi["spec"]["types"] = json!(["LoadBalancer"]);
    let report = diagnose(&facts);
    let found = report.findings.iter().find(|found| found.about == "MultiClusterService").expect("a finding");
    assert_eq!(
        found.advice,
        "delete it and create it anew with the type CrossCluster; its types cannot be changed"
    );
}

#[test]
fn an_exported_service_and_its_import() {
    let one = own("web-a", &["10.1.0.5"]);
    let import = json!({ "spec": { "type": "ClusterSetIP", "ports": [{ "port": 80 }] } });
    let mut facts = Facts {
        multi: None,
        export: Some(json!({})),
        import: Some(import),
        works: vec![collected("member1", EXPORT, &one)],
        clusters: vec![
            cluster("member1", "True", Ok(MemberFacts { export: true, ..member(&[], vec![one.clone()]) })),
            cluster(
                "member2",
                "True",
                Ok(MemberFacts {
                    service: false,
                    derived: true,
                    ..member(&["fd00:2::/64"], vec![imported("imported-member1-web-a", &["10.1.0.5"])])
                }),
            ),
        ],
        ..shared()
    };
    let report = diagnose(&facts);
    assert!(report.is_well());
    check("exported.txt", &draw(&report));
    // The export was not brought there, a member does not know the kind, and the import has another port.
    facts.works.clear();
    facts.import = Some(json!({ "spec": { "type": "ClusterSetIP", "ports": [{ "port": 81 }] } }));
    for cluster in &mut facts.clusters {
        let member = cluster.member.as_mut().expect("a member");
        (member.export, member.knows_exports, member.derived) = (false, false, false);
        member.slices.retain(|slice| slice["metadata"]["name"] == "web-a");
    }
    check("not-exported.txt", &draw(&diagnose(&facts)));
}

#[test]
fn what_clusters_that_were_not_asked_have_is_not_known() {
    let import = json!({ "spec": { "type": "ClusterSetIP", "ports": [{ "port": 80 }] } });
    let away = || cluster("member1", "True", Err("cluster member1 does not answer"));
    let importer = |derived: bool| {
        let slices = if derived { vec![imported("imported-member1-web-a", &["10.1.0.5"])] } else { vec![] };
        let knows_exports = false;
        let member = MemberFacts { service: false, derived, knows_exports, ..member(&[], slices) };
        cluster("member3", "True", Ok(member))
    };
    let facts = |partial: bool, works: Vec<Value>, clusters: Vec<ClusterFacts>| Facts {
        multi: None,
        export: Some(json!({})),
        import: Some(import.clone()),
        works,
        clusters,
        partial,
        ..shared()
    };
    // The exporter does not answer, and nothing was collected from it. It may have the derived Service, too.
    let report = diagnose(&facts(false, vec![], vec![away(), importer(false)]));
    assert!(report.is_well());
    check("not-seen.txt", &draw(&report));
    // Only the importer was queried: the collected slices show that there is another exporter.
    let works = || vec![collected("member1", EXPORT, &own("web-a", &["10.1.0.5"]))];
    let severities = |facts: &Facts| -> Vec<(String, Severity)> {
        let findings = diagnose(facts).findings;
        findings.into_iter().map(|finding| (finding.message, finding.severity)).collect()
    };
    let unknown_kind = ("member3 do not know the kind ServiceExport".to_owned(), Severity::Note);
    assert_eq!(severities(&facts(true, works(), vec![importer(true)])), std::slice::from_ref(&unknown_kind));
    let unseen = "no cluster that could be asked exports the Service; another one may".to_owned();
    assert_eq!(
        severities(&facts(true, vec![], vec![importer(true)])),
        [(unseen, Severity::Note), unknown_kind]
    );
    // If a cluster answers, its answer counts.
    let mut stale = facts(false, works(), vec![importer(true)]);
    stale.clusters.push(cluster("member1", "True", Ok(member(&[], vec![]))));
    let none = "there is a ServiceExport in the control plane, and none in any member".to_owned();
    assert!(severities(&stale).contains(&(none, Severity::Problem)));
}
