//! An etcd-compatible server that the demo runs instead of, or beside, Quorate's own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::CliError;

#[derive(Clone, Debug)]
pub(super) struct OtherProgram {
    pub(super) path: PathBuf,
    /// The name of the file.
    pub(super) name: String,
    pub(super) version: String,
}

impl OtherProgram {
    /// A path, or the name of a program in `$PATH`. It must run.
    pub(super) fn find(path: &Path) -> Result<Self, CliError> {
        let output = Command::new(path).arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(|error| {
            CliError::failed(format!(
                "cannot run {}: {error}; install it (Debian: apt install etcd-server), or give \
                 its path",
                path.display()
            ))
        })?;
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let version = version(&String::from_utf8_lossy(&output.stdout));
        Ok(Self { path: path.to_path_buf(), name, version })
    }
}

/// The last word of the first line, as in `etcd Version: 3.4.23`.
fn version(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.split_whitespace().next_back().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_on_the_first_line() {
        assert_eq!(version("etcd Version: 3.4.23\nGit SHA: x\n"), "3.4.23");
        assert_eq!(version("quorate 0.1.0\n"), "0.1.0");
        assert_eq!(version(""), "");
    }

    #[test]
    fn a_missing_program_is_an_error_that_says_what_to_do() {
        let error = OtherProgram::find(Path::new("no-such-program")).unwrap_err().to_string();
        assert!(error.contains("no-such-program") && error.contains("install it"), "{error}");
    }
}
