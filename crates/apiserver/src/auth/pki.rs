//! The server's own certificates and keys: made at the first start, kept in the data directory, readable by
//! their owner alone.
//!
//! `pki/ca.crt` signs the serving certificate and client certificates, `pki/front-proxy-ca.crt` those of proxies in
//! front of aggregated servers, `pki/sa.key` service account tokens.

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base64::Engine;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::json;

/// How long certificates are valid. The serving certificate is made anew at every start.
const CA_YEARS: i16 = 10;
const LEAF_YEARS: i16 = 1;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
}

/// A certificate with its key, as PEM.
#[derive(Clone)]
pub struct Pair {
    pub cert: String,
    pub key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Pair { .. }")
    }
}

/// Everything the server signs with and is recognised by.
#[derive(Debug, Clone)]
pub struct Pki {
    pub ca: Pair,
    pub front_proxy_ca: Pair,
    pub front_proxy_client: Pair,
    pub serving: Pair,
    pub admin: Pair,
    /// The key that signs service account tokens.
    pub service_account_key: String,
}

impl Pki {
    /// Loads what is in the directory and makes what is missing. Without a directory everything is made anew.
    pub fn load_or_create(dir: Option<&Path>, names: &[String]) -> Result<Self, Error> {
        let ca = authority(dir, CA)?;
        let front_proxy_ca = authority(dir, FRONT_PROXY_CA)?;
        let service_account_key = load_or(dir, "sa.key", || Ok(KeyPair::generate()?.serialize_pem()))?;
        let serving = serving(&ca, names)?;
        let admin = match dir.and_then(|dir| read_pair(dir, "admin")) {
            Some(pair) if !expires_soon(&pair.cert) => pair,
            _ => client(&ca, "system:admin", &["system:masters"], LEAF_YEARS)?,
        };
        let front_proxy_client = front_proxy_client(&front_proxy_ca)?;
        if let Some(dir) = dir {
            write_pair(dir, "apiserver", &serving)?;
            write_pair(dir, "admin", &admin)?;
            write_pair(dir, "front-proxy-client", &front_proxy_client)?;
        }
        Ok(Self { ca, front_proxy_ca, front_proxy_client, serving, admin, service_account_key })
    }

    /// Returns the kubeconfig of the administrator.
    pub fn kubeconfig(&self, server: &str, context: &str) -> String {
        kubeconfig(server, context, &self.ca.cert, &self.admin)
    }
}

/// Returns a kubeconfig with one cluster, user and context.
pub fn kubeconfig(server: &str, context: &str, ca_pem: &str, client: &Pair) -> String {
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": server, "certificate-authority-data": encode(ca_pem)}}],
        "users": [{"name": context, "user": {
            "client-certificate-data": encode(&client.cert), "client-key-data": encode(&client.key)}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "current-context": context,
        "preferences": {},
    });
    crate::yaml::print(&config).expect("a kubeconfig is plain data")
}

/// Makes a client certificate for a user and groups.
pub fn client(ca: &Pair, user: &str, groups: &[&str], years: i16) -> Result<Pair, Error> {
    let mut params = leaf(years)?;
    params.distinguished_name.push(DnType::CommonName, user);
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(ca, &params)
}

/// Makes the certificate by which aggregated servers know this one.
pub fn front_proxy_client(front_proxy_ca: &Pair) -> Result<Pair, Error> {
    client(front_proxy_ca, "front-proxy-client", &[], LEAF_YEARS)
}

/// Makes a serving certificate for the usual names and the given ones.
pub fn serving(ca: &Pair, names: &[String]) -> Result<Pair, Error> {
    let mut params = leaf(LEAF_YEARS)?;
    params.distinguished_name.push(DnType::CommonName, "karmada-apiserver");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let usual = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "karmada-apiserver",
        "karmada-apiserver.karmada-system.svc",
        "karmada-apiserver.karmada-system.svc.cluster.local",
        "127.0.0.1",
        "::1",
        "10.96.0.1",
    ];
    let mut seen = Vec::new();
    for name in usual.iter().map(|name| (*name).to_owned()).chain(names.iter().cloned()) {
        if seen.contains(&name) {
            continue;
        }
        match name.parse::<IpAddr>() {
            Ok(address) => params.subject_alt_names.push(SanType::IpAddress(address)),
            Err(_) => {
                if let Ok(dns) = name.as_str().try_into() {
                    params.subject_alt_names.push(SanType::DnsName(dns));
                }
            }
        }
        seen.push(name);
    }
    sign(ca, &params)
}

fn leaf(years: i16) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.use_authority_key_identifier_extension = true;
    validity(&mut params, years);
    Ok(params)
}

/// Valid from yesterday, so that a clock that is a little behind does no harm.
fn validity(params: &mut CertificateParams, years: i16) {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let from = today.yesterday().unwrap_or(today);
    let date = |date: jiff::civil::Date, years: i16| {
        // The 28th exists in every month.
        rcgen::date_time_ymd(i32::from(date.year() + years), date.month() as u8, date.day().min(28) as u8)
    };
    params.not_before = date(from, 0);
    params.not_after = date(today, years);
}

fn sign(ca: &Pair, params: &CertificateParams) -> Result<Pair, Error> {
    let issuer = Issuer::from_ca_cert_pem(&ca.cert, KeyPair::from_pem(&ca.key)?)?;
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, &issuer)?;
    Ok(Pair { cert: cert.pem(), key: key.serialize_pem() })
}

/// The authorities' names: in files, and in their certificates.
pub const CA: (&str, &str) = ("ca", "karmada");
pub const FRONT_PROXY_CA: (&str, &str) = ("front-proxy-ca", "front-proxy-ca");

fn authority(dir: Option<&Path>, (name, common_name): (&str, &str)) -> Result<Pair, Error> {
    let pair = match dir.and_then(|dir| read_pair(dir, name)) {
        Some(pair) if !expires_soon(&pair.cert) => return Ok(pair),
        Some(pair) => renewed_authority(&pair, common_name)?,
        None => authority_of(KeyPair::generate()?, common_name)?,
    };
    if let Some(dir) = dir {
        write_pair(dir, name, &pair)?;
    }
    Ok(pair)
}

/// Gives an authority near its end a new certificate for the same key: everything it signed stays valid, and whoever
/// trusts the old certificate trusts what is signed from now on until the old one expires.
pub fn renewed_authority(pair: &Pair, common_name: &str) -> Result<Pair, Error> {
    authority_of(KeyPair::from_pem(&pair.key)?, common_name)
}

fn authority_of(key: KeyPair, common_name: &str) -> Result<Pair, Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    validity(&mut params, CA_YEARS);
    let cert = params.self_signed(&key)?;
    Ok(Pair { cert: cert.pem(), key: key.serialize_pem() })
}

/// Returns whether a certificate is to be replaced at `now`.
pub fn is_due(cert_pem: &str, now: jiff::Timestamp) -> bool {
    expiry(cert_pem).is_none_or(|expires| expires.duration_since(now) < RENEW_BEFORE)
}

fn expires_soon(cert_pem: &str) -> bool {
    is_due(cert_pem, jiff::Timestamp::now())
}

/// Certificates are replaced when less than this is left.
pub const RENEW_BEFORE: jiff::SignedDuration = jiff::SignedDuration::from_hours(30 * 24);

/// Returns when a certificate expires.
pub fn expiry(cert_pem: &str) -> Option<jiff::Timestamp> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(cert_pem.as_bytes()).ok()?;
    jiff::Timestamp::from_second(pem.parse_x509().ok()?.validity().not_after.timestamp()).ok()
}

fn read_pair(dir: &Path, name: &str) -> Option<Pair> {
    let read = |suffix: &str| std::fs::read_to_string(dir.join(format!("{name}.{suffix}"))).ok();
    Some(Pair { cert: read("crt")?, key: read("key")? })
}

/// Writes a certificate and its key, readable by their owner alone.
pub fn write_pair(dir: &Path, name: &str, pair: &Pair) -> Result<(), Error> {
    write_private(&dir.join(format!("{name}.key")), pair.key.as_bytes())?;
    write_private(&dir.join(format!("{name}.crt")), pair.cert.as_bytes())
}

fn load_or(
    dir: Option<&Path>,
    name: &str,
    make: impl FnOnce() -> Result<String, Error>,
) -> Result<String, Error> {
    let Some(path) = dir.map(|dir| dir.join(name)) else { return make() };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = make()?;
            write_private(&path, text.as_bytes())?;
            Ok(text)
        }
        Err(source) => Err(Error::Read { path, source }),
    }
}

/// Writes a file that only its owner can read, whole or not at all.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), Error> {
    use std::os::unix::fs::OpenOptionsExt;
    let failed = |source| Error::Write { path: path.to_owned(), source };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(failed)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&temporary, path).map_err(failed)
}
