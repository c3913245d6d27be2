//! The user of a command: `--user` and `--password`, their variables, and the prompt.

use std::convert::Infallible;
use std::fmt;
use std::io::IsTerminal;
use std::str::FromStr;
use std::sync::Mutex;

use clap::Args;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::error::CliError;

/// Who makes the requests.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection and output")]
pub(crate) struct UserArguments {
    /// The user that makes the requests. Asks for the password if none is given. Default:
    /// $QUORATE_USER, then $ETCDCTL_USER.
    #[arg(long, value_name = "NAME[:PASSWORD]")]
    user: Option<SecretText>,
    /// The password of the user; then --user is the name alone. Default: $QUORATE_PASSWORD, then
    /// $ETCDCTL_PASSWORD.
    #[arg(long, value_name = "PASSWORD")]
    password: Option<SecretText>,
}

/// A text that does not appear in debug output.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretText(pub(crate) String);

impl FromStr for SecretText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redacted")
    }
}

/// A name and a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserCredentials {
    pub(crate) name: String,
    pub(crate) password: SecretText,
}

impl UserArguments {
    /// The user of this command, if there is one.
    pub(crate) fn resolve(&self) -> Result<Option<UserCredentials>, CliError> {
        self.resolve_with(|name| std::env::var(name).ok(), prompt_once)
    }

    fn resolve_with(
        &self,
        variable: impl Fn(&str) -> Option<String>,
        prompt: impl Fn(&str) -> Result<String, CliError>,
    ) -> Result<Option<UserCredentials>, CliError> {
        let given = |argument: &Option<SecretText>, variables: [&str; 2]| {
            let argument = argument.as_ref().map(|text| text.0.clone());
            let from_variable = || variables.iter().find_map(|name| variable(name));
            argument.or_else(from_variable).filter(|text| !text.is_empty())
        };
        let Some(user) = given(&self.user, ["QUORATE_USER", "ETCDCTL_USER"]) else {
            return Ok(None);
        };
        let password = given(&self.password, ["QUORATE_PASSWORD", "ETCDCTL_PASSWORD"]);
        let (name, password) = match (password, user.split_once(':')) {
            (Some(password), _) => (user, password),
            (None, Some((name, password))) => (name.to_owned(), password.to_owned()),
            (None, None) => {
                let password = prompt(&user)?;
                (user, password)
            }
        };
        Ok(Some(UserCredentials { name, password: SecretText(password) }))
    }
}

/// Asks for a password on the terminal; at most once for each user.
fn prompt_once(user: &str) -> Result<String, CliError> {
    static ANSWERS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());
    let mut answers = ANSWERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((_, password)) = answers.iter().find(|(known, _)| known == user) {
        return Ok(password.clone());
    }
    let password = prompt(&format!("Password of {user}: "))?;
    answers.push((user.to_owned(), password.clone()));
    Ok(password)
}

/// Asks for a secret on the terminal, without showing it.
pub(crate) fn prompt(question: &str) -> Result<String, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::usage(
            "no password is given; write --user NAME:PASSWORD or --password, or run the command \
             on a terminal",
        ));
    }
    rpassword::prompt_password(question)
        .map_err(|error| CliError::failed(format!("cannot read the password: {error}")))
}

/// Sends a token with each request.
#[derive(Clone, Default)]
pub(crate) struct SendToken {
    pub(crate) token: Option<AsciiMetadataValue>,
}

impl Interceptor for SendToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        Ok(request)
    }
}

impl fmt::Debug for SendToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "redacted");
        f.debug_struct("SendToken").field("token", &token).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(
        user: Option<&str>,
        password: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Option<(String, String)> {
        let secret = |text: Option<&str>| text.map(|text| SecretText(text.into()));
        let arguments = UserArguments { user: secret(user), password: secret(password) };
        assert!(!format!("{arguments:?}").contains("hidden"));
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let resolved = arguments.resolve_with(variable, |user| Ok(format!("typed by {user}")));
        resolved.unwrap().map(|user| (user.name, user.password.0))
    }

    fn pair(name: &str, password: &str) -> Option<(String, String)> {
        Some((name.into(), password.into()))
    }

    #[test]
    fn the_user_comes_from_arguments_variables_and_the_terminal() {
        assert_eq!(resolve(None, None, &[]), None);
        assert_eq!(resolve(None, Some("hidden"), &[]), None);
        assert_eq!(resolve(Some("a:hidden"), None, &[]), pair("a", "hidden"));
        assert_eq!(resolve(Some("a:b:c"), None, &[]), pair("a", "b:c"));
        assert_eq!(resolve(Some("a"), Some("hidden"), &[]), pair("a", "hidden"));
        // As etcdctl: with --password, the user is a name, whatever it contains.
        assert_eq!(resolve(Some("a:b"), Some("hidden"), &[]), pair("a:b", "hidden"));
        assert_eq!(resolve(Some("a"), None, &[]), pair("a", "typed by a"));
        let etcd = [("ETCDCTL_USER", "e:hidden"), ("QUORATE_USER", "q")];
        assert_eq!(resolve(None, None, &etcd[..1]), pair("e", "hidden"));
        assert_eq!(resolve(None, None, &etcd), pair("q", "typed by q"));
        let password = [("ETCDCTL_PASSWORD", "hidden")];
        assert_eq!(resolve(Some("a"), None, &password), pair("a", "hidden"));
    }
}
