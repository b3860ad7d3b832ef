//! Sends a request to both servers and keeps what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use crate::normal;
use crate::support::{Answer, Api, Call};

/// Both servers, and what was found so far.
pub(crate) struct Suite {
    theirs: Side,
    ours: Side,
    only: Option<String>,
    pub(crate) count: usize,
    pub(crate) differences: Vec<Difference>,
    /// What should have prepared the ground for others and was refused.
    pub(crate) unprepared: Vec<String>,
}

/// One server and the values that later requests take from its answers: versions, tokens, uids.
struct Side {
    api: Api,
    /// Sends what is sent with a token.
    stranger: Api,
    values: BTreeMap<String, String>,
}

/// Two answers to one request.
pub(crate) struct Difference {
    pub(crate) case: String,
    request: String,
    theirs: Seen,
    ours: Seen,
}

/// An answer without what may differ between any two servers.
#[derive(Debug, PartialEq)]
struct Seen {
    code: u16,
    body: Value,
    warnings: Vec<String>,
    content_type: String,
}

impl Difference {
    /// Returns what differs: `code`, `content-type`, `warnings`, and places in the body as JSON pointers with `*` for
    /// any index; `body` for one that is text.
    pub(crate) fn fields(&self) -> BTreeSet<String> {
        let (theirs, ours) = (&self.theirs, &self.ours);
        let heads = [
            ("code", theirs.code != ours.code),
            ("content-type", theirs.content_type != ours.content_type),
            ("warnings", theirs.warnings != ours.warnings),
        ];
        let mut fields: BTreeSet<String> =
            heads.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect();
        walk("", &theirs.body, &ours.body, &mut fields);
        fields
    }
}

/// Adds every place where two values differ.
pub(crate) fn walk(at: &str, theirs: &Value, ours: &Value, fields: &mut BTreeSet<String>) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
            for name in names {
                let place = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
                match (theirs.get(name), ours.get(name)) {
                    (Some(theirs), Some(ours)) => walk(&place, theirs, ours, fields),
                    _ => drop(fields.insert(place)),
                }
            }
        }
        (Value::Array(theirs), Value::Array(ours)) if theirs.len() == ours.len() => {
            theirs.iter().zip(ours).for_each(|(theirs, ours)| walk(&format!("{at}/*"), theirs, ours, fields));
        }
        _ if theirs == ours => {}
        _ if at.is_empty() => drop(fields.insert("body".to_owned())),
        _ => drop(fields.insert(at.to_owned())),
    }
}

impl Suite {
    pub(crate) async fn new(theirs: &str, ours: &str, only: Option<String>) -> Self {
        let (theirs, ours) = tokio::join!(Side::new(theirs), Side::new(ours));
        Self { theirs, ours, only, count: 0, differences: Vec::new(), unprepared: Vec::new() }
    }

    /// Says whether a group of cases, named by its first word, is to be run.
    pub(crate) fn wants(&self, group: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.split(',').any(|only| only.starts_with(group)))
    }

    /// Sends to both and compares. Returns the code of kube-apiserver.
    pub(crate) async fn compare(&mut self, case: &str, call: &Call) -> u16 {
        self.compare_and_keep(case, call, &BTreeMap::new()).await
    }

    /// Sends to both and compares; `keep` names values to take from the answers, by JSON pointer. A kept value is
    /// used as `${name}`, each server getting its own.
    pub(crate) async fn compare_and_keep(
        &mut self,
        case: &str,
        call: &Call,
        keep: &BTreeMap<String, String>,
    ) -> u16 {
        let (theirs, ours) = self.both(call).await;
        self.count += 1;
        for (name, pointer) in keep {
            self.theirs.values.insert(name.clone(), theirs.at(pointer));
            self.ours.values.insert(name.clone(), ours.at(pointer));
        }
        let code = theirs.code;
        let (theirs, ours) = (Seen::of(&theirs), Seen::of(&ours));
        if theirs != ours {
            let request = format!("{} {}", call.method, call.path);
            self.differences.push(Difference { case: case.to_owned(), request, theirs, ours });
        }
        code
    }

    /// Waits until both serve a path: definitions take a moment.
    pub(crate) async fn wait(&self, path: &str) {
        tokio::join!(
            self.theirs.api.until(path, |answer| answer.code == 200),
            self.ours.api.until(path, |answer| answer.code == 200)
        );
    }

    /// Sends again and again until both answer as wanted.
    pub(crate) async fn until(&self, call: &Call, wanted: impl Fn(&Answer) -> bool) {
        testkit::eventually(format!("{} {} gets the wanted answer", call.method, call.path), async || {
            let (theirs, ours) = self.both(call).await;
            let reached = wanted(&theirs) && wanted(&ours);
            if reached { Ok(()) } else { Err(format!("{}\n{}", theirs.text(), ours.text())) }
        })
        .await;
    }

    /// Sends to both and does not look at the answers: for setting up and clearing away.
    pub(crate) async fn both(&self, call: &Call) -> (Answer, Answer) {
        let (for_them, for_us) = (self.theirs.fill(call), self.ours.fill(call));
        tokio::join!(self.theirs.send(&for_them), self.ours.send(&for_us))
    }
}

impl Side {
    async fn new(kubeconfig: &str) -> Self {
        let (api, stranger) = (Api::from_kubeconfig(kubeconfig).await, Api::stranger(kubeconfig).await);
        Self { api, stranger, values: BTreeMap::new() }
    }

    async fn send(&self, call: &Call) -> Answer {
        let by = if call.bearer.is_some() { &self.stranger } else { &self.api };
        by.send(call).await
    }

    fn fill(&self, call: &Call) -> Call {
        let mut call = call.clone();
        for (name, value) in &self.values {
            let mark = format!("${{{name}}}");
            call.path = call.path.replace(&mark, value);
            call.bearer = call.bearer.map(|token| token.replace(&mark, value));
            if let Some(body) = &call.body
                && let Ok(text) = std::str::from_utf8(body)
                && text.contains(&mark)
            {
                call.body = Some(text.replace(&mark, value).into_bytes());
            }
        }
        call
    }
}

impl Seen {
    fn of(answer: &Answer) -> Self {
        let mut warnings: Vec<String> = answer
            .headers
            .get_all("warning")
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect();
        warnings.sort();
        let content_type = answer.headers.get("content-type").and_then(|value| value.to_str().ok());
        Self {
            code: answer.code,
            body: normal::body(&meaning(answer, content_type)),
            warnings,
            content_type: content_type.unwrap_or_default().to_owned(),
        }
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("code {}", self.code), format!("content-type {}", self.content_type)];
        lines.extend(self.warnings.iter().map(|warning| format!("warning {warning}")));
        let text = match &self.body {
            Value::String(text) => text.clone(),
            body => serde_json::to_string_pretty(body).expect("a value prints"),
        };
        lines.extend(text.lines().map(str::to_owned));
        lines
    }
}

/// Returns the JSON that YAML stands for: it can be written in many ways.
fn meaning(answer: &Answer, content_type: Option<&str>) -> Vec<u8> {
    let yaml = content_type.is_some_and(|name| name.starts_with("application/yaml"));
    let tree = yaml.then(|| serde_saphyr::from_str::<Value>(&answer.text()).ok()).flatten();
    tree.map_or_else(|| answer.body.to_vec(), |tree| tree.to_string().into_bytes())
}

impl fmt::Display for Difference {
    /// Prints the lines that only one of the two has, kube-apiserver's with `-`, ours with `+`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields: Vec<String> = self.fields().into_iter().collect();
        writeln!(out, "==== {}\n     {}\n     differs in {}", self.case, self.request, fields.join(", "))?;
        let (theirs, ours) = (self.theirs.lines(), self.ours.lines());
        // The same lines in another order, or another number of times, are shown as they are.
        let same =
            theirs.iter().all(|line| ours.contains(line)) && ours.iter().all(|line| theirs.contains(line));
        for (mark, lines, others) in [('-', &theirs, &ours), ('+', &ours, &theirs)] {
            let shown = if same { 60 } else { 12 };
            for line in lines.iter().filter(|line| same || !others.contains(line)).take(shown) {
                writeln!(out, "  {mark} {}", line.chars().take(400).collect::<String>())?;
            }
        }
        Ok(())
    }
}

#[test]
fn a_difference_names_its_fields() {
    let (theirs, ours) = (
        serde_json::json!({"a": 1, "list": [{"x": 1, "y": 2}, {"x": 3}], "same": {}, "long": [1]}),
        serde_json::json!({"b": 1, "list": [{"x": 9, "y": 2}, {"x": 4}], "same": {}, "long": []}),
    );
    let mut fields = BTreeSet::new();
    walk("", &theirs, &ours, &mut fields);
    assert_eq!(fields.into_iter().collect::<Vec<_>>(), ["/a", "/b", "/list/*/x", "/long"]);
    let mut text = BTreeSet::new();
    walk("", &"one".into(), &"other".into(), &mut text);
    assert_eq!(text.into_iter().collect::<Vec<_>>(), ["body"]);
}
