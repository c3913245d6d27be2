//! What goes over the wire between servers and clients: etcd's API, gRPC's health checks
//! and Quorate's own [`quorate::v1`], as types, servers and clients.
//!
//! The words are those of the files in `proto/`; the code is generated from them and
//! checked in, so that nobody needs a compiler for them. After a change there run
//! `cargo run -p xtask -- proto`. What the messages mean to a server is not known here.

#![allow(
    clippy::too_many_lines,
    unused_qualifications,
    reason = "generated code: full paths, and one function per service that routes every call"
)]

/// Keys, leases, members, maintenance and users: etcd's main services.
pub mod etcdserverpb {
    include!("generated/etcdserverpb.rs");
}

/// Keys and what happens to them.
pub mod mvccpb {
    include!("generated/mvccpb.rs");
}

/// Users and roles.
pub mod authpb {
    include!("generated/authpb.rs");
}

/// Locks among clients.
pub mod v3lockpb {
    include!("generated/v3lockpb.rs");
}

/// Elections among clients.
pub mod v3electionpb {
    include!("generated/v3electionpb.rs");
}

pub mod grpc {
    pub mod health {
        /// gRPC's health checks.
        pub mod v1 {
            include!("generated/grpc.health.v1.rs");
        }
    }
}

pub mod quorate {
    /// What etcd has no words for: goals, plans, joint memberships.
    pub mod v1 {
        include!("generated/quorate.v1.rs");
    }
}

/// All of the above as an encoded `google.protobuf.FileDescriptorSet`, with the names of
/// fields as they stand in `proto/`: for reflection, and for JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");
