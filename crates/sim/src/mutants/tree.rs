//! Makes the mutated build: a copy of the crates with all switches in them, under
//! `target/mutants/tree`, compiled by cargo and run with the same arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use super::mutant::{Mutant, mutants_folder, read_mutants};
use super::rewrite::rewrite;

/// Runs a command of this program in the mutated build.
pub(super) fn run_mutated(command: &str, args: &[String]) -> Result<ExitCode, String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().map_err(|why| format!("{}: {why}", root.display()))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let (tree, build) = (target.join("mutants/tree"), target.join("mutants/build"));
    generate(&root, &tree)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--quiet", "--package", "quorate-sim", "--manifest-path"]);
    cargo.arg(tree.join("Cargo.toml")).env("CARGO_TARGET_DIR", &build);
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    if profile == "release" {
        cargo.arg("--release");
    }
    let built = cargo.output().map_err(|why| format!("cargo: {why}"))?;
    if !built.status.success() {
        let errors = String::from_utf8_lossy(&built.stderr);
        return Err(format!("{errors}\nthe mutated build in {} failed", tree.display()));
    }
    let program = build.join(profile).join("quorate-sim");
    let status = Command::new(&program).arg(command).args(args).status();
    let status = status.map_err(|why| format!("{}: {why}", program.display()))?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Writes the mutated copy of the workspace at `root`. Files whose contents stay the same are not
/// touched, so that cargo compiles only what changed.
pub fn generate(root: &Path, tree: &Path) -> Result<(), String> {
    let mutants = read_mutants(&mutants_folder())?;
    let manifest = read(&root.join("Cargo.toml"))?;
    let crates = crates_of_simulator(root, &manifest)?;
    let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    files.insert("Cargo.toml".into(), workspace_manifest(&manifest, &crates).into_bytes());
    for folder in &crates {
        let from = root.join("crates").join(folder);
        let to = Path::new("crates").join(folder);
        for path in files_below(&from)? {
            let bytes = std::fs::read(from.join(&path));
            let bytes = bytes.map_err(|why| format!("{}: {why}", path.display()))?;
            files.insert(to.join(path), bytes);
        }
        let mut manifest = crate_manifest(&read(&from.join("Cargo.toml"))?);
        if !manifest.contains("quorate-core") {
            // The switches are there.
            let with_core = "[dependencies]\nquorate-core.workspace = true\n";
            manifest = manifest.replacen("[dependencies]\n", with_core, 1);
        }
        files.insert(to.join("Cargo.toml"), manifest.into_bytes());
    }
    insert_switches(&mut files, &mutants)?;
    for (path, bytes) in &files {
        write_if_changed(&tree.join(path), bytes)?;
    }
    for path in files_below(&tree.join("crates"))? {
        if !files.contains_key(&Path::new("crates").join(&path)) {
            let stale = tree.join("crates").join(path);
            std::fs::remove_file(&stale).map_err(|why| format!("{}: {why}", stale.display()))?;
        }
    }
    lock_versions(root, tree)
}

/// Every file with a switch in each place that a mutant quotes, and the switches themselves.
fn insert_switches(
    files: &mut BTreeMap<PathBuf, Vec<u8>>,
    mutants: &[Mutant],
) -> Result<(), String> {
    let edits =
        mutants.iter().flat_map(|mutant| mutant.edits.iter().map(move |edit| (mutant, edit)));
    let quoted: BTreeMap<&str, &str> =
        edits.map(|(mutant, edit)| (edit.file.as_str(), mutant.name.as_str())).collect();
    for (file, name) in quoted {
        let path = Path::new("crates").join(file);
        let bytes = files.get(&path).ok_or(format!("mutant {name}: there is no crates/{file}"))?;
        let text = String::from_utf8_lossy(bytes);
        let in_core = file.starts_with("core/");
        let switch = if in_core { "crate::mutants::is_on" } else { "quorate_core::mutants::is_on" };
        let text = rewrite(file, &text, mutants, switch)?;
        files.insert(path, text.into_bytes());
    }
    let lib = files.entry("crates/core/src/lib.rs".into()).or_default();
    lib.extend_from_slice(b"\n#[doc(hidden)]\npub mod mutants;\n");
    let wrong = read(&mutants_folder().join("wrong.rs"))?;
    files.insert("crates/core/src/mutants/wrong.rs".into(), wrong.into_bytes());
    files.insert("crates/core/src/mutants.rs".into(), CORE_SWITCH.into());
    files.insert("crates/sim/src/mutants/switch.rs".into(), SIM_SWITCH.into());
    Ok(())
}

/// The folders of the simulator and of all our crates that it is built from.
fn crates_of_simulator(root: &Path, manifest: &str) -> Result<BTreeSet<String>, String> {
    let (mut folders, mut next) = (BTreeSet::new(), vec!["sim".to_owned()]);
    while let Some(folder) = next.pop() {
        let manifest_of_crate = read(&root.join("crates").join(&folder).join("Cargo.toml"))?;
        if !folders.insert(folder) {
            continue;
        }
        let lines = section(&manifest_of_crate, "[dependencies]");
        for name in lines.filter_map(|line| line.split([' ', '.', '=']).next()) {
            let of_workspace = section(manifest, "[workspace.dependencies]");
            let path = of_workspace
                .filter(|line| line.split([' ', '=']).next() == Some(name))
                .find_map(|line| line.split("path = \"crates/").nth(1));
            next.extend(path.and_then(|path| path.split('"').next()).map(str::to_owned));
        }
    }
    Ok(folders)
}

fn section<'a>(manifest: &'a str, head: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = manifest.lines().skip_while(move |line| *line != head).skip(1);
    lines.take_while(|line| !line.starts_with('['))
}

/// The same workspace with only these members. Its lints do not apply to generated code.
fn workspace_manifest(manifest: &str, crates: &BTreeSet<String>) -> String {
    let members: Vec<String> = crates.iter().map(|folder| format!("\"crates/{folder}\"")).collect();
    let members = format!("members = [{}]", members.join(", "));
    let text = without_sections(manifest, |head| head.starts_with("[workspace.lints"));
    let lines = text.lines().map(|line| match line.starts_with("members = ") {
        true => members.as_str(),
        false => line,
    });
    let text: Vec<&str> = lines.collect();
    format!("{}\n\n[workspace.lints.rust]\nwarnings = \"allow\"\n", text.join("\n"))
}

/// What the library and the program need, without tests and examples.
fn crate_manifest(manifest: &str) -> String {
    let is_extra = |head: &str| head.starts_with("[dev-dependencies") || head.starts_with("[[");
    without_sections(manifest, is_extra)
}

fn without_sections(manifest: &str, is_dropped: impl Fn(&str) -> bool) -> String {
    let (mut text, mut dropped) = (String::new(), false);
    for line in manifest.lines() {
        if line.starts_with('[') {
            dropped = is_dropped(line);
        }
        if !dropped {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Third-party crates in the versions of the workspace. Cargo drops what the copy does not need.
fn lock_versions(root: &Path, tree: &Path) -> Result<(), String> {
    let (from, to) = (root.join("Cargo.lock"), tree.join("Cargo.lock"));
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    if modified(&to) < modified(&from) {
        std::fs::copy(&from, &to).map_err(|why| format!("{}: {why}", from.display()))?;
    }
    Ok(())
}

/// All files below this folder, as paths from there. Tests are left out, but not the stories.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut files, mut next) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(path) = next.pop() {
        let at = folder.join(&path);
        let list = std::fs::read_dir(&at).map_err(|why| format!("{}: {why}", at.display()))?;
        for found in list.filter_map(Result::ok) {
            let path = path.join(found.file_name());
            let is_left_out = path.starts_with("examples")
                || path.starts_with("benches")
                || path.starts_with("tests")
                    && path.components().count() > 1
                    && !path.starts_with("tests/scenarios");
            if found.path().is_dir() {
                next.extend((!is_left_out).then_some(path));
            } else if !is_left_out {
                files.push(path);
            }
        }
    }
    Ok(files)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))
}

fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(path);
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(path, bytes));
    written.map_err(|why| format!("{}: {why}", path.display()))
}

/// `core/src/mutants.rs` of the mutated build.
const CORE_SWITCH: &str = r#"//! Generated: which mutant is on, on this thread.

use std::cell::Cell;

mod wrong;
pub(crate) use wrong::*;

thread_local! {
    static ON: Cell<Option<u16>> = const { Cell::new(None) };
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

pub fn is_on(mutant: u16) -> bool {
    let on = ON.get();
    if on.is_some() {
        let left = LEFT.get().saturating_sub(1);
        LEFT.set(left);
        assert!(left > 0, "a member is in an endless loop");
    }
    on == Some(mutant)
}

pub fn switch(to: Option<u16>) {
    ON.set(to);
    LEFT.set(u64::MAX);
}

pub fn limit(questions: u64) {
    LEFT.set(questions);
}
"#;

/// `sim/src/mutants/switch.rs` of the mutated build.
const SIM_SWITCH: &str = "//! Generated: the switches of the mutated core.

pub(super) use quorate_core::mutants::{limit, switch};

pub(super) const IS_MUTATED: bool = true;
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generating_again_touches_only_what_changed() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        let tree = std::env::temp_dir().join(format!("quorate-mutants-{}", std::process::id()));
        generate(&root, &tree).unwrap();
        let (election, stale) =
            (tree.join("crates/core/src/election.rs"), tree.join("crates/core/src/gone.rs"));
        assert!(read(&election).unwrap().contains("crate::mutants::is_on("));
        let before = election.metadata().unwrap().modified().unwrap();
        std::fs::write(&stale, "").unwrap();
        generate(&root, &tree).unwrap();
        assert_eq!(election.metadata().unwrap().modified().unwrap(), before);
        assert!(!stale.exists());
        std::fs::remove_dir_all(&tree).unwrap();
    }
}
