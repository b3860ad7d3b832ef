//! Derives a Service from each ServiceImport. The Service follows the ServiceImport into its clusters, as a
//! dependency of it.
//!
//! Watches: ServiceImports, the Services derived from them.
//! Writes:  Services `derived-<name>`, owned by their ServiceImport, so they are deleted with it.
//!
//! `service-import-controller`, `serviceImport` in `--controllers`. Upstream does not mark the derived
//! Service as its own, and wipes its labels with every event. Ours has an owner, and labels that others added
//! stay. Its type and ports are restored, and a selector is dropped: its endpoints are those that were imported.

#[cfg(test)]
mod on_server;

use std::sync::Arc;

use api::events as reasons;
use api::multicluster::{ServiceImport, ServiceImportType};
use api::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::core::ObjectMeta;
use propagation::Object;
use runtime::{Error, Guard, Key, Outcome, Queue, Reconcile, controller};

use crate::plane::Plane;
use crate::table::Start;

const COMPONENT: &str = "service-import-controller";
const WORKERS: usize = 4;
const CLUSTER_IP: &str = "ClusterIP";

struct Controller {
    plane: Arc<Plane>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    plane.tell_panics(&queue, COMPONENT, &plane.mirrors.service_imports);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new(COMPONENT);
    let pushed = queue.clone();
    plane.mirrors.service_imports.subscribe(move |change| pushed.push(change.key.clone()));
    let pushed = queue.clone();
    plane.templates.subscribe(move |change| {
        if let Some(service) = change.new.as_ref().or(change.old.as_ref())
            && service.kind() == "Service"
            && service.api_version() == "v1"
            && !change.ours
            && let Some(import) = service.name().strip_prefix(&names::derived_service(""))
        {
            pushed.push(Key::new(service.namespace(), import));
        }
    });
    (Arc::new(Controller { plane: plane.clone() }), queue)
}

/// A ServiceImport and the Service of the name that is derived from it.
pub(crate) struct View {
    import: Option<Arc<ServiceImport>>,
    derived: Option<Service>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// Create the Service, and show these addresses in its status.
    Create { service: Box<Service>, addresses: Vec<LoadBalancerIngress> },
    /// Update the Service and its status to these; `None` means that it is up to date.
    Update { service: Option<Box<Service>>, status: Option<Box<Service>> },
    /// The ServiceImport is gone.
    Delete,
    /// The name is taken.
    Refuse(String),
}

fn decide(view: &View) -> Plan {
    let Some(import) = &view.import else {
        // Without our owner reference we cannot know whose it is.
        let ours = view.derived.as_ref().is_some_and(|service| owner(service).is_some());
        return if ours { Plan::Delete } else { Plan::Nothing("there is no ServiceImport") };
    };
    if import.metadata.deletion_timestamp.is_some() {
        return Plan::Nothing("the ServiceImport goes, and its Service with it");
    }
    if import.spec.type_ != ServiceImportType::ClusterSetIP {
        return Plan::Nothing("only imports of type ClusterSetIP have a Service");
    }
    let wanted = desired(import);
    let addresses = ingress_of(import);
    let Some(existing) = &view.derived else { return Plan::Create { service: Box::new(wanted), addresses } };
    if existing.metadata.deletion_timestamp.is_some() {
        return Plan::Nothing("the old Service goes first");
    }
    let controller =
        existing.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    if let Some(other) = controller.filter(|owner| owner.kind != "ServiceImport") {
        let name = existing.metadata.name.as_deref().unwrap_or("");
        return Plan::Refuse(format!("service {name} exists and belongs to {} {}", other.kind, other.name));
    }
    let mut service = existing.clone();
    service.metadata.owner_references = wanted.metadata.owner_references;
    let (spec, wanted_spec) = (service.spec.get_or_insert_default(), wanted.spec.unwrap_or_default());
    restore(spec);
    spec.ports = Some(merged(spec.ports.take(), wanted_spec.ports.unwrap_or_default()));
    let mut status = existing.clone();
    let ingress = status.status.get_or_insert_default().load_balancer.get_or_insert_default();
    if ingress.ingress.clone().unwrap_or_default() != addresses {
        ingress.ingress = Some(addresses);
    }
    let status = (ingress.ingress != load_balancer(existing)).then(|| Box::new(status));
    Plan::Update { service: (service != *existing).then(|| Box::new(service)), status }
}

/// Makes a spec that of a Service with an address of its own. What belongs to another type goes with that: servers refuse it.
fn restore(spec: &mut ServiceSpec) {
    if spec.type_.as_deref().is_some_and(|kind| kind != CLUSTER_IP) {
        spec.type_ = Some(CLUSTER_IP.to_owned());
        spec.allocate_load_balancer_node_ports = None;
        spec.external_traffic_policy = None;
        spec.health_check_node_port = None;
        spec.load_balancer_class = None;
        spec.load_balancer_ip = None;
        spec.load_balancer_source_ranges = None;
        for port in spec.ports.iter_mut().flatten() {
            port.node_port = None;
        }
    }
    spec.selector = None;
    spec.external_name = None;
}

fn load_balancer(service: &Service) -> Option<Vec<LoadBalancerIngress>> {
    service.status.as_ref()?.load_balancer.as_ref()?.ingress.clone()
}

/// Returns the ServiceImport that owns a Service.
fn owner(service: &Service) -> Option<&OwnerReference> {
    service.metadata.owner_references.iter().flatten().find(|owner| owner.kind == "ServiceImport")
}

/// Returns the wanted ports with what the server has added to those that were there.
fn merged(existing: Option<Vec<ServicePort>>, wanted: Vec<ServicePort>) -> Vec<ServicePort> {
    let existing = existing.unwrap_or_default();
    let merge = |wanted: ServicePort| {
        let known =
            existing.iter().find(|known| known.port == wanted.port && known.protocol == wanted.protocol);
        match known {
            None => wanted,
            Some(known) => {
                ServicePort { node_port: known.node_port, target_port: known.target_port.clone(), ..wanted }
            }
        }
    };
    wanted.into_iter().map(merge).collect()
}

fn desired(import: &ServiceImport) -> Service {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let ports = import.spec.ports.iter().map(|port| ServicePort {
        name: text(&port.name),
        protocol: text(&port.protocol).or_else(|| Some("TCP".to_owned())),
        port: port.port,
        app_protocol: port.app_protocol.clone(),
        ..ServicePort::default()
    });
    let owner = import.controller_owner_ref(&());
    Service {
        metadata: ObjectMeta {
            name: Some(names::derived_service(import.metadata.name.as_deref().unwrap_or(""))),
            namespace: import.metadata.namespace.clone(),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: Some(CLUSTER_IP.to_owned()),
            ports: Some(ports.collect()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn ingress_of(import: &ServiceImport) -> Vec<LoadBalancerIngress> {
    let ingress =
        |ip: &String| LoadBalancerIngress { ip: Some(ip.clone()), ..LoadBalancerIngress::default() };
    import.spec.ips.iter().map(ingress).collect()
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let import = self.plane.mirrors.service_imports.find(key);
        let api = self.plane.writer.api::<Service>(&key.namespace);
        let derived = api.get_opt(&names::derived_service(&key.name)).await?;
        Ok(Some(View { import, derived }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let result = self.carry_out(key, &view, plan).await;
        if let Some(import) = &view.import {
            let (reason, message) = match &result {
                Ok(false) => return Ok(Outcome::Done),
                Ok(true) => (
                    reasons::SYNC_DERIVED_SERVICE_SUCCEED,
                    format!("Sync derived service for serviceImport({}) succeed.", key.name),
                ),
                Err(error) if error.is_conflict() => return result.map(|_| Outcome::Done),
                Err(error) => (reasons::SYNC_DERIVED_SERVICE_FAILED, error.to_string()),
            };
            self.plane.events.say(COMPONENT, import.as_ref(), reason, message);
        }
        result.map(|_| Outcome::Done)
    }
}

impl Controller {
    /// Returns whether anything was written.
    async fn carry_out(&self, key: &Key, view: &View, plan: Plan) -> Result<bool, Error> {
        let writer = self.plane.writer.derived();
        let api = writer.api::<Service>(&key.namespace);
        match (plan, &view.derived) {
            (Plan::Nothing(_), _) => Ok(false),
            (Plan::Refuse(why), _) => Err(Error::Several(vec![why])),
            (Plan::Create { service, addresses }, _) => {
                let created = api.create(&kube::api::PostParams::default(), &service).await?;
                if !addresses.is_empty() {
                    let mut status = created.clone();
                    let balancer =
                        status.status.get_or_insert_default().load_balancer.get_or_insert_default();
                    balancer.ingress = Some(addresses);
                    self.show_addresses(view, &created, &status).await?;
                }
                Ok(true)
            }
            (Plan::Update { service, status }, Some(existing)) => {
                let mut wrote = false;
                if let Some(service) = service {
                    wrote |= writer.update(existing, &service, Guard::Fields).await?.is_some();
                }
                if let Some(status) = status {
                    wrote |= self.show_addresses(view, existing, &status).await?;
                }
                Ok(wrote)
            }
            (Plan::Delete, Some(existing)) => writer.delete(existing).await.map(|()| true),
            (Plan::Update { .. } | Plan::Delete, None) => Ok(false),
        }
    }

    /// Writes the addresses of a ServiceImport to the status of its Service; returns whether they were written.
    ///
    /// kube-apiserver from 1.27 on takes them for Services of type LoadBalancer only. That does not change by trying again, and
    /// nothing needs them: users are told.
    async fn show_addresses(&self, view: &View, old: &Service, new: &Service) -> Result<bool, Error> {
        match self.plane.writer.derived().update_status(old, new, Guard::Fields).await {
            Err(error) if error.is_invalid() => {
                if let Some(import) = &view.import {
                    let reason = reasons::SYNC_DERIVED_SERVICE_FAILED;
                    let message = format!("the derived Service does not show spec.ips: {error}");
                    self.plane.events.say(COMPONENT, import.as_ref(), reason, message);
                }
                Ok(false)
            }
            result => result.map(|written| written.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{deleting, merged, read};
    use crate::world::World;

    fn import(otherwise: Value) -> Option<Arc<ServiceImport>> {
        let base = json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "i" },
            "spec": { "type": "ClusterSetIP", "ports": [{ "name": "http", "port": 80 }] },
        });
        Some(Arc::new(read(merged(base, otherwise))))
    }

    fn derived(otherwise: Value) -> Option<Service> {
        let made = serde_json::to_value(desired(&import(json!({})).unwrap())).unwrap();
        Some(read(merged(made, otherwise)))
    }

    fn words(plan: Plan) -> String {
        match plan {
            Plan::Nothing(why) => format!("nothing: {why}"),
            Plan::Create { addresses, .. } if addresses.is_empty() => "create".to_owned(),
            Plan::Create { .. } => "create, with addresses".to_owned(),
            Plan::Update { service: None, status: None } => "as it is".to_owned(),
            Plan::Update { service, status } => {
                format!(
                    "update{}{}",
                    if service.is_some() { " it" } else { "" },
                    if status.is_some() { " its status" } else { "" }
                )
            }
            Plan::Delete => "delete".to_owned(),
            Plan::Refuse(why) => why,
        }
    }

    #[test]
    fn what_becomes_of_a_derived_service() {
        let filled = json!({ "spec": { "clusterIP": "10.0.0.9", "ports": [
            { "name": "http", "port": 80, "protocol": "TCP", "targetPort": 80 }] }, "metadata": { "labels": { "by": "others" } } });
        let others = json!({ "metadata": { "ownerReferences": [
            { "apiVersion": "v1", "kind": "App", "name": "shop", "uid": "a", "controller": true }] } });
        let nobodys = json!({ "metadata": { "ownerReferences": null } });
        let cases = [
            ("it is new", import(json!({})), None, "create"),
            (
                "it is new and has an address",
                import(json!({ "spec": { "ips": ["10.0.0.1"] } })),
                None,
                "create, with addresses",
            ),
            (
                "it is there, filled by the server and labelled by others",
                import(json!({})),
                derived(filled),
                "as it is",
            ),
            (
                "another port",
                import(json!({ "spec": { "ports": [{ "name": "http", "port": 81 }] } })),
                derived(json!({})),
                "update it",
            ),
            (
                "it has an address",
                import(json!({ "spec": { "ips": ["10.0.0.1"] } })),
                derived(json!({})),
                "update its status",
            ),
            (
                "its address is gone",
                import(json!({})),
                derived(json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "10.0.0.1" }] } } })),
                "update its status",
            ),
            (
                "it has another address, and another port",
                import(json!({ "spec": { "ips": ["10.0.0.2"], "ports": [{ "name": "http", "port": 81 }] } })),
                derived(json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "10.0.0.1" }] } } })),
                "update it its status",
            ),
            (
                "somebody made it a load balancer",
                import(json!({})),
                derived(json!({ "spec": { "type": "LoadBalancer" } })),
                "update it",
            ),
            (
                "somebody gave it pods",
                import(json!({})),
                derived(json!({ "spec": { "selector": { "app": "web" } } })),
                "update it",
            ),
            ("it was made by the original", import(json!({})), derived(nobodys.clone()), "update it"),
            (
                "it belongs to somebody else",
                import(json!({})),
                derived(others),
                "service derived-web exists and belongs to App shop",
            ),
            (
                "the import goes",
                import(deleting()),
                derived(json!({})),
                "nothing: the ServiceImport goes, and its Service with it",
            ),
            (
                "it is headless",
                import(json!({ "spec": { "type": "Headless" } })),
                None,
                "nothing: only imports of type ClusterSetIP have a Service",
            ),
            (
                "the old one goes",
                import(json!({})),
                derived(deleting()),
                "nothing: the old Service goes first",
            ),
            ("the import is gone", None, derived(json!({})), "delete"),
            (
                "the import is gone, and it is not ours",
                None,
                derived(nobodys),
                "nothing: there is no ServiceImport",
            ),
            ("there is neither", None, None, "nothing: there is no ServiceImport"),
        ];
        for (name, import, derived, expected) in cases {
            assert_eq!(words(decide(&View { import, derived })), expected, "{name}");
        }
    }

    #[test]
    fn a_derived_service_has_the_ports_of_its_import() {
        let ports = json!([
            { "name": "http", "port": 80, "appProtocol": "h2c" }, { "port": 53, "protocol": "UDP" },
        ]);
        let import = import(json!({ "spec": { "ports": ports } }));
        let Plan::Create { service, .. } = decide(&View { import, derived: None }) else {
            panic!("it is made")
        };
        let expected = json!([
            { "name": "http", "port": 80, "protocol": "TCP", "appProtocol": "h2c" }, { "port": 53, "protocol": "UDP" },
        ]);
        assert_eq!(
            (service.metadata.name.as_deref(), service.metadata.namespace.as_deref()),
            (Some("derived-web"), Some("shop"))
        );
        let spec = service.spec.unwrap_or_default();
        assert_eq!(spec.type_.as_deref(), Some("ClusterIP"));
        assert_eq!(json!(spec.ports), expected);
    }

    #[test]
    fn addresses_of_an_import_are_those_of_its_service() {
        let import = import(json!({ "spec": { "ips": ["10.0.0.1", "10.0.0.2"] } }));
        let Plan::Create { addresses, .. } = decide(&View { import, derived: None }) else {
            panic!("it is made")
        };
        assert_eq!(json!(addresses), json!([{ "ip": "10.0.0.1" }, { "ip": "10.0.0.2" }]));
    }

    #[test]
    fn a_port_keeps_what_the_server_has_added_to_it() {
        let port = |protocol: &str, otherwise: Value| -> ServicePort {
            read(merged(json!({ "port": 53, "protocol": protocol }), otherwise))
        };
        let existing = vec![
            port("TCP", json!({ "targetPort": 5300, "nodePort": 30000, "name": "old" })),
            port("UDP", json!({ "targetPort": 5301 })),
        ];
        let wanted = vec![port("UDP", json!({ "name": "udp" })), port("TCP", json!({ "name": "tcp" }))];
        let expected = [
            port("UDP", json!({ "name": "udp", "targetPort": 5301 })),
            port("TCP", json!({ "name": "tcp", "targetPort": 5300, "nodePort": 30000 })),
        ];
        assert_eq!(super::merged(Some(existing), wanted), expected, "of its own protocol");
        let two = || vec![port("TCP", json!({})), port("TCP", json!({ "port": 54 }))];
        let mut existing = two();
        existing[0].node_port = Some(30000);
        existing[1].node_port = Some(30001);
        assert_eq!(super::merged(Some(existing.clone()), two()), existing, "of its own number");
        let new = vec![port("SCTP", json!({}))];
        assert_eq!(super::merged(None, new.clone()), new);
    }

    #[test]
    fn a_derived_service_gets_its_type_back_and_keeps_its_address() {
        let kept = json!({ "spec": { "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"], "sessionAffinity": "ClientIP" } });
        let port =
            |node_port: Value| merged(json!({ "name": "http", "port": 80, "protocol": "TCP" }), node_port);
        let balancer = json!({ "spec": {
            "type": "LoadBalancer", "selector": { "app": "web" }, "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001,
            "allocateLoadBalancerNodePorts": true, "loadBalancerClass": "a/b", "ports": [port(json!({ "nodePort": 30000 }))],
        } });
        let elsewhere =
            json!({ "spec": { "type": "ExternalName", "externalName": "elsewhere.example.com" } });
        let pinned = json!({ "spec": {
            "type": "LoadBalancer", "loadBalancerIP": "192.0.2.1", "loadBalancerSourceRanges": ["10.0.0.0/8"],
        } });
        for changed in [balancer, elsewhere, pinned] {
            let derived = derived(merged(kept.clone(), changed));
            let Plan::Update { service: Some(service), .. } =
                decide(&View { import: import(json!({})), derived })
            else {
                panic!("it is restored")
            };
            let expected = json!({
                "type": "ClusterIP", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"], "sessionAffinity": "ClientIP",
                "ports": [port(json!({}))],
            });
            assert_eq!(json!(service.spec), expected);
        }
    }

    #[tokio::test]
    async fn addresses_that_a_server_does_not_take_are_told_and_not_tried_for_ever() {
        let world = World::new().await;
        let controller = Controller { plane: world.plane.clone() };
        let import: ServiceImport = read(json!({
            "metadata": { "name": "web", "namespace": world.namespace, "uid": "i", "resourceVersion": "1" },
            "spec": { "type": "ClusterSetIP", "ports": [{ "name": "http", "port": 80 }], "ips": ["10.0.0.1"] },
        }));
        let key = Key::of(&import);
        world.environment.mirrors.service_imports.note(import);
        world.refuse(Method::PATCH, "/services/derived-web/status", 422, "Invalid");
        assert_eq!(world.once(&controller, &key).await, Outcome::Done);
        assert_eq!(
            world.event("SyncDerivedServiceFailed").await,
            "the derived Service does not show spec.ips: refused: Invalid"
        );
        world.supervisor.stop().await;
    }
}
