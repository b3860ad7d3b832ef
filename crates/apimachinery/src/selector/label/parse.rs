//! The reader of the label selector syntax.
//!
//! ```text
//! selector    = requirement { "," requirement }
//! requirement = ["!"] KEY | KEY ("in" | "notin") "(" VALUE {"," VALUE} ")" | KEY ("=" | "==" | "!=" | ">" | "<") VALUE
//! ```
//! `in` and `notin` are words only after a key: `in in (in)` is fine. An empty VALUE is a value.

use super::{Error, Operator, Requirement};
use crate::field::{self, Path};
use crate::names;

/// Parses the text into checked requirements, in the order written.
pub(super) fn requirements(text: &str) -> Result<Vec<Requirement>, Error> {
    let mut parser = Parser { tokens: scan(text), position: 0 };
    let mut found = Vec::new();
    loop {
        match parser.peek_value() {
            Token::Word | Token::Not => {
                let requirement = parser
                    .requirement()
                    .map_err(|error| Error(format!("unable to parse requirement: {}", error.0)))?;
                found.push(requirement);
                let (token, text) = parser.take_value();
                match token {
                    Token::End => return Ok(found),
                    Token::Comma => {
                        let next = parser.peek_value();
                        if next != Token::Word && next != Token::Not {
                            let text = parser.peek_text();
                            return Err(Error(format!("found '{text}', expected: identifier after ','")));
                        }
                    }
                    _ => return Err(Error(format!("found '{text}', expected: ',' or 'end of string'"))),
                }
            }
            Token::End => return Ok(found),
            _ => {
                let text = parser.peek_text();
                return Err(Error(format!("found '{text}', expected: !, identifier, or 'end of string'")));
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Bad,
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Word,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

fn keyword(text: &str) -> Option<Token> {
    Some(match text {
        ")" => Token::Close,
        "," => Token::Comma,
        "!" => Token::Not,
        "==" => Token::DoubleEquals,
        "=" => Token::Equals,
        ">" => Token::Greater,
        "in" => Token::In,
        "<" => Token::Less,
        "!=" => Token::NotEquals,
        "notin" => Token::NotIn,
        "(" => Token::Open,
        _ => return None,
    })
}

fn is_symbol(character: char) -> bool {
    matches!(character, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n')
}

/// Cuts the text into tokens; symbols take the longest operator, and the list always ends with `End`.
fn scan(text: &str) -> Vec<(Token, String)> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(is_blank);
        let Some(first) = rest.chars().next() else {
            tokens.push((Token::End, String::new()));
            return tokens;
        };
        if is_symbol(first) {
            // Every operator starts with a symbol that is an operator by itself, so the scan never fails midway.
            let length = if rest.len() > 1 && rest.is_char_boundary(2) && keyword(&rest[..2]).is_some() {
                2
            } else {
                1
            };
            let (symbol, after) = rest.split_at(length);
            tokens.push((keyword(symbol).unwrap_or(Token::Bad), symbol.to_owned()));
            rest = after;
        } else {
            let end = rest
                .find(|character| is_symbol(character) || is_blank(character) || character == '\0')
                .unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            tokens.push((keyword(word).unwrap_or(Token::Word), word.to_owned()));
            // A zero byte ends the text for upstream's reader.
            if after.starts_with('\0') {
                tokens.push((Token::End, String::new()));
                return tokens;
            }
            rest = after;
        }
    }
}

struct Parser {
    tokens: Vec<(Token, String)>,
    position: usize,
}

impl Parser {
    fn current(&self) -> &(Token, String) {
        // The last token is `End`; a reader that runs past it keeps seeing it.
        static END: (Token, String) = (Token::End, String::new());
        self.tokens.get(self.position).or_else(|| self.tokens.last()).unwrap_or(&END)
    }

    fn peek_text(&self) -> &str {
        &self.current().1
    }

    /// The current token where a value may stand: there `in` and `notin` are plain words.
    fn peek_value(&self) -> Token {
        match self.current().0 {
            Token::In | Token::NotIn => Token::Word,
            other => other,
        }
    }

    fn take_value(&mut self) -> (Token, String) {
        let token = (self.peek_value(), self.peek_text().to_owned());
        self.position = self.position.saturating_add(1);
        token
    }

    fn take(&mut self) -> (Token, String) {
        let token = self.current().clone();
        self.position = self.position.saturating_add(1);
        token
    }

    fn requirement(&mut self) -> Result<Requirement, Error> {
        let (mut token, mut key) = self.take_value();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.take_value();
        }
        if token != Token::Word {
            return Err(Error(format!("found '{key}', expected: identifier")));
        }
        let complaints = names::qualified_name(&key);
        if !complaints.is_empty() {
            // Upstream has no path here and prints the absent one.
            let error = field::Error::invalid(&Path::new("<nil>"), key.as_str(), complaints.join("; "));
            return Err(Error(error.to_string()));
        }
        if matches!(self.peek_value(), Token::End | Token::Comma) {
            let operator = if negated { Operator::DoesNotExist } else { Operator::Exists };
            return Requirement::new(&key, operator, Vec::new());
        }
        if negated {
            return Requirement::new(&key, Operator::DoesNotExist, Vec::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        Requirement::new(&key, operator, values)
    }

    fn operator(&mut self) -> Result<Operator, Error> {
        let (token, text) = self.take();
        Ok(match token {
            Token::In => Operator::In,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            Token::NotIn => Operator::NotIn,
            Token::NotEquals => Operator::NotEquals,
            _ => {
                return Err(Error(format!("found '{text}', expected: in, notin, =, ==, !=, gt, lt")));
            }
        })
    }

    fn values(&mut self) -> Result<Vec<String>, Error> {
        let (token, text) = self.take_value();
        if token != Token::Open {
            return Err(Error(format!("found '{text}' expected: '('")));
        }
        let first = self.peek_text().to_owned();
        match self.peek_value() {
            Token::Word | Token::Comma => {
                let values = self.value_list()?;
                // Upstream reports the text seen before the list here.
                if self.take_value().0 != Token::Close {
                    return Err(Error(format!("found '{first}', expected: ')'")));
                }
                Ok(values)
            }
            Token::Close => {
                self.position = self.position.saturating_add(1);
                Ok(vec![String::new()])
            }
            _ => Err(Error(format!("found '{first}', expected: ',', ')' or identifier"))),
        }
    }

    fn value_list(&mut self) -> Result<Vec<String>, Error> {
        let mut values: Vec<String> = Vec::new();
        loop {
            let (token, text) = self.take_value();
            match token {
                Token::Word => {
                    values.push(text);
                    match self.peek_value() {
                        Token::Comma => {}
                        Token::Close => return Ok(values),
                        _ => {
                            let text = self.peek_text();
                            return Err(Error(format!("found '{text}', expected: ',' or ')'")));
                        }
                    }
                }
                Token::Comma => {
                    if values.is_empty() {
                        values.push(String::new());
                    }
                    match self.peek_value() {
                        Token::Close => {
                            values.push(String::new());
                            return Ok(values);
                        }
                        Token::Comma => values.push(String::new()),
                        _ => {}
                    }
                }
                _ => return Err(Error(format!("found '{text}', expected: ',', or identifier"))),
            }
        }
    }

    fn exact_value(&mut self) -> Result<String, Error> {
        if matches!(self.peek_value(), Token::End | Token::Comma) {
            return Ok(String::new());
        }
        let (token, text) = self.take_value();
        if token == Token::Word {
            Ok(text)
        } else {
            Err(Error(format!("found '{text}', expected: identifier")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_read_as_upstreams() {
        for (text, message) in [
            (",", "found ',', expected: !, identifier, or 'end of string'"),
            ("a,", "found '', expected: identifier after ','"),
            ("a,,b", "found ',', expected: identifier after ','"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
            ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
            ("a==(", "unable to parse requirement: found '(', expected: identifier"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            ("(a", "found '(', expected: !, identifier, or 'end of string'"),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ] {
            assert_eq!(requirements(text).unwrap_err().0, message, "{text}");
        }
    }

    #[test]
    fn bad_keys_and_values_quote_the_rule() {
        let key = requirements("-a=b").unwrap_err().0;
        assert!(
            key.starts_with(
                "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of"
            ),
            "{key}"
        );
        let value = requirements("a=b/c").unwrap_err().0;
        assert!(
            value.starts_with(
                "unable to parse requirement: values[0][a]: Invalid value: \"b/c\": a valid label must be an empty string"
            ),
            "{value}"
        );
    }
}
