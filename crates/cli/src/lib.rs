//! The commands, one file each; what they print.
