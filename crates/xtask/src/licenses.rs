//! `cargo xtask licenses`: the licences of everything that is inside of the `karmada` binary, as one file in the
//! repository that the binary contains and prints.
//!
//! In: the dependency graph and the sources of the crates, where cargo put them. Out: `crates/app/data/licenses.txt`. Equal
//! texts stand once. Crates that may be used under Apache-2.0 are, since that needs its text once for all of them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    dependencies::{Graph, Package, choose},
    workspace::Workspace,
};

const FILE: &str = "crates/app/data/licenses.txt";
const PROGRAM: &str = "app";

/// How the files are called that state terms; what follows does not matter.
const NAMES: &[&str] = &["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// By what the text of a licence is recognised.
const MARKS: &[(&str, &str)] = &[
    ("MIT", "Permission is hereby granted, free of charge"),
    ("ISC", "Permission to use, copy, modify, and/or distribute this software for any"),
    ("BSD-3-Clause", "Redistribution and use in source and binary forms"),
    ("BSD-2-Clause", "Redistribution and use in source and binary forms"),
    ("Zlib", "This software is provided 'as-is'"),
    ("Unicode-3.0", "UNICODE LICENSE V3"),
];

/// For crates that declare MIT and come without its text.
const MIT: &str = include_str!("../data/mit.txt");

pub(crate) fn run() -> Result<()> {
    let workspace = Workspace::load()?;
    let text = render(&workspace.root, &Graph::load(&workspace)?)?;
    let path = workspace.root.join(FILE);
    fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}: {} bytes", path.display(), text.len());
    Ok(())
}

/// Says so if the file does not tell what it would tell now.
pub(crate) fn drift(root: &Path, graph: &Graph) -> Result<Option<String>> {
    let now = render(root, graph)?;
    let there = fs::read_to_string(root.join(FILE)).unwrap_or_default();
    Ok((now != there).then(|| format!("{FILE} is out of date; `cargo xtask licenses` writes it")))
}

fn render(root: &Path, graph: &Graph) -> Result<String> {
    let shipped = graph.shipped(PROGRAM)?;
    let mut apache = vec!["the Rust standard library".to_string()];
    // By the text, without its line breaks: the text as it is, and who has it.
    let mut texts: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for package in shipped {
        let shown = format!("{} {}", package.name, package.version);
        let licences = choose(&package.licence).unwrap_or_default();
        if licences.contains(&"Apache-2.0") {
            apache.push(shown.clone());
        }
        for text in stated(package, &licences)? {
            let key = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let (_, users) = texts.entry(key).or_insert_with(|| (text, Vec::new()));
            if !users.contains(&shown) {
                users.push(shown.clone());
            }
        }
    }
    let mut texts: Vec<(String, Vec<String>)> = texts.into_values().collect();
    texts.sort_by(|a, b| a.1.cmp(&b.1));
    let own = fs::read_to_string(root.join("LICENSE")).context("cannot read LICENSE")?;
    let rule = "-".repeat(100);
    let mut out = format!(
        "This program contains software of others. Each part is followed by its terms. Some may be named that only\nbelong to features which are off.\n\n{}\n\n{own}\n",
        wrap("Under the Apache License, version 2.0", &apache)
    );
    for (text, users) in texts {
        out.push_str(&format!("{rule}\n{}\n\n{}\n\n", wrap("", &users), text.trim_matches('\n')));
    }
    Ok(out)
}

/// Returns the texts that have to go with a crate that is used under these licences.
fn stated(package: &Package, licences: &[&str]) -> Result<Vec<String>> {
    let mut files = Vec::new();
    collect(&package.dir, &mut files)?;
    files.sort();
    let mut texts = Vec::new();
    let mut missing: Vec<&str> =
        licences.iter().copied().filter(|licence| *licence != "Apache-2.0").collect();
    // Several licences at once: files may hold parts of others under terms of their own.
    let several = licences.len() > 1;
    for path in files {
        let text = String::from_utf8_lossy(
            &fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?,
        )
        .replace("\r\n", "\n");
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let inner = path.parent() != Some(&package.dir);
        let known = MARKS.iter().filter(|(_, mark)| contains(&text, mark)).map(|(licence, _)| *licence);
        let known: Vec<&str> = known.collect();
        let wanted = known.iter().any(|licence| licences.contains(licence));
        // Alternatives that we do not make use of.
        let other = is_apache(&text) || text.contains("GNU GENERAL PUBLIC LICENSE");
        if name.starts_with("NOTICE") || (!other && (wanted || inner || several)) {
            missing.retain(|licence| !known.contains(licence));
            texts.push(text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n"));
        }
    }
    for licence in missing {
        let authors = if package.authors.is_empty() {
            format!("the authors of {}", package.name)
        } else {
            package.authors.join(", ")
        };
        anyhow::ensure!(
            licence == "MIT",
            "{} {} comes without the text of {licence}",
            package.name,
            package.version
        );
        texts.push(MIT.replace("{authors}", &authors));
    }
    Ok(texts)
}

fn contains(text: &str, mark: &str) -> bool {
    text.split_whitespace().collect::<Vec<_>>().join(" ").contains(mark)
}

/// Also where it stands in a file together with another one that need not be chosen.
fn is_apache(text: &str) -> bool {
    text.contains("Apache License")
        && text.contains("TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION")
}

/// Finds the files that state terms, in a crate and in what others wrote inside of it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_dir() {
            // Neither is compiled into anything.
            if !matches!(name.as_str(), "TESTS" | "BENCHES" | "EXAMPLES" | "LICENSES") {
                collect(&path, files)?;
            }
        } else if NAMES.iter().any(|known| name.starts_with(known))
            && !name.ends_with(".RS")
            && !name.ends_with(".H")
        {
            files.push(path);
        }
    }
    Ok(())
}

/// Joins names with commas, in lines that can be read.
fn wrap(title: &str, names: &[String]) -> String {
    let mut lines = vec![if title.is_empty() { String::new() } else { format!("{title}:") }];
    for (place, name) in names.iter().enumerate() {
        let piece = if place + 1 < names.len() { format!("{name},") } else { name.clone() };
        match lines.last_mut() {
            Some(line) if line.is_empty() => *line = piece,
            Some(line) if line.len() + 1 + piece.len() <= 100 => {
                line.push(' ');
                line.push_str(&piece);
            }
            _ => lines.push(piece),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_with(licence: &str, files: &[(&str, &str)]) -> (Package, tempfile::TempDir) {
        let dir = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("create");
            fs::write(path, text).expect("write");
        }
        let authors = vec!["Ann".to_string()];
        let (name, licence) = ("thing".to_string(), licence.to_string());
        (Package { name, licence, authors, dir: dir.path().to_path_buf(), ..Package::default() }, dir)
    }

    fn texts(licence: &str, files: &[(&str, &str)]) -> Vec<String> {
        let (package, _dir) = crate_with(licence, files);
        stated(&package, &choose(licence).expect("allowed")).expect("complete")
    }

    const MIT_OF_BOB: &str = "Copyright Bob\nPermission is hereby granted, free of charge, to any\n";

    #[test]
    fn an_alternative_that_is_not_chosen_is_not_shipped_but_notices_and_inner_parts_are() {
        let files = [
            ("LICENSE-MIT", MIT_OF_BOB),
            ("NOTICE", "made by Bob"),
            ("src/c/LICENSE", "Copyright Carl\nPermission is hereby granted, free of charge, to all\n"),
            ("src/c/COPYING", "GNU GENERAL PUBLIC LICENSE"),
        ];
        let texts = texts("MIT OR Apache-2.0", &files);
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].contains("made by Bob") && texts[1].contains("Carl"));
    }

    #[test]
    fn a_licence_that_names_its_authors_is_shipped_also_if_the_crate_forgot_the_text() {
        assert!(texts("MIT", &[("LICENSE", MIT_OF_BOB)])[0].contains("Bob"));
        let fallback = texts("MIT", &[]);
        assert!(
            fallback[0].contains("Copyright (c) Ann") && fallback[0].contains("Permission is hereby granted")
        );
        let (package, _dir) = crate_with("ISC", &[]);
        assert!(stated(&package, &["ISC"]).is_err());
    }

    #[test]
    fn names_are_wrapped() {
        let names: Vec<String> = (0..40).map(|number| format!("crate{number} 1.0.0")).collect();
        let wrapped = wrap("Title", &names);
        assert!(wrapped.starts_with("Title: crate0 1.0.0, ") && wrapped.ends_with("crate39 1.0.0"));
        assert!(wrapped.lines().all(|line| line.len() <= 100));
    }
}
