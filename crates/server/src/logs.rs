//! Logs in the formats of zap, which etcd's tools read: JSON lines, or text for people.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

use crate::config::{LogFormat, LogOutput};

/// Writes events of this level and above to these outputs. Only the first call of a process has
/// an effect. The error is about a file that cannot be opened.
pub fn start(level: &str, format: LogFormat, outputs: &[LogOutput]) -> io::Result<()> {
    let level = match level {
        "debug" => Level::DEBUG,
        "warn" => Level::WARN,
        "info" => Level::INFO,
        _ => Level::ERROR,
    };
    let outputs: io::Result<Vec<LogWriter>> = outputs.iter().map(LogWriter::open).collect();
    let subscriber = Registry::default().with(LogLines { level, format, outputs: outputs? });
    // Fails if a subscriber is set already, which then stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}

struct LogLines {
    level: Level,
    format: LogFormat,
    outputs: Vec<LogWriter>,
}

/// An open [`LogOutput`].
enum LogWriter {
    Stderr,
    Stdout,
    File(File),
}

impl LogWriter {
    fn open(output: &LogOutput) -> io::Result<Self> {
        Ok(match output {
            LogOutput::Stderr => Self::Stderr,
            LogOutput::Stdout => Self::Stdout,
            LogOutput::File(path) => {
                let file = File::options().create(true).append(true).open(path);
                let named = |error| {
                    io::Error::other(format!(
                        "cannot open the log file {}: {error}",
                        path.display()
                    ))
                };
                Self::File(file.map_err(named)?)
            }
        })
    }

    /// Writes a whole line in one call, so that lines of several processes do not mix.
    fn write(&self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().lock().write_all(line),
            Self::Stdout => io::stdout().lock().write_all(line),
            Self::File(file) => (&*file).write_all(line),
        }
    }
}

impl<S: Subscriber> Layer<S> for LogLines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        // Events of third-party libraries are left out.
        *metadata.level() <= self.level && metadata.target().starts_with("quorate")
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let line = match self.format {
            LogFormat::Json => line(event, SystemTime::now()),
            LogFormat::Console => console_line(event, SystemTime::now()),
        };
        for output in &self.outputs {
            // A failure to write a log line cannot be reported anywhere.
            let _ = output.write(line.as_bytes());
        }
    }
}

/// Time, level, place, message and fields, separated by tabs.
fn console_line(event: &Event<'_>, now: SystemTime) -> String {
    let (caller, fields) = parts(event);
    let level = event.metadata().level().as_str().to_lowercase();
    let mut line = format!("{}\t{level}\t{caller}\t{}", timestamp(now), fields.message);
    if !fields.fields.is_empty() {
        line.push_str(&format!("\t{}", Value::Object(fields.fields)));
    }
    line.push('\n');
    line
}

/// The place in the code, and the message with its fields.
fn parts(event: &Event<'_>) -> (String, EventFields) {
    let metadata = event.metadata();
    let mut fields = EventFields::default();
    event.record(&mut fields);
    let file = metadata.file().and_then(|file| file.rsplit_once("src/")).map_or("", |(_, f)| f);
    let target = metadata.target().split("::").next().unwrap_or_default();
    (format!("{target}/{file}:{}", metadata.line().unwrap_or_default()), fields)
}

fn line(event: &Event<'_>, now: SystemTime) -> String {
    let (caller, fields) = parts(event);
    let level = event.metadata().level().as_str().to_lowercase();
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
