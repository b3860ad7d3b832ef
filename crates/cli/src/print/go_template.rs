//! Go templates, as `-o go-template` has them: text with actions in double braces.
//!
//! In: `{{range .items}}{{.metadata.name}}{{"\n"}}{{end}}` and an object. Out: text and errors as kubectl prints them. The
//! language is that of Go's `text/template` with kubectl's two functions, over JSON: there are no methods and no Go types.

mod functions;
mod parse;
mod run;

use std::collections::BTreeMap;

use serde_json::Value;

/// A parsed template.
#[derive(Debug, Clone)]
pub(crate) struct GoTemplate {
    text: String,
    parts: Vec<Part>,
    /// The templates from `define` and `block`.
    named: BTreeMap<String, Vec<Part>>,
    missing_keys: MissingKeys,
}

/// The meaning of a missing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingKeys {
    Allowed,
    Refused,
}

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Action(Pipe),
    If { condition: Pipe, then: Vec<Part>, otherwise: Vec<Part> },
    With { value: Pipe, then: Vec<Part>, otherwise: Vec<Part> },
    Range { over: Pipe, each: Vec<Part>, otherwise: Vec<Part> },
    Call { name: String, argument: Option<Pipe>, place: usize },
    Break,
    Continue,
}

/// Commands, each of which gets the result of the previous one as its last argument; the result may be kept in variables.
#[derive(Debug, Clone)]
struct Pipe {
    variables: Vec<String>,
    /// `=` instead of `:=`.
    assigns: bool,
    commands: Vec<Command>,
    place: usize,
}

#[derive(Debug, Clone)]
struct Command {
    words: Vec<Word>,
}

#[derive(Debug, Clone)]
struct Word {
    kind: WordKind,
    /// The position in the text, in bytes.
    place: usize,
}

#[derive(Debug, Clone)]
enum WordKind {
    Dot,
    Nil,
    Field(Vec<String>),
    Variable(String, Vec<String>),
    /// Fields of a value in parentheses.
    Chain(Box<Word>, Vec<String>),
    Function(String),
    Constant {
        value: Value,
        text: String,
    },
    Pipe(Box<Pipe>),
}

impl GoTemplate {
    pub(crate) fn parse(text: &str, missing_keys: MissingKeys) -> anyhow::Result<Self> {
        let (parts, named) = parse::parse(text)?;
        Ok(Self { text: text.to_owned(), parts, named, missing_keys })
    }

    /// Executes the template. If it fails, the text before the error has already been printed; kubectl adds debug information.
    pub(crate) fn print(&self, object: &Value) -> (String, anyhow::Result<()>) {
        let data = numbers(object);
        let mut out = String::new();
        let done = run::run(self, &data, &mut out).map_err(|said| {
            out.push_str(&format!(
                "Error executing template: {said}. Printing more information for debugging the template:\n\
                 \ttemplate was:\n\t\t{}\n\traw data was:\n\t\t{object}\n\tobject given to template engine was:\n\t\t{}\n\n",
                self.text,
                functions::verbose(&data),
            ));
            anyhow::anyhow!("error executing template {}: {said}", apimachinery::go::quote(&self.text))
        });
        (out, done)
    }
}

/// Numbers as Kubernetes' JSON reader parses them: integers where they fit, floats otherwise.
fn numbers(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_u64() && !number.is_i64() => {
            number.as_f64().map_or(Value::Null, Value::from)
        }
        Value::Array(items) => items.iter().map(numbers).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), numbers(value))).collect(),
        other => other.clone(),
    }
}

impl std::fmt::Display for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.variables.is_empty() {
            write!(f, "{} {} ", self.variables.join(", "), if self.assigns { "=" } else { ":=" })?;
        }
        let commands: Vec<String> = self.commands.iter().map(ToString::to_string).collect();
        f.write_str(&commands.join(" | "))
    }
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<String> = self.words.iter().map(ToString::to_string).collect();
        f.write_str(&words.join(" "))
    }
}

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fields = |fields: &[String]| fields.iter().map(|field| format!(".{field}")).collect::<String>();
        match &self.kind {
            WordKind::Dot => f.write_str("."),
            WordKind::Nil => f.write_str("nil"),
            WordKind::Field(names) => f.write_str(&fields(names)),
            WordKind::Variable(name, names) => write!(f, "{name}{}", fields(names)),
            WordKind::Chain(word, names) => write!(f, "{word}{}", fields(names)),
            WordKind::Function(name) => f.write_str(name),
            WordKind::Constant { text, .. } => f.write_str(text),
            WordKind::Pipe(pipe) => write!(f, "({pipe})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(template: &str) -> Result<String, String> {
        let object = json!({"kind": "List", "n": 2, "big": 1_000_000, "half": 0.5, "on": true, "nothing": null, "secret": "aGVsbG8=",
            "items": [{"name": "a", "ports": [1, 2]}, {"name": "b", "ports": [], "x": {"y": "<}}>"}}],
            "labels": {"b": "2", "a": "1"}});
        let template =
            GoTemplate::parse(template, MissingKeys::Allowed).map_err(|error| error.to_string())?;
        let (text, done) = template.print(&object);
        done.map(|()| text).map_err(|error| error.to_string())
    }

    #[test]
    fn templates_print_what_go_prints() {
        for (template, text) in [
            ("plain", "plain"),
            ("{{.kind}}", "List"),
            ("{{.n}} {{.big}} {{.half}} {{.on}}", "2 1000000 0.5 true"),
            ("{{.missing}} {{.missing.deeper}} {{.nothing}}", "<no value> <no value> <no value>"),
            (
                "{{.labels}} {{.items}}",
                "map[a:1 b:2] [map[name:a ports:[1 2]] map[name:b ports:[] x:map[y:<}}>]]]",
            ),
            ("{{range .items}}{{.name}}{{\"\\n\"}}{{end}}", "a\nb\n"),
            ("{{range $i, $e := .items}}{{$i}}={{$e.name}} {{end}}", "0=a 1=b "),
            ("{{range $k, $v := .labels}}{{$k}}:{{$v}},{{end}}", "a:1,b:2,"),
            ("{{range .missing}}x{{else}}none{{end}}", "none"),
            ("{{range .items}}{{if eq .name \"b\"}}{{break}}{{end}}{{.name}}{{end}}", "a"),
            ("{{range .items}}{{if eq .name \"a\"}}{{continue}}{{end}}{{.name}}{{end}}", "b"),
            ("{{range 3}}{{.}}{{end}}", "012"),
            ("{{if .nothing}}a{{else if .n}}b{{else}}c{{end}}", "b"),
            ("{{with .items}}{{len .}}{{else}}none{{end}} {{with .nothing}}x{{else}}none{{end}}", "2 none"),
            ("{{$x := .kind}}{{if true}}{{$x = \"changed\"}}{{end}}{{$x}}", "changed"),
            ("{{range .items}}{{$.kind}}{{end}}", "ListList"),
            ("  {{- .kind -}}  !", "List!"),
            ("{{/* a comment */}}x{{- /* another */ -}} y", "xy"),
            ("{{index .items 0 \"name\"}} {{(index .items 1).x.y}}", "a <}}>"),
            ("{{index .labels \"zzz\"}}", "<no value>"),
            ("{{len .kind}} {{slice .kind 1 3}}", "4 is"),
            ("{{and .n .kind}} {{or .nothing .kind}} {{not .on}}", "List List false"),
            (
                "{{eq .kind \"x\" \"List\"}} {{ne .n 2}} {{lt .n 3}} {{ge \"b\" \"a\"}}",
                "true false true true",
            ),
            (
                "{{printf \"%s-%q-%v-%5.1f|%-5s|%05d|%t|%x|%%\" .kind .kind .n .half \"ab\" 42 .on \"hi\"}}",
                "List-\"List\"-2-  0.5|ab   |00042|true|6869|%",
            ),
            ("{{printf \"%d %d %v\" .n .half 1e8}}", "2 %!d(float64=0.5) 1e+08"),
            ("{{print 1 2 \"a\" 3}} {{println .kind}}", "1 2a3 List\n"),
            ("{{.kind | printf \"%s %s\" \"the\"}}", "the List"),
            ("{{.secret | base64decode}}", "hello"),
            ("{{exists .items 0 \"name\"}} {{exists .items 7}}", "true false"),
            (
                "{{html \"<a & 'b'>\"}} {{urlquery \"a b&c\"}} {{js \"it's\"}}",
                "&lt;a &amp; &#39;b&#39;&gt; a+b%26c it\\'s",
            ),
            (
                "{{define \"t\"}}[{{.}}]{{end}}{{template \"t\" .kind}}{{block \"u\" .n}}<{{.}}>{{end}}",
                "[List]<2>",
            ),
            ("{{`raw`}} {{'a'}} {{0x10}} {{1e3}} {{-3}}", "raw 97 16 1000 -3"),
            ("{{not (eq .kind \"x\")}}", "true"),
        ] {
            assert_eq!(filled(template).as_deref(), Ok(text), "{template}");
        }
    }

    #[test]
    fn faults_read_as_go_tells_them() {
        for (template, said) in [
            ("{{.kind", "template: output:1: unclosed action"),
            ("a\n{{nonsense .}}", "template: output:2: function \"nonsense\" not defined"),
            ("{{if .kind}}x", "template: output:1: unexpected EOF"),
            ("{{end}}", "template: output:1: unexpected {{end}}"),
            ("{{$x}}", "template: output:1: undefined variable \"$x\""),
            ("{{if}}x{{end}}", "template: output:1: missing value for if"),
            (
                "{{.kind.deeper}}",
                "error executing template \"{{.kind.deeper}}\": template: output:1:7: executing \"output\" at \
                <.kind.deeper>: can't evaluate field deeper in type interface {}",
            ),
            (
                "{{eq .n 2.0}}",
                "error executing template \"{{eq .n 2.0}}\": template: output:1:2: executing \"output\" at <eq .n 2.0>: error \
                calling eq: incompatible types for comparison: int64 and float64",
            ),
            (
                "{{range .kind}}{{end}}",
                "error executing template \"{{range .kind}}{{end}}\": template: output:1:8: executing \"output\" at \
                <.kind>: range can't iterate over List",
            ),
            (
                "{{len .n}}",
                "error executing template \"{{len .n}}\": template: output:1:2: executing \"output\" at <len .n>: error calling \
                len: len of type int64",
            ),
            (
                "{{index .items 9}}",
                "error executing template \"{{index .items 9}}\": template: output:1:2: executing \"output\" at <index \
                .items 9>: error calling index: index out of range: 9",
            ),
            (
                "{{template \"x\"}}",
                "error executing template \"{{template \\\"x\\\"}}\": template: output:1:11: executing \"output\" at \
                <{{template \"x\"}}>: template \"x\" not defined",
            ),
        ] {
            assert_eq!(filled(template).expect_err(template), said, "{template}");
        }
    }

    #[test]
    fn missing_keys_can_be_refused() {
        let template = GoTemplate::parse("{{.a}}{{.b}}", MissingKeys::Refused).expect("good");
        let (text, done) = template.print(&json!({"a": 1}));
        assert!(text.starts_with("1Error executing template: "), "{text}");
        let said = done.expect_err("missing").to_string();
        assert!(said.ends_with("executing \"output\" at <.b>: map has no entry for key \"b\""), "{said}");
    }

    #[test]
    fn templates_that_call_themselves_end() {
        let said =
            filled("{{define \"t\"}}{{template \"t\"}}{{end}}{{template \"t\"}}").expect_err("endless");
        assert!(said.contains("exceeded maximum template depth"), "{said}");
        let deep = "(".repeat(100_000);
        assert!(filled(&format!("{{{{{deep}")).is_err(), "deep parentheses are refused");
    }
}
