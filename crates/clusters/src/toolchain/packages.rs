//! The programs of real pods that come from Debian: fetched once and unpacked into the cache, never installed.
//!
//! `apt-get` only downloads, into a folder of ours, and `dpkg-deb` unpacks; so the machine stays as it is. What the packages need and the
//! machine has already, libraries above all, is taken from the machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Error, Toolchain, io_error, tail};

const NAMES: [&str; 7] = [
    "runc",
    "containernetworking-plugins",
    "busybox-static",
    "iptables",
    "nftables",
    "conntrack",
    "iproute2",
];

/// Where the unpacked packages are.
#[derive(Debug, Clone)]
pub struct Packages {
    root: PathBuf,
}

impl Toolchain {
    /// Returns the packages if they are there.
    pub fn packages(&self) -> Option<Packages> {
        let folder = self.root.join("debian");
        folder.join("complete").exists().then(|| Packages { root: folder.join("root") })
    }

    /// Says whether packages can be fetched here.
    pub fn can_fetch_packages(&self) -> bool {
        let known = |program: &str| {
            let mut command = Command::new(program);
            command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        self.packages().is_some() || (known("apt-get") && known("dpkg-deb"))
    }

    /// Fetches and unpacks the packages, unless that was done before.
    pub fn ensure_packages(&self) -> Result<Packages, Error> {
        let folder = self.root.join("debian");
        fs::create_dir_all(&folder).map_err(|source| io_error("create", &folder, source))?;
        let path = folder.join("lock");
        let lock = fs::File::create(&path).map_err(|source| io_error("create", &path, source))?;
        lock.lock().map_err(|source| io_error("lock", &path, source))?;
        if let Some(packages) = self.packages() {
            return Ok(packages);
        }
        eprintln!("clusters: fetching the Debian packages {}", NAMES.join(", "));
        let (archives, root) = (folder.join("archives"), folder.join("root"));
        // What an interrupted run left must not be taken for whole.
        let _ = (fs::remove_dir_all(&archives), fs::remove_dir_all(&root));
        for path in [&archives.join("partial"), &root] {
            fs::create_dir_all(path).map_err(|source| io_error("create", path, source))?;
        }
        download(&folder, &archives)?;
        for entry in fs::read_dir(&archives).map_err(|source| io_error("read", &archives, source))?.flatten()
        {
            if entry.path().extension().is_some_and(|extension| extension == "deb") {
                run(Command::new("dpkg-deb").arg("-x").arg(entry.path()).arg(&root), "dpkg-deb -x")?;
            }
        }
        // Debian makes these links when it installs, not in the package.
        for (link, to) in [("iptables", "iptables-nft"), ("ip6tables", "ip6tables-nft")] {
            let _ = std::os::unix::fs::symlink(to, root.join("usr/sbin").join(link));
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
        let candidates = [self.root.join("bin/busybox"), self.root.join("usr/bin/busybox")];
        candidates.into_iter().find(|path| path.exists()).unwrap_or_else(|| "/bin/busybox".into())
    }

    /// Returns what a process needs in its environment to find the programs, their libraries, and those in `first`.
    pub fn environment(&self, first: &Path) -> Vec<String> {
        let within = |places: &[&str]| {
            places.iter().map(|place| self.root.join(place).display().to_string()).collect::<Vec<_>>()
        };
        let mut path = vec![first.display().to_string()];
        path.extend(within(&["usr/sbin", "usr/bin", "sbin", "bin"]));
        path.push("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_string());
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        let libraries = within(&[&format!("usr/lib/{triple}"), &format!("lib/{triple}")]);
        vec![
            format!("PATH={}", path.join(":")),
            format!("XTABLES_LIBDIR={}/xtables", libraries[0]),
            format!("LD_LIBRARY_PATH={}", libraries.join(":")),
        ]
    }
}

/// Downloads with the machine's lists of packages, or, where they are missing or old, with fresh ones of our own.
fn download(folder: &Path, archives: &Path) -> Result<(), Error> {
    let lists = format!("Dir::State::lists={}", folder.join("lists").display());
    let fetch = |extra: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(["-y", "-q", "--no-install-recommends", "--reinstall", "--download-only"])
            .args(["-o", &format!("Dir::Cache::archives={}", archives.display())])
            .args(["-o", "Debug::NoLocking=true"])
            .args(extra)
            .arg("install")
            .args(NAMES)
            .env("DEBIAN_FRONTEND", "noninteractive");
        run(&mut command, "apt-get install --download-only")
    };
    if fetch(&[]).is_ok() {
        return Ok(());
    }
    fs::create_dir_all(folder.join("lists/partial")).map_err(|source| io_error("create", folder, source))?;
    run(Command::new("apt-get").args(["-q", "-o", &lists, "update"]), "apt-get update")?;
    fetch(&["-o", &lists])
}

fn run(command: &mut Command, name: &'static str) -> Result<(), Error> {
    let failed = |tail: String| Error::Packages { command: name, packages: NAMES.join(", "), tail };
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
        assert!(Toolchain::at(cache.path()).packages().is_none());
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
