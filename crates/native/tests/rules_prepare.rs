//! What a write gets and keeps: status, generations, metadata, Service addresses.

use std::cell::RefCell;

use apimachinery::gvk::Gvk;
use native::prepare::service::{self, Allocation, Allocator, Family};
use native::prepare::{self, Context};
use native::validation;
use serde_json::{Value, json};

fn ctx() -> Context<'static> {
    let now = "2026-01-01T00:00:00Z".parse().expect("a time");
    Context { user: "alice", user_uid: "7", groups: &[], extra: None, now, uid: "u" }
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "n", "uid": "u", "generation": 3, "labels": {"a": "b"},
            "resourceVersion": "5", "creationTimestamp": "2025-01-01T00:00:00Z"},
        "spec": {"replicas": 1},
        "status": {"replicas": 1},
    })
}

fn apps(kind: &str) -> Gvk {
    Gvk::new("apps", "v1", kind)
}

#[test]
fn the_main_resource_keeps_the_status_and_moves_the_generation_with_the_spec() {
    let old = deployment();
    let mut new = old.clone();
    new["status"] = json!({"replicas": 9});
    new["metadata"]["generation"] = json!(77);
    prepare::for_update(&apps("Deployment"), &mut new, &old, &ctx());
    assert_eq!(new, old);

    new["spec"]["replicas"] = json!(2);
    prepare::for_update(&apps("Deployment"), &mut new, &old, &ctx());
    assert_eq!(new["metadata"]["generation"], 4);
}

#[test]
fn the_status_resource_keeps_the_spec_and_the_labels_of_a_deployment() {
    let old = deployment();
    let mut new = old.clone();
    new["spec"]["replicas"] = json!(9);
    new["metadata"]["labels"] = json!({"x": "y"});
    new["metadata"]["annotations"] = json!({"kept": "yes"});
    new["status"] = json!({"replicas": 2});
    prepare::for_status_update(&apps("Deployment"), &mut new, &old, &ctx());
    let mut expected = old;
    expected["metadata"]["annotations"] = json!({"kept": "yes"});
    expected["status"] = json!({"replicas": 2});
    assert_eq!(new, expected);
}

#[test]
fn system_metadata_of_a_client_is_wiped_on_creation_and_restored_on_update() {
    let mut new =
        json!({"metadata": {"name": "c", "uid": "mine", "deletionTimestamp": "x", "selfLink": "/s"}});
    prepare::metadata_for_create(&mut new, "u", ctx().now);
    assert_eq!(
        new,
        json!({"metadata": {"name": "c", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}})
    );

    let old = json!({"metadata": {"uid": "u", "creationTimestamp": "t", "deletionTimestamp": "d", "generation": 2}});
    let mut new = json!({"metadata": {"creationTimestamp": "forged", "generation": 9}});
    prepare::metadata_for_update(&mut new, &old);
    assert_eq!(new, old);
}

#[test]
fn a_signing_request_shows_who_asks_whatever_it_claims() {
    let gvk = Gvk::new("certificates.k8s.io", "v1", "CertificateSigningRequest");
    let mut csr =
        json!({"metadata": {"name": "c"}, "spec": {"username": "root", "groups": ["system:masters"]}});
    prepare::for_create(&gvk, &mut csr, &ctx());
    assert_eq!(csr["spec"], json!({"username": "alice", "uid": "7"}));
}

#[test]
fn no_finalizer_is_added_while_an_object_is_deleted() {
    let mut old = deployment();
    old["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!(["a.b/c"]);
    let errors = validation::update(&apps("Deployment"), &new, &old);
    let text = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, \
                found new finalizers []string{\"a.b/c\"}";
    assert!(errors.iter().any(|error| error.to_string() == text), "{errors:?}");
}

#[test]
fn errors_that_show_a_whole_list_are_told_a_few_times() {
    let owner = |number: usize| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": number.to_string(), "controller": true});
    let owners: Vec<Value> = (0..300).map(owner).collect();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "n", "ownerReferences": owners}});
    assert_eq!(validation::create(&Gvk::new("", "v1", "ConfigMap"), &map).len(), 10);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "a", "namespace": "n"}, "spec": {"scopes": vec!["odd"; 300]}});
    assert_eq!(validation::create(&Gvk::new("", "v1", "ResourceQuota"), &quota).len(), 10);
}

#[test]
fn a_pod_with_very_many_variables_and_mounts_is_looked_at_in_linear_time() {
    const MANY: usize = 100_000;
    let named = |letter: &str, field: &str| -> Vec<Value> {
        (0..MANY)
            .map(|number| json!({"name": format!("{letter}{number}"), field: format!("/{letter}{number}")}))
            .collect()
    };
    let env: Vec<Value> = (0..MANY).map(|number| json!({"name": format!("V{number}")})).collect();
    let volumes: Vec<Value> =
        (0..MANY).map(|number| json!({"name": format!("m{number}"), "emptyDir": {}})).collect();
    let constraint = |number: usize| json!({"maxSkew": 1, "topologyKey": format!("k{number}"), "whenUnsatisfiable": "DoNotSchedule"});
    let constraints: Vec<Value> = (0..MANY).map(constraint).collect();
    let gates: Vec<Value> = (0..MANY).map(|number| json!({"name": format!("g{number}")})).collect();
    let sysctls: Vec<Value> =
        (0..MANY).map(|number| json!({"name": format!("kernel.s{number}"), "value": "1"})).collect();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "n"},
        "spec": {"containers": [{"name": "c", "image": "i", "env": env, "volumeMounts": named("m", "mountPath"),
            "volumeDevices": named("d", "devicePath")}], "volumes": volumes,
            "topologySpreadConstraints": constraints, "schedulingGates": gates, "securityContext": {"sysctls": sysctls}}});
    // Comparing each with each would take hours.
    let gvk = Gvk::new("", "v1", "Pod");
    let errors = validation::create(&gvk, &pod);
    let lost = errors.iter().filter(|error| error.field.contains("volumeMounts")).count();
    assert_eq!(lost, 0, "all mounted volumes are there");
    assert!(errors.iter().any(|error| error.field.contains("volumeDevices")), "there is no such device");
    prepare::warnings::on_create(&gvk, &pod);
}

#[test]
fn finding_25_a_stateful_set_with_very_many_claims_and_volumes_is_looked_at_in_linear_time() {
    const MANY: usize = 200_000;
    let claims: Vec<Value> =
        (0..MANY).map(|number| json!({"metadata": {"name": format!("c{number}")}})).collect();
    let volumes: Vec<Value> =
        (0..MANY).map(|number| json!({"name": format!("v{number}"), "emptyDir": {}})).collect();
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s", "namespace": "n"},
        "spec": {"volumeClaimTemplates": claims, "selector": {}, "template": {"metadata": {},
            "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes}}}});
    // Looking for each volume among all claims would take minutes.
    assert!(!validation::create(&apps("StatefulSet"), &set).is_empty(), "it selects nothing");
}

#[test]
fn a_service_with_very_many_ports_is_looked_at_in_linear_time() {
    const MANY: usize = 100_000;
    let port = |number: usize| json!({"name": format!("p{number}"), "protocol": "TCP", "port": number, "nodePort": number + 1});
    let ports: Vec<Value> = (0..MANY).map(port).collect();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "n"},
        "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": ports}});
    // Comparing each with each would take hours.
    let errors = validation::create(&Gvk::new("", "v1", "Service"), &service);
    assert!(errors.iter().any(|error| error.field == "spec.ports[0].port"), "zero is not a port");
    assert!(!errors.iter().any(|error| error.to_string().contains("Duplicate")), "none is there twice");
}

#[test]
fn spread_constraints_that_come_again_are_told() {
    let constraint =
        |key: &str| json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "n"},
        "spec": {"containers": [{"name": "c", "image": "i"}],
            "topologySpreadConstraints": [constraint("a"), constraint("b"), constraint("a"), constraint("a")]}});
    let errors = validation::create(&Gvk::new("", "v1", "Pod"), &pod);
    let told: Vec<&str> = errors
        .iter()
        .map(|error| error.field.as_str())
        .filter(|field| field.contains("{topologyKey"))
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("[0]") && told[1].contains("[2]"), "{told:?}");
}

/// Refuses every port but the first it hands out, and remembers what was released.
#[derive(Default)]
struct Stingy {
    ports: RefCell<u16>,
    released: RefCell<Vec<String>>,
}

impl Allocator for Stingy {
    fn families(&self) -> &[Family] {
        &[Family::V4]
    }

    fn cluster_ip(&self, _family: Family, wanted: Option<&str>) -> Result<String, String> {
        match wanted {
            Some("10.96.0.1") => Err("provided IP is already allocated".to_owned()),
            wanted => Ok(wanted.unwrap_or("10.96.0.9").to_owned()),
        }
    }

    fn node_port(&self, _wanted: Option<u16>) -> Result<u16, String> {
        let mut ports = self.ports.borrow_mut();
        *ports += 1;
        if *ports == 1 { Ok(30000) } else { Err("provided port is already allocated".to_owned()) }
    }

    fn release_cluster_ip(&self, address: &str) {
        self.released.borrow_mut().push(address.to_owned());
    }

    fn release_node_port(&self, port: u16) {
        self.released.borrow_mut().push(port.to_string());
    }
}

#[test]
fn a_failed_allocation_leaves_nothing_taken() {
    let allocator = Stingy::default();
    let ports = json!([{"port": 1, "protocol": "TCP"}, {"port": 2, "protocol": "TCP", "nodePort": 30001}]);
    let mut object = json!({"spec": {"type": "NodePort", "ports": ports}});
    let errors = service::allocate(&mut object, None, &allocator).expect_err("the second port is refused");
    assert_eq!(
        errors[0].to_string(),
        "spec.ports[1].nodePort: Invalid value: 30001: provided port is already allocated"
    );
    assert_eq!(*allocator.released.borrow(), ["10.96.0.9", "30000"]);
}

/// Hands out one port after the other, and whatever is asked for.
#[derive(Default)]
struct Generous(RefCell<u16>);

impl Allocator for Generous {
    fn families(&self) -> &[Family] {
        &[Family::V4]
    }

    fn cluster_ip(&self, _family: Family, _wanted: Option<&str>) -> Result<String, String> {
        Ok("10.96.0.9".to_owned())
    }

    fn node_port(&self, wanted: Option<u16>) -> Result<u16, String> {
        Ok(wanted.unwrap_or_else(|| {
            let mut next = self.0.borrow_mut();
            *next += 1;
            *next
        }))
    }

    fn release_cluster_ip(&self, _address: &str) {}

    fn release_node_port(&self, _port: u16) {}
}

/// Looking through all ports for each of them would take minutes: node ports are given before the number of ports is judged.
#[test]
fn finding_25_many_ports_of_a_service_are_given_node_ports_in_linear_time() {
    const MANY: usize = 150_000;
    const NODE_PORTS: usize = 60_000;
    let service = |kind: &str, port: &dyn Fn(usize) -> Value| {
        let ports: Vec<Value> = (0..MANY).map(port).collect();
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "n"},
            "spec": {"type": kind, "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "ports": ports}})
    };
    let node_port = |service: &Value, index: usize| service["spec"]["ports"][index]["nodePort"].clone();

    let mut created = service("NodePort", &|_| json!({"port": 1}));
    let taken = service::allocate(&mut created, None, &Generous::default()).expect("there is room");
    assert_eq!(taken.taken_ports, [1], "ports of one number share");
    assert_eq!(node_port(&created, MANY - 1), 1);

    let number = |index: usize| index % NODE_PORTS + 1;
    let old = service(
        "NodePort",
        &|index| json!({"name": format!("p{index}"), "port": index, "nodePort": number(index)}),
    );
    let gvk = Gvk::new("", "v1", "Service");
    let mut updated = service("NodePort", &|index| json!({"name": format!("p{index}"), "port": index}));
    prepare::for_update(&gvk, &mut updated, &old, &ctx());
    assert_eq!(node_port(&updated, MANY - 1), number(MANY - 1), "a port is known by its name");
    let kept = service::allocate(&mut updated, Some(&old), &Generous::default()).expect("all are its own");
    assert_eq!(kept, Allocation::default());

    let mut fewer = service("ClusterIP", &|index| json!({"port": index, "nodePort": number(index)}));
    prepare::for_update(&gvk, &mut fewer, &old, &ctx());
    assert_eq!(node_port(&fewer, MANY - 1), Value::Null, "the new type has none");
    let freed = service::allocate(&mut fewer, Some(&old), &Generous::default()).expect("nothing is taken");
    assert_eq!(freed.freed_ports.len(), NODE_PORTS);
}

/// Ports of one number share what the first of them got, or what any of them names.
#[test]
fn siblings_share_a_node_port_when_a_service_is_created() {
    let given = |ports: Value, old: Option<&Value>| {
        let mut object = json!({"spec": {"type": "NodePort", "ports": ports}});
        service::allocate(&mut object, old, &Generous::default()).expect("there is room");
        let ports = object["spec"]["ports"].as_array().expect("a list").clone();
        ports.iter().map(|port| port["nodePort"].as_u64().unwrap_or(0)).collect::<Vec<_>>()
    };
    let ports = json!([{"port": 53}, {"port": 80}, {"port": 53}, {"port": 80, "nodePort": 30080},
        {"port": 80, "nodePort": 30081}, {"port": 80}]);
    assert_eq!(given(ports, None), [1, 30080, 1, 30080, 30081, 30080]);
    let old = json!({"spec": {"type": "NodePort", "ports": [{"port": 53, "nodePort": 30053}]}});
    let ports = json!([{"port": 53, "nodePort": 30053}, {"port": 53}, {"port": 53}]);
    assert_eq!(given(ports, Some(&old)), [30053, 1, 2], "a changed Service names its own");
}

#[test]
fn a_taken_address_is_refused_in_upstreams_words() {
    let mut object =
        json!({"spec": {"type": "ClusterIP", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]}});
    let errors = service::allocate(&mut object, None, &Stingy::default()).expect_err("the address is taken");
    assert_eq!(
        errors[0].to_string(),
        "spec.clusterIPs: Invalid value: [\"10.96.0.1\"]: failed to allocate IP 10.96.0.1: provided IP is already allocated"
    );
}

#[test]
fn a_service_holds_its_addresses_and_ports_until_it_is_deleted() {
    let service = json!({"spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.9"], "healthCheckNodePort": 31000,
        "ports": [{"nodePort": 30000}, {"nodePort": 30000}]}});
    let expected = Allocation {
        freed_ips: vec!["10.96.0.9".to_owned()],
        freed_ports: vec![30000, 31000],
        ..Allocation::default()
    };
    assert_eq!(service::held(&service), expected);
    let headless = json!({"spec": {"type": "ClusterIP", "clusterIPs": ["None"]}});
    assert_eq!(service::held(&headless), Allocation::default());
}
