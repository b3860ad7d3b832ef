//! Explains why words do not follow the grammar, in the words that ANTLR has for it.
//!
//! In: the words of an expression that the parser has refused. Out: messages, with their positions. This is a second parser,
//! which builds nothing: it takes the decisions that cel-go's generated parser takes, and recovers from mistakes as that one does
//! (leave out a word, assume a missing one, skip to something known), so that the same mistakes lead to the same messages. At
//! each point it knows which words may come next in its own rule and, by the rules it was called from, after it.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use crate::Issue;
use crate::lexer::{self, Token, Words, kind};
use crate::parser;

/// A set of kinds of words; [`END`] says that the rule may end here.
type Set = u64;

const END: Set = 1 << 63;
/// So often it tries to go on after mistakes.
const MAX_RECOVERIES: usize = 30;

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "kinds are below 64, and the place is below the length; constant functions have no iterators"
)]
const fn set(kinds: &[u8]) -> Set {
    let mut all = 0;
    let mut at = 0;
    while at < kinds.len() {
        all |= 1 << kinds[at];
        at += 1;
    }
    all
}

const LITERAL: Set = set(&[
    kind::MINUS,
    kind::TRUE,
    kind::FALSE,
    kind::NULL,
    kind::FLOAT,
    kind::INT,
    kind::UINT,
    kind::STRING,
    kind::BYTES,
]);
/// What a value may begin with.
const MEMBER: Set = LITERAL | set(&[kind::LBRACKET, kind::LBRACE, kind::LPAREN, kind::DOT, kind::IDENT]);
/// What an expression may begin with.
const EXPR: Set = MEMBER | set(&[kind::NOT]);
const QUESTION: Set = set(&[kind::QUESTION]);
const FIELD: Set = set(&[kind::IDENT, kind::ESCAPED_IDENT]);
const RELATIONS: Set = set(&[
    kind::EQUALS,
    kind::NOT_EQUALS,
    kind::IN,
    kind::LESS,
    kind::LESS_EQUALS,
    kind::GREATER_EQUALS,
    kind::GREATER,
]);
const PRODUCTS: Set = set(&[kind::STAR, kind::SLASH, kind::PERCENT]);
const SUMS: Set = set(&[kind::PLUS, kind::MINUS]);
const SUFFIXES: Set = set(&[kind::DOT, kind::LBRACKET]) | END;

/// Adds what is wrong with the words to the issues.
pub(crate) fn explain(words: &Words<'_>, issues: &mut Vec<Issue>) {
    let mut walk = Walk {
        words,
        at: 0,
        issues,
        callers: Vec::new(),
        state: 0,
        recovering: false,
        last_error: None,
        recoveries: 0,
        later: Vec::new(),
    };
    // It ends early only after too many mistakes, which have all been told.
    let _ = walk.start();
    let later = std::mem::take(&mut walk.later);
    issues.extend(later);
}

/// Why a rule is left: the rule tells it, skips to something known and returns as if nothing had happened.
enum Failure {
    /// The next word is none of these.
    Mismatch(Set),
    /// No way through the grammar begins with the words from the current one up to the one that is so far ahead.
    NoWay(usize),
    /// There were too many mistakes.
    GiveUp,
}

type Step = Result<(), Failure>;

struct Walk<'a> {
    words: &'a Words<'a>,
    at: usize,
    issues: &'a mut Vec<Issue>,
    /// What may follow, in the rules that called the current one.
    callers: Vec<Set>,
    /// Where in the grammar it is: any number, as long as it differs from place to place.
    state: u32,
    recovering: bool,
    /// Where it was when it last recovered, and in which states since then.
    last_error: Option<(usize, Vec<u32>)>,
    recoveries: usize,
    /// What is found out after the grammar: words that cannot be names.
    later: Vec<Issue>,
}

/// The machinery.
impl Walk<'_> {
    fn ahead(&self, by: usize) -> u8 {
        self.words.at(self.words.further(self.at, by)).kind
    }

    fn is(&self, by: usize, kinds: Set) -> bool {
        kinds & set(&[self.ahead(by)]) != 0
    }

    fn consume(&mut self) {
        self.at = self.words.further(self.at, 1);
    }

    fn matched(&mut self) {
        self.recovering = false;
        self.last_error = None;
    }

    /// Returns what may come next, here or in the rules above.
    fn expected(&self, next: Set) -> Set {
        let mut all = next;
        for follow in self.callers.iter().rev() {
            if all & END == 0 {
                break;
            }
            all = all & !END | follow;
        }
        if all & END != 0 { all & !END | set(&[kind::EOF]) } else { all }
    }

    /// Calls a rule; `follow` may come after it.
    fn call(&mut self, state: u32, follow: Set, rule: impl FnOnce(&mut Self) -> Step) -> Step {
        self.state = state;
        self.callers.push(follow);
        let result = rule(self);
        let result = self.settle(result);
        self.callers.pop();
        self.state = state;
        result
    }

    /// Tells a failure and goes on behind it.
    fn settle(&mut self, result: Step) -> Step {
        match result {
            Err(failure @ (Failure::Mismatch(_) | Failure::NoWay(_))) => {
                self.report(&failure);
                self.recover()
            }
            other => other,
        }
    }

    fn report(&mut self, failure: &Failure) {
        if std::mem::replace(&mut self.recovering, true) {
            return;
        }
        let first = self.word();
        if let Failure::NoWay(until) = failure {
            let last = self.words.at(self.words.further(self.at, *until));
            let text = if first.kind == kind::EOF { "<EOF>".to_owned() } else { self.source(*until) };
            self.tell(last.start, reserved(format!("no viable alternative at input {}", quoted(&text))));
        } else if let Failure::Mismatch(expected) = failure {
            self.tell(
                first.start,
                format!("mismatched input {} expecting {}", self.shown(), listed(*expected)),
            );
        }
    }

    /// Returns the next word.
    fn word(&self) -> Token {
        self.words.at(self.at)
    }

    /// Returns the source of the next word and so many behind it, without what is not a word.
    fn source(&self, count: usize) -> String {
        let mut word = self.word();
        let mut text = self.words.text(word, word).to_owned();
        for place in self.at..self.words.further(self.at, count) {
            let next = self.words.at(self.words.further(place, 1));
            let between = self.words.between(word, next);
            text.push_str(if between.trim().is_empty() { between } else { "" });
            text.push_str(self.words.text(next, next));
            word = next;
        }
        text
    }

    fn tell(&mut self, at: usize, message: String) {
        self.issues.push(Issue::at(at, format!("Syntax error: {message}")));
    }

    /// Returns how messages show the next word.
    fn shown(&self) -> String {
        let token = self.word();
        quoted(if token.kind == kind::EOF { "<EOF>" } else { self.words.text(token, token) })
    }

    fn count_recovery(&mut self) -> Step {
        self.recoveries = self.recoveries.saturating_add(1);
        if self.recoveries <= MAX_RECOVERIES {
            return Ok(());
        }
        let at = self.word().start;
        self.tell(at, format!("error recovery attempt limit exceeded: {MAX_RECOVERIES}"));
        Err(Failure::GiveUp)
    }

    /// Skips to a word that some rule above waits for.
    fn recover(&mut self) -> Step {
        self.count_recovery()?;
        let stuck = self
            .last_error
            .as_ref()
            .is_some_and(|(at, states)| *at == self.at && states.contains(&self.state));
        if stuck {
            self.consume();
        }
        let mut states = self.last_error.take().map(|(_, states)| states).unwrap_or_default();
        states.push(self.state);
        self.last_error = Some((self.at, states));
        self.skip_to(self.known());
        Ok(())
    }

    fn known(&self) -> Set {
        self.callers.iter().fold(0, |all, follow| all | follow) & !END
    }

    fn skip_to(&mut self, known: Set) {
        while self.ahead(0) != kind::EOF && !self.is(0, known) {
            self.consume();
        }
    }

    /// Takes a word of some kind; `after` may follow it in this rule.
    fn take(&mut self, state: u32, kinds: Set, after: Set) -> Step {
        self.state = state;
        if self.is(0, kinds) {
            self.matched();
            self.consume();
            return Ok(());
        }
        self.count_recovery()?;
        if self.leave_out(kinds) {
            self.consume();
            return Ok(());
        }
        if self.is(0, self.expected(after)) {
            if !std::mem::replace(&mut self.recovering, true) {
                let message = format!("missing {} at {}", listed(self.expected(kinds)), self.shown());
                self.tell(self.word().start, message);
            }
            return Ok(());
        }
        Err(Failure::Mismatch(self.expected(kinds)))
    }

    /// Leaves out the next word, if the one behind it fits.
    fn leave_out(&mut self, next: Set) -> bool {
        let fits = self.is(1, self.expected(next));
        if fits {
            self.unwanted(next);
            self.consume();
            self.matched();
        }
        fits
    }

    fn unwanted(&mut self, next: Set) {
        if !std::mem::replace(&mut self.recovering, true) {
            let expected = listed(self.expected(next));
            let message = format!("extraneous input {} expecting {expected}", self.shown());
            self.tell(self.word().start, message);
        }
    }

    /// Looks whether a choice can be made at all.
    fn sync(&mut self, state: u32, next: Set) -> Step {
        self.state = state;
        if self.recovering || next & END != 0 || self.is(0, next) || self.leave_out(next) {
            return Ok(());
        }
        Err(Failure::Mismatch(self.expected(next)))
    }

    /// As [`Walk::sync`], after a round of a loop that runs at least once.
    fn sync_round(&mut self, state: u32, next: Set) {
        self.state = state;
        if !self.recovering && !self.is(0, next) {
            self.unwanted(next);
            self.skip_to(self.expected(next) | self.known());
        }
    }

    /// Takes a word that may be missing, before something else.
    fn maybe(&mut self, state: u32, kind: u8, otherwise: Set) -> Step {
        self.sync(state, set(&[kind]) | otherwise)?;
        if self.ahead(0) == kind {
            self.take(state.saturating_add(1), set(&[kind]), otherwise)
        } else {
            Ok(())
        }
    }
}

/// The rules of the grammar.
impl Walk<'_> {
    fn start(&mut self) -> Step {
        let result = self
            .call(1, set(&[kind::EOF]), Self::expr)
            .and_then(|()| self.take(2, set(&[kind::EOF]), set(&[kind::EOF])));
        self.settle(result)
    }

    fn expr(&mut self) -> Step {
        self.call(10, QUESTION | END, Self::any)?;
        if self.ahead(0) != kind::QUESTION {
            return Ok(());
        }
        self.take(11, QUESTION, EXPR)?;
        self.call(12, set(&[kind::COLON]), Self::any)?;
        self.take(13, set(&[kind::COLON]), EXPR)?;
        self.call(14, END, Self::expr)
    }

    fn any(&mut self) -> Step {
        let follow = set(&[kind::OR]) | END;
        self.call(20, follow, Self::all)?;
        while self.ahead(0) == kind::OR {
            self.take(21, set(&[kind::OR]), EXPR)?;
            self.call(22, follow, Self::all)?;
        }
        Ok(())
    }

    fn all(&mut self) -> Step {
        let follow = set(&[kind::AND]) | END;
        self.call(30, follow, |this| this.relation(false))?;
        while self.ahead(0) == kind::AND {
            self.take(31, set(&[kind::AND]), EXPR)?;
            self.call(32, follow, |this| this.relation(false))?;
        }
        Ok(())
    }

    fn relation(&mut self, is_right: bool) -> Step {
        self.call(40, RELATIONS | END, |this| this.calc(0))?;
        while !is_right && self.is(0, RELATIONS) {
            self.take(41, RELATIONS, EXPR)?;
            self.call(42, RELATIONS | END, |this| this.relation(true))?;
        }
        Ok(())
    }

    fn calc(&mut self, precedence: u8) -> Step {
        let follow = PRODUCTS | SUMS | END;
        self.call(50, follow, Self::unary)?;
        loop {
            if precedence <= 2 && self.is(0, PRODUCTS) {
                self.take(51, PRODUCTS, EXPR)?;
                self.call(52, follow, |this| this.calc(3))?;
            } else if precedence <= 1 && self.is(0, SUMS) {
                self.take(53, SUMS, EXPR)?;
                self.call(54, follow, |this| this.calc(2))?;
            } else {
                return Ok(());
            }
        }
    }

    fn unary(&mut self) -> Step {
        self.sync(60, EXPR)?;
        let sign = self.ahead(0);
        let number = set(&[kind::INT, kind::FLOAT]);
        if sign == kind::MINUS && !self.is(1, MEMBER) {
            return Err(Failure::NoWay(1));
        }
        if sign == kind::NOT || sign == kind::MINUS && !self.is(1, number) {
            loop {
                self.take(61, set(&[sign]), MEMBER)?;
                self.sync_round(62, set(&[sign]) | MEMBER);
                if self.ahead(0) != sign {
                    break;
                }
                if sign == kind::MINUS && !self.is(1, MEMBER) {
                    return Err(Failure::NoWay(1));
                }
            }
        } else if !self.is(0, MEMBER) {
            return Err(Failure::NoWay(0));
        }
        self.call(63, END, Self::member)
    }

    fn member(&mut self) -> Step {
        self.call(70, SUFFIXES, Self::primary)?;
        loop {
            match (self.ahead(0), self.ahead(1), self.ahead(2)) {
                (kind::LBRACKET, ..) => {
                    self.take(71, set(&[kind::LBRACKET]), QUESTION | EXPR)?;
                    self.maybe(72, kind::QUESTION, EXPR)?;
                    self.call(74, set(&[kind::RBRACKET]), Self::expr)?;
                    self.take(75, set(&[kind::RBRACKET]), SUFFIXES)?;
                }
                (kind::DOT, kind::IDENT, kind::LPAREN) => {
                    self.take(76, set(&[kind::DOT]), FIELD)?;
                    self.take(77, set(&[kind::IDENT]), set(&[kind::LPAREN]))?;
                    self.arguments(SUFFIXES)?;
                }
                (kind::DOT, kind::QUESTION | kind::IDENT | kind::ESCAPED_IDENT, _) => {
                    self.take(78, set(&[kind::DOT]), QUESTION | FIELD)?;
                    self.maybe(79, kind::QUESTION, FIELD)?;
                    self.call(81, SUFFIXES, |this| {
                        let at = this.word().start;
                        this.field().inspect_err(|_| this.later.push(Issue::at(at, "unsupported ident kind")))
                    })?;
                }
                (kind::DOT, ..) => return Err(Failure::NoWay(1)),
                _ => return Ok(()),
            }
        }
    }

    fn arguments(&mut self, after: Set) -> Step {
        let close = set(&[kind::RPAREN]);
        self.take(82, set(&[kind::LPAREN]), EXPR | close)?;
        self.sync(83, EXPR | close)?;
        if self.is(0, EXPR) {
            self.call(84, close, Self::expressions)?;
        }
        self.take(85, close, after)
    }

    fn primary(&mut self) -> Step {
        self.sync(90, MEMBER)?;
        match self.ahead(0) {
            kind::LPAREN => {
                self.take(91, set(&[kind::LPAREN]), EXPR)?;
                self.call(92, set(&[kind::RPAREN]), Self::expr)?;
                self.take(93, set(&[kind::RPAREN]), END)
            }
            kind::LBRACKET => self.braced(94, [kind::LBRACKET, kind::RBRACKET], QUESTION | EXPR, Self::items),
            kind::LBRACE => self.braced(100, [kind::LBRACE, kind::RBRACE], QUESTION | EXPR, Self::entries),
            kind::DOT | kind::IDENT => self.name(),
            _ if self.is(0, LITERAL) => self.call(106, END, Self::literal),
            _ => Err(Failure::NoWay(0)),
        }
    }

    /// A list, a map or the fields of an object, between brackets; a comma may come last.
    fn braced(
        &mut self,
        state: u32,
        [open, close]: [u8; 2],
        first: Set,
        inside: fn(&mut Self) -> Step,
    ) -> Step {
        let ending = set(&[kind::COMMA, close]);
        self.take(state, set(&[open]), first | ending)?;
        self.sync(state.saturating_add(1), first | ending)?;
        if self.is(0, first) {
            self.call(state.saturating_add(2), ending, inside)?;
        }
        self.maybe(state.saturating_add(3), kind::COMMA, set(&[close]))?;
        self.take(state.saturating_add(5), set(&[close]), END)
    }

    fn name(&mut self) -> Step {
        let dot = usize::from(self.ahead(0) == kind::DOT);
        if dot == 1 && self.ahead(1) != kind::IDENT {
            return Err(Failure::NoWay(1));
        }
        // The words of the name, a dot in front aside.
        let mut length = 1_usize;
        let ahead = |this: &Self, by: usize| this.ahead(by.saturating_add(dot));
        while ahead(self, length) == kind::DOT && ahead(self, length.saturating_add(1)) == kind::IDENT {
            length = length.saturating_add(2);
        }
        if dot == 1 {
            self.take(110, set(&[kind::DOT]), set(&[kind::IDENT]))?;
        }
        if self.ahead(length) == kind::LBRACE {
            for _ in 0..length {
                self.take(111, set(&[kind::IDENT, kind::DOT]), set(&[kind::LBRACE]))?;
            }
            return self.braced(112, [kind::LBRACE, kind::RBRACE], QUESTION | FIELD, Self::fields);
        }
        let word = self.word();
        self.take(118, set(&[kind::IDENT]), END)?;
        let found = self.later.len();
        let rest = if self.ahead(0) == kind::LPAREN { self.arguments(END) } else { Ok(()) };
        let name = self.words.text(word, word);
        if parser::RESERVED.contains(&name) {
            // Nobody looks at the arguments of what cannot be called.
            self.later.truncate(found);
            self.later.push(Issue::at(word.start, format!("reserved identifier: {name}")));
        }
        rest
    }

    fn expressions(&mut self) -> Step {
        let follow = set(&[kind::COMMA]) | END;
        self.call(120, follow, Self::expr)?;
        while self.ahead(0) == kind::COMMA {
            self.take(121, set(&[kind::COMMA]), EXPR)?;
            self.call(122, follow, Self::expr)?;
        }
        Ok(())
    }

    fn items(&mut self) -> Step {
        let follow = set(&[kind::COMMA]) | END;
        self.call(130, follow, Self::optional)?;
        while self.ahead(0) == kind::COMMA && self.is(1, QUESTION | EXPR) {
            self.take(131, set(&[kind::COMMA]), QUESTION | EXPR)?;
            self.call(132, follow, Self::optional)?;
        }
        Ok(())
    }

    fn entries(&mut self) -> Step {
        let (colon, follow) = (set(&[kind::COLON]), set(&[kind::COMMA]) | END);
        loop {
            self.call(140, colon, Self::optional)?;
            self.take(141, colon, EXPR)?;
            self.call(142, follow, Self::expr)?;
            if self.ahead(0) != kind::COMMA || !self.is(1, QUESTION | EXPR) {
                return Ok(());
            }
            self.take(143, set(&[kind::COMMA]), QUESTION | EXPR)?;
        }
    }

    fn fields(&mut self) -> Step {
        let (colon, follow) = (set(&[kind::COLON]), set(&[kind::COMMA]) | END);
        loop {
            self.call(150, colon, |this| {
                this.maybe(151, kind::QUESTION, FIELD)?;
                this.call(153, END, Self::field)
            })?;
            self.take(154, colon, EXPR)?;
            self.call(155, follow, Self::expr)?;
            if self.ahead(0) != kind::COMMA || !self.is(1, QUESTION | FIELD) {
                return Ok(());
            }
            self.take(156, set(&[kind::COMMA]), QUESTION | FIELD)?;
        }
    }

    fn optional(&mut self) -> Step {
        self.maybe(160, kind::QUESTION, EXPR)?;
        self.call(162, END, Self::expr)
    }

    fn field(&mut self) -> Step {
        self.sync(170, FIELD)?;
        if self.is(0, FIELD) { self.take(171, FIELD, END) } else { Err(Failure::NoWay(0)) }
    }

    fn literal(&mut self) -> Step {
        self.sync(180, LITERAL)?;
        let number = set(&[kind::INT, kind::FLOAT]);
        if self.ahead(0) != kind::MINUS {
            return self.take(181, LITERAL, END);
        }
        if !self.is(1, number) {
            return Err(Failure::NoWay(1));
        }
        self.take(182, set(&[kind::MINUS]), number)?;
        self.take(183, number, END)
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r"))
}

fn listed(kinds: Set) -> String {
    let names: Vec<String> =
        (0..64).filter(|kind| kinds & !END & set(&[*kind]) != 0).map(lexer::name).collect();
    if let [one] = names.as_slice() { one.clone() } else { format!("{{{}}}", names.join(", ")) }
}

/// cel-go speaks otherwise about words that cannot be names: `a.true`.
fn reserved(message: String) -> String {
    let found = ["true", "false", "null"].into_iter().find(|word| {
        let input = message.strip_prefix("no viable alternative at input '");
        input
            .and_then(|input| input.strip_suffix('\''))
            .and_then(|input| input.strip_suffix(word))
            .is_some_and(|rest| rest.chars().count() == 1)
    });
    found.map_or(message, |word| format!("mismatched input '{word}' expecting IDENTIFIER"))
}
