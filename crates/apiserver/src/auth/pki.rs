//! The server's own certificates and keys: created at the first start, kept in the data directory, readable only by their owner.
//!
//! `pki/ca.crt` signs the serving certificate and client certificates, `pki/front-proxy-ca.crt` those of proxies in front of
//! aggregated servers, `pki/sa.key` service account tokens.

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base64::Engine;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use serde_json::json;

/// How long certificates are valid. The serving certificate is created anew at every start.
const CA_YEARS: i16 = 10;
const LEAF_YEARS: i16 = 1;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "{missing} is missing beside {present}: put it back, or remove {present} too to start with a new authority, \
         which nothing trusts that trusted the old one"
    )]
    Half { missing: PathBuf, present: PathBuf },
    #[error("{path} is not usable ({why}): put back the right file; nothing was changed")]
    Unusable { path: PathBuf, why: String },
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

/// All keys and certificates with which the server signs and identifies itself.
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
    /// Loads the files in the directory and creates missing ones. Without a directory, everything is created anew.
    ///
    /// An authority is created only if none of its files exists. Files that cannot be read or do not fit together are an error,
    /// since a new authority would lock out every client that trusts the old one. The caller guarantees that no other process
    /// uses the directory.
    pub fn load_or_create(dir: Option<&Path>, names: &[String]) -> Result<Self, Error> {
        let ca = authority(dir, CA)?;
        let front_proxy_ca = authority(dir, FRONT_PROXY_CA)?;
        let service_account_key =
            load_or(dir, SERVICE_ACCOUNT_KEY, || Ok(KeyPair::generate()?.serialize_pem()))?;
        let serving = serving(&ca, names)?;
        let admin = match dir.map(|dir| read_pair(dir, "admin")).transpose()?.flatten() {
            Some(pair) if !expires_soon(&pair.cert) => pair,
            // An incomplete pair is created anew, too: the authority can sign any number.
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
    crate::yaml::print(&config)
}

/// Creates a client certificate for a user and groups.
pub fn client(ca: &Pair, user: &str, groups: &[&str], years: i16) -> Result<Pair, Error> {
    let mut params = leaf(years)?;
    params.distinguished_name.push(DnType::CommonName, user);
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(ca, &params)
}

/// Creates the certificate with which this server identifies itself to aggregated servers.
pub fn front_proxy_client(front_proxy_ca: &Pair) -> Result<Pair, Error> {
    client(front_proxy_ca, "front-proxy-client", &[], LEAF_YEARS)
}

/// Creates a serving certificate for the usual names and the given ones.
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

/// Valid from yesterday, so that a clock that is slightly behind does no harm.
fn validity(params: &mut CertificateParams, years: i16) {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let from = today.yesterday().unwrap_or(today);
    let date = |date: jiff::civil::Date, years: i16| {
        // Every month has a 28th.
        rcgen::date_time_ymd(
            i32::from(date.year()).saturating_add(i32::from(years)),
            date.month() as u8,
            date.day().min(28) as u8,
        )
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

/// The authorities' names: in files and in their certificates.
pub const CA: (&str, &str) = ("ca", "karmada");
pub const SERVICE_ACCOUNT_KEY: &str = "sa.key";
pub const FRONT_PROXY_CA: (&str, &str) = ("front-proxy-ca", "front-proxy-ca");

fn authority(dir: Option<&Path>, (name, common_name): (&str, &str)) -> Result<Pair, Error> {
    let known = dir.map(|dir| read_authority(dir, name)).transpose()?.flatten();
    let pair = match known {
        Some(pair) if !expires_soon(&pair.cert) => return Ok(pair),
        Some(pair) => renewed_authority(&pair, common_name)?,
        None => authority_of(KeyPair::generate()?, common_name)?,
    };
    if let Some(dir) = dir {
        write_pair(dir, name, &pair)?;
    }
    Ok(pair)
}

/// Reads an authority; `None` if neither of its files exists.
fn read_authority(dir: &Path, name: &str) -> Result<Option<Pair>, Error> {
    let (cert_path, key_path) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
    let (cert, key) = match (read(&cert_path)?, read(&key_path)?) {
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(Error::Half { missing: key_path, present: cert_path }),
        (None, Some(_)) => return Err(Error::Half { missing: cert_path, present: key_path }),
        (Some(cert), Some(key)) => (cert, key),
    };
    let unusable = |path: &Path, why: String| Error::Unusable { path: path.to_owned(), why };
    let pair = KeyPair::from_pem(&key).map_err(|error| unusable(&key_path, error.to_string()))?;
    let parsed = x509_parser::pem::parse_x509_pem(cert.as_bytes());
    let (_, pem) = parsed.map_err(|error| unusable(&cert_path, error.to_string()))?;
    let certificate = pem.parse_x509().map_err(|error| unusable(&cert_path, error.to_string()))?;
    if certificate.public_key().raw != pair.subject_public_key_info() {
        let why = format!("it does not belong to {}", key_path.display());
        return Err(unusable(&cert_path, why));
    }
    Ok(Some(Pair { cert, key }))
}

/// Gives an authority that will expire soon a new certificate for the same key. Everything it signed stays valid. Clients that
/// trust the old certificate accept new signatures until the old certificate expires.
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

/// Returns whether a certificate must be replaced at `now`.
pub fn is_due(cert_pem: &str, now: jiff::Timestamp) -> bool {
    expiry(cert_pem).is_none_or(|expires| expires.duration_since(now) < RENEW_BEFORE)
}

fn expires_soon(cert_pem: &str) -> bool {
    is_due(cert_pem, jiff::Timestamp::now())
}

/// Certificates are replaced when less than this time is left.
pub const RENEW_BEFORE: jiff::SignedDuration = jiff::SignedDuration::from_hours(30 * 24);

/// Returns when a certificate expires.
pub fn expiry(cert_pem: &str) -> Option<jiff::Timestamp> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(cert_pem.as_bytes()).ok()?;
    jiff::Timestamp::from_second(pem.parse_x509().ok()?.validity().not_after.timestamp()).ok()
}

/// Reads a certificate and its key; `None` if one of them does not exist.
fn read_pair(dir: &Path, name: &str) -> Result<Option<Pair>, Error> {
    let read = |suffix: &str| read(&dir.join(format!("{name}.{suffix}")));
    Ok(read("crt")?.zip(read("key")?).map(|(cert, key)| Pair { cert, key }))
}

/// Returns whether the directory has an authority.
pub fn has_authority(dir: &Path) -> Result<bool, Error> {
    read_authority(dir, CA.0).map(|pair| pair.is_some())
}

/// Reads a file; `None` if it does not exist.
pub fn read(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// Writes a certificate and its key, readable only by their owner. Both are on disk before either gets its final name, so that a
/// crash hardly ever leaves one without the other.
pub fn write_pair(dir: &Path, name: &str, pair: &Pair) -> Result<(), Error> {
    let (key_path, cert_path) = (dir.join(format!("{name}.key")), dir.join(format!("{name}.crt")));
    let key = Staged::write(&key_path, pair.key.as_bytes())?;
    let cert = Staged::write(&cert_path, pair.cert.as_bytes())?;
    key.publish()?;
    cert.publish()?;
    sync_dir(dir)
}

fn load_or(
    dir: Option<&Path>,
    name: &str,
    make: impl FnOnce() -> Result<String, Error>,
) -> Result<String, Error> {
    let Some(path) = dir.map(|dir| dir.join(name)) else { return make() };
    if let Some(text) = read(&path)? {
        return Ok(text);
    }
    let text = make()?;
    write_private(&path, text.as_bytes())?;
    Ok(text)
}

/// Writes a file that only its owner can read, completely or not at all. The file survives a crash.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), Error> {
    Staged::write(path, content)?.publish()?;
    sync_dir(path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// Makes sure that the file names in a directory are on disk.
pub fn sync_dir(dir: &Path) -> Result<(), Error> {
    let synced = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|source| Error::Write { path: dir.to_owned(), source })
}

/// A complete file that does not have its final name yet.
struct Staged<'a> {
    path: &'a Path,
    temporary: PathBuf,
}

impl<'a> Staged<'a> {
    fn write(path: &'a Path, content: &[u8]) -> Result<Self, Error> {
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
        Ok(Self { path, temporary })
    }

    fn publish(self) -> Result<(), Error> {
        let failed = |source| Error::Write { path: self.path.to_owned(), source };
        std::fs::rename(&self.temporary, self.path).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), std::fs::read(&path).unwrap_or_default()))
            .collect();
        files.sort();
        files
    }

    #[test]
    fn finding_11_an_authority_that_cannot_be_used_is_never_replaced() {
        type Damage = (&'static str, fn(&Path));
        let broken: [Damage; 7] = [
            ("key missing", |dir| std::fs::remove_file(dir.join("ca.key")).unwrap()),
            ("certificate missing", |dir| std::fs::remove_file(dir.join("ca.crt")).unwrap()),
            ("certificate broken", |dir| std::fs::write(dir.join("ca.crt"), "nonsense").unwrap()),
            ("certificate empty", |dir| std::fs::write(dir.join("front-proxy-ca.crt"), "").unwrap()),
            ("key broken", |dir| std::fs::write(dir.join("ca.key"), "nonsense").unwrap()),
            ("not text", |dir| std::fs::write(dir.join("ca.key"), b"\xff\xfe").unwrap()),
            ("another's certificate", |dir| {
                std::fs::copy(dir.join("front-proxy-ca.crt"), dir.join("ca.crt")).map(|_| ()).unwrap();
            }),
        ];
        for (what, damage) in broken {
            let dir = tempfile::tempdir().unwrap();
            let first = Pki::load_or_create(Some(dir.path()), &[]).unwrap();
            let again = Pki::load_or_create(Some(dir.path()), &[]).unwrap();
            assert_eq!(first.ca.cert, again.ca.cert);
            damage(dir.path());
            let before = contents(dir.path());
            let error = Pki::load_or_create(Some(dir.path()), &[]).expect_err(what).to_string();
            assert!(error.contains("ca."), "{what}: {error}");
            assert_eq!(contents(dir.path()), before, "{what}: nothing may change");
        }
    }

    #[test]
    fn a_file_that_may_not_be_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        Pki::load_or_create(Some(dir.path()), &[]).unwrap();
        // A directory cannot be read as a file, whichever user tries.
        std::fs::remove_file(dir.path().join("sa.key")).unwrap();
        std::fs::create_dir(dir.path().join("sa.key")).unwrap();
        let error = Pki::load_or_create(Some(dir.path()), &[]).unwrap_err();
        assert!(matches!(error, Error::Read { .. }), "{error}");
    }
}
