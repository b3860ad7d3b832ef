//! What can be measured at the two ends of tunnels.

use std::sync::LazyLock;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use runtime::metrics::{Counters, Labels};

/// The control plane's end.
pub(crate) struct Plane {
    /// 1 for each cluster whose tunnel is open.
    pub(crate) up: Family<Labels<1, String>, Gauge>,
    pub(crate) opened: Counter,
    /// Requests on their way.
    pub(crate) streams: Gauge,
    /// By what became of them: `answered`, `absent`, `busy`, `lost`.
    pub(crate) requests: Counters<1>,
}

pub(crate) static PLANE: LazyLock<Plane> = LazyLock::new(|| {
    let plane = Plane {
        up: Family::default(),
        opened: Counter::default(),
        streams: Gauge::default(),
        requests: Family::default(),
    };
    runtime::metrics::add(|registry| {
        registry.register("karmada_tunnel_up", "1 if the agent's tunnel is open", plane.up.clone());
        registry.register("karmada_tunnel_opened", "Tunnels that agents opened", plane.opened.clone());
        registry.register(
            "karmada_tunnel_streams",
            "Requests on their way to members",
            plane.streams.clone(),
        );
        let help = "Requests to members through tunnels, by what became of them";
        registry.register("karmada_tunnel_requests", help, plane.requests.clone());
    });
    plane
});

impl Plane {
    pub(crate) fn count(&self, result: &'static str) {
        self.requests.get_or_create(&[("result", result)]).inc();
    }

    pub(crate) fn is_up(&self, cluster: &str, up: bool) {
        let labels = [("member_cluster", cluster.to_owned())];
        if up {
            self.up.get_or_create(&labels).set(1);
        } else {
            self.up.remove(&labels);
        }
    }
}

/// The agent's end.
pub(crate) struct Agent {
    pub(crate) up: Gauge,
    /// Servers that there are.
    pub(crate) servers: Gauge,
    /// By what became of them: `opened`, `held`, `refused`, `failed`.
    pub(crate) attempts: Counters<1>,
    pub(crate) streams: Gauge,
    /// By what became of them: `answered`, `switched`, `refused`, `busy`, `failed`.
    pub(crate) requests: Counters<1>,
}

pub(crate) static AGENT: LazyLock<Agent> = LazyLock::new(|| {
    let agent = Agent {
        up: Gauge::default(),
        servers: Gauge::default(),
        attempts: Family::default(),
        streams: Gauge::default(),
        requests: Family::default(),
    };
    runtime::metrics::add(|registry| {
        let help = "Servers of the control plane to which a tunnel is open";
        registry.register("karmada_agent_tunnel_up", help, agent.up.clone());
        let help = "Servers of the control plane that the agent knows of";
        registry.register("karmada_agent_tunnel_servers", help, agent.servers.clone());
        let help = "Attempts to open the tunnel, by what became of them";
        registry.register("karmada_agent_tunnel_attempts", help, agent.attempts.clone());
        let help = "Requests of the control plane on their way to the member";
        registry.register("karmada_agent_tunnel_streams", help, agent.streams.clone());
        let help = "Requests of the control plane to the member, by what became of them";
        registry.register("karmada_agent_tunnel_requests", help, agent.requests.clone());
    });
    agent
});

impl Agent {
    pub(crate) fn count(&self, result: &'static str) {
        self.requests.get_or_create(&[("result", result)]).inc();
    }

    pub(crate) fn is_up(&self, tunnels: usize, servers: usize) {
        self.up.set(i64::try_from(tunnels).unwrap_or(i64::MAX));
        self.servers.set(i64::try_from(servers).unwrap_or(i64::MAX));
    }

    pub(crate) fn tried(&self, result: &'static str) {
        self.attempts.get_or_create(&[("result", result)]).inc();
    }
}

/// Counts something in until it is dropped.
pub(crate) struct Counted(Gauge);

impl Counted {
    pub(crate) fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
