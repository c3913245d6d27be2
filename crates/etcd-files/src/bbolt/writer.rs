//! Writes a bbolt database as one stream, from rows in the order of their keys.
//!
//! The first pages name the last ones, so the rows are read twice: once to decide which page has
//! which rows, and once to write them. Only the first key of each page is kept in between.

use std::fmt;

use bytes::{BufMut, Bytes};

use super::{
    BRANCH, BUCKET_HEADER_BYTES, ELEMENT_BYTES, IS_BUCKET, LEAF, MAGIC, META, NO_FREELIST,
    PAGE_HEADER_BYTES, VERSION, fnv,
};

/// A key and its value.
pub type BboltRow = (Bytes, Bytes);

/// The rows to write. Every call with the same arguments must return the same rows.
pub trait BboltSource {
    /// Why rows cannot be read.
    type Error;

    /// The names of the buckets, in order.
    fn buckets(&self) -> &[&'static str];

    /// The next rows of a bucket: some with keys after `after`, in order; none at the end.
    fn rows(&self, bucket: &str, after: Option<&[u8]>) -> Result<Vec<BboltRow>, Self::Error>;
}

/// Why a database cannot be written.
#[derive(Debug)]
#[non_exhaustive]
pub enum BboltWriteError<E> {
    /// The rows cannot be read.
    Source(E),
    /// A key is longer than bbolt allows, or a value too long for a page.
    TooLarge {
        /// The bucket.
        bucket: &'static str,
        /// The size of the key.
        key_bytes: usize,
        /// The size of the value.
        value_bytes: usize,
    },
    /// The rows were others when they were read again.
    Changed,
}

impl<E: fmt::Display> fmt::Display for BboltWriteError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(error) => write!(f, "{error}"),
            Self::TooLarge { bucket, key_bytes, value_bytes } => write!(
                f,
                "a row of {bucket:?} with a key of {key_bytes} and a value of {value_bytes} bytes \
                 is too large for etcd's database"
            ),
            Self::Changed => write!(f, "the data changed while it was written"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for BboltWriteError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Source(error) => Some(error),
            _ => None,
        }
    }
}

/// A database in pieces of whole pages.
pub struct BboltWriter<S> {
    source: S,
    layout: Vec<BucketLayout>,
    /// The root page, and the pages of the whole file.
    root: Vec<u8>,
    pages: u64,
    next: NextPages,
}

/// The pages of one bucket.
struct BucketLayout {
    name: &'static str,
    /// The value of the bucket in the root page, if it is stored there.
    inline: Option<Vec<u8>>,
    leaves: Vec<PageLayout>,
    /// From the lowest level up to the root, which has one page.
    branches: Vec<Vec<BranchLayout>>,
}

/// A page with those that it continues on.
struct PageLayout {
    first_key: Box<[u8]>,
    id: u64,
    pages: u32,
}

struct BranchLayout {
    page: PageLayout,
    /// How many pages of the level below belong to it.
    children: usize,
}

enum NextPages {
    Head,
    Leaf { bucket: usize, leaf: usize, rows: RowCursor },
    Branches { bucket: usize },
    End,
}

impl<S: BboltSource> BboltWriter<S> {
    /// Reads all rows once and plans the pages.
    pub fn new(source: S) -> Result<Self, BboltWriteError<S::Error>> {
        let mut layout = Vec::new();
        for name in source.buckets() {
            layout.push(plan_bucket(&source, name)?);
        }
        let root_bytes: usize = layout.iter().map(BucketLayout::root_bytes).sum();
        let root_pages = pages_of(PAGE_HEADER_BYTES + root_bytes);
        let mut next_id = ROOT_PAGE + u64::from(root_pages);
        for bucket in &mut layout {
            let branches = bucket.branches.iter_mut().flatten().map(|branch| &mut branch.page);
            for page in bucket.leaves.iter_mut().chain(branches) {
                page.id = next_id;
                next_id += u64::from(page.pages);
            }
        }
        let rows = layout.iter().map(|bucket| {
            (IS_BUCKET, Bytes::from_static(bucket.name.as_bytes()), bucket.root_value().into())
        });
        let root = leaf_page(ROOT_PAGE, root_pages, &rows.collect::<Vec<_>>());
        Ok(Self { source, layout, root, pages: next_id, next: NextPages::Head })
    }

    /// The size of the database.
    pub fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }

    /// The next pages; `None` after the last ones.
    pub fn next_piece(&mut self) -> Result<Option<Bytes>, BboltWriteError<S::Error>> {
        loop {
            match &mut self.next {
                NextPages::Head => {
                    let mut head = meta_page(0, 2, self.pages);
                    head.extend(meta_page(1, 1, self.pages));
                    head.append(&mut self.root);
                    self.next = self.bucket_piece(0);
                    return Ok(Some(head.into()));
                }
                NextPages::Leaf { bucket, leaf, rows } => {
                    let bucket = *bucket;
                    let layout = self.layout.get(bucket).ok_or(BboltWriteError::Changed)?;
                    let Some(planned) = layout.leaves.get(*leaf) else {
                        if rows.take_leaf(&self.source, layout.name)?.is_some() {
                            return Err(BboltWriteError::Changed);
                        }
                        self.next = NextPages::Branches { bucket };
                        continue;
                    };
                    *leaf += 1;
                    let found = rows.take_leaf(&self.source, layout.name)?;
                    let found = found.ok_or(BboltWriteError::Changed)?;
                    let same_key = found.first().is_some_and(|row| row.0[..] == *planned.first_key);
                    if !same_key || pages_of(leaf_bytes(&found)) != planned.pages {
                        return Err(BboltWriteError::Changed);
                    }
                    let rows: Vec<_> =
                        found.into_iter().map(|(key, value)| (0, key, value)).collect();
                    return Ok(Some(leaf_page(planned.id, planned.pages, &rows).into()));
                }
                NextPages::Branches { bucket } => {
                    let bucket = *bucket;
                    let layout = self.layout.get(bucket).ok_or(BboltWriteError::Changed)?;
                    let pages = branch_pages(layout);
                    self.next = self.bucket_piece(bucket + 1);
                    if !pages.is_empty() {
                        return Ok(Some(pages.into()));
                    }
                }
                NextPages::End => return Ok(None),
            }
        }
    }

    /// The first piece of the first bucket from this one on that has pages of its own.
    fn bucket_piece(&self, from: usize) -> NextPages {
        let has_pages = |bucket: &BucketLayout| bucket.inline.is_none();
        match self.layout.iter().skip(from).position(has_pages) {
            Some(skipped) => {
                NextPages::Leaf { bucket: from + skipped, leaf: 0, rows: RowCursor::default() }
            }
            None => NextPages::End,
        }
    }
}

impl BucketLayout {
    /// The value of its row in the root page.
    fn root_value(&self) -> Vec<u8> {
        let mut value = Vec::new();
        if let Some(inline) = &self.inline {
            value.put_u64_le(0);
            value.put_u64_le(0);
            value.extend_from_slice(inline);
            return value;
        }
        let root = match self.branches.last().and_then(|level| level.first()) {
            Some(branch) => branch.page.id,
            None => self.leaves.first().map_or(0, |leaf| leaf.id),
        };
        value.put_u64_le(root);
        value.put_u64_le(0);
        value
    }

    fn root_bytes(&self) -> usize {
        let inline = self.inline.as_ref().map_or(0, Vec::len);
        ELEMENT_BYTES + self.name.len() + BUCKET_HEADER_BYTES + inline
    }
}

/// Reads the rows of a bucket and groups them into leaves.
#[derive(Default)]
struct RowCursor {
    /// Rows that were read and belong to later leaves.
    pending: std::collections::VecDeque<BboltRow>,
    last_key: Option<Bytes>,
    is_end: bool,
}

impl RowCursor {
    /// The rows of the next leaf: as many as fit, and at least two if there are two.
    fn take_leaf<S: BboltSource>(
        &mut self,
        source: &S,
        bucket: &'static str,
    ) -> Result<Option<Vec<BboltRow>>, BboltWriteError<S::Error>> {
        let mut leaf = Vec::new();
        let mut bytes = PAGE_HEADER_BYTES;
        while let Some((key, value)) = self.peek(source, bucket)? {
            bytes += ELEMENT_BYTES + key.len() + value.len();
            let is_full = bytes > PAGE_BYTES && leaf.len() >= ROWS_MIN;
            // The number of elements is stored in 16 bits.
            if is_full || leaf.len() == usize::from(u16::MAX) {
                break;
            }
            leaf.extend(self.pending.pop_front());
        }
        Ok((!leaf.is_empty()).then_some(leaf))
    }

    fn peek<S: BboltSource>(
        &mut self,
        source: &S,
        bucket: &'static str,
    ) -> Result<Option<&BboltRow>, BboltWriteError<S::Error>> {
        if self.pending.is_empty() && !self.is_end {
            let rows = source.rows(bucket, self.last_key.as_deref());
            let rows = rows.map_err(BboltWriteError::Source)?;
            for (key, value) in &rows {
                if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
                    let (key_bytes, value_bytes) = (key.len(), value.len());
                    return Err(BboltWriteError::TooLarge { bucket, key_bytes, value_bytes });
                }
            }
            self.is_end = rows.is_empty();
            self.last_key = rows.last().map(|(key, _)| key.clone());
            self.pending = rows.into();
        }
        Ok(self.pending.front())
    }
}

fn plan_bucket<S: BboltSource>(
    source: &S,
    name: &'static str,
) -> Result<BucketLayout, BboltWriteError<S::Error>> {
    let mut rows = RowCursor::default();
    let mut leaves = Vec::new();
    let mut first_leaf = None;
    while let Some(leaf) = rows.take_leaf(source, name)? {
        let bytes = leaf_bytes(&leaf);
        let first_key = leaf.first().map(|(key, _)| key[..].into()).unwrap_or_default();
        leaves.push(PageLayout { first_key, id: 0, pages: pages_of(bytes) });
        if leaves.len() == 1 {
            first_leaf = Some((leaf, bytes));
        }
    }
    let (leaf, bytes) = first_leaf.unwrap_or((Vec::new(), PAGE_HEADER_BYTES));
    if leaves.len() <= 1 && BUCKET_HEADER_BYTES + bytes <= PAGE_BYTES / 4 {
        let rows: Vec<_> = leaf.into_iter().map(|(key, value)| (0, key, value)).collect();
        let mut inline = leaf_page(0, 1, &rows);
        inline.truncate(bytes);
        return Ok(BucketLayout {
            name,
            inline: Some(inline),
            leaves: Vec::new(),
            branches: Vec::new(),
        });
    }
    let mut branches: Vec<Vec<BranchLayout>> = Vec::new();
    let mut level = group(leaves.iter().map(|leaf| &leaf.first_key));
    while !level.is_empty() {
        let is_root = level.len() == 1;
        let above = match is_root {
            true => Vec::new(),
            false => group(level.iter().map(|branch| &branch.page.first_key)),
        };
        branches.push(std::mem::replace(&mut level, above));
    }
    // One leaf needs no branch.
    if leaves.len() == 1 {
        branches.clear();
    }
    Ok(BucketLayout { name, inline: None, leaves, branches })
}

/// Groups the pages of a level into branches.
fn group<'a>(first_keys: impl Iterator<Item = &'a Box<[u8]>>) -> Vec<BranchLayout> {
    let mut level: Vec<BranchLayout> = Vec::new();
    let mut bytes = 0;
    for key in first_keys {
        let element = ELEMENT_BYTES + key.len();
        match level.last_mut() {
            Some(branch) if bytes + element <= PAGE_BYTES || branch.children < ROWS_MIN => {
                bytes += element;
                branch.children += 1;
                branch.page.pages = pages_of(bytes);
            }
            _ => {
                bytes = PAGE_HEADER_BYTES + element;
                let page = PageLayout { first_key: key.clone(), id: 0, pages: pages_of(bytes) };
                level.push(BranchLayout { page, children: 1 });
            }
        }
    }
    level
}

fn branch_pages(bucket: &BucketLayout) -> Vec<u8> {
    let mut all = Vec::new();
    let mut below: Vec<&PageLayout> = bucket.leaves.iter().collect();
    for level in &bucket.branches {
        let mut children = below.into_iter();
        for branch in level {
            let children: Vec<_> = children.by_ref().take(branch.children).collect();
            all.extend(branch_page(&branch.page, &children));
        }
        below = level.iter().map(|branch| &branch.page).collect();
    }
    all
}

fn branch_page(page: &PageLayout, children: &[&PageLayout]) -> Vec<u8> {
    let mut out = page_header(page.id, BRANCH, children.len(), page.pages);
    let mut key_at = PAGE_HEADER_BYTES + children.len() * ELEMENT_BYTES;
    for child in children {
        out.put_u32_le((key_at - out.len()) as u32);
        out.put_u32_le(child.first_key.len() as u32);
        out.put_u64_le(child.id);
        key_at += child.first_key.len();
    }
    children.iter().for_each(|child| out.extend_from_slice(&child.first_key));
    out.resize(page.pages as usize * PAGE_BYTES, 0);
    out
}

fn leaf_page(id: u64, pages: u32, rows: &[(u32, Bytes, Bytes)]) -> Vec<u8> {
    let mut out = page_header(id, LEAF, rows.len(), pages);
    let mut key_at = PAGE_HEADER_BYTES + rows.len() * ELEMENT_BYTES;
    for (flags, key, value) in rows {
        let position = key_at - out.len();
        out.put_u32_le(*flags);
        out.put_u32_le(position as u32);
        out.put_u32_le(key.len() as u32);
        out.put_u32_le(value.len() as u32);
        key_at += key.len() + value.len();
    }
    for (_, key, value) in rows {
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }
    out.resize(pages as usize * PAGE_BYTES, 0);
    out
}

fn page_header(id: u64, flags: u16, count: usize, pages: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(pages as usize * PAGE_BYTES);
    out.put_u64_le(id);
    out.put_u16_le(flags);
    out.put_u16_le(count as u16);
    out.put_u32_le(pages - 1);
    out
}

fn meta_page(id: u64, transaction: u64, high_water: u64) -> Vec<u8> {
    let mut meta = Vec::new();
    meta.put_u32_le(MAGIC);
    meta.put_u32_le(VERSION);
    meta.put_u32_le(PAGE_BYTES as u32);
    meta.put_u32_le(0);
    meta.put_u64_le(ROOT_PAGE);
    meta.put_u64_le(0);
    meta.put_u64_le(NO_FREELIST);
    meta.put_u64_le(high_water);
    meta.put_u64_le(transaction);
    let mut page = page_header(id, META, 0, 1);
    page.extend_from_slice(&meta);
    page.put_u64_le(fnv(&meta));
    page.resize(PAGE_BYTES, 0);
    page
}

fn leaf_bytes(rows: &[BboltRow]) -> usize {
    let row = |(key, value): &BboltRow| ELEMENT_BYTES + key.len() + value.len();
    PAGE_HEADER_BYTES + rows.iter().map(row).sum::<usize>()
}

fn pages_of(bytes: usize) -> u32 {
    bytes.div_ceil(PAGE_BYTES).max(1) as u32
}

/// What bbolt uses on most machines.
const PAGE_BYTES: usize = 4096;
const ROOT_PAGE: u64 = 2;
/// bbolt's pages have at least two elements, even if they need more than one page.
const ROWS_MIN: usize = 2;
/// bbolt's limit.
const KEY_BYTES_MAX: usize = 32_768;
/// bbolt's limit is higher; positions in a page have 32 bits.
const VALUE_BYTES_MAX: usize = 1 << 30;
