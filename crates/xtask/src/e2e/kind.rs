//! Clusters on request, for specs that make clusters with kind. The suite is compiled with a module of ours in kind's place
//! (`crates/clusters/src/toolchain/kind`), which asks at a socket; here the requests are answered, one line each:
//!
//! | Request | Answer |
//! |---|---|
//! | `create NAME KUBECONFIG` | `ok` once the cluster is ready and its kubeconfig is written |
//! | `address NAME` | `ok IP`: the API server listens there, at port 6443 |
//! | `delete NAME` | `ok` |
//!
//! Anything else, and whatever goes wrong, is answered by a line that says what. The clusters end with us.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::Ipv4Addr,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, Result, bail};

use super::network::ForPods;
use crate::{
    ci::fleet::{Fleet, Programs},
    workspace::Workspace,
};

/// Tells the suite where the socket is.
pub(super) const SOCKET_VARIABLE: &str = "KARMADA_RS_KIND";

/// Port of a new cluster's API server; the suite insists on it, so each cluster has an address of its own.
const PORT: u16 = 6443;

struct Kind {
    workspace: Workspace,
    programs: Programs,
    for_pods: ForPods,
    clusters: BTreeMap<String, (Fleet, Ipv4Addr)>,
    made: u8,
}

/// Answers requests at `socket` until this program ends.
pub(super) fn serve(socket: &Path, workspace: Workspace, for_pods: ForPods) -> Result<()> {
    let _ = fs::remove_file(socket);
    let listener =
        UnixListener::bind(socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
    // A thread that lives as long as the program: clusters die with the thread that started them.
    thread::spawn(move || {
        let programs = Programs::build_in_background(for_pods.arguments().next().is_some());
        let mut kind = Kind { workspace, programs, for_pods, clusters: BTreeMap::new(), made: 0 };
        for stream in listener.incoming().flatten() {
            kind.answer(stream);
        }
    });
    Ok(())
}

impl Kind {
    fn answer(&mut self, stream: UnixStream) {
        let mut line = String::new();
        let mut reader = BufReader::new(stream);
        if reader.read_line(&mut line).is_err() {
            return; // nobody waits for an answer
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["create", name, kubeconfig] => {
                self.create(name, Path::new(kubeconfig)).map(|()| "ok".to_string())
            }
            ["address", name] => self.address(name).map(|address| format!("ok {address}")),
            ["delete", name] => {
                self.clusters.remove(name); // dropping ends it
                Ok("ok".to_string())
            }
            _ => Ok(format!("not understood: {}", line.trim())),
        };
        // One line, whatever is in the error.
        let answer = answer.unwrap_or_else(|error| format!("error: {error:#}")).replace('\n', " ");
        let _ = writeln!(reader.get_mut(), "{answer}");
    }

    fn create(&mut self, name: &str, kubeconfig: &Path) -> Result<()> {
        self.made = self.made.wrapping_add(1);
        let address = own_address(std::process::id(), self.made);
        let place = format!("{address}:{PORT}");
        let mut wanted = vec!["--member", name, "--address", &place, "--like-kind"];
        wanted.extend(self.for_pods.arguments());
        let folder = format!("e2e-{}-{}", std::process::id(), self.made);
        let Some(fleet) = Fleet::at(&self.workspace, &self.programs, &wanted, &folder)? else {
            bail!("there is no Go toolchain to build clusters with");
        };
        let from = fleet.dir().join(format!("{name}.kubeconfig"));
        let text = fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
        write_kubeconfig(kubeconfig, &as_kind_names_it(&text, name))?;
        self.clusters.insert(name.to_string(), (fleet, address));
        Ok(())
    }

    fn address(&self, name: &str) -> Result<Ipv4Addr> {
        let (_, address) = self.clusters.get(name).with_context(|| format!("there is no cluster {name}"))?;
        Ok(*address)
    }
}

/// Returns an address of the loopback network that no other run uses at the same time.
fn own_address(process: u32, made: u8) -> Ipv4Addr {
    let [.., high, low] = process.to_be_bytes();
    // Not 127.0.0.x, where others listen; not x.x.x.0 and x.x.x.255.
    Ipv4Addr::new(127, 64 | (high & 63), low, 1 + made % 254)
}

/// kind calls cluster, user and context of `name` alike: `kind-<name>`.
fn as_kind_names_it(kubeconfig: &str, name: &str) -> String {
    let own = format!(": {name}");
    let line = |line: &str| match line.strip_suffix(&own) {
        Some(start) => format!("{start}: kind-{name}\n"),
        None => format!("{line}\n"),
    };
    kubeconfig.lines().map(line).collect()
}

/// Writes a file that holds a key.
fn write_kubeconfig(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let folder: PathBuf = path.parent().map(Path::to_path_buf).unwrap_or_default();
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut file = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot create {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_user_and_context_are_called_as_kind_calls_them() {
        let text = "clusters:\n- name: m\n  cluster:\n    server: https://127.0.0.1:1\ncontexts:\n- name: m\n  context:\n    cluster: m\n    user: m\ncurrent-context: m\n";
        let changed = as_kind_names_it(text, "m");
        assert_eq!(changed.matches(": kind-m\n").count(), 5);
        assert!(changed.contains("server: https://127.0.0.1:1\n"));
    }

    #[test]
    fn addresses_are_loopback_and_differ() {
        assert!(own_address(u32::MAX, 255).is_loopback());
        assert_ne!(own_address(7, 1), own_address(7, 2));
        assert_ne!(own_address(7, 1), own_address(8, 1));
        assert_ne!(own_address(0, 0).octets()[1], 0);
    }
}
