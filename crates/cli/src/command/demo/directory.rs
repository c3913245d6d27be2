//! Where the demo's members keep their data, for as long as it runs.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Somebody asked for it and may want to look at it.
    stays: bool,
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

    /// Removes it, or says where it stays.
    pub(super) fn release(self) -> Result<Option<PathBuf>, Failure> {
        if self.stays {
            return Ok(Some(self.path));
        }
        let removed = fs::remove_dir_all(&self.path);
        removed.map(|()| None).map_err(|why| {
            Failure::because(&format!("cannot remove {}", self.path.display()), &why)
        })
    }

    fn given(path: &Path) -> Result<Self, Failure> {
        let unusable =
            |why: io::Error| Failure::because(&format!("cannot use {}", path.display()), &why);
        match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
            Ok(true) => {}
            Ok(false) => {
                return Err(Failure::usage(format!(
                    "{} is not empty; name a directory that is, or that does not exist",
                    path.display()
                )));
            }
            Err(why) if why.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(path).map_err(unusable)?;
            }
            Err(why) => return Err(unusable(why)),
        }
        // Members are started elsewhere than here.
        let path = fs::canonicalize(path).map_err(unusable)?;
        Ok(Self { path, stays: true })
    }

    fn fresh() -> Result<Self, Failure> {
        let base = std::env::temp_dir();
        let process = std::process::id();
        for attempt in 0..100 {
            let path = base.join(format!("quorate-demo-{process}-{attempt}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, stays: false }),
                Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
                Err(why) => {
                    let what = format!(
                        "cannot make {}; name another place with --data-dir",
                        path.display()
                    );
                    return Err(Failure::because(&what, &why));
                }
            }
        }
        Err(Failure::failed(format!("{} is full of old demos; remove them", base.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_others_is_touched() {
        let fresh = Directory::take(None).unwrap();
        let path = fresh.path().to_path_buf();
        fs::write(path.join("note"), "mine").unwrap();
        let refused = Directory::take(Some(&path)).unwrap_err();
        assert!(refused.to_string().contains("is not empty"), "{refused}");
        assert_eq!(fs::read_to_string(path.join("note")).unwrap(), "mine");
        assert_eq!(fresh.release().unwrap(), None);
        assert!(!path.join("note").exists());
    }

    #[test]
    fn what_was_asked_for_stays() {
        let fresh = Directory::take(None).unwrap();
        let inner = fresh.path().join("a");
        let given = Directory::take(Some(&inner)).unwrap();
        fs::create_dir(given.path().join("m1")).unwrap();
        assert!(given.release().unwrap().is_some());
        assert!(inner.join("m1").exists());
        fresh.release().unwrap();
    }
}
