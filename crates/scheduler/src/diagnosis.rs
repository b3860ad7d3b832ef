//! Why a decision came out as it did.
//!
//! [`Diagnosis`] is what a decision leaves behind: compact, since there is one for the last decision of every binding.
//! [`Report`] is the same in words, for users (as text) and programs (as data). Both are deterministic.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::assign::Division;
pub use crate::assign::{Mode, Strategy};
use crate::fleet::Fleet;
use crate::plugins::Reason;
use crate::spread::{Candidate, Note};

/// Why a decision came out as it did.
#[derive(Debug, Clone)]
pub struct Diagnosis {
    names: Arc<[Arc<str>]>,
    pub(crate) plugins: Arc<[&'static str]>,
    pub(crate) affinity_name: String,
    pub(crate) verdicts: Vec<Verdict>,
    /// The distinct reasons, in the order in which they came up.
    reasons: Vec<Vec<String>>,
    known_reasons: Vec<Reason>,
    pub(crate) selection: Option<Note>,
    /// Members in selection order.
    pub(crate) selected: Vec<u32>,
    pub(crate) divisions: Vec<Division>,
    pub(crate) assigned: Vec<(u32, i64)>,
}

/// What became of one cluster, in 16 bytes: a thousand clusters times thousands of bindings add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is being deleted and was not looked at.
    Deleting,
    Rejected {
        plugin: u16,
        reason: u16,
    },
    /// It passed the filters; the attempt ended before it was estimated.
    Feasible,
    /// It passed the filters and was ranked.
    Ranked {
        overflow: u16,
        score: i32,
        allocatable: i32,
        /// Replicas that it has already.
        own: i32,
    },
}

impl Verdict {
    pub(crate) fn ranked(candidate: &Candidate) -> Self {
        let narrow =
            |number: i64| i32::try_from(number).unwrap_or(if number < 0 { i32::MIN } else { i32::MAX });
        Self::Ranked {
            overflow: u16::try_from(candidate.overflow).unwrap_or(u16::MAX),
            score: narrow(candidate.score),
            allocatable: narrow(candidate.allocatable),
            own: narrow(candidate.available - candidate.allocatable),
        }
    }
}

impl Diagnosis {
    pub(crate) fn new(fleet: &Fleet, plugins: Arc<[&'static str]>, affinity_name: &str) -> Self {
        Self {
            names: fleet.names().clone(),
            plugins,
            affinity_name: affinity_name.to_owned(),
            verdicts: Vec::with_capacity(fleet.len()),
            reasons: Vec::new(),
            known_reasons: Vec::new(),
            selection: None,
            selected: Vec::new(),
            divisions: Vec::new(),
            assigned: Vec::new(),
        }
    }

    pub(crate) fn reject(&mut self, plugin: usize, reason: Reason, fleet: &Fleet) {
        let known = self.known_reasons.iter().position(|known| *known == reason);
        let number = known.unwrap_or_else(|| {
            self.reasons.push(match &reason {
                Reason::Fixed(text) => vec![(*text).to_owned()],
                Reason::Taint(taint) => {
                    vec![format!("cluster(s) had untolerated taint {{{}}}", fleet.taints()[*taint as usize])]
                }
                Reason::Texts(texts) => texts.to_vec(),
            });
            self.known_reasons.push(reason);
            self.reasons.len() - 1
        });
        // A fleet has fewer plug-ins and reasons than that; should it not, the last number stands for the rest.
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        self.verdicts.push(Verdict::Rejected { plugin: plugin as u16, reason: number });
    }

    fn reasons(&self, number: u16) -> &[String] {
        self.reasons.get(usize::from(number)).map_or(&[], Vec::as_slice)
    }

    /// Returns the text of "no cluster fits", with the number of clusters per reason.
    pub(crate) fn fit_error(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut rejected = false;
        for verdict in &self.verdicts {
            if let Verdict::Rejected { reason, .. } = verdict {
                rejected = true;
                for text in self.reasons(*reason) {
                    *counts.entry(text).or_default() += 1;
                }
            }
        }
        let all = self.names.len();
        if !rejected {
            return format!("0/{all} clusters are available: no cluster exists.");
        }
        let mut lines: Vec<String> =
            counts.into_iter().map(|(text, count)| format!("{count} {text}")).collect();
        lines.sort();
        format!("0/{all} clusters are available: {}.", lines.join(", "))
    }

    /// Returns the diagnosis in words.
    pub fn report(&self) -> Report {
        let name = |member: u32| self.names[member as usize].to_string();
        let amounts = |list: &[(u32, i64)]| -> Vec<Amount> {
            list.iter().map(|(member, amount)| Amount { cluster: name(*member), amount: *amount }).collect()
        };
        let replicas: BTreeMap<u32, i64> = self.assigned.iter().copied().collect();
        let clusters = self.verdicts.iter().zip(0u32..).map(|(verdict, member)| ClusterReport {
            name: name(member),
            verdict: match verdict {
                Verdict::Deleting => ClusterVerdict::Deleting,
                Verdict::Rejected { plugin, reason } => ClusterVerdict::Rejected {
                    plugin: self.plugins[usize::from(*plugin)].to_owned(),
                    reasons: self.reasons(*reason).to_vec(),
                },
                Verdict::Feasible => ClusterVerdict::Feasible,
                Verdict::Ranked { overflow, score, allocatable, own } => ClusterVerdict::Ranked {
                    score: i64::from(*score),
                    // What has no replicas is not counted: there is room for it everywhere.
                    allocatable: (*allocatable != i32::MAX).then_some(i64::from(*allocatable)),
                    available: (*allocatable != i32::MAX)
                        .then_some(i64::from(*allocatable) + i64::from(*own)),
                    tier: i32::from(*overflow),
                    selected: self.selected.contains(&member),
                    replicas: replicas.get(&member).copied(),
                },
            },
        });
        Report {
            affinity_name: self.affinity_name.clone(),
            clusters: clusters.collect(),
            selection: self.selection.as_ref().map(|note| Selection::new(note, name)),
            divisions: self
                .divisions
                .iter()
                .map(|division| DivisionReport {
                    tier: division.tier,
                    strategy: division.strategy,
                    mode: division.mode,
                    replicas: division.target,
                    weights: amounts(&division.weights),
                })
                .collect(),
        }
    }
}

/// A diagnosis in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The affinity term that was tried, empty without `clusterAffinities`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub affinity_name: String,
    /// Every cluster, by name.
    pub clusters: Vec<ClusterReport>,
    /// How clusters were selected; absent when none passed the filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    /// How replicas were divided, one entry per tier; empty when there is nothing to divide.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub divisions: Vec<DivisionReport>,
}

/// What became of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterReport {
    pub name: String,
    #[serde(flatten)]
    pub verdict: ClusterVerdict,
}

/// What became of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub enum ClusterVerdict {
    Deleting,
    Rejected {
        plugin: String,
        reasons: Vec<String>,
    },
    Feasible,
    Ranked {
        score: i64,
        /// How many more replicas fit; absent when nothing is counted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        allocatable: Option<i64>,
        /// What fits plus what is assigned already.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        available: Option<i64>,
        /// 0 for the primary affinity, then the overflow affinities.
        tier: i32,
        selected: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replicas: Option<i64>,
    },
}

/// How clusters were selected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "camelCase")]
pub enum Selection {
    /// There are no spread constraints: all feasible clusters.
    Everything,
    /// Static weights decide, spread constraints are ignored.
    Weights,
    Clusters {
        min: i64,
        max: i64,
        /// Clusters that gave way to ones with more room.
        replaced: Vec<Replaced>,
    },
    Regions {
        min: i64,
        max: i64,
        regions: Vec<Region>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    pub out: String,
    pub by: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    pub name: String,
    pub clusters: usize,
    pub score: i64,
    pub chosen: bool,
}

/// One division of replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DivisionReport {
    pub tier: i32,
    pub strategy: Strategy,
    pub mode: Mode,
    /// How many replicas were divided.
    pub replicas: i64,
    pub weights: Vec<Amount>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    pub cluster: String,
    pub amount: i64,
}

impl Selection {
    fn new(note: &Note, name: impl Fn(u32) -> String) -> Self {
        match note {
            Note::Unconstrained => Self::Everything,
            Note::Ignored => Self::Weights,
            Note::ByCluster { min, max, replaced } => Self::Clusters {
                min: *min,
                max: *max,
                replaced: replaced
                    .iter()
                    .map(|one| Replaced { out: name(one.out), by: name(one.by) })
                    .collect(),
            },
            Note::ByRegion { min, max, regions } => Self::Regions {
                min: *min,
                max: *max,
                regions: regions
                    .iter()
                    .map(|region| Region {
                        name: region.name.clone(),
                        clusters: region.clusters,
                        score: region.score,
                        chosen: region.chosen,
                    })
                    .collect(),
            },
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.affinity_name.is_empty() {
            writeln!(out, "affinity term: {}", self.affinity_name)?;
        }
        if let Some(selection) = &self.selection {
            writeln!(out, "selection: {selection}")?;
        }
        for division in &self.divisions {
            writeln!(out, "division: {division}")?;
        }
        for cluster in &self.clusters {
            writeln!(out, "{cluster}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => write!(out, "every feasible cluster, there are no spread constraints"),
            Self::Weights => {
                write!(out, "every feasible cluster, static weights override spread constraints")
            }
            Self::Clusters { min, max, replaced } => {
                write!(out, "the best {min} to {max} clusters")?;
                for one in replaced {
                    write!(out, "; {} made room for {}", one.out, one.by)?;
                }
                Ok(())
            }
            Self::Regions { min, max, regions } => {
                write!(out, "the best {min} to {max} regions")?;
                for region in regions {
                    let Region { name, clusters, score, chosen } = region;
                    let mark = if *chosen { "chosen" } else { "not chosen" };
                    write!(out, "; {name} {mark} (clusters {clusters}, score {score})")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for DivisionReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tier, strategy, mode, replicas, weights } = self;
        if *tier > 0 {
            write!(out, "tier {tier}, ")?;
        }
        match (strategy, mode) {
            (Strategy::Duplicated, _) => {
                return write!(out, "{replicas} replicas for every selected cluster");
            }
            (_, Mode::Unchanged) => return write!(out, "nothing to do, all replicas are placed"),
            (Strategy::StaticWeight, _) => write!(out, "{replicas} replicas by static weight")?,
            (_, Mode::Fresh) => write!(out, "{replicas} replicas afresh by room")?,
            (_, Mode::ScaleDown) => write!(out, "down to {replicas} replicas by what each cluster has")?,
            (_, _) => write!(out, "{replicas} more replicas by room")?,
        }
        if *strategy == Strategy::Aggregated {
            write!(out, " in as few clusters as suffice")?;
        }
        for (index, weight) in weights.iter().enumerate() {
            let separator = if index == 0 { ": " } else { ", " };
            write!(out, "{separator}{} {}", weight.cluster, weight.amount)?;
        }
        Ok(())
    }
}

impl fmt::Display for ClusterReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.verdict {
            ClusterVerdict::Deleting => write!(out, "{name}: is being deleted"),
            ClusterVerdict::Rejected { plugin, reasons } => {
                write!(out, "{name}: rejected by {plugin}: {}", reasons.join(", "))
            }
            ClusterVerdict::Feasible => write!(out, "{name}: feasible"),
            ClusterVerdict::Ranked { score, allocatable, available, tier, selected, replicas } => {
                match (selected, replicas) {
                    (_, Some(replicas)) => write!(out, "{name}: {replicas} replicas")?,
                    (true, None) => write!(out, "{name}: selected")?,
                    (false, None) => write!(out, "{name}: not selected")?,
                }
                write!(out, " (score {score}")?;
                if let (Some(allocatable), Some(available)) = (allocatable, available) {
                    write!(out, ", room for {allocatable}, with its own {available}")?;
                }
                if *tier > 0 {
                    write!(out, ", overflow tier {tier}")?;
                }
                write!(out, ")")
            }
        }
    }
}
