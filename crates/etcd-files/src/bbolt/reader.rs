//! Reads a bbolt database, page by page. Every page is checked before it is used, and no page is
//! read twice in a scan, so that a hostile file costs no more memory and time than an honest one
//! of its size.

use std::io::{Read, Seek, SeekFrom};

use bytes::{Buf, Bytes};

use super::{
    BRANCH, ELEMENT_BYTES, IS_BUCKET, LEAF, MAGIC, META, META_BYTES, PAGE_HEADER_BYTES, VERSION,
    fnv,
};
use crate::error::{DamagePlace, EtcdFileError};

/// A bbolt database.
#[derive(Debug)]
pub struct BboltFile<F> {
    file: F,
    page_bytes: u64,
    /// The root page of the bucket that has the other buckets.
    root: u64,
    /// All pages in use are below this one.
    high_water: u64,
}

/// A bucket of the top level.
#[derive(Clone, Debug)]
pub struct BboltBucket {
    /// Its name.
    pub name: Vec<u8>,
    /// The page and the position in it where the bucket is defined.
    place: DamagePlace,
    contents: BucketContents,
}

#[derive(Clone, Debug)]
enum BucketContents {
    Root(u64),
    /// A small bucket is stored in the page of its name.
    Inline(Bytes),
}

/// A meta page.
struct MetaPage {
    page_bytes: u64,
    root: u64,
    high_water: u64,
    transaction: u64,
}

impl<F: Read + Seek> BboltFile<F> {
    /// Opens the database in the first `bytes` bytes of a file.
    pub fn open(mut file: F, bytes: u64) -> Result<Self, EtcdFileError> {
        let first = read_meta(&mut file, bytes, 0)?;
        let second = match &first {
            Some(first) => read_meta(&mut file, bytes, first.page_bytes)?,
            // The page size is not known if the first meta page is damaged.
            None => {
                let sizes = PAGE_BYTES_BITS.map(|bits| 1u64 << bits);
                let mut found = None;
                for page_bytes in sizes {
                    let meta = read_meta(&mut file, bytes, page_bytes)?;
                    found = found.or(meta.filter(|meta| meta.page_bytes == page_bytes));
                }
                found
            }
        };
        let newest = first.into_iter().chain(second).max_by_key(|meta| meta.transaction);
        let Some(MetaPage { page_bytes, root, high_water, .. }) = newest else {
            return Err(without_meta(&mut file, bytes)?);
        };
        let expected = high_water.saturating_mul(page_bytes);
        if bytes < expected {
            return Err(EtcdFileError::Truncated { bytes, expected });
        }
        Ok(Self { file, page_bytes, root, high_water })
    }

    /// The size of the database: as etcd's tools report it.
    pub fn bytes(&self) -> u64 {
        self.high_water * self.page_bytes
    }

    /// The buckets of the top level, by name.
    pub fn buckets(&mut self) -> Result<Vec<BboltBucket>, EtcdFileError> {
        let mut buckets = Vec::new();
        let root = BboltBucket {
            name: Vec::new(),
            place: DamagePlace::Page(self.root),
            contents: BucketContents::Root(self.root),
        };
        self.walk(&root, &mut |place, is_bucket, name, value| {
            let problem = |problem: &str| EtcdFileError::damaged(place.clone(), problem);
            if !is_bucket {
                return Err(problem("a row outside of all buckets"));
            }
            if buckets.len() == BUCKETS_MAX {
                return Err(problem("too many buckets"));
            }
            let mut header = value;
            let root = header.try_get_u64_le().map_err(|_| problem("a bucket without its root"))?;
            header.try_get_u64_le().map_err(|_| problem("a bucket without its root"))?;
            let contents = match root {
                0 => BucketContents::Inline(Bytes::copy_from_slice(header)),
                root => BucketContents::Root(root),
            };
            buckets.push(BboltBucket { name: name.to_vec(), place: place.clone(), contents });
            Ok(())
        })?;
        Ok(buckets)
    }

    /// Visits the rows of a bucket in the order of their keys.
    pub fn scan<E: From<EtcdFileError>>(
        &mut self,
        bucket: &BboltBucket,
        visit: &mut VisitRow<'_, E>,
    ) -> Result<(), E> {
        self.walk(bucket, &mut |place, is_bucket, key, value| {
            if is_bucket {
                return Err(
                    EtcdFileError::damaged(place.clone(), "a bucket within a bucket").into()
                );
            }
            visit(key, value)
        })
    }

    fn walk<E: From<EtcdFileError>>(
        &mut self,
        bucket: &BboltBucket,
        visit: &mut VisitElement<'_, E>,
    ) -> Result<(), E> {
        let mut order = KeyOrder::default();
        let root = match &bucket.contents {
            BucketContents::Root(root) => *root,
            BucketContents::Inline(page) => {
                let page = PageView { id: None, place: bucket.place.clone(), bytes: page };
                return page.visit_leaf(&mut order, visit);
            }
        };
        let mut seen = SeenPages::new(self.high_water);
        // The pages still to visit, the next one last.
        let mut next = vec![root];
        let mut run = Vec::new();
        while let Some(id) = next.pop() {
            self.read_run(id, &mut seen, &mut run)?;
            let page = PageView { id: Some(id), place: DamagePlace::Page(id), bytes: &run };
            match page.flags() {
                LEAF => page.visit_leaf(&mut order, visit)?,
                BRANCH => next.extend(page.children()?.into_iter().rev()),
                flags => {
                    let problem = format!("flags {flags:#x} are not those of a branch or leaf");
                    return Err(page.problem(problem).into());
                }
            }
        }
        Ok(())
    }

    /// Reads a page and those that it continues on.
    fn read_run(
        &mut self,
        id: u64,
        seen: &mut SeenPages,
        run: &mut Vec<u8>,
    ) -> Result<(), EtcdFileError> {
        let problem = |problem: String| EtcdFileError::damaged(DamagePlace::Page(id), problem);
        // The first two pages are meta pages.
        if id < 2 || id >= self.high_water {
            let last = self.high_water.saturating_sub(1);
            return Err(problem(format!("the database has pages 2 to {last}")));
        }
        self.file.seek(SeekFrom::Start(id * self.page_bytes))?;
        run.clear();
        (&mut self.file).take(self.page_bytes).read_to_end(run)?;
        let mut header = &run[..];
        let stored = header.try_get_u64_le().unwrap_or_default();
        if stored != id {
            return Err(problem(format!("its header says that it is page {stored}")));
        }
        let overflow = u64::from(header.get(4..8).map_or(0, |mut bytes| bytes.get_u32_le()));
        let pages = overflow + 1;
        if pages > self.high_water - id || pages * self.page_bytes > RUN_BYTES_MAX {
            return Err(problem(format!("it continues on {overflow} pages, which is too many")));
        }
        if !seen.add(id, pages) {
            return Err(problem("two other pages refer to it".to_owned()));
        }
        (&mut self.file).take(overflow * self.page_bytes).read_to_end(run)?;
        if run.len() as u64 != pages * self.page_bytes {
            return Err(problem("it cannot be read whole".to_owned()));
        }
        Ok(())
    }
}

/// Called with key and value.
type VisitRow<'a, E> = dyn FnMut(&[u8], &[u8]) -> Result<(), E> + 'a;

/// Called with the place, whether the element is a bucket, the key and the value.
type VisitElement<'a, E> = dyn FnMut(&DamagePlace, bool, &[u8], &[u8]) -> Result<(), E> + 'a;

/// A page with those that it continues on, or an inline page.
struct PageView<'a> {
    id: Option<u64>,
    place: DamagePlace,
    bytes: &'a [u8],
}

impl PageView<'_> {
    fn flags(&self) -> u16 {
        self.bytes.get(8..10).map_or(0, |mut bytes| bytes.get_u16_le())
    }

    fn count(&self) -> usize {
        self.bytes.get(10..12).map_or(0, |mut bytes| usize::from(bytes.get_u16_le()))
    }

    fn problem(&self, problem: impl Into<String>) -> EtcdFileError {
        EtcdFileError::damaged(self.place.clone(), problem)
    }

    fn element_place(&self, element: usize) -> DamagePlace {
        match self.id {
            Some(page) => DamagePlace::Element { page, element: element as u64 },
            None => self.place.clone(),
        }
    }

    fn elements(&self) -> Result<&[u8], EtcdFileError> {
        let end = PAGE_HEADER_BYTES + self.count() * ELEMENT_BYTES;
        let elements = self.bytes.get(PAGE_HEADER_BYTES..end);
        elements.ok_or_else(|| self.problem(format!("{} elements do not fit", self.count())))
    }

    fn children(&self) -> Result<Vec<u64>, EtcdFileError> {
        let elements = self.elements()?;
        if elements.is_empty() {
            return Err(self.problem("a branch without children"));
        }
        let child = |element: &[u8]| element.get(8..).map_or(0, |mut bytes| bytes.get_u64_le());
        Ok(elements.chunks_exact(ELEMENT_BYTES).map(child).collect())
    }

    fn visit_leaf<E: From<EtcdFileError>>(
        &self,
        order: &mut KeyOrder,
        visit: &mut VisitElement<'_, E>,
    ) -> Result<(), E> {
        if self.flags() != LEAF {
            let problem = format!("flags {:#x} are not those of a leaf", self.flags());
            return Err(self.problem(problem).into());
        }
        let elements = self.elements()?;
        // Keys and values follow the elements in the same order, without overlaps: otherwise a
        // small page could have any amount of rows.
        let mut free_from = PAGE_HEADER_BYTES + elements.len();
        for (number, mut element) in elements.chunks_exact(ELEMENT_BYTES).enumerate() {
            let place = self.element_place(number);
            let problem = |problem: &str| E::from(EtcdFileError::damaged(place.clone(), problem));
            let flags = element.get_u32_le();
            let position = element.get_u32_le() as usize;
            let (key_bytes, value_bytes) = (element.get_u32_le() as usize, element.get_u32_le());
            let key_at = PAGE_HEADER_BYTES + number * ELEMENT_BYTES + position;
            let value_at = key_at + key_bytes;
            let end = value_at + value_bytes as usize;
            let (Some(key), Some(value)) =
                (self.bytes.get(key_at..value_at), self.bytes.get(value_at..end))
            else {
                return Err(problem("key and value lie outside of the page"));
            };
            if key_at < free_from {
                return Err(problem("key and value overlap others"));
            }
            free_from = end;
            if flags > IS_BUCKET {
                return Err(problem("unknown flags"));
            }
            if !order.add(key) {
                return Err(problem("the key is not after the one before it"));
            }
            visit(&place, flags == IS_BUCKET, key, value)?;
        }
        Ok(())
    }
}

/// Keys of a bucket rise, over all its pages.
#[derive(Default)]
struct KeyOrder {
    last: Option<Vec<u8>>,
}

impl KeyOrder {
    fn add(&mut self, key: &[u8]) -> bool {
        match &mut self.last {
            Some(last) if last[..] >= *key => false,
            Some(last) => {
                last.clear();
                last.extend_from_slice(key);
                true
            }
            None => {
                self.last = Some(key.to_vec());
                true
            }
        }
    }
}

/// One bit per page.
struct SeenPages(Vec<u64>);

impl SeenPages {
    /// `pages` is not above what the file can have.
    fn new(pages: u64) -> Self {
        Self(vec![0; (pages / 64 + 1) as usize])
    }

    /// Returns whether none of these pages was seen before.
    fn add(&mut self, first: u64, pages: u64) -> bool {
        (first..first + pages).all(|page| {
            let bit = 1 << (page % 64);
            let Some(word) = self.0.get_mut((page / 64) as usize) else { return false };
            let is_new = *word & bit == 0;
            *word |= bit;
            is_new
        })
    }
}

fn read_meta(
    file: &mut (impl Read + Seek),
    bytes: u64,
    at: u64,
) -> Result<Option<MetaPage>, EtcdFileError> {
    let mut page = [0; PAGE_HEADER_BYTES + META_BYTES + 8];
    if bytes < at + page.len() as u64 {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut page)?;
    let (header, meta) = page.split_at(PAGE_HEADER_BYTES);
    let is_meta = header.get(8..10).is_some_and(|mut flags| flags.get_u16_le() == META);
    Ok(decode_meta(meta).filter(|_| is_meta))
}

fn decode_meta(meta: &[u8]) -> Option<MetaPage> {
    let (covered, mut checksum) = meta.split_at_checked(META_BYTES)?;
    let mut from = covered;
    let magic = from.try_get_u32_le().ok()?;
    let version = from.try_get_u32_le().ok()?;
    let page_bytes = u64::from(from.try_get_u32_le().ok()?);
    let _flags = from.try_get_u32_le().ok()?;
    let root = from.try_get_u64_le().ok()?;
    let _sequence = from.try_get_u64_le().ok()?;
    let _freelist = from.try_get_u64_le().ok()?;
    let high_water = from.try_get_u64_le().ok()?;
    let transaction = from.try_get_u64_le().ok()?;
    let known = magic == MAGIC && version == VERSION && fnv(covered) == checksum.get_u64_le();
    let sizes = PAGE_BYTES_BITS.map(|bits| 1u64 << bits);
    let valid = known && sizes.contains(&page_bytes);
    valid.then_some(MetaPage { page_bytes, root, high_water, transaction })
}

/// What a file without a valid meta page is.
fn without_meta(file: &mut (impl Read + Seek), bytes: u64) -> Result<EtcdFileError, EtcdFileError> {
    let mut head = [0; PAGE_HEADER_BYTES + 4];
    if bytes < head.len() as u64 {
        return Ok(EtcdFileError::NotADatabase);
    }
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut head)?;
    let magic = head.get(PAGE_HEADER_BYTES..).unwrap_or_default();
    Ok(if magic == MAGIC.to_le_bytes() {
        let problem = "neither meta page is valid".to_owned();
        EtcdFileError::Damaged { place: DamagePlace::Page(0), problem }
    } else if magic == MAGIC.to_be_bytes() {
        EtcdFileError::OtherByteOrder
    } else {
        EtcdFileError::NotADatabase
    })
}

/// Page sizes: from 1 KiB to 64 KiB.
const PAGE_BYTES_BITS: [u32; 7] = [10, 11, 12, 13, 14, 15, 16];
/// A page with the pages that it continues on. etcd's largest request is 512 MiB.
const RUN_BYTES_MAX: u64 = 1 << 30;
/// etcd has about a dozen.
const BUCKETS_MAX: usize = 1_000;
