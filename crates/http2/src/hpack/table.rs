//! The tables of HPACK: the static one, and the dynamic one that the other side fills.

use std::collections::VecDeque;

use bytes::Bytes;

use super::HpackError;

/// The name and the value of a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: Bytes,
    pub(crate) value: Bytes,
}

impl Field {
    /// Its size as RFC 7541 counts it.
    pub(crate) fn size(&self) -> usize {
        size_of_field(self.name.len(), self.value.len())
    }
}

pub(super) fn size_of_field(name: usize, value: usize) -> usize {
    name + value + FIELD_OVERHEAD
}

const FIELD_OVERHEAD: usize = 32;

/// Identifies one entry of the tables for the life of a connection: the number of a static entry,
/// or a number above those for each entry that the dynamic table ever had.
pub(crate) type EntryId = u64;

/// The dynamic table. Entries that a header block evicts stay available while it is processed.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// The oldest first.
    entries: VecDeque<Field>,
    evicted: Vec<Field>,
    size: usize,
    size_max: usize,
    /// Entries that were ever inserted.
    inserted: u64,
    /// Counts everything that changes what an index means.
    version: u64,
}

impl DynamicTable {
    pub(super) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            evicted: Vec::new(),
            size: 0,
            size_max: TABLE_SIZE,
            inserted: 0,
            version: 0,
        }
    }

    /// Changes when an index may mean another entry.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Called when a header block is no longer needed.
    pub(super) fn forget_evicted(&mut self) {
        self.evicted.clear();
        self.evicted.shrink_to(EVICTED_KEPT);
    }

    #[cfg(test)]
    pub(super) fn evicted_capacity(&self) -> usize {
        self.evicted.capacity()
    }

    /// The entry with this index of both tables.
    pub(super) fn id_of(&self, index: usize) -> Result<EntryId, HpackError> {
        if index == 0 {
            return Err(HpackError::BadIndex);
        }
        if index <= STATIC.len() {
            return Ok(index as u64);
        }
        let age = index - STATIC.len() - 1;
        if age >= self.entries.len() {
            return Err(HpackError::BadIndex);
        }
        Ok(FIRST_DYNAMIC + self.inserted - 1 - age as u64)
    }

    /// The field of an entry that the present header block named.
    pub(super) fn field(&self, id: EntryId) -> Option<Field> {
        if id >= FIRST_DYNAMIC {
            return self.dynamic(id).cloned();
        }
        let (name, value) = STATIC.get(usize::try_from(id).ok()?.checked_sub(1)?)?;
        let (name, value) = (name.as_bytes(), value.as_bytes());
        Some(Field { name: Bytes::from_static(name), value: Bytes::from_static(value) })
    }

    fn dynamic(&self, id: EntryId) -> Option<&Field> {
        // How many entries are newer, and so its place counted from the end.
        let newer = usize::try_from((self.inserted + FIRST_DYNAMIC - 1).checked_sub(id)?).ok()?;
        match self.entries.len().checked_sub(newer + 1) {
            Some(place) => self.entries.get(place),
            None => {
                let place = (self.evicted.len() + self.entries.len()).checked_sub(newer + 1)?;
                self.evicted.get(place)
            }
        }
    }

    /// Whether the field of an entry has this name, which is none of the static table.
    pub(super) fn name_is(&self, id: EntryId, name: &[u8]) -> bool {
        id >= FIRST_DYNAMIC && self.dynamic(id).is_some_and(|field| *field.name == *name)
    }

    /// The size of the field of an entry.
    pub(super) fn size_of(&self, id: EntryId) -> usize {
        if id >= FIRST_DYNAMIC {
            return self.dynamic(id).map_or(0, Field::size);
        }
        let place = usize::try_from(id).unwrap_or(usize::MAX).wrapping_sub(1);
        STATIC.get(place).map_or(0, |(name, value)| size_of_field(name.len(), value.len()))
    }

    /// Inserts a field. `None` if it is larger than the table, which is empty then.
    pub(super) fn insert(&mut self, field: Field) -> Option<EntryId> {
        self.version += 1;
        let size = field.size();
        self.evict_to(self.size_max.saturating_sub(size));
        if size > self.size_max {
            return None;
        }
        self.size += size;
        self.entries.push_back(field);
        self.inserted += 1;
        Some(FIRST_DYNAMIC + self.inserted - 1)
    }

    pub(super) fn resize(&mut self, size_max: usize) -> Result<(), HpackError> {
        if size_max > TABLE_SIZE {
            return Err(HpackError::TableTooLarge);
        }
        self.version += 1;
        self.size_max = size_max;
        self.evict_to(size_max);
        Ok(())
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.size();
            self.evicted.push(oldest);
        }
    }
}

/// Space for evicted entries that is kept.
const EVICTED_KEPT: usize = 16;
/// The size that clients may use: the default.
const TABLE_SIZE: usize = 4_096;
const FIRST_DYNAMIC: EntryId = STATIC.len() as u64 + 1;

/// RFC 7541, appendix A.
pub(super) static STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
