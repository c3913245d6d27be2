//! Dependencies between the crates of this workspace point one way, and the core has almost none.

use std::fs;
use std::io;
use std::path::Path;

/// Which crates of ours each crate may depend on, outside its tests. Every crate is listed.
const ALLOWED: &[(&str, &[&str])] = &[
    ("crates/core", &[]),
    ("crates/etcd-files", &[]),
    ("crates/http2", &[]),
    ("crates/proto", &[]),
    ("crates/storage", &["quorate-core"]),
    ("crates/node", &["quorate-core", "quorate-storage"]),
    // Only the feature `machine` of kv needs `quorate`, for the trait that it implements.
    ("crates/kv", &["quorate-storage", "quorate"]),
    ("crates/sim", &["quorate-core", "quorate-storage", "quorate", "quorate-kv"]),
    ("crates/playground", &["quorate-sim"]),
    // Of the server only what counts the instructions of a call.
    (
        "crates/bench",
        &["quorate", "quorate-core", "quorate-kv", "quorate-server", "quorate-storage"],
    ),
    (
        "crates/server",
        &[
            "quorate",
            "quorate-core",
            "quorate-etcd-files",
            "quorate-http2",
            "quorate-kv",
            "quorate-proto",
            "quorate-storage",
        ],
    ),
    ("crates/cli", &["quorate-http2", "quorate-proto", "quorate-server"]),
    ("crates/node/loom", &[]),
    (
        "fuzz",
        &[
            "quorate",
            "quorate-core",
            "quorate-etcd-files",
            "quorate-http2",
            "quorate-kv",
            "quorate-server",
            "quorate-sim",
            "quorate-storage",
        ],
    ),
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
            // A dependency with a section of its own.
            if let Some((kind, name)) =
                section.rsplit_once('.').filter(|(kind, _)| is_checked(kind))
            {
                check_dependency(folder, allowed, name, kind, faults);
            }
            continue;
        }
        let Some((key, value)) = line.split_once(['=', '.']) else { continue };
        let key = key.trim();
        if is_checked(section) && !key.is_empty() && !key.starts_with('#') {
            check_dependency(folder, allowed, key, value, faults);
        }
    }
}

/// Tests may use what they like.
fn is_checked(section: &str) -> bool {
    let (_, kind) = section.rsplit_once('.').unwrap_or(("", section));
    kind == "dependencies" || kind == "build-dependencies"
}

fn check_dependency(
    folder: &str,
    allowed: &[&str],
    name: &str,
    value: &str,
    faults: &mut Vec<String>,
) {
    let optional = value.contains("optional = true");
    let fits_core =
        CORE_DEPENDENCIES.contains(&name) || optional && CORE_OPTIONAL_DEPENDENCIES.contains(&name);
    let is_ours = name.starts_with("quorate");
    if is_ours && !allowed.contains(&name) || folder == "crates/core" && !fits_core {
        faults.push(format!("{folder} must not depend on {name}"));
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
        for own_section in ["[dependencies.quorate-sim]", "[build-dependencies]\nquorate-sim = 1"] {
            assert_eq!(faults("crates/cli", &["quorate"], own_section).len(), 1, "{own_section}");
        }
    }

    #[test]
    fn core_stays_without_dependencies() {
        let serde = "[dependencies]\nbytes.workspace = true\nserde = { optional = true }\n";
        assert!(faults("crates/core", &[], serde).is_empty());
        assert_eq!(faults("crates/core", &[], "[dependencies]\nserde = \"1\"\n").len(), 1);
    }
}
