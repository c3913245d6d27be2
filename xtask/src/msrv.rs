//! `rust-version` is true: no dependency that a package ships with needs a newer Rust than the
//! package declares. Whether our own code compiles with that Rust is checked by clippy's
//! `incompatible_msrv` and, where that toolchain is installed, by a build with it (`.ci/run`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

pub(crate) fn check(root: &Path) -> io::Result<Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--format-version", "1", "--locked"];
    let output = Command::new(cargo).args(arguments).current_dir(root).output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("cargo metadata failed: {text}")));
    }
    let metadata = serde_json::from_slice(&output.stdout).map_err(io::Error::other)?;
    Ok(faults(&metadata))
}

fn faults(metadata: &Value) -> Vec<String> {
    let packages: BTreeMap<&str, &Value> =
        list(&metadata["packages"]).map(|package| (text(&package["id"]), package)).collect();
    let edges: BTreeMap<&str, Vec<&str>> = list(&metadata["resolve"]["nodes"])
        .map(|node| (text(&node["id"]), shipped(node)))
        .collect();
    let mut faults = Vec::new();
    for id in list(&metadata["workspace_members"]).map(text) {
        let Some(own) = packages.get(id) else { continue };
        let Some(declared) = rust_version(own) else {
            faults.push(format!("{} declares no rust-version", text(&own["name"])));
            continue;
        };
        for dependency in reachable(id, &edges) {
            let Some(package) = packages.get(dependency) else { continue };
            if rust_version(package).is_some_and(|needed| needed > declared) {
                faults.push(format!(
                    "{} declares rust-version {}, but {} {} needs {}",
                    text(&own["name"]),
                    text(&own["rust_version"]),
                    text(&package["name"]),
                    text(&package["version"]),
                    text(&package["rust_version"]),
                ));
            }
        }
    }
    faults
}

/// Dependencies that are compiled for users on any platform: neither for tests nor for building.
fn shipped(node: &Value) -> Vec<&str> {
    let is_normal = |dependency: &&Value| {
        let everywhere = |kind: &Value| kind["kind"].is_null() && kind["target"].is_null();
        list(&dependency["dep_kinds"]).any(everywhere)
    };
    list(&node["deps"]).filter(is_normal).map(|dependency| text(&dependency["pkg"])).collect()
}

fn reachable<'a>(from: &'a str, edges: &BTreeMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(id) = todo.pop() {
        for next in edges.get(id).into_iter().flatten() {
            if seen.insert(*next) {
                todo.push(next);
            }
        }
    }
    seen
}

/// `1.88` and `1.88.0` are equal.
fn rust_version(package: &Value) -> Option<(u32, u32, u32)> {
    let mut numbers = text(&package["rust_version"]).split('.').map(|part| part.parse().ok());
    let major = numbers.next()??;
    let mut next = || numbers.next().flatten().unwrap_or(0);
    Some((major, next(), next()))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dependency_that_needs_a_newer_rust_is_found() {
        let metadata = json!({
            "workspace_members": ["own"],
            "packages": [
                {"id": "own", "name": "own", "version": "1", "rust_version": "1.88"},
                {"id": "a", "name": "a", "version": "2", "rust_version": "1.88.0"},
                {"id": "b", "name": "b", "version": "3", "rust_version": "1.90"},
                {"id": "c", "name": "c", "version": "4", "rust_version": "1.99"},
            ],
            "resolve": {"nodes": [
                {"id": "own", "deps": [
                    {"pkg": "a", "dep_kinds": [{"kind": null, "target": null}]},
                    {"pkg": "c", "dep_kinds": [{"kind": "dev", "target": null}]},
                ]},
                {"id": "a", "deps": [{"pkg": "b", "dep_kinds": [{"kind": null, "target": null}]}]},
            ]},
        });
        assert_eq!(faults(&metadata), ["own declares rust-version 1.88, but b 3 needs 1.90"]);
    }
}
