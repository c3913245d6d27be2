//! Where the demo's members keep their data, for as long as it runs.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Otherwise it was there before and stays, emptied of what was ours.
    made: bool,
}

impl Directory {
    /// A new one under the system's place for such things, or the given one if it is empty.
    pub(super) fn take(given: Option<&Path>) -> Result<Self, Failure> {
        match given {
            Some(path) => Self::given(path),
            None => Self::fresh(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn remove(self) -> Result<(), Failure> {
        let removed = if self.made { fs::remove_dir_all(&self.path) } else { empty(&self.path) };
        removed.map_err(|why| {
            Failure::because(&format!("cannot remove {}", self.path.display()), &why)
        })
    }

    fn given(path: &Path) -> Result<Self, Failure> {
        let unusable =
            |why: io::Error| Failure::because(&format!("cannot use {}", path.display()), &why);
        let made = match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
            Ok(true) => false,
            Ok(false) => {
                return Err(Failure::usage(format!(
                    "{} is not empty, and the demo removes what is in its directory; name another",
                    path.display()
                )));
            }
            Err(why) if why.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(path).map_err(unusable)?;
                true
            }
            Err(why) => return Err(unusable(why)),
        };
        // Members are started elsewhere than here.
        let path = fs::canonicalize(path).map_err(unusable)?;
        Ok(Self { path, made })
    }

    fn fresh() -> Result<Self, Failure> {
        let base = std::env::temp_dir();
        let process = std::process::id();
        for attempt in 0..100 {
            let path = base.join(format!("quorate-demo-{process}-{attempt}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, made: true }),
                Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
                Err(why) => {
                    let what =
                        format!("cannot make {}; name another place with --dir", path.display());
                    return Err(Failure::because(&what, &why));
                }
            }
        }
        Err(Failure::failed(format!("{} is full of old demos; remove them", base.display())))
    }
}

fn empty(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_others_is_removed() {
        let fresh = Directory::take(None).unwrap();
        let path = fresh.path().to_path_buf();
        fs::write(path.join("note"), "mine").unwrap();
        let refused = Directory::take(Some(&path)).unwrap_err();
        assert!(refused.to_string().contains("is not empty"), "{refused}");
        fs::remove_file(path.join("note")).unwrap();
        let again = Directory::take(Some(&path)).unwrap();
        fs::create_dir(path.join("m1")).unwrap();
        again.remove().unwrap();
        assert!(path.exists() && fs::read_dir(&path).unwrap().next().is_none());
        fresh.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_was_made_is_removed() {
        let fresh = Directory::take(None).unwrap();
        let inner = fresh.path().join("a");
        let made = Directory::take(Some(&inner)).unwrap();
        made.remove().unwrap();
        assert!(!inner.exists());
        fresh.remove().unwrap();
    }
}
