//! A database of etcd: a snapshot, or the file `db` of a stopped member.

use std::collections::HashSet;
use std::io::{self, Read, Seek, SeekFrom};

use sha2::{Digest, Sha256};

use bytes::Bytes;

use crate::bbolt::{BboltBucket, BboltFile};
use crate::error::{DamagePlace, EtcdFileError};
use crate::schema::{
    AUTH_ENABLED, AUTH_REVISION, EtcdAlarm, EtcdLease, EtcdRole, EtcdRow, EtcdUser, decode_revision,
};

/// A database of etcd.
#[derive(Debug)]
pub struct EtcdDatabase<F> {
    file: BboltFile<F>,
    buckets: Vec<BboltBucket>,
}

/// What a database says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct EtcdMarks {
    /// The last log entry that the database contains.
    pub consistent_index: u64,
    /// The term of that entry; 0 before etcd 3.5.
    pub term: u64,
    /// The revision of the last compaction that was requested; 0 for none.
    pub scheduled_compaction: i64,
    /// The revision of the last compaction whose rows are gone; 0 for none.
    pub finished_compaction: i64,
    /// The version of the schema, since etcd 3.6.
    pub storage_version: Option<String>,
    /// The version of the cluster.
    pub cluster_version: Option<String>,
    /// Whether requests are checked.
    pub auth_enabled: bool,
    /// The revision of users and roles; 0 if there were never any.
    pub auth_revision: u64,
}

/// The numbers of `etcdutl snapshot status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdStatus {
    /// A checksum of all buckets.
    pub hash: u32,
    /// The revision of the last row.
    pub revision: i64,
    /// How many keys exist.
    pub total_keys: u64,
    /// The size of the database.
    pub total_bytes: u64,
    /// The version of the schema, since etcd 3.6.
    pub version: Option<String>,
}

impl<F: Read + Seek> EtcdDatabase<F> {
    /// Opens a snapshot and compares its checksum, which must be there.
    pub fn open(mut file: F) -> Result<Self, EtcdFileError> {
        let bytes = file.seek(SeekFrom::End(0))?;
        let Some(database_bytes) = without_checksum(bytes) else {
            // A file that is no database at all is not a database without its checksum.
            BboltFile::open(&mut file, bytes)?;
            return Err(EtcdFileError::ChecksumMissing);
        };
        file.seek(SeekFrom::Start(0))?;
        let mut digest = Sha256::new();
        io::copy(&mut (&mut file).take(database_bytes), &mut digest)?;
        let mut expected = [0; CHECKSUM_BYTES as usize];
        file.read_exact(&mut expected)?;
        if digest.finalize()[..] != expected {
            BboltFile::open(&mut file, database_bytes)?;
            return Err(EtcdFileError::ChecksumMismatch);
        }
        Self::with_bytes(file, database_bytes)
    }

    /// Opens a database; a checksum behind it is ignored.
    pub fn open_unchecked(mut file: F) -> Result<Self, EtcdFileError> {
        let bytes = file.seek(SeekFrom::End(0))?;
        Self::with_bytes(file, without_checksum(bytes).unwrap_or(bytes))
    }

    /// Opens a database, and compares its checksum if there is one.
    pub fn open_with_any_checksum(mut file: F) -> Result<Self, EtcdFileError> {
        let bytes = file.seek(SeekFrom::End(0))?;
        match without_checksum(bytes) {
            Some(_) => Self::open(file),
            None => Self::with_bytes(file, bytes),
        }
    }

    fn with_bytes(file: F, bytes: u64) -> Result<Self, EtcdFileError> {
        let mut file = BboltFile::open(file, bytes)?;
        let buckets = file.buckets()?;
        let is_etcd = buckets.iter().any(|bucket| bucket.name == b"key");
        if is_etcd { Ok(Self { file, buckets }) } else { Err(no_bucket("key")) }
    }

    /// What the database says about itself.
    pub fn marks(&mut self) -> Result<EtcdMarks, EtcdFileError> {
        let mut marks = EtcdMarks::default();
        self.scan("meta", |key, value| {
            let problem = |problem: &str| EtcdFileError::row("meta", key, problem);
            let number = || u64_of(value).ok_or_else(|| problem("the value is not a number"));
            let revision = || {
                let found = decode_revision(value).map(|(main, _, _)| main);
                found.ok_or_else(|| problem("the value is not a revision"))
            };
            match key {
                b"consistent_index" => marks.consistent_index = number()?,
                b"term" => marks.term = number()?,
                b"scheduledCompactRev" => marks.scheduled_compaction = revision()?,
                b"finishedCompactRev" => marks.finished_compaction = revision()?,
                b"storageVersion" => marks.storage_version = text_of(value),
                _ => {}
            }
            Ok(())
        })?;
        self.scan("cluster", |key, value| {
            if key == b"clusterVersion" {
                marks.cluster_version = text_of(value);
            }
            Ok(())
        })?;
        self.scan("auth", |key, value| {
            let problem = |problem: &str| EtcdFileError::row("auth", key, problem);
            match key {
                AUTH_ENABLED => marks.auth_enabled = value == [1],
                AUTH_REVISION => {
                    let number = u64_of(value);
                    marks.auth_revision =
                        number.ok_or_else(|| problem("the value is not a number"))?;
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(marks)
    }

    /// All leases, by id.
    pub fn leases(&mut self) -> Result<Vec<EtcdLease>, EtcdFileError> {
        self.all("lease", EtcdLease::decode)
    }

    /// All alarms.
    pub fn alarms(&mut self) -> Result<Vec<EtcdAlarm>, EtcdFileError> {
        self.all("alarm", |key, _| EtcdAlarm::decode(key))
    }

    /// All users, by name.
    pub fn users(&mut self) -> Result<Vec<EtcdUser>, EtcdFileError> {
        self.all("authUsers", EtcdUser::decode)
    }

    /// All roles, by name.
    pub fn roles(&mut self) -> Result<Vec<EtcdRole>, EtcdFileError> {
        self.all("authRoles", EtcdRole::decode)
    }

    /// The members, each as the JSON text that etcd stores.
    pub fn members(&mut self) -> Result<Vec<Bytes>, EtcdFileError> {
        self.all("members", |_, value| Ok(Bytes::copy_from_slice(value)))
    }

    /// Visits all writes of keys, in the order of their revisions.
    pub fn rows<E: From<EtcdFileError>>(
        &mut self,
        mut visit: impl FnMut(EtcdRow<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let bucket = self.bucket("key").ok_or_else(|| no_bucket("key"))?;
        self.file.scan(&bucket, &mut |key, value| visit(EtcdRow::decode(key, value)?))
    }

    /// The numbers of `etcdutl snapshot status`. Reads and checks the whole file.
    pub fn status(&mut self) -> Result<EtcdStatus, EtcdFileError> {
        let (mut hash, mut revision) = (0, 0);
        let mut keys: HashSet<Box<[u8]>> = HashSet::new();
        for bucket in self.buckets.clone() {
            hash = crc32c::crc32c_append(hash, &bucket.name);
            let has_keys = bucket.name == b"key";
            self.file.scan(&bucket, &mut |key, value| {
                hash = crc32c::crc32c_append(hash, key);
                hash = crc32c::crc32c_append(hash, value);
                if has_keys {
                    let row = EtcdRow::decode(key, value)?;
                    revision = row.main;
                    match row.is_tombstone {
                        true => keys.remove(row.key),
                        false => keys.insert(row.key.into()),
                    };
                }
                Ok::<_, EtcdFileError>(())
            })?;
        }
        let version = self.marks()?.storage_version;
        let (total_keys, total_bytes) = (keys.len() as u64, self.file.bytes());
        Ok(EtcdStatus { hash, revision, total_keys, total_bytes, version })
    }

    fn all<R>(
        &mut self,
        bucket: &str,
        decode: impl Fn(&[u8], &[u8]) -> Result<R, EtcdFileError>,
    ) -> Result<Vec<R>, EtcdFileError> {
        let mut all = Vec::new();
        self.scan(bucket, |key, value| {
            all.push(decode(key, value)?);
            Ok(())
        })?;
        Ok(all)
    }

    /// A bucket that does not exist is an empty one: older versions of etcd lack some.
    fn scan(
        &mut self,
        bucket: &str,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), EtcdFileError>,
    ) -> Result<(), EtcdFileError> {
        match self.bucket(bucket) {
            Some(bucket) => self.file.scan(&bucket, &mut visit),
            None => Ok(()),
        }
    }

    fn bucket(&self, name: &str) -> Option<BboltBucket> {
        self.buckets.iter().find(|bucket| bucket.name == name.as_bytes()).cloned()
    }
}

/// The size of the database in a file of this size that ends with a checksum: a database is a
/// multiple of 512 bytes.
fn without_checksum(bytes: u64) -> Option<u64> {
    (bytes % BLOCK_BYTES == CHECKSUM_BYTES).then(|| bytes - CHECKSUM_BYTES)
}

fn no_bucket(name: &str) -> EtcdFileError {
    let problem = "a bbolt database without this bucket is not one of etcd";
    EtcdFileError::damaged(DamagePlace::Bucket(name.to_owned()), problem)
}

fn u64_of(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_be_bytes)
}

fn text_of(value: &[u8]) -> Option<String> {
    String::from_utf8(value.to_vec()).ok().filter(|text| !text.is_empty())
}

const BLOCK_BYTES: u64 = 512;
const CHECKSUM_BYTES: u64 = 32;
