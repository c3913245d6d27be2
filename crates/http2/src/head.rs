//! The head of a request: from the fields of a header block to a checked method, path and headers.
//!
//! The calls of one client have the same few heads. Each is built and checked once; later calls
//! find it by the bytes of their header block, or by the entries of the header table that it names.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Uri};

use crate::hpack::{BlockField, Field, HpackDecoder, HpackError};

/// What a request says before its body, apart from its timeout. Shared by all requests of a
/// connection with the same head.
#[derive(Debug)]
pub struct RequestHead {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    content_length: Option<u64>,
    /// What the application has found out about requests with this head.
    notes: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl RequestHead {
    /// What the application has found out about requests with this head; made with `find_out` for
    /// the first of them.
    pub fn notes<T: Send + Sync + 'static>(&self, find_out: impl FnOnce(&Self) -> T) -> Option<&T> {
        self.notes.get_or_init(|| Arc::new(find_out(self))).downcast_ref()
    }

    pub(crate) fn content_length(&self) -> Option<u64> {
        self.content_length
    }
}

/// The head of one request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedHead {
    pub(crate) head: Arc<RequestHead>,
    /// `grpc-timeout`, which is another one for each call.
    pub(crate) timeout: Option<HeaderValue>,
    /// Whether the head is short, and shared with other calls.
    pub(crate) is_known: bool,
}

/// A header block that could be decoded.
#[derive(Debug)]
pub(crate) enum HeadBlock {
    Request(ReceivedHead),
    /// The fields are too large.
    TooLarge,
    /// The fields are not those of a request.
    Malformed,
}

/// Decodes the heads of one connection.
#[derive(Debug)]
pub(crate) struct HeadDecoder {
    decoder: HpackDecoder,
    fields: Vec<BlockField>,
    key: Vec<u8>,
    /// The most recently used first.
    known: Vec<KnownHead>,
    size_max: usize,
}

#[derive(Debug)]
struct KnownHead {
    /// Names the fields, apart from the timeout.
    key: Box<[u8]>,
    /// The last block with this head that named no other field and changed no table, and the
    /// version of the table.
    block: Option<(Vec<u8>, u64)>,
    head: Arc<RequestHead>,
}

impl HeadDecoder {
    pub(crate) fn new(size_max: usize) -> Self {
        let (fields, key, known) = (Vec::new(), Vec::new(), Vec::new());
        Self { decoder: HpackDecoder::new(), fields, key, known, size_max }
    }

    /// The head of a request.
    pub(crate) fn request(&mut self, block: &[u8]) -> Result<HeadBlock, HpackError> {
        let version = self.decoder.version();
        let is_same = |known: &KnownHead| {
            known.block.as_ref().is_some_and(|(same, at)| *at == version && same == block)
        };
        if let Some(place) = self.known.iter().position(is_same) {
            return Ok(self.use_known(place, None));
        }
        let found = self.decode_request(block, version);
        self.end_block();
        found
    }

    /// Frees what only the last block took.
    fn end_block(&mut self) {
        self.decoder.end_block();
        self.fields.clear();
        self.fields.shrink_to(FIELDS_KEPT);
    }

    /// The same for a block that differs from those before.
    fn decode_request(&mut self, block: &[u8], version: u64) -> Result<HeadBlock, HpackError> {
        if self.decode(block)? {
            return Ok(HeadBlock::TooLarge);
        }
        let timeout = self.make_key();
        let place = match self.known.iter().position(|known| *known.key == *self.key) {
            Some(place) => place,
            None => {
                let Some(head) = self.build() else { return Ok(HeadBlock::Malformed) };
                let head = Arc::new(head);
                if self.key.len() > KEY_BYTES_MAX {
                    return Ok(HeadBlock::Request(ReceivedHead { head, timeout, is_known: false }));
                }
                self.known.truncate(KNOWN_MAX - 1);
                let key = self.key.clone().into();
                self.known.push(KnownHead { key, block: None, head });
                self.known.len() - 1
            }
        };
        if timeout.is_none() && self.decoder.version() == version {
            let (same, at) = self.known[place].block.get_or_insert_default();
            same.clear();
            same.extend_from_slice(block);
            *at = version;
        }
        Ok(self.use_known(place, timeout))
    }

    /// Checks the trailers of a request, which are not used. Whether they are well-formed.
    pub(crate) fn trailers(&mut self, block: &[u8]) -> Result<bool, HpackError> {
        let is_too_large = self.decode(block)?;
        let fields = self.fields.iter().filter_map(|field| self.resolve(field));
        let are_valid = fields.into_iter().all(|field| header_of(&field).is_some());
        self.end_block();
        Ok(are_valid && !is_too_large)
    }

    /// Keeps the tables up to date with a block that is not used.
    pub(crate) fn skip(&mut self, block: &[u8]) -> Result<(), HpackError> {
        let decoded = self.decode(block).map(|_| ());
        self.end_block();
        decoded
    }

    fn decode(&mut self, block: &[u8]) -> Result<bool, HpackError> {
        self.fields.clear();
        self.decoder.decode(block, self.size_max, &mut self.fields)
    }

    fn use_known(&mut self, place: usize, timeout: Option<HeaderValue>) -> HeadBlock {
        self.known[..=place].rotate_right(1);
        let head = Arc::clone(&self.known[0].head);
        HeadBlock::Request(ReceivedHead { head, timeout, is_known: true })
    }

    fn resolve(&self, field: &BlockField) -> Option<Field> {
        match field {
            BlockField::Entry(id) => self.decoder.field(*id),
            BlockField::Literal(field) => Some(field.clone()),
        }
    }

    /// Writes what distinguishes this head into `key`. Returns the timeout, which is not part of it.
    fn make_key(&mut self) -> Option<HeaderValue> {
        self.key.clear();
        let mut timeout = None;
        for field in &self.fields {
            let literal = match field {
                BlockField::Entry(id) if self.decoder.field_is(*id, TIMEOUT) => {
                    self.decoder.field(*id)
                }
                BlockField::Entry(id) => {
                    let field = timeout.as_ref().and_then(|_| self.decoder.field(*id));
                    if field.is_some_and(|field| is_pseudo(&field)) {
                        self.key.extend_from_slice(PSEUDO_AFTER_TIMEOUT);
                    }
                    self.key.extend_from_slice(&id.to_le_bytes());
                    continue;
                }
                BlockField::Literal(field) => Some(field.clone()),
            };
            let Some(Field { name, value }) = literal else { continue };
            if *name == *TIMEOUT
                && timeout.is_none()
                && let Ok(value) = HeaderValue::from_maybe_shared(value.clone())
            {
                timeout = Some(value);
                continue;
            }
            if timeout.is_some() && name.starts_with(b":") {
                self.key.extend_from_slice(PSEUDO_AFTER_TIMEOUT);
            }
            // No entry has the id 0.
            self.key.extend_from_slice(&0u64.to_le_bytes());
            for part in [name, value] {
                self.key.extend_from_slice(&(part.len() as u32).to_le_bytes());
                self.key.extend_from_slice(&part);
            }
        }
        timeout
    }

    /// `None` if the fields are not those of a request (RFC 9113, section 8.3).
    fn build(&self) -> Option<RequestHead> {
        let mut pseudo = PseudoFields::default();
        let mut headers = HeaderMap::with_capacity(self.fields.len());
        let mut has_timeout = false;
        for field in &self.fields {
            let field = self.resolve(field)?;
            if is_pseudo(&field) {
                if !headers.is_empty() || has_timeout {
                    return None;
                }
                pseudo.set(&field)?;
                continue;
            }
            let (name, value) = header_of(&field)?;
            // The first one was taken by `make_key`.
            if name == TIMEOUT_NAME && !has_timeout {
                has_timeout = true;
                continue;
            }
            headers.append(name, value);
        }
        let content_length = match headers.get(header::CONTENT_LENGTH) {
            Some(length) => Some(length.to_str().ok()?.parse().ok()?),
            None => None,
        };
        let (method, uri) = pseudo.into_request(&mut headers)?;
        Some(RequestHead { method, uri, headers, content_length, notes: OnceLock::new() })
    }
}

fn is_pseudo(field: &Field) -> bool {
    field.name.starts_with(b":")
}

/// A field that is not a pseudo-header, if it is one that may be in a request.
fn header_of(field: &Field) -> Option<(HeaderName, HeaderValue)> {
    if field.name.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    let name = HeaderName::from_bytes(&field.name).ok()?;
    let is_allowed = match name {
        header::CONNECTION | header::TRANSFER_ENCODING | header::UPGRADE => false,
        header::TE => *field.value == *b"trailers",
        _ => !matches!(name.as_str(), "keep-alive" | "proxy-connection"),
    };
    let value = HeaderValue::from_maybe_shared(field.value.clone()).ok()?;
    is_allowed.then_some((name, value))
}

#[derive(Debug, Default)]
struct PseudoFields {
    method: Option<Method>,
    scheme: Option<Bytes>,
    authority: Option<Bytes>,
    path: Option<Bytes>,
}

impl PseudoFields {
    fn set(&mut self, field: &Field) -> Option<()> {
        let value = field.value.clone();
        let is_new = match &*field.name {
            b":method" => self.method.replace(Method::from_bytes(&value).ok()?).is_none(),
            b":scheme" => self.scheme.replace(value).is_none(),
            b":authority" => self.authority.replace(value).is_none(),
            b":path" => self.path.replace(value).is_none(),
            _ => false,
        };
        is_new.then_some(())
    }

    fn into_request(self, headers: &mut HeaderMap) -> Option<(Method, Uri)> {
        let method = self.method.filter(|method| *method != Method::CONNECT)?;
        let mut parts = http::uri::Parts::default();
        parts.path_and_query = Some(PathAndQuery::from_maybe_shared(self.path?).ok()?);
        parts.path_and_query.as_ref().filter(|path| !path.as_str().is_empty())?;
        let scheme = Scheme::try_from(&*self.scheme?).ok()?;
        // Some clients send a whole URL as the authority. It is not needed to serve them.
        let authority = self.authority.filter(|authority| !authority.is_empty());
        if let Some(authority) = authority {
            if let Ok(authority) = Authority::from_maybe_shared(authority.clone()) {
                (parts.scheme, parts.authority) = (Some(scheme), Some(authority));
            } else if !headers.contains_key(header::HOST)
                && let Ok(host) = HeaderValue::from_maybe_shared(authority)
            {
                headers.insert(header::HOST, host);
            }
        }
        Some((method, Uri::from_parts(parts).ok()?))
    }
}

const TIMEOUT: &[u8] = b"grpc-timeout";
pub(crate) const TIMEOUT_NAME: HeaderName = HeaderName::from_static("grpc-timeout");
/// Heads of a connection that are remembered.
const KNOWN_MAX: usize = 8;
const KEY_BYTES_MAX: usize = 1_024;
/// Marks a malformed head in its key: the timeout itself is not part of it. No entry has this id.
const PSEUDO_AFTER_TIMEOUT: &[u8] = &u64::MAX.to_le_bytes();
/// Space for fields that is kept from block to block.
const FIELDS_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::encode_field;

    fn block(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in fields {
            encode_field(name.as_bytes(), value.as_bytes(), &mut block);
        }
        block
    }

    fn request(decoder: &mut HeadDecoder, fields: &[(&str, &str)]) -> Option<ReceivedHead> {
        match decoder.request(&block(fields)).unwrap() {
            HeadBlock::Request(head) => Some(head),
            _ => None,
        }
    }

    const CALL: [(&str, &str); 4] =
        [(":method", "POST"), (":scheme", "http"), (":path", "/p.S/M"), (":authority", "host:1")];

    #[test]
    fn heads_are_built_once() {
        let mut decoder = HeadDecoder::new(16_384);
        let with = |more: &[(&'static str, &'static str)]| [&CALL[..], more].concat();
        let plain = request(&mut decoder, &with(&[("te", "trailers")])).unwrap();
        let same = request(&mut decoder, &with(&[("te", "trailers")])).unwrap();
        assert!(Arc::ptr_eq(&plain.head, &same.head) && same.timeout.is_none());
        // The timeout is not part of the head.
        for timeout in ["1S", "999m"] {
            let fields = with(&[("te", "trailers"), ("grpc-timeout", timeout)]);
            let timed = request(&mut decoder, &fields).unwrap();
            assert!(Arc::ptr_eq(&plain.head, &timed.head));
            assert_eq!(timed.timeout.unwrap(), timeout);
        }
        let other = request(&mut decoder, &with(&[("token", "secret")])).unwrap();
        assert!(!Arc::ptr_eq(&plain.head, &other.head));
        assert_eq!(other.head.headers["token"], "secret");
        let (head, uri) = (&plain.head, &plain.head.uri);
        assert_eq!((&head.method, uri.path()), (&Method::POST, "/p.S/M"));
        assert_eq!(uri.authority().unwrap().as_str(), "host:1");
        // Many others, and the first again.
        for number in 0..20 {
            let number = number.to_string();
            let fields = [&CALL[..], &[("number", number.as_str())]].concat();
            assert_eq!(request(&mut decoder, &fields).unwrap().head.headers["number"], *number);
        }
        assert_eq!(decoder.known.len(), KNOWN_MAX);
        let again = request(&mut decoder, &with(&[("te", "trailers")])).unwrap();
        assert!(again.head.headers.contains_key("te"));
    }

    #[test]
    fn the_same_bytes_mean_another_head_when_the_table_has_changed() {
        let mut decoder = HeadDecoder::new(16_384);
        let insert = |value: u8| [&[0x40, 1, b'x', 1, value][..], &block(&[])].concat();
        // Pseudo-headers, and the newest entry of the dynamic table.
        let indexed = [&block(&CALL)[..], &[0xbe]].concat();
        for value in [b'a', b'b', b'b', b'c'] {
            decoder.skip(&insert(value)).unwrap();
            for _ in 0..3 {
                let HeadBlock::Request(found) = decoder.request(&indexed).unwrap() else {
                    panic!("no request");
                };
                assert_eq!(found.head.headers["x"].as_bytes(), [value]);
            }
        }
    }

    /// The timeout is not part of the key.
    #[test]
    fn a_known_head_does_not_make_malformed_ones_valid() {
        let mut decoder = HeadDecoder::new(16_384);
        let timeout = ("grpc-timeout", "1S");
        assert!(request(&mut decoder, &[&CALL[..], &[timeout]].concat()).is_some());
        assert!(request(&mut decoder, &[]).is_none());
        for place in 0..CALL.len() {
            let mut fields = CALL.to_vec();
            fields.insert(place, timeout);
            assert!(request(&mut decoder, &fields).is_none(), "{fields:?}");
        }
        // The same with entries of the dynamic table: the scheme, and the timeout before it.
        let insert =
            [&[0x40, 7][..], b":scheme", &[4], b"http", &[0x40, 12], b"grpc-timeout", &[2]];
        decoder.skip(&[&insert.concat()[..], b"1S"].concat()).unwrap();
        let (method, rest) = (block(&CALL[..1]), block(&CALL[2..]));
        let valid = [&method[..], &[0xbf], &rest, &[0xbe]].concat();
        assert!(matches!(decoder.request(&valid).unwrap(), HeadBlock::Request(_)));
        let malformed = [&method[..], &[0xbe, 0xbf], &rest].concat();
        assert!(matches!(decoder.request(&malformed).unwrap(), HeadBlock::Malformed));
    }

    #[test]
    fn a_block_takes_no_memory_when_it_is_processed() {
        let mut decoder = HeadDecoder::new(16_384);
        // One entry, and its name with an empty value again and again.
        let first = [&[0x40, 100][..], &[b'n'; 100], &[0]].concat();
        let many = [first, [0x7e, 0].repeat(30_000)].concat();
        assert!(matches!(decoder.request(&many).unwrap(), HeadBlock::TooLarge));
        assert!(decoder.fields.capacity() <= FIELDS_KEPT);
        assert!(decoder.decoder.kept_bytes() < 10_000, "{}", decoder.decoder.kept_bytes());
    }

    #[test]
    fn authorities_that_are_none_are_accepted() {
        let mut decoder = HeadDecoder::new(16_384);
        let fields = [CALL[0], CALL[1], CALL[2], (":authority", "http://127.0.0.1:2379")];
        let head = request(&mut decoder, &fields).unwrap().head;
        assert!(head.uri.authority().is_none());
        assert_eq!(head.headers["host"], "http://127.0.0.1:2379");
        assert!(request(&mut decoder, &CALL[..3]).is_some());
    }

    #[test]
    fn malformed_requests_are_refused() {
        let mut decoder = HeadDecoder::new(16_384);
        let cases: [&[(&str, &str)]; 14] = [
            &[],
            &CALL[..2],
            &CALL[1..],
            &[CALL[0], CALL[1], (":path", "")],
            &[CALL[0], CALL[0], CALL[1], CALL[2]],
            &[CALL[0], CALL[1], CALL[2], (":unknown", "x")],
            &[CALL[0], ("te", "trailers"), CALL[1], CALL[2]],
            &[CALL[0], ("grpc-timeout", "1S"), CALL[1], CALL[2]],
            &[CALL[0], CALL[1], CALL[2], ("Upper", "x")],
            &[CALL[0], CALL[1], CALL[2], ("connection", "close")],
            &[CALL[0], CALL[1], CALL[2], ("te", "gzip")],
            &[CALL[0], CALL[1], CALL[2], ("x", "line\nbreak")],
            &[CALL[0], CALL[1], CALL[2], ("content-length", "many")],
            &[(":method", "CONNECT"), CALL[1], CALL[2]],
        ];
        for fields in cases {
            assert!(request(&mut decoder, fields).is_none(), "{fields:?}");
        }
        let long = "x".repeat(20_000);
        let block = block(&[CALL[0], CALL[1], CALL[2], ("x", &long)]);
        assert!(matches!(decoder.request(&block).unwrap(), HeadBlock::TooLarge));
        assert!(request(&mut decoder, &CALL).is_some());
    }

    #[test]
    fn trailers_have_no_pseudo_headers() {
        let mut decoder = HeadDecoder::new(16_384);
        assert!(decoder.trailers(&block(&[("a", "b")])).unwrap());
        assert!(!decoder.trailers(&block(&[(":path", "/")])).unwrap());
        assert!(!decoder.trailers(&block(&[("A", "b")])).unwrap());
    }
}
