//! Validates certificate signing requests, in the words of Go's parser: clients see them in 422 answers.
//!
//! In: the DER of a request. Out: nothing, or the reason to refuse it. It checks the form first, then the key, the subject and
//! the extensions, and finally the signature by the request's own key, in kube-apiserver's order. Signatures that our library
//! does not support, such as those on P-521, are left to the signer. Does not judge what is requested: see [`super::certify`].

use std::collections::HashSet;

use apimachinery::field::{self, Path};
use apimachinery::pointer;
use base64::Engine as _;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::error::X509Error;
use x509_parser::prelude::FromDer;

/// Why a request is refused.
type Refused = String;

/// A request is a few hundred bytes, one with a very long key some thousands. It is read, and its signature checked, by whoever may
/// make one, bootstrap tokens included.
const LONGEST: usize = 64 << 10;

const SEQUENCE: u32 = 16;
const SET: u32 = 17;
const CONTEXT: u8 = 2;

const RSA_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const EC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
/// P-224, P-256, P-384, P-521.
const CURVES: [&[u8]; 4] = [
    &[0x2b, 0x81, 0x04, 0x00, 0x21],
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
    &[0x2b, 0x81, 0x04, 0x00, 0x22],
    &[0x2b, 0x81, 0x04, 0x00, 0x23],
];

/// Returns what is wrong with `spec.request` of a new object. A missing envelope is reported elsewhere.
pub fn check_object(object: &Value) -> Option<field::Error> {
    let encoded = pointer::text(object, "/spec/request");
    if encoded.len() > LONGEST {
        return Some(field::Error::too_long(&Path::new("spec").child("request"), LONGEST));
    }
    let pem = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap_or_default();
    let der = native::validation::signing_request(&pem)?;
    let refused = check(&der).err()?;
    Some(field::Error::invalid(&Path::new("spec").child("request"), encoded, refused))
}

/// Checks that the bytes are a request that was signed by its own key.
///
/// # Errors
/// In Go's words.
pub fn check(der: &[u8]) -> Result<(), Refused> {
    let (request, rest) = Field::sequence("certificateRequest").read(der)?;
    let (body, after) = Field::sequence("tbsCertificateRequest").read(request.content)?;
    let (version, after_version) = Field { tag: 2, compound: false, name: "int" }.read(body.content)?;
    integer(version.content)?;
    let (subject, after_subject) = any(at(body.content, after_version))?;
    let key_place = after_version.saturating_add(after_subject);
    let (key, after_key) = Field::sequence("publicKeyInfo").read_at(body.content, key_place)?;
    let (algorithm, after_algorithm) = algorithm(key.content, 0)?;
    let key_bits = bits(key.content, after_algorithm)?;
    let attributes = attributes(body.content, after_key)?;
    let (signature_algorithm, after_algorithm) = self::algorithm(request.content, after)?;
    bits(request.content, after_algorithm)?;
    if rest != der.len() {
        return Err(syntax("trailing data"));
    }
    public_key(&algorithm, key_bits)?;
    names(subject.whole)?;
    extensions(&attributes)?;
    signature(der, signature_algorithm.oid, algorithm.oid)
}

fn syntax(what: &str) -> Refused {
    format!("asn1: syntax error: {what}")
}

fn structure(what: &str) -> Refused {
    format!("asn1: structure error: {what}")
}

fn at(bytes: &[u8], place: usize) -> &[u8] {
    bytes.get(place..).unwrap_or_default()
}

/// The header of a value: its class and number, and its length.
#[derive(Debug, Clone, Copy)]
struct Header {
    class: u8,
    compound: bool,
    tag: u32,
    length: usize,
    /// The bytes of the header itself.
    own: usize,
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, Refused> {
        let truncated = || syntax("truncated tag or length");
        let mut input = bytes.iter().copied();
        let first = input.next().ok_or_else(truncated)?;
        let mut tag = u32::from(first & 0x1f);
        if tag == 0x1f {
            tag = base128(&mut input)?;
            if tag < 0x1f {
                return Err(syntax("non-minimal tag"));
            }
        }
        let second = input.next().ok_or_else(truncated)?;
        let mut length = usize::from(second & 0x7f);
        if second & 0x80 != 0 {
            let digits = length;
            if digits == 0 {
                return Err(syntax("indefinite length found (not DER)"));
            }
            length = 0;
            for _ in 0..digits {
                let digit = input.next().ok_or_else(truncated)?;
                if length >= 1 << 23 {
                    return Err(structure("length too large"));
                }
                length = length << 8 | usize::from(digit);
                if length == 0 {
                    return Err(structure("superfluous leading zeros in length"));
                }
            }
            if length < 0x80 {
                return Err(structure("non-minimal length"));
            }
        }
        let own = bytes.len().saturating_sub(input.len());
        Ok(Self { class: first >> 6, compound: first & 0x20 != 0, tag, length, own })
    }

    fn end(self) -> usize {
        self.own.saturating_add(self.length)
    }
}

/// Reads a number with seven bits in each byte.
fn base128(input: &mut impl Iterator<Item = u8>) -> Result<u32, Refused> {
    let mut value: u64 = 0;
    for place in 0..5 {
        let byte = input.next().ok_or_else(|| syntax("truncated base 128 integer"))?;
        if place == 0 && byte == 0x80 {
            return Err(syntax("integer is not minimally encoded"));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            let fits = u32::try_from(value).ok().filter(|value| i32::try_from(*value).is_ok());
            return fits.ok_or_else(|| structure("base 128 integer too large"));
        }
    }
    Err(match input.next() {
        Some(_) => structure("base 128 integer too large"),
        None => syntax("truncated base 128 integer"),
    })
}

/// A value: with its header, and without it.
#[derive(Debug, Clone, Copy)]
struct Element<'a> {
    header: Header,
    whole: &'a [u8],
    content: &'a [u8],
}

/// Reads the first value, and returns where it ends.
fn any(bytes: &[u8]) -> Result<(Element<'_>, usize), Refused> {
    if bytes.is_empty() {
        return Err(syntax("sequence truncated"));
    }
    let header = Header::read(bytes)?;
    let whole = bytes.get(..header.end()).ok_or_else(|| syntax("data truncated"))?;
    Ok((Element { header, whole, content: at(whole, header.own) }, header.end()))
}

/// An expected type, and what Go calls it.
#[derive(Clone, Copy)]
struct Field {
    tag: u32,
    compound: bool,
    name: &'static str,
}

impl Field {
    const fn sequence(name: &'static str) -> Self {
        Self { tag: SEQUENCE, compound: true, name }
    }

    fn fits(self, header: Header) -> bool {
        header.class == 0 && header.tag == self.tag && header.compound == self.compound
    }

    fn read(self, bytes: &[u8]) -> Result<(Element<'_>, usize), Refused> {
        self.read_at(bytes, 0)
    }

    /// Reads the value at an offset. The returned end is relative to the same beginning.
    fn read_at(self, bytes: &[u8], place: usize) -> Result<(Element<'_>, usize), Refused> {
        let rest = at(bytes, place);
        if rest.is_empty() {
            return Err(syntax("sequence truncated"));
        }
        let header = Header::read(rest)?;
        if !self.fits(header) {
            return Err(self.mismatch(header, place, "<nil>"));
        }
        let (element, end) = any(rest)?;
        Ok((element, place.saturating_add(end)))
    }

    fn mismatch(self, header: Header, place: usize, tag: &str) -> Refused {
        let Header { class, compound, tag: found, length, own } = header;
        structure(&format!(
            "tags don't match ({} vs {{class:{class} tag:{found} length:{length} isCompound:{compound}}}) \
             {{optional:false explicit:false application:false private:false defaultValue:<nil> tag:{tag} stringType:0 \
             timeType:0 set:false omitEmpty:false}} {} @{}",
            self.tag,
            self.name,
            place.saturating_add(own)
        ))
    }

    /// Reads a list of values of the same type.
    fn list(self, mut bytes: &[u8]) -> Result<Vec<Element<'_>>, Refused> {
        let mut items = Vec::new();
        while !bytes.is_empty() {
            let header = Header::read(bytes)?;
            if !self.fits(header) {
                return Err(structure("sequence tag mismatch"));
            }
            items.push(item(bytes, header)?);
            bytes = at(bytes, header.end());
        }
        Ok(items)
    }
}

fn item(bytes: &[u8], header: Header) -> Result<Element<'_>, Refused> {
    let whole = bytes.get(..header.end()).ok_or_else(|| syntax("truncated sequence"))?;
    Ok(Element { header, whole, content: at(whole, header.own) })
}

fn integer(content: &[u8]) -> Result<(), Refused> {
    match content {
        [] => Err(structure("empty integer")),
        [0, next, ..] if next & 0x80 == 0 => Err(structure("integer not minimally-encoded")),
        [0xff, next, ..] if next & 0x80 != 0 => Err(structure("integer not minimally-encoded")),
        long if long.len() > 8 => Err(structure("integer too large")),
        _ => Ok(()),
    }
}

fn oid(bytes: &[u8], place: usize) -> Result<(&[u8], usize), Refused> {
    let (element, end) = Field { tag: 6, compound: false, name: "ObjectIdentifier" }.read_at(bytes, place)?;
    if element.content.is_empty() {
        return Err(syntax("zero length OBJECT IDENTIFIER"));
    }
    let mut input = element.content.iter().copied().peekable();
    while input.peek().is_some() {
        base128(&mut input)?;
    }
    Ok((element.content, end))
}

struct Algorithm<'a> {
    oid: &'a [u8],
    parameters: Option<Element<'a>>,
}

fn algorithm(bytes: &[u8], place: usize) -> Result<(Algorithm<'_>, usize), Refused> {
    let (element, end) = Field::sequence("AlgorithmIdentifier").read_at(bytes, place)?;
    let (oid, after) = oid(element.content, 0)?;
    let rest = at(element.content, after);
    let parameters = if rest.is_empty() { None } else { Some(any(rest)?.0) };
    Ok((Algorithm { oid, parameters }, end))
}

fn bits(bytes: &[u8], place: usize) -> Result<&[u8], Refused> {
    let (element, _) = Field { tag: 3, compound: false, name: "BitString" }.read_at(bytes, place)?;
    let Some((&padding, content)) = element.content.split_first() else {
        return Err(syntax("zero length BIT STRING"));
    };
    let last = content.last().copied();
    let unused = u8::MAX.checked_shr(8_u32.saturating_sub(u32::from(padding))).unwrap_or(0);
    if padding > 7 || last.map_or(padding > 0, |last| last & unused != 0) {
        return Err(syntax("invalid padding bits in BIT STRING"));
    }
    Ok(content)
}

/// Reads the attributes, `[0]` of a request.
fn attributes(bytes: &[u8], place: usize) -> Result<Vec<Element<'_>>, Refused> {
    let rest = at(bytes, place);
    if rest.is_empty() {
        return Err(syntax("sequence truncated"));
    }
    let header = Header::read(rest)?;
    if header.class != CONTEXT || header.tag != 0 || !header.compound {
        let expected = Field { tag: 0, compound: true, name: "" };
        // Go prints the address of the number that it expects, which is never the same.
        return Err(expected.mismatch(header, place, "0x0"));
    }
    let (list, _) = any(rest)?;
    let (mut bytes, mut items) = (list.content, Vec::new());
    while !bytes.is_empty() {
        let header = Header::read(bytes)?;
        items.push(item(bytes, header)?);
        bytes = at(bytes, header.end());
    }
    Ok(items)
}

fn public_key(algorithm: &Algorithm<'_>, bits: &[u8]) -> Result<(), Refused> {
    let refused = |what: &str| Err(what.to_owned());
    match algorithm.oid {
        RSA_KEY => {
            let null = |found: &Element<'_>| found.header.tag == 5 && found.content.is_empty();
            if !algorithm.parameters.as_ref().is_some_and(null) {
                return refused("x509: RSA key missing NULL parameters");
            }
            let key = Field::sequence("").read(bits).map_err(|_| "x509: invalid RSA public key")?.0;
            let number = Field { tag: 2, compound: false, name: "" };
            let (modulus, end) = number.read(key.content).map_err(|_| "x509: invalid RSA modulus")?;
            let (exponent, _) =
                number.read_at(key.content, end).map_err(|_| "x509: invalid RSA public exponent")?;
            let positive = |number: &[u8]| {
                integer(number.get(..8).unwrap_or(number)).is_ok()
                    && number.first().is_some_and(|first| *first < 0x80)
            };
            if !positive(modulus.content) {
                return refused("x509: RSA modulus is not a positive number");
            }
            if !positive(exponent.content) {
                return refused("x509: RSA public exponent is not a positive number");
            }
        }
        EC_KEY => {
            let parameters = algorithm.parameters.map(|found| oid(found.whole, 0));
            let Some(Ok((curve, _))) = parameters else { return refused("x509: invalid ECDSA parameters") };
            if !CURVES.contains(&curve) {
                return refused("x509: unsupported elliptic curve");
            }
            if bits.first() != Some(&4) {
                return refused("ecdsa: invalid uncompressed public key");
            }
        }
        ED25519 => {
            if algorithm.parameters.is_some() {
                return refused("x509: Ed25519 key encoded with illegal parameters");
            }
            if bits.len() != 32 {
                return refused("x509: wrong Ed25519 public key size");
            }
        }
        _ => {}
    }
    Ok(())
}

/// The subject: sets of pairs of a kind and a value.
fn names(subject: &[u8]) -> Result<(), Refused> {
    let (list, _) = Field::sequence("RDNSequence").read(subject)?;
    let sets = Field { tag: SET, compound: true, name: "" }.list(list.content)?;
    for set in sets {
        for pair in Field::sequence("").list(set.content)? {
            let (_, after) = oid(pair.content, 0)?;
            let (value, _) = any(at(pair.content, after))?;
            text(&value)?;
        }
    }
    Ok(())
}

fn text(value: &Element<'_>) -> Result<(), Refused> {
    if value.header.class != 0 || value.header.compound {
        return Ok(());
    }
    let all = |fits: fn(&u8) -> bool| value.content.iter().all(fits);
    match value.header.tag {
        12 if std::str::from_utf8(value.content).is_err() => Err("asn1: invalid UTF-8 string".to_owned()),
        18 if !all(|byte| byte.is_ascii_digit() || *byte == b' ') => {
            Err(syntax("NumericString contains invalid character"))
        }
        // Go accepts two characters more than the standard, since existing certificates contain them.
        19 if !all(|byte| byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(byte)) => {
            Err(syntax("PrintableString contains invalid character"))
        }
        22 if !all(u8::is_ascii) => Err(syntax("IA5String contains invalid character")),
        30 if !value.content.len().is_multiple_of(2) => Err("invalid BMPString".to_owned()),
        _ => Ok(()),
    }
}

fn extensions(attributes: &[Element<'_>]) -> Result<(), Refused> {
    let mut seen = HashSet::new();
    for attribute in attributes {
        let Some(list) = requested(attribute.whole) else { continue };
        let (list, _) = Field::sequence("").read(list)?;
        for extension in Field::sequence("").list(list.content)? {
            let (id, mut place) = oid(extension.content, 0)?;
            let rest = at(extension.content, place);
            if !rest.is_empty() && (Field { tag: 1, compound: false, name: "bool" }).fits(Header::read(rest)?)
            {
                let (critical, end) = any(rest)?;
                if !matches!(critical.content, [0x00 | 0xff]) {
                    return Err(syntax("invalid boolean"));
                }
                place = place.saturating_add(end);
            }
            let value = Field { tag: 4, compound: false, name: "" }.read_at(extension.content, place)?.0;
            if !seen.insert(id) {
                return Err("x509: certificate request contains duplicate requested extensions".to_owned());
            }
            if id == ALTERNATIVE_NAMES {
                alternative_names(value.content)?;
            }
        }
    }
    Ok(())
}

/// Returns the list of extensions that an attribute requests. Other attributes, and unreadable ones, are skipped.
fn requested(attribute: &[u8]) -> Option<&[u8]> {
    let (pair, end) = Field::sequence("").read(attribute).ok().filter(|(_, end)| *end == attribute.len())?;
    let _ = end;
    let (id, after) = oid(pair.content, 0).ok()?;
    let (values, _) = Field { tag: SET, compound: true, name: "" }.read_at(pair.content, after).ok()?;
    let (first, _) = any(values.content).ok()?;
    (id == EXTENSION_REQUEST).then_some(first.whole)
}

fn alternative_names(value: &[u8]) -> Result<(), Refused> {
    let refused = |what: &str| Err(format!("x509: {what}"));
    let Ok((list, _)) = Field::sequence("").read(value) else {
        return refused("invalid subject alternative names");
    };
    let mut bytes = list.content;
    while !bytes.is_empty() {
        let Ok((name, end)) = any(bytes) else { return refused("invalid subject alternative name") };
        bytes = at(bytes, end);
        if name.header.class != CONTEXT || name.header.compound {
            continue;
        }
        let plain = name.content.is_ascii();
        match name.header.tag {
            1 if !plain => return refused("SAN rfc822Name is malformed"),
            2 if !plain => return refused("SAN dNSName is malformed"),
            6 if !plain => return refused("SAN uniformResourceIdentifier is malformed"),
            7 if !matches!(name.content.len(), 4 | 16) => {
                return refused(&format!("cannot parse IP address of length {}", name.content.len()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks that the key in the request signed it.
fn signature(der: &[u8], algorithm: &[u8], key: &[u8]) -> Result<(), Refused> {
    let unknown = || Err("x509: cannot verify signature: algorithm unimplemented".to_owned());
    let held = match key {
        RSA_KEY => "*rsa.PublicKey",
        EC_KEY => "*ecdsa.PublicKey",
        ED25519 => "ed25519.PublicKey",
        _ => return unknown(),
    };
    let rsa = algorithm.strip_prefix(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01][..]);
    let (wanted, name, failure) = match (rsa, algorithm) {
        (Some([4]), _) => return Err("x509: cannot verify signature: insecure algorithm MD5-RSA".to_owned()),
        (Some([5 | 10..=13]), _) | (_, [0x2b, 0x0e, 0x03, 0x02, 0x1d]) => {
            (RSA_KEY, "RSA", "crypto/rsa: verification error")
        }
        (
            _,
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01] | [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 2..=4],
        ) => (EC_KEY, "ECDSA", "x509: ECDSA verification failure"),
        (_, ED25519) => (ED25519, "Ed25519", "x509: Ed25519 verification failure"),
        _ => return unknown(),
    };
    if key != wanted {
        return Err(format!(
            "x509: signature algorithm specifies an {name} public key, but have public key of type {held}"
        ));
    }
    let (_, request) = X509CertificationRequest::from_der(der).map_err(|_| failure)?;
    match request.verify_signature() {
        Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm) => Ok(()),
        Err(_) => Err(failure.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with one byte changed, and what kube-apiserver said about it: offset, new byte, words.
    fn recorded() -> Value {
        serde_json::from_str(include_str!("../../testdata/signing_requests.json")).unwrap()
    }

    #[test]
    fn the_words_are_those_of_kube_apiserver() {
        let recorded = recorded();
        let der =
            base64::engine::general_purpose::STANDARD.decode(recorded["der"].as_str().unwrap()).unwrap();
        assert_eq!(check(&der), Ok(()));
        let (mut checked, mut differences) = (0, Vec::new());
        for case in recorded["changed"].as_array().unwrap() {
            let (place, byte) = (case[0].as_u64().unwrap() as usize, case[1].as_u64().unwrap() as u8);
            let words = case[2].as_str().unwrap();
            let mut changed = der.clone();
            changed[place] = byte;
            let ours = check(&changed).err().unwrap_or_default();
            // Only the signature shows whether a point lies on the curve; Go prints an address in memory.
            let points = ["P256 point not on curve", "invalid P256 point encoding"].contains(&words)
                && ours == "x509: ECDSA verification failure";
            let same = |text: &str| -> String {
                let (head, tail) = text.split_once(" tag:0x").unwrap_or((text, ""));
                format!("{head} {}", tail.split_once(' ').unwrap_or_default().1)
            };
            checked += 1;
            if !points && same(&ours) != same(words) {
                differences.push(format!("{place} {byte:#x}: {ours}\n  kube-apiserver: {words}"));
            }
        }
        assert!(checked > 900, "{checked} cases");
        assert!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));
    }

    #[test]
    fn bytes_that_are_not_a_request_are_refused() {
        for (bytes, words) in [
            (&b""[..], "asn1: syntax error: sequence truncated"),
            (b"\x30", "asn1: syntax error: truncated tag or length"),
            (b"\x30\x00", "asn1: syntax error: sequence truncated"),
            (b"\x30\x80\x00\x00", "asn1: syntax error: indefinite length found (not DER)"),
            (b"\x30\x84\xff\xff\xff\xff\x00", "asn1: structure error: length too large"),
            (b"\x30\x81\x05\x02\x01\x00\x05\x00", "asn1: structure error: non-minimal length"),
            (b"\x30\x04\x30\x05\x02\x01", "asn1: syntax error: data truncated"),
            (b"\x30\x05\x30\x03\x02\x01\x00", "asn1: syntax error: sequence truncated"),
        ] {
            assert_eq!(check(bytes), Err(words.to_owned()), "{bytes:?}");
        }
        let refused = check(b"garbage").unwrap_err();
        let start = "asn1: structure error: tags don't match (16 vs {class:1 tag:7 length:97 isCompound:true}) {optional:false";
        assert!(
            refused.starts_with(start) && refused.ends_with("omitEmpty:false} certificateRequest @2"),
            "{refused}"
        );
    }

    #[test]
    fn requests_of_every_kind_of_key_are_taken() {
        for algorithm in
            [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
        {
            let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
            let params = rcgen::CertificateParams::new(vec!["a.example.com".to_owned()]).unwrap();
            let mut der = params.serialize_request(&key).unwrap().der().to_vec();
            assert_eq!(check(&der), Ok(()));
            *der.last_mut().unwrap() ^= 1;
            assert!(check(&der).unwrap_err().ends_with("verification failure"));
        }
    }

    /// A value in DER.
    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        let digits = &length[length.iter().take_while(|byte| **byte == 0).count()..];
        let mut bytes = vec![tag];
        match content.len() {
            short @ ..0x80 => bytes.push(short as u8),
            _ => bytes.extend([&[0x80 | digits.len() as u8], digits].concat()),
        }
        bytes.extend(content);
        bytes
    }

    #[test]
    fn finding_25_many_requested_extensions_are_compared_in_linear_time() {
        let extension = |number: u32| {
            // 1.2.3, and the number with seven bits in each byte.
            let digits = [number >> 14, number >> 7, number].map(|digit| digit as u8 & 0x7f);
            let id = [&[0x2a, 3][..], &[0x81, 0x80 | digits[0], 0x80 | digits[1], digits[2]]].concat();
            der(0x30, &[der(6, &id), der(4, b"x")].concat())
        };
        let asks = |numbers: &mut dyn Iterator<Item = u32>| {
            let list = der(0x30, &numbers.flat_map(extension).collect::<Vec<u8>>());
            let attribute = der(0x30, &[der(6, EXTENSION_REQUEST), der(0x31, &list)].concat());
            let (whole, _) = any(&attribute).unwrap();
            extensions(&[whole])
        };
        // Comparing each with each other would take minutes.
        assert_eq!(asks(&mut (0..200_000)), Ok(()));
        let repeated = asks(&mut (0..200_000).chain([199_999]));
        assert!(repeated.unwrap_err().contains("duplicate requested extensions"));
    }

    #[test]
    fn finding_25_a_request_is_not_read_if_it_is_longer_than_any_key_makes_it() {
        let object = |length: usize| serde_json::json!({"spec": {"request": "A".repeat(length)}});
        let refused = check_object(&object(LONGEST + 4)).unwrap();
        assert_eq!(refused.to_string(), "spec.request: Too long: may not be more than 65536 bytes");
        assert_eq!(check_object(&object(LONGEST)), None, "what it lacks is reported elsewhere");
    }
}
