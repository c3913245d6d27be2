//! etcdctl with TLS and with mutual TLS against three members, which use mutual TLS among
//! themselves. Which etcdctl runs is decided by `PATH`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use quorate_server::tls::self_signed::{CertificateAndKey, CertificateAuthority};

use crate::etcdctl::{etcdctl, installed, run};
use crate::support::server::{TestServer, endpoints};
use crate::support::{TestDirectory, wait_until};

const VALIDITY: Duration = Duration::from_secs(24 * 3600);

/// A cluster whose clients need a certificate, or not, and the files of its clients.
struct SecuredCluster {
    endpoints: String,
    files: PathBuf,
    _processes: Vec<crate::support::TestProcess>,
}

impl SecuredCluster {
    fn start(directory: &TestDirectory, is_mutual: bool) -> Self {
        let files = directory.path.join("certificates");
        fs::create_dir_all(&files).unwrap();
        let write = |name: &str, issued: &CertificateAndKey| {
            fs::write(files.join(format!("{name}.pem")), &issued.certificate).unwrap();
            fs::write(files.join(format!("{name}.key")), &issued.key).unwrap();
        };
        let authority = |name: &str| {
            let authority = CertificateAuthority::new(name, VALIDITY).unwrap();
            fs::write(files.join(format!("{name}.pem")), authority.certificate()).unwrap();
            authority
        };
        let [clients, peers, other] = ["ca", "peer-ca", "other-ca"].map(authority);
        write("client", &clients.issue_client("client").unwrap());
        write("foreign", &other.issue_client("foreign").unwrap());
        let hosts = ["127.0.0.1".to_owned()];
        let mut servers = TestServer::all(directory, ["m1", "m2", "m3"]);
        for server in &mut servers {
            let name = &server.name;
            write(name, &clients.issue(name, &hosts).unwrap());
            write(&format!("peer-{name}"), &peers.issue(name, &hosts).unwrap());
            let file = |name: String| files.join(name).to_str().unwrap().to_owned();
            let mut flags = vec![
                ("--cert-file", file(format!("{name}.pem"))),
                ("--key-file", file(format!("{name}.key"))),
                ("--peer-cert-file", file(format!("peer-{name}.pem"))),
                ("--peer-key-file", file(format!("peer-{name}.key"))),
                ("--peer-trusted-ca-file", file("peer-ca.pem".into())),
                ("--peer-cert-allowed-cn", "m1,m2,m3".to_owned()),
            ];
            if is_mutual {
                flags.push(("--trusted-ca-file", file("ca.pem".into())));
            }
            server.extra_flags =
                flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
            for url in [&mut server.peer_url, &mut server.client_url] {
                *url = url.replace("http://", "https://");
            }
        }
        let all: Vec<&TestServer> = servers.iter().collect();
        let processes = all.iter().map(|server| server.start_new(&all)).collect();
        let cluster = Self { endpoints: endpoints(&all), files, _processes: processes };
        let healthy = || cluster.etcdctl(Some("client"), "ca", "endpoint health").is_ok();
        wait_until(healthy, "all members are healthy");
        cluster
    }

    /// The output of a command with this certificate and this authority, or its error.
    fn etcdctl(&self, own: Option<&str>, authority: &str, line: &str) -> Result<String, String> {
        let mut command: Command = etcdctl(&self.endpoints);
        let file = |name: String| self.files.join(name);
        command.arg("--cacert").arg(file(format!("{authority}.pem")));
        if let Some(own) = own {
            command.arg("--cert").arg(file(format!("{own}.pem")));
            command.arg("--key").arg(file(format!("{own}.key")));
        }
        // The last one wins: a refusal must not take as long as a hang.
        command.args(["--dial-timeout=5s", "--command-timeout=20s"]);
        let output = run(
            {
                command.args(line.split(' '));
                command
            },
            "",
        );
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }

    /// What every accepted client can do, at every member.
    fn assert_serves(&self, own: Option<&str>) {
        let succeed = |line: &str| self.etcdctl(own, "ca", line).unwrap();
        assert_eq!(succeed("put color green"), "OK");
        assert_eq!(succeed("get color --print-value-only"), "green");
        assert_eq!(succeed("del color"), "1");
        assert_eq!(succeed("member list").lines().count(), 3);
        let status = succeed("endpoint status");
        assert_eq!(status.matches("https://127.0.0.1:").count(), 3, "{status}");
    }
}

#[test]
fn etcdctl_uses_tls() {
    if !installed("etcdctl") {
        return;
    }
    let directory = TestDirectory::new("tls-etcdctl");
    let cluster = SecuredCluster::start(&directory, false);
    cluster.assert_serves(None);
    cluster.assert_serves(Some("client"));
    // A client that trusts another authority refuses the servers, and a client without TLS is
    // refused. etcdctl tries again until its timeout, so they run at the same time.
    thread::scope(|scope| {
        scope.spawn(|| assert!(cluster.etcdctl(None, "other-ca", "get color").is_err()));
        scope.spawn(|| {
            let plain = cluster.endpoints.replace("https://", "http://");
            let mut command = etcdctl(&plain);
            command.args(["--dial-timeout=5s", "--command-timeout=10s", "get", "color"]);
            assert!(!run(command, "").status.success());
        });
    });
}

#[test]
fn etcdctl_uses_mutual_tls() {
    if !installed("etcdctl") {
        return;
    }
    let directory = TestDirectory::new("mutual-tls-etcdctl");
    let cluster = SecuredCluster::start(&directory, true);
    cluster.assert_serves(Some("client"));
    // No certificate, one of another authority, and that of a member for its peers. etcdctl tries
    // again until its timeout, so they run at the same time.
    thread::scope(|scope| {
        for own in [None, Some("foreign"), Some("peer-m1")] {
            let cluster = &cluster;
            scope.spawn(move || {
                assert!(cluster.etcdctl(own, "ca", "get color").is_err(), "{own:?}");
            });
        }
    });
}
