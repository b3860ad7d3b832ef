//! The selection of members: names, globs, and label selectors of `Cluster` objects.
//!
//! In: the value of `-C`. Out: names, in the order of the words, without repetitions. `eu-*,zone=a,tier!=dev` means the clusters
//! whose name begins with `eu-`, and those that have both labels: adjacent requirements must all hold, as in `-l`.

use anyhow::{anyhow, bail};
use apimachinery::selector::label::Selector;
use clap::Args;
use serde_json::Value;

use crate::failure;
use crate::server::{CONTROL_PLANE, Plane, Server, nearest, segment};

const PATH: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";

/// `-C`, for commands that look into several members.
#[derive(Debug, Clone, Default, Args)]
pub struct Members {
    /// Member clusters, by name, glob (eu-*) or label selector (region=eu); all by default.
    #[arg(short = 'C', long, value_name = "CLUSTER")]
    pub clusters: Vec<String>,
}

/// `-s` and `-C`, for commands that look into the control plane or one member.
#[derive(Debug, Clone, Default, Args)]
pub struct Scope {
    /// Operation scope: karmada or members.
    #[arg(short = 's', long, value_name = "SCOPE", default_value = "karmada", value_parser = crate::server::scope)]
    pub operation_scope: String,
    /// The member cluster, by name, glob or label selector; takes effect with the scope members.
    #[arg(short = 'C', long, value_name = "CLUSTER")]
    pub cluster: Option<String>,
}

/// `-s` and `-C`, for commands beyond upstream's that work in the control plane or in several members.
///
/// Naming members is enough: the scope follows.
#[derive(Debug, Clone, Default, Args)]
pub struct Places {
    /// Operation scope: karmada or members; members if clusters are named.
    #[arg(short = 's', long, value_name = "SCOPE", value_parser = crate::server::scope)]
    pub operation_scope: Option<String>,
    #[command(flatten)]
    pub members: Members,
}

/// A member as the control plane knows it.
#[derive(Debug, Clone)]
struct Known {
    name: String,
    labels: Value,
}

#[derive(Debug)]
enum Pattern {
    Name(String),
    Labels(String),
}

impl Plane {
    async fn known(&self) -> anyhow::Result<Vec<Known>> {
        let list = self.server.get(PATH).await?;
        let items = list["items"].as_array().into_iter().flatten();
        let known = items.filter_map(|item| {
            let metadata = &item["metadata"];
            let name = metadata["name"].as_str()?.to_owned();
            Some(Known { name, labels: metadata["labels"].clone() })
        });
        Ok(known.collect())
    }

    /// Returns the members that the words name; no words mean every member.
    pub(crate) async fn select(&self, words: &[String]) -> anyhow::Result<Vec<String>> {
        match self.known().await {
            Ok(known) => choose(&known, words),
            // A caller who may access clusters but not list them can still name them.
            Err(error) if failure::is_forbidden(&error) => plain_names(words).ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// Returns the one member that a word means, which must exist.
    pub(crate) async fn member(&self, word: &str) -> anyhow::Result<Server> {
        if let [Pattern::Name(name)] = &patterns(word)[..]
            && !is_glob(name)
        {
            return match self.server.get(&format!("{PATH}/{}", segment(name))).await {
                Ok(_) => Ok(self.known_member(name)),
                Err(error) if failure::is_not_found(&error) => Err(self.with_hint(error, name).await),
                // The cluster's proxy decides whether the caller has access.
                Err(error) if failure::is_forbidden(&error) => Ok(self.known_member(name)),
                Err(error) => Err(error),
            };
        }
        let chosen = self.select(&[word.to_owned()]).await?;
        match &chosen[..] {
            [one] => Ok(self.known_member(one)),
            several => bail!(
                "{word} means {} clusters ({}), and this command takes one",
                several.len(),
                several.join(", ")
            ),
        }
    }

    /// Adds the name that was probably meant.
    async fn with_hint(&self, error: anyhow::Error, name: &str) -> anyhow::Error {
        let known = self.known().await.unwrap_or_default();
        let near = nearest(name, known.iter().map(|each| each.name.as_str()));
        match near {
            Some(near) => failure::with_hint(error, &format!("did you mean {near}?")),
            None => error,
        }
    }

    /// Returns a member that is known to exist.
    pub(crate) fn known_member(&self, name: &str) -> Server {
        self.server.behind(name, &format!("{PATH}/{}/proxy", segment(name)))
    }

    /// Returns the server that a command with the scopes `karmada` and `members` means.
    pub(crate) async fn scoped(&self, scope: &Scope) -> anyhow::Result<Server> {
        match scope.operation_scope.as_str() {
            "" | "karmada" => Ok(self.server.clone()),
            "members" => match scope.cluster.as_deref() {
                None | Some("") => bail!("must specify a member cluster"),
                Some(cluster) => self.member(cluster).await,
            },
            other => bail!("not support operation scope: {other}"),
        }
    }

    /// Returns the servers for a command that works in several places.
    pub(crate) async fn places(&self, places: &Places) -> anyhow::Result<Vec<Server>> {
        let words = &places.members.clusters;
        let default = if words.is_empty() { "karmada" } else { "members" };
        match places.operation_scope.as_deref().filter(|scope| !scope.is_empty()).unwrap_or(default) {
            "karmada" => Ok(vec![self.server.clone()]),
            "members" => {
                let names = self.select(words).await?;
                if names.is_empty() {
                    bail!("no member clusters are known to the control plane");
                }
                Ok(names.iter().map(|name| self.known_member(name)).collect())
            }
            other => bail!("not support operation scope: {other}"),
        }
    }
}

/// The prefix of a line about an object in several places; empty for the control plane.
pub(crate) fn place_prefix(server: &Server) -> String {
    if server.name == CONTROL_PLANE { String::new() } else { format!("{}: ", server.name) }
}

fn choose(known: &[Known], words: &[String]) -> anyhow::Result<Vec<String>> {
    if words.iter().all(|word| word.is_empty()) {
        return Ok(known.iter().map(|each| each.name.clone()).collect());
    }
    let mut chosen: Vec<String> = Vec::new();
    let mut missing = Vec::new();
    for pattern in words.iter().flat_map(|word| patterns(word)) {
        let (matching, text): (Vec<&Known>, String) = match pattern {
            Pattern::Name(name) => (known.iter().filter(|each| glob(&name, &each.name)).collect(), name),
            Pattern::Labels(text) => {
                let selector = Selector::parse(&text)
                    .map_err(|error| anyhow!("-C {text:?} is not a name, glob or label selector: {error}"))?;
                (known.iter().filter(|each| selector.matches(&each.labels)).collect(), text)
            }
        };
        if matching.is_empty() {
            missing.push(text);
        }
        for each in matching {
            if !chosen.contains(&each.name) {
                chosen.push(each.name.clone());
            }
        }
    }
    if !missing.is_empty() {
        let names = || known.iter().map(|each| each.name.as_str());
        let hint = missing.first().and_then(|name| nearest(name, names()));
        let hint = hint.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
        bail!("clusters don't exist: {}{hint}", missing.join(","));
    }
    Ok(chosen)
}

/// Splits a word at commas outside of parentheses; adjacent requirements form one selector.
fn patterns(word: &str) -> Vec<Pattern> {
    let mut patterns: Vec<Pattern> = Vec::new();
    for part in crate::print::columns::split(word) {
        let part = part.trim();
        let requirement = part.contains(['=', '!', '(', ' ']);
        match patterns.last_mut() {
            _ if part.is_empty() => {}
            Some(Pattern::Labels(text)) if requirement => text.push_str(&format!(",{part}")),
            _ if requirement => patterns.push(Pattern::Labels(part.to_owned())),
            _ => patterns.push(Pattern::Name(part.to_owned())),
        }
    }
    patterns
}

/// Returns the names, if the words are only names.
fn plain_names(words: &[String]) -> Option<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for pattern in words.iter().flat_map(|word| patterns(word)) {
        match pattern {
            Pattern::Name(name) if !is_glob(&name) => {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            _ => return None,
        }
    }
    Some(names).filter(|names| !names.is_empty())
}

fn is_glob(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Returns whether a name matches a pattern in which `*` stands for any text and `?` for any character.
fn glob(pattern: &str, name: &str) -> bool {
    fn fits(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.first(), name.first()) {
            (None, None) => true,
            (Some(b'*'), _) => fits(&pattern[1..], name) || (!name.is_empty() && fits(pattern, &name[1..])),
            (Some(b'?'), Some(_)) => fits(&pattern[1..], &name[1..]),
            (Some(a), Some(b)) if a == b => fits(&pattern[1..], &name[1..]),
            _ => false,
        }
    }
    fits(pattern.as_bytes(), name.as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_need_no_list_and_everything_else_does() {
        let names =
            |words: &[&str]| plain_names(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&["a,b", "a"]), Some(vec!["a".to_owned(), "b".to_owned()]));
        for other in [&["a*"][..], &["a", "zone=eu"], &[]] {
            assert_eq!(names(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_glob_fits_whole_names() {
        for (pattern, name, fits) in [
            ("member1", "member1", true),
            ("member", "member1", false),
            ("member*", "member1", true),
            ("*1", "member1", true),
            ("m?mber*", "member12", true),
            ("*", "", true),
            ("?", "", false),
        ] {
            assert_eq!(glob(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn clusters_are_named_by_name_glob_and_label() {
        let known: Vec<Known> = [("eu-1", "a", "prod"), ("eu-2", "b", "dev"), ("us-1", "a", "dev")]
            .map(|(name, zone, tier)| Known {
                name: name.into(),
                labels: json!({"zone": zone, "tier": tier}),
            })
            .to_vec();
        for (words, wanted) in [
            ("", "eu-1 eu-2 us-1"),
            ("us-1,eu-1", "us-1 eu-1"),
            ("eu-*", "eu-1 eu-2"),
            ("eu-*,eu-1", "eu-1 eu-2"),
            ("zone=a", "eu-1 us-1"),
            ("zone=a,tier!=prod", "us-1"),
            ("zone=a,tier=dev,eu-2", "us-1 eu-2"),
            ("zone in (a,b),tier=dev", "eu-2 us-1"),
            ("!nothing", "eu-1 eu-2 us-1"),
        ] {
            let chosen =
                choose(&known, &[words.to_owned()]).unwrap_or_else(|error| panic!("{words}: {error}"));
            assert_eq!(chosen.join(" "), wanted, "{words}");
        }
        let both = choose(&known, &["zone=a".to_owned(), "tier=dev".to_owned()]).expect("good");
        assert_eq!(both.join(" "), "eu-1 us-1 eu-2", "said twice, they count one by one");
        let error = choose(&known, &["us-2,x-*".to_owned()]).expect_err("unknown").to_string();
        assert_eq!(error, "clusters don't exist: us-2,x-*; did you mean us-1?");
        let error = choose(&known, &["zone=".to_owned() + "(("]).expect_err("no selector").to_string();
        assert!(error.contains("is not a name, glob or label selector"), "{error}");
    }
}
