//! Users and roles with etcdctl and with the commands of `quorate`.

use std::fs;
use std::process::{Command, Output};

use crate::etcdctl::{CommandStream, etcdctl, installed, refused, run, succeed};
use crate::support::server::{TestServer, endpoints, start_all};
use crate::support::{TestDirectory, output_text, quorate};

const ROOT: &str = "--user root:clear-root-password";
const ALICE: &str = "--user alice:clear-alice-password";

fn three(directory: &TestDirectory) -> [TestServer; 3] {
    let mut servers = TestServer::all(directory, ["m1", "m2", "m3"]);
    for server in &mut servers {
        let flags = ["--bcrypt-cost", "4", "--log-level", "debug"];
        server.extra_flags = flags.map(str::to_owned).to_vec();
    }
    servers
}

#[test]
fn etcdctl_manages_users_and_roles() {
    if !installed("etcdctl") {
        return;
    }
    let directory = TestDirectory::new("auth-etcdctl");
    let servers = three(&directory);
    let all: Vec<&TestServer> = servers.iter().collect();
    let processes = start_all(&all);
    let [first, second, third] = servers.each_ref().map(TestServer::client_address);
    let expected = |endpoint: &str, line: &str, text: &str| {
        assert_eq!(succeed(endpoint, line), text, "etcdctl {line}");
    };
    expected(&first, "user add root:clear-root-password", "User root created");
    expected(&first, "user add alice:clear-alice-password", "User alice created");
    expected(&second, "role add app", "Role app created");
    expected(&third, "role grant-permission app readwrite app/ --prefix", "Role app updated");
    expected(&third, "role grant-permission app read shared", "Role app updated");
    expected(&first, "user grant-role alice app", "Role app is granted to user alice");
    expected(&first, "auth enable", "Authentication Enabled");

    let no_user = refused(&second, "put app/a 1");
    assert!(no_user.contains("etcdserver: user name is empty"), "{no_user}");
    let wrong = refused(&second, "--user alice:wrong get app/a");
    let text = "etcdserver: authentication failed, invalid user ID or password";
    assert!(wrong.contains(text), "{wrong}");
    for endpoint in [&first, &second, &third] {
        expected(endpoint, &format!("{ALICE} put app/a 1"), "OK");
        expected(endpoint, &format!("{ALICE} get app/a --print-value-only"), "1");
        for line in ["get other", "put shared 1", "get '' --prefix", "user list", "compaction 2"] {
            let denied = refused(endpoint, &format!("{ALICE} {line}"));
            assert!(denied.contains("etcdserver: permission denied"), "{line}: {denied}");
        }
    }
    expected(&second, &format!("{ROOT} user list"), "alice\nroot");
    // `auth enable` adds the role `root`.
    expected(&second, &format!("{ROOT} role list"), "app\nroot");
    expected(&second, &format!("{ROOT} user get alice"), "User: alice\nRoles: app");
    let role = succeed(&third, &format!("{ROOT} role get app"));
    let shown = "Role app\nKV Read:\n\t[app/, app0) (prefix app/)\n\tshared\nKV Write:\n\t[app/, \
                 app0) (prefix app/)";
    assert_eq!(role, shown);
    expected(&first, &format!("{ROOT} put other 2"), "OK");

    // An open watch ends when the right is revoked.
    let mut command = etcdctl(&second);
    command.args(ALICE.split(' ')).args(["watch", "app/", "--prefix"]);
    let mut watch = CommandStream::start(command, "");
    crate::support::wait_until(
        || {
            expected(&first, &format!("{ALICE} put app/b 3"), "OK");
            watch.has_line()
        },
        "the watch sees a put",
    );
    let revoked = "Role app is revoked from user alice";
    expected(&first, &format!("{ROOT} user revoke-role alice app"), revoked);
    watch.wait_ended();
    let denied = refused(&third, &format!("{ALICE} get app/a"));
    assert!(denied.contains("etcdserver: permission denied"), "{denied}");

    expected(&first, &format!("{ROOT} auth disable"), "Authentication Disabled");
    expected(&second, "put app/a 4", "OK");
    drop(processes);
    for server in &servers {
        let log = fs::read_to_string(&server.log).unwrap();
        assert!(!log.contains("clear-"), "{} has a password", server.log.display());
    }
}

fn quorate_with(servers: &[&TestServer], user: Option<&str>, line: &str) -> Output {
    let mut command: Command = quorate();
    command.args(line.split(' ')).args(["--endpoints", &endpoints(servers)]);
    if let Some(user) = user {
        command.env("QUORATE_USER", user);
    }
    run(command, "")
}

#[test]
fn our_commands_take_a_user_and_a_backup_keeps_users() {
    let directory = TestDirectory::new("auth-quorate");
    let servers = three(&directory);
    let all: Vec<&TestServer> = servers.iter().collect();
    let processes = start_all(&all);
    let root = Some("root:clear-root-password");
    let succeed = |user, line: &str, text: &str| {
        let output = quorate_with(&all, user, line);
        assert!(output.status.success(), "{line}: {}", output_text(&output));
        let found = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        assert!(text.is_empty() || found == text, "{line}: {found}");
    };
    let refused = |user, line: &str, text: &str| {
        let output = quorate_with(&all, user, line);
        assert!(!output.status.success(), "{line}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(text), "{line}: {error}");
    };
    succeed(None, "user add root:clear-root-password", "User root created");
    succeed(None, "user add bob --new-user-password clear-bob-password", "User bob created");
    succeed(None, "auth enable", "Authentication Enabled");
    refused(None, "user list", "etcdserver: user name is empty");
    refused(None, "member list", "etcdserver: user name is empty");
    refused(Some("root:wrong"), "user list", "etcdserver: authentication failed");
    // Without a terminal, the password cannot be asked for.
    refused(Some("root"), "user list", "no password is given");
    succeed(root, "user list", "bob\nroot");
    succeed(root, "role add app", "Role app created");
    succeed(root, "role grant-permission app read a b", "Role app updated");
    succeed(root, "role grant-permission app write app/ --prefix", "Role app updated");
    succeed(root, "role get app", "Role app\nKV Read:\n\t[a, b)\nKV Write:\n\t[app/, app0)");
    let text = "Permission of [a, b) is revoked from role app";
    succeed(root, "role revoke-permission app a b", text);
    succeed(root, "user grant-role bob app", "Role app is granted to user bob");
    succeed(root, "user get bob", "User: bob\nRoles: app");
    succeed(root, "user passwd bob --new-password clear-new-password", "Password updated");
    refused(Some("bob:clear-bob-password"), "member list", "etcdserver: authentication failed");
    succeed(Some("bob:clear-new-password"), "member list", "");
    refused(Some("bob:clear-new-password"), "member remove m3", "etcdserver: permission denied");
    succeed(root, "status", "");
    succeed(root, "bench put --seconds 1 --clients 2", "");
    let backup = directory.file("backup");
    refused(
        Some("bob:clear-new-password"),
        &format!("snapshot save {backup}"),
        "permission denied",
    );
    succeed(root, &format!("snapshot save {backup}"), "");
    drop(processes);

    // The users are in the backup, and no password is.
    let bytes = fs::read(&backup).unwrap();
    assert!(!bytes.windows(6).any(|window| window == b"clear-"));
    let [mut restored] = TestServer::all(&directory, ["restored"]);
    restored.extra_flags = vec!["--bcrypt-cost".into(), "4".into()];
    let mut command = quorate();
    command.args(["snapshot", "restore", &backup]).args(restored.member_flags(&[&restored]));
    let output = run(command, "");
    assert!(output.status.success(), "{}", output_text(&output));
    let _process = restored.start_new(&[&restored]);
    let list = || quorate_with(&[&restored], Some("root:clear-root-password"), "user list");
    crate::support::wait_until(|| list().status.success(), "the restored cluster serves");
    assert_eq!(String::from_utf8_lossy(&list().stdout).trim_end(), "bob\nroot");
    let anonymous = quorate_with(&[&restored], None, "user list");
    assert!(output_text(&anonymous).contains("etcdserver: user name is empty"));
}
