//! Short names for pod templates.
//!
//! Upstream hashes a printed form of the Go type, which is not available here and which nothing relies on. The form of the result
//! is the same: FNV-1a, 32 bits, in decimal digits, written with letters that form no words.

use api::names;
use serde_json::Value;

/// Returns the name of a template, the same for equal templates; `collisions` selects another one if it is taken.
pub(crate) fn template(template: &Value, collisions: i64) -> String {
    let mut bytes = template.to_string().into_bytes();
    if collisions > 0 {
        bytes.extend_from_slice(&collisions.to_le_bytes());
    }
    names::hash(bytes)
}

/// Returns a number that is always the same for the same text.
pub(crate) fn number(text: &str) -> u32 {
    let hash = names::fnv1a_32(text);
    // The last characters of similar names hardly reach the high bits, so mix once more.
    hash ^ hash.rotate_left(15).wrapping_mul(0x9e37_79b1)
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

    #[test]
    fn a_template_keeps_its_name() {
        let one = json!({"spec": {"a": 1}});
        assert_eq!([template(&one, 0), template(&one, 1)], ["58dc86b9cd", "6d4786b5b7"]);
        assert_eq!(number("pod"), 2413064229);
    }
}
