//! Issues certificates for signing requests: with the subject, key and alternative names of the request, the approved usages, and
//! our authority's signature.
//!
//! The certificate is built from the DER of the request, so that a subject with several organisations stays unchanged. In: a
//! request, usages, a lifetime. Out: PEM. Does not check the approval.

use jiff::Timestamp;
use rcgen::{KeyPair, SigningKey};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;

use super::pki::Pair;
use super::subject::Subject;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("unable to parse csr: {0}")]
    Request(String),
    #[error("the authority cannot be used: {0}")]
    Authority(String),
    #[error("unrecognized key usage: {0}")]
    Usage(String),
}

/// The content of a signing request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    pub(crate) common_name: String,
    pub(crate) organizations: Vec<String>,
    pub(crate) dns: Vec<String>,
    pub(crate) ips: usize,
    pub(crate) emails: usize,
    pub(crate) uris: usize,
    subject: Vec<u8>,
    key: Vec<u8>,
    /// The extension with the alternative names, unchanged.
    names: Option<Vec<u8>>,
}

impl Asked {
    /// Reads a PEM request.
    pub(crate) fn read(pem: &[u8]) -> Result<Self, Error> {
        let bad = |what: &str| Error::Request(what.to_owned());
        // The same block that was checked when the request was created: parsers differ in which of several blocks they read.
        let request_bytes = native::validation::signing_request(pem)
            .ok_or_else(|| bad("PEM block type must be CERTIFICATE REQUEST"))?;
        let (rest, request) = X509CertificationRequest::from_der(&request_bytes)
            .map_err(|error| Error::Request(error.to_string()))?;
        if !rest.is_empty() {
            return Err(bad("trailing data"));
        }
        request.verify_signature().map_err(|_| bad("the request is not signed by its own key"))?;
        let info = &request.certification_request_info;
        let subject = Subject::read(&info.subject).map_err(|error| Error::Request(error.to_string()))?;
        let mut asked = Self {
            common_name: subject.common_name,
            organizations: subject.organizations,
            subject: info.subject.as_raw().to_vec(),
            key: info.subject_pki.raw.to_vec(),
            ..Self::default()
        };
        for extension in request.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension {
                let mut encoded = Vec::new();
                for name in &names.general_names {
                    use x509_parser::extensions::GeneralName;
                    match name {
                        GeneralName::DNSName(dns) => {
                            asked.dns.push((*dns).to_owned());
                            encoded.extend(der(0x82, dns.as_bytes()));
                        }
                        GeneralName::IPAddress(ip) => {
                            asked.ips = asked.ips.saturating_add(1);
                            encoded.extend(der(0x87, ip));
                        }
                        GeneralName::RFC822Name(mail) => {
                            asked.emails = asked.emails.saturating_add(1);
                            encoded.extend(der(0x81, mail.as_bytes()));
                        }
                        GeneralName::URI(uri) => {
                            asked.uris = asked.uris.saturating_add(1);
                            encoded.extend(der(0x86, uri.as_bytes()));
                        }
                        other => return Err(Error::Request(format!("unsupported alternative name {other}"))),
                    }
                }
                asked.names = Some(der(0x30, &encoded));
            }
        }
        Ok(asked)
    }

    /// Issues the certificate, valid from `from` to `to`.
    pub(crate) fn issue(
        &self,
        ca: &Pair,
        usages: &[&str],
        from: Timestamp,
        to: Timestamp,
    ) -> Result<String, Error> {
        let bad = |what: String| Error::Authority(what);
        let key = KeyPair::from_pem(&ca.key).map_err(|error| bad(error.to_string()))?;
        let (_, pem) = parse_x509_pem(ca.cert.as_bytes()).map_err(|error| bad(error.to_string()))?;
        let authority = pem.parse_x509().map_err(|error| bad(error.to_string()))?;
        let [first, rest @ ..]: [u8; 16] = rand::random();
        // Positive, and without leading zeros.
        let number = [&[(first & 0x7f) | 0x40][..], &rest].concat();
        let algorithm = authority_algorithm(authority.signature_algorithm.algorithm.as_bytes());
        let mut extensions = usage_extensions(usages)?;
        // Not an authority.
        extensions.extend(extension(&[0x55, 0x1d, 0x13], true, &der(0x30, &[])));
        let own_id = authority.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        if let Some(id) = own_id {
            extensions.extend(extension(&[0x55, 0x1d, 0x23], false, &der(0x30, &der(0x80, &id))));
        }
        if let Some(names) = &self.names {
            extensions.extend(extension(&[0x55, 0x1d, 0x11], false, names));
        }
        let mut body = der(0xa0, &der(0x02, &[2]));
        body.extend(der(0x02, &number));
        body.extend(&algorithm);
        body.extend(authority.subject().as_raw());
        body.extend(der(0x30, &[time(from), time(to)].concat()));
        body.extend(&self.subject);
        body.extend(&self.key);
        body.extend(der(0xa3, &der(0x30, &extensions)));
        let body = der(0x30, &body);
        let signature = key.sign(&body).map_err(|error| bad(error.to_string()))?;
        let mut certificate = body;
        certificate.extend(&algorithm);
        certificate.extend(der(0x03, &[&[0][..], &signature].concat()));
        Ok(pem_of(&der(0x30, &certificate)))
    }
}

/// The algorithm with which the authority signs: that of its own certificate, which is self-signed.
fn authority_algorithm(oid: &[u8]) -> Vec<u8> {
    let mut inner = der(0x06, oid);
    // RSA's algorithms have a NULL parameter, the others have none.
    if oid.starts_with(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01]) {
        inner.extend([0x05, 0x00]);
    }
    der(0x30, &inner)
}

fn usage_extensions(usages: &[&str]) -> Result<Vec<u8>, Error> {
    let mut bits: u16 = 0;
    let mut extended = Vec::new();
    for usage in usages {
        let purpose: u8 = match *usage {
            "signing" | "digital signature" => {
                bits |= 0x8000;
                continue;
            }
            "content commitment" => {
                bits |= 0x4000;
                continue;
            }
            "key encipherment" => {
                bits |= 0x2000;
                continue;
            }
            "data encipherment" => {
                bits |= 0x1000;
                continue;
            }
            "key agreement" => {
                bits |= 0x0800;
                continue;
            }
            "cert sign" => {
                bits |= 0x0400;
                continue;
            }
            "crl sign" => {
                bits |= 0x0200;
                continue;
            }
            "encipher only" => {
                bits |= 0x0100;
                continue;
            }
            "decipher only" => {
                bits |= 0x0080;
                continue;
            }
            "server auth" => 1,
            "client auth" => 2,
            "code signing" => 3,
            "email protection" | "s/mime" => 4,
            "ipsec end system" => 5,
            "ipsec tunnel" => 6,
            "ipsec user" => 7,
            "timestamping" => 8,
            "ocsp signing" => 9,
            other => return Err(Error::Usage(other.to_owned())),
        };
        extended.extend(der(0x06, &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, purpose]));
    }
    let mut out = Vec::new();
    if bits != 0 {
        let mut bytes = bits.to_be_bytes().to_vec();
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        let unused = bytes.last().map_or(0, |last| last.trailing_zeros() as u8);
        out.extend(extension(&[0x55, 0x1d, 0x0f], true, &der(0x03, &[&[unused][..], &bytes].concat())));
    }
    if !extended.is_empty() {
        out.extend(extension(&[0x55, 0x1d, 0x25], false, &der(0x30, &extended)));
    }
    Ok(out)
}

fn extension(oid: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let mut inner = der(0x06, oid);
    if critical {
        inner.extend([0x01, 0x01, 0xff]);
    }
    inner.extend(der(0x04, value));
    der(0x30, &inner)
}

/// Years up to 2049 have two digits, later ones four.
fn time(when: Timestamp) -> Vec<u8> {
    let text = when.strftime("%Y%m%d%H%M%SZ").to_string();
    match text.strip_prefix("20") {
        Some(short) if text.as_str() < "2050" => der(0x17, short.as_bytes()),
        _ => der(0x18, text.as_bytes()),
    }
}

/// Encodes one value with its tag and length.
fn der(tag: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = value.len();
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        out.push(0x80 | bytes.len() as u8);
        out.extend(bytes);
    }
    out.extend_from_slice(value);
    out
}

fn pem_of(der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in text.as_bytes().chunks(64) {
        out.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

/// Returns the user and the groups in the subject of a PEM request, or why it cannot be read. Public only so that the fuzzer can
/// call the reader of requests.
pub fn names_in(pem: &[u8]) -> Result<(String, Vec<String>), String> {
    let asked = Asked::read(pem).map_err(|error| error.to_string())?;
    Ok((asked.common_name, asked.organizations))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::pki::Pki;
    use crate::auth::x509::Judge;

    fn request(names: &[&str]) -> String {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "dev");
        params.serialize_request(&key).unwrap().pem().unwrap()
    }

    fn judge(pki: &Pki) -> Judge {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        Judge::new(&pki.ca.cert, &pki.front_proxy_ca.cert, &provider).unwrap()
    }

    #[test]
    fn an_issued_certificate_is_recognised_by_the_server() {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject;
        let pki = Pki::load_or_create(None, &[]).unwrap();
        let asked = Asked::read(request(&["a.example.com", "10.1.2.3"]).as_bytes()).unwrap();
        assert_eq!((asked.common_name.as_str(), asked.dns.len(), asked.ips), ("jane", 1, 1));
        let now = Timestamp::now();
        let (from, to) =
            (now - jiff::SignedDuration::from_mins(5), now + jiff::SignedDuration::from_hours(1));
        let pem = asked
            .issue(&pki.ca, &["digital signature", "key encipherment", "client auth"], from, to)
            .unwrap();
        let judge = judge(&pki);
        let cert = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let user = judge.judge(&[cert]).user.expect("our own authority signed it");
        assert_eq!(user.name, "jane");
        assert!(user.in_group("dev"));
    }

    /// Of several blocks, the first complete one counts, as in Go. Text around it is skipped: `openssl req -text` writes such
    /// files.
    #[test]
    fn the_block_that_is_signed_is_the_one_that_go_reads() {
        let asks =
            |pem: &str| Asked::read(pem.as_bytes()).map(|asked| asked.dns).map_err(|error| error.to_string());
        let (first, second) = (request(&["first"]), request(&["second"]));
        assert_eq!(asks(&format!("Certificate Request:\n    Data:\n{first}")), Ok(vec!["first".to_owned()]));
        assert_eq!(asks(&format!("{first}{second}")), Ok(vec!["first".to_owned()]));
        let broken = first.replace("-----END CERTIFICATE REQUEST", "-----END X");
        assert_eq!(asks(&format!("{broken}{second}")), Ok(vec!["second".to_owned()]));
        let refused = "unable to parse csr: PEM block type must be CERTIFICATE REQUEST";
        assert_eq!(asks(&broken), Err(refused.to_owned()));
        assert_eq!(asks(&first.replace("CERTIFICATE REQUEST", "X")), Err(refused.to_owned()));
    }

    #[test]
    fn an_expired_certificate_is_not() {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject;
        let pki = Pki::load_or_create(None, &[]).unwrap();
        let asked = Asked::read(request(&[]).as_bytes()).unwrap();
        let now = Timestamp::now();
        let hour = jiff::SignedDuration::from_hours(1);
        let pem = asked.issue(&pki.ca, &["client auth"], now - hour - hour, now - hour).unwrap();
        let judge = judge(&pki);
        assert_eq!(judge.judge(&[CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()]).user, None);
    }

    #[test]
    fn usages_nobody_knows_are_refused() {
        assert!(matches!(usage_extensions(&["flying"]), Err(Error::Usage(_))));
    }
}
