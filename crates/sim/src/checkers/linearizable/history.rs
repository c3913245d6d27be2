//! What clients asked and what they were told: the checker's input. It knows nothing
//! of logs, members or the wire; the driver of the clients fills it in.

use std::fmt;

use bytes::Bytes;

pub type Key = Bytes;
pub type Value = Bytes;

/// Operations in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub operations: Vec<ClientOperation>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOperation {
    pub client: u64,
    /// Times of one clock that all clients share. One operation comes before another
    /// when it returned at an earlier time than the other was called: equal times
    /// prove no order, so a recorder that counts events shows more than one that
    /// counts ticks.
    pub called: u64,
    /// None: the client never learned the result. It may take effect at any
    /// time after the call, or never.
    pub returned: Option<u64>,
    pub call: Call,
    pub seen: Seen,
    /// The log index at which a write was applied or a read was served, where it is
    /// known; also of an operation whose client never learned its outcome. A hint at an
    /// order to try first: wrong or missing, it costs time and changes no verdict.
    pub applied: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Put(Key, Value),
    Get(Key),
    Delete(Key),
    /// Puts the new value if the key holds the expected one (None: if it is absent).
    CompareAndSet {
        key: Key,
        expected: Option<Value>,
        new: Value,
    },
    /// Reads several keys at one moment.
    GetSeveral(Vec<Key>),
}

/// What the client was told. An answer that does not fit its call is one that no
/// machine gives, and so a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A put or delete happened.
    Done,
    /// The value that a get found, or that there was none.
    Value(Option<Value>),
    /// As many as were asked for, in the same order.
    Values(Vec<Option<Value>>),
    /// Whether a compare-and-set found what it expected, and so happened.
    Swapped(bool),
    /// It did not happen and never will.
    Refused,
    /// Nothing: the outcome is unknown, also when there is a time of return.
    Nothing,
}

impl ClientOperation {
    /// It is unknown whether this happened.
    pub fn is_unknown(&self) -> bool {
        self.returned.is_none() || self.seen == Seen::Nothing
    }

    /// Every value that was written, expected or seen.
    pub(super) fn values(&self) -> Vec<Option<&Value>> {
        let mut values = match &self.call {
            Call::Put(_, value) => vec![Some(value)],
            Call::Delete(_) => vec![None],
            Call::CompareAndSet { expected, new, .. } => vec![expected.as_ref(), Some(new)],
            Call::Get(_) | Call::GetSeveral(_) => vec![],
        };
        match &self.seen {
            Seen::Value(value) => values.push(value.as_ref()),
            Seen::Values(seen) => values.extend(seen.iter().map(Option::as_ref)),
            Seen::Done | Seen::Swapped(_) | Seen::Refused | Seen::Nothing => {}
        }
        values
    }
}

impl Call {
    pub fn keys(&self) -> &[Key] {
        match self {
            Self::Put(key, _) | Self::Get(key) | Self::Delete(key) => std::slice::from_ref(key),
            Self::CompareAndSet { key, .. } => std::slice::from_ref(key),
            Self::GetSeveral(keys) => keys,
        }
    }

    pub fn is_read(&self) -> bool {
        matches!(self, Self::Get(_) | Self::GetSeveral(_))
    }
}

/// One line: times, client, what it asked, what it saw.
impl fmt::Display for ClientOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let returned = self.returned.map_or("?".to_owned(), |at| at.to_string());
        let Self { client, called, call, .. } = self;
        write!(f, "{called:>8} .. {returned:<8} client {client:<4} {:<32} ", call.to_string())?;
        if self.is_unknown() {
            f.write_str("unknown")?
        } else {
            write!(f, "{}", self.seen)?
        }
        match self.applied {
            Some(index) => write!(f, " (at index {index})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(key, value) => write!(f, "put {} = {}", Text(key), Text(value)),
            Self::Get(key) => write!(f, "get {}", Text(key)),
            Self::Delete(key) => write!(f, "delete {}", Text(key)),
            Self::CompareAndSet { key, expected, new } => {
                write!(f, "set {} from {} to {}", Text(key), Found(expected), Text(new))
            }
            Self::GetSeveral(keys) => {
                f.write_str("get")?;
                keys.iter().try_for_each(|key| write!(f, " {}", Text(key)))
            }
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Value(value) => write!(f, "saw {}", Found(value)),
            Self::Values(values) => {
                f.write_str("saw")?;
                values.iter().try_for_each(|value| write!(f, " {}", Found(value)))
            }
            Self::Swapped(true) => f.write_str("swapped"),
            Self::Swapped(false) => f.write_str("found another value"),
            Self::Refused => f.write_str("refused"),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}

/// Bytes as a person reads them.
pub(super) struct Text<'a>(pub(super) &'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

pub(super) struct Found<'a>(pub(super) &'a Option<Value>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(f, "'{}'", Text(value)),
            None => f.write_str("none"),
        }
    }
}
