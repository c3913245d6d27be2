//! `key=value`: what a story may set in a member's [`Config`].

use quorate_core::Config;
use quorate_core::config::{EtcdCompat, ReadMode};

use super::notation::activation;
use super::words::{Parsed, key_value, number, switch, unknown};

/// One setting, known to be well-formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigSetting {
    key: String,
    value: String,
}

impl ConfigSetting {
    /// Nothing when the word is no setting at all.
    pub(super) fn parse(word: &str) -> Parsed<Option<Self>> {
        let Some((key, value)) = key_value(word).filter(|(key, _)| is_key(key)) else {
            return Ok(None);
        };
        let setting = Self { key: key.to_owned(), value: value.to_owned() };
        let mut scratch = Config::new(quorate_core::MemberId(1));
        setting.put(&mut scratch)?;
        Ok(Some(setting))
    }

    /// As [`ConfigSetting::parse`], but a word that is no setting is an error.
    pub(super) fn parse_required(word: &str) -> Parsed<Self> {
        match Self::parse(word)? {
            Some(setting) => Ok(setting),
            None => {
                let key = key_value(word).map_or(word, |(key, _)| key);
                unknown("setting", key, KEYS)
            }
        }
    }

    pub(super) fn text(&self) -> String {
        format!("{}={}", self.key, self.value)
    }

    /// Puts the value where it belongs.
    pub(super) fn put(&self, config: &mut Config) -> Parsed<()> {
        let value = self.value.as_str();
        match self.key.as_str() {
            "preset" => *config = preset(value, config)?,
            "seed" => config.seed = number(value)?,
            "election" => config.election_ticks = number(value)?,
            "heartbeat" => config.heartbeat_ticks = number(value)?,
            "priority" => config.priority = number(value)?,
            "pre-vote" => config.pre_vote = switch(value)?,
            "check-quorum" => config.check_quorum = switch(value)?,
            "stall" => config.stall_timeouts = number(value)?,
            "slow-disk" => config.slow_disk_factor = number(value)?,
            "reads" => config.reads = reads(value)?,
            "forward" => config.forward_proposals = switch(value)?,
            "step-down" => config.step_down_on_removal = switch(value)?,
            "append-bytes" => config.append_bytes_max = number(value)?,
            "inflight" => config.inflight_messages_max = number(value)?,
            "inflight-bytes" => config.inflight_bytes_max = number(value)?,
            "uncommitted-bytes" => config.uncommitted_bytes_max = number(value)?,
            "apply-bytes" => config.apply_bytes_max = number(value)?,
            "tail-bytes" => config.tail_bytes_max = number(value)?,
            "trim-keep" => config.trim_keep_entries = number(value)?,
            "reads-waiting" => config.reads_waiting_max = number(value)?,
            "apply-unsaved" => config.apply_unsaved = switch(value)?,
            "activation" => config.activation = activation(value)?,
            "votes-tell-commit" => config.liveness.votes_tell_commit = switch(value)?,
            "demote-first" => config.liveness.demote_before_removal = switch(value)?,
            "pre-flight" => config.pre_flight = switch(value)?,
            "incarnation" => config.incarnation = number(value)?,
            "joined-at" => config.joined_at = number(value)?,
            "ids-reusable" => config.etcd_compat.ids_reusable = switch(value)?,
            "settle" => config.liveness.settle = switch(value)?,
            _ => return self.set_etcd_compat(&mut config.etcd_compat),
        }
        Ok(())
    }

    fn set_etcd_compat(&self, etcd_compat: &mut EtcdCompat) -> Parsed<()> {
        let switch = switch(&self.value)?;
        match self.key.as_str() {
            "coalesce" => etcd_compat.coalesce = switch,
            "every-reply-waits" => etcd_compat.every_reply_waits = switch,
            "commit-saved-alone" => etcd_compat.commit_saved_alone = switch,
            "refused-change-logs-empty" => etcd_compat.refused_change_logs_empty = switch,
            "auto-counts-operations" => etcd_compat.auto_counts_operations = switch,
            "ignore-member-zero" => etcd_compat.ignore_member_zero = switch,
            "old-term-unanswered" => etcd_compat.old_term_unanswered = switch,
            "forwards-unanswered" => etcd_compat.forwards_unanswered = switch,
            "snapshot-must-name-receiver" => etcd_compat.snapshot_must_name_receiver = switch,
            _ => return unknown("setting", &self.key, KEYS),
        }
        Ok(())
    }
}

fn is_key(key: &str) -> bool {
    KEYS.contains(&key)
}

const KEYS: &[&str] = &[
    "preset",
    "seed",
    "election",
    "heartbeat",
    "priority",
    "pre-vote",
    "check-quorum",
    "stall",
    "slow-disk",
    "reads",
    "forward",
    "step-down",
    "append-bytes",
    "inflight",
    "inflight-bytes",
    "uncommitted-bytes",
    "apply-bytes",
    "tail-bytes",
    "trim-keep",
    "reads-waiting",
    "apply-unsaved",
    "activation",
    "votes-tell-commit",
    "demote-first",
    "pre-flight",
    "incarnation",
    "joined-at",
    "ids-reusable",
    "settle",
    "coalesce",
    "every-reply-waits",
    "commit-saved-alone",
    "refused-change-logs-empty",
    "auto-counts-operations",
    "ignore-member-zero",
    "old-term-unanswered",
    "forwards-unanswered",
    "snapshot-must-name-receiver",
];

fn preset(value: &str, now: &Config) -> Parsed<Config> {
    let mut preset = match value {
        "etcd" => Config::etcd(now.id),
        "quorate" => Config::new(now.id),
        _ => return unknown("preset", value, &["etcd", "quorate"]),
    };
    preset.seed = now.seed;
    preset.activation = now.activation;
    Ok(preset)
}

/// `quorum`, `lease`, or `lease:DRIFT`.
fn reads(value: &str) -> Parsed<ReadMode> {
    match value.split_once(':').unwrap_or((value, "0")) {
        ("quorum", _) => Ok(ReadMode::Quorum),
        ("lease", drift) => Ok(ReadMode::LeaderLease { drift_ticks: number(drift)? }),
        _ => unknown("way to read", value, &["quorum", "lease", "lease:2"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_when_they_are_read() {
        assert!(ConfigSetting::parse("pre-vote=off").unwrap().is_some());
        assert!(ConfigSetting::parse("term=3").unwrap().is_none());
        assert!(ConfigSetting::parse("pre-vote=maybe").is_err());
        let said = ConfigSetting::parse_required("prevote=off").unwrap_err();
        assert_eq!(said, "`prevote` is no setting; did you mean `pre-vote`?");
    }
}
