//! A certificate for one of our servers, and the authority that its callers must trust.
//!
//! The authority's key is discarded immediately, since nothing else will ever be signed with it.

use std::net::IpAddr;

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};

/// How long a certificate made here is valid.
const YEARS: i16 = 10;

/// A certificate with its key and its authority, as PEM.
pub struct Serving {
    pub authority: String,
    pub certificate: String,
    pub key: String,
}

/// Makes a certificate for `subject` that is valid for these names and addresses.
pub fn make(subject: &str, names: &[String]) -> anyhow::Result<Serving> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("{subject}-ca"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    validity(&mut params);
    let authority_key = KeyPair::generate()?;
    let authority = params.self_signed(&authority_key)?.pem();
    let issuer = Issuer::from_ca_cert_pem(&authority, authority_key)?;

    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    validity(&mut params);
    for name in names {
        params.subject_alt_names.push(match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(
                name.as_str()
                    .try_into()
                    .with_context(|| format!("{name:?} cannot stand in a certificate"))?,
            ),
        });
    }
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Ok(Serving { authority, certificate, key: key.serialize_pem() })
}

/// Valid from yesterday, so that a clock that is slightly behind does no harm.
fn validity(params: &mut CertificateParams) {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let from = today.yesterday().unwrap_or(today);
    let date = |date: jiff::civil::Date, years: i16| {
        // Every month has a 28th.
        rcgen::date_time_ymd(
            i32::from(date.year().saturating_add(years)),
            date.month() as u8,
            date.day().min(28) as u8,
        )
    };
    params.not_before = date(from, 0);
    params.not_after = date(today, YEARS);
}
