//! The certificates that this server shows and signs with, while it runs: the serving certificate is replaced before
//! it expires, without a restart and without touching open connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

use super::pki::{self, Pair};

/// How often the remaining lifetime is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(12 * 3600);

/// The authority that client certificates are signed with.
#[derive(Debug)]
pub struct Signer {
    pair: Pair,
    expires: Timestamp,
}

impl Signer {
    pub fn new(pair: Pair) -> Self {
        let expires = pki::expiry(&pair.cert).unwrap_or(Timestamp::UNIX_EPOCH);
        Self { pair, expires }
    }

    pub fn pair(&self) -> Pair {
        self.pair.clone()
    }

    /// No certificate is to outlive its authority.
    pub fn expires(&self) -> Timestamp {
        self.expires
    }
}

/// The serving certificate of the moment.
#[derive(Debug)]
pub struct Serving {
    current: ArcSwap<CertifiedKey>,
    expires: ArcSwap<Timestamp>,
    ca: Pair,
    names: Vec<String>,
    dir: Option<PathBuf>,
}

impl Serving {
    pub fn new(
        first: &Pair,
        ca: Pair,
        names: Vec<String>,
        dir: Option<PathBuf>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            current: ArcSwap::from_pointee(certified(first)?),
            expires: ArcSwap::from_pointee(pki::expiry(&first.cert).unwrap_or(Timestamp::UNIX_EPOCH)),
            ca,
            names,
            dir,
        })
    }

    /// Replaces the certificate if less than a month is left at `now`; returns whether it did.
    pub fn renew(&self, now: Timestamp) -> Result<bool, pki::Error> {
        if self.expires.load().duration_since(now) > pki::RENEW_BEFORE {
            return Ok(false);
        }
        let next = pki::serving(&self.ca, &self.names)?;
        if let Some(dir) = &self.dir {
            pki::write_pair(dir, "apiserver", &next)?;
        }
        if let (Ok(key), Some(expires)) = (certified(&next), pki::expiry(&next.cert)) {
            self.current.store(Arc::new(key));
            self.expires.store(Arc::new(expires));
        }
        Ok(true)
    }

    /// Looks after the certificate until the server stops.
    pub async fn look_after(self: Arc<Self>, stop: CancellationToken) {
        loop {
            match self.renew(Timestamp::now()) {
                Ok(true) => tracing::info!("the serving certificate was renewed"),
                Ok(false) => {}
                Err(error) => tracing::error!(%error, "cannot renew the serving certificate"),
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stop.cancelled() => return,
            }
        }
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
        let serving = Serving::new(&made.serving, made.ca.clone(), Vec::new(), None).unwrap();
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
