//! The programs that come from Debian: fetched once and unpacked into the cache, never installed.
//!
//! `apt-get` only downloads, into a folder of ours, and `dpkg-deb` unpacks; so the machine stays as it is. What the packages need and the
//! machine has already, libraries above all, is taken from the machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Error, Toolchain, io_error, tail};

/// Packages that are fetched and unpacked together.
#[derive(Debug, Clone, Copy)]
pub struct PackageSet {
    /// Where in the cache they are.
    folder: &'static str,
    names: &'static [&'static str],
}

/// What real pods need.
pub const POD_PACKAGES: PackageSet = PackageSet {
    folder: "debian",
    names: &[
        "runc",
        "containernetworking-plugins",
        "busybox-static",
        "iptables",
        "nftables",
        "conntrack",
        "iproute2",
    ],
};

/// The shells whose completion is tested and that many machines lack.
pub const SHELL_PACKAGES: PackageSet = PackageSet { folder: "debian-shells", names: &["zsh", "fish"] };

/// Where the unpacked packages are.
#[derive(Debug, Clone)]
pub struct Packages {
    root: PathBuf,
}

impl Toolchain {
    /// Returns the packages if they are there.
    pub fn packages(&self, set: PackageSet) -> Option<Packages> {
        let folder = self.root.join(set.folder);
        folder.join("complete").exists().then(|| Packages { root: folder.join("root") })
    }

    /// Says whether packages can be fetched here.
    pub fn can_fetch_packages(&self, set: PackageSet) -> bool {
        let known = |program: &str| {
            let mut command = Command::new(program);
            command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        self.packages(set).is_some() || (known("apt-get") && known("dpkg-deb"))
    }

    /// Fetches and unpacks the packages, unless that was done before.
    pub fn ensure_packages(&self, set: PackageSet) -> Result<Packages, Error> {
        let folder = self.root.join(set.folder);
        fs::create_dir_all(&folder).map_err(|source| io_error("create", &folder, source))?;
        let path = folder.join("lock");
        let lock = fs::File::create(&path).map_err(|source| io_error("create", &path, source))?;
        lock.lock().map_err(|source| io_error("lock", &path, source))?;
        if let Some(packages) = self.packages(set) {
            return Ok(packages);
        }
        eprintln!("clusters: fetching the Debian packages {}", set.names.join(", "));
        let (archives, root) = (folder.join("archives"), folder.join("root"));
        // What an interrupted run left must not be taken for whole.
        let _ = (fs::remove_dir_all(&archives), fs::remove_dir_all(&root));
        for path in [&archives.join("partial"), &root] {
            fs::create_dir_all(path).map_err(|source| io_error("create", path, source))?;
        }
        download(set, &folder, &archives)?;
        for entry in fs::read_dir(&archives).map_err(|source| io_error("read", &archives, source))?.flatten()
        {
            if entry.path().extension().is_some_and(|extension| extension == "deb") {
                run(set, Command::new("dpkg-deb").arg("-x").arg(entry.path()).arg(&root), "dpkg-deb -x")?;
            }
        }
        // Debian makes these links when it installs, not in the package.
        for (link, to) in [("iptables", "iptables-nft"), ("ip6tables", "ip6tables-nft")] {
            if root.join("usr/sbin").join(to).exists() {
                let _ = std::os::unix::fs::symlink(to, root.join("usr/sbin").join(link));
            }
        }
        let _ = fs::remove_dir_all(&archives);
        let mark = folder.join("complete");
        fs::write(&mark, "").map_err(|source| io_error("write", &mark, source))?;
        Ok(Packages { root })
    }
}

impl Packages {
    /// Returns the folder of the CNI plugins.
    pub fn cni(&self) -> PathBuf {
        self.root.join("usr/lib/cni")
    }

    /// Returns the shell tools in one file.
    pub fn busybox(&self) -> PathBuf {
        self.program("busybox").unwrap_or_else(|| "/bin/busybox".into())
    }

    /// Returns where a program of the packages is.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let candidates = ["bin", "usr/bin"].map(|folder| self.root.join(folder).join(name));
        candidates.into_iter().find(|path| path.exists())
    }

    /// Returns what a process needs in its environment to find the programs, their libraries, and those in `first`.
    pub fn environment(&self, first: &Path) -> Vec<String> {
        let within = |places: &[&str]| {
            places.iter().map(|place| self.root.join(place).display().to_string()).collect::<Vec<_>>()
        };
        let mut path = vec![first.display().to_string()];
        path.extend(within(&["usr/sbin", "usr/bin", "sbin", "bin"]));
        path.push("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_string());
        vec![
            format!("PATH={}", path.join(":")),
            format!("XTABLES_LIBDIR={}/usr/lib/{}/xtables", self.root.display(), triple()),
            format!("LD_LIBRARY_PATH={}", self.libraries()),
        ]
    }

    /// Returns where the programs find the libraries of the packages.
    pub fn libraries(&self) -> String {
        let folders = ["usr/lib", "lib"].map(|folder| self.root.join(folder).join(triple()));
        folders.map(|folder| folder.display().to_string()).join(":")
    }
}

fn triple() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

/// Downloads with the machine's lists of packages, or, where they are missing or old, with fresh ones of our own.
fn download(set: PackageSet, folder: &Path, archives: &Path) -> Result<(), Error> {
    let lists = format!("Dir::State::lists={}", folder.join("lists").display());
    let fetch = |extra: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(["-y", "-q", "--no-install-recommends", "--reinstall", "--download-only"])
            .args(["-o", &format!("Dir::Cache::archives={}", archives.display())])
            .args(["-o", "Debug::NoLocking=true"])
            .args(extra)
            .arg("install")
            .args(set.names)
            .env("DEBIAN_FRONTEND", "noninteractive");
        run(set, &mut command, "apt-get install --download-only")
    };
    if fetch(&[]).is_ok() {
        return Ok(());
    }
    fs::create_dir_all(folder.join("lists/partial")).map_err(|source| io_error("create", folder, source))?;
    run(set, Command::new("apt-get").args(["-q", "-o", &lists, "update"]), "apt-get update")?;
    fetch(&["-o", &lists])
}

fn run(set: PackageSet, command: &mut Command, name: &'static str) -> Result<(), Error> {
    let failed = |tail: String| Error::Packages { command: name, packages: set.names.join(", "), tail };
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(failed(tail(&String::from_utf8_lossy(&output.stderr), 10))),
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_an_interrupted_run_do_not_count() {
        let cache = tempfile::tempdir().expect("a folder for the test");
        fs::create_dir_all(cache.path().join("debian/root/usr/sbin")).expect("create");
        assert!(Toolchain::at(cache.path()).packages(POD_PACKAGES).is_none());
    }

    #[test]
    fn own_programs_are_found_before_those_of_packages_and_those_before_the_machines() {
        let packages = Packages { root: "/cache/debian/root".into() };
        let environment = packages.environment(Path::new("/cache/bin"));
        assert!(
            environment[0].starts_with("PATH=/cache/bin:/cache/debian/root/usr/sbin:"),
            "{environment:?}"
        );
        assert!(environment[0].ends_with(":/sbin:/bin"), "{environment:?}");
    }
}
