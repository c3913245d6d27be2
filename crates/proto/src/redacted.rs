//! `Debug` of messages with secrets: passwords, hashes and tokens do not appear in logs.

use std::fmt;

use crate::authpb::User;
use crate::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest, AuthenticateResponse,
};

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("User");
        text.field("name", &self.name).field("roles", &self.roles);
        text.field("options", &self.options).finish_non_exhaustive()
    }
}

impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("AuthenticateResponse");
        text.field("header", &self.header).finish_non_exhaustive()
    }
}

impl fmt::Debug for AuthUserAddRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("AuthUserAddRequest");
        text.field("name", &self.name).field("options", &self.options).finish_non_exhaustive()
    }
}

impl fmt::Debug for AuthUserChangePasswordRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("AuthUserChangePasswordRequest");
        text.field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed() {
        let secret = || "hidden".to_owned();
        let name = || "alice".to_owned();
        let texts = [
            format!("{:?}", AuthenticateRequest { name: name(), password: secret() }),
            format!("{:?}", AuthenticateResponse { header: None, token: secret() }),
            format!(
                "{:?}",
                AuthUserAddRequest {
                    name: name(),
                    password: secret(),
                    options: None,
                    hashed_password: secret(),
                }
            ),
            format!(
                "{:?}",
                AuthUserChangePasswordRequest {
                    name: name(),
                    password: secret(),
                    hashed_password: secret(),
                }
            ),
            format!("{:?}", User { password: secret().into(), ..User::default() }),
        ];
        for text in texts {
            assert!(!text.contains("hidden") && text.contains(".."), "{text}");
        }
    }
}
