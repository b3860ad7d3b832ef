//! Which controllers run: `*` for those that are on by default, `name`, `-name`, as upstream's flag.

use crate::table::{Declaration, TABLE};

/// A parsed `--controllers` value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection(Vec<String>);

/// A name that no controller has.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a controller; known are {known}", known = known())]
pub struct Unknown(String);

fn known() -> String {
    let names: Vec<&str> = TABLE.iter().map(|declaration| declaration.name).collect();
    names.join(", ")
}

impl Default for Selection {
    fn default() -> Self {
        Self(vec!["*".to_owned()])
    }
}

impl Selection {
    /// Parses a comma-separated list.
    pub fn parse(text: &str) -> Result<Self, Unknown> {
        let items: Vec<&str> = text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
        for item in &items {
            let name = item.strip_prefix('-').unwrap_or(item);
            if name != "*" && !TABLE.iter().any(|declaration| declaration.name == name) {
                return Err(Unknown(name.to_owned()));
            }
        }
        Ok(Self(items.into_iter().map(str::to_owned).collect()))
    }

    /// Returns whether nothing is chosen.
    pub fn is_empty(&self) -> bool {
        !TABLE.iter().any(|declaration| self.has(declaration))
    }

    /// Returns whether this controller alone is chosen.
    pub fn is_only(&self, name: &str) -> bool {
        TABLE.iter().all(|declaration| self.has(declaration) == (declaration.name == name))
    }

    /// Returns whether a controller is chosen: the first item that names it counts, otherwise `*` and its
    /// default.
    pub fn has(&self, declaration: &Declaration) -> bool {
        let named = self.0.iter().find_map(|item| match item.strip_prefix('-') {
            Some(name) => (name == declaration.name).then_some(false),
            None => (item == declaration.name).then_some(true),
        });
        named.unwrap_or_else(|| declaration.default && self.0.iter().any(|item| item == "*"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(text: &str, name: &str) -> bool {
        let declaration = TABLE.iter().find(|declaration| declaration.name == name).expect("a controller");
        Selection::parse(text).expect("a list").has(declaration)
    }

    #[test]
    fn names_and_exceptions_are_told_apart() {
        let cases = [
            ("*", "execution", true),
            ("*", "hpaScaleTargetMarker", false),
            ("*,hpaScaleTargetMarker", "hpaScaleTargetMarker", true),
            ("*,-binding", "execution", true),
            ("*,-binding", "binding", false),
            ("binding", "binding", true),
            ("binding", "execution", false),
            ("", "binding", false),
            // The first item that names it counts.
            ("binding,-binding", "binding", true),
            ("-binding,binding", "binding", false),
            (" binding , execution ", "execution", true),
        ];
        for (text, name, expected) in cases {
            assert_eq!(has(text, name), expected, "{name} in {text:?}");
        }
    }

    #[test]
    fn none_and_one_alone_are_known() {
        let parsed = |text: &str| Selection::parse(text).expect("a list");
        assert!(parsed("").is_empty() && parsed("-binding").is_empty() && !parsed("*").is_empty());
        assert!(parsed("scheduler").is_only("scheduler"));
        assert!(!parsed("scheduler,binding").is_only("scheduler") && !parsed("").is_only("scheduler"));
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        for text in ["nonsense", "*,-nonsense"] {
            let error = Selection::parse(text).unwrap_err().to_string();
            assert!(
                error.starts_with(r#""nonsense" is not a controller; known are cluster, clusterStatus, "#),
                "{error}"
            );
        }
    }
}
