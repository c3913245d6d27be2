//! The requests and replies of clients: the checker's input. It is independent of logs,
//! members and the network; the test that drives the clients fills it in.

use std::fmt;

use bytes::Bytes;

pub type Key = Bytes;
pub type Value = Bytes;

/// Operations in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub operations: Vec<ClientOperation>,
}

/// One call of a client and its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOperation {
    pub client: u64,
    /// The time of the call, from a clock that all clients share. One operation precedes
    /// another if it returned at an earlier time than the other was called. Equal times
    /// prove no order, so a clock that counts events is more precise than one that counts
    /// ticks.
    pub called: u64,
    /// The time of the reply. None if the client never got one: the operation may take
    /// effect at any time after the call, or never.
    pub returned: Option<u64>,
    pub call: Call,
    pub seen: Seen,
    /// The log index at which a write was applied or a read was served, where it is
    /// known, also for an operation of unknown outcome. Only a hint for the order to try
    /// first: a wrong or missing index costs time and does not change the verdict.
    pub applied: Option<u64>,
}

/// A request of a client.
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
    /// Reads several keys atomically.
    GetSeveral(Vec<Key>),
}

/// The reply that a client got. A reply of the wrong kind for its call is a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A put or delete took effect.
    Done,
    /// The value of a key; None if the key is absent.
    Value(Option<Value>),
    /// One value per requested key, in the same order.
    Values(Vec<Option<Value>>),
    /// Whether a compare-and-set found the expected value and took effect.
    Swapped(bool),
    /// The operation had no effect and never will.
    Refused,
    /// No reply: the outcome is unknown, even if there is a return time.
    Nothing,
}

impl ClientOperation {
    /// Whether the outcome is unknown.
    pub fn is_unknown(&self) -> bool {
        self.returned.is_none() || self.seen == Seen::Nothing
    }

    /// All values that it wrote, expected or returned.
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

/// One line: times, client, call, reply.
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
            Self::Put(key, value) => write!(f, "put {} = {}", EscapedText(key), EscapedText(value)),
            Self::Get(key) => write!(f, "get {}", EscapedText(key)),
            Self::Delete(key) => write!(f, "delete {}", EscapedText(key)),
            Self::CompareAndSet { key, expected, new } => {
                write!(
                    f,
                    "set {} from {} to {}",
                    EscapedText(key),
                    ValueText(expected),
                    EscapedText(new)
                )
            }
            Self::GetSeveral(keys) => {
                f.write_str("get")?;
                keys.iter().try_for_each(|key| write!(f, " {}", EscapedText(key)))
            }
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Value(value) => write!(f, "saw {}", ValueText(value)),
            Self::Values(values) => {
                f.write_str("saw")?;
                values.iter().try_for_each(|value| write!(f, " {}", ValueText(value)))
            }
            Self::Swapped(true) => f.write_str("swapped"),
            Self::Swapped(false) => f.write_str("found another value"),
            Self::Refused => f.write_str("refused"),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}

/// Bytes with escapes.
pub(super) struct EscapedText<'a>(pub(super) &'a [u8]);

impl fmt::Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// A value or its absence, as text.
pub(super) struct ValueText<'a>(pub(super) &'a Option<Value>);

impl fmt::Display for ValueText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(f, "'{}'", EscapedText(value)),
            None => f.write_str("none"),
        }
    }
}
