//! How often clusters and quotas are checked, and with which timeouts: upstream's flags and defaults.

use std::time::Duration;

/// How often clusters and quotas are checked, and with which timeouts.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// `--cluster-status-update-frequency`
    pub status_period: Duration,
    /// `--cluster-success-threshold`
    pub success_threshold: Duration,
    /// `--cluster-failure-threshold`
    pub failure_threshold: Duration,
    /// `--cluster-monitor-period`
    pub monitor_period: Duration,
    /// `--cluster-monitor-grace-period`
    pub monitor_grace_period: Duration,
    /// `--cluster-startup-grace-period`
    pub startup_grace_period: Duration,
    /// `--cluster-lease-duration`: what an agent's Lease says; the control plane judges by the grace periods.
    pub lease_duration: Duration,
    /// `--cluster-lease-renew-interval-fraction`: which part of that an agent waits between two renewals.
    pub lease_renew_fraction: f64,
    /// `--federated-resource-quota-sync-period`: how often the usage of quotas is counted afresh.
    pub quota_sync_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            status_period: Duration::from_secs(10),
            success_threshold: Duration::from_secs(30),
            failure_threshold: Duration::from_secs(30),
            monitor_period: Duration::from_secs(5),
            monitor_grace_period: Duration::from_secs(40),
            startup_grace_period: Duration::from_secs(60),
            lease_duration: Duration::from_secs(40),
            lease_renew_fraction: 0.25,
            quota_sync_period: Duration::from_secs(300),
        }
    }
}

impl Timing {
    /// Returns what is wrong with it, in terms of the flags.
    pub fn check(&self) -> Result<(), String> {
        let positive = [
            ("cluster-status-update-frequency", self.status_period),
            ("cluster-monitor-period", self.monitor_period),
            ("cluster-monitor-grace-period", self.monitor_grace_period),
            ("cluster-startup-grace-period", self.startup_grace_period),
            ("federated-resource-quota-sync-period", self.quota_sync_period),
        ];
        if let Some((flag, _)) = positive.into_iter().find(|(_, value)| value.is_zero()) {
            return Err(format!("--{flag} must be greater than 0"));
        }
        // No number at all is in no range.
        if !(f64::MIN_POSITIVE..1.0).contains(&self.lease_renew_fraction) {
            return Err("--cluster-lease-renew-interval-fraction must be between 0 and 1".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_the_name_of_its_flag() {
        assert_eq!(Timing::default().check(), Ok(()));
        let never = Timing { monitor_period: Duration::ZERO, ..Timing::default() };
        assert_eq!(never.check().unwrap_err(), "--cluster-monitor-period must be greater than 0");
        for fraction in [0.0, 1.0, -1.0, 2.0, f64::NAN] {
            let odd = Timing { lease_renew_fraction: fraction, ..Timing::default() };
            assert!(odd.check().unwrap_err().starts_with("--cluster-lease-renew-interval-fraction"));
        }
        let hasty = Timing { success_threshold: Duration::ZERO, ..Timing::default() };
        assert_eq!(hasty.check(), Ok(()), "a threshold may be zero: changes are believed at once");
    }
}
