//! Simple tokens: random texts that every member learns through the log, as a digest. Each
//! member counts their time by itself; a use restarts it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quorate_kv::{AuthState, IssuedToken, TokenGeneration};
use sha2::{Digest, Sha256};

use super::TokenHold;
use super::jwt::now;
use crate::context::SharedStore;

pub(crate) struct SimpleTokens {
    ttl: Duration,
    /// By digest, so that the time of a look-up tells nothing about tokens.
    known: Mutex<HashMap<[u8; 32], KnownToken>>,
}

struct KnownToken {
    user: String,
    generation: TokenGeneration,
    /// The auth revision at which the generation was compared last. It is valid as long as users
    /// and roles do not change, and so most look-ups need no lock of the store.
    confirmed_at: u64,
    expires: Instant,
    /// Streams that were opened with the token hold it, and so keep it valid.
    hold: TokenHold,
}

/// What is known about a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TokenState {
    /// It is not valid.
    Invalid,
    /// It is valid, and this is its user.
    Valid(String, TokenHold),
    /// Users or roles have changed since it was confirmed: [`SimpleTokens::confirm`] it.
    Unconfirmed,
}

/// A token for a client, and the digest that the members learn.
pub(crate) struct NewToken {
    pub(crate) text: String,
    pub(crate) digest: [u8; 32],
}

impl SimpleTokens {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { ttl, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<[u8; 32], KnownToken>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new random token; `None` if the system has no randomness.
    pub(crate) fn generate() -> Option<NewToken> {
        let mut random = [0; TOKEN_LETTERS];
        getrandom::fill(&mut random).ok()?;
        // 64 letters, so that each is equally likely.
        let letter = |byte: &u8| char::from(LETTERS[usize::from(byte % 64)]);
        let text: String = random.iter().map(letter).collect();
        let digest = digest(&text);
        Some(NewToken { text, digest })
    }

    /// Learns the tokens that were issued since the last call. `caught_up`: this member has
    /// applied everything that was committed when it started; before that, the log is replayed,
    /// and tokens in it may have expired long ago.
    pub(crate) fn learn(&self, store: &SharedStore, caught_up: bool) {
        let issued = store.take_tokens();
        if issued.is_empty() {
            return;
        }
        let mut known = self.known();
        for IssuedToken { request, generation } in issued {
            let age = now().saturating_sub(request.issued_at);
            if !caught_up && age > self.ttl.as_secs() {
                continue;
            }
            let expires = Instant::now() + self.ttl;
            let token = KnownToken {
                user: request.user,
                generation,
                // It was issued at this revision or later.
                confirmed_at: request.checked_at,
                expires,
                hold: TokenHold::default(),
            };
            known.insert(request.digest, token);
        }
        if known.len() > TOKENS_MAX {
            shrink(&mut known);
        }
    }

    /// The user of a token that is valid at this auth revision. Restarts its time.
    pub(crate) fn look_up(&self, text: &str, revision: u64) -> TokenState {
        let mut known = self.known();
        let Some(token) = known.get_mut(&digest(text)) else { return TokenState::Invalid };
        let now = Instant::now();
        if token.has_expired(now) {
            return TokenState::Invalid;
        }
        if token.confirmed_at != revision {
            return TokenState::Unconfirmed;
        }
        token.expires = now + self.ttl;
        TokenState::Valid(token.user.clone(), Arc::clone(&token.hold))
    }

    /// Compares a token with the current users. Forgets it if it is no longer valid.
    pub(crate) fn confirm(&self, text: &str, auth: &AuthState) {
        let mut known = self.known();
        let digest = digest(text);
        let Some(token) = known.get_mut(&digest) else { return };
        if auth.token_is_current(&token.user, token.generation) {
            token.confirmed_at = auth.revision();
        } else {
            known.remove(&digest);
        }
    }

    /// Forgets tokens that are no longer valid. Returns whether there were any.
    pub(crate) fn sweep(&self, auth: &AuthState) -> bool {
        let mut known = self.known();
        let (before, now) = (known.len(), Instant::now());
        known.retain(|_, token| {
            let is_current = auth.token_is_current(&token.user, token.generation);
            token.confirmed_at = auth.revision();
            is_current && !token.has_expired(now)
        });
        known.len() < before
    }

    pub(crate) fn len(&self) -> usize {
        self.known().len()
    }
}

impl KnownToken {
    fn has_expired(&self, now: Instant) -> bool {
        now >= self.expires && Arc::strong_count(&self.hold) == 1
    }
}

/// Forgets the tenth of the tokens that expires first.
fn shrink(known: &mut HashMap<[u8; 32], KnownToken>) {
    let mut times: Vec<Instant> = known.values().map(|token| token.expires).collect();
    let tenth = times.len() / 10;
    let (_, limit, _) = times.select_nth_unstable(tenth);
    let limit = *limit;
    known.retain(|_, token| token.expires > limit);
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
const TOKEN_LETTERS: usize = 32;
const TOKENS_MAX: usize = 100_000;
