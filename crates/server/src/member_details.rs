//! The details of a member that its cluster knows, name and addresses, as the opaque bytes that
//! every membership carries.
//!
//! They are JSON, so that they can be read wherever a membership is printed:
//! `{"version":1,"name":"a","peer_urls":["http://a:2380"],"client_urls":[]}`.

use bytes::Bytes;
use quorate::{MemberId, MemberInfo, Membership};
use serde_json::{Map, Value, json};

use crate::status::ServiceError;
use crate::url::Url;

/// Name and addresses of a member. What it has not published yet is empty.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct MemberDetails {
    pub(crate) name: String,
    pub(crate) peer_urls: Vec<String>,
    pub(crate) client_urls: Vec<String>,
    /// Fields of later versions. They are kept, so that an older member does not remove them
    /// when it changes a detail.
    pub(crate) other: Map<String, Value>,
}

impl MemberDetails {
    /// The details of a member that has not started yet.
    pub(crate) fn expected(name: &str, peer_urls: &[Url]) -> Self {
        let peer_urls = peer_urls.iter().map(Url::to_string).collect();
        Self { name: name.to_owned(), peer_urls, ..Self::default() }
    }

    pub(crate) fn of(membership: &Membership, id: MemberId) -> Self {
        membership.info(id).map(|info| Self::decode(&info.info)).unwrap_or_default()
    }

    /// Whether it has published its name and client URLs, which it does when it starts.
    pub(crate) fn has_started(&self) -> bool {
        !self.name.is_empty() && !self.client_urls.is_empty()
    }

    /// Whether these are its peer URLs, in any order.
    pub(crate) fn has_peer_urls(&self, urls: &[Url]) -> bool {
        let mut known = self.peer_urls.clone();
        let mut urls: Vec<String> = urls.iter().map(Url::to_string).collect();
        known.sort();
        urls.sort();
        known == urls
    }

    pub(crate) fn encode(&self) -> Bytes {
        let Self { name, peer_urls, client_urls, other } = self;
        let mut fields = other.clone();
        let known = [
            ("version", json!(VERSION)),
            ("name", json!(name)),
            ("peer_urls", json!(peer_urls)),
            ("client_urls", json!(client_urls)),
        ];
        fields.extend(known.map(|(field, value)| (field.to_owned(), value)));
        Value::Object(fields).to_string().into()
    }

    /// Bytes that are not details give empty ones.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let json = serde_json::from_slice::<Value>(bytes).unwrap_or_default();
        let Value::Object(mut other) = json else { return Self::default() };
        if other.remove("version") != Some(json!(VERSION)) {
            return Self::default();
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| value.as_array().map(|all| all.iter().map(text).collect());
        let mut take = |field: &str| other.remove(field).unwrap_or_default();
        let (name, peer_urls) = (text(&take("name")), texts(&take("peer_urls")));
        let client_urls = texts(&take("client_urls"));
        Self {
            name,
            peer_urls: peer_urls.unwrap_or_default(),
            client_urls: client_urls.unwrap_or_default(),
            other,
        }
    }

    /// The details as a membership stores them, with the zone.
    pub(crate) fn in_zone(&self, zone: Bytes) -> MemberInfo {
        MemberInfo { info: self.encode(), zone }
    }
}

/// Where peers reach a member.
pub(crate) fn address_of(member: &MemberInfo) -> Option<String> {
    let info = MemberDetails::decode(&member.info);
    info.peer_urls.first().and_then(|url| Url::parse(url).ok()).map(|url| url.peer_address())
}

/// It stays 1: fields are added, and never change their meaning.
const VERSION: u64 = 1;

/// The peer URLs of a request to add or update a member.
pub(crate) fn parse_peer_urls(urls: &[String]) -> Result<Vec<Url>, ServiceError> {
    if urls.is_empty() {
        return Err(ServiceError::BadPeerUrls);
    }
    // Each of them is compared with those of all members.
    if urls.len() > PEER_URLS_MAX {
        return Err(ServiceError::TooManyPeerUrls { count: urls.len(), limit: PEER_URLS_MAX });
    }
    urls.iter().map(|url| Url::parse(url).map_err(|_| ServiceError::BadPeerUrls)).collect()
}

/// Peer URLs of one member.
const PEER_URLS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_round_trip() {
        let info = MemberDetails {
            name: "a \"quoted\" name".into(),
            peer_urls: vec!["http://h:1".into(), "http://h:2".into()],
            client_urls: vec!["http://h:3".into()],
            other: Map::new(),
        };
        assert_eq!(MemberDetails::decode(&info.encode()), info);
        assert!(info.has_started());
        let member = info.in_zone(Bytes::new());
        assert_eq!(address_of(&member), Some("h:1".into()));
    }

    #[test]
    fn fields_of_later_versions_are_kept() {
        let later = r#"{"version":1,"name":"a","rack":"7","peer_urls":[],"client_urls":[]}"#;
        let details = MemberDetails::decode(later.as_bytes());
        let renamed = MemberDetails { name: "b".into(), ..details };
        let written: Value = serde_json::from_slice(&renamed.encode()).unwrap();
        assert_eq!((&written["rack"], &written["name"]), (&json!("7"), &json!("b")));
    }

    #[test]
    fn unreadable_details_are_empty() {
        for bytes in ["", "x", "{}", "{\"version\":2,\"name\":\"a\"}", "[1]"] {
            assert_eq!(MemberDetails::decode(bytes.as_bytes()), MemberDetails::default());
        }
    }
}
