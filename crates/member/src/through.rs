//! Clients that reach a member through the control plane, by `clusters/<name>/proxy`: for processes that have neither the
//! credentials of the member nor the tunnel of its agent.

use std::sync::Arc;

use http::Request;
use http::uri::{Parts, PathAndQuery, Uri};
use kube::Client;
use kube::client::Body;
use tower::{BoxError, Layer as _, service_fn};

use crate::connection::in_the_planes_name;
use crate::limit::LimitLayer;

/// Makes a client for a member that reads no more than [`limit`](crate::limit) allows. Its requests go to the cluster proxy of
/// the control plane, under the name by which members know the control plane; `control` must have the right to use that name.
pub fn through_proxy(control: &Client, cluster: &str) -> Client {
    let proxy: Arc<str> = format!("/apis/{}/v1alpha1/clusters/{cluster}/proxy", api::cluster::GROUP).into();
    let control = control.clone();
    let onward = service_fn(move |request: Request<Body>| {
        let (control, proxy) = (control.clone(), proxy.clone());
        async move {
            let request = in_the_planes_name(below(&proxy, request)?);
            control.send(request).await.map_err(BoxError::from)
        }
    });
    Client::new(LimitLayer::new(cluster).layer(onward), "default")
}

/// Puts a request below another path.
fn below(path: &str, request: Request<Body>) -> Result<Request<Body>, http::Error> {
    let (mut head, body) = request.into_parts();
    let mut parts = Parts::from(head.uri);
    let asked = parts.path_and_query.as_ref().map_or("/", PathAndQuery::as_str);
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{path}{asked}"))?);
    head.uri = Uri::from_parts(parts)?;
    Ok(Request::from_parts(head, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_go_to_the_proxy_of_the_cluster_in_the_planes_name() {
        let control = service_fn(|request: Request<Body>| async move {
            let user = request.headers().get("impersonate-user").and_then(|user| user.to_str().ok());
            let seen = format!("{:?} {}", user.unwrap_or("nobody"), request.uri());
            Ok::<_, BoxError>(http::Response::new(Body::from(seen.into_bytes())))
        });
        let client = through_proxy(&Client::new(control, "default"), "m3");
        let request = Request::get("/api/v1/pods?limit=1").body(Vec::new()).expect("a request");
        let seen = client.request_text(request).await.expect("an answer");
        let proxy = "/apis/cluster.karmada.io/v1alpha1/clusters/m3/proxy";
        assert_eq!(seen, format!("\"system:admin\" {proxy}/api/v1/pods?limit=1"));
    }
}
