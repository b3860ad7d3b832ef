//! Files that packages contain beside the binary: man pages of `karmada` and of `karmadactl`, and completions of both for bash,
//! zsh and fish.
//!
//! Compiled only for tests, since the program itself does not use it; `cargo xtask dist` runs the test, which is ignored
//! otherwise.

use std::path::Path;

/// The folder to write to; `cargo xtask dist` sets it.
const FOLDER: &str = "KARMADA_RS_DIST";

/// Both names of the program, with their commands.
fn programs() -> [(&'static str, clap::Command); 2] {
    let mut programs = [("karmada", crate::command()), ("karmadactl", cli::command())];
    programs.iter_mut().for_each(|(_, command)| command.build());
    programs
}

fn write(folder: &Path) -> std::io::Result<()> {
    let pages = folder.join("man/man1");
    std::fs::create_dir_all(&pages)?;
    for (name, command) in programs() {
        page(&command, name, &pages)?;
        for (shell, file) in
            [("bash", name.to_owned()), ("zsh", format!("_{name}")), ("fish", format!("{name}.fish"))]
        {
            let place = folder.join("completions").join(shell);
            std::fs::create_dir_all(&place)?;
            std::fs::write(place.join(file), cli::script(shell, name).unwrap_or_default())?;
        }
    }
    Ok(())
}

/// Writes the page of a command, and those of its subcommands.
fn page(command: &clap::Command, name: &str, folder: &Path) -> std::io::Result<()> {
    let mut text = Vec::new();
    // The whole path is the title: `karmadactl-token-create`. Empty defaults and the values of switches are not mentioned.
    let titled = command.clone().name(name.to_owned()).mut_args(|argument| {
        let nothing = argument.get_default_values().iter().all(|value| value.is_empty());
        let switch = argument.get_possible_values().iter().any(|value| value.get_name() == "true");
        argument.hide_default_value(nothing).hide_possible_values(switch)
    });
    clap_mangen::Man::new(titled).render(&mut text)?;
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n");
    std::fs::write(folder.join(format!("{name}.1")), text)?;
    for each in shown(command) {
        page(each, &format!("{name}-{}", each.get_name()), folder)?;
    }
    Ok(())
}

fn shown(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|each| !each.is_hide_set() && each.get_name() != "help")
}

#[test]
#[ignore = "writes files for packages: `cargo xtask dist`"]
fn write_what_packages_hold() {
    let folder = std::env::var_os(FOLDER).expect("a folder");
    write(Path::new(&folder)).expect("written");
}

#[test]
fn every_command_has_a_page_and_every_shell_a_script() {
    fn check(command: &clap::Command, name: &str, folder: &Path) {
        let page = std::fs::read_to_string(folder.join(format!("{name}.1"))).unwrap_or_default();
        assert!(page.contains(&format!(".TH {name} 1")), "{name}: {page}");
        assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
        assert!(!page.contains(".SH EXTRA\nExamples") && !page.contains("[default: ]"), "{name}: {page}");
        let (program, other) = if name.starts_with("karmadactl") {
            ("karmadactl ", "  karmada ")
        } else {
            ("karmada ", "  karmadactl ")
        };
        let examples = page.split(".SH EXAMPLES").nth(1).unwrap_or(program);
        assert!(examples.contains(program) && !examples.contains(other), "{name}: {examples}");
        for each in shown(command) {
            check(each, &format!("{name}-{}", each.get_name()), folder);
        }
    }
    let folder = tempfile::tempdir().expect("a folder for the test");
    write(folder.path()).expect("written");
    for (name, command) in programs() {
        check(&command, name, &folder.path().join("man/man1"));
        for (file, words) in [
            (format!("bash/{name}"), "complete ".to_owned()),
            (format!("zsh/_{name}"), format!("#compdef {name}")),
            (format!("fish/{name}.fish"), format!("complete --command {name}")),
        ] {
            let script =
                std::fs::read_to_string(folder.path().join("completions").join(&file)).expect("written");
            assert!(script.contains(&words), "{file}: {script}");
        }
    }
}
