//! The scale subresource of objects of any kind, in the control plane and in members.

use std::collections::HashMap;
use std::time::Duration;

use api::autoscaling::CrossVersionObjectReference;
use apimachinery::gvk::Gvk;
use apimachinery::names;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use parking_lot::RwLock;
use runtime::Error;
use serde_json::{Value, json};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The resources of the kinds that were requested. The control plane's discovery is used for members too.
#[derive(Debug, Default)]
pub(crate) struct Scales {
    known: RwLock<HashMap<Gvk, ApiResource>>,
}

/// What a scale says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scale {
    /// How many there should be; nothing if it does not say.
    pub(crate) wanted: Option<i32>,
    /// How many there are.
    pub(crate) running: i32,
    pub(crate) selector: String,
    /// The object itself, for writing it back.
    object: Value,
}

impl Scale {
    pub(crate) fn read(object: Value) -> Self {
        let number = |value: &Value| value.as_i64().map(|it| i32::try_from(it).unwrap_or(i32::MAX));
        Self {
            wanted: number(&object["spec"]["replicas"]),
            running: number(&object["status"]["replicas"]).unwrap_or(0),
            selector: object["status"]["selector"].as_str().unwrap_or("").to_owned(),
            object,
        }
    }

    /// Returns the object with another number in it.
    fn with(&self, replicas: i32) -> Value {
        let mut object = self.object.clone();
        if !object["spec"].is_object() {
            object["spec"] = json!({});
        }
        object["spec"]["replicas"] = replicas.into();
        object
    }
}

impl Scales {
    /// Returns the resource of a kind. Found resources are cached; missing ones are looked up again.
    pub(crate) async fn resource(&self, control: &Client, kind: &Gvk) -> Result<ApiResource, Error> {
        if let Some(known) = self.known.read().get(kind) {
            return Ok(known.clone());
        }
        let wanted = GroupVersionKind::gvk(&kind.group, &kind.version, &kind.kind);
        let unknown = || Error::UnknownKind(kind.to_string());
        // Users name it, and the client writes it into a path as it is: a list or an endless watch would be read here.
        if !kind.is_plain() {
            return Err(unknown());
        }
        let found = match kube::discovery::pinned_kind(control, &wanted).await {
            Ok((resource, _)) => resource,
            Err(kube::Error::Discovery(_)) => return Err(unknown()),
            Err(kube::Error::Api(status)) if status.code == 404 => return Err(unknown()),
            Err(error) => return Err(error.into()),
        };
        self.known.write().insert(kind.clone(), found.clone());
        Ok(found)
    }

    /// Reads the scale of an object of the control plane.
    pub(crate) async fn get(
        &self,
        control: &Client,
        namespace: &str,
        target: &CrossVersionObjectReference,
    ) -> Result<Scale, Error> {
        let kind = gvk(target);
        let resource = self.resource(control, &kind).await?;
        let found = get(control, namespace, &resource, &target.name).await;
        found.map_err(|error| self.doubt(&kind, error))
    }

    /// Writes another number into the scale of an object of the control plane; a conflict if it was written meanwhile.
    pub(crate) async fn set(
        &self,
        control: &Client,
        namespace: &str,
        target: &CrossVersionObjectReference,
        scale: &Scale,
        replicas: i32,
    ) -> Result<(), Error> {
        check_name(&target.name)?;
        let kind = gvk(target);
        let resource = self.resource(control, &kind).await?;
        let api = Api::<DynamicObject>::namespaced_with(control.clone(), namespace, &resource);
        let wanted = scale.with(replicas);
        let written = api.replace_subresource("scale", &target.name, &PostParams::default(), &wanted).await;
        written.map(drop).map_err(|error| self.doubt(&kind, error.into()))
    }

    /// Looks the kind up again next time if nothing was found: it may have been defined anew with another plural.
    pub(crate) fn doubt(&self, kind: &Gvk, error: Error) -> Error {
        if error.is_not_found() {
            self.known.write().remove(kind);
        }
        error
    }
}

/// Fails if nothing can be called so. Users write the names of objects and metrics, and the client writes those into paths as they
/// are: with a `?` or `#` in it, something else would be read, with the rights of the controllers.
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    if names::is_path_segment(name) {
        return Ok(());
    }
    Err(Error::Decision(format!("nothing can be called {name:?}").into()))
}

/// Reads the scale of an object through the given client.
pub(crate) async fn get(
    client: &Client,
    namespace: &str,
    resource: &ApiResource,
    name: &str,
) -> Result<Scale, Error> {
    check_name(name)?;
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, resource);
    let asked = tokio::time::timeout(PATIENCE, api.get_subresource("scale", name)).await;
    let found =
        asked.map_err(|_| Error::Waiting(format!("more than {PATIENCE:?} for the scale of {name}")))??;
    Ok(Scale::read(tree(found)?))
}

pub(crate) fn gvk(target: &CrossVersionObjectReference) -> Gvk {
    Gvk::from_api_version(&target.api_version, &target.kind)
}

fn tree(object: DynamicObject) -> Result<Value, serde_json::Error> {
    serde_json::to_value(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_whose_object_is_not_found_is_looked_up_again() {
        let kind = Gvk::new("example.io", "v1", "App");
        for (code, stays) in [(404_u16, false), (409, true), (500, true)] {
            let scales = Scales::default();
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.io", "v1", "App"));
            scales.known.write().insert(kind.clone(), resource);
            let status = json!({ "code": code, "message": "no", "reason": "No" });
            let status = serde_json::from_value(status).expect("a status");
            let error = scales.doubt(&kind, kube::Error::Api(Box::new(status)).into());
            assert_eq!((error.to_string().as_str(), scales.known.read().contains_key(&kind)), ("no", stays));
        }
    }

    #[tokio::test]
    async fn finding_25_a_version_that_is_a_path_is_not_asked_for() {
        let world = crate::world::World::new().await;
        let scales = Scales::default();
        world.writes();
        for version in ["/v1/secrets", "apps/v1?limit=1", "", "apps/v1/deployments?watch=true"] {
            let kind = Gvk::from_api_version(version, "Deployment");
            let asked = scales.resource(world.environment.client(), &kind).await;
            let error = asked.expect_err("there is no such kind");
            assert!(matches!(error, Error::UnknownKind(_)), "{version}: {error}");
        }
        assert_eq!(world.reads(), Vec::<String>::new());
        world.supervisor.stop().await;
    }

    #[tokio::test]
    async fn finding_25_a_name_that_is_a_path_is_not_asked_for() {
        let world = crate::world::World::new().await;
        let client = world.environment.client();
        let scales = Scales::default();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "Deployment"));
        scales.known.write().insert(Gvk::new("apps", "v1", "Deployment"), resource);
        world.writes();
        for name in ["?watch=true", "a/b", "..", "a#", "a%2fb"] {
            let target = CrossVersionObjectReference {
                api_version: "apps/v1".to_owned(),
                kind: "Deployment".to_owned(),
                name: name.to_owned(),
            };
            let expected = format!("nothing can be called {name:?}");
            let read = scales.get(client, "n", &target).await.expect_err("no object");
            assert_eq!(read.to_string(), expected);
            let written = scales.set(client, "n", &target, &Scale::default(), 1).await;
            assert_eq!(written.expect_err("no object").to_string(), expected);
        }
        assert_eq!(world.reads(), Vec::<String>::new());
        assert_eq!(world.writes(), Vec::<String>::new());
        world.supervisor.stop().await;
    }

    #[test]
    fn a_scale_is_read_and_written_back() {
        let read = Scale::read(json!({
            "metadata": { "name": "web", "resourceVersion": "7" },
            "spec": { "replicas": 3 }, "status": { "replicas": 2, "selector": "app=web" },
        }));
        assert_eq!((read.wanted, read.running, read.selector.as_str()), (Some(3), 2, "app=web"));
        let written = read.with(5);
        assert_eq!(written["spec"]["replicas"], 5);
        assert_eq!(written["metadata"]["resourceVersion"], "7", "somebody who was faster is noticed");
        let empty = Scale::read(json!({ "metadata": { "name": "web" } }));
        assert_eq!((empty.wanted, empty.running), (None, 0));
        assert_eq!(empty.with(1)["spec"]["replicas"], 1, "what says nothing can be scaled from nothing");
    }
}
