//! When the data of members is compared, by flags and by etcd's feature gates.

use std::time::Duration;

use super::error::ServerConfigError;
use super::settings::Settings;

/// When a member compares its data with that of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptionChecks {
    /// Before it serves: it does not start if its data differs.
    pub initial: bool,
    /// The leader compares the newest data of all members this often; zero is never.
    pub interval: Duration,
    /// The leader compares the hashes that members stored when they compacted.
    pub compact_hash: bool,
    /// How often it does so.
    pub compact_hash_interval: Duration,
}

impl Default for CorruptionChecks {
    fn default() -> Self {
        Self {
            initial: false,
            interval: Duration::ZERO,
            compact_hash: false,
            compact_hash_interval: Duration::from_secs(60),
        }
    }
}

impl CorruptionChecks {
    pub(super) fn from_settings(given: &Settings) -> Result<Self, ServerConfigError> {
        let default = Self::default();
        let gates = feature_gates(given)?;
        let checks = Self {
            initial: given.switch("initial-corrupt-check", gates.initial_corrupt_check)?,
            interval: given.duration("corrupt-check-time", default.interval)?,
            compact_hash: given.switch("compact-hash-check-enabled", gates.compact_hash_check)?,
            compact_hash_interval: given
                .duration("compact-hash-check-time", default.compact_hash_interval)?,
        };
        if checks.compact_hash_interval.is_zero() {
            let expected = "a duration above 0";
            return Err(ServerConfigError::value("compact-hash-check-time", "0", expected));
        }
        Ok(checks)
    }
}

/// Those of etcd's feature gates that have an effect here.
#[derive(Clone, Copy, Debug, Default)]
struct FeatureGates {
    initial_corrupt_check: bool,
    compact_hash_check: bool,
}

fn feature_gates(given: &Settings) -> Result<FeatureGates, ServerConfigError> {
    let mut gates = FeatureGates::default();
    let Some(text) = given.text(FEATURE_GATES) else { return Ok(gates) };
    for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let expected = "a list such as InitialCorruptCheck=true,CompactHashCheck=true";
        let wrong = || ServerConfigError::value(FEATURE_GATES, one, expected);
        let (name, value) = one.split_once('=').ok_or_else(wrong)?;
        let is_on = match value {
            "true" => true,
            "false" => false,
            _ => return Err(wrong()),
        };
        match name {
            "InitialCorruptCheck" => gates.initial_corrupt_check = is_on,
            "CompactHashCheck" => gates.compact_hash_check = is_on,
            known if GATES_WITHOUT_EFFECT.contains(&known) => {}
            _ => return Err(ServerConfigError::value(FEATURE_GATES, one, "a gate of etcd")),
        }
    }
    Ok(gates)
}

const FEATURE_GATES: &str = "feature-gates";

/// Gates of etcd that change nothing here.
const GATES_WITHOUT_EFFECT: &[&str] = &[
    "AllAlpha",
    "AllBeta",
    "FastLeaseKeepAlive",
    "LeaseCheckpoint",
    "LeaseCheckpointPersist",
    "PriorityRequest",
    "SetMemberLocalAddr",
    "StopGRPCServiceOnDefrag",
    "TxnModeWriteWithSharedBuffer",
];
