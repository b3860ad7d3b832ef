//! The settings of autoscaling by metrics: upstream's flags and defaults.

use std::time::Duration;

use jiff::SignedDuration;
use workloads::autoscaling;

/// The settings of autoscaling by metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `--horizontal-pod-autoscaler-sync-period`
    pub sync_period: Duration,
    /// `--horizontal-pod-autoscaler-downscale-stabilization`
    pub downscale_stabilization: Duration,
    /// `--horizontal-pod-autoscaler-tolerance`
    pub tolerance: f64,
    /// `--horizontal-pod-autoscaler-cpu-initialization-period`
    pub cpu_initialization_period: Duration,
    /// `--horizontal-pod-autoscaler-initial-readiness-delay`
    pub initial_readiness_delay: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sync_period: Duration::from_secs(15),
            downscale_stabilization: Duration::from_secs(300),
            tolerance: 0.1,
            cpu_initialization_period: Duration::from_secs(300),
            initial_readiness_delay: Duration::from_secs(30),
        }
    }
}

impl Settings {
    /// Returns what is wrong with it, in terms of the flags.
    pub fn check(&self) -> Result<(), String> {
        if self.sync_period < Duration::from_secs(1) {
            return Err("--horizontal-pod-autoscaler-sync-period must be at least 1s".to_owned());
        }
        if !self.tolerance.is_finite() || self.tolerance < 0.0 {
            return Err("--horizontal-pod-autoscaler-tolerance must be greater than or equal to 0".to_owned());
        }
        Ok(())
    }

    pub(super) fn arithmetic(&self) -> autoscaling::Settings {
        autoscaling::Settings {
            tolerance: self.tolerance,
            cpu_initialization: signed(self.cpu_initialization_period),
            readiness_delay: signed(self.initial_readiness_delay),
        }
    }
}

pub(super) fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_the_name_of_its_flag() {
        assert_eq!(Settings::default().check(), Ok(()));
        assert_eq!(Settings::default().arithmetic(), autoscaling::Settings::default());
        let restless = Settings { sync_period: Duration::ZERO, ..Settings::default() };
        assert!(restless.check().unwrap_err().starts_with("--horizontal-pod-autoscaler-sync-period"));
        for tolerance in [-0.1, f64::NAN, f64::INFINITY] {
            let odd = Settings { tolerance, ..Settings::default() };
            assert!(odd.check().unwrap_err().starts_with("--horizontal-pod-autoscaler-tolerance"));
        }
    }
}
