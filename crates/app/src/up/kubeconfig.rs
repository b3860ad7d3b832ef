//! One kubeconfig for everything: the control plane's context, which stays the current one, and a context per member.
//!
//! In: kubeconfigs from any source, which are only read. Out: the text of ours.

use std::path::Path;

use anyhow::{Context, bail};
use apimachinery::yaml;
use serde_json::{Value, json};

/// How to reach one member: the content of a kubeconfig's current context.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    /// Made from the context's name, so that it can also name the cluster.
    pub(super) name: String,
    pub(super) server: String,
    cluster: Value,
    user: Value,
}

/// Files that a kubeconfig may name relative to itself.
const PATHS: [&str; 4] = ["certificate-authority", "client-certificate", "client-key", "tokenFile"];

impl Entry {
    /// Reads the current context of a kubeconfig file.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
        let parent = std::path::absolute(path).ok().and_then(|path| path.parent().map(Path::to_owned));
        Self::parse(&text, &parent.unwrap_or_default())
            .with_context(|| format!("the kubeconfig {} cannot be used", path.display()))
    }

    /// Reads the current context of a kubeconfig in `folder`.
    pub(super) fn parse(text: &str, folder: &Path) -> anyhow::Result<Self> {
        let config: Value = yaml::from_str(text).context("it is not YAML")?;
        let context = config["current-context"].as_str().unwrap_or("");
        if context.is_empty() {
            bail!("it has no current context");
        }
        let inner = |list: &str, name: &str, key: &str| -> anyhow::Result<Value> {
            let found = config[list].as_array().into_iter().flatten().find(|each| each["name"] == name);
            match found {
                Some(found) => Ok(found[key].clone()),
                None => bail!("it has no {key} called {name:?}"),
            }
        };
        let details = inner("contexts", context, "context")?;
        let mut cluster = inner("clusters", details["cluster"].as_str().unwrap_or(""), "cluster")?;
        let mut user = inner("users", details["user"].as_str().unwrap_or(""), "user")?;
        for map in [&mut cluster, &mut user] {
            for key in PATHS {
                if let Some(path) = map.get(key).and_then(Value::as_str) {
                    map[key] = folder.join(path).to_string_lossy().into_owned().into();
                }
            }
        }
        let server = cluster["server"].as_str().unwrap_or("").trim_end_matches('/').to_owned();
        if server.is_empty() {
            bail!("the cluster of its current context has no server");
        }
        let name = label(context);
        if name.is_empty() {
            bail!("its context {context:?} does not make a name for a cluster");
        }
        Ok(Self { name, server, cluster, user })
    }
}

/// Turns a context's name into a DNS label: `kind-eu` stays, `admin@Prod.EU` becomes `admin-prod-eu`.
fn label(context: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = context.chars().map(fits).take(api::constants::CLUSTER_NAME_MAX_LENGTH).collect();
    text.trim_matches('-').to_owned()
}

/// Adds contexts to a kubeconfig; existing ones come first, and the current one stays current.
pub(super) fn combine(control: &str, members: &[Entry]) -> anyhow::Result<String> {
    let mut config: Value = yaml::from_str(control).context("our own kubeconfig is malformed")?;
    fleet(&mut config);
    for member in members {
        let name = &member.name;
        push(&mut config, "clusters", json!({"name": name, "cluster": member.cluster}));
        push(&mut config, "users", json!({"name": name, "user": member.user}));
        push(&mut config, "contexts", json!({"name": name, "context": {"cluster": name, "user": name}}));
    }
    Ok(yaml::write(&config))
}

/// The context in which all members are one cluster.
pub(super) const FLEET: &str = "fleet";

/// Adds a context with the control plane's credentials, whose server is the endpoint of the fleet.
fn fleet(config: &mut Value) {
    let current = config["current-context"].clone();
    let named = |list: &str, name: &Value, key: &str| {
        let found = config[list].as_array().into_iter().flatten().find(|each| each["name"] == *name);
        found.map(|found| found[key].clone())
    };
    let Some(mut context) = named("contexts", &current, "context") else { return };
    let Some(mut cluster) = named("clusters", &context["cluster"], "cluster") else { return };
    let server = cluster["server"].as_str().unwrap_or("").trim_end_matches('/');
    cluster["server"] = format!("{server}{}/karmada/proxy", api::constants::PATH_PROXYING).into();
    context["cluster"] = FLEET.into();
    push(config, "clusters", json!({"name": FLEET, "cluster": cluster}));
    push(config, "contexts", json!({"name": FLEET, "context": context}));
}

fn push(config: &mut Value, list: &str, item: Value) {
    if let Some(list) = config[list].as_array_mut() {
        list.push(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: &str = "apiVersion: v1\nkind: Config\ncurrent-context: admin@Prod.EU\n\
        contexts: [{name: admin@Prod.EU, context: {cluster: prod, user: admin}}]\n\
        clusters: [{name: prod, cluster: {server: 'https://prod:6443', certificate-authority: ca.crt}}]\n\
        users: [{name: admin, user: {client-key: /keys/admin.key}}]\n";

    #[test]
    fn a_context_becomes_an_entry_with_absolute_paths() {
        let entry = Entry::parse(MINE, Path::new("/home/me")).expect("usable");
        assert_eq!((entry.name.as_str(), entry.server.as_str()), ("admin-prod-eu", "https://prod:6443"));
        assert_eq!(entry.cluster["certificate-authority"], "/home/me/ca.crt");
        assert_eq!(entry.user["client-key"], "/keys/admin.key");
    }

    #[test]
    fn a_kubeconfig_without_what_it_needs_is_refused() {
        let cases = [
            ("{".to_owned(), "not YAML"),
            ("{}".to_owned(), "no current context"),
            ("current-context: a".to_owned(), "no context called"),
            (MINE.replace("name: prod", "name: other"), "no cluster called"),
            (MINE.replace("server:", "servant:"), "has no server"),
        ];
        for (text, complaint) in cases {
            let error = format!("{:#}", Entry::parse(&text, Path::new("/")).expect_err(&text));
            assert!(error.contains(complaint), "{error}");
        }
    }

    #[test]
    fn every_value_of_a_kubeconfig_is_one_line() {
        let data = "QUJD".repeat(400);
        let control =
            MINE.replace("certificate-authority: ca.crt", &format!("certificate-authority-data: {data}"));
        let text = combine(&control, &[]).expect("combined");
        let line = format!("    certificate-authority-data: {data}");
        assert!(text.lines().any(|each| each == line), "{text}");
    }

    #[test]
    fn the_control_plane_stays_the_current_context() {
        let control = MINE.replace("admin@Prod.EU", "karmada-apiserver");
        let text =
            combine(&control, &[Entry::parse(MINE, Path::new("/")).expect("usable")]).expect("combined");
        let config: Value = yaml::from_str(&text).expect("YAML");
        assert_eq!(config["current-context"], "karmada-apiserver");
        let names: Vec<_> =
            config["contexts"].as_array().expect("a list").iter().map(|c| &c["name"]).collect();
        assert_eq!(names, ["karmada-apiserver", "fleet", "admin-prod-eu"]);
        let server = "https://prod:6443/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy";
        assert_eq!(config["clusters"][1]["cluster"]["server"], server);
        assert_eq!(config["contexts"][1]["context"]["user"], "admin");
    }
}
