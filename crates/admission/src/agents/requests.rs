//! Certificate requests of agents: who a certificate is for, and whether it is one of an agent at all.

use base64::Engine as _;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;

use super::{AGENT_PREFIX, AGENTS};

/// Signs certificates with which clients show themselves to the API server.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// A request is a few hundred bytes; nobody needs more than this.
const LONGEST: usize = 64 * 1024;

/// A certificate request that an agent can make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// `system:karmada:agent:…`
    pub common_name: String,
}

impl CertificateRequest {
    /// Reads a CertificateSigningRequest; nothing if it is not one of an agent: another signer, another subject, other names
    /// beside it, or other usages.
    pub fn read(object: &Value) -> Option<Self> {
        let spec = &object["spec"];
        if spec["signerName"] != SIGNER || !has_usages(&spec["usages"]) {
            return None;
        }
        let encoded = spec["request"].as_str().filter(|text| text.len() <= LONGEST)?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).ok()?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(&bytes).ok()?;
        Self::of(&pem)
    }

    fn of(pem: &Pem) -> Option<Self> {
        let (rest, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let information = &request.certification_request_info;
        let text =
            |name: &x509_parser::x509::AttributeTypeAndValue<'_>| name.as_str().ok().map(str::to_owned);
        let organizations: Vec<Option<String>> = information.subject.iter_organization().map(text).collect();
        let names: Vec<Option<String>> = information.subject.iter_common_name().map(text).collect();
        let ([Some(organization)], [Some(name)]) = (organizations.as_slice(), names.as_slice()) else {
            return None;
        };
        let has_other_names = request
            .requested_extensions()
            .into_iter()
            .flatten()
            .any(|extension| matches!(extension, ParsedExtension::SubjectAlternativeName(_)));
        let fits = organization == AGENTS && name.starts_with(AGENT_PREFIX) && !has_other_names;
        fits.then(|| Self { common_name: name.clone() })
    }
}

fn has_usages(usages: &Value) -> bool {
    let mut found: Vec<&str> = usages.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    found.sort_unstable();
    found == ["client auth", "digital signature"]
        || found == ["client auth", "digital signature", "key encipherment"]
}
