//! Reads an untrusted kubeconfig, such as one in a Secret of another cluster.
//!
//! A kubeconfig may name programs to run and files to read; its author could make this process do both. So
//! the text is never handed to the client library. What can be carried in the text itself (an address,
//! certificates, a key, a token, a password) is copied field by field out of the one entry that the current
//! context names; a field that means anything else is refused by its name.
//!
//! In: bytes. Out: [`Access`], from which a client can be made. Reads no file, runs no program, and no error quotes possible
//! secrets.

use std::time::Duration;

use apimachinery::yaml;
use http::Uri;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Map, Value, json};

use crate::limit::LimitLayer;
use crate::tls::OldestTls;
use crate::{Error, Result, lasting};

/// The longest accepted kubeconfig, 256 KiB. One with certificates has less than 10 KiB; a Secret may have a MiB.
pub const KUBECONFIG_LIMIT: usize = 256 << 10;
/// As for every member.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The fields that are copied from a cluster's entry.
const OF_CLUSTER: [&str; 4] =
    ["server", "certificate-authority-data", "insecure-skip-tls-verify", "proxy-url"];
/// The fields that are copied from a user's entry.
const OF_USER: [&str; 5] = ["client-certificate-data", "client-key-data", "token", "username", "password"];
/// Fields that are ignored.
const PASSED_OVER: [&str; 2] = ["extensions", "disable-compression"];
/// Fields that would run a program here.
const PROGRAMS: [&str; 2] = ["exec", "auth-provider"];
/// Fields that would read a file here.
const FILES: [&str; 4] = ["certificate-authority", "client-certificate", "client-key", "tokenFile"];

/// Why a kubeconfig is not used. The messages never quote the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("it has more than 256 KiB")]
    TooLong,
    #[error("it is not YAML")]
    Unreadable,
    #[error("it has no current context that names a cluster of it")]
    NoContext,
    #[error("it wants a program to be run ({0}), and nothing that another cluster names is run here")]
    Program(&'static str),
    #[error("it names a file ({0}), and no file that another cluster names is read here")]
    File(&'static str),
    #[error("it has a field that is not supported: {0}")]
    Unsupported(String),
    #[error("its field {0} has a value of the wrong type")]
    WrongType(String),
    #[error("its server is not an https address without a user")]
    Server,
}

/// The address and credentials in a kubeconfig.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    server: String,
    cluster: Map<String, Value>,
    user: Map<String, Value>,
}

/// Without the credentials.
impl std::fmt::Debug for Access {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Access").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Access {
    /// Reads the entry to which the current context refers.
    pub fn read(text: &[u8]) -> std::result::Result<Self, Refused> {
        Self::read_context(text, None)
    }

    /// Reads the entry that a context names; without one, the current one.
    pub fn read_context(text: &[u8], context: Option<&str>) -> std::result::Result<Self, Refused> {
        if text.len() > KUBECONFIG_LIMIT {
            return Err(Refused::TooLong);
        }
        let text = std::str::from_utf8(text).map_err(|_| Refused::Unreadable)?;
        let document = yaml::read(text).map_err(|_| Refused::Unreadable)?.value;
        let current = context.or_else(|| document.get("current-context").and_then(Value::as_str));
        let context = current.and_then(|name| entry(&document, "contexts", "context", name));
        let context = context.ok_or(Refused::NoContext)?;
        let named = |key: &str| context.get(key).and_then(Value::as_str).unwrap_or("");
        let cluster = entry(&document, "clusters", "cluster", named("cluster")).ok_or(Refused::NoContext)?;
        let none = Map::new();
        let user = entry(&document, "users", "user", named("user")).unwrap_or(&none);
        let cluster = taken(cluster, &OF_CLUSTER)?;
        let user = taken(user, &OF_USER)?;
        let server = cluster.get("server").and_then(Value::as_str).unwrap_or("").to_owned();
        let address: Uri = server.parse().map_err(|_| Refused::Server)?;
        let has_user = address.authority().is_none_or(|authority| authority.as_str().contains('@'));
        // An untrusted text must not make us send a token or a password in the clear.
        if has_user || address.scheme_str() != Some("https") {
            return Err(Refused::Server);
        }
        Ok(Self { server, cluster, user })
    }

    /// Returns a kubeconfig with nothing else in it.
    ///
    /// # Errors
    /// If a field cannot be understood.
    pub fn kubeconfig(&self) -> serde_json::Result<Kubeconfig> {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "member",
            "clusters": [{ "name": "member", "cluster": self.cluster }],
            "users": [{ "name": "member", "user": self.user }],
            "contexts": [{ "name": "member", "context": { "cluster": "member", "user": "member" } }],
        }))
    }

    /// Returns how a client is set up for it.
    ///
    /// # Errors
    /// If certificates, the key or the proxy's address cannot be understood.
    pub async fn config(&self, cluster: &str) -> Result<Config> {
        let failed = || Error::Client { cluster: cluster.to_owned(), endpoint: self.server.clone() };
        let kubeconfig = self.kubeconfig().map_err(|_| failed())?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(|_| failed())?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // The caller decides about retries, not the client.
        config.default_retry = false;
        Ok(config)
    }
}

/// Makes a client for a cluster from a configuration. It reads no more than [`limit`](crate::limit) allows, and notices dead
/// connections.
///
/// # Errors
/// If certificates or credentials cannot be used.
pub fn limited_client(config: &Config, cluster: &str) -> Result<Client> {
    let client = lasting::client(config, Some(&LimitLayer::new(cluster)), OldestTls::default());
    client
        .map_err(|_| Error::Client { cluster: cluster.to_owned(), endpoint: config.cluster_url.to_string() })
}

/// Returns the entry with a name from a list of named entries.
fn entry<'a>(document: &'a Value, list: &str, key: &str, name: &str) -> Option<&'a Map<String, Value>> {
    let entries = document.get(list)?.as_array()?;
    let found = entries.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))?;
    found.get(key)?.as_object()
}

/// Returns the fields to copy. An empty field counts as missing.
fn taken(entry: &Map<String, Value>, wanted: &[&str]) -> std::result::Result<Map<String, Value>, Refused> {
    let mut fields = Map::new();
    for (key, value) in entry {
        let is_empty = value.is_null() || value.as_str() == Some("");
        if is_empty || PASSED_OVER.contains(&key.as_str()) {
            continue;
        }
        if let Some(program) = PROGRAMS.into_iter().find(|program| program == key) {
            return Err(Refused::Program(program));
        }
        if let Some(file) = FILES.into_iter().find(|file| file == key) {
            return Err(Refused::File(file));
        }
        if !wanted.contains(&key.as_str()) {
            // Names come from outside, too, and end up in events.
            return Err(Refused::Unsupported(key.chars().take(64).collect()));
        }
        let is_flag = key == "insecure-skip-tls-verify" && value.is_boolean();
        if !value.is_string() && !is_flag {
            return Err(Refused::WrongType(key.clone()));
        }
        fields.insert(key.clone(), value.clone());
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kubeconfig whose cluster and user have these fields besides the address.
    fn kubeconfig(cluster: Value, user: Value) -> Value {
        let mut of_cluster = json!({ "server": "https://10.0.0.1:6443" });
        apimachinery::patch::merge::apply(&mut of_cluster, cluster);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "contexts": [{ "name": "it", "context": { "cluster": "c", "user": "u" } }],
            "clusters": [{ "name": "c", "cluster": of_cluster }],
            "users": [{ "name": "u", "user": user }],
        })
    }

    fn read(kubeconfig: &Value) -> std::result::Result<Access, Refused> {
        Access::read(kubeconfig.to_string().as_bytes())
    }

    #[test]
    fn credentials_in_the_text_are_used_and_not_shown() {
        let access = read(&kubeconfig(
            json!({ "certificate-authority-data": "Y2E=", "extensions": [{ "name": "x", "extension": 1 }] }),
            json!({ "client-certificate-data": "Yw==", "client-key-data": "aw==", "token": "" }),
        ))
        .expect("it is of use");
        assert_eq!(format!("{access:?}"), r#"Access { server: "https://10.0.0.1:6443", .. }"#);
        let fields: Vec<&String> = access.user.keys().collect();
        assert_eq!(fields, ["client-certificate-data", "client-key-data"]);
        assert!(read(&kubeconfig(json!({}), json!({ "token": "t" }))).is_ok());
    }

    #[test]
    fn programs_files_and_what_is_not_known_are_refused() {
        let exec = json!({ "exec": { "command": "sh", "apiVersion": "client.authentication.k8s.io/v1" } });
        let provider = json!({ "auth-provider": { "name": "gcp", "config": { "cmd-path": "sh" } } });
        let none = || json!({});
        let cases = [
            ("a program", none(), exec, Refused::Program("exec")),
            ("a provider", none(), provider, Refused::Program("auth-provider")),
            ("a file of a token", none(), json!({ "tokenFile": "/t" }), Refused::File("tokenFile")),
            ("a file of a key", none(), json!({ "client-key": "/k" }), Refused::File("client-key")),
            (
                "a file of a certificate",
                none(),
                json!({ "client-certificate": "/c" }),
                Refused::File("client-certificate"),
            ),
            (
                "a file of an authority",
                json!({ "certificate-authority": "/etc/passwd" }),
                none(),
                Refused::File("certificate-authority"),
            ),
            (
                "a file beside the data",
                json!({ "certificate-authority": "/c", "certificate-authority-data": "Y2E=" }),
                none(),
                Refused::File("certificate-authority"),
            ),
            ("another name", none(), json!({ "as": "root" }), Refused::Unsupported("as".to_owned())),
            (
                "another server name",
                json!({ "tls-server-name": "x" }),
                none(),
                Refused::Unsupported("tls-server-name".to_owned()),
            ),
            ("no text", none(), json!({ "token": ["t"] }), Refused::WrongType("token".to_owned())),
            ("in the clear", json!({ "server": "http://10.0.0.1" }), none(), Refused::Server),
            ("a user in the address", json!({ "server": "https://a:b@10.0.0.1" }), none(), Refused::Server),
            ("a socket", json!({ "server": "unix:///run/x" }), none(), Refused::Server),
            ("no server", json!({ "server": null }), none(), Refused::Server),
        ];
        for (name, cluster, user, expected) in cases {
            assert_eq!(read(&kubeconfig(cluster, user)), Err(expected), "{name}");
        }
    }

    #[test]
    fn entries_of_other_contexts_do_not_matter() {
        let mut two = kubeconfig(json!({}), json!({ "token": "t" }));
        let other = json!({ "name": "other", "user": { "exec": { "command": "sh" } } });
        two["users"].as_array_mut().expect("a list").push(other);
        let context = json!({ "name": "second", "context": { "cluster": "c", "user": "other" } });
        two["contexts"].as_array_mut().expect("a list").push(context);
        assert!(read(&two).is_ok());
        let text = two.to_string();
        let access = |context| Access::read_context(text.as_bytes(), Some(context));
        assert!(access("it").is_ok());
        assert_eq!(access("second"), Err(Refused::Program("exec")));
        assert_eq!(access("third"), Err(Refused::NoContext));
    }

    #[test]
    fn texts_without_an_entry_are_refused() {
        let long = vec![b' '; KUBECONFIG_LIMIT + 1];
        let mut lost = kubeconfig(json!({}), json!({}));
        lost["current-context"] = json!("elsewhere");
        for (name, text, expected) in [
            ("nothing", Vec::new(), Refused::NoContext),
            ("too long", long, Refused::TooLong),
            ("no text", vec![0xff, 0xfe], Refused::Unreadable),
            ("no YAML", b"a: [".to_vec(), Refused::Unreadable),
            ("no map", b"- a".to_vec(), Refused::NoContext),
            ("no such context", lost.to_string().into_bytes(), Refused::NoContext),
        ] {
            assert_eq!(Access::read(&text), Err(expected), "{name}");
        }
    }

    #[tokio::test]
    async fn an_unusable_kubeconfig_is_reported_without_its_text() {
        let access = read(&kubeconfig(json!({ "certificate-authority-data": "?" }), json!({})));
        let error =
            access.expect("it is carried in the text").config("m1").await.expect_err("it is not base64");
        assert_eq!(error.to_string(), "cannot make a client for cluster m1 at https://10.0.0.1:6443");
    }
}
