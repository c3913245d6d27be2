//! The directory for the data of the demo's members.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::CliError;

#[derive(Debug)]
pub(super) struct DemoDirectory {
    path: PathBuf,
    /// The user chose it, so it is not removed.
    keep: bool,
}

impl DemoDirectory {
    /// The given directory, which must be empty, or a new temporary one.
    pub(super) fn create(given: Option<&Path>) -> Result<Self, CliError> {
        match given {
            Some(path) => Self::use_given(path),
            None => Self::create_temporary(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, or returns its path if it is kept.
    pub(super) fn release(self) -> Result<Option<PathBuf>, CliError> {
        if self.keep {
            return Ok(Some(self.path));
        }
        let removed = fs::remove_dir_all(&self.path);
        removed.map(|()| None).map_err(|error| {
            CliError::with_cause(&format!("cannot remove {}", self.path.display()), &error)
        })
    }

    fn use_given(path: &Path) -> Result<Self, CliError> {
        let unusable = |error: io::Error| {
            CliError::with_cause(&format!("cannot use {}", path.display()), &error)
        };
        match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
            Ok(true) => {}
            Ok(false) => {
                return Err(CliError::usage(format!(
                    "{} is not empty; use an empty directory, or one that does not exist",
                    path.display()
                )));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(path).map_err(unusable)?;
            }
            Err(error) => return Err(unusable(error)),
        }
        // The members must find it from any working directory.
        let path = fs::canonicalize(path).map_err(unusable)?;
        Ok(Self { path, keep: true })
    }

    fn create_temporary() -> Result<Self, CliError> {
        let base = std::env::temp_dir();
        let process = std::process::id();
        for attempt in 0..100 {
            let path = base.join(format!("quorate-demo-{process}-{attempt}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, keep: false }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let context = format!(
                        "cannot create {}; use another directory with --data-dir",
                        path.display()
                    );
                    return Err(CliError::with_cause(&context, &error));
                }
            }
        }
        Err(CliError::failed(format!(
            "{} contains 100 directories of old demos; remove them",
            base.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_files_is_refused() {
        let temporary = DemoDirectory::create(None).unwrap();
        let path = temporary.path().to_path_buf();
        fs::write(path.join("note"), "mine").unwrap();
        let error = DemoDirectory::create(Some(&path)).unwrap_err();
        assert!(error.to_string().contains("is not empty"), "{error}");
        assert_eq!(fs::read_to_string(path.join("note")).unwrap(), "mine");
        assert_eq!(temporary.release().unwrap(), None);
        assert!(!path.join("note").exists());
    }

    #[test]
    fn a_given_directory_is_kept() {
        let temporary = DemoDirectory::create(None).unwrap();
        let inner = temporary.path().join("a");
        let given = DemoDirectory::create(Some(&inner)).unwrap();
        fs::create_dir(given.path().join("m1")).unwrap();
        assert!(given.release().unwrap().is_some());
        assert!(inner.join("m1").exists());
        temporary.release().unwrap();
    }
}
