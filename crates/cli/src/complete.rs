//! `__complete`: the possible words at the end of a command line.
//!
//! In: the words so far, the last one unfinished. Out: a word per line, with its meaning after a tab. A line that begins with a
//! colon is an instruction for the shell: `:files` to complete files, `:open` if the word continues. Names come from the server
//! that the flags select. An error only leads to fewer words.

use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::output;
use crate::select::list;
use crate::server::{Connection, Plane, Server, segment};

/// The time limit of a completion.
const PATIENCE: Duration = Duration::from_secs(3);

/// The program's commands and flags.
static ROOT: OnceLock<clap::Command> = OnceLock::new();

/// Stores the program's commands and flags; only the first call counts.
pub(crate) fn remember(root: &clap::Command) {
    let _ = ROOT.set(root.clone());
}

/// What may come next.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # What may follow get
  karmadactl __complete -- get ''")]
pub struct Arguments {
    /// The line as bash has it, up to the cursor.
    #[arg(long, value_name = "LINE", allow_hyphen_values = true)]
    pub line: Option<String>,
    /// The words behind the program's name.
    #[arg(last = true, value_name = "WORD")]
    pub words: Vec<String>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Some(root) = ROOT.get() else { return Ok(()) };
    let mut words = match &arguments.line {
        Some(line) => split(line).split_off(1.min(split(line).len())),
        None => arguments.words.clone(),
    };
    let current = words.pop().unwrap_or_default();
    let typed = Typed::new(root, &words);
    let found = tokio::time::timeout(PATIENCE, typed.candidates(&current)).await.unwrap_or_default();
    // Bash replaces only the part after the last of its word breaks.
    let cut = match arguments.line {
        Some(_) => current.rfind(['=', ':']).map_or(0, |at| at + 1),
        None => 0,
    };
    for (word, about) in found {
        if word.starts_with(':') {
            output::line(&word);
        } else if let Some(rest) = word.get(cut..).filter(|_| word.starts_with(current.as_str())) {
            output::line(&if about.is_empty() { rest.to_owned() } else { format!("{rest}\t{about}") });
        }
    }
    Ok(())
}

/// Splits a line like a shell; the last word may be empty.
fn split(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        let Some(last) = words.last_mut() else { break };
        match (quote, c) {
            (None, ' ' | '\t') => {
                if !last.is_empty() {
                    words.push(String::new());
                }
            }
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None | Some('"'), '\\') => last.extend(characters.next()),
            (_, c) => last.push(c),
        }
    }
    words
}

type Candidate = (String, String);

/// The complete words, parsed as far as possible.
struct Typed<'a> {
    command: &'a clap::Command,
    path: Vec<String>,
    positionals: Vec<String>,
    /// The flag whose value is next.
    open: Option<&'a clap::Arg>,
    /// Flags with their values, by long name.
    flags: Vec<(String, String)>,
    /// After `--`, words belong to another program.
    foreign: bool,
}

impl<'a> Typed<'a> {
    fn new(root: &'a clap::Command, words: &[String]) -> Self {
        let mut typed = Self {
            command: root,
            path: Vec::new(),
            positionals: Vec::new(),
            open: None,
            flags: Vec::new(),
            foreign: false,
        };
        for word in words {
            typed.take(root, word);
        }
        typed
    }

    fn take(&mut self, root: &'a clap::Command, word: &str) {
        if self.foreign {
            return;
        }
        if let Some(flag) = self.open.take() {
            self.flags.push((long(flag), word.to_owned()));
            return;
        }
        if word == "--" {
            self.foreign = true;
        } else if word.len() > 1 && word.starts_with('-') {
            let (name, value) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            let Some(flag) = find(self.command, name).or_else(|| search(root, name)) else { return };
            match value {
                Some(value) => self.flags.push((long(flag), value.to_owned())),
                None if takes_value(flag) => self.open = Some(flag),
                None => self.flags.push((long(flag), "true".to_owned())),
            }
        } else if let Some(found) = self.command.find_subcommand(word).filter(|_| self.positionals.is_empty())
        {
            self.command = found;
            self.path.push(found.get_name().to_owned());
        } else {
            self.positionals.push(word.to_owned());
        }
    }

    fn flag(&self, name: &str) -> Option<&str> {
        self.flags.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    async fn candidates(&self, current: &str) -> Vec<Candidate> {
        if self.foreign {
            return files();
        }
        if let Some(flag) = self.open {
            return self.values(&long(flag), flag, current, "").await;
        }
        if let Some((name, value)) = current.split_once('=').filter(|(name, _)| name.starts_with('-')) {
            let Some(flag) = find(self.command, name) else { return Vec::new() };
            return self.values(&long(flag), flag, value, &format!("{name}=")).await;
        }
        if current.starts_with('-') {
            return flags(self.command);
        }
        let mut found: Vec<Candidate> = Vec::new();
        if self.positionals.is_empty() {
            let shown = self
                .command
                .get_subcommands()
                .filter(|each| !each.is_hide_set() && each.get_name() != "help");
            found.extend(shown.map(|each| (each.get_name().to_owned(), about(each.get_about()))));
        }
        if !self.command.has_subcommands() || self.path.last().is_some_and(|name| name == "create") {
            found.extend(self.names(current).await);
        }
        found
    }

    /// The value that a flag takes.
    async fn values(&self, name: &str, flag: &clap::Arg, current: &str, before: &str) -> Vec<Candidate> {
        let put = |words: Vec<String>| {
            words.into_iter().map(|word| (format!("{before}{word}"), String::new())).collect()
        };
        let fixed = |words: &[&str]| put(words.iter().map(|word| (*word).to_owned()).collect());
        let possible: Vec<String> =
            flag.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        match name {
            "operation-scope" => fixed(&["karmada", "members", "all"]),
            "cluster" | "clusters" => {
                let names = self.clusters().await;
                // A list continues after its commas.
                let done = current.rfind(',').map_or("", |at| &current[..=at]);
                put(names.into_iter().map(|name| format!("{done}{name}")).collect())
            }
            "namespace" => put(self.of_server("/api/v1/namespaces").await),
            "karmada-context" | "context" => put(self.contexts()),
            "container" => put(self.containers().await),
            "output" => fixed(&["wide", "yaml", "json", "kyaml", "name", "jsonpath=", "custom-columns="]),
            "dry-run" => fixed(&["none", "client", "server"]),
            "validate" => fixed(&["strict", "warn", "ignore"]),
            "cascade" => fixed(&["background", "foreground", "orphan"]),
            "type" if self.path.last().is_some_and(|name| name == "patch") => {
                fixed(&["json", "merge", "strategic"])
            }
            "sort-by" if self.path.first().is_some_and(|name| name == "top") => fixed(&["cpu", "memory"]),
            _ if !possible.is_empty() => put(possible),
            "filename" | "kubeconfig" | "cluster-kubeconfig" | "patch-file" | "from-file"
            | "from-env-file" | "cert" | "key" | "config" | "karmada-kubeconfig" | "member-kubeconfig" => {
                files()
            }
            _ => Vec::new(),
        }
    }

    /// Words without a flag.
    async fn names(&self, current: &str) -> Vec<Candidate> {
        let words = |names: Vec<String>| -> Vec<Candidate> {
            names.into_iter().map(|name| (name, String::new())).collect()
        };
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let place = self.positionals.len();
        match (&path[..], place) {
            (
                [
                    "get" | "describe" | "delete" | "edit" | "label" | "annotate" | "patch" | "scale"
                    | "wait",
                ],
                _,
            )
            | (["rollout", _], _) => self.resources(current).await,
            (["promote"], 0 | 1) => self.resources(current).await,
            (["explain"], 0) => self.types().await,
            (["cordon" | "uncordon" | "unjoin" | "unregister"], 0) => words(self.clusters().await),
            (["taint"], 0) => words(vec!["clusters".to_owned()]),
            (["taint"], _) => words(self.clusters().await),
            (["logs"], 1) => words(self.containers().await),
            (["logs" | "exec" | "attach" | "port-forward"], 0) | (["top", "pod"], 0) => {
                words(self.pods().await)
            }
            (["cp"], _) => {
                let mut found: Vec<Candidate> =
                    self.pods().await.into_iter().map(|pod| (format!("{pod}:"), String::new())).collect();
                found.push((
                    if found.iter().any(|(pod, _)| pod.starts_with(current)) && !current.is_empty() {
                        ":open"
                    } else {
                        ":files"
                    }
                    .to_owned(),
                    String::new(),
                ));
                found
            }
            (["top", "node"], 0) => words(self.of_member("/api/v1/nodes").await),
            (["completion"], 0) => words(["bash", "zsh", "fish"].map(str::to_owned).to_vec()),
            (["apply" | "create" | "diff"], _) => Vec::new(),
            _ => Vec::new(),
        }
    }

    async fn plane(&self) -> Option<Plane> {
        let connection = Connection {
            kubeconfig: self.flag("kubeconfig").map(Into::into),
            karmada_context: self.flag("karmada-context").map(str::to_owned),
            ..Connection::default()
        };
        let mut plane = connection.plane().await.ok()?;
        if let Some(namespace) = self.flag("namespace") {
            plane.namespace = namespace.to_owned();
        }
        Some(plane)
    }

    /// The server that the flags select: of several members, the first.
    async fn server(&self) -> Option<(Plane, Server)> {
        let plane = self.plane().await?;
        let named = self.flag("cluster").or_else(|| self.flag("clusters"));
        let always_member = matches!(self.path.first().map(String::as_str), Some("logs" | "top" | "promote"));
        let scope = self.flag("operation-scope").unwrap_or("");
        let asks_members =
            always_member || matches!(scope, "members" | "all") || (scope.is_empty() && named.is_some());
        if !asks_members {
            let server = plane.server.clone();
            return Some((plane, server));
        }
        let names = plane.select(&named.map(str::to_owned).into_iter().collect::<Vec<_>>()).await.ok()?;
        let server = plane.known_member(names.first()?);
        Some((plane, server))
    }

    async fn clusters(&self) -> Vec<String> {
        self.of_server("/apis/cluster.karmada.io/v1alpha1/clusters").await
    }

    /// Names of a collection of the control plane.
    async fn of_server(&self, path: &str) -> Vec<String> {
        let Some(plane) = self.plane().await else { return Vec::new() };
        names_of(&plane.server, path).await
    }

    async fn of_member(&self, path: &str) -> Vec<String> {
        let Some((_, server)) = self.server().await else { return Vec::new() };
        names_of(&server, path).await
    }

    async fn pods(&self) -> Vec<String> {
        let Some((plane, server)) = self.server().await else { return Vec::new() };
        names_of(&server, &format!("/api/v1/namespaces/{}/pods", segment(&plane.namespace))).await
    }

    async fn containers(&self) -> Vec<String> {
        let Some(pod) = self.positionals.first() else { return Vec::new() };
        let Some((plane, server)) = self.server().await else { return Vec::new() };
        let Ok(found) = crate::pods::find(&server, &plane.namespace, pod, Duration::ZERO).await else {
            return Vec::new();
        };
        found.first().map(|pod| crate::pods::containers(&pod).concat()).unwrap_or_default()
    }

    fn contexts(&self) -> Vec<String> {
        let file = self.flag("kubeconfig").map(std::path::PathBuf::from);
        let read = match file {
            Some(file) => kube::config::Kubeconfig::read_from(file),
            None => kube::config::Kubeconfig::read(),
        };
        read.map(|file| file.contexts.into_iter().map(|context| context.name).collect()).unwrap_or_default()
    }

    async fn types(&self) -> Vec<Candidate> {
        let Some((_, server)) = self.server().await else { return Vec::new() };
        let Ok(discovery) = server.discovery().await else { return Vec::new() };
        let mut names: Vec<Candidate> = Vec::new();
        for resource in
            discovery.resources.iter().filter(|resource| resource.verbs.iter().any(|verb| verb == "get"))
        {
            let taken = names.iter().any(|(name, _)| *name == resource.plural);
            let name = if taken { resource.full_name() } else { resource.plural.clone() };
            if !names.iter().any(|(known, _)| *known == name) {
                names.push((name, resource.api_version()));
            }
        }
        names
    }

    /// A type, or a name of the type that was typed; `TYPE/` is continued with names.
    async fn resources(&self, current: &str) -> Vec<Candidate> {
        let (type_, before) = match (current.split_once('/'), self.positionals.first()) {
            (Some((type_, _)), _) => (type_, format!("{type_}/")),
            (None, Some(type_)) if !type_.contains('/') => (type_.as_str(), String::new()),
            _ => return self.types().await,
        };
        let Some((plane, server)) = self.server().await else { return Vec::new() };
        let Ok(discovery) = server.discovery().await else { return Vec::new() };
        let type_ = type_.rsplit(',').next().unwrap_or(type_);
        let Ok(resource) = discovery.resolve(type_) else { return Vec::new() };
        let names = names_of(&server, &resource.collection(Some(&plane.namespace))).await;
        // Names that are already on the line are not offered again.
        let fresh = names.into_iter().filter(|name| !self.positionals.contains(name));
        fresh.map(|name| (format!("{before}{name}"), String::new())).collect()
    }
}

async fn names_of(server: &Server, path: &str) -> Vec<String> {
    let items = list(server, path, None, None).await.unwrap_or_default();
    items.iter().filter_map(|item: &Value| item["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

fn files() -> Vec<Candidate> {
    vec![(":files".to_owned(), String::new())]
}

fn about(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default().lines().next().unwrap_or("").to_owned()
}

fn flags(command: &clap::Command) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for flag in command.get_arguments().filter(|each| !each.is_hide_set() && !each.is_positional()) {
        let help = about(flag.get_help());
        if let Some(name) = flag.get_long() {
            found.push((format!("--{name}"), help.clone()));
        }
        if let Some(letter) = flag.get_short() {
            found.push((format!("-{letter}"), help));
        }
    }
    found.push(("--help".to_owned(), "Print help".to_owned()));
    found
}

fn long(flag: &clap::Arg) -> String {
    flag.get_long().unwrap_or_default().to_owned()
}

fn takes_value(flag: &clap::Arg) -> bool {
    flag.get_action().takes_values() && !flag.is_require_equals_set()
}

fn find<'a>(command: &'a clap::Command, word: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|each| match word.strip_prefix("--") {
        Some(name) => each.get_long() == Some(name.replace('_', "-").as_str()),
        None => word.len() == 2 && word.chars().nth(1) == each.get_short(),
    })
}

/// For a flag before its command, the first command that has it decides.
fn search<'a>(command: &'a clap::Command, word: &str) -> Option<&'a clap::Arg> {
    find(command, word).or_else(|| command.get_subcommands().find_map(|each| search(each, word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> clap::Command {
        crate::program::alone_command("karmadactl")
    }

    fn complete(line: &str) -> Vec<String> {
        let root = root();
        let mut words: Vec<String> = split(line);
        let current = words.pop().unwrap_or_default();
        let typed = Typed::new(&root, &words);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let found = runtime.block_on(typed.candidates(&current));
        found
            .into_iter()
            .map(|(word, _)| word)
            .filter(|word| word.starts_with(&current) || word.starts_with(':'))
            .collect()
    }

    #[test]
    fn a_line_is_taken_apart_as_a_shell_does() {
        assert_eq!(split("a b"), ["a", "b"]);
        assert_eq!(split("a  'b c' "), ["a", "b c", ""]);
        assert_eq!(split(r#"a "b\"c" d\ e"#), ["a", "b\"c", "d e"]);
    }

    #[test]
    fn commands_flags_and_fixed_values_are_completed() {
        assert_eq!(complete("ge"), ["get"]);
        assert_eq!(complete("unc"), ["uncordon"]);
        assert_eq!(complete("token "), ["create", "list", "delete"]);
        assert_eq!(complete("create secret "), ["generic", "docker-registry", "tls"]);
        assert_eq!(complete("get --all-n"), ["--all-namespaces"]);
        assert_eq!(complete("get pods -s m"), ["members"]);
        assert_eq!(complete("get pods --operation-scope=k"), ["--operation-scope=karmada"]);
        assert_eq!(complete("-n x completion f"), ["fish"]);
        assert_eq!(complete("patch cm x --type m"), ["merge"]);
        assert_eq!(complete("apply -f "), [":files"]);
        assert_eq!(complete("exec x -- "), [":files"]);
        assert!(complete("__").is_empty(), "hidden commands stay hidden");
    }
}
