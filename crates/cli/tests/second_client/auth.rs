//! Users, roles and permissions; the rights of a client with a user.

use etcd_client::{
    Client, ConnectOptions, Permission, PermissionType, RoleRevokePermissionOptions, UserAddOptions,
};
use tonic::Code;

use crate::{assert_refused, with_cluster};

#[test]
fn users_and_roles_are_managed() {
    with_cluster("auth", |mut client, endpoints| async move {
        let status = client.auth_enable().await;
        assert_refused(status, Code::FailedPrecondition, "etcdserver: root user does not exist");
        client.user_add("root", "root password", None).await.unwrap();
        client.user_add("alice", "alice password", None).await.unwrap();
        let options = UserAddOptions::new().with_no_pwd();
        client.user_add("certificate", "", Some(options)).await.unwrap();
        let again = client.user_add("alice", "x", None).await;
        assert_refused(again, Code::FailedPrecondition, "etcdserver: user name already exists");
        client.user_change_password("alice", "new password").await.unwrap();
        assert_eq!(client.user_list().await.unwrap().users(), ["alice", "certificate", "root"]);
        client.user_delete("certificate").await.unwrap();

        client.role_add("app").await.unwrap();
        let permission = Permission::read_write("app/").with_prefix();
        client.role_grant_permission("app", permission).await.unwrap();
        client.role_grant_permission("app", Permission::read("shared")).await.unwrap();
        client.role_grant_permission("app", Permission::write("z").with_from_key()).await.unwrap();
        let options = RoleRevokePermissionOptions::new().with_from_key();
        client.role_revoke_permission("app", "z", Some(options)).await.unwrap();
        let role = client.role_get("app").await.unwrap().permissions();
        let modes: Vec<i32> = role.iter().map(Permission::get_type).collect();
        assert_eq!(modes, [PermissionType::Readwrite as i32, PermissionType::Read as i32]);
        assert_eq!((role[0].key(), role[0].range_end()), (&b"app/"[..], &b"app0"[..]));
        assert_eq!(client.role_list().await.unwrap().roles(), ["app"]);
        client.user_grant_role("alice", "app").await.unwrap();
        client.user_grant_role("root", "root").await.unwrap();
        assert_eq!(client.user_get("alice").await.unwrap().roles(), ["app"]);

        client.auth_enable().await.unwrap();
        rights(&mut client, &endpoints).await;
    });
}

async fn log_in(
    endpoints: &[String],
    name: &str,
    password: &str,
) -> Result<Client, etcd_client::Error> {
    let options = ConnectOptions::new().with_user(name, password);
    Client::connect(endpoints, Some(options)).await
}

async fn rights(anonymous: &mut Client, endpoints: &[String]) {
    let no_user = "etcdserver: user name is empty";
    assert_refused(anonymous.put("app/a", "1", None).await, Code::InvalidArgument, no_user);
    let failed = "etcdserver: authentication failed, invalid user ID or password";
    let wrong = log_in(endpoints, "alice", "alice password").await;
    assert_refused(wrong.map(|_| ()), Code::InvalidArgument, failed);
    let mut alice = log_in(endpoints, "alice", "new password").await.unwrap();
    alice.put("app/a", "1", None).await.unwrap();
    alice.get("shared", None).await.unwrap();
    let denied = "etcdserver: permission denied";
    assert_refused(alice.put("shared", "1", None).await, Code::PermissionDenied, denied);
    assert_refused(alice.role_add("x").await, Code::PermissionDenied, denied);

    let mut root = log_in(endpoints, "root", "root password").await.unwrap();
    root.user_revoke_role("alice", "app").await.unwrap();
    assert_refused(alice.get("app/a", None).await, Code::PermissionDenied, denied);
    root.role_delete("app").await.unwrap();
    let invalid = root.user_delete("root").await;
    assert_refused(invalid, Code::InvalidArgument, "etcdserver: invalid auth management");
    root.user_delete("alice").await.unwrap();
    let bad = "etcdserver: invalid auth token";
    assert_refused(alice.get("app/a", None).await, Code::Unauthenticated, bad);
    root.auth_disable().await.unwrap();
    anonymous.put("app/a", "2", None).await.unwrap();
}
