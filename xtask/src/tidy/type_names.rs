//! One name for one type: a struct, enum or trait name is defined once in the sources of the
//! workspace, so that a search for it leads to one place.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::{GENERATED, files, name};

/// Names that may be defined more than once, each with its reason.
const SHARED: &[(&str, &str)] = &[];

pub(super) fn check(root: &Path, faults: &mut Vec<String>) -> io::Result<()> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files(&root.join("crates"), "rs")? {
        let name = name(root, &file);
        let is_test = name.ends_with("tests.rs") || name.contains("/tests/");
        if !name.contains("/src/") || is_test || name.starts_with(GENERATED) {
            continue;
        }
        for (number, defined) in defined(&fs::read_to_string(&file)?) {
            places.entry(defined).or_default().push(format!("{name}:{number}"));
        }
    }
    places.retain(|name, places| {
        places.len() > 1 && !SHARED.iter().any(|(shared, _)| shared == name)
    });
    let fault = |(name, places): (String, Vec<String>)| {
        format!("type {name} is defined {} times: {}", places.len(), places.join(", "))
    };
    faults.extend(places.into_iter().map(fault));
    Ok(())
}

/// The types that a file defines before its unit tests, with their lines.
fn defined(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("#[cfg(test)]") {
            break;
        }
        let mut words = line.split_whitespace().peekable();
        words.next_if(|word| word.starts_with("pub"));
        let is_type = words.next().is_some_and(|word| ["struct", "enum", "trait"].contains(&word));
        let Some(rest) = words.next().filter(|_| is_type) else { continue };
        let end = rest.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(rest.len());
        found.push((number + 1, rest[..end].to_owned()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_found() {
        let text = "pub(crate) struct One<T> {\nenum Two {\n// struct Three\npub trait Four: Sized {\n#[cfg(test)]\nstruct Five;";
        let names: Vec<_> = defined(text).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["One", "Two", "Four"]);
    }
}
