//! Flags for access and for the audit log, by kube-apiserver's names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use apiserver::Budgets;
use apiserver::audit::{self, Rotation};
use apiserver::auth::oidc;
use apiserver::http::listener::Settings;
use clap::Args;

#[derive(Debug, Args)]
#[command(next_help_heading = "Connections")]
pub(crate) struct ConnectionArguments {
    /// Connections in all; by default as many as the limit of open files allows, 10000 at most. Some more are kept for
    /// administrators with a client certificate.
    #[arg(long, value_name = "N")]
    max_connections: Option<usize>,
    /// Connections from one address; by default half of --max-connections. Raise it if clients come through one proxy.
    #[arg(long, value_name = "N")]
    max_connections_per_address: Option<usize>,
    /// How long a connection stays open without a request, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    connection_idle_timeout: u64,
    /// Megabytes of answers that one user may leave unread before it gets no more. All users together may leave eight times as much.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65536))]
    max_unread_per_user: u64,
    /// Megabytes of request bodies that one user may have in work at once. All users together may have eight times as much.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65536))]
    max_request_bytes_per_user: u64,
}

impl ConnectionArguments {
    pub(crate) fn settings(&self) -> Settings {
        let idle = Duration::from_secs(self.connection_idle_timeout);
        Settings::default().chosen(self.max_connections, self.max_connections_per_address, Some(idle))
    }

    pub(crate) fn budgets(&self) -> Budgets {
        let bytes = |mebibytes: u64| usize::try_from(mebibytes << 20).unwrap_or(usize::MAX);
        Budgets {
            unsent: bytes(self.max_unread_per_user),
            reading: bytes(self.max_request_bytes_per_user),
            ..Budgets::default()
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "OpenID Connect")]
pub(crate) struct OidcArguments {
    /// The issuer whose tokens are taken: an https URL.
    #[arg(long, value_name = "URL", requires = "oidc_client_id")]
    oidc_issuer_url: Option<String>,
    /// The audience that tokens must be for.
    #[arg(long, value_name = "ID", requires = "oidc_issuer_url")]
    oidc_client_id: Option<String>,
    /// The claim that names the user.
    #[arg(long, value_name = "CLAIM", default_value = "sub")]
    oidc_username_claim: String,
    /// Put before user names; `-` for nothing. By default the issuer and `#`, and nothing for the claim `email`.
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    oidc_username_prefix: Option<String>,
    /// The claim that lists the user's groups.
    #[arg(long, value_name = "CLAIM")]
    oidc_groups_claim: Option<String>,
    /// Put before the names of groups.
    #[arg(long, value_name = "PREFIX", default_value = "")]
    oidc_groups_prefix: String,
    /// Authorities to trust when talking to the issuer; by default those of the machine.
    #[arg(long, value_name = "FILE")]
    oidc_ca_file: Option<PathBuf>,
    /// A claim that tokens must have, as `key=value`; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = claim)]
    oidc_required_claim: Vec<(String, String)>,
    /// How tokens may be signed.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "RS256")]
    oidc_signing_algs: Vec<String>,
}

fn claim(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| "must be key=value".to_owned())
}

impl OidcArguments {
    pub(crate) fn settings(self) -> Option<oidc::Settings> {
        Some(oidc::Settings {
            issuer: self.oidc_issuer_url?,
            client_id: self.oidc_client_id.unwrap_or_default(),
            username_claim: self.oidc_username_claim,
            username_prefix: self.oidc_username_prefix,
            groups_claim: self.oidc_groups_claim,
            groups_prefix: self.oidc_groups_prefix,
            ca_file: self.oidc_ca_file,
            required_claims: self.oidc_required_claim.into_iter().collect::<BTreeMap<_, _>>(),
            signing_algorithms: self.oidc_signing_algs,
        })
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Audit")]
pub(crate) struct AuditArguments {
    /// Record requests in this file, one JSON line each; `-` is the standard output.
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// Which requests are recorded and how much of them; by default all of them without their content.
    #[arg(long, value_name = "FILE", requires = "audit_log_path")]
    audit_policy_file: Option<PathBuf>,
    /// Turn the file over at this size, in megabytes; 0 never does.
    #[arg(long, value_name = "MB", default_value_t = 100)]
    audit_log_maxsize: u64,
    /// How many old files are kept; 0 keeps all.
    #[arg(long, value_name = "N", default_value_t = 10)]
    audit_log_maxbackup: usize,
}

impl AuditArguments {
    pub(crate) fn options(self) -> Option<audit::Options> {
        let size = (self.audit_log_maxsize > 0).then(|| self.audit_log_maxsize.saturating_mul(1024 * 1024));
        Some(audit::Options {
            policy: self.audit_policy_file,
            path: self.audit_log_path?,
            rotation: Rotation { size, keep: self.audit_log_maxbackup },
            blocking: false,
        })
    }
}
