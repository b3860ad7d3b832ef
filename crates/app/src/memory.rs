//! How the process treats memory that it does not need any more.

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_t, mi_option_use_numa_nodes};

/// After how many milliseconds freed memory goes back to the system. The allocator's own default is a second, checked only
/// when something is allocated: what was freed right before a quiet time would stay for as long as that lasts.
const PURGE_DELAY_MS: c_long = 10;

/// The option's place in the allocator's list (`mi_option_e` in mimalloc.h). The binding names only the one behind it; its
/// version is pinned in the workspace, and a test looks at the option's default.
const PURGE_DELAY: mi_option_t = mi_option_use_numa_nodes - 1;

/// Makes the process give back what it frees. To be called first in `main`.
#[expect(unsafe_code, reason = "the allocator has no binding that hides the call")]
pub(crate) fn keep_little() {
    // With huge pages every small page in use keeps 2 MB in memory. Where the system does not know the switch, all is
    // the same but larger.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // SAFETY: writes one number into the allocator's options, before there is a second thread.
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
