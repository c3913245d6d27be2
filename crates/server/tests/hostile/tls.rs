//! Strangers at ports with TLS: for clients, for metrics and for peers. What is not TLS, messages
//! that are out of place, hellos that cannot be answered, and certificates that are not accepted.

use std::net::SocketAddr;

use quorate_server::tls::{TlsConnector, TlsSettings};
use rcgen::{ExtendedKeyUsagePurpose, date_time_ymd};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::certificates::{TestAuthority, TestCertificate};
use crate::{Report, exchange};

/// What the server sends before it closes the connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    /// An alert with this description (RFC 8446, section 6).
    Alert(u8),
    /// The answer of HTTPS servers to HTTP.
    BadRequest,
    /// The handshake begins, and ends when it cannot go on.
    Hello,
    Nothing,
}

use Answer::{Alert, BadRequest, Hello, Nothing};

const UNEXPECTED_MESSAGE: u8 = 10;
const HANDSHAKE_FAILURE: u8 = 40;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
const NO_APPLICATION_PROTOCOL: u8 = 120;

const HANDSHAKE: u8 = 22;

fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    [&[kind, 3, 1][..], &length, payload].concat()
}

/// A message of a handshake, in one record.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    record(HANDSHAKE, &[&[kind], &length[1..], body].concat())
}

/// A hello of a client, from which cases differ in one thing.
#[derive(Clone)]
struct ClientHello {
    version: [u8; 2],
    session_id: Vec<u8>,
    suites: Vec<u8>,
    compression: Vec<u8>,
    extensions: Vec<(u16, Vec<u8>)>,
}

const SERVER_NAME: u16 = 0;
const GROUPS: u16 = 10;
const SIGNATURES: u16 = 13;
const PROTOCOLS: u16 = 16;
const VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;

impl ClientHello {
    /// One that a server can answer, of TLS 1.3 or 1.2.
    fn valid() -> Self {
        let share = [&[0, 36, 0, 29, 0, 32][..], &[9; 32]].concat();
        Self {
            version: [3, 3],
            session_id: vec![1; 32],
            suites: vec![0x13, 0x01, 0xc0, 0x2b],
            compression: vec![0],
            extensions: vec![
                (GROUPS, vec![0, 2, 0, 29]),
                (SIGNATURES, vec![0, 2, 4, 3]),
                (VERSIONS, vec![4, 3, 4, 3, 3]),
                (KEY_SHARE, share),
            ],
        }
    }

    fn with(mut self, kind: u16, bytes: &[u8]) -> Self {
        self.extensions.retain(|(other, _)| *other != kind);
        self.extensions.push((kind, bytes.to_vec()));
        self
    }

    fn without(mut self, kind: u16) -> Self {
        self.extensions.retain(|(other, _)| *other != kind);
        self
    }

    fn body(&self) -> Vec<u8> {
        let mut body = self.version.to_vec();
        body.extend([5; 32]);
        body.push(self.session_id.len() as u8);
        body.extend(&self.session_id);
        body.extend((self.suites.len() as u16).to_be_bytes());
        body.extend(&self.suites);
        body.push(self.compression.len() as u8);
        body.extend(&self.compression);
        let mut extensions = Vec::new();
        for (kind, bytes) in &self.extensions {
            extensions.extend(kind.to_be_bytes());
            extensions.extend((bytes.len() as u16).to_be_bytes());
            extensions.extend(bytes);
        }
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        body
    }

    fn bytes(&self) -> Vec<u8> {
        message(1, &self.body())
    }
}

/// A hello that a server answers with its certificate and a signature, which is work.
pub(crate) fn valid_hello() -> Vec<u8> {
    ClientHello::valid().bytes()
}

/// More of a hello than a server keeps, in records of this size.
fn large_hello(piece: usize) -> Vec<u8> {
    let first = record(HANDSHAKE, &[1, 255, 255, 255, 3, 3]);
    [first, record(HANDSHAKE, &vec![7; piece]).repeat((4 << 20) / piece)].concat()
}

type Cases = Vec<(&'static str, Vec<u8>, Answer)>;

fn table() -> Cases {
    [not_tls(), out_of_place(), unanswerable(), after_the_hello()].concat()
}

fn not_tls() -> Cases {
    vec![
        ("silence", Vec::new(), Nothing),
        ("HTTP/1", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), BadRequest),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), BadRequest),
        ("a large request of HTTP", b"POST / HTTP/1.1\r\n\r\n".repeat(10_000), BadRequest),
        ("text", b"hello\r\n".to_vec(), Nothing),
        ("zeros", vec![0; 4096], Nothing),
        ("ones", vec![0xff; 4096], Nothing),
        ("SSL 2", vec![0x80, 0x2e, 1, 0, 2, 0, 21, 0, 0, 0, 16], Nothing),
        ("application data first", record(23, &[1; 100]), Nothing),
        ("an alert first", record(21, &[2, 40]), Nothing),
        ("a change of ciphers first", record(20, &[1]), Nothing),
        ("a heartbeat first", record(24, &[1, 0x40, 0]), Nothing),
        ("our protocol for peers", b"quorate\n\0\0\0\0\0\0\0\0".to_vec(), Nothing),
    ]
}

/// Records and messages that are cut, too long or out of place.
fn out_of_place() -> Cases {
    let hello = ClientHello::valid;
    vec![
        ("one byte of a record", vec![22], Nothing),
        ("half of a hello", hello().bytes()[..60].to_vec(), Nothing),
        (
            "a record of 65,535 bytes",
            [&[22, 3, 1, 255, 255][..], &[1; 100]].concat(),
            Alert(DECODE_ERROR),
        ),
        ("an unknown record version", vec![22, 9, 9, 0, 4, 1, 0, 0, 0], Alert(DECODE_ERROR)),
        ("a record without content", record(HANDSHAKE, &[]), Alert(DECODE_ERROR)),
        ("a hello without content", message(1, &[]), Alert(DECODE_ERROR)),
        ("the start of a hello of 16 MiB", record(HANDSHAKE, &[1, 255, 255, 255, 3, 3]), Nothing),
        ("a hello of noise", message(1, &[0xaa; 300]), Alert(DECODE_ERROR)),
        (
            "a hello with more behind it",
            message(1, &[hello().body(), vec![0; 9]].concat()),
            Alert(DECODE_ERROR),
        ),
        ("a request for renegotiation", message(0, &[]), Alert(UNEXPECTED_MESSAGE)),
        ("the hello of a server", message(2, &hello().body()), Alert(DECODE_ERROR)),
        ("a certificate first", message(11, &[0, 0, 0]), Alert(UNEXPECTED_MESSAGE)),
        ("a key update first", message(24, &[0]), Alert(UNEXPECTED_MESSAGE)),
        ("the end of a handshake first", message(20, &[0; 12]), Alert(UNEXPECTED_MESSAGE)),
        ("an unknown message", message(99, &[1, 2, 3]), Alert(UNEXPECTED_MESSAGE)),
        // The alert is lost in the reset: the client is still sending.
        ("a hello of 16 MiB in small pieces", large_hello(1_000), Nothing),
        ("a hello of 16 MiB in large pieces", large_hello(16_000), Nothing),
    ]
}

/// Hellos that cannot be answered.
fn unanswerable() -> Cases {
    let hello = ClientHello::valid;
    let changed = |change: fn(&mut ClientHello)| {
        let mut hello = ClientHello::valid();
        change(&mut hello);
        hello.bytes()
    };
    let mut cut_name = hello().with(SERVER_NAME, &[0, 9, 0, 0, 200, b'a']);
    cut_name.session_id.clear();
    let mut twice = hello();
    twice.extensions.push((VERSIONS, vec![2, 3, 4]));
    vec![
        (
            "SSL 3",
            changed(|hello| {
                hello.version = [3, 0];
                hello.extensions.clear();
            }),
            Alert(HANDSHAKE_FAILURE),
        ),
        ("TLS 1.0", hello().with(VERSIONS, &[2, 3, 1]).bytes(), Alert(PROTOCOL_VERSION)),
        ("TLS 1.1", hello().with(VERSIONS, &[2, 3, 2]).bytes(), Alert(PROTOCOL_VERSION)),
        (
            "TLS 1.0 of the time before versions were listed",
            changed(|hello| {
                hello.version = [3, 1];
                hello.extensions.retain(|(kind, _)| *kind != VERSIONS);
            }),
            Alert(PROTOCOL_VERSION),
        ),
        ("no versions", hello().with(VERSIONS, &[0]).bytes(), Alert(DECODE_ERROR)),
        ("no cipher suites", changed(|hello| hello.suites.clear()), Alert(DECODE_ERROR)),
        (
            "weak cipher suites",
            changed(|hello| hello.suites = vec![0, 5, 0, 10, 0, 47]),
            Alert(HANDSHAKE_FAILURE),
        ),
        (
            "half of a cipher suite",
            changed(|hello| hello.suites = vec![0x13, 0x01, 0xc0]),
            Alert(DECODE_ERROR),
        ),
        ("compression", changed(|hello| hello.compression = vec![1]), Alert(ILLEGAL_PARAMETER)),
        (
            "a session id of 33 bytes",
            changed(|hello| hello.session_id = vec![1; 33]),
            Alert(DECODE_ERROR),
        ),
        ("no key exchange groups", hello().without(GROUPS).bytes(), Alert(HANDSHAKE_FAILURE)),
        (
            "unknown key exchange groups",
            hello().with(GROUPS, &[0, 2, 0xaa, 0xaa]).bytes(),
            Alert(HANDSHAKE_FAILURE),
        ),
        ("no signature schemes", hello().without(SIGNATURES).bytes(), Alert(HANDSHAKE_FAILURE)),
        ("an extension twice", twice.bytes(), Alert(ILLEGAL_PARAMETER)),
        ("a server name that is cut", cut_name.bytes(), Alert(DECODE_ERROR)),
        (
            "a key share of 3 bytes",
            hello().with(KEY_SHARE, &[0, 7, 0, 29, 0, 3, 1, 2, 3]).bytes(),
            Alert(ILLEGAL_PARAMETER),
        ),
        (
            "another protocol",
            hello()
                .with(VERSIONS, &[2, 3, 3])
                .with(PROTOCOLS, &[0, 9, 8, b's', b'm', b't', b'p', b'/', b'9', b'.', b'9'])
                .bytes(),
            Alert(NO_APPLICATION_PROTOCOL),
        ),
    ]
}

fn after_the_hello() -> Cases {
    let hello = ClientHello::valid;
    let then = |bytes: &[u8]| [hello().bytes(), bytes.to_vec()].concat();
    vec![
        ("a hello and silence", hello().bytes(), Hello),
        ("noise after the hello", then(&record(23, &[7; 200])), Hello),
        ("a second hello", then(&hello().bytes()), Hello),
        ("HTTP after the hello", then(b"GET / HTTP/1.1\r\n\r\n"), Hello),
        ("renegotiation after the hello", then(&message(0, &[])), Hello),
        ("an alert after the hello", then(&record(21, &[2, 0])), Hello),
        ("a thousand changes of ciphers", then(&record(20, &[1]).repeat(1_000)), Hello),
    ]
}

pub(crate) const CASES: usize = 3 * ENTRIES + 3 * CERTIFICATES;
const ENTRIES: usize = 54;
const CERTIFICATES: usize = 8;

fn answer(reply: &[u8]) -> Option<Answer> {
    match reply {
        [] => Some(Nothing),
        [21, 3, _, 0, 2, 2, description] => Some(Alert(*description)),
        [22, 3, 3, ..] => Some(Hello),
        text if text.starts_with(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP") => {
            Some(BadRequest)
        }
        _ => None,
    }
}

/// The ports of the server with TLS. Those for peers do not agree on a protocol inside TLS.
pub(crate) struct SecuredPorts {
    pub(crate) clients: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) peers: SocketAddr,
}

pub(crate) async fn run(ports: &SecuredPorts, authority: &TestAuthority, report: &mut Report) {
    let all = [("client", ports.clients), ("metrics", ports.metrics), ("peer", ports.peers)];
    let mut cases = Vec::new();
    for (kind, address) in all {
        for (name, bytes, mut expected) in table() {
            if kind == "peer" && expected == Alert(NO_APPLICATION_PROTOCOL) {
                expected = Hello;
            }
            let reply = tokio::spawn(async move { exchange(address, &bytes).await });
            cases.push((format!("{name}, {kind} port"), expected, reply));
        }
    }
    assert_eq!(cases.len(), 3 * ENTRIES);
    for (name, expected, reply) in cases {
        let reply = reply.await.unwrap();
        let found = reply.as_deref().and_then(answer);
        let start = reply.map(|reply| reply[..reply.len().min(16)].to_vec());
        report.case(&name, found == Some(expected), (expected, found, start));
    }
    for (name, certificate, expected) in certificates(authority) {
        for (kind, address) in all {
            let alert = refusal(address, authority, certificate.as_ref()).await;
            let is_right = alert.as_ref().is_err_and(|alert| alert.contains(expected));
            report.case(&format!("{name}, {kind} port"), is_right, alert);
        }
    }
}

/// The certificate that the server has on its list of revoked ones.
pub(crate) fn revoked(authority: &TestAuthority) -> TestCertificate {
    authority.issue("withdrawn")
}

/// Certificates that are not accepted, and the alert.
fn certificates(
    authority: &TestAuthority,
) -> [(&'static str, Option<TestCertificate>, &'static str); CERTIFICATES] {
    let other = TestAuthority::new();
    let validity = |name: &str, from, until| {
        authority.issue_with(name, |params| {
            (params.not_before, params.not_after) =
                (date_time_ymd(from, 1, 1), date_time_ymd(until, 1, 1));
        })
    };
    let only_server = authority.issue_with("only-server", |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let foreign = other.issue("foreign");
    // Their files are in directories of the authorities, which end with them.
    let kept = |certificate: TestCertificate| {
        let copy = authority.issue("copy");
        copy.replace_with(&certificate);
        copy
    };
    [
        ("no certificate", None, "CertificateRequired"),
        ("expired", Some(validity("expired", 2020, 2021)), "CertificateExpired"),
        ("not yet valid", Some(validity("early", 2090, 2091)), "CertificateExpired"),
        ("of another authority", Some(kept(foreign)), "UnknownCA"),
        ("self-signed", Some(authority.self_signed("self-signed")), "UnknownCA"),
        ("revoked", Some(revoked(authority)), "CertificateRevoked"),
        ("for servers only", Some(only_server), "UnsupportedCertificate"),
        ("of a name that is not allowed", Some(authority.issue("stranger")), "CertificateUnknown"),
    ]
}

/// The alert with which the server refuses this certificate; what it sends if it does not.
async fn refusal(
    address: SocketAddr,
    authority: &TestAuthority,
    own: Option<&TestCertificate>,
) -> Result<usize, String> {
    let mut settings = TlsSettings::default();
    settings.certificate = own.map(|own| own.certificate.clone());
    settings.key = own.map(|own| own.key.clone());
    settings.trusted_ca = Some(authority.ca());
    let connector = TlsConnector::new(&settings).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let mut stream =
        connector.connect(stream, &address.to_string()).await.map_err(|error| error.to_string())?;
    stream.read(&mut [0]).await.map_err(|error| error.to_string())
}
