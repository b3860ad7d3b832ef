//! The certificates that this server presents and signs with while it runs. Expiring ones are replaced without a restart and
//! without touching open connections; `renewal` does this.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::pki::{self, Pair};

/// The authority that client certificates and the serving certificate are signed with.
#[derive(Debug)]
pub struct Signer(ArcSwap<Pair>);

impl Signer {
    pub fn new(pair: Pair) -> Self {
        Self(ArcSwap::from_pointee(pair))
    }

    pub fn pair(&self) -> Arc<Pair> {
        self.0.load_full()
    }

    pub fn replace(&self, pair: Pair) {
        self.0.store(Arc::new(pair));
    }

    /// No certificate may outlive its authority.
    pub fn expires(&self) -> Timestamp {
        pki::expiry(&self.pair().cert).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// The current serving certificate.
#[derive(Debug)]
pub struct Serving {
    current: ArcSwap<CertifiedKey>,
    expires: ArcSwap<Timestamp>,
    signer: Arc<Signer>,
    names: Vec<String>,
    dir: Option<PathBuf>,
}

impl Serving {
    pub fn new(
        first: &Pair,
        signer: Arc<Signer>,
        names: Vec<String>,
        dir: Option<PathBuf>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            current: ArcSwap::from_pointee(certified(first)?),
            expires: ArcSwap::from_pointee(pki::expiry(&first.cert).unwrap_or(Timestamp::UNIX_EPOCH)),
            signer,
            names,
            dir,
        })
    }

    /// Replaces the certificate if less than a month is left at `now`. Returns whether it did.
    pub fn renew(&self, now: Timestamp) -> Result<bool, pki::Error> {
        if self.expires.load().duration_since(now) > pki::RENEW_BEFORE {
            return Ok(false);
        }
        let next = pki::serving(&self.signer.pair(), &self.names)?;
        if let Some(dir) = &self.dir {
            pki::write_pair(dir, "apiserver", &next)?;
        }
        if let (Ok(key), Some(expires)) = (certified(&next), pki::expiry(&next.cert)) {
            self.current.store(Arc::new(key));
            self.expires.store(Arc::new(expires));
        }
        Ok(true)
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

fn certified(pair: &Pair) -> Result<CertifiedKey, rustls::Error> {
    let bad = |error: rustls::pki_types::pem::Error| rustls::Error::General(error.to_string());
    let certs =
        CertificateDer::pem_slice_iter(pair.cert.as_bytes()).collect::<Result<_, _>>().map_err(bad)?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(bad)?;
    CertifiedKey::from_der(certs, key, &rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_replaced_before_it_expires_and_not_earlier() {
        let made = pki::Pki::load_or_create(None, &[]).unwrap();
        let serving =
            Serving::new(&made.serving, Signer::new(made.ca.clone()).into(), Vec::new(), None).unwrap();
        let first = serving.current.load_full();
        let now = Timestamp::now();
        assert!(!serving.renew(now).unwrap());
        assert_eq!(serving.current.load().cert, first.cert);
        let eleven_months = now + jiff::SignedDuration::from_hours(24 * 340);
        assert!(serving.renew(eleven_months).unwrap());
        assert_ne!(serving.current.load().cert, first.cert);
        assert!(!serving.renew(now).unwrap(), "the new one has a year");
    }
}
