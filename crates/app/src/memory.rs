//! How the process treats memory that it does not need any more.

use std::ffi::c_long;

/// After how many milliseconds freed memory goes back to the system. The allocator's own default is a second, checked only
/// when something is allocated: what was freed right before a quiet time would stay for as long as that lasts.
const PURGE_DELAY_MS: c_long = 10;

/// The option's place in the allocator's list (`mi_option_e` in mimalloc.h), which the binding does not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Makes the process give back what it frees. To be called first in `main`.
#[allow(unsafe_code)]
pub(crate) fn keep_little() {
    // With huge pages every small page in use keeps 2 MB in memory. Where the system does not know the switch, all is
    // the same but larger.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // SAFETY: writes one number into the allocator's options, before there is a second thread.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS) };
}
