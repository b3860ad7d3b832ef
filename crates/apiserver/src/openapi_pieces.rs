//! Adds a few entries to large documents: existing parts are copied as text, and parsed only down to the place of the new
//! entries.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

/// The fields of an object, each as printed JSON.
#[derive(Debug, Default)]
pub(crate) struct Pieces<'a>(BTreeMap<String, Cow<'a, str>>);

impl<'a> Pieces<'a> {
    /// Splits an object into its fields.
    pub(crate) fn read(text: &'a [u8]) -> serde_json::Result<Self> {
        let fields: BTreeMap<String, &'a RawValue> = serde_json::from_slice(text)?;
        Ok(Self(fields.into_iter().map(|(name, value)| (name, Cow::Borrowed(value.get()))).collect()))
    }

    /// Takes out a field that is an object, split into its fields; a missing field, or one that is not an object, is empty.
    pub(crate) fn take(&mut self, name: &str) -> Self {
        match self.0.remove(name) {
            Some(Cow::Borrowed(text)) => Self::read(text.as_bytes()).unwrap_or_default(),
            Some(Cow::Owned(text)) => {
                Pieces::read(text.as_bytes()).map(Pieces::into_owned).unwrap_or_default()
            }
            None => Self::default(),
        }
    }

    fn into_owned<'b>(self) -> Pieces<'b> {
        Pieces(self.0.into_iter().map(|(name, value)| (name, Cow::Owned(value.into_owned()))).collect())
    }

    pub(crate) fn set(&mut self, name: impl Into<String>, value: &Value) {
        self.0.insert(name.into(), Cow::Owned(value.to_string()));
    }

    /// Puts back a field that was taken out.
    pub(crate) fn put(&mut self, name: &str, pieces: &Pieces<'_>) {
        self.0.insert(name.to_owned(), Cow::Owned(pieces.print()));
    }

    /// Adds the entries of another object that are missing here and whose names are wanted.
    pub(crate) fn add_missing(&mut self, other: &Pieces<'a>, wanted: impl Fn(&str) -> bool) {
        for (name, value) in other.0.iter().filter(|(name, _)| wanted(name)) {
            self.0.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }

    pub(crate) fn print(&self) -> String {
        // With two quotes, a colon and a comma each; the braces come on top.
        let lengths =
            self.0.iter().map(|(name, value)| name.len().saturating_add(value.len()).saturating_add(4));
        let mut text = String::with_capacity(lengths.sum::<usize>().saturating_add(2));
        text.push('{');
        for (number, (name, value)) in self.0.iter().enumerate() {
            if number > 0 {
                text.push(',');
            }
            text.push_str(&Value::from(name.as_str()).to_string());
            text.push(':');
            text.push_str(value);
        }
        text.push('}');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn untouched_parts_are_copied_verbatim() {
        let mut document = Pieces::read(br#"{"z": [1.0,  2], "a\"b": {"c": null, "e": {}}}"#).unwrap();
        let mut below = document.take("a\"b");
        below.set("d", &json!({"new": true}));
        let mut again = Pieces::default();
        again.add_missing(&below, |name| name != "e");
        again.add_missing(&Pieces::read(br#"{"c": 1, "x": 2}"#).unwrap(), |_| true);
        document.put("a\"b", &again);
        assert_eq!(document.print(), r#"{"a\"b":{"c":null,"d":{"new":true},"x":2},"z":[1.0,  2]}"#);
    }

    #[test]
    fn a_field_that_was_put_back_can_be_taken_again() {
        let mut document = Pieces::default();
        let mut below = document.take("nothing");
        below.set("a", &json!(1));
        document.put("below", &below);
        assert_eq!(document.take("below").print(), r#"{"a":1}"#);
        assert_eq!(document.print(), "{}");
    }
}
