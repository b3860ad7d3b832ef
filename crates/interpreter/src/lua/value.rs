//! The values of scripts and the heap they live on.
//!
//! Tables, closures and the cells of captured variables are entries of vectors and die together with the run, so that
//! cycles among them cost nothing and cannot leak. Strings are counted references, since scripts make many and drop
//! most. Every byte is charged against the limit of the run.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Throw;
use super::code::Prototype;
use super::library::Native;

/// A string: any bytes.
#[derive(Clone, Debug)]
pub(super) struct Text(Arc<Bytes>);

#[derive(Debug)]
struct Bytes {
    bytes: Box<[u8]>,
    /// Told when the string dies; constants of a script belong to no run.
    gauge: Option<Arc<AtomicUsize>>,
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Some(gauge) = &self.gauge {
            gauge.fetch_sub(self.bytes.len() + TEXT_COST, Ordering::Relaxed);
        }
    }
}

/// What a string takes besides its bytes.
const TEXT_COST: usize = 64;

impl Text {
    /// A string that belongs to a script and not to a run.
    pub(super) fn constant(bytes: &[u8]) -> Self {
        Self(Arc::new(Bytes { bytes: bytes.into(), gauge: None }))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    pub(super) fn lossy(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.bytes() == other.bytes()
    }
}

impl Eq for Text {}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Nil,
    Boolean(bool),
    Number(f64),
    Text(Text),
    Table(TableId),
    Closure(ClosureId),
    Native(Native),
    /// Where a captured variable lives; never seen by scripts.
    Cell(CellId),
    /// What is left of the matches of `string.gmatch`.
    Matches(MatchesId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TableId(pub(super) u32);
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClosureId(pub(super) u32);
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CellId(u32);
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MatchesId(u32);

impl Value {
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Boolean(_) => "boolean",
            Self::Number(_) => "number",
            Self::Text(_) => "string",
            Self::Table(_) => "table",
            Self::Closure(_) | Self::Native(_) => "function",
            Self::Cell(_) | Self::Matches(_) => "userdata",
        }
    }

    /// The number by which gopher-lua knows the type; some of Karmada's messages print it.
    pub(super) fn type_number(&self) -> u8 {
        match self {
            Self::Nil => 0,
            Self::Boolean(_) => 1,
            Self::Number(_) => 2,
            Self::Text(_) => 3,
            Self::Closure(_) | Self::Native(_) => 4,
            Self::Cell(_) | Self::Matches(_) => 5,
            Self::Table(_) => 7,
        }
    }

    pub(super) fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    pub(super) fn truthy(&self) -> bool {
        !matches!(self, Self::Nil | Self::Boolean(false))
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nil, Self::Nil) => true,
            (Self::Boolean(left), Self::Boolean(right)) => left == right,
            (Self::Number(left), Self::Number(right)) => left == right,
            (Self::Text(left), Self::Text(right)) => left == right,
            (Self::Table(left), Self::Table(right)) => left == right,
            (Self::Closure(left), Self::Closure(right)) => left == right,
            (Self::Native(left), Self::Native(right)) => left == right,
            (Self::Matches(left), Self::Matches(right)) => left == right,
            _ => false,
        }
    }
}

/// A value as a key of a table; NaN and nil never are.
#[derive(Clone, Debug)]
struct Key(Value);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Value::Nil => 0_u8.hash(state),
            Value::Boolean(value) => value.hash(state),
            // Both zeros are one key.
            Value::Number(value) => (value + 0.0).to_bits().hash(state),
            Value::Text(text) => text.bytes().hash(state),
            Value::Table(id) => id.hash(state),
            Value::Closure(id) => id.hash(state),
            Value::Native(native) => native.hash(state),
            Value::Cell(id) => id.hash(state),
            Value::Matches(id) => id.hash(state),
        }
    }
}

/// A table: the values of keys 1, 2, 3, …, then all others in the order in which they first came.
///
/// The array part and the order are those of gopher-lua: scripts see them through `#`, `pairs` and `table.*`.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) array: Vec<Value>,
    entries: Vec<(Value, Value)>,
    /// Where a key stands in `entries`; made once the table is too large to look through.
    index: Option<HashMap<Key, u32>>,
}

/// Up to this many entries are looked through one by one.
const SMALL: usize = 8;
/// Keys from here on are not part of an array, as in gopher-lua.
const ARRAY_END: f64 = 67_108_864.0;

/// Returns the place in the array part that a number names.
fn array_index(number: f64) -> Option<usize> {
    let integral = number > 0.0 && number < ARRAY_END && number.fract() == 0.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 1 and 2^26")]
    integral.then(|| number as usize - 1)
}

impl Table {
    pub(super) fn get(&self, key: &Value) -> Value {
        if let Value::Number(number) = key
            && let Some(at) = array_index(*number)
        {
            return self.array.get(at).cloned().unwrap_or(Value::Nil);
        }
        self.find(key).map_or(Value::Nil, |at| self.entries[at].1.clone())
    }

    pub(super) fn get_text(&self, key: &[u8]) -> Value {
        let found = match &self.index {
            None => self
                .entries
                .iter()
                .position(|(known, _)| matches!(known, Value::Text(text) if text.bytes() == key)),
            Some(_) => self.find(&Value::Text(Text::constant(key))),
        };
        found.map_or(Value::Nil, |at| self.entries[at].1.clone())
    }

    fn find(&self, key: &Value) -> Option<usize> {
        match &self.index {
            None => self.entries.iter().position(|(known, _)| known == key),
            Some(index) => index.get(&Key(key.clone())).map(|at| *at as usize),
        }
    }

    /// Returns the last place of the array part that has a value.
    pub(super) fn length(&self) -> usize {
        self.array.iter().rposition(|value| !value.is_nil()).map_or(0, |at| at + 1)
    }

    /// Returns what follows `key` in the order of `pairs`, `None` at the end, and how many places were looked at.
    pub(super) fn next(&self, key: &Value) -> (Option<(Value, Value)>, usize) {
        let from_array = match key {
            Value::Nil => Some(0),
            Value::Number(number) => array_index(*number).map(|at| at + 1),
            _ => None,
        };
        let mut looked = 0;
        let mut entry = match from_array {
            Some(start) => {
                for (at, value) in self.array.iter().enumerate().skip(start) {
                    looked += 1;
                    if !value.is_nil() {
                        return (Some((Value::Number((at + 1) as f64), value.clone())), looked);
                    }
                }
                0
            }
            // An unknown key continues behind the first one, as in gopher-lua.
            None => self.find(key).unwrap_or(0) + 1,
        };
        while let Some((key, value)) = self.entries.get(entry) {
            looked += 1;
            if !value.is_nil() {
                return (Some((key.clone(), value.clone())), looked);
            }
            entry += 1;
        }
        (None, looked)
    }

    /// Returns all that has a value, in order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (Value, &Value)> {
        let array = self.array.iter().enumerate().map(|(at, value)| (Value::Number((at + 1) as f64), value));
        let others = self.entries.iter().map(|(key, value)| (key.clone(), value));
        array.chain(others).filter(|(_, value)| !value.is_nil())
    }
}

/// What `string.gmatch` has still to give: all matches are found at once, as upstream.
#[derive(Debug)]
pub(super) struct Matches {
    pub(super) rows: std::vec::IntoIter<Vec<Value>>,
}

pub(super) struct Closure {
    pub(super) prototype: Arc<Prototype>,
    pub(super) upvalues: Box<[CellId]>,
}

pub(super) struct Heap {
    tables: Vec<Table>,
    closures: Vec<Closure>,
    cells: Vec<Value>,
    matches: Vec<Matches>,
    gauge: Arc<AtomicUsize>,
    limit: usize,
}

impl Heap {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            tables: Vec::new(),
            closures: Vec::new(),
            cells: Vec::new(),
            matches: Vec::new(),
            gauge: Arc::new(AtomicUsize::new(0)),
            limit,
        }
    }

    /// Charges memory before it is taken.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), Throw> {
        // Only this thread works on the gauge; it is atomic because constants of scripts are shared between threads.
        let used = self.gauge.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if used > self.limit { Err(Throw::Memory) } else { Ok(()) }
    }

    /// Gives back what was charged for memory that is free again.
    pub(super) fn release(&self, bytes: usize) {
        self.gauge.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn text(&mut self, bytes: &[u8]) -> Result<Value, Throw> {
        self.charge(bytes.len() + TEXT_COST)?;
        Ok(Value::Text(Text(Arc::new(Bytes { bytes: bytes.into(), gauge: Some(Arc::clone(&self.gauge)) }))))
    }

    /// Takes over a string whose buffer was charged with [`Heap::charge`] while it grew; gives that charge back.
    pub(super) fn text_from(&mut self, buffer: Vec<u8>, charged: usize) -> Result<Value, Throw> {
        self.release(charged);
        self.text(&buffer)
    }

    pub(super) fn table(&mut self) -> Result<TableId, Throw> {
        // The vector has room for as many again.
        self.charge(2 * size_of::<Table>())?;
        self.tables.push(Table::default());
        Ok(TableId(u32::try_from(self.tables.len() - 1).map_err(|_| Throw::Memory)?))
    }

    pub(super) fn at(&self, id: TableId) -> &Table {
        &self.tables[id.0 as usize]
    }

    /// The array part, for what reorders or shortens it; growing goes through [`Heap::set`].
    pub(super) fn array(&mut self, id: TableId) -> &mut Vec<Value> {
        &mut self.tables[id.0 as usize].array
    }

    /// Sets a field. Nil and NaN as keys are the caller's to refuse.
    pub(super) fn set(&mut self, id: TableId, key: Value, value: Value) -> Result<(), Throw> {
        if let Value::Number(number) = key
            && let Some(at) = array_index(number)
        {
            return self.set_at(id, at, value);
        }
        let table = &self.tables[id.0 as usize];
        if let Some(at) = table.find(&key) {
            self.tables[id.0 as usize].entries[at].1 = value;
            return Ok(());
        }
        if value.is_nil() {
            return Ok(());
        }
        let (len, capacity) = (table.entries.len(), table.entries.capacity());
        if len == capacity {
            let more = capacity.max(4);
            self.charge(more * size_of::<(Value, Value)>())?;
            self.tables[id.0 as usize].entries.reserve_exact(more);
        }
        if len >= SMALL {
            // An entry of the index and its share of the empty ones.
            self.charge(64)?;
        }
        let table = &mut self.tables[id.0 as usize];
        let at = u32::try_from(len).map_err(|_| Throw::Memory)?;
        table.entries.push((key.clone(), value));
        match &mut table.index {
            Some(index) => {
                index.insert(Key(key), at);
            }
            None if table.entries.len() > SMALL => {
                let keys = table.entries.iter().zip(0_u32..).map(|((key, _), at)| (Key(key.clone()), at));
                table.index = Some(keys.collect());
            }
            None => {}
        }
        Ok(())
    }

    /// Sets a place of the array part, counted from zero; what is between becomes nil.
    pub(super) fn set_at(&mut self, id: TableId, at: usize, value: Value) -> Result<(), Throw> {
        let array = &self.tables[id.0 as usize].array;
        if at >= array.len() {
            let (capacity, needed) = (array.capacity(), at + 1);
            if needed > capacity {
                let wanted = needed.max(capacity * 2).max(4);
                self.charge((wanted - capacity) * size_of::<Value>())?;
                let array = &mut self.tables[id.0 as usize].array;
                array.reserve_exact(wanted - array.len());
            }
            self.tables[id.0 as usize].array.resize(needed, Value::Nil);
        }
        self.tables[id.0 as usize].array[at] = value;
        Ok(())
    }

    pub(super) fn cell(&mut self, value: Value) -> Result<CellId, Throw> {
        self.charge(2 * size_of::<Value>())?;
        self.cells.push(value);
        Ok(CellId(u32::try_from(self.cells.len() - 1).map_err(|_| Throw::Memory)?))
    }

    pub(super) fn cell_value(&self, id: CellId) -> &Value {
        &self.cells[id.0 as usize]
    }

    pub(super) fn set_cell(&mut self, id: CellId, value: Value) {
        self.cells[id.0 as usize] = value;
    }

    pub(super) fn closure(&mut self, closure: Closure) -> Result<Value, Throw> {
        self.charge(2 * size_of::<Closure>() + closure.upvalues.len() * size_of::<CellId>())?;
        self.closures.push(closure);
        Ok(Value::Closure(ClosureId(u32::try_from(self.closures.len() - 1).map_err(|_| Throw::Memory)?)))
    }

    pub(super) fn closure_at(&self, id: ClosureId) -> &Closure {
        &self.closures[id.0 as usize]
    }

    pub(super) fn matches(&mut self, rows: Vec<Vec<Value>>) -> Result<Value, Throw> {
        let cells: usize =
            rows.iter().map(|row| size_of::<Vec<Value>>() + row.capacity() * size_of::<Value>()).sum();
        self.charge(cells + size_of::<Matches>())?;
        self.matches.push(Matches { rows: rows.into_iter() });
        Ok(Value::Matches(MatchesId(u32::try_from(self.matches.len() - 1).map_err(|_| Throw::Memory)?)))
    }

    pub(super) fn next_match(&mut self, id: MatchesId) -> Option<Vec<Value>> {
        self.matches[id.0 as usize].rows.next()
    }
}
