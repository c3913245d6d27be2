//! From a header block to fields.

use bytes::Bytes;

use super::HpackError;
use super::huffman;
use super::table::{DynamicTable, EntryId, Field, size_of_field};

/// A field of a header block: an entry of the tables, or a literal that was not inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlockField {
    Entry(EntryId),
    Literal(Field),
}

/// Decodes the header blocks of one connection.
#[derive(Debug)]
pub(crate) struct HpackDecoder {
    table: DynamicTable,
    text: Vec<u8>,
}

impl HpackDecoder {
    pub(crate) fn new() -> Self {
        Self { table: DynamicTable::new(), text: Vec::new() }
    }

    /// The same block means the same fields while this does not change.
    pub(crate) fn version(&self) -> u64 {
        self.table.version()
    }

    /// The field of an entry that the last block named.
    pub(crate) fn field(&self, id: EntryId) -> Option<Field> {
        self.table.field(id)
    }

    /// Whether the field of an entry has this name.
    pub(crate) fn field_is(&self, id: EntryId, name: &[u8]) -> bool {
        self.table.name_is(id, name)
    }

    /// Called when the fields of a block are no longer needed: frees what only it took.
    pub(crate) fn end_block(&mut self) {
        self.table.forget_evicted();
        self.text.clear();
        self.text.shrink_to(TEXT_KEPT);
    }

    /// The memory that is kept between blocks, apart from the table itself.
    #[cfg(test)]
    pub(crate) fn kept_bytes(&self) -> usize {
        self.table.evicted_capacity() * size_of::<Field>() + self.text.capacity()
    }

    /// Appends the fields of a block. Those above `size_max` in all are decoded and left out:
    /// returns whether there were any.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        size_max: usize,
        fields: &mut Vec<BlockField>,
    ) -> Result<bool, HpackError> {
        self.table.forget_evicted();
        let mut input = block;
        let mut size = 0usize;
        let mut has_fields = false;
        while let Some(first) = input.first().copied() {
            let field = match first {
                0x80.. => {
                    let index = integer(&mut input, 7)?;
                    BlockField::Entry(self.table.id_of(index)?)
                }
                0x40..0x80 => {
                    let field = self.literal(&mut input, 6)?;
                    match self.table.insert(field.clone()) {
                        Some(id) => BlockField::Entry(id),
                        None => BlockField::Literal(field),
                    }
                }
                0x20..0x40 => {
                    if has_fields {
                        return Err(HpackError::LateResize);
                    }
                    let size_max = integer(&mut input, 5)?;
                    self.table.resize(size_max)?;
                    continue;
                }
                _ => BlockField::Literal(self.literal(&mut input, 4)?),
            };
            has_fields = true;
            size = size.saturating_add(match &field {
                BlockField::Entry(id) => self.table.size_of(*id),
                BlockField::Literal(field) => size_of_field(field.name.len(), field.value.len()),
            });
            if size <= size_max {
                fields.push(field);
            }
        }
        Ok(size > size_max)
    }

    fn literal(&mut self, input: &mut &[u8], prefix: u32) -> Result<Field, HpackError> {
        let name = match integer(input, prefix)? {
            0 => self.string(input)?,
            index => {
                let entry = self.table.field(self.table.id_of(index)?);
                entry.ok_or(HpackError::BadIndex)?.name
            }
        };
        let value = self.string(input)?;
        Ok(Field { name, value })
    }

    fn string(&mut self, input: &mut &[u8]) -> Result<Bytes, HpackError> {
        let first = *input.first().ok_or(HpackError::Truncated)?;
        let length = integer(input, 7)?;
        let (text, rest) = input.split_at_checked(length).ok_or(HpackError::Truncated)?;
        *input = rest;
        if first & 0x80 == 0 {
            return Ok(Bytes::copy_from_slice(text));
        }
        self.text.clear();
        huffman::decode(text, &mut self.text)?;
        Ok(Bytes::copy_from_slice(&self.text))
    }
}

/// An integer whose first byte has this many bits of it.
fn integer(input: &mut &[u8], prefix: u32) -> Result<usize, HpackError> {
    let mut next = || {
        let (first, rest) = input.split_first().ok_or(HpackError::Truncated)?;
        *input = rest;
        Ok(*first)
    };
    let mask = (1u8 << prefix) - 1;
    let first = next()? & mask;
    if first < mask {
        return Ok(usize::from(first));
    }
    let mut value = usize::from(mask);
    for shift in [0, 7, 14, 21] {
        let byte = next()?;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(HpackError::IntegerTooLarge)
}

/// Space for decoded text that is kept.
const TEXT_KEPT: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(
        decoder: &mut HpackDecoder,
        block: &[u8],
    ) -> Result<Vec<(String, String)>, HpackError> {
        let mut fields = Vec::new();
        decoder.decode(block, usize::MAX, &mut fields)?;
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let field = |field: &BlockField| match field {
            BlockField::Entry(id) => decoder.field(*id).unwrap(),
            BlockField::Literal(field) => field.clone(),
        };
        Ok(fields.iter().map(field).map(|it| (text(&it.name), text(&it.value))).collect())
    }

    fn expected(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// RFC 7541, C.4: three requests on one connection, with Huffman codes.
    #[test]
    fn the_requests_of_the_standard_are_decoded() {
        let mut decoder = HpackDecoder::new();
        let first = [
            0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab,
            0x90, 0xf4, 0xff,
        ];
        let request = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "www.example.com"),
        ];
        assert_eq!(fields(&mut decoder, &first).unwrap(), expected(&request));
        let version = decoder.version();
        let second = [0x82, 0x86, 0x84, 0xbe, 0x58, 0x86, 0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf];
        let mut request = request.to_vec();
        request.push(("cache-control", "no-cache"));
        assert_eq!(fields(&mut decoder, &second).unwrap(), expected(&request));
        assert_ne!(decoder.version(), version);
        let version = decoder.version();
        let indexed = [0x82, 0x86, 0x84, 0xbf, 0xbe];
        assert_eq!(fields(&mut decoder, &indexed).unwrap(), expected(&request));
        assert_eq!(decoder.version(), version);
    }

    #[test]
    fn an_entry_that_the_block_evicts_is_still_known() {
        let mut decoder = HpackDecoder::new();
        let value = vec![b'v'; 3_000];
        let insert = |name: u8| {
            // Literal with incremental indexing, new name of one byte, value of 3,000 bytes.
            let mut block = vec![0x40, 1, name, 0x7f];
            block.extend([(3_000 - 127) as u8 & 0x7f | 0x80, ((3_000 - 127) >> 7) as u8]);
            block.extend(&value);
            block
        };
        let (a, b) = (insert(b'a'), insert(b'b'));
        fields(&mut decoder, &a).unwrap();
        // The first entry, then one that evicts it.
        let block = [&[0xbe][..], &b].concat();
        let found = fields(&mut decoder, &block).unwrap();
        assert_eq!((found[0].0.as_str(), found[1].0.as_str()), ("a", "b"));
        assert_eq!(fields(&mut decoder, &[0xbf]), Err(HpackError::BadIndex));
    }

    #[test]
    fn a_list_above_the_limit_is_decoded_and_cut() {
        let mut decoder = HpackDecoder::new();
        let mut found = Vec::new();
        let block = [&[0x40, 1, b'a', 1, b'b'][..], &[0xbe; 10]].concat();
        assert_eq!(decoder.decode(&block, 3 * 34, &mut found), Ok(true));
        assert_eq!(found.len(), 3);
        assert_eq!(decoder.decode(&[0xbe; 3], 3 * 34, &mut found), Ok(false));
    }

    #[test]
    fn malformed_blocks_are_refused() {
        for (block, error) in [
            (&[0x80][..], HpackError::BadIndex),
            (&[0xbe], HpackError::BadIndex),
            (&[0xff, 0x80, 0x80, 0x80, 0x80, 0x01], HpackError::IntegerTooLarge),
            (&[0x40, 1], HpackError::Truncated),
            (&[0x40, 5, b'a'], HpackError::Truncated),
            (&[0x3f, 0xff, 0x7f], HpackError::TableTooLarge),
            (&[0x82, 0x20], HpackError::LateResize),
            (&[0x00, 0x81, 0xff, 0], HpackError::BadHuffman),
        ] {
            let mut decoder = HpackDecoder::new();
            assert_eq!(fields(&mut decoder, block), Err(error), "{block:x?}");
        }
    }
}
