//! The details of a member that its cluster knows, name and addresses, as the opaque bytes that
//! every membership carries.
//!
//! They are JSON, so that they can be read wherever a membership is printed:
//! `{"version":1,"name":"a","peer_urls":["http://a:2380"],"client_urls":[]}`.

use bytes::Bytes;
use quorate::{MemberId, MemberInfo, Membership};
use serde_json::{Value, json};

use crate::url::Url;

/// Name and addresses of a member. What it has not published yet is empty.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct MemberDetails {
    pub(crate) name: String,
    pub(crate) peer_urls: Vec<String>,
    pub(crate) client_urls: Vec<String>,
}

impl MemberDetails {
    /// The details of a member that has not started yet.
    pub(crate) fn expected(name: &str, peer_urls: &[Url]) -> Self {
        let peer_urls = peer_urls.iter().map(Url::to_string).collect();
        Self { name: name.to_owned(), peer_urls, client_urls: Vec::new() }
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
        let Self { name, peer_urls, client_urls } = self;
        let json = json!({
            "version": VERSION, "name": name, "peer_urls": peer_urls, "client_urls": client_urls,
        });
        json.to_string().into()
    }

    /// Bytes of an unknown version give empty details.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let Ok(json) = serde_json::from_slice::<Value>(bytes) else { return Self::default() };
        if json["version"] != VERSION {
            return Self::default();
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| value.as_array().map(|all| all.iter().map(text).collect());
        Self {
            name: text(&json["name"]),
            peer_urls: texts(&json["peer_urls"]).unwrap_or_default(),
            client_urls: texts(&json["client_urls"]).unwrap_or_default(),
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
    info.peer_urls.first().and_then(|url| Url::parse(url).ok()).map(|url| url.address())
}

const VERSION: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_round_trip() {
        let info = MemberDetails {
            name: "a \"quoted\" name".into(),
            peer_urls: vec!["http://h:1".into(), "http://h:2".into()],
            client_urls: vec!["http://h:3".into()],
        };
        assert_eq!(MemberDetails::decode(&info.encode()), info);
        assert!(info.has_started());
        let member = info.in_zone(Bytes::new());
        assert_eq!(address_of(&member), Some("h:1".into()));
    }

    #[test]
    fn unreadable_details_are_empty() {
        for bytes in ["", "x", "{}", "{\"version\":2,\"name\":\"a\"}", "[1]"] {
            assert_eq!(MemberDetails::decode(bytes.as_bytes()), MemberDetails::default());
        }
    }
}
