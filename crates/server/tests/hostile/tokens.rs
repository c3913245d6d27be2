//! Tokens and passwords of strangers, with authentication enabled. All of them are refused, with
//! the same answer for every wrong token and for every wrong password.

use quorate_proto::etcdserverpb::auth_client::AuthClient;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthUserAddRequest, AuthUserGrantRoleRequest,
    AuthenticateRequest, RangeRequest,
};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::Report;
use crate::support::TestMember;

pub(crate) const CASES: usize = TOKENS + LOGINS;
const TOKENS: usize = 16;
const LOGINS: usize = 8;

/// `{"alg":"none"}`, `{"username":"root","revision":1}`.
const WITHOUT_SIGNATURE: &str = "eyJhbGciOiJub25lIn0.eyJ1c2VybmFtZSI6InJvb3QiLCJyZXZpc2lvbiI6MX0.";

/// Wrong tokens. Given a valid one, they include what is close to it.
fn tokens(valid: &str) -> [(&'static str, &'static str, Vec<u8>); TOKENS] {
    let text = |text: &str| text.as_bytes().to_vec();
    let backwards: String = valid.chars().rev().collect();
    let shorter = &valid[..valid.len() - 1];
    [
        ("one letter", "token", text("x")),
        ("a dot", "token", text(".")),
        ("a number", "token", text("1")),
        ("a token of another cluster", "token", text("AbCdEfGhIjKlMnOp.7")),
        ("an index of 20 digits", "token", text("AbCdEfGhIjKlMnOp.99999999999999999999")),
        ("a negative index", "token", text("AbCdEfGhIjKlMnOp.-1")),
        ("a valid token that is cut", "token", text(shorter)),
        ("a valid token and more", "token", text(&format!("{valid}0"))),
        ("a valid token backwards", "token", text(&backwards)),
        ("a valid token in capital letters", "token", text(&format!("{}!", valid.to_uppercase()))),
        ("a JWT without a signature", "token", text(WITHOUT_SIGNATURE)),
        ("a JWT without a signature, as a bearer", "authorization", text(WITHOUT_SIGNATURE)),
        ("a bearer", "authorization", text(&format!("Bearer {valid}x"))),
        ("a token of 12 KiB", "token", vec![b'a'; 12 << 10]),
        ("dots", "token", vec![b'.'; 1 << 10]),
        ("a path", "token", text("../../etc/passwd")),
    ]
}

/// Wrong users and passwords.
fn logins() -> [(&'static str, String, String); LOGINS] {
    let login = |name, user: &str, password: &str| (name, user.to_owned(), password.to_owned());
    [
        login("a wrong password", "root", "wrong"),
        login("an empty password", "root", ""),
        login("a password with more behind it", "root", "secret\0more"),
        login("a password in capital letters", "root", "SECRET"),
        login("an unknown user", "nobody", "secret"),
        login("an empty user", "", "secret"),
        login("a user with a zero byte", "root\0", "secret"),
        ("a user of 100 KB", "r".repeat(100_000), "secret".to_owned()),
    ]
}

/// Adds the user `root`, and enables authentication.
pub(crate) async fn enable(channel: &Channel) {
    let mut auth = AuthClient::new(channel.clone());
    let AuthenticateRequest { name, password } = root();
    let user = AuthUserAddRequest { name: name.clone(), password, ..Default::default() };
    auth.user_add(user).await.unwrap();
    auth.role_add(AuthRoleAddRequest { name: name.clone() }).await.unwrap();
    let grant = AuthUserGrantRoleRequest { user: name.clone(), role: name };
    auth.user_grant_role(grant).await.unwrap();
    auth.auth_enable(AuthEnableRequest {}).await.unwrap();
}

fn root() -> AuthenticateRequest {
    AuthenticateRequest { name: "root".to_owned(), password: "secret".to_owned() }
}

/// A valid token.
pub(crate) async fn login(channel: &Channel) -> String {
    AuthClient::new(channel.clone()).authenticate(root()).await.unwrap().into_inner().token
}

/// Reads the one key that exists, with this token in this header.
pub(crate) async fn range(
    channel: &Channel,
    header: &'static str,
    token: &[u8],
) -> Result<i64, Status> {
    let mut request = Request::new(RangeRequest { key: "key".into(), ..Default::default() });
    let value = MetadataValue::try_from(token.to_vec()).unwrap();
    request.metadata_mut().insert(header, value);
    let response = KvClient::new(channel.clone()).range(request).await;
    response.map(|response| response.into_inner().count)
}

pub(crate) async fn run(member: &TestMember, report: &mut Report) {
    let channel = member.channel().await;
    enable(&channel).await;
    let valid = login(&channel).await;
    assert_eq!(range(&channel, "token", valid.as_bytes()).await.unwrap(), 1);
    for (name, header, token) in tokens(&valid) {
        let reply = range(&channel, header, &token).await;
        let is_right = reply.as_ref().is_err_and(is_refused);
        report.case(name, is_right, reply);
    }
    let mut auth = AuthClient::new(channel.clone());
    for (case, name, password) in logins() {
        let reply = auth.authenticate(AuthenticateRequest { name, password }).await;
        let is_right = reply.as_ref().is_err_and(|status| {
            // The delay after failures has its own answer.
            let is_delayed = status.code() == Code::ResourceExhausted;
            is_delayed || status.code() == Code::InvalidArgument
        });
        report.case(case, is_right, reply);
    }
    assert_eq!(range(&channel, "token", valid.as_bytes()).await.unwrap(), 1);
}

pub(crate) fn is_refused(status: &Status) -> bool {
    // etcd's text.
    let text = "etcdserver: invalid auth token";
    status.code() == Code::Unauthenticated && status.message() == text
}
