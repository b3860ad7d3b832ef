//! `math`. Random numbers are made from a fixed seed: the same script gives the same answer to the same object.

use super::Call;
use crate::lua::machine::Ran;
use crate::lua::operators::modulo;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lua) enum Function {
    One(One),
    Atan2,
    Fmod,
    Frexp,
    Ldexp,
    Max,
    Min,
    Mod,
    Modf,
    Pow,
    Random,
    RandomSeed,
}

/// Functions of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lua) enum One {
    Abs,
    Acos,
    Asin,
    Atan,
    Ceil,
    Cos,
    Cosh,
    Deg,
    Exp,
    Floor,
    Log,
    Log10,
    Rad,
    Sin,
    Sinh,
    Sqrt,
    Tan,
    Tanh,
}

pub(super) const MEMBERS: &[(&str, Function)] = &[
    ("abs", Function::One(One::Abs)),
    ("acos", Function::One(One::Acos)),
    ("asin", Function::One(One::Asin)),
    ("atan", Function::One(One::Atan)),
    ("atan2", Function::Atan2),
    ("ceil", Function::One(One::Ceil)),
    ("cos", Function::One(One::Cos)),
    ("cosh", Function::One(One::Cosh)),
    ("deg", Function::One(One::Deg)),
    ("exp", Function::One(One::Exp)),
    ("floor", Function::One(One::Floor)),
    ("fmod", Function::Fmod),
    ("frexp", Function::Frexp),
    ("ldexp", Function::Ldexp),
    ("log", Function::One(One::Log)),
    ("log10", Function::One(One::Log10)),
    ("max", Function::Max),
    ("min", Function::Min),
    ("mod", Function::Mod),
    ("modf", Function::Modf),
    ("pow", Function::Pow),
    ("rad", Function::One(One::Rad)),
    ("random", Function::Random),
    ("randomseed", Function::RandomSeed),
    ("sin", Function::One(One::Sin)),
    ("sinh", Function::One(One::Sinh)),
    ("sqrt", Function::One(One::Sqrt)),
    ("tan", Function::One(One::Tan)),
    ("tanh", Function::One(One::Tanh)),
];

pub(super) fn call(call: &mut Call<'_, '_>, function: Function) -> Ran {
    let result = match function {
        Function::One(function) => one(function, call.number(1)?),
        Function::Atan2 => call.number(1)?.atan2(call.number(2)?),
        Function::Fmod => call.number(1)? % call.number(2)?,
        Function::Mod => modulo(call.number(1)?, call.number(2)?),
        Function::Pow => call.number(1)?.powf(call.number(2)?),
        Function::Frexp => {
            let (fraction, exponent) = frexp(call.number(1)?);
            call.push_number(fraction)?;
            exponent
        }
        Function::Ldexp => {
            let exponent = call.integer(2)?.clamp(-2200, 2200);
            let half = 2_f64.powi(i32::try_from(exponent / 2).unwrap_or(0));
            let rest = 2_f64.powi(i32::try_from(exponent - exponent / 2).unwrap_or(0));
            call.number(1)? * half * rest
        }
        Function::Max | Function::Min => {
            if call.count == 0 {
                return Err(call.raise("wrong number of arguments"));
            }
            let mut chosen = call.number(1)?;
            for argument in 2..=call.count {
                let number = call.number(argument)?;
                if (function == Function::Max && number > chosen)
                    || (function == Function::Min && number < chosen)
                {
                    chosen = number;
                }
            }
            chosen
        }
        Function::Modf => {
            let number = call.number(1)?;
            call.push_number(number.trunc())?;
            number - number.trunc()
        }
        Function::Random => match call.count {
            0 => (call.machine.random() >> 11) as f64 / (1_u64 << 53) as f64,
            count => {
                let (least, most) =
                    if count == 1 { (1, call.integer(1)?) } else { (call.integer(1)?, call.integer(2)?) };
                let Some(width) = most.checked_sub(least).and_then(|width| u64::try_from(width).ok()) else {
                    return Err(call.raise("invalid argument to Intn"));
                };
                let offset = call.machine.random() % width.saturating_add(1);
                least as f64 + offset as f64
            }
        },
        Function::RandomSeed => {
            call.integer(1)?;
            return Ok(());
        }
    };
    call.push_number(result)
}

fn one(function: One, number: f64) -> f64 {
    match function {
        One::Abs => number.abs(),
        One::Acos => number.acos(),
        One::Asin => number.asin(),
        One::Atan => number.atan(),
        One::Ceil => number.ceil(),
        One::Cos => number.cos(),
        One::Cosh => number.cosh(),
        One::Deg => number * 180.0 / std::f64::consts::PI,
        One::Exp => number.exp(),
        One::Floor => number.floor(),
        One::Log => number.ln(),
        One::Log10 => number.log10(),
        One::Rad => number * std::f64::consts::PI / 180.0,
        One::Sin => number.sin(),
        One::Sinh => number.sinh(),
        One::Sqrt => number.sqrt(),
        One::Tan => number.tan(),
        One::Tanh => number.tanh(),
    }
}

/// Splits a number into a fraction between one half and one, and a power of two.
fn frexp(number: f64) -> (f64, f64) {
    if number == 0.0 || !number.is_finite() {
        return (number, 0.0);
    }
    let (mut fraction, mut exponent) = (number, 0.0);
    while fraction.abs() >= 1.0 {
        fraction /= 2.0;
        exponent += 1.0;
    }
    while fraction.abs() < 0.5 {
        fraction *= 2.0;
        exponent -= 1.0;
    }
    (fraction, exponent)
}
