//! Types of values before there are values, and which of them go together.
//!
//! Whatever is not known is `dyn`, which goes with everything. What a function or an empty list leaves open is a variable, for
//! which the first use that says more decides.

use std::fmt;
use std::sync::Arc;

use crate::decl::Decl;

/// The type of an expression.
#[derive(Debug, Clone)]
pub enum Type {
    Dyn,
    /// Something is wrong with the expression, which has been told.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    Optional(Arc<Type>),
    /// The type of a type.
    Type(Option<Arc<Type>>),
    Object(Arc<Decl>),
    /// A type that only functions know, such as a URL.
    Opaque(Arc<str>),
    /// A parameter of a function's signature.
    Param(&'static str),
    /// What nothing has decided yet.
    Var(usize),
}

impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Map(a, b), Self::Map(c, d)) => a == c && b == d,
            (Self::Object(a), Self::Object(b)) => a.name() == b.name(),
            (Self::Opaque(a), Self::Opaque(b)) => a == b,
            (Self::Param(a), Self::Param(b)) => a == b,
            (Self::Var(a), Self::Var(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => out.write_str("dyn"),
            Self::Error => out.write_str("!error!"),
            Self::Null => out.write_str("null"),
            Self::Bool => out.write_str("bool"),
            Self::Int => out.write_str("int"),
            Self::Uint => out.write_str("uint"),
            Self::Double => out.write_str("double"),
            Self::String => out.write_str("string"),
            Self::Bytes => out.write_str("bytes"),
            Self::Timestamp => out.write_str("timestamp"),
            Self::Duration => out.write_str("duration"),
            Self::List(inner) => write!(out, "list({inner})"),
            Self::Map(key, value) => write!(out, "map({key}, {value})"),
            Self::Optional(inner) => write!(out, "optional_type({inner})"),
            Self::Type(None) => out.write_str("type"),
            Self::Type(Some(inner)) => write!(out, "type({inner})"),
            Self::Object(decl) => out.write_str(decl.name()),
            Self::Opaque(name) => out.write_str(name),
            Self::Param(name) => out.write_str(name),
            Self::Var(number) => write!(out, "_var{number}"),
        }
    }
}

impl Type {
    pub(crate) fn opaque(name: &str) -> Self {
        Self::Opaque(name.into())
    }

    pub(crate) fn list(inner: Self) -> Self {
        Self::List(Arc::new(inner))
    }

    pub(crate) fn map(key: Self, value: Self) -> Self {
        Self::Map(Arc::new(key), Arc::new(value))
    }

    pub(crate) fn optional(inner: Self) -> Self {
        Self::Optional(Arc::new(inner))
    }

    /// Returns the name by which values know the type; messages about results of expressions use it.
    pub fn runtime_name(&self) -> String {
        match self {
            Self::Null => "null_type".to_owned(),
            Self::Timestamp => "google.protobuf.Timestamp".to_owned(),
            Self::Duration => "google.protobuf.Duration".to_owned(),
            Self::List(inner) => format!("list({})", inner.runtime_name()),
            Self::Map(key, value) => format!("map({}, {})", key.runtime_name(), value.runtime_name()),
            Self::Optional(inner) => format!("optional_type({})", inner.runtime_name()),
            other => other.to_string(),
        }
    }

    /// As [`Type::runtime_name`], without what it holds.
    pub(crate) fn outer_name(&self) -> String {
        let name = self.runtime_name();
        name.split('(').next().unwrap_or_default().to_owned()
    }

    /// Says whether values have fields; of those that are not declared nothing is known.
    pub(crate) fn is_struct(&self) -> bool {
        match self {
            Self::Object(_) => true,
            Self::Opaque(name) => !matches!(&**name, "net.IP" | "net.CIDR"),
            _ => false,
        }
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Self::Dyn | Self::Error)
    }

    /// Says whether values of the type are one step to look at.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Self::Bool | Self::Int | Self::Uint | Self::Double | Self::Timestamp | Self::Duration => true,
            Self::Optional(inner) => inner.is_scalar(),
            _ => false,
        }
    }

    /// Says whether null is a value of the type.
    fn is_nullable(&self) -> bool {
        matches!(
            self,
            Self::Null
                | Self::Object(_)
                | Self::Opaque(_)
                | Self::Optional(_)
                | Self::Timestamp
                | Self::Duration
        )
    }

    /// Returns a type with its parts replaced.
    pub(crate) fn with_parts(&self, replace: &mut dyn FnMut(&Self) -> Self) -> Self {
        match self {
            Self::List(inner) => Self::list(replace(inner)),
            Self::Optional(inner) => Self::optional(replace(inner)),
            Self::Map(key, value) => Self::map(replace(key), replace(value)),
            Self::Type(Some(inner)) => Self::Type(Some(Arc::new(replace(inner)))),
            other => other.clone(),
        }
    }

    fn parts(&self) -> Vec<&Self> {
        match self {
            Self::List(inner) | Self::Optional(inner) | Self::Type(Some(inner)) => vec![inner],
            Self::Map(key, value) => vec![key, value],
            _ => Vec::new(),
        }
    }

    /// Says whether it is the same as another one, or leaves more open.
    fn is_as_general_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Var(_), _) | (Self::Type(_), Self::Type(_)) => true,
            (_, Self::Dyn | Self::Var(_)) => false,
            (Self::List(_), Self::List(_))
            | (Self::Optional(_), Self::Optional(_))
            | (Self::Map(..), Self::Map(..)) => {
                self.parts().into_iter().zip(other.parts()).all(|(a, b)| a.is_as_general_as(b))
            }
            _ => self == other,
        }
    }
}

/// Returns the more general of two types that go together.
pub(crate) fn more_general<'a>(a: &'a Type, b: &'a Type) -> &'a Type {
    if a.is_as_general_as(b) { a } else { b }
}

/// What the variables among the types stand for.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    known: Vec<Option<Type>>,
    /// What was known before, to take back what did not lead anywhere.
    undo: Vec<(usize, Option<Type>)>,
}

impl Mapping {
    pub(crate) fn fresh(&mut self) -> Type {
        self.known.push(None);
        Type::Var(self.known.len() - 1)
    }

    /// Says whether types go together, one by one; if so, keeps what that says about variables.
    pub(crate) fn assignable(&mut self, wanted: &[Type], given: &[Type]) -> bool {
        let before = self.undo.len();
        let fits = wanted.len() == given.len() && wanted.iter().zip(given).all(|(a, b)| self.fits(a, b));
        if !fits {
            while self.undo.len() > before
                && let Some((number, was)) = self.undo.pop()
            {
                self.known[number] = was;
            }
        }
        fits
    }

    fn set(&mut self, number: usize, ty: Type) {
        let was = self.known[number].replace(ty);
        self.undo.push((number, was));
    }

    fn fits(&mut self, a: &Type, b: &Type) -> bool {
        if let Type::Var(number) = b {
            match self.stands_for(a, *number) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if let Type::Var(number) = a {
            return self.stands_for(b, *number).0;
        }
        if a.is_dyn_or_error() || b.is_dyn_or_error() {
            return true;
        }
        match (a, b) {
            (Type::Null, other) | (other, Type::Null) => other.is_nullable(),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(_), Type::List(_))
            | (Type::Optional(_), Type::Optional(_))
            | (Type::Map(..), Type::Map(..)) => {
                a.parts().into_iter().zip(b.parts()).all(|(a, b)| self.fits(a, b))
            }
            _ => a == b,
        }
    }

    /// Says whether a variable can stand for a type, and whether it stood for something before.
    fn stands_for(&mut self, ty: &Type, number: usize) -> (bool, bool) {
        if matches!(ty, Type::Var(same) if *same == number) {
            return (true, true);
        }
        let Some(known) = self.known[number].clone() else {
            let possible = !self.contains(number, ty);
            if possible {
                self.set(number, ty.clone());
            }
            return (possible, false);
        };
        if *ty == known {
            return (true, true);
        }
        if !self.fits(ty, &known) {
            return (false, true);
        }
        let general = more_general(ty, &known).clone();
        if !self.contains(number, &general) {
            self.set(number, general);
        }
        (true, true)
    }

    fn contains(&self, number: usize, ty: &Type) -> bool {
        match ty {
            Type::Var(same) if *same == number => true,
            Type::Var(other) => self.known[*other].as_ref().is_some_and(|known| self.contains(number, known)),
            other => other.parts().into_iter().any(|part| self.contains(number, part)),
        }
    }

    /// Puts in what variables stand for.
    pub(crate) fn fill(&self, ty: &Type) -> Type {
        match ty {
            Type::Var(number) => {
                self.known[*number].as_ref().map_or_else(|| ty.clone(), |known| self.fill(known))
            }
            other => other.with_parts(&mut |part| self.fill(part)),
        }
    }

    /// As [`Mapping::fill`]; what nothing is known about can be anything.
    pub(crate) fn fill_or_dyn(&self, ty: &Type) -> Type {
        match self.fill(ty) {
            Type::Var(_) => Type::Dyn,
            other => other.with_parts(&mut |part| self.fill_or_dyn(part)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_stands_for_one_type_unless_it_can_be_anything() {
        let mut mapping = Mapping::default();
        let open = mapping.fresh();
        let list = Type::list(open.clone());
        assert!(mapping.assignable(&[Type::list(Type::Int)], std::slice::from_ref(&list)));
        assert!(!mapping.assignable(&[Type::String], std::slice::from_ref(&open)));
        assert!(mapping.assignable(&[Type::Dyn], std::slice::from_ref(&open)));
        assert_eq!(mapping.fill(&list).to_string(), "list(dyn)");
    }

    #[test]
    fn what_did_not_fit_leaves_no_trace() {
        let mut mapping = Mapping::default();
        let open = mapping.fresh();
        assert!(!mapping.assignable(&[Type::Int, Type::Int], &[open.clone(), Type::String]));
        assert_eq!(mapping.fill_or_dyn(&open), Type::Dyn);
        assert!(mapping.assignable(&[Type::String], &[open]));
    }

    #[test]
    fn null_goes_with_objects_but_not_with_numbers() {
        let mut mapping = Mapping::default();
        assert!(mapping.assignable(&[Type::Null], &[Type::optional(Type::Int)]));
        assert!(!mapping.assignable(&[Type::Null], &[Type::Int]));
    }
}
