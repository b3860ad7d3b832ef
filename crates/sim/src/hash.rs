//! Short names for pod templates.
//!
//! Upstream hashes a printed form of the Go type, which cannot be had here and is no promise to anyone; the shape of the
//! result is the same: FNV-1a, 32 bits, in decimal digits, written with letters that form no words.

use serde_json::Value;

/// Returns the name of a template, the same for equal templates; `collisions` gives another one if it is taken.
pub(crate) fn template(template: &Value, collisions: i64) -> String {
    let mut hash = Fnv::default();
    hash.write(template.to_string().as_bytes());
    if collisions > 0 {
        hash.write(&collisions.to_le_bytes());
    }
    encode(&hash.0.to_string())
}

/// Returns a number that is always the same for the same text.
pub(crate) fn number(text: &str) -> u32 {
    let mut hash = Fnv::default();
    hash.write(text.as_bytes());
    // The last characters of similar names hardly reach the high bits: mix once more.
    hash.0 ^ hash.0.rotate_left(15).wrapping_mul(0x9e37_79b1)
}

fn encode(text: &str) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    text.bytes().map(|byte| char::from(LETTERS[usize::from(byte) % LETTERS.len()])).collect()
}

struct Fnv(u32);

impl Default for Fnv {
    fn default() -> Self {
        Self(2_166_136_261)
    }
}

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(16_777_619);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_templates_have_equal_names_and_others_do_not() {
        let (one, other) = (json!({"spec": {"a": 1}}), json!({"spec": {"a": 2}}));
        assert_eq!(template(&one, 0), template(&one.clone(), 0));
        assert_ne!(template(&one, 0), template(&other, 0));
        assert_ne!(template(&one, 0), template(&one, 1));
        assert!(template(&one, 0).len() <= 10);
    }
}
