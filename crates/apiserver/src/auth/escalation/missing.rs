//! What is granted without being held, in kube-apiserver's words.
//!
//! A rule stands for each of its verbs on each of its resources, in each of its groups and by each of its names: two kilobytes of
//! rules can mean a thousand million rights. They are not multiplied out. Values of a list that the same held rules name are
//! judged together, so the work depends on how differently they are held and not on how many combinations they have.

use std::collections::{BTreeSet, HashMap, HashSet};

use apimachinery::go;

use crate::auth::rbac::Rule;

/// How many values are looked up for one write. A look-up takes some 100 ns, so this is about a second. A body of 3 MiB has at
/// most a million values, and an ordinary role that is compared with ordinary rights takes some thousand look-ups.
const STEPS: usize = 10_000_000;
/// How many bytes of missing rights are told: some 1,500 resources with their usual verbs. Two kilobytes of rules may miss a
/// thousand million.
const TOLD: usize = 256 << 10;
/// What a line has besides its values: `{APIGroups:[], Resources:[], ResourceNames:[], Verbs:[]}`.
const FRAME: usize = 64;
/// What a value has besides its text: two quotes and a space.
const QUOTES: usize = 3;

/// Why rights are not granted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// These are not held. If they are not all, the rest is not told.
    Missing { lines: Vec<String>, all: bool },
    /// There are too many combinations to find out.
    TooMany,
}

/// Checks that everything that is granted is held.
pub(super) fn check(held: &[&Rule], granted: &[Rule]) -> Result<(), Refused> {
    let mut search = Search::default();
    let stopped = search.run(held, granted).err();
    let lines = search.told.lines();
    match stopped {
        None if lines.is_empty() => Ok(()),
        Some(Stopped::TooMany) if lines.is_empty() => Err(Refused::TooMany),
        _ => Err(Refused::Missing { lines, all: stopped.is_none() }),
    }
}

/// Why the search ends early.
#[derive(Debug)]
enum Stopped {
    TooMany,
    EnoughTold,
}

/// A value and its place in its list.
type Value<'a> = (usize, &'a str);

/// Values of a list that the same rules name.
#[derive(Debug)]
struct Part<'a> {
    values: Vec<Value<'a>>,
    held: Vec<&'a Rule>,
}

#[derive(Debug, Default)]
struct Search<'a> {
    steps: usize,
    told: Told<'a>,
}

impl<'a> Search<'a> {
    fn run(&mut self, held: &[&'a Rule], granted: &'a [Rule]) -> Result<(), Stopped> {
        // Most bindings grant a role that is held as it is, however large.
        let whole: HashSet<&Rule> = held.iter().copied().collect();
        for (number, rule) in granted.iter().enumerate() {
            if !whole.contains(rule) {
                self.rule(number, rule, held)?;
            }
        }
        Ok(())
    }

    fn rule(&mut self, number: usize, rule: &'a Rule, held: &[&'a Rule]) -> Result<(), Stopped> {
        for verbs in self.split(&rule.verbs, held, |own| &own.verbs, |_| None)? {
            if !rule.urls.is_empty() {
                let urls = self.missing_urls(&rule.urls, &verbs.held)?;
                self.told.urls(&verbs.values, &urls)?;
            }
            if rule.resources.is_empty() {
                continue;
            }
            for groups in self.split(&rule.api_groups, &verbs.held, |own| &own.api_groups, |_| None)? {
                for resources in
                    self.split(&rule.resources, &groups.held, |own| &own.resources, of_any_resource)?
                {
                    let names = self.missing_names(&rule.resource_names, &resources.held)?;
                    self.told.resources(number, &verbs.values, &groups.values, &resources.values, &names)?;
                }
            }
        }
        Ok(())
    }

    /// Divides the values of a list by the held rules that name them, by `*`, or by what `general` makes of them.
    fn split(
        &mut self,
        values: &'a [String],
        held: &[&'a Rule],
        list: fn(&Rule) -> &[String],
        general: fn(&str) -> Option<String>,
    ) -> Result<Vec<Part<'a>>, Stopped> {
        let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
        for (number, rule) in held.iter().enumerate() {
            self.take(list(rule).len())?;
            for value in list(rule) {
                named.entry(value).or_default().push(number);
            }
        }
        let all = named.remove("*").unwrap_or_default();
        let mut known: HashMap<Vec<usize>, usize> = HashMap::new();
        let mut parts: Vec<Part<'a>> = Vec::new();
        for (place, value) in values.iter().enumerate() {
            let general = general(value).and_then(|general| named.get(general.as_str()));
            let lists = [named.get(value.as_str()), general];
            let mut numbers: Vec<usize> = lists.into_iter().flatten().flatten().copied().collect();
            self.take(numbers.len().saturating_add(1))?;
            numbers.sort_unstable();
            numbers.dedup();
            if let Some(part) = known.get(&numbers).and_then(|part| parts.get_mut(*part)) {
                part.values.push((place, value));
                continue;
            }
            self.take(all.len())?;
            let own: BTreeSet<usize> = numbers.iter().chain(&all).copied().collect();
            let held = own.into_iter().filter_map(|number| held.get(number).copied()).collect();
            known.insert(numbers, parts.len());
            parts.push(Part { values: vec![(place, value)], held });
        }
        Ok(parts)
    }

    /// Returns the names by which rules do not allow what they allow by others; a missing right to all names has none.
    fn missing_names(
        &mut self,
        names: &'a [String],
        held: &[&'a Rule],
    ) -> Result<Vec<(usize, Option<&'a str>)>, Stopped> {
        if held.iter().any(|own| own.resource_names.is_empty()) {
            return Ok(Vec::new());
        }
        if names.is_empty() {
            return Ok(vec![(0, None)]);
        }
        let mut own = HashSet::new();
        for rule in held {
            self.take(rule.resource_names.len())?;
            own.extend(rule.resource_names.iter().map(String::as_str));
        }
        self.take(names.len())?;
        let names = names.iter().map(String::as_str).enumerate();
        Ok(names.filter(|(_, name)| !own.contains(name)).map(|(place, name)| (place, Some(name))).collect())
    }

    fn missing_urls(&mut self, urls: &'a [String], held: &[&'a Rule]) -> Result<Vec<&'a str>, Stopped> {
        let (mut whole, mut beginnings) = (HashSet::new(), Vec::new());
        for rule in held {
            self.take(rule.urls.len())?;
            whole.extend(rule.urls.iter().map(String::as_str));
            let open = rule.urls.iter().filter(|url| url.ends_with('*'));
            beginnings.extend(open.map(|url| url.trim_end_matches('*')));
        }
        // Without those that begin with another one: then the only one with which a URL can begin is the last one before it.
        beginnings.sort_unstable();
        beginnings.dedup_by(|next, kept| next.starts_with(*kept));
        self.take(urls.len())?;
        let missing = |url: &&str| {
            let before = beginnings.partition_point(|beginning| beginning <= url);
            let last = before.checked_sub(1).and_then(|last| beginnings.get(last));
            !whole.contains(url) && !last.is_some_and(|beginning| url.starts_with(beginning))
        };
        Ok(urls.iter().map(String::as_str).filter(missing).collect())
    }

    fn take(&mut self, steps: usize) -> Result<(), Stopped> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > STEPS { Err(Stopped::TooMany) } else { Ok(()) }
    }
}

/// `*/log` for `pods/log`: the subresource of any resource.
fn of_any_resource(resource: &str) -> Option<String> {
    resource.split_once('/').map(|(_, subresource)| format!("*/{subresource}"))
}

/// A resource in its group, and its name unless all are meant.
type Resource<'a> = (&'a str, &'a str, Option<&'a str>);

/// Where upstream meets a right when it multiplies the rules out: rule, group, resource, verb, name.
type Place = [usize; 5];

/// The missing rights that are told, one line for each resource or URL.
#[derive(Debug, Default)]
struct Told<'a> {
    bytes: usize,
    resources: HashMap<Resource<'a>, Vec<(Place, &'a str)>>,
    urls: BTreeSet<String>,
}

impl<'a> Told<'a> {
    fn resources(
        &mut self,
        rule: usize,
        verbs: &[Value<'a>],
        groups: &[Value<'a>],
        resources: &[Value<'a>],
        names: &[(usize, Option<&'a str>)],
    ) -> Result<(), Stopped> {
        for (group_place, group) in groups {
            for (resource_place, resource) in resources {
                for (name_place, name) in names {
                    let key = (*group, *resource, *name);
                    let texts = [group, resource, name.unwrap_or("")];
                    self.count(texts.iter().map(|text| text.len()).sum::<usize>().saturating_add(FRAME))?;
                    for (verb_place, verb) in verbs {
                        self.count(verb.len())?;
                        let place = [rule, *group_place, *resource_place, *verb_place, *name_place];
                        self.resources.entry(key).or_default().push((place, verb));
                    }
                }
            }
        }
        Ok(())
    }

    fn urls(&mut self, verbs: &[Value<'a>], urls: &[&'a str]) -> Result<(), Stopped> {
        for url in urls {
            for (_, verb) in verbs {
                self.count(url.len().saturating_add(verb.len()).saturating_add(FRAME))?;
                self.urls.insert(line(&[("NonResourceURLs", &[*url]), ("Verbs", &[*verb])]));
            }
        }
        Ok(())
    }

    /// Counts a text, also one that was told already: of many that are equal, not each is looked at.
    fn count(&mut self, length: usize) -> Result<(), Stopped> {
        self.bytes = self.bytes.saturating_add(length).saturating_add(QUOTES);
        if self.bytes > TOLD { Err(Stopped::EnoughTold) } else { Ok(()) }
    }

    fn lines(self) -> Vec<String> {
        let mut lines = self.urls;
        for ((group, resource, name), mut verbs) in self.resources {
            verbs.sort_unstable();
            let verbs: Vec<&str> = verbs.into_iter().map(|(_, verb)| verb).collect();
            let name: Vec<&str> = name.into_iter().collect();
            lines.insert(line(&[
                ("APIGroups", &[group]),
                ("Resources", &[resource]),
                ("ResourceNames", &name),
                ("Verbs", &verbs),
            ]));
        }
        lines.into_iter().collect()
    }
}

/// `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`
fn line(fields: &[(&str, &[&str])]) -> String {
    let list = |values: &[&str]| values.iter().map(|value| go::quote(value)).collect::<Vec<_>>().join(" ");
    let fields = fields.iter().filter(|(_, values)| !values.is_empty());
    let fields: Vec<String> = fields.map(|(name, values)| format!("{name}:[{}]", list(values))).collect();
    format!("{{{}}}", fields.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(values: &[&str]) -> Vec<String> {
        values.iter().map(|value| (*value).to_owned()).collect()
    }

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        Rule {
            verbs: own(verbs),
            api_groups: own(groups),
            resources: own(resources),
            resource_names: own(names),
            urls: Vec::new(),
        }
    }

    fn of_urls(verbs: &[&str], urls: &[&str]) -> Rule {
        Rule { verbs: own(verbs), urls: own(urls), ..Rule::default() }
    }

    /// What is missing, and how many steps it took to find out.
    fn searched(held: &[Rule], granted: &[Rule]) -> (Result<(), Refused>, usize) {
        let held: Vec<&Rule> = held.iter().collect();
        let mut search = Search::default();
        let _ = search.run(&held, granted);
        (check(&held, granted), search.steps)
    }

    fn told(held: &[Rule], granted: &[Rule]) -> Vec<String> {
        match searched(held, granted).0 {
            Ok(()) => Vec::new(),
            Err(Refused::Missing { lines, all: true }) => lines,
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn held_rights_cover_their_parts_and_nothing_else() {
        let get = |resources: &[&str], names: &[&str]| rule(&["get"], &[""], resources, names);
        let covers = |held: Rule, wanted: Rule| told(&[held], &[wanted]).is_empty();
        assert!(covers(get(&["*"], &[]), get(&["secrets"], &["a"])));
        assert!(covers(get(&["*/log"], &[]), get(&["pods/log"], &[])));
        assert!(!covers(get(&["secrets"], &["a"]), get(&["secrets"], &[])));
        assert!(!covers(get(&["pods"], &[]), get(&["pods/log"], &[])));
        assert!(!covers(get(&["*"], &[]), of_urls(&["get"], &["/x"])));
        assert!(covers(of_urls(&["*"], &["/a*"]), of_urls(&["get", "put"], &["/a", "/ab", "/a*"])));
        assert!(!covers(of_urls(&["*"], &["/ab*", "/ac"]), of_urls(&["get"], &["/a*"])));
        let many = of_urls(&["get"], &["/a/*", "/a/b/*", "/*x", "/z"]);
        assert!(covers(many.clone(), of_urls(&["get"], &["/a/c", "/z", "/a/b/c", "/*x"])));
        assert!(!covers(many, of_urls(&["get"], &["/b"])));
    }

    #[test]
    fn several_rules_cover_together_what_none_covers_alone() {
        let held = [
            rule(&["get", "list"], &[""], &["pods"], &[]),
            rule(&["get"], &["", "apps"], &["secrets"], &["a"]),
            rule(&["get", "list"], &[""], &["secrets"], &["b"]),
        ];
        let granted = rule(&["get", "list"], &[""], &["pods", "secrets"], &["a", "b"]);
        assert_eq!(
            told(&held, &[granted]),
            [r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["a"], Verbs:["list"]}"#]
        );
    }

    #[test]
    fn missing_rights_read_as_upstream() {
        let granted = [
            rule(&["watch", "get"], &["apps", ""], &["pods"], &[]),
            of_urls(&["put", "get"], &["/x"]),
            rule(&["get"], &[""], &["pods"], &[]),
            rule(&["get"], &[""], &["a\"b"], &["c"]),
        ];
        assert_eq!(
            told(&[], &granted),
            [
                r#"{APIGroups:[""], Resources:["a\"b"], ResourceNames:["c"], Verbs:["get"]}"#,
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["watch" "get" "get"]}"#,
                r#"{APIGroups:["apps"], Resources:["pods"], Verbs:["watch" "get"]}"#,
                r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#,
                r#"{NonResourceURLs:["/x"], Verbs:["put"]}"#,
            ]
        );
    }

    /// As upstream does it: each verb on each resource, in each group and by each name, against each held rule.
    fn multiplied_out(held: &[Rule], granted: &[Rule]) -> Vec<String> {
        let has = |list: &[String], value: &str| list.iter().any(|own| own == "*" || own == value);
        let mut resources: Vec<(Resource<'_>, Vec<&str>)> = Vec::new();
        let mut lines = BTreeSet::new();
        for rule in granted {
            for (group, resource) in
                rule.api_groups.iter().flat_map(|g| rule.resources.iter().map(move |r| (g, r)))
            {
                let all = [None];
                let names: Vec<Option<&str>> =
                    rule.resource_names.iter().map(|name| Some(name.as_str())).collect();
                let names = if names.is_empty() { &all[..] } else { &names };
                for (verb, name) in rule.verbs.iter().flat_map(|v| names.iter().map(move |n| (v, n))) {
                    let covers = |own: &Rule| {
                        let general = of_any_resource(resource);
                        has(&own.verbs, verb)
                            && has(&own.api_groups, group)
                            && (has(&own.resources, resource)
                                || general.is_some_and(|general| own.resources.contains(&general)))
                            && (own.resource_names.is_empty()
                                || name.is_some_and(|name| own.resource_names.iter().any(|own| own == name)))
                    };
                    if held.iter().any(covers) {
                        continue;
                    }
                    let key = (group.as_str(), resource.as_str(), *name);
                    match resources.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, verbs)) => verbs.push(verb),
                        None => resources.push((key, vec![verb])),
                    }
                }
            }
            for (url, verb) in rule.urls.iter().flat_map(|url| rule.verbs.iter().map(move |verb| (url, verb)))
            {
                let fits = |own: &String| match own.strip_suffix('*') {
                    Some(_) => url.starts_with(own.trim_end_matches('*')),
                    None => own == url,
                };
                if !held.iter().any(|own| has(&own.verbs, verb) && own.urls.iter().any(fits)) {
                    lines.insert(line(&[("NonResourceURLs", &[url]), ("Verbs", &[verb])]));
                }
            }
        }
        for ((group, resource, name), verbs) in resources {
            let name: Vec<&str> = name.into_iter().collect();
            let fields: [(&str, &[&str]); 4] = [
                ("APIGroups", &[group]),
                ("Resources", &[resource]),
                ("ResourceNames", &name),
                ("Verbs", &verbs),
            ];
            lines.insert(line(&fields));
        }
        lines.into_iter().collect()
    }

    #[test]
    fn whatever_is_granted_the_words_are_those_of_rules_that_are_multiplied_out() {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut below = |limit: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % limit
        };
        let mut some = |from: &[&str], most: u64| -> Vec<String> {
            (0..below(most + 1)).map(|_| from[below(from.len() as u64) as usize].to_owned()).collect()
        };
        let mut rules = |most: u64| -> Vec<Rule> {
            let count = some(&["x"], most).len();
            let mut rule = || Rule {
                verbs: some(&["get", "list", "watch", "*"], 4),
                api_groups: some(&["", "apps", "batch", "*"], 3),
                resources: some(&["pods", "pods/log", "jobs/log", "jobs", "*/log", "*"], 4),
                resource_names: some(&["a", "b", "c"], 2),
                urls: some(&["/a", "/a*", "/ab", "/ab/*", "/*", "*", "/b**"], 2),
            };
            (0..count).map(|_| rule()).collect()
        };
        let mut refused = 0;
        for _ in 0..5_000 {
            let (held, granted) = (rules(4), rules(3));
            let ours = told(&held, &granted);
            assert_eq!(ours, multiplied_out(&held, &granted), "held {held:?}\ngranted {granted:?}");
            refused += usize::from(!ours.is_empty());
        }
        assert!((1_000..4_500).contains(&refused), "{refused} of 5,000 are refused");
    }

    fn numbered(prefix: &str, count: usize) -> Vec<String> {
        (0..count).map(|number| format!("{prefix}{number}")).collect()
    }

    /// What an administrator of a namespace holds, in its form.
    fn ordinary() -> Vec<Rule> {
        let usual = ["create", "delete", "get", "list", "patch", "update", "watch"];
        let mut rules = vec![rule(&usual, &[""], &["pods", "pods/log", "configmaps", "secrets"], &[])];
        for number in 0..20 {
            let (group, resource) = (format!("g{number}.example.com"), format!("things{number}"));
            rules.push(rule(&usual[..number % 7 + 1], &[&group], &[&resource], &[]));
        }
        rules
    }

    #[test]
    fn finding_25_a_role_is_not_multiplied_out() {
        for count in [64, 200] {
            let product = Rule {
                verbs: numbered("v", count),
                api_groups: numbered("g", count),
                resources: numbered("r", count),
                resource_names: numbered("n", count),
                urls: Vec::new(),
            };
            // Also by somebody who holds some of it.
            let part =
                Rule { verbs: own(&["*"]), resource_names: numbered("n", count / 2), ..product.clone() };
            for held in [Vec::new(), ordinary(), vec![part.clone()]] {
                let (answer, steps) = searched(&held, std::slice::from_ref(&product));
                let Err(Refused::Missing { lines, all: false }) = answer else { panic!("{answer:?}") };
                assert!(lines.iter().map(String::len).sum::<usize>() <= TOLD);
                assert!(!lines.is_empty());
                assert!(steps < 10 * count + 1_000, "{steps} steps for {count} values in each of four lists");
            }
            // And if it is held, though by several rules.
            let rest = Rule { resource_names: numbered("n", count).split_off(count / 2), ..part.clone() };
            let halves = [part, Rule { verbs: product.verbs.clone(), ..rest }];
            let (answer, steps) = searched(&halves, std::slice::from_ref(&product));
            assert_eq!(answer, Ok(()));
            assert!(steps < 20 * count, "{steps} steps");
        }
    }

    #[test]
    fn finding_25_many_missing_names_are_joined_in_linear_time() {
        let names = numbered("n", 100_000);
        let granted =
            Rule { resource_names: names.clone(), ..rule(&["get", "list"], &[""], &["nodes"], &[]) };
        let (answer, steps) = searched(&ordinary(), std::slice::from_ref(&granted));
        let Err(Refused::Missing { lines, all: false }) = answer else { panic!("{answer:?}") };
        assert!((1_000..10_000).contains(&lines.len()), "{} lines", lines.len());
        assert!(steps < 2 * names.len(), "{steps} steps");
        // The same if all but the last one are held.
        let held = Rule { resource_names: names[..names.len() - 1].to_vec(), ..granted.clone() };
        let (answer, steps) = searched(&[held], &[granted]);
        let Err(Refused::Missing { lines, all: true }) = answer else { panic!("{answer:?}") };
        assert_eq!(
            lines,
            [r#"{APIGroups:[""], Resources:["nodes"], ResourceNames:["n99999"], Verbs:["get" "list"]}"#]
        );
        assert!(steps < 3 * names.len(), "{steps} steps");
    }

    #[test]
    fn finding_25_a_comparison_of_very_many_rules_has_an_end() {
        // Each of the granted rules is held in two halves, by two of very many rules.
        let held: Vec<Rule> = (0..20_000)
            .map(|number| {
                rule(
                    &[if number % 2 == 0 { "get" } else { "list" }],
                    &[""],
                    &[&format!("r{}", number / 2)],
                    &[],
                )
            })
            .collect();
        let granted: Vec<Rule> =
            (0..10_000).map(|number| rule(&["get", "list"], &[""], &[&format!("r{number}")], &[])).collect();
        let (answer, steps) = searched(&held, &granted);
        assert_eq!(answer, Err(Refused::TooMany));
        assert!(steps <= STEPS + held.len(), "{steps} steps");
        // What is held as it is needs no comparison.
        assert_eq!(searched(&held, &held), (Ok(()), 0));
    }
}
