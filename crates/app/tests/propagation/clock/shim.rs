//! Moves the clock on the wall for one process: put before the C library (`LD_PRELOAD`), it adds the seconds that stand in a file of eight
//! bytes to every look at that clock. Clocks that do not jump are left alone.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

#[repr(C)]
pub struct Time {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn mmap(at: *mut c_void, size: usize, access: c_int, flags: c_int, file: c_int, from: i64) -> *mut c_void;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
}

#[cfg(target_arch = "x86_64")]
const CLOCK_GETTIME: c_long = 228;
#[cfg(target_arch = "aarch64")]
const CLOCK_GETTIME: c_long = 113;

static OFFSET: AtomicPtr<AtomicI64> = AtomicPtr::new(null_mut());

fn offset() -> i64 {
    let mut found = OFFSET.load(Ordering::Acquire);
    if found.is_null() {
        unsafe {
            let path = getenv(c"KARMADA_RS_TEST_CLOCK".as_ptr());
            let file = if path == null() { -1 } else { open(path, 0) };
            // To be read, and shared with whoever writes it.
            let mapped = if file < 0 { return 0 } else { mmap(null_mut(), 8, 1, 1, file, 0) };
            if mapped as isize == -1 {
                return 0;
            }
            found = mapped.cast();
        }
        OFFSET.store(found, Ordering::Release);
    }
    unsafe { (*found).load(Ordering::Relaxed) }
}

/// # Safety
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Time) -> c_int {
    let result = unsafe { syscall(CLOCK_GETTIME, clock as c_long, time) };
    // The clock on the wall, and its coarse form.
    if result == 0 && (clock == 0 || clock == 5) {
        unsafe { (*time).seconds += offset() };
    }
    result as c_int
}
