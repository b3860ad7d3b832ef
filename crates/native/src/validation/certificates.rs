//! Certificate signing requests: what may be asked for, and what each of their endpoints may change.
//!
//! Does not look into the request itself beyond its PEM envelope: the server, which has keys and signatures, does.

use std::collections::HashSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use base64::Engine as _;
use serde_json::Value;

use super::check;
use super::node::{Node, same};
use super::pem;

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// What is wrong with a request, given what is stored already.
pub(super) fn request(errors: &mut Errors, root: Node<'_>, old: Option<Node<'_>>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    let request = spec.at("request");
    if body(&decoded(request)).is_none() {
        let text = "PEM block type must be CERTIFICATE REQUEST";
        let shown = if !request.exists() { Value::Null } else { request.text().into() };
        errors.push(Error::invalid(&path.child("request"), shown, text));
    }
    let (usages, at) = (spec.at("usages").texts(), path.child("usages"));
    if usages.is_empty() {
        errors.push(Error::required(&at, ""));
    }
    for (index, usage) in usages.iter().enumerate() {
        if !USAGES.contains(usage) {
            errors.push(Error::not_supported(&at.index(index), *usage, &USAGES));
        }
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, usage) in usages.iter().enumerate() {
        if !seen.insert(usage) {
            errors.push(Error::duplicate(&at.index(index), *usage));
        }
    }
    let (signer, at) = (spec.at("signerName").text(), path.child("signerName"));
    if signer == "kubernetes.io/legacy-unknown" {
        let text = "the legacy signerName is not allowed via this API version";
        errors.push(Error::invalid(&at, signer, text));
    } else {
        signer_name(errors, signer, &at);
    }
    if let Some(seconds) = spec.at("expirationSeconds").opt_int()
        && seconds < 600
    {
        let text = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(Error::invalid(&path.child("expirationSeconds"), seconds, text));
    }
    conditions(errors, root, old);
    let certificate = |root: Node<'_>| decoded(root.dig(&["status", "certificate"]));
    let tolerated = old
        .is_some_and(|old| certificate(old) == certificate(root) || certificates(&certificate(old)).is_err());
    if !tolerated && let Err(why) = certificates(&certificate(root)) {
        let at = Path::new("status").child("certificate");
        errors.push(Error::invalid(&at, "<certificate data>", why));
    }
}

/// What is wrong with a change through an endpoint: the object itself, `status` or `approval`.
pub(super) fn update(errors: &mut Errors, new: Node<'_>, old: Node<'_>, subresource: &str) {
    request(errors, new, Some(old));
    let at = Path::new("status").child("conditions");
    for decision in ["Approved", "Denied", "Failed"] {
        if of_type(new, decision).len() < of_type(old, decision).len() {
            let text = format!("updates may not remove a condition of type {decision:?}");
            errors.push(Error::forbidden(&at, text));
        }
    }
    if subresource != "approval" {
        for decision in ["Approved", "Denied"] {
            let (after, before) = (of_type(new, decision), of_type(old, decision));
            if after.len() > before.len() {
                let text = format!("updates may not add a condition of type {decision:?}");
                errors.push(Error::forbidden(&at, text));
            } else if after.len() == before.len()
                && after.iter().zip(&before).any(|(after, before)| !same(*after, *before))
            {
                let text = format!("updates may not modify a condition of type {decision:?}");
                errors.push(Error::forbidden(&at, text));
            }
        }
    }
    let certificate = |root: Node<'_>| decoded(root.dig(&["status", "certificate"]));
    if certificate(new) != certificate(old) {
        let at = Path::new("status").child("certificate");
        if subresource != "status" {
            errors.push(Error::forbidden(&at, "updates may not set certificate content"));
        } else if !certificate(old).is_empty() {
            errors.push(Error::forbidden(&at, "updates may not modify existing certificate content"));
        }
    }
}

/// Returns the DER of the request in a PEM envelope.
pub(super) fn body(pem: &[u8]) -> Option<Vec<u8>> {
    pem::first(pem)
        .map(|(block, _)| block)
        .filter(|block| block.label == "CERTIFICATE REQUEST")
        .map(|block| block.bytes)
}

fn decoded(value: Node<'_>) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(value.text()).unwrap_or_default()
}

fn of_type<'a>(root: Node<'a>, wanted: &str) -> Vec<Node<'a>> {
    let conditions = root.dig(&["status", "conditions"]).items();
    conditions.filter(|condition| condition.at("type").text() == wanted).collect()
}

/// Says why what a signer wrote is not a chain of certificates; nothing at all is fine.
fn certificates(data: &[u8]) -> Result<(), String> {
    if data.is_empty() {
        return Ok(());
    }
    let mut rest = data.to_vec();
    let mut blocks = 0_usize;
    while let Some((block, after)) = pem::first(&rest) {
        if block.label != "CERTIFICATE" {
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        if block.has_headers {
            return Err("no PEM block headers are permitted".to_owned());
        }
        if !pem::is_sequence(&block.bytes) {
            return Err("x509: malformed certificate".to_owned());
        }
        blocks = blocks.saturating_add(1);
        rest = after;
    }
    if blocks == 0 {
        return Err("must contain at least one CERTIFICATE PEM block".to_owned());
    }
    Ok(())
}

fn signer_name(errors: &mut Errors, signer: &str, path: &Path) {
    if signer.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    let parts: Vec<&str> = signer.split('/').collect();
    let [domain, rest] = parts[..] else {
        let text = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(Error::invalid(path, signer, text));
        return;
    };
    let mut check_labels = |whole: &str, rule: fn(&str) -> Vec<String>| {
        let bad = whole.split('.').map(|label| (label, rule(label))).find(|(_, wrong)| !wrong.is_empty());
        if let Some((label, wrong)) = bad {
            let texts = wrong.into_iter().map(|text| format!("validating label {label:?}: {text}"));
            errors.extend(texts.map(|text| Error::invalid(path, whole, text)));
        }
    };
    check_labels(domain, names::dns1123_label);
    check_labels(rest, names::dns1123_subdomain);
    if !domain.contains('.') {
        let text = "should be a domain with at least two segments separated by dots";
        errors.push(Error::invalid(path, domain, text));
    }
}

/// Approved, Denied and Failed are decisions: they are true or absent, and the first two exclude each other. What is
/// stored already and wrong is tolerated.
fn conditions(errors: &mut Errors, root: Node<'_>, old: Option<Node<'_>>) {
    let list = Path::new("status").child("conditions");
    let stored = |wanted: &str| old.is_some_and(|old| !of_type(old, wanted).is_empty());
    let both_stored = stored("Approved") && stored("Denied");
    let doubled_stored = old.is_some_and(|old| {
        let mut seen: HashSet<&str> = HashSet::new();
        !old.dig(&["status", "conditions"]).items().all(|condition| seen.insert(condition.at("type").text()))
    });
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, condition) in root.dig(&["status", "conditions"]).items().enumerate() {
        let path = list.index(index);
        let (kind, status) = (condition.at("type").text(), condition.at("status").text());
        if !stored("") {
            check::required(errors, &path.child("type"), condition.at("type"));
        }
        let at = path.child("status");
        match kind {
            "Approved" | "Denied" | "Failed" => match status {
                "True" => {}
                "" => errors.push(Error::required(&at, "")),
                _ => errors.push(Error::not_supported(&at, status, &["True"])),
            },
            _ => check::required_enum(errors, &at, condition.at("status"), &["False", "True", "Unknown"]),
        }
        let opposite = match kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !both_stored && !opposite.is_empty() && seen.contains(&opposite) {
            let text = "Approved and Denied conditions are mutually exclusive";
            errors.push(Error::invalid(&list, kind, text));
        }
        if !doubled_stored && seen.contains(&kind) {
            errors.push(Error::duplicate(&path.child("type"), kind));
        }
        seen.insert(kind);
    }
}
