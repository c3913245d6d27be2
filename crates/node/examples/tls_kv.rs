//! Three members that talk over TCP with mutual TLS, and a stranger that is refused.
//!
//! The authority and the certificates are made here; a program that is deployed reads them from
//! files that an operator provides, and picks up new ones without a restart. Run it with
//! `cargo run -p quorate --features tls --example tls_kv`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate::tls::{TlsSecurity, TlsSettings};
use quorate::{
    KvCommand, KvReply, MemoryKv, MemoryStorage, Node, NodeConfig, TcpConfig, TcpTransport,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Result<Authority, Box<dyn Error>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

/// Writes the files of a member: its certificate, its key and the authority that it trusts.
fn settings(
    directory: &Path,
    name: &str,
    signed_by: &Authority,
    trusted: &Authority,
) -> Result<TlsSettings, Box<dyn Error>> {
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, signed_by)?;
    let write = |extension: &str, text: String| -> Result<Option<PathBuf>, std::io::Error> {
        let path = directory.join(name).with_extension(extension);
        std::fs::write(&path, text)?;
        Ok(Some(path))
    };
    let mut settings = TlsSettings::default();
    settings.certificate = write("pem", certificate.pem())?;
    settings.key = write("key", key.serialize_pem())?;
    settings.trusted_ca = write("ca", trusted.pem())?;
    Ok(settings)
}

async fn bind(settings: &TlsSettings) -> Result<TcpTransport, Box<dyn Error>> {
    let mut config = TcpConfig::new("127.0.0.1:0".parse()?);
    config.security = Arc::new(TlsSecurity::new(settings)?);
    Ok(TcpTransport::bind(config).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let authority = authority()?;
    let mut transports = Vec::new();
    for id in 1..=3 {
        let settings = settings(directory.path(), &format!("member-{id}"), &authority, &authority)?;
        transports.push(bind(&settings).await?);
    }
    let addresses = transports.iter().map(|one| one.advertised().to_owned());
    let members: Vec<(u64, String)> = (1..).zip(addresses).collect();
    let mut nodes = Vec::new();
    for (id, transport) in (1..).zip(transports) {
        let config = NodeConfig::first(42, id, members.clone());
        let storage = MemoryStorage::new();
        nodes.push(Node::start(config, storage, MemoryKv::default(), transport).await?);
    }
    let put = KvCommand::Put { key: "colour".into(), value: "green".into() };
    nodes[0].propose(put.encode()).await?;
    let reply = nodes[2].read("colour").await?;
    println!("member 3 reads {:?}", KvReply::decode(&reply).and_then(|reply| reply.value));

    let other = self::authority()?;
    let stranger = bind(&settings(directory.path(), "stranger", &other, &authority)?).await?;
    match stranger.discover(&members[0].1, Duration::from_secs(5)).await {
        Ok(found) => println!("a stranger learns of {} members", found.len()),
        Err(error) => println!("a stranger is refused: {error}"),
    }
    Ok(())
}
