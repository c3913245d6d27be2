//! The only place where our errors become gRPC's: codes, and etcd's exact texts, which
//! clients compare.

use quorate::{Failed, Refused, Unknown};
use quorate_kv::KvError;
use tonic::{Code, Status};

/// What a request that is not done is answered with.
pub(crate) fn failed(why: &Failed) -> Status {
    match why {
        Failed::Refused(Refused::NoLeader) => Status::unavailable("etcdserver: no leader"),
        Failed::Refused(Refused::TooManyRequests { .. }) => {
            Status::resource_exhausted("etcdserver: too many requests")
        }
        Failed::Refused(Refused::Stopped) => Status::unavailable("etcdserver: server stopped"),
        Failed::Refused(Refused::ReadTimedOut) | Failed::Unknown(Unknown::TimedOut) => {
            Status::unavailable("etcdserver: request timed out")
        }
        Failed::Unknown(Unknown::Stopped) => Status::unavailable(
            "etcdserver: request timed out, possibly due to previous leader failure",
        ),
        other => Status::unavailable(format!("etcdserver: {other}")),
    }
}

/// What the data model refused.
pub(crate) fn refused(why: &KvError) -> Status {
    Status::new(code(why), why.to_string())
}

fn code(_why: &KvError) -> Code {
    Code::Unknown
}
