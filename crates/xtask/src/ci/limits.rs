//! Holds the table of limits on the security page to the code: every number in it is read from the sources, and so is every flag.
//!
//! Most limits are constants that only their module needs. They are read as text, so that none has to be public for a page.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

const PAGE: &str = "docs/operations/security.md";
const TABLE: &str = "## Limits and their flags";

/// The words that make a number on the page a size, a time or a share.
const UNITS: &[&str] = &["MiB", "KiB", "bytes", "s", "minutes", "hours", "%"];

/// Where the flags of the table are declared.
const FLAGS: &[&str] = &["app/src/access.rs", "app/src/server.rs", "app/src/controllers.rs"];

/// A row by its first cell, and the numbers of its second one in their order.
type Row = (&'static str, Vec<String>);

/// Returns the rows that the table has to have. Rows without a number need no line here.
fn rows(code: &Code) -> Result<Vec<Row>> {
    let account = "apiserver/src/account.rs";
    let reply = "apiserver/src/outbound/reply.rs";
    let discovery = "apiserver/src/aggregation/discovery.rs";
    let audit = "apiserver/src/audit/log.rs";
    let listener = "apiserver/src/http/listener/mod.rs";
    let member = "member/src/limit.rs";
    let metrics = "app/src/fleet_metrics.rs";
    let room = "app/src/webhook/room.rs";
    let proxy = "app/src/cluster_proxy.rs";
    let proxy_room = "app/src/cluster_proxy/room.rs";
    let patch = "apimachinery/src/patch/json.rs";
    let parser = "cel/src/parser.rs";
    let script = "interpreter/src/lua/mod.rs";
    let overrides = "propagation/src/overrides/budget.rs";
    let estimator = "estimator/src/server.rs";
    let estimators = "estimator/src/server/guests.rs";

    let bodies = code.flag("app/src/access.rs", "max_request_bytes_per_user")? << 20;
    let unread = code.flag("app/src/access.rs", "max_unread_per_user")? << 20;
    let users = code.value(account, "const USERS: usize = ")?;
    let few = code.value(account, "const FEW: usize = ")?;
    let reserve = code.value(account, "self.limit / ")?;

    Ok(vec![
        (
            "Connections, in all and from one address",
            vec![count(code.value(listener, "const USUAL_MOST: usize = ")?)],
        ),
        (
            "A connection without a request",
            vec![seconds(code.flag("app/src/access.rs", "connection_idle_timeout")?)],
        ),
        (
            "Request bodies of one user that are being handled",
            vec![
                mib(bodies),
                mib(bodies),
                kib(code.value(account, "const SMALL: usize = ")?),
                format!("{} bytes", code.value(account, "const PART: usize = ")?),
                mib(bodies * users),
                mib(bodies / few),
                mib(bodies * users / reserve),
            ],
        ),
        (
            "Answers that one user has not read yet, watches included",
            vec![
                mib(unread),
                mib(unread * users),
                seconds(code.value(account, "stall: Duration::from_secs(")?),
            ],
        ),
        (
            "Answers of members",
            vec![
                mib(code.value(member, "const ANSWER_LIMIT: usize = ")?),
                mib(code.value(member, "const ANSWER_WEIGHT: usize = ")?),
                mib(code.value(member, "const PAGE_LIMIT: usize = ")?),
                mib(code.value(member, "const PAGE_WEIGHT: usize = ")?),
                mib(code.value(member, "const MEMBER_LIMIT: usize = ")?),
                mib(code.value(member, "const COPY_LIMIT: usize = ")?),
            ],
        ),
        (
            "Copies of members' objects for the search",
            vec![mib(code.value("app/src/plane.rs", "const SEARCH_CACHE: usize = ")?)],
        ),
        (
            "Metrics of all members",
            vec![
                seconds(code.value(metrics, "const PATIENCE: Duration = Duration::from_secs(")?),
                mib(code.value(metrics, "const ROOM: usize = ")?),
                count(code.value(metrics, "const AT_ONCE: usize = ")?),
            ],
        ),
        (
            "Queries over the fleet",
            vec![
                count(code.value("fleet/src/query/parse.rs", "const LONGEST: usize = ")?),
                count(code.value("fleet/src/query/run.rs", "held: 10_000_000, all: ")?),
            ],
        ),
        (
            "Reviews that `karmada webhook` handles",
            vec![
                mib(code.value(room, "Self { body: ")?),
                mib(code.value(room, ", tree: ")?),
                mib(code.value(room, ", bodies: ")?),
                mib(code.value(room, ", trees: ")?),
            ],
        ),
        (
            "Time until the answer of a member begins (`clusters/NAME/proxy`)",
            vec![
                seconds(60 * code.value(proxy, "usual: minutes(")?),
                format!("{} minutes", code.value(proxy, "open: minutes(")?),
                format!("{} hours", code.value(proxy, "quiet: minutes(")? / 60),
            ],
        ),
        (
            "Lists of all clusters (`clusters/*/proxy`)",
            vec![
                mib(code.value(member, "const PAGE_LIMIT: usize = ")?),
                mib(code.value(proxy_room, "const REQUEST: usize = ")?),
                mib(code.value(proxy_room, "const ALL: usize = ")?),
                count(code.value(proxy_room, "const AT_ONCE: usize = ")?),
            ],
        ),
        (
            "Removals that one change causes",
            vec![
                count(code.flag("app/src/controllers.rs", "removal_limit_templates")?),
                format!("{} %", code.flag("app/src/controllers.rs", "removal_limit_percent")?),
            ],
        ),
        (
            "Reads and writes handled at once",
            vec![
                count(code.flag("app/src/server.rs", "max_requests_inflight")?),
                count(code.flag("app/src/server.rs", "max_mutating_requests_inflight")?),
            ],
        ),
        ("Request body", vec![mib(code.value("apiserver/src/handlers/mod.rs", "const MAX_BODY: usize = ")?)]),
        ("Head of a request", vec![kib(code.value(listener, ".max_header_list_size(")?)]),
        (
            "Object as stored",
            // The second number is etcd's own.
            vec![mib(code.value("store/src/options.rs", "max_value_bytes: ")?), "1.5 MiB".to_string()],
        ),
        (
            "Depth of an object, however it is created",
            vec![count(code.value("apimachinery/src/depth.rs", "const MAX_DEPTH: usize = ")?)],
        ),
        ("Operations of a JSON patch", vec![count(code.value(patch, "const MAX_OPERATIONS: usize = ")?)]),
        (
            "Places by which one JSON patch shifts items of lists; bytes that it moves to deeper places; bytes that its copies add",
            vec![
                count(code.value(patch, "const MAX_SHIFTED: usize = ")?),
                mib(code.value(patch, "const MAX_DEEPENED_BYTES: usize = ")?),
                mib(code.value(patch, "const MAX_COPIED_BYTES: usize = ")?),
            ],
        ),
        (
            "Bytes that YAML aliases produce",
            vec![mib(code.value("apimachinery/src/yaml.rs", "const MAX_ALIASED_BYTES: usize = ")?)],
        ),
        (
            "CEL",
            vec![
                count(code.value(parser, "const MAX_DEPTH: usize = ")?),
                count(code.value(parser, "const MAX_SIZE: usize = ")?),
            ],
        ),
        (
            "Scripts of customizations, each run",
            vec![
                seconds(code.value(script, "time: SignedDuration::from_secs(")?),
                count(code.value(script, "steps: ")?),
                mib(code.value(script, "bytes: ")?),
            ],
        ),
        (
            "Overrides of one object in one cluster",
            vec![
                count(code.value(overrides, "const MAX_RULES: usize = ")?),
                count(code.value(overrides, "const MAX_ENTRIES: usize = ")?),
                mib(code.value(overrides, "const MAX_BYTES: usize = ")?),
            ],
        ),
        (
            "Comparing a role with the rights of its writer",
            vec![count(code.value("apiserver/src/auth/escalation/missing.rs", "const STEPS: usize = ")?)],
        ),
        (
            "Request for a certificate",
            vec![kib(code.value("apiserver/src/auth/signing_request.rs", "const LONGEST: usize = ")?)],
        ),
        (
            "Keys by which the items of a list of a custom kind are told apart",
            vec![count(code.value("apimachinery/src/crd/schema.rs", "const MOST_MAP_KEYS: usize = ")?)],
        ),
        (
            "Watches of a user",
            vec![count(code.value("apiserver/src/limits.rs", "const LONG_RUNNING: usize = ")?)],
        ),
        ("Webhooks", vec![seconds(code.value("native/src/validation/admission.rs", "!(1..=")?)]),
        (
            "Answers of webhooks for admission and conversion, and of aggregated servers when they are asked what they serve",
            vec![
                mib(code.value(reply, "const MAX_REPLY: usize = ")?),
                mib(code.value(reply, "const MAX_TREE: usize = ")?),
                mib(code.value(reply, "const ARRIVING: usize = ")?),
                mib(code.value(reply, "const TREES: usize = ")?),
                mib(code.value(reply, "const ALL_ARRIVING: usize = ")?),
                mib(code.value(reply, "const ALL_TREES: usize = ")?),
            ],
        ),
        (
            "What a group version of an aggregated server has",
            vec![
                count(code.value(discovery, "const MOST_RESOURCES: usize = ")?),
                mib(code.value(discovery, "const RESOURCES: usize = ")?),
                count(code.value(discovery, "const MOST_PIECES: usize = ")?),
                mib(code.value(discovery, "const OPENAPI: usize = ")?),
                mib(code.value(discovery, "const OPENAPI_TREE: usize = ")?),
            ],
        ),
        (
            "Converted objects that are kept",
            vec![
                count(code.value("apiserver/src/conversion/mod.rs", "const REMEMBERED: usize = ")?),
                mib(code.value("apiserver/src/conversion/mod.rs", "const REMEMBERED_BYTES: usize = ")?),
            ],
        ),
        (
            "Answers of interpreter webhooks and of OpenSearch",
            vec![
                mib(code.value(member, "const ANSWER_LIMIT: usize = ")?),
                mib(code.value(member, "const ANSWER_WEIGHT: usize = ")?),
            ],
        ),
        (
            "Connections of an estimator",
            vec![
                count(code.value(estimators, "Self { all: ")?),
                count(code.value(estimators, ", per_address: ")?),
                count(code.value(estimator, "const AT_ONCE: usize = ")?),
                mib(code.value(estimator, "const LARGEST: usize = ")?),
            ],
        ),
        (
            "Lines that wait for the audit log",
            vec![
                count(code.value(audit, "const WAITING: usize = ")?),
                mib(code.value(audit, "const WAITING_BYTES: usize = ")?),
            ],
        ),
    ])
}

fn in_units(value: u64, unit: u64, name: &str) -> String {
    if value.is_multiple_of(unit) {
        format!("{} {name}", count(value / unit))
    } else {
        format!("{value} bytes")
    }
}

fn mib(value: u64) -> String {
    in_units(value, 1 << 20, "MiB")
}

fn kib(value: u64) -> String {
    in_units(value, 1 << 10, "KiB")
}

fn seconds(value: u64) -> String {
    format!("{value} s")
}

/// Separates thousands by commas.
fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The sources, by their paths below `crates`.
struct Code<'a> {
    root: &'a Path,
}

impl Code<'_> {
    fn read(&self, file: &str) -> Result<String> {
        let text = fs::read_to_string(self.root.join("crates").join(file));
        text.with_context(|| format!("cannot read crates/{file}"))
    }

    /// Returns the number that follows some code, which has to be in one place only; tests do not count.
    fn value(&self, file: &str, before: &str) -> Result<u64> {
        let text = self.read(file)?;
        let text = text.split_once("\nmod tests {").map_or(text.as_str(), |(code, _)| code);
        let found: Vec<u64> =
            text.match_indices(before).filter_map(|(at, _)| number(&text[at + before.len()..])).collect();
        match found.as_slice() {
            [value] => Ok(*value),
            found => {
                bail!("crates/{file} has {} numbers after `{before}`: see xtask's limits.rs", found.len())
            }
        }
    }

    /// Returns the default of a flag.
    fn flag(&self, file: &str, field: &str) -> Result<u64> {
        let text = self.read(file)?;
        let default = "default_value_t = ";
        let value = text.split_once(&format!("\n    {field}: ")).and_then(|(above, _)| {
            let at = above.rfind(default)?;
            number(&above[at + default.len()..])
        });
        value.with_context(|| format!("crates/{file} has no default for {field}: see xtask's limits.rs"))
    }

    fn has_flag(&self, flag: &str) -> Result<bool> {
        let field = format!("\n    {}: ", flag.trim_start_matches("--").replace('-', "_"));
        for file in FLAGS {
            if self.read(file)?.contains(&field) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Reads a number at the start of a text, or numbers that are multiplied or shifted: `3 * 1024`, `64 << 20`.
fn number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || "_ *<".contains(c))).unwrap_or(text.len());
    let value = |word: &str| word.trim().replace('_', "").parse::<u64>().ok();
    let product =
        |text: &str| text.split('*').map(value).try_fold(1, |all: u64, next| all.checked_mul(next?));
    match text[..end].split_once("<<") {
        Some((left, right)) => product(left)?.checked_shl(value(right)?.try_into().ok()?),
        None => product(&text[..end]),
    }
}

/// Returns the numbers in a text, each with its unit.
fn numbers(text: &str) -> Vec<String> {
    let mut words =
        text.split_whitespace().map(|word| word.trim_matches(['(', ')', ',', ';', '.', ':'])).peekable();
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        if !word.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let unit = words.next_if(|word| UNITS.contains(word));
        found.push(unit.map_or_else(|| word.to_string(), |unit| format!("{word} {unit}")));
    }
    found
}

/// Returns the cells of the table's rows.
fn table(page: &str) -> Vec<Vec<&str>> {
    let below = page.split_once(TABLE).map_or("", |(_, below)| below);
    let lines = below.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let rows = lines.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches(['|', ' ']).split('|').map(str::trim).collect()).collect()
}

/// Returns what the table says and the code does not.
pub(super) fn complaints(root: &Path) -> Result<Vec<String>> {
    let code = Code { root };
    let page = fs::read_to_string(root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let mut expected = rows(&code)?;
    let mut complaints = Vec::new();
    for cells in table(&page) {
        let (what, said) = (cells[0], numbers(cells.get(1).copied().unwrap_or_default()));
        let at = expected.iter().position(|(row, _)| *row == what);
        let meant = at.map(|at| expected.remove(at).1).unwrap_or_default();
        if said != meant {
            complaints.push(format!("{PAGE} says {said:?} of \"{what}\", and the code {meant:?}"));
        }
        for flag in cells.get(2).copied().unwrap_or_default().split('`').filter(|flag| flag.starts_with("--"))
        {
            if !code.has_flag(flag)? {
                complaints.push(format!("{PAGE} names {flag}, which does not exist"));
            }
        }
    }
    complaints.extend(expected.into_iter().map(|(what, _)| format!("{PAGE} has no row \"{what}\"")));
    Ok(complaints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_30_the_page_names_the_limits_of_the_code() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert_eq!(complaints(&root).expect("the page and the sources"), Vec::<String>::new());
    }

    #[test]
    fn numbers_of_code_are_read() {
        for (text, expected) in [
            ("10_000;", Some(10_000)),
            ("3 * 1024 * 1024;", Some(3 << 20)),
            ("64 << 20, trees", Some(64 << 20)),
            ("30), x: 4", Some(30)),
            ("PAGE_LIMIT;", None),
            ("", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
    }

    #[test]
    fn numbers_of_a_page_are_read_with_their_units() {
        let text = "64 MiB, and (512 bytes) for each of 10,000; some ten seconds, 50 % of `a/*/b`";
        assert_eq!(numbers(text), ["64 MiB", "512 bytes", "10,000", "50 %"]);
        assert_eq!([count(7), count(1234), count(67_108_864)], ["7", "1,234", "67,108,864"]);
        assert_eq!([mib(3 << 20), mib(1_500_000), kib(65_536)], ["3 MiB", "1500000 bytes", "64 KiB"]);
    }

    #[test]
    fn rows_end_with_the_table() {
        let page = format!(
            "# X\n\n{TABLE}\n\n| a | b |\n|---|---|\n| one | 1 |\n| two | – | `--x` |\n\n| other | 2 |\n"
        );
        assert_eq!(table(&page), [vec!["one", "1"], vec!["two", "–", "`--x`"]]);
    }
}
