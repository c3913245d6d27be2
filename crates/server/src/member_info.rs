//! What the members of a cluster know of each other: name and addresses, as the bytes that
//! stand in every membership.
//!
//! JSON, so that it can be read wherever a membership is shown:
//! `{"version":1,"name":"a","peer_urls":["http://a:2380"],"client_urls":[]}`.

use bytes::Bytes;
use quorate::{MemberId, MemberInfo, Membership};
use serde_json::{Value, json};

use crate::url::Url;

/// A member as its cluster knows it. What it has not said yet is empty.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Info {
    pub(crate) name: String,
    pub(crate) peer_urls: Vec<String>,
    pub(crate) client_urls: Vec<String>,
}

impl Info {
    /// Of one that has yet to start.
    pub(crate) fn expected(name: &str, peer_urls: &[Url]) -> Self {
        let peer_urls = peer_urls.iter().map(Url::to_string).collect();
        Self { name: name.to_owned(), peer_urls, client_urls: Vec::new() }
    }

    pub(crate) fn of(membership: &Membership, id: MemberId) -> Self {
        membership.info(id).map(|info| Self::decode(&info.info)).unwrap_or_default()
    }

    /// It said who it is, so it has run.
    pub(crate) fn has_started(&self) -> bool {
        !self.name.is_empty() && !self.client_urls.is_empty()
    }

    /// Its peers find it at these addresses and no others.
    pub(crate) fn is_at(&self, urls: &[Url]) -> bool {
        let mut known = self.peer_urls.clone();
        let mut urls: Vec<String> = urls.iter().map(Url::to_string).collect();
        known.sort();
        urls.sort();
        known == urls
    }

    pub(crate) fn encode(&self) -> Bytes {
        let Self { name, peer_urls, client_urls } = self;
        let written = json!({
            "version": VERSION, "name": name, "peer_urls": peer_urls, "client_urls": client_urls,
        });
        written.to_string().into()
    }

    /// Nothing is known of a member whose bytes are of a version that is not.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let Ok(read) = serde_json::from_slice::<Value>(bytes) else { return Self::default() };
        if read["version"] != VERSION {
            return Self::default();
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| value.as_array().map(|all| all.iter().map(text).collect());
        Self {
            name: text(&read["name"]),
            peer_urls: texts(&read["peer_urls"]).unwrap_or_default(),
            client_urls: texts(&read["client_urls"]).unwrap_or_default(),
        }
    }

    /// As the membership keeps it, in the zone that it has.
    pub(crate) fn in_zone(&self, zone: Bytes) -> MemberInfo {
        MemberInfo { info: self.encode(), zone }
    }
}

/// Where a member is reached by its peers.
pub(crate) fn address_of(member: &MemberInfo) -> Option<String> {
    let info = Info::decode(&member.info);
    info.peer_urls.first().and_then(|url| Url::parse(url).ok()).map(|url| url.address())
}

const VERSION: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_comes_back() {
        let info = Info {
            name: "a \"quoted\" name".into(),
            peer_urls: vec!["http://h:1".into(), "http://h:2".into()],
            client_urls: vec!["http://h:3".into()],
        };
        assert_eq!(Info::decode(&info.encode()), info);
        assert!(info.has_started());
        let member = info.in_zone(Bytes::new());
        assert_eq!(address_of(&member), Some("h:1".into()));
    }

    #[test]
    fn what_cannot_be_read_says_nothing() {
        for bytes in ["", "x", "{}", "{\"version\":2,\"name\":\"a\"}", "[1]"] {
            assert_eq!(Info::decode(bytes.as_bytes()), Info::default());
        }
    }
}
