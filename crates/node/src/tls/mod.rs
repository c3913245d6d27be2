//! TLS for the connections between processes (feature `tls`), with rustls.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use quorate::TcpConfig;
//! use quorate::tls::{TlsSecurity, TlsSettings};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut settings = TlsSettings::default();
//! settings.certificate = Some("member.pem".into());
//! settings.key = Some("member.key".into());
//! settings.trusted_ca = Some("ca.pem".into());
//! let mut config = TcpConfig::new("10.0.0.1:7000".parse()?);
//! config.security = Arc::new(TlsSecurity::new(&settings)?);
//! # Ok(())
//! # }
//! ```
//!
//! With these settings every connection is encrypted, and both sides have to have a certificate
//! that the authority signed. The certificate of a process has to be valid for the host under
//! which its peers reach it. Connections for messages, snapshots and discovery are all secured;
//! a process that does not use TLS can neither connect nor be connected to.
//!
//! The files are checked before every handshake and read again when they changed; open
//! connections continue. Files that cannot be used are reported in the log, and the previous
//! ones stay in use. The example `tls_kv` runs a cluster like this.
//!
//! [`TlsAcceptor`] and [`TlsConnector`] are the two halves, for other ports of the same program.

#![allow(clippy::disallowed_methods, reason = "the simulator has no TLS")]

mod connection;
mod handshake_thread;
mod load;
mod reload;
mod settings;
mod subject;
mod verify;

pub use connection::{
    AcceptedConnection, PeerCertificate, TlsAcceptor, TlsConnector, TlsSecurity, valid_until,
};
pub use handshake_thread::HandshakeThread;
pub use load::TlsConfigError;
pub use settings::{CipherSuite, TlsSettings, TlsVersion};
