//! State machines whose commands, queries and snapshots are serde types instead of bytes.
//!
//! Values are encoded with [postcard](https://docs.rs/postcard): compact, with a specified
//! format. Its rule for changes holds: add variants at the end of an enum, and do not change
//! types that are in the log.

use std::error::Error;
use std::fmt;

use bytes::{Bytes, BytesMut};
use quorate_core::{Index, Membership};
use quorate_storage::StoreIdentity;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::command_id::CommandBuffer;
use crate::machine::{BadSnapshot, Machine, MachineError, SnapshotChunks};

/// A [`Machine`] with types. [`Typed`] makes a `Machine` of it, and `TypedNode` runs it.
///
/// A counter:
/// ```
/// # #[cfg(feature = "runtime")]
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use quorate::{Index, MachineError, MemoryNetwork, MemoryStorage, NodeConfig};
/// use quorate::typed::{TypedMachine, TypedNode};
///
/// #[derive(Default)]
/// struct Counter(u64);
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// enum Step {
///     Add(u64),
///     Reset,
/// }
///
/// impl TypedMachine for Counter {
///     type Command = Step;
///     type Reply = u64;
///     type Query = ();
///     type QueryReply = u64;
///     type Snapshot = u64;
///
///     fn apply(&mut self, _index: Index, step: Step) -> Result<u64, MachineError> {
///         self.0 = match step {
///             Step::Add(number) => self.0.saturating_add(number),
///             Step::Reset => 0,
///         };
///         Ok(self.0)
///     }
///
///     fn query(&self, (): ()) -> Result<u64, MachineError> {
///         Ok(self.0)
///     }
///
///     fn snapshot(&self) -> u64 {
///         self.0
///     }
///
///     fn install(&mut self, snapshot: u64) {
///         self.0 = snapshot;
///     }
/// }
///
/// let network = MemoryNetwork::new();
/// let config = NodeConfig::first(7, 1, [(1, "one")]);
/// let storage = MemoryStorage::new();
/// let node = TypedNode::start(config, storage, Counter::default(), network.transport()).await?;
/// assert_eq!(node.propose(&Step::Add(5)).await?, 5);
/// assert_eq!(node.read(&()).await?, 5);
/// node.propose(&Step::Reset).await?;
/// assert_eq!(node.read_local(&()).await?.value, 0);
/// node.node().stop().await;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "runtime"))]
/// # fn main() {}
/// ```
pub trait TypedMachine {
    /// What is proposed.
    type Command: Serialize + DeserializeOwned;
    /// What a command returns.
    type Reply: Serialize + DeserializeOwned;
    /// What is read.
    type Query: Serialize + DeserializeOwned;
    /// What a query returns.
    type QueryReply: Serialize + DeserializeOwned;
    /// The whole state.
    type Snapshot: Serialize + DeserializeOwned;

    /// See [`Machine::resume`].
    fn resume(&mut self, _owner: &StoreIdentity) -> Result<Index, MachineError> {
        Ok(0)
    }

    /// See [`Machine::save`].
    fn save(&mut self) -> Result<(), MachineError> {
        Ok(())
    }

    /// Runs one command: see [`Machine::apply`].
    fn apply(&mut self, index: Index, command: Self::Command) -> Result<Self::Reply, MachineError>;

    /// Answers a query without changing anything.
    fn query(&self, query: Self::Query) -> Result<Self::QueryReply, MachineError>;

    /// See [`Machine::on_membership`].
    fn on_membership(&mut self, _index: Index, _membership: &Membership) {}

    /// See [`Machine::on_cluster_version`].
    fn on_cluster_version(&mut self, _index: Index, _version: u32) {}

    /// The whole state as it is now. It is encoded at once; implement [`Machine`] for a state
    /// that is too large for that.
    fn snapshot(&self) -> Self::Snapshot;

    /// Replaces the state.
    fn install(&mut self, snapshot: Self::Snapshot);
}

/// Makes a [`Machine`] of a [`TypedMachine`].
///
/// A command that cannot be decoded is an error, after which the member stops: a member that
/// skipped it would differ from those that know it. Propose a new kind of command only when
/// `Node::cluster_version` says that all members know it: see [`Machine`].
#[derive(Clone, Debug, Default)]
pub struct Typed<M>(pub M);

impl<M: TypedMachine> Machine for Typed<M> {
    fn resume(&mut self, owner: &StoreIdentity) -> Result<Index, MachineError> {
        self.0.resume(owner)
    }

    fn save(&mut self) -> Result<(), MachineError> {
        self.0.save()
    }

    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        let reply = self.0.apply(index, decode(command)?)?;
        Ok(encode_reply(&reply))
    }

    fn apply_without_reply(&mut self, index: Index, command: &Bytes) -> Result<(), MachineError> {
        self.0.apply(index, decode(command)?).map(drop)
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        let Ok(query) = decode(query) else { return Ok(NO_REPLY) };
        Ok(encode_reply(&self.0.query(query)?))
    }

    fn on_membership(&mut self, index: Index, membership: &Membership) {
        self.0.on_membership(index, membership);
    }

    fn on_cluster_version(&mut self, index: Index, version: u32) {
        self.0.on_cluster_version(index, version);
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        let mut bytes = encode(&self.0.snapshot())?;
        Ok(Box::new(std::iter::from_fn(move || {
            let length = bytes.len().min(CHUNK_BYTES);
            (length > 0).then(|| Ok(bytes.split_to(length)))
        })))
    }

    fn check_snapshot(chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        decode_snapshot::<M>(chunks)?;
        Ok(())
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        self.0.install(decode_snapshot::<M>(chunks)?);
        Ok(())
    }
}

fn decode_snapshot<M: TypedMachine>(
    chunks: &mut dyn Iterator<Item = Bytes>,
) -> Result<M::Snapshot, BadSnapshot> {
    let mut bytes = BytesMut::new();
    chunks.for_each(|chunk| bytes.extend_from_slice(&chunk));
    decode(&bytes).map_err(|_| BadSnapshot)
}

const CHUNK_BYTES: usize = 1 << 20;

/// The bytes of a value are not what the type expects, or the type cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodecError(postcard::Error);

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot encode or decode a value of the state machine: {}", self.0)
    }
}

impl Error for CodecError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

fn encode(value: &impl Serialize) -> Result<Bytes, CodecError> {
    let bytes = postcard::to_extend(value, BytesMut::new()).map_err(CodecError)?;
    Ok(bytes.freeze())
}

/// A reply in front of which one byte says that there is one. A reply that cannot be encoded
/// concerns its caller alone; it must not stop the member.
fn encode_reply(reply: &impl Serialize) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.extend_from_slice(&[HAS_REPLY]);
    postcard::to_extend(reply, bytes).map_or(NO_REPLY, BytesMut::freeze)
}

/// The reply of [`Typed`] to a command or a query.
pub fn decode_reply<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    match bytes {
        [HAS_REPLY, reply @ ..] => decode(reply),
        _ => Err(CodecError(postcard::Error::DeserializeBadEncoding)),
    }
}

const HAS_REPLY: u8 = 1;
/// The query could not be decoded, or the reply not encoded.
const NO_REPLY: Bytes = Bytes::from_static(&[0]);

/// A command as [`Typed`] decodes it, ready to be proposed.
pub fn encode_command(command: &impl Serialize) -> Result<CommandBuffer, CodecError> {
    postcard::to_extend(command, CommandBuffer::new()).map_err(CodecError)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    match postcard::take_from_bytes(bytes).map_err(CodecError)? {
        (value, []) => Ok(value),
        _ => Err(CodecError(postcard::Error::DeserializeBadEncoding)),
    }
}

#[cfg(feature = "runtime")]
pub use node::{TypedLocalRead, TypedNode, TypedRequestError};

#[cfg(feature = "runtime")]
mod node {
    use std::error::Error;
    use std::fmt;
    use std::marker::PhantomData;

    use quorate_core::Index;

    use super::{CodecError, Typed, TypedMachine, decode, decode_reply, encode, encode_command};
    use crate::outcome::RequestError;
    use crate::runtime::{Node, NodeConfig, NodeError, Storage, Transport};

    /// A handle of a running member whose machine is a [`TypedMachine`].
    pub struct TypedNode<M> {
        node: Node,
        machine: PhantomData<fn() -> M>,
    }

    impl<M> Clone for TypedNode<M> {
        fn clone(&self) -> Self {
            Self { node: self.node.clone(), machine: PhantomData }
        }
    }

    impl<M> fmt::Debug for TypedNode<M> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.node.fmt(f)
        }
    }

    /// What a local read returns: see [`Node::read_local`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct TypedLocalRead<T> {
        /// The newest entry whose effect the value shows.
        pub index: Index,
        /// What the machine returned.
        pub value: T,
    }

    impl<M: TypedMachine> TypedNode<M> {
        /// Starts a member: see [`Node::start`].
        pub async fn start(
            config: NodeConfig,
            storage: impl Storage,
            machine: M,
            transport: impl Transport,
        ) -> Result<Self, NodeError>
        where
            M: Send + 'static,
        {
            Node::start(config, storage, Typed(machine), transport).await.map(Self::from_node)
        }

        /// A typed handle of a member that was started with [`Typed`]`<M>`.
        pub fn from_node(node: Node) -> Self {
            Self { node, machine: PhantomData }
        }

        /// The untyped handle, for everything but commands and queries.
        pub fn node(&self) -> &Node {
            &self.node
        }

        /// Runs a command: see [`Node::propose`].
        pub async fn propose(&self, command: &M::Command) -> Result<M::Reply, TypedRequestError> {
            let buffer = encode_command(command).map_err(TypedRequestError::NotSent)?;
            // Checked before it is logged: a command that cannot be decoded would stop every
            // member, on every start.
            decode::<M::Command>(buffer.as_slice()).map_err(TypedRequestError::NotSent)?;
            let reply = self.node.propose(buffer).await?;
            decode_reply(&reply.bytes).map_err(TypedRequestError::NoReply)
        }

        /// Runs a linearizable query: see [`Node::read`].
        pub async fn read(&self, query: &M::Query) -> Result<M::QueryReply, TypedRequestError> {
            let query = encode(query).map_err(TypedRequestError::NotSent)?;
            let reply = self.node.read(query).await?;
            decode_reply(&reply).map_err(TypedRequestError::NoReply)
        }

        /// Runs a query on this member's machine, which may be stale: see [`Node::read_local`].
        pub async fn read_local(
            &self,
            query: &M::Query,
        ) -> Result<TypedLocalRead<M::QueryReply>, TypedRequestError> {
            let query = encode(query).map_err(TypedRequestError::NotSent)?;
            let read = self.node.read_local(query).await?;
            let value = decode_reply(&read.bytes).map_err(TypedRequestError::NoReply)?;
            Ok(TypedLocalRead { index: read.index, value })
        }
    }

    /// Why a typed request has no reply.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum TypedRequestError {
        /// The request is not done.
        Request(RequestError),
        /// The command or query cannot be encoded and decoded again: nothing was sent.
        NotSent(CodecError),
        /// The command has run, or the query reached the machine, but there is no reply: it
        /// cannot be encoded or decoded, or the member runs a machine of another type.
        NoReply(CodecError),
    }

    impl From<RequestError> for TypedRequestError {
        fn from(error: RequestError) -> Self {
            Self::Request(error)
        }
    }

    impl fmt::Display for TypedRequestError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::Request(error) => write!(f, "{error}"),
                Self::NotSent(error) => write!(f, "not sent: {error}"),
                Self::NoReply(error) => write!(f, "no reply: {error}"),
            }
        }
    }

    impl Error for TypedRequestError {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            match self {
                Self::Request(error) => Some(error),
                Self::NotSent(error) | Self::NoReply(error) => Some(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Words(Vec<String>);

    impl TypedMachine for Words {
        type Command = String;
        type Reply = u64;
        type Query = u64;
        type QueryReply = Option<String>;
        type Snapshot = Vec<String>;

        fn apply(&mut self, index: Index, word: String) -> Result<u64, MachineError> {
            self.0.push(word);
            Ok(index)
        }

        fn query(&self, number: u64) -> Result<Option<String>, MachineError> {
            Ok(self.0.get(usize::try_from(number)?).cloned())
        }

        fn snapshot(&self) -> Vec<String> {
            self.0.clone()
        }

        fn install(&mut self, words: Vec<String>) {
            self.0 = words;
        }
    }

    #[test]
    fn values_survive_the_log_and_snapshots_of_any_chunk_size() {
        let mut machine = Typed(Words::default());
        let long = "x".repeat(3 * CHUNK_BYTES);
        for word in ["one", &long] {
            let reply = machine.apply(7, &encode(&word).unwrap()).unwrap();
            assert_eq!(decode_reply::<u64>(&reply).unwrap(), 7);
        }
        let chunks: Vec<Bytes> = machine.snapshot().unwrap().map(Result::unwrap).collect();
        assert!(chunks.len() > 3);
        let mut copy = Typed(Words::default());
        copy.install(&mut chunks.into_iter()).unwrap();
        let reply = copy.query(&encode(&1u64).unwrap()).unwrap();
        assert_eq!(decode_reply::<Option<String>>(&reply).unwrap(), Some(long));
    }

    #[test]
    fn a_query_or_reply_that_cannot_be_encoded_concerns_its_caller_alone() {
        struct Unencodable;
        impl Serialize for Unencodable {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("not a value"))
            }
        }
        assert_eq!(encode_reply(&Unencodable), NO_REPLY);
        let machine = Typed(Words::default());
        let reply = machine.query(&Bytes::from_static(b"\xff")).unwrap();
        assert!(decode_reply::<Option<String>>(&reply).is_err());
    }

    #[test]
    fn bytes_of_another_type_are_an_error() {
        let mut machine = Typed(Words::default());
        assert!(machine.apply(1, &Bytes::from_static(b"\x09short")).is_err());
        let with_rest = Bytes::from_static(b"\x01ab");
        assert!(machine.apply(1, &with_rest).is_err());
        let mut chunks = std::iter::once(Bytes::from_static(b"\x05"));
        assert!(machine.install(&mut chunks).unwrap_err().is::<BadSnapshot>());
        assert!(machine.0.0.is_empty());
    }
}
