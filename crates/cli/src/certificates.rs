//! Certificates on request: a local key, a signing request in the control plane, and the issued certificate.
//!
//! `register` uses a bootstrap token; a running agent uses its own name when its certificate is about to expire.

use std::time::Duration;

use admission::agents::AGENTS;
use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::PostParams;
use kube::{Api, Client};
use member::credentials::system;
use rand::RngExt;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::json;
use x509_parser::pem::Pem;

/// The signer of certificates with which clients authenticate to the API server.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A certificate and its key, both as PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// The parameters of a request.
pub struct Wanted<'a> {
    /// Name of the signing request.
    pub request: String,
    /// The subject of the certificate.
    pub common_name: &'a str,
    /// The requested duration; the signer may shorten it.
    pub lifetime: Duration,
    /// How long to wait for it.
    pub patience: Duration,
}

/// Returns five characters as Kubernetes appends them to names.
pub fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut source = rand::rng();
    (0..5).map(|_| char::from(LETTERS[source.random_range(0..LETTERS.len())])).collect()
}

/// Requests a certificate for an agent and waits until it is issued.
pub async fn ask(client: &Client, wanted: &Wanted<'_>) -> anyhow::Result<Pair> {
    let name = &wanted.request;
    let key = KeyPair::generate().context("cannot make a key")?;
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::OrganizationName, AGENTS);
    parameters.distinguished_name.push(DnType::CommonName, wanted.common_name);
    let request = parameters
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .context("cannot make a signing request")?;
    let object: CertificateSigningRequest = serde_json::from_value(json!({
        "metadata": system(name),
        "spec": {
            "request": k8s_openapi::ByteString(request.into_bytes()),
            "signerName": SIGNER,
            "expirationSeconds": i32::try_from(wanted.lifetime.as_secs()).unwrap_or(i32::MAX),
            "usages": ["digital signature", "key encipherment", "client auth"],
        },
    }))
    .context("an object of ours is malformed")?;
    let requests = Api::<CertificateSigningRequest>::all(client.clone());
    requests
        .create(&PostParams::default(), &object)
        .await
        .with_context(|| format!("cannot ask for a certificate for {:?}", wanted.common_name))?;
    let issued = async {
        loop {
            let found =
                requests.get(name).await.with_context(|| format!("cannot read signing request {name}"))?;
            let status = found.status.unwrap_or_default();
            if let Some(certificate) = status.certificate {
                return String::from_utf8(certificate.0).context("the certificate is malformed");
            }
            let refused =
                status.conditions.into_iter().flatten().find(|known| {
                    matches!(known.type_.as_str(), "Denied" | "Failed") && known.status == "True"
                });
            if let Some(refused) = refused {
                let why = refused.message.unwrap_or_default();
                bail!("the control plane gives no certificate for {:?}: {why}", wanted.common_name);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let Ok(certificate) = tokio::time::timeout(wanted.patience, issued).await else {
        bail!(
            "signing request {name} was not answered within {} s; hint: the controller agentcsrapproving approves it, or \
             `kubectl certificate approve {name}` in the control plane",
            wanted.patience.as_secs()
        );
    };
    let certificate = certificate?;
    Ok(Pair { certificate, key: key.serialize_pem() })
}

/// The period in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl Validity {
    /// Reads the certificates of a PEM file: the period in which all of them are valid.
    pub fn of(pem: &[u8]) -> anyhow::Result<Self> {
        let mut all: Option<Self> = None;
        for block in Pem::iter_from_buffer(pem) {
            let block = block.context("the certificate is malformed")?;
            let certificate = block.parse_x509().context("the certificate is malformed")?;
            let validity = certificate.validity();
            let time = |time: x509_parser::time::ASN1Time| {
                Timestamp::from_second(time.timestamp()).context("the certificate is malformed")
            };
            let one = Self { from: time(validity.not_before)?, until: time(validity.not_after)? };
            let known = all.unwrap_or(one);
            all = Some(Self { from: known.from.max(one.from), until: known.until.min(one.until) });
        }
        all.context("there is no certificate")
    }

    /// Returns the part of its time that is left: 1 at the beginning, 0 or less when it has expired.
    pub fn left(&self, now: Timestamp) -> f64 {
        let seconds = |from: Timestamp, until: Timestamp| until.duration_since(from).as_secs_f64();
        let total = seconds(self.from, self.until);
        if total <= 0.0 { 0.0 } else { seconds(now, self.until) / total }
    }

    /// Returns its total duration.
    pub fn lifetime(&self) -> Duration {
        Duration::try_from(self.until.duration_since(self.from)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_much_of_a_certificate_is_left() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let validity = Validity { from: at(0), until: at(100) };
        assert_eq!((validity.left(at(0)), validity.left(at(80)), validity.left(at(100))), (1.0, 0.2, 0.0));
        assert!(validity.left(at(200)) < 0.0);
        assert_eq!(Validity { from: at(5), until: at(5) }.left(at(0)), 0.0);
        assert_eq!(validity.lifetime(), Duration::from_secs(100));
    }

    #[test]
    fn a_file_without_a_certificate_is_an_error() {
        assert_eq!(Validity::of(b"").unwrap_err().to_string(), "there is no certificate");
        assert!(Validity::of(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_err());
    }

    #[test]
    fn suffixes_look_like_kubernetes() {
        let suffix = suffix();
        assert!(
            suffix.len() == 5
                && suffix.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        );
    }
}
