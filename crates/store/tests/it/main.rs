//! The promises of the store, tested from outside, one topic per file.

mod backup;
mod basics;
mod crash;
mod disk_faults;
mod etcd;
mod expiry;
mod files;
mod laws;
mod promises;
mod support;
