//! Executes a template.

use serde_json::Value;

use super::{Command, GoTemplate, MissingKeys, Part, Pipe, Word, WordKind, functions};

/// The maximum depth of template calls.
const DEPTH: usize = 100;

/// The limit of a range over a number; Go's has none.
const LONGEST: i64 = 1_000_000;

/// Executes the template; the error is in Go's words.
pub(super) fn run(template: &GoTemplate, data: &Value, out: &mut String) -> Result<(), String> {
    let mut run = Run { template, name: "output".to_owned(), variables: Vec::new(), depth: 0, out };
    run.variables.push(("$".to_owned(), data.clone()));
    let dot = Dot { value: data, element: false };
    run.parts(&template.parts, dot).map(|_| ())
}

/// The value of `.`.
#[derive(Clone, Copy)]
struct Dot<'a> {
    value: &'a Value,
    /// It comes from a list or map: then Go knows its type only as `interface {}`.
    element: bool,
}

/// How a list of parts ended.
#[derive(PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

struct Run<'a> {
    template: &'a GoTemplate,
    /// Of the template that is being executed.
    name: String,
    variables: Vec<(String, Value)>,
    depth: usize,
    out: &'a mut String,
}

impl Run<'_> {
    fn fault(&self, place: usize, context: &str, said: &str) -> String {
        let before = &self.template.text[..place];
        let line = 1 + before.matches('\n').count();
        let column = before.rfind('\n').map_or(place, |last| place - last - 1);
        format!(
            "template: output:{line}:{column}: executing {} at <{context}>: {said}",
            apimachinery::go::quote(&self.name)
        )
    }

    fn parts(&mut self, parts: &[Part], dot: Dot<'_>) -> Result<Flow, String> {
        for part in parts {
            match part {
                Part::Text(text) => self.out.push_str(text),
                Part::Action(pipe) => {
                    let value = self.pipe(pipe, dot)?;
                    if pipe.variables.is_empty() {
                        self.out.push_str(&functions::printed(&value));
                    }
                }
                Part::Break => return Ok(Flow::Break),
                Part::Continue => return Ok(Flow::Continue),
                Part::Call { name, argument, place } => self.call(name, argument.as_ref(), *place, dot)?,
                Part::If { .. } | Part::With { .. } | Part::Range { .. } => {
                    let scope = self.variables.len();
                    let flow = self.block(part, dot)?;
                    self.variables.truncate(scope);
                    if flow != Flow::On {
                        return Ok(flow);
                    }
                }
            }
        }
        Ok(Flow::On)
    }

    /// Runs parts with their own scope of variables.
    fn scope(&mut self, parts: &[Part], dot: Dot<'_>) -> Result<Flow, String> {
        let scope = self.variables.len();
        let flow = self.parts(parts, dot)?;
        self.variables.truncate(scope);
        Ok(flow)
    }

    fn block(&mut self, part: &Part, dot: Dot<'_>) -> Result<Flow, String> {
        match part {
            Part::If { condition, then, otherwise } => {
                let value = self.pipe(condition, dot)?;
                self.scope(if functions::truth(&value) { then } else { otherwise }, dot)
            }
            Part::With { value, then, otherwise } => {
                let value = self.pipe(value, dot)?;
                if functions::truth(&value) {
                    self.scope(then, Dot { value: &value, element: false })
                } else {
                    self.scope(otherwise, dot)
                }
            }
            Part::Range { over, each, otherwise } => self.range(over, each, otherwise, dot),
            _ => Ok(Flow::On),
        }
    }

    fn range(
        &mut self,
        over: &Pipe,
        each: &[Part],
        otherwise: &[Part],
        dot: Dot<'_>,
    ) -> Result<Flow, String> {
        let value = self.value(over, dot)?;
        let pairs: Vec<(Value, Value)> = match &value {
            Value::Array(items) => {
                items.iter().enumerate().map(|(i, item)| (i.into(), item.clone())).collect()
            }
            Value::Object(map) => {
                let mut pairs: Vec<_> =
                    map.iter().map(|(key, value)| (Value::from(key.as_str()), value.clone())).collect();
                pairs.sort_by(|(one, _), (other, _)| one.as_str().cmp(&other.as_str()));
                pairs
            }
            Value::Number(number) if number.is_i64() => {
                let count = number.as_i64().unwrap_or(0);
                if count > LONGEST {
                    let said = format!("range over {count} is longer than {LONGEST}");
                    return Err(self.fault(over.place, &over.commands_text(), &said));
                }
                (0..count).map(|i| (i.into(), i.into())).collect()
            }
            Value::Null => Vec::new(),
            other => {
                let said = format!("range can't iterate over {}", functions::printed(other));
                return Err(self.fault(over.place, &over.commands_text(), &said));
            }
        };
        if pairs.is_empty() {
            return self.scope(otherwise, dot);
        }
        let outer = self.variables.len();
        for (key, item) in &pairs {
            match over.variables.as_slice() {
                [one] => self.set(over.assigns, one, item),
                [first, second] => {
                    self.set(over.assigns, first, key);
                    self.set(over.assigns, second, item);
                }
                _ => {}
            }
            let flow = self.parts(each, Dot { value: item, element: true })?;
            self.variables.truncate(outer);
            if flow == Flow::Break {
                break;
            }
        }
        Ok(Flow::On)
    }

    fn set(&mut self, assigns: bool, name: &str, value: &Value) {
        let known = self.variables.iter_mut().rev().find(|(known, _)| known == name);
        match known {
            Some((_, kept)) if assigns => *kept = value.clone(),
            _ => self.variables.push((name.to_owned(), value.clone())),
        }
    }

    fn call(
        &mut self,
        name: &str,
        argument: Option<&Pipe>,
        place: usize,
        dot: Dot<'_>,
    ) -> Result<(), String> {
        let quoted = apimachinery::go::quote(name);
        let context = match argument {
            Some(pipe) => format!("{{{{template {quoted} {pipe}}}}}"),
            None => format!("{{{{template {quoted}}}}}"),
        };
        let Some(parts) = self.template.named.get(name) else {
            return Err(self.fault(place, &context, &format!("template {quoted} not defined")));
        };
        if self.depth == DEPTH {
            return Err(self.fault(place, &context, &format!("exceeded maximum template depth ({DEPTH})")));
        }
        let value = argument.map(|pipe| self.pipe(pipe, dot)).transpose()?.unwrap_or(Value::Null);
        let outer = std::mem::replace(&mut self.variables, vec![("$".to_owned(), value.clone())]);
        let outer_name = std::mem::replace(&mut self.name, name.to_owned());
        self.depth += 1;
        self.parts(parts, Dot { value: &value, element: false })?;
        self.depth -= 1;
        self.name = outer_name;
        self.variables = outer;
        Ok(())
    }

    /// The value of a pipeline, stored in its variables.
    fn pipe(&mut self, pipe: &Pipe, dot: Dot<'_>) -> Result<Value, String> {
        let value = self.value(pipe, dot)?;
        for name in &pipe.variables {
            self.set(pipe.assigns, name, &value);
        }
        Ok(value)
    }

    fn value(&mut self, pipe: &Pipe, dot: Dot<'_>) -> Result<Value, String> {
        let mut last = None;
        for command in &pipe.commands {
            last = Some(self.command(command, dot, last)?);
        }
        Ok(last.unwrap_or(Value::Null))
    }

    fn command(&mut self, command: &Command, dot: Dot<'_>, last: Option<Value>) -> Result<Value, String> {
        let Some((first, words)) = command.words.split_first() else { return Ok(Value::Null) };
        let WordKind::Function(name) = &first.kind else {
            if !words.is_empty() {
                let said = match &first.kind {
                    WordKind::Field(names) => {
                        format!(
                            "{} is not a method but has arguments",
                            names.last().map_or("", String::as_str)
                        )
                    }
                    _ => format!("can't give argument to non-function {first}"),
                };
                return Err(self.fault(first.place, &first.to_string(), &said));
            }
            if last.is_some() {
                let said = format!("can't give argument to non-function {first}");
                return Err(self.fault(first.place, &first.to_string(), &said));
            }
            if matches!(first.kind, WordKind::Nil) {
                return Err(self.fault(first.place, "nil", "nil is not a command"));
            }
            return self.word(first, dot);
        };
        let mut arguments = Vec::new();
        for word in words {
            // These two evaluate only as many arguments as necessary.
            if let (Some(value), "and" | "or") = (arguments.last(), name.as_str())
                && functions::truth(value) == (name == "or")
            {
                return Ok(arguments.pop().unwrap_or(Value::Null));
            }
            arguments.push(self.word(word, dot)?);
        }
        arguments.extend(last);
        functions::call(name, &arguments).map_err(|said| match said {
            functions::Refusal::Count(said) => self.fault(first.place, name, &said),
            functions::Refusal::Type(said) => {
                let word = words.first().unwrap_or(first);
                self.fault(word.place, &word.to_string(), &said)
            }
            functions::Refusal::Failed(said) => {
                let said = match words.first() {
                    Some(word) if name == "call" => said.replacen("function", &format!("function {word}"), 1),
                    _ => said,
                };
                let context = if words.is_empty() { name.clone() } else { command.to_string() };
                self.fault(first.place, &context, &format!("error calling {name}: {said}"))
            }
        })
    }

    fn word(&mut self, word: &Word, dot: Dot<'_>) -> Result<Value, String> {
        match &word.kind {
            WordKind::Dot => Ok(dot.value.clone()),
            WordKind::Nil => Ok(Value::Null),
            WordKind::Constant { value, .. } => Ok(value.clone()),
            WordKind::Field(names) => self.fields(word, dot.value, dot.element, names),
            WordKind::Variable(name, names) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                let value = known.map_or(Value::Null, |(_, value)| value.clone());
                self.fields(word, &value, false, names)
            }
            WordKind::Chain(inner, names) => {
                let value = self.word(inner, dot)?;
                self.fields(word, &value, false, names)
            }
            WordKind::Pipe(pipe) => self.pipe(pipe, dot),
            WordKind::Function(name) => functions::call(name, &[]).map_err(|said| match said {
                functions::Refusal::Count(said)
                | functions::Refusal::Type(said)
                | functions::Refusal::Failed(said) => self.fault(word.place, name, &said),
            }),
        }
    }

    fn fields(&self, word: &Word, value: &Value, element: bool, names: &[String]) -> Result<Value, String> {
        let refuses = self.template.missing_keys == MissingKeys::Refused;
        let mut value = value;
        let mut missing = false;
        // Go names the last evaluated word: in a chain, the end of the parentheses.
        let seen = match &word.kind {
            WordKind::Chain(inner, _) => inner.last(),
            _ => word,
        };
        let (place, context) = (seen.place, || seen.to_string());
        for (i, name) in names.iter().enumerate() {
            let next = match value {
                Value::Object(map) => map.get(name),
                // A missing value has no fields either; an existing empty one is a nil pointer.
                Value::Null if missing || i == 0 && !element => None,
                Value::Null => {
                    let said = format!("nil pointer evaluating interface {{}}.{name}");
                    return Err(self.fault(place, &context(), &said));
                }
                other => {
                    let type_ = if i > 0 || element { "interface {}" } else { functions::type_name(other) };
                    let said = format!("can't evaluate field {name} in type {type_}");
                    return Err(self.fault(place, &context(), &said));
                }
            };
            if next.is_none() && refuses {
                let said = format!("map has no entry for key {}", apimachinery::go::quote(name));
                return Err(self.fault(place, &context(), &said));
            }
            missing = next.is_none();
            value = next.unwrap_or(&Value::Null);
        }
        Ok(value.clone())
    }
}

impl Word {
    /// The word that is evaluated last, which in parentheses is their last.
    fn last(&self) -> &Self {
        let WordKind::Pipe(pipe) = &self.kind else { return self };
        pipe.commands.last().and_then(|command| command.words.last()).map_or(self, Self::last)
    }
}

impl Pipe {
    fn commands_text(&self) -> String {
        let commands: Vec<String> = self.commands.iter().map(ToString::to_string).collect();
        commands.join(" | ")
    }
}
