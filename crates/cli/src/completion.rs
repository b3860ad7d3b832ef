//! `completion`: scripts for the completion of commands in a shell.
//!
//! The scripts are short: they pass the words to the program's hidden command `__complete`, which knows its commands and flags
//! and asks the server for names. A program with another name completes under that name.

use clap::Args;

use crate::failure::misused;
use crate::output;
use crate::server::Connection;

/// Output shell completion code for the specified shell (bash, zsh, fish).
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # In this bash
  #   source <(karmadactl completion bash)
  karmadactl completion bash

  # In every zsh: write it to a folder of $fpath
  karmadactl completion zsh

  # In every fish: write it to ~/.config/fish/completions/karmadactl.fish
  karmadactl completion fish")]
pub struct Arguments {
    /// bash, zsh or fish.
    #[arg(value_name = "SHELL")]
    pub shell: Vec<String>,
    #[command(flatten)]
    pub connection: Connection,
}

const BASH: &str = r#"# bash completion for NAME
_FUNCTION_complete() {
    local IFS=$'\n' out line
    COMPREPLY=()
    out=$("$1" __complete --line="${COMP_LINE:0:COMP_POINT}" 2>/dev/null) || return 0
    while read -r line; do
        case $line in
        :files) compopt -o default -o filenames 2>/dev/null ;;
        :open) compopt -o nospace 2>/dev/null ;;
        :*) ;;
        '') ;;
        *) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done <<<"$out"
}
complete -F _FUNCTION_complete NAME
"#;

const ZSH: &str = r#"#compdef NAME
compdef _FUNCTION NAME
# zsh completion for NAME
_FUNCTION() {
    local -a described
    local line value files= open=
    for line in "${(@f)$("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
        :files) files=1 ;;
        :open) open=1 ;;
        :*|'') ;;
        *)
            value=${line%%$'\t'*}
            if [[ $line == *$'\t'* ]]; then described+=("${value//:/\\:}:${line#*$'\t'}")
            else described+=("${value//:/\\:}"); fi ;;
        esac
    done
    if [[ -n $files ]]; then _files; return; fi
    if [[ -n $open ]]; then _describe -t NAME NAME described -S ''; else _describe -t NAME NAME described; fi
}
if [ "$funcstack[1]" = "_FUNCTION" ]; then _FUNCTION; fi
"#;

const FISH: &str = r#"# fish completion for NAME
function __FUNCTION_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($words[1] __complete -- $words[2..-1] $current 2>/dev/null)
    if contains -- :files $lines
        __fish_complete_path $current
        return
    end
    string match --invert --regex '^:' -- $lines
end
complete --command NAME --no-files --arguments '(__FUNCTION_complete)'
"#;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let shell = match &arguments.shell[..] {
        [] => return Err(misused("completion", "Shell not specified.")),
        [shell] => shell,
        _ => return Err(misused("completion", "Too many arguments. Expected only the shell type.")),
    };
    let Some(script) = script(shell, crate::program::shown()) else {
        let complaint = format!("Unsupported shell type {}.", apimachinery::go::quote(shell));
        return Err(misused("completion", &complaint));
    };
    output::print(&script);
    Ok(())
}

/// Returns the script of a shell for a program.
pub fn script(shell: &str, program: &str) -> Option<String> {
    let template = match shell {
        "bash" => BASH,
        "zsh" => ZSH,
        "fish" => FISH,
        _ => return None,
    };
    // `kubectl karmada` is completed by the program that kubectl looks for.
    let name = if program == "kubectl karmada" { "kubectl-karmada" } else { program };
    Some(template.replace("FUNCTION", &name.replace('-', "_")).replace("NAME", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_has_a_script_for_every_name() {
        for shell in ["bash", "zsh", "fish"] {
            for program in ["karmada", "karmadactl", "kubectl karmada"] {
                let text = script(shell, program).expect("a script");
                assert!(
                    text.contains("__complete") && !text.contains("NAME") && !text.contains("FUNCTION"),
                    "{text}"
                );
            }
        }
        assert!(
            script("bash", "kubectl karmada")
                .is_some_and(|text| text.contains("_kubectl_karmada_complete kubectl-karmada"))
        );
        assert_eq!(script("tcsh", "karmadactl"), None);
    }
}
