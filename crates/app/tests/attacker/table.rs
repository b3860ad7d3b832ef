//! The table of attacks: name, finding or CVE, who attacks, what should come of it, and the function that plays it.
//!
//! Findings are written as in the list of `docs/operations/security.md` (`F1` is the first); the rest is what Kubernetes',
//! Karmada's and HTTP/2's own history suggests.

use std::pin::Pin;

use crate::stage::{Play, Verdict};
use crate::{anonymous, definitions, disk, doors, editor, fleet, frames, neighbours, nobody, rights, tenant};

#[derive(Clone, Copy)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) reference: &'static str,
    pub(crate) actor: &'static str,
    pub(crate) expected: &'static str,
    pub(crate) how: How,
}

type Solo = fn() -> Pin<Box<dyn Future<Output = Verdict>>>;

#[derive(Clone, Copy)]
pub(crate) enum How {
    /// On the common control plane, one after the other.
    Shared(Play),
    /// On the common control plane, beside the others, since it takes long.
    Long(Play),
    /// On processes of its own.
    Alone(Solo),
}

macro_rules! table {
    ($($how:ident $name:literal, $reference:literal, $actor:literal, $expected:literal, $play:path;)*) => {
        vec![$(Attack { name: $name, reference: $reference, actor: $actor, expected: $expected, how: table!(@ $how $play) }),*]
    };
    (@ shared $play:path) => { How::Shared(|stage| Box::pin($play(stage))) };
    (@ long $play:path) => { How::Long(|stage| Box::pin($play(stage))) };
    (@ alone $play:path) => { How::Alone(|| Box::pin($play())) };
}

pub(crate) fn attacks() -> Vec<Attack> {
    table! {
        // Somebody without credentials.
        shared "metric labels", "F3, CVE-2020-8552", "anonymous", "bounded", anonymous::metric_labels;
        shared "paths with dots and slashes", "CVE-2023-5043", "anonymous", "refused", anonymous::traversal;
        shared "debugging endpoints", "CVE-2019-11248", "anonymous", "refused", anonymous::debugging;
        shared "identity headers", "CVE-2019-11243", "anonymous", "refused", anonymous::identity_headers;
        shared "two credentials", "smuggling", "anonymous", "401", anonymous::two_credentials;
        shared "request smuggling", "CVE-2022-2880", "anonymous", "one answer", anonymous::smuggling;
        shared "oversized heads", "CVE-2022-41717", "anonymous", "refused", anonymous::oversized_heads;
        shared "garbage", "robustness", "anonymous", "refused", anonymous::garbage;
        shared "upgrades", "CVE-2018-1002105", "anonymous", "refused", anonymous::upgrades;
        shared "files of the server", "CVE-2024-56514", "anonymous", "refused", anonymous::files;
        // HTTP/2, frame by frame.
        shared "ping flood", "CVE-2019-9512", "anonymous", "others served", frames::pings;
        shared "priority shuffling", "CVE-2019-9513", "anonymous", "others served", frames::priorities;
        shared "reset flood", "CVE-2019-9514", "anonymous", "others served", frames::resets_provoked;
        shared "settings flood", "CVE-2019-9515", "anonymous", "others served", frames::settings;
        shared "empty header flood", "CVE-2019-9516", "anonymous", "others served", frames::empty_headers;
        shared "unread sockets", "CVE-2019-9517, F25", "editor", "memory bounded", frames::unread_sockets;
        shared "empty data flood", "CVE-2019-9518", "editor", "others served", frames::empty_data;
        shared "data dribble", "CVE-2019-9511", "no rights", "others served", frames::dribble;
        shared "rapid reset", "CVE-2023-44487", "no rights", "others served", frames::rapid_reset;
        shared "rapid reset on ten connections", "CVE-2023-44487", "no rights", "others served", frames::rapid_reset_on_many_connections;
        shared "continuation flood", "CVE-2023-45288", "anonymous", "cut off", frames::continuation;
        shared "empty continuation flood", "CVE-2024-27316", "anonymous", "others served", frames::empty_continuation;
        shared "lists behind closed windows", "F25", "editor", "memory bounded", frames::lists_behind_closed_windows;
        shared "watches behind closed windows", "F9", "editor", "memory bounded", frames::watches_behind_closed_windows;
        shared "slow bodies", "F25", "editor", "others write", frames::slow_bodies;
        shared "slow heads", "slowloris", "anonymous", "others served", frames::slow_heads;
        // Somebody with an account and no rights.
        shared "billion laughs", "CVE-2019-11253", "no rights", "refused", nobody::billion_laughs;
        shared "heavy YAML aliases", "F2, CVE-2019-11253", "no rights", "refused", nobody::heavy_aliases;
        shared "heavy YAML keys", "F2", "no rights", "refused", nobody::heavy_keys;
        shared "nesting in JSON and YAML", "F1, CVE-2019-11253", "no rights", "refused", nobody::nesting;
        shared "numbers without end", "robustness", "no rights", "refused", nobody::numbers;
        shared "broken protobuf", "CVE-2021-3121", "no rights", "refused", nobody::protobuf;
        shared "gzip bomb as a body", "CVE-2022-1271", "no rights", "refused", nobody::gzip_body;
        shared "large bodies", "CVE-2019-1002100", "no rights", "refused", nobody::large_bodies;
        shared "duplicate fields", "robustness", "no rights", "refused", nobody::duplicate_fields;
        shared "forged tokens", "CVE-2015-9235", "no rights", "401", nobody::forged_tokens;
        shared "impersonation without the right", "CVE-2018-1002105", "no rights", "403", nobody::impersonates;
        shared "refused by the hundred", "F14", "no rights", "others served", nobody::refused_by_the_hundred;
        shared "existence oracle", "information", "no rights", "same answer", nobody::oracle;
        shared "reviews about others", "CVE-2021-25743", "no rights", "refused", nobody::reviews;
        shared "path confusion", "CVE-2019-11247", "no rights", "refused", nobody::path_confusion;
        // An editor of one namespace.
        shared "patch: depth by copies", "F1, CVE-2019-1002100", "editor", "refused", editor::patch_depth_by_copies;
        shared "patch: depth by adds", "F1", "editor", "refused", editor::patch_depth_by_adds;
        shared "patch: doubling", "CVE-2019-1002100", "editor", "refused", editor::patch_doubling;
        shared "patch: operations", "CVE-2019-1002100", "editor", "413", editor::patch_operations;
        shared "patch: deep merge and apply", "F1, F2", "editor", "refused", editor::deep_patches;
        shared "patch: strategic directives", "robustness", "editor", "answered", editor::strategic_directives;
        shared "depths that are accepted", "F8", "editor", "one limit", editor::accepted_depths;
        shared "grace periods", "F5", "editor", "controllers go on", editor::grace_periods;
        shared "options at the edge", "F5", "editor", "answered", editor::options;
        shared "watch from the future", "F12", "editor", "refused", editor::future_watch;
        shared "selectors of a size", "robustness", "editor", "answered", editor::selectors;
        shared "forged continue tokens", "CVE-2019-11247", "editor", "nowhere else", editor::forged_continue;
        shared "names that are paths", "CVE-2021-25741", "editor", "refused", editor::names;
        shared "subresource confusion", "CVE-2019-11247", "editor", "refused", editor::subresources;
        shared "managed fields", "robustness", "editor", "answered", editor::managed_fields;
        shared "large objects", "CVE-2019-1002100", "editor", "refused", editor::large_objects;
        shared "owners elsewhere", "CVE-2020-8559", "editor", "untouched", editor::owners;
        shared "endpoints on loopback", "CVE-2021-25737", "editor", "422", editor::endpoints;
        shared "locked objects", "CVE-2021-25735", "editor", "unchanged", editor::locked_objects;
        shared "other namespaces", "tenancy", "editor", "403", editor::other_namespaces;
        shared "many large writes", "F25", "editor", "memory bounded", editor::many_large_writes;
        shared "each with each: finalizers by strategic patch", "quadratic work", "editor", "answered", editor::many_finalizers;
        shared "each with each: owners", "quadratic work", "editor", "answered", editor::many_owners;
        shared "each with each: ports of a service", "quadratic work", "editor", "answered", editor::many_ports;
        shared "each with each: volumes and mounts", "quadratic work", "editor", "answered", editor::many_mounts;
        shared "each with each: finalizers of a custom object", "F25", "editor", "answered", editor::many_finalizers_of_a_policy;
        shared "collections deleted as a dry run", "F9", "editor", "memory bounded", editor::dry_collections;
        shared "watch churn", "CVE-2020-8552", "editor", "others served", editor::watch_churn;
        // More rights than one was given.
        shared "roles: escalation", "CVE-2019-11247", "tenant", "403", rights::escalate;
        shared "roles: product", "F25", "tenant", "403", rights::product;
        shared "roles: many names", "F25", "tenant", "403", rights::many_names;
        shared "roles: binding", "escalation", "tenant", "403", rights::bind;
        shared "roles: aggregation", "F25", "role editor", "403", rights::aggregate;
        shared "roles: defaults", "CVE-2024-56513", "anybody", "no secrets", rights::default_roles;
        shared "csr: system:masters", "F24", "CSR creator", "refused", rights::masters_by_csr;
        shared "csr: own approval", "CVE-2020-8565", "CSR creator", "403", rights::own_approval;
        shared "csr: odd requests and times", "F5", "CSR creator", "refused", rights::odd_csrs;
        shared "csr: certificates of nodes", "CVE-2020-8558", "CSR creator", "not signed", rights::node_certificates;
        shared "tokens: revoked", "F10", "former account", "401", rights::revoked_tokens;
        shared "tokens: deleted account", "F25, CVE-2019-11244", "former account", "401", rights::tokens_of_the_dead;
        shared "tokens: odd requests", "F5", "account", "refused", rights::odd_token_requests;
        shared "impersonation: foreign names", "F7", "proxy's user", "never the proxy", rights::foreign_names;
        shared "impersonation: dropped headers", "F7, CVE-2022-31045", "proxy's user", "never the proxy", rights::dropped_headers;
        shared "impersonation: system:masters", "escalation", "impersonator", "403", rights::masters_by_impersonation;
        shared "certificates: foreign", "CVE-2020-8563", "anonymous", "401", rights::foreign_certificates;
        shared "certificates: agent", "CVE-2024-56513", "agent", "403", rights::agents;
        // Somebody who may define kinds and policies.
        shared "definition: wide schema", "CVE-2019-11253", "definer", "others served", definitions::wide_schema;
        shared "definition: deep schema", "F1", "definer", "refused", definitions::deep_schema;
        shared "definition: patterns", "ReDoS", "definer", "others served", definitions::patterns;
        shared "definition: defaults", "amplification", "definer", "memory bounded", definitions::defaults;
        shared "definition: columns", "amplification", "definer", "bounded", definitions::columns;
        shared "definition: long key with many fields", "amplification", "definer", "answered", definitions::long_key;
        shared "definition: update of a long list", "quadratic work", "definer", "answered", definitions::long_list;
        shared "definition: takeover", "CVE-2019-11247", "definer", "refused", definitions::takeover;
        shared "cel: nesting", "CVE-2021-33194", "definer", "answered", definitions::deep_expressions;
        shared "cel: costly rules", "CEL cost", "definer", "422", definitions::costly_rules;
        shared "cel: costly policies", "CEL cost", "definer", "bounded", definitions::costly_policies;
        shared "quantities", "F5", "tenant", "answered", definitions::quantities;
        // Somebody who may look at the fleet.
        shared "fleet: unread watches", "F9", "searcher", "memory bounded", fleet::unread_watches;
        shared "fleet: costly queries", "amplification", "searcher", "others served", fleet::costly_queries;
        shared "fleet: metrics of all members", "amplification", "searcher", "others served", fleet::metrics_of_all;
        shared "fleet: a registry without end", "amplification", "registrar", "bounded", fleet::endless_registry;
        // Servers that are asked.
        shared "webhook: deepens", "F1", "webhook", "refused", neighbours::hook_deepens;
        shared "webhook: doubles", "F1", "webhook", "refused", neighbours::hook_doubles;
        shared "webhook: redirects", "CVE-2020-8561", "webhook", "not followed", neighbours::hook_redirects;
        shared "webhook: never ends", "F16", "webhook", "refused", neighbours::hook_never_ends;
        shared "webhook: is silent", "CVE-2020-8561", "webhook", "refused in time", neighbours::hook_is_silent;
        shared "webhook: moves the object", "CVE-2021-25735", "webhook", "not moved", neighbours::hook_moves;
        shared "webhook: answers for another", "CVE-2021-25735", "webhook", "refused", neighbours::hook_answers_for_another;
        shared "webhook: warnings", "amplification", "webhook", "bounded", neighbours::hook_warns;
        shared "webhook: small parts", "F16", "webhook", "refused", neighbours::hook_parts;
        shared "conversion: renames", "CVE-2021-25735", "webhook", "refused", neighbours::conversion_renames;
        shared "conversion: small parts", "F16", "webhook", "refused", neighbours::conversion_parts;
        shared "aggregated: redirects", "F13, CVE-2022-3172", "aggregated", "not passed on", neighbours::aggregated_redirects;
        shared "aggregated: cuts", "F13", "aggregated", "incomplete", neighbours::aggregated_cuts;
        shared "aggregated: never ends", "F16", "aggregated", "memory bounded", neighbours::aggregated_never_ends;
        shared "aggregated: refuses upgrades", "CVE-2018-1002105", "aggregated", "no tunnel", neighbours::aggregated_refuses_upgrades;
        shared "aggregated: identity headers", "CVE-2022-3172", "definer", "one name", neighbours::aggregated_identity;
        shared "aggregated: discovery", "F13", "aggregated", "others served", neighbours::aggregated_discovery;
        shared "aggregated: small parts", "F16", "aggregated", "memory bounded", neighbours::aggregated_parts;
        shared "aggregated: long discovery", "F13", "aggregated", "others served", neighbours::aggregated_long_discovery;
        shared "member: never ends", "F16", "member", "memory bounded", neighbours::member_never_ends;
        shared "member: * never ends", "F16", "member", "memory bounded", neighbours::members_never_end;
        shared "member: gzip bombs", "F16", "member", "memory bounded", neighbours::member_bombs;
        shared "member: nests", "F16", "member", "others served", neighbours::member_nests;
        shared "member: small parts", "F16", "member", "memory bounded", neighbours::member_parts;
        shared "member: redirects", "F13, CVE-2020-8559", "member", "nobody follows", neighbours::member_redirects;
        shared "proxy: paths", "F24, CVE-2022-3172", "proxy user", "refused", neighbours::proxy_paths;
        shared "proxy: identity headers", "F7, CVE-2021-25740", "proxy user", "one name", neighbours::proxy_identity;
        shared "cluster: stolen secret", "F15", "registrar", "not sent", neighbours::stolen_secret;
        shared "member: is silent", "F4", "member", "others served", neighbours::member_is_silent;
        // A tenant with policies.
        shared "override: kind", "F6", "tenant", "not changed", tenant::overrides_the_kind;
        shared "override: place", "F6", "tenant", "not changed", tenant::overrides_the_place;
        shared "override: marks", "F6", "tenant", "others go on", tenant::overrides_the_marks;
        shared "override: depth", "F1", "tenant", "others go on", tenant::overrides_the_depth;
        shared "override: YAML bomb", "F25", "tenant", "memory bounded", tenant::overrides_a_bomb;
        shared "binding by hand", "F25", "editor", "not propagated", tenant::binding_by_hand;
        shared "policy for others", "tenancy", "tenant", "not propagated", tenant::policy_for_others;
        shared "works by hand", "CVE-2024-56513", "tenant", "403", tenant::works_by_hand;
        shared "large policies", "robustness", "tenant", "judged", tenant::large_policies;
        // The machine.
        shared "second start", "F25", "operator", "nothing changes", disk::second_start;
        shared "broken authority", "F11", "operator", "not replaced", disk::broken_authority;
        shared "modes of files", "F24, CVE-2019-11244", "local user", "private", disk::modes;
        shared "mode of a backup", "F24", "local user", "private", disk::backup;
        // What it costs is charged to its user, who could make no definitions for some minutes on a slow machine.
        shared "definition: long property", "amplification", "definer", "answered", definitions::long_property;
        // Takes long.
        long "aggregated: is silent", "F13, F25", "aggregated", "ends in time", neighbours::aggregated_is_silent;
        // On processes of their own.
        alone "silent: TCP", "F4", "anonymous", "others served", doors::tcp;
        alone "silent: TLS", "F4, F25", "anonymous", "others served", doors::tls;
        alone "silent: HTTP/2 preface", "F4, F25", "anonymous", "others served", doors::preface;
        alone "silent: webhook server", "F4", "anonymous", "others served", doors::webhook;
        alone "silent: metrics of the controllers", "F4", "anonymous", "others served", doors::metrics;
        alone "reviews of many small parts", "F16", "anonymous", "refused", doors::dense_reviews;
        alone "rights of others told by reviews", "F17", "anonymous", "not told", doors::rights_of_others;
        alone "quota charged by a stranger", "F17", "anonymous", "not charged", doors::quota;
    }
}
