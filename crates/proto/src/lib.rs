//! The protobuf messages and gRPC services of Quorate: etcd's API, gRPC's health checks and
//! Quorate's own [`quorate::v1`], as generated messages, servers and clients.
//!
//! ```
//! use prost::Message;
//! use quorate_proto::etcdserverpb::PutRequest;
//!
//! let put = PutRequest { key: "greeting".into(), value: "hello".into(), ..Default::default() };
//! let bytes = put.encode_to_vec();
//! assert_eq!(PutRequest::decode(&bytes[..])?.value, "hello");
//! # Ok::<(), prost::DecodeError>(())
//! ```
//!
//! Clients such as [`etcdserverpb::kv_client::KvClient`] and servers such as
//! [`etcdserverpb::kv_server::KvServer`] need a transport, for example `tonic::transport`.
//!
//! The sources are the files in `proto/`. The generated code is checked in, so that a build
//! needs no protobuf compiler. After a change in `proto/` run `cargo run -p xtask -- proto`.
//! The only hand-written code is the `Debug` of messages with secrets and the size of buffers. There are no feature flags.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![allow(
    clippy::too_many_lines,
    unused_qualifications,
    reason = "generated code uses full paths, and one function per service that routes all calls"
)]

/// etcd's main services: keys, watches, leases, members, maintenance and authentication.
#[allow(missing_docs, reason = "generated; most messages are documented by etcd")]
pub mod etcdserverpb {
    include!("generated/etcdserverpb.rs");
}

/// Keys, values and events.
#[allow(missing_docs, reason = "generated; most messages are documented by etcd")]
pub mod mvccpb {
    include!("generated/mvccpb.rs");
}

/// Users, roles and permissions.
#[allow(missing_docs, reason = "generated; most messages are documented by etcd")]
pub mod authpb {
    include!("generated/authpb.rs");
}

/// Locks among clients.
#[allow(missing_docs, reason = "generated; most messages are documented by etcd")]
pub mod v3lockpb {
    include!("generated/v3lockpb.rs");
}

/// Elections among clients.
#[allow(missing_docs, reason = "generated; most messages are documented by etcd")]
pub mod v3electionpb {
    include!("generated/v3electionpb.rs");
}

mod codec;
mod redacted;

/// gRPC's own services.
pub mod grpc {
    /// gRPC's health checking protocol.
    pub mod health {
        /// Version 1 of the protocol.
        #[allow(missing_docs, reason = "generated; documented by gRPC")]
        pub mod v1 {
            include!("generated/grpc.health.v1.rs");
        }
    }
}

/// Quorate's own services.
pub mod quorate {
    /// Membership changes beyond etcd's API: goals, plans, joint memberships.
    pub mod v1 {
        include!("generated/quorate.v1.rs");
    }
}

/// All messages and services as an encoded `google.protobuf.FileDescriptorSet`, with the field
/// names of `proto/`. For gRPC reflection and JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// The Rust in the README is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ProtoReadme;
