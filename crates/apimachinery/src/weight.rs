//! Estimates how much memory a JSON text takes as a tree, before the tree is built.
//!
//! In: the text, in pieces as they come. Out: bytes. A text of small parts becomes many times its size: a map takes a node
//! with room for eleven fields however few it has, so `{"":0},` takes a hundred times its seven bytes. Whoever reads texts
//! of strangers limits what they become, not only how long they are.
//!
//! What stands in a string is text: a dashboard in a ConfigMap has thousands of braces and is still one string. Up to the
//! first mistake in a text this agrees with what a parser sees, and nothing behind it is built.

/// What a map takes: a node has room for eleven names and values, 24 and 32 bytes each.
const MAP: usize = 640;
/// What an item or a field takes beside its text: the value, and the slack of the list it is in.
const PART: usize = 64;

/// Weighs a text as it comes in.
#[derive(Debug, Clone, Default)]
pub struct Weight {
    total: usize,
    in_string: bool,
    escaped: bool,
}

impl Weight {
    /// Returns the weight of a whole text.
    pub fn of(text: &[u8]) -> usize {
        let mut weight = Self::default();
        weight.add(text);
        weight.total()
    }

    /// Adds the next piece of the text.
    pub fn add(&mut self, piece: &[u8]) {
        self.total = self.total.saturating_add(piece.len());
        for byte in piece {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            let added = match byte {
                b'"' => {
                    self.in_string = true;
                    continue;
                }
                b'{' => MAP,
                b'[' | b',' => PART,
                _ => continue,
            };
            self.total = self.total.saturating_add(added);
        }
    }

    /// Returns what all pieces so far become.
    pub fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_16_small_parts_weigh_what_they_become() {
        let dense = format!("[{}0]", r#"{"":0},"#.repeat(1000));
        assert_eq!(Weight::of(dense.as_bytes()), dense.len() + PART + 1000 * (MAP + PART));
        let text = format!("\"{}\"", r#"{\"a\":[0,1,{}]},"#.repeat(1000));
        assert_eq!(Weight::of(text.as_bytes()), text.len(), "what is in a string is text");
        assert_eq!(Weight::of(br#"{"a\\":[1,2]}"#), 13 + MAP + 2 * PART, "an escaped backslash ends nothing");
    }

    #[test]
    fn the_weight_does_not_depend_on_the_pieces() {
        let text = br#"{"a":"x\"{,","b":[{"c":"\\"},{}],"d":{}}"#;
        for size in 1..text.len() {
            let mut weight = Weight::default();
            text.chunks(size).for_each(|piece| weight.add(piece));
            assert_eq!(weight.total(), Weight::of(text), "pieces of {size}");
        }
    }
}
