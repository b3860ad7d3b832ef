//! Writes man pages and completions into a folder: `cargo xtask dist` calls it.

use std::path::{Path, PathBuf};

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let folder: PathBuf = std::env::args_os().nth(1).context("a folder is needed")?.into();
    write(&folder)
}

fn write(folder: &Path) -> anyhow::Result<()> {
    let pages = folder.join("man/man1");
    std::fs::create_dir_all(&pages)?;
    let mut command = cli::command();
    command.build();
    page(&command, "karmadactl", &pages)?;
    let places = [
        ("bash", "completions/bash", "karmadactl"),
        ("zsh", "completions/zsh", "_karmadactl"),
        ("fish", "completions/fish", "karmadactl.fish"),
    ];
    for (shell, place, file) in places {
        let place = folder.join(place);
        std::fs::create_dir_all(&place)?;
        let script = cli::script(shell, "karmadactl").context("every shell has a script")?;
        std::fs::write(place.join(file), script)?;
    }
    Ok(())
}

/// Writes the page of a command, and those of the commands below it.
fn page(command: &clap::Command, name: &str, folder: &Path) -> anyhow::Result<()> {
    let mut text = Vec::new();
    // The whole path is the title: `karmadactl-token-create`.
    let titled = command.clone().name(name.to_owned());
    clap_mangen::Man::new(titled).render(&mut text)?;
    std::fs::write(folder.join(format!("{name}.1")), text)?;
    for each in command.get_subcommands().filter(|each| !each.is_hide_set() && each.get_name() != "help") {
        page(each, &format!("{name}-{}", each.get_name()), folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_every_shell_a_script() {
        fn check(command: &clap::Command, name: &str, folder: &Path) {
            let page = std::fs::read_to_string(folder.join(format!("{name}.1"))).unwrap_or_default();
            assert!(page.contains(&format!(".TH {name} 1")), "{name}: {page}");
            assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
            for each in
                command.get_subcommands().filter(|each| !each.is_hide_set() && each.get_name() != "help")
            {
                check(each, &format!("{name}-{}", each.get_name()), folder);
            }
        }
        let folder = tempfile::tempdir().expect("a folder for the test");
        write(folder.path()).expect("written");
        let mut command = cli::command();
        command.build();
        check(&command, "karmadactl", &folder.path().join("man/man1"));
        for (file, words) in [
            ("bash/karmadactl", "complete "),
            ("zsh/_karmadactl", "#compdef karmadactl"),
            ("fish/karmadactl.fish", "complete --command karmadactl"),
        ] {
            let script = std::fs::read_to_string(folder.path().join("completions").join(file)).expect(file);
            assert!(script.contains(words), "{file}: {script}");
        }
    }
}
