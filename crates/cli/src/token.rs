//! `token`: bootstrap tokens, with which clusters in pull mode register themselves.

use admission::agents::BOOTSTRAP_CLUSTER_PREFIX;
use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use rand::RngExt;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use x509_parser::pem::Pem;

use crate::clients::duration;
use crate::failure;
use crate::output;
use crate::print::table::align;
use crate::select::list;
use crate::server::{Connection, segment};

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const KIND: &str = "bootstrap.kubernetes.io/token";
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Manage bootstrap tokens for joining member clusters to Karmada.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    #[command(flatten)]
    pub connection: Connection,
    #[command(subcommand)]
    pub command: Action,
}

/// What to do with tokens.
#[derive(Debug, Clone, Subcommand)]
pub enum Action {
    Create(Box<Create>),
    List(List),
    Delete(Delete),
}

/// Create bootstrap tokens on the server.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Create a token
  karmadactl token create

  # Print the command that registers a cluster with a new token
  karmadactl token create --print-register-command

  # Create a token that registers one cluster, and no other
  karmadactl token create --cluster-name member1 --print-register-command")]
pub struct Create {
    #[command(flatten)]
    pub connection: Connection,
    /// The duration before the token is automatically deleted (e.g. 1s, 2m, 3h); 0 means never.
    #[arg(long, value_name = "DURATION", default_value = "24h0m0s", value_parser = crate::clients::duration_text)]
    pub ttl: String,
    /// What the token is for: signing, authentication.
    #[arg(long, value_name = "USAGE", value_delimiter = ',', default_value = "signing,authentication")]
    pub usages: Vec<String>,
    /// Extra groups that this token will authenticate as.
    #[arg(
        long,
        value_name = "GROUP",
        value_delimiter = ',',
        default_value = "system:bootstrappers:karmada:default-cluster-token"
    )]
    pub groups: Vec<String>,
    /// A human friendly description of how this token is used.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub description: String,
    /// The only cluster that can be registered with this token.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub cluster_name: String,
    /// Instead of printing only the token, print the full register command.
    #[arg(long)]
    pub print_register_command: bool,
}

/// List bootstrap tokens on the server.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # List all tokens
  karmadactl token list")]
pub struct List {
    #[command(flatten)]
    pub connection: Connection,
}

/// Delete bootstrap tokens on the server.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Delete a token by its id
  karmadactl token delete abcdef")]
pub struct Delete {
    #[command(flatten)]
    pub connection: Connection,
    /// Ids of tokens, or whole tokens.
    #[arg(value_name = "TOKEN")]
    pub tokens: Vec<String>,
}

pub(crate) async fn run(arguments: Arguments, program: &str) -> anyhow::Result<()> {
    match arguments.command {
        Action::Create(create) => create_one(*create, program).await,
        Action::List(list) => list_all(list).await,
        Action::Delete(delete) => delete_all(delete).await,
    }
}

async fn create_one(mut arguments: Create, program: &str) -> anyhow::Result<()> {
    let ttl = duration(&arguments.ttl)?;
    for usage in &arguments.usages {
        if !matches!(usage.as_str(), "signing" | "authentication") {
            bail!("invalid usages: {usage}; valid options are signing and authentication");
        }
    }
    for group in &arguments.groups {
        let rest = group.strip_prefix("system:bootstrappers:").unwrap_or("");
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == ':' || c == '-';
        let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        if rest.is_empty() || !rest.chars().all(fits) || !rest.ends_with(ends) || rest.len() > 256 {
            bail!(
                "bootstrap group {group:?} is invalid (must match \\Asystem:bootstrappers:[a-z0-9:-]{{0,255}}[a-z0-9]\\z)"
            );
        }
    }
    if !arguments.cluster_name.is_empty() {
        crate::clients::check_name(&arguments.cluster_name)?;
        arguments.groups.push(format!("{BOOTSTRAP_CLUSTER_PREFIX}{}", arguments.cluster_name));
    }
    let plane = arguments.connection.plane().await?;
    let (id, secret) = (random(6), random(16));
    let mut data = Map::new();
    data.insert("token-id".into(), id.clone().into());
    data.insert("token-secret".into(), secret.clone().into());
    if !arguments.description.is_empty() {
        data.insert("description".into(), arguments.description.clone().into());
    }
    if !ttl.is_zero() {
        let end = Timestamp::now() + SignedDuration::try_from(ttl).context("--ttl is too long")?;
        data.insert("expiration".into(), seconds(end).into());
    }
    for usage in &arguments.usages {
        data.insert(format!("usage-bootstrap-{usage}"), "true".into());
    }
    if !arguments.groups.is_empty() {
        data.insert("auth-extra-groups".into(), arguments.groups.join(",").into());
    }
    let object = json!({"apiVersion": "v1", "kind": "Secret", "type": KIND, "stringData": data,
        "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"}});
    plane.server.post(SECRETS, &object).await?;
    let token = format!("{id}.{secret}");
    if !arguments.print_register_command {
        output::line(&token);
        return Ok(());
    }
    let config = arguments.connection.config().await?;
    let address = config.cluster_url.to_string();
    let host = address.trim_start_matches("https://").trim_end_matches('/').to_owned();
    let hashes: Vec<String> =
        config.root_cert.iter().flatten().map(|der| key_hash(der)).collect::<anyhow::Result<_>>()?;
    if hashes.is_empty() {
        bail!("the kubeconfig has no certificate authority, whose hash the register command needs");
    }
    let name = match arguments.cluster_name.as_str() {
        "" => String::new(),
        name => format!(" --cluster-name {name}"),
    };
    output::line(&format!(
        "{program} register {host} --token {token} --discovery-token-ca-cert-hash {}{name}",
        hashes.join(",")
    ));
    Ok(())
}

/// `sha256:…` of a certificate's public key.
pub(crate) fn key_hash(der: &[u8]) -> anyhow::Result<String> {
    let text = |certificate: &x509_parser::certificate::X509Certificate<'_>| {
        let digest = Sha256::digest(certificate.public_key().raw);
        format!("sha256:{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    // A file may still contain PEM.
    if let Some(Ok(pem)) = Pem::iter_from_buffer(der).next() {
        return Ok(text(&pem.parse_x509().context("the certificate authority is malformed")?));
    }
    let (_, certificate) = x509_parser::parse_x509_certificate(der)
        .map_err(|error| anyhow::anyhow!("the certificate authority is malformed: {error}"))?;
    Ok(text(&certificate))
}

fn random(length: usize) -> String {
    let mut source = rand::rng();
    (0..length).map(|_| char::from(LETTERS[source.random_range(0..LETTERS.len())])).collect()
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

async fn list_all(arguments: List) -> anyhow::Result<()> {
    let plane = arguments.connection.plane().await?;
    let secrets = list(&plane.server, SECRETS, None, Some(&format!("type={KIND}"))).await?;
    let mut rows: Vec<Vec<String>> =
        vec![["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"].map(str::to_owned).into()];
    for secret in &secrets {
        match row(secret, Timestamp::now()) {
            Ok(row) => rows.push(row),
            Err(error) => output::warn(&format!("{error:#}")),
        }
    }
    if rows.len() > 1 {
        output::print(&align(&rows));
    }
    Ok(())
}

fn row(secret: &Value, now: Timestamp) -> anyhow::Result<Vec<String>> {
    let name = secret["metadata"]["name"].as_str().unwrap_or("");
    let value = |key: &str| -> String {
        let bytes =
            secret["data"][key].as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (id, key) = (value("token-id"), value("token-secret"));
    if !is_token(&format!("{id}.{key}")) || name != format!("bootstrap-token-{id}") {
        bail!("bootstrap token secret {name:?} has no valid token-id and token-secret");
    }
    let (left, end) = match value("expiration").as_str() {
        "" => ("<forever>".to_owned(), "<never>".to_owned()),
        text => {
            let end: Timestamp = text
                .parse()
                .with_context(|| format!("can't parse expiration time of bootstrap token {name:?}"))?;
            (short(end.duration_since(now).as_secs()), seconds(end))
        }
    };
    let mut usages: Vec<String> = secret["data"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("usage-bootstrap-").filter(|_| value(key) == "true"))
        .map(str::to_owned)
        .collect();
    usages.sort();
    let or_none = |text: String| if text.is_empty() { "<none>".to_owned() } else { text };
    Ok(vec![
        format!("{id}.{key}"),
        left,
        end,
        or_none(usages.join(",")),
        or_none(value("description")),
        or_none(value("auth-extra-groups")),
    ])
}

/// A duration in its largest unit, as Kubernetes writes it: `23h`, `45m`, `2d`, `1y`.
fn short(seconds: i64) -> String {
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        86400..31_536_000 => format!("{}d", seconds / 86400),
        _ => format!("{}y", seconds / 31_536_000),
    }
}

async fn delete_all(arguments: Delete) -> anyhow::Result<()> {
    if arguments.tokens.is_empty() {
        bail!("missing subcommand; 'token delete' is missing token of form \"\\\\A([a-z0-9]{{6}})\\\\z\"");
    }
    let plane = arguments.connection.plane().await?;
    for token in &arguments.tokens {
        let id = match token.split_once('.') {
            Some((id, _)) if is_token(token) => id,
            None if is_id(token) => token,
            _ => bail!(
                "given token didn't match pattern \"\\\\A([a-z0-9]{{6}})\\\\z\" or \
                 \"\\\\A([a-z0-9]{{6}})\\\\z\""
            ),
        };
        let path = format!("{SECRETS}/bootstrap-token-{}", segment(id));
        if let Err(error) = plane.server.delete(&path, &json!({})).await {
            if failure::is_not_found(&error) {
                bail!("failed to delete secret \"bootstrap-token-{id}\", err: {error}");
            }
            return Err(error);
        }
        output::line(&format!("bootstrap token {} deleted", apimachinery::go::quote(id)));
    }
    Ok(())
}

fn is_id(text: &str) -> bool {
    text.len() == 6 && text.bytes().all(|byte| LETTERS.contains(&byte))
}

pub(crate) fn is_token(text: &str) -> bool {
    text.split_once('.').is_some_and(|(id, secret)| {
        is_id(id) && secret.len() == 16 && secret.bytes().all(|byte| LETTERS.contains(&byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_becomes_a_row() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let data = |pairs: &[(&str, &str)]| -> Value {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), STANDARD.encode(value).into()))
                .collect::<Map<_, _>>()
                .into()
        };
        let mut secret = json!({"metadata": {"name": "bootstrap-token-abcdef"}, "data": data(&[
            ("token-id", "abcdef"), ("token-secret", "0123456789abcdef"), ("expiration", "2026-01-01T23:30:00Z"),
            ("usage-bootstrap-signing", "true"), ("usage-bootstrap-authentication", "true")])});
        let cells = row(&secret, now).expect("a token");
        assert_eq!(
            cells,
            [
                "abcdef.0123456789abcdef",
                "23h",
                "2026-01-01T23:30:00Z",
                "authentication,signing",
                "<none>",
                "<none>"
            ]
        );
        secret["data"]["expiration"] = "".into();
        assert_eq!(row(&secret, now).expect("a token")[1..3], ["<forever>".to_owned(), "<never>".to_owned()]);
        secret["data"]["token-id"] = "".into();
        assert!(row(&secret, now).is_err());
    }

    #[test]
    fn the_remaining_time_is_shown_as_kubernetes_shows_it() {
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (59, "59s"),
            (3599, "59m"),
            (86_399, "23h"),
            (86_400, "1d"),
            (31_535_999, "364d"),
            (31_536_000, "1y"),
            (70_000_000, "2y"),
        ] {
            assert_eq!(short(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn tokens_have_a_pattern() {
        assert!(is_token(&format!("{}.{}", random(6), random(16))));
        assert!(!is_token("abc.def") && !is_id("ABCDEF") && is_id("abc123"));
    }
}
