//! Generators of namespaces, config maps, secrets, quotas and service accounts.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{Creation, Made, Name};

/// Create a namespace with the specified name.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Create namespace shop
  karmadactl create namespace shop")]
pub struct Namespace {
    #[command(flatten)]
    pub name: Name,
    #[command(flatten)]
    pub creation: Creation,
}

impl Namespace {
    pub(super) fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("namespace")?;
        Ok(Made {
            object: json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {}, "status": {}}),
            plural: "namespaces",
            namespaced: false,
            failed: "",
        })
    }
}

/// Create a service account with the specified name.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Create service account robot
  karmadactl create serviceaccount robot")]
pub struct ServiceAccount {
    #[command(flatten)]
    pub name: Name,
    #[command(flatten)]
    pub creation: Creation,
}

impl ServiceAccount {
    pub(super) fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("serviceaccount")?;
        Ok(Made {
            object: json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}),
            plural: "serviceaccounts",
            namespaced: true,
            failed: "failed to create serviceaccount: ",
        })
    }
}

/// Create a quota with the specified name, hard limits, and optional scopes.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # At most two pods with one CPU
  karmadactl create quota small --hard=cpu=1,pods=2

  # For pods without requests
  karmadactl create quota best-effort --hard=pods=100 --scopes=BestEffort")]
pub struct Quota {
    #[command(flatten)]
    pub name: Name,
    /// A comma-delimited set of resource=quantity pairs that define a hard limit.
    #[arg(long, value_name = "LIMITS", default_value = "")]
    pub hard: String,
    /// A comma-delimited set of quota scopes that must all match each object tracked by the quota.
    #[arg(long, value_name = "SCOPES", default_value = "")]
    pub scopes: String,
    #[command(flatten)]
    pub creation: Creation,
}

impl Quota {
    pub(super) fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("quota")?;
        let mut spec = Map::new();
        let mut hard = Map::new();
        for pair in self.hard.split(',').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                bail!("Invalid argument syntax {pair}, expected <resource>=<value>");
            };
            let value =
                apimachinery::quantity::Quantity::canonical(value).map_err(|error| anyhow!("{error}"))?;
            hard.insert(key.to_owned(), value.into());
        }
        if !hard.is_empty() {
            spec.insert("hard".to_owned(), hard.into());
        }
        let scopes: Vec<&str> = self.scopes.split(',').filter(|scope| !scope.is_empty()).collect();
        if !scopes.is_empty() {
            spec.insert("scopes".to_owned(), json!(scopes));
        }
        Ok(Made {
            object: json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec, "status": {}}),
            plural: "resourcequotas",
            namespaced: true,
            failed: "failed to create quota: ",
        })
    }
}

/// Where the values of config maps and secrets come from.
#[derive(Debug, Clone, Default, Args)]
pub struct Sources {
    /// A file, a file with another key (key=FILE), or a directory; may be repeated.
    #[arg(long, value_name = "[KEY=]FILE")]
    pub from_file: Vec<String>,
    /// A key and its value; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub from_literal: Vec<String>,
    /// A file with a key=value in each line; may be repeated.
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub from_env_file: Vec<String>,
}

/// The complaint about an invalid key; the kind of object follows.
const INVALID: &str = " is not a valid key name";

impl Sources {
    /// Reads the values for an object of this kind.
    fn read_for(&self, kind: &str) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
        self.read().map_err(|error| match error.to_string().split_once(INVALID) {
            Some((key, complaint)) => anyhow!("{key}{INVALID} for a {kind}{complaint}"),
            None => error,
        })
    }

    fn read(&self) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
        let has_other_sources = !self.from_file.is_empty() || !self.from_literal.is_empty();
        if has_other_sources && !self.from_env_file.is_empty() {
            bail!("from-env-file cannot be combined with from-file or from-literal");
        }
        let mut entries = Vec::new();
        for source in &self.from_file {
            from_file(source, &mut entries)?;
        }
        for literal in &self.from_literal {
            let Some((key, value)) = literal.split_once('=').filter(|(key, _)| !key.is_empty()) else {
                bail!("invalid literal source {literal}, expected key=value");
            };
            let value = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
            add(&mut entries, key.to_owned(), value.as_bytes().to_vec())?;
        }
        for file in &self.from_env_file {
            from_env_file(file, &mut entries)?;
        }
        Ok(entries)
    }
}

fn add(entries: &mut Vec<(String, Vec<u8>)>, key: String, value: Vec<u8>) -> anyhow::Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let complaint = match key.as_str() {
        key if key.len() > 253 => "must be no more than 253 characters",
        key if key.is_empty() || !key.chars().all(fits) => {
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  \
             or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
        }
        "." => "must not be '.'",
        ".." => "must not be '..'",
        key if key.starts_with("..") => "must not start with '..'",
        _ => "",
    };
    if !complaint.is_empty() {
        bail!("{}{INVALID}: {complaint}", apimachinery::go::quote(&key));
    }
    if entries.iter().any(|(known, _)| *known == key) {
        bail!("cannot add key {}, another key by that name already exists", apimachinery::go::quote(&key));
    }
    entries.push((key, value));
    Ok(())
}

fn from_file(source: &str, entries: &mut Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
    let (key, path) = match source.split_once('=') {
        Some((key, path)) if !path.contains('=') => (Some(key), path),
        Some(_) => bail!("key names or file paths cannot contain '='"),
        None => (None, source),
    };
    if key == Some("") {
        bail!("key name for file path {path} missing");
    }
    if path.is_empty() {
        bail!("file path for key name {} missing", key.unwrap_or(""));
    }
    let path = Path::new(path);
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                anyhow!("error reading {}: no such file or directory", path.display())
            }
            _ => anyhow!("error reading {}: {error}", path.display()),
        })
    };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !path.is_dir() {
        return add(entries, key.map_or_else(|| name(path), str::to_owned), read(path)?);
    }
    if key.is_some() {
        bail!("cannot give a key name for a directory path");
    }
    let listed =
        std::fs::read_dir(path).with_context(|| format!("error listing files in {}", path.display()))?;
    let mut files: Vec<_> = listed.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    files.sort();
    for file in files.iter().filter(|file| file.is_file()) {
        add(entries, name(file), read(file)?)?;
    }
    Ok(())
}

fn from_env_file(file: &str, entries: &mut Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("error reading env file {file}"))?;
    for line in text.trim_start_matches('\u{feff}').lines() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let value = match line.split_once('=') {
            Some((key, value)) => Some((key.to_owned(), value.to_owned())),
            // A name without a value takes its value from the environment, if it has one there.
            None => std::env::var(line).ok().map(|value| (line.to_owned(), value)),
        };
        if let Some((key, value)) = value {
            add(entries, key, value.into_bytes())?;
        }
    }
    Ok(())
}

/// The suffix of a name, which changes with the content.
fn hash(content: &Value) -> String {
    let digest = Sha256::digest(apimachinery::json::write(content).as_bytes());
    let hex: String = digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    // Letters that do not form words.
    hex.chars()
        .map(|c| match c {
            '0' => 'g',
            '1' => 'h',
            '3' => 'k',
            'a' => 'm',
            'e' => 't',
            other => other,
        })
        .collect()
}

/// Create a config map based on a file, directory, or specified literal value.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # From literal values
  karmadactl create configmap motd --from-literal=text=hello --from-literal=lang=en

  # From a file, under another key
  karmadactl create configmap motd --from-file=text=motd.txt

  # From all files of a directory
  karmadactl create configmap motd --from-file=texts/")]
pub struct ConfigMap {
    #[command(flatten)]
    pub name: Name,
    #[command(flatten)]
    pub sources: Sources,
    /// Append a hash of the content to the name.
    #[arg(long)]
    pub append_hash: bool,
    #[command(flatten)]
    pub creation: Creation,
}

impl ConfigMap {
    pub(super) fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("configmap")?;
        let (mut data, mut binary) = (Map::new(), Map::new());
        for (key, value) in self.sources.read_for("ConfigMap")? {
            match String::from_utf8(value) {
                Ok(text) => data.insert(key, text.into()),
                Err(error) => binary.insert(key, STANDARD.encode(error.as_bytes()).into()),
            };
        }
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        if !data.is_empty() {
            object["data"] = data.clone().into();
        }
        if !binary.is_empty() {
            object["binaryData"] = binary.clone().into();
        }
        if self.append_hash {
            let data = if data.is_empty() { Value::Null } else { data.into() };
            let mut content = json!({"kind": "ConfigMap", "name": name, "data": data});
            if !binary.is_empty() {
                content["binaryData"] = binary.into();
            }
            object["metadata"]["name"] = format!("{name}-{}", hash(&content)).into();
        }
        Ok(Made { object, plural: "configmaps", namespaced: true, failed: "failed to create configmap: " })
    }
}

/// Create a secret with specified type.
#[derive(Debug, Clone, Args)]
pub struct Secret {
    #[command(flatten)]
    pub creation: Creation,
    #[command(subcommand)]
    pub command: SecretCommand,
}

#[derive(Debug, Clone, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one in the life of the process")]
pub enum SecretCommand {
    Generic(Generic),
    DockerRegistry(DockerRegistry),
    Tls(Tls),
}

/// Create a secret based on a file, directory, or specified literal value.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # From a literal value
  karmadactl create secret generic door --from-literal=key=secret")]
pub struct Generic {
    #[command(flatten)]
    pub name: Name,
    #[command(flatten)]
    pub sources: Sources,
    /// The type of secret to create.
    #[arg(long = "type", value_name = "TYPE", default_value = "")]
    pub kind: String,
    /// Append a hash of the content to the name.
    #[arg(long)]
    pub append_hash: bool,
    #[command(flatten)]
    pub creation: Creation,
}

/// Create a secret for use with a registry of images.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Credentials of a registry
  karmadactl create secret docker-registry images --docker-server=registry.example --docker-username=me --docker-password=secret")]
pub struct DockerRegistry {
    #[command(flatten)]
    pub name: Name,
    /// Address of the registry.
    #[arg(long, value_name = "URL", default_value = "https://index.docker.io/v1/")]
    pub docker_server: String,
    /// User name of the registry.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub docker_username: String,
    /// Password of the registry.
    #[arg(long, value_name = "PASSWORD", default_value = "")]
    pub docker_password: String,
    /// Mail address of the registry.
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    pub docker_email: String,
    /// A file with credentials, such as ~/.docker/config.json.
    #[arg(long, value_name = "[KEY=]FILE")]
    pub from_file: Vec<String>,
    /// Append a hash of the content to the name.
    #[arg(long)]
    pub append_hash: bool,
    #[command(flatten)]
    pub creation: Creation,
}

/// Create a TLS secret from the given public/private key pair.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # A certificate with its key
  karmadactl create secret tls web --cert=web.crt --key=web.key")]
pub struct Tls {
    #[command(flatten)]
    pub name: Name,
    /// Path to PEM encoded public key certificate.
    #[arg(long, value_name = "FILE", default_value = "")]
    pub cert: String,
    /// Path to private key associated with given certificate.
    #[arg(long, value_name = "FILE", default_value = "")]
    pub key: String,
    /// Append a hash of the content to the name.
    #[arg(long)]
    pub append_hash: bool,
    #[command(flatten)]
    pub creation: Creation,
}

impl Secret {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        match &self.command {
            SecretCommand::Generic(generic) => generic.creation.create(generic.make()?).await,
            SecretCommand::DockerRegistry(registry) => registry.creation.create(registry.make()?).await,
            SecretCommand::Tls(tls) => tls.creation.create(tls.make()?).await,
        }
    }
}

fn secret(name: &str, kind: &str, entries: Vec<(String, Vec<u8>)>, append_hash: bool) -> Made {
    let data: Map<String, Value> =
        entries.into_iter().map(|(key, value)| (key, STANDARD.encode(value).into())).collect();
    let mut object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
    if !kind.is_empty() {
        object["type"] = kind.into();
    }
    if append_hash {
        let content = json!({"kind": "Secret", "type": kind, "name": name, "data": data});
        object["metadata"]["name"] = format!("{name}-{}", hash(&content)).into();
    }
    if !data.is_empty() {
        object["data"] = data.into();
    }
    Made { object, plural: "secrets", namespaced: true, failed: "failed to create secret " }
}

impl Generic {
    fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("secret generic")?;
        Ok(secret(name, &self.kind, self.sources.read_for("Secret")?, self.append_hash))
    }
}

impl DockerRegistry {
    fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("secret docker-registry")?;
        const KEY: &str = ".dockerconfigjson";
        let mut entries = Vec::new();
        if self.from_file.is_empty() {
            if self.docker_username.is_empty()
                || self.docker_password.is_empty()
                || self.docker_server.is_empty()
            {
                bail!(
                    "either --from-file or the combination of --docker-username, --docker-password and --docker-server is \
                     required"
                );
            }
            let pair = format!("{}:{}", self.docker_username, self.docker_password);
            // The order of the fields is the same as in all other tools.
            let quote = |text: &str| Value::from(text).to_string();
            let mail = match self.docker_email.as_str() {
                "" => String::new(),
                mail => format!("\"email\":{},", quote(mail)),
            };
            let text = format!(
                "{{\"auths\":{{{}:{{\"username\":{},\"password\":{},{mail}\"auth\":{}}}}}}}",
                quote(&self.docker_server),
                quote(&self.docker_username),
                quote(&self.docker_password),
                quote(&STANDARD.encode(pair))
            );
            entries.push((KEY.to_owned(), text.into_bytes()));
        } else {
            for source in &self.from_file {
                let source = if source.contains('=') { source.clone() } else { format!("{KEY}={source}") };
                from_file(&source, &mut entries)?;
            }
        }
        Ok(secret(name, "kubernetes.io/dockerconfigjson", entries, self.append_hash))
    }
}

impl Tls {
    fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("secret tls")?;
        if self.cert.is_empty() || self.key.is_empty() {
            bail!("key and cert must be specified");
        }
        let read = |file: &str| std::fs::read(file).with_context(|| format!("cannot read {file}"));
        let (cert, key) = (read(&self.cert)?, read(&self.key)?);
        let (_, pem) = x509_parser::pem::parse_x509_pem(&cert)
            .map_err(|_| anyhow!("{} holds no PEM encoded certificate", self.cert))?;
        pem.parse_x509().map_err(|error| anyhow!("{} holds no certificate: {error}", self.cert))?;
        if !String::from_utf8_lossy(&key).contains("PRIVATE KEY-----") {
            bail!("{} holds no PEM encoded private key", self.key);
        }
        let entries = vec![("tls.crt".to_owned(), cert), ("tls.key".to_owned(), key)];
        Ok(secret(name, "kubernetes.io/tls", entries, self.append_hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_from_files_literals_and_lists() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("a.txt"), "hi").expect("written");
        std::fs::write(path("list"), "# no\n\nx=1\ny=a=b\n").expect("written");
        let read = |files: &[String], literals: &[&str], lists: &[String]| {
            let sources = Sources {
                from_file: files.to_vec(),
                from_literal: literals.iter().map(|text| (*text).to_owned()).collect(),
                from_env_file: lists.to_vec(),
            };
            sources.read().map(|entries| {
                let text =
                    |(key, value): (String, Vec<u8>)| format!("{key}={}", String::from_utf8_lossy(&value));
                entries.into_iter().map(text).collect::<Vec<_>>().join(" ")
            })
        };
        assert_eq!(
            read(&[path("a.txt"), format!("k={}", path("a.txt"))], &["b=2"], &[]).expect("good"),
            "a.txt=hi k=hi b=2"
        );
        assert_eq!(
            read(&[folder.path().display().to_string()], &[], &[]).expect("good"),
            "a.txt=hi list=# no\n\nx=1\ny=a=b\n"
        );
        assert_eq!(read(&[], &[], &[path("list")]).expect("good"), "x=1 y=a=b");
        for (files, literals, complaint) in [
            (vec![path("nope")], vec![], "no such file or directory"),
            (vec![], vec!["x"], "invalid literal source x, expected key=value"),
            (vec![], vec!["x=1", "x=2"], "another key by that name already exists"),
            (vec![], vec!["a/b=1"], "is not a valid key name"),
        ] {
            let error = read(&files, &literals, &[]).expect_err(complaint).to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }

    #[test]
    fn a_hash_of_the_content_is_kubectls() {
        // Values from kubectl's own table of cases.
        let empty = json!({"kind": "ConfigMap", "name": "", "data": {}});
        assert_eq!(hash(&empty), "42745tchd9");
        let one = json!({"kind": "ConfigMap", "name": "", "data": {"one": ""}});
        assert_eq!(hash(&one), "9g67k2htb6");
        let secret = json!({"kind": "Secret", "type": "my-type", "name": "", "data": {}});
        assert_eq!(hash(&secret), "t75bgf6ctb");
    }
}
