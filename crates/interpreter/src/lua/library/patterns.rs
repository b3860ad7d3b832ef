//! Lua's patterns, as gopher-lua understands them.
//!
//! A pattern becomes a small program. Matching goes back with a stack of its own, whose growth is charged, and every
//! step counts: no pattern and no string can take more than what the run has left.

use super::Call;
use crate::lua::machine::Ran;

/// Captures in captures beyond this are refused.
const DEPTH_MAX: usize = 100;

#[derive(Debug, Clone)]
enum Class {
    Any,
    Byte(u8),
    /// `%a` and the like; upper case means all others.
    Named(u8),
    Set {
        negated: bool,
        classes: Vec<Class>,
    },
    Range(u8, u8),
    /// A pattern that ends in `%`, or a range between classes: nothing matches.
    Never,
}

impl Class {
    fn matches(&self, byte: u8) -> bool {
        match self {
            Self::Any => true,
            Self::Byte(wanted) => *wanted == byte,
            Self::Range(first, last) => (*first..=*last).contains(&byte),
            Self::Never => false,
            Self::Set { negated, classes } => classes.iter().any(|class| class.matches(byte)) != *negated,
            Self::Named(name) => {
                let found = match name.to_ascii_lowercase() {
                    b'a' => byte.is_ascii_alphabetic(),
                    b'c' => byte.is_ascii_control(),
                    b'd' => byte.is_ascii_digit(),
                    b'l' => byte.is_ascii_lowercase(),
                    b'p' => byte.is_ascii_punctuation(),
                    b's' => matches!(byte, b' ' | 9..=13),
                    b'u' => byte.is_ascii_uppercase(),
                    b'w' => byte.is_ascii_alphanumeric(),
                    b'x' => byte.is_ascii_hexdigit(),
                    b'z' => byte == 0,
                    _ => return *name == byte,
                };
                found != name.is_ascii_uppercase()
            }
        }
    }

    fn cost(&self) -> usize {
        if let Self::Set { classes, .. } = self { 1 + classes.len() / 4 } else { 1 }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Char(Class),
    /// Tries the first place, then the second.
    Split(usize, usize),
    Jump(usize),
    Save(usize),
    /// Remembers the position itself.
    SavePosition(usize),
    Balanced(i32, i32),
    Again(usize),
    AtEnd,
    Done,
}

pub(super) struct Pattern {
    steps: Vec<Step>,
    anchored: bool,
}

/// One end of a capture.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    at: usize,
    position: bool,
}

/// Where a pattern matched: the whole first, then the captures.
pub(super) struct Match(Vec<Mark>);

pub(super) enum Capture {
    Bytes(usize, usize),
    Position(usize),
}

impl Match {
    pub(super) fn captures(&self) -> usize {
        self.0.len() / 2
    }

    pub(super) fn capture(&self, index: usize) -> Capture {
        let (start, end) = (self.0[2 * index], self.0[2 * index + 1]);
        if start.position {
            Capture::Position(start.at)
        } else {
            Capture::Bytes(start.at, end.at.max(start.at))
        }
    }
}

/// The pattern while it is read; `at` is the next byte.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    steps: Vec<Step>,
    marks: usize,
}

type Read<T = ()> = Result<T, String>;

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek();
        self.at += usize::from(byte.is_some());
        byte
    }

    /// Positions in messages are those of the last byte that was read.
    fn place(&self) -> usize {
        self.at.saturating_sub(1)
    }

    fn class(&mut self, sets: bool) -> Read<Class> {
        Ok(match self.next() {
            Some(b'%') => self.next().map_or(Class::Never, Class::Named),
            Some(b'.') if sets => Class::Any,
            Some(b'[') if sets => self.set()?,
            Some(byte) => Class::Byte(byte),
            None => return Err("unexpected EOS at EOS".into()),
        })
    }

    fn set(&mut self) -> Read<Class> {
        let negated = self.peek() == Some(b'^');
        if negated {
            self.at += 1;
        }
        let mut classes: Vec<Class> = Vec::new();
        let mut range = false;
        loop {
            match self.peek() {
                None => return Err(format!("unexpected EOS at {}", self.place())),
                Some(b']') if !classes.is_empty() => {
                    self.at += 1;
                    break;
                }
                Some(b'-') if !classes.is_empty() => {
                    self.at += 1;
                    range = true;
                    continue;
                }
                Some(_) => classes.push(self.class(false)?),
            }
            if range {
                let last = classes.pop();
                let first = classes.pop();
                classes.push(match (first, last) {
                    (Some(Class::Byte(first)), Some(Class::Byte(last))) => Class::Range(first, last),
                    _ => Class::Never,
                });
                range = false;
            }
        }
        if range {
            classes.push(Class::Byte(b'-'));
        }
        Ok(Class::Set { negated, classes })
    }

    /// Reads up to the end of the pattern or of a capture; says whether the pattern must reach the string's end.
    fn sequence(&mut self, depth: usize) -> Read<bool> {
        if depth > DEPTH_MAX {
            return Err("too many nested captures".into());
        }
        // The class that a repetition would apply to.
        let mut last: Option<Class> = None;
        loop {
            let Some(byte) = self.peek() else { return Ok(false) };
            match byte {
                b'%' => match self.bytes.get(self.at + 1) {
                    Some(b'0') => return Err(format!("invalid capture index at {}", self.at)),
                    Some(digit @ b'1'..=b'9') => {
                        self.at += 2;
                        self.steps.push(Step::Again(usize::from(digit - b'0')));
                        last = None;
                    }
                    Some(b'b') => {
                        self.at += 2;
                        let open = self.next().map_or(-1, i32::from);
                        let close = self.next().map_or(-1, i32::from);
                        self.steps.push(Step::Balanced(open, close));
                        last = None;
                    }
                    _ => last = Some(self.single()?),
                },
                b')' if depth == 0 => return Err(format!("invalid ')' at {}", self.place())),
                b')' => return Ok(false),
                b'(' => {
                    self.at += 1;
                    let mark = self.marks;
                    self.marks += 2;
                    if self.peek() == Some(b')') {
                        self.at += 1;
                        self.steps.push(Step::SavePosition(mark));
                    } else {
                        self.steps.push(Step::Save(mark));
                        self.sequence(depth + 1)?;
                        if self.next() != Some(b')') {
                            return Err("unfinished capture at EOS".into());
                        }
                        self.steps.push(Step::Save(mark + 1));
                    }
                    last = None;
                }
                b'*' | b'+' | b'-' | b'?' => {
                    self.at += 1;
                    match last.take() {
                        Some(class) => {
                            self.steps.pop();
                            self.repeat(byte, class);
                        }
                        None => last = Some(self.push(Class::Byte(byte))),
                    }
                }
                b'$' if depth == 0 && self.at + 1 == self.bytes.len() => {
                    self.at += 1;
                    return Ok(true);
                }
                b'.' | b'[' => last = Some(self.single()?),
                _ => {
                    self.at += 1;
                    last = Some(self.push(Class::Byte(byte)));
                }
            }
        }
    }

    fn single(&mut self) -> Read<Class> {
        let class = self.class(true)?;
        Ok(self.push(class))
    }

    fn push(&mut self, class: Class) -> Class {
        self.steps.push(Step::Char(class.clone()));
        class
    }

    fn repeat(&mut self, sign: u8, class: Class) {
        let at = self.steps.len();
        let char = Step::Char(class);
        match sign {
            b'*' => self.steps.extend([Step::Split(at + 1, at + 3), char, Step::Jump(at)]),
            b'+' => self.steps.extend([char, Step::Split(at, at + 2)]),
            b'-' => self.steps.extend([Step::Split(at + 3, at + 1), char, Step::Jump(at)]),
            _ => self.steps.extend([Step::Split(at + 1, at + 2), char]),
        }
    }
}

impl Pattern {
    pub(super) fn read(pattern: &[u8]) -> Result<Self, String> {
        let anchored = pattern.first() == Some(&b'^');
        let mut reader =
            Reader { bytes: pattern, at: usize::from(anchored), steps: vec![Step::Save(0)], marks: 2 };
        let tail = reader.sequence(0)?;
        reader.steps.push(Step::Save(1));
        reader.steps.push(if tail { Step::AtEnd } else { Step::Done });
        Ok(Self { steps: reader.steps, anchored })
    }

    /// Returns up to `limit` matches from `offset` on.
    pub(super) fn find(
        &self,
        call: &mut Call<'_, '_>,
        text: &[u8],
        offset: usize,
        limit: usize,
    ) -> Ran<Vec<Match>> {
        let mut found = Vec::new();
        let mut from = offset;
        while from <= text.len() {
            let matched = self.match_at(call, text, from)?;
            from += 1;
            if let Some((end, marks)) = matched {
                from = from.max(end);
                call.machine.heap.charge(size_of::<Match>() + marks.len() * size_of::<Mark>())?;
                found.push(Match(marks));
            }
            if found.len() == limit || self.anchored {
                break;
            }
        }
        Ok(found)
    }

    fn match_at(
        &self,
        call: &mut Call<'_, '_>,
        text: &[u8],
        start: usize,
    ) -> Ran<Option<(usize, Vec<Mark>)>> {
        enum Undo {
            Branch(usize, usize),
            Mark(usize, Mark),
        }
        let mut marks: Vec<Mark> = Vec::new();
        let mut undo: Vec<Undo> = Vec::new();
        let (mut step, mut at) = (0, start);
        loop {
            call.spend(1)?;
            let fits = match &self.steps[step] {
                Step::Char(class) => {
                    call.spend(class.cost() - 1)?;
                    let fits = text.get(at).is_some_and(|byte| class.matches(*byte));
                    at += usize::from(fits);
                    step += 1;
                    fits
                }
                Step::Done => return Ok(Some((at, marks))),
                Step::AtEnd if at >= text.len() => return Ok(Some((at, marks))),
                Step::AtEnd => false,
                Step::Jump(target) => {
                    step = *target;
                    true
                }
                Step::Split(first, second) => {
                    if undo.len() == undo.capacity() {
                        let more = undo.capacity().max(16);
                        call.machine.heap.charge(more * size_of::<Undo>())?;
                        undo.reserve_exact(more);
                    }
                    undo.push(Undo::Branch(*second, at));
                    step = *first;
                    true
                }
                Step::Save(mark) => {
                    if marks.len() <= *mark {
                        marks.resize(mark + 1, Mark::default());
                    }
                    undo.push(Undo::Mark(*mark, marks[*mark]));
                    marks[*mark] = Mark { at, position: false };
                    step += 1;
                    true
                }
                Step::SavePosition(mark) => {
                    if marks.len() <= mark + 1 {
                        marks.resize(mark + 2, Mark::default());
                    }
                    for end in [*mark, mark + 1] {
                        marks[end] = Mark { at: at + 1, position: true };
                    }
                    step += 1;
                    true
                }
                Step::Balanced(open, close) => {
                    let end = balanced(call, text, at, *open, *close)?;
                    at = end.unwrap_or(at);
                    step += 1;
                    end.is_some()
                }
                Step::Again(number) => {
                    let (first, last) = (number * 2, number * 2 + 1);
                    if last >= marks.len() {
                        return Err(call.raise("invalid capture index"));
                    }
                    let capture = text.get(marks[first].at..marks[last].at).unwrap_or_default();
                    call.spend(capture.len() / 8)?;
                    let fits = text.get(at..).is_some_and(|rest| rest.starts_with(capture));
                    at += capture.len();
                    step += 1;
                    fits
                }
            };
            if fits {
                continue;
            }
            loop {
                match undo.pop() {
                    Some(Undo::Branch(other, place)) => {
                        (step, at) = (other, place);
                        break;
                    }
                    Some(Undo::Mark(mark, before)) => marks[mark] = before,
                    None => return Ok(None),
                }
            }
        }
    }
}

/// Returns the end of what begins with `open` and ends with its `close`.
fn balanced(call: &mut Call<'_, '_>, text: &[u8], at: usize, open: i32, close: i32) -> Ran<Option<usize>> {
    if text.get(at).is_none_or(|byte| i32::from(*byte) != open) {
        return Ok(None);
    }
    let mut count = 1_usize;
    for (offset, byte) in text[at + 1..].iter().enumerate() {
        if i32::from(*byte) == close {
            count -= 1;
        }
        if count == 0 {
            call.spend(offset / 4)?;
            return Ok(Some(at + offset + 2));
        }
        if i32::from(*byte) == open {
            count += 1;
        }
    }
    call.spend((text.len() - at) / 4)?;
    Ok(None)
}
