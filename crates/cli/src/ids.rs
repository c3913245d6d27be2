//! How ids are printed: member and cluster ids as 16 hex digits, as in the server's logs, so
//! that an id from the command line can be searched there.

pub(crate) fn hex_id(id: u64) -> String {
    format!("{id:016x}")
}

/// `NAME (ID)`, or the id alone for a member without a name.
pub(crate) fn named_id(name: &str, id: u64) -> String {
    if name.is_empty() { hex_id(id) } else { format!("{name} ({})", hex_id(id)) }
}

/// Several ids, for JSON.
pub(crate) fn hex_ids(ids: &[u64]) -> Vec<String> {
    ids.iter().copied().map(hex_id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_sixteen_digits_and_a_name_where_known() {
        assert_eq!(hex_id(0xa1), "00000000000000a1");
        assert_eq!(named_id("m1", u64::MAX), "m1 (ffffffffffffffff)");
        assert_eq!(named_id("", 1), "0000000000000001");
        assert_eq!(hex_ids(&[1, 2]), ["0000000000000001", "0000000000000002"]);
    }
}
