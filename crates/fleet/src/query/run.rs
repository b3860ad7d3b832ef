//! Answers a query from the caches in small pieces, so that writers of a cache never wait for a long query.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::selector::label::Labels;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::parse::{Effort, Field, Query, Term, What, glob};
use crate::cache::{Cache, Found, Place};
use crate::entry::Entry;
use crate::index::Field as Word;

/// How much one query may cost.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// How many objects are taken from a cache in one piece.
    piece: usize,
    /// Steps of comparing while nobody can write to the cache: some ten milliseconds.
    held: u64,
    /// Steps of comparing in all: some ten seconds. A million objects that are each compared with five patterns take a tenth of it.
    all: u64,
}

const BOUNDS: Bounds = Bounds { piece: 4096, held: 10_000_000, all: 4_000_000_000 };

/// The order of the results; within it, and by default, they are ordered by kind, cluster, namespace and name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Name,
    Youngest,
    Oldest,
    Status,
}

impl Order {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "name" => Some(Self::Name),
            "age" => Some(Self::Youngest),
            "-age" => Some(Self::Oldest),
            "status" => Some(Self::Status),
            _ => None,
        }
    }
}

/// The requested part of the answer.
#[derive(Debug, Clone, Default)]
pub struct Page {
    pub order: Order,
    pub limit: usize,
    /// The token from the previous answer.
    pub after: String,
}

/// An object in the result.
#[derive(Debug, Clone)]
pub struct Row {
    pub cache: Arc<Cache>,
    pub found: Found,
}

#[derive(Debug, Default)]
pub struct Answer {
    pub rows: Vec<Row>,
    /// The token for the next page.
    pub next: Option<String>,
    /// How many objects were checked.
    pub looked_at: usize,
}

/// Where the next page begins.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Token {
    kind: String,
    /// The place, as in resource versions.
    cluster: String,
    key: String,
    /// For orders that need the complete result.
    skip: usize,
}

/// Answers a query. `seen` returns whether the objects of a cluster may be shown.
///
/// # Errors
/// If the token of the page before is not one of ours, or if too much would have to be compared.
pub fn run(
    query: &Query,
    caches: &[Arc<Cache>],
    seen: impl Fn(&Cache, &str) -> bool,
    now: jiff::Timestamp,
    page: &Page,
) -> Result<Answer, String> {
    run_in(BOUNDS, query, caches, seen, now, page)
}

fn run_in(
    bounds: Bounds,
    query: &Query,
    caches: &[Arc<Cache>],
    seen: impl Fn(&Cache, &str) -> bool,
    now: jiff::Timestamp,
    page: &Page,
) -> Result<Answer, String> {
    let token = if page.after.is_empty() { None } else { Some(Token::parse(&page.after)?) };
    let (mut answer, effort) = (Answer::default(), Effort::new(bounds.all));
    let sorted = page.order == Order::Name;
    let limit = if page.limit == 0 { usize::MAX } else { page.limit };
    'all: for cache in caches {
        let name = kind_name(cache);
        if sorted && token.as_ref().is_some_and(|token| name < token.kind) {
            continue;
        }
        for (place, ..) in cache.places() {
            if !query.wants_cluster(&place.cluster) || !seen(cache, &place.cluster) {
                continue;
            }
            let after = token.as_ref().filter(|token| sorted && token.kind == name);
            let mut after = match after {
                Some(token) if place < token.place() => continue,
                Some(token) if place == token.place() => Some(token.key.clone()),
                _ => None,
            };
            loop {
                let (entries, stale) = candidates(query, cache, &place, after.as_deref(), bounds);
                let last = entries.last().filter(|_| entries.len() == bounds.piece);
                after = last.map(|entry| entry.key().to_owned());
                for entry in entries {
                    answer.looked_at = answer.looked_at.saturating_add(1);
                    let fits = query.terms.iter().all(|term| holds(term, &entry, now, &effort));
                    if effort.is_spent() {
                        return Err(
                            "the query compares too much; name a kind, a cluster or a namespace, or use \
                                    fewer patterns with stars"
                                .to_owned(),
                        );
                    }
                    if !fits {
                        continue;
                    }
                    if sorted && answer.rows.len() == limit {
                        answer.next = answer.rows.last().map(|row| Token::of(row).to_string());
                        break 'all;
                    }
                    let found = Found { place: place.clone(), entry, stale: stale.clone() };
                    answer.rows.push(Row { cache: cache.clone(), found });
                }
                if after.is_none() {
                    break;
                }
            }
        }
    }
    if !sorted {
        match page.order {
            Order::Youngest => {
                answer.rows.sort_by_key(|row| std::cmp::Reverse(row.found.entry.facts.created))
            }
            Order::Oldest => answer.rows.sort_by_key(|row| row.found.entry.facts.created),
            _ => answer.rows.sort_by(|a, b| a.found.entry.facts.status.cmp(&b.found.entry.facts.status)),
        }
        let skip = token.map_or(0, |token| token.skip);
        let end = skip.saturating_add(limit);
        if answer.rows.len() > end {
            answer.next = Some(Token { skip: end, ..Token::default() }.to_string());
            answer.rows.truncate(end);
        }
        answer.rows.drain(..skip.min(answer.rows.len()));
    }
    Ok(answer)
}

/// The order in which caches are searched.
fn kind_name(cache: &Cache) -> String {
    let kind = &cache.kind;
    format!("{}/{}/{}", kind.group, kind.version, kind.plural)
}

/// Returns the next objects of a place that can match, sorted, and whether they may be old: from the index of a word where that leaves out
/// at least half of them, and where that is soon known.
fn candidates(
    query: &Query,
    cache: &Cache,
    place: &Place,
    after: Option<&str>,
    bounds: Bounds,
) -> (Vec<Arc<Entry>>, Option<Arc<str>>) {
    let state = cache.state.read();
    let Some(shard) = state.shards.get(place) else { return Default::default() };
    let index = &shard.index;
    let word = |term: &Term| match &term.what {
        What::Matches(field, patterns) if !term.not => {
            let field = match field {
                Field::Status => Word::Status,
                Field::Image => Word::Image,
                Field::Node => Word::Node,
                _ => return None,
            };
            Some((field, patterns.clone()))
        }
        _ => None,
    };
    let held = Effort::new(bounds.held);
    let fits = |patterns: &[String], word: &str| patterns.iter().any(|pattern| glob(pattern, word, &held));
    let best = query
        .terms
        .iter()
        .filter_map(word)
        .map(|(field, patterns)| (index.count(field, |word| fits(&patterns, word)), field, patterns))
        .min_by_key(|(count, ..)| *count)
        .filter(|_| !held.is_spent());
    let most = bounds.piece;
    let entries = match best {
        Some((count, field, patterns)) if count.saturating_mul(2) <= index.len() => {
            // What was compared once may be compared again.
            let again = Effort::new(bounds.held);
            let fits =
                |patterns: &[String], word: &str| patterns.iter().any(|pattern| glob(pattern, word, &again));
            index.with(field, |word| fits(&patterns, word), after).take(most).cloned().collect()
        }
        _ => index.walk(query.namespace().unwrap_or(""), after).take(most).cloned().collect(),
    };
    (entries, shard.stale_since())
}

fn holds(term: &Term, entry: &Entry, now: jiff::Timestamp, effort: &Effort) -> bool {
    let facts = &entry.facts;
    let (namespace, name) = entry.names();
    let any = |patterns: &[String], text: &str| patterns.iter().any(|pattern| glob(pattern, text, effort));
    let is = match &term.what {
        // Already decided.
        What::Matches(Field::Kind | Field::Cluster, _) => return true,
        What::Matches(Field::Namespace, patterns) => any(patterns, namespace),
        What::Matches(Field::Name, patterns) => any(patterns, name),
        What::Matches(Field::Status, patterns) => any(patterns, &facts.status),
        What::Matches(Field::Node, patterns) => any(patterns, &facts.node),
        What::Matches(Field::Image, patterns) => facts.images.iter().any(|image| any(patterns, image)),
        What::Label(key, patterns) => {
            entry.label(key).is_some_and(|value| patterns.is_empty() || any(patterns, value))
        }
        What::Younger { than, or_as_old } => {
            let seconds = now.as_second().saturating_sub(facts.created);
            let age = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            age < *than || *or_as_old && age == *than
        }
    };
    is != term.not
}

impl Token {
    fn of(row: &Row) -> Self {
        let (cluster, key) = (row.found.place.to_string(), row.found.entry.key().to_owned());
        Self { kind: kind_name(&row.cache), cluster, key, skip: 0 }
    }

    fn place(&self) -> Place {
        Place::parse(&self.cluster)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok();
        let token = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        token.ok_or_else(|| "the continue token is not one of a query".to_owned())
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token is plain data")))
    }
}

#[cfg(test)]
mod tests {
    use runtime::room::Budget;
    use serde_json::json;

    use super::*;
    use crate::plan::Kind;

    /// Two clusters with pods: in `eu-1` ten in `shop`, in `us-1` five in `bank`, every fifth pending, images v1 and v2 by turns.
    fn caches() -> Vec<Arc<Cache>> {
        let kind = Kind::test("", "v1", "Pod", "pods");
        let cache = Arc::new(Cache::new(kind.clone(), Arc::new(Budget::new(1 << 20))));
        for (cluster, namespace, count) in [("eu-1", "shop", 10), ("us-1", "bank", 5)] {
            let place = Place::cluster(cluster);
            cache.expect(&place);
            let pods = (0..count).map(|number| {
                let object = json!({
                    "metadata": {"name": format!("p{number}"), "namespace": namespace, "resourceVersion": "1",
                        "creationTimestamp": format!("2026-01-01T00:{number:02}:00Z"), "labels": {"number": number.to_string()}},
                    "spec": {"nodeName": "n1", "containers": [{"image": format!("nginx:v{}", number % 2 + 1)}]},
                    "status": {"phase": if number % 5 == 0 { "Pending" } else { "Running" }}});
                Entry::new(&kind, object).unwrap()
            });
            cache.replace(&place, 7, pods.collect()).unwrap();
        }
        vec![cache]
    }

    fn ask(text: &str, page: &Page) -> Answer {
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        run(&Query::parse(text).unwrap(), &caches(), |_, cluster| cluster != "hidden", now, page).unwrap()
    }

    fn check(text: &str, expected: &str) {
        let found = ask(text, &Page::default());
        let names =
            found.rows.iter().map(|row| format!("{}:{}", row.found.place.cluster, row.found.entry.names().1));
        assert_eq!(names.collect::<Vec<_>>().join(" "), expected, "{text}");
    }

    #[test]
    fn terms_must_all_hold() {
        check("status:Pending", "eu-1:p0 eu-1:p5 us-1:p0");
        check("status!=Running", "eu-1:p0 eu-1:p5 us-1:p0");
        check("image:*:v2 cluster:eu-* age<4m", "eu-1:p7 eu-1:p9");
        check("age<=3m image:*:v2", "eu-1:p7 eu-1:p9");
        check("age>=8m ns:bank", "us-1:p0 us-1:p1 us-1:p2");
        check("label:number=3,4 cluster!=eu-1", "us-1:p3 us-1:p4");
        check("p9", "eu-1:p9");
        check("node:n2", "");
        check("node:n1 name:p1", "eu-1:p1 us-1:p1");
        check("status:Nonsense", "");
    }

    #[test]
    fn an_index_leaves_out_what_cannot_match() {
        assert_eq!(ask("status:Pending", &Page::default()).looked_at, 3);
        assert_eq!(ask("status:Running", &Page::default()).looked_at, 15, "most are: walking is as good");
    }

    #[test]
    fn pages_make_up_the_whole_in_any_order() {
        for order in [Order::Name, Order::Youngest, Order::Oldest, Order::Status] {
            let whole = ask("", &Page { order, ..Page::default() });
            let mut page = Page { order, limit: 4, after: String::new() };
            let mut rows = Vec::new();
            loop {
                let answer = ask("", &page);
                assert!(answer.rows.len() <= 4);
                rows.extend(answer.rows);
                let Some(next) = answer.next else { break };
                page.after = next;
            }
            let names = |rows: &[Row]| {
                rows.iter()
                    .map(|row| format!("{}/{}", row.found.place, row.found.entry.key()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(names(&rows), names(&whole.rows), "{order:?}");
        }
        let youngest = ask("", &Page { order: Order::Youngest, limit: 1, after: String::new() });
        assert_eq!(youngest.rows[0].found.entry.key(), "shop/p9");
        assert!(
            run(
                &Query::default(),
                &[],
                |_, _| true,
                jiff::Timestamp::now(),
                &Page { after: "x".to_owned(), ..Page::default() }
            )
            .is_err()
        );
    }

    #[test]
    fn what_is_found_does_not_depend_on_how_it_is_cut_into_pieces() {
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        for text in ["", "status:Pending", "image:*:v2 age<4m", "image:*", "ns:shop"] {
            let names = |piece: usize| {
                let query = Query::parse(text).unwrap();
                let bounds = Bounds { piece, ..BOUNDS };
                let answer = run_in(bounds, &query, &caches(), |_, _| true, now, &Page::default()).unwrap();
                let name =
                    |row: &Row| format!("{}/{}", row.found.place.cluster, row.found.entry.key().to_owned());
                (answer.looked_at, answer.rows.iter().map(name).collect::<Vec<_>>())
            };
            let whole = names(BOUNDS.piece);
            for piece in 1..12 {
                assert_eq!(names(piece), whole, "{text} in pieces of {piece}");
            }
        }
    }

    /// A member says what it likes, for example images of a megabyte; whoever asks chooses patterns that fit them nearly everywhere.
    #[test]
    fn finding_25_a_query_that_compares_without_end_is_refused_and_holds_up_no_writer() {
        let kind = Kind::test("", "v1", "Pod", "pods");
        let cache = Arc::new(Cache::new(kind.clone(), Arc::new(Budget::new(64 << 20))));
        let place = Place::cluster("hostile");
        cache.expect(&place);
        let image = "a".repeat(100_000);
        let pods = (0..20).map(|number| {
            let containers = json!([{ "image": format!("{image}{number}") }]);
            let metadata = json!({"name": format!("p{number}"), "namespace": "x", "resourceVersion": "1"});
            Entry::new(&kind, json!({"metadata": metadata, "spec": {"containers": containers}})).unwrap()
        });
        cache.replace(&place, 7, pods.collect()).unwrap();
        let caches = [cache];
        let query = Query::parse(&format!("image:*{}b", "a".repeat(1_000))).unwrap();
        let bounds = Bounds { held: 100_000, all: 10_000_000, ..BOUNDS };
        let asked = |bounds: Bounds, query: &Query| {
            let now = jiff::Timestamp::UNIX_EPOCH;
            run_in(bounds, query, &caches, |_, _| true, now, &Page::default())
                .map(|answer| (answer.rows.len(), answer.looked_at))
        };
        let error = asked(bounds, &query).unwrap_err();
        assert!(error.contains("compares too much"), "{error}");
        // To look into the index would take too long, so everything is looked at, a piece at a time.
        let few = Query::parse("image:*7").unwrap();
        assert_eq!(asked(bounds, &few), Ok((2, 20)));
        assert_eq!(asked(BOUNDS, &few), Ok((2, 2)));
    }

    #[test]
    fn objects_that_the_caller_may_not_see_are_not_found() {
        let now = jiff::Timestamp::now();
        let answer =
            run(&Query::default(), &caches(), |_, cluster| cluster == "us-1", now, &Page::default()).unwrap();
        assert_eq!(answer.rows.len(), 5);
    }
}
