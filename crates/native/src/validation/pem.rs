//! The envelope of keys and certificates, read as leniently and as strictly as Go reads it.

use base64::Engine as _;

/// One block between its BEGIN and END lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) label: String,
    pub(super) has_headers: bool,
    pub(super) bytes: Vec<u8>,
}

/// Returns the first block and what follows it; text around blocks is passed over, as are broken blocks.
pub(super) fn first(data: &[u8]) -> Option<(Block, Vec<u8>)> {
    let text = String::from_utf8_lossy(data);
    let mut rest: &str = &text;
    loop {
        let after = match rest.strip_prefix("-----BEGIN ") {
            Some(after) => after,
            None => rest.split_once("\n-----BEGIN ")?.1,
        };
        let (line, body) = after.split_once('\n').unwrap_or((after, ""));
        let Some(label) = line.trim_end().strip_suffix("-----") else {
            rest = after;
            continue;
        };
        match read(label, body) {
            Some((block, rest)) => return Some((block, rest.as_bytes().to_vec())),
            None => rest = after,
        }
    }
}

fn read<'a>(label: &str, body: &'a str) -> Option<(Block, &'a str)> {
    let mut has_headers = false;
    let mut content = body;
    while let Some((line, rest)) = content.split_once('\n') {
        if !line.contains(':') {
            break;
        }
        has_headers = true;
        content = rest;
    }
    let end = format!("-----END {label}-----");
    let (encoded, rest) = match content.strip_prefix(&end) {
        Some(rest) => ("", rest),
        None => content.split_once(&format!("\n{end}"))?,
    };
    let (tail, rest) = rest.split_once('\n').unwrap_or((rest, ""));
    if !tail.trim().is_empty() {
        return None;
    }
    let encoded: String = encoded.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).ok()?;
    Some((Block { label: label.to_owned(), has_headers, bytes }, rest))
}

/// Says whether bytes are exactly one DER sequence.
pub(super) fn is_sequence(bytes: &[u8]) -> bool {
    let [0x30, length, rest @ ..] = bytes else { return false };
    match length {
        0..=0x7f => rest.len() == usize::from(*length),
        0x81..=0x84 => {
            let digits = usize::from(length & 0x7f);
            let Some((length, content)) = rest.split_at_checked(digits) else { return false };
            let length = length.iter().fold(0usize, |sum, digit| sum << 8 | usize::from(*digit));
            content.len() == length
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_found_among_other_text() {
        let text = b"hello\n-----BEGIN THING-----\naGVs\nbG8=\n-----END THING-----\nmore";
        let (block, rest) = first(text).unwrap();
        assert_eq!(block, Block { label: "THING".into(), has_headers: false, bytes: b"hello".to_vec() });
        assert_eq!(rest, b"more");
    }

    #[test]
    fn a_block_without_an_end_is_none() {
        assert_eq!(first(b"-----BEGIN THING-----\naGVsbG8=\n"), None);
        assert_eq!(first(b"-----BEGIN THING-----\naGVsbG8=\n-----END OTHER-----\n"), None);
        assert_eq!(first(b"plain"), None);
    }

    #[test]
    fn headers_are_noticed() {
        let text = b"-----BEGIN THING-----\nA: b\n\naGVsbG8=\n-----END THING-----\n";
        assert!(first(text).unwrap().0.has_headers);
    }

    #[test]
    fn a_sequence_says_how_long_it_is() {
        assert!(is_sequence(&[0x30, 2, 5, 0]));
        assert!(!is_sequence(&[0x30, 3, 5, 0]));
        assert!(is_sequence(&[0x30, 0x81, 2, 5, 0]));
        assert!(!is_sequence(b"hello"));
    }
}
