//! What callers without a certificate show where a review asks the control plane: a text at the end of the path.
//!
//! Such a review tells whether somebody may read something, so it is answered to API servers only. A kube-apiserver shows a
//! certificate only if its administrator has said so, but it always asks at the path that its configuration has. That
//! configuration is printed by this program or made by the installer.

use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use cli::registration::{self, PASSWORD_FILE};

/// Shorter texts might be guessed.
const SHORTEST: usize = 20;

/// Returns the text in the directory of the certificate; it is made if there is none.
pub(super) fn load_or_create(dir: &Path) -> anyhow::Result<String> {
    let path = dir.join(PASSWORD_FILE);
    let shown = path.display();
    let made = registration::password();
    let created = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    match created {
        Ok(mut file) => {
            file.write_all(made.as_bytes()).with_context(|| format!("cannot write {shown}"))?;
            return Ok(made);
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists || path.exists() => {}
        Err(error) => {
            return Err(error).with_context(|| {
                format!(
                    "cannot write {shown}, with which API servers are told from strangers; hint: install again, put a file with \
                     {SHORTEST} random digits and small letters there, or name the authority of the API server's client \
                     certificate with --client-ca-file"
                )
            });
        }
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {shown}"))?;
    let text = text.trim();
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
    if !plain || text.len() < SHORTEST {
        bail!(
            "{shown} must hold at least {SHORTEST} digits and small letters; hint: delete it, and a new one is made"
        );
    }
    Ok(text.to_owned())
}

/// Compares in a time that does not depend on where the texts differ.
pub(super) fn is_same(known: &str, shown: &str) -> bool {
    let differing =
        known.bytes().zip(shown.bytes()).fold(0, |differing, (one, other)| differing | (one ^ other));
    !known.is_empty() && known.len() == shown.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let made = load_or_create(dir.path()).unwrap();
        assert_eq!(load_or_create(dir.path()).unwrap(), made);
        let path = dir.path().join(PASSWORD_FILE);
        std::fs::write(&path, "0123456789abcdefghij\n").unwrap();
        assert_eq!(load_or_create(dir.path()).unwrap(), "0123456789abcdefghij");
        for wrong in ["", "short", "0123456789ABCDEFGHIJ", "0123456789/abcdefghij"] {
            std::fs::write(&path, wrong).unwrap();
            assert!(load_or_create(dir.path()).is_err(), "{wrong}");
        }
        let error = format!("{:#}", load_or_create(&dir.path().join("nowhere")).unwrap_err());
        assert!(error.contains("--client-ca-file"), "{error}");
    }

    #[test]
    fn only_the_same_text_is_the_same() {
        assert!(is_same("abc", "abc") && !is_same("", ""));
        for other in ["", "ab", "abcd", "abd", "xbc"] {
            assert!(!is_same("abc", other), "{other}");
        }
    }
}
