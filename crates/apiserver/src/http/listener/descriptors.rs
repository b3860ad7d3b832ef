//! How many files and connections this process may open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than any control plane needs; some systems have no limit at all.
const MOST: u64 = 1 << 20;

/// Raises the limit of open files as far as an ordinary process may. Returns the new limit.
pub fn raise() -> u64 {
    let now = getrlimit(Resource::Nofile);
    let wanted = now.maximum.unwrap_or(MOST).min(MOST);
    if now.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: now.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(MOST).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_the_highest_allowed_one() {
        let raised = raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(
            limit.current,
            Some(limit.maximum.unwrap_or(MOST).min(MOST).max(limit.current.unwrap_or(0)))
        );
        assert!(raised >= limit.current.unwrap_or(0).min(MOST));
    }
}
