//! Metrics of reviews, under controller-runtime's names, which dashboards know.
//!
//! The label is the path, but only a served one: callers cannot invent labels.

use std::sync::LazyLock;
use std::time::Instant;

use admission::HOOKS;
use http::StatusCode;
use runtime::metrics::{Counters, Gauges, Histograms, add, usual_seconds};

use super::review::CONVERT;

struct Metrics {
    requests: Counters<2, String>,
    latency: Histograms<1>,
    in_flight: Gauges<1>,
}

static METRICS: LazyLock<Metrics> = LazyLock::new(|| {
    let metrics = Metrics {
        requests: Counters::default(),
        latency: Histograms::new_with_constructor(usual_seconds),
        in_flight: Gauges::default(),
    };
    add(|registry| {
        let help = "Reviews by path and HTTP status code";
        registry.register("controller_runtime_webhook_requests", help, metrics.requests.clone());
        let help = "How long in seconds the answer to a review takes";
        registry.register("controller_runtime_webhook_latency_seconds", help, metrics.latency.clone());
        let help = "How many reviews are being answered";
        registry.register("controller_runtime_webhook_requests_in_flight", help, metrics.in_flight.clone());
    });
    metrics
});

/// Adds every path with a count of zero, as upstream does from the start.
pub(super) fn introduce() {
    for path in paths() {
        for code in [StatusCode::OK, StatusCode::INTERNAL_SERVER_ERROR] {
            drop(METRICS.requests.get_or_create(&labels(path, code)));
        }
        drop(METRICS.latency.get_or_create(&[("webhook", path)]));
        drop(METRICS.in_flight.get_or_create(&[("webhook", path)]));
    }
}

/// Starts to count a request; `None` if the path serves no reviews.
pub(super) fn begin(path: &str) -> Option<Asked> {
    let path = paths().find(|known| *known == path)?;
    METRICS.in_flight.get_or_create(&[("webhook", path)]).inc();
    Some(Asked { path, began: Instant::now() })
}

/// A request in progress, until it is dropped.
pub(super) struct Asked {
    path: &'static str,
    began: Instant,
}

impl Asked {
    /// Counts the answer. If the caller did not wait for it, it is not counted.
    pub(super) fn answered(self, code: StatusCode) {
        METRICS.requests.get_or_create(&labels(self.path, code)).inc();
        let took = self.began.elapsed().as_secs_f64();
        METRICS.latency.get_or_create(&[("webhook", self.path)]).observe(took);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        METRICS.in_flight.get_or_create(&[("webhook", self.path)]).dec();
    }
}

fn paths() -> impl Iterator<Item = &'static str> {
    HOOKS.iter().map(|hook| hook.path).chain([CONVERT])
}

fn labels(path: &'static str, code: StatusCode) -> [(&'static str, String); 2] {
    [("webhook", path.to_owned()), ("code", code.as_str().to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> bool {
        runtime::metrics::render().lines().any(|found| found == line)
    }

    #[test]
    fn reviews_are_counted_by_path_and_code_and_nothing_else_is() {
        introduce();
        let path = "/mutate-federatedhpa";
        assert!(shown(&format!(
            r#"controller_runtime_webhook_requests_total{{webhook="{path}",code="200"}} 0"#
        )));
        let (asked, also) = (begin(path).expect("served"), begin(path).expect("served"));
        let in_flight = |count: u8| {
            shown(&format!(r#"controller_runtime_webhook_requests_in_flight{{webhook="{path}"}} {count}"#))
        };
        assert!(in_flight(2));
        asked.answered(StatusCode::UNAUTHORIZED);
        drop(also);
        assert!(in_flight(0), "also if the caller went away");
        for line in [
            r#"controller_runtime_webhook_requests_total{webhook="/mutate-federatedhpa",code="401"} 1"#,
            r#"controller_runtime_webhook_requests_total{webhook="/mutate-federatedhpa",code="200"} 0"#,
            r#"controller_runtime_webhook_latency_seconds_count{webhook="/mutate-federatedhpa"} 1"#,
            r#"controller_runtime_webhook_latency_seconds_count{webhook="/convert"} 0"#,
        ] {
            assert!(shown(line), "{line}");
        }
        for path in ["/", "/made-up", "/mutate-federatedhpa/", "/readyz"] {
            assert!(begin(path).is_none(), "{path}");
        }
    }
}
