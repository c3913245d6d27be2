//! Replies of a server: whether they are messages, and the texts of errors.

use prost::encoding::{DecodeContext, decode_key, skip_field};
use quorate_http2::client::CallEnd;
use tonic::codegen::http::{HeaderMap, StatusCode};
use tonic::{Code, Status};

use crate::error::status_text;

/// Checks that these are the fields of a message, without looking at their values.
pub(super) fn check_message(mut message: &[u8]) -> Result<(), String> {
    while !message.is_empty() {
        let skipped = decode_key(&mut message)
            .and_then(|(tag, wire)| skip_field(wire, tag, &mut message, DecodeContext::default()));
        skipped.map_err(|error| format!("failed to decode Protobuf message: {error}"))?;
    }
    Ok(())
}

/// Why a request failed, as other commands say it.
pub(super) fn refusal_text(end: &CallEnd<'_>) -> String {
    match end {
        CallEnd::Refused { http_status, fields } => status_text(&status_of(*http_status, fields)),
        CallEnd::Reset(reason) => format!("the server reset the stream: HTTP/2 error {reason}"),
        CallEnd::NotProcessed => "the server closes the connection".to_owned(),
        CallEnd::Malformed(text) => (*text).to_owned(),
        CallEnd::Reply(_) => String::new(),
    }
}

fn status_of(http_status: u16, fields: &HeaderMap) -> Status {
    let mut fields = fields.clone();
    // Not shown, and it may be invalid.
    fields.remove("grpc-status-details-bin");
    match Status::from_header_map(&fields) {
        Some(status) if http_status == 200 || status.code() != Code::Ok => status,
        _ => Status::new(code_of(http_status), without_status(http_status)),
    }
}

fn without_status(http_status: u16) -> String {
    format!("grpc-status header missing, mapped from HTTP status code {http_status}")
}

/// What gRPC makes of a reply without a status of its own.
fn code_of(http_status: u16) -> Code {
    match StatusCode::from_u16(http_status).unwrap_or_default() {
        StatusCode::BAD_REQUEST => Code::Internal,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::Unimplemented,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
        _ => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(http_status: u16, fields: &[(&'static str, &str)]) -> String {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.insert(*name, value.parse().unwrap());
        }
        refusal_text(&CallEnd::Refused { http_status, fields: &map })
    }

    #[test]
    fn refusals_have_the_text_of_other_commands() {
        let refused = [("grpc-status", "7"), ("grpc-message", "etcdserver: permission%20denied")];
        assert_eq!(text(200, &refused), "etcdserver: permission denied");
        let details = [("grpc-status", "14"), ("grpc-status-details-bin", "?")];
        assert_eq!(text(200, &details), Code::Unavailable.description());
        let reason = [("grpc-status", "14"), ("grpc-message", "no"), ("quorate-reason", "so")];
        assert_eq!(text(200, &reason), "no: so");
        assert!(text(503, &[]).ends_with("HTTP status code 503"));
        assert!(text(200, &[]).ends_with("HTTP status code 200"));
    }

    #[test]
    fn messages_are_checked() {
        assert_eq!(check_message(&[]), Ok(()));
        assert_eq!(check_message(&[0x0a, 2, 1, 2, 0x10, 5]), Ok(()));
        for wrong in [&[0x0a, 3, 1, 2][..], &[0x0a], &[0x0f, 1], &[0x00, 1]] {
            assert!(check_message(wrong).is_err(), "{wrong:x?}");
        }
    }
}
