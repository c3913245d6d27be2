//! Which watches the client of a stream may have: when they are created, and when users, roles or
//! tokens change.

use quorate_kv::{AnyTable, Issuer, KeyRange, KeyUse, Kv, KvError};
use quorate_proto::etcdserverpb::WatchCreateRequest;

use super::{Closed, WatchStream, keys};
use crate::access::ClientAction;
use crate::auth::UserIdentity;
use crate::status::ServiceError;

impl WatchStream {
    /// The id of a new watch, if the client may create it.
    pub(super) async fn allowed_id_for(
        &mut self,
        request: &WatchCreateRequest,
    ) -> Result<i64, String> {
        // etcd checks it before the rights.
        if request.start_revision < 0 {
            return Err(KvError::Compacted.text().into());
        }
        let action = ClientAction::Watch(request);
        let allowed = match self.context.authorize(&self.client, &action) {
            Ok(()) => self.check_keys(&keys(request)).await,
            denied => denied,
        };
        self.context.audit_watch(&self.client, &action, allowed.as_ref().err()).await;
        allowed.map_err(|error| cancel_reason(&error))?;
        self.id_for(request)
    }

    async fn check_keys(&self, keys: &KeyRange) -> Result<(), ServiceError> {
        let KeyRange { key, range_end } = keys;
        let check = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| {
            Ok(kv.auth().check_keys(issuer, KeyUse::Read, key, range_end)?)
        };
        self.context.with_identity(&self.client, check).await
    }

    /// Cancels the watches that the client may no longer have: users, roles or tokens have
    /// changed.
    pub(super) async fn check_rights(&mut self) -> Result<(), Closed> {
        self.identity = self.context.hold_token(&self.client).await;
        for (id, error) in self.lost_watches().await {
            self.forget_and_report(id, cancel_reason(&ServiceError::Kv(error))).await?;
        }
        Ok(())
    }

    /// The watches that the client may not have, and why. If users or roles change meanwhile, all
    /// watches are checked again afterwards.
    async fn lost_watches(&self) -> Vec<(i64, KvError)> {
        let identity = match self.context.identify(&self.client).await {
            Ok(identity) => identity,
            Err(ServiceError::Kv(error)) => {
                return self.watches.keys().map(|id| (*id, error)).collect();
            }
            Err(_) => return Vec::new(),
        };
        // A signed token ends with the password it was issued for; other changes do not matter.
        let signed = identity.as_ref().filter(|identity| !identity.is_renewable);
        let issuer = identity.as_ref().map_or(Issuer::Anonymous, UserIdentity::issuer);
        let mut watches = self.watches.iter().peekable();
        let mut lost = Vec::new();
        while watches.peek().is_some() {
            let kv = self.context.store.read_when_free().await;
            let is_valid = signed.map_or(Ok(()), |signed| kv.auth().check_known(signed.issuer()));
            for (id, watch) in watches.by_ref().take(WATCHES_AT_ONCE) {
                let KeyRange { key, range_end } = &watch.keys;
                let issuer = issuer.at_any_revision();
                let may_read = kv.auth().check_keys(issuer, KeyUse::Read, key, range_end);
                lost.extend(is_valid.and(may_read).err().map(|error| (*id, error)));
            }
        }
        lost
    }
}

/// As Go prints the status of a refusal: clients compare this text.
fn cancel_reason(error: &ServiceError) -> String {
    let (code, text) = error.code_and_text();
    format!("rpc error: code = {code:?} desc = {text}")
}

/// Watches that are checked before commands may be applied in between.
const WATCHES_AT_ONCE: usize = 1_000;
