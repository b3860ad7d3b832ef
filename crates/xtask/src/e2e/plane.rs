//! The control plane that the suite talks to: one server with its own store, or several on one etcd behind a balancer of requests.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clusters::toolchain::{ETCD, Toolchain};

use super::fixtures::{FEATURES, Running, free_port, listens};

/// An address that only this machine reaches, with a port that is free.
pub(super) const LOOPBACK: &str = "127.0.0.1:0";

/// Our control plane. It ends with its owner.
pub(super) struct Plane {
    pub(super) kubeconfig: PathBuf,
    _processes: Vec<Running>,
}

/// The programs that it is made of.
pub(super) struct Programs<'a> {
    pub(super) toolchain: &'a Toolchain,
    pub(super) karmada: &'a Path,
    pub(super) balancer: &'a Path,
}

impl Plane {
    /// Starts it. One server listens at `bind`; several have addresses of their own, behind the balancer's.
    pub(super) fn start(programs: &Programs<'_>, lab: &Path, servers: u8, bind: &str) -> Result<Self> {
        if servers > 1 {
            return Self::several(programs, lab, servers);
        }
        let data = lab.join("data");
        let process = server(programs.karmada, &data, &lab.join("server.log"), bind, &[])?;
        Ok(Self { kubeconfig: data.join("karmada.kubeconfig"), _processes: vec![process] })
    }

    /// Starts servers that are one control plane. The kubeconfig is that of the first, with the address of the balancer.
    fn several(programs: &Programs<'_>, lab: &Path, servers: u8) -> Result<Self> {
        let (etcd, endpoint) = etcd(programs.toolchain, lab)?;
        let mut processes = vec![etcd];
        let (mut addresses, mut urls) = (Vec::new(), Vec::new());
        for number in 1..=servers {
            let data = lab.join(format!("data-{number}"));
            let log = lab.join(format!("server-{number}.log"));
            let further = ["--store=etcd".to_owned(), format!("--etcd-servers={endpoint}")];
            processes.push(server(programs.karmada, &data, &log, LOOPBACK, &further)?);
            let url = url(&data.join("karmada.kubeconfig"))?;
            addresses.push(url.trim_start_matches("https://").to_owned());
            urls.push(url);
        }
        let first = lab.join("data-1");
        let (place, log) = (format!("127.0.0.1:{}", free_port()?), lab.join("balancer.log"));
        let mut arguments = vec![place.clone(), first.join("pki").display().to_string()];
        arguments.extend(addresses);
        let mut balancer = Running::start(programs.balancer, &arguments, &[], &log)?;
        balancer.wait("the balancer", &log, || {
            fs::read_to_string(&log).unwrap_or_default().contains("listening")
        })?;
        processes.push(balancer);
        let kubeconfig = lab.join("karmada.kubeconfig");
        let text =
            fs::read_to_string(first.join("karmada.kubeconfig")).context("cannot read a kubeconfig")?;
        fs::write(&kubeconfig, text.replace(&urls[0], &format!("https://{place}")))
            .context("cannot write a kubeconfig")?;
        println!("{servers} servers on one etcd; {} says how many requests each got", log.display());
        Ok(Self { kubeconfig, _processes: processes })
    }
}

fn server(program: &Path, data: &Path, log: &Path, bind: &str, further: &[String]) -> Result<Running> {
    let mut arguments = [
        "server",
        &format!("--bind={bind}"),
        "--allow-no-execute-taint-policy",
        "--enable-no-execute-taint-eviction",
        "--enable-scheduler-estimator",
        "--controllers=*,hpaScaleTargetMarker,deploymentReplicasSyncer",
        FEATURES,
        &format!("--data-dir={}", data.display()),
    ]
    .map(String::from)
    .to_vec();
    arguments.extend_from_slice(further);
    let mut process = Running::start(program, &arguments, &[], log)?;
    process.wait("karmada server", log, || fs::read_to_string(log).unwrap_or_default().contains("ready"))?;
    Ok(process)
}

fn etcd(toolchain: &Toolchain, lab: &Path) -> Result<(Running, String)> {
    toolchain.ensure(&[&ETCD])?;
    let (port, peer, log) = (free_port()?, free_port()?, lab.join("etcd.log"));
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
    let arguments = [
        "--name=e2e".to_owned(),
        format!("--data-dir={}", lab.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=e2e={peer}"),
        "--log-level=warn".to_owned(),
        // Nothing here outlives the run.
        "--unsafe-no-fsync".to_owned(),
    ];
    let mut process = Running::start(&toolchain.path(&ETCD.program("etcd")), &arguments, &[], &log)?;
    // It opens the port when it has a leader, not before.
    process.wait("etcd", &log, || listens(port))?;
    Ok((process, client))
}

/// Returns the address in a kubeconfig that has one.
fn url(kubeconfig: &Path) -> Result<String> {
    let text =
        fs::read_to_string(kubeconfig).with_context(|| format!("cannot read {}", kubeconfig.display()))?;
    let line = text.lines().find_map(|line| line.trim_start_matches([' ', '-']).strip_prefix("server: "));
    Ok(line.with_context(|| format!("{} names no server", kubeconfig.display()))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_kubeconfig_is_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("kubeconfig");
        fs::write(&file, "clusters:\n- cluster:\n    server: https://127.0.0.1:7\n  name: x\n")
            .expect("written");
        assert_eq!(url(&file).expect("an address"), "https://127.0.0.1:7");
        fs::write(&file, "clusters: []\n").expect("written");
        assert!(url(&file).expect_err("nothing").to_string().ends_with("names no server"));
    }
}
