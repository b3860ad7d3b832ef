//! The protobuf wire format: varints, tags, length-delimited bytes.

use super::Error;

pub(super) const VARINT: u8 = 0;
pub(super) const FIXED64: u8 = 1;
pub(super) const BYTES: u8 = 2;
const GROUP_START: u8 = 3;
const GROUP_END: u8 = 4;
const FIXED32: u8 = 5;

/// Reads a message field by field.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// A field's value as the wire has it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Raw<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
}

impl Raw<'_> {
    pub(super) fn wire(self) -> u8 {
        match self {
            Self::Varint(_) => VARINT,
            Self::Fixed64(_) => FIXED64,
            Self::Bytes(_) => BYTES,
            Self::Fixed32 => FIXED32,
        }
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the next field's number and value; groups, which nobody writes any more, are skipped.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Raw<'a>)>, Error> {
        loop {
            if self.rest.is_empty() {
                return Ok(None);
            }
            let tag = self.varint()?;
            let number = u32::try_from(tag >> 3).map_err(|_| Error::Tag(tag))?;
            if number == 0 {
                return Err(Error::Tag(tag));
            }
            let wire = (tag & 7) as u8;
            if wire == GROUP_START {
                self.skip_group()?;
                continue;
            }
            return Ok(Some((number, self.value(wire, tag)?)));
        }
    }

    fn value(&mut self, wire: u8, tag: u64) -> Result<Raw<'a>, Error> {
        match wire {
            VARINT => Ok(Raw::Varint(self.varint()?)),
            FIXED64 => {
                let bytes = self.take(8)?;
                Ok(Raw::Fixed64(u64::from_le_bytes(bytes.try_into().expect("eight bytes were taken"))))
            }
            BYTES => {
                let length = usize::try_from(self.varint()?).map_err(|_| Error::Truncated)?;
                Ok(Raw::Bytes(self.take(length)?))
            }
            FIXED32 => self.take(4).map(|_| Raw::Fixed32),
            _ => Err(Error::Tag(tag)),
        }
    }

    fn skip_group(&mut self) -> Result<(), Error> {
        let mut open = 1_usize;
        while open > 0 {
            let tag = self.varint()?;
            match (tag & 7) as u8 {
                GROUP_START => open = open.saturating_add(1),
                GROUP_END => open = open.saturating_sub(1),
                wire => {
                    self.value(wire, tag)?;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    pub(super) fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(Error::Truncated)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::Overflow)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_tag(out: &mut Vec<u8>, number: u32, wire: u8) {
    put_varint(out, u64::from(number) << 3 | u64::from(wire));
}

pub(super) fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_tag(out, number, BYTES);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn put_int(out: &mut Vec<u8>, number: u32, value: i64) {
    put_tag(out, number, VARINT);
    // Negative numbers are written as 64-bit two's complement, also 32-bit ones.
    put_varint(out, value as u64);
}
