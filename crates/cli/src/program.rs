//! The frame around the commands: names of the program, help in groups, flags before or after the command, errors.
//!
//! In: the words of the command line. Out: an exit status. As in every program built with Go's cobra, flags may precede the
//! command, `--flag=false` and `--some_flag` are understood, and errors have cobra's words.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, CommandFactory, Parser, Subcommand};

use crate::output;
use crate::server::distance;

/// karmadactl controls a Kubernetes Cluster Federation.
#[derive(Debug, Parser)]
// Of a flag that is given twice the last one counts, as in Go's programs.
#[command(name = "karmadactl", disable_version_flag = true, args_override_self = true)]
struct Alone {
    /// Taken without a command as well; with one, they are the command's.
    #[command(flatten)]
    _connection: crate::server::Connection,
    #[command(subcommand)]
    command: Option<crate::Command>,
}

/// The groups of the help, in upstream's order.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Basic Commands", &["explain", "get", "create", "delete", "edit"]),
    (
        "Cluster Registration Commands",
        &["init", "deinit", "addons", "join", "unjoin", "token", "register", "unregister"],
    ),
    ("Cluster Management Commands", &["cordon", "uncordon", "taint"]),
    (
        "Troubleshooting and Debugging Commands",
        &["attach", "logs", "exec", "describe", "interpret", "port-forward", "cp", "doctor"],
    ),
    (
        "Advanced Commands",
        &["apply", "promote", "top", "patch", "diff", "wait", "scale", "rollout", "search"],
    ),
    ("Settings Commands", &["label", "annotate", "completion"]),
    ("Other Commands", &["api-resources", "api-versions"]),
    ("Other Commands", &["version"]),
];

/// The program's name in hints.
static SHOWN: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Stores the program's name for hints; only the first call counts.
pub(crate) fn show_as(name: &str) {
    let _ = SHOWN.set(name.to_owned());
}

/// Returns the program's name for hints.
pub(crate) fn shown() -> &'static str {
    SHOWN.get().map_or("karmadactl", String::as_str)
}

/// Runs the CLI as a separate program, under the name by which it was called.
pub fn alone(name: &str, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let shown = if name == "kubectl-karmada" { "kubectl karmada" } else { "karmadactl" };
    let command = alone_command(shown);
    let arguments = normalize(arguments, &command);
    let matches = match command.clone().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(error) => return refuse(&error, &command, &arguments, shown),
    };
    let Ok(parsed) = <Alone as clap::FromArgMatches>::from_arg_matches(&matches) else {
        return ExitCode::FAILURE;
    };
    let Some(command) = parsed.command else {
        output::print(&help(shown));
        return ExitCode::SUCCESS;
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::warn(&format!("error: cannot start the runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(crate::run(command, shown));
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (text, status) = crate::told(&error);
            if !text.is_empty() {
                output::warn(&text);
            }
            ExitCode::from(status)
        }
    }
}

pub(crate) fn alone_command(shown: &str) -> clap::Command {
    let command = Alone::command().override_help(help(shown)).bin_name(shown);
    renamed(command, shown)
}

/// Returns the program's commands and flags, for generated pages.
pub fn command() -> clap::Command {
    alone_command("karmadactl")
}

/// Replaces the program's name in examples.
pub fn renamed(command: clap::Command, shown: &str) -> clap::Command {
    let command = match command.get_after_help().map(ToString::to_string) {
        Some(text) => command.after_help(text.replace("karmadactl ", &format!("{shown} "))),
        None => command,
    };
    let names: Vec<String> = command.get_subcommands().map(|each| each.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, |each| renamed(each, shown)))
}

/// Returns the help of the whole program.
fn help(shown: &str) -> String {
    let command = Alone::command();
    let mut text = format!("{shown} controls a Kubernetes Cluster Federation.\n\n");
    for (title, names) in GROUPS {
        let known: Vec<&clap::Command> =
            names.iter().filter_map(|name| command.find_subcommand(name)).collect();
        if known.is_empty() {
            continue;
        }
        text.push_str(&format!("{title}:\n"));
        for each in known {
            let about = each.get_about().map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {:<15} {about}\n", each.get_name()));
        }
        text.push('\n');
    }
    text.push_str(&format!(
        "Usage:\n  {shown} [flags] [options]\n\nUse \"{shown} <command> --help\" for more information about a given \
         command.\nUse \"{shown} options\" for a list of global command-line options (applies to all commands).\n"
    ));
    text
}

/// Returns whether this is the name of a command of the CLI.
pub fn is_command(name: &str) -> bool {
    crate::Command::has_subcommand(name)
}

/// Brings the words into the order that the parser expects: the command first, then its flags.
///
/// Words of commands that are not the CLI's stay unchanged.
pub fn normalize(arguments: impl Iterator<Item = OsString>, root: &clap::Command) -> Vec<OsString> {
    let words: Vec<OsString> = arguments.collect();
    let Some(texts) = words.iter().map(|word| word.to_str()).collect::<Option<Vec<&str>>>() else {
        return words;
    };
    let mut command = root;
    let mut path = Vec::new();
    let mut i = 1;
    while let Some(word) = texts.get(i).copied() {
        if word == "--" {
            break;
        }
        if word.len() > 1 && word.starts_with('-') {
            i += if !word.contains('=') && takes_value(root, word) { 2 } else { 1 };
            continue;
        }
        let Some(found) = command.find_subcommand(word) else { break };
        path.push(i);
        command = found;
        if !command.has_subcommands() {
            break;
        }
        i += 1;
    }
    let Some(first) = path.first().and_then(|i| texts.get(*i)) else { return words };
    if !is_command(first) {
        return words;
    }
    if *first == "__complete" {
        crate::complete::remember(root);
    }
    let mut sorted: Vec<OsString> = texts.first().into_iter().map(OsString::from).collect();
    sorted.extend(path.iter().map(|i| OsString::from(texts[*i])));
    let mut literal = false;
    for (i, word) in texts.iter().enumerate().skip(1) {
        if path.contains(&i) {
            continue;
        }
        literal |= *word == "--";
        if literal {
            sorted.push(OsString::from(word));
        } else if let Some(word) = flag(command, word) {
            sorted.push(OsString::from(word));
        }
    }
    sorted
}

/// Returns a flag as the parser knows it; a flag that is switched off is dropped.
fn flag(command: &clap::Command, word: &str) -> Option<String> {
    let on = |value: &str| matches!(value, "true" | "1" | "t" | "T" | "TRUE" | "True");
    let off = |value: &str| matches!(value, "false" | "0" | "f" | "F" | "FALSE" | "False");
    if let Some((name, value)) = word.split_once('=')
        && let [b'-', letter] = name.as_bytes()
        && command.get_arguments().any(|each| {
            each.get_short() == Some(char::from(*letter)) && matches!(each.get_action(), ArgAction::SetTrue)
        })
    {
        return match value {
            value if on(value) => Some(name.to_owned()),
            value if off(value) => None,
            _ => Some(word.to_owned()),
        };
    }
    let Some(body) = word.strip_prefix("--").filter(|body| !body.is_empty()) else {
        return Some(word.to_owned());
    };
    let (name, value) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value)));
    let name = name.replace('_', "-");
    let known = command.get_arguments().find(|each| each.get_long() == Some(name.as_str()));
    let switch = known.is_some_and(|each| matches!(each.get_action(), ArgAction::SetTrue));
    let truth = known.is_some_and(is_truth);
    match value {
        Some(value) if switch && on(value) => Some(format!("--{name}")),
        Some(value) if switch && off(value) => None,
        Some(value) if truth && on(value) => Some(format!("--{name}=true")),
        Some(value) if truth && off(value) => Some(format!("--{name}=false")),
        Some(value) => Some(format!("--{name}={value}")),
        None => Some(format!("--{name}")),
    }
}

/// Returns whether the value of a flag is true or false.
fn is_truth(argument: &clap::Arg) -> bool {
    let values = argument.get_possible_values();
    values.len() == 2 && values.iter().all(|value| matches!(value.get_name(), "true" | "false"))
}

/// Returns whether a flag takes the next word; the first command that has it decides.
fn takes_value(command: &clap::Command, word: &str) -> bool {
    fn search(command: &clap::Command, word: &str) -> Option<bool> {
        let known = command.get_arguments().find(|each| match word.strip_prefix("--") {
            Some(long) => each.get_long() == Some(long.replace('_', "-").as_str()),
            None => word.chars().nth(1) == each.get_short() && word.len() == 2,
        });
        match known {
            Some(each) => Some(each.get_action().takes_values() && !each.is_require_equals_set()),
            None => command.get_subcommands().find_map(|each| search(each, word)),
        }
    }
    search(command, word).unwrap_or(false)
}

/// Reports what is wrong with the command line, and returns the exit status.
pub fn refuse(error: &clap::Error, root: &clap::Command, arguments: &[OsString], shown: &str) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        output::print(&error.render().to_string());
        return ExitCode::SUCCESS;
    }
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand
    ) {
        // For a group of commands without a command, its help is shown.
        let mut command = root.clone();
        command.build();
        let words: Vec<&str> = arguments.iter().skip(1).filter_map(|word| word.to_str()).collect();
        output::print(&help_of(&mut command, &words));
        return if words.first() == Some(&"create") { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    output::warn(&complaint(error, root, arguments, shown));
    ExitCode::FAILURE
}

/// Returns the help of the innermost command in the words.
fn help_of(command: &mut clap::Command, words: &[&str]) -> String {
    if let Some((word, rest)) = words.split_first()
        && let Some(inner) = command.find_subcommand_mut(word)
    {
        return help_of(inner, rest);
    }
    command.render_help().to_string()
}

fn complaint(error: &clap::Error, root: &clap::Command, arguments: &[OsString], shown: &str) -> String {
    let mut path = shown.to_owned();
    let mut command = root;
    for word in arguments.iter().skip(1).filter_map(|word| word.to_str()) {
        let Some(found) = command.find_subcommand(word) else { break };
        path = format!("{path} {word}");
        command = found;
    }
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let usage = format!("\nSee '{path} --help' for usage.");
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let wrong = context(ContextKind::InvalidArg);
            match (wrong.strip_prefix("--"), wrong.strip_prefix('-')) {
                (Some(long), _) => {
                    format!("error: unknown flag: --{}{usage}", long.split('=').next().unwrap_or(long))
                }
                (None, Some(short)) => {
                    let first = short.chars().next().unwrap_or('-');
                    format!("error: unknown shorthand flag: '{first}' in -{short}{usage}")
                }
                (None, None) => match path.split_once(' ').map_or("", |(_, rest)| rest) {
                    "join" | "unjoin" => "error: only the cluster name is allowed as an argument".to_owned(),
                    "promote" => {
                        "error: incorrect command format, please use correct command format".to_owned()
                    }
                    "token create" | "token list" => {
                        format!("error: unknown command {} for {path:?}", apimachinery::go::quote(&wrong))
                    }
                    _ => format!("error: unexpected argument {wrong:?}{usage}"),
                },
            }
        }
        // A switch with a value other than true or false.
        ErrorKind::TooManyValues | ErrorKind::InvalidValue
            if !context(ContextKind::InvalidValue).is_empty()
                && named(command, &context(ContextKind::InvalidArg)).is_some_and(|argument| {
                    matches!(argument.get_action(), ArgAction::SetTrue) || is_truth(argument)
                }) =>
        {
            let value = apimachinery::go::quote(&context(ContextKind::InvalidValue));
            let flag = flag_name(&context(ContextKind::InvalidArg));
            format!(
                "error: invalid argument {value} for \"{}{flag}\" flag: strconv.ParseBool: parsing {value}: invalid syntax{usage}",
                short_of(command, &flag)
            )
        }
        ErrorKind::InvalidSubcommand => {
            let wrong = context(ContextKind::InvalidSubcommand);
            let near = suggestions(command, &wrong);
            let hint = if near.is_empty() {
                String::new()
            } else {
                format!(
                    "\n\nDid you mean this?{}",
                    near.iter().map(|name| format!("\n\t{name}")).collect::<String>()
                )
            };
            format!("error: unknown command {} for {path:?}{hint}", apimachinery::go::quote(&wrong))
        }
        ErrorKind::InvalidValue if context(ContextKind::InvalidValue).is_empty() => {
            let flag = context(ContextKind::InvalidArg);
            let given = |name: &str| arguments.iter().any(|word| word.to_str() == Some(name));
            let long =
                flag.split_whitespace().find(|part| part.starts_with("--")).unwrap_or(&flag).to_owned();
            let short = command
                .get_arguments()
                .find(|each| each.get_long().is_some_and(|name| format!("--{name}") == long))
                .and_then(clap::Arg::get_short)
                .filter(|short| given(&format!("-{short}")));
            match short {
                Some(short) => format!("error: flag needs an argument: '{short}' in -{short}{usage}"),
                None => format!("error: flag needs an argument: {long}{usage}"),
            }
        }
        ErrorKind::ValueValidation => {
            let long = flag_name(&context(ContextKind::InvalidArg));
            let short = short_of(command, &long);
            let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            let value = apimachinery::go::quote(&context(ContextKind::InvalidValue));
            let source = match source.as_str() {
                "invalid digit found in string" | "cannot parse integer from empty string" => {
                    format!("strconv.ParseInt: parsing {value}: invalid syntax")
                }
                text if text.starts_with("number too") => {
                    format!("strconv.ParseInt: parsing {value}: value out of range")
                }
                _ => source,
            };
            format!("error: invalid argument {value} for \"{short}{long}\" flag: {source}{usage}")
        }
        _ => {
            let text = error.render().to_string();
            let text = text.split("\n\nUsage:").next().unwrap_or(&text).trim_end();
            format!("{text}{usage}")
        }
    }
}

/// `--tail` of `--tail <LINES>` and of `--wait[=<BOOL>]`.
fn flag_name(shown: &str) -> String {
    let long = shown.split_whitespace().find(|part| part.starts_with("--")).unwrap_or(shown);
    long.split(['[', '=']).next().unwrap_or(long).to_owned()
}

fn named<'a>(command: &'a clap::Command, shown: &str) -> Option<&'a clap::Arg> {
    let flag = flag_name(shown);
    command.get_arguments().find(|each| each.get_long().is_some_and(|name| format!("--{name}") == flag))
}

/// `-w, ` of `--watch`, if it has a short form.
fn short_of(command: &clap::Command, flag: &str) -> String {
    let short = named(command, flag).and_then(clap::Arg::get_short);
    short.map(|short| format!("-{short}, ")).unwrap_or_default()
}

/// Commands at most two typos away, or with this prefix.
fn suggestions(command: &clap::Command, wrong: &str) -> Vec<String> {
    let names =
        command.get_subcommands().filter(|each| !each.is_hide_set()).map(|each| each.get_name().to_owned());
    let wrong = wrong.to_lowercase();
    names.filter(|name| distance(&wrong, name) <= 2 || name.starts_with(&wrong)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(line: &str) -> String {
        let words = line.split_whitespace().map(OsString::from);
        let sorted = normalize(words, &alone_command("karmadactl"));
        sorted.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    fn told(line: &str) -> String {
        let command = alone_command("karmadactl");
        let arguments = normalize(line.split_whitespace().map(OsString::from), &command);
        let error = command.clone().try_get_matches_from(&arguments).expect_err(line);
        complaint(&error, &command, &arguments, "karmadactl")
    }

    #[test]
    fn flags_may_stand_before_the_command() {
        for (line, wanted) in [
            (
                "k --kubeconfig F --namespace=N get pods -s members",
                "k get --kubeconfig F --namespace=N pods -s members",
            ),
            ("k -n get get pods", "k get -n get pods"),
            ("k --kubeconfig F token list", "k token list --kubeconfig F"),
            ("k get -A=true --watch=false --no_headers pods", "k get -A --no-headers pods"),
            ("k delete --wait=false po x", "k delete --wait=false po x"),
        ] {
            assert_eq!(sorted(line), wanted, "{line}");
        }
    }

    #[test]
    fn errors_read_as_cobra_writes_them() {
        let usage = "\nSee 'karmadactl get --help' for usage.";
        assert_eq!(told("k get pods --nope"), format!("error: unknown flag: --nope{usage}"));
        assert_eq!(told("k get pods --nope=3"), format!("error: unknown flag: --nope{usage}"));
        assert_eq!(told("k get pods -x"), format!("error: unknown shorthand flag: 'x' in -x{usage}"));
        assert_eq!(told("k get pods -o"), format!("error: flag needs an argument: 'o' in -o{usage}"));
        assert_eq!(
            told("k get po -s x"),
            format!(
                "error: invalid argument \"x\" for \"-s, --operation-scope\" flag: not support OperationScope: x{usage}"
            )
        );
        assert_eq!(told("k get --output"), format!("error: flag needs an argument: --output{usage}"));
        assert_eq!(
            told("k gte"),
            "error: unknown command \"gte\" for \"karmadactl\"\n\nDid you mean this?\n\tget"
        );
        assert_eq!(told("k xyzzyx"), "error: unknown command \"xyzzyx\" for \"karmadactl\"");
    }

    #[test]
    fn the_arguments_are_well_defined() {
        alone_command("karmadactl").debug_assert();
    }

    #[test]
    fn every_command_stands_in_one_group() {
        let command = Alone::command();
        for each in command.get_subcommands().filter(|each| !each.is_hide_set() && each.get_name() != "help")
        {
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&each.get_name())).count();
            assert_eq!(groups, 1, "{}", each.get_name());
        }
    }

    /// The help of every command, in order, as a page.
    fn page() -> String {
        fn add(command: &mut clap::Command, path: &str, page: &mut String) {
            let mut names: Vec<String> = command
                .get_subcommands()
                .map(|each| each.get_name().to_owned())
                .filter(|name| name != "help")
                .collect();
            names.sort();
            for name in names {
                let Some(found) = command.find_subcommand_mut(&name) else { continue };
                let path = format!("{path} {name}");
                page.push_str(&format!("\n## {path}\n\n```text\n{}```\n", found.render_long_help()));
                add(found, &path, page);
            }
        }
        let mut command = alone_command("karmadactl").term_width(100);
        command.build();
        let mut page = format!(
            "# CLI reference\n\nThe binary is the CLI alone when it is called `karmadactl` or `kubectl-karmada` (a link is \
             enough); as `karmada` it has the same commands beside its roles. This page is generated from the help texts.\n\n\
             ```text\n{}```\n",
            help("karmadactl")
        );
        add(&mut command, "karmadactl", &mut page);
        page.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// `UPDATE_GOLDEN=1 cargo test -p cli` rewrites the page.
    #[test]
    fn the_reference_holds_the_help_of_every_command() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
        let page = page();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, &page).expect("the page is written");
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(written, page, "hint: UPDATE_GOLDEN=1 cargo test -p cli rewrites docs/reference/cli.md");
    }

    #[test]
    fn if_a_flag_is_given_twice_the_last_one_counts() {
        let root = alone_command("karmadactl");
        for line in ["karmadactl --namespace=a top pod x -n b", "karmadactl -n a get pods --namespace b"] {
            let words = normalize(line.split_whitespace().map(OsString::from), &root);
            let matches =
                root.clone().try_get_matches_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
            let mut innermost = &matches;
            while let Some((_, below)) = innermost.subcommand() {
                innermost = below;
            }
            assert_eq!(innermost.get_one::<String>("namespace").map(String::as_str), Some("b"), "{line}");
        }
    }

    #[test]
    fn every_command_has_an_example_that_parses() {
        fn check(command: &clap::Command, root: &clap::Command, path: &str) {
            for each in command.get_subcommands().filter(|each| each.get_name() != "help") {
                if each.has_subcommands() {
                    check(each, root, &format!("{path} {}", each.get_name()));
                    continue;
                }
                let text = each.get_after_help().map(ToString::to_string).unwrap_or_default();
                let lines: Vec<&str> =
                    text.lines().map(str::trim).filter(|line| line.starts_with("karmadactl ")).collect();
                assert!(!lines.is_empty(), "{path} {} has no example", each.get_name());
                for line in lines {
                    // Quoted words with spaces are one word.
                    let words = line.split('\'').enumerate().flat_map(|(i, part)| match i % 2 {
                        0 => part.split_whitespace().map(OsString::from).collect::<Vec<_>>(),
                        _ => vec![OsString::from(part)],
                    });
                    let words = normalize(words, root);
                    let parsed = root.clone().try_get_matches_from(&words);
                    assert!(
                        parsed.is_ok(),
                        "{line}: {}",
                        parsed.err().map(|e| e.to_string()).unwrap_or_default()
                    );
                }
            }
        }
        let root = alone_command("karmadactl");
        check(&root, &root, "karmadactl");
    }
}
