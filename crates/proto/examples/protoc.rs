//! The part of `protoc` that build scripts of other crates use: it compiles `.proto` files into
//! a descriptor set. Tests with such crates then need only the Rust compiler:
//!
//! ```sh
//! cargo build -p quorate-proto --example protoc
//! PROTOC=$PWD/target/debug/examples/protoc cargo test -p quorate-cli --features etcd-client
//! ```

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut includes, mut files, mut output) = (Vec::new(), Vec::new(), None);
    let (mut imports, mut source_info) = (false, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().map(PathBuf::from);
        match argument.as_str() {
            "--version" => {
                println!("libprotoc 3.21 (protox)");
                return Ok(());
            }
            "--include_imports" => imports = true,
            "--include_source_info" => source_info = true,
            "-I" => includes.extend(value()),
            "-o" => output = value(),
            flag if flag.starts_with('-') => return Err(format!("unknown flag: {flag}").into()),
            file => files.push(PathBuf::from(file)),
        }
    }
    let output = output.ok_or("missing flag: -o")?;
    let mut compiler = protox::Compiler::new(includes)?;
    compiler.include_imports(imports).include_source_info(source_info).open_files(files)?;
    std::fs::write(output, compiler.encode_file_descriptor_set())?;
    Ok(())
}
