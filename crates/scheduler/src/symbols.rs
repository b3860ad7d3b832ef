//! Numbers for strings, so that matching a thousand clusters compares integers.
//!
//! Symbols are only ever added, so a fleet that grows step by step keeps the numbers it has handed out. The fleet starts
//! over with a new table before what is out of use prevails: agents choose the labels and kinds of their clusters.

use std::collections::HashMap;
use std::sync::Arc;

/// The number of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Symbol(u32);

/// Strings and their numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Symbols {
    numbers: HashMap<Arc<str>, Symbol>,
    texts: Vec<Arc<str>>,
}

impl Symbols {
    /// Returns the number of a string, handing out a new one if needed.
    pub(crate) fn intern(&mut self, text: &str) -> Symbol {
        if let Some(symbol) = self.numbers.get(text) {
            return *symbol;
        }
        let symbol =
            Symbol(u32::try_from(self.texts.len()).expect("fewer than four billion distinct strings"));
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.numbers.insert(text, symbol);
        symbol
    }

    /// Returns the number of a string that some cluster has used; `None` means that no cluster can match it.
    pub(crate) fn find(&self, text: &str) -> Option<Symbol> {
        self.numbers.get(text).copied()
    }

    pub(crate) fn text(&self, symbol: Symbol) -> &str {
        &self.texts[symbol.0 as usize]
    }

    /// Returns how many strings have a number, whether any cluster still uses them or not.
    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }
}

/// A set of small numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn insert(&mut self, number: u32) {
        let word = number as usize / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % 64);
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word & (1 << (number % 64)) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_keeps_its_number() {
        let mut symbols = Symbols::default();
        let one = symbols.intern("one");
        let two = symbols.intern("two");
        assert_ne!(one, two);
        assert_eq!(symbols.intern("one"), one);
        assert_eq!(symbols.find("two"), Some(two));
        assert_eq!(symbols.find("three"), None);
        assert_eq!(symbols.text(two), "two");
    }

    #[test]
    fn bits_remember_what_was_inserted() {
        let mut bits = Bits::default();
        bits.insert(3);
        bits.insert(200);
        assert!(bits.contains(3) && bits.contains(200));
        assert!(!bits.contains(4) && !bits.contains(1000));
    }
}
