//! Decides whether a user may approve or sign a certificate request, and refuses the one subject that is never allowed.

use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::Status;
use serde_json::Value;

use crate::auth::User;
use crate::auth::certify::Asked;
use crate::auth::rbac::Attributes;
use crate::registry::Kind;
use crate::server::Server;

fn is_request(kind: &Kind) -> bool {
    kind.gvk.group == "certificates.k8s.io" && kind.gvk.kind == "CertificateSigningRequest"
}

/// Checks a new request: it must not ask for an administrator's certificate.
pub fn check_create(kind: &Kind, name: &str, request: &Value) -> Result<(), Status> {
    if !is_request(kind)
        || pointer::text(request, "/spec/signerName") != "kubernetes.io/kube-apiserver-client"
    {
        return Ok(());
    }
    use base64::Engine;
    let pem = pointer::text(request, "/spec/request");
    let asked =
        base64::engine::general_purpose::STANDARD.decode(pem).ok().and_then(|pem| Asked::read(&pem).ok());
    if asked.is_some_and(|asked| asked.organizations.iter().any(|group| group == "system:masters")) {
        let why =
            "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
        return Err(Status::forbidden(&kind.resource, name, why));
    }
    Ok(())
}

/// Checks an approval, and a status that contains a certificate.
pub fn check_update(
    server: &Server,
    kind: &Kind,
    user: &User,
    subresource: &str,
    new: &Value,
    old: &Value,
) -> Result<(), Status> {
    if !is_request(kind) {
        return Ok(());
    }
    let (verb, word) = match subresource {
        "approval" => ("approve", "approve"),
        "status" if signs(new, old) => ("sign", "sign"),
        _ => return Ok(()),
    };
    let signer = pointer::text(old, "/spec/signerName");
    let domain = signer.split('/').next().unwrap_or("");
    let may = |name: &str| {
        let attributes = Attributes {
            verb,
            group: "certificates.k8s.io",
            version: "*",
            resource: "signers",
            name,
            ..Attributes::default()
        };
        server.rbac.check(&server.store, user, &attributes).is_ok()
    };
    if may(signer) || may(&format!("{domain}/*")) {
        return Ok(());
    }
    let name = old.name();
    let why = format!("user not permitted to {word} requests with signerName {signer:?}");
    Err(Status::forbidden(&kind.resource, name, &why))
}

fn signs(new: &Value, old: &Value) -> bool {
    let (new_status, old_status) = (&new["status"], &old["status"]);
    let failed = |request: &Value| {
        let list = pointer::list(request, "/status/conditions");
        list.iter().filter(|condition| condition["type"] == "Failed").count()
    };
    new_status["certificate"] != old_status["certificate"] || failed(new) != failed(old)
}
