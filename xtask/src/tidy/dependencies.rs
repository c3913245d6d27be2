//! Dependencies between the crates of this workspace point one way, and the core has almost none.

use std::fs;
use std::io;
use std::path::Path;

/// Which crates of ours each crate may depend on, outside its tests. Every crate is listed.
const ALLOWED: &[(&str, &[&str])] = &[
    ("crates/core", &[]),
    ("crates/proto", &[]),
    ("crates/storage", &["quorate-core"]),
    ("crates/node", &["quorate-core", "quorate-storage"]),
    // Only the feature `machine` of kv needs `quorate`, for the trait that it implements.
    ("crates/kv", &["quorate-storage", "quorate"]),
    ("crates/sim", &["quorate-core", "quorate-storage", "quorate"]),
    ("crates/bench", &["quorate", "quorate-core"]),
    (
        "crates/server",
        &["quorate", "quorate-core", "quorate-kv", "quorate-proto", "quorate-storage"],
    ),
    ("crates/cli", &["quorate-proto", "quorate-server"]),
    ("xtask", &[]),
];

/// What core may always depend on.
const CORE_DEPENDENCIES: &[&str] = &["bytes"];
/// What core may depend on behind a feature.
const CORE_OPTIONAL_DEPENDENCIES: &[&str] = &["serde"];

pub(super) fn check(root: &Path, faults: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(root.join("crates"))? {
        let folder = format!("crates/{}", entry?.file_name().to_string_lossy());
        if !ALLOWED.iter().any(|(listed, _)| *listed == folder) {
            faults.push(format!("{folder} is not listed in xtask/src/tidy/dependencies.rs"));
        }
    }
    for (folder, allowed) in ALLOWED {
        let manifest = fs::read_to_string(root.join(folder).join("Cargo.toml"))?;
        check_manifest(folder, allowed, &manifest, faults);
    }
    Ok(())
}

fn check_manifest(folder: &str, allowed: &[&str], manifest: &str, faults: &mut Vec<String>) {
    let mut section = "";
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
            continue;
        }
        let Some((key, value)) = line.split_once(['=', '.']) else { continue };
        let key = key.trim();
        let is_dependency = section == "dependencies" || section.ends_with(".dependencies");
        if !is_dependency || key.is_empty() || key.starts_with('#') {
            continue;
        }
        if key.starts_with("quorate") && !allowed.contains(&key) {
            faults.push(format!("{folder} must not depend on {key}"));
        }
        let optional = value.contains("optional = true");
        let fits_core = CORE_DEPENDENCIES.contains(&key)
            || optional && CORE_OPTIONAL_DEPENDENCIES.contains(&key);
        if folder == "crates/core" && !fits_core {
            faults.push(format!("{folder} must not depend on {key}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(folder: &str, allowed: &[&str], manifest: &str) -> Vec<String> {
        let mut faults = Vec::new();
        check_manifest(folder, allowed, manifest, &mut faults);
        faults
    }

    #[test]
    fn forbidden_dependencies_are_found() {
        let manifest =
            "[dependencies]\nquorate.workspace = true\n[dev-dependencies]\nquorate-sim = 1\n";
        assert_eq!(faults("crates/cli", &[], manifest), ["crates/cli must not depend on quorate"]);
        assert!(faults("crates/cli", &["quorate"], manifest).is_empty());
        let unix = "[target.'cfg(unix)'.dependencies]\nquorate.workspace = true\n";
        assert_eq!(faults("crates/cli", &[], unix).len(), 1);
    }

    #[test]
    fn core_stays_without_dependencies() {
        let serde = "[dependencies]\nbytes.workspace = true\nserde = { optional = true }\n";
        assert!(faults("crates/core", &[], serde).is_empty());
        assert_eq!(faults("crates/core", &[], "[dependencies]\nserde = \"1\"\n").len(), 1);
    }
}
