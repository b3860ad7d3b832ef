//! Compiles test packages of an upstream module with single files of it replaced by ours.
//!
//! In: packages, the files that stand in for upstream's (an overlay, as Go calls it), and files of our own that those use.
//! Out: one program per package in the cache, and the folder its tests expect to run in. Go replaces no file of its own
//! module cache, so the modules concerned are mirrored (by links, where the file system has them) and stay as they are there.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use super::{Build, Error, Toolchain, go, go_present, io_error, lock, recipe::Recipe};

/// A file of ours that takes the place of one of upstream's.
#[derive(Debug)]
pub struct Substitute {
    pub module: &'static str,
    /// Path within the module.
    pub path: &'static str,
    pub text: &'static str,
}

/// A compiled test package.
#[derive(Debug, Clone)]
pub struct Suite {
    pub package: &'static str,
    pub program: PathBuf,
    /// The package's own folder, where its tests look for their data.
    pub folder: PathBuf,
}

impl Toolchain {
    /// Compiles what is missing of `packages`, all of them anew when a file of ours has changed.
    pub fn compile_tests(
        &self,
        recipe: &Recipe,
        own: &[(&str, &str)],
        substitutes: &[Substitute],
        packages: &[&'static str],
    ) -> Result<Vec<Suite>, Error> {
        if !go_present() {
            return Err(Error::NoGo { recipe: recipe.to_string() });
        }
        let folder = self.root.join("go").join(format!("{}-{}", recipe.name, recipe.version));
        let out = folder.join("out");
        fs::create_dir_all(&out).map_err(|source| io_error("create", &out, source))?;
        let _held = lock(&folder.join("lock"), recipe)?;
        let build = Build { recipe, folder: &folder, started: Instant::now() };
        for (path, text) in own {
            write(&folder.join(path), text)?;
        }
        let mut modules: Vec<&str> = substitutes.iter().map(|each| each.module).collect();
        modules.dedup();
        let mirrors = folder.join("upstream");
        let mirrored = |module: &str| mirrors.join(module.replace('/', "_"));
        if !mirrors.join("complete").exists() {
            let _ = fs::remove_dir_all(&mirrors);
            let module_file = build.download()?;
            build.write_module(&module_file)?;
            for (module, from) in modules.iter().zip(build.module_folders(&modules)?) {
                mirror(&from, &mirrored(module))?;
                let replacement = format!("-replace={module}={}", mirrored(module).display());
                build.run(edit(build.folder, &replacement), "go mod edit")?;
            }
            write(&mirrors.join("complete"), "")?;
        }
        let mut replaced = Vec::new();
        for (place, each) in substitutes.iter().enumerate() {
            let ours = folder.join("overlay").join(format!("{place}.go"));
            write(&ours, each.text)?;
            replaced.push((mirrored(each.module).join(each.path), ours));
        }
        let overlay = folder.join("overlay.json");
        write(&overlay, &overlay_text(&replaced))?;

        let sources: String =
            own.iter().map(|(_, text)| *text).chain(substitutes.iter().map(|each| each.text)).collect();
        let stamp = out.join("sources");
        if fs::read_to_string(&stamp).ok().as_deref() != Some(sources.as_str()) {
            let _ = fs::remove_dir_all(&out);
            write(&stamp, &sources)?;
        }
        let folders = build.package_folders(packages)?;
        let mut suites = Vec::new();
        for (package, folder) in packages.iter().zip(folders) {
            let program = out.join(format!("{}.test", package.replace('/', "_")));
            if !program.is_file() {
                build.say(&format!("compiling {package} … {} s", build.started.elapsed().as_secs()));
                let mut command = go(build.folder);
                command
                    .args(["test", "-c", "-vet=off", "-mod=mod", "-p=2", "-ldflags=-s -w", "-overlay"])
                    .arg(&overlay)
                    .arg("-o")
                    .arg(&program)
                    .arg(package);
                build.run(command, "go test -c")?;
            }
            suites.push(Suite { package, program, folder });
        }
        Ok(suites)
    }
}

impl Build<'_> {
    /// Returns where the modules' sources are.
    fn module_folders(&self, modules: &[&str]) -> Result<Vec<PathBuf>, Error> {
        self.ask(&["list", "-mod=mod", "-m", "-f", "{{.Dir}}"], modules)
    }

    fn package_folders(&self, packages: &[&str]) -> Result<Vec<PathBuf>, Error> {
        self.ask(&["list", "-mod=mod", "-find", "-f", "{{.Dir}}"], packages)
    }

    /// Asks Go for one path per name, one by one: what it says about several need not come in their order.
    fn ask(&self, question: &[&str], names: &[&str]) -> Result<Vec<PathBuf>, Error> {
        names
            .iter()
            .map(|name| {
                let output = go(self.folder)
                    .args(question)
                    .arg(name)
                    .output()
                    .map_err(|source| io_error("run go in", self.folder, source))?;
                let answer = String::from_utf8_lossy(&output.stdout).trim().to_string();
                if !output.status.success() || answer.is_empty() {
                    let answer = String::from_utf8_lossy(&output.stderr).into_owned();
                    return Err(Error::Answer { recipe: self.recipe.to_string(), answer });
                }
                Ok(PathBuf::from(answer))
            })
            .collect()
    }
}

fn edit(folder: &Path, replacement: &str) -> std::process::Command {
    let mut command = go(folder);
    command.args(["mod", "edit", replacement]);
    command
}

/// Makes a folder that looks like another one, by links or, failing that, copies.
fn mirror(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(|source| io_error("create", to, source))?;
    let entries = fs::read_dir(from).map_err(|source| io_error("read", from, source))?;
    for entry in entries {
        let entry = entry.map_err(|source| io_error("read", from, source))?;
        let (original, copy) = (entry.path(), to.join(entry.file_name()));
        if original.is_dir() {
            mirror(&original, &copy)?;
        } else {
            fs::hard_link(&original, &copy)
                .or_else(|_| fs::copy(&original, &copy).map(|_| ()))
                .map_err(|source| io_error("mirror", &original, source))?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|source| io_error("create", parent, source))?;
    }
    // An equal file keeps its time, which Go's cache goes by.
    if fs::read_to_string(path).ok().as_deref() == Some(text) {
        return Ok(());
    }
    fs::write(path, text).map_err(|source| io_error("write", path, source))
}

fn overlay_text(replaced: &[(PathBuf, PathBuf)]) -> String {
    let mut lines = String::new();
    for (upstream, ours) in replaced {
        let comma = if lines.is_empty() { "" } else { ",\n" };
        let (upstream, ours) = (upstream.to_string_lossy(), ours.to_string_lossy());
        let _ = write!(lines, "{comma}{}: {}", serde_json::json!(upstream), serde_json::json!(ours));
    }
    format!("{{\"Replace\": {{\n{lines}\n}}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overlay_names_every_replaced_file() {
        let text =
            overlay_text(&[("/m/a.go".into(), "/o/0.go".into()), ("/m/b.go".into(), "/o/1.go".into())]);
        let parsed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(parsed["Replace"]["/m/b.go"], "/o/1.go");
        assert_eq!(parsed["Replace"]["/m/a.go"], "/o/0.go");
    }
}
