//! Builds the programs that real clusters consist of, once, from the Go module proxy.
//!
//! In: a list of [`Recipe`]s. Out: programs in `<cache>/bin/<name>-<version>`, which every later run finds at once.
//! The cache is `$KARMADA_RS_CACHE`, else `$XDG_CACHE_HOME/karmada-rs`, else `~/.cache/karmada-rs`.
//!
//! For each recipe we write a Go module of our own that names the upstream module and nothing else, and let `go build`
//! do the rest: no container, no source tree, no network beyond the module proxy. A file lock per recipe makes
//! parallel callers wait for one build instead of starting a second one; a finished program is moved into place by rename, so
//! a half-written one is never seen.
//!
//! This module is blocking and free of the async stack, so that `xtask` can start a build in a thread without
//! compiling that stack first.

mod gomod;
mod packages;
mod recipe;
mod suites;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub use packages::{POD_PACKAGES, PackageSet, Packages, SHELL_PACKAGES};
pub use recipe::{
    CONTAINERD, COREDNS, ETCD, HELM, KARMADA, KARMADA_E2E, KARMADA_ESTIMATING, KUBERNETES, KUBERNETES_E2E,
    KUBERNETES_INTEGRATION, KUBERNETES_NODE, KWOK, MEMBER_RECIPES, METRICS_SERVER, POD_PROGRAM, POD_RECIPES,
    Program, Recipe,
};
pub use suites::{Substitute, Suite};

/// Set where the programs of real pods may be built for the sake of a test.
pub const PODS_VARIABLE: &str = "KARMADA_RS_PODS";

/// Why a program could not be provided.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no Go toolchain found: install Go 1.26 or newer and put `go` on the PATH to build {recipe}")]
    NoGo { recipe: String },
    #[error("neither KARMADA_RS_CACHE, XDG_CACHE_HOME nor HOME is set: there is no place for the cache")]
    NoCache,
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{command} failed for {recipe}; the whole log is {}:\n{tail}", log.display())]
    Go { recipe: String, command: String, log: PathBuf, tail: String },
    #[error("{command} failed, so the Debian packages {packages} are missing; real pods need them:\n{tail}")]
    Packages { command: &'static str, packages: String, tail: String },
    #[error("go mod download for {recipe} answered something that is not understood: {answer}")]
    Answer { recipe: String, answer: String },
}

/// The cache of built programs.
#[derive(Debug, Clone)]
pub struct Toolchain {
    root: PathBuf,
}

impl Toolchain {
    /// Returns the toolchain of this user's cache.
    pub fn from_env() -> Result<Self, Error> {
        Ok(Self { root: cache_root()? })
    }

    /// Returns a toolchain with a cache at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the folder of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns where a program is, or will be once built.
    pub fn path(&self, program: &Program) -> PathBuf {
        self.root.join("bin").join(format!("{}-{}", program.name, program.version))
    }

    /// Says whether every program of `recipe` is there already.
    pub fn has(&self, recipe: &Recipe) -> bool {
        recipe.programs().all(|program| self.path(&program).is_file())
    }

    /// Says whether all that members need is built, or can be built since there is a Go toolchain.
    pub fn can_provide(&self, recipes: &[&Recipe]) -> bool {
        recipes.iter().all(|recipe| self.has(recipe)) || go_present()
    }

    /// Builds what is missing of `recipes`, one after the other. Returns at once when nothing is.
    pub fn ensure(&self, recipes: &[&Recipe]) -> Result<(), Error> {
        for recipe in recipes {
            if !self.has(recipe) {
                self.build(recipe)?;
            }
        }
        Ok(())
    }

    /// Builds one program of `recipe` alone if it is missing, and returns where it is.
    pub fn ensure_program(&self, recipe: &Recipe, name: &str) -> Result<PathBuf, Error> {
        let path = self.path(&recipe.program(name));
        if !path.is_file() {
            self.build(&recipe.only(name))?;
        }
        Ok(path)
    }

    /// Builds a Go program of our own from its source folder, which is a module, and returns where it is. Go's own cache
    /// makes this quick when nothing has changed.
    pub fn build_own(&self, name: &str, source: &Path) -> Result<PathBuf, Error> {
        let bin = self.root.join("bin");
        fs::create_dir_all(&bin).map_err(|error| io_error("create", &bin, error))?;
        let path = bin.join(name);
        eprintln!("clusters: building {name}");
        let output = go(source)
            .args(["build", "-mod=readonly", "-o"])
            .arg(&path)
            .arg(".")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| io_error("run go in", source, error))?;
        if output.status.success() {
            return Ok(path);
        }
        Err(Error::Go {
            recipe: name.to_string(),
            command: "go build".to_string(),
            tail: tail(&String::from_utf8_lossy(&output.stderr), 20),
            log: source.to_path_buf(),
        })
    }

    /// Returns where the upstream module of `recipe` is, with all that it contains besides programs.
    pub fn module_folder(&self, recipe: &Recipe) -> Result<PathBuf, Error> {
        downloaded(recipe, "Dir")
    }

    fn build(&self, recipe: &Recipe) -> Result<(), Error> {
        if !go_present() {
            return Err(Error::NoGo { recipe: recipe.to_string() });
        }
        let folder = self.root.join("go").join(format!("{}-{}", recipe.name, recipe.version));
        let bin = self.root.join("bin");
        for path in [&folder, &bin] {
            fs::create_dir_all(path).map_err(|source| io_error("create", path, source))?;
        }
        let _held = lock(&folder.join("lock"), recipe)?;
        if self.has(recipe) {
            return Ok(()); // somebody else built it while we waited for the lock
        }

        let build = Build { recipe, folder: &folder, started: Instant::now() };
        build.say(&format!("building {recipe} ({})", recipe.names()));
        let module_file = build.download()?;
        build.write_module(&module_file)?;
        let staging = folder.join("out");
        // What an interrupted build left behind must not be mistaken for a result.
        let _ = fs::remove_dir_all(&staging);
        fs::create_dir_all(&staging).map_err(|source| io_error("create", &staging, source))?;
        build.compile(&staging)?;
        build.compile_suite(&staging)?;
        for program in recipe.programs() {
            let (from, to) = (staging.join(program.built_as), self.path(&program));
            fs::rename(&from, &to).map_err(|source| io_error("move into place", &from, source))?;
        }
        build.say(&format!("{recipe} is ready after {} s", build.started.elapsed().as_secs()));
        Ok(())
    }
}

/// One run of the Go toolchain over one recipe.
struct Build<'a> {
    recipe: &'a Recipe,
    folder: &'a Path,
    started: Instant,
}

impl Build<'_> {
    /// Fetches the upstream module and returns the text of its go.mod.
    fn download(&self) -> Result<String, Error> {
        if self.recipe.module.is_empty() {
            return Ok(String::new()); // all of it is ours
        }
        let path = downloaded(self.recipe, "GoMod")?;
        fs::read_to_string(&path).map_err(|source| io_error("read", &path, source))
    }

    fn write_module(&self, upstream: &str) -> Result<(), Error> {
        let mut files = vec![(PathBuf::from("go.mod"), gomod::module_file(self.recipe, upstream))];
        // A file of an earlier layout, or sums of another version, must not linger.
        for stale in ["go.sum", "main.go", "tools.go"] {
            let _ = fs::remove_file(self.folder.join(stale));
        }
        match self.recipe.main {
            Some(main) => files.push(("main.go".into(), main.to_string())),
            None => files.push(("tools.go".into(), gomod::tools_file(self.recipe))),
        }
        for stand_in in self.recipe.stand_ins {
            let folder = PathBuf::from(gomod::stand_in_folder(stand_in));
            let texts = stand_in.files.iter();
            files.extend(texts.map(|(path, text)| (folder.join(path), text.to_string())));
        }
        for (name, text) in files {
            let path = self.folder.join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(|source| io_error("create", parent, source))?;
            }
            fs::write(&path, text).map_err(|source| io_error("write", &path, source))?;
        }
        Ok(())
    }

    fn compile(&self, staging: &Path) -> Result<(), Error> {
        let mut command = go(self.folder);
        command
            .args(["build", "-mod=mod", "-tags", self.recipe.tags()])
            .args(["-ldflags", &self.recipe.link_flags(), "-o"])
            // The closing slash makes Go put one program per package into the folder.
            .arg(format!("{}/", staging.display()))
            .args(self.recipe.packages());
        self.run(command, "go build")
    }

    fn compile_suite(&self, staging: &Path) -> Result<(), Error> {
        let Some((name, package)) = self.recipe.suite else { return Ok(()) };
        let mut command = go(self.folder);
        command.args(["test", "-c", "-vet=off", "-mod=mod", "-o"]).arg(staging.join(name)).arg(package);
        self.run(command, "go test -c")
    }

    /// Runs Go with its words in a log, saying now and then that it is still at it.
    fn run(&self, mut command: Command, name: &str) -> Result<(), Error> {
        let log_path = self.folder.join("build.log");
        let log = fs::File::create(&log_path).map_err(|source| io_error("create", &log_path, source))?;
        let also = log.try_clone().map_err(|source| io_error("open", &log_path, source))?;
        command.stdin(Stdio::null()).stdout(log).stderr(also);
        let mut child = command.spawn().map_err(|source| io_error("run go in", self.folder, source))?;
        let mut next_word = Duration::from_secs(15);
        let status = loop {
            if let Some(status) =
                child.try_wait().map_err(|source| io_error("wait for go in", self.folder, source))?
            {
                break status;
            }
            let elapsed = self.started.elapsed();
            if elapsed >= next_word {
                self.say(&format!("still building {} … {} s", self.recipe, elapsed.as_secs()));
                next_word = elapsed + Duration::from_secs(15);
            }
            thread::sleep(Duration::from_millis(200));
        };
        if status.success() {
            return Ok(());
        }
        Err(Error::Go {
            recipe: self.recipe.to_string(),
            command: name.to_string(),
            tail: tail(&fs::read_to_string(&log_path).unwrap_or_default(), 20),
            log: log_path,
        })
    }

    /// Progress goes to stderr: stdout belongs to the caller's data.
    fn say(&self, text: &str) {
        eprintln!("clusters: {text}");
    }
}

/// Fetches the upstream module of `recipe` and returns the path that Go calls `what`.
fn downloaded(recipe: &Recipe, what: &str) -> Result<PathBuf, Error> {
    let wanted = format!("{}@{}", recipe.module, recipe.version);
    // Outside of any module, so that nothing but the wanted one is loaded.
    let root = Path::new("/");
    let output = go(root)
        .args(["mod", "download", "-json", &wanted])
        .output()
        .map_err(|source| io_error("run go in", root, source))?;
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    let unclear = || Error::Answer { recipe: recipe.to_string(), answer: answer.clone() };
    let parsed: serde_json::Value = serde_json::from_str(&answer).map_err(|_| unclear())?;
    parsed[what].as_str().map(PathBuf::from).ok_or_else(unclear)
}

/// Says whether `go` can be run.
pub fn go_present() -> bool {
    Command::new("go")
        .arg("version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Returns the last `lines` lines of `text`.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// `go` at low priority, shielded from settings of the user that would change what is built.
fn go(folder: &Path) -> Command {
    let mut command = if Path::new("/usr/bin/nice").exists() {
        let mut nice = Command::new("/usr/bin/nice");
        nice.arg("go");
        nice
    } else {
        Command::new("go")
    };
    // Nobody looks at them with a debugger: without tables for one, compiling takes a seventh less.
    command.env("GOFLAGS", "-gcflags=all=-dwarf=false");
    command.current_dir(folder).env("CGO_ENABLED", "0").env("GOWORK", "off");
    command
}

/// Takes the lock of a recipe, telling the user when that means waiting. It is given back when the file is closed.
fn lock(path: &Path, recipe: &Recipe) -> Result<fs::File, Error> {
    let file = fs::File::create(path).map_err(|source| io_error("create", path, source))?;
    if file.try_lock().is_err() {
        eprintln!("clusters: somebody else is building {recipe}; waiting for it");
        file.lock().map_err(|source| io_error("lock", path, source))?;
    }
    Ok(file)
}

fn cache_root() -> Result<PathBuf, Error> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("KARMADA_RS_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|base| base.join("karmada-rs")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/karmada-rs")))
        .ok_or(Error::NoCache)
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { action, path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_named_by_its_version() {
        let toolchain = Toolchain::at("/cache");
        let apiserver = KUBERNETES.program("kube-apiserver");
        assert_eq!(toolchain.path(&apiserver), Path::new("/cache/bin/kube-apiserver-v1.36.3"));
    }

    #[test]
    fn nothing_is_built_when_every_program_is_there() {
        let cache = tempfile::tempdir().expect("a folder for the test");
        let toolchain = Toolchain::at(cache.path());
        assert!(!toolchain.has(&ETCD));
        fs::create_dir_all(cache.path().join("bin")).expect("create");
        fs::write(toolchain.path(&ETCD.program("etcd")), "").expect("write");
        assert!(toolchain.has(&ETCD));
        toolchain.ensure(&[&ETCD]).expect("nothing to do");
        assert!(!cache.path().join("go").exists(), "a build was started");
    }

    #[test]
    fn the_tail_of_a_short_log_is_the_whole_log() {
        assert_eq!(tail("a\nb", 5), "a\nb");
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
    }
}
