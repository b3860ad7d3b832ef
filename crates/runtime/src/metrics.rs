//! The metrics of controllers and scheduler, under upstream's names.
//!
//! A process has one `/metrics` and so one registry. Each area keeps its metrics together in a `LazyLock` of its own,
//! filled by [`add`], and counts through it; [`render`] shows whatever has been added so far. `karmada server` puts
//! the text behind the API server's own.
//!
//! Labels are arrays of pairs, as in `[("result", "success")]`: they are few, and read like what is shown.

use std::sync::LazyLock;

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

/// Labels of one sample, in the order in which they are shown.
pub type Labels<const N: usize, V = &'static str> = [(&'static str, V); N];
/// Counters that differ by their labels. The library appends `_total` to their name.
pub type Counters<const N: usize, V = &'static str> = Family<Labels<N, V>, Counter>;
/// Histograms that differ by their labels.
pub type Histograms<const N: usize, V = &'static str> = Family<Labels<N, V>, Histogram, fn() -> Histogram>;

/// Gauges that differ by their labels.
pub type Gauges<const N: usize, V = &'static str> = Family<Labels<N, V>, Gauge>;

/// Adds the metrics of one area; to be called once each.
pub fn add<T>(metrics: impl FnOnce(&mut Registry) -> T) -> T {
    metrics(&mut REGISTRY.lock())
}

/// Returns all metrics as text that Prometheus reads, without the mark that ends a document.
pub fn render() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode_registry(&mut text, &REGISTRY.lock());
    text
}

/// Shows which program this is, as every component of upstream does. Fields that the build does not know are
/// left empty.
pub fn introduce() {
    static INTRODUCED: LazyLock<()> = LazyLock::new(|| {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let labels: Labels<8, String> = [
            ("git_version", format!("v{}", env!("CARGO_PKG_VERSION"))),
            ("git_commit", String::new()),
            ("git_short_commit", String::new()),
            ("git_tree_state", String::new()),
            ("build_date", String::new()),
            ("go_version", String::new()),
            ("compiler", "rustc".to_owned()),
            ("platform", format!("{}/{architecture}", std::env::consts::OS)),
        ];
        let info: Family<Labels<8, String>, Gauge> = Family::default();
        info.get_or_create(&labels).set(1);
        let help = "Always 1; the labels say which program this is";
        add(|registry| registry.register("karmada_build_info", help, info));
    });
    *INTRODUCED
}

/// Returns a histogram whose buckets begin with 1 ms and double, as most of upstream's that measure seconds.
pub fn seconds<const BUCKETS: u16>() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, BUCKETS))
}

/// Returns a histogram with the default buckets of Prometheus' library for Go.
pub fn usual_seconds() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}
