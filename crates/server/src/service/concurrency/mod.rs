//! etcd's services Lock and Election: queues of keys, each attached to a lease.
//!
//! A caller has the key `name/<lease in hexadecimal>`. Of the keys of a name, the one with the
//! lowest create revision holds the lock or leads; all others wait until every earlier key is
//! deleted. The calls are made of calls of KV and Lease with the credentials of the caller, so
//! that the same rights and limits apply.

pub(crate) mod election;
pub(crate) mod lock;
mod queue;
mod watch_key;
