//! Says whether a text is a Lua program, without running it.
//!
//! The language is that of Karmada's interpreter: Lua 5.1 with `goto`. In: the text. Out: the first fault, placed and
//! worded as Karmada's parser does, since users search for those words. No tree is built.
//!
//! A fault is reported at the end of the token that cannot follow what stands before it.

mod scanner;

use std::collections::BTreeSet;

use scanner::{Scanner, Token, TokenKind};

/// The name under which scripts are compiled.
const SOURCE: &str = "<string>";
/// Nesting beyond this is refused: it could only be meant to exhaust the stack.
const DEPTH_MAX: usize = 200;
const UNARY_BINDING: u8 = 8;

/// Returns the first fault of a script.
pub fn fault(script: &str) -> Option<String> {
    Parser::new(script).and_then(|mut parser| parser.chunk()).err()
}

type Parsed<T = ()> = Result<T, String>;

/// What a function needs to know while its body is read.
struct Function {
    vararg: bool,
    /// How many loops are open; a `break` needs one.
    loops: usize,
    /// Open blocks from outer to inner: labels seen and jumps still to be matched.
    blocks: Vec<Block>,
}

#[derive(Default)]
struct Block {
    labels: BTreeSet<String>,
    jumps: Vec<(String, usize)>,
}

/// What stood at the end of an expression that may begin a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Variable,
    Call,
    Other,
}

struct Parser<'a> {
    scanner: Scanner<'a>,
    token: Token<'a>,
    ahead: Option<Token<'a>>,
    functions: Vec<Function>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(script: &'a str) -> Parsed<Self> {
        let mut scanner = Scanner::new(script);
        let token = scanner.next().map_err(|fault| fault.text(SOURCE))?;
        let main = Function { vararg: true, loops: 0, blocks: Vec::new() };
        Ok(Self { scanner, token, ahead: None, functions: vec![main], depth: 0 })
    }

    fn function(&mut self) -> &mut Function {
        self.functions.last_mut().expect("the main function stays")
    }

    fn advance(&mut self) -> Parsed<Token<'a>> {
        let next = match self.ahead.take() {
            Some(token) => token,
            None => self.scanner.next().map_err(|fault| fault.text(SOURCE))?,
        };
        Ok(std::mem::replace(&mut self.token, next))
    }

    fn fail<T>(&self, message: &str) -> Parsed<T> {
        Err(self.token.fault(message).text(SOURCE))
    }

    fn is(&self, text: &str) -> bool {
        self.token.is(text)
    }

    fn accept(&mut self, text: &str) -> Parsed<bool> {
        let found = self.is(text);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, text: &str) -> Parsed {
        if self.accept(text)? { Ok(()) } else { self.fail("syntax error") }
    }

    fn name(&mut self) -> Parsed<String> {
        if self.token.kind == TokenKind::Name {
            Ok(self.advance()?.text.into_owned())
        } else {
            self.fail("syntax error")
        }
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= DEPTH_MAX {
            return self.fail("chunk has too many syntax levels");
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn chunk(&mut self) -> Parsed {
        self.block()?;
        if self.token.kind == TokenKind::End { Ok(()) } else { self.fail("syntax error") }
    }

    /// Reads statements up to one that no statement can follow, or up to a token that cannot begin one.
    fn block(&mut self) -> Parsed {
        self.function().blocks.push(Block::default());
        self.nested(Self::statements)?;
        let block = self.function().blocks.pop().expect("it was pushed above");
        for (label, line) in block.jumps {
            if block.labels.contains(&label) {
                continue;
            }
            match self.function().blocks.last_mut() {
                Some(outer) => outer.jumps.push((label, line)),
                None => return Err(compile_fault(line, &format!("no visible label '{label}' for goto"))),
            }
        }
        Ok(())
    }

    fn statements(&mut self) -> Parsed {
        loop {
            if self.accept(";")? {
                continue;
            }
            if self.is("return") {
                self.advance()?;
                let ends = self.token.kind == TokenKind::End
                    || ["end", "else", "elseif", "until", ";"].into_iter().any(|word| self.is(word));
                if !ends {
                    self.expressions()?;
                }
                self.accept(";")?;
                return Ok(());
            }
            if self.is("break") {
                let line = self.advance()?.line;
                if self.function().loops == 0 {
                    return Err(compile_fault(line, "no loop to break"));
                }
                self.accept(";")?;
                return Ok(());
            }
            if self.token.kind == TokenKind::End
                || ["end", "else", "elseif", "until"].into_iter().any(|word| self.is(word))
            {
                return Ok(());
            }
            self.statement()?;
        }
    }

    fn statement(&mut self) -> Parsed {
        if self.accept("do")? {
            self.block()?;
            return self.expect("end");
        }
        if self.accept("while")? {
            self.expression(0)?;
            self.expect("do")?;
            self.looped()?;
            return self.expect("end");
        }
        if self.accept("repeat")? {
            self.looped()?;
            self.expect("until")?;
            return self.expression(0);
        }
        if self.accept("if")? {
            return self.conditional();
        }
        if self.accept("for")? {
            return self.for_loop();
        }
        if self.accept("function")? {
            self.name()?;
            while self.accept(".")? {
                self.name()?;
            }
            if self.accept(":")? {
                self.name()?;
            }
            return self.body();
        }
        if self.accept("local")? {
            return self.local();
        }
        if self.is("goto") {
            let line = self.advance()?.line;
            let label = self.name()?;
            self.function().blocks.last_mut().expect("statements stand in blocks").jumps.push((label, line));
            return Ok(());
        }
        if self.accept("::")? {
            let line = self.token.line;
            let label = self.name()?;
            let block = self.function().blocks.last_mut().expect("statements stand in blocks");
            if !block.labels.insert(label.clone()) {
                return Err(compile_fault(line, &format!("label '{label}' already defined")));
            }
            return self.expect("::");
        }
        self.assignment_or_call()
    }

    fn looped(&mut self) -> Parsed {
        self.function().loops += 1;
        self.block()?;
        self.function().loops -= 1;
        Ok(())
    }

    fn conditional(&mut self) -> Parsed {
        self.expression(0)?;
        self.expect("then")?;
        self.block()?;
        while self.accept("elseif")? {
            self.expression(0)?;
            self.expect("then")?;
            self.block()?;
        }
        if self.accept("else")? {
            self.block()?;
        }
        self.expect("end")
    }

    fn for_loop(&mut self) -> Parsed {
        self.name()?;
        if self.accept("=")? {
            self.expression(0)?;
            self.expect(",")?;
            self.expression(0)?;
            if self.accept(",")? {
                self.expression(0)?;
            }
        } else {
            while self.accept(",")? {
                self.name()?;
            }
            self.expect("in")?;
            self.expressions()?;
        }
        self.expect("do")?;
        self.looped()?;
        self.expect("end")
    }

    fn local(&mut self) -> Parsed {
        if self.accept("function")? {
            self.name()?;
            return self.body();
        }
        self.name()?;
        while self.accept(",")? {
            self.name()?;
        }
        if self.accept("=")? {
            self.expressions()?;
        }
        Ok(())
    }

    fn assignment_or_call(&mut self) -> Parsed {
        let mut ending = self.prefixed()?;
        if !self.is("=") && !self.is(",") {
            return if ending == Ending::Call { Ok(()) } else { self.fail("parse error") };
        }
        loop {
            if ending != Ending::Variable {
                return self.fail("syntax error");
            }
            if !self.accept(",")? {
                break;
            }
            ending = self.prefixed()?;
        }
        self.expect("=")?;
        self.expressions()
    }

    fn expressions(&mut self) -> Parsed {
        self.expression(0)?;
        while self.accept(",")? {
            self.expression(0)?;
        }
        Ok(())
    }

    /// Reads an expression whose operators bind tighter than `least`.
    fn expression(&mut self, least: u8) -> Parsed {
        self.nested(|parser| {
            if ["not", "-", "#"].into_iter().any(|operator| parser.is(operator)) {
                parser.advance()?;
                parser.expression(UNARY_BINDING)?;
            } else {
                parser.operand()?;
            }
            while let Some((left, right)) = parser.token.binding() {
                if left <= least {
                    break;
                }
                parser.advance()?;
                parser.expression(right)?;
            }
            Ok(())
        })
    }

    fn operand(&mut self) -> Parsed {
        match self.token.kind {
            TokenKind::Number | TokenKind::Text => self.advance().map(|_| ()),
            _ if ["nil", "true", "false"].into_iter().any(|word| self.is(word)) => self.advance().map(|_| ()),
            _ if self.is("...") => {
                let line = self.token.line;
                if !self.function().vararg {
                    return Err(compile_fault(line, "cannot use '...' outside a vararg function"));
                }
                self.advance().map(|_| ())
            }
            _ if self.is("function") => {
                self.advance()?;
                self.body()
            }
            _ if self.is("{") => self.table(),
            _ => self.prefixed().map(|_| ()),
        }
    }

    /// Reads a variable, a call, or something in parentheses, with all that hangs behind it.
    fn prefixed(&mut self) -> Parsed<Ending> {
        let mut ending = if self.token.kind == TokenKind::Name {
            self.advance()?;
            Ending::Variable
        } else if self.accept("(")? {
            let call = self.parenthesised()?;
            self.expect(")")?;
            if call { Ending::Call } else { Ending::Other }
        } else {
            return self.fail("syntax error");
        };
        loop {
            if self.accept("[")? {
                self.expression(0)?;
                self.expect("]")?;
                ending = Ending::Variable;
            } else if self.accept(".")? {
                self.name()?;
                ending = Ending::Variable;
            } else if self.accept(":")? {
                self.name()?;
                if !self.arguments()? {
                    return self.fail("syntax error");
                }
                ending = Ending::Call;
            } else if self.arguments()? {
                ending = Ending::Call;
            } else {
                return Ok(ending);
            }
        }
    }

    /// Reads what stands in parentheses and says whether it is a call and nothing else.
    fn parenthesised(&mut self) -> Parsed<bool> {
        let may_be_call = self.token.kind == TokenKind::Name || self.is("(");
        if !may_be_call {
            self.expression(0)?;
            return Ok(false);
        }
        let ending = self.nested(Self::prefixed)?;
        if self.is(")") {
            return Ok(ending == Ending::Call);
        }
        // It was the left operand of something larger.
        self.nested(|parser| {
            while let Some((_, right)) = parser.token.binding() {
                parser.advance()?;
                parser.expression(right)?;
            }
            Ok(())
        })?;
        Ok(false)
    }

    /// Reads the arguments of a call, if there are any.
    fn arguments(&mut self) -> Parsed<bool> {
        if self.token.kind == TokenKind::Text {
            self.advance()?;
            return Ok(true);
        }
        if self.is("{") {
            self.table()?;
            return Ok(true);
        }
        if !self.is("(") {
            return Ok(false);
        }
        if self.token.after_closed_line {
            return self.fail("ambiguous syntax (function call x new statement)");
        }
        self.advance()?;
        if !self.is(")") {
            self.expressions()?;
        }
        self.expect(")")?;
        Ok(true)
    }

    fn table(&mut self) -> Parsed {
        self.expect("{")?;
        self.nested(|parser| {
            while !parser.is("}") {
                if parser.accept("[")? {
                    parser.expression(0)?;
                    parser.expect("]")?;
                    parser.expect("=")?;
                    parser.expression(0)?;
                } else if parser.token.kind == TokenKind::Name && parser.next_is("=")? {
                    parser.advance()?;
                    parser.advance()?;
                    parser.expression(0)?;
                } else {
                    parser.expression(0)?;
                }
                if !parser.accept(",")? && !parser.accept(";")? {
                    break;
                }
            }
            Ok(())
        })?;
        self.expect("}")
    }

    fn next_is(&mut self, text: &str) -> Parsed<bool> {
        if self.ahead.is_none() {
            self.ahead = Some(self.scanner.next().map_err(|fault| fault.text(SOURCE))?);
        }
        Ok(self.ahead.as_ref().is_some_and(|token| token.is(text)))
    }

    /// Reads the parameters and the block of a function.
    fn body(&mut self) -> Parsed {
        self.expect("(")?;
        let mut vararg = false;
        if !self.is(")") {
            loop {
                if self.accept("...")? {
                    vararg = true;
                    break;
                }
                self.name()?;
                if !self.accept(",")? {
                    break;
                }
            }
        }
        self.expect(")")?;
        self.functions.push(Function { vararg, loops: 0, blocks: Vec::new() });
        self.block()?;
        self.functions.pop();
        self.expect("end")
    }
}

fn compile_fault(line: usize, message: &str) -> String {
    format!("compile error near line({line}) {SOURCE}: {message}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_programs() {
        for good in [
            "",
            "return 1",
            "function GetReplicas(obj) replica = obj.spec.replicas; return replica, nil end",
            "local a, b = 1, 'x' for i = 1, 10, 2 do if i == 3 then break end end",
            "for k, v in pairs(t) do t[k] = v .. [[x]] end",
            "while true do repeat local x = -#t until not x end",
            "a.b['c']:d{1, 2; x = 3, [4] = 5}.e = function(...) return ... end",
            "f 'x' (g)",
            "(f)()",
            "(f())",
            "x = (1 + 2) * 3 ^ -2 % 4 -- comment\n--[[ long\ncomment ]] y = 0x1F + .5e-3",
            "do goto done end ::done::",
            "local s = [==[ ]] ]==]",
            "if a then elseif b then else end;",
            "local function f(a, ...) return select('#', ...) end",
            "x = (a.b or c)(1)",
        ] {
            assert_eq!(fault(good), None, "{good}");
        }
    }

    #[test]
    fn the_first_token_that_does_not_fit_is_named() {
        for (bad, expected) in [
            ("return 1 +", "<string> at EOF:   syntax error\n"),
            ("function f( end", "<string> line:1(column:15) near 'end':   syntax error\n"),
            ("x = = 1", "<string> line:1(column:5) near '=':   syntax error\n"),
            ("x", "<string> at EOF:   parse error\n"),
            ("x y", "<string> line:1(column:3) near 'y':   parse error\n"),
            ("local x = 1\nend", "<string> line:2(column:3) near 'end':   syntax error\n"),
            ("(a) = 1", "<string> line:1(column:5) near '=':   syntax error\n"),
            ("x = 'abc", "<string> at EOF:   unterminated string\n"),
            ("x = 1 ~ 2", "<string> line:1(column:7) near '~':   Invalid '~' token\n"),
            ("x = @", "<string> line:1(column:5) near '@':   Invalid token\n"),
            ("break", "compile error near line(1) <string>: no loop to break"),
            (
                "function f() return ... end",
                "compile error near line(1) <string>: cannot use '...' outside a vararg function",
            ),
            ("goto nowhere", "compile error near line(1) <string>: no visible label 'nowhere' for goto"),
        ] {
            assert_eq!(fault(bad).as_deref(), Some(expected), "{bad}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_instead_of_exhausting_the_stack() {
        let deep = format!("x = {}1{}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(fault(&deep).is_some());
        let deep = format!("x = {}", "not ".repeat(100_000));
        assert!(fault(&deep).is_some());
    }
}
