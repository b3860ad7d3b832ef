//! A network of its own for a part of a test, with links to the machine's that can be cut. Needs root.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::process::Speaks;
use testkit::{DEADLINE, Process, run};

/// One link between the machine and the network.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    /// What the machine calls it, and its address there.
    name: String,
    outside: String,
    /// The network's end, and its address there.
    inner: &'static str,
    pub(crate) inside: String,
}

impl Link {
    /// Returns a link that no other test has: each has numbers of its own, and may run in several processes at once.
    pub(crate) fn new(number: u32, inner: &'static str) -> Self {
        const IN_A_PROCESS: u32 = 16;
        const PROCESSES: u32 = 1024;
        assert!(number < IN_A_PROCESS, "a process has {IN_A_PROCESS} links");
        let process = std::process::id() % PROCESSES;
        // Four addresses for each link.
        let first = (process * IN_A_PROCESS + number) * 4;
        let address = |offset: u32| format!("10.199.{}.{}", first / 256, first % 256 + offset);
        Self { name: format!("karmada-{process}-{number}"), outside: address(1), inner, inside: address(2) }
    }
}

/// A network; it and its links are gone with its only process.
pub(crate) struct Network {
    holder: Child,
}

impl Network {
    pub(crate) fn new(links: &[Link]) -> Self {
        let holder = Command::new("unshare")
            .args(["--net", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .expect("a network namespace");
        let network = Self { holder };
        let own = std::fs::read_link("/proc/self/ns/net").expect("our network");
        let there = format!("/proc/{}/ns/net", network.id());
        let deadline = Instant::now() + DEADLINE;
        // The process exists before it has left our network.
        while std::fs::read_link(&there).ok().is_none_or(|there| there == own) {
            assert!(Instant::now() < deadline, "{there} does not become a network of its own");
            std::thread::sleep(Duration::from_millis(5));
        }
        network.inside(&["link", "set", "lo", "up"]);
        for link in links {
            let ip = |arguments: &[&str]| drop(run("ip", arguments));
            ip(&[
                "link",
                "add",
                &link.name,
                "type",
                "veth",
                "peer",
                "name",
                link.inner,
                "netns",
                &network.id(),
            ]);
            ip(&["address", "add", &format!("{}/30", link.outside), "dev", &link.name]);
            ip(&["link", "set", &link.name, "up"]);
            network.inside(&["address", "add", &format!("{}/30", link.inside), "dev", link.inner]);
            network.mend(link);
        }
        network
    }

    fn id(&self) -> String {
        self.holder.id().to_string()
    }

    fn inside(&self, arguments: &[&str]) {
        drop(run("nsenter", &[&["--net", "--target", &self.id(), "ip"], arguments].concat()));
    }

    /// From now on the link swallows everything, without a word to either side.
    pub(crate) fn cut(&self, link: &Link) {
        self.inside(&["link", "set", link.inner, "down"]);
    }

    /// The link carries everything.
    pub(crate) fn mend(&self, link: &Link) {
        self.inside(&["link", "set", link.inner, "up"]);
    }

    /// Runs a program inside.
    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> Process {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.id(), program]).args(arguments).stdin(Stdio::null());
        Process::spawn(command, Speaks::Stderr)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
