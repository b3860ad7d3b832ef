//! What lies on disk, and starts that should not happen.

use std::os::unix::fs::PermissionsExt;

use crate::plane::{Plane, files, run};
use crate::stage::{Stage, Verdict};

/// A second start on a directory in use changes nothing in it.
pub(crate) async fn second_start(stage: &Stage) -> Verdict {
    let pki = stage.plane.data.join("pki");
    let before = files(&pki);
    // As an update that changes the names in the certificate would.
    let place = stage.plane.data.display().to_string();
    let (ended_well, said) = start_and_wait(&[
        "server",
        "--bind",
        "127.0.0.1:0",
        "--data-dir",
        &place,
        "--cert-extra-sans",
        "other.example.com",
    ])
    .await;
    if ended_well {
        return Err("it starts a second time".to_owned());
    }
    if files(&pki) != before {
        return Err("it rewrote keys or certificates of the one that runs".to_owned());
    }
    let last: String = said.lines().last().unwrap_or("").chars().take(110).collect();
    Ok(last)
}

/// An authority that cannot be read is not replaced.
pub(crate) async fn broken_authority(_: &Stage) -> Verdict {
    let plane = Plane::start(1024, &["--controllers", ""]).await;
    let (data, _dir) = plane.end();
    let place = data.display().to_string();
    for name in ["ca.key", "ca.crt"] {
        let path = data.join("pki").join(name);
        let whole = std::fs::read(&path).map_err(|error| error.to_string())?;
        std::fs::write(&path, b"half a file").map_err(|error| error.to_string())?;
        let (_, said) = start_and_wait(&["server", "--bind", "127.0.0.1:0", "--data-dir", &place]).await;
        let after = std::fs::read(&path).map_err(|error| error.to_string())?;
        if after != b"half a file" {
            return Err(format!("a new {name} took the place of one that cannot be read"));
        }
        if said.contains(" ready") {
            return Err(format!("it runs with a broken {name}"));
        }
        std::fs::write(&path, whole).map_err(|error| error.to_string())?;
    }
    Ok("it says so and ends".to_owned())
}

/// Runs a server that should end by itself; ends it if it does not.
async fn start_and_wait(arguments: &[&str]) -> (bool, String) {
    let child = tokio::process::Command::new(env!("CARGO_BIN_EXE_karmada"))
        .args(arguments)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the binary starts");
    match tokio::time::timeout(testkit::DEADLINE, child.wait_with_output()).await {
        Ok(Ok(output)) => (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()),
        _ => (true, "it runs: ready".to_owned() + " ready"),
    }
}

/// Nobody else on the machine reads keys, objects or the owner's socket.
pub(crate) async fn modes(stage: &Stage) -> Verdict {
    let mut open = Vec::new();
    let mut look = vec![stage.plane.data.clone()];
    while let Some(path) = look.pop() {
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            look.extend(
                std::fs::read_dir(&path)
                    .into_iter()
                    .flatten()
                    .filter_map(Result::ok)
                    .map(|entry| entry.path()),
            );
        }
        let public = path.extension().is_some_and(|extension| extension == "crt" || extension == "pub");
        let mode = meta.permissions().mode() & 0o077;
        // A directory that only its owner may enter hides what is in it.
        let hidden = path
            .parent()
            .and_then(|parent| std::fs::metadata(parent).ok())
            .is_some_and(|meta| meta.permissions().mode() & 0o077 == 0);
        if mode != 0 && !public && !hidden && !meta.is_symlink() {
            open.push(format!(
                "{} {mode:o}",
                path.strip_prefix(&stage.plane.data).unwrap_or(&path).display()
            ));
        }
    }
    if open.is_empty() { Ok("nothing for group and others".to_owned()) } else { Err(open.join(", ")) }
}

/// A backup is as private as the store.
pub(crate) async fn backup(stage: &Stage) -> Verdict {
    let file = stage.plane.folder("backup");
    let (target, place) = (file.display().to_string(), stage.plane.data.display().to_string());
    let (done, said) =
        tokio::task::spawn_blocking(move || run(&["backup", "--data-dir", &place, "--to", &target]))
            .await
            .map_err(|error| error.to_string())?;
    if !done {
        return Err(said.chars().take(150).collect());
    }
    let mode = std::fs::metadata(&file).map_err(|error| error.to_string())?.permissions().mode() & 0o777;
    if mode & 0o077 == 0 { Ok(format!("mode {mode:o}")) } else { Err(format!("mode {mode:o}")) }
}
