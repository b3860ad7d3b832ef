//! Which controllers run: `*` for those that are on by default, `name`, `-name`, as upstream's flag.

/// A parsed `--controllers` value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection(Vec<String>);

impl Default for Selection {
    fn default() -> Self {
        Self(vec!["*".to_owned()])
    }
}

impl Selection {
    /// Parses a comma-separated list.
    pub fn parse(text: &str) -> Self {
        Self(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// Says whether a controller that is on by default runs.
    pub fn has(&self, name: &str) -> bool {
        if self.0.iter().any(|item| item == name) {
            return true;
        }
        if self.0.iter().any(|item| item.strip_prefix('-') == Some(name)) {
            return false;
        }
        self.0.iter().any(|item| item == "*")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_exceptions_are_told_apart() {
        let all_but_one = Selection::parse("*,-binding");
        assert!(all_but_one.has("execution") && !all_but_one.has("binding"));
        let one = Selection::parse("binding");
        assert!(one.has("binding") && !one.has("execution"));
        assert!(!Selection::parse("").has("binding"));
    }
}
