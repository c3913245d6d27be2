//! Logs as JSON lines in the format of zap, which etcd's tools read.

use std::fmt::Debug;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

/// Writes events of this level and above to standard error. Only the first call of a process
/// has an effect.
pub fn start(level: &str) {
    let level = match level {
        "debug" => Level::DEBUG,
        "warn" => Level::WARN,
        "info" => Level::INFO,
        _ => Level::ERROR,
    };
    let subscriber = Registry::default().with(JsonLines { level });
    // Fails if a subscriber is set already, which then stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

struct JsonLines {
    level: Level,
}

impl<S: Subscriber> Layer<S> for JsonLines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        // Events of third-party libraries are left out.
        *metadata.level() <= self.level && metadata.target().starts_with("quorate")
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let line = line(event, SystemTime::now());
        // A failure to write to standard error cannot be reported anywhere.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

fn line(event: &Event<'_>, now: SystemTime) -> String {
    let metadata = event.metadata();
    let mut fields = EventFields::default();
    event.record(&mut fields);
    let level = metadata.level().as_str().to_lowercase();
    let file = metadata.file().and_then(|file| file.rsplit_once("src/")).map_or("", |(_, f)| f);
    let target = metadata.target().split("::").next().unwrap_or_default();
    let caller = format!("{target}/{file}:{}", metadata.line().unwrap_or_default());
    let quoted = |text: &str| Value::from(text).to_string();
    let mut line = format!(
        "{{\"level\":{},\"ts\":{},\"caller\":{},\"msg\":{}",
        quoted(&level),
        quoted(&timestamp(now)),
        quoted(&caller),
        quoted(&fields.message)
    );
    for (name, value) in &fields.fields {
        line.push_str(&format!(",{}:{value}", quoted(name)));
    }
    line.push_str("}\n");
    line
}

/// The message and the fields of an event.
#[derive(Default)]
struct EventFields {
    message: String,
    fields: Map<String, Value>,
}

impl EventFields {
    fn set(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().replace('_', "-"), value);
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            _ => self.set(field, text.into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }
}

/// In the format of RFC 3339, in UTC, with microseconds.
fn timestamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, micros) = (since.as_secs(), since.subsec_micros());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The date this many days after 1 January 1970.
fn date(days: u64) -> (u64, u64, u64) {
    // Years start on 1 March, so that a leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + u64::from(month >= 10);
    (year, if month < 10 { month + 3 } else { month - 9 }, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timestamps_have_the_right_date() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
