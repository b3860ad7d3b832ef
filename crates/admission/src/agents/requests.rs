//! Certificate requests of agents: who a certificate is for, and whether it is one of an agent at all.
//!
//! Somebody else signs what is approved here: kube-controller-manager, with parsers of its own. So a request is taken only if
//! every parser finds the same names in it.

use base64::Engine as _;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
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
        Self::of(&only_block(&bytes)?)
    }

    fn of(der: &[u8]) -> Option<Self> {
        let (rest, request) = X509CertificationRequest::from_der(der).ok()?;
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
        // In whichever attribute they are, and whether or not they can be read.
        let has_other_names =
            information.iter_attributes().any(|attribute| match attribute.parsed_attribute() {
                ParsedCriAttribute::ExtensionRequest(asked) => {
                    asked.extensions.iter().any(|extension| extension.oid == OID_X509_EXT_SUBJECT_ALT_NAME)
                }
                _ => false,
            });
        let fits = organization == AGENTS && name.starts_with(AGENT_PREFIX) && !has_other_names;
        fits.then(|| Self { common_name: name.clone() })
    }
}

/// Returns the content of a PEM text that is one block and nothing else. Of two blocks, or of one whose lines do not match,
/// Go may read another than we do: it passes over blocks that end with another label than they begin with.
fn only_block(pem: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(pem).ok()?.trim();
    let inner = text
        .strip_prefix("-----BEGIN CERTIFICATE REQUEST-----")?
        .strip_suffix("-----END CERTIFICATE REQUEST-----")?;
    // A further line of dashes, or a header, is not Base64.
    let encoded: String = inner.lines().collect();
    base64::engine::general_purpose::STANDARD.decode(encoded).ok()
}

fn has_usages(usages: &Value) -> bool {
    let mut found: Vec<&str> = usages.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    found.sort_unstable();
    found == ["client auth", "digital signature"]
        || found == ["client auth", "digital signature", "key encipherment"]
}
