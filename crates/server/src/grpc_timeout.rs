//! The header `grpc-timeout`, as etcd's gRPC library reads it: a malformed one is an error, and
//! a call whose time is over is not started.

use std::fmt;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue};

/// Why the value is malformed, in the words of etcd's gRPC library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MalformedTimeout {
    problem: &'static str,
    value: String,
}

impl fmt::Display for MalformedTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { problem, value } = self;
        if *problem == NOT_A_NUMBER {
            let digits = value.get(..value.len().saturating_sub(1)).unwrap_or_default();
            return write!(f, "strconv.ParseUint: parsing {digits:?}: invalid syntax");
        }
        write!(f, "transport: {problem}: {value:?}")
    }
}

const NOT_A_NUMBER: &str = "not a number";

/// What a call's timeout says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallTimeout {
    /// None is given, or it lies in the future.
    InFuture,
    /// It is zero.
    Passed,
    Malformed(MalformedTimeout),
}

impl CallTimeout {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        headers.get("grpc-timeout").map_or(Self::InFuture, Self::of_value)
    }

    fn of_value(value: &HeaderValue) -> Self {
        let value = String::from_utf8_lossy(value.as_bytes());
        let malformed = |problem| {
            Self::Malformed(MalformedTimeout { problem, value: value.clone().into_owned() })
        };
        if value.len() < 2 {
            return malformed("timeout string is too short");
        }
        // Eight digits and the unit.
        if value.len() > 9 {
            return malformed("timeout string is too long");
        }
        let units = ["H", "M", "S", "m", "u", "n"];
        let split = value.split_at_checked(value.len() - 1);
        let Some((digits, _)) = split.filter(|(_, unit)| units.contains(unit)) else {
            return malformed("timeout unit is not recognized");
        };
        match digits.parse::<u64>() {
            Ok(0) => Self::Passed,
            Ok(_) => Self::InFuture,
            Err(_) => malformed(NOT_A_NUMBER),
        }
    }
}

/// The timeout of a call. `None` if it is not given or malformed.
pub(crate) fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?;
    match CallTimeout::of_value(value) {
        CallTimeout::Malformed(_) => None,
        CallTimeout::Passed => Some(Duration::ZERO),
        CallTimeout::InFuture => duration_of(value),
    }
}

/// The duration that a value says. `None` if it is zero or malformed.
pub(crate) fn duration_of(value: &HeaderValue) -> Option<Duration> {
    if CallTimeout::of_value(value) != CallTimeout::InFuture {
        return None;
    }
    let value = value.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        _ => Duration::from_nanos(number),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> CallTimeout {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", value.parse().unwrap());
        CallTimeout::of(&headers)
    }

    #[test]
    fn timeouts_are_read_as_etcd_reads_them() {
        assert_eq!(CallTimeout::of(&HeaderMap::new()), CallTimeout::InFuture);
        for value in ["1n", "99999999H", "5S", "007m"] {
            assert_eq!(of(value), CallTimeout::InFuture, "{value}");
        }
        for value in ["0n", "0H", "00000000S"] {
            assert_eq!(of(value), CallTimeout::Passed, "{value}");
        }
        let malformed = [
            ("", "transport: timeout string is too short: \"\""),
            ("5", "transport: timeout string is too short: \"5\""),
            ("123456789S", "transport: timeout string is too long: \"123456789S\""),
            ("10", "transport: timeout unit is not recognized: \"10\""),
            ("1s", "transport: timeout unit is not recognized: \"1s\""),
            ("xS", "strconv.ParseUint: parsing \"x\": invalid syntax"),
            ("-1S", "strconv.ParseUint: parsing \"-1\": invalid syntax"),
        ];
        for (value, text) in malformed {
            let CallTimeout::Malformed(error) = of(value) else { panic!("{value}") };
            assert_eq!(error.to_string(), text);
        }
    }
}
