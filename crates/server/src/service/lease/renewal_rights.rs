//! Whether the client of a keep-alive stream may renew its leases, also when users and roles
//! change while the stream is open.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use quorate_kv::{AnyTable, Issuer, Kv};

use crate::access::ClientIdentity;
use crate::auth::{UserIdentity, token_expired};
use crate::context::ServiceContext;
use crate::status::ServiceError;

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct RenewalRights {
    shared: Arc<SharedRights>,
}

struct SharedRights {
    context: ServiceContext,
    client: ClientIdentity,
    /// The leases that the stream has renewed.
    leases: Mutex<BTreeSet<i64>>,
    /// Keeps the token valid while the stream is open.
    _identity: Option<UserIdentity>,
}

impl RenewalRights {
    pub(super) async fn new(context: &ServiceContext, client: ClientIdentity) -> Self {
        let context = context.clone();
        let _identity = context.hold_token(&client).await;
        let shared = SharedRights { context, client, leases: Mutex::default(), _identity };
        Self { shared: Arc::new(shared) }
    }

    pub(super) fn context(&self) -> &ServiceContext {
        &self.shared.context
    }

    /// Whether the client may renew this lease.
    pub(super) async fn check(&self, lease: i64) -> Result<(), ServiceError> {
        let SharedRights { context, client, .. } = &*self.shared;
        if context.store.auth_version().enabled {
            let check =
                |kv: &Kv<AnyTable>, issuer: Issuer<'_>| Ok(kv.check_renewal(issuer, lease)?);
            context.with_identity(client, check).await?;
        }
        let mut leases = self.shared.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if leases.len() < LEASES_MAX {
            leases.insert(lease);
        }
        Ok(())
    }

    /// Waits until the client may no longer renew one of its leases.
    pub(super) async fn lost(&self) -> ServiceError {
        let SharedRights { context, client, leases, .. } = &*self.shared;
        let mut changes = context.auth.changes.subscribe();
        let mut hold = context.hold_token(client).await;
        loop {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
                () = token_expired(hold.as_ref()) => {}
            }
            let leases: Vec<i64> = {
                let leases = leases.lock().unwrap_or_else(PoisonError::into_inner);
                leases.iter().copied().collect()
            };
            // The first part is empty: the client has to be known even without leases.
            let parts = std::iter::once(&[][..]).chain(leases.chunks(LEASES_AT_ONCE));
            for part in parts {
                let check = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| {
                    kv.auth().check_known(issuer)?;
                    let issuer = issuer.at_any_revision();
                    part.iter().try_for_each(|lease| kv.check_renewal(issuer, *lease))?;
                    Ok(())
                };
                if let Err(error) = context.with_identity(client, check).await {
                    return error;
                }
            }
            hold = context.hold_token(client).await;
        }
    }
}

/// Leases of one stream that are checked again when users and roles change. Others are checked
/// when they are renewed.
const LEASES_MAX: usize = 100_000;
/// Leases that are checked before commands may be applied in between.
const LEASES_AT_ONCE: usize = 1_000;
