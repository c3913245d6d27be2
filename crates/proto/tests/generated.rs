//! The checked-in code equals the code generated from `proto/`. `UPDATE=1` regenerates it.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorSet};

/// The files that are generated, by name.
type GeneratedFiles = BTreeMap<String, Vec<u8>>;

const DESCRIPTORS: &str = "descriptors.bin";

/// Fields with unsuitable names in Rust, and their replacements. The wire format has only field
/// numbers, and the descriptors keep the original names.
const RENAMED: &[(&str, &str)] = &[("peerURLs", "peer_urls"), ("clientURLs", "client_urls")];

#[test]
fn generated_code_is_up_to_date() {
    let expected = generate();
    let folder = crate_root().join("src/generated");
    if std::env::var_os("UPDATE").is_some() {
        write(&folder, &expected);
    }
    let existing = read(&folder);
    let names = |files: &GeneratedFiles| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&existing), names(&expected), "{ADVICE}");
    for (name, bytes) in &expected {
        assert!(
            existing[name] == *bytes,
            "{name} differs from the code generated from proto/: {ADVICE}"
        );
    }
}

const ADVICE: &str = "run `cargo run -p xtask -- proto`";

fn generate() -> GeneratedFiles {
    let sources = crate_root().join("proto");
    let mut compiler = protox::Compiler::new([&sources]).unwrap();
    compiler.include_source_info(true);
    compiler.open_files(proto_files(&sources)).unwrap();
    let described = compiler.file_descriptor_set();

    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("generated");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    tonic_prost_build::configure()
        .out_dir(&folder)
        .build_transport(false)
        .codec_path("crate::codec::MessageCodec")
        .emit_rerun_if_changed(false)
        .bytes(".")
        .btree_map(".")
        .skip_debug(SECRET)
        .compile_fds(with_rust_names(described.clone()))
        .unwrap();
    let mut generated = read(&folder);
    generated.insert(DESCRIPTORS.into(), without_comments(described).encode_to_vec());
    generated
}

/// Messages with passwords, hashes or tokens. `src/redacted.rs` has their `Debug`.
const SECRET: [&str; 5] = [
    ".authpb.User",
    ".etcdserverpb.AuthenticateRequest",
    ".etcdserverpb.AuthenticateResponse",
    ".etcdserverpb.AuthUserAddRequest",
    ".etcdserverpb.AuthUserChangePasswordRequest",
];

fn with_rust_names(mut described: FileDescriptorSet) -> FileDescriptorSet {
    let messages = described.file.iter_mut().flat_map(|file| &mut file.message_type);
    messages.for_each(rename_fields);
    described
}

fn rename_fields(message: &mut DescriptorProto) {
    for field in &mut message.field {
        let renamed = RENAMED.iter().find(|(name, _)| field.name() == *name);
        if let Some((_, name)) = renamed {
            field.name = Some((*name).into());
        }
    }
    message.nested_type.iter_mut().for_each(rename_fields);
}

fn without_comments(mut described: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut described.file {
        file.source_code_info = None;
    }
    described
}

/// All files below `folder`, in order.
fn proto_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(proto_files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(folder: &Path) -> GeneratedFiles {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect()
}

fn write(folder: &Path, generated: &GeneratedFiles) {
    for name in read(folder).keys().filter(|name| !generated.contains_key(*name)) {
        fs::remove_file(folder.join(name)).unwrap();
    }
    for (name, bytes) in generated {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

fn crate_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
