//! Leases of one round: one that is kept alive, and one that is not.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::client::{FaultClient, retry_until_ok, wait_for};
use crate::leases::{GrantedLease, grant, renew};

pub(crate) struct LeaseChecks {
    kept_key: String,
    abandoned_key: String,
    abandoned: GrantedLease,
    /// When the last keep-alive request that was answered was sent.
    renewed: Arc<Mutex<Instant>>,
    keep_alives: JoinHandle<()>,
}

const KEPT_TTL: Duration = Duration::from_secs(20);
const ABANDONED_TTL: Duration = Duration::from_secs(3);

impl LeaseChecks {
    pub(crate) async fn start(prefix: &str, clients: Vec<FaultClient>) -> Self {
        let (kept_key, abandoned_key) = (format!("{prefix}kept"), format!("{prefix}abandoned"));
        let kept = grant(&clients[0], &kept_key, KEPT_TTL.as_secs()).await;
        let abandoned = grant(&clients[0], &abandoned_key, ABANDONED_TTL.as_secs()).await;
        let renewed = Arc::new(Mutex::new(kept.requested));
        let keep_alives = tokio::spawn(keep_alive(clients, kept.id, Arc::clone(&renewed)));
        Self { kept_key, abandoned_key, abandoned, renewed, keep_alives }
    }

    /// Whether the lease was renewed in time to the end, so that it could be checked.
    pub(crate) async fn check(self, client: &FaultClient) -> bool {
        assert!(!self.keep_alives.is_finished(), "a keep-alive failed");
        let present = retry_until_ok("a kept key", async || client.get(&self.kept_key).await).await;
        let age = self.renewed.lock().unwrap().elapsed();
        assert!(present.is_some() || age >= KEPT_TTL, "gone {age:?} after a renewal");
        let gone = async || client.get(&self.abandoned_key).await.ok()?.is_none().then_some(());
        wait_for("the abandoned lease expires", gone).await;
        let age = self.abandoned.requested.elapsed();
        assert!(age >= ABANDONED_TTL, "expired after {age:?}");
        present.is_some()
    }
}

impl Drop for LeaseChecks {
    fn drop(&mut self) {
        self.keep_alives.abort();
    }
}

/// Renews the lease every second, at one member after the other.
async fn keep_alive(clients: Vec<FaultClient>, id: i64, renewed: Arc<Mutex<Instant>>) {
    for client in clients.iter().cycle() {
        let sent = Instant::now();
        let reply = renew(client, id).await;
        let age = renewed.lock().unwrap().elapsed();
        match reply {
            Ok(reply) if reply.ttl > 0 => {
                *renewed.lock().unwrap() = sent;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok(_) => assert!(age >= KEPT_TTL, "expired {age:?} after a renewal"),
            // The member does not reply, or there is no leader at the moment.
            Err(_) => tokio::time::sleep(super::PAUSE).await,
        }
        if age >= KEPT_TTL {
            // It may have expired: there is nothing more to check.
            std::future::pending::<()>().await;
        }
    }
}
