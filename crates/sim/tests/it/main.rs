//! Simulated clusters as their users see them, and held against real ones.

mod behaviour;
mod metrics;
mod like_real;
mod normal;
mod site;
mod trouble;
mod workloads;
