//! Entry points for the fuzz targets in `fuzz/`. Not part of the public API.

use bytes::Bytes;

use crate::wal::record::RecordHeader;

/// Decodes the body of a record. The first byte chooses the parts that the body has.
pub fn decode_record_body(bytes: &[u8]) {
    if let Some((parts, body)) = bytes.split_first() {
        let header = RecordHeader::for_body(u32::from(*parts), body);
        let _ = header.decode_body(Bytes::copy_from_slice(body));
    }
}
