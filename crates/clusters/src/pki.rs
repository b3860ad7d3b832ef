//! Keys and certificates of one cluster: its own authority, made afresh for every cluster.
//!
//! Everything is ECDSA P-256: a fraction of RSA's key generation time, and good for service account tokens too (ES256).
//! Validity is given by fixed dates instead of "now plus something", so that an expired certificate is made the same way as a good one.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::error::Error;

/// A certificate with its key, as PEM.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// The authority that signs the certificates of a cluster.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    name: String,
}

/// Whether a serving certificate is valid today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validity {
    Valid,
    Expired,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        let wrap = |source| Error::Certificate { subject: name.to_string(), source };
        let mut params = CertificateParams::new(Vec::new()).map_err(wrap)?;
        params.distinguished_name = subject(name, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2049, 1, 1));
        let issuer = CertifiedIssuer::self_signed(params, new_key(name)?).map_err(wrap)?;
        Ok(Self { issuer, name: name.to_string() })
    }

    /// Returns the authority's own certificate and key.
    pub(crate) fn pair(&self) -> Pair {
        Pair { certificate: self.issuer.pem(), key: self.issuer.key().serialize_pem() }
    }

    /// Returns a certificate for a client; `groups` become organizations, as Kubernetes reads them.
    pub(crate) fn client(&self, user: &str, groups: Option<&str>) -> Result<Pair, Error> {
        self.sign(subject(user, groups), &[], ExtendedKeyUsagePurpose::ClientAuth, Validity::Valid)
    }

    /// Returns a certificate for a server with these names and addresses.
    pub(crate) fn server(&self, name: &str, hosts: &[&str], validity: Validity) -> Result<Pair, Error> {
        self.sign(subject(name, None), hosts, ExtendedKeyUsagePurpose::ServerAuth, validity)
    }

    fn sign(
        &self,
        subject: DistinguishedName,
        hosts: &[&str],
        usage: ExtendedKeyUsagePurpose,
        validity: Validity,
    ) -> Result<Pair, Error> {
        let wrap = |source| Error::Certificate { subject: self.name.clone(), source };
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).map_err(wrap)?;
        params.distinguished_name = subject;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = match validity {
            Validity::Valid => (date_time_ymd(2024, 1, 1), date_time_ymd(2048, 1, 1)),
            Validity::Expired => (date_time_ymd(2024, 1, 1), date_time_ymd(2024, 2, 1)),
        };
        let key = new_key(&self.name)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(wrap)?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// A key pair without a certificate, for service account tokens.
pub(crate) struct TokenKey(KeyPair);

impl TokenKey {
    pub(crate) fn new(cluster: &str) -> Result<Self, Error> {
        new_key(cluster).map(Self)
    }

    /// Writes `service-account.key`, which signs, and `service-account.pub`, which verifies: kube-apiserver does not derive
    /// the latter from an ECDSA key in PKCS #8 form.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        write_private(&folder.join("service-account.key"), &self.0.serialize_pem())?;
        write_private(&folder.join("service-account.pub"), &self.0.public_key_pem())
    }
}

/// Writes a file that only we can read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    // A file that exists keeps its mode when opened; removing it first makes sure that the mode is ours.
    let _ = fs::remove_file(path);
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(Error::io("write", path))
}

impl Pair {
    /// Writes `<folder>/<name>.crt` and `<folder>/<name>.key`.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> Result<(PathBuf, PathBuf), Error> {
        let (certificate, key) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
        write_private(&certificate, &self.certificate)?;
        write_private(&key, &self.key)?;
        Ok((certificate, key))
    }
}

fn subject(name: &str, group: Option<&str>) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group);
    }
    subject.push(DnType::CommonName, name);
    subject
}

fn new_key(subject: &str) -> Result<KeyPair, Error> {
    KeyPair::generate().map_err(|source| Error::Certificate { subject: subject.to_string(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_on_disk_are_for_the_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let authority = Authority::new("test").expect("authority");
        let (_, key) =
            authority.client("admin", None).expect("client").write(folder.path(), "admin").expect("write");
        let mode = fs::metadata(key).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn two_authorities_have_nothing_in_common() {
        let (one, other) = (Authority::new("test").expect("one"), Authority::new("test").expect("other"));
        assert_ne!(one.pair().key, other.pair().key);
    }
}
