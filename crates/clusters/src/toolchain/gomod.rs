//! Writes the Go files of our own modules: go.mod with its `replace` lines, and the file that names the packages.
//!
//! A module that keeps parts of itself in sub-folders (Kubernetes' staging) points at them by relative `replace` lines, which
//! Go honours only in the main module. Ours is the main module, so we say the same with published versions:
//! `k8s.io/api => ./staging/src/k8s.io/api` in `v1.36.3` becomes `k8s.io/api => k8s.io/api v0.36.3`. Replacements by
//! another module or version are repeated as they are.

use super::recipe::{Recipe, StandIn};

/// Returns the text of our go.mod for `recipe`, given the upstream module's go.mod.
pub(super) fn module_file(recipe: &Recipe, upstream: &str) -> String {
    let language = upstream.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or("1.26.0").trim();
    let mut text = format!("module karmada-rs.test/{}\n\ngo {language}\n", recipe.name);
    if !recipe.module.is_empty() {
        text.push_str(&format!("\nrequire {} {}\n", recipe.module, recipe.version));
    }
    let mut replacements = replacements(upstream, recipe.version);
    replacements.extend(
        recipe.stand_ins.iter().map(|each| format!("{} => ./{}", each.module, stand_in_folder(each))),
    );
    if !replacements.is_empty() {
        text.push_str("\nreplace (\n");
        for line in replacements {
            text.push_str(&format!("\t{line}\n"));
        }
        text.push_str(")\n");
    }
    text
}

/// Returns where a module of ours is, in the folder of the recipe.
pub(super) fn stand_in_folder(stand_in: &StandIn) -> String {
    format!("stand-ins/{}", stand_in.module.replace('/', "_"))
}

/// Returns a Go file that imports the packages, so that `go build -mod=mod` resolves them. It is never compiled.
pub(super) fn tools_file(recipe: &Recipe) -> String {
    let imports: String = recipe.packages().map(|package| format!("\t_ \"{package}\"\n")).collect();
    format!(
        "//go:build tools\n\n// Package tools names what is built.\npackage tools\n\nimport (\n{imports})\n"
    )
}

fn replacements(upstream: &str, version: &str) -> Vec<String> {
    // v1.36.3 of the whole is v0.36.3 of its parts.
    let part_version = version.strip_prefix("v1.").map(|rest| format!("v0.{rest}"));
    upstream
        .lines()
        .map(|line| line.trim().trim_start_matches("replace ").trim())
        .filter(|line| !line.starts_with("//"))
        .filter_map(|line| line.split_once("=>"))
        .filter_map(|(from, to)| {
            let (from, to) = (from.trim(), to.split("//").next().unwrap_or_default().trim());
            if to.starts_with('.') {
                let name = from.split_whitespace().next()?;
                part_version.as_ref().map(|part| format!("{from} => {name} {part}"))
            } else {
                Some(format!("{from} => {to}"))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::recipe::{ETCD, KARMADA_E2E, KUBERNETES, POD_PROGRAM};
    use super::*;

    const UPSTREAM: &str = "module k8s.io/kubernetes\n\ngo 1.26.0\n\nrequire (\n\tgithub.com/a/b v1.0.0\n)\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tgithub.com/x/y => github.com/z/y v0.3.0 // pinned\n)\n\nreplace k8s.io/kms => ./staging/src/k8s.io/kms\n";

    #[test]
    fn staging_folders_become_published_versions() {
        let text = module_file(&KUBERNETES, UPSTREAM);
        assert!(text.contains("\tk8s.io/api => k8s.io/api v0.36.3\n"), "{text}");
        assert!(text.contains("\tk8s.io/kms => k8s.io/kms v0.36.3\n"), "{text}");
    }

    #[test]
    fn replacements_by_another_module_are_repeated() {
        let text = module_file(&KUBERNETES, UPSTREAM);
        assert!(text.contains("\tgithub.com/x/y => github.com/z/y v0.3.0\n"), "{text}");
    }

    #[test]
    fn a_module_without_replacements_gets_no_block() {
        let text = module_file(&ETCD, "module go.etcd.io/etcd/server/v3\n\ngo 1.26\n");
        assert_eq!(
            text,
            "module karmada-rs.test/etcd\n\ngo 1.26\n\nrequire go.etcd.io/etcd/server/v3 v3.7.3\n"
        );
    }

    #[test]
    fn a_program_of_our_own_requires_nothing() {
        assert_eq!(module_file(&POD_PROGRAM, ""), "module karmada-rs.test/pod-program\n\ngo 1.26.0\n");
    }

    #[test]
    fn a_stand_in_takes_the_place_of_its_module() {
        let text = module_file(&KARMADA_E2E, "module github.com/karmada-io/karmada\n\ngo 1.25.7\n");
        assert!(text.contains("\tsigs.k8s.io/kind => ./stand-ins/sigs.k8s.io_kind\n"), "{text}");
    }

    #[test]
    fn the_tools_file_imports_every_package() {
        let text = tools_file(&KUBERNETES);
        assert!(text.contains("_ \"k8s.io/kubernetes/cmd/kube-scheduler\""));
        assert!(text.starts_with("//go:build tools\n"));
    }
}
