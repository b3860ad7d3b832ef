//! Simulated clusters as their users see them, and held against real ones.

mod behaviour;
mod families;
mod like_real;
mod metrics;
mod normal;
mod site;
mod trouble;
mod workloads;
