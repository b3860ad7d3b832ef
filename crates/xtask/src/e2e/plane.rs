//! The control plane that the suite talks to: one server with its own store, several on one etcd behind a balancer of requests, or a
//! kube-apiserver with our three programs beside it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clusters::toolchain::{ETCD, KUBERNETES, Toolchain};

use super::fixtures::{FEATURES, Running, apply, free_port, listens};

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

impl Plane {
    /// Puts our programs beside a kube-apiserver, as administrators of it.
    pub(super) fn on_existing(programs: &Programs<'_>, lab: &Path, kubeconfig: PathBuf) -> Result<Self> {
        let Programs { toolchain, karmada, .. } = programs;
        let given = format!("--kubeconfig={}", kubeconfig.display());
        let place = |name: &str| lab.join(name).display().to_string();
        let (aggregated, webhook) = (free_port()?, free_port()?);
        let aggregated = [
            "aggregated".to_owned(),
            format!("--secure-port={aggregated}"),
            format!("--cert-dir={}", place("aggregated-certs")),
        ];
        let webhook = (
            ["webhook".to_owned(), format!("--cert-dir={}", place("webhook-certs"))],
            format!("--secure-port={webhook}"),
            format!("--url=https://127.0.0.1:{webhook}"),
        );
        let print = |arguments: &[&str]| -> Result<()> {
            let printed = Command::new(karmada).args(arguments).output().context("cannot run karmada")?;
            if !printed.status.success() {
                bail!("karmada {}: {}", arguments.join(" "), String::from_utf8_lossy(&printed.stderr));
            }
            apply(toolchain, &kubeconfig, &String::from_utf8_lossy(&printed.stdout))
        };
        for name in ["karmada-system", "karmada-cluster"] {
            let text = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}");
            apply(toolchain, &kubeconfig, &text)?;
        }
        print(&["crds"])?;
        let [role, port, certificates] = &aggregated;
        print(&[role, port, certificates, "--print-registration", "--external-name=localhost"])?;
        let ([role, certificates], port, url) = &webhook;
        print(&[role, certificates, "--print-configuration", url])?;

        let mut processes = Vec::new();
        let mut start = |name: &str, arguments: Vec<String>, word: &str| -> Result<()> {
            let log = lab.join(format!("{name}.log"));
            let mut process = Running::start(karmada, &arguments, &[], &log)?;
            process.wait(name, &log, || fs::read_to_string(&log).unwrap_or_default().contains(word))?;
            processes.push(process);
            Ok(())
        };
        let local = "--bind-address=127.0.0.1".to_owned();
        let mut arguments = aggregated.to_vec();
        arguments.extend([given.clone(), local.clone(), FEATURES.to_owned()]);
        arguments.push(format!("--data-dir={}", place("aggregated-data")));
        start("aggregated", arguments, "ready")?;
        // Charging quotas needs to know the certificate of the API server, which nobody here gives.
        let gates = format!("{FEATURES},FederatedQuotaEnforcement=false");
        let mut arguments =
            vec![role.clone(), certificates.clone(), port.clone(), given.clone(), local, gates];
        arguments.push("--health-probe-bind-address=0".to_owned());
        arguments.push("--allow-no-execute-taint-policy".to_owned());
        start("webhook", arguments, "ready")?;
        let arguments = [
            "controllers",
            &given,
            "--enable-no-execute-taint-eviction",
            "--enable-scheduler-estimator",
            "--controllers=*,hpaScaleTargetMarker,deploymentReplicasSyncer",
            FEATURES,
        ];
        start("controllers", arguments.map(String::from).to_vec(), "controllers run")?;
        let kubectl = toolchain.path(&KUBERNETES.program("kubectl"));
        let registered = || {
            let ask = ["get", "--raw", "/apis/cluster.karmada.io/v1alpha1/clusters"];
            Command::new(&kubectl).arg(&given).args(ask).output().is_ok_and(|answer| answer.status.success())
        };
        if let Some(aggregated) = processes.first_mut() {
            aggregated.wait("the aggregated server", &lab.join("aggregated.log"), registered)?;
        }
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
