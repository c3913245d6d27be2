//! `quorate auth`, `user` and `role`: etcdctl's commands, with its output.

use quorate_proto::authpb;
use quorate_proto::authpb::permission::Type as PermissionType;
use quorate_proto::etcdserverpb as etcd;
use serde_json::json;

use crate::arguments::{ClientArguments, WriteOut};
use crate::auth_arguments::{
    AuthSubcommand, NamedRole, NamedUser, PermissionArgument, RoleCommand, UserAndRole, UserCommand,
};
use crate::client::connect;
use crate::command::kv::failure;
use crate::credentials::{SecretText, prompt};
use crate::error::CliError;
use crate::print;

pub(crate) async fn run_auth(command: AuthSubcommand) -> Result<(), CliError> {
    match command {
        AuthSubcommand::Enable(client) => {
            let connection = connect(&client).await?;
            let failed = failure("cannot enable authentication", &connection);
            let enable = || connection.request(etcd::AuthEnableRequest {});
            let mut reply = connection.auth().auth_enable(enable()).await;
            // As etcdctl: only the role is missing.
            if reply.as_ref().is_err_and(|status| status.message().ends_with("have root role")) {
                let (user, role) = ("root".to_owned(), "root".to_owned());
                let grant = connection.request(etcd::AuthUserGrantRoleRequest { user, role });
                connection.auth().user_grant_role(grant).await.map_err(&failed)?;
                reply = connection.auth().auth_enable(enable()).await;
            }
            reply.map_err(&failed)?;
            done(&client, "Authentication Enabled");
        }
        AuthSubcommand::Disable(client) => {
            let connection = connect(&client).await?;
            let request = connection.request(etcd::AuthDisableRequest {});
            let reply = connection.auth().auth_disable(request).await;
            reply.map_err(failure("cannot disable authentication", &connection))?;
            done(&client, "Authentication Disabled");
        }
        AuthSubcommand::Status(client) => {
            let connection = connect(&client).await?;
            let request = connection.request(etcd::AuthStatusRequest {});
            let reply = connection.auth().auth_status(request).await;
            let failed = failure("cannot read the state of authentication", &connection);
            let etcd::AuthStatusResponse { enabled, auth_revision, .. } =
                reply.map_err(failed)?.into_inner();
            match client.write_out {
                WriteOut::Table => {
                    print::line(&format!("Authentication Status: {enabled}"));
                    print::line(&format!("AuthRevision: {auth_revision}"));
                }
                WriteOut::Json => {
                    print::json(&json!({ "enabled": enabled, "authRevision": auth_revision }));
                }
            }
        }
    }
    Ok(())
}

pub(crate) async fn run_user(command: UserCommand) -> Result<(), CliError> {
    match command {
        UserCommand::Add { new_user, no_password, new_user_password, client } => {
            add_user(&new_user.0, no_password, new_user_password, &client).await
        }
        UserCommand::Delete(NamedUser { name, client }) => {
            let connection = connect(&client).await?;
            let request = connection.request(etcd::AuthUserDeleteRequest { name: name.clone() });
            let reply = connection.auth().user_delete(request).await;
            reply.map_err(failure("cannot delete the user", &connection))?;
            done(&client, &format!("User {name} deleted"));
            Ok(())
        }
        UserCommand::Get(NamedUser { name, client }) => get_user(&name, &client).await,
        UserCommand::List(client) => {
            let connection = connect(&client).await?;
            let request = connection.request(etcd::AuthUserListRequest {});
            let reply = connection.auth().user_list(request).await;
            let reply = reply.map_err(failure("cannot list users", &connection))?;
            names(&client, "users", &reply.into_inner().users);
            Ok(())
        }
        UserCommand::Passwd { name, new_password, client } => {
            let password = match new_password {
                Some(password) => password,
                None => new_secret(&name)?,
            };
            let connection = connect(&client).await?;
            let request = connection.request(etcd::AuthUserChangePasswordRequest {
                name,
                password: password.0,
                ..Default::default()
            });
            let reply = connection.auth().user_change_password(request).await;
            reply.map_err(failure("cannot change the password", &connection))?;
            done(&client, "Password updated");
            Ok(())
        }
        UserCommand::GrantRole(UserAndRole { user_name: user, role, client }) => {
            let connection = connect(&client).await?;
            let text = format!("Role {role} is granted to user {user}");
            let request = connection.request(etcd::AuthUserGrantRoleRequest { user, role });
            let reply = connection.auth().user_grant_role(request).await;
            reply.map_err(failure("cannot grant the role", &connection))?;
            done(&client, &text);
            Ok(())
        }
        UserCommand::RevokeRole(UserAndRole { user_name: user, role, client }) => {
            let connection = connect(&client).await?;
            let text = format!("Role {role} is revoked from user {user}");
            let request = connection.request(etcd::AuthUserRevokeRoleRequest { name: user, role });
            let reply = connection.auth().user_revoke_role(request).await;
            reply.map_err(failure("cannot revoke the role", &connection))?;
            done(&client, &text);
            Ok(())
        }
    }
}

async fn add_user(
    user: &str,
    no_password: bool,
    given: Option<SecretText>,
    client: &ClientArguments,
) -> Result<(), CliError> {
    let (name, password) = match (no_password, given, user.split_once(':')) {
        (true, ..) => (user, String::new()),
        (false, Some(password), _) => (user, password.0),
        (false, None, Some((name, password))) => (name, password.to_owned()),
        (false, None, None) => (user, new_secret(user)?.0),
    };
    let connection = connect(client).await?;
    let request = connection.request(etcd::AuthUserAddRequest {
        name: name.to_owned(),
        password,
        options: Some(authpb::UserAddOptions { no_password }),
        ..Default::default()
    });
    let reply = connection.auth().user_add(request).await;
    reply.map_err(failure("cannot add the user", &connection))?;
    done(client, &format!("User {name} created"));
    Ok(())
}

async fn get_user(name: &str, client: &ClientArguments) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let request = connection.request(etcd::AuthUserGetRequest { name: name.to_owned() });
    let reply = connection.auth().user_get(request).await;
    let reply = reply.map_err(failure("cannot read the user", &connection))?;
    let roles = reply.into_inner().roles;
    match client.write_out {
        WriteOut::Table => {
            print::line(&format!("User: {name}"));
            print::line(&format!("Roles: {}", roles.join(" ")));
        }
        WriteOut::Json => print::json(&json!({ "user": name, "roles": roles })),
    }
    Ok(())
}

/// Asks twice: a typing error would lock the user out.
fn new_secret(user: &str) -> Result<SecretText, CliError> {
    let first = prompt(&format!("Password of {user}: "))?;
    let second = prompt(&format!("Type password of {user} again for confirmation: "))?;
    if first != second {
        return Err(CliError::usage("the two passwords differ"));
    }
    Ok(SecretText(first))
}

pub(crate) async fn run_role(command: RoleCommand) -> Result<(), CliError> {
    match command {
        RoleCommand::Add(NamedRole { name, client }) => {
            let connection = connect(&client).await?;
            let request = connection.request(etcd::AuthRoleAddRequest { name: name.clone() });
            let reply = connection.auth().role_add(request).await;
            reply.map_err(failure("cannot add the role", &connection))?;
            done(&client, &format!("Role {name} created"));
        }
        RoleCommand::Delete(NamedRole { name, client }) => {
            let connection = connect(&client).await?;
            let request = connection.request(etcd::AuthRoleDeleteRequest { role: name.clone() });
            let reply = connection.auth().role_delete(request).await;
            reply.map_err(failure("cannot delete the role", &connection))?;
            done(&client, &format!("Role {name} deleted"));
        }
        RoleCommand::Get(NamedRole { name, client }) => get_role(&name, &client).await?,
        RoleCommand::List(client) => {
            let connection = connect(&client).await?;
            let request = connection.request(etcd::AuthRoleListRequest {});
            let reply = connection.auth().role_list(request).await;
            let reply = reply.map_err(failure("cannot list roles", &connection))?;
            names(&client, "roles", &reply.into_inner().roles);
        }
        RoleCommand::GrantPermission { role, mode, keys, client } => {
            let connection = connect(&client).await?;
            let perm_type = match mode {
                PermissionArgument::Read => PermissionType::Read,
                PermissionArgument::Write => PermissionType::Write,
                PermissionArgument::Readwrite => PermissionType::Readwrite,
            };
            let (key, range_end) = keys.range();
            let perm = Some(authpb::Permission {
                perm_type: perm_type as i32,
                key: key.into(),
                range_end: range_end.into(),
            });
            let text = format!("Role {role} updated");
            let request =
                connection.request(etcd::AuthRoleGrantPermissionRequest { name: role, perm });
            let reply = connection.auth().role_grant_permission(request).await;
            reply.map_err(failure("cannot grant the permission", &connection))?;
            done(&client, &text);
        }
        RoleCommand::RevokePermission { role, keys, client } => {
            let connection = connect(&client).await?;
            let (key, range_end) = keys.range();
            let text =
                format!("Permission of {} is revoked from role {role}", shown(&key, &range_end));
            let request = connection.request(etcd::AuthRoleRevokePermissionRequest {
                role,
                key: key.into(),
                range_end: range_end.into(),
            });
            let reply = connection.auth().role_revoke_permission(request).await;
            reply.map_err(failure("cannot revoke the permission", &connection))?;
            done(&client, &text);
        }
    }
    Ok(())
}

async fn get_role(name: &str, client: &ClientArguments) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let request = connection.request(etcd::AuthRoleGetRequest { role: name.to_owned() });
    let reply = connection.auth().role_get(request).await;
    let permissions =
        reply.map_err(failure("cannot read the role", &connection))?.into_inner().perm;
    let listed = |key_use: &str, wanted: [PermissionType; 2]| {
        let matching = permissions.iter().filter(|it| wanted.contains(&it.perm_type()));
        let ranges: Vec<String> = matching.map(|it| shown(&it.key, &it.range_end)).collect();
        match client.write_out {
            WriteOut::Table => {
                print::line(&format!("KV {key_use}:"));
                ranges.iter().for_each(|range| print::line(&format!("\t{range}")));
            }
            WriteOut::Json => {}
        }
        ranges
    };
    if client.write_out == WriteOut::Table {
        print::line(&format!("Role {name}"));
    }
    let read = listed("Read", [PermissionType::Read, PermissionType::Readwrite]);
    let write = listed("Write", [PermissionType::Write, PermissionType::Readwrite]);
    if client.write_out == WriteOut::Json {
        print::json(&json!({ "role": name, "read": read, "write": write }));
    }
    Ok(())
}

/// A key or a range, as etcdctl shows it.
fn shown(key: &[u8], range_end: &[u8]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match range_end {
        [] => text(key),
        [0] => format!("[{}, <open ended>", text(key).replace('\0', "")),
        _ => format!("[{}, {})", text(key), text(range_end)),
    }
}

fn names(client: &ClientArguments, title: &str, names: &[String]) {
    match client.write_out {
        WriteOut::Table => names.iter().for_each(|name| print::line(name)),
        WriteOut::Json => print::json(&json!({ title: names })),
    }
}

fn done(client: &ClientArguments, text: &str) {
    match client.write_out {
        WriteOut::Table => print::line(text),
        WriteOut::Json => print::json(&json!({ "done": text })),
    }
}
