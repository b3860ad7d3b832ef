//! The two ends of a tunnel, joined by TLS on the loopback.

mod attacks;
mod many;
mod servers;
mod stage;
mod streams;
mod trouble;
