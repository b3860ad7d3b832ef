//! The identity in a certificate or a certificate request: the common name and the organisations of its subject, read as Go reads
//! them. Everything that Go would read as `system:masters` must be `system:masters` here, too, since the same certificate may be
//! shown to other servers.

use x509_parser::der_parser::asn1_rs::{Any, Tag};
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::x509::X509Name;

/// The user that a subject names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) common_name: String,
    pub(crate) organizations: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the subject has a text of an unsupported or broken type (tag {0})")]
pub(crate) struct Unreadable(u32);

impl Subject {
    /// Reads a name. Of several common names the last one counts.
    pub(crate) fn read(name: &X509Name<'_>) -> Result<Self, Unreadable> {
        let mut subject = Self::default();
        for attribute in name.iter_attributes() {
            // Attributes that are not used must be readable, too, as in Go.
            let value = text(attribute.attr_value())?;
            let kind = attribute.attr_type();
            if *kind == OID_X509_COMMON_NAME {
                subject.common_name = value;
            } else if *kind == OID_X509_ORGANIZATION_NAME {
                subject.organizations.push(value);
            }
        }
        Ok(subject)
    }
}

fn text(value: &Any<'_>) -> Result<String, Unreadable> {
    let (tag, bytes) = (value.tag(), value.data);
    let unreadable = Unreadable(tag.0);
    let ascii = |allowed: fn(u8) -> bool| {
        let allowed = bytes.iter().all(|byte| byte.is_ascii() && allowed(*byte));
        if allowed { Ok(bytes.iter().copied().map(char::from).collect()) } else { Err(unreadable.clone()) }
    };
    match tag {
        Tag::Utf8String => String::from_utf8(bytes.to_vec()).map_err(|_| unreadable),
        Tag::Ia5String => ascii(|_| true),
        // Go allows `*` and `&`, which occur in certificates although the standard forbids them.
        Tag::PrintableString => {
            ascii(|byte| byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(&byte))
        }
        Tag::NumericString => ascii(|byte| byte.is_ascii_digit() || byte == b' '),
        // No one implements T.61; strings with this tag are Latin-1.
        Tag::T61String => Ok(bytes.iter().copied().map(char::from).collect()),
        Tag::BmpString => {
            let mut units = bytes.chunks_exact(2);
            let characters = units.by_ref().map(|unit| match unit {
                // Surrogates are not characters in this encoding.
                [high, low] => char::from_u32(u32::from(u16::from_be_bytes([*high, *low]))),
                _ => None,
            });
            let text: Option<String> = characters.collect();
            let text = text.filter(|_| units.remainder().is_empty()).ok_or(unreadable)?;
            // A terminator is not part of the text.
            Ok(text.strip_suffix('\0').map(str::to_owned).unwrap_or(text))
        }
        _ => Err(unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tag: Tag, bytes: &[u8]) -> Option<String> {
        text(&Any::from_tag_and_data(tag, bytes)).ok()
    }

    #[test]
    fn a_text_is_the_same_in_every_encoding_that_go_reads() {
        let wide: Vec<u8> = "system:masters".encode_utf16().flat_map(u16::to_be_bytes).collect();
        let terminated = [&wide[..], &[0, 0]].concat();
        let plain = b"system:masters";
        for (tag, bytes) in [
            (Tag::Utf8String, &plain[..]),
            (Tag::PrintableString, plain),
            (Tag::Ia5String, plain),
            (Tag::T61String, plain),
            (Tag::BmpString, &wide),
            (Tag::BmpString, &terminated),
        ] {
            assert_eq!(read(tag, bytes).as_deref(), Some("system:masters"), "{tag:?}");
        }
        assert_eq!(read(Tag::T61String, b"J\xf6rg").as_deref(), Some("Jörg"));
    }

    #[test]
    fn an_unreadable_attribute_is_an_error_and_not_left_out() {
        assert_eq!(read(Tag::UniversalString, b"\0\0\0a"), None);
        assert_eq!(read(Tag::Utf8String, b"\xff"), None);
        assert_eq!(read(Tag::Ia5String, b"\xff"), None);
        assert_eq!(read(Tag::PrintableString, b"a@b"), None);
        assert_eq!(read(Tag::BmpString, b"\0a\0"), None);
        assert_eq!(read(Tag::BmpString, b"\xd8\x3d\xde\0"), None);
        assert_eq!(read(Tag::OctetString, b"a"), None);
    }
}
