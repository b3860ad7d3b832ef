//! Where `karmada server` keeps objects, by the flags that kube-apiserver has for etcd.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use store::EtcdOptions;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreKind {
    /// A database in the data directory.
    Embedded,
    /// An etcd cluster, which several servers may share.
    Etcd,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Store on etcd")]
pub(crate) struct EtcdArguments {
    /// Where etcd is, as https://HOST:PORT; several are separated by commas.
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    etcd_servers: Vec<String>,
    /// What all keys in etcd begin with; by default /karmada. Servers with the same prefix are one control plane.
    #[arg(long, value_name = "PREFIX")]
    etcd_prefix: Option<String>,
    /// File with the authorities of etcd's certificates; by default those of the system.
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// File with the certificate that etcd is shown.
    #[arg(long, value_name = "FILE")]
    etcd_certfile: Option<PathBuf>,
    /// File with the key of that certificate.
    #[arg(long, value_name = "FILE")]
    etcd_keyfile: Option<PathBuf>,
    /// How often etcd's history is compacted, in seconds; 0 leaves that to others.
    #[arg(long, value_name = "SECONDS")]
    etcd_compaction_interval: Option<u64>,
}

impl EtcdArguments {
    /// Returns the configuration of etcd; `None` for the embedded store.
    pub(crate) fn options(self, kind: StoreKind) -> anyhow::Result<Option<EtcdOptions>> {
        let given = [
            ("--etcd-servers", !self.etcd_servers.is_empty()),
            ("--etcd-prefix", self.etcd_prefix.is_some()),
            ("--etcd-cafile", self.etcd_cafile.is_some()),
            ("--etcd-certfile", self.etcd_certfile.is_some()),
            ("--etcd-keyfile", self.etcd_keyfile.is_some()),
            ("--etcd-compaction-interval", self.etcd_compaction_interval.is_some()),
        ];
        let first = given.iter().find(|(_, given)| *given).map(|(flag, _)| *flag);
        match (kind, first) {
            (StoreKind::Embedded, None) => return Ok(None),
            (StoreKind::Embedded, Some(flag)) => bail!("{flag} is of use with --store etcd only"),
            (StoreKind::Etcd, _) if self.etcd_servers.is_empty() => {
                bail!("--store etcd needs --etcd-servers, for example https://127.0.0.1:2379")
            }
            (StoreKind::Etcd, _) => {}
        }
        if self.etcd_prefix.as_deref().is_some_and(|prefix| prefix.trim_matches('/').is_empty()) {
            bail!("--etcd-prefix is empty: the whole of etcd would be taken");
        }
        let usual = EtcdOptions::new(self.etcd_servers);
        Ok(Some(EtcdOptions {
            prefix: self.etcd_prefix.unwrap_or(usual.prefix),
            ca: self.etcd_cafile,
            certificate: self.etcd_certfile,
            key: self.etcd_keyfile,
            compact_every: match self.etcd_compaction_interval {
                None => usual.compact_every,
                Some(0) => None,
                Some(seconds) => Some(Duration::from_secs(seconds)),
            },
            ..usual
        }))
    }
}

/// Returns the identity of this server among others on the same etcd. It is created once for a data directory and stays, so that
/// a restarted server keeps it.
pub(crate) fn server_id(dir: &Path) -> anyhow::Result<String> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("cannot make {}", dir.display()))?;
    let path = dir.join("server.id");
    match fs::read_to_string(&path) {
        Ok(id) if !id.trim().is_empty() => return Ok(id.trim().to_owned()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
        _ => {}
    }
    let id = uuid::Uuid::new_v4().to_string();
    fs::write(&path, format!("{id}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        etcd: EtcdArguments,
    }

    fn options(kind: StoreKind, flags: &[&str]) -> Result<Option<EtcdOptions>, String> {
        let command = Command::try_parse_from([&["x"], flags].concat()).map_err(|error| error.to_string())?;
        command.etcd.options(kind).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_that_do_not_fit_together_are_named() {
        let refusals = [
            (StoreKind::Etcd, &[][..], "--store etcd needs --etcd-servers"),
            (StoreKind::Embedded, &["--etcd-prefix=/x"], "--etcd-prefix is of use with --store etcd only"),
            (StoreKind::Etcd, &["--etcd-servers=http://a:1", "--etcd-prefix=/"], "--etcd-prefix is empty"),
        ];
        for (kind, flags, told) in refusals {
            let refusal = options(kind, flags).expect_err(told);
            assert!(refusal.starts_with(told), "{refusal}");
        }
    }

    #[test]
    fn a_server_keeps_its_id_and_has_one_of_its_own() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let id = server_id(one.path()).expect("an id");
        assert_eq!(server_id(one.path()).expect("the same"), id);
        assert_ne!(server_id(other.path()).expect("another"), id);
    }

    #[test]
    fn several_servers_and_no_compaction_can_be_asked_for() {
        let flags = ["--etcd-servers=https://a:1,https://b:2", "--etcd-compaction-interval=0"];
        let etcd = options(StoreKind::Etcd, &flags).expect("flags").expect("etcd");
        assert_eq!((etcd.endpoints.len(), etcd.compact_every, &*etcd.prefix), (2, None, "/karmada"));
        assert_eq!(options(StoreKind::Embedded, &[]), Ok(None));
    }
}
