//! etcd's texts and codes about members: the part of `errors` that only services about
//! members need. What ours says beyond etcd's text goes along as metadata.

use tonic::Status;
use tonic::metadata::MetadataValue;

pub(crate) fn bad_urls() -> Status {
    Status::invalid_argument("etcdserver: given member URLs are invalid")
}

pub(crate) fn member_not_found() -> Status {
    Status::not_found("etcdserver: member not found")
}

pub(crate) fn urls_exist() -> Status {
    Status::failed_precondition("etcdserver: Peer URLs already exists")
}

pub(crate) fn not_a_learner() -> Status {
    Status::failed_precondition("etcdserver: can only promote a learner member")
}

pub(crate) fn not_in_sync(reason: &str) -> Status {
    let text = "etcdserver: can only promote a learner member which is in sync with leader";
    with_reason(Status::failed_precondition(text), reason)
}

pub(crate) fn too_many_learners(reason: &str) -> Status {
    let text = "etcdserver: too many learner members in cluster";
    with_reason(Status::failed_precondition(text), reason)
}

pub(crate) fn not_enough_started(reason: &str) -> Status {
    let text = "etcdserver: re-configuration failed due to not enough started members";
    with_reason(Status::failed_precondition(text), reason)
}

pub(crate) fn unhealthy(reason: &str) -> Status {
    with_reason(Status::unavailable("etcdserver: unhealthy cluster"), reason)
}

/// A target that names nobody.
pub(crate) fn bad_target(why: &str) -> Status {
    Status::invalid_argument(format!("quorate: {why}"))
}

/// What no version of this server does yet.
pub(crate) fn unsupported(what: &str) -> Status {
    Status::unimplemented(format!("etcdserver: {what} is not supported by this server yet"))
}

fn with_reason(mut status: Status, reason: &str) -> Status {
    if let Ok(reason) = MetadataValue::try_from(reason) {
        status.metadata_mut().insert("quorate-reason", reason);
    }
    status
}
