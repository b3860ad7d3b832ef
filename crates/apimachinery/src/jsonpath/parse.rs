//! The reader of JSON path expressions.

use serde_json::Value;

use super::{Comparison, Error, Filter, Operand, Path, Step};

/// How deep filters may be inside of each other.
const MAX_FILTERS: usize = 16;

/// Parses a whole expression.
pub(super) fn path(expression: &str) -> Result<Path, Error> {
    let trimmed = expression.trim();
    let body = match trimmed.strip_prefix('{') {
        Some(rest) => rest.strip_suffix('}').ok_or_else(|| Error("unclosed action".to_owned()))?,
        None => trimmed,
    };
    let mut reader = Reader { rest: body, filters: 0 };
    let path = reader.path("")?;
    if reader.rest.is_empty() { Ok(path) } else { Err(reader.unexpected()) }
}

struct Reader<'a> {
    rest: &'a str,
    /// How many filters it is inside of.
    filters: usize,
}

impl<'a> Reader<'a> {
    fn unexpected(&self) -> Error {
        Error(format!("unrecognized character in action: {:?}", self.rest.chars().next().unwrap_or(' ')))
    }

    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str, otherwise: &str) -> Result<(), Error> {
        if self.eat(token) { Ok(()) } else { Err(Error(otherwise.to_owned())) }
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Reads steps until the end or one of the characters in `stops`.
    fn path(&mut self, stops: &str) -> Result<Path, Error> {
        let mut steps = Vec::new();
        if !self.eat("$") {
            self.eat("@");
        }
        // A leading name without a dot is accepted, as kubectl relaxes it.
        if self.rest.starts_with(is_name_start) {
            steps.push(Step::Field(self.name()));
        }
        while let Some(next) = self.rest.chars().next() {
            if stops.contains(next) {
                break;
            }
            if self.eat("..") {
                steps.push(Step::Descend);
                if self.eat("*") {
                    steps.push(Step::Every);
                } else if self.rest.starts_with(is_name_start) {
                    steps.push(Step::Field(self.name()));
                }
            } else if self.eat(".") {
                if self.eat("*") {
                    steps.push(Step::Every);
                } else if self.rest.starts_with(is_name_start) {
                    steps.push(Step::Field(self.name()));
                }
                // A lone dot is the object itself.
            } else if self.eat("[") {
                steps.push(self.bracket()?);
            } else {
                return Err(self.unexpected());
            }
        }
        Ok(Path { steps })
    }

    /// Reads a field name; a backslash takes the next character as it is.
    fn name(&mut self) -> String {
        let mut name = String::new();
        let mut characters = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((index, character)) = characters.next() {
            if character == '\\' {
                name.extend(characters.next().map(|(_, escaped)| escaped));
            } else if is_name_part(character) {
                name.push(character);
            } else {
                end = index;
                break;
            }
        }
        self.rest = &self.rest[end..];
        name
    }

    fn bracket(&mut self) -> Result<Step, Error> {
        const UNTERMINATED: &str = "unterminated array";
        if self.eat("?(") {
            if self.filters >= MAX_FILTERS {
                return Err(Error(format!("more than {MAX_FILTERS} filters inside of each other")));
            }
            self.filters = self.filters.saturating_add(1);
            let filter = self.filter()?;
            self.filters = self.filters.saturating_sub(1);
            self.expect(")]", "unterminated filter")?;
            return Ok(Step::Filter(Box::new(filter)));
        }
        if self.eat("*") {
            self.expect("]", UNTERMINATED)?;
            return Ok(Step::Every);
        }
        let mut parts = Vec::new();
        loop {
            self.skip_blanks();
            parts.push(if self.rest.starts_with(['\'', '"']) {
                Step::Field(self.quoted()?)
            } else {
                self.index_or_slice()?
            });
            self.skip_blanks();
            if self.eat("]") {
                break;
            }
            self.expect(",", UNTERMINATED)?;
        }
        Ok(if parts.len() == 1 {
            parts.remove(0)
        } else {
            Step::Union(parts.into_iter().map(|step| Path { steps: vec![step] }).collect())
        })
    }

    fn quoted(&mut self) -> Result<String, Error> {
        let quote = self.rest.chars().next().expect("the caller saw a quote");
        let mut text = String::new();
        let mut characters = self.rest.char_indices().skip(1);
        while let Some((index, character)) = characters.next() {
            if character == '\\' {
                text.extend(characters.next().map(|(_, escaped)| escaped));
            } else if character == quote {
                self.rest = self.rest.get(index.saturating_add(1)..).unwrap_or_default();
                return Ok(text);
            } else {
                text.push(character);
            }
        }
        Err(Error("unterminated quoted string".to_owned()))
    }

    fn integer(&mut self) -> Result<Option<i64>, Error> {
        let end = self
            .rest
            .char_indices()
            .find(|(index, character)| !(character.is_ascii_digit() || (*index == 0 && *character == '-')))
            .map_or(self.rest.len(), |(index, _)| index);
        if end == 0 {
            return Ok(None);
        }
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits.parse().map(Some).map_err(|_| Error(format!("invalid array index {digits}")))
    }

    fn index_or_slice(&mut self) -> Result<Step, Error> {
        let from = self.integer()?;
        if !self.eat(":") {
            return from.map(Step::Index).ok_or_else(|| Error(format!("invalid array index {}", self.rest)));
        }
        let to = self.integer()?;
        let step = if self.eat(":") { self.integer()?.unwrap_or(1) } else { 1 };
        if step <= 0 {
            return Err(Error("step must be > 0".to_owned()));
        }
        Ok(Step::Slice { from, to, step })
    }

    fn filter(&mut self) -> Result<Filter, Error> {
        let left = self.operand()?;
        self.skip_blanks();
        let operators = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        let found = operators.into_iter().find(|(token, _)| self.rest.starts_with(token));
        let comparison = match found {
            Some((token, comparison)) => {
                self.eat(token);
                Some((comparison, self.operand()?))
            }
            None => None,
        };
        self.skip_blanks();
        Ok(Filter { left, comparison })
    }

    fn operand(&mut self) -> Result<Operand, Error> {
        self.skip_blanks();
        if self.rest.starts_with(['\'', '"']) {
            return Ok(Operand::Literal(Value::String(self.quoted()?)));
        }
        if self.rest.starts_with(['@', '.', '$', '[']) {
            return Ok(Operand::Path(self.path(" =!<>)")?));
        }
        let end = self.rest.find([' ', '=', '!', '<', '>', ')']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "" => Err(Error("missing operand in filter".to_owned())),
            "true" => Ok(Operand::Literal(Value::Bool(true))),
            "false" => Ok(Operand::Literal(Value::Bool(false))),
            number => crate::json::read_value(number.as_bytes())
                .ok()
                .filter(Value::is_number)
                .map(Operand::Literal)
                .ok_or_else(|| Error(format!("unrecognized identifier {number}"))),
        }
    }
}

fn is_name_start(character: char) -> bool {
    is_name_part(character) || character == '\\'
}

fn is_name_part(character: char) -> bool {
    !matches!(
        character,
        ' ' | '.'
            | ','
            | '['
            | ']'
            | '$'
            | '@'
            | '{'
            | '}'
            | '='
            | '!'
            | '<'
            | '>'
            | '('
            | ')'
            | '*'
            | '\''
            | '"'
            | '\\'
    )
}
