//! Field paths and field errors, printed as Kubernetes prints them.
//!
//! A validator collects [`Error`]s; [`crate::status::Status::invalid`] turns them into the 422 answer.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde_json::Value;

use crate::names;
use crate::status::MOST_ERRORS;

/// Where in an object something is: `spec.containers[0].name`, `metadata.labels[app]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct Path(String);

impl Path {
    pub fn new(root: &str) -> Self {
        Self(root.to_owned())
    }

    /// Returns the path of a named field below this one.
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// Returns the path of a list element.
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// Returns the path of a map entry, printed in brackets.
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The way from a whole object to a part of it. A step costs nothing, however long the keys above are, since a path is made only where
/// one is told: paths of all parts would make hundreds of gigabytes of a body with one long key and many fields inside of it.
#[derive(Debug, Clone, Copy)]
pub enum Trail<'a> {
    Root,
    /// A named field: `.name`.
    Field(&'a Trail<'a>, &'a str),
    /// An entry of a map: `[key]`.
    Key(&'a Trail<'a>, &'a str),
    /// An item of a list: `[0]`.
    Item(&'a Trail<'a>, usize),
}

impl<'a> Trail<'a> {
    /// Returns the way to a named field below this place.
    pub fn child<'b>(&'b self, name: &'b str) -> Trail<'b> {
        Trail::Field(self, name)
    }

    /// Returns the way to an item of the list at this place.
    pub fn index(&'a self, index: usize) -> Trail<'a> {
        Trail::Item(self, index)
    }

    /// Returns the way to an entry of the map at this place.
    pub fn key<'b>(&'b self, key: &'b str) -> Trail<'b> {
        Trail::Key(self, key)
    }

    /// Says whether the path has no text.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Root => true,
            Self::Field(above, name) => name.is_empty() && above.is_empty(),
            Self::Key(..) | Self::Item(..) => false,
        }
    }

    /// Returns about how many bytes the path has.
    pub fn size(&self) -> usize {
        match self {
            Self::Root => 0,
            Self::Field(above, name) | Self::Key(above, name) => {
                above.size().saturating_add(name.len()).saturating_add(2)
            }
            Self::Item(above, _) => above.size().saturating_add(8),
        }
    }
}

impl fmt::Display for Trail<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(above, name) if above.is_empty() => out.write_str(name),
            Self::Field(above, name) => write!(out, "{above}.{name}"),
            Self::Key(above, key) => write!(out, "{above}[{key}]"),
            Self::Item(above, index) => write!(out, "{above}[{index}]"),
        }
    }
}

/// How much of all paths of one object is told in full. Many errors below a long key would each repeat it.
#[derive(Debug, Default)]
pub struct PathBudget {
    /// The bytes of long paths so far. Short ones are free: there are as many of them as there are errors.
    long: Cell<usize>,
}

/// From here on a path is long.
const LONG_PATH: usize = 4 << 10;

/// The bytes of long paths that are told.
const MOST_PATHS: usize = 4 << 20;

impl PathBudget {
    /// Returns the path of a place, or a few words if enough of long ones was told.
    pub fn path(&self, trail: &Trail<'_>) -> String {
        let size = trail.size();
        if size > LONG_PATH {
            let told = self.long.get().saturating_add(size);
            if told > MOST_PATHS {
                return "<a path too long to be told>".to_owned();
            }
            self.long.set(told);
        }
        trail.to_string()
    }
}

/// Errors of one object, no more than can be told.
#[derive(Debug, Default)]
pub struct Complaints {
    pub errors: Errors,
    paths: PathBudget,
}

impl Complaints {
    /// Notes an error whose path is short.
    pub fn push(&mut self, error: Error) {
        if self.errors.len() < MOST_ERRORS {
            self.errors.push(error);
        }
    }

    pub fn extend(&mut self, errors: impl IntoIterator<Item = Error>) {
        let room = MOST_ERRORS.saturating_sub(self.errors.len());
        self.errors.extend(errors.into_iter().take(room));
    }

    /// Returns what counts the paths of all errors.
    pub fn paths(&self) -> &PathBudget {
        &self.paths
    }

    /// Notes an error about a place. What nobody would be told is not made.
    pub fn tell(&mut self, place: &Trail<'_>, error: impl FnOnce(&Path) -> Error) {
        if self.errors.len() < MOST_ERRORS {
            self.errors.push(error(&Path(self.paths.path(place))));
        }
    }
}

/// What is wrong with a field; the variant decides the words and the cause's reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorType {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    /// Invalid, with a value that is too large to be shown.
    InvalidUnshown,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
    TypeInvalid,
}

impl ErrorType {
    /// Returns the `reason` of the cause in a Status.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid | Self::InvalidUnshown => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::InvalidUnshown | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }
}

/// One thing that is wrong with one field.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    pub kind: ErrorType,
    pub field: String,
    /// Shown as JSON for the types that show a value.
    pub value: Value,
    /// The text to show instead, where the order of an object's fields is not the order of their names.
    pub shown: Option<String>,
    pub detail: String,
}

pub type Errors = Vec<Error>;

impl Error {
    fn make(kind: ErrorType, path: &Path, value: Value, detail: impl Into<String>) -> Self {
        Self { kind, field: path.as_str().to_owned(), value, shown: None, detail: detail.into() }
    }

    /// Returns the error with a value whose JSON is given as text: structs print in the order of their declaration.
    pub fn showing(mut self, json: String) -> Self {
        self.shown = Some(json);
        self
    }

    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::make(ErrorType::Invalid, path, value.into(), detail)
    }

    /// The value is an object or a list, which messages leave out.
    pub fn invalid_unshown(path: &Path, detail: impl Into<String>) -> Self {
        Self::make(ErrorType::InvalidUnshown, path, Value::Null, detail)
    }

    pub fn type_invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::make(ErrorType::TypeInvalid, path, value.into(), detail)
    }

    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        Self::make(ErrorType::Required, path, Value::String(String::new()), detail)
    }

    pub fn duplicate(path: &Path, value: impl Into<Value>) -> Self {
        Self::make(ErrorType::Duplicate, path, value.into(), "")
    }

    pub fn not_found(path: &Path, value: impl Into<Value>) -> Self {
        Self::make(ErrorType::NotFound, path, value.into(), "")
    }

    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        Self::make(ErrorType::Forbidden, path, Value::String(String::new()), detail)
    }

    /// The supported values are printed in the order given; most upstream callers sort them.
    pub fn not_supported(path: &Path, value: impl Into<Value>, supported: &[&str]) -> Self {
        let detail = if supported.is_empty() {
            String::new()
        } else {
            let quoted: Vec<_> = supported.iter().map(|value| format!("{value:?}")).collect();
            format!("supported values: {}", quoted.join(", "))
        };
        Self::make(ErrorType::NotSupported, path, value.into(), detail)
    }

    /// The value is never shown: it may be huge or secret.
    pub fn too_long(path: &Path, max_bytes: usize) -> Self {
        Self::make(
            ErrorType::TooLong,
            path,
            Value::String("<value omitted>".to_owned()),
            format!("may not be more than {max_bytes} bytes"),
        )
    }

    pub fn too_many(path: &Path, actual: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self::make(ErrorType::TooMany, path, Value::from(actual), format!("must have at most {max} {items}"))
    }

    pub fn internal(path: &Path, detail: impl Into<String>) -> Self {
        Self::make(ErrorType::Internal, path, Value::Null, detail)
    }

    /// Returns the text without the field, as it stands in a cause's message.
    pub fn body(&self) -> String {
        let words = self.kind.words();
        let head = match self.kind {
            ErrorType::Required
            | ErrorType::Forbidden
            | ErrorType::TooLong
            | ErrorType::Internal
            | ErrorType::InvalidUnshown => words.to_owned(),
            _ => match &self.shown {
                Some(text) => format!("{words}: {text}"),
                None => format!("{words}: {}", self.value),
            },
        };
        if self.detail.is_empty() { head } else { format!("{head}: {}", self.detail) }
    }
}

/// `spec.replicas: Invalid value: -1: must be greater than or equal to 0`
impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.field, self.body())
    }
}

/// Checks `example.com/controller`: a domain, a slash, a path.
pub fn domain_prefixed_path(path: &Path, value: &str) -> Vec<Error> {
    const FORMAT: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";
    let Some((domain, rest)) = value.split_once('/').filter(|(a, b)| !a.is_empty() && !b.is_empty()) else {
        let text = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return vec![Error::invalid(path, value, text)];
    };
    let complaints = names::dns1123_subdomain(domain).into_iter();
    let mut errors: Vec<Error> = complaints.map(|text| Error::invalid(path, domain, text)).collect();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    if !rest.bytes().all(fits) {
        errors.push(Error::invalid(path, rest, names::pattern("Invalid path", FORMAT, &[])));
    }
    errors
}

/// Joins errors as an aggregate does: one as it is, several in brackets, equal texts once.
pub fn aggregate(errors: &[Error]) -> String {
    let mut seen: HashSet<String> = HashSet::new();
    let texts = errors.iter().map(ToString::to_string);
    let texts: Vec<String> = texts.filter(|text| seen.insert(text.clone())).collect();
    match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_kubernetes_prints_them() {
        let spec = Path::new("spec");
        let check = |error: Error, text: &str| assert_eq!(error.to_string(), text);
        check(
            Error::invalid(&spec.child("replicas"), -1, "must be greater than or equal to 0"),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
        );
        check(Error::required(&spec.child("selector"), ""), "spec.selector: Required value");
        check(
            Error::not_supported(&spec.child("type"), "X", &["A", "B"]),
            r#"spec.type: Unsupported value: "X": supported values: "A", "B""#,
        );
        check(
            Error::too_long(&Path::new("metadata").child("annotations"), 262144),
            "metadata.annotations: Too long: may not be more than 262144 bytes",
        );
        check(Error::duplicate(&spec.index(1), "a"), r#"spec[1]: Duplicate value: "a""#);
    }

    #[test]
    fn a_trail_reads_as_the_path_of_its_steps() {
        let spec = Trail::Field(&Trail::Root, "spec");
        let items = Trail::Field(&spec, "items");
        let item = Trail::Item(&items, 2);
        let path = Path::new("spec").child("items").index(2).key("a").child("");
        let trail = Trail::Field(&Trail::Key(&item, "a"), "").to_string();
        assert_eq!(trail, path.as_str());
        assert_eq!(Trail::Field(&Trail::Field(&Trail::Root, ""), "a").to_string(), "a");
        assert!(Trail::Root.is_empty() && !spec.is_empty() && item.size() >= "spec.items[2]".len());
    }

    #[test]
    fn long_paths_are_told_within_a_budget_and_short_ones_always() {
        let key = "k".repeat(1 << 20);
        let (long, short) = (Trail::Field(&Trail::Root, &key), Trail::Field(&Trail::Root, "a"));
        let budget = PathBudget::default();
        let told: usize = (0..1000).map(|_| budget.path(&long).len()).sum();
        assert!(told <= MOST_PATHS + 1000 * 100, "{told} bytes");
        assert_eq!(budget.path(&short), "a");
    }

    #[test]
    fn equal_texts_appear_once_in_the_aggregate() {
        let error = Error::required(&Path::new("a"), "");
        assert_eq!(aggregate(&[error.clone(), error.clone()]), "a: Required value");
        let other = Error::required(&Path::new("b"), "");
        assert_eq!(aggregate(&[error, other]), "[a: Required value, b: Required value]");
    }
}
