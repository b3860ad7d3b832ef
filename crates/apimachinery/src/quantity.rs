//! Resource quantities: `500m`, `1Gi`, `1e3`.
//!
//! In: the text of a quantity, or numbers. Out: a small copyable value with exact arithmetic, and the canonical text
//! that Kubernetes would store.
//!
//! A quantity is `mantissa · 10^exponent` with `exponent ≥ -9`: nothing is finer than a nano, and finer input is
//! rounded away from zero so that asking for a little never becomes asking for nothing. The mantissa has 128 bits;
//! results that would not fit saturate, where upstream would switch to big integers (beyond 10^29 for nano values).

use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is not a quantity. The words are upstream's; they reach users inside decode errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// The family of suffixes a quantity is written with; arithmetic keeps the left side's unless that is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySi,
    /// `12M`
    DecimalSi,
}

/// An exact amount. `exponent` is at least -9, or the mantissa is zero.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    mantissa: i128,
    exponent: i32,
    format: Format,
}

const NANO: i32 = -9;

impl Quantity {
    pub const ZERO: Self = Self { mantissa: 0, exponent: 0, format: Format::DecimalSi };

    pub const fn new(value: i64, format: Format) -> Self {
        Self { mantissa: value as i128, exponent: 0, format }
    }

    pub const fn from_milli(value: i64, format: Format) -> Self {
        Self { mantissa: value as i128, exponent: -3, format }
    }

    /// Returns `value · 10^scale`; `scale` is clamped to nano.
    pub fn from_scaled(value: i64, scale: i32) -> Self {
        Self::rounded(i128::from(value), scale, Format::DecimalSi)
    }

    /// Parses a quantity.
    ///
    /// Errors: as upstream, by the part that is wrong.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let parts = Parts::split(text)?;
        let (base, exponent, format) = interpret_suffix(parts.suffix).ok_or(Error::Suffix)?;
        let mut mantissa: i128 = 0;
        let mut dropped_exponent = 0;
        let mut dropped_nonzero = false;
        for digit in parts.whole.bytes().chain(parts.fraction.bytes()) {
            // 36 digits leave room for the sign and for rounding up.
            if mantissa >= 10i128.pow(36) {
                dropped_exponent = i32::saturating_add(dropped_exponent, 1);
                dropped_nonzero |= digit != b'0';
            } else {
                mantissa = mantissa.saturating_mul(10).saturating_add(i128::from(digit.saturating_sub(b'0')));
            }
        }
        if dropped_nonzero {
            mantissa = mantissa.saturating_add(1);
        }
        let fraction_digits = i32::try_from(parts.fraction.len()).unwrap_or(i32::MAX);
        let mut scale = dropped_exponent.saturating_sub(fraction_digits);
        let mut format = format;
        if base == 10 {
            scale = scale.saturating_add(exponent);
        } else {
            mantissa = mantissa.saturating_mul(1i128 << exponent);
        }
        let mut quantity = Self::rounded(mantissa, scale, format);
        if format == Format::BinarySi {
            let most = Self::new(i64::MAX, format);
            if quantity > most {
                quantity = most;
            }
            if quantity < Self::new(1, format) && quantity.mantissa != 0 {
                format = Format::DecimalSi;
                quantity.format = format;
            }
        }
        if parts.negative {
            quantity.mantissa = quantity.mantissa.saturating_neg();
        }
        Ok(quantity)
    }

    /// Returns the text that storing this input would give: input that is already canonical enough stays as it is.
    ///
    /// Upstream remembers the text when the digits need no rework, so `1.500` stays while `1.50` becomes `1500m`.
    pub fn canonical(text: &str) -> Result<String, Error> {
        let quantity = Self::parse(text)?;
        if text == "0" {
            return Ok("0".to_owned());
        }
        let parts = Parts::split(text)?;
        let (_, exponent, format) = interpret_suffix(parts.suffix).ok_or(Error::Suffix)?;
        let digits = parts.whole.len().saturating_add(parts.fraction.len());
        let keep = if format == Format::BinarySi {
            // A rough bound for what fits 64 bits; beyond it upstream recomputes the text.
            let digits = i32::try_from(digits).unwrap_or(i32::MAX);
            let room = 14i32.saturating_sub(digits).saturating_sub((exponent as f32 * 3.0 / 10.0) as i32);
            parts.fraction.is_empty()
                && room >= 0
                && parts.whole.parse::<i64>().is_ok_and(|value| value & 0x07 != 0)
        } else {
            let scale = exponent.saturating_sub(parts.fraction.len() as i32);
            let first = parts.whole.bytes().chain(parts.fraction.bytes()).next();
            let trailing: Vec<u8> = parts.whole.bytes().chain(parts.fraction.bytes()).rev().take(3).collect();
            digits <= 18
                && scale >= NANO
                && scale % 3 == 0
                && trailing != b"000"
                && first.is_some_and(|digit| digit != b'0')
        };
        Ok(if keep { text.to_owned() } else { quantity.to_string() })
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    pub fn is_zero(&self) -> bool {
        self.mantissa == 0
    }

    /// Returns -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        self.mantissa.signum() as i32
    }

    /// Returns the amount in whole units, rounded away from zero, as Go's `Value()`.
    pub fn value(&self) -> i64 {
        self.scaled_value(0)
    }

    /// Returns the amount in thousandths, rounded away from zero, as Go's `MilliValue()`.
    pub fn milli_value(&self) -> i64 {
        self.scaled_value(-3)
    }

    /// Returns the amount in units of `10^scale`, rounded away from zero; what does not fit saturates.
    pub fn scaled_value(&self, scale: i32) -> i64 {
        let scaled = scale_mantissa(self.mantissa, self.exponent.saturating_sub(scale));
        i64::try_from(scaled).unwrap_or(if scaled < 0 { i64::MIN } else { i64::MAX })
    }

    /// Returns the amount as an integer if it is one.
    pub fn as_i64(&self) -> Option<i64> {
        let value = self.value();
        (*self == Self::new(value, self.format)).then_some(value)
    }

    pub fn as_f64(&self) -> f64 {
        self.mantissa as f64 * 10f64.powi(self.exponent)
    }

    /// Returns the quantity rounded away from zero to a multiple of `10^scale` (−3 for a ResourceList).
    pub fn round_up(self, scale: i32) -> Self {
        if self.exponent >= scale {
            return self;
        }
        Self {
            mantissa: scale_mantissa(self.mantissa, self.exponent.saturating_sub(scale)),
            exponent: scale,
            format: self.format,
        }
    }

    /// Returns the quantity times an integer.
    pub fn times(self, factor: i64) -> Self {
        Self { mantissa: self.mantissa.saturating_mul(i128::from(factor)), ..self }
    }

    /// Returns the opposite amount.
    pub fn negated(self) -> Self {
        Self { mantissa: self.mantissa.saturating_neg(), ..self }
    }

    fn rounded(mantissa: i128, exponent: i32, format: Format) -> Self {
        if mantissa == 0 {
            return Self { mantissa: 0, exponent: 0, format };
        }
        if exponent < NANO {
            return Self {
                mantissa: scale_mantissa(mantissa, exponent.saturating_sub(NANO)),
                exponent: NANO,
                format,
            };
        }
        Self { mantissa, exponent, format }
    }

    /// Brings two amounts to one exponent, the smaller one.
    fn aligned(self, other: Self) -> (i128, i128, i32) {
        if self.mantissa == 0 {
            return (0, other.mantissa, other.exponent);
        }
        if other.mantissa == 0 {
            return (self.mantissa, 0, self.exponent);
        }
        let exponent = self.exponent.min(other.exponent);
        (
            scale_mantissa(self.mantissa, self.exponent.saturating_sub(exponent)),
            scale_mantissa(other.mantissa, other.exponent.saturating_sub(exponent)),
            exponent,
        )
    }

    fn combine(self, other: Self, operate: fn(i128, i128) -> i128) -> Self {
        let format = if self.mantissa == 0 { other.format } else { self.format };
        let (left, right, exponent) = self.aligned(other);
        Self { mantissa: operate(left, right), exponent, format }
    }
}

/// Multiplies by `10^exponent`; a negative exponent divides, rounding away from zero.
fn scale_mantissa(mantissa: i128, exponent: i32) -> i128 {
    if exponent >= 0 {
        match 10i128.checked_pow(exponent.unsigned_abs()) {
            Some(factor) => mantissa.saturating_mul(factor),
            None if mantissa == 0 => 0,
            None if mantissa < 0 => i128::MIN,
            None => i128::MAX,
        }
    } else {
        match 10i128.checked_pow(exponent.unsigned_abs()) {
            Some(divisor) => {
                // The divisor is a power of ten, and never 0 or −1.
                let quotient = mantissa.checked_div(divisor).unwrap_or_default();
                let rest = mantissa.checked_rem(divisor).unwrap_or_default();
                if rest == 0 { quotient } else { quotient.saturating_add(mantissa.signum()) }
            }
            None => mantissa.signum(),
        }
    }
}

/// A quantity's text cut into its parts, leading zeros removed.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::Format);
        }
        let (negative, rest) = match (text.strip_prefix('-'), text.strip_prefix('+')) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => (false, text),
        };
        let rest = rest.trim_start_matches('0');
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = rest.split_at(digits(rest));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(after) => after.split_at(digits(after)),
            None => ("", rest),
        };
        let letters = suffix.bytes().take_while(|byte| b"eEinumkKMGTP".contains(byte)).count();
        let tail = &suffix[letters..];
        let tail = tail.strip_prefix(['-', '+']).unwrap_or(tail);
        if !tail.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Error::Format);
        }
        // Only a sign, a dot or a suffix is not a number. Upstream lets some of these through as zero (`Ki`, `-`);
        // the published expression does not, and neither do we.
        if whole.is_empty() && fraction.is_empty() && !text.contains('0') {
            return Err(Error::Format);
        }
        Ok(Self { negative, whole, fraction, suffix })
    }
}

fn interpret_suffix(suffix: &str) -> Option<(u32, i32, Format)> {
    Some(match suffix {
        "n" => (10, -9, Format::DecimalSi),
        "u" => (10, -6, Format::DecimalSi),
        "m" => (10, -3, Format::DecimalSi),
        "" => (10, 0, Format::DecimalSi),
        "k" => (10, 3, Format::DecimalSi),
        "M" => (10, 6, Format::DecimalSi),
        "G" => (10, 9, Format::DecimalSi),
        "T" => (10, 12, Format::DecimalSi),
        "P" => (10, 15, Format::DecimalSi),
        "E" => (10, 18, Format::DecimalSi),
        "Ki" => (2, 10, Format::BinarySi),
        "Mi" => (2, 20, Format::BinarySi),
        "Gi" => (2, 30, Format::BinarySi),
        "Ti" => (2, 40, Format::BinarySi),
        "Pi" => (2, 50, Format::BinarySi),
        "Ei" => (2, 60, Format::BinarySi),
        _ => {
            let digits = suffix.strip_prefix(['e', 'E'])?;
            let exponent: i64 = digits.parse().ok()?;
            (10, i32::try_from(exponent).ok()?, Format::DecimalExponent)
        }
    })
}

/// Prints the canonical form: no fraction, the largest suffix that needs none.
impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mantissa == 0 {
            return out.write_str("0");
        }
        let mut format = self.format;
        if format == Format::BinarySi {
            let small = *self > Self::new(-1024, format) && *self < Self::new(1024, format);
            if small || self.as_i64().is_none() {
                format = Format::DecimalSi;
            }
        }
        if format == Format::BinarySi {
            let mut value = self.value();
            let mut power = 0;
            while value % 1024 == 0 && power < 6 {
                value /= 1024;
                power = usize::saturating_add(power, 1);
            }
            let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].get(power).copied().unwrap_or_default();
            return write!(out, "{value}{suffix}");
        }
        let (mut mantissa, mut exponent) = (self.mantissa, self.exponent);
        while mantissa % 10 == 0 {
            mantissa /= 10;
            exponent = exponent.saturating_add(1);
        }
        while exponent % 3 != 0 {
            mantissa = mantissa.saturating_mul(10);
            exponent = exponent.saturating_sub(1);
        }
        let suffix = match exponent {
            -9 => "n",
            -6 => "u",
            -3 => "m",
            0 => "",
            3 => "k",
            6 => "M",
            9 => "G",
            12 => "T",
            15 => "P",
            18 => "E",
            _ => return write!(out, "{mantissa}e{exponent}"),
        };
        if format == Format::DecimalExponent && exponent != 0 {
            return write!(out, "{mantissa}e{exponent}");
        }
        write!(out, "{mantissa}{suffix}")
    }
}

impl FromStr for Quantity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
    }
}

/// Quantities are equal when the amounts are, whatever they are written like.
impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.sign() != other.sign() {
            return self.sign().cmp(&other.sign());
        }
        let (left, right, _) = self.aligned(*other);
        left.cmp(&right)
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.combine(other, i128::saturating_add)
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.combine(other, i128::saturating_sub)
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = Add::add(*self, other);
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = Sub::sub(*self, other);
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::ZERO, Add::add)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Accepts a string or a number, as the API does.
impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a quantity")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text).map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity::new(value, Format::DecimalSi))
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
                Quantity::parse(&value.to_string()).map_err(E::custom)
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Quantity, E> {
                Quantity::parse(&crate::go::float(value)).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quantity(text: &str) -> Quantity {
        Quantity::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn canonical_text_is_what_kubernetes_stores() {
        for (text, canonical) in [
            ("0", "0"),
            ("0n", "0"),
            ("0Ki", "0"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("5.", "5."),
            ("1024Mi", "1Gi"),
            ("1024", "1024"),
            ("1000", "1k"),
            ("1000000", "1M"),
            ("1500", "1500"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("1.500", "1.500"),
            ("1000m", "1"),
            ("0.1", "100m"),
            ("100u", "100u"),
            ("0.0001", "100u"),
            ("1e3", "1e3"),
            ("1E3", "1E3"),
            ("1e4", "10e3"),
            ("12e6", "12e6"),
            ("100e0", "100e0"),
            ("1Ki", "1Ki"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("2048Ki", "2Mi"),
            ("1100Mi", "1100Mi"),
            ("8Ki", "8Ki"),
            ("1023", "1023"),
            ("-1", "-1"),
            ("-0.5", "-500m"),
            ("+1", "+1"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("0.0000000001", "1n"),
            ("1.1Ki", "1126400m"),
            ("0.001Ki", "1024m"),
            ("1E", "1E"),
            ("9Ei", "9223372036854775807"),
            ("100k", "100k"),
            ("1000k", "1M"),
            ("0.25Gi", "256Mi"),
            ("3T", "3T"),
            ("129e-3", "129e-3"),
            ("010", "010"),
            ("1e-3", "1e-3"),
        ] {
            assert_eq!(Quantity::canonical(text).as_deref(), Ok(canonical), "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_quantity_are_refused_with_upstreams_words() {
        for text in ["", "abc", "1 ", " 1", "1.2.3", "1Gib", "--1", "1x", ".", "+", "Ki"] {
            assert_eq!(Quantity::parse(text), Err(Error::Format), "{text}");
        }
        for text in
            ["1KiB".trim_end_matches('B').replace("Ki", "kk").as_str(), "1mm", "1ee3", "1e", "1i", "1K"]
        {
            let error = Quantity::parse(text).unwrap_err();
            assert!(matches!(error, Error::Suffix), "{text}: {error}");
        }
        assert_eq!(
            Error::Format.to_string(),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        );
    }

    #[test]
    fn values_round_away_from_zero() {
        for (text, value, milli) in [
            ("1", 1, 1000),
            ("1m", 1, 1),
            ("1u", 1, 1),
            ("1500m", 2, 1500),
            ("-1500m", -2, -1500),
            ("1Gi", 1 << 30, 1000 << 30),
            ("0", 0, 0),
            ("1e3", 1000, 1_000_000),
        ] {
            assert_eq!(quantity(text).value(), value, "{text}");
            assert_eq!(quantity(text).milli_value(), milli, "{text}");
        }
        assert_eq!(quantity("1e30").value(), i64::MAX);
        assert_eq!(quantity("1500m").as_i64(), None);
        assert_eq!(quantity("2").as_i64(), Some(2));
    }

    #[test]
    fn arithmetic_keeps_the_left_sides_format() {
        let check = |left: &str, right: &str, sum: &str, difference: &str| {
            assert_eq!((quantity(left) + quantity(right)).to_string(), sum);
            assert_eq!((quantity(left) - quantity(right)).to_string(), difference);
        };
        check("1", "1", "2", "0");
        check("1500m", "1", "2500m", "500m");
        check("1Gi", "1Mi", "1025Mi", "1023Mi");
        check("1Gi", "1", "1073741825", "1073741823");
        check("0", "1Gi", "1Gi", "-1Gi");
        check("1", "1Ki", "1025", "-1023");
        check("1e3", "1", "1001", "999");
        assert_eq!(quantity("250m").times(4).to_string(), "1");
        assert_eq!(quantity("100Mi").times(3).to_string(), "300Mi");
    }

    #[test]
    fn comparison_ignores_the_format() {
        assert_eq!(quantity("1Ki"), quantity("1024"));
        assert_eq!(quantity("1000m"), quantity("1"));
        assert!(quantity("1Gi") > quantity("1G"));
        assert!(quantity("-1") < quantity("1m"));
        assert!(quantity("1e40") > quantity("1"));
        assert_eq!([quantity("1"), quantity("500m")].into_iter().sum::<Quantity>().to_string(), "1500m");
    }

    #[test]
    fn resource_lists_round_up_to_milli() {
        assert_eq!(quantity("100u").round_up(-3).to_string(), "1m");
        assert_eq!(quantity("1500m").round_up(-3).to_string(), "1500m");
        assert_eq!(quantity("1.0001Ki").round_up(-3).to_string(), "1024103m");
    }

    #[test]
    fn numbers_and_strings_deserialize() {
        let parsed: Vec<Quantity> = serde_json::from_str(r#"[1, "1Gi", 0.5]"#).unwrap();
        assert_eq!(serde_json::to_string(&parsed).unwrap(), r#"["1","1Gi","500m"]"#);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn printing_and_parsing_keeps_the_amount(value in any::<i64>(), scale in -9i32..12, binary in any::<bool>()) {
            let format = if binary { Format::BinarySi } else { Format::DecimalSi };
            let quantity = Quantity::from_scaled(value, scale).with_format(format);
            let again = Quantity::parse(&quantity.to_string()).unwrap();
            prop_assert_eq!(quantity, again);
            // A binary quantity without a binary suffix reads back as a decimal one; from then on it stays the same.
            let text = again.to_string();
            prop_assert_eq!(Quantity::parse(&text).unwrap().to_string(), text);
        }

        #[test]
        fn adding_and_subtracting_cancel(left in any::<i64>(), right in any::<i64>()) {
            let (left, right) = (Quantity::from_milli(left, Format::DecimalSi), Quantity::from_milli(right, Format::BinarySi));
            prop_assert_eq!(left + right - right, left);
            prop_assert_eq!(left + right, right + left);
        }
    }
}
