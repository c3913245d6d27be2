//! Header blocks of requests. The fields of the first call are inserted into the server's table;
//! later calls name them with a byte each, as the calls of other clients do: what a head costs the
//! server is what it costs with them.

use crate::hpack::{put_integer, put_string};

/// What all calls of a connection have in common.
#[derive(Clone, Debug)]
pub struct CallTarget {
    pub is_tls: bool,
    /// The host and the port.
    pub authority: String,
    /// Further fields of each request, with names in lower case.
    pub fields: Vec<(String, String)>,
}

/// The header blocks of one connection.
#[derive(Debug)]
pub(super) struct RequestHeads {
    scheme: u8,
    /// All fields after the path.
    common: Vec<HeadField>,
    /// What the server's table has, the oldest first. Nothing is ever evicted.
    inserted: Vec<HeadField>,
    /// The size of these, as HPACK counts it.
    inserted_bytes: usize,
    table: TableUse,
    /// Blocks that only name fields of the table. Valid until something is inserted.
    known: Vec<(&'static str, Vec<u8>)>,
    /// The last block that was not one of these.
    other: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct HeadField {
    /// The place of the name in the static table, or 0.
    name_index: usize,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// Whether the server's table is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableUse {
    Used,
    /// The server allows less than the usual size: it is told once that its table is not used.
    Ending,
    Unused,
}

impl RequestHeads {
    pub(super) fn new(target: &CallTarget) -> Self {
        let mut common = vec![
            HeadField::new(AUTHORITY, "", &target.authority),
            HeadField::new(0, "te", "trailers"),
            HeadField::new(CONTENT_TYPE, "", "application/grpc"),
        ];
        common.extend(target.fields.iter().map(|(name, value)| HeadField::new(0, name, value)));
        Self {
            scheme: if target.is_tls { SCHEME_HTTPS } else { SCHEME_HTTP },
            common,
            inserted: Vec::new(),
            inserted_bytes: 0,
            table: TableUse::Used,
            known: Vec::new(),
            other: Vec::new(),
        }
    }

    /// The server allows a table of this size.
    pub(super) fn table_size_allowed(&mut self, size: u32) {
        if (size as usize) < TABLE_BYTES && self.table == TableUse::Used {
            self.table = TableUse::Ending;
            self.inserted.clear();
            self.known.clear();
        }
    }

    /// The block of the next call. It must be sent, because it may change the server's table.
    pub(super) fn block(&mut self, path: &'static str) -> &[u8] {
        if let Some(place) = self.known.iter().position(|(known, _)| *known == path) {
            return &self.known[place].1;
        }
        let inserted_before = self.inserted.len();
        let mut block = std::mem::take(&mut self.other);
        block.clear();
        if self.table == TableUse::Ending {
            // A change of the table's size, to 0.
            block.push(0x20);
            self.table = TableUse::Unused;
        }
        block.extend_from_slice(&[METHOD_POST, self.scheme]);
        self.put(&HeadField::new(PATH, "", path), &mut block);
        for place in 0..self.common.len() {
            let field = self.common[place].clone();
            self.put(&field, &mut block);
        }
        if self.inserted.len() > inserted_before {
            self.known.clear();
        } else if self.table == TableUse::Used {
            self.known.push((path, block.clone()));
        }
        self.other = block;
        &self.other
    }

    fn put(&mut self, field: &HeadField, block: &mut Vec<u8>) {
        if let Some(place) = self.inserted.iter().position(|known| known == field) {
            let index = STATIC_ENTRIES + self.inserted.len() - place;
            put_integer(index, 7, 0x80, block);
            return;
        }
        let size = FIELD_OVERHEAD + field.table_name_bytes() + field.value.len();
        let fits = self.inserted_bytes + size <= TABLE_BYTES;
        let is_inserted = self.table == TableUse::Used && fits;
        match is_inserted {
            true => put_integer(field.name_index, 6, 0x40, block),
            false => put_integer(field.name_index, 4, 0, block),
        }
        if field.name_index == 0 {
            put_string(&field.name, block);
        }
        put_string(&field.value, block);
        if is_inserted {
            self.inserted_bytes += size;
            self.inserted.push(field.clone());
        }
    }
}

impl HeadField {
    fn new(name_index: usize, name: &str, value: &str) -> Self {
        Self { name_index, name: name.into(), value: value.into() }
    }

    /// At least the length of its name.
    fn table_name_bytes(&self) -> usize {
        if self.name_index == 0 { self.name.len() } else { STATIC_NAME_BYTES_MAX }
    }
}

const METHOD_POST: u8 = 0x83;
const SCHEME_HTTP: u8 = 0x86;
const SCHEME_HTTPS: u8 = 0x87;
/// Places of names in the static table.
const AUTHORITY: usize = 1;
const PATH: usize = 4;
const CONTENT_TYPE: usize = 31;
const STATIC_ENTRIES: usize = 61;
/// The longest name of those above is `content-type`.
const STATIC_NAME_BYTES_MAX: usize = 12;
/// The default size of tables, and what HPACK adds to each field.
const TABLE_BYTES: usize = 4_096;
const FIELD_OVERHEAD: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::{BlockField, HpackDecoder};

    fn decoded(decoder: &mut HpackDecoder, block: &[u8]) -> Vec<String> {
        let mut fields = Vec::new();
        decoder.decode(block, usize::MAX, &mut fields).unwrap();
        let field = |field: &BlockField| match field {
            BlockField::Entry(id) => decoder.field(*id).unwrap(),
            BlockField::Literal(field) => field.clone(),
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields = fields.iter().map(field);
        fields.map(|it| format!("{}={}", text(&it.name), text(&it.value))).collect()
    }

    fn expected(path: &str, token: &str) -> Vec<String> {
        let path = format!(":path={path}");
        let token = format!("token={token}");
        let fields = [
            ":method=POST",
            ":scheme=http",
            &path,
            ":authority=h:1",
            "te=trailers",
            "content-type=application/grpc",
            &token,
        ];
        fields.map(str::to_owned).into()
    }

    fn heads(token: &str) -> RequestHeads {
        let fields = vec![("token".to_owned(), token.to_owned())];
        RequestHeads::new(&CallTarget { is_tls: false, authority: "h:1".to_owned(), fields })
    }

    #[test]
    fn later_heads_are_short_and_mean_the_same() {
        let (mut heads, mut decoder) = (heads("t"), HpackDecoder::new());
        for (number, path) in ["/a", "/a", "/b", "/a", "/b", "/b", "/a"].into_iter().enumerate() {
            let block = heads.block(path).to_vec();
            assert_eq!(decoded(&mut decoder, &block), expected(path, "t"), "{number}");
            assert!(matches!(number, 0 | 2) || block.len() == 7, "{number}: {block:x?}");
        }
    }

    #[test]
    fn a_field_that_does_not_fit_the_table_is_a_literal() {
        let token = "t".repeat(4_000);
        let (mut heads, mut decoder) = (heads(&token), HpackDecoder::new());
        for path in ["/a", "/b", "/a", "/a"] {
            let block = heads.block(path).to_vec();
            assert_eq!(decoded(&mut decoder, &block), expected(path, &token));
        }
    }

    #[test]
    fn a_small_table_is_not_used() {
        let (mut heads, mut decoder) = (heads("t"), HpackDecoder::new());
        decoded(&mut decoder, heads.block("/a"));
        heads.table_size_allowed(4_096);
        assert_eq!(decoded(&mut decoder, heads.block("/a")), expected("/a", "t"));
        heads.table_size_allowed(100);
        for number in 0..3 {
            let block = heads.block("/a").to_vec();
            assert_eq!(block[0] == 0x20, number == 0);
            assert_eq!(decoded(&mut decoder, &block), expected("/a", "t"));
        }
    }
}
