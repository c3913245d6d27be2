//! Hashing and checking of passwords with bcrypt, on blocking threads and a few at a time: it is
//! slow on purpose, and must not delay other requests. Passwords are overwritten in memory after
//! use.

use std::sync::Arc;

use quorate_kv::PasswordHash;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use zeroize::Zeroizing;

use crate::status::ServiceError;

/// A password in memory. It is overwritten when it is dropped.
pub(crate) type Password = Zeroizing<String>;

pub(crate) struct Passwords {
    cost: u32,
    slots: Arc<Semaphore>,
    /// Passwords that may wait to be hashed.
    hashes: Arc<Semaphore>,
    /// The hash that passwords of unknown users are compared with, so that the time of the
    /// answer does not tell whether the user exists.
    decoy: PasswordHash,
}

impl Passwords {
    pub(crate) fn new(cost: u32) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let slots = Arc::new(Semaphore::new(cores.div_ceil(2)));
        let hashes = Arc::new(Semaphore::new(HASHES_WAITING_MAX));
        Self { cost, slots, hashes, decoy: decoy(cost) }
    }

    /// The hash of a password.
    pub(crate) async fn hash(&self, password: Password) -> Result<PasswordHash, ServiceError> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(ServiceError::PasswordTooLong { limit: PASSWORD_BYTES_MAX });
        }
        let place = Arc::clone(&self.hashes).try_acquire_owned();
        let place = place.map_err(|_| ServiceError::TooManyLogins)?;
        let permit = Arc::clone(&self.slots).acquire_owned().await;
        let permit = permit.map_err(|_| ServiceError::ServerStopped)?;
        let cost = self.cost;
        let hashed = spawn_blocking(move || {
            let _in_progress = (permit, place);
            bcrypt::hash(&*password, cost).ok().map(|hash| PasswordHash::new(hash.into_bytes()))
        });
        hashed.await?.ok_or(ServiceError::UnexpectedReply)
    }

    /// Whether the password is the one of the hash. Without a hash it is compared all the same,
    /// and is wrong. `attempt` is dropped when the check has ended, even if its caller has gone.
    pub(crate) async fn check(
        &self,
        password: Password,
        expected: Option<PasswordHash>,
        attempt: impl Send + 'static,
    ) -> Result<bool, ServiceError> {
        let permit = Arc::clone(&self.slots).acquire_owned().await;
        let permit = permit.map_err(|_| ServiceError::ServerStopped)?;
        let is_known = expected.is_some();
        let expected = expected.unwrap_or_else(|| self.decoy.clone());
        let checked = spawn_blocking(move || {
            let _in_progress = (permit, attempt);
            let text = std::str::from_utf8(expected.as_bytes()).unwrap_or_default();
            let is_right = password.len() <= PASSWORD_BYTES_MAX
                && bcrypt::verify(&*password, text).unwrap_or_default();
            is_right && is_known
        });
        Ok(checked.await?)
    }
}

/// A hash that costs as much as others to compare with, and whose password is unknown.
fn decoy(cost: u32) -> PasswordHash {
    let cost = cost.clamp(BCRYPT_COST_MIN, BCRYPT_COST_MAX);
    let salt_and_hash = "u".repeat(BCRYPT_SALT_LETTERS + BCRYPT_HASH_LETTERS);
    PasswordHash::new(format!("$2b${cost:02}${salt_and_hash}").into_bytes())
}

/// bcrypt ignores what follows.
pub(crate) const PASSWORD_BYTES_MAX: usize = 72;
/// Passwords of new users that may wait to be hashed.
const HASHES_WAITING_MAX: usize = 256;
const BCRYPT_COST_MIN: u32 = 4;
const BCRYPT_COST_MAX: u32 = 31;
const BCRYPT_SALT_LETTERS: usize = 22;
const BCRYPT_HASH_LETTERS: usize = 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_password_of_a_known_user_is_right() {
        let passwords = Passwords::new(4);
        let new = |password: &str| Password::new(password.to_owned());
        let hash = passwords.hash(new("secret")).await.unwrap();
        assert!(hash.as_bytes().starts_with(b"$2"));
        let check = async |password: &str, hash: Option<&PasswordHash>| {
            passwords.check(new(password), hash.cloned(), ()).await.unwrap()
        };
        assert!(check("secret", Some(&hash)).await);
        assert!(!check("Secret", Some(&hash)).await);
        assert!(!check("secret", None).await);
        assert!(!check("", Some(&PasswordHash::new(&b""[..]))).await);
        let long = "x".repeat(73);
        assert!(passwords.hash(new(&long)).await.is_err());
        let hash = passwords.hash(new(&"x".repeat(72))).await.unwrap();
        assert!(!check(&long, Some(&hash)).await, "the rest is not ignored");
        // As Go's bcrypt, which etcd uses, writes it.
        let text = String::from_utf8(hash.as_bytes().to_vec()).unwrap();
        let from_etcd = PasswordHash::new(text.replacen("$2b$", "$2a$", 1).into_bytes());
        assert!(check(&"x".repeat(72), Some(&from_etcd)).await);
    }

    /// bcrypt does all of its work for the decoy, with the configured cost: it finds that the
    /// password is wrong, and not that the hash is malformed.
    #[test]
    fn the_decoy_is_a_hash_of_the_configured_cost() {
        for cost in [4, 5] {
            let decoy = decoy(cost);
            let text = std::str::from_utf8(decoy.as_bytes()).unwrap();
            assert_eq!(text.parse::<bcrypt::HashParts>().unwrap().get_cost(), cost);
            assert_eq!(bcrypt::verify("secret", text).ok(), Some(false));
        }
    }

    #[tokio::test]
    async fn few_new_passwords_wait_to_be_hashed() {
        let passwords = Passwords::new(4);
        let _busy = passwords.slots.acquire_many(passwords.slots.available_permits() as u32).await;
        let mut waiting = tokio::task::JoinSet::new();
        let passwords =
            Arc::new(Passwords { slots: Arc::clone(&passwords.slots), ..Passwords::new(4) });
        for _ in 0..HASHES_WAITING_MAX {
            let passwords = Arc::clone(&passwords);
            waiting.spawn(async move { passwords.hash(Password::default()).await.map(|_| ()) });
        }
        while passwords.hashes.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = passwords.hash(Password::default()).await;
        assert!(matches!(refused, Err(ServiceError::TooManyLogins)));
        waiting.abort_all();
        while waiting.join_next().await.is_some() {}
        assert_eq!(passwords.hashes.available_permits(), HASHES_WAITING_MAX);
    }
}
