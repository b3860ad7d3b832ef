//! Generators of services and ingresses.

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::{Creation, Made, Name};

/// Create a service using a specified subcommand.
#[derive(Debug, Clone, Args)]
pub struct Service {
    #[command(flatten)]
    pub creation: Creation,
    #[command(subcommand)]
    pub command: ServiceCommand,
}

#[derive(Debug, Clone, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one in the life of the process")]
pub enum ServiceCommand {
    Clusterip(ClusterIp),
    Externalname(ExternalName),
    Loadbalancer(LoadBalancer),
    Nodeport(NodePort),
}

/// Ports of a service.
#[derive(Debug, Clone, Default, Args)]
pub struct Ports {
    /// Port pairs, as PORT:TARGET-PORT; may be repeated.
    #[arg(long, value_name = "PORT[:TARGET]", value_delimiter = ',')]
    pub tcp: Vec<String>,
}

/// Create a ClusterIP service.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Port 80, handed on to port 8080 of pods with label app=web
  karmadactl create service clusterip web --tcp=80:8080

  # A service without an address
  karmadactl create service clusterip web --clusterip=None")]
pub struct ClusterIp {
    #[command(flatten)]
    pub name: Name,
    #[command(flatten)]
    pub ports: Ports,
    /// Assign your own ClusterIP or set to None for a headless service.
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    pub clusterip: String,
    #[command(flatten)]
    pub creation: Creation,
}

/// Create an ExternalName service.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Another name of a host outside
  karmadactl create service externalname db --external-name=db.example.com")]
pub struct ExternalName {
    #[command(flatten)]
    pub name: Name,
    #[command(flatten)]
    pub ports: Ports,
    /// External name of service.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub external_name: String,
    #[command(flatten)]
    pub creation: Creation,
}

/// Create a LoadBalancer service.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Port 80, balanced
  karmadactl create service loadbalancer web --tcp=80:8080")]
pub struct LoadBalancer {
    #[command(flatten)]
    pub name: Name,
    #[command(flatten)]
    pub ports: Ports,
    #[command(flatten)]
    pub creation: Creation,
}

/// Create a NodePort service.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Port 30080 of every node
  karmadactl create service nodeport web --tcp=80:8080 --node-port=30080")]
pub struct NodePort {
    #[command(flatten)]
    pub name: Name,
    #[command(flatten)]
    pub ports: Ports,
    /// Port used to expose the service on each node in a cluster.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub node_port: u32,
    #[command(flatten)]
    pub creation: Creation,
}

impl Ports {
    fn list(&self, node_port: u32) -> anyhow::Result<Vec<Value>> {
        self.tcp.iter().map(|text| port(text, node_port)).collect()
    }
}

fn port(text: &str, node_port: u32) -> anyhow::Result<Value> {
    let (port, target) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| -> anyhow::Result<u32> {
        let number = text.parse::<u32>().ok().filter(|number| *number <= 65535);
        number.ok_or_else(|| {
            let quoted = apimachinery::go::quote(text);
            match text.parse::<u64>() {
                Ok(_) => anyhow!("strconv.ParseUint: parsing {quoted}: value out of range"),
                Err(_) => anyhow!("invalid port {quoted}: a port is a number up to 65535"),
            }
        })
    };
    let port = number(port)?;
    let target = match target.parse::<u32>() {
        Ok(_) => Value::from(number(target)?),
        // The name of a container's port.
        Err(_) if !target.is_empty() && target.len() <= 15 => Value::from(target),
        Err(_) => {
            bail!("invalid target port {}: a number or the name of a port", apimachinery::go::quote(target))
        }
    };
    let mut object =
        json!({"name": text.replace(':', "-"), "port": port, "protocol": "TCP", "targetPort": target});
    if node_port > 0 {
        object["nodePort"] = node_port.into();
    }
    Ok(object)
}

fn service(name: &str, kind: &str, ports: Vec<Value>, failed: &'static str) -> Made {
    let mut spec = json!({"selector": {"app": name}, "type": kind});
    if !ports.is_empty() {
        spec["ports"] = ports.into();
    }
    let object = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": spec,
        "status": {"loadBalancer": {}},
    });
    Made { object, plural: "services", namespaced: true, failed }
}

impl Service {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        match &self.command {
            ServiceCommand::Clusterip(service) => service.creation.create(service.make()?).await,
            ServiceCommand::Externalname(service) => service.creation.create(service.make()?).await,
            ServiceCommand::Loadbalancer(service) => service.creation.create(service.make()?).await,
            ServiceCommand::Nodeport(service) => service.creation.create(service.make()?).await,
        }
    }
}

const NO_PORTS: &str = "at least one tcp port specifier must be provided";

impl ClusterIp {
    fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("service clusterip")?;
        if self.clusterip == "None" && !self.ports.tcp.is_empty() {
            bail!("can not map ports with clusterip=None");
        }
        if self.clusterip != "None" && self.ports.tcp.is_empty() {
            bail!(NO_PORTS);
        }
        let mut made =
            service(name, "ClusterIP", self.ports.list(0)?, "failed to create ClusterIP service: ");
        if !self.clusterip.is_empty() {
            made.object["spec"]["clusterIP"] = self.clusterip.clone().into();
        }
        Ok(made)
    }
}

impl ExternalName {
    fn make(&self) -> anyhow::Result<Made> {
        super::required(&[("external-name", !self.external_name.is_empty())])?;
        let name = self.name.get("service externalname")?;
        let failed = "failed to create ExternalName service: ";
        let mut made = service(name, "ExternalName", self.ports.list(0)?, failed);
        made.object["spec"]["externalName"] = self.external_name.clone().into();
        Ok(made)
    }
}

impl LoadBalancer {
    fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("service loadbalancer")?;
        if self.ports.tcp.is_empty() {
            bail!(NO_PORTS);
        }
        Ok(service(name, "LoadBalancer", self.ports.list(0)?, "failed to create LoadBalancer service: "))
    }
}

impl NodePort {
    fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("service nodeport")?;
        if self.ports.tcp.is_empty() {
            bail!(NO_PORTS);
        }
        let ports = self.ports.list(self.node_port)?;
        Ok(service(name, "NodePort", ports, "failed to create NodePort service: "))
    }
}

/// Create an ingress with the specified name.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # One path, with a certificate
  karmadactl create ingress web --rule='shop.example/cart=web:8080,tls=shop'

  # Everything below a path
  karmadactl create ingress web --class=public --rule='shop.example/*=web:http'")]
pub struct Ingress {
    #[command(flatten)]
    pub name: Name,
    /// Rule in format host/path=service:port[,tls[=secretname]]; a path with * at its end stands for all below; may be repeated.
    #[arg(long, value_name = "RULE")]
    pub rule: Vec<String>,
    /// Ingress Class to be used.
    #[arg(long, value_name = "CLASS", default_value = "")]
    pub class: String,
    /// Default service for backend, in format of svcname:port.
    #[arg(long, value_name = "SERVICE:PORT", default_value = "")]
    pub default_backend: String,
    /// Annotation to insert in the ingress object, in the format annotation=value; may be repeated.
    #[arg(long, value_name = "ANNOTATION=VALUE")]
    pub annotation: Vec<String>,
    #[command(flatten)]
    pub creation: Creation,
}

/// A parsed `--rule`.
#[derive(Debug, PartialEq)]
struct Rule<'a> {
    host: &'a str,
    path: &'a str,
    service: &'a str,
    port: &'a str,
    /// The secret; empty for the default certificate of the ingress.
    tls: Option<&'a str>,
}

impl<'a> Rule<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let word = |text: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        };
        let (rest, tls) = match text.rsplit_once(",tls") {
            Some((rest, "")) => (rest, Some("")),
            Some((rest, secret)) => (rest, Some(secret.strip_prefix('=').filter(|secret| word(secret))?)),
            None => (text, None),
        };
        let (address, backend) = rest.rsplit_once('=')?;
        let (service, port) = backend.split_once(':')?;
        let slash = address.find('/')?;
        let (host, path) = address.split_at(slash);
        let host_fits = host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '*'));
        (host_fits && word(service) && word(port)).then_some(Self { host, path, service, port, tls })
    }
}

fn backend(service: &str, port: &str) -> Value {
    let port = match port.parse::<u32>() {
        Ok(number) => json!({"number": number}),
        Err(_) => json!({"name": port}),
    };
    json!({"service": {"name": service, "port": port}})
}

impl Ingress {
    pub(super) fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("ingress")?;
        if self.rule.is_empty() && self.default_backend.is_empty() {
            bail!(
                "not enough information provided: every ingress has to either specify a default-backend (which catches all \
                 traffic) or a list of rules (which catch specific paths)"
            );
        }
        let mut spec = Map::new();
        if !self.default_backend.is_empty() {
            let Some((service, port)) =
                self.default_backend.split_once(':').filter(|(a, b)| !a.is_empty() && !b.is_empty())
            else {
                bail!("default-backend should be in format servicename:serviceport");
            };
            spec.insert("defaultBackend".to_owned(), backend(service, port));
        }
        if !self.class.is_empty() {
            spec.insert("ingressClassName".to_owned(), self.class.clone().into());
        }
        let (rules, tls) = self.rules()?;
        if !rules.is_empty() {
            spec.insert("rules".to_owned(), rules.into());
        }
        if !tls.is_empty() {
            spec.insert("tls".to_owned(), tls.into());
        }
        let mut metadata = json!({"name": name});
        for pair in &self.annotation {
            let Some((key, value)) = pair.split_once('=') else {
                bail!("annotation {pair} is invalid and should be in format key=[value]");
            };
            metadata["annotations"][key] = value.into();
        }
        let object = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": metadata,
            "spec": spec,
            "status": {"loadBalancer": {}},
        });
        Ok(Made { object, plural: "ingresses", namespaced: true, failed: "failed to create ingress: " })
    }

    /// Rules of the same host are merged, and so are hosts with the same secret.
    fn rules(&self) -> anyhow::Result<(Vec<Value>, Vec<Value>)> {
        let mut rules: Vec<(String, Vec<Value>)> = Vec::new();
        let mut tls: Vec<(String, Vec<String>)> = Vec::new();
        for text in &self.rule {
            let Some(rule) = Rule::parse(text) else {
                bail!(
                    "rule {text} is invalid and should be in format host/path=svcname:svcport[,tls[=secret]]"
                );
            };
            let (path, kind) = match rule.path.strip_suffix('*') {
                Some(path) => (path, "Prefix"),
                None => (rule.path, "Exact"),
            };
            let path = json!({"backend": backend(rule.service, rule.port), "path": path, "pathType": kind});
            match rules.iter_mut().find(|(host, _)| host == rule.host) {
                Some((_, paths)) => paths.push(path),
                None => rules.push((rule.host.to_owned(), vec![path])),
            }
            if let Some(secret) = rule.tls {
                let host = (!rule.host.is_empty()).then(|| rule.host.to_owned());
                match tls.iter_mut().find(|(known, _)| known == secret) {
                    Some((_, hosts)) => hosts.extend(host.filter(|host| !hosts.contains(host))),
                    None => tls.push((secret.to_owned(), host.into_iter().collect())),
                }
            }
        }
        let rules = rules.into_iter().map(|(host, paths)| {
            let mut rule = json!({"http": {"paths": paths}});
            if !host.is_empty() {
                rule["host"] = host.into();
            }
            rule
        });
        let tls = tls.into_iter().map(|(secret, hosts)| {
            let mut entry = json!({});
            if !hosts.is_empty() {
                entry["hosts"] = hosts.into();
            }
            if !secret.is_empty() {
                entry["secretName"] = secret.into();
            }
            entry
        });
        Ok((rules.collect(), tls.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_an_ingress_are_taken_apart() {
        let rule = |host, path, service, port, tls| Some(Rule { host, path, service, port, tls });
        assert_eq!(Rule::parse("a.b/c=s:80"), rule("a.b", "/c", "s", "80", None));
        assert_eq!(Rule::parse("/*=s:http,tls"), rule("", "/*", "s", "http", Some("")));
        assert_eq!(Rule::parse("*.a/x=y=s:1,tls=t"), rule("*.a", "/x=y", "s", "1", Some("t")));
        for bad in ["x", "a=b:1", "a/=b", "a/=:1", "a/=b:1,tls=", "a b/=c:1"] {
            assert_eq!(Rule::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn ports_have_numbers_or_names() {
        assert_eq!(
            port("80", 0).expect("good"),
            json!({"name": "80", "port": 80, "protocol": "TCP", "targetPort": 80})
        );
        assert_eq!(port("80:http", 30000).expect("good")["nodePort"], 30000);
        for bad in ["", "x", "80:", "70000", "80:a-name-that-is-too-long"] {
            assert!(port(bad, 0).is_err(), "{bad}");
        }
    }
}
