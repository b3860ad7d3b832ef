//! The seam for further estimators, such as the accurate one that runs beside each member.
//!
//! The general estimator of this crate always answers. Others are asked for the same clusters and the smaller answer
//! counts. An estimator that fails is left out for the attempt, as a whole: half of its answers would favour the
//! clusters it said nothing about.

use std::collections::BTreeMap;

use api::work::{Component, ObjectReference, ReplicaRequirements};

use crate::assumptions::AssumedWorkload;
use crate::fleet::Member;

/// What an estimator is asked.
pub struct Request<'a> {
    /// The clusters that passed the filters, in the order of their names.
    pub clusters: Vec<&'a Member>,
    /// The workload.
    pub resource: &'a ObjectReference,
    pub want: Want<'a>,
    /// Per cluster, workloads that were placed there but are not yet running; empty without overcommit protection.
    pub assumed: BTreeMap<&'a str, Vec<&'a AssumedWorkload>>,
}

/// What is to be counted.
pub enum Want<'a> {
    /// Replicas of one pod template.
    Replicas(Option<&'a ReplicaRequirements>),
    /// Complete sets of all components.
    Sets(&'a [Component]),
}

/// An estimator could not answer; it is left out for this attempt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("estimator cannot answer: {0}")]
pub struct Unavailable(pub String);

/// Says how much more a cluster can hold.
pub trait Estimator: Send + Sync {
    fn name(&self) -> &str;

    /// Returns an answer per cluster; `None`, or leaving a cluster out, means "cannot tell".
    ///
    /// # Errors
    /// Fails when any of the clusters cannot be asked.
    fn max_available(&self, request: &Request<'_>) -> Result<Vec<(String, Option<i32>)>, Unavailable>;
}

/// Answers that were collected beforehand, for estimators that are asked over the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    pub name: String,
    pub answers: Result<BTreeMap<String, i32>, Unavailable>,
}

impl Estimator for Collected {
    fn name(&self) -> &str {
        &self.name
    }

    fn max_available(&self, request: &Request<'_>) -> Result<Vec<(String, Option<i32>)>, Unavailable> {
        let answers = self.answers.as_ref().map_err(Clone::clone)?;
        let answer = |member: &&Member| (member.name().to_owned(), answers.get(member.name()).copied());
        Ok(request.clusters.iter().map(answer).collect())
    }
}
