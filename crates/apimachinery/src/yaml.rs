//! YAML as the API reads it: the YAML 1.1 meaning of scalars, over a YAML 1.2 parser.
//!
//! In: text. Out: JSON values plus a report of repeated keys. `yes` is true, `0644` is 420, keys become strings,
//! `<<` merges: what `sigs.k8s.io/yaml` does, because that is what users' manifests were written against.
//!
//! Aliases are expanded with two budgets, so that a small document cannot unfold into gigabytes: upstream's, which
//! counts nodes, and one for the bytes that they produce ([`MAX_ALIASED_BYTES`]). Upstream needs no second one, since
//! its strings share their memory; ours are copies.
//!
//! `write` is the way back.

use std::collections::{BTreeMap, HashSet};

use granit_parser::{Event, Options, Parser, ScalarStyle};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::depth::{MAX_DEPTH, TooDeep};
use crate::go;

mod scalar;
mod write;

use scalar::Scalar;
pub use write::write;

/// The memory that all aliases of one document may add, as far as it can be told from the values.
///
/// As much as a request may carry, and what the copies of a JSON patch may add: nothing bigger could be stored.
pub const MAX_ALIASED_BYTES: usize = 3 * 1024 * 1024;

/// What a value costs besides its text: itself, and its place in a list or map.
const NODE_BYTES: usize = 64;

/// Why a text cannot become JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("yaml: line {line}: {message}")]
    Syntax { line: usize, message: String },
    #[error("yaml: {0}")]
    Content(String),
    #[error(transparent)]
    Depth(#[from] TooDeep),
    #[error("json: unsupported value: {0}")]
    Number(String),
}

/// A value and what was odd about its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    pub value: Value,
    /// `line 4: key "a" already set in map`, in document order.
    pub duplicates: Vec<String>,
}

impl Document {
    /// Returns the complaints of strict decoding joined as upstream's single error, `None` if there are none.
    pub fn strict_error(&self) -> Option<String> {
        (!self.duplicates.is_empty())
            .then(|| format!("yaml: unmarshal errors:\n  {}", self.duplicates.join("\n  ")))
    }
}

/// Reads the first document; an empty text is null. Later documents are not looked at.
pub fn read(text: &str) -> Result<Document, Error> {
    let mut loader = Loader::new(text);
    match loader.document()? {
        Some(root) => loader.convert(root),
        None => Ok(Document { value: Value::Null, duplicates: Vec::new() }),
    }
}

/// Reads the first document into a type. Keys that stand twice are an error.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    let document = read(text)?;
    if let Some(error) = document.strict_error() {
        return Err(Error::Content(error));
    }
    serde_json::from_value(document.value).map_err(|error| Error::Content(error.to_string()))
}

/// Reads all documents of a stream and skips empty ones, as `kubectl -f` does.
pub fn read_all(text: &str) -> Result<Vec<Document>, Error> {
    let mut loader = Loader::new(text);
    let mut documents = Vec::new();
    while let Some(root) = loader.document()? {
        let document = loader.convert(root)?;
        if !document.value.is_null() {
            documents.push(document);
        }
    }
    Ok(documents)
}

/// A place in the loader's arena.
type NodeId = usize;

struct Node {
    line: usize,
    kind: Kind,
}

enum Kind {
    Scalar(Scalar),
    Sequence(Vec<NodeId>),
    /// Keys and values in turn.
    Mapping(Vec<NodeId>),
    Alias(NodeId),
}

struct Loader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    nodes: Vec<Node>,
    anchors: BTreeMap<usize, NodeId>,
}

impl<'a> Loader<'a> {
    fn new(text: &'a str) -> Self {
        let mut options = Options::default();
        // Beyond our own limit, so that there is one error for depth.
        options.flow_nesting_limit = MAX_DEPTH.saturating_mul(2);
        options.block_nesting_limit = MAX_DEPTH.saturating_mul(2);
        options.set_emit_comments(false);
        Self {
            parser: Parser::new_from_str_with_options(text.strip_prefix('\u{feff}').unwrap_or(text), options),
            nodes: Vec::new(),
            anchors: BTreeMap::new(),
        }
    }

    fn event(&mut self) -> Result<Option<(Event<'a>, usize)>, Error> {
        match self.parser.next_event() {
            None => Ok(None),
            Some(Ok((event, span))) => Ok(Some((event, span.start.line()))),
            Some(Err(error)) => Err(Error::Syntax { line: error.marker().line(), message: error.info() }),
        }
    }

    /// Loads the next document into the arena and returns its root; `None` at the end of the stream.
    fn document(&mut self) -> Result<Option<NodeId>, Error> {
        self.nodes.clear();
        self.anchors.clear();
        // Collections being read, innermost last.
        let mut open: Vec<NodeId> = Vec::new();
        let mut root = None;
        while let Some((event, line)) = self.event()? {
            let (kind, anchor, opens) = match event {
                Event::DocumentEnd => return Ok(root),
                Event::StreamEnd => return Ok(None),
                Event::Scalar(value, style, anchor, tag) => {
                    let plain = style == ScalarStyle::Plain;
                    (Kind::Scalar(Scalar::new(&value, plain, tag.as_deref())), anchor, false)
                }
                Event::SequenceStart(_, anchor, _) => (Kind::Sequence(Vec::new()), anchor, true),
                Event::MappingStart(_, anchor, _) => (Kind::Mapping(Vec::new()), anchor, true),
                Event::SequenceEnd | Event::MappingEnd => {
                    open.pop();
                    continue;
                }
                Event::Alias(anchor) => {
                    let target = *self
                        .anchors
                        .get(&anchor)
                        .ok_or_else(|| Error::Content("unknown anchor referenced".to_owned()))?;
                    (Kind::Alias(target), 0, false)
                }
                _ => continue,
            };
            let id = self.nodes.len();
            self.nodes.push(Node { line, kind });
            if anchor != 0 {
                self.anchors.insert(anchor, id);
            }
            match open.last() {
                Some(parent) => match self.nodes.get_mut(*parent).map(|node| &mut node.kind) {
                    Some(Kind::Sequence(children) | Kind::Mapping(children)) => children.push(id),
                    _ => unreachable!("only collections are open"),
                },
                None => root = Some(id),
            }
            if opens {
                open.push(id);
                if open.len() > MAX_DEPTH {
                    return Err(TooDeep.into());
                }
            }
        }
        Ok(None)
    }

    fn convert(&self, root: NodeId) -> Result<Document, Error> {
        let mut converter = Converter {
            nodes: Arena(&self.nodes),
            duplicates: Vec::new(),
            expanding: HashSet::new(),
            decoded: 0,
            aliased: 0,
            aliased_bytes: 0,
        };
        let value = converter.value(root, 0)?;
        Ok(Document { value, duplicates: converter.duplicates })
    }
}

/// The nodes of a document that was read.
#[derive(Clone, Copy)]
struct Arena<'a>(&'a [Node]);

impl<'a> Arena<'a> {
    #[expect(
        clippy::indexing_slicing,
        reason = "ids are given with the nodes; converting starts when all are there"
    )]
    fn at(self, id: NodeId) -> &'a Node {
        &self.0[id]
    }

    fn kind(self, id: NodeId) -> &'a Kind {
        &self.at(id).kind
    }
}

struct Converter<'a> {
    nodes: Arena<'a>,
    duplicates: Vec<String>,
    /// Aliases being expanded, to notice one that contains itself.
    expanding: HashSet<NodeId>,
    decoded: u64,
    aliased: u64,
    aliased_bytes: usize,
}

impl Converter<'_> {
    /// Returns the value of a node that lies inside of `depth` arrays and objects.
    fn value(&mut self, id: NodeId, depth: usize) -> Result<Value, Error> {
        self.count()?;
        let nodes = self.nodes;
        if matches!(nodes.kind(id), Kind::Sequence(_) | Kind::Mapping(_)) && depth >= MAX_DEPTH {
            return Err(TooDeep.into());
        }
        match nodes.kind(id) {
            Kind::Scalar(scalar) => {
                self.charge(scalar.len())?;
                scalar.to_value()
            }
            Kind::Sequence(items) => {
                self.charge(0)?;
                items
                    .iter()
                    .map(|item| self.value(*item, depth.saturating_add(1)))
                    .collect::<Result<_, _>>()
                    .map(Value::Array)
            }
            Kind::Mapping(children) => {
                self.charge(0)?;
                let mut entries = Map::new();
                self.mapping(children, &mut entries, depth)?;
                Ok(Value::Object(entries))
            }
            Kind::Alias(target) => {
                if !self.expanding.insert(id) {
                    return Err(Error::Content("anchor value contains itself".to_owned()));
                }
                // What is aliased is not an alias itself, so this goes one step down at most.
                let value = self.value(*target, depth)?;
                self.expanding.remove(&id);
                Ok(value)
            }
        }
    }

    /// Charges a node with so many bytes of text, which is about to be made, if an alias makes it.
    fn charge(&mut self, text: usize) -> Result<(), Error> {
        if self.expanding.is_empty() {
            return Ok(());
        }
        self.charge_alias(text)
    }

    fn charge_alias(&mut self, text: usize) -> Result<(), Error> {
        self.aliased_bytes = self.aliased_bytes.saturating_add(NODE_BYTES).saturating_add(text);
        if self.aliased_bytes > MAX_ALIASED_BYTES {
            return Err(excessive());
        }
        Ok(())
    }

    /// Upstream's budget: small documents may come mostly from aliases, big ones only a little.
    fn count(&mut self) -> Result<(), Error> {
        const LOW: f64 = 400_000.0;
        const HIGH: f64 = 4_000_000.0;
        self.decoded = self.decoded.saturating_add(1);
        if !self.expanding.is_empty() {
            self.aliased = self.aliased.saturating_add(1);
        }
        let decoded = self.decoded as f64;
        let allowed = if decoded <= LOW {
            0.99
        } else if decoded >= HIGH {
            0.10
        } else {
            0.99 - 0.89 * ((decoded - LOW) / (HIGH - LOW))
        };
        if self.aliased > 100 && self.decoded > 1000 && self.aliased as f64 / decoded > allowed {
            return Err(excessive());
        }
        Ok(())
    }

    fn mapping(
        &mut self,
        children: &[NodeId],
        entries: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), Error> {
        let nodes = self.nodes;
        for pair in children.chunks_exact(2) {
            let &[key, value] = pair else { continue };
            if matches!(nodes.kind(key), Kind::Scalar(scalar) if scalar.is_merge()) {
                self.merge(value, entries, depth)?;
                continue;
            }
            let (name, shown) = self.key(key)?;
            let line = nodes.at(value).line;
            let value = self.value(value, depth.saturating_add(1))?;
            if entries.insert(name, value).is_some() {
                self.charge(shown.len())?;
                self.duplicates.push(format!("line {line}: key {shown} already set in map"));
            }
        }
        Ok(())
    }

    /// Returns a key as JSON needs it and as the report of a repetition prints it.
    fn key(&mut self, id: NodeId) -> Result<(String, String), Error> {
        let nodes = self.nodes;
        match nodes.kind(id) {
            Kind::Scalar(scalar) => {
                self.charge(scalar.len().saturating_mul(2))?;
                Ok(match scalar.to_value()? {
                    Value::String(text) => {
                        let shown = go::quote(&text);
                        (text, shown)
                    }
                    Value::Null => {
                        return Err(Error::Content("unsupported map key of type: null".to_owned()));
                    }
                    other => {
                        let text = crate::json::write(&other);
                        (text.clone(), text)
                    }
                })
            }
            Kind::Alias(target) => {
                // The key itself, as it is printed, and a report of its repetition.
                if let Kind::Scalar(scalar) = nodes.kind(*target) {
                    self.charge_alias(scalar.len().saturating_mul(3))?;
                }
                self.key(*target)
            }
            Kind::Sequence(_) | Kind::Mapping(_) => Err(Error::Content("invalid map key".to_owned())),
        }
    }

    /// `<<`: one mapping or a list of them, of which earlier ones win.
    fn merge(&mut self, id: NodeId, entries: &mut Map<String, Value>, depth: usize) -> Result<(), Error> {
        const WANTED: &str = "map merge requires map or sequence of maps as the value";
        if depth > MAX_DEPTH {
            return Err(TooDeep.into());
        }
        self.count()?;
        let nodes = self.nodes;
        match nodes.kind(id) {
            Kind::Mapping(children) => self.mapping(children, entries, depth),
            Kind::Alias(target) => {
                let Kind::Mapping(children) = nodes.kind(*target) else {
                    return Err(Error::Content(WANTED.to_owned()));
                };
                if !self.expanding.insert(id) {
                    return Err(Error::Content("anchor value contains itself".to_owned()));
                }
                self.mapping(children, entries, depth.saturating_add(1))?;
                self.expanding.remove(&id);
                Ok(())
            }
            Kind::Sequence(items) => {
                for item in items.iter().rev() {
                    if !matches!(nodes.kind(*item), Kind::Mapping(_) | Kind::Alias(_)) {
                        return Err(Error::Content(WANTED.to_owned()));
                    }
                    self.merge(*item, entries, depth.saturating_add(1))?;
                }
                Ok(())
            }
            Kind::Scalar(_) => Err(Error::Content(WANTED.to_owned())),
        }
    }
}

fn excessive() -> Error {
    Error::Content("document contains excessive aliasing".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_type_is_read_and_what_does_not_fit_says_why() {
        let read = |text: &str| from_str::<BTreeMap<String, i64>>(text).map_err(|error| error.to_string());
        assert_eq!(read("a: 1\nb: 0644\n"), Ok(BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 420)])));
        assert!(read("a: x\n").is_err_and(|error| error.contains("invalid type: string \"x\"")));
        assert!(read("a: 1\na: 2\n").is_err_and(|error| error.contains("key \"a\" already set in map")));
    }

    fn value(text: &str) -> Value {
        read(text).unwrap_or_else(|error| panic!("{text}: {error}")).value
    }

    #[test]
    fn manifests_become_json() {
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a # comment\ndata:\n  k: |\n    line\n    two\n  e: ''\nlist:\n- 1\n- x: z\n";
        assert_eq!(
            value(text),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "line\ntwo\n", "e": ""}, "list": [1, {"x": "z"}]})
        );
    }

    #[test]
    fn json_is_yaml() {
        let text = r#"{"a": [1, 2.5, "x\ny", true, null], "b": {"c": "yes"}}"#;
        assert_eq!(value(text), json!({"a": [1, 2.5, "x\ny", true, null], "b": {"c": "yes"}}));
    }

    #[test]
    fn repeated_keys_are_reported_with_their_line() {
        let document = read("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n1: x\n1: z\n").unwrap();
        assert_eq!(document.value, json!({"a": 3, "b": {"c": 2}, "1": "z"}));
        assert_eq!(
            document.duplicates,
            [
                r#"line 4: key "c" already set in map"#,
                r#"line 5: key "a" already set in map"#,
                "line 7: key 1 already set in map"
            ]
        );
        assert_eq!(
            read("a: 1\na: 2").unwrap().strict_error().unwrap(),
            "yaml: unmarshal errors:\n  line 2: key \"a\" already set in map"
        );
    }

    #[test]
    fn keys_become_strings() {
        assert_eq!(value("1: a\ntrue: b\n0.5: c\nyes: d"), json!({"1": "a", "true": "d", "0.5": "c"}));
        assert!(read("~: a").is_err());
        assert!(read("[1]: a").is_err());
    }

    #[test]
    fn anchors_and_merges_expand() {
        assert_eq!(
            value("a: &x {k: 1, l: 2}\nb: *x\nc:\n  <<: *x\n  l: 3\n"),
            json!({"a": {"k": 1, "l": 2}, "b": {"k": 1, "l": 2}, "c": {"k": 1, "l": 3}})
        );
        assert_eq!(
            value("a: &x {k: 1}\nb: &y {k: 2, m: 3}\nc:\n  <<: [*x, *y]\n"),
            json!({"a": {"k": 1}, "b": {"k": 2, "m": 3}, "c": {"k": 1, "m": 3}})
        );
        assert!(read("a: &x [1]\nb: {<<: *x}").is_err());
        assert!(read("a: *nothing").is_err());
        assert!(read("a: &x [*x]").is_err());
    }

    #[test]
    fn billions_of_laughs_are_refused() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..10 {
            let below = vec![format!("*a{}", level - 1); 10].join(",");
            text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
        }
        assert_eq!(read(&text), Err(Error::Content("document contains excessive aliasing".to_owned())));
    }

    #[test]
    fn hostile_depth_is_refused() {
        assert!(read(&"[".repeat(100_000)).is_err());
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(read(&nested(MAX_DEPTH + 1)), Err(Error::Depth(TooDeep)));
        assert!(read(&nested(MAX_DEPTH)).is_ok());
        let blocks =
            |levels: usize| (0..levels).map(|level| format!("{}a:\n", " ".repeat(level))).collect::<String>();
        assert_eq!(read(&blocks(MAX_DEPTH + 1)), Err(Error::Depth(TooDeep)));
        assert!(read(&blocks(MAX_DEPTH)).is_ok());
    }

    #[test]
    fn finding_1_aliases_inside_of_each_other_keep_to_the_depth() {
        let mut text = "a0: &a0 []\n".to_owned();
        for level in 1..MAX_DEPTH {
            text.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
        }
        // The document itself is a level too.
        assert_eq!(read(&text), Err(Error::Depth(TooDeep)));
        let without_the_last = &text[..text.trim_end().rfind('\n').unwrap()];
        assert_eq!(crate::depth::depth(&value(without_the_last)), MAX_DEPTH);
    }

    #[test]
    fn finding_2_the_bytes_that_aliases_make_are_budgeted() {
        let big = "x".repeat(1024 * 1024);
        let aliases = |count: usize, alias: &str| vec![alias; count].join(", ");
        let excessive = Err(excessive());
        // A key may have 1,024 characters.
        let key = "k".repeat(1000);
        // Few nodes, many bytes: as values, as keys, as repeated keys, through merges and inside of other aliases.
        for text in [
            format!("a: &a {big}\nb: [{}]\n", aliases(50, "*a")),
            format!("a: &a {big}\nb: [{}]\n", aliases(50, "{*a : 1}")),
            format!("a: &a {big}\nb: {{{}}}\n", aliases(50, "*a : 1")),
            format!("a: &a {{b: {big}}}\nb: [{}]\n", aliases(50, "{<<: *a}")),
            format!("a: &a {{{key}: 1}}\nb: [{}]\n", aliases(5000, "{<<: *a}")),
            format!("a: &a {{{key}: 1, {key}: 2}}\nb: [{}]\n", aliases(5000, "*a")),
            format!("a: &a {key}\nb: &b [{}]\nc: [{}]\n", aliases(60, "*a"), aliases(60, "*b")),
        ] {
            assert_eq!(read(&text), excessive, "{}", &text[text.len() - 30..]);
        }
        // Twice as much as is written is fine.
        assert!(read(&format!("a: &a {big}\nb: *a\n")).is_ok());
    }

    #[test]
    fn streams_hold_several_documents() {
        let documents = read_all("---\na: 1\n---\n# nothing\n---\nb: 2\n...\n").unwrap();
        let values: Vec<Value> = documents.into_iter().map(|document| document.value).collect();
        assert_eq!(values, [json!({"a": 1}), json!({"b": 2})]);
        assert_eq!(value("a: 1\n---\nb: 2\n"), json!({"a": 1}));
        assert_eq!(value(""), Value::Null);
        assert_eq!(value("# only a comment\n"), Value::Null);
    }

    #[test]
    fn syntax_errors_name_the_line() {
        let error = read("a: b\n c: [\n").unwrap_err();
        assert!(error.to_string().starts_with("yaml: line "), "{error}");
    }
}
