//! The settings of failover: upstream's flags and defaults, and the limit that halts evictions.

use std::time::Duration;

use api::policy::PurgeMode;

use super::descheduler;
use super::outage::Limits;

/// The settings of failover.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `--enable-taint-manager`
    pub taint_manager: bool,
    /// `--enable-no-execute-taint-eviction`
    pub evict: bool,
    /// `--no-execute-taint-eviction-purge-mode`
    pub purge_mode: PurgeMode,
    /// `--resource-eviction-rate`
    pub evictions_per_second: f64,
    /// `--graceful-eviction-timeout`
    pub graceful_timeout: Duration,
    /// `--eviction-halt-percent`
    pub halt_percent: u8,
    /// `--eviction-halt-clusters`
    pub halt_clusters: usize,
    pub descheduler: descheduler::Settings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            taint_manager: true,
            evict: false,
            purge_mode: PurgeMode::Gracefully,
            evictions_per_second: 0.5,
            graceful_timeout: Duration::from_secs(600),
            halt_percent: 55,
            halt_clusters: 3,
            descheduler: descheduler::Settings::default(),
        }
    }
}

impl Settings {
    /// Returns what is wrong with it, in terms of the flags.
    pub fn check(&self) -> Result<(), String> {
        if !self.evictions_per_second.is_finite() || self.evictions_per_second < 0.0 {
            return Err("--resource-eviction-rate must be greater than or equal to 0".to_owned());
        }
        let known = matches!(self.purge_mode, PurgeMode::Gracefully | PurgeMode::Directly);
        if self.evict && !known {
            let mode = self.purge_mode.as_str();
            return Err(format!(
                "--no-execute-taint-eviction-purge-mode is {mode:?}; it must be Gracefully or Directly"
            ));
        }
        Ok(())
    }

    pub(super) fn limits(&self) -> Limits {
        Limits { percent: self.halt_percent, clusters: self.halt_clusters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_the_name_of_its_flag() {
        assert_eq!(Settings::default().check(), Ok(()));
        assert_eq!(
            Settings { evictions_per_second: 0.0, ..Settings::default() }.check(),
            Ok(()),
            "nobody is evicted"
        );
        for rate in [-0.1, f64::NAN, f64::INFINITY] {
            let odd = Settings { evictions_per_second: rate, ..Settings::default() };
            assert!(odd.check().unwrap_err().starts_with("--resource-eviction-rate"));
        }
        let never = Settings { purge_mode: PurgeMode::Never, ..Settings::default() };
        assert_eq!(never.check(), Ok(()), "as upstream, it is looked at only where it counts");
        assert!(Settings { evict: true, ..never }.check().unwrap_err().contains("\"Never\""));
    }
}
