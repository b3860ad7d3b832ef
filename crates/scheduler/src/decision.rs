//! One decision: filter, score, select, divide.
//!
//! In: a binding, the fleet, the affinity term to try. Out: the clusters with their replicas, or a failure in upstream's
//! words; a diagnosis either way. Pure: the same input gives the same bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::policy::{
    ClusterAffinityTerm, Placement, ReplicaDivisionPreference, ReplicaSchedulingStrategy,
    ReplicaSchedulingType, SpreadFieldValue,
};
use api::work::{ResourceBindingSpec, ResourceBindingStatus, TargetCluster, TargetComponent};
use jiff::Timestamp;

use crate::affinity::Matcher;
use crate::assign::{self, Strategy};
use crate::assumptions::Assumptions;
use crate::capacity::general::{self, Query};
use crate::capacity::{Demand, Part};
use crate::diagnosis::{Diagnosis, Verdict};
use crate::estimator::{self, Estimator, Want};
use crate::fleet::{Fleet, Member};
use crate::gates::Gates;
use crate::meter::{self, Meter, Part as Measured, Watch};
use crate::plugins::workloads::Groups;
use crate::plugins::{Context, Filter, Reason, Registry, Score};
use crate::spread::{self, Candidate, Constraint, Field, Need};
use crate::symbols::Bits;
use crate::webster::TieRule;

/// Decides where bindings go.
#[derive(Clone)]
pub struct Scheduler {
    registry: Registry,
    plugin_names: Arc<[&'static str]>,
    gates: Gates,
    propagate_empty: bool,
    meter: Option<Arc<dyn Meter>>,
}

/// How a scheduler is set up.
#[derive(Clone)]
pub struct Options {
    pub gates: Gates,
    /// The plug-ins to run; see [`Registry::enable`].
    pub registry: Registry,
    /// `--enable-empty-workload-propagation`: selected clusters without replicas appear in the result with 0.
    pub propagate_empty: bool,
    /// Is told how long the parts of decisions take.
    pub meter: Option<Arc<dyn Meter>>,
}

impl Default for Options {
    fn default() -> Self {
        let gates = Gates::default();
        Self { gates, registry: Registry::in_tree(gates), propagate_empty: false, meter: None }
    }
}

/// What a decision depends on besides the binding.
#[derive(Clone, Copy)]
pub struct World<'a> {
    pub fleet: &'a Fleet,
    pub workloads: &'a Groups,
    pub assumptions: &'a Assumptions,
    /// Estimators besides the general one.
    pub estimators: &'a [&'a dyn Estimator],
    /// Decides which assumptions have expired; nothing else depends on it.
    pub now: Timestamp,
}

/// A successful decision.
#[derive(Debug, Clone)]
pub struct Decision {
    /// What goes into `spec.clusters`, in order.
    pub clusters: Vec<TargetCluster>,
    pub diagnosis: Diagnosis,
}

/// A decision that failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub cause: Cause,
    pub message: String,
    pub diagnosis: Box<Diagnosis>,
}

/// What kind of failure it is; decides about condition, retry and whether the previous result is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// No cluster passed the filters. Nothing but a change of clusters or of the binding can help.
    NoClusterFit,
    /// The clusters lack room. Time may help.
    Unschedulable,
    /// Constraints that cannot be met, or an unknown strategy.
    Other,
}

impl Scheduler {
    pub fn new(options: Options) -> Self {
        let plugin_names = options.registry.names().into();
        let Options { gates, registry, propagate_empty, meter } = options;
        Self { registry, plugin_names, gates, propagate_empty, meter }
    }

    pub fn gates(&self) -> Gates {
        self.gates
    }

    /// Tells whether estimates count complete sets of components instead of replicas.
    pub fn counts_sets(&self, spec: &ResourceBindingSpec) -> bool {
        self.gates.components && is_one_cluster_set(spec)
    }

    /// Returns the names of the clusters that pass the filters, for whoever has to ask estimators beforehand.
    pub fn feasible<'a>(
        &self,
        world: World<'a>,
        spec: &ResourceBindingSpec,
        affinity_name: &str,
    ) -> Vec<&'a str> {
        let binding = Known::new(spec, world.fleet);
        let mut diagnosis = Diagnosis::new(world.fleet, self.plugin_names.clone(), affinity_name);
        let context = binding.context(world, spec, Term::named(spec, affinity_name));
        let candidates = self.filter(&context, &mut diagnosis, Watch(None));
        candidates.iter().map(|candidate| world.fleet.at(candidate.member).name()).collect()
    }

    /// Decides for one affinity term; `affinity_name` is empty for placements without `clusterAffinities`.
    pub fn decide(
        &self,
        world: World<'_>,
        spec: &ResourceBindingSpec,
        status: &ResourceBindingStatus,
        affinity_name: &str,
    ) -> Result<Decision, Failure> {
        self.decide_term(world, spec, status, Term::named(spec, affinity_name))
    }

    /// As [`Scheduler::decide`], for a caller that knows where the term is.
    pub(crate) fn decide_term(
        &self,
        world: World<'_>,
        spec: &ResourceBindingSpec,
        status: &ResourceBindingStatus,
        term: Term<'_>,
    ) -> Result<Decision, Failure> {
        let mut diagnosis = Diagnosis::new(world.fleet, self.plugin_names.clone(), term.name);
        match self.run(world, spec, status, term, &mut diagnosis) {
            Ok(clusters) => Ok(Decision { clusters, diagnosis }),
            Err((cause, message)) => Err(Failure { cause, message, diagnosis: Box::new(diagnosis) }),
        }
    }

    fn run(
        &self,
        world: World<'_>,
        spec: &ResourceBindingSpec,
        status: &ResourceBindingStatus,
        term: Term<'_>,
        diagnosis: &mut Diagnosis,
    ) -> Result<Vec<TargetCluster>, (Cause, String)> {
        let other = |stage: &str, error: String| (Cause::Other, format!("{stage}: {error}"));
        let Some(placement) = &spec.placement else {
            return Err(other("failed to find fit clusters", "binding has no placement".to_owned()));
        };
        let binding = Known::new(spec, world.fleet);
        let context = binding.context(world, spec, term);

        let watch = Watch(self.meter.as_deref());
        let mut candidates =
            watch.measure(|_| Measured::Step(meter::FILTER), || self.filter(&context, diagnosis, watch));
        if candidates.is_empty() {
            return Err((Cause::NoClusterFit, diagnosis.fit_error()));
        }
        watch
            .measure(|_| Measured::Step(meter::SCORE), || self.score(&context, &mut candidates, watch))
            .map_err(|error| other("failed to prioritize clusters", error))?;
        let selected = watch.measure(
            |_| Measured::Step(meter::SELECT),
            || {
                set_overflow_order(&context, placement, &mut candidates);
                self.estimate(world, spec, &binding, &mut candidates);
                candidates.sort_unstable_by(Candidate::rank);
                for candidate in &candidates {
                    diagnosis.verdicts[candidate.member as usize] = Verdict::ranked(candidate);
                }
                self.select(world.fleet, spec, placement, candidates, diagnosis)
            },
        );
        let selected = selected.map_err(|error| other("failed to select clusters", error.to_string()))?;
        diagnosis.selected = selected.iter().map(|candidate| candidate.member).collect();
        let mut result = watch
            .measure(
                |_| Measured::Step(meter::ASSIGN_REPLICAS),
                || {
                    self.assign(
                        world.fleet,
                        spec,
                        status,
                        &context,
                        placement,
                        &binding,
                        &selected,
                        diagnosis,
                    )
                },
            )
            .map_err(|(cause, error)| (cause, format!("failed to assign replicas: {error}")))?;

        if self.propagate_empty {
            for candidate in &selected {
                let name = world.fleet.at(candidate.member).name();
                if !result.iter().any(|target| target.name == name) {
                    result.push(TargetCluster { name: name.to_owned(), ..TargetCluster::default() });
                }
            }
        }
        Ok(result)
    }

    fn filter(
        &self,
        context: &Context<'_>,
        diagnosis: &mut Diagnosis,
        mut watch: Watch<'_>,
    ) -> Vec<Candidate> {
        let filters: Filters<'_> = self
            .registry
            .iter()
            .enumerate()
            .filter_map(|(index, plugin)| Some((index, plugin.filter(context)?)))
            .collect();
        let mut candidates = Vec::with_capacity(context.fleet.len());
        for (member, position) in context.fleet.members().zip(0u32..) {
            if member.deleting {
                diagnosis.verdicts.push(Verdict::Deleting);
                continue;
            }
            let rejection = first_rejection(&filters, &self.plugin_names, position, member, watch);
            // The first cluster is measured, as a sample.
            watch = Watch(None);
            match rejection {
                Some((plugin, reason)) => diagnosis.reject(plugin, reason, context.fleet),
                None => {
                    diagnosis.verdicts.push(Verdict::Feasible);
                    candidates.push(Candidate {
                        member: position,
                        overflow: 0,
                        score: 0,
                        allocatable: 0,
                        available: 0,
                    });
                }
            }
        }
        candidates
    }

    fn score(
        &self,
        context: &Context<'_>,
        candidates: &mut [Candidate],
        watch: Watch<'_>,
    ) -> Result<(), String> {
        let result = |done: &Result<(), String>| Measured::Point {
            point: meter::SCORE,
            result: meter::of_score(done),
        };
        watch.measure(result, || self.score_all(context, candidates, watch))
    }

    fn score_all(
        &self,
        context: &Context<'_>,
        candidates: &mut [Candidate],
        watch: Watch<'_>,
    ) -> Result<(), String> {
        for plugin in self.registry.iter() {
            let Some(rating) = plugin.score(context) else { continue };
            let mut watch = watch;
            let mut rate = |candidate: &Candidate| {
                let part = |score: &Result<i64, String>| Measured::Plugin {
                    plugin: plugin.name(),
                    point: meter::SCORE,
                    result: meter::of_score(score),
                };
                let rated = watch
                    .measure(part, || rating.score(candidate.member, context.fleet.at(candidate.member)));
                watch = Watch(None);
                rated
            };
            let mut scores = candidates
                .iter()
                .map(&mut rate)
                .collect::<Result<Vec<i64>, String>>()
                .map_err(|error| format!("plugin {:?} failed with: {error}", plugin.name()))?;
            Score::normalize(&*rating, &mut scores);
            for (candidate, score) in candidates.iter_mut().zip(scores) {
                candidate.score += score;
            }
        }
        Ok(())
    }

    /// Fills in how much more every candidate can hold.
    fn estimate(
        &self,
        world: World<'_>,
        spec: &ResourceBindingSpec,
        binding: &Known,
        candidates: &mut [Candidate],
    ) {
        const UNKNOWN: i64 = i32::MAX as i64;
        let replicas = i64::from(spec.replicas);
        let assumptions =
            Some(world.assumptions).filter(|all| self.gates.overcommit_protection && !all.is_empty());
        let counts = spec.replicas != 0 || !spec.components.is_empty();
        if counts {
            self.estimate_generally(world, spec, assumptions, candidates);
            self.ask_estimators(world, spec, assumptions, candidates);
        }
        for candidate in candidates {
            if !counts {
                candidate.allocatable = UNKNOWN;
            } else if candidate.allocatable == UNKNOWN {
                candidate.allocatable = replicas;
            }
            candidate.available = candidate.allocatable + binding.assigned_to(candidate.member);
        }
    }

    fn estimate_generally(
        &self,
        world: World<'_>,
        spec: &ResourceBindingSpec,
        assumptions: Option<&Assumptions>,
        candidates: &mut [Candidate],
    ) {
        let symbols = world.fleet.symbols();
        let options = general::Options { models: self.gates.resource_models };
        let assumed_on = |name: &str| assumptions.map_or_else(Vec::new, |all| all.parts_on(name, world.now));
        let as_sets = self.counts_sets(spec);
        let parts: Vec<Part> = spec.components.iter().map(Part::of).collect();
        let demand = spec.replica_requirements.as_ref().map(|needs| Demand::of(&needs.resource_request));
        let query = Query::new(demand.as_ref(), symbols);
        for candidate in candidates {
            let member = world.fleet.at(candidate.member);
            let assumed = assumed_on(member.name());
            let answer = if as_sets {
                general::sets(member.capacity.as_ref(), &parts, &assumed, options, symbols)
            } else {
                query.replicas(member.capacity.as_ref(), &assumed, options, symbols)
            };
            // −1 is upstream's "cannot tell"; overflowing counts can come out as it.
            candidate.allocatable = if answer == -1 { i32::MAX.into() } else { answer };
        }
    }

    fn ask_estimators(
        &self,
        world: World<'_>,
        spec: &ResourceBindingSpec,
        assumptions: Option<&Assumptions>,
        candidates: &mut [Candidate],
    ) {
        if world.estimators.is_empty() {
            return;
        }
        let clusters: Vec<_> = candidates.iter().map(|candidate| world.fleet.at(candidate.member)).collect();
        let assumed: BTreeMap<&str, Vec<_>> = assumptions
            .iter()
            .flat_map(|all| clusters.iter().map(|member| (member.name(), all.on(member.name(), world.now))))
            .filter(|(_, workloads)| !workloads.is_empty())
            .collect();
        let want = if self.counts_sets(spec) {
            Want::Sets(&spec.components)
        } else {
            Want::Replicas(spec.replica_requirements.as_ref())
        };
        let request = estimator::Request { clusters, resource: &spec.resource, want, assumed };
        for estimator in world.estimators {
            let Ok(answers) = estimator.max_available(&request) else { continue };
            for (name, answer) in answers {
                let (Some(answer), Some(position)) =
                    (answer.filter(|one| *one != -1), world.fleet.position(&name))
                else {
                    continue;
                };
                // Candidates are still in the order of the fleet here.
                if let Ok(index) = candidates.binary_search_by_key(&position, |candidate| candidate.member) {
                    let allocatable = &mut candidates[index].allocatable;
                    *allocatable = (*allocatable).min(answer.into());
                }
            }
        }
    }

    fn select(
        &self,
        fleet: &Fleet,
        spec: &ResourceBindingSpec,
        placement: &Placement,
        candidates: Vec<Candidate>,
        diagnosis: &mut Diagnosis,
    ) -> Result<Vec<Candidate>, spread::Error> {
        if !placement.spread_constraints.is_empty() && weights_override_constraints(placement) {
            diagnosis.selection = Some(spread::Note::Ignored);
            return Ok(candidates);
        }
        let constraints: Vec<Constraint> = placement
            .spread_constraints
            .iter()
            .map(|constraint| Constraint {
                field: match &constraint.spread_by_field {
                    Some(SpreadFieldValue::Cluster) => Field::Cluster,
                    Some(SpreadFieldValue::Region) => Field::Region,
                    Some(SpreadFieldValue::Zone) => Field::Zone,
                    Some(SpreadFieldValue::Provider) => Field::Provider,
                    Some(SpreadFieldValue::Other(_)) | None => Field::Other,
                },
                min: constraint.min_groups,
                max: constraint.max_groups,
            })
            .collect();
        let replicas = i64::from(spec.replicas);
        let need = match &placement.replica_scheduling {
            None => Need::Everywhere,
            Some(strategy) if is_duplicated(strategy) => Need::Everywhere,
            Some(_) if self.counts_sets(spec) => Need::Together(1),
            Some(_) => Need::Together(replicas),
        };
        let task = spread::Task { constraints: &constraints, need, replicas };
        let (selected, note) = spread::select(candidates, task, |member| fleet.at(member).region())?;
        diagnosis.selection = Some(note);
        Ok(selected)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "everything the decision has gathered so far comes together here"
    )]
    fn assign(
        &self,
        fleet: &Fleet,
        spec: &ResourceBindingSpec,
        status: &ResourceBindingStatus,
        context: &Context<'_>,
        placement: &Placement,
        binding: &Known,
        selected: &[Candidate],
        diagnosis: &mut Diagnosis,
    ) -> Result<Vec<TargetCluster>, (Cause, String)> {
        if selected.is_empty() {
            return Err((Cause::Other, "no clusters available to schedule".to_owned()));
        }
        let name_of = |member: u32| fleet.at(member).name().to_owned();
        let divisible =
            (spec.replicas > 0 || spec.replica_requirements.is_some()) && spec.components.len() <= 1;
        if !divisible {
            let components: Vec<TargetComponent> =
                if self.gates.components && spec.components.len() > 1 && is_one_cluster_set(spec) {
                    let copy = |one: &api::work::Component| TargetComponent {
                        name: one.name.clone(),
                        replicas: one.replicas,
                    };
                    spec.components.iter().map(copy).collect()
                } else {
                    Vec::new()
                };
            return Ok(selected
                .iter()
                .map(|candidate| TargetCluster {
                    name: name_of(candidate.member),
                    replicas: 0,
                    components: components.clone(),
                })
                .collect());
        }

        let strategy = strategy_of(placement).map_err(|error| (Cause::Other, error))?;
        let rules: Option<Vec<(Matcher, i64)>> = placement
            .replica_scheduling
            .as_ref()
            .and_then(|strategy| strategy.weight_preference.as_ref())
            .filter(|_| strategy == Strategy::StaticWeight)
            .map(|preference| {
                let rules = preference.static_weight_list.iter();
                rules.map(|rule| (Matcher::new(&rule.target_cluster, fleet), rule.weight)).collect()
            });
        let weight_of = |member: u32| match &rules {
            None => 1,
            Some(rules) => {
                let member = fleet.at(member);
                let matching = rules.iter().filter(|(matcher, _)| matcher.matches(member, fleet));
                matching.map(|(_, weight)| *weight).max().unwrap_or(0)
            }
        };
        let task = assign::Task {
            strategy,
            replicas: spec.replicas.into(),
            fresh: is_reschedule_required(spec, status),
            tiered: has_overflow(placement, context.affinity_term),
            previous: &binding.previous,
            weight_of: &weight_of,
            tie: TieRule::of_uid(&spec.resource.uid),
        };
        let (assigned, divisions) = assign::assign(selected, &task)
            .map_err(|shortage| (Cause::Unschedulable, shortage.to_string()))?;
        let targets = assigned.iter().map(|(member, replicas)| TargetCluster {
            name: name_of(*member),
            // Never more than the binding's own replicas, which have 32 bits.
            replicas: i32::try_from(*replicas).unwrap_or(i32::MAX),
            components: Vec::new(),
        });
        let targets = targets.collect();
        diagnosis.divisions = divisions;
        diagnosis.assigned = assigned;
        Ok(targets)
    }
}

/// The filters of a decision, with their places among the plug-ins.
type Filters<'a> = Vec<(usize, Box<dyn Filter + 'a>)>;

/// Returns the first filter that rejects a cluster, by its place, and its reason.
fn first_rejection(
    filters: &Filters<'_>,
    names: &[&'static str],
    position: u32,
    member: &Member,
    watch: Watch<'_>,
) -> Option<(usize, Reason)> {
    let point = meter::FILTER;
    watch.measure(
        |rejection| Measured::Point { point, result: meter::of_filter(rejection) },
        || {
            filters.iter().find_map(|(index, filter)| {
                let part = |rejection: &Option<Reason>| Measured::Plugin {
                    plugin: names[*index],
                    point,
                    result: meter::of_filter(rejection),
                };
                Some((*index, watch.measure(part, || filter.reject(position, member))?))
            })
        },
    )
}

/// The affinity term that is tried. It is looked up once: a placement may have any number of terms, and each of them is tried.
#[derive(Clone, Copy)]
pub(crate) struct Term<'a> {
    /// Empty for placements without `clusterAffinities`.
    pub(crate) name: &'a str,
    pub(crate) found: Option<&'a ClusterAffinityTerm>,
}

impl<'a> Term<'a> {
    fn named(spec: &'a ResourceBindingSpec, name: &'a str) -> Self {
        let terms = spec.placement.as_ref().map_or(&[][..], |placement| &placement.cluster_affinities);
        Self { name, found: terms.iter().find(|term| term.affinity_name == name) }
    }
}

/// What the fleet knows of a binding's previous result.
struct Known {
    /// In the order of `spec.clusters`.
    previous: Vec<(u32, i64)>,
    targets: Bits,
}

impl Known {
    fn new(spec: &ResourceBindingSpec, fleet: &Fleet) -> Self {
        let known =
            |target: &TargetCluster| Some((fleet.position(&target.name)?, i64::from(target.replicas)));
        let previous: Vec<(u32, i64)> = spec.clusters.iter().filter_map(known).collect();
        let mut targets = Bits::default();
        for (member, _) in &previous {
            targets.insert(*member);
        }
        Self { previous, targets }
    }

    fn context<'a>(&'a self, world: World<'a>, spec: &'a ResourceBindingSpec, term: Term<'a>) -> Context<'a> {
        Context {
            fleet: world.fleet,
            spec,
            affinity_name: term.name,
            affinity_term: term.found,
            workloads: world.workloads,
            targets: &self.targets,
        }
    }

    fn assigned_to(&self, member: u32) -> i64 {
        if !self.targets.contains(member) {
            return 0;
        }
        self.previous.iter().find(|(known, _)| *known == member).map_or(0, |(_, replicas)| *replicas)
    }
}

/// Tells whether somebody asked for a fresh schedule after the last successful one.
pub fn is_reschedule_required(spec: &ResourceBindingSpec, status: &ResourceBindingStatus) -> bool {
    match (&spec.reschedule_triggered_at, &status.last_scheduled_time) {
        (Some(triggered), Some(scheduled)) => triggered.0 > scheduled.0,
        _ => false,
    }
}

/// The order of clusters that match no tier of the term; sorts them behind all others.
const UNMATCHED: i32 = 1000;

fn set_overflow_order(context: &Context<'_>, placement: &Placement, candidates: &mut [Candidate]) {
    if placement.cluster_affinity.is_some() || placement.cluster_affinities.is_empty() {
        return;
    }
    let matchers: Vec<Matcher> = match context.affinity_term {
        None => Vec::new(),
        // Without overflow tiers every candidate has passed the filter of the only affinity, unless it is disabled.
        Some(term) => std::iter::once(&term.affinity)
            .chain(term.overflow_affinities.iter().map(|overflow| &overflow.affinity))
            .map(|affinity| Matcher::new(affinity, context.fleet))
            .collect(),
    };
    for candidate in candidates {
        let member = context.fleet.at(candidate.member);
        let tier = matchers.iter().position(|matcher| matcher.matches(member, context.fleet));
        candidate.overflow = tier.map_or(UNMATCHED, |tier| tier as i32);
    }
}

fn has_overflow(placement: &Placement, term: Option<&ClusterAffinityTerm>) -> bool {
    placement.cluster_affinity.is_none()
        && term.is_some_and(|term| !term.affinity_name.is_empty() && !term.overflow_affinities.is_empty())
}

fn is_duplicated(strategy: &ReplicaSchedulingStrategy) -> bool {
    strategy.replica_scheduling_type == Some(ReplicaSchedulingType::Duplicated)
}

/// Tells whether static weights are in effect, which make spread constraints moot.
fn weights_override_constraints(placement: &Placement) -> bool {
    let Some(strategy) = &placement.replica_scheduling else { return false };
    strategy.replica_scheduling_type == Some(ReplicaSchedulingType::Divided)
        && strategy.replica_division_preference == Some(ReplicaDivisionPreference::Weighted)
        && strategy.weight_preference.as_ref().is_none_or(|preference| {
            !preference.static_weight_list.is_empty()
                && !is_set(preference.dynamic_weight.as_ref().map(|one| one.as_str()))
        })
}

fn is_set(text: Option<&str>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}

fn strategy_of(placement: &Placement) -> Result<Strategy, String> {
    let Some(strategy) = &placement.replica_scheduling else { return Ok(Strategy::Duplicated) };
    let kind = strategy.replica_scheduling_type.as_ref();
    let preference = strategy.replica_division_preference.as_ref();
    match (kind, preference) {
        (Some(ReplicaSchedulingType::Duplicated), _) => Ok(Strategy::Duplicated),
        (Some(ReplicaSchedulingType::Divided), Some(ReplicaDivisionPreference::Aggregated)) => {
            Ok(Strategy::Aggregated)
        }
        (Some(ReplicaSchedulingType::Divided), Some(ReplicaDivisionPreference::Weighted)) => {
            let dynamic =
                strategy.weight_preference.as_ref().and_then(|weights| weights.dynamic_weight.as_ref());
            let dynamic = is_set(dynamic.map(|factor| factor.as_str()));
            Ok(if dynamic { Strategy::DynamicWeight } else { Strategy::StaticWeight })
        }
        _ => Err(format!(
            "unsupported replica scheduling strategy, replicaSchedulingType: {}, replicaDivisionPreference: {}, \
             please try another scheduling strategy",
            kind.map_or("", |kind| kind.as_str()),
            preference.map_or("", |preference| preference.as_str()),
        )),
    }
}

/// Tells whether the binding is a workload with components that goes to exactly one cluster, as a whole.
fn is_one_cluster_set(spec: &ResourceBindingSpec) -> bool {
    let constraints = spec.placement.as_ref().map_or(&[][..], |placement| &placement.spread_constraints);
    !spec.components.is_empty()
        && constraints.iter().any(|constraint| {
            constraint.spread_by_field == Some(SpreadFieldValue::Cluster)
                && constraint.min_groups == 1
                && constraint.max_groups == 1
        })
}
