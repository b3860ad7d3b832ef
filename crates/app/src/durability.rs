//! Which writes of the controllers have to be on disk before they go on.
//!
//! Most of what they write follows from what users wrote: claims, bindings, decisions, every status. After a crash it is
//! worked out again, and the store never loses a write without losing all that came after it. What has an effect outside,
//! or cannot be worked out again, waits for the disk: a Work before a member is touched for it, and whatever is created or
//! deleted besides bindings.

use http::{Method, Request};
use store::Durability;

/// Says how durable a request of the controllers has to be before it is answered.
pub(crate) fn of<B>(request: &Request<B>) -> Durability {
    let mut segments = request.uri().path().trim_start_matches('/').split('/');
    // api/v1/… or apis/<group>/<version>/…
    let skipped = if segments.next() == Some("api") { 1 } else { 2 };
    let mut rest = segments.skip(skipped).peekable();
    let mut resource = rest.next().unwrap_or("");
    if resource == "namespaces" {
        let _name = rest.next();
        // A namespace itself, or its status, if nothing that could be a collection follows.
        match rest.next() {
            None => {}
            Some("status" | "finalize") => return Durability::Buffered,
            Some(inner) => resource = inner,
        }
    }
    let _name = rest.next();
    let is_status = rest.next() == Some("status");
    let derived = match resource {
        _ if is_status => true,
        "works" => false,
        "resourcebindings" | "clusterresourcebindings" => true,
        _ => request.method() == Method::PATCH,
    };
    if derived { Durability::Buffered } else { Durability::Durable }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_request(method: Method, path: &str) -> Durability {
        of(&Request::builder().method(method).uri(path).body(()).expect("a request"))
    }

    #[test]
    fn what_follows_from_other_objects_need_not_wait_for_the_disk() {
        for (method, path) in [
            (Method::PATCH, "/api/v1/namespaces/default/configmaps/web"),
            (Method::PATCH, "/apis/apps/v1/namespaces/default/deployments/web/status"),
            (Method::POST, "/apis/work.karmada.io/v1alpha2/namespaces/default/resourcebindings"),
            (Method::DELETE, "/apis/work.karmada.io/v1alpha2/clusterresourcebindings/web-clusterrole"),
            (Method::PATCH, "/apis/work.karmada.io/v1alpha1/namespaces/karmada-es-m/works/w/status"),
            (Method::PUT, "/apis/cluster.karmada.io/v1alpha1/clusters/m/status"),
            (Method::PATCH, "/api/v1/namespaces/default"),
            (Method::PUT, "/api/v1/namespaces/default/status"),
        ] {
            assert_eq!(of_request(method.clone(), path), Durability::Buffered, "{method} {path}");
        }
    }

    #[test]
    fn what_reaches_out_or_stands_alone_waits_for_the_disk() {
        for (method, path) in [
            (Method::POST, "/apis/work.karmada.io/v1alpha1/namespaces/karmada-es-m/works"),
            (Method::PATCH, "/apis/work.karmada.io/v1alpha1/namespaces/karmada-es-m/works/w"),
            (Method::DELETE, "/apis/work.karmada.io/v1alpha1/namespaces/karmada-es-m/works/status"),
            (Method::POST, "/api/v1/namespaces"),
            (Method::POST, "/api/v1/namespaces/karmada-system/secrets"),
            (Method::DELETE, "/apis/cluster.karmada.io/v1alpha1/clusters/m"),
        ] {
            assert_eq!(of_request(method.clone(), path), Durability::Durable, "{method} {path}");
        }
    }
}
