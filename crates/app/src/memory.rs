//! How the process returns unused memory to the system.

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_t, mi_option_use_numa_nodes};

/// After how many milliseconds freed memory is returned to the system. The allocator's own default is a second, checked only when
/// something is allocated: memory freed right before a quiet period would stay for the whole period.
const PURGE_DELAY_MS: c_long = 10;

/// The option's index in the allocator's list (`mi_option_e` in mimalloc.h). The binding names only the next one; its version is
/// pinned in the workspace, and a test checks the option's default.
const PURGE_DELAY: mi_option_t = mi_option_use_numa_nodes - 1;

/// Makes the process return freed memory. Must be called first in `main`.
#[expect(unsafe_code, reason = "the allocator has no binding that hides the call")]
pub(crate) fn keep_little() {
    // With huge pages, every small page in use keeps 2 MB in memory. If the system does not know this switch, only the memory use
    // is higher.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // SAFETY: writes one number into the allocator's options, before a second thread exists.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "as above")]
    fn finding_24_the_option_is_the_one_that_delays_the_return_of_memory() {
        // SAFETY: reads one number.
        let default = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(default, 1_000, "the only option whose default is a second");
    }
}
