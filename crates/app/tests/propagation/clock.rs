//! A control plane whose clock can be set: the clock on the wall is moved for its process alone.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::plane::KARMADA;

/// The clock of a process that is started by [`Clock::program`].
pub(crate) struct Clock {
    folder: tempfile::TempDir,
}

impl Clock {
    /// Builds what moves the clock; the compiler that built this test is there.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("shim.rs");
        std::fs::write(&source, include_str!("clock/shim.rs")).expect("a file");
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let built = Command::new(compiler)
            .args(["--edition=2024", "--crate-type=cdylib", "-O", "-o"])
            .arg(folder.path().join("shim.so"))
            .arg(&source)
            .output()
            .expect("rustc runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let clock = Self { folder };
        std::fs::write(clock.file(), 0_i64.to_ne_bytes()).expect("a file");
        let script = format!(
            "#!/bin/sh\nLD_PRELOAD={} KARMADA_RS_TEST_CLOCK={} exec {KARMADA} \"$@\"\n",
            clock.folder.path().join("shim.so").display(),
            clock.file().display(),
        );
        std::fs::write(clock.program(), script).expect("a file");
        std::fs::set_permissions(clock.program(), std::fs::Permissions::from_mode(0o755))
            .expect("executable");
        clock
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// `karmada`, by this clock.
    pub(crate) fn program(&self) -> PathBuf {
        self.folder.path().join("karmada")
    }

    /// Moves it by so many seconds from the right time, at once.
    pub(crate) fn move_by(&self, seconds: i64) {
        let mut file = std::fs::OpenOptions::new().write(true).open(self.file()).expect("the file");
        file.write_all(&seconds.to_ne_bytes()).expect("written");
    }

    /// Fails unless programs see the clock move.
    pub(crate) fn prove(&self) {
        let year = || {
            let date = Command::new("date")
                .arg("+%Y")
                .env("LD_PRELOAD", self.folder.path().join("shim.so"))
                .env("KARMADA_RS_TEST_CLOCK", self.file())
                .output()
                .expect("date runs");
            String::from_utf8_lossy(&date.stdout).trim().parse::<i32>().expect("a year")
        };
        let before = year();
        self.move_by(3 * 366 * 24 * 3600);
        assert!(year() > before + 1, "the clock does not move");
        self.move_by(0);
        assert!(Path::new(KARMADA).exists());
    }
}
